"""The convolution kernels: values against float64 between guard pages, every instruction set that runs here."""

from __future__ import annotations

import ctypes
import itertools
import math
import re

import numpy as np
import pytest
import sweep
from guarded import Guarded

from aotgrad.codegen import elf, llvm
from aotgrad.codegen.conv.emit import emit, supported
from aotgrad.codegen.conv.spec import ConvSpec
from aotgrad.codegen.target import Target
from aotgrad_runtime.loader import load_bytes

NP = {"f32": np.float32, "f64": np.float64}
LOWER = [n for n in ("x86-64", "x86-64-v3") if Target.native().arch == "x86_64" and Target.named(n).vector_bits < Target.native().vector_bits]
NAMES = ["native", *LOWER]
KINDS = ["forward", "input_grad", "weight_grad"]
wide = pytest.mark.parametrize("name", NAMES)


def build(specs, name):
    """Kernels of all ``specs`` in one library: (run, pack, kernel) for each."""
    target = Target.named(name)
    kernels = [emit(s, target, f"k{i}") for i, s in enumerate(specs)]
    text = "\n".join([*dict.fromkeys(d for k in kernels for d in k.declares), *(k.text for k in kernels)])
    symbols = [s for k in kernels for s in (k.run, k.pack) if s]
    library = load_bytes(elf.link_shared([llvm.compile_object(text, target, passes="none")], symbols, "libconv.so"))
    p, i = ctypes.c_void_p, ctypes.c_int64
    pack = ctypes.CFUNCTYPE(None, p, p)
    run = ctypes.CFUNCTYPE(None, *[p] * 4, i, i, i)
    return [(run(library.address(k.run)), pack(library.address(k.pack)) if k.pack else None, k, library) for k in kernels]


def spec(kind="forward", dtype="f32", batch=2, channels=3, filters=4, spatial=(5, 6), kernel=(3, 3), stride=None, padding=None, dilation=None, groups=1,
         layouts=("channels_last", "contiguous", "channels_last"), **more):
    rank = len(spatial)
    stride, dilation = stride or (1,) * rank, dilation or (1,) * rank
    padding = padding or ((0, 0),) * rank
    positions = tuple(max(0, (n + low + high - (k - 1) * d - 1) // s + 1) for n, (low, high), k, d, s in zip(spatial, padding, kernel, dilation, stride))
    return ConvSpec(kind, dtype, groups, tuple(stride), tuple(padding), tuple(dilation), batch, channels, filters, tuple(spatial), tuple(kernel), positions, layouts,
                    **more)


def reference(s, x, w, y):
    """(y, x's or w's gradient, the sum of magnitudes) in float64, by slices of a padded x, one tap at a time. The one of x, w, y to compute is None."""
    pads = [(max(0, low), n * st + k * d + max(0, -low)) for (low, _), n, st, k, d in zip(s.padding, s.positions, s.stride, s.kernel, s.dilation)]
    padded = np.pad(np.zeros((s.batch, s.channels, *s.spatial)) if x is None else x.astype(np.float64), [(0, 0), (0, 0), *pads])
    points = math.prod(s.positions)
    og, cg = s.filters // s.groups, s.channels // s.groups
    y64 = np.zeros((s.batch, s.filters, *s.positions)) if y is None else y.astype(np.float64)
    w64 = np.zeros((s.filters, cg, *s.kernel)) if w is None else w.astype(np.float64)
    for taps in itertools.product(*(range(k) for k in s.kernel)):
        at = []
        for t, d, st, n, (low, _), (before, _) in zip(taps, s.dilation, s.stride, s.positions, s.padding, pads):
            first = t * d - low + before
            at.append(slice(first, first + (n - 1) * st + 1, st) if n else slice(0, 0))
        for g in range(s.groups):
            cs, os = slice(g * cg, (g + 1) * cg), slice(g * og, (g + 1) * og)
            part, wt = padded[(slice(None), cs, *at)], w64[(os, slice(None), *taps)]
            if y is None:
                y64[:, os] += np.einsum("nc...,oc->no...", part, wt)
            elif x is None:
                padded[(slice(None), cs, *at)] += np.einsum("no...,oc->nc...", y64[:, os], wt)
            else:
                w64[(os, slice(None), *taps)] += np.einsum("nop,ncp->oc", y64[:, os].reshape(s.batch, og, points), part.reshape(s.batch, cg, points))
    if y is None:
        return y64
    inner = tuple(slice(b, b + n) for (b, _), n in zip(pads, s.spatial))
    return padded[(slice(None), slice(None), *inner)] if x is None else w64


def laid(rng, shape, layout, dtype, at_end, memory):
    """Random values of ``shape`` between guard pages, in memory as ``layout`` says; the logical view."""
    order = [0, *range(2, len(shape)), 1] if layout == "channels_last" else list(range(len(shape)))
    block = Guarded(math.prod(shape) * np.dtype(dtype).itemsize)
    memory.append(block)
    raw = block.array([shape[i] for i in order], dtype, at_end)
    raw[...] = rng.standard_normal(raw.shape)
    return raw.transpose(np.argsort(order))


def check(made, s, seed, at_end=True, ranges=None, bound=None):
    run, pack, kernel, _ = made
    rng, dtype, memory = np.random.default_rng(seed), NP[s.dtype], []
    shapes = ((s.batch, s.channels, *s.spatial), (s.filters, s.channels // s.groups, *s.kernel), (s.batch, s.filters, *s.positions))
    x, w, y = (laid(rng, shape, layout, dtype, at_end, memory) for shape, layout in zip(shapes, s.layouts))
    result = {"forward": y, "input_grad": x, "weight_grad": w}[s.kind]
    result[...] = np.nan
    packed = Guarded(kernel.packed_bytes)
    packed.fill_nan()
    memory.append(packed)
    if pack:
        pack(w.ctypes.data, packed.start if not at_end else packed.end - kernel.packed_bytes)
    at = packed.start if not at_end else packed.end - kernel.packed_bytes
    operands = {"forward": (x.ctypes.data, at, y.ctypes.data), "input_grad": (y.ctypes.data, at, x.ctypes.data),
                "weight_grad": (x.ctypes.data, y.ctypes.data, at)}[s.kind]
    total = kernel.units * (1 if s.kind == "weight_grad" else s.batch)
    fourth = w.ctypes.data if kernel.staged else None
    if kernel.work_bytes:
        work = Guarded(kernel.work_bytes)
        work.fill_nan()
        memory.append(work)
        fourth = work.start if not at_end else work.end - kernel.work_bytes
    for low, high in ranges(total) if ranges else [(0, total)]:
        run(*operands, fourth, s.batch, low, high)
    given = [None if a is result else a for a in (x, w, y)]
    want = reference(s, *given)
    scale = reference(s, *(None if a is None else abs(a) for a in given))
    terms = {"forward": math.prod(s.kernel) * s.channels, "input_grad": math.prod(s.kernel) * s.filters, "weight_grad": s.batch * math.prod(s.positions)}[s.kind]
    limit = (terms + 3) * np.finfo(dtype).eps / 2 * scale if bound is None else bound(s, given)
    assert (abs(result - want) <= limit).all(), s
    copy = result.copy()
    for block in memory:
        block.close()
    return copy


def check_all(specs, name):
    for i, (s, made) in enumerate(zip(specs, build(specs, name))):
        check(made, s, i, at_end=bool(i % 2))


LAST, FIRST = "channels_last", "contiguous"
STRIDES, PADDINGS, DILATIONS, KERNELS, GROUPS = (1, 2, 3), (0, 1, 2), (1, 2), (1, 2, 3, 4), (1, 2, "depthwise")


def grid(kind, dtype):
    """Every combination of stride, padding, dilation, kernel and groups; the sizes, layouts, asymmetry and rank go round with it."""
    rng = np.random.default_rng(5)
    for stride, padding, dilation, kernel, groups in itertools.product(STRIDES, PADDINGS, DILATIONS, KERNELS, GROUPS):
        least = max(1, (kernel - 1) * dilation + 1 - padding)
        rank = int(rng.choice([1, 2, 2, 2, 3]))
        spatial = [least + int(rng.integers(0, 9 if rank < 3 else 4)) for _ in range(rank)]
        c, o = (int(rng.choice([2, 4, 6, 18, 34])) for _ in range(2))
        c, o = (c, c) if groups == "depthwise" else (c + (groups == 1), o + (groups == 1))
        layouts = [str(rng.choice([LAST, FIRST])) for _ in range(3)]
        if kind == "weight_grad":
            layouts[2] = LAST
        elif kind == "input_grad" and stride > 1:
            layouts[0] = LAST
        yield spec(kind, dtype, int(rng.integers(1, 4)), c, o, spatial, (kernel,) * rank, (stride,) * rank, ((padding, int(rng.integers(0, 3))),) * rank,
                   (dilation,) * rank, c if groups == "depthwise" else groups, tuple(layouts))


def sample(kind, dtype, part, parts):
    """One of ``parts`` interleaved parts of the grid."""
    return list(grid(kind, dtype))[part % parts::parts]


@pytest.mark.parametrize("part", [0, *(pytest.param(i, marks=pytest.mark.thorough) for i in range(1, 18))])
@pytest.mark.parametrize("name, dtype, kind", sweep.part(NAMES, NP, KINDS))
def test_grid(name, dtype, kind, part):
    specs = sample(kind, dtype, part + NAMES.index(name) + 3 * (dtype == "f64"), 18)
    assert all(supported(s, Target.named(name)) for s in specs)
    check_all(specs, name)


@wide
@pytest.mark.parametrize("dtype", list(NP))
def test_forward_same_3x3(name, dtype):
    check_all([spec(dtype=dtype, channels=c, filters=o, spatial=(h, v), padding=((1, 1), (1, 1)))
               for c, o, h, v in ((3, 64, 5, 30), (16, 70, 7, 7), (5, 33, 1, 1), (4, 16, 3, 56), (1, 1, 2, 3))], name)


@wide
@pytest.mark.parametrize("kind", ["forward", "input_grad", "weight_grad"])
def test_units_may_be_split_anywhere(name, kind):
    """Any partition of the units gives the same bits: work may be shared out."""
    s = spec(kind, batch=3, channels=70, filters=130, spatial=(9, 7), stride=(2, 1), padding=((1, 1), (1, 1)), layouts=(LAST, LAST, LAST))
    made, = build([s], name)
    assert (made[2].units if kind == "weight_grad" else 3 * made[2].units) > 1

    def ranges(total):
        cuts = [0, *sorted(int(c) for c in np.random.default_rng(0).integers(0, total, 4)), total]
        return list(itertools.pairwise(cuts))[::-1]

    check(made, s, 1, ranges=ranges)
    assert np.array_equal(check(made, s, 1), check(made, s, 1, ranges=ranges))


@pytest.mark.parametrize("name, kind", sweep.part(NAMES, KINDS))
def test_sizes_of_caches(name, kind):
    """Shapes that take several blocks of rows, of channels and of images, and weights larger than the second cache."""
    layouts = (LAST, LAST, LAST)
    check_all([
        spec(kind, batch=2, channels=64, filters=72, spatial=(40, 28), padding=((1, 1), (1, 1)), layouts=layouts),
        spec(kind, batch=3, channels=200, filters=160, spatial=(5, 4), padding=((1, 1), (1, 1)), layouts=layouts),
        spec(kind, batch=2, channels=3, filters=40, spatial=(37, 61), kernel=(7, 7), stride=(2, 2), padding=((3, 3), (3, 3)),
             layouts=(FIRST if kind != "input_grad" else LAST, FIRST, LAST)),
        spec(kind, batch=5, channels=70, filters=40, spatial=(300,), kernel=(5,), padding=((2, 2),), layouts=layouts),
        spec(kind, batch=1, channels=100, filters=150, spatial=(6, 6), kernel=(1, 1), layouts=layouts),
        spec(kind, batch=2, channels=16, filters=16, spatial=(9, 130), padding=((1, 1), (1, 1)), layouts=(LAST, FIRST, LAST)),  # tiles of many rows of one vector
        spec(kind, batch=1, channels=23, filters=9, spatial=(70, 21), padding=((0, 1), (2, 0)), layouts=(LAST, FIRST, LAST)),
        spec(kind, batch=2, channels=80, filters=80, groups=80, spatial=(30, 33), padding=((1, 1), (1, 1)), layouts=layouts),
    ], name)


EMPTY = [
    {"batch": 0}, {"channels": 0}, {"filters": 0}, {"spatial": (0, 5), "padding": ((2, 2), (1, 1))}, {"spatial": (1, 1), "padding": ((0, 0), (0, 0))},
    {"kernel": (1, 1), "padding": ((3, 3), (3, 3)), "spatial": (1, 2)}, {"kernel": (1, 1), "padding": ((-1, -1), (-2, 1)), "spatial": (5, 6)},
    {"kernel": (2, 2), "spatial": (2, 2)}, {"spatial": (7,), "kernel": (3,), "padding": ((9, 0),), "stride": (3,)},
]


@wide
@pytest.mark.parametrize("kind", ["forward", "input_grad", "weight_grad"])
def test_sizes_of_nothing(name, kind):
    check_all([spec(kind, **{"padding": ((1, 1),) * len(more.get("spatial", (5, 6))), **more}) for more in EMPTY], name)


def test_equal_functions_are_written_once():
    halved = spec("input_grad", channels=64, filters=128, spatial=(56, 56), stride=(2, 2), padding=((1, 1), (1, 1)), layouts=(LAST, FIRST, LAST))
    text = emit(halved, Target.native(), "twice").text
    functions = re.findall(r"^define internal (.*?@)([\w.]+)(\(.*?^})", text, re.MULTILINE | re.DOTALL)
    assert len({(head, rest) for head, _, rest in functions}) == len(functions) > 4
    called = set(re.findall(r"call void (@twice\w+)", text))
    assert called <= {f"@{name}" for _, name, _ in functions}
