"""What the machine allows: empty calls, copy bandwidth, multiply-add peak. Native code is made by aotgrad's own code generator, so no C compiler is needed for most."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import math
import shutil
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from aotgrad.codegen import llvm
from aotgrad.codegen.elf import link_shared
from aotgrad.codegen.target import Target
from aotgrad_runtime.loader import Library, load_bytes

from .harness import Work

__all__ = ["LEVELS", "copy_bandwidth", "empty_builtin", "empty_native", "fma_peak", "work"]

LEVELS = {"L1": 16 << 10, "L2": 256 << 10, "L3 or memory": 8 << 20, "memory": 128 << 20}  # bytes of each of the two arrays of a copy

CHAINS, STEPS = 24, 50_000
_EMPTY_C = """#define PY_SSIZE_T_CLEAN
#include <Python.h>
static PyObject *empty(PyObject *self, PyObject *const *args, Py_ssize_t n) { Py_RETURN_NONE; }
static PyMethodDef methods[] = {{"empty", (PyCFunction)(void (*)(void))empty, METH_FASTCALL, 0}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "ag_empty", 0, -1, methods};
PyMODINIT_FUNC PyInit_ag_empty(void) { return PyModule_Create(&module); }
"""


@functools.lru_cache(maxsize=1)
def empty_builtin() -> tuple[Callable[..., Any], str]:
    """A METH_FASTCALL builtin that does nothing, and what it is: compiled from C, or math.gcd() where there is no C compiler."""
    cc, include = shutil.which("cc") or shutil.which("gcc"), sysconfig.get_paths()["include"]
    if cc is None or not (Path(include) / "Python.h").exists():
        return math.gcd, "math.gcd (no C compiler or no Python.h)"
    folder = Path(tempfile.mkdtemp(prefix="ag-empty-"))
    (folder / "e.c").write_text(_EMPTY_C, encoding="utf-8")
    made = folder / f"ag_empty{sysconfig.get_config_var('EXT_SUFFIX')}"
    done = subprocess.run([cc, "-O2", "-shared", "-fPIC", f"-I{include}", str(folder / "e.c"), "-o", str(made)], capture_output=True, check=False)
    spec = importlib.util.spec_from_file_location("ag_empty", made)
    if done.returncode or spec is None or spec.loader is None:
        return math.gcd, "math.gcd (the C compiler failed)"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shutil.rmtree(folder, ignore_errors=True)
    return module.empty, "METH_FASTCALL function compiled from C"


def _fma(name: str, scalar: str, lanes: int) -> str:
    t = f"<{lanes} x {scalar}>"
    phis = "\n".join(f"  %a{i} = phi {t} [ splat ({scalar} {i}.0), %entry ], [ %b{i}, %loop ]" for i in range(CHAINS))
    steps = "\n".join(f"  %b{i} = call {t} @llvm.fma.v{lanes}{'f32' if scalar == 'float' else 'f64'}({t} %a{i}, {t} %m, {t} %c)" for i in range(CHAINS))
    adds = "\n".join(f"  %s{i} = fadd {t} {f'%s{i - 1}' if i else 'splat (' + scalar + ' 0.0)'}, %b{i}" for i in range(CHAINS))
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
  store {t} %s{CHAINS - 1}, ptr %out, align 4
  ret void
}}
"""


@functools.lru_cache(maxsize=1)
def _library() -> Library:
    target = Target.native()
    text = "define void @empty(ptr %a, ptr %b) {\n  ret void\n}\n" + _fma("fma_f32", "float", target.lanes("f32")) + _fma("fma_f64", "double", target.lanes("f64"))
    return load_bytes(link_shared([llvm.compile_object(text, target)], ["empty", "fma_f32", "fma_f64"], "limits"))


def empty_native() -> Any:
    """A native function of two pointers that does nothing, called through ctypes."""
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(_library().address("empty"))


@functools.lru_cache(maxsize=2)
def fma_peak(dtype: str) -> float:
    """GFLOP/s of independent multiply-adds in vector registers, one thread."""
    f = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(_library().address(f"fma_{dtype}"))
    block = np.full(64, 0.5, np.float64 if dtype == "f64" else np.float32)
    flops = 2.0 * CHAINS * STEPS * Target.native().lanes(dtype)
    best = math.inf
    for _ in range(200):
        block[:] = 0.5
        start = time.perf_counter()
        f(block.ctypes.data, STEPS)
        best = min(best, time.perf_counter() - start)
    return flops / best / 1e9


@functools.lru_cache(maxsize=16)
def copy_bandwidth(nbytes: int) -> float:
    """GB/s read plus written by a copy of ``nbytes``, NumPy's call of some 0.2 us included."""
    a, b = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    best, count = math.inf, max(1, (1 << 20) // nbytes)
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(count):
            np.copyto(b, a)
        best = min(best, time.perf_counter() - start)
    return 2 * nbytes * count / best / 1e9


def work(flops: float, moved: float, dtype: str = "f32") -> Work:
    """A call's work; its limit is the longer of the operations at the multiply-add peak and the bytes at the bandwidth of a copy of as many."""
    level = next((n for n in LEVELS.values() if 2 * n >= moved), LEVELS["memory"])
    return Work(flops, moved, max(flops / fma_peak(dtype), moved / copy_bandwidth(level)) / 1e9)
