"""Recurrent modules beside torch: numbers, gradients and states with the same weights, eager and compiled."""

from __future__ import annotations

import numpy as np
import pytest
from autograd_pair import errors_of

import aotgrad as ag

torch = pytest.importorskip("torch")

MODULES = [
    "m.nn.LSTM(3, 4)", "m.nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True)", "m.nn.LSTM(3, 4, bias=False)", "m.nn.GRU(3, 4)",
    "m.nn.GRU(3, 4, 2, bidirectional=True)", "m.nn.RNN(3, 4)", "m.nn.RNN(3, 4, 1, 'relu', batch_first=True)",
    "m.nn.RNN(3, 4, num_layers=2, bidirectional=True, bias=False)", "m.nn.LSTM(3, 4, 2, dropout=0.5).eval()",
]
CELLS = ["m.nn.LSTMCell(3, 4)", "m.nn.GRUCell(3, 4)", "m.nn.RNNCell(3, 4)", "m.nn.RNNCell(3, 4, nonlinearity='relu', bias=False)"]


def _pair(text):
    """The module of torch, and ours with its weights, in float64."""
    torch.manual_seed(0)
    theirs, ours = eval(text, {"m": torch}).double(), eval(text, {"m": ag}).double()
    state = {k: ag.tensor(v.numpy()) for k, v in theirs.state_dict().items()}
    assert [*state] == [*ours.state_dict()]
    ours.load_state_dict(state)
    assert repr(theirs) == repr(ours)
    return theirs, ours


def _leaves(x):
    return [t for part in x for t in _leaves(part)] if isinstance(x, (tuple, list)) else [x]


def _states(text, m, shape):
    rng = np.random.default_rng(2)
    made = [m.tensor(rng.normal(size=shape), requires_grad=True) for _ in range(2 if "LSTM" in text else 1)]
    return tuple(made) if len(made) == 2 else made[0]


def _total(outs):
    return sum((x * (i + 1)).sin().sum() for i, x in enumerate(_leaves(outs)))


def _compare(text, shape, state_shape):
    seen = []
    for m, net in zip((torch, ag), _pair(text)):
        x = m.tensor(np.random.default_rng(1).normal(size=shape), requires_grad=True)
        hx = None if state_shape is None else _states(text, m, state_shape)
        outs = net(x) if hx is None else net(x, hx)
        _total(outs).backward()
        seen.append([t.detach().numpy() for t in _leaves(outs)] + [t.grad.numpy() for t in (x, *(_leaves(hx) if hx is not None else []), *net.parameters())])
    for a, b in zip(*seen, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("given", [False, True], ids=["zeros", "states"])
@pytest.mark.parametrize("text", MODULES)
def test_sequences(text, given):
    net = eval(text, {"m": ag})
    layers = net.num_layers * (2 if net.bidirectional else 1)
    _compare(text, (2, 5, 3), (layers, 2 if net.batch_first else 5, 4) if given else None)
    _compare(text, (5, 3), (layers, 4) if given else None)


@pytest.mark.parametrize("text", CELLS)
def test_cells(text):
    for shape, state in (((5, 3), (5, 4)), ((3,), (4,))):
        _compare(text, shape, None)
        _compare(text, shape, state)


@pytest.mark.parametrize("text", [MODULES[1], MODULES[3], MODULES[6], CELLS[0]])
def test_compiled(text):
    net = eval(text, {"m": ag}).double()
    x = ag.tensor(np.random.default_rng(1).normal(size=(5, 3) if "Cell" in text else (2, 5, 3)))

    @ag.compile
    def step(x):
        net.zero_grad()
        loss = _total(net(x))
        loss.backward()
        return loss

    loss = step(x)
    got = [p.grad.numpy().copy() for p in net.parameters()]
    net.zero_grad()
    want = _total(net(x))
    want.backward()
    np.testing.assert_allclose(loss.detach().numpy(), want.detach().numpy(), rtol=1e-12)
    for a, p in zip(got, net.parameters(), strict=True):
        np.testing.assert_allclose(a, p.grad.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("text", ["m.nn.LSTM(3, 4)", "m.nn.GRUCell(3, 4)"])
@pytest.mark.parametrize("dtype", [ag.float16, ag.bfloat16])
def test_two_bytes_are_computed_in_float32(text, dtype):
    net = eval(text, {"m": ag}).to(dtype)
    x = ag.tensor(np.random.default_rng(1).normal(size=(5, 3)), dtype=dtype)
    got = _leaves(net(x))
    want = _leaves(net.float()(x.float()))
    for a, b in zip(got, want, strict=True):
        assert a.dtype is dtype
        np.testing.assert_allclose(a.detach().float().numpy(), b.detach().numpy(), rtol=2**-6, atol=2**-6)  # bfloat16 has 8 bits; inputs of the loop are rounded too


def test_compiled_code_stays_a_loop():
    net = ag.nn.GRU(3, 4)
    ops = [{op.name for op in ag.compile(lambda x: net(x)[0]).trace(ag.ones(n, 2, 3)).body.ops} for n in (3, 300)]
    assert "scan" in ops[0]
    assert ops[0] == ops[1]


@pytest.mark.parametrize("line", [
    "m.nn.LSTM(3, 4)(m.ones(3))", "m.nn.LSTM(3, 4)(m.ones(2, 5, 2))", "m.nn.GRU(3, 4)(m.ones(2, 5, 3), m.ones(1, 4, 4))", "m.nn.GRU(3, 0)", "m.nn.GRU(3, 4, 0)",
    "m.nn.RNN(3, 4, nonlinearity='sin')", "m.nn.LSTM(3, 4, dropout=2.0)", "m.nn.LSTMCell(3, 4)(m.ones(2, 2, 3))", "m.nn.GRUCell(3, 4)(m.ones(2, 2))",
    "m.nn.GRUCell(3, 4)(m.ones(2, 3), m.ones(3, 4))", "m.nn.GRU(3, 4)(m.ones(0, 5, 3))",
])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_wrong_arguments(line):
    theirs, ours = errors_of(line)
    assert issubclass(ours, theirs)
    assert issubclass(ours, ag.AotgradError)
