"""3 x 3 convolutions with fewer multiplications: values against float64 within the bound that the form has, between guard pages; NaN, infinity and overflow as in the
definition; the same bits by every road; derivatives to second order."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sweep
from lowering_harness import Program
from native_table import agree, natives, run_both_guards
from test_conv import LAST, attrs_of
from test_conv_kernels import FIRST, NP, build, check, reference, spec

import aotgrad as ag
from aotgrad.codegen.conv import emit, select, winograd
from aotgrad.codegen.conv.taps import tap_sums
from aotgrad.codegen.target import Target
from aotgrad.frontend import aot, images
from aotgrad.ir import TensorType, dims, interp
from aotgrad.ir import build as build_ir
from aotgrad.ir.transforms.cleanup import standard
from aotgrad.ir.transforms.differentiate import vjp_func
from aotgrad_runtime import pool
from aotgrad_runtime.dtypes import as_dtype

NAMES = [n for n in ("native", "x86-64-v3") if Target.named(n).fma and 256 <= Target.named(n).vector_bits <= Target.native().vector_bits]
pytestmark = pytest.mark.skipif(not NAMES, reason="no machine for which these kernels are chosen")
wide = pytest.mark.parametrize("name", NAMES)
BT = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
G = np.array([[1, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 1]])
AT = np.array([[1, 0.5, 0.5, 0], [0, 0.5, -0.5, -1]])
ONE, LAST_ = ((1, 1), (1, 1)), "channels_last"
KINDS = ["forward", "input_grad", "weight_grad"]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones too: the form is what is tested, not where it is faster."""
    for name in ("_LEAST_CHANNELS", "_LEAST_BOTH", "_LEAST_TILES", "_LEAST_WORK"):
        monkeypatch.setattr(winograd, name, 1)
    monkeypatch.setattr(winograd, "_WEIGHTS_A_TILE", 1 << 40)


def form(x: Any, w: Any, low: tuple[int, int], sizes: tuple[int, int], matrices: Any) -> Any:
    """What the transforms compute, in float64: ``x`` [n, c, h, v] with ``low`` zeros before it, ``w`` [o, c, 3, 3]; results of ``sizes``."""
    bt, g, at = matrices
    down, across = -(-sizes[0] // 2), -(-sizes[1] // 2)
    padded = padded_to_tiles(x, low, sizes)
    u = np.einsum("ai,ocij,bj->abco", g, w, g)
    out = np.zeros((x.shape[0], w.shape[0], 2 * down, 2 * across))
    for i, j in itertools.product(range(down), range(across)):
        v = np.einsum("ai,ncij,bj->abnc", bt, padded[:, :, 2 * i:2 * i + 4, 2 * j:2 * j + 4], bt)
        out[:, :, 2 * i:2 * i + 2, 2 * j:2 * j + 2] = np.einsum("pa,abno,qb->nopq", at, np.einsum("abnc,abco->abno", v, u), at)
    return out[:, :, :sizes[0], :sizes[1]]


def padded_to_tiles(x: Any, low: tuple[int, int], sizes: tuple[int, int]) -> Any:
    """x with ``low`` zeros before it (cut off where negative), as large as tiles for ``sizes`` results read."""
    down, across = -(-sizes[0] // 2), -(-sizes[1] // 2)
    padded = np.zeros((*x.shape[:2], 2 * down + 2 + max(0, low[0]) + x.shape[2], 2 * across + 2 + max(0, low[1]) + x.shape[3]))
    first = [max(0, p) for p in low]
    padded[:, :, first[0]:first[0] + x.shape[2], first[1]:first[1] + x.shape[3]] = x
    return padded[:, :, first[0] - low[0]:, first[1] - low[1]:]


def weight_form(x: Any, y: Any, low: tuple[int, int], matrices: Any) -> Any:
    """The transposed form: the weights' gradient [o, c, 3, 3]. Halves are where they are in the kernel."""
    bt, g, at = matrices
    a, g = at.T * np.array([[1], [2], [2], [1]]), g * np.array([[1], [0.5], [0.5], [1]])
    down, across = -(-y.shape[2] // 2), -(-y.shape[3] // 2)
    padded, even = padded_to_tiles(x, low, y.shape[2:]), np.zeros((*y.shape[:2], 2 * down, 2 * across))
    even[:, :, :y.shape[2], :y.shape[3]] = y
    sums = np.zeros((4, 4, y.shape[1], x.shape[1]))
    for i, j in itertools.product(range(down), range(across)):
        v = np.einsum("ai,ncij,bj->abnc", bt, padded[:, :, 2 * i:2 * i + 4, 2 * j:2 * j + 4], bt)
        e = np.einsum("ap,nopq,bq->abno", a, even[:, :, 2 * i:2 * i + 2, 2 * j:2 * j + 2], a)
        sums += np.einsum("abnc,abno->aboc", v, e)
    return np.einsum("ai,aboc,bj->ocij", g, sums, g)


def bound(s: Any, given: list[Any]) -> Any:
    """What rounding may do: 2 additions in x's transform, 4 in the weights' and 4 in the result's, and the products, each times the sum of magnitudes."""
    x, w, y = (None if a is None else abs(a.astype(np.float64)) for a in given)
    matrices = [abs(m) for m in (BT, G, AT)]
    low = [p for p, _ in s.padding]
    if s.kind == "weight_grad":
        tiles = s.batch * -(-s.positions[0] // 2) * -(-s.positions[1] // 2)
        return (tiles + 12) * float(np.finfo(NP[s.dtype]).eps) / 2 * weight_form(x, y, (low[0], low[1]), matrices)
    if s.kind == "forward":
        scale, depth = form(x, w, (low[0], low[1]), s.positions, matrices), s.channels
    else:
        scale, depth = form(y, w.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1], (2 - low[0], 2 - low[1]), s.spatial, matrices), s.filters
    return (depth + 12) * float(np.finfo(NP[s.dtype]).eps) / 2 * scale


def test_the_form_is_the_convolution() -> None:
    rng = np.random.default_rng(0)
    for low, size in itertools.product((-1, 0, 1, 2), (4, 5)):
        s = spec(channels=3, filters=2, spatial=(size, 7), padding=((low, 1), (low, 2)))
        x, w = rng.standard_normal((2, 3, size, 7)), rng.standard_normal((2, 3, 3, 3))
        np.testing.assert_allclose(form(x, w, (low, low), s.positions, (BT, G, AT)), reference(s, x, w, None), rtol=1e-12, atol=1e-12)
        y = rng.standard_normal((2, 2, *s.positions))
        np.testing.assert_allclose(weight_form(x, y, (low, low), (BT, G, AT)), reference(s, x, None, y), rtol=1e-12, atol=1e-12)


def grid(kind: str, dtype: str) -> list[Any]:
    """Padding 0 to 2 (and cut off, and on one side), odd and even sizes, channels of less than a vector to several blocks, layouts in turn."""
    rng = np.random.default_rng(len(kind))
    out = []
    for low, high, odd in itertools.product((-1, 0, 1, 2), (0, 1, 2), (0, 1)):
        size = [int(rng.integers(2, 7)) * 2 + 1 + (odd ^ i) for i in range(2)]
        c, o = (int(rng.choice([1, 3, 8, 17, 33, 64, 70, 130])) for _ in range(2))
        layouts = [str(rng.choice([LAST_, FIRST])) for _ in range(2)] + [LAST_ if kind == "weight_grad" else str(rng.choice([LAST_, FIRST]))]
        out.append(spec(kind, dtype, int(rng.integers(1, 4)), c, o, size, (3, 3), padding=((low, high), (high, low if low >= 0 else 1)), layouts=tuple(layouts)))
    return out


def tiled(made: Any) -> bool:
    """Whether a kernel is of this form: by its workspace, or a function's name."""
    return bool(made[2].work_bytes) or "_run_places" in made[2].text


@pytest.mark.parametrize("part", [0, *(pytest.param(i, marks=pytest.mark.thorough) for i in (1, 2, 3))])
@pytest.mark.parametrize("name, dtype, kind", sweep.part(NAMES, NP, KINDS))
def test_grid(name: str, dtype: str, kind: str, part: int, always: None) -> None:
    specs = grid(kind, dtype)[(part + NAMES.index(name)) % 4::4]
    for i, (s, made) in enumerate(zip(specs, build(specs, name), strict=True)):
        assert tiled(made)
        check(made, s, i, at_end=bool(i % 2), bound=bound)


@pytest.mark.parametrize("name, kind", sweep.part(NAMES, KINDS))
def test_sizes_of_caches(name: str, kind: str) -> None:
    """Several units an image, several blocks of channels, weights beyond the second cache; chosen as they are."""
    specs = [spec(kind, batch=2, channels=64, filters=72, spatial=(40, 28), padding=ONE, layouts=(LAST_, LAST_, LAST_)),
             spec(kind, batch=1, channels=130, filters=200, spatial=(20, 15), padding=ONE, layouts=(FIRST, FIRST, FIRST if kind != "weight_grad" else LAST_)),
             spec(kind, batch=1, channels=200, filters=160, spatial=(13, 21), padding=ONE, layouts=(LAST_, FIRST, LAST_))]
    for i, (s, made) in enumerate(zip(specs, build(specs, name), strict=True)):
        assert tiled(made) and made[2].units > 1
        check(made, s, i, bound=bound)


def cut(total: int) -> list[tuple[int, int]]:
    """Units in five parts, the last first."""
    cuts = [0, *sorted(int(c) for c in np.random.default_rng(0).integers(0, total, 4)), total]
    return list(itertools.pairwise(cuts))[::-1]


# ---- what is not finite ---------------------------------------------------------------------------------------------------------------

def run(made: Any, s: Any, x: Any, w: Any, ranges: Any = None) -> Any:
    """The forward result of channels-last or row-major arrays given as [n, c, h, v]."""
    kernel_run, pack, kernel, _ = made
    order = (0, 2, 3, 1)

    def held(a: Any, layout: str) -> Any:
        return np.ascontiguousarray(a.transpose(order) if layout == LAST_ else a, NP[s.dtype])

    x, w = held(x, s.layouts[0]), held(w, s.layouts[1])
    shape = (s.batch, s.filters, *s.positions)
    y = np.full([shape[i] for i in order] if s.layouts[2] == LAST_ else shape, 7, NP[s.dtype])
    packed, work = np.zeros(max(1, kernel.packed_bytes), np.uint8), np.full(kernel.work_bytes + 64, 255, np.uint8)
    pack(w.ctypes.data, packed.ctypes.data)
    fourth = work.ctypes.data if kernel.work_bytes else w.ctypes.data if kernel.staged else None
    total = kernel.units * s.batch
    for low, high in ranges(total) if ranges else [(0, total)]:
        kernel_run(x.ctypes.data, packed.ctypes.data, y.ctypes.data, fourth, s.batch, low, high)
    return y.transpose(0, 3, 1, 2) if s.layouts[2] == LAST_ else y


@wide
def test_units_and_layouts_change_no_bit(name: str) -> None:
    specs = [spec(batch=3, channels=50, filters=70, spatial=(37, 40), padding=ONE, layouts=(a, FIRST, b)) for a, b in itertools.product((FIRST, LAST_), repeat=2)]
    x, w = (np.random.default_rng(1).standard_normal(shape) for shape in ((3, 50, 37, 40), (70, 50, 3, 3)))
    found = [run(made, s, x, w, ranges) for s, made in zip(specs, build(specs, name), strict=True) for ranges in (None, cut)]
    assert all(np.array_equal(f, found[0]) for f in found)
    for kind in ("input_grad", "weight_grad"):
        s = spec(kind, batch=3, channels=50, filters=140, spatial=(9, 14), padding=ONE, layouts=(LAST_, FIRST, LAST_))
        made, = build([s], name)
        assert tiled(made) and np.array_equal(check(made, s, 1, bound=bound), check(made, s, 1, ranges=cut, bound=bound))


def pair(s: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """The kernel of this form, and the direct one."""
    made, = build([s], name)
    with monkeypatch.context() as m:
        m.setattr(emit, "plan_tiles", lambda *_: None)
        direct, = build([s], name)
    assert made[2].work_bytes and not direct[2].work_bytes
    return made, direct


@wide
@pytest.mark.parametrize("layout", [FIRST, LAST_])
def test_nan_and_infinity_stay_where_they_belong(name: str, layout: str, always: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One element that is not finite: exactly the results that read it are not, as the definition says; no other changes a bit."""
    s = spec(channels=20, filters=37, spatial=(7, 8), padding=((1, 1), (1, 2)), layouts=(layout, FIRST, layout))
    made, direct = pair(s, name, monkeypatch)
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((2, 20, 7, 8)), rng.standard_normal((37, 20, 3, 3))
    w[5, :, 1, 1] = 0  # infinity times 0
    plain = run(made, s, x, w)
    for value, at in ((np.nan, (0, 3, 2, 5)), (np.inf, (1, 0, 0, 0)), (-np.inf, (0, 19, 6, 7)), (np.inf, (1, 7, 3, 3))):
        bad = x.copy()
        bad[at] = value
        got, want = run(made, s, bad, w), run(direct, s, bad, w)
        assert np.array_equal(np.isnan(got), np.isnan(want)) and np.array_equal(got[np.isinf(got)], want[np.isinf(want)])
        assert np.array_equal(np.isinf(got), np.isinf(want)) and np.isfinite(got).any() and not np.isfinite(got).all()
        assert np.array_equal(got[np.isfinite(got)], plain[np.isfinite(got)])
    two = x.copy()
    two[0, 2, 3, 3] = two[0, 5, 3, 4] = np.inf
    two[1, :, 2:4, 2:4] = -np.inf
    assert np.array_equal(run(made, s, two, w)[~np.isfinite(run(direct, s, two, w))], run(direct, s, two, w)[~np.isfinite(run(direct, s, two, w))], equal_nan=True)
    for value in (np.nan, np.inf):
        heavy = w.copy()
        heavy[11, 4, 0, 2] = value
        got, want = run(made, s, x, heavy), run(direct, s, x, heavy)
        assert np.array_equal(got[:, 11][~np.isfinite(want[:, 11])], want[:, 11][~np.isfinite(want[:, 11])], equal_nan=True)
        others = [o for o in range(37) if o != 11]
        assert np.array_equal(got[:, others], plain[:, others])


@wide
@pytest.mark.parametrize("dtype", list(NP))
def test_sums_in_between_may_overflow(name: str, dtype: str, always: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers near the largest, whose transforms are beyond it, and weights near the least ones: right where the definition is."""
    s = spec(dtype=dtype, channels=3, filters=18, spatial=(6, 7), padding=ONE)
    made, direct = pair(s, name, monkeypatch)
    most, rng = float(np.finfo(NP[dtype]).max), np.random.default_rng(4)
    for scale, weights in ((0.4, 0.01), (0.9, 0.05), (1e-4, 1e3)):
        x = np.sign(rng.standard_normal((2, 3, 6, 7))) * most * scale
        w = rng.uniform(0.5, 1, (18, 3, 3, 3)) * weights
        got, want = run(made, s, x, w), run(direct, s, x, w)
        assert np.array_equal(np.isfinite(got), np.isfinite(want)) and np.array_equal(got[~np.isfinite(got)], want[~np.isfinite(want)], equal_nan=True)
        exact = reference(s, x / most, w, None)
        fine = np.isfinite(want)
        assert fine.any()
        limit = bound(s, [x / most, w, None])
        np.testing.assert_array_less(abs(got.astype(np.float64)[fine] / most - exact[fine]), limit[fine] + 1e-300)
    x, w = rng.standard_normal((2, 3, 6, 7)), rng.uniform(0.5, 1, (18, 3, 3, 3)) * most * 0.9
    got, want = run(made, s, x / 30, w), run(direct, s, x / 30, w)
    assert np.array_equal(np.isfinite(got), np.isfinite(want))
    tiny = float(np.finfo(NP[dtype]).smallest_subnormal)
    w = np.round(rng.uniform(-9, 9, (18, 3, 3, 3))) * tiny  # whole numbers of the least number: exact in either form
    x = np.round(rng.uniform(-9, 9, (2, 3, 6, 7)))
    assert np.array_equal(run(made, s, x, w * 4), run(direct, s, x, w * 4))


@wide
@pytest.mark.parametrize("layout", [FIRST, LAST_])
def test_gradients_of_weights_that_are_not_finite(name: str, layout: str, always: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One element of x or y that is not finite, at a corner or inside: the gradients that it takes part in, as the definition says; no other changes a bit. Overflow."""
    s = spec("weight_grad", channels=20, filters=37, spatial=(7, 8), padding=((1, 1), (1, 2)), layouts=(layout, FIRST, LAST_))
    made, = build([s], name)
    with monkeypatch.context() as m:
        m.setattr(emit, "plan_weight_tiles", lambda *_: None)
        direct, = build([s], name)
    assert tiled(made) and not tiled(direct)
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((2, 20, 7, 8)), rng.standard_normal((2, 37, *s.positions))
    y[:, :, 3, 4] = 0  # infinity times 0
    plain = weights_of(made, s, x, y)
    for value, at in ((np.nan, (0, 3, 0, 0)), (np.inf, (1, 0, 0, 0)), (-np.inf, (0, 19, 6, 7)), (np.inf, (1, 7, 3, 3)), (np.nan, (1, 7, 3, 3))):
        for which in (0, 1):
            bad = [x.copy(), y.copy()]
            bad[which][at] = value
            got, want = weights_of(made, s, *bad), weights_of(direct, s, *bad)
            fine = np.isfinite(want)
            assert not fine.all() and np.array_equal(got[~fine], want[~fine], equal_nan=True)
            assert fine.any() and np.isfinite(got[fine]).all()
            untouched = np.isfinite(weights_of(made, s, *[np.where(np.isfinite(b), b, 0) for b in bad])) & fine
            channel = np.zeros_like(fine)
            channel[(slice(None), at[1]) if which == 0 else at[1]] = True
            assert np.array_equal(got[untouched & ~channel], plain[untouched & ~channel])
    most = float(np.finfo(np.float32).max)
    big = rng.uniform(0.5, 0.9, x.shape) * most
    got, want = weights_of(made, s, big, y * 1e-3), weights_of(direct, s, big, y * 1e-3)
    assert np.isfinite(want).any() and np.array_equal(np.isfinite(got), np.isfinite(want))
    exact = reference(s, big.astype(np.float32).astype(np.float64) / most, None, (y * 1e-3).astype(np.float32).astype(np.float64))
    fine = np.isfinite(want)
    assert (abs(got.astype(np.float64) / most - exact)[fine] <= bound(s, [big / most, None, y * 1e-3])[fine]).all()


def weights_of(made: Any, s: Any, x: Any, y: Any) -> Any:
    """The gradient of row-major weights, of x and y given as [n, c, h, v]."""
    order = (0, 2, 3, 1)
    xs, ys = (np.ascontiguousarray(a.transpose(order) if layout == LAST_ else a, np.float32) for a, layout in ((x, s.layouts[0]), (y, s.layouts[2])))
    out, work = np.full((s.filters, s.channels, 3, 3), 7, np.float32), np.full(made[2].packed_bytes + 64, 255, np.uint8)
    made[0](xs.ctypes.data, ys.ctypes.data, work.ctypes.data, out.ctypes.data, s.batch, 0, made[2].units)
    return out


# ---- whole functions ------------------------------------------------------------------------------------------------------------------

def conv_and_gradients(x: Any, w: Any, attrs: Any, dtype: Any, last: bool, batch: Any) -> Any:
    layout = LAST(4) if last else None
    types = [TensorType((batch, *x[1:]), as_dtype(dtype), layout), TensorType(w, as_dtype(dtype))]
    return standard(vjp_func(build_ir("conv", types, lambda b, x, w: b.conv(x, w, **attrs)), [True, True]))


CASES = [((2, 24, 12, 13), (40, 24, 3, 3), attrs_of(1, 1, 1, 1)), ((1, 48, 17, 14), (24, 48, 3, 3), attrs_of(1, ((0, 2), (2, 0)), 1, 1))]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("last", [False, True])
def test_chosen_in_functions(last: bool, dtype: str) -> None:
    """Value and both gradients against the interpreter, any batch, between guard pages."""
    made = {f"w{i}": conv_and_gradients(x, w, a, dtype, last, dims.symbol("n")) for i, (x, w, a) in enumerate(CASES)}
    rng = np.random.default_rng(8)
    for (name, func), (x, _, _), kernel in zip(made.items(), CASES, natives(made).values(), strict=True):
        args = [rng.normal(size=t.substitute({"n": x[0]}).shape).astype(dtype) for t in func.arg_types]
        agree(run_both_guards(kernel, args), interp.run(func, *args), False, name)
    assert [k["how"] for k in Program(made["w0"]).meta["kernels"] if "how" in k][:1] == ["kernel"]


class Shared(Program):
    threads = 3


@pytest.mark.skipif(pool.unusable() is not None, reason="no thread pool here")
@pytest.mark.parametrize("fused", [False, True])
def test_threads_change_no_bit(fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "_SHARE", 1)
    for i, (x, w, attrs) in enumerate(CASES):
        func = conv_and_gradients(x, w, attrs, "float32", bool(i), 3)
        if fused:
            types = [TensorType((3, *x[1:]), as_dtype("float32"), LAST(4)), TensorType(w, as_dtype("float32"))]
            func = standard(build_ir("f", types, lambda b, x, w: b.exp(b.conv(x, w, **attrs))))  # noqa: B023
        args = [np.random.default_rng(i).normal(size=t.shape).astype(np.float32) for t in func.arg_types]
        got, want = Shared(func)(*args, guard=True), Program(func)(*args)
        for a, b in zip(got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,), strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("last", [False, True])
def test_one_choice_by_every_road(last: bool) -> None:
    """Op by op, compiled, compiled with what reads it: the same bits, in both layouts."""
    rng = np.random.default_rng(6)
    x, w = (ag.tensor(rng.standard_normal(s, dtype=np.float32)) for s in ((2, 32, 16, 16), (48, 32, 3, 3)))
    row = np.asarray(ag.conv2d(x, w, padding=1))
    if last:
        x = x.contiguous(memory_format=ag.channels_last)
    f = ag.compile(lambda x, w: ag.conv2d(x, w, padding=1))
    g = ag.compile(lambda x, w: (ag.conv2d(x, w, padding=1), ag.conv2d(x, w, padding=1).relu()))
    for found in (ag.conv2d(x, w, padding=1), f(x, w), g(x, w)[0]):
        assert np.asarray(found).tobytes() == row.tobytes()
    assert np.asarray(g(x, w)[1]).tobytes() == np.maximum(row, 0).tobytes()


def test_derivatives_to_second_order() -> None:
    """Reverse and forward mode, and reverse over both, against differences in float64."""
    rng = np.random.default_rng(5)
    x, w, dx, dw = (rng.standard_normal(s) for s in ((1, 24, 11, 12), (25, 24, 3, 3)) * 2)

    def loss(x: Any, w: Any) -> Any:
        return ag.sum(ag.tanh(ag.conv2d(x, w, padding=1) * 0.1) ** 2)

    def along(f: Any, h: float = 1e-5) -> Any:
        return (np.asarray(f(x + h * dx, w + h * dw)) - np.asarray(f(x - h * dx, w - h * dw))) / (2 * h)

    grad = ag.compile(ag.grad(loss, argnums=(0, 1)))
    gx, gw = (np.asarray(g) for g in grad(x, w))
    slope = np.vdot(gx, dx) + np.vdot(gw, dw)
    np.testing.assert_allclose(along(ag.compile(loss)), slope, rtol=1e-7)
    tangent = ag.compile(lambda x, w: ag.jvp(loss, (x, w), (dx, dw))[1])
    np.testing.assert_allclose(np.asarray(tangent(x, w)), slope, rtol=1e-10)
    hx, hw = (np.asarray(h) for h in ag.compile(ag.grad(lambda x, w: ag.jvp(loss, (x, w), (dx, dw))[1], argnums=(0, 1)))(x, w))
    np.testing.assert_allclose(hx, along(lambda x, w: grad(x, w)[0]), rtol=1e-5, atol=1e-6 * abs(hx).max())
    np.testing.assert_allclose(hw, along(lambda x, w: grad(x, w)[1]), rtol=1e-5, atol=1e-6 * abs(hw).max())


# ---- built ahead of time ------------------------------------------------------------------------------------------------------------

ON, OFF = True, False  # whether the form is chosen for the forward convolution
BUILT: list[tuple[bool, Any, Any, dict[str, Any]]] = [
    (ON, (2, 32, 16, 16), (48, 32, 3, 3), {"padding": 1}), (ON, (3, 24, 13, 15), (40, 24, 3, 3), {"padding": (1, 0)}),
    (ON, (1, 64, 9, 30), (70, 64, 3, 3), {"padding": 2}), (OFF, (2, 32, 16, 16), (48, 32, 3, 3), {"padding": 1, "stride": 2}),
    (OFF, (2, 32, 16, 15), (48, 32, 5, 5), {"padding": 2}), (OFF, (2, 32, 16, 16), (32, 16, 3, 3), {"padding": 1, "groups": 2}),
    (OFF, (1, 96, 7, 7), (64, 96, 3, 3), {"padding": 1}), (ON, (0, 32, 16, 16), (48, 32, 3, 3), {"padding": 1}),
]
OF_BUILT = [pytest.param(*b, last, n, id=f"{i}{'-channels_last' * last}-{n}", marks=[pytest.mark.thorough] * (i > 3 or i % 2 != last or i // 2 % 2 != j))
            for i, b in enumerate(BUILT) for last in (0, 1) for j, n in enumerate(("known", "open"))]


@pytest.mark.parametrize("form, x, w, kw, last, batch", OF_BUILT)
def test_a_library_gives_the_bits_of_a_compiled_function(form: bool, x: Any, w: Any, kw: dict[str, Any], last: int, batch: str, tmp_path: Path) -> None:
    """Value and both gradients in float32: built for this machine and for AVX2, against compiled and eager calls, and against the same programs compiled for AVX2."""
    def three(x: Any, w: Any, t: Any) -> Any:
        return ag.conv2d(x, w, **kw), *ag.grad(lambda x, w: ag.sum(ag.conv2d(x, w, **kw) * t), argnums=(0, 1))(x, w)

    attrs, layout = attrs_of(kw.get("stride", 1), kw["padding"], 1, kw.get("groups", 1)), LAST(4) if last else None
    n = dims.symbol("n") if batch == "open" else x[0]
    types = [TensorType((n, *x[1:]), as_dtype("float32"), layout), TensorType(w, as_dtype("float32"))]
    func = standard(vjp_func(build_ir("three", types, lambda b, x, w: b.conv(x, w, **attrs)), [True, True]))
    rng = np.random.default_rng(len(tmp_path.name))
    args = [rng.standard_normal(t.substitute({"n": x[0]}).shape, dtype=np.float32) for t in func.arg_types]
    declared = [f"{name}: f32[{', '.join(str(d) for d in t.shape)}]{' channels_last' * (t.layout is not None)}" for name, t in zip("xwt", func.arg_types)]
    for name in NAMES:
        assert (winograd.plan_tiles(tap_sums(spec(channels=x[1], filters=w[0], spatial=x[2:], kernel=w[2:], padding=attrs["padding"], stride=attrs["stride"],
                                                  groups=attrs["groups"]))[0], Target.named(name)) is not None) is form
        built = ag.load(aot.build(three, declared, out=tmp_path / name, name="three", target=name).library)
        found = {"jit": Program(func, Target.named(name))(*args)}
        if name == "native":
            given = [ag.tensor(a) for a in args]
            if last:
                given = [a if i == 1 else a.contiguous(memory_format=ag.channels_last) for i, a in enumerate(given)]
            found |= {"compiled": ag.compile(three)(*given), "eager": three(*given)}
        for how, results in found.items():
            for i, (got, want) in enumerate(zip(built.three(*args), results, strict=True)):
                assert got.tobytes() == np.ascontiguousarray(want).tobytes(), (name, how, i)


# ---- the choice -----------------------------------------------------------------------------------------------------------------------

def chosen(**more: Any) -> bool:
    s = spec(**{"channels": 64, "filters": 64, "spatial": (14, 14), "padding": ONE, **more})
    sums = tap_sums(s)
    return len(sums) == 1 and winograd.plan_tiles(sums[0], Target.named(NAMES[0])) is not None


def test_where_it_is_chosen() -> None:
    """By sizes alone: neither the batch nor a layout takes part, or the bits would turn on them."""
    assert chosen() and chosen(kind="input_grad") and chosen(dtype="f64") and chosen(batch=16) and chosen(layouts=(FIRST, LAST_, FIRST))
    assert not any(chosen(**more) for more in (
        {"channels": 8}, {"filters": 8}, {"channels": 16, "filters": 16}, {"spatial": (7, 7)}, {"channels": 512, "filters": 512}, {"stride": (2, 1)},
        {"dilation": (2, 2)}, {"kernel": (3, 1)}, {"groups": 2}, {"kernel": (5, 5)}))
    assert winograd._LEAST_WORK == images._HOT  # below it eager calls run on code for any size
    assert winograd.plan_tiles(tap_sums(spec(channels=64, filters=64, spatial=(14, 14)))[0], Target.named("x86-64")) is None
