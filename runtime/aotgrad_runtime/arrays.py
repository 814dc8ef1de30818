"""Numbers, nested sequences and arrays as ndarrays of a supported dtype; bfloat16 as its 16-bit storage; the default dtype."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from . import dtypes
from .dtypes import DType
from .errors import AotgradDTypeError, AotgradRuntimeError, AotgradTypeError, AotgradValueError
from .tape import Value

__all__ = [
    "DTYPES", "array_of", "check_kind", "converted", "decode", "defaults", "encode_bfloat16", "get_default_dtype", "held", "kinds_in", "native", "overflow",
    "refusal", "set_default_dtype",
]

Array = np.ndarray[Any, Any]
DTYPES: Final[dict[Any, DType]] = {d.np: d for d in dtypes.ALL}  # uint16 is bfloat16's storage and nothing else


class _Defaults:
    __slots__ = ("changed", "complex", "dtype")

    def __init__(self) -> None:
        self.dtype, self.complex = dtypes.float32, dtypes.complex64
        self.changed: list[Callable[[], None]] = []  # called when another dtype has become the default


defaults: Final = _Defaults()


def get_default_dtype() -> DType:
    """The dtype of tensors made from Python floats: float32 unless set otherwise."""
    return defaults.dtype


def set_default_dtype(dtype: object) -> None:
    """Sets the dtype of tensors made from Python floats; complex numbers follow it. Raises ``AotgradTypeError`` for anything but a float dtype."""
    found = dtypes.as_dtype(dtype)
    if not found.is_floating_point:
        raise AotgradTypeError(f"only floating-point types are supported as the default type, not {found.name}")
    before, defaults.dtype = defaults.dtype, found
    defaults.complex = dtypes.complex128 if found is dtypes.float64 else dtypes.complex64
    if found is not before:
        for told in defaults.changed:
            told()


def decode(data: Array) -> Array:
    """The numbers of an array: itself, or float32 for bfloat16 storage.

    >>> decode(np.array([0x3FC0], np.uint16))
    array([1.5], dtype=float32)
    """
    if data.dtype != np.uint16:
        return data
    return np.left_shift(data, 16, dtype=np.uint32).view(np.float32)


def encode_bfloat16(data: Array) -> Array:
    """Float values rounded to bfloat16 storage (to nearest, ties to even); NaN stays NaN."""
    bits = np.ascontiguousarray(data, np.float32).view(np.uint32).reshape(data.shape)
    rounded = (bits + (((bits >> 16) & 1) + 0x7FFF).astype(np.uint32)) >> 16
    return np.where(np.isnan(data), 0x7FC0, rounded).astype(np.uint16)


def converted(data: Array, dtype: DType) -> Array:
    """A fresh array of another dtype."""
    values = decode(data)
    if dtype is dtypes.bfloat16:
        return encode_bfloat16(values)
    if values.dtype.kind == "c" and dtype.kind != "c":
        raise AotgradTypeError(f"complex values cannot become {dtype.name}; take the real part first")
    with np.errstate(invalid="ignore", over="ignore"):
        return values.astype(dtype.np)


class _OverflowError(AotgradRuntimeError, OverflowError):
    """A number that an integer dtype does not hold."""


def overflow(dtype: DType) -> Exception:
    """The error for a number that does not fit."""
    return _OverflowError(f"value cannot be converted to type {dtype.name} without overflow")


def held(values: Any, dtype: DType) -> Array:
    """Numbers as a fresh array of ``dtype``. Raises where an integer dtype does not hold one of them; negative integers wrap into unsigned dtypes, as in PyTorch.

    >>> held([-1, 255], dtypes.uint8)
    array([255, 255], dtype=uint8)
    """
    data = np.asarray(values)
    if data.dtype.kind not in "biufc":
        raise overflow(dtype) if isinstance(values, int) else AotgradTypeError(f"a number is needed, not {type(values).__name__} ({values!r:.40})")
    if data.dtype == np.uint16:  # numbers here, not bfloat16
        data = data.astype(np.int64)
    if dtype.kind in "iu" and data.size:
        info = np.iinfo(dtype.np)
        if not ((data >= (info.min or -info.max * (data.dtype.kind in "iub"))) & (data <= info.max)).all():
            raise overflow(dtype)
    return converted(data, dtype)


def check_kind(data: Any) -> None:
    """Refuses masked arrays and ``numpy.matrix``, whose arithmetic is another; other subclasses of ndarray count as arrays."""
    if type(data) is not np.ndarray and any(k.__name__ in ("MaskedArray", "matrix") and k.__module__.startswith("numpy") for k in type(data).__mro__):
        how = "data.filled(value), and handle the mask yourself" if hasattr(data, "mask") else "np.asarray(data)"
        raise AotgradTypeError(f"{type(data).__name__} is not supported: its arithmetic differs from that of arrays; pass {how}")


_REFUSED: Final = {  # by kind of dtype: what such an array is, and what to do
    "O": ("holds Python objects", "make numbers of one shape of them (np.array(x, dtype=float), or np.stack of the parts)"),
    "U": ("holds text", "convert it to numbers (x.astype(float))"), "S": ("holds bytes", "convert it to numbers (x.astype(float))"),
    "M": ("holds dates", "convert them to numbers of a unit ((x - x[0]) / np.timedelta64(1, 's'))"),
    "m": ("holds times", "convert them to numbers of a unit (x / np.timedelta64(1, 's'))"),
    "V": ("holds records", "use its fields one by one (x['name'])"),
    "c": ("is complex, which few operations take yet", "give the real and the imaginary part (x.real, x.imag)"),
    "u": ("is not one that is computed with", "convert it (x.astype(np.int64))"), "f": ("is not one that is computed with", "convert it (x.astype(np.float64))"),
}


def refusal(dtype: Any) -> str | None:
    """Why arrays of a NumPy dtype cannot be computed with, and what to do; None where they can.

    >>> refusal(np.dtype("U3"))
    'dtype <U3 holds text; convert it to numbers (x.astype(float))'
    """
    plain = dtype.newbyteorder("=")
    if plain in DTYPES and plain != np.uint16 and plain.kind != "c":
        return None
    what, do = _REFUSED.get(dtype.kind, ("is not known", "convert it to numbers (x.astype(float))"))
    return f"dtype {dtype} {what}; {do}"


def native(data: Array) -> Array:
    """The array in native byte order; raises ``AotgradTypeError`` for a dtype that is not supported."""
    if type(data) is not np.ndarray:
        check_kind(data)
    if data.dtype in DTYPES and data.dtype != np.uint16:
        return data if type(data) is np.ndarray else data.view(np.ndarray)
    if data.dtype.newbyteorder("=") not in DTYPES or data.dtype == np.uint16:
        raise AotgradTypeError(refusal(data.dtype) or "")
    return data.astype(dtypes.as_dtype(data.dtype).np)


_MOST_DIMS: Final = 64  # NumPy's


def _first_ragged(data: Any, depth: int = 0) -> str | None:
    """Where nested sequences stop being rectangular, in PyTorch's words."""
    while isinstance(data, Sequence) and not isinstance(data, str) and data:
        sizes = [len(d) if isinstance(d, Sequence) else None for d in data]
        for size in sizes:
            if size != sizes[0]:
                return f"expected sequence of length {sizes[0]} at dim {depth + 1} (got {size})" if None not in (size, sizes[0]) else None
        data, depth = [e for d in data if isinstance(d, Sequence) for e in d], depth + 1
    return None


def _leaves(data: Any) -> Iterator[Any]:
    stack = [iter([data])]
    while stack:
        for item in stack[-1]:
            if isinstance(item, (list, tuple)):
                stack.append(iter(item))
                break
            yield item
        else:
            stack.pop()


def kinds_in(data: Any, what: str = "data") -> set[type]:
    """The types of what is in nested sequences; looking at types alone is a tenth of the work of looking at every number."""
    if not isinstance(data, (list, tuple)):
        return {type(data)}
    found: set[type] = set()
    level, depth = [data], 0
    while level:
        deeper: dict[int, Any] = {}  # each once: a list that holds itself twice would double at every level
        for x in level:
            kinds = set(map(type, x))
            inner = {k for k in kinds if issubclass(k, (list, tuple))}
            if inner:
                deeper.update([(id(v), v) for v in x if type(v) in inner])
            found |= kinds - inner
        level, depth = [*deeper.values()], depth + 1
        if level and depth >= _MOST_DIMS:
            raise AotgradValueError(f"{what}: lists are nested more than {_MOST_DIMS} deep, or one holds itself; an array has at most {_MOST_DIMS} dimensions")
    return found


def nested(data: Any, what: str = "data") -> Array:
    """Nested sequences of numbers, or a number, as an array. Raises ``AotgradValueError`` for ragged ones and for those that hold themselves.

    >>> nested([[1, 2], [3]], "x")
    Traceback (most recent call last):
    aotgrad_runtime.errors.AotgradValueError: x: expected sequence of length 2 at dim 1 (got 1)
    """
    kinds_in(data, what)
    try:
        return np.asarray(data)
    except ValueError as error:
        raise AotgradValueError(f"{what}: {_first_ragged(data) or error}") from None


def _kind(x: Any) -> DType | None:
    """The dtype of a tensor, an array or a number; None for all else."""
    if isinstance(x, Value):
        return x._dtype
    if isinstance(x, (np.ndarray, np.generic)):
        return DTYPES.get(x.dtype) if x.dtype != np.uint16 else None
    return {bool: dtypes.bool_, int: dtypes.int64, float: defaults.dtype, complex: defaults.complex}.get(type(x))


def _common(data: Any) -> DType | None:
    """The dtype that all in nested sequences have in common; None where it is not known of one."""
    kinds = [_kind(leaf) for leaf in _leaves(data)]
    known = sorted({k for k in kinds if k is not None}, key=str)
    return functools.reduce(dtypes.promote_types, known) if None not in kinds else None


def array_of(data: Any, dtype: DType | None) -> Array:
    """A fresh array of ``data``: any nesting of numbers, NumPy values and tensors. Python floats take the default dtype, everything else keeps its own; what is
    mixed has the dtype that all have in common."""
    if isinstance(data, Value):
        return np.array(data._data) if dtype is None or dtype is data._dtype else converted(data._data, dtype)
    strong = any(issubclass(k, (Value, np.ndarray, np.generic)) for k in kinds_in(data))
    if strong and isinstance(data, (list, tuple)):
        dtype = dtype or _common(data)
        data = _stacked(data)
    check_kind(data)
    weak = not strong
    try:
        raw = np.array(data)
    except ValueError as error:
        raise AotgradValueError(_first_ragged(data) or f"data: {error}") from None
    if raw.dtype.kind in "OSUMmV":
        bad = next((leaf for leaf in _leaves(data) if not isinstance(leaf, (int, float, complex, np.number))), data)
        kind = AotgradTypeError if isinstance(bad, str) else AotgradDTypeError
        raise kind(f"data: could not infer a dtype for {type(bad).__name__}; give numbers, arrays or tensors")
    if dtype is None and weak:
        dtype = defaults.dtype if raw.dtype.kind == "f" or not raw.size else defaults.complex if raw.dtype.kind == "c" else None
    raw = native(raw)
    if dtype is None or raw.dtype == dtype.np:
        return raw
    return converted(raw, dtype) if isinstance(data, np.ndarray) else held(raw, dtype)


def _stacked(data: Any) -> Any:
    """Nested lists with tensors as nested lists with their arrays."""
    if isinstance(data, Value):
        return decode(data._data)
    return [_stacked(d) for d in data] if isinstance(data, (list, tuple)) else data
