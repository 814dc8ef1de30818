"""Memory layouts shared by the machine code of the trampoline and the Python that packs its tables: every field is one 8-byte word.

The blob is generated from these dictionaries (``tools/build_trampoline.py``); changing one means regenerating it, and a test says so.
"""

from __future__ import annotations

import sys
from typing import Final

__all__ = ["ARG", "ARRAY", "BYTES", "CALL", "CONSTANTS", "CTX", "FUNCTION", "INSTANCE", "METHOD_OF", "OBJECT", "OUT", "TABLE"]


def _words(names: str) -> dict[str, int]:
    return {name: 8 * k for k, name in enumerate(names.split())}


# CPython and NumPy, 64-bit builds with a GIL; checked against readings through ctypes before the blob is used.
OBJECT: Final = {
    "refcnt": 0, "type": 8, "var_size": 16, "payload": 16, "cell_value": 16, "type_vectorcall_offset": 56, "type_flags": 168,
}
ARRAY: Final = {"data": 16, "nd": 24, "dims": 32, "strides": 40, "descr": 56, "flags": 64, "descr_byteorder": 26, "descr_type_num": 28}

# The callable object: header (2 words), then these.
FUNCTION: Final = {
    "vectorcall": 16, "dict": 24, "weaklist": 32, "head": 40, "fallback": 48, "state": 56, "scratch": 64, "ptrs": 72, "syms": 80, "aside": 88,
}
FUNCTION_SIZE: Final = 96

# One instance (a kernel with the types it accepts), its arguments and its results.
INSTANCE: Final = _words(
    "next kernel npos args args_end outs outs_end nsym shapes workspace workspace_bytes ctx heavy poll may_release release on_error block "
    "off_outs off_syms off_held off_objs off_values off_dims off_strides nhidden nouts finish words words_end"
)
ARG: Final = _words("type kind index special nd type_num flags dims order itemsize value source key path npath method absent unwrap_type unwrap_offset exact")
ARG_SIZE: Final = 8 * len(ARG)
OUT: Final = _words("descr nd dims dynamic order itemsize scalar value dims_offset")
OUT_SIZE: Final = 8 * len(OUT)

# ag_call and ag_ctx of docs/design-notes/0001-interfaces.md; the words after ``tape`` are the trampoline's own.
CALL: Final = _words("ptrs sizes workspace ctx info0 info1 info2 info3")
CTX: Final = _words("poll pool hook hook_state tape stop thread tstate deadline may_release clock_sec clock_nsec")

# Header in front of a workspace block from the heap.
BLOCK_HEADER: Final = 64

CONSTANTS: Final = {
    "KIND_ARRAY": 0, "KIND_DATA": 1, "KIND_INT": 2, "KIND_IS": 3,
    "SOURCE_POSITIONAL": 0, "SOURCE_CELL": 1, "SOURCE_GLOBAL": 2, "SOURCE_FIXED": 3,
    "ARG_SIZE": ARG_SIZE, "OUT_SIZE": OUT_SIZE, "CALL_SIZE": 8 * len(CALL), "CTX_SIZE": 8 * len(CTX),
    "BLOCK_HEADER": BLOCK_HEADER, "ALLOCA_LIMIT": 16384,
    "NEXT": 1, "NOMEM": 4, "INTERRUPTED": 5, "BIG_ENDIAN": ord(">"),
    "POLL_NS": 20_000_000, "WATCHERS_ROOM": 62,
    "NARGS_MASK": (1 << 63) - 1, "HAVE_VECTORCALL": 1 << 11,
}

METHOD_OF: Final = sys.intern("__func__")  # at the end of a path: the function of the method named before it

# Addresses, in the order of the table the blob reads (it lies at ``table_offset`` behind the code).
TABLE: Final = (
    "None_", "NotImplemented", "ndarray", "PyArray_NewFromDescr", "PyArray_Scalar", "Py_IncRef", "Py_DecRef", "PyTuple_New", "PyTuple_SetItem",
    "PyLong_FromLongLong", "PyLong_AsLongLongAndOverflow", "PyObject_CallObject", "PyObject_GetAttr", "PyObject_GetMethod", "name_func",
    "PyDict_GetItemWithError", "PyErr_Occurred", "PyErr_Clear",
    "PyErr_NoMemory", "PyErr_SetString", "PyErr_CheckSignals", "PyExc_TypeError", "PyExc_RuntimeError", "PyEval_SaveThread", "PyEval_RestoreThread",
    "PyThread_get_thread_ident", "PyMem_RawMalloc", "PyMem_RawFree", "PyMethod_New", "PyObject_GC_UnTrack", "PyObject_GC_Del", "PyObject_ClearWeakRefs",
    "clock_gettime", "clock_id", "main_thread", "watchers", "restricted", "msg_no_fallback", "msg_prebound", "msg_guard",
)
BYTES: Final = 8 * len(TABLE)
