"""Operands whose dtype cannot be computed with: errors name them, and say what to do."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from aotgrad_runtime.arrays import refusal
from aotgrad_runtime.errors import AotgradDTypeError, AotgradError, AotgradTypeError
from aotgrad_runtime.tensor import Tensor

from .trace import Traced, user_loc, within

__all__ = ["check", "told", "why"]


def why(x: Any) -> str | None:
    """Why an operand cannot be computed with; None where it can, or is no array."""
    if isinstance(x, Tensor):
        return refusal(x._dtype.np) if x._dtype.is_complex else None
    return refusal(x.dtype) if isinstance(x, (np.ndarray, np.generic)) else None


def _variable(x: Any) -> str:
    """The name of the user's variable that holds ``x``, in brackets; \"\" where none does."""
    frame: Any = sys._getframe(1)
    while frame is not None and within(frame.f_code.co_filename):
        frame = frame.f_back
    spaces = () if frame is None else (frame.f_locals, frame.f_globals)
    return next((f" ({name})" for space in spaces for name, v in list(space.items()) if v is x), "")


def check(x: Any) -> None:
    """Raises ``AotgradTypeError`` where an array that a trace meets cannot be computed with."""
    if not isinstance(x, Traced) and (reason := why(x)) is not None:
        raise AotgradTypeError(f"{user_loc()}: an array{_variable(x)} that the function uses: {reason}")


def told(name: str, operands: Iterable[tuple[str, Any]], error: AotgradError) -> AotgradError:
    """``error`` of the operation ``name``, or one that names the operand that cannot be computed with."""
    for argument, given in operands:
        for x in given if isinstance(given, (list, tuple)) else (given,):
            if (reason := why(x)) is not None:
                return AotgradDTypeError(f"{user_loc()}: {name}: {argument}{_variable(x)}: {reason}")
    return error
