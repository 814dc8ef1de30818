"""Modules: attributes, walks, state, hooks and text as in torch (compared with it where it is installed), and in compiled functions."""

from __future__ import annotations

import copy
import importlib.util
import pickle
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

import aotgrad as ag
from aotgrad_runtime.call import function


def build(m: Any) -> Any:
    return m.nn.Sequential(OrderedDict(first=m.nn.Linear(4, 3), act=m.nn.Tanh(), rest=m.nn.Sequential(
        m.nn.Linear(3, 2, bias=False), m.nn.ReLU(), m.nn.ModuleDict({"a": m.nn.Dropout(0.25), "b": m.nn.ModuleList([m.nn.Softmax(dim=1), m.nn.Flatten()])}))))


def story(m: Any) -> list[Any]:
    """Everything that can be told without numbers."""
    net = build(m)
    out: list[Any] = [repr(net), [n for n, _ in net.named_parameters()], list(net.state_dict()), [n for n, _ in net.named_modules()],
                      [n for n, _ in net.named_children()]]
    out += [len(net), repr(net[:2]), repr(net[-1]), net.rest[0].weight.shape == (2, 3), net.get_submodule("rest.2.b.1").training]
    net.eval()
    out += [[x.training for x in net.modules()], str(net.load_state_dict(net.state_dict()))]
    net.register_buffer("steps", m.zeros(1))
    net.register_buffer("hidden", m.zeros(1), persistent=False)
    out += [list(net.state_dict()), [n for n, _ in net.named_buffers()], sum(p.numel() for p in net.parameters())]
    return out


def test_the_same_as_torch() -> None:
    torch = pytest.importorskip("torch")
    assert story(ag) == story(torch)


def test_the_text_and_the_names() -> None:
    told = story(ag)
    assert told[0].startswith("Sequential(\n  (first): Linear(in_features=4, out_features=3, bias=True)\n  (act): Tanh()\n  (rest): Sequential(\n    (0): Linear(")
    assert told[1] == ["first.weight", "first.bias", "rest.0.weight"] and told[-1] == 21 and told[11] == "<All keys matched successfully>"


def test_attributes() -> None:
    net = ag.nn.Module()
    net.w = ag.nn.Parameter(ag.ones(2))
    assert isinstance(net.w, ag.nn.Parameter) and not isinstance(ag.ones(2), ag.nn.Parameter) and net.w.requires_grad and list(net.parameters()) == [net.w]
    with pytest.raises(TypeError, match="cannot assign 'Tensor' object to parameter 'w'"):
        net.w = ag.ones(2)
    net.w = None
    assert list(net.parameters()) == [] and net.w is None
    del net.w
    with pytest.raises(AttributeError, match="'Module' object has no attribute 'w'"):
        _ = net.w
    with pytest.raises(KeyError, match="already exists"):
        net.register_buffer("forward", ag.ones(1))

    class Early(ag.nn.Module):
        def __init__(self) -> None:
            self.w = ag.nn.Parameter(ag.ones(2))

    with pytest.raises(AttributeError, match="before Module.__init__"):
        Early()


def test_copies() -> None:
    net = build(ag)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert all(isinstance(p, ag.nn.Parameter) and p.tolist() == q.tolist() and p is not q for p, q in zip(other.parameters(), net.parameters()))


def test_loading_what_does_not_fit() -> None:
    net = ag.nn.Linear(2, 3)
    with pytest.raises(RuntimeError, match=r"loading state_dict for Linear(.|\n)*Missing key\(s\) in state_dict: .bias(.|\n)*Unexpected(.|\n)*size mismatch for weight"):
        net.load_state_dict({"weight": ag.ones(2, 2), "more": ag.ones(1)})
    found = net.load_state_dict({"weight": ag.ones(3, 2)}, strict=False)
    assert found.missing_keys == ["bias"] and net.weight.sum().item() == 6.0


def hooked(m: Any, net: Any, run: Any, x: Any) -> list[Any]:
    seen: list[Any] = []
    numbers = lambda ts: [None if g is None else np.round(g.detach().numpy(), 5).tolist() for g in ts]
    handles = [
        net[0].register_forward_pre_hook(lambda mod, args: (args[0] * 2,)),
        net[0].register_forward_hook(lambda mod, args, out: out + 1),
        net[0].register_full_backward_hook(lambda mod, gi, go: seen.append(("back", numbers(gi), numbers(go)))),
        net[1].register_full_backward_hook(lambda mod, gi, go: (gi[0] * 3,)),
        net[1].register_full_backward_pre_hook(lambda mod, go: (go[0] + 1,)),
    ]
    out = run(x)
    out.sum().backward()
    seen += [numbers([out, x.grad, net[0].weight.grad])]
    for h in handles:
        h.remove()
    return [*seen, numbers([run(x)])]


def tanh_net(m: Any) -> tuple[Any, Any]:
    net = m.nn.Sequential(m.nn.Linear(2, 2), m.nn.Tanh())
    with m.no_grad():
        net[0].weight.copy_(m.tensor([[0.1, 0.2], [0.3, -0.4]]))
        net[0].bias.fill_(0.1)
    return net, m.tensor([[0.5, -0.5]], requires_grad=True)


def test_hooks() -> None:
    net, x = tanh_net(ag)
    eager = hooked(ag, net, net, x)
    assert eager[0][0] == "back" and len(eager) == 3
    again, y = tanh_net(ag)
    compiled = hooked(ag, again, ag.compile(again), y)
    assert [s for s in compiled if s[0] == "back"] == eager[:1] and compiled[-2:] == eager[-2:]


def test_hooks_as_in_torch() -> None:
    torch = pytest.importorskip("torch")
    a, b = tanh_net(ag), tanh_net(torch)
    assert hooked(ag, a[0], a[0], a[1]) == hooked(torch, b[0], b[0], b[1])


class Net(ag.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = ag.nn.Linear(2, 2)
        self.drop = ag.nn.Dropout(0.5)
        self.register_buffer("n", ag.tensor(0.0))
        self.blocks = ag.nn.ModuleList([ag.nn.Sequential(ag.nn.Sequential(ag.nn.Linear(2, 2)))])

    def forward(self, x: Any) -> Any:
        self.n += 1
        x = self.a(x)
        for block in self.blocks:
            x = block(x)
        return self.drop(x)


def test_a_compiled_module_sees_what_changes() -> None:
    net, x = Net().eval(), ag.ones(1, 2)
    f = ag.compile(net)

    def check() -> None:
        n = net.n.item()
        np.testing.assert_allclose(f(x).detach().numpy(), net(x).detach().numpy(), rtol=1e-6)
        assert net.n.item() == n + 2

    check()
    check()
    assert f.cache_info().traces == 1
    net.a.weight = ag.nn.Parameter(ag.ones(2, 2))
    check()
    net.blocks[0][0][0].weight = ag.nn.Parameter(ag.ones(2, 2) * 3)
    check()
    net.a = ag.nn.Linear(2, 2)
    check()
    net.blocks.append(ag.nn.ReLU())
    check()
    handle = net.a.register_forward_hook(lambda mod, args, out: out * 2)
    check()
    handle.remove()
    check()
    net.load_state_dict({k: v + 1 for k, v in net.state_dict().items()})
    check()
    with ag.no_grad():
        net.a.weight[0, 0] = 5.0
    check()


def test_dropout() -> None:
    ag.manual_seed(0)
    drop, x = ag.nn.Dropout(0.25), ag.ones(1000)
    out = drop(x)
    assert set(np.unique(out.numpy())) == {0.0, np.float32(1 / 0.75)} and 0.6 < float((out != 0).float().mean()) < 0.9
    assert drop.eval()(x) is x
    with pytest.raises(ValueError, match="between 0 and 1"):
        ag.nn.Dropout(1.5)


def test_a_compiled_module_is_used_like_the_module() -> None:
    plain = ag.nn.Sequential(ag.nn.Linear(3, 2), ag.nn.Dropout(0.5))
    net, x = ag.compile(plain), ag.ones(4, 3)
    opt = ag.optim.SGD(net.parameters(), lr=0.1)
    net(x).sum().backward()
    opt.step()
    opt.zero_grad()
    assert plain[0].weight.grad is None and [n for n, _ in net.named_parameters()] == ["0.weight", "0.bias"]
    assert net.eval() is net and not plain.training and net.training is False
    np.testing.assert_allclose(net(x).detach().numpy(), plain(x).detach().numpy(), rtol=1e-6)  # without dropout: traced again
    again = ag.nn.Sequential(ag.nn.Linear(3, 2), ag.nn.Dropout(0.5))
    again.load_state_dict(net.state_dict())
    assert ag.equal(again[0].weight, plain[0].weight) and net.double() is net and plain[0].weight.dtype is ag.float64
    with pytest.raises(AttributeError, match="parametres"):
        net.parametres()
    with pytest.raises(AttributeError, match="'parameters'"):
        ag.compile(lambda x: x).parameters()
    assert pickle.loads(pickle.dumps(net)).training is False


@pytest.mark.parametrize("machine", [True, False])
def test_attributes_of_a_compiled_module_are_the_modules(machine: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written and deleted as well; its own stay its own, also where the module has some of that name."""
    if not machine:
        monkeypatch.setattr(function, "machine", lambda: None)

    class Net(ag.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias, self.scale, self.options = ag.nn.Parameter(ag.ones(2)), None, 1.0, "mine"

        def forward(self, x: ag.Tensor) -> ag.Tensor:
            return x * self.weight * self.scale if self.training else x

    plain, x = Net(), ag.ones(2)
    net = ag.compile(plain)
    assert net(x).tolist() == [1.0, 1.0] and plain.options == "mine" and net.options is not plain.options
    net.scale = 2.0
    net.weight = ag.nn.Parameter(ag.full((2,), 3.0))
    assert net(x).tolist() == [6.0, 6.0] and plain.weight is net.weight and [n for n, _ in net.named_parameters()] == ["weight"]
    net.training = False
    assert net(x).tolist() == [1.0, 1.0] and not plain.training
    del net.bias, net.scale
    assert not hasattr(plain, "bias") and not hasattr(plain, "scale")
    with pytest.raises(AttributeError):
        del net.scale
    net.note = 1
    assert net.note == 1 and not hasattr(plain, "note")
    net.note = 2
    del net.note
    assert not hasattr(net, "note")


def test_a_module_that_is_not_there_is_told() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'Upsample'; it has .*Linear.*aotgrad.nn.functional"):
        ag.nn.Upsample  # noqa: B018
    assert not hasattr(ag.nn, "Bilinear")


def _texts(m: Any) -> list[str]:
    """What is printed of lists of like modules, of groups of parameters and of states that do not fit."""
    many = m.nn.ModuleList([*(m.nn.Sequential(m.nn.Linear(2, 2), m.nn.ReLU()) for _ in range(3)), m.nn.Tanh(), m.nn.ReLU(), m.nn.ReLU()])
    net = m.nn.Linear(2, 2)
    state = {"weight": net.weight.detach(), "scale": m.ones(1), "shift": m.ones(1)}
    with pytest.raises(RuntimeError) as caught:
        net.load_state_dict(state)
    x = m.ones(2, 3, requires_grad=True)
    groups = repr(m.optim.SGD([{"params": [net.weight], "lr": 0.5}, {"params": [net.bias]}], lr=0.1)).split("\n")
    return [repr(many), repr(m.nn.ModuleList()), repr(m.nn.ModuleList([many])), str(caught.value), repr(net.load_state_dict(state, strict=False)),
            "\n".join(line for line in groups if not line.startswith("    ") or "lr" in line), str(m.broadcast_tensors(x, m.ones(3))[0] is x)]


def test_texts_of_lists_groups_and_states() -> None:
    got = _texts(ag)
    assert "(0-2): 3 x Sequential(" in got[0] and "(3): Tanh()" in got[0] and "(4-5): 2 x ReLU()" in got[0] and got[1] == "ModuleList()"
    assert got[3].index('Missing key(s) in state_dict: "bias". ') < got[3].index('Unexpected key(s) in state_dict: "scale", "shift". ')
    assert got[4] == "_IncompatibleKeys(missing_keys=['bias'], unexpected_keys=['scale', 'shift'])"
    assert got[5].split("\n") == ["SGD (", "Parameter Group 0", "    lr: 0.5", "", "Parameter Group 1", "    lr: 0.1", ")"] and got[6] == "True"
    if importlib.util.find_spec("torch") is not None:
        assert got == _texts(importlib.import_module("torch"))
