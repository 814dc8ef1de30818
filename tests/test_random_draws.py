"""Random numbers that would be drawn once, while a function is traced: refused wherever the function finds what draws them."""

from __future__ import annotations

import operator
import random
import warnings
from typing import Any

import numpy as np
import pytest

import aotgrad as ag

X = np.ones(2)
MAKE = {"Generator": lambda: np.random.default_rng(0), "RandomState": lambda: np.random.RandomState(0), "Random": lambda: random.Random(0)}


class Holder:
    def __init__(self, rng: Any) -> None:
        self.rng = rng

    def noisy(self, x: Any) -> Any:
        return x + _draw(self.rng)


def _draw(rng: Any) -> float:
    return rng.gauss(0.0, 1.0) if isinstance(rng, random.Random) else rng.normal()


HELD = Holder(None)


def _places(rng: Any) -> dict[str, Any]:
    held, tree, rngs, method = Holder(rng), {"rng": rng}, [1, (rng,)], rng.random if isinstance(rng, random.Random) else rng.normal
    HELD.rng = rng

    def default(x: Any, r: Any = rng) -> Any:
        return x + _draw(r)

    def helper(r: Any = rng) -> float:
        return _draw(r)

    class Compiled(Holder):
        @ag.compile
        def step(self, x: Any) -> Any:
            return x + _draw(self.rng)

    return {
        "closure": ag.compile(lambda x: x + _draw(rng)), "attribute": ag.compile(lambda x: x + _draw(held.rng)), "dict": ag.compile(lambda x: x + _draw(tree["rng"])),
        "list": ag.compile(lambda x: x + _draw(rngs[1][0])), "global": ag.compile(lambda x: x + _draw(HELD.rng)), "default": ag.compile(default),
        "helper": ag.compile(lambda x: x + helper()), "bound": ag.compile(held.noisy), "method": Compiled(rng).step, "drawing": ag.compile(lambda x: x + method()),
    }


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("place", list(_places(np.random.default_rng(0))))
def test_draws_are_refused_wherever_the_generator_is(kind: str, place: str) -> None:
    f = _places(MAKE[kind]())[place]
    with pytest.raises(ag.AotgradNotImplementedError, match="draws random numbers from .* pass them as an argument"):
        f(X)


@pytest.mark.parametrize("kind", MAKE)
def test_draws_from_arguments_are_refused(kind: str) -> None:
    rng = MAKE[kind]()
    with pytest.raises(ag.AotgradNotImplementedError, match="draws random numbers"):
        ag.compile(lambda x, r: x + _draw(r), static="r")(X, rng)
    with pytest.raises(ag.AotgradNotImplementedError, match="draws random numbers"):
        ag.compile(lambda x, o: x + _draw(o.rng), static="o")(X, Holder(rng))


@pytest.mark.parametrize("kind", MAKE)
def test_generators_that_are_not_drawn_from_or_made_inside_are_fine(kind: str) -> None:
    rng = MAKE[kind]()
    tree = {"rng": rng, "scale": 2.0}
    np.testing.assert_array_equal(ag.compile(lambda x: x * tree["scale"])(X), 2.0 * X)
    f = ag.compile(lambda x: x + _draw(MAKE[kind]()))
    np.testing.assert_array_equal(f(X), X + _draw(MAKE[kind]()))


def test_libraries_refuse_draws_of_what_is_held(tmp_path: Any) -> None:
    held = Holder(np.random.default_rng(0))

    def noisy(x: Any) -> Any:
        return x + held.rng.normal()

    with pytest.raises(ag.AotgradNotImplementedError, match=r"draws random numbers from .*rng"):
        ag.aot.build(noisy, "x: f64[3]", out=tmp_path / "noisy")


@pytest.mark.parametrize("shuffle", [lambda a: np.random.default_rng(0).shuffle(a), lambda a: np.random.RandomState(0).shuffle(a), lambda a: random.Random(0).shuffle(a)])
def test_shuffles_of_views_are_refused(shuffle):
    """They lose rows: the second write of a swap reads what the first has written."""
    def rows(a):
        a = a * 1.0
        shuffle(a)
        return a * 1.0

    x = np.arange(12.0).reshape(4, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for run in (lambda: ag.compile(rows)(x), lambda: ag.grad(lambda a: (rows(a) ** 2).sum())(x), lambda: ag.vmap(rows)(np.stack([x, x])),
                    lambda: rows(ag.tensor(x)), lambda: rows(ag.tensor(x[:, 0]))):
            with pytest.raises(ag.AotgradTypeError, match=r"rows would be lost. Take the rows in another order: x\[rng.permutation\(len\(x\)\)\]"):
                run()
        expected = x[:, 0].copy()
        shuffle(expected)
        assert ag.compile(rows)(x[:, 0]).tolist() == expected.tolist()  # NumPy's numbers are no views
    reordered = ag.compile(lambda a: a[np.random.default_rng(0).permutation(len(a))])(x)
    assert reordered.tolist() == x[np.random.default_rng(0).permutation(4)].tolist()


def test_swaps_and_writes_of_views_are_as_written():
    def swapped(a):
        a = a * 1.0
        a[0], a[1] = a[1], a[0]
        operator.setitem(a, 3, a[2])
        return a * 1.0

    x = np.arange(12.0).reshape(4, 3)
    assert ag.compile(swapped)(x).tolist() == ag.vmap(swapped)(x[None])[0].tolist() == swapped(ag.tensor(x)).tolist() == swapped(x).tolist()
    for numbers in (x, x[:, 0]):
        assert ag.jvp(swapped, (numbers,), (numbers,))[1].tolist() == swapped(numbers).tolist()
