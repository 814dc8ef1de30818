"""What the report says of a loop nest, and the report as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ir.dims import DimLike
from .bufferise import Store
from .loops import NestEmitter
from .nest import Place

__all__ = ["describe", "shown"]


_SIZES = frozenset(("read", "written", "batch", "length"))


def describe(e: NestEmitter) -> dict[str, Any]:
    """Loops and bytes of an emitted nest; how many threads may share it."""
    read: DimLike = 0
    written: DimLike = 0
    scratch = set(e.temps)
    for ph in e.phases:
        for n in ph.nodes:
            if n.kind == "load" and n.access is not None and n.access.store not in scratch:
                read = read + _bytes(e, n.access.store, n.places[0])
        for r in (*ph.before, *ph.roots):
            if r.store not in scratch:
                written = written + _bytes(e, r.store, r.place)
        for red in ph.reds:
            if red.target is not None:
                written = written + _bytes(e, *red.target)
    depth = max((len(e.outer_loops) + len(ph.loops) for ph in e.phases), default=0)
    shared = {"threads": e.cx.module.threads} if e.spread else {}
    return {"kind": "loop", **shared, "depth": depth, "loops": sum(1 for ph in e.phases if ph.loops), "outer": len(e.outer_loops),
            "read": read, "written": written, "lanes": e.lanes()}


def _bytes(e: NestEmitter, store: Store, place: Place) -> DimLike:
    size: DimLike = store.dtype.itemsize
    for d in place[1]:
        size = size * e.space[d]
    return size


def shown(report: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The report with sizes as text: what is kept with compiled code."""
    return [{k: [str(d) for d in v] if k == "sizes" else str(v) if k in _SIZES else v for k, v in r.items()} for r in report]
