"""Elementwise ops that move to a product's matrix, pieces that tile an array, what loops compute again: the same bits, fewer passes over memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lowering_harness import Program
from test_lowering_control import scan

import aotgrad as ag
from aotgrad.ir import interp, tensor_type
from aotgrad.ir.builder import build
from aotgrad.ir.core import Func, walk
from aotgrad.ir.dims import symbol
from aotgrad.ir.transforms.cleanup import standard
from aotgrad.ir.transforms.differentiate import vjp_func

RNG = np.random.default_rng(3)
T, N = symbol("t"), symbol("n")


def names(func: Func) -> list[str]:
    return [op.name for op in func.body.ops]


def same_bits(func: Func, *args: Any) -> Program:
    """The interpreter gives the same bits before and after; native code the interpreter's numbers."""
    after = standard(func)
    for want, got in zip(interp.run(func, *args), interp.run(after, *args)):
        assert np.array_equal(want, got) and np.array_equal(np.signbit(want), np.signbit(got))
    p = Program(after)
    found = p(*args, guard=True)
    for want, got in zip(interp.run(func, *args), found if isinstance(found, tuple) else (found,)):
        np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-13)
    return p


def rows_of_product(b: Any, x: Any, w: Any) -> Any:
    """[t, 5, k] @ [k, n] as a front end writes it."""
    t, m, k = x.type.shape
    n = w.type.shape[1]
    return b.reshape(b.dot(b.reshape(x, shape=(t * m, k)), w), shape=(t, m, n))


def test_what_follows_a_product_runs_on_its_blocks() -> None:
    def body(b: Any, x: Any, w: Any, bias: Any, other: Any) -> Any:
        y = rows_of_product(b, x, w)
        y = b.add(y, b.broadcast(bias, shape=y.type.shape, dims=(2,)))
        y = b.maximum(y, b.full(shape=y.type.shape, value=0.0, dtype=y.type.dtype))
        return b.add(other, b.tanh(y))

    func = build("f", [tensor_type(s) for s in ((T, 5, 7), (7, N), (N,), (T, 5, N))], body)
    after = standard(func)
    elementwise = [op for op in after.body.ops if op.name in ("add", "maximum", "tanh")]
    assert len(elementwise) == 4 and all(op.result.type.rank == 2 for op in elementwise)
    p = same_bits(func, *(RNG.normal(size=s) for s in ((6, 5, 7), (7, 19), (19,), (6, 5, 19))))
    assert [k["kind"] for k in p.meta["kernels"]] == ["gemm", "epilogue"]
    for t, n in ((0, 3), (1, 1), (2, 0)):
        same_bits(func, *(RNG.normal(size=s) for s in ((t, 5, 7), (7, n), (n,), (t, 5, n))))


@pytest.mark.parametrize("dims", [(0, 2), (1, 2), (0,)])
def test_what_would_have_to_move_stays(dims: tuple[int, ...]) -> None:
    sizes = tuple((T, 5, N)[d] for d in dims)

    def body(b: Any, x: Any, w: Any, other: Any) -> Any:
        y = rows_of_product(b, x, w)
        return b.add(y, b.broadcast(other, shape=y.type.shape, dims=dims))

    func = build("f", [tensor_type(s) for s in ((T, 5, 7), (7, N), sizes)], body)
    assert [op.result.type.rank for op in standard(func).body.ops if op.name == "add"] == [3]
    same_bits(func, *(RNG.normal(size=s) for s in ((3, 5, 7), (7, 11), tuple((3, 5, 11)[d] for d in dims))))


def adds(b: Any, whole: Any, value: float, pieces: Any, starts: Any) -> Any:
    x = b.full(shape=whole, value=value, dtype=pieces[0].type.dtype)
    for p, at in zip(pieces, starts):
        x = b.insert_add(x, p, starts=at, steps=(1,) * len(whole))
    return x


@pytest.mark.parametrize("value", [0.0, -0.0])
def test_pieces_that_fill_an_array_are_its_concatenation(value: float) -> None:
    """Of sizes known and not, in any order; 0 + -0 is 0."""
    u, v, w = RNG.normal(size=(4, 8)), RNG.normal(size=(4, 9)), RNG.normal(size=(4, 10))
    u[0], v[1] = -0.0, 0.0
    n = symbol("n")
    for size in (10, n):
        types = [tensor_type((4, 8)), tensor_type((4, 9)), tensor_type((4, size))]
        func = build("f", types, lambda b, u, v, w, size=size: adds(b, (4, 17 + size), value, (v, w, u), ((0, 8), (0, 17), (0, 0))))
        assert "concatenate" in names(standard(func)) and "insert_add" not in names(standard(func))
        same_bits(func, u, v, w)
        same_bits(func, u, v, w[:, :0] if size is n else w)


@pytest.mark.parametrize(("whole", "starts", "value"), [
    ((4, 16), ((0, 0), (0, 7)), 0.0), ((4, 17), ((0, 0), (0, 9)), 0.0), ((4, 17), ((0, 0), (0, 8)), 0.0), ((4, 16), ((0, 0), (0, 0)), 0.0),
    ((5, 16), ((0, 0), (0, 8)), 0.0), ((4, 16), ((0, 0), (0, 8)), 1.0)])
def test_others_are_added(whole: Any, starts: Any, value: float) -> None:
    """What overlaps, leaves gaps or a rest, or falls on numbers."""
    func = build("f", [tensor_type((4, 8))] * 2, lambda b, u, v: adds(b, whole, value, (u, v), starts))
    assert "concatenate" not in names(standard(func))
    same_bits(func, RNG.normal(size=(4, 8)), RNG.normal(size=(4, 8)))


def lstm(b: Any, w: Any, h: Any, c: Any, x: Any) -> Any:
    n = c.type.shape[1]
    z = b.add(x, b.dot(h, w))
    i, f, g, o = (b.slice(z, starts=(0, k * n), sizes=(z.type.shape[0], n), steps=(1, 1)) for k in range(4))
    c = b.add(b.mul(b.sigmoid(f), c), b.mul(b.sigmoid(i), b.tanh(g)))
    return b.mul(b.sigmoid(o), b.tanh(c)), c


def test_the_gradient_of_an_lstm_keeps_what_it_must() -> None:
    """Of the 12 arrays that products ask for, 1 - tanh^2 twice is computed again; the adjoint of the four gates is one nest that writes each where it belongs."""
    n, m, k = symbol("n"), 10, 8
    types = [tensor_type(s) for s in ((k, 4 * k), (m, k), (m, k), (n, m, 4 * k))]
    func = build("f", types, lambda b, w, h, c, xs: scan(b, (w,), (h, c), (xs,), n, lambda b, w, h, c, x: (*lstm(b, w, h, c, x), h)))
    both = vjp_func(func, [True] * 4)
    after = standard(both)
    forward, backward = (op for op in after.body.ops if op.name == "scan")
    stacked = len(forward.results) - 3  # two carries and the hidden states
    assert stacked <= 10
    assert "insert_add" not in [op.name for op in backward.regions[0].ops]
    rng = np.random.default_rng(0)
    args = [rng.normal(size=tuple(5 if d is n else d for d in t.shape)) for t in both.arg_types]
    got, want = Program(after)(*args, guard=True), interp.run(both, *args)
    for g, w in zip(got, want):
        np.testing.assert_allclose(g, w, rtol=1e-12, atol=1e-12)


def test_second_derivatives_of_a_loop_that_computes_again() -> None:
    def value(w: Any, xs: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = ag.tanh(h @ w + x)
            return h, h * h

        return ag.scan(step, xs[0], xs)[1].sum()

    w, xs, v = 0.4 * RNG.normal(size=(4, 4)), RNG.normal(size=(3, 2, 4)), RNG.normal(size=(4, 4))
    hvp = ag.compile(lambda w, xs, v: ag.jvp(lambda w: ag.grad(value)(w, xs), (w,), (v,))[1])
    e = 1e-5
    grad = ag.grad(value)
    np.testing.assert_allclose(hvp(w, xs, v), (grad(w + e * v, xs) - grad(w - e * v, xs)) / (2 * e), rtol=2e-6, atol=2e-7)


def test_regions_are_simplified_too() -> None:
    func = build("f", [tensor_type((3, 4, 8)), tensor_type((8, 9)), tensor_type((9,))],
                 lambda b, x, w, bias: scan(b, (x, w), (bias,), (), 2, lambda b, x, w, bias: (b.sum(b.add(rows_of_product(b, x, w), b.broadcast(
                     bias, shape=(3, 4, 9), dims=(2,))), dims=(0, 1)),)))
    assert [op.result.type.rank for op in walk(standard(func).body) if op.name == "add"] == [2]
    same_bits(func, *(0.1 * RNG.normal(size=s) for s in ((3, 4, 8), (8, 9), (9,))))
