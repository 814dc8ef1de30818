"""Functions of torch.nn.functional: activations and the like from the op registry, and losses made of them. Tensors, traced values and NumPy arrays are accepted."""

from __future__ import annotations

from typing import Any

import numpy as np

from aotgrad.frontend.dispatch import TORCH
from aotgrad.frontend.methods import FUNCTIONS as _f
from aotgrad_runtime.errors import AotgradTypeError, AotgradValueError
from aotgrad_runtime.tensor import Tensor

__all__ = ["cross_entropy", "linear", "mse_loss", "nll_loss"]

_FUNCTIONAL = {name: _f[name] for name, public in TORCH.items() if public.op.front is not None and public.op.front.functional}
_FUNCTIONAL.update({name: _f[name] for name in ("sigmoid", "softplus", "tanh") if name in _f})
globals().update(_FUNCTIONAL)
__all__ += sorted(set(_FUNCTIONAL) - set(__all__))


def __getattr__(name: str) -> Any:
    raise AttributeError(f"aotgrad.nn.functional has no function {name!r}")


def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """``input @ weight.T + bias``: input (..., in), weight (out, in), bias (out).

    >>> import aotgrad as ag
    >>> ag.nn.functional.linear(ag.tensor([1.0, 2.0]), ag.tensor([[3.0, 4.0]]))
    tensor([11.])
    """
    turned = _f["t"](weight)
    out = _f["matmul"](input, turned)
    return out if bias is None else _f["add"](out, bias)


def _reduced(loss: Any, reduction: str) -> Any:
    if reduction == "none":
        return loss
    if reduction not in ("mean", "sum"):
        raise AotgradValueError(f"reduction={reduction!r} is not known; use 'none', 'mean' or 'sum'")
    return _f[reduction](loss)


def mse_loss(input: Any, target: Any, *, reduction: str = "mean") -> Any:
    """Squared differences: their mean, their sum, or all of them."""
    return _reduced(_f["square"](_f["sub"](input, target)), reduction)


def _rank(x: Any) -> int:
    return len(x.shape)


def _is_float(x: Any) -> bool:
    return (x._dtype.kind if isinstance(x, Tensor) else np.asarray(x).dtype.kind) == "f"


def nll_loss(input: Any, target: Any, weight: Any = None, *, ignore_index: int = -100, reduction: str = "mean") -> Any:
    """The negative of the log-probability of each target class: input (N, C, ...) or (C), target (N, ...) or () of class numbers.

    ``weight`` (C) weighs classes, in the mean too; targets equal to ``ignore_index`` do not count.
    """
    if _is_float(target):
        raise AotgradTypeError("nll_loss: the target holds class numbers, integers are needed; for probabilities use cross_entropy")
    if _rank(input) not in (1,) and _rank(target) != _rank(input) - 1:
        raise AotgradValueError(f"nll_loss: an input of rank {_rank(input)} needs a target of rank {_rank(input) - 1}, not {_rank(target)}")
    dim = 0 if _rank(input) == 1 else 1
    counts = _f["ne"](target, ignore_index)
    safe = _f["where"](counts, target, 0)
    picked = _f["squeeze"](_f["gather"](input, dim, _f["unsqueeze"](safe, dim)), dim)
    share = _f["astype"](counts, input._dtype if isinstance(input, Tensor) else input.dtype)
    if weight is not None:
        at = _f["reshape"](_f["index_select"](weight, 0, _f["reshape"](safe, -1)), tuple(safe.shape))
        share = _f["mul"](share, at)
    loss = _f["neg"](_f["where"](counts, _f["mul"](picked, share), 0.0))
    if reduction != "mean":
        return _reduced(loss, reduction)
    return _f["div"](_f["sum"](loss), _f["sum"](share))


def cross_entropy(input: Any, target: Any, weight: Any = None, *, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0) -> Any:
    """``nll_loss`` of ``log_softmax``: input holds scores (N, C, ...) or (C), target class numbers, or probabilities of the shape of input.

    ``label_smoothing`` moves that share of each target to all classes evenly.
    """
    dim = 0 if _rank(input) == 1 else 1
    logp = _f["log_softmax"](input, dim)
    if not _is_float(target):
        plain = nll_loss(logp, target, weight, ignore_index=ignore_index, reduction=reduction)
        return plain if label_smoothing == 0 else _smoothed(plain, logp, target, weight, ignore_index, reduction, label_smoothing, dim)
    if tuple(target.shape) != tuple(input.shape):
        raise AotgradValueError(f"cross_entropy: a target of probabilities needs the shape of input, {tuple(input.shape)}, not {tuple(target.shape)}")
    classes = input.shape[dim]
    if label_smoothing:
        target = _f["add"](_f["mul"](target, 1.0 - label_smoothing), label_smoothing / classes)
    terms = _f["mul"](target, logp)
    if weight is not None:
        terms = _f["mul"](terms, _f["reshape"](weight, (-1, *[1] * (_rank(input) - 1 - dim))))
    loss = _f["neg"](_f["sum"](terms, dim))
    if reduction != "mean" or _rank(input) == 1:
        return _reduced(loss, "sum" if reduction == "mean" else reduction)
    count: Any = 1
    for d, n in enumerate(input.shape):
        count = count if d == dim else count * n
    return _f["div"](_f["sum"](loss), count)


def _smoothed(plain: Any, logp: Any, target: Any, weight: Any, ignore_index: int, reduction: str, amount: float, dim: int) -> Any:
    counts = _f["ne"](target, ignore_index)
    classes = logp.shape[dim]
    terms = logp if weight is None else _f["mul"](logp, _f["reshape"](weight, (-1, *[1] * (_rank(logp) - 1 - dim))))
    even = _f["where"](counts, _f["neg"](_f["sum"](terms, dim)), 0.0)
    if reduction == "mean":
        share = _f["astype"](counts, logp._dtype if isinstance(logp, Tensor) else logp.dtype)
        if weight is not None:
            safe = _f["where"](counts, target, 0)
            share = _f["mul"](share, _f["reshape"](_f["index_select"](weight, 0, _f["reshape"](safe, -1)), tuple(safe.shape)))
        even = _f["div"](_f["sum"](even), _f["sum"](share))
    else:
        even = _reduced(even, reduction)
    return _f["add"](_f["mul"](plain, 1.0 - amount), _f["mul"](_f["div"](even, classes), amount))
