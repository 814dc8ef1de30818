"""What a trace took for granted about the names it could read: the values of globals, closure cells, attributes and items reached by names in the code.

A trace sees a number behind a name as a constant and an array as a hidden input. Both are right only while the name holds the same value (for constants) or an array
(for inputs), and while two names of one array go on naming one array. ``survey`` lists the places, ``Watch`` remembers what they held.
"""

from __future__ import annotations

import array
import builtins
import ctypes
import dis
import enum
import functools
import inspect
import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from types import CodeType, FunctionType, MappingProxyType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np

from aotgrad_runtime.call import ABSENT, ArgSpec, Cell, Fixed, Global
from aotgrad_runtime.records import record
from aotgrad_runtime.tensor import Tensor

from .contents import Content
from .sources import Path, attribute, locate, plain, read
from .static import static_key
from .trace import Traced

__all__ = ["RENEWED", "Watch", "find_inputs", "is_code", "is_defaults", "listed", "print_of", "survey", "watch"]

_MISSING = ABSENT
RENEWED = object()  # in place of an object that every call replaces
_DEPTH, _BREADTH, _ITEMS, _SPECS = 5, 2000, 256, 64
_FOREIGN = frozenset(("numpy", "aotgrad", "aotgrad_runtime", "builtins", "scipy", *sys.stdlib_module_names)) - {
    "__main__", "types", "functools", "collections", "argparse"}  # whose objects hold a user's own
_BUFFERS = (bytearray, memoryview, array.array)
_MAPPINGS = (dict, MappingProxyType)
_MUTABLE = (list, *_MAPPINGS, set, deque, *_BUFFERS)
_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic, np.dtype)


def _foreign(name: Any) -> bool:
    return isinstance(name, str) and name.partition(".")[0] in _FOREIGN


def _elsewhere(fn: FunctionType) -> bool:
    """Whether a function is not the user's; ``functools.wraps`` gives it the module of another, its globals stay its own."""
    return _foreign(fn.__globals__.get("__name__"))


def listed(value: Any) -> bool:
    """Whether an object says itself what it is made of (modules do): ``_ag_parts()`` gives names of attributes, ``_ag_form()`` what a trace depends on besides them."""
    return hasattr(type(value), "_ag_parts")


def _names(code: CodeType) -> Iterator[str]:
    """Names in the code; where it asks for attributes by text, texts that may be such names; and which of those (``?name``) it may look for in vain."""
    yield from code.co_names
    asks, tries = not _ASKS.isdisjoint(code.co_names), "AttributeError" in code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)
        elif asks and isinstance(inner, str) and inner.isidentifier():
            yield from (inner, f"?{inner}")
    if tries:
        yield from (f"?{i.argval}" for i in dis.get_instructions(code) if i.opname in ("LOAD_ATTR", "LOAD_METHOD"))


def _loaded(code: CodeType, *how: str) -> set[str]:
    """Names that instructions of these kinds load."""
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    return {str(i.argval) for i in dis.get_instructions(code) if i.opname in how}.union(*(_loaded(c, *how) for c in inner))


_ASKS = frozenset(("getattr", "hasattr", "attrgetter", "methodcaller", "vars", "__dict__"))
_WHOLE = frozenset(("vars", "__dict__", "asdict", "astuple", "fields"))  # what reads all attributes of an object
_IMPLICIT = frozenset(f"__{name}__" for name in (
    *(f"{way}{op}" for way in ("", "r", "i")
      for op in ("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow", "and", "or", "xor", "lshift", "rshift")),
    "neg", "pos", "abs", "invert", "lt", "le", "eq", "ne", "gt", "ge", "bool", "float", "int", "index", "complex", "round", "call", "iter", "next", "reversed", "len",
    "getitem", "missing", "contains", "enter", "exit", "get", "getattr", "getattribute", "array", "array_ufunc", "array_function")) | {"forward"}
_HOLDS_CODE = (functools.cached_property, functools.partialmethod, functools.singledispatchmethod)


def _wrapped(fn: Any) -> Any:
    """What a decorated function stands for; looked up without the object's own ways, which may fail."""
    return inspect.getattr_static(fn, "__wrapped__", None)


class _Survey:
    """One walk: from a function and objects to everything its code can name."""

    def __init__(self, f: Callable[..., Any], holders: Sequence[Any], names: set[str]) -> None:
        self.names, self.known = names, frozenset(names)
        self.found: list[tuple[Path, Any]] = []
        self.seen: set[int] = set()
        self.functions: dict[int, FunctionType] = {}
        self.wrappers: set[int] = set()
        self.work: deque[tuple[Path, Any]] = deque((Path(Fixed(h)), h) for h in holders)
        self.function(f)
        while self.work and len(self.found) < _BREADTH:
            path, value = self.work.popleft()
            self.found.append((path, value))
            if id(value) not in self.seen and (len(path.steps) < _DEPTH or listed(value)) and not isinstance(value, (*_PLAIN, np.ndarray, Tensor)):
                self.seen.add(id(value))
                self.below(path, value)

    def function(self, fn: Any) -> None:
        """The names that the code of a function reads, and what it is bound to."""
        if isinstance(fn, MethodType):
            self.work.append((Path(Fixed(fn.__self__)), fn.__self__))
            fn = fn.__func__
        inner = _wrapped(fn)
        if inner is not None and id(fn) not in self.wrappers:
            self.wrappers.add(id(fn))
            self.function(inner)
        code = attribute(fn, "__code__")
        if code is None:
            if isinstance(fn, functools.partial) or (not isinstance(fn, type) and inspect.isfunction(inspect.getattr_static(type(fn), "__call__", None))):
                self.work.append((Path(Fixed(fn)), fn))
            return
        if id(fn) in self.functions:
            return
        self.functions[id(fn)] = fn
        foreign = _elsewhere(fn)
        for cell in fn.__closure__ or ():
            try:
                value = cell.cell_contents
            except ValueError:
                continue
            if not foreign:
                self.work.append((Path(Cell(cell)), value))
            elif isinstance(value, (FunctionType, MethodType)):  # what a wrapper of ours or of the library's stands for, which it keeps
                self.function(value)
        if foreign:
            return
        for name in _FUNCTION_PARTS:  # reloading tools give functions new code
            if (held := getattr(fn, name, None)) is not None:  # they are compared by identity; what they hold is looked at below
                self.seen.add(id(held))
                self.work.append((Path(Fixed(fn)).attribute(name), held))
        for value in [*(getattr(fn, "__defaults__", None) or ()), *(getattr(fn, "__kwdefaults__", None) or {}).values()]:
            if not isinstance(value, _PLAIN):  # what is plain stays while the function does
                self.work.append((Path(Fixed(value)), value))
        names = set(_names(code))
        self.names |= names
        self.work.extend((Path(Global(fn.__globals__, n)), fn.__globals__[n]) for n in sorted(names) if n in fn.__globals__)
        hidden = names & vars(builtins).keys() - fn.__globals__.keys()  # which a global of the same name would hide
        self.found.extend((Path(Global(fn.__globals__, n)), _MISSING) for n in sorted(hidden and hidden & _loaded(fn.__code__, "LOAD_GLOBAL", "LOAD_NAME")))

    def below(self, path: Path, value: Any) -> None:
        if listed(value):
            self.work.extend((path.attribute(n), getattr(value, n)) for n in value._ag_parts())
        if type(value) is tuple and isinstance(path.root, Fixed) and not path.steps:  # it stays, and so does what it holds
            self.work.extend((Path(Fixed(v)), v) for v in value[:_ITEMS])
        elif isinstance(value, (list, tuple, deque)):
            self.work.extend((path.item(i), v) for i, v in zip(range(_ITEMS), value))
        elif isinstance(value, _MAPPINGS):
            self.work.extend((path.item(k), value[k]) for k, _ in zip(list(value), range(_ITEMS)))
        elif isinstance(value, functools.partial):
            self.function(value.func)
            self.work.extend((path.attribute(n), getattr(value, n)) for n in ("args", "keywords"))
        elif isinstance(value, (FunctionType, MethodType)) or _wrapped(value) is not None:
            self.function(value)
            if isinstance(value, FunctionType) and not _elsewhere(value):
                self.work.extend((path.attribute(n), vars(value)[n]) for n in sorted(self.known & vars(value).keys()))
        elif isinstance(value, ModuleType):
            if not _foreign(value.__name__):
                self.work.extend((path.attribute(n), vars(value)[n]) for n in sorted(self.known & vars(value).keys()))
        elif not _foreign((value if isinstance(value, type) else type(value)).__module__):
            self.attributes(path, value)

    def attributes(self, path: Path, value: Any) -> None:
        """Attributes of an object or a class that the code names: from the object, its class, slots, and properties."""
        kind = value if isinstance(value, type) else type(value)
        own = attribute(value, "__dict__", {}).keys()
        there = {n for k in kind.__mro__ if not _foreign(k.__module__) for n in vars(k)} | own
        wanted = self.known | _IMPLICIT
        if not isinstance(value, type):
            wanted |= own if not _WHOLE.isdisjoint(self.known) else set()
            asked = {n[1:] for n in self.known if n.startswith("?")} - there
            self.found.extend((path.attribute(n), _MISSING) for n in sorted(asked) if inspect.getattr_static(value, n, _MISSING) is _MISSING)
            if any("__getattr__" in vars(k) for k in kind.__mro__ if not _foreign(k.__module__)):
                self.answered(value, there)
        else:
            above: Any = type(value)
            for name in sorted({n for k in above.__mro__ if not _foreign(k.__module__) for n in vars(k)} & self.known - there):
                self.definition(path, value, name, inspect.getattr_static(above, name))
        for name in sorted(there & wanted):
            for found, where in self.definitions(kind, name):
                self.definition(Path(Fixed(where)), where, name, found)
            self.definition(path, value, name, inspect.getattr_static(value, name, _MISSING))

    def answered(self, value: Any, there: set[str]) -> None:
        """Attributes that ``__getattr__`` may have answered for: a later one of the object or its class takes their place."""
        names = set[str]().union(*(_loaded(fn.__code__, "LOAD_ATTR", "LOAD_METHOD") for fn in self.functions.values())) - there
        own = attribute(value, "__dict__")
        for name in sorted(names):
            self.found.append((Path(Fixed(type(value))).attribute(name), _MISSING))
            if isinstance(own, dict):
                self.found.append((Path(Global(own, name)), _MISSING))

    def definitions(self, kind: type, name: str) -> Iterator[tuple[Any, type]]:
        """Where the classes behind the first have the name too, which ``super()`` reaches."""
        if "super" in self.known:
            having = [k for k in kind.__mro__ if name in vars(k) and not _foreign(k.__module__)]
            yield from ((vars(k)[name], k) for k in having[1:])

    def definition(self, path: Path, value: Any, name: str, found: Any) -> None:
        """What an object or a class has under a name."""
        if isinstance(found, (staticmethod, classmethod)):
            found = found.__func__
        if isinstance(found, property):
            if found.fget is not None:
                self.function(found.fget)
            if isinstance(value, type):
                return
        elif isinstance(found, FunctionType):
            self.method(path, value, name, found)
            return
        elif isinstance(found, _HOLDS_CODE):
            for part in (*getattr(getattr(found, "dispatcher", None), "registry", {}).values(), found.func):
                self.function(part)
            if not isinstance(found, functools.cached_property) or isinstance(value, type):
                return
        elif found is _MISSING or (callable(found) and name.startswith("__")):
            return
        elif hasattr(type(found), "__get__") and not isinstance(found, MemberDescriptorType):
            if not _foreign(type(found).__module__):
                self.work.append((Path(Fixed(found)), found))
                self.function(inspect.getattr_static(type(found), "__get__"))
            return
        try:
            self.work.append((path.attribute(name), getattr(value, name)))
        except Exception:  # an unset slot, or a property that does not work now
            return

    def method(self, path: Path, value: Any, name: str, found: FunctionType) -> None:
        """A function that is reached through an object or its class: there it may be replaced, and the object may get one of its own."""
        self.function(found)
        if _elsewhere(found) or name in _IMPLICIT and not name.startswith(("__call", "__getattr__", "forward")):
            return
        if name.startswith("__") and not isinstance(value, type):  # operators look at the class alone
            path, value = path.attribute("__class__"), type(value)
        path, bound = path.attribute(name), getattr(value, name, None)
        if isinstance(bound, MethodType):
            path, bound = path.attribute("__func__"), bound.__func__
        if bound is found:
            self.found.append((path, found))


def survey(f: Callable[..., Any], holders: Sequence[Any] = ()) -> tuple[list[tuple[Path, Any]], list[FunctionType]]:
    """Places the code of ``f`` can read by name, and what they hold, until no new names turn up; and the functions met on the way."""
    names: set[str] = set()
    for _ in range(6):
        before = len(names)
        walk = _Survey(f, holders, names)
        if len(names) == before:
            break
    return walk.found, list(walk.functions.values())


def find_inputs(objects: Sequence[Any], found: Sequence[tuple[Path, Any]], f: Callable[..., Any], holders: Sequence[Any]) -> list[Any]:
    """Where each array met while tracing is read again: a place that held it, one the trampoline can read if there is one; else a property that makes an equal one."""
    places: dict[int, Any] = {}
    made = [(path, value) for path, value in found if isinstance(value, np.ndarray) and path.steps and _read(path) is not value]
    for path, value in found:
        source = plain(path)
        if id(value) not in places or (source is not None and isinstance(places[id(value)], Path)):
            places[id(value)] = source or path
    out = []
    for obj in objects:
        where = places.get(id(obj)) or locate(obj, f, holders)
        if isinstance(where, Fixed) and isinstance(obj, np.ndarray):
            same = (p for p, v in made if v.dtype == obj.dtype and v.shape == obj.shape and v.tobytes() == obj.tobytes())
            where = next(same, where)
        out.append(where)
    return out


def print_of(value: Any) -> Any:
    """What a trace may have used of a value: numbers themselves, types of arrays, the form of containers, identity of functions and classes."""
    if isinstance(value, (bool, int, float, complex, str, bytes, np.generic, type(None))):
        return static_key(value)
    if isinstance(value, np.ndarray):
        return (type(value), value.dtype, value.shape)
    if isinstance(value, Tensor):
        return (type(value), value.shape, value.dtype, getattr(value, "requires_grad", False))
    if isinstance(value, (list, tuple, deque)):
        beyond = itertools.islice(value, _ITEMS, None)  # the others are places of their own
        return (type(value), len(value), tuple([static_key(v) if isinstance(v, _PLAIN) else id(v) for v in beyond]))
    if isinstance(value, (set, frozenset)):
        return (type(value), frozenset(map(static_key, value)))
    if isinstance(value, _BUFFERS):
        return (type(value), bytes(value))
    if isinstance(value, _MAPPINGS):
        beyond = itertools.islice(value.values(), _ITEMS, None)
        return (type(value), tuple(static_key(k) for k in value), tuple([static_key(v) if isinstance(v, _PLAIN) else id(v) for v in beyond]))
    if listed(value):
        return value._ag_form()
    if isinstance(value, (FunctionType, type, enum.Enum, np.dtype)) or callable(value) or _foreign(type(value).__module__) or attribute(value, "__dict__") is None:
        return static_key(value) if isinstance(value, np.dtype) else ("is", id(value))
    return type(value)


def _read(path: Path) -> Any:
    try:
        return read(None, path)
    except Exception:  # gone: an unset cell, a deleted name, a property that fails
        return _MISSING


def is_defaults(path: Path) -> bool:
    """Whether a place is the defaults of a function."""
    return bool(path.steps) and path.steps[-1] in ((".", "__defaults__"), (".", "__kwdefaults__"))


def is_code(path: Path) -> bool:
    """Whether a place is the code of a function that the trace holds itself."""
    return isinstance(path.root, Fixed) and path.steps == ((".", "__code__"),)


def _unchanged(path: Path, seen: Any, obj: Any) -> bool:
    now = _read(path)
    if obj is RENEWED:
        return bool(print_of(now) == seen)
    if obj is _MISSING or is_defaults(path):
        return now is obj and (seen is None or len(now) == len(seen) and all(now.get(k, _MISSING) is v for k, v in seen.items()))
    if now is _MISSING or (now is not obj or isinstance(now, _MUTABLE) or listed(now)) and print_of(now) != seen:
        return False
    return now is obj or not isinstance(now, (np.ndarray, Tensor))  # views of an array may be inputs


@record
class Watch:
    """``places``: what was seen of names; ``shared``: groups of places that held one object; ``inputs``: places of arrays that are read at every call; ``contents``:
    arrays whose numbers were used."""

    places: list[tuple[Path, Any, Any]] = field(default_factory=list)  # (place, what was seen of it, the object)
    shared: list[list[Path]] = field(default_factory=list)
    inputs: list[Path] = field(default_factory=list)
    arrays: list[Any] = field(default_factory=list)  # what ``inputs`` held
    contents: list[Content] = field(default_factory=list)
    specs: list[ArgSpec] | None = field(default_factory=list)  # for the trampoline, which compares identities; None where it cannot see a change

    def holds(self) -> bool:
        """Whether everything still is as the trace saw it."""
        if not all(_unchanged(*place) for place in self.places) or not all(c.same() for c in self.contents):
            return False
        return all(all(_read(p) is first for p in group[1:]) for group in self.shared for first in [_read(group[0])])

    def changed(self) -> Iterator[Path]:
        """Names that hold something else than at the trace, arrays that are inputs included."""
        yield from (place[0] for place in self.places if not _unchanged(*place))
        yield from (path for path, obj in zip(self.inputs, self.arrays) if _read(path) is not obj)
        yield from (c.path for c in self.contents if not c.same())

    def missing(self) -> str | None:
        """A watched name that is gone."""
        held = [*self.inputs, *(path for path, _, obj in self.places if obj is not _MISSING)]
        return next((str(path) for path in held if _read(path) is _MISSING), None)


def _steps(path: Path) -> Iterator[Any]:
    """For each step to a place: the object it is taken from, and the step."""
    root = path.root
    yield (id(root.namespace), root.key) if isinstance(root, Global) else (id(root.cell if isinstance(root, Cell) else root.obj), None)
    for i, step in enumerate(path.steps):
        yield id(_read(Path(root, path.steps[:i]))), step


def _in_tuples(path: Path) -> bool:
    """Whether a place is an item of a tuple (of tuples) that the trampoline can see replaced."""
    first = next((i for i, step in enumerate(path.steps) if step[0] == "["), len(path.steps))
    return all(how == "[" and type(_read(Path(path.root, path.steps[:i + first]))) is tuple for i, (how, _) in enumerate(path.steps[first:]))


def _slots() -> dict[str, int]:
    """Where a function keeps its code and its defaults, which the trampoline reads in place: as attributes they would be audited."""
    def probe(a: Any = 1, *, b: Any = 2) -> None:
        """For its slots alone."""

    words = [ctypes.c_size_t.from_address(id(probe) + at).value for at in range(0, sys.getsizeof(probe) & -8, 8)]
    return {name: 8 * words.index(at) for name in _FUNCTION_PARTS if (at := id(getattr(probe, name))) in words}


_FUNCTION_PARTS = ("__defaults__", "__kwdefaults__", "__code__")
_SLOTS = _slots()


def _is(path: Path, source: Any, value: Any) -> ArgSpec:
    owner, slot = path.root, _SLOTS.get(path.steps[0][1]) if len(path.steps) == 1 else None
    if slot is None or not isinstance(owner, Fixed) or type(owner.obj) is not FunctionType:
        return ArgSpec("is", source=source, value=value)
    return ArgSpec("is", source=owner, value=value, unwrap=(FunctionType, slot))


def watch(found: Sequence[tuple[Path, Any]], captured: set[int], contents: Sequence[Content], sets: Sequence[Path] = ()) -> Watch:
    """What to look at before each call. ``captured``: ids of the arrays that are inputs; ``contents``: arrays that are compared; ``sets``: places that a call binds."""
    renewed = {[*_steps(path)][-1] for path in sets}
    out, compared = Watch(contents=list(contents)), {id(c.path) for c in contents}
    groups: dict[int, list[tuple[Path, Any]]] = {}
    specs: list[ArgSpec] = []
    fast = True
    for path, value in found:
        if isinstance(value, (ModuleType, Traced)):
            continue
        plain_value = isinstance(value, _PLAIN) or value is _MISSING
        if not plain_value:
            groups.setdefault(id(value), []).append((path, value))
        if id(value) in captured:
            out.inputs.append(path)
            out.arrays.append(value)
            continue
        if not path.steps and isinstance(path.root, Fixed) and not listed(value):
            continue  # an argument, a default or the object a method is bound to: it stays
        if id(path) in compared:
            continue
        bound = renewed and not renewed.isdisjoint(_steps(path))
        if is_defaults(path):
            seen = dict(value) if isinstance(value, dict) else None  # may be written to; the others are tuples
            specs.extend(ArgSpec("is", source=Global(value, k), value=v) for k, v in (seen or {}).items())
        else:
            seen = None if value is _MISSING else print_of(value)
        out.places.append((path, seen, RENEWED if bound else value))
        source = plain(path)
        if source is None and not bound and (plain_value or type(value) is tuple) and _in_tuples(path):
            continue  # it stays while the tuple does
        if bound or source is None or isinstance(value, _MUTABLE) and not is_defaults(path) or listed(value):
            fast = False
        else:
            specs.append(_is(path, source, value))
    for group in groups.values():
        if len(group) > 1:
            out.shared.append([p for p, _ in group])
            for path, value in group:
                source = plain(path)
                if id(value) in captured and source is not None:
                    specs.append(ArgSpec("is", source=source, value=value))
    out.specs = specs if fast and len(specs) <= _SPECS else None
    return out
