"""Rewrites before planning: ops that are better as a few others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from aotgrad_runtime.dtypes import float16, float32, int64

from ..ir.builder import Builder
from ..ir.core import Block, Op, Value
from . import later
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


def _summed(b: Builder, op: Op, *xs: Value) -> Value:
    """Sums of float16 numbers in float32, rounded at the end. (A plain ``sum`` keeps such accumulators itself.)"""
    made = b.emit(op.name, [b.to_dtype(x, float32) if x.type.dtype is float16 else x for x in xs], op.attrs)[0]
    return b.to_dtype(made, float16)


_EXPANSIONS: dict[str, Any] = {"argmax": _argreduce, "argmin": _argreduce, "amax": _amax}
_SUMS = frozenset(("dot", "conv", "conv_input_grad", "conv_weight_grad", "cumsum", "prod", "cumprod", "recurrence", "window_sum"))


def _expansion(op: Op) -> Any:
    """What makes an op of others; None for one that stays."""
    if op.name in _SUMS:
        return _summed if op.results[0].type.dtype is float16 else None
    return _EXPANSIONS.get(op.name) if op.name != "amax" or op.operands[0].type.dtype.kind == "f" else None


class _Turns:
    """Transposed products: the product of the transposed factors in the other order, which is written where it belongs.

    Only where k is the outer dim of both factors, as in the gradient of a weight that is read transposed: those sums go by k, whatever the sizes.
    """

    def __init__(self, block: Block, env: Mapping[Value, Value]) -> None:
        self.env = env
        self.ops = {op: values for op in block.ops if _transposes(op) and (values := _products(op.operands[0]))}
        uses = Counter(o for op in block.ops for o in op.operands) if self.ops else Counter[Value]()
        uses.update(block.outputs if self.ops else ())
        self.ops = {op: values for op, values in self.ops.items() if all(uses[v] == 1 for v in values)}

    def make(self, b: Builder, op: Op) -> Value:
        """The result of ``op``."""
        made: dict[Value, Value] = {}
        for v in reversed(self.ops[op]):
            assert v.op is not None
            b.loc, (x, y) = v.op.loc, v.op.operands
            if v.op.name == "add":
                made[v] = b.add(made[x], made[y])
            else:
                assert x.op is not None
                inner = x.op.operands[0]
                made[v] = b.dot(b.permute(self.env.get(y, y), perm=(1, 0)), self.env.get(inner, inner))
        return made[op.operands[0]]


def _transposes(op: Op | None) -> bool:
    return op is not None and op.name == "permute" and op.attrs["perm"] == (1, 0) and op.result.type.layout is None and op.operands[0].type.layout is None


def _products(v: Value) -> list[Value]:
    """A product, or a sum of several with all sums inside it, operands last, if the left factors alone are transposed; else nothing."""
    found = [v]
    for at in found:  # grows
        op = at.op
        if op is None or at.type.layout is not None or at.type.dtype is float16:
            return []
        if op.name == "add":
            found += op.operands
        elif op.name != "dot" or not _transposes(op.operands[0].op) or _transposes(op.operands[1].op):
            return []
    return found


def prepare(block: Block) -> tuple[list[Op], Sequence[Value]]:
    """Ops and outputs of a block, which itself stays as it is."""
    env: dict[Value, Value] = {}
    turns = _Turns(block, env)
    if not turns.ops and not any(_expansion(op) or op.name == "scan" for op in block.ops):
        return overlays(block.ops, block.outputs)
    ops: list[Op] = []
    for op in block.ops:
        operands = [env.get(o, o) for o in op.operands]
        if (expand := _expansion(op)) is not None:
            aside = Block()
            env[op.result] = expand(Builder(aside, op.loc), op, *operands)
            ops += aside.ops
        elif op in turns.ops:
            aside = Block()
            env[op.result] = turns.make(Builder(aside), op)
            ops += aside.ops
        elif op.name == "scan" and (found := later.unlooped.unloop(Builder(aside := Block(), op.loc), op, operands)) is not None:
            env.update(zip(op.results, found))
            ops += aside.ops
        elif operands != op.operands:
            new = Op(op.name, operands, [r.type for r in op.results], op.attrs, op.regions, op.loc)
            env.update(zip(op.results, new.results))
            ops.append(new)
        else:
            ops.append(op)
    return overlays(ops, [env.get(o, o) for o in block.outputs])
