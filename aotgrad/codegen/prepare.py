"""Rewrites before planning: ops that are better as a few others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aotgrad_runtime.dtypes import int64

from ..ir.builder import Builder
from ..ir.core import Block, Op, Value
from .windows import overlays

__all__ = ["prepare"]


def _argreduce(b: Builder, op: Op, x: Value) -> Value:
    """The first position that holds the extremum (or a NaN): two reductions, which vectorise and fuse."""
    dim = op.attrs["dim"]
    kept = tuple(d for d in range(x.type.rank) if d != dim)
    if op.name == "argmax" and x.type.dtype.kind == "f":
        x = b.neg(x)
    best = (b.amax if op.name == "argmax" and x.type.dtype.kind != "f" else b.amin)(x, dims=(dim,))
    hit = b.eq(x, b.broadcast(best, shape=x.type.shape, dims=kept))
    if x.type.dtype.kind == "f":
        hit = b.logical_or(hit, b.ne(x, x))
    places = b.iota(shape=x.type.shape, dim=dim, dtype=int64)
    beyond = b.full(shape=x.type.shape, value=(1 << 63) - 1, dtype=int64)
    return b.amin(b.where(hit, places, beyond), dims=(dim,))  # type: ignore[no-any-return]


def _amax(b: Builder, op: Op, x: Value) -> Value:
    """The least of the negatives: of floats it is an instruction or two cheaper."""
    return b.neg(b.amin(b.neg(x), dims=op.attrs["dims"]))  # type: ignore[no-any-return]


_EXPANSIONS: dict[str, Any] = {"argmax": _argreduce, "argmin": _argreduce, "amax": _amax}


def _expands(op: Op) -> bool:
    return op.name in _EXPANSIONS and (op.name != "amax" or op.operands[0].type.dtype.kind == "f")


def prepare(block: Block) -> tuple[list[Op], Sequence[Value]]:
    """Ops and outputs of a block, which itself stays as it is."""
    if not any(_expands(op) for op in block.ops):
        return overlays(block.ops, block.outputs)
    env: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in block.ops:
        operands = [env.get(o, o) for o in op.operands]
        if _expands(op):
            aside = Block()
            env[op.result] = _EXPANSIONS[op.name](Builder(aside, op.loc), op, *operands)
            ops += aside.ops
        elif operands != op.operands:
            new = Op(op.name, operands, [r.type for r in op.results], op.attrs, op.regions, op.loc)
            env.update(zip(op.results, new.results))
            ops.append(new)
        else:
            ops.append(op)
    return overlays(ops, [env.get(o, o) for o in block.outputs])
