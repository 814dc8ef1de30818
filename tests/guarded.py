"""Memory that ends or starts exactly at a page that cannot be touched."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

PAGE = mmap.PAGESIZE


class Guarded:
    """``size`` bytes that end (or start) exactly at a page that cannot be touched."""

    def __init__(self, size: int) -> None:
        self.pages = max(1, -(-size // PAGE))
        self.map = mmap.mmap(-1, (self.pages + 2) * PAGE)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.start, self.end, self.size = self.base + PAGE, self.base + PAGE * (self.pages + 1), size
        self._protect(0)

    def _protect(self, mode: int) -> None:
        for at in (self.base, self.end):
            assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(at), ctypes.c_size_t(PAGE), mode) == 0

    def fill_nan(self) -> None:
        ctypes.memset(self.start, 0xFF, self.end - self.start)

    def array(self, shape, dtype, at_end: bool):
        count = int(np.prod(shape))
        address = self.end - count * np.dtype(dtype).itemsize if at_end else self.start
        raw = (ctypes.c_char * (count * np.dtype(dtype).itemsize)).from_address(address)
        return np.frombuffer(raw, dtype=dtype).reshape(shape)

    def close(self) -> None:
        self._protect(mmap.PROT_READ | mmap.PROT_WRITE)
