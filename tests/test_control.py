"""scan and cond: values against plain loops, and derivatives in both modes to second order."""

from __future__ import annotations

from typing import Any

import numpy as np
import optable
import pytest

import aotgrad as ag
from aotgrad.ir import Block, Builder, Func, build, interp, tensor_type
from aotgrad.ir.transforms.differentiate import vjp_func


def body(types: Any, fn: Any) -> Block:
    block = Block([tensor_type(*t) for t in types])
    block.outputs = list(fn(Builder(block), *block.args))
    return block


def scan_func(reverse: bool = False, length: int = 4) -> Func:
    """h' = tanh(w * h + x); y = h' * x; the last h and all y."""

    def step(b: Builder, w: Any, h: Any, x: Any) -> Any:
        new = b.tanh(b.add(b.mul(w, h), x))
        return new, b.mul(new, x)

    region = body([([3],), ([3],), ([3],)], step)
    return build("f", [tensor_type([3]), tensor_type([3]), tensor_type([length, 3])],
                 lambda b, w, h, x: b.emit("scan", [w, h, x], {"consts": 1, "carry": 1, "length": length, "reverse": reverse}, (region,)))


def plain(w: Any, h: Any, x: Any, reverse: bool) -> Any:
    ys = np.zeros_like(x)
    for i in (reversed(range(len(x))) if reverse else range(len(x))):
        h = np.tanh(w * h + x[i])
        ys[i] = h * x[i]
    return h, ys


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [4, 1, 0])
def test_scan(reverse: bool, length: int) -> None:
    rng = np.random.default_rng(1)
    func = scan_func(reverse, length)
    arrays = [rng.normal(size=3), rng.normal(size=3), rng.normal(size=(length, 3))]
    for a, b in zip(interp.run(func, *arrays), plain(*arrays, reverse)):
        np.testing.assert_allclose(a, b, rtol=1e-15)
    optable.check_derivatives(func, arrays, rng)


def test_scan_with_a_carry_that_becomes_active_late() -> None:
    region = body([([],), ([],), ([],)], lambda b, a, c, x: (c, b.mul(x, b.sin(a))))
    func = build("f", [tensor_type([]), tensor_type([]), tensor_type([3])],
                 lambda b, a, c, xs: b.emit("scan", [a, c, xs], {"consts": 0, "carry": 2, "length": 3},
                                       (body([([],), ([],), ([],)], lambda b, a, c, x: (c, b.mul(x, b.sin(a)))),)))
    assert len(region.outputs) == 2
    rng = np.random.default_rng(2)
    optable.check_derivatives(func, [np.array(0.3), np.array(0.7), rng.normal(size=3)], rng)


def cond_func() -> Func:
    then = body([([3],), ([3],)], lambda b, x, y: (b.mul(b.sin(x), y),))
    other = body([([3],), ([3],)], lambda b, x, y: (b.exp(y),))
    return build("f", [tensor_type([], "bool"), tensor_type([3]), tensor_type([3])], lambda b, p, x, y: b.emit("cond", [p, x, y], {}, (then, other)))


@pytest.mark.parametrize("p", [True, False])
def test_cond(p: bool) -> None:
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=3), rng.normal(size=3)
    func = cond_func()
    np.testing.assert_allclose(interp.run(func, np.array(p), x, y)[0], np.sin(x) * y if p else np.exp(y), rtol=1e-15)
    optable.check_derivatives(func, [np.array(p), x, y], rng)


def test_loop_carried_write_has_the_gradient_of_the_recurrence() -> None:
    """e[0] = 0; e[i+1] = 0.5 e[i] + t for i < 3; e[3] at t = 2 is 3.5 with slope 1.75."""

    def step(b: Builder, t: Any, e: Any, i: Any) -> Any:
        one = b.scalar(1, i.type.dtype)
        nxt = b.add(b.mul(b.take(e, i, dim=0), b.scalar(0.5, t.type.dtype)), t)
        return (b.scatter(e, b.add(i, one), nxt, dim=0),)

    region = body([([],), ([4],), ([], "int64")], step)

    def whole(b: Builder, t: Any) -> Any:
        e = b.full(shape=(4,), value=0.0, dtype=t.type.dtype)
        idx = b.array(np.arange(3))
        out = b.emit("scan", [t, e, idx], {"consts": 1, "carry": 1, "length": 3}, (region,))[0]
        return b.take(out, b.array(np.int64(3)), dim=0)

    func = build("f", [tensor_type([])], whole)
    assert float(interp.run(func, np.array(2.0))[0]) == 3.5
    value, slope = interp.run(vjp_func(func, [True]), np.array(2.0), np.array(1.0))
    assert (float(value), float(slope)) == (3.5, 1.75)
    optable.check_derivatives(func, [np.array(2.0)], np.random.default_rng(0))


def test_what_every_round_computes_alike_is_saved_once() -> None:
    """The transposed weights, the exponential of one, a number: for the backward pass they are needed as they are, not once for each round."""
    def rnn(w: Any, a: Any, xs: Any) -> Any:
        return ag.scan(lambda h, x: (ag.tanh(h @ w.T + ag.exp(a) * h + x), None), xs[0], xs)[0].sum()

    rng = np.random.default_rng(5)
    w, a, xs = rng.normal(size=(40, 40)) / 8, rng.normal(size=40), rng.normal(size=(300, 2, 40))
    gradient = ag.grad(rnn, argnums=(0, 1, 2))
    f = ag.compile(gradient)
    assert f.explain(w, a, xs).workspace < 8 * xs.nbytes < 300 * w.nbytes
    for got, want in zip(f(w, a, xs), gradient(w, a, xs)):  # eagerly, op by op
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


def test_a_loop_of_no_rounds_refuses_no_index_for_its_derivative() -> None:
    f = ag.compile(ag.grad(lambda x, i: ag.scan(lambda c, v: (c * x[i].sum() * v, None), x.sum(), x[:0])[0]))
    np.testing.assert_array_equal(f(np.ones(3), np.array([7])), np.ones(3))
