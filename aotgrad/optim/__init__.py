"""Optimisers under torch.optim's names."""

from __future__ import annotations

from aotgrad.frontend.boundary import guard as _guard

from . import lr_scheduler
from .adam import Adam, AdamW
from .adaptive import Adagrad, RMSprop
from .lbfgs import LBFGS
from .optimizer import Optimizer
from .sgd import SGD

__all__ = ["Adagrad", "Adam", "AdamW", "LBFGS", "Optimizer", "RMSprop", "SGD", "lr_scheduler"]

_guard(globals(), __all__)
