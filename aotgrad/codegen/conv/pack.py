"""Weights into the form the tile kernels read: [group][block of channels][tap][k][channels of the block], the last block padded with zeros to whole vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aotgrad_runtime.records import record

from ..gemm.emit import Fn, Val
from ..gemm.pack import transpose
from .choose import Plan

__all__ = ["PACK_PARAMS", "Steps", "pack_function"]

PACK_PARAMS = [("ptr", "weights"), ("ptr", "packed")]
_AHEAD = 4  # steps of k
_ROW_AHEAD = 512  # bytes
_BLOCK_PARAMS = [("ptr", "weights"), ("ptr", "dst"), ("i64", "block")]
_VECTORS_PARAMS = [("ptr", "src"), ("ptr", "dst"), ("i64", "row"), ("i64", "count")]


@record(frozen=True)
class Steps:
    """Bytes between weights along the output channel, the input channel, the kernel position, and between groups."""

    lane: int
    k: int
    tap: int
    group: int


def pack_function(name: str, plan: Plan, taps: Sequence[int], steps: Steps) -> list[str]:
    """``name(weights, packed)``, and ``name_block(weights, dst, block)``: a block of channels alone, counted through all groups.

    ``taps``: the kernel positions in the order of the sum.
    """
    f = Fn(name, PACK_PARAMS, attrs="noinline nounwind")
    texts = []
    if plan.packed_bytes:
        texts = _block(f"{name}_block", plan, taps, steps)

        def one(g: str) -> None:
            dst, first = f.at("%packed", f.mul(g, plan.group_bytes)), f.mul(g, plan.blocks)
            f.for_(plan.blocks, 1, lambda b: f.raw(f"call void @{name}_block(ptr %weights, ptr {f.at(dst, f.mul(b, plan.block_bytes))}, i64 {f.add(first, b)})"))

        f.for_(plan.sum.groups, 1, one)
    f.ret()
    f.end()
    return [*texts, f.text()]


def _block(name: str, plan: Plan, taps: Sequence[int], steps: Steps) -> list[str]:
    """``name(weights, dst, block)``."""
    f, vec = Fn(name, _BLOCK_PARAMS, attrs="noinline nounwind"), plan.vec
    group, block = f.udiv("%block", plan.blocks), f.op(f"urem i64 %block, {plan.blocks}")
    src = f.at(f.at("%weights", f.mul(group, steps.group)), f.mul(block, plan.block * steps.lane))
    (last, tail), is_last = plan.last, f.cmp("eq", block, plan.blocks - 1)
    row, whole = f.select(is_last, last * vec.bytes, plan.vectors * vec.bytes), f.select(is_last, last - bool(tail), plan.vectors)
    texts = []
    if plan.blocks > 1 or last > bool(tail):
        texts.append(_vectors(f"{name}_whole", plan, vec.lanes, taps, steps))
        f.raw(f"call void @{name}_whole(ptr {src}, ptr %dst, i64 {row}, i64 {whole})")
    if tail:
        texts.append(_vectors(f"{name}_tail", plan, tail, taps, steps))
        at, to = f.at(src, (last - 1) * vec.lanes * steps.lane), f.at("%dst", (last - 1) * vec.bytes)
        f.when(is_last, lambda: f.raw(f"call void @{name}_tail(ptr {at}, ptr {to}, i64 {row}, i64 1)"))
    f.ret()
    f.end()
    return [*texts, f.text()]


def _vectors(name: str, plan: Plan, valid: int, taps: Sequence[int], steps: Steps) -> str:
    """``name(src, dst, row, count)``: ``count`` adjacent vectors of channels, of each of which ``valid`` exist, for all taps and k, to dst + (tap * depth + k) * row.
    The vectors of a block go together where their weights are neighbours: memory is read in longer pieces."""
    f, vec, depth = Fn(name, _VECTORS_PARAMS, attrs="noinline nounwind"), plan.vec, plan.sum.depth
    size, lanes, per_tap = vec.size, vec.lanes, f.mul("%row", plan.sum.depth)

    def each(src: str, dst: str, body: Callable[[str, str], None]) -> None:
        f.for_("%count", 1, lambda j: body(f.at(src, f.mul(j, lanes * steps.lane)), f.at(dst, f.mul(j, vec.bytes))))

    def copies(src: str, dst: str) -> None:
        mask = vec.mask(f, valid) if valid < lanes else None
        f.for_(depth, 1, lambda q: each(f.at(src, f.mul(q, steps.k)), f.at(dst, f.mul(q, "%row")), lambda at, to: vec.store(f, vec.load(f, at, mask), to)))

    def along_k(src: str, dst: str) -> None:
        whole = depth - depth % lanes
        f.for_(whole, lanes, lambda q: _transposed(f, plan, valid, f.at(src, f.mul(q, size)), steps.lane, lanes, _rows(f, dst, q)))
        if depth > whole:
            _transposed(f, plan, valid, f.at(src, whole * size), steps.lane, depth - whole, _rows(f, dst, whole))

    def along_taps(src: str, dst: str) -> None:
        for first in range(0, max(taps) + 1, lanes):
            columns = min(lanes, max(taps) + 1 - first)
            order = {t - first: i for i, t in enumerate(taps) if 0 <= t - first < lanes}
            if order:
                _transposed(f, plan, valid, f.at(src, first * size), steps.lane, columns,
                            lambda c, order=order: f.at(dst, f.mul(per_tap, order[c])) if c in order else None)  # type: ignore[misc]

    def ahead(src: str, dst: str) -> None:
        """Fetching what comes ``_AHEAD`` steps later: pieces of a few lines far apart, which no prefetcher guesses."""
        for line in range(0, lanes * steps.lane, 64):
            f.raw(f"call void @llvm.prefetch.p0(ptr {f.at(src, _AHEAD * steps.k + line)}, i32 0, i32 3, i32 1)")
        along_taps(src, dst)

    def rows_ahead(src: str, dst: str) -> None:
        """The same for rows of weights far apart."""
        for i in range(valid):
            f.raw(f"call void @llvm.prefetch.p0(ptr {f.at(src, i * steps.lane + _ROW_AHEAD)}, i32 0, i32 3, i32 1)")
        along_taps(src, dst)

    def over_k(src: str, dst: str, body: Callable[[str, str], None]) -> None:
        f.for_(depth, 1, lambda q: body(f.at(src, f.mul(q, steps.k)), f.at(dst, f.mul(q, "%row"))))

    if steps.lane == size:
        _runs(f, "%src", "%dst", taps, steps.tap, per_tap, copies)
    elif steps.k == size:
        each("%src", "%dst", lambda src, dst: _runs(f, src, dst, taps, steps.tap, per_tap, along_k))
    elif steps.lane < steps.k:
        over_k("%src", "%dst", lambda src, dst: each(src, dst, ahead))
    else:
        each("%src", "%dst", lambda src, dst: over_k(src, dst, rows_ahead))
    f.ret()
    f.end()
    return f.text()


def _runs(f: Fn, src: str, dst: str, taps: Sequence[int], step: int, per_tap: str, body: Callable[[str, str], None]) -> None:
    """``body(src, dst)`` for every tap, as one loop for each run of evenly spaced ones."""
    i = 0
    while i < len(taps):
        n = 1
        gap = taps[i + 1] - taps[i] if i + 1 < len(taps) else 1
        while i + n < len(taps) and taps[i + n] - taps[i + n - 1] == gap:
            n += 1
        at, to = f.at(src, taps[i] * step), f.at(dst, f.mul(per_tap, i))
        f.for_(n, 1, lambda t, at=at, to=to, gap=gap: body(f.at(at, f.mul(t, gap * step)), f.at(to, f.mul(t, per_tap))))  # type: ignore[misc]
        i += n


def _rows(f: Fn, dst: str, q: Val) -> Callable[[int], str | None]:
    base = f.at(dst, f.mul(q, "%row"))
    return lambda i: f.at(base, f.mul("%row", i))


def _transposed(f: Fn, plan: Plan, valid: int, src: str, lane: int, columns: int, to: Callable[[int], str | None]) -> None:
    """``columns`` adjacent elements of one row per lane, by vector shuffles: column i goes to ``to(i)``."""
    vec = plan.vec
    mask = vec.mask(f, columns) if columns < vec.lanes else None
    rows = [vec.load(f, f.at(src, i * lane), mask) if i < valid else vec.zero for i in range(vec.lanes)]
    for i, value in enumerate(transpose(f, vec, rows)[:columns]):
        at = to(i)
        if at is not None:
            vec.store(f, value, at)
