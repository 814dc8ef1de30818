"""What a function changes in Python while it is traced: numbers and containers that it can name, arrays it writes to, attributes it binds.

A program repeats none of that. Where it matters for the numbers (the function, run once more, gives another program), a trace is for one call: the function is traced
again at the next, as Python runs it, and a warning says so. Else it is what happens while tracing, and ``explain`` lists it.
What is bound to a computed value, or to a container of such (``self.h = h, c``), is set at every call instead, and so are the contents of lists; arrays of NumPy that are
written, and computed values in other places, are refused with the line.
"""

from __future__ import annotations

import gc
import itertools
import operator
import warnings
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from types import FunctionType, GeneratorType, ModuleType
from typing import Any

import numpy as np

from aotgrad_runtime.call import ABSENT, Fixed
from aotgrad_runtime.errors import AotgradTypeError, AotgradWarning
from aotgrad_runtime.records import record
from aotgrad_runtime.tensor import Tensor

from . import leaks
from .alone import alone, others_run
from .pytree import tree_flatten, tree_unflatten
from .sizes import TracedSize, plain_size
from .sources import Path, attribute, put, read
from .trace import Trace, Traced, raised_at
from .watch import print_of, survey

__all__ = ["Before", "Settled", "warn"]

_CONTAINERS = (list, dict, set, deque, defaultdict, OrderedDict)
_VALUES, _TREES = (Traced, TracedSize), (list, tuple, dict)
_SMALL = 1 << 24  # bytes of arrays that are kept to be compared; those beyond are not


@record
class Settled:
    """``bound``: places and the computed values (or containers of such) that they get; ``contents``: the same for what is in a list; ``other``: what else has changed."""

    bound: list[tuple[Path, Any]] = field(default_factory=list)
    contents: list[tuple[Path, list[Any]]] = field(default_factory=list)
    other: list[Path] = field(default_factory=list)


def computed(x: Any) -> bool:
    """Whether ``x`` is a computed value or size, or a container of such."""
    return isinstance(x, _VALUES) or isinstance(x, _TREES) and any(isinstance(v, _VALUES) for v in tree_flatten(x)[0])


def _plain_sizes(x: Any, trace: Trace) -> Any:
    """``x`` with sizes as numbers, which the trace then holds for."""
    leaves, tree = tree_flatten(x)
    if not any(isinstance(v, TracedSize) for v in leaves):
        return x
    return tree_unflatten(tree, [trace.fix(plain_size(v)) if isinstance(v, TracedSize) else v for v in leaves])


def _refill(held: Any, kept: Any) -> None:
    """What is as it was stays untouched: the names of a module may be among it, and those of Python, which nothing can do without."""
    if len(held) == len(kept) and all(map(operator.is_, held, kept)) and (not isinstance(held, dict) or all(map(operator.is_, held.values(), kept.values()))):
        return
    held.clear()
    (held.extend if isinstance(held, (list, deque)) else held.update)(kept)


def _place_of(x: Any, depth: int = 4) -> Any:
    """How far an iterator has come, as far as it tells: what is left of it, the frame of a generator, and the same of iterators inside (of ``zip``, ``enumerate``)."""
    if isinstance(x, GeneratorType):
        return x.gi_frame and (x.gi_frame.f_lasti, {k: id(v) for k, v in x.gi_frame.f_locals.items()})
    if isinstance(x, (itertools.count, itertools.repeat)):
        return repr(x)
    try:
        left = x.__length_hint__() if hasattr(x, "__length_hint__") else None
    except Exception:
        left = None
    inside = [y for held in gc.get_referents(x) for y in (held if isinstance(held, tuple) else (held,))]
    return left, [_place_of(y, depth - 1) for y in inside if depth and isinstance(y, Iterator)]


class Before:
    """What the function ``f`` can name (and ``holders``, its arguments), before it runs."""

    def __init__(self, f: Callable[..., Any], holders: Sequence[Any]) -> None:
        self.of, self.shared = (f, holders), others_run()
        self.found = found = [(path, value) for path, value in survey(f, holders)[0] if value is not ABSENT]  # what comes new is seen below
        self.places = [(path, value, print_of(value)) for path, value in found if path.steps or not isinstance(value, np.ndarray)]
        containers = {id(v): (path, v) for path, v in reversed(found) if type(v) in _CONTAINERS}
        self.containers = [(path, v, v.copy()) for path, v in containers.values()]
        objects = {id(v): v for _, v in found if not isinstance(v, (type, ModuleType, FunctionType, np.ndarray, Tensor)) and type(attribute(v, "__dict__")) is dict}
        self.fields = [(v.__dict__, dict(v.__dict__)) for v in objects.values()]
        self.iterators = [(path, value, _place_of(value)) for path, value in found if isinstance(value, Iterator)]
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
            if now is not value and (isinstance(now, Traced) or computed(now)) or print_of(now) != seen:
                yield path, value, now

    def undo(self) -> None:
        """Everything as it was before, so that the function can run again."""
        for path, value, _ in self.changed():
            if path.steps or not isinstance(path.root, Fixed):
                put(path, value)
        for _, held, kept in self.containers:
            _refill(held, kept)
        for fields, names in self.fields:
            for name in fields.keys() - names.keys():
                del fields[name]
            for name in names.keys() - fields.keys():
                fields[name] = names[name]

    def repeat(self, run: Callable[[], Any]) -> Any:
        """``run()``, a trace, from how everything was before, while other threads wait; then everything is as it is now again. None where it raises, and
        where there are no others."""
        if not self.shared and not others_run():
            return None
        with alone():
            after = Before(*self.of)
            self.undo()
            try:
                found = run()
            except Exception:
                return None
            finally:
                after.undo()
        found.undo = after.undo
        return found

    def settle(self, trace: Trace) -> Settled:
        """Places that are bound to computed values, which get what they held before again; and places that have changed otherwise."""
        out = Settled()
        for path, held, kept in self.containers:
            if isinstance(held, (list, deque)):
                new = [x for x in held if computed(x)]
                if new and (len(held) != len(kept) or not all(a is b or computed(a) for a, b in zip(held, kept))):
                    out.contents.append((path, [_plain_sizes(x, trace) for x in held]))
                    _refill(held, kept)
            elif isinstance(held, dict):
                for key in [k for k, v in held.items() if k not in kept and computed(v)]:
                    out.bound.append((Path(Fixed(held)).item(key), _plain_sizes(held.pop(key), trace)))
        for path, value, now in self.changed():  # what is put back takes what lies below with it
            if computed(now):
                out.bound.append((path, _plain_sizes(now, trace)))
                put(path, value)
            else:
                out.other.append(path)
        for fields, names in self.fields:
            for key in [k for k in fields if k not in names and computed(fields[k])]:
                out.bound.append((Path(Fixed(fields)).item(key), _plain_sizes(fields.pop(key), trace)))
        self._refuse_kept(trace)
        return out

    def _refuse_kept(self, trace: Trace) -> None:
        """Raises where a computed value is still found: nothing would put its number there."""
        found = leaks.reached([(str(path), value) for path, value, _ in self.places], trace)
        if found is not None:
            path, value = found
            loc = None if value._value.op is None else value._value.op.loc
            where = "" if loc is None else f"{loc}: {loc.source}\n  " if loc.source else f"{loc}: "
            raise AotgradTypeError(f"{where}{trace.name} keeps this computed value in {path}, where nothing could fill in its number at the next call. Return it, or "
                                   "keep it in a list, a dict or an attribute (also in tuples there)")

    def written(self) -> list[tuple[Path, Any, Any]]:
        """Arrays with other numbers than before, and these; they get those of before again."""
        found = [(path, array, kept, array.copy()) for path, array, kept in self.arrays if not np.array_equal(array, kept, equal_nan=array.dtype.kind in "fc")]
        for _, array, kept, _ in found:
            array[...] = kept
        return [(path, array, now) for path, array, _, now in found]

    def refuse(self, name: str, again: Callable[[], Any]) -> Any:
        """Raises ``AotgradTypeError`` where an array was written, or an iterator went on; ``again`` traces the function once more, to find the line. Where it was
        another thread that wrote, gives that trace, which has seen the numbers from before; None where nothing was written."""
        taken = next((path for path, x, at in self.iterators if _place_of(x) != at), None)
        if taken is not None:
            raise AotgradTypeError(f"{name} takes from an iterator that it finds ({taken}): it would happen once, while it is traced (and what it took "
                                   "is gone). Take the value outside and pass it in as an argument")
        found = self.written()
        if not found:
            return None
        place, quiet = None, None
        with alone():
            for _, array, _ in found:
                array.flags.writeable = False
            try:
                made = again()
                quiet = made if self.shared or others_run() else None
            except Exception as error:
                place = raised_at(error)
            finally:
                for _, array, now in found:
                    array.flags.writeable = True
                    if quiet is not None:
                        array[...] = now
        if quiet is not None:
            quiet.undo = self.undo
            return quiet
        where = f"{place}: {place.source}\n  " if place is not None and place.source else f"{place}: " if place is not None else ""
        raise AotgradTypeError(f"{where}{name} writes into the NumPy array {found[0][0]}, which it finds in a variable: it would happen once, while it is traced. "
                               "Keep such state in an ag.tensor, which compiled functions write at every call, or pass the array in and return the new one")


def warn(name: str, paths: Sequence[Path]) -> None:
    """Tells that the function will be traced at every call."""
    warnings.warn(f"{name} changes {', '.join(dict.fromkeys(map(str, paths)))} while it is traced. Compiled code does not repeat that, so it is traced again at every "
                  "call; keep counters in an ag.tensor (self.n = ag.tensor(0); self.n += 1), which compiled code updates, return what a list should get, or move the "
                  "change out of the function",
                  AotgradWarning, stacklevel=2)
