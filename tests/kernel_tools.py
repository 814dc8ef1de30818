"""Compiles kernel-level functions and calls them through the ABI, for tests."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotgrad.codegen import emit, kernel, kernel_spec, llvm
from aotgrad.codegen.elf import link_shared
from aotgrad.codegen.target import Target
from aotgrad.ir import tensor_type
from aotgrad_runtime import loader
from aotgrad_runtime.dtypes import DType

TARGET = Target.native()
POLL = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
HOOK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


class Ctx(ctypes.Structure):
    _fields_ = [("poll", ctypes.c_void_p), ("pool", ctypes.c_void_p), ("hook", ctypes.c_void_p), ("hook_state", ctypes.c_void_p), ("tape", ctypes.c_void_p)]


class Call(ctypes.Structure):
    _fields_ = [("ptrs", ctypes.c_void_p), ("sizes", ctypes.c_void_p), ("workspace", ctypes.c_void_p), ("ctx", ctypes.c_void_p), ("info", ctypes.c_int64 * 4)]


def simple_entry(k: kernel.Kernel, **more: Any) -> emit.Entry:
    """An entry whose arrays all have shape [first symbol] (or are scalars without one)."""
    ni, no = len(k.inputs), len(k.outputs)
    shape = list(k.sizes)[:1]
    types = [tensor_type(shape, kernel.as_ktype(v.type).dtype) for v in (*k.inputs, *k.outputs)]
    return emit.Entry(k.func.name, tuple(types[:ni]), tuple(types[ni:ni + no]), tuple(k.sizes), **more)


def load(funcs: Sequence[Any], entries: Sequence[emit.Entry], passes: str = "none", extra: Sequence[str] = ()) -> loader.Library:
    """One library of all functions, verified; ``extra``: LLVM modules linked beside."""
    for f in funcs:
        kernel_spec.verify(f, funcs)
    texts = [emit.module(funcs, entries, TARGET), *extra]
    objects = [llvm.compile_object(t, TARGET, passes=passes) for t in texts]
    return loader.load_bytes(link_shared(objects, [s for e in entries for s in e.exports], "libkernels.so"))


def call(library: loader.Library, name: str, arrays: Sequence[Any], sizes: Sequence[int], workspace: int = 0, ctx: Ctx | None = None) -> tuple[int, list[int]]:
    """Calls ``NAME(ag_call*)``; gives the status and info."""
    ptrs = (ctypes.c_void_p * max(len(arrays), 1))(*(None if a is None else a.ctypes.data for a in arrays))
    dims = (ctypes.c_int64 * max(len(sizes), 1))(*sizes)
    space = np.zeros(workspace + 64, np.uint8)
    at = (space.ctypes.data + 63) & ~63 if workspace else None
    block = Call(ctypes.addressof(ptrs), ctypes.addressof(dims), at, ctypes.addressof(ctx) if ctx else None)
    status = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(library.address(name))(ctypes.addressof(block))
    return status, list(block.info)


def elementwise(name: str, ins: Sequence[DType], out: DType, fn: Callable[..., Any], lanes: int) -> kernel.Kernel:
    """``out[i] = fn(k, ins[i]...)``: steps of ``lanes``, the last one masked."""
    f = kernel.function(name, ins, [out], ["n"])
    kb, n = f.kb, f.sizes["n"]
    k = kb.scalars(lanes)
    with kb.for_(0, n, lanes) as loop:
        mask = kb.create_mask(kb.sub(n, loop.iv), lanes) if lanes > 1 else None
        xs = [kb.load(m, loop.iv, lanes, mask) for m in f.inputs]
        kb.store(k.vector(fn(k, *xs)), f.outputs[0], loop.iv, mask)
    kb.ret()
    return f


def run_elementwise(ins: Sequence[DType], out: DType, fn: Callable[..., Any], arrays: Sequence[Any], lanes: int) -> Any:
    """One elementwise kernel compiled and run."""
    f = elementwise("f", ins, out, fn, lanes)
    library = load([f.func], [simple_entry(f)])
    result = np.zeros(arrays[0].shape, out.np)
    assert call(library, "f", [*arrays, result], [arrays[0].size]) == (0, [0, 0, 0, 0])
    return result
