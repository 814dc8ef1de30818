"""Public pooling, as in torch's functional: max, average, adaptive max and adaptive average over 1, 2 and 3 dims; composites of the ops in ``window``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from aotgrad_runtime.dtypes import int64
from aotgrad_runtime.errors import AotgradRuntimeError, AotgradTypeError

from .. import dims as dimlib
from ..dims import Dim
from ..opdef import REQUIRED, Composite, Front, OpDef, Sample, register
from .common import floats, whole
from .conv_front import sizes_of

__all__: list[str] = []

_WORDS = {1: "one", 2: "two", 3: "three"}


# ---- arguments ----------------------------------------------------------------------------------------------------------------------

def _whole(value: Any, name: str, what: str) -> int:
    found = whole(value)
    if found is not None:
        return found
    raise AotgradTypeError(f"{name}(): argument {what!r} must be a whole number or {'a tuple' if value is not None else 'given'} of them, not {value!r}")


def _each(value: Any, rank: int, name: str, what: str) -> tuple[int, ...]:
    if not isinstance(value, (tuple, list)):
        return (_whole(value, name, what),) * rank
    if len(value) not in (1, rank):
        omitted = "be omitted, a single int" if what == "stride" else "either be a single int"
        raise AotgradRuntimeError(f"{name}: {what} must {'either ' if what == 'stride' else ''}{omitted}, or a tuple of {_WORDS[rank]} ints, not {tuple(value)}")
    found = [_whole(v, name, what) for v in value]
    return tuple(found * rank if len(found) == 1 else found)


def _image(b: Any, x: Any, rank: int, name: str) -> Any:
    """x as a batch, with something in every image."""
    shape = x.type.shape
    shown = sizes_of(b, shape)
    if len(shape) not in (rank + 1, rank + 2):
        raise AotgradRuntimeError(f"{name}: Expected {rank + 1}D or {rank + 2}D (batch mode) tensor with optional 0 dim batch size for input, but got:{shown}")
    empty = f"{name}(): Expected input to have non-zero size for non-batch dimensions, but input has sizes {shown} with dimension"
    for d, n in enumerate(shape[-rank:], len(shape) - rank):
        if b.trace.example(n) == 0:
            raise AotgradRuntimeError(f"{empty} {d} being empty")
        b.trace.at_least(n, 1)
    return b.refresh(x) if len(shape) == rank + 2 else b.to_shape(x, (1, *shape))


def _alone(b: Any, x: Any, rank: int, *outs: Any) -> Any:
    """Results for one image where one was given."""
    found = tuple(b.to_shape(o, o.type.shape[1:]) for o in outs) if len(x.type.shape) == rank + 1 else outs
    return found if len(found) > 1 else found[0]


def _window(name: str, rank: int, kernel_size: Any, stride: Any, padding: Any, dilation: Any) -> dict[str, tuple[int, ...]]:
    kernel = _each(kernel_size, rank, name, "kernel_size")
    strides = kernel if stride is None or isinstance(stride, (tuple, list)) and not stride else _each(stride, rank, name, "stride")
    low, dilations = _each(padding, rank, name, "padding"), _each(dilation, rank, name, "dilation")
    if any(s == 0 for s in strides):
        raise AotgradRuntimeError("stride should not be zero")
    for what, found in (("kernel size", kernel), ("stride", strides), ("dilation", dilations)):
        if any(v <= 0 for v in found):
            raise AotgradRuntimeError(f"{what} should be greater than zero, but got {found}")
    for p, k, d in zip(low, kernel, dilations):
        if p < 0:
            raise AotgradRuntimeError(f"pad must be non-negative, but got pad: {p}")
        if p > (d * (k - 1) + 1) // 2:  # a window could lie in padding alone
            raise AotgradRuntimeError(f"pad should be at most half of effective kernel size, but got pad={p}, kernel_size={k} and dilation={d}")
    return {"kernel": kernel, "stride": strides, "low": low, "dilation": dilations}


def _counts(b: Any, shape: Sequence[Any], a: dict[str, tuple[int, ...]], ceil: bool) -> tuple[Any, ...]:
    """How many windows there are: with ``ceil`` also one that starts inside and ends outside."""
    out = []
    for n, k, s, p, d in zip(shape[2:], a["kernel"], a["stride"], a["low"], a["dilation"]):
        room = n + 2 * p - d * (k - 1) - 1
        count = dimlib.floordiv(room + (s - 1 if ceil else 0), s) + 1
        out.append(dimlib.minimum(count, dimlib.floordiv(n + p + s - 1, s)) if ceil else count)
    known = sizes_of(b, out)
    if any(isinstance(m, int) and m < 1 for m in known):
        given, made = ("x".join(map(str, v)) for v in ([*sizes_of(b, shape[1:])], [*sizes_of(b, shape[1:2]), *known]))
        raise AotgradRuntimeError(f"Given input size: ({given}). Calculated output size: ({made}). Output size is too small")
    for m, n, k, s, p, d in zip(out, shape[2:], a["kernel"], a["stride"], a["low"], a["dilation"]):
        _meets_image(b, m, n, k, s, p, d)
        if isinstance(m, Dim) and not ceil:
            b.trace.at_least(n, d * (k - 1) + 1 - 2 * p)
        elif isinstance(m, Dim):
            b.trace.at_least(m, 1)
    return tuple(out)


def _meets_image(b: Any, count: Any, n: Any, k: int, s: int, p: int, d: int) -> None:
    """No window may lie in padding alone, as one can between whose places a small image fits."""
    if p == 0 or d == 1:
        return
    known = b.trace.example(n)
    if known is None or known >= d:
        b.trace.at_least(n, d)
        return
    size = int(n)
    if not all(any(0 <= i * s - p + j * d < size for j in range(k)) for i in range(int(count))):
        raise AotgradRuntimeError(f"padding={p} with dilation={d} and kernel_size={k} puts a window wholly into the padding of a dimension of size {size}; "
                                  "give less padding or dilation")


def _output(b: Any, x: Any, rank: int, name: str, output_size: Any) -> tuple[Any, ...]:
    given = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size,) * rank
    if len(given) != rank:
        raise AotgradRuntimeError(f"{name}: output_size must be {rank} numbers (or one for all), not {given}")
    sizes = tuple(n if m is None else m if isinstance(m, Dim) else _whole(m, name, "output_size") for m, n in zip(given, x.type.shape[2:]))
    if any(isinstance(m, int) and m < 0 for m in sizes):
        raise AotgradRuntimeError(f"{name}: elements of output_size must be greater than or equal to 0 but received {given}")
    return sizes


# ---- bodies -------------------------------------------------------------------------------------------------------------------------

def _whole_of(b: Any, size: Any, like: Any) -> Any:
    """A size as int64 in every element of ``like``."""
    return b.full_like(like, size) if isinstance(size, int) else b.broadcast(b.size(dim=size), shape=like.type.shape, dims=())


def _line(b: Any, count: Any) -> Any:
    return b.iota(shape=(count,), dim=0, dtype=int64)


def _extents(b: Any, count: Any, k: int, s: int, low: int, limit: Any, first: int) -> Any:
    """How many places each window holds between ``first`` and ``limit``, as int64."""
    p = _line(b, count)
    start = b.sub(b.mul(p, b.full_like(p, s)), b.full_like(p, low))
    end = b.minimum(b.add(start, b.full_like(p, k)), _whole_of(b, limit, p))
    return b.sub(end, b.maximum(start, b.full_like(p, first)))


def _adaptive_extents(b: Any, n: Any, count: Any) -> Any:
    p = _line(b, count)
    size, one, many = _whole_of(b, n, p), b.full_like(p, 1), _whole_of(b, count, p)
    end = b.floor_divide(b.sub(b.mul(b.add(p, one), size), one), many)
    return b.add(b.sub(end, b.floor_divide(b.mul(p, size), many)), one)


def _divided(b: Any, total: Any, extents: Sequence[Any]) -> Any:
    """Sums by the number of elements of each window."""
    shape, out = total.type.shape, total
    share: Any = None
    for d, e in enumerate(extents):
        part = b.broadcast(b.to_dtype(e, total.type.dtype), shape=shape, dims=(2 + d,))
        share = part if share is None else b.mul(share, part)
    return b.div(out, share)


def _avg_body(b: Any, x: Any, kernel: Any, stride: Any, low: Any, count: Any, ceil: bool, include: bool, divisor: Any) -> Any:
    window = {"count": count, "kernel": kernel, "stride": stride, "low": low, "dilation": (1,) * len(kernel)}
    if divisor is not None or not ceil and (include or not any(low)):
        return b.window_sum(x, divide=int(np.prod(kernel)) if divisor is None else divisor, **window)
    total = b.window_sum(x, **window)
    extents = [_extents(b, m, k, s, p, n + p if include else n, -p if include else 0) for n, m, k, s, p in zip(x.type.shape[2:], count, kernel, stride, low)]
    return _divided(b, total, extents)


def _regular(spatial: Sequence[Any], count: Sequence[Any]) -> dict[str, tuple[int, ...]]:
    """Adaptive windows that are all alike, as plain ones."""
    if not all(isinstance(n, int) and isinstance(m, int) and m and n % m == 0 for n, m in zip(spatial, count)):
        return {}
    sizes = tuple(n // m for n, m in zip(spatial, count))
    return {"kernel": sizes, "stride": sizes, "low": (0,) * len(sizes), "dilation": (1,) * len(sizes)}


def _adaptive_avg_body(b: Any, x: Any, count: Any) -> Any:
    spatial = x.type.shape[2:]
    plain = _regular(spatial, count)
    if plain:
        return b.window_sum(x, count=tuple(count), divide=int(np.prod(plain["kernel"])), **plain)
    return _divided(b, b.window_sum(x, count=tuple(count)), [_adaptive_extents(b, n, m) for n, m in zip(spatial, count)])


# ---- the functions ------------------------------------------------------------------------------------------------------------------

def _max(name: str, rank: int) -> Callable[..., Any]:
    def canon(b: Any, x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False, return_indices: bool = False) -> Any:
        a, batch = _window(name, rank, kernel_size, stride, padding, dilation), _image(b, x, rank, name)
        attrs = {"count": _counts(b, batch.type.shape, a, ceil_mode), **a}
        out = b.emit(name, [batch], attrs)[0]
        return _alone(b, x, rank, out, b.window_argmax(batch, **attrs)) if return_indices else _alone(b, x, rank, out)

    return canon


def _avg(name: str, rank: int) -> Callable[..., Any]:
    def canon(b: Any, x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True,
              divisor_override: Any = None) -> Any:
        a, batch = _window(name, rank, kernel_size, stride, padding, 1), floats(b, _image(b, x, rank, name), None, name)
        if divisor_override is not None and _whole(divisor_override, name, "divisor_override") == 0:
            raise AotgradRuntimeError("divisor must be not zero")
        count = _counts(b, batch.type.shape, a, ceil_mode)
        del a["dilation"]
        attrs = {**a, "count": count, "ceil": bool(ceil_mode), "include": bool(count_include_pad), "divisor": divisor_override}
        return _alone(b, x, rank, b.emit(name, [batch], attrs)[0])

    return canon


def _adaptive(name: str, rank: int, largest: bool) -> Callable[..., Any]:
    def average(b: Any, x: Any, output_size: Any) -> Any:
        batch = floats(b, _image(b, x, rank, name), None, name)
        return _alone(b, x, rank, b.emit(name, [batch], {"count": _output(b, batch, rank, name, output_size)})[0])

    def maximum(b: Any, x: Any, output_size: Any, return_indices: bool = False) -> Any:
        batch = _image(b, x, rank, name)
        count = _output(b, batch, rank, name, output_size)
        out = b.emit(name, [batch], {"count": count})[0]
        if not return_indices:
            return _alone(b, x, rank, out)
        return _alone(b, x, rank, out, b.window_argmax(batch, count=count, **_regular(batch.type.shape[2:], count)))

    return maximum if largest else average


_SHAPE = (2, 3, 6, 5, 4)


def _samples(rank: int, kind: str) -> Callable[[], Iterable[Sample]]:
    def make() -> Iterable[Sample]:
        shape = _SHAPE[:2 + rank]
        x = np.random.default_rng(43).permuted(np.arange(float(np.prod(shape)))).reshape(shape) / 7.0
        if kind == "adaptive":
            for count in ((2,) * rank, (1,) * rank, (4, 5, 3)[:rank]):
                yield Sample((x,), {"count": count}, str(count))
            return
        for kernel, stride, low, ceil in ((2, 2, 0, False), (3, 2, 1, True)):
            count = tuple(min(-(-(n + 2 * low - kernel) // stride) if ceil else (n + 2 * low - kernel) // stride, (n + low - 1) // stride) + 1 for n in shape[2:])
            window = {"kernel": (kernel,) * rank, "stride": (stride,) * rank, "low": (low,) * rank, "count": count}
            if kind == "max":
                yield Sample((x,), {**window, "dilation": (1,) * rank}, f"kernel {kernel}")
            else:
                for include, divisor in ((True, None), (False, None), (True, 5)):
                    yield Sample((x,), {**window, "ceil": ceil, "include": include, "divisor": divisor}, f"kernel {kernel} {include} {divisor}")

    return make


def _doc(what: str, name: str, rank: int, arguments: str, out: int) -> str:
    dims = ", ".join("DHW"[3 - rank:])
    index = ", return_indices=True" if "max" in name else ""
    more = "\n\nWith return_indices, also the place of each in its image, counted row by row (int64)." if index else ""
    return f"""{what} of images ``(N, C, {dims})`` or ``(C, {dims})``, which stay channels_last where they are.{more}

Floats{', or integers' if index else ''}. Raises ``AotgradRuntimeError`` (a RuntimeError, as torch) for sizes that do not fit.

>>> tuple(ag.{name}(ag.ones(1, 2, {', '.join('4' * rank)}), {arguments}).shape)
({', '.join(['1', '2', *[str(out)] * rank])})
"""


for _rank in (1, 2, 3):
    _torch = f"Pool{_rank}D{{}}Backward0" if _rank > 1 else None
    _name = f"max_pool{_rank}d"
    register(OpDef(
        _name, _doc("The largest of each window", _name, _rank, "3, stride=2, padding=1", 2), ("x",), None, None, Composite(lambda b, x, **a: b.window_max(x, **a)),
        attrs={"count": REQUIRED, "kernel": REQUIRED, "stride": REQUIRED, "low": REQUIRED, "dilation": REQUIRED}, samples=_samples(_rank, "max"), layouts="channels_last",
        grad_fn="Max" + _torch.format("WithIndices") if _torch else "SqueezeBackward1",
        front=Front(f"{_name}(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False)", _max(_name, _rank), "none", method=False,
                    functional=True)))
    _name = f"avg_pool{_rank}d"
    register(OpDef(
        _name, _doc("The mean of each window", _name, _rank, "2", 2), ("x",), None, None, Composite(_avg_body),
        attrs={**dict.fromkeys(("kernel", "stride", "low", "count"), REQUIRED), "ceil": False, "include": True, "divisor": None},
        samples=_samples(_rank, "avg"), layouts="channels_last", grad_fn="Avg" + _torch.format("") if _torch else "SqueezeBackward1",
        front=Front(f"{_name}(input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True{', divisor_override=None' if _rank > 1 else ''})",
                    _avg(_name, _rank), "none", method=False, functional=True)))
    _name = f"adaptive_avg_pool{_rank}d"
    register(OpDef(
        _name, _doc("Means of as many windows as output_size says, which share the image out evenly,", _name, _rank, "3", 3), ("x",), None, None,
        Composite(_adaptive_avg_body), attrs={"count": REQUIRED}, samples=_samples(_rank, "adaptive"), layouts="channels_last",
        grad_fn="AdaptiveAvg" + _torch.format("") if _torch else "SqueezeBackward1",
        front=Front(f"{_name}(input, output_size)", _adaptive(_name, _rank, False), "none", method=False, functional=True)))
    _name = f"adaptive_max_pool{_rank}d"
    register(OpDef(
        _name, _doc("The largest of as many windows as output_size says, which share the image out evenly,", _name, _rank, "3", 3), ("x",), None, None,
        Composite(lambda b, x, count: b.window_max(x, count=tuple(count), **_regular(x.type.shape[2:], count))), attrs={"count": REQUIRED},
        samples=_samples(_rank, "adaptive"), layouts="channels_last", grad_fn="AdaptiveMax" + _torch.format("") if _torch else "SqueezeBackward1",
        front=Front(f"{_name}(input, output_size, return_indices=False)", _adaptive(_name, _rank, True), "none", method=False, functional=True)))
