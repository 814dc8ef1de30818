"""The classifier 784-512-512-10, float32, batch 128: a training step (loss, gradients, plain gradient descent), and inference."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import aotgrad as ag
from aotgrad.demo.models import logits

from .. import peers
from ..harness import OURS, Bench, Candidate
from ..limits import work
from . import mlp

SIZES, BATCH = (784, 512, 512, 10), 128
GOAL, TOLERANCE = 1.5, 2e-5
STEP_PEERS = (peers.JAX, peers.TORCH, peers.COMPILED)


def data(batch: int) -> tuple[list[Any], Any, Any]:
    """Weights and biases in turn, images, one-hot labels."""
    rng = np.random.default_rng(0)
    params = [p for n, m in zip(SIZES, SIZES[1:]) for p in (rng.standard_normal((n, m), dtype=np.float32) * np.float32(math.sqrt(2 / n)), np.zeros(m, np.float32))]
    return params, rng.standard_normal((batch, SIZES[0]), dtype=np.float32), np.eye(10, dtype=np.float32)[rng.integers(0, 10, batch)]


def run(bench: Bench) -> None:
    """The step, then inference of one image and of the batch."""
    params, x, y = data(BATCH)
    exact = mlp.flat(mlp.numpy_step([p.astype(np.float64) for p in params], x.astype(np.float64), y.astype(np.float64)))
    args = (params, x, y)
    candidates = [Candidate(OURS, ag.compile(mlp.own_step), mlp.flat, args=args), Candidate("numpy, derived by hand", mlp.numpy_step, mlp.flat, args=args)]
    candidates += bench.peer(peers.JAX, lambda: mlp.jax(params, x, y)) + bench.peer(peers.TORCH, lambda: mlp.torch_eager(params, x, y))
    candidates += bench.peer(peers.COMPILED, lambda: mlp.torch_compile(params, x, y))
    weights = sum(p.size for p in params)
    flops = 2.0 * BATCH * (3 * weights - SIZES[0] * SIZES[1])  # no gradient of the images
    rows = bench.case(f"step, batch {BATCH}", candidates, exact, TOLERANCE, work=work(flops, 8.0 * weights + x.nbytes))
    best = min((rows[n]["ratio"] for n in STEP_PEERS if n in rows), default=math.nan)
    bench.target(f"fastest of {', '.join(n for n in STEP_PEERS if n in rows) or 'no peer'} over aotgrad", best, GOAL, at_least=True)
    for batch in (1, BATCH):
        _inference(bench, params, x[:batch])


def _inference(bench: Bench, params: list[Any], x: Any) -> None:
    exact = [logits([p.astype(np.float64) for p in params], x.astype(np.float64))]
    f = ag.compile(logits)
    candidates = [Candidate(OURS, f, lambda out: [out], args=(params, x)), Candidate("numpy", logits, lambda out: [out], args=(params, x))]
    candidates += bench.peer(peers.ONNX, lambda: peers.onnx_session(_graph(params), x)) + bench.peer(peers.TORCH, lambda: _torch(params, x))
    candidates += bench.peer(peers.JAX, lambda: _jax(params, x))
    weights = sum(p.size for p in params)
    bench.case(f"inference, batch {len(x)}", candidates, exact, TOLERANCE, work=work(2.0 * len(x) * weights, 4.0 * weights + x.nbytes))


def _layers(fn: Any, params: list[Any], x: Any) -> Any:
    """With weights as torch has them: outputs first."""
    for i in range(0, len(params), 2):
        x = fn.linear(x, params[i], params[i + 1])
        x = fn.relu(x) if i + 2 < len(params) else x
    return x


def _turned(params: list[Any]) -> list[Any]:
    return [np.ascontiguousarray(p.T) for p in params]


def _graph(params: list[Any]) -> Any:
    turned = _turned(params)
    return lambda fn, x: _layers(fn, turned, x)


def _torch(params: list[Any], x: Any) -> Candidate:
    torch = peers.torch()
    given, image = peers.tensors(torch, _turned(params)), torch.from_numpy(x)

    def call() -> Any:
        with torch.inference_mode():
            return _layers(torch.nn.functional, given, image)

    return Candidate(peers.TORCH, call, lambda out: [out.numpy()])


def _jax(params: list[Any], x: Any) -> Candidate:
    j = peers.Jax()
    return j.candidate(peers.JAX, lambda p, x: _layers(j, p, x), ([j.np.asarray(p) for p in _turned(params)], j.np.asarray(x)), lambda out: [np.asarray(out)])
