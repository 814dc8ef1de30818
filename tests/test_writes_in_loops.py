"""Loops that write parts of what they carry, in several shapes and in branches: in place wherever nobody reads the old array later, and only there.

Counted, not timed: what the bodies of loops copy. Values against loops of NumPy, derivatives against differences; buffers lie between guard pages, workspaces are
full of NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import sweep
from lowering_harness import Program
from test_lowering_control import region, scan

import aotgrad as ag
from aotgrad.ir import interp, ops, tensor_type
from aotgrad.ir.builder import build
from aotgrad.ir.transforms.cleanup import standard
from aotgrad.ir.transforms.differentiate import jvp_func, vjp_func
from aotgrad_runtime.dtypes import float64, int64

assert ops
Step = Callable[[Any, Any], Any]
N = 6


def rows_and_cells(c: Any, i: Any) -> Any:
    c = c.at[i].set(ag.sin(c[i - 1]))
    return c.at[i, 0].set(c[i - 1, 1] * c[i, 2])


def np_rows_and_cells(c: Any, i: int) -> None:
    c[i] = np.sin(c[i - 1])
    c[i, 0] = c[i - 1, 1] * c[i, 2]


def one_branch(c: Any, i: Any) -> Any:
    return ag.cond(i % 2 == 0, lambda d: d.at[i].set(ag.sin(d[i - 1])), lambda d: d, c)


def np_one_branch(c: Any, i: int) -> None:
    if i % 2 == 0:
        c[i] = np.sin(c[i - 1])


def both_branches(c: Any, i: Any) -> Any:
    def cell(d: Any) -> Any:
        return d.at[i, i].set(ag.sin(d[i - 1, i]) * d[i, 0])

    return ag.cond(c[i - 1, 0] > 0.3, cell, lambda d: d.at[i].set(d[i - 1] * 1.5), c)


def np_both_branches(c: Any, i: int) -> None:
    if c[i - 1, 0] > 0.3:
        c[i, i] = np.sin(c[i - 1, i]) * c[i, 0]
    else:
        c[i] = c[i - 1] * 1.5


def by_closure(c: Any, i: Any) -> Any:
    """The array is given and captured: one value, two roads."""
    return ag.cond(i % 3 == 0, lambda d: d.at[i].set(c[i - 1] * d[0]), lambda d: c, c)


def np_by_closure(c: Any, i: int) -> None:
    if i % 3 == 0:
        c[i] = c[i - 1] * c[0]


def loops_in_loops(c: Any, i: Any) -> Any:
    c = c.at[i].set(c[i - 1] * 0.5)
    return ag.scan(lambda d, j: (d.at[i, j].set(ag.sin(d[i - 1, j]) * d[i, j - 1]), None), c, np.arange(1, N))[0]


def np_loops_in_loops(c: Any, i: int) -> None:
    c[i] = c[i - 1] * 0.5
    for j in range(1, N):
        c[i, j] = np.sin(c[i - 1, j]) * c[i, j - 1]


def loop_in_a_branch(c: Any, i: Any) -> Any:
    def rows(d: Any) -> Any:
        return ag.scan(lambda e, j: (e.at[i, j].set(e[i, j - 1] * e[j, i]), None), d.at[i, 0].set(0.5), np.arange(1, 4))[0]

    return ag.cond(i % 2 == 1, lambda d: ag.cond(d[0, 0] > -9.0, rows, lambda e: e, d), lambda d: d.at[i].set(ag.sin(d[i - 1])), c)


def np_loop_in_a_branch(c: Any, i: int) -> None:
    if i % 2 == 1:
        c[i, 0] = 0.5
        for j in range(1, 4):
            c[i, j] = c[i, j - 1] * c[j, i]
    else:
        c[i] = np.sin(c[i - 1])


def known_places(c: Any, i: Any) -> Any:
    c = c.at[0].set(ag.sin(c[i]))
    return c.at[i, 1].set(c[0, 1] * 0.3).at[2:4, 1:3].add(c[i, 0])


def np_known_places(c: Any, i: int) -> None:
    old = c[i, 0]
    c[0] = np.sin(c[i])
    c[i, 1] = c[0, 1] * 0.3
    c[2:4, 1:3] += old


def apart(c: Any, i: Any) -> Any:
    """Indices with a whole dim between them, columns, and rows of the transposed array."""
    c = c.at[:, i].set(ag.sin(c[:, i - 1]))
    d = c.reshape(2, 3, N)
    d = d.at[i % 2, :, i].set(d[1, :, i - 1] * d[i % 2, :, 0])
    d = d.at[1 - i % 2, :, 1].add(d[i % 2, :, i])
    d = d.at[i % 2, 1:, i].set(d[0, :2, 0])
    e = d.reshape(N, N).T
    return e.at[i, 2:4].set(e[2:4, 0] * 0.5).T


def np_apart(c: Any, i: int) -> None:
    c[:, i] = np.sin(c[:, i - 1])
    d, k = c.reshape(2, 3, N), i % 2
    d[k, :, i] = d[1, :, i - 1] * d[k, :, 0]
    d[1 - k, :, 1] += d[k, :, i]
    d[k, 1:, i] = d[0, :2, 0]
    c[2:4, i] = c[0, 2:4] * 0.5


def known_rows(c: Any, i: Any) -> Any:
    """Rows and an element at known places, read after they were written over, and in the gradient after they were set to zero."""
    old, corner = c[0], c[1, 0]
    c = c.at[0].set(c[0] * c[i])
    c = c.at[1].set(old * c[2])
    return c.at[i, 1].set(corner * c[0, 1])


def np_known_rows(c: Any, i: int) -> None:
    old, corner = c[0].copy(), c[1, 0]
    c[0] *= c[i]
    c[1] = old * c[2]
    c[i, 1] = corner * c[0, 1]


PROGRAMS: dict[str, tuple[Step, Callable[[Any, int], None]]] = {
    "rows and cells": (rows_and_cells, np_rows_and_cells), "one branch": (one_branch, np_one_branch), "both branches": (both_branches, np_both_branches),
    "by closure": (by_closure, np_by_closure), "loops in loops": (loops_in_loops, np_loops_in_loops), "loop in a branch": (loop_in_a_branch, np_loop_in_a_branch),
    "known places": (known_places, np_known_places), "apart": (apart, np_apart), "known rows": (known_rows, np_known_rows),
}


def looped(step: Step) -> Callable[[Any], Any]:
    return lambda p: ag.scan(lambda c, i: (step(c, i), None), p, np.arange(1, N))[0]


def eager(f: Callable[[Any], Any], p: Any) -> Any:
    """One operation after the other, nothing in place."""
    return np.asarray(f(ag.tensor(p)))


def start() -> Any:
    return np.random.default_rng(3).uniform(0.2, 1.2, (N, N))


def rounds(kernels: Any, inside: bool = False) -> Iterator[Any]:
    """Kernels that run in rounds of loops, branches and loops themselves left out."""
    for k in kernels:
        if inside and not k.inside:
            yield k
        yield from rounds(k.inside, inside or k.name == "scan")


def loops(kernels: Any) -> Iterator[Any]:
    for k in kernels:
        if k.name == "scan":
            yield k
        yield from loops(k.inside)


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_what_a_round_copies(name: str) -> None:
    step, plain = PROGRAMS[name]
    f, p, want = ag.compile(looped(step)), start(), start()
    for i in range(1, N):
        plain(want, i)
    np.testing.assert_allclose(f(p), want, rtol=1e-13)
    traced = Program(standard(f.trace(p)))
    more = [np.arange(1, int(t.shape[0]) + 1) for t in traced.func.arg_types[1:]]  # the numbers of each loop's rounds
    for guard in (True, False):
        np.testing.assert_allclose(traced(p, *more, guard=guard), want, rtol=1e-13)
    gradient = ag.compile(ag.grad(lambda p: (looped(step)(p) ** 2).sum()))
    gradient(p)
    for g in (f, gradient):
        found = g.explain(p).kernels
        assert all(" 0 copied" in k.how for k in loops(found))
        assert max(k.written for k in rounds(found)) <= 2 * N * 8, "a row and its derivative, not the array"


@pytest.mark.parametrize("name", sweep.part(PROGRAMS, of=9))
def test_derivatives(name: str) -> None:
    f, p = looped(PROGRAMS[name][0]), start()
    v, w, h = (np.random.default_rng(k).normal(size=(N, N)) for k in (4, 5, 6))

    def first(p: Any, v: Any) -> Any:
        return ag.jvp(f, (p,), (v,))[1]

    def slope(f: Any, h: Any) -> Any:
        return (np.asarray(f(p + 1e-6 * h)) - np.asarray(f(p - 1e-6 * h))) / 2e-6

    tangent = ag.compile(first)(p, v)
    np.testing.assert_allclose(tangent, slope(ag.compile(f), v), rtol=1e-7, atol=1e-7)
    reverse = ag.compile(ag.grad(lambda p: (f(p) * w).sum()))
    np.testing.assert_allclose((reverse(p) * v).sum(), (tangent * w).sum(), rtol=1e-10)
    second = slope(reverse, h)
    np.testing.assert_allclose(ag.compile(lambda p: ag.jvp(ag.grad(lambda p: (f(p) * w).sum()), (p,), (h,))[1])(p), second, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(ag.compile(ag.grad(lambda p: (ag.grad(lambda p: (f(p) * w).sum())(p) * h).sum()))(p), second, rtol=1e-6, atol=1e-7)


def test_the_gradient_of_writes_at_several_indices_costs_what_they_write() -> None:
    """Of equal indices the last one counts: which it was is asked for in an array that is not filled first, as no other place of it is read."""
    def f(p: Any) -> Any:
        def step(c: Any, i: Any) -> Any:
            j, k = ag.stack([i, i - 1, i]), ag.stack([i - 1, i, i - 1])
            return c.at[j, k].set(ag.sin(c[k, j]) * p[0, :3]), None

        return (ag.scan(step, p, np.arange(1, N))[0] ** 2).sum()

    g, p = ag.compile(ag.grad(f)), start()
    np.testing.assert_allclose(g(p), ag.grad(f)(p), rtol=1e-12)
    assert max(k.written for k in rounds(g.explain(p).kernels)) <= 3 * 3 * 8, "three numbers each of what one loop makes"
    traced, rows = Program(standard(g.trace(p))), np.arange(1, N)
    np.testing.assert_allclose(traced(p, *[rows for _ in traced.func.arg_types[1:]], guard=True), g(p), rtol=1e-14)
    dropped = ag.compile(ag.grad(lambda v: ag.zeros(4, dtype=ag.float64).at[np.array([0, 9, 1, 0])].set(v).sum()), checks=False)
    np.testing.assert_array_equal(dropped(np.ones(4)), [0.0, 0.0, 1.0, 1.0])


# ---- where it must copy -----------------------------------------------------------------------------------------------------------------

def kept_in_a_value(c: Any, i: Any) -> Any:
    new = c.at[i].set(ag.sin(c[i - 1]))
    return new.at[i, 0].set((c * new).sum())


def kept_in_a_branch(c: Any, i: Any) -> Any:
    def both(d: Any) -> Any:
        new = d.at[i].set(ag.sin(d[i - 1]))
        return new.at[i, 0].set(d[i, 0] + new[i, 1])

    return ag.cond(i % 2 == 0, both, lambda d: d.at[i, 1].set(c[i, 0]), c)


def kept_around_a_branch(c: Any, i: Any) -> Any:
    new = ag.cond(i % 2 == 0, lambda d: d.at[i].set(d[i - 1] * 0.5), lambda d: d, c)
    return new.at[i, 1].set(c[i, 1] + (c * c).sum())


def turned(c: Any, i: Any) -> Any:
    return ag.cond(i % 2 == 0, lambda d: d.T.at[i].set(d[i - 1]), lambda d: d.at[i].set(d[:, i]), c)


def scaled_in_a_branch(c: Any, i: Any) -> Any:
    return ag.cond(i % 3 == 0, lambda d: d * 0.5, lambda d: d.at[i].set(ag.sin(d[i - 1])), c)


def of_a_view(c: Any, i: Any) -> Any:
    return ag.cond(i % 2 == 0, lambda d, e: d.at[i].set(e[i] + e[0]), lambda d, e: d.at[0].set(e[1]), c, c[::-1])


@pytest.mark.parametrize("step", sweep.part([kept_in_a_value, kept_in_a_branch, kept_around_a_branch, turned, scaled_in_a_branch, of_a_view], of=3))
def test_old_values_that_are_read_later(step: Step) -> None:
    """Against the same steps in Python, one operation after the other."""
    p, f = start(), looped(step)
    np.testing.assert_allclose(ag.compile(f)(p), eager(f, p), rtol=1e-12)
    g = ag.grad(lambda p: (f(p) ** 2).sum())
    np.testing.assert_allclose(ag.compile(g)(p), g(p), rtol=1e-11)


def pair(step: Callable[[Any, Any, Any], Any]) -> Callable[[Any], Any]:
    def f(p: Any) -> Any:
        return ag.scan(lambda c, i: (step(*c, i), c[0][i]), (p, p), np.arange(1, N))

    return lambda p: sum((x * x).sum() for x in (lambda found: (*found[0], found[1]))(f(p)))


PAIRS: dict[str, Any] = {
    "swapped": lambda a, b, i: (b.at[i].set(a[i - 1]), a.at[i, 0].set(b[0, i])),
    "swapped in a branch": lambda a, b, i: ag.cond(i % 2 == 0, lambda x, y: (y, x), lambda x, y: (x.at[i].set(y[i - 1]), y), a, b),
    "crossed in a branch": lambda a, b, i: ag.cond(i % 2 == 0, lambda x, y: (y.at[i].set(x[0]), x.at[i].set(y[0])), lambda x, y: (x, x), a, b),
    "one of two": lambda a, b, i: (ag.cond(i % 2 == 0, lambda x, y: x.at[i].set(y[i - 1] * 0.5), lambda x, y: y, a, b), a),
    "given once, made twice": lambda a, b, i: ag.cond(i % 2 == 0, lambda x: (x.at[i].set(b[i]), x), lambda x: (x, x.at[0].set(b[1])), a),
    "one stays": lambda a, b, i: (a, b.at[i].set(a[i] * b[i - 1])),
}


@pytest.mark.parametrize("name", sweep.part(PAIRS, of=3))
def test_two_carries_that_start_as_one_array(name: str) -> None:
    p, f = start(), pair(PAIRS[name])
    np.testing.assert_allclose(ag.compile(f)(p), eager(f, p), rtol=1e-12)
    np.testing.assert_allclose(ag.compile(ag.grad(f))(p), ag.grad(f)(p), rtol=1e-11)


def test_a_carry_that_stays_is_left_alone() -> None:
    f, p = ag.compile(lambda p: ag.scan(lambda c, i: ((c[0], c[1].at[i].set(c[0][i] * c[1][i - 1])), None), (p, p * 2.0), np.arange(1, N))[0][1]), start()
    f(p)
    assert max(k.written for k in rounds(f.explain(p).kernels)) <= N * 8


def test_reads_outside_of_the_loop_see_what_was_there() -> None:
    def f(p: Any) -> Any:
        q = ag.sin(p)
        last = looped(rows_and_cells)(q)
        chosen = ag.cond(p[0, 0] > 0.0, lambda d: d.at[0].set(d[1]), lambda d: d, last)
        return (q * last).sum() + (last * chosen).sum(), q, last, chosen

    p = start()
    for got, want in zip(ag.compile(f)(p), f(ag.tensor(p))):
        np.testing.assert_allclose(got, np.asarray(want), rtol=1e-12)


@pytest.mark.parametrize("name", sweep.part(PROGRAMS, of=9))
def test_loops_of_examples_side_by_side(name: str) -> None:
    f, ps = looped(PROGRAMS[name][0]), np.stack([start(), start()[::-1] * 0.9, start().T])
    np.testing.assert_allclose(ag.compile(ag.vmap(f))(ps), np.stack([eager(f, p) for p in ps]), rtol=1e-12)


def lifted(c: Any, i: Any) -> Any:
    return ag.cond(c[0, 0] > 0.5, lambda d: d.at[0].set(ag.sin(d[i])).at[1, i].add(d[0, i]), lambda d: d.at[2:4].add(d[1] * 0.1), c)


def columns(c: Any, i: Any) -> Any:
    return ag.cond(c[i, 0] > 0.5, lambda d: d, lambda d: d.at[:, i].set(d[:, i - 1] * 0.5), c)


def with_more(c: Any, i: Any) -> Any:
    d, s = ag.cond(c[i, 0] > 0.5, lambda d: (d.at[i].set(ag.sin(d[i - 1])), d[0, i]), lambda d: (d, d[i, i] * 2.0), c)
    return d.at[0, i].set(s)


@pytest.mark.parametrize("step", sweep.part([lifted, columns, with_more], of=3))
def test_examples_that_choose_what_they_write(step: Step) -> None:
    """A branch for each example writes its parts, or what was there: no array is chosen from two."""
    f, ps = looped(step), np.stack([start(), start()[::-1] * 0.9, start().T])
    many, g = ag.compile(ag.vmap(f)), ag.compile(ag.grad(lambda ps: (ag.vmap(f)(ps) ** 2).sum()))
    np.testing.assert_allclose(many(ps), np.stack([eager(f, p) for p in ps]), rtol=1e-12)
    one = ag.grad(lambda p: (f(p) ** 2).sum())
    np.testing.assert_allclose(g(ps), np.stack([one(p) for p in ps]), rtol=1e-11)
    h = np.random.default_rng(1).normal(size=ps.shape)
    twice = ag.compile(lambda ps: ag.jvp(ag.grad(lambda ps: (ag.vmap(f)(ps) ** 2).sum()), (ps,), (h,))[1])
    np.testing.assert_allclose(twice(ps), np.stack([ag.jvp(one, (p,), (v,))[1] for p, v in zip(ps, h)]), rtol=1e-10, atol=1e-10)
    for made in (many, g):
        assert all(" 0 copied" in k.how for k in loops(made.explain(ps).kernels))


@pytest.mark.parametrize("other", [lambda d, i: d.T.at[i].set(d[0]), lambda d, i: d.T, lambda d, i: d[::-1].at[i, 0].set(2.0)])
def test_examples_that_choose_another_order(other: Any) -> None:
    f = looped(lambda c, i: ag.cond(c[i, 0] > 0.5, lambda d: d.at[i].set(ag.sin(d[i - 1])), lambda d: other(d, i), c))
    ps = np.stack([start(), start()[::-1] * 0.9, start().T])
    np.testing.assert_allclose(ag.compile(ag.vmap(f))(ps), np.stack([eager(f, p) for p in ps]), rtol=1e-12)


def test_indices_of_what_was_not_chosen_may_be_anything() -> None:
    f = ag.compile(ag.vmap(lambda c, k: ag.cond(k < N, lambda d: d.at[k].set(d[k] * 2.0).at[k, 0].add(1.0), lambda d: d.at[0, 1].set(-7.0), c), in_axes=(0, 0)))
    ps, k = np.stack([start(), -start()]), np.array([2, 99])
    want = ps.copy()
    want[0, 2] *= 2.0
    want[0, 2, 0] += 1.0
    want[1, 0, 1] = -7.0
    np.testing.assert_array_equal(f(ps, k), want)
    zeros = np.full((2, N, N), -0.0)
    assert np.signbit(np.asarray(f(zeros, k))[1]).all(), "zeros keep their sign where nothing is added"
    with pytest.raises(ag.AotgradIndexError, match="-9"):
        f(ps, np.array([2, -9]))


def test_images_that_lie_channels_last() -> None:
    x = np.random.default_rng(8).uniform(0.2, 1.0, (2, 3, 4, 4))

    def f(x: Any) -> Any:
        def step(c: Any, i: Any) -> Any:
            c = ag.cond(i % 2 == 0, lambda d: d.at[:, i - 1].set(d[:, i] * 0.5), lambda d: d, c.at[0, i, 1, 2].set(c[1, 0, i, i]))
            return c.at[1].set(ag.sin(c[1])), None

        return ag.scan(step, x, np.arange(1, 3))[0]

    def loss(x: Any) -> Any:
        return (f(x) ** 2).sum()

    t = ag.tensor(x).to(memory_format=ag.channels_last)
    np.testing.assert_allclose(ag.compile(f)(t).numpy(), eager(f, x), rtol=1e-12)
    np.testing.assert_allclose(np.asarray(ag.compile(ag.grad(loss))(t)), ag.grad(loss)(x), rtol=1e-12)


# ---- programs that nobody wrote -----------------------------------------------------------------------------------------------------------

SHAPE = (4, 3)
FORMS = ((4, 3), (12,), (2, 6), (2, 2, 3))
ORDERS = (((4, 3), (1, 0), (3, 4)), ((4, 3), (1, 0), (12,)), ((2, 2, 3), (0, 2, 1), (6, 2)), ((2, 2, 3), (1, 2, 0), (2, 3, 2)), ((2, 2, 3), (2, 1, 0), (3, 4)))


class Random:
    """A program of writes in several forms, of branches, loops and reads of old values."""

    def __init__(self, seed: int) -> None:
        self.rng, self.left = np.random.default_rng(seed), 14

    def pick(self, xs: Any) -> Any:
        return xs[self.rng.integers(len(xs))]

    def place(self, b: Any, i: Any, n: int) -> Any:
        return b.remainder(b.add(i, b.scalar(int(self.rng.integers(n)), int64)), b.scalar(n, int64))

    def write(self, b: Any, x: Any, i: Any, pool: Any) -> Any:
        kind, source = self.pick(("scatter", "scatter", "scatter_add", "insert", "insert_add")), x if self.rng.random() < 0.5 else self.pick(pool)
        shape = first = self.pick(FORMS)
        perm = tuple(range(len(shape)))
        if self.rng.random() < 0.5:
            first, perm, shape = self.pick(ORDERS)

        def turned(x: Any) -> Any:
            return b.to_shape(b.to_perm(b.to_shape(x, first), perm), shape)

        y, source = turned(x), turned(source)
        if kind.startswith("scatter"):
            d = int(self.rng.integers(len(shape)))
            at, every = int(self.rng.integers(shape[d])), range(len(shape))
            row = b.slice(source, starts=tuple(at if k == d else shape[k] - 1 for k in every), sizes=tuple(1 if k == d else shape[k] for k in every),
                          steps=tuple(1 if k == d else -1 for k in every))
            v = b.to_shape(row, tuple(n for k, n in enumerate(shape) if k != d)) if self.rng.random() < 0.4 else b.take(source, self.place(b, i, shape[d]), dim=d)
            made = b.emit(kind, [y, self.place(b, i, shape[d]), b.sin(v) if self.rng.random() < 0.6 else v], {"dim": d})[0]
        else:
            sizes = tuple(int(self.rng.integers(1, n + 1)) for n in shape)
            to, start = (tuple(int(self.rng.integers(0, n - k + 1)) for n, k in zip(shape, sizes)) for _ in range(2))
            v = b.slice(source, starts=to if self.rng.random() < 0.4 else start, sizes=sizes, steps=(1,) * len(shape))
            made = b.emit(kind, [y, b.sin(v)], {"starts": to, "steps": (1,) * len(shape)})[0]
        back = b.to_perm(b.to_shape(made, tuple(first[d] for d in perm)), tuple(perm.index(d) for d in range(len(perm))))
        return b.to_shape(back, SHAPE)

    def branches(self, b: Any, x: Any, i: Any, pool: Any, depth: int) -> Any:
        given = [x, *(self.pick(pool) for _ in range(self.rng.integers(0, 3)))]
        if self.rng.random() < 0.5:
            given.append(b.slice(self.pick(given), starts=(3, 2), sizes=SHAPE, steps=(-1, -1)))
        given, n = given[::-1] if self.rng.random() < 0.3 else [*given, given[0]], int(self.rng.integers(1, 3))
        types = [tensor_type(SHAPE)] * len(given) + [tensor_type([], int64)]
        sides = [region(types, lambda b, *a: self.body(b, a[:-1], a[-1], depth + 1, n)) for _ in range(2)]
        if self.rng.random() < 0.5:
            which = b.eq(b.remainder(i, b.scalar(2, int64)), b.scalar(0, int64))
        else:
            which = b.gt(b.reshape(b.slice(x, starts=(1, 1), sizes=(1, 1), steps=(1, 1)), shape=()), b.scalar(0.0, float64))
        return b.emit("cond", [which, *given, i], {}, sides)

    def loop(self, b: Any, x: Any, i: Any, pool: Any, depth: int) -> Any:
        fixed, carried = [self.pick(pool)], [x, self.pick(pool)]
        return scan(b, fixed, (i, *carried), (), int(self.rng.integers(0, 4)),
                    lambda b, c, i, *a: (b.add(i, b.scalar(1, int64)), *self.body(b, [*a, c], i, depth + 1, 2)))[1:]

    def body(self, b: Any, arrays: Any, i: Any, depth: int, wanted: int) -> Any:
        pool, now = list(arrays), list(arrays)
        for _ in range(self.rng.integers(not depth, 4)):
            self.left -= 1
            if self.left < 0:
                break
            k, what = int(self.rng.integers(len(now))), self.pick(("write", "write", "write", "sum", "cond", "cond", "scan"))
            if what == "write":
                found = [self.write(b, now[k], i, pool)]
            elif what == "sum":
                found = [b.add(b.sin(now[k]), self.pick(pool))]
            else:
                found = list(self.branches(b, now[k], i, pool, depth) if what == "cond" else self.loop(b, now[k], i, pool, depth)) if depth < 2 else [now[k]]
            pool += found
            now[k] = found[0]
        return [now[j] if j < len(now) and self.rng.random() < 0.8 else self.pick(pool) for j in range(wanted)]


@pytest.mark.parametrize("seed", sweep.part(range(60), of=12))
def test_random_programs(seed: int) -> None:
    made, arrays = Random(seed), tensor_type(SHAPE)
    func = build("f", [arrays, arrays, tensor_type([], int64)], lambda b, x, y, i: scan(
        b, (), (i, x, y), (), 4, lambda b, i, *c: (b.add(i, b.scalar(1, int64)), *made.body(b, c, i, 0, 2)))[1:])
    rng = np.random.default_rng(seed)
    args = [rng.normal(size=SHAPE), rng.normal(size=SHAPE), np.int64(seed % 3)]
    if seed % 4:
        func = (vjp_func if seed % 2 else jvp_func)(func, [True, True, False])
        func.name, args = "f", [*args, rng.normal(size=SHAPE), rng.normal(size=SHAPE)]
    for got, want in zip(Program(standard(func))(*args, guard=seed % 3 == 0), interp.run(func, *args)):
        np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-11)
