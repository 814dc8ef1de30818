"""Value and gradient of sum(tanh(x) * exp(-x*x) + log1p(x*x)): one fused loop with SIMD functions, 10**3 to 10**7 elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import aotgrad as ag

from ..harness import OURS, Bench, Candidate, optional

SIZES = (10**3, 10**4, 10**5, 10**6, 10**7)
TOLERANCES = {"float64": 1e-13, "float32": 2e-5}


def function(x: Any) -> Any:
    """The function, in plain NumPy."""
    return np.sum(np.tanh(x) * np.exp(-x * x) + np.log1p(x * x))


def by_hand(x: Any) -> tuple[Any, Any]:
    """Value and gradient, derived by hand."""
    t, s = np.tanh(x), x * x
    e = np.exp(-s)
    return np.sum(t * e + np.log1p(s)), (1 - t * t) * e - 2 * x * t * e + 2 * x / (1 + s)


def run(bench: Bench) -> None:
    """All sizes in both precisions."""
    both = ag.compile(ag.value_and_grad(function))
    for dtype in ("float64", "float32"):
        makers = [(name, bench_peer(bench, name, make, dtype)) for name, make in PEERS.items()]
        for n in SIZES[:3] if bench.quick else SIZES:
            x = np.random.default_rng(n).standard_normal(n).astype(dtype)
            exact = by_hand(x.astype(np.float64))
            candidates = [Candidate(OURS, both, args=(x,)), Candidate("numpy, derived by hand", by_hand, args=(x,))]
            for name, make in makers:
                if make is not None:
                    candidates += bench.peer(name, lambda make=make, x=x: make(x))
            rows = bench.case(f"{dtype}, n = {n:.0e}", candidates, exact, TOLERANCES[dtype], per=n)
            peers = {k: r["seconds"] for k, r in rows.items() if k in PEERS}
            best = min(peers.values(), default=math.nan)
            bench.target(f"fastest of {', '.join(peers) or 'no peer'} over aotgrad, {dtype}, n = {n:.0e}", best / rows[OURS]["seconds"], 2.0, at_least=True)


def bench_peer(bench: Bench, name: str, make: Callable[[str], Callable[[Any], Candidate]], dtype: str) -> Callable[[Any], Candidate] | None:
    """A peer made ready for one dtype, or None where it is missing."""
    try:
        return make(dtype)
    except ImportError as error:
        bench.skip(name, str(error))
        return None


def numba(dtype: str) -> Callable[[Any], Candidate]:
    """A loop with the gradient derived by hand."""
    nb = optional("numba")
    one, two = (np.float32(1), np.float32(2)) if dtype == "float32" else (1.0, 2.0)

    @nb.njit
    def f(x):  # type: ignore[no-untyped-def]
        g = np.empty_like(x)
        value = 0.0
        for i in range(x.shape[0]):
            v = x[i]
            t, s = np.tanh(v), v * v
            e = np.exp(-s)
            value += t * e + np.log1p(s)
            g[i] = (one - t * t) * e - two * v * t * e + two * v / (one + s)
        return value, g

    return lambda x: Candidate("numba", f, args=(x,))


def jax(dtype: str) -> Callable[[Any], Candidate]:
    """jax arrays in and out, both already on the device."""
    jx, jnp = optional("jax"), optional("jax.numpy")
    jx.config.update("jax_enable_x64", True)
    f = jx.jit(jx.value_and_grad(lambda x: jnp.sum(jnp.tanh(x) * jnp.exp(-x * x) + jnp.log1p(x * x))))
    return lambda x: Candidate("jax.jit", lambda v: jx.block_until_ready(f(v)), args=(jnp.asarray(x),))


def torch_compile(dtype: str) -> Callable[[Any], Candidate]:
    """The compiled gradient of torch.func, tensors in and out."""
    torch = optional("torch")
    torch.set_num_threads(1)
    f = torch.compile(torch.func.grad_and_value(lambda x: (torch.tanh(x) * torch.exp(-x * x) + torch.log1p(x * x)).sum()), dynamic=False)
    return lambda x: Candidate("torch.compile", f, lambda out: (out[1], out[0]), args=(torch.from_numpy(x),))


PEERS: dict[str, Callable[[str], Callable[[Any], Candidate]]] = {"numba": numba, "jax.jit": jax, "torch.compile": torch_compile}
