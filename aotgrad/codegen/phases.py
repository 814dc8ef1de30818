"""Phases of a nest with outer loops: which inner loop computes each member, and what is kept between them."""

from __future__ import annotations

from ..ir.core import Op, Value
from .access import identity, map_dims
from .exprs import Graph, member_needs
from .plan import CHEAP, Nest, weight

__all__ = ["Phases"]


class Phases:
    """``count`` phases; ``home[v]``: the phase that stores a value or computes a reduction; ``evaluated[v]``: phases that compute an inner member;
    ``buffered``: members kept in a row buffer; ``rows``: reductions whose results later phases read."""

    def __init__(self, nest: Nest, graph: Graph, outer: tuple[int, ...]) -> None:
        self.nest, self.graph, self.outer = nest, graph, set(outer)
        self.rows: list[Op] = [r for r in nest.reductions if outer and self._kept(r) == self.outer]
        self.evaluated: dict[Value, set[int]] = {}
        self.buffered: list[Value] = []
        self.arrays: dict[Value, set[Value]] = {}  # what each member reads from memory
        results = [*nest.stored, *(r.result for r in nest.reductions), *(w.result for w in nest.writes)]
        self.home: dict[Value, int] = dict.fromkeys(results, 0)
        self.count = 1
        if self.rows:
            self._assign()

    def _kept(self, op: Op) -> set[int]:
        x = op.operands[0].type
        return {d for d in range(x.rank) if d not in op.attrs["dims"] and x.shape[d] != 1}

    def _assign(self) -> None:
        nest = self.nest
        program = list(reversed(nest.sequence))
        reds = {r.result: r for r in nest.reductions}
        row = {r.result for r in self.rows}
        needs: dict[Value, list[Value]] = {}
        ready: dict[Value, int] = {}
        for v in program:
            needs[v] = self._needs(v, reds)
        for w in nest.writes:
            needs[w.result] = self._needs_of_write(w)
        program += [w.result for w in nest.writes]
        for v in program:
            ready[v] = max((ready[d] + (d in row) for d in needs[v]), default=0)
        self._put_off(program, needs, ready, reds, row)
        self._settle(program, needs, ready, reds)
        self.count = 1 + max([*self.home.values(), *(p for s in self.evaluated.values() for p in s)], default=0)

    def _needs(self, v: Value, reds: dict[Value, Op]) -> list[Value]:
        assert v.op is not None
        if v in reds:
            x = v.op.operands[0]
            return member_needs(self.graph, v, [(x, identity(x.type.shape))], self.arrays.setdefault(v, set()))
        return member_needs(self.graph, v, [(o, self.nest.members[v]) for o in v.op.operands], self.arrays.setdefault(v, set()))

    def _needs_of_write(self, w: Op) -> list[Value]:
        return member_needs(self.graph, w.result, [(w.operands[1], identity(w.operands[1].type.shape))], self.arrays.setdefault(w.result, set()))

    def _put_off(self, program: list[Value], needs: dict[Value, list[Value]], ready: dict[Value, int], reds: dict[Value, Op], row: set[Value]) -> None:
        """A reduction that no phase waits for goes where its data are read anyway: an array that comes from the second cache once more costs more than the sum."""
        last = max(ready.values(), default=0)
        late = {v: ready[v] if v in self.nest.stored or v not in self.nest.members and v not in reds else last for v in program}
        for v in reversed(program):
            for d in needs[v]:
                late[d] = min(late[d], late[v] - (d in row))
        fixed = [v for v in program if late[v] == ready[v] and (v in reds or v not in self.nest.members or v in self.nest.stored)]
        there: list[set[Value]] = [set() for _ in range(last + 1)]
        for v in fixed:
            there[ready[v]] |= self._inside(v, needs)
        for v in program:
            ready[v] = max([ready[v], *(ready[d] + (d in row) for d in needs[v])])
            if v in reds and v not in fixed and late[v] > ready[v]:
                mine = self._inside(v, needs)
                ready[v] = min(range(ready[v], late[v] + 1), key=lambda p: (self._cost_of(mine - there[p]), p))
                there[ready[v]] |= mine

    def _inside(self, v: Value, needs: dict[Value, list[Value]]) -> set[Value]:
        """Arrays that a member needs, and members that are computed for it in its phase."""
        found, stack = set[Value](), [v]
        while stack:
            v = stack.pop()
            if v not in found and not self._is_outer(v):
                found.add(v)
                found |= self.arrays.get(v, set())
                stack += [d for d in needs[v] if d in self.nest.members]
        return found

    def _cost_of(self, values: set[Value]) -> int:
        return sum(weight(v.op) if v in self.nest.members and v.op is not None else v not in self.home for v in values)

    def _is_outer(self, v: Value) -> bool:
        return v in self.nest.members and map_dims(self.nest.members[v]) <= self.outer

    def _settle(self, program: list[Value], needs: dict[Value, list[Value]], ready: dict[Value, int], reds: dict[Value, Op]) -> None:
        wanted: dict[Value, set[int]] = {}
        cost = self._costs(program, needs)
        stored = set(self.nest.stored)
        for v in reversed(program):
            if v in reds or v not in self.nest.members:
                phases = {ready[v]}
                self.home[v] = ready[v]
            elif self._is_outer(v):
                self.home[v] = ready[v]
                continue
            else:
                want = wanted.get(v) or {ready[v]}
                own = min(want)
                phases = want
                if len(want) > 1 and (v in stored or cost[v] > CHEAP):
                    phases = {own}
                    if v not in stored:
                        self.buffered.append(v)
                self.evaluated[v] = phases
                self.home[v] = own
            for d in needs[v]:
                wanted.setdefault(d, set()).update(phases)

    def _costs(self, program: list[Value], needs: dict[Value, list[Value]]) -> dict[Value, int]:
        cost: dict[Value, int] = {}
        stored = set(self.nest.stored)
        for v in program:
            own = weight(v.op) if v.op is not None and v in self.nest.members and v.op.name not in ("cast", "stop_gradient") else 0
            inner = [d for d in needs[v] if d in self.nest.members and d not in stored and not self._is_outer(d)]
            cost[v] = own + sum(cost[d] for d in inner if cost.get(d, 0) <= CHEAP)
        return cost
