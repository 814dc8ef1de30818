"""Computed values that a compiled function puts into containers it finds in variables: as in eager code at every call, or an error with the line; never lost."""

from __future__ import annotations

import itertools
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aotgrad as ag
from aotgrad_runtime.errors import AotgradError, AotgradTypeError, AotgradWarning


def plain(x: Any) -> Any:
    """The numbers in a container, and its types."""
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    if isinstance(x, (list, tuple, deque)):
        return type(x).__name__, [plain(v) for v in x]
    return ("tensor", x.tolist()) if isinstance(x, ag.Tensor) else ("array", np.asarray(x).tolist()) if isinstance(x, (np.ndarray, np.generic)) else x


def appended(held: list[Any]) -> Callable[[Any], Any]:
    return lambda x: (held.append(x * 2), x)[1]


def extended(held: list[Any]) -> Callable[[Any], Any]:
    return lambda x: (held.extend([x * 2, 1, (x + 1, {"a": x})]), x)[1]


def inserted(held: list[Any]) -> Callable[[Any], Any]:
    return lambda x: (held.insert(1, x * 2), x)[1]


def a_window(held: list[Any]) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        held.append(x * 2)
        if len(held) > 4:
            held.pop(0)
        return x * len(held)

    return f


def assigned(held: list[Any]) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        held[0] = x * 2
        return x

    return f


def below(held: list[Any]) -> Callable[[Any], Any]:
    return lambda x: (held[1].append(x * 2), x)[1]


def sizes(held: list[Any]) -> Callable[[Any], Any]:
    return lambda x: (held.append((x.shape[0], x * 2)), x)[1]


@pytest.mark.parametrize("make", [appended, extended, inserted, a_window, assigned, below, sizes])
@pytest.mark.parametrize("tensors", [True, False])
def test_lists(make: Callable[[list[Any]], Callable[[Any], Any]], tensors: bool) -> None:
    found = []
    for compiled in (False, True):
        held: list[Any] = ["first", ["second"], 3.0]
        f = make(held)
        run = ag.compile(f) if compiled else f
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AotgradWarning)
            outs = [plain(run(ag.ones(n) * n if tensors else np.ones(n) * n)) for n in (2, 2, 3, 3, 2)]
        found.append((outs, plain(held)))
    assert found[0] == found[1]


def test_a_list_that_grows_warns() -> None:
    held: list[Any] = []
    g = ag.compile(appended(held))
    with pytest.warns(AotgradWarning, match="traced again at every call.*return what a list should get"):
        g(ag.ones(2))
    x = ag.ones(2, requires_grad=True)
    g(x)
    assert g.cache_info().traces == 2
    held[1].sum().backward()
    assert x.grad.tolist() == [2, 2] and held[0].tolist() == [2, 2]


def test_a_failing_call_leaves_the_list() -> None:
    held: list[Any] = [1]

    def f(x: Any, i: Any) -> Any:
        held.append(x * 2)
        return x[i]

    g = ag.compile(f)
    with pytest.raises(AotgradError), warnings.catch_warnings():
        warnings.simplefilter("ignore", AotgradWarning)
        g(ag.ones(2), ag.tensor([5]))
    assert held == [1]


def test_dicts_deques_and_tuples_in_attributes() -> None:
    class Cell:
        state: Any = None

        def __init__(self) -> None:
            self.log: dict[str, Any] = {}
            self.last: deque[Any] = deque(maxlen=2)

        def __call__(self, x: Any) -> Any:
            h, c = self.state if self.state is not None else (x * 0, x * 0)
            self.state = (h + x, [c + 2 * x])
            self.state = (self.state[0], self.state[1][0])
            self.log["sum"] = x.sum()
            self.log[f"at {x.shape[0]}"] = {"x": x * 3, "n": x.shape[0]}
            return h

    found = []
    for compiled in (False, True):
        cell = Cell()
        run = ag.compile(cell) if compiled else cell
        outs = [plain(run(ag.ones(2) * n)) for n in (1, 2, 3, 4)]
        found.append((outs, plain(cell.state), plain(cell.log)))
        if compiled:
            assert run.cache_info().traces == 2  # before there was a state, and after
    assert found[0] == found[1]


class Box:
    value: Any = None


BOX, SET = Box(), set[Any]()


def in_a_set(x: Any) -> Any:
    SET.add(x * 2)
    return x


def in_a_new_object(x: Any) -> Any:
    BOX.value = Box()
    BOX.value.value = x * 2
    return x


@pytest.mark.parametrize(("f", "where"), [(in_a_set, "SET"), (in_a_new_object, r"BOX\.value\.value")])
def test_values_that_nothing_could_renew_are_refused(f: Callable[[Any], Any], where: str) -> None:
    for _ in range(2):
        with pytest.raises(AotgradTypeError, match=rf"test_kept_values\.py:\d+: .*x \* 2\)?\n.*keeps this computed value in {where}"):
            ag.compile(f)(ag.ones(2))
        assert not SET and BOX.value is None


def _squares():
    for i in (1.0, 2.0, 3.0):
        yield i * i


@pytest.mark.parametrize("made", [
    lambda: iter([1.0, 2.0]), lambda: iter(range(3)), lambda: iter({1.0: 1}), itertools.count, lambda: itertools.cycle([1.0, 2.0]), lambda: map(abs, [1.0, 2.0]),
    lambda: map(max, zip([1.0])),
    lambda: (v for v, _ in enumerate([1.0])), _squares, lambda: itertools.chain([1.0], [2.0]), lambda: reversed([1.0, 2.0])])
def test_taking_from_an_iterator_is_refused(made):
    """It would happen once, and every call would get the first value."""
    it = made()
    with pytest.raises(AotgradTypeError, match="takes from an iterator"):
        ag.compile(lambda x: x * next(it))(np.ones(2))


def test_an_iterator_that_is_only_looked_at_is_none():
    it = iter([1.0])
    assert ag.compile(lambda x: x if it is None else x * 2.0)(np.ones(2)).tolist() == [2.0, 2.0]
