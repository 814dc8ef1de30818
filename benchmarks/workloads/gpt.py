"""A GPT block (384 features, 6 heads, 256 tokens, batch 4), float32: forward, and forward with backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import aotgrad as ag

from .. import models, peers
from ..harness import OURS, Bench, Candidate
from ..limits import work

FEATURES, HEADS, TOKENS, BATCH = 384, 6, 256, 4
GOAL, TOLERANCE = 1.3, 5e-5
Parts = list[Any]


def value(fn: Any, params: Parts, x: Any) -> Any:
    """The mean of squares of the block's output."""
    return (models.gpt_block(fn, params, x, HEADS) ** 2).mean()


def run(bench: Bench) -> None:
    """Both."""
    rng = np.random.default_rng(0)
    features, tokens, batch = (48, 16, 2) if bench.quick else (FEATURES, TOKENS, BATCH)
    params = models.gpt_params(rng, features)
    x = rng.standard_normal((batch, tokens, features), dtype=np.float32)
    exact = _exact(params, x)
    rows = bench.case("forward", _forward(bench, params, x), exact and exact[:1] or [_plain(params, x)], TOLERANCE, work=_work(params, x, 1))
    _target(bench, "forward", rows, None)
    own = ag.compile(lambda p, x: ag.value_and_grad(lambda p, x: value(ag.nn.functional, p, x), argnums=(0, 1))(p, x))
    candidates = [Candidate(OURS, own, _flat, args=(params, x)), *bench.peer(peers.TORCH, lambda: _torch(params, x))]
    candidates += bench.peer(peers.COMPILED, lambda: _compiled(params, x))
    candidates += bench.peer(peers.JAX, lambda: _jax(params, x))
    rows = bench.case("forward and backward", candidates, exact[1:] or _flat(own(params, x)), TOLERANCE, work=_work(params, x, 3))
    _target(bench, "forward and backward", rows, GOAL)


def _work(params: Parts, x: Any, times: int) -> Any:
    """Products with weights, and half of all pairs of tokens in two products; twice that again backwards."""
    b, t, d = x.shape
    weights = sum(p.size for p in params)
    return work(times * (2.0 * b * t * weights + 2.0 * b * t * t * d), 4.0 * weights * (1 if times == 1 else 2) + 2 * x.nbytes)


def _target(bench: Bench, what: str, rows: dict[str, dict[str, Any]], goal: float | None) -> None:
    found = [n for n in (peers.TORCH, peers.COMPILED, peers.JAX) if n in rows]
    best = min((rows[n]["ratio"] for n in found), default=math.nan)
    title = f"{what}: fastest of {', '.join(found) or 'no peer'} over aotgrad"
    if goal is None:
        bench.fact(title, best, "x")
    else:
        bench.target(title, best, goal, at_least=True)


def _flat(out: Any) -> list[Any]:
    v, (params, x) = out
    return [np.asarray(a) for a in (v, *params, x)]


def _plain(params: Parts, x: Any) -> Any:
    return np.asarray(models.gpt_block(ag.nn.functional, params, x, HEADS))


def _exact(params: Parts, x: Any) -> Parts:
    """Output, then value and gradients, by torch in float64; nothing where it is missing."""
    try:
        torch = peers.torch()
    except ImportError:
        return []
    wide = [torch.from_numpy(a.astype(np.float64)).requires_grad_() for a in (*params, x)]
    out = models.gpt_block(torch.nn.functional, wide[:-1], wide[-1], HEADS)
    v = (out**2).mean()
    return [t.detach().numpy() for t in (out, v, *torch.autograd.grad(v, wide))]


def _forward(bench: Bench, params: Parts, x: Any) -> list[Candidate]:
    own = ag.compile(lambda p, x: models.gpt_block(ag.nn.functional, p, x, HEADS))

    def eager() -> Candidate:
        torch = peers.torch()
        given, image = peers.tensors(torch, params), torch.from_numpy(x)

        def call() -> Any:
            with torch.inference_mode():
                return models.gpt_block(torch.nn.functional, given, image, HEADS)

        return Candidate(peers.TORCH, call, lambda out: [out.numpy()])

    def jitted() -> Candidate:
        j = peers.Jax()
        return j.candidate(peers.JAX, lambda p, x: models.gpt_block(j, p, x, HEADS), ([j.np.asarray(p) for p in params], j.np.asarray(x)), lambda out: [np.asarray(out)])

    return [Candidate(OURS, own, lambda out: [np.asarray(out)], args=(params, x)), *bench.peer(peers.TORCH, eager), *bench.peer(peers.JAX, jitted)]


def _torch(params: Parts, x: Any) -> Candidate:
    torch = peers.torch()
    leaves = [t.requires_grad_() for t in peers.tensors(torch, [*params, x])]

    def call() -> Any:
        v = value(torch.nn.functional, leaves[:-1], leaves[-1])
        return v, torch.autograd.grad(v, leaves)

    return Candidate(peers.TORCH, call, lambda out: [t.detach().numpy() for t in (out[0], *out[1])])


def _compiled(params: Parts, x: Any) -> Candidate:
    torch = peers.torch()
    f: Callable[..., Any] = torch.compile(lambda leaves: value(torch.nn.functional, leaves[:-1], leaves[-1]), dynamic=False)
    leaves = [t.requires_grad_() for t in peers.tensors(torch, [*params, x])]

    def call() -> Any:
        v = f(leaves)
        return v, torch.autograd.grad(v, leaves)

    return Candidate(peers.COMPILED, call, lambda out: [t.detach().numpy() for t in (out[0], *out[1])])


def _jax(params: Parts, x: Any) -> Candidate:
    j = peers.Jax()
    f = j.jax.value_and_grad(lambda p, x: value(j, p, x), argnums=(0, 1))
    return j.candidate(peers.JAX, f, ([j.np.asarray(p) for p in params], j.np.asarray(x)), _flat)
