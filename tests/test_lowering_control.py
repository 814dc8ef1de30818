"""Scan and cond compiled: carries in registers, in place, or in two buffers; nested; reversed; length 0."""

from __future__ import annotations

from typing import Any

import numpy as np
from lowering_harness import Program

from aotgrad.ir import interp, ops, tensor_type
from aotgrad.ir.builder import Builder, build
from aotgrad.ir.core import Block, Func
from aotgrad.ir.dims import symbol
from aotgrad.ir.transforms.cleanup import standard
from aotgrad.ir.transforms.differentiate import vjp_func

assert ops
RNG = np.random.default_rng(1)
F64 = tensor_type([])


def region(types: Any, body: Any) -> Block:
    block = Block(types)
    out = body(Builder(block), *block.args)
    block.outputs = list(out) if isinstance(out, (tuple, list)) else [out]
    return block


def scan(b: Any, consts: Any, carry: Any, xs: Any, length: Any, body: Any, reverse: bool = False) -> Any:
    types = [v.type for v in (*consts, *carry)] + [tensor_type(x.type.shape[1:], x.type.dtype) for x in xs]
    attrs = {"consts": len(consts), "carry": len(carry), "length": length, "reverse": reverse}
    return b.emit("scan", [*consts, *carry, *xs], attrs, (region(types, body),))


def check(func: Func, *arrays: Any, guard: bool | None = True) -> Program:
    p = Program(standard(func))
    compare(func, p, *arrays, guard=guard)
    return p


def compare(func: Func, p: Program, *arrays: Any, guard: bool | None = True) -> None:
    got, want = p(*arrays, guard=guard), interp.run(func, *arrays)
    for g, w in zip(got if isinstance(got, tuple) else (got,), want):
        np.testing.assert_allclose(g, w, rtol=1e-13, atol=1e-13)


def report(p: Program) -> dict[str, Any]:
    return next(k for k in p.meta["kernels"] if k["kind"] == "scan")


def test_scalar_carry_is_in_registers() -> None:
    n = symbol("n")
    func = build("f", [F64, tensor_type([n])], lambda b, s, x: scan(b, (), (s,), (x,), n, lambda b, c, v: (b.add(b.mul(c, b.cos(c)), v), b.mul(c, v))))
    p = check(func, np.array(0.3), RNG.normal(size=7))
    assert report(p)["registers"] == 1 and p.meta["workspace"] == 0
    for k in (0, 1, 2):
        compare(func, p, np.array(0.3), RNG.normal(size=k))


def test_reverse() -> None:
    def step(b: Any, c: Any, v: Any) -> Any:
        return b.add(c, b.sum(v, dims=(0,))), b.mul(v, b.expand(c, (3,)))

    check(build("f", [F64, tensor_type([5, 3])], lambda b, s, x: scan(b, (), (s,), (x,), 5, step, True)), np.array(1.0), RNG.normal(size=(5, 3)))


def test_array_carry_takes_two_buffers() -> None:
    def step(b: Any, a: Any, c: Any) -> Any:
        column = b.reshape(c, shape=(4, 1))
        return b.tanh(b.reshape(b.dot(a, column), shape=(4,)))

    for length in (0, 1, 2, 5):
        func = build("f", [tensor_type([4, 4]), tensor_type([4])], lambda b, a, x, n=length: scan(b, (a,), (x,), (), n, step))
        p = check(func, RNG.normal(size=(4, 4)), RNG.normal(size=4))
        assert length < 2 or report(p)["double"] == 1


def test_one_row_written_in_a_carried_array_costs_one_row() -> None:
    def step(b: Any, i: Any, table: Any, v: Any) -> Any:
        row = b.reshape(v, shape=(1, 3))
        after = b.scatter(table, i, b.reshape(row, shape=(3,)), dim=0)
        return b.add(i, b.full_like(i, 1)), after

    n = symbol("n")
    func = build("f", [tensor_type([1000, 3]), tensor_type([n, 3])],
                 lambda b, t, x: scan(b, (), (b.scalar(0, b.iota(shape=(1,)).type.dtype), t), (x,), n, step))
    p = check(func, RNG.normal(size=(1000, 3)), RNG.normal(size=(6, 3)))
    assert report(p)["in place"] == 1 and report(p)["double"] == 0
    assert p.meta["workspace"] == 64 or p.meta["workspace"] == 0


def test_fibonacci_style_swap_of_carries() -> None:
    func = build("f", [tensor_type([3]), tensor_type([3])], lambda b, x, y: scan(b, (), (x, y), (), 5, lambda b, p, q: (q, b.add(p, q))))
    check(func, RNG.normal(size=3), RNG.normal(size=3))


def test_same_start_for_two_carries_and_a_carry_that_stays() -> None:
    func = build("f", [tensor_type([3])], lambda b, x: scan(b, (), (x, x, x), (), 4, lambda b, p, q, r: (b.add(p, q), b.mul(q, q), r)))
    check(func, RNG.normal(size=3) * 0.5)


def test_nested_scans_with_stacked_results() -> None:
    def inner(b: Any, w: Any, c: Any, v: Any) -> Any:
        return b.add(b.mul(c, w), v), b.sin(c)

    def outer(b: Any, w: Any, c: Any, row: Any) -> Any:
        last, stack = scan(b, (w,), (c,), (row,), 4, inner)
        return last, stack, b.sum(stack, dims=(0, 1))

    func = build("f", [tensor_type([2]), tensor_type([2]), tensor_type([3, 4, 2])], lambda b, w, c, x: scan(b, (w,), (c,), (x,), 3, outer))
    check(func, RNG.normal(size=2), RNG.normal(size=2), RNG.normal(size=(3, 4, 2)))


def test_derivatives_of_a_scan() -> None:
    n = symbol("n")

    def step(b: Any, w: Any, h: Any, v: Any) -> Any:
        z = b.reshape(b.dot(w, b.reshape(h, shape=(4, 1))), shape=(4,))
        out = b.tanh(b.add(z, v))
        return out, b.sum(out, dims=(0,))

    func = build("f", [tensor_type([4, 4]), tensor_type([4]), tensor_type([n, 4])], lambda b, w, h, x: scan(b, (w,), (h,), (x,), n, step))
    vjp = vjp_func(func, [True, True, True])
    vjp.name = "f"
    p = Program(standard(vjp))
    for k in (0, 1, 6):
        args = [RNG.normal(size=s) for s in ((4, 4), (4,), (k, 4), (4,), (k,))]
        compare(vjp, p, *args)


def test_cond_of_arrays_and_scalars() -> None:
    def body(b: Any, x: Any, s: Any) -> Any:
        then = region([x.type, s.type], lambda b, x, s: (b.exp(x), b.mul(s, s)))
        other = region([x.type, s.type], lambda b, x, s: (b.mul(x, b.expand(s, x.type.shape)), s))
        return b.emit("cond", [b.gt(s, b.full_like(s, 0)), x, s], {}, (then, other))

    func = build("f", [tensor_type(["n"]), F64], body)
    p = Program(standard(func))
    for s in (1.5, -0.5):
        for n in (0, 1, 9):
            compare(func, p, RNG.normal(size=n), np.array(s))


def test_cond_inside_a_scan() -> None:
    def step(b: Any, c: Any, v: Any) -> Any:
        grow = region([F64, F64], lambda b, c, v: b.add(c, v))
        shrink = region([F64, F64], lambda b, c, v: b.mul(c, v))
        return b.emit("cond", [b.gt(v, b.full_like(v, 0)), c, v], {}, (grow, shrink))[0]

    check(build("f", [F64, tensor_type([20])], lambda b, c, x: scan(b, (), (c,), (x,), 20, step)), np.array(0.5), RNG.normal(size=20))


def _lorenz(b: Any, y: Any) -> Any:
    x, u, z = (b.reshape(b.slice(y, starts=(i,), sizes=(1,), steps=(1,)), shape=()) for i in range(3))
    parts = (b.mul(b.scalar(10.0, y.type.dtype), b.sub(u, x)), b.sub(b.mul(x, b.sub(b.scalar(28.0, y.type.dtype), z)), u), b.sub(b.mul(x, u), z))
    return b.concatenate(*(b.reshape(v, shape=(1,)) for v in parts), dim=0)


def test_state_of_a_small_equation_stays_in_registers() -> None:
    n = symbol("n")

    def step(b: Any, y: Any, h: Any) -> Any:
        mid = b.add(y, b.mul(b.expand(b.mul(h, b.full_like(h, 0.5)), (3,)), _lorenz(b, y)))
        new = b.add(y, b.mul(b.expand(h, (3,)), _lorenz(b, mid)))
        return new, new

    func = build("f", [tensor_type([3]), tensor_type([n])], lambda b, y, h: scan(b, (), (y,), (h,), n, step))
    p = check(func, RNG.normal(size=3), np.full(20, 0.01))
    assert report(p)["registers"] == 3 and report(p)["double"] == 0
    for k in (0, 1):
        compare(func, p, RNG.normal(size=3), np.full(k, 0.01))
    vjp = vjp_func(func, [True, True])
    vjp.name = "f"
    p = Program(standard(vjp))
    assert all(k["double"] == 0 for k in p.meta["kernels"] if k["kind"] == "scan")
    for k in (0, 1, 9):
        compare(vjp, p, RNG.normal(size=3), np.full(k, 0.01), RNG.normal(size=3), RNG.normal(size=(k, 3)))


def test_tiny_functions_become_straight_line_code() -> None:
    def body(b: Any, x: Any, w: Any) -> Any:
        y = b.cumsum(b.concatenate(b.sin(x), w, dim=0), dim=0, reverse=True)
        z = b.insert_add(b.permute(b.reshape(y, shape=(2, 3)), perm=(1, 0)), b.full(shape=(1, 2), value=2.0, dtype=y.type.dtype), starts=(1, 0), steps=(1, 1))
        return z, b.sum(z, dims=(0,)), b.amax(z, dims=(1,)), b.iota(shape=(3,))

    func = build("f", [tensor_type([3]), tensor_type([3])], body)
    p = check(func, RNG.normal(size=3), RNG.normal(size=3))
    assert not any(k.get("loops") for k in p.meta["kernels"])


def test_results_in_registers_are_read_when_the_body_has_run() -> None:
    """Each buffer of the body gives numbers to a stack, which are read at its end; the next buffers must not take its place before."""
    n = symbol("n")

    def step(b: Any, w: Any, c: Any) -> Any:
        found = []
        for _ in range(5):
            parts = [b.reshape(b.slice(c, starts=(k,), sizes=(1,), steps=(1,)), shape=()) for k in (1, 0)]
            found += parts
            c = b.zeros(c)
            for k, part in enumerate(parts):
                value = b.reshape(b.mul(part, b.reshape(b.slice(w, starts=(k,), sizes=(1,), steps=(1,)), shape=())), shape=(1,))
                c = b.insert_add(c, value, starts=(k,), steps=(1,))
        return (c, *found)

    func = build("f", [tensor_type([n]), tensor_type([2])], lambda b, w, c: scan(b, (w,), (c,), (), 3, step))
    # An array of unknown size in the body keeps it from being written in scalars.
    wide = build("f", [tensor_type([n]), tensor_type([2])], lambda b, w, c: scan(b, (), (w, c), (), 3, lambda b, w, c: (b.sin(w), *step(b, w, c))))
    for f in (func, wide):
        check(f, RNG.normal(size=2), RNG.normal(size=2))


def test_one_row_scanned_without_a_carry() -> None:
    """A computed array of one element is a number anywhere else; a scan reads its rows in memory."""

    def body(b: Any, x: Any) -> Any:
        one = b.slice(b.sin(x), starts=(0,), sizes=(1,), steps=(2,))
        return scan(b, (), (), (one, one), 1, lambda b, u, v: b.add(u, v))

    check(build("f", [tensor_type([2])], body), RNG.normal(size=2))


def test_derivative_of_a_loop_around_a_loop_of_constant_results() -> None:
    """The inner loop is given what is differentiated and makes nothing of it: its linear part has no results."""

    def outer(b: Any, x: Any, c: Any) -> Any:
        inner = scan(b, (c, x), (x,), (), 1, lambda b, c, x, y: b.sin(x))[0]
        return b.mul(c, b.cos(c)), inner

    func = build("f", [tensor_type([2]), tensor_type([2])], lambda b, x, c: scan(b, (x,), (c,), (), 3, outer))
    vjp = vjp_func(func, [False, True])
    vjp.name = "f"
    check(vjp, *(RNG.normal(size=s) for s in (2, 2, 2, (3, 2))))
