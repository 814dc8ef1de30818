"""Builders. ``Builder`` appends ops to a block; derivative rules and composite bodies take one explicitly.

``b.NAME(*operands, **attrs)`` emits op NAME and returns its result (a tuple when it has several). A builder also unifies layouts:
operands of an op that wants row-major get a ``relayout``; elementwise operands get the layout of the first that has one; images stay channels_last. What comes into the
regions of loops and branches has the layout that it was traced with there, and what a round or the other branch gives is brought into it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from aotgrad_runtime.dtypes import DType, as_dtype, bool_, int64
from aotgrad_runtime.errors import AotgradTypeError

from . import opdef
from .core import Block, Func, Loc, Op, Value
from .dims import DimLike, plain
from .types import Layout, TensorType

__all__ = ["Builder", "build", "infer_types"]


class Builder:
    """Appends to ``block``. ``loc`` is given to ops emitted without one (rules set it to the primal op's)."""

    def __init__(self, block: Block, loc: Loc | None = None) -> None:
        self.block, self.loc = block, loc

    def emit(self, name: str, operands: Sequence[Value], attrs: Mapping[str, Any] | None = None, regions: Sequence[Block] = (),
             loc: Loc | None = None) -> tuple[Value, ...]:
        """Appends op ``name``; result types come from its type rule."""
        definition = opdef.get(name)
        definition.check_operands(operands)
        full = definition.complete({k: plain(v) for k, v in attrs.items()} if attrs else {})
        placed = self._layouts(definition, operands)
        if definition.edges is not None:
            edges = definition.edges(full, regions)
            placed = [self.placed(o, layout) for o, layout in zip(operands, edges.operands)] if len(operands) == len(edges.operands) else operands
            regions = [_within(r, edges) for r in regions]
        op = Op(name, placed, infer_types(definition, placed, full, regions), full, regions, loc or self.loc)
        self.block.ops.append(op)
        return op.results

    def append_copy(self, op: Op, operands: Sequence[Value]) -> tuple[Value, ...]:
        """Appends a copy of ``op`` on other operands of the same types (regions are shared: they are never changed in place)."""
        new = Op(op.name, operands, [r.type for r in op.results], op.attrs, op.regions, op.loc)
        self.block.ops.append(new)
        return new.results

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        definition = opdef.get(name)

        def call(*operands: Value, **attrs: Any) -> Any:
            results = self.emit(definition.name, operands, attrs)
            return results[0] if len(results) == 1 else results

        return call

    def _layouts(self, definition: opdef.OpDef, operands: Sequence[Value]) -> Sequence[Value]:
        if definition.layouts == "any" or not any(o.type.layout for o in operands):
            return operands
        target: Layout | None = None
        if definition.layouts == "channels_last":
            return [o if o.type.layout in (None, Layout.channels_last(o.type.rank)) else self.relayout(o, layout=None) for o in operands]
        if definition.layouts == "elementwise":
            target = next(o.type.layout for o in operands if o.type.layout)
        if definition.moved is not None:
            target, rank = definition.moved([o.type for o in operands]), operands[0].type.rank
            return [o if o.type.layout == target or target is not None and o.type.rank != rank else self.relayout(o, layout=target) for o in operands]
        return [o if o.type.layout == target else self.relayout(o, layout=target) for o in operands]

    def placed(self, x: Value, layout: Layout | None) -> Value:
        """``x`` in a layout."""
        return x if x.type.layout == layout else self.relayout(x, layout=layout)

    # ---- what rules and canonicalisers keep needing ---------------------------------------------------------------------------

    def full_like(self, like: Value | TensorType, value: Any, dtype: DType | None = None) -> Value:
        """A splat of ``value`` with the shape, layout and (unless given) dtype of ``like``."""
        t = like.type if isinstance(like, Value) else like
        out: Value = self.full(shape=t.shape, value=value, dtype=dtype or t.dtype)
        return out if t.layout is None else self.relayout(out, layout=t.layout)

    def zeros(self, like: Value | TensorType) -> Value:
        """Zeros of a type."""
        return self.full_like(like, 0)

    def scalar(self, value: Any, dtype: DType) -> Value:
        """A rank-0 constant."""
        return self.full(shape=(), value=value, dtype=dtype)  # type: ignore[no-any-return]

    def array(self, value: Any, dtype: Any = None) -> Value:
        """A constant array."""
        data = np.asarray(value, dtype=None if dtype is None else as_dtype(dtype).np)
        return self.constant(value=data)  # type: ignore[no-any-return]

    def expand(self, x: Value, shape: Sequence[DimLike]) -> Value:
        """NumPy broadcasting of ``x`` to ``shape`` (size-1 dims stretch, new dims go in front); itself when nothing changes."""
        if tuple(x.type.shape) == tuple(shape):
            return x
        lead = len(shape) - len(x.type.shape)
        return self.broadcast(x, shape=tuple(shape), dims=tuple(range(lead, len(shape))))  # type: ignore[no-any-return]

    def to_shape(self, x: Value, shape: Sequence[DimLike]) -> Value:
        """Reshape, or ``x`` when the shape is equal."""
        return x if tuple(x.type.shape) == tuple(shape) else self.reshape(x, shape=tuple(shape))

    def to_dtype(self, x: Value, dtype: DType) -> Value:
        """Cast, or ``x`` when the dtype is equal."""
        return x if x.type.dtype is dtype else self.cast(x, dtype=dtype)

    def to_perm(self, x: Value, perm: Sequence[int]) -> Value:
        """Dims reordered so that result dim i is dim perm[i]; ``x`` for the identity."""
        return x if tuple(perm) == tuple(range(len(perm))) else self.permute(x, perm=tuple(perm))

    def keep_dims(self, reduced: Value, like: Value, dims: Sequence[int]) -> Value:
        """A reduction's result broadcast back over ``dims`` of ``like``."""
        rest = tuple(d for d in range(len(like.type.shape)) if d not in dims)
        out: Value = self.broadcast(reduced, shape=tuple(like.type.shape), dims=rest)
        return out

    def count(self, sizes: Sequence[DimLike], dtype: DType) -> Value:
        """The product of sizes as a rank-0 value of ``dtype``."""
        total: DimLike = 1
        for d in sizes:
            total = total * d
        if isinstance(total, int):
            return self.scalar(total, dtype)
        return self.to_dtype(self.size(dim=total), dtype)


def _within(region: Block, edges: opdef.Edges) -> Block:
    """A region whose arguments and outputs have the layouts of its op's edges: itself, or a new one, as regions are shared."""
    ends = [(region.args, edges.args), (region.outputs, edges.outputs)]
    if any(len(values) != len(wanted) for values, wanted in ends) or all(v.type.layout == t for values, wanted in ends for v, t in zip(values, wanted)):
        return region
    new = Block([TensorType(v.type.shape, v.type.dtype, t) for v, t in zip(region.args, edges.args)])
    b = Builder(new)
    env = {old: b.placed(arg, old.type.layout) for old, arg in zip(region.args, new.args)}
    for op in region.ops:
        env.update(zip(op.results, b.append_copy(op, [env.get(o, o) for o in op.operands])))
    new.outputs = [b.placed(env.get(o, o), t) for o, t in zip(region.outputs, edges.outputs)]
    return new


def infer_types(definition: opdef.OpDef, operands: Sequence[Value], attrs: Mapping[str, Any], regions: Sequence[Block] = ()) -> Sequence[TensorType]:
    """Result types of an op, by its rule, or for a composite without one by building its body aside."""
    types = [o.type for o in operands]
    if definition.type_rule is not None:
        if definition.regions:
            return definition.type_rule(types, {**attrs, "regions": regions})
        return definition.type_rule(types, attrs)
    if not isinstance(definition.derivative, opdef.Composite):
        raise AotgradTypeError(f"ag.{definition.name} has no type rule")
    aside = Block(types)
    out = definition.derivative.body(Builder(aside), *aside.args, **attrs)
    return [v.type for v in (out if isinstance(out, (tuple, list)) else (out,))]


def build(name: str, arg_types: Sequence[TensorType], body: Callable[..., Any], attrs: Mapping[str, Any] | None = None) -> Func:
    """A function whose body is written by ``body(b, *args)``, which returns a value or several.

    >>> from aotgrad.ir import tensor_type
    >>> f = build("f", [tensor_type(["n"])], lambda b, x: b.mul(x, x))
    >>> str(f.out_types[0])
    '!ag.tensor<[n], f64>'
    """
    block = Block(arg_types)
    out = body(Builder(block), *block.args)
    block.outputs = list(out) if isinstance(out, (tuple, list)) else [out]
    return Func(name, block, attrs)


INDEX_DTYPE = int64
MASK_DTYPE = bool_
