"""Threefry-2x32 by its definition, in Python's integers, and the numbers that are made of its words."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_MASK = 0xFFFFFFFF
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)


def threefry(key: tuple[int, int], counter: tuple[int, int]) -> tuple[int, int]:
    """20 rounds."""
    keys = (key[0], key[1], 0x1BD11BDA ^ key[0] ^ key[1])
    x, y = (counter[0] + keys[0]) & _MASK, (counter[1] + keys[1]) & _MASK
    for n in range(20):
        x = (x + y) & _MASK
        r = _ROTATIONS[n % 8]
        y = ((y << r | y >> (32 - r)) & _MASK) ^ x
        if n % 4 == 3:
            k = n // 4 + 1
            x, y = (x + keys[k % 3]) & _MASK, (y + keys[(k + 1) % 3] + k) & _MASK
    return x, y


def _words(state: Any, shape: Any, which: int = 0) -> list[tuple[int, int]]:
    a, b, n = (int(v) for v in state)
    key = ((a ^ which * 0x9E3779B9) & _MASK, (b + (n >> 32)) & _MASK)
    return [threefry(key, (i, n & _MASK)) for i in range(int(np.prod(shape, dtype=int)))]


def _fraction(x: int, y: int) -> float:
    return ((x >> 5) * 2**26 + (y >> 6)) / 2**53


def uniform(state: Any, shape: Any, dtype: Any) -> Any:
    return np.array([_fraction(x, y) for x, y in _words(state, shape)]).reshape(shape)


def normal(state: Any, shape: Any, dtype: Any) -> Any:
    pairs = zip(_words(state, shape), _words(state, shape, 1))
    return np.array([math.sqrt(-2 * math.log(1 - _fraction(*p))) * math.cos(2 * math.pi * _fraction(*q)) for p, q in pairs]).reshape(shape)


def bits(state: Any, shape: Any) -> Any:
    return np.array([(x >> 1) << 32 | y for x, y in _words(state, shape)], np.int64).reshape(shape)
