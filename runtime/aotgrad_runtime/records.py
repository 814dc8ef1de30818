"""Data classes that cost little to declare: ``record`` is ``dataclasses.dataclass`` with its methods made when they are first called, or shared.

The standard decorator compiles four to seven functions for every class when its module is imported, 0.2 to 0.5 ms each: two thirds of what importing the compiler took.
Here nothing is done before the first instance, and ``__init__`` is compiled when a class turns out to have more than a few: most classes of a first call have one or two.
Fields, defaults, ``field``, ``replace``, ``__post_init__`` and patterns are the standard ones. There are no keyword-only fields, order, slots or ``InitVar``.
"""

from __future__ import annotations

import dataclasses
import operator
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from . import forks

__all__ = ["record"]

_LOCK: Final = forks.safe(threading.RLock())  # of looking at fields, which the standard decorator takes out of the class
_MISSING: Final = dataclasses.MISSING
_FEW: Final = 32  # instances whose fields are set one by one, 2 us each: compiling takes as long as 50


class _Part(NamedTuple):
    """What the methods need to know of a field."""

    name: str
    default: Any = _MISSING
    factory: Any = _MISSING
    init: bool = True
    repr: bool = True
    compare: bool = True


class _Fields:
    """In place of ``__dataclass_fields__``: the standard ones, made when somebody asks."""

    def __init__(self, cls: type[Any]) -> None:
        self.cls = cls

    def __get__(self, _: Any, owner: type[Any]) -> Any:
        with _LOCK:
            if vars(self.cls)["__dataclass_fields__"] is self:
                dataclasses.dataclass(init=False, repr=False, eq=False)(self.cls)  # puts its own there, and the defaults into the class
        return vars(self.cls)["__dataclass_fields__"]


def _parts(cls: type[Any]) -> list[_Part]:
    own, types = vars(cls), cls.__annotations__
    with _LOCK:
        plain = isinstance(own["__dataclass_fields__"], _Fields) and not any("__dataclass_fields__" in vars(c) for c in cls.__mro__[1:])
        if plain and not any("ClassVar" in str(t) for t in types.values()):
            found = [_part(name, own.get(name, _MISSING)) for name in types]
            if all(p.init or p.default is _MISSING for p in found):
                return found
        return [_part(f.name, f) for f in dataclasses.fields(cls)]


def _part(name: str, found: Any) -> _Part:
    if not isinstance(found, dataclasses.Field):
        return _Part(name, found)
    return _Part(name, found.default, found.default_factory, found.init, found.repr, found.compare)


def _cannot_change(self: Any, name: str, *_: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"{name!r} of a {type(self).__name__} cannot be changed; use dataclasses.replace")


def _values(parts: Sequence[_Part], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """The fields of an instance, None for arguments that do not fit."""
    names = [p.name for p in parts if p.init]
    given = dict(zip(names, args))
    if len(args) > len(names):
        return None
    if kwargs:
        if not given.keys().isdisjoint(kwargs) or not kwargs.keys() <= set(names):
            return None
        given.update(kwargs)
    found = {}
    for p in parts:
        if p.name in given:
            found[p.name] = given[p.name]
        elif p.factory is not _MISSING:
            found[p.name] = p.factory()
        elif p.init and p.default is _MISSING:
            return None
        elif p.init:
            found[p.name] = p.default  # otherwise the class has the default, if there is one
    return found


def _first(cls: type[Any], parts: Callable[[], Sequence[_Part]], frozen: bool) -> Callable[..., None]:
    """The ``__init__`` of the first instances, which puts the compiled one in its place."""
    left, names = _FEW, tuple[str, ...]()  # ``names``: of the fields, where each is a parameter
    put = object.__setattr__ if frozen else setattr
    post = hasattr(cls, "__post_init__")

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal left, names
        if left == _FEW and all(p.init for p in parts()):
            names = tuple(p.name for p in parts())
        left -= 1
        found: dict[str, Any] | None
        if left >= 0 and names and len(args) == len(names) and not kwargs:
            found = dict(zip(names, args))
        else:
            found = _values(parts(), args, kwargs) if left >= 0 else None
        if found is None:  # too many, or the compiled one says what is wrong
            done: Any = cls
            done.__init__ = _initialiser(cls, parts(), frozen)
            done.__init__(self, *args, **kwargs)
            return
        for name, value in found.items():
            put(self, name, value)
        if post:
            self.__post_init__()

    return __init__


def _initialiser(cls: type[Any], parts: Sequence[_Part], frozen: bool) -> Callable[..., None]:
    """The same, compiled."""
    space: dict[str, Any] = {"_made": _MISSING, "_set": object.__setattr__}
    params, body = ["self"], []
    for p in parts:
        value = p.name
        if p.factory is not _MISSING:
            space[f"_make_{p.name}"] = p.factory
            value = f"_make_{p.name}() if {p.name} is _made else {p.name}" if p.init else f"_make_{p.name}()"
            default = "=_made"
        elif p.default is not _MISSING:
            space[f"_default_{p.name}"] = p.default
            default = f"=_default_{p.name}"
        else:
            default = ""
        if p.init:
            params.append(p.name + default)
        elif p.factory is _MISSING:
            continue
        body.append(f"_set(self, {p.name!r}, {value})" if frozen else f"self.{p.name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    exec(f"def __init__({', '.join(params)}):\n  " + "\n  ".join(body or ["pass"]), space)
    made: Callable[..., None] = space["__init__"]
    made.__qualname__, made.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    return made


def _compared(done: Any, parts: Callable[[], Sequence[_Part]], frozen: bool) -> None:
    key: Callable[[Any], Any] = id

    def first(x: Any) -> Any:
        nonlocal key
        names = [p.name for p in parts() if p.compare]
        key = operator.attrgetter(*names) if len(names) > 1 else lambda x: tuple(getattr(x, n) for n in names)
        return key(x)

    key = first
    done.__eq__ = lambda self, other: key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented
    own = vars(done)
    if "__hash__" not in own or own["__hash__"] is None:
        done.__hash__ = (lambda self: hash(key(self))) if frozen else None


def _shown(parts: Callable[[], Sequence[_Part]]) -> Callable[[Any], str]:
    def shown(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{p.name}={getattr(self, p.name)!r}' for p in parts() if p.repr)})"

    return shown


def _with_methods(cls: type[Any], frozen: bool, eq: bool) -> type[Any]:
    cls.__doc__ = cls.__doc__ or cls.__name__  # the standard decorator would write a signature
    done: Any = cls
    done.__dataclass_fields__ = _Fields(cls)
    setattr(cls, "__match_args__", tuple(cls.__annotations__))  # noqa: B010  (mypy refuses the plain form)
    found: list[_Part] = []

    def parts() -> Sequence[_Part]:
        if not found:
            found[:] = _parts(cls)
        return found

    own = vars(cls)
    done.__init__ = _first(cls, parts, frozen)
    if "__repr__" not in own:
        done.__repr__ = _shown(parts)
    if frozen:
        done.__setattr__ = done.__delattr__ = _cannot_change
    if eq and "__eq__" not in own:
        _compared(done, parts, frozen)
    return cls


def _record(cls: type[Any] | None = None, /, *, frozen: bool = False, eq: bool = True) -> Any:
    return (lambda c: _with_methods(c, frozen, eq)) if cls is None else _with_methods(cls, frozen, eq)


if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:
    record = _record
