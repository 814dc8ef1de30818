"""Result dtypes: NumPy 2's rules for calls entered with NumPy or Python values, torch's for calls entered with tensors. Python numbers are weak in both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aotgrad.ir.dims import Dim
from aotgrad_runtime import dtypes
from aotgrad_runtime.arrays import defaults
from aotgrad_runtime.dtypes import DType, as_dtype, promote_types
from aotgrad_runtime.records import record

__all__ = ["Kind", "is_number", "promote", "python_dtype", "to_float"]

_CATEGORY = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}


@record(frozen=True)
class Kind:
    """What promotion needs to know of an operand: dtype, whether it is a Python number, whether it has dims."""

    dtype: DType
    weak: bool = False
    rank: int = 1


def is_number(x: object) -> bool:
    """Whether ``x`` is one of Python's numbers, or a value that stands for one: it does not decide dtypes."""
    return isinstance(x, Dim) or bool(getattr(x, "_weak", type(x) in (float, int, bool)))


def python_dtype(value: object) -> DType:
    """float64, int64 or bool of a Python number (complex128 of a complex one)."""
    return as_dtype(type(value) if type(value) in (float, int, bool, complex) else (bool if isinstance(value, bool) else int if isinstance(value, int) else float))


def _join(a: DType, b: DType) -> DType:
    return a if a is b else as_dtype(np.promote_types(a.np, b.np))


def promote(kinds: Sequence[Kind], torch: bool) -> DType:
    """The common dtype."""
    return _torch(kinds) if torch else _numpy(kinds)


def _numpy(kinds: Sequence[Kind]) -> DType:
    strong = [k.dtype for k in kinds if not k.weak]
    weak = [k.dtype for k in kinds if k.weak]
    if not strong:
        out = weak[0]
        for d in weak[1:]:
            out = _join(out, d)
        return out
    out = strong[0]
    for d in strong[1:]:
        out = _join(out, d)
    for d in weak:
        if _CATEGORY[d.kind] > _CATEGORY[out.kind]:
            out = {1: dtypes.int64, 2: dtypes.float64, 3: dtypes.complex64 if out in (dtypes.float32, dtypes.float16) else dtypes.complex128}[_CATEGORY[d.kind]]
    return out


def _torch(kinds: Sequence[Kind]) -> DType:
    # Tensors with dims decide within the highest category; 0-d tensors, then Python numbers only matter in a category above.
    groups = [[k.dtype for k in kinds if not k.weak and k.rank > 0], [k.dtype for k in kinds if not k.weak and k.rank == 0], [k.dtype for k in kinds if k.weak]]
    out: DType | None = None
    for level, group in enumerate(groups):
        if not group:
            continue
        best = group[0]
        for d in group[1:]:
            best = promote_types(best, d)
        if level == 2:
            best = {0: dtypes.bool_, 1: dtypes.int64, 2: defaults.dtype, 3: defaults.complex}[_CATEGORY[best.kind]]
        if out is None or _CATEGORY[best.kind] > _CATEGORY[out.kind]:
            out = best
    assert out is not None
    return out


def to_float(dtype: DType, torch: bool) -> DType:
    """The float dtype of an operation such as exp or true division on ``dtype``."""
    if dtype.kind in "fc":
        return dtype
    return defaults.dtype if torch else dtypes.float64
