"""Helpers under torch.utils's names."""

from __future__ import annotations

from aotgrad.frontend.boundary import absent as _absent

from . import checkpoint

__all__ = ["checkpoint"]

__getattr__ = _absent(__name__, __all__)
