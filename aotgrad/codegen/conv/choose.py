"""Which tiles a sum over taps is cut into: rows and vectors by a count of cycles, the order of the loops by the bytes that move."""

from __future__ import annotations

from dataclasses import replace

from aotgrad_runtime.records import record

from ..gemm.emit import Vec
from ..target import Target
from .micro import Run, Tile, runs
from .taps import TapSum

__all__ = ["BLOCK", "Plan", "Strip", "choose", "cycles", "even", "flattened", "shapes"]

_MOST_ROWS = 8  # more rows at steps of 1 KiB and above evict each other from the first cache (0.5 to 0.7 of the speed)
_NEAR, _NEAR_ROWS = 256, 16  # bytes from row to row below which there may be more of one vector, of which 8 are just as many as the multipliers are deep
_L2_HALF = 640 << 10
BLOCK = 640 << 10
"""Bytes of a block of weights beside which the next one has room in the second cache."""
_ROWS_BYTES = 128 << 10


@record(frozen=True)
class Strip:
    """``repeat`` adjacent tiles of ``rows`` outputs from ``first`` on, with the same valid taps."""

    first: int
    rows: int
    repeat: int
    runs: tuple[Run, ...]


@record(frozen=True)
class Plan:
    """How one sum is computed. ``vectors``: a block of channels; ``unit``: rows of one unit of work; ``blocks_outside``: weights are the larger traffic, ``ahead``: and
    each block fetches the next."""

    sum: TapSum
    vec: Vec
    vectors: int
    strips: tuple[Strip, ...]
    unit: int
    blocks_outside: bool
    ahead: bool = False

    @property
    def block(self) -> int:
        """Channels of a full block."""
        return self.vectors * self.vec.lanes

    @property
    def blocks(self) -> int:
        """Blocks of channels of a group."""
        return -(-self.sum.width // self.block)

    @property
    def last(self) -> tuple[int, int]:
        """Vectors of the last block and valid lanes of its last vector (0: all)."""
        rest = self.sum.width - (self.blocks - 1) * self.block
        return -(-rest // self.vec.lanes), rest % self.vec.lanes

    @property
    def rows(self) -> int:
        """Rows of one image: outputs of the outer dims together."""
        n = 1
        for a in self.sum.axes[:-1]:
            n *= a.count
        return n

    @property
    def units(self) -> int:
        """Units of work of one image and block."""
        return -(-self.rows // self.unit)

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed weights of all groups."""
        return self.sum.groups * self.group_bytes

    @property
    def group_bytes(self) -> int:
        """Bytes of the packed weights of one group."""
        return self.sum.taps * self.sum.depth * (-(-self.sum.width // self.vec.lanes)) * self.vec.bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of the packed weights of a full block."""
        return self.sum.taps * self.sum.depth * self.vectors * self.vec.bytes

    @property
    def turns(self) -> range:
        """Rows that share in fetching the next block: those at the border leave out taps, and stand aside where others are."""
        return range(1, self.rows - 1) if self.rows > 2 else range(max(1, self.rows))

    def tile(self, strip: Strip, last: bool) -> Tile:
        """The tile of ``strip`` in a full or in the last block."""
        vectors, tail = self.last if last else (self.vectors, 0)
        return Tile(strip.rows, vectors, tail, strip.runs, self.block_bytes if self.ahead else 0, len(self.turns))


def depthwise_shapes(target: Target, needed: int) -> list[tuple[int, int]]:
    """The same where each accumulator has an input of its own, which other taps read again: all channels of a position where they fit
    (memory is read in order: 1.25 of the speed out of cache), else one vector."""
    rows = {1: 8, 2: 7, 3: 5, 4: 4} if target.registers == 32 else {1: 6, 2: 4}
    vectors = needed if needed in rows else 1
    return [(r, vectors) for r in range(1, rows[vectors] + 1)]


def shapes(target: Target, most: int = _MOST_ROWS) -> list[tuple[int, int]]:
    """(rows, vectors) whose accumulators, weights and one splat fit the registers."""
    registers = target.registers
    return [(r, v) for v in (4, 3, 2, 1) for r in range(1, most + 1) if r * v + v + 1 <= registers]


def cycles(rows: int, vectors: int) -> float:
    """Of one step of k with two multipliers of latency 4 and two loads a cycle, and the loop around it."""
    return max(rows * vectors / 2, (rows + vectors) / 2, 4.0) + 0.25


def choose(ts: TapSum, target: Target, most: int | None = None) -> Plan:
    """The tiles of the least cycles for ``ts``; of equal ones those that read the weights the least often. ``most``: bytes of a block, where that can be."""
    vec = Vec(ts.dtype, target.lanes(ts.dtype), target.fma)
    needed = max(1, -(-ts.width // vec.lanes))
    best: tuple[float, TapSum, int, int] | None = None
    for one in flattened(ts):
        near = one.axes[-1].mul * one.axes[-1].source <= _NEAR
        for rows, vectors in depthwise_shapes(target, needed) if ts.depthwise else shapes(target, _NEAR_ROWS if near else _MOST_ROWS):
            if most is not None and vectors > 1 and ts.taps * ts.depth * vectors * vec.bytes > most:
                continue
            if vectors > needed or (rows > one.axes[-1].count and rows > 1) or (rows > _MOST_ROWS and vectors > 1):
                continue
            cost = _cost(one, vec, rows, vectors)
            if best is None or cost < best[0]:
                best = cost, one, rows, vectors
    assert best is not None
    _, one, rows, vectors = best
    plan = Plan(one, vec, vectors, _strips(one, rows), 1, False)
    return replace(plan, unit=_unit(plan), blocks_outside=_outside(plan))


def _cost(ts: TapSum, vec: Vec, rows: int, vectors: int) -> float:
    width, count = ts.width, ts.axes[-1].count
    full, rest = divmod(-(-width // vec.lanes), vectors)
    tiles = even(count, rows)
    cost = 0.0
    for r in tiles:
        cost += full * (cycles(r, vectors) + _reload(r, vectors)) + (cycles(r, rest) + _reload(r, rest) if rest else 0.0)
    steps = max(1, ts.depth * ts.taps)
    outer = ts.outputs / max(1, count)
    return outer * (cost * steps + 20.0 * len(tiles) * (full + bool(rest)))


def _reload(rows: int, vectors: int) -> float:
    """What it costs that the weights come from the second cache, anew for every tile."""
    return vectors * 0.25


def even(count: int, rows: int) -> list[int]:
    """Outputs of each tile: as even as possible, no tile above ``rows``."""
    tiles = -(-count // rows)
    if not tiles:
        return []
    small, more = divmod(count, tiles)
    return [small + 1] * more + [small] * (tiles - more)


def _strips(ts: TapSum, rows: int) -> tuple[Strip, ...]:
    out: list[Strip] = []
    first = 0
    for n in even(ts.axes[-1].count, rows):
        now = Strip(first, n, 1, runs(ts, first, n))
        if out and (out[-1].rows, out[-1].runs) == (now.rows, now.runs):
            out[-1] = replace(out[-1], repeat=out[-1].repeat + 1)
        else:
            out.append(now)
        first += n
    return tuple(out)


def flattened(ts: TapSum) -> list[TapSum]:
    """``ts``, and where one tap reads densely, the same sum over rows of other lengths."""
    dense = all(len(a.taps) == 1 and a.mul == 1 and a.off == 0 and a.start == 0 and a.size == a.count for a in ts.axes)
    inner = ts.axes[-1]
    for a in ts.axes[-2::-1]:
        dense = dense and a.source == inner.source * inner.count and a.target == inner.target * inner.count
        inner = replace(inner, count=inner.count * a.count, size=inner.size * a.size)
    total = inner.count
    if not dense or len(ts.axes) == 1 or total == 0:
        return [ts]
    out = [ts]
    for n in range(ts.axes[-1].count + 1, total + 1):
        if total % n == 0 and (n <= 512 or n == total):
            row = replace(inner, count=n, size=n)
            rows = replace(inner, count=total // n, size=total // n, source=inner.source * n, target=inner.target * n)
            out.append(replace(ts, axes=(rows, row)))
    return out


def _unit(plan: Plan) -> int:
    """Rows whose input stays in the second cache while the blocks pass over them."""
    ts = plan.sum
    if plan.rows == 0:
        return 1
    row_bytes = inputs(ts) * plan.vec.size * ts.axes[-1].size
    if len(ts.axes) > 1:
        row_bytes *= min(ts.axes[-2].mul, ts.axes[-2].size)
    n = max(1, _ROWS_BYTES // max(1, row_bytes))
    pieces = -(-plan.rows // n)
    return -(-plan.rows // pieces)


def inputs(ts: TapSum) -> int:
    """Input channels of all groups."""
    return ts.width if ts.depthwise else ts.groups * ts.depth


def _outside(plan: Plan) -> bool:
    """Whether to keep a block of weights while all images pass: weights too large for the second cache and more bytes than the image read once a block."""
    ts = plan.sum
    image = inputs(ts) * plan.vec.size
    for a in ts.axes:
        image *= a.size
    return plan.packed_bytes > _L2_HALF and plan.packed_bytes > image * plan.blocks
