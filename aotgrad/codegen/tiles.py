"""Reads that are contiguous in another loop than the writes (transposes, changes of layout): square tiles, turned in registers.

As many vectors as a vector has lanes are loaded along the loop that the reads are contiguous in, turned by shuffles, and used one after the other as if they had
been gathered. Tiles go in strips: some of them side by side along the reads, so that lines of cache are used up while they are there, down the whole loop of the writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from ..ir.core import Value
from ..ir.dims import DimLike
from .exprs import Node
from .kernel import Index, KernelBuilder
from .nest import Context, Loop, Phase, Place, Root
from .sharing import shared

__all__ = ["Tiles", "transpose"]

_STRIP: Final = 16
"""Tiles side by side: a kilobyte of each row, which prefetchers see."""
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
    phases: list[Phase]
    outer_loops: list[Loop]
    ivs: list[tuple[Loop, Index]]
    wide: tuple[int, Value | None] | None
    long: bool
    _high: Callable[[Loop], Index]
    _width: Callable[[], int]
    _evaluate: Callable[[Phase, int], None]
    _compute: Callable[[Node, dict[Node, Value], int, Value | None], Value]
    _value: Callable[[Node, dict[Node, Value]], Value]
    _store: Callable[[Root, Value, int, Value | None], None]
    position: Callable[[Place], Index]

    def turned(self) -> list[Node]:
        """The reads to turn, where the nest is of that kind."""
        if len(self.phases) > 1 or not self.outer_loops or self.phases[0].reds or len(self.phases[0].loops) != 1 or self._width() == 1:
            return []
        across, inside = self.outer_loops[-1].dims[-1], self.phases[0].loops[0].dims[-1]

        def fits(n: Node) -> bool:
            if n.kind != "load" or n.guard is not None or n.access is None or n.access.store.dtype.itemsize not in (4, 8):
                return False
            strides = n.places[0][1]
            return _is(strides.get(inside, 0), 1) and not _is(strides.get(across, 0), 0)

        found = [n for n in self.phases[0].nodes if fits(n)]
        return found if len(found) <= _MANY else []

    def tiles(self, loop: Loop, reads: Sequence[Node], ask: int) -> None:
        """The last outer loop and the one inside it."""
        kb, lanes, high = self.kb, self._width(), self._high(loop)
        rest = kb.rem(high, lanes)
        whole = kb.sub(high, rest)
        if not _is(whole, 0):
            with shared(self, loop, 0, whole, lanes) as (low, end):
                self._strips(loop, reads, low, end, None, ask)
        if not _is(rest, 0):
            with self._when(rest):
                self._strips(loop, reads, whole, high, rest, ask)

    def _strips(self, loop: Loop, reads: Sequence[Node], low: Index, high: Index, left: Index | None, ask: int) -> None:
        """From ``low`` to ``high`` of the last outer loop, which are whole vectors or ``left`` lanes of one."""
        kb, lanes, end = self.kb, self._width(), self._high(self.phases[0].loops[0])
        strip = _STRIP * lanes
        rest = kb.rem(end, strip)
        last = kb.sub(end, rest)
        if not _is(last, 0):
            with kb.for_(0, last, strip, poll=ask) as strips, kb.for_(low, high, lanes, poll=ask) as lp:
                self._tiles_at(loop, reads, lp.iv, left, lanes, strips.iv, strip, False)
        if not _is(rest, 0):
            with self._when(rest), kb.for_(low, high, lanes, poll=ask) as lp:
                self._tiles_at(loop, reads, lp.iv, left, lanes, last, rest, True)

    def _when(self, count: Index) -> AbstractContextManager[object]:
        return nullcontext() if isinstance(count, int) else _Then(self.kb, count)

    def _tiles_at(self, loop: Loop, reads: Sequence[Node], at: Index, left: Index | None, lanes: int, low: Index, count: Index, at_edge: bool) -> None:
        """``count`` elements from ``low`` of the inner loop, at the lanes from ``at`` (``left`` of them)."""
        kb, ph = self.kb, self.phases[0]
        level = len(self.outer_loops)
        for n in ph.nodes:
            n.val = None if n.level >= level else n.val
        mask = None if left is None else kb.create_mask(left, lanes)
        self.ivs.append((loop, at))
        self.wide = (lanes, mask)
        self._evaluate(ph, level)
        whole = kb.sub(count, kb.rem(count, lanes)) if at_edge else count
        if not _is(whole, 0):
            with kb.for_(low, kb.add(low, whole), lanes) as lp:
                self._tile(loop, reads, lp.iv, left, lanes, None)
        if at_edge and not _is(rest := kb.rem(count, lanes), 0):
            with self._when(rest):
                self._tile(loop, reads, kb.add(low, whole), left, lanes, rest)
        self.wide = None
        self.ivs.pop()

    def _tile(self, loop: Loop, reads: Sequence[Node], start: Index, left: Index | None, lanes: int, count: Index | None) -> None:
        """One tile; ``count``: elements of the inner loop, where they are fewer than lanes."""
        kb, ph = self.kb, self.phases[0]
        inside = ph.loops[0]
        mask = None if count is None else kb.create_mask(count, lanes)
        self.ivs.append((inside, start))
        columns: dict[Node, list[Value]] = {}
        for n in reads:
            assert n.access is not None
            stride, at = kb.dim(n.places[0][1][loop.dims[-1]]), self.position(n.places[0])
            rows = []
            for r in range(lanes):  # rows that are not there are the last one again
                row = r if left is None else min(r, left - 1) if isinstance(left, int) else kb.min(r, kb.sub(left, 1))
                rows.append(kb.load(n.access.store.mem, kb.add(at, kb.mul(row, stride)), lanes, mask))
            columns[n] = transpose(kb, rows, 16 // n.access.store.dtype.itemsize)
        self.ivs.pop()
        known = count if isinstance(count, int) else lanes
        for j in range(known):
            if count is None or isinstance(count, int):
                self._column(inside, columns, kb.add(start, j), j)
            else:
                with _Then(kb, kb.sub(count, j)):
                    self._column(inside, columns, kb.add(start, j), j)

    def _column(self, inside: Loop, columns: dict[Node, list[Value]], iv: Index, j: int) -> None:
        """What the nest computes at one position of the inner loop."""
        ph, level = self.phases[0], len(self.outer_loops) + 1
        lanes, mask = self.wide or (1, None)
        self.ivs.append((inside, iv))
        env = {n: vectors[j] for n, vectors in columns.items()}
        for n in ph.nodes:
            if n.level == level and n.kind != "slot" and n not in env:
                env[n] = self._compute(n, env, lanes, mask)
        for root in ph.roots:
            self._store(root, self._value(root.node, env), lanes, mask)
        self.ivs.pop()


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
