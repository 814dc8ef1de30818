"""Whether what a step makes is gone after it without the cyclic collector."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any


def check(step: Callable[[], Any], first: int, times: int, most: int = 50) -> None:
    """``times`` steps leave less than ``most`` objects that the collector knows, after ``first`` others (programs are kept, and compiled when they are repeated)."""
    for _ in range(first):
        step()
    gc.collect()
    gc.disable()
    try:
        step()
        before = len(gc.get_objects())
        for _ in range(times):
            step()
        assert len(gc.get_objects()) - before < most
    finally:
        gc.enable()
