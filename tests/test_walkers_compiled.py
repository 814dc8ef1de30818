"""``y.grad_fn.name()``, ``next_functions`` and nodes called by hand in compiled functions: a walker of the user's gives the gradients, as part of the program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from autograd_pair import f64, walk

import aotgrad as ag

X, W = [[0.5, -1.0], [2.0, 0.25]], [[0.1, 0.2], [-0.3, 0.4]]


def test_a_walker_in_a_compiled_function() -> None:
    """Of arguments, of parameters of a module and of tensors from outside."""
    net, scale = ag.nn.Sequential(ag.nn.Linear(2, 3), ag.nn.Tanh(), ag.nn.Linear(3, 1)).double(), f64(ag, 2.0, True)

    def f(x: Any, walked: bool) -> Any:
        y = (ag.nn.functional.gelu(net(x) * scale) - x[:, :1]).mean()
        leaves = [x, scale, *net.parameters()]
        return walk(ag, y, leaves) if walked else ag.autograd.grad(y, leaves)

    compiled = ag.compile(f, static=("walked",))
    for factor in (1.0, -0.5):
        x = f64(ag, X, True).detach() * factor
        x.requires_grad_()
        for a, b, c in zip(compiled(x, True), f(x, True), f(x, False), strict=True):
            np.testing.assert_allclose(a.detach().numpy(), c.detach().numpy(), rtol=1e-12, atol=1e-14)
            np.testing.assert_allclose(b.detach().numpy(), c.detach().numpy(), rtol=1e-12, atol=1e-14)


def shown(node: Any, depth: int = 4) -> Any:
    if node is None:
        return None
    return node.name(), [(shown(n, depth - 1), i) for n, i in node.next_functions] if depth else ...


PROGRAMS = {
    "mlp": lambda x, w: ((x @ w).tanh() * 2 - x).sum(), "number": lambda x, w: 3.0 - x ** 2, "results": lambda x, w: x.max(0)[0] + w.split(1)[1],
    "softmax": lambda x, w: ag.nn.functional.silu((x @ w).softmax(1)), "constant": lambda x, w: x.detach() * w, "square": lambda x, w: (x * x) / w,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_graph_is_the_one_of_eager_code(name: str) -> None:
    seen: list[Any] = []
    f = PROGRAMS[name]

    def traced(x: Any, w: Any) -> Any:
        y = f(x, w)
        seen.append(shown(y.grad_fn))
        return y

    x, w = f64(ag, X, True), f64(ag, W, True)
    ag.compile(traced)(x, w)
    assert seen == [shown(f(x, w).grad_fn)]


def test_a_hook_of_the_node_is_called() -> None:
    seen: list[Any] = []

    def f(x: Any) -> Any:
        y = x * x
        y.grad_fn.register_hook(lambda grads, cts: seen.append(len(grads)) or tuple(g * 10 for g in grads))
        a, b = y.grad_fn(ag.ones_like(y))
        return a + b

    assert ag.compile(f)(f64(ag, [1.0, 2.0], True)).tolist() == [20.0, 40.0] and seen == [2]


def test_variables_are_the_users_own() -> None:
    w, found = ag.nn.Parameter(ag.ones(2)), []

    def f(x: Any) -> Any:
        y = x * w
        found.extend([n.variable is v for (n, _), v in zip(y.grad_fn.next_functions, (x, w))])
        return y

    ag.compile(f)(ag.ones(2, requires_grad=True))
    assert found == [True, True]


@pytest.mark.parametrize(("use", "text"), [(lambda y: y.grad_fn(y, y), "takes 1 gradient, one per output, but got 2"),
                                           (lambda y: y.grad_fn(2.0), "must be a Tensor or None"),
                                           (lambda y: y.grad_fn(y[:1]), "a gradient has shape"), (lambda y: y.grad_fn.next_functions[0][0](y), "call backward")])
def test_wrong_calls(use: Any, text: str) -> None:
    with pytest.raises(ag.AotgradError, match=text):
        ag.compile(lambda x: use(x * x))(ag.ones(2, requires_grad=True))
