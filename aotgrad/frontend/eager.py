"""Programs applied to tensors: forward now, backward on the tape, forward mode by dual values. The only place where nodes are made."""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from aotgrad.ir import Func
from aotgrad.ir.transforms.rewrite import inline, substitute_func
from aotgrad_runtime import memory_format as mf
from aotgrad_runtime import modes, recording, watchers
from aotgrad_runtime.errors import AotgradAttributeError, AotgradRuntimeError, AotgradTypeError
from aotgrad_runtime.printing import with_suffixes
from aotgrad_runtime.tape import FREED, FREED_TEXT, NO_EDGE, Freed, Node, SavedArray, VersionCell, cast, cell_of, drift, edge_of, extra_of
from aotgrad_runtime.tensor import Tensor, make_output, wrap

from . import saved as saving
from .program import Program
from .subtrace import as_value, builder_of, traced_class
from .trace import Traced, current
from .views import mark_view

__all__ = ["LEVEL_STEP", "Dual", "Kept", "OpNode", "Packed", "SAME", "apply", "dual_class", "levels", "make_dual", "packed", "record", "rename", "replay"]

_watching = watchers.shared


class OpNode(Node):
    """A recorded program. Saved: the program, which inputs are differentiated, those inputs and outputs the backward program reads."""

    __slots__ = ()

    def apply(self, cts: tuple[Any, ...]) -> tuple[Any, ...]:
        grads = replay(self, self._saved, cts)
        edges = self._saved[0].edges
        return grads if edges is None else tuple([None if i is None else grads[i] for i in edges])

    def release(self) -> None:
        """Frees what was saved of tensors; plain values stay readable. A call of which no tensor was saved may be run again."""
        saved = self._saved
        if type(saved) is tuple and (saved[2] or saved[3]):
            program = saved[0]
            if program.freed is None:
                program.freed = FREED if program.call is None else Freed((program, {}))
            numbers = () if program.call is None else [i for i in saved[2] if program.call[0][i] in program.call[1] and program.call[0][i] != "other"]
            self._saved = Freed((program, {i: saved[2][i] for i in numbers})) if numbers else program.freed

    def _shown(self) -> saving.Saved | None:
        """What was saved, by the names of the call; None where there is no public function behind it."""
        saved = self._saved
        if type(saved) is Freed:
            return None if saved.plain is None else saving.Saved(saved.plain[0], saved.plain[1], None)
        program, _, inputs, outputs, _ = saved
        return None if program.call is None else saving.Saved(program, inputs, outputs)

    def __getattr__(self, name: str) -> Any:
        shown = self._shown() if name.startswith("_saved_") else None
        if shown is None and self._saved is FREED:
            raise AotgradRuntimeError(FREED_TEXT)
        if shown is None:
            raise AotgradAttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return saving.value(self, shown, name)

    def __dir__(self) -> list[str]:
        shown = self._shown()
        return [*super().__dir__(), *(saving.names(self, shown) if shown is not None else ())]


def replay(node: Node, record: tuple[Any, ...], cts: tuple[Any, ...]) -> tuple[Any, ...]:
    """The backward program of what an ``OpNode`` saved: recorded where that is wanted."""
    program, active, inputs, outputs, cls = record
    remade = {i: kept.data for i, kept in outputs.items()}
    floats, shapes = _float_outputs(program), program.func.out_types
    present = [False] * len(shapes)
    for j, i in enumerate(floats):
        present[i] = cts[j] is not None
    pullback = program.pullback(active, tuple(present))
    given = [c for c in cts if c is not None]
    if not all(i in inputs for i in pullback.inputs):
        inputs = {**inputs, **_of_sizes(program.func, inputs, remade, [i for i in pullback.inputs if i not in inputs])}
    if any(isinstance(c, Traced) for c in given):
        kept = [*(inputs[i].value() for i in pullback.inputs), *(_output_of(node, i, remade, floats, cls) for i in pullback.outputs)]
        found = _into_trace(pullback.program.func, [*kept, *given])
    elif modes.state.grad:
        kept_outs = [_output_of(node, i, remade, floats, cls) for i in pullback.outputs]
        found = apply(pullback.program, [*(inputs[i].value() for i in pullback.inputs), *kept_outs, *given], cls)
    else:
        arrays = [*(inputs[i].kept.data for i in pullback.inputs), *(remade[i] for i in pullback.outputs), *(c._data for c in given)]
        found = [wrap(x, cls) for x in pullback.program.run(arrays)]
    grads, gives = iter(found), iter(pullback.gives)
    return tuple(next(grads) if on and next(gives) else None for on in active)


def _of_sizes(func: Func, inputs: dict[int, Any], outputs: dict[int, Any], missing: Sequence[int]) -> dict[int, Kept]:
    """Inputs of which a backward program of some cotangents reads the sizes alone, told by what was saved for the program of all."""
    known = [*((func.arg_types[i], kept.kept.data) for i, kept in inputs.items()), *((func.out_types[i], data) for i, data in outputs.items())]
    sizes = {d.as_symbol(): int(n) for t, x in known for d, n in zip(t.shape, x.shape) if not isinstance(d, int)}
    found = {}
    for i in missing:
        t = func.arg_types[i].substitute({s: n for s, n in sizes.items() if s is not None})
        found[i] = Kept(np.zeros(t.shape, t.dtype.np))
    return found


def _output_of(node: Node, i: int, remade: dict[int, Any], floats: list[int], cls: type[Any]) -> Any:
    return make_output(remade[i], node, floats.index(i), cls) if i in floats else wrap(remade[i], cls)


def _into_trace(func: Func, args: Sequence[Any]) -> list[Any]:
    """The backward program on cotangents that are traced: written into their trace. Saved tensors are what the trace captures."""
    trace = current()
    if trace is None:
        raise AotgradTypeError("a traced cotangent is used outside the call that made it")
    sizes = {d.as_symbol(): n for t, x in zip(func.arg_types, args) for d, n in zip(t.shape, x.shape) if not isinstance(d, int)}
    b = builder_of(trace)
    values = [b.refresh(as_value(x, trace)) for x in args]
    found = inline(b, substitute_func(func, {s: n for s, n in sizes.items() if s is not None}).body, values)
    kind = traced_class(args)
    return [kind._of(trace, v) for v in found]


_node_types: dict[tuple[str, int, int], type[OpNode]] = {}


def _node_type(name: str, outputs: int, aside: int) -> type[OpNode]:
    """Node classes by name, so that ``grad_fn`` prints as torch's."""
    found = _node_types.get((name, outputs, aside))
    if found is None:
        found = _node_types[name, outputs, aside] = type(name, (OpNode,), {"__slots__": (), "outputs": outputs, "aside": aside})
    return found


def rename(node: Any, name: str) -> None:
    """A node under another name. It stays of its own kind: that says what it has saved."""
    kind: Any = type(node)
    node.__class__ = _renamed(kind, name)


@functools.lru_cache(maxsize=256)
def _renamed(kind: type[Node], name: str) -> type[Node]:
    return type(name, (kind,), {"__slots__": ()})


class Kept:
    """An input that backward reads: its numbers as they were, and its place in the graph as it was."""

    __slots__ = ("cls", "index", "kept", "leaf", "node")
    kept: SavedArray | Packed

    def __init__(self, x: Any) -> None:
        if not isinstance(x, Tensor):
            self.kept, self.node, self.index, self.leaf, self.cls = SavedArray(x), None, 0, None, Tensor
            return
        if x._extra is not None and x._extra.inference:
            raise AotgradRuntimeError("Inference tensors cannot be saved for backward. Please do not use Tensors created in inference mode in computation tracked by "
                                      "autograd. To work around this, you can make a clone to get a normal tensor and use it in autograd, or use `no_grad()` instead "
                                      "of `inference_mode()`.")
        self.kept = cell_of(x).save(x._data)
        self.node, self.index, self.cls = x._node, x._index, type(x)._value_type
        self.leaf = x if x._requires_grad and x._node is None else None
        if _watching.count and recording.state.hooks:
            self.kept = packed(self.kept, self.cls, cell_of(x))

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


class Packed:
    """What a pack hook made of a saved array. Its numbers come from the unpack hook, each time they are read."""

    __slots__ = ("cls", "content", "dtype", "shape", "unpack")

    def __init__(self, content: Any, unpack: Any, shown: Any) -> None:
        self.content, self.unpack, self.cls = content, unpack, type(shown)
        self.shape, self.dtype = tuple(shown.shape), shown._dtype

    @property
    def data(self) -> Any:
        found = recording.check_unpacked(self.unpack(self.content), Tensor, self.shape)
        return (found if found._dtype is self.dtype else cast(found.detach(), self.dtype))._data


@modes.intact
def packed(saved: SavedArray, cls: type[Any], cell: VersionCell) -> SavedArray | Packed:
    """A saved array as the thread's innermost saved-tensor hooks want it."""
    if not recording.state.hooks:
        return saved
    pack, unpack = recording.state.hooks[-1]
    if pack is None:  # hooks are switched off here
        return saved
    shown = wrap(saved.data, cls)
    extra_of(shown).cell = cell
    before = cell.version
    with modes.no_grad():
        content = pack(shown)
    if cell.version != before:
        raise AotgradRuntimeError("A saved tensor pack hook is modifying its input in place. Tensors provided as input to pack hook can not be modified by in-place "
                                  "operations as this can lead to unexpected side-effects. Please open an issue if you need to perform in-place operations on the "
                                  "input to a pack hook.")
    return Packed(content, unpack, shown)


def _float_outputs(program: Program) -> list[int]:
    return [i for i, t in enumerate(program.func.out_types) if t.dtype.is_differentiable]


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


levels = modes.keep(Levels(), "level", "opened")
SAME = ("same",)  # how a result that is the first argument itself is a view
LEVEL_STEP = 1 << 20  # levels opened by hand have multiples of it; numbers between are for transforms that run inside
_dual_types: dict[type[Any], type[Any]] = {}


def _dual_text(self: Any) -> str:
    """The primal's printed form, with the tangent while its level is open."""
    text = repr(self._primal)
    opened = self._level <= levels.level if self._level % LEVEL_STEP else any(n == self._level for n, _ in levels.opened)
    if self._tangent is None or not opened or not text.endswith(")"):
        return text
    return with_suffixes(text[:-1], [f"tangent={self._tangent!r}"], text.index("(") + 1)


def _of_primal(name: str) -> Any:
    return lambda self, *args: getattr(self._primal, name)(*args)


def dual_class(cls: type[Any]) -> type[Any]:
    """The dual kind of ``Tensor`` or ``ArrayTensor``: attributes are the primal's."""
    found = _dual_types.get(cls)
    if found is None:
        read: dict[str, Any] = {name: property(operator.attrgetter(f"_primal.{name}")) for name in ("_data", "shape", "_dtype", "_node", "_index")}
        read["__repr__"] = _dual_text
        read["_followed"] = property(lambda self: self._tangent is not None or self._primal._followed)
        read["_requires_grad"] = property(operator.attrgetter("_primal._requires_grad"), lambda self, on: setattr(self._primal, "_requires_grad", on))
        for name in ("__copy__", "__deepcopy__", "__reduce_ex__"):  # copies have no tangent, as in torch
            read[name] = _of_primal(name)
        found = _dual_types[cls] = type(f"Dual{cls.__name__}", (Dual, cls), read)
        found._value_type = cls._value_type
    return found


def make_dual(primal: Any, tangent: Any, level: int) -> Any:
    """A dual value."""
    cls = dual_class(primal._value_type)
    self = object.__new__(cls)
    self._primal, self._tangent, self._level = primal, tangent, level
    self._extra = None
    if primal._weak:
        self._weak = True
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
            for i, out in enumerate(made):
                if out.ndim or cls is Tensor:  # NumPy's scalars are no views
                    mark_view(out, args[0], program.view, i)
        return made
    block = None if program.kept is None else program.kept.block(args)
    arrays = [a._data if isinstance(a, Tensor) else a for a in args]
    outs = program.run(arrays) if block is None else program.run_with(arrays, block)
    if program.view == SAME and outs[0] is arrays[0]:
        return [args[0]]
    owners = None
    for i, o in enumerate(outs):
        if not program.backward and (o.base is not None or any(o is a for a in arrays)):  # gradients may share memory, as in torch
            outs[i], owner = _settle(program, o, arrays, args, cls)
            if owner is not None:
                owners = {**(owners or {}), i: owner}
    made = record(program, args, outs, cls) if active and modes.state.grad else [wrap(o, cls) for o in outs]
    if owners is not None:
        for i, owner in owners.items():
            mark_view(made[i], owner, program.view, i)
    return made


def _owner(data: Any) -> Any:
    while (base := data.base) is not None:
        if not isinstance(base, np.ndarray):
            base = getattr(base, "base", None)  # what holds the memory of an array with strides of its own
            if not isinstance(base, np.ndarray):
                break
        data = base
    return data


def _settle(program: Program, out: Any, arrays: Sequence[Any], args: Sequence[Any], cls: type[Any]) -> tuple[Any, Any]:
    """An output that is part of an input's memory: a view (and of whom), or a copy where the function is none that gives views (NumPy's scalars never are)."""
    root = _owner(out)
    for data, a in zip(arrays, args):
        if isinstance(data, np.ndarray) and _owner(data) is root:
            if program.view is None or (out.ndim == 0 and cls is not Tensor):
                return _own(out, data), None
            return out, a if isinstance(a, Tensor) else None
    return out, None


def _own(out: Any, data: Any) -> Any:
    """A copy of ``out``, which shows the memory of ``data``, in its layout where the shapes are equal."""
    if out.shape != data.shape or out.ndim < 2 or out.strides == data.strides and out.flags.c_contiguous and 1 not in out.shape:
        return out.copy()
    return mf.copy_to_strides(out, mf.preserved_strides(data.shape, tuple([s // data.itemsize for s in data.strides])))


_NOTHING: Any = ("nothing is recorded",)


LEAF = -1  # the place of a result that requires grad and is no part of the graph


def places_of(pullback: Any, floats: Sequence[int], count: int) -> list[int | None]:
    """Which output of the node each of the ``count`` results is: none (None), or a leaf that requires grad (``LEAF``), where only some belong to the graph."""
    moves = pullback.moves
    return [None if i not in floats or moves is not None and not moves[i] else LEAF if moves is not None and moves[i] != 1 else floats.index(i) for i in range(count)]


def _recipe(program: Program, active: tuple[bool, ...]) -> Any:
    """What a recorded call with gradients for these inputs needs: the backward program, the node class, and which output of the node each result is (None: no part of
    the graph)."""
    floats = _float_outputs(program)
    found = _NOTHING
    if floats:
        pullback = program.pullback(active, tuple([t.dtype.is_differentiable for t in program.func.out_types]))
        places = places_of(pullback, floats, len(program.func.outputs))
        found = (pullback, _node_type(program.name, len(floats), program.aside), places)
    program.recipes[active] = found
    return found


def record(program: Program, args: Sequence[Any], outs: list[Any], cls: type[Any]) -> list[Any]:
    """Results of ``program`` as tensors on the tape."""
    active = tuple([isinstance(a, Tensor) and a._requires_grad and a._dtype.is_differentiable for a in args])
    recipe = program.recipes.get(active) or _recipe(program, active)
    if recipe is _NOTHING:
        return [wrap(o, cls) for o in outs]
    pullback, kind, places = recipe
    inputs = {i: Kept(args[i]) for i in pullback.inputs}
    outputs: dict[int, SavedArray | Packed] = {}
    if program.edges is None:
        edges = tuple([edge_of(a) if on else NO_EDGE for a, on in zip(args, active)])
    else:
        edges = tuple([edge_of(args[i]) if i is not None and active[i] else NO_EDGE for i in program.edges])
    node = kind(edges, (program, active, inputs, outputs, cls))
    made = [wrap(o, cls) if place is None or place < 0 else make_output(o, node, place, cls) for o, place in zip(outs, places)]
    for x, place in zip(made, places):
        if place == LEAF:
            drift(x, True)
    for i in pullback.outputs:
        outputs[i] = cell_of(made[i]).save(outs[i])
        if _watching.count:
            outputs[i] = packed(outputs[i], cls, cell_of(made[i]))  # type: ignore[arg-type]
    return made


def _apply_dual(program: Program, args: Sequence[Any], cls: type[Any], level: int) -> list[Any]:
    mine = [isinstance(a, Dual) and a._level == level for a in args]
    primals = [a._primal if m else a for a, m in zip(args, mine)]
    tangents = [a._tangent if m else None for a, m in zip(args, mine)]
    active = tuple(t is not None for t in tangents)
    if not any(active):
        return [make_dual(o, None, level) if o._dtype.is_differentiable else o for o in apply(program, primals, cls)]
    found = apply(program.pushforward(active), [*primals, *(t for t in tangents if t is not None)], cls)
    n = len(program.func.outputs)
    moved = iter(found[n:])
    return [make_dual(o, next(moved), level) if t.dtype.is_differentiable else o for o, t in zip(found[:n], program.func.out_types)]
