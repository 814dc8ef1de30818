"""What the demo differentiates: plain functions of NumPy arrays, and beside the first one its gradient as one would write it by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["NAMES", "SIZES", "digits_loss", "hand_written", "initial", "logits", "loss", "peak", "residuals"]

SIZES = (64, 128, 64, 10)
NAMES = ("w1", "b1", "w2", "b2", "w3", "b3")


def logits(params: Any, x: Any) -> Any:
    """Scores [n, 10] of the images x [n, 64]; params in the order of ``NAMES``."""
    w1, b1, w2, b2, w3, b3 = params
    h = np.maximum(x @ w1 + b1, 0)
    h = np.maximum(h @ w2 + b2, 0)
    return h @ w3 + b3


def loss(params: Any, x: Any, y: Any) -> Any:
    """Mean softmax cross-entropy of the images x [n, 64] against one-hot labels y [n, 10]."""
    z = logits(params, x)
    z = z - np.max(z, axis=1, keepdims=True)
    return np.mean(np.log(np.sum(np.exp(z), axis=1)) - np.sum(z * y, axis=1))


def digits_loss(w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any, x: Any, y: Any) -> Any:
    """``loss`` with one argument per array: the function that is shipped."""
    return loss((w1, b1, w2, b2, w3, b3), x, y)


def hand_written(params: Any, x: Any, y: Any) -> tuple[Any, list[Any]]:
    """The same loss and its gradient, derived by hand, in NumPy."""
    w1, b1, w2, b2, w3, b3 = params
    a1 = x @ w1 + b1
    h1 = np.maximum(a1, 0)
    a2 = h1 @ w2 + b2
    h2 = np.maximum(a2, 0)
    z = h2 @ w3 + b3
    z -= np.max(z, axis=1, keepdims=True)
    e = np.exp(z)
    s = np.sum(e, axis=1, keepdims=True)
    value = np.mean(np.log(s[:, 0]) - np.sum(z * y, axis=1))
    dz = (e / s - y) / np.asarray(len(x), x.dtype)
    d2 = (dz @ w3.T) * (a2 > 0)
    d1 = (d2 @ w2.T) * (a1 > 0)
    return value, [x.T @ d1, d1.sum(axis=0), h1.T @ d2, d2.sum(axis=0), h2.T @ dz, dz.sum(axis=0)]


def initial(seed: int = 0, dtype: Any = np.float32) -> list[np.ndarray[Any, Any]]:
    """Random weights and zero biases, in the order of ``NAMES``."""
    rng = np.random.default_rng(seed)
    params: list[np.ndarray[Any, Any]] = []
    for n, m in zip(SIZES, SIZES[1:]):
        params += [(rng.standard_normal((n, m)) * np.sqrt(2 / n)).astype(dtype), np.zeros(m, dtype)]
    return params


def peak(p: Any, u: Any, v: Any) -> Any:
    """A stroke: a tilted Gaussian at the pixels (u, v). p holds height, centre (2), log of length and width (2), tilt, background."""
    du, dv = u - p[1], v - p[2]
    c, s = np.cos(p[5]), np.sin(p[5])
    along, across = c * dv + s * du, c * du - s * dv
    return p[6] + p[0] * np.exp(-0.5 * ((along * np.exp(-p[3])) ** 2 + (across * np.exp(-p[4])) ** 2))


def residuals(p: Any, u: Any, v: Any, z: Any) -> Any:
    """Model minus image z [64]."""
    return peak(p, u, v) - z
