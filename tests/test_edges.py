"""Edges of dtypes and numbers: divisions by zero, bools as numbers, float16 beside numbers it cannot hold, tails, steps, norms of tiny and huge vectors."""

from __future__ import annotations

import ctypes
import re
from typing import Any

import mpmath
import numpy as np
import pytest

import aotgrad as ag
from aotgrad.ir import interp
from aotgrad_runtime.errors import AotgradError

DIVISIONS: dict[str, Any] = {
    "//": lambda x, y: x // y, "%": lambda x, y: x % y, "fmod": lambda x, y: ag.fmod(x, y), "// 0": lambda x, y: x // 0, "% 0": lambda x, y: x % 0,
    "number //": lambda x, y: 5 // y,
}


# ---- integers divided by zero -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", DIVISIONS)
def test_tensors_refuse_to_divide_integers_by_zero(name: str) -> None:
    f = DIVISIONS[name]
    x, y = ag.from_numpy(np.array([7, -7])), ag.from_numpy(np.array([2, 0]))
    for g in (f, ag.compile(f)):
        for kind in (RuntimeError, ZeroDivisionError, AotgradError):  # torch's type, Python's, and ours
            with pytest.raises(kind, match="ZeroDivisionError"):
                g(x, y)
    with pytest.raises(ZeroDivisionError, match=re.escape("test_edges.py")):
        ag.compile(f)(x, y)
    with pytest.raises(ZeroDivisionError):
        interp.run(ag.compile(f).trace(x, y), np.array([7, -7]), np.array([2, 0]))
    assert int(ag.compile(f, checks=False)(x, y)[1]) == 0


@pytest.mark.parametrize("name", DIVISIONS)
def test_numpy_values_divided_by_zero_give_zero(name: str) -> None:
    f, x, y = DIVISIONS[name], np.array([7, -7]), np.array([2, 0])
    assert int(ag.compile(f)(x, y)[1]) == 0


def test_division_of_tensors_by_numbers_that_are_not_zero_is_no_loop_of_its_own() -> None:
    x = ag.from_numpy(np.array([7, -7]))
    f = ag.compile(lambda x: x // 2 + 1)
    np.testing.assert_array_equal(f(x).numpy(), [4, -3])
    assert f.explain(x).count("floor_divide") <= 1
    np.testing.assert_array_equal((x // ag.from_numpy(np.array([2, 3]))).numpy(), [3, -3])
    np.testing.assert_array_equal((ag.from_numpy(np.array([1.0])) // 0.0).numpy(), [np.inf])


# ---- bools and bytes as numbers -----------------------------------------------------------------------------------------------------

BOOLS = {
    "x ** 2": lambda x, u: x**2, "x ** 3": lambda x, u: x**3, "x ** x": lambda x, u: x**x, "power": lambda x, u: np.power(x, 2), "x % x": lambda x, u: x % x,
    "x // x": lambda x, u: x // x, "x << x": lambda x, u: x << x, "x << 1": lambda x, u: x << 1, "x >> x": lambda x, u: x >> x, "fmod": lambda x, u: np.fmod(x, x),
    "2 ** x": lambda x, u: 2**x, "(u > 5) ** 2": lambda x, u: (u > 5) ** 2, "sign": lambda x, u: np.sign(u), "abs": lambda x, u: abs(u),
    "absolute": lambda x, u: np.absolute(u),
}


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize("name", BOOLS)
def test_bools_and_bytes_are_numbers_as_in_numpy(name: str) -> None:
    f, x, u = BOOLS[name], np.array([True, False]), np.array([3, 200], np.uint8)
    want, got = f(x, u), ag.compile(f)(x, u)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("f", [lambda x: x**x, lambda x: x % x, lambda x: x // x, lambda x: x << x])
def test_bool_tensors_are_no_numbers_as_in_torch(f: Any) -> None:
    for g in (f, ag.compile(f)):
        with pytest.raises(NotImplementedError, match="bool"):
            g(ag.tensor([True, False]))


# ---- float16 and numbers it cannot hold ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("f", "want"), [
    (lambda h: h * 2**40, [np.inf, -0.0, np.inf]), (lambda h: h + 2**40, [np.inf] * 3), (lambda h: h / 2**40, [0.0, -0.0, np.inf]),
    (lambda h: h * 1e-9 * 1.0, [0, -0.0, np.inf])])
def test_float16_tensors_meet_numbers_in_float32(f: Any, want: Any) -> None:
    h = np.array([1.0, -0.0, np.inf], np.float16)
    for g in (f, ag.compile(f)):
        out = g(ag.from_numpy(h)).numpy()
        assert out.dtype == np.float16
        np.testing.assert_array_equal(out, want)
        np.testing.assert_array_equal(np.signbit(out), np.signbit(want))


# ---- logaddexp2, heaviside ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("x", "y"), [(0.0, -745.2), (0.0, -1000.0), (3.0, 3.0), (-5.0, 700.0), (1e-3, -1e-3), (0.25, -40.5), (-300.0, -301.0)])
def test_logaddexp2_to_the_last_digits(x: float, y: float) -> None:
    with mpmath.workprec(4000):
        exact = float(mpmath.log(mpmath.mpf(2) ** x + mpmath.mpf(2) ** y, 2))
    for f in (ag.logaddexp2, ag.compile(ag.logaddexp2)):
        assert abs(float(np.asarray(f(np.array(x), np.array(y)))) - exact) <= 4 * np.spacing(abs(exact))


def test_logaddexp2_at_infinities_and_its_derivatives() -> None:
    inf = np.inf
    np.testing.assert_array_equal(np.asarray(ag.logaddexp2(np.array([inf, -inf, inf]), np.array([inf, -inf, -inf]))), [inf, -inf, inf])
    assert ag.grad(ag.logaddexp2)(1.0, 1.0) == 0.5
    np.testing.assert_allclose(ag.grad(ag.grad(ag.logaddexp2))(1.0, 1.0), np.log(2) / 4, rtol=1e-15)
    np.testing.assert_allclose(ag.grad(ag.logaddexp2)(0.0, 60.0), 2.0**-60, rtol=1e-14)


def test_heaviside_of_tensors_is_torchs_and_of_arrays_numpys() -> None:
    for f in (ag.heaviside, ag.compile(ag.heaviside)):
        out = f(ag.tensor([1, 0, -3]), ag.tensor([5, 7, 9]))
        assert out.dtype is ag.int64 and out.tolist() == [1, 7, 0]
        assert f(ag.tensor([float("nan"), 0.0]), ag.tensor([5.0, 7.0])).tolist() == [0.0, 7.0]
        got = np.asarray(f(np.array([np.nan, 0.0, 2.0]), np.array([5.0, 7.0, 9.0])))
        np.testing.assert_array_equal(got, [np.nan, 7.0, 1.0])
        assert np.asarray(f(np.array([1, 0]), np.array([5, 7]))).dtype == np.float64


# ---- norms of nothing ---------------------------------------------------------------------------------------------------------------

EMPTIES = [((0,), None), ((3, 0), 1), ((0, 3), 0), ((0, 3), 1), ((0, 3), None), ((3, 0), (0, 1)),
           ((0, 3), (0, 1)), ((0, 0), None), ((2, 0, 3), (1, 2)), ((2, 3, 0), (1, 2))]


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize("order", [None, 2, 1, 0, 3, np.inf, -np.inf, -1])
@pytest.mark.parametrize(("shape", "axis"), EMPTIES)
def test_norms_of_nothing_are_numpys(shape: tuple[int, ...], axis: Any, order: Any) -> None:
    if order == 2 and (isinstance(axis, tuple) or axis is None and len(shape) == 2):
        pytest.skip("needs singular values")
    x = np.zeros(shape)
    full = np.ones([n or 2 for n in shape])
    f = ag.compile(lambda x: np.linalg.norm(x, order, axis=axis))
    try:
        want = np.linalg.norm(x, order, axis=axis)
    except ValueError:
        with pytest.raises(ValueError):
            f(x)
        return
    np.testing.assert_array_equal(f(x), want)
    np.testing.assert_allclose(f(full), np.linalg.norm(full, order, axis=axis))  # a program for one size and all others
    np.testing.assert_array_equal(f(x), want)


@pytest.mark.parametrize("order", [np.inf, -np.inf, -1.0])
def test_norms_of_empty_tensors_are_errors_where_torchs_are(order: float) -> None:
    for f in (lambda t: ag.norm(t, order), ag.compile(lambda t: ag.norm(t, order))):
        with pytest.raises(AotgradError, match=r"empty|at least"):
            f(ag.zeros(0))
        assert f(ag.ones(3)) is not None


# ---- the C form with nothing to compute ---------------------------------------------------------------------------------------------

def test_c_functions_take_null_for_results_without_elements_and_no_workspace(tmp_path: Any) -> None:
    programs = {"running": (lambda x: np.cumsum(x), ["x: f64[n]"], 0), "steps": (lambda x: x[1:] - x[:-1], ["x: f64[n]"], 1),
                "rows": (lambda x, y: (x + 1.0, y * 2.0), ["x: f64[n]", "y: f64[m, 2]"], 0)}
    for name, (f, args, n) in programs.items():
        ag.aot.build(f, args, name=name, out=tmp_path, emit=("so",))
        library = ctypes.CDLL(str(tmp_path / f"lib{name}.so"))
        function, workspace = getattr(library, name), getattr(library, f"{name}_workspace")
        workspace.restype = ctypes.c_int64
        sizes, outs = [ctypes.c_int64(n)] * len(args), [None] * (2 if name == "rows" else 1)
        x = np.ones(4)
        inputs = [ctypes.c_void_p(x.ctypes.data)] * len(args)
        assert workspace(*sizes) == 0 and function(*inputs, *sizes, *outs, None) == 0
        many = [ctypes.c_int64(n + 1)] * len(args)
        assert workspace(*many) > 0 and function(*inputs, *many, *outs, None) == 4


# ---- float16 computes -----------------------------------------------------------------------------------------------------------------

HALVES: dict[str, Any] = {
    "exp": np.exp, "sin": np.sin, "sqrt": np.sqrt, "floor": np.floor, "hypot": lambda x: np.hypot(x, x[::-1]), "fmod": lambda x: np.fmod(x, x[::-1]),
    "%": lambda x: x % x[::-1], "//": lambda x: x // x[::-1], "pow": lambda x: x ** x[::-1], "arctan2": lambda x: np.arctan2(x, x[::-1]),
    "logaddexp": lambda x: np.logaddexp(x, x[::-1]), "maximum": lambda x: np.maximum(x, x[::-1]), "max": np.max, "cumsum": lambda x: np.cumsum(x[:5]), "mean": np.mean,
    "std": np.std, "sum": np.sum, "dot": lambda x: x[:9] @ x[9:18], "product": lambda x: x[:9].reshape(3, 3) @ x[9:18].reshape(3, 3), "norm": np.linalg.norm,
}


@pytest.mark.parametrize("name", HALVES)
def test_float16_computes_in_float32_by_every_road(name: str) -> None:
    f, x = HALVES[name], np.random.default_rng(5).uniform(0.1, 4.0, 37).astype(np.float16)
    want = np.asarray(f(x))
    for got in (np.asarray(ag.compile(f)(x)), f(ag.from_numpy(x)).numpy()):
        assert got.dtype == want.dtype == np.float16
        assert np.all(np.abs(got.astype(float) - want.astype(float)) <= np.spacing(np.abs(want)).astype(float))  # NumPy rounds sums in between
    assert np.all(np.isfinite(ag.grad(lambda x: ag.sum(f(x)))(x)))


def test_conversions_to_float16_round_once() -> None:
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    known = np.sort(halves[np.isfinite(halves)].astype(np.float64))
    middle = (known[1:] + known[:-1]) / 2
    x = np.concatenate([middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf), [np.inf, -np.inf, np.nan, 65520.0, 1e300, -1e300, 5e-324, 2.0**-25]])
    with np.errstate(over="ignore"):
        want = x.astype(np.float16)
    got = ag.compile(lambda x: x.astype(np.float16))(x)
    np.testing.assert_array_equal(got, want)
    assert np.array_equal(np.signbit(got), np.signbit(want))
    finite = halves[np.isfinite(halves)]
    for dtype in (np.int64, np.int32, np.int16, np.bool_, np.float64):
        np.testing.assert_array_equal(ag.compile(lambda x, dtype=dtype: x.astype(dtype))(finite), finite.astype(dtype))
    whole = np.arange(-70000, 70000, 7)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(ag.compile(lambda x: x.astype(np.float16))(whole), whole.astype(np.float16))


# ---- arrays beyond all memory -----------------------------------------------------------------------------------------------------------

def test_arrays_that_cannot_be_counted_name_the_line(tmp_path: Any) -> None:
    for shape in ((2**40, 2**40), (2**40, 2**40, 0), (2**61, 3)):
        with pytest.raises(ValueError, match=r"test_edges.py:\d+"):
            ag.compile(lambda x, shape=shape: np.sum(np.broadcast_to(x, shape[::-1]).T + 1.0))(np.ones(1))
    with pytest.raises(AotgradError, match="argument x of far"):
        ag.aot.build(lambda x: x + 1.0, ["x: f64[99999999999999999999, 3]"], name="far", out=tmp_path, emit=("so",))
