"""Square tiles turned in registers: transposes and changes of layout, of every size around those of vectors and strips, fused with what surrounds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aotgrad as ag
from aotgrad.codegen.tiles import transpose


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


@pytest.mark.parametrize("dtype", (np.float32, np.float64, np.int32, np.int8, bool), ids=lambda d: np.dtype(d).name)
def test_transposes_of_any_size(dtype: Any) -> None:
    f = ag.compile(lambda x: ag.permute(x, (1, 0)).contiguous())
    for m in (0, 1, 2, 7, 8, 15, 16, 17, 33, 64, 65, 130):
        for n in (0, 1, 3, 4, 15, 16, 17, 31, 64, 100, 129, 256, 300):
            x = numbers((m, n), dtype)
            np.testing.assert_array_equal(f(x), x.T, err_msg=f"{m} x {n}")


@pytest.mark.parametrize("shape", ((2, 3, 5, 5), (1, 17, 9, 7), (3, 64, 7, 7), (2, 3, 16, 18), (1, 1, 4, 4), (2, 16, 1, 40)), ids=str)
@pytest.mark.parametrize("order", ((0, 2, 3, 1), (0, 3, 1, 2), (3, 2, 1, 0), (1, 0, 3, 2)), ids=str)
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


@pytest.mark.parametrize("offset", (0, 1, 5))
def test_large_results_are_written_past_the_cache(offset: int) -> None:
    f = ag.compile(lambda x: x.T.contiguous() * 2)
    assert "!nontemporal" in f.lower(numbers((4, 4), np.float32)).llvm_ir
    for shape in ((1504, 1616), (1500, 1616), (1504, 70), (80, 30_000)):  # rows of the result aligned to each other, not, few bytes, short rows
        x = numbers(shape, np.float32)
        out = np.zeros(x.size + 16, np.float32)[offset:offset + x.size].reshape(shape[::-1])
        f.prebind(x, out=out)()
        np.testing.assert_array_equal(out, x.T * 2)


@pytest.mark.parametrize("first", (True, False))
def test_one_known_size_makes_no_more_code_than_tiles_need(first: bool) -> None:
    """Next to an open size, a known one of many tiles: no branch writes out all of its elements."""
    kept = np.ones(1024, np.float32)
    f = ag.compile(lambda x: ag.permute(x * kept if first else x * kept.reshape(-1, 1), (1, 0)).contiguous())
    for n in (3, 40):
        x = numbers((n, 1024) if first else (1024, n), np.float32)
        np.testing.assert_array_equal(f(x), x.T)
    assert f.lower(x).llvm_ir.count("shufflevector") < 1500
