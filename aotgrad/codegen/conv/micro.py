"""The tile kernel: a few adjacent outputs of one row times 1 to 4 vectors of channels, summed over all taps and channels in registers.

Taps of the outer dims are a loop with a count given at run time, so rows at the border run fewer of them. Taps along the row are cut into runs of the
same valid outputs, known when the text is written: tiles at the border have kernels of their own, and nothing outside the input is read.
Every element is one chain of multiply-adds in the order of taps and channels, so tiles never change a bit of the result.
"""

from __future__ import annotations

from aotgrad_runtime.records import record

from ..gemm.emit import Fn, Val, Vec
from ..gemm.pack import transpose
from .taps import TapSum

__all__ = ["Run", "Tile", "runs", "tile_kernel", "tile_params"]


@record(frozen=True)
class Run:
    """``count`` taps from ``first`` on that are valid for the outputs [low, high) of a tile."""

    first: int
    count: int
    low: int
    high: int


@record(frozen=True)
class Tile:
    """``rows`` outputs, ``vectors`` of channels, of which the last has ``tail`` valid lanes (0: all). ``ahead``: bytes from w to the
    next block, of which it fetches a share (``turn`` says which) of as many as there are ``turns``."""

    rows: int
    vectors: int
    tail: int
    runs: tuple[Run, ...]
    ahead: int = 0
    turns: int = 1


def runs(ts: TapSum, first: int, rows: int) -> tuple[Run, ...]:
    """The taps along the row of the outputs [first, first + rows), as runs of equal validity."""
    axis, out = ts.axes[-1], list[Run]()
    for t in range(len(axis.taps) if ts.depth else 0):
        low, high = (min(max(v - first, 0), rows) for v in axis.valid(t))
        if low >= high:
            continue
        last = out[-1] if out else None
        if last is not None and (last.low, last.high) == (low, high) and last.first + last.count == t:
            out[-1] = Run(last.first, last.count + 1, low, high)
        else:
            out.append(Run(t, 1, low, high))
    return tuple(out)


def tile_params(ts: TapSum, ahead: bool) -> list[tuple[str, str]]:
    """x and w at the first valid tap of the outer dims, y at the first output, the number of valid taps per outer dim, and which share is fetched ``ahead``."""
    return [("ptr", p) for p in ("x", "w", "y")] + [("i64", f"n{i}") for i in range(len(ts.axes) - 1)] + [("i64", "turn")] * ahead


def tile_kernel(name: str, ts: TapSum, vec: Vec, tile: Tile) -> str:
    """The text of one tile kernel."""
    f = Fn(name, tile_params(ts, bool(tile.ahead)), attrs="noinline nounwind")
    if ts.depth * ts.taps >= 16 and ts.target.channel == vec.size:
        _fetch_early(f, ts, vec, tile)
    acc: list[Val] = [vec.zero] * (tile.rows * tile.vectors)
    done = _outer(f, ts, vec, tile, 0, "%x", "%w", acc)
    _finish(f, ts, vec, tile, done)
    f.ret()
    f.end()
    return f.text()


def _fetch_early(f: Fn, ts: TapSum, vec: Vec, tile: Tile) -> None:
    """Starts reading the lines that the end of the tile writes."""
    for r in range(tile.rows):
        for at in range(0, tile.vectors * vec.bytes, 64):
            f.raw(f"call void @llvm.prefetch.p0(ptr {f.at('%y', r * ts.axes[-1].target + at)}, i32 1, i32 3, i32 1)")


def _outer(f: Fn, ts: TapSum, vec: Vec, tile: Tile, dim: int, x: str, w: str, acc: list[Val]) -> list[Val]:
    """The loop over the taps of outer dim ``dim``, or the row itself."""
    if dim == len(ts.axes) - 1:
        if ts.depthwise:
            return _row_of_vectors(f, ts, vec, tile, x, w, acc)
        for run in tile.runs:
            acc = _run(f, ts, vec, tile, run, x, w, acc)
        return acc
    axis = ts.axes[dim]
    inner = ts.depth * tile.vectors * vec.bytes
    for a in ts.axes[dim + 1:]:
        inner *= len(a.taps)

    def step(v: list[str]) -> list[Val]:
        out = _outer(f, ts, vec, tile, dim + 1, v[1], v[2], list(v[3:]))
        return [f.sub(v[0], 1), f.at(v[1], axis.step * axis.source), f.at(v[2], inner), *out]

    init: list[tuple[str, Val]] = [("i64", f"%n{dim}"), ("ptr", x), ("ptr", w), *((vec.type, a) for a in acc)]
    return list(f.loop(init, lambda v: f.cmp("sgt", v[0], 0), step)[3:])


def _row_of_vectors(f: Fn, ts: TapSum, vec: Vec, tile: Tile, x: str, w: str, acc: list[Val]) -> list[Val]:
    """acc += x * w lane by lane. All taps of the row are one block of text, in which equal loads of x are one load."""
    axis, nv, acc = ts.axes[-1], tile.vectors, list(acc)
    masks = [None] * (nv - 1) + [vec.mask(f, tile.tail) if tile.tail else None]
    row, step = axis.mul * axis.source, axis.step * axis.source
    for run in tile.runs:
        for t in range(run.first, run.first + run.count):
            for j, mask in enumerate(masks):
                wt = vec.load(f, f.at(w, (t * nv + j) * vec.bytes))
                for r in range(run.low, run.high):
                    at = r * nv + j
                    acc[at] = vec.muladd(f, vec.load(f, f.at(x, r * row + t * step + j * vec.bytes), mask), wt, str(acc[at]))
    return acc


def _run(f: Fn, ts: TapSum, vec: Vec, tile: Tile, run: Run, x: str, w: str, acc: list[Val]) -> list[Val]:
    """All channels of a run's taps: one loop where taps follow channels in memory, else two."""
    axis, k_step = ts.axes[-1], ts.source.channel
    per_tap = ts.depth * tile.vectors * vec.bytes
    x, w = f.at(x, run.first * axis.step * axis.source), f.at(w, run.first * per_tap)
    if run.count == 1 or (axis.step * axis.source == ts.depth * k_step):
        return _channels(f, ts, vec, tile, run, run.count * ts.depth, x, w, acc)

    def tap(v: list[str]) -> tuple[list[Val], Val]:
        out = _channels(f, ts, vec, tile, run, ts.depth, v[1], v[2], list(v[3:]))
        left = f.sub(v[0], 1)
        return [left, f.at(v[1], axis.step * axis.source), f.at(v[2], per_tap), *out], f.cmp("ne", left, 0)

    return f.do_loop([("i64", run.count), ("ptr", x), ("ptr", w), *((vec.type, a) for a in acc)], tap)[3:]


def _channels(f: Fn, ts: TapSum, vec: Vec, tile: Tile, run: Run, count: int, x: str, w: str, acc: list[Val]) -> list[Val]:
    """acc[low:high] += x[low:high, k] * w[k] for ``count`` steps of k."""
    axis, nv = ts.axes[-1], tile.vectors
    row = axis.mul * axis.source
    used = range(run.low * nv, run.high * nv)
    unroll = _unroll(count, len(used))
    fetched, distance = _share(f, vec, tile, unroll) if tile.ahead else ({}, "")

    def step(v: list[str]) -> tuple[list[Val], Val]:
        left, xk, wk, out = v[0], v[1], v[2], list[Val](v[3:])
        for u in range(unroll):
            for line in fetched.get(u, ()):
                f.raw(f"call void @llvm.prefetch.p0(ptr {f.at(f.at(wk, distance), 64 * line)}, i32 0, i32 2, i32 1)")
            ws = [vec.load(f, f.at(wk, (u * nv + j) * vec.bytes)) for j in range(nv)]
            for r in range(run.low, run.high):
                b = vec.splat(f, vec.load_elem(f, f.at(xk, r * row + u * ts.source.channel)))
                for j in range(nv):
                    at = (r - run.low) * nv + j
                    out[at] = vec.muladd(f, b, ws[j], str(out[at]))
        left = f.sub(left, unroll)
        return [left, f.at(xk, unroll * ts.source.channel), f.at(wk, unroll * nv * vec.bytes), *out], f.cmp("ne", left, 0)

    done = f.do_loop([("i64", count), ("ptr", x), ("ptr", w), *((vec.type, acc[i]) for i in used)], step)[3:]
    return [*acc[:used.start], *done, *acc[used.stop:]]


def _share(f: Fn, vec: Vec, tile: Tile, unroll: int) -> tuple[dict[int, list[int]], str]:
    """The lines of the next block that a round of ``unroll`` steps fetches, by step, and their distance from its weights. What has no share fetches lines of its own."""
    lines = max(1, unroll * tile.vectors * vec.bytes // 64)
    each = -(-lines // tile.turns)
    mine = f.both(f.cmp("sge", "%turn", 0), f.cmp("slt", "%turn", -(-lines // each)))
    steps: dict[int, list[int]] = {}
    for i in range(each):
        steps.setdefault(i * unroll // each, []).append(i)
    return steps, f.select(mine, f.add(f.mul("%turn", 64 * each), tile.ahead), 0)


def _unroll(count: int, chains: int) -> int:
    """Steps in one round: enough that the loop's own instructions do not count, a divisor of ``count``."""
    return next(u for u in (4, 3, 2, 1) if count % u == 0 and (u == 1 or u * chains <= 60))


def _finish(f: Fn, ts: TapSum, vec: Vec, tile: Tile, acc: list[Val]) -> None:
    """The stores."""
    if ts.target.channel != vec.size:
        _finish_across(f, ts, vec, tile, acc)
        return
    target = ts.axes[-1].target
    masks = [None] * (tile.vectors - 1) + [vec.mask(f, tile.tail) if tile.tail else None]
    for r in range(tile.rows):
        for j, m in enumerate(masks):
            vec.store(f, acc[r * tile.vectors + j], f.at("%y", r * target + j * vec.bytes), m)


def _finish_across(f: Fn, ts: TapSum, vec: Vec, tile: Tile, acc: list[Val]) -> None:
    """The same where positions are adjacent instead of channels: the tile is transposed, and stored as pieces of ``vec.lanes`` positions or fewer."""
    for j in range(tile.vectors):
        valid = tile.tail if tile.tail and j == tile.vectors - 1 else vec.lanes
        for first in range(0, tile.rows, vec.lanes):
            count = min(vec.lanes, tile.rows - first)
            mask = vec.mask(f, count) if count < vec.lanes else None
            rows = [str(acc[r * tile.vectors + j]) for r in range(first, first + count)]
            for i, value in enumerate(transpose(f, vec, [*rows, *[vec.zero] * (vec.lanes - count)])[:valid]):
                vec.store(f, value, f.at("%y", (j * vec.lanes + i) * ts.target.channel + first * vec.size), mask)
