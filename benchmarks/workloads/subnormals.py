"""What subnormal numbers cost: each program on numbers of the normal range and on ones whose results are subnormal, by default and with ``flush_subnormals=True``.

The time on normal numbers is the measure: a ratio of 1 means that subnormals cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import aotgrad as ag

from .. import peers
from ..harness import OURS, Bench, Candidate
from . import scan

TINY = float(np.finfo(np.float32).tiny)
GOAL, TOLERANCE = 1.1, 2e-4
SMALL, FLUSHED = "aotgrad, subnormal results", "aotgrad, subnormal results, flush_subnormals"
Args = tuple[Any, ...]


def product(a: Any, b: Any) -> Any:
    """Elementwise."""
    return a * b


def matmul(a: Any, b: Any) -> Any:
    """A product of matrices."""
    return a @ b


def last_state(wx: Any, wh: Any, b: Any, xs: Any, seed: Any) -> Any:
    """An LSTM's loss on its last state, whose gradients vanish over the steps; ``seed`` scales them."""
    zeros = ag.zeros((xs.shape[1], wh.shape[1]), dtype=xs.dtype)

    def step(carry: Any, zx: Any) -> Any:
        h, c = scan.cell(ag, ag.sigmoid, *carry, zx + carry[0] @ wh.T)
        return (h, c), None

    (h, _), _ = ag.scan(step, (zeros, zeros), xs @ wx.T + b)
    return (h * seed).sum()


def run(bench: Bench) -> None:
    """An elementwise product, a product of matrices, an LSTM's gradient."""
    rng = np.random.default_rng(0)
    n, m = (1000, 64) if bench.quick else (100_000, 256)
    a, b = rng.uniform(0.5, 1.0, (2, n)).astype(np.float32)
    _case(bench, f"product of {n} elements", product, (a, b), (a * np.float32(1e-20), b * np.float32(1e-20)), torch_product, 1)
    a, b = rng.uniform(0.5, 1.0, (2, m, m)).astype(np.float32)
    _case(bench, f"product of matrices, {m} cubed", matmul, (a, b), (a * np.float32(1e-21), b * np.float32(1e-21)), torch_matmul, m)
    steps, hidden, batch = (20, 32, 4) if bench.quick else (scan.STEPS, scan.HIDDEN, 16)
    # Weights this small make gradients shrink by a few per step: from 1e-35 they leave the normal range within the first ten of 200.
    wx, wh = (rng.uniform(-0.02, 0.02, (4 * hidden, hidden)).astype(np.float32) for _ in range(2))
    given = (wx, wh, np.zeros(4 * hidden, np.float32), rng.standard_normal((steps, batch, hidden), dtype=np.float32))
    gradient = ag.value_and_grad(last_state, argnums=(0, 1, 2))
    _case(bench, f"gradient of an LSTM, {steps} steps of {hidden}, batch {batch}", lambda *args: gradient(*args)[1], (*given, np.float32(1e20)),
          (*given, np.float32(1e-35)), torch_lstm, steps * batch * hidden)


def _case(bench: Bench, title: str, f: Callable[..., Any], normal: Args, small: Args, theirs: Callable[[], Callable[..., Any]],
          terms: int) -> None:
    """``terms``: how many numbers a result adds up, each of which may be flushed."""
    own = ag.compile(f)
    exact = [[np.asarray(v, np.float64) for v in _leaves(_reference(f, args))] for args in (normal, small)]

    def right(which: int) -> Callable[[Any], list[float]]:
        """1 where values are right; of subnormal ones a flushed zero is right too."""
        def check(out: Any) -> list[float]:
            slack = terms * TINY if which else 0.0
            return [float(all(np.max(np.abs(np.asarray(v, np.float64) - e)) <= TOLERANCE * np.max(np.abs(e)) + slack for v, e in zip(_leaves(out), exact[which])))]

        return check

    candidates = [Candidate(OURS, own, right(0), args=normal), Candidate(SMALL, own, right(1), args=small)]
    candidates += bench.peer(FLUSHED, lambda: Candidate(FLUSHED, ag.compile(f, flush_subnormals=True), right(1), args=small))
    for name, args, which in ((peers.TORCH, normal, 0), (f"{peers.TORCH}, subnormal results", small, 1)):
        candidates += bench.peer(name, lambda name=name, args=args, which=which: Candidate(name, theirs(), right(which), args=args))  # type: ignore[misc]
    rows = bench.case(title, candidates, [1.0], 0.0)
    if peers.TORCH in rows and f"{peers.TORCH}, subnormal results" in rows:
        bench.fact(f"{title}: cost of subnormals in torch", rows[f"{peers.TORCH}, subnormal results"]["seconds"] / rows[peers.TORCH]["seconds"], "x")
    bench.fact(f"{title}: cost of subnormals", rows[SMALL]["ratio"], "x")
    bench.target(f"{title}: with flush_subnormals, time over that of the normal range", rows[FLUSHED]["ratio"] if FLUSHED in rows else None, GOAL)


def _reference(f: Callable[..., Any], args: Args) -> Any:
    """In float64, where nothing here is subnormal."""
    wide = [np.asarray(x, np.float64) for x in args]
    return f(*wide)


def _leaves(out: Any) -> list[Any]:
    return [v.detach().numpy() if hasattr(v, "detach") else v for v in (out if isinstance(out, (tuple, list)) else (out,))]


def torch_product() -> Callable[..., Any]:
    """torch's."""
    torch = peers.torch()
    return lambda a, b: torch.from_numpy(a) * torch.from_numpy(b)


def torch_matmul() -> Callable[..., Any]:
    """torch's."""
    torch = peers.torch()
    return lambda a, b: torch.from_numpy(a) @ torch.from_numpy(b)


def torch_lstm() -> Callable[..., Any]:
    """nn.LSTM's own op."""
    torch = peers.torch()

    def gradient(wx: Any, wh: Any, b: Any, xs: Any, seed: Any) -> Any:
        leaves = [torch.from_numpy(a).requires_grad_() for a in (wx.copy(), wh.copy(), b.copy())]
        none, h0 = torch.zeros_like(leaves[2]), torch.zeros((1, xs.shape[1], wh.shape[1]))
        hs = torch._VF.lstm(torch.from_numpy(xs), (h0, h0), (leaves[0], leaves[1], leaves[2], none), True, 1, 0.0, True, False, False)[0]
        return torch.autograd.grad((hs[-1] * float(seed)).sum(), leaves)

    return gradient
