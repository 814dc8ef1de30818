"""Elements of images at places that are data: read (``window_pick``) and added to (``window_put``)."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import dims
from ..ir.core import Op, Value
from ..ir.dims import DimLike
from ..ir.types import TensorType
from .access import Access
from .bufferise import Store, dense
from .guards import both, inside
from .image_loops import ImageLoops
from .kernel import Index, register
from .lowering_index import as_size, elementwise
from .nest import Context

__all__ = ["at_places"]


def at_places(cx: Context, op: Op, arrays: Sequence[Access]) -> None:
    """Lanes are neighbours in the channels where these are last in memory: no two lanes then add to one element. Else they are, in reads, neighbours in the last dim."""
    _Places(cx, op, arrays).emit()


def _flat(t: TensorType, access: Access) -> bool:
    """Whether an image's places lie evenly in memory, so that a place's number tells where it is."""
    step = None
    for n, s in zip(reversed(t.shape[2:]), reversed(access.strides[2:])):
        if isinstance(n, int) and n == 1:
            continue
        if step is not None and s != step:
            return False
        step = s * n
    return True


class _Places(ImageLoops):
    def __init__(self, cx: Context, op: Op, arrays: Sequence[Access]) -> None:
        self.op, self.put = op, op.name == "window_put"
        self.image = op.result.type if self.put else op.operands[0].type
        self.shape = op.operands[1].type.shape
        self.temp: Store | None = None
        values, self.at_access = (arrays[0], arrays[1]) if self.put else (arrays[2], arrays[1])
        image = arrays[2] if self.put else arrays[0]
        self.values, self.there = values, image
        self.channels = all(isinstance(a.strides[1], int) and a.strides[1] == 1 and self.shape[1] != 1 for a in (image, values, self.at_access))
        self.wide = self.channels or not self.put and all(isinstance(a.strides[-1], int) and a.strides[-1] == 1 for a in (values, self.at_access))
        super().__init__(cx, 8, self.shape[1] if self.channels else self.shape[-1] if self.wide else 1)
        self.dtype = op.result.type.dtype

    def emit(self) -> None:
        """The whole."""
        cx = self.cx
        live = [d for d, n in enumerate(self.image.shape) if n != 1]
        if not _flat(self.image, self.there):
            self.temp = cx.work.take(self.dtype, self.image.size)
            packed = dense(self.temp, TensorType(self.image.shape, self.dtype))
            places = [(a.store, (a.base, {d: a.strides[d] for d in live})) for a in (self.there, packed)]
            elementwise(cx, self.image.shape, places[:1], lambda k, v: v, places[1])
            self.there = packed
        n, c, *rest = self.shape
        lead = [n] if self.channels else [n, c]
        inner = rest if self.channels or not self.wide else rest[:-1]
        cost = 4 * dims.product(rest) * (c if self.channels else 1)
        with self.over(lead, cost) as (b, *channel):
            if self.put:
                self._clear(b, *channel)
            self._all(b, channel[0] if channel else 0, inner)
        if self.temp is not None:
            cx.work.give_back(self.temp)
        cx.report.append({"kind": self.op.name, "lanes": "channels" if self.channels else "places" if self.lanes > 1 else "none"})

    def _clear(self, b: Index, *channel: Index) -> None:
        """Zeros in one image, or one channel of it: what is added soon after finds them in the cache."""
        given = 1 + len(channel)
        base = self.at(self.there.base, *zip((b, *channel), self.there.strides))
        home = (as_size(self.cx, base), {d - given: s for d, s in enumerate(self.there.strides) if d >= given and self.image.shape[d] != 1})
        elementwise(self.cx, self.image.shape[given:], [], lambda k: k.const(0, self.dtype), (self.there.store, home))

    def _all(self, b: Index, channel: Index, inner: Sequence[DimLike]) -> None:
        """Every place of one image, or one channel of it."""
        kb = self.kb
        with self.over(inner) as at:
            def several(first: Index, masks: Sequence[Value | None]) -> None:
                for v, mask in enumerate(masks):
                    self._one(b, channel, at, kb.add(first, v * self.lanes), mask)

            self.vectors(several)

    def _one(self, b: Index, c: Index, at: Sequence[Index], lane: Index, mask: Value | None) -> None:
        """One vector of places."""
        kb, k = self.kb, self.kb.scalars(self.lanes)
        c, p = (lane, at) if self.channels else (c, [*at, lane] if self.wide else at)
        where = 1 if self.channels else -1
        marks, values = (self.at(a.base, *zip((b, c, *p), a.strides)) for a in (self.at_access, self.values))
        place = k.to_index(self.load(self.at_access.store.mem, marks, self.at_access.strides[where], mask))
        size = kb.dim(dims.product(self.image.shape[2:]))
        on = both(kb, inside(kb, [place], [size]), mask)
        base = self.at(self.there.base, (b, self.there.strides[0]), (c, self.there.strides[1]))
        step = next((s for n, s in zip(reversed(self.image.shape[2:]), reversed(self.there.strides[2:])) if n != 1), 1)
        mem = self.there.store.mem
        if self.lanes == 1:
            spot = self.at(base, (place, step))
            with kb.if_(on, [] if self.put else [register(self.dtype)]) as br:
                with br.then():
                    if self.put:
                        kb.store(k.add(kb.load(mem, spot), kb.load(self.values.store.mem, values)), mem, spot)
                    else:
                        kb.yield_(kb.load(mem, spot))
                if not self.put:
                    with br.orelse():
                        kb.yield_(kb.constant(0, register(self.dtype)))
            if not self.put:
                kb.store(br.results[0], self.values.store.mem, values)
            return
        t = register(None, self.lanes)
        spots = kb.pure("arith.muli", (place, kb.broadcast(kb.index(kb.dim(step)), self.lanes)), t)
        first = kb.broadcast(kb.index(base), self.lanes) if not self.channels else kb.iota(base, self.lanes)
        spots = kb.pure("arith.addi", (spots, first), t)
        if self.put:
            value = self.load(self.values.store.mem, values, self.values.strides[where], mask)
            kb.scatter(k.add(kb.gather(mem, spots, on), value), mem, spots, on)
        else:
            self.store(kb.gather(mem, spots, on), self.values.store.mem, values, self.values.strides[where], mask)
