"""Sizes of two operands that must agree: compiled code refuses what eager code refuses, at its first call and at a later one, and takes a 1 where a 1 broadcasts."""

from __future__ import annotations

import numpy as np
import pytest

import aotgrad as ag

F = ag.nn.functional
rng = np.random.default_rng(7)


def floats(*shape):
    return ag.tensor(rng.uniform(0.2, 0.8, size=shape))


def zeros(*shape):
    return ag.tensor(np.zeros(shape, np.int64))


LOSSES = {
    "cross_entropy": F.cross_entropy,
    "nll_loss": F.nll_loss,
    "none": lambda x, y: F.cross_entropy(x, y, reduction="none"),
    "smoothed": lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
}
TARGETS = [((3, 5), (1,)), ((1, 5), (3,)), ((0, 5), (1,)), ((2, 2, 3), (1, 3)), ((1, 2, 3), (2, 3)), ((1, 2, 3), (1, 1))]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("shape, given", TARGETS)
def test_a_target_that_does_not_fit_is_refused(loss, shape, given):
    f, x, y = LOSSES[loss], floats(*shape), zeros(*given)
    forms = [lambda: f(x, y), lambda: ag.compile(f)(x, y), lambda: ag.compile(f)(x, y.numpy()), lambda: ag.compile(lambda x: f(x, y))(x),
             lambda: ag.compile(ag.grad(lambda x, y: ag.sum(f(x, y))))(x, y)]
    for form in forms:
        with pytest.raises(ValueError, match="needs a target of shape"):
            form()


@pytest.mark.parametrize("loss", LOSSES)
def test_a_later_target_that_does_not_fit_is_refused(loss):
    g = ag.compile(LOSSES[loss])
    for n in (3, 4):
        np.testing.assert_allclose(g(x := floats(n, 5), zeros(n)), LOSSES[loss](x, zeros(n)))
    for n in (1, 4, 0):
        with pytest.raises(ValueError, match="needs a target of shape"):
            g(floats(3, 5), zeros(n))


SUMS = {
    "addmm": (ag.addmm, [(1, 3), (2, 1), (1, 1), (3,), (1,), ()], (2, 4), (4, 3)),
    "baddbmm": (ag.baddbmm, [(1, 2, 3), (5, 1, 3), (1, 1, 1), (3,), (1,)], (5, 2, 4), (5, 4, 3)),
    "linear": (lambda b, x, w: F.linear(x, w, b), [(1,), (3,), (1, 3), (2, 1)], (2, 4), (3, 4)),
    "linear of three dims": (lambda b, x, w: F.linear(x, w, b), [(1,), (3,), (2, 1), (5, 1, 1)], (5, 2, 4), (3, 4)),
}


@pytest.mark.parametrize("name", SUMS)
def test_the_array_added_to_a_product_is_broadcast(name):
    f, shapes, *rest = SUMS[name]
    x, y = floats(*rest[0]), floats(*rest[1])
    kept = ag.compile(f)
    for shape in shapes:
        b = floats(*shape)
        want = b.numpy() + x.numpy() @ (y.numpy().T if "linear" in name else y.numpy())
        for got in (f(b, x, y), ag.compile(f)(b, x, y), kept(b, x, y)):
            np.testing.assert_allclose(got, want, rtol=1e-13)
        slope = ag.compile(ag.grad(lambda *a: ag.sum(f(*a))))(b, x, y)
        np.testing.assert_allclose(slope, np.full(shape, want.size / b.numel()), rtol=1e-13)


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("n", [0, 2, 4])
def test_an_array_that_does_not_fit_the_product_is_refused(name, n):
    f, _, *rest = SUMS[name]
    x, y = floats(*rest[0]), floats(*rest[1])
    kept = ag.compile(f)
    for fits in (1, 3):
        kept(floats(fits), x, y)
    for g in (f, ag.compile(f), kept):
        with pytest.raises((ValueError, RuntimeError), match="fit"):
            g(floats(n), x, y)


def test_a_size_of_1_that_broadcasts_leaves_the_others_open():
    f = ag.compile(ag.addmm)
    for n in (3, 4, 5):
        f(floats(1), floats(n, 4), floats(4, n + 1))
    assert f.cache_info().variants == 1


@pytest.mark.parametrize("count, source, error", [(3, (1, 2), IndexError), (1, (3, 2), IndexError), (2, (2,), IndexError), (2, (), IndexError), (3, (3, 1), RuntimeError),
                                                  (3, (3, 3), RuntimeError), (1, (), RuntimeError)])
def test_index_copy_takes_as_many_slices_as_places(count, source, error):
    def f(x, i, v):
        return ag.index_copy(x, 0, i, v)

    x, i, v = floats(4, 2), ag.tensor(np.arange(count)), floats(*source)
    kept = ag.compile(f)
    np.testing.assert_array_equal(kept(x, zeros(1), floats(1, 2) * 0)[0], 0)
    for g in (f, ag.compile(f), kept):
        with pytest.raises(error, match="index_copy"):
            g(x, i, v)


def test_index_copy_writes_slices():
    x, v = floats(4, 2), floats(4, 1)
    for f in (ag.index_copy, ag.compile(ag.index_copy, static="dim")):
        got = f(x, 1, ag.tensor(1), v).numpy()
        np.testing.assert_array_equal(got, np.stack([x.numpy()[:, 0], v.numpy()[:, 0]], 1))
    assert ag.index_copy(ag.tensor(2.0), 0, ag.tensor([0]), ag.tensor(3.0)).item() == 3.0
