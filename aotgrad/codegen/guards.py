"""Reads that may lie outside their buffer: a test of positions, and loads that happen only where it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aotgrad_runtime.dtypes import bool_

from ..ir.core import Value
from .exprs import Node
from .kernel import Index, KernelBuilder, as_ktype, register
from .kernel_core import CMPI

__all__ = ["both", "edges", "guarded", "inside"]


def inside(kb: KernelBuilder, positions: Sequence[Any], sizes: Sequence[Index]) -> Value:
    """Whether every position is below its size and not below 0: one unsigned compare each. Positions that differ from lane to lane are vectors."""
    found: Value | None = None
    for at, size in zip(positions, sizes):
        lanes = 1 if isinstance(at, int) else as_ktype(at.type).lanes
        if lanes == 1:
            test = kb.cmp("ult", at, size)
        else:
            pair = (at, kb.broadcast(kb.index(size), lanes))
            test = kb.pure("arith.cmpi", pair, register(bool_, lanes), {"predicate": CMPI["ult"]}, "ult")
        found = test if found is None else both(kb, found, test)
    return kb.constant(True, register(bool_)) if found is None else found


def both(kb: KernelBuilder, a: Value, b: Value | None) -> Value:
    """a and b, in as many lanes as the wider has; None is always true."""
    if b is None:
        return a
    lanes = max(as_ktype(a.type).lanes, as_ktype(b.type).lanes)
    return kb.scalars(lanes).logical("and", kb.broadcast(a, lanes), kb.broadcast(b, lanes))


def guarded(kb: KernelBuilder, guard: Value, load: Callable[[], Value], like: Any) -> Value:
    """The scalar that ``load`` reads where the guard holds, else 0."""
    with kb.if_(guard, [like]) as br:
        with br.then():
            kb.yield_(load())
        with br.orelse():
            kb.yield_(kb.constant(False if as_ktype(like).kind == "b" else 0, like))
    return br.results[0]


def edges(kb: KernelBuilder, nodes: Sequence[Node], dim: int, position: Callable[[Any], Index]) -> list[tuple[Index, Index]]:
    """From which round on and before which one of the loop over ``dim`` each guard that it moves holds; nothing where one does not move by 1."""
    out: dict[Any, tuple[Index, Index]] = {}
    for n in nodes:
        for place, (size, _) in zip(n.places[::2], n.places[1::2]) if n.kind == "guard" else ():
            stride = place[1].get(dim, 0)
            if isinstance(stride, int) and stride == 1:
                start = position(place)
                out[place[0], size, tuple(place[1].items())] = kb.sub(0, start), kb.sub(kb.dim(size), start)
            elif dim in place[1]:
                return []
    return list(out.values())
