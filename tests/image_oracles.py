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


def _spans(n: int, m: int, kernel: Any, stride: Any, low: Any, dilation: Any, d: int) -> list[list[int]]:
    if not kernel:
        return [list(range(p * n // m, -(-(p + 1) * n // m))) for p in range(m)]
    return [[i for i in range(p * stride[d] - low[d], p * stride[d] - low[d] + kernel[d] * dilation[d], dilation[d]) if 0 <= i < n] for p in range(m)]


def pool(x: Any, fn: Any, count: Any, kernel: Any = (), stride: Any = (), low: Any = (), dilation: Any = ()) -> Any:
    """``fn`` of each window."""
    dilation = dilation or (1,) * len(kernel)
    spans = [_spans(n, m, kernel, stride, low, dilation, d) for d, (n, m) in enumerate(zip(x.shape[2:], count))]
    out = np.zeros((*x.shape[:2], *count), x.dtype)
    for at in np.ndindex(*out.shape):
        out[at] = fn(x[at[0], at[1]][np.ix_(*(s[p] for s, p in zip(spans, at[2:])))])
    return out


def max_pool(x: Any, **window: Any) -> Any:
    return pool(x, np.max, **window)


def avg_pool(x: Any, ceil: bool, include: bool, divisor: Any, **window: Any) -> Any:
    if divisor is not None:
        return pool(x, np.sum, **window) / divisor
    if not include:
        return pool(x, np.mean, **window)
    wide = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in window["low"])])
    return pool(wide, np.mean, **{**window, "low": (0,) * len(window["low"])})


def adaptive_avg(x: Any, count: Any) -> Any:
    return pool(x, np.mean, count)


def adaptive_max(x: Any, count: Any) -> Any:
    return pool(x, np.max, count)
