"""Gradients of 3 x 3 weights in the transposed form of ``winograd.py``: G' [sum over tiles of (A y A') . (B' x B)] G, 16 products for a tile of y where 36 were.

A unit is some channels of x and some filters: their 16 sums stay in the second cache while the tiles of all images pass, a strip of rows at a time. Every sum is one
chain of multiply-adds in the order of images and tiles. What is not finite in the end is added up again by the definition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from aotgrad_runtime.records import record

from ..gemm.emit import Fn, Val, Vec
from ..target import Target
from .choose import even
from .exact import any_lane
from .spec import FORWARD, ConvSpec
from .taps import Axis, ints, tap_sums
from .weight_grad import RUN_PARAMS, WeightPlan, plan_weights, unpack
from .winograd import Tiles, inside, odd_lines, plan_tiles, store_x, turn_function

__all__ = ["WeightTiles", "plan_weight_tiles", "weight_tile_functions"]

_PLACES, _TAPS = 16, 9
_SUMS_BYTES = 512 << 10
_STRIP_BYTES = 384 << 10
_FILTERS = 64  # of a unit: x is transformed again for the next ones


@record(frozen=True)
class WeightTiles:
    """``depth`` channels of x and ``group`` blocks of filters a unit, tile kernels of up to ``most`` channels, ``rows`` of tiles at a time. ``out``: how results
    leave the workspace."""

    forward: Tiles
    out: WeightPlan
    most: int
    group: int
    depth: int
    rows: int

    @property
    def vec(self) -> Vec:
        return self.forward.vec

    @property
    def row(self) -> int:
        """Bytes of the filters of a block."""
        return self.out.vectors * self.vec.bytes

    @property
    def channels(self) -> int:
        return self.forward.sum.depth

    @property
    def filters(self) -> int:
        return self.out.width

    @property
    def parts(self) -> int:
        """Units of the same filters."""
        return -(-self.channels // self.depth)

    @property
    def last_depth(self) -> int:
        return self.channels - (self.parts - 1) * self.depth

    @property
    def units(self) -> int:
        return -(-self.out.blocks // self.group) * self.parts

    @property
    def ends(self) -> list[bool]:
        """Whether blocks are the last one: of fewer filters, or like all others."""
        return [True] if self.out.blocks == 1 else [False] if self.out.last == (self.out.vectors, 0) else [False, True]

    @property
    def turned(self) -> bool:
        """Whether x has adjacent positions: the rows of a strip are turned first."""
        return self.forward.turned[0]

    @property
    def axes(self) -> tuple[Axis, Axis]:
        """Rows and columns of x, as tiles read it."""
        down, across = self.forward.sum.axes
        if not self.turned:
            return down, across
        pitch = self.depth * self.vec.size
        return replace(down, source=across.size * pitch), replace(across, source=pitch)

    @property
    def tiles(self) -> int:
        return self.rows * self.forward.across

    @property
    def x_pitch(self) -> int:
        return odd_lines(self.depth * self.vec.size)

    @property
    def y_pitch(self) -> int:
        return odd_lines(self.group * self.row)

    @property
    def x_place(self) -> int:
        return odd_lines(self.tiles * self.x_pitch)

    @property
    def y_place(self) -> int:
        return odd_lines(self.tiles * self.y_pitch)

    @property
    def sums(self) -> int:
        """Bytes of the sums of one place and block."""
        return odd_lines(self.depth * self.row)

    # -- workspace: zeros, sums, transformed x and y, rows of x with adjacent channels, the taps of a block

    @property
    def sums_at(self) -> int:
        return max(self.x_pitch, self.y_pitch)

    @property
    def x_at(self) -> int:
        return self.sums_at + self.group * _PLACES * self.sums

    @property
    def y_at(self) -> int:
        return self.x_at + _PLACES * self.x_place

    @property
    def rows_at(self) -> int:
        return self.y_at + _PLACES * self.y_place

    @property
    def taps_at(self) -> int:
        return self.rows_at + (odd_lines((2 * self.rows + 2) * self.axes[0].source) if self.turned else 0)

    @property
    def work_bytes(self) -> int:
        return self.taps_at + _TAPS * self.channels * self.row


def plan_weight_tiles(spec: ConvSpec, target: Target) -> WeightTiles | None:
    """The plan where the forward sum of these sizes has one, and y has adjacent channels."""
    forward = plan_tiles(tap_sums(replace(spec, kind=FORWARD))[0], target)
    out = plan_weights(replace(spec, layouts=("contiguous", *spec.layouts[1:])), target)  # so that filters are the lanes
    if forward is None or out is None or forward.turned[1]:
        return None
    vec, (filters,) = forward.vec, ints((spec.filters,))
    vectors = min(4 if target.registers == 32 else 2, -(-filters // vec.lanes))
    out = replace(out, vectors=vectors)
    group = min(max(1, _FILTERS // (vectors * vec.lanes)), out.blocks)
    channels = forward.sum.depth
    parts = -(-channels // max(vec.lanes, _SUMS_BYTES // (_PLACES * group * vectors * vec.bytes)))
    depth = channels if parts == 1 else -(-channels // (parts * vec.lanes)) * vec.lanes
    made = WeightTiles(forward, out, min((target.registers - 1 - vectors) // vectors, 8), group, depth, 1)
    rows = max(1, _STRIP_BYTES // (_PLACES * (made.x_pitch + made.y_pitch) * forward.across))
    return replace(made, rows=-(-forward.down // -(-forward.down // rows)))


def weight_tile_functions(name: str, plan: WeightTiles) -> list[str]:
    """``name(x, y, work, weights, batch, low, high)`` as of ``weight_grad.py``, and what it calls."""
    texts = [_strip_of_x(f"{name}_x", plan), _strip_of_y(f"{name}_y", plan)]
    depths, kinds = sorted({plan.depth, plan.last_depth}), sorted({plan.out.vectors, plan.out.last[0]} if plan.out.blocks > 1 else {plan.out.last[0]})
    for nv in kinds:
        texts += [_products(f"{name}_t{nv}_{r}", plan, nv, r) for r in sorted({r for d in depths for r in even(d, plan.most)})]
        texts += [_places(f"{name}_places{nv}_{d}", plan, nv, d, f"{name}_t{nv}") for d in depths]
    for last in plan.ends:
        texts += unpack(f"{name}_unpack{int(last)}", plan.out, last)
    texts += [_taps(f"{name}_taps", plan), _exact(f"{name}_exact", plan)]
    if plan.turned:
        texts.append(turn_function(f"{name}_turn", plan.vec))
    return [*texts, _Units(name, plan).text()]


# ---- transforms -----------------------------------------------------------------------------------------------------------------------

_STRIP_PARAMS = [("ptr", "a"), ("ptr", "work"), ("i64", "r0"), ("i64", "r1"), ("i64", "whole"), ("i64", "tail")]


def _strip(f: Fn, plan: WeightTiles, at: int, pitch: int, lanes: int, tile: Callable[[str, str], Callable[[str, Val, str | None], None]]) -> None:
    """Tile by tile: ``tile(i, j)`` gives what is done for a place of the workspace, an offset in bytes of channels, and a mask."""
    mask = plan.vec.mask(f, lanes) if lanes else None

    def one(i: str, j: str, to: str) -> None:
        body = tile(i, j)
        f.for_("%whole", plan.vec.bytes, lambda q: body(f.at(to, q), q, None))
        if mask:
            f.when(f.cmp("ne", "%tail", 0), lambda: body(f.at(to, "%whole"), "%whole", mask))

    def row(v: list[str]) -> list[Val]:
        f.for_(plan.forward.across, 1, lambda j: one(v[0], j, f.at(v[1], f.mul(j, pitch))))
        return [f.add(v[0], 1), f.at(v[1], plan.forward.across * pitch)]

    f.loop([("i64", "%r0"), ("ptr", f.at("%work", at))], lambda v: f.cmp("slt", v[0], "%r1"), row)
    f.ret()
    f.end()


def _strip_of_x(name: str, plan: WeightTiles) -> str:
    """``name(a, work, r0, r1, whole, tail)``: B' x B of the tiles in the rows [r0, r1)."""
    f, vec = Fn(name, _STRIP_PARAMS, attrs="noinline nounwind"), plan.vec

    def tile(i: str, j: str) -> Callable[[str, Val, str | None], None]:
        rows = [inside(f, plan.axes[0], f.add(f.mul(i, 2), a)) for a in range(4)]
        columns = [inside(f, plan.axes[1], f.add(f.mul(j, 2), b)) for b in range(4)]
        at = [[f.select(f.both(r_in, c_in), f.at("%a", f.add(r, c)), "%work", "ptr") for c_in, c in columns] for r_in, r in rows]
        return lambda to, q, mask: store_x(f, vec, [[vec.load(f, f.at(p, q), mask) for p in row] for row in at], to, plan.x_place)

    _strip(f, plan, plan.x_at, plan.x_pitch, plan.channels % vec.lanes, tile)
    return f.text()


def _strip_of_y(name: str, plan: WeightTiles) -> str:
    """The same for A y A'; positions outside y are zeros."""
    f, vec = Fn(name, _STRIP_PARAMS, attrs="noinline nounwind"), plan.vec
    down, across = plan.forward.sum.axes

    def combine(p: list[str]) -> list[str]:
        return [p[0], vec.add(f, p[0], p[1]), f.op(f"fsub {vec.type} {p[0]}, {p[1]}"), f.op(f"fneg {vec.type} {p[1]}")]

    def tile(i: str, j: str) -> Callable[[str, Val, str | None], None]:
        at = []
        for a in range(2):
            for b in range(2):
                r, c = f.add(f.mul(i, 2), a), f.add(f.mul(j, 2), b)
                there = f.both(f.cmp("slt", r, down.count), f.cmp("slt", c, across.count))
                at.append(f.select(there, f.at("%a", f.add(f.mul(r, down.target), f.mul(c, across.target))), "%work", "ptr"))

        def body(to: str, q: Val, mask: str | None) -> None:
            e = [vec.load(f, f.at(p, q), mask) for p in at]
            columns = [combine([e[b], e[2 + b]]) for b in range(2)]
            for a in range(4):
                for b, value in enumerate(combine([columns[0][a], columns[1][a]])):
                    vec.store(f, value, f.at(to, (4 * a + b) * plan.y_place))

        return body

    _strip(f, plan, plan.y_at, plan.y_pitch, plan.filters % vec.lanes, tile)
    return f.text()


# ---- products -------------------------------------------------------------------------------------------------------------------------

def _products(name: str, plan: WeightTiles, nv: int, rows: int) -> str:
    """``name(v, e, c, count)``: c += the products of ``rows`` channels of x and ``nv`` vectors of filters over ``count`` tiles."""
    f, vec = Fn(name, [("ptr", "v"), ("ptr", "e"), ("ptr", "c"), ("i64", "count")], attrs="noinline nounwind"), plan.vec
    at = [(i * nv + j) * vec.bytes for i in range(rows) for j in range(nv)]
    start: list[tuple[str, Val]] = [(vec.type, vec.load(f, f.at("%c", o))) for o in at]

    def step(u: list[str]) -> tuple[list[Val], Val]:
        es = [vec.load(f, f.at(u[2], j * vec.bytes)) for j in range(nv)]
        out: list[Val] = []
        for i in range(rows):
            b = vec.splat(f, vec.load_elem(f, f.at(u[1], i * vec.size)))
            out += [vec.muladd(f, b, es[j], u[3 + i * nv + j]) for j in range(nv)]
        left = f.sub(u[0], 1)
        return [left, f.at(u[1], plan.x_pitch), f.at(u[2], plan.y_pitch), *out], f.cmp("ne", left, 0)

    done = f.do_loop([("i64", "%count"), ("ptr", "%v"), ("ptr", "%e"), *start], step)[3:]
    for value, o in zip(done, at, strict=True):
        vec.store(f, value, f.at("%c", o))
    f.ret()
    f.end()
    return f.text()


def _places(name: str, plan: WeightTiles, nv: int, depth: int, kernel: str) -> str:
    """``name(v, e, c, count)``: the products of ``depth`` channels and a block, place by place."""
    f = Fn(name, [("ptr", "v"), ("ptr", "e"), ("ptr", "c"), ("i64", "count")], attrs="noinline nounwind")
    sizes, row = even(depth, plan.most), nv * plan.vec.bytes

    def place(v: list[str]) -> list[Val]:
        first = 0
        for rows in dict.fromkeys(sizes):
            count = sizes.count(rows)

            def call(i: str, rows: int = rows, first: int = first) -> None:
                c = f.add(f.mul(i, rows), first)
                f.raw(f"call void @{kernel}_{rows}(ptr {f.at(v[1], f.mul(c, plan.vec.size))}, ptr {v[2]}, ptr {f.at(v[3], f.mul(c, row))}, i64 %count)")

            f.for_(count, 1, call)
            first += rows * count
        return [f.add(v[0], 1), f.at(v[1], plan.x_place), f.at(v[2], plan.y_place), f.at(v[3], plan.sums)]

    f.loop([("i64", 0), ("ptr", "%v"), ("ptr", "%e"), ("ptr", "%c")], lambda v: f.cmp("slt", v[0], _PLACES), place)
    f.ret()
    f.end()
    return f.text()


# ---- the result -----------------------------------------------------------------------------------------------------------------------

def _taps(name: str, plan: WeightTiles) -> str:
    """``name(c, taps, size, step) -> i1``: G' c G of ``size`` bytes of sums, taps ``step`` bytes apart; whether all of it is finite."""
    f, vec = Fn(name, [("ptr", "c"), ("ptr", "taps"), ("i64", "size"), ("i64", "step")], "i1", attrs="noinline nounwind"), plan.vec
    half = vec.splat(f, f.op(f"fadd {vec.elem} 0.5, 0.0"))

    def combine(p: list[str]) -> list[str]:
        total, difference = vec.add(f, p[1], p[2]), f.op(f"fsub {vec.type} {p[1]}, {p[2]}")
        return [vec.muladd(f, total, half, p[0]), f.op(f"fmul {vec.type} {difference}, {half}"), vec.muladd(f, total, half, p[3])]

    def one(v: list[str]) -> list[Val]:
        src, dst, seen = f.at("%c", v[0]), f.at("%taps", v[0]), v[1]
        columns = [combine([vec.load(f, f.at(src, (4 * a + b) * plan.sums)) for a in range(4)]) for b in range(4)]
        for a in range(3):
            for b, value in enumerate(combine([columns[c][a] for c in range(4)])):
                vec.store(f, value, f.at(dst, f.mul("%step", 3 * a + b)))
                seen = vec.muladd(f, value, vec.zero, seen)
        return [f.add(v[0], vec.bytes), seen]

    done = f.loop([("i64", 0), (vec.type, vec.zero)], lambda v: f.cmp("slt", v[0], "%size"), one)
    f.ret(f"i1 {any_lane(f, vec, f.op(f'fcmp uno {vec.type} {done[1]}, {done[1]}'))}")
    f.end()
    return f.text()


def _exact(name: str, plan: WeightTiles) -> str:
    """``name(x, y, taps, depth, valid, vectors, step, batch)``: what is not finite among the taps of ``depth`` channels and ``valid`` filters, as the sum over images and
    positions. A vector of sums that are NaN stays so: what is left of each row is left out."""
    params = [("ptr", p) for p in ("x", "y", "taps")] + [("i64", p) for p in ("depth", "valid", "vectors", "step", "batch")]
    f, vec = Fn(name, params, attrs="noinline nounwind"), plan.vec
    (down, across), source = plan.forward.sum.axes, plan.forward.source
    row_step, step = (across.size * vec.size, vec.size) if plan.turned else (down.source, across.source)
    target = plan.forward.target

    def valid(axis: Axis, t: str) -> tuple[str, str]:
        at = f.add(t, axis.off)
        return f.max(f.sub(0, at), 0), f.min(f.sub(axis.size, at), axis.count)

    def total(c: str, o: str, t: str, mask: str) -> str:
        i, j = f.udiv(t, 3), f.op(f"urem i64 {t}, 3")
        (p0, p1), (q0, q1) = valid(down, i), valid(across, j)
        first = f.add(f.mul(f.add(i, down.off), row_step), f.mul(f.add(j, across.off), step))
        x, y = f.at(f.at("%x", first), f.mul(c, source.channel)), f.at("%y", o)

        def open_(acc: str) -> str:
            return any_lane(f, vec, f.op(f"fcmp ord {vec.type} {acc}, {acc}"))

        def row(xn: str, yn: str, v: list[str]) -> list[Val]:
            xr, yr = f.at(xn, f.mul(v[0], row_step)), f.at(yn, f.mul(v[0], down.target))

            def column(u: list[str]) -> list[Val]:
                b = vec.splat(f, vec.load_elem(f, f.at(xr, f.mul(u[0], step))))
                return [f.add(u[0], 1), vec.muladd(f, b, vec.load(f, f.at(yr, f.mul(u[0], across.target)), mask), u[1])]

            return [f.add(v[0], 1), f.loop([("i64", q0), (vec.type, v[1])], lambda u: f.both(f.cmp("slt", u[0], q1), open_(u[1])), column)[1]]

        def image(v: list[str]) -> list[Val]:
            xn, yn = f.at(x, f.mul(v[0], source.image)), f.at(y, f.mul(v[0], target.image))
            done = f.loop([("i64", p0), (vec.type, v[1])], lambda u: f.cmp("slt", u[0], p1), lambda u: row(xn, yn, u))
            return [f.add(v[0], 1), done[1]]

        return f.loop([("i64", 0), (vec.type, vec.zero)], lambda v: f.cmp("slt", v[0], "%batch"), image)[1]

    def one(t: str, c: str, j: str) -> None:
        o = f.mul(j, vec.bytes)
        at = f.at(f.at("%taps", f.add(f.mul(t, "%step"), o)), f.mul(c, f.mul("%vectors", vec.bytes)))
        old = vec.load(f, at)
        zeros = f.op(f"fmul {vec.type} {old}, {vec.zero}")
        bad = f.op(f"fcmp uno {vec.type} {zeros}, {zeros}")

        def again() -> None:
            mask = vec.mask(f, f.sub("%valid", f.mul(j, vec.lanes)))
            vec.store(f, f.op(f"select {vec.mask_type} {bad}, {vec.type} {total(c, o, t, mask)}, {vec.type} {old}"), at)

        f.when(any_lane(f, vec, bad), again)

    f.for_(_TAPS, 1, lambda t: f.for_("%depth", 1, lambda c: f.for_("%vectors", 1, lambda j: one(t, c, j))))
    f.ret()
    f.end()
    return f.text()


# ---- units ----------------------------------------------------------------------------------------------------------------------------

class _Units:
    """Writes ``name(x, y, work, weights, batch, low, high)``."""

    def __init__(self, name: str, plan: WeightTiles) -> None:
        self.name, self.plan = name, plan
        self.f = Fn(name, RUN_PARAMS, linkage="hidden", attrs="noinline nounwind")

    def text(self) -> str:
        f = self.f
        _zero(f, "%work", self.plan.sums_at)
        f.loop([("i64", "%low")], lambda v: f.cmp("slt", v[0], "%high"), lambda v: self.unit(v[0]))
        f.ret()
        f.end()
        return f.text()

    def unit(self, number: str) -> list[Val]:
        """All images, then the blocks of filters; the next unit."""
        f, plan, size = self.f, self.plan, self.plan.vec.size
        part = f.op(f"urem i64 {number}, {plan.parts}")
        first, block = f.mul(part, plan.depth), f.mul(f.udiv(number, plan.parts), plan.group)
        depth = f.min(plan.depth, f.sub(plan.channels, first))
        blocks = f.min(plan.group, f.sub(plan.out.blocks, block))
        filters = f.min(plan.group * plan.row // size, f.sub(plan.filters, f.mul(block, plan.row // size)))
        x, y = f.at("%x", f.mul(first, plan.forward.source.channel)), f.at("%y", f.mul(block, plan.row))
        _zero(f, f.at("%work", plan.sums_at), plan.x_at - plan.sums_at)

        def strip(n: str, r: str) -> None:
            r1 = f.min(f.add(r, plan.rows), plan.forward.down)
            xn = self.turned(f.at(x, f.mul(n, plan.forward.source.image)), r, r1, depth) if plan.turned else f.at(x, f.mul(n, plan.forward.source.image))
            self.transform("x", xn, r, r1, depth)
            self.transform("y", f.at(y, f.mul(n, plan.forward.target.image)), r, r1, filters)
            count = f.mul(f.sub(r1, r), plan.forward.across)
            f.for_(blocks, 1, lambda b: self.products(b, f.add(block, b), part, count))

        f.for_("%batch", 1, lambda n: f.for_(plan.forward.down, plan.rows, lambda r: strip(n, r)))
        f.for_(blocks, 1, lambda b: self.result((x, y), b, f.add(block, b), first, depth))
        return [f.add(number, 1)]

    def turned(self, x: str, r0: str, r1: str, depth: str) -> str:
        """The rows of x that tiles read, channels adjacent; where its first row would be."""
        f, plan = self.f, self.plan
        down, across = plan.axes
        low = f.max(f.add(f.mul(r0, 2), down.off), 0)
        count = f.sub(f.min(f.add(f.mul(r1, 2), down.off + 2), down.size), low)
        to = f.at("%work", plan.rows_at)
        source = f.at(x, f.mul(low, across.size * plan.vec.size))
        args = f"ptr {to}, i64 {across.source}, ptr {source}, i64 {plan.forward.source.channel}, i64 {depth}, i64 {f.mul(count, across.size)}"
        f.raw(f"call void @{self.name}_turn({args})")
        return f.at(to, f.mul(low, -down.source))

    def transform(self, which: str, at: str, r0: str, r1: str, channels: str) -> None:
        f, vec = self.f, self.plan.vec
        whole, tail = f.mul(f.udiv(channels, vec.lanes), vec.bytes), f.op(f"urem i64 {channels}, {vec.lanes}")
        f.raw(f"call void @{self.name}_{which}(ptr {at}, ptr %work, i64 {r0}, i64 {r1}, i64 {whole}, i64 {tail})")

    def products(self, b: str, block: str, part: str, count: str) -> None:
        """The products of block ``block``, the unit's number ``b``."""
        f, plan = self.f, self.plan
        v, e = f.at("%work", plan.x_at), f.at("%work", f.add(f.mul(b, plan.row), plan.y_at))
        c = f.at("%work", f.add(f.mul(b, _PLACES * plan.sums), plan.sums_at))

        def call(last: bool) -> list[Val]:
            nv = plan.out.last[0] if last else plan.out.vectors

            def of(depth: int) -> list[Val]:
                f.raw(f"call void @{self.name}_places{nv}_{depth}(ptr {v}, ptr {e}, ptr {c}, i64 {count})")
                return []

            if plan.depth == plan.last_depth:
                return of(plan.depth)
            return list(f.branch(f.cmp("eq", part, plan.parts - 1), lambda: of(plan.last_depth), lambda: of(plan.depth), ()))

        self.by_block(block, call)

    def by_block(self, block: str, call: Callable[[bool], list[Val]]) -> None:
        """``call(last)`` for a block."""
        f, ends = self.f, self.plan.ends
        if len(ends) == 1:
            call(ends[0])
        else:
            f.branch(f.cmp("eq", block, self.plan.out.blocks - 1), lambda: call(True), lambda: call(False), ())

    def result(self, arrays: tuple[str, str], b: str, block: str, first: str, depth: str) -> None:
        """The taps of a block, and these to where they belong."""
        f, plan, vec = self.f, self.plan, self.plan.vec
        c, taps = f.at("%work", f.add(f.mul(b, _PLACES * plan.sums), plan.sums_at)), f.at("%work", plan.taps_at)
        x, y = arrays[0], f.at(arrays[1], f.mul(b, plan.row))
        lanes = plan.row // vec.size
        valid = f.min(lanes, f.sub(plan.filters, f.mul(block, lanes)))
        home = f.at("%weights", f.mul(f.mul(block, lanes), plan.out.home[0]))

        def call(last: bool) -> list[Val]:
            nv = plan.out.last[0] if last else plan.out.vectors
            row = nv * vec.bytes
            step = plan.channels * row
            bad = f.op(f"call i1 @{self.name}_taps(ptr {c}, ptr {taps}, i64 {f.mul(depth, row)}, i64 {step})")
            sizes = f"i64 {depth}, i64 {valid}, i64 {nv}, i64 {step}, i64 %batch"
            f.when(bad, lambda: f.raw(f"call void @{self.name}_exact(ptr {x}, ptr {y}, ptr {taps}, {sizes})"))
            f.raw(f"call void @{self.name}_unpack{int(last)}(ptr {f.at(taps, f.mul(first, -row))}, ptr {home}, i64 {first}, i64 {f.add(first, depth)})")
            return []

        self.by_block(block, call)


def _zero(f: Fn, at: str, size: int) -> None:
    f.for_(size, 64, lambda q: f.raw(f"store <16 x float> zeroinitializer, ptr {f.at(at, q)}, align 4"))
