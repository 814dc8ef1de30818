"""Arithmetic of Python's numbers in compiled code gives Python's numbers: they decide no dtype, and one that an integer dtype does not hold is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sweep

import aotgrad as ag

EXPRESSIONS: dict[str, Callable[[Any, Any], Any]] = {
    "product": lambda x, k: x * (k * 2), "sum": lambda x, k: x + k * 2, "minus": lambda x, k: x * -k, "plus": lambda x, k: x + (+k), "abs": lambda x, k: x * abs(k),
    "quotient": lambda x, k: x + k / 2, "floor": lambda x, k: x * (k // 2), "remainder": lambda x, k: x * (k % 3), "power": lambda x, k: x * (k ** 2),
    "reflected": lambda x, k: x * (1 - k) + x * (3 / k) + x * (7 // k) + x * (7 % k), "divmod": lambda x, k: x * divmod(k, 2)[0] + divmod(7, k)[1],
    "chain": lambda x, k: x * ((k * 2) ** 2) - (k * k * k - 1), "condition": lambda x, k: x + (k > 2) * 3, "conditions": lambda x, k: x + ((k > 1) + (k > 0)),
    "chosen": lambda x, k: x * ((k > 2) * 3.0), "with a bool": lambda x, k: x * (k + True), "size": lambda x, k: x * (k + x.shape[0]) - x.shape[0] * k,
    "bound": lambda x, k: np.maximum(x, k * 2), "comparison": lambda x, k: x > k * 2, "stacked": lambda x, k: np.stack([x, x * (k * 2)]),
    "filled": lambda x, k: np.full_like(x, k * 2), "NumPy's function": lambda x, k: x * np.sqrt(abs(k)), "NumPy's sum": lambda x, k: x * np.add(k, 2)}
BITS: dict[str, Callable[[Any, Any], Any]] = {"shift": lambda x, k: x * (k << 1), "and": lambda x, k: x * (k & 3), "or": lambda x, k: x * (k | 1),
                                                     "xor": lambda x, k: x * (k ^ 1)}


def outcome(f: Any, *args: Any) -> Any:
    """The result, or the kind of error."""
    try:
        with np.errstate(all="ignore"):
            return f(*args)
    except (OverflowError, ZeroDivisionError, TypeError) as error:
        return next(k for k in (OverflowError, ZeroDivisionError, TypeError) if isinstance(error, k))


@pytest.mark.parametrize("dtype", sweep.part(["uint8", "int32", "int8", "float32", "bool", "int64", "float64"], of=3))
def test_numbers_of_numbers_decide_no_dtype(dtype: str) -> None:
    x = np.array([1, 2, 3]).astype(dtype)
    for name, f in {**EXPRESSIONS, **BITS}.items():
        compiled = ag.compile(f)
        for k in (1, 2, 3, 1.5, 300, -1):
            if isinstance(k, float) and name in BITS or name == "minus" and dtype == "bool":
                continue
            got, want = outcome(compiled, x, k), outcome(f, x, k)
            if isinstance(want, type):
                assert got is want, (name, k)
            else:
                assert np.asarray(got).dtype == np.asarray(want).dtype, (name, k)
                np.testing.assert_allclose(got, want, rtol=1e-6, err_msg=f"{name} {k}")


def of_tensors(x: Any, k: Any) -> Any:
    return x * (k * 2), x.double() * (k / 3 + k ** 2 - 1 / k), x.to(ag.int32) + (k > 1), ag.exp(k * 2) * x.double(), ag.full((2,), k) * x, ag.zeros(2) + k * 2


@pytest.mark.parametrize("k", [1.1, 3])
def test_numbers_beside_tensors_are_computed_as_python_does(k: Any) -> None:
    x = ag.tensor([1.0, 2.0])
    for got, want in zip(ag.compile(of_tensors)(x, k), of_tensors(x, k), strict=True):
        assert got.dtype is want.dtype
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-15 if want.dtype is ag.float64 else 1e-6)


CONTROL: dict[str, Callable[[Any, Any], Any]] = {
    "loop of a number": lambda x, k: ag.fori_loop(0, 3, lambda i, c: c * 2, k) * x, "counter": lambda x, k: ag.fori_loop(0, 3, lambda i, c: c * k + i, x),
    "branches": lambda x, k: ag.cond(x[0] > 0, lambda k: k * 2, lambda k: k * 3, k) * x, "rows": lambda x, k: ag.scan(lambda c, r: (c + r * (k * 2), r * c), x[0], x)[1],
    "mapped": lambda x, k: ag.vmap(lambda a: a * (k * 2))(x), "gradient": lambda x, k: ag.grad(lambda x, k: (x * (k * 2)).sum())(x, k),
    "gradient of the number": lambda x, k: ag.grad(lambda k: (x * (k * 2)).sum())(k), "tangent": lambda x, k: ag.jvp(lambda x, k: x * (k * 2), (x, k), (x, 1.0))[1]}


@pytest.mark.parametrize("name", CONTROL)
def test_numbers_through_control_flow_and_derivatives(name: str) -> None:
    f, x = CONTROL[name], np.array([1.0, 2.0], np.float32)
    got, want = ag.compile(f)(x, 1.5), f(x, 1.5)
    assert np.asarray(got).dtype == np.asarray(want).dtype
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_an_integer_number_divided_by_zero_is_an_error() -> None:
    for f in (lambda x, k: x * (3 // k), lambda x, k: x * (3 % k)):
        compiled, x = ag.compile(f), np.ones(2, np.float32)
        assert np.array_equal(compiled(x, 2), f(x, 2))
        with pytest.raises(ZeroDivisionError):
            compiled(x, 0)


def written(x: Any, k: Any) -> Any:
    x = x.copy() if isinstance(x, np.ndarray) or not hasattr(x, "clone") else x.clone()
    x[0] = k
    return x


def masked(x: Any, k: Any) -> Any:
    x = x.copy() if isinstance(x, np.ndarray) or not hasattr(x, "clone") else x.clone()
    x[x > 1] = k
    return x


def constant(k: Any) -> Any:
    return lambda x: written(x, k)


@pytest.mark.parametrize("f", [written, masked, np.full_like])
def test_integers_that_are_written_must_fit(f: Any) -> None:
    for x, values in ((np.array([1, 2, 3], np.uint8), (5, 255, 256, 300, -1, 2.5, True)), (np.array([1, 2, 3], np.int32), (5, 2**31, -(2**31), -(2**31) - 1))):
        compiled = ag.compile(lambda x, k: f(x, k))
        for k in values:
            want = outcome(f, x, k)
            for got in (outcome(compiled, x, k), outcome(ag.compile(constant(k)), x)) if f is written else (outcome(compiled, x, k),):
                assert got is want or type(got) is type(want) and got.dtype == want.dtype and got.tolist() == want.tolist(), (k, got)


def filled(x: Any, k: Any) -> Any:
    return ag.full((2,), k, dtype=x.dtype)


@pytest.mark.parametrize("f", [written, filled, lambda x, k: ag.full_like(x, k)], ids=["written", "full", "full_like"])
def test_integers_that_are_written_into_tensors_must_fit(f: Any) -> None:
    x, compiled = ag.tensor([1, 2, 3], dtype=ag.uint8), ag.compile(lambda x, k: f(x, k))
    for k in (5, 255, 256, 300, -1, -255, -256, 2.5, True):  # negative ones wrap, as in PyTorch
        want, got = outcome(f, x, k), outcome(compiled, x, k)
        assert got is want or type(got) is type(want) and got.dtype is want.dtype and got.tolist() == want.tolist(), (k, got)
