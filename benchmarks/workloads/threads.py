"""What a second thread is worth: wall-clock time on one thread over that on two. Reported, no targets.

Before every round a probe runs one single-threaded kernel alone and then on two threads at the same time: 1 means that two processors are free, 2 that there is one.
Only rounds whose probe is below 1.25 count; their number stands beside each figure, and so does the ratio of one thread to itself (A/A) over the same rounds.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import aotgrad as ag

from ..harness import Bench

__all__ = ["run"]

ROUNDS, FREE = 60, 1.25


def _chain(x: Any) -> Any:
    return ag.tanh(x) * ag.exp(-x * x) + ag.log1p(x * x)


def _energy(x: Any) -> Any:
    return _chain(x).sum()


def _product(a: Any, b: Any) -> Any:
    return a @ b


def _mlp(batch: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    sizes = (784, 512, 512, 10)
    weights = [(rng.normal(size=(a, b)) / a**0.5).astype(np.float32) for a, b in zip(sizes, sizes[1:])]
    biases = [np.zeros(b, np.float32) for b in sizes[1:]]
    return *weights, *biases, rng.normal(size=(batch, 784)).astype(np.float32), np.eye(10, dtype=np.float32)[np.arange(batch) % 10]


def _step(w0: Any, w1: Any, w2: Any, b0: Any, b1: Any, b2: Any, x: Any, y: Any) -> Any:
    def loss(w0: Any, w1: Any, w2: Any, b0: Any, b1: Any, b2: Any) -> Any:
        z = ag.relu(ag.relu(x @ w0 + b0) @ w1 + b1) @ w2 + b2
        return -(ag.log_softmax(z, -1) * y).sum() / x.shape[0]

    value, grads = ag.value_and_grad(loss, argnums=tuple(range(6)))(w0, w1, w2, b0, b1, b2)
    return (value, *(p - 0.1 * g for p, g in zip((w0, w1, w2, b0, b1, b2), grads)))


def _cases(quick: bool) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    rng = np.random.default_rng(0)
    cases: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
    for n in (100_000,) if quick else (1_000_000, 10_000_000):
        cases[f"chain, value, n = {n}, f64"] = (_chain, (rng.normal(size=n),))
        cases[f"chain, sum and gradient, n = {n}, f64"] = (ag.value_and_grad(_energy), (rng.normal(size=n),))
    for n in (256,) if quick else (512, 1024):
        for dtype in (np.float32, np.float64):
            cases[f"product, {n} cubed, {np.dtype(dtype).name}"] = (_product, (rng.normal(size=(n, n)).astype(dtype), rng.normal(size=(n, n)).astype(dtype)))
    cases["training step, MLP 784-512-512-10, batch 128, f32"] = (_step, _mlp(128))
    return cases


class _Probe:
    """How much longer a kernel takes when it runs on two threads at once."""

    def __init__(self) -> None:
        self.call = ag.compile(lambda x: ag.exp(ag.sin(x)).sum())
        self.x = np.linspace(0.0, 1.0, 2_000_000)
        self.call(self.x)
        self.call(self.x)

    def _time(self) -> float:
        start = time.perf_counter()
        self.call(self.x)
        return time.perf_counter() - start

    def __call__(self) -> float:
        alone = min(self._time() for _ in range(2))
        other = threading.Thread(target=self.call, args=(self.x,))
        start = time.perf_counter()
        other.start()
        self.call(self.x)
        other.join()
        return (time.perf_counter() - start) / alone


def run(bench: Bench) -> None:
    """Each case on one thread, on one thread again, and on two."""
    probe = _Probe()
    for name, (f, args) in _cases(bench.quick).items():
        one, two = ag.compile(f), ag.compile(f, threads=2)
        for _ in range(3):
            a, b = one(*args), two(*args)
        flat = zip(a if isinstance(a, tuple) else (a,), b if isinstance(b, tuple) else (b,))
        if not all(np.asarray(p).tobytes() == np.asarray(q).tobytes() for p, q in flat):
            raise AssertionError(f"threads, {name}: the results of two threads are not those of one")
        _measure(bench, name, probe, [functools.partial(g, *args) for g in (one, one, two)])


def _measure(bench: Bench, name: str, probe: _Probe, calls: list[Callable[[], Any]]) -> None:
    times: list[list[float]] = []
    probes = []
    for r in range(4 if bench.quick else ROUNDS):
        probes.append(probe())
        row = [0.0] * len(calls)
        for k in range(len(calls)):
            i = (k + r) % len(calls)
            calls[i]()
            start = time.perf_counter()
            calls[i]()
            row[i] = time.perf_counter() - start
        times.append(row)
    free = [t for t, p in zip(times, probes) if p < FREE]
    note = f"{len(free)} of {len(times)} rounds with two free processors; probe {np.percentile(probes, 20):.2f} (20th percentile)"
    best = np.min(times, axis=0)
    note += f"; best of all rounds {1e3 * best[0]:.3g}, {1e3 * best[1]:.3g} and (two) {1e3 * best[2]:.3g} ms"
    if len(free) < 3:
        bench.fact(f"{name}: one thread over two", "not measured", "", note)
        return
    t = np.asarray(free)
    again = np.percentile(t[:, 0] / t[:, 1], (25, 50, 75))
    ratio = np.percentile(t[:, 0] / t[:, 2], (25, 50, 75))
    seconds = np.percentile(t, 20, axis=0)
    bench.fact(f"{name}: one thread over two", float(ratio[1]), "x", f"[{ratio[0]:.2f}, {ratio[2]:.2f}], {1e3 * seconds[0]:.3g} ms and {1e3 * seconds[2]:.3g} ms; "
               f"A/A {again[1]:.2f} [{again[0]:.2f}, {again[2]:.2f}]; {note}")
