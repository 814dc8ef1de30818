"""Pooling's ops as loops. Windows end where x does, so no padding is read or copied.

Lanes are neighbours in the channels where these are last in memory. Else they are neighbours in the last dim of y, and each asks whether its place lies in x. Places that
far apart are read as neighbours and sorted by shuffles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aotgrad_runtime.dtypes import DType, bool_, int32, int64
from aotgrad_runtime.records import record

from ..ir import dims
from ..ir.core import Op, Value
from ..ir.dims import DimLike
from .access import Access
from .guards import both, guarded, inside
from .image_loops import ImageLoops, Range
from .kernel import Index, register
from .kernel_core import CMPI
from .lowering_places import at_places
from .nest import Context
from .plan import Kern

__all__ = ["windows"]

_ROW = 8  # from this width on, rows of a window are summed on their own
_COLUMNS = 4  # kernels up to so wide are written out
_WRITTEN = 8  # windows that meet a vector, up to which they are
_SEARCHED = 16  # windows up to so large are looked through for one place of each lane
_SHORT = 4  # rows of adaptive windows, of fewer places on average than which lanes do not run along them
_APART = 4  # places up to so far apart are read as neighbours, farther ones gathered


def windows(cx: Context, item: Kern) -> None:
    """One of the six ops on windows."""
    op = item.op
    assert op is not None
    arrays = [*(cx.buffers.access(item, o) for o in op.operands), cx.buffers.stored(op.result)]
    if op.name == "window_put":
        put = _Put(cx, op, [arrays[2], *arrays])
        loops: _Windows | None = put if put.worthwhile else None
    else:
        loops = None if op.name == "window_pick" else (_Up if op.name == "window_spread" else _Down)(cx, op, arrays)
    if loops is None:
        at_places(cx, op, arrays)
        return
    loops.emit()
    lanes = "channels" if loops.channels else "places" if loops.lanes > 1 else "none"
    cx.report.append({"kind": op.name, "kernel": list(op.attrs["kernel"]) or "adaptive", "lanes": lanes})


def _unit(access: Access, dim: int, size: DimLike) -> bool:
    """Whether neighbours in a dim are neighbours in memory."""
    stride = access.strides[dim]
    return isinstance(stride, int) and stride == 1 and not (isinstance(size, int) and size == 1)


@record
class _Spot:
    """A place of a window: where that of the first lane is in the array that is read, its number, and the lanes in which it is one (None: all)."""

    at: Index
    place: Index
    mask: Value | None
    stride: DimLike
    pieces: Sequence[Value] = ()  # the masks of as many vectors of neighbours that hold the places of all lanes


@record
class _Column:
    """One kernel place of the last dim, for lanes with windows of their own there: the place of the first lane, and masks as in ``_Spot``."""

    at: Index
    mask: Value | None
    pieces: Sequence[Value]


class _Windows(ImageLoops):
    """``arrays``: operands, then the result. ``given``: the image read, ``out``: the one written."""

    def __init__(self, cx: Context, op: Op, arrays: Sequence[Access]) -> None:
        self.op, self.a, self.given, self.out = op, op.attrs, arrays[0], arrays[-1]
        self.types = [op.operands[0].type, op.result.type]
        self.dtype: DType = self.types[0].dtype
        self.shape = self.types[1].shape
        down = "count" in op.attrs
        self.spatial, self.count = (self.types[0].shape[2:], self.shape[2:]) if down else (self.shape[2:], self.types[0].shape[2:])
        self.channels = all(_unit(x, 1, self.shape[1]) for x in arrays)
        self.adaptive = not self.a["kernel"]
        wide_windows = self.adaptive or isinstance(self.a["kernel"][-1], int) and self.a["kernel"][-1] >= _ROW
        self.rows = down and op.name == "window_sum" and wide_windows
        self.along = down and not self.channels and _unit(self.given, -1, self.spatial[-1]) and self._long_rows()
        lines = not down or not self.adaptive
        self.places = lines and not self.channels and not self.along and _unit(self.out, -1, self.shape[-1])
        few_places = all(isinstance(n, int) for n in self.spatial) and dims.product(self.spatial) < 1 << 31
        self.number = int32 if few_places else int64  # of places, while they are compared
        wide = max(self.dtype.itemsize, self.number.itemsize if op.name in ("window_argmax", "window_put") else 1)
        super().__init__(cx, wide, self.shape[1] if self.channels else self.shape[-1] if self.places else self.spatial[-1] if self.along else 1)

    def _long_rows(self) -> bool:
        """Whether lanes had better run along the rows of one window: where these are not short, and windows few or far apart."""
        n, count = self.spatial[-1], self.count[-1]
        if self.adaptive:
            return not (isinstance(n, int) and isinstance(count, int)) or n >= _SHORT * count
        kernel, few = self.a["kernel"][-1], isinstance(count, int) and count <= 2
        return self.a["dilation"][-1] == 1 and (not isinstance(kernel, int) or kernel >= _ROW) and (few or self.a["stride"][-1] > _APART)

    def emit(self) -> None:
        """Loops over the result; ``vectors`` over what the lanes run along."""
        n, c, *rest = self.shape
        if self.along:
            with self.over(self.shape, self._cost()) as (b, channel, *at):
                self.kb.store(self._from_rows(b, channel, at), self.out.store.mem, self._offset(self.out, b, channel, at))
            return
        sizes = [n, *rest] if self.channels else [n, c, *(rest[:-1] if self.places else rest)]
        with self.over(sizes, self._cost() * self.across) as (b, *at):
            c0: Index = 0
            if not self.channels:
                c0, *at = at

            def several(first: Index, masks: Sequence[Value | None]) -> None:
                lanes = [self.kb.add(first, v * self.lanes) for v in range(len(masks))]
                found = self._combined(b, c0, at, lanes, masks)
                for lane, value, mask in zip(lanes, found, masks):
                    self.store(value, self.out.store.mem, self._offset(self.out, b, *self._spot_of(c0, at, lane)), self.out.strides[1 if self.channels else -1], mask)

            self.vectors(several)

    def _spot_of(self, c: Index, at: Sequence[Index], lane: Index) -> tuple[Index, list[Index]]:
        """Channel and place of a vector's first lane."""
        return (lane, list(at)) if self.channels else (c, [*at, lane] if self.places else list(at))

    def _cost(self) -> DimLike:
        """Operations for one element of the result: of a window of x, or of the windows that hold a place."""
        if not self.adaptive:
            return 4 * dims.product(self.a["kernel"])
        return 4 * dims.product(dims.floordiv(n, m) + 1 for n, m in zip(self.spatial, self.count) if m != 0)

    def _offset(self, array: Access, b: Index, c: Index, at: Sequence[Index]) -> Index:
        return self.at(array.base, *zip((b, c, *at), array.strides))

    def _combined(self, b: Index, c: Index, p: list[Index], lanes: Sequence[Index], masks: Sequence[Value | None]) -> list[Value]:
        raise NotImplementedError

    def _divided(self, x: Value) -> Value:
        """A sum, divided as is asked for."""
        divide = self.a.get("divide", 1)
        k = self.kb.scalars(self.lanes)
        return x if divide == 1 else k.div(x, self._zero(divide))

    def _from_rows(self, b: Index, c: Index, p: list[Index]) -> Value:
        raise NotImplementedError

    def _number(self, at: Sequence[Index]) -> Index:
        """The number of a place in a flat image."""
        out: Index = 0
        for i, n in zip(at, self.spatial):
            out = self.kb.add(self.kb.mul(out, self.kb.dim(n)), i)
        return out

    def _as_int(self, place: Any) -> Value:
        """The number of a place (or one per lane) in all lanes."""
        k = self.kb.scalars(self.lanes)
        return k.vector(k.from_index(place, self.number))

    def _zero(self, value: Any = 0, dtype: DType | None = None) -> Value:
        return self.kb.constant(value, register(dtype or self.dtype, self.lanes))


class _Down(_Windows):
    """Every element of y from its window of x."""

    def _combined(self, b: Index, c: Index, p: list[Index], lanes: Sequence[Index], masks: Sequence[Value | None]) -> list[Value]:
        k, kind, rank = self.kb.scalars(self.lanes), self.op.name, len(self.spatial)
        ranges = [self._range(d, i) for d, i in enumerate(p)]
        columns = []  # where each lane has a window of its own in the last dim: its places there, written out if they are few
        if self.places and (wide := self.a["kernel"][-1]) > _COLUMNS:
            ranges.append((0, wide, 1))
        elif self.places:
            columns = [[self._column(lane, i, mask) for lane, mask in zip(lanes, masks)] for i in range(wide)]
        start = self._start()
        per = len(start)

        def step(j: list[Index], accs: list[Value]) -> list[Value]:
            here: Sequence[Sequence[_Column | None]] = columns or [[self._column(lane, j[-1], mask) if self.places else None for lane, mask in zip(lanes, masks)]]
            for column in here:
                out: list[Value] = []
                for v, (lane, mask, place) in enumerate(zip(lanes, masks, column)):
                    channel, at = self._spot_of(c, p, lane)
                    spot = self._spot(self._offset(self.given, b, channel, [0] * rank), at, j[:len(p)] if place else j, mask, place)
                    out += self._step(accs[v * per:(v + 1) * per], self._read(spot), spot)
                accs = out
            return accs

        if self.rows and not self.places:  # each row from zero: what is added up stays alike in size
            def row(outside: list[Index], accs: list[Value]) -> list[Value]:
                sums = self.nested(ranges[-1:], start * len(lanes), lambda j, inner: step([*outside, *j], inner))
                return [k.add(a, x) for a, x in zip(accs, sums)]

            found = self.nested(ranges[:-1], start * len(lanes), row)
        else:
            found = self.nested(ranges, start * len(lanes), step)
        found = found[per - 1::per]
        return [self._divided(x) for x in found] if kind == "window_sum" else [self._numbers(x) for x in found] if kind == "window_argmax" else found

    @property
    def _none(self) -> int:
        """The number of no place; that of the first lane may be below 0 where others have one."""
        return -1 << 8 * self.number.itemsize - 1

    def _start(self) -> list[Value]:
        """The accumulators of no place."""
        least = self._zero(self.kb.scalars(1).identity("max", self.dtype))
        return {"window_max": [least], "window_argmax": [least, self._zero(self._none, self.number)]}.get(self.op.name, [self._zero()])

    def _own(self, at: Value) -> Value:
        """Each lane's number of a place from that of the first lane's."""
        step = 1 if self.along else self.a["stride"][-1] if self.places else 0
        return self.kb.scalars(self.lanes).add(at, self._as_int(self.spread(0, step))) if step and self.lanes > 1 else at

    def _numbers(self, at: Value) -> Value:
        """Numbers of places, -1 for none."""
        k = self.kb.scalars(self.lanes)
        return k.cast(k.select(k.cmp("eq", at, self._zero(self._none, self.number)), self._zero(-1, self.number), self._own(at)), self.number, int64)

    def _column(self, lane: Index, i: Index, mask: Value | None) -> _Column:
        kb, a, lanes = self.kb, self.a, self.lanes
        step, before = a["stride"][-1], kb.sub(a["low"][-1], kb.mul(i, a["dilation"][-1]))
        first, n = kb.sub(kb.mul(lane, step), before), kb.dim(self.spatial[-1])

        def valid(step: int, skipped: int) -> Value:
            """Lanes ``step`` places apart, the first ``skipped`` after the column's first, whose place lies in x."""
            at = kb.add(first, skipped)
            on = kb.create_mask(self.ceil(kb.sub(n, at), step), lanes)
            return on if isinstance(before, int) and before <= skipped else both(kb, on, kb.negate(kb.create_mask(self.ceil(kb.sub(0, at), step), lanes)))

        if lanes == 1:
            return _Column(first, inside(kb, [first], [n]), ())
        near = step <= _APART and _unit(self.given, -1, self.spatial[-1])
        return _Column(first, both(kb, valid(step, 0), mask), [valid(1, j * lanes) for j in range(step)] if near else ())

    def _read(self, spot: _Spot) -> Value:
        """The element of each lane."""
        kb, mem, lanes = self.kb, self.given.store.mem, self.lanes
        if not spot.pieces:
            return self.load(mem, spot.at, spot.stride, spot.mask)
        out, step = None, len(spot.pieces)
        for j, mask in enumerate(spot.pieces):
            part = kb.load(mem, kb.add(spot.at, j * lanes), lanes, mask)
            if out is None:
                out = part
                continue
            spots = [i * step - j * lanes for i in range(lanes)]  # where the lanes' places are in this part
            had = [i * step if j == 1 else i for i in range(lanes)]
            out = kb.shuffle(out, part, [lanes + q if 0 <= q < lanes else h if q < 0 else 0 for q, h in zip(spots, had)])
        assert out is not None
        return out

    def _step(self, accs: Sequence[Value], x: Value, spot: _Spot) -> list[Value]:
        kb, k, kind = self.kb, self.kb.scalars(self.lanes), self.op.name
        if kind == "window_sum":  # 0 where there is no place
            return [k.add(accs[0], x)]
        if kind == "window_max":
            best = k.max(accs[0], x)
            return [best if spot.mask is None else k.select(spot.mask, best, accs[0])]
        best, at = accs
        better = k.logical("or", k.cmp("gt", x, best), k.cmp("eq", at, self._zero(self._none, self.number)))
        if self.dtype.kind == "f":
            better = k.logical("or", better, k.cmp("ne", x, x))
        better = better if spot.mask is None else both(kb, better, spot.mask)
        return [k.select(better, x, best), k.select(better, self._as_int(spot.place), at)]

    def _from_rows(self, b: Index, c: Index, p: list[Index]) -> Value:
        """The result of one window whose rows the lanes run along."""
        kb, a = self.kb, self.a
        *ranges, (first, end, _) = [self._range(d, i) for d, i in enumerate(p)]
        if not self.adaptive:
            start = kb.sub(kb.mul(p[-1], a["stride"][-1]), a["low"][-1])
            first, end = kb.add(start, first), kb.add(start, end)
        base = self._offset(self.given, b, c, [0] * len(p))

        def row(j: list[Index], accs: list[Value]) -> list[Value]:
            at = j if self.adaptive else [kb.add(kb.sub(kb.mul(i, s), lo), kb.mul(q, d)) for i, s, lo, q, d in zip(p, a["stride"], a["low"], j, a["dilation"])]
            line = self.at(base, *zip(at, self.given.strides[2:]))
            with kb.for_(first, end, self.lanes, init=accs) as lp:
                mask = kb.create_mask(kb.sub(end, lp.iv), self.lanes) if self.lanes > 1 else None
                spot = _Spot(kb.add(line, lp.iv), self._number([*at, lp.iv]), mask, 1)
                kb.yield_(*self._step(lp.args, self._read(spot), spot))
            return list(lp.results)

        found = self.nested(ranges, self._start(), row)
        return self._across(found)

    def _across(self, found: list[Value]) -> Value:
        """The result of all lanes."""
        kb, k, one, kind = self.kb, self.kb.scalars(self.lanes), self.kb.scalars(1), self.op.name
        if kind == "window_sum":
            total, divide = k.reduce("add", found[0]), self.a["divide"]
            return total if divide == 1 else one.div(total, kb.constant(divide, register(self.dtype)))
        best = k.reduce("max", found[0])
        if kind == "window_max":
            return best
        own, none = self._own(found[1]), self._zero(self._none, self.number)
        some = k.cmp("ne", found[1], none)
        last = self._zero(~self._none, self.number)
        first = k.reduce("min", k.select(k.logical("and", some, k.cmp("eq", found[0], k.vector(best))), own, last))
        if self.dtype.kind == "f":
            nan = k.reduce("max", k.select(k.logical("and", some, k.cmp("ne", found[0], found[0])), own, none))
            first = one.select(one.cmp("ne", nan, one.const(self._none, self.number)), nan, first)
        first = one.select(one.cmp("eq", first, one.const(~self._none, self.number)), one.const(-1, self.number), first)
        return one.cast(first, self.number, int64)

    def _range(self, d: int, p: Index) -> Range:
        """Rounds of the window of p that lie in x: its places themselves where windows are adaptive, else numbers of kernel places."""
        kb, n = self.kb, self.kb.dim(self.spatial[d])
        if self.adaptive:
            count = kb.dim(self.count[d])
            end = kb.sub(0, kb.floordiv(kb.sub(0, kb.mul(kb.add(p, 1), n)), count))
            return kb.floordiv(kb.mul(p, n), count), end, 1
        start, step = kb.sub(kb.mul(p, self.a["stride"][d]), self.a["low"][d]), self.a["dilation"][d]
        return kb.max(0, self.ceil(kb.sub(0, start), step)), kb.min(self.a["kernel"][d], self.ceil(kb.sub(n, start), step)), 1

    def _spot(self, base: Index, p: Sequence[Index], j: Sequence[Index], mask: Value | None, column: _Column | None) -> _Spot:
        kb, a = self.kb, self.a
        at = list(j) if self.adaptive else [kb.add(kb.sub(kb.mul(i, s), lo), kb.mul(q, d)) for i, s, lo, q, d in zip(p, a["stride"], a["low"], j, a["dilation"])]
        at = at if column is None else [*at, column.at]
        offset = self.at(base, *zip(at, self.given.strides[2:]))
        if column is None:
            return _Spot(offset, self._number(at), mask, self.given.strides[1])
        return _Spot(offset, self._number(at), column.mask, self.given.strides[-1] * a["stride"][-1], column.pieces)


class _Put(_Down):
    """Each element of y added to x at its place: the places of its window are gone through, with neighbouring channels in the lanes, which differ in their places."""

    def __init__(self, cx: Context, op: Op, arrays: Sequence[Access]) -> None:
        super().__init__(cx, op, arrays)
        self.values, self.marks = arrays[1:3]
        kernel = self.a["kernel"]
        self.worthwhile = self.channels and self.lanes > 1 and not self.adaptive and all(isinstance(k, int) for k in kernel) and dims.product(kernel) <= _SEARCHED

    def emit(self) -> None:
        """Window by window; rows of x become zeros right before the first window that holds them."""
        kb, a, (n, *_) = self.kb, self.a, self.spatial
        size, count = kb.dim(n), kb.dim(self.count[0])

        def end(p: Index) -> Index:
            """Behind the last row of the windows at ``p`` of the first dim, and before."""
            return kb.max(kb.min(kb.add(kb.sub(kb.mul(p, a["stride"][0]), a["low"][0]), (a["kernel"][0] - 1) * a["dilation"][0] + 1), size), 0)

        with self.over(self.shape[:1], self._cost() * dims.product(self.count) * self.shape[1]) as (b,):
            with kb.for_(0, kb.select(kb.cmp("eq", count, 0), size, 0)) as lp:
                self._clear(b, lp.iv)
            with kb.for_(0, count) as row:
                p = row.iv
                first, last = kb.cmp("eq", p, 0), kb.cmp("eq", kb.add(p, 1), count)
                with kb.for_(kb.select(first, 0, end(kb.sub(p, 1))), kb.select(last, size, end(p))) as lp:
                    self._clear(b, lp.iv)
                with self.over(self.count[1:]) as rest:
                    self.vectors(lambda first, masks: self._window(b, [p, *rest], [kb.add(first, v * self.lanes) for v in range(len(masks))], masks))

    def _clear(self, b: Index, row: Index) -> None:
        """Zeros in one row of the first dim."""
        with self.over(self.spatial[1:]) as at:
            def several(first: Index, masks: Sequence[Value | None]) -> None:
                for v, mask in enumerate(masks):
                    there = self._offset(self.out, b, self.kb.add(first, v * self.lanes), [row, *at])
                    self.kb.store(self._zero(), self.out.store.mem, there, mask)

            self.vectors(several)

    def _window(self, b: Index, p: list[Index], lanes: Sequence[Index], masks: Sequence[Value | None]) -> None:
        kb, k, mem = self.kb, self.kb.scalars(self.lanes), self.out.store.mem

        def read(array: Access, lane: Index, mask: Value | None) -> Value:
            return kb.load(array.store.mem, self._offset(array, b, lane, p), self.lanes, mask)

        values = [read(self.values, lane, mask) for lane, mask in zip(lanes, masks)]
        marks = [k.cast(read(self.marks, lane, mask), int64, self.number) for lane, mask in zip(lanes, masks)]

        def place(j: list[Index], accs: list[Value]) -> list[Value]:
            for y, at, lane, mask in zip(values, marks, lanes, masks):
                spot = self._spot(self._offset(self.out, b, lane, [0] * len(p)), p, j, mask, None)
                here = k.select(k.cmp("eq", at, self._as_int(spot.place)), y, self._zero())
                kb.store(k.add(kb.load(mem, spot.at, self.lanes, mask), here), mem, spot.at, mask)
            return accs

        self.nested([self._range(d, i) for d, i in enumerate(p)], [], place)


class _Up(_Windows):
    """Every element of x from the windows that hold it."""

    def __init__(self, cx: Context, op: Op, arrays: Sequence[Access]) -> None:
        super().__init__(cx, op, arrays)
        stride, kernel, dilation = (self.a[name][-1] if self.a[name] else 0 for name in ("stride", "kernel", "dilation"))
        self.near = stride in (1, 2, 4) and dilation == 1 and isinstance(kernel, int) and self.lanes > stride and _unit(self.given, -1, self.count[-1])

    def _combined(self, b: Index, c: Index, p: list[Index], lanes: Sequence[Index], masks: Sequence[Value | None]) -> list[Value]:
        k = self.kb.scalars(self.lanes)
        ranges = [self._meeting(d, i) for d, i in enumerate(p)]
        gaps = self.places and not self.adaptive and self.a["dilation"][-1] > 1
        if gaps:  # each lane has windows of its own in the last dim
            ranges.append((0, self.a["kernel"][-1], 1))

        def step(j: list[Index], accs: list[Value]) -> list[Value]:
            q = list(j[:len(p)]) if self.adaptive else [self._position(d, i, place) for d, (i, place) in enumerate(zip(p, j))]
            out = []
            for acc, lane, mask in zip(accs, lanes, masks):
                if gaps:
                    out.append(self._line(b, c, q, lane, j[-1], mask, acc))
                elif self.places and self.near:
                    out.append(self._near(b, c, q, lane, acc))
                elif self.places:
                    out.append(self._holding(b, c, q, lane, acc))
                else:
                    at = self._offset(self.given, b, self._spot_of(c, p, lane)[0], q)
                    out.append(k.add(acc, self.load(self.given.store.mem, at, self.given.strides[1], mask)))
            return out

        found = self.nested(ranges, [self._zero()] * len(lanes), step)
        return [self._divided(x) for x in found]

    def _near(self, b: Index, c: Index, q: Sequence[Index], lane: Index, acc: Value) -> Value:
        """The windows along the last dim: of lane i those at ``(lane + low + i) // stride`` and before. Lanes that share one get it by a shuffle."""
        kb, k, a, lanes = self.kb, self.kb.scalars(self.lanes), self.a, self.lanes
        stride, kernel, low = a["stride"][-1], a["kernel"][-1], a["low"][-1]
        rest, count = low % stride, kb.dim(self.count[-1])
        base = kb.div(kb.add(lane, low - rest), stride)  # lane is a multiple of the lanes, and so of the stride
        spots = [(rest + i) // stride for i in range(lanes)]

        def back(t: Index, acc: Value, reach: int) -> Value:
            first = kb.sub(base, t)
            on = both(kb, kb.create_mask(kb.sub(count, first), lanes), kb.negate(kb.create_mask(kb.sub(0, first), lanes)))

            y = kb.load(self.given.store.mem, kb.add(self._offset(self.given, b, c, [*q, 0]), first), lanes, on)
            y = y if spots == list(range(lanes)) else kb.shuffle(y, y, spots)
            if reach < stride:  # some lanes are behind the window
                rests = kb.pure("arith.remui", (self._lanes_from(rest), kb.broadcast(kb.index(stride), lanes)), register(None, lanes))
                y = k.select(inside(kb, [rests], [reach]), y, self._zero())
            return k.add(acc, y)

        (acc,) = self.nested([(0, kernel // stride, 1)], [acc], lambda t, accs: [back(t[0], accs[0], stride)])
        return back(kernel // stride, acc, kernel % stride) if kernel % stride else acc

    def _holding(self, b: Index, c: Index, q: Sequence[Index], lane: Index, acc: Value) -> Value:
        """The windows along the last dim that hold any lane, one by one."""
        kb, k, lanes, a = self.kb, self.kb.scalars(self.lanes), self.lanes, self.a
        n, count = kb.dim(self.spatial[-1]), kb.dim(self.count[-1])
        last = kb.min(kb.add(lane, lanes), n)

        def up(i: Index, by: Index, of: Index) -> Index:
            """``i * by / of`` rounded up."""
            return kb.floordiv(kb.add(kb.mul(i, by), kb.sub(of, 1)), of)

        if self.adaptive:
            low, high = kb.floordiv(kb.mul(lane, count), n), kb.min(up(last, count, n), count)
        else:
            stride, kernel, before = a["stride"][-1], kb.dim(a["kernel"][-1]), a["low"][-1]
            low, high = kb.max(up(kb.sub(kb.add(lane, before + 1), kernel), 1, stride), 0), kb.min(up(kb.add(last, before), 1, stride), count)

        def window(at: list[Index], accs: list[Value]) -> list[Value]:
            (i,) = at
            first, end = kb.floordiv(kb.mul(i, n), count), up(kb.add(i, 1), n, count)
            if not self.adaptive:
                first = kb.sub(kb.mul(i, stride), before)
                end = kb.add(first, kernel)
            y = k.vector(kb.load(self.given.store.mem, self._offset(self.given, b, c, [*q, i])))
            if lanes > 1:
                y = k.select(both(kb, kb.create_mask(kb.sub(end, lane), lanes), kb.negate(kb.create_mask(kb.sub(first, lane), lanes))), y, self._zero())
            return [k.add(accs[0], y)]

        if isinstance(low, int) and isinstance(high, int) and high - low <= _WRITTEN:  # masks are constants
            for i in range(low, high):
                (acc,) = window([i], [acc])
            return acc
        return self.nested([(low, high, 1)], [acc], window)[0]

    def _line(self, b: Index, c: Index, q: list[Index], lane: Index, place: Index, mask: Value | None, acc: Value) -> Value:
        """One kernel place of the last dim: for the lanes that meet a window there."""
        kb, k, mem = self.kb, self.kb.scalars(self.lanes), self.given.store.mem
        row = self._offset(self.given, b, c, [*q, 0])
        stride, first = self.a["stride"][-1], kb.sub(kb.add(lane, self.a["low"][-1]), kb.mul(place, self.a["dilation"][-1]))
        count, step = kb.dim(self.count[-1]), self.given.strides[-1]
        if stride == 1:
            valid = both(kb, inside(kb, [self._lanes_from(first)], [count]), mask)
            return k.add(acc, self.load(mem, kb.add(row, kb.mul(first, kb.dim(step))), step, valid))
        if self.lanes == 1:
            at = kb.floordiv(first, stride)
            valid = kb.all_of(kb.cmp("eq", kb.mul(at, stride), first), kb.cmp("ult", at, count))
            return k.add(acc, guarded(kb, valid, lambda: kb.load(mem, self.at(row, (at, step))), register(self.dtype)))
        t = register(None, self.lanes)
        # the lowest first position is above -stride * kernel: so far up, nothing is negative, and division rounds down
        shift = self.a["kernel"][-1] * self.a["dilation"][-1]
        up = self._lanes_from(kb.add(first, shift * stride))
        wide = kb.broadcast(kb.index(stride), self.lanes)
        quotient = kb.pure("arith.divui", (up, wide), t)
        whole = kb.pure("arith.cmpi", (kb.pure("arith.muli", (quotient, wide), t), up), register(bool_, self.lanes), {"predicate": CMPI["eq"]}, "eq")
        at_lanes = kb.pure("arith.subi", (quotient, kb.broadcast(kb.index(shift), self.lanes)), t)
        valid = both(kb, both(kb, whole, inside(kb, [at_lanes], [count])), mask)
        spots = kb.pure("arith.muli", (at_lanes, kb.broadcast(kb.index(kb.dim(step)), self.lanes)), t)
        return k.add(acc, kb.gather(mem, kb.pure("arith.addi", (spots, kb.broadcast(kb.index(row), self.lanes)), t), valid))

    def _lanes_from(self, first: Index) -> Value:
        """Neighbouring numbers, one per lane."""
        return self.kb.iota(first, self.lanes) if self.lanes > 1 else self.kb.index(first)

    def _position(self, d: int, i: Index, place: Index) -> Index:
        kb, a = self.kb, self.a
        return kb.floordiv(kb.sub(kb.add(i, a["low"][d]), kb.mul(place, a["dilation"][d])), a["stride"][d])

    def _meeting(self, d: int, i: Index) -> Range:
        """Windows that hold i: their positions where they are adaptive, else the kernel places at which i lies in one."""
        kb, count = self.kb, self.kb.dim(self.count[d])
        if self.adaptive:
            n = kb.dim(self.spatial[d])
            end = kb.sub(0, kb.floordiv(kb.sub(0, kb.mul(kb.add(i, 1), count)), n))
            return kb.floordiv(kb.mul(i, count), n), kb.min(end, count), 1
        stride, dilation, size = self.a["stride"][d], self.a["dilation"][d], self.a["kernel"][d]
        t = kb.add(i, self.a["low"][d])
        return self.meeting(t, stride, dilation, kb.min(size, kb.add(kb.floordiv(t, dilation), 1)), kb.sub(t, kb.mul(kb.sub(count, 1), stride)))

