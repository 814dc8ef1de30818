"""Copying and closing over pieces of IR; every transform is built from these. Iterative throughout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from .. import dims, opdef
from ..builder import Builder
from ..core import Block, Func, Op, Value
from ..host import acts
from ..types import TensorType
from .widen import in_float32

__all__ = ["close_over", "cone", "copy_ops", "decompose_block", "decompose_func", "free_values", "inline", "key_part", "rebuild", "substitute_func", "substitute_here"]

Env = dict[Value, Value]
Rule = Callable[..., Any]
_NONE: Final[Mapping[str, Rule]] = {}


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


_CONE = 12  # elementwise ops that are computed again in a region rather than kept in memory for it


def cone(v: Value) -> tuple[list[Value], Callable[[Builder, Sequence[Value]], Value]]:
    """What ``v`` is made of by a few elementwise ops, and a function that makes it again of these."""
    ops: dict[Op, None] = {}
    leaves: dict[Value, None] = {}
    todo = [v]
    while todo:
        at = todo.pop()
        op = at.op
        if op is None or len(ops) >= _CONE or not (op.name in ("broadcast", "full") or isinstance(opdef.get(op.name).lower, opdef.Scalar) and opdef.limited(op) is None):
            leaves[at] = None
        elif op not in ops:
            ops[op] = None
            todo += op.operands
    order = _in_order(ops, v)

    def again(b: Builder, given: Sequence[Value]) -> Value:
        env: Env = dict(zip(leaves, given))
        copy_ops(b, order, env)
        return env[v]

    return list(leaves), again


def _in_order(ops: Mapping[Op, None], v: Value) -> list[Op]:
    """The ops that ``v`` is made of, operands first."""
    done: dict[Op, None] = {}
    stack = [v.op] if v.op is not None and v.op in ops else []
    while stack:
        op = stack[-1]
        left = [o.op for o in op.operands if o.op is not None and o.op in ops and o.op not in done]
        if left:
            stack += left
        else:
            done[stack.pop()] = None
    return list(done)


def _expand(op: Op, body: Any, ins: Sequence[Value]) -> tuple[list[Op], list[Value]]:
    aside = Block()
    out = body(Builder(aside, op.loc), *ins, **op.attrs)
    return in_float32(aside.ops, out if isinstance(out, (tuple, list)) else [out])


def key_part(value: Any) -> Any:
    """What tells an attribute from others: numbers by type and bits, arrays by their bytes."""
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, float):
        return (float, value.hex(), np.copysign(1.0, value))
    if isinstance(value, tuple):
        return tuple(key_part(v) for v in value)
    return (type(value), value)


class _Merging(Builder):
    """Gives the results of an equal op that is there already instead of appending it again."""

    def __init__(self, block: Block) -> None:
        super().__init__(block)
        self.seen: dict[Any, tuple[Value, ...]] = {}

    def append_copy(self, op: Op, operands: Sequence[Value]) -> tuple[Value, ...]:
        if op.regions or op.name == "host_call" and acts(op):
            return super().append_copy(op, operands)
        key = (op.name, tuple(map(id, operands)), tuple([(k, key_part(v)) for k, v in op.attrs.items()]) if op.attrs else ())
        found = self.seen.get(key)
        if found is None:
            found = self.seen[key] = super().append_copy(op, operands)
        return found


def rebuild(block: Block, *, expand: bool = False, rules: Mapping[str, Rule] = _NONE, inside: Mapping[str, Rule] = _NONE, merge: bool = False) -> Block:
    """A copy of ``block`` made in one walk, each op at most once. Iterative.

    ``expand``: composites become their bodies. ``rules[op name](b, op, *operands)`` may give a value of the same type instead of an op, made of other ops, which are
    looked at again; ``inside``: the rules in regions. ``merge``: equal ops on equal operands are computed once.
    """
    new = Block([a.type for a in block.args])
    env: Env = dict(zip(block.args, new.args))
    b = _Merging(new) if merge else Builder(new)
    stack: list[tuple[Iterator[Op], Op | None, Sequence[Value]]] = [(iter(block.ops), None, ())]
    while stack:
        ops, done, outs = stack[-1]
        for op in ops:
            operands = [env.get(o, o) for o in op.operands]
            made = _instead(op, operands, expand, rules.get(op.name))
            if made is not None:
                stack.append((iter(made[0]), op, made[1]))
                break
            if op.regions and (expand or merge or inside):
                regions = [rebuild(r, expand=expand, rules=inside, inside=inside, merge=merge) for r in op.regions]
                op, old = Op(op.name, operands, [r.type for r in op.results], op.attrs, regions, op.loc), op
                new.ops.append(op)
                env.update(zip(old.results, op.results))
            else:
                env.update(zip(op.results, b.append_copy(op, operands)))
        else:
            stack.pop()
            if done is not None:
                env.update((old, env.get(v, v)) for old, v in zip(done.results, outs))
    new.outputs = [env.get(o, o) for o in block.outputs]
    return new


def _instead(op: Op, operands: Sequence[Value], expand: bool, rule: Rule | None) -> tuple[list[Op], Sequence[Value]] | None:
    """Ops and results that stand for ``op``, or None."""
    if expand:
        derivative = opdef.get(op.name).derivative
        if isinstance(derivative, opdef.Composite):
            return _expand(op, derivative.body, operands)
    if rule is not None:
        aside = Block()
        better = rule(Builder(aside, op.loc), op, *operands)
        if better is not None and better.type == op.results[0].type:
            return aside.ops, (better,)
    return None


def decompose_block(block: Block) -> Block:
    """A copy of ``block`` with every composite replaced by its body, at all depths."""
    return rebuild(block, expand=True)


def decompose_func(func: Func) -> Func:
    """``decompose_block`` of a function."""
    return Func(func.name, decompose_block(func.body), func.attrs)


class _Substitution:
    """Sizes and types with symbols replaced, each once: programs have few, which are long."""

    def __init__(self, env: Mapping[str, dims.DimLike]) -> None:
        self.env = env
        self.sizes: dict[dims.Dim, dims.DimLike] = {}
        self.types: dict[int, tuple[TensorType, TensorType]] = {}

    def attr(self, value: Any) -> Any:
        """An attribute."""
        if isinstance(value, dims.Dim):
            return value.substitute(self.env, self.sizes)
        if isinstance(value, tuple):
            return tuple([self.attr(v) for v in value])
        return self.type(value) if isinstance(value, TensorType) else value

    def type(self, t: TensorType) -> TensorType:
        """A type."""
        found = self.types.get(id(t))
        if found is None:
            found = self.types[id(t)] = (t, TensorType(self.attr(t.shape), t.dtype, t.layout))  # the type is held, so that no other gets its identity
        return found[1]


def substitute_block(block: Block, env: Mapping[str, dims.DimLike]) -> Block:
    """A copy of a block with size symbols replaced."""
    return _substituted(block, _Substitution(env))


def _substituted(block: Block, to: _Substitution) -> Block:
    new = Block([to.type(a.type) for a in block.args])
    values: Env = dict(zip(block.args, new.args))
    for op in block.ops:
        copied = Op(op.name, [values[o] for o in op.operands], [to.type(r.type) for r in op.results], {k: to.attr(v) for k, v in op.attrs.items()},
                    [_substituted(r, to) for r in op.regions], op.loc)
        new.ops.append(copied)
        values.update(zip(op.results, copied.results))
    new.outputs = [values[o] for o in block.outputs]
    return new


def substitute_here(block: Block, env: Mapping[str, dims.DimLike]) -> Block:
    """``block`` with size symbols replaced, in place (regions, which ops may share, are copied): for a block that nobody else has."""
    if env:
        to = _Substitution(env)
        for a in block.args:
            a.type = to.type(a.type)
        for op in block.ops:
            for r in op.results:
                r.type = to.type(r.type)
            if op.attrs:
                op.attrs = {k: to.attr(v) for k, v in op.attrs.items()}
            op.regions = tuple([_substituted(r, to) for r in op.regions])
    return block


def substitute_func(func: Func, env: Mapping[str, dims.DimLike]) -> Func:
    """A copy of ``func`` with size symbols replaced (by numbers: a static instance)."""
    if not env:
        return func
    to = _Substitution(env)
    return Func(func.name, _substituted(func.body, to), {k: to.attr(v) for k, v in func.attrs.items()})
