"""Chains of writes into fresh arrays: one loop, no array between, nothing read outside, equal to the interpreter whatever the windows are."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import sweep
from lowering_harness import Program

from aotgrad.codegen.lower import lower
from aotgrad.codegen.target import Target
from aotgrad.ir import dims, interp, ops, tensor_type
from aotgrad.ir.builder import Builder, build
from aotgrad.ir.core import Block, Func
from aotgrad.ir.transforms.cleanup import standard
from aotgrad.ir.transforms.differentiate import vjp_inline

assert ops
SIZES = (0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 18, 40)


def agree(func: Func, p: Program, *arrays: Any) -> None:
    want = interp.run(func, *arrays)
    for guard in (True, False):
        got = p(*arrays, guard=guard)
        for g, w in zip(got if isinstance(got, tuple) else (got,), want):
            np.testing.assert_allclose(g, w, rtol=1e-13, atol=1e-13)


def loops(p: Program) -> list[Any]:
    return [(k["kind"], k["read"], k["written"]) for k in p.meta["kernels"]]


def rosenbrock(b: Any, x: Any) -> Any:
    n = dims.maximum(0, x.type.shape[0] - 1)
    low, high = (b.slice(x, starts=(s,), sizes=(n,), steps=(1,)) for s in (0, 1))
    d, e = b.sub(high, b.mul(low, low)), b.sub(b.broadcast(b.scalar(1.0, x.type.dtype), shape=(n,), dims=()), low)
    return b.sum(b.add(b.mul(b.broadcast(b.scalar(100.0, x.type.dtype), shape=(n,), dims=()), b.mul(d, d)), b.mul(e, e)), dims=(0,))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_value_and_gradient_of_rosenbrock_are_two_loops_and_no_workspace(dtype: str) -> None:
    func = build("f", [tensor_type(["n"], dtype)], rosenbrock)

    def both(b: Any, x: Any) -> Any:
        outs, pullback = vjp_inline(b, func.body, [x], [True])
        return (*outs, *pullback([b.scalar(1.0, outs[0].type.dtype)]))

    func = standard(build("g", [tensor_type(["n"], dtype)], both))
    p = Program(func)
    s = np.dtype(dtype).itemsize
    assert p.meta["workspace"] == 0
    assert loops(p) == [("loop", f"{2 * s} * max(0, n - 1)", f"{s}"), ("loop", f"{3 * s} * n", f"{s} * n")]
    for n in SIZES:
        x = np.random.default_rng(n).normal(size=n).astype(dtype)
        got, want = p(x, guard=bool(n % 2)), interp.run(func, x)
        for g, w in zip(got, want):
            np.testing.assert_allclose(g, w, rtol=200 * np.finfo(dtype).eps, atol=1e3 * np.finfo(dtype).eps)


@pytest.mark.parametrize("target", ["native", "x86-64-v3", "x86-64"])
def test_edges_hold_what_the_chain_says(target: str) -> None:
    def body(b: Any, x: Any) -> Any:
        n = x.type.shape[0]
        m = dims.maximum(0, n - 2)
        y = b.full(shape=(n,), value=7.0, dtype=x.type.dtype)
        v = b.abs(b.slice(x, starts=(1,), sizes=(m,), steps=(1,)))
        y = b.insert(y, v, starts=(2,), steps=(1,))
        y = b.insert_add(y, v, starts=(2,), steps=(1,))
        return b.insert_add(y, b.slice(x, starts=(2,), sizes=(m,), steps=(1,)), starts=(0,), steps=(1,))

    func = standard(build("f", [tensor_type(["n"])], body))
    p = Program(func, Target.named(target))
    assert len(loops(p)) == 1 and p.meta["workspace"] == 0
    for n in SIZES:
        agree(func, p, np.random.default_rng(n).normal(size=n))


def test_pieces_that_cover_little_stay_writes() -> None:
    """Asking every element would compute the piece as often as there are elements."""

    def body(b: Any, x: Any, v: Any) -> Any:
        y = b.full(shape=x.type.shape, value=0.0, dtype=x.type.dtype)
        return b.insert_add(y, b.exp(v), starts=(0,), steps=(1,))

    func = standard(build("f", [tensor_type([64]), tensor_type([4])], body))
    p = Program(func)
    assert [w for _, _, w in loops(p)] == ["512", "32"]
    agree(func, p, np.zeros(64), np.arange(4.0))


def test_the_report_of_a_profile_names_the_writes() -> None:
    func = standard(build("f", [tensor_type(["n"])], lambda b, x: b.exp(Chains(3).chain(b, x))))
    regions = lower(func, "f", Target.native(), hooks=True).module.regions
    names = {name for r in regions or () for name in r["ops"]}
    assert names & {"insert", "insert_add"} and not names & {"overlay", "window"}


def test_a_dear_piece_is_computed_once() -> None:
    def body(b: Any, x: Any) -> Any:
        n = dims.maximum(0, x.type.shape[0] - 1)
        v = b.exp(b.slice(x, starts=(0,), sizes=(n,), steps=(1,)))
        y = b.full(shape=x.type.shape, value=0.0, dtype=x.type.dtype)
        return b.insert_add(b.insert_add(y, v, starts=(0,), steps=(1,)), v, starts=(1,), steps=(1,))

    func = standard(build("f", [tensor_type(["n"])], body))
    p = Program(func)
    assert loops(p) == [("loop", "8 * max(0, n - 1)", "8 * max(0, n - 1)"), ("loop", "16 * n", "8 * n")]
    for n in SIZES:
        agree(func, p, np.random.default_rng(n).normal(size=n))


def test_windows_inside_a_scan() -> None:
    n = dims.symbol("n")

    def step(b: Any, c: Any) -> Any:
        inner = b.slice(c, starts=(1, 0), sizes=(dims.maximum(0, n - 1), 5), steps=(1, 1))
        y = b.insert_add(b.full(shape=(n, 5), value=0.0, dtype=c.type.dtype), b.mul(inner, inner), starts=(0, 0), steps=(1, 1))
        return b.insert_add(y, b.sin(inner), starts=(1, 0), steps=(1, 1))

    def body(b: Any, x: Any) -> Any:
        block = Block([x.type])
        inner = type(b)(block)
        block.outputs = [step(inner, block.args[0])]
        return b.emit("scan", [x], {"length": 3, "consts": 0, "carry": 1, "reverse": False}, (block,))[0]

    func = build("f", [tensor_type(["n", 5])], body)
    p = Program(func)
    for k in (0, 1, 2, 3, 9):
        agree(func, p, np.random.default_rng(k).normal(size=(k, 5)) / 4)


class Chains:
    """Random chains over arrays of one to three dims: some dims whole, some with windows; pieces from slices, flips, permutations and sums of the input."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rank = self.rng.randint(1, 3)
        self.names = [f"n{d}" for d in range(self.rank)]

    def piece(self, b: Any, x: Any, cut: tuple[int, ...]) -> Any:
        rng, shape = self.rng, x.type.shape
        sizes = tuple(dims.maximum(0, n - c) if c else n for n, c in zip(shape, cut))
        v = b.slice(x, starts=tuple(rng.randint(0, c) for c in cut), sizes=sizes, steps=(1,) * self.rank)
        kind = rng.randint(0, 5)
        if kind == 1:
            v = b.mul(v, v)
        elif kind == 2:
            v = b.sin(v)
        elif kind == 3:
            v = b.add(v, b.broadcast(b.sum(v, dims=(0,)), shape=sizes, dims=tuple(range(1, self.rank))))
        elif kind == 4:
            v = b.add(b.iota(shape=sizes, dim=rng.randrange(self.rank), dtype=x.type.dtype), v)
        elif kind == 5:
            v = b.where(b.gt(v, b.mul(v, v)), v, b.exp(v))
        return v

    def chain(self, b: Any, x: Any) -> Any:
        rng = self.rng
        y = b.full(shape=x.type.shape, value=rng.choice((0.0, 2.5)), dtype=x.type.dtype)
        for _ in range(rng.randint(1, 4)):
            cut = tuple(rng.choice((0, 0, 1, 2, 3)) for _ in range(self.rank))
            name = rng.choice(("insert", "insert_add", "insert_add"))
            y = b.emit(name, [y, self.piece(b, x, cut)], {"starts": tuple(rng.randint(0, c) for c in cut), "steps": (1,) * self.rank})[0]
        return y

    def body(self, b: Any, x: Any) -> Any:
        y = self.chain(b, b.tanh(x) if self.rng.random() < 0.3 else x)
        how = self.rng.randint(0, 5)
        if how == 1:
            return b.add(y, self.chain(b, y))
        if how == 2:
            return b.sum(b.mul(y, x), dims=(self.rng.randrange(self.rank),)), y
        if how == 3:
            perm = list(range(self.rank))
            self.rng.shuffle(perm)
            return b.exp(b.permute(y, perm=tuple(perm))) if self.rank > 1 else b.mul(y, y)
        if how == 4:
            peak = b.amax(b.add(y, x), dims=(self.rank - 1,)) if self.rank > 1 else b.sum(y, dims=(0,))
            kept = tuple(range(self.rank - 1)) if self.rank > 1 else ()
            return b.sub(y, b.broadcast(peak, shape=x.type.shape, dims=kept)) if self.rank > 1 else (y, peak)
        return y


@pytest.mark.parametrize("seed", sweep.part(range(60)))
def test_random_chains_agree_with_the_interpreter_between_guard_pages(seed: int) -> None:
    c = Chains(seed)
    func = standard(build("f", [tensor_type(c.names)], c.body))
    p = Program(func, Target.named(c.rng.choice(("native", "native", "x86-64-v3"))))
    for k in range(5):
        shape = tuple(c.rng.choice((1, 2, 3, 4, 7, 8, 9, 17, 19) if k else (4,)) for _ in c.names)
        agree(func, p, np.random.default_rng(seed + k).normal(size=shape))


def test_a_number_repeated_in_memory_is_one_number_at_the_edges_too() -> None:
    """What a scan captures may be a broadcast: one element, whatever its shape says."""
    n = dims.symbol("n")
    m = dims.maximum(0, n - 1)
    body = Block([tensor_type([m]), tensor_type([n])])
    inner = Builder(body)
    number, row = body.args
    out = inner.full(shape=(n,), value=0, dtype=row.type.dtype)
    for start in (0, 1):
        out = inner.insert_add(out, inner.mul(number, inner.slice(row, starts=(start,), sizes=(m,), steps=(1,))), starts=(start,), steps=(1,))
    body.outputs = [out]

    def f(b: Any, rows: Any, x: Any) -> Any:
        return b.emit("scan", [b.broadcast(x, shape=(m,), dims=()), rows], {"consts": 1, "carry": 0, "length": 2}, [body])[0]

    func = standard(build("f", [tensor_type([2, n]), tensor_type([])], f))
    p = Program(func)
    for size in SIZES[1:]:
        agree(func, p, np.random.default_rng(size).normal(size=(2, size)), np.array(3.0))
