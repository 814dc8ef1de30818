"""A cotangent that adds itself into the buffer already there, so that adjoints of indexing cost what they touch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aotgrad_runtime.records import record

__all__ = ["Accumulate"]


@record(frozen=True)
class Accumulate:
    """``into(acc)`` gives ``acc`` plus this cotangent; ``like`` has the type of the whole (zeros of it start the sum)."""

    like: Any
    into: Callable[[Any], Any]
