"""Gradients of tensors on the tape, with torch.autograd's names: ``backward``, ``grad``, grad modes, ``Function``, ``functional``, ``forward_ad``, ``gradcheck``,
anomaly mode."""

from __future__ import annotations

from aotgrad.frontend.anomaly import detect_anomaly, set_detect_anomaly
from aotgrad_runtime.engine import backward
from aotgrad_runtime.modes import enable_grad, inference_mode, no_grad, set_grad_enabled
from aotgrad_runtime.tape import Node

from . import forward_ad, function, functional, profiler
from .function import Function
from .gradcheck import gradcheck, gradgradcheck
from .gradients import grad

__all__ = [
    "Function", "Node", "backward", "detect_anomaly", "enable_grad", "forward_ad", "function", "functional", "grad", "gradcheck", "gradgradcheck", "inference_mode",
    "no_grad", "profiler",
    "set_detect_anomaly", "set_grad_enabled",
]
