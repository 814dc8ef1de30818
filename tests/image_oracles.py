"""Convolution and pooling by their definitions, one element after the other: slow, and nothing to get wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np


def _places(shape: Sequence[int], counts: Sequence[int], kernel: Sequence[int], stride: Sequence[int], low: Sequence[int],
            dilation: Sequence[int]) -> Iterator[tuple[Any, Any, Any]]:
    """(position, kernel place, position in the image) of all pairs that meet inside the image."""
    for p in np.ndindex(*counts):
        for k in np.ndindex(*kernel):
            at = tuple(i * s - lo + j * d for i, s, lo, j, d in zip(p, stride, low, k, dilation))
            if all(0 <= i < n for i, n in zip(at, shape)):
                yield p, k, at


def conv(x: Any, w: Any, *bias: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    counts = [(n + lo + hi - d * (k - 1) - 1) // s + 1 for n, (lo, hi), d, k, s in zip(x.shape[2:], padding, dilation, w.shape[2:], stride)]
    out = np.zeros((x.shape[0], w.shape[0], *counts), np.result_type(x, w))
    c, o = w.shape[1], w.shape[0] // groups
    for p, k, at in _places(x.shape[2:], counts, w.shape[2:], stride, [lo for lo, _ in padding], dilation):
        for g in range(groups):
            out[(slice(None), slice(g * o, (g + 1) * o), *p)] += x[(slice(None), slice(g * c, (g + 1) * c), *at)] @ w[(slice(g * o, (g + 1) * o), slice(None), *k)].T
    return out + np.reshape(bias[0], (-1, *[1] * len(counts))) if bias else out


def conv_transpose(x: Any, w: Any, *bias: Any, spatial: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    c, o = w.shape[0] // groups, w.shape[1]
    out = np.zeros((x.shape[0], o * groups, *spatial), np.result_type(x, w))
    for p, k, at in _places(spatial, x.shape[2:], w.shape[2:], stride, [lo for lo, _ in padding], dilation):
        for g in range(groups):
            out[(slice(None), slice(g * o, (g + 1) * o), *at)] += x[(slice(None), slice(g * c, (g + 1) * c), *p)] @ w[(slice(g * c, (g + 1) * c), slice(None), *k)]
    return out + np.reshape(bias[0], (-1, *[1] * len(spatial))) if bias else out
