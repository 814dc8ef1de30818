"""Functions that put numbers in order. Where they stand is found by NumPy, of numbers that are there; what is taken from these places is recorded as any such taking."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from aotgrad.ir.ops.common import norm_dim
from aotgrad_runtime import modes
from aotgrad_runtime.arrays import decode
from aotgrad_runtime.dtypes import float32, float64, int32, int64
from aotgrad_runtime.errors import AotgradDTypeError, AotgradNotImplementedError, AotgradRuntimeError, AotgradTypeError
from aotgrad_runtime.tensor import Tensor

from .eager import Dual, rename
from .factories import zeros
from .further import beside, f
from .ledger import twin
from .trace import Traced, user_loc

__all__ = ["ORDERED", "ORDERED_METHODS"]


class _Pair(NamedTuple):
    values: Any
    indices: Any


def _pair(name: str) -> type[_Pair]:
    """A class of results under its function's name, as torch has one of each."""
    def text(self: Any) -> str:
        return f"aotgrad.return_types.{name}(\nvalues={self.values!r},\nindices={self.indices!r})"

    return type(name, (_Pair,), {"__slots__": (), "__repr__": text, "__doc__": f"What ``{name}`` returns.", "__module__": __name__})


_sorted, _top, _middle, _kth = _pair("sort"), _pair("topk"), _pair("median"), _pair("kthvalue")


def _numbers(x: Any, name: str) -> Any:
    x = twin(x)
    if isinstance(x, Traced):
        raise AotgradTypeError(f"{user_loc()}: {name} needs numbers, which a traced value has only when the code runs; do it outside of the compiled function and pass "
                               "the places as an argument")
    if not isinstance(x, Tensor):
        raise AotgradTypeError(f"{user_loc()}: {name} takes a tensor, not {type(x).__name__}")
    if x._dtype.is_complex:
        raise AotgradDTypeError(f"{user_loc()}: {name}: dtype {x._dtype.name} has no order; give the parts (x.real, x.imag)")
    return decode(x._data)


def _order(numbers: Any, dim: int, descending: bool) -> Any:
    """Places in order, equal ones as they stand; NaN is the largest."""
    if not descending:
        return np.argsort(numbers, axis=dim, kind="stable")
    return numbers.shape[dim] - 1 - np.flip(np.argsort(np.flip(numbers, dim), axis=dim, kind="stable"), dim)


def _index(places: Any, x: Any) -> Any:
    return beside(np.asarray(places, np.int64, order="C"), x)


def _taken(x: Any, dim: int, index: Any, node: str) -> Any:
    out = f.gather(x, dim, index) if x.ndim else f.clone(x)
    if type(out) is Tensor and out._node is not None:
        rename(out._node, node)
    return out


def argsort(input: Any, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    """Places of the elements along ``dim`` in order, equal ones as they stand; NaN counts as the largest.

    >>> import aotgrad as ag
    >>> ag.argsort(ag.tensor([3.0, 1.0, 2.0]))
    tensor([1, 2, 0])
    """
    numbers = _numbers(input, "argsort")
    d = norm_dim(dim, input.ndim)
    return _index(_order(numbers, d, descending) if input.ndim else 0, input)


def sort(input: Any, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Any:
    """Elements along ``dim`` in order, and where they stood: (values, indices). Equal ones stay in their order, NaN counts as the largest.

    >>> import aotgrad as ag
    >>> ag.tensor([3.0, 1.0, 2.0]).sort().values
    tensor([1., 2., 3.])
    """
    index = argsort(input, dim, descending)
    return _sorted(_taken(input, dim, index, "SortBackward0"), index)


def msort(input: Any) -> Any:
    """Elements along the first dim in order."""
    return sort(input, 0)[0]


def topk(input: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """The ``k`` largest (or smallest) elements along ``dim`` in order, and where they stand: (values, indices).

    >>> import aotgrad as ag
    >>> ag.topk(ag.tensor([1.0, 4.0, 3.0]), 2).indices
    tensor([1, 2])
    """
    numbers, d = _numbers(input, "topk"), norm_dim(dim, input.ndim)
    if not 0 <= k <= (numbers.shape[d] if input.ndim else 1):
        raise AotgradRuntimeError(f"{user_loc()}: topk: selected index k out of range: {k} of {list(input.shape)} along dim {dim}")
    index = _index(np.take(_order(numbers, d, largest), range(k), d) if input.ndim else 0, input)
    return _top(_taken(input, d, index, "TopkBackward0"), index)


def _at(input: Any, dim: int, k: int, keepdim: bool, name: str, nan_wins: bool, made: type[_Pair]) -> Any:
    numbers, d = _numbers(input, name), norm_dim(dim, input.ndim)
    if not input.ndim:
        return made(f.clone(input), _index(0, input))
    order = _order(numbers, d, False)
    places = np.take(order, [k], d)
    if nan_wins and numbers.dtype.kind == "f":  # the first of them
        missing = np.isnan(numbers)
        places = np.where(missing.any(d, keepdims=True), missing.argmax(d, keepdims=True), places)
    index = _index(places, input)
    values = _taken(input, d, index, f"{name.capitalize()}Backward{int(name == 'median')}")
    return made(values, index) if keepdim else made(f.squeeze(values, d), f.squeeze(index, d))


def kthvalue(input: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """The ``k``-th smallest element along ``dim`` (from 1), and where it stands: (values, indices)."""
    if not 1 <= k <= (input.shape[dim] if input.ndim else 1):
        raise AotgradRuntimeError(f"{user_loc()}: kthvalue(): selected number k out of range for dimension {dim}: {k} of {list(input.shape)}")
    return _at(input, dim, k - 1, keepdim, "kthvalue", False, _kth)


def median(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The middle element in order, the lower of two: of everything, or along ``dim`` with its place, (values, indices). NaN where there is one.
    The middle of everything shares its derivative evenly among the elements equal to it.

    >>> import aotgrad as ag
    >>> ag.median(ag.tensor([4.0, 1.0, 3.0, 2.0]))
    tensor(2.)
    """
    if dim is not None:
        if input.ndim and not input.shape[dim]:
            raise AotgradRuntimeError(f"{user_loc()}: median(): expected a dim that has elements, not dim {dim} of {list(input.shape)}")
        return _at(input, dim, (max(input.shape[dim] if input.ndim else 1, 1) - 1) // 2, keepdim, "median", True, _middle)
    flat = f.reshape(input, (-1,))
    if not flat.shape[0]:
        return flat.new_full((), float("nan"))
    middle = _at(flat.detach(), 0, (flat.shape[0] - 1) // 2, False, "median", True, _middle)[0]
    equal = decode(flat._data) == decode(middle._data) if middle._data == middle._data else flat._data != flat._data
    out = f.amax(f.index_select(flat, 0, _index(np.flatnonzero(equal), flat)))  # those that share its derivative, as PyTorch has it
    if type(out) is Tensor and out._node is not None:
        rename(out._node, "MedianBackward0")
    return out


# ---- sets and counts --------------------------------------------------------------------------------------------------------------------

def unique(input: Any, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> Any:
    """The different elements in order (with ``dim``: the different slices); then, where asked for, which of them each element is, and how many there are of each."""
    numbers = _numbers(input, "unique")
    axis = None if dim is None else norm_dim(dim, input.ndim)
    _, first, inverse, counts = np.unique(numbers, return_index=True, return_inverse=True, return_counts=True, axis=axis, equal_nan=False)
    found = [f.index_select(f.reshape(input, (-1,)) if axis is None else input, axis or 0, _index(first, input))]
    if return_inverse:
        found.append(_index(inverse.reshape(numbers.shape if axis is None else -1), input))
    if return_counts:
        found.append(_index(counts, input))
    return found[0] if len(found) == 1 else tuple(found)


def bincount(input: Any, weights: Any = None, minlength: int = 0) -> Any:
    """How often each whole number from 0 stands in a vector, or the sum of its weights."""
    numbers = _numbers(input, "bincount")
    if numbers.dtype.kind not in "iu":
        raise AotgradNotImplementedError(f"{user_loc()}: bincount counts whole numbers; input is {input._dtype.name}")
    if numbers.ndim != 1 or (numbers < 0).any():
        raise AotgradRuntimeError(f"{user_loc()}: bincount only supports 1-d non-negative integral inputs.")
    given = None if weights is None else _numbers(weights, "bincount")
    if given is not None and given.shape != numbers.shape:
        raise AotgradRuntimeError(f"{user_loc()}: bincount: weights should be 1-d and have the same length as input: {list(given.shape)} and {list(numbers.shape)}")
    places = numbers.astype(np.int64)
    if given is None:
        return _index(np.bincount(places, None, minlength), input)
    if minlength < 0:
        raise AotgradRuntimeError(f"{user_loc()}: bincount: minlength should be >= 0, not {minlength}")
    sums = f.index_add(zeros(max(int(places.max(initial=-1)) + 1, minlength), dtype=float64), 0, _index(places, None), f.astype(weights, float64))
    return f.astype(sums, float32) if weights._dtype is float32 else sums


def searchsorted(sorted_sequence: Any, input: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None) -> Any:
    """Where numbers belong in rows that are in order: before equal elements, or behind them (``right``, or ``side="right"``)."""
    rows = _numbers(sorted_sequence, "searchsorted")
    number = not isinstance(input, Tensor)
    values = np.asarray(input) if number else _numbers(input, "searchsorted")
    if side not in (None, "left", "right") or right and side == "left":
        raise AotgradRuntimeError(f"{user_loc()}: searchsorted: side={side!r} and right={right} do not say one thing; give one of them")
    where: Any = "right" if right or side == "right" else "left"
    if rows.ndim == 1:
        found = np.searchsorted(rows, values, where)
    else:
        if rows.ndim == 0 or rows.shape[:-1] != values.shape[:-1]:
            raise AotgradRuntimeError(f"{user_loc()}: searchsorted: boundaries {list(rows.shape)} should be 1-d, or match {list(values.shape)} in all dims but the last")
        found = np.empty(values.shape, np.int64)
        for at in np.ndindex(rows.shape[:-1]):
            found[at] = np.searchsorted(rows[at], values[at], where)
    return beside(np.asarray(found, (int32 if out_int32 else int64).np), sorted_sequence if number else input)


def bucketize(input: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    """``searchsorted(boundaries, input)``: the number of the interval that each element is in."""
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


def histc(input: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """How many elements are in each of ``bins`` equal intervals from ``min`` to ``max`` (of all elements, where both are equal)."""
    numbers = _numbers(input, "histc").reshape(-1)
    if isinstance(input, Dual) or input._requires_grad and modes.state.grad:
        raise AotgradNotImplementedError(f"{user_loc()}: histc counts, which has no derivative; take it of x.detach()")
    low, high = (numbers.min(), numbers.max()) if min == max and numbers.size else (min, max)
    if low == high:
        low, high = low - 1, high + 1
    return beside(np.histogram(numbers, bins, (float(low), float(high)))[0].astype(input._dtype.np), input)


_BOTH: list[Any] = [argsort, bincount, histc, kthvalue, median, msort, sort, topk, unique]
ORDERED: dict[str, Callable[..., Any]] = {g.__name__: g for g in (*_BOTH, bucketize, searchsorted)}
ORDERED_METHODS: dict[str, Callable[..., Any]] = {g.__name__: g for g in _BOTH}
