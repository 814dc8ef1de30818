"""How often compiled functions of a model's memory-bound part go over their arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

import aotgrad as ag


def kernels(f: Any, *args: Any) -> list[Any]:
    """The kernels that read or write as many bytes as the first argument has."""
    return [k for k in f.explain(*args).kernels if k.read + k.written >= args[0].nbytes]


def test_cross_entropy_and_its_gradient_are_one_loop_over_rows() -> None:
    f = ag.compile(lambda x, t: ag.value_and_grad(lambda x: ag.nn.functional.cross_entropy(x, t))(x))
    x, t = np.random.default_rng(0).standard_normal((40, 70)), np.arange(40)
    found = kernels(f, x, t)
    assert len(found) == 1 and "inside 1 around them" in found[0].how and x.nbytes <= found[0].written < x.nbytes + 1000, found
    value, gradient = f(x, t)
    e = np.exp(x - x.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    np.testing.assert_allclose(value, -np.log(p[np.arange(40), t]).mean())
    np.testing.assert_allclose(gradient, (p - np.eye(70)[t]) / 40, atol=1e-15)


def test_a_mean_beside_the_rows_it_weighs_stays_out_of_their_way() -> None:
    def f(x: Any, w: Any) -> Any:
        return ag.sum(w * ag.sum(x * x, 1)) / ag.sum(w)

    both = ag.compile(ag.value_and_grad(f))
    x, w = np.random.default_rng(0).standard_normal((30, 50)), np.arange(1.0, 31.0)
    assert len(kernels(both, x, w)) == 1
    value, gradient = both(x, w)
    np.testing.assert_allclose(value, (w * (x * x).sum(1)).sum() / w.sum())
    np.testing.assert_allclose(gradient, 2 * x * w[:, None] / w.sum())


def test_cheap_chains_are_computed_again_where_their_data_is_read_anyway() -> None:
    def f(x: Any) -> Any:
        h = ag.maximum((x - 0.5) * x + 1.0, 0.25) * x
        return h / ag.sum(h)

    g = ag.compile(f)
    x = np.random.default_rng(0).standard_normal((40, 70))
    first, second = kernels(g, x)
    assert first.written == 0 and second.read == x.nbytes, (first, second)
    h = np.maximum((x - 0.5) * x + 1.0, 0.25) * x
    np.testing.assert_allclose(g(x), h / h.sum())


def test_rows_ask_for_the_next_while_they_compute() -> None:
    f = ag.compile(lambda x: ag.softmax(x, -1))
    x = np.random.default_rng(0).standard_normal((7, 50))
    text = f.lower(x).llvm_ir
    assert "@llvm.prefetch" in text
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(f(x), e / e.sum(1, keepdims=True))
    assert "@llvm.prefetch" not in ag.compile(lambda x: x * 2 + 1).lower(x).llvm_ir
