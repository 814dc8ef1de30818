"""Committed machine code in memory of its own: written once, then executable and never writable again."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any, Final

__all__ = ["place"]

_READ, _WRITE, _EXECUTE, _PRIVATE = 1, 2, 4, 2
PAGE: Final = mmap.PAGESIZE


def place(libc: Any, code: bytes, what: str, table: Sequence[int] = (), offset: int = 0) -> int:
    """The address of position-independent ``code``, with the words of ``table`` (read-only, at most a page) ``offset`` bytes behind it. Raises ``ImportError``."""
    map_memory, protect = libc.mmap, libc.mprotect
    map_memory.restype, protect.restype = ctypes.c_void_p, ctypes.c_int
    map_memory.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    offset = offset if table else -(-len(code) // PAGE) * PAGE
    base = map_memory(None, offset + (PAGE if table else 0), _READ | _WRITE, _PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if base in (None, ctypes.c_void_p(-1).value) or offset % PAGE:
        raise ImportError(f"no memory for {what}")
    ctypes.memmove(base, code, len(code))
    if table:
        words = (ctypes.c_int64 * len(table))(*table)
        ctypes.memmove(base + offset, words, ctypes.sizeof(words))
    if protect(base, offset, _READ | _EXECUTE) or (table and protect(base + offset, PAGE, _READ)):
        raise ImportError("the system refuses executable memory")
    return int(base)
