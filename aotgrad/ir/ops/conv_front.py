"""Public convolutions, as in torch: conv1d, conv2d, conv3d and their transposes, composites of the ops in ``conv`` with what is checked before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from aotgrad_runtime.errors import AotgradRuntimeError, AotgradTypeError

from ..dims import Dim
from ..opdef import REQUIRED, Composite, Front, OpDef, Sample, register
from .common import whole

__all__ = ["each", "rank_fits", "sizes_of"]


# ---- arguments ----------------------------------------------------------------------------------------------------------------------

def _whole(value: Any, name: str, what: str) -> int:
    found = whole(value)
    if found is not None:
        return found
    raise AotgradTypeError(f"{name}(): {what}={value!r} must be a whole number, or one for each spatial dim")


def each(value: Any, rank: int, name: str, what: str) -> tuple[int, ...]:
    """One number for each spatial dim, from one for all or a sequence."""
    if not isinstance(value, (tuple, list)):
        return (_whole(value, name, what),) * rank
    found = [_whole(v, name, what) for v in value]
    if len(found) not in (1, rank):
        raise AotgradRuntimeError(f"expected {what} to be a single integer value or a list of {rank} values to match the convolution dimensions, but got {what}={found}")
    return tuple(found * rank if len(found) == 1 else found)


def sizes_of(b: Any, shape: Sequence[Any]) -> list[Any]:
    """A shape for a message: in numbers where they are known."""
    found = [b.trace.example(d) for d in shape]
    return [d if n is None else n for n, d in zip(found, shape)]


def _shown(b: Any, shape: Sequence[Any]) -> str:
    return f"[{', '.join(map(str, sizes_of(b, shape)))}]"


def _times(b: Any, sizes: Sequence[Any]) -> str:
    return f"({' x '.join(map(str, sizes_of(b, sizes)))})"


def rank_fits(b: Any, x: Any, rank: int, name: str) -> None:
    """x is one image or a batch of them."""
    if len(x.type.shape) not in (rank + 1, rank + 2):
        raise AotgradRuntimeError(f"Expected {rank + 1}D (unbatched) or {rank + 2}D (batched) input to {name}, but got input of size: {_shown(b, x.type.shape)}")


def _padding(value: Any, kernel: Sequence[Any], stride: Sequence[int], dilation: Sequence[int], name: str) -> tuple[tuple[int, int], ...]:
    """(low, high) for each spatial dim."""
    if isinstance(value, str):
        if value == "valid":
            return ((0, 0),) * len(kernel)
        if value != "same":
            raise AotgradRuntimeError(f"Invalid padding string: {value!r}; use 'same' or 'valid', or numbers")
        if any(s != 1 for s in stride):
            raise AotgradRuntimeError("padding='same' is not supported for strided convolutions")
        totals = [d * (int(k) - 1) for k, d in zip(kernel, dilation)]
        return tuple((t // 2, t - t // 2) for t in totals)
    found = each(value, len(kernel), name, "padding")
    if any(p < 0 for p in found):
        raise AotgradRuntimeError(f"negative padding is not supported: padding={found}; cut the input with x[..., a:b] instead")
    return tuple((p, p) for p in found)


def _window(name: str, rank: int, stride: Any, dilation: Any, groups: Any) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    strides, dilations, count = each(stride, rank, name, "stride"), each(dilation, rank, name, "dilation"), _whole(groups, name, "groups")
    if any(s <= 0 for s in strides):
        raise AotgradRuntimeError(f"non-positive stride is not supported: stride={strides}")
    if any(d <= 0 for d in dilations):
        raise AotgradRuntimeError(f"dilation should be greater than zero, but got {list(dilations)}")
    if count <= 0:
        raise AotgradRuntimeError(f"non-positive groups is not supported: groups={count}")
    return strides, dilations, count


def _weight_fits(b: Any, w: Any, rank: int, groups: int, name: str) -> Any:
    """The weight with its own sizes checked, and known where there are groups: those are counted, so what they hold is too."""
    shape = w.type.shape
    if len(shape) != rank + 2:
        raise AotgradRuntimeError(f"{name}: the weight needs {rank + 2} dims (two of channels and {rank} of the kernel), but got weight of size {_shown(b, shape)}")
    if groups > 1:
        for d in shape[:2]:
            if isinstance(d, Dim) and (b.trace.can_fix or d is shape[0]):
                b.trace.fix(d)
        shape = b.refresh(w).type.shape
    filters, given = b.trace.example(shape[0]), f"at dimension 0, but got weight of size {_shown(b, shape)} instead"
    if filters is not None and filters < groups:
        raise AotgradRuntimeError(f"Given groups={groups}, expected weight to be at least {groups} {given}")
    if filters is not None and filters % groups:
        raise AotgradRuntimeError(f"Given groups={groups}, expected weight to be divisible by {groups} {given}")
    kernel = sizes_of(b, shape[2:])
    if any(isinstance(k, int) and k == 0 for k in kernel):
        raise AotgradRuntimeError(f"kernel size should be greater than zero, but got {kernel}")
    for k in shape[2:]:
        b.trace.at_least(k, 1)
    return w


def _channels_fit(b: Any, x: Any, w: Any, need: Any, groups: int, transposed: bool) -> None:
    have = x.type.shape[1]
    n, m = b.trace.example(have), b.trace.example(need)
    if n is not None and m is not None and n != m:
        kind = "transposed=1" if transposed else f"groups={groups}"
        raise AotgradRuntimeError(f"Given {kind}, weight of size {_shown(b, w.type.shape)}, expected input{_shown(b, x.type.shape)} to have {m} channels, "
                                  f"but got {n} channels instead")
    b.equate(have, need, "channels of the input")


def _bias_fits(b: Any, w: Any, bias: Any, filters: Any, transposed: bool) -> None:
    shape = bias.type.shape
    n, m = (b.trace.example(shape[0]) if len(shape) == 1 else None), b.trace.example(filters)
    if len(shape) != 1 or n is not None and m is not None and n != m:
        kind = "transposed=1, " if transposed else ""
        raise AotgradRuntimeError(f"Given {kind}weight of size {_shown(b, w.type.shape)}, expected bias to be 1-dimensional with {m} elements, "
                                  f"but got bias of size {_shown(b, shape)} instead")
    b.equate(shape[0], filters, "the bias")


def _kernel_fits(b: Any, spatial: Sequence[Any], kernel: Sequence[Any], padding: Sequence[tuple[int, int]], dilation: Sequence[int]) -> None:
    """No kernel is larger than the padded input: checked now, or by a guard at every call."""
    padded = [n + sum(p) for n, p in zip(spatial, padding)]
    spread = [d * (k - 1) + 1 for k, d in zip(kernel, dilation)]
    for n, k in zip(sizes_of(b, padded), sizes_of(b, spread)):
        if isinstance(n, int) and isinstance(k, int) and k > n:
            raise AotgradRuntimeError(f"Calculated padded input size per channel: {_times(b, padded)}. Kernel size: {_times(b, spread)}. "
                                      "Kernel size can't be greater than actual input size")
    for n, k, p in zip(spatial, spread, padding):
        need = k - sum(p)
        if not isinstance(need, int) or need > 0:
            b.trace.at_least(n, need)


# ---- the functions ------------------------------------------------------------------------------------------------------------------

def _batched(b: Any, x: Any, rank: int) -> Any:
    return x if len(x.type.shape) == rank + 2 else b.to_shape(x, (1, *x.type.shape))


def _plain(name: str, rank: int) -> Callable[..., Any]:
    def canon(b: Any, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: Any = 1) -> Any:
        rank_fits(b, x, rank, name)
        strides, dilations, count = _window(name, rank, stride, dilation, groups)
        w = _weight_fits(b, weight, rank, count, name)
        padded = _padding(padding, w.type.shape[2:], strides, dilations, name)
        alone = len(x.type.shape) == rank + 1
        x = _batched(b, x, rank)
        _channels_fit(b, x, w, w.type.shape[1] * count, count, False)
        if bias is not None:
            _bias_fits(b, w, bias, w.type.shape[0], False)
        x, w = b.refresh(x), b.refresh(w)
        _kernel_fits(b, x.type.shape[2:], w.type.shape[2:], padded, dilations)
        out = b.emit(name, [x, w, *([] if bias is None else [bias])], {"stride": strides, "padding": padded, "dilation": dilations, "groups": count})[0]
        return b.to_shape(out, out.type.shape[1:]) if alone else out

    return canon


def _extra(name: str, rank: int, output_padding: Any, stride: Sequence[int], dilation: Sequence[int]) -> tuple[int, ...]:
    found = each(output_padding, rank, name, "output_padding")
    if any(p < 0 for p in found):
        raise AotgradRuntimeError(f"negative output_padding is not supported: output_padding={found}")
    if any(p >= max(s, d) for p, s, d in zip(found, stride, dilation)):
        raise AotgradRuntimeError(f"output padding must be smaller than either stride or dilation, but got output_padding={found}, stride={tuple(stride)}, "
                                  f"dilation={tuple(dilation)}")
    return found


def _transposed(name: str, rank: int) -> Callable[..., Any]:
    def canon(b: Any, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0, groups: Any = 1, dilation: Any = 1) -> Any:
        rank_fits(b, x, rank, name)
        strides, dilations, count = _window(name, rank, stride, dilation, groups)
        w = _weight_fits(b, weight, rank, count, name)
        if isinstance(padding, str):
            raise AotgradTypeError(f"{name}(): padding={padding!r} must be a whole number, or one for each spatial dim; a transposed convolution has no 'same'")
        padded, extra = _padding(padding, w.type.shape[2:], strides, dilations, name), _extra(name, rank, output_padding, strides, dilations)
        alone = len(x.type.shape) == rank + 1
        x = _batched(b, x, rank)
        _channels_fit(b, x, w, w.type.shape[0], count, True)
        x, w = b.refresh(x), b.refresh(w)
        if bias is not None:
            _bias_fits(b, w, bias, w.type.shape[1] * count, True)
        given = x.type.shape[2:]
        sizes = [(n - 1) * s - lo - hi + d * (k - 1) + 1 + e for n, s, (lo, hi), d, k, e in zip(given, strides, padded, dilations, w.type.shape[2:], extra)]
        _sizes_left(b, given, sizes)
        attrs = {"spatial": tuple(sizes), "stride": strides, "padding": tuple((lo, hi - e) for (lo, hi), e in zip(padded, extra)), "dilation": dilations, "groups": count}
        out = b.emit(name, [x, w, *([] if bias is None else [bias])], attrs)[0]
        return b.to_shape(out, out.type.shape[1:]) if alone else out

    return canon


def _sizes_left(b: Any, given: Sequence[Any], sizes: Sequence[Any]) -> None:
    if any(n == 0 for n in sizes_of(b, given)):
        raise AotgradRuntimeError(f"Only zero batch or zero channel inputs are supported, but got an input of size {_times(b, given)} per channel")
    if any(isinstance(n, int) and n < 1 for n in sizes_of(b, sizes)):
        raise AotgradRuntimeError(f"Given input size per channel: {_times(b, given)}. Calculated output size per channel: {_times(b, sizes)}. Output size is too small")
    for n, m in zip(given, sizes):
        b.trace.at_least(n, 1)
        if isinstance(m, Dim):
            b.trace.at_least(m, 1)


def _with_bias(b: Any, out: Any, bias: Sequence[Any]) -> Any:
    return b.add(out, b.broadcast(bias[0], shape=out.type.shape, dims=(1,))) if bias else out


def _conv_body(b: Any, x: Any, w: Any, *bias: Any, **attrs: Any) -> Any:
    return _with_bias(b, b.conv(x, w, **attrs), bias)


def _transposed_body(b: Any, x: Any, w: Any, *bias: Any, **attrs: Any) -> Any:
    return _with_bias(b, b.conv_input_grad(x, w, **attrs), bias)


_ATTRS: dict[str, Any] = {"stride": REQUIRED, "padding": REQUIRED, "dilation": REQUIRED, "groups": 1}


def _samples(rank: int, transposed: bool) -> Callable[[], Iterable[Sample]]:
    def make() -> Iterable[Sample]:
        rng = np.random.default_rng(37)
        for groups, biased, stride, padding in ((1, True, 1, (1, 1)), (2, False, 2, (0, 1))):
            w = (4, 2, *(3, 2, 2)[:rank])
            x = (2, 4 if transposed else 2 * groups, *(5, 4, 3)[:rank])
            attrs: Mapping[str, Any] = {"stride": (stride,) * rank, "padding": (padding,) * rank, "dilation": (1,) * rank, "groups": groups}
            if transposed:
                attrs = {"spatial": tuple((n - 1) * stride - sum(padding) + k for n, k in zip(x[2:], w[2:])), **attrs}
            filters = 2 * groups if transposed else 4
            yield Sample(tuple(rng.normal(size=s) for s in (x, w, *([(filters,)] if biased else []))), attrs, f"groups={groups}")

    return make


def _doc(rank: int, transposed: bool) -> str:
    name, dims = f"conv{'_transpose' if transposed else ''}{rank}d", "DHW"[3 - rank:]
    kernel = ", ".join(f"k{d}" for d in dims)
    channels = "C, O / groups" if transposed else "O, C / groups"
    what = f"The transpose of ``conv{rank}d`` in its input" if transposed else "Cross-correlation of images with kernels"
    size = "(n - 1) * stride - 2 * padding + dilation * (k - 1) + 1 + output_padding" if transposed else "(n + 2 * padding - dilation * (k - 1) - 1) // stride + 1"
    also = "" if transposed else " ``padding`` may be 'same' (stride 1) or 'valid'."
    call = f"ag.{name}(ag.ones(1, 1, {', '.join('4' * rank)}), ag.ones(1, 1, {', '.join('2' * rank)}), stride=2)"
    return f"""{what}: input ``(N, C, {', '.join(dims)})`` or ``(C, {', '.join(dims)})``, weight ``({channels}, {kernel})``, bias ``(O)``.

The result is ``(N, O, ...)`` with ``{size}`` in each dim, channels_last where the input or the weight is; floats, or integers.{also}
stride, padding and dilation are a number or {rank}. Raises ``AotgradRuntimeError`` (a RuntimeError, as torch) where channels, groups, bias or sizes do not fit, and
``AotgradTypeError`` for numbers that are not whole.

>>> tuple({call}.shape)
({', '.join(['1', '1', *(['8' if transposed else '2'] * rank)])})
"""


for _rank in (1, 2, 3):
    _name = f"conv{_rank}d"
    register(OpDef(_name, _doc(_rank, False), ("x", "w", "bias*"), None, None, Composite(_conv_body), attrs=_ATTRS, samples=_samples(_rank, False),
                   layouts="channels_last", grad_fn="ConvolutionBackward0",
                   front=Front(f"{_name}(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1)", _plain(_name, _rank), "product", method=False,
                               functional=True, tensors=("input", "weight", "bias"))))
    _name = f"conv_transpose{_rank}d"
    register(OpDef(_name, _doc(_rank, True), ("x", "w", "bias*"), None, None, Composite(_transposed_body), attrs={"spatial": REQUIRED, **_ATTRS},
                   samples=_samples(_rank, True), layouts="channels_last", grad_fn="ConvolutionBackward0",
                   front=Front(f"{_name}(input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1)", _transposed(_name, _rank), "product",
                               method=False, functional=True, tensors=("input", "weight", "bias"))))
