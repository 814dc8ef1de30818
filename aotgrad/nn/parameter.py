"""``Buffer``: a tensor that a module finds when it becomes its attribute, and that is not learned (``Parameter`` is in the runtime)."""

from __future__ import annotations

from typing import Any

from aotgrad_runtime.errors import AotgradTypeError
from aotgrad_runtime.parameter import Parameter
from aotgrad_runtime.tensor import Tensor, wrap
from aotgrad_runtime.watched import share

__all__ = ["Buffer", "Parameter"]


class _BufferType(type):
    def __instancecheck__(cls, x: Any) -> bool:
        return isinstance(x, Tensor) and "_is_buffer" in x.__dict__


class Buffer(metaclass=_BufferType):
    """A tensor that is part of a module's state and not learned: ``Buffer(data, persistent=True)``. Assigned to an attribute, it is among its ``buffers()``.

    >>> import aotgrad as ag
    >>> isinstance(ag.nn.Buffer(ag.ones(2)), ag.nn.Buffer)
    True
    """

    def __new__(cls, data: Any = None, *, persistent: bool = True) -> Any:
        """A marked tensor. Raises ``AotgradTypeError`` for what is no tensor."""
        if data is None:
            data = Tensor(0)
        elif not isinstance(data, Tensor):
            raise AotgradTypeError(f"Buffer: data must be a tensor, not {type(data).__name__}; ag.tensor({type(data).__name__}) makes one")
        out = share(data, wrap(data._data))
        out.__dict__.update(_is_buffer=True, persistent=persistent)
        return out
