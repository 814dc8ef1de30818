"""Which threads watch: saved-tensor hooks, anomaly mode, the profiler, region hooks. Their calls go the long way, those of all other threads keep the short one.

While no thread watches, nothing asks. Machine code reads the table of thread numbers itself (``address``); Python asks ``state.count``.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Final

from . import forks

__all__ = ["ROOM", "Holders", "Token", "address", "shared", "shift", "state"]

ROOM: Final = 62  # threads that the table can name; with more of them every thread counts as watching


class Holders:
    """Threads that hold a ``Token``: their numbers and ``count``, and the switches that are told when the first begins (True) and when the last stops."""

    def __init__(self) -> None:
        self.lock = forks.safe(threading.RLock())  # re-entrant: the collector may drop a token while another is being made
        self.count = 0
        self.threads: list[int] = []
        self.switches: list[Callable[[bool], None]] = []

    def add_switch(self, switch: Callable[[bool], None]) -> None:
        """One more of them."""
        with self.lock:
            self.switches.append(switch)
            if self.count:
                switch(True)

    def changed(self) -> None:
        """After a thread came or went; the lock is held."""
        before, self.count = self.count, len(self.threads)
        if bool(before) != bool(self.count):
            for switch in self.switches:
                switch(self.count > 0)


class Token:
    """Held by a thread; goes away with the thread, so that one that ends inside a block leaves nothing behind."""

    __slots__ = ("holders", "thread")

    def __init__(self, holders: Holders) -> None:
        self.holders, self.thread = holders, threading.get_ident()
        with holders.lock:
            holders.threads.append(self.thread)
            holders.changed()

    def __del__(self) -> None:
        holders = self.holders
        with holders.lock:
            last = holders.threads.pop()
            if last != self.thread:
                holders.threads[holders.threads.index(self.thread)] = last
            holders.changed()


class _Watching(Holders):
    """``table``: how many threads, then their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = (ctypes.c_int64 * (1 + ROOM))()

    def changed(self) -> None:
        """The table first. Entries come before the count: machine code may read in between, and must find every thread that goes on watching."""
        for i, number in enumerate(self.threads[:ROOM]):
            self.table[1 + i] = number
        self.table[0] = len(self.threads)
        super().changed()


shared: Final = _Watching()


class _State(threading.local):
    """``count``: how many reasons this thread has. Written by ``shift`` alone."""

    count: int = 0
    token: Token | None = None


state: Final = _State()


def shift(step: int) -> None:
    """One more reason for this thread to watch (1), or one fewer (-1)."""
    state.count += step
    if state.count <= 0:
        state.token = None
    elif state.token is None:
        state.token = Token(shared)


def address() -> int:
    """Where the table lies: 64-bit integers, the count and then that many thread numbers (where there are more than ``ROOM``: unused)."""
    return ctypes.addressof(shared.table)
