"""Where a hidden input came from, so that a rebound name is seen at the next call: closure cell, global, attribute, or the object itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from aotgrad_runtime.call import Attr, Cell, Fixed, Global
from aotgrad_runtime.records import record
from aotgrad_runtime.tensor import Tensor

__all__ = ["Argument", "GradOf", "Item", "Path", "attribute", "fast", "locate", "memory_of", "plain", "put", "read", "shown"]


@record(frozen=True)
class Path:
    """A place: attributes (".", name) and items ("[", key) from a closure cell, a global or an object."""

    root: Cell | Global | Fixed
    steps: tuple[tuple[str, Any], ...] = ()

    def attribute(self, name: str) -> Path:
        """The place one attribute further."""
        return Path(self.root, (*self.steps, (".", name)))

    def item(self, key: Any) -> Path:
        """The place one item further."""
        return Path(self.root, (*self.steps, ("[", key)))

    def __str__(self) -> str:
        return shown(self.root) + "".join(f".{k}" if how == "." else f"[{k!r}]" for how, k in self.steps)


@record(frozen=True)
class Argument:
    """A leaf of the arguments."""

    index: int


@record(frozen=True)
class GradOf:
    """The gradient of the tensor at a place."""

    owner: Any


class Item:
    """An item of a dict: ``holder.get(key)``."""

    __slots__ = ("holder", "key")

    def __init__(self, holder: Any, key: Any) -> None:
        self.holder, self.key = holder, key


def shown(source: Any) -> str:
    """A source as the user would write it."""
    if isinstance(source, GradOf):
        return f"{shown(source.owner)}.grad"
    if isinstance(source, (Argument, Item)):
        return f"argument {source.index}" if isinstance(source, Argument) else f"{type(source.holder).__name__}[{source.key!r}]"
    if isinstance(source, Attr):
        return ".".join([shown(source.base), *source.path])
    if isinstance(source, Fixed):
        return "the object itself" if isinstance(source.obj, (np.ndarray, Tensor)) else type(source.obj).__name__
    return source.key if isinstance(source, Global) else "a closure variable" if isinstance(source, Cell) else str(source)


def attribute(x: Any, name: str, default: Any = None) -> Any:
    """``getattr`` of any object of the user's: a ``__getattr__`` may fail as it likes."""
    try:
        return getattr(x, name, default)
    except Exception:
        return default


def memory_of(x: Any) -> Any:
    """The object that owns the memory of an array or tensor: views of one array have the same."""
    x = x._data if isinstance(x, Tensor) else x
    while isinstance(x, np.ndarray) and x.base is not None:
        x = x.base
    return x


def plain(path: Path) -> Any:
    """The place as the trampoline knows them; None where it goes through items."""
    if not path.steps:
        return path.root
    return Attr(path.root, tuple(str(k) for _, k in path.steps)) if all(how == "." for how, _ in path.steps) else None


def locate(obj: Any, f: Callable[..., Any], holders: Sequence[Any] = ()) -> Any:
    """The source of ``obj`` as seen from ``f``: its closure, its globals, attributes of what these hold, of the object ``f`` is bound to,
    or of ``holders`` (its arguments)."""
    for holder in holders:
        path = _attribute(obj, holder)
        if path is not None:
            return Attr(Fixed(holder), path)
    seen: set[int] = set()
    work = [f]
    while work:
        fn = work.pop()
        if id(fn) in seen:
            continue
        seen.add(id(fn))
        fn = attribute(fn, "__wrapped__", fn)
        owner = attribute(fn, "__self__")
        fn = attribute(fn, "__func__", fn)
        code = attribute(fn, "__code__")
        if not isinstance(code, CodeType):  # of the classes of functions it is a descriptor
            code, call = None, type(fn).__call__
            if owner is None and isinstance(call, FunctionType):
                owner, code, fn = fn, call.__code__, call
        found = _search(obj, fn, code, owner, work)
        if found is not None:
            return found
    return Fixed(obj)


def _search(obj: Any, fn: Any, code: Any, owner: Any, work: list[Any]) -> Any:
    roots: list[tuple[Any, Any]] = [] if owner is None else [(Fixed(owner), owner)]
    for cell in (fn.__closure__ or ()) if isinstance(fn, FunctionType) else ():
        try:
            roots.append((Cell(cell), cell.cell_contents))
        except ValueError:
            continue
    namespace = fn.__globals__ if isinstance(fn, FunctionType) else {}
    names = list(code.co_names) if code is not None else []
    roots += [(Global(namespace, n), namespace[n]) for n in names if n in namespace]
    for source, value in roots:
        if value is obj:
            return source
    for source, value in roots:
        if callable(value) and (attribute(value, "__code__") or attribute(value, "__wrapped__")):
            work.append(value)
        path = _attribute(obj, value)
        if path is not None:
            return Attr(source, path)
    return None


_DEPTH, _BREADTH = 4, 2000


def _attribute(obj: Any, root: Any) -> tuple[str, ...] | None:
    """The path of attributes from ``root`` to ``obj``, breadth first, a few levels deep."""
    level: list[tuple[tuple[str, ...], Any]] = [((), root)]
    seen = {id(root)}
    for _ in range(_DEPTH):
        below: list[tuple[tuple[str, ...], Any]] = []
        for path, at in level:
            fields = attribute(at, "__dict__")
            if not isinstance(fields, dict) or isinstance(at, (type, ModuleType, FunctionType, np.ndarray, Tensor)):
                continue
            for name, value in fields.items():
                if value is obj:
                    return (*path, name)
                if id(value) not in seen and len(seen) < _BREADTH:
                    seen.add(id(value))
                    below.append(((*path, name), value))
        level = below
    return None


def read(obj: Any, source: Any, leaves: Sequence[Any] = ()) -> Any:
    """What the source holds now. ``leaves``: the arguments of the call."""
    if isinstance(source, GradOf):
        return read(None, source.owner, leaves).grad
    if isinstance(source, Argument):
        return leaves[source.index]
    if isinstance(source, Item):
        return source.holder.get(source.key)
    if isinstance(source, Path):
        at = read(None, source.root)
        for how, key in source.steps:
            at = getattr(at, key) if how == "." else at[key]
        return at
    if isinstance(source, Cell):
        return source.cell.cell_contents
    if isinstance(source, Global):
        return source.namespace[source.key]
    if isinstance(source, Attr):
        at = read(obj, source.base)
        for name in source.path:
            at = getattr(at, name)
        return at
    return source.obj if isinstance(source, Fixed) else obj


def put(path: Path, value: Any) -> None:
    """Binds a place to ``value``."""
    root = path.root
    if not path.steps:
        if isinstance(root, Cell):
            root.cell.cell_contents = value
        elif isinstance(root, Global):
            root.namespace[root.key] = value
        return
    at = read(None, Path(root, path.steps[:-1]))
    how, key = path.steps[-1]
    if how == ".":
        setattr(at, key, value)
    else:
        at[key] = value


def fast(source: Any) -> Any:
    """The source for the trampoline, None where it must go through Python (tensors)."""
    if isinstance(source, (Path, GradOf, Argument, Item)):
        return None
    now = read(source.obj if isinstance(source, Fixed) else None, source)
    return source if type(now) is np.ndarray else None
