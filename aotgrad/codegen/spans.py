"""The innermost loop of a nest: whole vectors, in strips where it is long, and what is left over; what the next row will read is asked for meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial

from ..ir.core import Value
from ..ir.dims import DimLike, product
from .bufferise import Store
from .exprs import Node, heavy
from .guards import edges
from .kernel import Index, KernelBuilder, as_ktype
from .nest import Context, Loop, Phase, Place, flat, unflat
from .sharing import shared
from .sum_order import CHAINS

__all__ = ["STRIP", "Line", "Spans", "far", "light"]

_LIGHT = 12
_PAST = 16 << 20  # bytes of a result from which it is written past the cache
_PART = 16  # bytes that NumPy aligns arrays to
_WORK, _WORK_FOR_ONE, _FUNCTION = 48, 32, 16  # of loops that are written again for that; none with a function for one result alone
_AHEAD = 2048  # bytes
_LINE = 64  # bytes that leave the processor together
_ROWS = 4  # arrays whose next rows are asked for
STRIP = 1 << 16


def far(low: Index, high: Index) -> bool:
    """Whether a run may be longer than one strip."""
    return not (isinstance(low, int) and isinstance(high, int) and high - low <= STRIP)


def light(nodes: Sequence[Node]) -> bool:
    """Whether several vectors of nodes stay in registers."""
    return heavy(nodes) <= _LIGHT


def _is(x: DimLike, number: int) -> bool:
    return isinstance(x, int) and x == number


class Line:
    """A result at ``place`` that is written past the cache in whole lines, wherever it begins: each is the end of one vector and the beginning of the next."""

    def __init__(self, store: Store, place: Place) -> None:
        self.store, self.place = store, place
        self.last: Value | None = None  # the vector before; none yet: one is stored as it is
        self.back: Index = 0
        self.ids: Value | None = None

    def begin(self, kb: KernelBuilder, at: Index, lanes: int) -> None:
        """``at``: where the first vector goes."""
        size = self.store.dtype.itemsize
        self.last, self.back = None, kb.div(kb.rem(kb.address(self.store.mem, at), _LINE), size)
        self.ids = kb.lanes_from(kb.sub(lanes, self.back), lanes, size)

    def put(self, kb: KernelBuilder, value: Value, at: Index) -> None:
        """The vector that goes to ``at``."""
        if self.last is None:
            kb.store(value, self.store.mem, at, past=_PART)
        else:
            assert self.ids is not None
            kb.store(kb.join(self.last, value, self.ids), self.store.mem, kb.sub(at, self.back), past=_LINE)
        self.last = value


class Spans:
    """The part of ``NestEmitter`` that emits it."""

    cx: Context
    kb: KernelBuilder
    space: Sequence[DimLike]
    phases: list[Phase]
    outer_loops: list[Loop]
    ivs: list[tuple[Loop, Index]]
    wide: tuple[int, Value | None] | None
    long: bool
    free: int | None
    _body: Callable[[Phase, Index, int, Value | None, dict[int, list[Value]]], None]
    _row_by_row: Callable[[Phase, Index, Index, int, dict[int, list[Value]]], dict[int, list[Value]]]
    position: Callable[[Place], Index]
    across: bool
    blocked: bool
    past: Mapping[Store, int | Line]
    drains: bool

    def look_ahead(self) -> None:
        """Rows go through several phases, of which the first waits for memory: the busiest of the others asks for what the next row will read."""
        if not self.outer_loops or self.across or len(self.phases) < 2 or any(len(ph.loops) != 1 for ph in self.phases):
            return
        row, outer = self.phases[0].loops[0], self.outer_loops[-1].dims[-1]
        busy = max(reversed([ph for ph in self.phases[1:] if ph.loops[0].dims == row.dims]), key=lambda ph: heavy(ph.nodes), default=None)
        found: dict[Store, Place] = {}
        for n in (n for ph in self.phases for n in ph.nodes if n.kind == "load" and n.guard is None and n.access is not None):
            base, strides = n.places[0]
            step = strides.get(outer, 0)
            if not _is(step, 0) and _is(strides.get(row.dims[-1], 0), 1) and n.access is not None:
                found.setdefault(n.access.store, (base + step, strides))
        if busy is not None and len(found) <= _ROWS:
            busy.ahead = list(found.items())

    def _rounds(self, low: Index, high: Index, step: int, accs: dict[int, list[Value]], body: Callable[[Index, dict[int, list[Value]]], None],
                strips: bool = False) -> dict[int, list[Value]]:
        """The innermost loop. In ``strips`` it asks from time to time whether to stop; short ones never do."""
        alone = strips and not accs and not self.long
        with shared(self, self.phases[0].loops[0], low, high, step) if alone else nullcontext((low, high)) as (low, high):
            lines = [p for p in self.past.values() if isinstance(p, Line)]
            make = partial(self._in_lines, lines) if lines else self._in_strips
            out = make(low, high, step, accs, body, strips)
            if self.past and not self.outer_loops and len(self.phases[0].loops) == 1:
                self.kb.drain()
        return out

    def _in_lines(self, lines: Sequence[Line], low: Index, high: Index, step: int, accs: dict[int, list[Value]], body: Callable[[Index, dict[int, list[Value]]], None],
                  strips: bool) -> dict[int, list[Value]]:
        """At least one round: its first vector is stored in parts; so is the last one, whose end begins a line that is not whole. Past the cache too: stores leave in
        their order, and all would wait, twice a row, for one whose line has to be read first."""
        kb, loop = self.kb, self.phases[-1].loops[-1]

        def start(line: Line, at: Index) -> Index:
            self.ivs.append((loop, at))
            found = self.position(line.place)
            self.ivs.pop()
            return found

        def one(iv: Index, inside: dict[int, list[Value]]) -> None:
            for n, line in enumerate(lines):
                line.last = inside[-1 - n][0] if -1 - n in inside else None
            body(iv, inside)
            for n, line in enumerate(lines):
                assert line.last is not None
                inside[-1 - n] = [line.last]

        inside = {i: list(a) for i, a in accs.items()}
        for line in lines:
            line.begin(kb, start(line, low), _LINE // line.store.dtype.itemsize)
        one(low, inside)
        out = self._in_strips(kb.add(low, step), high, step, inside, one, strips)
        for n, line in enumerate(lines):
            kb.store(out.pop(-1 - n)[0], line.store.mem, start(line, kb.sub(high, _LINE // line.store.dtype.itemsize)), past=_PART)
        return out

    def _in_strips(self, low: Index, high: Index, step: int, accs: dict[int, list[Value]], body: Callable[[Index, dict[int, list[Value]]], None],
                   strips: bool, runs: bool = False) -> dict[int, list[Value]]:
        kb = self.kb
        parts = strips and far(low, high)
        with kb.for_(low, high, STRIP if parts else step, init=flat(accs), poll=int(parts), runs=runs) as lp:
            inside = {i: list(a) for i, a in unflat(accs, lp.args).items() if a is not None}
            if parts:
                inside = self._in_strips(lp.iv, kb.min(high, kb.add(lp.iv, STRIP)), step, inside, body, False, True)
            else:
                body(lp.iv, inside)
            kb.yield_(*flat(inside))
        return {i: a for i, a in unflat(accs, lp.results).items() if a is not None}

    def _span(self, ph: Phase, low: Index, high: Index, lanes: int, accs: dict[int, list[Value]], strips: bool = False) -> dict[int, list[Value]]:
        """Whole vectors from ``low``, then a masked rest. ``low`` is a multiple of whole rounds."""
        if ph.loops[-1].parts:
            return self._row_by_row(ph, low, high, lanes, accs)
        kb = self.kb
        moved = [] if accs or lanes == 1 or self.wide else edges(kb, ph.nodes, ph.loops[-1].dims[-1], self.position)
        if moved:
            self._inside_first(ph, low, high, lanes, moved, strips)
            return accs
        count = kb.sub(high, low)
        rest = kb.rem(count, lanes)
        end = kb.sub(high, rest)
        accs = self._vectors(ph, low, end, lanes, accs, strips)
        if lanes == 1 or rest == 0:
            return accs
        return self._rest(ph, end, rest, lanes, accs)

    def _vectors(self, ph: Phase, low: Index, end: Index, lanes: int, accs: dict[int, list[Value]], strips: bool = False) -> dict[int, list[Value]]:
        """Whole vectors alone."""
        kb = self.kb
        if lanes == 1 or self.wide or (beyond := self._beyond(ph, low, end, lanes)) is None:
            return self._run_of_vectors(ph, low, end, lanes, accs, strips)
        before = flat(accs)
        with kb.if_(beyond[0], [as_ktype(v.type) for v in before]) as br:
            with br.then():
                self.past, self.drains = beyond[1], True
                asked, ph.ahead = ph.ahead, ph.ahead or self._next_lines(ph)
                out = self._run_of_vectors(ph, low, end, lanes, accs, strips)
                self.past, ph.ahead = {}, asked
                if before:
                    kb.yield_(*flat(out))
            with br.orelse():
                out = self._run_of_vectors(ph, low, end, lanes, accs, strips)
                if before:
                    kb.yield_(*flat(out))
        return {i: a for i, a in unflat(accs, br.results).items() if a is not None} if before else out

    def _next_lines(self, ph: Phase) -> list[tuple[Store, Place]]:
        """What a loop over all elements reads some lines further on: the processor's own asking stays behind where results leave as fast."""
        if self.outer_loops or len(ph.loops) != 1:
            return []
        found: dict[Store, Place] = {}
        for n in ph.nodes:
            if n.kind == "load" and n.guard is None and n.access is not None and _is(n.places[0][1].get(ph.loops[0].dims[-1], 0), 1):
                base, strides = n.places[0]
                found.setdefault(n.access.store, (base + _AHEAD // n.access.store.dtype.itemsize, strides))
        return list(found.items())

    def _run_of_vectors(self, ph: Phase, low: Index, end: Index, lanes: int, accs: dict[int, list[Value]], strips: bool) -> dict[int, list[Value]]:
        kb, at = self.kb, low
        if accs and light(ph.nodes):
            step = CHAINS * lanes
            stop = kb.sub(end, kb.rem(kb.sub(end, low), step))

            def several(iv: Index, inside: dict[int, list[Value]]) -> None:
                for c in range(CHAINS):
                    self._body(ph, kb.add(iv, c * lanes), lanes, None, inside)

            accs = self._rounds(low, stop, step, accs, several, strips)
            at, self.past = stop, {}
        return self._rounds(at, end, lanes, accs, lambda iv, inside: self._body(ph, iv, lanes, None, inside), strips and at is low)

    def _beyond(self, ph: Phase, low: Index, end: Index, lanes: int) -> tuple[Value, dict[Store, int | Line]] | None:
        """Results of a phase that are too large to stay in the cache and that nothing reads again, and whether they are: these are written past it. In lines
        where a register is one and lanes of two can be joined, else in parts that are aligned: parts of one line that come in different rounds often leave alone."""
        kb, loop, target = self.kb, ph.loops[-1], self.cx.target
        inside, count = len(self.outer_loops) + len(ph.loops), kb.sub(end, low)
        work = [n for n in ph.nodes if n.level == inside]
        if self.blocked or heavy(work) > _WORK or isinstance(count, int) and count < CHAINS * lanes:
            return None
        read = {n.access.store for p in self.phases for n in p.nodes if n.access is not None}
        found: dict[Store, int | Line] = {}
        conditions = [kb.cmp("ge", count, CHAINS * lanes)]
        self.ivs.append((loop, low))
        for r in ph.roots:
            size = r.store.dtype.itemsize
            total = size * product([self.space[d] for d in r.place[1]])
            fits = r.store.what == "out" and not r.add and size in (4, 8) and _is(r.place[1].get(loop.dims[-1], 0), 1) and r.store not in read
            if fits and not (isinstance(total, int) and total < _PAST) and not self.cx.buffers.read_again(r.store):
                whole = lanes * size == _LINE and target.vector_bits == 8 * _LINE and target.arch == "x86_64"
                found[r.store] = Line(r.store, r.place) if whole else _PART
                at = kb.rem(kb.address(r.store.mem, self.position(r.place)), _PART)
                conditions += [kb.cmp("ge", kb.dim(total), _PAST), kb.cmp("eq", at, 0)]
        self.ivs.pop()
        if len(found) == 1 and (heavy(work) > _WORK_FOR_ONE or any(heavy([n]) >= _FUNCTION for n in work)):
            return None
        return (kb.all_of(*conditions), found) if found else None

    def _inside_first(self, ph: Phase, low: Index, high: Index, lanes: int, moved: Sequence[tuple[Index, Index]], strips: bool) -> None:
        """The vectors where every guard holds in all lanes, without asking; then the two edges, where each lane asks."""
        kb, first, last = self.kb, low, high
        for a, b in moved:
            first, last = kb.max(first, a), kb.min(last, b)
        first = kb.add(low, kb.align_up(kb.sub(first, low), lanes))
        last = kb.max(first, kb.sub(last, kb.mod(kb.sub(last, first), lanes)))
        self.free = ph.loops[-1].dims[-1]
        self._rounds(first, last, lanes, {}, lambda iv, inside: self._body(ph, iv, lanes, None, inside), strips)
        self.free = None
        with kb.for_(0, 2) as side:
            at_start = kb.cmp("eq", side.iv, 0)
            end = kb.select(at_start, kb.min(first, high), high)
            with kb.for_(kb.select(at_start, low, kb.min(last, high)), end, lanes) as lp:
                self._body(ph, lp.iv, lanes, kb.create_mask(kb.sub(end, lp.iv), lanes), {})

    def _rest(self, ph: Phase, at: Index, rest: Index, lanes: int, accs: dict[int, list[Value]]) -> dict[int, list[Value]]:
        kb = self.kb
        mask = kb.create_mask(rest, lanes)
        if isinstance(rest, int):
            out = {i: list(a) for i, a in accs.items()}
            self._body(ph, at, lanes, mask, out)
            return out
        before = flat(accs)
        with kb.if_(kb.cmp("gt", rest, 0), [v.type for v in before]) as br:
            with br.then():
                out = {i: list(a) for i, a in accs.items()}
                self._body(ph, at, lanes, mask, out)
                kb.yield_(*flat(out))
            if before:
                with br.orelse():
                    kb.yield_(*before)
        return {i: a for i, a in unflat(accs, br.results).items() if a is not None}
