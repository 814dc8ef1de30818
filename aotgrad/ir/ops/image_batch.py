"""How ops on images run on many examples: what is per image takes them as further images; examples with weights of their own become groups of one convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..transforms.batch import one_by_one, spread

__all__ = ["conv_batch", "fold_images", "weight_grad_batch"]


def fold_images(b: Any, op: Any, xs: Sequence[Any], on: Sequence[bool], size: Any) -> Any:
    """Examples as further images: every operand is [examples, N, ...]."""
    wide = [b.placed(spread(b, x, k, size), None) for x, k in zip(xs, on)]
    n = wide[0].type.shape[1]
    out = b.placed(b.emit(op.name, [b.to_shape(x, (size * n, *x.type.shape[2:])) for x in wide], op.attrs)[0], None)
    return b.to_shape(out, (size, n, *out.type.shape[1:]))


def _as_channels(b: Any, x: Any) -> Any:
    """[examples, N, C, ...] as [N, examples * C, ...]."""
    size, n, c, *rest = x.type.shape
    return b.to_shape(b.to_perm(x, (1, 0, *range(2, len(x.type.shape)))), (n, size * c, *rest))


def _from_channels(b: Any, out: Any, size: Any, c: Any) -> Any:
    n, _, *rest = out.type.shape
    split = b.to_shape(b.placed(out, None), (n, size, c, *rest))
    return b.to_perm(split, (1, 0, *range(2, len(rest) + 3)))


def _grouped(b: Any, op: Any, operands: Sequence[Any], size: Any) -> Any:
    """The convolution with as many times the groups."""
    return b.emit(op.name, operands, {**op.attrs, "groups": op.attrs["groups"] * size})[0]


def _counted(size: Any) -> bool:
    """Groups are a number: so the examples must be."""
    return isinstance(size, int) and size > 0


def conv_batch(b: Any, op: Any, xs: Sequence[Any], on: Sequence[bool], size: Any) -> Any:
    """``conv`` and ``conv_input_grad``: an image, and weights."""
    image, w = xs
    if not on[1]:  # the same weights for all
        wide = b.placed(image, None)
        n = wide.type.shape[1]
        out = b.placed(b.emit(op.name, [b.to_shape(wide, (size * n, *wide.type.shape[2:])), w], op.attrs)[0], None)
        return b.to_shape(out, (size, n, *out.type.shape[1:]))
    if not _counted(size):
        return one_by_one(b, op, xs, on, size)
    wide, many = b.placed(spread(b, image, on[0], size), None), b.placed(w, None)
    out = _grouped(b, op, [_as_channels(b, wide), b.to_shape(many, (size * many.type.shape[1], *many.type.shape[2:]))], size)
    return _from_channels(b, out, size, op.result.type.shape[1])


def weight_grad_batch(b: Any, op: Any, xs: Sequence[Any], on: Sequence[bool], size: Any) -> Any:
    """``conv_weight_grad``: a gradient of the weights for each example."""
    if not _counted(size):
        return one_by_one(b, op, xs, on, size)
    wide = [_as_channels(b, b.placed(spread(b, x, k, size), None)) for x, k in zip(xs, on)]
    out = b.placed(_grouped(b, op, wide, size), None)
    return b.to_shape(out, (size, *op.result.type.shape))
