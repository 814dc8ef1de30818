"""Neural networks under torch.nn's names."""

from __future__ import annotations

from typing import Any

from aotgrad_runtime.errors import AotgradAttributeError

from . import functional
from .containers import Identity, ModuleDict, ModuleList, Sequential
from .layers import CrossEntropyLoss, Dropout, Flatten, Linear, LogSoftmax, MSELoss, NLLLoss, ReLU, Sigmoid, SiLU, Softmax, Softplus, Tanh
from .module import Module
from .parameter import Buffer, Parameter

__all__ = [
    "Buffer", "CrossEntropyLoss", "Dropout", "Flatten", "Identity", "Linear", "LogSoftmax", "MSELoss", "Module", "ModuleDict", "ModuleList", "NLLLoss", "Parameter",
    "ReLU", "Sequential", "SiLU", "Sigmoid", "Softmax", "Softplus", "Tanh", "functional",
]


def __getattr__(name: str) -> Any:
    raise AotgradAttributeError(f"module 'aotgrad.nn' has no attribute {name!r}; it has {', '.join(__all__[:-1])}. More functions than these have modules are in "
                                "aotgrad.nn.functional, for a Module of your own")
