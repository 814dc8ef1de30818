"""Memory formats: the strides PyTorch gives a shape, and the format PyTorch reads from strides. Strides here count elements, not bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import as_strided

from .errors import AotgradRuntimeError, AotgradTypeError

__all__ = [
    "MemoryFormat", "broadcast", "channels_last", "channels_last_3d", "check_rank", "contiguous_format", "copy_to_strides", "empty", "format_strides", "is_contiguous",
    "is_non_overlapping_and_dense", "pointwise_strides", "preserve_format", "preserved_strides", "suggest_memory_format",
]

Strides = tuple[int, ...]


class MemoryFormat:
    """How the elements of a tensor lie in memory. There is one object per format, compared by identity; it pickles by name."""

    __slots__ = ("name", "order", "rank")
    name: str
    rank: int | None
    order: tuple[int, ...] | None

    def __init__(self, name: str, order: tuple[int, ...] | None = None) -> None:
        self.name, self.order = name, order
        self.rank = None if order is None else len(order)

    def __repr__(self) -> str:
        return f"aotgrad.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_by_name, (self.name,))


contiguous_format: Final = MemoryFormat("contiguous_format")
preserve_format: Final = MemoryFormat("preserve_format")
channels_last: Final = MemoryFormat("channels_last", (1, 3, 2, 0))  # innermost dim first
channels_last_3d: Final = MemoryFormat("channels_last_3d", (1, 4, 3, 2, 0))
_BY_NAME: Final = {f.name: f for f in (contiguous_format, preserve_format, channels_last, channels_last_3d)}


def _by_name(name: str) -> MemoryFormat:
    return _BY_NAME[name]


def check(fmt: object, where: str = "memory_format") -> MemoryFormat:
    """``fmt`` itself; raises ``AotgradTypeError`` for anything that is no memory format."""
    if not isinstance(fmt, MemoryFormat):
        raise AotgradTypeError(f"{where}= must be a memory format such as aotgrad.channels_last, not {type(fmt).__name__}")
    return fmt


def _dense_strides(shape: Sequence[int], order: Sequence[int], least: int = 1) -> Strides:
    """Strides of a dense tensor whose dims from the innermost outwards are ``order``. Sizes count as ``least`` at least."""
    strides, step = [0] * len(shape), 1
    for d in order:
        strides[d] = step
        step *= max(shape[d], least)
    return tuple(strides)


def format_strides(shape: Sequence[int], fmt: MemoryFormat = contiguous_format) -> Strides:
    """Strides of a fresh tensor of ``shape`` in ``fmt``; raises ``AotgradRuntimeError`` if the rank does not fit the format.

    >>> format_strides((2, 3, 4, 5), channels_last)
    (60, 1, 15, 3)
    """
    if fmt.order is None:
        if fmt is preserve_format:
            raise AotgradRuntimeError("memory_format=preserve_format needs a tensor whose format is preserved; give contiguous_format or channels_last")
        return _dense_strides(shape, range(len(shape) - 1, -1, -1))
    check_rank(shape, fmt)
    return _dense_strides(shape, fmt.order, 0)  # as in PyTorch: sizes 0 count as 1 in row-major tensors only


def check_rank(shape: Sequence[object], fmt: MemoryFormat) -> None:
    """Raises ``AotgradRuntimeError`` for a shape of another rank than ``fmt`` is for."""
    if fmt.rank is not None and len(shape) != fmt.rank:
        raise AotgradRuntimeError(f"required rank {fmt.rank} tensor to use {fmt.name} format, but the shape is {list(shape)}")


def is_contiguous(shape: Sequence[int], strides: Sequence[int], fmt: MemoryFormat = contiguous_format) -> bool:
    """Whether the strides are dense in ``fmt``. Dims of size 1 fit any stride; a rank that does not fit the format is False."""
    order: Sequence[int]
    if fmt.order is None:
        if 0 in shape:
            return True
        order = range(len(shape) - 1, -1, -1)
    elif len(shape) != fmt.rank:
        return False
    else:
        order = fmt.order
    expected = 1
    for d in order:
        if shape[d] != 1:
            if strides[d] != expected:
                return False
            expected *= shape[d]
    return True


def _strides_look_like(shape: Sequence[int], strides: Sequence[int], order: Sequence[int]) -> bool:
    """PyTorch's reading of strides as channels last: N1HW needs the format's own strides, N111 with equal strides counts as contiguous."""
    least = 0
    if strides[1] == 0:
        return False
    for d in order:
        if shape[d] == 0 or strides[d] < least or (d == 0 and least == strides[1]):
            return False
        least = strides[d] * shape[d] if shape[d] > 1 else strides[d]
    return True


def suggest_memory_format(shape: Sequence[int], strides: Sequence[int]) -> MemoryFormat:
    """The format an op should keep for a tensor with these strides: channels last where PyTorch reads it so, else contiguous."""
    for fmt in (channels_last, channels_last_3d):
        if fmt.order is not None and len(shape) == fmt.rank and _strides_look_like(shape, strides, fmt.order):
            return fmt
    return contiguous_format


def is_non_overlapping_and_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements fill one block of memory, each once, in some order of the dims."""
    dims = sorted((d for d in range(len(shape)) if shape[d] != 1), key=lambda d: (strides[d], shape[d]))
    expected = 1
    if 0 in shape:
        return is_contiguous(shape, strides)
    for d in dims:
        if strides[d] != expected:
            return False
        expected *= shape[d]
    return True


def _swap_order(shape: Sequence[int], operands: Sequence[Sequence[int]], a: int, b: int) -> int:
    """1 if dim ``a`` lies outside dim ``b``, -1 if inside: the first operand whose strides tell (no zero stride, no tie) decides; 0 if none does."""
    for strides in operands:
        sa, sb = abs(strides[a]), abs(strides[b])
        if sa == 0 or sb == 0:
            continue
        if sa != sb:
            return -1 if sa < sb else 1
        if shape[a] > shape[b]:
            return 1
    return 0


def _order(shape: Sequence[int], operands: Sequence[Sequence[int]]) -> list[int]:
    """The dims from the innermost outwards, as the strides of ``operands`` have them."""
    order = list(range(len(shape) - 1, -1, -1))
    for i in range(1, len(order)):  # an insertion sort that stops at the first clear answer, as PyTorch does: ties keep their place
        moving = i
        for j in range(i - 1, -1, -1):
            answer = _swap_order(shape, operands, order[j], order[moving])
            if answer > 0:
                order[j], order[moving] = order[moving], order[j]
                moving = j
            elif answer < 0:
                break
    return order


def preserved_strides(shape: Sequence[int], strides: Sequence[int]) -> Strides:
    """Strides of a fresh tensor that keeps the layout (``preserve_format``): the same if dense, else dense in the same order of dims.

    >>> preserved_strides((3, 4), (1, 3)), preserved_strides((3, 4), (2, 6)), preserved_strides((3,), (0,))
    ((1, 3), (1, 3), (1,))
    """
    if is_non_overlapping_and_dense(shape, strides):
        return tuple(strides)
    return _dense_strides(shape, _order(shape, [strides]))


def pointwise_strides(shape: Sequence[int], operands: Sequence[Strides], same: bool | None = None) -> Strides:
    """Strides of the result of an elementwise op on operands broadcast to ``shape`` (with zero strides where they are repeated): PyTorch's choice. ``same``: whether
    all have that shape themselves; None: what the strides say.

    All row-major, or all channels last: so is the result. All dense with the same strides: these. Else the dims lie in the order of the first operand that tells.

    >>> pointwise_strides((2, 3, 4, 5), [(60, 1, 15, 3), (60, 20, 5, 1)])
    (60, 1, 15, 3)
    """
    if same is None:
        same = 0 not in shape or all(any(s) for s in operands)  # a number has no layout
    for fmt in (contiguous_format, channels_last) if same else ():
        if all(is_contiguous(shape, s, fmt) for s in operands):
            return format_strides(shape, fmt)
    first = operands[0]
    if same and all(s == first for s in operands) and is_non_overlapping_and_dense(shape, first):
        return first
    order = _order(shape, operands)
    return _dense_strides(shape, order, 1 if order == list(range(len(shape) - 1, -1, -1)) else 0)


def broadcast(x: np.ndarray[Any, Any], shape: Sequence[int], dims: Sequence[int]) -> np.ndarray[Any, Any]:
    """``x`` with its dims at ``dims`` of ``shape`` and repeated elsewhere, without a copy. Dims of size 1 have the strides that PyTorch's ``expand`` gives them."""
    sizes, strides = [1] * len(shape), [-1] * len(shape)
    for d, n, s in zip(dims, x.shape, x.strides):
        sizes[d], strides[d] = n, s
    out = np.broadcast_to(np.reshape(x, sizes), shape)
    if not x.ndim:
        return out
    first = min(dims, default=len(shape))  # dims put in among those of ``x`` step over what follows there, those in front over what is repeated
    for d in reversed(range(len(shape))):
        if d not in dims:
            after = shape if d < first else sizes
            strides[d] = after[d + 1] * strides[d + 1] if d + 1 < len(shape) else x.itemsize
        if d <= first and sizes[d] != shape[d]:
            strides[d] = 0
    wanted = tuple([s if n == m else 0 for s, n, m in zip(strides, sizes, shape)])
    return out if out.strides == wanted else as_strided(x, tuple(shape), wanted, writeable=False)


def empty(shape: Sequence[int], dtype: Any, strides: Strides | None = None) -> np.ndarray[Any, Any]:
    """An uninitialised array of NumPy ``dtype`` with exactly these element strides (dense, in any order of the dims); C order if None."""
    if strides is None:
        return np.empty(shape, dtype)
    base = np.empty(shape, dtype)
    wanted = tuple(s * base.itemsize for s in strides)
    return base if base.strides == wanted else as_strided(base.reshape(-1), tuple(shape), wanted)


def copy_to_strides(array: np.ndarray[Any, Any], strides: Strides | None) -> np.ndarray[Any, Any]:
    """A fresh copy of ``array`` with exactly these element strides."""
    out = empty(array.shape, array.dtype, strides)
    out[...] = array
    return out
