"""Pooling: windows of every kind on small images, in both layouts, against the interpreter, the definitions and torch; public functions."""

from __future__ import annotations

import doctest
import itertools
from collections.abc import Iterator
from typing import Any

import image_oracles
import numpy as np
import pytest
import sweep
from autograd_pair import HAS_TORCH, modules, outcome
from lowering_harness import Program
from native_table import agree, natives, run_both_guards

import aotgrad as ag
from aotgrad.codegen import image_loops
from aotgrad.codegen.target import Target
from aotgrad.ir import Func, Layout, TensorType, build, dims, interp, opdef
from aotgrad.ir.transforms.cleanup import standard
from aotgrad.ir.transforms.differentiate import vjp_func
from aotgrad_runtime import pool
from aotgrad_runtime.dtypes import as_dtype

NAMES = [f"{kind}_pool{r}d" for kind in ("max", "avg", "adaptive_avg", "adaptive_max") for r in (1, 2, 3)]
CHANNELS = 21  # a vector and a rest, or several


def window(kernel: Any, stride: Any, low: Any, dilation: Any) -> dict[str, Any]:
    return {"kernel": kernel, "stride": stride, "low": low, "dilation": dilation}


COMBOS = [window((k, 5 - k), (s, s), (lo, min(lo, (5 - k) // 2)), (d, d))
          for k, s, lo, d in itertools.product((1, 2, 3, 4), (1, 2, 3), (0, 1, 2), (1, 2)) if lo <= (d * (k - 1) + 1) // 2]
COMBOS += [window((9, 8), (3, 7), (4, 0), (1, 1)), window((1, 11), (1, 1), (0, 5), (1, 1)), window((2, 2), (6, 4), (0, 0), (4, 6)), window((), (), (), ())]
IMAGES = ((5, 7), (9, 3), (1, 11), (4, 13))


def whole(op: str, attrs: dict[str, Any], dtype: Any, last: bool, count: tuple[Any, ...]) -> Func:
    """(x, cotangent) -> (y, gradient) for all sizes of image."""
    n, c, h, w = map(dims.symbol, "nchw")
    x = TensorType((n, c, h, w), as_dtype(dtype), Layout.channels_last(4) if last else None)
    return standard(vjp_func(build(op, [x], lambda b, x: b.emit(op, [x], {"count": count, **attrs})), [True]))


def positions(attrs: dict[str, Any]) -> tuple[Any, ...]:
    if not attrs["kernel"]:
        return (3, 2)
    return tuple(dims.floordiv(dims.symbol(s) + 2 * lo + step - 1, step) for s, lo, step in zip("hw", attrs["low"], attrs["stride"]))


def images(func: Func, dtype: Any, rng: Any) -> Iterator[list[Any]]:
    for i, (h, w) in enumerate(IMAGES):
        env = {"n": i % 3, "c": 1 if i == 2 else CHANNELS, "h": h, "w": w}
        x, ct = (t.substitute(env).shape for t in func.arg_types)
        yield [(rng.permuted(np.arange(float(np.prod(x)))).reshape(x) / 8).astype(dtype), rng.normal(size=ct).astype(dtype)]


@pytest.mark.parametrize("part", [0, *(pytest.param(i, marks=pytest.mark.thorough) for i in range(1, 8))])
@pytest.mark.parametrize("last, dtype", sweep.part([False, True], [np.float64, np.float32]))
def test_every_combination(last: bool, dtype: Any, part: int) -> None:
    """Sums and maxima with their gradients, between guard pages; windows may reach over the edges and lie outside altogether. A part takes every eighth."""
    chosen = [(i, a) for i, a in enumerate(COMBOS) if (i + i // 8 + 2 * last + 5 * (dtype is np.float32)) % 8 == part]
    made = {f"{op}{i}": whole(op, a, dtype, last, positions(a)) for i, a in chosen for op in ("window_sum", "window_max")}
    kernels, rng, count = natives(made), np.random.default_rng(1), 0
    for name, func in made.items():
        for args in images(func, dtype, rng):
            agree(run_both_guards(kernels[name], args), interp.run(func, *args), False, f"{name} {COMBOS[int(name[10:])]} {args[0].shape}")
            count += 1
    assert count > 40


WIDE = [window((3, 3), (2, 2), (1, 1), (1, 1)), window((2, 3), (1, 1), (0, 1), (1, 2)), window((1, 5), (1, 4), (0, 2), (1, 1)), window((2, 2), (3, 3), (0, 0), (1, 1)),
        window((2, 2), (2, 2), (1, 0), (1, 1)), window((), (), (), ())]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_long_rows_of_known_sizes(dtype: Any) -> None:
    """Several vectors a row and a rest, whose places are compared as 32-bit numbers; some elements are NaN, the least, or equal."""
    rng = np.random.default_rng(8)
    for i, a in enumerate(WIDE):
        rows, width = 5, (141, 67)[i % 2]
        count = tuple((n + 2 * lo - d * (k - 1) - 1) // s + 1 for n, lo, d, k, s in zip((rows, width), a["low"], a["dilation"], a["kernel"], a["stride"])) or (3, 9)
        x = rng.integers(-3, 3, (2, 3, rows, width)).astype(dtype)
        x[rng.random(x.shape) < 0.05], x[rng.random(x.shape) < 0.05] = np.nan, -np.inf
        x[1, 1] = -np.inf
        for op in ("window_argmax", "window_max", "window_sum"):
            value = build(op, [TensorType(x.shape, as_dtype(dtype))], lambda b, x, op=op, a=a, count=count: b.emit(op, [x], {"count": count, **a}))
            if op == "window_argmax":
                np.testing.assert_array_equal(Program(value)(x, guard=True), interp.run(value, x)[0], err_msg=f"{op} {a}")
                continue
            func, args = standard(vjp_func(value, [True])), (x if op == "window_max" else np.nan_to_num(x, neginf=0), rng.normal(size=(2, 3, *count)).astype(dtype))
            for got, want in zip(Program(func)(*args, guard=True), interp.run(func, *args), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-5, err_msg=f"{op} {a}")


class Shared(Program):
    threads = 3


@pytest.mark.skipif(pool.unusable() is not None, reason="no thread pool here")
def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_loops, "SHARE", 1)
    rng = np.random.default_rng(6)
    for op, i, last in (("window_sum", 20, True), ("window_max", 31, False), ("window_sum", -4, False), ("window_sum", -1, True)):
        func = whole(op, COMBOS[i], np.float32, last, positions(COMBOS[i]))
        for args in images(func, np.float32, rng):
            for got, want in zip(Shared(func)(*args, guard=True), Program(func)(*args), strict=True):
                assert got.tobytes() == want.tobytes()


LOWER = [n for n in ("x86-64", "x86-64-v3") if Target.native().arch == "x86_64" and Target.named(n).vector_bits < Target.native().vector_bits]


@pytest.mark.parametrize("name", LOWER)
def test_other_instruction_sets(name: str) -> None:
    rng = np.random.default_rng(3)
    for op, i, last in (("window_sum", 20, True), ("window_max", 31, False), ("window_max", 40, True), ("window_sum", -4, False), ("window_max", -1, False)):
        func = whole(op, COMBOS[i], np.float32, last, positions(COMBOS[i]))
        program = Program(func, Target.named(name))
        for args in images(func, np.float32, rng):
            agree(program(*args, guard=True), interp.run(func, *args), False, f"{name} {op} {COMBOS[i]}")


def test_interpreter_is_the_definition() -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(2, 3, 8, 7))
    for a in COMBOS:
        sides = zip(x.shape[2:], a["low"], a["dilation"], a["kernel"], a["stride"])
        count = tuple((n + 2 * lo - d * (k - 1) - 1) // s + 1 for n, lo, d, k, s in sides) or (3, 2)
        if min(count) < 1:
            continue
        np.testing.assert_allclose(opdef.get("window_sum").ref(x, count=count, **a), image_oracles.pool(x, np.sum, count, **a), rtol=1e-13)  # type: ignore[misc]
        np.testing.assert_array_equal(opdef.get("window_max").ref(x, count=count, **a), image_oracles.pool(x, np.max, count, **a))  # type: ignore[misc]


def test_largest_of_ties_nans_and_infinities() -> None:
    """The first of equal ones, the last NaN, and an element even where all are the least number; the gradient goes there alone."""
    nan, inf = np.nan, np.inf
    rows = np.array([[1.0, 1, 1, 1], [nan, 2, nan, 1], [-inf, -inf, 0, nan], [0.0, -0.0, 5, 5], [inf, inf, -inf, -inf]])
    for x in (rows[:, None, None, :], np.broadcast_to(rows[:, None, None, :], (5, 9, 1, 4))):
        values, places = ag.max_pool2d(x, (1, 2), return_indices=True)
        want = [[0, 2], [0, 2], [0, 3], [0, 2], [0, 2]]
        assert np.array_equal(places[:, 0, 0], want) and np.array_equal(values[:, -1, 0], np.take_along_axis(rows, np.array(want), 1), equal_nan=True)
        g = ag.grad(lambda x: ag.sum(ag.max_pool2d(x, (1, 2))))(np.nan_to_num(x, posinf=9, neginf=-9, nan=7))
        assert g.sum() == x.shape[0] * x.shape[1] * 2 and np.isin(g, (0, 1)).all()
    x = rows[:, None, None, :]
    for compiled in (ag.compile(lambda x: ag.max_pool2d(x, (1, 2), return_indices=True)[1]),):
        assert np.array_equal(compiled(x)[:, 0, 0], want)


def test_integers() -> None:
    x = np.random.default_rng(5).integers(-9, 9, (2, 3, 5, 6))
    for dtype in (np.int64, np.int8, np.int32):
        got = ag.max_pool2d(x.astype(dtype), 3, 2, 1)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, image_oracles.max_pool(x, count=(3, 3), **window((3, 3), (2, 2), (1, 1), (1, 1))))
    assert ag.avg_pool2d(x, 2).dtype == np.float64  # NumPy's mean of integers
    with pytest.raises(TypeError, match="floating-point"):
        ag.avg_pool2d(ag.tensor(x), 2)


# ---- as users call it -----------------------------------------------------------------------------------------------------------------

CALLS: list[tuple[str, Any, dict[str, Any]]] = [
    ("max_pool1d", (2, 3, 9), {"kernel_size": 3, "stride": 2, "padding": 1}),
    ("max_pool1d", (3, 9), {"kernel_size": 2, "dilation": 3, "return_indices": True}),
    ("max_pool2d", (2, 3, 7, 6), {"kernel_size": 2}),
    ("max_pool2d", (2, 3, 7, 6), {"kernel_size": (3, 2), "stride": (2, 1), "padding": 1, "return_indices": True}),
    ("max_pool2d", (3, 7, 6), {"kernel_size": 3, "stride": 2, "ceil_mode": True}),
    ("max_pool2d", (2, 3, 8, 8), {"kernel_size": 2, "dilation": 2, "stride": 3, "padding": 1}),
    ("max_pool2d", (2, 3, 5, 5), {"kernel_size": 2, "stride": 2, "padding": 1, "ceil_mode": True, "return_indices": True}),
    ("max_pool2d", (0, 3, 5, 5), {"kernel_size": 2}),
    ("max_pool3d", (1, 2, 4, 5, 3), {"kernel_size": (2, 3, 1), "stride": (1, 2, 2), "return_indices": True}), ("max_pool2d", (2, 1, 4, 4), {"kernel_size": 4}),
    ("avg_pool1d", (2, 3, 9), {"kernel_size": 3, "padding": 1, "count_include_pad": False}), ("avg_pool2d", (2, 3, 7, 6), {"kernel_size": 3, "stride": 2, "padding": 1}),
    ("avg_pool2d", (2, 3, 7, 6), {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}),
    ("avg_pool2d", (3, 7, 6), {"kernel_size": 3, "stride": 3, "padding": 1, "ceil_mode": True, "count_include_pad": False}),
    ("avg_pool2d", (2, 3, 7, 6), {"kernel_size": (2, 3), "divisor_override": 7}), ("avg_pool2d", (2, 3, 1, 1), {"kernel_size": 1}),
    ("avg_pool3d", (1, 2, 4, 5, 3), {"kernel_size": 2, "padding": 1, "ceil_mode": True}), ("adaptive_avg_pool1d", (2, 3, 7), {"output_size": 3}),
    ("adaptive_avg_pool2d", (2, 3, 7, 6), {"output_size": (3, 2)}), ("adaptive_avg_pool2d", (2, 3, 8, 6), {"output_size": (4, 3)}),
    ("adaptive_avg_pool2d", (3, 7, 6), {"output_size": (9, None)}), ("adaptive_avg_pool2d", (2, 3, 4, 4), {"output_size": (0, 2)}),
    ("adaptive_avg_pool3d", (1, 2, 4, 5, 3), {"output_size": 2}), ("adaptive_max_pool1d", (2, 3, 7), {"output_size": 3}),
    ("adaptive_max_pool2d", (2, 3, 7, 6), {"output_size": (3, 4), "return_indices": True}), ("adaptive_max_pool3d", (2, 4, 5, 3), {"output_size": (2, 3, None)}),
]


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
@pytest.mark.parametrize("call", CALLS, ids=lambda c: f"{c[0]}{c[1]}{c[2]}")
def test_torch_agrees(call: Any) -> None:
    """Values, places, gradients, node names, and strides of both layouts."""
    name, shape, kw = call

    def lines(m: Any, fmt: str) -> Any:
        data = np.random.default_rng(9).permuted(np.arange(float(np.prod(shape)))).reshape(shape) / 4
        x = m.tensor(data.tolist(), dtype=m.float64).reshape(shape)
        x = (x.to(memory_format=getattr(m, fmt)) if len(shape) == 4 and name.endswith("2d") else x).requires_grad_()
        found = getattr(m.nn.functional, name)(x, **kw)
        y, places = found if isinstance(found, tuple) else (found, None)
        if not y.numel():  # torch has no gradient of results without elements
            return y.shape, y.grad_fn.__class__.__name__
        (y * y).sum().backward()
        batched = len(shape) == int(name[-2]) + 2
        order = None if np.prod(y.shape[1:]) == 1 else x.grad.stride()  # one number of one channel has no order that tells that of the image
        return y.detach(), places, x.grad, y.stride(), order, y.grad_fn.__class__.__name__ if batched and not kw.get("return_indices") else None

    for fmt in ("contiguous_format", "channels_last"):
        ours, theirs = (outcome(m, lambda m, f=fmt: lines(m, f)) for m in modules())  # type: ignore[misc]
        assert ours == theirs, (call, fmt)


OF_SOMETHING = [c for c in CALLS if 0 not in c[1] and 0 not in np.atleast_1d(c[2].get("output_size", 1))]


@pytest.mark.parametrize("call", sweep.part(OF_SOMETHING, of=6), ids=lambda c: f"{c[0]}{c[1]}{c[2]}")
def test_roads_agree(call: Any) -> None:
    """Compiled for all sizes, gradients compiled, and second derivatives forward over reverse."""
    name, shape, kw = call
    rng = np.random.default_rng(5)
    f = ag.compile(lambda x: getattr(ag, name)(x, **kw))
    kw = {k: v for k, v in kw.items() if k != "return_indices"}

    def loss(x: Any) -> Any:
        y = getattr(ag, name)(x, **kw)
        return ag.sum(y * ag.sin(y))

    slope = ag.compile(ag.grad(loss))
    for grow in (0, 3, 4):
        x = rng.normal(size=(*shape[:-1], shape[-1] + grow))
        want = getattr(ag, name)(x, **kw)
        got = f(x)
        np.testing.assert_allclose(got[0] if isinstance(got, tuple) else got, want, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(slope(x), ag.grad(loss)(x), rtol=1e-11, atol=1e-12)
    v, step = rng.normal(size=x.shape), 1e-6
    numeric = (ag.grad(loss)(x + step * v) - ag.grad(loss)(x - step * v)) / (2 * step)
    np.testing.assert_allclose(ag.jvp(ag.grad(loss), (x,), (v,))[1], numeric, rtol=1e-6, atol=1e-6 * max(1.0, np.abs(numeric).max()))
    assert f.cache_info().traces <= 2


BAD: list[tuple[str, Any, dict[str, Any], str]] = [
    ("max_pool2d", (1, 3, 4, 4), {"kernel_size": 5}, "Given input size: (3x4x4). Calculated output size: (3x0x0). Output size is too small"),
    ("max_pool2d", (1, 3, 4, 4), {"kernel_size": 2, "padding": 2}, "pad should be at most half of effective kernel size, but got pad=2, kernel_size=2 and dilation=1"),
    ("max_pool2d", (1, 3, 4, 4), {"kernel_size": 2, "stride": 0}, "stride should not be zero"),
    ("max_pool2d", (1, 3, 4, 4), {"kernel_size": 0, "stride": 1}, "kernel size should be greater than zero, but got"),
    ("max_pool2d", (1, 3, 4, 4), {"kernel_size": 2, "padding": -1}, "pad must be non-negative, but got pad: -1"),
    ("max_pool2d", (1, 3, 4, 4), {"kernel_size": 2, "dilation": 0}, "dilation should be greater than zero, but got"),
    ("max_pool2d", (1, 3, 4, 4), {"kernel_size": (2, 2, 2)}, "max_pool2d: kernel_size must either be a single int, or a tuple of two ints"),
    ("max_pool2d", (1, 3, 4, 4), {"kernel_size": 2, "stride": (1, 2, 3)}, "max_pool2d: stride must either be omitted, a single int, or a tuple of two ints"),
    ("max_pool2d", (1, 3, 4, 4), {"kernel_size": 1.5}, ""), ("max_pool2d", (1, 3, 0, 4), {"kernel_size": 2}, ""), ("max_pool2d", (4, 4), {"kernel_size": 2}, ""),
    ("avg_pool2d", (1, 3, 4, 4), {"kernel_size": 5}, "Given input size: (3x4x4). Calculated output size: (3x0x0). Output size is too small"),
    ("avg_pool2d", (1, 3, 4, 4), {"kernel_size": 2, "divisor_override": 0}, "divisor must be not zero"),
    ("avg_pool3d", (3, 4, 4), {"kernel_size": 2}, ""), ("adaptive_max_pool2d", (1, 3, 4, 4), {"output_size": -1}, ""),
    ("adaptive_avg_pool2d", (1, 3, 4, 4), {"output_size": -1}, "adaptive_avg_pool2d: elements of output_size must be greater than or equal to 0 but received"),
    ("adaptive_avg_pool2d", (1, 3, 0, 4), {"output_size": 2}, "adaptive_avg_pool2d(): Expected input to have non-zero size for non-batch dimensions, but input has sizes "
                                                              "[1, 3, 0, 4] with dimension 2 being empty"),
]


@pytest.mark.parametrize("bad", BAD, ids=lambda b: f"{b[0]}{b[1]}{b[2]}")
def test_bad_calls(bad: Any) -> None:
    """torch's words and types, eagerly; with the user's line under ``compile``."""
    name, shape, kw, text = bad
    found = [outcome(m, lambda m: getattr(m.nn.functional, name)(m.zeros(shape), **kw), len(text)) for m in modules()]
    assert found[0][0] == "error" and found[0][2] == text, found
    assert all(f == found[0] for f in found)
    with pytest.raises(ag.AotgradError, match="test_pooling.py") as caught:
        ag.compile(lambda x: getattr(ag, name)(x, **kw))(np.zeros(shape))
    if not text.startswith(name):
        assert text[:40] in str(caught.value)


def test_sizes_too_small_after_compilation() -> None:
    f = ag.compile(lambda x: ag.max_pool2d(x, 3))
    assert f(np.ones((1, 2, 9, 7))).shape == (1, 2, 3, 2)
    with pytest.raises(RuntimeError, match="Output size is too small"):
        f(np.ones((1, 2, 9, 2)))


@pytest.mark.parametrize("name", NAMES)
def test_examples_run(name: str) -> None:
    text = getattr(ag, name).__doc__
    assert doctest.DocTestRunner().run(doctest.DocTestParser().get_doctest(text, {"ag": ag}, name, None, 0)).attempted
