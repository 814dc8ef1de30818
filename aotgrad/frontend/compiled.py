"""Programs as kernels: one of the whole, or several with Python between them where the program calls it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from aotgrad.codegen.options import Options as Codegen
from aotgrad.ir import Func
from aotgrad.ir.host import strip_func
from aotgrad.ir.transforms.cleanup import standard

from . import anomaly, kernels, profiling, split
from .keeping import Kept
from .program import Program, Pullback, depends, reaches
from .signatures import identifier

__all__ = ["CompiledProgram", "built"]


class CompiledProgram(Program):
    """A program that runs as one kernel; what is derived from it runs as kernels too."""

    native = True
    __slots__ = ("_kernel", "_whole", "kept", "options", "split", "title", "watched")

    def __init__(self, func: Func, name: str, options: Codegen, title: str | None = None, constant: tuple[int, ...] = ()) -> None:
        self._kernel: Any = None
        self.kept: Kept | None = None
        self._whole = options
        self.title = title or func.name  # what the profiler calls it
        if constant:
            made = self._build(func, dataclasses.replace(options, constant=constant))
            self.kept, self._kernel = (Kept(made, constant), None) if made.once is not None else (None, made)
        else:
            self._kernel = self._build(func, options)
        self.split = split.SplitProgram(func, name, functools.partial(_part, name, options)) if split.watched(func) else None
        self.options = dataclasses.replace(options, guards=(), unequal=(), over=())  # what is derived is called with sizes that passed already
        self.watched: Any = None  # its form for profiling, see ``profiling``
        super().__init__(func, name)

    def _build(self, func: Func, options: Codegen) -> kernels.Kernel:
        plain = strip_func(func)
        with profiling.compiling(self.title):
            return kernels.build(func if plain is func else standard(plain), identifier(func.name), options)

    @property
    def kernel(self) -> kernels.Kernel:
        """The kernel that computes everything at each call; compiled at first use where there is one that keeps what depends on weights alone."""
        if self._kernel is None:
            self._kernel = kernels.collector_paused(self._build, self.func, self._whole)
        return self._kernel  # type: ignore[no-any-return]

    def shown(self, plain: bool) -> tuple[kernels.Kernel, Codegen]:
        """The kernel that calls run, and its options. ``plain``: nothing is kept."""
        options = dataclasses.replace(self.options, over=self._whole.over)
        if plain or self.kept is None:
            return self.kernel, options
        return self.kept.kernel, dataclasses.replace(options, constant=self.kept.constant)

    def run_with(self, arrays: Sequence[Any], block: Any) -> list[Any]:
        """The same as ``run``, with what is kept of weights alone."""
        assert self.kept is not None
        outs = kernels.run_flat(self.kept.kernel, arrays, block)
        if anomaly.is_anomaly_enabled():
            anomaly.check(self.func, arrays, outs)
        return outs

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """Outputs as fresh arrays."""
        outs = profiling.run(self, arrays) if profiling.watch.on else kernels.run_flat(self.kernel, arrays)
        if anomaly.is_anomaly_enabled():
            anomaly.check(self.func, arrays, outs)
        return outs

    def run_over(self, arrays: Sequence[Any]) -> list[Any]:
        """Outputs; those that are written to arguments are there, where the arguments are dense."""
        watched = profiling.watch.on or anomaly.is_anomaly_enabled()
        return self.run(arrays) if watched else kernels.run_over(self.kernel, arrays)

    def pullback(self, active: tuple[bool, ...], present: tuple[bool, ...]) -> Pullback:
        found = self._vjps.get((active, present))
        if found is None:
            found = self._vjps[active, present] = kernels.collector_paused(self._pullback, active, present)
        return found

    def reaches(self, present: tuple[bool, ...]) -> Sequence[bool]:
        return reaches(self.func, present)

    def _pullback(self, active: tuple[bool, ...], present: tuple[bool, ...]) -> Pullback:
        plain = super().pullback(active, present)
        compiled = built(standard(plain.program.func), self.name, self.options, title=f"{self.title} (backward)")
        compiled.backward = True
        return Pullback(compiled, plain.inputs, plain.outputs, plain.gives, depends(self.func, active))

    def pushforward(self, active: tuple[bool, ...]) -> Program:
        found = self._jvps.get(active)
        if found is None:
            found = self._jvps[active] = kernels.collector_paused(self._pushforward, active)
        return found

    def _pushforward(self, active: tuple[bool, ...]) -> Program:
        return built(standard(super().pushforward(active).func), self.name, self.options, title=f"{self.title} (jvp)")


def built(func: Func, name: str, options: Codegen, title: str | None = None, constant: tuple[int, ...] = ()) -> Program:
    """One kernel, or several with Python between them where the program calls it. ``constant``: arguments that seldom change (weights)."""
    if split.needs_host(func):
        return split.SplitProgram(func, name, functools.partial(_part, name, options))
    return CompiledProgram(func, name, options, title, constant)


def _part(name: str, options: Codegen, func: Func) -> Program:
    """A part of a program that is cut; its errors name its own lines."""
    return built(func, name, dataclasses.replace(options, guards=(), unequal=(), over=()))
