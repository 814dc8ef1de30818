"""Native kernels for eager execution: one size-generic kernel per op, dtype and (where it matters) rank, built on first use and cached on disk; and kernels of
whole programs that run again and again (``fused``)."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from aotgrad.ir import Func, Layout, Op, TensorType, build, dims, opdef
from aotgrad_runtime import call
from aotgrad_runtime import memory_format as mf
from aotgrad_runtime.dtypes import bool_, float32, float64, int32, int64

from . import images, kernels

__all__ = ["available", "fused", "joins", "kernel", "silent"]


@functools.lru_cache(maxsize=1)
def available() -> bool:
    """Whether the compiler can be loaded; without it eager execution uses the ops' NumPy meaning."""
    return importlib.util.find_spec("llvmlite") is not None


def kernel(op: Op) -> Callable[..., Any] | None:
    """The native implementation of a primitive op, or None where the compiler is not installed."""
    if not available() or op.regions:
        return None
    types = [o.type for o in op.operands]
    definition = opdef.get(op.name)
    attrs = tuple((k, v) for k, v in op.attrs.items())
    if op.name == "dot":
        return functools.partial(_batched, types[0].dtype)
    if definition.layouts == "channels_last":
        generic = images.generic(op)
        return functools.partial(_laid_out, op.name, *generic)
    dtypes = tuple(t.dtype for t in types)
    if isinstance(definition.lower, opdef.Scalar):
        flat = _kernel(op.name, dtypes, 1, attrs)
        return functools.partial(_elementwise, flat)
    return functools.partial(_whole, _kernel(op.name, dtypes, types[0].rank, attrs))


def silent(op: Op) -> bool:
    """Whether an op runs as a kernel here, which gives none of NumPy's warnings."""
    definition = opdef.get(op.name)
    return available() and not op.regions and not definition.exact and all(v.type.dtype in _FUSED for v in (*op.operands, *op.results))


@functools.lru_cache(maxsize=1024)
def _kernel(name: str, dtypes: tuple[Any, ...], rank: int, attrs: tuple[Any, ...]) -> Callable[..., Any]:
    shape = tuple(dims.symbol(f"n{i}") for i in range(rank))
    types = [TensorType(shape, d) for d in dtypes]
    return _build(build(f"eager_{name}", types, lambda b, *xs: b.emit(name, xs, dict(attrs))))


def fused(func: Func) -> Callable[..., Any] | None:
    """One kernel for a program of several steps: arrays in, an array or a tuple of them out, None for arrays that it does not fit. None where op by op is as good,
    or where the memory order of results, an error or the order of a sum would not be the same."""
    ops = func.body.ops
    if len(ops) < 2 or not func.outputs or not available() or any(op.regions or op.name in _ALONE for op in ops):
        return None
    types = {v.type for op in ops for v in (*op.operands, *op.results)} | {a.type for a in func.args}
    if any(t.dtype not in _FUSED for t in types) or all(opdef.get(op.name).exact and op.name in _MOVES for op in ops):
        return None
    if any(opdef.get(op.name).layouts == "channels_last" for op in ops):  # their kernels are of their own
        return None
    built = kernels.build(func, func.name)
    made = call.make_callable(func.name, _miss)
    made.add_instance(replace(built.instance(built.arg_specs(), False), on_error=_again))
    return made if all(t.rank <= 2 for t in types) else functools.partial(_row_major, made)


def joins(op: Op) -> bool:
    """Whether an op may be part of a kernel between others, of two dims at most."""
    return not op.regions and op.name not in _ALONE and opdef.get(op.name).layouts != "channels_last" and all(
        v.type.dtype in _FUSED and v.type.rank <= 2 for v in (*op.operands, *op.results))


def _row_major(made: Callable[..., Any], *arrays: Any) -> Any:
    """From three dims on the memory order of results follows those of operands: the kernel serves row-major ones, single elements included."""
    for x in arrays:
        if x.ndim > 2 and (not x.flags.c_contiguous or 1 in x.shape and x.strides != tuple([s * x.itemsize for s in mf.format_strides(x.shape)])):
            return None
    return made(*arrays)


_MOVES = frozenset(("broadcast", "constant", "full", "permute", "reshape", "slice"))
_ALONE = frozenset(("dot", "host_call", "root_sum_powers"))  # branches, and how operands of products lie
_FUSED = (float64, float32, int64, int32, bool_)


def _again(code: int, info: tuple[int, int, int, int]) -> Any:
    """Where a kernel finds an index or a number that is none, the steps say what is wrong with it."""
    if code in (2, 3):
        return NotImplemented
    return call.default_on_error(code, info)


def _miss(*args: Any) -> None:
    """What a kernel's callable gives for arrays that it does not fit."""


@functools.lru_cache(maxsize=32)
def _dot(dtype: Any, turned: tuple[bool, bool], batched: bool = True) -> Callable[..., Any]:
    batch, m, k, n = (dims.symbol(s) for s in "bmkn")
    lead, order = ((batch,), (0, 2, 1)) if batched else ((), (1, 0))
    types = [TensorType((*lead, k, m) if turned[0] else (*lead, m, k), dtype), TensorType((*lead, n, k) if turned[1] else (*lead, k, n), dtype)]

    def body(b: Any, x: Any, y: Any) -> Any:
        x, y = (b.permute(v, perm=order) if on else v for v, on in zip((x, y), turned))
        return b.dot(x, y)

    return _build(build("eager_dot", types, body))


def _laid_out(name: str, types: tuple[TensorType, ...], attrs: tuple[Any, ...], *xs: Any) -> Any:
    """An op on images, each in its own layout."""
    kernel = _images(name, types, tuple([images.order_of(x) for x in xs]), attrs)
    return kernels.run_flat(kernel, xs)[0]


@functools.lru_cache(maxsize=1024)
def _images(name: str, types: tuple[TensorType, ...], orders: tuple[Any, ...], attrs: tuple[Any, ...]) -> kernels.Kernel:
    placed = [TensorType(t.shape, t.dtype, o and Layout(o)) for t, o in zip(types, orders)]
    func = build(f"eager_{name}", placed, lambda b, *xs: b.emit(name, xs, dict(attrs)))
    return kernels.build(func, func.name)


def _build(func: Func) -> Callable[..., Any]:
    return kernels.build(func, func.name).flat


def _elementwise(flat: Callable[..., Any], *xs: Any) -> Any:
    """Operands of one shape: run over them in memory order, so that any dense layout is kept."""
    first = xs[0]
    order = kernels.dense_order(first)
    if isinstance(order, tuple) and all(x.strides == first.strides for x in xs):
        inverse = np.argsort(order)
        moved = [x.transpose(order) for x in xs]
        return flat(*(m.reshape(-1) for m in moved)).reshape(moved[0].shape).transpose(inverse)
    return flat(*(np.ascontiguousarray(x).reshape(-1) for x in xs)).reshape(first.shape)


def _whole(flat: Callable[..., Any], *xs: Any) -> Any:
    return flat(*(x if x.flags.c_contiguous else np.ascontiguousarray(x).reshape(x.shape) for x in xs))


_AS_THEY_ARE = (False, False)


def _batched(dtype: Any, x: Any, y: Any) -> Any:
    """A product of (batches of) matrices; transposed ones are read where they lie."""
    if x.ndim == y.ndim == 2:
        turned = (not x.flags.c_contiguous, not y.flags.c_contiguous)
        if turned == _AS_THEY_ARE:
            return _dot(dtype, turned, False)(x, y)
        first, second = (x.T if turned[0] else x), (y.T if turned[1] else y)
        if first.flags.c_contiguous and second.flags.c_contiguous:
            return _dot(dtype, turned, False)(first, second)
    *lead, m, k = x.shape
    n = y.shape[-1]
    count = int(np.prod(lead, dtype=int))
    left, right = _matrices(x, count), _matrices(y, count)
    out = _dot(dtype, (left[1], right[1]))(left[0], right[0])
    return out.reshape(*lead, m, n)


def _matrices(x: Any, count: int) -> tuple[Any, bool]:
    """``x`` as a packed batch of matrices, and whether they are transposed."""
    if not x.flags.c_contiguous and (turned := x.swapaxes(-1, -2)).flags.c_contiguous:
        return turned.reshape(count, *turned.shape[-2:]), True
    return np.ascontiguousarray(x).reshape(count, *x.shape[-2:]), False
