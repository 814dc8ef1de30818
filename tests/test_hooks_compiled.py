"""Hooks, calls of Python, grad modes and anomaly mode in compiled code: as in eager, and (``modules``) as in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from autograd_pair import f64, modules, same
from autograd_ways import WAYS, Ways, taped

import aotgrad as ag

F = Callable[..., Any]


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-12)


# ---- hooks ----------------------------------------------------------------------------------------------------------------------------

def g53(x: Any) -> Any:
    y = x * x
    y.register_hook(lambda g: 3 * g)
    return y * x


@Ways
def test_g53(way: str) -> None:
    run = WAYS[way](g53)
    close(run(2.0), 28.0)
    close(run(3.0), 63.0)  # 7 x^2: called again


def test_g53_as_torch() -> None:
    def lines(m: Any) -> Any:
        x = f64(m, 2.0, True)
        g53(x).backward()
        return x.grad

    assert same(lines) == 28.0
    x = f64(ag, 2.0, True)
    z = ag.compile(g53)(x)
    assert z.grad_fn is not None and z.item() == 8.0
    z.backward()
    assert x.grad.item() == 28.0


@Ways
def test_hooks_see_the_gradient_at_every_call_in_order(way: str) -> None:
    seen: list[Any] = []

    def f(x: Any) -> Any:
        y = ag.sin(x)
        early = y * 2  # a use before the hooks
        y.register_hook(lambda g: seen.append(("a", np.asarray(g.tolist()))) or g * 2)
        y.register_hook(lambda g: seen.append(("b", np.asarray(g.tolist()))))
        return (early * y).sum()

    run = WAYS[way](f)
    for x in (np.array([1.0, 2.0]), np.array([0.5, -1.0, 3.0])):
        seen.clear()
        close(run(x), 8 * np.sin(x) * np.cos(x))
        assert [name for name, _ in seen] == ["a", "b"]
        close(seen[0][1], 4 * np.sin(x))
        close(seen[1][1], 8 * np.sin(x))


def test_a_hook_does_not_reach_an_equal_expression() -> None:
    def f(x: Any) -> Any:
        y, z = x * x, x * x
        y.register_hook(lambda g: 10 * g)
        return y + z

    for way in WAYS:
        close(WAYS[way](f)(3.0), 66.0)


def test_a_hook_on_an_argument_is_for_this_call() -> None:
    def f(x: Any) -> Any:
        x.register_hook(lambda g: 5 * g)
        return x * x

    close(ag.compile(ag.grad(f))(3.0), 30.0)
    x, c = f64(ag, 3.0, True), ag.compile(f)
    c(x).backward()
    c(x).backward()
    assert x.grad.item() == 60.0 and not x._extra.hooks  # the leaf itself has none


def test_a_hook_removed_while_the_function_runs_is_not_called() -> None:
    def f(x: Any) -> Any:
        y = x * x
        y.register_hook(lambda g: 2 * g)
        y.register_hook(lambda g: 100 * g).remove()
        return y * 1.0

    for way in WAYS:
        close(WAYS[way](f)(3.0), 12.0)


@Ways
def test_a_hook_that_uses_values_of_the_function(way: str) -> None:
    def f(x: Any, s: Any) -> Any:
        y = x * x
        y.register_hook(lambda g: g * s)
        return y * x

    run = WAYS[way](f)
    close(run(2.0, 3.0), 28.0)
    close(run(2.0, 5.0), 44.0)


def test_such_a_hook_after_a_use_is_refused() -> None:
    def f(x: Any, s: Any) -> Any:
        y = x * x
        z = y * x
        y.register_hook(lambda g: g * s)
        return z

    with pytest.raises(ag.AotgradError, match=r"test_hooks_compiled.py:\d+: register_hook.*right after the tensor is made"):
        ag.compile(ag.grad(f))(2.0, 3.0)


@Ways
def test_hooks_in_loops_run_in_every_round(way: str) -> None:
    seen: list[float] = []

    def f(x: Any) -> Any:
        def body(_: Any, c: Any) -> Any:
            d = c * 1.5
            d.register_hook(lambda g: seen.append(float(g)) or g * 2)
            return ag.sin(d)

        return ag.fori_loop(0, 3, body, x)

    seen.clear()
    got = WAYS[way](f)(0.3)
    x, slopes = 0.3, []
    for _ in range(3):
        slopes.append(np.cos(1.5 * x))
        x = np.sin(1.5 * x)
    close(got, 27 * np.prod(slopes))
    assert len(seen) == 3
    close(seen[0], slopes[2])


def test_hooks_and_higher_derivatives() -> None:
    for f in (g53,):
        close(ag.jacfwd(ag.grad(f))(2.0), 28.0)
        close(ag.compile(ag.jacfwd(ag.grad(f)))(2.0), 28.0)
        close(ag.grad(ag.grad(f))(2.0), ag.compile(ag.grad(ag.grad(f)))(2.0))

    def twice(m: Any, wrap: Any = lambda f: f) -> Any:  # torch: the hook sees second-order gradients too
        x = f64(m, 2.0, True)
        g, = m.autograd.grad(wrap(g53)(x), x, create_graph=True)
        return m.autograd.grad(g, x)[0].item()

    wanted = [twice(m) for m in modules()]
    assert len(set(wanted)) == 1
    close(twice(ag, ag.compile), wanted[0])


def test_forward_mode_and_plain_calls_pass_hooks_by() -> None:
    calls: list[int] = []

    def f(x: Any) -> Any:
        y = x * x
        y.register_hook(lambda g: calls.append(1))
        return y * x

    close(ag.compile(f)(2.0), 8.0)
    close(ag.jvp(ag.compile(f), (2.0,), (1.0,))[1], 12.0)
    with ag.no_grad():
        assert not ag.compile(f)(f64(ag, 2.0, True)).requires_grad
    assert calls == []


@pytest.mark.parametrize("hook", [lambda g: g[:1], lambda g: 3.0, lambda g: 1 / 0], ids=["shape", "type", "error"])
def test_errors_of_hooks_reach_the_caller(hook: Any) -> None:
    def f(x: Any) -> Any:
        y = x * x
        y.register_hook(hook)
        return y.sum()

    errors = []
    for way in WAYS:
        with pytest.raises(Exception, match="hook|division") as found:
            WAYS[way](f)(np.array([1.0, 2.0]))
        errors.append(found.type)
    assert len(set(errors)) == 1, errors


def test_one_trace_serves_all_sizes_and_the_program_is_shown() -> None:
    def f(x: Any, w: Any) -> Any:
        h = (x @ w).relu()
        h.register_hook(lambda g: g * 0.5)
        return (h @ w).sum()

    c = ag.compile(f)
    for n in (2, 3, 5):
        rng = np.random.default_rng(n)
        x, w = rng.normal(size=(n, n)), rng.normal(size=(n, n))
        close(taped(c, (x, w)), taped(f, (x, w)))
    assert c.cache_info().traces == 1
    gradient = ag.compile(ag.grad(f))
    assert "call of Python" in gradient.explain(np.eye(2), np.eye(2))
    for what in (gradient.lower, gradient.prebind):
        with pytest.raises(ag.AotgradError, match="calls Python in the middle"):
            what(np.eye(2), np.eye(2))


def test_libraries_cannot_call_hooks(tmp_path: Any) -> None:
    with pytest.raises(ag.AotgradError, match=r"test_hooks_compiled.py:\d+: a hook .* runs Python"):
        ag.aot.build(g53, {"x": "f64"}, grad=["x"], out=tmp_path)


# ---- host_call ------------------------------------------------------------------------------------------------------------------------

cube = ag.host_call(lambda x: x ** 3, lambda x: x, jvp=lambda xs, ts: [3 * xs[0] ** 2 * ts[0]], vjp=lambda xs, cts: [3 * xs[0] ** 2 * cts[0]])


@Ways
def test_host_call(way: str) -> None:
    x = np.array([0.3, 0.5])
    close(WAYS[way](lambda x: (2.0 * cube(ag.sin(x))).sum())(x), 6 * np.sin(x) ** 2 * np.cos(x))
    close(WAYS[way](lambda x: ag.fori_loop(0, 2, lambda _, c: cube(c) + 1.0, x))(0.5), 9 * (0.5 ** 3 + 1) ** 2 * 0.25)


def test_host_call_runs_once_and_in_forward_mode() -> None:
    count: list[int] = []
    double = ag.host_call(lambda x: count.append(1) or x * 2, lambda x: x, vjp=lambda xs, cts: [2 * cts[0]])
    close(taped(ag.compile(lambda x: (double(x) * x).sum()), (np.array([1.0, 2.0]),)), [4.0, 8.0])
    assert len(count) == 1  # not again for the backward pass
    close(ag.compile(lambda x: ag.jvp(cube, (x,), (1.0,))[1])(2.0), 12.0)
    with pytest.raises(NotImplementedError, match="pass jvp="):
        ag.jvp(double, (1.0,), (1.0,))


def test_host_call_results_and_errors() -> None:
    both = ag.host_call(lambda a, b: (a + b, a > b), [((2,), "float64"), ((2,), bool)])
    x = np.array([1.0, 2.0])
    for f in (both, ag.compile(both)):
        total, larger = f(x, x[::-1].copy())
        assert total.tolist() == [3.0, 3.0] and larger.tolist() == [False, True]
    with pytest.raises(TypeError, match="f must be callable"):
        ag.host_call(3, ((2,), "float64"))
    with pytest.raises(TypeError, match="types must hold"):
        ag.host_call(lambda x: x, "float64")(1.0)
    with pytest.raises(NotImplementedError, match="pass vjp="):
        ag.compile(ag.grad(ag.host_call(lambda x: x * 2, lambda x: x)))(2.0)


# ---- grad modes -----------------------------------------------------------------------------------------------------------------------

def modes_differ(m: Any, x: Any) -> Any:
    with m.no_grad():
        a = x + 1
    return a, x + 1


def frozen_factor(m: Any, x: Any) -> Any:
    with m.no_grad():
        s = x * 2
    return (x * s).sum()


def recorded_inside(m: Any, x: Any) -> Any:
    with m.no_grad():
        with m.enable_grad():
            z = x * x
        return z.sum(), z.sum() * 2


def unrecorded_write(m: Any, x: Any) -> Any:
    y = x * x
    with m.no_grad():
        y.mul_(3)
        y[0] = 7.0
    return (y * y).sum()


def asks(m: Any, x: Any) -> Any:
    return (x * 2 if m.is_grad_enabled() else x * 3).sum()


def decorated(m: Any, x: Any) -> Any:
    return m.no_grad()(lambda v: v * 5)(x).sum() + x.sum()


MODES = [modes_differ, frozen_factor, recorded_inside, unrecorded_write, asks, decorated]


def outcomes(m: Any, f: F, wrap: Any) -> Any:
    """Values, who requires grad, and gradients, called with recording on and off."""
    run, found = wrap(lambda x: f(m, x)), []
    for on in (True, False, True):
        x = f64(m, [1.0, 3.0], True)
        with m.set_grad_enabled(on):
            outs = run(x)
        outs = outs if isinstance(outs, tuple) else (outs,)
        live = [o.sum() for o in outs if o.requires_grad]
        found.append(([o.tolist() for o in outs], [o.requires_grad for o in outs], m.autograd.grad(sum(live), x)[0].tolist() if live else None))
    return found


@pytest.mark.parametrize("f", MODES, ids=lambda f: f.__name__)
def test_grad_modes_in_compiled_code(f: F) -> None:
    wanted = outcomes(ag, f, lambda g: g)
    assert outcomes(ag, f, ag.compile) == wanted
    for m in modules():
        assert outcomes(m, f, lambda g: g) == wanted


def test_g50_equal_expressions_stay_apart() -> None:
    for f in (lambda x: modes_differ(ag, x), ag.compile(lambda x: modes_differ(ag, x))):
        a, b = f(f64(ag, [1.0], True))
        assert (a.requires_grad, b.requires_grad, a is b) == (False, True, False)


def test_gradients_inside_no_grad() -> None:
    def f(x: Any) -> Any:
        with ag.no_grad():
            return ag.grad(lambda v: v ** 3)(x)

    close(f(2.0), 12.0)
    close(ag.compile(f)(2.0), 12.0)

    def loop(x: Any) -> Any:
        with ag.no_grad():
            c = ag.fori_loop(0, 3, lambda _, c: c * 2.0, x)
        return (c * x).sum()

    for way in WAYS:
        close(WAYS[way](loop)(np.array([1.0, 2.0])), [8.0, 16.0])


# ---- anomaly mode -----------------------------------------------------------------------------------------------------------------------

def root(x: Any) -> Any:
    return ag.sqrt(x).sum()  # the line that is to be named


LINE = root.__code__.co_firstlineno + 1


@pytest.mark.parametrize("way", ["compiled gradient", "compiled tape"])
def test_an_infinity_born_in_the_adjoint_names_the_forward_line(way: str) -> None:
    with ag.autograd.detect_anomaly(), pytest.warns(UserWarning, match="Error detected in CompiledFunctionBackward") if way == "compiled tape" else _quiet(), \
            pytest.raises(RuntimeError, match=rf"test_hooks_compiled.py:{LINE}: return ag.sqrt.*\n.*gave inf at element \[1\] from 0.5, 0.0"):
        WAYS[way](root)(np.array([1.0, 0.0]))
    close(ag.compile(root)(np.array([1.0, 0.0])), 1.0)  # the value has none


class _quiet:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        pass


@pytest.mark.parametrize("give", [lambda a: a, lambda a: ag.from_numpy(a), lambda a: ag.from_numpy(a).requires_grad_()], ids=["numpy", "tensor", "recorded"])
def test_a_nan_born_in_forward_names_its_line(give: Any) -> None:
    with ag.autograd.detect_anomaly(), pytest.raises(RuntimeError, match=rf"test_hooks_compiled.py:{LINE}: .*\n.*sqrt gave nan at element \[1\] from -1.0"):
        ag.compile(root)(give(np.array([1.0, -1.0])))


def test_retain_grad_inside_says_what_to_do() -> None:
    with pytest.raises(ag.AotgradError, match=r"test_hooks_compiled.py:\d+: retain_grad: .*register_hook"):
        ag.compile(lambda x: (x * x).retain_grad())(f64(ag, 2.0, True))


def test_hooks_after_accumulation_follow_the_call() -> None:
    """At every call, when ``.grad`` is there; they may be removed, come later, and take the step and the gradient away."""
    def lines(m: Any) -> Any:
        p, q, x, log = f64(m, [1.0, 2.0], True), f64(m, [3.0, 4.0], True), f64(m, [0.5, -1.0]), []

        def step(x: Any) -> Any:
            loss = (p * x).sum() + (q * q).sum()
            loss.backward()
            return loss.detach()

        def descend(t: Any) -> None:
            log.append((t.grad.tolist(), t.is_leaf, m.is_grad_enabled()))
            t.data.sub_(t.grad)
            t.grad = None

        run = ag.compile(step) if m is ag else step
        values = [run(x).item()]
        handle = p.register_post_accumulate_grad_hook(descend)
        values += [run(x).item() for _ in range(3)]
        other = p.register_hook(lambda g: g * 2)
        values.append(run(x).item())
        handle.remove()
        values.append(run(x).item())
        other.remove()
        return *values, run(x).item(), log, p, p.grad, q.grad

    assert len(same(lines)[7]) == 4


def test_what_such_a_hook_may_change_is_not_used_behind_it() -> None:
    p = ag.tensor([1.0, 2.0], dtype=ag.float64, requires_grad=True)
    p.register_post_accumulate_grad_hook(lambda t: None)

    same_memory, shown = p.detach(), []

    def use(after: Callable[[], Any]) -> Any:
        def f(x: Any) -> Any:
            shown[:] = [p.detach(), p.view(2, 1), p[0]]
            loss = (p * x).sum()
            loss.backward()
            return after() if after is not again else (p * x).sum().backward()

        return ag.compile(f)(ag.ones(2, dtype=ag.float64))

    def again() -> None: ...

    def write() -> None:
        with ag.no_grad():
            p.add_(1)

    def drop() -> None:
        p.grad = None

    loop = lambda: ag.scan(lambda c, _: (c + p, c), ag.zeros(2, dtype=ag.float64), None, 3)[0]
    views = [lambda: same_memory * 1, *(lambda i=i: shown[i] * 2 for i in range(3))]
    for after in (lambda: p * 2, lambda: p.grad, lambda: p.grad * 2, lambda: p.detach(), write, drop, again, loop, *views):
        with pytest.raises(ag.AotgradNotImplementedError, match="register_post_accumulate_grad_hook"):
            use(after)
        assert p.grad is None and p.tolist() == [1.0, 2.0]


def test_hooks_of_saved_tensors_are_refused_where_a_program_is_traced() -> None:
    def f(x: Any) -> Any:
        with ag.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
            return (x * x).sum()

    def copied(x: Any) -> Any:
        with ag.autograd.graph.save_on_cpu():
            return (x * x).sum()

    x = ag.ones(2, requires_grad=True)
    with pytest.raises(ag.AotgradError, match=r"test_hooks_compiled.py:\d+: saved_tensors_hooks.*around the call"):
        ag.compile(f)(x)
    ag.compile(copied)(x).backward()
    assert x.grad.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("way", ["eager", "compiled", "gradient inside"])
def test_prehooks_of_nodes(way: str) -> None:
    seen: list[Any] = []

    def f(x: Any) -> Any:
        y = x * x
        y.register_hook(lambda g: g + 1)
        assert y.grad_fn is not None and x.grad_fn is None
        y.grad_fn.register_prehook(lambda cts: seen.append([c.tolist() for c in cts]) or (cts[0] * 5,))
        return (y * 3).sum()

    for _ in range(2):
        x = ag.tensor([1.0, 2.0], requires_grad=True)
        if way == "gradient inside":
            g = ag.compile(ag.grad(f))(x)
        else:
            (f if way == "eager" else ag.compile(f))(x).backward()
            g = x.grad
        assert g.tolist() == [40.0, 80.0]
    assert seen == [[[4.0, 4.0]]] * 2


def test_a_prehook_returns_a_tuple() -> None:
    def f(x: Any) -> Any:
        y = x * x
        y.grad_fn.register_prehook(lambda cts: cts[0])
        return y.sum()

    with pytest.raises(TypeError, match="tuple"):
        ag.compile(f)(ag.ones(2, requires_grad=True)).backward()


@pytest.mark.parametrize("use", [
    lambda x, y: y.grad_fn.next_functions[0][0](y),
    lambda x, y: y.split(1)[0].grad_fn.metadata, lambda x, y: x.register_post_accumulate_grad_hook(print),
], ids=["accumulating", "metadata", "accumulated"])
def test_what_cannot_be_honoured_is_refused(use: Any) -> None:
    """Never passed over in silence; the line is told."""
    def f(x: Any) -> Any:
        use(x, x * x)
        return x.sum()

    with pytest.raises(NotImplementedError, match=r"test_hooks_compiled\.py:\d+: "):
        ag.compile(f)(ag.ones(2, requires_grad=True))
