"""The profiler, with torch.autograd.profiler's names: ``profile()``, ``record_function``, tables, a Chrome trace, a flame view.

>>> import numpy as np, aotgrad as ag
>>> x = ag.tensor(np.ones((64, 64)), requires_grad=True)
>>> with ag.autograd.profiler.profile() as prof:
...     with ag.autograd.profiler.record_function("forward"):
...         loss = (x @ x).sum()
...     loss.backward()
>>> print(prof.key_averages().table(sort_by="self_cpu_time_total", row_limit=10))  # doctest: +SKIP
>>> prof.export_chrome_trace("trace.json")  # doctest: +SKIP
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import aotgrad.frontend.profiling  # noqa: F401  (what is watched)
from aotgrad.frontend.boundary import guard
from aotgrad_runtime import profiler as runtime
from aotgrad_runtime.errors import AotgradNotImplementedError, AotgradRuntimeError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.profiler import Region, set_region_hook

from .flame_view import page
from .profiler_util import EventList, FunctionEvent, FunctionEventAvg, LineList, read

__all__ = ["EventList", "FunctionEvent", "FunctionEventAvg", "Region", "profile", "record_function", "set_region_hook"]


class profile:
    """Records what this thread does inside the block: ops and nodes of the backward pass in eager code, compiled functions and the kernels inside them.

    ``record_shapes``: also the shapes of inputs. ``profile_memory``: also the bytes of results. ``with_stack``: also whole stacks of the user's code (the innermost
    line is always kept). ``enabled=False`` records nothing. Functions compiled with ``ag.compile`` are built a second time, with hooks, at their first call in
    a profile. Profiles do not nest: a second one, or a second entry of the same, raises ``AotgradRuntimeError``, as does a result asked for before the end.
    """

    def __init__(self, enabled: bool = True, *, record_shapes: bool = False, profile_memory: bool = False, with_stack: bool = False, with_flops: bool = False,
                 with_modules: bool = False, use_cpu: bool = True, use_device: str | None = None, use_kineto: bool = False) -> None:
        if use_device not in (None, "cpu"):
            raise AotgradValueError(f"profile: use_device must be None or 'cpu', got {use_device!r}; aotgrad runs on the CPU")
        if not use_cpu:
            raise AotgradValueError("profile: use_cpu=False leaves nothing to record; pass enabled=False to switch the profiler off")
        for name, wanted in (("with_flops", with_flops), ("with_modules", with_modules)):
            if wanted:
                raise AotgradNotImplementedError(f"profile: {name} is not available; leave it out (with_stack=True gives the lines of modules)")
        self.enabled, self.record_shapes, self.profile_memory, self.with_stack = bool(enabled), bool(record_shapes), bool(profile_memory), bool(with_stack)
        self.entered = False
        self._recorder: runtime.Recorder | None = None
        self._events: EventList | None = None

    def __enter__(self) -> profile:
        if not self.enabled:
            return self
        if self.entered:
            raise AotgradRuntimeError("Profiler context manager is not reentrant: make a new profile() for each block")
        recorder = runtime.Recorder(self.record_shapes, self.profile_memory, self.with_stack)
        runtime.start(recorder)
        self.entered, self._recorder = True, recorder
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not self.enabled:
            return
        if self._recorder is None:
            raise AotgradRuntimeError("Can't disable the profiler when it's not running: enter the profile() block first")
        try:
            runtime.stop(self._recorder)
        except BaseException:  # an interrupt at its entry
            if runtime.state.recorder is self._recorder:
                runtime.stop(self._recorder)
            raise

    # ---- results ------------------------------------------------------------------------------------------------------------------

    @property
    def function_events(self) -> EventList | None:
        """The events, None before the end."""
        if self._events is None and self._recorder is not None and self._recorder.ended:
            self._events = read(self._recorder)
        return self._events

    def _finished(self) -> EventList:
        events = self.function_events
        if events is None:
            left = "it is switched off (enabled=False)" if not self.enabled else "leave its block first" if self.entered else "it was never entered"
            raise AotgradRuntimeError(f"Profiler didn't finish running: {left}")
        return events

    @property
    def self_cpu_time_total(self) -> float:
        """Microseconds in all events."""
        return self._finished().self_cpu_time_total

    def key_averages(self, group_by_input_shape: bool = False, group_by_stack_n: int = 0) -> EventList:
        """One average per name; see ``EventList.key_averages``. Its ``table(sort_by=, row_limit=)`` prints it."""
        return self._finished().key_averages(group_by_input_shape, group_by_stack_n)

    def total_average(self) -> FunctionEventAvg:
        """The sums over all events."""
        return self._finished().total_average()

    def table(self, sort_by: str | None = None, row_limit: int = 100, max_src_column_width: int = 75, max_name_column_width: int | None = 55,
              max_shapes_column_width: int = 80, header: str | None = None, top_level_events_only: bool = False) -> str:
        """The events themselves as a table; see ``EventList.table``."""
        return self._finished().table(sort_by, row_limit, max_src_column_width, max_name_column_width, max_shapes_column_width, header, top_level_events_only)

    def line_averages(self) -> LineList:
        """Time by source line, forward and adjoint side by side: ``print(prof.line_averages().table())``."""
        return self._finished().line_averages()

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes a trace for Perfetto (ui.perfetto.dev) or chrome://tracing."""
        self._finished().export_chrome_trace(path)

    def export_stacks(self, path: str | os.PathLike[str], metric: str = "self_cpu_time_total") -> None:
        """Writes stacks for flamegraph.pl or speedscope; needs ``with_stack=True``."""
        events = self._finished()
        if not self.with_stack:
            raise AotgradRuntimeError("export_stacks() requires with_stack=True: pass it to profile()")
        events.export_stacks(path, metric)

    def export_html(self, path: str | os.PathLike[str], title: str = "aotgrad profile") -> None:
        """Writes a flame view with tables, one HTML page that needs nothing else."""
        Path(path).write_text(page(self._finished(), title), encoding="utf-8")

    def __repr__(self) -> str:
        events = self.function_events
        return "<unfinished aotgrad.autograd.profiler.profile>" if events is None else repr(events)

    def __str__(self) -> str:
        events = self.function_events
        return "<unfinished aotgrad.autograd.profiler.profile>" if events is None else str(events)


class record_function(contextlib.ContextDecorator):
    """Marks a block, or a function it decorates, in a profile: what happens inside counts as its children. Costs next to nothing outside a profile.

    >>> @record_function("my step")
    ... def step(x):
    ...     return x * 2
    >>> step(3)
    6
    """

    def __init__(self, name: str, args: str | None = None) -> None:
        if not isinstance(name, str):
            raise AotgradTypeError(f"record_function: name must be a str, got {type(name).__name__}")
        self.name, self.args = name, args
        self._open: list[tuple[runtime.Recorder | None, int]] = []

    def _recreate_cm(self) -> record_function:
        return type(self)(self.name, self.args)

    def __enter__(self) -> record_function:
        recorder = runtime.state.recorder
        self._open.append((recorder, 0 if recorder is None else runtime.clock()))
        return self

    def __exit__(self, *exc: Any) -> None:
        if not self._open:
            raise AotgradRuntimeError(f"record_function({self.name!r}) was left without having been entered")
        recorder, start = self._open.pop()
        if recorder is None or recorder is not runtime.state.recorder:  # nobody recorded at the start, or the profile has ended
            return
        end = runtime.clock()
        name = self.name if self.args is None else f"{self.name}({self.args})"
        recorder.append((runtime.USER, name, start, end, runtime.user_stack(sys._getframe(1), recorder.stack), None, 0, -1, None))


guard(globals(), __all__)
