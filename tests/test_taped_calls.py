"""Compiled functions called with tensors: the short way means what the general way means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flat
import numpy as np
import pytest
from entered import python_calls

import aotgrad as ag
from aotgrad.frontend import recorder
from aotgrad_runtime import call


def _x(*shape: int, grad: bool = True) -> Any:
    return ag.tensor(np.random.default_rng(len(shape)).uniform(0.5, 1.5, shape), requires_grad=grad)


def _same(a: Any, b: Any) -> None:
    np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-13)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "product": lambda x, y: x * y, "loss": lambda x, y: ((x @ y.T).tanh() ** 2).sum(), "two results": lambda x, y: (x.exp(), (x * y).sum()),
    "unused": lambda x, y: x.sin(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients(name: str) -> None:
    f = FUNCTIONS[name]
    compiled = ag.compile(f)
    x, y = _x(3, 4), _x(3, 4) * 0.5
    y = y.detach().requires_grad_()
    for _ in range(3):
        got, want = compiled(x, y), f(x, y)
        got, want = (got, want) if isinstance(got, tuple) else ((got,), (want,))
        for a, b in zip(got, want):
            _same(a, b)
            assert str(a.grad_fn.name) == "CompiledFunctionBackward"
        for create in (False, True):
            total = sum(((o * o).sum() for o in got[1:]), start=(got[0] * 2.0).sum())
            reference = sum(((o * o).sum() for o in want[1:]), start=(want[0] * 2.0).sum())
            ga = ag.autograd.grad(total, [x, y], create_graph=create, retain_graph=True, allow_unused=True)
            gb = ag.autograd.grad(reference, [x, y], create_graph=create, retain_graph=True, allow_unused=True)
            for a, b in zip(ga, gb):
                if b is not None:
                    _same(a, b)
        (second,) = ag.autograd.grad((ga[0] ** 2).sum(), x, allow_unused=True)
        (reference,) = ag.autograd.grad((gb[0] ** 2).sum(), x, allow_unused=True)
        assert (second is None) == (reference is None)
        if second is not None:
            _same(second, reference)
    assert isinstance(got[0].grad_fn, recorder.TapedNode)


def test_only_some_want_gradients_and_numbers_beside() -> None:
    f = ag.compile(lambda x, y, c: (x * y * c).sum())
    x, y = _x(5), _x(5)
    f(x, y, 2.0)
    for rx, ry in ((True, False), (False, True), (False, False), (True, True)):
        a, b = x.detach().requires_grad_(rx), y.detach().requires_grad_(ry)
        out = f(a, b, 3.0)
        assert out.requires_grad == (rx or ry)
        if out.requires_grad:
            out.backward()
            if rx:
                _same(a.grad, 3.0 * y.detach())
            if ry:
                _same(b.grad, 3.0 * x.detach())
    with ag.no_grad():
        assert not f(x, y, 2.0).requires_grad
    assert f(x, y, 2.0).requires_grad and f(x[:3], y[:3], 1.0).requires_grad


def test_some_of_several_results_are_differentiated() -> None:
    """Sizes that one result's cotangent would tell come from what was saved."""
    def f(a: Any, x: Any, y: Any, z: Any) -> Any:
        return x.sum(), y * 2, z.mean() + y.sum(), a * x.sum()

    compiled, weights = ag.compile(f), (1.0, 2.0, 3.0, 4.0)
    for sizes in ((3, 4), (5, 2)):
        args = [_x(sizes[0]), *(_x(n) for n in sizes), _x(*sizes)]
        for some in range(1, 16):
            for again in (False, True):
                grads = [ag.autograd.grad(sum(w * r.sum() for k, (w, r) in enumerate(zip(weights, g(*args))) if some >> k & 1), args, materialize_grads=True,
                                          create_graph=again) for g in (compiled, f)]
                for a, b in zip(*grads):
                    _same(a, b)


def test_tensors_that_are_made_inside() -> None:
    """No tensor comes in: results are tensors at the first call as at later ones, in every mode."""
    no_argument, number, several = ag.compile(lambda: ag.arange(3.0) * 2), ag.compile(lambda k: ag.ones(2) * k), ag.compile(lambda k=3: {"a": ag.ones(2), "k": k})
    for mode in (ag.enable_grad, ag.enable_grad, ag.no_grad, ag.no_grad):
        with mode():
            for k in (2.0, 3.0):
                found = no_argument(), number(k), several()["a"]
                assert [type(x) for x in found] == [ag.Tensor] * 3 and [x.tolist() for x in found] == [[0.0, 2.0, 4.0], [k, k], [1.0, 1.0]]
                assert isinstance(number(np.ones(2)), np.ndarray)


def test_containers_of_tensors() -> None:
    f = ag.compile(lambda p, x: {"y": (x @ p["w"] + p["b"]).sum(), "n": 3})
    p = {"w": _x(4, 2), "b": _x(2)}
    x = _x(3, 4, grad=False)
    for _ in range(3):
        p["w"].grad = p["b"].grad = None
        out = f(p, x)
        assert out["n"] == 3
        out["y"].backward()
        _same(p["b"].grad, ag.full((2,), 3.0, dtype=ag.float64))
        _same(p["w"].grad, x.sum(0).reshape(4, 1).expand(4, 2))


def test_writes_between_the_passes_and_saved_hooks() -> None:
    f = ag.compile(lambda x, y: (x * y).sum())
    x, y = _x(4), _x(4, grad=False)
    f(x, y)
    was = y.clone()
    out = f(x, y)
    y.mul_(10.0)
    out.backward()
    _same(x.grad, was)
    seen: list[int] = []
    with ag.autograd.graph.saved_tensors_hooks(lambda t: seen.append(1) or t, lambda t: t):
        f(x, y).backward()
    assert seen
    out = f(x, y)
    out.backward()
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()


def test_what_does_not_fit_goes_the_general_way() -> None:
    f = ag.compile(lambda x, y: x * y)
    x = _x(3, 4)
    f(x, x)
    _same(f(x.T, x.T), (x * x).T)
    _same(f(x[::2], x[::2]), x[::2] * x[::2])
    assert isinstance(f(np.ones((3, 4)), np.ones((3, 4))), np.ndarray)
    assert f(x.float(), x.float()).dtype is ag.float32
    inner = ag.compile(lambda x: f(x, x).sum())
    _same(inner(x), (x * x).sum())
    with ag.autograd.forward_ad.dual_level():
        d = ag.autograd.forward_ad.make_dual(x.detach(), ag.ones(3, 4, dtype=ag.float64))
        _same(ag.autograd.forward_ad.unpack_dual(f(d, x.detach())).tangent, x)


def test_flat_calls_come_to_python_to_be_recorded_alone() -> None:
    f = ag.compile(lambda x, y, c=1.0: (x * y * c, x - y))
    x, y = _x(5), _x(5, grad=False)
    f(x, y), f(x, y), f(x, y, 2.0), f(x, y, 2.0)
    if call.function.machine() is None:
        pytest.skip("no machine code here")
    assert python_calls(lambda: f(y, y))[0] == "finish" and "slow" not in python_calls(lambda: f(x, y, 2.0))
    f(x, x)
    assert "recorded" not in python_calls(lambda: f(x, y)) and python_calls(lambda: f(x, x))[:2] == ["finish", "recorded"]  # the form that came first is in ``finish``
    with ag.no_grad():
        assert f(x, y)[0].grad_fn is None and "finish" not in python_calls(lambda: f(x, y))
    with ag.inference_mode():
        assert f(y, y)[0].is_inference()
    with pytest.raises(RuntimeError, match="[Ii]nference"):
        with ag.inference_mode():
            z = y * 1.0
        f(x, z)
    g = ag.compile(lambda x: f(x, y, 3.0)[0])  # y is an input of g, whatever the trampoline could do with two tensors
    assert np.array_equal(g(x).detach().numpy(), (x * y * 3.0).detach().numpy())
    y.mul_(2.0)
    assert np.array_equal(g(x).detach().numpy(), (x * y * 3.0).detach().numpy())


def test_a_call_on_captured_tensors_inside_a_trace_is_part_of_it() -> None:
    f = ag.compile(lambda x: x * x)
    w = _x(3)
    f(w)
    g = ag.compile(lambda x: (f(w) * x).sum())
    x = _x(3, grad=False)
    for _ in range(2):
        w.grad = None
        g(x).backward()
        _same(w.grad, 2 * w.detach() * x)


def test_classes_and_results_that_are_no_floats() -> None:
    def loss(x: Any, t: Any) -> Any:
        return ag.nn.functional.cross_entropy(x, t), x.argmax(1), x.detach() * 1.0

    f = ag.compile(loss)
    x, t = _x(4, 3), ag.tensor([0, 2, 1, 1])
    f(x, t)
    for _ in range(3):
        a, place, plain = f(x, t)
        b = loss(x, t)[0]
        assert isinstance(a.grad_fn, recorder.TapedNode) and len(a.grad_fn.next_functions) == 1
        assert place.dtype is ag.int64 and place.grad_fn is None and not plain.requires_grad
        for create in (False, True):
            (ga,), (gb,) = (ag.autograd.grad(v, x, create_graph=create, retain_graph=True) for v in (a, b))
            _same(ga, gb)
        _same(ag.autograd.grad((ga ** 2).sum(), x)[0], ag.autograd.grad((gb ** 2).sum(), x)[0])


def test_memory_is_flat_without_the_collector() -> None:
    f = ag.compile(lambda x, y: ((x * y).sin(), x - y))
    x, y = _x(8), _x(8)
    flat.check(lambda: f(x, y)[0].sum().backward(), 200, 1000)


def test_modules_in_variables_are_read_without_the_general_way() -> None:
    net = ag.nn.Sequential(ag.nn.Linear(3, 4), ag.nn.Tanh(), ag.nn.Linear(4, 1)).double()
    f = ag.compile(lambda x: (net(x) ** 2).sum())
    x = _x(5, 3, grad=False)

    def check() -> None:
        got, want = f(x), (net(x) ** 2).sum()
        _same(got, want)
        inputs = [p for p in net.parameters() if p.requires_grad]
        for create in (False, True):
            ga, gb = (ag.autograd.grad(v, inputs, create_graph=create, retain_graph=True) for v in (got, want))
            for a, b in zip(ga, gb):
                _same(a, b)
        for a, b in zip(*(ag.autograd.grad(sum((v * v).sum() for v in g[1:]) + (g[0] ** 2).sum(), inputs) for g in (ga, gb))):
            _same(a, b)

    f(x), f(x)
    assert isinstance(f(x).grad_fn, recorder.TapedNode) and "_slow" not in python_calls(lambda: f(x))
    check()
    with ag.no_grad():
        net[0].weight.mul_(1.5)
        f(x), f(x)
        assert "_slow" not in python_calls(lambda: f(x)) and not f(x).requires_grad
    check()
    out, was = f(x), net[2].weight.detach().clone()
    (want,) = ag.autograd.grad((net(x) ** 2).sum(), [net[2].weight])
    with ag.no_grad():
        net[0].weight.zero_()
        net[2].weight.add_(1.0)
    _same(ag.autograd.grad(out, [net[2].weight])[0], want)  # what was saved is as it was
    net[2].weight.data.copy_(was)
    net[0].weight.requires_grad_(False)
    check()
    net[0].weight.requires_grad_(True)
    net[2] = ag.nn.Linear(4, 2).double()
    check()
    net[0].weight = ag.nn.Parameter(_x(4, 3).detach())
    check()
    assert f(x[:2]).shape == () and f(_x(7, 3)).requires_grad
    seen: list[int] = []
    with ag.autograd.graph.saved_tensors_hooks(lambda t: seen.append(1) or t, lambda t: t):
        f(x).backward()
    assert seen


def test_dropout_in_a_module_is_recorded_with_the_mask_of_its_call() -> None:
    net = ag.nn.Sequential(ag.nn.Linear(6, 40), ag.nn.Dropout(0.5)).double()
    f, x = ag.compile(lambda x: net(x)), _x(2, 6, grad=False)
    for _ in range(4):
        first, second = f(x), f(x)
        assert isinstance(first.grad_fn, recorder.TapedNode) or _ == 0
        for out in (second, first):
            (g,) = ag.autograd.grad(out.sum(), [net[0].bias], retain_graph=True)
            _same(g, (out.detach() != 0).double().sum(0) * 2.0)
    assert not ag.equal(first, second)


def test_each_set_of_inputs_that_want_gradients_after_the_first() -> None:
    """The form that is met first is written into what ends a call; all others, and changes of an argument, go as before."""
    c = ag.compile(lambda x, y: (x * y, x + 1))
    data = [np.array([1.0, 2.0]), np.array([3.0, 5.0])]
    for order in ((3, 1, 2, 0), (1, 3, 0, 2), (0, 2, 3, 1)):
        c = ag.compile(lambda x, y: (x * y, x + 1))
        for bits in (*order, *order, *order):
            x, y = [ag.tensor(d, requires_grad=bool(bits >> i & 1)) for i, d in enumerate(data)]
            for _ in range(3):
                a, b = c(x, y)
            assert (a.requires_grad, b.requires_grad) == (bits > 0, bool(bits & 1))
            if bits:
                kept = a
                x.grad = y.grad = None
                with ag.no_grad():
                    x.mul_(2)  # what is saved stays
                kept.sum().backward()
                assert x.grad is None if not bits & 1 else x.grad.tolist() == [3.0, 5.0]
                assert y.grad is None if not bits & 2 else y.grad.tolist() == [1.0, 2.0]


def test_a_finished_call_inside_a_trace_is_traced() -> None:
    inner = ag.compile(lambda x, y: x * y)
    x = ag.ones(2, requires_grad=True)
    for _ in range(5):
        inner(x, x)
    outer = ag.compile(lambda x: inner(x, x).sum())
    outer(x).backward()
    assert x.grad.tolist() == [2.0, 2.0] and inner(x, x).requires_grad
