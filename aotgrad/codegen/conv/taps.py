"""Convolutions as sums over taps: out[n, p, o] = sum of in[n, p * mul + off + t * step, k] * w[t, k, o] over the taps t inside the input and all k.

The forward convolution is one such sum. The gradient of its input is one for each class of positions modulo the stride: there the same taps
count, and the input (y's cotangent) is read densely. Offsets and strides are in bytes.
"""

from __future__ import annotations

import itertools
import math

from aotgrad_runtime.records import record

from .spec import FORWARD, ConvSpec

__all__ = ["Axis", "Place", "TapSum", "is_depthwise", "place", "tap_sums", "weight_strides"]

SIZES = {"f32": 4, "f64": 8}


@record(frozen=True)
class Axis:
    """One spatial dim: output i reads input ``i * mul + off + t * step`` for each tap t; ``source`` and ``target`` are the steps of an input and an output index.

    ``taps`` names the kernel position of each tap; ``start`` is where output 0 lies.
    """

    count: int
    size: int
    mul: int
    off: int
    step: int
    taps: tuple[int, ...]
    source: int
    target: int
    start: int = 0

    def valid(self, t: int) -> tuple[int, int]:
        """The outputs [low, high) for which tap ``t`` reads inside the input."""
        at = self.off + t * self.step
        low = max(0, -(at // self.mul))
        high = min(self.count, (self.size - 1 - at) // self.mul + 1)
        return low, max(low, high)

    @property
    def always(self) -> bool:
        """Whether every tap of every output reads inside the input."""
        return all(self.valid(t) == (0, self.count) for t in range(len(self.taps)))


@record(frozen=True)
class Place:
    """Where an array's element lies: bytes per image, channel and spatial index."""

    image: int
    channel: int
    steps: tuple[int, ...]


@record(frozen=True)
class TapSum:
    """``depth`` input and ``width`` output channels a group; output channels are adjacent, or positions along the row are.

    ``depthwise``: all groups as one, each output channel reads the input channel of its number alone, and those are adjacent too.
    """

    dtype: str
    groups: int
    depth: int
    width: int
    axes: tuple[Axis, ...]
    source: Place
    target: Place
    depthwise: bool = False

    @property
    def taps(self) -> int:
        return math.prod(len(a.taps) for a in self.axes)

    @property
    def outputs(self) -> int:
        """Positions of one image."""
        return math.prod(a.count for a in self.axes)


def ints(values: tuple[object, ...]) -> tuple[int, ...]:
    """Sizes that are known to be numbers."""
    assert all(isinstance(v, int) for v in values)
    return tuple(int(v) for v in values)  # type: ignore[call-overload]


def place(layout: str, channels: int, spatial: tuple[int, ...], size: int) -> Place:
    """The dense place of [batch, channels, *spatial] in ``layout``."""
    last = layout == "channels_last"
    step = size * (channels if last else 1)
    steps = []
    for n in reversed(spatial):
        steps.append(step)
        step *= n
    return Place(size * channels * math.prod(spatial), size if last else step, tuple(reversed(steps)))


def weight_strides(spec: ConvSpec) -> tuple[int, int, int]:
    """Bytes between filters, channels and taps of the weights as the user holds them; taps are numbered row-major."""
    size, per_group, taps = SIZES[spec.dtype], ints((spec.channels,))[0] // spec.groups, math.prod(ints(spec.kernel))
    if spec.layouts[1] == "channels_last":
        return size * per_group * taps, size, size * per_group
    return size * per_group * taps, size * taps, size


def is_depthwise(spec: ConvSpec) -> bool:
    """Whether every channel is a group of its own, with one filter, and x and y are channels-last."""
    return 1 < spec.groups == spec.channels == spec.filters and spec.layouts[0] == spec.layouts[2] == "channels_last"


def tap_sums(spec: ConvSpec) -> list[TapSum]:
    """One sum for "forward", one for each class of positions for "input_grad"."""
    channels, filters = ints((spec.channels, spec.filters))
    spatial, positions, kernel = ints(spec.spatial), ints(spec.positions), ints(spec.kernel)
    size = SIZES[spec.dtype]
    x, y = place(spec.layouts[0], channels, spatial, size), place(spec.layouts[2], filters, positions, size)
    c, o = channels // spec.groups, filters // spec.groups
    lows = [low for low, _ in spec.padding]
    groups, depthwise = spec.groups, is_depthwise(spec)
    if depthwise:
        groups, c, o = 1, *((1, filters) if spec.kind == FORWARD else (channels, 1))
    if spec.kind == FORWARD:
        axes = tuple(Axis(positions[i], spatial[i], spec.stride[i], -lows[i], spec.dilation[i], tuple(range(kernel[i])), x.steps[i], y.steps[i])
                     for i in range(spec.rank))
        return [TapSum(spec.dtype, groups, c, o, axes, x, y, depthwise)]
    sums = []
    for classes in itertools.product(*(range(min(s, n)) for s, n in zip(spec.stride, spatial))):
        axes = tuple(_class_axis(r, spatial[i], positions[i], spec.stride[i], lows[i], spec.dilation[i], kernel[i], x.steps[i], y.steps[i])
                     for i, r in enumerate(classes))
        sums.append(TapSum(spec.dtype, groups, o, c, axes, y, x, depthwise))
    return sums


def _class_axis(r: int, size: int, positions: int, stride: int, low: int, dilation: int, kernel: int, target: int, source: int) -> Axis:
    """Positions r, r + stride, ... of x: those taps k, last first, for which p + low - k * dilation is a multiple of the stride."""
    taps = tuple(k for k in reversed(range(kernel)) if (r + low - k * dilation) % stride == 0)
    offsets = [(r + low - k * dilation) // stride for k in taps]
    step = offsets[1] - offsets[0] if len(offsets) > 1 else 1
    return Axis(-(-(size - r) // stride), positions, 1, offsets[0] if offsets else 0, step, taps, source, stride * target, r * target)
