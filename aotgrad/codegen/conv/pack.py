"""Weights into the form the tile kernels read: [group][block of channels][tap][k][channels of the block], the last block padded with zeros to whole vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..gemm.emit import Fn, Val
from ..gemm.pack import transpose
from .choose import Plan

__all__ = ["PACK_PARAMS", "pack_function"]

PACK_PARAMS = [("ptr", "weights"), ("ptr", "packed")]


def pack_function(name: str, plan: Plan, taps: Sequence[int], lane: int, k: int, tap: int, group: int) -> list[str]:
    """``name(weights, packed)``. ``taps``: the kernel positions in the order of the sum; the others are the bytes between weights along the output
    channel, the input channel, the kernel position, and between groups."""
    f = Fn(name, PACK_PARAMS, attrs="noinline nounwind")
    texts = []
    if plan.packed_bytes:
        whole = plan.sum.width // plan.vec.lanes
        steps = Steps(lane, k, tap, group)
        for valid, first, count in ((0, 0, whole), (plan.sum.width % plan.vec.lanes, whole, 1)):
            if count and not valid and first == 0 and lane == plan.vec.size:
                texts.append(_copier(f"{name}_0", plan, taps, steps))
                _copied(f, f"{name}_0", plan, whole, steps)
            elif count and (valid or first == 0):
                texts.append(_vector(f"{name}_{valid}", plan, valid or plan.vec.lanes, taps, steps))
                _vectors(f, f"{name}_{valid}", plan, first, count, steps)
    f.ret()
    f.end()
    return [*texts, f.text()]


@dataclass(frozen=True)
class Steps:
    """Bytes between weights along the output channel, the input channel, the kernel position, and between groups."""

    lane: int
    k: int
    tap: int
    group: int


def _vectors(f: Fn, name: str, plan: Plan, first: int, count: int, steps: Steps) -> None:
    """Vectors of channels [first, first + count) of every group."""
    ts, vec = plan.sum, plan.vec
    column = ts.taps * ts.depth * vec.bytes  # all weights of a vector of channels
    full = (plan.blocks - 1) * plan.vectors  # vectors before the last block

    def one(g: str) -> None:
        def vector(v: str) -> None:
            number = f.add(v, first)
            src = f.at(f.at("%weights", f.mul(g, steps.group)), f.mul(number, steps.lane * vec.lanes))
            is_last = f.cmp("sge", number, full)
            vectors = f.select(is_last, plan.last[0], plan.vectors)
            block = f.select(is_last, full, f.mul(f.udiv(number, plan.vectors), plan.vectors))
            at = f.add(f.mul(block, column), f.mul(f.sub(number, block), vec.bytes))
            dst = f.at(f.at("%packed", f.mul(g, plan.group_bytes)), at)
            f.raw(f"call void @{name}(ptr {src}, ptr {dst}, i64 {f.mul(vectors, vec.bytes)})")

        f.for_(count, 1, vector)

    f.for_(ts.groups, 1, one)


def _copied(f: Fn, name: str, plan: Plan, whole: int, steps: Steps) -> None:
    """Blocks of the ``whole`` vectors of adjacent channels of every group, all vectors of a block together: memory is read in longer pieces."""
    ts, vec = plan.sum, plan.vec
    column = ts.taps * ts.depth * vec.bytes

    def one(g: str) -> None:
        src, dst = f.at("%weights", f.mul(g, steps.group)), f.at("%packed", f.mul(g, plan.group_bytes))

        def block(b: str) -> None:
            first = f.mul(b, plan.vectors)
            row = f.select(f.cmp("eq", b, plan.blocks - 1), plan.last[0] * vec.bytes, plan.vectors * vec.bytes)
            count = f.min(f.sub(whole, first), plan.vectors)
            f.raw(f"call void @{name}(ptr {f.at(src, f.mul(first, vec.bytes))}, ptr {f.at(dst, f.mul(first, column))}, i64 {row}, i64 {count})")

        f.for_(plan.blocks, 1, block)

    f.for_(ts.groups, 1, one)


def _copier(name: str, plan: Plan, taps: Sequence[int], steps: Steps) -> str:
    """``name(src, dst, row, count)``: ``count`` adjacent vectors of channels, for all taps and k, to dst + (tap * depth + k) * row."""
    f = Fn(name, [("ptr", "src"), ("ptr", "dst"), ("i64", "row"), ("i64", "count")], attrs="noinline nounwind")
    vec, depth = plan.vec, plan.sum.depth

    def tap(src: str, dst: str) -> None:
        def one(q: str) -> None:
            at, to = f.at(src, f.mul(q, steps.k)), f.at(dst, f.mul(q, "%row"))
            f.for_("%count", 1, lambda j: vec.store(f, vec.load(f, f.at(at, f.mul(j, vec.bytes))), f.at(to, f.mul(j, vec.bytes))))

        f.for_(depth, 1, one)

    _runs(f, taps, steps.tap, f.mul("%row", depth), tap)
    f.ret()
    f.end()
    return f.text()


def _vector(name: str, plan: Plan, valid: int, taps: Sequence[int], steps: Steps) -> str:
    """``name(src, dst, row)``: one vector of channels, of which ``valid`` exist, for all taps and k, to dst + (tap * depth + k) * row."""
    f = Fn(name, [("ptr", "src"), ("ptr", "dst"), ("i64", "row")], attrs="noinline nounwind")
    depth, size, lanes = plan.sum.depth, plan.vec.size, plan.vec.lanes
    per_tap = f.mul("%row", depth)
    if steps.lane == size or steps.k == size:
        def tap(src: str, dst: str) -> None:
            if steps.lane == size:
                _copies(f, plan, valid, src, steps.k, dst)
            else:
                f.for_(depth - depth % lanes, lanes, lambda q: _transposed(f, plan, valid, f.at(src, f.mul(q, size)), steps.lane, lanes, _rows(f, dst, q)))
                if depth % lanes:
                    q = depth - depth % lanes
                    _transposed(f, plan, valid, f.at(src, q * size), steps.lane, depth % lanes, _rows(f, dst, q))

        _runs(f, taps, steps.tap, per_tap, tap)
    else:  # kernel positions are adjacent
        def one(q: str) -> None:
            base, to = f.at("%src", f.mul(q, steps.k)), f.at("%dst", f.mul(q, "%row"))
            for first in range(0, max(taps) + 1, lanes):
                columns = min(lanes, max(taps) + 1 - first)
                order = {t - first: i for i, t in enumerate(taps) if 0 <= t - first < lanes}
                if order:
                    _transposed(f, plan, valid, f.at(base, first * size), steps.lane, columns,
                                lambda c, order=order: f.at(to, f.mul(per_tap, order[c])) if c in order else None)  # type: ignore[misc]

        f.for_(depth, 1, one)
    f.ret()
    f.end()
    return f.text()


def _runs(f: Fn, taps: Sequence[int], step: int, per_tap: str, body: Callable[[str, str], None]) -> None:
    """``body(src, dst)`` for every tap, as one loop for each run of evenly spaced ones."""
    i = 0
    while i < len(taps):
        n = 1
        gap = taps[i + 1] - taps[i] if i + 1 < len(taps) else 1
        while i + n < len(taps) and taps[i + n] - taps[i + n - 1] == gap:
            n += 1
        src, dst = f.at("%src", taps[i] * step), f.at("%dst", f.mul(per_tap, i))
        f.for_(n, 1, lambda t, src=src, dst=dst, gap=gap: body(f.at(src, f.mul(t, gap * step)), f.at(dst, f.mul(t, per_tap))))  # type: ignore[misc]
        i += n


def _rows(f: Fn, dst: str, q: Val) -> Callable[[int], str | None]:
    base = f.at(dst, f.mul(q, "%row"))
    return lambda i: f.at(base, f.mul("%row", i))


def _copies(f: Fn, plan: Plan, valid: int, src: str, k: int, dst: str) -> None:
    vec = plan.vec
    mask = vec.mask(f, valid) if valid < vec.lanes else None
    f.for_(plan.sum.depth, 1, lambda q: vec.store(f, vec.load(f, f.at(src, f.mul(q, k)), mask), f.at(dst, f.mul(q, "%row"))))


def _transposed(f: Fn, plan: Plan, valid: int, src: str, lane: int, columns: int, to: Callable[[int], str | None]) -> None:
    """``columns`` adjacent elements of one row per lane, by vector shuffles: column i goes to ``to(i)``."""
    vec = plan.vec
    mask = vec.mask(f, columns) if columns < vec.lanes else None
    rows = [vec.load(f, f.at(src, i * lane), mask) if i < valid else vec.zero for i in range(vec.lanes)]
    for i, value in enumerate(transpose(f, vec, rows)[:columns]):
        at = to(i)
        if at is not None:
            vec.store(f, value, at)
