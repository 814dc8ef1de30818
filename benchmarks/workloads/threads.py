"""What a second thread is worth: wall-clock time on one thread over that on two; then two threads beside two threads of the peers, each in a process of its own.

Before every round a probe runs one single-threaded kernel alone and then on two threads at the same time: 1 means that two processors are free, 2 that there is one.
Only rounds whose probe is below 1.25 count; their number stands beside each figure, and so does the ratio of one thread to itself (A/A) over the same rounds.
Peers are judged (the targets of one thread) only where at least a third of the rounds count.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import aotgrad as ag

from .. import models, peers
from ..harness import OURS, Bench, difference
from ..remote import Remote
from . import mlp, mlp784, resnet

__all__ = ["run"]

ROUNDS, PEER_ROUNDS, FREE = 30, 21, 1.25
TOLERANCE = 1e-4
Call = Callable[[], Any]


def _chain(x: Any) -> Any:
    return ag.tanh(x) * ag.exp(-x * x) + ag.log1p(x * x)


def _energy(x: Any) -> Any:
    return _chain(x).sum()


def _product(a: Any, b: Any) -> Any:
    return a @ b


def _cases(quick: bool) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    rng = np.random.default_rng(0)
    cases: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
    for n in (100_000,) if quick else (1_000_000, 10_000_000):
        cases[f"chain, value, n = {n}, f64"] = (_chain, (rng.normal(size=n),))
        cases[f"chain, sum and gradient, n = {n}, f64"] = (ag.value_and_grad(_energy), (rng.normal(size=n),))
    for n in (256,) if quick else (512, 1024):
        for dtype in (np.float32, np.float64):
            cases[f"product, {n} cubed, {np.dtype(dtype).name}"] = (_product, (rng.normal(size=(n, n)).astype(dtype), rng.normal(size=(n, n)).astype(dtype)))
    cases["training step, MLP 784-512-512-10, batch 128, f32"] = (mlp.own_step, mlp784.data(mlp784.BATCH))
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
        if not all(np.asarray(p).tobytes() == np.asarray(q).tobytes() for p, q in zip(_leaves(a), _leaves(b))):
            raise AssertionError(f"threads, {name}: the results of two threads are not those of one")
        _measure(bench, name, probe, [functools.partial(g, *args) for g in (one, one, two)])
    for name in list(PEERS)[:1] if bench.quick else PEERS:
        _beside(bench, name, probe)


def _leaves(x: Any) -> list[Any]:
    return [leaf for part in x for leaf in _leaves(part)] if isinstance(x, (tuple, list)) else [x]


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


# ---- beside the peers -------------------------------------------------------------------------------------------------------------------

def build(name: str, who: str) -> tuple[Call, Callable[[Any], list[Any]]]:
    """In the peer's own process: a call on two threads, and its values."""
    return PEERS[name][1][who]()


def _square() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((1024, 1024), dtype=np.float32), rng.standard_normal((1024, 1024), dtype=np.float32)


def _one(out: Any) -> list[Any]:
    return [np.asarray(out)]


def _torch(make: Callable[[Any], tuple[Call, Callable[[Any], list[Any]]]]) -> Callable[[], tuple[Call, Callable[[Any], list[Any]]]]:
    def build() -> tuple[Call, Callable[[Any], list[Any]]]:
        torch = peers.torch()
        made = make(torch)
        torch.set_num_threads(2)
        return made

    return build


def _candidate(c: Any) -> tuple[Call, Callable[[Any], list[Any]]]:
    return functools.partial(c.call, *c.args), lambda out: [np.asarray(v) for v in c.values(out)]


def _network() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    params, stats = models.initial(rng)
    return params, stats, rng.standard_normal((1, 3, 224, 224), dtype=np.float32)


def _onnx() -> tuple[Call, Callable[[Any], list[Any]]]:
    params, stats, x = _network()
    return _candidate(peers.onnx_session(lambda fn, v: models.resnet(fn, v, params, stats), x, 2))


def _infer() -> Any:
    params, stats, x = _network()
    f = ag.compile(lambda x, params, stats: models.resnet(ag.nn.functional, x, params, stats), threads=2)
    return functools.partial(f, x, params, stats), _one


def _own_mlp() -> Any:
    return functools.partial(ag.compile(mlp.own_step, threads=2), *mlp784.data(mlp784.BATCH)), lambda out: [np.asarray(v) for v in mlp.flat(out)]


# name: (speed to reach over the fastest, who: how its call is built)
PEERS: dict[str, tuple[float, dict[str, Callable[[], tuple[Call, Callable[[Any], list[Any]]]]]]] = {
    "product, 1024 cubed, f32": (1.0, {
        OURS: lambda: (functools.partial(ag.compile(_product, threads=2), *_square()), _one),
        "numpy (OpenBLAS)": lambda: (functools.partial(np.matmul, *_square()), _one),
        "torch (MKL)": _torch(lambda torch: (functools.partial(torch.matmul, *map(torch.from_numpy, _square())), _one))}),
    "training step, MLP 784-512-512-10, batch 128": (1.5, {
        OURS: _own_mlp, peers.TORCH: _torch(lambda torch: _candidate(mlp.torch_eager(*mlp784.data(mlp784.BATCH)))),
        peers.JAX: lambda: _candidate(mlp.jax(*mlp784.data(mlp784.BATCH)))}),
    "inference, ResNet-18, batch 1": (1.15, {
        OURS: _infer, peers.LAST: _torch(lambda torch: _candidate(resnet.torch_inference(torch, *_network(), True))), peers.ONNX: _onnx}),
}


def _beside(bench: Bench, name: str, probe: _Probe) -> None:
    goal, builders = PEERS[name]
    running: dict[str, Remote] = {}
    try:
        for who in builders:
            try:
                running[who] = Remote("benchmarks.workloads.threads", name, who, threads=2)
            except RuntimeError as error:
                bench.skip(f"{who}, two threads, {name}", str(error))
        exact = running[OURS].values
        for who in [w for w, r in running.items() if max(difference(a, b) for a, b in zip(r.values, exact)) > TOLERANCE]:
            bench.skip(f"{who}, two threads, {name}", "its values differ")
            running.pop(who).close()
        times, free = [], []
        for r in range(4 if bench.quick else PEER_ROUNDS):
            alone = probe() < FREE
            row = {who: running[who]() for who in sorted(running, key=lambda w: (list(running).index(w) + r) % len(running))}
            times.append(row)
            free += [row] * alone
        _judge(bench, name, goal, times, free)
    finally:
        for one in running.values():
            one.close()


def _judge(bench: Bench, name: str, goal: float, times: list[dict[str, float]], free: list[dict[str, float]]) -> None:
    used = free if len(free) >= max(3, len(times) // 3) else times
    what = "rounds with two free processors" if used is free else "rounds, too few of them with two free processors to judge"
    ratios = {who: float(np.median([row[who] / row[OURS] for row in used])) for who in used[0]}
    for who, ratio in ratios.items():
        seconds = float(np.median([row[who] for row in used]))
        bench.fact(f"two threads, {name}: {who}", 1e3 * seconds, "ms", f"{ratio:.2f} times aotgrad's, wall-clock, median of {len(used)} {what}")
    best = min((r for who, r in ratios.items() if who != OURS), default=None)
    bench.target(f"two threads, {name}: speed over the fastest peer", best if used is free else None, goal, at_least=True)
