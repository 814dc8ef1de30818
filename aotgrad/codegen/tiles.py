"""Reads that are contiguous in another loop than the writes (transposes, changes of layout): square tiles, turned in registers.

As many vectors as a vector has lanes are loaded along the loop that the reads are contiguous in, turned by shuffles, and used one after the other as if they had
been gathered. A few tiles side by side along the writes go down the whole loop of the reads, whose lines are asked for two tiles ahead.

Where elements may be computed twice (nothing is added up, nothing written is read), tiles begin where stores are aligned, and the first and the last are whole ones that
overlap their neighbours. Then large results that nothing else reads are written past the cache. Where the loop of the reads is a few elements dense in memory
(three channels, nine taps), rows that make whole vectors are loaded and sorted by shuffles; where the loop of the writes is, so is what is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from aotgrad_runtime.dtypes import bool_

from ..ir.core import Value
from ..ir.dims import DimLike
from .bufferise import Store
from .exprs import Node, heavy
from .kernel import Index, KernelBuilder
from .nest import Context, Loop, Phase, Place, Root
from .sharing import shared
from .spans import Line

__all__ = ["Tiles", "transpose"]

_BESIDE: Final = 4
"""Tiles side by side along the writes: rows of 256 bytes."""
_SHORT: Final = 16
"""Tiles of a loop of reads that is short enough to be finished before the next along the writes."""
_AHEAD: Final = 2
_PAST: Final = 8 << 20
"""Bytes of a result from which it is written past the cache. Smaller ones are as quick that way or slower, and are read again from there."""
_LINE: Final = 64
"""Bytes of a line of the cache."""
_PIECE: Final = 16
"""Bytes to which NumPy aligns arrays."""
_LONG: Final = 4
"""Tiles of its rows, for the same."""
_COUNTS: Final = (3,)
"""Elements side by side that code is made for where their number is open: images of three colours."""
_WRAPPED: Final = 16
"""Tiles of a row of the result up to which rows that follow each other are written as one."""
_MANY: Final = 4
"""Reads of a nest that are turned; more would not stay in registers."""


def transpose(kb: KernelBuilder, rows: Sequence[Value], part: int) -> list[Value]:
    """Element j of every row as vector j. ``part``: elements in 128 bits, within which the first rounds stay, as processors shuffle there at least cost."""
    n, rows, step = len(rows), list(rows), 1
    part = min(part, n)
    while step < part:
        out: list[Value] = [*rows]
        low, high = _interleave(n, part, step)
        for i in (i for i in range(n) if not i & step):
            out[i], out[i + step] = (kb.shuffle(rows[i], rows[i + step], pick) for pick in (low, high))
        rows, step = out, step * 2
    rows = [rows[i - i % part + _reversed(i % part, part)] for i in range(n)] if part > 1 else rows
    while step < n:
        out = [*rows]
        low, high = _halves(n, step)
        for i in (i for i in range(n) if not i & step):
            out[i], out[i + step] = (kb.shuffle(rows[i], rows[i + step], pick) for pick in (low, high))
        rows, step = out, step * 2
    return rows


def _interleave(n: int, part: int, step: int) -> tuple[list[int], list[int]]:
    """The low and the high halves of each 128 bits of two rows, in groups of ``step`` elements that take turns."""
    def pick(first: int) -> list[int]:
        return [q + first + g + k + side for q in range(0, n, part) for g in range(0, part // 2, step) for side in (0, n) for k in range(step)]

    return pick(0), pick(part // 2)


def _halves(n: int, step: int) -> tuple[list[int], list[int]]:
    """Blocks of ``step`` lanes: the even ones of two rows take turns, then the odd ones."""
    low = [j if not j & step else n + j - step for j in range(n)]
    return low, [j + step for j in low]


def _reversed(i: int, n: int) -> int:
    out = 0
    while n > 1:
        out, i, n = out * 2 + i % 2, i // 2, n // 2
    return out


class Tiles:
    """The part of ``NestEmitter`` that makes such nests."""

    cx: Context
    kb: KernelBuilder
    space: Sequence[DimLike]
    phases: list[Phase]
    outer_loops: list[Loop]
    ivs: list[tuple[Loop, Index]]
    wide: tuple[int, Value | None] | None
    past: Mapping[Store, int | Line]
    counts: Mapping[tuple[int, ...], int]  # of open loops, in a branch where they have that many rounds
    _high: Callable[[Loop], Index]
    _width: Callable[[], int]
    _evaluate: Callable[[Phase, int], None]
    _compute: Callable[[Node, dict[Node, Value], int, Value | None], Value]
    _value: Callable[[Node, dict[Node, Value]], Value]
    _store: Callable[[Root, Value, int, Value | None], None]
    _store_before: Callable[[Phase], None]
    position: Callable[[Place], Index]

    def turned(self) -> list[Node]:
        """The reads to turn, where the nest is of that kind."""
        if len(self.phases) > 1 or not self.outer_loops or self.phases[0].reds or len(self.phases[0].loops) != 1 or self._width() == 1:
            return []
        across, inside = self.outer_loops[-1].dims[-1], self.phases[0].loops[0].dims[-1]

        def fits(n: Node) -> bool:
            if n.kind != "load" or n.guard is not None or n.access is None or n.access.store.dtype is bool_ or n.access.store.dtype.itemsize > 8:
                return False
            strides = n.places[0][1]
            return _is(strides.get(inside, 0), 1) and not _is(strides.get(across, 0), 0)

        found = [n for n in self.phases[0].nodes if fits(n)]
        return found if len(found) <= _MANY else []

    def tiles(self, loop: Loop, reads: Sequence[Node], ask: int) -> None:
        """The last outer loop and the one inside it."""
        self._store_rows(loop, self._high(loop), ask)
        self._by_size([(lp, n) for lp in self._short(loop, reads) for n in _COUNTS if n < self._width()], lambda: self._any(loop, reads, ask))

    def _short(self, loop: Loop, reads: Sequence[Node]) -> list[Loop]:
        """Loops whose open size may be that of a few elements side by side: in the result, or in what is read."""
        inside = self.phases[0].loops[0]
        dense = self._twice() and any(n.places[0][1].get(loop.dims[-1], 0) == inside.size for n in reads)
        found = [(loop, self._flat(loop, inside, reads, loop.size)), (inside, dense)]
        return [lp for lp, fits in found if fits and not isinstance(lp.size, int) and lp.high is None and self._moves()]

    def _moves(self) -> bool:
        """Whether this is a change of layout alone. Of others, copies of the code cost more time of the compiler than they save."""
        ph = self.phases[0]
        return len(ph.roots) == 1 and sum(n.kind == "load" for n in ph.nodes) == 1 and not heavy(ph.nodes)

    def _by_size(self, counts: Sequence[tuple[Loop, int]], make: Callable[[], None]) -> None:
        """``make`` for each of the counts that a loop may have, and for any other."""
        if not counts:
            make()
            return
        short, count = counts[0]
        with self.kb.if_(self.kb.cmp("eq", self._high(short), count)) as br:
            with br.then():
                self.counts = {short.dims: count}
                make()
                self.counts = {}
            self._forget()
            with br.orelse():
                self._by_size(counts[1:], make)
        self._forget()

    def _any(self, loop: Loop, reads: Sequence[Node], ask: int) -> None:
        """The loops, where counts are known or none are."""
        kb, lanes, inside = self.kb, self._width(), self.phases[0].loops[0]
        high, end, few = self._high(loop), self._high(inside), self._few(inside)
        if (apart := self._few(loop)) and self._flat(loop, inside, reads, apart):
            self._sorted(loop, reads, apart, ask)
            return
        if not self._twice():
            self._plainly(loop, reads, high, end, few, ask)
            return
        if not few and self._may_wrap(loop, inside, reads, high):
            head = self._head(loop, self._line())
            whole = kb.cmp("eq", kb.rem(high, self._line()), 0)
            on = [kb.cmp("gt", head, 0), whole, kb.cmp("gt", high, 0), kb.cmp("le", high, _WRAPPED * lanes), kb.cmp("gt", end, lanes)]
            with kb.if_(kb.all_of(*on)) as br:
                with br.then():
                    self._wrapped(loop, reads, head, high, end, ask)
                self._forget()
                with br.orelse():
                    self._tiles(loop, reads, high, end, few, ask)
            self._forget()
            return
        self._tiles(loop, reads, high, end, few, ask)

    def _tiles(self, loop: Loop, reads: Sequence[Node], high: Index, end: Index, few: int, ask: int) -> None:
        """Tiles where elements may be computed twice."""
        kb, lanes = self.kb, self._width()
        fits = _all(kb, [kb.cmp("ge", high, lanes) if not isinstance(high, int) else high >= lanes,
                         True if few else kb.cmp("ge", end, lanes) if not isinstance(end, int) else end >= lanes])
        if isinstance(fits, bool):
            (self._aligned if fits else self._edges)(loop, reads, high, end, few, ask)
            return
        with kb.if_(fits) as br:
            with br.then():
                self._aligned(loop, reads, high, end, few, ask)
            self._forget()
            with br.orelse():
                self._edges(loop, reads, high, end, few, ask)
        self._forget()

    def _store_rows(self, loop: Loop, high: Index, ask: int) -> None:
        """What is stored once for each round of the last outer loop, in a loop of its own: there may be no tiles, or several in a row."""
        kb, lanes, ph = self.kb, self._width(), self.phases[0]
        if not ph.before:
            return

        def at(iv: Index, mask: Value | None) -> None:
            self._forget()
            self.ivs.append((loop, iv))
            self.wide = (lanes, mask)
            self._evaluate(ph, len(self.outer_loops))
            self._store_before(ph)
            self.wide = None
            self.ivs.pop()

        rest = kb.rem(high, lanes)
        whole = kb.sub(high, rest)
        with shared(self, loop, 0, whole, lanes) as (low, stop), kb.for_(low, stop, lanes, poll=ask) as lp:
            at(lp.iv, None)
        if not _is(rest, 0):
            with self._when(rest):
                at(whole, kb.create_mask(rest, lanes))
        self._forget()

    def _few(self, loop: Loop) -> int:
        """The size of a loop of fewer elements than lanes, where it is known; else 0."""
        if loop.dims in self.counts:
            return self.counts[loop.dims]
        return loop.size if isinstance(loop.size, int) and loop.high is None and 1 < loop.size < self._width() else 0

    def _twice(self) -> bool:
        """Whether elements may be computed and written twice."""
        written = {r.store for r in self.phases[0].roots}
        return not any(r.add for r in self.phases[0].roots) and not any(n.access is not None and n.access.store in written for n in self.phases[0].nodes)

    def _forget(self) -> None:
        """Values of one branch are not those of another."""
        for n in self.phases[0].nodes:
            n.val = None if n.level >= len(self.outer_loops) else n.val

    # ---- loops over tiles ---------------------------------------------------------------------------------------------------------

    def _aligned(self, loop: Loop, reads: Sequence[Node], high: Index, end: Index, few: int, ask: int) -> None:
        """Tiles from where stores are aligned, the first and the last of each row moved inwards."""
        kb, lanes, unit = self.kb, self._width(), self._line()
        head, lead = self._head(loop, lanes), self._head(loop, unit)
        first: Index = kb.select(kb.cmp("eq", head, 0), 0, kb.sub(head, lanes))
        count = kb.ceildiv(kb.sub(high, first), lanes)
        far = None if few else self._past(lead, high)  # a few rows far apart are the slower that way
        if far is None:
            self._over(loop, count, end, few, ask, lambda k, start: self._tile_within(loop, reads, kb.add(first, kb.mul(k, lanes)), high, start, few))
            return
        whole = kb.div(kb.sub(high, lead), unit)
        with kb.if_(far) as br, br.then():
            self.past = {r.store: lanes * r.store.dtype.itemsize for r in self.phases[0].roots}
            pieces = unit // lanes if self._moves() else 1  # of a line that are written together: what is half full may leave

            def far_tile(k: Index, start: Index) -> None:
                self._tile(loop, reads, kb.add(lead, kb.mul(k, pieces * lanes)), None, start, None, pieces=pieces)

            self._over(loop, kb.mul(whole, unit // lanes // pieces), end, few, ask, far_tile, pieces * lanes)
            self.past = {}
        self._forget()
        # in the same code all tiles of a result that stays near, or what is left of one that does not: before the first whole line and after the last
        before, done = kb.ceildiv(lead, lanes), kb.add(lead, kb.mul(whole, unit))
        ends = kb.add(before, kb.ceildiv(kb.sub(high, done), lanes))
        first = kb.select(far, kb.sub(lead, kb.mul(before, lanes)), first)
        gap = kb.select(far, kb.mul(whole, unit), 0)
        before = kb.select(far, before, count)

        def edge(k: Index, start: Index) -> None:
            at = kb.add(kb.add(first, kb.mul(k, lanes)), kb.select(kb.cmp("lt", k, before), 0, gap))
            self._tile_within(loop, reads, at, high, start, few)

        self._over(loop, kb.select(far, ends, count), end, few, ask, edge)

    def _tile_within(self, loop: Loop, reads: Sequence[Node], at: Index, high: Index, start: Index, few: int) -> None:
        """The tile at ``at``, moved to where all of it is in the row."""
        kb = self.kb
        self._tile(loop, reads, kb.max(0, kb.min(at, kb.sub(high, self._width()))), None, start, few or None)

    def _may_wrap(self, loop: Loop, inside: Loop, reads: Sequence[Node], high: Index) -> bool:
        """Whether rows of the result may follow each other in memory, so that the last tile of one is completed by the first elements of the next."""
        if not isinstance(high, int) or high % self._line() or high > _WRAPPED * self._width():
            return False
        return self._moves() and self._flat(loop, inside, reads, loop.size) and not _is(self._head(loop, self._width()), 0)

    def _wrapped(self, loop: Loop, reads: Sequence[Node], head: Index, high: Index, end: Index, ask: int) -> None:
        """Tiles from the first whole line on; those behind the end of a row take the ``head`` elements that come first in the next."""
        kb, lanes, unit = self.kb, self._width(), self._line()

        def line(k: Index, start: Index) -> None:
            at = kb.add(head, kb.mul(k, unit))
            own = kb.sub(high, at)
            where = kb.min(start, kb.sub(end, kb.select(kb.cmp("lt", own, unit), lanes + 1, lanes)))  # nothing comes after the last row
            self._tile(loop, reads, at, None, where, None, own, unit // lanes)

        self._maybe_past(self._far(), lanes * self.phases[0].roots[0].store.dtype.itemsize,
                         lambda: self._over(loop, kb.div(high, unit), end, 0, ask, line, unit))
        with kb.for_(0, head, lanes) as lp:
            self._tile(loop, reads, lp.iv, kb.min(kb.sub(head, lp.iv), lanes), 0, 1)
        rest = kb.sub(unit, head)  # of the last row, whose last line no other row completes
        with kb.for_(0, rest, lanes) as lp:
            self._tile(loop, reads, kb.add(kb.sub(high, rest), lp.iv), kb.min(kb.sub(rest, lp.iv), lanes), kb.sub(end, 1), 1)

    def _far(self) -> Value | None:
        """Whether the result is large and its elements are aligned."""
        kb, total = self.kb, self._large()
        if total is None:
            return None
        store = self.phases[0].roots[0].store
        return kb.all_of(kb.cmp("ge", kb.dim(total), _PAST), kb.cmp("eq", kb.rem(kb.address(store.mem, 0), store.dtype.itemsize), 0))

    def _over(self, loop: Loop, count: Index, end: Index, few: int, ask: int, tile: Callable[[Index, Index], None], width: int = 0) -> None:
        """``tile`` at ``count`` places along the writes, ``width`` elements apart (else as many as a tile has), and all along the reads (the last moved inwards)."""
        kb, lanes = self.kb, self._width()
        width = width or lanes  # of whole lines of several tiles each one is enough: more rows at once than processors see as streams
        beside = 1 if width > lanes or isinstance(end, int) and end <= _SHORT * lanes and not self.past else _BESIDE
        step = beside * width
        groups = kb.ceildiv(count, beside)
        with shared(self, loop, 0, kb.mul(groups, step), step) as (low, high), kb.for_(low, high, step, poll=ask) as lp:
            start = kb.div(lp.iv, width)
            stop = kb.min(kb.add(start, beside), count)

            def row(at: Index) -> None:
                if beside == 1:
                    tile(start, at)
                    return
                with kb.for_(start, stop) as each:
                    tile(each.iv, at)

            if few:
                row(0)
            else:
                with kb.for_(0, kb.ceildiv(end, lanes), poll=ask) as down:
                    row(kb.min(kb.mul(down.iv, lanes), kb.sub(end, lanes)))
            if self.past:
                kb.drain()

    def _edges(self, loop: Loop, reads: Sequence[Node], high: Index, end: Index, few: int, ask: int) -> None:
        """Tiles with masks, where one of the sizes is below that of a tile."""
        kb, lanes = self.kb, self._width()
        rest, over = kb.rem(high, lanes), kb.rem(end, lanes)
        whole, last = kb.sub(high, rest), kb.sub(end, over)
        if not _is(whole, 0) and not (isinstance(end, int) and end >= lanes):  # else the other size is the small one
            with shared(self, loop, 0, whole, lanes) as (low, stop), kb.for_(low, stop, lanes, poll=ask) as lp, self._when(end):
                self._tile(loop, reads, lp.iv, None, 0, few or end)
        if _is(rest, 0):
            return
        with self._when(rest):
            if not _is(last, 0):
                with kb.for_(0, last, lanes, poll=ask) as lp:
                    self._tile(loop, reads, whole, rest, lp.iv, None)
            if not _is(over, 0):
                with self._when(over):
                    self._tile(loop, reads, whole, rest, last, few or over)

    def _when(self, count: Index) -> AbstractContextManager[object]:
        return nullcontext() if isinstance(count, int) else _Then(self.kb, count)

    def _plainly(self, loop: Loop, reads: Sequence[Node], high: Index, end: Index, few: int, ask: int) -> None:
        """No element twice: whole tiles, and masked ones at the ends."""
        kb, lanes = self.kb, self._width()
        with shared(self, loop, 0, kb.mul(kb.ceildiv(high, lanes), lanes), lanes) as (low, stop), kb.for_(low, stop, lanes, poll=ask) as lp:
            left = kb.min(lanes, kb.sub(high, lp.iv))
            with kb.for_(0, end, lanes, poll=ask) as down:
                count = few or kb.min(lanes, kb.sub(end, down.iv))
                with kb.if_(kb.all_of(kb.cmp("eq", left, lanes), kb.cmp("eq", count, few or lanes))) as br:
                    with br.then():
                        self._tile(loop, reads, lp.iv, None, down.iv, few or None)
                    self._forget()
                    with br.orelse():
                        self._tile(loop, reads, lp.iv, left, down.iv, count)
                self._forget()

    # ---- where results are ----------------------------------------------------------------------------------------------------------

    def _line(self) -> int:
        """Elements of a line of the cache, and no less than a vector: what leaves past the cache leaves in whole lines, else memory reads what it completes."""
        return max([self._width(), *(_LINE // r.store.dtype.itemsize for r in self.phases[0].roots)])

    def _head(self, loop: Loop, unit: int) -> Index:
        """How many elements along the writes come before the first place that a multiple of ``unit`` has; 0 where rows are not aligned to each other."""
        kb, lanes, root = self.kb, self._width(), max(self.phases[0].roots, key=lambda r: r.store.dtype.itemsize, default=None)
        size = root.store.dtype.itemsize if root is not None else 0
        if root is None or not _is(root.place[1].get(loop.dims[-1], 0), 1) or lanes * size * 8 != self.cx.target.vector_bits:
            return 0
        place = kb.rem(kb.div(kb.address(root.store.mem, self.position(root.place)), size), unit)
        return kb.rem(kb.sub(unit, place), unit)

    def _past(self, head: Index, high: Index) -> Value | None:
        """Whether the result is to be written past the cache; None: never. Rows of a few tiles, of which two are no aligned ones, gain nothing."""
        kb, unit, ph = self.kb, self._line(), self.phases[0]
        total, least = self._large(), max(_LONG * self._width(), unit)
        if total is None or _is(head, 0):
            return None
        root, inside = ph.roots[0], ph.loops[0].dims[-1]
        size = root.store.dtype.itemsize
        stride = root.place[1].get(inside, 0)
        if isinstance(stride, int) and stride % unit or isinstance(high, int) and high < least:
            return None
        return kb.all_of(kb.cmp("ge", kb.dim(total), _PAST), kb.cmp("ge", high, least), kb.cmp("eq", kb.rem(kb.dim(stride), unit), 0),
                         kb.cmp("eq", kb.rem(kb.address(root.store.mem, 0), size), 0))

    def _run_past(self) -> Value | None:
        """The same for a result that is one run of memory for each round of the loops outside, in pieces of 16 bytes."""
        kb, ph = self.kb, self.phases[0]
        total = self._large()
        if total is None:
            return None
        (root,) = ph.roots
        size = root.store.dtype.itemsize
        outside = [root.place[1].get(part.dims[-1], 0) for lp in self.outer_loops[:-1] for part in lp.parts or (lp,)]
        steps = [kb.cmp("eq", kb.rem(kb.mul(kb.dim(s), size), _PIECE), 0) for s in outside if not (isinstance(s, int) and s * size % _PIECE == 0)]
        return kb.all_of(kb.cmp("ge", kb.dim(total), _PAST), kb.cmp("eq", kb.rem(kb.address(root.store.mem, kb.dim(root.place[0])), _PIECE), 0), *steps)

    def _large(self) -> DimLike | None:
        """Bytes of a single result that nothing reads again and that may be large; else None."""
        ph = self.phases[0]
        if len(ph.roots) != 1 or ph.roots[0].store.what != "out" or self.cx.buffers.read_again(ph.roots[0].store):
            return None
        total: DimLike = ph.roots[0].store.dtype.itemsize
        for d in self.space:
            total = total * d
        return None if isinstance(total, int) and total < _PAST else total

    def _maybe_past(self, far: Value | None, align: int, make: Callable[[], None]) -> None:
        """``make``, with stores past the cache where ``far`` holds."""
        if far is None:
            make()
            return
        with self.kb.if_(far) as br:
            with br.then():
                self.past = {r.store: align for r in self.phases[0].roots}
                make()
                self.kb.drain()
                self.past = {}
            self._forget()
            with br.orelse():
                make()
        self._forget()

    # ---- one tile -------------------------------------------------------------------------------------------------------------------

    def _tile(self, loop: Loop, reads: Sequence[Node], at: Index, left: Index | None, start: Index, count: Index | None, own: Index | None = None,
              pieces: int = 1) -> None:
        """The tile at the lanes from ``at`` (``left`` of them) and ``start`` of the inner loop; ``count``: elements of that, where they are fewer than lanes.
        ``own``: elements from ``at`` on that are of this row, where the others are the first of the next. ``pieces``: tiles side by side whose rows are written
        together, of a change of layout alone."""
        kb, ph, lanes = self.kb, self.phases[0], self._width()
        inside = ph.loops[0]
        self.wide = (lanes, None if left is None else kb.create_mask(left, lanes))
        found = []
        for p in range(pieces):
            self._enter(loop, kb.add(at, p * lanes))
            self.ivs.append((inside, start))
            mine = None if own is None else kb.sub(own, p * lanes)
            found.append({n: self._dense(n, count, left) if isinstance(count, int) and self._is_dense(n, loop, inside, count)
                          else self._rows(n, loop, left, count, mine) for n in reads})
            del self.ivs[-2 if p + 1 < pieces else -1:]
        for j in range(count if isinstance(count, int) else lanes):
            for p, columns in enumerate(found):
                if pieces > 1:
                    self.ivs.pop()
                    self._enter(loop, kb.add(at, p * lanes))
                if count is None or isinstance(count, int):
                    self._column(inside, columns, kb.add(start, j), j)
                else:
                    with _Then(kb, kb.sub(count, j)):
                        self._column(inside, columns, kb.add(start, j), j)
        self.wide = None
        self.ivs.pop()

    def _enter(self, loop: Loop, at: Index) -> None:
        """What is the same all along the reads, at the lanes from ``at``."""
        self._forget()
        self.ivs.append((loop, at))
        self._evaluate(self.phases[0], len(self.outer_loops))

    def _rows(self, n: Node, loop: Loop, left: Index | None, count: Index | None, own: Index | None) -> list[Value]:
        """A read as columns, by turning rows."""
        kb, lanes, access = self.kb, self._width(), n.access
        assert access is not None
        stride, at = kb.dim(n.places[0][1][loop.dims[-1]]), self.position(n.places[0])
        mask = None if count is None else kb.create_mask(count, lanes)
        rows = []
        for r in range(lanes):  # rows that are not there are the last one again
            row = r if left is None else min(r, left - 1) if isinstance(left, int) else kb.min(r, kb.sub(left, 1))
            place = kb.add(at, kb.mul(row, stride))
            if own is not None:
                place = kb.select(kb.cmp("lt", r, own), place, kb.add(kb.sub(place, kb.mul(self._high(loop), stride)), 1))
            if count is None and left is None:
                kb.prefetch(access.store.mem, kb.add(place, _AHEAD * lanes))
            rows.append(kb.load(access.store.mem, place, lanes, mask))
        return transpose(kb, rows, 16 // access.store.dtype.itemsize)

    def _is_dense(self, n: Node, loop: Loop, inside: Loop, count: int) -> bool:
        """Whether the rows of a short inner loop follow each other in memory."""
        stride = n.places[0][1].get(loop.dims[-1], 0)
        return n.access is not None and self._few(inside) == count and (_is(stride, count) or stride == inside.size)

    def _dense(self, n: Node, count: int, left: Index | None) -> list[Value]:
        """A read whose rows of ``count`` elements follow each other, as columns."""
        kb, lanes, access = self.kb, self._width(), n.access
        assert access is not None
        at = self.position(n.places[0])
        flat = [kb.load(access.store.mem, kb.add(at, k * lanes), lanes, self._part(left, count, k)) for k in range(count)]
        return [_gathered(kb, flat, [j * count + c for j in range(lanes)]) for c in range(count)]

    def _part(self, left: Index | None, count: int, k: int) -> Value | None:
        """The mask of vector ``k`` of ``left`` rows of ``count`` elements."""
        kb, lanes = self.kb, self._width()
        return None if left is None else kb.create_mask(kb.max(0, kb.sub(kb.mul(left, count), k * lanes)), lanes)

    def _column(self, inside: Loop, columns: dict[Node, list[Value]], iv: Index, j: int) -> None:
        """What the nest computes at one position of the inner loop."""
        lanes, mask = self.wide or (1, None)
        self.ivs.append((inside, iv))
        self._here({n: vectors[j] for n, vectors in columns.items()}, lanes, mask)
        self.ivs.pop()

    def _here(self, env: dict[Node, Value], lanes: int, mask: Value | None) -> None:
        ph, level = self.phases[0], len(self.outer_loops) + 1
        for n in ph.nodes:
            if n.level == level and n.kind != "slot" and n not in env:
                env[n] = self._compute(n, env, lanes, mask)
        for root in ph.roots:
            self._store(root, self._value(root.node, env), lanes, mask)

    # ---- writes that are a few elements and follow each other -------------------------------------------------------------------------

    def _flat(self, loop: Loop, inside: Loop, reads: Sequence[Node], few: DimLike) -> bool:
        """Whether all but the turned reads go over both loops element by element, or not at all."""
        across, along = loop.dims[-1], inside.dims[-1]

        def fits(strides: dict[int, DimLike]) -> bool:
            a, b = strides.get(across, 0), strides.get(along, 0)
            return _is(a, 1) and b in (few, loop.size) or _is(a, 0) and _is(b, 0)

        level = len(self.outer_loops)
        return (all(fits(r.place[1]) and _is(r.place[1].get(across, 0), 1) for r in self.phases[0].roots)
                and all(n in reads or n.kind in ("const", "ew", "value") or n.level < level or n.kind == "load" and n.guard is None and fits(n.places[0][1])
                        for n in self.phases[0].nodes))

    def _sorted(self, loop: Loop, reads: Sequence[Node], few: int, ask: int) -> None:
        """As many positions of the inner loop as a vector has lanes, whose ``few`` vectors of the turned reads become as many of the writes."""
        kb, lanes, inside = self.kb, self._width(), self.phases[0].loops[0]
        end = self._high(inside)
        whole = kb.sub(end, kb.rem(end, lanes))

        def groups() -> None:
            with kb.for_(0, whole, lanes, poll=ask) as lp:
                self._group(loop, inside, reads, few, lp.iv, None)

        self._maybe_past(self._run_past(), _PIECE, groups)
        if not _is(rest := kb.sub(end, whole), 0):
            with self._when(rest):
                self._group(loop, inside, reads, few, whole, rest)

    def _group(self, loop: Loop, inside: Loop, reads: Sequence[Node], few: int, at: Index, left: Index | None) -> None:
        kb, lanes = self.kb, self._width()
        mask = None if left is None else kb.create_mask(left, lanes)
        self._forget()
        self.ivs += [(loop, 0), (inside, at)]
        flat: dict[Node, list[Value]] = {}
        for n in reads:
            assert n.access is not None
            start, stride = self.position(n.places[0]), kb.dim(n.places[0][1][loop.dims[-1]])
            rows = [kb.load(n.access.store.mem, kb.add(start, kb.mul(c, stride)), lanes, mask) for c in range(few)]
            flat[n] = [_gathered(kb, rows, [(k * lanes + j) % few * lanes + (k * lanes + j) // few for j in range(lanes)]) for k in range(few)]
        for k in range(few):
            self.ivs[-2] = loop, k * lanes
            self.wide = lanes, self._part(left, few, k)
            self._evaluate(self.phases[0], len(self.outer_loops))
            self._here({n: vectors[k] for n, vectors in flat.items()}, *self.wide)
            self._forget()
        self.wide = None
        del self.ivs[-2:]


def _gathered(kb: KernelBuilder, vectors: Sequence[Value], places: Sequence[int]) -> Value:
    """The elements at ``places`` of the vectors, which are one after the other: by as many shuffles as vectors have some of them, less one."""
    lanes = len(places)
    used = sorted({p // lanes for p in places})
    out, done = vectors[used[0]], {used[0]}
    for v in used[1:] or used:
        last = [p % lanes if p // lanes in done and len(done) == 1 else j for j, p in enumerate(places)]
        out = kb.shuffle(out, vectors[v], [lanes + p % lanes if p // lanes == v and v not in done else last[j] for j, p in enumerate(places)])
        done.add(v)
    return out


def _all(kb: KernelBuilder, conditions: Sequence[Value | bool]) -> Value | bool:
    """Whether all hold, where some are known."""
    if any(c is False for c in conditions):
        return False
    left = [c for c in conditions if not isinstance(c, bool)]
    return kb.all_of(*left) if left else True


class _Then:
    """A branch taken where ``count`` is positive."""

    def __init__(self, kb: KernelBuilder, count: Index) -> None:
        self.branch = kb.if_(kb.cmp("gt", count, 0))

    def __enter__(self) -> None:
        self.then = self.branch.__enter__().then()
        self.then.__enter__()

    def __exit__(self, *error: object) -> None:
        self.then.__exit__(*error)
        self.branch.__exit__(*error)  # type: ignore[arg-type]


def _is(x: DimLike | Index, number: int) -> bool:
    return isinstance(x, int) and x == number
