"""Normalisations, dropout and look-ups, made of the functions of the registry."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from aotgrad.frontend import inplace as writing
from aotgrad.frontend.boundary import told
from aotgrad.frontend.composed import composed, written
from aotgrad.frontend.factories import arange
from aotgrad.frontend.naming import naming
from aotgrad.frontend.queries import stop_gradient
from aotgrad.frontend.randoms import rand
from aotgrad_runtime import modes
from aotgrad_runtime.dtypes import float32, float64, int64
from aotgrad_runtime.errors import AotgradArgumentError, AotgradDTypeError, AotgradNotImplementedError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.limits import finfo
from aotgrad_runtime.memory_format import channels_last
from aotgrad_runtime.parameter import Parameter
from aotgrad_runtime.tensor import Tensor, wrap

from ._shared import dtype_of, f, is_known, per_channel, rank

NORMS = ("batch_norm", "cosine_similarity", "dropout", "dropout1d", "dropout2d", "dropout3d", "embedding", "group_norm", "instance_norm", "layer_norm", "normalize",
         "one_hot", "pairwise_distance", "rms_norm")
__all__ = list(NORMS)


def _trailing(name: str, input: Any, normalized_shape: Any, *parameters: Any) -> tuple[int, ...]:
    """The dims that ``normalized_shape`` names, the last ones."""
    shape = tuple(normalized_shape) if isinstance(normalized_shape, Sequence) else (normalized_shape,)
    if not shape or tuple(input.shape[len(input.shape) - len(shape):]) != shape or len(shape) > rank(input):
        raise AotgradArgumentError(f"{name}: given normalized_shape={list(shape)}, expected input with shape [*, {', '.join(map(str, shape))}], but got input of size "
                                   f"{list(input.shape)}")
    for p in parameters:
        if p is not None and tuple(p.shape) != shape:
            raise AotgradArgumentError(f"{name}: weight and bias need the shape normalized_shape={list(shape)}, not {list(p.shape)}")
    return tuple(range(rank(input) - len(shape), rank(input)))


def _affine(x: Any, weight: Any, bias: Any) -> Any:
    x = x if weight is None else f.mul(x, weight)
    return x if bias is None else f.add(x, bias)


def _row_major(x: Any) -> Any:
    return x if type(x) is not Tensor and type(x) is not Parameter or rank(x) == 4 and x.is_contiguous(channels_last) else x.contiguous()


def _moments(x: Any, dims: Sequence[int]) -> tuple[Any, Any, Any]:
    """x less its mean, the mean, and the mean square of the difference."""
    mean = f.mean(x, dims, True)
    away = f.sub(x, mean)
    return away, mean, f.mean(f.square(away), dims, True)


def layer_norm(input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """The last dims (of sizes ``normalized_shape``) moved and scaled to mean 0 and variance 1, then ``* weight + bias``.

    >>> import aotgrad as ag
    >>> ag.nn.functional.layer_norm(ag.tensor([[1.0, 3.0]]), (2,))
    tensor([[-1.0000,  1.0000]])
    """
    return _layer_norm(input, normalized_shape, weight, bias, eps)[0]


@composed("NativeLayerNormBackward0", "input", "weight", "bias")
def _layer_norm(input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> tuple[Any, Any, Any]:
    """The result, the mean and the factor: backward reads them."""
    away, mean, var = _moments(input, _trailing("layer_norm", input, normalized_shape, weight, bias))
    factor = f.rsqrt(f.add(var, eps))
    return _affine(f.mul(away, factor), weight, bias), mean, factor


def rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """The last dims (of sizes ``normalized_shape``) over the root of their mean square, then ``* weight``. ``eps``: that of the dtype computed in, if None.

    >>> import aotgrad as ag
    >>> ag.nn.functional.rms_norm(ag.tensor([[1.0, 7.0]]), (2,))
    tensor([[0.2000, 1.4000]])
    """
    dims, kind = _trailing("rms_norm", input, normalized_shape, weight), dtype_of(input)
    if kind.itemsize == 2:
        wide = [None if x is None else f.astype(x, float32) for x in (input, weight)]
        return f.astype(rms_norm(wide[0], normalized_shape, wide[1], eps), kind)
    size = f.mean(f.square(input), dims, True)
    return _row_major(_affine(f.mul(input, f.rsqrt(f.add(size, finfo(kind).eps if eps is None else eps))), weight, None))


def group_norm(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Each of ``num_groups`` groups of channels of input (N, C, ...) moved and scaled to mean 0 and variance 1, then ``* weight + bias`` by channel."""
    if rank(input) < 2:
        raise AotgradArgumentError(f"group_norm: expected at least 2 dimensions for the input, but received {rank(input)}")
    c = input.shape[1]
    if num_groups <= 0 or c % num_groups != 0:
        raise AotgradArgumentError(f"group_norm: expected number of channels in input to be divisible by num_groups, but got input of shape {list(input.shape)} and "
                                   f"num_groups={num_groups}")
    return _group_norm(input, num_groups, weight, bias, eps)[0]


@composed("NativeGroupNormBackward0", "input", "weight", "bias")
def _group_norm(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> tuple[Any, Any, Any]:
    """As ``_layer_norm``."""
    n, c = input.shape[:2]
    each = c // num_groups * _in_size(input, range(2, rank(input)))  # not -1, which says nothing of an empty batch
    _, mean, var = _moments(f.reshape(input, (n, num_groups, each)), (2,))
    factor, spread = f.rsqrt(f.add(var, eps)), (n, c, *[1] * (rank(input) - 2))

    def by_channel(x: Any) -> Any:
        return f.reshape(f.expand(x, (n, num_groups, c // num_groups)), spread)

    return _affine(f.mul(f.sub(input, by_channel(mean)), by_channel(factor)), *_by_channel(input, weight, bias)), mean, factor


@modes.intact
def _write(momentum: float, writes: Sequence[tuple[Any, ...]]) -> None:
    """``running`` becomes ``(1 - momentum) * running + momentum * found(*given)``, in place, and no part of a graph, for each ``(running, name, found, blend, *given)``.
    ``blend``: the same as one operation, if there is one."""
    with modes.no_grad():
        for running, name, found, blend, *given in writes:
            if blend is not None and type(running) is Tensor and type(given[0]) is Tensor and running._dtype is given[0]._dtype and running._dtype in (float32, float64):
                new = blend(running, *[wrap(x) for x in _shares(momentum, running._dtype)], *given)
            else:
                new = _blend(running, 1 - momentum, momentum, f.astype(found(*given), dtype_of(running)))
            if isinstance(running, Tensor):
                writing.update(running, new, name)
            else:
                running[...] = new


@functools.lru_cache(maxsize=64)
def _shares(momentum: float, dtype: Any) -> tuple[Any, Any]:
    return np.asarray(1 - momentum, dtype.np), np.asarray(momentum, dtype.np)


def _blend(running: Any, keep: Any, share: Any, found: Any) -> Any:
    return f.add(f.mul(running, keep), f.mul(found, share))


def _as_it_is(found: Any) -> Any:
    return found


def _mean_of(pivot: Any, mean: Any) -> Any:
    return f.reshape(f.add(pivot, mean), -1)


def _variance_of(var: Any, factor: Any) -> Any:
    return f.mul(f.reshape(var, -1), factor)


@composed("AddBackward0", "running", "keep", "share", "pivot", "mean")
def _blend_mean(running: Any, keep: Any, share: Any, pivot: Any, mean: Any) -> Any:
    return _blend(running, keep, share, _mean_of(pivot, mean))


@composed("AddBackward0", "running", "keep", "share", "var")
def _blend_variance(running: Any, keep: Any, share: Any, var: Any, factor: float) -> Any:
    return _blend(running, keep, share, _variance_of(var, factor))


def _in_size(input: Any, dims: Sequence[int]) -> Any:
    count: Any = 1
    for d in dims:
        count = count * input.shape[d]
    return count


def _is_one(n: Any) -> bool:
    """Whether it is 1, asked of every call where sizes are open; a library for any size has nobody to ask, and a variance of 0."""
    try:
        return bool(n == 1)
    except AotgradTypeError:
        return False


@functools.partial(told, name="batch_norm")  # of this alone: around all of it, the call would hold the image to the end
def _check_batch(input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, training: bool = False, momentum: float = 0.1,
                 eps: float = 1e-5) -> None:
    if rank(input) < 2:
        raise AotgradArgumentError(f"batch_norm: expected an input of 2 or more dims (N, C, ...), not of {rank(input)}")
    for name, p in (("running_mean", running_mean), ("running_var", running_var), ("weight", weight), ("bias", bias)):
        if p is not None and tuple(p.shape) != (input.shape[1],):
            raise AotgradArgumentError(f"batch_norm: {name} should contain {input.shape[1]} elements not {math.prod(p.shape)}: one for each channel, "
                                       f"its shape is {list(p.shape)}")
    if not training and (running_mean is None or running_var is None):
        raise AotgradArgumentError("batch_norm: running_mean and running_var must be defined in evaluation mode (training=False)")
    for number in (momentum, eps):
        if number is not None and not isinstance(number, Tensor):
            float(number)


_MISSING = object()  # a call that lacks an argument gets here all the same, to be told in our words without a function around this one


def batch_norm(input: Any = _MISSING, running_mean: Any = _MISSING, running_var: Any = _MISSING, weight: Any = None, bias: Any = None, training: bool = False,
               momentum: float = 0.1, eps: float = 1e-5, *more: Any, **unknown: Any) -> Any:
    """Each channel of input (N, C, ...) moved and scaled to mean 0 and variance 1 over all else, then ``* weight + bias`` by channel.

    In ``training`` mean and variance are those of the input, and move ``running_mean`` and ``running_var`` (C) in place by ``momentum``, where they are given; otherwise
    they are the running ones. Images stay channels_last where they are.

    >>> import aotgrad as ag
    >>> mean, var = ag.zeros(1), ag.ones(1)
    >>> ag.nn.functional.batch_norm(ag.tensor([[1.0], [3.0]]), mean, var, training=True), mean
    (tensor([[-1.0000],
            [ 1.0000]]), tensor([0.2000]))
    """
    needed = {k: v for k, v in (("input", input), ("running_mean", running_mean), ("running_var", running_var)) if v is not _MISSING}
    if len(needed) < 3:
        _check_batch(**needed)
    del needed
    _check_batch(input, running_mean, running_var, weight, bias, training, momentum, eps, *more, **unknown)
    if not training:
        return _running_norm(input, running_mean, running_var, weight, bias, eps)
    dims = tuple(d for d in range(rank(input)) if d != 1)
    n = _in_size(input, dims)
    if _is_one(n):
        raise AotgradValueError(f"batch_norm: Expected more than 1 value per channel when training, got input size {list(input.shape)}")
    rows = type(input) is Tensor and rank(input) == 4 and input.is_contiguous(channels_last)
    if modes.state.grad and any(getattr(p, "_requires_grad", False) for p in (input, weight, bias)):
        out, pivot, mean, var = _batch_norm(input, weight, bias, dims, eps, rows)
    else:
        pivot, input = _near_mean(input, dims, rows)  # under its name: an image that nobody else holds may go
        out, mean, var = _normed(input, weight, bias, dims, eps, rows)
    writes: list[tuple[Any, ...]] = []
    if running_mean is not None:
        writes.append((running_mean, "batch_norm: running_mean", _mean_of, _blend_mean, pivot, mean))
    if running_var is not None:
        writes.append((running_var, "batch_norm: running_var", _variance_of, _blend_variance, var, n / (n - 1)))
    if writes:
        _write(momentum, writes)
    return out


batch_norm.__signature__ = inspect.signature(_check_batch).replace(return_annotation=Any)  # type: ignore[attr-defined]
batch_norm._told = True  # type: ignore[attr-defined]


@composed("NativeBatchNormBackward0", "input", "weight", "bias")
def _batch_norm(input: Any, weight: Any = None, bias: Any = None, dims: tuple[int, ...] = (), eps: float = 1e-5, rows: bool = False) -> tuple[Any, Any, Any, Any]:
    """The result, a number near the mean (see ``_near_mean``), the mean less that, and the variance, by channel."""
    pivot, away = _near_mean(input, dims, rows)
    out, mean, var = _normed(away, weight, bias, dims, eps, rows)
    return out, pivot, mean, var


def _normed(away: Any, weight: Any, bias: Any, dims: tuple[int, ...], eps: float, rows: bool) -> tuple[Any, Any, Any]:
    mean, square = _channel_mean(away, dims, rows), _channel_mean(f.square(away), dims, rows)
    var = f.clamp(f.sub(square, f.square(mean)), min=0)
    weight, bias = _by_channel(away, weight, bias)
    return _moved(away, mean, var, eps, weight, bias), mean, var


@composed("NativeBatchNormBackward0", "input", "weight", "bias", constants=("running_mean", "running_var"))
def _running_norm(input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    mean, var, weight, bias = _by_channel(input, running_mean, running_var, weight, bias)
    return _moved(input, mean, var, eps, weight, bias)


def _by_channel(input: Any, *values: Any) -> list[Any]:
    return [None if p is None else per_channel(p, rank(input)) for p in values]


def _near_mean(x: Any, dims: tuple[int, ...], rows: bool) -> tuple[Any, Any]:
    """By channel the mean of an eighth of x, and x less it: so near its own mean that the sum of squares loses three bits at most (the mean of an eighth is no
    farther than the root of 7 variances), and both sums need one pass. A constant to derivatives, of which mean and variance have none with respect to it."""
    d = dims[min(1, len(dims) - 1)]
    part = x[(slice(None),) * d + (slice(0, (x.shape[d] + 7) // 8),)]
    pivot = stop_gradient(_channel_mean(part, dims, rows))
    return pivot, f.sub(x, pivot)


def _channel_mean(x: Any, dims: tuple[int, ...], rows: bool) -> Any:
    """Means by channel; of an image that is channels_last over its rows of channels (``rows``), which are summed where they lie."""
    if rows:
        return per_channel(f.mean(f.reshape(f.permute(x, (0, 2, 3, 1)), (-1, x.shape[1])), 0), 4)
    return f.mean(x, dims, True)


def _moved(x: Any, mean: Any, var: Any, eps: float, weight: Any, bias: Any) -> Any:
    """``(x - mean) / sqrt(var + eps) * weight + bias`` with one factor and one summand per channel."""
    scale = f.rsqrt(f.add(var, eps))
    scale = scale if weight is None else f.mul(scale, weight)
    shift = f.neg(f.mul(mean, scale)) if bias is None else f.sub(bias, f.mul(mean, scale))
    return f.addcmul(shift, x, scale)


def instance_norm(input: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None, use_input_stats: bool = True,
                  momentum: float = 0.1, eps: float = 1e-5) -> Any:
    """Each channel of each example of input (N, C, ...) moved and scaled to mean 0 and variance 1, then ``* weight + bias`` by channel. Running means as in
    ``batch_norm``, of the means over the batch; used where ``use_input_stats`` is False."""
    if rank(input) < 2:
        raise AotgradArgumentError(f"instance_norm: expected an input of 2 or more dims (N, C, ...), not of {rank(input)}")
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    dims = tuple(range(2, rank(input)))
    n = _in_size(input, dims)
    if _is_one(n):
        raise AotgradValueError(f"instance_norm: Expected more than 1 spatial element when training, got input size {list(input.shape)}")
    input, mean, var = _moments(input, dims)
    if running_mean is not None:
        _write(momentum, [(running_mean, "instance_norm: running_mean", _as_it_is, None, f.mean(f.reshape(mean, (input.shape[0], -1)), 0))])
    if running_var is not None:
        _write(momentum, [(running_var, "instance_norm: running_var", _as_it_is, None, f.mean(f.mul(f.reshape(var, (input.shape[0], -1)), n / (n - 1)), 0))])
    return _affine(f.mul(input, f.rsqrt(f.add(var, eps))), *_by_channel(input, weight, bias))


def normalize(input: Any, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Any:
    """x over its p-norm along ``dim`` (over ``eps`` where that is larger).

    >>> import aotgrad as ag
    >>> ag.nn.functional.normalize(ag.tensor([[3.0, 4.0]]))
    tensor([[0.6000, 0.8000]])
    """
    return f.div(input, f.expand(f.clamp(f.norm(input, p, dim, True), eps), tuple(input.shape)))


def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    """The cosine of the angle between vectors along ``dim``; the two broadcast.

    >>> import aotgrad as ag
    >>> ag.nn.functional.cosine_similarity(ag.tensor([3.0, 4.0]), ag.tensor([4.0, 3.0]), dim=0)
    tensor(0.9600)
    """
    if tuple(x1.shape) != tuple(x2.shape):
        lead = (1,) * (rank(x1) - rank(x2)), (1,) * (rank(x2) - rank(x1))
        shape = tuple(m if n == 1 else n for n, m in zip((*lead[1], *x1.shape), (*lead[0], *x2.shape)))
        x1, x2 = f.expand(x1, shape), f.expand(x2, shape)
    left, right = (f.div(x, f.clamp(f.norm(x, 2, dim, True), eps)) for x in (x1, x2))
    return f.sum(f.mul(left, right), dim)


def pairwise_distance(x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Any:
    """The p-norm of ``x1 - x2 + eps`` along the last dim."""
    return f.norm(f.add(f.sub(x1, x2), eps), p, -1, keepdim)


@modes.intact
def one_hot(input: Any, num_classes: int = -1) -> Any:
    """A new last dim of ``num_classes`` with 1 at the place of each number and 0 elsewhere. As many classes as the largest number needs, if -1.

    >>> import aotgrad as ag
    >>> ag.nn.functional.one_hot(ag.tensor([0, 2]))
    tensor([[1, 0, 0],
            [0, 0, 1]])
    """
    if dtype_of(input) is not int64:
        raise AotgradDTypeError(f"one_hot is only applicable to index tensor of type int64, not {dtype_of(input).name}; convert it with .long()")
    if is_known(input):
        data = input._data if isinstance(input, Tensor) else np.asarray(input)
        if data.size and data.min() < 0:
            raise AotgradArgumentError("one_hot: Class values must be non-negative.")
        if num_classes == -1:
            if not data.size:
                raise AotgradArgumentError("one_hot: Can not infer total number of classes from empty tensor; give num_classes")
            num_classes = int(data.max()) + 1
        elif data.size and data.max() >= num_classes:
            raise AotgradArgumentError(f"one_hot: Class values must be smaller than num_classes ({num_classes}).")
    elif num_classes == -1:
        raise AotgradNotImplementedError("one_hot: how many classes there are is known only when the code runs; give num_classes")
    if num_classes < 1:
        raise AotgradArgumentError(f"one_hot: num_classes={num_classes} should be positive")
    if not is_known(input):  # looked up in a list of all, which refuses what is no class
        with naming("one_hot: class value {2} is out of range for num_classes {1}"):
            input = arange(num_classes)[f.where(f.lt(input, 0), f.sub(input, num_classes), input)]
    return _row_major(f.astype(f.eq(f.unsqueeze(input, -1), np.arange(num_classes)), int64))


def embedding(input: Any, weight: Any, padding_idx: int | None = None, max_norm: float | None = None, norm_type: float = 2.0, scale_grad_by_freq: bool = False,
              sparse: bool = False) -> Any:
    """Rows of ``weight`` (V, D) at the places in ``input`` (any shape of integers): of shape (*input, D). The row ``padding_idx`` gets no gradient.

    >>> import aotgrad as ag
    >>> ag.nn.functional.embedding(ag.tensor([1, 0]), ag.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[3., 4.],
            [1., 2.]])
    """
    if max_norm is not None or scale_grad_by_freq or sparse:
        raise AotgradNotImplementedError("embedding: max_norm, scale_grad_by_freq and sparse are not available; scale rows and gradients by hand")
    if rank(weight) != 2:
        raise AotgradArgumentError(f"embedding: 'weight' must be 2-D, not of shape {list(weight.shape)}")
    if dtype_of(input).kind not in "iu":
        raise AotgradDTypeError(f"embedding: expected input of integers, not {dtype_of(input).name}")
    return _embedding(input, weight, padding_idx)


@composed("EmbeddingBackward0", "input", "weight", moves=True)
@modes.intact
def _embedding(input: Any, weight: Any, padding_idx: int | None) -> Any:
    with naming("embedding: index {0} is out of range; weight has {1} rows"):
        rows = f.reshape(f.index_select(weight, 0, f.reshape(input, -1)), (*input.shape, weight.shape[1]))
    if padding_idx is None:
        return rows
    count = weight.shape[0]
    if not -count <= padding_idx < count:
        raise AotgradArgumentError(f"embedding: padding_idx={padding_idx} must be within the {count} rows of weight")
    return f.where(f.unsqueeze(f.eq(input, padding_idx % count), -1), stop_gradient(rows), rows)


def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Each element is 0 with probability ``p``, else over ``1 - p``; ``input`` itself unless ``training``. Draws from ``ag.default_generator``.

    >>> import aotgrad as ag
    >>> sorted(set(ag.nn.functional.dropout(ag.ones(100)).tolist()))
    [0.0, 2.0]
    """
    return _dropped("dropout", input, tuple(input.shape), p, training, inplace)


def _dropped(name: str, input: Any, shape: tuple[Any, ...], p: float, training: bool, inplace: bool) -> Any:
    if not 0.0 <= p <= 1.0:
        raise AotgradValueError(f"{name}: dropout probability has to be between 0 and 1, but got {p}")
    if not training or p == 0:
        return input
    out = f.mul(input, 0.0 if p == 1 else f.div(f.astype(f.ge(rand(shape), p), dtype_of(input)), 1 - p))
    return written(input, out, f"{name}_") if inplace else out


def _channels(name: str, input: Any, spatial: int) -> tuple[Any, ...]:
    if rank(input) not in (spatial + 1, spatial + 2):
        raise AotgradArgumentError(f"{name}: an input of {spatial + 2} dims (N, C, ...) or {spatial + 1} dims is needed, not of {rank(input)}")
    return (*input.shape[:rank(input) - spatial], *[1] * spatial)


def dropout1d(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """``dropout`` of whole channels of (N, C, L) or (C, L)."""
    return _dropped("dropout1d", input, _channels("dropout1d", input, 1), p, training, inplace)


def dropout2d(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """``dropout`` of whole channels of (N, C, H, W) or (C, H, W)."""
    return _dropped("dropout2d", input, _channels("dropout2d", input, 2), p, training, inplace)


def dropout3d(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """``dropout`` of whole channels of (N, C, D, H, W) or (C, D, H, W)."""
    return _dropped("dropout3d", input, _channels("dropout3d", input, 3), p, training, inplace)
