"""Hooks of nodes and hooks on several gradients, in compiled code: as in eager, and (``modules``) as in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sweep
from autograd_pair import f64, modules
from autograd_ways import WAYS, Ways

import aotgrad as ag

F = Callable[..., Any]


def told(grads: Any) -> Any:
    """Gradients as numbers, rounded so that two implementations agree."""
    return [None if g is None else (np.round(np.asarray(g.tolist()), 12) + 0.0).tolist() for g in grads]


def both(f: F, inputs: list[tuple[Any, bool]]) -> Any:
    """What ``f(m, seen, *tensors)`` says and the gradients, in eager, twice compiled, and in torch; all must be equal."""
    found = []
    for m, wrap, times in [(ag, lambda g: g, 1), (ag, ag.compile, 2), *((m, lambda g: g, 1) for m in modules()[1:])]:
        seen: list[Any] = []
        run = wrap(lambda *xs, m=m, seen=seen: f(m, seen, *xs))
        for _ in range(times):
            seen.clear()
            xs = [f64(m, x, on) for x, on in inputs]
            run(*xs).backward()
            found.append((list(seen), told([x.grad for x in xs])))
    assert all(x == found[0] for x in found), found
    return found[0]


def noted(seen: list[Any], name: str, change: Any = None) -> F:
    """A hook that takes note of what it is given."""
    def hook(grad_inputs: Any, grad_outputs: Any) -> Any:
        assert type(grad_inputs) is tuple and type(grad_outputs) is tuple
        seen.append((name, told(grad_inputs), told(grad_outputs)))
        return None if change is None else tuple(None if g is None else change * g for g in grad_inputs)

    return hook


# ---- hooks of nodes -------------------------------------------------------------------------------------------------------------------

def order(m: Any, seen: list[Any], x: Any, w: Any) -> Any:
    y = x * x
    z = y * w
    z.grad_fn.register_hook(noted(seen, "z", 2))
    y.grad_fn.register_hook(noted(seen, "y"))
    y.grad_fn.register_hook(noted(seen, "y again", 3))
    y.register_hook(lambda g: seen.append(("tensor", told([g]))) or g + 1)
    y.grad_fn.register_prehook(lambda gs: seen.append(("before", told(gs))))
    return (z + y).sum()


def functions(m: Any, seen: list[Any], x: Any, w: Any) -> Any:
    total = 0.0
    F = m.nn.functional
    made = {
        "sum": (x * 2.0).sum(0), "gelu": F.gelu(x), "add": x + w, "softplus": F.softplus(x + w), "cat": m.cat([x, x + w]), "clamp": (x * 3).clamp(1.0, 7.0),
        "pow": (x + 1) ** 2, "div": x / w, "where": m.where(x > w, x, w), "slice": x[0:1], "matmul": x @ w.t(), "softmax": m.softmax(x, 1), "mean": x.mean(),
        "view": x.view(4), "tensors": m.clamp(x, w - 1, w), "linear": F.linear(x, w, w[0, :1]),
    }
    for name, y in made.items():
        y.grad_fn.register_hook(noted(seen, name))
        total = total + (y * y).sum()
    return total


def several_results(m: Any, seen: list[Any], x: Any, w: Any) -> Any:
    a, b = m.stack([x, x * w]).unbind(0)
    a.register_hook(lambda g: g + 1)
    a.grad_fn.register_prehook(lambda gs: seen.append(("before", told(gs))) or tuple(2 * g for g in gs))
    b.grad_fn.register_hook(noted(seen, "after"))
    return (a * b).sum()


def in_place(m: Any, seen: list[Any], x: Any, w: Any) -> Any:
    y = x * 1.0
    y.mul_(w)
    y.grad_fn.register_hook(noted(seen, "written", 2))
    return y.sum()


def removed(m: Any, seen: list[Any], x: Any, w: Any) -> Any:
    y = x * w
    y.grad_fn.register_hook(noted(seen, "kept"))
    y.grad_fn.register_hook(noted(seen, "gone", 100)).remove()
    return y.sum()


def by_hand(m: Any, seen: list[Any], x: Any, w: Any) -> Any:
    class Scaled(m.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any, k: float) -> Any:
            ctx.k = k
            return x * k

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * ctx.k, None

    y = Scaled.apply(x, 3.0)
    y.grad_fn.register_hook(noted(seen, "function", 2))
    return (y * w).sum()


def without_grad(m: Any, seen: list[Any], x: Any, w: Any) -> Any:
    y = x * w
    with m.no_grad():
        y.grad_fn.register_hook(noted(seen, "registered"))
    return y.sum()


@pytest.mark.parametrize("f, active", sweep.part([order, several_results, in_place, removed, by_hand, without_grad], [True, False], of=4),
                         ids=lambda f: getattr(f, "__name__", None))
def test_hooks_of_nodes_see_what_torch_shows(f: F, active: bool) -> None:
    seen, _ = both(f, [([1.0, 2.0], True), ([3.0, 5.0], active)])
    assert seen


def test_the_gradients_of_many_functions() -> None:
    seen, _ = both(functions, [([[1.0, 2.5], [3.0, 4.0]], True), ([[0.5, 2.0]], True)])
    assert len(seen) == 16
    both(functions, [([[1.0, 2.5], [3.0, 4.0]], True), ([[0.5, 2.0]], False)])


@Ways
def test_hooks_of_nodes_wherever_the_gradient_is(way: str) -> None:
    seen: list[Any] = []

    def f(x: Any) -> Any:
        y = x * x
        z = y * x  # a use before the hook
        y.grad_fn.register_hook(noted(seen, "y", 3))
        return z.sum()

    run = WAYS[way](f)
    for x in (np.array([1.0, 2.0]), np.array([0.5, -1.0, 3.0])):
        seen.clear()
        np.testing.assert_allclose(run(x), 7 * x ** 2, rtol=1e-12)
        assert seen == [("y", told([x * x, x * x]), told([x]))]


@Ways
def test_hooks_of_nodes_in_loops_run_in_every_round(way: str) -> None:
    seen: list[Any] = []

    def f(x: Any) -> Any:
        def body(_: Any, c: Any) -> Any:
            d = c * 1.5
            d.grad_fn.register_hook(lambda gi, go: seen.append(told(go)) or (gi[0] * 2, *gi[1:]))
            return ag.sin(d)

        return ag.fori_loop(0, 3, body, x).sum()

    x, slopes = 0.3, []
    got = WAYS[way](f)(np.array([x]))
    for _ in range(3):
        slopes.append(np.cos(1.5 * x))
        x = np.sin(1.5 * x)
    np.testing.assert_allclose(got, [27 * np.prod(slopes)], rtol=1e-12)
    assert len(seen) == 3


@Ways
def test_a_hook_of_a_node_that_uses_values_of_the_function(way: str) -> None:
    def f(x: Any, s: Any) -> Any:
        y = x * x
        y.grad_fn.register_hook(lambda gi, go: tuple(g * s for g in gi))
        return (y * x).sum()

    run = WAYS[way](f)
    for s in (3.0, 5.0):
        np.testing.assert_allclose(run(np.array([2.0]), s), [4.0 + 8.0 * s], rtol=1e-12)


def test_such_a_hook_after_a_use_is_refused() -> None:
    def f(x: Any, s: Any) -> Any:
        y = x * x
        z = y * x
        y.grad_fn.register_hook(lambda gi, go: tuple(g * s for g in gi))
        return z.sum()

    with pytest.raises(ag.AotgradError, match=r"test_node_hooks_compiled.py:\d+: register_hook.*right after the tensor is made"):
        ag.compile(ag.grad(f))(np.array([2.0]), 3.0)


def test_the_second_derivative_goes_through_them() -> None:
    def f(x: Any) -> Any:
        y = x * x
        y.grad_fn.register_hook(lambda gi, go: tuple(3 * g for g in gi))
        return (y * x).sum()

    def twice(m: Any, wrap: F) -> Any:
        x = f64(m, [2.0], True)
        g, = m.autograd.grad(wrap(f)(x), x, create_graph=True)
        g.sum().backward()
        return g.tolist(), x.grad.tolist()

    wanted = twice(ag, ag.compile)
    assert all(twice(m, lambda g: g) == wanted for m in modules())
    assert ag.compile(ag.grad(ag.grad(f)))(2.0) == ag.grad(ag.grad(f))(2.0) == wanted[1][0]
    assert ag.compile(ag.jacfwd(ag.grad(f)))(2.0) == 28.0


def test_under_vmap_they_see_each_example() -> None:
    seen: list[Any] = []

    def f(x: Any) -> Any:
        y = x * x
        y.grad_fn.register_hook(noted(seen, "y", 3))
        return y * x

    np.testing.assert_allclose(ag.compile(ag.vmap(ag.grad(f)))(np.array([1.0, 2.0])), [7.0, 28.0])
    assert [s[2] for s in seen] == [[1.0], [2.0]]


def test_inside_a_training_step() -> None:
    seen: list[Any] = []

    def step(x: Any) -> None:
        y = x * x
        y.grad_fn.register_hook(noted(seen, "y", 2))
        y.sum().backward()

    x = f64(ag, [1.0, 2.0], True)
    ag.compile(step)(x)
    assert x.grad.tolist() == [4.0, 8.0] and len(seen) == 1


@pytest.mark.parametrize(("hook", "kind"), [
    (lambda gi, go: gi[0], "expected tuple"), (lambda gi, go: gi[:1], "returned 1 values"), (lambda gi, go: (3.0, None), "expected Tensor"),
    (lambda gi, go: (gi[0][:1], gi[1]), "invalid gradient at index 0"), (lambda gi, go: 1 / 0, "division"),
], ids=["type", "count", "number", "shape", "error"])
def test_errors_of_such_hooks_reach_the_caller(hook: Any, kind: str) -> None:
    def f(x: Any) -> Any:
        y = x * x
        y.grad_fn.register_hook(hook)
        return y.sum()

    errors = []
    for way in WAYS:
        with pytest.raises(Exception, match=kind) as found:
            WAYS[way](f)(np.array([1.0, 2.0]))
        errors.append(found.type)
    assert len(set(errors)) == 1, errors


def test_plain_calls_and_calls_of_all_sizes() -> None:
    def f(x: Any) -> Any:
        y = x * x
        if y.grad_fn is not None:
            y.grad_fn.register_hook(lambda gi, go: tuple(2 * g for g in gi))
        return y.sum()

    c = ag.compile(f)
    traces = set()
    for n in (2, 3, 5):
        x = ag.ones(n, requires_grad=True)
        c(x).backward()
        assert x.grad.tolist() == [4.0] * n and c(ag.ones(n)).item() == n
        traces.add(c.cache_info().traces)
    assert len(traces) == 1


# ---- hooks on several gradients -------------------------------------------------------------------------------------------------------

def joined(mode: str) -> F:
    def f(m: Any, seen: list[Any], x: Any, w: Any) -> Any:
        a = x * 2
        b = a * w
        c = b + a
        aside = x * 7
        m.autograd.graph.register_multi_grad_hook((a, b, c, aside), lambda g: seen.append(told(g if mode == "all" else [g])), mode=mode)
        b.register_hook(lambda g: seen.append(("b", told([g]))))
        return c.sum()

    return f


INPUTS = [([1.0, 2.0], True), ([3.0, 4.0], True)]


@pytest.mark.parametrize("mode", ["all", "any"])
def test_a_hook_on_several_gradients(mode: str) -> None:
    seen, _ = both(joined(mode), INPUTS)
    wanted = [("b", [[1.0, 1.0]]), [[4.0, 5.0], [1.0, 1.0], [1.0, 1.0], None]] if mode == "all" else [[[1.0, 1.0]], ("b", [[1.0, 1.0]])]
    assert seen == wanted
    for way in WAYS:
        seen = []
        WAYS[way](lambda x, w, seen=seen: joined(mode)(ag, seen, x, w))(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
        assert seen == wanted, way


def test_every_call_waits_for_its_own() -> None:
    """Two calls before either's backward pass; a pass over the graph of a gradient, which reaches some of them."""
    def interleaved(m: Any, wrap: F) -> Any:
        seen: list[Any] = []
        x, w = f64(m, [1.0, 2.0], True), f64(m, [3.0, 4.0], True)
        run = wrap(lambda x, w: joined("all")(m, seen, x, w))
        p, q = run(x, w), run(x, w * 2)
        q.backward()
        p.backward()
        return seen, x.grad.tolist()

    def again(m: Any, wrap: F) -> Any:
        seen: list[Any] = []

        def f(x: Any, w: Any) -> Any:
            a = x * x
            b = a * w
            c = b * a
            m.autograd.graph.register_multi_grad_hook((a, b, c), lambda gs: seen.append(told(gs)))
            return c.sum()

        x, w = f64(m, [1.0, 2.0], True), f64(m, [3.0, 4.0], True)
        g, = m.autograd.grad(wrap(f)(x, w), x, create_graph=True)
        g.sum().backward()
        return seen, x.grad.tolist()

    for run in (interleaved, again):
        wanted = run(ag, ag.compile)
        assert len(wanted[0]) in (2, 4)
        assert all(run(m, lambda g: g) == wanted for m in modules())


def test_on_the_parameters_of_a_module_and_in_loops() -> None:
    model = ag.nn.Linear(3, 2)
    for wrap in (lambda f: f, ag.compile):
        seen: list[Any] = []

        def f(x: Any, seen: list[Any] = seen) -> Any:
            ag.autograd.graph.register_multi_grad_hook(list(model.parameters()), lambda gs: seen.append([tuple(g.shape) for g in gs]))
            return model(x).sum()

        wrap(f)(ag.ones(4, 3)).backward()
        assert seen == [[(2, 3), (2,)]]

    def loop(seen: list[Any], x: Any) -> Any:
        def body(_: Any, c: Any) -> Any:
            a = c * 2
            b = a * 3
            ag.autograd.graph.register_multi_grad_hook((a, b), lambda gs: seen.append(told(gs)))
            return b + a

        return ag.fori_loop(0, 2, body, x).sum()

    for way in WAYS:
        seen = []
        np.testing.assert_allclose(WAYS[way](lambda x, seen=seen: loop(seen, x))(np.array([1.0])), [64.0])
        assert seen == [[[4.0], [1.0]], [[32.0], [8.0]]], way


def test_a_handle_removes_it_and_what_cannot_be_told_is_refused() -> None:
    def gone(x: Any) -> Any:
        a, b = x * 2, x * 3
        ag.autograd.graph.register_multi_grad_hook((a, b), lambda gs: 1 / 0).remove()
        return (a + b).sum()

    for way in WAYS:
        np.testing.assert_allclose(WAYS[way](gone)(np.array([1.0])), [5.0])

    def kept(x: Any) -> Any:
        a, b = x * 2, x * 3
        ag.autograd.graph.register_multi_grad_hook((a, b), lambda gs: None)
        return (a + b).sum()

    def mixed(x: Any) -> Any:
        def body(_: Any, c: Any) -> Any:
            d = c * 2
            ag.autograd.graph.register_multi_grad_hook((x, d), lambda gs: None)
            return d

        return ag.fori_loop(0, 2, body, x).sum()

    for f in (lambda: ag.compile(ag.vmap(ag.grad(kept)))(np.ones((2, 1))), lambda: ag.compile(mixed)(ag.ones(1, requires_grad=True))):
        with pytest.raises(ag.AotgradNotImplementedError, match="register_multi_grad_hook"):
            f()
