"""Modules that are loaded when first used, so that programs which do not need them start faster."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from . import forks

__all__ = ["door"]

_LOCK: Final = forks.safe(threading.RLock(), outer=True)  # no fork falls into such an import: the child would wait for ever for the lock of a thread it does not have


def door(module: str, package: str, names: Iterable[str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of ``module``: its attributes ``names`` (``__`` for the dot) are modules of ``package``, each imported when first asked for.

    >>> from aotgrad_runtime.later import door
    >>> load = door("aotgrad_runtime.later", "json", ("decoder",))
    >>> load("decoder").__name__
    'json.decoder'
    """
    known = frozenset(names)

    def load(name: str) -> Any:
        if name not in known:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        with _LOCK:
            found = importlib.import_module(f"{package}.{name.replace('__', '.')}")
            setattr(sys.modules[module], name, found)
        return found

    return load
