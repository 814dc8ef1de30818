"""ResNet-18 at 224 x 224 and a depthwise-separable block, float32, one thread: inference, and whole training steps as one compiled function.

The model is written once, in NCHW, with the functions that torch.nn.functional and aotgrad.nn.functional both have. The step is the loss, its gradients and SGD with
momentum; its batch norms use the batch's statistics and keep no running ones (on either side).
"""

from __future__ import annotations

import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import aotgrad as ag

from ..harness import OURS, Bench, Candidate, difference, optional

FIRST, LAST = "torch NCHW", "torch channels_last"
RATE, MOMENTUM = 0.01, 0.9
STAGES = ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
TOLERANCE, CLOSE = 1e-4, 1e-5  # of torch's two layouts one is up to 5e-5 from its float64
# Gradients behind 20 layers turn on which side of 0 single elements fall: torch's two layouts are up to 1.2e-2 away from its float64. The loss and the last layer's
# gradients do not: they are held to CLOSE. Of the block's input the gradient is compared by channel: 474 of a million elements were on the other side in torch.
DEEP = 2e-2
INFERENCE, STEP, BLOCK, COMPILE = 1.15, 1.3, 1.3, 4.0
Params = list[Any]


# ---- the model, in terms of a module of functions ---------------------------------------------------------------------------------------

def unit(fn: Any, x: Any, p: Any, stats: Any, stride: int, pad: int, groups: int = 1) -> Any:
    """Convolution and batch norm, with the running statistics or the batch's own."""
    y = fn.conv2d(x, next(p), None, stride, pad, 1, groups)
    scale, shift = next(p), next(p)
    if stats is None:
        return fn.batch_norm(y, None, None, scale, shift, training=True)
    return fn.batch_norm(y, next(stats), next(stats), scale, shift)


def basic(fn: Any, x: Any, p: Any, stats: Any, change: bool, stride: int) -> Any:
    """Two 3 x 3 convolutions beside a shortcut, which has a 1 x 1 convolution where sizes change."""
    y = fn.relu(unit(fn, x, p, stats, stride, 1))
    y = unit(fn, y, p, stats, 1, 1)
    return fn.relu(y + (unit(fn, x, p, stats, stride, 0) if change else x))


def resnet(fn: Any, x: Any, params: Sequence[Any], stats: Sequence[Any] | None) -> Any:
    """The logits."""
    p, s = iter(params), None if stats is None else iter(stats)
    x = fn.max_pool2d(fn.relu(unit(fn, x, p, s, 2, 3)), 3, 2, 1)
    for _, _, stride in STAGES:
        x = basic(fn, x, p, s, stride != 1, stride)
        x = basic(fn, x, p, s, False, 1)
    x = fn.adaptive_avg_pool2d(x, 1)
    return fn.linear(x.reshape(x.shape[0], -1), next(p), next(p))


def loss(fn: Any, params: Sequence[Any], x: Any, labels: Any) -> Any:
    """Cross-entropy of the logits in training."""
    return fn.cross_entropy(resnet(fn, x, params, None), labels)


def separable(fn: Any, params: Sequence[Any], x: Any) -> Any:
    """MobileNet's block: widened sixfold by 1 x 1, 3 x 3 depthwise, narrowed by 1 x 1, added to x; the mean of squares."""
    p, wide = iter(params), params[0].shape[0]
    y = fn.relu(unit(fn, x, p, None, 1, 0))
    y = fn.relu(unit(fn, y, p, None, 1, 1, wide))
    return ((unit(fn, y, p, None, 1, 0) + x) ** 2).mean()


# ---- data -------------------------------------------------------------------------------------------------------------------------------

def conv_params(rng: np.random.Generator, filters: int, channels: int, k: int) -> Params:
    """A weight, and the scale and shift of the norm behind it."""
    w = rng.standard_normal((filters, channels, k, k), dtype=np.float32) * np.float32(math.sqrt(2 / (channels * k * k)))
    return [w, rng.uniform(0.5, 1.5, filters).astype(np.float32), rng.normal(0, 0.1, filters).astype(np.float32)]


def initial(rng: np.random.Generator) -> tuple[Params, Params]:
    """Parameters in the order of use, and running statistics."""
    out = conv_params(rng, 64, 3, 7)
    for c, o, stride in STAGES:
        out += conv_params(rng, o, c, 3) + conv_params(rng, o, o, 3) + (conv_params(rng, o, c, 1) if stride != 1 else [])
        out += conv_params(rng, o, o, 3) + conv_params(rng, o, o, 3)
    stats = [s for p in out if p.ndim == 4 for s in (rng.normal(0, 0.1, len(p)).astype(np.float32), rng.uniform(0.5, 1.5, len(p)).astype(np.float32))]
    return [*out, rng.standard_normal((1000, 512), dtype=np.float32) * np.float32(0.04), np.zeros(1000, np.float32)], stats


# ---- in our hands -----------------------------------------------------------------------------------------------------------------------

def own_step(params: Params, velocity: Params, x: Any, labels: Any) -> Any:
    """One step: the loss, new parameters and velocities."""
    value, grads = ag.value_and_grad(lambda p: loss(ag.nn.functional, p, x, labels))(params)
    velocity = [MOMENTUM * v + g for v, g in zip(velocity, grads)]
    return value, [p - RATE * v for p, v in zip(params, velocity)], velocity


def own_block(params: Params, x: Any) -> Any:
    """The block's value, and gradients of parameters and input."""
    return ag.value_and_grad(lambda p, x: separable(ag.nn.functional, p, x), argnums=(0, 1))(params, x)


# ---- in torch's -------------------------------------------------------------------------------------------------------------------------

def torch_data(torch: Any, arrays: Sequence[Any], last: bool) -> list[Any]:
    """Tensors of their own, images and filters in the layout."""
    made = [torch.from_numpy(a.copy()) for a in arrays]
    return [t.to(memory_format=torch.channels_last) if last and t.dim() == 4 else t for t in made]


def torch_step(torch: Any, params: Params, x: Any, labels: Any, last: bool) -> Callable[[], Any]:
    """A step as users write it, with torch's own optimiser (all parameters in a few calls). Gives the loss and velocities."""
    leaves = [p.requires_grad_() for p in torch_data(torch, params, last)]
    (image,), target = torch_data(torch, [x], last), torch.from_numpy(labels)
    optimiser = torch.optim.SGD(leaves, lr=RATE, momentum=MOMENTUM, foreach=True)

    def one() -> Any:
        optimiser.zero_grad(set_to_none=True)
        value = loss(torch.nn.functional, leaves, image, target)
        value.backward()
        optimiser.step()
        return value, [p.grad for p in leaves]

    return one


def torch_block(torch: Any, params: Params, x: Any, last: bool) -> Callable[[], Any]:
    """Value and gradients of the block."""
    leaves, (image,) = [p.requires_grad_() for p in torch_data(torch, params, last)], torch_data(torch, [x], last)
    image.requires_grad_()

    def one() -> Any:
        value = separable(torch.nn.functional, leaves, image)
        return value, torch.autograd.grad(value, [*leaves, image])

    return one


# ---- cases ------------------------------------------------------------------------------------------------------------------------------

SHOWN = (0, 1, 21, -2)  # parameters whose gradients are compared: the first layer's, a norm's, the middle, the last


def run(bench: Bench) -> None:
    """Inference, training step and block."""
    rng = np.random.default_rng(0)
    params, stats = initial(rng)
    for batch in (1,) if bench.quick else (1, 4):
        x = rng.standard_normal((batch, 3, 224, 224), dtype=np.float32)
        labels = rng.integers(0, 1000, batch)
        inference(bench, params, stats, x)
        training(bench, params, x, labels)
    for batch, channels, size in ((1, 24, 56),) if bench.quick else ((1, 24, 56), (16, 24, 56), (1, 96, 14), (16, 96, 14)):
        block(bench, rng, batch, channels, size)


def _timed(bench: Bench, what: str, call: Callable[[], Any]) -> Any:
    """The first call: compiling, and what memory that needs."""
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    out = call()
    bench.fact(f"{what}: first call", time.perf_counter() - start, "s")
    bench.fact(f"{what}: growth of peak memory by the first call", (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, "MiB")
    return out


def _against(bench: Bench, title: str, rows: dict[str, dict[str, Any]], limit: float) -> None:
    best = min((rows[n]["seconds"] for n in (FIRST, LAST) if n in rows), default=math.nan)
    bench.target(f"{title}: faster of torch's layouts over aotgrad", best / rows[OURS]["seconds"], limit, at_least=True)


def _layouts(bench: Bench, make: Callable[[Any, bool], Candidate]) -> list[Candidate]:
    def peer(last: bool) -> Candidate:
        torch = optional("torch")
        torch.set_num_threads(1)
        return make(torch, last)

    return [c for last in (False, True) for c in bench.peer(LAST if last else FIRST, lambda last=last: peer(last))]  # type: ignore[misc]


def inference(bench: Bench, params: Params, stats: Params, x: Any) -> None:
    """Logits with running statistics."""
    title = f"ResNet-18, inference, batch {len(x)}"
    f = ag.compile(lambda x, params, stats: resnet(ag.nn.functional, x, params, stats))
    reference = _timed(bench, title, lambda: f(x, params, stats))

    def theirs(torch: Any, last: bool) -> Candidate:
        p, s, (image,) = torch_data(torch, params, last), torch_data(torch, stats, last), torch_data(torch, [x], last)

        def call() -> Any:
            with torch.inference_mode():
                return resnet(torch.nn.functional, image, p, s)

        return Candidate(LAST if last else FIRST, call, lambda out: [out.numpy()])

    peers = _layouts(bench, theirs)
    exact = peers[0].values(peers[0].call()) if peers else [np.asarray(reference)]
    rows = bench.case(title, [Candidate(OURS, f, lambda out: [np.asarray(out)], args=(x, params, stats)), *peers], exact, TOLERANCE)
    _against(bench, title, rows, INFERENCE)


def training(bench: Bench, params: Params, x: Any, labels: Any) -> None:
    """The step. Values compared are those of the first step: velocities start at zero, so they are the gradients."""
    title = f"ResNet-18, training step, batch {len(x)}"
    f = ag.compile(own_step)
    state = [[p.copy() for p in params], [np.zeros_like(p) for p in params]]

    def ours() -> Any:
        value, *state[:] = f(*state, x, labels)
        return value, state[1]

    first = _timed(bench, title, ours)
    got = _shown(first)
    exact = got

    def theirs(torch: Any, last: bool) -> Candidate:
        nonlocal exact
        if exact is got:
            exact = _shown(torch_step(torch, [p.astype(np.float64) for p in params], x.astype(np.float64), labels, False)())
        call = torch_step(torch, params, x, labels, last)
        values = _shown(call())
        return Candidate(LAST if last else FIRST, call, lambda _: values)

    peers = _layouts(bench, theirs)
    off = max(difference(got[i], exact[i]) for i in (0, -1))
    if off > CLOSE:
        raise AssertionError(f"{title}: loss and last gradient differ by {off:.2e}")
    rows = bench.case(title, [Candidate(OURS, ours, lambda _: got), *peers], exact, DEEP)
    _against(bench, title, rows, STEP)
    bench.target(f"{title}: cold compile", _compile_seconds(len(x)), COMPILE, unit="s")


def _compile_seconds(batch: int) -> float:
    """CPU seconds of the first call with an empty cache, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "AOTGRAD_CACHE_DIR": folder}
        done = subprocess.run([sys.executable, "-c", _COLD.format(batch=batch)], env=env, check=True, capture_output=True, text=True)
    return float(done.stdout)


_COLD = """
import time
import numpy as np
import aotgrad as ag
from benchmarks.workloads import resnet
rng = np.random.default_rng(0)
params, _ = resnet.initial(rng)
x = rng.standard_normal(({batch}, 3, 224, 224), dtype=np.float32)
args = params, [np.zeros_like(p) for p in params], x, rng.integers(0, 1000, {batch})
start = time.process_time()
ag.compile(resnet.own_step)(*args)
print(time.process_time() - start)
"""


def _shown(out: Any) -> list[Any]:
    value, grads = out
    return [np.array(v.detach().numpy() if hasattr(v, "detach") else v) for v in (value, *(grads[i] for i in SHOWN))]


def block(bench: Bench, rng: np.random.Generator, batch: int, channels: int, size: int) -> None:
    """The depthwise-separable block forward and backward."""
    title, wide = f"separable block, {channels} channels @ {size}, batch {batch}", 6 * channels
    params = [*conv_params(rng, wide, channels, 1), *conv_params(rng, wide, 1, 3), *conv_params(rng, channels, wide, 1)]
    x = rng.standard_normal((batch, channels, size, size), dtype=np.float32)
    f = ag.compile(own_block)
    reference = _flat(_timed(bench, title, lambda: f(params, x)))
    exact = reference

    def theirs(torch: Any, last: bool) -> Candidate:
        nonlocal exact
        if exact is reference:
            exact = _tensors(torch_block(torch, [p.astype(np.float64) for p in params], x.astype(np.float64), False)())
        return Candidate(LAST if last else FIRST, torch_block(torch, params, x, last), _tensors)

    peers = _layouts(bench, theirs)
    rows = bench.case(title, [Candidate(OURS, f, _flat, args=(params, x)), *peers], exact, DEEP)
    _against(bench, title, rows, BLOCK)


def _tensors(out: Any) -> list[Any]:
    value, (*params, x) = out
    return [*(v.detach().numpy() for v in (value, *params)), x.detach().numpy().sum((0, 2, 3))]


def _flat(out: Any) -> list[Any]:
    value, (params, x) = out
    return [*map(np.asarray, (value, *params)), np.asarray(x).sum((0, 2, 3))]


