"""What a compiled function reaches through objects, classes and functions: replaced there, or read in roundabout ways, they are seen by the next call."""

from __future__ import annotations

import argparse
import collections
import functools
import operator
import types
from typing import Any

import numpy as np
import pytest
from long_calls import Watched

import aotgrad as ag

C = ag.compile
X = np.arange(1.0, 4.0)


class Parts:
    """Code in all the places where an object can have it."""

    factor = 2.0

    def helper(self, x: Any) -> Any:
        return x * 2

    def forward(self, x: Any) -> Any:
        return self.helper(x) + 1

    def __call__(self, x: Any) -> Any:
        return self.forward(x)

    @property
    def number(self) -> float:
        return 3.0

    @staticmethod
    def apart(x: Any) -> Any:
        return x * 2

    @classmethod
    def of_class(cls, x: Any) -> Any:
        return x * cls.factor


@pytest.mark.parametrize("transform", [lambda f: f, ag.grad, ag.vmap, lambda f: functools.partial(f, k=2.0), lambda f: lambda x: f(x)],
                         ids=["itself", "grad", "vmap", "partial", "by name"])
def test_new_code_of_the_compiled_function_itself(transform: Any) -> None:
    def f(x: Any, k: float = 2.0) -> Any:
        return x * k

    c, x = C(transform(f)), np.ones(2) if transform is ag.vmap else 3.0
    before = c(x)
    f.__code__ = (lambda x, k=2.0: x * k * 7).__code__
    assert np.array_equal(c(x), before * 7)


def test_new_code_of_a_module_that_is_compiled() -> None:
    class M(ag.nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2

    m = M()
    calls, x = (C(m), C(m.forward)), ag.ones(2)
    assert all(c(x).tolist() == [2.0, 2.0] for c in calls)
    M.forward.__code__ = (lambda self, x: x * 7).__code__
    assert all(c(x).tolist() == [7.0, 7.0] for c in calls)


@pytest.mark.parametrize("kind", ["class", "base", "derived", "object", "call", "object of a class", "property", "static", "classmethod", "through the class",
                                  "attribute", "code", "defaults"])
def test_code_that_is_replaced_where_an_object_has_it(kind: str) -> None:
    class Base(Parts):
        """So that nothing is left behind."""

        def helper(self, x: Any) -> Any:
            return x * 2

    class Own(Base):
        """The same below."""

    def plain(x: Any, k: float = 2.0) -> Any:
        return x * k

    plain.factor = 2.0  # type: ignore[attr-defined]
    own = Own()
    f, change = {
        "class": (lambda x: own.helper(x), lambda: setattr(Base, "helper", lambda self, x: x * 3)),
        "base": (lambda x: own(x), lambda: setattr(Base, "helper", lambda self, x: x * 3)),
        "derived": (lambda x: own(x), lambda: setattr(Own, "forward", lambda self, x: x * 3)),
        "object": (lambda x: own.helper(x), lambda: setattr(own, "helper", lambda x: x * 3)),
        "call": (lambda x: own(x), lambda: setattr(Own, "__call__", lambda self, x: x * 3)),
        "object of a class": (own, lambda: setattr(own, "forward", lambda x: x * 3)),
        "property": (lambda x: x * own.number, lambda: setattr(Own, "number", property(lambda self: 5.0))),
        "static": (lambda x: own.apart(x), lambda: setattr(Own, "apart", staticmethod(lambda x: x * 3))),
        "classmethod": (lambda x: own.of_class(x), lambda: setattr(Own, "of_class", classmethod(lambda cls, x: x * 3))),
        "through the class": (lambda x: Own.of_class(x), lambda: setattr(Own, "of_class", classmethod(lambda cls, x: x * 3))),
        "attribute": (lambda x: x * plain.factor, lambda: setattr(plain, "factor", 5.0)),  # type: ignore[attr-defined]
        "code": (lambda x: plain(x), lambda: setattr(plain, "__code__", (lambda x, k=0: x * k * 10).__code__)),
        "defaults": (lambda x: plain(x), lambda: setattr(plain, "__defaults__", (5.0,))),
    }[kind]
    g = C(f)
    before = f(X)
    for _ in range(3):
        np.testing.assert_array_equal(g(X), before)
    assert g.cache_info().traces == 1
    change()
    assert not np.array_equal(f(X), before)
    for _ in range(2):
        np.testing.assert_array_equal(g(X), f(X))


class Damped:
    """What is reached in roundabout ways."""

    def __init__(self) -> None:
        self.c = 0.5

    def rate(self, x: Any) -> Any:
        return -x * self.c

    @functools.cached_property
    def once(self) -> float:
        return self.c * 2

    def __matmul__(self, x: Any) -> Any:
        return x * self.c

    def __iter__(self) -> Any:
        return iter((self.c, self.c))

    def __contains__(self, x: Any) -> bool:
        return bool(x < self.c)

    def __float__(self) -> float:
        return float(self.c)


class Driven(Damped):
    """Through ``super()``."""

    def rate(self, x: Any) -> Any:
        return super().rate(x) + 1.0


def timed(f: Any) -> Any:
    @functools.wraps(f)
    def inner(*args: Any) -> Any:
        return f(*args)

    return inner


class Failing:
    """Its own way of giving attributes, which fails for those it does not know."""

    def __init__(self, **known: Any) -> None:
        self.__dict__["_known"] = dict(known)

    def __getattr__(self, name: str) -> Any:
        return self._known[name]


class Scaled:
    """A descriptor."""

    factor = 1.0

    def __get__(self, obj: Any, kind: Any = None) -> float:
        return obj.c * self.factor


class Roundabout(Damped):
    """Methods in wrappers, attributes through descriptors."""

    scaled = Scaled()

    @timed
    def wrapped(self, x: Any) -> Any:
        return x * self.c

    def asked(self, x: Any) -> Any:
        return x * self.z if hasattr(self, "z") else x

    def tried(self, x: Any) -> Any:
        try:
            return x * self.w
        except AttributeError:
            return x

    def total(self, x: Any) -> Any:
        for name, value in vars(self).items():
            x = x + value * len(name)
        return x


def test_what_is_read_in_roundabout_ways_is_seen() -> None:
    o, driven, odd, space, chain = Roundabout(), Driven(), Failing(k=2.0), argparse.Namespace(lr=1.0), collections.ChainMap({"k": 1.0}, {})
    cases: dict[str, tuple[Any, Any]] = {
        "super": (driven.rate, lambda v: setattr(driven, "c", v)), "super, called": (lambda x: driven.rate(x), lambda v: setattr(driven, "c", v)),
        "super, derived": (lambda x: ag.grad(lambda x: driven.rate(x * x).sum())(x), lambda v: setattr(driven, "c", v)),
        "super, unbound": (lambda x: Driven.rate(driven, x), lambda v: setattr(driven, "c", v)),
        "getattr": (lambda x: x * getattr(o, "c"), lambda v: setattr(o, "c", v)),  # noqa: B009
        "getattr with a default": (lambda x: x * getattr(o, "new", 0.5), lambda v: setattr(o, "new", v)),
        "hasattr": (o.asked, lambda v: setattr(o, "z", v)), "AttributeError": (o.tried, lambda v: setattr(o, "w", v)),
        "vars": (o.total, lambda v: setattr(o, "c", v)), "a namespace": (lambda x: x * vars(space)["lr"], lambda v: setattr(space, "lr", v)),
        "attrgetter": (lambda x: x * operator.attrgetter("c")(o), lambda v: setattr(o, "c", v)),
        "wrapped": (o.wrapped, lambda v: setattr(o, "c", v)), "wrapped, called": (lambda x: o.wrapped(x), lambda v: setattr(o, "c", v)),
        "operator": (lambda x: o @ x, lambda v: setattr(o, "c", v)), "iter": (lambda x: x * sum(o), lambda v: setattr(o, "c", v)),
        "contains": (lambda x: x * (1.0 if 0.75 in o else 2.0), lambda v: setattr(o, "c", v)), "float": (lambda x: x * float(o), lambda v: setattr(o, "c", v)),
        "descriptor": (lambda x: x * o.scaled, lambda v: setattr(Scaled, "factor", v)), "__getattr__": (lambda x: x * odd.k, lambda v: odd._known.update(k=v)),
        "ChainMap": (lambda x: x * chain["k"], lambda v: chain.update(k=v)),
        "cached_property": (lambda x: x * o.once, lambda v: (setattr(o, "c", v), o.__dict__.pop("once", None))),
    }
    for name, (f, change) in cases.items():
        g = C(f)
        for value in (0.5, 3.0, 0.25):
            for _ in range(2):
                np.testing.assert_array_equal(g(X), f(X), err_msg=name)
            change(value)
            np.testing.assert_array_equal(g(X), f(X), err_msg=name)


def test_an_attribute_that_must_not_be_there_costs_no_trace() -> None:
    o = Roundabout()
    g = C(lambda x: o.asked(x))
    for _ in range(3):
        g(X)
    assert g.cache_info().traces == 1 and len(g.instances()) == 1
    o.z = 2.0
    np.testing.assert_array_equal(g(X), X * 2)
    del o.z
    np.testing.assert_array_equal(g(X), X)


@pytest.mark.parametrize("derive", [lambda f: f, ag.grad, ag.value_and_grad, ag.hessian, ag.vmap])
def test_functions_that_read_no_names_are_compared_with_their_code_alone(derive: Any) -> None:
    g = C(derive(lambda x: (x * x).sum()))
    g(X)
    assert [a.kind for a in g.instances()[0].args] == ["array", "is"]


def test_a_bound_call_refuses_what_super_would_read_anew() -> None:
    o = Driven()
    bound = C(o.rate).prebind(X)
    bound()
    o.c = 4.0
    with pytest.raises(ag.AotgradRuntimeError, match="anew"):
        bound()


def test_a_module_whose_forward_is_replaced() -> None:
    class Net(ag.nn.Linear):
        """With code of its own."""

        def forward(self, x: Any) -> Any:
            return super().forward(x) * 2

    x = ag.ones(3)
    for change in (lambda net: setattr(net, "forward", lambda x: x * 3), lambda net: setattr(Net, "forward", lambda self, x: x * 5)):
        net = Net(3, 3)
        g = ag.compile(net)
        np.testing.assert_allclose(g(x).detach().numpy(), net(x).detach().numpy())
        change(net)
        np.testing.assert_array_equal(g(x).detach().numpy(), net(x).detach().numpy())


def test_a_bound_call_of_a_function_that_reads_no_names_asks_nothing() -> None:
    x = X.copy()
    run = C(lambda x: x * 2).prebind(x)
    assert not hasattr(run, "__code__")  # the native call itself, with no Python around it
    x[0] = 7.0
    run()
    assert run.out[0] == 14.0


def _stale(kind: str) -> tuple[Any, Any]:
    """A function that doubles, and what makes it multiply by 5."""
    if kind == "keyword default":
        def keyword(x: Any, *, number: float = 2.0) -> Any:
            return x * number

        return keyword, lambda: (keyword.__kwdefaults__ or {}).update(number=5.0)
    if kind == "hidden builtin":
        space: dict[str, Any] = {"__name__": "users"}
        exec("def f(x): return x * abs(-2.0)", space)
        return space["f"], lambda: space.update(abs=lambda x: 5.0)
    if kind == "proxy":
        inside = {"number": 2.0}
        proxy = types.MappingProxyType(inside)
        return lambda x: x * proxy["number"], lambda: inside.update(number=5.0)
    if kind in ("metaclass", "class over metaclass"):
        meta = type("M", (type,), {"number": 2.0})
        cls: Any = meta("K", (), {})
        return lambda x: x * cls.number, lambda: setattr(meta if kind == "metaclass" else cls, "number", 5.0)

    class Answering:
        def __getattr__(self, name: str) -> float:
            if name == "number":
                return 2.0
            raise AttributeError(name)

    thing = Answering()
    change = {"object": lambda: setattr(thing, "number", 5.0), "class": lambda: setattr(Answering, "number", 5.0),
              "__getattr__": lambda: setattr(Answering, "__getattr__", lambda self, name: 5.0)}[kind]
    return lambda x: x * thing.number, change


@pytest.mark.parametrize("kind", ["keyword default", "hidden builtin", "proxy", "metaclass", "class over metaclass", "object", "class", "__getattr__"])
def test_what_takes_the_place_of_another_is_seen(kind: str) -> None:
    f, change = _stale(kind)
    compiled, calls = C(f), C(lambda x: f(x) + 1.0)
    for _ in range(3):
        np.testing.assert_array_equal(compiled(X), X * 2)
        np.testing.assert_array_equal(calls(X), X * 2 + 1)
    change()
    np.testing.assert_array_equal(compiled(X), X * 5)
    np.testing.assert_array_equal(calls(X), X * 5 + 1)


def test_numbers_in_tuples_stay_while_the_tuple_does() -> None:
    numbers = (2.0, (3.0, 4.0))
    f, g = Watched(lambda x: x * numbers[0] * numbers[1][1]), Watched(lambda x, pair=(2, (1, 3)): x * pair[0] * pair[1][1])
    for _ in range(3):
        np.testing.assert_array_equal(f(X), X * 8)
        np.testing.assert_array_equal(g(X), X * 6)
    assert f.long == g.long == 1
    numbers = (5.0, (3.0, 1.0))
    np.testing.assert_array_equal(f(X), X * 5)
