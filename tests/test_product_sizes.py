"""Sizes over which products are summed must be equal: a 1 stands for others only where NumPy and torch let it."""

import numpy as np
import pytest

import aotgrad as ag

o = np.ones
F = ag.nn.functional


def _ufunc(name):
    return pytest.param(lambda x, y: getattr(np, name)(x, y), id=name, marks=pytest.mark.skipif(not hasattr(np, name), reason="not in this NumPy"))


_VECTORS = [pytest.param(f, id=n) for n, f in {"inner": lambda x, y: np.inner(x[0], y[0]), "tensordot": lambda x, y: np.tensordot(x, y.T, 1),
            "tensordot_axes": lambda x, y: np.tensordot(x, y, ([1], [1])), "tensordot_two": lambda x, y: np.tensordot(x, y, 2),
            "matvec": lambda x, y: np.matvec(x, y[0]), "vecmat": lambda x, y: np.vecmat(x[0], y.T), "linalg.vecdot": lambda x, y: np.linalg.vecdot(x, y)}.items()
            if n not in ("matvec", "vecmat") or hasattr(np, n)] + [_ufunc("vecdot")]


def _sum(f):
    return lambda *xs: np.sum(f(*xs))


@pytest.mark.parametrize("f", _VECTORS)
def test_numpys_products_let_no_1_stand_for_other_sizes(f):
    small, large = o((2, 1)), o((2, 3))
    with pytest.raises(ValueError):
        f(small, large)
    for x, y in ((small, large), (large, small)):
        for run in (ag.compile(f), ag.grad(_sum(f)), ag.compile(ag.grad(_sum(f))), lambda x, y: f(ag.from_numpy(x), ag.from_numpy(y))):
            with pytest.raises(ag.AotgradError):
                run(x, y)
    np.testing.assert_array_equal(ag.compile(f)(large, large), f(large, large))
    np.testing.assert_array_equal(f(ag.from_numpy(large), ag.from_numpy(large)).numpy(), f(large, large))


@pytest.mark.parametrize("f", _VECTORS)
def test_one_compiled_function_asks_at_every_call(f):
    small, large, larger = o((2, 1)), o((2, 3)), o((2, 5))
    for first in (small, large):
        g = ag.compile(f)
        np.testing.assert_array_equal(g(first, first), f(first, first))
        for x, y in ((small, large), (large, small), (large, larger)):
            with pytest.raises(ag.AotgradError):
                g(x, y)
        for x in (small, large, larger):
            np.testing.assert_array_equal(g(x, x), f(x, x))


@pytest.mark.parametrize("f", [np.cross, np.linalg.cross], ids=["cross", "linalg.cross"])
def test_vectors_of_a_cross_product_have_three_elements(f):
    x, one = np.arange(6.0).reshape(2, 3), o((2, 1))
    g = ag.compile(f)
    for a, b in ((x, one), (one, x), (one, one)):
        for run in (g, lambda a, b: f(ag.from_numpy(a), ag.from_numpy(b)), lambda a, b: ag.cross(ag.from_numpy(a), ag.from_numpy(b))):
            with pytest.raises(ag.AotgradError, match="size 3"):
                run(a, b)
    np.testing.assert_array_equal(g(x, x[:1] + 1), f(x, x[:1] + 1))  # other dims broadcast
    with pytest.raises(ag.AotgradError, match="size 3"):
        g(x, one)
    with pytest.raises(ag.AotgradError, match="same number of dimensions"):
        ag.cross(ag.ones(2, 3), ag.ones(3))


def test_batches_of_matrices_are_equal_in_number():
    x, one = ag.ones(4, 3, 2), ag.ones(1, 2, 3)
    added = ag.zeros(3, 3)
    for run in (ag.bmm, ag.compile(ag.bmm)):
        with pytest.raises(RuntimeError, match=r"batch2 tensor to be: \[4, 2\] but got: \[1, 2\]"):
            run(x, one)
        assert run(x, ag.ones(4, 2, 3)).shape == (4, 3, 3)
        with pytest.raises(RuntimeError, match=r"\[4, 2\] but got: \[1, 2\]"):
            run(x, one)
    for run in (ag.baddbmm, ag.compile(ag.baddbmm)):
        with pytest.raises(RuntimeError, match=r"\[4, 2\] but got: \[1, 2\]"):
            run(added, x, one)
        assert run(added, x, ag.ones(4, 2, 3)).shape == (4, 3, 3)
    assert ag.matmul(x, one).shape == (4, 3, 3)


@pytest.mark.parametrize("spec", ["ii->i", "ii", "ij,kk->ij"])
def test_a_repeated_index_of_one_operand_has_one_size(spec):
    more = (o((2, 2)),) if "," in spec else ()
    g = ag.compile(lambda *xs: np.einsum(spec, *xs))
    for shape in ((1, 2), (3, 2), (3, 1)):
        for run in (np.einsum, ag.einsum, lambda spec, *xs: g(*xs), lambda spec, *xs: ag.compile(lambda *xs: ag.einsum(spec, *xs))(*map(ag.from_numpy, xs)),
                    lambda spec, *xs: ag.einsum(spec, *map(ag.from_numpy, xs)), lambda spec, *xs: np.einsum(spec, *map(ag.from_numpy, xs))):
            with pytest.raises((ValueError, RuntimeError)):
                run(spec, *more, o(shape))
        for n in (1, 3):
            x = np.arange(float(n * n)).reshape(n, n)
            np.testing.assert_array_equal(g(*more, x), np.einsum(spec, *more, x))


@pytest.mark.parametrize("spec, a, b", [("i,i->i", (1,), (3,)), ("i,i->", (1,), (3,)), ("ij,jk->ik", (2, 1), (3, 2)), ("ii,i->i", (1, 1), (3,))])
def test_between_operands_of_einsum_1_gives_way(spec, a, b):
    x, y = o(a), o(b)
    want = np.einsum(spec, x, y)
    np.testing.assert_array_equal(ag.compile(lambda x, y: np.einsum(spec, x, y))(x, y), want)
    np.testing.assert_array_equal(ag.einsum(spec, ag.from_numpy(x), ag.from_numpy(y)).numpy(), want)


def test_weights_of_an_average_have_its_shape_or_the_sizes_along_axis():
    x, cube = np.arange(6.0).reshape(2, 3), np.arange(24.0).reshape(2, 3, 4)
    for w, axis, error in ((o((2, 1)), None, TypeError), (o((2, 1)), 1, ValueError), (o(2), None, TypeError), (o(2), 1, ValueError), (o(1), 1, ValueError),
                           (o((3, 2)), None, TypeError), (o(()), 1, ValueError)):
        def f(x, w, axis=axis):
            return np.average(x, axis, w)

        for run in (f, ag.compile(f), lambda x, w, f=f: f(ag.from_numpy(x), ag.from_numpy(w)), ag.grad(lambda x, w, f=f: np.sum(f(x, w)))):
            with pytest.raises(error):
                run(x, w)
    for a, w, axis in ((x, o((2, 3)), None), (x, o((2, 3)), 1), (x, np.arange(1.0, 4.0), 1), (x, np.arange(1.0, 3.0), -2), (cube, np.arange(12.0).reshape(3, 4), (1, 2)),
                       (cube, np.arange(12.0).reshape(4, 3), (2, 1)), (x, np.arange(6.0).reshape(3, 2), (1, 0))):
        want = np.average(a, axis, w)
        np.testing.assert_allclose(ag.compile(lambda a, w, axis=axis: np.average(a, axis, w))(a, w), want, rtol=1e-15)
        np.testing.assert_allclose(np.average(ag.from_numpy(a), axis, ag.from_numpy(w)).numpy(), want, rtol=1e-15)


def test_linear_needs_a_matrix_for_a_bias_that_does_not_grow_the_output():
    for run in (F.linear, ag.compile(F.linear)):
        for x, w, b in (((2,), (2,), (1,)), ((3, 2), (2,), (1,)), ((3, 2), (2,), ()), ((5, 3, 2), (2,), (1,)), ((2,), (4, 2), (3, 4)), ((5, 3, 2), (1, 2), (4,)),
                        ((5, 3, 2), (4, 2), (2, 5, 3, 4)), ((3, 2), (1, 2), (4,)), ((3, 2), (4, 2), (2, 3, 4))):
            with pytest.raises(RuntimeError):
                run(ag.ones(*x), ag.ones(*w), ag.ones(b))
        for x, w, b in (((2,), (4, 2), (1,)), ((3, 2), (4, 2), (1,)), ((3, 2), (4, 2), (3, 4)),
                        ((5, 3, 2), (4, 2), (3, 1)), ((5, 3, 2), (2,), ()), ((3, 2), (1, 2), (3, 1))):
            assert run(ag.ones(*x), ag.ones(*w), ag.ones(b)).shape == (*x[:-1], *w[:-1])


def test_sizes_that_meet_stay_open():
    f = ag.compile(lambda x, y: np.tensordot(x, y, 1))
    for n in (2, 3, 7):
        np.testing.assert_array_equal(f(o((4, n)), o((n, 5))), np.full((4, 5), float(n)))
    assert f.cache_info().traces == 1
