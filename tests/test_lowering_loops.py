"""Random nested loops over stacks, slices, writes and takes, and their first and second derivatives compiled (workspaces full of NaN) against the interpreter."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import sweep
from lowering_harness import Program

import aotgrad as ag
from aotgrad.ir import dims, interp, ops, tensor_type
from aotgrad.ir.builder import Builder, build
from aotgrad.ir.core import Block, Func, Value
from aotgrad.ir.dims import symbol
from aotgrad.ir.transforms.cleanup import standard
from aotgrad.ir.transforms.differentiate import jvp_func, vjp_func
from aotgrad.ir.transforms.rewrite import inline
from aotgrad.ir.transforms.stabilise import Stabilise
from aotgrad_runtime.dtypes import float64, int64

assert ops
N, K = symbol("n"), symbol("k")
SEEDS = int(os.environ.get("AOTGRAD_SEEDS", "40"))
LIMIT = 1e4  # larger results say nothing


class Maker:
    """Grows the body of a function: values of few shapes, so that operands fit. Vectors of ``sizes``, numbers, and matrices of two of them."""

    def __init__(self, seed: int, static: bool) -> None:
        self.rng = rng = random.Random(seed)
        self.n: Any = rng.choice((2, 3, 4, 9)) if static else N
        self.k: Any = rng.choice((0, 1, 2, 3)) if static else K
        self.length: list[Any] = [0, 1, 1, 2, 3, self.k, self.k, self.n]
        if rng.random() < 0.3:
            self.n = rng.choice((2, 3, 8))
            self.length[-1] = self.n
        self.small = rng.choice((2, 2, 3))
        shapes: list[Any] = [(self.n,), (self.small,), (self.small,), ()]
        if not static or rng.random() < 0.5:
            shapes.append((self.k, rng.choice((self.small, self.n))))
        if rng.random() < 0.3:
            shapes.append((self.n, self.small))
        self.types = [tensor_type(s) for s in shapes]

    def func(self) -> Func:
        return build("f", self.types, self._main)

    def _main(self, b: Builder, *args: Value) -> list[Value]:
        values = list(args)
        for _ in range(self.rng.randint(1, 3)):
            self.grow(b, values, self.rng.randint(0, 3))
            values += self.loop(b, values, 0)
        self.grow(b, values, self.rng.randint(0, 3))
        floats = [v for v in values[len(args):] if v.type.dtype is float64]
        return [floats[-1], self.rng.choice(floats)]

    # ---- loops --------------------------------------------------------------------------------------------------------------------

    def loop(self, b: Builder, values: Sequence[Value], depth: int) -> list[Value]:
        """One scan; its results."""
        rng = self.rng
        floats = [v for v in values if v.type.dtype is float64]
        carry = [self._some(floats, (1,), (0, 1, 2)) for _ in range(rng.choice((1, 1, 2)))]
        counter = rng.random() < 0.3
        if counter:
            carry.append(b.scalar(0, int64))
        length = rng.choice(self.length)
        rows = [v for v in floats if v.type.rank and v.type.shape[0] == length]
        xs = [rng.choice(rows) for _ in range(rng.choice((0, 1, 2)))] if rows else []
        consts = [rng.choice(floats) for _ in range(rng.choice((1, 2, 3)))]
        block = Block([v.type for v in (*consts, *carry)] + [tensor_type(x.type.shape[1:]) for x in xs])
        inner = Builder(block)
        known = [a for a in block.args if a.type.dtype is float64]
        index = block.args[len(consts) + len(carry) - 1] if counter else None
        self.grow(inner, known, rng.randint(1, 4), index)
        if depth < 2 and rng.random() < (0.4, 0.25)[depth]:
            known += self.loop(inner, known, depth + 1)
            self.grow(inner, known, rng.randint(0, 2), index)
        heads = [self._next(inner, c, known) if c.type.dtype is float64 else inner.add(index, inner.scalar(1, int64)) for c in carry]
        tails = [rng.choice(known[-6:]) for _ in range(rng.choice((0, 0, 1, 2, 4)))]
        block.outputs = [*heads, *tails]
        attrs = {"consts": len(consts), "carry": len(carry), "length": length, "reverse": rng.random() < 0.3}
        found = b.emit("scan", [*consts, *carry, *xs], attrs, (block,))
        return [v for v in found if v.type.dtype is float64]

    def _some(self, values: Sequence[Value], likely: Sequence[int], ranks: Sequence[int]) -> Value:
        good = [v for v in values if v.type.rank in likely]
        return self.rng.choice(good) if good and self.rng.random() < 0.8 else self.rng.choice([v for v in values if v.type.rank in ranks])

    def _next(self, b: Builder, carry: Value, known: Sequence[Value]) -> Value:
        """What follows a carry: the latest value that fits, mostly."""
        fits = [v for v in known if v.type == carry.type]
        out = fits[-1] if self.rng.random() < 0.7 else self.rng.choice(fits)
        return b.tanh(out) if self.rng.random() < 0.3 else out

    # ---- ops ----------------------------------------------------------------------------------------------------------------------

    def grow(self, b: Builder, values: list[Value], steps: int, index: Value | None = None) -> None:
        kinds: list[Callable[..., Any]] = [self.unary, self.binary, self.binary, self.scale, self.stack, self.chain, self.chain, self.writes, self.writes, self.slice,
                                           self.join, self.take, self.scatter, self.total, self.flip, self.running, self.outer]
        for _ in range(steps):
            x = self._some(values, (1,), (0, 1, 2))
            made = self.pick(b, x, index) if index is not None and self.rng.random() < 0.4 else self.rng.choice(kinds)(b, x, values)
            if made is not None:
                values.append(made)

    def number(self, b: Builder, x: Value, at: int | None = None) -> Value:
        """One element of a vector or matrix (every dim has two or more) as a number."""
        if not x.type.rank:
            return x
        starts = tuple(at if at is not None else self.rng.choice((0, 1)) for _ in x.type.shape)
        return b.reshape(b.slice(x, starts=starts, sizes=(1,) * len(starts), steps=(1,) * len(starts)), shape=())  # type: ignore[no-any-return]

    def known(self, x: Value) -> bool:
        """Whether elements 0 and 1 of every dim exist."""
        return all(n is self.n or isinstance(n, int) and n >= 2 for n in x.type.shape)

    def same(self, x: Value, values: Sequence[Value]) -> Value:
        return self.rng.choice([v for v in values if v.type == x.type])

    def unary(self, b: Builder, x: Value, values: Sequence[Value]) -> Any:
        return getattr(b, self.rng.choice(("tanh", "sin", "neg")))(x)

    def binary(self, b: Builder, x: Value, values: Sequence[Value]) -> Any:
        return getattr(b, self.rng.choice(("add", "mul", "sub", "mul")))(x, self.same(x, values))

    def scale(self, b: Builder, x: Value, values: Sequence[Value]) -> Any:
        other = self.rng.choice(values)
        return b.mul(x, b.expand(self.number(b, other), x.type.shape)) if self.known(other) else None

    def stack(self, b: Builder, x: Value, values: Sequence[Value]) -> Any:
        parts = [self.number(b, v) for v in self.rng.choices(values, k=self.small) if self.known(v)]
        return b.concatenate(*(b.reshape(p, shape=(1,)) for p in parts), dim=0) if len(parts) == self.small else None

    def chain(self, b: Builder, x: Value, values: Sequence[Value]) -> Any:
        """Step after step of a small system: each reads two elements of the state before."""
        given = [v for v in values if self.known(v) and v.type.rank]
        if not given:
            return None
        w, y = self.rng.choice(given), self.rng.choice(given)
        for _ in range(self.rng.randint(1, 5)):
            parts = [b.mul(self.number(b, w, i % 2), self.number(b, y, (i + 1) % 2)) for i in range(self.small)]
            y = b.concatenate(*(b.reshape(p, shape=(1,)) for p in parts), dim=0)
        return y

    def _window(self, x: Value) -> dict[str, Any]:
        """Part of each dim; of one that may be empty, all."""
        starts, sizes, steps = [], [], []
        for n in x.type.shape:
            low, high = self.rng.choice(((0, 0), (0, 1), (1, 0), (1, 1))) if n is self.n or isinstance(n, int) and n >= 2 else (0, 0)
            step = 2 if isinstance(n, int) and self.rng.random() < 0.2 else 1
            starts.append(low)
            sizes.append((n - low - high + step - 1) // step if isinstance(n, int) else n - low - high)
            steps.append(step)
        return {"starts": tuple(starts), "sizes": tuple(sizes), "steps": tuple(steps)}

    def slice(self, b: Builder, x: Value, values: Sequence[Value]) -> Any:
        return b.slice(x, **self._window(x)) if x.type.rank else None

    def writes(self, b: Builder, x: Value, values: Sequence[Value]) -> Any:
        """A few writes in a row onto a value, a fresh array, or one that others read too."""
        if not x.type.rank:
            return None
        base = self.rng.choice((x, self.same(x, values), b.zeros(x)))
        for _ in range(self.rng.randint(1, 4)):
            at, source = self._window(x), self.same(x, values)
            if self.rng.random() < 0.5 and self.known(x):
                at = {"starts": tuple(self.rng.choice((0, 1)) for _ in x.type.shape), "sizes": (1,) * x.type.rank, "steps": (1,) * x.type.rank}
            part = b.slice(source, **at)
            value = b.tanh(part) if self.rng.random() < 0.5 else part
            base = getattr(b, self.rng.choice(("insert", "insert_add", "insert_add")))(base, value, starts=at["starts"], steps=at["steps"])
        return base

    def join(self, b: Builder, x: Value, values: Sequence[Value]) -> Any:
        """Parts swapped."""
        if not x.type.rank or not self.known(x):
            return None
        n, rest = x.type.shape[0], x.type.shape[1:]
        zeros, ones = (0,) * len(rest), (1,) * len(rest)
        first = b.slice(x, starts=(0, *zeros), sizes=(1, *rest), steps=(1, *ones))
        return b.concatenate(b.slice(x, starts=(1, *zeros), sizes=(n - 1, *rest), steps=(1, *ones)), first, dim=0)

    def take(self, b: Builder, x: Value, values: Sequence[Value]) -> Any:
        if not x.type.rank or not self.known(x):
            return None
        count = x.type.shape[0]
        index = b.array([self.rng.choice((0, 1)) for _ in range(count)], int64) if isinstance(count, int) else b.iota(shape=(count,), dim=0, dtype=int64)
        return b.take(x, index, dim=0)

    def scatter(self, b: Builder, x: Value, values: Sequence[Value]) -> Any:
        if not x.type.rank or not self.known(x):
            return None
        index = b.array([self.rng.choice((0, 1)) for _ in range(2)], int64)
        part = b.slice(self.same(x, values), starts=(0,) * x.type.rank, sizes=(2, *x.type.shape[1:]), steps=(1,) * x.type.rank)
        return b.scatter_add(x, index, part, dim=0)

    def pick(self, b: Builder, x: Value, index: Value) -> Any:
        """The element (row) that the loop's counter names."""
        if not x.type.rank or not self.known(x):
            return None
        row = b.take(x, b.minimum(index, b.scalar(1, int64)), dim=0)
        return row if self.rng.random() < 0.5 else b.scatter_add(x, b.minimum(index, b.scalar(1, int64)), b.sin(row), dim=0)

    def total(self, b: Builder, x: Value, values: Sequence[Value]) -> Any:
        return b.sum(x, dims=(self.rng.randrange(x.type.rank),)) if x.type.rank else None

    def flip(self, b: Builder, x: Value, values: Sequence[Value]) -> Any:
        if x.type.rank != 1:
            return None
        return b.slice(x, starts=(x.type.shape[0] - 1,), sizes=x.type.shape, steps=(-1,))

    def running(self, b: Builder, x: Value, values: Sequence[Value]) -> Any:
        return b.cumsum(x, dim=0, reverse=self.rng.random() < 0.5) if x.type.rank else None

    def outer(self, b: Builder, x: Value, values: Sequence[Value]) -> Any:
        """A matrix of two vectors, used at once."""
        other = self.rng.choice(values)
        if x.type.rank != 1 or other.type.rank != 1:
            return None
        shape = (*other.type.shape, *x.type.shape)
        return b.sum(b.tanh(b.mul(b.broadcast(other, shape=shape, dims=(0,)), b.broadcast(x, shape=shape, dims=(1,)))), dims=(self.rng.randrange(2),))


# ---- derivatives ----------------------------------------------------------------------------------------------------------------------

def floats(func: Func) -> list[bool]:
    return [t.dtype is float64 for t in func.arg_types]


def first(func: Func) -> list[bool]:
    """Active: argument 0 alone."""
    return [i == 0 for i in range(len(func.arg_types))]


def basis(func: Func, at: int) -> Func:
    """The results for every basis vector in place of argument ``at``, a vector, stacked by a loop (as matrices of derivatives are made)."""
    given = [t for i, t in enumerate(func.arg_types) if i != at]
    wide = func.arg_types[at]

    def body(b: Builder, *args: Value) -> list[Value]:
        block = Block([*given, wide, tensor_type((), int64)])
        inner = Builder(block)
        basis = inner.cast(inner.eq(inner.iota(shape=wide.shape, dim=0, dtype=int64), inner.expand(block.args[-1], wide.shape)), dtype=float64)
        operands = list(block.args[:len(given)])
        operands.insert(at, basis)
        block.outputs = inline(inner, func.body, operands)
        count = b.iota(shape=wide.shape, dim=0, dtype=int64)
        attrs = {"consts": len(given) + 1, "carry": 0, "length": wide.shape[0], "reverse": False}
        return b.emit("scan", [*args, count], attrs, (block,))  # type: ignore[no-any-return]

    return build("f", [*given, wide], body)


def hessian(func: Func) -> Func:
    """Forward over reverse, for each element of argument 0."""
    back = vjp_func(func, first(func))
    return basis(jvp_func(standard(back), first(back)), len(back.arg_types))


FORMS: dict[str, Callable[[Func], Func]] = {
    "value": lambda f: f,
    "vjp": lambda f: vjp_func(f, floats(f)),
    "jvp of vjp": lambda f: jvp_func(g := vjp_func(f, floats(f)), floats(g)),
    "vjp of vjp": lambda f: vjp_func(g := standard(vjp_func(f, floats(f))), floats(g)),
    "jvp of jvp": lambda f: jvp_func(g := jvp_func(f, floats(f)), floats(g)),
    "hessian": hessian,
}


def compare(func: Func, name: str, seed: int) -> int:
    """Compiled against interpreted for several sizes; how many were compared."""
    made = standard(Stabilise()(FORMS[name](func)))
    made = Func("f", made.body)
    program, rng, compared = Program(made), np.random.default_rng(seed), 0
    for n, k in ((2, 3), (3, 0), (8, 1), (9, 2)):
        sizes = {"n": n, "k": k}
        shapes = [[dims.substitute(d, sizes) for d in t.shape] for t in made.arg_types]
        arrays = [rng.normal(size=s) * 0.7 for s in shapes]
        with np.errstate(all="ignore"):
            want = interp.run(made, *arrays)
        if not all(np.all(np.abs(w) < LIMIT) for w in want):
            continue
        got = program(*arrays, guard=bool(k % 2))
        for i, (g, w) in enumerate(zip(got if isinstance(got, tuple) else (got,), want)):
            scale = max(1.0, float(np.max(np.abs(w), initial=0.0)))
            np.testing.assert_allclose(g, w, rtol=1e-9, atol=1e-11 * scale, err_msg=f"result {i} of {name}, n = {n}, k = {k}")
        compared += 1
        if not made.symbols():
            break
    return compared


@pytest.mark.parametrize("seed", sweep.part(range(SEEDS), of=3))
def test_random_loops(seed: int) -> None:
    func = standard(Maker(seed, static=seed % 4 == 3).func())
    names = list(FORMS)
    chosen = names if SEEDS > 100 else [names[seed % len(names)]]
    for name in chosen:
        compare(func, name, seed)


@pytest.mark.parametrize("depth", sweep.part([3, 4, 6], of=3))
def test_second_and_third_derivatives_of_a_loop_of_stacks(depth: int) -> None:
    """As users write it; compiled against call by call."""

    def f(p: Any) -> Any:
        def body(i: Any, y: Any) -> Any:
            for _ in range(depth):
                y = np.stack([p[0] * y[1], p[1] * y[0]])
            return y

        return np.sum(ag.fori_loop(0, 1, body, np.array([1.0, 0.5])))

    p = np.array([1.5, 1.0])
    np.testing.assert_allclose(ag.compile(ag.hessian(f))(p), ag.hessian(f)(p), rtol=1e-13)
    np.testing.assert_allclose(ag.compile(ag.jacfwd(ag.hessian(f)))(p), ag.jacfwd(ag.hessian(f))(p), rtol=1e-13)
