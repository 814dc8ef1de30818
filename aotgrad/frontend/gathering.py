"""``np.array([a, b])`` and its kin of computed values, while a function is traced or differentiated.

NumPy gives classes no say in its constructors (``__array__`` may only hand over numbers), so for as long as any function runs on computed values the names
``np.array``, ``np.asarray`` and so on hold functions that try NumPy's own first, and join the values where it was refused. For everything else they are NumPy's.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from aotgrad_runtime import forks
from aotgrad_runtime.errors import AotgradTypeError
from aotgrad_runtime.tensor import ArrayTensor

from .boundary import PLAIN, refusal, restate
from .trace import TracedArray

__all__ = ["gathering"]

_VALUES = (ArrayTensor, TracedArray)
_NOT_USERS: Final = frozenset(("aotgrad", "aotgrad_runtime", "numpy", "scipy"))  # they ask for numbers, and say what to do
_lock: Final = forks.safe(threading.Lock())


def _holds(x: Any) -> bool:
    return isinstance(x, _VALUES) or isinstance(x, (list, tuple)) and any(map(_holds, x))


def _joined(x: Any) -> Any:
    """Nested lists of values and numbers as one value; Python's numbers decide dtypes as they do in ``np.array``."""
    if isinstance(x, _VALUES):
        return np.copy(x) if getattr(x, "_weak", False) else x
    if not _holds(x):
        return _NUMPYS["asarray"](x)
    return np.stack([_joined(v) for v in x])


def _made(x: Any, dtype: Any, ndmin: int, copied: bool) -> Any:
    out = _joined(x)
    if dtype is not None and np.dtype(dtype) != out.dtype:
        out = out.astype(dtype)
    elif copied and out is x:
        out = np.copy(x)
    return out if out.ndim >= ndmin else out.reshape((1,) * (ndmin - out.ndim) + tuple(out.shape))


def _array(object: Any, dtype: Any = None, *, copy: bool | None = True, order: Any = "K", subok: bool = False, ndmin: int = 0, like: Any = None, ndmax: int = 0) -> Any:
    return _shared(_made(object, dtype, ndmin, bool(copy)), object, copy)


def _shared(out: Any, given: Any, copy: Any) -> Any:
    """``out``, which has to be ``given`` itself where ``copy`` is False."""
    if copy is False and out is not given:
        raise ValueError("Unable to avoid copy while creating an array as requested; leave copy=False out")
    return out


def _asarray(a: Any, dtype: Any = None, order: Any = None, *, device: Any = None, copy: bool | None = None, like: Any = None) -> Any:
    return _shared(_made(a, dtype, 0, bool(copy)), a, copy)


def _ascontiguousarray(a: Any, dtype: Any = None, *, like: Any = None) -> Any:
    return _made(a, dtype, 1, False)


def _full(shape: Any, fill_value: Any, dtype: Any = None, order: Any = "C", *, device: Any = None, like: Any = None) -> Any:
    sizes = tuple(shape) if isinstance(shape, (list, tuple)) else (shape,)
    return np.copy(np.broadcast_to(_made(fill_value, dtype, 0, False), sizes))


def _take(a: Any, indices: Any, axis: Any = None, out: Any = None, mode: str = "raise") -> Any:
    """Numbers of an array at computed places; NumPy asks the array alone."""
    places, given = _joined(indices), {"axis": axis, **({} if mode == "raise" else {"mode": mode}), **({} if out is None else {"out": out})}
    return places.__array_function__(_NUMPYS["take"], (type(places),), (a, places), given)


_OURS: Final[dict[str, Callable[..., Any]]] = {"array": _array, "asarray": _asarray, "asanyarray": _asarray, "ascontiguousarray": _ascontiguousarray,
                                               "asfortranarray": _ascontiguousarray, "full": _full, "take": _take}
_NUMPYS: Final = {name: getattr(np, name) for name in _OURS}


def _trying(name: str) -> Callable[..., Any]:
    numpys, ours = _NUMPYS[name], _OURS[name]
    parameters = tuple(inspect.signature(ours).parameters)

    @functools.wraps(numpys, updated=())
    def constructor(*args: Any, **kwargs: Any) -> Any:
        try:
            return numpys(*args, **kwargs)
        except AotgradTypeError:
            if not any(map(_holds, (*args, *kwargs.values()))) or sys._getframe(1).f_globals.get("__name__", "").partition(".")[0] in _NOT_USERS:
                raise
            try:
                return ours(*args, **kwargs)
            except PLAIN as error:
                restate(refusal(f"np.{name}", {**dict(zip(parameters, args)), **kwargs}, f"{name}({', '.join(parameters)})", error), error)

    return constructor


_TRYING: Final = {name: _trying(name) for name in _OURS}


class gathering:
    """Context in which NumPy's constructors join computed values; of the process, and without a difference to what holds none."""

    inside = 0

    def __enter__(self) -> None:
        with _lock:
            if not gathering.inside:
                _rename(_NUMPYS, _TRYING)
            gathering.inside += 1

    def __exit__(self, *exc: object) -> None:
        with _lock:
            gathering.inside = max(0, gathering.inside - 1)  # a child of fork began with none
            if not gathering.inside:
                _rename(_TRYING, _NUMPYS)


def _rename(old: dict[str, Any], new: dict[str, Any]) -> None:
    for name, function in old.items():
        if getattr(np, name) is function:  # else somebody has replaced it meanwhile, and it is theirs
            setattr(np, name, new[name])


def _in_child() -> None:
    if gathering.inside:  # the thread that forked may be none of those inside
        gathering.inside = 0
        _rename(_TRYING, _NUMPYS)


forks.after_in_child(_in_child)
