"""Element types. A ``DType`` is a small frozen object; there is one per type, compared by identity."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from .errors import AotgradTypeError

__all__ = [
    "ALL", "DType", "as_dtype", "bfloat16", "bool_", "complex128", "complex64", "float16", "float32", "float64", "from_mlir", "int16", "int32", "int64",
    "int8", "promote_types", "uint8",
]


class DType:
    """An element type: ``name`` (torch's), ``mlir`` (how IR text spells it), ``np`` (storage in NumPy), ``kind`` in ``"fciub"``."""

    __slots__ = ("itemsize", "kind", "mlir", "name", "np")
    name: str
    mlir: str
    kind: str
    np: Any
    itemsize: int

    def __init__(self, name: str, mlir: str, kind: str, storage: str) -> None:
        self.name, self.mlir, self.kind = name, mlir, kind
        self.np = np.dtype(storage)
        self.itemsize = self.np.itemsize

    @property
    def is_floating_point(self) -> bool:
        return self.kind == "f"

    @property
    def is_complex(self) -> bool:
        return self.kind == "c"

    @property
    def is_signed(self) -> bool:
        return self.kind not in "bu"

    @property
    def is_differentiable(self) -> bool:
        return self.kind in "fc"

    def __repr__(self) -> str:
        return f"aotgrad.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (as_dtype, (self.name,))


float64: Final = DType("float64", "f64", "f", "float64")
float32: Final = DType("float32", "f32", "f", "float32")
float16: Final = DType("float16", "f16", "f", "float16")
bfloat16: Final = DType("bfloat16", "bf16", "f", "uint16")  # stored as its upper 16 bits
complex64: Final = DType("complex64", "complex<f32>", "c", "complex64")
complex128: Final = DType("complex128", "complex<f64>", "c", "complex128")
int8: Final = DType("int8", "i8", "i", "int8")
int16: Final = DType("int16", "i16", "i", "int16")
int32: Final = DType("int32", "i32", "i", "int32")
int64: Final = DType("int64", "i64", "i", "int64")
uint8: Final = DType("uint8", "ui8", "u", "uint8")
bool_: Final = DType("bool", "i1", "b", "bool")

ALL: Final = (float64, float32, float16, bfloat16, complex64, complex128, int8, int16, int32, int64, uint8, bool_)
_BY_NAME: Final = {d.name: d for d in ALL}
_BY_MLIR: Final = {d.mlir: d for d in ALL}
_BY_NP: Final = {d.np: d for d in ALL if d is not bfloat16}
_BY_PY: Final = {float: float64, int: int64, bool: bool_, complex: complex128}


def from_mlir(text: str) -> DType:
    """The dtype that IR text spells ``text``; raises ``AotgradTypeError`` for an unknown one."""
    try:
        return _BY_MLIR[text]
    except KeyError:
        raise AotgradTypeError(f"unknown element type {text!r}; known: {', '.join(_BY_MLIR)}") from None


def as_dtype(spec: object) -> DType:
    """The dtype meant by a ``DType``, a NumPy dtype or scalar type, a Python type, or a name.

    >>> as_dtype("float32"), as_dtype(np.int64), as_dtype(float)
    (aotgrad.float32, aotgrad.int64, aotgrad.float64)
    """
    if isinstance(spec, DType):
        return spec
    if isinstance(spec, str) and spec in _BY_NAME:
        return _BY_NAME[spec]
    if isinstance(spec, type) and spec in _BY_PY:
        return _BY_PY[spec]
    try:
        found = _BY_NP.get(np.dtype(spec).newbyteorder("="))  # type: ignore[call-overload]
    except (TypeError, ValueError):
        found = None
    if found is None:
        raise AotgradTypeError(f"dtype {spec!r} is not supported; use one of {', '.join(_BY_NAME)}")
    return found


_CATEGORY: Final = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}


def promote_types(type1: object, type2: object) -> DType:
    """The dtype that two have in common, by torch's rules: integers and floats give the float.

    >>> promote_types("int64", "float16"), promote_types("bfloat16", "float16"), promote_types("uint8", "int8")
    (aotgrad.float16, aotgrad.float32, aotgrad.int16)
    """
    a, b = as_dtype(type1), as_dtype(type2)
    if a is b:
        return a
    if _CATEGORY[a.kind] != _CATEGORY[b.kind]:
        a, b = (a, b) if _CATEGORY[a.kind] > _CATEGORY[b.kind] else (b, a)
        return complex128 if a is complex64 and b is float64 else a
    if bfloat16 in (a, b):
        other = b if a is bfloat16 else a
        return float32 if other is float16 else other
    return as_dtype(np.promote_types(a.np, b.np))
