"""Strides of eager results where shapes leave a choice: PyTorch's for sizes of 0 and 1, which NumPy sees otherwise, and for results that do not follow their operands.

Decided when a program is made: one whose shapes leave no choice runs as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from aotgrad.ir import Func, opdef
from aotgrad.ir.transforms.rewrite import decompose_block
from aotgrad_runtime import memory_format as mf
from aotgrad_runtime.tensor import Tensor

from .front import Public
from .program import Program

__all__ = ["expanded", "made"]

Strides = tuple[int, ...]
_ROW_MAJOR = frozenset(("softmax", "log_softmax", "masked_fill"))  # row-major, whatever the strides of their operand
_PLAIN_NUMBERS = frozenset(("clip", "hardtanh", "lerp"))  # where a number is no operand in PyTorch, which would be one of another shape
_CASTS = frozenset(("convert", "to_double", "to_float", "to_int", "to_long", "to_bool"))
_MOVES = frozenset(("broadcast", "full", "constant", "cast"))


class Arranged(Program):
    """A program whose results are put into the strides that ``arrange(result, arrays)`` wants."""

    __slots__ = ("arrange",)
    arrange: Callable[[Any, Sequence[Any]], Any]

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        return [self.arrange(out, arrays) for out in super().run(arrays)]


def made(public: Public, func: Func, name: str, runner: Any, view: tuple[Any, ...] | None, arguments: dict[str, Any]) -> Program:
    """The program of an eager call on tensors."""
    arrange = _rule(public, func, view, arguments)
    if arrange is None:
        return Program(func, name, runner, view)
    out = Arranged(func, name, runner, view)
    out.arrange = arrange
    return out


def _rule(public: Public, func: Func, view: tuple[Any, ...] | None, arguments: dict[str, Any]) -> Any:
    if not func.outputs:
        return None
    shape = func.out_types[0].shape
    if not all(isinstance(n, int) for t in func.out_types for n in t.shape):
        return None
    if public.op.name in _ROW_MAJOR and len(shape) > 1:
        return _row_major
    if view is not None:
        return _of_view(public, func, view, arguments) if len(func.outputs) == 1 else None
    if public.op.name in _CASTS and (0 in shape or 1 in shape):
        return _kept
    if len(func.outputs) == 1 and len(shape) > 1 and (steps := _elementwise(func)) and (0 in shape or 1 in shape or steps > 1 or public.op.name in _PLAIN_NUMBERS):
        shapes = [tuple(a.type.shape) for a in func.args]
        if public.op.name in _PLAIN_NUMBERS and not isinstance(arguments.get("weight"), Tensor):
            shapes = [own for own in shapes if own]
        same = all(own == shape for own in shapes)
        return functools.partial(_reciprocal if public.op.name == "div" and not shapes[0] else _pointwise, shapes, same)
    return _spaced if any(0 in t.shape for t in func.out_types) else None


def _of_view(public: Public, func: Func, view: tuple[Any, ...], arguments: dict[str, Any]) -> Any:
    x, shape = func.args[0].type.shape, func.out_types[0].shape
    entries = view[1].entries if view[0] == "index" else ()
    if public.op.name == "unsqueeze":
        dim = arguments["dim"]
        return functools.partial(_put_in, sorted(d % len(shape) for d in (dim if isinstance(dim, (tuple, list)) else (dim,))))
    if 0 in shape and len(entries) >= len(x) or ("new",) in entries:
        return functools.partial(_part, entries)
    return None


def _elementwise(func: Func) -> int:
    """How many elementwise ops a program is made of, if of those alone, else 0; one that chooses counts twice, because NumPy's result is row-major then."""
    if not any(a.type.shape == func.out_types[0].shape for a in func.args):
        return 0
    ops = [op for op in decompose_block(func.body).ops if op.name not in _MOVES]
    return sum(1 + (op.name == "where") for op in ops) if all(isinstance(opdef.get(op.name).lower, opdef.Scalar) for op in ops) else 0


def strides_of(x: Any) -> Strides:
    """Strides in elements; those of PyTorch where NumPy gave an empty array none."""
    if not x.size and not any(x.strides):
        return mf.format_strides(x.shape)
    item = x.itemsize
    return tuple([s // item for s in x.strides])


def _put(out: Any, wanted: Strides) -> Any:
    item = out.itemsize
    return out if out.strides == tuple([s * item for s in wanted]) else mf.copy_to_strides(out, wanted)


def _spaced(out: Any, arrays: Sequence[Any]) -> Any:
    return _put(out, mf.format_strides(out.shape)) if not out.size and not any(out.strides) and out.base is None else out


def _row_major(out: Any, arrays: Sequence[Any]) -> Any:
    return _put(out, mf.format_strides(out.shape))


def _kept(out: Any, arrays: Sequence[Any]) -> Any:
    return _put(out, mf.preserved_strides(out.shape, strides_of(arrays[0])))


def _reciprocal(shapes: Sequence[tuple[int, ...]], same: bool, out: Any, arrays: Sequence[Any]) -> Any:
    """A number over a tensor is the number times its reciprocal, in PyTorch."""
    one = mf.pointwise_strides(out.shape, [strides_of(arrays[1])], True)
    return _put(out, mf.pointwise_strides(out.shape, [(0,) * out.ndim, one], False))


def _pointwise(shapes: Sequence[tuple[int, ...]], same: bool, out: Any, arrays: Sequence[Any]) -> Any:
    if any(out is x for x in arrays):
        return out
    shape, operands = out.shape, []
    if 1 not in shape and 0 not in shape and out.flags.c_contiguous and all(x.flags.c_contiguous for x in arrays):
        return out
    for own, x in zip(shapes, arrays):
        lead = (0,) * (len(shape) - len(own))
        operands.append((*lead, *(0 if n == 1 != m else s for s, n, m in zip(strides_of(x), own, shape[len(lead):]))))
    return _put(out, mf.pointwise_strides(shape, operands, same))


def _put_in(at: Sequence[int], out: Any, arrays: Sequence[Any]) -> Any:
    """Dims of size 1 put in at ``at`` step over what follows them."""
    rest = iter(strides_of(arrays[0]))
    kept = [1 if d in at else next(rest) for d in range(out.ndim)]
    for d in reversed(at):
        kept[d] = out.shape[d + 1] * kept[d + 1] if d + 1 < out.ndim else 1
    return _with_strides(out, kept)


def _part(entries: Sequence[tuple[Any, ...]], out: Any, arrays: Sequence[Any]) -> Any:
    """Slices step as many times as far, also through nothing; new dims step over what follows them."""
    x = arrays[0]
    sizes, strides, d = list(x.shape), list(strides_of(x)), 0
    for entry in entries:
        if entry[0] == "new":
            sizes.insert(d, 1)
            strides.insert(d, sizes[d + 1] * strides[d] if d + 1 < len(sizes) else 1)
        elif entry[0] == "int":
            del sizes[d], strides[d]
            continue
        else:
            sizes[d] = out.shape[d]
            strides[d] *= entry[3] or 1
        d += 1
    return _with_strides(out, strides)


def _with_strides(out: Any, strides: Sequence[int]) -> Any:
    wanted = tuple([s * out.itemsize for s in strides])
    if out.strides == wanted:
        return out
    return as_strided(out, out.shape, wanted) if out.size else np.ndarray(out.shape, out.dtype, buffer=out, strides=wanted)


def expanded(shape: tuple[Any, ...], x: Any) -> list[Any]:
    """``x`` broadcast to ``shape``; dims of size 1 that stay keep their strides, which NumPy would drop, and new ones step over what follows them."""
    out = np.broadcast_to(x, shape)
    if x.ndim and 1 in shape:
        lead = len(shape) - x.ndim
        kept: Strides = tuple([s if n == shape[lead + i] else 0 for i, (s, n) in enumerate(zip(x.strides, x.shape))])
        for i in reversed(range(lead)):
            kept = (shape[i + 1] * kept[0] if shape[i] == 1 else 0, *kept)
        if out.strides != kept:
            own = all(s or n < 2 for s, n in zip(kept, shape))  # every element is one of its own
            out = as_strided(x, shape, kept, writeable=own and x.flags.writeable)
    return [out]
