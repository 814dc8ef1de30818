"""Entry points of the ABI: guards, sizes, shapes, workspace, and the plain C form."""

from __future__ import annotations

from collections.abc import Sequence

from aotgrad_runtime.records import record

from ...ir import dims as dimlib
from ...ir.core import Block
from ...ir.dims import DimLike
from ...ir.types import TensorType
from .. import later
from ..kernel_core import KernelBuilder
from ..kernel_types import INDEX
from .function import CALL_INFO, FunctionEmitter, ModuleState, inner_name
from .ops import TABLE

__all__ = ["Entry", "Gemm", "entry_text"]

ALIGN = 64


@record(frozen=True)
class Gemm:
    """A product whose scratch memory an entry provides: ``dtype`` ``"f64"`` or ``"f32"``, ``sizes`` M, N, K, row and column strides of A and B in elements."""

    dtype: str
    sizes: tuple[DimLike, DimLike, DimLike]
    a: tuple[DimLike, DimLike]
    b: tuple[DimLike, DimLike]


@record(frozen=True)
class Entry:
    """What a module exports.

    ``NAME(ag_call *)`` calls the kernel function ``kernel`` (default: of the same name). ``symbols``: size symbols in the order of ``ag_call.sizes``.
    ``workspace``: bytes the kernel uses, to which NAME_workspace adds the scratch of ``gemms`` (which share one region, at ``workspace`` rounded up to 64).
    ``guards``: (left, right, location id), equal or the call returns 1 with info (location, left, right); ``unequal``: pairs that must differ.
    ``plain``: the name of a C form beside that on ``ag_call``, ``int32_t PLAIN(inputs…, int64_t sizes…, outputs…, void *workspace)``; outputs may be NULL there.
    ``pool``: its last argument is a pool of threads, or NULL. ``flush``: subnormal numbers are zeros during the call.
    """

    name: str
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    symbols: tuple[str, ...]
    workspace: DimLike = 0
    guards: tuple[tuple[DimLike, DimLike, int], ...] = ()
    unequal: tuple[tuple[DimLike, DimLike], ...] = ()
    kernel: str | None = None
    gemms: tuple[Gemm, ...] = ()
    plain: str | None = None
    pool: bool = False
    flush: bool = False

    @property
    def exports(self) -> tuple[str, ...]:
        """Symbols that the linked library shows."""
        return (self.name, f"{self.name}_workspace", f"{self.name}_shapes", *([self.plain, f"{self.plain}_workspace"] if self.plain else []))


class Sizes(FunctionEmitter):
    """Arithmetic over the size symbols, as text."""

    def __init__(self, state: ModuleState, symbols: Sequence[str]) -> None:
        super().__init__(state, True, TABLE)
        self._scratch = Block([INDEX] * len(symbols))
        self._kb = KernelBuilder(self._scratch, dict(zip(symbols, self._scratch.args)))
        self._done = 0

    def read(self, sizes: str) -> None:
        """Loads every size from an int64 array."""
        for i, v in enumerate(self._scratch.args):
            self.names[v] = self.put(f"load i64, ptr {self.offset(sizes, 8 * i)}, align 8")

    def offset(self, base: str, by: int) -> str:
        """``base`` plus constant bytes."""
        return base if by == 0 else self.put(f"getelementptr i8, ptr {base}, i64 {by}")

    def dim(self, size: DimLike) -> str:
        """A size as an operand."""
        found = self._kb.dim(size)
        todo = Block()
        todo.ops = self._scratch.ops[self._done:]
        self._done = len(self._scratch.ops)
        self.ops(todo)
        return str(found) if isinstance(found, int) else self.names[found]

    def bytes_of(self, t: TensorType) -> str:
        """Bytes of an array, rounded up so that what follows is aligned."""
        return self.dim(_round(t.size * t.dtype.itemsize))

    def add(self, a: str, b: str) -> str:
        """Sum of two operands."""
        return self.put(f"add i64 {a}, {b}")


def _round(size: DimLike) -> DimLike:
    return dimlib.floordiv(size + (ALIGN - 1), ALIGN) * ALIGN


def entry_text(entry: Entry, state: ModuleState) -> list[str]:
    """Definitions of all symbols of an entry."""
    out = [_call(entry, state), _workspace(entry, state), _shapes(entry, state)]
    return out if entry.plain is None else [*out, _plain_run(entry, state), _plain_workspace(entry, state)]


def _scratch(e: Sizes, entry: Entry) -> str:
    """Bytes of workspace and GEMM scratch."""
    total, most = e.dim(_round(entry.workspace)), ""
    for g in entry.gemms:
        e.state.declare(f"declare hidden i64 @ag_gemm_{g.dtype}_workspace(i64, i64, i64, i64, i64, i64, i64)")
        args = ", ".join(f"i64 {e.dim(d)}" for d in (*g.sizes, *g.a, *g.b))
        need = e.put(f"call i64 @ag_gemm_{g.dtype}_workspace({args})")
        most = need if not most else e.intrinsic("i64", "smax.i64", [("i64", most), ("i64", need)])
    if not most:
        return total
    return e.add(total, e.put(f"and i64 {e.add(most, str(ALIGN - 1))}, {-ALIGN}"))


def _call(entry: Entry, state: ModuleState) -> str:
    e = Sizes(state, entry.symbols)
    ptrs = e.put("load ptr, ptr %call, align 8")
    e.read(e.put(f"load ptr, ptr {e.offset('%call', 8)}, align 8") if entry.symbols else "null")
    for left, right, location in entry.guards:
        _guard(e, left, right, location)
    for left, right in entry.unequal:
        _guard(e, left, right, -1, "ne")
    pointers = [e.put(f"load ptr, ptr {e.offset(ptrs, 8 * i)}, align 8") for i in range(len(entry.inputs) + len(entry.outputs))]
    workspace = e.put(f"load ptr, ptr {e.offset('%call', 16)}, align 8")
    sizes = [e.names[v] for v in e._scratch.args]
    args, callee = [*(f"ptr {p}" for p in pointers), *(f"i64 {s}" for s in sizes), f"ptr {workspace}"], inner_name(entry.kernel or entry.name)
    if entry.flush:
        e.entry.append("  %own = alloca [15 x i64], align 8")
    e.lines += later.emit__flush.flushed_call(callee, args) if entry.flush else [f"  %status = call i32 @{callee}({', '.join([*args, 'ptr %call'])})"]
    return "\n".join([f"define i32 @{entry.name}(ptr %call) #0 {{", "entry:", *e.entry, *e.lines, "  ret i32 %status", "}"])


def _guard(e: Sizes, left: DimLike, right: DimLike, location: int, holds: str = "eq") -> None:
    a, b = e.dim(left), e.dim(right)
    fail, on = e.labels("fail", "on")
    e.branch(e.put(f"icmp {holds} i64 {a}, {b}"), on, fail)
    e.block(fail)
    for i, value in enumerate((str(location), a, b)):
        e.lines.append(f"  store i64 {value}, ptr {e.offset('%call', CALL_INFO + 8 * i)}, align 8")
    e.lines.append("  ret i32 1")
    e.block(on)


def _workspace(entry: Entry, state: ModuleState) -> str:
    e = Sizes(state, entry.symbols)
    e.read("%sizes")
    total = _scratch(e, entry)
    return "\n".join([f"define i64 @{entry.name}_workspace(ptr %sizes) #0 {{", "entry:", *e.lines, f"  ret i64 {total}", "}"])


def _shapes(entry: Entry, state: ModuleState) -> str:
    e = Sizes(state, entry.symbols)
    e.read("%sizes")
    for i, d in enumerate(d for t in entry.outputs for d in t.shape):
        value = e.dim(dimlib.maximum(d, 0))  # below 0 where a guard is about to fail: what is allocated first must be possible
        e.lines.append(f"  store i64 {value}, ptr {e.offset('%dims', 8 * i)}, align 8")
    return "\n".join([f"define void @{entry.name}_shapes(ptr %sizes, ptr %dims) #0 {{", "entry:", *e.lines, "  ret void", "}"])


# ---- the C form of libraries: int32_t PLAIN(inputs…, int64_t sizes…, outputs…, void *workspace), int64_t PLAIN_workspace(int64_t sizes…) -----------------

SMALL = 256  # outputs up to so many bytes that are not wanted are written to the stack, so they ask for no workspace


class _Plain(Sizes):
    """A function whose sizes are parameters; ``sizes`` is the array of them that the form on ``ag_call`` reads."""

    def __init__(self, entry: Entry, state: ModuleState) -> None:
        super().__init__(state, entry.symbols)
        self.plain = entry
        self.params = [f"%n{i}" for i in range(len(entry.symbols))]
        self.names.update(zip(self._scratch.args, self.params))
        self.sizes = self.array("i64", self.params)

    def array(self, kind: str, values: Sequence[str], size: int = 0) -> str:
        """A small array on the stack."""
        at = self.alloca(f"[{max(len(values), size, 1)} x {kind}]", 8)
        for i, v in enumerate(values):
            self.lines.append(f"  store {kind} {v}, ptr {self.offset(at, 8 * i)}, align 8")
        return at

    def base(self) -> str:
        """Bytes of workspace of the kernel, rounded up."""
        return self.put(f"and i64 {self.add(self.put(f'call i64 @{self.plain.name}_workspace(ptr {self.sizes})'), str(ALIGN - 1))}, {-ALIGN}")


def _is_small(t: TensorType) -> bool:
    return isinstance(t.size, int) and t.size * t.dtype.itemsize <= SMALL


def _plain_workspace(entry: Entry, state: ModuleState) -> str:
    """Room for the kernel, for outputs that are not wanted, and for aligning the block."""
    e = _Plain(entry, state)
    total = e.base()
    for t in entry.outputs:
        if not _is_small(t):
            total = e.add(total, e.bytes_of(t))
    none, padded = e.put(f"icmp eq i64 {total}, 0"), e.add(total, str(ALIGN - 1))
    result = e.put(f"select i1 {none}, i64 0, i64 {padded}")
    params = ", ".join(f"i64 {p}" for p in e.params)
    return "\n".join([f"define i64 @{entry.plain}_workspace({params}) #0 {{", "entry:", *e.entry, *e.lines, f"  ret i64 {result}", "}"])


def _plain_run(entry: Entry, state: ModuleState) -> str:
    e = _Plain(entry, state)
    ins, outs = [f"%in{i}" for i in range(len(entry.inputs))], [f"%out{i}" for i in range(len(entry.outputs))]
    for p in e.params:
        _leave_if(e, e.put(f"icmp slt i64 {p}, 0"), 1)
    base = e.base()
    missing = [e.put(f"icmp eq ptr {o}, null") for o in outs]
    need = e.put(f"icmp ne i64 {base}, 0")
    for m, t in zip(missing, entry.outputs):
        if not _is_small(t):
            room = e.put(f"icmp ne i64 {e.bytes_of(t)}, 0")  # one without elements needs none
            need = e.put(f"or i1 {need}, {e.put(f'and i1 {m}, {room}')}")
    _leave_if(e, e.put(f"and i1 {need}, {e.put('icmp eq ptr %workspace, null')}"), 4)
    address = e.put("ptrtoint ptr %workspace to i64")
    aligned = e.put(f"inttoptr i64 {e.put(f'and i64 {e.add(address, str(ALIGN - 1))}, {-ALIGN}')} to ptr")
    at, places = base, []
    for o, m, t in zip(outs, missing, entry.outputs):
        if _is_small(t):
            place = e.alloca(f"[{SMALL} x i8]")
        else:
            place = e.put(f"getelementptr i8, ptr {aligned}, i64 {at}")
            at = e.add(at, e.bytes_of(t))
        places.append(e.put(f"select i1 {m}, ptr {place}, ptr {o}"))
    ctx = e.array("ptr", ["null", "%pool", "null", "null", "null"]) if entry.pool else "null"
    call = e.array("ptr", [e.array("ptr", [*ins, *places]), e.sizes, aligned, ctx], 8)
    status = e.put(f"call i32 @{entry.name}(ptr {call})")
    params = [*(f"ptr {p}" for p in ins), *(f"i64 {p}" for p in e.params), *(f"ptr {p}" for p in outs), "ptr %workspace", *(["ptr %pool"] if entry.pool else [])]
    return "\n".join([f"define i32 @{entry.plain}({', '.join(params)}) #0 {{", "entry:", *e.entry, *e.lines, f"  ret i32 {status}", "}"])


def _leave_if(e: Sizes, condition: str, code: int) -> None:
    stop, on = e.labels("stop", "on")
    e.branch(condition, stop, on)
    e.block(stop)
    e.lines.append(f"  ret i32 {code}")
    e.block(on)
