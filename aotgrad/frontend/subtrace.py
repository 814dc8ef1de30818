"""A Python function as a block of IR inside the current trace, for transforms and control flow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotgrad.ir import Block, Func, TensorType, Value
from aotgrad.ir.transforms.rewrite import substitute_here
from aotgrad_runtime import modes
from aotgrad_runtime.arrays import native
from aotgrad_runtime.errors import AotgradTypeError
from aotgrad_runtime.tensor import ArrayTensor, Tensor

from . import placement, unusable
from .explained import explained
from .front import FrontBuilder
from .gathering import gathering
from .promotion import is_number, python_dtype
from .pytree import TreeDef, tree_flatten, tree_unflatten
from .sizes import plain_size
from .trace import Trace, Traced, TracedArray, TracedTensor, current, tracing, user_loc

__all__ = ["Sub", "as_value", "builder_of", "is_leaf_array", "outputs_of", "traced_class"]


def is_leaf_array(x: Any) -> bool:
    """Whether a leaf of an argument carries numbers that can be traced."""
    return isinstance(x, (Tensor, np.ndarray, np.generic)) or type(x) in (float, int)


def traced_class(leaves: Sequence[Any]) -> type[Any]:
    """NumPy's flavour unless a tensor is among the leaves."""
    return TracedTensor if any(isinstance(x, Tensor) and not isinstance(x, ArrayTensor) for x in leaves) else TracedArray


def builder_of(trace: Trace) -> FrontBuilder:
    """A builder that appends to a trace at the user's line."""
    return FrontBuilder(trace, True, user_loc())


def as_value(x: Any, trace: Trace) -> Value:
    """The IR value of a leaf in ``trace``: traced values, arrays (hidden inputs), numbers (constants)."""
    if isinstance(x, Traced):
        placement.check(x)
        return trace.value_of(x)
    unusable.check(x)
    if isinstance(x, Tensor):
        return trace.capture(x, x._data)
    if isinstance(x, np.ndarray):
        return trace.capture(x, native(x))
    if isinstance(x, np.generic):
        return trace.builder.constant(value=np.array(x))  # type: ignore[no-any-return]
    if isinstance(x, (bool, int, float)):
        return trace.builder.scalar(x, python_dtype(x))
    if hasattr(x, "symbols"):
        return trace.builder.size(dim=trace.canonical(plain_size(x)))  # type: ignore[no-any-return]
    raise AotgradTypeError(f"{user_loc()}: {type(x).__name__} is not an array, tensor or number, and cannot be a result of a traced function")


def outputs_of(trace: Trace, out: Any) -> tuple[list[Value], TreeDef]:
    """Flattens what a traced function returned into values of ``trace``."""
    leaves, tree = tree_flatten(out)
    return [as_value(x, trace) for x in leaves], tree


class Sub:
    """``fn`` traced on arguments of given types inside the current trace.

    ``block``: its args are the given leaves, then what it uses of the traces around it (``lifted``: those values in the parent). Without a parent, arrays that it meets
    are constants, or with ``hidden`` arguments too (``trace.captured``). ``places``: how the leaves lie in memory (see ``placement``), and how the results do afterwards;
    ``numbers``: which results are Python's numbers. ``origins``: what leaves stand for at first, which tells whether they want gradients.
    """

    @modes.intact
    def __init__(self, name: str, fn: Callable[..., Any], treedef: TreeDef, types: Sequence[TensorType], cls: type[Any], weak: Sequence[bool] | None = None,
                 parent: Trace | None = None, hidden: bool = False, draws: Any = None,
                 places: Sequence[Any] | None = None, origins: Sequence[Any] = ()) -> None:
        self.parent = parent or current()
        self.trace = Trace(name, self.parent, examples=None if self.parent else {}, hidden=hidden or self.parent is not None)
        self.trace.draws = draws
        leaves = [self.trace.argument(t, cls) for t in types]
        self.trace.origins.update((leaf._value, x) for leaf, x in zip(leaves, origins) if isinstance(x, Traced))
        for leaf, w in zip(leaves, weak or ()):
            if w:
                leaf._weak = True
        for leaf, found in zip(leaves, places or [placement.UNKNOWN] * len(leaves)):
            leaf._placed = found if leaf.ndim else None
        self.cls, self.count = cls, len(leaves)
        args = tree_unflatten(treedef, leaves)
        try:
            with tracing(self.trace), gathering():
                out = fn(*args)
                results = tree_flatten(out)[0]
                self.places, self.numbers = [placement.placed(x) for x in results], [is_number(x) for x in results]
                self.trace.block.outputs, self.out_tree = outputs_of(self.trace, out)
        except Exception as error:
            found = explained(error)
            try:
                if found is error:
                    raise
                raise found from found.__cause__  # not from the error: that stands on this one, and the next search of the chain would end there
            finally:
                del found
        self.block: Block = substitute_here(self.trace.block, self.trace.equal.names)
        self.lifted = [x for x, _ in self.trace.lifted.values()]

    def lifted_values(self) -> list[Value]:
        """What the block's extra args stand for, as values of the parent."""
        assert self.parent is not None
        return [self.parent.value_of(x) for x in self.lifted]

    def func(self) -> Func:
        """The block as a function (only without a parent)."""
        return Func(self.trace.name, self.block)
