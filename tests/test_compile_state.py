"""What a compiled function takes for granted: names it read, options, containers, numbers used as sizes, and writes into its arguments."""

from __future__ import annotations

import collections
import dataclasses
import types
from typing import Any

import numpy as np
import pytest

import aotgrad as ag

X = np.array([1.0, 2.0, 3.0])
C = ag.compile
W: Any = None
W1: Any = None
W2: Any = None
TABLE: Any = None
MODULE = types.ModuleType("some_module")


class Layer:
    def __init__(self) -> None:
        self.b: Any = None

    def forward(self, x: Any) -> Any:
        return x if self.b is None else x + self.b


class Slotted:
    __slots__ = ("w",)


class Proper:
    def __init__(self) -> None:
        self.base = X

    @property
    def w(self) -> Any:
        return self.base * 2


class Shared:
    w: Any = X


class AlwaysEqual:
    def __init__(self, k: float) -> None:
        self.k = k

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


def _with_w(x: Any) -> Any:
    return x * W


def _calls_with_w(x: Any) -> Any:
    return _with_w(x) + 1


def _both(x: Any) -> Any:
    return x * W1 + W2


# ---- names ---------------------------------------------------------------------------------------------------------------------------


def test_an_attribute_that_was_none_becomes_an_array() -> None:
    layer = Layer()
    f = C(layer.forward)
    np.testing.assert_array_equal(f(X), X)
    layer.b = X * 10
    np.testing.assert_array_equal(f(X), X * 11)
    layer.b = 2.0
    np.testing.assert_array_equal(f(X), X + 2)
    layer.b = None
    np.testing.assert_array_equal(f(X), X)
    assert f.cache_info().traces <= 4
    g = C(Layer.forward)  # the object as an argument
    np.testing.assert_array_equal(g(layer, X), X)
    layer.b = X
    np.testing.assert_array_equal(g(layer, X), X * 2)


@pytest.mark.parametrize("f", [_with_w, lambda x: _calls_with_w(x) - 1, lambda x: [v * W for v in [x]][0]])
def test_a_global_changes_kind(f: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    g = C(f)
    for value in (X, 3.0, 4.0, X + 1, np.float64(2.0), np.arange(3), 3.0, np.array(2.0), -1):
        monkeypatch.setitem(globals(), "W", value)
        for _ in range(2):
            np.testing.assert_array_equal(g(X), X * value)


def test_equal_numbers_do_not_trace_again(monkeypatch: pytest.MonkeyPatch) -> None:
    f = C(_with_w)
    for k in range(3):
        monkeypatch.setitem(globals(), "W", float(str(3.5)))
        f(X)
        monkeypatch.setitem(globals(), "W", X + k)
        np.testing.assert_array_equal(f(X), X * (X + k))
    assert f.cache_info().traces == 2


def test_a_closure_cell_changes_kind() -> None:
    w: Any = None
    f = C(lambda x: x if w is None else x * w)
    for value in (None, X, 2.0, None, X + 1):
        w = value
        np.testing.assert_array_equal(f(X), X if value is None else X * value)


def test_two_names_of_one_array(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("W1", "W2"):
        for other in ("W1", "W2"):
            monkeypatch.setitem(globals(), other, X)
        f = C(_both)
        np.testing.assert_array_equal(f(X), X * X + X)
        monkeypatch.setitem(globals(), name, X * 100)
        np.testing.assert_array_equal(f(X), X * W1 + W2)
        both = X + 7
        monkeypatch.setitem(globals(), "W1", both)
        monkeypatch.setitem(globals(), "W2", both)
        np.testing.assert_array_equal(f(X), X * both + both)
        assert f.cache_info().traces == 2


def _set_item(holder: Any, value: Any) -> None:
    holder["w"] = value


@pytest.mark.parametrize("kind", ["class", "module", "slots", "list", "dict", "nested"])
def test_rebound_places(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slotted, items, table, nested = Slotted(), [X, 1.0], {"w": X}, types.SimpleNamespace(inner=[{"w": X}])
    slotted.w = MODULE.w = X  # type: ignore[attr-defined]
    monkeypatch.setattr(Shared, "w", X)
    f, rebind = {
        "class": (lambda x: x * Shared.w, lambda v: monkeypatch.setattr(Shared, "w", v)),
        "module": (lambda x: x * MODULE.w, lambda v: setattr(MODULE, "w", v)),
        "slots": (lambda x: x * slotted.w, lambda v: setattr(slotted, "w", v)),
        "list": (lambda x: x * items[0], lambda v: items.__setitem__(0, v)),
        "dict": (lambda x: x * table["w"], lambda v: table.__setitem__("w", v)),
        "nested": (lambda x: x * nested.inner[0]["w"], lambda v: nested.inner[0].__setitem__("w", v)),
    }[kind]
    g = C(f)
    for value in (X, X + 1, 2.0, X + 2, 3.0):
        rebind(value)
        for _ in range(2):
            np.testing.assert_array_equal(g(X), X * value)
    assert g.cache_info().traces == 3


def test_a_property_is_read_again() -> None:
    p = Proper()
    f = C(lambda x: x + p.w)
    np.testing.assert_array_equal(f(X), X * 3)
    p.base = X * 2
    np.testing.assert_array_equal(f(X), X * 5)


def test_a_list_that_grows() -> None:
    parts = [X]
    f = C(lambda x: sum((x * p for p in parts), 0.0))
    np.testing.assert_array_equal(f(X), X * X)
    parts.append(X + 1)
    np.testing.assert_array_equal(f(X), X * X + X * (X + 1))


def test_objects_that_call_everything_equal_are_told_apart() -> None:
    f = C(lambda x, o: x * o.k)
    a, b = AlwaysEqual(2.0), AlwaysEqual(3.0)
    for o in (a, b, a, b):
        np.testing.assert_array_equal(f(X, o), X * o.k)
        np.testing.assert_array_equal(f(X, o=o), X * o.k)
    a.k = 5.0
    np.testing.assert_array_equal(f(X, a), X * 5)
    assert f.cache_info().traces <= 5


def test_a_function_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    f = C(_calls_with_w)
    monkeypatch.setitem(globals(), "W", X)
    np.testing.assert_array_equal(f(X), X * X + 1)
    monkeypatch.setitem(globals(), "_with_w", lambda x: x - 1)
    np.testing.assert_array_equal(f(X), X)


# ---- static values and containers ----------------------------------------------------------------------------------------------------


def test_static_numbers_by_their_bits() -> None:
    f = C(lambda x, k: np.copysign(1.0, k[0] if isinstance(k, tuple) else k) * x, static=("k",))
    for k, sign in ((0.0, 1), (-0.0, -1), ((0.0,), 1), ((-0.0,), -1), (0.0, 1), (np.float64(-0.0), -1), (np.float64(0.0), 1)):
        np.testing.assert_array_equal(f(X, k), sign * X)
    g = C(lambda x, k: x if k != k else x * k, static="k")
    for _ in range(3):
        g(X, float("nan"))
    assert g.cache_info().traces == 1


def test_dict_keys_that_are_equal() -> None:
    f = C(lambda d: {k: v * (2 if type(k) is bool else 3 if type(k) is float else 1) for k, v in d.items()})
    for _ in range(2):
        for key, factor in ((1, 1), (True, 2), (1.0, 3)):
            (got,) = f({key: X}).items()
            assert type(got[0]) is type(key)
            np.testing.assert_array_equal(got[1], X * factor)


@dataclasses.dataclass
class Late:
    x: Any
    y: Any = dataclasses.field(init=False, default=None)


class Odd(dict[str, Any]):
    def __init__(self, size: int) -> None:
        super().__init__()


class Sub(tuple[Any, ...]):
    pass


def test_unusual_containers() -> None:
    d = collections.defaultdict(lambda: 5.0, a=X)
    out = C(lambda t: ag.frontend.pytree.tree_map(lambda v: v * 2, t))(d)
    assert type(out) is collections.defaultdict and out["missing"] == 5.0
    np.testing.assert_array_equal(out["a"], X * 2)
    late = Late(X)
    late.y = X + 1
    f = C(lambda p: p)
    for _ in range(2):
        np.testing.assert_array_equal(f(late).y, X + 1)
    with pytest.raises(ag.AotgradError, match="Odd"):
        f(Odd(3))
    with pytest.raises(ag.AotgradError, match="Sub"):
        f(Sub((X,)))
    cyclic: list[Any] = [X]
    cyclic.append(cyclic)
    deep: Any = X
    for _ in range(5000):
        deep = [deep]
    for bad in (cyclic, deep):
        with pytest.raises(ag.AotgradError, match="deep"):
            f(bad)
        with pytest.raises(ag.AotgradError, match="deep"):
            C(lambda x, bad=bad: bad)(X)
