"""NumPy's functions on NumPy's values mean NumPy's: dtypes, shapes, errors; and what unchecked indices do."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import pytest

import aotgrad as ag
from aotgrad.ir import interp

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

# ---- dtypes and shapes ----------------------------------------------------------------------------------------------------------------

CUBE, INTS, MORE, BOOLS = np.arange(24.0).reshape(2, 3, 4), np.array([-3, 2, 5]), np.array([1, 3, 6]), np.array([True, False, True])
VECTOR, SQUARE = np.arange(3.0), np.arange(4, dtype=np.int32).reshape(2, 2)
SAME: dict[str, tuple[Any, ...]] = {
    "trace of rank 3": (np.trace, CUBE), "trace, axes": (lambda x: np.trace(x, 1, 0, 2), CUBE), "trace of int32": (np.trace, SQUARE),
    "trace of bools": (np.trace, SQUARE > 1),
    "square of ints": (np.square, np.array([2**31 + 1, 3])), "square of bools": (np.square, BOOLS),
    "cumsum, rank 0": (lambda x: np.cumsum(x), np.array(3.0)), "cumprod, rank 0": (lambda x: np.cumprod(x), np.array(3.0)),
    "repeat, rank 0": (lambda x: np.repeat(x, 3, axis=0), np.array(2.0)), "argmax, rank 0": (lambda x: np.argmax(x, axis=0), np.array(2.0)),
    "argmin, rank 0": (lambda x: np.argmin(x, axis=-1), np.array(2.0)),
    **{f"{f.__name__} of ints": (f, INTS) for f in (np.floor, np.ceil, np.trunc, np.round, np.rint)},
    "floor of bools": (np.floor, BOOLS), "round to decimals": (lambda x: np.round(x, 2), VECTOR / 7), "clip of bools": (lambda x: np.clip(x, False, True), BOOLS),
    "clip of bools to ints": (lambda x: np.clip(x, 0, 1), BOOLS), "abs of bools": (np.abs, BOOLS), "tril of a vector": (np.tril, VECTOR),
    "triu of a vector": (lambda x: np.triu(x, 1), VECTOR), "and": (lambda x, y: x & y, INTS, MORE), "or": (lambda x, y: x | y, INTS, MORE),
    "xor": (np.bitwise_xor, INTS, MORE), "and, number": (lambda x: 3 & x, INTS), "and, bools and ints": (lambda x, y: x & y, INTS, BOOLS),
    "or of bools": (lambda x: x | x, BOOLS),
    "not": (np.invert, INTS), "shift left": (lambda x: x << 2, INTS), "shift right": (lambda x, y: x >> y, INTS, MORE),
    "sum where": (lambda x: np.sum(x, where=x > 1), VECTOR),
    "max initial": (lambda x: np.max(x, initial=9.0), VECTOR), "min where": (lambda x: np.min(x, initial=0.5, where=x > 1), VECTOR),
    "prod where": (lambda x: np.prod(x, where=x > 0), VECTOR), "mean where": (lambda x: np.mean(x, axis=0, where=x > 3), CUBE),
    "sum initial": (lambda x: np.sum(x, initial=3.0), VECTOR),
    "method where": (lambda x: x.sum(axis=1, where=x > 4), CUBE), "squeeze": (lambda x: np.squeeze(x[:, :1], axis=1), CUBE),
}


@pytest.mark.parametrize("name", SAME)
def test_values_shapes_and_dtypes_are_numpys(name: str) -> None:
    f, *xs = SAME[name]
    want, got = np.asarray(f(*xs)), np.asarray(C(f)(*xs))
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_allclose(got, want, rtol=1e-15)


ERRORS: dict[str, tuple[Any, ...]] = {
    "trace of a vector": (np.trace, "rank 2 or more", VECTOR), "reciprocal of ints": (np.reciprocal, "whole number", INTS),
    "squeeze": (lambda x: np.squeeze(x, axis=0), "size 1", CUBE),
    "negative pad": (lambda x: np.pad(x, -1), "negative", VECTOR), "pad by text": (lambda x: np.pad(x, "a"), "whole numbers", VECTOR),
    "round of bools": (np.round, "float16", BOOLS),
    "max where": (lambda x: np.max(x, where=x > 1), "needs initial=", VECTOR), "NumPy's names": (lambda x: np.exp(x, casting="no"), r"np\.exp.*exp\(a\)", VECTOR),
    "roll by a half": (lambda x: np.roll(x, 1.5), "whole number", VECTOR), "no chunks": (lambda x: ag.chunk(x, 0), "above 0", VECTOR),
    "matmul": (lambda x: x @ x, r"matmul: shapes \(2, 3\) and \(2, 3\)", np.ones((2, 3))),
    "broadcast": (lambda x: x + np.ones(2), r"add: shapes \(3,\) and \(2,\)", VECTOR),
    "index": (lambda x: x[7], r"indexing: index 7 is out of bounds", VECTOR), "bits of floats": (lambda x: x & 1, "bools and integers", VECTOR),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_the_function_and_what_is_wrong(name: str) -> None:
    f, text, x = ERRORS[name]
    with pytest.raises(ag.AotgradError, match=text) as caught:
        C(f)(x)
    assert "getitem_" not in str(caught.value)


def test_eager_shape_errors_name_the_operation() -> None:
    with pytest.raises(ag.AotgradError, match=r"matmul: mat1 and mat2 shapes cannot be multiplied \(2x3 and 2x3\)"):
        ag.ones(2, 3) @ ag.ones(2, 3)


@pytest.mark.parametrize("call", [
    lambda: C(lambda x: np.einsum(3, x))(VECTOR), lambda: C(lambda x: np.full_like(x, "a"))(VECTOR), lambda: ag.full_like(ag.tensor(VECTOR), "a"),
    lambda: C(lambda x: x.reshape((1,) * 65))(np.ones(1)), lambda: C(lambda x: x[None])(np.ones((1,) * 64)), lambda: ag.zeros((1,) * 65),
    lambda: ag.ones(1).reshape((1,) * 65),
])
def test_errors_are_aotgrads(call: Any) -> None:
    with pytest.raises(ag.AotgradError) as caught:
        call()
    assert "None:" not in str(caught.value)


def test_masks_of_a_wrong_length_are_named() -> None:
    pick = C(lambda x: x[[True, False, True]])
    np.testing.assert_array_equal(pick(np.arange(3.0)), [0.0, 2.0])
    for n in (2, 4):
        with pytest.raises(ag.AotgradIndexError, match=rf"mask \[3\].*size {n}"):
            pick(np.arange(float(n)))
        with pytest.raises(ag.AotgradIndexError, match=rf"mask \[3\].*size {n}"):
            C(lambda x: x[np.array([True, False, True])])(np.arange(float(n)))


def test_functions_of_scipy_say_what_to_use() -> None:
    special = pytest.importorskip("scipy.special")
    with pytest.raises(ag.AotgradTypeError, match=r"test_numpy_meanings.py.*scipy.special.gammaln"):
        C(lambda x: special.gammaln(x))(VECTOR)
    with pytest.raises(ag.AotgradTypeError, match=r"test_numpy_meanings.py.*ag.logsumexp"):
        C(lambda x: special.logsumexp(x))(VECTOR)


# ---- functions that newcomers miss ----------------------------------------------------------------------------------------------------

_A, _B = np.linspace(0.2, 1.7, 6).reshape(2, 3), np.linspace(-1.1, 0.8, 6).reshape(2, 3)
NEW: dict[str, Any] = {
    **{name: getattr(np, name) for name in ("logaddexp", "logaddexp2", "hypot", "fmax", "fmin", "heaviside", "isclose", "kron", "cross")},
    **{f.__name__: (lambda x, y, f=f: f(x) + y) for f in (np.cbrt, np.deg2rad, np.rad2deg, np.degrees, np.radians, np.nan_to_num, np.sinc, np.arcsinh)},
    "arccosh": lambda x, y: np.arccosh(x + 1.5), "arctanh": lambda x, y: np.arctanh(y / 2 + 0 * x), "hstack": lambda x, y: np.hstack((x, y)),
    "vstack": lambda x, y: np.vstack([x, y]),
    "dstack": lambda x, y: np.dstack((x, y)), "column_stack": lambda x, y: np.column_stack((x[:, 0], y)),
    "meshgrid": lambda x, y: np.meshgrid(y[0], x[1], x[:, 0])[1], "meshgrid, ij": lambda x, y: np.meshgrid(x[0], y[:, 1], indexing="ij")[0],
    "polyval": lambda x, y: np.polyval(x[0], y), "diff": lambda x, y: np.diff(x, n=2) + np.diff(y, axis=0)[0, 0],
}


@pytest.mark.parametrize("name", NEW)
def test_functions_newcomers_miss(name: str) -> None:
    f = NEW[name]
    want = np.asarray(f(_A, _B))
    got = np.asarray(C(f)(_A, _B))
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_allclose(got, want, rtol=1e-14, atol=1e-15)
    if want.dtype.kind == "f":
        step = 1e-6
        direction = np.cos(np.arange(6.0)).reshape(2, 3)
        slope = (np.sum(f(_A + step * direction, _B)) - np.sum(f(_A - step * direction, _B))) / (2 * step)
        for gradient in (ag.grad(lambda x, y: np.sum(f(x, y))), C(ag.grad(lambda x, y: np.sum(f(x, y))))):
            assert abs(np.sum(gradient(_A, _B) * direction) - slope) < 1e-6 * (1 + abs(slope))


def test_hypot_neither_underflows_nor_overflows() -> None:
    for size in (1e-200, 1e200):
        for f, g in ((ag.hypot, ag.grad(ag.hypot, argnums=(0, 1))), (C(ag.hypot), C(ag.grad(ag.hypot, argnums=(0, 1))))):
            assert float(f(size, size)) == pytest.approx(2**0.5 * size, rel=1e-15)
            np.testing.assert_allclose(np.asarray(g(size, size)), [0.5**0.5] * 2, rtol=1e-15)
    np.testing.assert_array_equal(np.asarray(ag.grad(ag.hypot, argnums=(0, 1))(0.0, 0.0)), [0.0, 0.0])


def test_logaddexp_at_its_hard_points() -> None:
    g = C(ag.grad(np.logaddexp, argnums=(0, 1)))
    np.testing.assert_allclose(np.asarray(g(1.0, 1.0)), [0.5, 0.5])
    np.testing.assert_allclose(np.asarray(g(1e300, -1e300)), [1.0, 0.0])
    np.testing.assert_allclose(np.asarray(g(-np.inf, -np.inf)), [0.5, 0.5])
    assert float(C(np.logaddexp)(-np.inf, -np.inf)) == -np.inf and float(C(np.logaddexp)(np.inf, np.inf)) == np.inf
    assert float(ag.grad(ag.grad(ag.logaddexp))(1.0, 1.0)) == pytest.approx(0.25, rel=1e-15)


def test_sinc_is_smooth_at_0() -> None:
    second = ag.grad(ag.grad(ag.sinc))
    assert float(ag.sinc(0.0)) == 1.0 and float(ag.grad(ag.sinc)(0.0)) == 0.0
    assert float(second(0.0)) == pytest.approx(-np.pi**2 / 3, rel=1e-14)
    x = np.linspace(-0.4, 0.4, 41)
    np.testing.assert_allclose(C(ag.sinc)(x), np.sinc(x), rtol=1e-15, atol=1e-16)


def test_stacks_and_differences_of_tensors() -> None:
    x, y = ag.tensor([1.0, 4.0], requires_grad=True), ag.tensor([2.0, 8.0])
    assert ag.hstack([x, y]).tolist() == [1.0, 4.0, 2.0, 8.0] and ag.vstack((x, y)).shape == (2, 2) and ag.dstack((x, y)).shape == (1, 2, 2)
    assert ag.column_stack((x, y)).tolist() == [[1.0, 2.0], [4.0, 8.0]] and ag.diff(x).tolist() == [3.0]
    rows, columns = ag.meshgrid(x, y)
    assert rows.tolist() == [[1.0, 1.0], [4.0, 4.0]] and columns.tolist() == [[2.0, 8.0], [2.0, 8.0]]
    (ag.vstack((x, y)) * ag.vstack((y, x))).sum().backward()
    assert x.grad.tolist() == [4.0, 16.0]


# ---- integers where an operation has no meaning, or an odd one ------------------------------------------------------------------------

def roads(f: Any, *args: Any) -> list[Any]:
    """A function by every road: compiled, on tensors, and interpreted."""
    return [lambda: C(f)(*args), lambda: f(*[ag.tensor(a) for a in args]).numpy(),
            lambda: interp.run(C(f).trace(*args), *args)[0]]


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_a_negative_integer_power_is_an_error_by_every_road(dtype: Any) -> None:
    x = np.array([[2, 1], [-1, 0], [3, 7]], dtype)
    good, bad = np.array([3, 0], dtype), np.array([2, -1], dtype)

    def power(x: Any, y: Any) -> Any:
        return x ** y

    for run in roads(power, x, good):
        np.testing.assert_array_equal(run(), x ** good)
    with pytest.raises(ValueError):
        power(x, bad)
    for run in roads(power, x, np.broadcast_to(bad, x.shape)):
        with pytest.raises(ag.AotgradValueError, match=r"[Ii]ntegers to negative integer powers are not allowed"):
            run()
    with pytest.raises(ValueError, match=r"test_numpy_meanings.py:\d+: pow: .*convert the base to a float dtype \(-1 in power\)"):
        C(power)(x, bad)
    f = C(power)
    for _ in range(2):  # through Python, then through the trampoline
        np.testing.assert_array_equal(f(x, good), x ** good)
        with pytest.raises(ValueError):
            f(x, bad)


def test_an_integer_power_is_asked_only_where_the_program_computes_it() -> None:
    x, y = np.array([5, 2, 3, 2, 9]), np.array([0, 1, 2, 3, 4])

    def shifted(x: Any, y: Any) -> Any:  # a window: where it ends, what it would read is 0, and 0 - 1 is negative
        return ag.zeros_like(x).at[1:].set(x[1:] ** (y[1:] - 1))

    np.testing.assert_array_equal(C(shifted)(x, y), np.concatenate([[0], x[1:] ** (y[1:] - 1)]))
    assert C(lambda x, y: x ** y)(np.zeros(0, int), np.zeros(0, int)).shape == (0,)
    np.testing.assert_array_equal(C(lambda x, y: x[:0] ** y)(x, -1), np.zeros(0))
    np.testing.assert_array_equal(C(lambda x: x ** np.uint8(200))(np.array([1, 3], np.uint8)), np.array([1, 3], np.uint8) ** np.uint8(200))


def test_unchecked_negative_powers_truncate() -> None:
    np.testing.assert_array_equal(C(lambda x, y: x ** y, checks=False)(np.array([2, 1, -1, 0, -1, 5]), np.array([-1, -2, -3, -1, -4, 3])), [0, 1, -1, 0, 1, 125])


I64, EDGE = np.iinfo(np.int64), np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 3e9, -1.5, 300.0, -300.0])
SHIFTS = np.array([63, 64, 65, -1, 200, 3])
EDGES: dict[str, tuple[Any, ...]] = {
    "// 0": (lambda x, y: x // y, np.array([2, -1, 0, I64.min, 7]), np.array([0, 0, 0, -1, -2])), "% 0": (lambda x, y: x % y, np.array([2, -1, 0, I64.min, 7]),
    np.array([0, 0, 0, -1, -2])), "fmod 0": (np.fmod, np.array([2, -1, 0, I64.min, -7]), np.array([0, 0, 0, -1, 2])),
    "uint8 // 0": (lambda x, y: x // y, np.array([2, 1, 9], np.uint8), np.array([0, 0, 4], np.uint8)),
    "int32 // -1": (lambda x, y: x // y, np.array([-2**31, 2], np.int32), np.array([-1, 0], np.int32)),
    "<< width": (lambda x, y: x << y, np.array([1, 1, 1, 1, 5, -5]), SHIFTS), ">> width": (lambda x, y: x >> y, np.array([1, -1, -5, -1, 5, -5]), SHIFTS),
    "uint8 << width": (lambda x, y: x << y, np.array([1, 1, 200], np.uint8), np.array([7, 8, 9], np.uint8)),
    **{f"float64 to {np.dtype(d)}": (lambda x, d=d: x.astype(d), EDGE) for d in (np.int64, np.int32, np.int16, np.int8, np.uint8, np.bool_)},
    **{f"float32 to {np.dtype(d)}": (lambda x, d=d: x.astype(d), EDGE.astype(np.float32)) for d in (np.int64, np.int32, np.int16, np.int8, np.uint8, np.bool_)},
}


@pytest.mark.parametrize("name", EDGES)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="NumPy's casts out of range are the processor's")
def test_integers_at_the_edge_are_numpys_by_every_road(name: str) -> None:
    f, *args = EDGES[name]
    with np.errstate(all="ignore"):
        expected = f(*args)
    division = len(args) == 2 and not np.all(args[1]) and "<<" not in name
    for run in roads(f, *args)[::2 if division else 1]:  # tensors refuse to divide by zero, as torch's (tests/test_edges.py)
        np.testing.assert_array_equal(run(), expected)


@pytest.mark.parametrize("dtype", ["?", "i1", "i2", "i4", "i8", "u1", "f2", "f4", "f8"])
def test_powers_in_floats_are_computed_in_float64(dtype: str) -> None:
    x = np.array([1, 0, 3], dtype)
    for f in (lambda x: np.float_power(x, 3), lambda x: np.float_power(2, x), lambda x: np.float_power(x, x), lambda x: np.float_power.outer(x, np.arange(2))):
        want = f(x)
        for got in (ag.compile(f)(x), f(ag.from_numpy(x)).numpy(), ag.compile(f)(ag.from_numpy(x)).numpy()):
            assert got.dtype == want.dtype == np.float64
            np.testing.assert_allclose(got, want, rtol=1e-15)
    third = np.array([1.5, 2, 3], "f4")  # a product of float32 would round
    np.testing.assert_allclose(ag.compile(lambda x: np.float_power(x, 3))(third), np.float_power(third, 3), rtol=1e-15)
    assert ag.grad(lambda x: np.sum(np.float_power(x, 3)))(third).dtype == np.float32
    assert ag.float_power(ag.tensor([2, 3]), np.array([2, 2])).tolist() == [4.0, 9.0]


@pytest.mark.parametrize("dtype", ["?", "i1", "i2", "i4", "i8", "u1"])
@pytest.mark.parametrize("f", [np.fabs, np.rint], ids=["fabs", "rint"])
def test_ufuncs_of_floats_alone_give_floats(f: Any, dtype: str) -> None:
    x = np.array([1, 0, 3], dtype) * (np.array([-1, 1, 1], dtype) if dtype[0] == "i" else np.array([1, 1, 1], dtype))
    got, tensor = ag.compile(f)(x), f(ag.from_numpy(x))
    assert got.dtype == ag.compile(np.sqrt)(abs(x)).dtype == np.float64
    assert tensor.dtype is np.sqrt(ag.from_numpy(abs(x))).dtype
    np.testing.assert_array_equal(got, f(x))
    np.testing.assert_array_equal(tensor.numpy(), f(x))
    assert ag.compile(f)(x.astype("f4")).dtype == np.float32


def test_names_beyond_ascii() -> None:
    x = np.arange(3.0)
    assert ag.compile(lambda α: α * 2)(x).tolist() == [0.0, 2.0, 4.0]
    assert ag.compile(lambda α, *, β: α * 2 + β.sum())(x, β=np.ones(2)).tolist() == [2.0, 4.0, 6.0]
    assert ag.compile(ag.grad(lambda d: (d["θ"] ** 2).sum() + d["φ"].sum()))({"θ": x, "φ": np.ones(2)})["θ"].tolist() == [0.0, 2.0, 4.0]


def test_constants_beside_arrays_stay_numpys() -> None:
    p, x = np.array([1.0, 2.0]), np.array([1.0, 3.0])
    for at in (x, 3.0, np.float64(3.0)):
        got = ag.compile(lambda p, at=at: np.polyval(p, at))(p)
        assert isinstance(got, (np.ndarray, np.generic)) and not isinstance(got, ag.Tensor)
        np.testing.assert_array_equal(got, np.polyval(p, at))
    for f in (np.atleast_1d, np.atleast_2d):
        first, second = ag.compile(lambda a, f=f: f(a, (1, 0)))(x)
        np.testing.assert_array_equal(first, f(x))
        np.testing.assert_array_equal(second, f((1, 0)), strict=True)
    got = ag.compile(np.conj)(x > 2)
    assert got.dtype == np.int8 and got.tolist() == [0, 1]


@pytest.mark.parametrize("f", [lambda a: ag.normal(a, 1.0), lambda a: ag.normal(0.0, a), ag.bernoulli, ag.rand_like, ag.randn_like, lambda a: ag.randint_like(a, 5)])
def test_random_numbers_like_numpy_arrays(f: Any) -> None:
    x = np.full(3, 0.5)
    ag.manual_seed(0)
    eager = f(x)
    ag.manual_seed(0)
    assert eager.tolist() == f(ag.tensor(x)).tolist() and eager.dtype is ag.float64
