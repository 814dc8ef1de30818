"""Kernels that follow an index or a running value: take, scatter, cumulative sums and products, recurrences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from ..ir import dims
from ..ir.core import Op, Value
from ..ir.dims import DimLike
from ..ir.ops.index import ROW_CODE
from ..ir.types import TensorType
from .access import Access
from .bufferise import Store, dense
from .exprs import Node
from .kernel import Index, KernelBuilder, ScalarBuilder, memref
from .loops import one_pass
from .nest import Context, Place, Root, rank_of
from .plan import Kern, size_one
from .written import form_of

__all__ = ["as_size", "constant", "copy", "cumulate", "elementwise", "place_of", "recurrence", "rounds", "scatter", "take"]

_POLL = 1024
"""Rounds of an outermost loop between two questions whether to stop."""


def as_size(cx: Context, value: Index) -> DimLike:
    """An index known only at run time as a size, so that positions are written with it."""
    if isinstance(value, int):
        return value
    name = f"_t{len(cx.kb.sizes)}"
    cx.kb.sizes[name] = value
    return dims.symbol(name)


@contextmanager
def rounds(cx: Context, sizes: Sequence[DimLike], poll: int = _POLL) -> Iterator[list[DimLike]]:
    """Scalar loops over ``sizes``; gives the position in each as a size. ``poll``: rounds of each between two questions whether to stop."""
    with ExitStack() as stack:
        out: list[DimLike] = []
        for n in sizes:
            lp = stack.enter_context(cx.kb.for_(0, cx.kb.dim(n), poll=poll))
            out.append(as_size(cx, lp.iv))
        yield out


def place_of(access: Access, at: dict[int, DimLike], rest: Sequence[int]) -> Place:
    """The part of an array at fixed positions of some dims: offset, and strides of the dims ``rest`` numbered from 0."""
    base = access.base
    for d, i in at.items():
        base = base + access.strides[d] * i
    return base, {k: access.strides[d] for k, d in enumerate(rest) if access.strides[d] != 0}


def elementwise(cx: Context, space: Sequence[DimLike], loads: Sequence[tuple[Any, Place]], fn: Callable[..., Value], store: tuple[Any, Place], add: bool = False) -> None:
    """One loop nest over ``space``: ``store = fn(k, *loads)``."""
    nodes = [Node("load", frozenset(p[1]), access=Access(s, p[0], ()), places=[p]) for s, p in loads]
    result = Node("ew", frozenset().union(*(n.dims for n in nodes)), args=nodes, fn=fn)
    live = [d for d, n in enumerate(space) if n != 1]
    order = sorted(live, key=lambda d: (d in store[1][1], tuple(-x for x in rank_of(store[1][1].get(d, 0))), d))
    one_pass(cx, [*nodes, result], [Root(result, store[0], store[1], add)], space, order)


def _same(k: ScalarBuilder, x: Value) -> Value:
    return x


@contextmanager
def _guarded(kb: KernelBuilder, passes: Index | None) -> Iterator[None]:
    """What happens where ``passes`` is 1 and not where it is 0 (None: always)."""
    if passes is None:
        yield
        return
    with kb.for_(0, passes):
        yield


def _checked(cx: Context, item: Kern, index: Value, size: DimLike) -> tuple[DimLike, Index | None]:
    """The index as a size; out of range it ends the call with code 2, and in builds without checks it is clamped. There, also whether it was in range: 1 or 0."""
    kb, n = cx.kb, cx.kb.dim(size)
    i = kb.scalars(1).to_index(index)
    if cx.module.checks:
        assert item.op is not None
        fits, maker = kb.cmp("ult", i, n), _maker(item.op.operands[1])
        axes = (item.op.attrs["dim"],) if maker is None else maker.attrs["axes"]
        if maker is not None and len(axes) > 1:  # which of the indices it was
            with kb.if_(kb.negate(fits)) as wrong, wrong.then():
                for j, (axis, d) in enumerate(zip(axes, maker.attrs["extents"])):
                    place = cx.module.index_location(item.op.loc, axis, "joined")
                    kb.check(kb.cmp("ne", kb.mod(i, ROW_CODE), j), 2, place, i, kb.dim(d))
        kb.check(fits, 2, cx.module.index_location(item.op.loc, axes[0], "wrapped" if maker is not None and maker.attrs["wrap"] else ""), i, n)
        return as_size(cx, i), None
    inside = kb.select(kb.cmp("ult", i, n), 1, 0)
    return as_size(cx, kb.index(kb.max(kb.min(i, kb.sub(n, 1)), 0))), inside


def _maker(index: Value) -> Op | None:
    """The op that made an index of what the user gave."""
    op = index.op
    while op is not None and op.name in ("reshape", "broadcast", "permute", "relayout", "stop_gradient"):
        op = op.operands[0].op
    return op if op is not None and op.name == "row_index" else None


def _way(parts: Sequence[tuple[DimLike, DimLike]], i: DimLike) -> DimLike:
    """How far element ``i`` of a dim is from its first."""
    step: DimLike = 1
    out: DimLike = 0
    for k, (size, stride) in reversed(list(enumerate(parts))):
        at = dims.floordiv(i, step)
        out = out + (dims.mod(at, size) if k else at) * stride
        step = step * size
    return out


def _index_move(cx: Context, item: Kern, x: Access, idx: Access, other: Access, write: str | None) -> None:
    """``other[..., i, ...] = x[..., idx[i], ...]``, or with ``write`` the other way round (set or add)."""
    op, kb = item.op, cx.kb
    assert op is not None
    dim, form, index_shape = op.attrs["dim"], form_of(op), op.operands[1].type.shape
    source = form.type
    count = len(index_shape)
    rest = [d for d in range(source.rank) if d != dim]
    rest_other = [*range(dim), *range(dim + count, source.rank - 1 + count)]
    space = [source.shape[d] for d in rest]
    with rounds(cx, index_shape) as at:
        where = idx.base
        for d, i in enumerate(at):
            where = where + idx.strides[d] * i
        row, inside = _checked(cx, item, kb.load(idx.store.mem, kb.dim(where)), source.shape[dim])
        ahead = _way(form.parts[dim], row) if len(form.parts[dim]) > 1 else x.strides[dim] * row
        here = (x.store, place_of(Access(x.store, x.base + ahead, x.strides), {}, rest))
        there = (other.store, place_of(other, {dim + d: i for d, i in enumerate(at)}, rest_other))
        if write is not None:
            with _guarded(kb, inside):  # a write out of range is dropped
                elementwise(cx, space, [there], _same, here, write == "add")
        else:
            some = None if inside is None else kb.min(kb.dim(source.shape[dim]), 1)
            with _guarded(kb, some):
                elementwise(cx, space, [here], _same, there)
            if some is not None:  # an empty dim has nothing to clamp to
                with _guarded(kb, kb.sub(1, some)):
                    elementwise(cx, space, [], lambda k: k.const(0, source.dtype), there)


def take(cx: Context, item: Kern) -> None:
    """x indexed along a dim."""
    op = item.op
    assert op is not None
    x, idx = (cx.buffers.access(item, o) for o in op.operands)
    _index_move(cx, item, cx.buffers.shown(op, x), idx, cx.buffers.stored(op.result), None)


def copy(cx: Context, item: Kern) -> None:
    """A part of an array, as it is now."""
    op = item.op
    assert op is not None
    x, out, every = cx.buffers.access(item, op.operands[0]), cx.buffers.stored(op.result), range(op.result.type.rank)
    elementwise(cx, op.result.type.shape, [(x.store, place_of(x, {}, every))], _same, (out.store, place_of(out, {}, every)))


def scatter(cx: Context, item: Kern) -> None:
    """v written or added at indices, in the order of the index array."""
    op = item.op
    assert op is not None
    idx, v = (cx.buffers.access(item, o) for o in op.operands[1:])
    _index_move(cx, item, cx.buffers.written(op), idx, v, "add" if op.name == "scatter_add" else "set")


def _walk(cx: Context, n: DimLike, reverse: bool) -> Any:
    """Positions 1, 2, ... of a dim from its start (or end): the position and the one before it, as sizes."""

    @contextmanager
    def loop() -> Iterator[tuple[DimLike, DimLike]]:
        with cx.kb.for_(1, cx.kb.dim(n), poll=_POLL) as lp:
            i = as_size(cx, lp.iv)
            yield (n - 1 - i, n - i) if reverse else (i, i - 1)

    return loop()


def cumulate(cx: Context, item: Kern) -> None:
    """Running sums and products, in order of the elements."""
    op = item.op
    assert op is not None
    x, out, t = cx.buffers.access(item, op.operands[0]), cx.buffers.stored(op.result), op.operands[0].type
    dim, exclusive, reverse = op.attrs["dim"], op.attrs["exclusive"], op.attrs["reverse"]
    kind = "add" if op.name == "cumsum" else "mul"
    if size_one(t.shape[dim + 1:]):
        k = cx.kb.scalars(1)
        # -0 + x is x for every x; what an exclusive sum starts from is seen, so that is 0.
        unit = -0.0 if kind == "add" and t.dtype.kind == "f" and not exclusive else k.identity(kind, t.dtype)
        _line(cx, t, dim, reverse, [x], out, k.const(unit, t.dtype), lambda y, v: k.combine(kind, y, v), exclusive)
        return

    def first(at: dict[int, DimLike], rest: Sequence[int], space: Sequence[DimLike]) -> None:
        here = (out.store, place_of(out, at, rest))
        if exclusive:
            elementwise(cx, space, [], lambda k: k.const(k.identity(kind, t.dtype), t.dtype), here)
        else:
            elementwise(cx, space, [(x.store, place_of(x, at, rest))], _same, here)

    def step(at: dict[int, DimLike], before: dict[int, DimLike], rest: Sequence[int], space: Sequence[DimLike]) -> None:
        loads = [(out.store, place_of(out, before, rest)), (x.store, place_of(x, before if exclusive else at, rest))]
        elementwise(cx, space, loads, lambda k, a, b: k.combine(kind, a, b), (out.store, place_of(out, at, rest)))

    _along(cx, t.shape, dim, reverse, first, step)


def recurrence(cx: Context, item: Kern) -> None:
    """y[i] = a[i] * y[i-1] + x[i]; zero annihilates in the product."""
    op = item.op
    assert op is not None
    a, x = (cx.buffers.access(item, o) for o in op.operands)
    out, t = cx.buffers.stored(op.result), op.operands[1].type

    def first(at: dict[int, DimLike], rest: Sequence[int], space: Sequence[DimLike]) -> None:
        elementwise(cx, space, [(x.store, place_of(x, at, rest))], _same, (out.store, place_of(out, at, rest)))

    def product(k: ScalarBuilder, p: Value, q: Value, r: Value) -> Value:
        zero = k.const(0, t.dtype)
        none = k.logical("or", k.cmp("eq", p, zero), k.cmp("eq", q, zero))
        return k.add(k.select(none, zero, k.mul(p, q)), r)

    if size_one(t.shape[op.attrs["dim"] + 1:]):
        s = cx.kb.scalars(1)
        _line(cx, t, op.attrs["dim"], op.attrs["reverse"], [a, x], out, s.const(0, t.dtype), lambda y, p, r: product(s, p, y, r), False)
        return

    def step(at: dict[int, DimLike], before: dict[int, DimLike], rest: Sequence[int], space: Sequence[DimLike]) -> None:
        loads = [(a.store, place_of(a, at, rest)), (out.store, place_of(out, before, rest)), (x.store, place_of(x, at, rest))]
        elementwise(cx, space, loads, product, (out.store, place_of(out, at, rest)))

    _along(cx, t.shape, op.attrs["dim"], op.attrs["reverse"], first, step)


def _line(cx: Context, t: TensorType, dim: int, reverse: bool, xs: Sequence[Access], out: Access, start: Value, step: Callable[..., Value], exclusive: bool) -> None:
    """A walk along the last dim (but for dims of size 1) with the running value in a register."""
    kb, n = cx.kb, t.shape[dim]
    with rounds(cx, t.shape[:dim]) as lead:
        fixed = dict(enumerate(lead))
        with kb.for_(0, kb.dim(n), init=[start], poll=_POLL) as lp:
            i = as_size(cx, lp.iv)
            at = {**fixed, dim: n - 1 - i if reverse else i}
            (before,) = lp.args
            after = step(before, *(kb.load(x.store.mem, kb.dim(place_of(x, at, [])[0])) for x in xs))
            kb.store(before if exclusive else after, out.store.mem, kb.dim(place_of(out, at, [])[0]))
            kb.yield_(after)


def _along(cx: Context, shape: Sequence[DimLike], dim: int, reverse: bool, first: Callable[..., None], step: Callable[..., None]) -> None:
    """Walks a dim in order: rows before it one by one, what lies behind it together."""
    n = shape[dim]
    lead, rest = list(range(dim)), list(range(dim + 1, len(shape)))
    space = [shape[d] for d in rest]
    with rounds(cx, [shape[d] for d in lead]) as at:
        fixed = dict(zip(lead, at))
        with cx.kb.for_(0, cx.kb.min(cx.kb.dim(n), 1)):
            first({**fixed, dim: n - 1 if reverse else 0}, rest, space)
        with _walk(cx, n, reverse) as (here, before):
            step({**fixed, dim: here}, {**fixed, dim: before}, rest, space)


def constant(cx: Context, item: Kern) -> None:
    """A constant array: read-only data of the module, copied only where it is to be overwritten."""
    op = item.op
    assert op is not None
    v = op.result
    data = np.ascontiguousarray(op.attrs["value"])
    made = cx.kb.op("ag.data", (), (memref(v.type.dtype),), {"name": cx.module.fresh("data"), "value": data.tobytes().hex() or "00"})
    cx.buffers.place(v, dense(Store(made.result, v.type.dtype, "in", "constant"), v.type))
