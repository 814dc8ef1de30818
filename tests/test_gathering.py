"""``np.array([a, b])`` and its kin of computed values: they mean what NumPy means, in every transform, and NumPy's names are NumPy's again afterwards."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotgrad as ag

NUMPYS = {name: getattr(np, name) for name in ("array", "asarray", "asanyarray", "ascontiguousarray", "full", "take")}
f4, f8 = np.float32, np.float64
TABLE = np.arange(6.0) ** 2
MADE: dict[str, Callable[[Any], Any]] = {
    "list": lambda x: np.array([x[0] * x[1], x[1]]), "tuple": lambda x: np.array((x[1], x[0])), "numbers too": lambda x: np.array([x[0], 1.0]),
    "an integer": lambda x: np.array([x[0], 1]), "a number of NumPy's": lambda x: np.array([f4(2), x[1]]), "matrix": lambda x: np.array([[x[0], 2], [3, x[1]]]),
    "rows": lambda x: np.array([x, x * x, [1, 2]]), "0-d": lambda x: np.array(x[1]), "copy": lambda x: np.array(x), "dtype": lambda x: np.array([x[0], 2], dtype=f8),
    "place": lambda x: np.array([x[0], 2], np.float64), "ndmin": lambda x: np.array(x * x, ndmin=3), "asarray": lambda x: np.asarray(x) * 2,
    "asarray dtype": lambda x: np.asarray(x, dtype=float), "asarray list": lambda x: np.asarray([x[0], x[1] ** 2]), "asanyarray": lambda x: np.asanyarray(x),
    "contiguous": lambda x: np.ascontiguousarray(x[::-1]), "contiguous 0-d": lambda x: np.ascontiguousarray(x[0]), "full": lambda x: np.full((2, 3), x[0]),
    "full of rows": lambda x: np.full((3, 2), x), "full n": lambda x: np.full(4, x[1], dtype=f8), "by name": lambda x: np.array(object=[x[0], x[1]]),
    "take": lambda x: np.take(TABLE, (x * x + 0.5).astype(int)) * x, "take a row": lambda x: np.take(TABLE.reshape(2, 3), np.argmin(x), axis=0) * x[0],
    "take of a list": lambda x: np.take(TABLE, [np.argmax(x), 2]) * x,
    "written": lambda x: _written(np.array(x)) + x, "constants": lambda x: np.array([1.0, 2.0]) * x + np.asarray([3, 4]) + np.full(2, 5),
}


def _written(y: Any) -> Any:
    y[0] = y[1] * 3
    return y


def _all(x: Any) -> dict[str, Any]:
    return {name: f(x) for name, f in MADE.items()}


@pytest.mark.parametrize("dtype", [f8, f4])
@pytest.mark.parametrize("way", [lambda x: ag.compile(_all)(x), lambda x: ag.jvp(_all, (x,), (x,))[0], lambda x: ag.vjp(_all, x)[0]], ids=["compile", "jvp", "vjp"])
def test_they_mean_what_numpy_means(way: Any, dtype: Any) -> None:
    x = np.array([1.5, -2.0], dtype)
    found = way(x)
    for name, want in _all(x).items():
        assert found[name].shape == want.shape and found[name].dtype == want.dtype, name
        np.testing.assert_allclose(found[name], want, rtol=1e-6, err_msg=name)


def _along(x: Any, v: Any) -> dict[str, Any]:
    return {name: j @ v for name, j in ag.jacrev(_all)(x).items()}


def _forward(x: Any, v: Any) -> Any:
    return ag.jvp(_all, (x,), (v,))[1]


@pytest.mark.parametrize("way", [_along, _forward, ag.compile(_forward)], ids=["reverse", "forward", "compiled"])
def test_their_derivatives(way: Any) -> None:
    x, v = np.array([1.5, -2.0]), np.array([0.5, 2.0])
    found, low, high = way(x, v), _all(x - 1e-6 * v), _all(x + 1e-6 * v)
    for name, slope in found.items():
        np.testing.assert_allclose(slope, (high[name] - low[name]) / 2e-6, rtol=1e-8, err_msg=name)


def test_they_work_in_vmap_and_in_loops() -> None:
    def step(c: Any, x: Any) -> Any:
        return np.array([c[1], c[0] + x]), np.full(2, x)

    c, xs = np.ones(2), np.arange(3.0)
    np.testing.assert_array_equal(ag.vmap(step, (None, 0))(c, xs)[0], [step(c, x)[0] for x in xs])
    np.testing.assert_array_equal(ag.compile(lambda c: ag.scan(step, c, xs)[0])(c), [2.0, 3.0])


def test_second_derivatives() -> None:
    def f(x: Any) -> Any:
        return np.sum(np.array([[x[0] * x[1], 2], [np.full(2, x[0]).sum(), x[1]]]) @ np.asarray(x) ** 2)

    x, step = np.array([1.5, -2.0]), 1e-5 * np.eye(2)
    want = [(ag.grad(f)(x + h) - ag.grad(f)(x - h)) / 2e-5 for h in step]
    for way in (ag.hessian, lambda f: ag.jacrev(ag.jacfwd(f)), lambda f: ag.compile(ag.hessian(f))):
        np.testing.assert_allclose(way(f)(x), want, rtol=1e-6)


def test_pythons_numbers_among_the_arguments_count_as_numpys_rule_says() -> None:
    for k in (2, 2.5):
        def f(k: Any, x: Any) -> Any:
            return np.array([k, x[0]])

        assert ag.compile(f)(k, np.ones(1, f4)).dtype == f(k, np.ones(1, f4)).dtype == np.float64


def test_the_names_are_numpys_before_and_after() -> None:
    seen: list[Any] = []

    def f(x: Any, error: bool = False) -> Any:
        seen.append(np.array)
        if error:
            raise ValueError("no")
        return np.array([x[0], x[1]]).sum()

    ag.compile(ag.grad(f))(np.ones(2))
    ag.grad(lambda x: ag.grad(f)(x).sum())(np.ones(2))
    with pytest.raises(ValueError, match="no"):
        ag.grad(f)(np.ones(2), error=True)
    assert all(s is not NUMPYS["array"] and s.__name__ == "array" for s in seen)
    assert {name: getattr(np, name) for name in NUMPYS} == NUMPYS


def test_a_function_that_uses_them_is_traced_once() -> None:
    f = ag.compile(lambda x: np.array([x[0], x[1]]))
    for _ in range(4):
        f(np.ones(2))
    assert f.cache_info().traces == 1


def test_other_threads_may_trace_and_fork_meanwhile() -> None:
    inside, go = threading.Event(), threading.Event()

    def f(x: Any) -> Any:
        inside.set()
        go.wait(10)
        return np.array([x[0], x[1]]).sum()

    thread = threading.Thread(target=lambda: ag.grad(f)(np.ones(2)))
    thread.start()
    inside.wait(10)
    assert ag.grad(lambda x: np.array([x[0], x[0]]).sum())(np.ones(2)).tolist() == [2.0, 0.0]
    assert np.array is not NUMPYS["array"] and np.array([1, 2]).tolist() == [1, 2]
    child = os.fork()
    if not child:
        os._exit(0 if np.array is NUMPYS["array"] else 1)
    assert os.waitpid(child, 0)[1] == 0
    go.set()
    thread.join()
    assert np.array is NUMPYS["array"]


def test_a_name_that_somebody_else_has_replaced_stays_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    def theirs(*args: Any) -> Any:
        return NUMPYS["array"](*args)

    ag.grad(lambda x: monkeypatch.setattr(np, "array", theirs) or x.sum())(np.ones(2))
    assert np.array is theirs


@pytest.mark.parametrize("f", [lambda x: np.array([x[0], x]), lambda x: np.array([x[0], "a"]), lambda x: np.array([x[0]], dtype=object), lambda x: np.full((2, 3), x),
                               lambda x: np.array([x[0], None]), lambda x: np.asarray({"a": x[0]})])
def test_what_no_array_can_be_made_of_is_an_error(f: Any) -> None:
    for run in (ag.compile(f), ag.jacobian(f)):
        with pytest.raises(ag.AotgradError):
            run(np.ones(2))


def test_libraries_take_them_too(tmp_path: Any) -> None:
    def rotated(a: Any, x: Any) -> Any:
        return np.sum((np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]]) @ np.asarray(x)) * np.array([1.0, 2.0]))

    ag.aot.build(rotated, {"a": "f64", "x": "f64[2]"}, grad="a", out=tmp_path)
    x = np.array([1.0, 2.0])
    np.testing.assert_allclose(ag.load(tmp_path / "librotated.so").rotated_grad(0.3, x)[1], ag.grad(rotated)(0.3, x), rtol=1e-14)


@pytest.mark.parametrize("transform", [ag.compile, lambda f: ag.grad(lambda x: f(x).sum())])
def test_what_numpy_refuses_is_refused_with_the_line(transform: Any) -> None:
    x = np.arange(1.0, 4.0)
    np.testing.assert_array_equal(ag.compile(lambda x: np.asfortranarray([x, x * 2]))(x), [x, x * 2])
    assert transform(lambda x: np.array(x * 2, copy=False))(x).shape == (3,)
    for call in (lambda x: np.array([x[0]], copy=False), lambda x: np.asarray([x[0]], copy=False)):
        with pytest.raises(ag.AotgradArgumentError, match=r"test_gathering.*copy=False \(Unable to avoid copy"):
            transform(call)(x)
    with pytest.raises(ag.AotgradValueError):
        transform(lambda x: np.full((-1,), x[0]))(x)


def test_subclasses_are_named_where_memory_is_bound(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "x", dtype="f8", mode="w+", shape=(3,))
    with pytest.raises(ag.AotgradTypeError, match="memmap that is no plain NumPy array"):
        ag.compile(lambda x: x * 2).prebind(mapped)
    bound = ag.compile(lambda x: x * 2).prebind(np.asarray(mapped))
    mapped[:] = 4.0
    bound()
    np.testing.assert_array_equal(bound.out, 8.0)
