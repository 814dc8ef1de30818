"""Placeholder signature; the text form is MLIR's generic form."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .core import Func


def print_func(func: Func) -> str:
    """The text of a function."""
    raise NotImplementedError
