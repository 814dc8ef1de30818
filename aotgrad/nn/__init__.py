"""Neural networks under torch.nn's names."""

from __future__ import annotations

from . import functional
from .containers import Identity, ModuleDict, ModuleList, Sequential
from .layers import CrossEntropyLoss, Dropout, Flatten, Linear, LogSoftmax, MSELoss, NLLLoss, ReLU, Sigmoid, SiLU, Softmax, Softplus, Tanh
from .module import Module
from .parameter import Buffer, Parameter

__all__ = [
    "Buffer", "CrossEntropyLoss", "Dropout", "Flatten", "Identity", "Linear", "LogSoftmax", "MSELoss", "Module", "ModuleDict", "ModuleList", "NLLLoss", "Parameter",
    "ReLU", "Sequential", "SiLU", "Sigmoid", "Softmax", "Softplus", "Tanh", "functional",
]
