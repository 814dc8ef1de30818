"""Loops around the tile kernels: rows of an image, blocks of channels, units of work."""

from __future__ import annotations

from ..gemm.emit import Fn, Val
from .choose import Plan, Strip
from .micro import Tile, tile_kernel, tile_params
from .taps import Axis

__all__ = ["RUN_PARAMS", "STAGE_BYTES", "sum_functions"]

RUN_PARAMS = [("ptr", p) for p in ("x", "w", "y", "weights")] + [("i64", "batch"), ("i64", "low"), ("i64", "high")]
STAGE_BYTES = 64
"""Before a block that is packed when it is needed: the number of what is there."""
_ROW_PARAMS = [("ptr", p) for p in ("x", "w", "y")] + [("i64", "r0"), ("i64", "r1")]


def sum_functions(name: str, plan: Plan, stage: tuple[str, int] | None) -> list[str]:
    """``name(x, w, y, weights, batch, low, high)``: the units [low, high) of ``batch * groups * blocks * units``; and what it calls.

    ``stage``: the function that packs one block, and the number of this sum: w is room for one block, made of the weights when its first unit comes.
    """
    if plan.rows == 0 or plan.sum.axes[-1].count == 0 or plan.sum.width == 0 or plan.sum.groups == 0:
        f = Fn(name, RUN_PARAMS, attrs="noinline nounwind")
        f.ret()
        f.end()
        return [f.text()]
    texts: list[str] = []
    full = plan.last == (plan.vectors, 0)
    kinds = [True] if plan.blocks == 1 else [False] if full else [False, True]
    for last in kinds:
        texts += _block(f"{name}_{'last' if last else 'full'}", plan, last)
    texts.append(_units(name, plan, kinds, stage))
    return texts


def _block(name: str, plan: Plan, last: bool) -> list[str]:
    """``name(x, w, y, r0, r1)``: rows [r0, r1) of one image and one block of channels; and its tiles."""
    names: dict[Tile, str] = {}
    for s in plan.strips:
        names.setdefault(plan.tile(s, last), f"{name}_{len(names)}")
    texts = [tile_kernel(n, plan.sum, plan.vec, t) for t, n in names.items()]
    f = Fn(name, _ROW_PARAMS, attrs="noinline nounwind")
    start = sum(a.start for a in plan.sum.axes)
    y0 = f.at("%y", start)

    def row(v: list[str]) -> list[Val]:
        x, y, w, counts = _at_row(f, plan, v[0], y0, plan.tile(plan.strips[0], last).vectors)
        for s in plan.strips:
            _strip(f, plan, s, names[plan.tile(s, last)], (x, w, y), [*counts, *_ahead(f, plan, v[0])])
        return [f.add(v[0], 1)]

    f.loop([("i64", "%r0")], lambda v: f.cmp("slt", v[0], "%r1"), row)
    f.ret()
    f.end()
    return [*texts, f.text()]


def _ahead(f: Fn, plan: Plan, row: str) -> list[Val]:
    """Which share of the next block the tiles of a row fetch: so it comes from far away while this block computes."""
    return [f.sub(row, plan.turns.start)] if plan.ahead else []


def _at_row(f: Fn, plan: Plan, r: str, y: str, vectors: int) -> tuple[str, str, str, list[Val]]:
    """Pointers of row ``r`` at the first valid tap of each outer dim, and the numbers of valid taps."""
    ts = plan.sum
    index: list[Val] = []
    left: Val = r
    for a in reversed(ts.axes[1:-1]):
        index.insert(0, f.op(f"urem i64 {left}, {a.count}"))
        left = f.udiv(left, a.count)
    if len(ts.axes) > 1:
        index.insert(0, left)
    x, w, counts = "%x", "%w", list[Val]()
    per_tap = ts.depth * vectors * plan.vec.bytes * len(ts.axes[-1].taps)
    steps = [per_tap] * len(index)
    for d in range(len(index) - 2, -1, -1):
        steps[d] = steps[d + 1] * len(ts.axes[d + 1].taps)
    for d, i in enumerate(index):
        a = ts.axes[d]
        t0, t1 = _valid_taps(f, a, i)
        at = f.add(f.mul(i, a.mul), f.add(f.mul(t0, a.step), a.off))
        x, w = f.at(x, f.mul(at, a.source)), f.at(w, f.mul(t0, steps[d]))
        y = f.at(y, f.mul(i, a.target))
        counts.append(f.sub(t1, t0))
    return f.at(x, ts.axes[-1].off * ts.axes[-1].source), y, w, counts


def _valid_taps(f: Fn, a: Axis, i: Val) -> tuple[Val, Val]:
    """The taps [t0, t1) that read inside the input for output ``i`` (a run-time index)."""
    taps = len(a.taps)
    if a.always:
        return 0, taps
    at = f.add(f.mul(i, a.mul), a.off)
    below = f.sub(0, at)  # t * step >= below
    step = abs(a.step)
    t0: Val
    t1: Val
    assert a.step > 0
    t0 = f.select(f.cmp("sgt", below, 0), f.ceil_div(below, step) if step > 1 else below, 0)
    room = f.sub(a.size, at)  # t * step < room
    t1 = f.select(f.cmp("sgt", room, 0), f.ceil_div(room, step) if step > 1 else room, 0)
    t1 = f.min(t1, taps)
    return f.min(t0, t1), t1


def _strip(f: Fn, plan: Plan, s: Strip, kernel: str, ptrs: tuple[str, str, str], counts: list[Val]) -> None:
    """The calls of one strip's tiles."""
    a = plan.sum.axes[-1]
    x, w, y = ptrs
    types = [ty for ty, _ in tile_params(plan.sum, bool(plan.ahead))]

    def call(at: Val) -> None:
        xs = f.at(x, s.first * a.mul * a.source if at == 0 else f.add(f.mul(at, s.rows * a.mul * a.source), s.first * a.mul * a.source))
        out: Val = s.first * a.target if at == 0 else f.add(f.mul(at, s.rows * a.target), s.first * a.target)
        args = [xs, w, f.at(y, out), *counts]
        f.raw(f"call void @{kernel}({', '.join(f'{ty} {v}' for ty, v in zip(types, args, strict=True))})")

    if s.repeat == 1:
        call(0)
    else:
        f.for_(s.repeat, 1, call)


def _units(name: str, plan: Plan, kinds: list[bool], stage: tuple[str, int] | None) -> str:
    """The loop over units: (image, rows, group, block), or with the block outermost where the weights are the larger traffic."""
    f = Fn(name, RUN_PARAMS, attrs="noinline nounwind")
    ts, size = plan.sum, plan.vec.size
    blocks = ts.groups * plan.blocks

    def unit(v: list[str]) -> list[Val]:
        if plan.blocks_outside:
            inner = f.mul("%batch", plan.units)
            b, rest = f.udiv(v[0], inner), f.op(f"urem i64 {v[0]}, {inner}")
        else:
            rest, b = f.udiv(v[0], blocks), f.op(f"urem i64 {v[0]}, {blocks}")
        image, piece = f.udiv(rest, plan.units), f.op(f"urem i64 {rest}, {plan.units}")
        group, block = f.udiv(b, plan.blocks), f.op(f"urem i64 {b}, {plan.blocks}")
        x = f.at(f.at("%x", f.mul(image, ts.source.image)), f.mul(group, ts.depth * ts.source.channel))
        x = f.at(x, f.mul(block, plan.block * size)) if ts.depthwise else x
        if stage is None:
            w = f.at("%w", f.add(f.mul(group, plan.group_bytes), f.mul(block, plan.block_bytes)))
        else:
            w = _staged(f, stage, b)
        channel = f.add(f.mul(group, ts.width), f.mul(block, plan.block))
        out = f.add(f.mul(image, ts.target.image), f.mul(channel, ts.target.channel))
        y = f.at("%y", out)
        r0 = f.mul(piece, plan.unit)
        args = f"ptr {x}, ptr {w}, ptr {y}, i64 {r0}, i64 {f.min(f.add(r0, plan.unit), plan.rows)}"
        if len(kinds) == 1:
            f.raw(f"call void @{name}_{'last' if kinds[0] else 'full'}({args})")
        else:
            is_last = f.cmp("eq", block, plan.blocks - 1)
            f.branch(is_last, lambda: _call(f, f"{name}_last", args), lambda: _call(f, f"{name}_full", args), ())
        return [f.add(v[0], 1)]

    f.loop([("i64", "%low")], lambda v: f.cmp("slt", v[0], "%high"), unit)
    f.ret()
    f.end()
    return f.text()


def _staged(f: Fn, stage: tuple[str, int], block: str) -> str:
    """The packed block, made unless it is there: it stays in the second cache while all images pass, and takes no more memory than one."""
    pack, number = stage
    wanted, w = f.add(block, number << 32), f.at("%w", STAGE_BYTES)

    def fill() -> None:
        f.raw(f"call void @{pack}(ptr %weights, ptr {w}, i64 {block})")
        f.raw(f"store i64 {wanted}, ptr %w, align 8")

    f.when(f.cmp("ne", f.op("load i64, ptr %w, align 8"), wanted), fill)
    return w


def _call(f: Fn, name: str, args: str) -> list[Val]:
    f.raw(f"call void @{name}({args})")
    return []
