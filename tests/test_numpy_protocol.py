"""NumPy's own functions and ufuncs on tensors, on arrays under differentiation, and on traced values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sweep

import aotgrad as ag
from aotgrad.frontend.subtrace import as_value
from aotgrad.frontend.trace import Trace, TracedArray, tracing
from aotgrad.ir import Func, interp, tensor_type

RNG = np.random.default_rng(0)
X = RNG.uniform(0.2, 0.9, (3, 4))
Y = RNG.uniform(0.2, 0.9, (3, 4))
M = RNG.normal(size=(3, 3))

ONE: dict[str, Callable[[Any], Any]] = {
    **{name: getattr(np, name) for name in (
        "sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "exp", "expm1", "exp2", "log", "log1p", "log2", "log10", "sqrt", "square", "abs",
        "absolute", "fabs", "negative",
        "reciprocal", "sign", "floor", "ceil", "trunc", "rint", "positive", "sum", "mean", "std", "var", "prod", "max", "min", "amax", "amin", "argmax", "argmin",
        "cumsum", "cumprod", "ravel", "transpose",
        "squeeze", "isnan", "isfinite", "any", "all", "tril", "triu", "diag", "trace", "zeros_like", "ones_like", "copy", "flip", "fliplr", "flipud", "diff",
        "count_nonzero", "ptp", "average", "atleast_2d", "round")},
    "norm": np.linalg.norm, "norm_axis": lambda x: np.linalg.norm(x, axis=1), "norm_1": lambda x: np.linalg.norm(x, 1),
    "norm_inf": lambda x: np.linalg.norm(x, np.inf, axis=0),
    "sum_axis": lambda x: np.sum(x, axis=0, keepdims=True), "std_ddof": lambda x: np.std(x, axis=1, ddof=1), "mean_axes": lambda x: np.mean(x, axis=(0, 1)),
    "where": lambda x: np.where(x > 0.5, x, 0.0),
    "clip": lambda x: np.clip(x, 0.3, 0.7), "clip_none": lambda x: np.clip(x, None, 0.5), "reshape": lambda x: np.reshape(x, (2, 6)),
    "reshape_kw": lambda x: np.reshape(x, shape=(4, 3)),
    "expand_dims": lambda x: np.expand_dims(x, 1), "moveaxis": lambda x: np.moveaxis(x, 0, 1), "swapaxes": lambda x: np.swapaxes(x, 0, 1),
    "transpose_axes": lambda x: np.transpose(x, (1, 0)),
    "concatenate": lambda x: np.concatenate([x, 2 * x], axis=1), "stack": lambda x: np.stack([x, x * x]), "hstack": lambda x: np.hstack((x, x)),
    "vstack": lambda x: np.vstack([x[0], x[1]]),
    "column_stack": lambda x: np.column_stack((x[0], x[1])), "split": lambda x: np.split(x, 2, axis=1)[1], "broadcast_to": lambda x: np.broadcast_to(x, (2, 3, 4)),
    "tile": lambda x: np.tile(x, (2, 1)),
    "repeat": lambda x: np.repeat(x, 2, axis=1), "roll": lambda x: np.roll(x, 1, axis=0), "pad": lambda x: np.pad(x, 1), "take": lambda x: np.take(x, [2, 0], axis=1),
    "outer": lambda x: np.outer(x[0], x[1]),
    "take_along": lambda x: np.take_along_axis(x, np.array([[0], [3], [1]]), axis=1), "diagonal": lambda x: np.diagonal(x, 1),
    "full_like": lambda x: np.full_like(x, 2.0) * x, "einsum": lambda x: np.einsum("ij->j", x),
    "add_reduce": lambda x: np.add.reduce(x), "add_reduce_all": lambda x: np.add.reduce(x, axis=None), "mul_reduce": lambda x: np.multiply.reduce(x, axis=1),
    "max_reduce": lambda x: np.maximum.reduce(x, axis=1),
    "accumulate": lambda x: np.add.accumulate(x, axis=1), "ufunc_outer": lambda x: np.multiply.outer(x[0], x[1]), "trapezoid": lambda x: np.trapezoid(x, dx=0.5),
    "trapezoid_x": lambda x: np.trapezoid(x[0], np.linspace(0, 1, 4)),
    "weights": lambda x: np.average(x, axis=1, weights=np.arange(4.0)), "append": lambda x: np.append(x, 1.0), "float_power": lambda x: np.power(x, 3),
    "logical": lambda x: np.logical_and(x > 0.3, x < 0.7),
    "array_split": lambda x: np.array_split(x, 3, axis=1)[1], "hsplit": lambda x: np.hsplit(x, 2)[1], "vsplit": lambda x: np.vsplit(x, 3)[2],
    "dsplit": lambda x: np.dsplit(x[None], 2)[1], "unstack": lambda x: np.unstack(x, axis=1)[2], "astype_function": lambda x: np.astype(x, np.float32),
    "rot90": lambda x: np.rot90(x), "rot180": lambda x: np.rot90(x, 2), "rot270_axes": lambda x: np.rot90(x[None], -1, (2, 1)),
    "matrix_transpose": lambda x: np.matrix_transpose(x), "atleast_3d": lambda x: np.atleast_3d(x) * np.atleast_3d(x[0])[:, :1],
    "select": lambda x: np.select([x > 0.6, x > 0.4], [x * x, 1.5], 3 * x), "polyval": lambda x: np.polyval([1, 2, 3], x),
    "nansum": lambda x: np.nansum(np.where(x > 0.5, x, np.nan), axis=1), "nanmean": lambda x: np.nanmean(np.where(x > 0.3, x, np.nan)),
    "nanmax": lambda x: np.nanmax(np.where(x > 0.3, x, np.nan), axis=0), "nanmin": lambda x: np.nanmin(x, keepdims=True), "nanprod": lambda x: np.nanprod(x, axis=0),
    "mean_where": lambda x: np.mean(x, where=x < 5, axis=0), "max_where": lambda x: np.max(x, where=x > 0.4, initial=0),
    "bits": lambda x: (x > 0.3) & (x < 0.7) | ~(x > 0.1), "shape": lambda x: x * np.shape(x)[0] * np.ndim(x), "astype": lambda x: x.astype(np.float32),
}
TWO: dict[str, Callable[[Any, Any], Any]] = {
    **{name: getattr(np, name) for name in ("add", "subtract", "multiply", "divide", "true_divide", "power", "maximum", "minimum", "arctan2", "floor_divide",
    "remainder", "mod", "fmod", "greater", "less_equal", "equal",
                                            "not_equal", "vdot")},
    "dot": lambda x, y: np.dot(x, y.T), "dot_vec": lambda x, y: np.dot(x[0], y[1]), "matmul": lambda x, y: np.matmul(x, y.T), "inner": lambda x,
    y: np.inner(x[0], y[0]), "einsum": lambda x, y: np.einsum("ij,kj->ik", x, y),
    "vecdot": lambda x, y: np.vecdot(x, y), "vecdot_axis": lambda x, y: np.linalg.vecdot(x, y, axis=0), "matvec": lambda x, y: np.matvec(x, y[0]),
    "vecmat": lambda x, y: np.vecmat(x[:, 0], y), "vdot_2d": lambda x, y: np.vdot(x, y.T.copy() if isinstance(y, np.ndarray) else y.T),
    "einsum_lists": lambda x, y: np.einsum(x, [0, 1], y, [2, 1], [2, 0]), "einsum_lists_implicit": lambda x, y: np.einsum(x, [0, 30], y, [5, 30]),
    "einsum_lists_dots": lambda x, y: np.einsum(x, [..., 1], y, [..., 1], [1, ...]),
    "tensordot": lambda x, y: np.tensordot(x, y, axes=([0], [0])), "dot_nd": lambda x, y: np.dot(np.stack([x, x]), np.stack([y.T, y.T])), "where": lambda x,
    y: np.where(x > y, x, y), "concat": lambda x, y: np.concatenate((x, y)),
}


def value(x: Any) -> Any:
    return x._data if isinstance(x, ag.Tensor) else np.asarray(x)


def numeric(f: Callable[[Any], float], x: Any) -> Any:
    out = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[i] = 1e-6
        out[i] = (f(x + step) - f(x - step)) / 2e-6
    return out


def traced(f: Callable[[Any], Any], x: Any) -> Any:
    """The first result of the traced program, run by the interpreter; arrays that ``f`` refers to are inputs of it."""
    trace = Trace("f", examples={})
    with tracing(trace):
        out = f(trace.argument(tensor_type(x.shape, x.dtype), TracedArray))
    trace.block.outputs = [as_value(out, trace)]
    return interp.run(Func("f", trace.block), x, *(obj for obj, _ in trace.captured.values()))[0]


def check(f: Callable[[Any], Any], x: Any) -> None:
    """Values on tensors and on arrays in a gradient, dtype as NumPy's, gradients against differences, and the traced program."""
    want = np.asarray(f(x))
    np.testing.assert_allclose(value(f(ag.tensor(x))), want, rtol=1e-13)
    weights = np.random.default_rng(1).normal(size=want.shape)
    seen = []

    def loss(v: Any) -> Any:
        seen.append(f(v))
        return np.sum(seen[-1] * weights)

    if want.dtype.kind == "f":
        tolerance = {"rtol": 2e-3, "atol": 2e-2} if want.dtype == np.float32 else {"rtol": 1e-6, "atol": 1e-7}
        np.testing.assert_allclose(ag.grad(loss)(x), numeric(loss, x), **tolerance)
        assert seen[0].dtype == want.dtype
        np.testing.assert_allclose(value(seen[0]), want, rtol=1e-13)
    got = traced(f, x)
    np.testing.assert_allclose(got, want, rtol=1e-13)
    assert got.dtype == want.dtype


@pytest.mark.parametrize("name", ONE)
def test_functions_of_one_array(name: str) -> None:
    x = M if name in ("trace", "diag") else X
    check(ONE[name], x)


@pytest.mark.parametrize("name", TWO)
def test_functions_of_two_arrays(name: str) -> None:
    f = TWO[name]
    x, y = (X[0], Y[1]) if name == "vdot" else (X, Y)
    check(lambda v: f(v, y), x)
    check(lambda v: f(x, v), y)


def test_arrays_meet_tensors() -> None:
    t = ag.tensor(X)
    for got in (X + t, np.float64(2.0) * t, X @ t.T, np.multiply(X, t)):
        assert type(got) is ag.Tensor
    np.testing.assert_array_equal(value(X - t), np.zeros((3, 4)))
    array = X.copy()
    array += t
    np.testing.assert_array_equal(array, X + X)
    with pytest.raises(ag.AotgradTypeError, match=r"test_numpy_protocol.py:\d+.*y = y \+ x"):
        array += t.requires_grad_(True)
    t = ag.zeros(3, dtype=ag.float64)
    np.sin(np.ones(3), out=t)
    np.testing.assert_array_equal(t.numpy(), np.sin(np.ones(3)))


def test_promotion_is_numpys_for_numpy_callers() -> None:
    seen: dict[str, Any] = {}

    def f(x: Any) -> Any:
        seen["f32"] = (x * np.arange(3)).dtype
        seen["weak"] = (x * 2).dtype
        seen["sum"] = np.sum(x > 0).dtype
        seen["mean"] = np.mean(np.arange(3) * (x > 0)).dtype
        return np.sum(x)

    ag.grad(f)(np.ones(3, np.float32))
    assert seen == {"f32": np.float64, "weak": np.float32, "sum": np.int64, "mean": np.float64}


def test_questions_about_numbers() -> None:
    def f(x: Any) -> Any:
        assert np.allclose(x, X) and np.array_equal(x, X) and np.shape(x) == (3, 4) and np.size(x) == 12 and np.ndim(x) == 2 and np.size(x, 1) == 4
        assert np.result_type(x, np.float32) == np.float64 and not np.iscomplexobj(x)
        np.testing.assert_array_equal(np.where(x > 0.5)[0], np.where(X > 0.5)[0])
        return np.sum(x)

    ag.grad(f)(X)
    np.testing.assert_array_equal(np.sort(ag.tensor([2.0, 1.0])), [1.0, 2.0])  # nothing is lost: no graph
    assert np.percentile(ag.tensor([1.0, 2.0, 3.0]), 50) == 2.0


@pytest.mark.parametrize(("make", "name"), [
    (lambda x: np.sort(x), "np.sort"), (lambda x: np.median(x), "np.median"), (lambda x: np.linalg.svd(x), "np.linalg.svd"),
    (lambda x: np.logaddexp.reduce(x), "np.logaddexp.reduce"),
    (lambda x: np.spacing(x), "np.spacing"), (lambda x: np.add.at(x, 0, 1.0), "at"),
])
def test_what_is_not_there_says_so(make: Callable[[Any], Any], name: str) -> None:
    for call in (lambda: ag.grad(lambda x: np.sum(make(x)))(X), lambda: ag.compile(make).trace(X)):
        with pytest.raises(ag.AotgradTypeError, match=rf"test_numpy_protocol.py:\d+.*{name.replace('.', '[.]')}"):
            call()


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.bool_])
@pytest.mark.parametrize("f", [
    lambda x: np.mean(x, where=x < 7), lambda x: np.max(x, initial=0), lambda x: np.max(x, where=x > 1, initial=0), lambda x: np.polyval([1, 2, 3], x),
    lambda x: np.select([x > 1], [x], 0), lambda x: np.vecdot(x, x), lambda x: np.vdot(x, x), lambda x: np.average(x, weights=x), lambda x: np.nansum(x),
    lambda x: np.meshgrid(x[0], x[0]), lambda x: np.split(x, 2, axis=1), lambda x: np.array_split(x, 3), lambda x: np.unstack(x),
], ids=["mean_where", "max", "max_where", "polyval", "select", "vecdot", "vdot", "average", "nansum", "meshgrid", "split", "array_split", "unstack"])
def test_dtypes_and_containers_are_numpys(f: Callable[[Any], Any], dtype: Any) -> None:
    x = (10 * X).astype(dtype)
    want, got = f(x), ag.compile(f)(x)
    assert type(got) is type(want)
    for g, w in zip(*((v if isinstance(v, (list, tuple)) else [v]) for v in (got, want)), strict=True):
        assert g.dtype == w.dtype
        np.testing.assert_allclose(g, w, rtol=1e-6)


REFUSED = {"reciprocal": ("int64", "int32", "bool"), "round": ("bool",), "positive": ("bool",), "negative": ("bool",)}  # an error there or in NumPy, or both


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's own, of logarithms of 0 and the like
@pytest.mark.parametrize("dtype", sweep.part(["float64", "bool", "int64", "int32", "float32"], of=5))
def test_every_function_in_one_program(dtype: str, tmp_path: Path) -> None:
    """Integers and bools as data, and floats, of all functions at once: compiled, by the interpreter, and in a library; values, shapes and dtypes are NumPy's.

    Together they share values, buffers and loops in ways that one alone does not. What NumPy computes of bools in float16 is float64 here.
    """
    rng = np.random.default_rng(4)
    x, y = rng.integers(-3, 5, (3, 4)).astype(dtype), rng.integers(1, 4, (3, 4)).astype(dtype)
    if "float" in dtype:
        x, y = (rng.uniform(0.2, 0.9, (3, 4)).astype(dtype) for _ in range(2))
    wanted: dict[str, Any] = {}
    calls: dict[str, Any] = {}

    def add(name: str, f: Callable[..., Any], *views: Callable[[Any], Any]) -> None:
        def call(*given: Any) -> Any:
            return f(*(view(g) for view, g in zip(views, given)))

        try:
            wanted[name] = call(x, y)
        except TypeError:
            return
        calls[name] = call

    for name, f in ONE.items():
        if dtype not in REFUSED.get(name, ()):
            add(name, f, (lambda v: v[:, :3]) if name in ("trace", "diag") else lambda v: v)
    for name, f in TWO.items():
        add(f"{name} of two", f, *([lambda v: v[0], lambda v: v[1]] if name == "vdot" else [lambda v: v] * 2))
    assert len(calls) > 120

    def everything(x: Any, y: Any) -> Any:
        return [call(x, y) for call in calls.values()]

    def flat(results: Any) -> list[Any]:
        return [np.asarray(v) for r in results for v in (r if isinstance(r, (tuple, list)) else [r])]

    compiled = ag.compile(everything, verify=1)  # which compares with the interpreter
    labels = [name for name, r in wanted.items() for _ in (r if isinstance(r, (tuple, list)) else [r])]
    for name, got, want in zip(labels, flat(compiled(x, y)), flat(wanted.values()), strict=True):
        half = want.dtype == np.float16
        assert got.shape == want.shape and (got.dtype == want.dtype or half and got.dtype == np.float64), name
        np.testing.assert_allclose(got, want, rtol={2: 1e-3, 4: 1e-5}.get(want.dtype.itemsize, 1e-12), atol=1e-6 if dtype == "float32" else 1e-14, err_msg=name)
    built = ag.aot.build(everything, [f"{n}: {dtype.replace('int', 'i').replace('float', 'f')}[3, 4]" for n in "xy"], out=tmp_path, name="all_of_it", emit="so")
    for name, got, want in zip(labels, ag.load(built.library).all_of_it(x, y), flat(compiled(x, y)), strict=True):
        np.testing.assert_array_equal(got, want, err_msg=name)


def test_an_average_of_infinities_has_finite_weights() -> None:
    x, w = np.array([[1.0, np.inf], [3.0, 5.0]]), np.array([1.0, 3.0])
    np.testing.assert_array_equal(ag.compile(lambda x: np.average(x, axis=0, weights=w))(x), np.average(x, axis=0, weights=w))


def test_indices_of_einsum_that_are_no_indices() -> None:
    for wrong in ([0, 52], [0, -1], [0, "j"]):
        with pytest.raises(ag.AotgradValueError, match="no list of indices"):
            ag.einsum(ag.tensor(X), wrong)


def test_unknown_arguments_are_named() -> None:
    with pytest.raises(ag.AotgradTypeError, match="subok"):
        ag.grad(lambda x: np.sum(np.cumsum(np.exp(x, subok=False))))(X)


@pytest.mark.parametrize(("make", "says"), [
    (lambda x: np.sum(x, nosuch=1), r"sum\(\) got an unexpected keyword argument 'nosuch'; np.sum takes \(a, axis=None"),
    (lambda x: np.linalg.norm(x, axsi=1), r"norm\(\) got an unexpected keyword argument 'axsi'; np.linalg.norm takes \(x, ord=None, axis=None"),
    (lambda x: np.reshape(x), r"reshape\(\) missing 1 required positional argument: .*; np.reshape takes \(a"),
    (lambda x: np.tril(x, 0, 1), r"tril\(\) takes from 1 to 2 positional arguments but 3 were given; np.tril takes \(m, k=0\)"),
    (lambda x: np.clip(x, nosuch=1), r"np.clip\(\) got an unexpected argument 'nosuch'; its signature is clip\("),
])
def test_arguments_that_numpys_function_does_not_have(make: Callable[[Any], Any], says: str) -> None:
    """NumPy refuses them before it asks us, so with an error of its own."""
    with pytest.raises(ag.AotgradTypeError, match=rf"test_numpy_protocol.py:\d+: {says}"):
        ag.compile(make)(X)
    with pytest.raises(ag.AotgradTypeError, match=says):
        ag.grad(lambda x: np.sum(make(x)))(X)


def test_a_users_function_of_a_numpy_name_keeps_its_error() -> None:
    def norm(x: Any) -> Any:
        return x

    with pytest.raises(TypeError) as raised:
        ag.compile(lambda x: norm(x, 2))(X)
    assert not isinstance(raised.value, ag.AotgradError)


def test_traced_values_have_no_numbers() -> None:
    with pytest.raises(ag.AotgradTypeError, match=r"test_numpy_protocol.py:\d+"):
        ag.compile(lambda x: np.allclose(x, 1.0)).trace(X)
    with pytest.raises(ag.AotgradTypeError, match=r"test_numpy_protocol.py:\d+"):
        ag.compile(lambda x: np.float64(x[0, 0])).trace(X)


@pytest.mark.parametrize(("fill", "dtype"), [(float("nan"), "int64"), (float("-inf"), "int32"), (np.int64(2 ** 40 + 3), "int32"), (np.float64(-1.5), "int64"),
                                             (np.uint16(3), "float32"), (2 ** 40, "int32")])
def test_full_like_casts_as_numpy_does(fill, dtype):
    """With a tensor as well as in compiled code; ``ag.full_like`` refuses numbers that the dtype does not hold, as torch does."""
    like = np.zeros(2, dtype)
    if isinstance(fill, int):
        for f in (lambda x: np.full_like(x, fill), ag.compile(lambda x: np.full_like(x, fill))):
            for x in (like, ag.tensor(like)):
                with pytest.raises(OverflowError):
                    f(x)
        return
    with np.errstate(invalid="ignore"):
        want = np.full_like(like, fill)
    for got in (np.full_like(ag.tensor(like), fill).numpy(), ag.compile(lambda x: np.full_like(x, fill))(like)):
        assert got.dtype == want.dtype
        assert got.tolist() == want.tolist()
    if dtype != "float32" and fill != -1.5:
        with pytest.raises(OverflowError):
            ag.full_like(ag.tensor(like), fill)
