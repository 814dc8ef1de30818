"""What the functional modules share: the registry's functions as attributes, and small questions about values."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from aotgrad.frontend.methods import FUNCTIONS
from aotgrad.frontend.trace import Traced
from aotgrad_runtime.dtypes import DType, as_dtype
from aotgrad_runtime.errors import AotgradArgumentError
from aotgrad_runtime.tensor import Tensor

__all__ = ["dtype_of", "f", "is_float", "is_known", "per_channel", "rank", "reduced"]

f: Any = SimpleNamespace(**FUNCTIONS)


def rank(x: Any) -> int:
    """The number of dims."""
    return len(x.shape)


def dtype_of(x: Any) -> DType:
    """The dtype of a tensor or array."""
    return x._dtype if isinstance(x, Tensor) else as_dtype(np.asarray(x).dtype)


def is_float(x: Any) -> bool:
    """Whether the values are floating-point numbers."""
    return dtype_of(x).kind == "f"


def is_known(x: Any) -> bool:
    """Whether there are numbers behind ``x`` now."""
    return not isinstance(x, Traced)


def per_channel(values: Any, ndim: int) -> Any:
    """A vector of one number per channel, shaped to meet (N, C, ...) of ``ndim`` dims."""
    return f.reshape(values, (-1, *[1] * (ndim - 2)))


def reduced(loss: Any, reduction: str) -> Any:
    """The mean or sum of ``loss``, or all of it."""
    if reduction == "none":
        return loss
    if reduction not in ("mean", "sum"):
        raise AotgradArgumentError(f"reduction={reduction!r} is not known; use 'none', 'mean' or 'sum'")
    return f.mean(loss) if reduction == "mean" else f.sum(loss)
