"""Ops with kernels of their own: which function emits which."""

from __future__ import annotations

from typing import Any

from aotgrad_runtime.errors import AotgradNotImplementedError

from ..ir import opdef
from . import later
from .ahead import COPY
from .nest import Context
from .plan import Kern
from .written import UNSET

__all__ = ["emit_kernel"]

_INDEX = {
    "take": "take", "scatter": "scatter", "scatter_add": "scatter", "cumsum": "cumulate", "cumprod": "cumulate", "recurrence": "recurrence", "constant": "constant",
    COPY: "copy",
}
_KERNELS = {  # which module of ``later`` has the function of which name
    "dot": ("lowering_dot", "dot"), **{op: ("lowering_index", function) for op, function in _INDEX.items()},
    **dict.fromkeys(("conv", "conv_input_grad", "conv_weight_grad"), ("lowering_conv", "convolution")),
    **{f"window_{name}": ("lowering_window", "windows") for name in ("sum", "spread", "max", "argmax", "pick", "put")},
}
_REPORTING = frozenset(op for op, (module, _) in _KERNELS.items() if module in ("lowering_dot", "lowering_conv", "lowering_window"))  # these report in detail


def emit_kernel(cx: Context, item: Kern, lower_block: Any) -> None:
    """Emits a kernel item. ``lower_block`` lowers regions."""
    op = item.op
    assert op is not None
    if op.name in ("concatenate", UNSET):
        return  # its pieces are written in place; it holds anything
    if op.name in ("scan", "cond"):
        (later.lowering_control.scan if op.name == "scan" else later.lowering_control.cond)(cx, item, lower_block)
        return
    if op.name != COPY and opdef.limited(op):
        later.lowering_domain.in_domain(cx, item)
        cx.report.append({"kind": op.name})
        return
    if op.name not in _KERNELS:
        raise AotgradNotImplementedError(f"ag.{op.name} has no kernel yet; write it with other ops")
    module, function = _KERNELS[op.name]
    getattr(getattr(later, module), function)(cx, item)
    if op.name not in _REPORTING:
        cx.report.append({"kind": op.name})
