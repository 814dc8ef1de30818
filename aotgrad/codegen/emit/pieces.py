"""Very long straight kernels as a chain of functions, so that LLVM's time stays linear in their length.

Several of LLVM's passes take more than linear time in the length of a function (machine CSE, scheduling, register allocation). A kernel whose
body has more than ``function.LONG`` ops is cut into functions of ``PIECE`` ops; values that live on into a later piece wait in one frame of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ...ir.core import Func, Op, Value, walk
from ..kernel_types import as_ktype
from .function import FunctionEmitter, ModuleState, inner_name
from .text import const_text, llvm_type

__all__ = ["define_in_pieces"]

PIECE = 500
SLOT = 64  # bytes a value takes in the frame, vectors included

Table = dict[str, Callable[[FunctionEmitter, Op], None]]


def _uses(op: Op) -> Iterator[Value]:
    yield from op.operands
    for region in op.regions:
        yield from region.outputs
        for inner in walk(region):
            yield from inner.operands
            for r in inner.regions:
                yield from r.outputs


def _slots(func: Func, pieces: Sequence[Sequence[Op]]) -> dict[Value, int]:
    """A frame slot for every value used in a later piece than its own, reused after the last piece that reads it."""
    home: dict[Value, int] = {}
    last: dict[Value, int] = {}
    for i, ops in enumerate(pieces):
        for op in ops:
            for o in _uses(op):
                if home.get(o, i) != i:
                    last[o] = i
            home.update(dict.fromkeys(op.results, i))
    last.update((o, len(pieces) - 1) for o in func.outputs if home.get(o, len(pieces) - 1) != len(pieces) - 1)
    slots: dict[Value, int] = {}
    free: list[int] = []
    ending: dict[int, list[Value]] = {}
    count = 0
    for i, ops in enumerate(pieces):
        free += [slots[v] for v in ending.pop(i - 1, [])]
        for op in ops:
            for r in op.results:
                if r in last and op.name != "arith.constant":
                    if free:
                        slots[r] = free.pop()
                    else:
                        slots[r], count = count, count + 1
                    ending.setdefault(last[r], []).append(r)
    return slots


def define_in_pieces(state: ModuleState, func: Func, table: Table) -> str:
    """The definition of a kernel function that returns a status, as one function that calls its pieces in order."""
    ops = func.body.ops
    pieces = [ops[i:i + PIECE] for i in range(0, len(ops), PIECE)]
    slots = _slots(func, pieces)
    noalias = "outputs" in func.attrs
    params = ", ".join([f"{llvm_type(a.type)}{' noalias' if noalias and as_ktype(a.type).mem else ''} %a{i}" for i, a in enumerate(func.args)] + ["ptr %call"])
    given = ", ".join([f"{llvm_type(a.type)} %a{i}" for i, a in enumerate(func.args)] + ["ptr %call"])
    constants: dict[Value, str] = {}
    texts, calls = [], []
    for n, piece in enumerate(pieces):
        symbol = inner_name(f"{func.name}_{n}")
        texts.append(_piece(state, func, piece, slots, constants, table, f"define internal i32 @{symbol}({params}, ptr %frame) noinline #0 {{", n == len(pieces) - 1))
        calls += [f"  %s{n} = call i32 @{symbol}({given}, ptr %frame)", f"  %ok{n} = icmp eq i32 %s{n}, 0",
                  f"  br i1 %ok{n}, label %next{n}, label %stop{n}", f"stop{n}:",
                  f"  ret i32 %s{n}", f"next{n}:"]
    frame = f"  %frame = alloca [{max(1, max(slots.values(), default=0) + 1) * SLOT} x i8], align 64"
    main = "\n".join([f"define internal i32 @{inner_name(func.name)}({params}) #0 {{", "entry:", frame, *calls, "  ret i32 0", "}"])
    return "\n".join([*texts, main])


def _piece(state: ModuleState, func: Func, ops: Sequence[Op], slots: dict[Value, int], constants: dict[Value, str], table: Table, head: str, final: bool) -> str:
    e = FunctionEmitter(state, True, table)
    e.inlined = [0, 64]
    e.names.update({a: f"%a{i}" for i, a in enumerate(func.args)})
    e.names.update(constants)
    for op in ops:
        if op.name == "arith.constant":
            constants[op.results[0]] = e.names[op.results[0]] = const_text(op.attrs["value"], op.results[0].type)
            continue
        _load(e, _uses(op), slots)
        table[op.name](e, op)
        for r in op.results:
            if r in slots:
                e.lines.append(f"  store {e.typed(r)}, ptr {_address(e, slots[r])}, align 8")
    if final:
        _load(e, func.outputs, slots)
    result = e.names[func.outputs[0]] if final else "0"
    interrupted = ["interrupted:", "  ret i32 5"] if e.uses_poll else []
    return "\n".join([head, "entry:", *e.entry, *e.context(), *e.lines, f"  ret i32 {result}", *interrupted, "}"])


def _address(e: FunctionEmitter, slot: int) -> str:
    return e.put(f"getelementptr i8, ptr %frame, i64 {slot * SLOT}")


def _load(e: FunctionEmitter, values: Iterator[Value] | Sequence[Value], slots: dict[Value, int]) -> None:
    for v in values:
        if v not in e.names and v in slots:
            e.names[v] = e.put(f"load {llvm_type(v.type)}, ptr {_address(e, slots[v])}, align 8")
