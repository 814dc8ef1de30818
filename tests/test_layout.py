"""The choice of layouts: what is written in NCHW runs as what is written in channels_last, changes of layout are at the doors, and every value is as it was."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

import aotgrad as ag
from aotgrad.frontend import kernels
from aotgrad.ir import Builder, Func, Layout, TensorType, Value, build, interp, tensor_type
from aotgrad.ir.mincut import Cut
from aotgrad.ir.passes import parse_pipeline, run_pipeline
from aotgrad.ir.transforms.layout import Layouts, moves
from aotgrad.ir.verifier import verify

F = ag.nn.functional
LAST = Layout.channels_last(4)


def last(x: Any) -> Any:
    """A copy in channels_last."""
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def is_last(x: Any) -> bool:
    return bool(x.transpose(0, 2, 3, 1).flags.c_contiguous)


def chain(x: Any, w1: Any, w2: Any, scale: Any, shift: Any) -> Any:
    """Convolution, batch norm, relu, convolution, the residual, relu, pooling."""
    y = F.relu(F.batch_norm(F.conv2d(x, w1, None, 1, 1), None, None, scale, shift, training=True))
    y = F.relu(F.conv2d(y, w2, None, 1, 1) + F.conv2d(x, w1, None, 1, 1))
    return F.max_pool2d(y, 2)


def arguments(channels: int = 24, size: int = 12) -> list[Any]:
    rng = np.random.default_rng(3)
    return [rng.standard_normal(s, dtype=np.float32) for s in ((2, 5, size, size), (channels, 5, 3, 3), (channels, channels, 3, 3), (channels,), (channels,))]


def loss(*args: Any) -> Any:
    return (chain(*args) ** 2).sum()


def relayouts(f: Any, *args: Any) -> list[str]:
    return [line for line in f.explain(*args).splitlines() if line.startswith("  relayout")]


def test_only_the_doors_of_a_residual_chain_change_layouts() -> None:
    args = arguments()
    f = ag.compile(chain)
    got = f(*args)
    found = relayouts(f, *args)
    assert len(found) == 1 and "'turned in a loop'" in found[0] and "'6', '6'" in found[0], found  # the result; both convolutions read x as it lies
    assert got.flags.c_contiguous
    np.testing.assert_allclose(got, interp.run(f.trace(*args), *args)[0], rtol=2e-4, atol=2e-4)
    assert f.lower(*args).tensor_ir.count("ag.relayout") > 2  # of broadcasts, which are no arrays


def test_gradients_change_layouts_only_where_weights_and_images_come_in_and_go_out() -> None:
    args = arguments()
    f = ag.compile(ag.value_and_grad(loss, argnums=(0, 1, 2, 3, 4)))
    value, grads = f(*args)
    found = relayouts(f, *args)
    assert len(found) == 1 and "'2', '5', '12', '12'" in found[0], found  # x's gradient: weights get theirs in their own order, and nothing is moved in between
    assert "moved" not in f.explain(*args)
    want = interp.run(f.trace(*args), *args)
    for a, b in zip((value, *grads), want):
        assert a.flags.c_contiguous
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3 * float(np.abs(b).max()))


def test_results_keep_the_format_that_was_asked_for() -> None:
    args = arguments()
    for x, w in itertools.product((False, True), repeat=2):
        given = [last(a) if (x if i == 0 else w) and a.ndim == 4 else a for i, a in enumerate(args)]
        y, (gx, gw, *_) = ag.compile(lambda *a: (chain(*a), ag.grad(loss, argnums=(0, 1, 2, 3, 4))(*a)))(*given)
        assert is_last(y) is (x or w) and is_last(gx) is x and is_last(gw) is w
        np.testing.assert_allclose(y, ag.compile(chain)(*args), rtol=2e-4, atol=2e-4)
    asked = ag.compile(lambda x, w: (F.conv2d(F.conv2d(x, w), w).to(memory_format=ag.channels_last), F.conv2d(x, w)))
    x, w = ag.rand(1, 16, 20, 20), ag.rand(16, 16, 3, 3)
    for made, order in zip(asked(x, w), (ag.channels_last, ag.contiguous_format)):
        assert made.is_contiguous(memory_format=order)


def test_nothing_changes_where_nothing_prefers_a_layout() -> None:
    def body(b: Builder, x: Value) -> Value:
        return b.relayout(b.exp(b.relayout(x, layout=LAST)), layout=None)

    f = build("f", [tensor_type([2, 3, 4, 5], "float32")], body)
    assert Layouts()(f) is f
    one = build("g", [tensor_type([1, 32, 28, 28], "float32"), tensor_type([32, 32, 3, 3], "float32")],
                lambda b, x, w: b.conv(x, w, stride=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1)))
    assert str(Layouts()(one)) == str(one)  # it reads and writes NCHW about as fast


def test_a_round_trip_cancels() -> None:
    def body(b: Builder, x: Value, w: Value) -> Value:
        y = b.conv(x, w, stride=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1))
        y = b.relu(b.relayout(b.relayout(y, layout=None), layout=LAST))
        return b.conv(b.relayout(y, layout=None), w, stride=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1))

    types = [tensor_type([1, 32, 28, 28], "float32", LAST), tensor_type([32, 32, 3, 3], "float32", LAST)]
    f = run_pipeline(build("f", types, body), parse_pipeline("decompose,layout"))
    verify(f)
    assert not moves(f) and f.out_types[0].layout is not None


def test_loops_of_the_program_have_their_own_choice() -> None:
    def f(x: Any, w: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            y = F.conv2d(F.relu(F.conv2d(carry, w, None, 1, 1)), w, None, 1, 1)
            return F.relu(y) * 0.1 + carry, y.sum()

        return ag.scan(step, x, None, length=3)

    x, w = np.random.default_rng(0).standard_normal((1, 16, 14, 14)), np.random.default_rng(1).standard_normal((16, 16, 3, 3)) * 0.1
    g = ag.compile(f)
    for a, b in zip(g(x, w), interp.run(g.trace(x, w), x, w)):
        np.testing.assert_allclose(a, b, rtol=1e-9)
    assert "order = [0, 2, 3, 1]" in g.lower(x, w).tensor_ir


def small_unet(x: Any, w1: Any, w2: Any, up: Any, w3: Any, rows: Any) -> Any:
    """A skip that is joined to what comes back from below; padded, mirrored and shifted on the way."""
    skip = F.relu(F.conv2d(x, w1, None, 1, 1))
    low = F.relu(F.conv2d(F.max_pool2d(skip, 2), w2, None, 1, 1))
    back = F.conv_transpose2d(low, up, None, 2)
    joined = F.pad(ag.cat((skip, ag.flip(back, (3,))), 1), (1, 1, 1, 1))
    picked = ag.roll(joined, 1, 2)[:, :, rows]
    return F.relu(F.conv2d(picked, w3))


def test_a_unet_in_nchw_changes_layouts_at_its_door_alone() -> None:
    rng = np.random.default_rng(5)
    args = [rng.standard_normal(s) * 0.3 for s in ((2, 3, 12, 12), (16, 3, 3, 3), (24, 16, 3, 3), (24, 16, 2, 2), (16, 32, 3, 3))]
    args.append(np.arange(13, -1, -1))
    f = ag.compile(small_unet)
    got = f(*args)
    assert relayouts(f, *args) == []  # the last convolution writes the result in its order
    assert [line.count("order = [0, 2, 3, 1]") for line in f.lower(*args).tensor_ir.splitlines() if "ag.concatenate" in line] == [3, 3]  # of two and one; cat and roll
    assert got.flags.c_contiguous
    np.testing.assert_allclose(got, interp.run(f.trace(*args), *args)[0], rtol=1e-9, atol=1e-9)
    g = ag.compile(ag.value_and_grad(lambda *a: (small_unet(*a) ** 2).sum(), argnums=(0, 1, 2, 3, 4)))
    value, grads = g(*args)
    assert [line for line in relayouts(g, *args) if "'3', '12', '12'" not in line] == []  # the image's gradient, where it is turned at all
    for a, b in zip((value, *grads), interp.run(g.trace(*args), *args)):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * float(np.abs(b).max()))
    small = [args[0][:1, :, ::3, ::3].copy(), *args[1:5]]
    leaves = [ag.tensor(a, requires_grad=True) for a in small]
    ag.autograd.gradcheck(ag.compile(lambda *a: small_unet(*a, np.arange(5, -1, -1))), leaves, fast_mode=True)


@pytest.mark.parametrize("move", (
    lambda x, y: ag.cat((x, y), 1), lambda x, y: ag.cat((x, y), 2), lambda x, y: F.pad(x, (1, 2, 0, 1)), lambda x, y: ag.flip(x, (1, 2)),
    lambda x, y: ag.roll(x, (1, 2), (2, 3)), lambda x, y: F.pad(ag.exp(x), (1, 1), value=2.0)))
def test_moves_keep_channels_last_as_in_eager(move: Any) -> None:
    x, y = (ag.tensor(last(np.random.default_rng(i).standard_normal((2, 4, 5, 6)))) for i in (0, 1))
    for p, q in ((x, y), (x.contiguous(), y.contiguous()), (x, y.contiguous())):
        eager, compiled = move(p, q), ag.compile(move)(p, q)
        assert compiled.stride() == eager.stride()
        np.testing.assert_array_equal(compiled.numpy(), eager.numpy())
        _, pull = ag.vjp(ag.compile(move), p, q)
        for a, b in zip(pull(eager), ag.vjp(move, p, q)[1](eager)):
            assert (a is None) == (b is None)
            if a is not None:
                np.testing.assert_array_equal(a.numpy(), b.numpy())


# ---- random programs ----------------------------------------------------------------------------------------------------------------------

def random_program(seed: int) -> Func:
    """Images through a few ops of every kind, in and out in any layout."""
    rng = random.Random(seed)
    types = [TensorType((2, 4, 5, 6), ag.float64, rng.choice((None, LAST))), TensorType((4, 4, 3, 3), ag.float64, rng.choice((None, LAST))),
             TensorType((4, 1, 3, 3), ag.float64), TensorType((4,), ag.float64)]
    conv: dict[str, Any] = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1)}

    def body(b: Builder, x: Value, w: Value, deep: Value, c: Value) -> list[Value]:
        images, sums = [x], []
        for _ in range(rng.randrange(3, 12)):
            p, q = rng.choice(images), rng.choice(images)
            kind = rng.randrange(15)
            if kind == 0:
                images.append(b.conv(p, w, **conv))
            elif kind == 1:
                images.append(b.conv_input_grad(p, deep, groups=4, spatial=(5, 6), **conv))
            elif kind == 2:
                sums.append(b.conv_weight_grad(p, q, kernel=(3, 3), **conv))
            elif kind == 3:
                images.append(b.add(b.tanh(p), b.mul(q, b.broadcast(c, shape=(2, 4, 5, 6), dims=(1,)))))
            elif kind == 4:
                images.append(b.where(b.gt(p, q), p, b.neg(q)))
            elif kind == 5:
                images.append(b.relayout(p, layout=rng.choice((None, LAST, Layout((1, 0, 3, 2))))))
            elif kind == 6:
                images.append(b.permute(b.permute(p, perm=(0, 2, 3, 1)), perm=(0, 3, 1, 2)))
            elif kind == 7:
                images.append(b.window_max(p, count=(5, 6), kernel=(3, 3), stride=(1, 1), low=(1, 1), dilation=(1, 1)))
            elif kind == 8:
                images.append(b.slice(b.concatenate(p, q, dim=1), starts=(0, 2, 0, 0), sizes=(2, 4, 5, 6), steps=(1, 1, 1, 1)))
            elif kind == 9:
                sums.append(b.sum(p, dims=rng.choice(((0, 2, 3), (0,), (1,), (0, 1, 2, 3)))))
            elif kind == 10:
                part = b.slice(q, starts=(0, 1, 2, 5), sizes=(2, 2, 3, 3), steps=(1, 1, 1, -2))
                images.append(b.emit(rng.choice(("insert", "insert_add")), [p, part], {"starts": (0, 2, 0, 1), "steps": (1, 1, 2, 1)})[0])
            elif kind == 11:
                dim = rng.randrange(4)
                images.append(b.take(p, b.array(np.random.default_rng(seed).integers(0, (2, 4, 5, 6)[dim], (2, 4, 5, 6)[dim])), dim=dim))
            elif kind == 12:
                name, dim = rng.choice(("scatter", "scatter_add")), rng.randrange(4)
                index = b.array(np.random.default_rng(seed).permutation((2, 4, 5, 6)[dim])[:2])
                part = b.slice(q, starts=(0,) * 4, sizes=tuple(2 if d == dim else n for d, n in enumerate((2, 4, 5, 6))), steps=(1,) * 4)
                images.append(b.emit(name, [p, index, part], {"dim": dim})[0])
            elif kind == 13:
                wide = b.insert(b.full(shape=(2, 4, 7, 8), value=0.5, dtype=p.type.dtype), p, starts=(0, 0, 1, 2), steps=(1,) * 4)
                images.append(b.slice(b.tanh(wide), starts=(0, 0, 2, 0), sizes=(2, 4, 5, 6), steps=(1,) * 4))
            else:
                images.append(b.to_shape(b.to_shape(p, (2, 120)), (2, 4, 5, 6)))
        return [*rng.sample(images, min(3, len(images))), *sums, images[-1]]

    return build("f", types, body)


@pytest.mark.parametrize("seed", range(32))
def test_random_programs_keep_their_values_and_ends(seed: int) -> None:
    f = random_program(seed)
    verify(f)
    g = Layouts()(f)
    verify(g)
    assert g.arg_types == f.arg_types and g.out_types == f.out_types
    rng = np.random.default_rng(seed)
    args = [rng.standard_normal([int(d) for d in t.shape]) for t in f.arg_types]
    for a, b in zip(interp.run(g, *args), interp.run(f, *args)):
        np.testing.assert_array_equal(a, b)
    if seed < 12:
        for a, b in zip(kernels.run_flat(kernels.build(f, "f"), args), interp.run(f, *args)):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def test_the_cut_is_the_cheapest() -> None:
    rng = random.Random(0)
    for _ in range(60):
        n = rng.randrange(1, 7)
        alone = [(rng.randrange(6), rng.randrange(6)) for _ in range(n)]
        pairs = [(rng.randrange(n), rng.randrange(n), rng.randrange(5)) for _ in range(rng.randrange(10))]
        cut = Cut()
        nodes = [cut.node() for _ in range(n)]
        for i, (first, second) in enumerate(alone):
            cut.price(nodes[i], first, second)
        for i, j, price in pairs:
            cut.apart(nodes[i], nodes[j], price)

        def cost(side: Any, alone: Any = alone, pairs: Any = pairs) -> int:
            return sum(alone[i][s] for i, s in enumerate(side)) + sum(p for i, j, p in pairs if side[i] != side[j])

        second = cut.second()
        sides = [s for s in itertools.product((0, 1), repeat=n) if cost(s) == min(map(cost, itertools.product((0, 1), repeat=n)))]
        got = tuple(int(v in second) for v in nodes)
        assert got in sides and sum(got) == min(map(sum, sides))
