"""``Parameter``: a tensor that is learned. A kind of ``Tensor`` of its own, whose results are plain tensors."""

from __future__ import annotations

from typing import Any

from .errors import AotgradTypeError
from .tensor import Tensor, wrap
from .watched import share

__all__ = ["Parameter"]


class Parameter(Tensor):
    """A tensor that is learned: ``Parameter(data, requires_grad=True)``. It shares the memory of ``data`` (None: no elements); assigned to an attribute of a module, it
    is among its ``parameters()``. What is computed from it is a plain ``Tensor``; copies and pickles of it are parameters.

    >>> import aotgrad as ag
    >>> p = ag.nn.Parameter(ag.ones(2))
    >>> p
    Parameter containing:
    tensor([1., 1.], requires_grad=True)
    >>> type(p).__name__, type(p * 2).__name__
    ('Parameter', 'Tensor')
    """

    __slots__ = ()
    _copies_grad = False  # copies of parameters start without one, as in torch

    def __new__(cls, data: Any = None, requires_grad: bool = True) -> Any:
        """Raises ``AotgradTypeError`` for what is no tensor."""
        if data is None:
            data = Tensor(0)
        elif not isinstance(data, Tensor):
            raise AotgradTypeError(f"Parameter: data must be a tensor, not {type(data).__name__}; ag.tensor({type(data).__name__}) makes one")
        return share(data, wrap(data._data, cls)).requires_grad_(requires_grad)

    def __init__(self, data: Any = None, requires_grad: bool = True) -> None:
        pass

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"
