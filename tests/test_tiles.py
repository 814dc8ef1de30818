"""Square tiles turned in registers: transposes and changes of layout, of every size around those of vectors and strips, fused with what surrounds them."""

from __future__ import annotations

import itertools
from typing import Any

import elsewhere
import numpy as np
import pytest
import sweep
from guarded import Guarded
from lowering_harness import Program

import aotgrad as ag
from aotgrad.codegen import tiles
from aotgrad.codegen.loops import NestEmitter
from aotgrad.codegen.tiles import transpose
from aotgrad.ir import Layout, interp, tensor_type
from aotgrad.ir.builder import Builder
from aotgrad.ir.core import Block, Func
from aotgrad.ir.transforms.cleanup import standard


class Lists:
    """A kernel builder whose vectors are lists."""

    def shuffle(self, a: list[Any], b: list[Any], lanes: list[int]) -> list[Any]:
        both = a + b
        return [both[i] for i in lanes]


@pytest.mark.parametrize("n", (1, 2, 4, 8, 16))
@pytest.mark.parametrize("part", (2, 4))
def test_shuffles_transpose(n: int, part: int) -> None:
    rows: Any = [[(r, c) for c in range(n)] for r in range(n)]
    kb: Any = Lists()
    assert transpose(kb, rows, part) == [[(r, c) for r in range(n)] for c in range(n)]


def numbers(shape: tuple[int, ...], dtype: Any) -> Any:
    return np.random.default_rng(sum(shape)).integers(-1000, 1000, shape).astype(dtype)


@pytest.mark.parametrize("dtype", (np.float32, np.float64, np.int32, np.int16, np.float16, np.int8, bool), ids=lambda d: np.dtype(d).name)
def test_transposes_of_any_size(dtype: Any) -> None:
    f = ag.compile(lambda x: ag.permute(x, (1, 0)).contiguous())
    for m in (0, 1, 2, 7, 8, 15, 16, 17, 33, 64, 65, 130):
        for n in (0, 1, 3, 4, 15, 16, 17, 31, 64, 100, 129, 256, 300):
            x = numbers((m, n), dtype)
            np.testing.assert_array_equal(f(x), x.T, err_msg=f"{m} x {n}")


@pytest.mark.parametrize("shape, order", sweep.part(((2, 3, 5, 5), (1, 17, 9, 7), (3, 64, 7, 7), (2, 3, 16, 18), (1, 1, 4, 4), (2, 16, 1, 40)),
                                                    ((0, 2, 3, 1), (0, 3, 1, 2), (3, 2, 1, 0), (1, 0, 3, 2))), ids=str)
def test_layouts_with_something_fused(shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    x = numbers(shape, np.float32)
    y = numbers(tuple(shape[d] for d in order), np.float32)
    f = ag.compile(lambda x, y: (ag.permute(x, order) * y + ag.permute(x * x, order), ag.permute(x, order).contiguous()))
    turned = x.transpose(order)
    one, two = f(x, y)
    np.testing.assert_array_equal(one, turned * y + turned * turned)
    np.testing.assert_array_equal(two, turned)


def test_what_varies_along_one_dim_alone() -> None:
    x, row, column = numbers((37, 70), np.float64), numbers((37,), np.float64), numbers((70, 1), np.float64)
    f = ag.compile(lambda x, r, c: ag.permute(x, (1, 0)) * r + c)
    np.testing.assert_array_equal(f(x, row, column), x.T * row + column)


def test_dtypes_of_two_sizes() -> None:
    x, y = numbers((40, 23), np.float32), numbers((40, 23), np.float64)
    f = ag.compile(lambda x, y: ag.permute(x, (1, 0)) + ag.permute(y, (1, 0)))
    np.testing.assert_array_equal(f(x, y), x.T + y.T)


def test_threads_give_the_same() -> None:
    x = numbers((700, 900), np.float32)
    np.testing.assert_array_equal(ag.compile(lambda x: ag.permute(x, (1, 0)).contiguous(), threads=2)(x), x.T)


def test_a_few_elements_side_by_side() -> None:
    """Channels of three and kernels of nine: dense rows are loaded whole and sorted."""
    F = ag.nn.functional
    rng = np.random.default_rng(0)
    for c in (2, 3, 5, 9, 15):
        for n in (1, 4, 16, 17, 37, 64):
            x, w = rng.standard_normal((2, c, n, 1), dtype=np.float32), np.zeros((1, c, 1, 1), np.float32)
            last = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
            f = ag.compile(lambda x, y, w: (x + y, y * 2 + x, F.conv2d(x, w)))  # a convolution, so that sizes are known
            for one, two in ((x, last), (last, x)):
                a, b, _ = f(one, two, w)
                np.testing.assert_array_equal(a, x + x, err_msg=f"{c} {n}")
                np.testing.assert_array_equal(b, x * 2 + x, err_msg=f"{c} {n}")


def guarded(x: Any, at_end: bool, memory: list[Any]) -> Any:
    """The values between pages that nothing may touch."""
    memory.append(Guarded(x.nbytes))
    out = memory[-1].array(list(x.shape), x.dtype, at_end)
    out[...] = x
    return out


@pytest.mark.parametrize("order", ((0, 2, 3, 1), (0, 3, 1, 2)), ids=str)
@pytest.mark.parametrize("dtype", (np.float32, np.float64, np.int16, np.uint8), ids=lambda d: np.dtype(d).name)
def test_channels_of_open_number(order: tuple[int, ...], dtype: Any) -> None:
    """A few elements side by side have code of their own, rows of whole tiles are written as one run from the first aligned place on; nothing outside is touched."""
    f = ag.compile(lambda x: ag.permute(x, (0, 2, 3, 1)).contiguous()) if order == (0, 2, 3, 1) else ag.compile(lambda x: ag.permute(x, (0, 3, 1, 2)).contiguous())
    for n, c, h, w in ((2, 1, 5, 9), (1, 3, 5, 7), (2, 3, 16, 16), (3, 4, 5, 13), (1, 2, 7, 5), (2, 5, 6, 6), (2, 64, 7, 7), (1, 48, 3, 17), (3, 16, 1, 18),
                       (1, 32, 1, 3), (2, 17, 9, 5), (1, 3, 1, 1), (0, 3, 4, 4), (2, 0, 3, 30), (2, 64, 0, 3)):
        x = numbers((n, c, h, w) if order == (0, 2, 3, 1) else (n, h, w, c), dtype)
        for at_end in (False, True):
            memory: list[Any] = []
            given, out = guarded(x, at_end, memory), guarded(np.zeros([x.shape[d] for d in order], dtype), at_end, memory)
            f.prebind(given, out=out)()
            np.testing.assert_array_equal(out, x.transpose(order), err_msg=f"{n} x {c} x {h} x {w}")
            for shift in (1, 5) if out.size and not at_end else ():  # begins elsewhere in a line
                room = np.full(out.size + 64, 77, dtype)
                part = room[16 + shift:16 + shift + out.size].reshape(out.shape)
                f.prebind(given, out=part)()
                np.testing.assert_array_equal(part, out)
                assert (room[:16 + shift] == 77).all() and (room[16 + shift + out.size:] == 77).all()


def test_channels_of_open_number_with_something_fused() -> None:
    f = ag.compile(lambda x, y: ag.permute(x, (0, 2, 3, 1)) * y + 1.0)
    g = ag.compile(lambda x, y, s: ag.permute(x, (0, 3, 1, 2)) * s + y)
    for c in (1, 3, 4, 32):
        x, y, s = numbers((2, c, 9, 5), np.float32), numbers((2, 9, 5, c), np.float32), numbers((c, 1, 1), np.float32)
        np.testing.assert_array_equal(f(x, y), x.transpose(0, 2, 3, 1) * y + 1)
        np.testing.assert_array_equal(g(y, x, s), y.transpose(0, 3, 1, 2) * s + x)


@pytest.mark.parametrize("c", (3, 64))
@pytest.mark.parametrize("offset", (0, 1, 12))
def test_large_images_are_written_past_the_cache(c: int, offset: int) -> None:
    f = ag.compile(lambda x: ag.permute(x, (0, 2, 3, 1)).contiguous())
    for n in (1, 2):
        x = numbers((n, c, 53, (9 << 20) // (4 * n * c * 53) + 1), np.float32)
        room = np.full(x.size + 64, 77, np.float32)
        out = room[16 + offset:16 + offset + x.size].reshape(n, *x.shape[2:], c)
        f.prebind(x, out=out)()
        np.testing.assert_array_equal(out, x.transpose(0, 2, 3, 1))
        assert (room[:16 + offset] == 77).all() and (room[16 + offset + x.size:] == 77).all()


@pytest.mark.parametrize("offset", (0, 5, 12))
def test_large_results_are_written_past_the_cache(offset: int) -> None:
    f = ag.compile(lambda x: x.T.contiguous() * 2)
    assert "!nontemporal" in f.lower(numbers((4, 4), np.float32)).llvm_ir
    for shape in ((1504, 1616), (1500, 1616), (1504, 70), (80, 30_000)):  # rows of the result aligned to each other, not, few bytes, short rows
        x = numbers(shape, np.float32)
        out = np.zeros(x.size + 16, np.float32)[offset:offset + x.size].reshape(shape[::-1])
        f.prebind(x, out=out)()
        np.testing.assert_array_equal(out, x.T * 2)


@pytest.mark.parametrize("machine", ("native", *elsewhere.MACHINES))
def test_whole_lines_leave_past_the_cache_wherever_results_begin(machine: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every instruction set, from every place in a line: rows of whole lines and others, as many as a vector has and more, one run of rows, images."""
    monkeypatch.setattr(tiles, "_PAST", 1)
    funcs, calls = {}, []
    sizes = [(n, m) for n in (16, 32, 33, 48, 64, 71, 80) for m in (3, 7, 8, 16, 19, 33)]
    for name, dtype, shape in (("rows32", "float32", "nm"), ("rows64", "float64", "nm"), ("run32", "float32", (64, "m")), ("run64", "float64", (32, "m"))):
        block = Block([tensor_type(shape, dtype, Layout((1, 0)))])
        block.outputs = [Builder(block).relayout(block.args[0], layout=None)]
        funcs[name] = standard(Func(name, block))
        calls += [elsewhere.Call(name, [numbers((shape[0] if isinstance(shape, tuple) else n, m), dtype)]) for n, m in sizes]
    block = Block([tensor_type("nchw", "float32")])
    block.outputs = [Builder(block).relayout(block.args[0], layout=Layout((0, 2, 3, 1)))]
    funcs["images"] = standard(Func("images", block))
    calls += [elsewhere.Call("images", [numbers((n, c, h, 5), "float32")]) for n, c, h in ((1, 32, 5), (2, 64, 3), (3, 48, 7), (2, 33, 4), (2, 3, 19), (1, 16, 4))]
    for call, found in zip(calls, elsewhere.results(machine, funcs, calls, tmp_path)):
        np.testing.assert_array_equal(found[0], call.args[0], err_msg=f"{call.name} {call.args[0].shape}")


@pytest.mark.parametrize("first", (True, False))
def test_one_known_size_makes_no_more_code_than_tiles_need(first: bool) -> None:
    """Next to an open size, a known one of many tiles: no branch writes out all of its elements."""
    kept = np.ones(1024, np.float32)
    f = ag.compile(lambda x: ag.permute(x * kept if first else x * kept.reshape(-1, 1), (1, 0)).contiguous())
    for n in (3, 40):
        x = numbers((n, 1024) if first else (1024, n), np.float32)
        np.testing.assert_array_equal(f(x), x.T)
    assert f.lower(x).llvm_ir.count("shufflevector") < 1500


@pytest.mark.parametrize("sizes, threads", sweep.part(((2, 4, 6), (3, 17, 33), (2, 3, 0), (0, 4, 6), (2, 1, 300)), (1, 3)), ids=str)
def test_what_is_stored_once_for_each_row_beside_a_turned_read(sizes: tuple[int, ...], threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of what lies across: values of one row each are stored for a later nest, once, also where rows are empty."""
    monkeypatch.setattr(Program, "threads", threads)
    block = Block([tensor_type("nmk", "float64", Layout((0, 2, 1)))])
    b, across = Builder(block), Layout((0, 2, 1))
    e = b.exp(b.relayout(block.args[0], layout=None))  # read across, so that sums of rows are made of a stored copy, before
    total = b.sum(e, dims=(2,))
    share, row = b.div(e, b.keep_dims(total, e, (2,))), b.neg(b.tanh(total))
    one, two = b.cos(share), b.sin(share)
    later = b.keep_dims(b.mul(b.sum(b.mul(one, e), dims=(2,)), row), e, (2,))
    part = b.mul(e, b.keep_dims(b.mul(b.sum(b.mul(e, e), dims=(2,)), row), e, (2,)))
    block.outputs = [b.relayout(b.add(b.mul(b.mul(one, two), b.tanh(share)), later), layout=across), b.sum(b.mul(b.mul(part, one), two), dims=(0, 1, 2))]
    func = standard(Func("f", block))
    seen = []
    monkeypatch.setattr(NestEmitter, "_store_rows", lambda self, *a, make=NestEmitter._store_rows: (seen.append(len(self.phases[0].before)), make(self, *a)))
    program, x = Program(func), np.random.default_rng(1).normal(size=sizes)
    assert 1 in seen, "no nest turns a read and stores a value of each row"
    for got, want in zip(program(x), interp.run(func, x)):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sizes, dtype", sweep.part(((2, 9), (3, 17), (5, 33), (3, 8), (4, 15), (17, 17)), ("float64", "float32")), ids=str)
def test_sizes_known_ahead(sizes: tuple[int, int], dtype: str) -> None:
    """A last vector of one lane: what is turned is then one row."""
    block = Block([tensor_type(sizes, dtype, Layout((1, 0)))])
    b = Builder(block)
    block.outputs = [b.neg(b.relayout(block.args[0], layout=None))]
    x = numbers(sizes, dtype)
    np.testing.assert_array_equal(Program(standard(Func("f", block)))(x), -x)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.uint8])
@pytest.mark.parametrize("count", [2, 3])
def test_rows_that_follow_each_other_are_whole_wherever_they_begin(count: int, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last row too, whose last line no other row completes; those of three matrices are written past the cache."""
    monkeypatch.setattr(tiles, "_PAST", tiles._PAST if count == 2 else 1)
    size = np.dtype(dtype).itemsize
    for n, m in itertools.product((64 // size, 128 // size, 5), (64 // size, 7)):
        x = np.arange(count * n * m).astype(dtype).reshape(count, n, m)
        turned = ag.compile(lambda x, n=n, m=m: np.swapaxes(np.reshape(x, (count, n, m)), -1, -2))  # of sizes that are known
        for offset in {*range(0, 64, 16), size, 3 * size}:
            room = np.full(count * n * m + 128 // size, 99, dtype)
            at = (offset - room.ctypes.data) % 64 // size
            out = room[at:at + x.size].reshape(count, m, n)
            turned(x.reshape(-1), out=out)
            np.testing.assert_array_equal(out, np.swapaxes(x, 1, 2))
            assert (room[:at] == 99).all() and (room[at + x.size:] == 99).all()
