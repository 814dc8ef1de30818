"""Runs beside which no other Python code runs: what has changed meanwhile was changed by the run itself."""

from __future__ import annotations

import sys
import threading
from typing import Final

from aotgrad_runtime import forks

__all__ = ["alone", "others_run"]

_LONG: Final = 1e3  # seconds: longer than any trace
_lock: Final = forks.safe(threading.Lock())


def others_run() -> bool:
    """Whether this process has other threads."""
    return len(sys._current_frames()) > 1


class alone:
    """Context in which other threads wait for their turn; one may still come in where the code inside waits for something."""

    inside = 0
    interval = 0.005

    def __enter__(self) -> None:
        with _lock:
            if not alone.inside:
                alone.interval = sys.getswitchinterval()
                sys.setswitchinterval(_LONG)
            alone.inside += 1

    def __exit__(self, *exc: object) -> None:
        with _lock:
            alone.inside -= 1
            if not alone.inside:
                sys.setswitchinterval(alone.interval)


def _in_child() -> None:
    if alone.inside:  # the thread that forked may be none of those inside
        alone.inside = 0
        sys.setswitchinterval(alone.interval)


forks.after_in_child(_in_child)
