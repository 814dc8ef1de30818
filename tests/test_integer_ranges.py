"""Python integers beside narrower integer dtypes: as NumPy has it for its arrays, and as torch for tensors, whether the integer is an argument or a constant."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
import sweep

import aotgrad as ag

DTYPES = ("uint8", "int8", "int16", "int32", "int64")
VALUES = (-(2**63), -(2**40), -(2**31) - 1, -32769, -300, -129, -128, -1, 1, 3, 127, 128, 255, 256, 32768, 2**31, 2**40, 2**63 - 1)
COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.and_, operator.or_, operator.xor)


def numbers(dtype: str) -> Any:
    """Zero, and the least and the largest numbers of the dtype."""
    range_ = np.iinfo(dtype)
    return np.array([0, 1, 3, range_.min, range_.max, range_.max - 1], dtype)


def applied(ops: Any, flip: bool) -> Any:
    return lambda x, k: tuple(op(k, x) if flip else op(x, k) for op in ops)


def outcome(f: Any, *args: Any) -> Any:
    """The results, or that they are an OverflowError."""
    try:
        with np.errstate(all="ignore"):
            return f(*args)
    except OverflowError:
        return OverflowError


def same(got: Any, want: Any) -> bool:
    if want is OverflowError or got is OverflowError:
        return got is want
    return all(np.array_equal(np.asarray(g), np.asarray(w)) and np.asarray(g).dtype == np.asarray(w).dtype for g, w in zip(got, want, strict=True))


@pytest.mark.parametrize("flip", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ops", [COMPARISONS, ARITHMETIC], ids=["comparisons", "arithmetic"])
def test_an_integer_argument_beside_an_array(ops: Any, dtype: str, flip: bool) -> None:
    plain, x = applied(ops, flip), numbers(dtype)
    compiled = ag.compile(plain)
    for k in VALUES:
        assert same(outcome(compiled, x, k), outcome(plain, x, k)), k


@pytest.mark.parametrize("ops, dtype, flip", sweep.part([COMPARISONS, ARITHMETIC], ["uint8", "int32", "int64"], [False, True]))
def test_an_integer_constant_beside_an_array(ops: Any, dtype: str, flip: bool) -> None:
    plain, x = applied(ops, flip), numbers(dtype)
    for k in (*VALUES[::3], -1, 2**31, 2**63, 2**70, -(2**70)):
        assert same(outcome(ag.compile(lambda x, k=k: plain(x, k)), x), outcome(plain, x, k)), k


@pytest.mark.parametrize("dtype, flip", sweep.part(DTYPES, [False, True]))
def test_beside_a_tensor_integers_wrap(dtype: str, flip: bool) -> None:
    plain, x = applied((*COMPARISONS, *ARITHMETIC[:3], *ARITHMETIC[5:]), flip), numbers(dtype)
    compiled, t = ag.compile(plain), ag.tensor(x)
    for k in VALUES:
        want = outcome(plain, x, np.asarray(k).astype(dtype))
        assert same(compiled(t, k), want), k
        assert same(plain(t, k), want), k
    for k in VALUES[::4]:
        assert same(ag.compile(lambda x, k=k: plain(x, k))(t), outcome(plain, x, np.asarray(k).astype(dtype))), k


@pytest.mark.parametrize("op", [*ARITHMETIC, np.maximum, np.minimum], ids=lambda op: op.__name__)
def test_each_operation_refuses_an_integer_that_does_not_fit(op: Any) -> None:
    compiled, x = ag.compile(lambda x, k: op(x, k)), np.array([1, 2], np.uint8)
    for k in (300, -1):
        with pytest.raises(OverflowError, match=rf"test_integer_ranges.py:\d+: .*out of bounds for uint8 \({k} in "):
            compiled(x, k)
        with pytest.raises(OverflowError, match=rf"{k} out of bounds for uint8"):
            ag.compile(lambda x, k=k: op(x, k))(x)
    assert np.array_equal(compiled(x, 255), op(x, 255))


def test_public_functions_on_arrays() -> None:
    x = np.array([1, 200], np.uint8)
    for k in (-1, 300, 2**70):
        with pytest.raises(OverflowError):
            ag.add(x, k)
        assert np.array_equal(ag.lt(x, k), x < k)
    assert np.array_equal(ag.where(x > 1, x, 300), np.where(x > 1, x, 300).astype(np.uint8))


def test_a_choice_wraps_and_bounds_are_brought_into_range() -> None:
    x = np.array([1, 200], np.uint8)
    choose, limit = ag.compile(lambda x, k: np.where(x > 1, x, k)), ag.compile(lambda x, low, high: np.clip(x, low, high))
    for k in (-1, 7, 300):
        assert same([choose(x, k), ag.compile(lambda x, k=k: np.where(x > 1, x, k))(x)], [np.where(x > 1, x, k)] * 2)
    for low, high in ((-1, 300), (5, 300), (-1, 100)):
        assert same([limit(x, low, high)], [np.clip(x, low, high)])


def test_comparisons_of_numbers_of_arguments() -> None:
    f = ag.compile(lambda k: (k < 2**70, k == 2**70, k < -(2**70)))
    assert [bool(v) for v in f(3)] == [True, False, False]


@pytest.mark.parametrize("empty", [(0,), (0, 3)])
def test_an_array_without_elements_refuses_too(empty: Any) -> None:
    with pytest.raises(OverflowError):
        ag.compile(lambda x, k: x + k)(np.ones(empty, np.uint8), 300)


def test_in_a_loop_and_under_vmap() -> None:
    x = np.array([1, 2], np.int32)
    assert np.array_equal(ag.vmap(lambda row: row > -1)(x), [True, True])
    repeated = ag.compile(lambda x, k: ag.fori_loop(0, 3, lambda i, c: c + k, x))
    assert np.array_equal(repeated(x, 2), x + 6)
    with pytest.raises(OverflowError):
        repeated(x, 2**40)
