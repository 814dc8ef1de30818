"""Which loops of a nest may run on several threads, and how much work a part must hold to be worth handing out.

A loop is shared when its rounds touch different memory, so that no result depends on who ran which round. Sums that the loop itself makes are
joined from parts whose bounds are fixed by sizes (``sums.py``), whatever the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from ..ir import dims
from ..ir.dims import DimLike
from .bufferise import Store
from .exprs import heavy
from .kernel import Index

if TYPE_CHECKING:
    from .nest import Loop, Phase, Reduction

__all__ = ["apart", "grain", "may_share", "private_rows", "shared", "units"]

GRAIN: Final = 20_000_000
"""Picoseconds of one thread's work in the smallest part: waking a sleeping thread costs about as much."""
# Estimates in picoseconds, of AVX-512 code: a weight of 1 (an addition; 16 is an exponential) per byte of the element, and a byte moved in cache.
_PER_WEIGHT, _PER_BYTE = 8, 40


def units(phases: Sequence[Phase]) -> int:
    """Picoseconds per element of the space, roughly."""
    total = 0
    for ph in phases:
        moved = [n.access.store.dtype for n in ph.nodes if n.kind == "load" and n.access is not None]
        moved += [r.store.dtype for r in ph.roots]
        size = max([t.itemsize for t in moved] + [4])
        total += _PER_WEIGHT * size * (heavy(ph.nodes) + len(ph.reds)) + _PER_BYTE * sum(t.itemsize for t in moved)
    return max(total, 1)


def grain(cx: Any, cost: int, inside: DimLike) -> Index:
    """Rounds of a part, when an element costs ``cost`` and a round has ``inside`` elements."""
    kb = cx.kb
    return kb.max(kb.div(max(GRAIN // cost, 1), kb.max(kb.dim(inside), 1)), 1)  # type: ignore[no-any-return]


def may_share(e: Any, loop: Loop, joined: Sequence[Reduction] = ()) -> bool:
    """Whether rounds of ``loop``, the outermost of the nest, write different places and read nothing that others write. ``joined``: sums that are taken care of."""
    if e.cx.module is None or e.cx.module.threads == 1 or e.blocked or not e.whole or _small(e):
        return False
    return apart(e, [part.dims[-1] for part in loop.parts or (loop,)], joined)


def apart(e: Any, over: Sequence[int], joined: Sequence[Reduction] = ()) -> bool:
    """Whether the nest's work at different positions of the dims ``over`` meets nowhere in memory, but in sums that are ``joined``."""
    reds = [r for ph in e.phases for r in ph.reds if not any(r is j for j in joined)]
    if any(r.dims & set(over) for r in reds):
        return False
    own = {a.store for a in e.scratch.values()}
    written: dict[Store, tuple[DimLike, dict[int, DimLike]]] = {}
    places = [(r.store, r.place) for ph in e.phases for r in (*ph.before, *ph.roots)] + [r.target for r in reds if r.target is not None]
    for store, place in places:
        if store in own:
            continue
        if any(_is_zero(place[1].get(d, 0)) for d in over) or written.setdefault(store, place) != place:
            return False
    return all(n.places[0] == written[n.access.store] for ph in e.phases for n in ph.nodes if n.access is not None and n.access.store in written)


def _is_zero(stride: DimLike) -> bool:
    return isinstance(stride, int) and stride == 0


def _small(e: Any) -> bool:
    size = dims.product(e.space)
    return isinstance(size, int) and size * units(e.phases) < 2 * GRAIN


def private_rows(e: Any) -> int:
    """How many copies of its row buffers the nest needs: one per thread."""
    if not e.outer_loops or not may_share(e, e.outer_loops[0]):
        return 1
    return int(e.cx.module.threads)


@contextmanager
def shared(e: Any, loop: Loop, low: Index, high: Index, step: int = 1) -> Iterator[tuple[Index, Index]]:
    """The bounds of a part of ``loop``: all of it unless it is the outermost of its nest and may be shared. ``step``: positions that a round takes."""
    first = (e.outer_loops or (e.phases[0].loops if e.phases else []))[:1]
    if not first or first[0] is not loop or not may_share(e, loop):
        yield low, high
        return
    e.spread = True
    inside: DimLike = step
    for d, n in enumerate(e.space):
        if d not in loop.dims:
            inside = inside * n
    kb, rows = e.kb, [a.store for a in e.scratch.values()]
    rounds = kb.div(kb.sub(high, low), step)
    with kb.parallel(rounds, grain(e.cx, units(e.phases), inside), e.cx.module.threads) as (a, b):
        saved = [s.mem for s in rows]
        for s in rows:
            _own_row(e, s)
        yield kb.add(low, kb.mul(a, step)), kb.add(low, kb.mul(b, step))
        for s, mem in zip(rows, saved):
            s.mem = mem


def _own_row(e: Any, store: Store) -> None:
    """The thread's own copy of a row buffer."""
    assert store.block is not None
    kb, size = e.kb, e.row_lanes * e.row_size
    offset = kb.add(e.cx.work.offset(store.block), kb.mul(kb.thread(), kb.dim(size * store.dtype.itemsize)))
    store.mem = kb.view(e.cx.work.mem, offset, store.dtype, kb.dim(size))
