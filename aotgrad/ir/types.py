"""Types of IR values: shape with symbolic sizes, element type, and memory layout.

Text form, accepted by real ``mlir-opt --allow-unregistered-dialect``: ``!ag.tensor<[2, n], f32>``; a layout other than row-major
adds ``, order = [0, 2, 3, 1]`` and, when blocked, ``, blocks = [[1, 16]]``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aotgrad_runtime.dtypes import DType, as_dtype
from aotgrad_runtime.records import record

from . import dims
from .dims import DimLike

__all__ = ["Layout", "TensorType", "tensor_type"]


@record(frozen=True)
class Layout:
    """Dimension order in memory (outermost first), then blocking: ``blocks`` splits a dim into (outer, size) with the inner part last."""

    order: tuple[int, ...]
    blocks: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def channels_last(rank: int) -> Layout:
        """N, spatial dims, C: what torch calls channels_last at rank 4 (and channels_last_3d at 5)."""
        return Layout((0, *range(2, rank), 1))

    def permuted(self, perm: Sequence[int]) -> Layout | None:
        """The layout after logical dims are reordered so that new dim i is old dim perm[i] (no data moves)."""
        inverse = {old: new for new, old in enumerate(perm)}
        order = tuple(inverse[d] for d in self.order)
        return None if order == tuple(range(len(order))) and not self.blocks else Layout(order, tuple((inverse[d], s) for d, s in self.blocks))


@record(frozen=True)
class TensorType:
    """``shape`` of ints and Dims, ``dtype``, and ``layout`` (None = row-major)."""

    shape: tuple[DimLike, ...]
    dtype: DType
    layout: Layout | None = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> DimLike:
        """Number of elements."""
        return dims.product(self.shape)

    @property
    def order(self) -> tuple[int, ...]:
        """Dims in memory order, outermost first."""
        return self.layout.order if self.layout else tuple(range(len(self.shape)))

    def strides(self) -> tuple[DimLike, ...]:
        """Strides in elements of the dense array in this layout (unblocked layouts only)."""
        out: list[DimLike] = [0] * self.rank
        step: DimLike = 1
        for d in reversed(self.order):
            out[d] = step
            step = step * self.shape[d]
        return tuple(out)

    def with_(self, *, shape: Sequence[DimLike] | None = None, dtype: DType | None = None) -> TensorType:
        """A copy with another shape (which drops the layout unless the rank is equal) or dtype."""
        keep = shape is None or len(shape) == self.rank
        return TensorType(self.shape if shape is None else tuple(shape), dtype or self.dtype, self.layout if keep else None)

    def substitute(self, env: Mapping[str, DimLike]) -> TensorType:
        """Symbols replaced by ``env``."""
        return TensorType(tuple(dims.substitute(d, env) for d in self.shape), self.dtype, self.layout)

    def __str__(self) -> str:
        extra = ""
        if self.layout:
            extra = f", order = [{', '.join(map(str, self.layout.order))}]"
            if self.layout.blocks:
                extra += f", blocks = [{', '.join(f'[{d}, {s}]' for d, s in self.layout.blocks)}]"
        return f"!ag.tensor<[{', '.join(map(dims.to_text, self.shape))}], {self.dtype.mlir}{extra}>"


def tensor_type(shape: Sequence[Any], dtype: Any = "float64", layout: Layout | None = None) -> TensorType:
    """A type from loose parts: sizes may be ints, Dims or text; dtype anything ``as_dtype`` takes.

    >>> str(tensor_type([2, "n"], "float32"))
    '!ag.tensor<[2, n], f32>'
    """
    return TensorType(tuple(dims.parse(d) if isinstance(d, str) else d for d in shape), as_dtype(dtype), layout)
