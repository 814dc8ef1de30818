"""Results of a trace that are no arrays and hold traced values: sets, views of dicts, generators, objects of other classes. Nothing would ever put numbers in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np

from aotgrad_runtime.errors import AotgradTypeError
from aotgrad_runtime.tensor import Tensor

from .pytree import TreeDef
from .sources import attribute
from .trace import Trace, Traced

__all__ = ["check", "reached", "result_paths"]

_DEEP, _MANY = 6, 2000
_ATOMS = (int, float, complex, str, bytes, type(None), type, ModuleType, BuiltinFunctionType, np.ndarray, np.generic, np.dtype)
_VIEWS: tuple[Any, ...] = (type({}.keys()), type({}.values()), type({}.items()))


def check(x: Any, name: str, path: str) -> None:
    """Raises ``AotgradTypeError`` where the leaf ``x`` of a result, at ``path``, runs later or holds a traced value."""
    if isinstance(x, _ATOMS):
        return
    kind = type(x).__name__
    if isinstance(x, Iterator) and not hasattr(x, "fileno"):
        raise AotgradTypeError(f"{name}: {path} is a {kind}, which would run only after the function has ended; return list(...) of it")
    found = _find([("", x)])
    if found is None:
        return
    where = found[0]
    if isinstance(x, (set, frozenset)) or type(x) in _VIEWS:
        raise AotgradTypeError(f"{name}: {path} is a {kind} of computed values; return a list or tuple of them (list(...))")
    raise AotgradTypeError(f"{name}: {path} is a {kind} that holds a computed value ({path}{where}), and nothing could fill in its number at the next call. Return "
                           "arrays, numbers, and tuples, lists, dicts, named tuples or dataclasses of them, and make the object from these outside")


def reached(roots: Sequence[tuple[str, Any]], trace: Trace) -> tuple[str, Any] | None:
    """A value of ``trace`` that one of these (names and objects) holds, and where; None where none is found."""
    return _find([(path, x) for path, x in roots if not isinstance(x, (*_ATOMS, Tensor, FunctionType))], trace)


def _find(level: list[tuple[str, Any]], trace: Trace | None = None) -> tuple[str, Any] | None:
    """How to get to a traced value (of ``trace``, where one is given) that these hold, and that; None where none is found."""
    seen = {id(x) for _, x in level}
    for _ in range(_DEEP):
        below = []
        for path, at in level:
            for step, value in _parts(at):
                if isinstance(value, Traced):
                    if trace is None or value._trace is trace:
                        return path + step, value
                    continue
                if not isinstance(value, _ATOMS) and id(value) not in seen and len(seen) < _MANY:
                    seen.add(id(value))
                    below.append((path + step, value))
        level = below
    return None


def _parts(x: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(x, dict):
        yield from ((f"[{k!r}]", v) for k, v in x.items())
    elif isinstance(x, (list, tuple)):
        yield from ((f"[{i}]", v) for i, v in enumerate(x))
    elif isinstance(x, (set, frozenset)) or type(x) in _VIEWS:
        yield from ((" (an element)", v) for v in x)
    elif isinstance(x, FunctionType):
        yield from (("'s default", v) for v in x.__defaults__ or ())
        for name, cell in zip(x.__code__.co_freevars, x.__closure__ or ()):
            try:
                yield f"'s variable {name}", cell.cell_contents
            except ValueError:
                continue
    else:
        yield from ((f".{k}", v) for k in ("__self__", "func", "args", "keywords") if (v := attribute(x, k)) is not None)
        yield from ((f".{k}", v) for k, v in attribute(x, "__dict__", {}).items())
        for k in [k for c in type(x).__mro__ for k in _slots(c)]:
            if (v := attribute(x, k)) is not None:
                yield f".{k}", v


def _slots(c: type) -> Sequence[str]:
    found = c.__dict__.get("__slots__", ())
    return (found,) if isinstance(found, str) else tuple(found)


def result_paths(tree: TreeDef, base: str = "the result") -> list[str]:
    """How a caller would write each leaf of a result."""
    if tree.kind is None:
        return [base]
    if tree.kind == "none":
        return []
    if tree.meta == ("named",) and issubclass(tree.kind, tuple):
        steps = [f".{n}" for n in tree.kind._fields]
    elif tree.meta[:1] == ("dataclass",) and not issubclass(tree.kind, dict):
        steps = [f".{n}" for n in tree.meta[1:]]
    else:
        steps = [f"[{k!r}]" for k in (tree.meta if issubclass(tree.kind, dict) else range(len(tree.children)))]
    return [p for step, child in zip(steps, tree.children) for p in result_paths(child, base + step)]
