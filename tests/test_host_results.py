"""What a function called by ``host_call`` gives is what ``types`` declares, or an error names both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aotgrad as ag

X = np.array([0.1, 0.2, 0.3, 0.4])
WRONG = {
    "shorter": (lambda x: x[:2], r"host_call: .*: result 0 has the shape \(2,\), declared in types= is \(4,\)"),
    "rank": (lambda x: x.sum(), r"result 0 has the shape \(\), declared in types= is \(4,\)"),
    "two": (lambda x: (x, x), "gives 2 results, 1 declared"),
    "text": (lambda x: "a", "result 0 is str and no array of float64"),
    "nothing": (lambda x: None, "result 0"),
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("where", ["eager", "returned", "used", "loop", "grad"])
def test_results_other_than_declared_are_errors(kind: str, where: str) -> None:
    fn, message = WRONG[kind]
    call = ag.host_call(fn, lambda x: x, vjp=lambda xs, cts: [cts[0]])
    run = {"eager": call, "returned": ag.compile(lambda x: call(x)), "used": ag.compile(lambda x: call(x) + 1.0),
           "loop": ag.compile(lambda x: ag.fori_loop(0, 2, lambda i, c: call(c), x)), "grad": ag.compile(ag.grad(lambda x: call(x).sum()))}[where]
    if kind == "nothing":  # NumPy makes a 0-d array of it, of nan
        message = "declared|no array"
    with pytest.raises((ag.AotgradValueError, ag.AotgradTypeError), match=message if where != "loop" else "host_call"):
        run(X)


def test_cotangents_other_than_the_arguments_are_errors() -> None:
    call = ag.host_call(lambda x: x * 2.0, lambda x: x, vjp=lambda xs, cts: [cts[0][:2]])
    for f in (ag.grad(lambda x: call(x).sum()), ag.compile(ag.grad(lambda x: call(x).sum()))):
        with pytest.raises(ag.AotgradValueError, match=r"host_call: .*_vjp: result 0 has the shape \(2,\)"):
            f(X)


def test_sizes_made_of_others_are_checked_too() -> None:
    twice = ag.host_call(lambda x: np.concatenate([x, x]), lambda x: ((2 * x.shape[0],), x.dtype))
    np.testing.assert_array_equal(ag.compile(lambda x: twice(x) + 1.0)(X), np.concatenate([X, X]) + 1.0)
    thrice = ag.host_call(lambda x: np.concatenate([x, x, x]), lambda x: ((2 * x.shape[0],), x.dtype))
    with pytest.raises(ag.AotgradValueError, match=r"has the shape \(12,\), declared in types= is \(8,\)"):
        ag.compile(lambda x: thrice(x) + 1.0)(X)


def test_an_array_in_place_of_the_types_is_told() -> None:
    for f in (lambda x: ag.host_call(np.exp, x), ag.compile(lambda x: ag.host_call(np.exp, x))):
        with pytest.raises(ag.AotgradTypeError, match=r"host_call makes a function that is then called with arrays"):
            f(X)


def test_functions_with_nothing_to_give() -> None:
    seen: list[Any] = []
    note = ag.host_call(lambda x: seen.append(x.sum()), [])

    @ag.compile
    def f(x: Any) -> Any:
        note(x)
        return x * 2.0

    f(X)
    f(X)
    assert seen == [X.sum(), X.sum()]
