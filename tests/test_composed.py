"""Functions made of other functions, as one operation in eager code."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import aotgrad as ag
from aotgrad.frontend.composed import composed

F = ag.nn.functional
X = np.random.default_rng(3).normal(size=(3, 4))


def node(x: Any) -> Any:
    return x.grad_fn.name(), [n and n.name() for n, _ in x.grad_fn.next_functions]


def leaf(values: Any) -> Any:
    return ag.tensor(values, requires_grad=True)


def test_one_node_with_the_numbers_of_the_body() -> None:
    x = leaf(X)
    out = F.silu(x)
    assert node(out) == ("SiluBackward0", ["AccumulateGrad"]) and out.grad_fn._saved_self is x
    inside = inspect.unwrap(F.silu)(x)
    assert node(inside)[0] == "MulBackward0"
    np.testing.assert_array_equal(out.detach().numpy(), inside.detach().numpy())
    first, second = (ag.autograd.grad(o.sum(), x)[0].numpy() for o in (out, inside))
    np.testing.assert_allclose(first, second, rtol=1e-14)


def test_of_several_tensors_and_results() -> None:
    x, w = leaf(X), leaf(np.ones(4))
    out = F.layer_norm(x, (4,), w)
    assert node(out) == ("NativeLayerNormBackward0", ["AccumulateGrad", "AccumulateGrad", None])  # the last is the bias that is left out
    ct = ag.ones(3, 4, dtype=ag.float64)
    by_hand = out.grad_fn(ct)  # the mean and the factor, further results, need no gradient
    for one, other in zip(by_hand, ag.autograd.grad(out, (x, w), ct, retain_graph=True)):
        np.testing.assert_array_equal(one.detach().numpy(), other.numpy())
    with pytest.raises(TypeError, match="takes 3 gradients"):
        out.grad_fn()
    assert ag.autograd.gradcheck(lambda x, w: F.layer_norm(x, (4,), w), (x, w))
    assert ag.autograd.gradgradcheck(lambda x, w: F.layer_norm(x, (4,), w), (x, w))


def test_the_program_serves_every_grad_mode() -> None:
    x = leaf(X[:2, :3])
    with ag.no_grad():
        assert not F.elu(x, 0.75).requires_grad
    out = F.elu(x, 0.75)
    g, = ag.autograd.grad(out.sum(), x)
    np.testing.assert_allclose(g.numpy(), np.where(X[:2, :3] > 0, 1, 0.75 * np.exp(X[:2, :3])))
    with ag.inference_mode():
        assert F.elu(x, 0.75).is_inference()


def test_in_place() -> None:
    x = leaf(X)
    y = x * 1
    assert F.hardtanh(y, inplace=True) is y and y._version == 1
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), (np.abs(X) < 1).astype(float))
    a = X.copy()
    assert F.hardtanh(a, inplace=True) is a and np.abs(a).max() == 1


def test_constants_keep_their_gradients() -> None:
    logp, target = ag.log_softmax(ag.tensor(X), 1), ag.tensor([0, 1, 3])
    assert node(F.nll_loss(leaf(logp.numpy()), target, ag.ones(4, dtype=ag.float64))) == ("NllLossBackward0", ["AccumulateGrad"])
    w = leaf(np.array([1.0, 2.0, 3.0, 4.0]))
    F.nll_loss(logp, target, w, reduction="sum").backward()
    picked = logp.numpy()[[0, 1, 2], [0, 1, 3]]
    np.testing.assert_allclose(w.grad.numpy(), -np.array([picked[0], picked[1], 0, picked[2]]))


def test_arrays_traces_and_duals_meet_the_body() -> None:
    want = X / (1 + np.exp(-X))
    np.testing.assert_allclose(F.silu(X), want)
    np.testing.assert_allclose(ag.compile(F.silu)(X), want)
    np.testing.assert_allclose(ag.vmap(F.silu)(ag.tensor(X)).numpy(), want)
    out, moved = ag.jvp(F.silu, (ag.tensor(X),), (ag.ones(3, 4, dtype=ag.float64),))
    x = leaf(X)
    np.testing.assert_allclose(moved.numpy(), ag.autograd.grad(F.silu(x).sum(), x)[0].numpy())


@pytest.mark.parametrize("runs", [1, 160])
def test_expanded_cotangents(runs: int) -> None:
    x = leaf(X)
    out = F.layer_norm(x, (4,))
    spread, dense = ag.ones((), dtype=ag.float64).expand(3, 4), ag.ones(3, 4, dtype=ag.float64)
    for _ in range(runs):
        first, second = (ag.autograd.grad(out, x, ct, retain_graph=True)[0] for ct in (spread, dense))
    np.testing.assert_array_equal(first.numpy(), second.numpy())
    assert first.stride() == (4, 1) and out.grad_fn._saved[0].pullback((True,), (True, False, False)).program._computes


def test_the_decorator() -> None:
    @composed("TwiceBackward0", "input", "other")
    def _twice(input: Any, other: Any = None, *, scale: float = 2.0) -> Any:
        """Doc."""
        return input * scale if other is None else (input + other) * scale

    x, y = leaf(X), leaf(X)
    assert _twice.__doc__ == "Doc." and node(_twice(x)) == ("TwiceBackward0", ["AccumulateGrad"])
    assert node(_twice(x, y, scale=3.0)) == ("TwiceBackward0", ["AccumulateGrad", "AccumulateGrad"])
    np.testing.assert_array_equal(_twice(x, scale=5.0).detach().numpy(), X * 5)
    with pytest.raises(TypeError, match="twice"):
        _twice(x, factor=3.0)


@pytest.mark.parametrize("function, slope_of", [(F.leaky_relu, lambda x: x), (F.elu, np.expm1)], ids=["leaky_relu", "elu"])
def test_numbers_that_are_tensors_are_operands(function: Any, slope_of: Any) -> None:
    """They are followed, and read at every call."""
    slope, x = ag.tensor(0.5, dtype=ag.float64, requires_grad=True), leaf(np.array([-1.0, -2.0]))
    for number in (0.5, 0.75, 1.0):
        assert slope.item() == number
        out = function(x, slope).sum()
        np.testing.assert_allclose([out.item(), ag.autograd.grad(out, slope)[0].item()], np.array([number, 1.0]) * slope_of(x.detach().numpy()).sum(), rtol=1e-12)
        slope.data.add_(0.25)
