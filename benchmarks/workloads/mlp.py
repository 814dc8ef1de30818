"""One training step of the digits classifier (64-128-64-10, float32, batch 128): loss, gradient and plain gradient descent."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import aotgrad as ag
from aotgrad.demo.data import digits, one_hot
from aotgrad.demo.models import hand_written, initial, loss

from ..harness import OURS, Bench, Candidate, optional

BATCH, RATE = 128, np.float32(0.1)
TOLERANCE = 2e-5


def numpy_step(params: Any, x: Any, y: Any) -> Any:
    """The step by hand, in NumPy."""
    value, grads = hand_written(params, x, y)
    return value, [p - RATE * g for p, g in zip(params, grads)]


def own_step(params: Any, x: Any, y: Any) -> Any:
    """The step, to be compiled."""
    value, grads = ag.value_and_grad(loss)(params, x, y)
    return value, [p - RATE * g for p, g in zip(params, grads)]


step = ag.compile(own_step)


def flat(out: Any) -> list[Any]:
    """Loss, then the new weights."""
    return [out[0], *out[1]]


def run(bench: Bench) -> None:
    """The step against jax and torch."""
    images, labels = digits()
    x, y, params = images[:BATCH], one_hot(labels[:BATCH]), initial()
    exact = flat(numpy_step([p.astype(np.float64) for p in params], x.astype(np.float64), y.astype(np.float64)))
    candidates = [Candidate(OURS, step, flat, args=(params, x, y)), Candidate("numpy, derived by hand", numpy_step, flat, args=(params, x, y))]
    candidates += bench.peer("jax.jit", lambda: jax(params, x, y)) + bench.peer("torch eager", lambda: torch_eager(params, x, y))
    candidates += bench.peer("torch.compile", lambda: torch_compile(params, x, y))
    rows = bench.case("step, batch 128", candidates, exact, TOLERANCE)
    best = min((rows[name]["seconds"] for name in ("jax.jit", "torch eager") if name in rows), default=math.nan)
    bench.target("faster of jax.jit and torch eager over aotgrad", best / rows[OURS]["seconds"], 1.3, at_least=True)


def jax(params: Any, x: Any, y: Any) -> Candidate:
    """jax arrays in and out."""
    jx, jnp = optional("jax"), optional("jax.numpy")

    def value(p: Any, x: Any, y: Any) -> Any:
        h = jnp.maximum(x @ p[0] + p[1], 0)
        h = jnp.maximum(h @ p[2] + p[3], 0)
        z = h @ p[4] + p[5]
        return jnp.mean(jx.nn.logsumexp(z, axis=1) - jnp.sum(z * y, axis=1))

    def one(p: Any, x: Any, y: Any) -> Any:
        v, g = jx.value_and_grad(value)(p, x, y)
        return v, [a - RATE * b for a, b in zip(p, g)]

    f = jx.jit(one)
    put = [jnp.asarray(p) for p in params]
    return Candidate("jax.jit", lambda p, x, y: jx.block_until_ready(f(p, x, y)), flat, args=(put, jnp.asarray(x), jnp.asarray(y)))


def _torch_loss(torch: Any) -> Any:
    def value(p: Any, x: Any, y: Any) -> Any:
        h = torch.relu(torch.addmm(p[1], x, p[0]))
        h = torch.relu(torch.addmm(p[3], h, p[2]))
        return torch.nn.functional.cross_entropy(torch.addmm(p[5], h, p[4]), y)

    return value


def torch_eager(params: Any, x: Any, y: Any) -> Candidate:
    """autograd.grad and an update of fresh weights, fused calls where torch has them."""
    torch = optional("torch")
    torch.set_num_threads(1)
    value = _torch_loss(torch)
    leaves = [torch.from_numpy(p.copy()).requires_grad_() for p in params]
    rate = float(RATE)

    def one(p: Any, x: Any, y: Any) -> Any:
        v = value(p, x, y)
        grads = torch.autograd.grad(v, p)
        with torch.no_grad():
            return v, torch._foreach_add(p, grads, alpha=-rate)

    return Candidate("torch eager", one, lambda out: [t.detach().numpy() for t in flat(out)], args=(leaves, torch.from_numpy(x), torch.from_numpy(y)))


def torch_compile(params: Any, x: Any, y: Any) -> Candidate:
    """The same step through torch.func and torch.compile."""
    torch = optional("torch")
    torch.set_num_threads(1)
    derive, rate = torch.func.grad_and_value(_torch_loss(torch)), float(RATE)

    def one(p: Any, x: Any, y: Any) -> Any:
        grads, v = derive(p, x, y)
        return v, [a - rate * g for a, g in zip(p, grads)]

    given = [torch.from_numpy(p.copy()) for p in params]
    return Candidate("torch.compile", torch.compile(one, dynamic=False), flat, args=(given, torch.from_numpy(x), torch.from_numpy(y)))
