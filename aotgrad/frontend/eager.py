"""Programs applied to tensors: forward now, backward on the tape, forward mode by dual values. The only place where nodes are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aotgrad_runtime import modes
from aotgrad_runtime.tape import Node, edge_of
from aotgrad_runtime.tensor import Tensor, make_output, wrap

from .program import Program

__all__ = ["Dual", "apply", "dual_class", "make_dual"]


class OpNode(Node):
    """A recorded program. Saved: the program, which inputs are differentiated, those inputs and outputs the backward program reads."""

    __slots__ = ()

    def apply(self, cts: tuple[Any, ...]) -> tuple[Any, ...]:
        program, active, inputs, outputs, cls = self._saved
        floats, shapes = _float_outputs(program), program.func.out_types
        present = [False] * len(shapes)
        for j, i in enumerate(floats):
            present[i] = cts[j] is not None
        pullback = program.pullback(active, tuple(present))
        given = [c for c in cts if c is not None]
        remade = {i: outputs[i] for i in pullback.outputs}
        if modes.state.grad:
            kept_outs = [make_output(remade[i], self, floats.index(i), cls) if i in floats else wrap(remade[i], cls) for i in pullback.outputs]
            found = apply(pullback.program, [*(inputs[i] for i in pullback.inputs), *kept_outs, *given], cls)
        else:
            arrays = [*(_data(inputs[i]) for i in pullback.inputs), *(remade[i] for i in pullback.outputs), *(c._data for c in given)]
            found = [wrap(x, cls) for x in pullback.program.run(arrays)]
        grads = iter(found)
        return tuple(next(grads) if on else None for on in active)


_node_types: dict[tuple[str, int], type[OpNode]] = {}


def _node_type(name: str, outputs: int) -> type[OpNode]:
    """Node classes by name, so that ``grad_fn`` prints as torch's."""
    found = _node_types.get((name, outputs))
    if found is None:
        found = _node_types[name, outputs] = type(name, (OpNode,), {"__slots__": (), "outputs": outputs})
    return found


def _data(x: Any) -> Any:
    return x._data if isinstance(x, Tensor) else x


def _float_outputs(program: Program) -> list[int]:
    return [i for i, t in enumerate(program.func.out_types) if t.dtype.is_differentiable]


class Dual:
    """Marks values of forward mode: ``_primal``, ``_tangent`` (None: zero) and the ``_level`` that made them (higher is newer)."""

    _primal: Any
    _tangent: Any
    _level: int


_dual_types: dict[type[Any], type[Any]] = {}


def dual_class(cls: type[Any]) -> type[Any]:
    """The dual kind of ``Tensor`` or ``ArrayTensor``: attributes are the primal's."""
    found = _dual_types.get(cls)
    if found is None:
        body = {"_data": property(lambda self: self._primal._data), "shape": property(lambda self: self._primal.shape), "_dtype": property(lambda self: self._primal._dtype)}
        found = _dual_types[cls] = type(f"Dual{cls.__name__}", (Dual, cls), body)
        found._value_type = cls  # type: ignore[attr-defined]
    return found


def make_dual(primal: Any, tangent: Any, level: int) -> Any:
    """A dual value."""
    cls = dual_class(primal._value_type)
    self = object.__new__(cls)
    self._primal, self._tangent, self._level = primal, tangent, level
    self._node, self._index, self._extra = None, 0, None
    self._requires_grad = False
    return self


def apply(program: Program, args: Sequence[Any], cls: type[Any]) -> list[Any]:
    """Outputs of ``program`` on tensors and arrays, as tensors of class ``cls``, recorded where that is wanted."""
    level = 0
    for a in args:
        if isinstance(a, Dual) and a._level > level:
            level = a._level
    if level:
        return _apply_dual(program, args, cls, level)
    arrays = [a._data if isinstance(a, Tensor) else a for a in args]
    outs = program.run(arrays)
    if not modes.state.grad or not any(isinstance(a, Tensor) and a._requires_grad for a in args):
        return [wrap(o, cls) for o in outs]
    floats = _float_outputs(program)
    if not floats:
        return [wrap(o, cls) for o in outs]
    active = tuple(isinstance(a, Tensor) and a._requires_grad and a._dtype.is_differentiable for a in args)
    present = tuple(t.dtype.is_differentiable for t in program.func.out_types)
    pullback = program.pullback(active, present)
    inputs = {i: args[i] for i in pullback.inputs}
    outputs = {i: outs[i] for i in pullback.outputs}
    edges = tuple([edge_of(a) if on else (None, 0) for a, on in zip(args, active)])
    node = _node_type(program.name, len(floats))(edges, (program, active, inputs, outputs, cls))
    return [make_output(o, node, floats.index(i), cls) if i in floats else wrap(o, cls) for i, o in enumerate(outs)]


def _apply_dual(program: Program, args: Sequence[Any], cls: type[Any], level: int) -> list[Any]:
    mine = [isinstance(a, Dual) and a._level == level for a in args]
    primals = [a._primal if m else a for a, m in zip(args, mine)]
    tangents = [a._tangent if m else None for a, m in zip(args, mine)]
    active = tuple(t is not None for t in tangents)
    if not any(active):
        return [make_dual(o, None, level) for o in apply(program, primals, cls)]
    found = apply(program.pushforward(active), [*primals, *(t for t in tangents if t is not None)], cls)
    n = len(program.func.outputs)
    moved = iter(found[n:])
    return [make_dual(o, next(moved) if t.dtype.is_differentiable else None, level) for o, t in zip(found[:n], program.func.out_types)]
