"""Public functions of one or two tensors that compute nothing element by element: what they are, and their parts."""

from __future__ import annotations

from typing import Any

import numpy as np

from aotgrad_runtime.arrays import nested
from aotgrad_runtime.dtypes import bool_
from aotgrad_runtime.errors import AotgradNotImplementedError, AotgradRuntimeError, AotgradTypeError
from aotgrad_runtime.tensor import Tensor

from . import ledger
from .eager import Dual
from .trace import Traced, user_loc

__all__ = ["allclose", "conj", "detach", "equal", "imag", "is_complex", "is_floating_point", "is_inference", "is_nonzero", "is_same_size", "is_signed", "is_tensor",
           "numel", "positive", "real", "stop_gradient"]


def stop_gradient(x: Any) -> Any:
    """The value of ``x`` as a constant: no derivative flows through it, in any mode.

    >>> import aotgrad as ag
    >>> float(ag.grad(lambda x: x * ag.stop_gradient(x))(3.0))
    3.0
    """
    return x.detach() if isinstance(x, Tensor) else x


def numel(input: Any) -> Any:
    """The number of elements."""
    return input.numel()


def is_floating_point(input: Any) -> bool:
    """Whether the dtype of ``input`` is a float."""
    return bool(input.is_floating_point())


def is_tensor(obj: Any) -> bool:
    """Whether ``obj`` is a tensor."""
    return isinstance(obj, Tensor)


def _numbers(x: Any) -> Any:
    if isinstance(x, Traced):
        raise AotgradTypeError(f"{user_loc()}: a traced value has no numbers yet to be compared in Python; compare elementwise with ==")
    found = x._data if isinstance(x, Tensor) else nested(x, "an argument")
    if found.dtype.kind not in "biufc":
        raise AotgradTypeError(f"{user_loc()}: tensors, arrays and numbers are compared, not {type(x).__name__}")
    return found


def is_complex(input: Any) -> bool:
    """Whether the dtype of ``input`` is complex."""
    return bool(input.is_complex())


def is_signed(input: Any) -> bool:
    """Whether the dtype of ``input`` has negative numbers."""
    return bool(input.is_signed())


def is_inference(input: Any) -> bool:
    """Whether ``input`` was made in ``inference_mode``."""
    return bool(input.is_inference())


def is_same_size(input: Any, other: Any) -> bool:
    """Whether two tensors have the same shape."""
    return tuple(input.shape) == tuple(other.shape)


def is_nonzero(input: Any) -> bool:
    """Whether a tensor of one element holds another number than 0; of more or fewer elements that is an error."""
    if input.numel() != 1:
        raise AotgradRuntimeError(f"{user_loc()}: Boolean value of Tensor with {'more than one value is ambiguous' if input.numel() else 'no values is ambiguous'}")
    return bool(input)


def positive(input: Any) -> Any:
    """The tensor itself; bools have no sign."""
    if input._dtype is bool_:
        raise AotgradRuntimeError(f"{user_loc()}: The `+` operator, on a bool tensor is not supported.")
    return input


def real(input: Any) -> Any:
    """The real part."""
    return _part(input, "real") if input._dtype.is_complex else input


def imag(input: Any) -> Any:
    """The imaginary part of a complex tensor."""
    if not input._dtype.is_complex:
        raise AotgradRuntimeError(f"{user_loc()}: imag is not implemented for tensors with non-complex dtypes.")
    return _part(input, "imag")


def conj(input: Any) -> Any:
    """The complex conjugate: of what is not complex, the tensor itself."""
    return _part(input, "conj") if input._dtype.is_complex else input


def _part(x: Any, name: str) -> Any:
    if isinstance(x, (Traced, Dual)) or x._requires_grad:
        raise AotgradNotImplementedError(f"{user_loc()}: {name} of a complex tensor has no derivative and cannot be compiled; take it of x.detach()")
    out = ledger.detach(x)
    out._data = np.conj(x._data) if name == "conj" else getattr(x._data, name)
    return out


def equal(input: Any, other: Any) -> bool:
    """Whether shapes and all elements are equal."""
    return bool(np.array_equal(_numbers(input), _numbers(other)))


def allclose(input: Any, other: Any, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """Whether all elements agree within ``atol + rtol * |other|``."""
    for what, x in (("rtol", rtol), ("atol", atol)):
        if isinstance(x, (Tensor, np.ndarray)) and x.ndim or not hasattr(x, "__float__"):
            raise AotgradTypeError(f"allclose(): argument {what!r} must be a number, not {type(x).__name__}")
    return bool(np.allclose(_numbers(input), _numbers(other), rtol=rtol, atol=atol, equal_nan=equal_nan))


def detach(input: Any) -> Any:
    """The same memory without a graph."""
    return input.detach()
