"""The GEMM module: values against float64, memory bounds by guard pages, order of accumulation, epilogue coverage, every instruction set that runs here."""

from __future__ import annotations

import ctypes
import functools
import itertools

import numpy as np
import pytest
import sweep
from guarded import Guarded
from lowering_harness import Program

from aotgrad.codegen import elf, gemm, llvm
from aotgrad.codegen.lowering_dot import workspace_bound
from aotgrad.codegen.target import Target
from aotgrad.ir import Layout, TensorType, build, dims
from aotgrad_runtime.dtypes import as_dtype
from aotgrad_runtime.errors import AotgradTypeError
from aotgrad_runtime.loader import load_bytes

NP = {"f32": np.float32, "f64": np.float64}
LOWER = [n for n in ("x86-64", "x86-64-v3") if Target.native().arch == "x86_64" and Target.named(n).vector_bits < Target.native().vector_bits]
NAMES = ["native", *LOWER]
CASES = [(name, dtype) for name in NAMES for dtype in NP]
cases = pytest.mark.parametrize(("name", "dtype"), CASES)
Epilogue = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int64] * 4)
Poll = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)


class Gemm:
    """The module for one target, linked, loaded and callable on NumPy arrays."""

    def __init__(self, name: str, dtype: str) -> None:
        target = Target.named(name)
        made = gemm.module(dtype, target)
        symbols = [*made.symbols, *(f"ag_gemm_{dtype}_{s}" for s in ("pack", "kept"))]
        so = elf.link_shared([llvm.compile_object(made.text, target, passes="none")], symbols, "libgemm.so")
        self.library = load_bytes(so)
        i, p = ctypes.c_int64, ctypes.c_void_p
        run, size, pack, kept = (self.library.address(s) for s in symbols)
        self.kept = ctypes.CFUNCTYPE(ctypes.c_int32, i, i, i, p, i, i, p, i, i, p, i, i, p, p, p, p, p, p)(kept)
        self.run = ctypes.CFUNCTYPE(ctypes.c_int32, i, i, i, p, i, i, p, i, i, p, i, i, p, p, p, p, p)(run)
        self.workspace = ctypes.CFUNCTYPE(i, *[i] * 7)(size)
        self.pack = ctypes.CFUNCTYPE(None, i, i, p, i, i, p, i, i)(pack)
        self.config = gemm.config(dtype, target)

    def with_packed(self, a, b, c, accumulate, order):
        """The product with B packed before, its strips in ``order``; no byte outside of what a packed B takes is touched."""
        (m, k), n, size, cfg = a.shape, b.shape[1], a.itemsize, self.config
        sa, sb = ([s // size for s in x.strides] for x in (a, b))
        room = Guarded(int(gemm.packed_bytes(cfg, n, k)))
        room.fill_nan()
        packed = room.end - room.size
        for i in order(-(-n // cfg.strip)):
            self.pack(n, k, b.ctypes.data, *sb, packed, i, i + 1)
        scratch = Guarded(self.workspace(m, n, k, *sa, *sb) + 64)
        start = scratch.end - scratch.size
        status = self.kept(m, n, k, a.ctypes.data, *sa, b.ctypes.data, *sb, c.ctypes.data, c.strides[0] // size, accumulate, start + -start % 64, *[None] * 4, packed)
        scratch.close()
        room.close()
        return status

    def __call__(self, a, b, c, accumulate=0, epilogue=None, poll=None):
        (m, k), n, size = a.shape, b.shape[1], a.itemsize
        sa, sb = [s // size for s in a.strides], [s // size for s in b.strides]
        need = self.workspace(m, n, k, *sa, *sb)
        assert need >= 0
        scratch = Guarded(need + 64)
        scratch.fill_nan()
        start = scratch.end - need
        start -= start % 64  # the slack below one cache line is checked by the canary of fill_nan's neighbours only
        status = self.run(m, n, k, a.ctypes.data, *sa, b.ctypes.data, *sb, c.ctypes.data, c.strides[0] // size, accumulate, start, epilogue, None, poll, None)
        scratch.close()
        return status


@functools.cache
def get(name: str, dtype: str) -> Gemm:
    return Gemm(name, dtype)


def matrix(rng, rows, cols, kind, dtype):
    if kind == "rows":
        return rng.standard_normal((rows, cols)).astype(dtype)
    if kind == "cols":
        return rng.standard_normal((cols, rows)).astype(dtype).T
    if kind == "back":
        return rng.standard_normal((rows, cols)).astype(dtype)[::-1, ::-1]
    return rng.standard_normal((2 * rows + 1, 3 * cols + 1)).astype(dtype)[1::2, 1::3][:rows, :cols]


def check(g, a, b, c, accumulate):
    """Every element within the bound of a chain of K + 1 roundings; every element passed to the epilogue once, when final."""
    m, n, k = a.shape[0], b.shape[1], a.shape[1]
    wide = [x.astype(np.float64) for x in (a, b)]
    want, scale = wide[0] @ wide[1], abs(wide[0]) @ abs(wide[1])
    if accumulate:
        want, scale = want + c, scale + abs(c)
    else:
        c[:] = np.nan
    seen, final = np.zeros((m, n), int), np.full((m, n), np.nan)

    def epilogue(_closure, m0, m1, n0, n1):
        seen[m0:m1, n0:n1] += 1
        final[m0:m1, n0:n1] = c[m0:m1, n0:n1]

    g(a, b, c, accumulate, Epilogue(epilogue))
    bound = (k + 1) * np.finfo(a.dtype).eps / 2 * scale
    assert (abs(c - want) <= bound).all(), (a.shape, b.shape, a.strides, b.strides, accumulate)
    assert (seen == 1).all() and np.array_equal(final, c)


@cases
def test_shapes_and_strides(name, dtype):
    rng, g = np.random.default_rng(0), get(name, dtype)
    sizes = [1, 2, 3, 5, 8, 10, 16, 17, 33, 64, 70]
    grid = list(itertools.product(sizes, repeat=3))
    for i in rng.permutation(len(grid))[:120]:
        m, n, k = grid[i]
        for kinds in itertools.product(("rows", "cols", "steps", "back"), repeat=2):
            a, b = matrix(rng, m, k, kinds[0], NP[dtype]), matrix(rng, k, n, kinds[1], NP[dtype])
            room = rng.standard_normal((m, n + 3)).astype(NP[dtype])
            margin = room[:, n:].copy()
            check(g, a, b, room[:, :n], int(rng.integers(2)))
            assert np.array_equal(room[:, n:], margin)


@pytest.mark.parametrize(("name", "dtype", "shape"), sweep.part(NAMES, NP, [
    (9, 9, 1), (9, 33, 17), (3, 40, 20), (40, 3, 20), (1, 9, 9), (16, 130, 70), (70, 64, 129), (130, 515, 1100), (150, 187, 260), (16, 1030, 3)]))
def test_a_packed_operand_changes_no_bit(name, dtype, shape):
    """Strips are packed in any order, each once or twice, from any strides."""
    rng, g = np.random.default_rng(5), get(name, dtype)
    m, n, k = shape
    for kind_a, kind_b, accumulate in itertools.product(("rows", "cols"), ("rows", "cols", "steps", "back"), (0, 1)):
        a, b = matrix(rng, m, k, kind_a, NP[dtype]), matrix(rng, k, n, kind_b, NP[dtype])
        start = rng.standard_normal((m, n)).astype(NP[dtype])
        want, got = start.copy(), start.copy()
        assert g(a, b, want, accumulate) == 0
        assert g.with_packed(a, b, got, accumulate, lambda count: [*reversed(range(count)), 0]) == 0
        assert np.array_equal(want, got), (kind_a, kind_b, accumulate)


@pytest.mark.parametrize(("name", "dtype", "shape"), sweep.part(NAMES, NP, [
    (130, 515, 300), (300, 600, 520), (260, 40, 1100), (150, 187, 260), (40, 1030, 270), (3, 300, 700), (1, 700, 300), (700, 1, 300)], of=3))
def test_several_cache_blocks(name, dtype, shape):
    rng, g = np.random.default_rng(1), get(name, dtype)
    m, n, k = shape
    for kinds in (("rows", "rows"), ("cols", "rows"), ("rows", "cols"), ("steps", "steps")):
        a, b = matrix(rng, m, k, kinds[0], NP[dtype]), matrix(rng, k, n, kinds[1], NP[dtype])
        check(g, a, b, rng.standard_normal((m, n)).astype(NP[dtype]), 1)
        check(g, a, b, np.empty((m, n), NP[dtype]), 0)


@cases
def test_small_products_need_no_workspace(name, dtype):
    g, item = get(name, dtype), np.dtype(NP[dtype]).itemsize
    much, rows = g.config.often_b
    grid = [(m, n, k) for m in (1, 4, 16, 128) for n in (1, 10, 64, 128) for k in (1, 10, 64, 128) if n > 1 or k > 0]
    assert all((g.workspace(m, n, k, k, 1, n, 1) == 0) == (m < rows or n * k * item <= much) for m, n, k in grid)
    size = g.workspace
    assert size(128, 32, 128, 1, 128, 32, 1) == 0 and size(8, 64, 128, 128, 1, 1, 128) == 0  # A transposed; few rows with B transposed
    assert size(1, 1, 1 << 40, 1, 1, 1, 1) == 0 and size(0, 9, 9, 9, 1, 9, 1) == size(9, 0, 9, 9, 1, 0, 1) == size(9, 9, 0, 0, 1, 9, 1) == 0


SIZES = (1, 3, 8, 9, 17, 33, 65, 257, 513, 2049, 100_000)


@cases
def test_kernels_have_the_workspace_that_a_product_asks_for(name, dtype):
    """In every order of the operands, known or not."""
    size, target, scalar = get(name, dtype).workspace, Target.named(name), as_dtype(NP[dtype])
    open_dims = {x: dims.symbol(x) for x in ("m", "n", "k", "u", "v", "w")}
    bounds = {}
    for a, b in itertools.product("rc", repeat=2):
        of_a, of_b = (("k", 1) if a == "r" else (1, "m")), (("n", 1) if b == "r" else (1, "k"))
        bounds[a, b] = workspace_bound(scalar, target, tuple(map(dims.symbol, "mnk")), [tuple(open_dims.get(x, x) for x in pair) for pair in (of_a, of_b)])
    whichever = workspace_bound(scalar, target, tuple(map(dims.symbol, "mnk")), [(dims.symbol("u"), dims.symbol("v")), (dims.symbol("w"), dims.symbol("x"))])
    for m, n, k in itertools.product(SIZES, SIZES, SIZES):
        env = {"m": m, "n": n, "k": k}
        most = dims.substitute(whichever, {**env, "u": 7, "v": 7, "w": 7, "x": 7})
        for (a, b), bound in bounds.items():
            need = size(m, n, k, *((k, 1) if a == "r" else (1, m)), *((n, 1) if b == "r" else (1, k)))
            assert need <= dims.substitute(bound, env) <= 200_000 + 2 * max(need, (m + n) * k * scalar.itemsize), (env, a, b, need)
            assert need <= most, (env, a, b, need)


@pytest.mark.parametrize("dtype", list(NP))
def test_large_products_stay_in_their_workspace(dtype):
    """As the compiler calls it, between guard pages, of either order of the operands in memory."""
    rng, scalar = np.random.default_rng(3), as_dtype(NP[dtype])
    orders = list(itertools.product((None, Layout((1, 0))), repeat=2))
    types = [TensorType(tuple(map(dims.symbol, names)), scalar, order) for pair in orders for names, order in zip(("mk", "kn"), pair)]
    products = Program(build("dots", types, lambda b, *xs: [b.dot(x, y) for x, y in zip(xs[::2], xs[1::2])]))
    for m, n, k in ((1030, 1100, 520), (1030, 520, 1100), (8, 20, 20_000), (30, 4, 20_000)):
        x, y = rng.standard_normal((m, k)).astype(NP[dtype]), rng.standard_normal((k, n)).astype(NP[dtype])
        some = slice(m % 7, None, 1 + m // 20)
        wide = [v.astype(np.float64) for v in (x[some], y)]
        bound = (k + 1) * np.finfo(x.dtype).eps / 2 * (abs(wide[0]) @ abs(wide[1]))
        for order, got in zip(orders, products(*(x, y) * 4, guard=True), strict=True):
            assert (abs(got[some] - wide[0] @ wide[1]) <= bound).all(), (m, n, k, order)


@cases
def test_empty_dimensions(name, dtype):
    g, t = get(name, dtype), NP[dtype]
    calls = []
    epilogue = Epilogue(lambda _c, *block: calls.append(block))
    for m, n in ((0, 5), (5, 0), (0, 0)):
        g(np.empty((m, 3), t), np.empty((3, n), t), np.empty((m, n), t), 0, epilogue)
    assert calls == []
    c = np.full((3, 21), np.nan, t)
    g(np.empty((3, 0), t), np.empty((0, 21), t), c, 0, epilogue)
    assert (c == 0).all() and calls == [(0, 3, 0, 21)]
    c[:] = 5
    g(np.empty((3, 0), t), np.empty((0, 21), t), c, 1, epilogue)
    assert (c == 5).all() and len(calls) == 2


@cases
@pytest.mark.parametrize("at_end", [True, False])
def test_touches_nothing_outside(name, dtype, at_end):
    rng, g, t = np.random.default_rng(2), get(name, dtype), NP[dtype]
    for m, n, k in [(1, 1, 1), (1, 13, 7), (13, 1, 7), (2, 3, 5), (7, 10, 10), (5, 33, 19), (9, 65, 3), (17, 49, 31), (130, 70, 270), (1, 9, 300), (9, 1, 300)]:
        for ta, tb in itertools.product((False, True), repeat=2):
            memory = [Guarded(r * c * np.dtype(t).itemsize) for r, c in ((m, k), (k, n), (m, n))]
            a = memory[0].array((k, m) if ta else (m, k), t, at_end)
            b = memory[1].array((n, k) if tb else (k, n), t, at_end)
            c = memory[2].array((m, n), t, at_end)
            a[:], b[:] = rng.standard_normal(a.shape), rng.standard_normal(b.shape)
            check(g, a.T if ta else a, b.T if tb else b, c, 0)
            check(g, a.T if ta else a, b.T if tb else b, c, 1)
            for block in memory:
                block.close()


@cases
def test_order_is_one_chain(name, dtype):
    """Row i of a product is bit-identical in any other product with that row, more columns, or packed blocks: one chain of roundings in the order of k."""
    rng, g, t = np.random.default_rng(3), get(name, dtype), NP[dtype]
    a, b = rng.standard_normal((140, 600)).astype(t), rng.standard_normal((600, 530)).astype(t)
    whole = np.empty((140, 530), t)
    g(a, b, whole)
    for rows, cols in ((slice(7, 12), slice(0, 530)), (slice(0, 140), slice(31, 47)), (slice(3, 5), slice(100, 229)), (slice(20, 33), slice(0, 40))):
        part = np.empty((rows.stop - rows.start, cols.stop - cols.start), t)
        g(a[rows], b[:, cols], part)
        assert np.array_equal(part, whole[rows, cols])
        if part.shape[0] > 8:  # up to 8 rows, a transposed B is read in place, in several chains
            g(np.asfortranarray(a[rows]), np.asfortranarray(b[:, cols]), part)
            assert np.array_equal(part, whole[rows, cols])
    one = np.empty((1, 530), t)
    g(a[9:10], b, one)
    assert np.array_equal(one[0], whole[9])
    split = np.empty((140, 530), t)
    g(a[:, :311], b[:311], split)
    g(a[:, 311:], b[311:], split, 1)
    assert np.array_equal(split, whole)


@cases
def test_row_dots_do_not_depend_on_their_neighbours(name, dtype):
    rng, g, t = np.random.default_rng(4), get(name, dtype), NP[dtype]
    a, x = rng.standard_normal((11, 333)).astype(t), rng.standard_normal((333, 1)).astype(t)
    whole = np.empty((11, 1), t)
    g(a, x, whole)
    for i in range(11):
        one = np.empty((1, 1), t)
        g(a[i:i + 1], x, one)
        assert one[0, 0] == whole[i, 0]


@cases
def test_few_rows_or_columns_do_not_depend_on_their_neighbours(name, dtype):
    rng, g, t = np.random.default_rng(5), get(name, dtype), NP[dtype]
    a, b = rng.standard_normal((4, 333)).astype(t), rng.standard_normal((29, 333)).astype(t)
    wide, tall = np.empty((4, 29), t), np.empty((29, 4), t)
    g(a, b.T, wide)
    g(b, a.T, tall)
    assert np.array_equal(wide, tall.T)
    part = np.empty((3, 7), t)
    g(a[1:], b[5:12].T, part)
    assert np.array_equal(part, wide[1:, 5:12])


@cases
def test_nan_and_infinity_stay_in_their_row_and_column(name, dtype):
    g, t = get(name, dtype), NP[dtype]
    for m, n, k in ((1, 37, 9), (37, 1, 9), (9, 37, 11), (6, 10, 70)):
        for order in "CF":
            a, b = np.ones((m, k), t, order), np.ones((k, n), t, order)
            a[m - 1, k - 1], b[0, n - 1] = np.nan, np.inf
            c = np.empty((m, n), t)
            g(a, b, c)
            want = np.full((m, n), k, t)
            want[:, n - 1], want[m - 1] = np.inf, np.nan
            np.testing.assert_array_equal(c, want)


@pytest.mark.parametrize("dtype", NP)
def test_module_is_complete_and_bounded(dtype):
    for name in ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64-linux-gnu"):
        target = Target.named(name)
        made = gemm.module(dtype, target)
        assert made == gemm.module(dtype, target)  # the text is a function of its arguments: it is part of cache keys
        elf.link_shared([llvm.compile_object(made.text, target, passes="none")], list(made.symbols), "libgemm.so")  # raises on anything undefined (memset, fma, ...)
        assert len(made.text) < 270_000


def test_other_dtype_is_refused():
    with pytest.raises(AotgradTypeError, match="f16"):
        gemm.module("f16", Target.native())


def repeated(rows: int, cols: int, dtype: type) -> np.ndarray:
    """A matrix of one row, rows times, in the memory of one."""
    return np.broadcast_to(np.ones(cols, dtype), (rows, cols))


@cases
def test_large_products_ask_whether_to_stop_and_small_ones_do_not(name: str, dtype: str) -> None:
    g, kind, asked = get(name, dtype), NP[dtype], [0, 1 << 60]

    @Poll
    def poll(_: int) -> int:
        asked[0] += 1
        return int(asked[0] > asked[1])

    def run(m: int, k: int, n: int, most: int = 1 << 60) -> tuple[int, int]:
        asked[:] = [0, most]
        c = np.full((m, n), 7, kind)
        status = g(repeated(m, k, kind), repeated(k, n, kind), c, poll=poll)
        assert np.all(c == k) == (status == 0)
        return status, asked[0]

    assert run(96, 512, 256) == (0, 0) and run(1, 1000, 1000) == (0, 0)
    status, times = run(300, 1500, 600)
    assert status == 0 and 5 <= times <= 200
    assert run(300, 1500, 600, 0) == (5, 1) and run(300, 1500, 600, times - 1) == (5, times)
    for m, k, n in ((20_000, 2048, 1), (1, 600, 100_000), (3000, 9000, 2)):
        assert run(m, k, n)[0] == 0
        assert 1 <= asked[0] <= 100, (m, k, n)
        assert run(m, k, n, 0) == (5, 1)
