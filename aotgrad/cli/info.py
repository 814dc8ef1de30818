"""``aotgrad info``: versions, target, call path and cache, for bug reports."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from pathlib import Path

from aotgrad.codegen.target import Target
from aotgrad_runtime.cache import ObjectCache, default_folder
from aotgrad_runtime.call.machine import unusable
from aotgrad_runtime.errors import AotgradError

__all__ = ["cpu_model", "report", "version_of"]


def version_of(distribution: str) -> str:
    """The installed version of a distribution, or ``"not installed"``."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def cpu_model() -> str:
    """The processor's name as Linux shows it, else as Python knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def report() -> str:
    """One fact a line.

    >>> report().startswith("aotgrad ")
    True
    """
    rows = [("aotgrad", version_of("aotgrad")), ("python", f"{platform.python_implementation()} {platform.python_version()}")]
    rows += [(name, version_of(name)) for name in ("numpy", "llvmlite", "lark")]
    rows += [("system", f"{platform.system()} {platform.release()} {platform.machine()}"), ("processor", f"{cpu_model()}, {len(os.sched_getaffinity(0))} core(s)")]
    rows += [("target", _target()), ("calls", _call_path()), ("cache", _cache())]
    rows.append(("C compiler", shutil.which("cc") or shutil.which("gcc") or shutil.which("clang") or "none (not needed)"))
    return "\n".join(f"{name} {text}" for name, text in rows)


def _target() -> str:
    try:
        t = Target.native()
    except AotgradError as error:
        return f"none: {error}"
    return f"{t.triple} {t.cpu}, {t.vector_bits}-bit vectors"


def _call_path() -> str:
    why = unusable()
    return f"through ctypes ({why})" if why else "machine-code trampoline"


def _cache() -> str:
    cache = ObjectCache(default_folder())
    return cache.folder if cache.folder is not None else f"off: {cache.off}"
