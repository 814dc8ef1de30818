"""Making tensors: zeros, ones, full, arange, linspace, eye, random numbers. In a trace they emit ops, so that nothing fresh is frozen and sizes may be symbolic."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotgrad.ir import Layout, dims
from aotgrad.ir.dims import Dim
from aotgrad_runtime import dtypes
from aotgrad_runtime import memory_format as mf
from aotgrad_runtime import tensor as runtime
from aotgrad_runtime.arrays import converted, decode, defaults, held, kinds_in
from aotgrad_runtime.dtypes import DType, as_dtype
from aotgrad_runtime.errors import AotgradArgumentError, AotgradNotImplementedError, AotgradTypeError
from aotgrad_runtime.tensor import ArrayTensor, Tensor

from . import placement
from .boundary import PLAIN, called_wrongly, restate
from .dispatch import TORCH, run
from .front import FrontBuilder
from .ledger import made_here, twin
from .notices import notice
from .numpy_protocol import filled_like, number_as
from .sizes import TracedNumber, plain_size
from .trace import Trace, Traced, TracedTensor, current, user_loc

__all__ = [
    "arange", "as_tensor", "empty", "empty_like", "eye", "finish", "fixed", "from_dlpack", "from_numpy", "full", "full_like", "kind_of", "linspace", "on_cpu", "ones",
    "ones_like", "placed_like", "positions", "shape_of", "tensor", "traced", "watch", "whole", "zeros", "zeros_like",
]


# ---- where tensors live ------------------------------------------------------------------------------------------------------------------

def on_cpu(make: Callable[..., Any]) -> Callable[..., Any]:
    """``make`` with torch's parameters ``device``, which has to be the processor, and ``pin_memory``, which has to be False."""

    @functools.wraps(make)
    def placed(*args: Any, device: Any = None, pin_memory: bool = False, **kwargs: Any) -> Any:
        if device is not None:
            runtime.Device(device)  # which says what is wrong with it
        if pin_memory:
            raise AotgradArgumentError(f"{make.__name__}: pin_memory=True is for copies to other devices, and there are none: aotgrad runs on the CPU")
        try:
            return make(*args, **kwargs)
        except PLAIN as error:
            restate(called_wrongly(placed, args, kwargs, error), error)

    given = inspect.signature(make)
    kept = [p for p in given.parameters.values() if p.name != "device" and p.kind is not p.VAR_KEYWORD]
    further = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=d) for n, d in (("device", None), ("pin_memory", False))]
    placed.__signature__, placed._told = given.replace(parameters=[*kept, *further]), True  # type: ignore[attr-defined]
    return placed


# ---- helpers ----------------------------------------------------------------------------------------------------------------------------

def shape_of(size: Sequence[Any], name: str) -> tuple[Any, ...]:
    given = tuple(size[0]) if len(size) == 1 and isinstance(size[0], (tuple, list)) else tuple(size)
    out = tuple(d if isinstance(d, Dim) else whole(d, name) for d in given)
    for d in out:
        if isinstance(d, int) and d < 0:
            raise AotgradArgumentError(f"{name}: size {d} in {list(out)} is negative")
    return out


def whole(d: Any, name: str, what: str = "sizes are integers") -> int:
    if isinstance(d, (float, str)) or not hasattr(d, "__index__"):
        raise AotgradTypeError(f"{name}: {what}, not {type(d).__name__} ({d!r})")
    return int(d.__index__())


def _number(v: Any, name: str, what: str) -> Any:
    """A Python number or a size."""
    v = v.item() if isinstance(v, (Tensor, np.generic)) else v
    if not isinstance(v, (int, float, Dim)):
        raise AotgradTypeError(f"{name}: {what} is {type(v).__name__} ({v!r:.40}); give a number")
    return v


def finish(data: Any, requires_grad: bool, memory_format: Any = None) -> Any:
    if 0 in data.shape and not any(data.strides):  # NumPy gives what is empty no strides
        data = mf.empty(data.shape, data.dtype, mf.format_strides(data.shape))
    out = runtime.wrap(data)
    if memory_format is not None:
        out._data = mf.copy_to_strides(out._data, mf.format_strides(out._data.shape, mf.check(memory_format)))
    return out.requires_grad_(True) if requires_grad else out


def traced(trace: Trace, value: Any, requires_grad: bool) -> Any:
    out = TracedTensor._of(trace, value)
    if requires_grad and (trace.ledger is None or trace.parent is not None):
        raise AotgradNotImplementedError(f"{user_loc()}: requires_grad=True is not available here (in built libraries, loops, branches and transforms); use ag.grad")
    return out.requires_grad_(True) if requires_grad else out


def fixed(shape: Sequence[Any], name: str) -> Any:
    for d in shape:
        if isinstance(d, Dim):
            raise AotgradTypeError(f"{user_loc()}: {name}: the size {d} is symbolic, and no trace is active; it has left the function it belongs to")
    if len(shape) > 64:
        raise AotgradArgumentError(f"{user_loc()}: {name}: {len(shape)} dimensions; arrays have at most 64")
    return shape


def _emit(name: str, dtype: DType, requires_grad: bool, build: Any) -> Any:
    trace = current()
    assert trace is not None
    return traced(trace, build(FrontBuilder(trace, True, user_loc())), requires_grad)


# ---- one value --------------------------------------------------------------------------------------------------------------------------

@on_cpu
def full(size: Any, fill_value: Any, *, dtype: Any = None, requires_grad: bool = False, memory_format: Any = None) -> Any:
    """A tensor of ``size`` filled with one number. Its dtype is that of the number: default dtype for floats, int64, bool.

    >>> import aotgrad as ag
    >>> ag.full((2,), 7)
    tensor([7, 7])
    """
    shape = shape_of((size,) if isinstance(size, (tuple, list)) else ((size,),), "full")
    return filled("full", shape, fill_value, dtype, requires_grad, memory_format)


def filled(name: str, shape: tuple[Any, ...], fill_value: Any, dtype: Any, requires_grad: bool, memory_format: Any = None) -> Any:
    if isinstance(fill_value, Tensor):
        kind = as_dtype(dtype) if dtype is not None else defaults.dtype if fill_value._weak and fill_value._dtype.kind == "f" else fill_value._dtype
        out = run(TORCH["clone"], {"input": run(TORCH["expand"], {"input": number_as(fill_value, kind), "sizes": (shape,)})})
        return _ended(out if memory_format is None else placed_like(out, out, memory_format), requires_grad)
    if dtype is None:
        python = type(fill_value) if type(fill_value) in (float, int, bool) else fill_value.dtype if isinstance(fill_value, np.generic) else type(fill_value)
        kind = defaults.dtype if python is float else as_dtype(python)
    else:
        kind = as_dtype(dtype)
    return _full(name, shape, fill_value, kind, requires_grad, memory_format)


def _full(name: str, shape: tuple[Any, ...], value: Any, dtype: DType, requires_grad: bool, memory_format: Any) -> Any:
    if current() is not None:
        layout = None if memory_format is None else layout_of(shape, mf.check(memory_format))
        return _emit(name, dtype, requires_grad, lambda b: _laid(b, b.full(shape=shape, value=decode(held(value, dtype)).item(), dtype=dtype), layout))
    return finish(_filled(fixed(shape, name), value, dtype), requires_grad, memory_format)


def _filled(shape: Sequence[Any], value: Any, dtype: DType) -> Any:
    return np.full(shape, held(value, dtype), dtype.np)


def kind_of(dtype: Any) -> DType:
    return defaults.dtype if dtype is None else as_dtype(dtype)


@on_cpu
def zeros(*size: Any, dtype: Any = None, requires_grad: bool = False, memory_format: Any = None) -> Any:
    """A tensor of zeros: ``zeros(2, 3)`` or ``zeros((2, 3))``, of the default dtype unless given."""
    return _full("zeros", shape_of(size, "zeros"), 0, kind_of(dtype), requires_grad, memory_format)


@on_cpu
def ones(*size: Any, dtype: Any = None, requires_grad: bool = False, memory_format: Any = None) -> Any:
    """A tensor of ones."""
    return _full("ones", shape_of(size, "ones"), 1, kind_of(dtype), requires_grad, memory_format)


@on_cpu
def empty(*size: Any, dtype: Any = None, requires_grad: bool = False, memory_format: Any = None) -> Any:
    """A tensor whose values do not matter (they are zeros)."""
    return _full("empty", shape_of(size, "empty"), 0, kind_of(dtype), requires_grad, memory_format)


def tensor_of(x: Any) -> Any:
    """A NumPy array as a tensor; anything else as it is."""
    return runtime.as_tensor(x) if isinstance(x, np.ndarray) else x


def _like(name: str, x: Any, value: Any, dtype: Any, requires_grad: bool, memory_format: Any) -> Any:
    if not isinstance(x, (Tensor, np.ndarray)):
        raise AotgradTypeError(f"{name}(): argument 'input' must be a tensor, not {type(x).__name__}")
    x = tensor_of(x)
    return _ended(placed_like(filled_like(x, value, dtype), x, memory_format), requires_grad)


def _ended(out: Any, requires_grad: bool) -> Any:
    if not requires_grad:
        return out
    return traced(out._trace, out._value, True) if isinstance(out, Traced) else out.requires_grad_(True)


def layout_of(shape: Sequence[Any], fmt: mf.MemoryFormat) -> Layout | None:
    """What traced values of ``shape`` have for layout in ``fmt``."""
    mf.check_rank(shape, fmt)
    return None if fmt.order is None else Layout(fmt.order[::-1])


def _laid(b: Any, v: Any, layout: Layout | None) -> Any:
    return v if v.type.layout == layout else b.relayout(v, layout=layout)


def relaid(x: Any, layout: Layout | None) -> Any:
    """A traced value in ``layout``."""
    return x if x._value.type.layout == layout else type(x)._of(x._trace, x._trace.builder.relayout(x._value, layout=layout))


def _like_strides(x: Any, memory_format: Any) -> Any:
    if memory_format in (None, mf.preserve_format):
        return mf.preserved_strides(x._data.shape, x.stride())
    return mf.format_strides(x._data.shape, mf.check(memory_format))


@on_cpu
def zeros_like(input: Any, *, dtype: Any = None, requires_grad: bool = False, memory_format: Any = None) -> Any:
    """Zeros with the shape, dtype and memory format of ``input``."""
    return _like("zeros_like", input, 0, dtype, requires_grad, memory_format)


@on_cpu
def ones_like(input: Any, *, dtype: Any = None, requires_grad: bool = False, memory_format: Any = None) -> Any:
    """Ones with the shape, dtype and memory format of ``input``."""
    return _like("ones_like", input, 1, dtype, requires_grad, memory_format)


@on_cpu
def empty_like(input: Any, *, dtype: Any = None, requires_grad: bool = False, memory_format: Any = None) -> Any:
    """A tensor like ``input`` whose values do not matter."""
    return _like("empty_like", input, 0, dtype, requires_grad, memory_format)


@on_cpu
def full_like(input: Any, fill_value: Any, *, dtype: Any = None, requires_grad: bool = False, memory_format: Any = None) -> Any:
    """``fill_value`` with the shape, dtype and memory format of ``input``."""
    return _like("full_like", input, fill_value, dtype, requires_grad, memory_format)


# ---- sequences ----------------------------------------------------------------------------------------------------------------------------

@on_cpu
def arange(start: Any, end: Any = None, step: Any = 1, *, dtype: Any = None, requires_grad: bool = False) -> Any:
    """``start, start + step, ...`` up to ``end`` (not reached). int64 for integers, else the default dtype.

    >>> import aotgrad as ag
    >>> ag.arange(3)
    tensor([0, 1, 2])
    """
    start, end = (0, start) if end is None else (start, end)
    start, end, step = (v.item() if isinstance(v, TracedNumber) else v for v in (start, end, step))
    for v in (start, end, step):
        if isinstance(v, Traced):
            raise AotgradTypeError(f"{user_loc()}: arange: a traced value cannot decide how many elements there are; give a Python number or a size")
    numbers = [_number(v, "arange", what) for v, what in ((start, "start"), (end, "end"), (step, "step"))]
    start, end, step = numbers
    whole = not any(isinstance(v, float) for v in numbers)
    if not isinstance(step, Dim) and step == 0:
        raise AotgradArgumentError("arange: step must not be 0")
    kind = (dtypes.int64 if whole else defaults.dtype) if dtype is None else as_dtype(dtype)
    count = _count(start, end, step, whole)
    if current() is None:
        fixed([d for d in (count, start, step) if isinstance(d, Dim)], "arange")
        data = start + np.arange(count, dtype=np.int64 if whole else np.float64) * step
        return finish(data if data.dtype == kind.np else converted(data, kind), requires_grad)
    return _emit("arange", kind, requires_grad, lambda b: _progression(b, count, start, step, dtypes.int64 if whole else dtypes.float64, kind))


def positions(like: Any, dim: int) -> Any:
    """Inside a trace: the place along ``dim`` of every element of ``like``, in its shape."""
    return _emit("arange", dtypes.int32, False, lambda b: b.iota(shape=tuple(plain_size(n) for n in like.shape), dim=dim, dtype=dtypes.int32))


def _count(start: Any, end: Any, step: Any, whole: bool) -> Any:
    if any(isinstance(v, Dim) for v in (start, end)):
        if not whole or isinstance(step, Dim):
            raise AotgradTypeError(f"{user_loc()}: arange: with symbolic sizes, start, end and step must be integers")
        gap = end - start if step > 0 else start - end
        return dims.floordiv(dims.maximum(gap, 0) + abs(step) - 1, abs(step))
    n = -((start - end) // step) if whole else math.ceil((end - start) / step)
    if n < 0:
        raise AotgradArgumentError("upper bound and larger bound inconsistent with step sign")
    return n


def _scalar(b: Any, value: Any, like: Any) -> Any:
    if isinstance(value, Dim):
        return b.broadcast(b.to_dtype(b.size(dim=value), like.type.dtype), shape=like.type.shape, dims=())
    return b.full_like(like, value)


def _progression(b: Any, count: Any, start: Any, step: Any, work: DType, kind: DType) -> Any:
    i = b.iota(shape=(count,), dim=0, dtype=work)
    scaled = i if not isinstance(step, Dim) and step == 1 else b.mul(i, _scalar(b, step, i))
    moved = scaled if not isinstance(start, Dim) and start == 0 else b.add(scaled, _scalar(b, start, i))
    return b.to_dtype(moved, kind)


@on_cpu
def linspace(start: Any, end: Any, steps: Any, *, dtype: Any = None, requires_grad: bool = False) -> Any:
    """``steps`` numbers evenly from ``start`` to ``end``, both included. ``start`` and ``end`` may be 0-d tensors (differentiable)."""
    if not isinstance(steps, Dim):
        steps = whole(steps, "linspace")
        if steps < 0:
            raise AotgradArgumentError("linspace: number of steps must be non-negative")
    kind = kind_of(dtype)
    if isinstance(start, Tensor) or isinstance(end, Tensor):
        at = linspace(0.0, 1.0, steps, dtype=kind)
        return (1.0 - at) * start + at * end
    start, end = _number(start, "linspace", "start"), _number(end, "linspace", "end")
    if current() is not None:
        return _emit("linspace", kind, requires_grad, lambda b: _even(b, float(start), float(end), steps, kind))
    fixed((steps,), "linspace")
    i = np.arange(steps)
    step = (end - start) / max(steps - 1, 1)
    data = np.where(i < steps / 2, start + step * i, end - step * (steps - 1 - i))
    return finish(data if data.dtype == kind.np else converted(data, kind), requires_grad)


def _even(b: Any, start: float, end: float, steps: Any, kind: DType) -> Any:
    i = b.iota(shape=(steps,), dim=0, dtype=dtypes.float64)
    last = _scalar(b, steps - 1, i)
    step = b.div(b.full_like(i, end - start), b.maximum(last, b.full_like(i, 1.0)))
    low = b.add(b.full_like(i, start), b.mul(step, i))
    high = b.sub(b.full_like(i, end), b.mul(step, b.sub(last, i)))
    return b.to_dtype(b.where(b.lt(b.add(i, i), b.add(last, b.full_like(i, 1.0))), low, high), kind)


@on_cpu
def eye(n: Any, m: Any = None, *, dtype: Any = None, requires_grad: bool = False) -> Any:
    """Ones on the diagonal of an ``n`` by ``m`` matrix (``m`` = ``n`` unless given), zeros elsewhere."""
    shape, kind = shape_of((n, n if m is None else m), "eye"), kind_of(dtype)
    if current() is not None:
        return _emit("eye", kind, requires_grad,
            lambda b: b.to_dtype(b.eq(b.iota(shape=shape, dim=0, dtype=dtypes.int64), b.iota(shape=shape, dim=1, dtype=dtypes.int64)), kind))
    fixed(shape, "eye")
    return finish(converted(np.eye(*shape, dtype=bool), kind), requires_grad)


def placed_like(out: Any, x: Any, memory_format: Any) -> Any:
    """``out`` in the memory format of ``x``, or in the one that is given."""
    if isinstance(out, Traced):
        if memory_format in (None, mf.preserve_format):
            x = twin(x)
            out = relaid(out, x._value.type.layout) if isinstance(x, Traced) else out
            placement.like(out, x)
            return out
        return relaid(out, layout_of(out.shape, mf.check(memory_format)))
    if isinstance(x, Tensor) and not isinstance(x, Traced):
        out._data = mf.copy_to_strides(out._data, _like_strides(x, memory_format))
    return out


# ---- from data ------------------------------------------------------------------------------------------------------------------------------

def _refuse_values(data: Any, name: str) -> None:
    """Traced values have no numbers yet; those that are being differentiated would lose their derivative. Tensors on the tape give their numbers, as in torch."""
    kinds = kinds_in(data)
    if any(issubclass(kind, ArrayTensor) and not issubclass(kind, Traced) for kind in kinds) and _any_followed(data):
        how = "np.stack, ag.stack or ag.cat to join values" if isinstance(data, (list, tuple)) else "ag.as_tensor(x), or x.clone() for a copy"
        raise AotgradTypeError(f"{user_loc()}: {name}: the data hold a value that is being differentiated, and its derivative would be lost; use {how}; "
                               "to treat the numbers as constants, use x.detach()")
    if any(issubclass(kind, Traced) for kind in kinds):
        raise AotgradTypeError(f"{user_loc()}: {name}: the data hold a traced value, whose numbers are not there yet; use ag.stack or ag.cat to join values")


def _any_followed(data: Any) -> bool:
    return any(map(_any_followed, data)) if isinstance(data, (list, tuple)) else isinstance(data, ArrayTensor) and data._followed


@on_cpu
def tensor(data: Any, *, dtype: Any = None, requires_grad: bool = False, memory_format: Any = None) -> Any:
    """A new tensor with a copy of ``data``: numbers, nested sequences, arrays or tensors. Python floats take the default dtype, NumPy values keep theirs.

    >>> import aotgrad as ag
    >>> ag.tensor([1.0, 2.5], requires_grad=True)
    tensor([1.0000, 2.5000], requires_grad=True)

    Of a tensor it takes the numbers alone, and warns where that loses a gradient; of a NumPy value that is being differentiated it raises ``AotgradTypeError``.
    """
    _refuse_values(data, "tensor")
    if isinstance(data, Tensor) and data._followed:
        notice("To copy construct from a tensor, it is recommended to use sourceTensor.detach().clone() or sourceTensor.detach().clone().requires_grad_(True), "
               "rather than ag.tensor(sourceTensor): the copy has no gradient.")
    out = runtime.tensor(data, dtype=dtype)
    if memory_format is not None:
        out._data = mf.copy_to_strides(out._data, mf.format_strides(out._data.shape, mf.check(memory_format)))
    return made_here(out.requires_grad_(True) if requires_grad else out)


@on_cpu
def as_tensor(data: Any, dtype: Any = None) -> Any:
    """``data`` as a tensor, sharing memory where it can: tensors come back as they are, arrays are wrapped, all else is copied."""
    if isinstance(data, Traced):
        return data if dtype is None else run(TORCH["astype"], {"input": data, "dtype": as_dtype(dtype)})
    if not isinstance(data, Tensor):
        _refuse_values(data, "as_tensor")
    out = runtime.as_tensor(data, dtype)
    return out if isinstance(data, (Tensor, np.ndarray)) else made_here(out)


from_numpy, from_dlpack = runtime.from_numpy, runtime.from_dlpack


# ---- profiling --------------------------------------------------------------------------------------------------------------------------

_MAKERS = {"_full": _full, "_like": _like}  # what the public functions above call, by name


def watch(around: Callable[..., Any] | None) -> None:
    """Puts ``around(inner, name, *args)`` around what makes tensors, or takes it away: without it they cost nothing more."""
    globals().update({k: f if around is None else functools.partial(around, f) for k, f in _MAKERS.items()})
