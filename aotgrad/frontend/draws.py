"""Random numbers of other distributions, made of the uniform and the normal one; and tensors that are filled with random numbers in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from aotgrad_runtime import modes
from aotgrad_runtime.arrays import decode
from aotgrad_runtime.dtypes import float32, float64
from aotgrad_runtime.errors import AotgradNotImplementedError, AotgradRuntimeError, AotgradTypeError
from aotgrad_runtime.limits import finfo, iinfo
from aotgrad_runtime.tensor import Tensor

from . import factories, inplace
from .further import f
from .ledger import twin
from .randoms import Generator, rand, randint, randn
from .trace import Traced, user_loc

__all__ = ["DRAWS", "DRAW_METHODS"]


def _real(x: Any) -> bool:
    return not isinstance(twin(x), Traced)


@modes.intact
def normal(mean: Any = 0.0, std: Any = 1.0, size: Any = None, *, generator: Generator | None = None, dtype: Any = None, requires_grad: bool = False) -> Any:
    """Normal with this mean and standard deviation: numbers, with a ``size``, or tensors with those of each element.

    >>> import aotgrad as ag
    >>> ag.normal(0.0, ag.zeros(2))
    tensor([0., 0.])
    """
    mean, std = factories.tensor_of(mean), factories.tensor_of(std)
    tensors = [x for x in (mean, std) if isinstance(x, Tensor)]
    if isinstance(std, Tensor) and _real(std) and (std._data < 0).any() or not isinstance(std, Tensor) and std < 0:
        raise AotgradRuntimeError(f"{user_loc()}: normal expects all elements of std >= 0.0")
    if not tensors and size is None:
        raise AotgradTypeError(f"{user_loc()}: normal: numbers for mean and std need a size: normal(0.0, 1.0, (2, 3))")
    with modes.no_grad():
        if not tensors:
            out = f.add(f.mul(randn(tuple(size), generator=generator, dtype=dtype), std), mean)
        else:
            like = f.add(mean, std)
            if not like._dtype.is_floating_point:
                raise AotgradTypeError(f"{user_loc()}: normal needs a floating-point mean and std, not {like._dtype.name}")
            out = f.add(f.mul(randn(tuple(like.shape), generator=generator, dtype=like._dtype), std), mean)
    return out.requires_grad_(True) if requires_grad else out


@modes.intact
def bernoulli(input: Any, p: Any = None, *, generator: Generator | None = None) -> Any:
    """1 with the probability that each element is (or with ``p``, in the shape of ``input``), else 0.

    >>> import aotgrad as ag
    >>> ag.bernoulli(ag.tensor([0.0, 1.0]))
    tensor([0., 1.])
    """
    input = factories.tensor_of(input)
    odds = input if p is None else p
    if p is None and not input._dtype.is_floating_point:
        raise AotgradNotImplementedError(f"{user_loc()}: bernoulli: the probabilities are {input._dtype.name}, not floating-point numbers")
    wrong = decode(twin(odds)._data) if isinstance(odds, Tensor) and _real(odds) else None if isinstance(odds, Tensor) else np.asarray(odds)
    if wrong is not None and not ((wrong >= 0) & (wrong <= 1)).all():
        raise AotgradRuntimeError(f"{user_loc()}: bernoulli: Expected p_in >= 0 && p_in <= 1 to be true, but got false.")
    kind = odds._dtype if isinstance(odds, Tensor) and odds._dtype in (float32, float64) else float32
    with modes.no_grad():
        return f.astype(f.lt(rand(tuple(input.shape), generator=generator, dtype=kind), odds), input._dtype)


def multinomial(input: Any, num_samples: int, replacement: bool = False, *, generator: Generator | None = None) -> Any:
    """Places drawn with the probabilities that a row's elements are in proportion to: ``num_samples`` of each row, int64.

    >>> import aotgrad as ag
    >>> ag.multinomial(ag.tensor([0.0, 3.0, 0.0]), 1)
    tensor([1])
    """
    if not _real(input):
        raise AotgradTypeError(f"{user_loc()}: multinomial: not available in a compiled function; draw outside and pass the places as an argument")
    weights = decode(input._data)
    if weights.ndim not in (1, 2) or weights.dtype.kind != "f":
        raise AotgradRuntimeError(f"{user_loc()}: multinomial: a vector or a matrix of floating-point numbers is needed, not {input._dtype.name}{list(input.shape)}")
    weights = weights.astype(np.float64)
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise AotgradRuntimeError(f"{user_loc()}: probability tensor contains either `inf`, `nan` or element < 0")
    if num_samples <= 0 or (not replacement and num_samples > weights.shape[-1]):
        raise AotgradRuntimeError(f"{user_loc()}: cannot sample n_sample = {num_samples} from {weights.shape[-1]} categories{' without replacement' * (not replacement)}")
    if (weights.sum(-1) <= 0).any() or not replacement and ((weights > 0).sum(-1) < num_samples).any():
        raise AotgradRuntimeError(f"{user_loc()}: invalid multinomial distribution (a row has fewer elements above 0 than are drawn)")
    if replacement:
        ends = np.cumsum(weights, -1)
        drawn = rand((*weights.shape[:-1], num_samples), generator=generator, dtype=float64)._data * ends[..., -1:]
        found = (ends[..., None, :] <= drawn[..., None]).sum(-1)
        last = weights.shape[-1] - 1 - np.argmax(np.flip(weights > 0, -1), -1)
        return factories.finish(np.minimum(found, last[..., None]), False)  # rounding reaches the end at most
    uniform = np.maximum(rand(weights.shape, generator=generator, dtype=float64)._data, finfo(float64).tiny)
    with np.errstate(divide="ignore"):
        keys = np.log(uniform) / weights  # the largest of these are a draw without replacement
    return factories.finish(np.ascontiguousarray(np.argsort(-keys, -1, kind="stable")[..., :num_samples]), False)


@factories.on_cpu
def randint_like(input: Any, low: Any = None, high: Any = None, *, generator: Generator | None = None, dtype: Any = None, requires_grad: bool = False) -> Any:
    """``randint`` with the shape and dtype of ``input``: ``randint_like(x, high)`` or ``randint_like(x, low, high)``."""
    input = factories.tensor_of(input)
    low, high = (0, low) if high is None else (low or 0, high)
    return randint(low, high, tuple(input.shape), generator=generator, dtype=input._dtype if dtype is None else dtype, requires_grad=requires_grad)


# ---- in place -------------------------------------------------------------------------------------------------------------------------

def _float(self: Any, name: str) -> Any:
    if not self._dtype.is_floating_point:
        raise AotgradNotImplementedError(f"{user_loc()}: {name}: the tensor is {self._dtype.name}; floating-point numbers are drawn")
    return self._dtype


def _put(self: Any, drawn: Any, name: str) -> Any:
    return inplace.update(self, drawn, name)


def normal_(self: Any, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None) -> Any:
    """Every element becomes normal with this mean and standard deviation. In place."""
    return _put(self, normal(mean, std, tuple(self.shape), generator=generator, dtype=_float(self, "normal_")), "normal_")


def _from(named: dict[str, Any], given: Any, name: str) -> Any:
    """The argument that torch calls ``from``, a word of Python's; others are refused."""
    found = named.pop("from", given)
    if named:
        raise AotgradTypeError(f"{user_loc()}: {name}: got an unexpected argument {[*named][0]!r}; it takes from, to and generator")
    return found


@modes.intact
def uniform_(self: Any, from_: float = 0.0, to: float = 1.0, *, generator: Generator | None = None, **named: Any) -> Any:
    """Every element becomes uniform in [from, to). In place.

    >>> import aotgrad as ag
    >>> bool((ag.empty(3).uniform_(2, 4) >= 2).all())
    True
    """
    from_ = _from(named, from_, "uniform_")
    if from_ > to:
        raise AotgradRuntimeError(f"{user_loc()}: uniform_ expects to return a [from, to) range, but found from={from_} > to={to}")
    kind = _float(self, "uniform_")
    with modes.no_grad():
        drawn = f.add(f.mul(rand(tuple(self.shape), generator=generator, dtype=kind), to - from_), from_)
    return _put(self, drawn, "uniform_")


def bernoulli_(self: Any, p: Any = 0.5, *, generator: Generator | None = None) -> Any:
    """Every element becomes 1 with probability ``p`` (a number, or a tensor with that of each), else 0. In place."""
    return _put(self, bernoulli(self, p, generator=generator), "bernoulli_")


@modes.intact
def exponential_(self: Any, lambd: float = 1.0, *, generator: Generator | None = None) -> Any:
    """Every element becomes exponential with rate ``lambd``. In place."""
    kind = _float(self, "exponential_")
    with modes.no_grad():
        drawn = f.div(f.neg(f.log1p(f.neg(rand(tuple(self.shape), generator=generator, dtype=kind)))), lambd)
    return _put(self, drawn, "exponential_")


_EXACT = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}  # bits in which whole numbers are exact


def random_(self: Any, from_: int = 0, to: int | None = None, *, generator: Generator | None = None, **named: Any) -> Any:
    """Every element becomes a whole number in [from, to), all equally likely; ``random_(to)`` begins at 0; without bounds as many as the dtype holds exactly. In place.

    >>> import aotgrad as ag
    >>> bool((ag.empty(5).random_(2, 4) >= 2).all())
    True
    """
    from_ = _from(named, from_, "random_")
    low, high = (from_, to) if to is not None else (0, from_)
    if to is None and not from_:
        name = self._dtype.name
        high = 2 if name == "bool" else 1 << _EXACT[name] if name in _EXACT else iinfo(self._dtype).max
        high += name in _EXACT
    if low >= high:
        raise AotgradRuntimeError(f"{user_loc()}: random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
    return _put(self, f.astype(randint(low, high, tuple(self.shape), generator=generator), self._dtype), "random_")


DRAWS = {g.__name__: g for g in (normal, bernoulli, multinomial, randint_like)}
"""Functions of the namespace, by name."""
DRAW_METHODS = {g.__name__: g for g in (bernoulli, multinomial, normal_, uniform_, bernoulli_, exponential_, random_)}
"""Methods of tensors, by name."""
