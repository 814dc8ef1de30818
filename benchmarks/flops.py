"""Operations of a model's products and convolutions, counted by running it on functions that only count."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

__all__ = ["Counter", "nbytes"]


class _Image:
    """A shape, with what the models do to values."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def __add__(self, _other: Any) -> _Image:
        return self

    __mul__ = __pow__ = __add__

    def reshape(self, *shape: int) -> _Image:
        """As NumPy's."""
        return _Image(*(n if n >= 0 else prod(self.shape) // -prod(shape) for n in shape))

    def mean(self) -> _Image:
        """A number."""
        return _Image()


class Counter:
    """Functions under torch's names. ``flops``: two per multiply-add; ``first``: those of the first convolution, which needs no gradient of its input."""

    def __init__(self) -> None:
        self.flops = self.first = 0.0

    @staticmethod
    def image(*shape: int) -> Any:
        """What to run a model on."""
        return _Image(*shape)

    def _count(self, flops: float) -> None:
        self.first = self.first or flops
        self.flops += flops

    def training(self) -> float:
        """Forward and both gradients of every product, without the first one's gradient of its input."""
        return 3 * self.flops - self.first

    def conv2d(self, x: Any, w: Any, _b: Any = None, stride: int = 1, padding: int = 0, _dilation: int = 1, groups: int = 1) -> _Image:
        """Convolution with equal steps in both dims."""
        n, _, h, v = x.shape
        o, _, k, _ = w.shape
        out = _Image(n, o, (h + 2 * padding - k) // stride + 1, (v + 2 * padding - k) // stride + 1)
        self._count(2.0 * prod(out.shape) * prod(w.shape[1:]))
        return out

    def conv_transpose2d(self, x: Any, w: Any, _b: Any, stride: int) -> _Image:
        """The transpose of a convolution without padding."""
        n, _, h, v = x.shape
        _, o, k, _ = w.shape
        self._count(2.0 * prod(x.shape) * prod(w.shape[1:]))
        return _Image(n, o, (h - 1) * stride + k, (v - 1) * stride + k)

    def batch_norm(self, x: Any, *_rest: Any, training: bool = False) -> Any:
        """Not counted."""
        return x

    def relu(self, x: Any) -> Any:
        """Not counted."""
        return x

    def max_pool2d(self, x: Any, kernel: int, stride: int | None = None, padding: int = 0) -> _Image:
        """Not counted."""
        n, c, h, v = x.shape
        step = stride or kernel
        return _Image(n, c, (h + 2 * padding - kernel) // step + 1, (v + 2 * padding - kernel) // step + 1)

    def adaptive_avg_pool2d(self, x: Any, _one: int) -> _Image:
        """Not counted."""
        return _Image(*x.shape[:2], 1, 1)

    def linear(self, x: Any, w: Any, _b: Any) -> _Image:
        """x w' + b."""
        self._count(2.0 * prod(x.shape) * w.shape[0])
        return _Image(*x.shape[:-1], w.shape[0])

    def cat(self, a: Any, b: Any) -> _Image:
        """Channels of both."""
        return _Image(a.shape[0], a.shape[1] + b.shape[1], *a.shape[2:])


def nbytes(arrays: Sequence[Any]) -> int:
    """Of all of them."""
    return sum(a.nbytes for a in arrays)
