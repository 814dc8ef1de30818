"""Copying and closing over pieces of IR; every transform is built from these. Iterative throughout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .. import dims, opdef
from ..builder import Builder
from ..core import Block, Func, Op, Value
from ..types import TensorType

__all__ = ["close_over", "copy_ops", "decompose_block", "decompose_func", "free_values", "inline", "substitute_func"]

Env = dict[Value, Value]


def copy_ops(b: Builder, ops: Iterable[Op], env: Env) -> None:
    """Appends copies of ``ops`` to ``b``, operands looked up in ``env`` (values not in it stand for themselves); results are entered in it."""
    for op in ops:
        for old, new in zip(op.results, b.append_copy(op, [env.get(o, o) for o in op.operands])):
            env[old] = new


def inline(b: Builder, block: Block, operands: Sequence[Value]) -> list[Value]:
    """Appends the body of ``block`` on ``operands``; gives its outputs."""
    env: Env = dict(zip(block.args, operands))
    copy_ops(b, block.ops, env)
    return [env.get(o, o) for o in block.outputs]


def free_values(ops: Sequence[Op], outputs: Sequence[Value], bound: Iterable[Value]) -> list[Value]:
    """Values that ``ops`` and ``outputs`` use and neither define nor find in ``bound``, in order of first use."""
    known = set(bound)
    free: dict[Value, None] = {}
    for op in ops:
        for o in op.operands:
            if o not in known:
                free[o] = None
        known.update(op.results)
    for o in outputs:
        if o not in known:
            free[o] = None
    return list(free)


def close_over(ops: Sequence[Op], args: Sequence[Value], outputs: Sequence[Value]) -> Block:
    """An isolated block taking ``args`` (in order) and giving ``outputs``."""
    block = Block([a.type for a in args])
    env: Env = dict(zip(args, block.args))
    copy_ops(Builder(block), ops, env)
    block.outputs = [env[o] for o in outputs]
    return block


def _expand(op: Op, body: Any, ins: Sequence[Value]) -> tuple[list[Op], list[Value]]:
    aside = Block()
    out = body(Builder(aside, op.loc), *ins, **op.attrs)
    return aside.ops, list(out) if isinstance(out, (tuple, list)) else [out]


def decompose_block(block: Block) -> Block:
    """A copy of ``block`` with every composite replaced by its body, at all depths. Ops without composites inside are kept as they are."""
    new = Block([a.type for a in block.args])
    env: Env = dict(zip(block.args, new.args))
    b = Builder(new)
    stack: list[tuple[list[Op], int, tuple[Op, list[Value]] | None]] = [(block.ops, 0, None)]
    while stack:
        ops, at, after = stack.pop()
        if at == len(ops):
            if after is not None:
                for old, new_value in zip(after[0].results, after[1]):
                    env[old] = env.get(new_value, new_value)
            continue
        stack.append((ops, at + 1, after))
        op = ops[at]
        derivative = opdef.get(op.name).derivative
        if isinstance(derivative, opdef.Composite):
            ins = [env.get(o, o) for o in op.operands]
            stack.append((*(lambda pair: (pair[0], 0, (op, pair[1])))(_expand(op, derivative.body, ins)),))
        elif op.regions:
            copied = Op(op.name, [env.get(o, o) for o in op.operands], [r.type for r in op.results], op.attrs, [decompose_block(r) for r in op.regions], op.loc)
            new.ops.append(copied)
            env.update(zip(op.results, copied.results))
        else:
            env.update(zip(op.results, b.append_copy(op, [env.get(o, o) for o in op.operands])))
    new.outputs = [env.get(o, o) for o in block.outputs]
    return new


def decompose_func(func: Func) -> Func:
    """``decompose_block`` of a function."""
    return Func(func.name, decompose_block(func.body), func.attrs)


def _substitute_attr(value: Any, env: Mapping[str, dims.DimLike]) -> Any:
    if isinstance(value, dims.Dim):
        return value.substitute(env)
    if isinstance(value, tuple):
        return tuple(_substitute_attr(v, env) for v in value)
    if isinstance(value, TensorType):
        return value.substitute(env)
    return value


def substitute_block(block: Block, env: Mapping[str, dims.DimLike]) -> Block:
    """A copy of a block with size symbols replaced."""
    new = Block([a.type.substitute(env) for a in block.args])
    values: Env = dict(zip(block.args, new.args))
    for op in block.ops:
        copied = Op(op.name, [values[o] for o in op.operands], [r.type.substitute(env) for r in op.results], {k: _substitute_attr(v, env) for k, v in op.attrs.items()},
                    [substitute_block(r, env) for r in op.regions], op.loc)
        new.ops.append(copied)
        values.update(zip(op.results, copied.results))
    new.outputs = [values[o] for o in block.outputs]
    return new


def substitute_func(func: Func, env: Mapping[str, dims.DimLike]) -> Func:
    """A copy of ``func`` with size symbols replaced (by numbers: a static instance)."""
    return Func(func.name, substitute_block(func.body, env), {k: _substitute_attr(v, env) for k, v in func.attrs.items()}) if env else func
