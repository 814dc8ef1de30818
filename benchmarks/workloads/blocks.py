"""A MobileNet-style depthwise-separable block and a U-Net at 128 x 128, float32, one thread: value and gradients, and the U-Net's inference."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import aotgrad as ag

from .. import models, peers
from ..flops import Counter, nbytes
from ..harness import OURS, Bench, Candidate
from ..limits import work

GOAL, TOLERANCE = 1.3, 1e-4
# Behind a batch norm and relu a few of a million elements of the input's gradient fall on the other side of 0 in float32: it is compared by channel.
DEEP = 2e-2
Value = Callable[[Any, Any, Any], Any]  # (functions, parameters, image) -> a number


def unet(fn: Any, params: Any, x: Any) -> Any:
    """The output."""
    return models.unet(fn, _join(fn), params, x)


def unet_value(fn: Any, params: Any, x: Any) -> Any:
    """The mean of squares of the output."""
    return (unet(fn, params, x) ** 2).mean()


def _join(fn: Any) -> Callable[[Any, Any], Any]:
    if fn is ag.nn.functional:
        return lambda a, b: ag.cat((a, b), 1)
    if hasattr(fn, "cat"):
        return fn.cat  # type: ignore[no-any-return]
    torch = peers.torch()
    return lambda a, b: torch.cat((a, b), 1)


def run(bench: Bench) -> None:
    """Both models in several sizes."""
    rng = np.random.default_rng(0)
    for batch, channels, size in ((1, 24, 28),) if bench.quick else ((1, 24, 56), (16, 24, 56), (1, 96, 14), (16, 96, 14)):
        x = rng.standard_normal((batch, channels, size, size), dtype=np.float32)
        _gradients(bench, f"separable block, {channels} channels @ {size}, batch {batch}", models.separable, models.separable_params(rng, channels), x, DEEP)
    params = models.unet_params(rng)
    for batch in (1,) if bench.quick else (1, 4):
        size = 32 if bench.quick else 128
        x = rng.standard_normal((batch, 3, size, size), dtype=np.float32)
        _gradients(bench, f"U-Net @ {size}, batch {batch}", unet_value, params, x, DEEP)
        _inference(bench, f"U-Net @ {size}, inference, batch {batch}", params, x)


def _count(value: Value, params: Any, x: Any, training: bool) -> Any:
    counter = Counter()
    value(counter, params, counter.image(*x.shape))
    flops = 3 * counter.flops if training else counter.flops
    return work(flops, (nbytes(params) + x.nbytes) * (2 if training else 1))


def _gradients(bench: Bench, title: str, value: Value, params: Any, x: Any, tolerance: float) -> None:
    f = ag.compile(lambda params, x: ag.value_and_grad(lambda p, x: value(ag.nn.functional, p, x), argnums=(0, 1))(params, x))
    candidates = peers.layouts(bench, lambda torch, last: _torch(torch, value, params, x, last))
    exact = _exact(value, params, x) if candidates else _flat(f(params, x))
    if not bench.quick:
        candidates += bench.peer(peers.COMPILED, lambda: _torch(peers.torch(), value, params, x, True, compiled=True)) if "U-Net" in title and len(x) == 1 else []
        candidates += [c for last in (False, True) for c in bench.peer(peers.JAX, lambda last=last: _jax(value, params, x, last))]  # type: ignore[misc]
    rows = bench.case(title, [Candidate(OURS, f, _flat, args=(params, x)), *candidates], exact, tolerance, work=_count(value, params, x, True))
    best = min((r["ratio"] for n, r in rows.items() if not n.startswith(OURS)), default=math.nan)
    bench.target(f"{title}: speed over the fastest peer", best, GOAL, at_least=True)


def _flat(out: Any) -> list[Any]:
    v, (params, x) = out
    return [*map(np.asarray, (v, *params)), np.asarray(x).sum((0, 2, 3))]


def _tensors(out: Any) -> list[Any]:
    v, (*params, x) = out
    return [*(t.detach().numpy() for t in (v, *params)), x.detach().numpy().sum((0, 2, 3))]


def _exact(value: Value, params: Any, x: Any) -> list[Any]:
    c = _torch(peers.torch(), value, [p.astype(np.float64) for p in params], x.astype(np.float64), False)
    return list(c.values(c.call()))


def _torch(torch: Any, value: Value, params: Any, x: Any, last: bool, compiled: bool = False) -> Candidate:
    leaves = [t.requires_grad_() for t in peers.tensors(torch, [*params, x], last)]

    def value_of(leaves: Any) -> Any:
        return value(torch.nn.functional, leaves[:-1], leaves[-1])

    f = torch.compile(value_of, dynamic=False) if compiled else value_of

    def call() -> Any:
        v = f(leaves)
        return v, torch.autograd.grad(v, leaves)

    return Candidate(f"{peers.COMPILED} channels_last" if compiled else peers.LAST if last else peers.FIRST, call, _tensors)


def _jax(value: Value, params: Any, x: Any, last: bool) -> Candidate:
    j = peers.Jax(last)
    f = j.jax.value_and_grad(lambda p, x: value(j, p, x), argnums=(0, 1))

    def values(out: Any) -> list[Any]:
        v, (given, gx) = out
        return [*map(np.asarray, (v, *given)), np.asarray(gx).sum((0, *j.spatial))]

    return j.candidate(f"{peers.JAX}{' channels_last' if last else ' NCHW'}", f, ([j.np.asarray(p) for p in params], j.image(x)), values)


def _inference(bench: Bench, title: str, params: Any, x: Any) -> None:
    f = ag.compile(lambda params, x: unet(ag.nn.functional, params, x))

    def theirs(torch: Any, last: bool) -> Candidate:
        p, (image,) = peers.tensors(torch, params, last), peers.tensors(torch, [x], last)

        def call() -> Any:
            with torch.inference_mode():
                return unet(torch.nn.functional, p, image)

        return Candidate(peers.LAST if last else peers.FIRST, call, lambda out: [out.numpy()])

    candidates = [*peers.layouts(bench, theirs), *bench.peer(peers.ONNX, lambda: peers.onnx_session(lambda fn, v: unet(fn, params, v), x))]
    exact = candidates[0].values(candidates[0].call()) if candidates else [np.asarray(f(params, x))]
    rows = bench.case(title, [Candidate(OURS, f, lambda out: [np.asarray(out)], args=(params, x)), *candidates], exact, TOLERANCE, work=_count(unet, params, x, False))
    best = min((r["ratio"] for n, r in rows.items() if not n.startswith(OURS)), default=math.nan)
    bench.fact(f"{title}: speed over the fastest peer", best, "x")
