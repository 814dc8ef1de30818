"""Pooling's ops as loops. Windows end where x does, so no padding is read or copied.

Lanes are neighbours in the channels where these are last in memory. Else they are neighbours in the last dim of y, and each asks whether its place lies in x. Places that
far apart are read as neighbours and sorted by shuffles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aotgrad_runtime.dtypes import DType, bool_, int32, int64

from ..ir import dims
from ..ir.core import Op, Value
from ..ir.dims import DimLike
from .access import Access
from .fusion import Kern
from .guards import both, guarded, inside
from .image_loops import ImageLoops, Range
from .kernel import Index, register
from .kernel_core import CMPI
from .lowering_places import at_places
from .nest import Context

__all__ = ["windows"]

_ROW = 8  # from this width on, rows of a window are summed on their own
_COLUMNS = 4  # kernels up to so wide are written out
_APART = 4  # places up to so far apart are read as neighbours, farther ones gathered


def windows(cx: Context, item: Kern) -> None:
    """One of the six ops on windows."""
    op = item.op
    assert op is not None
    arrays = [*(cx.buffers.access(item, o) for o in op.operands), cx.buffers.stored(op.result)]
    if op.name in ("window_pick", "window_put"):
        at_places(cx, op, arrays)
        return
    loops = _Up(cx, op, arrays) if op.name == "window_spread" else _Down(cx, op, arrays)
    loops.emit()
    lanes = "channels" if loops.channels else "places" if loops.lanes > 1 else "none"
    cx.report.append({"kind": op.name, "kernel": list(op.attrs["kernel"]) or "adaptive", "lanes": lanes})


def _unit(access: Access, dim: int, size: DimLike) -> bool:
    """Whether neighbours in a dim are neighbours in memory."""
    stride = access.strides[dim]
    return isinstance(stride, int) and stride == 1 and not (isinstance(size, int) and size == 1)


@dataclass
class _Spot:
    """A place of a window: where that of the first lane is in the array that is read, its number, and the lanes in which it is one (None: all)."""

    at: Index
    place: Index
    mask: Value | None
    stride: DimLike
    pieces: Sequence[Value] = ()  # the masks of as many vectors of neighbours that hold the places of all lanes


@dataclass
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
        few = isinstance(self.count[-1], int) and self.count[-1] <= 2
        self.along = self.rows and few and not self.channels and _unit(self.given, -1, self.spatial[-1]) and (self.adaptive or self.a["dilation"][-1] == 1)
        # of one window in the last dim, which lanes lie in it is all there is to ask
        self.single = isinstance(self.count[-1], int) and self.count[-1] == 1 and (self.adaptive or self.a["dilation"][-1] == 1)
        lines = not self.adaptive if down else not self.adaptive or self.single
        self.places = lines and not self.channels and not self.along and _unit(self.out, -1, self.shape[-1])
        few_places = all(isinstance(n, int) for n in self.spatial) and dims.product(self.spatial) < 1 << 31
        self.number = int32 if few_places else int64  # of places, while they are compared
        wide = max(self.dtype.itemsize, self.number.itemsize if op.name == "window_argmax" else 1)
        super().__init__(cx, wide, self.shape[1] if self.channels else self.shape[-1] if self.places else self.spatial[-1] if self.along else 1)

    def emit(self) -> None:
        """Loops over the result; ``vectors`` over what the lanes run along."""
        n, c, *rest = self.shape
        if self.along:
            with self.over(self.shape, self._cost()) as (b, channel, *at):
                self.kb.store(self._row_sums(b, channel, at), self.out.store.mem, self._offset(self.out, b, channel, at))
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

    def _row_sums(self, b: Index, c: Index, p: list[Index]) -> Value:
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
        least = k.identity("max", self.dtype)
        start = {"window_max": [self._zero(least)], "window_argmax": [self._zero(least), self._zero(self._none, self.number)]}.get(kind, [self._zero()])
        per = len(start)

        def step(j: list[Index], accs: list[Value]) -> list[Value]:
            here = [[self._column(lane, j[-1], mask) for lane, mask in zip(lanes, masks)]] if self.places and not columns else columns
            for column in here or [[None] * len(lanes)]:
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

    def _numbers(self, at: Value) -> Value:
        """Numbers of places of all lanes from those relative to each lane's own."""
        kb, k = self.kb, self.kb.scalars(self.lanes)
        own = k.add(at, self._as_int(self.spread(0, self.a["stride"][-1]))) if self.places and self.lanes > 1 else at
        return k.cast(k.select(k.cmp("eq", at, self._zero(self._none, self.number)), self._zero(-1, self.number), own), self.number, int64)

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
        if kind == "window_sum":
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

    def _row_sums(self, b: Index, c: Index, p: list[Index]) -> Value:
        """The sum of one window whose rows the lanes run along."""
        kb, k, a = self.kb, self.kb.scalars(self.lanes), self.a
        *ranges, (first, end, _) = [self._range(d, i) for d, i in enumerate(p)]
        if not self.adaptive:
            start = kb.sub(kb.mul(p[-1], a["stride"][-1]), a["low"][-1])
            first, end = kb.add(start, first), kb.add(start, end)
        base = self._offset(self.given, b, c, [0] * len(p))

        def row(j: list[Index], accs: list[Value]) -> list[Value]:
            at = j if self.adaptive else [kb.add(kb.sub(kb.mul(i, s), lo), kb.mul(q, d)) for i, s, lo, q, d in zip(p, a["stride"], a["low"], j, a["dilation"])]
            line = self.at(base, *zip(at, self.given.strides[2:]))
            with kb.for_(first, end, self.lanes, init=[self._zero()]) as lp:
                mask = kb.create_mask(kb.sub(end, lp.iv), self.lanes) if self.lanes > 1 else None
                kb.yield_(k.add(lp.args[0], kb.load(self.given.store.mem, kb.add(line, lp.iv), self.lanes, mask)))
            return [k.add(accs[0], lp.results[0])]

        total, divide = k.reduce("add", self.nested(ranges, [self._zero()], row)[0]), a["divide"]
        return total if divide == 1 else kb.scalars(1).div(total, kb.constant(divide, register(self.dtype)))

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


class _Up(_Windows):
    """Every element of x from the windows that hold it."""

    def _combined(self, b: Index, c: Index, p: list[Index], lanes: Sequence[Index], masks: Sequence[Value | None]) -> list[Value]:
        k = self.kb.scalars(self.lanes)
        ranges = [self._meeting(d, i) for d, i in enumerate(p)]
        if self.places:  # each lane has windows of its own in the last dim
            ranges.append((0, 1 if self.single else self.a["kernel"][-1], 1))

        def step(j: list[Index], accs: list[Value]) -> list[Value]:
            q = list(j[:len(p)]) if self.adaptive else [self._position(d, i, place) for d, (i, place) in enumerate(zip(p, j))]
            out = []
            for acc, lane, mask in zip(accs, lanes, masks):
                if self.places:
                    out.append(self._line(b, c, q, lane, j[-1], mask, acc))
                    continue
                at = self._offset(self.given, b, self._spot_of(c, p, lane)[0], q)
                out.append(k.add(acc, self.load(self.given.store.mem, at, self.given.strides[1], mask)))
            return out

        found = self.nested(ranges, [self._zero()] * len(lanes), step)
        return [self._divided(x) for x in found]

    def _line(self, b: Index, c: Index, q: list[Index], lane: Index, place: Index, mask: Value | None, acc: Value) -> Value:
        """One kernel place of the last dim: for the lanes that meet a window there."""
        kb, k, mem = self.kb, self.kb.scalars(self.lanes), self.given.store.mem
        row = self._offset(self.given, b, c, [*q, 0])
        if self.single:
            y = k.vector(kb.load(mem, row))
            if not self.adaptive:
                y = k.select(inside(kb, [self._lanes_from(kb.add(lane, self.a["low"][-1]))], [kb.dim(self.a["kernel"][-1])]), y, self._zero())
            return k.add(acc, y)
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

