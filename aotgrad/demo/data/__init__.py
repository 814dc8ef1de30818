"""The bundled images: 1,797 scanned digits (SOURCE.md and LICENCE stand beside them)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["digits", "one_hot", "split"]

_FILE = Path(__file__).with_name("digits.csv.gz")


def digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images as float32[1797, 64] with values 0 to 1, and labels as int64[1797].

    >>> images, labels = digits()
    >>> images.shape, int(labels[0])
    ((1797, 64), 0)
    """
    table = np.loadtxt(_FILE, delimiter=",", dtype=np.int64)
    return (table[:, :64] / 16).astype(np.float32), np.ascontiguousarray(table[:, 64])


def split(n: int, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of the images to train on and of the third that is held back.

    >>> [len(part) for part in split(9)]
    [6, 3]
    """
    order = np.random.default_rng(seed).permutation(n).astype(np.int64)
    return order[n // 3 :], order[: n // 3]


def one_hot(labels: NDArray[np.int64], dtype: Any = np.float32) -> NDArray[Any]:
    """Labels int64[n] as rows with a single 1, dtype[n, 10]."""
    return np.eye(10, dtype=dtype)[labels]
