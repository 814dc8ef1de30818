"""``utils.checkpoint`` and ``nn.utils``: torch's results where it is installed; what is kept; errors."""

from __future__ import annotations

import doctest
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from autograd_pair import f64, same

import aotgrad as ag

KW = {"use_reentrant": False}


def part(m: Any, w: Any) -> Callable[..., Any]:
    return lambda x, scale=1.0: ((x @ w).tanh() * scale).exp() * x.sin()


def plain_call(m: Any, f: Any, x: Any, **kw: Any) -> Any:
    return f(x, **kw)


def gradients(m: Any, call: Callable[..., Any]) -> Any:
    """First and second derivatives, of what is captured too; with keywords, of parts in parts."""
    x, w = f64(m, [[1.0, 2.0], [0.5, -1.0]], True), f64(m, [[0.1, -0.3], [0.2, 0.4]], True)
    f = part(m, w)
    y = call(m, lambda x: call(m, f, x).sigmoid(), call(m, f, x, scale=0.5)).sum()
    first = m.autograd.grad(y, (x, w), create_graph=True)
    second = m.autograd.grad(sum((g * g).sum() for g in first), (x, w))
    y.backward()
    return y, first, second, x.grad, w.grad


def test_gradients_of_checkpoints() -> None:
    found = same(lambda m: gradients(m, lambda m, f, x, **kw: importlib.import_module(f"{m.__name__}.utils.checkpoint").checkpoint(f, x, **KW, **kw)))
    assert found == same(lambda m: gradients(m, plain_call))


def test_only_the_arguments_are_kept() -> None:
    kept, calls = [], []

    def f(x: Any) -> Any:
        calls.append(1)
        return x.exp().sin().exp().tanh()

    x = ag.ones(3, requires_grad=True)
    with ag.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = ag.utils.checkpoint.checkpoint(f, x)
    assert kept == [] and len(calls) == 1 and y.requires_grad
    y.sum().backward()
    assert len(calls) == 2
    with ag.no_grad():
        assert not ag.utils.checkpoint.checkpoint(f, x).requires_grad


def test_random_numbers_are_the_same_again() -> None:
    ag.manual_seed(3)
    x = ag.ones(50, requires_grad=True)
    y = ag.utils.checkpoint.checkpoint(lambda x: ag.nn.functional.dropout(x, 0.5, True) * x, x)
    after = ag.rand(2).tolist()
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * y.detach().numpy())
    ag.manual_seed(3)
    ag.nn.functional.dropout(x, 0.5, True)
    assert ag.rand(2).tolist() == after


def test_in_compiled_functions_it_is_the_plain_call() -> None:
    x, w = f64(ag, [1.0, 2.0], True), f64(ag, [[0.1, -0.3], [0.2, 0.4]])
    f = part(ag, w)
    out = ag.compile(lambda x: ag.utils.checkpoint.checkpoint(f, x, scale=2.0).sum())(x)
    (found,), (wanted,) = ag.autograd.grad(out, x), ag.autograd.grad(f(x, scale=2.0).sum(), x)
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-13)
    g = ag.compile(lambda x: f(x).sum())
    found = ag.autograd.grad(ag.utils.checkpoint.checkpoint(g, x), x)[0]
    np.testing.assert_allclose(found.numpy(), ag.autograd.grad(f(x).sum(), x)[0].numpy(), rtol=1e-13)


def test_parts_of_a_sequence() -> None:
    def lines(m: Any, segments: int) -> Any:
        checkpoint = importlib.import_module(f"{m.__name__}.utils.checkpoint")
        net = m.nn.Sequential(m.nn.Linear(2, 3), m.nn.Tanh(), m.nn.Linear(3, 2), m.nn.Tanh(), m.nn.Linear(2, 1)).double()
        with m.no_grad():
            for p in net.parameters():
                p.copy_(m.arange(p.numel()).view(p.shape) * 0.1 - 0.2)
        checkpoint.checkpoint_sequential(net, segments, f64(m, [[1.0, -0.5]], True), **KW).sum().backward()
        return [p.grad for p in net.parameters()]

    assert same(lambda m: lines(m, 2)) == same(lambda m: lines(m, 5)) == same(lambda m: lines(m, 1))


def test_what_cannot_be_computed_again() -> None:
    for change in (lambda x, n: x.exp().exp() if n else x.exp(), lambda x, n: x[:1 + n].exp()):
        calls: list[int] = []

        def f(x: Any, change: Any = change, calls: list[int] = calls) -> Any:
            calls.append(1)
            return change(x, len(calls) - 1).sum()

        y = ag.utils.checkpoint.checkpoint(f, ag.ones(3, requires_grad=True))
        with pytest.raises(ag.utils.checkpoint.CheckpointError, match=r"checkpoint: (a different number|Recomputed values)"):
            y.backward()
    with pytest.raises(TypeError, match="checkpoint: function must be callable, got int"):
        ag.utils.checkpoint.checkpoint(3, ag.ones(2))
    with pytest.raises(ValueError, match="segments must be from 1"):
        ag.utils.checkpoint.checkpoint_sequential([ag.sin], 2, ag.ones(2))


# ---- nn.utils ---------------------------------------------------------------------------------------------------------------------------

def vectors(m: Any) -> Any:
    a, b = m.ones(2, 2, requires_grad=True), m.zeros(3, requires_grad=True)
    v = m.nn.utils.parameters_to_vector([a, b])
    m.autograd.backward((v * m.arange(7.0)).sum())
    m.nn.utils.vector_to_parameters(m.arange(7.0), [a, b])
    return v, a.grad, b.grad, a, b, a.requires_grad


def norms(m: Any) -> Any:
    a, b = m.ones(2, 2, requires_grad=True), m.zeros(3, requires_grad=True)
    a.grad, b.grad = m.full((2, 2), 3.0), m.full((3,), 4.0)
    u, out = m.nn.utils, []
    for kind in (2.0, 1.0, float("inf")):
        total = u.get_total_norm([a.grad, b.grad], kind)
        u.clip_grads_with_norm_([a, b], 2.0, total)
        out += [total, a.grad.clone(), b.grad.clone(), u.clip_grad_norm_([a, b], 1.0, kind), a.grad.clone()]
    u.clip_grad_value_([a, b], 0.05)
    return out, a.grad, b.grad, u.get_total_norm([])


ERRORS = {"vector": lambda m: m.nn.utils.vector_to_parameters(3.0, []), "nan": lambda m: m.nn.utils.get_total_norm([m.tensor([float("nan")])], error_if_nonfinite=True)}


@pytest.mark.parametrize("lines", [vectors, norms, *ERRORS.values()], ids=["vectors", "norms", *ERRORS])
def test_as_torch(lines: Callable[[Any], Any]) -> None:
    assert (same(lines)[0] == "error") == (lines not in (vectors, norms))


@pytest.mark.parametrize("name", ["aotgrad.utils.checkpoint", "aotgrad.nn.utils", "aotgrad.nn.parameter", "aotgrad_runtime.parameter", "aotgrad.optim.adaptive",
                                  "aotgrad.optim.lbfgs", "aotgrad.optim.lr_scheduler"])
def test_examples(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted and not found.failed
