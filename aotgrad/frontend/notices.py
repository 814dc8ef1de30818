"""Warnings at the user's line."""

from __future__ import annotations

import sys
import warnings

from .trace import within

__all__ = ["notice"]


def notice(text: str) -> None:
    """A ``UserWarning`` at the innermost line outside this package, which Python shows once for each."""
    level, frame = 2, sys._getframe(1)
    while frame is not None and within(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    warnings.warn(text, UserWarning, stacklevel=level)
