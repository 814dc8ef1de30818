"""ResNet-18 at 224 x 224, float32, one thread, batch 1 and 16: inference, and whole training steps (forward, backward, SGD with momentum) as one compiled function.

The model is written once, in NCHW, with the functions that torch.nn.functional and aotgrad.nn.functional both have. Batch norms in training use the batch's statistics
and keep no running ones (on either side). Beside the time: the cold compile of the step, and the peak memory of a warm step, each in a process of its own (``peak``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import aotgrad as ag

from .. import models, peak, peers, training
from ..flops import Counter, nbytes
from ..harness import OURS, Bench, Candidate, difference
from ..limits import work

TOLERANCE, CLOSE = 1e-4, 1e-5  # of torch's two layouts one is up to 5e-5 from its float64
# Gradients behind 20 layers turn on which side of 0 single elements fall: torch's two layouts are up to 1.2e-2 away from its float64. The loss and the last layer's
# gradients do not: they are held to CLOSE.
DEEP = 2e-2
INFERENCE, STEP, COMPILE = 1.15, 1.3, 4.0
SHOWN = (0, 1, 21, -2)  # parameters whose gradients are compared: the first layer's, a norm's, the middle, the last
Params = list[Any]


def run(bench: Bench) -> None:
    """Inference and training step; then compile time and memory."""
    rng = np.random.default_rng(0)
    params, stats = models.initial(rng)
    for batch in (1,) if bench.quick else (1, 16):
        x = rng.standard_normal((batch, 3, 224, 224), dtype=np.float32)
        labels = rng.integers(0, 1000, batch)
        inference(bench, params, stats, x)
        steps(bench, params, x, labels)
        if not bench.quick:
            _cold(bench, batch)


def _work(x: Any, params: Params, steps: bool) -> Any:
    counter = Counter()
    models.resnet(counter, counter.image(*x.shape), params, None)
    return work(counter.training() if steps else counter.flops, x.nbytes + nbytes(params) * (5 if steps else 1))


# ---- inference --------------------------------------------------------------------------------------------------------------------------

def inference(bench: Bench, params: Params, stats: Params, x: Any) -> None:
    """Logits with running statistics. Weights are tensors that the function finds, as those of a module: here as in onnxruntime and in frozen torch, what depends on them
    alone is computed once. As arguments they are packed at each call: a row of its own."""
    title = f"inference, batch {len(x)}"
    weights, running = ([ag.tensor(a) for a in arrays] for arrays in (params, stats))
    f, image = ag.compile(lambda x: models.resnet(ag.nn.functional, x, weights, running)), ag.tensor(x)
    anew = ag.compile(lambda x, params, stats: models.resnet(ag.nn.functional, x, params, stats))
    candidates = [*peers.layouts(bench, lambda torch, last: torch_inference(torch, params, stats, x, last))]
    exact = candidates[0].values(candidates[0].call()) if candidates else [f(image).numpy()]
    if not bench.quick:
        candidates.append(Candidate(f"{OURS}, weights as arguments", anew, lambda out: [np.asarray(out)], args=(x, params, stats)))
    candidates += bench.peer(peers.ONNX, lambda: peers.onnx_session(lambda fn, v: models.resnet(fn, v, params, stats), x))
    if not bench.quick:
        candidates += bench.peer(f"{peers.COMPILED}, freezing", lambda: _frozen(params, stats, x))
        candidates += bench.peer(peers.JAX, lambda: _jax_inference(params, stats, x))
    rows = bench.case(title, [Candidate(OURS, f, lambda out: [out.numpy()], args=(image,)), *candidates], exact, TOLERANCE, work=_work(x, params, False))
    bench.target(f"{title}: speed over onnxruntime", rows[peers.ONNX]["ratio"] if peers.ONNX in rows else None, INFERENCE, at_least=True)
    _fastest(bench, title, rows, INFERENCE)


def _fastest(bench: Bench, title: str, rows: dict[str, dict[str, Any]], goal: float) -> None:
    others = {n: r["ratio"] for n, r in rows.items() if not n.startswith(OURS)}
    best = min(others, key=others.__getitem__, default=None)
    bench.target(f"{title}: speed over the fastest peer ({best})", None if best is None else others[best], goal, at_least=True)


def torch_inference(torch: Any, params: Params, stats: Params, x: Any, last: bool) -> Candidate:
    """torch's calls in one layout."""
    p, s, (image,) = peers.tensors(torch, params, last), peers.tensors(torch, stats, last), peers.tensors(torch, [x], last)

    def call() -> Any:
        with torch.inference_mode():
            return models.resnet(torch.nn.functional, image, p, s)

    return Candidate(peers.LAST if last else peers.FIRST, call, lambda out: [out.numpy()])


def _frozen(params: Params, stats: Params, x: Any) -> Candidate:
    """torch.compile with weights as constants, which it may fold and repack."""
    torch = peers.torch()
    torch._inductor.config.freezing = True

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.p = torch.nn.ParameterList([torch.nn.Parameter(t, requires_grad=False) for t in peers.tensors(torch, params, True)])
            self.s = torch.nn.ParameterList([torch.nn.Parameter(t, requires_grad=False) for t in peers.tensors(torch, stats)])

        def forward(self, image: Any) -> Any:
            return models.resnet(torch.nn.functional, image, list(self.p), list(self.s))

    compiled, (image,) = torch.compile(Model().eval(), dynamic=False), peers.tensors(torch, [x], True)

    def call() -> Any:
        with torch.no_grad():
            return compiled(image)

    return Candidate(f"{peers.COMPILED}, freezing", call, lambda out: [out.numpy()])


def _jax_inference(params: Params, stats: Params, x: Any) -> Candidate:
    j = peers.Jax(last=True)
    given = [[j.np.asarray(a) for a in arrays] for arrays in (params, stats)]
    return j.candidate(f"{peers.JAX} channels_last", lambda x, p, s: models.resnet(j, x, p, s), (j.image(x), *given), lambda out: [np.asarray(out)])


# ---- training ---------------------------------------------------------------------------------------------------------------------------

def steps(bench: Bench, params: Params, x: Any, labels: Any) -> None:
    """The step. Values compared are those of the first step: velocities start at zero, so they are the gradients."""
    title = f"training step, batch {len(x)}"
    ours = training.own_state(params, x, labels)
    got = _shown(ours())
    exact, made = _exact(params, x, labels), []
    for name, make in _peers(bench.quick, params, x, labels).items():
        made += bench.peer(name, lambda name=name, make=make: _first(name, make()))  # type: ignore[misc]
    if exact:
        off = max(difference(got[i], exact[i]) for i in (0, -1))
        if off > CLOSE:
            raise AssertionError(f"{title}: loss and last gradient differ by {off:.2e}")
    rows = bench.case(title, [Candidate(OURS, ours, lambda _: got), *made], exact or got, DEEP, work=_work(x, params, True))
    _fastest(bench, title, rows, STEP)


def _peers(quick: bool, params: Params, x: Any, labels: Any) -> dict[str, Callable[[], Callable[[], Any]]]:
    def torch(last: bool, compiled: bool = False) -> Callable[[], Callable[[], Any]]:
        return lambda: training.torch_step(peers.torch(), params, x, labels, last, compiled)

    found = {peers.FIRST: torch(False), peers.LAST: torch(True)}
    if not quick:
        found[f"{peers.COMPILED} channels_last"] = torch(True, True)
        found[f"{peers.JAX} channels_last"] = lambda: training.jax_step(params, x, labels, True)
    return found


def _first(name: str, call: Callable[[], Any]) -> Candidate:
    values = _shown(call())
    return Candidate(name, call, lambda _: values)


def _exact(params: Params, x: Any, labels: Any) -> Params:
    """By torch in float64; nothing where it is missing."""
    try:
        torch = peers.torch()
    except ImportError:
        return []
    return _shown(training.torch_step(torch, [p.astype(np.float64) for p in params], x.astype(np.float64), labels, False)())


def _shown(out: Any) -> Params:
    value, grads = out
    return [np.array(v.detach().numpy() if hasattr(v, "detach") else v) for v in (value, *(grads[i] for i in SHOWN))]


# ---- compile time and memory ------------------------------------------------------------------------------------------------------------

def _cold(bench: Bench, batch: int) -> None:
    """The step in processes of their own: CPU seconds of the first call with empty caches, and peak memory of later ones."""
    found: dict[str, dict[str, float]] = {}
    for who in peak.WHO:
        try:
            found[who] = peak.measure(who, batch)
        except (RuntimeError, OSError) as error:
            bench.skip(f"{who}, batch {batch}, compile time and memory", str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__)
    title = f"training step, batch {batch}"
    for who, figures in found.items():
        bench.fact(f"{title}: first call, {who}", figures["first"], "s", "CPU time, empty caches, in a new process")
        bench.fact(f"{title}: peak memory of a warm step, {who}", figures["peak"] / 2**20, "MiB", "growth of the process over its imports, with parameters and images")
    own, jax = found.get(OURS), found.get(peers.JAX)
    bench.target(f"{title}: cold compile", own["first"] if own else None, COMPILE, unit="s")
    bench.target(f"{title}: cold compile over jax.jit's", own["first"] / jax["first"] if own and jax else None, 1.0)
    least = min((f["peak"] for w, f in found.items() if w != OURS), default=math.nan)
    bench.target(f"{title}: peak memory over the least of the peers'", own["peak"] / least if own else None, 1.0)
