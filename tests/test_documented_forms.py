"""Forms of calls that the documentation has, or that torch and eager code take: each works, or is an error that says so."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

import aotgrad as ag
from aotgrad_runtime.errors import AotgradError, AotgradTypeError

X = np.array([1.0, 2.0, 3.0])


@pytest.mark.parametrize("dtype", (np.float32, "float32", ag.float32, np.dtype("float32")), ids=lambda d: type(d).__name__)
def test_types_of_host_calls(dtype: Any) -> None:
    def half(x: Any) -> Any:
        return np.asarray(x / 2, np.float32)

    pair, of_numbers, lists = ((3,), dtype), lambda x: (x.shape, dtype), [((3,), dtype), ((), np.float64)]
    for given in (pair, of_numbers, [pair]):
        for f in (ag.host_call(half, given), ag.compile(ag.host_call(half, given))):
            found = f(X)
            np.testing.assert_array_equal(found[0] if isinstance(given, list) else found, half(X))
    for given in (lists, tuple(lists)):
        first, second = ag.host_call(lambda x: [half(x), x.sum()], given)(X)
        assert first.dtype == np.float32 and second == 6
    assert ag.host_call(lambda x: x.sum(), ((), np.float64))(X) == 6


@pytest.mark.parametrize("fmt", ("{} {}", "{z}", "{:d}", "{", "{0.nosuch}"))
def test_formats_that_do_not_fit(fmt: str) -> None:
    def f(x: Any) -> Any:
        ag.debug_print(fmt, x)
        return x + 1

    for call in (lambda: f(ag.tensor(2.5)), lambda: ag.compile(f)(2.5), lambda: ag.compile(ag.grad(f))(2.5)):
        with pytest.raises(AotgradError, match=r"test_documented_forms.py:\d+.*debug_print"):
            call()


def test_arrays_in_containers_are_printed_with_their_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    ag.compile(lambda x: [ag.debug_print("{} {last}", [x, 2], last={"a": (x * 2, None)}), x][1])(1.5)
    assert capsys.readouterr().out == "[np.float64(1.5), 2] {'a': (np.float64(3.0), None)}\n"


def test_arrays_without_a_name_beside_classes_of_functions() -> None:
    kind, method = types.FunctionType, types.MethodType

    def f(x: Any) -> Any:
        assert kind is not method
        return (x * np.eye(3)[None]).sum()

    assert ag.compile(f)(X) == 6


def test_devices() -> None:
    assert ag.Generator("cpu").manual_seed(3).initial_seed() == ag.Generator(device="cpu").manual_seed(3).initial_seed() == ag.Generator(3).initial_seed()
    layer, empty = ag.nn.Linear(2, 3), ag.nn.ReLU()
    for call in (lambda: ag.Generator("cuda"), lambda: ag.Generator(device="cuda"), lambda: layer.to("cuda"), lambda: empty.to("cuda"), lambda: layer.to(device="foo"),
                 lambda: layer.to(ag.float64, "cuda")):
        with pytest.raises(RuntimeError, match="CPU"):
            call()
    for wrong in (3, ag.int64):
        with pytest.raises(AotgradTypeError):
            layer.to(wrong)
    assert layer.weight.dtype is ag.float32
    for given in (("cpu", ag.float64), (ag.float64,), ("float64",), (ag.zeros(1, dtype=ag.float64),), (ag.device("cpu"), ag.float64, True)):
        assert layer.float().to(*given).weight.dtype is ag.float64
    assert layer.to(device="cpu", dtype=ag.float32, non_blocking=True).weight.dtype is ag.float32


def test_constants_beside_a_value_that_is_differentiated() -> None:
    def f(x: Any) -> Any:
        return x ** 3, {"text": "a", "list": [x * 2, None, len, 4, True]}

    for made in (ag.grad(f, has_aux=True), lambda x: ag.value_and_grad(f, has_aux=True)(x)[0]):
        found = ag.compile(made)(2.0)
        assert found == made(2.0) and found[1]["list"][2] is len and type(found[1]["list"][3]) is int
    assert ag.compile(ag.grad(ag.grad(lambda x: (x ** 3, "a"), has_aux=True), has_aux=True))(2.0) == (12.0, "a")


@pytest.mark.parametrize("transform", (ag.jacrev, ag.jacfwd, ag.hessian), ids=lambda t: t.__name__)
def test_jacobians_of_what_has_no_derivative(transform: Any) -> None:
    for f in (lambda x: x > 0, lambda x: 3, lambda x: np.argmax(x), lambda x: (x > 0, 3)):
        for run in (transform(f), ag.compile(transform(f))):
            with pytest.raises(AotgradTypeError, match="not floating-point numbers"):
                run(X)
    with pytest.raises(AotgradTypeError, match="str"):
        transform(lambda x: "a")(X)


def test_leaves_without_a_derivative_have_none() -> None:
    for run in (lambda f: f, ag.compile):
        assert run(ag.jacrev(lambda x: (x * x, x > 0)))(1.0) == (2.0, None)
        assert run(ag.jacfwd(lambda x: (x * x, x > 0)))(1.0) == (2.0, None)
        assert run(lambda x: ag.jvp(lambda x: (x * x, x > 0), (x,), (1.0,))[1])(1.0) == (2.0, None)
