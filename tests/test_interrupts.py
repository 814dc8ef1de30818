"""An interrupt (Ctrl-C) at any place where Python takes one: it arrives as KeyboardInterrupt, and the thread is as before."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aotgrad as ag
from aotgrad.frontend import kernels, leaves
from aotgrad.frontend.eager import levels
from aotgrad.frontend.trace import current
from aotgrad.ir import dims
from aotgrad_runtime import modes, profiler, recording, watchers

_OURS = tuple(os.path.dirname(os.path.abspath(m.__file__)) + os.sep for m in (ag, modes))


def _places(run: Callable[[], Any], at: int = 0, skipped: str = "") -> int:
    """Runs with an interrupt at the ``at``-th place (0: none): the interpreter looks for signals when it enters a function (but one called ``skipped``) and when it is
    back from one written in C. How many places there were, up to that one."""
    seen = 0

    def watch(frame: Any, event: str, arg: Any) -> None:
        nonlocal seen
        if event not in ("call", "c_return") or not frame.f_code.co_filename.startswith(_OURS) or _finalises(frame):
            return
        if event == "call" and frame.f_code.co_name in ("<genexpr>", skipped):  # also told of one that is thrown away, where no signal is taken
            return
        seen += 1
        if seen == at:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(None)
    return seen


def _finalises(frame: Any) -> bool:
    """Whether a finaliser runs, where Python itself drops what is raised."""
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def _state() -> tuple[Any, ...]:
    s, r = modes.state, recording.state
    return (s.grad, s.inference, s.noted, r.passing, r.running, len(r.hooks), r.anomaly, leaves.state.depth, levels.level, len(levels.opened), current(),
            dims._specialise.resolver, gc.isenabled(), kernels._Paused.by, watchers.state.count, profiler.state.recorder, profiler.state.hook)


def _whole() -> None:
    x = ag.tensor([1.0, 2.0], requires_grad=True)
    (x * x).sum().backward()
    assert x.grad.tolist() == [2.0, 4.0]
    modes.settle()
    assert not modes.flags.restricted and modes.flags.byte[0] == 0 and not modes.flags.noting
    assert type(ag.grad(lambda v: (v * v).sum())(np.ones(3))) is np.ndarray
    packed: list[Any] = []
    with ag.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t), ag.autograd.profiler.profile() as prof:
        ag.compile(_square)(x)
        x * x
    assert len(packed) >= 2 and {"_square", "mul"} <= {e.key for e in prof.key_averages()}  # they are still called
    watchers.state.settle()
    assert watchers.shared.count == 0 and not profiler.watched()


def _square(v: Any) -> Any:
    return v * v


def _backward() -> Callable[[], Any]:
    x = ag.ones(2, requires_grad=True)
    return lambda: (x * x).sum().backward()


def _grad() -> Callable[[], Any]:
    return lambda: ag.grad(lambda v: (v * v).sum())(np.ones(3))


def _compiled() -> Callable[[], Any]:
    w = ag.ones(2, 2, requires_grad=True)
    f = ag.compile(lambda a: ag.tanh(a @ w).sum())
    f(ag.ones(2, 2)).backward()
    return lambda: f(ag.ones(2, 2)).backward()


def _compile() -> Callable[[], Any]:
    return lambda: ag.compile(lambda a: (ag.sin(a) * 3).sum())(np.ones(3))


def _hessian() -> Callable[[], Any]:
    x = ag.ones(2)
    return lambda: ag.autograd.functional.hessian(lambda v: (v ** 3).sum(), x)


def _vmap() -> Callable[[], Any]:
    return lambda: ag.vmap(lambda v: (v * v).sum())(np.ones((3, 2)))


def _jvp() -> Callable[[], Any]:
    return lambda: ag.jvp(lambda v: v * v, (np.ones(2),), (np.ones(2),))


def _step() -> Callable[[], Any]:
    p = ag.ones(2, requires_grad=True)
    opt = ag.optim.Adam([p], lr=0.1)
    p.grad = ag.ones(2)
    return opt.step


class Twice(ag.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Any) -> Any:
        ctx.save_for_backward(a)
        return a * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 2

    @staticmethod
    def jvp(ctx: Any, t: Any) -> Any:
        return t * 2


def _custom() -> Callable[[], Any]:
    x = ag.ones(2, requires_grad=True)
    return lambda: Twice.apply(x).sum().backward()


def _deep() -> Callable[[], Any]:
    def f(v: Any) -> Any:
        for _ in range(5):
            v = Twice.apply(v)
        return v * v

    x = ag.ones(2)
    return lambda: (ag.autograd.functional.jacobian(f, x, create_graph=True), ag.jvp(f, (x,), (x,)))


def _decorated() -> Callable[[], Any]:
    x = ag.ones(2, requires_grad=True)
    return ag.no_grad(lambda: x * 2)


RUNS = {f.__name__.strip("_"): f for f in (_backward, _grad, _compiled, _compile, _hessian, _vmap, _jvp, _step, _custom, _deep, _decorated)}


def _duals() -> Callable[[], Any]:
    fw = ag.autograd.forward_ad
    x, t = ag.ones(2), ag.ones(2)

    def run() -> None:
        with fw.dual_level():
            fw.unpack_dual(fw.make_dual(x, t) * 2)
    return run


def _anomaly() -> Callable[[], Any]:
    x = ag.ones(2, requires_grad=True)

    def run() -> None:
        with ag.autograd.detect_anomaly(), ag.autograd.set_detect_anomaly(True, False):
            (x * x).sum().backward()
    return run


def _hooks() -> Callable[[], Any]:
    x = ag.ones(2, requires_grad=True)

    def run() -> None:
        with ag.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            y = x * x
        with ag.autograd.graph.disable_saved_tensors_hooks("not here"):
            y.sum().backward()
    return run


def _profile() -> Callable[[], Any]:
    x = ag.ones(2, requires_grad=True)

    def run() -> None:
        with ag.autograd.profiler.profile(), ag.autograd.profiler.record_function("part"):
            (x * x).sum().backward()
    return run


def _modes() -> Callable[[], Any]:
    x = ag.ones(2, requires_grad=True)

    def run() -> None:
        with ag.no_grad(), ag.enable_grad(), ag.set_grad_enabled(False), ag.inference_mode():
            x * x
    return run


CONTEXTS = {f.__name__.strip("_"): f for f in (_duals, _anomaly, _hooks, _profile, _modes)}  # in the user's function: the entry of ``__exit__`` is left out


def _check(name: str, most: int) -> None:
    run, skipped = {**RUNS, **CONTEXTS}[name](), "__exit__" if name in CONTEXTS else ""
    run()
    before, count = _state(), _places(run, 0, skipped)
    for at in range(1, count + 1, max(1, count // most)):
        try:
            swallowed = _places(run, at, skipped) == at
        except KeyboardInterrupt:
            swallowed = False
        assert not swallowed and _state() == before, at
    _whole()


@pytest.mark.parametrize("name", [*RUNS, *CONTEXTS][::2])  # all of them below
def test_an_interrupt_arrives_and_leaves_the_thread_as_it_was(name: str) -> None:
    _check(name, 100)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*RUNS, *CONTEXTS])
def test_an_interrupt_anywhere(name: str) -> None:
    _check(name, 2000)  # places, from the first to the last


@pytest.mark.parametrize("outer", [True, False])
def test_a_pass_ends_in_the_mode_it_began_in(outer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x = ag.ones(2, requires_grad=True)
    y = (x * x).sum()
    real, count = modes.settle, 0

    def once() -> None:
        nonlocal count
        count += 1
        raise KeyboardInterrupt

    with ag.set_grad_enabled(outer):
        monkeypatch.setattr(modes, "settle", once)
        with pytest.raises(KeyboardInterrupt):
            y.backward(create_graph=not outer)
        monkeypatch.setattr(modes, "settle", real)
        assert count == 1 and ag.is_grad_enabled() is outer and (x * 2).requires_grad is outer
        assert outer or modes.flags.byte[0] == 1  # machine code must ask
    _whole()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ValueError])
def test_what_is_raised_while_a_kernel_is_built_arrives(kind: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(func: Any) -> Any:
        raise kind("while it was built")

    monkeypatch.setattr(kernels, "refuse", fail)
    with pytest.raises(kind, match="while it was built"):
        (ag.ones(4, 5) * 1.0625).tanh().sin()  # the library that was loaded goes with the frame
        ag.compile(lambda a: a * 1.0625)(np.ones(3))
