"""The door through which the frontend gives the runtime its operations, once per process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from . import tape
from .dtypes import DType
from .errors import AotgradError
from .records import record
from .tensor import ArrayTensor, Tensor, drop_stubs

__all__ = ["OpsTable", "install", "is_installed"]


@record(frozen=True)
class OpsTable:
    """What the frontend installs.

    ``add(a, b)`` sums two gradients and is recorded in grad mode; ``methods`` go onto ``Tensor``, ``array_methods`` onto ``ArrayTensor`` (they mean NumPy's):
    functions, properties or any descriptors by attribute name, operators under theirs. ``add_into(a, b)`` adds in place without recording, ``cast(a, dtype)``
    converts and is recorded; both are optional. ``guard(method, name)`` gives a method, of the frontend's or the runtime's own, as users call it.
    """

    add: Callable[[Any, Any], Any]
    methods: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    array_methods: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    add_into: Callable[[Any, Any], None] | None = None
    cast: Callable[[Any, DType], Any] | None = None
    guard: Callable[[Any, str], Any] = lambda method, name: method


def install(ops: OpsTable) -> None:
    """Installs the operations; raises ``AotgradError`` the second time, and for a table it cannot use, before anything has changed."""
    if tape.installed.done:
        raise AotgradError("the operations of tensors are installed already; aotgrad_runtime.install may be called once per process")
    for name, method in (("add", ops.add), ("add_into", ops.add_into), ("cast", ops.cast)):
        if not callable(method) and (name == "add" or method is not None):
            raise AotgradError(f"OpsTable.{name} must be callable, got {type(method).__name__}")
    reserved = {name for cls in Tensor.__mro__[:-1] for name in getattr(cls, "__slots__", ())}
    for name in (*ops.methods, *ops.array_methods):
        if name in reserved:
            raise AotgradError(f"OpsTable: {name!r} is storage of Tensor and cannot be a method")
    slot = tape.installed
    drop_stubs()
    slot.add, slot.add_into, slot.cast, slot.done = ops.add, ops.add_into, ops.cast, True
    for cls, methods in ((Tensor, ops.methods), (ArrayTensor, ops.array_methods)):
        for name, method in methods.items():
            _tell_name(cls, name, method, methods)
            setattr(cls, name, method)
        for name, method in list(vars(cls).items()):
            if isinstance(method, FunctionType) and not name.startswith("_"):
                setattr(cls, name, ops.guard(method, name))


def _tell_name(cls: type[Any], name: str, method: Any, methods: Mapping[str, Any]) -> None:
    """A method says what it is called, as wrappers of users print and copy it. One that stands under its own name too keeps that."""
    if isinstance(method, FunctionType) and method.__module__ != cls.__module__ and methods.get(method.__name__) is not method:
        method.__name__, method.__qualname__, method.__module__ = name, f"{cls.__name__}.{name}", cls.__module__


def is_installed() -> bool:
    """Whether the operations are there."""
    return tape.installed.done
