"""Functions of tensors that follow from others, and results in corners: values, dtypes, strides, nodes and gradients are torch's. The same lines run in both."""

from __future__ import annotations

import numpy as np
import pytest

import aotgrad as ag

torch = pytest.importorskip("torch")

LINES = """
m.tensor([1, 0], dtype=m.uint8).any() | m.tensor([[1, 0]], dtype=m.uint8).all(1) | m.any(m.tensor([[1, 0]], dtype=m.uint8), 0) | m.tensor([1, 0]).any()
m.einsum('bij->bji', x) | m.einsum('ij->ji', x[0]) | m.einsum('...ij->...ji', x) | m.einsum('bij->ibj', x) | m.einsum('ii->i', x[:, 0, :2]) | m.einsum('ba', x[0])
m.einsum('iji->ij', m.arange(18.0).reshape(3, 2, 3)) | m.einsum('ij->i', x[0] > 0) | m.einsum('ij->ji', x[0] > 0) | m.einsum('i,j->ij', x[0, 0] > 0, x[0, 0] > 1)
x.view(m.int32) | x.view(m.int64) | x.view(m.uint8) | x.view(dtype=m.float64) | x.view(m.float32) | x.transpose(0, 1).view(m.int32) | x[..., ::2].view(m.int32)
m.diag(x[0, 0]) | x[0, 0].diag(1) | m.diag_embed(x[0])
"""


def _described(out, inputs):
    """Numbers, dtype, strides and node of each tensor in ``out``, and the gradients."""
    parts = out if isinstance(out, (tuple, list)) else [out]
    found = []
    for t in parts:
        if not hasattr(t, "stride"):
            found.append(t if isinstance(t, (bool, int)) else str(t).rpartition(".")[2])
            continue
        numbers = t.detach().double().numpy()
        grads = []
        if t.requires_grad:
            weight = t.detach().clone().double().sin().to(t.dtype) + 1
            with_node = t.grad_fn.name() if t.grad_fn is not None else None
            made = type(inputs[0]).__module__.startswith("torch")
            grads = [None if g is None else g.double().numpy() for g in
                     (torch if made else ag).autograd.grad((t * weight).sum(), inputs, allow_unused=True, retain_graph=True)]
        else:
            with_node = None
        found.append((numbers, str(t.dtype).rpartition(".")[2], tuple(t.shape), t.stride(), with_node, grads))
    return found


def _same(a, b, exact):
    assert len(a) == len(b)
    for x, y in zip(a, b):
        if not isinstance(x, tuple):
            assert x == y
            continue
        assert x[1:5] == y[1:5]
        rtol = 0 if exact else 1e-5  # float32, sums of a few numbers in another order
        np.testing.assert_allclose(x[0], y[0], rtol=rtol, atol=rtol)
        for g, h in zip(x[5], y[5]):
            assert (g is None) == (h is None)
            if g is not None:
                np.testing.assert_allclose(g, h, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("line", [part.strip() for part in LINES.replace("\n", "|").split("|") if part.strip()])
def test_as_torch(line):
    made = []
    for m in (torch, ag):
        x = m.tensor((np.arange(24.0) % 7 - 2).reshape(2, 3, 4).tolist(), requires_grad=True)
        y = m.tensor((np.arange(24.0) % 5 - 1.5).reshape(2, 3, 4).tolist(), requires_grad=True)
        made.append(_described(eval(line, {"m": m, "x": x, "y": y, "F": m.nn.functional}), [x, y]))
    _same(*made, exact=False)


def test_reread_bits_share_memory():
    seen = []
    for m in (torch, ag):
        x = m.ones(4)
        bits = x.view(m.int32)
        bits[0] = 0
        seen.append((x.tolist(), bits.tolist(), x._version, bits._version))
    assert seen[0] == seen[1]
    with pytest.raises(NotImplementedError, match="reads the bits of numbers"):
        ag.compile(lambda x: x.view(ag.int32))(ag.ones(2))


def test_views_of_what_was_written_are_strided_views():
    seen = []
    for m in (torch, ag):
        x = m.ones(2, 3, requires_grad=True) * 1
        views = [x[0:1], x.view(6), x.unsqueeze(0), x.t(), x[0]]
        x.mul_(2)
        seen.append([v.grad_fn.name() for v in views])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("how", ["eager", "compiled", "grad"])
def test_ufuncs_where(how):
    mask = np.array([True, False, True])
    x = np.array([1.0, 0.0, 4.0])

    def f(x):
        return np.log(x, where=mask)

    if how == "grad":
        assert ag.grad(lambda x: f(x).sum())(x).tolist() == [1.0, 0.0, 0.25]
        return
    got = (ag.compile(f) if how == "compiled" else f)(ag.tensor(x))
    assert got.tolist() == [0.0, 0.0, np.log(4.0)]
    t = ag.tensor([7.0, 7.0, 7.0], dtype=ag.float64)
    np.add(ag.tensor(x), 1, out=t, where=mask)
    assert t.tolist() == [2.0, 7.0, 5.0]
    room = np.full(3, 9.0)
    assert np.exp(ag.tensor(x), out=room, where=mask) is room
    assert room.tolist() == [np.exp(1.0), 9.0, np.exp(4.0)]
