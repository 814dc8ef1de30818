"""What a call says that runs out of memory: what would have taken how much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aotgrad.ir import Func, dims
from aotgrad_runtime.errors import AotgradMemoryError

__all__ = ["copying", "named", "running"]


def copying(func: Func, arrays: Sequence[Any]) -> AotgradMemoryError:
    """The error where an argument could not be laid out densely: the largest of those that are not."""
    index = max((i for i, a in enumerate(arrays) if not a.flags.c_contiguous or not a.flags.aligned), key=lambda i: int(arrays[i].nbytes), default=0)
    made = AotgradMemoryError(_copy(f"{func.name}: argument {index}", arrays[index]))
    made.argument = index
    return made


def named(function: str, name: str, array: Any) -> AotgradMemoryError:
    """The same error with the argument's name."""
    return AotgradMemoryError(_copy(f"{function}: {name}", array))


def _copy(who: str, a: Any) -> str:
    how = "repeats elements (a stride is 0)" if 0 in a.strides else "is not contiguous"
    return f"{who} of shape {a.shape} {how}; compiled code reads a dense copy, whose {int(a.nbytes)} bytes there are not. Pass the part that is used"


def running(func: Func, workspace: Any, arrays: Sequence[Any], e: Exception) -> AotgradMemoryError:
    """The error where results or workspace could not be had."""
    sizes = {name: n for t, a in zip(func.arg_types, arrays) for d, n in zip(t.shape, a.shape) if isinstance(d, dims.Dim) and (name := d.as_symbol()) is not None}
    results = dims.substitute(sum((dims.product(t.shape) * t.dtype.itemsize for t in func.out_types), 0), sizes)
    room = dims.substitute(dims.parse(workspace) if isinstance(workspace, str) else workspace, sizes)
    parts = [f"{what} {n} bytes" for what, n in (("its results take", results), ("its workspace takes", room)) if isinstance(n, int) and n > 0]
    return AotgradMemoryError(f"{func.name} ran out of memory: {' and '.join(parts) or e}")
