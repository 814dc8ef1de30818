"""Tensors without dims or without elements where functions take a dim: PyTorch's values and types of errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from autograd_pair import same

import aotgrad as ag
from aotgrad_runtime.errors import AotgradError

VALUES: dict[str, Callable[[Any], Any]] = {
    "max": lambda m: [list(m.tensor(1.5).max(d)) + list(m.tensor(7).min(d, keepdim=True)) for d in (0, -1)],
    "gradient of max": lambda m: m.autograd.grad((x := m.tensor(1.5, requires_grad=True)).max(0)[0] * 3, x),
    "argmax": lambda m: [m.tensor(1.5).argmax(d) for d in (0, -1)],
    "sum": lambda m: [m.tensor(1.5).sum(d) for d in (0, -1, (0,))],
    "nonzero": lambda m: [m.tensor(x).nonzero() for x in (0.0, 2.0)] + [*m.tensor(2.0).nonzero(as_tuple=True)],
    "strides of nonzero": lambda m: m.tensor([[1.0, 0.0], [2.0, 3.0]]).nonzero().stride(),
    "unbind of nothing": lambda m: [len(m.zeros(0, 3).unbind()), len(m.zeros(3, 0).unbind(1))],
    "softmax": lambda m: [m.tensor(1.5).softmax(d) for d in (0, -1)],
}


@pytest.mark.parametrize("name", VALUES)
def test_values_are_torchs(name: str) -> None:
    assert same(VALUES[name])[0] != "error"


ERRORS: dict[str, tuple[type[Exception], Callable[[Any], Any]]] = {
    "split": (RuntimeError, lambda x: x.split(2)), "chunk": (RuntimeError, lambda x: x.chunk(2)), "narrow": (RuntimeError, lambda x: x.narrow(0, 0, 1)),
    "unbind": (IndexError, lambda x: x.unbind()), "roll": (IndexError, lambda x: x.roll(1, 0)), "max": (IndexError, lambda x: x.max(1)),
    "sum": (IndexError, lambda x: x.sum(1)), "mean": (IndexError, lambda x: x.mean((0, 1))), "softmax": (IndexError, lambda x: x.softmax(1)),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_torchs(name: str) -> None:
    kind, f = ERRORS[name]
    for g in (f, ag.compile(f)):
        with pytest.raises(kind, match=rf"{name}: the input is 0-d|Dimension out of range \(expected to be in range of \[-1, 0\], but got [01]\)") as caught:
            g(ag.tensor(1.5))
        assert isinstance(caught.value, AotgradError)


def test_numpys_axes_of_no_dims() -> None:
    for f in (lambda x: np.sum(x, axis=-1), lambda x: np.argmax(x, axis=-1), lambda x: np.max(x, axis=0)):
        assert ag.compile(f)(np.array(1.5)) == f(np.array(1.5))
