"""``nn.Parameter`` is a class of its own, and nothing that is computed from one is: the same lines as torch's, and every way a call can take."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from autograd_pair import same

import aotgrad as ag
from aotgrad.frontend import dispatch


def given(m: Any, grad: bool = True) -> Any:
    return m.nn.Parameter(m.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=m.float64), grad)


def kinds(*xs: Any) -> list[str]:
    return [type(x).__name__ for x in xs]


def in_place(m: Any) -> Any:
    p, s = given(m, False), m.tensor(2.0, dtype=m.float64, requires_grad=True)
    view = p[0]
    p.mul_(s)
    p.sum().backward()
    return kinds(p, view), isinstance(p, m.nn.Parameter), p.is_leaf, s.grad, view


def graph(m: Any) -> Any:
    p = given(m)
    y = (p * p).sum()
    y.backward()
    end = (p * 2).grad_fn.next_functions[0][0]
    return kinds(end.variable, p.grad, y), end.variable is p, m.autograd.grad((p ** 3).sum(), p)


def duals(m: Any) -> Any:
    fw, p = m.autograd.forward_ad, given(m)
    with fw.dual_level():
        d = fw.make_dual(p, m.ones(2, 2, dtype=m.float64))
        out = fw.unpack_dual(d * p)
        return kinds(p, out.primal), out.tangent


def own(m: Any) -> Any:
    class Weight(m.nn.Parameter):  # type: ignore[misc, name-defined]
        pass

    w = Weight(m.ones(2))
    layer = m.nn.Module()
    layer.w = w
    return kinds(w, copy.deepcopy(w)), isinstance(w, m.nn.Parameter), [n for n, _ in layer.named_parameters()], w * 2


def noted(m: Any) -> Any:
    p = given(m)
    p.note = "mine"
    (p * p).sum().backward()
    return kinds(copy.copy(p), copy.deepcopy(p)), copy.deepcopy(p).grad, copy.copy(p).note, copy.copy(p).requires_grad


LINES: dict[str, Callable[[Any], Any]] = {
    "class": lambda m: (kinds(given(m)), issubclass(m.nn.Parameter, m.Tensor), isinstance(m.ones(1), m.nn.Parameter), type(given(m)) is m.nn.Parameter),
    "text": lambda m: [t.replace("torch.", "aotgrad.") for t in (repr(given(m, False)), str(m.nn.Parameter(m.ones(2))), f"{given(m)}")],
    "format": lambda m: f"{m.nn.Parameter(m.tensor(2.0)):.2f}",
    "results": lambda m: (lambda p: kinds(p * 1, p + p, -p, p.detach(), p.data, p.clone(), p[0], p.view(4), p.t(), p.exp(), p @ p, p.to(m.float32), p.sum(),
                                          p.contiguous(), m.cat([p, p]), m.zeros_like(p), p.requires_grad_(), p.to(m.float64), p.view_as(p)))(given(m)),
    "of an integer": lambda m: m.nn.Parameter(m.tensor([1]), requires_grad=False), "of an integer that is learned": lambda m: m.nn.Parameter(m.tensor([1])),
    "of a result": lambda m: (lambda x: (m.nn.Parameter(x * 2).is_leaf, m.nn.Parameter(x * 2)))(m.ones(2, requires_grad=True)),
    "shared memory": lambda m: (lambda x: (m.nn.Parameter(x).data.fill_(7.0), x))(m.ones(2)), "nothing": lambda m: tuple(m.nn.Parameter().shape),
    "copies": noted, "pickle": lambda m: (lambda q: (kinds(q), q.requires_grad, q))(pickle.loads(pickle.dumps(given(m)))), "in place": in_place, "graph": graph,
    "duals": duals, "a class of one's own": own,
    "written": lambda m: (lambda p: (p.__setitem__(0, 5.0), kinds(p), p))(given(m, False)), "leaf": lambda m: given(m).add_(1),
    "state": lambda m: (lambda net: (kinds(*net.state_dict().values()), kinds(*net.state_dict(keep_vars=True).values()), kinds(*net.parameters()),
                                     kinds(*net.double().parameters()), kinds(*copy.deepcopy(net).parameters())))(m.nn.Linear(2, 1)),
    "assigned": lambda m: (lambda net: (net.load_state_dict({"weight": m.ones(1, 2), "bias": m.ones(1)}, assign=True), kinds(net.weight),
                                        net.weight)[1:])(m.nn.Linear(2, 1)),
    "list": lambda m: kinds(*m.nn.ParameterList([m.ones(1), given(m)])), "dict": lambda m: kinds(*m.nn.ParameterDict({"a": m.ones(1)}).values()),
    "bfloat16": lambda m: [p.dtype is m.bfloat16 for p in m.nn.Linear(2, 1).bfloat16().cpu().parameters()],
    "type": lambda m: [str(x.dtype)[-7:] for x in m.nn.BatchNorm1d(2).type(m.float64).state_dict().values()],
}


@pytest.mark.parametrize("name", LINES)
def test_as_torch(name: str) -> None:
    found = same(LINES[name])
    assert (found[:1] == ("error",)) == (name in ("format", "of an integer that is learned", "leaf"))


def test_what_is_no_tensor() -> None:
    for make in (ag.nn.Parameter, ag.nn.Buffer):
        with pytest.raises(ag.AotgradTypeError, match="data must be a tensor, not float; ag.tensor"):
            make(3.0)


def test_short_ways_take_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that came before go as quickly with parameters as with tensors, and give what they gave."""
    x, p = ag.tensor([[1.0, 2.0], [3.0, 4.0]]), ag.nn.Parameter(ag.tensor([[0.5, -1.0], [2.0, 0.25]]))
    q = p.detach().clone().requires_grad_()

    def step(w: Any) -> Any:
        return ((x * w + w) @ w).t().tanh() * 2 - w[0] / w

    for _ in range(400):
        wanted = step(q)
    monkeypatch.setattr(dispatch, "_gather", lambda *args: 1 / 0)
    found = step(p)
    monkeypatch.undo()
    assert type(found) is ag.Tensor and found.tolist() == wanted.tolist()
    one = ag.ones(2, 2)
    found.backward(one)
    wanted.backward(one)
    assert p.grad.tolist() == q.grad.tolist() and found.grad_fn.name() == wanted.grad_fn.name()


def test_compiled_functions_take_parameters() -> None:
    f = ag.compile(lambda x, w: (x * w).sin().sum())
    x, p = ag.tensor([1.0, 2.0]), ag.nn.Parameter(ag.tensor([0.5, -1.0]))
    for w in (p, p.detach().requires_grad_(), p, ag.nn.Parameter(ag.ones(2))):
        for _ in range(3):
            w.grad = None
            f(x, w).backward()
            np.testing.assert_allclose(w.grad.numpy(), (x * (x * w).cos()).detach().numpy(), rtol=1e-6)
    assert f.cache_info().variants == 1
