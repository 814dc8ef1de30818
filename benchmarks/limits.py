"""What the machine allows: empty calls, copy bandwidth, multiply-add peak (see ``aotgrad.codegen.peaks``)."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import math
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aotgrad.codegen.peaks import LEVELS, bandwidth, copy_bandwidth, fma_peak, library

from .harness import Work

__all__ = ["LEVELS", "copy_bandwidth", "empty_builtin", "empty_native", "fma_peak", "work"]


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


def empty_native() -> Any:
    """A native function of two pointers that does nothing, called through ctypes."""
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(library().address("empty"))


def work(flops: float, moved: float, dtype: str = "f32") -> Work:
    """A call's work; its limit is the longer of the operations at the multiply-add peak and the bytes at the bandwidth of a copy of as many."""
    return Work(flops, moved, max(flops / fma_peak(dtype), moved / bandwidth(moved)) / 1e9)
