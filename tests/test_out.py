"""``out=`` of functions: torch's results and errors; no gradient is lost in silence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from autograd_pair import f64, same

import aotgrad as ag


def written(m: Any) -> Any:
    a, b = f64(m, [1.0, -2.0, 3.0]), f64(m, [0.5, 0.25, -1.0])
    out, wide = m.zeros(3, dtype=m.float64), m.zeros(2, 3, dtype=m.float64)
    found = [m.add(a, b, alpha=2, out=out) is out, out.clone(), m.sin(a, out=out), m.matmul(a, b, out=m.zeros((), dtype=m.float64)),
             m.mul(a, b, out=wide[1]), wide, m.gt(a, b, out=m.zeros(3, dtype=m.bool)).tolist(), m.sum(wide, 1, out=out[:2]), out, out._version, wide._version]
    return [*found, m.cat([a, b], out=m.empty(0, dtype=m.float64)), m.add(m.tensor([1, 2]), m.tensor([3, 4]), out=m.zeros(2))]


def pairs(m: Any) -> Any:
    values, places = m.zeros(2, dtype=m.float64), m.zeros(2, dtype=m.int64)
    m.max(f64(m, [[1.0, 5.0], [7.0, 2.0]]), 1, out=(values, places))
    return values, places


def unrecorded(m: Any) -> Any:
    x, out = f64(m, [1.0, 2.0], True), m.zeros(2, dtype=m.float64)
    with m.no_grad():
        m.exp(x, out=out)
    y = (x * out).sum()
    m.exp(f64(m, [0.0, 0.0]), out=out)
    return y, out


@pytest.mark.parametrize("lines", [written, pairs, unrecorded], ids=lambda f: f.__name__)
def test_as_torch(lines: Callable[[Any], Any]) -> None:
    assert same(lines)[0] != "error"


ERRORS: dict[str, Callable[[Any], Any]] = {
    "recorded": lambda m: m.exp(f64(m, [1.0], True), out=f64(m, [0.0])), "into a leaf": lambda m: m.exp(f64(m, [1.0]), out=f64(m, [0.0], True)),
    "dtype": lambda m: m.exp(f64(m, [1.0]), out=m.zeros(1, dtype=m.int64)), "no tensor": lambda m: m.exp(f64(m, [1.0]), out=3),
    "one of two": lambda m: m.max(f64(m, [[1.0]]), 1, out=m.zeros(1)),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    assert same(ERRORS[name])[0] == "error"
    with pytest.raises(ag.AotgradError):
        ERRORS[name](ag)


def test_another_shape_is_an_error() -> None:
    """torch warns, and makes room."""
    out = ag.zeros(3)
    with pytest.raises(RuntimeError, match=r"exp: out has shape \[3\], the result \[2\]"):
        ag.exp(ag.ones(2), out=out)
    assert out.tolist() == [0.0] * 3


def test_in_compiled_functions() -> None:
    def f(x: Any, out: Any) -> Any:
        ag.mul(x, x, out=out)
        return out + 1

    x, out = ag.tensor([1.0, 2.0]), ag.zeros(2)
    np.testing.assert_allclose(ag.compile(f)(x, out).numpy(), [2.0, 5.0])
    assert out.tolist() == [1.0, 4.0]
