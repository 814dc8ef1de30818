"""Phases of a nest with outer loops: which inner loop computes each member, and what is kept between them."""

from __future__ import annotations

from ..ir.core import Op, Value
from .access import identity, map_dims
from .exprs import Graph, member_needs
from .fusion import CHEAP, Nest, weight

__all__ = ["Phases"]


class Phases:
    """``count`` phases; ``home[v]``: the phase that stores a value or computes a reduction; ``evaluated[v]``: phases that compute an inner member;
    ``buffered``: members kept in a row buffer; ``rows``: reductions whose results later phases read."""

    def __init__(self, nest: Nest, graph: Graph, outer: tuple[int, ...]) -> None:
        self.nest, self.graph, self.outer = nest, graph, set(outer)
        self.rows: list[Op] = [r for r in nest.reductions if outer and self._kept(r) == self.outer]
        self.evaluated: dict[Value, set[int]] = {}
        self.buffered: list[Value] = []
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
            first = max((ready[d] + (d in row) for d in needs[v]), default=0)
            ready[v] = first
        for w in nest.writes:
            needs[w.result] = self._needs_of_write(w)
            ready[w.result] = max((ready[d] + (d in row) for d in needs[w.result]), default=0)
        self._settle([*program, *(w.result for w in nest.writes)], needs, ready, reds)
        self.count = 1 + max([*self.home.values(), *(p for s in self.evaluated.values() for p in s)], default=0)

    def _needs(self, v: Value, reds: dict[Value, Op]) -> list[Value]:
        assert v.op is not None
        if v in reds:
            x = v.op.operands[0]
            return member_needs(self.graph, v, [(x, identity(x.type.shape))])
        return member_needs(self.graph, v, [(o, self.nest.members[v]) for o in v.op.operands])

    def _needs_of_write(self, w: Op) -> list[Value]:
        return member_needs(self.graph, w.result, [(w.operands[1], identity(w.operands[1].type.shape))])

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
