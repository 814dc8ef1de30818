"""What one phase of a loop nest computes, as a graph of nodes: loads, positions, elementwise ops, results of earlier phases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from aotgrad_runtime.dtypes import float16

from ..ir import opdef
from ..ir.core import Op, Value
from ..ir.dims import DimLike
from .access import Access, Map, compose
from .bufferise import Buffers
from .kernel import KernelBuilder, constant_of
from .plan import Item, Nest, Plan, weight
from .windows import OVERLAY, WINDOW, Range, covers, outside

__all__ = ["Graph", "Node", "Slot", "apply"]


class Slot:
    """A value that an earlier phase of the nest leaves in a register, once per round of the outer loops."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: Any = None


class Node:
    """``kind``: load, index, guard, const, ew, slot, value. ``dims``: dims of the space it varies with. ``val``: the register, once computed at its level."""

    __slots__ = ("access", "args", "dims", "fn", "guard", "kind", "level", "op", "places", "slot", "val")

    def __init__(self, kind: str, dims: frozenset[int], op: Op | None = None, args: Sequence[Node] = (), access: Access | None = None,
                 places: Sequence[tuple[DimLike, dict[int, DimLike]]] = (), slot: Slot | None = None, val: Any = None, fn: Any = None) -> None:
        self.kind, self.dims, self.op, self.args, self.access = kind, dims, op, list(args), access
        self.places = list(places)  # (base, strides) of the load, or of each index
        self.slot, self.val, self.fn = slot, val, fn
        self.level = 0
        self.guard: Node | None = None  # of a load that may be outside its buffer: where it is not


def apply(kb: KernelBuilder, lanes: int, op: Op, vals: Sequence[Value]) -> Value:
    """The kernel-level meaning of an elementwise op on registers."""
    kb.loc = op.loc
    if op.name == OVERLAY:
        return _overlay(kb, lanes, op, *vals)
    low = opdef.get(op.name).lower
    assert isinstance(low, opdef.Scalar)
    k = kb.scalars(lanes)
    if op.name != "cast" and any(o.type.dtype is float16 for o in op.operands):
        return k.in_float32(lambda *wide: low.fn(k, op, *wide), vals)
    return low.fn(k, op, *vals)  # type: ignore[no-any-return]


def _overlay(kb: KernelBuilder, lanes: int, op: Op, inside: Value, acc: Value, *pieces: Value) -> Value:
    k, x = kb.scalars(lanes), acc
    for add, piece in zip(op.attrs["add"], pieces):
        x = k.add(x, piece) if add else piece
    return x if constant_of(inside) is True else k.select(inside, x, acc)


Key = tuple[Value, Map, bool]
"""A value at a map; whether the map may lead outside it, because a window is above."""


class Graph:
    """Builds nodes for one item. ``member(v)`` says how a member of the nest appears in the current phase: "compute", or an access to load it from."""

    def __init__(self, item: Item, plan: Plan, buffers: Buffers, regs: dict[Value, Value]) -> None:
        self.item, self.plan, self.buffers, self.regs = item, plan, buffers, regs
        self.nest = item if isinstance(item, Nest) else None
        self.slots: dict[Value, tuple[Slot, frozenset[int]]] = {}
        self.member: Callable[[Value], str | Access] = lambda v: "compute"
        self.nodes: list[Node] = []
        self._memo: dict[Key, Node] = {}
        self._outer: dict[Key, Node] = {}
        self._loads: dict[Any, Node] = {}
        self.outer_dims: frozenset[int] = frozenset()

    def phase(self) -> None:
        """Starts a new phase: only what does not vary inside the outer loops is kept."""
        self.nodes = []
        self._memo = dict(self._outer)
        self._loads = {k: n for k, n in self._loads.items() if n.dims <= self.outer_dims}

    def node(self, v: Value, m: Map, loose: bool = False) -> Node:
        """The node of ``v`` at map ``m``, with all it needs (without recursion: chains may be long). ``loose``: where ``m`` leads outside ``v``, anything."""
        stack: list[Key] = [(v, m, loose)]
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
                made = self._combine(key, [self._memo[k] for k in needs])
            self._memo[key] = made
            if made.dims <= self.outer_dims:
                self._outer[key] = made
            stack.pop()
        return self._memo[(v, m, loose)]

    def _add(self, node: Node) -> Node:
        self.nodes.append(node)
        return node

    def _combine(self, key: Key, args: list[Node]) -> Node:
        op = key[0].op
        assert op is not None
        if op.name == "stop_gradient" or op.name in ("relayout",) or self.plan.kind.get(op) in ("view", "red"):
            return args[0]
        if op.name == OVERLAY:
            args = [self._guard(covers(op, key[1])), *args]
        return self._add(Node("ew", frozenset().union(*(a.dims for a in args)), op, args))

    def _expand(self, v: Value, m: Map, loose: bool) -> tuple[Node | None, list[Key]]:
        """A finished node, or the keys it needs."""
        plan = self.plan
        v = plan.operand(self.item, v)
        if v in self.slots:
            slot, dims = self.slots[v]
            return Node("slot", dims, slot=slot), []
        if v in self.regs:
            return Node("value", frozenset(), val=self.regs[v]), []
        if self.nest is not None and self.nest.members.get(v) == m:
            how = self.member(v)
            if isinstance(how, Access):
                whole = tuple((0, ((d, 1),)) for d in range(len(self.nest.space)))
                return self._load(how, whole, self._reach(v, m, loose)), []
            assert v.op is not None
            return self._source(v, m) or (None, [(o, m, loose) for o in v.op.operands])
        op = v.op
        if op is not None and plan.kind[op] == "idx":
            return self._source(v, m) or (None, [])  # never from memory, where a writer may have been already
        if self.buffers.knows(v):
            return self._in_memory(self.buffers.stored(v), v, m, loose), []
        assert op is not None, "an argument without a place"
        kind = plan.kind[op]
        if kind == "view":
            src = op.operands[0]
            return None, [(src, compose(plan.views[op], src.type.shape, m), loose or op.name == WINDOW)]
        if kind == "alias":
            return self._in_memory(self.buffers.access(self.item, v), v, m, loose), []
        return self._source(v, m) or (None, [(o, m, loose) for o in op.operands])

    def _in_memory(self, access: Access, v: Value, m: Map, loose: bool) -> Node:
        """A load. A dim along which all elements are one in memory has no outside: to ask there would make a vector of what is one number."""
        still = [at for at, stride in zip(m, access.strides) if isinstance(stride, int) and stride == 0]
        return self._load(access, m, [r for r in self._reach(v, m, loose) if not any(r[0] is at for at in still)])

    def _reach(self, v: Value, m: Map, loose: bool) -> list[Range]:
        return outside(m, v.type.shape, self.nest.space if self.nest is not None else ()) if loose else []

    def _load(self, access: Access, m: Map, ranges: Sequence[Range] = ()) -> Node:
        base, strides = access.at(m)
        key = (access.store, base, tuple(sorted(strides.items(), key=lambda t: t[0])), tuple(ranges))
        found = self._loads.get(key)
        if found is None:
            guard = self._guard(ranges) if ranges else None
            dims = frozenset(strides) if guard is None else guard.dims | frozenset(strides)
            found = self._loads[key] = self._add(Node("load", dims, access=access, places=[(base, strides)]))
            found.guard = guard
        return found

    def _guard(self, ranges: Sequence[Range]) -> Node:
        """Whether every position is in its range: places are positions and sizes in turn."""
        key = ("guard", tuple(ranges))
        found = self._loads.get(key)
        if found is None:
            places = [p for (off, terms), size in ranges for p in ((off, dict(terms)), (size, {}))]
            found = self._loads[key] = self._add(Node("guard", frozenset(d for _, terms in places for d in terms), places=places))
        return found

    def _source(self, v: Value, m: Map) -> tuple[Node, list[Key]] | None:
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


def member_needs(graph: Graph, v: Value, operands: Iterable[tuple[Value, Map]], arrays: set[Value]) -> list[Value]:
    """Members and reductions of the nest that these operands read, through views and inlined ops. What they read from memory is added to ``arrays``."""
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
            if o not in graph.regs and (o.op is None or plan.kind[o.op] != "idx"):
                arrays.add(o)
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
