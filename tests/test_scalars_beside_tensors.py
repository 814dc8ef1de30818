"""NumPy's scalars are plain numbers beside tensors, whether they are arguments of a compiled function, constants in it or met in eager code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sweep

import aotgrad as ag

SCALARS = (np.float64(2), np.float32(1), np.float16(2), np.int64(3), np.uint8(2), np.bool_(True))
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda x, k: x + k, "divide": lambda x, k: k / x, "compare": lambda x, k: k < x, "computed": lambda x, k: x * (k * 2 + 1),
    "where": lambda x, k: ag.where(x > 0, x, k),
}


def seen(f: Callable[..., Any], *args: Any) -> Any:
    """The dtype and the numbers."""
    out = f(*args)
    return out.dtype, out.tolist()


@pytest.mark.parametrize("name, dtype", sweep.part(FUNCTIONS, [ag.int32, ag.uint8, ag.bool, ag.float16, ag.float32, ag.float64]), ids=str)
def test_an_argument_is_as_a_constant_and_as_in_eager_code(name: str, dtype: Any) -> None:
    f, x = FUNCTIONS[name], ag.ones(2, dtype=dtype)
    compiled = ag.compile(f)
    for k in SCALARS:
        want = seen(f, x, k)
        assert seen(compiled, x, k) == want, k
        assert seen(ag.compile(lambda x, k=k: f(x, k)), x) == want, k


def test_the_dtypes() -> None:
    f = ag.compile(lambda x, k: x + k)
    assert f(ag.ones(2, dtype=ag.int32), np.float64(2)).dtype is ag.float32
    assert f(ag.ones(2, dtype=ag.bool), np.float16(2)).dtype is ag.float32
    assert f(ag.ones(2, dtype=ag.bool), np.uint8(2)).dtype is ag.int64
    assert f(np.ones(2, np.int32), np.float64(2)).dtype == np.float64


def test_gradients_pass() -> None:
    x = ag.ones(2, requires_grad=True)
    ag.compile(lambda x, k: (x * k).sum())(x, np.float64(3)).backward()
    assert x.grad.dtype is ag.float32
    assert x.grad.tolist() == [3.0, 3.0]
