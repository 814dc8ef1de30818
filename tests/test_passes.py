"""How often compiled functions of a model's memory-bound part go over their arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sweep

import aotgrad as ag
from aotgrad.codegen.target import Target


def kernels(f: Any, *args: Any) -> list[Any]:
    """The kernels that read or write as many bytes as the first argument has."""
    return [k for k in f.explain(*args).kernels if k.read + k.written >= args[0].nbytes]


def test_cross_entropy_and_its_gradient_are_one_loop_over_rows() -> None:
    f = ag.compile(lambda x, t: ag.value_and_grad(lambda x: ag.nn.functional.cross_entropy(x, t))(x))
    x, t = np.random.default_rng(0).standard_normal((40, 70)), np.arange(40)
    found = kernels(f, x, t)
    assert len(found) == 1 and "inside 1 around them" in found[0].how and x.nbytes <= found[0].written < x.nbytes + 1000, found
    value, gradient = f(x, t)
    e = np.exp(x - x.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    np.testing.assert_allclose(value, -np.log(p[np.arange(40), t]).mean())
    np.testing.assert_allclose(gradient, (p - np.eye(70)[t]) / 40, atol=1e-15)


def test_a_mean_beside_the_rows_it_weighs_stays_out_of_their_way() -> None:
    def f(x: Any, w: Any) -> Any:
        return ag.sum(w * ag.sum(x * x, 1)) / ag.sum(w)

    both = ag.compile(ag.value_and_grad(f))
    x, w = np.random.default_rng(0).standard_normal((30, 50)), np.arange(1.0, 31.0)
    assert len(kernels(both, x, w)) == 1
    value, gradient = both(x, w)
    np.testing.assert_allclose(value, (w * (x * x).sum(1)).sum() / w.sum())
    np.testing.assert_allclose(gradient, 2 * x * w[:, None] / w.sum())


def test_cheap_chains_are_computed_again_where_their_data_is_read_anyway() -> None:
    def f(x: Any) -> Any:
        h = ag.maximum((x - 0.5) * x + 1.0, 0.25) * x
        return h / ag.sum(h)

    g = ag.compile(f)
    x = np.random.default_rng(0).standard_normal((40, 70))
    first, second = kernels(g, x)
    assert first.written == 0 and second.read == x.nbytes, (first, second)
    h = np.maximum((x - 0.5) * x + 1.0, 0.25) * x
    np.testing.assert_allclose(g(x), h / h.sum())


def test_rows_ask_for_the_next_while_they_compute() -> None:
    f = ag.compile(lambda x: ag.softmax(x, -1))
    x = np.random.default_rng(0).standard_normal((7, 50))
    text = f.lower(x).llvm_ir
    assert "@llvm.prefetch" in text
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(f(x), e / e.sum(1, keepdims=True))
    assert "@llvm.prefetch" not in ag.compile(ag.exp).lower(x).llvm_ir


def test_loops_past_the_cache_ask_for_lines_further_on() -> None:
    text = ag.compile(lambda x, y: x * 2 + y).lower(np.zeros(3), np.zeros(3)).llvm_ir
    assert text.count("call void @llvm.prefetch") in (2, 4)  # of both arguments, in the loop that is past the cache alone, and in its first round where that is apart
    assert "@llvm.prefetch" not in ag.compile(lambda x, y: ag.sum(x * y)).lower(np.zeros(3), np.zeros(3)).llvm_ir


@pytest.mark.parametrize("threads", [1, 2])
def test_large_results_of_light_loops_go_past_the_cache(threads: int) -> None:
    def norm(x: Any) -> Any:
        return x * 2 + 1, x - ag.sum(x, 1).reshape(-1, 1)

    f = ag.compile(norm, threads=threads)
    x = np.random.default_rng(0).standard_normal((2100, 2005), dtype=np.float32)  # rows begin anywhere, every fourth at 16 bytes
    assert "!nontemporal" in f.lower(x).llvm_ir
    want = x * 2 + 1, x - x.sum(1, keepdims=True)
    for offset in (0, 1, 4):
        outs = [np.zeros(x.size + 4, np.float32)[offset:offset + x.size].reshape(x.shape) for _ in want]
        f(x, out=tuple(outs))
        for a, b in zip(outs, want):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    again = ag.compile(lambda x: (x * 2, ag.sum(x * 2, 0)), threads=threads)  # read again: in the cache
    np.testing.assert_array_equal(again(x)[0], x * 2)


@pytest.mark.parametrize("dtype, threads", sweep.part(["float32", "float64", "int32", "int64"], [1, 2]))
def test_whole_lines_past_the_cache_touch_nothing_else(dtype: str, threads: int) -> None:
    lanes = 64 // np.dtype(dtype).itemsize
    x = np.arange(((16 << 20) + 5000) // np.dtype(dtype).itemsize + 3).astype(dtype)
    f = ag.compile(lambda x: (x * 3, x - 7), threads=threads)
    want = f(x)
    assert ("vpermi2var" in f.lower(x).llvm_ir) is (Target.native().arch == "x86_64" and Target.native().vector_bits == 512)
    for a, b in zip(want, (x * 3, x - 7)):
        np.testing.assert_array_equal(a, b)
    room = [np.full(x.size + 3 * lanes, 77, dtype) for _ in want]
    for offset in range(lanes):
        outs = [r[lanes + at:][:x.size] for r, at in zip(room, (offset, -offset % lanes))]
        f(x, out=tuple(outs))
        for r, at, out, exact in zip(room, (offset, -offset % lanes), outs, want):
            np.testing.assert_array_equal(out, exact)
            assert (r[:lanes + at] == 77).all() and (r[lanes + at + x.size:] == 77).all()
            out[:] = 77


def test_results_that_are_in_place_or_small_stay_in_the_cache() -> None:
    step = ag.compile(lambda p, g: p - 0.1 * g)
    assert "!nontemporal" in step.lower(np.zeros(3), np.zeros(3)).llvm_ir  # of any size
    F = ag.nn.functional
    small = ag.compile(lambda x, w: F.conv2d(x, w) * 2)  # of known sizes
    assert "!nontemporal" not in small.lower(np.zeros((1, 2, 8, 8)), np.zeros((2, 2, 3, 3))).llvm_ir
