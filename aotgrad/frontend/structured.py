"""Calls with containers, keywords or strided arrays: what the trampoline cannot take apart itself.

For each structure of arguments a small Python function is written. It takes the containers apart, gives the leaves to a trampoline of its own, which checks dtypes,
ranks, layouts and sizes as it does for flat calls, and builds the result. Whatever does not fit gives ``MISS``, and the call goes the long way.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from aotgrad_runtime import call, modes, watchers
from aotgrad_runtime.parameter import Parameter
from aotgrad_runtime.tensor import Size, Tensor, wrap

from . import kernels
from .pytree import TreeDef
from .static import static_key

__all__ = ["MISS", "TRACED", "Entry", "Tape", "entry", "finisher"]

MISS, TRACED = object(), object()
_MISSES = "    return MISS"


class Entry:
    """``run(args, kwargs)``: the result, or ``MISS``. ``function``: the trampoline of its leaves, to which instances are added;
    ``run(args, kwargs, other)`` calls another one."""

    __slots__ = ("function", "run")

    def __init__(self, function: Any, run: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> None:
        self.function, self.run = function, run


def entry(name: str, tree: TreeDef, statics: Mapping[int, Any], out_tree: TreeDef, constants: Sequence[Any], tape: Tape | None = None) -> Entry | None:
    """The entry for calls of structure ``tree`` whose leaves ``statics`` (by index) have these values; None where a container is of an unknown kind.

    ``constants`` has an item per leaf of the result: the leaf, or ``TRACED`` where the kernel gives it. ``tape``: which leaves are tensors, and how results are recorded.
    """
    writer = _Writer()
    results = [f"r{i}" if c is TRACED else writer.constant(c) for i, c in enumerate(constants)]
    taken = [r for r, c in zip(results, constants) if c is TRACED]
    built = writer.building(out_tree, iter(results))
    args, kwargs = tree.children
    if not taken or built is None or not writer.take_apart(args, "args") or not writer.take_apart(kwargs, "kwargs"):
        return None
    for i, value in statics.items():
        leaf, kept, kind, key = writer.leaves[i], writer.constant(value), writer.constant(type(value)), writer.constant(static_key(value))
        writer.lines += [f"if {leaf} is not {kept} and (type({leaf}) is not {kind} or static_key({leaf}) != {key}):", _MISSES]
    leaves = [x for i, x in enumerate(writer.leaves) if i not in statics]
    if tape is None:
        writer.lines += [f"result = function({', '.join(leaves)})", "if result is MISS:", _MISSES]
    else:
        writer.lines += _on_tape(tape, leaves, len(taken))
        writer.names.update(tape.names)
    writer.lines += [f"{', '.join(taken)} = result", f"return {built}"]
    inner: call.Function = call.make_callable(name, lambda *leaves: _packed_again(inner, leaves))
    writer.names.update(MISS=MISS, function=inner, static_key=static_key)
    exec("def run(args, kwargs, function=function):\n" + "".join(f"    {line}\n" for line in writer.lines), writer.names)
    return Entry(inner, writer.names["run"])


class Tape:
    """For calls with tensors: the places of tensors among the arguments of the kernel, the grad mode the program was traced in, the ``taped.Recorder``."""

    def __init__(self, places: Sequence[int], grad: bool, recorder: Any) -> None:
        self.places, self.grad, self.recorder = frozenset(places), grad, recorder
        self.names = {"Tensor": Tensor, "Parameter": Parameter, "wrap": wrap, "forms": recorder.forms, "learn": recorder.learn,
                      "asked": watchers.shared, "here": watchers.state, "flags": modes.flags, "state": modes.state}


def _on_tape(tape: Tape, leaves: Sequence[str], results: int) -> list[str]:
    """Arrays to the kernel, tensors from its results."""
    tensors = [leaves[i] for i in sorted(tape.places)]
    given = ", ".join(f"{x}._data" if i in tape.places else x for i, x in enumerate(leaves))
    others = "not state.grad" if tape.grad else "state.grad"
    wrong = "".join([f"type({x}) is not Tensor and type({x}) is not Parameter or " for x in tensors])
    lines = [f"if {wrong}asked.count and here.count or {'flags.restricted and ' if tape.grad else ''}{others}:", _MISSES]
    lines += [f"result = function({given})", "if result is MISS:", _MISSES]
    return [*lines, *(_wrapped(tensors, leaves, results) if tape.grad else [f"result = {_plain(results)}"])]


def _plain(results: int) -> str:
    return "wrap(result)" if results == 1 else "[wrap(r) for r in result]"


def _wrapped(tensors: Sequence[str], leaves: Sequence[str], results: int) -> list[str]:
    """Arrays in ``result`` become tensors, recorded where a tensor wants a gradient."""
    if not tensors:  # the tensors were made inside
        return [f"result = {_plain(results)}"]
    bits = " | ".join([f"({x}._requires_grad and {1 << i})" for i, x in enumerate(tensors)])
    return [f"if bits := {bits}:", f"    result = (forms.get(bits) or learn(bits))({', '.join(['result', *leaves])})", "else:", f"    result = {_plain(results)}"]


def finisher(out_tree: TreeDef, constants: Sequence[Any], tape: Tape, count: int, leaves: Sequence[int], stack: Any,
             tracing: set[int]) -> Callable[..., Any] | None:
    """``finish(result, *args)`` for an instance of a trampoline: the results of a flat call with ``count`` arguments, of which ``leaves`` are the kernel's, as tensors.
    It gives NotImplemented inside a trace."""
    writer = _Writer()
    results = [f"r{i}" if c is TRACED else writer.constant(c) for i, c in enumerate(constants)]
    taken = [r for r, c in zip(results, constants) if c is TRACED]
    built = writer.building(out_tree, iter(results))
    if not taken or built is None:
        return None
    given = [f"x{i}" for i in leaves]
    lines = ["if tracing and stack.traces:", "    return NotImplemented", *_wrapped([given[k] for k in sorted(tape.places)], given, len(taken))]
    lines += ["return result"] if built == taken[0] else [f"{', '.join(taken)} = result", f"return {built}"]
    names = {**writer.names, **tape.names, "stack": stack, "tracing": tracing}
    head = f"def finish({', '.join(['result', *[f'x{i}' for i in range(count)]])}):\n"
    exec(head + "".join(f"    {line}\n" for line in lines), names)
    finish = names["finish"]

    def inline(bits: int, written: Callable[..., tuple[list[str], dict[str, Any]]]) -> None:
        """The form that is asked for first becomes a part of ``finish``: that saves a call, and finding it."""
        form, more = written(given)
        wanted = " and ".join([f"{'' if bits >> i & 1 else 'not '}{given[k]}._requires_grad" for i, k in enumerate(sorted(tape.places))])
        again = [*lines[:2], f"if {wanted}:", "    data = result", *[f"    {line}" for line in form], "    result = data", f"el{lines[2]}", *lines[3:]]
        names.update(more)
        exec(head + "".join(f"    {line}\n" for line in again), names)
        finish.__code__ = names["finish"].__code__

    if tape.places:
        tape.recorder.inline = inline
    return finish  # type: ignore[no-any-return]


def _packed_again(function: call.Function, leaves: tuple[Any, ...]) -> Any:
    """What a trampoline falls back to: arrays with gaps are packed, which is all that can be done without another kernel."""
    dense = [np.ascontiguousarray(x) if type(x) is np.ndarray and kernels.dense_order(x) is False else x for x in leaves]
    return function(*dense) if any(a is not b for a, b in zip(dense, leaves)) else MISS


class _Writer:
    """The lines of one entry. Names are made up, and values stand in its namespace: nothing of the user's becomes text."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.leaves: list[str] = []
        self.names: dict[str, Any] = {}
        self.count = itertools.count()

    def constant(self, value: Any) -> str:
        """The name of ``value``."""
        name = f"c{next(self.count)}"
        self.names[name] = value
        return name

    def take_apart(self, tree: TreeDef, name: str) -> bool:
        """Checks what ``name`` holds and gives its leaves names; False where the container is of an unknown kind."""
        if tree.kind is None:
            self.leaves.append(name)
            return True
        if tree.kind == "none":
            self.lines += [f"if {name} is not None:", _MISSES]
            return True
        parts = [f"v{next(self.count)}" for _ in tree.children]
        size = "" if _is_dataclass(tree) else f" or len({name}) != {len(parts)}"
        self.lines += [f"if type({name}) is not {self.constant(tree.kind)}{size}:", _MISSES]
        if tree.kind is dict:
            if not _sortable(tree.meta) or tree.exact:  # then their order, or their types (1 and True), would decide which leaf is which
                return False
            self.lines += [f"{part} = {name}.get({self.constant(key)}, MISS)" for part, key in zip(parts, tree.meta)]
        elif _is_dataclass(tree):
            self.lines += [f"{part} = getattr({name}, {self.constant(field)})" for part, field in zip(parts, tree.meta[1:])]
        elif tree.kind not in (tuple, list) and not _is_named(tree):
            return False
        elif parts:
            self.lines.append(f"{', '.join(parts)}, = {name}")
        return all(self.take_apart(child, part) for child, part in zip(tree.children, parts))

    def building(self, tree: TreeDef, leaves: Iterator[str]) -> str | None:
        """The expression that builds a tree; None where the container is of an unknown kind."""
        if tree.kind is None:
            return next(leaves)
        if tree.kind == "none":
            return "None"
        parts = [self.building(child, leaves) for child in tree.children]
        inner = ", ".join([p for p in parts if p is not None])
        if None in parts:
            return None
        if tree.kind == "number":
            return f"{inner}.item()"
        if tree.kind is Size:
            return f"{self.constant(Size)}(({inner},))"
        if tree.kind is list:
            return f"[{inner}]"
        if tree.kind is tuple:
            return f"({inner},)" if parts else "()"
        if _is_named(tree):
            return f"{self.constant(tree.kind)}({inner})"
        if tree.kind is not dict and not (_is_dataclass(tree) and all(f.init for f in dataclasses.fields(tree.kind))):
            return None
        keys = tree.meta if tree.kind is dict else tree.meta[1:]
        items = ", ".join(f"{self.constant(k)}: {p}" for k, p in zip(keys, parts))
        return f"{{{items}}}" if tree.kind is dict else f"{self.constant(tree.kind)}(**{{{items}}})"


def _is_named(tree: TreeDef) -> bool:
    return isinstance(tree.kind, type) and issubclass(tree.kind, tuple) and tree.meta == ("named",)


def _is_dataclass(tree: TreeDef) -> bool:
    return isinstance(tree.kind, type) and dataclasses.is_dataclass(tree.kind) and tree.meta[:1] == ("dataclass",)


def _sortable(keys: tuple[Any, ...]) -> bool:
    try:
        return sorted(keys) == list(keys)
    except TypeError:
        return False
