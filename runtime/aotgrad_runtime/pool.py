"""The thread pool of this process: one for all compiled functions, made at first use. Its threads start when a function first needs them."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import Final

from . import forks, pool_x86_64
from .machine_code import place
from .pool_layout import MOST, POOL, SIZE

__all__ = ["MOST", "Pool", "context", "cores", "started", "unusable"]


def unusable() -> str | None:
    """Why there are no threads here; None where there are."""
    machine = os.uname().machine if hasattr(os, "uname") else "this machine"
    if sys.platform != "linux" or machine != "x86_64" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return f"there is no thread pool for {sys.platform} on {machine}"
    return None


def cores() -> int:
    """How many processors this process may use, at most ``MOST``."""
    return max(1, min(MOST, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1))


class Pool:
    """A pool in memory of its own. ``context``: the address of an ``ag_ctx`` that passes it. ``create``: instead of ``pthread_create``, for tests.

    Raises ``ImportError`` where the system gives no executable memory.
    """

    def __init__(self, threads: int = MOST, create: int | None = None) -> None:
        libc = ctypes.CDLL(None)
        self.base = place(libc, pool_x86_64.CODE, "the thread pool")
        self._memory = ctypes.create_string_buffer(SIZE + 64)
        self.address = (ctypes.addressof(self._memory) + 63) & -64
        host = [ctypes.cast(getattr(libc, name), ctypes.c_void_p).value for name in ("pthread_create", "pthread_join", "syscall")]
        init = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self.threads = int(init(self.base + pool_x86_64.ENTRIES["ag_pool_init"])(self.address, threads, create or host[0], *host[1:]))
        self._ctx = (ctypes.c_int64 * 5)(0, self.address)
        self.context = ctypes.addressof(self._ctx)

    def word(self, name: str) -> ctypes.c_int64:
        """A field of the pool."""
        return ctypes.c_int64.from_address(self.address + POOL[name])

    def free(self) -> None:
        """Ends the threads. Nobody may be in a call with the pool; the next such call starts new ones."""
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.base + pool_x86_64.ENTRIES["ag_pool_free"])(self.address)

    def orphan(self) -> None:
        """In a child of fork: the threads, and the call that may have been running, are not here."""
        self.word("busy").value = 0
        self.word("pid").value = 0


class _Process:
    """The pool of the process, once it is there."""

    def __init__(self) -> None:
        self.lock: Final = forks.safe(threading.Lock())
        self.pool: Pool | None = None


_process: Final = _Process()


def context() -> int:
    """The address of the ``ag_ctx`` that gives kernels the pool of this process."""
    if _process.pool is None:
        with _process.lock:
            _process.pool = _process.pool or Pool()
    return _process.pool.context


def started() -> int:
    """How many threads the pool of this process has started, the caller's not counted."""
    pool = _process.pool
    return pool.word("started").value if pool is not None and pool.word("pid").value == os.getpid() else 0


def _in_child() -> None:
    if _process.pool is not None:
        _process.pool.orphan()


forks.after_in_child(_in_child)
