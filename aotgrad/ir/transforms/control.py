"""Derivative rules of ``scan`` and ``cond`` (written with the linearize and transpose passes)."""

from __future__ import annotations

from typing import Any

__all__ = ["linearize_cond", "linearize_scan", "transpose_cond", "transpose_scan"]


def linearize_scan(b: Any, ins: Any, outs: Any, attrs: Any, active: Any) -> Any:
    raise NotImplementedError


def transpose_scan(b: Any, ct: Any, op: Any) -> Any:
    raise NotImplementedError


def linearize_cond(b: Any, ins: Any, outs: Any, attrs: Any, active: Any) -> Any:
    raise NotImplementedError


def transpose_cond(b: Any, ct: Any, op: Any) -> Any:
    raise NotImplementedError
