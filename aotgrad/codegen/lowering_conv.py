"""Convolution as loops: right for every size, stride, dilation, group and layout. Zeros around x are never read: the loops over the kernel end where x does.

Lanes are neighbours in the result's channels (of a depthwise convolution: in its groups), so one number of one array meets a vector of another; an array that is not
contiguous there is copied into that order first. Every element is one chain of products in the order of kernel places, then channels; a weight's gradient adds up rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from aotgrad_runtime.dtypes import DType
from aotgrad_runtime.records import record

from ..ir import dims
from ..ir.core import Op, Value
from ..ir.dims import DimLike
from ..ir.types import Layout, TensorType
from .access import Access, identity
from .bufferise import dense, strides_of
from .conv.select import Choice, select
from .conv.spec import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvSpec
from .image_loops import ImageLoops, Range
from .kernel import Index, KernelBuilder, register
from .loops import NestEmitter
from .lowering_index import elementwise
from .nest import Context, Loop
from .once import Kept
from .plan import Item, Kern, Nest
from .report import describe

__all__ = ["conv_nest", "convolution", "spec_of"]

_KINDS = {"conv": (FORWARD, "xwy"), "conv_input_grad": (INPUT_GRAD, "ywx"), "conv_weight_grad": (WEIGHT_GRAD, "xyw")}


def _layout(t: TensorType, access: Access) -> str:
    given = tuple(s if n != 1 else 0 for n, s in zip(t.shape, access.strides))
    for name, layout in (("contiguous", None), ("channels_last", Layout.channels_last(t.rank))):
        if given == strides_of(TensorType(t.shape, t.dtype, layout)):
            return name
    return "strided"


def spec_of(op: Op, arrays: dict[str, Access]) -> ConvSpec:
    """What an op computes, for arrays x, w and y that lie so in memory."""
    kind, letters = _KINDS[op.name]
    types = dict(zip(letters, [v.type for v in (*op.operands, op.result)]))
    x, w, y = (types[c] for c in "xwy")
    a = op.attrs
    layouts = tuple(_layout(types[c], arrays[c]) for c in "xwy")
    return ConvSpec(kind, op.result.type.dtype.mlir, a["groups"], tuple(a["stride"]), tuple(a["padding"]), tuple(a["dilation"]), x.shape[0], w.shape[1] * a["groups"],
                    w.shape[0], x.shape[2:], w.shape[2:], y.shape[2:], layouts)  # type: ignore[arg-type]


def convolution(cx: Context, item: Kern) -> None:
    """One of the three parts of a convolution."""
    assert item.op is not None
    _convolution(cx, item, item.op, cx.buffers.stored(item.op.result), None)


def conv_nest(cx: Context, nest: Nest) -> None:
    """A convolution and the loop nest that alone reads it. The result is built where the nest leaves its first result of the same type."""
    op = nest.epilogue
    assert op is not None
    t = op.result.type
    homes = [cx.buffers.stored(v) for v in nest.stored if v.type == t and nest.members[v] == identity(t.shape)]
    homes = [h for h in homes if _layout(t, h) != "strided"]
    temp = None if homes else cx.work.take(t.dtype, t.size)
    y = homes[0] if temp is None else dense(temp, t)
    cx.buffers.place(op.result, y)
    e = NestEmitter(cx, nest)
    e.blocked, e.alone = True, (1,)
    e.build()
    if not _convolution(cx, nest, op, y, e):
        e = NestEmitter(cx, nest)
        e.build()
        e.emit()
    if temp is not None:
        cx.work.give_back(temp)
    cx.report.append({**describe(e), "kind": "epilogue" if e.blocked else "loop", "kept": temp is not None})


def _convolution(cx: Context, item: Item, op: Op, result: Access, e: NestEmitter | None) -> bool:
    """The convolution of an item; whether ``e`` ran on pieces of it."""
    letters = _KINDS[op.name][1]
    arrays = {c: cx.buffers.access(item, o) for c, o in zip(letters, op.operands)}
    arrays[letters[2]] = result
    spec, kept = spec_of(op, arrays), cx.module.kept
    if kept is not None and spec.kind != WEIGHT_GRAD and kept.holds(arrays["w"]):
        spec = replace(spec, kept=True)
    choice = select(spec, cx.target)
    fused = e is not None and choice is not None and "y" not in choice.moved and _bounds(e, choice, 0, 0, 0) is not None
    if choice is None:
        _Loops(cx, spec, op.result.type.dtype, arrays).emit()
    else:
        _call(cx, dict(zip(letters, [v.type for v in (*op.operands, op.result)])), spec, choice, arrays, e if fused else None)
    how = "loops" if choice is None else f"kernel, {' and '.join(choice.moved)} moved" if choice.moved else "kernel"
    cx.report.append({"kind": op.name, "how": how, "sizes": list(spec.sizes), "groups": spec.groups, "layouts": list(spec.layouts)})
    return fused


def _bounds(e: NestEmitter, choice: Choice, image: Index, first: Index, end: Index) -> list[tuple[Loop, Index, Index]] | None:
    """Bounds of the nest's loops over the rows [first, end) of an image; None where its loops do not go by such pieces."""
    pieces, kb, space = choice.kernel.pieces, e.kb, e.space
    if pieces is None or len(e.phases) != 1 or e.outer_loops or not e.phases[0].loops:
        return None
    places = tuple(d for d in range(2, len(space)) if space[d] != 1)
    steps = {places: pieces.length}  # dims that go by rows, and rounds of a row
    if pieces.length == space[-1]:
        steps[tuple(d for d in places if d != len(space) - 1)] = 1
    out: list[tuple[Loop, Index, Index]] = []
    cut = False
    for loop in e.phases[0].loops:
        inside = tuple(d for d in loop.dims if d > 1)
        by_rows = bool(inside) and inside in steps
        if list(loop.dims) != sorted(loop.dims) or (inside and not by_rows and (len(steps) == 1 or inside != places[-1:])):
            return None
        each = steps[inside] if by_rows else dims.product(space[d] for d in loop.dims if d)
        low, high, total = (kb.mul(first, kb.dim(each)), kb.mul(end, kb.dim(each)), pieces.rows * each) if by_rows else (0, kb.dim(each), each)
        start = kb.mul(image, kb.dim(total)) if 0 in loop.dims else 0
        out.append((loop, kb.add(start, low), kb.add(start, high)))
        cut = cut or by_rows
    return out if cut or pieces.count == 1 else None


def _move(cx: Context, t: TensorType, source: Access, target: Access) -> None:
    live = [d for d, n in enumerate(t.shape) if n != 1]
    places = [(a.store, (a.base, {d: a.strides[d] for d in live})) for a in (source, target)]
    elementwise(cx, t.shape, places[:1], lambda k, v: v, places[1])


def _call(cx: Context, types: dict[str, TensorType], spec: ConvSpec, choice: Choice, arrays: dict[str, Access], e: NestEmitter | None) -> None:
    """The kernel of its own: weights packed first, then some units at a time, or ``e`` after each piece of an image."""
    kb, kernel, result = cx.kb, choice.kernel, {FORWARD: "y", INPUT_GRAD: "x", WEIGHT_GRAD: "w"}[spec.kind]
    temps, used = [], dict(arrays)
    for c in choice.moved:
        t = types[c]
        temps.append(cx.work.take(t.dtype, t.size))
        used[c] = dense(temps[-1], TensorType(t.shape, t.dtype, Layout.channels_last(t.rank)))
        if c != result:
            _move(cx, t, arrays[c], used[c])
    kept = cx.module.kept if spec.kept and kernel.pack and kernel.packed_bytes and not kernel.staged else None
    placed = {c: (a.store.mem, kb.index(kb.dim(a.base))) for c, a in used.items() if c != "w" or kept is None}
    rooms = cx.module.threads if kernel.staged else 1
    packed = cx.work.take_bytes(kernel.packed_bytes * rooms) if kernel.packed_bytes and kept is None else None
    work = cx.work.take_bytes(kernel.work_bytes * cx.module.threads) if kernel.work_bytes else None
    inner = (packed.mem, kb.index(0)) if packed is not None else placed["w"] if kept is None else (kept.mem, kb.index(_kept(kept, choice, used["w"])))

    def call(name: str, buffers: Sequence[tuple[Value, Value]], *numbers: Index) -> None:
        kb.call(name, [*(v for pair in buffers for v in pair), *map(kb.index, numbers)], (), {"ag.conv": choice.text})

    batch = kb.dim(spec.batch)
    total = kernel.units if spec.kind == WEIGHT_GRAD else kb.mul(batch, kernel.units)

    def run(low: Index, high: Index) -> None:
        thread = kb.thread() if cx.module.threads > 1 and (kernel.staged or kernel.work_bytes) else 0
        at = (inner[0], kb.index(kb.mul(thread, kernel.packed_bytes))) if kernel.staged and packed is not None else inner
        more = [placed["w"]] if kernel.staged else [(work.mem, kb.index(kb.mul(thread, kernel.work_bytes)))] if work is not None else []
        x, y = placed["x"], placed["y"]
        call(kernel.run, (*{FORWARD: (x, at, y), INPUT_GRAD: (y, at, x), WEIGHT_GRAD: (x, y, at)}[spec.kind], *more), batch, low, high)

    if kernel.pack and kept is None:
        with kb.for_(0, rooms) as lp:
            call(kernel.pack, (placed["w"], (inner[0], kb.index(kb.mul(lp.iv, kernel.packed_bytes)))))
    if e is not None:
        _in_pieces(cx, e, choice, batch, run)
    else:
        with kb.parallel(total, choice.least, cx.module.threads) as (low, high), kb.for_(low, high, choice.units, poll=1) as lp:
            run(lp.iv, kb.min(kb.add(lp.iv, choice.units), high))
    if result in choice.moved:
        _move(cx, types[result], used[result], arrays[result])
    for store in (*temps, *(s for s in (packed, work) if s is not None)):
        cx.work.give_back(store)


def _kept(kept: Kept, choice: Choice, w: Access) -> int:
    """Where the packed weights are in the block of what is computed once."""
    def pack(kb: KernelBuilder, w: Access, to: tuple[Value, Value]) -> None:
        kb.call(choice.kernel.pack, [w.store.mem, kb.index(kb.dim(w.base)), *to], (), {"ag.conv": choice.text})

    return kept.packed(w, choice.kernel.pack, choice.kernel.packed_bytes, pack, "packed weights of convolutions")


def _in_pieces(cx: Context, e: NestEmitter, choice: Choice, batch: Index, run: Callable[[Index, Index], None]) -> None:
    """Each piece of each image, and the nest on it while it is in the cache."""
    kb, pieces, (phase,) = cx.kb, choice.kernel.pieces, e.phases
    assert pieces is not None
    e.prepare()
    e.begin(phase)
    least = max(1, choice.least // pieces.blocks)
    with kb.parallel(kb.mul(batch, pieces.count), least, cx.module.threads) as (low, high), kb.for_(low, high, poll=1) as lp:
        run(kb.mul(lp.iv, pieces.blocks), kb.mul(kb.add(lp.iv, 1), pieces.blocks))
        first = kb.mul(kb.rem(lp.iv, pieces.count), pieces.unit)
        bounds = _bounds(e, choice, kb.div(lp.iv, pieces.count), first, kb.min(kb.add(first, pieces.unit), pieces.rows))
        assert bounds is not None
        for loop, start, end in bounds:
            loop.low, loop.high = start, end
        e.run_phase(phase)
    e.finish()


@record
class _Array:
    """An array in the terms of the loops: group, the channel that lanes lie across (``lane``), the other one (``row``; the batch of x and y), places."""

    mem: Value
    base: DimLike
    group: DimLike
    lane: DimLike
    row: DimLike
    batch: DimLike
    places: tuple[DimLike, ...]


class _Loops(ImageLoops):
    """Emits the loops of one convolution."""

    def __init__(self, cx: Context, spec: ConvSpec, dtype: DType, arrays: dict[str, Access]) -> None:
        self.spec, self.dtype, self.arrays = spec, dtype, arrays
        self.per_x, self.per_y = dims.floordiv(spec.channels, spec.groups), dims.floordiv(spec.filters, spec.groups)
        self.depthwise = spec.groups > 1 and self.per_x == 1 and self.per_y == 1
        super().__init__(cx, dtype.itemsize, spec.groups if self.depthwise else self.per_x if spec.kind == INPUT_GRAD else self.per_y)

    def emit(self) -> None:
        """The whole."""
        kind = self.spec.kind
        with self._contiguous("y" if kind == WEIGHT_GRAD else "w"):
            (self._weights if kind == WEIGHT_GRAD else self._image)()

    # ---- arrays -------------------------------------------------------------------------------------------------------------------

    @contextmanager
    def _contiguous(self, letter: str) -> Iterator[None]:
        """The array that is read by vectors, copied where its lanes are not neighbours."""
        array = self._of(letter)
        stride = array.lane
        if self.lanes == 1 or isinstance(stride, int) and stride == 1:
            yield
            return
        spec, old = self.spec, self.arrays[letter]
        if letter == "w":
            # [groups, kernel..., row, lane]; of a depthwise one [kernel..., group]
            sizes = [*spec.kernel, self.across] if self.depthwise else [spec.groups, *spec.kernel, self._rows(), self.across]
            strides = [*array.places, array.lane] if self.depthwise else [array.group, *array.places, array.row, array.lane]
        else:
            sizes, strides = [spec.batch, *spec.positions, spec.filters], [old.strides[0], *old.strides[2:], old.strides[1]]
        store = self.cx.work.take(self.dtype, dims.product(sizes))
        space = {d: s for d, s in enumerate(strides) if sizes[d] != 1 and not (isinstance(s, int) and s == 0)}
        packed = TensorType(tuple(sizes), self.dtype)
        to = {d: s for d, s in enumerate(strides_of(packed)) if sizes[d] != 1}
        elementwise(self.cx, sizes, [(old.store, (old.base, space))], lambda k, v: v, (store, (0, to)))
        self.arrays = {**self.arrays, letter: self._repacked(letter, dense(store, packed))}
        yield
        self.cx.work.give_back(store)

    def _rows(self) -> DimLike:
        return self.per_y if self.spec.kind == INPUT_GRAD else self.per_x

    def _repacked(self, letter: str, new: Access) -> Access:
        """The copy with strides in the order of the array's own dims."""
        if letter == "y":
            return Access(new.store, new.base, (new.strides[0], new.strides[-1], *new.strides[1:-1]))
        rank = self.spec.rank
        if self.depthwise:
            return Access(new.store, new.base, (new.strides[-1], 0, *new.strides[:rank]))
        group, places, row, lane = new.strides[0], new.strides[1:1 + rank], new.strides[-2], new.strides[-1]
        self.group_of_copy = group
        return Access(new.store, new.base, (row, lane, *places) if self.spec.kind == INPUT_GRAD else (lane, row, *places))

    group_of_copy: DimLike | None = None  # stride from group to group of copied weights, whose filters of a group are not neighbours

    def _of(self, letter: str) -> _Array:
        a, kind, flat = self.arrays[letter], self.spec.kind, self.depthwise
        s0, s1, *places = a.strides
        mem = a.store.mem
        if letter == "w":
            group = s0 * self.per_y if self.group_of_copy is None else self.group_of_copy
            lane, row = (s0, s1) if flat or kind != INPUT_GRAD else (s1, s0)
            return _Array(mem, a.base, group, lane, row, 0, tuple(places))
        per = self.per_x if letter == "x" else self.per_y
        return _Array(mem, a.base, s1 * per, s1, s1, s0, tuple(places))

    # ---- loops --------------------------------------------------------------------------------------------------------------------

    def _inside(self, d: int, start: Index, step: int, count: DimLike) -> Range:
        """The j below ``count`` at which ``start + j * step`` lies in x."""
        kb, (low, high) = self.kb, self.spec.padding[d]
        first: Index = 0 if low <= 0 else kb.max(0, self.ceil(kb.sub(0, start), step))
        last = kb.dim(count) if high <= 0 else kb.min(kb.dim(count), self.ceil(kb.sub(kb.dim(self.spec.spatial[d]), start), step))
        return first, last, 1

    def _meeting(self, d: int, i: Index) -> Range:
        """The kernel places at which x's position i meets a position of y."""
        kb, spec = self.kb, self.spec
        stride, dilation = spec.stride[d], spec.dilation[d]
        t = kb.add(i, spec.padding[d][0])
        behind = kb.sub(t, kb.mul(kb.sub(kb.dim(spec.positions[d]), 1), stride))
        return self.meeting(t, stride, dilation, kb.min(kb.dim(spec.kernel[d]), kb.add(kb.floordiv(t, dilation), 1)), behind)

    def _step(self, factor: Value, vector: Value, acc: Value) -> Value:
        k = self.kb.scalars(self.lanes)
        if self.dtype.kind == "f" and self.cx.target.fma:
            return k.fma(k.vector(factor), vector, acc)
        return k.add(acc, k.mul(k.vector(factor), vector))

    def _cost(self, terms: Sequence[DimLike]) -> DimLike:
        """Operations for all lanes of one place of the result, whose elements are sums over ``terms`` (and of an image over the other channels)."""
        rows = 1 if self.depthwise or self.spec.kind == WEIGHT_GRAD else self._rows()
        return 2 * self.across * rows * dims.product(terms)

    def _zeros(self, count: int) -> list[Value]:
        return [self.kb.constant(0, register(self.dtype, self.lanes))] * count

    # ---- y or x -------------------------------------------------------------------------------------------------------------------

    def _image(self) -> None:
        """Every element of y (or x) is a sum over kernel places and the other channels."""
        spec, kb = self.spec, self.kb
        forward = spec.kind == FORWARD
        out, given, w = self._of("y" if forward else "x"), self._of("x" if forward else "y"), self._of("w")
        groups = () if self.depthwise else (spec.groups,)
        with self.over([spec.batch, *groups, *(spec.positions if forward else spec.spatial)], self._cost(spec.kernel)) as (n, *rest):
            g, at = (rest[0], rest[1:]) if groups else (0, rest)
            starts = [kb.sub(kb.mul(p, s), low) for p, s, (low, _) in zip(at, spec.stride, spec.padding)] if forward else []
            ranges = [self._inside(d, starts[d], spec.dilation[d], spec.kernel[d]) if forward else self._meeting(d, at[d]) for d in range(spec.rank)]
            base = self.at(given.base, (n, given.batch), (g, given.group))
            home = self.at(out.base, (n, out.batch), (g, out.group), *zip(at, out.places))
            weights = self.at(w.base, (g, w.group))

            def place(k: Sequence[Index]) -> Index:
                """Where the given array is read at a kernel place."""
                if forward:
                    there = [kb.add(s, kb.mul(i, d)) for s, i, d in zip(starts, k, spec.dilation)]
                else:
                    there = [kb.floordiv(kb.sub(kb.add(p, low), kb.mul(i, d)), s) for p, (low, _), i, d, s in zip(at, spec.padding, k, spec.dilation, spec.stride)]
                return self.at(base, *zip(there, given.places))

            def block(first: Index, masks: Sequence[Value | None]) -> None:
                def at_place(k: list[Index], accs: list[Value]) -> list[Value]:
                    here, row = place(k), self.at(weights, *zip(k, w.places), (first, w.lane))
                    return self._channels(given, here, w, row, first, masks, accs)

                accs = self.nested(ranges, self._zeros(len(masks)), at_place)
                for v, (acc, mask) in enumerate(zip(accs, masks)):
                    self.store(acc, out.mem, self.at(home, (kb.add(first, v * self.lanes), out.lane)), out.lane, mask)

            self.vectors(block)

    def _channels(self, given: _Array, here: Index, w: _Array, row: Index, first: Index, masks: Sequence[Value | None], accs: list[Value]) -> list[Value]:
        """The products at one kernel place: over the other channels of the group, or the one of each lane."""
        kb, lanes = self.kb, self.lanes
        if self.depthwise:
            out = []
            for v, (acc, mask) in enumerate(zip(accs, masks)):
                x = self.load(given.mem, self.at(here, (kb.add(first, v * lanes), given.lane)), given.lane, mask)
                out.append(self._step(x, self.load(w.mem, self.at(row, (v * lanes, w.lane)), w.lane, mask), acc))
            return out

        def channel(at: list[Index], accs: list[Value]) -> list[Value]:
            x = kb.load(given.mem, self.at(here, (at[0], given.row)))
            there = self.at(row, (at[0], w.row))
            return [self._step(x, self.load(w.mem, self.at(there, (v * lanes, w.lane)), w.lane, mask), acc) for v, (acc, mask) in enumerate(zip(accs, masks))]

        return self.nested([(0, kb.dim(self._rows()), 1)], accs, channel)

    # ---- w ------------------------------------------------------------------------------------------------------------------------

    def _weights(self) -> None:
        """Every element of w is a sum over the batch and y's positions: each row of positions from zero, then the rows."""
        spec, kb = self.spec, self.kb
        x, y, w = self._of("x"), self._of("y"), self._of("w")
        outer = [] if self.depthwise else [spec.groups, self.per_x]
        with self.over([*outer, *spec.kernel], self._cost([spec.batch, *spec.positions])) as at:
            (g, c), k = (at[:2], at[2:]) if outer else ((0, 0), at)
            starts = [kb.sub(kb.mul(i, d), low) for i, d, (low, _) in zip(k, spec.dilation, spec.padding)]
            ranges = [self._inside(d, starts[d], spec.stride[d], spec.positions[d]) for d in range(spec.rank)]
            base_x, base_y = self.at(x.base, (g, x.group), (c, x.row)), self.at(y.base, (g, y.group))
            home = self.at(w.base, (g, w.group), (c, w.row if outer else 0), *zip(k, w.places))

            def block(first: Index, masks: Sequence[Value | None]) -> None:
                def row(outside: list[Index], accs: list[Value]) -> list[Value]:
                    n, *lines = outside

                    def position(inside: list[Index], accs: list[Value]) -> list[Value]:
                        p = [*lines, *inside]
                        there = [kb.add(s, kb.mul(i, step)) for s, i, step in zip(starts, p, spec.stride)]
                        here = self.at(base_x, (n, x.batch), *zip(there, x.places))
                        at_y = self.at(base_y, (n, y.batch), *zip(p, y.places), (first, y.lane))
                        return self._products(x, here, y, at_y, first, masks, accs)

                    sums = self.nested(ranges[-1:], self._zeros(len(masks)), position)
                    return [kb.scalars(self.lanes).add(a, s) for a, s in zip(accs, sums)]

                accs = self.nested([(0, kb.dim(spec.batch), 1), *ranges[:-1]], self._zeros(len(masks)), row)
                for v, (acc, mask) in enumerate(zip(accs, masks)):
                    self.store(acc, w.mem, self.at(home, (kb.add(first, v * self.lanes), w.lane)), w.lane, mask)

            self.vectors(block)

    def _products(self, x: _Array, here: Index, y: _Array, at_y: Index, first: Index, masks: Sequence[Value | None], accs: list[Value]) -> list[Value]:
        """One position of y: a number of x for all lanes, or of a depthwise one a number for each."""
        kb, lanes, out = self.kb, self.lanes, []
        factor = None if self.depthwise else kb.load(x.mem, here)
        for v, (acc, mask) in enumerate(zip(accs, masks)):
            number = factor if factor is not None else self.load(x.mem, self.at(here, (kb.add(first, v * lanes), x.lane)), x.lane, mask)
            out.append(self._step(number, self.load(y.mem, self.at(at_y, (v * lanes, y.lane)), y.lane, mask), acc))
        return out
