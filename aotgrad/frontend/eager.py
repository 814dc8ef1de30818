"""Programs applied to tensors: forward now, backward on the tape, forward mode by dual values. The only place where nodes are made."""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from aotgrad_runtime import modes
from aotgrad_runtime.printing import with_suffixes
from aotgrad_runtime.tape import Extra, Node, SavedArray, VersionCell, cell_of, edge_of, extra_of
from aotgrad_runtime.tensor import Tensor, make_output, wrap

from .program import Program

__all__ = ["LEVEL_STEP", "Dual", "Kept", "OpNode", "ViewExtra", "apply", "dual_class", "levels", "make_dual", "mark_view", "replay"]


class OpNode(Node):
    """A recorded program. Saved: the program, which inputs are differentiated, those inputs and outputs the backward program reads."""

    __slots__ = ()

    def apply(self, cts: tuple[Any, ...]) -> tuple[Any, ...]:
        return replay(self, self._saved, cts)


def replay(node: Node, saved: tuple[Any, ...], cts: tuple[Any, ...]) -> tuple[Any, ...]:
    """The backward program of what an ``OpNode`` saved: recorded where that is wanted."""
    program, active, inputs, outputs, cls = saved
    remade = {i: kept.data for i, kept in outputs.items()}
    floats, shapes = _float_outputs(program), program.func.out_types
    present = [False] * len(shapes)
    for j, i in enumerate(floats):
        present[i] = cts[j] is not None
    pullback = program.pullback(active, tuple(present))
    given = [c for c in cts if c is not None]
    if modes.state.grad:
        kept_outs = [make_output(remade[i], node, floats.index(i), cls) if i in floats else wrap(remade[i], cls) for i in pullback.outputs]
        found = apply(pullback.program, [*(inputs[i].value() for i in pullback.inputs), *kept_outs, *given], cls)
    else:
        arrays = [*(inputs[i].kept.data for i in pullback.inputs), *(remade[i] for i in pullback.outputs), *(c._data for c in given)]
        found = [wrap(x, cls) for x in pullback.program.run(arrays)]
    grads, gives = iter(found), iter(pullback.gives)
    return tuple(next(grads) if on and next(gives) else None for on in active)


_node_types: dict[tuple[str, int], type[OpNode]] = {}


def _node_type(name: str, outputs: int) -> type[OpNode]:
    """Node classes by name, so that ``grad_fn`` prints as torch's."""
    found = _node_types.get((name, outputs))
    if found is None:
        found = _node_types[name, outputs] = type(name, (OpNode,), {"__slots__": (), "outputs": outputs})
    return found


class Kept:
    """An input that backward reads: its numbers as they were, and its place in the graph as it was."""

    __slots__ = ("cls", "index", "kept", "leaf", "node")

    def __init__(self, x: Any) -> None:
        if not isinstance(x, Tensor):
            self.kept, self.node, self.index, self.leaf, self.cls = SavedArray(x), None, 0, None, Tensor
            return
        self.kept = cell_of(x).save(x._data)
        self.node, self.index, self.cls = x._node, x._index, type(x)._value_type
        self.leaf = x if x._requires_grad and x._node is None else None

    def value(self) -> Any:
        """A tensor with the numbers and the history of then."""
        data, leaf = self.kept.data, self.leaf
        if self.node is not None:
            return make_output(data, self.node, self.index, self.cls)
        if leaf is None or leaf._data is data:
            return wrap(data, self.cls) if leaf is None else leaf
        out = wrap(data, self.cls)
        out._requires_grad, out._extra = True, extra_of(leaf)
        return out


def _float_outputs(program: Program) -> list[int]:
    return [i for i, t in enumerate(program.func.out_types) if t.dtype.is_differentiable]


class _Strong:
    """A reference with the call of a weak one."""

    __slots__ = ("obj",)

    def __init__(self, obj: Any) -> None:
        self.obj = obj

    def __call__(self) -> Any:
        return self.obj


class ViewExtra(Extra):
    """What a view knows: the tensor whose memory it shows, and ``how``: ("index", spec), ("reshape",), ("permute", order) or ("other",).

    A view of a view keeps the one between alive, so that the way to the tensor at the end is never lost; that one is referred to weakly, as nobody sees a write into it
    when it is gone.
    """

    cell: VersionCell

    def __init__(self, parent: Any, how: tuple[Any, ...]) -> None:
        self.parent: Any = _Strong(parent) if isinstance(parent._extra, ViewExtra) else weakref.ref(parent)
        self.how = how
        self.cell = cell_of(parent)
        self.inference = parent._extra.inference


def mark_view(out: Any, parent: Any, how: Any) -> None:
    """Makes ``out`` a view of ``parent``: they share a version counter, and writes to one reach the other."""
    out._extra = extra = ViewExtra(parent, how)
    cell = extra.cell
    views = cell.views
    if views is None:
        views = cell.views = []
    if len(views) >= 16 and len(views) & (len(views) - 1) == 0:  # now and then the dead go
        views[:] = [r for r in views if r() is not None]
    views.append(weakref.ref(out))


class Dual:
    """Marks values of forward mode: ``_primal``, ``_tangent`` (None: zero) and the ``_level`` that made them (higher is newer)."""

    _primal: Any
    _tangent: Any
    _level: int


class Levels(threading.local):
    """The levels of forward mode that this thread is in: the newest, and those opened by hand (with the one before each)."""

    def __init__(self) -> None:
        self.level = self.last = 0
        self.opened: list[tuple[int, int]] = []


levels = Levels()
LEVEL_STEP = 1 << 20  # levels opened by hand have multiples of it; numbers between are for transforms that run inside
_dual_types: dict[type[Any], type[Any]] = {}


def _dual_text(self: Any) -> str:
    """The primal's printed form, with the tangent while its level is open."""
    text = repr(self._primal)
    opened = self._level <= levels.level if self._level % LEVEL_STEP else any(n == self._level for n, _ in levels.opened)
    if self._tangent is None or not opened or not text.endswith(")"):
        return text
    return with_suffixes(text[:-1], [f"tangent={self._tangent!r}"], text.index("(") + 1)


def dual_class(cls: type[Any]) -> type[Any]:
    """The dual kind of ``Tensor`` or ``ArrayTensor``: attributes are the primal's."""
    found = _dual_types.get(cls)
    if found is None:
        read: dict[str, Any] = {name: property(operator.attrgetter(f"_primal.{name}")) for name in ("_data", "shape", "_dtype", "_node", "_index")}
        read["__repr__"] = _dual_text
        read["_requires_grad"] = property(operator.attrgetter("_primal._requires_grad"), lambda self, on: setattr(self._primal, "_requires_grad", on))
        found = _dual_types[cls] = type(f"Dual{cls.__name__}", (Dual, cls), read)
        found._value_type = cls
    return found


def make_dual(primal: Any, tangent: Any, level: int) -> Any:
    """A dual value."""
    cls = dual_class(primal._value_type)
    self = object.__new__(cls)
    self._primal, self._tangent, self._level = primal, tangent, level
    self._extra = None
    return self


def apply(program: Program, args: Sequence[Any], cls: type[Any]) -> list[Any]:
    """Outputs of ``program`` on tensors and arrays, as tensors of class ``cls``, recorded where that is wanted."""
    level, active = 0, False
    for a in args:
        if isinstance(a, Tensor):
            active = active or a._requires_grad
            if isinstance(a, Dual) and a._level > level:
                level = a._level
    if level:
        made = _apply_dual(program, args, cls, level)
        if program.view is not None and isinstance(args[0], Tensor):
            for out in made:
                mark_view(out, args[0], program.view)
        return made
    arrays = [a._data if isinstance(a, Tensor) else a for a in args]
    outs = program.run(arrays)
    owners = None
    for i, o in enumerate(outs):
        if o.base is not None or any(o is a for a in arrays):
            outs[i], owner = _settle(program, o, arrays, args, cls)
            if owner is not None:
                owners = {**(owners or {}), i: owner}
    made = _record(program, args, outs, cls) if active and modes.state.grad else [wrap(o, cls) for o in outs]
    if owners is not None:
        for i, owner in owners.items():
            mark_view(made[i], owner, program.view)
    return made


def _owner(data: Any) -> Any:
    while data.base is not None and isinstance(data.base, np.ndarray):
        data = data.base
    return data


def _settle(program: Program, out: Any, arrays: Sequence[Any], args: Sequence[Any], cls: type[Any]) -> tuple[Any, Any]:
    """An output that is part of an input's memory: a view (and of whom), or a copy where the function is none that gives views (NumPy's scalars never are)."""
    root = _owner(out)
    for data, a in zip(arrays, args):
        if isinstance(data, np.ndarray) and _owner(data) is root:
            if program.view is None or (out.ndim == 0 and cls is not Tensor):
                return out.copy(order="K"), None
            return out, a if isinstance(a, Tensor) else None
    return out, None


def _record(program: Program, args: Sequence[Any], outs: list[Any], cls: type[Any]) -> list[Any]:
    floats = _float_outputs(program)
    if not floats:
        return [wrap(o, cls) for o in outs]
    active = tuple(isinstance(a, Tensor) and a._requires_grad and a._dtype.is_differentiable for a in args)
    present = tuple(t.dtype.is_differentiable for t in program.func.out_types)
    pullback = program.pullback(active, present)
    inputs = {i: Kept(args[i]) for i in pullback.inputs}
    outputs: dict[int, SavedArray] = {}
    edges = tuple([edge_of(a) if on else (None, 0) for a, on in zip(args, active)])
    node = _node_type(program.name, len(floats))(edges, (program, active, inputs, outputs, cls))
    made = [make_output(o, node, floats.index(i), cls) if i in floats else wrap(o, cls) for i, o in enumerate(outs)]
    for i in pullback.outputs:
        outputs[i] = cell_of(made[i]).save(outs[i])
    return made


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
