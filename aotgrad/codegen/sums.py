"""The blocks of sums, which let several threads keep the order that ``sum_order.py`` states. Bounds of blocks depend on sizes alone.

Over a contiguous run vector i goes to chain i mod 4 of a block of 128 vectors; the chains of 128 blocks are added block by block, those of such groups group by
group, then as ((0+1)+(2+3)), then lanes by halves. Over rows, blocks of rows start anew and are added one after the other: 128 rows, or fewer long ones. Threads
take blocks; what those leave in memory is joined in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from ..ir import dims
from ..ir.core import Value
from ..ir.dims import DimLike, symbol
from .bufferise import Store
from .exprs import Node
from .kernel import Index, KernelBuilder, as_ktype, register
from .nest import Context, Loop, Phase, Place, Reduction, Root, flat, rank_of, unflat, unflat_all
from .sharing import grain, may_share, units
from .sum_order import BLOCK, starts_anew

__all__ = ["Sums"]

_LONG: Final = 1 << 17
"""Elements of a block of long rows."""

Chains = dict[int, list[Value]]
Open = dict[int, list[Value] | None]


class _Parts:
    """Room in memory for the chains of every block."""

    def __init__(self, e: Sums, ph: Phase, like: Chains, count: DimLike) -> None:
        self.e, self.like, self.stores = e, like, {}
        self.lanes = {i: as_ktype(chains[0].type).lanes for i, chains in like.items()}
        for i, chains in like.items():
            self.stores[i] = e.cx.work.take(ph.reds[i].dtype, count * (len(chains) * self.lanes[i]))
            e.temps.append(self.stores[i])

    def _at(self, i: int, block: Index, chain: int) -> Index:
        return self.e.kb.mul(self.e.kb.add(self.e.kb.mul(block, len(self.like[i])), chain), self.lanes[i])

    def put(self, block: Index, chains: Open) -> None:
        for i, values in chains.items():
            for c, v in enumerate(values or ()):
                self.e.kb.store(v, self.stores[i].mem, self._at(i, block, c))

    def get(self, block: Index) -> Chains:
        return {i: [self.e.kb.load(self.stores[i].mem, self._at(i, block, c), self.lanes[i]) for c in range(len(a))] for i, a in self.like.items()}


class Sums:
    """The part of ``NestEmitter`` that joins sums."""

    cx: Context
    kb: KernelBuilder
    space: Sequence[DimLike]
    phases: list[Phase]
    blocked: bool
    across: bool
    outer_loops: list[Loop]
    temps: list[Store]
    open: list[tuple[Reduction, tuple[Store, Place] | None, tuple[Store, Place, list[int], DimLike]]]
    spread: bool
    run_phase: Callable[[Phase], None]
    _evaluate: Callable[[Phase, int], None]
    _inner: Callable[[Phase, int, Open], Open]
    _clear: Callable[[Loop, Root], None]
    _high: Callable[[Loop], Index]
    _identities: Callable[[Reduction, int], list[Value]]
    _lanes: Callable[[Phase], int]
    _alone: Callable[[Phase], bool]
    _span: Callable[..., Chains]
    _fill: Callable[[Store, Place, Sequence[int], Value], None]
    _add_to: Callable[[tuple[Store, Place], Store, Place, Sequence[int]], None]

    # ---- a run of vectors ---------------------------------------------------------------------------------------------------------

    def _blocks(self, ph: Phase, low: Index, high: Index, lanes: int, accs: Open, fresh: Chains, size: int) -> Open:
        """Runs of ``size`` vectors, each summed from zero on its own and then added."""
        kb = self.kb
        if size < BLOCK:
            return self._merge(ph, accs, self._span(ph, low, high, lanes, fresh), lanes)
        if size > BLOCK and self._alone(ph) and (done := self._shared_sums(ph, high, lanes, fresh)) is not None:
            return done
        if isinstance(low, int) and isinstance(high, int) and high - low <= size * lanes:
            return self._blocks(ph, low, high, lanes, accs, fresh, size // BLOCK)
        started = {i: a or fresh[i] for i, a in accs.items()}
        with kb.for_(low, high, size * lanes, init=flat(started), poll=1 if size > BLOCK and not self.blocked else 0) as lp:
            end = kb.min(high, kb.add(lp.iv, size * lanes))
            made = self._blocks(ph, lp.iv, end, lanes, dict.fromkeys(accs), fresh, size // BLOCK)
            kb.yield_(*flat(self._merge(ph, unflat(started, lp.args), {i: a for i, a in made.items() if a is not None}, lanes)))
        return dict(unflat(started, lp.results))

    def _one_by_one(self, ph: Phase, low: Index, high: Index, lanes: int, accs: Chains, fresh: Chains) -> Open:
        """Rows of one element each: a block is as many of them as of other rows."""
        kb = self.kb
        if not any(starts_anew(ph.reds[i].op) for i in accs):
            return dict(self._span(ph, low, high, lanes, accs, self._alone(ph)))
        with kb.for_(low, high, BLOCK, init=flat(accs), poll=BLOCK) as lp:
            made = self._span(ph, lp.iv, kb.min(high, kb.add(lp.iv, BLOCK)), lanes, fresh)
            kb.yield_(*flat(self._merge(ph, unflat(accs, lp.args), made, lanes)))
        return dict(unflat(accs, lp.results))

    def _shared_sums(self, ph: Phase, high: Index, lanes: int, fresh: Chains) -> Open | None:
        """The only loop of the nest by blocks on several threads, joined as one thread does. None where that cannot be, or does not pay."""
        kb, loop, block = self.kb, ph.loops[0], BLOCK * lanes
        summed = [ph.reds[i] for i in fresh]
        if not may_share(self, loop, summed) or any(r.dtype.kind == "b" for r in summed) or (isinstance(high, int) and high <= block):
            return None
        self.spread, count = True, kb.ceildiv(high, block)
        parts = _Parts(self, ph, fresh, dims.floordiv(loop.size + (block - 1), block))
        with kb.parallel(count, grain(self.cx, units(self.phases), block), self.cx.module.threads) as (a, b), kb.for_(a, b, poll=BLOCK) as lp:
            first = kb.mul(lp.iv, block)
            parts.put(lp.iv, dict(self._span(ph, first, kb.min(high, kb.add(first, block)), lanes, fresh)))
        with kb.for_(0, count, BLOCK, init=flat(fresh)) as groups:
            with kb.for_(groups.iv, kb.min(count, kb.add(groups.iv, BLOCK)), init=flat(fresh)) as lp:
                kb.yield_(*flat(self._merge(ph, unflat(fresh, lp.args), parts.get(lp.iv), lanes)))
            kb.yield_(*flat(self._merge(ph, unflat(fresh, groups.args), unflat_all(fresh, lp.results), lanes)))
        return dict(unflat(fresh, groups.results))

    def _merge(self, ph: Phase, old: Open, new: Chains, lanes: int) -> Open:
        k = self.kb.scalars(lanes)
        out: Open = {}
        for i, values in new.items():
            before = old[i]
            out[i] = values if before is None else [k.combine(ph.reds[i].combine, a, b) for a, b in zip(before, values)]
        return out

    # ---- rows ---------------------------------------------------------------------------------------------------------------------

    def _summed_rows(self, phases: Sequence[Phase], loop: Loop) -> list[Reduction]:
        """Float sums that rounds of the first loop add to memory."""
        return [r for ph in phases for r in ph.reds
                if (r.partial or r.begin == len(ph.loops)) and r.combine == "add" and r.dtype.kind == "f" and set(loop.dims) <= r.dims]

    def _outer_blocks(self, loop: Loop, rounds: Callable[[Index, Index], None]) -> None:
        """The outermost loop around several phases, in blocks where it sums rows."""
        summed = self._summed_rows(self.phases, loop) if loop is self.outer_loops[0] and not self.across and not self.blocked else []
        if not summed or (isinstance(loop.size, int) and loop.size <= BLOCK):
            rounds(loop.low, self._high(loop))
            return

        def around(first: Index, end: Index) -> Open:
            rounds(first, end)
            return {}

        self._in_blocks(self.phases[0], loop, summed, {}, BLOCK, around)

    def _block_of_rows(self, ph: Phase, accs: Open) -> DimLike | None:
        """Rounds of the first loop in a block; None for one block."""
        size = ph.loops[0].size
        block: DimLike = BLOCK
        joined = any(ph.reds[i].start and starts_anew(ph.reds[i].op) for i in accs)
        if self.outer_loops and not joined:
            return None
        if not joined and not self._summed_rows([ph], ph.loops[0]):
            if not accs:
                return None
            inner = dims.product([n for d, n in enumerate(self.space) if d not in ph.loops[0].dims])
            block = dims.maximum(dims.minimum(dims.floordiv(_LONG, dims.maximum(inner, 1)), BLOCK), 1)
        return None if isinstance(size, int) and isinstance(block, int) and size <= block else block

    def _in_blocks(self, ph: Phase, loop: Loop, updated: Sequence[Reduction], full: Chains, rounds: DimLike, around: Callable[[Index, Index], Open]) -> Open:
        """The first loop in blocks of rounds: sums start anew in each and are then added, so that their error does not grow with the rows."""
        kb = self.kb
        lanes, high, block = self._lanes(ph) if full else 1, self._high(loop), kb.dim(rounds)
        homes = [r.target for r in updated]
        zero = [kb.constant(-0.0, register(r.dtype, 1)) for r in updated]
        joined = [*updated, *(ph.reds[i] for i in full)]
        spread = not self.outer_loops and may_share(self, loop, joined) and not any(r.dtype.kind == "b" for r in joined)
        count = kb.div(kb.add(high, kb.sub(block, 1)), block)
        blocks = dims.floordiv(loop.size + (rounds - 1), rounds) if spread else 1
        rows = [self._row_of_sums(r, blocks) for r in updated]

        def one(i: Index, at: DimLike) -> Open:
            for r, (store, (_, own), order, size), z in zip(updated, rows, zero):
                r.target = (store, (at * size, own))
                self._fill(*r.target, order, z)
            first = kb.mul(i, block)
            made = around(first, kb.min(high, kb.add(first, block)))
            for r, home in zip(updated, homes):
                r.target = home
            return made

        def join(at: DimLike, old: Chains, new: Chains) -> None:
            for (store, (_, own), order, size), home in zip(rows, homes):
                assert home is not None
                self._add_to(home, store, (at * size, own), order)
            kb.yield_(*flat(self._merge(ph, {**old}, new, lanes)))

        if not spread:
            with kb.for_(0, count, init=flat(full), poll=2) as lp:
                join(0, unflat_all(full, lp.args), {i: a for i, a in one(lp.iv, 0).items() if a is not None})
            return dict(unflat(full, lp.results))
        self.spread = True
        parts = _Parts(self, ph, full, blocks)
        inside = dims.product([n for d, n in enumerate(self.space) if d not in loop.dims])
        size = kb.max(kb.div(grain(self.cx, units(self.phases), inside), block), 1)
        with ExitStack() as stack:
            a, b = stack.enter_context(kb.parallel(count, size, self.cx.module.threads))
            lp = stack.enter_context(kb.for_(a, b, poll=2))
            parts.put(lp.iv, one(lp.iv, self._named(lp.iv)))
        with kb.for_(0, count, init=flat(full)) as lp:
            join(self._named(lp.iv), unflat_all(full, lp.args), parts.get(lp.iv))
        return dict(unflat(full, lp.results))

    def open_rows(self) -> None:
        """Room for the sums of each block of rows, where the rows come with the blocks of a product, which begin and end anywhere."""
        (ph,) = self.phases
        size = ph.loops[0].size
        if isinstance(size, int) and size <= BLOCK:
            return
        self.open = [(red, red.target, self._row_of_sums(red, dims.floordiv(size + (BLOCK - 1), BLOCK))) for red in self._summed_rows([ph], ph.loops[0])]
        for red, _, (store, place, _, _) in self.open:
            red.target = store, place

    def run_block(self) -> None:
        """The phase of a product's nest on a block of it: the bounds of the loops say which."""
        (ph,), kb = self.phases, self.kb
        if not self.open:
            self.run_phase(ph)
            return
        self._evaluate(ph, 0)
        rows, columns = ph.loops
        low, high = rows.low, self._high(rows)
        with kb.for_(kb.div(low, BLOCK), kb.ceildiv(high, BLOCK)) as lp:
            first, at = kb.mul(lp.iv, BLOCK), self._named(lp.iv)
            rows.low, rows.high = kb.max(low, first), kb.min(high, kb.add(first, BLOCK))
            for red, _, (store, (_, own), _, size) in self.open:
                red.target = store, (at * size, own)
            with kb.if_(kb.cmp("eq", rows.low, first)) as br, br.then():
                for red, _, _ in self.open:
                    assert red.target is not None
                    self._clear(columns, Root(Node("value", frozenset(), val=kb.constant(-0.0, register(red.dtype, 1))), *red.target))
            self._inner(ph, 0, {})
        rows.low, rows.high = low, high

    def join_rows(self) -> None:
        """Adds up what each block of rows gave."""
        kb = self.kb
        with kb.for_(0, kb.ceildiv(kb.dim(self.space[0]), BLOCK), poll=2) as lp:
            at = self._named(lp.iv)
            for _, home, (store, (_, own), order, size) in self.open:
                assert home is not None
                self._add_to(home, store, (at * size, own), order)

    def _named(self, i: Index) -> DimLike:
        """An index as a size, so that positions are written with it."""
        if isinstance(i, int):
            return i
        name = f"_b{len(self.kb.sizes)}"
        self.kb.sizes[name] = i
        return symbol(name)

    def _row_of_sums(self, red: Reduction, blocks: DimLike) -> tuple[Store, Place, list[int], DimLike]:
        """Room for what each of so many blocks adds: buffer, place, dims from outermost, elements of one."""
        assert red.target is not None
        strides = red.target[1][1]
        order = sorted(strides, key=lambda d: (tuple(-x for x in rank_of(strides[d])), d))
        own: dict[int, DimLike] = {}
        size: DimLike = 1
        for d in reversed(order):
            own[d] = size
            size = size * self.space[d]
        store = self.cx.work.take(red.dtype, size * blocks)
        self.temps.append(store)
        return store, (0, own), order, size
