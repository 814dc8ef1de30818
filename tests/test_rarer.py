"""Covariances, whole numbers, signs, writes at places: torch's values and errors where it is installed, NumPy's else; derivatives; compiled."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sweep
from autograd_pair import f64, refused, same

import aotgrad as ag
from aotgrad.frontend.rarer import RARER, RARER_METHODS

X = [[0.5, -1.0, 2.0, 0.25], [1.5, 0.5, -0.5, 3.0], [0.0, 1.0, 2.0, -1.0]]


def x(m: Any) -> Any:
    return f64(m, X, True)


def i(m: Any, *values: int) -> Any:
    return m.tensor(values)


WEIGHTS = {"w": lambda m: {"fweights": m.tensor([1, 2, 1, 3]), "aweights": f64(m, [0.1, 0.9, 0.5, 0.4])}}
FLOATS: dict[str, Callable[[Any, Any], Any]] = {
    "cov": lambda m, x: m.cov(x), "cov of a vector": lambda m, x: m.cov(x[0]), "cov, n": lambda m, x: m.cov(x, correction=0),
    "cov, weights": lambda m, x: m.cov(x, **WEIGHTS["w"](m)), "cov, how often": lambda m, x: m.cov(x, fweights=m.tensor([1, 2, 1, 3])),
    "corrcoef": lambda m, x: m.corrcoef(x), "copysign": lambda m, x: m.copysign(x, m.cos(x * 3)), "copysign of a number": lambda m, x: x.copysign(-0.0),
    "ldexp": lambda m, x: m.ldexp(x, m.tensor([1, 2, 3, 0])), "vdot": lambda m, x: m.vdot(x[0], x[1]),
    "cdist": lambda m, x: m.cdist(x, x[:2] * 2), "cdist, 1": lambda m, x: m.cdist(x[None], x[:2] * 2, 1.0),
    "cdist, inf": lambda m, x: m.cdist(x, x[:2] * 2, float("inf")),
    "cumulative_trapezoid": lambda m, x: m.cumulative_trapezoid(x), "at places": lambda m, x: m.cumulative_trapezoid(x, m.exp(x), dim=0),
    "along": lambda m, x: m.cumulative_trapezoid(x, f64(m, [0.0, 1.0, 3.0]), dim=0), "apart": lambda m, x: m.cumulative_trapezoid(x, dx=0.5, dim=0),
    "index_put": lambda m, x: m.index_put(x, (i(m, 0, 2), i(m, 1, 1)), x[0, :2] * 2), "index_put, a row": lambda m, x: x.index_put((i(m, 1),), x[0]),
    "index_put, sums": lambda m, x: m.index_put(x, (i(m, 0, 0),), x[:2], accumulate=True), "put": lambda m, x: x.put(i(m, 1, 7), x[0, :2] * 3),
    "put, sums": lambda m, x: x.put(i(m, 1, 1), x[0, :2] * 3, True), "masked_scatter": lambda m, x: m.masked_scatter(x, x > 0.4, x.flatten() * 2),
    "masked_scatter, one mask": lambda m, x: m.masked_scatter(x, m.tensor([True, False, True, False]), x.flatten() * 2),
    "select_scatter": lambda m, x: m.select_scatter(x, x[0, :3] * 2, 1, -2), "slice_scatter": lambda m, x: m.slice_scatter(x, x[:, :2] * 2, 1, 0, 3, 2),
    "diagonal_scatter": lambda m, x: m.diagonal_scatter(x, x[0, :3] * 2), "above": lambda m, x: x.diagonal_scatter(x[0, :3] * 2, 1),
    "rsub": lambda m, x: m.rsub(x, x * 2, alpha=3),
}
ONCE = ("copysign", "copysign of a number", "cdist", "cdist, 1", "cdist, inf")  # there is no second derivative of them, or torch has none


@pytest.mark.parametrize("name", FLOATS)
def test_values_and_gradients(name: str) -> None:
    f = FLOATS[name]

    def lines(m: Any) -> Any:
        a = x(m)
        out = f(m, a)
        weights = m.arange(out.numel(), dtype=m.float64).reshape(out.shape) - 1.5
        (first,) = m.autograd.grad((out * weights).sum(), a, create_graph=True)
        return out, first, m.autograd.grad((first * first).sum(), a)[0] if first.requires_grad and name not in ONCE else None

    assert same(lines)[0] != "error"


@pytest.mark.parametrize("name", sweep.part([*FLOATS], of=4))
def test_compiled_and_checked(name: str) -> None:
    f, a = FLOATS[name], x(ag)
    found = ag.compile(lambda a: f(ag, a))(a)
    np.testing.assert_allclose(found.detach().numpy(), f(ag, a).detach().numpy(), rtol=1e-12, atol=1e-14)
    weights = ag.arange(found.numel(), dtype=ag.float64).reshape(found.shape) - 1.5
    want = ag.autograd.grad((f(ag, a) * weights).sum(), a)[0]
    np.testing.assert_allclose(ag.autograd.grad((found * weights).sum(), a)[0].numpy(), want.numpy(), rtol=1e-10, atol=1e-12)
    assert ag.autograd.gradcheck(lambda a: f(ag, a), (a,), check_forward_ad=True)


def test_against_numpy() -> None:
    a, fw, aw = np.array(X), np.array([1, 2, 1, 3]), np.array([0.1, 0.9, 0.5, 0.4])
    for found, want in ((ag.cov(ag.tensor(a)), np.cov(a)), (ag.cov(ag.tensor(a), **WEIGHTS["w"](ag)), np.cov(a, fweights=fw, aweights=aw)),
                        (ag.corrcoef(ag.tensor(a)), np.corrcoef(a)), (ag.copysign(ag.tensor(a), -1.0), np.copysign(a, -1.0)),
                        (ag.nextafter(ag.tensor(a), ag.tensor(0.0)), np.nextafter(a, 0.0))):
        np.testing.assert_allclose(found.numpy(), want, rtol=1e-13)


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8"])
def test_divisors_and_multiples(dtype: str) -> None:
    """Fibonacci's numbers take the most steps."""
    top = np.iinfo(dtype).max
    fib = [1, 1]
    while fib[-1] + fib[-2] <= top:
        fib.append(fib[-1] + fib[-2])
    a = np.array([12, 0, 0, 7, fib[-1], fib[-2], 1, top], dtype)
    b = np.array([18, 5, 0, 7, fib[-2], fib[-1], top, top], dtype)
    if dtype != "uint8":
        a[0], b[3] = -12, -7
    given = ag.tensor(a), ag.tensor(b)
    for name in ("gcd", "lcm"):
        small = slice(0, 4) if name == "lcm" else slice(None)
        want = getattr(np, name)(a[small], b[small])
        f = getattr(ag, name)
        for found in (f(given[0][small], given[1][small]), ag.compile(f)(given[0][small], given[1][small])):
            assert found.dtype is given[0].dtype and found.tolist() == want.tolist()
    assert ag.vmap(ag.gcd)(*given).tolist() == np.gcd(a, b).tolist()
    same(lambda m: [m.gcd(m.tensor(a), m.tensor(b)), m.lcm(m.tensor(a[:4]), m.tensor(b[:4])), m.tensor(a[:2]).gcd_(m.tensor(b[:2]))])


def written(m: Any) -> Any:
    a = m.arange(6.0).reshape(2, 3)
    b = m.zeros(5, 2)
    return [a.clone().put_(i(m, 0, -1), m.tensor([9.0, 8.0])), a.clone().index_put_((i(m, 0), i(m, 1)), m.tensor(5.0)), a.t().put_(i(m, 1), m.tensor([7.0])), a,
            b.fill_diagonal_(1), b.fill_diagonal_(2, wrap=True), m.zeros(2, 4).fill_diagonal_(3, wrap=True), m.zeros(2, 2, 2).fill_diagonal_(1), a.copysign_(-1.0),
            m.zeros(4).masked_scatter_(m.tensor([True, False, True, False]), m.tensor([1.0, 2.0])), m.tensor([4, 6]).lcm_(i(m, 6, 4)), a._version]


def history(m: Any) -> Any:
    a, b = x(m), f64(m, [3.0, 4.0], True)
    y = a * 1
    y.put_(i(m, 0, 5), b * b)
    y.fill_diagonal_(0.0)
    y.sum().backward()
    return a.grad, b.grad


def signs(m: Any) -> Any:
    a = m.tensor([1.0, -0.0, 0.0, float("-inf")])
    return [1 / m.copysign(a, m.tensor([-0.0, 1.0, -1.0, 2.0])), m.copysign(i(m, 1, -2), -1).dtype.is_floating_point, m.nextafter(a, m.tensor(5.0))]


ERRORS: dict[str, Callable[[Any], Any]] = {
    "cov of three dims": lambda m: m.cov(m.ones(2, 2, 2)), "cov, float counts": lambda m: m.cov(m.ones(2, 2), fweights=m.ones(2)),
    "gcd of floats": lambda m: m.gcd(m.ones(2), m.ones(2)), "cdist of vectors": lambda m: m.cdist(m.ones(2), m.ones(2, 2)), "cdist below 0": lambda m: m.cdist(
        m.ones(2, 2), m.ones(2, 2), -1.0), "a vector's diagonal": lambda m: m.ones(2).fill_diagonal_(1), "unequal": lambda m: m.ones(2, 2, 3).fill_diagonal_(1),
    "too few": lambda m: m.masked_scatter(m.ones(3), m.ones(3) > 0, m.ones(2)), "mask": lambda m: m.masked_scatter(m.ones(2), i(m, 1, 0), m.ones(2)),
    "part": lambda m: m.select_scatter(m.ones(2, 2), m.ones(3), 0, 0), "beyond": lambda m: m.ones(3).put(i(m, 3), m.ones(1)), "from": lambda m: m.ones(2).random_(3, 2),
    "nextafter of integers": lambda m: m.nextafter(i(m, 1), i(m, 2)), "leaf": lambda m: x(m).fill_diagonal_(1.0),
    "indices": lambda m: m.index_put(m.ones(2), 0, m.ones(1)),
}


@pytest.mark.parametrize("lines", [written, history, signs])
def test_in_place_and_signs(lines: Callable[[Any], Any]) -> None:
    assert same(lines)[0] != "error"


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    """Of torch's kind, and of NumPy's."""
    refused(ERRORS[name])


def test_random_whole_numbers() -> None:
    for dtype in ("int64", "int32", "uint8", "float64", "float32", "float16", "bool"):
        a = ag.zeros(200, dtype=getattr(ag, dtype)).random_()
        assert (a == a.floor() if a.is_floating_point() else a >= 0).all() and (a != a[0]).any()
    assert set(ag.zeros(200).random_(3).tolist()) == {0.0, 1.0, 2.0} and set(ag.zeros(200, dtype=ag.int32).random_(-1, 2).tolist()) == {-1, 0, 1}
    assert set(ag.zeros(50).random_(**{"from": 1, "to": 3}).tolist()) == {1.0, 2.0}


def test_what_compiled_code_cannot_do() -> None:
    with pytest.raises(ag.AotgradNotImplementedError, match=r"test_rarer.py:\d+: nextafter"):
        ag.compile(lambda a: ag.nextafter(a, a))(ag.ones(2))


def test_examples() -> None:
    for name, g in {**RARER, **RARER_METHODS}.items():
        done = doctest.DocTestRunner().run(doctest.DocTestParser().get_doctest(g.__doc__ or "", {"ag": ag}, name, None, 0))
        assert not done.failed, name


@pytest.mark.parametrize("f", [
    lambda x: ag.sort(x)[0][0], lambda x: ag.msort(x)[1], lambda x: ag.topk(x, 2).values.sum(), lambda x: ag.median(x), lambda x: ag.kthvalue(x, 2).values,
    lambda x: ag.cumsum(x, 0)[ag.argsort(x)][0], lambda x: ag.combinations(x).sum(), lambda x: ag.unique(x).sum(), lambda x: x.unfold(0, 2, 1).sum()])
def test_places_beside_values_of_numpy_keep_them_numpys(f: Any) -> None:
    x = np.array([3.0, 1.0, 2.0])
    value, slope = ag.value_and_grad(f)(x)
    t = ag.tensor(x, requires_grad=True)
    f(t).backward()
    assert type(slope) is np.ndarray and not isinstance(value, ag.Tensor)
    np.testing.assert_array_equal(slope, t.grad.numpy())
