"""Norms and what is built on them where squares and powers overflow or vanish: values, gradients and second derivatives scale as the numbers do."""

import numpy as np
import pytest
import sweep

import aotgrad as ag
from aotgrad.nn import functional as F

W = np.array([0.3, -1.2, 0.7])
FUNCTIONS = {  # of degree 1 (the value scales with x) or 0
    "norm": (lambda x: np.linalg.norm(x), 1),
    "norm along a dim": (lambda x: (np.linalg.norm(np.stack([x, 2.0 * x[::-1]]), axis=1) * W[:2]).sum(), 1),
    "norm 3": (lambda x: np.linalg.norm(x, 3), 1),
    "norm 1.5": (lambda x: np.linalg.norm(x, 1.5), 1),
    "norm -2": (lambda x: np.linalg.norm(x, -2), 1),
    "norm 40": (lambda x: np.linalg.norm(x, 40), 1),
    "hypot": (lambda x: np.hypot(x[0], x[1] * 0.5), 1),
    "std": (lambda x: np.std(x), 1),
    "std of a sample": (lambda x: np.std(x, ddof=1), 1),
    "cosine": (lambda x: F.cosine_similarity(x, x * W, 0, 0.0), 0),
    "normalize": (lambda x: (F.normalize(x, dim=0, eps=0.0) * W).sum(), 0),
}
X = np.array([3.0, -4.0, 1.5])


def _all(f, x):
    """Value, gradient and Hessian by eager and compiled code and by both modes."""
    value, gradient = ag.value_and_grad(f)(x)
    compiled = ag.compile(ag.value_and_grad(f))(x)
    second = [ag.hessian(f)(x), ag.compile(ag.jacfwd(ag.jacfwd(f)))(x), ag.compile(ag.jacrev(ag.jacrev(f)))(x)]
    along = np.stack([ag.jvp(f, (x,), (v,))[1] for v in np.eye(len(x), dtype=x.dtype)])
    return [value, compiled[0]], [gradient, compiled[1], along], second


@pytest.mark.parametrize("name", sweep.part(FUNCTIONS))
def test_derivatives_scale_with_the_numbers(name):
    f, degree = FUNCTIONS[name]
    values, gradients, seconds = _all(f, X)
    for scale in (2.0**660, 2.0**-660):
        far = _all(f, X * scale)
        for k, (near, now) in enumerate(zip((values, gradients, seconds), far)):
            for a in now:
                if k == 2 and degree == 0:
                    continue  # 1 / scale**2 has no number
                size = max(np.max(np.abs(near[0])), k - 1.0)  # second derivatives of high norms are differences
                np.testing.assert_allclose(np.ldexp(a, int(np.log2(scale)) * (k - degree)), near[0], rtol=1e-12, atol=1e-13 * size)


@pytest.mark.parametrize("p", [2, 3])
def test_float32_and_float16(p):
    x = X.astype(np.float32)
    near = ag.value_and_grad(lambda x: np.linalg.norm(x, p))(x)
    for scale in (2.0**100, 2.0**-100):
        value, gradient = ag.compile(ag.value_and_grad(lambda x: np.linalg.norm(x, p)))(x * np.float32(scale))
        assert value.dtype == np.float32 and abs(value / np.float32(scale) / near[0] - 1) < 1e-6
        np.testing.assert_allclose(gradient, near[1], rtol=1e-6)
    half = ag.tensor([300.0, 400.0], dtype=ag.float16, requires_grad=True)
    value = ag.norm(half)
    value.backward()
    assert value.item() == 500.0 and half.grad.tolist() == [np.float16(0.6), np.float16(0.8)]
    assert ag.std(ag.tensor([-300.0, 300.0], dtype=ag.float16), correction=0).item() == 300.0


def test_edges():
    norm = ag.compile(ag.value_and_grad(lambda x: np.linalg.norm(x)))
    assert norm(np.zeros(3))[0] == 0.0 and not norm(np.zeros(3))[1].any()
    assert norm(np.array([np.inf, 1.0]))[0] == np.inf and np.isnan(norm(np.array([np.nan, 1.0]))[0])
    assert np.isnan(norm(np.array([np.nan, 1.0]))[1]).all()
    tiny = np.array([3.0, 4.0]) * 5e-324
    assert norm(tiny)[0] == 5 * 5e-324
    np.testing.assert_allclose(norm(tiny)[1], [0.6, 0.8], rtol=1e-15)
    assert norm(np.array([1.6e308, 0.4e308]))[0] == pytest.approx(np.hypot(1.6e308, 0.4e308), rel=1e-15)
    assert norm(np.full(3, 1.5e308))[0] == np.inf  # it has no number itself
    x = np.random.default_rng(0).normal(size=1000)
    assert norm(x)[0] == ag.compile(lambda x: np.sqrt(np.sum(x * x)))(x)  # the same bits where squares have room
    assert norm(np.zeros(0))[0] == 0.0


@pytest.mark.parametrize(("dtype", "scales"), [(np.float64, (1e305, 1e300, 1e250, 1e-250, 1e-300, 1e-306)), (np.float32, (1e37, 1e30, 1e-30, 1e-37))])
def test_second_derivatives_at_the_ends_of_the_range(dtype, scales):
    """They are of the size of 1 / norm, which has room to the ends; every order of modes, whose intermediate results differ."""
    norm = lambda x: np.linalg.norm(x)
    ways = [ag.compile(ag.hessian(norm)), ag.compile(ag.jacrev(ag.grad(norm))), ag.compile(ag.jacfwd(ag.jacfwd(norm))), ag.hessian(norm)]
    for scale in scales:
        x = (scale / np.arange(1, 5)).astype(dtype)
        exact = x.astype(np.longdouble)
        size = np.sqrt(np.sum(exact * exact))
        want = (np.eye(4) - np.outer(exact / size, exact / size)) / size
        for way in ways:
            assert np.max(np.abs(way(x) - want)) <= 8 * np.finfo(dtype).eps * np.max(np.abs(want)), scale


def test_squares_of_norms_have_no_kink():
    x = np.zeros(3)
    np.testing.assert_array_equal(ag.compile(ag.hessian(lambda x: np.linalg.norm(x) ** 2))(x), 2 * np.eye(3))
    np.testing.assert_allclose(ag.compile(ag.hessian(lambda x: np.std(x) ** 2))(x), ag.hessian(np.var)(x), atol=1e-15)


def test_cost_where_squares_have_room():
    """One loop for the value, and one more for the gradient; what the branch reads is computed again there, and only the gradient is written."""
    f = lambda x, y: np.linalg.norm(x - y)
    x, y = np.ones(1000), np.zeros(1000)
    for g, written in ((f, "0 bytes"), (ag.value_and_grad(f), "7.8 KiB")):
        text = ag.compile(g).explain(x, y)
        kernels = [line.split(": ")[1] for line in text.splitlines() if line.startswith("  kernel ")]
        assert kernels[0].endswith("mul+sum") and kernels[1] == "cond" and len(kernels) == 2 + (g is not f), text
        assert f"writes {written}" in next(line for line in text.splitlines() if line.startswith("  in all: ")) and "+ 0 of workspace" in text
