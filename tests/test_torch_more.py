"""Functions of tensors that follow from others, and results in corners: values, dtypes, strides, nodes and gradients are torch's. The same lines run in both."""

from __future__ import annotations

import numpy as np
import pytest
from autograd_pair import errors_of

import aotgrad as ag

torch = pytest.importorskip("torch")

LINES = """
m.tensor([1, 0], dtype=m.uint8).any() | m.tensor([[1, 0]], dtype=m.uint8).all(1) | m.any(m.tensor([[1, 0]], dtype=m.uint8), 0) | m.tensor([1, 0]).any()
m.einsum('bij->bji', x) | m.einsum('ij->ji', x[0]) | m.einsum('...ij->...ji', x) | m.einsum('bij->ibj', x) | m.einsum('ii->i', x[:, 0, :2])
m.einsum('ba', x[0]) | m.einsum('iji->ij', m.arange(18.0).reshape(3, 2, 3)) | m.einsum('ij->i', x[0] > 0) | m.einsum('ij->ji', x[0] > 0)
m.einsum('i,j->ij', x[0, 0] > 0, x[0, 0] > 1) | x.view(m.int32) | x.view(m.int64) | x.view(m.uint8) | x.view(dtype=m.float64) | x.view(m.float32)
x.transpose(0, 1).view(m.int32) | x[..., ::2].view(m.int32) | m.diag(x[0, 0]) | x[0, 0].diag(1) | m.diag_embed(x[0])
"""
MADE_OF_OTHERS = """
m.tensor_split(x, 2) | x.tensor_split([1, 3], -1) | m.hsplit(x, 3) | m.vsplit(x, 2) | m.dsplit(x, [1]) | m.split_with_sizes(x, [1, 2], 1)
m.broadcast_tensors(x[:, :1], y) | m.atleast_1d(x[0, 0, 0]) | m.atleast_2d(x[0, 0]) | m.atleast_3d(x[0, 0], x[0]) | m.fliplr(x) | m.flipud(x) | m.rot90(x)
m.rot90(x, 2) | m.rot90(x, 3, (1, 2)) | m.rot90(x, 4) | m.diagflat(x[0]) | m.block_diag(x[0], y[0, 0], x[1]) | m.cartesian_prod(x[0, 0], y[0, 1])
m.combinations(x[0, 0]) | m.combinations(x[0, 0], 3, True) | x.diagflat(1) | m.addmv(x[0, :, 0], x[1], y[0, 0], beta=2, alpha=0.5)
m.addr(x[0], y[0, :, 0], y[1, 0]) | m.addbmm(x[0, :, :3], x, y.transpose(1, 2)) | x[0].addr(x[0, :, 1], y[0, 0], beta=0)
m.baddbmm(x[:, :, :3], x, y.transpose(1, 2), alpha=3) | m.tensordot(x, y, ([1, 2], [1, 2])) | m.tensordot(x, y.permute(1, 2, 0)) | m.inner(x, y) | m.inner(x[0], y)
m.inner(x[0, 0], y) | x.inner(y[0, 0]) | m.inner(x, y[0, 0, 0]) | m.inner(y[0, 0, 0], x) | m.inner(x[0, 0], y[0, 0]) | m.dist(x, y) | x.dist(y, 1)
m.trapezoid(x) | m.trapezoid(x, y, dim=0) | m.trapz(x, dx=0.5, dim=1) | m.std_mean(x, 1) | m.var_mean(x, dim=(0, 1), keepdim=True) | m.var_mean(x)
m.nansum(x + hole) | m.nanmean(x + hole, -1) | x.nansum(1, True) | m.isin(x, m.tensor([2.0, 3.0])) | m.isin(x, 2, invert=True) | m.float_power(x.abs() + 1, 2)
m.logit(m.sigmoid(x)) | m.logit(x, eps=0.1) | m.isposinf(1 / x) | m.isneginf(1 / x) | m.signbit(-x) | m.fill(x, 3) | m.logspace(0, 2, 5)
m.logspace(-1, 1, 4, base=2) | m.tril_indices(3, 4) | m.triu_indices(3, 3, -1) | m.index_fill(x, 1, m.tensor([0, 2]), 5.0)
m.index_copy(x, 0, m.tensor([1, 0]), y) | x.take(m.tensor([[0, 5], [-1, 2]])) | m.argwhere(x) | m.aminmax(x) | m.aminmax(x, dim=1, keepdim=True)
x.unfold(1, 2, 1).contiguous() | x.unfold(-1, 3, 1).contiguous() | x.hardshrink(1.5) | x.isclose(y) | x.allclose(y)
x.equal(y) | m.scalar_tensor(2) | m.sort(x + y / 8) | m.sort(x * 8 + y, 1, descending=True) | m.argsort(x * 8 + y, 0) | m.msort(x * 8 + y)
m.topk(x * 8 + y, 2) | (x * 8 + y).topk(1, 1, largest=False) | m.median((x * 8 + y)[0, 0]) | m.median(x * 8 + y, 1) | m.kthvalue(x * 8 + y, 2, 0, True)
m.median(x + hole, 1) | m.unique(x.detach()) | m.unique(x.detach(), return_inverse=True) | m.unique(x[:, 0].detach(), dim=0, return_counts=True)
m.bincount(m.tensor([1, 1, 3]), m.tensor([0.5, 1.0, 2.0])) | m.searchsorted(m.tensor([0.0, 1.0, 3.0]), x) | m.bucketize(x, m.tensor([0.0, 2.0]), right=True)
m.histc(x.detach(), 4) | m.histc(x.detach(), 5, -2, 2) | m.result_type(x, 2) | m.result_type(m.tensor(1), m.tensor(2.0)) | m.can_cast(m.float32, m.int8)
m.promote_types(m.int8, m.uint8) | m.broadcast_shapes((2, 1), (3,)) | m.normal(x, 0.0).detach() | m.normal(2.0, m.zeros(3)) | m.bernoulli(m.tensor([0.0, 1.0]))
m.multinomial(m.tensor([[0.0, 2.0], [1.0, 0.0]]), 1) | m.randint(high=1, size=(2,)) | m.randint(low=3, high=4, size=(2,))
x.prelu(m.tensor([0.5, 0.25, 2.0]).to(x.dtype))
m.embedding(x[0], m.tensor([[2, 0], [1, 1]])) | m.embedding(x[0], m.tensor([2, 0]), 2) | m.dropout(x, 0.5, False) | m.dropout(x, 0.0, True)
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


def _same(a, b, nodes):
    assert len(a) == len(b)
    for x, y in zip(a, b):
        if not isinstance(x, tuple):
            assert x == y
            continue
        assert x[1:4 + nodes] == y[1:4 + nodes]
        np.testing.assert_allclose(x[0], y[0], rtol=1e-5, atol=1e-5)  # float32, sums of a few numbers in another order
        for g, h in zip(x[5], y[5]):
            assert (g is None) == (h is None)
            if g is not None:
                np.testing.assert_allclose(g, h, rtol=1e-5, atol=1e-5)


def _split(lines):
    return [part.strip() for part in lines.replace("\n", "|").split("|") if part.strip()]


@pytest.mark.parametrize(("line", "nodes"), [*((line, True) for line in _split(LINES)), *((line, False) for line in _split(MADE_OF_OTHERS))])
def test_as_torch(line, nodes):
    made = []
    for m in (torch, ag):
        x = m.tensor((np.arange(24.0) % 7 - 2).reshape(2, 3, 4).tolist(), requires_grad=True)
        y = m.tensor((np.arange(24.0) % 5 - 1.5).reshape(2, 3, 4).tolist(), requires_grad=True)
        made.append(_described(eval(line, {"m": m, "x": x, "y": y, "hole": m.tensor([float("nan"), 0.0, 0.0, 0.0])}), [x, y]))
    _same(*made, nodes)


NEEDS_NUMBERS = ("sort", "topk", "median", "kthvalue", "unique", "bincount", "searchsorted", "bucketize", "histc", "multinomial", "argwhere")


@pytest.mark.parametrize("line", [line for line in _split(MADE_OF_OTHERS) if "x" in line])
def test_compiled(line):
    hole = ag.tensor([float("nan"), 0.0, 0.0, 0.0])
    x, y = (ag.tensor(v.reshape(2, 3, 4), dtype=ag.float64) for v in (np.arange(24.0) % 7 - 2, np.arange(24.0) % 5 - 1.5))

    def run(x, y):
        found = eval(line, {"m": ag, "x": x, "y": y, "hole": hole})
        return [t for t in (found if isinstance(found, (tuple, list)) else [found]) if isinstance(t, ag.Tensor)]

    if any(name in line for name in NEEDS_NUMBERS):
        with pytest.raises(TypeError, match="compiled|run"):
            ag.compile(run)(x, y)
        return
    if ".allclose" in line or ".equal" in line:
        return
    for got, want in zip(ag.compile(run)(x, y), run(x, y), strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-12, atol=1e-12)


def test_fills_of_random_numbers():
    ag.manual_seed(3)
    x = ag.empty(4000)
    assert abs(float(x.normal_(2.0, 0.5).mean()) - 2.0) < 0.05  # six standard deviations of the mean
    assert abs(float(x.std()) - 0.5) < 0.05
    assert 2.0 <= float(x.uniform_(2, 4).min()) < 2.05 < 3.95 < float(x.max()) < 4.0
    assert abs(float(x.exponential_(2.0).mean()) - 0.5) < 0.05
    assert abs(float(x.bernoulli_(0.25).mean()) - 0.25) < 0.05
    drawn = ag.multinomial(ag.tensor([1.0, 0.0, 3.0]), 4000, replacement=True)
    assert abs(float((drawn == 2).double().mean()) - 0.75) < 0.05
    assert not (drawn == 1).any()
    rows = ag.multinomial(ag.tensor([1.0, 0.0, 3.0]).expand(4000, 3), 2)
    assert sorted(set(map(tuple, rows.tolist()))) == [(0, 2), (2, 0)]
    assert abs(float((rows[:, 0] == 2).double().mean()) - 0.75) < 0.05
    leaf = ag.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf"):
        leaf.normal_()
    with ag.no_grad():
        leaf.uniform_(3, 3)
    assert leaf.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("line", [
    "m.tensor_split(m.arange(3), 0)", "m.hsplit(m.arange(5), 2)", "m.vsplit(m.arange(4), 2)", "m.fliplr(m.ones(3))", "m.flipud(m.tensor(1.0))",
    "m.broadcast_shapes((2, 1), (3, 4))", "m.combinations(m.ones(2, 2))", "m.arange(3).unfold(0, 4, 1)", "m.addmv(m.ones(3), m.ones(2, 3), m.ones(3))",
    "m.tensordot(m.ones(2), m.ones(3), 1)", "m.inner(m.ones(2, 3), m.ones(2, 4))",
    "m.topk(m.ones(1), 2)", "m.kthvalue(m.ones(3), 5)", "m.bincount(m.tensor([1, -1]))", "m.bincount(m.tensor([1.0]))",
    "m.normal(1.0, -1.0, (2,))", "m.normal(1.0, 1.0)", "m.bernoulli(m.tensor([2.0]))", "m.bernoulli(m.tensor([1]))", "m.multinomial(m.tensor([0.0, 3.0]), 3)",
    "m.multinomial(m.tensor([0.0, -3.0]), 1)", "m.zeros(3).uniform_(3, 1)", "m.zeros(3, dtype=m.int64).uniform_()", "m.randint(high=0, size=(2,))",
])
def test_wrong_arguments(line):
    theirs, ours = errors_of(line)
    assert issubclass(ours, theirs)
    assert issubclass(ours, ag.AotgradError)


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


def test_derivatives_of_sets_and_counts():
    x, w, places = np.array([3.0, 1.0, 2.0, 1.0]), np.array([3.0, 1.0, 3.0, 0.5]), ag.tensor([0, 1, 1, 3])
    assert ag.grad(lambda x: (ag.unique(x) ** 2).sum())(x).tolist() == [6.0, 2.0, 4.0, 0.0]  # of equal elements the first
    assert ag.jvp(lambda x: ag.unique(x, dim=0), (ag.tensor(x),), (ag.tensor([1.0, 2.0, 3.0, 4.0], dtype=ag.float64),))[1].tolist() == [2.0, 3.0, 1.0]
    assert np.diag(ag.hessian(lambda x: (ag.unique(x) ** 3).sum())(x)).tolist() == [18.0, 6.0, 12.0, 0.0]
    assert ag.grad(lambda w: (ag.bincount(places, w, 6) ** 2).sum())(w).tolist() == [6.0, 8.0, 8.0, 1.0]
    assert ag.jvp(lambda w: ag.bincount(places, w), (ag.tensor(w),), (ag.tensor(w),))[1].tolist() == [3.0, 4.0, 0.0, 0.5]
    for kind in ("float32", "float64", "int64"):
        made, expected = (m.bincount(m.tensor([0, 1, 1, 3]), m.tensor(w, dtype=getattr(m, kind)), 6) for m in (ag, torch))
        assert (made.tolist(), str(made.dtype).split(".")[-1]) == (expected.tolist(), str(expected.dtype).split(".")[-1])
    assert ag.bincount(ag.tensor([], dtype=ag.int64), ag.tensor([])).shape == (0,)


def test_counts_of_intervals_have_no_derivative():
    x = ag.tensor([3.0, 1.0, 2.0], requires_grad=True)
    with ag.no_grad():
        assert ag.histc(x, 2).tolist() == ag.histc(x.detach(), 2).tolist() == [1.0, 2.0]
    for run in (lambda: ag.histc(x, 2), lambda: ag.grad(lambda v: ag.histc(v, 2).sum())(x), lambda: ag.jvp(lambda v: ag.histc(v, 2), (x.detach(),), (x.detach(),))):
        with pytest.raises(ag.AotgradError, match=r"histc counts, which has no derivative; take it of x.detach\(\)"):
            run()
