"""The gradient of the weights: for every tap, the product of x's channels with y's channels, summed over images and positions.

A tile kernel holds a few channels of one array (splats) times 1 to 4 vectors of channels of the other, and runs over positions. Either w's input channels
are the lanes and the result is stored where it belongs ([filter][tap][channel] in memory), or filters are, and a workspace
[tap][channel][filters of a block] is turned into the result unit by unit, while these are in the cache. Blocks of rows keep x and y in the second cache, units of work
are parts of the result that stay there while all images pass: every element is one chain of multiply-adds in the order of images and rows.
"""

from __future__ import annotations

import math

from aotgrad_runtime.records import record

from ..gemm.emit import Fn, Val, Vec
from ..gemm.pack import transpose
from ..target import Target
from .choose import cycles, even, shapes
from .spec import ConvSpec
from .taps import SIZES, Axis, ints, is_depthwise, place, weight_strides

__all__ = ["RUN_PARAMS", "WeightPlan", "plan_weights", "unpack", "weight_functions"]

RUN_PARAMS = [("ptr", p) for p in ("x", "y", "work", "weights")] + [("i64", "batch"), ("i64", "low"), ("i64", "high")]
_TILE_PARAMS = [("ptr", "a"), ("ptr", "b"), ("ptr", "c"), ("i64", "rows"), ("i64", "cols"), ("i1", "acc")]
_MOST_ROWS = 24  # adjacent channels, which share lines of cache
_SLAB_BYTES = 384 << 10
_ROWS_BYTES = 24 << 10
_FEW = 128
_MOST_BYTES = 256 << 10


@record(frozen=True)
class Side:
    """One of x and y: bytes per image, between channels, between groups, between positions of each dim, and of the taps' steps (0 for y)."""

    image: int
    channel: int
    group: int
    steps: tuple[int, ...]
    taps: tuple[int, ...]
    offset: int


@record(frozen=True)
class WeightPlan:
    """``a`` is read by splats (``rows`` channels a group), ``b`` by vectors (``width`` channels); result elements lie ``out_row``, ``out_tap`` and
    ``out_group`` bytes apart, blocks of lanes ``out_block``."""

    vec: Vec
    axes: tuple[Axis, ...]  # the last two are the rows and columns of positions, of which the first may be the batch
    batch_rows: bool
    groups: int
    a: Side
    b: Side
    rows: int
    width: int
    most: int  # rows of the largest tile
    vectors: int
    direct: bool
    depthwise: bool  # a's channels are lanes too, each filter reads its own
    home: tuple[int, int, int]  # bytes between filters, channels and taps of the result
    masked: bool  # partial stores cost no more than whole ones

    @property
    def taps(self) -> int:
        """Positions of the kernel."""
        return math.prod(len(a.taps) for a in self.axes)

    @property
    def joined(self) -> int:
        """Taps along the row whose channels share a tile."""
        return max(1, min(self.most // max(1, self.rows), len(self.axes[-1].taps))) if not self.direct else 1

    @property
    def tiles(self) -> list[int]:
        """Rows of each tile of one tap."""
        return even(self.rows, self.most)

    @property
    def blocks(self) -> int:
        """Blocks of lanes of a group."""
        return -(-self.width // (self.vectors * self.vec.lanes))

    @property
    def last(self) -> tuple[int, int]:
        """Vectors of the last block and valid lanes of its last vector (0: all)."""
        rest = self.width - (self.blocks - 1) * self.vectors * self.vec.lanes
        return -(-rest // self.vec.lanes), rest % self.vec.lanes

    @property
    def chunk(self) -> int:
        """Tiles of one unit of work."""
        tile = max(1, self.taps) * self.vectors * self.vec.bytes * self.most
        n, tiles = max(1, _SLAB_BYTES // tile), max(1, len(self.tiles))
        return -(-tiles // -(-tiles // n))

    @property
    def chunks(self) -> int:
        """Units of one block."""
        return -(-len(self.tiles) // self.chunk) if self.joined == 1 else 1

    @property
    def units(self) -> int:
        """Units of work."""
        return self.groups * self.blocks * self.chunks

    @property
    def work_bytes(self) -> int:
        """Bytes of the workspace: of one block."""
        return 0 if self.direct else self.taps * self.rows * self.vectors * self.vec.bytes

    @property
    def taps_outside(self) -> bool:
        """Whether channels are neighbours in the result, and not taps."""
        return self.home[2] > self.home[1]

    def pitch(self, last: bool) -> int:
        """Bytes between rows of the result of one tap."""
        if self.direct:
            return self.taps * self.width * self.vec.size
        return (self.last[0] if last else self.vectors) * self.vec.bytes

    def tap_step(self, last: bool) -> int:
        """Bytes between taps of the result."""
        return self.width * self.vec.size if self.direct else self.rows * self.pitch(last)


def plan_weights(spec: ConvSpec, target: Target) -> WeightPlan | None:
    """How to compute ``spec``; None where neither array has adjacent channels as its way needs them."""
    size = SIZES[spec.dtype]
    channels, filters = ints((spec.channels, spec.filters))
    spatial, positions, kernel = ints(spec.spatial), ints(spec.positions), ints(spec.kernel)
    vec = Vec(spec.dtype, target.lanes(spec.dtype), target.fma)
    c, o = channels // spec.groups, filters // spec.groups
    px, py = place(spec.layouts[0], channels, spatial, size), place(spec.layouts[2], filters, positions, size)
    lows = [low for low, _ in spec.padding]
    axes = tuple(Axis(positions[i], spatial[i], spec.stride[i], -lows[i], spec.dilation[i], tuple(range(kernel[i])), px.steps[i], py.steps[i])
                 for i in range(spec.rank))
    x = Side(px.image, px.channel, c * px.channel, tuple(s * st for s, st in zip(px.steps, spec.stride)), tuple(s * d for s, d in zip(px.steps, spec.dilation)),
             -sum(low * s for low, s in zip(lows, px.steps)))
    y = Side(py.image, py.channel, o * py.channel, py.steps, (0,) * spec.rank, 0)
    depthwise = is_depthwise(spec)
    groups = 1 if depthwise else spec.groups
    c, o = (1, filters) if depthwise else (c, o)
    in_place = not depthwise and weight_strides(spec)[1] == size and px.channel == size and not (py.channel == size and 2 * c < vec.lanes)
    if not in_place and py.channel != size:
        return None
    a, b, rows, width = (y, x, o, c) if in_place else (x, y, c, o)
    most, vectors = _tile(target, vec, rows, width, kernel[-1] if not in_place else 1)
    return WeightPlan(vec, axes, spec.rank == 1, groups, a, b, rows, width, most, vectors, in_place, depthwise, weight_strides(spec), target.masked)


def _tile(target: Target, vec: Vec, rows: int, width: int, taps: int) -> tuple[int, int]:
    """Rows and vectors of the least cycles."""
    needed = max(1, -(-width // vec.lanes))
    best: tuple[float, int, int] | None = None
    for most, vectors in shapes(target, _MOST_ROWS):
        if vectors > needed:
            continue
        joined = max(1, min(most // max(1, rows), taps))
        tiles = even(rows, most) if joined == 1 else [joined * rows]
        full, rest = divmod(needed, vectors)
        cost = sum(tiles.count(r) * (full * cycles(r, vectors) + (cycles(r, rest) if rest else 0.0)) for r in set(tiles)) / joined  # quarters: exact in any order
        if best is None or cost < best[0]:
            best = cost, most, vectors
    assert best is not None
    return best[1], best[2]


# -- the tile kernel --------------------------------------------------------------------------------------------------------------------------------

@record(frozen=True)
class _Tile:
    offsets: tuple[int, ...]  # of a's channels
    vectors: int
    tail: int
    pitch: int


def _tile_kernel(name: str, p: WeightPlan, tile: _Tile) -> str:
    """``name(a, b, c, rows, cols, acc)``: c (+)= the sum over rows x cols positions of a's channels times b's vectors."""
    f = Fn(name, _TILE_PARAMS, attrs="noinline nounwind")
    vec, nv = p.vec, tile.vectors
    mask = vec.mask(f, tile.tail) if tile.tail else None
    masks = [None] * (nv - 1) + [mask]
    out_masks = masks if p.direct else [None] * nv
    at = [i * tile.pitch + j * vec.bytes for i in range(len(tile.offsets)) for j in range(nv)]
    start = f.branch("%acc", lambda: [vec.load(f, f.at("%c", o), out_masks[i % nv]) for i, o in enumerate(at)],
                     lambda: [vec.zero] * len(at), [vec.type] * len(at))
    a_step, b_step = p.a.steps[-1], p.b.steps[-1]
    a_row, b_row = _row_steps(p)

    def column(v: list[str]) -> list[Val]:
        bs = [vec.load(f, f.at(v[2], j * vec.bytes), m) for j, m in enumerate(masks)]
        out: list[Val] = []
        if len(p.tiles) > 1 and p.a.channel == vec.size and not p.depthwise:  # the next tile's channels of this position: the line after a's, which no prefetcher guesses
            f.raw(f"call void @llvm.prefetch.p0(ptr {f.at(v[1], 64)}, i32 0, i32 3, i32 1)")
        for i, offset in enumerate(tile.offsets):
            if p.depthwise:
                xs = [vec.load(f, f.at(v[1], offset + j * vec.bytes), m) for j, m in enumerate(masks)]
            else:
                xs = [vec.splat(f, vec.load_elem(f, f.at(v[1], offset)))] * nv
            out += [vec.muladd(f, xs[j], bs[j], v[3 + i * nv + j]) for j in range(nv)]
        return [f.sub(v[0], 1), f.at(v[1], a_step), f.at(v[2], b_step), *out]

    def row(v: list[str]) -> list[Val]:
        init: list[tuple[str, Val]] = [("i64", "%cols"), ("ptr", v[1]), ("ptr", v[2]), *((vec.type, s) for s in v[3:])]
        done = f.loop(init, lambda u: f.cmp("sgt", u[0], 0), column)
        return [f.sub(v[0], 1), f.at(v[1], a_row), f.at(v[2], b_row), *done[3:]]

    init: list[tuple[str, Val]] = [("i64", "%rows"), ("ptr", "%a"), ("ptr", "%b"), *((vec.type, s) for s in start)]
    done = f.loop(init, lambda v: f.cmp("sgt", v[0], 0), row)[3:]
    for i, o in enumerate(at):
        vec.store(f, done[i], f.at("%c", o), out_masks[i % nv])
    f.ret()
    f.end()
    return f.text()


def _row_steps(p: WeightPlan) -> tuple[int, int]:
    """Bytes between rows of positions."""
    return (p.a.image, p.b.image) if p.batch_rows else (p.a.steps[-2], p.b.steps[-2])


# -- the loops around it ----------------------------------------------------------------------------------------------------------------------------

@record(frozen=True)
class _Group:
    """Taps along the row that share tiles, and the columns valid for each."""

    first: int
    count: int
    cols: tuple[tuple[int, int], ...]

    @property
    def common(self) -> tuple[int, int]:
        """Columns valid for all taps."""
        low, high = max(c[0] for c in self.cols), min(c[1] for c in self.cols)
        return low, max(low, high)


def _groups(p: WeightPlan) -> list[_Group]:
    axis = p.axes[-1]
    out = []
    for t in range(0, len(axis.taps), p.joined):
        n = min(p.joined, len(axis.taps) - t)
        out.append(_Group(t, n, tuple(axis.valid(i) for i in range(t, t + n))))
    return out


def weight_functions(name: str, p: WeightPlan) -> list[str]:
    """``name(x, y, work, weights, batch, low, high)``: the units [low, high) of the result, for all images; and what it calls."""
    f = Fn(name, RUN_PARAMS, linkage="hidden", attrs="noinline nounwind")
    texts: list[str] = []
    if p.rows and p.width and p.taps and p.groups:
        full = p.last == (p.vectors, 0)
        kinds = [True] if p.blocks == 1 else [False] if full else [False, True]
        for last in kinds:
            texts += _block(f"{name}_{'last' if last else 'full'}", p, last)
            texts += [] if p.direct else unpack(f"{name}_{'last' if last else 'full'}_unpack", p, last)
        _units(f, name, p, kinds)
    f.ret()
    f.end()
    return [*texts, f.text()]


def _units(f: Fn, name: str, p: WeightPlan, kinds: list[bool]) -> None:
    size = p.vec.size
    xs, ys = (p.b, p.a) if p.direct else (p.a, p.b)
    lanes = p.vectors * p.vec.lanes

    def unit(v: list[str]) -> list[Val]:
        b, chunk = f.udiv(v[0], p.chunks), f.op(f"urem i64 {v[0]}, {p.chunks}")
        group, block = f.udiv(b, p.blocks), f.op(f"urem i64 {b}, {p.blocks}")
        x, y = f.at("%x", f.add(f.mul(group, xs.group), xs.offset)), f.at("%y", f.mul(group, ys.group))
        a_ptr, b_ptr = (y, x) if p.direct else (x, y)
        b_ptr = f.at(b_ptr, f.mul(block, lanes * size))
        a_ptr = f.at(a_ptr, f.mul(block, lanes * size)) if p.depthwise else a_ptr
        out = f.at("%weights", f.add(f.mul(group, p.rows * p.pitch(False)), f.mul(block, lanes * size))) if p.direct else "%work"
        i0 = f.mul(chunk, p.chunk)
        i1 = f.min(f.add(i0, p.chunk), len(p.tiles))
        args = f"ptr {a_ptr}, ptr {b_ptr}, ptr {out}, i64 %batch, i64 {i0}, i64 {i1}"

        def call(kind: str) -> list[Val]:
            f.raw(f"call void @{name}_{kind}({args})")
            if not p.direct:
                home = f.at("%weights", f.mul(f.add(f.mul(group, p.width), f.mul(block, lanes)), p.home[0]))
                f.raw(f"call void @{name}_{kind}_unpack(ptr {out}, ptr {home}, i64 {_first_row(f, p, i0)}, i64 {_first_row(f, p, i1)})")
            return []

        if len(kinds) == 1:
            call("last" if kinds[0] else "full")
        else:
            f.branch(f.cmp("eq", block, p.blocks - 1), lambda: call("last"), lambda: call("full"), ())
        return [f.add(v[0], 1)]

    f.loop([("i64", "%low")], lambda v: f.cmp("slt", v[0], "%high"), unit)


def _first_row(f: Fn, p: WeightPlan, tile: Val) -> str:
    """Where a tile begins; the first ones may have a row more."""
    return f.add(f.mul(tile, p.tiles[-1]), f.min(tile, sum(n > p.tiles[-1] for n in p.tiles)))


class _Block:
    """Writes ``name(a, b, out, batch, i0, i1)``: the tiles [i0, i1) of one block of lanes, for all taps and images."""

    def __init__(self, name: str, p: WeightPlan, last: bool) -> None:
        self.p, self.last, self.name = p, last, name
        self.vectors, self.tail = p.last if last else (p.vectors, 0)
        self.kernels: dict[_Tile, str] = {}
        self.f = Fn(name, [("ptr", "a"), ("ptr", "b"), ("ptr", "out"), ("i64", "batch"), ("i64", "i0"), ("i64", "i1")], attrs="noinline nounwind")

    def kernel(self, offsets: tuple[int, ...]) -> str:
        """The name of the tile kernel whose rows are at ``offsets`` of a."""
        tile = _Tile(offsets, self.vectors, self.tail, self.p.pitch(self.last))
        return self.kernels.setdefault(tile, f"{self.name}_{len(self.kernels)}")

    def call(self, offsets: tuple[int, ...], a: str, b: str, c: str, rows: Val, cols: Val, acc: Val) -> None:
        self.f.raw(f"call void @{self.kernel(offsets)}(ptr {a}, ptr {b}, ptr {c}, i64 {rows}, i64 {cols}, i1 {acc})")

    def texts(self) -> list[str]:
        f, p = self.f, self.p
        planes = 1 if p.batch_rows else math.prod(a.count for a in p.axes[:-2])
        images: Val = 1 if p.batch_rows else f.select(f.cmp("sgt", "%batch", 0), "%batch", 1)
        f.for_(images, 1, lambda n: f.for_(max(1, planes), 1, lambda d: self.plane(n, d)))
        f.ret()
        f.end()
        return [*(_tile_kernel(n, p, t) for t, n in self.kernels.items()), f.text()]

    def plane(self, n: str, d: str) -> None:
        """One image, one index of the dims outside rows and columns: blocks of rows."""
        f, p = self.f, self.p
        a, b = f.at("%a", f.mul(n, p.a.image)), f.at("%b", f.mul(n, p.b.image))
        count: Val = "%batch" if p.batch_rows else p.axes[-2].count
        if not p.batch_rows:
            count = f.select(f.cmp("sgt", "%batch", 0), count, 0)
        index: list[Val] = []
        left: Val = d
        for axis in reversed(p.axes[:-2]):
            index.insert(0, f.op(f"urem i64 {left}, {max(1, axis.count)}"))
            left = f.udiv(left, max(1, axis.count))
            if axis.count == 0:
                count = 0
        for i, (ix, sa, sb) in enumerate(zip(index, p.a.steps, p.b.steps)):
            del i
            a, b = f.at(a, f.mul(ix, sa)), f.at(b, f.mul(ix, sb))
        start = f.cmp("eq", f.op(f"or i64 {n}, {d}"), 0)

        def rows(v: list[str]) -> tuple[list[Val], Val]:
            high = f.min(f.add(v[0], _rows_in_block(p)), count)
            first = f.both(start, f.cmp("eq", v[0], 0))
            self.outer_taps(0, index, (a, b, "%out"), (v[0], high), first)
            return [high], f.cmp("slt", high, count)

        f.do_loop([("i64", 0)], rows)

    def outer_taps(self, dim: int, index: list[Val], ptrs: tuple[str, str, str], rows: tuple[Val, Val], first: str) -> None:
        """Loops over the taps of the outer dims; a tap outside the input has no rows."""
        f, p = self.f, self.p
        a, b, c = ptrs
        if dim == len(p.axes) - 1:
            low = rows[0]
            sa, sb = _row_steps(p)
            count = f.sub(rows[1], low)
            needed = f.either(first, f.cmp("sgt", count, 0))
            acc = f.op(f"xor i1 {first}, true")
            a, b = f.at(a, f.mul(low, sa)), f.at(b, f.mul(low, sb))
            f.when(needed, lambda: self.columns(a, b, c, count, acc))
            return
        axis = p.axes[dim]
        step = self.p.tap_step(self.last) * math.prod(len(x.taps) for x in p.axes[dim + 1:])

        def tap(t: str) -> None:
            at = f.add(f.mul(t, axis.step), axis.off)
            pa, pb = f.at(a, f.mul(t, p.a.taps[dim])), f.at(b, f.mul(t, p.b.taps[dim]))
            if dim < len(index):
                here = f.add(f.mul(index[dim], axis.mul), at)
                inside = f.both(f.cmp("sge", here, 0), f.cmp("slt", here, axis.size))
                inner: tuple[Val, Val] = (rows[0], f.select(inside, rows[1], rows[0]))
            else:
                low, high = _valid(f, axis, at)
                low = f.max(low, rows[0])
                inner = (low, f.max(f.min(high, rows[1]), low))
            self.outer_taps(dim + 1, index, (pa, pb, f.at(c, f.mul(t, step))), inner, first)

        f.for_(len(axis.taps), 1, tap)

    def columns(self, a: str, b: str, c: str, rows: str, acc: Val) -> None:
        """All taps along the row, all tiles of the unit."""
        f, p = self.f, self.p
        sa, sb = p.a.steps[-1], p.b.steps[-1]
        ta, tb, step = p.a.taps[-1], p.b.taps[-1], p.tap_step(self.last)
        for g in _groups(p):
            low, high = g.common
            at_a, at_b, at_c = (f.at(q, g.first * s) for q, s in ((a, ta), (b, tb), (c, step)))
            from_a, from_b = f.at(at_a, low * sa), f.at(at_b, low * sb)
            if p.joined == 1:
                self.tiles(from_a, from_b, at_c, rows, high - low, acc)
                continue
            self.call(tuple(i * ta + r * p.a.channel for i in range(g.count) for r in range(p.rows)), from_a, from_b, at_c, rows, high - low, acc)
            for i, (l, h) in enumerate(g.cols):
                for l1, h1 in ((l, min(h, low)), (max(l, high), h)) if high > low else ((l, h),):
                    if l1 < h1:
                        one = tuple(r * p.a.channel for r in range(p.rows))
                        self.call(one, f.at(at_a, i * ta + l1 * sa), f.at(at_b, l1 * sb), f.at(at_c, i * step), rows, h1 - l1, "true")

    def tiles(self, a: str, b: str, c: str, rows: str, cols: Val, acc: Val) -> None:
        """The tiles [i0, i1): first those of one more row, then the others."""
        f, p = self.f, self.p
        sizes = p.tiles
        pitch, channel = p.pitch(self.last), p.a.channel
        larger = sum(s > sizes[-1] for s in sizes)
        for size, begin, end, base in ((sizes[0], 0, larger, 0), (sizes[-1], larger, len(sizes), larger * sizes[0])):
            if begin == end:
                continue
            low, high = f.max("%i0", begin), f.min("%i1", end)
            offsets = tuple(r * channel for r in range(size))

            def one(v: list[str], size: int = size, begin: int = begin, base: int = base, offsets: tuple[int, ...] = offsets) -> list[Val]:
                r = f.add(f.mul(f.sub(v[0], begin), size), base)
                self.call(offsets, f.at(a, f.mul(r, channel)), b, f.at(c, f.mul(r, pitch)), rows, cols, acc)
                return [f.add(v[0], 1)]

            f.loop([("i64", low)], lambda v, high=high: f.cmp("slt", v[0], high), one)  # type: ignore[misc]


def _block(name: str, p: WeightPlan, last: bool) -> list[str]:
    return _Block(name, p, last).texts()


def _rows_in_block(p: WeightPlan) -> int:
    """Rows of positions of which x's and y's channels of a unit stay in the first cache; more where they are few (a tile is read and written for them), which then
    stay in the second."""
    size, cols = p.vec.size, p.axes[-1].count
    a_bytes = cols * min(p.rows, p.chunk * p.most) * size
    b_bytes = cols * p.vectors * p.vec.bytes
    row = max(1, a_bytes + b_bytes)
    return max(1, _ROWS_BYTES // row, min(-(-_FEW // max(1, cols)), _MOST_BYTES // row))


def _valid(f: Fn, axis: Axis, at: str) -> tuple[str, str]:
    """The positions [low, high) for which a tap that reads at ``at`` for position 0 reads inside the input."""
    low = f.select(f.cmp("slt", at, 0), f.udiv(f.add(f.sub(0, at), axis.mul - 1), axis.mul), 0)
    room = f.sub(axis.size - 1, at)
    high = f.select(f.cmp("slt", room, 0), 0, f.min(f.add(f.udiv(room, axis.mul), 1), axis.count))
    return low, high


# -- the result out of the workspace ----------------------------------------------------------------------------------------------------------------

def unpack(name: str, p: WeightPlan, last: bool) -> list[str]:
    """``name(src, dst, r0, r1)``: rows [r0, r1) of a block of the workspace, for all taps, into the result."""
    f, vec, taps = Fn(name, [("ptr", "src"), ("ptr", "dst"), ("i64", "r0"), ("i64", "r1")], attrs="noinline nounwind"), p.vec, p.taps
    vectors, tail = p.last if last else (p.vectors, 0)
    texts: list[str] = []
    for valid, first, count in ((vec.lanes, 0, vectors - bool(tail)), (tail, vectors - 1, 1)):
        if not (count and valid):
            continue
        inner = f"{name}_{valid}"
        texts.append(_unpack_vector(inner, p, valid, p.pitch(last)))

        def vector(v: str, first: int = first, inner: str = inner) -> None:
            number = f.add(v, first)
            src, dst = f.at("%src", f.mul(number, vec.bytes)), f.at("%dst", f.mul(number, vec.lanes * p.home[0]))

            def run(q0: str, q1: str) -> None:
                f.raw(f"call void @{inner}(ptr {src}, ptr {dst}, i64 {q0}, i64 {q1})")

            if p.taps_outside:
                f.for_(taps, 1, lambda t: run(f.add(f.mul(t, p.rows), "%r0"), f.add(f.mul(t, p.rows), "%r1")))
            else:
                run(f.mul("%r0", taps), f.mul("%r1", taps))

        f.for_(count, 1, vector)
    f.ret()
    f.end()
    return [*texts, f.text()]


def _unpack_vector(name: str, p: WeightPlan, valid: int, row: int) -> str:
    """``name(src, dst, q0, q1)``: of one vector of filters the columns [q0, q1), tap and channel in the order of the result's memory, by vector shuffles."""
    f, vec = Fn(name, [("ptr", "src"), ("ptr", "dst"), ("i64", "q0"), ("i64", "q1")], attrs="noinline nounwind"), p.vec
    end = f.sub("%q1", 1)

    def source(q: Val) -> str:
        if p.taps_outside or p.taps == 1:
            return f.at("%src", f.mul(q, row))
        c, t = f.udiv(q, p.taps), f.op(f"urem i64 {q}, {p.taps}")
        return f.at("%src", f.mul(f.add(f.mul(t, p.rows), c), row))

    def block(q: str, mask: str | None) -> None:
        at = [f.add(q, i) for i in range(vec.lanes)]
        rows = [vec.load(f, source(i if mask is None else f.min(i, end))) for i in at]
        for i, value in enumerate(transpose(f, vec, rows)[:valid]):
            vec.store(f, value, f.at("%dst", f.add(f.mul(q, vec.size), i * p.home[0])), mask)

    if p.masked:  # one body for whole and partial blocks: a wide transpose is the dearest text to compile
        count = f.sub("%q1", "%q0")
        f.for_(count, vec.lanes, lambda i: block(f.add("%q0", i), vec.mask(f, f.sub(count, i))))
        f.ret()
        f.end()
        return f.text()

    def whole(v: list[str]) -> list[Val]:
        block(v[0], None)
        return [f.add(v[0], vec.lanes)]

    (q,) = f.loop([("i64", "%q0")], lambda v: f.cmp("sle", f.add(v[0], vec.lanes), "%q1"), whole)
    f.when(f.cmp("slt", q, "%q1"), lambda: block(q, vec.mask(f, f.sub("%q1", q))))
    f.ret()
    f.end()
    return f.text()
