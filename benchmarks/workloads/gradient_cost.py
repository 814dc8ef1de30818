"""A gradient's time over its function's; and how tracing, differentiating and compiling grow with the number of scalar operations."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import aotgrad as ag
from aotgrad.demo.data import digits, one_hot
from aotgrad.demo.models import initial, loss

from ..harness import Bench, Candidate, difference
from . import chain, rosenbrock

LIMIT = 3.0
UNROLLED = (1250, 2500, 5000, 10_000, 20_000)
MEANT = 10_000
UNROLLED_SECONDS = 5.0
# Linear growth doubles the time with the number; a quarter more than that is taken for noise and fixed costs.
LINEAR = 1.25


def run(bench: Bench) -> None:
    """The workloads of the other files, then unrolled programs."""
    rng = np.random.default_rng(0)
    for n in (2, 100, 10_000):
        _pair(bench, f"rosenbrock, n = {n}", rosenbrock.function, (rng.standard_normal(n),))
    for dtype in ("float64", "float32"):
        for n in (10**3, 10**5):
            _pair(bench, f"chain, {dtype}, n = {n:.0e}", chain.function, (rng.standard_normal(n).astype(dtype),))
    images, labels = digits()
    _pair(bench, "mlp loss, batch 128", loss, (initial(), images[:128], one_hot(labels[:128])))
    _unrolled(bench)


def _pair(bench: Bench, case: str, f: Callable[..., Any], args: tuple[Any, ...]) -> None:
    function, both = ag.compile(f), ag.compile(ag.value_and_grad(f))
    want = float(function(*args))
    tolerance = 1e-12 if difference(want, float(f(*args))) < 1e-12 else 1e-5
    candidates = [Candidate("function", function, lambda out: [out], args=args), Candidate("value and gradient", both, lambda out: [out[0]], args=args)]
    rows = bench.case(case, candidates, [want], tolerance)
    bench.target(f"value and gradient over function, {case}", rows["value and gradient"]["ratio"], LIMIT)


def unrolled(n: int) -> Callable[[Any], Any]:
    """A function of one scalar with ``n`` scalar operations, none of which can be merged with another."""

    def f(x: Any) -> Any:
        y = x
        for k in range(n // 2):
            y = np.sin(y) if k % 5 == 0 else y * x
            y = y + (0.5 + 1e-4 * k)
        return y

    return f


def _unrolled(bench: Bench) -> None:
    seconds = []
    counts = UNROLLED[:2] if bench.quick else UNROLLED
    for n in counts:
        times = []
        for _ in range(1 if bench.quick else 3):
            with tempfile.TemporaryDirectory() as folder:
                os.environ["AOTGRAD_CACHE_DIR"] = folder
                both = ag.compile(ag.value_and_grad(unrolled(n)))
                start = time.process_time()
                both(0.5)
                times.append(time.process_time() - start)
        seconds.append(min(times))
        bench.fact(f"{n} scalar operations: trace, differentiate, compile, first call", seconds[-1], "s", "best of 3, CPU time, empty cache")
    if not bench.quick:
        bench.target("10,000 unrolled scalar operations", seconds[counts.index(MEANT)], UNROLLED_SECONDS, unit="s")
    growth = (seconds[-1] / seconds[-2]) / (counts[-1] / counts[-2])
    bench.target("growth of that time over growth of the number, last doubling", growth, LINEAR)
