"""The frontend's only door to the compiler: its modules are loaded when something is compiled, so that importing aotgrad and hits of the cache stay fast.

``compiler.driver.compile_func(...)`` imports ``aotgrad.codegen.driver``, and what it needs, at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotgrad_runtime.later import door

__all__ = ["driver", "peaks", "recorder", "regions"]

if TYPE_CHECKING:
    from aotgrad.codegen import driver, peaks, recorder, regions
else:
    __getattr__ = door(__name__, "aotgrad.codegen", __all__)
