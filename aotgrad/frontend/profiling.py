"""What the profiler and region hooks see of the frontend: eager calls, and compiled functions with the kernels inside them.

While nobody watches, nothing here runs. The first watcher (``aotgrad_runtime.profiler``) puts the timed form of an eager call in place and takes compiled functions
off the trampoline; a watched call of one runs a second build, whose kernels report their borders. A thread's reports go into a buffer of its own, by machine code, or
through Python when the thread has a region hook. Calls that are short when nobody watches are short here too: through twins of the trampolines, with the second build
behind them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from aotgrad._version import __version__
from aotgrad_runtime import call, profiler, recording
from aotgrad_runtime.errors import AotgradRuntimeError
from aotgrad_runtime.profiler import Recorder, Region, RegionHook, clock

from . import compiler, dispatch, factories, kernels, randoms
from .structured import MISS
from .trace import current

__all__ = ["compiling", "fast", "joined", "run", "watch"]


class _Watch:
    """``on``: whether some thread watches. Read by compiled functions at every call through Python."""

    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = False


watch: Final = _Watch()


def _switch(on: bool) -> None:
    watch.on = on
    dispatch.watch(_timed if on else None, _timed_short if on else None, _timed_known if on else None)
    factories.watch(_timed_maker if on else None)
    randoms.watch(_timed_maker if on else None)


def _timed(inner: Callable[..., Any], public: Any, arguments: dict[str, Any], operands: list[Any], flavour: Any) -> Any:
    """An eager call, as an event of the thread that records."""
    recorder = profiler.state.recorder
    if recorder is None:
        return inner(public, arguments, operands, flavour)
    start = clock()
    out = inner(public, arguments, operands, flavour)
    recorder.op(public, start, clock(), operands, out, 4)  # this, run, and what called that
    return out


def _timed_short(public: Any, short: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """As ``_timed`` for a call that may have a short way (see ``quick``); None where it has none."""
    if recording.state.hooks or recording.state.anomaly:
        return None
    recorder = profiler.state.recorder
    start = clock()
    out = short(*args)
    if out is not None and recorder is not None:
        recorder.op(public, start, clock(), args, out, 4)
    return out


def _timed_known(public: Any, known: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As ``_timed`` for a call that came before (see ``known``). Shapes and bytes are told of operands, which the general way has in order."""
    recorder = profiler.state.recorder
    if recorder is None:
        return known(args, kwargs)
    if recorder.shapes or recorder.memory:
        return dispatch.MISS
    start = clock()
    out = known(args, kwargs)
    if out is not dispatch.MISS:
        recorder.op(public, start, clock(), (), out, 4)
    return out


def _timed_maker(inner: Callable[..., Any], name: str, *args: Any) -> Any:
    """A call that makes a tensor (``zeros``, ``rand``), as an event of the thread that records."""
    recorder = profiler.state.recorder
    if recorder is None or current() is not None:
        return inner(name, *args)
    start = clock()
    out = inner(name, *args)
    recorder.op(name, start, clock(), (), out, 3)
    return out


@contextlib.contextmanager
def compiling(title: str, what: str = "compile") -> Iterator[None]:
    """Marks the time that tracing and compiling take, so that it is not mistaken for the function's own."""
    recorder = profiler.state.recorder
    if recorder is None:
        yield
        return
    start = clock()
    try:
        yield
    finally:
        recorder.append((profiler.COMPILE, f"{what} {title}", start, clock(), (), None, 0, -1, None))


# ---- where reports go -----------------------------------------------------------------------------------------------------------------

_CTX, _STATE = 5, 5  # words of ag_ctx, and of the recorder's state
_POOL, _HOOK, _HOOK_STATE = 1, 2, 3
_COUNT, _ROOM, _BUFFER, _LOST = 1, 2, 3, 4
_PROTOTYPE: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


class _Shared:
    """The recorder in machine code, loaded at first use; address 0 where it cannot be had."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.address: int | None = None
        self.clock = 0
        self.library: Any = None

    def recorder(self) -> int:
        """The address of the machine-code hook, or 0."""
        with self.lock:
            if self.address is None:
                self.address = self._load() if time.get_clock_info("perf_counter").implementation == "clock_gettime(CLOCK_MONOTONIC)" else 0
        return self.address

    def _load(self) -> int:
        key = f"recorder-{__version__}-{kernels.target().key}"
        cache = kernels.cache()
        entry = cache.get(key)
        if entry is None:
            try:
                entry = cache.put(key, compiler.recorder.compile_recorder(kernels.target()), {})
            except AotgradRuntimeError:  # the compiler is not installed
                return 0
        self.library = entry.load()
        self.clock = ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value or 0
        return int(self.library.address(compiler.recorder.SYMBOL)) if self.clock else 0


_shared: Final = _Shared()


class _Port:
    """A thread's ``ag_ctx``, the recorder's state and buffer, and the way through Python."""

    def __init__(self) -> None:
        self.ctx = (ctypes.c_int64 * _CTX)()
        self.state = (ctypes.c_int64 * _STATE)()
        self.native = _shared.recorder()
        self.state[0] = _shared.clock
        self.callback = _PROTOTYPE(self._heard)
        self.python = ctypes.cast(self.callback, ctypes.c_void_p).value or 0
        self.ctx[_HOOK_STATE] = ctypes.addressof(self.state)
        self.heard: list[list[int]] = []
        self.regions: Sequence[Region] = ()
        self.hook: RegionHook | None = None
        self.failure: BaseException | None = None
        self.twins: weakref.WeakKeyDictionary[Any, dict[int, tuple[Callable[..., Any], _Watched, Any]]] = weakref.WeakKeyDictionary()
        self.buffer = np.zeros((0, 3), np.int64)
        self.make_room(256)

    def make_room(self, wanted: int) -> None:
        """At least ``wanted`` more records fit."""
        count = self.state[_COUNT]
        if self.state[_ROOM] - count < wanted:
            room = 2 * (count + wanted)
            buffer = np.zeros((room, 3), np.int64)
            if count:
                buffer[:count] = self.buffer[:count]
            self.buffer = buffer
            self.state[_ROOM], self.state[_BUFFER] = room, buffer.ctypes.data

    def _heard(self, _state: Any, number: int, phase: int) -> None:
        now = clock()
        self.heard.append([number, phase, now])
        if self.hook is not None and self.failure is None:
            try:
                self.hook(self.regions[number], phase, now)
            except BaseException as error:  # nothing may pass through machine code: it is raised when the kernel has ended
                self.failure = error


class _Local(threading.local):
    port: _Port | None = None


_local: Final = _Local()


def _port() -> _Port:
    port = _local.port
    if port is None:
        port = _local.port = _Port()
    return port


class _Flat(threading.local):
    """A build for profiling, callable from this thread: it reports to the thread's port."""

    call: Callable[..., Any] | None = None


# ---- compiled functions ---------------------------------------------------------------------------------------------------------------

class _Watched:
    """A compiled program with its build for profiling: what its kernels are called, and which lines they came from."""

    def __init__(self, program: Any) -> None:
        func, options = program.func, program.options
        self.kernel, described = self._build(program.kernel, func, options)
        self.inner: list[tuple[Region, tuple[Any, ...]]] = []
        first = next((op.loc for op in func.body.ops if op.loc is not None), None)
        self.region = Region(program.title, "region", tuple(op.name for op in func.body.ops), *(("", 0) if first is None else (first.file, first.line)))
        for i, one in enumerate(described):
            lines = tuple(((file, line), share, adjoint) for file, line, share, adjoint in one["lines"])
            file, line = max(lines, key=lambda entry: entry[1])[0] if lines else ("", 0)
            self.inner.append((Region(f"{program.title}#{i} {joined(one['ops'])}", "kernel", tuple(one["ops"]), file, line, self.region), lines))
        self.regions = [r for r, _ in self.inner]
        self.flat = _Flat()

    @staticmethod
    def _build(plain: kernels.Kernel, func: Any, options: Any) -> tuple[kernels.Kernel, list[dict[str, Any]]]:
        """The instrumented kernel; the plain one, whose inside cannot be seen, where the compiler is missing."""
        try:
            built = kernels.build(func, plain.name, replace(options, hooks=compiler.regions.places_of(func)))
        except AotgradRuntimeError:
            return plain, []
        return built, built.meta["regions"]

    def callable(self, port: _Port) -> Callable[..., Any]:
        """The kernel behind a callable of this thread."""
        found = self.flat.call
        if found is None:
            found = self.flat.call = call.make_callable(self.kernel.name, kernels.refuse(self.kernel.func))
            instance = self.kernel.instance(self.kernel.arg_specs(), False)
            if instance.ctx:  # the pool of threads
                port.ctx[_POOL] = ctypes.c_int64.from_address(instance.ctx + 8 * _POOL).value
            found.add_instance(replace(instance, ctx=ctypes.addressof(port.ctx), keepalive=(instance.keepalive, port)))
        return found

    def run(self, arrays: Sequence[Any], recorder: Recorder | None, hook: RegionHook | None) -> list[Any]:
        """Runs the kernel on arrays."""
        port = _port()
        given = [kernels.packed(a, t) for a, t in zip(arrays, self.kernel.func.arg_types)]
        out = self.observe(port, recorder, hook, functools.partial(self.callable(port), *given), arrays)
        return list(out) if isinstance(out, tuple) else [out]

    def observe(self, port: _Port, recorder: Recorder | None, hook: RegionHook | None, call: Callable[[], Any], arrays: Sequence[Any]) -> Any:
        """Does ``call``, which runs the kernel; tells the hook, appends the events. ``MISS``: nothing has run."""
        stack = profiler.user_stack(sys._getframe(2), recorder.stack) if recorder is not None else ()
        native = hook is None and port.native != 0
        before = (port.ctx[_HOOK], port.heard, port.regions, port.hook, port.failure)
        port.ctx[_HOOK] = port.native if native else port.python
        port.make_room(2 * len(self.inner))
        port.heard, port.regions, port.hook, port.failure = [], self.regions, hook, None
        mark = port.state[_COUNT]
        failure: BaseException | None = None
        out: Any = None
        start = end = clock()
        if hook is not None:
            hook(self.region, 0, start)
        try:
            out = call()
        finally:
            end = clock()
            heard = port.buffer[mark:port.state[_COUNT]].tolist() if native else port.heard
            failure = port.failure
            port.state[_COUNT] = mark
            port.ctx[_HOOK], port.heard, port.regions, port.hook, port.failure = before
            if recorder is not None and out is not MISS:
                self._record(recorder, heard, end)
        if out is MISS:
            return MISS
        if recorder is not None:
            shapes = [[*a.shape] for a in arrays] if recorder.shapes else None
            recorder.append((profiler.REGION, self.region.name, start, end, stack, shapes, profiler.new_bytes(out, arrays) if recorder.memory else 0, -1, None))
        if failure is not None:
            try:
                raise failure
            finally:
                del failure
        if hook is not None:
            hook(self.region, 1, end)
        return out

    def _record(self, recorder: Recorder, heard: Sequence[Sequence[int]], end: int) -> None:
        """One event per kernel; one that an error ended has no border of its own."""
        inner, append = self.inner, recorder.append
        number, start = -1, 0
        for which, phase, at in heard:
            if phase == 0:
                number, start = which, at
            elif which == number:
                region, lines = inner[number]
                append((profiler.KERNEL, region.name, start, at, (), None, 0, -1, lines))
                number = -1
        if number >= 0:
            region, lines = inner[number]
            append((profiler.KERNEL, region.name, start, end, (), None, 0, -1, lines))


def joined(ops: Sequence[str]) -> str:
    """Names of the operations of a kernel, for people."""
    if not ops:
        return "copy"
    return "+".join(ops) if len(ops) <= 4 else f"{'+'.join(ops[:3])}+{len(ops) - 3} more"


def run(program: Any, arrays: Sequence[Any]) -> list[Any]:
    """Outputs of a compiled program while some thread watches; plainly when it is not this one."""
    recorder, hook = profiler.state.recorder, profiler.state.hook
    if recorder is None and hook is None:
        return kernels.run_flat(program.kernel, arrays)
    return _watched(program).run(arrays, recorder, hook)


def _watched(program: Any) -> _Watched:
    found: _Watched | None = program.watched
    if found is None:
        with compiling(program.title, "compile for profiling"):
            found = program.watched = _Watched(program)
    return found


# ---- the short way of compiled functions ------------------------------------------------------------------------------------------------

def fast(state: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of a compiled function that the trampoline would take if nobody watched; ``MISS`` where the call has to go the long way."""
    recorder = profiler.state.recorder
    if recorder is None or profiler.state.hook is not None or recorder.shapes or recorder.memory or recording.state.anomaly or current() is not None:
        return MISS
    port = _port()
    twins = port.twins.setdefault(state, {})
    if len(twins) > len(state.fast):  # some are no longer there
        twins.clear()
    for instance, program, entry in state.fast:
        found = twins.get(id(instance))
        if found is None:
            found = twins[id(instance)] = (*_twin(state.name, port, instance, program, entry), instance)
        run, watched, _ = found
        out = watched.observe(port, recorder, None, functools.partial(run, args, kwargs), ())
        if out is not MISS:
            return out
    return MISS


def _twin(name: str, port: _Port, instance: call.Instance, program: Any, entry: Any) -> tuple[Callable[..., Any], _Watched]:
    """A trampoline like the one that ``instance`` belongs to, with the build for profiling behind it."""
    watched = _watched(program)
    library, symbol = watched.kernel.library, watched.kernel.name
    function = call.make_callable(name, _missed)
    function.add_instance(replace(
        instance, kernel=library.address(symbol), workspace=library.address(f"{symbol}_workspace"), ctx=ctypes.addressof(port.ctx), keepalive=(library, port),
        shapes=library.address(f"{symbol}_shapes") if instance.shapes else 0))
    if entry is not None:
        return lambda args, kwargs: entry.run(args, kwargs, function), watched
    return lambda args, kwargs: function(*args, **kwargs), watched


def _missed(*args: Any, **kwargs: Any) -> Any:
    return MISS


_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
profiler.skip_files(_PACKAGE, os.path.dirname(os.path.abspath(np.__file__)) + os.sep)
profiler.add_switch(_switch)
