"""Attention modules and encoder layers beside torch: numbers, weights, gradients and names with the same weights, eager and compiled."""

from __future__ import annotations

import numpy as np
import pytest
from autograd_pair import errors_of

import aotgrad as ag

torch = pytest.importorskip("torch")

CAUSAL = "m.triu(m.ones(4, 4), 1) > 0"
PADDING = "m.tensor([[False, False, False, True], [False, True, True, True]])"
CALLS = [  # module, sizes of the inputs, call
    ("m.nn.MultiheadAttention(6, 2)", [(4, 2, 6)], "net(x, x, x)"),
    ("m.nn.MultiheadAttention(6, 2, batch_first=True)", [(2, 4, 6)], f"net(x, x, x, attn_mask={CAUSAL}, average_attn_weights=False)"),
    ("m.nn.MultiheadAttention(6, 3, batch_first=True)", [(2, 4, 6)], f"net(x, x, x, {PADDING}, need_weights=False)"),
    ("m.nn.MultiheadAttention(6, 3, bias=False)", [(4, 2, 6)], f"net(x, x, x, need_weights=False, attn_mask={CAUSAL}, is_causal=True)"),
    ("m.nn.MultiheadAttention(6, 2, batch_first=True)", [(2, 3, 6), (2, 4, 6)], f"net(x, y, y * 2, {PADDING}, attn_mask=y[0, :3, :4])"),
    ("m.nn.MultiheadAttention(6, 2, kdim=5, vdim=3)", [(3, 2, 6), (4, 2, 5), (4, 2, 3)], "net(x, y, z)"),
    ("m.nn.MultiheadAttention(6, 2)", [(4, 6)], "net(x, x, x)"),
    ("m.nn.MultiheadAttention(6, 2)", [(4, 6), (16, 6)], "net(x, x, x, attn_mask=y[:8, :4].reshape(2, 4, 4), need_weights=False)"),
    ("m.nn.TransformerEncoderLayer(6, 2, 8).eval()", [(4, 2, 6)], "net(x)"),
    ("m.nn.TransformerEncoderLayer(6, 3, 8, 0.0, 'gelu', batch_first=True, norm_first=True)", [(2, 4, 6)], f"net(x, {CAUSAL}, {PADDING})"),
    ("m.nn.TransformerEncoderLayer(6, 3, 8, 0.0, m.tanh, bias=False)", [(4, 2, 6)], f"net(x, {CAUSAL}, is_causal=True)"),
    ("m.nn.TransformerEncoder(m.nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True), 2, m.nn.LayerNorm(6))", [(2, 4, 6)],
     f"net(x, src_key_padding_mask={PADDING})"),
]


def _run(m, net, shapes, call):
    rng = np.random.default_rng(1)
    inputs = [m.tensor(rng.normal(size=s), requires_grad=True) for s in shapes]
    found = eval(call, {"m": m, "net": net, **dict(zip("xyz", inputs))})
    outs = [t for t in (found if isinstance(found, tuple) else [found]) if t is not None]
    sum((t * (i + 1)).sin().sum() for i, t in enumerate(outs)).backward()
    return [t.detach().numpy() for t in outs] + [t.grad.numpy() for t in (*inputs, *net.parameters())]


@pytest.mark.parametrize(("text", "shapes", "call"), CALLS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_as_torch(text, shapes, call):
    torch.manual_seed(0)
    theirs, ours = eval(text, {"m": torch}).double(), eval(text, {"m": ag}).double()
    assert [(k, tuple(v.shape)) for k, v in theirs.state_dict().items()] == [(k, tuple(v.shape)) for k, v in ours.state_dict().items()]
    assert [k for k, _ in theirs.named_parameters()] == [k for k, _ in ours.named_parameters()]
    ours.load_state_dict({k: ag.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
    for a, b in zip(_run(torch, theirs, shapes, call), _run(ag, ours, shapes, call), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("which", [1, 9])
def test_compiled(which):
    text, shapes, _ = CALLS[which]
    net = eval(text, {"m": ag}).double()
    x = ag.tensor(np.random.default_rng(1).normal(size=shapes[0]), requires_grad=True)
    run = (lambda x: net(x, x, x)[0].sin().sum()) if which == 1 else (lambda x: net(x).sin().sum())
    run(x).backward()
    want, x.grad = x.grad, None
    ag.compile(run)(x).backward()
    np.testing.assert_allclose(x.grad.numpy(), want.numpy(), rtol=1e-9, atol=1e-11)


def test_dropout_is_of_training_alone():
    net = ag.nn.TransformerEncoderLayer(6, 2, 8, 0.5)
    x = ag.rand(4, 2, 6)
    assert not ag.equal(net(x), net(x))
    net.eval()
    assert ag.equal(net(x), net(x))


@pytest.mark.parametrize("line", ["m.nn.MultiheadAttention(6, 4)", "m.nn.MultiheadAttention(0, 1)", "m.nn.MultiheadAttention(6, 2)(*[m.ones(1, 2, 3, 6)] * 3)",
                                  "m.nn.MultiheadAttention(6, 2)(*[m.ones(2, 3, 5)] * 3)", "m.nn.TransformerEncoderLayer(6, 2, activation='sin')",
                                  "m.nn.MultiheadAttention(6, 2)(*[m.ones(2, 3, 6)] * 3, attn_mask=m.ones(3, 3))",
                                  "m.nn.MultiheadAttention(6, 2)(*[m.ones(2, 3, 6)] * 3, key_padding_mask=m.ones(3, 3) > 0)"])
def test_wrong_arguments(line):
    theirs, ours = errors_of(line)
    assert theirs is AssertionError or issubclass(ours, theirs)
    assert issubclass(ours, ag.AotgradError)
