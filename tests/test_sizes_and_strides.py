"""Sizes that compiled functions return, and strides that they ask for: as in eager code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aotgrad as ag


def test_sizes_are_numbers_of_python() -> None:
    f = ag.compile(lambda x: (x.shape, x.size(1), {"half": x.shape[0] / 2, "all": (x.numel(), x.shape.numel())}, x * 2))
    for n in (2, 3, 4, 3):
        x = ag.ones(n, 3, requires_grad=n == 4)
        shape, size, more, y = f(x)
        assert type(shape) is ag.Size and shape == (n, 3) and all(type(k) is int for k in (*shape, size, *more["all"]))
        assert type(more["half"]) is float and more == {"half": n / 2, "all": (3 * n, 3 * n)} and size == 3
        assert y.requires_grad is x.requires_grad
    assert f.cache_info().traces <= 2


def test_sizes_of_arrays_are_numbers_of_python() -> None:
    f = ag.compile(lambda x: (x.shape, x.shape[0] * 2, len(x) / 2, x + 1))
    for n in (2, 3, 4):
        shape, twice, half, y = f(np.ones((n, 3)))
        assert type(shape) is tuple and shape == (n, 3) and (twice, half) == (2 * n, n / 2) and y.shape == (n, 3)
        assert all(type(k) is int for k in (*shape, twice)) and type(half) is float


def test_a_bound_call_gives_sizes_as_arrays() -> None:
    f = ag.compile(lambda x: (x.sum(), x.shape[0]))
    x = np.ones(5)
    bound = f.prebind(x)
    bound()
    assert [float(v) for v in bound.out] == [5, 5] and isinstance(bound.out[1], np.ndarray)


def asks(x: Any) -> Any:
    views = [x, x.T, x[1:], x[:, ::2], x[0], x[None], x[:, None], x.view(-1) if x.is_contiguous() else x, x * 2, x.unsqueeze(1), x.expand(2, *x.shape), x.chunk(2)[0],
             x.T.contiguous(), x.detach(), x.narrow(0, 1, 2), x.T.unsqueeze(0).squeeze(0)]
    return [(v.is_contiguous(), v.stride(), v.stride(-1)) for v in views]


@pytest.mark.parametrize("first", [False, True])
def test_strides_of_arguments_and_views(first: bool) -> None:
    made: list[Callable[[], Any]] = [lambda: ag.ones(4, 6), lambda: ag.ones(6, 4).T, lambda: ag.ones(4, 12)[:, ::2], lambda: ag.ones(8, 6)[::2], lambda: ag.ones(3, 6),
                                     lambda: ag.ones(5, 8)[:, :6], lambda: ag.ones(4, 6)]
    g = ag.compile(asks)
    for make in made if first else reversed(made):
        for _ in range(2):
            assert g(make()) == asks(make())


def test_strides_of_captured_tensors() -> None:
    held = [ag.ones(4, 6)]
    f = ag.compile(lambda x: (x + held[0]).sum() if held[0].is_contiguous() else (x - held[0]).sum())
    x = ag.ones(4, 6)
    assert [f(x).item() for _ in range(3)] == [48, 48, 48]
    held[0] = ag.ones(4, 12)[:, ::2]
    assert [f(x).item() for _ in range(3)] == [0, 0, 0]
    held[0] = ag.ones(4, 6)
    assert f(x).item() == 48


@pytest.mark.parametrize("view", [lambda x: x.T, lambda x: x[:, ::2], lambda x: x[:1], lambda x: x, lambda x: x.diagonal(), lambda x: x.expand(2, *x.shape),
                                  lambda x: x[:, 1:2]])
def test_contiguous_is_a_copy_where_memory_is_not(view: Callable[[Any], Any]) -> None:
    def f(x: Any) -> Any:
        y = view(x).contiguous()
        y.add_(1)
        return y.sum()

    a, b = ag.ones(3, 4), ag.ones(3, 4)
    assert f(a).item() == ag.compile(f)(b).item() and a.tolist() == b.tolist()


@pytest.mark.parametrize(("ask", "says"), [
    (lambda x: x.storage_offset(), r"storage_offset\(\) is not known in a compiled function"),
    (lambda x: x.diagonal().stride(), "does not know the strides of this view"),
    (lambda x: x.stride(2), r"Dimension out of range \(expected to be in range of \[-2, 1\], but got 2\)"),
])
def test_what_is_not_known_says_so(ask: Callable[[Any], Any], says: str) -> None:
    with pytest.raises(ag.AotgradError, match=rf"test_sizes_and_strides\.py:\d+.*{says}"):
        ag.compile(ask)(ag.ones(3, 4))


HUGE = {"a copy": (lambda x: x[:5, :5].sum(), (2**31, 2**28), r"x of shape \(2147483648, 268435456\) repeats .* 4611686018427387904 bytes"),
        "a result": (lambda x: np.tile(x, 2**55), (5,), r"results take 1441151880758558720 bytes"),
        "workspace": (lambda x: np.cumsum(np.tile(x, 2**54))[::2].sum(), (5,), r"workspace takes \d{18,} bytes")}


@pytest.mark.parametrize("name", HUGE)
def test_no_memory_says_what_takes_how_much(name: str) -> None:
    f, shape, message = HUGE[name]
    x = np.broadcast_to(np.float64(3.0), shape)
    compiled = ag.compile(f)
    for _ in range(2):
        with pytest.raises(MemoryError, match=message) as e:
            compiled(x if len(shape) > 1 else x.copy())
        assert isinstance(e.value, ag.AotgradError)
    if len(shape) > 1:
        assert compiled(np.broadcast_to(np.float64(3.0), (7, 6))) == 75.0  # the error leaves the function as it was
