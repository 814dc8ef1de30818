"""The trampoline's checks in plain Python: for the fallback path, for ``prebind``, and as the meaning the machine code is tested against."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from .spec import ABSENT, ArgSpec, Attr, Cell, Fixed, Global, Instance, OutSpec, Sym, is_c_order, np_scalar_type

__all__ = ["Matched", "dense_strides", "match", "out_shapes", "read_source"]

_MISSING = ABSENT


class Matched:
    """Pointers of the arguments, values of the size symbols, and whatever keeps the pointers valid."""

    __slots__ = ("keep", "ptrs", "syms")

    def __init__(self, nsym: int) -> None:
        self.ptrs: list[int] = []
        self.syms: list[int | None] = [None] * nsym
        self.keep: list[object] = []


def dense_strides(shape: Sequence[int], order: Sequence[int] | None, itemsize: int) -> list[int]:
    """Byte strides of a dense array whose dims from the outermost in are ``order`` (None: C order)."""
    strides = [itemsize] * len(shape)
    step = itemsize
    for d in reversed(range(len(shape)) if order is None else order):
        strides[d] = step
        step *= max(shape[d], 1)
    return strides


def read_source(arg: ArgSpec, args: Sequence[object]) -> object:
    """The object a source names now; a private marker that fits nothing when there is none."""
    source, path = (arg.source.base, arg.source.path) if isinstance(arg.source, Attr) else (arg.source, ())
    obj: object
    match source:
        case int(index):
            obj = args[index]
        case Cell(cell):
            try:
                obj = cell.cell_contents
            except ValueError:
                return _MISSING
        case Global(namespace, key):
            obj = namespace.get(key, _MISSING)
        case Fixed(value):
            obj = value
    for name in path:
        try:
            obj = getattr(obj, name)
        except Exception:  # any failure of a user's attribute means "does not fit", as in the machine code
            return _MISSING
    if arg.unwrap is not None:
        if type(obj) is not arg.unwrap[0]:
            return _MISSING
        try:
            return ctypes.py_object.from_address(id(obj) + arg.unwrap[1]).value
        except ValueError:  # an empty slot
            return _MISSING
    return obj


def _array_fits(arg: ArgSpec, array: np.ndarray[Any, Any], syms: list[int | None]) -> bool:
    assert arg.dtype is not None
    if array.ndim != len(arg.dims) or array.dtype.num != arg.dtype.np.num or array.dtype.byteorder == ">" or not array.flags.aligned:
        return False
    for want, size in zip(arg.dims, array.shape):
        if isinstance(want, Sym):
            if syms[want.index] is None:
                syms[want.index] = size
            want = syms[want.index]  # type: ignore[assignment]
        if want != size:
            return False
    if is_c_order(arg.order) and not arg.exact:
        return bool(array.flags.c_contiguous)
    strides = dense_strides(array.shape, arg.order, arg.dtype.itemsize)
    return (array.size == 0 and not arg.exact) or all((n == 1 and not arg.exact) or a == b for n, a, b in zip(array.shape, array.strides, strides))


def _fits(arg: ArgSpec, obj: object, found: Matched) -> bool:
    data: Any = None
    match arg.kind:
        case "is":
            return obj is arg.value
        case "array":
            if type(obj) is not np.ndarray or not _array_fits(arg, obj, found.syms):
                return False
            data = obj
        case "float":
            if type(obj) is not float:
                return False
            data = np.array(obj)
        case "int":
            if type(obj) is not int or not -(1 << 63) <= obj < 1 << 63:
                return False
            data = np.array(obj, np.int64)
        case _:
            if arg.dtype is None or type(obj) is not np_scalar_type(arg.dtype):
                return False
            data = np.array(obj)
    found.keep.append(data)
    found.ptrs.append(data.ctypes.data)
    return True


def match(instance: Instance, args: Sequence[object]) -> Matched | int:
    """The pointers for these positional arguments, or the position in ``instance.args`` that does not fit (-1: their number)."""
    if len(args) != instance.positional:
        return -1
    found = Matched(instance.nsym)
    for k, arg in enumerate(instance.args):
        if not _fits(arg, read_source(arg, args), found):
            return k
    return found


def out_shapes(instance: Instance, syms: Sequence[int]) -> list[tuple[int, ...]]:
    """The shapes of the results for these sizes."""
    if instance.shapes and any(None in o.dims for o in instance.outs):
        count = sum(len(o.dims) for o in instance.outs)
        sizes = (ctypes.c_int64 * max(len(syms), 1))(*syms)
        dims = (ctypes.c_int64 * max(count, 1))()
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(instance.shapes)(ctypes.addressof(sizes), ctypes.addressof(dims))
        flat = iter(dims)
        return [tuple(next(flat) for _ in o.dims) for o in instance.outs]
    return [_shape(o, syms) for o in instance.outs]


def _shape(out: OutSpec, syms: Sequence[int]) -> tuple[int, ...]:
    return tuple(syms[d.index] if isinstance(d, Sym) else int(d or 0) for d in out.dims)
