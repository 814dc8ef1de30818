"""Builds kernel-level blocks: typed helpers over MLIR's ops, constants folded, equal pure ops shared, invariant ones placed outside loops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from aotgrad_runtime import dtypes
from aotgrad_runtime.dtypes import DType
from aotgrad_runtime.errors import AotgradTypeError, AotgradValueError

from ..ir.attributes import Raw
from ..ir.core import Block, Loc, Op, Value
from ..ir.dims import Dim, DimLike
from .kernel_types import INDEX, KType, as_ktype, memref, register

__all__ = ["CMPF", "CMPI", "Index", "KernelBuilder", "Loop", "constant_of"]

Index = int | Value
"""A position or size: a Python int where it is known, else a value of type ``index``."""

CMPI = {"eq": 0, "ne": 1, "lt": 2, "le": 3, "gt": 4, "ge": 5, "ult": 6, "ule": 7, "ugt": 8, "uge": 9}
CMPF = {"eq": 1, "gt": 2, "ge": 3, "lt": 4, "le": 5, "uno": 14, "ne": 13}

I1, I32, I64 = register(dtypes.bool_), register(dtypes.int32), register(dtypes.int64)


def constant_of(value: Any) -> Any:
    """The Python number behind an int or an ``arith.constant``, else None."""
    if isinstance(value, int):
        return value
    op = value.op
    return op.attrs["value"] if op is not None and op.name == "arith.constant" else None


class _Scope:
    """One block being filled. ``loop``: pure ops may leave it outwards."""

    __slots__ = ("block", "known", "loop")

    def __init__(self, block: Block, loop: bool) -> None:
        self.block, self.loop = block, loop
        self.known: dict[Any, Any] = {}


class Loop:
    """What ``for_``, ``if_`` and ``while_`` hand out: ``iv``, ``args`` inside; ``results`` afterwards."""

    __slots__ = ("args", "iv", "results", "yielded")

    def __init__(self) -> None:
        self.iv: Index = 0
        self.args: list[Value] = []
        self.yielded: list[Value] | None = None
        self.results: list[Value] = []


class KernelBuilder:
    """Appends kernel-level ops to ``block``. ``sizes``: the index value of each size symbol, for ``dim``.

    Index arithmetic takes and gives ``int | Value`` and folds. Pure ops are shared when equal and placed in the outermost loop level where
    their operands exist (never out of a branch), so invariant code need not be hoisted by hand.

    >>> kb = KernelBuilder(Block())
    >>> kb.add(2, kb.mul(3, 4)), kb.align_up(100, 64)
    (14, 128)
    """

    def __init__(self, block: Block, sizes: Mapping[str, Value] | None = None) -> None:
        self.sizes = dict(sizes or {})
        self.loc: Loc | None = None
        self.polls = True  # whether loops may ask for an interrupt
        self._scopes = [_Scope(block, False)]
        self._depth: dict[Value, int] = {}
        self._open: list[Loop] = []

    @property
    def block(self) -> Block:
        """The innermost block, which ops are appended to."""
        return self._scopes[-1].block

    # ---- raw ops ----------------------------------------------------------------------------------------------------------------

    def op(self, name: str, operands: Sequence[Value], types: Sequence[KType] = (), attrs: Mapping[str, Any] | None = None, regions: Sequence[Block] = ()) -> Op:
        """Appends an op with side effects (or one that reads memory) here."""
        made = Op(name, operands, types, attrs, regions, self.loc)
        scope = len(self._scopes) - 1
        scope and self._depth.update(dict.fromkeys(made.results, scope))
        self.block.ops.append(made)
        return made

    def pure(self, name: str, operands: Sequence[Value], type: KType, attrs: Mapping[str, Any] | None = None, key: Any = None) -> Value:
        """The result of an op without side effects: an equal one that is already there, or a new one. ``key`` stands for ``attrs``."""
        full = (name, type, type.dtype, key, *operands)
        scopes = self._scopes
        for scope in reversed(scopes):
            if (found := scope.known.get(full)) is not None:
                return found  # type: ignore[no-any-return]
        depth = self._depth
        least = max([depth.get(v, 0) for v in operands]) if operands else 0
        level = len(scopes) - 1
        while level > least and scopes[level].loop:
            level -= 1
        made = Op(name, operands, (type,), attrs, (), self.loc)
        out = made.results[0]
        if level:
            depth[out] = level
        scopes[level].block.ops.append(made)
        scopes[level].known[full] = out
        return out

    def constant(self, value: Any, type: KType) -> Value:
        """An ``arith.constant``; a splat for a vector type."""
        number = float(value) if type.kind == "f" else bool(value) if type.kind == "b" else int(value)
        return self.pure("arith.constant", (), type, {"value": number}, repr(number))

    # ---- index arithmetic -------------------------------------------------------------------------------------------------------

    def index(self, x: Index) -> Value:
        """``x`` as a value of type index."""
        return self.constant(x, INDEX) if isinstance(x, int) else x

    def _index_op(self, name: str, a: Index, b: Index) -> Value:
        return self.pure(name, (self.index(a), self.index(b)), INDEX)

    def add(self, a: Index, b: Index) -> Index:
        if isinstance(a, int):
            if isinstance(b, int):
                return a + b
            a, b = b, a
        return a if isinstance(b, int) and b == 0 else self._index_op("arith.addi", a, b)

    def sub(self, a: Index, b: Index) -> Index:
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        if a is b:
            return 0
        return a if isinstance(b, int) and b == 0 else self._index_op("arith.subi", a, b)

    def mul(self, a: Index, b: Index) -> Index:
        if isinstance(a, int):
            if isinstance(b, int):
                return a * b
            a, b = b, a
        if isinstance(b, int) and b in (0, 1):
            return a if b else 0
        return self._index_op("arith.muli", a, b)

    def div(self, a: Index, b: Index) -> Index:
        """``a // b`` of numbers that are not negative; ``b`` counts as 1 where it is 0, so that code moved out of an empty loop cannot trap."""
        if isinstance(a, int) and isinstance(b, int):
            return a // max(b, 1)
        return a if isinstance(b, int) and b == 1 else self._index_op("arith.divui", a, self.max(b, 1))

    def rem(self, a: Index, b: Index) -> Index:
        """``a % b`` of numbers that are not negative; ``b`` as in ``div``."""
        if isinstance(a, int) and isinstance(b, int):
            return a % max(b, 1)
        return 0 if isinstance(b, int) and b == 1 else self._index_op("arith.remui", a, self.max(b, 1))

    def floordiv(self, a: Index, b: Index) -> Index:
        """``a // b`` rounded down for any ``a``; ``b`` counts as 1 where it is not positive, so that nothing traps."""
        if isinstance(a, int) and isinstance(b, int):
            return a // max(b, 1)
        return a if isinstance(b, int) and b == 1 else self._index_op("arith.floordivsi", a, self.max(b, 1))

    def mod(self, a: Index, b: Index) -> Index:
        """``a - floordiv(a, b) * b``."""
        return self.sub(a, self.mul(self.floordiv(a, b), self.max(b, 1)))

    def ceildiv(self, a: Index, b: int) -> Index:
        """``a / b`` rounded up; ``a`` not negative."""
        return self.div(self.add(a, b - 1), b)

    def align_up(self, a: Index, b: int) -> Index:
        """The smallest multiple of ``b`` that is at least ``a``."""
        return self.mul(self.ceildiv(a, b), b)

    def min(self, a: Index, b: Index) -> Index:
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        return a if a is b else self._index_op("arith.minsi", a, b)

    def max(self, a: Index, b: Index) -> Index:
        if isinstance(a, int) and isinstance(b, int):
            return max(a, b)
        return a if a is b else self._index_op("arith.maxsi", a, b)

    def cmp(self, predicate: str, a: Index, b: Index) -> Value:
        """Comparison of two indices (``eq ne lt le gt ge``, or unsigned ``ult ule ugt uge``) as ``i1``."""
        return self.pure("arith.cmpi", (self.index(a), self.index(b)), I1, {"predicate": CMPI[predicate]}, predicate)

    def select(self, c: Value, a: Index, b: Index) -> Index:
        """``a`` where ``c`` holds, else ``b``."""
        return a if a is b else self.pure("arith.select", (c, self.index(a), self.index(b)), INDEX)

    def all_of(self, *conditions: Value) -> Value:
        """Conjunction of ``i1`` values."""
        out = conditions[0] if conditions else self.constant(True, I1)
        for c in conditions[1:]:
            out = self.pure("arith.andi", (out, c), c.type)
        return out

    def negate(self, c: Value) -> Value:
        """Not, of ``i1`` values or masks."""
        return self.pure("arith.xori", (c, self.constant(True, as_ktype(c.type))), c.type)

    def dim(self, size: DimLike) -> Index:
        """A size as an index: an int where it is static, else arithmetic over the size arguments."""
        if isinstance(size, int):
            return size
        for scope in reversed(self._scopes):
            if (found := scope.known.get(size)) is not None:
                return found  # type: ignore[no-any-return]
        total: Index = 0
        for mono, coefficient in size.terms:
            part: Index = 1
            for atom, power in mono:
                base = self._atom(atom)
                for _ in range(power):
                    part = self.mul(part, base)
            total = self.add(total, self.mul(part, coefficient)) if coefficient >= 0 else self.sub(total, self.mul(part, -coefficient))
        scope = self._scopes[self._depth.get(total, 0) if isinstance(total, Value) else 0]
        scope.known[size] = total
        return total

    def _atom(self, atom: tuple[Any, ...]) -> Index:
        if atom[0] == "sym":
            try:
                return self.sizes[atom[1]]
            except KeyError:
                raise AotgradValueError(f"size {atom[1]!r} is not an argument of this kernel, which has {', '.join(self.sizes) or 'none'}") from None
        a, b = (self.dim(x) if isinstance(x, (int, Dim)) else x for x in atom[1:])
        return {"floordiv": self.floordiv, "mod": self.mod, "min": self.min, "max": self.max}[atom[0]](a, b)

    # ---- memory -----------------------------------------------------------------------------------------------------------------

    def load(self, mem: Value, pos: Index, lanes: int = 1, mask: Value | None = None, other: Value | None = None) -> Value:
        """Element ``pos`` of a buffer, or ``lanes`` elements from there; where ``mask`` is off, ``other`` (default 0) without touching memory. Bools come as ``i1``."""
        t = as_ktype(mem.type)
        out = register(dtypes.int8 if t.kind == "b" else t.dtype, lanes)
        at = (mem, self.index(pos))
        if mask is not None:
            fill = self.constant(0, out) if other is None else self._to_memory(other, t)
            got = self.op("vector.maskedload", (*at, mask, fill), (out,)).result
        elif lanes > 1:
            got = self.op("vector.load", at, (out,)).result
        else:
            got = self.op("memref.load", at, (out,)).result
        return self._from_memory(got, t)

    def store(self, value: Value, mem: Value, pos: Index, mask: Value | None = None, past: int = 0) -> None:
        """Writes a scalar or vector at ``pos``; only the lanes where ``mask`` is on. ``past``: a vector, aligned to so many bytes, past the cache (see ``drain``)."""
        value = self._to_memory(value, as_ktype(mem.type))
        t = as_ktype(value.type)
        if past and mask is None and t.lanes * t.bits > 8 * past:
            part = 8 * past // t.bits
            for i in range(0, t.lanes, part):
                self.store(self.shuffle(value, value, range(i, i + part)), mem, self.add(pos, i), past=past)
            return
        at = (mem, self.index(pos))
        if mask is not None:
            self.op("vector.maskedstore", (*at, mask, value))
        elif as_ktype(value.type).lanes > 1:
            self.op("vector.store", (value, *at), (), {"nontemporal": True} if past and mask is None else None)
        else:
            self.op("memref.store", (value, *at))

    def drain(self) -> None:
        """After stores past the cache: whoever is told of them in memory sees them."""
        self.call("ag_drain", ())

    def address(self, mem: Value, pos: Index) -> Index:
        """Where element ``pos`` of a buffer is, in bytes."""
        start = self.pure("memref.extract_aligned_pointer_as_index", (mem,), INDEX)
        return self.add(start, self.mul(pos, max(1, as_ktype(mem.type).bits // 8)))

    def prefetch(self, mem: Value, pos: Index) -> None:
        """Asks for the line of element ``pos``, which need not exist."""
        self.op("memref.prefetch", (mem, self.index(pos)), (), {"isWrite": False, "localityHint": Raw("3 : i32"), "isDataCache": True})

    def gather(self, mem: Value, positions: Value, mask: Value | None = None) -> Value:
        """Elements at a ``vector<Nxindex>`` of positions; 0 where ``mask`` is off."""
        t, lanes = as_ktype(mem.type), as_ktype(positions.type).lanes
        out = register(dtypes.int8 if t.kind == "b" else t.dtype, lanes)
        on = self.constant(True, register(dtypes.bool_, lanes)) if mask is None else mask
        return self._from_memory(self.op("vector.gather", (mem, self.index(0), positions, on, self.constant(0, out)), (out,)).result, t)

    def scatter(self, value: Value, mem: Value, positions: Value, mask: Value | None = None) -> None:
        """Writes each lane at its position, in order of lanes where positions repeat."""
        lanes = as_ktype(positions.type).lanes
        on = self.constant(True, register(dtypes.bool_, lanes)) if mask is None else mask
        self.op("vector.scatter", (mem, self.index(0), positions, on, self._to_memory(value, as_ktype(mem.type))))

    def _from_memory(self, got: Value, mem: KType) -> Value:
        if mem.kind != "b":
            return got
        t = as_ktype(got.type)
        return self.pure("arith.cmpi", (got, self.constant(0, t)), register(dtypes.bool_, t.lanes), {"predicate": CMPI["ne"]}, "ne")

    def _to_memory(self, value: Value, mem: KType) -> Value:
        t = as_ktype(value.type)
        if mem.kind == "b" and t.kind == "b":
            return self.pure("arith.extui", (value,), register(dtypes.int8, t.lanes))
        if t.elem != mem.elem:
            raise AotgradTypeError(f"a {t} cannot be stored in a {mem}; cast it first")
        return value

    def view(self, workspace: Value, offset: Index, dtype: DType, size: Index) -> Value:
        """``size`` elements of ``dtype`` at byte ``offset`` of a byte buffer."""
        return self.pure("memref.view", (workspace, self.index(offset), self.index(size)), memref(dtype))

    def alloca(self, dtype: DType, size: int) -> Value:
        """``size`` elements on the stack, 64-byte aligned, alive until the function returns."""
        return self.op("memref.alloca", (self.constant(size, INDEX),), (memref(dtype),), {"operandSegmentSizes": (1, 0), "alignment": 64}).result

    # ---- vectors ----------------------------------------------------------------------------------------------------------------

    def broadcast(self, x: Value, lanes: int) -> Value:
        """A scalar in every lane."""
        t = as_ktype(x.type)
        if t.lanes == lanes:
            return x
        wide = register(t.dtype, lanes)
        known = constant_of(x)
        return self.pure("vector.broadcast", (x,), wide) if known is None else self.constant(known, wide)

    def extract(self, v: Value, lane: int) -> Value:
        """One lane."""
        return self.pure("vector.extract", (v,), register(as_ktype(v.type).dtype), {"static_position": (lane,)}, lane)

    def insert(self, x: Value, v: Value, lane: int) -> Value:
        """``v`` with one lane replaced."""
        return self.pure("vector.insert", (x, v), as_ktype(v.type), {"static_position": (lane,)}, lane)

    def shuffle(self, a: Value, b: Value, lanes: Sequence[int]) -> Value:
        """The chosen lanes of ``a`` followed by ``b``."""
        return self.pure("vector.shuffle", (a, b), register(as_ktype(a.type).dtype, len(lanes)), {"mask": tuple(lanes)}, tuple(lanes))

    def lanes_from(self, start: Index, lanes: int, size: int) -> Value:
        """``start, start + 1, ...`` as integers of ``size`` bytes: lanes for ``join``."""
        return self.pure("arith.index_cast", (self.iota(start, lanes),), register(dtypes.int32 if size == 4 else dtypes.int64, lanes))

    def join(self, a: Value, b: Value, lanes: Value) -> Value:
        """The lanes of ``a`` followed by ``b`` with these numbers, which are not known before; of registers that are a line of the cache."""
        return self.pure("ag.join", (a, b, lanes), a.type)

    def create_mask(self, count: Index, lanes: int) -> Value:
        """The first ``count`` lanes on; none when negative, all when larger."""
        t = register(dtypes.bool_, lanes)
        if isinstance(count, int) and (count <= 0 or count >= lanes):
            return self.constant(count > 0, t)
        return self.pure("vector.create_mask", (self.index(count),), t)

    def iota(self, start: Index, lanes: int) -> Value:
        """``start, start + 1, ...`` as a vector of index."""
        t = register(None, lanes)
        steps = self.pure("vector.step", (), t)
        return steps if isinstance(start, int) and start == 0 else self.pure("arith.addi", (self.broadcast(self.index(start), lanes), steps), t)

    def any_lane(self, mask: Value) -> Value:
        """Whether a lane of a mask is on."""
        return self.pure("vector.reduction", (mask,), I1, {"kind": "or"}, "or")

    def all_lanes(self, mask: Value) -> Value:
        """Whether all lanes of a mask are on."""
        return self.pure("vector.reduction", (mask,), I1, {"kind": "and"}, "and")

    # ---- control ----------------------------------------------------------------------------------------------------------------

    @contextmanager
    def _scope(self, block: Block, loop: bool, state: Loop) -> Iterator[None]:
        self._scopes.append(_Scope(block, loop))
        self._depth.update(dict.fromkeys(block.args, len(self._scopes) - 1))
        self._open.append(state)
        state.yielded = None
        try:
            yield
        finally:
            self._scopes.pop()
            self._open.pop()

    def yield_(self, *values: Value) -> None:
        """What the innermost body gives: the next iteration's arguments, or a branch's results."""
        self._open[-1].yielded = list(values)

    @contextmanager
    def for_(self, low: Index, high: Index, step: int = 1, init: Sequence[Value] = (), poll: int = 0, runs: bool = False) -> Iterator[Loop]:
        """``for iv in range(low, high, step)``. Inside: ``loop.iv``, ``loop.args``, ``kb.yield_``; afterwards ``loop.results``.

        ``poll``: ask for an interrupt after every so many rounds (1: wherever another round follows). ``runs``: it is known to run at least once.
        A loop known to run once is written straight; one known not to run leaves nothing.
        """
        loop = Loop()
        static = isinstance(low, int) and isinstance(high, int)
        if static and high <= low + step:  # type: ignore[operator]
            with self._single(loop, low, init, runs=high > low):  # type: ignore[operator]
                yield loop
            return
        body = Block([INDEX, *(v.type for v in init)])
        loop.iv, loop.args = body.args[0], body.args[1:]
        bounds = [self.index(low), self.index(high), self.index(step)]
        with self._scope(body, True, loop):
            yield loop
        body.outputs = self._checked(loop, [v.type for v in init], "for")
        short = static and high - low <= poll * step  # type: ignore[operator]
        attrs: dict[str, Any] = {"ag.poll": poll} if poll and self.polls and not short else {}
        if runs:
            attrs["ag.runs"] = True
        loop.results = list(self.op("scf.for", [*bounds, *init], [v.type for v in init], attrs, (body,)).results)

    @contextmanager
    def parallel(self, rounds: Index, grain: Index, threads: int, most: Index | None = None) -> Iterator[tuple[Index, Index]]:
        """Cuts ``rounds`` that need nothing of each other into chunks of at least ``grain`` for up to ``threads`` threads; gives the (first, end) of a chunk.

        ``most``: chunks at most. Nothing may leave the block but by memory. Few rounds, and one thread, are one chunk, written straight where that is known.
        """
        chunks = self.max(self.min(self.div(rounds, grain), 4 * threads if most is None else most), 1) if threads > 1 else 1
        if isinstance(chunks, int) and chunks == 1:
            yield 0, rounds
            return
        each = self.max(self.div(self.add(rounds, self.sub(chunks, 1)), chunks), 1)
        loop = Loop()
        body = Block([INDEX])
        bounds = [self.index(0), self.index(self.div(self.add(rounds, self.sub(each, 1)), each)), self.index(1)]
        loop.iv = body.args[0]
        with self._scope(body, True, loop):
            first = self.mul(loop.iv, each)
            yield first, self.min(rounds, self.add(first, each))
        self.op("scf.for", bounds, (), {"ag.parallel": threads}, (body,))

    def thread(self) -> Value:
        """In a chunk: which thread runs it, from 0; never the same for two at once. 0 elsewhere."""
        return self.call("ag_thread", (), (INDEX,))[0]

    @contextmanager
    def _single(self, loop: Loop, low: Index, init: Sequence[Value], runs: bool) -> Iterator[None]:
        loop.iv, loop.args = low, list(init)
        if runs:
            self._open.append(loop)
            try:
                yield
            finally:
                self._open.pop()
            loop.results = self._checked(loop, [v.type for v in init], "for")
            return
        with self._scope(Block(), False, loop):
            yield
        loop.results = list(init)

    def _checked(self, state: Loop, types: Sequence[Any], what: str) -> list[Value]:
        given = state.yielded or []
        if [v.type for v in given] != list(types):
            raise AotgradTypeError(f"the body of {what} yields {[str(v.type) for v in given]}, not {[str(t) for t in types]}")
        return given

    @contextmanager
    def if_(self, condition: Value, types: Sequence[KType] = ()) -> Iterator[_If]:
        """``with kb.if_(c, types) as br: with br.then(): ... kb.yield_(...); with br.orelse(): ...``; then ``br.results``."""
        branch = _If(self)
        yield branch
        then, other = branch.blocks
        if types and not other.outputs:
            raise AotgradTypeError("an if with results needs both branches; write orelse() and yield there")
        for block in (then, other):
            if [v.type for v in block.outputs] != list(types):
                raise AotgradTypeError(f"a branch yields {[str(v.type) for v in block.outputs]}, not {[str(t) for t in types]}")
        regions = (then, other) if types or other.ops else (then,)
        branch.results = list(self.op("scf.if", (condition,), types, None, regions).results)

    @contextmanager
    def while_(self, init: Sequence[Value]) -> Iterator[_While]:
        """``with kb.while_(init) as w: with w.before() as args: kb.condition(c, *values); with w.after() as values: kb.yield_(*next)``; then ``w.results``."""
        loop = _While(self, init)
        yield loop
        before, after = loop.blocks
        types = [v.type for v in before.outputs[1:]]
        loop.results = list(self.op("scf.while", list(init), types, None, (before, after)).results)

    def condition(self, go: Value, *values: Value) -> None:
        """Ends ``before``: whether to run ``after``, and its arguments, which are the results when not."""
        self._open[-1].yielded = [go, *values]

    # ---- calls and exits --------------------------------------------------------------------------------------------------------

    def call(self, callee: str, operands: Sequence[Value], types: Sequence[KType] = (), attrs: Mapping[str, Any] | None = None) -> list[Value]:
        """``func.call`` of a kernel function of the module or of a function that code generation provides."""
        return list(self.op("func.call", operands, types, {"callee": callee, **(attrs or {})}).results)

    def check(self, ok: Value, code: int, location: int, a: Index = 0, b: Index = 0) -> None:
        """Leaves the whole kernel with status ``code`` and info (location, a, b, 0) unless ``ok``."""
        values = (self.constant(code, I32), self.constant(location, I64), self.index(a), self.index(b))
        self.call("ag_check", (ok, *values))

    def hook(self, region: int, phase: int) -> None:
        """Reports a region's border (phase 0 enter, 1 leave) to ctx's hook, when there is one."""
        self.call("ag_hook", (self.constant(region, I64), self.constant(phase, I64)))

    def gemm(self, sizes: Sequence[Index], a: tuple[Value, Index, Index, Index], b: tuple[Value, Index, Index, Index], c: tuple[Value, Index, Index],
             workspace: Value | None, *, accumulate: bool = False, epilogue: str | None = None, captures: Sequence[Value] = (),
             origin: tuple[Index, Index] = (0, 0), packed: tuple[Value, Index] | None = None) -> None:
        """C = A·B (plus C when ``accumulate``): ``sizes`` M, N, K; ``a``, ``b`` (buffer, offset, row stride, column stride), ``c`` (buffer, offset, row stride).

        Offsets and strides are in elements.
        ``epilogue`` names a kernel function ``(m0, m1, n0, n1: index, captures…)``, called while that block of C is final and hot.
        ``origin`` is added to its rows and columns. ``packed``: a byte buffer and an offset where ``gemm_pack`` has left B.
        """
        dtype = as_ktype(c[0].type).dtype
        assert dtype is not None
        callee = f"ag_gemm_{dtype.mlir}" + (f".{epilogue}" if epilogue else "")
        operands = [*map(self.index, sizes), a[0], *map(self.index, a[1:]), b[0], *map(self.index, b[1:]), c[0], *map(self.index, c[1:]), self.constant(accumulate, I64)]
        first = [*map(self.index, origin)] if epilogue else []
        before = [] if packed is None else [packed[0], self.index(packed[1])]
        self.call(callee, [*operands, *before, *([] if workspace is None else [workspace]), *first, *captures], (),
                  {"ag.workspace": workspace is not None, **({} if packed is None else {"ag.packed": True}), **({} if self.polls else {"ag.calm": True})})

    def gemm_pack(self, n: Index, k: Index, b: tuple[Value, Index, Index, Index], to: tuple[Value, Index], strips: tuple[Index, Index]) -> None:
        """Strips of B [k, n] (buffer, offset, row stride, column stride), from the first up to the second, into a byte buffer, for ``gemm``."""
        dtype = as_ktype(b[0].type).dtype
        assert dtype is not None
        self.call(f"ag_gemm_{dtype.mlir}_pack", [self.index(n), self.index(k), b[0], *map(self.index, b[1:]), to[0], self.index(to[1]), *map(self.index, strips)])

    def ret(self, *values: Value) -> None:
        """Ends the function; without values, with status 0."""
        self._scopes[0].block.outputs = list(values) if values else [self.constant(0, I32)]


class _If(Loop):
    __slots__ = ("_kb", "blocks")

    def __init__(self, kb: KernelBuilder) -> None:
        super().__init__()
        self._kb, self.blocks = kb, (Block(), Block())

    @contextmanager
    def _branch(self, i: int) -> Iterator[None]:
        with self._kb._scope(self.blocks[i], False, self):
            yield
        self.blocks[i].outputs = self.yielded or []

    def then(self) -> Any:
        """The branch where the condition holds."""
        return self._branch(0)

    def orelse(self) -> Any:
        """The other branch."""
        return self._branch(1)


class _While(Loop):
    __slots__ = ("_init", "_kb", "blocks")

    def __init__(self, kb: KernelBuilder, init: Sequence[Value]) -> None:
        super().__init__()
        self._kb, self._init, self.blocks = kb, init, (Block([v.type for v in init]), Block())

    @contextmanager
    def before(self) -> Iterator[list[Value]]:
        """The test; ends with ``kb.condition``."""
        block = self.blocks[0]
        with self._kb._scope(block, False, self):
            yield block.args
        block.outputs = self.yielded or []

    @contextmanager
    def after(self) -> Iterator[list[Value]]:
        """The body, whose arguments are what ``condition`` passed; ends with ``kb.yield_`` of the next round's."""
        block = Block([v.type for v in self.blocks[0].outputs[1:]])
        self.blocks = (self.blocks[0], block)
        with self._kb._scope(block, False, self):
            yield block.args
        block.outputs = self._kb._checked(self, [v.type for v in self._init], "while")
