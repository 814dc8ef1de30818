"""One trace of a compiled function, and when it serves a call."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np

from aotgrad.ir import Func, TensorType, dims, walk
from aotgrad.ir.transforms.rewrite import substitute_func
from aotgrad_runtime.call import ArgSpec, Sym
from aotgrad_runtime.records import record
from aotgrad_runtime.tensor import Tensor

from . import kernels, sources
from .pytree import TreeDef
from .steps import gaps
from .watch import Watch

__all__ = ["Leaf", "Variant", "array_of", "fits", "flat_specs", "requirement", "specs_of_leaves", "with_sizes"]


@record
class Leaf:
    """A dynamic leaf: where it is, its type, and the class of its traced value."""

    index: int
    type: TensorType


@record
class Variant:
    """One trace of the function: its program, and how to call it."""

    func: Func
    leaves: list[Leaf]
    hidden: list[tuple[Any, Any]]  # (object seen at trace, source to re-read it from)
    guards: list[tuple[Any, Any, Any]]
    unequal: list[tuple[Any, Any]]
    out_tree: TreeDef
    out_constants: list[Any]  # per result leaf: ``structured.TRACED`` or a constant
    tensors: bool
    program: Any = None
    verified: int = 0
    records: bool = False  # traced without recording, but with a part that records (``enable_grad``), or would out of inference mode
    asks: bool = False  # it asked for the grad mode: the quick ways, which do not, are not for it
    strides: list[Any] | None = None  # what gaps hidden inputs have, where the trace asked; the quick ways are not for it
    entered: bool = False  # an entry was tried for it, see ``entries``
    flat: bool = False  # the trampoline has an instance of it
    renewed: int = 0  # how often its short way was made anew, see ``ready``
    seconds: float = 0.0
    fixed: list[tuple[Any, Any, Any]] = field(default_factory=list)  # sizes whose numbers were needed: (size, number, place)
    watch: Watch = field(default_factory=Watch)  # what the trace saw of names
    changes: Any = None  # what a call changes outside, see ``changes``
    effects: list[Any] = field(default_factory=list)  # places that the trace has changed: it serves one call
    harmless: list[Any] = field(default_factory=list)  # such places that do not matter for the program
    undo: Any = None  # takes such changes back
    requires: list[Any] | None = None  # which hidden inputs require gradients, where the trace asked
    general: Variant | None = None  # the trace that this is an instance of, with sizes as numbers
    instances: int = 0  # that were made of this trace

    def arguments(self, leaves: Sequence[Any]) -> list[Any]:
        """What the program is given in a call: leaves, then hidden inputs as they are now."""
        return [leaves[leaf.index] for leaf in self.leaves] + [sources.read(obj, source, leaves) for obj, source in self.hidden]

    def place(self, x: Any) -> Any:
        """Where the hidden input ``x`` is read again."""
        return next(source for obj, source in self.hidden if obj is x)


def fits(variant: Variant, leaves: Sequence[Any]) -> bool:
    """Whether sizes and hidden inputs match."""
    if not variant.watch.holds():
        return False
    arrays = [array_of(leaves[leaf.index]) for leaf in variant.leaves]
    for i, (obj, source) in enumerate(variant.hidden):
        try:
            now = sources.read(obj, source, leaves)
        except (LookupError, AttributeError, ValueError):  # the name is gone
            return False
        if isinstance(source, sources.Item) and type(now) is float:
            now = np.asarray(now)
        if isinstance(now, Tensor) != isinstance(obj, Tensor) or not isinstance(now, (Tensor, np.ndarray)):
            return False
        if variant.requires is not None and variant.requires[i] != requirement(now):
            return False
        if variant.strides is not None and variant.strides[i] != gaps(now):
            return False
        arrays.append(array_of(now))
    if not variant.changes.holds(leaves):
        return False
    env: dict[str, int] = {}
    pending = []
    for i, (x, t) in enumerate(zip(arrays, variant.func.arg_types)):
        if not isinstance(x, (np.ndarray, np.generic)):
            if t.rank:
                return False
            continue
        if i >= len(variant.leaves) and (kernels.dense_order(x) or None) != (t.layout.order if t.layout else None):  # that of leaves is in the signature
            return False
        if x.ndim != t.rank or (x.dtype != t.dtype.np and x.dtype.newbyteorder("=") != t.dtype.np):
            return False
        for d, n in zip(t.shape, x.shape):
            name = d.as_symbol() if isinstance(d, dims.Dim) else None
            if name is not None and name not in env:
                env[name] = n
            else:
                pending.append((d, n))
    pending += [(a, dims.substitute(b, env)) for a, b, _ in variant.guards]
    if any(dims.substitute(a, env) == dims.substitute(b, env) for a, b in variant.unequal):
        return False
    return all(dims.substitute(d, env) == n for d, n in pending)


def requirement(x: Any) -> Any:
    """What a trace may ask of a gradient of ``x``: None where none is wanted, else whether it is a leaf."""
    return x._node is None if isinstance(x, Tensor) and x._requires_grad else None


_INSTANCES = 8


def with_sizes(variant: Variant, leaves: Sequence[Any]) -> Variant | None:
    """An instance of a trace for the sizes of these leaves, where kernels of its ops are made for sizes (convolutions, pooling); None where it stays as it is."""
    if variant.general is not None or variant.instances >= _INSTANCES or not variant.func.symbols():
        return None
    if not any(op.name.startswith(("conv", "window_")) for op in walk(variant.func.body)):
        return None
    env: dict[str, dims.DimLike] = {}
    for leaf in variant.leaves:
        for d, n in zip(leaf.type.shape, np.shape(array_of(leaves[leaf.index]))):
            name = d.as_symbol() if isinstance(d, dims.Dim) else None
            if name is not None:
                env.setdefault(name, int(n))
    if not env.keys() >= set(variant.func.symbols()):
        return None
    variant.instances += 1
    made = copy.copy(variant)
    made.func, made.general, made.program, made.entered, made.flat, made.seconds = substitute_func(variant.func, env), variant, None, False, False, 0.0
    made.leaves = [Leaf(leaf.index, t) for leaf, t in zip(variant.leaves, made.func.arg_types)]
    made.guards, made.unequal = [], []  # they hold for these sizes
    return made


def array_of(x: Any) -> Any:
    """The NumPy array of a leaf."""
    return x._data if isinstance(x, Tensor) else x


# ---- for the trampoline -----------------------------------------------------------------------------------------------------------------

def flat_specs(variant: Variant, leaves: Sequence[Any]) -> list[ArgSpec] | None:
    """The arguments of a flat call for the trampoline; None where it cannot read or compare one of them."""
    specs = specs_of_leaves(variant, leaves, [leaf.index for leaf in variant.leaves])
    dynamic = {leaf.index for leaf in variant.leaves}
    for i, x in enumerate(leaves):
        if i not in dynamic and specs is not None:
            if x is not None and not isinstance(x, bool) and getattr(type(x), "__eq__", None) is not object.__eq__:
                return None  # the trampoline compares by identity: equal values that are other objects would never fit
            specs.append(ArgSpec("is", source=i, value=x))
    return specs


def specs_of_leaves(variant: Variant, leaves: Sequence[Any], places: Sequence[int]) -> list[ArgSpec] | None:
    """What the kernel reads: the leaves, at these positions, and hidden inputs."""
    index = {s: i for i, s in enumerate(variant.func.symbols())}
    specs = []
    for leaf, t, place in zip(variant.leaves, variant.func.arg_types, places):
        x = leaves[leaf.index]
        sizes: list[int | Sym] = []
        for d in t.shape:
            name = None if isinstance(d, int) else d.as_symbol()
            if not isinstance(d, int) and name is None:
                return None
            sizes.append(d if isinstance(d, int) else Sym(index[str(name)]))
        if isinstance(x, np.ndarray):
            specs.append(ArgSpec("array", t.dtype, tuple(sizes), t.layout.order if t.layout else None, place))
        elif isinstance(x, np.generic):
            specs.append(ArgSpec("npscalar", t.dtype, source=place))
        else:
            specs.append(ArgSpec("float" if type(x) is float else "int", t.dtype, source=place))
    for (_, source), t in zip(variant.hidden, variant.func.arg_types[len(variant.leaves):]):
        where = sources.fast(source)
        if where is None or not all(isinstance(d, int) for d in t.shape):
            return None
        specs.append(ArgSpec("array", t.dtype, tuple(d for d in t.shape if isinstance(d, int)), t.layout.order if t.layout else None, where))
    return None if variant.watch.specs is None else specs + variant.watch.specs
