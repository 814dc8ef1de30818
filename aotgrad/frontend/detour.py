"""Takes calls of compiled functions off the trampoline while somebody must see them in Python: anomaly mode, the profiler, region hooks."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from aotgrad_runtime import forks

__all__ = ["paused", "register", "shift"]


class _Shared:
    def __init__(self) -> None:
        self.lock = forks.safe(threading.RLock())
        self.count = 0
        self.states: weakref.WeakSet[Any] = weakref.WeakSet()


_shared = _Shared()


def paused() -> bool:
    """Whether fast paths must stay off."""
    return _shared.count > 0


def register(state: Any) -> None:
    """A compiled function: its ``pause(True)`` takes the fast path off, ``pause(False)`` puts it back."""
    with _shared.lock:
        _shared.states.add(state)
        if _shared.count:
            state.pause(True)


def shift(step: int) -> None:
    """One more reason (1), or one fewer (-1), in any thread."""
    with _shared.lock:
        before, _shared.count = _shared.count, _shared.count + step
        if (before == 0) != (_shared.count == 0):
            for state in list(_shared.states):
                state.pause(_shared.count > 0)
