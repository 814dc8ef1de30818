"""Values as parts of a signature: equal keys mean values a trace cannot tell apart."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from aotgrad_runtime.errors import AotgradTypeError

__all__ = ["static_key"]

_PLAIN = frozenset((int, bool, str, bytes, type(None), type(Ellipsis), type(NotImplemented), range))
_STDLIB = frozenset(sys.stdlib_module_names) - {"__main__"}


class _Same:
    """An object as itself: whatever its class calls equal, it is another one. Holds it, so that its id stays its own."""

    __slots__ = ("obj",)

    def __init__(self, obj: Any) -> None:
        self.obj = obj

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.obj is self.obj

    def __hash__(self) -> int:
        return id(self.obj)


def static_key(x: Any) -> Any:
    """A hashable key: numbers by type and bits (-0.0 is not 0.0, nan is nan), containers by their items, other objects by identity.

    >>> static_key(0.0) == static_key(-0.0), static_key(1) == static_key(True), static_key(float("nan")) == static_key(float("nan"))
    (False, False, True)
    """
    kind: Any = type(x)
    if kind in _PLAIN:
        return (kind, x)
    if kind is float:
        return (kind, x.hex())
    if kind is complex:
        return (kind, x.real.hex(), x.imag.hex())
    if isinstance(x, np.generic):
        return (kind, x.dtype, x.tobytes())
    if kind is slice:
        return (kind, *map(static_key, (x.start, x.stop, x.step)))
    try:
        hash(x)
    except (TypeError, ValueError):  # of memory that may be written
        raise AotgradTypeError(f"an argument of type {kind.__name__} is neither an array, a number, nor hashable; pass arrays, or a hashable value") from None
    if isinstance(x, tuple) and kind.__eq__ is tuple.__eq__:
        return (kind, *map(static_key, x))
    if kind is frozenset:
        return (kind, frozenset(map(static_key, x)))
    if isinstance(x, np.dtype) or kind.__eq__ is object.__eq__ or kind.__module__.partition(".")[0] in _STDLIB:
        return (kind, x)
    return (kind, _Same(x))
