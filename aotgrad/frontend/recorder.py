"""How calls of one program are recorded: a function written out for each set of inputs that want gradients, and the node that it makes.

The node saves arrays alone; it remakes what the general backward pass needs when gradients are missing, when the pass is itself recorded, and for its ``_saved_*``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from aotgrad_runtime import modes
from aotgrad_runtime.tape import FREED, NO_EDGE, Freed, SavedArray, drift
from aotgrad_runtime.tape import accumulator_of as _accumulator
from aotgrad_runtime.tape import next_sequence as _sequence
from aotgrad_runtime.tensor import Tensor, wrap

from . import eager, quick
from . import saved as saving
from .program import Program, Pullback

__all__ = ["Recorder", "TapedNode"]

_new = object.__new__
_state = modes.state


_GENERAL: Any = ("more is read than is saved",)


def _read_by(pullback: Pullback) -> list[tuple[str, int]]:
    """What a backward program reads of the call, in order."""
    return [*[("input", i) for i in pullback.inputs], *[("output", i) for i in pullback.outputs]]


class TapedNode(eager.OpNode):
    """A recorded call. Saved: the arrays that its backward program reads, inputs then outputs."""

    __slots__ = ()
    program: ClassVar[Program]
    pullback: ClassVar[Pullback]
    active: ClassVar[tuple[bool, ...]]

    edges: ClassVar[tuple[int, ...]]  # the place of each argument among the edges; -1: it has none, as indices and masks
    order: ClassVar[tuple[int | None, ...] | None]  # which argument each edge is of (None: it leads to nothing); None: all, in order
    parts: ClassVar[dict[tuple[type[Any], ...], Any]]  # see ``_part``
    numbers: ClassVar[tuple[int, ...]]  # inputs that were plain numbers: they stay readable when tensors are freed

    def apply(self, cts: tuple[Any, ...]) -> tuple[Any, ...]:
        saved, kinds = self._saved or (), tuple([type(ct) for ct in cts])
        if _state.grad or (part := self.parts.get(kinds) or self._part(kinds)) is _GENERAL:
            grads = eager.replay(self, self._record(), cts)
        else:
            pullback, places = part
            arrays = [s.data for s in saved] if places is None else [saved[i].data for i in places]
            found, gives = iter(pullback.program.run([*arrays, *[ct._data for ct in cts if ct is not None]])), iter(pullback.gives)
            grads = tuple([wrap(next(found)) if on and next(gives) else None for on in self.active])
        return grads if self.order is None else tuple([None if i is None else grads[i] for i in self.order])

    def _part(self, kinds: tuple[type[Any], ...]) -> Any:
        """For cotangents of these kinds: the backward program of those that are there, and the places of what it reads among what is saved (None: all of it)."""
        part: Any = _GENERAL
        if all(kind is Tensor or kind is type(None) for kind in kinds):
            present, floats = [False] * len(self.program.func.out_types), iter(kinds)
            for i, t in enumerate(self.program.func.out_types):
                present[i] = t.dtype.is_differentiable and next(floats) is Tensor
            pullback, known = self.program.pullback(self.active, tuple(present)), _read_by(self.pullback)
            if all(w in known for w in _read_by(pullback)):
                part = pullback, None if pullback is self.pullback else tuple([known.index(w) for w in _read_by(pullback)])
        self.parts[kinds] = part
        return part

    def release(self) -> None:
        if type(self._saved) is list:
            self._saved = self._freed()

    def _freed(self) -> Freed:
        program = self.program
        if program.call is None:
            return FREED
        if not self.numbers:
            if program.freed is None:
                program.freed = Freed((program, {}))
            return program.freed  # type: ignore[no-any-return]
        inputs = self._record()[2]
        return Freed((program, {i: inputs[i] for i in self.numbers}))

    def _shown(self) -> saving.Saved | None:
        if type(self._saved) is Freed or self.program.call is None:
            return super()._shown() if type(self._saved) is Freed else None
        return saving.Saved(*[self._record()[i] for i in (0, 2, 3)])

    def _record(self) -> tuple[Any, ...]:
        """What the general way saves."""
        saved, types = iter(self._saved or ()), self.program.func.arg_types
        edges = [NO_EDGE if at < 0 else self.next_functions[at] for at in self.edges]
        inputs = {i: quick.kept(next(saved), edges[i], types[i].dtype) for i in self.pullback.inputs}
        return self.program, self.active, inputs, {i: next(saved) for i in self.pullback.outputs}, Tensor


class Recorder:
    """``forms[bits](data, *args)``: the results of a call as tensors on the tape. ``bits`` says which of the arguments ``tensors`` want gradients; ``args`` are all
    arguments of the program, ``data`` its one result or a tuple of them. ``learn(bits)`` adds a form."""

    __slots__ = ("forms", "inline", "program", "tensors")

    def __init__(self, program: Program, tensors: Sequence[int]) -> None:
        self.program, self.tensors = program, tensors
        self.forms: dict[int, Callable[..., Any]] = {}
        self.inline: Callable[..., None] | None = None  # takes the first form that there is, see ``structured.finisher``

    def learn(self, bits: int) -> Callable[..., Any]:
        program, types = self.program, self.program.func.out_types
        wanted = {i for place, i in enumerate(self.tensors) if bits >> place & 1}
        width = len(program.func.args)
        active = tuple([i in wanted for i in range(width)])
        floats = [i for i, t in enumerate(types) if t.dtype.is_differentiable]
        if not floats:
            form = self.forms[bits] = _unrecorded(len(types))
            return form
        pullback = program.pullback(active, tuple([i in floats for i in range(len(types))]))
        order = tuple(range(width)) if program.edges is None else program.edges
        called = program.call
        plain = () if called is None else tuple([i for i in pullback.inputs if called[0][i] in called[1] and called[0][i] != "other"])
        body = {"__slots__": (), "program": program, "pullback": pullback, "active": active, "outputs": len(floats), "aside": program.aside,
                "order": program.edges, "numbers": plain, "parts": {}, "edges": tuple([order.index(i) if i in order else -1 for i in range(width)])}
        kind = type(str(program.name), (TapedNode,), body)
        places = eager.places_of(pullback, floats, len(types))
        form = self.forms[bits] = self._written(kind, places)
        if self.inline is not None:
            inline, self.inline = self.inline, None
            inline(bits, lambda args: self._lines(kind, places, args))
        return form

    def _written(self, kind: type[TapedNode], places: Sequence[int | None]) -> Callable[..., Any]:
        args = [f"x{i}" for i in range(len(self.program.func.args))]
        lines, names = self._lines(kind, places, args)
        exec(f"def recorded({', '.join(['data', *args])}):\n" + "".join([f"    {line}\n" for line in lines]) + "    return data\n", names)
        return names["recorded"]  # type: ignore[no-any-return]

    def _lines(self, kind: type[TapedNode], places: Sequence[int | None], args: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
        """A form, as straight-line code that turns ``data`` into tensors: it is half of what a recorded call costs. And the names that it uses."""
        types, pullback = self.program.func.arg_types, kind.pullback
        order = tuple(range(len(types))) if kind.order is None else kind.order
        names: dict[str, Any] = {"kind": kind, "new": _new, "Tensor": Tensor, "wrap": wrap, "accumulator": _accumulator, "sequence": _sequence, "NO_EDGE": NO_EDGE,
                                 "keep": quick.keep, "drift": drift, "SavedArray": SavedArray, "asarray": np.asarray}
        edges = [f"(n, {args[i]}._index) if (n := {args[i]}._node) is not None else (accumulator({args[i]}), 0)" if i is not None and kind.active[i] else "NO_EDGE"
                 for i in order]
        lines = ["node = new(kind)", f"node.next_functions = ({''.join([e + ', ' for e in edges])})", "node._extra = None", "node._seq = sequence()"]
        if len(places) > 1:
            lines.append(f"{', '.join([f'd{k}' for k in range(len(places))])} = data")
        for k, place in enumerate(places):
            data = f"d{k}" if len(places) > 1 else "data"
            lines += [f"y{k} = wrap({data})"] if place is None else [f"y{k} = wrap({data})", f"drift(y{k}, True)"] if place == eager.LEAF else [
                f"y{k} = new(Tensor)", f"y{k}._data = {data}", f"y{k}._node = node", f"y{k}._index = {place}", f"y{k}._requires_grad = True", f"y{k}._extra = None"]
        for i in pullback.inputs:  # ``keep`` is for what is not saved yet as it is
            x = args[i]
            lines.append(f"s{i} = s if (e := {x}._extra) is not None and (c := e.cell) is not None and (k := c._saved) and (s := k[-1]).data is {x}._data and "
                         f"not e.inference else keep({x})" if i in self.tensors else f"s{i} = SavedArray(asarray({x}, t{i}))")
        names.update({f"t{i}": types[i].dtype.np for i in pullback.inputs})
        saved = [*[f"s{i}" for i in pullback.inputs], *[f"keep(y{k})" for k in pullback.outputs]]
        lines += [f"node._saved = [{', '.join(saved)}]" if saved else "node._saved = None", f"data = {', '.join([f'y{k}' for k in range(len(places))])}"]
        return lines, names


def _unrecorded(count: int) -> Callable[..., Any]:
    """The form of a program without results that have gradients."""
    return (lambda data, *args: wrap(data)) if count == 1 else (lambda data, *args: tuple([wrap(d) for d in data]))
