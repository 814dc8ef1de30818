"""float16 and bfloat16 in eager code: every function beside its result in float32, and torch's meaning of numbers beside such tensors."""

from __future__ import annotations

import numpy as np
import pytest
import sweep
import test_nn_functional as lines
import user_table as table

import aotgrad as ag
from aotgrad_runtime.arrays import decode

DTYPES = {"bfloat16": ag.bfloat16, "float16": ag.float16}
UNDERFLOW = {"float16": {"F.normalize(x, dim=1)"}}  # its eps of 1e-12 is 0 in float16, in torch too
LEVEL = ("F.normalize(", "F.cosine_similarity(", "F.rms_norm(", "F.layer_norm(", "F.group_norm(", "F.instance_norm(", "F.batch_norm(")
"""Gradients of these are differences of numbers as large as the cotangents, some of them 0."""


def _cases():
    """Name, function, its arrays, which of them are differentiated."""
    for name in table.public():
        for k, (f, xs) in enumerate(table.rows(name)):
            yield f"{name}{k}", f, xs, [True] * len(xs)
    for line, floats, ints in lines.LINES:
        if line != "F.dropout(x, 1.0)":
            f, leaves, _ = lines._call(ag, line, floats, ints)
            yield line, f, (*floats, *ints), [x.requires_grad for x in leaves] + [False] * len(ints)


CASES = {name: rest for name, *rest in _cases()}


def _leaves(out):
    return [leaf for o in out for leaf in _leaves(o)] if isinstance(out, (tuple, list)) else [out]


def _rounded(x, dtype):
    return np.asarray(ag.tensor(x, dtype=dtype).double().numpy())


def _run(f, xs, on, dtype):
    """Results and gradients as float64, and which of them are floats."""
    given = [ag.tensor(x, dtype=dtype if x.dtype.kind == "f" else None) for x in xs]
    for x, live in zip(given, on):
        x.requires_grad_(live and x.dtype.is_floating_point)
    outs = _leaves(f(*given))
    rng = np.random.default_rng(3)
    live = [o for o in outs if o.requires_grad]
    if live:
        ag.autograd.backward(live, [ag.tensor(_rounded(np.asarray(rng.normal(size=tuple(o.shape))), ag.bfloat16), dtype=o.dtype) for o in live])
    moved = [x.grad for x in given if x.requires_grad]
    assert all(o.dtype is dtype for o in moved if o is not None)
    return [(o.detach().double().numpy(), o.dtype) for o in outs], [None if g is None else g.double().numpy() for g in moved]


@pytest.mark.parametrize("name, dtype", sweep.part(CASES, DTYPES, of=5))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_function_beside_float32(name, dtype):
    """Of numbers that the dtype has: what is computed is the float32 result, rounded; gradients of several steps differ by a little more."""
    if name in UNDERFLOW.get(dtype, ()):
        pytest.skip("its eps is 0 in this dtype")
    f, xs, on = CASES[name]
    kind, eps = DTYPES[dtype], ag.finfo(DTYPES[dtype]).eps
    xs = [_rounded(x, kind) if x.dtype.kind == "f" else x for x in map(np.asarray, xs)]
    (want, pulled), (got, moved) = _run(f, xs, on, ag.float32), _run(f, xs, on, kind)

    def close(a, b, least):
        b = _rounded(b, kind)  # overflow is of the dtype
        whole = np.isfinite(b)
        scale = max(float(np.max(np.abs(b), initial=0.0, where=whole)), least)
        np.testing.assert_array_equal(np.where(whole, 0.0, a), np.where(whole, 0.0, b))
        np.testing.assert_allclose(a[whole], b[whole], rtol=0, atol=2 * eps * scale)

    for (a, da), (b, db) in zip(got, want, strict=True):
        assert da is (kind if db is ag.float32 and not name.startswith("convert") else db)
        if db.is_floating_point:
            close(a, b, 0.0)
        else:
            np.testing.assert_array_equal(a, b)
    for a, b in zip(moved, pulled, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            close(a, b, 1.0 if name.startswith(LEVEL) else 0.0)


ALIKE = [
    "x * 0.1", "0.1 * x", "x + 0.1", "0.7 - x", "x / 0.3", "x ** 0.5", "x ** 1.5", "x ** 0.1", "x ** -1", "x ** 2", "x == 0.3", "x > 0.3", "x < 0.3", "m.fmod(x, 0.1)",
    "m.clamp(x, 0.31, 0.7)", "m.maximum(x, m.tensor(0.3))", "m.where(x > 1, x, 0.3)", "x * 3", "x // 0.3", "x.nan_to_num()", "(x / 0).nan_to_num()", "m.lerp(x, -x, 0.1)",
    "F.hardtanh(x)", "F.hardtanh(x, -0.5, 0.5)", "F.threshold(x, 0.3, 0.1)", "F.gelu(x)", "F.leaky_relu(-x)", "F.hardshrink(x)", "F.softshrink(x)",
    "F.layer_norm(x * 0, (5,))", "F.group_norm(x.reshape(1, 5) * 0, 1)", "F.rms_norm(x * 1e-4, (5,))",
    "F.smooth_l1_loss(x, 0 * x, reduction='none')", "F.huber_loss(x, 0 * x, reduction='none')",
    "m.full((2,), 0.1, dtype=x.dtype)", "m.tensor([0.1, 1e-3], dtype=x.dtype)",
]


ROUNDED_HALF = ("x + 0.1", "0.7 - x", "m.fmod(x, 0.1)")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("line", ALIKE)
def test_numbers_beside_half_tensors_as_torch(line, dtype):
    torch = pytest.importorskip("torch")
    if dtype == "float16" and line in ROUNDED_HALF:
        pytest.skip("torch rounds the number to float16 first, which takes digits from it")
    found = []
    for m in (torch, ag):
        x = m.tensor([1.0, 3.0, 7.0, 0.3, 123.0], dtype=getattr(m, dtype))
        out = eval(line, {"m": m, "F": m.nn.functional, "x": x})
        found.append((str(out.dtype).rpartition(".")[2], out.tolist()))
    assert found[1] == found[0]


def test_attention_of_bfloat16():
    rng = np.random.default_rng(7)
    q, k, v = (ag.tensor(rng.normal(size=(2, 5, 4)), dtype=ag.bfloat16, requires_grad=True) for _ in range(3))
    wide = [x.detach().float().requires_grad_(True) for x in (q, k, v)]
    for args in ((q, k, v), wide):
        ag.nn.functional.scaled_dot_product_attention(*args, is_causal=True).sum().backward()
    for x, y in zip((q, k, v), wide):
        assert x.grad.dtype is ag.bfloat16
        np.testing.assert_allclose(decode(x.grad._data), y.grad.numpy(), atol=2**-8 * float(np.abs(y.grad.numpy()).max()))


@pytest.mark.parametrize("name", ["gelu", "silu", "softplus", "selu", "mish"])
def test_float16_functions_are_rounded_once_by_every_road(name):
    f, x = getattr(ag.nn.functional, name), ag.tensor(np.random.default_rng(1).normal(size=50) * 3, dtype=ag.float16)
    want = f(x.float()).numpy().astype(np.float16)
    for got in (f(x), ag.compile(f)(x)):
        np.testing.assert_array_max_ulp(got.numpy(), want, 1)


@pytest.mark.parametrize("f", [
    lambda x, y: x @ y,
    lambda x, y: ag.relu(x @ y) * 0.3,
    lambda x, y: ag.einsum("ij,jk->ki", x, y),
    lambda x, y: ag.stack([row @ y for row in x[:3]]),
    lambda x, y: x[0] @ y[:, 0],
    lambda x, y: ag.cumsum(x, 1),
    lambda x, y: ag.nn.functional.conv1d(x[None], y.T[:, None, :9].expand(24, 20, 9)),
    lambda x, y: ag.nn.functional.avg_pool1d(x, 100),
], ids=["product", "with what follows", "turned", "rows", "one", "running sum", "convolution", "windows"])
def test_sums_of_float16_are_made_in_float32(f):
    """Compiled and eager, values and gradients: within a unit in the last place of the same in float32."""
    rng = np.random.default_rng(8)
    x, y = (ag.tensor(rng.random(s), dtype=ag.float16) for s in ((20, 512), (512, 24)))
    want = [np.asarray(o.numpy(), np.float64) for o in ag.vjp(f, x.float(), y.float())[1](f(x.float(), y.float()).detach().half().float() / 64)]
    for g in (f, ag.compile(f)):
        got = g(x, y)
        np.testing.assert_allclose(got.double().numpy(), f(x.float(), y.float()).double().numpy(), rtol=2e-3)
        for one, other in zip(ag.vjp(g, x, y)[1](got.detach() / 64), want):
            np.testing.assert_allclose(one.double().numpy(), other, rtol=4e-3, atol=4e-3 * np.abs(other).max())


@pytest.mark.parametrize("f", [lambda x, y: (x @ y).to(ag.float16), lambda x, y: (x @ y) + (x @ y).half(), lambda x, y: ((x @ y).half() * 0.3).sum(1)])
def test_what_follows_a_product_may_be_float16(f):
    x, y = (ag.tensor(np.random.default_rng(9).random(s), dtype=ag.float32) for s in ((17, 9), (9, 33)))
    got, want = ag.compile(f)(x, y), f(x, y)
    assert got.dtype is want.dtype and got.equal(want)


@pytest.mark.parametrize("name", ["sum", "nansum", "prod", "nanprod", "cumsum", "cumprod", "mean"])
def test_what_adds_up_float16_is_rounded_once_and_verified(name: str) -> None:
    f = getattr(np, name)
    for n in (3, 17, 1000):
        x = (np.random.default_rng(n).random(n) * 0.4 + 0.8).astype(np.float16)
        got = ag.compile(f, verify=1)(x)
        assert got.dtype == np.float16
        np.testing.assert_allclose(got.astype(float), f(x.astype(float)), rtol=2.0**-10, atol=2.0**-24)  # the spacing, also of subnormal numbers
    ag.compile(ag.grad(lambda x: np.sum(f(x))), verify=1)(x[:17])


@pytest.mark.parametrize("other", ["float64", "float32", "float16", "int64", "int8", "uint8", "bool"])
def test_conversions_to_and_from_bfloat16_compiled(other: str) -> None:
    """On every processor, with and without instructions for it: ties, NaN, infinities and subnormals too."""
    bits = np.arange(0, 2**16, 37, dtype=np.uint16)
    floats = np.concatenate([(bits.astype(np.uint32) << 16 | low).view(np.float32) for low in (0, 1, 0x7FFF, 0x8000, 0x8001)])
    dtype = getattr(ag, other)
    held = ag.from_numpy(floats).to(ag.bfloat16)
    if dtype.kind in "iub":
        held = ag.where(held.float().abs() < 100, held.float(), 0.5).to(ag.bfloat16)
    there = ag.compile(lambda x: x.to(dtype))(held)
    np.testing.assert_array_equal(there.numpy(), held.to(dtype).numpy())
    given = ag.from_numpy(floats).to(dtype) if dtype.kind == "f" else held.to(dtype)
    back = ag.compile(lambda x: x.to(ag.bfloat16))(given)
    assert back.dtype is ag.bfloat16
    np.testing.assert_array_equal(back._data, given.to(ag.bfloat16)._data)
    turned = given[: len(given) // 6 * 6].reshape(6, -1).t()[1:, ::2]
    assert ag.compile(lambda x: x.to(ag.bfloat16))(turned).float().nan_to_num().equal(turned.to(ag.bfloat16).float().nan_to_num())
