"""NumPy's functions under their own names of arguments, and lists of computed values in the place of arrays: as NumPy has them, eagerly and compiled, with gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aotgrad as ag

X = np.array([0.31, 0.13, -0.41, 0.83])
SAME = {
    "diff prepend": lambda x: np.diff(x, prepend=0.5), "diff append": lambda x: np.diff(x, 2, append=x[:1]),
    "diff both": lambda x: np.diff(x.reshape(2, 2), axis=0, prepend=1, append=2),
    "clip a_min": lambda x: np.clip(x, a_min=0.0, a_max=0.5), "clip a_max": lambda x: np.clip(x, a_min=None, a_max=0.2), "clip min": lambda x: np.clip(x, min=0.0),
    "reshape F": lambda x: np.reshape(x, (2, 2), order="F"), "reshape -1": lambda x: np.reshape(x, (-1, 2), "F"), "method F": lambda x: x.reshape(2, 2, order="F"),
    "method tuple": lambda x: x.reshape((2, -1), order="F"), "back": lambda x: x.reshape(2, 2).reshape(4, order="F"), "ravel F": lambda x: np.ravel(x.reshape(2, 2), "F"),
    "ravel method": lambda x: x.reshape(2, 2).ravel(order="F"), "flatten F": lambda x: x.reshape(2, 2).flatten("F"), "flatten": lambda x: x.reshape(2, 2).flatten(),
    "list times": lambda x: x[:2] * [x[0], 2.0], "list first": lambda x: [x[0], 2.0] * x[:2], "list of lists": lambda x: np.multiply(x[:2], [[x[0], 1.0], [2.0, x[1]]]),
    "dot": lambda x: np.dot([x[0], x[1]], x[:2]), "outer": lambda x: np.outer([x[0], 1.0], x), "power": lambda x: np.linalg.matrix_power(x.reshape(2, 2), 5),
    "power 0": lambda x: np.linalg.matrix_power(x.reshape(2, 2), 0) + x[0], "power 1": lambda x: np.linalg.matrix_power(x.reshape(2, 2), 1),
    "divmod": lambda x: np.add(*np.divmod(x, 0.3)),
    "divmod array": lambda x: np.divmod(np.ones(4), x)[1],
}


@pytest.mark.parametrize("name", SAME)
def test_as_numpy(name: str) -> None:
    f = SAME[name]
    np.testing.assert_allclose(ag.compile(f)(X), f(X), rtol=1e-14, atol=1e-15)

    def loss(x: Any) -> Any:
        return (f(x) ** 2).sum()

    value, slope = ag.value_and_grad(loss)(X)
    np.testing.assert_allclose(value, loss(X), rtol=1e-14)
    compiled = ag.compile(ag.value_and_grad(loss))(X)
    np.testing.assert_allclose(compiled[1], slope, rtol=1e-12, atol=1e-14)
    step = 1e-6 * np.eye(4)
    numeric = [(loss(X + e) - loss(X - e)) / 2e-6 for e in step]
    np.testing.assert_allclose(slope, numeric, rtol=1e-5, atol=1e-6)


REFUSED = {
    "order": (lambda x: x.reshape(2, 2, order="A"), ag.AotgradValueError, "order='A' is not available"),
    "power": (lambda x: np.linalg.matrix_power(x.reshape(1, 4), 2), ag.AotgradValueError, "last two dims"),
    "power -2": (lambda x: np.linalg.matrix_power(x.reshape(2, 2), -2), ag.AotgradTypeError, "needs the inverse"),
    "power n": (lambda x: np.linalg.matrix_power(x.reshape(2, 2), 1.5), ag.AotgradTypeError, "n is float"),
    "missing": (lambda x: np.unwrap(x), ag.AotgradTypeError, "ag.host_call"),
    "cond": (lambda x: ag.cond(x > 0, lambda: x, lambda: x), ag.AotgradValueError, r"shape \(x_0\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    f, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        ag.compile(f)(X)


def test_missing_functions_outside_of_a_trace() -> None:
    with pytest.raises(ag.AotgradTypeError, match=r"x\.detach\(\)\.numpy\(\)"):
        ag.grad(lambda x: np.unwrap(x).sum())(X)


def test_storing_one_number_into_an_array_says_how() -> None:
    def f(x: Any) -> Any:
        z = np.zeros(4)
        z[0] = x[0]
        return z

    with pytest.raises(ag.AotgradTypeError, match=r"z = np\.zeros_like\(x\)"):
        ag.compile(f)(X)


def test_lists_of_tensors_are_no_tensors() -> None:
    with pytest.raises(ag.AotgradTypeError, match=r"make one tensor of it with ag\.stack"):
        ag.compile(lambda x: ag.mul(x[:2], [x[0], x[1]]))(ag.tensor(X))
