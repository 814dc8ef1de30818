"""Every public function, class and method, called in ways that nobody foresaw: it works, or the error is one of aotgrad's."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotgrad as ag
import aotgrad.autograd.functional
import aotgrad.autograd.profiler

MODULES = (ag, ag.nn, ag.nn.functional, ag.nn.init, ag.nn.utils, ag.optim, ag.autograd, ag.autograd.functional, ag.autograd.forward_ad, ag.autograd.graph,
           ag.autograd.profiler)
VALUES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "nothing": ((), {}), "object": ((object(),), {}), "text": (("a",), {}), "None": ((None,), {}), "ragged": (([1, [2]],), {}), "dict": (({},), {}),
    "float": ((1.5,), {}), "huge": ((10**30,), {}), "unknown": ((), {"nonsense": 1}), "many": ((1,) * 13, {})}
NO_CALL = {"Node", "Size", "DType", "enter_dual_level", "UnpackedDualTensor", "Interval", "GradientEdge"}  # made by the library, or tuples


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    state = ag.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    ag.autograd.set_detect_anomaly(False)
    ag.set_region_hook(None)
    ag.set_default_dtype(ag.float32)
    ag.set_rng_state(state)


def _bare(call: Callable[..., Any], first: tuple[Any, ...] = ()) -> list[str]:
    """What was raised and is not ours, by the arguments that raised it."""
    found = []
    for name, (args, kwargs) in VALUES.items():
        try:
            call(*first, *args, **kwargs)
        except ag.AotgradError as error:
            assert str(error), name
        except Exception as error:
            found.append(f"{name}: {type(error).__name__}: {error}")
    return found


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
@pytest.mark.parametrize("first", [(), (1,)], ids=["alone", "after a tensor"])
def test_functions_and_classes(module: Any, first: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a text is a path for those that write files
    found = {}
    for name in sorted(set(module.__all__) - NO_CALL):
        thing = getattr(module, name)
        if isinstance(thing, types.ModuleType) or not callable(thing) or isinstance(thing, type) and issubclass(thing, BaseException):
            continue
        if name == "TransformerEncoder" and first:
            continue  # copies its first argument as often as the second says
        bare = _bare(thing, (ag.ones(2, 3),) * len(first))
        if bare:
            found[name] = bare
    assert not found


def _methods(of: Any) -> Iterator[str]:
    return (n for n in sorted(dir(of)) if not n.startswith("_") and callable(getattr(type(of), n)))


@pytest.mark.parametrize("requires_grad", [False, True])
def test_methods_of_tensors(requires_grad: bool) -> None:
    found = {name: bare for name in _methods(ag.ones(1)) if (bare := _bare(getattr(ag.ones(2, 3, requires_grad=requires_grad), name)))}
    assert not found


@pytest.mark.parametrize("x", [ag.ones(2, 3), np.ones((2, 3))], ids=["tensor", "array"])
def test_methods_of_traced_values(x: Any) -> None:
    found = {}

    @ag.compile
    def f(x: Any) -> Any:
        for name in _methods(x):
            if name not in ("backward", "register_hook"):
                bare = _bare(getattr(x * 1.0, name))
                if bare:
                    found[name] = bare
        return x * 2.0

    f(x)
    assert not found


def test_methods_of_arrays_that_are_differentiated() -> None:
    found = {}

    def f(x: Any) -> Any:
        found.update({name: bare for name in _methods(x) if (bare := _bare(getattr(x * 1.0, name)))})
        return (x * x).sum()

    ag.grad(f)(np.ones((2, 3)))
    assert not found


WRONG: tuple[tuple[str, Callable[[], Any]], ...] = (
    ("clone", lambda: ag.ones(2).clone(3)), ("view_as", lambda: ag.ones(2).view_as()), ("item", lambda: ag.ones(1).item(0, 1)), ("size", lambda: ag.ones(1).size(a=1)),
    ("Linear", lambda: ag.nn.Linear()), ("SGD", lambda: ag.optim.SGD()), ("jacobian", lambda: ag.autograd.functional.jacobian()), ("Tensor", lambda: ag.Tensor(foo=1)),
    ("no_grad", lambda: ag.no_grad(1, 2)), ("batch_norm", lambda: ag.nn.functional.batch_norm(running_var=None)), ("celu_", lambda: ag.celu_()),
    ("batch_norm", lambda: ag.nn.functional.batch_norm(ag.ones(2, 3), None, None, nonsense=1)))


@pytest.mark.parametrize(("name", "call"), WRONG)
def test_the_error_names_the_signature_as_the_caller_writes_it(name: str, call: Any) -> None:
    with pytest.raises(ag.AotgradTypeError, match=rf"{name}\(\) .*; its signature is {name}\((?!self)"):
        call()


def test_a_module_of_the_users() -> None:
    class Net(ag.nn.Module):
        def __init__(self, n: int) -> None:
            super().__init__()
            self.layer = ag.nn.Linear(n)

    with pytest.raises(ag.AotgradTypeError, match=r"Linear\(\) missing a required argument: 'out_features'"):
        Net(3)
    with pytest.raises(TypeError) as caught:
        Net()
    assert not isinstance(caught.value, ag.AotgradError)  # the user's own


def test_errors_of_hooks_pass_as_they_are() -> None:
    def hook(grad: Any) -> Any:
        raise ValueError("mine")

    x = ag.ones(2, requires_grad=True)
    x.register_hook(hook)
    with pytest.raises(ValueError, match="^mine$") as caught:
        x.sum().backward()
    assert type(caught.value) is ValueError


@pytest.mark.parametrize("name", ["flat", "base", "ctypes", "flags"])
@pytest.mark.parametrize("transform", [ag.compile, ag.grad], ids=["compiled", "differentiated"])
def test_attributes_of_arrays_that_would_be_lost(name: str, transform: Any) -> None:
    def f(a: Any) -> Any:
        a = a * 1.0
        setattr(a, name, 0.0)
        return a.sum()

    def g(a: Any) -> Any:
        return getattr(a * 1.0, name)

    for call in (f, g):
        with pytest.raises(ag.AotgradAttributeError, match=rf"has no \.{name}"):
            transform(call)(np.ones(3))
