"""What a call of a compiled function changes outside, put in place when its kernel has succeeded: memory of tensors, gradients, what optimisers keep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from aotgrad.ir import Func, Value
from aotgrad.ir.core import walk
from aotgrad_runtime import modes
from aotgrad_runtime.engine import accumulated
from aotgrad_runtime.errors import AotgradNotImplementedError, AotgradRuntimeError, AotgradValueError
from aotgrad_runtime.records import record
from aotgrad_runtime.tape import FREED, NO_EDGE, Node
from aotgrad_runtime.tensor import Tensor, wrap
from aotgrad_runtime.watched import written

from . import inplace, sources
from .eager import Dual
from .effects import Settled, computed
from .ledger import AFTER, Followed, Ledger
from .pytree import tree_flatten, tree_unflatten
from .sources import GradOf, Item, memory_of
from .trace import Trace, Traced, TracedArray

__all__ = ["Changes", "finish", "resolved", "span", "use_up"]


class CompiledFunctionBackward(Node):
    """Stands behind results whose graph a backward pass inside the compiled function has used up."""

    __slots__ = ()


@record
class Change:
    """One thing that is set to a new value: at a place (``.grad`` of a tensor, an item). ``out``: which of the program's results; -1: None; -2: the tensor ``value``."""

    place: Any
    out: int
    value: Any = None
    plain: bool = False  # an array or number of NumPy's
    tree: Any = None  # of a container: its structure, and
    parts: list[Change] | None = None  # what it holds; without a structure: what a list holds from now on


@record
class Changes:
    """Of one variant. Positions are those of the program's arguments and results."""

    results: int  # how many results are the caller's
    written: list[int] = field(default_factory=list)  # arguments whose memory gets the results behind those
    outs: list[int] = field(default_factory=list)  # the results they get
    sets: list[Change] = field(default_factory=list)
    flags: list[tuple[Any, bool]] = field(default_factory=list)  # places of tensors whose requires_grad is set
    leaves: list[int] = field(default_factory=list)  # results that were made leaves
    freed: list[int] = field(default_factory=list)  # results without a graph, as it was used up
    absent: list[Any] = field(default_factory=list)  # places that held None
    held: list[tuple[Any, Any, Any]] = field(default_factory=list)
    hooked: list[tuple[Any, int]] = field(default_factory=list)  # tensors that backward reaches, and which kinds of hooks they have
    after: list[tuple[Any, bool]] = field(default_factory=list)  # tensors whose hooks follow the call, and whether these record
    no_leaves: list[Any] = field(default_factory=list)  # places of tensors with recorded writes: no leaves that require grad, and no views of them
    last: tuple[list[Any], list[tuple[int, int]]] | None = None

    @property
    def any(self) -> bool:
        """Whether a call does more than give results."""
        return bool(self.written or self.sets or self.flags or self.freed or self.leaves or self.no_leaves)

    def holds(self, leaves: Sequence[Any]) -> bool:
        """Whether what the trace saw of the outside still is so."""
        for holder, key, value in self.held:
            now = holder.get(key, self)
            if now is not value and (type(now) is not type(value) or now != value):
                return False
        if any(inplace.leaf_shown(sources.read(None, place, leaves)) is not None for place in self.no_leaves):
            return False
        return (all(sources.read(None, place, leaves) is None for place in self.absent)
                and all(_hooks(sources.read(None, place, leaves)) == kinds for place, kinds in self.hooked))

    def plainly(self, args: Sequence[Any]) -> bool:
        """Whether a call is for plain Python: memory that is written is also that of another argument, and the order of reads and writes in the program is not that in
        the memory; or a tensor that is written retains its gradient, that of a value inside the program."""
        if not self.written:
            return False
        if modes.state.grad and any(inplace.retains(args[i]) for i in self.written if isinstance(args[i], Tensor)):
            return True
        arrays = [x._data if isinstance(x, Tensor) else x for x in args]
        if self.last is not None and all(a is b for a, b in zip(arrays, self.last[0])):
            return False
        spans = [span(a) for a in arrays]
        for i in self.written:
            low, high = spans[i]
            for j, (a, b) in enumerate(spans):
                if j != i and a < high and low < b and np.may_share_memory(arrays[i], arrays[j]):
                    return True
        self.last = arrays, spans
        return False

    def mark(self, leaves: Sequence[Any], back: bool = False) -> None:
        """Sets requires_grad where the program does; ``back``: as it was before."""
        for place, on in self.flags:
            sources.read(None, place, leaves)._requires_grad = on is not back

    @modes.intact
    def put(self, results: Sequence[Any], args: Sequence[Any], leaves: Sequence[Any], name: str) -> None:
        """Everything in its place. ``args``: the program's arguments of this call."""
        self.may_write(args, name)
        for i, out in zip(self.written, self.outs):
            _write(args[i], results[out], name)
        made: dict[int, Any] = {}
        for change in self.sets:
            value = _value(change, results, made, leaves)
            place = change.place
            if change.parts is not None and change.tree is None:
                held = sources.read(None, place)
                held.clear()
                held.extend(value)
            elif isinstance(place, sources.Path):
                sources.put(place, value)
            elif isinstance(place, GradOf):
                sources.read(None, place.owner, leaves).grad = value
            else:
                place.holder[place.key] = value
        for i in self.leaves:
            if isinstance(results[i], Tensor) and results[i]._node is None:
                results[i]._requires_grad = True
        if modes.state.grad:
            for i in self.freed:
                use_up(results[i])
        for place, records in self.after:
            with modes.set_grad_enabled(records):
                accumulated(sources.read(None, place, leaves))

    def may_write(self, args: Sequence[Any], name: str) -> None:
        """Raises where memory that is written is read-only, before anything has changed."""
        for i in self.written:
            if isinstance(args[i], np.ndarray):
                if not args[i].flags.writeable:
                    raise AotgradValueError(f"{name}: it writes to an argument that donate= names, but the array given is read-only; give a copy (x.copy())")
            elif isinstance(args[i], Tensor) and not args[i]._data.flags.writeable:
                inplace.memory(args[i])

    def over(self, func: Func) -> tuple[tuple[int, int], ...]:
        """(result, argument) pairs of what a kernel may write to its arguments itself."""
        types = func.arg_types
        return tuple([(out, i) for i, out in zip(self.written, self.outs) if types[i] == func.out_types[out] and self.outs.count(out) == self.written.count(i) == 1])

    def lines(self) -> list[str]:
        """For ``explain``."""
        out = [f"  written at every call: result {out} into argument {i}" for i, out in zip(self.written, self.outs)]
        return out + [f"  set at every call: {sources.shown(c.place)}" for c in self.sets]


def _hooks(x: Any) -> int:
    return 0 if x._extra is None else bool(x._extra.hooks) + 2 * bool(x._extra.post_hooks)


def span(a: Any) -> tuple[int, int]:
    """The addresses that an array lies between."""
    if not isinstance(a, np.ndarray) or not a.size:
        return 0, 0
    low = high = a.__array_interface__["data"][0]
    for n, s in zip(a.shape, a.strides):
        low, high = (low, high + (n - 1) * s) if s > 0 else (low + (n - 1) * s, high)
    return low, high + a.itemsize


def _value(change: Change, results: Sequence[Any], made: dict[int, Any], leaves: Sequence[Any]) -> Any:
    """What a place gets. ``made``: results that are tensors by now."""
    if change.parts is not None:
        parts = [_value(p, results, made, leaves) for p in change.parts]
        return parts if change.tree is None else tree_unflatten(change.tree, parts)
    if change.out < 0:
        return change.value if change.out == -1 else sources.read(None, change.value, leaves)
    if change.plain:
        return results[change.out]
    value = made.get(change.out)
    if value is None:
        value = made[change.out] = _as_tensor(results[change.out])
    return value


def _as_tensor(x: Any) -> Any:
    return x if isinstance(x, Tensor) else wrap(np.asarray(x))


def _write(x: Any, new: Any, name: str) -> None:
    if isinstance(x, np.ndarray):
        if x is not new:
            np.copyto(x, new._data if isinstance(new, Tensor) else new)
    elif isinstance(new, Tensor) and modes.state.grad and x._requires_grad and x._node is not None and not new._requires_grad:
        x[...] = new  # what led to x has a gradient of zeros
    elif isinstance(new, Tensor) and new._requires_grad and not (x._requires_grad and x._node is None):
        inplace.store(x, new, name)
    elif isinstance(x, Dual) or isinstance(new, Dual):
        with modes.no_grad():
            inplace.store(x, new, name)
    else:
        np.copyto(inplace.memory(x), new._data if isinstance(new, Tensor) else new)
        written(x)


def use_up(x: Any) -> None:
    """Makes ``x`` a result whose graph is freed."""
    if isinstance(x, Tensor) and x._node is None:
        node = CompiledFunctionBackward((NO_EDGE,))
        node._saved = FREED
        x._node, x._index, x._requires_grad = node, 0, True


# ---- at the end of a trace ------------------------------------------------------------------------------------------------------------------

def _renewed(found: Ledger, v: Value) -> Value:
    while v in found.renewed:
        v = found.renewed[v]
    return v


def finish(trace: Trace, given: Sequence[Any], settled: Settled) -> Changes:
    """Makes what a trace has changed results of the program. ``given``: the leaves as the trace had them; ``settled``: places that hold computed values now."""
    found: Ledger = trace.ledger
    outputs = trace.block.outputs
    changes = Changes(len(outputs))
    changes.after = [(found.place(x.owner), x.records) for x in _last(trace, found)]
    used_up = _used_up(trace, found, outputs)
    changes.leaves = [i for i, v in enumerate(outputs) if v in trace.requires and v in found.owners and id(found.owners[v]) not in found.reals]
    for i, v in enumerate(outputs):
        outputs[i] = trace.builder.stop_gradient(_renewed(found, v), reverse=True) if i in used_up else _renewed(found, v)
    changes.freed = sorted(used_up)
    for x, traced, before in found.inner:
        if traced._value is not before:
            _check_noted(trace, x)
    for key, x in list(found.reals.items()):
        traced = _traced(found, key, given)
        before, place = found.first[key]
        if traced._value is before:
            continue
        _check_noted(trace, x)
        if id(x) in found.fresh:
            continue
        changes.written.append(place)
        changes.outs.append(len(outputs))
        v = _in_layout(trace, _renewed(found, traced._value), before)
        outputs.append(trace.builder.stop_gradient(v, reverse=True) if x._requires_grad and x._node is None and v.type.dtype.is_differentiable else v)
    for traced, before, place in found.donated:
        if traced._value is not before:
            changes.written.append(place)
            changes.outs.append(len(outputs))
            outputs.append(_in_layout(trace, _renewed(found, traced._value), before))
    _gradients(trace, found, changes)
    for slot in found.slots.values():
        where = Item(slot.holder, slot.key)
        if slot.first is None:
            changes.absent.append(where)
        if slot.now is not slot.first:
            changes.sets.append(_change(trace, found, where, slot.now))
    changes.sets += [_change(trace, found, where, x) for where, x in settled.bound]
    for path, items in settled.contents:
        changes.sets.append(Change(path, -1, parts=[_change(trace, found, None, x) if computed(x) else Change(None, -1, x) for x in items]))
    changes.held = found.held
    changes.flags = [(found.place(x), on) for x, on in found.flags.values() if found.outside(x) and found.reals[id(x)]._requires_grad is not on]
    changes.no_leaves = [found.place(x) for x in found.no_leaves.values()]
    changes.hooked = [(found.place(x), _hooks(found.reals[id(x)])) for x in found.hooked.values() if found.outside(x)]
    return changes


def _last(trace: Trace, found: Ledger) -> list[Followed]:
    """The leaves whose hooks follow the call. Raises where the program needs what such a hook can change."""
    ops = trace.block.ops
    for x in found.after.values():
        memory = memory_of(found.reals[id(x.owner)])
        shown = x.shown | {found.first[key][0] for key, other in found.reals.items() if memory_of(other) is memory}
        start = next(i for i in reversed(range(len(ops))) if ops[i] is x.last) + 1
        later = [o for op in ops[start:] for inner in (op, *(i for r in op.regions for i in walk(r))) for o in inner.operands]
        if x.owner._value is not x.value or found.grads[id(x.owner)].now is not x.grad or not shown.isdisjoint(later) or not shown.isdisjoint(trace.block.outputs):
            raise AotgradNotImplementedError(f"{trace.name}: {AFTER}")
    return list(found.after.values())


def _check_noted(trace: Trace, x: Any) -> None:
    if any(memory_of(n) is memory_of(x) for n in trace.noted):
        raise AotgradRuntimeError(f"{trace.name}: the numbers of a tensor that it writes to are also read as Python or NumPy values (numpy(), item(), "
                                  "float()); compute with the tensor itself")


def _traced(found: Ledger, key: int, given: Sequence[Any]) -> Any:
    index = found.arguments.get(key)
    return found.twins[id(found.reals[key])] if index is None else given[index]


def _in_layout(trace: Trace, v: Value, like: Value) -> Value:
    return v if v.type.layout == like.type.layout else trace.builder.relayout(v, layout=like.type.layout)


def _used_up(trace: Trace, found: Ledger, outputs: Sequence[Value]) -> set[int]:
    """Results that a backward pass could only reach through what another one has freed."""
    if not found.freed:
        return set()
    live = set(found.freed)
    for op in trace.block.ops:
        if op.name != "stop_gradient" and any(o in live for o in (op.operands[1:] if op.name == "graft" else op.operands)):
            live.update(r for r in op.results if r.type.dtype.is_differentiable)
    return {i for i, v in enumerate(outputs) if v in live}


def _gradients(trace: Trace, found: Ledger, changes: Changes) -> None:
    for entry in found.grads.values():
        if not found.outside(entry.owner):
            continue
        place = GradOf(found.place(entry.owner))
        if entry.asked and entry.first is None:
            changes.absent.append(place)
        if entry.known and (entry.now is not entry.first or not entry.asked):
            changes.sets.append(_change(trace, found, place, entry.now))


def _change(trace: Trace, found: Ledger, place: Any, value: Any) -> Change:
    if value is None:
        return Change(place, -1)
    if not isinstance(value, Traced):
        if not computed(value):
            return Change(place, -1, value)
        leaves, tree = tree_flatten(value)
        return Change(place, -1, tree=tree, parts=[_change(trace, found, None, x) for x in leaves])
    if id(value) in found.reals:
        return Change(place, -2, found.place(value))
    trace.block.outputs.append(_renewed(found, trace.value_of(value)))
    return Change(place, len(trace.block.outputs) - 1, plain=isinstance(value, TracedArray))


def resolved(changes: Changes, of: Callable[[Any], Any]) -> None:
    """Tensors in places become the places where they are found again (``of``)."""
    def place(x: Any) -> Any:
        return GradOf(place(x.owner)) if isinstance(x, GradOf) else of(x) if isinstance(x, Tensor) else x

    changes.absent = [place(x) for x in changes.absent]
    changes.flags = [(place(x), on) for x, on in changes.flags]
    changes.hooked = [(place(x), kinds) for x, kinds in changes.hooked]
    changes.after = [(place(x), create) for x, create in changes.after]
    changes.no_leaves = [place(x) for x in changes.no_leaves]
    todo = list(changes.sets)
    while todo:
        c = todo.pop()
        c.place = place(c.place)
        if c.out == -2:
            c.value = place(c.value)
        todo += c.parts or ()


