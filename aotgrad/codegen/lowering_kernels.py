"""Ops with kernels of their own: which function emits which."""

from __future__ import annotations

from typing import Any

from aotgrad_runtime.errors import AotgradNotImplementedError

from ..ir import opdef
from .fusion import Kern
from .lowering_control import cond, scan
from .lowering_conv import convolution
from .lowering_domain import in_domain
from .lowering_dot import dot
from .lowering_index import constant, cumulate, recurrence, scatter, take
from .nest import Context

__all__ = ["emit_kernel"]

_KERNELS = {
    "dot": dot, "take": take, "scatter": scatter, "scatter_add": scatter, "cumsum": cumulate, "cumprod": cumulate,
    "recurrence": recurrence, "constant": constant, "conv": convolution, "conv_input_grad": convolution, "conv_weight_grad": convolution,
}
_REPORTING = frozenset(("dot", "conv", "conv_input_grad", "conv_weight_grad"))  # their functions report in detail


def emit_kernel(cx: Context, item: Kern, lower_block: Any) -> None:
    """Emits a kernel item. ``lower_block`` lowers regions."""
    op = item.op
    assert op is not None
    if op.name == "concatenate":
        return  # its pieces are written in place
    if op.name in ("scan", "cond"):
        (scan if op.name == "scan" else cond)(cx, item, lower_block)
        return
    if opdef.limited(op):
        in_domain(cx, item)
        cx.report.append({"kind": op.name})
        return
    if op.name not in _KERNELS:
        raise AotgradNotImplementedError(f"ag.{op.name} has no kernel yet; write it with other ops")
    _KERNELS[op.name](cx, item)
    if op.name not in _REPORTING:
        cx.report.append({"kind": op.name})
