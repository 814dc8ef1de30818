"""First calls, calls from the cache in a new process, imports: seconds inside new processes, several each.

CPU time decides, since a loaded machine makes wall-clock time of single events meaningless; the best wall-clock time stands beside it."""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

import aotgrad
import aotgrad_runtime

from ..harness import Bench

REPEATS = 7
_HEAD = """
import sys, time
import numpy as np

import aotgrad
import aotgrad_runtime
import aotgrad as ag
"""
# Each prints seconds. The same file runs twice against one cache folder: first it compiles, then it loads.
_CALLS = {
    "rosenbrock": (
        "from benchmarks.workloads.rosenbrock import function\nargs = (np.array([-1.2, 1.0]),)\nf = ag.compile(ag.value_and_grad(function))\n", 0.15),
    "mlp step": (
        "from aotgrad.demo.data import digits, one_hot\nfrom aotgrad.demo.models import initial\nfrom benchmarks.workloads.mlp import step as f\n"
        "images, labels = digits()\nargs = (initial(), images[:128], one_hot(labels[:128]))\n", 0.6),
}
_START = "wall, cpu = time.perf_counter(), time.process_time()\n"
_STOP = "print(time.process_time() - cpu, time.perf_counter() - wall)\n"
_TIMED = f"{_START}f(*args)\n{_STOP}"
_CACHED_LIMIT, _EAGER_LIMIT, _IMPORT_LIMIT = 0.015, 0.030, 0.15
_EAGER = f"""
import aotgrad.codegen.llvm as door
door.binding()
x = ag.tensor(np.linspace(0.1, 1.0, 100))
{_START}ag.{{op}}(x)
{_STOP}"""
_IMPORT = f"import time\nimport numpy\n{_START}import {{module}}\n{_STOP}"
Times = list[tuple[float, float]]  # CPU and wall-clock seconds


def run(bench: Bench) -> None:
    """Compiled functions, eager operations, imports."""
    repeats = 2 if bench.quick else REPEATS
    for name, (setup, limit) in _CALLS.items():
        first: Times = []
        again: Times = []
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                first.append(_python(_HEAD + setup + _TIMED, folder))
                again.append(_python(_HEAD + setup + _TIMED, folder))
        _report(bench, f"first call, {name}", first, limit, "llvmlite's import included")
        _report(bench, f"first call in a new process, from the cache, {name}", again, _CACHED_LIMIT, "")
    for op in ("exp", "tanh", "sum"):
        with tempfile.TemporaryDirectory() as folder:
            _report(bench, f"eager, first use of {op} ever", [_python(_HEAD + _EAGER.format(op=op), folder)], _EAGER_LIMIT, "llvmlite's import not included")
            _report(bench, f"eager, first use of {op} in a new process", [_python(_HEAD + _EAGER.format(op=op), folder) for _ in range(repeats)], None, "")
    with tempfile.TemporaryDirectory() as folder:
        times = [_python(_IMPORT.format(module="aotgrad"), folder) for _ in range(2 * repeats)]
        _report(bench, "import aotgrad, over import numpy", times, _IMPORT_LIMIT, "")
        for module in ("aotgrad.codegen.driver", "aotgrad_runtime.library", "llvmlite.binding", "lark"):
            _report(bench, f"import {module}, over import numpy", [_python(_IMPORT.format(module=module), folder) for _ in range(repeats)], None, "")


def _report(bench: Bench, what: str, times: Times, limit: float | None, note: str) -> None:
    cpu = [c for c, _ in times]
    value = float(np.median(cpu))
    spread = f"CPU time {min(cpu):.4f} to {max(cpu):.4f} in {len(times)} processes, best wall-clock time {min(w for _, w in times):.4f}"
    bench.fact(what, value, "s", "; ".join(x for x in (spread, note) if x))
    if limit is not None:
        bench.target(what, value, limit, unit="s")


@functools.cache
def bytecode() -> str:
    """A folder with the bytecode of all that is timed: an installed package has it, a checkout may not (two thirds of an import were parsing)."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    env = {**os.environ, "PYTHONPYCACHEPREFIX": folder.name}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    code = "import benchmarks.workloads.mlp, benchmarks.workloads.rosenbrock, llvmlite.binding, lark"
    packages = [os.path.dirname(str(m.__file__)) for m in (aotgrad, aotgrad_runtime)]  # whole: what is read at the first use too
    for arguments in (("-m", "compileall", "-q", *packages), ("-c", code)):
        subprocess.run([sys.executable, *arguments], env=env, check=True, timeout=120)
    return folder.name


def _python(code: str, cache: str) -> tuple[float, float]:
    env: dict[str, Any] = {**os.environ, "AOTGRAD_CACHE_DIR": cache, "PYTHONPYCACHEPREFIX": bytecode()}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False, timeout=120)
    if done.returncode:
        raise RuntimeError(done.stderr)
    cpu, wall = map(float, done.stdout.split()[-2:])
    return cpu, wall
