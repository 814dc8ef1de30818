"""Scaled-dot-product attention beside its definition in NumPy: values and gradients, masks, sizes around those of blocks, derivatives of derivatives, memory, errors."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import sweep

import aotgrad as ag
from aotgrad.nn import _attention
from aotgrad_runtime.errors import AotgradError

attention = ag.nn.functional.scaled_dot_product_attention
rng = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return rng.standard_normal(shape)


def scores(q: Any, k: Any, mask: Any, causal: bool, scale: float | None) -> Any:
    s = q @ k.swapaxes(-1, -2) * (1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale)
    if causal:
        mask = np.tril(np.ones(s.shape[-2:], bool))
    if mask is not None:
        s = np.where(mask, s, -np.inf) if mask.dtype == bool else s + mask
    return s


def by_hand(q: Any, k: Any, v: Any, g: Any, mask: Any = None, causal: bool = False, scale: float | None = None) -> list[Any]:
    """Value and the gradients of q, k, v and an added mask, before they are summed over what was broadcast."""
    s = scores(q, k, mask, causal, scale)
    top = s.max(-1, keepdims=True, initial=-np.inf)
    e = np.exp(s - np.where(np.isinf(top), 0, top))
    p = e / np.where((total := e.sum(-1, keepdims=True)) == 0, 1, total)
    dp = g @ v.swapaxes(-1, -2)
    ds = p * (dp - (dp * p).sum(-1, keepdims=True))
    by = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale
    return [p @ v, ds @ k * by, ds.swapaxes(-1, -2) @ q * by, p.swapaxes(-1, -2) @ g, ds]


def summed(x: Any, shape: tuple[int, ...]) -> Any:
    x = x.sum(tuple(range(x.ndim - len(shape))))
    return x.sum(tuple(d for d, n in enumerate(shape) if n == 1), keepdims=True).reshape(shape)


def compare(q: Any, k: Any, v: Any, mask: Any = None, tolerance: float = 1e-11, **options: Any) -> None:
    adds = mask is not None and mask.dtype != bool
    g = rng.standard_normal((*np.broadcast_shapes(q.shape[:-2], k.shape[:-2]), q.shape[-2], v.shape[-1])).astype(q.dtype)
    want = by_hand(q, k, v, g, mask, options.get("is_causal", False), options.get("scale"))
    args = (q, k, v, mask) if adds else (q, k, v)

    def f(*a: Any) -> Any:
        return attention(*a[:3], a[3] if adds else mask, **options)

    def both(*a: Any) -> Any:
        out, pull = ag.vjp(f, *a[:-1])
        return out, *pull(a[-1])

    tensors = [ag.tensor(a, requires_grad=True) for a in args]
    out = f(*tensors)
    out.backward(ag.tensor(g))
    for found in (ag.compile(both)(*args, g), [out.detach().numpy(), *(t.grad.numpy() for t in tensors)]):
        np.testing.assert_allclose(found[0], want[0], rtol=0, atol=tolerance)
        for a, got, expected in zip(args, found[1:], want[1:]):
            np.testing.assert_allclose(got, summed(expected, a.shape), rtol=0, atol=tolerance * max(1, a.size**0.5))


@pytest.mark.parametrize("sizes, causal", sweep.part(
    ((5, 7, 8, 6), (1, 1, 1, 1), (7, 5, 3, 3), (65, 129, 4, 5), (200, 200, 16, 16), (200, 130, 3, 2)), (True, False)), ids=str)
def test_sizes(sizes: tuple[int, ...], causal: bool) -> None:
    rows, keys, features, values = sizes
    compare(normal(2, rows, features), normal(2, keys, features), normal(2, keys, values), is_causal=causal)


@pytest.mark.parametrize("sizes, causal", sweep.part(((83, 70), (70, 83), (96, 96), (17, 200), (200, 17)), (True, False), of=5), ids=str)
def test_blocks_and_what_is_left_over(monkeypatch: pytest.MonkeyPatch, causal: bool, sizes: tuple[int, int]) -> None:
    """Several blocks of both passes, whole ones and a rest, on the diagonal, behind it and without one."""
    for name, value in (("_BLOCK", 1 << 10), ("_TILE", 1 << 12), ("_COLUMNS", 1 << 8), ("_ROWS", 16)):
        monkeypatch.setattr(_attention, name, value)
    _attention._compiled.cache_clear()
    rows, keys = sizes
    compare(normal(2, rows, 4), normal(2, keys, 4), normal(2, keys, 3), is_causal=causal)
    compare(normal(2, rows, 4), normal(2, keys, 4), normal(2, keys, 3), normal(2, 1, keys) if causal else rng.random((rows, keys)) > 0.3)
    _attention._compiled.cache_clear()


@pytest.mark.parametrize("how", ("plain", "causal", "bool", "add"))
def test_scores_that_are_no_larger_than_the_arguments_are_kept(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Where the backward pass gets them the gradients are those it finds where it makes them again; a forward pass alone keeps nothing."""
    mask = {"bool": rng.random((40, 30)) > 0.3, "add": normal(2, 40, 30)}.get(how)
    xs, g = [normal(2, 40, 16), normal(2, 30, 16), normal(2, 30, 8)], normal(2, 40, 8)

    def f(*a: Any) -> Any:
        return attention(*a, mask, is_causal=how == "causal")

    def both(*a: Any) -> Any:
        out, pull = ag.vjp(f, *a)
        return out, *pull(g)

    found = []
    for keeps in (_attention._keeps(*(x[0] for x in xs)), False):
        monkeypatch.setattr(_attention, "_keeps", lambda *_, keeps=keeps: keeps)
        _attention._compiled.cache_clear()
        made = ag.compile(lambda *a: both(*a))
        found.append([made(*xs), len(re.findall(r"\d: dot", made.explain(*xs))), ag.compile(lambda *a: f(*a)).explain(*xs).peak_memory])
    _attention._compiled.cache_clear()
    (kept, few, alone), (again, many, without) = found
    assert few < many and alone == without
    for a, b in zip(kept, again):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


def test_scale_float32_and_heads() -> None:
    compare(normal(2, 3, 5, 8), normal(2, 3, 7, 8), normal(2, 3, 7, 6), scale=0.3)
    compare(*(x.astype(np.float32) for x in (normal(3, 40, 8), normal(3, 90, 8), normal(3, 90, 8))), tolerance=2e-6)
    compare(normal(4, 3), normal(5, 3), normal(5, 2))


@pytest.mark.parametrize("shape", ((5, 7), (7,), (1, 7), (5, 1), (2, 1, 5, 7), (2, 3, 5, 7)), ids=str)
@pytest.mark.parametrize("kind", ("bool", "add"))
def test_masks(shape: tuple[int, ...], kind: str) -> None:
    mask = rng.random(shape) > 0.4 if kind == "bool" else normal(*shape)
    compare(normal(2, 3, 5, 8), normal(2, 3, 7, 8), normal(2, 3, 7, 6), mask)


def test_a_query_without_keys_gives_0() -> None:
    mask = np.ones((5, 7), bool)
    mask[1] = False
    q, k, v = normal(5, 8), normal(7, 8), normal(7, 6)
    compare(q, k, v, mask)
    added = np.where(mask, 0.0, -np.inf)
    out = attention(q, k, v, added)
    assert not out[1].any() and np.isfinite(out).all()
    assert np.isfinite(ag.grad(lambda q: ag.sum(attention(q, k, v, added)))(q)).all()


def test_groups_of_heads() -> None:
    q, k, v = normal(2, 6, 4, 8), normal(2, 3, 5, 8), normal(2, 3, 5, 2)
    wide = [x.repeat(2, 1) for x in (k, v)]
    np.testing.assert_allclose(attention(q, k, v, enable_gqa=True), by_hand(q, *wide, q[..., :2])[0], atol=1e-12)
    np.testing.assert_allclose(ag.grad(lambda k: ag.sum(attention(q, k, v, enable_gqa=True)))(k),
                               by_hand(q, *wide, np.ones((2, 6, 4, 2)))[2].reshape(2, 3, 2, 5, 8).sum(2), atol=1e-12)


@pytest.mark.parametrize("shapes", (
    ((2, 0, 8), (2, 7, 8), (2, 7, 6)), ((2, 5, 8), (2, 0, 8), (2, 0, 6)), ((2, 5, 0), (2, 4, 0), (2, 4, 3)), ((0, 5, 3), (0, 4, 3), (0, 4, 2)),
), ids=str)
def test_nothing(shapes: Any) -> None:
    compare(*(normal(*s) for s in shapes))


@pytest.mark.parametrize("causal", (False, True), ids=("all", "causal"))
def test_second_derivatives(causal: bool) -> None:
    xs = [ag.tensor(normal(*s), requires_grad=True) for s in ((1, 3, 4), (1, 5, 4), (1, 5, 2))]
    assert ag.autograd.gradcheck(lambda *a: attention(*a, is_causal=causal), xs)
    assert ag.autograd.gradgradcheck(lambda *a: attention(*a, is_causal=causal), xs)


def test_forward_mode_agrees_with_reverse() -> None:
    q, k, v, t, g = normal(6, 4), normal(9, 4), normal(9, 3), normal(6, 4), normal(6, 3)
    moved = ag.jvp(lambda q: attention(q, k, v), (q,), (t,))[1]
    pulled = ag.vjp(lambda q: attention(q, k, v), q)[1](g)[0]
    np.testing.assert_allclose(np.sum(np.asarray(moved) * g), np.sum(np.asarray(pulled) * t))


def test_dropout() -> None:
    q, k, v = ag.zeros(3, 4), ag.zeros(1000, 4), ag.ones(1000, 1)
    ag.manual_seed(0)
    out = attention(q, k, v, dropout_p=0.5).numpy()
    assert np.all(np.abs(out - 1) < 0.2) and len(set(out.ravel().tolist())) > 1
    assert not attention(q, k, v, dropout_p=1.0).numpy().any()


@pytest.mark.parametrize("call", (
    lambda q, k, v: attention(q[0], k, v),
    lambda q, k, v: attention(q, k[:, :3], v),
    lambda q, k, v: attention(q, k, v[:4]),
    lambda q, k, v: attention(q, k.astype(np.float32), v),
    lambda q, k, v: attention(q.astype(int), k.astype(int), v.astype(int)),
    lambda q, k, v: attention(q, k, v, np.ones((4, 4), bool)),
    lambda q, k, v: attention(q, k, v, np.ones((5, 7), int)),
    lambda q, k, v: attention(q, k, v, np.ones((5, 7), np.float32)),
    lambda q, k, v: attention(q, k, v, np.ones((5, 7), bool), is_causal=True),
    lambda q, k, v: attention(q, k, v, dropout_p=1.5),
    lambda q, k, v: attention(np.stack([q] * 5), np.stack([k] * 3), np.stack([v] * 3), enable_gqa=True),
    lambda q, k, v: attention(np.stack([q] * 6), np.stack([k] * 3), np.stack([v] * 3)),
))
def test_errors(call: Any) -> None:
    with pytest.raises(AotgradError, match="scaled_dot_product_attention"):
        call(normal(5, 8), normal(7, 8), normal(7, 6))


@pytest.mark.parametrize("how", ("plain", "causal", "masked"))
def test_no_matrix_of_scores_is_kept(how: str) -> None:
    """Value and gradients at twice the length take about twice the memory, a small part of what the scores would take."""
    def memory(n: int) -> int:
        def f(q: Any, k: Any, v: Any) -> Any:
            mask = (ag.arange(n) < n - 3) if how == "masked" else None
            out, pull = ag.vjp(lambda *a: attention(*a, mask, is_causal=how == "causal"), q, k, v)
            return out, pull(q)

        x = normal(1, n, 8).astype(np.float32)
        g = ag.compile(f)
        g(x, x, x)
        return int(re.search(r"peak memory of a call: ([\d,]+) bytes", g.explain(x, x, x))[1].replace(",", ""))  # type: ignore[index]

    small, large = memory(1536), memory(3072)
    assert large < 2.6 * small and large < 3072**2 * 4 / 4, (small, large)
