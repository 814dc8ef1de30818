"""Random numbers as functions of a state: Threefry-2x32 (Salmon, Moraes, Dror, Shaw 2011), 20 rounds, one block of two words per element.

``state`` holds three int64: two 32-bit keys and the number of the draw. Element i of draw n is the cipher of (i, n) under the keys, whatever the shape, so
nothing depends on threads, vectors or fusion, and a backward pass computes a mask again from three numbers. Everything is arithmetic of int32, which wraps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from aotgrad_runtime.dtypes import bfloat16, float16, float32, float64, int32, int64

from ..opdef import REQUIRED, Composite, OpDef, Sample, register

__all__: list[str] = []

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_BITS = {float64: 53, float32: 24, float16: 11, bfloat16: 8}


def _wrapped(number: int) -> int:
    """32 bits as the int32 of the same bits."""
    number &= 0xFFFFFFFF
    return number - (1 << 32) if number >> 31 else number


def _shifted(b: Any, x: Any, places: int) -> Any:
    """Bits moved right, with zeros from the left."""
    moved = b.bitwise_right_shift(x, b.full_like(x, places))
    return b.bitwise_and(moved, b.full_like(x, (1 << (32 - places)) - 1))


def _rotated(b: Any, x: Any, places: int) -> Any:
    return b.bitwise_or(b.bitwise_left_shift(x, b.full_like(x, places)), _shifted(b, x, 32 - places))


def _places(b: Any, shape: Any) -> Any:
    """The number of every element in row-major order."""
    if not shape:
        return b.scalar(0, int32)
    at = b.iota(shape=shape, dim=0, dtype=int32)
    for d in range(1, len(shape)):
        size = b.expand(b.count((shape[d],), int32), shape)
        at = b.add(b.mul(at, size), b.iota(shape=shape, dim=d, dtype=int32))
    return at


def _word(b: Any, state: Any, i: int, high: bool = False) -> Any:
    one = b.reshape(b.slice(state, starts=(i,), sizes=(1,), steps=(1,)), shape=())
    return b.cast(b.bitwise_right_shift(one, b.full_like(one, 32)) if high else one, dtype=int32)


def _blocks(b: Any, state: Any, shape: Any, which: int = 0) -> tuple[Any, Any]:
    """Two words for every element; ``which``: another block for the same place and draw."""
    shape = tuple(shape)
    k0 = b.bitwise_xor(_word(b, state, 0), b.scalar(_wrapped(which * 0x9E3779B9), int32))
    k1 = b.add(_word(b, state, 1), _word(b, state, 2, high=True))
    k2 = b.bitwise_xor(b.bitwise_xor(k0, k1), b.scalar(_PARITY, int32))
    keys = (k0, k1, k2)
    x = b.add(_places(b, shape), b.expand(k0, shape))
    y = b.expand(b.add(_word(b, state, 2), k1), shape)
    for part in range(5):
        for places in _ROTATIONS[part % 2]:
            x = b.add(x, y)
            y = b.bitwise_xor(_rotated(b, y, places), x)
        x = b.add(x, b.expand(keys[(part + 1) % 3], shape))
        y = b.add(y, b.expand(b.add(keys[(part + 2) % 3], b.scalar(part + 1, int32)), shape))
    return x, y


def _uniform_body(b: Any, state: Any, shape: Any, dtype: Any) -> Any:
    x, y = _blocks(b, state, shape)
    return _fraction(b, x, y, dtype)


def _fraction(b: Any, x: Any, y: Any, dtype: Any) -> Any:
    """As many of 64 bits as the dtype holds, in [0, 1)."""
    bits = _BITS[dtype]
    if bits <= 24:
        whole = b.cast(_shifted(b, x, 32 - bits), dtype=float32)
        return b.to_dtype(b.mul(whole, b.full_like(whole, 2.0 ** -bits)), dtype)
    high, low = (b.cast(_shifted(b, v, n), dtype=float64) for v, n in ((x, 5), (y, 6)))
    return b.mul(b.add(b.mul(high, b.full_like(high, 2.0 ** 26)), low), b.full_like(high, 2.0 ** -53))


def _normal_body(b: Any, state: Any, shape: Any, dtype: Any) -> Any:
    """Box and Muller's map of two uniform numbers."""
    wide = float64 if dtype is float64 else float32
    x, y = _blocks(b, state, shape)
    u, v = (_fraction(b, *(_blocks(b, state, shape, 1) if again else (x, y)), float64) for again in (False, True)) if wide is float64 else (
        _fraction(b, x, y, float32), _fraction(b, y, x, float32))
    radius = b.sqrt(b.mul(b.log(b.sub(b.full_like(u, 1.0), u)), b.full_like(u, -2.0)))
    return b.to_dtype(b.mul(radius, b.cos(b.mul(v, b.full_like(v, 2.0 * math.pi)))), dtype)


def _bits_body(b: Any, state: Any, shape: Any) -> Any:
    x, y = _blocks(b, state, shape)
    top, rest = b.cast(_shifted(b, x, 1), dtype=int64), b.cast(y, dtype=int64)
    return b.bitwise_or(b.bitwise_left_shift(top, b.full_like(top, 32)), b.bitwise_and(rest, b.full_like(rest, 0xFFFFFFFF)))


def _samples(**attrs: Any) -> Any:
    def samples() -> Iterable[Sample]:
        for name, state, shape in (("vector", (0x13198A2E, 0x03707344, 5), (5,)), ("matrix", (-1, 1 << 31, (7 << 32) + 1), (2, 3)), ("one", (0, 0, 0), ())):
            yield Sample((np.array(state, np.int64),), {"shape": shape, **attrs}, name)

    return samples


def _random(name: str, doc: str, body: Any, attrs: dict[str, Any], samples: Any) -> None:
    register(OpDef(name, doc, ("state",), None, None, Composite(body), attrs={"shape": REQUIRED, **attrs}, samples=samples))


_random("random_uniform", "Numbers in [0, 1) of draw ``state`` (two keys and the number of the draw).", _uniform_body, {"dtype": REQUIRED}, _samples(dtype=float64))
_random("random_normal", "Normal numbers of mean 0 and variance 1 of draw ``state``.", _normal_body, {"dtype": REQUIRED}, _samples(dtype=float64))
_random("random_bits", "Integers of 63 random bits of draw ``state``.", _bits_body, {}, _samples())
