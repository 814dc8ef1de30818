"""NumPy functions that are made of others: NumPy's numbers, shapes and dtypes in compiled code and under differentiation, and right derivatives of both orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sweep

import aotgrad as ag

X = np.array([0.31, -1.2, 0.83, 2.4, -0.05, 1.1])
KNOTS = np.array([-2.0, -1.0, 0.0, 0.5, 1.5, 2.0])
M = np.array([[1.0, 0.5, -0.3, 2.0, 0.1, 0.7], [0.2, -0.7, 1.1, 0.4, 0.9, -2.0]])
F: dict[str, Callable[[Any], Any]] = {
    "interp x": lambda x: np.interp(x, KNOTS, KNOTS ** 3 - KNOTS), "interp fp": lambda x: np.interp(np.array([-3.0, -1.5, 0.2, 0.5, 2.0, 9.0]), KNOTS, x),
    "interp xp": lambda x: np.interp([0.1, 0.3], np.cumsum(x * x), x), "interp ends": lambda x: np.interp(x, KNOTS, KNOTS, left=-7.0, right=x[0]),
    "interp one": lambda x: np.interp(x, [0.5], x[:1]), "interp number": lambda x: np.interp(x[3], KNOTS, x), "interp lists": lambda x: np.interp(x, [0, 1], [x[0], 2]),
    "interp at knots": lambda x: np.interp(KNOTS + 0 * x, KNOTS, x), "interp nan": lambda x: np.nan_to_num(np.interp(np.array([np.nan, 0.2]), KNOTS, x), nan=5.0),
    "gradient": lambda x: np.gradient(x * x), "gradient h": lambda x: np.gradient(x, 0.5), "gradient h traced": lambda x: np.gradient(x, x[3]),
    "gradient places": lambda x: np.gradient(x, np.cumsum(x * x + 0.5)), "gradient edges": lambda x: np.gradient(x ** 3, 0.1, edge_order=2),
    "gradient places edges": lambda x: np.gradient(x, KNOTS, edge_order=2), "gradient 2d": lambda x: np.stack(np.gradient(x.reshape(2, 3) ** 2, 2.0, x[:3])),
    "gradient axis": lambda x: np.gradient(x.reshape(2, 3), axis=-1), "convolve": lambda x: np.convolve(x, [1.0, 2.0, -1.0]),
    "convolve same": lambda x: np.convolve(x, x[:4], "same"), "convolve valid": lambda x: np.convolve(x, x[:2], mode="valid"),
    "convolve short": lambda x: np.convolve(x[:2], x[1:], "same"), "convolve short full": lambda x: np.convolve([1.0, 2.0], x),
    "correlate": lambda x: np.correlate(x, x[:3]),
    "correlate full": lambda x: np.correlate(x, x[:3], "full"), "correlate same": lambda x: np.correlate(x, x[:4], "same"),
    "correlate short": lambda x: np.correlate(x[:3], x, "full"), "correlate short same": lambda x: np.correlate(x[:4], x[1:], "same"),
    "correlate short same odd": lambda x: np.correlate(x[:3], x, "same"), "correlate short valid": lambda x: np.correlate(x[:3], x),
    "cov": lambda x: np.cov(M * x), "cov y": lambda x: np.cov(x, M[0]), "cov one": lambda x: np.cov(x),
    "cov weights": lambda x: np.cov(M * x, aweights=x ** 2, fweights=[1, 2, 1, 3, 1, 2]),
    "cov columns": lambda x: np.cov(x.reshape(3, 2), rowvar=False, bias=True),
    "cov ddof": lambda x: np.cov(x, x ** 2, ddof=2), "corrcoef": lambda x: np.corrcoef(x, M)[0], "vander": lambda x: np.vander(x), "vander n": lambda x: np.vander(x, 3),
    "vander up": lambda x: np.vander(x[:3], 4, increasing=True), "vander none": lambda x: np.vander(x, 0) + x[:1],
    "piecewise": lambda x: np.piecewise(x, [x < 0, x > 1], [lambda v: -v, np.exp, 0.5]), "piecewise two": lambda x: np.piecewise(x, [x < 0], [np.sin]),
    "piecewise arguments": lambda x: np.piecewise(x, [x < 0, x >= 0], [lambda v, k: k * v, lambda v, k: v ** k], 2),
    "delete": lambda x: np.delete(x, 1), "delete some": lambda x: np.delete(x, [0, -1]), "delete slice": lambda x: np.delete(x.reshape(2, 3), np.s_[::2], axis=1),
    "delete flat": lambda x: np.delete(x.reshape(2, 3), 4), "insert": lambda x: np.insert(x, 2, x[0] * 3), "insert some": lambda x: np.insert(x, [0, 3], [1.0, 2.0]),
    "insert one value": lambda x: np.insert(x, [0, 3, 6], 7.0), "insert many at one": lambda x: np.insert(x, 1, x[:3]), "insert end": lambda x: np.insert(x, 6, 1),
    "insert row": lambda x: np.insert(x.reshape(2, 3), 1, x[:3], axis=0), "insert column": lambda x: np.insert(x.reshape(2, 3), -1, 4.0, axis=1),
    "copyto": lambda x: _copied(np.zeros_like(x), x), "copyto where": lambda x: _copied(x * 2, 5.0, x > 0),
    "searchsorted": lambda x: x[np.searchsorted(KNOTS, x, side="right") % 6], "digitize": lambda x: x[np.digitize(x, [-1, 0, 1])],
    "digitize down": lambda x: x[np.digitize(x, [1, 0, -1], right=True)],
    "linspace": lambda x: np.linspace(x[1], x[3], 5), "linspace open": lambda x: np.linspace(x[0], 2.0, 4, endpoint=False),
    "linspace arrays": lambda x: np.linspace(x[:2], x[2:4] ** 2, 3, axis=-1), "linspace one": lambda x: np.linspace(x[0], x[1], 1),
    "linspace none": lambda x: np.linspace(x[0], 1, 0) + x[:1],
    "linspace step": lambda x: np.linspace(0, x[0] * x[1], 7, retstep=True)[1] * x, "linspace ints": lambda x: np.linspace(x[0], 9.5, 4, dtype=int) * x[0],
    "logspace": lambda x: np.logspace(x[0], x[1], 4), "logspace base": lambda x: np.logspace(x[0], 2, 3, base=x[3]), "polyder": lambda x: np.polyder(x * x),
    "polyder 3": lambda x: np.polyder(x, 3), "polyder 0": lambda x: np.polyder(x, 0) * x, "polyint": lambda x: np.polyint(x * x),
    "polyint k": lambda x: np.polyint(x, 2, [x[0], 1.0]),
    "polyint one k": lambda x: np.polyint(x, 2, k=3.0), "polyadd": lambda x: np.polyadd(x * x, [1.0, x[0]]), "polysub": lambda x: np.polysub(x[:2], x ** 2),
    "block": lambda x: np.block([[np.eye(2), x[:2, None] ** 2], [x[None, :2], 3.0]]), "block row": lambda x: np.block([x, 2.0, x[0] * x[1]]),
    "block 3d": lambda x: np.block([[x.reshape(1, 2, 3)], [x.reshape(1, 2, 3) ** 2]]), "block array": lambda x: np.block(x * x),
    "linalg outer": lambda x: np.linalg.outer(x, x[:2]), "vector norm": lambda x: np.linalg.vector_norm(x.reshape(2, 3)),
    "vector norm axis": lambda x: np.linalg.vector_norm(x.reshape(2, 3), axis=0),
    "vector norm keep": lambda x: np.linalg.vector_norm(x.reshape(1, 2, 3), axis=(2, 0), keepdims=True, ord=3),
    "vector norm inf": lambda x: np.linalg.vector_norm(x, ord=np.inf), "matrix norm": lambda x: np.linalg.matrix_norm(x.reshape(1, 2, 3)),
    "matrix norm 1": lambda x: np.linalg.matrix_norm(x.reshape(2, 3), ord=1, keepdims=True),
    "linalg diagonal": lambda x: np.linalg.diagonal(x.reshape(1, 2, 3) ** 2, offset=1),
    "linalg trace": lambda x: np.linalg.trace(x.reshape(1, 2, 3) ** 2, offset=-1), "linalg matmul": lambda x: np.linalg.matmul(x.reshape(2, 3), x.reshape(3, 2)),
    "linalg tensordot": lambda x: np.linalg.tensordot(x.reshape(2, 3), x.reshape(3, 2), axes=1),
}


def _copied(y: Any, x: Any, mask: Any = True) -> Any:
    np.copyto(y, x, where=mask)
    return y


def _all(x: Any) -> dict[str, Any]:
    return {name: f(x) for name, f in F.items()}


@pytest.fixture(scope="module")
def compiled() -> Any:
    return ag.compile(lambda x, v: ag.jvp(_all, (x,), (v,)))(X, V)


V = np.array([0.3, 1.0, -0.4, 0.2, -0.9, 0.6])


@pytest.mark.parametrize("name", sweep.part(F))
def test_as_numpy(name: str, compiled: Any) -> None:
    f, want = F[name], F[name](X)
    for out in (compiled[0][name], ag.vjp(f, X)[0]):
        assert np.shape(out) == want.shape and out.dtype == want.dtype
        np.testing.assert_allclose(out, want, rtol=1e-13, atol=1e-14)
    slope = (f(X + 1e-6 * V) - f(X - 1e-6 * V)) / 2e-6
    for out in (compiled[1][name], ag.jvp(f, (X,), (V,))[1], ag.jacrev(f)(X) @ V):
        if name != "interp at knots":  # differences across a kink
            np.testing.assert_allclose(out, slope, rtol=1e-6, atol=1e-7)
    second = (ag.jacrev(f)(X + 1e-6 * V) - ag.jacrev(f)(X - 1e-6 * V)) / 2e-6
    np.testing.assert_allclose(ag.jvp(ag.jacrev(f), (X,), (V,))[1], second, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("f", [lambda x: np.searchsorted(KNOTS, x), lambda x: np.searchsorted(KNOTS, x, "right"), lambda x: np.searchsorted(x, [0.0, 1.0, 7.0]),
                               lambda x: np.searchsorted(x[::-1], 0.5, sorter=np.arange(7)[::-1]), lambda x: np.digitize(x, KNOTS[::-1]),
                               lambda x: np.searchsorted(x, np.array([[np.nan, 1.0]]), "right"), lambda x: np.searchsorted(x, np.nan)])
def test_places_of_numbers(f: Any) -> None:
    x = np.array([-2.0, -1.0, -1.0, 0.3, 1.0, 2.5, np.nan])
    out = ag.compile(f)(x)
    np.testing.assert_array_equal(out, f(x))
    assert np.asarray(out).dtype == np.int64


def test_one_program_for_all_sizes() -> None:
    f = ag.compile(lambda x, p: np.interp(x, p, p ** 2) + np.gradient(x))
    for n, m in ((3, 5), (8, 2), (5, 5)):
        x, p = np.linspace(-1, 2, n), np.linspace(0, 1, m)
        np.testing.assert_allclose(f(x, p), np.interp(x, p, p ** 2) + np.gradient(x), rtol=1e-14)
    assert f.cache_info().traces == 1


@pytest.mark.parametrize(("f", "says"), [
    (lambda x: np.interp(x, KNOTS, KNOTS[:3]), "6 and 3"), (lambda x: np.interp(x, [], []), "no points"), (lambda x: np.interp(x, x, x, period=1), "period="),
    (lambda x: np.gradient(x, 1, 2), "2 distances"), (lambda x: np.gradient(np.ones(1) * x[0]), "1 numbers"), (lambda x: np.gradient(x, edge_order=3), "edge_order"),
    (lambda x: np.convolve(x, x.reshape(2, 3)), "v has 2 dims"), (lambda x: np.convolve(x, x, "all"), "mode="),
    (lambda x: np.cov(x, aweights=x.reshape(2, 3)), "aweights has 2 dims"),
    (lambda x: np.digitize(x, x), "searchsorted"), (lambda x: np.digitize(x, [0, 2, 1]), "up or down"),
    (lambda x: np.piecewise(x, [x > 0], [1, 2, 3]), "1 or 2 functions"),
    (lambda x: np.piecewise(x.reshape(2, 3), [x[:3] > 0], [1, 2]), r"shape \(3,\)"), (lambda x: np.vander(x, -1), "N is -1"),
    (lambda x: np.cov(x, ddof=0.5), "ddof=0.5"),
    (lambda x: np.cov(x, aweights=[1, 1, -1, 1, 1, 1]), "aweights holds"), (lambda x: np.cov(x, fweights=[1, 1, 0.5, 1, 1, 1]), "fweights count"),
    (lambda x: np.gradient(x.reshape(2, 3), axis=(0, -2)), "twice"), (lambda x: np.delete(x, 7), "np.delete: index 7"),
    (lambda x: np.delete(x, 1.5), "np.delete: arrays"),
    (lambda x: np.delete(x, [True, False]), "np.delete: boolean"), (lambda x: np.delete(x, 0, 1), "axis 1 is not one of 1"),
    (lambda x: np.insert(x, 9, 1.0), "np.insert: index 9"),
    (lambda x: np.insert(x, 1.5, 1.0), "np.insert: slice"), (lambda x: np.insert(x.reshape(2, 3), 0, np.ones(4), 0), "np.insert: "),
    (lambda x: np.insert(x, 0, 1.0, 2), "axis 2"),
    (lambda x: np.insert(x.reshape(2, 3), [0, 1], np.ones((3, 3)), 0), "np.insert: "),
    (lambda x: np.delete(x, np.argmax(x)), "places"), (lambda x: np.copyto(np.zeros(6), x), "zeros_like"), (lambda x: np.gradient(x, axis=1), "axis 1"),
    (lambda x: np.linspace(x[0], 1, x[1]), "num is a computed value"), (lambda x: np.linspace(x[0], 1, -2), "num is -2"), (lambda x: np.polyder(x, 1.5), "m is float"),
    (lambda x: np.logspace(x[0], 1, base=[2, 3]), "base is an array"), (lambda x: np.polyint(x, 2, x[:3]), "k has 3 constants"),
    (lambda x: np.block([[x], x]), "same depth"),
    (lambda x: np.block([[x], []]), "same depth"), (lambda x: np.polyadd(x, x.reshape(2, 3)), "a2 has 2 dims"),
    (lambda x: np.linalg.outer(x, x.reshape(2, 3)), "x2 has 2 dims"),
    (lambda x: np.linalg.vector_norm(x, axis=1), "axis 1"),
])
def test_refused_with_the_line(f: Any, says: str) -> None:
    for run in (ag.compile(f), ag.jacrev(f)):
        with pytest.raises(ag.AotgradError, match=f"test_numpy_composed.*{says}"):
            run(X)


def test_narrow_dtypes_and_ends_of_linspace() -> None:
    x = X.astype(np.float32)
    for f in (lambda x: np.linspace(x[0], 2.0, 5), lambda x: np.linspace(x[:2], x[2:4], 5), lambda x: np.logspace(x[0], 1.5, 4), lambda x: np.polyint(x),
             lambda x: np.polyder(x, 2),
              lambda x: np.polyadd(x, x[:2]), lambda x: np.linalg.vector_norm(x), lambda x: np.block([x, x[:1]])):
        out, want = ag.compile(f)(x), f(x)
        assert out.dtype == want.dtype
        np.testing.assert_allclose(out, want, rtol=1e-6)
    ends = ag.compile(lambda a, b: np.linspace(a, b, 4))
    for a, b in ((0.1, 0.7), (1e300, -1e300), (0.0, np.inf), (3, 7)):
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(ends(a, b), np.linspace(a, b, 4), rtol=1e-15)
        assert ends(a, b)[-1] == b


@pytest.mark.parametrize("f", [
    lambda x: np.insert(x, np.array([True, False, True, False, False, True]), 1.0), lambda x: np.insert(x.reshape(2, 3), np.array([True, True]), x[:3], 0),
    lambda x: np.insert(x.reshape(2, 3), [0, 1, 1], 2.0, 1), lambda x: np.insert(x.reshape(2, 3), slice(0, 2), x[:3], -2),
    lambda x: np.insert(x.reshape(2, 3), 1, x.reshape(2, 3), 0), lambda x: np.insert(x.reshape(2, 3), [2], x[:2, None], -1), lambda x: np.insert(x, -2, x[:3]),
])
def test_places_and_values_of_insert(f: Any) -> None:
    """Masks, slices, and values that are broadcast."""
    for run in (f, ag.compile(f), lambda x: ag.jvp(f, (x,), (V,))[0], lambda x: ag.vmap(f)(x[None])[0], lambda x: f(ag.tensor(x))):
        np.testing.assert_array_equal(run(X), f(X))
