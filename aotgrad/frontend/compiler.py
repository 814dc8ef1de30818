"""The frontend's only door to the compiler: its modules are loaded when something is compiled, so that importing aotgrad and hits of the cache stay fast.

``compiler.driver.compile_func(...)`` imports ``aotgrad.codegen.driver``, and everything below it, at its first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["driver", "recorder", "regions"]

if TYPE_CHECKING:
    from aotgrad.codegen import driver, recorder, regions


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = importlib.import_module(f"aotgrad.codegen.{name}")
    return found
