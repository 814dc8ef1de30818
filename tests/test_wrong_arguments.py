"""Arguments that no function could use: every public function answers with an ``AotgradError`` that names itself, never with an error from inside."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sweep

import aotgrad as ag
from aotgrad.frontend.dispatch import NUMPY, TORCH, call

X = ag.tensor(np.linspace(-1.0, 1.0, 12).reshape(3, 4))
PLACES = ag.tensor(np.array([[0, 1, 0, 2]] * 3))
FITTING: tuple[tuple[Any, ...], ...] = (
    (X,), (X, X), (X, X, X), ([X, X],), (X[0],), (X[0], X[0]), (X, 0), (X, (2, 6)), (X, 0, 1), (X, 1, PLACES), (X, 0, PLACES, X), (X > 0,), (PLACES, PLACES),
    ("ij->i", X), (X, X > 0, 1.0), (X[None], 2), (X[None, None], X[None, None, :2, :2]))
WRONG = ("no such", None, object(), np.array([1.5, 2.5]), 99)
# Numbers that the op takes as they are, and that fail when it runs.
LATE = frozenset(("alpha", "beta", "value", "correction", "nan", "posinf", "neginf", "diagonal", "k", "constant_values", "pad", "weight", "bias"))


NAMES = {(kind, public.op.name, public.text): f"{kind}.{n}" for kind, table in (("torch", TORCH), ("numpy", NUMPY)) for n, public in table.items()}


@pytest.mark.parametrize("name", sweep.part(NAMES.values(), of=2))
def test_wrong_arguments_are_aotgrads_errors(name: str) -> None:
    kind, _, short = name.partition(".")
    public = {"torch": TORCH, "numpy": NUMPY}[kind][short]
    layout = public.layout
    base = next((args for args in FITTING if _works(public, args)), None)
    if base is None:
        pytest.skip("no sample call fits")
    for parameter in (*layout.positional, *layout.keywords):
        for wrong in WRONG:
            args, kwargs = list(base), {}
            if parameter in layout.positional[:len(args)]:
                args[layout.positional.index(parameter)] = wrong
            else:
                kwargs[parameter] = wrong
            try:
                call(public, tuple(args), kwargs)
            except ag.AotgradError:
                pass
            except Exception as error:
                if parameter not in LATE:
                    raise AssertionError(f"{name}({parameter}={wrong!r})") from error


def _works(public: Any, args: tuple[Any, ...]) -> bool:
    try:
        call(public, args, {})
    except Exception:
        return False
    return True


def test_what_is_wrong_is_shown_with_the_line() -> None:
    with pytest.raises(ag.AotgradTypeError, match=r"tile\(\) cannot use dims=.*its signature is tile"):
        ag.tile(X, "ab")
    with pytest.raises(ag.AotgradTypeError, match="add.*NoneType.*arrays, tensors and numbers"):
        ag.add(None, X)
    with pytest.raises(ag.AotgradTypeError, match=r"test_wrong_arguments.py:\d+: (?s:.*)reshape\(\) cannot use shape"):
        ag.compile(lambda x: ag.reshape(x, (1.5, 8)))(np.ones((3, 4)))


def test_shapes_may_be_arrays_and_numpys_integers() -> None:
    assert ag.reshape(X, np.array([2, 6])).shape == ag.reshape(X, (np.int64(2), np.int32(6))).shape == (2, 6)


@pytest.mark.parametrize("make", [
    lambda: ag.arange("a"), lambda: ag.linspace("a", 1, 3), lambda: ag.randint("a", (3,)), lambda: ag.rand(3, generator="x"), lambda: ag.randperm(3, generator="x"),
    lambda: ag.manual_seed("x"), lambda: X.stride("a"), lambda: X.size("a"), lambda: ag.scan(3, 0.0, np.ones(2)), lambda: ag.cond(True, 3, 4, 1.0),
    lambda: ag.fori_loop(0, 2, 3, 1.0), lambda: ag.while_loop(3, 4, 1.0), lambda: ag.map(3, np.ones(2)),
    lambda: ag.ones(3, dtype=np.ones(2)), lambda: ag.index_select(9.0, 0, PLACES[0]),
], ids=["arange", "linspace", "randint", "rand", "randperm", "manual_seed", "stride", "size", "scan", "cond", "fori_loop", "while_loop", "map", "dtype", "index_select"])
def test_other_functions(make: Any) -> None:
    with pytest.raises(ag.AotgradError):
        make()


def _of_three(x: Any, y: float = 1.0) -> Any:
    return (x * y).sum()


UNKNOWN = {
    "compile": lambda: ag.compile(_of_three, foo=1), "grad": lambda: ag.grad(_of_three, foo=1), "value_and_grad": lambda: ag.value_and_grad(_of_three, foo=1),
    "vjp": lambda: ag.vjp(foo=1), "jvp": lambda: ag.jvp(_of_three, X, foo=1), "linearize": lambda: ag.linearize(foo=1), "hvp": lambda: ag.hvp(_of_three, foo=1),
    "jacrev": lambda: ag.jacrev(_of_three, foo=1), "jacfwd": lambda: ag.jacfwd(_of_three, foo=1), "hessian": lambda: ag.hessian(_of_three, foo=1),
    "vmap": lambda: ag.vmap(_of_three, foo=1), "build": lambda: ag.aot.build(_of_three, ["x: f64[n]"], foo=1),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_arguments_of_transforms(name: str) -> None:
    with pytest.raises(ag.AotgradError, match=rf"{name}\(\) (got an unexpected keyword|missing|takes).*; its arguments are f") as caught:
        UNKNOWN[name]()
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("made", [ag.compile, ag.grad, lambda f: ag.compile(ag.grad(f)), lambda f: ag.grad(ag.compile(f))])
def test_unknown_arguments_of_the_users_function(made: Any) -> None:
    f = made(_of_three)
    f(X.numpy())
    for call_ in (lambda: f(X.numpy(), z=2), lambda: f(X.numpy(), 1.0, 2.0)):
        with pytest.raises(ag.AotgradError, match=r"_of_three\(\) (got an unexpected keyword argument 'z'|takes from 1 to 2 positional)"):
            call_()


def test_type_errors_from_inside_are_the_users_own() -> None:
    def inner(x: Any) -> Any:
        raise TypeError("f() takes nothing, says the user")

    def helped(x: Any) -> Any:
        return _of_three(x, 1.0, 2.0)

    for function, text in ((inner, "says the user"), (helped, "takes from 1 to 2")):
        for f in (ag.compile(function), ag.grad(function)):
            with pytest.raises(TypeError, match=text) as caught:
                f(X.numpy())
            assert not isinstance(caught.value, ag.AotgradError)


def test_names_that_are_not_there() -> None:
    for module in (ag, ag.nn.functional):
        with pytest.raises(ag.AotgradError, match="'nosuch'.*supported.md") as caught:
            module.nosuch  # noqa: B018
        assert isinstance(caught.value, AttributeError) and not hasattr(module, "nosuch")


@pytest.mark.parametrize(("wrong", "kinds"), [
    (lambda: ag.ones(2) & ag.ones(2), (TypeError, NotImplementedError)), (lambda: ag.softmax(ag.tensor([1, 2]), 0), (TypeError, NotImplementedError)),
    (lambda: ag.tensor([True]).floor(), (TypeError, NotImplementedError)), (lambda: ag.tensor([1 + 2j]).round(), (TypeError, NotImplementedError)),
    (lambda: ag.tensor(None), (TypeError, RuntimeError)), (lambda: ag.ones(3).permute(0, 1), (ValueError, RuntimeError)),
], ids=["bits", "softmax", "floor", "complex", "None", "permute"])
def test_the_kinds_of_numpy_and_of_torch_at_once(wrong: Any, kinds: tuple[type[Any], ...]) -> None:
    with pytest.raises(ag.AotgradError) as found:
        wrong()
    assert all(isinstance(found.value, kind) for kind in kinds), type(found.value).__mro__
