"""Arrays in Fortran's order, transposes and channels_last images as what loops and branches capture, carry, run over and give."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import sweep

import aotgrad as ag

F = ag.nn.functional
ORDERS = ["C", "F"]


def _numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape) * 0.5


def _same(f: Any, *args: Any, **options: Any) -> None:
    for got, want in zip(_leaves(ag.compile(f, **options)(*args)), _leaves(f(*args)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def _leaves(tree: Any) -> list[Any]:
    return [x for t in tree for x in _leaves(t)] if isinstance(tree, (tuple, list)) else [np.asarray(tree)]


def _fori(A: Any, x: Any) -> Any:
    return ag.fori_loop(0, 3, lambda i, c: np.tanh(c @ A + x.T), x)


def _scan(A: Any, xs: Any) -> Any:
    return ag.scan(lambda c, r: (np.tanh(c @ A + r), (c.T, r * c)), A.T, xs)


def _map(A: Any, xs: Any) -> Any:
    return ag.map(lambda r: r @ A + A, xs)


def _nested(A: Any, x: Any) -> Any:
    def inner(j: Any, d: Any) -> Any:
        return ag.cond(d.sum() > 0, lambda d: d @ A, lambda d: d.T - A, d)

    return ag.fori_loop(0, 2, lambda i, c: ag.fori_loop(0, 2, inner, c) + x, x)


LOOPS = {"fori": (_fori, (3, 3)), "scan": (_scan, (4, 3, 3)), "map": (_map, (4, 3, 3)), "nested": (_nested, (3, 3))}


@pytest.mark.parametrize(("name", "one", "other"), sweep.part(LOOPS, ORDERS, ORDERS, of=4))
def test_captured_and_carried_in_any_order(name: str, one: str, other: str) -> None:
    f, shape = LOOPS[name]
    A, x = np.asarray(_numbers(3, 3), order=one), np.asarray(_numbers(*shape, seed=1), order=other)
    _same(f, A, x)
    _same(lambda x: f(A, x), x)
    _same(lambda x: f(A.T, x), x, verify=1)

    def loss(A: Any, x: Any) -> Any:
        return sum((y * y).sum() for y in (lambda t: [t[0], *t[1]] if isinstance(t, tuple) else [t])(f(A, x)))

    _same(lambda A, x: ag.grad(loss, argnums=(0, 1))(A, x), A, x)
    _same(lambda A, x: ag.jvp(loss, (A, x), (A, x)), A, x)


@pytest.mark.parametrize("order", ORDERS)
def test_a_start_in_another_order_than_a_round_gives(order: str) -> None:
    x = np.asarray(_numbers(3, 3), order=order)
    _same(lambda x: ag.fori_loop(0, 3, lambda i, c: c.T + 1.0, x), x)
    _same(lambda x: ag.cond(x.sum() > 0, lambda c: c, lambda c: c.T, x), x)
    _same(lambda x: ag.cond(x.sum() < 0, lambda c: c, lambda c: c.T * 2.0, x), x)
    _same(lambda x: ag.scan(lambda c, _: (c, c), x, length=2), x)


def test_an_attribute_and_an_item_turned_in_the_body() -> None:
    class Model:
        A = _numbers(3, 3)

        def __call__(self, x: Any) -> Any:
            return ag.fori_loop(0, 2, lambda i, c: c @ self.A.T, x)

    _same(Model(), _numbers(3, 3, seed=1))
    _same(lambda p, x: ag.fori_loop(0, 2, lambda i, c: c @ p["A"].T, x), {"A": np.asfortranarray(_numbers(3, 3))}, _numbers(3, 3, seed=1))


@pytest.mark.parametrize(("one", "other"), [*itertools.product(ORDERS, ORDERS)])
def test_user_rules_host_calls_and_vmap(one: str, other: str) -> None:
    @ag.custom_vjp
    def product(x: Any, A: Any) -> Any:
        return x @ A

    product.defvjp(lambda x, A: (x @ A, (x, A)), lambda kept, g: (g @ kept[1].T, kept[0].T @ g))
    host = ag.host_call(lambda x, A: x @ A, lambda x, A: x, vjp=lambda xs, cts: [cts[0] @ xs[1].T, xs[0].T @ cts[0]])
    A, x = np.asarray(_numbers(3, 3), order=one), np.asarray(_numbers(3, 3, seed=1), order=other)
    for f in (product, host):
        _same(lambda x, A, f=f: f(x, A) + f(x.T, A.T), x, A)
        _same(lambda x, A, f=f: ag.grad(lambda x, A: (ag.fori_loop(0, 2, lambda i, c: f(c, A), x) ** 2).sum(), argnums=(0, 1))(x, A), x, A)
    _same(lambda A, xs: ag.vmap(lambda x: _fori(A, x))(xs), A, np.asarray(_numbers(4, 3, 3), order=other))


@pytest.mark.parametrize(("image", "weight"), [*itertools.product((False, True), (False, True))])
def test_channels_last_images(image: bool, weight: bool) -> None:
    def last(x: Any) -> Any:
        return x.to(memory_format=ag.channels_last)

    x, w = ag.tensor(_numbers(2, 3, 5, 5)), ag.tensor(_numbers(3, 3, 3, 3))
    x, w = last(x) if image else x, last(w) if weight else w

    def loop(x: Any, w: Any) -> Any:
        return ag.fori_loop(0, 2, lambda i, c: ag.tanh(F.conv2d(c, w, padding=1)) + x, x)

    for got, want in zip(ag.compile(ag.value_and_grad(lambda x, w: (loop(x, w) ** 2).sum(), argnums=(0, 1)))(x, w)[1],
                         ag.value_and_grad(lambda x, w: (loop(x, w) ** 2).sum(), argnums=(0, 1))(x, w)[1], strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(ag.compile(loop)(x, w).numpy(), loop(x, w).numpy(), rtol=1e-12, atol=1e-12)
