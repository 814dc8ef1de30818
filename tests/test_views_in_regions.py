"""Loops and branches that are given views: a reshape in the body that merges dims needs elements side by side, whatever the array outside looks like. Second derivatives
of functions that are made of loops come to this when they are batched. Workspaces are full of NaN, so that what is read and was not written is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sweep
from lowering_harness import Program
from test_lowering_control import region, scan

import aotgrad as ag
from aotgrad.ir import interp, tensor_type
from aotgrad.ir.builder import build
from aotgrad_runtime.dtypes import float64

F = ag.nn.functional
RNG = np.random.default_rng(5)


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape)


VIEWS: dict[str, tuple[Any, Callable[..., Any]]] = {
    "dense": ((2, 3, 2, 4), lambda b, x: x),
    "repeated first": ((2, 2, 4), lambda b, x: b.broadcast(x, shape=(2, 3, 2, 4), dims=(0, 2, 3))),
    "repeated last": ((2, 3, 2), lambda b, x: b.broadcast(x, shape=(2, 3, 2, 4), dims=(0, 1, 2))),
    "permuted": ((4, 3, 2, 2), lambda b, x: b.permute(x, perm=(2, 1, 3, 0))),
    "swapped": ((2, 3, 2, 4), lambda b, x: b.permute(x, perm=(2, 1, 0, 3))),
    "every second": ((2, 3, 4, 8), lambda b, x: b.slice(x, starts=(0, 0, 0, 1), sizes=(2, 3, 2, 4), steps=(1, 1, 2, 2))),
    "backwards": ((2, 3, 2, 4), lambda b, x: b.slice(x, starts=(0, 2, 0, 0), sizes=(2, 3, 2, 4), steps=(1, -1, 1, 1))),
    "stored as it was permuted": ((4, 3, 2, 2), lambda b, x: b.exp(b.permute(x, perm=(2, 1, 3, 0)))),
}
READS: dict[str, Callable[..., Any]] = {
    "elements": lambda b, x: b.mul(b.reshape(x, shape=(6, 4)), b.reshape(x, shape=(6, 4))),
    "sum": lambda b, x: b.sum(b.reshape(x, shape=(6, 4)), dims=(0,)),
    "product": lambda b, x: b.dot(b.reshape(x, shape=(6, 4)), b.permute(b.reshape(x, shape=(6, 4)), perm=(1, 0))),
    "reshape alone": lambda b, x: b.reshape(x, shape=(24,)),
    "view of it": lambda b, x: b.permute(b.reshape(x, shape=(3, 8)), perm=(1, 0)),
    "sorted": lambda b, x: b.cumsum(b.reshape(x, shape=(6, 4)), dim=0),
    "joined": lambda b, x: b.concatenate(b.reshape(x, shape=(6, 4)), b.reshape(x, shape=(6, 4)), dim=0),
    "in a loop": lambda b, x: scan(b, (b.reshape(x, shape=(4, 6)),), (), (b.reshape(x, shape=(6, 4)),), 6, lambda b, c, r: b.dot(b.reshape(r, shape=(1, 4)), c))[0],
}


def rows(b: Any, v: Any, read: Any) -> Any:
    return scan(b, (), (), (v,), 2, lambda b, x: read(b, x))


def constant(b: Any, v: Any, read: Any) -> Any:
    one = b.reshape(b.slice(v, starts=(1, 0, 0, 0), sizes=(1, 3, 2, 4), steps=(1, 1, 1, 1)), shape=(3, 2, 4))
    return scan(b, (one,), (b.scalar(0.0, float64),), (), 3, lambda b, x, c: (b.add(c, b.sum(b.reshape(x, shape=(24,)), dims=(0,))), read(b, x)))


def branch(b: Any, v: Any, read: Any) -> Any:
    one = b.reshape(b.slice(v, starts=(1, 0, 0, 0), sizes=(1, 3, 2, 4), steps=(1, 1, 1, 1)), shape=(3, 2, 4))
    on = b.lt(b.scalar(0.0, float64), b.scalar(1.0, float64))
    return b.emit("cond", [on, one], {}, (region([one.type], read), region([one.type], lambda b, x: read(b, b.neg(x)))))


@pytest.mark.parametrize("role", (rows, constant, branch), ids=lambda f: f.__name__)
@pytest.mark.parametrize("view", VIEWS)
def test_reshapes_of_what_a_body_is_given(view: str, role: Any) -> None:
    shape, make = VIEWS[view]

    def body(b: Any, x: Any) -> list[Any]:
        v = make(b, x)
        return [r for read in READS.values() for r in role(b, v, read)]

    func, x = build("f", [tensor_type(shape)], body), normal(*shape)
    for got, want in zip(Program(func)(x, guard=True), interp.run(func, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-13)


# ---- second derivatives, batched -------------------------------------------------------------------------------------------------------

X, Y, W = np.sin(np.arange(12.0)).reshape(3, 4), np.cos(np.arange(12.0)).reshape(3, 4), np.tan(np.arange(8.0)).reshape(2, 4)
P = 0.1 + 0.8 / (1 + np.exp(-X))
LABELS = np.array([2, 0, 1])
SLOPE, ROOM = np.array([0.25, -0.5, 0.75]), np.array([[True, False, True], [True, True, True], [False, True, True]])
KINKS = (F.hardtanh, F.hardsigmoid, F.hardswish, F.softshrink, F.hardshrink, F.leaky_relu, F.relu6)
SMOOTH = (F.elu, F.celu, F.selu, F.silu, F.mish, F.gelu, F.logsigmoid, F.softplus, F.softsign, F.tanhshrink)
SECOND: dict[str, Callable[..., Any]] = {
    "attention, queries": lambda x: F.scaled_dot_product_attention(x, Y, X),
    "attention, keys": lambda x: F.scaled_dot_product_attention(X, Y * x, X),
    "attention, values": lambda x: F.scaled_dot_product_attention(X, Y, x * x),
    "attention, linear": lambda x: F.scaled_dot_product_attention(Y, X, Y + x) * x[0, 0] ** 0,
    "attention, causal": lambda x: F.scaled_dot_product_attention(x, x, Y * x, is_causal=True),
    "attention, bool": lambda x: F.scaled_dot_product_attention(x, Y, x, attn_mask=ROOM),
    "attention, add": lambda x: F.scaled_dot_product_attention(x, Y, X, attn_mask=x[:, :3]),
    "attention, heads": lambda x: F.scaled_dot_product_attention(x.reshape(2, 3, 2), Y.reshape(2, 3, 2), x.reshape(2, 3, 2)),
    "kinks": lambda x: sum(f(3 * x).sum() * (i + x[0]) for i, f in enumerate(KINKS)),
    "smooth": lambda x: sum(f(x).sum() * (i + x[0]) for i, f in enumerate(SMOOTH)),
    "glu, threshold": lambda x: F.glu(x * x) + F.gelu(x, "tanh")[:, :2] * F.threshold(x, 0.1, 2.0)[:, 2:],
    "prelu": lambda x: F.prelu(x, x[0, :1]),
    "losses": lambda x: F.kl_div(x, P) * sum((i + x[0]) * f(x * x, Y) for i, f in enumerate((F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss))),
    "entropies": lambda x: (F.binary_cross_entropy(1 / (1 + ag.exp(-x)), P) * F.binary_cross_entropy_with_logits(x, P, weight=Y * Y)) * F.cross_entropy(x, LABELS),
    "nll": lambda x: F.nll_loss(F.log_softmax(x * x, 1), LABELS) * F.cross_entropy(x, P, label_smoothing=0.1),
    "layer_norm": lambda x: F.layer_norm(x, (4,), x[0], x[1]),
    "group_norm": lambda x: F.group_norm(x, 2, x[0], x[1]),
    "batch_norm": lambda x: F.batch_norm(x, None, None, x[0], x[1], training=True),
    "norm, running": lambda x: F.batch_norm(x * x, Y[0], Y[1] ** 2, x[0], x[1]),
    "rms_norm": lambda x: F.rms_norm(x, (4,), x[0]) + F.normalize(x, dim=1) * F.cosine_similarity(x, Y).sum(),
    "embedding": lambda x: F.embedding(LABELS, x) ** 2,
    "softmax": lambda x: F.softmax(x, 0) * F.softmin(x, 1),
    "convolution": lambda x: F.conv2d(x.reshape(1, 1, 3, 4), x[:2, :2].reshape(1, 1, 2, 2), padding=1),
    "pooling": lambda x: F.max_pool2d((x * x).reshape(1, 1, 3, 4), 2, stride=1) * F.avg_pool2d(x.reshape(1, 1, 3, 4), 2, stride=1),
    "recurrent": lambda x: recurrent(x),
}


def recurrent(x: Any) -> Any:
    """A layer in a loop."""
    return ag.scan(lambda h, row: (F.layer_norm(h @ Y.T @ X + row, (4,)), F.scaled_dot_product_attention(x, h.reshape(1, 4), row.reshape(1, 4)).sum()), x[0], x)[0]


@pytest.mark.parametrize("name", sweep.part(SECOND, of=8))
def test_second_derivatives_of_what_is_made_of_operations(name: str) -> None:
    """Both ways to a Hessian in one compiled program; its workspace full of NaN, its buffers between pages that cannot be touched."""
    def energy(x: Any) -> Any:
        return ag.sum(ag.sin(SECOND[name](x)))

    def both(x: Any) -> Any:
        return ag.jacfwd(ag.grad(energy))(x), ag.jacrev(ag.grad(energy))(x)

    f, x = ag.compile(both), 0.7 * X + 0.2
    want = ag.jacrev(ag.grad(energy))(x)
    scale = max(1.0, float(np.abs(want).max()))
    assert np.isfinite(want).all() and want.any()
    found, variant = f(x), f.trace.__self__.all()[0]
    for got in (*found, *Program(variant.func)(*variant.arguments([x]), guard=True)):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-11 * scale)


def test_hessians_of_what_is_linear() -> None:
    """No derivative of the loops inside has a result then."""
    for f in (lambda x: F.scaled_dot_product_attention(Y, X, Y + x).sum(), lambda x: ag.scan(lambda c, r: (c + r, ()), x[0], x)[0].sum(), lambda x: F.linear(x, W).sum()):
        found = ag.compile(lambda x, f=f: (ag.hessian(f)(x), ag.jacfwd(ag.grad(f))(x), ag.jacrev(ag.grad(f))(x)))(X)
        for got in found:
            assert got.shape == (3, 4, 3, 4) and not got.any()
