"""Random programs of elementwise ops, views, reductions, writes, joins, products and indexing, compiled and compared with the interpreter between guard pages."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest
import sweep
from lowering_harness import Program

from aotgrad.ir import Layout, interp, ops, tensor_type
from aotgrad.ir.builder import Builder
from aotgrad.ir.core import Block, Func, Value
from aotgrad.ir.transforms.cleanup import standard

assert ops
SIZES = {"n": (0, 1, 2, 3, 5, 8, 9, 17, 33, 70), "m": (0, 1, 2, 4, 7, 16, 21)}
UNARY = ("tanh", "neg", "abs", "sin", "sign", "sigmoid")
BINARY = ("add", "sub", "mul", "maximum", "minimum", "lmul")


class Maker:
    """Grows a program op by op; values are grouped by shape so that operands fit."""

    def __init__(self, seed: int, sizes: tuple[Any, Any] = ("n", "m")) -> None:
        self.rng = random.Random(seed)
        self.block = Block()
        self.b = Builder(self.block)
        self.values: list[Value] = []
        dims: list[Any] = [*sizes, self.rng.choice((1, 2, 3, 4)), self.rng.choice((5, 8, 12))]
        dtype = self.rng.choice(("float64", "float32"))
        for rank in (1, 2, 2, 3, self.rng.choice((0, 4))):
            shape = [self.rng.choice(dims) for _ in range(rank)]
            layout = Layout(tuple(self.rng.sample(range(rank), rank))) if rank > 1 and self.rng.random() < 0.3 else None
            layout = None if layout and layout.order == tuple(range(rank)) else layout
            self.values.append(self.block.add_arg(tensor_type(shape, dtype, layout)))

    def grow(self, steps: int) -> None:
        kinds = (self.unary, self.unary, self.binary, self.binary, self.binary, self.reduce, self.reduce, self.softmax, self.permute, self.slice,
                 self.broadcast, self.reshape, self.concatenate, self.insert, self.dot, self.compare, self.take, self.cumsum, self.relayout, self.flip, self.scatter)
        for _ in range(steps):
            made = self.rng.choice(kinds)(self.rng.choice(self.values))
            if made is not None:
                self.values.append(made)

    def same(self, x: Value) -> Value:
        fits = [v for v in self.values if v.type.shape == x.type.shape and v.type.dtype is x.type.dtype]
        return self.rng.choice(fits)

    def unary(self, x: Value) -> Any:
        return getattr(self.b, self.rng.choice(UNARY))(x)

    def binary(self, x: Value) -> Any:
        return getattr(self.b, self.rng.choice(BINARY))(x, self.same(x))

    def compare(self, x: Value) -> Any:
        return self.b.where(self.b.lt(x, self.same(x)), x, self.same(x))

    def reduce(self, x: Value) -> Any:
        rank = len(x.type.shape)
        dims = tuple(sorted(self.rng.sample(range(rank), self.rng.randint(0, rank))))
        out = self.b.sum(self.b.tanh(x), dims=dims)
        return self.b.keep_dims(out, x, dims) if self.rng.random() < 0.4 and x.type.layout is None else out

    def softmax(self, x: Value) -> Any:
        if not x.type.shape or x.type.layout is not None:
            return None
        e, dim = self.b.exp(self.b.tanh(x)), self.rng.randrange(len(x.type.shape))
        return self.b.div(e, self.b.keep_dims(self.b.sum(e, dims=(dim,)), e, (dim,)))

    def permute(self, x: Value) -> Any:
        return self.b.permute(x, perm=tuple(self.rng.sample(range(len(x.type.shape)), len(x.type.shape))))

    def slice(self, x: Value) -> Any:
        if not x.type.shape:
            return None
        starts, sizes, steps = [], [], []
        for n in x.type.shape:
            static = isinstance(n, int)
            start = self.rng.randint(0, n - 1) if static and n > 1 else 0
            step = self.rng.choice((1, 1, 2)) if static else 1
            starts.append(start)
            steps.append(step)
            sizes.append((n - start + step - 1) // step if static else n)
        return self.b.slice(x, starts=tuple(starts), sizes=tuple(sizes), steps=tuple(steps))

    def flip(self, x: Value) -> Any:
        if not x.type.shape:
            return None
        d = self.rng.randrange(len(x.type.shape))
        starts = tuple(n - 1 if i == d else 0 for i, n in enumerate(x.type.shape))
        return self.b.slice(x, starts=starts, sizes=x.type.shape, steps=tuple(-1 if i == d else 1 for i in range(len(x.type.shape))))

    def broadcast(self, x: Value) -> Any:
        if x.type.layout is not None or len(x.type.shape) > 3:
            return None
        at = self.rng.randint(0, len(x.type.shape))
        shape = (*x.type.shape[:at], self.rng.choice((2, 3, *x.type.shape)), *x.type.shape[at:])
        return self.b.broadcast(x, shape=shape, dims=tuple(d for d in range(len(shape)) if d != at))

    def reshape(self, x: Value) -> Any:
        shape = list(x.type.shape)
        if len(shape) > 1 and self.rng.random() < 0.7:
            d = self.rng.randrange(len(shape) - 1)
            shape[d:d + 2] = [shape[d] * shape[d + 1]]
        elif shape and isinstance(shape[0], int) and shape[0] % 2 == 0 and shape[0]:
            shape[:1] = [2, shape[0] // 2]
        else:
            shape.insert(self.rng.randint(0, len(shape)), 1)
        return self.b.reshape(x, shape=tuple(shape))

    def relayout(self, x: Value) -> Any:
        rank = len(x.type.shape)
        return self.b.relayout(x, layout=Layout(tuple(self.rng.sample(range(rank), rank)))) if rank > 1 and x.type.layout is None else None

    def concatenate(self, x: Value) -> Any:
        if not x.type.shape:
            return None
        return self.b.concatenate(x, self.same(x), dim=self.rng.randrange(len(x.type.shape)))

    def insert(self, x: Value) -> Any:
        part = self.slice(x)
        if part is None:
            return None
        value = self.unary(part) if self.rng.random() < 0.5 else part
        name = self.rng.choice(("insert", "insert_add"))
        attrs = part.op.attrs
        base = self.rng.choice((x, self.same(x), self.b.zeros(x)))
        return getattr(self.b, name)(base, value, starts=attrs["starts"], steps=attrs["steps"])

    def dot(self, x: Value) -> Any:
        if len(x.type.shape) < 2:
            return None
        other = self.same(x)
        rank = len(x.type.shape)
        return self.b.dot(self.b.tanh(x), self.b.permute(self.b.tanh(other), perm=(*range(rank - 2), rank - 1, rank - 2)))

    def take(self, x: Value) -> Any:
        if not x.type.shape:
            return None
        d = self.rng.randrange(len(x.type.shape))
        index = self.b.iota(shape=(x.type.shape[d],), dim=0)
        return self.b.take(x, index, dim=d)

    def scatter(self, x: Value) -> Any:
        if not x.type.shape:
            return None
        d = self.rng.randrange(len(x.type.shape))
        index = self.b.iota(shape=(x.type.shape[d],), dim=0)
        return getattr(self.b, self.rng.choice(("scatter", "scatter_add")))(self.same(x), index, x, dim=d)

    def cumsum(self, x: Value) -> Any:
        return self.b.cumsum(x, dim=self.rng.randrange(len(x.type.shape)), reverse=self.rng.random() < 0.5) if x.type.shape else None


def make(seed: int, steps: int = 14, sizes: tuple[Any, Any] = ("n", "m")) -> Func:
    m = Maker(seed, sizes)
    m.grow(steps)
    m.block.outputs = [*m.values[-2:], m.rng.choice(m.values), m.rng.choice(m.values)]
    return Func("f", m.block)


def check(func: Func, seed: int, n: int, m: int, guard: bool) -> None:
    rng = np.random.default_rng(seed)
    sizes = {"n": n, "m": m}
    arrays = [rng.normal(size=[d if isinstance(d, int) else sizes[str(d)] for d in t.shape]).astype(t.dtype.np) for t in func.arg_types]
    if any(a.size > 20000 for a in arrays):
        return
    want = interp.run(func, *arrays)
    got = PROGRAMS[id(func)](*arrays, guard=guard)
    for g, w in zip(got, want):
        eps = np.finfo(w.dtype).eps
        assert g.shape == w.shape and g.dtype == w.dtype
        scale = max(1.0, float(np.max(np.abs(w), initial=0.0)))
        np.testing.assert_allclose(g, w, rtol=1000 * eps, atol=100 * eps * scale)


PROGRAMS: dict[int, Program] = {}


@pytest.mark.parametrize("seed", sweep.part(range(int(os.environ.get("AOTGRAD_SEEDS", "50")))))
def test_random_program(seed: int) -> None:
    func = standard(make(seed))
    PROGRAMS[id(func)] = Program(func)
    try:
        for i, (n, m) in enumerate([(5, 4), (0, 2), (1, 1), (9, 0), (17, 7), (33, 21)]):
            check(func, seed, n, m, guard=bool(i % 2))
    finally:
        PROGRAMS.clear()


@pytest.mark.parametrize("seed", sweep.part(range(1000, 1000 + int(os.environ.get("AOTGRAD_SEEDS", "50")))))
def test_random_program_of_static_sizes(seed: int) -> None:
    """Static sizes fold: loops that run once or never, rests of known length, small products in place, tiny blocks in scalars."""
    rng = random.Random(seed)
    func = standard(make(seed, sizes=(rng.randint(0, 40), rng.randint(1, 20))))
    PROGRAMS[id(func)] = Program(func)
    try:
        check(func, seed, 0, 0, guard=bool(seed % 2))
    finally:
        PROGRAMS.clear()
