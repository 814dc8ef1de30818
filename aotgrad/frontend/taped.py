"""Compiled functions called with tensors: the trampoline takes the arrays out of them, and the call becomes one node of the tape, in as few steps as there can be.

Flat calls go straight from the trampoline to a function written for the program (``finish``, in ``Instance``); those with containers through one of ``structured``.
Both end in the same code per set of inputs that want gradients. What does not fit goes the general way (``eager.apply``), which means the same: the node remakes what
the general backward pass needs when gradients are missing, or when the pass is recorded itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from aotgrad_runtime import modes
from aotgrad_runtime.tape import FREED, NO_EDGE, SavedArray, data_slot
from aotgrad_runtime.tape import accumulator_of as _accumulator
from aotgrad_runtime.tape import next_sequence as _sequence
from aotgrad_runtime.tensor import Tensor, wrap

from . import eager, kernels, quick, structured
from .program import Program, Pullback
from .trace import _stack

__all__ = ["Recorder", "TapedNode", "enter"]

_new = object.__new__
_state = modes.state


class TapedNode(eager.OpNode):
    """A recorded call of a compiled function. Saved: the arrays that its backward program reads, inputs then outputs."""

    __slots__ = ()
    program: ClassVar[Program]
    pullback: ClassVar[Pullback]
    active: ClassVar[tuple[bool, ...]]

    edges: ClassVar[tuple[int, ...]]  # the place of each argument among the edges; -1: it has none, as indices and masks

    def apply(self, cts: tuple[Any, ...]) -> tuple[Any, ...]:
        saved, pullback = self._saved or (), self.pullback
        if _state.grad or any(type(ct) is not Tensor for ct in cts):
            grads = self._general(cts)
        else:
            found = iter(pullback.program.run([*[s.data for s in saved], *[ct._data for ct in cts]]))
            gives = iter(pullback.gives)
            grads = tuple([wrap(next(found)) if on and next(gives) else None for on in self.active])
        return grads if self.program.edges is None else tuple([g for g, at in zip(grads, self.edges) if at >= 0])

    def release(self) -> None:
        if self._saved is not None:
            self._saved = FREED

    def _shown(self) -> None:
        return None

    def _general(self, cts: tuple[Any, ...]) -> tuple[Any, ...]:
        saved, types = iter(self._saved or ()), self.program.func.arg_types
        edges = [NO_EDGE if at < 0 else self.next_functions[at] for at in self.edges]
        inputs = {i: quick.kept(next(saved), edges[i], types[i].dtype) for i in self.pullback.inputs}
        outputs = {i: next(saved) for i in self.pullback.outputs}
        return eager.replay(self, (self.program, self.active, inputs, outputs, Tensor), cts)


class Recorder:
    """``forms[bits](arrays, *args)``: the results of a call as tensors on the tape. ``bits`` says which of the arguments ``tensors`` want gradients; ``args`` are all
    arguments of the program, ``arrays`` its one result or a tuple of them. ``learn(bits)`` adds a form."""

    def __init__(self, program: Program, tensors: Sequence[int]) -> None:
        self.program, self.tensors = program, tensors
        self.forms: dict[int, Callable[..., Any]] = {}

    def learn(self, bits: int) -> Callable[..., Any]:
        program, types = self.program, self.program.func.out_types
        wanted = {i for place, i in enumerate(self.tensors) if bits >> place & 1}
        width = len(program.func.args)
        active = tuple([i in wanted for i in range(width)])
        floats = [i for i, t in enumerate(types) if t.dtype.is_differentiable]
        pullback = program.pullback(active, tuple([i in floats for i in range(len(types))]))
        edged = list(range(width)) if program.edges is None else [i for i in program.edges if i is not None]
        body = {"__slots__": (), "program": program, "pullback": pullback, "active": active, "outputs": len(floats),
                "edges": tuple([edged.index(i) if i in edged else -1 for i in range(width)])}
        kind = type(str(program.name), (TapedNode,), body)
        places = [floats.index(i) if i in floats and (pullback.moves is None or pullback.moves[i]) else None for i in range(len(types))]
        form = self.forms[bits] = self._written(kind, [active[i] for i in edged], edged, places)
        return form

    def _written(self, kind: type[TapedNode], active: Sequence[bool], edged: Sequence[int], places: Sequence[int | None]) -> Callable[..., Any]:
        """A form, as straight-line code: it is half of what a recorded call costs."""
        types, pullback = self.program.func.arg_types, kind.pullback
        names: dict[str, Any] = {"kind": kind, "new": _new, "Tensor": Tensor, "wrap": wrap, "accumulator": _accumulator, "sequence": _sequence, "NO_EDGE": NO_EDGE,
                                 "keep": quick.keep, "SavedArray": SavedArray, "asarray": np.asarray}
        edges = [f"(n, x{i}._index) if (n := x{i}._node) is not None else (accumulator(x{i}), 0)" if on else "NO_EDGE" for i, on in zip(edged, active)]
        lines = ["node = new(kind)", f"node.next_functions = ({''.join([e + ', ' for e in edges])})", "node._extra = None", "node._seq = sequence()"]
        if len(places) > 1:
            lines.append(f"{', '.join([f'd{k}' for k in range(len(places))])} = data")
        for k, place in enumerate(places):
            data = f"d{k}" if len(places) > 1 else "data"
            lines += [f"y{k} = wrap({data})"] if place is None else [
                f"y{k} = new(Tensor)", f"y{k}._data = {data}", f"y{k}._node = node", f"y{k}._index = {place}", f"y{k}._requires_grad = True", f"y{k}._extra = None"]
        kept = [f"keep(x{i})" if i in self.tensors else f"SavedArray(asarray(x{i}, t{i}))" for i in pullback.inputs]
        names.update({f"t{i}": types[i].dtype.np for i in pullback.inputs})
        saved = [*kept, *[f"keep(y{k})" for k in pullback.outputs]]
        lines += [f"node._saved = [{', '.join(saved)}]" if saved else "node._saved = None", f"return {', '.join([f'y{k}' for k in range(len(places))])}"]
        args = "".join([f", x{i}" for i in range(len(types))])
        exec(f"def recorded(data{args}):\n" + "".join(f"    {line}\n" for line in lines), names)
        return names["recorded"]  # type: ignore[no-any-return]


def enter(state: Any, variant: Any, leaves: Sequence[Any], tree: Any, traced: object) -> structured.Entry | None:
    """The entry of a compiled function (``state``) for calls with tensors that ``variant`` serves; flat ones get an instance of its trampoline besides. None, so that
    calls go the general way, for captured or written tensors, programs that are cut by calls of Python, and other kinds of tensors than plain ones."""
    program = state.program(variant)
    places = [k for k, leaf in enumerate(variant.leaves) if isinstance(leaves[leaf.index], Tensor)]
    if variant.hidden or variant.records or program.split is not None or not variant.tensors or variant.changes.any or not program.func.out_types:
        return None
    if any(type(leaves[variant.leaves[k].index]) is not Tensor for k in places):
        return None
    arrays = [x._data if isinstance(x, Tensor) else x for x in leaves]
    statics = {i: leaves[i] for i in sorted({*range(len(leaves))} - {leaf.index for leaf in variant.leaves})}
    specs = state._specs(variant, arrays, range(len(variant.leaves)))
    if specs is None or any(isinstance(x, (np.ndarray, Tensor)) for x in statics.values()):
        return None
    tape = structured.Tape(places, _state.grad, Recorder(program, places))
    made = structured.entry(state.name, tree, statics, variant.out_tree, variant.out_constants, traced, tape)
    if made is not None:
        instance = program.kernel.instance(specs, False, npos=len(variant.leaves))
        made.function.add_instance(instance)
        state.fast.append((instance, program, made))
        kernels.rest(program.kernel)
        _straight(state, variant, leaves, tree, traced, tape)
    return made


def _straight(state: Any, variant: Any, leaves: Sequence[Any], tree: Any, traced: object, tape: structured.Tape) -> None:
    """Lets the trampoline itself take calls like this one, where they are flat: recording is all that is left to Python."""
    slot, flat = data_slot(), not tree.children[1].children and all(c.kind is None for c in tree.children[0].children)
    if slot is None or not flat or not tape.grad or variant.watch.contents:
        return
    arrays = [x._data if isinstance(x, Tensor) else x for x in leaves]
    specs = state._fast_specs(variant, arrays)
    finish = structured.finisher(variant.out_tree, variant.out_constants, traced, tape, len(leaves), [leaf.index for leaf in variant.leaves], _stack)
    if specs is None or finish is None:
        return
    specs = [dataclasses.replace(s, unwrap=(Tensor, slot)) if k in tape.places else s for k, s in enumerate(specs)]
    program = state.program(variant)
    state.add_instance(dataclasses.replace(program.kernel.instance(specs, False, npos=len(leaves)), finish=finish), program)
