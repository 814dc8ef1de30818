"""Strides of results are torch's, over shapes with sizes of 0 and 1, in every order of dims: the grid that found where they were not."""

from __future__ import annotations

import itertools

import pytest

import aotgrad as ag
from aotgrad.frontend import quick

torch = pytest.importorskip("torch")

SHAPES = [
    (0,), (1,), (3,), (0, 3), (3, 0), (1, 3), (3, 1), (1, 1), (3, 4), (2, 0, 3), (0, 2, 3), (2, 3, 0), (1, 2, 1), (1, 1, 1), (2, 3, 4), (2, 3, 4, 5), (1, 3, 4, 5),
    (2, 1, 4, 5), (2, 3, 1, 1), (1, 1, 1, 1), (0, 3, 4, 5), (2, 0, 4, 5), (2, 3, 0, 5), (2, 3, 4, 0), (2, 3, 4, 1), (2, 3, 1, 5)]
LINES = [
    'x + x',
    'x + 1',
    'm.exp(x)',
    'x.transpose(0, -1)',
    'x.transpose(0, -1) + 1',
    'x.clone()',
    'x.transpose(0, -1).clone()',
    'x.transpose(0, -1).contiguous()',
    'm.zeros_like(x.transpose(0, -1))',
    'x.sum(0)',
    'x.sum(-1, keepdim=True)',
    'x.unsqueeze(0)',
    'x.unsqueeze(-1)',
    'x.squeeze()',
    'x.flatten()',
    'm.cat([x, x], 0)',
    'm.stack([x, x], -1)',
    'x[..., ::2]',
    'x[0:1]',
    'x[None]',
    'x.expand(2, *x.shape)',
    'x.expand(1, *x.shape).clone()',
    'x[:1, :1].expand(2, 1, 1, 3) if x.ndim == 2 else x.expand(2, 1, *x.shape)',
    'm.where(x > 0, x, x.transpose(0, -1).transpose(0, -1))',
    'x.transpose(0, -1) * x.transpose(0, -1)',
    'x.reshape(-1) if x.numel() else x',
    'm.flip(x, [0])',
    'm.roll(x, 1, 0)',
    'm.softmax(x.transpose(0, -1), 0)',
    'm.cumsum(x.transpose(0, -1), 0)',
    '-x.transpose(0, -1)',
    'm.relu(x.transpose(0, -1))',
    'x.transpose(0, -1) > 0',
    'x.mean(-1)',
    'm.tril(x) if x.ndim > 1 else x',
    'x.chunk(2, -1)[0]',
    'x.amax(0) if x.shape[0] else x',
    'm.diagonal(x, 0, 0, 1) if x.ndim > 1 else x',
    'x.to(memory_format=m.channels_last) if x.ndim == 4 else x',
    'x.contiguous(memory_format=m.channels_last) if x.ndim == 4 else x',
    '(x.contiguous(memory_format=m.channels_last) if x.ndim == 4 else x) + 1',
    'm.relu(x.to(memory_format=m.channels_last) if x.ndim == 4 else x) * 2',
    '(x.contiguous(memory_format=m.channels_last) if x.ndim == 4 else x).sum(0, keepdim=True)',
    '(x.contiguous(memory_format=m.channels_last) if x.ndim == 4 else x) + m.ones(x.shape[-1])',
    '(x.contiguous(memory_format=m.channels_last) if x.ndim == 4 else x).clone()',
    'm.cat([x.contiguous(memory_format=m.channels_last) if x.ndim == 4 else x] * 2, 1) if x.ndim > 1 else x',
    'm.matmul(x, x.transpose(-1, -2)) if x.ndim > 1 else x',
    'x[[0]] if x.shape[0] else x',
    'x[x > 0]',
    'm.nn.functional.pad(x, (1, 1))',
    'x.permute(*reversed(range(x.ndim))).exp()',
    'm.empty_like(x.permute(*reversed(range(x.ndim))))',
    'x.transpose(0, -1) + m.ones(1)',
    'x.transpose(0, -1) + x.transpose(0, -1)[:1]',
]
MOVED = ["x + 1", "x * x", "m.exp(x)", "x > 0", "m.relu(x) * 2", "x + m.ones(1)", "x + m.ones(x.shape[-1])", "x + x[:1]", "m.softmax(x, 0)", "x.contiguous()",
         "x.clone()", "m.zeros_like(x)", "m.where(x > 0, x, 2.0)", "x[..., ::2]", "x.unsqueeze(1)", "x[:, None]", "x.expand(2, *x.shape)", "x.clamp(0, 1)",
         "x ** 2", "1 / x", "x.sum(0)", "x.double()", "x.masked_fill(x > 2, 0.0)", "m.lerp(x, x, 0.5)", "m.lerp(x, x, m.ones(()))", "x * 2.0"]
GRADIENTS = [
    'm.relu(x)', 'm.exp(x)', 'm.sin(x)', 'm.tanh(x)', 'm.sigmoid(x)', 'm.abs(x)', 'm.neg(x)', 'm.sqrt(x)', 'm.log(x)', 'm.log1p(x)', 'm.expm1(x)', 'm.erf(x)',
    'm.sinc(x)', 'm.floor(x)', 'm.sign(x)', 'm.square(x)', 'm.reciprocal(x)', 'm.rsqrt(x)', 'x * x', 'x * x.detach()', 'x / x.detach()', 'x.detach() / x',
    'x * 2.0', 'x / 2', '1 - x', '2 / x', 'x ** 2', 'x ** 3', 'x ** 0.5', 'x + 1', 'm.maximum(x, x)', 'm.minimum(x, x + 1)', 'm.where(x > 0.5, x, 0.0)',
    'm.where(x > 0.5, x, x * 2)', 'm.lerp(x, x, 0.5)', 'x.masked_fill(x > 0.5, 0.0)', 'm.logaddexp(x, x)', 'm.sub(x, x, alpha=2)', 'm.flip(x, [0])',
    'm.flip(x, [-1])', 'm.roll(x, 1, 0)', 'm.softmax(x, 1)', 'm.softmax(x, -1)', 'm.cat([x, x], 0)', 'm.cat([x, x], 1)', 'm.cat([x, x], -1)', 'm.tril(x)',
    'm.triu(x)', 'x.sum()', 'x.mean()', 'x.sum(0)', 'x.sum(1)', 'x.mean(1)', 'x.mean((-2, -1))', 'x.max()', 'x.prod()', 'm.nn.functional.pad(x, (1, 1))',
    'x.clone()', 'x.contiguous()', 'x.to(m.float32)', 'x.transpose(0, 1)', 'x.repeat(*([2] * x.ndim))', 'x.expand(2, *x.shape)', 'x.unbind(0)[0]',
    'x[..., ::2]', 'x.index_select(1, m.tensor([0, 0]))', 'x.gather(1, m.zeros(x.shape, dtype=m.int64))', 'x.diagonal()', 'm.nn.functional.softsign(x)']
ELSE_IN_SINGLE_ELEMENTS = [  # equal but for the strides of dims of size 1, which address nothing
    'm.nn.functional.gelu(x)', 'm.nn.functional.silu(x)', 'm.nn.functional.softplus(x)', 'm.nan_to_num(x)', 'm.atan2(x, x)', 'm.hypot(x, x)',
    'm.addcmul(x, x, x)', 'x.amax()', 'x.amax(1)', 'x.var()', 'x.var(1)', 'x.std(1)', 'x.norm(dim=1)', 'x.norm()', 'x.reshape(-1)', 'x.flatten(1)',
    'x.squeeze()', 'm.nn.functional.mish(x)', 'm.nn.functional.tanhshrink(x)', 'x.sum(1, keepdim=True)', 'x.mean(0, keepdim=True)', 'x.unsqueeze(1)',
    'x.chunk(2, 1)[0]', 'm.deg2rad(x)', 'm.roll(x, 1)', 'x ** x', 'x.clamp(0.1, 0.9)', 'm.clip(x, 0, 1)']


def _layouts(m, shape):
    count = 1
    for n in shape:
        count *= n
    base = (m.arange(count, dtype=m.float64) + 1) / (count + 1)
    yield base.reshape(shape)
    yield base.reshape(shape[::-1]).permute(*reversed(range(len(shape))))
    yield base.reshape((*shape[:-2], shape[-1], shape[-2])).transpose(-1, -2)
    yield base[:shape[-1]].expand(shape)
    yield (m.ones([2 * n for n in shape], dtype=m.float64) * 0.5)[tuple([slice(0, 2 * n, 2) for n in shape])]
    if len(shape) == 4:
        yield base.reshape(shape).to(memory_format=m.channels_last)
        yield base.reshape([shape[i] for i in (3, 0, 2, 1)]).permute(1, 3, 2, 0)


def _gradients(m, line, x):
    """Strides of the result and of its gradients, for several cotangents, and of ``.grad``."""
    x = x.detach().requires_grad_()
    try:
        out = eval(line, {"m": m, "x": x})
    except Exception:
        return "error"
    found = [out]
    cts = [m.ones_like(out), m.ones(out.shape, dtype=out.dtype), m.ones((), dtype=out.dtype).expand(out.shape)]
    if out.ndim == 4:
        cts.append(cts[1].contiguous(memory_format=m.channels_last))
    found += [m.autograd.grad(out, x, ct, retain_graph=True)[0] for ct in cts]
    found += m.autograd.grad(out.sum(), x, retain_graph=True)
    out.mean().backward()
    found.append(x.grad)
    return [tuple(t.stride()) for t in found], [tuple(t.shape) for t in found]


GRID = [(2, 3, 4, 5), (2, 1, 3, 3), (2, 3, 1, 1), (2, 3, 4, 1), (2, 3, 4), (3, 1, 4), (3, 4), (4, 1)]


@pytest.mark.parametrize("line", GRADIENTS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_gradients(line):
    wrong = []
    for shape in GRID:
        for theirs, ours in zip(_layouts(torch, shape), _layouts(ag, shape)):
            seen = [_gradients(m, line, x) for m, x in ((torch, theirs), (ag, ours))]
            if seen[0] != seen[1]:
                wrong.append((shape, theirs.stride(), *seen))
    assert not wrong


@pytest.mark.parametrize("line", ELSE_IN_SINGLE_ELEMENTS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_gradients_up_to_single_elements(line):
    wrong = []
    for shape in GRID:
        for theirs, ours in zip(_layouts(torch, shape), _layouts(ag, shape)):
            seen = []
            for m, x in ((torch, theirs), (ag, ours)):
                found = _gradients(m, line, x)
                if found != "error":
                    found = [[s for s, n in zip(strides, sizes) if n != 1] for strides, sizes in zip(*found)]
                    found = [found[0], found[1], *found[-2:]]  # of cotangents in the layout of the result, and of those of sums and means
                seen.append(found)
            if seen[0] != seen[1]:
                wrong.append((shape, theirs.stride(), *seen))
    assert not wrong


def test_gradients_of_sums_and_means():
    """Of a sum: a view of the cotangent, as in torch; of a mean: numbers of its own, which can be written."""
    for m in (torch, ag):
        x = m.ones(2, 3, requires_grad=True)
        assert m.autograd.grad(x.sum(), x)[0].stride() == (0, 0)
        found = m.autograd.grad(x.mean(), x)[0]
        found[0, 0] = 7.0
        assert found.stride() == (3, 1) and found[0, 1] != 7.0


def _seen(m, line, shape, order=None):
    x = m.ones(shape)
    x = x if order is None else x.permute(*order)
    try:
        out = eval(line, {"m": m, "x": x})
    except Exception:
        return "error"
    return tuple(out.shape), tuple(out.stride()), bool(out.is_contiguous())


@pytest.mark.parametrize("line", LINES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_grid(line):
    wrong = [(s, theirs, ours) for s in SHAPES if (theirs := _seen(torch, line, s)) != (ours := _seen(ag, line, s))]
    assert not wrong


@pytest.mark.parametrize("line", MOVED)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_order_of_dims(line):
    wrong = []
    for shape in [s for s in SHAPES if len(s) in (2, 3)] + [(2, 3, 1, 1), (2, 1, 4, 5), (2, 3, 0, 5), (2, 3, 4, 5)]:
        for order in itertools.permutations(range(len(shape))):
            theirs, ours = _seen(torch, line, shape, order), _seen(ag, line, shape, order)
            if theirs != ours:
                wrong.append((shape, order, theirs, ours))
    assert not wrong


def test_a_program_that_became_a_kernel_keeps_them():
    found = []
    for m in (torch, ag):
        x = m.ones(2, 1, 3).permute(2, 1, 0)
        found.append({(x + 1).stride() + (x.exp() * x).stride() + m.relu(x).stride() for _ in range(400 if m is ag else 1)})
    assert found[0] == found[1]


@pytest.mark.parametrize("line", ["x * 2.0", "1 - x", "x > 0.5", "m.where(x > 2, x, y)", "x * y", "m.exp(x)"])
def test_short_calls_keep_those_of_single_rows(line, monkeypatch):
    monkeypatch.setattr(quick, "HOT", 2)
    for make in ("m.ones(1, 4)", "m.ones(4, 1).t()", "m.ones(1, 4).t()", "m.ones(4, 4)[:, 1:2].t()", "m.ones(4, 4)[:1, :1]"):
        found = []
        for m in (torch, ag):
            x, y = eval(make, {"m": m}), eval(make.replace("4, 1", "1, 4").replace(".t()", "") if "4, 4" not in make else make, {"m": m})
            y = y.reshape(x.shape)
            for _ in range(5 if m is ag else 1):
                out = eval(line, {"m": m, "x": x, "y": y})
            found.append(out.stride())
        assert found[0] == found[1], make
