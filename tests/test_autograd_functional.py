"""``autograd.functional``: values, structures and strict errors, equal to torch's where torch is installed."""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sweep
from autograd_pair import f64, outcome, same

import aotgrad as ag

X, Y, W = [1.0, 2.0], [[0.5, 0.25], [3.0, 4.0]], 2.0
# name: function of (module, *inputs), inputs, whether they are given as a tuple, vectors shaped as the outputs
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], bool, Any]] = {
    "square": (lambda m, x: x * x, (X,), True, (X,)),
    "several": (lambda m, x, y: (m.matmul(y, x), x.sum()), (X, Y), True, (X, W)),
    "unused input": (lambda m, x, y: x * 2, (X, Y), True, X),
    "constant": (lambda m, x: f64(m, X), (X,), False, X),
    "scalar": (lambda m, x: (x ** 3).sum(), (X,), False, W),
    "scalar of two": (lambda m, x, y: (x * x * y.sum(0)).sum(), (X, Y), True, W),
    "scalar of one of two": (lambda m, x, y: (x ** 3).sum(), (X, Y), True, W),
    "linear": (lambda m, x: x.sum(), (X,), False, W),
    "tuple of one": (lambda m, x: (x * x,), (X,), False, (X,)),
    "number": (lambda m, w: w ** 3, (W,), False, None),
}
CALLS = ("jacobian", "hessian", "vjp", "vjp without v", "jvp", "jvp without v", "vhp", "hvp")


def functional(m: Any) -> Any:
    return importlib.import_module(f"{m.__name__}.autograd.functional")


def tree(m: Any, values: Any, grad: bool = False) -> Any:
    return tuple(f64(m, v, grad) for v in values) if isinstance(values, tuple) else None if values is None else f64(m, values, grad)


def run(m: Any, case: str, name: str, options: tuple[bool, bool, bool]) -> Any:
    create_graph, strict, grad = options
    f, inputs, many, v = CASES[case]
    af, fn = functional(m), lambda *xs: f(m, *xs)
    given = tree(m, inputs if many else inputs[0], grad)
    flags = {"create_graph": create_graph, "strict": strict}
    if name in ("jacobian", "hessian"):
        found = getattr(af, name)(fn, given, **flags)
    elif name.endswith("without v"):
        found = getattr(af, name[:3])(fn, given, **flags)
    else:
        found = getattr(af, name)(fn, given, tree(m, v) if name == "vjp" else tree(m, inputs if many else inputs[0]), **flags)
    return found, history(found)


def history(x: Any) -> Any:
    """Which results can be differentiated."""
    return tuple(history(v) for v in x) if isinstance(x, tuple) else bool(x.requires_grad)


@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("name", CALLS)
def test_every_call_beside_torch(case: str, name: str) -> None:
    for options in itertools.product((False, True), repeat=3):
        same(functools.partial(run, case=case, name=name, options=options), 60)


def test_strict_finds_structural_zeros_and_names_them() -> None:
    with pytest.raises(RuntimeError, match="Output 1 of the user-provided function is independent of input 1"):
        run(ag, "scalar of two", "hessian", (False, True, False))
    with pytest.raises(RuntimeError, match="The jacobian of the user-provided function is independent of input 0.*when create_graph=True"):
        functional(ag).vjp(lambda x: x * 2, f64(ag, X), f64(ag, X), create_graph=True, strict=True)
    with pytest.raises(RuntimeError, match="The hessian of the user-provided function is independent of input 0.*when create_graph=True"):
        functional(ag).vhp(lambda x: (x * x).sum(), f64(ag, X), f64(ag, X), create_graph=True, strict=True)


def test_jacobian_structures_and_values() -> None:
    x, y = f64(ag, X), f64(ag, Y)
    found = functional(ag).jacobian(lambda x, y: (ag.matmul(y, x), x.sum()), (x, y))
    assert [[tuple(j.shape) for j in row] for row in found] == [[(2, 2), (2, 2, 2)], [(2,), (2, 2)]]
    assert found[0][0].tolist() == Y
    assert found[1][1].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert functional(ag).hessian(lambda x: (x ** 3).sum(), x).tolist() == [[6.0, 0.0], [0.0, 12.0]]


@pytest.mark.parametrize("case", list(CASES))
def test_forward_mode_and_vectorize_give_the_same(case: str) -> None:
    f, inputs, many, _ = CASES[case]
    given = tree(ag, inputs if many else inputs[0])
    fn = lambda *xs: f(ag, *xs)
    want = outcome(ag, lambda m: functional(m).jacobian(fn, given))
    assert outcome(ag, lambda m: functional(m).jacobian(fn, given, vectorize=True)) == want
    assert outcome(ag, lambda m: functional(m).jacobian(fn, given, vectorize=True, strategy="forward-mode")) == want
    if "scalar" in case or case == "number":
        second = outcome(ag, lambda m: functional(m).hessian(fn, given))
        assert outcome(ag, lambda m: functional(m).hessian(fn, given, vectorize=True, outer_jacobian_strategy="forward-mode")) == second


@pytest.mark.parametrize("lines", [
    lambda af, x, y: af.jacobian(lambda x: 3, x), lambda af, x, y: af.jacobian(lambda x: x, 3), lambda af, x, y: af.jacobian(lambda x: x, (x, 3)),
    lambda af, x, y: af.vjp(lambda x: x, x, (x, x)), lambda af, x, y: af.vjp(lambda x: (x, x), x, (x,)), lambda af, x, y: af.vjp(lambda x: x, x),
    lambda af, x, y: af.jvp(lambda x: x, x), lambda af, x, y: af.hvp(lambda x: (x, x), x, x), lambda af, x, y: af.vhp(lambda x: x, x, x),
    lambda af, x, y: af.hessian(lambda x: x, x), lambda af, x, y: af.jacobian(lambda x: x, x, strategy="forward-mode"),
])
def test_bad_calls_have_torchs_errors(lines: Callable[..., Any]) -> None:
    assert same(lambda m: lines(functional(m), f64(m, X), f64(m, Y)), 50)[0] == "error"


@pytest.mark.parametrize("lines", [
    lambda af, x, y: af.vjp(lambda x: (x, x), x, (x, y)), lambda af, x, y: af.jvp(lambda x: x, x, y), lambda af, x,
    y: af.jacobian(lambda x: x, x, vectorize=True, strict=True),
    lambda af, x, y: af.jacobian(lambda x: x, x, vectorize=True, strict=True, strategy="forward-mode"),
    lambda af, x, y: af.jacobian(lambda x: x, x, vectorize=True, create_graph=True, strategy="forward-mode"),
])
def test_bad_calls_have_torchs_error_types(lines: Callable[..., Any]) -> None:
    assert same(lambda m: lines(functional(m), f64(m, X), f64(m, Y)))[0] == "error"


def test_a_wrong_strategy_is_an_assertion_error_and_ours() -> None:
    with pytest.raises(AssertionError, match="strategy"):
        functional(ag).jacobian(lambda x: x, f64(ag, X), strategy="sideways")
    with pytest.raises(ag.AotgradError):
        functional(ag).hessian(lambda x: x.sum(), f64(ag, X), outer_jacobian_strategy="sideways")


def test_empty_inputs_give_empty_matrices() -> None:
    x = ag.zeros(0, dtype=ag.float64)
    assert tuple(functional(ag).jacobian(lambda x: x * 2, x).shape) == (0, 0)
    assert tuple(functional(ag).jacobian(lambda x: x.sum(), x, vectorize=True, strategy="forward-mode").shape) == (0,)


def test_captured_tensors_are_not_inputs() -> None:
    def lines(m: Any) -> Any:
        x = f64(m, X, True)
        return functional(m).jacobian(lambda y: x * y, x.detach()), functional(m).vjp(lambda y: (y * x).sum(), x)

    assert same(lines)[0] == [[1.0, 0.0], [0.0, 2.0]]


def test_created_graphs_differentiate() -> None:
    def lines(m: Any) -> Any:
        x = f64(m, X, True)
        found = functional(m).jacobian(lambda x: x ** 3, x, create_graph=True)
        found.sum().backward()
        return x.grad

    assert same(lines) == [6.0, 12.0]


def test_batched_cotangents() -> None:
    def lines(m: Any) -> Any:
        x = f64(m, X, True)
        y = x ** 2
        return m.autograd.grad(y, x, f64(m, [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), is_grads_batched=True)

    assert same(lines) == ([[2.0, 0.0], [0.0, 4.0], [2.0, 4.0]],)
    with pytest.raises(RuntimeError, match="leading dim"):
        ag.autograd.grad(f64(ag, W, True) ** 2, f64(ag, W, True), f64(ag, 1.0), is_grads_batched=True)


def test_values_against_differences() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=4)
    f = lambda v: ag.tanh(v) * ag.sum(v * v)
    got = np.array(functional(ag).jacobian(f, ag.from_numpy(x)).tolist())
    step = 1e-6
    want = np.stack([(np.array(f(ag.from_numpy(x + step * e)).tolist()) - np.array(f(ag.from_numpy(x - step * e)).tolist())) / (2 * step) for e in np.eye(4)], axis=1)
    np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-8)


_TWO = (ag.tensor([1.0, -2.0, 0.5], dtype=ag.float64), ag.tensor([[0.3, 1.0, 2.0], [1.5, -1.0, 0.1]], dtype=ag.float64))
_IN_PROGRAMS = {
    "jacobian": lambda m, x, w: m.jacobian(lambda x, w: (w @ x.sin(), x * x), (x, w)), "of one": lambda m, x, w: m.jacobian(lambda x: w @ (x * x), x),
    "of what is not there": lambda m, x, w: m.jacobian(lambda x, w: x * 2, (x, w)),
    "vectorized": lambda m, x, w: m.jacobian(lambda x, w: (w @ x.sin(), x * x), (x, w), vectorize=True),
    "hessian": lambda m, x, w: m.hessian(lambda x, w: (w @ x.sin()).pow(2).sum(), (x, w)),
    "vjp": lambda m, x, w: m.vjp(lambda x, w: w @ x.exp(), (x, w), w[:, 0]), "jvp": lambda m, x, w: m.jvp(lambda x, w: w @ x.exp(), (x, w), (x * x, w + 1)),
    "vhp": lambda m, x, w: m.vhp(lambda x: (w @ x.exp()).sum(), x, x * 2), "hvp": lambda m, x, w: m.hvp(lambda x: (w @ x.exp()).sum(), x, x * 2),
    "create_graph": lambda m, x, w: ag.grad(lambda x: (m.jacobian(lambda x: w @ x.exp(), x, create_graph=True) ** 2).sum())(x),
    "backward": lambda m, x, w: m.vjp(lambda x: (x ** 3).sum(), x, create_graph=True)[1].sum(),
}


def _flat(x: Any) -> list[Any]:
    return [leaf for part in x for leaf in _flat(part)] if isinstance(x, tuple) else [x]


@pytest.mark.parametrize("name", _IN_PROGRAMS)
def test_in_compiled_functions(name: str) -> None:
    """The same as in eager code, at every call."""
    call, m = _IN_PROGRAMS[name], ag.autograd.functional
    run = ag.compile(lambda x, w: call(m, x, w))
    for scale in (1.0, 0.5):
        given = [(x * scale).requires_grad_() for x in _TWO]
        want, found = ([np.asarray(leaf.detach()) for leaf in _flat(f(*given))] for f in (lambda x, w: call(m, x, w), run))
        assert len(want) == len(found)
        for a, b in zip(want, found):
            np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-14)


_FORWARD, _OUTER = {"vectorize": True, "strategy": "forward-mode"}, {"vectorize": True, "outer_jacobian_strategy": "forward-mode"}
_AT_ONCE: dict[str, Callable[..., Any]] = {
    "forward": lambda m, x, w: functional(m).jacobian(lambda x: w @ (x * x), x, **_FORWARD),
    "forward, several": lambda m, x, w: functional(m).jacobian(lambda x, w: (w @ x.sin(), x.sum(), w), (x, w), **_FORWARD),
    "forward, not there": lambda m, x, w: functional(m).jacobian(lambda x, w: (x * 2, f64(m, X)), (x, w), **_FORWARD),
    "forward, whole numbers": lambda m, x, w: functional(m).jacobian(lambda x: (x.exp(), x.argmax()), x, **_FORWARD),
    "reverse": lambda m, x, w: functional(m).jacobian(lambda x, w: (w @ x.sin(), x.sum(), w), (x, w), vectorize=True),
    "reverse, not there": lambda m, x, w: functional(m).jacobian(lambda x, w: (x * 2, f64(m, X)), (x, w), vectorize=True),
    "created graph": lambda m, x, w: m.autograd.grad((functional(m).jacobian(lambda x: w @ x.exp(), x, vectorize=True, create_graph=True) ** 2).sum(), x),
    "hessian, forward": lambda m, x, w: functional(m).hessian(lambda x, w: (w @ x.sin()).pow(2).sum(), (x, w), **_OUTER),
    "hessian, forward, of one": lambda m, x, w: functional(m).hessian(lambda x: (w @ x.sin()).pow(2).sum(), x, **_OUTER),
    "hessian, reverse": lambda m, x, w: functional(m).hessian(lambda x, w: (w @ x.sin()).pow(2).sum(), (x, w), vectorize=True),
    "in one another": lambda m, x, w: functional(m).jacobian(lambda x: functional(m).jacobian(lambda y: y ** 3 * x, x, vectorize=True, create_graph=True), x, **_FORWARD),
}


def _nested_lists(x: Any) -> Any:
    """Tuples of tuples of numbers, however the levels are held."""
    return tuple([_nested_lists(v) for v in x]) if isinstance(x, (tuple, list)) else x.detach()


@pytest.mark.parametrize("name", sweep.part(_AT_ONCE))
def test_all_at_once_in_compiled_functions_beside_torch(name: str) -> None:
    run = ag.compile(lambda x, w: _AT_ONCE[name](ag, x, w))

    def lines(m: Any, x: list[float]) -> Any:
        return _nested_lists((run if m is ag else functools.partial(_AT_ONCE[name], m))(f64(m, x, True), f64(m, [x, x[::-1]], True)))

    for x in (X, [0.5, -1.0, 2.0]):
        assert same(functools.partial(lines, x=x))[0] != "error"
    assert run.cache_info().variants == 1


@pytest.mark.parametrize("lines", [
    lambda af, x, y: af.jacobian(lambda x: 3, x, **_FORWARD), lambda af, x, y: af.jacobian(lambda x: 3, x, vectorize=True),
    lambda af, x, y: af.jacobian(lambda x: x, x, strategy="forward-mode"), lambda af, x, y: af.jacobian(lambda x: x, x, create_graph=True, **_FORWARD),
    lambda af, x, y: af.jacobian(lambda x: x, x, strict=True, **_FORWARD), lambda af, x, y: af.hessian(lambda x: x, x, **_OUTER),
    lambda af, x, y: af.hessian(lambda x: x.sum(), x, outer_jacobian_strategy="forward-mode"),
])
def test_bad_calls_in_compiled_functions_have_torchs_error_types(lines: Callable[..., Any]) -> None:
    def run(m: Any) -> Any:
        f = lambda x, y: lines(functional(m), x, y)
        return (ag.compile(f) if m is ag else f)(f64(m, X), f64(m, Y))

    assert same(run)[0] == "error"


def test_at_once_is_one_loop_of_the_program() -> None:
    """The program does not grow with the sizes, which stay open."""
    run = ag.compile(lambda x: functional(ag).jacobian(lambda x: x.sin() * x.sum(), x, vectorize=True))
    sizes = [len(str(run.trace(ag.ones(n, dtype=ag.float64))).splitlines()) for n in (3, 40)]
    assert sizes[0] == sizes[1]
