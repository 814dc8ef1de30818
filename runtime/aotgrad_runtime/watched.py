"""Memory that only tensors write: what a compiled function made of such numbers it may keep until a write is counted.

A version counter does not see writes through a NumPy array on the same memory. So memory is watched only if, at the time of asking, nobody else holds it: the numbers of
references to the array and to what it is a part of are those of an array that a tensor alone holds. From then on every tensor on that memory shares its ``Memory``, and
whoever is given the array itself (``numpy()``, ``np.asarray``, DLPack, an address) opens it for good. Reference counts are those of CPython with a GIL.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import as_strided

from .tape import Memory, Value, cell_of, extra_of

__all__ = ["give_away", "share", "watch", "written"]

_COUNTED: Final = getattr(sys, "_is_gil_enabled", lambda: True)()


class _Holder:
    """What holds an array as a tensor does."""

    __slots__ = ("_data",)

    def __init__(self, data: Any) -> None:
        self._data = data


_LINKS: Final = (np.ndarray, type(as_strided(np.empty(1), (1,), (8,)).base))
"""What an array may be a part of: another, and what NumPy puts between an array and one with strides of its own."""


def _references(x: Any) -> tuple[list[int], Any]:
    """How often the array of ``x``, and everything it is a part of, is referenced; the array that owns the memory, None where it is none of NumPy's own."""
    found = []
    at = x._data
    while type(at) in _LINKS:
        found.append(sys.getrefcount(at))
        if at.base is None:
            return found, at
        at = at.base
    return found, None


_ALONE: Final = _references(_Holder(np.empty(1)))[0][0]


def watch(x: Value) -> Memory | None:
    """The ``Memory`` of a tensor, from now on watched; None where somebody else may write it."""
    cell = cell_of(x)
    saved = sum(s.data is x._data for s in cell.prune())  # held for a backward pass, which reads
    references, owner = _references(x)
    if owner is None or not _COUNTED:
        return None
    memory = cell.memory
    if memory is None or memory.array() is not owner:
        references[0] -= saved
        if extra_of(x).pointed or any(n != _ALONE for n in references) or not owner.flags.owndata:
            return None
        memory = cell.memory = Memory(owner)
    return None if memory.open else memory


def give_away(x: Value) -> None:
    """The array of ``x`` goes to somebody who may write it."""
    extra = x._extra
    if extra is not None and extra.cell is not None and extra.cell.memory is not None:
        extra.cell.memory.open = True
        extra.cell.memory.written()


def share(x: Value, new: Any) -> Any:
    """``new``, a tensor on the memory of ``x`` with a version counter of its own."""
    extra = x._extra
    if extra is not None:
        if extra.cell is not None and extra.cell.memory is not None:
            cell_of(new).memory = extra.cell.memory
        if extra.pointed:
            extra_of(new).pointed = True
    return new


def written(x: Value) -> None:
    """Called after a write into the memory of ``x``; before it the version counter was raised."""
    extra = x._extra
    if extra is not None and extra.cell is not None and extra.cell.memory is not None:
        extra.cell.memory.written()
