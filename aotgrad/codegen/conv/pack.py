"""Weights into the form the tile kernels read: [group][block of channels][tap][k][channels of the block], the last block padded with zeros to whole vectors."""

from __future__ import annotations

from ..gemm.emit import Fn, Val
from ..gemm.pack import transpose
from .choose import Plan

__all__ = ["PACK_PARAMS", "pack_function"]

PACK_PARAMS = [("ptr", "weights"), ("ptr", "packed")]


def pack_function(name: str, plan: Plan, taps: list[int], lane: int, k: int, tap: int, group: int) -> list[str]:
    """``name(weights, packed)``. ``taps``: the kernel positions in the order of the sum; the others are the bytes between weights along the output
    channel, the input channel, the kernel position, and between groups."""
    f = Fn(name, PACK_PARAMS, attrs="noinline nounwind")
    if plan.packed_bytes:
        kinds = [(False, plan.blocks - 1), (True, 1)]
        for last, count in kinds:
            if count:
                _blocks(f, plan, last, count, taps, (lane, k, tap, group))
    f.ret()
    f.end()
    return [f.text()]


def _blocks(f: Fn, plan: Plan, last: bool, count: int, taps: list[int], steps: tuple[int, int, int, int]) -> None:
    """``count`` blocks of every group."""
    ts, vec = plan.sum, plan.vec
    lane, _, _, group = steps
    vectors = plan.last[0] if last else plan.vectors
    block_bytes = ts.taps * ts.depth * plan.block * vec.size
    first = plan.blocks - 1 if last else 0

    def one(g: str) -> None:
        def block(b: str) -> None:
            number = f.add(b, first)
            for j in range(vectors):
                src = f.at(f.at("%weights", f.mul(g, group)), f.mul(f.add(f.mul(number, plan.vectors), j), lane * vec.lanes))
                dst = f.at(f.at("%packed", f.mul(g, plan.group_bytes)), f.add(f.mul(number, block_bytes), j * vec.bytes))
                valid = plan.last[1] if last and j == vectors - 1 else 0
                _vector(f, plan, valid or vec.lanes, taps, steps, src, dst, vectors * vec.bytes)

        f.for_(count, 1, block)

    f.for_(ts.groups, 1, one)


def _vector(f: Fn, plan: Plan, valid: int, taps: list[int], steps: tuple[int, int, int, int], src: str, dst: str, row: int) -> None:
    """One vector of channels, for all taps and k: dst + (tap * depth + k) * row."""
    lane, k, tap, _ = steps
    depth, size = plan.sum.depth, plan.vec.size
    if lane == size:
        for i, t in enumerate(taps):
            _copies(f, plan, valid, f.at(src, t * tap), k, f.at(dst, i * depth * row), row)
    elif k == size:
        for i, t in enumerate(taps):
            _transposed(f, plan, valid, f.at(src, t * tap), lane, depth, lambda q, i=i: f.at(dst, f.add(f.mul(q, row), i * depth * row)))  # type: ignore[misc]
    else:
        _gathers(f, plan, valid, taps, steps, src, dst, row)


def _copies(f: Fn, plan: Plan, valid: int, src: str, k: int, dst: str, row: int) -> None:
    vec = plan.vec
    mask = vec.mask(f, valid) if valid < vec.lanes else None
    f.for_(plan.sum.depth, 1, lambda q: vec.store(f, vec.load(f, f.at(src, f.mul(q, k)), mask), f.at(dst, f.mul(q, row))))


def _transposed(f: Fn, plan: Plan, valid: int, src: str, lane: int, count: int, to: object) -> None:
    """Columns of ``count`` adjacent elements, one row per lane, by vector shuffles."""
    assert callable(to)
    vec = plan.vec

    def block(q: Val, columns: int) -> None:
        mask = vec.mask(f, columns) if columns < vec.lanes else None
        base = f.at(src, f.mul(q, vec.size))
        rows = [vec.load(f, f.at(base, i * lane), mask) if i < valid else vec.zero for i in range(vec.lanes)]
        for i, value in enumerate(transpose(f, vec, rows)[:columns]):
            vec.store(f, value, to(f.add(q, i)))

    whole = count - count % vec.lanes
    if whole:
        f.for_(whole, vec.lanes, lambda q: block(q, vec.lanes))
    if count > whole:
        block(whole, count - whole)


def _gathers(f: Fn, plan: Plan, valid: int, taps: list[int], steps: tuple[int, int, int, int], src: str, dst: str, row: int) -> None:
    """Neither channels nor k are adjacent: element by element."""
    lane, k, tap, _ = steps
    vec, depth = plan.vec, plan.sum.depth

    def one(q: str) -> None:
        for i, t in enumerate(taps):
            out = f.at(dst, f.add(f.mul(q, row), i * depth * row))
            if valid < vec.lanes:
                vec.store(f, vec.zero, out)
            for n in range(valid):
                vec.store_elem(f, vec.load_elem(f, f.at(f.at(src, f.mul(q, k)), t * tap + n * lane)), f.at(out, n * vec.size))

    f.for_(depth, 1, one)
