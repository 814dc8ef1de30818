"""Results in the place of what they are computed from, orders in which values die early, and where parts of the workspace go."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from lowering_harness import Program
from test_lowering_random import Maker

from aotgrad.codegen import bufferise, planning
from aotgrad.codegen.lower import lower
from aotgrad.codegen.place import Block as Part
from aotgrad.codegen.place import alive, place
from aotgrad.codegen.target import Target
from aotgrad.ir import Layout, interp, ops, tensor_type
from aotgrad.ir.builder import Builder
from aotgrad.ir.core import Block, Func, Value, walk
from aotgrad.ir.transforms.cleanup import standard

assert ops
MACHINE = Target.native()


def program(shape: Any, build: Any, dtype: str = "float32", args: int = 1, layout: Any = None) -> Func:
    block = Block()
    xs = [block.add_arg(tensor_type(shape, dtype, layout)) for _ in range(args)]
    out = build(Builder(block), *xs)
    block.outputs = list(out) if isinstance(out, tuple) else [out]
    return Func("f", block)


def workspace(func: Func) -> Any:
    return lower(func, "f", MACHINE).entry.workspace


def barrier(b: Builder, x: Value) -> Value:
    """Something with a buffer of its own."""
    return b.cumsum(x, dim=len(x.type.shape) - 1)


def agrees(func: Func, *arrays: Any) -> None:
    got, want = Program(func)(*arrays, guard=True), interp.run(func, *arrays)
    for g, w in zip(got if isinstance(got, tuple) else (got,), want):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5 * max(1.0, float(np.abs(w).max())))


ARRAY = np.random.default_rng(0).normal(size=(40, 70)).astype(np.float32)
ONE = ARRAY.nbytes


@pytest.mark.parametrize(("build", "arrays"), [
    (lambda b, x: barrier(b, b.tanh(barrier(b, x))), 1),  # in the place of what it reads
    (lambda b, x: barrier(b, b.add(b.sin(barrier(b, x)), b.cos(b.cumsum(x, dim=0)))), 2),  # of one of two
    (lambda b, x: b.tanh(barrier(b, x)), 0),  # what a result is made of, is made where the result goes
    (lambda b, x: b.sin(barrier(b, b.tanh(barrier(b, x)))), 1),
    (lambda b, x: (lambda s: barrier(b, b.sub(s, b.keep_dims(b.sum(s, dims=(1,)), s, (1,)))))(barrier(b, x)), 1),  # the last phase of its rows
    (lambda b, x: (lambda s: barrier(b, b.add(b.neg(s), b.slice(s, starts=(0, 69), sizes=(40, 70), steps=(1, -1)))))(barrier(b, x)), 2),  # reads another element
    (lambda b, x: (lambda s: (barrier(b, b.tanh(s)), b.sum(s, dims=(0, 1))))(barrier(b, x)), 1),
    (lambda b, x: (lambda s: b.dot(b.cumsum(b.tanh(s), dim=1), b.permute(s, perm=(1, 0))))(barrier(b, x)), 3),  # is read again
])
def test_buffers(build: Any, arrays: int) -> None:
    func = program((40, 70), build)
    size = workspace(func)
    assert arrays * ONE <= size < (arrays + 1) * ONE, size / ONE
    agrees(func, ARRAY)


def test_open_sizes() -> None:
    func = program(("n", "m"), lambda b, x: barrier(b, b.tanh(barrier(b, x))))
    agrees(func, ARRAY)
    room = workspace(func).substitute({"n": 40, "m": 70})
    assert ONE <= room < 2 * ONE


def test_another_layout_is_another_place() -> None:
    func = program((40, 70), lambda b, x: barrier(b, b.relayout(b.tanh(barrier(b, x)), layout=Layout((1, 0)))))
    agrees(func, ARRAY)


def test_carry_of_a_loop_in_one_buffer() -> None:
    """An elementwise update of an array in a scan's carry is made where it is."""
    block, body = Block(), Block()
    x = block.add_arg(tensor_type((40, 70), "float32"))
    c = body.add_arg(tensor_type((40, 70), "float32"))
    inner = Builder(body)
    body.outputs = [inner.tanh(inner.add(c, c))]
    b = Builder(block)
    block.outputs = [b.emit("scan", [x], {"consts": 0, "carry": 1, "length": 5, "reverse": False}, (body,))[0]]
    func = Func("f", block)
    assert workspace(func) < ONE
    agrees(func, ARRAY)


class Reuser(Maker):
    """Programs of values with buffers, and elementwise operations and sums of rows between them."""

    def grow(self, steps: int) -> None:
        kinds = (self.unary, self.binary, self.binary, self.softmax, self.centred, self.cumsum, self.cumsum, self.permute, self.relayout, self.reshape, self.reduce,
                 self.insert, self.take, self.flip, self.dot)
        for _ in range(steps):
            made = self.rng.choice(kinds)(self.values[-1] if self.rng.random() < 0.6 else self.rng.choice(self.values))
            if made is not None:
                self.values.append(made)

    def centred(self, x: Value) -> Any:
        if not x.type.shape or x.type.layout is not None:
            return None
        dims = (self.rng.randrange(len(x.type.shape)),)
        return self.b.sub(x, self.b.keep_dims(self.b.tanh(self.b.sum(self.b.tanh(x), dims=dims)), x, dims))


class Threaded(Program):
    threads = 2


def made_of(seed: int, sizes: Any) -> Func:
    m = Reuser(seed, sizes)
    m.grow(18)
    m.block.outputs = [m.values[-1], m.rng.choice(m.values)]
    return standard(Func("f", m.block))


def same_bits(seed: int, kind: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """The bits of a program do not depend on what is written in the place of what; how many values took a place."""
    rng = random.Random(seed)
    static = rng.random() < 0.5
    func = made_of(seed, (rng.randint(0, 40), rng.randint(1, 33)) if static else ("n", "m"))
    found = []

    def counted(plan: Any, uses: Any) -> None:
        take_over(plan, uses)
        found.append(len(plan.same))

    take_over = planning.take_over
    with monkeypatch.context() as m:
        m.setattr(planning, "take_over", counted)
        ours = kind(func)
    with monkeypatch.context() as m:
        m.setattr(planning, "take_over", lambda plan, uses: None)
        plain = kind(func)
    for i, (n, k) in enumerate([(5, 4), (1, 1), (33, 21)][:1 if static else 3]):
        values = np.random.default_rng(seed)
        arrays = [values.normal(size=[d if isinstance(d, int) else {"n": n, "m": k}[str(d)] for d in t.shape]).astype(t.dtype.np) for t in func.arg_types]
        if any(a.size > 50000 for a in arrays):
            continue
        for a, b in zip(ours(*arrays, guard=bool(i % 2)), plain(*arrays, guard=bool(i % 2))):
            assert a.tobytes() == b.tobytes()
    return sum(found)


def sweep(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sum(same_bits(seed, Threaded if seed % 4 == 0 else Program, monkeypatch) for seed in seeds) > len(seeds) // 3


def test_bits_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep(range(15), monkeypatch)


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(100, 1100, 50))
def test_bits_stay_in_many(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep(range(first, first + 50), monkeypatch)


# ---- results over arguments -------------------------------------------------------------------------------------------------------------

def test_over_arguments() -> None:
    """An update is made where the argument is; what reads the argument otherwise runs first, and two that swap places go by way of the workspace."""
    def build(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
        new = b.sub(x, b.mul(y, barrier(b, x)))
        return b.sum(b.tanh(x), dims=(1,)), new, b.add(new, y)

    func = program((40, 70), build, args=2)
    assert lower(func, "f", MACHINE, over=((1, 0), (2, 1))).entry.workspace == ONE
    swapped = program((40, 70), lambda b, x, y: (b.neg(y), b.neg(x)), args=2)
    used = program((40, 70), lambda b, x: (b.tanh(x), barrier(b, b.tanh(x))))
    for f, over in ((func, ((1, 0), (2, 1))), (swapped, ((0, 0), (1, 1))), (used, ((0, 0),)), (func, ((2, 0),))):
        arrays = [ARRAY + i for i in range(len(f.arg_types))]
        for threads in (Program, Threaded):
            for g, w in zip(threads(f, over=over)(*arrays, guard=True), interp.run(f, *arrays)):
                np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-3)


def test_nothing_asks_once_arguments_change() -> None:
    """Loops that write over arguments, and all that follow, cannot be interrupted: a call changes all of its arguments or none."""
    def build(b: Builder, x: Value, y: Value) -> tuple[Value, ...]:
        g = barrier(b, b.tanh(x))
        return b.sub(x, g), b.sub(y, b.neg(g)), b.sum(b.sin(y), dims=(0,))

    func = program(("n", "m"), build, args=2)
    body = lower(func, "f", MACHINE, over=((0, 0), (1, 1))).funcs[0].body
    asking = [i for i, op in enumerate(body.ops) if any("ag.poll" in o.attrs for o in (op, *(o for r in op.regions for o in walk(r))))]
    writing = [i for i, op in enumerate(body.ops)
               if any(o.name.endswith("store") and (set(o.operands) & set(body.args[:2])) for o in (op, *(o for r in op.regions for o in walk(r))))]
    assert asking and writing and max(asking) < min(writing)


@pytest.mark.parametrize("threads", [Program, Threaded])
def test_a_product_is_added_where_the_gradient_is(threads: Any) -> None:
    """Gradients that are there already: the sum is made on the blocks of the product, in the memory of the old one. Large products may be
    interrupted, so they are made apart."""
    def passes(n: int) -> tuple[Func, list[Any]]:
        block = Block()
        old, x, ct = (block.add_arg(tensor_type(s, "float32")) for s in ((200, 300), (n, 200), (n, 300)))
        b = Builder(block)
        block.outputs = [b.add(old, b.dot(b.permute(x, perm=(1, 0)), ct)), b.sum(x, dims=(0,))]
        func, steps = Func("f", block), []
        lower(func, "f", MACHINE, over=((0, 0),), steps=steps)
        return func, [("+".join(s.ops), s.read, s.written) for s in steps]

    whole = 4 * 200 * 300
    func, found = passes(64)
    assert [f for f in found if "dot" in f[0]] == [("dot+add", whole + 4 * 64 * 500, 2 * whole)] and len(found) == 2  # the blocks of the product count, too
    _, large = passes(1 << 16)
    assert ("copy", whole, whole) in large
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=t.shape).astype(np.float32) for t in func.arg_types]
    for g, w in zip(threads(func, over=((0, 0),))(*arrays, guard=True), interp.run(func, *arrays)):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-3)


def over_some(func: Func, rng: random.Random) -> tuple[tuple[int, int], ...]:
    free, found = list(range(len(func.arg_types))), []
    for j, t in enumerate(func.out_types):
        fits = [i for i in free if func.arg_types[i] == t]
        if fits:
            found.append((j, rng.choice(fits)))
            free.remove(found[-1][1])
    return tuple(found)


def updates(seed: int) -> int:
    """Random programs that end in updates of their arguments; how many were written in place."""
    rng = random.Random(seed)
    m = Reuser(seed, ("n", "m") if rng.random() < 0.5 else (rng.randint(0, 40), rng.randint(1, 33)))
    args = list(m.values)
    m.grow(12)
    outs = [m.rng.choice(m.values)]
    for x in args:
        other = m.same(x)
        outs.append(m.rng.choice((m.b.sub, m.b.mul, m.b.maximum))(x, m.b.tanh(other)) if rng.random() < 0.8 else other)
    rng.shuffle(outs)
    m.block.outputs = outs
    func = standard(Func("f", m.block))
    over = over_some(func, rng)
    made = (Threaded if seed % 4 == 0 else Program)(func, over=over)
    for i, (n, k) in enumerate([(5, 4), (0, 3), (33, 21)]):
        values = np.random.default_rng(seed)
        arrays = [values.normal(size=[d if isinstance(d, int) else {"n": n, "m": k}[str(d)] for d in t.shape]).astype(t.dtype.np) for t in func.arg_types]
        if any(a.size > 50000 for a in arrays):
            continue
        got = made(*arrays, guard=bool(i % 2))
        for g, w in zip(got if isinstance(got, tuple) else (got,), interp.run(func, *arrays)):
            np.testing.assert_allclose(g, w, rtol=1e-3, atol=1e-3 * max(1.0, float(np.abs(w).max(initial=0.0))) if w.dtype == np.float32 else 1e-9)
    plan = planning.analyse(func.body, over={func.body.args[i]: j for j, i in over})
    return len(plan.in_place)


def test_random_updates() -> None:
    assert sum(map(updates, range(30))) > 15


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(100, 1100, 50))
def test_many_random_updates(first: int) -> None:
    assert sum(map(updates, range(first, first + 50))) > 25


# ---- order ------------------------------------------------------------------------------------------------------------------------------

def test_gradients_die_where_they_are_used() -> None:
    """Updates stand at the end of the program; each runs when its gradient is there, so one gradient is alive at a time."""
    def build(b: Builder, *xs: Value) -> tuple[Value, ...]:
        grads = [barrier(b, b.tanh(x)) for x in xs]
        return tuple(b.sub(x, b.mul(g, g)) for x, g in zip(xs, (b.add(g, b.slice(g, starts=(0, 69), sizes=(40, 70), steps=(1, -1))) for g in grads)))

    func = program((40, 70), build, args=8)
    assert workspace(func) == 2 * ONE
    agrees(func, *[ARRAY + i for i in range(8)])


# ---- places in the workspace ------------------------------------------------------------------------------------------------------------

def parts(rng: random.Random, count: int) -> list[Part]:
    out = []
    for _ in range(count):
        part = Part(64 * rng.choice((0, 1, 1, 2, 7, 16, 100, rng.randint(1, 300))), rng.randint(0, 400))
        part.end = part.start + rng.choice((1, 2, 5, 40, 200, 1 << 40))
        out.append(part)
    return out


@pytest.mark.parametrize("seed", range(20))
def test_places(seed: int) -> None:
    """Parts that live at the same time are apart, and little is lost."""
    rng = random.Random(seed)
    made = parts(rng, rng.randint(0, 150))
    total = place(made)
    for i, a in enumerate(made):
        assert a.offset >= 0 and a.offset + a.size <= total and a.offset % 64 == 0
        for b in made[:i]:
            together = a.start < b.end and b.start < a.end
            assert not together or a.offset + a.size <= b.offset or b.offset + b.size <= a.offset
    least = alive(np.array([(p.size, p.start, p.end) for p in made], np.int64).reshape(-1, 3))
    assert least <= total <= 1.1 * least


def test_a_large_part_serves_several_small_ones() -> None:
    """The first activation of a network is the largest; its memory then holds several of the later ones at once."""
    def build(b: Builder, x: Value) -> Value:
        small = b.cumsum(b.slice(barrier(b, b.tanh(barrier(b, x))), starts=(0, 0), sizes=(40, 35), steps=(1, 2)), dim=0)
        other = b.cumsum(b.neg(small), dim=1)
        return b.dot(b.cumsum(small, dim=1), b.permute(b.cumsum(other, dim=0), perm=(1, 0)))

    func = program((40, 70), build)
    assert workspace(func) == 2 * ONE
    agrees(func, ARRAY)


def test_every_place_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """No constant that stands for a place is left open."""
    spaces = []
    settle = bufferise.Workspace.settle

    def settled(self: Any) -> None:
        settle(self)
        spaces.append(self)

    monkeypatch.setattr(bufferise.Workspace, "settle", settled)
    lower(made_of(3, ("n", "m")), "f", MACHINE)
    assert spaces[0]._places and all(op.attrs["value"] >= 0 for op, _ in spaces[0]._places)
