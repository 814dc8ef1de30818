"""The order in which the items of a plan run: that of the program, or one in which values die earlier, where that takes less memory.

Finding the order of least memory is NP-hard. What programs ask for in practice is simple: an item that frees more than it takes (a parameter's update, which reads the
gradient for the last time; the sum that joins two gradients) need not wait for its place in the program.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from ..ir import dims
from ..ir.core import Op, Value
from .plan import Item, Nest, Plan, Scalar, Uses

__all__ = ["put_off", "schedule"]

_OPEN: Final = 64  # sizes that are not known count as this
_SMALL: Final = 1 << 16  # bytes of a block for which no better order is looked for
_CALM: Final = 1 << 28  # multiply-adds of a product that nobody waits for with a Ctrl-C; longer ones cost more than a copy of their result
_GAIN: Final = 32  # an order that takes less than a 32nd less is not worth the change


def schedule(plan: Plan) -> None:
    """Puts ``plan.items`` in order."""
    memory = _Memory(plan)
    plan.items = in_program = _ordered(plan.items, None, plan.late)
    if memory.total <= _SMALL:
        return
    early = _ordered(in_program, memory, plan.late)
    before = memory.peak(in_program)
    if memory.peak(early) * _GAIN < before * (_GAIN - 1):
        plan.items = early


def put_off(plan: Plan, uses: Uses) -> None:
    """``plan.late``: the nests that write over arguments, where nothing that is no such nest needs them first; each after all other readers of what it writes over."""
    homes = {v: item for item in plan.items if isinstance(item, Nest) and not item.writes and _is_calm(item.epilogue) for v in item.stored}
    writers = {a: homes[v] for a, i in plan.over_args.items() if (v := plan.base(plan.outputs[i])) in homes}
    late = plan.late = set(writers.values())
    while lost := {w for w in late if any(w.desc >> item.id & 1 for item in plan.items if item not in late)}:
        late -= lost
    for a, w in writers.items():
        for reader, _ in uses.get(a, ()):
            if w in late and reader in late and reader is not w and not w.desc >> reader.id & 1:
                _before(plan, reader, w)


def _is_calm(product: Op | None) -> bool:
    """Whether a nest may run without being asked to stop: on its own, or on the blocks of a product of a few milliseconds."""
    if product is None:
        return True
    work = product.result.type.size * product.operands[0].type.shape[-1]
    return product.name == "dot" and isinstance(work, int) and work <= _CALM


def _before(plan: Plan, item: Item, user: Item) -> None:
    item.users.add(user)
    new = user.desc | 1 << user.id
    for other in plan.items:
        if other is item or other.desc >> item.id & 1:
            other.desc |= new


class _Memory:
    """Bytes of the buffers that a block needs, and which items touch them."""

    def __init__(self, plan: Plan) -> None:
        given = {plan.base(v) for i, v in enumerate(plan.outputs) if i not in plan.registers} | set(plan.block.args)
        inside = set(plan.items)
        self.size: dict[Value, int] = {}
        self.touched: dict[Value, set[Item]] = {}
        self.of: dict[Item, list[Value]] = {item: [] for item in plan.items}
        for base, items in plan.touched.items():
            if base in given or (base.op is not None and base.op.name == "constant") or not items <= inside:
                continue
            self.size[base], self.touched[base] = _bytes(base), items
            for item in items:
                self.of[item].append(base)
        self.total = sum(self.size.values())

    def peak(self, items: Sequence[Item]) -> int:
        """The most that is alive at once."""
        left = {base: len(found) for base, found in self.touched.items()}
        now = most = 0
        for item in items:
            now += sum(self.size[b] for b in self.of[item] if left[b] == len(self.touched[b]))
            most = max(most, now)
            for b in self.of[item]:
                left[b] -= 1
                now -= 0 if left[b] else self.size[b]
        return most


def _bytes(v: Value) -> int:
    size = dims.substitute(v.type.size, dict.fromkeys(dims.symbols_of(v.type.size), _OPEN))
    return size * v.type.dtype.itemsize if isinstance(size, int) else 0


class _Early:
    """Which of the items that may run free more than they take."""

    def __init__(self, memory: _Memory) -> None:
        self.memory = memory
        self.left = {base: len(found) for base, found in memory.touched.items()}
        self.last: set[Item] = set()  # items that are the last to touch something

    def frees(self, item: Item) -> bool:
        """Whether it should run now."""
        if isinstance(item, Scalar):
            return True
        if item not in self.last:
            return False
        m = self.memory
        more = sum(m.size[b] for b in m.of[item] if self.left[b] == len(m.touched[b]))
        less = sum(m.size[b] for b in m.of[item] if self.left[b] == 1)
        return less > more

    def ran(self, item: Item, done: set[Item]) -> list[Item]:
        """Notes that it did; items that are now the last to touch something."""
        found = []
        for b in self.memory.of[item]:
            self.left[b] -= 1
            if self.left[b] == 1:
                found += [i for i in self.memory.touched[b] if i not in done and i is not item]
        self.last.update(found)
        return found


def _ordered(items: Sequence[Item], memory: _Memory | None, late: AbstractSet[Item]) -> list[Item]:
    """By place in the program as far as dependences allow; with ``memory``, what frees some before what does not. ``late`` ones after all others."""
    inside = set(items)
    count = dict.fromkeys(items, 0)
    for item in items:
        for u in item.users:
            if u in inside:
                count[u] += 1
    early = None if memory is None else _Early(memory)
    ready: list[tuple[int, int, int, Item]] = []
    queued: set[tuple[int, Item]] = set()

    def push(item: Item) -> None:
        rank = (early is None or not early.frees(item)) + 2 * (item in late)
        if (rank, item) not in queued:
            queued.add((rank, item))
            heapq.heappush(ready, (rank, item.pos, -item.id, item))

    for item in items:
        if not count[item]:
            push(item)
    out: list[Item] = []
    done: set[Item] = set()
    while ready:
        item = heapq.heappop(ready)[3]
        if item in done:
            continue
        out.append(item)
        done.add(item)
        for u in item.users:
            if u in inside:
                count[u] -= 1
                if not count[u]:
                    push(u)
        for i in early.ran(item, done) if early is not None else ():
            if not count[i]:
                push(i)
    assert len(out) == len(items), "the schedule has a cycle"
    return out
