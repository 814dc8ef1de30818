"""The machine-code call path: the blob in executable memory, the callable's type, and the check that this Python is laid out as the blob expects."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from .. import modes, watchers
from ..machine_code import place
from . import blob_x86_64
from .layout import ARRAY, FUNCTION, FUNCTION_SIZE, METHOD_OF, OBJECT, TABLE
from .pack import Packed, pack
from .spec import Instance

__all__ = ["Machine", "unusable"]

_API: Final = ctypes.pythonapi
_MESSAGES: Final = {
    "msg_no_fallback": b"this compiled function has been torn down",
    "msg_prebound": b"a prebound function takes no arguments",
    "msg_guard": b"the sizes a prebound function was bound to do not satisfy a guard of its kernel",
}
_TPFLAGS: Final = {"default": 1 << 18, "have_gc": 1 << 14, "have_vectorcall": 1 << 11, "method_descriptor": 1 << 17, "disallow_instantiation": 1 << 7}
_SLOTS: Final = {"tp_call": 50, "tp_clear": 51, "tp_dealloc": 52, "tp_descr_get": 54, "tp_traverse": 71, "tp_members": 72, "tp_getset": 73}
_T_OBJECT, _T_PYSSIZET, _READONLY = 6, 19, 1


class _MemberDef(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("type", ctypes.c_int), ("offset", ctypes.c_ssize_t), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)]


class _GetSetDef(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("get", ctypes.c_void_p), ("set", ctypes.c_void_p), ("doc", ctypes.c_char_p), ("closure", ctypes.c_void_p)]


class _Slot(ctypes.Structure):
    _fields_ = [("slot", ctypes.c_int), ("function", ctypes.c_void_p)]


class _Spec(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("basicsize", ctypes.c_int), ("itemsize", ctypes.c_int), ("flags", ctypes.c_uint), ("slots", ctypes.c_void_p)]


def unusable() -> str | None:
    """Why the machine code cannot be used in this process, None when it can."""
    if os.environ.get("AOTGRAD_NO_TRAMPOLINE", "") not in ("", "0"):
        return "AOTGRAD_NO_TRAMPOLINE is set"
    if sys.implementation.name != "cpython":
        return f"{sys.implementation.name} is not CPython"
    if sys.platform != "linux" or os.uname().machine != "x86_64" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return f"no machine code for {sys.platform} on {os.uname().machine if hasattr(os, 'uname') else 'this machine'}"
    if not (3, 10) <= sys.version_info[:2] <= (3, 13):
        return f"Python {sys.version.split()[0]} has not been checked"
    if sys.abiflags or hasattr(sys, "gettotalrefcount"):  # "t" and "d": other object headers
        return "a free-threaded or debug build of Python"
    return _layout_differs()


def _word(address: int) -> int:
    return ctypes.c_int64.from_address(address).value


def _int32(address: int) -> int:
    return ctypes.c_int32.from_address(address).value


def _layout_differs() -> str | None:
    """Read the fields the blob reads, and compare with what Python says they are."""
    if object.__basicsize__ != 16 or _word(id(1.0) + OBJECT["type"]) != id(float):
        return "an unknown object header"
    if ctypes.c_double.from_address(id(probe := 1.25) + OBJECT["payload"]).value != probe:
        return "an unknown float layout"
    cell = types.CellType(probe)
    pair = (probe, cell)
    if _word(id(cell) + OBJECT["cell_value"]) != id(probe) or _word(id(pair) + OBJECT["var_size"]) != 2:
        return "an unknown cell or tuple layout"
    function = types.FunctionType
    if _word(id(function) + 32) != function.__basicsize__ or _word(id(function) + OBJECT["type_flags"]) != function.__flags__:
        return "an unknown type layout"
    if not 16 < _word(id(function) + OBJECT["type_vectorcall_offset"]) < function.__basicsize__:
        return "an unknown place of the vectorcall offset"
    for dtype, value in (("float64", 1.5), ("float32", 2.5), ("complex128", 1 + 2j), ("int64", 77), ("int8", -3), ("bool", True)):
        kind = np.dtype(dtype).type
        scalar = kind(value)
        raw = ctypes.string_at(id(scalar) + OBJECT["payload"], scalar.nbytes)
        if raw != np.array(scalar).tobytes() or kind is np.ndarray:
            return "an unknown layout of NumPy scalars"
    return _array_differs()


def _array_differs() -> str | None:
    """As above for arrays; every pointer is compared before it is followed."""
    for array in (np.empty((2, 3, 5), np.float32)[:, ::-1], np.zeros(4, ">i8"), np.array(1.0), np.asfortranarray(np.ones((3, 2)))):
        base, n, dtype = id(array), array.ndim, array.dtype
        flags = _int32(base + ARRAY["flags"]) & 0x101
        if _word(base + ARRAY["data"]) != array.ctypes.data or _int32(base + ARRAY["nd"]) != n or _word(base + ARRAY["descr"]) != id(dtype):
            return "an unknown layout of NumPy arrays"
        if flags != 0x100 * array.flags.aligned + array.flags.c_contiguous:
            return "unknown flags of NumPy arrays"
        dims, strides = _word(base + ARRAY["dims"]), _word(base + ARRAY["strides"])
        if n and (strides - dims != 8 * n or tuple((ctypes.c_int64 * (2 * n)).from_address(dims)) != array.shape + array.strides):
            return "an unknown layout of the dims of NumPy arrays"
        byteorder = chr(ctypes.c_uint8.from_address(id(dtype) + ARRAY["descr_byteorder"]).value)
        if byteorder != dtype.byteorder or _int32(id(dtype) + ARRAY["descr_type_num"]) != dtype.num:
            return "an unknown layout of NumPy dtypes"
    return None


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _numpy_api() -> Any:
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _API))
    return (ctypes.c_void_p * 100).from_address(get(np._core._multiarray_umath._ARRAY_API, None))  # type: ignore[attr-defined]


class Machine:
    """The loaded blob of this process, with the two types of callables."""

    def __init__(self) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(("PyMem_RawFree", ctypes.PyDLL(None)))
        self.main_thread = ctypes.c_int64(threading.main_thread().ident or 0)
        os.register_at_fork(after_in_child=self._after_fork)
        self._messages = {name: ctypes.create_string_buffer(text) for name, text in _MESSAGES.items()}
        api = _numpy_api()
        if api[2] != id(np.ndarray):
            raise ImportError("NumPy's function table is not laid out as expected")
        self.base = self._load([self._resolve(name, api) for name in TABLE])
        self.entries = {name: self.base + offset for name, offset in blob_x86_64.ENTRIES.items()}
        self._keep: list[object] = []
        self._alloc = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_ssize_t)(("PyType_GenericAlloc", _API))
        self.function_type = self._make_type("aotgrad_runtime.call.Function")

    def _after_fork(self) -> None:
        self.main_thread.value = threading.get_ident()

    def _resolve(self, name: str, api: Any) -> int:
        special = {
            "None_": id(None), "NotImplemented": id(NotImplemented), "ndarray": id(np.ndarray), "PyArray_NewFromDescr": api[94], "PyArray_Scalar": api[60],
            "clock_id": getattr(time, "CLOCK_MONOTONIC_COARSE", 6), "main_thread": ctypes.addressof(self.main_thread), "watchers": watchers.address(),
            "restricted": modes.restricted_address(), "name_func": id(METHOD_OF),
        }
        if name in special:
            return int(special[name])
        if name in self._messages:
            return ctypes.addressof(self._messages[name])
        if name == "clock_gettime":
            return _address(self.libc.clock_gettime)
        return _address(getattr(_API, {"PyObject_GetMethod": "_PyObject_GetMethod"}.get(name, name)))

    def _load(self, table: list[int]) -> int:
        """Copy code and table into fresh memory, then make the code executable and both read-only."""
        return place(self.libc, blob_x86_64.CODE, "the call trampoline", table, blob_x86_64.TABLE_OFFSET)

    def _make_type(self, name: str) -> type:
        members = (_MemberDef * 6)(
            _MemberDef(b"__vectorcalloffset__", _T_PYSSIZET, FUNCTION["vectorcall"], _READONLY), _MemberDef(b"__dictoffset__", _T_PYSSIZET, FUNCTION["dict"], _READONLY),
            _MemberDef(b"__weaklistoffset__", _T_PYSSIZET, FUNCTION["weaklist"], _READONLY), _MemberDef(b"_fallback", _T_OBJECT, FUNCTION["fallback"], _READONLY),
            _MemberDef(b"_state", _T_OBJECT, FUNCTION["state"], _READONLY), _MemberDef(),
        )
        getset = (_GetSetDef * 2)(_GetSetDef(b"__dict__", _address(_API.PyObject_GenericGetDict), _address(_API.PyObject_GenericSetDict)), _GetSetDef())
        functions = {
            "tp_getset": ctypes.addressof(getset),
            "tp_call": _address(_API.PyVectorcall_Call), "tp_members": ctypes.addressof(members), "tp_traverse": self.entries["traverse"],
            "tp_clear": self.entries["clear"], "tp_dealloc": self.entries["dealloc"], "tp_descr_get": self.entries["descr_get"],
        }
        slots = (_Slot * (len(functions) + 1))(*(_Slot(_SLOTS[k], v) for k, v in functions.items()), _Slot())
        spec = _Spec(name.encode(), FUNCTION_SIZE, 0, sum(_TPFLAGS.values()), ctypes.addressof(slots))
        self._keep += [members, getset, slots, spec]
        make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p)(("PyType_FromSpec", _API))
        made: type = make(ctypes.addressof(spec))
        return made

    def new(self, entry: str, fallback: Callable[..., Any] | None, state: object) -> Any:
        """A callable object whose calls arrive at ``entry`` of the blob."""
        made = self._alloc(self.function_type, 0)
        for field, obj in (("fallback", fallback), ("state", state)):
            if obj is not None:
                _API.Py_IncRef(ctypes.py_object(obj))
                self.set(made, field, id(obj))
        self.set(made, "vectorcall", self.entries[entry])
        return made

    @staticmethod
    def set(function: object, field: str, value: int) -> None:
        ctypes.c_int64.from_address(id(function) + FUNCTION[field]).value = value

    def pack(self, instance: Instance) -> Packed:
        return pack(instance, self.free)

