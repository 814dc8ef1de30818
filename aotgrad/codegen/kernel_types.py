"""Types of the kernel level: MLIR's text, with what code generation needs to know beside it.

A type is a ``str`` (``f64``, ``vector<8xf64>``, ``memref<?xf64>``, ``index``), so it prints as it stands; ``KType`` adds the element
dtype, because MLIR's integers have no sign and a bool is ``i1`` in registers and ``i8`` in memory.
"""

from __future__ import annotations

import functools
from typing import Any, Final

from aotgrad_runtime import dtypes
from aotgrad_runtime.dtypes import DType
from aotgrad_runtime.errors import AotgradNotImplementedError, AotgradTypeError

__all__ = ["INDEX", "MATH_OPS", "KType", "as_ktype", "memref", "register", "with_lanes"]


class KType(str):
    """A kernel-level type. ``dtype``: element dtype (None: index); ``lanes``: 1 for scalars; ``mem``: a buffer."""

    __slots__ = ("dtype", "elem", "lanes", "mem")
    dtype: DType | None
    elem: str
    lanes: int
    mem: bool

    def __new__(cls, text: str, dtype: DType | None, elem: str, lanes: int = 1, mem: bool = False) -> KType:
        self = super().__new__(cls, text)
        self.dtype, self.elem, self.lanes, self.mem = dtype, elem, lanes, mem
        return self

    @property
    def kind(self) -> str:
        """``"f"``, ``"i"``, ``"u"``, ``"b"`` or ``"x"`` (index)."""
        return self.dtype.kind if self.dtype else "x"

    @property
    def bits(self) -> int:
        """Width of one element in registers."""
        return 64 if self.dtype is None else 1 if self.dtype.kind == "b" else 8 * self.dtype.itemsize


#: Functions of floats: ``math.NAME``.
MATH_OPS: Final = frozenset((
    "absf", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "copysign", "cos", "cosh", "erf", "erfc", "exp", "exp2", "expm1", "floor", "fma",
    "log", "log10", "log1p", "log2", "powf", "round", "roundeven", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"))
INDEX: Final = KType("index", None, "index")


def _elem(dtype: DType) -> str:
    if dtype.is_complex:
        raise AotgradNotImplementedError(f"dtype {dtype.name} has no kernel-level form yet; split it into real and imaginary parts first")
    return {"ui8": "i8"}.get(dtype.mlir, dtype.mlir)


@functools.lru_cache(maxsize=512)
def register(dtype: DType | None, lanes: int = 1) -> KType:
    """The type of a value in registers: a scalar, or a vector of ``lanes``; ``None`` is index.

    >>> register(dtypes.float64, 8), register(dtypes.bool_)
    ('vector<8xf64>', 'i1')
    """
    elem = "index" if dtype is None else _elem(dtype)
    return KType(elem if lanes == 1 else f"vector<{lanes}x{elem}>", dtype, elem, lanes)


@functools.lru_cache(maxsize=64)
def memref(dtype: DType) -> KType:
    """The type of a flat buffer of ``dtype``.

    >>> memref(dtypes.bool_)
    'memref<?xi8>'
    """
    elem = "i8" if dtype.kind == "b" else _elem(dtype)
    return KType(f"memref<?x{elem}>", dtype, elem, 1, True)


def with_lanes(t: KType, lanes: int) -> KType:
    """The same element in another number of lanes."""
    return register(t.dtype, lanes)


@functools.lru_cache(maxsize=512)
def _parse(text: str) -> KType:
    body, lanes = text, 1
    if text.startswith("memref<?x") and text.endswith(">"):
        return memref(dtypes.from_mlir(text[9:-1]))
    if text.startswith("vector<") and text.endswith(">"):
        count, _, body = text[7:-1].partition("x")
        if not count.isdigit():
            raise AotgradTypeError(f"kernel-level type {text!r} is not understood; vectors have one dimension, as in vector<8xf64>")
        lanes = int(count)
    return register(None if body == "index" else dtypes.from_mlir(body), lanes)


def as_ktype(t: Any) -> KType:
    """``t`` itself, or the type that its text means (integers signed); ``AotgradTypeError`` for text that is no kernel-level type."""
    return t if type(t) is KType else _parse(str(t))
