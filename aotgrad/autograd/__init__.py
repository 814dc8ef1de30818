"""Gradients of tensors on the tape, with torch.autograd's names: ``backward``, ``grad``, grad modes, ``Function``, ``functional``, ``forward_ad``, ``gradcheck``,
anomaly mode."""

from __future__ import annotations

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from aotgrad.frontend.anomaly import detect_anomaly, set_detect_anomaly
from aotgrad.frontend.backward import backward
from aotgrad.frontend.boundary import absent as _absent_of
from aotgrad.frontend.boundary import guard as _guard
from aotgrad_runtime.modes import enable_grad, inference_mode, no_grad, set_grad_enabled
from aotgrad_runtime.tape import Node

from . import anomaly_mode, forward_ad, function, grad_mode, graph
from .function import Function
from .grad_mode import set_multithreading_enabled
from .gradcheck import gradcheck, gradgradcheck
from .gradients import grad

if _TYPE_CHECKING:
    from . import functional, profiler

__all__ = [
    "Function", "Node", "anomaly_mode", "backward", "detect_anomaly", "enable_grad", "forward_ad", "function", "functional", "grad", "grad_mode", "gradcheck",
    "gradgradcheck", "graph", "inference_mode", "no_grad", "profiler", "set_detect_anomaly", "set_grad_enabled", "set_multithreading_enabled",
]

_absent = _absent_of(__name__, __all__)


def __getattr__(name: str) -> _Any:
    if name in ("functional", "profiler"):  # not needed by most programs
        return _importlib.import_module(f"aotgrad.autograd.{name}")
    return _absent(name)

_guard(globals(), [n for n in __all__ if n != "Node"])
