"""Elementwise ops that move to a product's matrix, pieces that tile an array, what loops compute again: the same bits, fewer passes over memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lowering_harness import Program
from test_lowering_control import scan

import aotgrad as ag
from aotgrad.codegen import sharing
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


def test_the_nearest_product_is_found() -> None:
    """Behind a product stands the gradient of a long chain, which is made of another product."""
    def body(b: Any, x: Any, w: Any, g: Any) -> Any:
        x, g = (b.reshape(v, shape=(T * 5, 7)) for v in (x, g))
        h = b.dot(x, w)
        for _ in range(8):
            h = b.tanh(b.mul(h, h))
        y = b.reshape(b.lmul(b.dot(g, w), h), shape=(T, 5, N))
        return b.mul(y, y)

    func = build("f", [tensor_type(s) for s in ((T, 5, 7), (7, N), (T, 5, 7))], body)
    assert all(op.result.type.rank == 2 for op in standard(func).body.ops if op.name == "mul")
    same_bits(func, *(RNG.normal(size=s) for s in ((6, 5, 7), (7, 19), (6, 5, 7))))


def activations(x: Any, w: Any, b: Any) -> Any:
    return ag.maximum(x @ w + b, 0.0)


def gelus(x: Any, w: Any, b: Any) -> Any:
    return ag.nn.functional.gelu(x @ w + b, approximate="tanh")


@pytest.mark.parametrize(("layer", "arrays"), [(activations, 2), (gelus, 3)])
def test_what_a_layers_gradient_reads_is_written_by_its_product(layer: Any, arrays: int) -> None:
    """The product stays where its blocks were made, and what follows runs on them; of a gelu its tanh and the product give the rest."""
    x, w, b = RNG.normal(size=(96, 40)), RNG.normal(size=(40, 64)), RNG.normal(size=64)

    def f(x: Any, w: Any, b: Any) -> Any:
        def value(x: Any, w: Any, b: Any) -> Any:
            return ag.sin(layer(x, w, b) @ w.T).sum()

        return ag.value_and_grad(value, argnums=(0, 1, 2))(x, w, b)

    kernels = ag.compile(f).explain(x, w, b).kernels
    layer_size = 96 * 64 * 8
    assert not [k for k in kernels if "dot" not in k.name and k.written >= layer_size], [(k.name, k.read, k.written) for k in kernels]
    assert next(k for k in kernels if "dot" in k.name).written == arrays * layer_size
    value, found = ag.compile(f)(x, w, b)
    leaves = [ag.tensor(a, requires_grad=True) for a in (x, w, b)]
    want = ag.sin(layer(*leaves) @ leaves[1].T).sum()
    want.backward()
    np.testing.assert_allclose(value, want.item(), rtol=1e-12)
    for got, leaf in zip(found, leaves):
        np.testing.assert_allclose(got, leaf.grad.numpy(), rtol=1e-11, atol=1e-11)


class Shared(Program):
    threads = 3


@pytest.mark.parametrize(("m", "k", "n"), [(1, 3, 5), (5, 7, 3), (128, 16, 20), (129, 16, 20), (130, 5, 1), (600, 40, 300), (257, 3, 1030), (200, 0, 9), (0, 4, 9)])
def test_sums_over_rows_on_the_blocks_of_a_product(monkeypatch: pytest.MonkeyPatch, m: int, k: int, n: int) -> None:
    """The bits of a sum of what is in memory, wherever blocks of the product and parts for threads begin and end, with sizes known ahead and not."""
    monkeypatch.setattr(sharing, "GRAIN", 2000)
    x, w, b = (RNG.normal(size=s).astype("float32") for s in ((m, k), (k, n), (n,)))

    def on_blocks(b: Any, x: Any, w: Any, bias: Any) -> Any:
        y = b.tanh(b.add(b.dot(x, w), b.broadcast(bias, shape=(x.type.shape[0], w.type.shape[1]), dims=(1,))))
        return y, b.sum(y, dims=(0,)), b.sum(b.mul(y, y), dims=(0,))

    sums = ag.compile(lambda y: (ag.sum(y, 0), ag.sum(y * y, 0)))
    for shapes in (((m, k), (k, n), (n,)), (tuple(map(symbol, "mk")), tuple(map(symbol, "kn")), (symbol("n"),))):
        func = build("f", [tensor_type(s, "float32") for s in shapes], on_blocks)
        for made in (Program(func), Shared(func)):
            y, *found = made(x, w, b, guard=True)
            for got, want in zip(found, sums(y)):
                np.testing.assert_array_equal(got, want)
            assert 1 in (m, n) or {kernel["kind"] for kernel in made.meta["kernels"]} == {"gemm", "epilogue"} or max(m, k, n) <= 8


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_transposed_product_is_one(dtype: str) -> None:
    """The gradient of a weight that is read transposed, and a sum of two: the bits of the products, turned afterwards, in no further loop."""
    k, m, n = (symbol(s) for s in "kmn")
    types = [tensor_type(s, dtype) for s in ((k, m), (k, n), (k, m), (k, n))]

    def body(turned: bool) -> Any:
        def made(b: Any, x: Any, g: Any, y: Any, h: Any) -> Any:
            total = b.add(b.dot(b.permute(x, perm=(1, 0)), g), b.dot(b.permute(y, perm=(1, 0)), h))
            return b.permute(total, perm=(1, 0)) if turned else total

        return made

    one, plain = (Program(build("f", types, body(turned))) for turned in (True, False))
    assert [kernel["kind"] for kernel in one.meta["kernels"]] == ["gemm", "gemm", "epilogue"]
    for sizes in ((5, 1, 1), (5, 1, 3), (5, 3, 1), (70, 1, 8), (70, 8, 1), (70, 8, 9), (70, 9, 8), (1, 2, 3), (0, 2, 3), (70, 33, 130), (70, 130, 20)):
        of = dict(zip("kmn", sizes))
        args = [RNG.normal(size=tuple(of[str(d)] for d in t.shape)).astype(dtype) for t in types]
        np.testing.assert_array_equal(one(*args, guard=True), plain(*args).T, err_msg=str(sizes))


def test_a_product_that_is_read_elsewhere_is_not_made_twice() -> None:
    def body(b: Any, x: Any, g: Any) -> Any:
        y = b.dot(b.permute(x, perm=(1, 0)), g)
        return b.permute(y, perm=(1, 0)), b.exp(y)

    p = Program(build("f", [tensor_type((40, 30)), tensor_type((40, 20))], body))
    assert [kernel["kind"] for kernel in p.meta["kernels"]].count("gemm") == 1
    x, g = RNG.normal(size=(40, 30)), RNG.normal(size=(40, 20))
    turned, other = p(x, g)
    np.testing.assert_allclose(turned, (x.T @ g).T, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(other, np.exp(x.T @ g), rtol=1e-11)


def test_rows_of_an_array_are_pieces_of_it() -> None:
    """Pieces of one element along the dim they fill, with enough neighbours: the gradient of queries, keys and values out of one product."""
    func = build("f", [tensor_type((4, 1, 8))] * 3, lambda b, u, v, w: adds(b, (4, 3, 8), 0.0, (u, v, w), ((0, 1, 0), (0, 0, 0), (0, 2, 0))))
    assert "concatenate" in names(standard(func)) and "insert_add" not in names(standard(func))
    same_bits(func, *(RNG.normal(size=(4, 1, 8)) for _ in range(3)))
    thin = build("f", [tensor_type((4, 1, 7))] * 2, lambda b, u, v: adds(b, (4, 2, 7), 0.0, (u, v), ((0, 1, 0), (0, 0, 0))))
    assert "concatenate" not in names(standard(thin))
