"""What makes the next call of a compiled function fast, once one has gone the general way: instances of its trampoline, entries, and short ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aotgrad_runtime import modes
from aotgrad_runtime.tensor import Tensor

from . import kernels, ready, split, structured, taped
from .pytree import TreeDef
from .static import static_key
from .structured import TRACED
from .variant import Variant, flat_specs, specs_of_leaves

__all__ = ["add"]

_ENTRIES = 16  # structures with an entry of their own, at most: they are tried one after the other


def add(state: Any, variant: Variant, leaves: Sequence[Any], tree: TreeDef) -> None:
    """Makes the next such call fast: by an instance of the trampoline when it is flat (positional arrays and numbers in, one array or a tuple of them out), else,
    or when it came this way although there is one, by an entry."""
    if variant.asks or variant.strides is not None or variant.changes.any or variant.changes.held or state.options.verify or split.needs_host(variant.func):
        variant.entered = True
        _ready(state, variant, leaves, tree)
        return
    if variant.tensors or any(isinstance(x, Tensor) for x in leaves):
        variant.entered = True
        made = taped.enter(state, variant, leaves, tree) if len(state.entries) < _ENTRIES else None
        if made is None and variant.hidden:
            _ready(state, variant, leaves, tree)
        elif made is not None:
            state.enter(variant.func if variant.watch.contents else (variant.func, modes.state.grad), made, variant)
        return
    flat_in = not tree.children[1].children and all(c.kind is None for c in tree.children[0].children)
    out = variant.out_tree
    flat_out = all(c is TRACED for c in variant.out_constants) and variant.out_constants and (
        out.kind is None or (out.kind is tuple and len(out.children) > 1 and all(c.kind is None for c in out.children)))
    specs = flat_specs(variant, leaves) if not variant.flat and flat_in and flat_out else None
    if specs is None or variant.watch.contents:
        _entry(state, variant, leaves, tree)
        return
    program, variant.flat = state.program(variant), True
    state.add_instance(program.kernel.instance(specs, True, npos=len(leaves)), program)
    kernels.rest(program.kernel)


def _ready(state: Any, variant: Variant, leaves: Sequence[Any], tree: TreeDef) -> None:
    """The short way for calls that read and write tensors in variables, where there is one."""
    if not state.options.verify and not split.needs_host(variant.func) and len(state.entries) < _ENTRIES and variant.func not in state.entries:
        short = ready.make(state, variant, leaves, tree)
        if short is not None:
            state.enter(variant.func, structured.Entry(None, short.run), variant)


def _entry(state: Any, variant: Variant, leaves: Sequence[Any], tree: TreeDef) -> None:
    """A Python function for calls of this structure, in front of a trampoline for their leaves (see ``structured``)."""
    variant.entered = True
    specs = specs_of_leaves(variant, leaves, range(len(variant.leaves)))
    statics = {i: leaves[i] for i in sorted({*range(len(leaves))} - {leaf.index for leaf in variant.leaves})}
    if specs is None or any(isinstance(x, np.ndarray) for x in statics.values()):
        return
    key = variant.func if variant.watch.contents else (tree, tuple((i, static_key(x)) for i, x in statics.items()), variant.out_tree,
                                                       tuple(id(c) for c in variant.out_constants))
    found = state.entries.get(key)
    if found is None:
        found = structured.entry(state.name, tree, statics, variant.out_tree, variant.out_constants)
        if found is None or len(state.entries) >= _ENTRIES:
            return
        state.enter(key, found, variant)
    if len(found.function.instances()) < state.most:
        program = state.program(variant)
        instance = program.kernel.instance(specs, True, npos=len(variant.leaves))
        found.function.add_instance(instance)
        state.fast.append((instance, program, found))
        kernels.rest(program.kernel)
