"""scan and cond: values against plain loops, and derivatives in both modes to second order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import optable
import pytest

import aotgrad as ag
from aotgrad.frontend.pytree import tree_flatten
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


def test_weights_in_products_get_their_gradient_behind_the_loop() -> None:
    """One product over all rounds; none inside has the size of the weights. One is used twice, one also outside of products, one by columns."""
    def rnn(w: Any, u: Any, v: Any, xs: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            h = ag.tanh(h @ w + x @ w) + ag.sin(x @ u.T)
            return h, (h @ v + v.sum()).sum()

        h, ys = ag.scan(step, xs[0] * 0.5, xs)
        return (h * h).sum() + ys.sum()

    rng = np.random.default_rng(6)
    w, u, v = (rng.normal(size=(60, 60)) / 8 for _ in range(3))
    for rounds in (0, 1, 9):
        xs = rng.normal(size=(max(rounds, 1), 2, 60))
        f = ag.grad(lambda w, u, v, xs, rounds=rounds: rnn(w, u, v, xs) if rounds else ag.scan(lambda h, x: (h @ w, None), xs[0], xs[:0])[0].sum() + (u * v).sum(),
                    argnums=(0, 1, 2, 3))
        c = ag.compile(f)
        for got, want in zip(c(w, u, v, xs), f(w, u, v, xs)):
            np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)
    inside = [i for k in c.explain(w, u, v, xs).kernels for i in k.inside]
    assert sum(i.written >= w.nbytes for i in inside) == 1  # of v, which is not only in products
    assert max(abs(a - b).max() for a, b in zip(f(w, u, v, xs)[0:1], [_numeric(lambda w: rnn(w, u, v, xs), w)])) < 1e-5


def _numeric(f: Any, x: Any) -> Any:
    """A gradient by central differences, of the first row."""
    out = ag.grad(f)(x).copy()
    for j in range(x.shape[1]):
        step = np.zeros_like(x)
        step[0, j] = 1e-6
        out[0, j] = (f(x + step) - f(x - step)) / 2e-6
    return out


def test_derivatives_of_loops_with_products_to_second_order() -> None:
    def step(b: Builder, w: Any, h: Any, x: Any) -> Any:
        new = b.tanh(b.add(b.dot(h, b.permute(w, perm=(1, 0))), b.dot(x, w)))
        return new, b.dot(new, w)

    region = body([([3, 3],), ([2, 3],), ([2, 3],)], step)
    func = build("f", [tensor_type([3, 3]), tensor_type([2, 3]), tensor_type([4, 2, 3])],
                 lambda b, *ins: list(b.emit("scan", list(ins), {"consts": 1, "carry": 1, "length": 4}, (region,))))
    rng = np.random.default_rng(7)
    optable.check_derivatives(func, [rng.normal(size=s) / 2 for s in ((3, 3), (2, 3), (4, 2, 3))], rng)


def test_factors_that_are_larger_than_what_rounds_keep_are_not_stacked() -> None:
    """A round makes a row of scores for every key, and keeps none: stacked, their cotangents would be a matrix of all rows."""
    def scores(k: Any, q: Any) -> Any:
        return ag.scan(lambda c, x: (c + (x @ k.T).sum(), None), np.zeros(()), q)[0]

    f = ag.compile(ag.grad(scores))
    k, q = np.random.default_rng(8).normal(size=(2, 400, 8))
    assert f.explain(k, q.reshape(400, 1, 8)).workspace < 400 * 400 * 8
    np.testing.assert_allclose(f(k, q.reshape(400, 1, 8)), np.tile(q.sum(0), (400, 1)), rtol=1e-10)


def test_branches_of_made_arrays_serve_all_sizes() -> None:
    """Sizes that ``zeros_like`` and factories take over are compared as sizes, not as the text of their numbers."""
    for other in (np.zeros_like, lambda x: ag.zeros(x.shape, dtype=ag.float64) + 0 * x, lambda x: np.full_like(x, 2.0)):
        f = ag.compile(lambda x, other=other: ag.cond(np.sum(x) > 0, lambda x: x * 3, other, x))  # type: ignore[misc]
        for x in (np.ones((3, 2)), -np.ones((4, 2)), -np.ones((5, 6)), np.ones((0, 2))):
            np.testing.assert_array_equal(f(x), np.asarray(x * 3 if np.sum(x) > 0 else other(x)))
        assert f.cache_info().traces == 1


@pytest.mark.parametrize("carry", [np.float64(2.0), None, ag.tensor(2.0)], ids=["array", "nothing", "tensor"])
def test_no_steps_over_tensors_give_tensors(carry: Any) -> None:
    x = ag.tensor([1.0, 2.0])

    def step(c: Any, r: Any) -> Any:
        return c, r * 2.0

    for run in (lambda x: ag.scan(step, carry, x)[1], lambda x: ag.map(lambda r: r * 2.0, x)):
        some, none = run(x), run(x[:0])
        assert type(none) is type(some) is ag.Tensor and none.dtype is some.dtype and none.shape == (0,)
        assert (none * np.ones(1)).dtype is (some * np.ones(1)).dtype


@pytest.mark.parametrize("make", [lambda n: np.ones(n), lambda n: ag.ones(n)], ids=["array", "tensor"])
def test_gradient_of_no_steps(make: Any) -> None:
    def f(x: Any) -> Any:
        return ag.scan(lambda c, r: (c + r * r, None), 0.0, x)[0]

    for g in (ag.grad(f), ag.compile(ag.grad(f)), lambda x: ag.value_and_grad(f)(x)[1]):
        assert g(make(0)).shape == (0,) and g(make(3)).tolist() == [2.0, 2.0, 2.0]


# ---- writes of bodies and branches ------------------------------------------------------------------------------------------------------

def _zeroed(i: Any, c: Any) -> Any:
    c[i] = 0.0
    return c


def _doubled(c: Any) -> Any:
    c *= 2.0
    return c


def _crossed(_: Any, c: Any) -> Any:
    a, b = c
    a[0] = b[1]
    return b, a


def _then_written(made: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def f(a: Any) -> Any:
        t = made(a)
        a[0] = 9.0
        return t

    return f


WRITES: dict[str, Callable[[Any], Any]] = {
    "fori_loop": lambda a: ag.fori_loop(0, 2, _zeroed, a),
    "scan": lambda a: ag.scan(lambda c, i: (_zeroed(i, c), c), a, np.arange(2)),
    "scan that gives a view": lambda a: ag.scan(lambda c, i: (_zeroed(i, c), c[:2]), a, np.arange(2)),
    "rows": lambda a: ag.scan(lambda c, r: (c + 1.0, _doubled(r)), 0.0, a.reshape(3, 1)),
    "map": lambda a: ag.map(_doubled, a.reshape(3, 1)),
    "cond": lambda a: ag.cond(a[0] > 0.0, _doubled, lambda p: p, a),
    "known cond": lambda a: ag.cond(True, _doubled, lambda p: p, a),
    "one array twice": lambda a: ag.fori_loop(0, 3, _crossed, (a, a)),
    "an array from outside": lambda a: ag.fori_loop(0, 2, lambda i, c: _doubled(c) if i is None else a, a * 1.0) * a,
    "no round": _then_written(lambda a: ag.fori_loop(0, 0, _zeroed, a)),
    "written later": _then_written(lambda a: ag.cond(a[0] > 0.0, lambda p: p, _doubled, a)),
    "what was outside, written later": _then_written(lambda a: ag.fori_loop(0, 2, lambda i, c: a, a)),
}


@pytest.mark.parametrize("name", WRITES)
def test_bodies_and_branches_have_values_of_their_own(name: str) -> None:
    """Their writes reach what they return alone, and later writes reach no result: eagerly as compiled."""
    x, v = np.array([1.0, 2.0, 3.0]), np.array([0.3, -0.7, 0.2])

    def f(x: Any) -> Any:
        a = x * 1.0
        return WRITES[name](a), a

    def flat(tree: Any) -> list[Any]:
        return [np.asarray(y.detach() if isinstance(y, ag.Tensor) else y) for y in tree_flatten(tree)[0]]

    want, slope = flat(ag.compile(f)(x)), flat(ag.compile(lambda x: ag.jvp(f, (x,), (v,))[1])(x))
    roads = [f(x), f(ag.tensor(x)), f(ag.tensor(x, requires_grad=True)), ag.jvp(f, (x,), (v,))[0], [y[0] for y in tree_flatten(ag.vmap(f)(x[None]))[0]]]
    for found in roads:
        for got, y in zip(flat(found), want, strict=True):
            np.testing.assert_array_equal(got, y)
    for got, y in zip(flat(ag.jvp(f, (x,), (v,))[1]), slope, strict=True):
        np.testing.assert_array_equal(got, y)
    a = x.copy()
    WRITES[name](a)
    np.testing.assert_array_equal(a[1:], x[1:])


def test_writes_in_a_while_loop_stay_inside() -> None:
    a = np.array([1.0, 2.0])
    assert ag.while_loop(lambda c: c[0] < 10.0, _doubled, a)[0] == 16.0
    np.testing.assert_array_equal(a, [1.0, 2.0])
