"""Spelling: kernel-level types and constants as LLVM text."""

from __future__ import annotations

import functools
import struct
from typing import Any

from aotgrad_runtime.errors import AotgradTypeError

from ..kernel_types import KType, as_ktype

__all__ = ["align", "const_text", "llvm_type", "suffix"]

# bfloat16 is its 16 bits: it is stored and converted, never computed with, and LLVM calls a library for it where the processor has no such instructions
_LLVM = {"f64": "double", "f32": "float", "f16": "half", "bf16": "i16", "index": "i64", "i1": "i1", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64"}
_ALIGN = {"f64": 8, "i64": 8, "index": 8, "f32": 4, "i32": 4, "f16": 2, "bf16": 2, "i16": 2, "i8": 1, "i1": 1}


@functools.lru_cache(maxsize=512)
def llvm_type(t: str) -> str:
    """``<8 x double>`` for ``vector<8xf64>``, ``ptr`` for a buffer, ``i64`` for index."""
    k = as_ktype(t)
    if k.mem:
        return "ptr"
    return _LLVM[k.elem] if k.lanes == 1 else f"<{k.lanes} x {_LLVM[k.elem]}>"


@functools.lru_cache(maxsize=512)
def suffix(t: str) -> str:
    """How intrinsics name a type: ``v8f64``."""
    k = as_ktype(t)
    elem = {"index": "i64", "bf16": "i16"}.get(k.elem, k.elem)
    return elem if k.lanes == 1 else f"v{k.lanes}{elem}"


def elem_type(k: KType) -> str:
    """LLVM's type of one element."""
    return _LLVM[k.elem]


def align(k: KType) -> int:
    """Natural alignment of an element, all that may be assumed."""
    return _ALIGN[k.elem]


def _float(value: float, elem: str) -> str:
    if elem == "f16":
        return "0xH" + struct.pack(">e", value).hex().upper()
    if elem == "bf16":
        return str(int.from_bytes(struct.pack(">f", value)[:2], "big"))
    if elem == "f32":
        try:
            value = struct.unpack("f", struct.pack("f", value))[0]
        except OverflowError:
            value = float("inf") if value > 0 else float("-inf")
    return "0x" + struct.pack(">d", value).hex().upper()


def _scalar(value: Any, k: KType) -> str:
    if k.elem in ("f64", "f32", "f16", "bf16"):
        return _float(float(value), k.elem)
    if k.elem == "i1":
        return "true" if value else "false"
    low, high = -(1 << (k.bits - 1)), 1 << k.bits
    if not low <= int(value) < high:
        raise AotgradTypeError(f"constant {value} does not fit in {k.elem}")
    return str(int(value))


def const_text(value: Any, t: str) -> str:
    """An exact constant: floats in hex (rounded to the type), vectors element by element; ``value`` is one number or one per lane."""
    k = as_ktype(t)
    if k.lanes == 1:
        return _scalar(value, k)
    lanes = list(value) if hasattr(value, "__len__") else [value] * k.lanes
    if len(set(map(repr, lanes))) == 1:
        return _splat(_scalar(lanes[0], k), _LLVM[k.elem], k.lanes)
    return f"<{', '.join(f'{_LLVM[k.elem]} {_scalar(x, k)}' for x in lanes)}>"


@functools.lru_cache(maxsize=4096)
def _splat(text: str, elem: str, lanes: int) -> str:
    return "zeroinitializer" if text in ("0", "false", "0x0000000000000000") else f"<{', '.join([f'{elem} {text}'] * lanes)}>"
