"""Ops with kernels of their own: which function emits which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aotgrad_runtime.errors import AotgradNotImplementedError

from .fusion import Kern
from .loops import Context

__all__ = ["emit_kernel"]

Emitter = Callable[[Context, Kern], None]


def emit_kernel(cx: Context, item: Kern, lower_block: Any) -> None:
    """Emits a kernel item. ``lower_block`` lowers regions."""
    op = item.op
    assert op is not None
    if op.name == "concatenate":
        return  # its pieces are written in place
    raise AotgradNotImplementedError(f"ag.{op.name} has no kernel yet")
