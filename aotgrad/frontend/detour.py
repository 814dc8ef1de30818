"""Takes calls of compiled functions off the trampoline in threads that must see them in Python: anomaly mode, saved-tensor hooks, the profiler, region hooks; and in all
threads where the default dtype, which traces used, has changed."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Final

from aotgrad_runtime import forks, watchers
from aotgrad_runtime.arrays import defaults

__all__ = ["register"]

_lock: Final = forks.safe(threading.RLock())
_states: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def register(state: Any) -> None:
    """A compiled function: its ``pause(True)`` takes the fast path off where a thread watches, ``pause(False)`` puts it back."""
    with _lock:
        _states.add(state)
        if watchers.shared.count:
            state.pause(True)


def _switch(on: bool) -> None:
    with _lock:
        for state in list(_states):
            state.pause(on)


def _renew() -> None:
    with _lock:
        for state in list(_states):
            state.renew()


watchers.shared.add_switch(_switch)
defaults.changed.append(_renew)
