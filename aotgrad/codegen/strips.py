"""Dims that a sum must go through as one where what is read does not lie as one: a matrix and a row.

An outer loop over such dims takes its index apart again, and so do the outermost loops of a deep nest, which are joined: LLVM's time grows fast with depth.
The innermost one goes row by row; a vector that two rows share is put together in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ..ir.core import Value
from ..ir.dims import DimLike, product
from .access import Access
from .bufferise import Store
from .exprs import Node
from .kernel import Index, KernelBuilder
from .nest import Context, Loop, Phase, Place, Reduction, Root, flat, unflat_all
from .sum_order import Pairs

__all__ = ["Strips", "as_one", "shallow"]

Accs = dict[int, list[Value]]


def as_one(loops: Sequence[Loop], ties: Pairs) -> list[Loop]:
    """Loops, those over tied dims joined."""
    out: list[Loop] = []
    for loop in loops:
        if out and (out[-1].dims[-1], loop.dims[0]) in ties:
            loop = _joined(out.pop(), loop)
        out.append(loop)
    return out


def shallow(loops: Sequence[Loop], room: int, reduced: Sequence[frozenset[int]]) -> list[Loop]:
    """At most ``room`` loops where reductions allow: the outermost are joined, which run least often; the innermost stays as it is."""
    out: list[Loop] = []
    over = len(loops) - room
    for loop in loops[:-1]:
        if over > 0 and out and all((out[-1].dims[-1] in r) == (loop.dims[0] in r) for r in reduced):
            loop, over = _joined(out.pop(), loop), over - 1
        out.append(loop)
    return [*out, *loops[-1:]]


def _joined(a: Loop, b: Loop) -> Loop:
    return Loop((*a.dims, *b.dims), a.size * b.size, parts=(*(a.parts or (a,)), *(b.parts or (b,))))


class Strips:
    """The part of ``NestEmitter`` for these loops."""

    cx: Context
    kb: KernelBuilder
    ivs: list[tuple[Loop, Index]]
    temps: list[Store]
    outer_loops: list[Loop]
    _lanes: Callable[[Phase], int]
    _named: Callable[[Index], DimLike]
    _vectors: Callable[..., Accs]
    _rest: Callable[[Phase, Index, Index, int, Accs], Accs]
    _body: Callable[[Phase, Index, int, Value | None, Accs], None]

    def _room_for_held(self, ph: Phase) -> None:
        """Room for a vector of what is summed, one per thread."""
        if not ph.loops or not ph.loops[-1].parts:
            return
        threads = 1 if self.cx.module is None else int(self.cx.module.threads)
        for red in ph.reds:
            red.strip = self.cx.work.take(red.op.operands[0].type.dtype, self._lanes(ph) * threads)
            self.temps.append(red.strip)

    @contextmanager
    def _at(self, loop: Loop, iv: Index) -> Iterator[None]:
        """Inside a round of a loop."""
        found, left = [], iv
        for part in reversed(loop.parts[1:]):
            size = self.kb.dim(part.size)
            found.append((part, self.kb.rem(left, size)))
            left = self.kb.div(left, size)
        found.append((loop.parts[0] if loop.parts else loop, left))
        self.ivs += reversed(found)
        yield
        del self.ivs[-len(found):]

    def _row_by_row(self, ph: Phase, low: Index, high: Index, lanes: int, accs: Accs) -> Accs:
        """A block of a sum over several dims as one: vectors inside of rows, and between them those that hold the end of one row and the start of the next."""
        kb, loop = self.kb, ph.loops[-1]
        *around, inner = loop.parts
        rows = Loop(tuple(d for p in around for d in p.dims), product([p.size for p in around]), parts=tuple(around) if len(around) > 1 else ())
        whole = Phase(ph.nodes, [], ph.roots, ph.reds, [*ph.loops[:-1], inner])
        joint = self._joint(ph, lanes)
        width = kb.dim(inner.size)
        with kb.for_(kb.div(low, width), kb.div(kb.add(high, kb.sub(width, 1)), width), init=flat(accs)) as lp:
            now, first = unflat_all(accs, lp.args), kb.mul(lp.iv, width)
            start, end = kb.max(kb.sub(low, first), 0), kb.min(kb.sub(high, first), width)
            with self._at(rows, lp.iv):
                if lanes > 1:
                    held = kb.rem(kb.sub(kb.add(first, start), low), lanes)
                    head = kb.min(kb.sub(end, start), kb.rem(kb.sub(lanes, held), lanes))
                    now = self._complete(whole, joint, start, head, held, lanes, now)
                    start = kb.add(start, head)
                stop = kb.sub(end, kb.rem(kb.sub(end, start), lanes))
                now = self._vectors(whole, start, stop, lanes, now)
                if lanes > 1:
                    with kb.if_(kb.cmp("gt", end, stop)) as br, br.then():
                        self._keep(whole, stop, kb.sub(end, stop), 0, lanes)
            kb.yield_(*flat(now))
        accs = unflat_all(accs, lp.results)
        rest = kb.rem(kb.sub(high, low), lanes)
        return accs if lanes == 1 or rest == 0 else self._rest(joint, 0, rest, lanes, accs)

    def _complete(self, ph: Phase, joint: Phase, start: Index, count: Index, held: Index, lanes: int, accs: Accs) -> Accs:
        """The first elements of a row complete the vector that holds the last of the row before."""
        kb, types = self.kb, [v.type for v in flat(accs)]
        with kb.if_(kb.cmp("gt", count, 0), types) as br:
            with br.then():
                self._keep(ph, start, count, held, lanes)
                with kb.if_(kb.cmp("eq", kb.add(held, count), lanes), types) as full:
                    with full.then():
                        out = {i: list(a) for i, a in accs.items()}
                        self._body(joint, 0, lanes, None, out)
                        kb.yield_(*flat(out))
                    with full.orelse():
                        kb.yield_(*flat(accs))
                kb.yield_(*full.results)
            with br.orelse():
                kb.yield_(*flat(accs))
        return unflat_all(accs, br.results)

    def _keep(self, ph: Phase, start: Index, count: Index, held: Index, lanes: int) -> None:
        """Elements from ``start`` of a row, behind those that are held."""
        place: Place = (self._named(held) - self._named(start), {ph.loops[-1].dims[-1]: 1})
        stores = [Root(r.node, r.strip, place) for r in ph.reds if r.strip is not None]
        self._body(Phase(ph.nodes, [], [*ph.roots, *stores], [], ph.loops), start, lanes, self.kb.create_mask(count, lanes), {})

    def _joint(self, ph: Phase, lanes: int) -> Phase:
        """The sums of one vector that is held."""
        self._own_strips(ph, lanes)
        dim = ph.loops[-1].dims[-1]
        reds = []
        for r in ph.reds:
            node = Node("load", frozenset((dim,)), access=Access(r.strip, 0, ()), places=[(0, {dim: 1})])
            node.level = len(self.outer_loops) + len(ph.loops)
            reds.append(Reduction(r.op, node, r.combine, r.dtype, r.dims, r.target))
        return Phase([r.node for r in reds], [], [], reds, [*ph.loops[:-1], Loop((dim,), 1)])

    def _own_strips(self, ph: Phase, lanes: int) -> None:
        """The thread's own buffers."""
        kb = self.kb
        if self.cx.module is None or self.cx.module.threads == 1:
            return
        for r in ph.reds:
            assert r.strip is not None and r.strip.block is not None
            size = lanes
            at = kb.add(self.cx.work.offset(r.strip.block), kb.mul(kb.thread(), size * r.strip.dtype.itemsize))
            r.strip.mem = kb.view(self.cx.work.mem, at, r.strip.dtype, size)
