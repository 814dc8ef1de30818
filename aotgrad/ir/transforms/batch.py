"""Batching: a program over a new leading axis. Operands that have no such axis stay as they are for as long as they can.

``batch_into(b, block, ins, on, size)`` appends ``block`` on ``ins`` to ``b``, where those flagged in ``on`` have ``size`` examples along dim 0. Before and after, for
an example of shape ``[3]`` with a vector ``w`` that is shared::

    %0 = ag.mul(%x, %w) : [3], [3] -> [3]            %1 = ag.broadcast(%w) : [3] -> [n, 3]
                                                     %0 = ag.mul(%x, %1) : [n, 3], [n, 3] -> [n, 3]

A rule is ``OpDef.batch(b, op, xs, on, size)``: the results, all with the new dim in front, or ``Partly`` where some have none. Elementwise ops and reductions need no
rule of their own, composites follow from their bodies, and any other op without a rule runs on one example after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aotgrad_runtime.errors import AotgradNotImplementedError
from aotgrad_runtime.records import record

from .. import dims, opdef
from ..builder import Builder
from ..core import Block, Func, Op, Value
from ..dims import DimLike
from ..types import Layout, TensorType
from .rewrite import decompose_block

__all__ = ["Partly", "batch_block", "batch_func", "batch_in_chunks", "batch_into", "batched_layout", "batched_type", "one_by_one", "spread"]


@record(frozen=True)
class Partly:
    """Results of which only those flagged have the new dim."""

    values: Sequence[Value]
    on: Sequence[bool]


# ---- what rules need ----------------------------------------------------------------------------------------------------------------

def batched_layout(layout: Layout | None) -> Layout | None:
    """A memory layout behind the new dim."""
    return layout and Layout((0, *(d + 1 for d in layout.order)), tuple((d + 1, s) for d, s in layout.blocks))


def batched_type(t: TensorType, size: DimLike) -> TensorType:
    """``size`` values of a type, stacked."""
    return TensorType((size, *t.shape), t.dtype, batched_layout(t.layout))


def spread(b: Builder, x: Value, on: bool, size: DimLike) -> Value:
    """``x`` with the new dim: repeated along it where it has none."""
    if on:
        return x
    shape = (size, *x.type.shape)
    return b.placed(b.broadcast(x, shape=shape, dims=tuple(range(1, len(shape)))), batched_layout(x.type.layout))


# ---- rules by kind ------------------------------------------------------------------------------------------------------------------

def _elementwise(b: Builder, op: Op, xs: Sequence[Value], on: Sequence[bool], size: DimLike) -> Any:
    return b.emit(op.name, [spread(b, x, k, size) for x, k in zip(xs, on)], op.attrs)


def _reduce(b: Builder, op: Op, xs: Sequence[Value], on: Sequence[bool], size: DimLike) -> Any:
    return b.emit(op.name, xs, {**op.attrs, "dims": tuple(d + 1 for d in op.attrs["dims"])})


def _rule_of(op: Op) -> Any:
    definition = opdef.get(op.name)
    if definition.batch is not None:
        return definition.batch
    if isinstance(definition.lower, opdef.Scalar):
        return _elementwise
    if isinstance(definition.lower, opdef.Reduce):
        return _reduce
    if not definition.regions and definition.ref is not None:
        return one_by_one
    raise AotgradNotImplementedError(f"{op.loc}: ag.{op.name} cannot be batched: its OpDef has regions and no batch rule. Give it one, batch=fn(b, op, xs, on, size), "
                                     "or run the function over the examples one by one with ag.map")


def one_by_one(b: Builder, op: Op, xs: Sequence[Value], on: Sequence[bool], size: DimLike) -> Any:
    """The op itself on one example after the other: right for every op, and what those without a rule of their own get."""
    consts, rows = [i for i, k in enumerate(on) if not k], [i for i, k in enumerate(on) if k]
    given = [*(xs[i] for i in consts), *(b.placed(xs[i], None) for i in rows)]
    block = Block([*(xs[i].type for i in consts), *(TensorType(tuple(xs[i].type.shape[1:]), xs[i].type.dtype) for i in rows)])
    inner = Builder(block, op.loc)
    args = dict(zip((*consts, *rows), block.args))
    found = inner.append_copy(op, [inner.placed(args[i], o.type.layout) for i, o in enumerate(op.operands)])
    block.outputs = [inner.placed(v, None) for v in found]
    return b.emit("scan", given, {"consts": len(consts), "carry": 0, "length": size}, (block,))


# ---- the walk -----------------------------------------------------------------------------------------------------------------------

def batch_into(b: Builder, block: Block, ins: Sequence[Value], on: Sequence[bool], size: DimLike) -> tuple[list[Value], list[bool]]:
    """Outputs of ``block`` (free of composites) on ``ins``, and which of them have the new dim."""
    env: dict[Value, tuple[Value, bool]] = dict(zip(block.args, zip(ins, on)))
    outer = b.loc
    for op in block.ops:
        b.loc = op.loc
        given = [env.get(o, (o, False)) for o in op.operands]
        xs, flags = [x for x, _ in given], [k for _, k in given]
        if not any(flags):
            env.update((r, (v, False)) for r, v in zip(op.results, b.append_copy(op, xs)))
            continue
        found = _rule_of(op)(b, op, xs, flags, size)
        if isinstance(found, Value):
            found = (found,)
        pairs = zip(found.values, found.on) if isinstance(found, Partly) else ((v, True) for v in found)
        env.update(zip(op.results, pairs))
    b.loc = outer
    outs = [env.get(o, (o, False)) for o in block.outputs]
    return [v for v, _ in outs], [k for _, k in outs]


def batch_block(block: Block, on: Sequence[bool], size: DimLike, wanted: Sequence[bool] | None = None) -> tuple[Block, list[bool]]:
    """``block`` (free of composites) over the new dim. Outputs flagged in ``wanted`` have it in any case."""
    new = Block([batched_type(a.type, size) if k else a.type for a, k in zip(block.args, on)])
    b = Builder(new)
    outs, found = batch_into(b, block, new.args, on, size)
    full = [k or w for k, w in zip(found, wanted or found)]
    new.outputs = [b.placed(spread(b, v, k, size) if w else v, batched_layout(o.type.layout) if w else o.type.layout)
                   for o, v, k, w in zip(block.outputs, outs, found, full)]
    return new, full


def batch_func(func: Func, on: Sequence[bool], size: DimLike) -> Func:
    """A function of ``size`` examples along dim 0 of the arguments flagged in ``on``, and of all results.

    >>> from aotgrad.ir import build, tensor_type
    >>> f = build("f", [tensor_type([3]), tensor_type([3])], lambda b, x, w: b.sum(b.mul(x, w), dims=(0,)))
    >>> g = batch_func(f, [True, False], dims.symbol("n"))
    >>> str(g.arg_types[0]), str(g.arg_types[1]), str(g.out_types[0])
    ('!ag.tensor<[n, 3], f64>', '!ag.tensor<[3], f64>', '!ag.tensor<[n], f64>')
    """
    block = decompose_block(func.body)
    return Func(f"{func.name}_batched", batch_block(block, on, size, [True] * len(block.outputs))[0], func.attrs)


def batch_in_chunks(b: Builder, block: Block, ins: Sequence[Value], on: Sequence[bool], size: DimLike, chunk: DimLike) -> list[Value]:
    """As ``batch_into``, ``chunk`` examples at a time in a loop, and the rest after it: memory for intermediate values does not grow with ``size``. All results have
    the new dim."""
    count = dims.floordiv(size, chunk)
    rest = size - count * chunk
    if isinstance(count, int) and count == 1 and isinstance(rest, int) and rest == 0:
        count, rest = 0, size
    parts: list[list[Value]] = []
    if not isinstance(count, int) or count:
        body = batch_block(block, on, chunk, [True] * len(block.outputs))[0]
        consts = [i for i, k in enumerate(on) if not k]
        rows = [i for i, k in enumerate(on) if k]
        loop = Block()
        loop.args, loop.ops, loop.outputs = [body.args[i] for i in (*consts, *rows)], body.ops, [Builder(body).placed(o, None) for o in body.outputs]
        whole = [_rows(b, ins[i], 0, count * chunk) for i in rows]
        scanned = [b.to_shape(x, (count, chunk, *x.type.shape[1:])) for x in whole]
        found = b.emit("scan", [*(ins[i] for i in consts), *scanned], {"consts": len(consts), "carry": 0, "length": count}, (loop,))
        parts.append([b.to_shape(v, (count * chunk, *v.type.shape[2:])) for v in found])
    if not isinstance(rest, int) or rest or not parts:
        given = [_rows(b, x, count * chunk, rest) if k else x for x, k in zip(ins, on)]
        outs, flags = batch_into(b, block, given, on, rest)
        parts.append([b.placed(spread(b, v, k, rest), None) for v, k in zip(outs, flags)])
    if len(parts) == 1:
        return parts[0]
    joined = [b.concatenate(x, y, dim=0) for x, y in zip(*parts)]
    return [b.to_shape(v, (size, *v.type.shape[1:])) for v in joined]


def _rows(b: Builder, x: Value, start: DimLike, count: DimLike) -> Value:
    shape, rank = x.type.shape, len(x.type.shape)
    if count == shape[0]:
        return x
    return b.slice(x, starts=(start, *(0,) * (rank - 1)), sizes=(count, *shape[1:]), steps=(1,) * rank)  # type: ignore[no-any-return]
