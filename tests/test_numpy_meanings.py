"""NumPy's functions on NumPy's values mean NumPy's: dtypes, shapes, errors; and what unchecked indices do."""

from __future__ import annotations

import numpy as np
import pytest

import aotgrad as ag

C = ag.compile


# ---- checks=False ---------------------------------------------------------------------------------------------------------------------

def test_unchecked_reads_are_clamped_and_an_empty_dim_gives_zeros() -> None:
    read = C(lambda x, i: x[i], checks=False)
    for _ in range(2):
        np.testing.assert_array_equal(read(np.arange(3.0), np.array([5, -9, 1])), [2.0, 0.0, 1.0])
        np.testing.assert_array_equal(read(np.ones(0), np.array([1, 0, 7])), [0.0, 0.0, 0.0])
    one = C(lambda x, i: x[i] + ag.sum(x), checks=False)
    assert one(np.ones(0), 2) == 0.0 and one(np.arange(3.0), 7) == 5.0
    np.testing.assert_array_equal(C(lambda x, i: x[i], checks=False)(np.ones((0, 3)), np.array([1])), [[0.0, 0.0, 0.0]])


@pytest.mark.parametrize("how", ["set", "add"])
def test_unchecked_writes_out_of_range_are_dropped(how: str) -> None:
    write = C(lambda x, i: getattr(x.at[i], how)(7.0), checks=False)
    base = np.arange(3.0)
    np.testing.assert_array_equal(write(base, np.array([5, 1, -9])), [0.0, 7.0 if how == "set" else 8.0, 2.0])
    assert write(np.ones(0), np.array([1])).shape == (0,)


def test_unchecked_gradients_of_reads_out_of_range_are_defined() -> None:
    gradient = C(ag.grad(lambda x, i: ag.sum(x[i])), checks=False)
    np.testing.assert_array_equal(gradient(np.ones(3), np.array([1, 2])), [0.0, 1.0, 1.0])
    assert gradient(np.ones(0), np.array([1])).shape == (0,)
