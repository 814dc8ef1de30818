"""Which threads watch: saved-tensor hooks, anomaly mode, the profiler, region hooks. Their calls go the long way, those of all other threads keep the short one.

While no thread watches, nothing asks. Machine code reads the table of thread numbers itself (``address``); Python asks ``state.count``.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Final

from . import forks

__all__ = ["ROOM", "add_switch", "address", "shared", "shift", "state"]

ROOM: Final = 62  # threads that the table can name; with more of them every thread counts as watching


class _Shared:
    """``count``: how many threads watch. ``table``: how many, then their numbers."""

    def __init__(self) -> None:
        self.lock = forks.safe(threading.RLock())  # re-entrant: the collector may drop a token while another is being made
        self.count = 0
        self.table = (ctypes.c_int64 * (1 + ROOM))()
        self.threads: list[int] = []
        self.switches: list[Callable[[bool], None]] = []

    def write(self) -> None:
        """The table anew. Entries come before the count: machine code may read in between, and must find every thread that goes on watching."""
        for i, number in enumerate(self.threads[:ROOM]):
            self.table[1 + i] = number
        self.table[0] = self.count = len(self.threads)


shared: Final = _Shared()


class _Token:
    """Held by a thread that watches; goes away with the thread, so that one that ends inside a block leaves nothing behind."""

    __slots__ = ("shared", "thread")

    def __init__(self) -> None:
        s, self.thread = shared, threading.get_ident()
        self.shared = s
        with s.lock:
            s.threads.append(self.thread)
            s.write()
            if s.count == 1:
                for switch in s.switches:
                    switch(True)

    def __del__(self) -> None:
        s = self.shared
        with s.lock:
            last = s.threads.pop()
            if last != self.thread:
                s.threads[s.threads.index(self.thread)] = last
            s.write()
            if not s.count:
                for switch in s.switches:
                    switch(False)


class _State(threading.local):
    """``count``: how many reasons this thread has. Written by ``shift`` alone."""

    count: int = 0
    token: _Token | None = None


state: Final = _State()


def shift(step: int) -> None:
    """One more reason for this thread to watch (1), or one fewer (-1)."""
    state.count += step
    if state.count <= 0:
        state.token = None
    elif state.token is None:
        state.token = _Token()


def add_switch(switch: Callable[[bool], None]) -> None:
    """Registers what is told when the first thread begins to watch (True), and when the last one stops."""
    with shared.lock:
        shared.switches.append(switch)
        if shared.count:
            switch(True)


def address() -> int:
    """Where the table lies: 64-bit integers, the count and then that many thread numbers (where there are more than ``ROOM``: unused)."""
    return ctypes.addressof(shared.table)
