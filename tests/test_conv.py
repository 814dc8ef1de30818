"""Convolution: every combination of layout, stride, padding, dilation, groups and kernel size on small images, against the interpreter and torch; public functions."""

from __future__ import annotations

import doctest
import itertools
from collections.abc import Iterator, Sequence
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
from aotgrad.codegen.conv import select
from aotgrad.codegen.driver import texts
from aotgrad.codegen.target import Target
from aotgrad.ir import Func, Layout, TensorType, build, dims, interp, opdef
from aotgrad.ir.ops.conv import positions
from aotgrad.ir.transforms.batch import batch_func
from aotgrad.ir.transforms.cleanup import standard
from aotgrad.ir.transforms.differentiate import vjp_func
from aotgrad_runtime import pool
from aotgrad_runtime.dtypes import as_dtype

LAST = Layout.channels_last
NAMES = ["conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]
# kernel and image sizes of a run; every size 1 to 4 of a kernel in each place, images of odd sizes, one no larger than its kernel
RUNS = (((1, 1), (5, 7)), ((2, 3), (7, 5)), ((3, 2), (9, 3)), ((4, 1), (7, 1)), ((1, 4), (1, 11)), ((3, 3), (3, 5)), ((2, 4), (5, 9)), ((4, 4), (13, 7)))


def attrs_of(stride: Any, padding: Any, dilation: Any, groups: int, rank: int = 2) -> dict[str, Any]:
    def per(v: Any) -> tuple[Any, ...]:
        return v if isinstance(v, tuple) else (v,) * rank

    return {"stride": per(stride), "padding": tuple(p if isinstance(p, tuple) else (p, p) for p in per(padding)), "dilation": per(dilation), "groups": groups}


def spread(k: int, d: int) -> int:
    return d * (k - 1) + 1


def whole(attrs: dict[str, Any], channels: int, filters: int, dtype: Any, layouts: Sequence[bool], rank: int = 2) -> Func:
    """(x, w, cotangent) -> (y, both gradients) for all batch, image and kernel sizes; channels too where there are no groups."""
    groups = attrs["groups"]
    sizes = [dims.symbol(c) for c in ("n", "hij"[:rank], "klm"[:rank]) for c in c]
    n, image, kernel = sizes[0], tuple(sizes[1:1 + rank]), tuple(sizes[1 + rank:])
    c: Any = channels if groups > 1 else dims.symbol("c")
    o: Any = filters if groups > 1 else dims.symbol("o")
    per_group = c // groups if groups > 1 else c
    types = [TensorType((n, c, *image), as_dtype(dtype), LAST(rank + 2) if layouts[0] else None),
             TensorType((o, per_group, *kernel), as_dtype(dtype), LAST(rank + 2) if layouts[1] else None)]
    return standard(vjp_func(build("conv", types, lambda b, x, w: b.conv(x, w, **attrs)), [True, True]))


def runs(func: Func, attrs: dict[str, Any], channels: int, filters: int, dtype: Any, rng: Any, shapes: Any = RUNS) -> Iterator[list[Any]]:
    """Arguments of ``whole`` whose kernels fit."""
    for i, (kernel, image) in enumerate(shapes):
        fits = [n + sum(p) >= spread(k, d) for n, k, p, d in zip(image, kernel, attrs["padding"], attrs["dilation"])]
        if not all(fits):
            continue
        env = {"n": i % 3 + (i == 0), **dict(zip("hij", image)), **dict(zip("klm", kernel)), "c": channels, "o": filters}
        yield [rng.normal(size=t.substitute(env).shape).astype(dtype) for t in func.arg_types]


COMBOS = list(itertools.product((False, True), (1, 2, 3), (0, 1, 2), (1, 2), ("1", "2", "C")))
CHANNELS = {"1": (3, 21, 1), "2": (4, 6, 2), "C": (5, 5, 5)}


def combination(last: bool, stride: int, padding: int, dilation: int, groups: str, dtype: Any, turn: int) -> tuple[Func, dict[str, Any], int, int]:
    channels, filters, count = CHANNELS[groups]
    attrs = attrs_of(stride, padding, dilation, count)
    return whole(attrs, channels, filters, dtype, (last, bool(turn % 2)) if turn % 5 else (not last, last)), attrs, channels, filters


@pytest.mark.parametrize("part", [0, *(pytest.param(i, marks=pytest.mark.thorough) for i in range(1, 6))])
@pytest.mark.parametrize("last, dtype", sweep.part([False, True], [np.float64, np.float32]))
def test_every_combination(last: bool, dtype: Any, part: int) -> None:
    """Value and both gradients of one size-generic kernel per combination, between guard pages, against the interpreter. A part takes every sixth."""
    chosen = [(i, c) for i, c in enumerate(COMBOS) if c[0] is last and (i + i // 6 + last + 3 * (dtype is np.float32)) % 6 == part]
    made = {f"c{i}": combination(*c, dtype, i) for i, c in chosen}
    kernels = natives({name: func for name, (func, *_) in made.items()})
    rng, count = np.random.default_rng(1), 0
    for name, (func, attrs, channels, filters) in made.items():
        for args in runs(func, attrs, channels, filters, dtype, rng):
            agree(run_both_guards(kernels[name], args), interp.run(func, *args), False, f"{name} {attrs} {[a.shape for a in args]}")
            count += 1
    assert count > 40


def test_more_shapes() -> None:
    """Rank 1 and 3, padding on one side, negative padding, strides that share a factor with the dilation, depthwise with several filters, many channels, sizes 0."""
    cases = [
        (attrs_of(2, ((1, 0),), 3, 1, 1), 3, 4, (((3,), (9,)), ((1,), (4,)), ((2,), (3,)))),
        (attrs_of((4, 6), ((2, 1), (-1, 3)), (2, 4), 1), 2, 3, (((2, 3), (9, 11)), ((1, 2), (5, 4)))),
        (attrs_of((3, 2), ((-1, -2), (0, -1)), (3, 1), 2), 4, 4, (((2, 1), (9, 7)),)),
        (attrs_of(1, 1, 1, 3), 3, 6, (((3, 3), (5, 4)), ((2, 2), (1, 1)))), (attrs_of(1, 1, 1, 1), 40, 70, (((3, 3), (4, 5)), ((1, 1), (3, 3)))),
        (attrs_of(1, 0, 1, 1), 0, 3, (((2, 2), (3, 3)),)), (attrs_of(1, 0, 1, 1), 2, 0, (((2, 2), (3, 3)),)),
        (attrs_of(2, 1, 1, 1), 2, 3, (((1, 1), (0, 3)), ((2, 1), (0, 1)))),
        (attrs_of((1, 2, 3), ((1, 1), (0, 2), (2, 0)), (1, 2, 1), 1, 3), 3, 5, (((2, 2, 3), (3, 4, 5)), ((1, 1, 1), (2, 2, 2)))),
        (attrs_of(2, 1, 1, 2, 3), 4, 2, (((3, 1, 2), (3, 5, 2)),)), (attrs_of(1, 2, 1, 19), 19, 19, (((3, 3), (5, 6)),)),
        (attrs_of(1, 2, 1, 35), 35, 35, (((3, 3), (2, 3)),)),
    ]
    made = {f"m{i}{last}": (whole(a, c, o, np.float64, (bool(last), False), len(a["stride"])), a, c, o, shapes)
            for i, (a, c, o, shapes) in enumerate(cases) for last in (0, 1) if last == 0 or len(a["stride"]) > 1}
    kernels, rng, count = natives({name: m[0] for name, m in made.items()}), np.random.default_rng(2), 0
    for name, (func, attrs, channels, filters, shapes) in made.items():
        for args in runs(func, attrs, channels, filters, np.float64, rng, shapes):
            agree(run_both_guards(kernels[name], args), interp.run(func, *args), False, f"{name} {attrs} {[a.shape for a in args]}")
            count += 1
    assert count > 30


KNOWN: list[tuple[Any, Any, dict[str, Any]]] = [  # of known sizes, large enough for kernels of their own
    ((3, 17, 14, 13), (40, 17, 3, 3), attrs_of(1, 1, 1, 1)), ((2, 16, 15, 13), (32, 8, 3, 3), attrs_of(2, ((1, 1), (0, 2)), 1, 2)),
    ((2, 35, 16, 15), (35, 1, 3, 3), attrs_of(1, 1, 1, 35)), ((1, 3, 32, 31), (16, 3, 7, 7), attrs_of(2, 3, 1, 1)),
    ((2, 140, 5, 4), (137, 140, 3, 3), attrs_of(1, 1, 1, 1)),  # weights that are packed a block at a time
    ((2, 32, 40, 31), (19, 32, 1, 1), attrs_of(3, 0, 1, 1)), ((2, 12, 60), (25, 12, 5), attrs_of(1, 2, 2, 1, 1)),
    ((1, 5, 6, 7, 8), (21, 5, 3, 2, 3), attrs_of((1, 2, 1), 1, 1, 1, 3)), ((0, 16, 14, 14), (16, 16, 3, 3), attrs_of(1, 1, 1, 1)),
]


@pytest.mark.parametrize("last, dtype", sweep.part([False, True], [np.float32, np.float64]))
def test_kernels_of_their_own(last: bool, dtype: Any) -> None:
    """Chosen for all three parts, images in NCHW moved only where weight gradients need their channels adjacent; any batch."""
    made = {}
    for i, (x, w, attrs) in enumerate(KNOWN):
        layout = LAST(len(x)) if last else None
        types = [TensorType((dims.symbol("n"), *x[1:]), as_dtype(dtype), layout), TensorType(w, as_dtype(dtype), LAST(len(w)) if i % 3 == 1 else None)]
        made[f"k{i}"] = standard(vjp_func(build("conv", types, lambda b, x, w: b.conv(x, w, **attrs)), [True, True]))  # noqa: B023
    kernels, rng = natives(made), np.random.default_rng(7)
    for (name, func), (x, _, attrs) in zip(made.items(), KNOWN, strict=True):
        args = [rng.normal(size=t.substitute({"n": x[0]}).shape).astype(dtype) for t in func.arg_types]
        agree(run_both_guards(kernels[name], args), interp.run(func, *args), False, f"{name} {attrs}")
    program = Program(made["k0"])
    how = [k["how"] for k in program.meta["kernels"] if "how" in k]
    assert how == (["kernel"] * 3 if last else ["kernel", "kernel, y moved", "kernel"]), how
    text = texts(made["k0"], "f", Target.native())["kernel"]
    assert text.count("ag_conv_forward") == 4  # packing and the kernel, declared and called


class Shared(Program):
    threads = 3


@pytest.mark.skipif(pool.unusable() is not None, reason="no thread pool here")
def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops and kernels, with parts as small as can be."""
    monkeypatch.setattr(image_loops, "SHARE", 1)
    monkeypatch.setattr(select, "_SHARE", 1)
    rng = np.random.default_rng(12)
    for i, (x, w, attrs) in enumerate(KNOWN[:6]):
        for known in (True, False):
            layout = LAST(len(x)) if i % 2 else None
            sizes = x[2:] if known else tuple(map(dims.symbol, "hij"[:len(x) - 2]))
            types = [TensorType((*x[:2], *sizes), as_dtype("float32"), layout), TensorType(w, as_dtype("float32"))]
            func = standard(vjp_func(build("conv", types, lambda b, x, w: b.conv(x, w, **attrs)), [True, True]))  # noqa: B023
            shared = Shared(func)
            assert all((k["how"] != "loops") is known for k in shared.meta["kernels"] if "how" in k)
            args = [rng.normal(size=t.substitute(dict(zip("hij", x[2:]))).shape).astype(np.float32) for t in func.arg_types]
            for got, want in zip(shared(*args, guard=True), Program(func)(*args), strict=True):
                assert got.tobytes() == want.tobytes()


LOWER = [n for n in ("x86-64", "x86-64-v3") if Target.native().arch == "x86_64" and Target.named(n).vector_bits < Target.native().vector_bits]


@pytest.mark.parametrize("name", sweep.part(LOWER))
def test_other_instruction_sets(name: str) -> None:
    rng = np.random.default_rng(3)
    for i, (x, w, attrs) in enumerate(KNOWN[:4]):
        types = [TensorType(x, as_dtype("float32"), LAST(4) if i % 2 else None), TensorType(w, as_dtype("float32"))]
        func = standard(vjp_func(build("conv", types, lambda b, x, w: b.conv(x, w, **attrs)), [True, True]))  # noqa: B023
        args = [rng.normal(size=t.shape).astype(np.float32) for t in func.arg_types]
        agree(Program(func, Target.named(name))(*args, guard=True), interp.run(func, *args), False, f"{name} {attrs}")
    for i in (4, 41, 60, 95):
        func, attrs, channels, filters = combination(*COMBOS[i], np.float32, i)
        program = Program(func, Target.named(name))
        for args in runs(func, attrs, channels, filters, np.float32, rng):
            agree(program(*args, guard=True), interp.run(func, *args), False, f"{name} {attrs}")


def test_interpreter_is_the_definition() -> None:
    rng = np.random.default_rng(4)
    for i, (_, stride, padding, dilation, groups) in enumerate(COMBOS[:54]):
        channels, filters, count = CHANNELS[groups]
        attrs, (kernel, image) = attrs_of(stride, padding, dilation, count), RUNS[i % len(RUNS)]
        if any(n + 2 * padding < spread(k, dilation) for n, k in zip(image, kernel)):
            continue
        x, w = rng.normal(size=(2, channels, *image)), rng.normal(size=(filters, channels // count, *kernel))
        y = opdef.get("conv").ref(x, w, **attrs)  # type: ignore[misc]
        np.testing.assert_allclose(y, image_oracles.conv(x, w, **attrs), rtol=1e-12, atol=1e-12)
        ct = rng.normal(size=y.shape)
        gx = opdef.get("conv_input_grad").ref(ct, w, spatial=image, **attrs)  # type: ignore[misc]
        gw = opdef.get("conv_weight_grad").ref(x, ct, kernel=kernel, **attrs)  # type: ignore[misc]
        for inner in (np.vdot(gx, x), np.vdot(gw, w)):
            np.testing.assert_allclose(inner, np.vdot(ct, y), rtol=1e-11)
        np.testing.assert_allclose(gx, image_oracles.conv_transpose(ct, w, spatial=image, **attrs), rtol=1e-12, atol=1e-12)


# ---- as users call it -----------------------------------------------------------------------------------------------------------------

def _grads(m: Any, name: str, shapes: Any, fmt: str, kw: dict[str, Any]) -> Any:
    """Value, gradients and strides of a public call."""
    rng = np.random.default_rng(9)
    given = [m.tensor(rng.normal(size=s).tolist(), dtype=m.float64) for s in shapes]
    given = [x.to(memory_format=getattr(m, fmt)) if fmt != "contiguous_format" and x.dim() == len(shapes[0]) else x for x in given]
    for x in given:
        x.requires_grad_(True)
    y = getattr(m.nn.functional, name)(*given, **kw)
    (y * y).sum().backward()
    batched = len(shapes[0]) == len(shapes[1])
    strides = (y.stride(), [x.grad.stride() for x in given]) if len(shapes[1]) < 5 else ()  # torch's 3-d kernels keep channels last in float32 alone
    return y.detach(), [x.grad for x in given], strides, y.grad_fn.__class__.__name__ if batched else None


CALLS: list[tuple[str, Any, dict[str, Any]]] = [
    ("conv1d", ((2, 4, 9), (6, 4, 3), (6,)), {"stride": 2, "padding": 1}), ("conv1d", ((4, 9), (6, 2, 3)), {"groups": 2}),
    ("conv1d", ((1, 2, 7), (2, 2, 4)), {"padding": "same"}),
    ("conv2d", ((2, 4, 7, 5), (6, 4, 3, 3), (6,)), {"padding": 1}),
    ("conv2d", ((2, 4, 7, 5), (6, 2, 3, 2)), {"padding": (2, 0), "stride": (1, 3), "groups": 2}),
    ("conv2d", ((4, 7, 5), (8, 1, 2, 2), (8,)), {"groups": 4, "dilation": 2}),
    ("conv2d", ((2, 3, 8, 8), (4, 3, 3, 2), (4,)), {"padding": "same", "dilation": 2}), ("conv2d", ((1, 3, 5, 5), (2, 3, 5, 5)), {"padding": "valid"}),
    ("conv2d", ((2, 1, 4, 4), (1, 1, 1, 1)), {}), ("conv2d", ((2, 3, 1, 1), (2, 3, 1, 1), (2,)), {}), ("conv2d", ((0, 3, 4, 4), (2, 3, 2, 2), (2,)), {}),
    ("conv3d", ((2, 2, 4, 5, 3), (3, 2, 2, 3, 1), (3,)), {"padding": 1, "stride": (2, 1, 1)}),
    ("conv_transpose1d", ((2, 4, 5), (4, 3, 3), (3,)), {"stride": 3, "output_padding": 2}),
    ("conv_transpose2d", ((2, 4, 5, 3), (4, 3, 3, 2), (6,)), {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}),
    ("conv_transpose2d", ((4, 5, 3), (4, 3, 2, 2)), {"dilation": 2, "output_padding": 1}),
    ("conv_transpose3d", ((1, 2, 3, 2, 2), (2, 2, 2, 1, 3), (2,)), {"stride": (1, 2, 1), "padding": (0, 0, 1)}),
]


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
@pytest.mark.parametrize("call", CALLS, ids=lambda c: f"{c[0]}{c[1]}{c[2]}")
def test_torch_agrees(call: Any) -> None:
    """Values, gradients, node names, and strides of both layouts."""
    name, shapes, kw = call
    formats = ["contiguous_format", *({4: ["channels_last"], 5: ["channels_last_3d"]}.get(len(shapes[0]), []) if len(shapes[0]) == len(shapes[1]) else [])]
    for fmt in formats:
        ours, theirs = (outcome(m, lambda m: _grads(m, name, shapes, fmt, kw)) for m in modules())  # noqa: B023
        assert ours == theirs, (call, fmt)


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
def test_strides_are_torchs() -> None:
    """Either array in either format, and shapes whose format is ambiguous."""
    for name, shapes, kw in CALLS:
        if len(shapes[0]) != len(shapes[1]) or len(shapes[0]) == 3 or name == "conv_transpose3d":  # where torch drops the format
            continue
        last = {4: "channels_last", 5: "channels_last_3d"}[len(shapes[0])]
        for formats in itertools.product(("contiguous_format", last), repeat=2):
            def strides(m: Any, name: str = name, shapes: Any = shapes, kw: Any = kw, formats: Any = formats) -> Any:
                x, w = (m.zeros(s).to(memory_format=getattr(m, f)) for s, f in zip(shapes, formats))
                return getattr(m.nn.functional, name)(x, w, **kw).stride()

            ours, theirs = (outcome(m, strides) for m in modules())
            assert ours == theirs, (name, shapes, formats)


@pytest.mark.parametrize("call", CALLS[:10:3], ids=lambda c: f"{c[0]}{c[1]}{c[2]}")
def test_roads_agree(call: Any) -> None:
    """Compiled, on the tape, and second derivatives both ways."""
    name, shapes, kw = call
    rng = np.random.default_rng(5)
    xs = [rng.normal(size=s) for s in shapes]
    f = getattr(ag, name)

    def loss(*xs: Any) -> Any:
        y = f(*xs, **kw)
        return ag.sum(y * ag.sin(y))

    np.testing.assert_allclose(ag.compile(lambda *xs: f(*xs, **kw))(*xs), f(*xs, **kw), rtol=1e-12, atol=1e-13)
    count = tuple(range(len(xs)))
    for got, want in zip(ag.compile(ag.grad(loss, argnums=count))(*xs), ag.grad(loss, argnums=count)(*xs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-12)
    vs = [rng.normal(size=x.shape) for x in xs]
    pushed = ag.jvp(lambda *xs: ag.grad(loss, argnums=0)(*xs), tuple(xs), tuple(vs))[1]
    step = 1e-6
    numeric = (ag.grad(loss)(*(x + step * v for x, v in zip(xs, vs))) - ag.grad(loss)(*(x - step * v for x, v in zip(xs, vs)))) / (2 * step)
    np.testing.assert_allclose(pushed, numeric, rtol=1e-6, atol=1e-6 * np.abs(numeric).max())


def test_sizes_stay_symbolic() -> None:
    """One compiled function serves all batch and image sizes; another size of channels that does not fit is an error that names the line."""
    f = ag.compile(lambda x, w: ag.conv2d(x, w, stride=2, padding=1))
    rng = np.random.default_rng(6)
    w = rng.normal(size=(4, 3, 3, 3))
    for shape in ((2, 3, 8, 9), (0, 3, 5, 4), (1, 3, 1, 2), (3, 3, 14, 7)):
        x = rng.normal(size=shape)
        np.testing.assert_allclose(f(x, w), ag.conv2d(x, w, stride=2, padding=1), rtol=1e-12)
    assert f.cache_info().traces == 1
    with pytest.raises(RuntimeError, match="channels"):
        f(rng.normal(size=(2, 4, 8, 9)), w)
    for kernel in ((4, 3, 9, 3), (4, 3, 3, 12)):
        with pytest.raises(RuntimeError, match="can't be greater than actual input size"):
            f(rng.normal(size=(2, 3, 5, 5)), rng.normal(size=kernel))


def test_examples_with_weights_of_their_own_are_groups() -> None:
    """vmap over a known number of examples: one convolution, and no loop."""
    rng = np.random.default_rng(8)
    for op, shapes, extra in (("conv", ((2, 4, 6, 5), (6, 2, 3, 2)), {}), ("conv_input_grad", ((2, 6, 3, 3), (6, 2, 3, 2)), {"spatial": (6, 4)}),
                              ("conv_weight_grad", ((2, 4, 6, 5), (2, 6, 3, 3)), {"kernel": (3, 3)})):
        func = build(op, [TensorType(s, as_dtype("float64")) for s in shapes], lambda b, p, q: b.emit(op, [p, q], {**extra, **attrs_of(2, 1, 1, 2)}))  # noqa: B023
        for on in ((True, False), (False, True), (True, True)):
            batched = batch_func(func, on, 3)
            assert not any(o.name == "scan" for o in batched.body.ops)
            args = [rng.normal(size=((3, *s) if k else s)) for s, k in zip(shapes, on)]
            want = np.stack([interp.run(func, *(a[i] if k else a for a, k in zip(args, on)))[0] for i in range(3)])
            np.testing.assert_allclose(interp.run(batched, *args)[0], want, rtol=1e-12, atol=1e-12)


def test_integers_and_small_floats() -> None:
    rng = np.random.default_rng(7)
    x, w = rng.integers(-5, 5, (2, 4, 6, 5)), rng.integers(-5, 5, (6, 2, 3, 2))
    kw = attrs_of(2, 1, 1, 2)
    for dtype in (np.int64, np.int32, np.int8):
        got = ag.conv2d(x.astype(dtype), w.astype(dtype), stride=2, padding=1, groups=2)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, image_oracles.conv(x, w, **kw).astype(dtype))


X, W, T = (1, 3, 4, 4), (2, 3, 2, 2), (3, 2, 2, 2)
BAD: list[tuple[str, Any, dict[str, Any], str]] = [
    ("conv2d", (X, (2, 4, 2, 2)), {}, "Given groups=1, weight of size [2, 4, 2, 2], expected input[1, 3, 4, 4] to have 4 channels, but got 3"),
    ("conv2d", (X, (2, 1, 2, 2)), {"groups": 3}, "Given groups=3, expected weight to be at least 3 at dimension 0"),
    ("conv2d", ((1, 4, 4, 4), T), {"groups": 2}, "Given groups=2, expected weight to be divisible by 2 at dimension 0"),
    ("conv2d", (X, W), {"padding": -1}, "negative padding is not supported"),
    ("conv2d", (X, (2, 3, 5, 2)), {}, "Calculated padded input size per channel: (4 x 4). Kernel size: (5 x 2). Kernel size can't be greater than"),
    ("conv2d", ((3, 4), (2, 3, 2, 2)), {}, "Expected 3D (unbatched) or 4D (batched) input to conv2d, but got input of size: [3, 4]"),
    ("conv2d", (X, W, (3,)), {}, "Given weight of size [2, 3, 2, 2], expected bias to be 1-dimensional with 2 elements, but got bias of size [3]"),
    ("conv2d", (X, (2, 3, 0, 2)), {}, "kernel size should be greater than zero"),
    ("conv2d", (X, W), {"stride": 0}, "non-positive stride"),
    ("conv2d", (X, W), {"dilation": 0}, "dilation should be greater than zero"),
    ("conv2d", (X, W), {"groups": 0}, "non-positive groups is not supported"),
    ("conv2d", (X, W), {"stride": (1, 2, 3)}, "expected stride to be a single integer value or a list of 2 values"),
    ("conv2d", (X, W), {"padding": "same", "stride": 2}, "padding='same' is not supported for strided convolutions"),
    ("conv2d", (X, W), {"padding": "foo"}, "Invalid padding string: 'foo'"),
    ("conv2d", (X, W), {"stride": 1.5}, ""),
    ("conv_transpose2d", (X, (2, 2, 2, 2)), {}, "Given transposed=1, weight of size [2, 2, 2, 2], expected input[1, 3, 4, 4] to have 2 channels, but got 3"),
    ("conv_transpose2d", (X, T), {"output_padding": 1}, "output padding must be smaller than either stride or dilation"),
    ("conv_transpose2d", (X, T), {"padding": 3}, "Given input size per channel: (4 x 4). Calculated output size per channel: (-1 x -1)."),
    ("conv_transpose2d", (X, T), {"output_padding": -1}, "negative output_padding is not supported"),
    ("conv_transpose2d", ((1, 3, 0, 4), T), {}, "Only zero batch or zero channel inputs are supported"),
    ("conv_transpose1d", ((1, 4, 4), (4, 2, 2), (3,)), {"groups": 2}, "Given transposed=1, weight of size [4, 2, 2], expected bias to be 1-dimensional with 4 elements"),
]


@pytest.mark.parametrize("bad", BAD, ids=lambda b: f"{b[0]}{b[1]}{b[2]}")
def test_bad_calls(bad: Any) -> None:
    """torch's words and types, eagerly; with the user's line under ``compile``."""
    name, shapes, kw, text = bad

    def lines(m: Any) -> Any:
        return getattr(m.nn.functional, name)(*(m.zeros(s) for s in shapes), **kw)

    found = [outcome(m, lines, len(text)) for m in modules()]
    assert found[0][0] == "error" and found[0][2] == text, found
    assert all(f == found[0] for f in found)
    with pytest.raises(ag.AotgradError, match="test_conv.py") as caught:
        ag.compile(lambda *xs: getattr(ag, name)(*xs, **kw))(*(np.zeros(s) for s in shapes))
    assert text[:40] in str(caught.value)


def test_type_rules_name_what_does_not_fit() -> None:
    x, w, y = (TensorType(s, as_dtype("float64")) for s in ((2, 4, 5), (6, 2, 3), (2, 6, 3)))
    window = attrs_of(1, 0, 1, 2, 1)
    for name, types, attrs, match in (
        ("conv", (x, w), {**window, "groups": 1}, "channels of x: 4 where 2"), ("conv", (x, w), {**window, "groups": 4}, "channels of x"),
        ("conv", (x, w), {**window, "dilation": (3,)}, "does not fit into size 5"), ("conv", (x, w), {**window, "stride": (0,)}, "must be positive"),
        ("conv", (x, w), {**window, "stride": (1, 1)}, "need 1 entries"), ("conv", (x, TensorType((6, 2), as_dtype("float64"))), window, "one rank"),
        ("conv_input_grad", (y, w), {**window, "spatial": (6,)}, "a size of y: 3 where 4"), ("conv_input_grad", (x, w), {**window, "spatial": (5,)}, "channels of y"),
        ("conv_weight_grad", (x, y), {**window, "kernel": (2,)}, "a size of y: 3 where 4"), ("conv_weight_grad", (x, y), {**window, "kernel": (3, 1)}, "kernel needs 1"),
    ):
        with pytest.raises(ag.AotgradError, match=match):
            build("f", types, lambda b, p, q: b.emit(name, [p, q], attrs))  # noqa: B023
    assert positions(dims.symbol("n"), 3, 2, (1, 1), 1) == dims.parse("floordiv(n - 1, 2) + 1")


@pytest.mark.parametrize("name", NAMES)
def test_examples_run(name: str) -> None:
    text = getattr(ag, name).__doc__
    assert doctest.DocTestRunner().run(doctest.DocTestParser().get_doctest(text, {"ag": ag}, name, None, 0)).attempted
