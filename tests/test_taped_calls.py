"""Compiled functions called with tensors: the short way means what the general way means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aotgrad as ag
from aotgrad.frontend import taped


def _x(*shape: int, grad: bool = True) -> Any:
    return ag.tensor(np.random.default_rng(len(shape)).uniform(0.5, 1.5, shape), requires_grad=grad)


def _same(a: Any, b: Any) -> None:
    np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-13)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "product": lambda x, y: x * y, "loss": lambda x, y: ((x @ y.T).tanh() ** 2).sum(), "two results": lambda x, y: (x.exp(), (x * y).sum()),
    "unused": lambda x, y: x.sin(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients(name: str) -> None:
    f = FUNCTIONS[name]
    compiled = ag.compile(f)
    x, y = _x(3, 4), _x(3, 4) * 0.5
    y = y.detach().requires_grad_()
    for _ in range(3):
        got, want = compiled(x, y), f(x, y)
        got, want = (got, want) if isinstance(got, tuple) else ((got,), (want,))
        for a, b in zip(got, want):
            _same(a, b)
            assert str(a.grad_fn.name) == "CompiledFunctionBackward"
        for create in (False, True):
            total = sum(((o * o).sum() for o in got[1:]), start=(got[0] * 2.0).sum())
            reference = sum(((o * o).sum() for o in want[1:]), start=(want[0] * 2.0).sum())
            ga = ag.autograd.grad(total, [x, y], create_graph=create, retain_graph=True, allow_unused=True)
            gb = ag.autograd.grad(reference, [x, y], create_graph=create, retain_graph=True, allow_unused=True)
            for a, b in zip(ga, gb):
                if b is not None:
                    _same(a, b)
        (second,) = ag.autograd.grad((ga[0] ** 2).sum(), x, allow_unused=True)
        (reference,) = ag.autograd.grad((gb[0] ** 2).sum(), x, allow_unused=True)
        assert (second is None) == (reference is None)
        if second is not None:
            _same(second, reference)
    assert isinstance(got[0].grad_fn, taped.TapedNode)


def test_only_some_want_gradients_and_numbers_beside() -> None:
    f = ag.compile(lambda x, y, c: (x * y * c).sum())
    x, y = _x(5), _x(5)
    f(x, y, 2.0)
    for rx, ry in ((True, False), (False, True), (False, False), (True, True)):
        a, b = x.detach().requires_grad_(rx), y.detach().requires_grad_(ry)
        out = f(a, b, 3.0)
        assert out.requires_grad == (rx or ry)
        if out.requires_grad:
            out.backward()
            if rx:
                _same(a.grad, 3.0 * y.detach())
            if ry:
                _same(b.grad, 3.0 * x.detach())
    with ag.no_grad():
        assert not f(x, y, 2.0).requires_grad
    assert f(x, y, 2.0).requires_grad and f(x[:3], y[:3], 1.0).requires_grad


def test_containers_of_tensors() -> None:
    f = ag.compile(lambda p, x: {"y": (x @ p["w"] + p["b"]).sum(), "n": 3})
    p = {"w": _x(4, 2), "b": _x(2)}
    x = _x(3, 4, grad=False)
    for _ in range(3):
        p["w"].grad = p["b"].grad = None
        out = f(p, x)
        assert out["n"] == 3
        out["y"].backward()
        _same(p["b"].grad, ag.full((2,), 3.0, dtype=ag.float64))
        _same(p["w"].grad, x.sum(0).reshape(4, 1).expand(4, 2))


def test_writes_between_the_passes_and_saved_hooks() -> None:
    f = ag.compile(lambda x, y: (x * y).sum())
    x, y = _x(4), _x(4, grad=False)
    f(x, y)
    was = y.clone()
    out = f(x, y)
    y.mul_(10.0)
    out.backward()
    _same(x.grad, was)
    seen: list[int] = []
    with ag.autograd.graph.saved_tensors_hooks(lambda t: seen.append(1) or t, lambda t: t):
        f(x, y).backward()
    assert seen
    out = f(x, y)
    out.backward()
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()


def test_what_does_not_fit_goes_the_general_way() -> None:
    f = ag.compile(lambda x, y: x * y)
    x = _x(3, 4)
    f(x, x)
    _same(f(x.T, x.T), (x * x).T)
    _same(f(x[::2], x[::2]), x[::2] * x[::2])
    assert isinstance(f(np.ones((3, 4)), np.ones((3, 4))), np.ndarray)
    assert f(x.float(), x.float()).dtype is ag.float32
    inner = ag.compile(lambda x: f(x, x).sum())
    _same(inner(x), (x * x).sum())
    with ag.autograd.forward_ad.dual_level():
        d = ag.autograd.forward_ad.make_dual(x.detach(), ag.ones(3, 4, dtype=ag.float64))
        _same(ag.autograd.forward_ad.unpack_dual(f(d, x.detach())).tangent, x)
