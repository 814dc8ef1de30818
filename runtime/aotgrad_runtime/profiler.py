"""Profiling: who records, what a record is, and the hook that sees compiled regions. Knows no ops and formats nothing; see ``aotgrad.autograd.profiler`` for that.

Recording belongs to a thread. While no thread records and none has a hook, nothing in the library asks: the parts that can be watched give this module a switch
(``add_switch``) that is thrown when the first watcher comes and when the last one goes, and put their watched form in place only then.

An event is a plain tuple, appended when it ends: (kind, name, start, end, stack, shapes, bytes, sequence, lines).
``start`` and ``end`` are nanoseconds of ``clock``; ``stack`` holds (code, instruction offset) pairs, innermost first; ``shapes`` is None unless wanted;
``sequence`` is the number of the tape's node, -1 for none; ``lines`` are the (place, weight, adjoint) triples of a compiled kernel.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any, Final

import numpy as np

from . import watchers
from .errors import AotgradRuntimeError, AotgradTypeError

__all__ = [
    "COMPILE", "KERNEL", "NODE", "OP", "REGION", "USER", "Recorder", "Region", "add_switch", "clock", "new_bytes",
    "region_hook", "set_region_hook", "skip_files", "start", "state", "stop", "user_stack", "watched",
]

OP, NODE, REGION, KERNEL, USER, COMPILE = range(6)
Place = tuple[CodeType, int]
Event = tuple[int, Any, int, int, tuple[Place, ...], Any, int, int, Any]
clock: Final = time.perf_counter_ns
_DEPTH: Final = 64  # frames of a user's stack that are kept


class Region:
    """What a region hook is told about: a compiled function, or one kernel inside it (``parent`` is then the function).

    ``name``; ``kind``, "region" or "kernel"; ``ops``, the names of the operations it computes; ``file`` and ``line``, the user's line that they came from mostly.
    """

    __slots__ = ("file", "kind", "line", "name", "ops", "parent")

    def __init__(self, name: str, kind: str, ops: tuple[str, ...] = (), file: str = "", line: int = 0, parent: Region | None = None) -> None:
        self.name, self.kind, self.ops, self.file, self.line, self.parent = name, kind, ops, file, line, parent

    def __repr__(self) -> str:
        where = f" at {self.file}:{self.line}" if self.file else ""
        return f"<{self.kind} {self.name}{where}>"


RegionHook = Callable[[Region, int, int], Any]


class _Shared(watchers.Holders):
    """The threads that record or have a hook, and which files are not the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.prefixes: tuple[str, ...] = (os.path.dirname(os.path.abspath(__file__)) + os.sep, "<frozen")
        self.ours: dict[str, bool] = {}


_shared: Final = _Shared()


class _State(threading.local):
    """This thread's watchers. Read ``state.recorder`` and ``state.hook``; write through ``start``, ``stop`` and ``set_region_hook``."""

    recorder: Recorder | None = None
    hook: RegionHook | None = None


state: Final = _State()
_asking: Final = watchers.Asking(_shared)


def add_switch(switch: Callable[[bool], None]) -> None:
    """Registers what puts a part's watched form in place (True) and takes it away (False)."""
    _shared.add_switch(switch)


def watched() -> bool:
    """Whether some thread records or has a hook."""
    return _shared.count > 0


def _hold() -> None:
    """One more reason to be watched; none where this is left by an exception."""
    _asking.hold()
    try:
        watchers.state.hold()
    except BaseException:
        _asking.count -= 1
        raise


def _settle() -> None:
    _asking.settle()
    watchers.state.settle()


# The user's frames -----------------------------------------------------------------------------------------------------------------------------------


def skip_files(*prefixes: str) -> None:
    """Files under these paths are not the user's: stacks leave them out."""
    _shared.prefixes += prefixes
    _shared.ours.clear()


def _is_ours(name: str) -> bool:
    if len(_shared.ours) > 4096:
        _shared.ours.clear()
    found = _shared.ours[name] = name.startswith(_shared.prefixes)
    return found


def user_stack(frame: FrameType | None, whole: bool) -> tuple[Place, ...]:
    """The user's frames from ``frame`` outwards: the innermost alone, or all."""
    ours = _shared.ours
    found: list[Place] = []
    while frame is not None and len(found) < _DEPTH:
        code = frame.f_code
        name = code.co_filename
        known = ours.get(name)
        if not (_is_ours(name) if known is None else known):
            if not whole:
                return ((code, frame.f_lasti),)
            found.append((code, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


# Recording -------------------------------------------------------------------------------------------------------------------------------------------


def _shape(x: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return [_shape(v) for v in x]
    shape = getattr(x, "shape", None)
    return [] if shape is None else [*shape]


def _root(x: Any) -> Any:
    """The array that owns the memory of a tensor or an array; None for anything else."""
    data = getattr(x, "_data", x)
    if not isinstance(data, np.ndarray):
        return None
    while isinstance(data.base, np.ndarray):
        data = data.base
    return data


def new_bytes(out: Any, operands: Sequence[Any]) -> int:
    """Bytes of memory among results that is not an operand's: views count nothing."""
    seen = {id(_root(x)) for x in operands}
    total = 0
    for x in out if isinstance(out, (list, tuple)) else (out,):
        root = _root(x)
        if root is not None and id(root) not in seen:
            seen.add(id(root))
            total += root.nbytes
    return total


class Recorder:
    """The events of one profiled stretch of one thread. ``shapes``, ``memory``, ``stack``: whether events carry input shapes, bytes and whole stacks."""

    __slots__ = ("append", "began", "ended", "events", "memory", "shapes", "stack", "thread")

    def __init__(self, shapes: bool = False, memory: bool = False, stack: bool = False) -> None:
        self.shapes, self.memory, self.stack = shapes, memory, stack
        self.events: list[Event] = []
        self.append = self.events.append
        self.thread = threading.get_native_id()
        self.began = self.ended = 0

    def op(self, name: Any, start: int, end: int, operands: Sequence[Any], out: Any, depth: int) -> None:
        """An operation that has just ended: its name, or an object whose ``name`` and ``op`` tell it later. ``depth``: how many callers are surely not the user's."""
        node = getattr(out[0] if type(out) is tuple and out else out, "_node", None)
        sequence = -1 if node is None else node._seq
        stack = user_stack(sys._getframe(depth), self.stack)
        shapes = [_shape(x) for x in operands] if self.shapes else None
        self.append((OP, name, start, end, stack, shapes, new_bytes(out, operands) if self.memory else 0, sequence, None))

    def node(self, apply: Callable[..., Any], node: Any, cts: Any) -> Any:
        """Runs ``apply(node, cts)`` of the backward engine as an event."""
        shapes = [_shape(ct) for ct in cts] if self.shapes else None
        start = clock()
        grads = apply(node, cts)
        end = clock()
        self.append((NODE, node.name, start, end, (), shapes, new_bytes(grads, cts) if self.memory else 0, node._seq, None))
        return grads

    def leaf(self, finish: Callable[..., Any], run: Any, node: Any) -> None:
        """Runs ``finish(run, node)``, which adds a gradient into its leaf, as an event."""
        shapes = [_shape(node.variable)] if self.shapes else None
        start = clock()
        finish(run, node)
        self.append((NODE, node.name, start, clock(), (), shapes, 0, -1, None))


def start(recorder: Recorder) -> None:
    """Begins recording in this thread. Raises ``AotgradRuntimeError`` when it records already."""
    if state.recorder is not None:
        raise AotgradRuntimeError("Profiler is already enabled on this thread. Profilers do not nest: leave the other profile() block first, or mark parts with "
                                  "record_function")
    recorder.thread = threading.get_native_id()
    _hold()
    try:
        recorder.began = clock()
    except BaseException:
        _asking.count -= 1
        watchers.state.count -= 1
        raise
    state.recorder = recorder


def stop(recorder: Recorder) -> None:
    """Ends recording. Raises ``AotgradRuntimeError`` unless ``recorder`` is the one that runs in this thread."""
    if state.recorder is not recorder:
        raise AotgradRuntimeError("Can't disable the profiler when it's not running on this thread: leave a profile() block once, in the thread that entered it")
    try:
        recorder.ended = clock()
    finally:
        state.recorder = None
        _asking.count -= 1
        watchers.state.count -= 1
    _settle()


# The raw hook ----------------------------------------------------------------------------------------------------------------------------------------


def set_region_hook(fn: RegionHook | None) -> RegionHook | None:
    """Calls ``fn(region, phase, ns)`` when a compiled function or a kernel inside it is entered (phase 0) and left (1) in this thread; None switches it off.

    ``region`` is a ``Region`` with ``name``, ``kind`` ("region" or "kernel"), ``ops``, ``file``, ``line`` and ``parent``; ``ns`` are nanoseconds of
    ``time.perf_counter_ns``. Returns the hook that was there. What ``fn`` raises reaches the caller of the compiled function when its kernel has ended. Functions are
    built a second time, with hooks, at their first call under a hook; raises ``AotgradTypeError`` when ``fn`` cannot be called.

    >>> set_region_hook(lambda region, phase, ns: None)
    >>> _ = set_region_hook(None)
    """
    if fn is not None and not callable(fn):
        raise AotgradTypeError(f"set_region_hook: fn must be callable or None, got {type(fn).__name__}")
    if fn is not None and state.hook is None:
        _hold()
    before, state.hook = state.hook, fn
    if fn is None and before is not None:
        _asking.count -= 1
        watchers.state.count -= 1
        _settle()
    return before


def region_hook() -> RegionHook | None:
    """The hook of this thread."""
    return state.hook
