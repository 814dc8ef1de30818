"""Data classes that cost little to declare: ``record`` is ``dataclasses.dataclass`` with its methods made when they are first called, or shared.

The standard decorator compiles four to seven functions for every class when its module is imported, 0.2 to 0.5 ms each: two thirds of what importing the compiler took.
Fields, defaults, ``field``, ``replace`` and ``__post_init__`` are the standard ones. There are no keyword-only fields, order, slots or ``InitVar``.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

__all__ = ["record"]


def _cannot_change(self: Any, name: str, *_: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"{name!r} of a {type(self).__name__} cannot be changed; use dataclasses.replace")


def _repr(self: Any) -> str:
    inside = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{type(self).__qualname__}({inside})"


def _initialiser(cls: type[Any], frozen: bool) -> Callable[..., None]:
    """The ``__init__`` of the fields of ``cls``, compiled."""
    space: dict[str, Any] = {"_made": dataclasses.MISSING, "_set": object.__setattr__}
    params, body = ["self"], []
    for f in dataclasses.fields(cls):
        value = f.name
        if f.default_factory is not dataclasses.MISSING:
            space[f"_make_{f.name}"] = f.default_factory
            value = f"_make_{f.name}() if {f.name} is _made else {f.name}" if f.init else f"_make_{f.name}()"
            default = "=_made"
        elif f.default is not dataclasses.MISSING:
            space[f"_default_{f.name}"] = f.default
            default = f"=_default_{f.name}"
        else:
            default = ""
        if f.init:
            params.append(f.name + default)
        elif f.default_factory is dataclasses.MISSING:
            continue  # the class has the default, if there is one
        body.append(f"_set(self, {f.name!r}, {value})" if frozen else f"self.{f.name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    exec(f"def __init__({', '.join(params)}):\n  " + "\n  ".join(body or ["pass"]), space)
    made: Callable[..., None] = space["__init__"]
    made.__qualname__, made.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    return made


def _with_methods(cls: type[Any], frozen: bool, eq: bool) -> type[Any]:
    cls.__doc__ = cls.__doc__ or cls.__name__  # the standard decorator would write a signature
    done: Any = dataclasses.dataclass(init=False, repr=False, eq=False)(cls)

    def first(self: Any, *args: Any, **kwargs: Any) -> None:
        done.__init__ = _initialiser(done, frozen)
        done.__init__(self, *args, **kwargs)

    done.__init__ = first
    own = vars(cls)
    if "__repr__" not in own:
        done.__repr__ = _repr
    if frozen:
        done.__setattr__ = done.__delattr__ = _cannot_change
    if eq and "__eq__" not in own:
        names = [f.name for f in dataclasses.fields(done) if f.compare]
        key: Callable[[Any], Any] = operator.attrgetter(*names) if len(names) > 1 else lambda x: tuple(getattr(x, n) for n in names)
        done.__eq__ = lambda self, other: key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented
        if "__hash__" not in own or own["__hash__"] is None:
            done.__hash__ = (lambda self: hash(key(self))) if frozen else None
    return cls


def _record(cls: type[Any] | None = None, /, *, frozen: bool = False, eq: bool = True) -> Any:
    return (lambda c: _with_methods(c, frozen, eq)) if cls is None else _with_methods(cls, frozen, eq)


if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:
    record = _record
