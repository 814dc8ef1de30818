"""What a build for profiling says of its kernels: the operations in each, and the source lines they came from."""

from __future__ import annotations

from typing import Any

from aotgrad_runtime.digests import sha256

from ..ir.core import Func, Op, walk
from .plan import Item, Nest, weight
from .windows import OVERLAY

__all__ = ["places_of", "region_of"]

_PRODUCT = 64  # a product beside the elementwise operations that run on its blocks


def _ops(item: Item) -> list[Op]:
    """The operations of an item in the order of the program, copies left out."""
    if not isinstance(item, Nest):
        return [item.op] if item.op is not None else []
    found = [v.op for v in reversed(item.sequence) if v.op is not None] + item.writes
    if item.epilogue is not None:
        found.insert(0, item.epilogue)
    return [op for op in found if op.name != "stop_gradient" or op.loc is not None]


def _name(op: Op) -> str:
    """The user's operation: an overlay stands for writes."""
    return op.name if op.name != OVERLAY else "insert_add" if any(op.attrs["add"]) else "insert"


def region_of(item: Item) -> dict[str, Any]:
    """``ops``: names, in order; ``lines``: (file, line, share, adjoint) per source line, shares by the estimated cost of the operations and adding up to 1."""
    ops = _ops(item)
    shares: dict[tuple[str, int, bool], float] = {}
    for op in ops:
        if op.loc is not None:
            key = (op.loc.file, op.loc.line, op.loc.adjoint)
            shares[key] = shares.get(key, 0.0) + (_PRODUCT if op.name in ("dot", "conv") else weight(op))
    total = sum(shares.values())
    return {"ops": [_name(op) for op in ops], "lines": [[file, line, share / total, adjoint] for (file, line, adjoint), share in shares.items()]}


def places_of(func: Func) -> str:
    """A digest of the source places of a program: the key of its compiled form leaves them out, the report of a build for profiling must not."""
    text = "\n".join("" if op.loc is None else f"{op.loc}{'*' * op.loc.adjoint}" for op in walk(func.body))
    return sha256(text.encode()).hexdigest()
