"""Compiled functions called with tensors: the trampoline is given the arrays, and the call becomes one node of the tape, in as few steps as there can be.

``structured`` writes the function that takes the arguments apart; here is what happens after the kernel has run. What does not fit goes the general way
(``eager.apply``), which means the same: the node remakes what the general backward pass needs when gradients are missing, or when the pass is recorded itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from aotgrad_runtime import modes
from aotgrad_runtime.tape import NO_EDGE, SavedArray
from aotgrad_runtime.tape import accumulator_of as _accumulator
from aotgrad_runtime.tape import next_sequence as _sequence
from aotgrad_runtime.tensor import Tensor, wrap

from . import eager, quick, structured
from .program import Program, Pullback

__all__ = ["TapedNode", "enter", "recorder"]

_new = object.__new__
_state = modes.state


class TapedNode(eager.OpNode):
    """A recorded call of a compiled function. Saved: the arrays that its backward program reads, inputs then outputs."""

    __slots__ = ()
    program: ClassVar[Program]
    pullback: ClassVar[Pullback]
    active: ClassVar[tuple[bool, ...]]

    def apply(self, cts: tuple[Any, ...]) -> tuple[Any, ...]:
        saved, pullback = self._saved or (), self.pullback
        if _state.grad or any(type(ct) is not Tensor for ct in cts):
            return self._general(cts)
        found = iter(pullback.program.run([*[s.data for s in saved], *[ct._data for ct in cts]]))
        gives = iter(pullback.gives)
        return tuple([wrap(next(found)) if on and next(gives) else None for on in self.active])

    def _general(self, cts: tuple[Any, ...]) -> tuple[Any, ...]:
        saved, types = iter(self._saved or ()), self.program.func.arg_types
        inputs = {i: quick.kept(next(saved), self.next_functions[i], types[i].dtype) for i in self.pullback.inputs}
        outputs = {i: next(saved) for i in self.pullback.outputs}
        return eager.replay(self, (self.program, self.active, inputs, outputs, Tensor), cts)


def recorder(program: Program, tensors: Sequence[int]) -> Callable[[int, Sequence[Any], Any], Any] | None:
    """``record(bits, args, arrays)``: the results of a call as tensors on the tape. ``bits`` says which of the arguments ``tensors`` want gradients; ``args`` are all
    arguments of the program, ``arrays`` its one result or a tuple of them. None where calls have to go the general way."""
    types = program.func.out_types
    if program.edges is not None or not types or not all(t.dtype.is_differentiable for t in types):
        return None
    forms: dict[int, tuple[type[TapedNode], tuple[int, ...], tuple[int, ...]] | None] = {}
    width = len(program.func.args)

    def learn(bits: int) -> Any:
        wanted = {i for place, i in enumerate(tensors) if bits >> place & 1}
        active = tuple([i in wanted for i in range(width)])
        pullback = program.pullback(active, (True,) * len(types))
        form = None
        if not pullback.moves:
            body = {"__slots__": (), "program": program, "pullback": pullback, "active": active, "outputs": len(types)}
            form = (type(str(program.name), (TapedNode,), body), pullback.inputs, pullback.outputs)
        forms[bits] = form
        return form

    def record(bits: int, args: Sequence[Any], arrays: Any) -> Any:
        form = forms.get(bits) or learn(bits)
        if form is None:
            return None
        kind, inputs, outputs = form
        node = _new(kind)
        node.next_functions = tuple([
            ((n, x._index) if (n := x._node) is not None else (_accumulator(x), 0) if x._requires_grad else NO_EDGE) if type(x) is Tensor else NO_EDGE
            for x in args])
        node._extra = None
        node._seq = _sequence()
        made = [_output(data, node, i) for i, data in enumerate(arrays)] if type(arrays) is tuple else _output(arrays, node, 0)
        node._saved = None
        if inputs or outputs:
            node._saved = saved = [quick.keep(x) if type(x := args[i]) is Tensor else SavedArray(np.asarray(x, program.func.arg_types[i].dtype.np)) for i in inputs]
            if outputs:
                saved += [quick.keep(made[i] if type(made) is list else made) for i in outputs]
        return made

    return record


def enter(state: Any, variant: Any, leaves: Sequence[Any], tree: Any, traced: object) -> structured.Entry | None:
    """The entry of a compiled function (``state``) for calls with tensors that ``variant`` serves. None, so that calls go the general way, for captured or
    written tensors, programs that are cut by calls of Python, and other kinds of tensors than plain ones."""
    program = state.program(variant)
    places = [k for k, leaf in enumerate(variant.leaves) if isinstance(leaves[leaf.index], Tensor)]
    if variant.hidden or variant.records or program.split is not None or not variant.tensors or variant.changes.any:
        return None
    if any(type(leaves[variant.leaves[k].index]) is not Tensor for k in places):
        return None
    arrays = [x._data if isinstance(x, Tensor) else x for x in leaves]
    statics = {i: leaves[i] for i in sorted({*range(len(leaves))} - {leaf.index for leaf in variant.leaves})}
    specs = state._specs(variant, arrays, range(len(variant.leaves)))
    record = recorder(program, places)
    if specs is None or record is None or any(isinstance(x, (np.ndarray, Tensor)) for x in statics.values()):
        return None
    tape = structured.Tape(places, _state.grad, record)
    made = structured.entry(state.name, tree, statics, variant.out_tree, variant.out_constants, traced, tape)
    if made is not None:
        instance = program.kernel.instance(specs, False, npos=len(variant.leaves))
        made.function.add_instance(instance)
        state.fast.append((instance, program, made))
    return made


def _output(data: Any, node: Any, index: int) -> Any:
    out = _new(Tensor)
    out._data = data
    out._node = node
    out._index = index
    out._requires_grad = True
    out._extra = None
    return out
