"""``stride()``, ``is_contiguous()`` and ``storage_offset()`` of traced tensors: the memory order that the type has, seen through views.

Arguments and captured tensors with gaps, which are packed when a call begins, answer as they were given; a compiled function that asks is compiled for each.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np

from aotgrad_runtime import memory_format as mf
from aotgrad_runtime import modes
from aotgrad_runtime.errors import AotgradIndexError, AotgradNotImplementedError
from aotgrad_runtime.tensor import Tensor

from . import kernels
from .boundary import told_method
from .ledger import DETACHED, ledger_of, real
from .placement import of_index
from .sizes import plain_size
from .trace import TracedTensor, user_loc

__all__ = ["gaps"]

_OF_PARTS = frozenset(("split", "chunk", "narrow"))


def gaps(x: Any) -> tuple[int, ...] | None:
    """The strides of a tensor or array whose memory is not dense, in elements; None of all else."""
    data = x._data if isinstance(x, Tensor) else x
    if not isinstance(data, np.ndarray) or kernels.dense_order(data) is not False:
        return None
    return tuple([s // data.itemsize for s in data.strides])


def _steps(x: Any) -> list[Any]:
    how = getattr(x._extra, "how", None)
    if how is not None:
        return _of_view(x, x._extra.parent(), how)
    ledger, rank = x._trace.ledger, x.ndim
    if ledger is not None and (real := ledger.reals.get(id(x))) is not None:
        ledger.strided = True
        if (found := gaps(real)) is not None:
            return list(found)
    layout = x._value.type.layout
    return _dense(x.shape, range(rank) if layout is None else layout.order)


def _dense(shape: Sequence[Any], order: Sequence[int]) -> list[Any]:
    out: list[Any] = [1] * len(shape)
    step: Any = 1
    for d in reversed(order):
        out[d], step = step, step if shape[d] == 0 else step * shape[d]
    return out


def _of_view(x: Any, parent: Any, how: tuple[Any, ...]) -> list[Any]:
    if how == DETACHED:
        return _steps(parent)
    if how[0] == "permute":
        return [_steps(parent)[d] for d in how[1]]
    if how[0] == "index":
        own, sizes = _steps(parent), parent.shape
        return list(of_index(how[1].entries, own, lambda d: own[d] * sizes[d] if d < len(own) else 1))  # a new dim reaches as far as the one behind it
    if how[0] == "copied" or how[:2] == ("unsettled", "contiguous"):
        layout = x._value.type.layout
        return _dense(x.shape, range(x.ndim) if layout is None else layout.order)
    if how[0] in ("reshape", "unsettled"):
        found = _with_ones(x, parent)
        if found is not None:
            return found
        if mf.is_contiguous(parent.shape, _steps(parent)):
            return _dense(x.shape, range(x.ndim))
    if how[0] == "call":
        name, lead = how[1].op.name, x.ndim - parent.ndim
        if name in _OF_PARTS:
            return _steps(parent)
        if name == "spread":
            return [0] * lead + [s if n == m else 0 for s, n, m in zip(_steps(parent), parent.shape, x.shape[lead:])]
    raise AotgradNotImplementedError(f"{user_loc()}: a compiled function does not know the strides of this view; ask before it is made, or use reshape() or "
                                     "contiguous(), which serve every memory order")


def _with_ones(x: Any, parent: Any) -> list[Any] | None:
    """Where dims of size 1 were put in or left out."""
    own, others = [plain_size(n) for n in x.shape], [plain_size(n) for n in parent.shape]
    kept = [(n, s) for n, s in zip(others, _steps(parent)) if not _one(n)]
    if [n for n in own if not _one(n)] != [n for n, _ in kept]:
        return None
    out: list[Any] = []
    for n in reversed(own):
        if not _one(n):
            out.append(kept.pop()[1])
        else:
            out.append(out[-1] * x.shape[len(own) - len(out)] if out else 1)
    return out[::-1]


def _one(n: Any) -> bool:
    return isinstance(n, int) and n == 1


def _stride(self: Any, dim: SupportsIndex | None = None) -> Any:
    """Steps between neighbours, in elements, per dimension or of one; as the call that is traced has them."""
    steps = _steps(self)
    if dim is None:
        return tuple(steps)
    d = operator.index(dim)
    if not -len(steps) <= d < len(steps):
        raise AotgradIndexError(f"{user_loc()}: Dimension out of range (expected to be in range of [{-len(steps)}, {len(steps) - 1}], but got {d})")
    return steps[d]


def _storage_offset(self: Any) -> int:
    """Not known in compiled code."""
    raise AotgradNotImplementedError(f"{user_loc()}: storage_offset() is not known in a compiled function, which reads arguments wherever they lie; ask outside, "
                                     "and pass the number as an argument")


@functools.wraps(Tensor.stride)
def _stride_outside(self: Any, dim: SupportsIndex | None = None) -> Any:
    if modes.flags.noting and (ledger := ledger_of()) is not None and real(self):
        ledger.strided = True  # a captured tensor
    return _plain_stride(self, dim)


_plain_stride = Tensor.stride
Tensor.stride = told_method(_stride_outside, "stride")  # type: ignore[method-assign]
TracedTensor.stride = told_method(_stride, "stride")  # type: ignore[method-assign]
TracedTensor.storage_offset = told_method(_storage_offset, "storage_offset")  # type: ignore[method-assign]
