"""Schedules of the learning rate and LBFGS: torch's numbers where it is installed, else their formulas."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import numpy as np
import pytest
from autograd_pair import modules, same

import aotgrad as ag

MEASURES = [1.0, 0.9, 0.95, 0.96, 0.97, 0.98, 0.5, 0.6, 0.6, 0.6]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "lambda": ("LambdaLR", {"lr_lambda": lambda e: 0.9 ** e}), "multiplicative": ("MultiplicativeLR", {"lr_lambda": [lambda e: 0.95]}),
    "step": ("StepLR", {"step_size": 3}), "milestones": ("MultiStepLR", {"milestones": [2, 5, 5]}), "exponential": ("ExponentialLR", {"gamma": 0.9}),
    "constant": ("ConstantLR", {}), "linear": ("LinearLR", {"end_factor": 0.5}), "polynomial": ("PolynomialLR", {"power": 2.0}),
    "cosine": ("CosineAnnealingLR", {"T_max": 7, "eta_min": 0.01}), "restarts": ("CosineAnnealingWarmRestarts", {"T_0": 3, "T_mult": 2}),
    "one cycle": ("OneCycleLR", {"max_lr": 1.0, "total_steps": 26}),
    "three phases": ("OneCycleLR", {"max_lr": [1.0], "epochs": 5, "steps_per_epoch": 6, "three_phase": True, "anneal_strategy": "linear"}),
    "cyclic": ("CyclicLR", {"base_lr": 0.1, "max_lr": 0.7, "step_size_up": 4}),
    "cyclic, halved": ("CyclicLR", {"base_lr": [0.1], "max_lr": 0.7, "step_size_up": 3, "step_size_down": 5, "mode": "triangular2", "cycle_momentum": False}),
    "cyclic, powers": ("CyclicLR", {"base_lr": 0.1, "max_lr": 0.7, "step_size_up": 3, "mode": "exp_range", "gamma": 0.9, "base_momentum": 0.5}),
    "cyclic, own": ("CyclicLR", {"base_lr": 0.1, "max_lr": 0.7, "step_size_up": 3, "scale_fn": lambda k: 1 / (k + 1), "scale_mode": "iterations"}),
    "plateau": ("ReduceLROnPlateau", {"patience": 1, "cooldown": 1, "threshold": 0.01}),
    "plateau of more": ("ReduceLROnPlateau", {"mode": "max", "factor": 0.5, "patience": 1, "threshold_mode": "abs", "min_lr": 0.2}),
}


def begin(m: Any, name: str, options: dict[str, Any]) -> tuple[Any, Any, Any]:
    w = m.ones(1, requires_grad=True)
    opt = m.optim.SGD([w], lr=0.5, momentum=0.9)
    return w, opt, getattr(m.optim.lr_scheduler, name)(opt, **options)


def rates(m: Any, case: str, resume: bool = False) -> list[Any]:
    name, options = CASES[case]
    w, opt, schedule = begin(m, name, options)
    out = [opt.param_groups[0]["lr"]]
    for k in range(25):
        w.grad = m.ones(1)
        opt.step()
        schedule.step(*([MEASURES[k % 10]] if "Plateau" in name else []))
        out += [opt.param_groups[0]["lr"], opt.param_groups[0]["momentum"], *schedule.get_last_lr()]
        if resume and k == 11:
            kept = copy.deepcopy((opt.state_dict(), schedule.state_dict()))
            w, opt, schedule = begin(m, name, options)
            opt.load_state_dict(kept[0])
            schedule.load_state_dict(kept[1])
    return out


@pytest.mark.parametrize("case", CASES)
def test_schedules_beside_torch(case: str) -> None:
    found = rates(ag, case)
    assert found == rates(ag, case, resume=True) and len(set(found)) > 2
    for m in modules()[1:]:
        assert found == rates(m, case)


def chained(m: Any) -> Any:
    s = m.optim.lr_scheduler
    opt = m.optim.Adam([m.ones(1, requires_grad=True)], lr=0.5)
    parts = [s.ConstantLR(opt, 0.1, 2), s.ExponentialLR(opt, 0.9), s.CyclicLR(opt, 0.1, 0.5, 2)]
    schedule, out = s.ChainedScheduler(parts, optimizer=opt), []
    for k in range(6):
        opt.step()
        schedule.step()
        out += [*schedule.get_last_lr(), opt.param_groups[0]["betas"][0]]
        if k == 2:
            kept = copy.deepcopy(schedule.state_dict())
            schedule.load_state_dict(kept)
    return out, len(kept["_schedulers"])


def test_chained() -> None:
    assert same(chained)[0] != "error"


@pytest.mark.parametrize("make", [lambda m, o, s: s.ChainedScheduler([]), lambda m, o, s: s.CyclicLR(o, 0.1, 1.0, mode="nosuch"),
                                  lambda m, o, s: s.CyclicLR(m.optim.SGD([m.ones(1)], lr=0.1), [0.1, 0.2], 1.0),
                                  lambda m, o, s: s.CyclicLR(m.optim.Adagrad([m.ones(1)]), 0.1, 1.0),
                                  lambda m, o, s: s.ChainedScheduler([s.StepLR(o, 2), s.StepLR(m.optim.SGD([m.ones(1)], lr=0.1), 2)]),
                                  lambda m, o, s: s.ChainedScheduler([s.ReduceLROnPlateau(o)])])
def test_cycles_and_chains_refused(make: Any) -> None:
    assert same(lambda m: make(m, m.optim.SGD([m.ones(1)], lr=0.1, momentum=0.9), m.optim.lr_scheduler))[0] == "error"


def test_by_their_formulas() -> None:
    base = 0.5
    for case, want in {"step": lambda e: base * 0.1 ** (e // 3), "exponential": lambda e: base * 0.9 ** e, "lambda": lambda e: base * 0.9 ** e,
                       "cosine": lambda e: 0.01 + (base - 0.01) * (1 + math.cos(math.pi * e / 7)) / 2, "polynomial": lambda e: base * (1 - min(e, 5) / 5) ** 2,
                       "constant": lambda e: base / (3 if e < 5 else 1), "linear": lambda e: base * (1 / 3 + (0.5 - 1 / 3) * min(e, 5) / 5)}.items():
        found = rates(ag, case)
        np.testing.assert_allclose([found[0], *found[1::3]], [want(e) for e in range(26)], rtol=1e-9)
    found = rates(ag, "one cycle")
    assert found[0] == pytest.approx(1 / 25) and max(found[1::3]) == pytest.approx(1.0, rel=0.01) and found[-1] == pytest.approx(1 / 25 / 1e4)


def test_one_after_the_other() -> None:
    def lines(m: Any) -> Any:
        w = m.ones(1, requires_grad=True)
        opt, kinds, out = m.optim.SGD([w], lr=1.0), m.optim.lr_scheduler, []
        schedule = kinds.SequentialLR(opt, [kinds.ConstantLR(opt, 0.1, 4), kinds.ExponentialLR(opt, 0.9), kinds.StepLR(opt, 2)], [5, 8])
        for _ in range(12):
            opt.step()
            schedule.step()
            out += [opt.param_groups[0]["lr"], *schedule.get_last_lr()]
        return out

    assert same(lines)[:2] == [pytest.approx(0.1), pytest.approx(0.1)]


def test_a_compiled_step_reads_the_rate_at_every_call() -> None:
    w = ag.ones(2, requires_grad=True)
    opt = ag.optim.SGD([w], lr=0.5)
    schedule = ag.optim.lr_scheduler.StepLR(opt, 1, 0.5)

    @ag.compile
    def step() -> Any:
        opt.zero_grad()
        loss = w.sum()
        loss.backward()
        opt.step()
        return loss

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            step()
            schedule.step()
    assert w.tolist() == [1 - 0.5 - 0.25 - 0.125 - 0.0625] * 2 and step.cache_info().variants == 1
    with pytest.raises(ag.AotgradNotImplementedError, match=r"test_schedules.py:\d+: StepLR.step\(\) counts epochs in Python"):
        ag.compile(lambda x: (schedule.step(), x)[1])(ag.ones(2))


ERRORS = {
    "no optimizer": lambda m: m.optim.lr_scheduler.StepLR(3, 1), "plateau factor": lambda m: begin(m, "ReduceLROnPlateau", {"factor": 2.0}),
    "mode": lambda m: begin(m, "ReduceLROnPlateau", {"mode": "low"}), "steps": lambda m: begin(m, "OneCycleLR", {"max_lr": 1.0}),
    "strategy": lambda m: begin(m, "OneCycleLR", {"max_lr": 1.0, "total_steps": 5, "anneal_strategy": "sine"}),
    "too many": lambda m: [(opt.step(), s.step()) for _, opt, s in [begin(m, "OneCycleLR", {"max_lr": 1.0, "total_steps": 3})] for _ in range(5)],
    "functions": lambda m: begin(m, "LambdaLR", {"lr_lambda": [abs, abs]}), "restart": lambda m: begin(m, "CosineAnnealingWarmRestarts", {"T_0": 0}),
    "factor": lambda m: begin(m, "LinearLR", {"start_factor": 2.0}), "resumed": lambda m: begin(m, "StepLR", {"step_size": 1, "last_epoch": 3}) and m.missing,
    "closure": lambda m: m.optim.LBFGS([m.ones(1, requires_grad=True)]).step(), "search": lambda m: m.optim.LBFGS([m.ones(1)], line_search_fn="a").step(lambda: 1.0),
    "rate": lambda m: m.optim.RMSprop([m.ones(1)], lr=-1.0), "decay": lambda m: m.optim.Adagrad([m.ones(1)], lr_decay=-1.0),
    "groups": lambda m: m.optim.LBFGS([{"params": [m.ones(1)]}, {"params": [m.ones(1)]}]),
}
OTHER_KINDS = ("resumed", "search")  # KeyError and RuntimeError at the step in torch; here ValueError, and at once


@pytest.mark.parametrize("name", ERRORS)
def test_what_does_not_fit(name: str) -> None:
    with pytest.raises(ag.AotgradError):
        ERRORS[name](ag)
    if name not in OTHER_KINDS:
        assert same(ERRORS[name])[0] == "error"


def test_a_step_too_early_is_warned_of() -> None:
    for m in modules():
        schedule = begin(m, "StepLR", {"step_size": 1})[2]
        with pytest.warns(UserWarning, match="Detected call of `lr_scheduler.step\\(\\)` before `optimizer.step\\(\\)`"):
            schedule.step()


# ---- LBFGS ------------------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("options", [{"line_search_fn": "strong_wolfe"}, {"lr": 0.002}, {"line_search_fn": "strong_wolfe", "history_size": 3, "max_iter": 7}], ids=str)
def test_lbfgs(options: dict[str, Any]) -> None:
    def lines(m: Any, wrap: Any = lambda f: f) -> Any:
        x = m.tensor([-1.2, 1.0], dtype=m.float64, requires_grad=True)
        opt = m.optim.LBFGS([x], **options)
        f = wrap(lambda x: 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2)

        def closure() -> Any:
            opt.zero_grad()
            loss = f(x)
            loss.backward()
            return loss

        return [v for _ in range(3) for v in (opt.step(closure).item(), *x.tolist())]

    found = lines(ag)
    for other in [lines(m) for m in modules()[1:]] + [lines(ag, ag.compile)]:
        np.testing.assert_allclose(other, found, rtol=1e-7)
    if options == {"line_search_fn": "strong_wolfe"}:
        assert found[-1] == pytest.approx(1.0, abs=1e-3)  # the minimum of Rosenbrock's function


def test_lbfgs_is_called_outside() -> None:
    w = ag.ones(2, requires_grad=True)
    opt = ag.optim.LBFGS([w])
    with pytest.raises(ag.AotgradNotImplementedError, match=r"test_schedules.py:\d+: LBFGS.step"):
        ag.compile(lambda: opt.step(lambda: w.sum()))()
