"""What this machine can do at most, measured: multiply-adds in registers, copies of blocks that fit each cache. For the roofline of ``explain`` and the benchmarks."""

from __future__ import annotations

import ctypes
import functools
import math
import time

import numpy as np

from aotgrad_runtime.loader import Library, load_bytes

from . import llvm
from .elf import link_shared
from .target import Target

__all__ = ["LEVELS", "bandwidth", "chains", "copy_bandwidth", "fma_peak", "library"]

STEPS = 50_000
LEVELS = {"L1": 16 << 10, "L2": 256 << 10, "L3 or memory": 8 << 20, "memory": 64 << 20}
"""Bytes of each of the two arrays of a copy."""


def chains(target: Target) -> int:
    """Independent multiply-adds side by side: as many as stay in registers, beside the two numbers that all of them use."""
    return 24 if target.registers == 32 else 12


def _fma(name: str, scalar: str, lanes: int, count: int) -> str:
    t = f"<{lanes} x {scalar}>"
    phis = "\n".join(f"  %a{i} = phi {t} [ splat ({scalar} {i}.0), %entry ], [ %b{i}, %loop ]" for i in range(count))
    steps = "\n".join(f"  %b{i} = call {t} @llvm.fma.v{lanes}{'f32' if scalar == 'float' else 'f64'}({t} %a{i}, {t} %m, {t} %c)" for i in range(count))
    adds = "\n".join(f"  %s{i} = fadd {t} {f'%s{i - 1}' if i else 'splat (' + scalar + ' 0.0)'}, %b{i}" for i in range(count))
    suffix = f"v{lanes}{'f32' if scalar == 'float' else 'f64'}"
    return f"""
declare {t} @llvm.fma.{suffix}({t}, {t}, {t})
define void @{name}(ptr %out, i64 %n) {{
entry:
  %p = getelementptr i8, ptr %out, i64 64
  %m = load {t}, ptr %out, align 4
  %c = load {t}, ptr %p, align 4
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %k1, %loop ]
{phis}
{steps}
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, %n
  br i1 %more, label %loop, label %done
done:
{adds}
  store {t} %s{count - 1}, ptr %out, align 4
  ret void
}}
"""


def _copy() -> str:
    """``copy(to, from, bytes, times)``: 256 bytes a round of the inner loop."""
    lines = []
    for i in range(4):
        lines += [f"  %p{i} = getelementptr i8, ptr %from, i64 %a{i}", f"  %q{i} = getelementptr i8, ptr %to, i64 %a{i}"]
        lines += [f"  %v{i} = load <16 x float>, ptr %p{i}, align 64", f"  store <16 x float> %v{i}, ptr %q{i}, align 64"]
    offsets = "\n".join(f"  %a{i} = add i64 %k, {64 * i}" for i in range(4))
    body = "\n".join(lines)
    return f"""
define void @copy(ptr noalias %to, ptr noalias %from, i64 %n, i64 %times) {{
entry:
  br label %again
again:
  %t = phi i64 [ 0, %entry ], [ %t1, %done ]
  br label %loop
loop:
  %k = phi i64 [ 0, %again ], [ %k1, %loop ]
{offsets}
{body}
  %k1 = add i64 %k, 256
  %more = icmp slt i64 %k1, %n
  br i1 %more, label %loop, label %done
done:
  %t1 = add i64 %t, 1
  %rest = icmp slt i64 %t1, %times
  br i1 %rest, label %again, label %out
out:
  ret void
}}
"""


@functools.lru_cache(maxsize=1)
def library() -> Library:
    """Functions ``empty`` of two pointers, ``fma_f32`` and ``fma_f64`` of a pointer and a number of rounds, and ``copy``."""
    target = Target.native()
    text = "define void @empty(ptr %a, ptr %b) {\n  ret void\n}\n" + "".join(
        _fma(f"fma_{d}", scalar, target.lanes(d), chains(target)) for d, scalar in (("f32", "float"), ("f64", "double")))
    return load_bytes(link_shared([llvm.compile_object(text + _copy(), target, passes="inline")], ["empty", "fma_f32", "fma_f64", "copy"], "limits"))


@functools.lru_cache(maxsize=4)
def fma_peak(dtype: str, rounds: int = 200) -> float:
    """GFLOP/s of independent multiply-adds in vector registers, one thread: the best of ``rounds`` of a third of a millisecond."""
    f = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(library().address(f"fma_{dtype}"))
    block = np.full(64, 0.5, np.float64 if dtype == "f64" else np.float32)
    target = Target.native()
    flops = 2.0 * chains(target) * STEPS * target.lanes(dtype)
    best = math.inf
    for _ in range(rounds):
        block[:] = 0.5
        start = time.perf_counter()
        f(block.ctypes.data, STEPS)
        best = min(best, time.perf_counter() - start)
    return flops / best / 1e9


@functools.lru_cache(maxsize=16)
def copy_bandwidth(nbytes: int, rounds: int = 20) -> float:
    """GB/s read plus written by a copy of ``nbytes``, a multiple of 256: the best of ``rounds`` by NumPy, and by a loop of vectors."""
    own = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(library().address("copy"))
    a, b = np.ones(nbytes + 64, np.uint8), np.ones(nbytes + 64, np.uint8)
    to, source = (x.ctypes.data + -x.ctypes.data % 64 for x in (b, a))
    best, count = math.inf, max(1, (4 << 20) // nbytes)
    for _ in range(rounds):
        start = time.perf_counter()
        own(to, source, nbytes, count)
        middle = time.perf_counter()
        np.copyto(b, a)
        best = min(best, (middle - start) / count, time.perf_counter() - middle)
    return 2 * nbytes / best / 1e9


def bandwidth(moved: float, rounds: int = 20) -> float:
    """GB/s of a copy that reads and writes as many bytes: that of the smallest level which holds them."""
    return copy_bandwidth(next((n for n in LEVELS.values() if 2 * n >= moved), LEVELS["memory"]), rounds)
