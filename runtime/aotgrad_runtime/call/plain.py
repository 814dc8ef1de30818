"""The call path without machine code: the same behaviour through ctypes, for other platforms and Pythons, and for ``AOTGRAD_NO_TRAMPOLINE=1``."""

from __future__ import annotations

import ctypes
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from .. import modes, watchers
from ..errors import AotgradMemoryError
from .match import Matched, dense_strides, match, out_shapes
from .pack import release_word
from .spec import Instance

__all__ = ["PlainFunction", "PlainPrebound", "plain_run"]

_MEMORY: Final = 4

_HOLDING: Final = ctypes.PYFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)  # a new class at every call of PYFUNCTYPE
_RELEASING: Final = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)


class _Ctx(ctypes.Structure):
    _fields_ = [("poll", ctypes.c_void_p), ("pool", ctypes.c_void_p), ("hook", ctypes.c_void_p), ("hook_state", ctypes.c_void_p), ("tape", ctypes.c_void_p)]


class _Call(ctypes.Structure):
    _fields_ = [
        ("ptrs", ctypes.c_void_p), ("sizes", ctypes.c_void_p), ("workspace", ctypes.c_void_p), ("ctx", ctypes.c_void_p), ("info", ctypes.c_int64 * 4),
    ]


def _alloc_aligned(nbytes: int) -> tuple[object, int]:
    block = np.empty(nbytes + 64, np.uint8)
    return block, (block.ctypes.data + 63) & -64


def plain_run(instance: Instance, ptrs: Sequence[int], syms: Sequence[int]) -> tuple[int, tuple[int, int, int, int]]:
    """Run the kernel: its code and info. On the main thread the GIL stays held so that Ctrl-C can be looked for."""
    call = _Call()
    vector = (ctypes.c_void_p * max(len(ptrs), 1))(*ptrs)
    sizes = (ctypes.c_int64 * max(len(syms), 1))(*syms)
    call.ptrs, call.sizes = ctypes.addressof(vector), ctypes.addressof(sizes)
    need = instance.workspace_bytes
    if need is None:
        need = int(ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(instance.workspace)(call.sizes)) if instance.workspace else 0
    keep: object = None
    if need > 0:
        try:
            keep, call.workspace = _alloc_aligned(need)
        except (MemoryError, ValueError):
            raise AotgradMemoryError(f"a compiled function ran out of memory: its workspace takes {need} bytes") from None
    ctx = _Ctx.from_buffer_copy(ctypes.string_at(instance.ctx, ctypes.sizeof(_Ctx))) if instance.ctx else _Ctx()
    call.ctx = instance.ctx
    prototype: Any = _HOLDING
    if release_word(instance) or instance.poll:
        call.ctx = ctypes.addressof(ctx)
        if threading.current_thread() is threading.main_thread():
            # With the GIL held Python's own check is a valid poll: it leaves the exception set, and ctypes raises it on return.
            ctx.poll = ctx.poll or ctypes.cast(ctypes.pythonapi.PyErr_CheckSignals, ctypes.c_void_p).value
        elif instance.release_bytes is not None:
            prototype = _RELEASING
    code = prototype(instance.kernel)(ctypes.addressof(call))
    del keep
    return int(code), (call.info[0], call.info[1], call.info[2], call.info[3])


class PlainFunction:
    """See ``make_callable``."""

    def __init__(self, fallback: Callable[..., Any], state: Any) -> None:
        self._fallback, self._state = fallback, state

    def __get__(self, obj: object, kind: type | None = None) -> Any:
        return self if obj is None else types.MethodType(self, obj)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not kwargs and not (self._state.suspended and watchers.state.count):
            for packed in tuple(self._state.packed):
                instance = packed.instance
                if instance.finish is not None and modes.flags.restricted:
                    continue
                found = match(instance, args)
                if isinstance(found, Matched):
                    result = _execute(instance, found, args)
                    if result is not NotImplemented:
                        return result
        return self._fallback(*args, **kwargs)


def _execute(instance: Instance, found: Matched, args: Sequence[Any]) -> Any:
    syms = [s or 0 for s in found.syms]
    outs = []
    for out, shape in zip(instance.outs, out_shapes(instance, syms)):
        array = np.ndarray(shape, out.dtype.np, strides=None if out.order is None else dense_strides(shape, out.order, out.dtype.itemsize))
        outs.append(array)
    code, info = plain_run(instance, [*found.ptrs, *(o.ctypes.data for o in outs)], syms)
    if code:
        return instance.on_error(code, info)
    values = tuple(o[()] if spec.as_scalar else o for spec, o in zip(instance.outs, outs))
    result = values[0] if len(values) == 1 else values or None
    return result if instance.finish is None else instance.finish(result, *args)


class PlainPrebound:
    """See ``prebind``."""

    def __init__(self, instance: Instance, ptrs: Sequence[int], syms: Sequence[int], keep: object) -> None:
        self._instance, self._ptrs, self._syms, self._keep = instance, ptrs, syms, keep

    def __call__(self) -> Any:
        code, info = plain_run(self._instance, self._ptrs, self._syms)
        if code:
            result = self._instance.on_error(code, info)
            if result is NotImplemented:
                raise RuntimeError("the sizes a prebound function was bound to do not satisfy a guard of its kernel")
            return result
        return None
