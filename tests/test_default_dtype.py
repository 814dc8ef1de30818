"""Compiled functions after the default dtype has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import aotgrad as ag
from aotgrad.frontend import quick
from aotgrad.frontend.compile import State


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    ag.set_default_dtype(ag.float32)


whole = ag.tensor([1, 2])


class Holder:
    def __init__(self) -> None:
        self.n = ag.tensor([0.0, 0.0])

    def step(self, x: Any) -> Any:
        self.n += 1
        return x * 0.1


FUNCTIONS: dict[str, tuple[Callable[..., Any], Any]] = {
    "flat": (lambda x: x + 0.1, ag.tensor([1, 2])), "structured": (lambda d: {"a": d["a"] + 0.1}, {"a": ag.tensor([1, 2])}),
    "made inside": (lambda x: x + ag.tensor([0.1, 0.2]), ag.ones(2, dtype=ag.float16)), "captured": (lambda x: whole / 3 + x, ag.tensor([1, 2])),
    "written state": (Holder().step, ag.tensor([1, 2])),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_compiled_function_takes_the_new_default(name: str) -> None:
    f, x = FUNCTIONS[name]
    compiled = ag.compile(f)
    for dtype in (ag.float32, ag.float64, ag.float32, ag.float64):
        ag.set_default_dtype(dtype)
        want = repr(f(x))
        assert [repr(compiled(x)) for _ in range(4)] == [want] * 4


def test_the_same_default_again_forgets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    f, x = ag.compile(lambda x: x + 0.1), ag.tensor([1, 2])
    f(x)
    renewed: list[Any] = []
    monkeypatch.setattr(State, "renew", lambda self: renewed.append(self))
    ag.set_default_dtype(ag.float32)
    assert not renewed
    ag.set_default_dtype(ag.float64)
    assert renewed


def test_short_ways_of_eager_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "HOT", 2)
    monkeypatch.setattr(quick, "INSTANCES", 1 << 10)
    whole, half = ag.tensor([1, 2]), ag.ones(2, dtype=ag.float32)
    for dtype in (ag.float32, ag.float64, ag.float32):
        ag.set_default_dtype(dtype)
        for _ in range(8):
            assert (whole + 0.1).dtype is dtype
            assert (whole / 2).dtype is dtype
            assert (whole > 0.5).dtype is ag.bool
            assert (half + 0.1).dtype is ag.float32
            assert ag.sqrt(whole).dtype is dtype
