"""Optimisers under torch.optim's names."""

from __future__ import annotations

from aotgrad.frontend.boundary import guard as _guard

from .adam import Adam, AdamW
from .optimizer import Optimizer
from .sgd import SGD

__all__ = ["Adam", "AdamW", "Optimizer", "SGD"]

_guard(globals(), __all__)
