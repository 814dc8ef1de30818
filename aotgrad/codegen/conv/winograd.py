"""3 x 3 convolutions with stride 1 by Winograd's F(2 x 2, 3 x 3): 16 products for four results in place of 36.

y = A' [(G w G') . (B' x B)] A for each tile of 2 x 2 results and the 4 x 4 places of x that it reads. The products of 16 places are 16 matrix products over channels,
by the tile kernels of ``micro.py``. Tiles of some rows at a time, so that what is transformed stays in the second cache. G is without its halves (weights lose no bit,
small or large); A has them.

Each result is computed from its own nine places and no others, in this form as in the definition, so NaN and infinity stay where they belong. A result that is not
finite may be so because a sum in between was: it is computed again by the definition (``exact.py``).
"""

from __future__ import annotations

from dataclasses import replace

from aotgrad_runtime.records import record

from ..gemm.emit import Fn, Val, Vec
from ..gemm.pack import transpose
from ..target import Target
from .choose import Plan, choose, cycles, even
from .exact import any_lane, exact_function
from .micro import Run, Tile, tile_kernel
from .pack import PACK_PARAMS, Steps, pack_function
from .taps import SIZES, Axis, Place, TapSum

__all__ = ["RUN_PARAMS", "Tiles", "fits", "inside", "odd_lines", "plan_tiles", "shaped", "store_x", "tile_functions", "turn_function"]

RUN_PARAMS = [("ptr", p) for p in ("x", "w", "y", "work")] + [("i64", "batch"), ("i64", "low"), ("i64", "high")]
_PLACES = 16
_BYTES, _DEEP_BYTES = 512 << 10, 900 << 10  # of what a unit transforms; where weights pass by from beyond the second cache, more tiles for each of their bytes
_L2_HALF = 640 << 10
# Measured on AVX-512 and AVX2, one image, weights transformed in the same call: what is below is no faster than the direct kernel.
_LEAST_CHANNELS, _LEAST_BOTH = 16, 48  # of x and of y; together
_LEAST_TILES = 32
_LEAST_WORK = 1 << 20  # operations of an image below which eager calls run on code for any size
_WEIGHTS_A_TILE = 16 << 10  # bytes


@record(frozen=True)
class Tiles:
    """How a sum is computed: ``rows`` of tiles a unit, ``vectors`` of output channels at once, tile kernels of up to ``most`` tiles."""

    sum: TapSum  # of channels-last images
    source: Place  # where x and y are
    target: Place
    vec: Vec
    vectors: int
    rows: int
    most: int
    pack: Plan  # the order of packed weights before they are transformed

    @property
    def down(self) -> int:
        return -(-self.sum.axes[0].count // 2)

    @property
    def across(self) -> int:
        return -(-self.sum.axes[1].count // 2)

    @property
    def units(self) -> int:
        """Units of work of one image."""
        return -(-self.down // self.rows)

    @property
    def most_tiles(self) -> int:
        return self.rows * self.across

    @property
    def last_tiles(self) -> int:
        """Tiles of the last unit."""
        return (self.down - (self.units - 1) * self.rows) * self.across

    @property
    def pitch(self) -> int:
        """Bytes between tiles of transformed x, an odd number of cache lines: no two places or tiles compete for one set."""
        return odd_lines(self.sum.depth * self.vec.size)

    @property
    def x_place(self) -> int:
        return odd_lines(self.most_tiles * self.pitch)

    @property
    def row(self) -> int:
        """Bytes of the products of one tile, place and block."""
        return self.vectors * self.vec.bytes

    @property
    def y_place(self) -> int:
        return odd_lines(self.most_tiles * self.row)

    @property
    def last_vectors(self) -> int:
        return self.pack.last[0]

    @property
    def tail(self) -> int:
        """Valid lanes of the last vector (0: all)."""
        return self.pack.last[1]

    @property
    def blocks(self) -> int:
        return self.pack.blocks

    @property
    def ahead(self) -> bool:
        """Whether the weights come from beyond the second cache, and are fetched while the place before is computed."""
        return self.direct_at > _L2_HALF

    @property
    def block_bytes(self) -> int:
        """Bytes of the transformed weights of a full block."""
        return _PLACES * self.sum.depth * self.row

    @property
    def direct_at(self) -> int:
        """Bytes of all transformed weights; behind them are the same ones packed for the definition."""
        return self.pack.packed_bytes // 9 * _PLACES

    @property
    def packed_bytes(self) -> int:
        return self.direct_at + self.pack.packed_bytes

    @property
    def turned(self) -> tuple[bool, bool]:
        """Whether x and y have adjacent positions: a unit's rows are turned on the way."""
        return self.source.channel != self.vec.size, self.target.channel != self.vec.size

    # -- workspace of a thread: a zero, room for results outside y, whether all was finite, transformed x, products, rows of x and of y with adjacent channels

    @property
    def spare_at(self) -> int:
        return self.pitch

    @property
    def flag_at(self) -> int:
        return self.spare_at + self.row

    @property
    def x_at(self) -> int:
        return self.flag_at + 64

    @property
    def y_at(self) -> int:
        return self.x_at + _PLACES * self.x_place

    @property
    def x_rows_at(self) -> int:
        return self.y_at + _PLACES * self.y_place

    @property
    def y_rows_at(self) -> int:
        down = self.sum.axes[0]
        return self.x_rows_at + (-(-(2 * self.rows + 2) * down.source // 64) * 64 if self.turned[0] else 0)

    @property
    def work_bytes(self) -> int:
        return self.y_rows_at + (-(-2 * self.rows * self.sum.axes[0].target // 64) * 64 if self.turned[1] else 0)


def odd_lines(size: int) -> int:
    """``size`` up to an odd number of cache lines."""
    lines = -(-size // 64)
    return 64 * (lines + 1 - lines % 2)


def plan_tiles(ts: TapSum, target: Target) -> Tiles | None:
    """The plan for a sum that has this form and is faster in it; None for others."""
    if not fits(ts) or not target.fma or target.vector_bits < 256:
        return None
    tiles = -(-ts.axes[0].count // 2) * -(-ts.axes[1].count // 2)
    small = 18 * ts.depth * ts.width * ts.outputs < _LEAST_WORK
    few = small or min(ts.depth, ts.width) < _LEAST_CHANNELS or ts.depth + ts.width < _LEAST_BOTH or tiles < _LEAST_TILES
    return None if few or ts.depth * ts.width * SIZES[ts.dtype] > _WEIGHTS_A_TILE * tiles else shaped(ts, target)


def fits(ts: TapSum) -> bool:
    """Whether the sum has this form: 3 x 3 places next to each other, dense on both sides."""
    return (not ts.depthwise and ts.groups == 1 and len(ts.axes) == 2 and all(len(a.taps) == 3 and a.mul == a.step == 1 and a.count > 0 and a.start == 0 for a in ts.axes)
            and ts.depth > 0 and ts.width > 0)


def shaped(ts: TapSum, target: Target) -> Tiles:
    """The plan for a sum of this form, faster or not."""
    vec = Vec(ts.dtype, target.lanes(ts.dtype), target.fma)
    wide = 4 if target.registers == 32 else 2
    needed = -(-ts.width // vec.lanes)
    vectors = min(wide, needed)
    most = (target.registers - 1 - vectors) // vectors
    most = min(most, 8)
    pack = replace(choose(ts, target), sum=ts, vectors=vectors, blocks_outside=False)
    made = Tiles(_last(ts, vec.size), ts.source, ts.target, vec, vectors, 1, most, pack)
    rows = [r for r in range(1, made.down + 1) if r == 1 or replace(made, rows=r).work_bytes <= (_DEEP_BYTES if made.ahead else _BYTES)]
    return replace(made, rows=min(rows, key=lambda r: (_price(replace(made, rows=r)), -r)))


def _last(ts: TapSum, size: int) -> TapSum:
    """The same sum of images with adjacent channels."""
    down, across = ts.axes
    x, y = ts.depth * size, ts.width * size
    axes = (replace(down, source=across.size * x, target=across.count * y), replace(across, source=x, target=y))
    return replace(ts, axes=axes, source=replace(ts.source, channel=size), target=replace(ts.target, channel=size))


def _price(plan: Tiles) -> float:
    """Cycles of the products of an image: tiles as they fall into kernels, and what is read again for every unit."""
    def unit(tiles: int) -> float:
        steps = plan.sum.depth
        return sum(cycles(r, plan.vectors) * steps + 20 for r in even(tiles, plan.most)) + steps * plan.vectors * 2.0

    total = (plan.units - 1) * unit(plan.most_tiles) + unit(plan.last_tiles)
    return total * (1.0 if plan.most_tiles == plan.last_tiles else 1.02)  # another text for the last unit


def tile_functions(name: str, plan: Tiles, taps: list[int], steps: Steps) -> list[str]:
    """``name_run`` and ``name_pack``, and what they call."""
    texts = [_input(f"{name}_input", plan)]
    kinds = {plan.vectors} if plan.blocks == 1 and plan.last_vectors == plan.vectors else {plan.vectors, plan.last_vectors}
    counts = sorted({plan.most_tiles, plan.last_tiles})
    for nv in sorted(kinds if plan.blocks > 1 else {plan.last_vectors}):
        for r in sorted({r for n in counts for r in even(n, plan.most)}):
            texts.append(_products(f"{name}_t{nv}_{r}", plan, nv, r))
        texts += [_places(f"{name}_places{nv}_{n}", plan, nv, n, f"{name}_t{nv}") for n in counts]
    texts.append(_output(f"{name}_output", plan))
    texts.append(exact_function(f"{name}_exact", replace(plan.pack, sum=plan.sum)))
    texts.append(_units(name, plan))
    if any(plan.turned):
        texts.append(turn_function(f"{name}_turn", plan.vec))
    texts += pack_function(f"{name}_direct", plan.pack, taps, steps)
    texts += [_weights(f"{name}_weights", plan), _pack(name, plan)]
    return texts


# ---- x --------------------------------------------------------------------------------------------------------------------------------

def _input(name: str, plan: Tiles) -> str:
    """``name(x, work, r0, r1)``: B' x B of the tiles in the rows [r0, r1) of one image."""
    f = Fn(name, [("ptr", "x"), ("ptr", "work"), ("i64", "r0"), ("i64", "r1")], attrs="noinline nounwind")
    ts, vec = plan.sum, plan.vec
    down, across = ts.axes
    whole, tail = divmod(ts.depth, vec.lanes)

    def tile(i: str, j: str, to: str) -> None:
        rows = [inside(f, down, f.add(f.mul(i, 2), a)) for a in range(4)]
        columns = [inside(f, across, f.add(f.mul(j, 2), b)) for b in range(4)]
        at = [[f.select(f.both(r_in, c_in), f.at("%x", f.add(r, c)), "%work", "ptr") for c_in, c in columns] for r_in, r in rows]

        def body(q: Val, mask: str | None) -> None:
            store_x(f, vec, [[vec.load(f, f.at(p, q), mask) for p in row] for row in at], f.at(to, q), plan.x_place)

        f.for_(whole * vec.bytes, vec.bytes, lambda q: body(q, None))
        if tail:
            body(whole * vec.bytes, vec.mask(f, tail))

    def row(v: list[str]) -> list[Val]:
        f.for_(plan.across, 1, lambda j: tile(v[0], j, f.at(v[1], f.mul(j, plan.pitch))))
        return [f.add(v[0], 1), f.at(v[1], plan.across * plan.pitch)]

    f.loop([("i64", "%r0"), ("ptr", f.at("%work", plan.x_at))], lambda v: f.cmp("slt", v[0], "%r1"), row)
    f.ret()
    f.end()
    return f.text()


def inside(f: Fn, axis: Axis, p: Val) -> tuple[str, str]:
    """Whether the first place that output ``p`` reads is in x, and how far it is from x's first one."""
    place = f.add(p, axis.off)
    return f.cmp("ult", place, axis.size), f.mul(place, axis.source)


def store_x(f: Fn, vec: Vec, d: list[list[str]], to: str, place: int) -> None:
    """B' d B, a row of places at a time."""
    def minus(x: str, y: str) -> str:
        return f.op(f"fsub {vec.type} {x}, {y}")

    def combine(p: list[str]) -> list[str]:
        return [minus(p[0], p[2]), vec.add(f, p[1], p[2]), minus(p[2], p[1]), minus(p[1], p[3])]

    columns = [combine([d[a][b] for a in range(4)]) for b in range(4)]
    for a in range(4):
        for b, value in enumerate(combine([columns[c][a] for c in range(4)])):
            vec.store(f, value, f.at(to, (4 * a + b) * place))


# ---- products -------------------------------------------------------------------------------------------------------------------------

def _products(name: str, plan: Tiles, nv: int, rows: int) -> str:
    """The products of ``rows`` tiles at one place: a convolution of one tap over a row."""
    size = plan.vec.size
    axis = Axis(rows, rows, 1, 0, 1, (0,), plan.pitch, plan.row)
    ts = TapSum(plan.sum.dtype, 1, plan.sum.depth, nv * plan.vec.lanes, (axis,), Place(0, size, ()), Place(0, size, ()))
    ahead = ts.depth * nv * plan.vec.bytes if plan.ahead else 0  # to the next place's weights, of which each call fetches a share
    turns = min(len(even(n, plan.most)) for n in (plan.most_tiles, plan.last_tiles))
    return tile_kernel(name, ts, plan.vec, Tile(rows, nv, 0, (Run(0, 1, 0, rows),), ahead, turns))


def _places(name: str, plan: Tiles, nv: int, tiles: int, kernel: str) -> str:
    """``name(w, work)``: the products of ``tiles`` tiles and one block, place by place."""
    f = Fn(name, [("ptr", "w"), ("ptr", "work")], attrs="noinline nounwind")
    sizes = even(tiles, plan.most)

    panel = plan.sum.depth * nv * plan.vec.bytes

    def place(v: list[str]) -> list[Val]:
        done = 0
        for rows in dict.fromkeys(sizes):
            count, first = sizes.count(rows), sum(sizes[:done])

            def call(i: str, rows: int = rows, first: int = first, done: int = done) -> None:
                t = f.add(f.mul(i, rows), first)
                ahead = f", i64 {f.add(i, done)}" if plan.ahead else ""
                f.raw(f"call void @{kernel}_{rows}(ptr {f.at(v[1], f.mul(t, plan.pitch))}, ptr {v[2]}, ptr {f.at(v[3], f.mul(t, plan.row))}{ahead})")

            f.for_(count, 1, call)
            done += count
        return [f.add(v[0], 1), f.at(v[1], plan.x_place), f.at(v[2], panel), f.at(v[3], plan.y_place)]

    f.loop([("i64", 0), ("ptr", f.at("%work", plan.x_at)), ("ptr", "%w"), ("ptr", f.at("%work", plan.y_at))], lambda v: f.cmp("slt", v[0], _PLACES), place)
    f.ret()
    f.end()
    return f.text()


# ---- y --------------------------------------------------------------------------------------------------------------------------------

def _output(name: str, plan: Tiles) -> str:
    """``name(y, work, r0, r1, whole, tail)``: A' m A of the tiles in the rows [r0, r1): bytes of whole vectors of channels, and whether one of fewer lanes follows.
    Whether all were finite is added to the workspace."""
    f = Fn(name, [("ptr", "y"), ("ptr", "work"), ("i64", "r0"), ("i64", "r1"), ("i64", "whole"), ("i64", "tail")], attrs="noinline nounwind")
    ts, vec = plan.sum, plan.vec
    flag, spare = f.at("%work", plan.flag_at), f.at("%work", plan.spare_at)
    half = vec.splat(f, "0.5" if vec.lanes == 1 else _constant(f, vec, 0.5))
    odd = any(a.count % 2 for a in ts.axes)

    def tile(i: str, j: str, source: str, seen: str) -> str:
        at: list[str] = []
        for a in range(2):
            for b in range(2):
                r, c = f.add(f.mul(i, 2), a), f.add(f.mul(j, 2), b)
                p = f.at("%y", f.add(f.mul(r, ts.axes[0].target), f.mul(c, ts.axes[1].target)))
                at.append(f.select(f.both(f.cmp("slt", r, ts.axes[0].count), f.cmp("slt", c, ts.axes[1].count)), p, spare, "ptr") if odd and a + b else p)

        def body(q: Val, mask: str | None, seen: str) -> str:
            for value, p in zip(_transformed_y(f, vec, f.at(source, q), plan.y_place, half), at):
                vec.store(f, value, f.at(p, q), mask)
                seen = vec.muladd(f, value, vec.zero, seen)
            return seen

        done = f.loop([("i64", 0), (vec.type, seen)], lambda v: f.cmp("slt", v[0], "%whole"), lambda v: [f.add(v[0], vec.bytes), body(v[0], None, v[1])])
        if not plan.tail:
            return done[1]
        mask = vec.mask(f, plan.tail)
        return f.branch(f.cmp("ne", "%tail", 0), lambda: [body("%whole", mask, done[1])], lambda: [done[1]], [vec.type])[0]

    def row(v: list[str]) -> list[Val]:
        done = f.loop([("i64", 0), ("ptr", v[1]), (vec.type, v[2])], lambda u: f.cmp("slt", u[0], plan.across),
                      lambda u: [f.add(u[0], 1), f.at(u[1], plan.row), tile(v[0], u[0], u[1], u[2])])
        return [f.add(v[0], 1), done[1], done[2]]

    end = f.loop([("i64", "%r0"), ("ptr", f.at("%work", plan.y_at)), (vec.type, vec.load(f, flag))], lambda v: f.cmp("slt", v[0], "%r1"), row)
    vec.store(f, end[2], flag)
    f.ret()
    f.end()
    return f.text()


def _constant(f: Fn, vec: Vec, value: float) -> str:
    return f.op(f"fadd {vec.elem} {value}, 0.0")


def _transformed_y(f: Fn, vec: Vec, source: str, place: int, half: str) -> list[str]:
    """A' m A: results 00, 01, 10, 11."""
    def combine(p: list[str]) -> list[str]:
        total, difference = vec.add(f, p[1], p[2]), f.op(f"fsub {vec.type} {p[1]}, {p[2]}")
        return [vec.muladd(f, total, half, p[0]), vec.muladd(f, difference, half, f.op(f"fneg {vec.type} {p[3]}"))]

    columns = [combine([vec.load(f, f.at(source, (4 * a + b) * place)) for a in range(4)]) for b in range(4)]
    return [value for a in range(2) for value in combine([columns[b][a] for b in range(4)])]


# ---- weights --------------------------------------------------------------------------------------------------------------------------

def _weights(name: str, plan: Tiles) -> str:
    """``name(src, dst, step)``: G w G' of ``step`` bytes of packed weights a tap, and as many a place: 9 to 16."""
    f, vec = Fn(name, [("ptr", "src"), ("ptr", "dst"), ("i64", "step")], attrs="noinline nounwind"), plan.vec

    def combine(p: list[str]) -> list[str]:
        ends = vec.add(f, p[0], p[2])
        return [p[0], vec.add(f, ends, p[1]), f.op(f"fsub {vec.type} {ends}, {p[1]}"), p[2]]

    def one(q: str) -> None:
        src, dst = f.at("%src", q), f.at("%dst", q)
        columns = [combine([vec.load(f, f.at(src, f.mul("%step", 3 * a + b))) for a in range(3)]) for b in range(3)]
        for a in range(4):
            for b, value in enumerate(combine([columns[c][a] for c in range(3)])):
                vec.store(f, value, f.at(dst, f.mul("%step", 4 * a + b)))

    f.for_("%step", vec.bytes, one)
    f.ret()
    f.end()
    return f.text()


def _pack(name: str, plan: Tiles) -> str:
    """``name_pack(weights, packed)``: [block][place][channel][channels of the block], then the same of taps."""
    f = Fn(f"{name}_pack", PACK_PARAMS, linkage="hidden", attrs="nounwind")

    def block(b: str) -> None:
        room = f.at("%packed", f.add(f.mul(b, plan.pack.block_bytes), plan.direct_at))
        f.raw(f"call void @{name}_direct_block(ptr %weights, ptr {room}, i64 {b})")
        step = f.select(f.cmp("eq", b, plan.blocks - 1), plan.sum.depth * plan.last_vectors * plan.vec.bytes, plan.sum.depth * plan.row)
        f.raw(f"call void @{name}_weights(ptr {room}, ptr {f.at('%packed', f.mul(b, plan.block_bytes))}, i64 {step})")

    f.for_(plan.blocks, 1, block)
    f.ret()
    f.end()
    return f.text()


# ---- units ----------------------------------------------------------------------------------------------------------------------------

def _units(name: str, plan: Tiles) -> str:
    """``name_run(x, w, y, work, batch, low, high)``: the units [low, high) of ``batch * units``: rows of tiles of one image, all channels."""
    f, vec, ts = Fn(f"{name}_run", RUN_PARAMS, linkage="hidden", attrs="nounwind"), plan.vec, plan.sum
    flag = f.at("%work", plan.flag_at)
    f.for_(plan.pitch, 64, lambda q: f.raw(f"store <16 x float> zeroinitializer, ptr {f.at('%work', q)}, align 4"))

    def unit(v: list[str]) -> list[Val]:
        image, piece = f.udiv(v[0], plan.units), f.op(f"urem i64 {v[0]}, {plan.units}")
        x, y = f.at("%x", f.mul(image, plan.source.image)), f.at("%y", f.mul(image, plan.target.image))
        r0 = f.mul(piece, plan.rows)
        r1 = f.min(f.add(r0, plan.rows), plan.down)
        p0, p1 = f.mul(r0, 2), f.min(f.mul(r1, 2), ts.axes[0].count)
        vec.store(f, vec.zero, flag)
        x = _turned_x(f, name, plan, x, r0, r1) if plan.turned[0] else x
        to = f.at(f.at("%work", plan.y_rows_at), f.mul(p0, -ts.axes[0].target)) if plan.turned[1] else y
        f.raw(f"call void @{name}_input(ptr {x}, ptr %work, i64 {r0}, i64 {r1})")
        f.for_(plan.blocks - 1, 1, lambda b: _block(f, name, plan, (to, r0, r1, piece), b, plan.vectors))
        _block(f, name, plan, (to, r0, r1, piece), plan.blocks - 1, plan.last_vectors)
        seen = vec.load(f, flag)
        f.when(any_lane(f, vec, f.op(f"fcmp uno {vec.type} {seen}, {seen}")),
               lambda: f.raw(f"call void @{name}_exact(ptr {x}, ptr {f.at('%w', plan.direct_at)}, ptr {to}, i64 {p0}, i64 {p1})"))
        if plan.turned[1]:
            across = ts.axes[1]
            first, count = f.mul(p0, across.count * vec.size), f.mul(f.sub(p1, p0), across.count)
            _turn(f, name, (f.at(y, first), plan.target.channel), (f.at("%work", plan.y_rows_at), across.target), count, ts.width)
        return [f.add(v[0], 1)]

    f.loop([("i64", "%low")], lambda v: f.cmp("slt", v[0], "%high"), unit)
    f.ret()
    f.end()
    return f.text()


def _turned_x(f: Fn, name: str, plan: Tiles, x: str, r0: str, r1: str) -> str:
    """The rows of x that the tiles [r0, r1) read, channels adjacent; where its first row would be."""
    down, across = plan.sum.axes
    first = f.max(f.add(f.mul(r0, 2), down.off), 0)
    count = f.sub(f.min(f.add(f.mul(r1, 2), down.off + 2), down.size), first)
    to = f.at("%work", plan.x_rows_at)
    _turn(f, name, (to, across.source), (f.at(x, f.mul(first, across.size * plan.vec.size)), plan.source.channel), plan.sum.depth, f.mul(count, across.size))
    return f.at(to, f.mul(first, -down.source))


def _turn(f: Fn, name: str, to: tuple[str, int], source: tuple[str, int], rows: Val, columns: Val) -> None:
    f.raw(f"call void @{name}_turn(ptr {to[0]}, i64 {to[1]}, ptr {source[0]}, i64 {source[1]}, i64 {rows}, i64 {columns})")


def turn_function(name: str, vec: Vec) -> str:
    """``name(dst, ds, src, ss, rows, columns)``: dst[c, r] = src[r, c], in blocks of vectors; nothing else is read or written."""
    f = Fn(name, [("ptr", "dst"), ("i64", "ds"), ("ptr", "src"), ("i64", "ss"), ("i64", "rows"), ("i64", "columns")], attrs="noinline nounwind")
    n = vec.lanes

    def block(r: str, c: str) -> None:
        deep, wide = f.min(f.sub("%rows", r), n), f.min(f.sub("%columns", c), n)
        in_row, in_column = vec.mask(f, wide), vec.mask(f, deep)
        src, dst = f.at("%src", f.add(f.mul(r, "%ss"), f.mul(c, vec.size))), f.at("%dst", f.add(f.mul(c, "%ds"), f.mul(r, vec.size)))
        # Rows that are not there are the last one once more, and written nowhere; so are columns.
        values = [vec.load(f, f.at(src, f.mul(f.min(i, f.sub(deep, 1)), "%ss")), in_row) for i in range(n)]
        for i, value in enumerate(transpose(f, vec, values)):
            def put(i: int = i, value: str = value) -> None:
                vec.store(f, value, f.at(dst, f.mul(i, "%ds")), in_column)
            f.when(f.cmp("slt", i, wide), put)

    f.for_("%columns", n, lambda c: f.for_("%rows", n, lambda r: block(r, c)))
    f.ret()
    f.end()
    return f.text()


def _block(f: Fn, name: str, plan: Tiles, where: tuple[str, str, str, str], b: Val, nv: int) -> None:
    """Products and results of block ``b`` of ``nv`` vectors."""
    y, r0, r1, piece = where
    w = f.at("%w", f.mul(b, plan.block_bytes))

    def call(tiles: int) -> list[Val]:
        f.raw(f"call void @{name}_places{nv}_{tiles}(ptr {w}, ptr %work)")
        return []

    if plan.most_tiles == plan.last_tiles:
        call(plan.most_tiles)
    else:
        f.branch(f.cmp("eq", piece, plan.units - 1), lambda: call(plan.last_tiles), lambda: call(plan.most_tiles), ())
    tail = int(bool(plan.tail)) if nv == plan.last_vectors and b == plan.blocks - 1 else 0
    at = f.at(y, f.mul(b, plan.row))
    f.raw(f"call void @{name}_output(ptr {at}, ptr %work, i64 {r0}, i64 {r1}, i64 {(nv - tail) * plan.vec.bytes}, i64 {tail})")
