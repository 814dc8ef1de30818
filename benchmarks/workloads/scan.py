"""An LSTM written as a scan over its steps (200 steps, 256 inputs, 256 hidden), float32, batch 1 and 16: value and gradients of all hidden states' mean square."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import aotgrad as ag

from .. import peers
from ..harness import OURS, Bench, Candidate
from ..limits import work

STEPS, HIDDEN = 200, 256
GOAL, TOLERANCE = 1.3, 5e-5
FUSED, LOOP = "torch nn.LSTM", "torch eager, a loop"


def cell(m: Any, sigmoid: Any, h: Any, c: Any, z: Any) -> tuple[Any, Any]:
    """One step from the sums of its four gates, in torch's order: input, forget, cell, output."""
    n = h.shape[-1]
    i, f, g, o = (z[..., k * n:(k + 1) * n] for k in range(4))
    c = sigmoid(f) * c + sigmoid(i) * m.tanh(g)
    return sigmoid(o) * m.tanh(c), c


def own_value(wx: Any, wh: Any, b: Any, xs: Any) -> Any:
    """With aotgrad's scan. Weights as torch has them: [4 hidden, inputs]."""
    zeros = ag.zeros((xs.shape[1], wh.shape[1]), dtype="float32")

    def step(carry: Any, zx: Any) -> Any:
        h, c = cell(ag, ag.sigmoid, *carry, zx + carry[0] @ wh.T)
        return (h, c), h

    _, hs = ag.scan(step, (zeros, zeros), xs @ wx.T + b)
    return (hs * hs).mean()


def run(bench: Bench) -> None:
    """Batch 1 and 16."""
    rng = np.random.default_rng(0)
    steps, hidden = (10, 32) if bench.quick else (STEPS, HIDDEN)
    bound = hidden**-0.5
    wx, wh, b = (rng.uniform(-bound, bound, shape).astype(np.float32) for shape in ((4 * hidden, hidden), (4 * hidden, hidden), (4 * hidden,)))
    for batch in (1, 16):
        xs = rng.standard_normal((steps, batch, hidden), dtype=np.float32)
        _case(bench, (wx, wh, b, xs))


def _case(bench: Bench, args: tuple[Any, ...]) -> None:
    steps, batch, hidden = args[3].shape
    own = ag.compile(ag.value_and_grad(own_value, argnums=(0, 1, 2, 3)))
    wide = _fused(*(a.astype(np.float64) for a in args), note="") if _has_torch() else None
    exact = wide.values(wide.call()) if wide else _flat(own(*args))
    candidates = [Candidate(OURS, own, _flat, args=args), *bench.peer(FUSED, lambda: _fused(*args, note="one op, written in C++"))]
    candidates += bench.peer(LOOP, lambda: _loop(*args))
    candidates += bench.peer(peers.JAX, lambda: _jax(*args))
    flops = 3 * 2.0 * steps * batch * 2 * 4 * hidden * hidden
    rows = bench.case(f"batch {batch}, {steps} steps of {hidden}", candidates, exact, TOLERANCE, work=work(flops, 2.0 * sum(a.nbytes for a in args)))
    found = [n for n in (FUSED, LOOP, peers.JAX) if n in rows]
    best = min((rows[n]["ratio"] for n in found), default=math.nan)
    bench.target(f"batch {batch}: fastest of {', '.join(found) or 'no peer'} over aotgrad", best, GOAL, at_least=True)


def _flat(out: Any) -> list[Any]:
    return [np.asarray(a) for a in (out[0], *out[1])]


def _has_torch() -> bool:
    try:
        peers.torch()
    except ImportError:
        return False
    return True


def _torch_values(out: Any) -> list[Any]:
    return [t.detach().numpy() for t in (out[0], *out[1])]


def _fused(wx: Any, wh: Any, b: Any, xs: Any, note: str) -> Candidate:
    """nn.LSTM, whose second bias is zero and has no gradient here."""
    torch = peers.torch()
    leaves = [torch.from_numpy(a.copy()).requires_grad_() for a in (wx, wh, b, xs)]
    none = torch.zeros_like(leaves[2])
    h0 = torch.zeros((1, xs.shape[1], wh.shape[1]), dtype=none.dtype)

    def call() -> Any:
        hs = torch._VF.lstm(leaves[3], (h0, h0), (leaves[0], leaves[1], leaves[2], none), True, 1, 0.0, True, False, False)[0]
        v = (hs * hs).mean()
        return v, torch.autograd.grad(v, leaves)

    return Candidate(FUSED, call, _torch_values, note)


def _loop(wx: Any, wh: Any, b: Any, xs: Any) -> Candidate:
    torch = peers.torch()
    leaves = [torch.from_numpy(a.copy()).requires_grad_() for a in (wx, wh, b, xs)]

    def call() -> Any:
        wx, wh, b, xs = leaves
        h = c = torch.zeros((xs.shape[1], wh.shape[1]))
        hs = []
        for zx in xs @ wx.T + b:
            h, c = cell(torch, torch.sigmoid, h, c, zx + h @ wh.T)
            hs.append(h)
        v = (torch.stack(hs) ** 2).mean()
        return v, torch.autograd.grad(v, leaves)

    return Candidate(LOOP, call, _torch_values)


def _jax(wx: Any, wh: Any, b: Any, xs: Any) -> Candidate:
    j = peers.Jax()

    def value(wx: Any, wh: Any, b: Any, xs: Any) -> Any:
        zeros = j.np.zeros((xs.shape[1], wh.shape[1]), xs.dtype)

        def step(carry: Any, zx: Any) -> Any:
            h, c = cell(j.np, j.jax.nn.sigmoid, *carry, zx + carry[0] @ wh.T)
            return (h, c), h

        hs = j.lax.scan(step, (zeros, zeros), xs @ wx.T + b)[1]
        return (hs * hs).mean()

    return j.candidate(peers.JAX, j.jax.value_and_grad(value, argnums=(0, 1, 2, 3)), [j.np.asarray(a) for a in (wx, wh, b, xs)], _flat)
