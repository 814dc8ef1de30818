"""What transforms promise beyond derivatives: whose memory results are, what is refused and how it is said, the same eager and compiled."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest
from numpy import array, asarray

import aotgrad as ag
from aotgrad_runtime.errors import AotgradError, AotgradTypeError, AotgradValueError

X2 = np.array([1.0, 2.0])


def _x() -> Any:
    return np.array([1.0, 2.0])


# ---- memory ---------------------------------------------------------------------------------------------------------------------------

def test_pullback_and_push_stay_when_the_input_changes() -> None:
    for make in (lambda x: ag.vjp(lambda x: x * x, x)[1], lambda x: ag.linearize(lambda x: x * x, x)[1]):
        x = _x()
        run = make(x)
        x[:] = 50.0
        found = run(np.ones(2))
        np.testing.assert_array_equal(found[0] if isinstance(found, tuple) else found, [2.0, 4.0])


def test_pullback_stays_when_the_result_changes() -> None:
    for make in (lambda x: ag.vjp(np.exp, x), lambda x: ag.linearize(np.exp, x)):
        out, run = make(_x())
        out[:] = 0.0
        found = run(np.ones(2))
        np.testing.assert_allclose(found[0] if isinstance(found, tuple) else found, np.exp(X2))


def test_vjp_of_a_tensor_keeps_its_numbers() -> None:
    x = ag.tensor([1.0, 2.0])
    pull = ag.vjp(lambda x: x * x, x)[1]
    x.add_(5.0)
    np.testing.assert_array_equal(pull(ag.ones(2))[0].numpy(), [2.0, 4.0])


@pytest.mark.parametrize("f", [lambda x: x, lambda x: x[:1], lambda x: x[::-1], lambda x: x.reshape(2, 1).T])
def test_results_are_no_views_of_inputs(f: Any) -> None:
    x, t = _x(), np.ones(2)
    out, pull = ag.vjp(f, x)
    lin, push = ag.linearize(f, x)
    ct = np.ones(out.shape)
    aux = ag.value_and_grad(lambda x: (x.sum(), f(x)), has_aux=True)(x)[0][1]
    found = [out, lin, *ag.jvp(f, (x,), (t,)), pull(ct)[0], push(t), aux]
    for a in found:
        assert not any(np.shares_memory(a, b) for b in (x, t, ct))
        assert a.flags.writeable


def test_aux_that_is_another_argument_is_a_copy() -> None:
    w = np.ones(2)
    aux = ag.grad(lambda x, w: (x.sum(), w), has_aux=True)(_x(), w)[1]
    assert not np.shares_memory(aux, w)


def test_gradients_are_writable_and_apart() -> None:
    a, b = ag.vjp(lambda x, y: x + y, _x(), _x())[1](np.ones(2))
    assert not np.shares_memory(a, b)
    for g in (a, b, ag.grad(lambda x: x.sum())(_x()), *ag.grad(lambda x, y: (x + y).sum(), (0, 1))(_x(), _x())):
        g += 1.0
        np.testing.assert_array_equal(g, [2.0, 2.0])


# ---- arguments ------------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("wrap", [lambda g: g, ag.compile])
@pytest.mark.parametrize("make", [ag.grad, ag.value_and_grad, ag.jacrev, ag.jacfwd])
@pytest.mark.parametrize("argnums", [(0, 0), (1, -1), (), True, 0.0, 5])
def test_argnums_that_mean_nothing(wrap: Any, make: Any, argnums: Any) -> None:
    with pytest.raises(AotgradError, match="argnums"):
        wrap(make(lambda x, y: (x * y).sum(), argnums))(_x(), _x())


def _runs(t: Any) -> list[tuple[str, Any]]:
    f = lambda x: x * x
    return [("jvp: the tangent of argument 0", lambda: ag.jvp(f, (X2,), (t,))), ("linearize: the tangent of argument 0", lambda: ag.linearize(f, X2)[1](t)),
            ("hvp: the tangent of argument 0", lambda: ag.hvp(lambda x: (x * x).sum(), X2, t)), ("pullback: a cotangent", lambda: ag.vjp(f, X2)[1](t))]


@pytest.mark.parametrize("t", [np.ones(3), 1.0, np.ones((1, 2)), X2 * 1j, "x"], ids=["size", "number", "rank", "complex", "text"])
def test_tangents_that_do_not_fit(t: Any) -> None:
    for text, run in _runs(t):
        with pytest.raises((AotgradValueError, AotgradTypeError), match=text):
            run()


def test_structure_of_tangents() -> None:
    for t in (None, (X2, X2), [1.0, 2.0], {"a": X2}):
        for _, run in _runs(t):
            with pytest.raises(AotgradValueError, match="structure"):
                run()
    with pytest.raises(AotgradTypeError, match="tuple of inputs"):
        ag.jvp(lambda x: x, X2, X2)
    with pytest.raises(AotgradTypeError, match="one vector per argument"):
        ag.hvp(lambda x: (x * x).sum(), (X2,), X2)


def test_push_is_differentiable_in_the_tangent() -> None:
    push = ag.linearize(lambda x: x * x, X2)[1]
    np.testing.assert_array_equal(ag.grad(lambda t: push(t).sum())(np.ones(2)), [2.0, 4.0])
    np.testing.assert_array_equal(ag.jvp(push, (np.ones(2),), (np.ones(2),))[1], [2.0, 4.0])


# ---- writes into arguments ------------------------------------------------------------------------------------------------------------

def _add(x: Any) -> Any:
    x += 1
    return (x * x).sum()


def _set(x: Any) -> Any:
    x[0] = 3.0
    return (x * x).sum()


def _through_a_view(x: Any) -> Any:
    y = x[1:]
    y *= x[0]
    return (x * x * x).sum()


def _several(x: Any) -> Any:
    y = x * x[0]
    x -= y
    x *= x
    x[1] = x[0] * y[1]
    return (x * y).sum()


@pytest.mark.parametrize("f", [_add, _set, _through_a_view, _several])
def test_writes_into_an_argument_stay_inside(f: Any) -> None:
    x = np.array([1.5, 2.0, -0.5])
    kept, e = x.copy(), 1e-6
    expected = np.array([(f(x + e * d) - f(x - e * d)) / (2 * e) for d in np.eye(3)])
    for run in (ag.grad(f), ag.compile(ag.grad(f)), lambda x: ag.vjp(f, x)[1](1.0)[0], lambda x: ag.jacfwd(f)(x), lambda x: ag.jacrev(f)(x)):
        np.testing.assert_allclose(run(x), expected, rtol=1e-7, atol=1e-7)
    assert float(ag.value_and_grad(f)(x)[0]) == float(f(x.copy()))
    np.testing.assert_allclose(ag.hessian(f)(x), ag.compile(ag.hessian(f))(x))
    np.testing.assert_allclose(ag.grad(lambda x: (ag.grad(f)(x) * kept).sum())(x), ag.hessian(f)(kept) @ kept)
    np.testing.assert_array_equal(x, kept)


# ---- loops and branches out of a trace ------------------------------------------------------------------------------------------------

WRAPS = [lambda f: f, ag.compile]
WEIGHTS = np.array([0.3, 0.2])


@pytest.mark.parametrize("wrap", WRAPS)
def test_scan_of_python_numbers(wrap: Any) -> None:
    c, ys = wrap(lambda x: ag.scan(lambda c, y: (c * y, c), 0.5, x))(np.ones(3))
    assert float(c) == 0.5
    np.testing.assert_array_equal(ys, [0.5, 0.5, 0.5])
    np.testing.assert_array_equal(wrap(ag.grad(lambda x: ag.scan(lambda c, y: (c * y, c), 0.5, x)[1].sum()))(np.ones(3)), [1.0, 0.5, 0.0])


def test_scan_gives_arrays_of_its_own() -> None:
    x = _x()
    c, ys = ag.scan(lambda c, y: (x, y), x, x)
    kept, _ = ag.scan(lambda c, y: (c, None), x, np.ones(3))
    assert not any(np.shares_memory(a, x) for a in (c, ys, kept))


@pytest.mark.parametrize("wrap", WRAPS)
def test_carries_that_change(wrap: Any) -> None:
    x = np.arange(3.0)
    for body, init in ((lambda c, y: ((c, c), y), 0.5), (lambda c, y: (c * np.ones(2), y), 0.5), (lambda c, y: (c * 1.5, y), np.int64(1))):
        with pytest.raises(AotgradTypeError, match="carry"):
            wrap(lambda x: ag.scan(body, init, x))(x)  # noqa: B023
    for step in (lambda i, c: (c, c), lambda i, c: c * np.ones(2)):
        with pytest.raises(AotgradTypeError, match="carry"):
            wrap(lambda x: ag.fori_loop(0, 3, step, x[0]))(x)  # noqa: B023


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("length", [-1, 2.5, "a", True])
def test_lengths_and_bounds_that_are_none(wrap: Any, length: Any) -> None:
    with pytest.raises(AotgradError, match="length"):
        wrap(lambda x: ag.scan(lambda c, y: (c * x, c), 1.0 * x, None, length=length))(2.0)
    if length != -1:
        with pytest.raises(AotgradTypeError, match="bound"):
            wrap(lambda x: ag.fori_loop(0, length, lambda i, c: c * x, x))(2.0)


def test_length_must_agree_with_xs() -> None:
    for wrap in WRAPS:
        f = wrap(lambda x: ag.scan(lambda c, y: (c + y, c), 0.0, x, length=5))
        assert float(f(np.ones(5))[0]) == 5.0
        for n in (2, 0, 6):
            with pytest.raises(AotgradError, match="5"):
                f(np.ones(n))


@pytest.mark.parametrize("pair", [(lambda x: (x, x), lambda x: x), (lambda x: x, lambda x: x[:1]), (lambda x: x, lambda x: x > 0)])
def test_branches_that_differ(pair: Any) -> None:
    for wrap in WRAPS:
        for _ in range(2):
            with pytest.raises(AotgradTypeError, match="cond"):
                wrap(lambda x: ag.cond(x[0] > 0, *pair, x))(X2)
    with pytest.raises(AotgradValueError, match="scalar"):
        ag.cond(X2 > 0, lambda x: x, lambda x: x, X2)


def test_no_rows() -> None:
    for wrap in WRAPS:
        total, ys = wrap(lambda x: ag.scan(lambda c, y: (c + y.sum(), {"a": y * 2, "b": c > 0}), 0.0, x))(np.ones((0, 3)))
        assert float(total) == 0.0 and ys["a"].shape == (0, 3) and ys["a"].dtype == np.float64 and ys["b"].shape == (0,) and ys["b"].dtype == np.bool_
        assert wrap(ag.grad(lambda x: ag.scan(lambda c, y: (c * y, c), 2.0, x)[0] + x.sum()))(np.ones(0)).shape == (0,)
    _, ys = ag.scan(lambda c, y: (c + y, c * y), ag.tensor(0.0), ag.ones(0))
    assert isinstance(ys, ag.Tensor) and ys.shape == (0,)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("init", [(0, 0.5), (0.0, 0.5)], ids=["int", "float"])
def test_nested_loops_that_read_a_captured_number(reverse: bool, init: Any) -> None:
    def f(x: Any) -> Any:
        def inner(c: Any, y: Any) -> Any:
            return np.tanh(c * WEIGHTS[0] + y), c * y

        def outer(c: Any, r: Any) -> Any:
            c2, ys = ag.scan(inner, c[1], r, reverse=reverse)
            return (c[0] + 1, c2), ys.sum() * c[0]

        c, ys = ag.scan(outer, init, x)
        return c[1] + (ys * WEIGHTS[1]).sum()

    x = np.arange(6.0).reshape(2, 3) * 0.1
    for g in (ag.grad, ag.hessian):
        np.testing.assert_allclose(ag.compile(g(f))(x), g(f)(x), rtol=1e-12)


def test_while_loop() -> None:
    def power(x: Any) -> Any:
        return ag.while_loop(lambda c: c < 10.0, lambda c: c * x, x)

    assert float(ag.grad(power)(2.0)) == 32.0
    assert [float(v) for v in ag.jvp(power, (2.0,), (1.0,))] == [16.0, 32.0]
    with pytest.raises(ag.AotgradNotImplementedError, match="fori_loop"):
        ag.compile(power)(2.0)
    with pytest.raises(AotgradTypeError, match="carry"):
        ag.while_loop(lambda c: True, lambda c: (c, c), 1.0)


# ---- matrices, messages, rules --------------------------------------------------------------------------------------------------------

def test_jacobians_of_one_element() -> None:
    for f in (lambda x: x.sum(keepdims=True), lambda x: (x * x).sum().reshape(1, 1), lambda x: (x * x).sum()):
        for x in (X2, np.ones((2, 2)), np.ones(1)):
            for make in (ag.jacrev, ag.jacfwd):
                np.testing.assert_array_equal(ag.compile(make(f))(x), make(f)(x))


@pytest.mark.parametrize("wrap", WRAPS)
def test_grad_of_a_vector_shows_its_shape(wrap: Any) -> None:
    with pytest.raises(AotgradValueError, match=r"shape \(2,\)"):
        wrap(ag.grad(lambda x: x * x))(X2)


def _sine() -> Any:
    @ag.custom_vjp
    def h(x: Any) -> Any:
        return np.sin(x)

    h.defvjp(lambda x: (h(x), x), lambda x, g: (g * 7.0 * np.cos(x),))
    return h


def _exponential() -> Any:
    @ag.custom_vjp
    def h(x: Any) -> Any:
        return np.exp(x)

    def fwd(x: Any) -> Any:
        y = h(x)
        return y, y

    h.defvjp(fwd, lambda y, g: (g * 3.0 * y,))  # what is kept has the rule's derivative too
    return h


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize(("make", "first", "second"), [
    (_sine, 7.0 * np.cos(X2), -7.0 * np.sin(X2)), (_exponential, 3.0 * np.exp(X2), 9.0 * np.exp(X2))], ids=["sin", "exp"])
def test_forward_rules_that_call_their_function(wrap: Any, make: Any, first: Any, second: Any) -> None:
    h = make()
    np.testing.assert_allclose(wrap(lambda x: h(x))(X2), h(X2))
    np.testing.assert_allclose(wrap(ag.grad(lambda x: h(x).sum()))(X2), first)
    np.testing.assert_allclose(wrap(lambda x: ag.jvp(h, (x,), (x,))[1])(X2), first * X2)
    np.testing.assert_allclose(wrap(lambda x: ag.linearize(h, x)[1](x))(X2), first * X2)
    np.testing.assert_allclose(ag.grad(wrap(lambda x: h(x).sum()))(X2), first)
    np.testing.assert_allclose(wrap(ag.hessian(lambda x: h(x).sum()))(X2), np.diag(second))


# ---- numbers that leave ---------------------------------------------------------------------------------------------------------------

def _stored(x: Any) -> Any:
    o = np.zeros(2)
    o[0] = x[0]
    return o.sum() + x[0]


TAKEN = {
    "float": lambda x: float(x[0]) * x.sum(), "int": lambda x: int(x[0]) * x.sum(), "complex": lambda x: complex(x[0]).real * x.sum(),
    "math": lambda x: math.sin(x[0]) * x.sum(), "asarray": lambda x: asarray(x).sum() * x[0], "array": lambda x: array([x[0], x[1]]).sum(),
    "stored": _stored, "tolist": lambda x: x.tolist()[0] * x[0], "numpy": lambda x: x.numpy()[0] * x[0], "item": lambda x: x[0].item() * x[0],
    "float64": lambda x: np.float64(x[0]) * x[0], "dot": lambda x: np.ones(2).dot(x),
}


@pytest.mark.parametrize("f", TAKEN.values(), ids=TAKEN)
def test_numbers_do_not_leave_without_their_derivative(f: Any) -> None:
    runs = (ag.grad(f), lambda x: ag.jvp(f, (x,), (x,)), lambda x: ag.vjp(f, x), ag.jacfwd(f), ag.jacrev(f), ag.hessian(f))
    for run in runs:
        with pytest.raises(AotgradTypeError, match=r"test_transform_contract\.py:\d+: .*x\.detach\(\)"):
            run(X2)


def test_looking_at_numbers_is_allowed() -> None:
    def f(x: Any) -> Any:
        assert f"{x[0]:.2f} {x[1]}" == "1.00 2.0" and "2." in repr(x) and str(x)
        assert x.detach().numpy()[0] == 1.0 == float(x[0].detach()) and x.detach().tolist() == [1.0, 2.0]
        assert np.asarray(ag.stop_gradient(x))[1] == 2.0 and ["a", "b"][np.argmax(x)] == "b" and int(x[0] > 0) == 1
        with ag.no_grad():
            y = x.copy()
        return x.sum() if x[0] > 0 else -x.sum() * float(y[0].detach())

    for g in (ag.grad, ag.jacfwd, ag.jacrev):
        np.testing.assert_array_equal(g(f)(X2), [1.0, 1.0])


def test_tensors_keep_what_torch_allows() -> None:
    with pytest.warns(UserWarning, match="requires_grad"):
        assert ag.grad(lambda x: x.sum() * float(x[0]))(ag.tensor([2.0, 1.0])).tolist() == [2.0, 2.0]
    with pytest.raises(ag.AotgradRuntimeError, match="detach"):
        ag.grad(lambda x: x.sum() * x.numpy()[0])(ag.tensor([2.0, 1.0]))


@pytest.mark.parametrize("wrap", WRAPS)
def test_results_that_depend_on_nothing(wrap: Any) -> None:
    for f in (lambda x: 3.0, lambda x: np.float64(3.0), lambda x: np.array(3.0), lambda x: WEIGHTS.sum()):
        for run in (ag.grad(f), ag.value_and_grad(f)):
            with pytest.raises(AotgradTypeError, match="does not depend"):
                wrap(run)(X2)
    for f in (lambda x: ag.tensor(3.0), lambda x: ag.ones(2).sum(), lambda x: 0.0 * x.sum() + 3.0):
        np.testing.assert_array_equal(wrap(ag.grad(f))(X2), [0.0, 0.0])
    assert float(wrap(ag.grad(ag.grad(lambda x: 3.0 * x)))(2.0)) == 0.0


# ---- grad modes -----------------------------------------------------------------------------------------------------------------------

def _half(x: Any) -> Any:
    with ag.no_grad():
        y = x * x
    return (y * x).sum()


@ag.no_grad()
def _square(x: Any) -> Any:
    return x * x


def _decorated(x: Any) -> Any:
    return (_square(x) * x).sum()


def _in_a_loop(x: Any) -> Any:
    def body(c: Any, y: Any) -> Any:
        with ag.no_grad():
            z = y * y
        return c + z * y, None

    return ag.scan(body, 0.0 * x[0], x)[0]


def _in_a_branch(x: Any) -> Any:
    return ag.cond(x[0] > 0, lambda x: _half(x), lambda x: x.sum(), x)


@pytest.mark.parametrize("f", [_half, _decorated, _in_a_loop, _in_a_branch])
def test_no_grad_is_for_reverse_mode_alone(f: Any) -> None:
    x, one = np.array([2.0]), np.ones(1)
    for g in (ag.grad(f), lambda x: ag.vjp(f, x)[1](1.0)[0], ag.jacrev(f)):
        for run in (g, ag.compile(g)):
            np.testing.assert_array_equal(run(x), [4.0])
    np.testing.assert_array_equal(ag.grad(ag.compile(f))(x), [4.0])
    for h in (lambda x: ag.jvp(f, (x,), (one,))[1], lambda x: ag.linearize(f, x)[1](one), lambda x: ag.jacfwd(f)(x)):
        for run in (h, ag.compile(h)):
            np.testing.assert_array_equal(np.ravel(run(x)), [12.0])
    np.testing.assert_array_equal(ag.jvp(ag.compile(f), (x,), (one,))[1], 12.0)
    for run in (ag.hessian(f), ag.compile(ag.hessian(f))):
        np.testing.assert_array_equal(run(x), [[4.0]])


def test_a_function_that_asks_for_the_mode_is_compiled_for_each() -> None:
    for make in (np.array, ag.tensor):
        f = ag.compile(lambda x: x * (2.0 if ag.is_grad_enabled() else 3.0))
        x = make([2.0])
        for _ in range(3):
            assert f(x).tolist() == [4.0]
            with ag.no_grad():
                assert f(x).tolist() == [6.0]


def test_requires_grad_in_compiled_functions_is_that_of_the_call() -> None:
    def f(x: Any, y: Any) -> Any:
        z = x * 1.0
        with ag.no_grad():
            w = x * 1.0
        return x * (2.0 if x.requires_grad else 3.0) + 10.0 * float(z.requires_grad) + 100.0 * float(y.requires_grad) + 1000.0 * float(w.requires_grad)

    g = ag.compile(f)
    plain, on = ag.tensor([1.0]), ag.tensor([1.0], requires_grad=True)
    for _ in range(3):
        for args in ((plain, plain), (on, plain), (plain, on), (on, on)):
            assert g(*args).tolist() == f(*args).tolist()
    for make in (lambda h: ag.grad(lambda x: h(x, plain).sum()), lambda h: ag.compile(ag.grad(lambda x: h(x, plain).sum()))):
        assert make(f)(plain).tolist() == make(g)(plain).tolist() == [2.0]


# ---- keywords ---------------------------------------------------------------------------------------------------------------------------


def _scaled(x: Any, a: Any = 2.0, *, k: float = 1.0) -> Any:
    return np.sum(x**2) * a * k


@pytest.mark.parametrize("wrap", [lambda g: g, ag.compile])
@pytest.mark.parametrize("transform", [ag.grad, ag.value_and_grad, ag.jacrev, ag.jacfwd, ag.hessian])
def test_arguments_by_keyword_count_at_their_places(transform: Any, wrap: Any) -> None:
    x = np.array([1.0, 3.0])
    g = wrap(transform(_scaled))
    want = transform(_scaled)(x, 3.0, k=5.0)
    for got in (g(x=x, a=3.0, k=5.0), g(x, a=3.0, k=5.0), g(k=5.0, a=3.0, x=x)):
        for a, b in zip(ag.frontend.pytree.tree_flatten(got)[0], ag.frontend.pytree.tree_flatten(want)[0]):
            np.testing.assert_allclose(a, b)
    second = wrap(transform(_scaled, argnums=1))
    np.testing.assert_allclose(np.asarray(second(a=3.0, x=x), dtype=object).ravel()[-1], np.asarray(transform(_scaled, argnums=1)(x, 3.0), dtype=object).ravel()[-1])
    assert list(inspect.signature(g).parameters) == ["x", "a", "k"] and g.__name__.endswith("(_scaled)")


def test_keywords_without_a_place_and_gaps() -> None:
    x = np.array([1.0, 3.0])
    np.testing.assert_allclose(ag.grad(lambda a, b=2.0, c=3.0: a * b * c, argnums=2)(a=1.0, c=5.0), 2.0)  # the default of b takes its place
    with pytest.raises(ag.AotgradValueError, match="keyword.s. k, which have no position"):
        ag.grad(_scaled, argnums=2)(x, 1.0, k=2.0)
    np.testing.assert_allclose(ag.grad(lambda *xs, **kw: xs[0] * kw["k"])(2.0, k=3.0), 3.0)


def test_transforms_are_built_by_the_names_of_their_function(tmp_path: Any) -> None:
    x = np.array([1.0, 3.0])
    built = ag.aot.build(ag.grad(_scaled), ["x: f64[n]"], name="slope", out=tmp_path, emit=("so",))
    np.testing.assert_allclose(ag.load(built.library).slope(x), 4 * x)
    built = ag.aot.build(ag.value_and_grad(_scaled, argnums=(0, 1)), ["x: f64[n]", "a: f64"], name="both", out=tmp_path, emit=("so",))
    value, (by_x, by_a) = ag.load(built.library).both(x, 3.0)
    np.testing.assert_allclose(value, 30.0)
    np.testing.assert_allclose(by_x, 6 * x)
    np.testing.assert_allclose(by_a, 10.0)


def test_derivatives_of_bfloat16_are_those_of_float32() -> None:
    def f(x: Any) -> Any:
        return (x * x * x).sum()

    def v(x: Any) -> Any:
        return x * x

    for g in (ag.grad(f), ag.hessian(f), ag.jacrev(v), ag.jacfwd(v), lambda x: ag.hvp(f, x, x), lambda x: ag.jvp(v, (x,), (x,))[1], lambda x: ag.vjp(v, x)[1](x)[0]):
        got, want = (g(ag.tensor([1.5, 2.0], dtype=d)) for d in (ag.bfloat16, ag.float32))
        assert got.dtype is ag.bfloat16 and got.tolist() == want.tolist()


# ---- writes into arguments -----------------------------------------------------------------------------------------------------------

def _writes(x, data, *, scale=None):
    """Writes into everything it is given."""
    x[0] = 5.0
    data["z"][1] += 1.0
    data["n"][0] = 7
    if scale is not None:
        scale *= 2.0
    return (x * x * data["z"] * data["n"]).sum() * (1.0 if scale is None else scale[0])


def _given():
    return np.arange(1.0, 4.0), {"z": np.arange(3.0), "n": np.arange(3)}, np.array([0.5])


RUNS = {
    "value": lambda f: lambda x, data, scale: f(x, data, scale=scale),
    "grad": lambda f: lambda x, data, scale: ag.grad(f)(x, data, scale=scale),
    "grad of both": lambda f: lambda x, data, scale: ag.grad(f, argnums=(0, 1))(x, data, scale=scale),
    "vjp": lambda f: lambda x, data, scale: ag.vjp(f, x, data)[1](1.0),
    "jvp": lambda f: lambda x, data, scale: ag.jvp(f, (x, data), (x, data))[1],
    "jacfwd": lambda f: lambda x, data, scale: ag.jacfwd(f)(x, data, scale=scale),
    "jacrev": lambda f: lambda x, data, scale: ag.jacrev(f)(x, data, scale=scale),
    "hessian": lambda f: lambda x, data, scale: ag.hessian(f)(x, data, scale=scale),
}


@pytest.mark.parametrize("name", RUNS)
def test_numpy_arguments_never_change(name, monkeypatch):
    """What a function writes into its arguments is seen by itself alone: eagerly, compiled, and as plain Python under the switch."""
    def f(x, data, *, scale=None):
        return _writes(x * 1.0, {"z": data["z"] * 1.0, "n": data["n"] * 1}, scale=None if scale is None else scale * 1.0)

    def leaves(args):
        return [args[0], *args[1].values(), args[2]]

    want = _flat(ag.compile(RUNS[name](f))(*_given()))  # of copies made by the function itself
    runs = {"compiled": ag.compile(RUNS[name](_writes))}
    if name != "value":
        runs["eager"] = RUNS[name](_writes)
    monkeypatch.setenv("AOTGRAD_DISABLE_COMPILE", "1")
    runs["plain"] = ag.compile(RUNS[name](_writes))
    monkeypatch.delenv("AOTGRAD_DISABLE_COMPILE")
    for how, run in runs.items():
        args = _given()
        got = _flat(run(*args))
        for a, b in zip(leaves(args), leaves(_given())):
            np.testing.assert_array_equal(a, b, err_msg=f"{name}, {how}")
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-14, err_msg=f"{name}, {how}")


def _flat(tree):
    if isinstance(tree, dict):
        tree = [tree[k] for k in sorted(tree)]
    return [x for t in tree for x in _flat(t)] if isinstance(tree, (tuple, list)) else [] if tree is None else [tree]


@pytest.mark.parametrize("wrap", [lambda f: f, ag.compile], ids=["eager", "compiled"])
def test_pullback_of_no_cotangent(wrap: Any) -> None:
    def both(x: Any) -> Any:
        return {"square": x * x, "flag": x > 1, "rest": [x * 3.0]}

    x = np.arange(3.0)
    pull = wrap(lambda x, a, b: ag.vjp(both, x)[1]({"square": a, "flag": None, "rest": [b]})[0])
    assert np.array_equal(pull(x, x, x), 2 * x * x + 3 * x)
    for wrong in ((x, None), {"square": x, "flag": None, "rest": None}, {"square": x, "flag": None, "rest": [x, x]}, {"square": None, "flag": None, "rest": [x]}, None):
        with pytest.raises(ag.AotgradValueError, match="the structure of the function's result"):
            wrap(lambda x, wrong=wrong: ag.vjp(both, x)[1](wrong)[0])(x)
    for call in (lambda x: ag.vjp(both, x)[1](), lambda x: ag.vjp(both, x)[1](x, x), lambda x: ag.vjp(both, x)[1](ct=x)):
        with pytest.raises(ag.AotgradTypeError, match="its arguments are cts"):
            wrap(call)(x)
