"""Native kernels for eager execution: one size-generic kernel per op and dtype, built on first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aotgrad.ir import Op

__all__ = ["kernel"]


def kernel(op: Op) -> Callable[..., Any] | None:
    """The native implementation of a primitive op, or None where there is none yet."""
    return None
