"""Arrays whose numbers a trace used as they were (``x * np.exp(G)``): compared with a copy before each call, so that a change in place is seen.

NumPy itself would read such an array at every call, so the comparison costs no more than plain Python does. Arrays that are inputs of the compiled program are not
compared, unless plain NumPy may have read them too (``reads``).
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from aotgrad_runtime.call import Cell, Fixed, Global
from aotgrad_runtime.tensor import Tensor

from .reads import Loads, Places
from .sources import Path, memory_of, read
from .trace import Traced

__all__ = ["Content", "bytes_of", "gated", "survey_contents"]

_SMALL = 2048  # bytes that are compared through a copy of their own
_memcmp = getattr(ctypes.CDLL(None), "memcmp", None)
if _memcmp is not None:
    _memcmp.argtypes, _memcmp.restype = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t), ctypes.c_int


class Content:
    """What the array or tensor at a place held; ``same`` tells whether it still does, bit for bit."""

    __slots__ = ("array", "get", "held", "kept", "path", "type")

    def __init__(self, path: Path, array: Any, others: Iterable[Content] = ()) -> None:
        self.path, self.array, self.get = path, array, _getter(path)
        data = _data(array)
        self.type = _type(array)
        self.held = list(data.flat) if data.dtype.hasobject else None  # their addresses are compared, so they must live
        twin = next((c for c in others if c.array is array and c.same()), None)
        self.kept: bytes | None = data.tobytes("A") if twin is None else twin.kept

    def same(self) -> bool:
        """Whether the place holds an array of the same type, shape and numbers."""
        try:
            now = self.get()
        except Exception:  # gone: an unset cell, a deleted name, a property that fails
            return False
        if now is not self.array and not isinstance(now, (np.ndarray, Tensor)):
            return False
        return self.kept is not None and _type(now) == self.type and _equal(_data(now), self.kept)

    def forget(self) -> None:
        """Frees the copy; ``same`` is false from now on."""
        self.kept = self.held = None


def _data(x: Any) -> Any:
    return x._data if isinstance(x, Tensor) else x


def _getter(path: Path) -> Callable[[], Any]:
    root = path.root
    if path.steps:
        return functools.partial(read, None, path)
    if isinstance(root, Cell):
        return functools.partial(getattr, root.cell, "cell_contents")
    return functools.partial(root.namespace.__getitem__, root.key) if isinstance(root, Global) else lambda: root.obj


def _type(x: Any) -> tuple[Any, ...]:
    data = _data(x)
    return type(x), x.dtype, data.shape, data.strides


def _equal(data: Any, kept: bytes) -> bool:
    if _memcmp is None or len(kept) <= _SMALL or type(data) is not np.ndarray or not (data.flags.c_contiguous or data.flags.f_contiguous):
        return data.tobytes("A") == kept  # type: ignore[no-any-return]
    return _memcmp(data.__array_interface__["data"][0], kept, len(kept)) == 0  # type: ignore[no-any-return]


def bytes_of(contents: Iterable[Content]) -> int:
    """The size of the copies; those that are shared count once."""
    return sum(len(k) for k in {id(c.kept): c.kept for c in contents if c.kept is not None}.values())


def gated(run: Callable[..., Any], contents: Sequence[Content], miss: object) -> Callable[..., Any]:
    """``run`` while nothing changed; ``miss`` else."""
    tests = [c.same for c in contents]

    def guarded(*args: Any) -> Any:
        for same in tests:
            if not same():
                return miss
        return run(*args)

    return guarded


def survey_contents(found: Sequence[tuple[Path, Any]], functions: Sequence[FunctionType], taken: dict[int, Places], noted: Sequence[Any],
                    others: Iterable[Content]) -> list[Content]:
    """What must be compared before each call. ``found``: the arrays that the program can name; ``taken``: where the trace took arrays for operands; ``noted``: tensors
    whose numbers left the library."""
    loads, others = Loads(functions, taken), list(others)
    noted_memory = {id(memory_of(t)) for t in noted}
    out, seen = list[Content](), set[int]()
    for path, value in found:
        if isinstance(value, (np.ndarray, Tensor)) and not isinstance(value, Traced) and _data(value).size:
            owner = id(memory_of(value))
            if owner in noted_memory or not isinstance(value, Tensor) and loads.may_read(path, value):
                out.append(Content(path, value, [*others, *out]))
                seen.add(owner)
    unnamed = {id(t): t for t in noted if id(memory_of(t)) not in seen and _data(t).size}
    return out + [Content(Path(Fixed(t)), t) for t in unnamed.values()]
