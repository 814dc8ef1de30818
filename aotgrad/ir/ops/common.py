"""Type rules and small helpers that the op families share."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from aotgrad_runtime.dtypes import DType, as_dtype, bool_, float64
from aotgrad_runtime.errors import AotgradDimError, AotgradDTypeError, AotgradTypeError, AotgradValueError

from ..opdef import Sample
from ..types import Layout, TensorType

__all__ = ["at_least", "elementwise_rule", "drop_dims", "empty_is_all", "float_samples", "floats", "norm_dim", "norm_dims", "vectorised", "whole", "zero_aware"]

Rule = Callable[[Sequence[TensorType], Mapping[str, Any]], Sequence[TensorType]]


def elementwise_rule(kinds: str = "fciub", out: DType | None = None, first: int = 0) -> Rule:
    """All operands (from ``first``) of one shape, dtype and layout; dtype kind in ``kinds``; the result is the same, or of dtype ``out``."""

    def rule(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Sequence[TensorType]:
        lead = types[first]
        for t in types[first + 1:]:
            if t is not lead and t != lead:
                raise AotgradTypeError(f"elementwise operands differ: {lead} and {t}; cast, broadcast or relayout first")
        for t in types[:first]:
            if (t.shape, t.layout) != (lead.shape, lead.layout):
                raise AotgradTypeError(f"elementwise operands differ in shape or layout: {t} and {lead}")
        if lead.dtype.kind not in kinds:
            instead = "convert it first (x.astype(int)), or combine bools with ^, & and |" if lead.dtype.kind == "b" else \
                f"cast to a {'floating-point' if kinds == 'f' else 'suitable'} dtype first"
            raise AotgradDTypeError(f"dtype {lead.dtype.name} is not accepted here; {instead}")
        return (lead if out is None else TensorType(lead.shape, out, lead.layout),)

    return rule


def compare_rule(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Sequence[TensorType]:
    """Two operands of one type give bool."""
    return elementwise_rule(out=bool_)(types, attrs)


def order_rule(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Sequence[TensorType]:
    """The same, of numbers that have an order."""
    unordered(types[0])
    return compare_rule(types, attrs)


def unordered(t: TensorType) -> None:
    """Refuses complex numbers where an order is needed."""
    if t.dtype.is_complex:
        raise AotgradDTypeError(f"dtype {t.dtype.name} has no order; compare the parts (x.real, x.imag) or the sizes")


def drop_dims(t: TensorType, dims: Sequence[int], dtype: DType | None = None) -> TensorType:
    """The type after reducing ``dims``: what is left keeps its memory order."""
    kept = [d for d in range(t.rank) if d not in dims]
    shape = tuple(t.shape[d] for d in kept)
    layout = None
    if t.layout is not None and not t.layout.blocks:
        order = tuple(kept.index(d) for d in t.layout.order if d in kept)
        layout = None if order == tuple(range(len(kept))) else Layout(order)
    return TensorType(shape, dtype or t.dtype, layout)


def whole(value: Any) -> int | None:
    """A Python integer; None for all else, bools and floats too."""
    try:
        return None if isinstance(value, (bool, float)) else operator.index(value)
    except TypeError:  # such as an array
        return None


def norm_dim(dim: Any, rank: int, what: str = "dim") -> int:
    """A dimension index in range, negative ones counted from the end. Without dimensions 0 and -1 are in range."""
    try:
        if isinstance(dim, (bool, np.bool_)):  # a flag at the wrong place
            raise TypeError
        d = operator.index(dim)
    except TypeError:
        raise AotgradTypeError(f"{what}={dim!r} is {type(dim).__name__}; a whole number is needed") from None
    if not -max(rank, 1) <= d < max(rank, 1):
        most = max(rank, 1)
        of = "" if what == "dim" else f": {what} of {rank} dimension(s)"
        raise AotgradDimError(f"Dimension out of range (expected to be in range of [{-most}, {most - 1}], but got {d}){of}")
    return d % rank if rank else 0


def norm_dims(dim: Any, rank: int, what: str = "dim") -> tuple[int, ...]:
    """Sorted distinct dims from None (all), an int, or a sequence."""
    if dim is None:
        return tuple(range(rank))
    given = dim if isinstance(dim, (tuple, list)) else (dim,)
    out = tuple(sorted(norm_dim(d, rank, what) for d in given))
    if len(set(out)) != len(out):
        raise AotgradValueError(f"{what}={dim!r} names a dimension twice")
    return out if rank else ()


def empty_is_all(canon: Callable[..., Any]) -> Callable[..., Any]:
    """``canon`` of a reduction as torch has it: an empty tuple of dims is all of them. (NumPy's reduces nothing.)"""

    @functools.wraps(canon)
    def torch(b: Any, x: Any, *args: Any, dim: Any = None, **named: Any) -> Any:
        return canon(b, x, *args, dim=None if isinstance(dim, (tuple, list)) and not dim else dim, **named)

    return torch


def floats(b: Any, x: Any, dtype: Any, what: str) -> Any:
    """A public function's operand in ``dtype``, or as floats: NumPy's integers become float64, tensors must be floats already."""
    if dtype is not None:
        return b.to_dtype(x, as_dtype(dtype))
    if x.type.dtype.kind in "fc":
        return x
    if b.torch:
        raise AotgradDTypeError(f"{what}: the input is {x.type.dtype.name}, a floating-point dtype is needed; pass dtype= or convert it first")
    return b.to_dtype(x, float64)


def at_least(b: Any, have: Any, need: Any, what: str) -> None:
    """In a public function: one size is not below another. Checked now, or by a guard at every call."""
    n, m = b.trace.example(have), b.trace.example(need)
    if n is not None and m is not None and n < m:
        raise AotgradValueError(f"{what}: {n} < {m}")
    if not (isinstance(have, int) and isinstance(need, int)):
        b.trace.at_least(have, need)


def vectorised(fn: Callable[..., float]) -> Callable[..., Any]:
    """A function of ``math`` applied to every element in float64, result in the operand's dtype."""

    def apply(*xs: Any) -> Any:
        arrays = [np.asarray(x) for x in xs]
        flat = [a.astype(np.float64).ravel() for a in arrays]
        out = np.array([_quiet(fn, *row) for row in zip(*(f.tolist() for f in flat))], dtype=np.float64)
        return out.reshape(arrays[0].shape).astype(arrays[0].dtype)

    return apply


def _quiet(fn: Callable[..., float], *xs: float) -> float:
    try:
        return fn(*xs)
    except ValueError:
        return float("nan")
    except OverflowError:
        return float("inf")


def zero_aware(best: Any, zeros: Any, upper: bool) -> Any:
    """Extrema in which 0 is above -0, of which NumPy gives either: where one is 0, ``zeros(test)`` says whether ``test`` holds for any of the numbers it is of."""
    if best.dtype.kind != "f" or not np.any(best == 0):
        return best
    positive = zeros(lambda x: (x == 0) & ~np.signbit(x)) if upper else ~zeros(lambda x: (x == 0) & np.signbit(x))
    return np.where(best == 0, np.where(positive, best.dtype.type(0), -best.dtype.type(0)), best)


def float_samples(low: float = -2.0, high: float = 2.0, operands: int = 1, avoid: Sequence[float] = ()) -> Callable[[], Iterable[Sample]]:
    """Random points in (low, high), at rank 2, 0 and with size 0 and 1, fixed seed."""

    def make() -> Iterable[Sample]:
        rng = np.random.default_rng(7)
        for shape in ((3, 5), (), (0, 4), (1,)):
            xs = [rng.uniform(low, high, shape) for _ in range(operands)]
            for a in avoid:
                xs = [np.where(np.abs(x - a) < 0.1, x + 0.2, x) for x in xs]
            yield Sample(tuple(xs), name=f"{shape}")

    return make
