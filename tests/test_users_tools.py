"""What users write around networks: a walker over ``grad_fn.next_functions`` and a checker of memory formats, on modules, in both packages."""

from __future__ import annotations

import pickle
import types
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from autograd_pair import same

import aotgrad as ag


def walk(m: Any, y: Any, parameters: list[Any]) -> list[Any]:
    """Gradients by a queue of nodes; each comes in the parameter's shape, as nodes of torch do not sum what was broadcast."""
    found: dict[int, Any] = {}
    queue = deque([(y.grad_fn, m.ones_like(y))])
    while queue:
        node, ct = queue.popleft()
        if node is None or ct is None:
            continue
        if hasattr(node, "variable"):
            found[id(node.variable)] = found.get(id(node.variable), 0) + (ct.sum(0) if ct.dim() > node.variable.dim() else ct)
            continue
        grads = node(ct)
        queue += [(child, g) for (child, _), g in zip(node.next_functions, grads if isinstance(grads, tuple) else (grads,))]
    return [found[id(p)] for p in parameters]


def fill(m: Any, net: Any) -> Any:
    """The same parameters in both packages."""
    r = np.random.default_rng(0)
    for p in net.parameters():
        p.data = m.from_numpy(r.normal(size=tuple(p.shape)) / 2)
    return net


def perceptron(m: Any) -> Any:
    nn = m.nn
    net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Sequential(nn.Linear(6, 6, bias=False), nn.Softplus()), nn.Linear(6, 4), nn.LogSoftmax(dim=1))
    loss, target = nn.NLLLoss(), m.tensor([0, 2, 3])
    return fill(m, net), lambda net, x: loss(net(x), target)


def images(m: Any) -> Any:
    """A residual net: its nodes are reached on several ways."""
    nn, F = m.nn, m.nn.functional

    class Net(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.kernels = nn.Parameter(m.zeros(4, 3, 3, 3))
            self.more = nn.Parameter(m.zeros(4, 4, 3, 3))
            self.scale, self.shift = nn.Parameter(m.zeros(4)), nn.Parameter(m.zeros(4))
            self.act, self.flat, self.head = nn.ReLU(), nn.Flatten(), nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            x = F.max_pool2d(self.act(F.batch_norm(F.conv2d(x, self.kernels, padding=1), None, None, self.scale, self.shift, True)), 2)
            x = self.act(x + F.conv2d(x, self.more, padding=1))
            return self.head(self.flat(F.adaptive_avg_pool2d(x, 1)))

    return fill(m, Net()), lambda net, x: (net(x) ** 2).mean()


def given(m: Any, shape: tuple[int, ...]) -> Any:
    return m.from_numpy(np.random.default_rng(1).normal(size=shape))


NETS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {"perceptron": (perceptron, (3, 5)), "images": (images, (2, 3, 6, 4))}


@pytest.mark.parametrize("name", NETS)
def test_a_walker_on_modules(name: str) -> None:
    make, shape = NETS[name]

    def gradients(m: Any, by_hand: bool) -> Any:
        net, loss = make(m)
        y, parameters = loss(net, given(m, shape)), list(net.parameters())
        if by_hand:
            return walk(m, y, parameters)
        y.backward()
        return [p.grad for p in parameters]

    engine = same(lambda m: gradients(m, False))
    assert engine[0] != "error"
    if name == "perceptron":  # torch's nodes of convolutions cannot be called by hand
        assert same(lambda m: gradients(m, True))[0] != "error"
    for a, b in zip(gradients(ag, True), gradients(ag, False), strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.numpy(), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("name", NETS)
def test_a_walker_on_compiled_modules(name: str) -> None:
    """A compiled call is one node, which can be called as well; the loss around it is recorded op by op."""
    make, shape = NETS[name]
    net, loss = make(ag)
    compiled, parameters = ag.compile(net), list(net.parameters())
    found = walk(ag, loss(compiled, given(ag, shape)), parameters)
    loss(net, given(ag, shape)).backward()
    for a, p in zip(found, parameters, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), p.grad.numpy(), rtol=1e-10, atol=1e-14)


class LostFormat(Exception):
    """A result is not channels_last though an argument is."""


def wrapped(m: Any, fn: Callable[..., Any], seen: set[str]) -> Callable[..., Any]:
    def last(t: Any) -> bool:
        return t.dim() == 4 and bool(t.is_contiguous(memory_format=m.channels_last)) and not t.is_contiguous()

    def check(*args: Any, **kwargs: Any) -> Any:
        tensors = [t for a in args for t in (a if isinstance(a, (list, tuple)) else [a]) if isinstance(t, m.Tensor)]
        was = any(last(t) for t in tensors)
        result = fn(*args, **kwargs)
        if was and isinstance(result, m.Tensor) and result.dim() == 4 and min(result.shape[1:]) > 1:
            seen.add(fn.__name__)
            if not last(result):
                raise LostFormat(fn.__name__)
        return result

    return check


def test_a_checker_on_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions, methods and operators are wrapped by ``setattr``, modules moved by ``to``: nothing on the way loses channels_last, nor do gradients of kernels."""
    def lines(m: Any) -> Any:
        seen: set[str] = set()
        net, loss = images(m)
        net, x = net.to(memory_format=m.channels_last), given(m, (2, 3, 6, 4)).to(memory_format=m.channels_last).requires_grad_()
        with monkeypatch.context() as patch:
            for where, names in ((m.nn.functional, "conv2d batch_norm max_pool2d relu adaptive_avg_pool2d"), (m.Tensor, "__add__ relu exp clone")):
                for name in names.split():
                    patch.setattr(where, name, wrapped(m, getattr(where, name), seen))
            loss(net, x).backward()
            lost = []
            try:
                x.clone(memory_format=m.contiguous_format)
            except LostFormat as error:
                lost.append(str(error))
        grads = [p.grad.stride() for p in (x, net.kernels, net.more)]
        return sorted(seen - {"relu"}), lost, [p.stride() for p in (net.kernels, net.more)], grads  # modules of torch find relu before it is wrapped

    assert same(lines)[0] != "error"


ALIASES = {"ndimension", "jacobian"}  # of dim and jacrev


@pytest.mark.parametrize("where", [ag.Tensor, ag, ag.nn.functional, ag.autograd], ids=["Tensor", "aotgrad", "functional", "autograd"])
def test_functions_and_methods_tell_their_names(where: Any) -> None:
    """A wrapper of the user's prints and copies them (``functools.wraps``); methods can be pickled by them."""
    found = {name: f for name in dir(where) if name not in ALIASES and (not name.startswith("_") or name.startswith("__") and where is ag.Tensor)
             and isinstance(f := getattr(where, name, None), types.FunctionType)}
    assert {name: f.__name__ for name, f in found.items() if f.__name__ != name} == {}
    if where is ag.Tensor:
        assert {"__add__", "__rsub__", "__iadd__", "__getitem__", "clone", "float", "add_"} <= found.keys()
        assert all(pickle.loads(pickle.dumps(found[name])) is found[name] for name in ("__add__", "clone", "add", "float", "new_zeros", "view_as"))
