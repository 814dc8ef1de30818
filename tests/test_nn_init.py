"""First values of parameters and clipping of gradients, beside torch."""

from __future__ import annotations

import math

import numpy as np
import pytest

import aotgrad as ag

torch = pytest.importorskip("torch")

BOUNDS = ["xavier_uniform_(w)", "xavier_uniform_(w, 2.0)", "kaiming_uniform_(w)", "kaiming_uniform_(w, 0.5, 'fan_out')", "kaiming_uniform_(w, nonlinearity='relu')",
          "uniform_(w, -3, 3)"]
SPREADS = ["xavier_normal_(w)", "kaiming_normal_(w, mode='fan_out', nonlinearity='relu')", "normal_(w, 0, 2.5)"]


@pytest.mark.parametrize("call", [*BOUNDS, *SPREADS])
@pytest.mark.parametrize("shape", [(60, 50), (20, 10, 3, 3)])
def test_random_values(call, shape):
    seen = []
    for m in (torch, ag):
        w = m.nn.Parameter(m.empty(*shape))
        assert eval(f"m.nn.init.{call}", {"m": m, "w": w}) is w
        assert w.requires_grad
        assert w.is_leaf
        numbers = w.detach().numpy()
        assert abs(numbers.mean()) < 0.1 * numbers.std()  # five deviations of the mean of 1800 numbers and more
        seen.append(np.abs(numbers).max() if call in BOUNDS else numbers.std())
    assert seen[1] == pytest.approx(seen[0], rel=0.01 if call in BOUNDS else 0.1)


def test_constant_values_and_gains():
    for call in ("ones_(w)", "zeros_(w)", "constant_(w, 0.25)", "eye_(w)"):
        made = [eval(f"m.nn.init.{call}", {"m": m, "w": m.nn.Parameter(m.rand(2, 3))}).tolist() for m in (torch, ag)]
        assert made[0] == made[1]
    for arguments in (("relu",), ("tanh",), ("leaky_relu", 0.2), ("leaky_relu",), ("linear",), ("conv2d",), ("selu",)):
        assert ag.nn.init.calculate_gain(*arguments) == torch.nn.init.calculate_gain(*arguments)
    for wrong in ("calculate_gain('sin')", "xavier_normal_(m.ones(3))", "eye_(m.ones(3))", "kaiming_normal_(m.ones(2, 3), mode='fan')"):
        for m in (torch, ag):
            with pytest.raises(ValueError, match=r"."):
                eval(f"m.nn.init.{wrong}", {"m": m})


def _parameters(m):
    made = [m.nn.Parameter(m.tensor(v)) for v in ([1.0, -2.0], [[3.0, 0.5]], [7.0])]
    (made[0] ** 3).sum().backward()
    (made[1] ** 2).sum().backward()
    return made


@pytest.mark.parametrize("call", ["clip_grad_norm_(ps, 2.0)", "clip_grad_norm_(ps, 100.0)", "clip_grad_norm_(ps, 1.0, 1)", "clip_grad_norm_(ps, 1.0, math.inf)",
                                  "clip_grad_norm_(ps[0], 1.0)", "clip_grad_norm_([], 1.0)", "clip_grad_norm_(iter(ps), 2.0)", "clip_grad_value_(ps, 1.5)"])
def test_clipping(call):
    seen = []
    for m in (torch, ag):
        ps = _parameters(m)
        total = eval(f"m.nn.utils.{call}", {"m": m, "ps": ps, "math": math})
        seen.append([np.zeros(1) if total is None else total.numpy(), *(p.grad.numpy() for p in ps[:2])])
    for a, b in zip(*seen, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-6)  # float32


def test_clipping_in_a_compiled_step():
    def step(net, x):
        net.zero_grad()
        net(x).sin().sum().backward()
        return ag.nn.utils.clip_grad_norm_(net.parameters(), 0.5)

    ag.manual_seed(1)
    net, x = ag.nn.Linear(3, 2), ag.rand(4, 3)
    want = step(net, x)
    grads = [p.grad.numpy().copy() for p in net.parameters()]
    got = ag.compile(lambda x: step(net, x))(x)
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6)
    for a, p in zip(grads, net.parameters(), strict=True):
        np.testing.assert_allclose(p.grad.numpy(), a, rtol=1e-5, atol=1e-7)


def test_a_norm_that_is_not_finite_is_told():
    p = ag.nn.Parameter(ag.ones(2))
    (p * float("inf")).sum().backward()
    with pytest.raises(RuntimeError, match="non-finite"):
        ag.nn.utils.clip_grad_norm_([p], 1.0, error_if_nonfinite=True)
