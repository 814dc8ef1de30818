"""Contractions: ``dot`` (batched matrix product) is the one kernel; matmul, einsum and the rest are written with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from aotgrad_runtime.errors import AotgradTypeError, AotgradValueError

from ..opdef import Bilinear, Kernel, OpDef, Sample, register
from ..types import TensorType


def _dot_rule(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Sequence[TensorType]:
    a, b = types
    if a.rank < 2 or a.rank != b.rank or a.dtype is not b.dtype or a.shape[:-2] != b.shape[:-2]:
        raise AotgradTypeError(f"dot: operands {a} and {b} need equal dtype, equal rank of at least 2 and equal leading dims")
    if a.shape[-1] != b.shape[-2]:
        raise AotgradValueError(f"dot: {a.shape[-1]} columns of the first operand meet {b.shape[-2]} rows of the second ({a} and {b})")
    return (TensorType((*a.shape[:-1], b.shape[-1]), a.dtype),)


def _swap(b: Any, x: Any) -> Any:
    rank = len(x.type.shape)
    return b.permute(x, perm=(*range(rank - 2), rank - 1, rank - 2))


def _samples() -> Iterable[Sample]:
    rng = np.random.default_rng(8)
    for sa, sb in (((3, 4), (4, 2)), ((2, 3, 1), (2, 1, 4)), ((0, 3), (3, 2)), ((2, 0), (0, 3)), ((1, 5), (5, 1)), ((17, 19), (19, 23))):
        yield Sample((rng.normal(size=sa), rng.normal(size=sb)), name=f"{sa}{sb}")


register(OpDef(
    "dot", "Matrix product of the last two dims, batched over equal leading dims.", ("a", "b"), _dot_rule, np.matmul,
    Bilinear((lambda b, ct, other, op: b.dot(ct, _swap(b, other)), lambda b, ct, other, op: b.dot(_swap(b, other), ct))), Kernel("dot"), samples=_samples))
