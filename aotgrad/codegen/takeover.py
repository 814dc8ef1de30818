"""Results written in the place of what they are computed from: a loop nest that reads an array element by element, for the last time, leaves its result there.

Element i of the result then lies where element i of the array lay, and every element is read before it is written: by the vector that it is in, and by all phases
of its row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..ir.core import Value
from ..ir.dims import DimLike
from ..ir.types import Layout, TensorType
from .access import Access, Map, is_permutation, map_dims
from .bufferise import strides_of
from .plan import How, Item, Nest, Plan
from .sum_order import kept
from .windows import OVERLAY

__all__ = ["take_over"]

Reads = Mapping[Value, Sequence[tuple[Item, How]]]
Place = tuple[DimLike, dict[int, DimLike]]


def take_over(plan: Plan, uses: Reads) -> None:
    """Fills ``plan.same``. ``uses``: who reads what, through which map."""
    _Pass(plan, uses).run()


class _Pass:
    def __init__(self, plan: Plan, uses: Reads) -> None:
        self.plan = plan
        order = {item: i for i, item in enumerate(plan.items)}
        never = len(order)
        outputs = {plan.base(v) for i, v in enumerate(plan.outputs) if i not in plan.registers}
        self.whole: dict[Value, list[Value]] = {}  # buffers -> the values that are in them
        for v in [*plan.memory, *plan.block.args]:
            self.whole.setdefault(plan.base(v), []).append(v)
        self.first: dict[Value, int] = {}
        self.last: dict[Value, int] = {}
        self.reads: dict[int, dict[Value, list[tuple[Value, How]]]] = {}  # of each item: buffers, and the values in them that it reads
        for base, values in self.whole.items():
            when = [order.get(item, never) for item in plan.touched.get(base, ())]
            for v in values:
                for item, how in uses.get(v, ()):
                    if how != "order":
                        when.append(order.get(item, never))
                        self.reads.setdefault(when[-1], {}).setdefault(base, []).append((v, how))
            self.first[base] = min(when, default=never) if base.op is not None else -1
            self.last[base] = never if base in outputs else max(when, default=never)
        self.dying: dict[int, dict[Any, list[Value]]] = {}  # by the item that reads them last, and by kind: an item that writes thousands looks at those that fit only
        for base in sorted(self.last, key=lambda v: v.op is not None):  # arguments first: their results belong there
            if base in plan.block.args and base not in plan.donated and base not in plan.over_args or base.op is not None and base.op.name == "constant":
                continue
            self.dying.setdefault(self.last[base], {}).setdefault(_kind(base), []).append(base)

    def run(self) -> None:
        """Item by item, in the order in which they run: what took a place may be taken over in turn."""
        for i, item in enumerate(self.plan.items):
            if not isinstance(item, Nest) or item.writes or i not in self.dying:
                continue
            if any(v.op is not None and v.op.name == OVERLAY for v in item.sequence):
                continue
            for v in item.stored:
                if v not in self.whole or self.plan.base(v) is not v or self.first[v] != i:
                    continue
                alike = self.dying[i].get(_kind(v), [])
                old = next((u for u in alike if self._fits(i, item, u, v)), None)
                if old is not None:
                    self.plan.same[v] = old
                    alike.remove(old)

    def _fits(self, i: int, nest: Nest, u: Value, v: Value) -> bool:
        plan, m = self.plan, nest.members[v]
        if nest.epilogue is not None and u not in plan.over_args:  # the product would need a place of its own: nothing is won
            return False
        if self.first[u] >= i:
            return False
        if u in plan.block.args:
            mine = plan.donated.get(u, plan.over_args.get(u))
            if mine is None or (u in plan.over_args and nest not in plan.late) or plan.base(plan.outputs[mine]) is not v or u.type != v.type or v in plan.order:
                return False
        elif u.op is None:
            return False
        reads = self.reads[i].get(u, ())
        exact = all(self._same_place(u, w, how, v, m) for w, how in reads)
        return bool(reads) and exact and self._each_once(nest, v, m) and self._last_phase(nest, v) and (u in plan.over_args or not self._turned(i, v, m))

    def _each_once(self, nest: Nest, v: Value, m: Map) -> bool:
        """Whether each place is written by one round of the loops."""
        return map_dims(m) == {d for d, n in enumerate(nest.space) if n != 1} and is_permutation(m, v.type.shape, nest.space)

    def _place(self, buffer: Value, shape_of: Value, m: Map) -> Place:
        t = shape_of.type
        order = self.plan.order.get(buffer, t.order)
        return Access(None, 0, strides_of(t if order == t.order else TensorType(t.shape, t.dtype, Layout(order)))).at(m)

    def _same_place(self, u: Value, w: Value, how: How, v: Value, m: Map) -> bool:
        if isinstance(how, str) or w in self.plan.claims or w.type != u.type:
            return False
        if u in self.plan.block.args:
            return how == m
        return self._place(u, w, how) == self._place(v, v, m)

    def _last_phase(self, nest: Nest, v: Value) -> bool:
        """Whether no phase of a row comes after the one that writes ``v``: it needs every sum of the row."""
        if nest.outer is None:
            return True
        left = {r.result for r in nest.reductions if kept(r) == set(nest.outer)}
        stack, seen = [v], {v}
        while stack and left:
            op = stack.pop().op
            for o in op.operands if op is not None else ():
                left.discard(o)
                if o not in seen:
                    seen.add(o)
                    stack.append(o)
        return not left

    def _turned(self, i: int, v: Value, m: Map) -> bool:
        """Whether something is read across the order of writing: tiles turn that, which may compute elements twice where nothing that is written is read."""
        unit = _unit(self._place(v, v, m))
        for base, values in self.reads[i].items():
            for w, how in values:
                if not isinstance(how, str) and w not in self.plan.claims and (other := _unit(self._place(base, w, how))) and other != unit:
                    return True
        return False


def _kind(v: Value) -> tuple[str, DimLike]:
    return v.type.dtype.name, v.type.size


def _unit(place: Place) -> set[int]:
    return {d for d, s in place[1].items() if isinstance(s, int) and s == 1}
