"""Transforms inside transforms, and what they read from around them: derivatives reach everything, eagerly and compiled."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aotgrad as ag

F = Callable[..., Any]
XS, TS = np.array([0.3, 0.7, 1.1]), np.array([1.0, -2.0, 0.5])

# Each gives the first derivative of a function of one number (``hessian`` and ``hvp`` the second).
DERIVATIVES: dict[str, tuple[int, Callable[[F], F]]] = {
    "grad": (1, ag.grad), "value_and_grad": (1, lambda f: lambda z: ag.value_and_grad(f)(z)[1]), "vjp": (1, lambda f: lambda z: ag.vjp(f, z)[1](1.0)[0]),
    "jvp": (1, lambda f: lambda z: ag.jvp(f, (z,), (1.0,))[1]), "linearize": (1, lambda f: lambda z: ag.linearize(f, z)[1](1.0)), "jacfwd": (1, ag.jacfwd),
    "jacrev": (1, ag.jacrev), "hessian": (2, ag.hessian), "hvp": (2, lambda f: lambda z: ag.hvp(f, z, 1.0)), "compile": (0, ag.compile),
}


@pytest.mark.parametrize(("inner", "outer"), [*itertools.product(DERIVATIVES, repeat=2)])
def test_every_transform_inside_every_other(inner: str, outer: str) -> None:
    (m, first), (n, second) = DERIVATIVES[inner], DERIVATIVES[outer]
    found = second(first(lambda z: z**6 + np.exp(0.5 * z)))(0.7)
    order = m + n
    assert type(found) is np.float64
    assert float(found) == pytest.approx(math.perm(6, order) * 0.7 ** (6 - order) + 0.5**order * math.exp(0.35), rel=1e-12)


def _linear(w: Any, x: Any = XS, t: Any = TS) -> Any:
    """The directional derivative of sin(w x) x."""
    return np.sum(ag.linearize(lambda x: np.sin(w * x) * x, x)[1](t))


CAPTURING: dict[str, F] = {
    "linearize": _linear,
    "the value": lambda w: np.sum(ag.linearize(lambda x: np.sin(w * x), XS)[0]),
    "arguments and tangents": lambda w: _linear(0.6, w * XS, w * TS),
    "an array": lambda w: _linear(w * XS),
    "linearize twice": lambda w: np.sum(ag.linearize(lambda x: ag.linearize(lambda y: np.sin(w * y) * x * y, x)[1](TS), XS)[1](TS)),
    "a loop": lambda w: np.sum(ag.linearize(lambda x: ag.scan(lambda c, z: (np.sin(w * c) * z, c * w), w, x)[1], XS)[1](TS)),
    "a gradient": lambda w: np.sum(ag.linearize(ag.grad(lambda x: np.sum(np.sin(w * x) * x)), XS)[1](TS)),
}


@pytest.mark.parametrize("name", CAPTURING)
def test_a_linear_part_depends_on_where_it_was_taken_and_on_what_the_function_reads(name: str) -> None:
    f, w, eps = CAPTURING[name], 0.6, 1e-5
    slope = (f(w + eps) - f(w - eps)) / (2 * eps)
    assert abs(slope) > 0.01
    for d in ("grad", "jvp", "linearize"):
        derive = DERIVATIVES[d][1]
        assert float(derive(f)(w)) == pytest.approx(slope, rel=1e-7)
        assert float(ag.grad(derive(f))(w)) == pytest.approx(float(ag.compile(ag.grad(derive(f)))(w)), rel=1e-12)
    t = ag.tensor(w, dtype=ag.float64, requires_grad=True)
    f(t).backward()
    assert float(t.grad) == pytest.approx(slope, rel=1e-7)


def test_the_linear_part_of_a_python_number_has_the_dtypes_of_jvp() -> None:
    a = np.ones(2, np.float32)
    assert ag.linearize(lambda z: z * a, 2.0)[1](1.0).dtype == ag.jvp(lambda z: z * a, (2.0,), (1.0,))[1].dtype == np.float32


ONES = np.ones(3)
FROM_WEIGHTS: dict[str, tuple[F, Any]] = {  # of weights * sin(x): the sum of squares of each, and its derivative by the weights, over them
    "grad": (lambda f, x: ag.grad(lambda x: f(x).sum())(x), 2 * np.cos(XS) ** 2),
    "value": (lambda f, x: ag.value_and_grad(lambda x: (f(x) * f(x)).sum())(x)[0].sqrt(), 2 * np.sin(XS) ** 2),
    "vjp": (lambda f, x: ag.vjp(f, x)[1](ag.tensor(ONES))[0], 2 * np.cos(XS) ** 2),
    "jvp": (lambda f, x: ag.jvp(f, (x,), (ag.tensor(ONES),))[1], 2 * np.cos(XS) ** 2),
    "linearize": (lambda f, x: ag.linearize(f, x)[1](ag.tensor(ONES)), 2 * np.cos(XS) ** 2),
    "jacrev": (lambda f, x: ag.jacrev(f)(x), 2 * np.cos(XS) ** 2), "jacfwd": (lambda f, x: ag.jacfwd(f)(x), 2 * np.cos(XS) ** 2),
    "hessian": (lambda f, x: ag.hessian(lambda x: f(x).sum())(x), 2 * np.sin(XS) ** 2),
    "hvp": (lambda f, x: ag.hvp(lambda x: f(x).sum(), x, ag.tensor(ONES)), 2 * np.sin(XS) ** 2),
}


@pytest.mark.parametrize("name", FROM_WEIGHTS)
def test_derivatives_depend_on_the_tensors_that_the_function_reads(name: str) -> None:
    """A penalty on a gradient trains the weights that the function reads, as with torch.func."""
    derive, slope = FROM_WEIGHTS[name]
    weights, x = ag.tensor([1.0, 2.0, 3.0], dtype=ag.float64, requires_grad=True), ag.tensor(XS)
    (derive(lambda x: weights * x.sin(), x) ** 2).sum().backward()
    np.testing.assert_allclose(weights.grad.numpy(), slope * weights.detach().numpy(), rtol=1e-12)
    with ag.no_grad():
        assert not derive(lambda x: weights * x.sin(), x).requires_grad
    assert not derive(lambda x: weights.detach() * x.sin(), x).requires_grad


def _wrapping(x: Any) -> Any:
    try:
        return ag.sum(x, dim=9)
    except ag.AotgradError as error:
        raise RuntimeError("wrapped") from error


def _wrapping_in_ours(x: Any) -> Any:
    try:
        return ag.sum(x, dim=9)
    except ag.AotgradError as error:
        raise ag.AotgradRuntimeError("one of ours around it") from error


def _wrapping_twice(x: Any) -> Any:
    try:
        return _wrapping_in_ours(x)
    except ag.AotgradError as error:
        raise ValueError("wrapped again") from error


ENTRIES: dict[str, Callable[[F], Any]] = {
    "compile": lambda f: ag.compile(f)(XS), "tensors": lambda f: ag.compile(f)(ag.tensor(XS, requires_grad=True)), "trace": lambda f: ag.compile(f).trace(XS),
    "lower": lambda f: ag.compile(f).lower(XS), "explain": lambda f: ag.compile(f).explain(XS), "prebind": lambda f: ag.compile(f).prebind(XS),
    "linearize": lambda f: ag.linearize(f, XS), "vmap": lambda f: ag.vmap(f)(np.ones((2, 3))), "vmap compiled": lambda f: ag.compile(ag.vmap(f))(np.ones((2, 3))),
    "grad compiled": lambda f: ag.compile(ag.grad(f))(XS), "jvp compiled": lambda f: ag.compile(lambda x: ag.jvp(f, (x,), (x,)))(XS),
    "hessian compiled": lambda f: ag.compile(ag.hessian(f))(XS), "linearize compiled": lambda f: ag.compile(lambda x: ag.linearize(f, x)[0])(XS),
    "scan": lambda f: ag.compile(lambda x: ag.scan(lambda c, y: (f(c), y), x, x))(XS), "cond": lambda f: ag.compile(lambda x: ag.cond(x[0] > 0, f, f, x))(XS),
    "fori_loop": lambda f: ag.compile(lambda x: ag.fori_loop(0, 2, lambda i, c: f(c), x))(XS), "map": lambda f: ag.compile(lambda x: ag.map(f, x))(np.ones((2, 3))),
    "in a scan in a gradient": lambda f: ag.compile(ag.grad(lambda x: ag.scan(lambda c, y: (ag.cond(y > 0, f, f, c), y), x, x)[0].sum()))(XS),
    "aot": lambda f: ag.aot.build(f, ["x: f64[n]"], out="nowhere", name="f"),
}
PLAIN: dict[str, Callable[[F], Any]] = {  # these run the function as it is; their errors are told in the same way
    "grad": lambda f: ag.grad(f)(XS), "value_and_grad": lambda f: ag.value_and_grad(f)(XS), "vjp": lambda f: ag.vjp(f, XS), "jvp": lambda f: ag.jvp(f, (XS,), (XS,)),
    "jacfwd": lambda f: ag.jacfwd(f)(XS), "jacrev": lambda f: ag.jacrev(f)(XS), "hessian": lambda f: ag.hessian(f)(XS), "hvp": lambda f: ag.hvp(f, XS, XS),
}


@pytest.mark.parametrize("name", [*ENTRIES, *PLAIN])
def test_every_entry_of_a_trace_raises_the_innermost_error(name: str) -> None:
    enter, place = {**ENTRIES, **PLAIN}[name], r"test_nesting.py:\d+: (?s:.*)" if name in ENTRIES else ""
    for f in (_wrapping, _wrapping_in_ours, _wrapping_twice):
        with pytest.raises(ag.AotgradError, match=f"{place}out of range"):
            enter(f)

    def stores(x: Any) -> Any:  # NumPy raises an error of its own from ours
        out = np.zeros(3)
        out[0] = x.sum()
        return out

    with pytest.raises(ag.AotgradError, match=r"test_nesting.py:\d+: .*numbers"):
        enter(stores)
