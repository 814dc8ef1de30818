"""Native kernels for eager execution: one size-generic kernel per op, dtype and (where it matters) rank, built on first use and cached on disk."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

from aotgrad.ir import Func, Layout, Op, TensorType, build, dims, opdef

from . import images, kernels

__all__ = ["kernel"]


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
        return _dot(types[0].dtype)
    if definition.layouts == "channels_last":
        generic = images.generic(op)
        return functools.partial(_laid_out, op.name, *generic)
    dtypes = tuple(t.dtype for t in types)
    if isinstance(definition.lower, opdef.Scalar):
        flat = _kernel(op.name, dtypes, 1, attrs)
        return functools.partial(_elementwise, flat)
    return functools.partial(_whole, _kernel(op.name, dtypes, types[0].rank, attrs))


@functools.lru_cache(maxsize=1024)
def _kernel(name: str, dtypes: tuple[Any, ...], rank: int, attrs: tuple[Any, ...]) -> Callable[..., Any]:
    shape = tuple(dims.symbol(f"n{i}") for i in range(rank))
    types = [TensorType(shape, d) for d in dtypes]
    return _build(build(f"eager_{name}", types, lambda b, *xs: b.emit(name, xs, dict(attrs))))


@functools.lru_cache(maxsize=8)
def _dot(dtype: Any) -> Callable[..., Any]:
    batch, m, k, n = (dims.symbol(s) for s in "bmkn")
    types = [TensorType((batch, m, k), dtype), TensorType((batch, k, n), dtype)]
    return functools.partial(_batched, _build(build("eager_dot", types, lambda b, x, y: b.dot(x, y))))


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


def _batched(flat: Callable[..., Any], x: Any, y: Any) -> Any:
    *lead, m, k = x.shape
    n = y.shape[-1]
    count = int(np.prod(lead, dtype=int))
    out = flat(np.ascontiguousarray(x).reshape(count, m, k), np.ascontiguousarray(y).reshape(count, k, n))
    return out.reshape(*lead, m, n)
