"""Where parts of a block of memory go, when sizes and lifetimes of all are known: the least memory is asked for, largest parts first.

Least memory is NP-hard here too (dynamic storage allocation). Largest first, each into the smallest gap that is free for all of its life, is within a few percent of what
is alive at once in practice, and exactly that for most programs met; the order of time is tried where it is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ..ir.dims import DimLike

__all__ = ["Block", "alive", "place"]

_NEVER: Final = 1 << 60


class Block:
    """A part: ``size`` in bytes, asked for at ``start``, given back at ``end``; its ``offset`` is known when it is placed."""

    __slots__ = ("end", "offset", "size", "start")

    def __init__(self, size: DimLike, start: int, offset: DimLike = 0) -> None:
        self.size, self.start, self.offset = size, start, offset
        self.end = _NEVER


def place(blocks: Sequence[Block]) -> int:
    """Sets the offsets of blocks of known sizes; gives how many bytes they need together."""
    table = np.array([(b.size, b.start, b.end) for b in blocks], np.int64).reshape(-1, 3)
    least, orders = alive(table), (_by_size, _by_life, _by_time)
    best: Any = None
    total = 0
    for order in orders:
        found = _first_fit(table, order(table))
        size = int((found + table[:, 0]).max(initial=0))
        if best is None or size < total:
            best, total = found, size
        if total == least:
            break
    for b, at in zip(blocks, best.tolist()):
        b.offset = at
    return total


def alive(table: Any) -> int:
    """The most bytes that are alive at once."""
    events = sorted([(start, size) for size, start, _ in table.tolist()] + [(end, -size) for size, _, end in table.tolist()])
    now = most = 0
    for _, change in events:
        now += change
        most = max(most, now)
    return most


def _by_size(table: Any) -> Any:
    return np.lexsort((table[:, 1], -table[:, 0]))


def _by_life(table: Any) -> Any:
    return np.lexsort((table[:, 1], -table[:, 0] * np.minimum(table[:, 2] - table[:, 1], 1 << 20)))


def _by_time(table: Any) -> Any:
    return np.argsort(table[:, 1], kind="stable")


def _first_fit(table: Any, order: Any) -> Any:
    """Each block in turn at the start of the smallest gap that holds it, between the blocks that live at the same time and have a place."""
    size, start, end = table[:, 0], table[:, 1], table[:, 2]
    offsets = np.zeros(len(table), np.int64)
    for n, i in enumerate(order):
        placed = order[:n]
        meet = placed[(start[placed] < end[i]) & (end[placed] > start[i])]
        meet = meet[np.argsort(offsets[meet], kind="stable")]
        offsets[i] = _gap(offsets[meet], size[meet], int(size[i]))
    return offsets


def _gap(offsets: Any, sizes: Any, size: int) -> int:
    if not len(offsets):
        return 0
    ends = np.maximum.accumulate(offsets + sizes)
    before = np.concatenate([[0], ends[:-1]])
    room = offsets - before
    room[room < size] = _NEVER
    best = int(np.argmin(room))
    return int(before[best] if room[best] < _NEVER else ends[-1])
