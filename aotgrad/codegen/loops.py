"""Emits one loop nest: order and collapse of dims, phases inside outer loops, vectors in the innermost loop, blocked sums.

The order of sums is that of ``sum_order.py``; unrolled and plain loops keep it (plain ones rotate the chains).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from aotgrad_runtime.dtypes import bool_

from ..ir import opdef
from ..ir.core import Op, Value
from ..ir.dims import DimLike, product, symbol
from .access import Access, Map, identity, map_dims, zero_map
from .bufferise import Store
from .exprs import Graph, Node, Slot, apply, const_of, levels
from .guards import both, guarded, inside
from .kernel import Index, as_ktype, constant_of, register
from .nest import Context, Loop, Phase, Place, Reduction, Root, collapse, flat, rank_of, unflat
from .phases import Phases
from .plan import Item, Nest, size_one, write_map
from .sharing import private_rows, shared
from .spans import STRIP, Line, Spans, far, light
from .strips import Strips, as_one, shallow
from .sum_order import BLOCK, CHAINS, apart, is_run, is_thin, starts_anew, sum_size, ties
from .sums import Sums
from .tiles import Tiles

__all__ = ["NestEmitter", "fill", "one_pass", "scalar_of"]

_DEEP = 6  # loops in each other up to which each dim may have one of its own
_POLL = 1024
"""Rounds of a loop around others between two questions whether to stop."""


class NestEmitter(Sums, Spans, Strips, Tiles):
    """Emits ``nest`` into ``cx.kb``."""

    def __init__(self, cx: Context, nest: Nest) -> None:
        self.cx, self.nest, self.kb = cx, nest, cx.kb
        self.space = nest.space
        self.outer = tuple(d for d in nest.outer or () if self.space[d] != 1)
        self.ivs: list[tuple[Loop, Index]] = []
        self.phases: list[Phase] = []
        self.outer_loops: list[Loop] = []
        self.temps: list[Store] = []
        self.open: list[tuple[Reduction, tuple[Store, Place] | None, tuple[Store, Place, list[int], DimLike]]] = []  # sums on a product's blocks: totals, parts of rows
        self.blocked = False  # runs on one block of a product at a time: reductions join in memory
        self.alone: tuple[int, ...] = ()  # dims that are loops of their own
        self.order: list[int] = []
        self.ordered = next((r for r in nest.reductions if sum_size(r) is not None), None)  # a sum whose order is to be kept
        self.across = False  # lanes are neighbours in the last outer loop, not in the inner ones
        self.wide: tuple[int, Value | None] | None = None  # lanes and mask while that loop is open
        self.scratch: dict[Value, Access] = {}
        self.lane_rows: dict[Store, dict[int, DimLike]] = {}  # row buffers that hold a row per lane, and their strides
        self.row_size: DimLike = 1
        self.row_lanes = 1
        self.whole = False  # was built: may run on several threads
        self.spread = False  # does so, where there is enough work
        self.long = False  # every loop asks whether to stop: one round of the first is long
        self.past: Mapping[Store, int | Line] = {}  # buffers that are written past the cache, and the alignment of what is stored
        self.drains = False  # did so in one of several loops
        self.counts: Mapping[tuple[int, ...], int] = {}  # rounds of loops of open sizes, in a branch for them
        self.free: int | None = None  # the dim of the innermost loop while guards that it moves hold

    # ---- building -----------------------------------------------------------------------------------------------------------------

    def build(self) -> None:
        """Phases, graphs, loops."""
        self.whole = True
        cx, nest = self.cx, self.nest
        graph = Graph(nest, cx.plan, cx.buffers, cx.regs)
        graph.outer_dims = frozenset(self.outer)
        self.split = Phases(nest, graph, self.outer)
        for red in self.split.rows:
            graph.slots[red.result] = (Slot(), frozenset(self.outer))
        self._scratch_rows()
        for p in range(self.split.count):
            graph.phase()
            graph.member = lambda v, p=p: self._appearance(v, p)  # type: ignore[misc]
            self.phases.append(self._phase(graph, p))
        self._loops()

    def _appearance(self, v: Value, p: int) -> str | Access:
        if v not in self.split.evaluated or p in self.split.evaluated[v]:
            return "compute"
        if v in self.scratch:
            return self.scratch[v]
        base, strides = self.cx.buffers.stored(v).at(self.nest.members[v])
        return Access(self.cx.buffers.stored(v).store, base, tuple(strides.get(d, 0) for d in range(len(self.space))))

    def _scratch_rows(self) -> None:
        inner = [d for d in range(len(self.space)) if self.space[d] != 1 and d not in self.outer]
        for v in self.split.buffered:
            size: DimLike = 1
            strides: list[DimLike] = [0] * len(self.space)
            for d in reversed(inner):
                strides[d] = size
                size = size * self.space[d]
            store = Store(None, v.type.dtype, "work")  # gets memory when it is known how many rows it holds
            self.temps.append(store)
            self.scratch[v] = Access(store, 0, tuple(strides))
            self.row_size = size

    def _phase(self, graph: Graph, p: int) -> Phase:
        nest, split, buffers, ph = self.nest, self.split, self.cx.buffers, Phase()
        full = tuple((0, ((d, 1),)) for d in range(len(self.space)))
        for v in reversed(nest.stored):
            if split.home[v] != p:
                continue
            access, m = buffers.stored(v), nest.members[v]
            root = Root(graph.node(v, m), access.store, access.at(m))
            (ph.before if self.outer and map_dims(m) <= set(self.outer) else ph.roots).append(root)
        for v in split.buffered:
            if split.home[v] == p:
                a = self.scratch[v]
                ph.roots.append(Root(graph.node(v, nest.members[v], loose=self.cx.plan.windowed), a.store, a.at(full)))
        for w in nest.writes:
            if split.home[w.result] == p:
                source = w.operands[1]
                access = buffers.written(w)
                ph.roots.append(Root(graph.node(source, identity(source.type.shape)), access.store, access.at(write_map(w)), w.name == "insert_add"))
        for red in reversed(nest.reductions):
            if split.home[red.result] == p:
                ph.reds.append(self._reduction(graph, red))
        ph.nodes = graph.nodes
        return ph

    def _reduction(self, graph: Graph, op: Op) -> Reduction:
        x, v, cx = op.operands[0], op.result, self.cx
        low = opdef.get(op.name).lower
        assert isinstance(low, opdef.Reduce)
        kept = [d for d in range(x.type.rank) if d not in op.attrs["dims"]]
        m: Map = tuple((0, ((d, 1),)) if x.type.shape[d] != 1 else (0, ()) for d in kept)
        dims = frozenset(d for d in op.attrs["dims"] if self.space[d] != 1)
        red = Reduction(op, graph.node(x, identity(x.type.shape)), low.combine, v.type.dtype, dims, None)
        if v in graph.slots:
            red.slot = graph.slots[v][0]
        if size_one(v.type.shape):
            red.result = v
        if v in cx.plan.memory:
            access = cx.buffers.stored(v)
            red.target = (access.store, access.at(m))
        elif red.result is not None and (self.blocked or set(self.outer) & dims):
            temp = cx.work.take(v.type.dtype, 1)
            self.temps.append(temp)
            red.target = (temp, (0, {}))
        return red

    def _loops(self) -> None:
        dims = [d for d, n in enumerate(self.space) if n != 1]
        order = self.order = self._dim_order(dims)
        every = [s for ph in self.phases for s in self._strides(ph)]
        sets = [dims for ph in self.phases for r in ph.reds for dims in apart(r.op)]
        self.outer_loops = as_one(self._make([d for d in order if d in self.outer], every, sets), ties(self.nest.reductions))
        for ph in self.phases:
            loops = self._make([d for d in order if d not in self.outer], self._strides(ph), [s for r in ph.reds for s in apart(r.op)])
            ph.loops = as_one(loops, ties(r.op for r in ph.reds))
            levels(ph.nodes, [lp.dims for lp in (*self.outer_loops, *ph.loops)])
            for red in ph.reds:
                self._place_reduction(red, ph)
        self.across = self._lanes_across(every)
        self._turn()
        self._flatten(sets)
        for ph in self.phases:
            self._room_for_held(ph)
        lanes = self.row_lanes = self._width() if self.across else 1
        for a in self.scratch.values():
            made = self.cx.work.take(a.store.dtype, self.row_size * lanes * private_rows(self))
            a.store.mem, a.store.block = made.mem, made.block
        if self.across and self.scratch:
            self._interleave(lanes)
        self.look_ahead()

    def _turn(self) -> None:
        """A transposed read: the loop it is contiguous in goes inside the vectors, so that each line of cache is used up before the next."""
        ph = self.phases[0]
        if self.blocked or self.outer_loops or len(self.phases) > 1 or ph.reds or len(ph.loops) < 2:
            return
        across, strides = ph.loops[-1].dims[-1], [p[1] for n in ph.nodes if n.kind == "load" for p in n.places]
        turned = [s for s in strides if across in s and s[across] != 1]
        inside = next((lp for lp in ph.loops[:-1] if any(s.get(lp.dims[-1], 0) == 1 for s in turned)), None)
        if inside is not None:
            self.outer_loops, ph.loops, self.across = [lp for lp in ph.loops if lp is not inside], [inside], True
            levels(ph.nodes, [lp.dims for lp in (*self.outer_loops, inside)])

    def _flatten(self, reduced: Sequence[frozenset[int]] = ()) -> None:
        """Makes deep nests shallow."""
        self.outer_loops = shallow(self.outer_loops, max(_DEEP - 2, 2), reduced)
        for ph in self.phases:
            if len(self.outer_loops) + len(ph.loops) > _DEEP:
                ph.loops = shallow(ph.loops, max(_DEEP - len(self.outer_loops), 2), reduced)
            levels(ph.nodes, [lp.dims for lp in (*self.outer_loops, *ph.loops)])
            for red in ph.reds:
                self._place_reduction(red, ph)

    def _lanes_across(self, strides: Sequence[dict[int, DimLike]]) -> bool:
        """Whether more accesses are contiguous in the last outer loop than inside (a softmax over the first dim); one element a row does not count."""
        if not self.outer_loops or any(set(self.outer_loops[-1].dims) & r.dims for ph in self.phases for r in ph.reds):
            return False
        if self.ordered is not None:
            return not is_run(self.ordered.operands[0].type, self.ordered.attrs["dims"]) and not is_thin(self.ordered)
        last = self.outer_loops[-1].dims[-1]
        inner = {ph.loops[-1].dims[-1] for ph in self.phases if ph.loops}
        moved = {d for ph in self.phases for lp in ph.loops for d in lp.dims}
        units = [{d for d, s in st.items() if isinstance(s, int) and s == 1} for st in strides if any(d in moved and s != 0 for d, s in st.items())]
        return sum(last in u for u in units) > sum(bool(u & inner) for u in units)

    def _interleave(self, lanes: int) -> None:
        """Row buffers hold one row per lane, whatever the round of the outer loop is."""
        last = self.outer_loops[-1].dims[-1]
        for a in self.scratch.values():
            self.lane_rows[a.store] = {**{d: s * lanes for d, s in enumerate(a.strides) if not (isinstance(s, int) and s == 0)}, last: 1}
        for ph in self.phases:
            for n in ph.nodes:
                if n.access is not None and n.access.store in self.lane_rows:
                    n.dims = n.dims | {last}

    def _bind_rows(self, iv: Index) -> None:
        """Positions in row buffers do not move with the outer loop: its round is taken off again. The name is new each time, as positions are remembered."""
        name = f"_v{len(self.kb.sizes)}"
        self.kb.sizes[name] = self.kb.index(iv)
        for ph in self.phases:
            for n in ph.nodes:
                if n.access is not None and n.access.store in self.lane_rows:
                    n.places = [(-symbol(name), self.lane_rows[n.access.store])]
            for r in ph.roots:
                if r.store in self.lane_rows:
                    r.place = (-symbol(name), self.lane_rows[r.store])

    def _width(self) -> int:
        """Lanes when they lie across the last outer loop."""
        lanes = int(self.cx.target.vector_bits) // (8 * max(4, *(self._itemsize(ph, None) for ph in self.phases)))
        size = self.outer_loops[-1].size
        while isinstance(size, int) and lanes > 1 and lanes // 2 >= size:
            lanes //= 2
        return lanes

    def _make(self, order: Sequence[int], strides: Sequence[dict[int, DimLike]], reduced: Sequence[frozenset[int]]) -> list[Loop]:
        return collapse(order, self.space, strides, [*reduced, *(frozenset((d,)) for d in self.alone)])

    def _place_reduction(self, red: Reduction, ph: Phase) -> None:
        red.begin = len(ph.loops)
        while red.begin and set(ph.loops[red.begin - 1].dims) <= red.dims:
            red.begin -= 1
        alone = sum_size(red.op) is not None and red.begin < len(ph.loops)  # a group is one loop
        red.start = len(ph.loops) - 1 if alone else red.begin
        outside = {d for lp in ph.loops[:red.begin] for d in lp.dims} | set(self.outer)
        red.partial = self.blocked or bool(outside & red.dims)

    def _strides(self, ph: Phase) -> list[dict[int, DimLike]]:
        out = [p[1] for n in ph.nodes for p in n.places]
        out += [r.place[1] for r in (*ph.before, *ph.roots)]
        return out + [r.target[1][1] for r in ph.reds if r.target is not None]

    def _dim_order(self, dims: Sequence[int]) -> list[int]:
        if self.ordered is not None:
            return [d for d in self.ordered.operands[0].type.order if d in dims]
        roots = [r.place[1] for ph in self.phases for r in ph.roots]
        loads = [p[1] for ph in self.phases for n in ph.nodes if n.kind == "load" for p in n.places]
        best = max(roots, key=len, default={})
        if len(best) < len(dims):
            best = max([*roots, *loads], key=len, default={})
        return sorted(dims, key=lambda d: (d in best, tuple(-x for x in rank_of(best.get(d, 0))), d))

    # ---- emission -----------------------------------------------------------------------------------------------------------------

    def emit(self) -> None:
        """Writes the loops."""
        self.prepare()
        for ph in self.phases:
            self._evaluate(ph, 0)
        self._nest()
        self.finish()
        assert 0 in self.space or all(r.written for ph in self.phases for r in (*ph.before, *ph.roots)), "a value of the nest is not stored"

    def _only_elements(self) -> bool:
        """Whether the nest is several loops without reductions."""
        ph = self.phases[0]
        return len(self.phases) == 1 and len(ph.loops) > 1 and not ph.reds and not self.outer_loops and not self.blocked

    def _nest(self) -> None:
        """The loops. Where sums of rows of unknown length are made, twice: for long ones all loops ask whether to stop, for others the first alone."""
        kb, first = self.kb, [*self.outer_loops, *self.phases[0].loops][:1]
        inside = product([n for d, n in enumerate(self.space) if first and d not in first[0].dims])
        several = any(len(self.outer_loops) + len(ph.loops) > 1 for ph in self.phases) and not self._only_elements()
        in_registers = any(r.result is not None for ph in self.phases for r in ph.reds)
        if isinstance(inside, int) or not several or in_registers or self.outer_loops:
            self.long = several and (not isinstance(inside, int) or inside > STRIP)
            self._outer(0)
            return
        with kb.if_(kb.cmp("le", kb.dim(inside), STRIP)) as br:
            for side, self.long in ((br.then, False), (br.orelse, True)):
                held = len(self.temps)
                with side():
                    self._outer(0)
                for temp in self.temps[held:]:  # the other one may have it
                    self.cx.work.give_back(temp)
                del self.temps[held:]
                for n in (n for ph in self.phases for n in ph.nodes if n.level):
                    n.val = None  # the registers of these loops

    def prepare(self) -> None:
        """Starts the reductions that are updated in memory."""
        for ph in self.phases:
            for red in ph.reds:
                if red.partial or red.begin == len(ph.loops) and ph.loops:
                    self._initialise(red)

    def finish(self) -> None:
        """Reads what was reduced to one element in memory; frees temporaries."""
        for ph in self.phases:
            for red in ph.reds:
                if red.result is not None and red.result not in self.cx.regs:
                    assert red.target is not None
                    store, place = red.target
                    self.cx.regs[red.result] = self.kb.load(store.mem, self.kb.dim(place[0]))
        for temp in self.temps:
            self.cx.work.give_back(temp)

    def stores(self) -> list[Store]:
        """Every buffer that the loops touch."""
        out: dict[Store, None] = {}
        for ph in self.phases:
            out.update((n.access.store, None) for n in ph.nodes if n.access is not None)
            out.update((r.store, None) for r in (*ph.before, *ph.roots))
            out.update((r.target[0], None) for r in ph.reds if r.target is not None)
        return list(out)

    def places(self) -> list[Place]:
        """Every position expression of the loops."""
        out: list[Place] = []
        for ph in self.phases:
            out += [p for n in ph.nodes for p in n.places]
            out += [r.place for r in (*ph.before, *ph.roots)]
            out += [r.target[1] for r in ph.reds if r.target is not None]
        return out

    def _initialise(self, red: Reduction) -> None:
        assert red.target is not None, f"{red.op} needs memory"
        store, (base, strides) = red.target
        dims = sorted(strides, key=lambda d: (tuple(-x for x in rank_of(strides[d])), d))
        k = self.kb.scalars(1)
        fill(self.cx, store, (base, strides), self.space, dims, k.const(k.identity(red.combine, red.dtype), red.dtype))

    def begin(self, ph: Phase) -> None:
        """Computes what no loop of a phase changes."""
        self._evaluate(ph, 0)

    def run_phase(self, ph: Phase) -> None:
        """Emits a phase without outer loops, or what is left of it once begun."""
        self.phases = [ph]
        self._evaluate(ph, 0)
        self._inner(ph, 0, {})

    def _outer(self, level: int) -> None:
        if level == len(self.outer_loops):
            self._phases_here(level)
            return
        loop = self.outer_loops[level]
        if self.across and level + 1 == len(self.outer_loops):
            self._outer_lanes(loop)
            return
        self._outer_blocks(loop, lambda low, high: self._outer_rounds(level, low, high))

    def _outer_rounds(self, level: int, low: Index, high: Index) -> None:
        loop = self.outer_loops[level]
        poll = _POLL if self.long or not level else 0
        with shared(self, loop, low, high) as (low, high):
            with self.kb.for_(low, high, poll=poll) as lp, self._at(loop, lp.iv):
                if level + 1 < len(self.outer_loops):
                    for ph in self.phases:
                        self._evaluate(ph, level + 1)
                self._outer(level + 1)
            if self.drains and not level:
                self.kb.drain()

    def _outer_lanes(self, loop: Loop) -> None:
        """The last outer loop by vectors, each running all phases; then a masked rest."""
        kb, lanes, high = self.kb, self._width(), self._high(loop)
        if reads := self.turned():
            self.tiles(loop, reads, _POLL if self.long or len(self.outer_loops) == 1 else 0)
            return
        rest = kb.rem(high, lanes)
        end, low = kb.sub(high, rest), self.kb.dim(0)
        if self.ordered is not None and not self.scratch and all(light(ph.nodes) for ph in self.phases):  # a lane adds one after the other: several registers
            low = self._lane_rounds(loop, 0, kb.sub(high, kb.rem(high, CHAINS * lanes)), CHAINS * lanes)
        self._lane_rounds(loop, low, end, lanes)
        if isinstance(rest, int) and rest == 0:
            return
        mask = kb.create_mask(rest, lanes) if lanes > 1 else None
        with kb.if_(kb.cmp("gt", rest, 0)) as br, br.then():
            self._lanes_here(loop, end, lanes, mask)

    def _lane_rounds(self, loop: Loop, low: Index, high: Index, lanes: int) -> Index:
        """Whole vectors of the last outer loop."""
        poll = _POLL if self.long or len(self.outer_loops) == 1 else 0
        with shared(self, loop, low, high, lanes) as (a, b), self.kb.for_(a, b, lanes, poll=poll) as lp:
            self._lanes_here(loop, lp.iv, lanes, None)
        return high

    def _lanes_here(self, loop: Loop, iv: Index, lanes: int, mask: Value | None) -> None:
        if self.lane_rows:
            self._bind_rows(iv)
        for ph in self.phases:
            for n in ph.nodes:
                n.val = None if n.level >= len(self.outer_loops) else n.val
        self.ivs.append((loop, iv))
        self.wide = (lanes, mask)
        self._phases_here(len(self.outer_loops))
        self.wide = None
        self.ivs.pop()

    def _store_before(self, ph: Phase) -> None:
        """What is stored once for each round of the outer loops."""
        for root in ph.before:
            self._store(root, self._value(root.node, {}), *(self.wide or (1, None)))

    def _phases_here(self, level: int) -> None:
        for ph in self.phases:
            if level:
                self._evaluate(ph, level)
            self._store_before(ph)
            if ph.roots or ph.reds:
                self._inner(ph, 0, {})

    def _high(self, loop: Loop) -> Index:
        return self.kb.dim(loop.size) if loop.high is None else loop.high

    def _evaluate(self, ph: Phase, level: int) -> None:
        """Computes what varies with the loops opened so far and no others."""
        if ph.loops and level == len(self.outer_loops) + len(ph.loops):
            return
        for n in ph.nodes:
            if n.level == level and n.val is None and n.kind != "slot":
                n.val = self._compute(n, {}, *(self.wide or (1, None)))

    def _inner(self, ph: Phase, li: int, accs: dict[int, list[Value] | None]) -> dict[int, list[Value] | None]:
        if li:
            self._evaluate(ph, len(self.outer_loops) + li)
        if not ph.loops:
            self._straight(ph)
            return accs
        begun = [i for i, r in enumerate(ph.reds) if r.begin == li]
        joined = {i: a for i, a in accs.items() if ph.reds[i].start == li}
        accs = {**accs, **dict.fromkeys((*begun, *joined))}
        if li == len(ph.loops) - 1:
            accs = self._innermost(ph, accs)
        else:
            lanes, loop = self._lanes(ph), ph.loops[li]
            full = {i: a or self._identities(ph.reds[i], lanes, li < ph.reds[i].start) for i, a in accs.items()}
            if not li and not self.blocked and (block := self._block_of_rows(ph, accs)) is not None:
                accs = self._in_blocks(ph, loop, self._summed_rows([ph], loop), full, block, lambda low, high: self._around(ph, 0, low, high, full))
            else:
                accs = self._around(ph, li, loop.low, self._high(loop), full)
        accs = {**accs, **{i: self._merge(ph, joined, {i: [self._total(ph.reds[i], accs[i])]}, 1)[i] for i in joined}}
        for i in begun:
            self._deliver(ph.reds[i], self._total(ph.reds[i], accs.pop(i)))
        return accs

    def _around(self, ph: Phase, li: int, low: Index, high: Index, full: dict[int, list[Value]]) -> dict[int, list[Value] | None]:
        """Loop ``li`` with what is inside it."""
        loop = ph.loops[li]
        poll = _POLL if self.long or not (li or self.outer_loops) else 0
        with shared(self, loop, low, high) as (a, b):
            with self._in_tiles(ph, li), self.kb.for_(a, b, init=flat(full), poll=poll) as lp:
                with self._at(loop, lp.iv):
                    inner = self._inner(ph, li + 1, unflat(full, lp.args))
                self.kb.yield_(*flat({i: inner[i] for i in full}))
            if self.drains and not li and not self.outer_loops:
                self.kb.drain()
        return dict(unflat(full, lp.results))

    @contextmanager
    def _in_tiles(self, ph: Phase, li: int) -> Iterator[None]:
        """Around two loops that only compute elements: parts of the inner one, so that none of its runs is too long to stop between them."""
        inner, kb = ph.loops[-1], self.kb
        if li or len(ph.loops) > 2 or not self._only_elements() or not far(inner.low, self._high(inner)):
            yield
            return
        low, high, end = inner.low, inner.high, self._high(inner)
        with kb.for_(low, end, STRIP, poll=1) as part:
            inner.low, inner.high = part.iv, kb.min(end, kb.add(part.iv, STRIP))
            yield
        inner.low, inner.high = low, high

    def _fill(self, store: Store, place: Place, dims: Sequence[int], value: Value) -> None:
        fill(self.cx, store, place, self.space, dims, value)

    def _clear(self, columns: Loop, root: Root) -> None:
        """Writes one number to the columns of a block of a product."""
        e = NestEmitter(self.cx, Nest(-1, 0, tuple(self.space)))
        e.kb, e.blocked = self.kb, True
        e.run_phase(Phase(roots=[root], loops=[replace(columns)]))

    def _add_to(self, home: tuple[Store, Place], store: Store, place: Place, dims: Sequence[int]) -> None:
        node = Node("load", frozenset(place[1]), access=Access(store, 0, ()), places=[place])
        one_pass(self.cx, [node], [Root(node, *home, add=True)], self.space, dims)

    def _straight(self, ph: Phase) -> None:
        for root in ph.roots:
            self._store(root, self._value(root.node, {}), *(self.wide or (1, None)))
        for red in ph.reds:
            self._deliver(red, self._value(red.node, {}))

    # ---- the innermost loop ---------------------------------------------------------------------------------------------------------

    def _itemsize(self, ph: Phase, inner: set[int] | None) -> int:
        """Bytes of the widest element that a phase handles (with ``inner``: in those dims)."""
        sizes = [4]
        for n in ph.nodes:
            if inner is None or n.dims & inner or n.kind == "ew":
                t = n.access.store.dtype if n.access is not None else n.op.result.type.dtype if n.op is not None else bool_
                sizes.append(t.itemsize if t is not bool_ else 1)
        return max([*sizes, *(r.store.dtype.itemsize for r in (*ph.roots, *ph.before)), *(r.dtype.itemsize for r in ph.reds)])

    def _lanes(self, ph: Phase) -> int:
        """Step of the innermost loop: elements of a register, of the sums' dtype where there are any, so that wider values beside a sum do not change its order."""
        if self.across:
            return 1
        loop = ph.loops[-1]
        summed = next((size for r in ph.reds if (size := sum_size(r.op)) is not None), None)
        lanes = int(self.cx.target.vector_bits) // (8 * (summed or self._itemsize(ph, set(loop.dims))))
        if isinstance(loop.size, int):
            while lanes > 1 and lanes // 2 >= loop.size:
                lanes //= 2
        return max(lanes, 1)

    def lanes(self) -> list[int]:
        """Lanes of each phase that has loops."""
        return [self._width() if self.across else self._lanes(ph) for ph in self.phases if ph.loops]

    def _identities(self, red: Reduction, lanes: int, one: bool = False) -> list[Value]:
        """What chains start from; ``one``: the one number that runs are joined in."""
        lanes, k = self.wide[0] if self.wide else lanes, self.kb.scalars()
        start = -0.0 if red.combine == "add" and red.dtype.kind == "f" else k.identity(red.combine, red.dtype)
        if one or is_thin(red.op):
            return [self.kb.constant(start, register(red.dtype, 1))]
        return [self.kb.constant(start, register(red.dtype, lanes))] * (1 if self.wide and sum_size(red.op) is not None else CHAINS)

    def _innermost(self, ph: Phase, accs: dict[int, list[Value] | None]) -> dict[int, list[Value] | None]:
        loop, lanes = ph.loops[-1], self._lanes(ph)
        low, high = loop.low, self._high(loop)
        if not accs:
            self._span(ph, low, high, lanes, {}, self.long or self._alone(ph))
            return accs
        fresh = {i: self._identities(ph.reds[i], lanes) for i in accs}
        summed = any(ph.reds[i].combine in ("add", "mul") and ph.reds[i].dtype.kind == "f" for i in accs)
        if not summed:
            if self._alone(ph) and (done := self._shared_sums(ph, high, lanes, fresh)) is not None:
                return done
            return self._merge(ph, accs, self._span(ph, low, high, lanes, fresh, self.long or self._alone(ph)), lanes)
        if any(is_thin(ph.reds[i].op) for i in accs):
            return self._one_by_one(ph, low, high, lanes, {i: a or fresh[i] for i, a in accs.items()}, fresh)
        size = BLOCK * BLOCK if not self.across else BLOCK if any(starts_anew(ph.reds[i].op) for i in accs) else 1
        return self._blocks(ph, low, high, lanes, accs, fresh, size)

    def _alone(self, ph: Phase) -> bool:
        """Whether the innermost loop is the only one, and so has to ask whether to stop."""
        return len(ph.loops) == 1 and not self.outer_loops and not self.blocked

    def _inside(self, n: Node, lanes: int) -> Value:
        """The value of a guard: its ranges that are not known to hold."""
        asked = [(p, size) for p, (size, _) in zip(n.places[::2], n.places[1::2]) if self.free is None or self.free not in p[1]]
        return inside(self.kb, [self._positions(p, lanes) for p, _ in asked], [self.kb.dim(size) for _, size in asked])

    def _body(self, ph: Phase, iv: Index, lanes: int, mask: Value | None, accs: dict[int, list[Value]]) -> None:
        """One vector of every node; stores; one step of each chain (``accs`` is changed: its chains rotate)."""
        select = self.wide is None
        lanes, mask = self.wide or (lanes, mask)
        self.ivs.append((ph.loops[-1], iv))
        env: dict[Node, Value] = {}
        vector = len(self.outer_loops) + len(ph.loops)
        for n in ph.nodes:
            if n.level == vector and n.kind != "slot":
                env[n] = self._compute(n, env, lanes, mask)
        for root in ph.roots:
            self._store(root, self._value(root.node, env), lanes, mask)
        for store, place in ph.ahead:
            self.kb.prefetch(store.mem, self.position(place))
        k = self.kb.scalars(lanes)
        for i, red in enumerate(ph.reds):
            x = k.vector(self._value(red.node, env))
            if i not in accs:
                self._update(red, x, lanes, mask)
                continue
            chains = accs[i]
            if mask is not None and select:
                x = k.select(mask, x, k.vector(self._identities(red, lanes)[0]))
            if lanes > 1 and select and is_thin(red.op):
                for lane in range(lanes):
                    chains = [k.combine(red.combine, chains[0], self.kb.extract(x, lane))]
                accs[i] = chains
                continue
            accs[i] = [*chains[1:], k.combine(red.combine, chains[0], x)]
        self.ivs.pop()

    # ---- values -----------------------------------------------------------------------------------------------------------------

    def scalar_nodes(self, nodes: Sequence[Node]) -> None:
        """Computes nodes outside all loops; loads from inputs are shared in the block."""
        known = self.cx.loaded
        for n in nodes:
            if n.kind != "load" or n.guard is not None:
                n.val = self._compute(n, {}, 1, None)
                continue
            assert n.access is not None
            key = (n.access.store, n.places[0][0])
            n.val = known.get(key) or self._compute(n, {}, 1, None)
            if n.access.store.what == "in":
                known[key] = n.val

    def value(self, n: Node) -> Value:
        """The register of a computed node."""
        return self._value(n, {})

    def _value(self, n: Node, env: dict[Node, Value]) -> Value:
        if n.kind == "slot":
            assert n.slot is not None
            return n.slot.value  # type: ignore[no-any-return]
        found = env.get(n)
        return n.val if found is None else found

    def _compute(self, n: Node, env: dict[Node, Value], lanes: int, mask: Value | None) -> Value:
        if n.kind == "const":
            assert n.op is not None
            return const_of(n.op, self.kb)
        if n.fn is not None:
            return n.fn(self.kb.scalars(lanes), *(self._value(a, env) for a in n.args))  # type: ignore[no-any-return]
        if n.kind == "ew":
            assert n.op is not None
            return apply(self.kb, lanes, n.op, [self._value(a, env) for a in n.args])
        if n.kind == "load":
            assert n.access is not None
            if n.guard is not None:
                return self._load_inside(self._value(n.guard, env), n.access.store, n.places[0], lanes, mask)
            return self._load(n.access.store, n.places[0], lanes, mask)
        if n.kind == "guard":
            return self._inside(n, lanes)
        assert n.op is not None
        low = opdef.get(n.op.name).lower
        assert isinstance(low, opdef.Index)
        k = self.kb.scalars(lanes)
        return low.fn(k, n.op, [self._positions(p, lanes) for p in n.places])  # type: ignore[no-any-return]

    def position(self, place: Place) -> Index:
        """Element offset at the current round of the open loops."""
        kb, (base, strides) = self.kb, place
        at = kb.dim(base)
        for loop, iv in self.ivs:
            stride = strides.get(loop.dims[-1], 0)
            at = kb.add(at, kb.mul(iv, kb.dim(stride)))
        return at

    def _inner_stride(self, place: Place) -> DimLike:
        """Stride from lane to lane."""
        if self.wide:
            return place[1].get(self.outer_loops[-1].dims[-1], 0)
        return place[1].get(self.ivs[-1][0].dims[-1], 0) if self.ivs else 0

    def _positions(self, place: Place, lanes: int) -> Index:
        """The position in every lane (an int or index where lanes do not differ)."""
        at = self.position(place)
        if lanes == 1:
            return at
        stride = self._inner_stride(place)
        if isinstance(stride, int) and stride == 0:
            return at
        if isinstance(stride, int) and stride == 1:
            return self.kb.iota(at, lanes)
        kb, t = self.kb, register(None, lanes)
        steps = kb.pure("arith.muli", (kb.iota(0, lanes), kb.broadcast(kb.index(kb.dim(stride)), lanes)), t)
        return kb.pure("arith.addi", (kb.broadcast(kb.index(at), lanes), steps), t)

    def _load(self, store: Store, place: Place, lanes: int, mask: Value | None) -> Value:
        stride = self._inner_stride(place)
        if lanes == 1 or (isinstance(stride, int) and stride == 0):
            return self.kb.load(store.mem, self.position(place))
        if isinstance(stride, int) and stride == 1:
            return self.kb.load(store.mem, self.position(place), lanes, mask)
        at = self._positions(place, lanes)
        assert not isinstance(at, int)
        return self.kb.gather(store.mem, at, mask)

    def _load_inside(self, guard: Value, store: Store, place: Place, lanes: int, mask: Value | None) -> Value:
        """A load only where the guard holds."""
        if constant_of(guard) is True:
            return self._load(store, place, lanes, mask)
        if as_ktype(guard.type).lanes == 1 and (lanes == 1 or self._uniform(place)):
            return guarded(self.kb, guard, lambda: self._load(store, place, lanes, mask), register(store.dtype))
        stride, on = self._inner_stride(place), self.kb.broadcast(both(self.kb, guard, mask), lanes)
        if isinstance(stride, int) and stride in (0, 1):  # a stride of 0 from lane to lane comes with loops over no elements only
            return self.kb.load(store.mem, self.position(place), lanes, on)
        return self._load(store, place, lanes, on)

    def _uniform(self, place: Place) -> bool:
        stride = self._inner_stride(place)
        return isinstance(stride, int) and stride == 0

    def _put(self, value: Value, store: Store, place: Place, lanes: int, mask: Value | None) -> None:
        value = self.kb.scalars(lanes).vector(value)
        stride = self._inner_stride(place)
        if lanes == 1 or (isinstance(stride, int) and stride == 1):
            past = self.past.get(store, 0)
            if isinstance(past, Line):
                past.put(self.kb, value, self.position(place))
            else:
                self.kb.store(value, store.mem, self.position(place), mask, past)
            return
        at = self._positions(place, lanes)
        if isinstance(at, int) or as_ktype(at.type).lanes == 1:
            # Only in a loop over no elements, whose strides are all 0.
            self.kb.store(self.kb.extract(value, 0), store.mem, at)
            return
        self.kb.scatter(value, store.mem, at, mask)

    def _store(self, root: Root, value: Value, lanes: int, mask: Value | None) -> None:
        root.written = True
        if root.add:
            k = self.kb.scalars(lanes)
            value = k.add(self._load(root.store, root.place, lanes, mask), k.vector(value))
        self._put(value, root.store, root.place, lanes, mask)

    # ---- ends of reductions -----------------------------------------------------------------------------------------------------

    def _update(self, red: Reduction, x: Value, lanes: int, mask: Value | None) -> None:
        """Combines into memory."""
        assert red.target is not None
        store, place = red.target
        k = self.kb.scalars(lanes)
        self._put(k.combine(red.combine, self._load(store, place, lanes, mask), x), store, place, lanes, mask)

    def _total(self, red: Reduction, chains: list[Value] | None) -> Value:
        """Chains and their lanes as one number."""
        assert chains is not None
        k = self.kb.scalars(self.wide[0] if self.wide else 1)
        while len(chains) > 1:
            chains = [k.combine(red.combine, a, b) for a, b in zip(chains[::2], chains[1::2])]
        (x,) = chains
        if not self.wide:
            x = k.reduce(red.combine, x)
        if red.combine == "add" and red.dtype.kind == "f":
            x = k.add(x, k.const(0.0, x))  # an empty sum is 0, not the -0 that chains start from
        return x

    def _deliver(self, red: Reduction, x: Value) -> None:
        if red.partial:
            self._update(red, x, *(self.wide or (1, None)))
            return
        if red.slot is not None:
            red.slot.value = x
        if red.result is not None and not self.outer_loops:
            self.cx.regs[red.result] = x
        if red.target is not None:
            self._put(x, *red.target, *(self.wide or (1, None)))


def one_pass(cx: Context, nodes: Sequence[Node], roots: Sequence[Root], space: Sequence[DimLike], dims: Sequence[int]) -> None:
    """One loop nest over ``dims`` that computes nodes and writes roots."""
    e = NestEmitter(cx, Nest(-1, 0, tuple(space)))
    ph = Phase(nodes=list(nodes), roots=list(roots))
    ph.loops = collapse(dims, space, [p[1] for n in nodes for p in n.places] + [r.place[1] for r in roots], [])
    levels(ph.nodes, [lp.dims for lp in ph.loops])
    e.phases = [ph]
    e._turn()
    e._flatten()
    if not e.outer_loops:
        e.run_phase(ph)
        return
    e._evaluate(ph, 0)
    e._outer(0)


def fill(cx: Context, store: Store, place: Place, space: Sequence[DimLike], dims: Sequence[int], value: Value) -> None:
    """Writes one number to every element of a part of a buffer."""
    one_pass(cx, [], [Root(Node("value", frozenset(), val=value), store, place)], space, dims)


def scalar_of(cx: Context, item: Item, v: Value) -> Value:
    """An operand of size 1 as a register, outside loops."""
    graph = Graph(item, cx.plan, cx.buffers, cx.regs)
    node = graph.node(v, zero_map(v.type.rank))
    emitter = NestEmitter(cx, Nest(-1, 0, ()))
    emitter.scalar_nodes(graph.nodes)
    return emitter.value(node)
