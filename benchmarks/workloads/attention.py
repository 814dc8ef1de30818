"""Scaled-dot-product attention, forward and backward, of a GPT block (batch 4, 6 heads, 64 features) and of longer ones; float32, one thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import aotgrad as ag

from .. import peers
from ..harness import OURS, Bench, Candidate
from ..limits import work

TOLERANCE = 2e-5
TORCH, JAX = peers.TORCH, peers.JAX
CASES = ((4, 6, 256, 64), (1, 6, 1024, 64), (1, 2, 2048, 64))


def by_hand(q: Any, k: Any, v: Any, g: Any, causal: bool) -> list[Any]:
    """Value and gradients."""
    by = q.shape[-1] ** -0.5
    s = q @ k.swapaxes(-1, -2) * by
    s = np.where(np.tri(s.shape[-1], dtype=bool), s, -np.inf) if causal else s
    e = np.exp(s - s.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    dp = g @ v.swapaxes(-1, -2)
    ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * by
    return [p @ v, ds @ k, ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ g]


def ours(causal: bool) -> Any:
    """The function of the library."""

    def both(q: Any, k: Any, v: Any, g: Any) -> list[Any]:
        out, pull = ag.vjp(lambda *a: ag.nn.functional.scaled_dot_product_attention(*a, is_causal=causal), q, k, v)
        return [out, *pull(g)]

    return ag.compile(both)


def torch_eager(arrays: list[Any], causal: bool) -> Candidate:
    """torch's fused kernel."""
    torch = peers.torch()

    def both(*args: Any) -> list[Any]:
        xs = [a.detach().requires_grad_() for a in args[:3]]
        out = torch.nn.functional.scaled_dot_product_attention(*xs, is_causal=causal)
        return [out, *torch.autograd.grad(out, xs, args[3])]

    return Candidate(TORCH, both, lambda out: [v.detach().numpy() for v in out], args=tuple(map(torch.from_numpy, arrays)))


def jax(arrays: list[Any], causal: bool) -> Candidate:
    """jax.nn.dot_product_attention, whose lengths come before heads."""
    j = peers.Jax()
    jx, jnp = j.jax, j.np

    def attend(q: Any, k: Any, v: Any) -> Any:
        out = jx.nn.dot_product_attention(*(jnp.swapaxes(x, 1, 2) for x in (q, k, v)), is_causal=causal)
        return jnp.swapaxes(out, 1, 2)

    def both(q: Any, k: Any, v: Any, g: Any) -> list[Any]:
        out, pull = jx.vjp(attend, q, k, v)
        return [out, *pull(g)]

    f: Callable[..., Any] = jx.jit(both)
    return Candidate(JAX, lambda *a: jx.block_until_ready(f(*a)), args=tuple(map(jnp.asarray, arrays)))


def run(bench: Bench) -> None:
    """All sizes, causal and not."""
    for batch, heads, length, features in ((1, 2, 32, 8),) if bench.quick else CASES:
        for causal in (True, False):
            _case(bench, (batch, heads, length, features), causal)


def _case(bench: Bench, shape: tuple[int, ...], causal: bool) -> None:
    rng = np.random.default_rng(shape[2])
    arrays = [rng.standard_normal(shape, dtype=np.float32) for _ in range(4)]
    title = f"{' x '.join(map(str, shape))}{', causal' if causal else ''}"
    exact = by_hand(*(a.astype(np.float64) for a in arrays), causal)
    candidates = [Candidate(OURS, ours(causal), args=tuple(arrays)), *bench.peer(TORCH, lambda: torch_eager(arrays, causal))]
    candidates += bench.peer(JAX, lambda: jax(arrays, causal))
    batch, heads, length, features = shape
    pairs = batch * heads * length * length * (0.5 if causal else 1.0)
    rows = bench.case(title, candidates, exact, TOLERANCE, work=work(7 * 2.0 * pairs * features, 8.0 * arrays[0].nbytes))  # 2 products forwards, 5 backwards
    bench.target(f"{title}: speed over torch eager", rows[TORCH]["ratio"] if TORCH in rows else None, 1.3, at_least=True)
