"""The gamma function's logarithm, its derivatives and the inverse of erf: beside torch, against 50 digits, at poles, compiled, as NumPy text."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from autograd_pair import f64, refused, same

import aotgrad as ag
from aotgrad.codegen.numpy_helpers import HELPERS

mpmath = pytest.importorskip("mpmath")

NAMES = ("lgamma", "digamma", "erfinv")
RNG = np.random.default_rng(3)
POSITIVE = np.concatenate([RNG.uniform(0, 1, 12), RNG.uniform(1, 3, 16), RNG.uniform(3, 9, 12), RNG.uniform(9, 200, 8), 10.0 ** RNG.uniform(-200, 200, 8)])
NEGATIVE = -np.concatenate([RNG.uniform(0, 8, 16), 10.0 ** RNG.uniform(-100, 0, 8)])
INSIDE = np.concatenate([RNG.uniform(-1, 1, 20), 1 - 10.0 ** RNG.uniform(-15, -1, 8), 10.0 ** RNG.uniform(-200, -1, 8)])


def exact(name: str, x: Any, n: int = 0) -> Any:
    if name == "lgamma":
        return mpmath.log(abs(mpmath.gamma(x)))
    if name != "erfinv":
        return mpmath.psi(n, x)
    v = abs(mpmath.mpf(ag.erfinv(ag.tensor(float(x), dtype=ag.float64)).item()))
    for _ in range(4):  # Newton's steps
        lack = mpmath.erf(v) - abs(x) if abs(x) < 0.5 else 1 - abs(x) - mpmath.erfc(v)
        v -= lack * mpmath.sqrt(mpmath.pi) / 2 * mpmath.exp(v * v)
    return mpmath.sign(x) * v


def units(found: Any, name: str, xs: Any, least: float = 0.0, n: int = 0) -> float:
    """The greatest error in units in the last place, of numbers of at least ``least``."""
    worst = 0.0
    with mpmath.workdps(50):
        for x, y in zip(xs.tolist(), found.tolist()):
            want = exact(name, mpmath.mpf(x), n)
            worst = max(worst, float(abs(mpmath.mpf(y) - want) / mpmath.mpf(float(np.spacing(xs.dtype.type(max(abs(float(want)), least)))))))
    return worst


@pytest.mark.parametrize(("name", "xs", "least", "limit"), [
    ("lgamma", POSITIVE, 0.0, 8), ("lgamma", NEGATIVE, 1.0, 8), ("digamma", POSITIVE, 0.0, 6), ("digamma", NEGATIVE, 1.0, 8), ("erfinv", INSIDE, 0.0, 4),
    ("digamma", 1.4616321449683622 + RNG.uniform(-1e-7, 1e-7, 6), 0.0, 6), ("lgamma", np.array([1 + 1e-9, 1 - 1e-7, 2 + 1e-9, 2 - 1e-7]), 0.0, 8)])
def test_digits(name: str, xs: Any, least: float, limit: float) -> None:
    f = getattr(ag, name)
    assert units(f(ag.tensor(xs)), name, xs, least) <= limit
    narrow = xs[(np.abs(xs) > 1e-30) & (np.abs(xs) < 1e30) & ((name != "erfinv") | (np.abs(xs) < 1 - 1e-7))].astype(np.float32)
    assert units(f(ag.tensor(narrow)), name, narrow, least) <= 0.51


@pytest.mark.parametrize("n", [1, 2, 5])
def test_digits_of_derivatives(n: int) -> None:
    xs = POSITIVE[(POSITIVE > 1e-3) & (POSITIVE < 1e6)]
    assert units(ag.polygamma(n, ag.tensor(xs)), "psi", xs, 0.0, n) <= 12
    below = np.array([-0.3, -0.75, -2.2, -5.6])
    assert units(ag.polygamma(n, ag.tensor(below)), "psi", below, 1.0, n) <= 64


def near(x: Any) -> Any:
    """torch's trigamma has ten digits."""
    return x.round(decimals=6)


def special(m: Any) -> Any:
    return f64(m, [0.0, -0.0, 1.0, 2.0, -1.0, -2.0, math.inf, -math.inf, math.nan, 1e308, -1e18])


LINES: dict[str, Callable[[Any], Any]] = {
    **{f"{n} at poles": lambda m, n=n: [repr(v) for v in getattr(m, n)(special(m)).tolist() if not abs(v) < 1e300] for n in NAMES},  # type: ignore[misc]
    **{n: lambda m, n=n: (lambda a: (getattr(m, n)(a), getattr(m, n)(a).grad_fn.name(), near(m.autograd.grad(getattr(a, n)().sum(), a)[0])))(  # type: ignore[misc]
        f64(m, [[0.3, 0.7], [-0.2, 0.9]], True)) for n in NAMES},
    "polygamma": lambda m: [near(m.polygamma(k, f64(m, [0.3, 2.5]))) for k in (0, 1, 2)] + [near(f64(m, [0.3]).polygamma(1)),
                                                                                                            m.polygamma(2, f64(m, [0.5], True)).grad_fn.name()],
    "integers": lambda m: (m.lgamma(m.tensor([3, 4])), m.digamma(m.tensor([3])).dtype == m.float32), "erfinv of bools": lambda m: m.erfinv(m.tensor([False])),
    "in place": lambda m: [f64(m, [0.5]).lgamma_(), f64(m, [0.5]).digamma_(), f64(m, [0.5]).erfinv_(), near(f64(m, [0.5]).polygamma_(1))],
    "strides": lambda m: m.lgamma(m.ones(2, 3, dtype=m.float64).t()).stride(), "half": lambda m: m.lgamma(m.tensor([2.5], dtype=m.float16)),
}
ERRORS: dict[str, Callable[[Any], Any]] = {"negative": lambda m: m.polygamma(-1, m.ones(2)), "integers in place": lambda m: m.tensor([3]).lgamma_()}


@pytest.mark.parametrize("name", LINES)
def test_as_torch(name: str) -> None:
    assert same(LINES[name])[0] != "error"


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    refused(ERRORS[name])


@pytest.mark.parametrize("name", [*NAMES, "polygamma"])
def test_derivatives_and_compiled(name: str) -> None:
    f = (lambda x: ag.polygamma(2, x)) if name == "polygamma" else getattr(ag, name)
    x = f64(ag, [0.3, 0.7, -0.2], True)
    assert ag.autograd.gradcheck(f, (x,), check_forward_ad=True) and ag.autograd.gradgradcheck(f, (x,))
    assert np.array_equal(ag.compile(f)(x).detach().numpy(), f(x).detach().numpy())
    assert np.array_equal(ag.vmap(f)(x).detach().numpy(), f(x).detach().numpy())


@pytest.mark.parametrize("name", [*NAMES, "polygamma"])
def test_as_numpy_text(name: str) -> None:
    there: dict[str, Any] = {"np": np, "math": math}
    for part in ("_each", f"_{name}"):
        exec(HELPERS[part], there)
    xs = INSIDE[np.abs(INSIDE) > 1e-3] if name == "erfinv" else np.array([0.1, 0.7, 1.5, 3.0, 20.0, -0.3, -2.6])
    more = (2,) if name == "polygamma" else ()
    want = getattr(ag, name)(*more, ag.tensor(xs)).numpy()
    np.testing.assert_allclose(there[f"_{name}"](xs, *more), want, rtol=1e-12)
