"""What one phase of a loop nest computes, as a graph of nodes: loads, positions, elementwise ops, results of earlier phases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..ir import opdef
from ..ir.core import Op, Value
from ..ir.dims import DimLike
from .access import Access, Map, compose
from .bufferise import Buffers
from .fusion import Item, Nest, Plan, weight
from .kernel import KernelBuilder

__all__ = ["Graph", "Node", "Slot", "apply"]


class Slot:
    """A value that an earlier phase of the nest leaves in a register, once per round of the outer loops."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: Any = None


class Node:
    """``kind``: load, index, const, ew, slot, value. ``dims``: dims of the space it varies with. ``val``: the register, once computed at its level."""

    __slots__ = ("access", "args", "dims", "fn", "kind", "level", "op", "places", "slot", "val")

    def __init__(self, kind: str, dims: frozenset[int], op: Op | None = None, args: Sequence[Node] = (), access: Access | None = None,
                 places: Sequence[tuple[DimLike, dict[int, DimLike]]] = (), slot: Slot | None = None, val: Any = None, fn: Any = None) -> None:
        self.kind, self.dims, self.op, self.args, self.access = kind, dims, op, list(args), access
        self.places = list(places)  # (base, strides) of the load, or of each index
        self.slot, self.val, self.fn = slot, val, fn
        self.level = 0


def apply(kb: KernelBuilder, lanes: int, op: Op, vals: Sequence[Value]) -> Value:
    """The kernel-level meaning of an elementwise op on registers."""
    low = opdef.get(op.name).lower
    assert isinstance(low, opdef.Scalar)
    kb.loc = op.loc
    return low.fn(kb.scalars(lanes), op, *vals)  # type: ignore[no-any-return]


class Graph:
    """Builds nodes for one item. ``member(v)`` says how a member of the nest appears in the current phase: "compute", or an access to load it from."""

    def __init__(self, item: Item, plan: Plan, buffers: Buffers, regs: dict[Value, Value]) -> None:
        self.item, self.plan, self.buffers, self.regs = item, plan, buffers, regs
        self.slots: dict[Value, tuple[Slot, frozenset[int]]] = {}
        self.member: Callable[[Value], str | Access] = lambda v: "compute"
        self.nodes: list[Node] = []
        self._memo: dict[tuple[Value, Map], Node] = {}
        self._outer: dict[tuple[Value, Map], Node] = {}
        self._loads: dict[Any, Node] = {}
        self.outer_dims: frozenset[int] = frozenset()

    def phase(self) -> None:
        """Starts a new phase: only what does not vary inside the outer loops is kept."""
        self.nodes = []
        self._memo = dict(self._outer)
        self._loads = {k: n for k, n in self._loads.items() if n.dims <= self.outer_dims}

    def node(self, v: Value, m: Map) -> Node:
        """The node of ``v`` at map ``m``, with all it needs (without recursion: chains may be long)."""
        stack: list[tuple[Value, Map]] = [(v, m)]
        while stack:
            key = stack[-1]
            if key in self._memo:
                stack.pop()
                continue
            made, needs = self._expand(*key)
            if made is None:
                missing = [k for k in needs if k not in self._memo]
                if missing:
                    stack.extend(missing)
                    continue
                made = self._combine(key[0], [self._memo[k] for k in needs])
            self._memo[key] = made
            if made.dims <= self.outer_dims:
                self._outer[key] = made
            stack.pop()
        return self._memo[(v, m)]

    def _add(self, node: Node) -> Node:
        self.nodes.append(node)
        return node

    def _combine(self, v: Value, args: list[Node]) -> Node:
        op = v.op
        assert op is not None
        if op.name == "stop_gradient" or op.name in ("relayout",) or self.plan.kind.get(op) in ("view", "red"):
            return args[0]
        return self._add(Node("ew", frozenset().union(*(a.dims for a in args)), op, args))

    def _expand(self, v: Value, m: Map) -> tuple[Node | None, list[tuple[Value, Map]]]:
        """A finished node, or the (value, map) pairs it needs."""
        plan = self.plan
        v = plan.operand(self.item, v)
        if v in self.slots:
            slot, dims = self.slots[v]
            return Node("slot", dims, slot=slot), []
        if v in self.regs:
            return Node("value", frozenset(), val=self.regs[v]), []
        nest = self.item if isinstance(self.item, Nest) else None
        if nest is not None and nest.members.get(v) == m:
            how = self.member(v)
            if isinstance(how, Access):
                return self._load(how, tuple((0, ((d, 1),)) for d in range(len(nest.space)))), []
            assert v.op is not None
            return self._source(v, m) or (None, [(o, m) for o in v.op.operands])
        op = v.op
        if op is not None and plan.kind[op] == "idx":
            return self._source(v, m) or (None, [])  # never from memory, where a writer may have been already
        if self.buffers.knows(v):
            return self._load(self.buffers.stored(v), m), []
        assert op is not None, "an argument without a place"
        kind = plan.kind[op]
        if kind == "view":
            src = op.operands[0]
            return None, [(src, compose(plan.views[op], src.type.shape, m))]
        if kind == "alias":
            return self._load(self.buffers.access(self.item, v), m), []
        return self._source(v, m) or (None, [(o, m) for o in op.operands])

    def _load(self, access: Access, m: Map) -> Node:
        base, strides = access.at(m)
        key = (access.store, base, tuple(sorted(strides.items(), key=lambda t: t[0])))
        found = self._loads.get(key)
        if found is None:
            found = self._loads[key] = self._add(Node("load", frozenset(strides), access=access, places=[(base, strides)]))
        return found

    def _source(self, v: Value, m: Map) -> tuple[Node, list[tuple[Value, Map]]] | None:
        op = v.op
        assert op is not None
        if self.plan.kind[op] != "idx":
            return None
        if op.name in ("full", "size", "constant"):
            return self._add(Node("const", frozenset(), op)), []
        places = [(off, dict(terms)) for off, terms in m]
        if op.name == "iota":
            keep = op.attrs["dim"]
            places = [p if d == keep else (0, {}) for d, p in enumerate(places)]
        return self._add(Node("index", frozenset(d for _, t in places for d in t), op, places=places)), []


def member_needs(graph: Graph, v: Value, operands: Iterable[tuple[Value, Map]]) -> list[Value]:
    """Members and reductions of the nest that these operands read, through views and inlined ops."""
    nest, plan = graph.item, graph.plan
    assert isinstance(nest, Nest)
    reds = {r.result for r in nest.reductions}
    out: dict[Value, None] = {}
    stack, seen = list(operands), set()
    while stack:
        key = stack.pop()
        if key in seen:
            continue
        seen.add(key)
        o, m = plan.operand(nest, key[0]), key[1]
        if nest.members.get(o) == m or o in reds:
            out[o] = None
        elif o in graph.regs or graph.buffers.knows(o) or o.op is None or plan.kind[o.op] in ("idx", "alias"):
            continue
        elif plan.kind[o.op] == "view":
            src = o.op.operands[0]
            stack.append((src, compose(plan.views[o.op], src.type.shape, m)))
        else:
            stack.extend((p, m) for p in o.op.operands)
    return list(out)


def const_of(op: Op, kb: KernelBuilder) -> Value:
    """The register of a source without position."""
    k = kb.scalars(1)
    if op.name == "constant":
        return k.const(np.asarray(op.attrs["value"]).reshape(-1)[0].item(), op.result.type.dtype)
    low = opdef.get(op.name).lower
    assert isinstance(low, opdef.Index)
    return low.fn(k, op, (0,) * op.result.type.rank)  # type: ignore[no-any-return]


def heavy(nodes: Iterable[Node]) -> int:
    """Total weight of the elementwise nodes."""
    return sum(weight(n.op) for n in nodes if n.kind == "ew" and n.op is not None)


def levels(nodes: Sequence[Node], loops: Sequence[Iterable[int]]) -> None:
    """Sets the level of each node: 1 + the innermost loop it varies with; 0 outside all."""
    place = {d: i + 1 for i, dims in enumerate(loops) for d in dims}
    for n in nodes:
        n.level = max((place.get(d, 0) for d in n.dims), default=0)
