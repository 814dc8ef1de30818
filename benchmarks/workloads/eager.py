"""Operations on small tensors outside compiled functions: what recording and walking the tape costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import aotgrad as ag

from ..harness import OURS, Bench, Candidate, optional

N = 10
WARM = 300  # calls before anything is timed: repeated calls are compiled


def run(bench: Bench) -> None:
    """``a + b`` of ten elements with a node recorded; forward plus backward of chains of 20 operations on ten elements."""
    r = np.random.default_rng(0)
    a, b = r.uniform(0.5, 1.0, N).astype(np.float32), r.uniform(0.5, 1.0, N).astype(np.float32)
    ours, theirs = _sides(bench)
    for name, f, want in (("a + b", lambda x, y: x + y, a + b), ("a * b", lambda x, y: x * y, a * b), ("a * 2.0", lambda x, y: x * 2.0, a * 2),
                          ("sin(a)", lambda x, y: x.sin(), np.sin(a)), ("sum(a)", lambda x, y: x.sum(), a.sum())):
        rows = bench.case(f"{name}, ten elements, recorded", [_call(n, m, f, a, b) for n, m in (*ours, *theirs)], [want], 1e-5)
        if name == "a + b":
            _target(bench, "eager a + b of ten elements, recorded: time over torch's", rows, 1.0)
    for name, chain in (("products", _products), ("mixed", _mixed)):
        want = _gradients(ag, chain, a.astype(np.float64), b.astype(np.float64))
        rows = bench.case(f"chain of 20 operations ({name}), forward and backward", [_train(n, m, chain, a, b) for n, m in (*ours, *theirs)], want, 1e-4)
        _target(bench, f"eager chain of 20 ({name}), forward and backward: time over torch's", rows, 1.2)


def _sides(bench: Bench) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    found = bench.peer("torch", lambda: Candidate("torch", lambda: None, args=(optional("torch"),)))
    for c in found:
        c.args[0].set_num_threads(1)
    return [(OURS, ag)], [("torch", c.args[0]) for c in found]


def _target(bench: Bench, what: str, rows: dict[str, Any], limit: float) -> None:
    bench.target(what, rows[OURS]["seconds"] / rows["torch"]["seconds"] if "torch" in rows else None, limit)


def _leaves(m: Any, a: Any, b: Any) -> tuple[Any, Any]:
    return m.from_numpy(a.copy()).requires_grad_(), m.from_numpy(b.copy()).requires_grad_()


def _call(name: str, m: Any, f: Callable[..., Any], a: Any, b: Any) -> Candidate:
    x, y = _leaves(m, a, b)
    for _ in range(WARM):
        f(x, y)
    return Candidate(name, f, lambda out: [out.detach().numpy()], args=(x, y))


def _products(x: Any, y: Any) -> Any:
    for _ in range(20):
        x = x * y
    return x


def _mixed(x: Any, y: Any) -> Any:
    z = x
    for _ in range(5):
        z = (z * y + x).tanh() * 0.5
    return z


def _step(m: Any, chain: Callable[..., Any], x: Any, y: Any) -> Callable[[], Any]:
    seed = m.ones(N, dtype=x.dtype)

    def step() -> Any:
        x.grad = y.grad = None
        chain(x, y).backward(seed)
        return x.grad, y.grad

    return step


def _gradients(m: Any, chain: Callable[..., Any], a: Any, b: Any) -> list[Any]:
    x, y = _leaves(m, a, b)
    return [g.numpy() for g in _step(m, chain, x, y)()]


def _train(name: str, m: Any, chain: Callable[..., Any], a: Any, b: Any) -> Candidate:
    step = _step(m, chain, *_leaves(m, a, b))
    for _ in range(WARM):
        step()
    return Candidate(name, step, lambda out: [g.numpy() for g in out])
