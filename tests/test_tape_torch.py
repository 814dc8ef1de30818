"""torch.autograd's contract on the eager tape: the same lines against aotgrad and, where it is installed, torch. Right values where torch refuses are told apart."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import flat
import numpy as np
import pytest
from autograd_pair import f64, modules, outcome, same, walk

import aotgrad as ag

Lines = Callable[[Any], Any]
X22 = [[1.0, 2.0], [3.0, 4.0]]


# ---- the graph ------------------------------------------------------------------------------------------------------------------------

NAMES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "AddBackward0": lambda m, x, v: x + x, "SubBackward0": lambda m, x, v: x - 1,
    "RsubBackward0": lambda m, x, v: m.rsub(x, v), "MulBackward0": lambda m, x, v: x * x, "DivBackward0": lambda m, x, v: x / x,
    "NegBackward0": lambda m, x, v: -x, "MmBackward0": lambda m, x, v: x @ x, "MvBackward0": lambda m, x, v: x @ v, "DotBackward0": lambda m, x, v: v @ v,
    "BmmBackward0": lambda m, x, v: m.bmm(x[None], x[None]), "SumBackward0": lambda m, x, v: x.sum(), "SumBackward1": lambda m, x, v: x.sum(0),
    "MeanBackward0": lambda m, x, v: x.mean(), "MeanBackward1": lambda m, x, v: x.mean(0), "PowBackward0": lambda m, x, v: x ** 2,
    "PowBackward1": lambda m, x, v: x ** x, "PowBackward2": lambda m, x, v: 2.0 ** x, "ExpBackward0": lambda m, x, v: x.exp(), "LogBackward0": lambda m, x, v: x.log(),
    "SqrtBackward0": lambda m, x, v: x.sqrt(), "TanhBackward0": lambda m, x, v: x.tanh(), "SigmoidBackward0": lambda m, x, v: x.sigmoid(),
    "ReluBackward0": lambda m, x, v: m.relu(x), "TBackward0": lambda m, x, v: x.t(), "TransposeBackward0": lambda m, x, v: x.transpose(0, 1),
    "PermuteBackward0": lambda m, x, v: x.permute(1, 0), "ViewBackward0": lambda m, x, v: x.view(4), "UnsqueezeBackward0": lambda m, x, v: x.unsqueeze(0),
    "SqueezeBackward1": lambda m, x, v: x[None].squeeze(0), "ExpandBackward0": lambda m, x, v: x.expand(3, 2, 2), "SelectBackward0": lambda m, x, v: x[0],
    "SliceBackward0": lambda m, x, v: x[0:1], "IndexBackward0": lambda m, x, v: x[m.tensor([0, 1])], "CatBackward0": lambda m, x, v: m.cat([x, x]),
    "StackBackward0": lambda m, x, v: m.stack([x, x]), "SplitBackward0": lambda m, x, v: x.chunk(2)[1], "UnbindBackward0": lambda m, x, v: x.unbind(0)[1],
    "DiagonalBackward0": lambda m, x, v: x.diagonal(), "CloneBackward0": lambda m, x, v: x.clone(), "WhereBackward0": lambda m, x, v: m.where(x > 1, x, x),
    "MaxBackward1": lambda m, x, v: x.max(), "MaxBackward0": lambda m, x, v: x.max(0)[0], "AmaxBackward0": lambda m, x, v: x.amax(0),
    "GatherBackward0": lambda m, x, v: x.gather(0, m.tensor([[0, 1]])), "IndexSelectBackward0": lambda m, x, v: x.index_select(0, m.tensor([0])),
    "ToCopyBackward0": lambda m, x, v: x.to(m.float32), "SoftmaxBackward0": lambda m, x, v: x.softmax(0), "LogSoftmaxBackward0": lambda m, x, v: x.log_softmax(0),
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_nodes(name: str) -> None:
    def lines(m: Any) -> Any:
        node = NAMES[name](m, f64(m, X22, True), f64(m, [1.0, 2.0], True)).grad_fn
        return node.name(), [None if n is None else n.name().rpartition(":")[2] for n, _ in node.next_functions]

    assert same(lines)[0] == name


def test_numbers_less_tensors() -> None:
    """The name is torch's, and so is that there is one edge."""
    assert same(lambda m: [(3.0 - f64(m, X22, True)).grad_fn.name(), (2 - f64(m, X22, True)).grad_fn.name(), m.rsub(f64(m, X22, True), 3.0, alpha=2)]) == [
        "RsubBackward1", "RsubBackward1", [[1.0, -1.0], [-3.0, -5.0]]]
    x = f64(ag, X22, True)
    for _ in range(400):  # the short way, too
        y = 3.0 - x
    assert y.grad_fn.name() == "RsubBackward1" and [n and n.name() for n, _ in y.grad_fn.next_functions] == ["AccumulateGrad"]
    y.sum().backward()
    assert x.grad.tolist() == [[-1.0, -1.0], [-1.0, -1.0]]


def mlp(m: Any) -> Any:
    w1, b1 = f64(m, [[0.1, 0.2], [0.3, -0.4], [0.5, 0.6]], True), f64(m, [[0.1, -0.1, 0.2]], True)
    w2 = f64(m, [[0.3, -0.2, 0.5]], True)
    y = ((f64(m, [[1.0, 2.0]]) @ w1.t() + b1).tanh() @ w2.t()).sum()
    return y, (w1, b1, w2)


def test_a_users_walker_gives_the_gradients() -> None:
    def engine(m: Any) -> Any:
        y, parameters = mlp(m)
        y.backward()
        return [p.grad for p in parameters]

    assert same(lambda m: walk(m, *mlp(m))) == same(engine)


def test_a_node_by_hand_sums_what_was_broadcast() -> None:
    b = f64(ag, [1.0, 2.0], True)
    grads = (f64(ag, X22) + b).grad_fn(ag.ones(2, 2, dtype=ag.float64))
    assert grads[1].tolist() == [2.0, 2.0]  # torch leaves that to the engine, so that a walker of its nodes must do it


def inputs_only(m: Any) -> Any:
    x, w = f64(m, [1.0, 2.0], True), f64(m, [3.0, 4.0], True)
    y = x * w
    (y * y).sum().backward(inputs=[y, w], retain_graph=True)
    return y.grad, w.grad, x.grad


def inputs_that_retain(m: Any) -> Any:
    x = f64(m, [1.0, 2.0], True)
    y, z = x * x, x * 3
    y.retain_grad()
    for _ in range(2):
        (y * y + z * z).sum().backward(inputs=[y, z, z], retain_graph=True)
    return y.grad, z.grad, x.grad


def batched(m: Any) -> Any:
    x = f64(m, [1.0, 2.0], True)
    return m.autograd.grad(x ** 3, x, m.eye(2, dtype=m.float64), is_grads_batched=True)


def by_edge(m: Any) -> Any:
    x = f64(m, [2.0], True)
    y = x * x
    edge = m.autograd.graph.get_gradient_edge(y)
    return m.autograd.grad((y * 3).sum(), edge), edge.output_nr


def unused(m: Any) -> Any:
    x, w = f64(m, 1.0, True), f64(m, 1.0, True)
    return m.autograd.grad(x * x, [x, w], allow_unused=True)


def retained(m: Any) -> Any:
    x = f64(m, 2.0, True)
    y = x * x
    y.backward(retain_graph=True)
    y.backward()
    return x.grad


@pytest.mark.parametrize("lines", [inputs_only, inputs_that_retain, batched, by_edge, unused, retained], ids=lambda f: f.__name__)
def test_backward_and_grad(lines: Lines) -> None:
    found = same(lines)
    assert not isinstance(found, tuple) or found[0] != "error"


def square(m: Any, values: Any = 1.0) -> Any:
    x = f64(m, values, True)
    return x, x * x


def dual_parts(m: Any, x: Any) -> Any:
    with m.autograd.forward_ad.dual_level():
        return m.autograd.forward_ad.unpack_dual(x)


ERRORS: dict[str, Lines] = {
    "inputs empty": lambda m: square(m)[1].backward(inputs=[]),
    "grad of nothing": lambda m: m.autograd.grad(square(m)[1], []),
    "dual parts of a number": lambda m: dual_parts(m, 3.0),
    "not scalar": lambda m: square(m, [1.0, 2.0])[1].backward(),
    "no graph": lambda m: f64(m, 1.0).backward(),
    "freed": lambda m: [y.backward() for y in [square(m)[1]] * 2],
    "shape": lambda m: square(m, [1.0, 2.0])[1].backward(m.ones(3, dtype=m.float64)),
    "unused": lambda m: m.autograd.grad(square(m)[1], f64(m, 1.0, True)),
    "leaf": lambda m: f64(m, [1.0, 2.0], True).add_(1),
    "view of a leaf": lambda m: f64(m, [1.0, 2.0], True)[0].add_(1),
    "item of a leaf": lambda m: f64(m, [1.0, 2.0], True).__setitem__(0, 1.0),
    "hook on a constant": lambda m: f64(m, 1.0).register_hook(lambda g: g),
    "edge of a constant": lambda m: m.autograd.graph.get_gradient_edge(f64(m, 1.0)),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    assert same(ERRORS[name])[0] == "error"


@pytest.mark.parametrize("name", ["leaf", "view of a leaf", "not scalar", "freed"])
def test_texts_of_errors(name: str) -> None:
    assert same(ERRORS[name], text=50)[0] == "error"


def test_a_refused_write_changes_nothing() -> None:
    x = f64(ag, [1.0, 2.0], True)
    with pytest.raises(ag.AotgradError, match=r"test_tape_torch.py:\d+: add_"):
        x.add_(1)
    assert x.tolist() == [1.0, 2.0] and x._version == 0 and x.is_leaf


@pytest.mark.parametrize("count", [30_000, pytest.param(100_000, marks=pytest.mark.thorough)])  # whose frames would take several times the stack
def test_long_graphs_of_real_operations(count: int) -> None:
    x = f64(ag, 1.0, True)
    y = x
    for _ in range(count):
        y = y * 1.00001
    y.backward()
    np.testing.assert_allclose(x.grad.item(), 1.00001 ** count, rtol=1e-9)


# ---- views and writes -------------------------------------------------------------------------------------------------------------------

VIEWS: dict[str, Callable[[Any], Any]] = {
    "select": lambda y: y.select(0, 1), "slice": lambda y: y[:, 1:], "step": lambda y: y[::2, :], "t": lambda y: y.t(), "view": lambda y: y.view(4),
    "unsqueeze": lambda y: y.unsqueeze(0), "narrow": lambda y: y.narrow(1, 0, 1), "diagonal": lambda y: y.diagonal(), "nested": lambda y: y[1:].view(2)[0:1],
    "expand": lambda y: y.unsqueeze(0).expand(1, 2, 2), "split": lambda y: y.split(1)[0], "chunk": lambda y: y.chunk(2)[1], "unbind": lambda y: y.unbind(0)[1],
    "narrow diagonal": lambda y: y.diagonal().narrow(0, 1, 1),
}
REFUSED_BY_TORCH = ("split", "chunk", "unbind")


def write_view(m: Any, name: str) -> Any:
    x, s = f64(m, X22, True), f64(m, 5.0, True)
    y = x * x
    other = y.t()
    v = VIEWS[name](y)
    v.mul_(s)
    (y * other.t() * f64(m, X22)).sum().backward()
    return y, other, v, x.grad, s.grad


def write_base(m: Any, name: str) -> Any:
    x, s = f64(m, X22, True), f64(m, 5.0, True)
    y = x * x
    v = VIEWS[name](y)
    y.mul_(s)
    (v * v).sum().backward()
    return y, v, x.grad, s.grad


def expected(name: str, base: bool) -> Any:
    """The same by masks: which elements the view shows."""
    shown = np.zeros((2, 2))
    shown.reshape(-1)[VIEWS[name](ag.arange(4).view(2, 2)).numpy().reshape(-1)] = 1
    x, w = np.array(X22), np.array(X22)
    if base:
        out = 25 * x ** 4 * shown
        return [(100 * x ** 3 * shown).tolist(), (10 * x ** 4 * shown).sum(), out.sum()]
    factor = np.where(shown, 5.0, 1.0)
    return [(factor ** 2 * 4 * x ** 3 * w).tolist(), (2 * factor * x ** 4 * w * shown).sum(), (factor ** 2 * x ** 4 * w).sum()]


@pytest.mark.parametrize("base", [False, True], ids=["view", "base"])
@pytest.mark.parametrize("name", VIEWS)
def test_recorded_writes_through_views(name: str, base: bool) -> None:
    run = write_base if base else write_view
    found = outcome(ag, lambda m: run(m, name))
    grads = expected(name, base)
    assert found[-2] == grads[0]
    assert found[-1] == grads[1]
    for m in modules()[1:]:
        theirs = outcome(m, lambda n: run(n, name))
        assert theirs == found if name not in REFUSED_BY_TORCH else theirs[0] == "error"  # views of several results: torch refuses, here they work


@pytest.mark.parametrize("name", VIEWS)
def test_writes_through_views_in_forward_mode_and_traces(name: str) -> None:
    def f(x: Any, s: Any) -> Any:
        y = x * x
        w, v = y.reshape(2, 2).transpose(0, 1), VIEWS[name](y)
        v.mul_(s)
        return (y * w.transpose(0, 1)).sum()

    x, s = f64(ag, X22, True), f64(ag, 5.0, True)
    wanted = ag.autograd.grad(f(x, s), (x, s))
    compiled = ag.compile(f)
    for g, w in zip(ag.autograd.grad(compiled(x, s), (x, s)), wanted):
        np.testing.assert_allclose(g.numpy(), w.numpy(), rtol=1e-14)
    dx = f64(ag, [[0.3, -0.1], [0.2, 0.7]])
    moved = ag.jvp(f, (x.detach(), s.detach()), (dx, f64(ag, 0.5)))[1]
    np.testing.assert_allclose(moved.item(), (wanted[0] * dx).sum().item() + 0.5 * wanted[1].item(), rtol=1e-13)


def flags(m: Any) -> Any:
    x = f64(m, X22)
    views = [x[0], x.t(), x.view(4), x[0][0], x.narrow(0, 0, 1), x.diagonal(), x.expand(3, 2, 2), x.split(1)[0], x.unbind(0)[0], x.chunk(2)[0], x.transpose(0, 1),
             x.unsqueeze(0), x.squeeze(), x.reshape(4), x.reshape(2, 2), x.contiguous(), x.clone(), x + 0, x.detach(), x.data, x.to(m.float64), x.select(0, 1),
             x.flatten(), x.permute(1, 0), x.view_as(x), x.T]
    return [(v._is_view(), v._base is x, v is x) for v in views]


def recorded_flags(m: Any) -> Any:
    x = f64(m, X22, True)
    y = x * 2
    views = [x[0], x.t(), x.view(4), x[0][0], x.narrow(0, 0, 1), x.split(1)[0], x.detach(), y[0], y.view(4)[1]]
    return [(v._is_view(), v._base is x, v._base is y, v.is_leaf, v.requires_grad) for v in views]


def versions(m: Any) -> Any:
    x = f64(m, [1.0, 2.0])
    v = x[0]
    seen = [x._version]
    x.add_(1)
    seen.append(v._version)
    v.mul_(2)
    return [*seen, x._version, x.detach()._version, x.data._version, x.view(2)._version]


@pytest.mark.parametrize("lines", [flags, recorded_flags, versions], ids=lambda f: f.__name__)
def test_views_know_their_base(lines: Lines) -> None:
    same(lines)


def test_views_leave_no_cycles() -> None:
    def work() -> None:
        x = f64(ag, X22, True)
        y = x * x
        y.narrow(0, 0, 1).mul_(2.0)
        y.split(1)[1].add_(y[0])
        y.sum().backward()

    flat.check(work, 200, 50)


SAVED: dict[str, Callable[[Any], Any]] = {
    "exp": lambda x: x.exp(), "sigmoid": lambda x: x.sigmoid(), "sqrt": lambda x: x.sqrt(), "tanh": lambda x: x.tanh(), "mul": lambda x: x * 1.0,
}


@pytest.mark.parametrize("name", SAVED)
def test_a_saved_value_survives_a_write_where_torch_raises(name: str) -> None:
    def lines(m: Any, write: bool) -> Any:
        x = f64(m, [0.5, 2.0], True)
        y = SAVED[name](x)
        z = y * y
        if write:
            y.add_(1.0)
        z.sum().backward()
        return x.grad

    assert outcome(ag, lambda m: lines(m, True)) == outcome(ag, lambda m: lines(m, False))
    for m in modules()[1:]:
        assert outcome(m, lambda n: lines(n, True))[0] == "error"
        assert outcome(m, lambda n: lines(n, False)) == outcome(ag, lambda n: lines(n, True))


# ---- hooks ----------------------------------------------------------------------------------------------------------------------------

def order(m: Any) -> Any:
    x, seen = f64(m, 2.0, True), []
    y = x * x
    y.retain_grad()
    handle = y.register_hook(lambda g: seen.append(("a", g.item())) or g * 2)
    y.register_hook(lambda g: seen.append(("b", g.item())))
    z = y * 3
    z.backward(retain_graph=True)
    first, kept = x.grad.clone(), y.grad.clone()
    handle.remove()
    x.grad = y.grad = None
    z.backward()
    return seen, first, kept, x.grad, y.grad


def node_hooks(m: Any) -> Any:
    x, seen = f64(m, [1.0, 2.0], True), []
    y = x * x
    first = y.grad_fn.register_prehook(lambda cts: seen.append("pre") or (cts[0] * 2,))
    y.grad_fn.register_hook(lambda grads, cts: seen.append((len(grads), cts[0].tolist())) or tuple(g * 3 for g in grads))
    y.sum().backward(retain_graph=True)
    first.remove()
    y.sum().backward()
    return seen, x.grad


def leaf_hooks(m: Any) -> Any:
    x, seen = f64(m, 2.0, True), []
    x.register_hook(lambda g: g * 10)
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.item()))
    (x * x).backward()
    with x.register_hook(lambda g: g + 1):
        (x * x).backward()
    (x * x).backward()
    return seen, x.grad


def multi(m: Any) -> Any:
    a, b, c, seen = f64(m, 1.0, True), f64(m, 2.0, True), f64(m, 3.0, True), []
    handle = m.autograd.graph.register_multi_grad_hook((a, b, c), lambda gs: seen.append([None if g is None else g.item() for g in gs]))
    (a * b).backward()
    (a * b * c).backward()
    handle.remove()
    (a * b).backward()
    m.autograd.graph.register_multi_grad_hook((a, b), lambda g: seen.append(g.item()), mode="any")
    (a * a).backward()
    return seen


@pytest.mark.parametrize("lines", [order, node_hooks, leaf_hooks, multi], ids=lambda f: f.__name__)
def test_hooks(lines: Lines) -> None:
    assert same(lines)[0] != "error"


BAD_HOOKS: dict[str, Callable[[Any], Any]] = {"shape": lambda g: g[:1], "type": lambda g: 3.0}


@pytest.mark.parametrize("name", BAD_HOOKS)
def test_bad_hooks_are_refused(name: str) -> None:
    def lines(m: Any) -> Any:
        x = f64(m, [1.0, 2.0], True)
        y = x * x
        y.register_hook(BAD_HOOKS[name])
        y.sum().backward()

    found = same(lines)
    assert found[0] == "error"


def packing(m: Any) -> Any:
    seen = []

    def pack(t: Any) -> Any:
        seen.append(("pack", t.tolist()))
        return t.detach().numpy().copy()

    def unpack(a: Any) -> Any:
        seen.append("unpack")
        return m.from_numpy(a)

    x = f64(m, [1.0, 2.0], True)
    with m.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = (x * x).exp().sum()
    y.backward()
    return x.grad, sorted(map(str, seen))


def innermost(m: Any) -> Any:
    x, graph = f64(m, [1.0, 2.0], True), m.autograd.graph
    with graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        a = x.exp()
        with graph.saved_tensors_hooks(lambda t: t * 10, lambda t: t):
            b = x.exp()
    c = x.exp()
    return [m.autograd.grad(t.sum(), x)[0] for t in (a, b, c)]


def on_cpu(m: Any) -> Any:
    x = f64(m, [1.0, 2.0], True)
    with m.autograd.graph.save_on_cpu():
        y = (x * x).exp().sum()
    y.backward()
    return x.grad


def of_function(m: Any) -> Any:
    class Cube(m.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            y = x ** 3
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            x, y = ctx.saved_tensors
            return 3 * x ** 2 * g + 0 * y

    x, seen = f64(m, [2.0], True), []
    with m.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t.item()) or t + 1, lambda t: t):
        y = Cube.apply(x)
    y.sum().backward()
    return x.grad, seen


def twice(m: Any) -> Any:
    x = f64(m, [0.5], True)
    with m.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        g, = m.autograd.grad((x ** 3).sum(), x, create_graph=True)
    return m.autograd.grad(g.sum(), x)


def disabled(m: Any) -> Any:
    with m.autograd.graph.disable_saved_tensors_hooks("not here"), m.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        pass


def changing(m: Any) -> Any:
    x = f64(m, [1.0, 2.0], True)
    with m.autograd.graph.saved_tensors_hooks(lambda t: t.mul_(2), lambda t: t):
        (x * 1.5).exp()


def no_tensor(m: Any) -> Any:
    x = f64(m, [1.0, 2.0], True)
    with m.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: 3):
        y = x.exp().sum()
    y.backward()


@pytest.mark.parametrize("lines", [packing, innermost, on_cpu, of_function, twice], ids=lambda f: f.__name__)
def test_saved_tensor_hooks(lines: Lines) -> None:
    assert same(lines)[0] != "error"


@pytest.mark.parametrize("lines", [disabled, changing, no_tensor], ids=lambda f: f.__name__)
def test_bad_saved_tensor_hooks(lines: Lines) -> None:
    assert same(lines, text=40)[0] == "error"
    with ag.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):  # nothing is left behind
        pass


def test_saved_tensor_hooks_of_repeated_operations() -> None:
    x, seen = f64(ag, [1.0, 2.0], True), []
    for _ in range(200):
        x * x  # until the short way of eager calls is in place
    with ag.autograd.graph.saved_tensors_hooks(lambda t: seen.append(1) or t, lambda t: t):
        y = x * x
    assert len(seen) == 2
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 4.0]


# ---- anomaly mode -----------------------------------------------------------------------------------------------------------------------

def nan_in_backward(m: Any) -> Any:
    x = f64(m, [1.0, -1.0], True)
    with m.autograd.detect_anomaly():
        m.sqrt(x).sum().backward()


def error_in_backward(m: Any) -> Any:
    class Bad(m.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            raise RuntimeError("no gradient today")

    with m.autograd.set_detect_anomaly(True):
        Bad.apply(f64(m, [1.0], True)).sum().backward()


def switches(m: Any) -> Any:
    def now() -> Any:
        return m.is_anomaly_enabled(), m.is_anomaly_check_nan_enabled()

    seen = [now()]
    with m.autograd.detect_anomaly(check_nan=False):
        seen.append(now())
        with m.autograd.set_detect_anomaly(False):
            seen.append(now())
        seen.append(now())
    m.autograd.set_detect_anomaly(True)
    seen.append(now())
    m.autograd.set_detect_anomaly(False)
    return [*seen, now()]


def test_anomaly_mode() -> None:
    assert same(nan_in_backward, text=63) == ("error", ("RuntimeError",), "Function 'SqrtBackward0' returned nan values in its 0th output.")
    assert same(error_in_backward, text=30)[2] == "no gradient today"
    same(switches)
    assert not ag.is_anomaly_enabled()


@pytest.mark.parametrize("lines", [nan_in_backward, error_in_backward], ids=lambda f: f.__name__)
def test_anomaly_mode_prints_the_forward_call(lines: Lines) -> None:
    for m in modules():
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            with pytest.raises(RuntimeError):
                lines(m)
        text = next(str(w.message) for w in seen if "Traceback of forward call" in str(w.message))
        assert "Error detected in" in text and "test_tape_torch.py" in text and lines.__name__ in text


def test_anomaly_mode_reports_infinities_and_the_outer_calculation() -> None:
    x = f64(ag, [1.0, 0.0], True)
    with ag.autograd.detect_anomaly(), pytest.warns(UserWarning, match="(?s)Infinite values in output 0 in SqrtBackward0.*test_tape_torch"):
        ag.sqrt(x).sum().backward()
    assert x.grad.tolist() == [0.5, float("inf")]
    with ag.autograd.detect_anomaly(), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        w = f64(ag, [-1.0], True)
        with pytest.raises(RuntimeError, match="nan"):
            g, = ag.autograd.grad((w ** 1.5).sum(), w, create_graph=True)
            g.sum().backward()
    assert seen


def test_anomaly_mode_is_off_by_default_and_per_thread() -> None:
    x = f64(ag, [1.0, -1.0], True)
    seen = []
    with ag.autograd.detect_anomaly():
        other = threading.Thread(target=lambda: (ag.sqrt(x).sum().backward(), seen.append(ag.is_anomaly_enabled())))
        other.start()
        other.join()
    assert seen == [False]
    assert np.isnan(x.grad.tolist()[1])


# ---- grad modes -----------------------------------------------------------------------------------------------------------------------

def nested_modes(m: Any) -> Any:
    x, seen = f64(m, [1.0, 2.0], True), []
    with m.no_grad():
        seen.append((x * 2).requires_grad)
        with m.enable_grad():
            seen.append((x * 2).requires_grad)
        with m.set_grad_enabled(True):
            seen.append((x * 2).requires_grad)
        x.add_(1)
        x[0] = 5.0
    m.set_grad_enabled(False)
    seen.append((x * 2).requires_grad)
    m.set_grad_enabled(True)
    seen.append((x * 2).requires_grad)
    return seen, x


def unrecorded_write(m: Any) -> Any:
    x = f64(m, [1.0, 2.0], True)
    y = x * x
    with m.no_grad():
        y.mul_(3)
    y.sum().backward()
    return x.grad, y


def generators(m: Any) -> Any:
    @m.no_grad()
    def numbers() -> Any:
        yield m.is_grad_enabled()
        yield m.is_grad_enabled()

    seen = []
    for inside in numbers():
        seen.append((inside, m.is_grad_enabled()))
    return seen


def made_inside(m: Any) -> Any:
    with m.inference_mode():
        y = f64(m, [1.0, 2.0]) * 2
        seen = [m.is_inference_mode_enabled(), m.is_grad_enabled()]
    z, w, c = y * 2, y.view(2), y.clone()
    c.requires_grad_()
    return [*seen, y.is_inference(), y.requires_grad, z.is_inference(), w.is_inference(), c.is_inference(), z.requires_grad]


def normal_inside(m: Any) -> Any:
    x = f64(m, [1.0, 2.0])
    with m.inference_mode():
        x.add_(1)
        inside = x[0].is_inference()
    return x, inside, x.is_inference(), x._version


@pytest.mark.parametrize("lines", [nested_modes, unrecorded_write, generators, made_inside, normal_inside], ids=lambda f: f.__name__)
def test_grad_modes(lines: Lines) -> None:
    same(lines)


def inference_tensor(m: Any) -> Any:
    with m.inference_mode():
        return f64(m, [1.0, 2.0]) * 2


def view_made_in(m: Any, mode: Callable[[Any], Any]) -> Any:
    y = f64(m, [1.0, 2.0], True) * 1
    with mode(m):
        v = y.view(2)
    v.mul_(3)


MODE_ERRORS: dict[str, Lines] = {
    "saved": lambda m: f64(m, [1.0, 2.0], True) * inference_tensor(m),
    "written": lambda m: inference_tensor(m).add_(1),
    "requires grad": lambda m: inference_tensor(m).requires_grad_(),
    "version": lambda m: inference_tensor(m)._version,
    "view of no_grad": lambda m: view_made_in(m, lambda n: n.no_grad()),
    "view of inference": lambda m: view_made_in(m, lambda n: n.inference_mode()),
}


@pytest.mark.parametrize("name", MODE_ERRORS)
def test_errors_of_modes(name: str) -> None:
    assert same(MODE_ERRORS[name], text=40)[0] == "error"


def test_equal_expressions_in_different_modes() -> None:  # case G50
    def lines(m: Any) -> Any:
        x = f64(m, [1.0], True)
        with m.no_grad():
            a = x + 1
        b = x + 1
        return a.requires_grad, b.requires_grad, a is b

    assert same(lines) == (False, True, False)


# ---- random programs ------------------------------------------------------------------------------------------------------------------

def scribble(seed: int, m: Any, x: Any, s: Any) -> Any:
    """Views of views, and writes through any of them."""
    choose = np.random.default_rng(seed)
    seen = [x * x]

    def step(a: Any, op: int) -> Any:
        d = int(choose.integers(len(a.shape)))
        n = int(a.shape[d])
        return [lambda: a.narrow(d, 0, max(1, n - 1)), lambda: a.transpose(0, -1), lambda: a.diagonal() if len(a.shape) > 1 else a[:1], lambda: a.unsqueeze(d),
                lambda: a.select(d, int(choose.integers(n))), lambda: a[(*[slice(None)] * d, slice(0, None, 2))], lambda: a.unsqueeze(0).expand(1, *a.shape),
                lambda: a.mul_(s), lambda: a.add_(s * 0.5)][op]()

    for op in [*choose.integers(9, size=7), 7]:
        a = seen[int(choose.integers(len(seen)))]
        if len(a.shape):
            b = step(a, int(op))
            seen += [b] if b is not a else []
    return sum([(t * t).sum() * (i + 1) for i, t in enumerate(seen)], s * s)


@pytest.mark.parametrize("seed", range(24))
def test_random_writes_through_views(seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=(3, 3))

    def run(m: Any, wrap: Any = lambda f: f) -> Any:
        x, s = f64(m, values, True), f64(m, 1.5, True)
        y = wrap(lambda x, s: scribble(seed, m, x, s))(x, s)
        return [y.item(), *[g.numpy() for g in m.autograd.grad(y, (x, s))]]

    found = run(ag)
    for other in [run(m) for m in modules()[1:]] + ([run(ag, ag.compile)] if seed % 4 == 0 else []):
        for a, b in zip(found, other):
            np.testing.assert_allclose(a, b, rtol=1e-12)
    dx = np.random.default_rng(seed + 100).normal(size=(3, 3))
    moved = ag.jvp(lambda x, s: scribble(seed, ag, x, s), (f64(ag, values), f64(ag, 1.5)), (f64(ag, dx), f64(ag, 0.7)))[1]
    np.testing.assert_allclose(moved.item(), (found[1] * dx).sum() + 0.7 * found[2], rtol=1e-10)


def test_modes_and_flags_take_bools_alone() -> None:
    """torch's type of error, and nothing is switched."""
    def marks(m: Any) -> Any:
        class Marks(m.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.set_materialize_grads(1)
                return x * 1

        return Marks.apply(f64(m, X22))

    for lines in (lambda m: m.set_grad_enabled(0), lambda m: m.set_grad_enabled("a"), lambda m: m.autograd.set_multithreading_enabled(1), marks,
                  lambda m: f64(m, X22).requires_grad_(3), lambda m: setattr(f64(m, X22), "requires_grad", 1)):
        assert same(lines)[0] == "error"
        assert ag.is_grad_enabled()


def test_names_of_the_modules_of_modes() -> None:
    for m in modules():
        assert m.autograd.grad_mode.no_grad is m.no_grad and m.autograd.grad_mode.inference_mode is m.inference_mode
        assert m.autograd.anomaly_mode.detect_anomaly is m.autograd.detect_anomaly
        x = f64(m, [3.0], True)
        with m.autograd.set_multithreading_enabled(False):
            (x * x).sum().backward()
        assert x.grad.tolist() == [6.0]


@pytest.mark.parametrize("lib", modules())
def test_a_leaf_that_wants_no_gradient_any_more_gets_none(lib: Any) -> None:
    x, z = lib.ones(2, requires_grad=True), lib.ones(2, requires_grad=True)
    seen: list[Any] = []
    x.register_hook(lambda g: seen.append("hook"))
    x.register_post_accumulate_grad_hook(lambda t: seen.append("after"))
    y = (x * z).sum()
    x.requires_grad_(False)
    y.backward()
    assert x.grad is None and z.grad.tolist() == [1.0, 1.0] and seen == ["hook", "after"]


@pytest.mark.parametrize("lib", modules())
def test_hooks_of_saved_tensors_cannot_be_switched_off_where_they_are_active(lib: Any) -> None:
    graph = lib.autograd.graph
    with graph.saved_tensors_hooks(lambda t: t, lambda t: t), pytest.raises(RuntimeError, match="not here"), graph.disable_saved_tensors_hooks("not here"):
        pass
    hooks = graph.saved_tensors_hooks(lambda t: t, lambda t: t)
    with graph.disable_saved_tensors_hooks("outer"), graph.disable_saved_tensors_hooks("inner"), pytest.raises(RuntimeError, match="inner"), hooks:
        pass
