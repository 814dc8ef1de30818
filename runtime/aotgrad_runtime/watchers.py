"""Which threads watch: saved-tensor hooks, anomaly mode, the profiler, region hooks. Their calls go the long way, those of all other threads keep the short one.

While no thread watches, nothing asks. Machine code reads the table of thread numbers itself (``address``); Python asks ``state.count``.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Final

from . import forks

__all__ = ["ROOM", "Asking", "Holders", "Token", "address", "shared", "state"]

ROOM: Final = 62  # threads that the table can name; with more of them every thread counts as watching


class Holders:
    """Threads that hold something: their numbers and ``count``, and the switches that are told when the first begins (True) and when the last stops."""

    def __init__(self) -> None:
        self.lock = forks.safe(threading.RLock())  # re-entrant: the collector may drop a ``Token`` while another thread's is being made
        self.count = 0
        self.held: dict[int, bool] = {}  # by number
        self.told = False  # what the switches know
        self.switches: list[Callable[[bool], None]] = []

    def add_switch(self, switch: Callable[[bool], None]) -> None:
        """One more of them."""
        with self.lock:
            self.switches.append(switch)
            if self.count:
                switch(True)

    def changed(self) -> None:
        """After a thread came or went; the lock is held. Everything is told from ``held``, so that a call that was interrupted is made good by the next."""
        self.count = len(self.held)
        on = self.count > 0
        if on is not self.told:
            for switch in self.switches:
                switch(on)
            self.told = on


class Token:
    """A thread's, which may hold and release; goes away with the thread, so that one that ends inside a block leaves nothing behind.

    Not made for each block: what a finaliser raises is lost, also an interrupt.
    """

    __slots__ = ("holders", "thread")

    def __init__(self, holders: Holders) -> None:
        self.holders, self.thread = holders, threading.get_ident()

    def hold(self, on: bool) -> None:
        """From now on, or no more."""
        holders = self.holders
        with holders.lock:
            if on:
                holders.held[self.thread] = True
            else:
                holders.held.pop(self.thread, None)
            holders.changed()

    def __del__(self) -> None:
        if self.thread in self.holders.held:
            self.hold(False)


class _Watching(Holders):
    """``table``: how many threads, then their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = (ctypes.c_int64 * (1 + ROOM))()

    def changed(self) -> None:
        """The table first. Entries come before the count: machine code may read in between, and must find every thread that goes on watching."""
        for i, number in enumerate([*self.held][:ROOM]):
            self.table[1 + i] = number
        self.table[0] = len(self.held)
        super().changed()


shared: Final = _Watching()


class Asking(threading.local):
    """How many reasons (``count``) this thread has to hold something.

    A context takes one with ``hold()`` before it writes what it stands for in plain statements, and gives it back so, with no call in between at whose entry an
    interrupt could come in::

        state.count -= 1
        state.settle()
    """

    count: int = 0
    told: bool | None = False  # what the others know; None: an interrupt came in between

    def __init__(self, holders: Holders) -> None:
        self.token = Token(holders)

    def hold(self) -> None:
        """One more reason; none where this is left by an exception."""
        self.count += 1
        try:
            self.settle()
        except BaseException:
            self.count -= 1
            raise

    def settle(self) -> None:
        """Tells the others after ``count`` was lowered. An interrupt that prevents this does no harm: the thread goes the long way until the next one."""
        wanted = self.count > 0
        if wanted is not self.told:
            self.told = None
            self.token.hold(wanted)
            self.told = wanted


state: Final = Asking(shared)


def address() -> int:
    """Where the table lies: 64-bit integers, the count and then that many thread numbers (where there are more than ``ROOM``: unused)."""
    return ctypes.addressof(shared.table)
