"""Forward mode by hand: levels, dual tensors, and what is in them. Levels nest, and give higher order."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from aotgrad.frontend.boundary import guard
from aotgrad.frontend.dispatch import TORCH, call
from aotgrad.frontend.eager import LEVEL_STEP, Dual, levels
from aotgrad.frontend.eager import make_dual as _make
from aotgrad.frontend.trace import Traced
from aotgrad_runtime import memory_format as mf
from aotgrad_runtime.errors import AotgradRuntimeError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.tape import cell_of, extra_of
from aotgrad_runtime.tensor import Tensor, wrap

__all__ = ["UnpackedDualTensor", "dual_level", "enter_dual_level", "exit_dual_level", "make_dual", "unpack_dual"]


class UnpackedDualTensor(NamedTuple):
    """What ``unpack_dual`` gives: the value, and its tangent or None."""

    primal: Any
    tangent: Any


def enter_dual_level() -> int:
    """Opens a level of forward mode; gives its number, 0 for the outermost. Prefer ``with dual_level():``."""
    # never one of before: what is left of a closed level means nothing in a new one
    number = levels.last = (max(levels.last, levels.level) // LEVEL_STEP + 1) * LEVEL_STEP
    at = len(levels.opened)
    levels.opened[at:] = ((number, levels.level),)  # no call from here on: at its end an interrupt could leave the level open
    levels.level = number
    return at


def exit_dual_level(*, level: int | None = None) -> None:
    """Closes the newest level: tangents made in it are gone."""
    if not levels.opened:
        raise AotgradRuntimeError("Dual level must be a positive number: exit_dual_level() was called and no level is open.")
    if level is not None and level != len(levels.opened) - 1:
        raise AotgradRuntimeError("Trying to exit a forward AD level that was not the last one that was created. This is not supported.")
    _, levels.level = levels.opened[-1]
    del levels.opened[-1]


def _number(level: int | None, what: str) -> int | None:
    if level is None:
        return levels.opened[-1][0] if levels.opened else None
    if not 0 <= level < len(levels.opened):
        raise AotgradRuntimeError(f"{what}: level={level} is not open; {len(levels.opened)} level(s) are")
    return levels.opened[level][0]


def _live(x: Any) -> Any:
    """``x`` without tangents of levels that are closed."""
    while isinstance(x, Dual) and x._level % LEVEL_STEP == 0 and all(n != x._level for n, _ in levels.opened):
        x = x._primal
    return x


def make_dual(tensor: Any, tangent: Any, *, level: int | None = None) -> Any:
    """A dual tensor: a view of ``tensor`` with a ``tangent`` of its shape. A tangent whose dtype or layout differs is converted, else kept as it is.

    >>> import aotgrad as ag
    >>> import aotgrad.autograd.forward_ad as fwAD
    >>> with fwAD.dual_level():
    ...     x = fwAD.make_dual(ag.tensor(3.0), ag.tensor(1.0))
    ...     fwAD.unpack_dual(x * x).tangent
    tensor(6.)
    """
    number = _number(level, "make_dual")
    if number is None:
        raise AotgradRuntimeError("Trying to create a dual Tensor for forward AD but no level exists, make sure to enter_dual_level() first.")
    for x, what in ((tensor, "primal"), (tangent, "tangent")):
        if not isinstance(x, Tensor):
            raise AotgradTypeError(f"make_dual: the {what} must be a Tensor, but got {type(x).__name__}; wrap it with aotgrad.tensor")
        if isinstance(x, Traced):
            raise AotgradTypeError(f"make_dual: the {what} is traced; inside vmap and compiled functions use aotgrad.jvp")
        if not x._dtype.is_differentiable:
            raise AotgradValueError(f"Expected {what} to be floating point or complex, but got: {x._dtype}")
    tensor = _live(tensor)
    if isinstance(tensor, Dual) and tensor._level >= number:
        raise AotgradRuntimeError("Making a dual Tensor based on a Tensor that already has a forward gradient at the same level "
                                  f"{len(levels.opened) - 1 if level is None else level} is not supported.")
    if tuple(tensor.shape) != tuple(tangent.shape):
        raise AotgradRuntimeError("Trying to set a forward gradient that has a different size than that of the original Tensor, this is not supported. Tensor is of size "
                                  f"{list(tensor.shape)} while the given forward gradient is of size {list(tangent.shape)}.")
    out = _make(tensor, _placed(tangent, tensor), number)
    extra = extra_of(out)
    extra.base, extra.cell = (tensor if tensor._base is None else tensor._base), cell_of(tensor)
    return out


def _placed(tangent: Any, tensor: Any) -> Any:
    """The tangent in the dtype and the memory layout of the primal."""
    if tangent._dtype is not tensor._dtype:
        tangent = call(TORCH["astype"], (tangent, tensor._dtype), {})
    if isinstance(tangent, Dual) or tangent._requires_grad or tangent.stride() == tensor.stride():
        return tangent
    return wrap(mf.copy_to_strides(np.asarray(tangent._data), mf.preserved_strides(tuple(tensor.shape), tensor.stride())), type(tangent)._value_type)


def unpack_dual(tensor: Any, *, level: int | None = None) -> UnpackedDualTensor:
    """``(primal, tangent)`` at a level (the newest by default). The tangent is None where there is none, and outside of all levels."""
    number = _number(level, "unpack_dual")
    if not isinstance(tensor, Tensor):
        if number is None:
            return UnpackedDualTensor(tensor, None)
        raise AotgradTypeError(f"unpack_dual: the first argument must be a Tensor, but got {type(tensor).__name__}")
    tensor = _live(tensor)
    if number is None:
        return UnpackedDualTensor(tensor, None)
    mine = isinstance(tensor, Dual) and tensor._level == number
    primal = tensor._primal if mine else tensor
    return UnpackedDualTensor(call(TORCH["reshape"], (primal, tuple(primal.shape)), {}), tensor._tangent if mine else None)


class dual_level:
    """Context in which ``make_dual`` works; tangents do not outlive it. Nested contexts give higher order."""

    def __init__(self) -> None:
        pass  # so that arguments are refused in our words

    def __enter__(self) -> int:
        self.level = enter_dual_level()
        return self.level

    def __exit__(self, *exc: object) -> None:
        at = self.level
        if levels.opened[at:] and not levels.opened[at + 1:]:  # no call, as above
            _, levels.level = levels.opened[at]
            del levels.opened[at]
        else:
            exit_dual_level(level=at)


guard(globals(), __all__)
