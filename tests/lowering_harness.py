"""Compiles and calls tensor-level functions for the lowering tests, with buffers between guard pages."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

from aotgrad.codegen.driver import Compiled, compile_lowered
from aotgrad.codegen.kernel_spec import verify
from aotgrad.codegen.lower import lower
from aotgrad.codegen.target import Target
from aotgrad.ir import dims
from aotgrad.ir.core import Func
from aotgrad_runtime import pool
from aotgrad_runtime.loader import load_bytes

_libc = ctypes.CDLL(None, use_errno=True)
PAGE = mmap.PAGESIZE


class AgCall(ctypes.Structure):
    _fields_ = [("ptrs", ctypes.c_void_p), ("sizes", ctypes.c_void_p), ("workspace", ctypes.c_void_p), ("ctx", ctypes.c_void_p), ("info", ctypes.c_int64 * 4)]


class Guarded:
    """``nbytes`` that end at a page nobody may touch, or begin after one."""

    def __init__(self, nbytes: int, at_end: bool = True, align: int = 1) -> None:
        pages = max((nbytes + PAGE - 1) // PAGE, 1)
        self.map = mmap.mmap(-1, (pages + 2) * PAGE)
        self._hold = (ctypes.c_char * len(self.map)).from_buffer(self.map)
        base = ctypes.addressof(self._hold)
        for page in (0, pages + 1):
            if _libc.mprotect(ctypes.c_void_p(base + page * PAGE), PAGE, 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        room = pages * PAGE - nbytes
        self.offset = PAGE + (room // align * align if at_end else 0)
        self.address = base + self.offset

    def array(self, shape: Any, dtype: Any) -> Any:
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(self.map, dtype, count, self.offset).reshape(shape)


def in_layout(x: Any, order: Any) -> Any:
    """A dense array in memory order ``order``, as flat data."""
    return np.ascontiguousarray(np.transpose(x, order)).reshape(-1)


def from_layout(flat: Any, shape: Any, order: Any) -> Any:
    memory = flat.reshape([shape[d] for d in order])
    return np.transpose(memory, np.argsort(order)) if len(order) else memory


class Program:
    """A compiled function, called with NumPy arrays."""

    threads = 1
    once: Any = None  # what is computed of constant arguments alone
    over: Any = {}  # outputs -> arguments that they are written over

    def __init__(self, func: Func, target: Target | None = None, constant: Any = (), over: Any = ()) -> None:
        self.func, self.over = func, dict(over)
        machine = target or Target.native()
        lowered = lower(func, func.name, machine, threads=self.threads, constant=constant, over=tuple(over))
        for part in (lowered, lowered.once):
            for f in part.funcs if part is not None else ():
                verify(f, part.funcs)
        self.compiled: Compiled = compile_lowered(lowered, machine)
        self.meta = self.compiled.meta
        self.library = load_bytes(self.compiled.so)
        self.entry = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(AgCall))(self.library.address(func.name))
        self.need = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(self.library.address(func.name + "_workspace"))
        self.info: list[int] = []
        self.once = self.meta.get("once")
        if self.once:
            self.fill = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(AgCall))(self.library.address(func.name + "_once"))

    def sizes(self, args: Any) -> dict[str, int]:
        env: dict[str, int] = {}
        for t, a in zip(self.func.arg_types, args):
            for d, n in zip(t.shape, np.shape(a)):
                name = None if isinstance(d, int) else d.as_symbol()
                if name is not None:
                    env[name] = n
        return env

    def __call__(self, *args: Any, guard: bool | None = None, status: int = 0) -> Any:
        env = self.sizes(args)
        arrays = [np.asarray(a, t.dtype.np) for a, t in zip(args, self.func.arg_types)]
        assert [a.shape for a in arrays] == [tuple(dims.substitute(d, env) for d in t.shape) for t in self.func.arg_types]
        flats = [in_layout(a, t.order) for a, t in zip(arrays, self.func.arg_types)]
        shapes = [tuple(dims.substitute(d, env) for d in t.shape) for t in self.func.out_types]
        counts = [int(np.prod(s, dtype=np.int64)) for s in shapes]
        hold: list[Any] = []

        def buffer(nbytes: int, align: int) -> Any:
            if guard is None:
                hold.append(np.full(nbytes + 64, 0xAB, np.uint8))
                return hold[-1].ctypes.data + (-hold[-1].ctypes.data) % 64
            hold.append(Guarded(nbytes, guard, align))
            return hold[-1].address

        ptrs, outs = [], []
        for flat in flats:
            ptrs.append(buffer(flat.nbytes, flat.itemsize))
            ctypes.memmove(ptrs[-1], flat.ctypes.data, flat.nbytes)
        if self.once:
            block = buffer(self.once["bytes"], 64)
            ctypes.memset(block, 0xFF, self.once["bytes"])
            given = (ctypes.c_void_p * (len(self.once["args"]) + 1))(*[ptrs[i] for i in self.once["args"]], block)
            room = buffer(self.once["workspace"], 64)
            ctypes.memset(room, 0xFF, self.once["workspace"])
            assert self.fill(ctypes.byref(AgCall(ctypes.addressof(given), None, room, None))) == 0
            before = ctypes.string_at(block, self.once["bytes"])
            ptrs.append(block)
        for j, (count, t) in enumerate(zip(counts, self.func.out_types)):
            nbytes = count * t.dtype.itemsize
            if j in self.over:
                outs.append((ptrs[self.over[j]], nbytes))
                continue
            ptrs.append(buffer(nbytes, t.dtype.itemsize))
            outs.append((ptrs[-1], nbytes))
            ctypes.memset(ptrs[-1], 0xAB, nbytes)
        size_values = np.array([env[s] for s in self.func.symbols()] + [0], np.int64)
        room = int(self.need(size_values.ctypes.data))
        work = buffer(room, 64)
        ctypes.memset(work, 0xFF, room)  # every float is a NaN, every integer -1: what is read before it was written is seen
        table = (ctypes.c_void_p * (len(ptrs) + 1))(*ptrs)
        call = AgCall(ctypes.addressof(table), size_values.ctypes.data, work, pool.context() if self.threads > 1 else None)
        code = self.entry(ctypes.byref(call))
        self.info = list(call.info)
        assert code == status, f"status {code}, info {self.info}"
        for i, (flat, p) in enumerate(zip(flats, ptrs)):
            assert i in self.over.values() or ctypes.string_at(p, flat.nbytes) == flat.tobytes(), "an input was changed"
        if self.once:
            assert ctypes.string_at(block, self.once["bytes"]) == before, "what is kept was changed"
        results = []
        for (p, nbytes), shape, t in zip(outs, shapes, self.func.out_types):
            flat = np.frombuffer(ctypes.string_at(p, nbytes), t.dtype.np)
            results.append(from_layout(flat, shape, t.order))
        return results[0] if len(results) == 1 else tuple(results)
