"""NumPy functions that give views: writes through them reach the array, or are refused where NumPy refuses them; compiled, mapped and differentiated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aotgrad as ag

ROADS: dict[str, Callable[[Any], Any]] = {
    "compile": ag.compile,
    "vmap": lambda f: lambda x: ag.vmap(f)(x[None])[0],
    "vjp": lambda f: lambda x: ag.vjp(f, x)[0],
    "compiled vjp": lambda f: ag.compile(lambda x: ag.vjp(f, x)[0]),
}
VIEWS: dict[str, Callable[[Any], Any]] = {
    "flip": np.flip, "flip of one dim": lambda y: np.flip(y, 1), "flip of two": lambda y: np.flip(y, (0, -1)), "flipud": np.flipud, "fliplr": np.fliplr,
    "rot90": np.rot90, "rot90 twice": lambda y: np.rot90(y, 2), "rot90 back": lambda y: np.rot90(y, -1), "rot90 four times": lambda y: np.rot90(y, 4),
    "einsum": lambda y: np.einsum("ij->ji", y), "transpose": np.transpose, "swapaxes": lambda y: np.swapaxes(y, 0, 1), "moveaxis": lambda y: np.moveaxis(y, 0, 1),
    "ravel": np.ravel, "reshape": lambda y: np.reshape(y, (4, 3)), "split": lambda y: np.split(y, 2, 1)[1],
}
FIXED: dict[str, Callable[[Any], Any]] = {
    "diag": np.diag, "diagonal": np.diagonal, "a part of it": lambda y: np.diagonal(y)[1:], "broadcast_to": lambda y: np.broadcast_to(y, (2, 3, 4)),
}


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("view", VIEWS)
def test_writes_through_views_reach_the_array(view: str, road: str) -> None:
    def f(x: Any) -> Any:
        y = x * 1.0
        v = VIEWS[view](y)
        v[0] = 50.0
        v += 1.0
        return y * 2.0

    x = np.arange(12.0).reshape(3, 4)
    np.testing.assert_array_equal(ROADS[road](f)(x), f(x))


@pytest.mark.parametrize("road", ROADS)
@pytest.mark.parametrize("view", FIXED)
def test_what_numpy_shows_for_reading_alone_is_not_written(view: str, road: str) -> None:
    def f(x: Any) -> Any:
        y = x * 1.0
        FIXED[view](y)[0] = 5.0
        return y

    x = np.arange(12.0).reshape(3, 4)
    with pytest.raises(ValueError, match="read-only"):
        f(x)
    with pytest.raises(ag.AotgradError, match=r"test_numpy_views\.py:\d+"):
        ROADS[road](f)(x)


def test_the_diagonal_matrix_of_a_vector_is_new() -> None:
    def f(x: Any) -> Any:
        d = np.diag(x, 1)
        d[0] = x[1]
        return d

    np.testing.assert_array_equal(ag.compile(f)(np.arange(3.0)), f(np.arange(3.0)))
