"""Parts of a loop nest being emitted: loops, what they write and reduce, and how dims are ordered and collapsed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any

from aotgrad_runtime.dtypes import DType
from aotgrad_runtime.records import record

from ..ir.core import Op, Value
from ..ir.dims import Dim, DimLike
from .bufferise import Store
from .exprs import Node, Slot
from .kernel import Index, KernelBuilder

__all__ = ["Context", "Loop", "Phase", "Place", "Reduction", "Root", "collapse", "flat", "rank_of", "unflat", "unflat_all"]

Place = tuple[DimLike, dict[int, DimLike]]


@record
class Context:
    """What emission of a block shares: builder, target, plan, memory, registers, and the report."""

    kb: KernelBuilder
    target: Any
    plan: Any
    buffers: Any
    work: Any
    regs: dict[Value, Value]
    report: list[dict[str, Any]]
    module: Any = None
    loaded: dict[Any, Value] = field(default_factory=dict)  # scalars read from inputs


@record
class Loop:
    """One loop over ``dims`` (collapsed, outermost first); ``size``: rounds. ``parts``: loops that it stands for, where accesses do not let it be one."""

    dims: tuple[int, ...]
    size: DimLike
    low: Index = 0
    high: Index | None = None
    parts: tuple[Loop, ...] = ()


@record
class Root:
    """A value written to memory at a place; ``add``: added to what is there. ``written``: some loop does so."""

    node: Node
    store: Store
    place: Place
    add: bool = False
    written: bool = False


@record
class Reduction:
    """A reduction of a phase. ``begin``: first inner loop of those that it reduces in registers; ``start``: first of those whose vectors go to its chains, the loops
    between join what these leave one by one."""

    op: Op
    node: Node
    combine: str
    dtype: DType
    dims: frozenset[int]
    target: tuple[Store, Place] | None
    slot: Slot | None = None
    result: Value | None = None
    begin: int = 0
    start: int = 0
    partial: bool = False  # loops outside these are reduced too: the target is updated
    strip: Store | None = None  # where a block of what is reduced is kept, if it must be


@record
class Phase:
    """One round of inner loops. ``ahead``: places of the next round of the outer ones, whose lines are asked for meanwhile."""

    nodes: list[Node] = field(default_factory=list)
    before: list[Root] = field(default_factory=list)
    roots: list[Root] = field(default_factory=list)
    reds: list[Reduction] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    ahead: list[tuple[Store, Place]] = field(default_factory=list)


def rank_of(stride: DimLike) -> tuple[int, int]:
    """Orders strides by size as far as symbols allow: by degree, then by number."""
    if not isinstance(stride, Dim):
        return (0, abs(stride))
    mono, coefficient = max(stride.terms, key=lambda t: sum(p for _, p in t[0]))
    return (sum(p for _, p in mono), abs(coefficient))


def collapse(order: Sequence[int], space: Sequence[DimLike], strides: Sequence[dict[int, DimLike]], reduced: Sequence[frozenset[int]]) -> list[Loop]:
    """As few loops as the accesses allow: neighbours that are contiguous in every access become one."""
    groups: list[list[int]] = []
    for d in order:
        if groups:
            a = groups[-1][-1]
            joined = all(s.get(a, 0) == s.get(d, 0) * space[d] for s in strides) and all((a in r) == (d in r) for r in reduced)
            if joined:
                groups[-1].append(d)
                continue
        groups.append([d])
    loops = []
    for g in groups:
        size: DimLike = 1
        for d in g:
            size = size * space[d]
        loops.append(Loop(tuple(g), size))
    return loops


def flat(accs: dict[int, Any]) -> list[Value]:
    return [v for a in accs.values() for v in a]


def unflat(like: dict[int, Any], values: Iterable[Value]) -> dict[int, list[Value] | None]:
    it = iter(values)
    return {i: [next(it) for _ in a] for i, a in like.items()}


def unflat_all(like: dict[int, list[Value]], values: Iterable[Value]) -> dict[int, list[Value]]:
    it = iter(values)
    return {i: [next(it) for _ in a] for i, a in like.items()}
