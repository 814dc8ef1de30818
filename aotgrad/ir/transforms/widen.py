"""Numbers of two bytes computed in float32: what comes in and what goes out is rounded, nothing in between is, as in PyTorch's kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aotgrad_runtime.dtypes import DType, bfloat16, float16, float32

from .. import opdef
from ..builder import Builder
from ..core import Block, Func, Op, Value

__all__ = ["in_float32", "widened"]

_HALVES = (bfloat16, float16)
_CHOICES = frozenset(("cast", "constant", "full", "stop_gradient", "where"))  # what they give is one of their operands, rounded already


def widened(func: Func) -> Func:
    """``func``, free of composites, with float32 in the place of bfloat16 between its arguments and its results; itself where it computes nothing in bfloat16.

    >>> from aotgrad.ir import build, tensor_type
    >>> f = build("f", [tensor_type([2], "bfloat16")], lambda b, x: b.exp(b.neg(x)))
    >>> [(op.name, op.result.type.dtype.name) for op in widened(f).body.ops]
    [('cast', 'float32'), ('neg', 'float32'), ('exp', 'float32'), ('cast', 'bfloat16')]
    """
    if not any(_computes(op, (bfloat16,)) for op in func.body.ops) or not all(map(_plain, func.body.ops)):
        return func
    block = Block(func.arg_types)
    block.outputs = _widen(Builder(block), func.body.ops, func.outputs, dict(zip(func.args, block.args)), (bfloat16,))
    return Func(func.name, block, func.attrs)


def in_float32(ops: list[Op], outs: Sequence[Value]) -> tuple[list[Op], list[Value]]:
    """The body of a composite, ``ops`` that give ``outs``, in float32 where it would round float16 or bfloat16 numbers more than once."""
    if sum(_computes(op, _HALVES) for op in ops) < 2 or not all(map(_plain, ops)):
        return ops, list(outs)
    aside = Block()
    found = _widen(Builder(aside), ops, outs, {}, _HALVES)
    return aside.ops, found


def _widen(b: Builder, ops: Sequence[Op], outs: Sequence[Value], given: Mapping[Value, Value], halves: Sequence[DType]) -> list[Value]:
    """Appends ``ops`` in float32. ``given``: the values to take for those from outside."""
    env: dict[Value, Value] = {}

    def dtype(d: DType) -> DType:
        return float32 if d in halves else d

    def wide(v: Value) -> Value:
        if v not in env:
            env[v] = b.to_dtype(given.get(v, v), dtype(v.type.dtype))
        return env[v]

    for op in ops:
        b.loc = op.loc
        operands = [wide(o) for o in op.operands]
        if op.name == "cast":
            env[op.result] = b.to_dtype(operands[0], dtype(op.attrs["dtype"]))
        else:
            env.update(zip(op.results, b.emit(op.name, operands, {k: dtype(v) if isinstance(v, DType) else v for k, v in op.attrs.items()})))
    b.loc = None
    return [given.get(o, o) if o.op is None else b.to_dtype(wide(o), o.type.dtype) for o in outs]


def _plain(op: Op) -> bool:
    return not op.regions and op.name != "host_call"


def _computes(op: Op, halves: Sequence[DType]) -> bool:
    """Whether an op makes numbers that have to be rounded."""
    definition = opdef.get(op.name)
    return (bool(op.results and op.operands) and op.results[0].type.dtype in halves and op.name not in _CHOICES
            and (isinstance(definition.lower, opdef.Scalar) or not definition.exact))
