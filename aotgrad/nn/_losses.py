"""Losses, made of the functions of the registry."""

from __future__ import annotations

from typing import Any

import numpy as np

from aotgrad.frontend import factories
from aotgrad.frontend.composed import composed
from aotgrad.frontend.naming import naming
from aotgrad.frontend.notices import notice
from aotgrad.frontend.sizes import equal_sizes
from aotgrad.frontend.trace import user_loc
from aotgrad_runtime import modes
from aotgrad_runtime.arrays import decode
from aotgrad_runtime.errors import AotgradArgumentError, AotgradDTypeError, AotgradRangeError
from aotgrad_runtime.tensor import Tensor

from ._shared import dtype_of, f, is_float, is_known, per_channel, rank, reduced

LOSSES = ("binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "huber_loss", "kl_div", "l1_loss", "mse_loss", "nll_loss", "smooth_l1_loss")
__all__ = list(LOSSES)


def _weighted(loss: Any, weight: Any, reduction: str) -> Any:
    return reduced(loss if weight is None else f.mul(loss, weight), reduction)


def mse_loss(input: Any, target: Any, *, reduction: str = "mean") -> Any:
    """Squared differences: their mean, their sum, or all of them.

    >>> import aotgrad as ag
    >>> ag.nn.functional.mse_loss(ag.tensor([1.0, 2.0]), ag.tensor([1.0, 4.0]))
    tensor(2.)
    """
    _alike(input, target)
    return _mse_loss(input, target, reduction)


@composed("MseLossBackward0", "input", "target")
def _mse_loss(input: Any, target: Any, reduction: str) -> Any:
    return reduced(f.square(f.sub(input, target)), reduction)


def l1_loss(input: Any, target: Any, *, reduction: str = "mean") -> Any:
    """Absolute differences: their mean, their sum, or all of them.

    >>> import aotgrad as ag
    >>> ag.nn.functional.l1_loss(ag.tensor([1.0, 2.0]), ag.tensor([1.0, 4.0]))
    tensor(1.)
    """
    _alike(input, target)
    return reduced(f.abs(f.sub(input, target)), reduction)


def smooth_l1_loss(input: Any, target: Any, *, reduction: str = "mean", beta: float = 1.0) -> Any:
    """Squares (over ``2 * beta``) of differences below ``beta``, beyond that \\|d\\| less ``beta / 2``.

    >>> import aotgrad as ag
    >>> ag.nn.functional.smooth_l1_loss(ag.tensor([0.5, 2.0]), ag.tensor([0.0, 0.0]), reduction="none")
    tensor([0.1250, 1.5000])
    """
    if beta < 0:
        raise AotgradArgumentError(f"smooth_l1_loss does not support negative values for beta ({beta})")
    if beta == 0:
        return l1_loss(input, target, reduction=reduction)
    _alike(input, target)
    return _smooth_l1_loss(input, target, reduction, beta)


@composed("SmoothL1LossBackward0", "input", "target", floats=True)
def _smooth_l1_loss(input: Any, target: Any, reduction: str, beta: float) -> Any:
    d = f.abs(f.sub(input, target))
    return reduced(f.where(f.lt(d, beta), f.mul(f.square(d), 0.5 / beta), f.sub(d, 0.5 * beta)), reduction)


def huber_loss(input: Any, target: Any, *, reduction: str = "mean", delta: float = 1.0, weight: Any = None) -> Any:
    """Half the squares of differences up to ``delta``, beyond that ``delta * (|d| - delta / 2)``.

    >>> import aotgrad as ag
    >>> ag.nn.functional.huber_loss(ag.tensor([0.5, 2.0]), ag.tensor([0.0, 0.0]), reduction="none")
    tensor([0.1250, 1.5000])
    """
    if delta <= 0:
        raise AotgradArgumentError(f"huber_loss does not support non-positive values for delta ({delta})")
    _alike(input, target)
    return _huber_loss(input, target, weight, reduction, delta)


@composed("HuberLossBackward0", "input", "target", constants=("weight",))
def _huber_loss(input: Any, target: Any, weight: Any = None, reduction: str = "mean", delta: float = 1.0) -> Any:
    d = f.abs(f.sub(input, target))
    return _weighted(f.where(f.le(d, delta), f.mul(f.square(d), 0.5), f.mul(f.sub(d, 0.5 * delta), delta)), weight, reduction)


def _alike(input: Any, target: Any) -> None:
    """A warning where input and target would be broadcast, which is rarely meant. Open sizes are not asked for."""
    a, b = (tuple(x.shape) if hasattr(x, "shape") else np.shape(x) for x in (input, target))
    if len(a) != len(b) or any(type(m) is int and type(n) is int and m != n for m, n in zip(a, b)):
        notice(f"Using a target size ({list(b)}) that is different to the input size ({list(a)}). This will likely lead to incorrect results due to broadcasting. "
               "Please ensure they have the same size.")


def _same_shape(name: str, input: Any, target: Any) -> None:
    if tuple(input.shape) != tuple(target.shape):
        raise AotgradArgumentError(f"{name}: target of shape {list(target.shape)} must have the shape of input, {list(input.shape)}")


def binary_cross_entropy(input: Any, target: Any, weight: Any = None, *, reduction: str = "mean") -> Any:
    """``-(t log x + (1 - t) log(1 - x))`` for probabilities x in [0, 1]; logarithms end at -100.

    >>> import aotgrad as ag
    >>> ag.nn.functional.binary_cross_entropy(ag.tensor([0.5]), ag.tensor([1.0]))
    tensor(0.6931)
    """
    _same_shape("binary_cross_entropy", input, target)
    input = _probabilities(input, "input", "; for scores use binary_cross_entropy_with_logits")
    return _binary_cross_entropy(input, _probabilities(target, "target"), weight, reduction)


def _probabilities(x: Any, what: str, rather: str = "") -> Any:
    """``x``, all numbers of which must be between 0 and 1; in a trace where it is used, when the code runs."""
    told = f"binary_cross_entropy: all elements of {what} should be between 0 and 1{rather}"
    if is_known(x):
        numbers = decode(x._data) if isinstance(x, Tensor) else np.asarray(x)
        if not np.all((numbers >= 0) & (numbers <= 1)):
            raise AotgradArgumentError(told)
        return x
    with naming(told):  # looked up in a list of one number, which refuses the second
        sound = factories.arange(1)[f.where(f.all(f.logical_and(f.ge(x, 0), f.le(x, 1))), 0, 1)]
    return f.add(x, f.astype(sound, dtype_of(x)))


@composed("BinaryCrossEntropyBackward0", "input", "target", constants=("weight",))
def _binary_cross_entropy(input: Any, target: Any, weight: Any = None, reduction: str = "mean") -> Any:
    hit = f.mul(target, f.clamp(f.log(input), -100.0))
    miss = f.mul(f.sub(1.0, target), f.clamp(f.log1p(f.neg(input)), -100.0))
    return _weighted(f.neg(f.add(hit, miss)), weight, reduction)


@composed("BinaryCrossEntropyWithLogitsBackward0", "input", "target", constants=("weight", "pos_weight"))
def binary_cross_entropy_with_logits(input: Any, target: Any, weight: Any = None, *, reduction: str = "mean", pos_weight: Any = None) -> Any:
    """``binary_cross_entropy`` of ``sigmoid(input)``, right for all scores; ``pos_weight`` weighs the part of targets of 1.

    >>> import aotgrad as ag
    >>> ag.nn.functional.binary_cross_entropy_with_logits(ag.tensor([0.0, 1000.0]), ag.tensor([1.0, 1.0]), reduction="none")
    tensor([0.6931, 0.0000])
    """
    _same_shape("binary_cross_entropy_with_logits", input, target)
    tail = f.softplus(f.neg(input))
    if pos_weight is not None:
        tail = f.mul(tail, f.add(f.mul(f.sub(pos_weight, 1), target), 1))
    return _weighted(f.add(f.mul(f.sub(1.0, target), input), tail), weight, reduction)


def kl_div(input: Any, target: Any, *, reduction: str = "mean", log_target: bool = False) -> Any:
    """``target * (log(target) - input)`` where input holds log-probabilities; ``reduction="batchmean"`` divides the sum by the first size.

    >>> import aotgrad as ag
    >>> ag.nn.functional.kl_div(ag.tensor([[0.5, 0.5]]).log(), ag.tensor([[0.5, 0.5]]), reduction="batchmean")
    tensor(0.)
    """
    loss = f.mul(f.exp(target), f.sub(target, input)) if log_target else f.sub(f.xlogy(target, target), f.mul(target, input))
    if reduction == "batchmean":
        return f.div(f.sum(loss), input.shape[0]) if rank(input) else f.sum(loss)
    return reduced(loss, reduction)


def _picked(values: Any, classes: Any, dim: int) -> Any:
    """The entry of each class number along ``dim``."""
    return f.squeeze(f.gather(values, dim, f.unsqueeze(classes, dim)), dim)


@modes.intact
def _chosen(values: Any, classes: Any, dim: int, known: bool) -> Any:
    """The same as a sum of what the class number chooses, in compiled code: what made the values and what they are differentiated with is then one loop over rows,
    without a scatter into zeros. The numbers are looked up in a list of all, which refuses what is no class."""
    if known:
        return _picked(values, classes, dim)
    every = factories.arange(values.shape[dim], dtype="int32")
    with naming("Target {2} is out of bounds. There are {1} classes, numbered from 0"):
        known = every[classes]
    found = f.eq(factories.positions(values, dim), f.unsqueeze(known, dim))
    return f.sum(f.where(found, values, 0.0), dim)


def _classes(name: str, input: Any, target: Any, weight: Any) -> int:
    """The dim of classes; checks that the shapes fit."""
    if is_float(target):
        raise AotgradDTypeError(f"{name}: the target holds class numbers, integers are needed; for probabilities use cross_entropy")
    if rank(input) == 0:
        raise AotgradArgumentError(f"{name}: input needs a dim of classes, it is 0-d")
    dim = 0 if rank(input) == 1 else 1
    want = [n for d, n in enumerate(input.shape) if d != dim]
    if rank(target) != rank(input) - 1 or not all(map(equal_sizes, want, target.shape)):
        batch = rank(input) > 1 and rank(target) > 0 and target.shape[0] != input.shape[0]
        raise _NotFit(f"{name}: " + (f"Expected input batch_size ({input.shape[0]}) to match target batch_size ({target.shape[0]}): " if batch else "")
                      + f"an input of shape {list(input.shape)} needs a target of shape {want}, not {list(target.shape)}")
    if weight is not None and tuple(weight.shape) != (input.shape[dim],):
        raise AotgradArgumentError(f"{name}: weight should have one number for each of the {input.shape[dim]} classes, its shape is {list(weight.shape)}")
    return dim


class _NotFit(AotgradArgumentError):
    """Shapes of input and target that do not fit."""


def _all_count(logp: Any, target: Any, ignore_index: int, dim: int) -> bool:
    """Whether all targets are known to count; checks that those that do are classes."""
    if not (is_known(target) and is_known(logp)):
        return False
    n, data = logp.shape[dim], target._data if isinstance(target, Tensor) else np.asarray(target)
    if data.size and data.dtype.kind == "i" and not 0 <= ignore_index < n and data.view(f"u{data.itemsize}").max() < n:  # numbers below 0 are large ones then
        return True
    counts: Any = data != ignore_index
    wrong = data[((data < 0) | (data >= n)) & counts]
    if wrong.size:
        raise AotgradRangeError(f"{user_loc()}: Target {int(wrong.flat[0])} is out of bounds. There are {n} classes, numbered from 0.")
    return bool(counts.all())


def _shares(logp: Any, target: Any, weight: Any, ignore_index: int, dim: int, every: bool) -> tuple[Any, Any, Any]:
    """Which targets count (None: all), their weights (None: 1 each), and a class for each target."""
    if every:
        return None, None if weight is None else _picked(_wide(weight, target), target, 0), target
    counts = f.ne(target, ignore_index)
    safe = f.where(counts, f.where(f.lt(target, 0), f.sub(target, logp.shape[dim]), target), 0)  # negative numbers are no classes counted from the end
    share = f.astype(counts, dtype_of(logp))
    return counts, share if weight is None else f.mul(share, _picked(_wide(weight, target), safe, 0)), safe


def _wide(weight: Any, target: Any) -> Any:
    return f.expand(f.reshape(weight, (-1, *[1] * rank(target))), (weight.shape[0], *target.shape))


def nll_loss(input: Any, target: Any, weight: Any = None, *, ignore_index: int = -100, reduction: str = "mean") -> Any:
    """The negative of the log-probability of each target class: input (N, C, ...) or (C), target (N, ...) or () of class numbers.

    ``weight`` (C) weighs classes, in the mean too; targets equal to ``ignore_index`` do not count. A target that is no class is an error that names it.

    >>> import aotgrad as ag
    >>> ag.nn.functional.nll_loss(ag.tensor([[0.5, 0.5], [0.25, 0.75]]).log(), ag.tensor([0, 1]), reduction="none")
    tensor([0.6931, 0.2877])
    """
    dim = _classes("nll_loss", input, target, weight)
    return _nll_loss(input, target, weight, ignore_index, reduction, dim, _all_count(input, target, ignore_index, dim), is_known(input))


@composed("NllLossBackward0", "input", "target", constants=("weight",))
def _nll_loss(input: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean", dim: int = 1, every: bool = True,
              known: bool = True) -> Any:
    """``every``: whether all targets count; ``known``: whether there are numbers behind ``input``."""
    counts, share, classes = _shares(input, target, weight, ignore_index, dim, every)
    loss = _chosen(input, classes, dim, known)
    loss = loss if share is None else f.mul(loss, share)
    return _averaged(f.neg(loss if counts is None else f.where(counts, loss, 0.0)), share, reduction)


def _averaged(loss: Any, share: Any, reduction: str) -> Any:
    return f.div(f.sum(loss), f.sum(share)) if reduction == "mean" and share is not None else reduced(loss, reduction)


def cross_entropy(input: Any, target: Any, weight: Any = None, *, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0) -> Any:
    """``nll_loss`` of ``log_softmax``: input holds scores (N, C, ...) or (C), target class numbers, or probabilities of the shape of input.

    ``label_smoothing`` moves that share of each target to all classes evenly.

    >>> import aotgrad as ag
    >>> ag.nn.functional.cross_entropy(ag.tensor([[1.0, 1.0], [0.0, 0.0]]), ag.tensor([0, 1]))
    tensor(0.6931)
    """
    if not 0.0 <= label_smoothing <= 1.0:
        raise AotgradArgumentError(f"cross_entropy: label_smoothing must be between 0.0 and 1.0, not {label_smoothing}")
    dim = 0 if rank(input) == 1 else 1
    if is_float(target) and tuple(target.shape) == tuple(input.shape):
        return _of_probabilities(f.log_softmax(input, dim), target, weight, reduction, label_smoothing, dim)
    try:
        _classes("cross_entropy", input, target, weight)
    except _NotFit as error:
        raise type(error)(f"{error}; a target of probabilities has the shape of input and a floating-point dtype") from None
    except AotgradDTypeError:
        raise AotgradDTypeError(f"cross_entropy: a target of probabilities needs the shape of input, {list(input.shape)}, not {list(target.shape)}; a target of class "
                                f"numbers holds integers, not {dtype_of(target).name}") from None
    logp = f.log_softmax(input, dim)
    every = _all_count(logp, target, ignore_index, dim)
    plain = _nll_loss(logp, target, weight, ignore_index, reduction, dim, every, is_known(logp))
    if label_smoothing == 0:
        return plain
    counts, share, _ = _shares(logp, target, weight, ignore_index, dim, every)
    terms = logp if weight is None else f.mul(logp, per_channel(weight, rank(logp) - dim + 1))
    even = f.neg(f.sum(terms, dim))
    even = _averaged(even if counts is None else f.where(counts, even, 0.0), share, reduction)
    return f.add(f.mul(plain, 1.0 - label_smoothing), f.mul(f.div(even, logp.shape[dim]), label_smoothing))


def _of_probabilities(logp: Any, target: Any, weight: Any, reduction: str, smoothing: float, dim: int) -> Any:
    if smoothing:
        target = f.add(f.mul(target, 1.0 - smoothing), smoothing / logp.shape[dim])
    terms = f.mul(target, logp)
    if weight is not None:
        terms = f.mul(terms, per_channel(weight, rank(logp) - dim + 1))
    loss = f.neg(f.sum(terms, dim))
    if reduction != "mean":
        return reduced(loss, reduction)
    count: Any = 1
    for n in loss.shape:
        count = count * n
    return f.div(f.sum(loss), count)
