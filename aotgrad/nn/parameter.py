"""``Parameter`` and ``Buffer``: tensors that a module finds when they become its attributes."""

from __future__ import annotations

from typing import Any

from aotgrad_runtime.errors import AotgradTypeError
from aotgrad_runtime.tensor import Tensor, wrap
from aotgrad_runtime.watched import share

__all__ = ["Buffer", "Parameter"]


class _Flagged(type):
    flag = ""

    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, Tensor) and bool(x.__dict__.get(cls.flag))


def _data(data: Any, what: str) -> Any:
    if data is None:
        return Tensor(0)
    if not isinstance(data, Tensor):
        raise AotgradTypeError(f"{what}: data must be a tensor, not {type(data).__name__}; ag.tensor({type(data).__name__}) makes one")
    return share(data, wrap(data._data))


class _ParameterType(_Flagged):
    flag = "_is_param"


class Parameter(metaclass=_ParameterType):
    """A tensor that is learned: ``Parameter(data, requires_grad=True)``. It shares the memory of ``data``; assigned to an attribute of a module, it is among its
    ``parameters()``. A plain tensor in all else, with a mark that ``isinstance`` asks for.

    >>> import aotgrad as ag
    >>> ag.nn.Parameter(ag.ones(2))
    Parameter containing:
    tensor([1., 1.], requires_grad=True)
    """

    def __new__(cls, data: Any = None, requires_grad: bool = True) -> Any:
        """A marked tensor. Raises ``AotgradTypeError`` for what is no tensor."""
        out = _data(data, "Parameter")
        out.__dict__[cls.flag] = True
        return out.requires_grad_(requires_grad)


class _BufferType(_Flagged):
    flag = "_is_buffer"


class Buffer(metaclass=_BufferType):
    """A tensor that is part of a module's state and not learned: ``Buffer(data, persistent=True)``. Assigned to an attribute, it is among its ``buffers()``.

    >>> import aotgrad as ag
    >>> isinstance(ag.nn.Buffer(ag.ones(2)), ag.nn.Buffer)
    True
    """

    def __new__(cls, data: Any = None, *, persistent: bool = True) -> Any:
        """A marked tensor. Raises ``AotgradTypeError`` for what is no tensor."""
        out = _data(data, "Buffer")
        out.__dict__[cls.flag] = True
        out.__dict__["persistent"] = persistent
        return out
