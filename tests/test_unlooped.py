"""Products of a loop that are made for all of its rounds at once, before it or behind it: the bits of the loop that keeps them, and where they stay in it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from lowering_harness import Program
from native_table import agree
from test_lowering_control import scan

import aotgrad as ag
from aotgrad.codegen import prepare, sharing, unlooped
from aotgrad.ir import build, interp, tensor_type
from aotgrad.ir.core import Block, Func
from aotgrad.ir.dims import symbol
from aotgrad.ir.transforms.cleanup import standard
from aotgrad.ir.transforms.differentiate import vjp_func
from aotgrad_runtime import pool
from aotgrad_runtime.dtypes import as_dtype

T, M, K, N = map(symbol, "tmkn")


def recurrent(sizes: Any, dtype: str = "float64", turned: bool = False, length: Any = T, **kw: Any) -> Func:
    """h = tanh(x @ w + h), stacked h: with its gradients a product before the loop and one behind the other."""
    m, k, n = sizes
    kind = as_dtype(dtype)

    def step(b: Any, w: Any, h: Any, x: Any) -> Any:
        h = b.tanh(b.add(b.dot(x, b.permute(w, perm=(1, 0)) if turned else w), h))
        return h, h

    types = [tensor_type(s, kind) for s in ([n, k] if turned else [k, n], [m, n], [length, m, k])]
    return build("f", types, lambda b, w, h, xs: scan(b, (w,), (h,), (xs,), length, step, **kw))


def gradients(func: Func) -> Func:
    return standard(vjp_func(func, [True] * len(func.arg_types)))


def products(func: Func) -> tuple[list[Any], list[Any]]:
    """Sizes of the products outside of loops, and of those in them."""
    ops, _ = prepare.prepare(func.body)
    outside = [op.result.type.shape for op in ops if op.name == "dot"]
    return outside, [op.result.type.shape for loop in ops if loop.name == "scan" for op in loop.regions[0].ops if op.name == "dot"]


def kept_in(func: Func, monkeypatch: pytest.MonkeyPatch) -> Program:
    """The program whose products stay where they are."""
    with monkeypatch.context() as m:
        m.setattr(unlooped, "unloop", lambda *_: None)
        return Program(func)


SIZES = list(itertools.product((1, 2, 8, 9, 16), (3, 40, 300), (9, 16, 33, 130)))


@pytest.mark.parametrize("turned", [False, True], ids=["in-order", "turned"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_no_bit_changes_whatever_the_sizes(dtype: str, turned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One program for all sizes, value and all gradients, up to few rows and columns and beyond, between guard pages."""
    func = gradients(recurrent((M, K, N), dtype, turned))
    outside, inside = products(func)
    assert outside[:2] == [(T, M, N), (T, M, K)] and not inside
    program, loop = Program(func), kept_in(func, monkeypatch)
    rng = np.random.default_rng(0)
    for i, (m, k, n) in enumerate([*SIZES, (1, 2000, 64), (12, 1100, 70), (3, 0, 20), (0, 4, 20), (2, 5, 1), (2, 70, 8), (1, 70, 3), (9, 70, 8)]):
        env = {"t": i % 4 if m else 3, "m": m, "k": k, "n": n}
        args = [(0.1 * rng.standard_normal(t.substitute(env).shape)).astype(dtype) for t in func.arg_types]
        got, want = program(*args, guard=bool(i % 2)), loop(*args)
        assert all(a.tobytes() == b.tobytes() for a, b in zip(got, want, strict=True)), env
        if i % 9 == 0:
            agree(got, interp.run(func, *args), False, str(env))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_no_bit_changes_where_sizes_are_known(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    for i, (m, k, n) in enumerate(SIZES[::11]):
        for turned in (False, True):
            func = gradients(recurrent((m, k, n), dtype, turned, (T, 5)[i % 2], reverse=bool(i % 3)))
            args = [(0.1 * rng.standard_normal(t.substitute({"t": 6}).shape)).astype(dtype) for t in func.arg_types]
            for got, want in zip(Program(func)(*args, guard=True), kept_in(func, monkeypatch)(*args), strict=True):
                assert got.tobytes() == want.tobytes(), (m, k, n, turned)


def test_a_round_of_one_row_and_a_stacked_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vector a round; results that are products of what is scanned, or of what the loop made and keeps; a factor that the loop stacks already."""
    def step(b: Any, w: Any, v: Any, h: Any, x: Any) -> Any:
        p = b.dot(b.reshape(x, shape=(1, 40)), w)
        h = b.tanh(b.add(h, p))
        return h, p, b.dot(h, v), h, b.add(p, p)

    types = [tensor_type(s) for s in ([40, 24], [24, 33], [1, 24], [T, 40])]
    func = standard(build("f", types, lambda b, w, v, h, xs: scan(b, (w, v), (h,), (xs,), T, step)))
    assert products(func) == ([(T, 1, 24), (T, 1, 33)], [])
    rng = np.random.default_rng(2)
    for t in (0, 1, 7):
        args = [0.2 * rng.standard_normal(s.substitute({"t": t}).shape) for s in func.arg_types]
        got = Program(func)(*args, guard=True)
        agree(got, interp.run(func, *args), False, str(t))
        assert all(a.tobytes() == b.tobytes() for a, b in zip(got, kept_in(func, monkeypatch)(*args), strict=True))


def test_a_matrix_a_round_with_another_shape() -> None:
    def step(b: Any, w: Any, h: Any, x: Any) -> Any:
        return (b.add(h, b.dot(b.reshape(x, shape=(3, 4)), w)),)

    types = [tensor_type(s) for s in ([4, 16], [3, 16], [5, 2, 6])]
    func = standard(build("f", types, lambda b, w, h, xs: scan(b, (w,), (h,), (xs,), 5, step)))
    assert products(func) == ([(5, 3, 16)], [])
    args = [np.random.default_rng(5).standard_normal(t.shape) for t in func.arg_types]
    agree((Program(func)(*args, guard=True),), interp.run(func, *args), False, "reshaped")


def test_what_stays_in_the_loop() -> None:
    """Products with few columns, with a turned matrix and few rows, with rows enough, one that changes, of what the loop carries, of integers, and what would take
    more memory than four times the numbers that are there."""
    def moved(types: Any, step: Any, consts: int = 1, carry: int = 1) -> int:
        def body(b: Any, *xs: Any) -> Any:
            return scan(b, xs[:consts], xs[consts:consts + carry], xs[consts + carry:], T, step)

        return len(products(standard(build("f", [tensor_type(*t) if isinstance(t, tuple) else tensor_type(t) for t in types], body)))[0])

    def dot(b: Any, w: Any, h: Any, x: Any) -> Any:
        return (b.add(h, b.dot(x, w)),)

    def turned(b: Any, w: Any, h: Any, x: Any) -> Any:
        return (b.add(h, b.dot(x, b.permute(w, perm=(1, 0)))),)

    assert moved([[40, 30], [2, 30], [T, 2, 40]], dot) == 1
    assert moved([[40, 8], [2, 8], [T, 2, 40]], dot) == 0
    assert moved([[30, 40], [9, 30], [T, 9, 40]], turned) == 1 and moved([[30, 40], [8, 30], [T, 8, 40]], turned) == 0
    assert moved([[40, 160], [2, 160], [T, 2, 40]], dot) == 1 and moved([[40, 161], [2, 161], [T, 2, 40]], dot) == 0
    assert moved([[K, N], [M, N], [T, M, K]], dot) == 0  # of which nothing is known
    assert moved([[40, 30], [16, 30], [T, 16, 40]], dot) == 1 and moved([[40, 30], [17, 30], [T, 17, 40]], dot) == 0
    assert moved([[40, 161], [2, 161], [T, 2, 40], ([T, 2, 400], as_dtype("bool"))], lambda b, w, h, x, _: dot(b, w, h, x)) == 0
    assert moved([([40, 30], as_dtype("int64")), ([2, 30], as_dtype("int64")), ([T, 2, 40], as_dtype("int64"))], dot) == 0
    assert moved([[30, 30], [9, 30], [T, 9, 30]], lambda b, w, h, x: (b.add(b.dot(h, w), x),)) == 0
    assert moved([[9, 30], [T, 9, 40], [T, 40, 30]], lambda b, h, x, w: (b.add(h, b.dot(x, w)),), 0) == 0
    assert moved([[40, 30], [2, 30], [T, 2, 40]], lambda b, w, h, x: (b.dot(b.tanh(x), w),)) == 0  # what is made of a row is not there for all rounds


def test_programs_stay_as_they_are() -> None:
    """The pass makes new blocks: a program is compiled for several sizes."""
    func = standard(recurrent((M, K, N), turned=True))
    text = str(func)
    first = products(func)
    assert first == products(func) and str(func) == text and isinstance(func.body, Block)


class Shared(Program):
    threads = 3


@pytest.mark.skipif(pool.unusable() is not None, reason="no thread pool here")
def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "GRAIN", 2000)
    rng = np.random.default_rng(3)
    for sizes, turned in (((M, K, N), True), ((16, 40, 70), True), ((2, 40, 70), False)):
        func = gradients(recurrent(sizes, "float32", turned))
        for t, m in ((40, 16), (3, 2)):
            env = {"t": t, "m": m, "k": 40, "n": 70}
            args = [(0.1 * rng.standard_normal(a.substitute(env).shape)).astype(np.float32) for a in func.arg_types]
            for got, want in zip(Shared(func)(*args, guard=True), Program(func)(*args), strict=True):
                assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("batch", [1, 12])
def test_an_lstm_as_users_write_it(batch: int) -> None:
    """Products with the inputs inside of the step or outside, compiled, and eagerly, which unrolls: the same bits, in gradients of the weights too."""
    def cell(gates: Any, c: Any) -> Any:
        i, f, g, o = (gates[:, j * 10:(j + 1) * 10] for j in range(4))
        c = ag.sigmoid(f) * c + ag.sigmoid(i) * ag.tanh(g)
        return ag.sigmoid(o) * ag.tanh(c), c

    def net(inside: bool) -> Any:
        def run(w: Any, u: Any, xs: Any, h: Any, c: Any) -> Any:
            def step(s: Any, x: Any) -> Any:
                s = cell((x @ w if inside else x) + s[0] @ u, s[1])
                return s, s[0]

            return ag.scan(step, (h, c), xs if inside else xs @ w)[1]
        return run

    rng = np.random.default_rng(4)
    args = [rng.standard_normal(s, dtype=np.float32) for s in ((24, 40), (10, 40), (7, batch, 24), (batch, 10), (batch, 10))]
    values = {"inside": ag.compile(net(True))(*args), "outside": ag.compile(net(False))(*args), "eager": net(True)(*map(ag.tensor, args))}
    assert len({np.asarray(v).tobytes() for v in values.values()}) == 1
    slopes = [ag.compile(ag.grad(lambda *xs, i=inside: (net(i)(*xs) ** 2).sum(), argnums=(0, 1)))(*args) for inside in (True, False)]
    assert all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in zip(*slopes, strict=True))
    f = ag.compile(net(True))
    assert f"packed product {7 * batch} x 40 x 24" in f.explain(*args)
