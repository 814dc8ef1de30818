"""Eager operations of training code that do not map elements: what a call costs beside its numbers, recorded and with a backward pass; steps of optimisers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import aotgrad as ag

from ..harness import OURS, Bench, Candidate, optional

WARM = 300  # calls before anything is timed: repeated calls are compiled
ROWS, WIDTH = 32, 64
Make = Callable[[Any, Any, list[Any]], Callable[[], Any]]  # of a library, its functional module and leaves: one call


def run(bench: Bench) -> None:
    """Products, losses, norms, look-ups and views of a batch of 32 rows of 64; what PyTorch's own eager mode takes for the same."""
    r = np.random.default_rng(0)
    x, w = (r.standard_normal(s).astype(np.float32) for s in ((ROWS, WIDTH), (WIDTH, WIDTH)))
    b, small = (r.standard_normal(s).astype(np.float32) for s in ((WIDTH,), (16, 8)))
    classes, places = r.integers(0, WIDTH, ROWS), r.integers(0, WIDTH, (ROWS, 8))
    cases: list[tuple[str, list[Any], Make]] = [
        ("matmul", [x, w], lambda m, f, t: lambda: t[0] @ t[1]),
        ("linear", [x, w, b], lambda m, f, t: lambda: f.linear(*t)),
        ("cross_entropy", [x], lambda m, f, t: _with(m, [classes], lambda c: f.cross_entropy(t[0], c))),
        ("batch_norm", [x, b, b], lambda m, f, t: _with(m, [b * 0, b * 0 + 1], lambda mean, var: f.batch_norm(t[0], mean, var, t[1], t[2], True))),
        ("layer_norm", [x, b, b], lambda m, f, t: lambda: f.layer_norm(t[0], (WIDTH,), t[1], t[2])),
        ("gather", [x], lambda m, f, t: _with(m, [places], lambda i: m.gather(t[0], 1, i))),
        ("embedding", [w], lambda m, f, t: _with(m, [places], lambda i: f.embedding(i, t[0]))),
        ("view", [x], lambda m, f, t: lambda: t[0].view(-1)),
        ("stack", [b, b, b, b], lambda m, f, t: lambda: m.stack(t)),
        ("unbind", [small], lambda m, f, t: lambda: m.unbind(t[0])[3]),
    ]
    sides = [(OURS, ag, ag.nn.functional)]
    for c in bench.peer("torch", lambda: Candidate("torch", lambda: None, args=(optional("torch"),))):
        c.args[0].set_num_threads(1)
        sides.append(("torch", c.args[0], c.args[0].nn.functional))
    for name, leaves, make in cases:
        for title, wrap in ((f"{name}, recorded", _forward), (f"{name}, forward and backward", _both)):
            candidates = [wrap(side, m, make(m, f, ts), ts) for side, m, f in sides for ts in [_leaves(m, leaves)]]
            want = candidates[-1].values(candidates[-1].call())
            bench.case(title, candidates, want, 1e-4)
    for name, options in (("SGD", {"lr": 0.0}), ("SGD", {"lr": 0.0, "momentum": 0.9}), ("AdamW", {"lr": 0.0})):
        candidates = [_step(side, m, name, options, [w, b, w[:10], b[:10]]) for side, m, _ in sides]
        bench.case(f"{name} of four parameters{', momentum' * ('momentum' in options)}", candidates, [w], 1e-6)


def _with(m: Any, given: list[Any], f: Callable[..., Any]) -> Callable[[], Any]:
    ts = [m.from_numpy(a.copy()) for a in given]
    return lambda: f(*ts)


def _leaves(m: Any, arrays: list[Any]) -> list[Any]:
    return [m.from_numpy(a.copy()).requires_grad_() for a in arrays]


def _warm(call: Callable[[], Any]) -> Callable[[], Any]:
    for _ in range(WARM):
        call()
    return call


def _forward(name: str, m: Any, call: Callable[[], Any], leaves: list[Any]) -> Candidate:
    return Candidate(name, _warm(call), lambda out: [out.detach().numpy()])


def _both(name: str, m: Any, call: Callable[[], Any], leaves: list[Any]) -> Candidate:
    def step() -> Any:
        for t in leaves:
            t.grad = None
        call().sum().backward()
        return leaves[-1].grad  # that of the input of a norm is nothing but rounding, where gradients are all alike

    return Candidate(name, _warm(step), lambda out: [out.numpy()])


def _step(name: str, m: Any, optimiser: str, options: dict[str, Any], arrays: list[Any]) -> Candidate:
    """A step that leaves the parameters as they are: its learning rate is 0, which no implementation looks at."""
    params = _leaves(m, arrays)
    for p in params:
        p.grad = m.ones(*p.shape)
    step = getattr(m.optim, optimiser)(params, **options).step
    return Candidate(name, _warm(step), lambda out: [params[0].detach().numpy()])
