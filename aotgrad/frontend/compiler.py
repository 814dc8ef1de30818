"""The frontend's only door to the compiler: its modules are loaded when something is compiled, so that importing aotgrad and hits of the cache stay fast.

``compiler.driver.compile_func(...)`` imports ``aotgrad.codegen.driver``, and everything below it, at its first use. No fork falls into that import: the child would
wait for ever for the import lock of a thread that it does not have.
"""

from __future__ import annotations

import importlib
import threading
from typing import TYPE_CHECKING, Any, Final

from aotgrad_runtime import forks

__all__ = ["driver", "recorder", "regions"]

if TYPE_CHECKING:
    from aotgrad.codegen import driver, recorder, regions

_lock: Final = forks.safe(threading.RLock(), outer=True)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _lock:
        found = globals()[name] = importlib.import_module(f"aotgrad.codegen.{name}")
    return found
