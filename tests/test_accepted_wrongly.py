"""Calls that PyTorch or NumPy refuses, or answers with other sizes: what was let through would go on as numbers of something else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aotgrad as ag
import aotgrad.nn.functional as F


@pytest.mark.parametrize("dim", [-3, 2, 5])
def test_diff_takes_dims_of_the_tensor(dim: int) -> None:
    with pytest.raises(IndexError, match="out of range"):
        ag.diff(ag.ones(2, 3), dim=dim)
    with pytest.raises(ag.AotgradError):
        ag.compile(lambda x: np.diff(x, axis=dim))(np.ones((2, 3)))


@pytest.mark.parametrize("n", ["a", None, float("nan"), -1, 1.5])
def test_diff_takes_a_number_of_times(n: Any) -> None:
    with pytest.raises(ag.AotgradError, match="diff: n is"):
        ag.diff(ag.ones(3), n=n)


def test_diff_as_often_as_there_are_neighbours() -> None:
    for n in range(6):
        assert np.array_equal(ag.diff(ag.tensor([1.0, 4.0, 9.0]), n=n).numpy(), np.diff(np.array([1.0, 4.0, 9.0]), n=n))
    with pytest.raises(ag.AotgradArgumentError, match="0-d"):
        ag.diff(ag.tensor(1.0))


def test_axes_of_numpys_functions_are_in_range() -> None:
    x = ag.ones(2, 3)
    for call in (lambda: np.trapezoid(x, axis=-3), lambda: np.rot90(x, axes=(0, 2)), lambda: np.average(x, axis=2, weights=np.ones(3))):
        with pytest.raises(IndexError, match="out of range"):
            call()


def test_index_select_takes_a_vector_or_one_place() -> None:
    x = ag.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    out = ag.index_select(x, 0, ag.tensor(1))
    assert out.tolist() == [[3.0, 4.0]]
    out.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [[0.0, 0.0], [1.0, 1.0]]
    with pytest.raises(IndexError, match="supposed to be a vector"):
        ag.index_select(x, 0, ag.tensor([[0, 1]]))
    assert np.take(x, np.array([[0, 1]]), axis=0).shape == (1, 2, 2)  # NumPy's takes any rank


def test_meshgrid_takes_vectors_and_numbers() -> None:
    with pytest.raises(RuntimeError, match="number 1 has 2 dims"):
        ag.meshgrid(ag.ones(3), ag.ones(2, 2), indexing="ij")
    with pytest.raises(RuntimeError, match="at least one"):
        ag.meshgrid()
    assert [g.shape for g in ag.meshgrid(ag.tensor(1.0), ag.ones(3))] == [(1, 3), (1, 3)]
    assert [g.shape for g in np.meshgrid(ag.ones(2, 2), ag.ones(3))] == [(3, 4), (3, 4)]


# What PyTorch 2 gives.
ATTENDED = (((1, 2, 2), (0, 2, 2), (1, 2, 0), (1, 2, 0)), ((1, 2, 2), (0, 2, 2), (1, 2, 3), (0, 2, 3)), ((1, 2, 2), (0, 2, 2), (0, 2, 3), (1, 2, 3)),
            ((0, 2, 2), (1, 2, 2), (1, 2, 3), (0, 2, 3)), ((1, 2, 2), (1, 2, 2), (0, 2, 3), (1, 2, 3)), ((1, 2, 2), (1, 2, 2), (1, 2, 0), (1, 2, 0)),
            ((1, 1, 2, 2), (1, 0, 2, 2), (1, 1, 2, 3), (1, 0, 2, 3)), ((2, 2), (0, 2, 2), (1, 2, 0), (2, 0)), ((2, 2), (3, 0, 2), (1, 0, 4), (2, 4)),
            ((1, 2, 2), (3, 2, 2), (1, 2, 4), (3, 2, 4)), ((1, 2, 0), (3, 2, 0), (1, 2, 4), (3, 2, 4)), ((1, 0, 2), (3, 2, 2), (1, 2, 4), (1, 0, 4)),
            ((1, 2, 2), (3, 2, 2), (1, 2, 0), (1, 2, 0)), ((1, 2, 2), (3, 2, 2), (0, 2, 0), None))


@pytest.mark.parametrize(("query", "key", "value", "shape"), ATTENDED)
def test_attention_over_nothing_has_torchs_sizes(query: Any, key: Any, value: Any, shape: Any) -> None:
    q, k, v = (ag.ones(*s, requires_grad=True) for s in (query, key, value))
    if shape is None:  # PyTorch ignores that leading dims do not fit where there are no values
        with pytest.raises(ag.AotgradArgumentError, match="do not broadcast"):
            F.scaled_dot_product_attention(q, k, v)
        return
    out = F.scaled_dot_product_attention(q, k, v)
    assert tuple(out.shape) == shape
    out.sum().backward()
    assert q.grad is not None and q.grad.shape == q.shape and not q.grad.isnan().any()


@pytest.mark.parametrize("first", [(8, 1, 8), (2, 3, 4)])
def test_a_size_beside_nothing_cannot_be_inferred(first: tuple[int, ...]) -> None:
    f = ag.compile(lambda a: a.reshape(a.shape[0], -1) * 2.0)
    for shape in (first, (3, 3, 4), (0, 3, 4), (5, 0, 4)):
        x = np.ones(shape)
        try:
            want = (x.reshape(x.shape[0], -1) * 2.0).shape
        except ValueError:
            with pytest.raises(ValueError, match="-1 can be anything"):
                f(x)
        else:
            assert f(x).shape == want
    flat = ag.compile(lambda a: ag.flatten(ag.as_tensor(a), 1))
    assert flat(np.ones(first)).shape[0] == first[0] and flat(np.ones((0, 3, 4))).shape == (0, 12)


def test_unflatten_beside_nothing() -> None:
    with pytest.raises(RuntimeError, match="-1 can be anything"):
        ag.unflatten(ag.ones(0, 3), 0, (0, -1))
    assert ag.unflatten(ag.ones(0, 3), 0, (-1, 2)).shape == (0, 2, 3)


@pytest.mark.parametrize(("low", "high"), [(-1, 2), (-1, 300), (300, 400), (-5, -1), (None, -1), (None, 999), (-9, None), (3, 999)])
def test_clip_takes_bounds_beyond_the_dtype_as_numpy_does(low: Any, high: Any) -> None:
    x, f = np.array([0, 1, 5, 255], np.uint8), ag.compile(lambda a: np.clip(a, low, high))
    try:
        want = np.clip(x, low, high)
    except OverflowError:
        with pytest.raises(OverflowError):
            f(x)
    else:
        got = f(x)
        assert got.dtype == want.dtype and np.array_equal(got, want)


def test_numpys_spellings_of_outer_and_count_nonzero() -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.arange(4.0).reshape(2, 2)
    assert np.array_equal(np.outer(ag.from_numpy(a), ag.from_numpy(b)).numpy(), np.outer(a, b))
    with pytest.raises(RuntimeError, match="two vectors"):
        ag.outer(ag.from_numpy(a), ag.from_numpy(b))
    for axis in (None, 0, (0, 1)):
        for keepdims in (False, True):
            want = np.count_nonzero(a, axis=axis, keepdims=keepdims)
            compiled = ag.compile(lambda x, d=axis, k=keepdims: np.count_nonzero(x, axis=d, keepdims=k))
            for got in (np.count_nonzero(ag.from_numpy(a), axis=axis, keepdims=keepdims), compiled(a)):
                assert np.array_equal(np.asarray(got), want) and np.shape(got) == np.shape(want)
