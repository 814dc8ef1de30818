"""Compiled functions called with tensors: the trampoline takes the arrays out of them, and the call becomes one node of the tape, in as few steps as there can be.

Flat calls go straight from the trampoline to a function written for the program (``finish``, in ``Instance``); those with containers through one of ``structured``.
Both end in the same code per set of inputs that want gradients (``recorder``). What does not fit goes the general way (``eager.apply``), which means the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from aotgrad_runtime import modes
from aotgrad_runtime.parameter import Parameter
from aotgrad_runtime.tape import data_slot
from aotgrad_runtime.tensor import Tensor

from . import kernels, structured
from .recorder import Recorder
from .trace import _stack, _tracing
from .variant import flat_specs, specs_of_leaves

__all__ = ["enter"]

_state = modes.state


def enter(state: Any, variant: Any, leaves: Sequence[Any], tree: Any) -> structured.Entry | None:
    """The entry of a compiled function (``state``) for calls with tensors that ``variant`` serves; flat ones get an instance of its trampoline besides. None, so that
    calls go the general way, for captured or written tensors, programs that are cut by calls of Python, and other kinds of tensors than plain ones."""
    program = state.program(variant)
    places = [k for k, leaf in enumerate(variant.leaves) if isinstance(leaves[leaf.index], Tensor)]
    if variant.hidden or variant.records or program.split is not None or not variant.tensors or variant.changes.any or not program.func.out_types:
        return None
    if any(type(leaves[variant.leaves[k].index]) not in (Tensor, Parameter) for k in places):
        return None
    arrays = [x._data if isinstance(x, Tensor) else x for x in leaves]
    statics = {i: leaves[i] for i in sorted({*range(len(leaves))} - {leaf.index for leaf in variant.leaves})}
    specs = specs_of_leaves(variant, arrays, range(len(variant.leaves)))
    if specs is None or any(isinstance(x, (np.ndarray, Tensor)) for x in statics.values()):
        return None
    tape = structured.Tape(places, _state.grad, Recorder(program, places))
    made = structured.entry(state.name, tree, statics, variant.out_tree, variant.out_constants, tape)
    if made is not None:
        instance = program.kernel.instance(specs, False, npos=len(variant.leaves))
        made.function.add_instance(instance)
        state.fast.append((instance, program, made))
        kernels.rest(program.kernel)
        _straight(state, variant, leaves, tree, tape)
    return made


def _straight(state: Any, variant: Any, leaves: Sequence[Any], tree: Any, tape: structured.Tape) -> None:
    """Lets the trampoline itself take calls like this one, where they are flat: recording is all that is left to Python."""
    slot, flat = data_slot(), not tree.children[1].children and all(c.kind is None for c in tree.children[0].children)
    if slot is None or not flat or not tape.grad or variant.watch.contents:
        return
    arrays = [x._data if isinstance(x, Tensor) else x for x in leaves]
    specs = flat_specs(variant, arrays)
    finish = structured.finisher(variant.out_tree, variant.out_constants, tape, len(leaves), [leaf.index for leaf in variant.leaves], _stack, _tracing)
    if specs is None or finish is None:
        return
    specs = [dataclasses.replace(s, unwrap=(type(leaves[variant.leaves[k].index]), slot)) if k in tape.places else s for k, s in enumerate(specs)]
    program = state.program(variant)
    state.add_instance(dataclasses.replace(program.kernel.instance(specs, False, npos=len(leaves)), finish=finish), program)
