"""Sums of deviations from a mean are not made in derivatives; everywhere else they are. Results past the cache of loops that also sum."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aotgrad as ag

EPS = 1e-5


def norm(x: Any, axes: tuple[int, ...], weight: Any = None) -> Any:
    d = x - x.mean(axes, keepdims=True)
    out = d / ag.sqrt((d * d).mean(axes, keepdims=True) + EPS)
    return out if weight is None else out * weight


def sums(f: Callable[..., Any], *args: Any) -> int:
    """Sums of the compiled program."""
    return str(ag.compile(f).lower(*args).tensor_ir).count('"ag.sum"')


def pulled(axes: tuple[int, ...]) -> Callable[..., Any]:
    def both(x: Any, g: Any) -> Any:
        out, pull = ag.vjp(lambda x: norm(x, axes), x)
        return out, pull(g)[0] if isinstance(pull(g), tuple) else pull(g)

    return both


def by_hand(x: Any, g: Any, axes: tuple[int, ...]) -> Any:
    d = x - x.mean(axes, keepdims=True)
    r = 1 / np.sqrt((d * d).mean(axes, keepdims=True) + EPS)
    h = d * r
    return r * (g - g.mean(axes, keepdims=True) - h * (g * h).mean(axes, keepdims=True))


CASES = [((5, 37), (1,), None), ((37, 5), (0,), None), ((3, 4, 5, 6), (0, 2, 3), None), ((3, 4, 5, 6), (0, 2, 3), (0, 2, 3, 1)), ((4, 1, 6), (1, 2), None),
         ((2, 3, 4), (0, 1, 2), None)]


@pytest.mark.parametrize(("shape", "axes", "order"), CASES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_gradient_of_a_norm_makes_four_sums(shape: tuple[int, ...], axes: tuple[int, ...], order: tuple[int, ...] | None, dtype: Any) -> None:
    """Mean, variance, and two of the adjoint; the gradient is the one by hand, and close to the one op by op."""
    rng = np.random.default_rng(3)
    x, g = ((rng.standard_normal(shape) + 3).astype(dtype) for _ in range(2))
    if order is not None:
        x, g = (v.transpose(order).copy().transpose(np.argsort(order)) for v in (x, g))
    f = pulled(axes)
    assert sums(f, x, g) == 4
    want = by_hand(x.astype(np.longdouble), g.astype(np.longdouble), axes).astype(np.float64)
    tolerance = 2e-5 if dtype is np.float32 else 1e-12
    np.testing.assert_allclose(ag.compile(f)(x, g)[1], want, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(f(x, g)[1], want, rtol=tolerance, atol=tolerance)


def test_derivatives_of_every_order_and_mode() -> None:
    rng = np.random.default_rng(4)
    x, v, w = (rng.standard_normal((3, 7)) for _ in range(3))

    def loss(x: Any) -> Any:
        return (norm(x, (1,)) ** 3 * w).sum()

    gradient, hvp = ag.compile(ag.grad(loss)), ag.compile(lambda x, v: ag.hvp(loss, (x,), (v,)))
    step = 1e-5
    slope = (loss(x + step * v) - loss(x - step * v)) / (2 * step)
    np.testing.assert_allclose((np.asarray(gradient(x)) * v).sum(), float(slope), rtol=1e-7)
    np.testing.assert_allclose(ag.compile(lambda x, v: ag.jvp(loss, (x,), (v,)))(x, v)[1], float(slope), rtol=1e-7)
    second = (np.asarray(gradient(x + step * v)) - np.asarray(gradient(x - step * v))) / (2 * step)
    found = hvp(x, v)
    np.testing.assert_allclose(found[0] if isinstance(found, tuple) else found, second, rtol=1e-6, atol=1e-8)


def test_what_is_not_centred_or_is_asked_for_stays() -> None:
    x = np.random.default_rng(5).standard_normal((6, 9))
    plain = ag.compile(lambda x: (x - x.mean(1, keepdims=True)).sum(1))
    np.testing.assert_array_equal(plain(x), (lambda d: np.asarray(ag.compile(lambda d: d.sum(1))(d)))(x - np.asarray(ag.compile(lambda x: x.mean(1, keepdims=True))(x))))

    def off(shift: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return ag.grad(lambda x: ((x - shift(x)) ** 2 * (1 + x.sum(1, keepdims=True) ** 2)).sum())

    for shift in (lambda x: x.mean(0, keepdims=True), lambda x: x.sum(1, keepdims=True) / 8, lambda x: x.mean(1, keepdims=True) / 2,
                  lambda x: (x * 2).mean(1, keepdims=True), lambda x: x.mean(1, keepdims=True)):
        f = off(shift)
        np.testing.assert_allclose(ag.compile(f)(x), f(x), rtol=1e-12, atol=1e-10)


def test_square_matrices_centred_along_the_other_dim() -> None:
    """A mean of rows taken from columns: sizes fit, dims do not."""
    x = np.random.default_rng(6).standard_normal((8, 8))

    def loss(x: Any) -> Any:
        d = x - x.mean(1)
        return (d / ag.sqrt((d * d).mean(1, keepdims=True) + 1)).sum(1).exp().sum()

    f = ag.grad(loss)
    np.testing.assert_allclose(ag.compile(f)(x), f(x), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("offset", [0, 1])
def test_results_past_the_cache_beside_sums(offset: int) -> None:
    """Rows written past the cache while they are summed, from a place that is aligned to 16 bytes and from one that is not."""
    rows, width = 1100, 4096
    rng = np.random.default_rng(7)
    x = rng.standard_normal(rows * width + offset, dtype=np.float32)[offset:].reshape(rows, width)
    out = np.empty(rows * width + offset, np.float32)[offset:].reshape(rows, width)
    total = np.empty(rows, np.float32)

    def f(x: Any) -> Any:
        d = x - x.mean(1, keepdims=True)
        return d, (d * d).sum(1)

    compiled = ag.compile(f)
    compiled(x, out=(out, total))
    small = ag.compile(f)
    np.testing.assert_array_equal(out[:64], small(x[:64])[0])
    np.testing.assert_array_equal(total[:64], small(x[:64])[1])
    np.testing.assert_allclose(out, x - x.mean(1, keepdims=True, dtype=np.float64), rtol=1e-4, atol=1e-5)


# ---- factors that leave a sum (``factors``) --------------------------------------------------------------------------------------------

def quotients(f: Callable[..., Any], *args: Any) -> int:
    """Divisions of whole matrices in the compiled program."""
    results = re.findall(r'"ag\.div".*-> !ag\.tensor<\[([^]]*)\]', str(ag.compile(f).lower(*args).tensor_ir))
    return sum("," in sizes and not sizes.endswith(", 1") for sizes in results)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_gradient_of_a_norm_divides_each_element_once(dtype: Any) -> None:
    rng = np.random.default_rng(5)
    x, g = (rng.standard_normal((6, 41)).astype(dtype) for _ in range(2))
    assert quotients(pulled((1,)), x, g) == 1


def test_a_divisor_of_zero_takes_no_part_where_the_cotangent_is_zero() -> None:
    x, y = np.arange(1.0, 7.0).reshape(2, 3), np.array([[0.0], [2.0]])
    g = np.array([[0.0, 0.0, 0.0], [1.0, 2.0, -1.0]])

    def f(x: Any, y: Any, g: Any) -> Any:
        return ag.vjp(lambda x, y: x / y, x, y)[1](g)

    for run in (f, ag.compile(f)):
        dx, dy = run(x, y, g)
        np.testing.assert_array_equal(dx, [[0, 0, 0], [0.5, 1, -0.5]])
        np.testing.assert_array_equal(dy, [[0], [-(4 + 2 * 5 - 6) / 4]])


@pytest.mark.parametrize(("dtype", "want"), [(np.float16, 100.0), (np.float32, 100.0)])
def test_short_types_keep_the_factor_inside(dtype: Any, want: float) -> None:
    """100 cotangents of 1000 are no float16 number; a thousandth of each is."""
    g, s, x = np.full((100, 4), 1000, dtype), np.array(1e-3, dtype), np.ones(4, dtype)
    f = ag.compile(lambda x, s, g: ag.vjp(lambda x: x.reshape(1, 4) * ag.ones_like(g) * s, x)[1](g))
    got = f(x, s, g)
    np.testing.assert_allclose((got[0] if isinstance(got, tuple) else got).astype(np.float64), want, rtol=2e-3)
