"""The ways to a gradient by which hooks are tried: transforms and the tape, compiled and not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import aotgrad as ag

F = Callable[..., Any]
WAYS: dict[str, Callable[[F], F]] = {
    "eager": lambda f: ag.grad(f), "compiled gradient": lambda f: ag.compile(ag.grad(f)), "gradient of compiled": lambda f: ag.grad(ag.compile(f)),
    "tape": lambda f: lambda *xs: taped(f, xs), "compiled tape": lambda f: lambda *xs: taped(ag.compile(f), xs),
}
Ways = pytest.mark.parametrize("way", WAYS)


def taped(f: F, xs: Any) -> Any:
    tensors = [ag.tensor(x, dtype=ag.float64, requires_grad=True) for x in xs]
    f(*tensors).backward()
    return tensors[0].grad.numpy()
