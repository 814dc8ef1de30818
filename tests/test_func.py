"""``ag.func`` beside torch.func: results, structures and errors."""

from __future__ import annotations

import doctest
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from autograd_pair import f64, refused, same

import aotgrad as ag


def func(m: Any) -> Any:
    return importlib.import_module(f"{m.__name__}.func")


def x(m: Any) -> Any:
    return f64(m, [0.5, -1.0, 2.0])


def net(m: Any) -> Any:
    made = m.nn.Sequential(m.nn.Linear(3, 2), m.nn.Tanh(), m.nn.Linear(2, 1)).double()
    with m.no_grad():
        for k, p in enumerate(made.parameters()):
            p.copy_(((m.arange(p.numel(), dtype=m.float64) + k) / 7 - 0.4).reshape(p.shape))
    return made


def tied(m: Any) -> Any:
    made = m.nn.Sequential(m.nn.Linear(2, 2, bias=False), m.nn.Linear(2, 2, bias=False)).double()
    made[1].weight = made[0].weight
    return made


def params(m: Any) -> Any:
    return {k: p.detach() for k, p in net(m).named_parameters()}


def loss(m: Any, model: Any) -> Any:
    return lambda p, a: (func(m).functional_call(model, p, (a,)) ** 2).sum()


def pair(v: Any) -> Any:
    return v.sin() * v.sum(), (v * 2, v.sum())


def ensemble(m: Any) -> Any:
    models = [net(m), net(m)]
    with m.no_grad():
        models[1][0].weight.mul_(2)
    stacked, buffers = func(m).stack_module_state(models)
    base = models[0]
    return sorted(stacked), buffers, stacked["0.weight"].is_leaf and stacked["0.weight"].requires_grad, func(m).vmap(
        lambda p, a: func(m).functional_call(base, p, (a,)), in_dims=(0, None))(stacked, x(m))


def batch_norm(m: Any) -> Any:
    model = m.nn.BatchNorm1d(3).double()
    own = {k: v.clone() for k, v in model.named_buffers()}
    given = {k: v.clone() for k, v in own.items()}
    out = func(m).functional_call(model, (dict(model.named_parameters()), given), (m.stack([x(m), x(m) * 2]),))
    return out, given["running_mean"], model.running_mean


LINES: dict[str, Callable[[Any], Any]] = {
    "grad": lambda m: func(m).grad(lambda v: v.sin().sum())(x(m)), "grad, aux": lambda m: func(m).grad(lambda v: (v.sin().sum(), v), has_aux=True)(x(m)),
    "grad_and_value": lambda m: func(m).grad_and_value(lambda v, w: (v * w).sum(), (0, 1))(x(m), x(m) * 2),
    "grad_and_value, aux": lambda m: func(m).grad_and_value(lambda v: (v.sin().sum(), v * 2), has_aux=True)(x(m)),
    "vjp": lambda m: (lambda out, pull: (out, pull(x(m))))(*func(m).vjp(lambda v: v * v, x(m))),
    "vjp, aux": lambda m: (lambda out, pull, aux: (out, pull(x(m)), aux["k"]))(*func(m).vjp(lambda v: (v * v, {"k": v * 3}), x(m), has_aux=True)),
    "jvp": lambda m: func(m).jvp(lambda v: v * v, (x(m),), (x(m) * 3,)),
    "jvp, aux": lambda m: func(m).jvp(lambda v: (v * v, v + 1), (x(m),), (x(m) * 3,), has_aux=True),
    "jacrev": lambda m: func(m).jacrev(lambda v: v.sin() * v.sum(), chunk_size=2)(x(m)), "jacfwd": lambda m: func(m).jacfwd(lambda v: v.sin() * v.sum())(x(m)),
    "jacrev, aux": lambda m: func(m).jacrev(pair, has_aux=True)(x(m))[0], "jacfwd, aux": lambda m: func(m).jacfwd(lambda v: (v * v, v + 1), has_aux=True)(x(m)),
    "hessian": lambda m: func(m).hessian(lambda v: (v ** 3).sum() * v[0])(x(m)),
    "linearize": lambda m: (lambda out, push: (out, push(x(m) * 3)))(*func(m).linearize(lambda v: v * v, x(m))),
    "per sample": lambda m: sorted(func(m).vmap(func(m).grad(loss(m, net(m))), in_dims=(None, 0))(params(m), m.stack([x(m), x(m) * 2])).items()),
    "gradient of a module": lambda m: sorted(func(m).grad(loss(m, net(m)))(params(m), x(m)).items()), "ensemble": ensemble, "batch norm": batch_norm,
    "one argument": lambda m: func(m).functional_call(net(m), params(m), x(m)), "some": lambda m: func(m).functional_call(net(m), {"2.bias": f64(m, [5.0])}, (x(m),)),
    "tied": lambda m: func(m).functional_call(tied(m), {"0.weight": f64(m, [[1.0, 2.0], [3.0, 4.0]])}, f64(m, [1.0, 1.0])),
    "not tied": lambda m: func(m).functional_call(tied(m), {k: f64(m, [[1.0, 2.0], [3.0, 4.0]]) * n for n, k in enumerate(("0.weight", "1.weight"))},
                                                  f64(m, [1.0, 1.0]), tie_weights=False),
    "hessian of a module": lambda m: (lambda of: func(m).hessian(lambda b: of({"0.bias": b}, x(m)))(f64(m, [0.1, 0.2])))(loss(m, net(m))),
}
ERRORS: dict[str, Callable[[Any], Any]] = {
    "strict": lambda m: func(m).functional_call(net(m), {"nosuch": x(m)}, x(m), strict=True),
    "twice": lambda m: func(m).functional_call(net(m), [params(m), params(m)], x(m)),
    "two values": lambda m: func(m).functional_call(tied(m), {"0.weight": m.ones(2, 2), "1.weight": m.zeros(2, 2)}, m.ones(2)),
    "no dicts": lambda m: func(m).functional_call(net(m), 3, x(m)), "none": lambda m: func(m).stack_module_state([]),
    "kinds": lambda m: func(m).stack_module_state([net(m), m.nn.Linear(2, 2)]), "modes": lambda m: func(m).stack_module_state([net(m), net(m).eval()]),
    "chunk": lambda m: func(m).jacrev(lambda v: v, chunk_size=0)(x(m)),
}


@pytest.mark.parametrize("name", LINES)
def test_as_torch(name: str) -> None:
    assert same(LINES[name])[0] != "error"


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    refused(ERRORS[name])


def test_compiled() -> None:
    model, p = net(ag), params(ag)
    kept = dict(model.named_parameters())
    want = ag.func.grad(loss(ag, model))(p, x(ag))
    found = ag.compile(ag.func.grad(loss(ag, model)))(p, x(ag))
    assert all(np.allclose(found[k].numpy(), want[k].numpy(), rtol=1e-13) for k in want)
    assert all(model.get_parameter(k) is v for k, v in kept.items())
    out, aux = ag.compile(ag.func.jacrev(lambda v: (v * v, v.sum()), has_aux=True))(x(ag))
    assert np.allclose(out.numpy(), np.diag(2 * x(ag).numpy())) and aux.item() == 1.5


def test_the_module_is_as_before_an_error() -> None:
    model = net(ag)
    kept = dict(model.named_parameters())
    with pytest.raises(ag.AotgradError):
        ag.func.functional_call(model, params(ag), ag.ones(7, dtype=ag.float64))
    assert all(model.get_parameter(k) is v for k, v in kept.items())


def test_no_aux() -> None:
    with pytest.raises(ag.AotgradTypeError, match="has_aux"):
        ag.func.vjp(lambda v: v, x(ag), has_aux=True)


def test_examples() -> None:
    assert not doctest.testmod(importlib.import_module("aotgrad.func")).failed
