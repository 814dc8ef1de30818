"""What loops over images share: nests with accumulators, lanes over channels in blocks of several vectors, places as offsets, and strided vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ..ir import dims as dimlib
from ..ir.core import Value
from ..ir.dims import DimLike
from .kernel import Index, register
from .nest import Context

__all__ = ["SHARE", "ImageLoops", "Range"]

VECTORS = 4  # of the result in registers at once: as many chains of operations
POLL = 8  # rounds of the outermost loop between two questions whether to stop
SHARE = 1 << 20  # operations of the smallest part that a thread of its own is worth
Range = tuple[Index, Index, int]
"""First, end, and step."""


class ImageLoops:
    """Emits into ``cx.kb``; ``across``: what the lanes run over, ``lanes``: how many at most."""

    def __init__(self, cx: Context, itemsize: int, across: DimLike) -> None:
        self.cx, self.kb, self.across = cx, cx.kb, across
        self.threads: int = cx.module.threads
        lanes = int(cx.target.vector_bits) // (8 * max(itemsize, 4))
        while lanes > 1 and isinstance(across, int) and lanes // 2 >= across:
            lanes //= 2
        self.lanes = lanes

    # ---- loops --------------------------------------------------------------------------------------------------------------------

    def vectors(self, body: Callable[[Index, Sequence[Value | None]], None]) -> None:
        """``body(first lane, masks of its vectors)`` over all that lanes run over: several vectors at a time, then one by one."""
        kb, lanes, n = self.kb, self.lanes, self.across
        if isinstance(n, int) and n <= VECTORS * lanes:
            count = -(-n // lanes)
            left = n - (count - 1) * lanes
            if count:
                body(0, [*[None] * (count - 1), None if left == lanes else kb.create_mask(left, lanes)])
            return
        step, total = VECTORS * lanes, kb.dim(n)
        whole = kb.sub(total, kb.rem(total, step))
        with kb.for_(0, whole, step) as lp:
            body(lp.iv, [None] * VECTORS)
        with kb.for_(whole, total, lanes) as lp:
            body(lp.iv, [kb.create_mask(kb.sub(total, lp.iv), lanes) if lanes > 1 else None])

    def nested(self, ranges: Sequence[Range], accs: list[Value], body: Callable[[list[Index], list[Value]], list[Value]], at: tuple[Index, ...] = ()) -> list[Value]:
        """Loops around ``body(positions, accumulators) -> accumulators``."""
        if not ranges:
            return body(list(at), accs)
        low, high, step = ranges[0]
        with self.kb.for_(low, high, step, init=accs) as lp:
            self.kb.yield_(*self.nested(ranges[1:], list(lp.args), body, (*at, lp.iv)))
        return list(lp.results)

    @contextmanager
    def over(self, sizes: Sequence[DimLike], cost: DimLike = 0) -> Iterator[list[Index]]:
        """Plain loops over ``sizes``, whose rounds need nothing of each other. With ``cost``, of a round of them all in operations, the first that is one is shared
        between threads, and asks whether to stop."""
        if not sizes:
            yield []
            return
        kb, size = self.kb, self.kb.dim(sizes[0])
        if isinstance(cost, int) and cost == 0 or size == 1:
            with kb.for_(0, size) as lp, self.over(sizes[1:], cost) as rest:
                yield [lp.iv, *rest]
            return
        inside = kb.max(kb.dim(dimlib.product(sizes[1:]) * cost), 1)
        with kb.parallel(size, self.grain(inside), self.threads) as (a, b), kb.for_(a, b, poll=POLL) as lp, self.over(sizes[1:]) as rest:
            yield [lp.iv, *rest]

    def grain(self, cost: Index) -> Index:
        """Rounds of ``cost`` operations that are worth another thread."""
        return self.kb.max(self.kb.div(SHARE, cost), 1)

    # ---- places -------------------------------------------------------------------------------------------------------------------

    def at(self, base: DimLike | Index, *terms: tuple[Index, DimLike]) -> Index:
        """An offset: ``base`` and positions times strides."""
        kb = self.kb
        at = base if isinstance(base, Value) else kb.dim(base)
        for i, stride in terms:
            at = kb.add(at, kb.mul(i, kb.dim(stride)))
        return at

    def ceil(self, a: Index, b: int) -> Index:
        """``a / b`` rounded up."""
        return a if b == 1 else self.kb.floordiv(self.kb.add(a, b - 1), b)

    def meeting(self, t: Index, stride: int, dilation: int, high: Index, behind: Index) -> Range:
        """The k from ``behind / dilation`` up to ``high`` at which ``t - k * dilation`` is a multiple of ``stride``."""
        kb = self.kb
        low = kb.max(0, self.ceil(behind, dilation))
        shared = math.gcd(stride, dilation)
        step = stride // shared
        if shared > 1:
            high = kb.select(kb.cmp("eq", kb.mod(t, shared), 0), high, 0)
        if step > 1:  # k * dilation has the rest of t by stride
            wanted = kb.mod(kb.mul(kb.floordiv(t, shared), pow(dilation // shared, -1, step)), step)
            low = kb.add(low, kb.mod(kb.sub(wanted, low), step))
        return low, high, step

    # ---- vectors ------------------------------------------------------------------------------------------------------------------

    def load(self, mem: Value, at: Index, stride: DimLike, mask: Value | None) -> Value:
        """One element per lane; 0 where the mask is off."""
        if self.lanes == 1 or isinstance(stride, int) and stride == 1:
            return self.kb.load(mem, at, self.lanes, mask)
        return self.kb.gather(mem, self.spread(at, stride), mask)

    def store(self, value: Value, mem: Value, at: Index, stride: DimLike, mask: Value | None) -> None:
        """One element per lane, where the mask is on."""
        if self.lanes == 1 or isinstance(stride, int) and stride == 1:
            self.kb.store(value, mem, at, mask)
        else:
            self.kb.scatter(value, mem, self.spread(at, stride), mask)

    def spread(self, at: Index, stride: DimLike) -> Value:
        """The offset in each lane."""
        kb, t = self.kb, register(None, self.lanes)
        steps = kb.pure("arith.muli", (kb.iota(0, self.lanes), kb.broadcast(kb.index(kb.dim(stride)), self.lanes)), t)
        return kb.pure("arith.addi", (kb.broadcast(kb.index(at), self.lanes), steps), t)
