"""Reductions of the same data share a pass over it, and gradients that meet are added where one of them is made: loops and bytes counted in the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aotgrad as ag

F = ag.nn.functional
X = np.random.default_rng(0).normal(size=(64, 500))


def loops_over(f: Any, *args: Any, least: int) -> list[Any]:
    """The kernels that read or write at least so many bytes."""
    return [k for k in ag.compile(f).explain(*args).kernels if max(k.read, k.written) >= least]


SIBLINGS = {
    "whole": lambda x: (x.mean(), x.max(), (x * x).sum()),
    "rows": lambda x: (x.mean(1), ag.amax(x, 1), (x * x).sum(1), ag.amin(x, 1)),
    "columns": lambda x: (x.mean(0), ag.amax(x, 0), (x * x).sum(0)),
    "rows and columns": lambda x: (x.sum(1), x.sum(0), ag.amax(x)),
    "extrema of all beside sums of rows": lambda x: (ag.amax(x), ag.amin(x, 0), x.mean(1), (x * x).sum(1)),
    "with what they are of": lambda x: (ag.tanh(x), ag.tanh(x).sum(1), ag.amax(ag.tanh(x), 1)),
    "variance": lambda x: (x.mean(0), F.batch_norm(x, None, None, training=True).sum(0) * 0.0 + x.sum(0)),
    "gradients of scale and shift": lambda x: ag.grad(lambda w, b: ag.sum(ag.sin(w * x + b)), argnums=(0, 1))(np.ones(500), np.zeros(500)),
}


@pytest.mark.parametrize("name", SIBLINGS)
def test_one_pass(name: str) -> None:
    f = SIBLINGS[name]
    found = loops_over(f, X, least=X.nbytes // 2)
    assert sum(k.read for k in found) <= (1.2 if name != "variance" else 2.3) * X.nbytes, [(k.name, k.read) for k in found]
    for a, b in zip(ag.compile(f)(X), f(ag.tensor(X))):
        np.testing.assert_allclose(a, np.asarray(b.detach()), rtol=1e-10, atol=1e-10)


def test_sums_in_two_orders_are_two_passes() -> None:
    """The order of a sum follows from what is summed alone: one of everything goes by vectors along the rows, one of columns from row to row."""
    assert len(loops_over(lambda x: (x.sum(), x.sum(0)), X, least=X.nbytes // 2)) == 2


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
def test_gradients_of_a_batch_norm(last: bool) -> None:
    """Sums for scale and shift are one pass, which also makes what the gradient of the image needs of them."""
    x = np.random.default_rng(1).normal(size=(4, 16, 24, 20)).astype(np.float32)
    if last:
        x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)

    def gradients(x: Any, w: Any, b: Any, ct: Any) -> Any:
        return ag.vjp(lambda w, b: F.batch_norm(x, None, None, w, b, training=True), w, b)[1](ct)

    found = loops_over(gradients, x, np.ones(16, np.float32), np.zeros(16, np.float32), x, least=x.nbytes // 2)
    assert sum(k.read for k in found) <= 3.2 * x.nbytes  # statistics; then x and the cotangent


def test_two_contributions_to_one_weight() -> None:
    """The second product adds the first on its blocks: no pass of its own."""
    w, x, y = (np.random.default_rng(2).normal(size=s).astype(np.float32) for s in ((300, 200), (64, 300), (64, 300)))

    def loss(w: Any, x: Any, y: Any) -> Any:
        return ag.sum((x @ w) ** 2) + ag.sum(ag.tanh(y @ w))

    kernels = loops_over(ag.grad(loss), w, x, y, least=w.nbytes)
    made = [k for k in kernels if k.written == w.nbytes]
    assert [k.name for k in made] == ["dot", "dot+add"]
    assert made[1].read == w.nbytes + 4 * 64 * (300 + 200) and len(kernels) == 4
