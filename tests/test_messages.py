"""Errors that name what was wrong and what helps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import aotgrad as ag


@pytest.mark.parametrize(("call", "says"), [
    (lambda: ag.cat(ag.ones(2)), "cat: a list or tuple of tensors is needed"), (lambda: ag.stack(ag.ones(2)), "stack: a list or tuple of tensors is needed"),
    (lambda: ag.manual_seed("a"), "manual_seed: the seed is an integer"), (lambda: ag.tensor([True]) - ag.tensor([True]), "sub: dtype bool .*\\^"),
    (lambda: ag.tensor([True]).relu(), "relu: dtype bool"), (lambda: ag.compile(lambda x: x)(memoryview(bytearray(b"abc"))), "argument x: .*memoryview"),
    (lambda: ag.compile(lambda x: x).prebind(ag.ones(2, 2)), "prebind: x is a Tensor; .*x.numpy"), (lambda: ag.load("absent.npz"), "ag.load takes a library"),
    (lambda: ag.compile(lambda x: np.array([x[0], x[1]]))(np.ones(3)), "[^.]*\\([^)]*\\)\\. Build arrays of lists with np.stack"),
])
def test_they_say_what_helps(call: Any, says: str) -> None:
    with pytest.raises(ag.AotgradError, match=says):
        call()


def test_flags_are_spoken_of_where_a_flag_was_given() -> None:
    with pytest.raises(ag.AotgradTypeError, match="as a condition") as caught:
        ag.vmap(lambda x: x if x > 0 else -x)(np.ones(3))
    assert "static=" not in str(caught.value)
    with pytest.raises(ag.AotgradTypeError, match="pass bool"):
        ag.compile(lambda x, flag: x if flag else -x)(np.ones(3), np.bool_(True))
