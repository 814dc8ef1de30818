"""Extrema of 0 and -0 are the same by every road: 0 is above -0, whatever the order, the size, and the place in a vector."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aotgrad as ag
from aotgrad.ir import interp

PAIRS = {"maximum": False, "minimum": True, "fmax": False, "fmin": True}


def roads(f: Any, *xs: Any) -> list[Any]:
    compiled = ag.compile(f)
    eager = np.asarray(f(*map(ag.from_numpy, xs)))
    return [eager, np.asarray(compiled(*xs)), interp.run(compiled.trace(*xs), *xs)[0]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 2, 7, 8, 17, 100])
@pytest.mark.parametrize("name", PAIRS)
def test_of_two_arrays(name: str, n: int, dtype: str) -> None:
    zero = np.zeros(n, dtype)
    for x, y in ((zero, -zero), (-zero, zero)):
        for out in roads(getattr(ag, name), x, y):
            assert np.all(out == 0) and np.all(np.signbit(out) == PAIRS[name])
    for out in roads(getattr(ag, name), -zero, -zero):
        assert np.all(np.signbit(out))


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9, 33])
@pytest.mark.parametrize(("name", "sign"), [("amax", False), ("amin", True), ("max", False), ("min", True)])
def test_over_an_array_wherever_the_other_zero_is(name: str, sign: bool, n: int) -> None:
    for place in range(n):
        for x in (np.zeros(n), -np.zeros(n)):
            whole = bool(np.signbit(x[0]))
            x[place] = -x[place]
            for out in roads(lambda v: getattr(ag, name)(v), x):
                assert out == 0 and np.signbit(out) == (sign if n > 1 else not whole)
            for out in roads(lambda v: getattr(ag, f"a{name[-3:]}")(v, dim=1), np.stack([x, x])):
                assert np.all(np.signbit(out) == (sign if n > 1 else not whole))


def test_nan_wins_over_all_in_any_place() -> None:
    for place in range(19):
        x = np.linspace(-1, 1, 19)
        x[place] = np.nan
        for name in ("amax", "amin"):
            assert all(np.isnan(out) for out in roads(lambda v, name=name: getattr(ag, name)(v), x))
        for name in ("maximum", "minimum"):
            for out in (*roads(getattr(ag, name), x, np.zeros(19)), *roads(getattr(ag, name), np.full(19, -np.inf), x)):
                assert np.isnan(out[place]) and np.isnan(out).sum() == 1


def test_clamp_leaves_a_number_that_equals_its_bound() -> None:
    zero = np.zeros(9)
    for x, low, high in ((zero, -0.0, 1.0), (zero, -1.0, -0.0), (-zero, 0.0, 1.0), (-zero, -1.0, 0.0)):
        for out in roads(lambda v, low=low, high=high: ag.clamp(v, low, high), x):
            assert np.all(out == 0) and np.all(np.signbit(out) == np.signbit(x))


def test_relu_of_either_zero_is_one_zero() -> None:
    for x in (np.zeros(9), -np.zeros(9)):
        assert len({np.signbit(out).tobytes() for out in roads(ag.relu, x)}) == 1
