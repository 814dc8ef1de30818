"""``verify=n``: results of compiled code beside the interpreter's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aotgrad.ir import interp
from aotgrad.ir.core import Func

__all__ = ["differs"]

_RELATIVE = {2: float(np.finfo(np.float16).eps), 4: 1e-4, 8: 1e-9}  # of the largest element; float16: one rounding
_DRAWS, _ROOM = 3, 64.0


def differs(func: Func, arrays: Sequence[np.ndarray[Any, Any]], got: Sequence[np.ndarray[Any, Any]]) -> tuple[int, float] | None:
    """The first result that is not the interpreter's, and by how much; None where all are.

    Integers and bools are equal. Floating-point results may differ by the rounding of another order of operations: a part of the largest element, or, where terms cancel
    and nearly nothing is left, a multiple of what rounding of the inputs alone changes.
    """
    want, moved = interp.run(func, *arrays), None
    for i, (a, b) in enumerate(zip(got, want)):
        if b.dtype.kind != "f":
            if not np.array_equal(a, b):
                return i, float(np.max(np.abs(np.asarray(a, float) - np.asarray(b, float))))
            continue
        a, b = np.asarray(a, float), np.asarray(b, float)
        tolerance = _RELATIVE[want[i].dtype.itemsize]
        near = np.isclose(a, b, rtol=tolerance, atol=tolerance * float(np.max(np.abs(b), initial=0.0, where=np.isfinite(b))), equal_nan=True)
        if not near.all():
            moved = _moved(func, arrays, want) if moved is None else moved
            with np.errstate(invalid="ignore"):
                near |= np.abs(a - b) <= _ROOM * moved[i]
        if not near.all():
            with np.errstate(invalid="ignore"):
                return i, float(np.nanmax(np.where(near, 0.0, np.abs(a - b))))
    return None


def _moved(func: Func, arrays: Sequence[np.ndarray[Any, Any]], want: Sequence[np.ndarray[Any, Any]]) -> list[Any]:
    """How far each element of the results goes when the inputs are off by a rounding."""
    rng, most = np.random.default_rng(0), [np.zeros(w.shape) for w in want]
    for _ in range(_DRAWS):
        with np.errstate(all="ignore"):
            off = [x if x.dtype.kind != "f" else (x * (1 + rng.uniform(-1, 1, x.shape) * np.finfo(x.dtype).eps)).astype(x.dtype) for x in arrays]
            most = [np.fmax(m, np.abs(np.asarray(a, float) - np.asarray(b, float))) for m, a, b in zip(most, interp.run(func, *off), want)]
    return most
