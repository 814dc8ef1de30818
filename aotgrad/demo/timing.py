"""Times the compiled gradient beside the one derived by hand in NumPy: ``python -m aotgrad.demo.timing INPUTS.npz`` in a process whose BLAS has one thread.

On a busy machine the threads of a BLAS wait for each other and a call can take a hundred times as long, which says nothing about either side. The two are
called in turn, in batches too short to meet the scheduler often, and a ratio is given only where it repeats.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import aotgrad as ag
from aotgrad_runtime.errors import AotgradRuntimeError

from .models import hand_written, loss

__all__ = ["Timed", "compare", "in_own_process", "loss_and_gradient", "summary"]

ROUNDS, BATCH_SECONDS, PERCENTILE, PARTS = 200, 0.2e-3, 20, 4
# Ratios of the parts of the run that differ by more than this factor, or medians this far above the 20th percentile, mean that something else was measured.
SCATTER, LATE = 1.3, 2.0
TIMEOUT = 60
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1")


@ag.compile
def loss_and_gradient(params: Any, x: Any, y: Any) -> Any:
    """The classifier's loss and its gradient with respect to all weights."""
    return ag.value_and_grad(loss)(params, x, y)


@dataclass(frozen=True)
class Timed:
    """Seconds of one call of each side (20th percentiles), and whether their ratio repeats."""

    first: float
    second: float
    steady: bool


def compare(first: Callable[[], Any], second: Callable[[], Any], rounds: int = ROUNDS) -> Timed:
    """Times two calls in turn."""
    calls = (first, second)
    times = np.zeros((rounds, 2))
    counts = [max(1, int(BATCH_SECONDS / max(min(_batch(call, 1) for _ in range(5)), 1e-9))) for call in calls]
    for r in range(rounds):
        for k in (0, 1) if r % 2 else (1, 0):
            times[r, k] = _batch(calls[k], counts[k])
    return judge(times)


def _batch(call: Callable[[], Any], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def judge(times: Any) -> Timed:
    """The verdict on samples [rounds, 2].

    >>> quiet = np.tile([1.0, 3.0], (40, 1))
    >>> judge(quiet)
    Timed(first=1.0, second=3.0, steady=True)
    """
    low = np.percentile(times, PERCENTILE, axis=0)
    ratios = [np.divide(*np.percentile(part, PERCENTILE, axis=0)) for part in np.array_split(times, PARTS)]
    steady = max(ratios) <= SCATTER * min(ratios) and bool(np.all(np.median(times, axis=0) <= LATE * low))
    return Timed(float(low[0]), float(low[1]), steady)


def summary(t: Timed) -> str:
    """What was measured, with a ratio only where one can be given."""
    compiled, hand = f"{1e6 * t.first:.0f} us", f"{1e6 * t.second:.0f} us"
    if not t.steady:
        return f"compiled about {compiled}, derived by hand in plain NumPy about {hand}; times scatter (a busy machine), so no ratio is given"
    return f"compiled {compiled}, derived by hand in plain NumPy {hand} ({t.second / t.first:.1f} times as long)"


def in_own_process(inputs: Sequence[Any], folder: Path) -> Timed:
    """``compare`` on weights, images and targets in a new process: the number of BLAS threads is read when NumPy is loaded."""
    file = folder / "timing.npz"
    np.savez(file, *inputs)
    command = [sys.executable, "-m", "aotgrad.demo.timing", str(file)]
    try:
        done = subprocess.run(command, env={**os.environ, **ONE_THREAD}, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AotgradRuntimeError(f"demo: timing failed: {error}") from error
    finally:
        file.unlink(missing_ok=True)
    if done.returncode:
        raise AotgradRuntimeError(f"demo: timing failed with exit code {done.returncode}:\n{done.stderr or done.stdout}")
    return Timed(**json.loads(done.stdout))


def main(path: str) -> None:
    """Prints a ``Timed`` as JSON."""
    with np.load(path) as data:
        *params, x, y = (data[k] for k in data.files)
    print(json.dumps(asdict(compare(lambda: loss_and_gradient(params, x, y), lambda: hand_written(params, x, y)))))


if __name__ == "__main__":
    main(sys.argv[1])
