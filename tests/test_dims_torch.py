"""What stands for dims: a bool is none, an empty tuple is all of them on tensors and none in NumPy; ``std``'s second argument; ties of the median."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import aotgrad as ag
from aotgrad.frontend.dispatch import TORCH
from aotgrad.frontend.further import FURTHER
from aotgrad.frontend.ordered import ORDERED

X = np.arange(6.0).reshape(2, 3) ** 2
_ARGUMENTS = {"source": ag.ones(1, 3, dtype=ag.float64), "index": ag.tensor([0]), "src": ag.zeros(2, 1, dtype=ag.float64), "other": ag.zeros(2, 3),
              "start": 0, "length": 1, "sizes": (1,),
              "split_size_or_sections": 1, "split_sizes": [1], "chunks": 1, "repeats": 1, "shifts": 1, "k": 1, "value": 1.0, "indices_or_sections": 1,
              "size": 1, "step": 1,
              "maxnorm": 1.0, "p": 2, "destination": 0, "dim0": 0, "dim1": 0, "dim2": 1, "reduce": "sum", "q": 0.5}


def _with_dim() -> list[str]:
    known = {**{n: p.signature for n, p in TORCH.items()}, **{n: inspect.signature(f) for n, f in (*FURTHER.items(), *ORDERED.items())}}
    return sorted(n for n, s in known.items() if "dim" in s.parameters and n not in ("getitem", "setitem"))


@pytest.mark.parametrize("name", _with_dim())
def test_a_bool_is_no_dim(name: str) -> None:
    f = getattr(ag, name, None) or getattr(ag.Tensor, name, None) or getattr(ag.nn.functional, name)
    parameters = inspect.signature(f).parameters
    x: Any = ag.tensor(X)
    first = next(iter(parameters))
    given = {n: _ARGUMENTS[n] for n, p in parameters.items() if p.default is p.empty and n not in (first, "dim") and n in _ARGUMENTS}
    if name in ("gather", "scatter", "scatter_add", "take_along_dim", "take_along_axis"):
        given["index" if "index" in parameters else "indices"] = ag.tensor([[0], [1]])
    with pytest.raises(ag.AotgradTypeError) as caught:
        f([x, x] if first == "tensors" else x, **given, dim=True)
    assert "dim" in str(caught.value)


@pytest.mark.parametrize("f", [lambda x: x.sum(True), lambda x: x.sum((True,)), lambda x: x.argmax(True), lambda x: ag.softmax(x, True), lambda x: x.cumsum(True),
                               lambda x: x.transpose(True, False), lambda x: x.flatten(True), lambda x: x.flip([True]), lambda x: x.select(True, 0),
                               lambda x: ag.cat([x, x], True), lambda x: x.std(1, 2), lambda x: x.std(False, True), lambda x: x.std(1, unbiased=True, correction=1)])
def test_bools_and_numbers_at_the_wrong_place_are_refused(f: Any) -> None:
    for call in (lambda: f(ag.tensor(X)), lambda: ag.compile(f)(ag.tensor(X))):
        with pytest.raises(ag.AotgradTypeError):
            call()


@pytest.mark.parametrize("f", [np.sum, np.mean, np.argmax, np.cumsum, np.max, np.std])
def test_as_numpy_refuses_them(f: Any) -> None:
    with pytest.raises(TypeError):
        f(X, axis=True)
    with pytest.raises(ag.AotgradTypeError):
        ag.compile(lambda x: f(x, axis=True))(X)


def test_the_second_argument_of_std() -> None:
    x, n = ag.tensor(X), X.size
    biased, free = X.std(), X.std(ddof=1)
    for got, want in [(x.std(False), biased), (x.std(True), free), (ag.std(x, False), biased), (x.var(True), free ** 2), (x.std(None, False), biased),
                      (ag.std_mean(x, False)[0], biased), (ag.var_mean(x, True)[0], free ** 2), (x.std((0, 1), False), biased), (x.std(), free),
                      (ag.compile(lambda t: t.std(False))(x), biased), (x.std(unbiased=False), biased), (x.std(correction=0), biased)]:
        np.testing.assert_allclose(float(got), want, rtol=1e-14)
    for got, want in [(x.std(1, True, True), X.std(1, ddof=1, keepdims=True)), (ag.var(x, 1, False, True), X.var(1, keepdims=True)),
                      (ag.std_mean(x, 1, False, True)[0], X.std(1, keepdims=True)), (ag.std_mean(x, 1)[1], X.mean(1))]:
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-14)
    assert n == 6 and ag.compile(lambda t: np.std(t, axis=1, ddof=1))(X).shape == (2,)


@pytest.mark.parametrize("name", ["sum", "mean", "std", "var", "amax", "amin", "norm", "logsumexp", "nansum", "nanmean", "count_nonzero", "prod"])
def test_no_dims_are_all_of_tensors(name: str) -> None:
    f, x = getattr(ag, name), ag.tensor(X)
    for empty in ((), []):
        got = f(x, dim=empty)
        assert got.shape == () and float(got) == float(f(x))
    if name != "count_nonzero":
        assert f(x, dim=(), keepdim=True).shape == (1, 1)


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "max", "min", "std", "any"])
def test_no_dims_are_none_in_numpy(name: str) -> None:
    f = getattr(np, name)
    want = f(X, axis=())
    for got in (ag.compile(lambda x: f(x, axis=()))(X), ag.compile(lambda x: getattr(x, name)(axis=()))(X), f(ag.tensor(X), axis=()).numpy()):
        np.testing.assert_array_equal(got, want)
    assert ag.tensor(X > 1).any(()).shape == (2, 3)  # as in PyTorch


@pytest.mark.parametrize(("numbers", "shares"), [([2, 2, 1, 3], [0.5, 0.5, 0, 0]), ([1, 2, 2, 2, 3], [0, 1 / 3, 1 / 3, 1 / 3, 0]), ([4, 1, 3], [0, 0, 1]),
                                                 ([np.nan, np.nan, 2], [0.5, 0.5, 0]), ([-np.inf, -np.inf, 2], [0.5, 0.5, 0])])
def test_the_middle_of_everything_shares_its_derivative(numbers: Any, shares: Any) -> None:
    x = ag.tensor(numbers, dtype=ag.float64, requires_grad=True)
    y = x.median()
    y.backward()
    np.testing.assert_array_equal(y.detach().numpy(), np.sort(numbers)[(len(numbers) - 1) // 2] if not np.isnan(numbers).any() else np.nan)
    np.testing.assert_allclose(x.grad.numpy(), shares, rtol=1e-15)
    assert y.grad_fn.name() == "MedianBackward0"


def test_the_middle_along_a_dim_goes_to_its_place() -> None:
    x = ag.tensor([2.0, 2.0, 1.0, 3.0], requires_grad=True)
    value, index = x.median(0)
    value.backward()
    assert x.grad.tolist() == [float(i == int(index)) for i in range(4)]
