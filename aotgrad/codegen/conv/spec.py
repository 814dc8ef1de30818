"""What one convolution kernel computes, as data: made from an op at lowering, the key by which a kernel is chosen and written."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import fields, replace

from aotgrad_runtime.records import record

from ...ir import dims
from ...ir.dims import DimLike

__all__ = ["ConvSpec", "FORWARD", "INPUT_GRAD", "WEIGHT_GRAD"]

FORWARD, INPUT_GRAD, WEIGHT_GRAD = "forward", "input_grad", "weight_grad"


@record(frozen=True)
class ConvSpec:
    """One of the three parts of ``sum(x * w * y)`` over ``y``'s position p and the kernel's position k, where x is read at ``p * stride - low + k * dilation``.

    ``kind``: which array is the result: y ("forward"), x ("input_grad") or w ("weight_grad").
    ``x`` is [batch, channels, *spatial], ``w`` [filters, channels / groups, *kernel], ``y`` [batch, filters, *positions]; sizes are integers, or ``Dim`` where known
    at run time only. ``padding``: (low, high) per spatial dim, either may be negative; ``positions`` are
    ``(spatial + low + high - dilation * (kernel - 1) - 1) // stride + 1``.
    Positions outside x are zeros. ``layouts`` of x, w, y: "contiguous" (as the shape is written), "channels_last" (dim 1 last in memory), "strided" (neither).
    Where the result's ``batch``, ``channels`` or sizes are 0 there is nothing to do; where a sum is empty the result is 0.
    ``kept``: ``w`` was packed before the call, which changes no bit.
    """

    kind: str
    dtype: str  # "f32", "f64", or another of MLIR's names
    groups: int
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    batch: DimLike
    channels: DimLike
    filters: DimLike
    spatial: tuple[DimLike, ...]
    kernel: tuple[DimLike, ...]
    positions: tuple[DimLike, ...]
    layouts: tuple[str, str, str]
    kept: bool = False

    @property
    def rank(self) -> int:
        """Number of spatial dims."""
        return len(self.stride)

    @property
    def sizes(self) -> tuple[DimLike, ...]:
        """All sizes: batch, channels, filters, spatial, kernel, positions. The order of run-time arguments of a shape-generic kernel."""
        return (self.batch, self.channels, self.filters, *self.spatial, *self.kernel, *self.positions)

    @property
    def static(self) -> bool:
        """Whether every size is a number."""
        return all(isinstance(d, int) for d in self.sizes)

    @property
    def flops(self) -> DimLike:
        """Two per product, positions outside x included."""
        return 2 * self.batch * self.filters * dims.floordiv(self.channels, self.groups) * dims.product(self.positions) * dims.product(self.kernel)

    @property
    def text(self) -> str:
        """All of it as text, in terms of numbers: for a spec of known sizes."""
        return repr(tuple(getattr(self, f.name) for f in fields(self)))

    @staticmethod
    def from_text(text: str) -> ConvSpec:
        """The spec that ``text`` gave."""
        return ConvSpec(*ast.literal_eval(text))

    def substitute(self, env: Mapping[str, DimLike]) -> ConvSpec:
        """The spec with symbols replaced."""
        def of(sizes: tuple[DimLike, ...]) -> tuple[DimLike, ...]:
            return tuple(dims.substitute(d, env) for d in sizes)

        batch, channels, filters = of((self.batch, self.channels, self.filters))
        return replace(self, batch=batch, channels=channels, filters=filters, spatial=of(self.spatial), kernel=of(self.kernel), positions=of(self.positions))
