"""DLPack: memory shared with other libraries. NumPy reads and writes the structure; what it has no dtype for (bfloat16) passes it as 16-bit integers.

The dtype lies in the structure that a capsule points to, which is made for each export: whoever gets the capsule may write there.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np

from .errors import AotgradRuntimeError, AotgradTypeError

__all__ = ["exported", "read"]

Array = np.ndarray[Any, Any]
_name_of: Final = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
_address_of: Final = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
_TENSOR_AT: Final = {b"dltensor": 0, b"dltensor_versioned": 32}  # where the tensor begins in what a capsule of this name points to: after version, owner, deleter, flags
_DEVICE_AT, _KIND_AT = 8, 20  # in the tensor: after its address; after device and rank
_UINT, _BFLOAT = 1, 4  # kinds of numbers, a byte each; the next byte counts their bits


def _bytes(capsule: Any, at: int) -> Any:
    name = _name_of(capsule)
    if name not in _TENSOR_AT:
        raise AotgradRuntimeError("from_dlpack received an invalid capsule. Note that DLTensor capsules can be consumed only once, so you might have already constructed "
                                  "a tensor from it once.")
    return (ctypes.c_uint8 * 8).from_address(_address_of(capsule, name) + _TENSOR_AT[name] + at)


class _Source:
    """What NumPy reads from: another library's object, or a capsule. ``bfloat16``: whether the numbers are, which are shown as integers."""

    def __init__(self, source: Any) -> None:
        self.source, self.bfloat16 = source, False

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self.source if _is_capsule(self.source) else self.source.__dlpack__(**options)
        kind = _bytes(capsule, _KIND_AT)
        if kind[0] == _BFLOAT and kind[1] == 16:
            self.bfloat16, kind[0] = True, _UINT
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        if _is_capsule(self.source):
            kind, number = np.frombuffer(bytes(_bytes(self.source, _DEVICE_AT)), np.int32).tolist()
            return kind, number
        found: tuple[int, int] = self.source.__dlpack_device__()
        return found


def _is_capsule(source: Any) -> bool:
    return type(source).__name__ == "PyCapsule"


def read(source: Any) -> tuple[Array, bool]:
    """An array on the memory of ``source``, and whether its integers are the bits of bfloat16."""
    reader = _Source(source)
    try:
        return np.from_dlpack(reader), reader.bfloat16
    except AotgradRuntimeError:
        raise
    except (BufferError, RuntimeError, TypeError, AttributeError) as error:
        raise AotgradTypeError(f"cannot read {type(source).__name__} by DLPack: {error}") from error


def exported(data: Array, bfloat16: bool, **options: Any) -> Any:
    """A capsule for another library."""
    capsule = data.__dlpack__(**{k: v for k, v in options.items() if v is not None})
    if bfloat16:
        _bytes(capsule, _KIND_AT)[0] = _BFLOAT
    return capsule
