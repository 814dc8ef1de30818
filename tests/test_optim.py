"""Optimisers: torch's numbers step by step (where torch is installed; else the formulas of the papers), eager and as one compiled call."""

from __future__ import annotations

import copy
import importlib.util
import re
from typing import Any

import numpy as np
import pytest
import sweep

import aotgrad as ag

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.1}), ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}), ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ("SGD", {"lr": 0.01, "momentum": 0.9, "dampening": 0.3, "maximize": True}), ("Adam", {"lr": 0.01}), ("Adam", {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.1}), ("RMSprop", {"lr": 0.01}), ("RMSprop", {"lr": 0.01, "centered": True, "momentum": 0.5, "weight_decay": 0.1}),
    ("Adagrad", {"lr": 0.05}), ("Adagrad", {"lr": 0.05, "lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5, "maximize": True}),
]


def steps(m: Any, name: str, options: dict[str, Any], compiled: bool = False, count: int = 20) -> tuple[list[Any], Any]:
    """Losses, parameters and gradients of some training steps of a small network, the learning rate halved now and then; and the step."""
    rng = np.random.default_rng(0)
    net = m.nn.Sequential(m.nn.Linear(5, 8), m.nn.Tanh(), m.nn.Linear(8, 3)).double()
    with m.no_grad():
        for p in net.parameters():
            p.copy_(m.tensor(rng.normal(size=tuple(p.shape)) * 0.4))
    opt = getattr(m.optim, name)(net.parameters(), **options)
    x, y = m.tensor(rng.normal(size=(16, 5))), m.tensor(rng.normal(size=(16, 3)))

    def step(x: Any, y: Any) -> Any:
        opt.zero_grad()
        loss = m.nn.functional.mse_loss(net(x), y)
        loss.backward()
        opt.step()
        return loss

    f = ag.compile(step) if compiled else step
    out = []
    for k in range(count):
        if k % 7 == 3:
            for group in opt.param_groups:
                group["lr"] *= 0.5
        loss = f(x, y)
        out += [loss.detach().numpy().copy(), *(v.detach().numpy().copy() for p in net.parameters() for v in (p, p.grad))]
    return out, f


def assert_equal(a: list[Any], b: list[Any]) -> None:
    for x, y in zip(a, b):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", sweep.part(OPTIONS), ids=lambda c: f"{c[0]}-{list(c[1])}")
def test_steps(case: tuple[str, dict[str, Any]]) -> None:
    name, options = case
    eager, _ = steps(ag, name, options)
    compiled, f = steps(ag, name, options, compiled=True)
    assert_equal(eager, compiled)
    assert f.cache_info().variants <= 2  # the first step, which begins what is kept, and all others
    if importlib.util.find_spec("torch") is not None:
        assert_equal(eager, steps(pytest.importorskip("torch"), name, options)[0])


def test_formulas() -> None:
    g = np.array([0.5, -2.0])
    w = ag.tensor([1.0, 2.0], dtype=ag.float64, requires_grad=True)
    opt = ag.optim.SGD([w], lr=0.1, momentum=0.9)
    v, x = np.zeros(2), np.array([1.0, 2.0])
    for _ in range(3):
        w.grad = ag.tensor(g)
        opt.step()
        v = 0.9 * v + g
        x = x - 0.1 * v
    np.testing.assert_allclose(w.detach().numpy(), x, rtol=1e-14)
    w = ag.tensor([1.0, 2.0], dtype=ag.float64, requires_grad=True)
    adam = ag.optim.Adam([w], lr=0.1)
    mean, square, x = np.zeros(2), np.zeros(2), np.array([1.0, 2.0])
    for t in range(1, 4):
        w.grad = ag.tensor(g)
        adam.step()
        mean, square = 0.9 * mean + 0.1 * g, 0.999 * square + 0.001 * g * g
        x = x - 0.1 * (mean / (1 - 0.9 ** t)) / (np.sqrt(square / (1 - 0.999 ** t)) + 1e-8)
    np.testing.assert_allclose(w.detach().numpy(), x, rtol=1e-12)


def test_the_state_goes_in_and_out() -> None:
    w = ag.tensor([1.0, 2.0], requires_grad=True)
    opt = ag.optim.Adam([{"params": [w], "lr": 0.5}], lr=0.1)
    (w * w).sum().backward()
    opt.step()
    kept = copy.deepcopy(opt.state_dict())
    assert kept["param_groups"][0]["lr"] == 0.5 and kept["param_groups"][0]["params"] == [0] and set(kept["state"][0]) == {"step", "exp_avg", "exp_avg_sq"}
    v = w.detach().clone().requires_grad_()
    other = ag.optim.Adam([v], lr=0.1)
    other.load_state_dict(kept)
    for p, o in ((w, opt), (v, other)):
        p.grad = ag.tensor([1.0, -1.0])
        o.step()
    assert v.tolist() == w.tolist() and "lr: 0.5" in repr(other)


def test_closures_and_groups_and_zeros() -> None:
    w, b = ag.tensor([1.0], requires_grad=True), ag.tensor([1.0], requires_grad=True)
    opt = ag.optim.SGD([{"params": w}, {"params": [b], "lr": 1.0}], lr=0.1)

    def closure() -> Any:
        opt.zero_grad(set_to_none=False)
        loss = (w + b).sum()
        loss.backward()
        return loss

    assert opt.step(closure).item() == 2.0
    np.testing.assert_allclose([w.item(), b.item()], [0.9, 0.0], rtol=1e-6)
    opt.zero_grad(set_to_none=False)
    assert w.grad.tolist() == [0.0]
    opt.zero_grad()
    assert w.grad is None


@pytest.mark.parametrize(("options", "what"), [({"lr": -1.0}, "learning rate: -1.0"), ({"momentum": -1.0}, "momentum value"), ({"nesterov": True}, "Nesterov")])
def test_wrong_options(options: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        ag.optim.SGD([ag.ones(1, requires_grad=True)], **{"lr": 0.1, **options})


def test_wrong_parameters() -> None:
    w = ag.ones(1, requires_grad=True)
    with pytest.raises(ValueError, match="empty parameter list"):
        ag.optim.SGD([], lr=0.1)
    with pytest.raises(TypeError, match="iterable of Tensors"):
        ag.optim.SGD(w, lr=0.1)
    with pytest.raises(ValueError, match="non-leaf"):
        ag.optim.SGD([w * 2], lr=0.1)
    with pytest.raises(ValueError, match="more than one"):
        ag.optim.SGD([{"params": [w]}, {"params": [w]}], lr=0.1)


def test_a_group_that_is_added_is_seen() -> None:
    w, b = ag.tensor([1.0], requires_grad=True), ag.tensor([1.0], requires_grad=True)
    opt = ag.optim.SGD([w], lr=0.1)

    def f(x: Any) -> Any:
        opt.zero_grad()
        b.grad = None
        loss = ((w + b) * x).sum()
        loss.backward()
        opt.step()
        return loss

    g = ag.compile(f)
    g(ag.ones(1))
    assert b.tolist() == [1.0]
    opt.add_param_group({"params": [b], "lr": 0.5})
    g(ag.ones(1))
    assert b.tolist() == [0.5]


@pytest.mark.parametrize(("kind", "options", "reads", "writes"), [
    ("SGD", {"lr": 0.1}, 2, 1), ("SGD", {"lr": 0.1, "momentum": 0.9}, 3, 2), ("Adam", {"lr": 0.1}, 4, 3), ("AdamW", {"lr": 0.1}, 4, 3)])
def test_a_compiled_step_reads_and_writes_each_array_once(kind: str, options: dict[str, Any], reads: int, writes: int) -> None:
    sizes = (300, 1000)
    params = [ag.tensor(np.ones(n), requires_grad=True) for n in sizes]
    opt = getattr(ag.optim, kind)(params, **options)
    for p in params:
        p.grad = ag.tensor(np.ones(p.shape))

    @ag.compile
    def step() -> None:
        opt.step()

    for _ in range(3):
        step()
    found = re.findall(r"kernel \d+: .*\n +1 loop nest.*\n.*\n +reads ([\d.]+) KiB, writes ([\d.]+) KiB", step.explain())
    assert [(float(a), float(b)) for a, b in found] == [(pytest.approx(reads * n / 128, abs=0.1), pytest.approx(writes * n / 128, abs=0.1)) for n in sizes]


@pytest.mark.parametrize("forget", [lambda opt, kept: opt.state.clear(), lambda opt, kept: opt.load_state_dict(kept)], ids=["cleared", "loaded"])
def test_what_is_kept_for_parameters_may_be_replaced_between_compiled_steps(forget: Any) -> None:
    def run(wrap: Any) -> list[float]:
        w = ag.nn.Parameter(ag.ones(2))
        opt = ag.optim.SGD([w], lr=0.1, momentum=0.9)

        def step() -> Any:
            opt.zero_grad()
            (w * w).sum().backward()
            opt.step()

        f, seen = wrap(step), []
        for k in range(8):
            f()
            if k == 0:
                kept = opt.state_dict()
            if k in (3, 5):
                forget(opt, kept)
            seen += w.tolist()
        return seen

    np.testing.assert_allclose(run(ag.compile), run(lambda step: step), rtol=1e-6)
