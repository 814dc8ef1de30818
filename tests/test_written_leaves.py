"""Writes of compiled functions to tensors with a history: leaves refuse recorded ones, at every call, and gradients are of the newest value. Each against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import aotgrad as ag

LEAF = "leaf Variable that requires grad is being used in an in-place operation"


def _first(x: Any) -> Any:
    x[:2].zero_()
    return (x * x).sum()


def _whole(x: Any) -> Any:
    return x.add_(1).sum()


def _block(x: Any) -> Any:
    x.view(2, 2)[0].zero_()
    return (x * x).sum()


def _turned(x: Any) -> Any:
    x.T.mul_(2)
    return (x * x).sum()


@pytest.mark.parametrize(("f", "shape"), [(_whole, 4), (_first, 4), (_block, 4), (_turned, (2, 2))])
@pytest.mark.parametrize("before", [False, True])
def test_a_leaf_argument_refuses_a_recorded_write(f: Callable[[Any], Any], shape: Any, before: bool) -> None:
    g = ag.compile(f)
    if before:  # a call that may write was traced first
        g(ag.ones(shape))
    x = ag.ones(shape, requires_grad=True)
    for made, view in ((x, f is not _whole), (x.view(-1).view(shape), True)):
        for run in (f, g):
            with pytest.raises(RuntimeError, match=("a view of a " if view else "a ") + LEAF):
                run(made)
    assert x.tolist() == ag.ones(shape).tolist()
    g(ag.ones(shape))
    assert g.cache_info().traces <= 3  # those that were refused, and one


@pytest.mark.parametrize("view", [False, True])
def test_a_captured_leaf_refuses_a_recorded_write(view: bool) -> None:
    w = ag.ones(3)

    def f(x: Any) -> Any:
        (w[:2] if view else w).mul_(2)
        return (x * w).sum()

    g, x = ag.compile(f), ag.ones(3)
    for _ in range(3):
        g(x)
    w.requires_grad_()
    kept = w.tolist()
    for run in (f, g):
        with pytest.raises(RuntimeError, match=LEAF):
            run(x)
    assert w.tolist() == kept
    w.requires_grad_(False)
    g(x)
    assert w.tolist() == [16.0, 16.0, 1.0 if view else 16.0] and g.cache_info().traces == 2


def test_writes_that_are_not_recorded_go_to_leaves() -> None:
    w = ag.ones(3, requires_grad=True)

    def f(x: Any) -> Any:
        with ag.no_grad():
            w.mul_(2)
            w[0].zero_()
        w.detach()[1].add_(1)
        w.data.add_(1)
        x.data[0] = 7
        return (x * w).sum()

    x = ag.ones(3, requires_grad=True)
    f(x)
    expected = w.tolist(), x.tolist()
    with ag.no_grad():
        w.fill_(1)
        x.fill_(1)
    g = ag.compile(f)
    g(x)
    assert (w.tolist(), x.tolist()) == expected and w.is_leaf and x.is_leaf


def test_all_writes_of_a_call_that_is_not_recorded_go_to_leaves() -> None:
    g, x = ag.compile(_first), ag.ones(4, requires_grad=True)
    with ag.no_grad():
        assert g(x).item() == 2.0
    assert x.tolist() == [0, 0, 1, 1]
    with pytest.raises(RuntimeError, match=LEAF):
        g(x)


def _item(y: Any) -> Any:
    y[0] = 5.0
    return (y * y).sum()


def _part(y: Any) -> Any:
    y[1:].mul_(y[:1])
    return (y * y).sum()


@pytest.mark.parametrize("f", [_item, _part])
@pytest.mark.parametrize("first", [False, True])
def test_retained_gradients_are_those_of_the_newest_value(f: Callable[[Any], Any], first: bool) -> None:
    found = []
    for run in (f, ag.compile(f)):
        if first:
            run(ag.ones(3) * 1)
        x = ag.tensor([1.0, 2.0, 3.0], requires_grad=True)
        y = x * 3
        y.retain_grad()
        run(y).backward()
        found.append((y.grad.tolist(), x.grad.tolist()))
    assert found[0] == found[1]


def test_captured_tensors_that_retain_their_gradient() -> None:
    found = []
    for compiled in (False, True):
        x = ag.tensor([1.0, 2.0], requires_grad=True)
        h = x * 2

        def f(a: Any, h: Any = h) -> Any:
            return h.mul_(a).sum()

        run = ag.compile(f) if compiled else f
        for _ in range(3):
            run(ag.ones(2) * 3)
        h.retain_grad()
        run(ag.ones(2)).backward()
        found.append((h.grad.tolist(), x.grad.tolist()))
    assert found[0] == found[1] == ([1, 1], [54, 54])


def test_a_write_of_numbers_drops_what_led_to_a_tensor() -> None:
    def f(y: Any) -> None:
        y.zero_()

    found = []
    for run in (f, ag.compile(f)):
        x = ag.ones(3, requires_grad=True)
        y = x * 2
        run(y)
        (y * y + y).sum().backward()
        found.append((y.tolist(), y.requires_grad, x.grad.tolist()))
    assert found[0] == found[1] == ([0, 0, 0], True, [0, 0, 0])


def test_a_captured_tensor_that_becomes_part_of_a_graph() -> None:
    """What one call has recorded reaches the next one's writes."""
    found = []
    for compiled in (False, True):
        w, total = ag.ones(2, requires_grad=True), ag.zeros(2)

        def f(a: Any, w: Any = w, total: Any = total) -> Any:
            return total.add_(w * a).sum()

        run = ag.compile(f) if compiled else f
        for _ in range(4):
            out = run(ag.ones(2) * 3)
        out.backward()
        found.append((total.tolist(), total.requires_grad, w.grad.tolist()))
    assert found[0] == found[1] == ([12, 12], True, [12, 12])
