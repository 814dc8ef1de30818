"""Operands that are packed once: what a loop multiplies with in every round, and what threads share. Neither changes a bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lowering_harness import Program
from test_lowering_control import scan

import aotgrad as ag
from aotgrad.codegen import sharing
from aotgrad.codegen.lower import lower
from aotgrad.codegen.target import Target
from aotgrad.ir import tensor_type
from aotgrad.ir.builder import build
from aotgrad.ir.core import Func, walk
from aotgrad.ir.dims import symbol
from aotgrad.ir.transforms.cleanup import standard
from aotgrad_runtime import pool
from aotgrad_runtime.dtypes import as_dtype


def step(b: Any, w: Any, h: Any, x: Any) -> Any:
    """A round with two products, with a matrix and its transpose."""
    y = b.add(b.dot(h, w), x)
    return b.dot(y, b.permute(w, perm=(1, 0))), y


def looped(batch: Any, inner: Any, outer: Any, dtype: Any) -> Func:
    n = symbol("n")
    types = [tensor_type(s, dtype) for s in ([inner, outer], [batch, inner], [n, batch, outer])]
    return standard(build("f", types, lambda b, w, h, xs: scan(b, (w,), (h,), (xs,), n, step)))


def check_rounds(p: Program, one: Program, w: Any, h: Any, xs: Any, guard: bool) -> None:
    """The loop ``p`` of ``step`` gives the bits of its rounds ``one`` by one."""
    last, ys = p(w, h, xs, guard=guard)
    now = h
    for x, y in zip(xs, ys, strict=True):
        now, want = one(w, now, x)
        assert np.array_equal(want, y)
    assert np.array_equal(last, now)


def packs(func: Func) -> int:
    lowered = lower(func, "f", Target.native())
    return sum(op.name == "func.call" and str(op.attrs["callee"]).endswith("_pack") for f in lowered.funcs for op in walk(f.body))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("opened", ["none", "batch", "all"])
def test_a_loop_packs_its_weights_once(dtype: str, opened: str) -> None:
    rng, kind = np.random.default_rng(0), as_dtype(dtype)
    for batch, inner, outer in ((16, 20, 37), (9, 33, 9), (11, 17, 130), (3, 20, 37), (16, 5, 40)):
        free = {"none": (), "batch": (0,), "all": (0, 1, 2)}[opened]
        dims = [symbol(s) if i in free else d for i, (s, d) in enumerate(zip("bkm", (batch, inner, outer)))]
        func = looped(*dims, kind)
        assert packs(func) == (sum(not isinstance(d, int) or d > 8 for d in dims[1:]) if free or batch > 8 else 0)
        p, one = Program(func), Program(build("g", [tensor_type(s, kind) for s in ([inner, outer], [batch, inner], [batch, outer])], step))
        for length in (0, 1, 4):
            w, h, xs = (rng.standard_normal(s).astype(dtype) for s in ((inner, outer), (batch, inner), (length, batch, outer)))
            for guard in (True, False):
                check_rounds(p, one, w, h, xs, guard)


def test_what_changes_in_the_loop_is_not_packed() -> None:
    n = symbol("n")
    types = [tensor_type([16, 16]), tensor_type([16, 16])]
    carried = build("f", types, lambda b, w, h: scan(b, (), (w, h), (), 3, lambda b, w, h: (b.add(w, h), b.dot(h, w))))
    assert packs(standard(carried)) == 0
    xs = build("g", [tensor_type([16, 16]), tensor_type([n, 16, 16])], lambda b, h, ws: scan(b, (), (h,), (ws,), n, lambda b, h, w: (b.dot(h, w),)))
    assert packs(standard(xs)) == 0


def test_one_copy_serves_products_of_one_kind() -> None:
    n = symbol("n")

    def twice(b: Any, w: Any, h: Any, x: Any) -> Any:
        return (b.dot(b.add(b.dot(h, w), x), w),)

    func = build("f", [tensor_type([16, 16]), tensor_type([16, 16]), tensor_type([n, 16, 16])], lambda b, w, h, xs: scan(b, (w,), (h,), (xs,), n, twice))
    assert packs(standard(func)) == 1


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_few_rows_read_copies_that_begin_at_whole_vectors(dtype: str) -> None:
    """One copy of the matrix, in either order, which changes no bit wherever the matrix begins; none for short loops and what is small or large."""
    rng, kind = np.random.default_rng(3), as_dtype(dtype)
    lanes = Target.native().lanes("f64" if dtype == "float64" else "f32")
    for batch, inner, outer in ((1, 20, 37), (8, 50, 33), (2, 96, 64)):
        func = looped(batch, inner, outer, kind)
        copied = lower(func, "f", Target.native()).module.copied
        assert [sorted(int(x) for x in at.strides) for at in copied.values()] == [[1, -(-outer // lanes) * lanes]] * 2
        assert len({id(at.store) for at in copied.values()}) == 1
        p, one = Program(func), Program(build("g", [tensor_type(s, kind) for s in ([inner, outer], [batch, inner], [batch, outer])], step))
        room = np.empty(inner * outer + 16, dtype)
        h, xs = (rng.standard_normal(s).astype(dtype) for s in ((batch, inner), (9, batch, outer)))
        for first in (0, 1, 5):
            w = room[first:first + inner * outer].reshape(inner, outer)
            w[...] = rng.standard_normal(w.shape)
            check_rounds(p, one, w, h, xs, False)


def test_what_a_copy_would_not_help_is_read_where_it_is() -> None:
    def copies(length: int, inner: int, outer: int) -> int:
        types = [tensor_type(s) for s in ([inner, outer], [1, inner], [length, 1, outer])]
        func = standard(build("f", types, lambda b, w, h, xs: scan(b, (w,), (h,), (xs,), length, step)))
        return len(lower(func, "f", Target.native()).module.copied)

    assert copies(8, 20, 37) == 2
    assert copies(7, 20, 37) == copies(8, 9, 9) == copies(8, 600, 600) == 0


@pytest.mark.skipif(pool.unusable() is not None, reason="no thread pool here")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_threads_share_a_packed_operand(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes known and not, B in either order, an epilogue; guard pages; the bits of one thread."""
    monkeypatch.setattr(sharing, "GRAIN", 2000)
    rng, kind = np.random.default_rng(1), as_dtype(dtype)
    for (m, n, k), swapped, known in (((300, 257, 190), True, True), ((300, 257, 190), True, False), ((230, 400, 150), False, True), ((230, 400, 150), False, False),
                                      ((9, 300, 300), True, False), ((7, 300, 300), True, False)):
        a, b, c = (rng.standard_normal(s).astype(dtype) for s in ((m, k), (n, k) if swapped else (k, n), (m, n)))
        dims = (m, n, k) if known else tuple(map(symbol, "mnk"))

        def body(b: Any, x: Any, y: Any, z: Any, swapped: bool = swapped) -> Any:
            return b.add(b.dot(x, b.permute(y, perm=(1, 0)) if swapped else y), z)

        func = build("f", [tensor_type(s, kind) for s in ((dims[0], dims[2]), (dims[1], dims[2]) if swapped else (dims[2], dims[1]), dims[:2])], body)
        want = Program(func)(a, b, c)
        for count in (2, 3, 8):
            monkeypatch.setattr(Program, "threads", count)
            shared = Program(func)
            for guard in (True, False):
                assert np.array_equal(shared(a, b, c, guard=guard), want), (m, n, k, count)
        monkeypatch.setattr(Program, "threads", 1)


def test_gradients_of_a_recurrent_net() -> None:
    """Compiled against eager execution, which unrolls."""
    rng = np.random.default_rng(2)
    w, u, h, xs = (0.3 * rng.standard_normal(s) for s in ((12, 12), (12, 7), (10, 12), (5, 10, 7)))

    def value(w: Any, u: Any, h: Any, xs: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = ag.tanh(h @ w.T + x @ u.T)
            return h, h

        return (ag.scan(step, h, xs)[1] ** 2).sum()

    f = ag.grad(value, argnums=(0, 1, 2, 3))
    for got, want in zip(ag.compile(f)(w, u, h, xs), f(w, u, h, xs)):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)
