"""``finfo`` and ``iinfo``: what numbers an element type can hold."""

from __future__ import annotations

import numpy as np

from .arrays import defaults
from .dtypes import as_dtype, bfloat16
from .errors import AotgradTypeError

__all__ = ["finfo", "iinfo"]


class _Info:
    """The limits of a dtype, as attributes."""

    _shown: tuple[str, ...]
    dtype: str

    def __repr__(self) -> str:
        parts = (f"{n}={v:g}" if isinstance(v := getattr(self, n), float) else f"{n}={v}" for n in self._shown)
        return f"{type(self).__name__}({', '.join(parts)})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.dtype == self.dtype

    def __hash__(self) -> int:
        return hash((type(self), self.dtype))


class finfo(_Info):
    """The limits of a floating-point dtype (the default dtype, if none is given): ``eps``, ``max``, ``min``, ``tiny``, ``smallest_normal``, ``resolution``, ``bits``.

    >>> import aotgrad as ag
    >>> ag.finfo(ag.float32).eps
    1.1920928955078125e-07
    """

    _shown = ("resolution", "min", "max", "eps", "smallest_normal", "tiny", "dtype")

    def __init__(self, type: object = None) -> None:
        kind = defaults.dtype if type is None else as_dtype(type)
        if kind.kind not in "fc":
            raise AotgradTypeError(f"finfo: {kind.name} is not a floating-point dtype; use iinfo")
        self.dtype = kind.name
        if kind is bfloat16:
            self.bits, self.eps, self.tiny, self.resolution = 16, 2.0 ** -7, 2.0 ** -126, 0.01
            self.max = (2 - 2.0 ** -7) * 2.0 ** 127
        else:
            found = np.finfo(kind.np)
            self.bits, self.eps, self.tiny, self.max = found.bits, float(found.eps), float(found.tiny), float(found.max)
            self.resolution = 10.0 ** -found.precision
        self.min, self.smallest_normal = -self.max, self.tiny


class iinfo(_Info):
    """The limits of an integer dtype: ``max``, ``min``, ``bits``.

    >>> import aotgrad as ag
    >>> ag.iinfo(ag.int8)
    iinfo(min=-128, max=127, dtype=int8)
    """

    _shown = ("min", "max", "dtype")

    def __init__(self, type: object) -> None:
        kind = as_dtype(type)
        if kind.kind not in "iu":
            raise AotgradTypeError(f"iinfo: {kind.name} is not an integer dtype{'; use finfo' if kind.kind == 'f' else ''}")
        found = np.iinfo(kind.np)
        self.dtype = kind.name
        self.bits, self.min, self.max = found.bits, int(found.min), int(found.max)
