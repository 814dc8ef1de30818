"""Neural network functions."""

from __future__ import annotations

from . import functional

__all__ = ["functional"]
