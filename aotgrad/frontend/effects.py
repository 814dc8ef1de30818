"""What a function changes in Python while it is traced: numbers and containers that it can name, arrays it writes to, attributes it binds.

A program repeats none of that. Where it matters for the numbers (the function, run once more, gives another program), a trace is for one call: the function is traced
again at the next, as Python runs it, and a warning says so. Else it is what happens while tracing, and ``explain`` lists it.
What is bound to a computed value (``self.h = h``) is set at every call instead; arrays of NumPy that are written are refused with the line.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from aotgrad_runtime.call import Fixed
from aotgrad_runtime.errors import AotgradTypeError, AotgradWarning
from aotgrad_runtime.tensor import Tensor

from .sources import Path, put, read
from .trace import Traced, raised_at
from .watch import print_of, survey

__all__ = ["Before", "warn"]

_SMALL = 1 << 24  # bytes of arrays that are kept to be compared; those beyond are not


class Before:
    """What the function ``f`` can name (and ``holders``, its arguments), before it runs."""

    def __init__(self, f: Callable[..., Any], holders: Sequence[Any]) -> None:
        found, _ = survey(f, holders)
        self.places = [(path, value, print_of(value)) for path, value in found if path.steps or not isinstance(value, np.ndarray)]
        self.containers = [(v, v.copy()) for v in {id(v): v for _, v in found if type(v) in (list, dict, set)}.values()]
        objects = {id(v): v for _, v in found if not isinstance(v, (type, ModuleType, FunctionType, np.ndarray, Tensor)) and type(getattr(v, "__dict__", None)) is dict}
        self.fields = [(v.__dict__, set(v.__dict__)) for v in objects.values()]
        self.arrays: list[tuple[Path, Any, Any]] = []
        left, seen = _SMALL, set()
        for path, value in found:
            if type(value) is np.ndarray and value.dtype != object and id(value) not in seen and value.nbytes <= left:
                seen.add(id(value))
                left -= value.nbytes
                self.arrays.append((path, value, value.copy()))

    def changed(self) -> Iterator[tuple[Path, Any, Any]]:
        """Places that hold something else now: what they held, and what they hold."""
        for path, value, seen in self.places:
            try:
                now = read(None, path)
            except Exception:  # gone, or a property that does not work now
                continue
            if now is not value and isinstance(now, Traced) or print_of(now) != seen:
                yield path, value, now

    def undo(self) -> None:
        """Everything as it was before, so that the function can run again."""
        for path, value, _ in list(self.changed()):
            if path.steps or not isinstance(path.root, Fixed):
                put(path, value)
        for held, kept in self.containers:
            if isinstance(held, list):
                held[:] = kept
            else:
                held.clear()
                held.update(kept)
        for fields, names in self.fields:
            for name in fields.keys() - names:
                del fields[name]

    def settle(self, name: str) -> tuple[list[tuple[Path, Any]], list[Path]]:
        """Places that are bound to computed values, which get what they held before again; and places that have changed otherwise."""
        bound, other = list[tuple[Path, Any]](), list[Path]()
        for path, value, now in list(self.changed()):
            if isinstance(now, Traced):
                bound.append((path, now))
                put(path, value)
            else:
                other.append(path)
        for fields, names in self.fields:
            for key in [k for k in fields if k not in names and isinstance(fields[k], Traced)]:
                bound.append((Path(Fixed(fields)).item(key), fields.pop(key)))
        return bound, other

    def written(self) -> list[tuple[Path, Any]]:
        """Arrays with other numbers than before; they get those of before again."""
        found = [(path, array, kept) for path, array, kept in self.arrays if not np.array_equal(array, kept, equal_nan=array.dtype.kind in "fc")]
        for _, array, kept in found:
            array[...] = kept
        return [(path, array) for path, array, _ in found]

    def refuse(self, name: str, again: Callable[[], Any]) -> None:
        """Raises ``AotgradTypeError`` where an array was written; ``again`` runs the function once more, to find the line."""
        found = self.written()
        if not found:
            return
        place = None
        for _, array in found:
            array.flags.writeable = False
        try:
            again()
        except Exception as error:
            place = raised_at(error)
        finally:
            for _, array in found:
                array.flags.writeable = True
        where = f"{place}: {place.source}\n  " if place is not None and place.source else f"{place}: " if place is not None else ""
        raise AotgradTypeError(f"{where}{name} writes into the NumPy array {found[0][0]}, which it finds in a variable: it would happen once, while it is traced. "
                               "Keep such state in an ag.tensor, which compiled functions write at every call, or pass the array in and return the new one")


def warn(name: str, paths: Sequence[Path]) -> None:
    """Tells that the function will be traced at every call."""
    warnings.warn(f"{name} changes {', '.join(dict.fromkeys(map(str, paths)))} while it is traced. Compiled code does not repeat that, so it is traced again at every "
                  "call; keep counters in an ag.tensor (self.n = ag.tensor(0); self.n += 1), which compiled code updates, or move the change out of the function",
                  AotgradWarning, stacklevel=2)
