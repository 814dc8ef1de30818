"""More of torch's functions that follow from others: covariances, whole numbers, signs, and writes at places, of which the result is a new tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotgrad.ir.ops.common import norm_dim
from aotgrad_runtime.arrays import decode, get_default_dtype
from aotgrad_runtime.errors import AotgradDTypeError, AotgradNotImplementedError, AotgradRuntimeError, AotgradTypeError
from aotgrad_runtime.tensor import Tensor

from . import factories, indexing, inplace
from .control import fori_loop
from .further import broadcast_tensors, f, result_type, signbit
from .ledger import twin
from .numpy_composed import correlation, covariance
from .queries import stop_gradient
from .trace import Traced, user_loc

__all__ = ["RARER", "RARER_METHODS"]


def _traced(*xs: Any) -> bool:
    return any(isinstance(twin(x), Traced) for x in xs)


def _pair(a: Any, b: Any) -> tuple[Any, Any]:
    """Both as tensors of the dtype that they give together, in one shape."""
    kind = result_type(a, b)
    a, b = (factories.tensor_of(x) if isinstance(x, (Tensor, np.ndarray)) else factories.full_like(y, x, dtype=kind) for x, y in ((a, b), (b, a)))
    a, b = f.astype(a, kind), f.astype(b, kind)
    return (a, b) if tuple(a.shape) == tuple(b.shape) else broadcast_tensors(a, b)


# ---- statistics -------------------------------------------------------------------------------------------------------------------------

def cov(input: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    """Covariances of variables in rows, observations in columns: (n, n), a number for a vector. ``fweights``: how often each observation was made, whole numbers;
    ``aweights``: how much it weighs. Raises ``AotgradRuntimeError`` for more than two dims and for weights that do not fit.

    >>> import aotgrad as ag
    >>> ag.cov(ag.tensor([[0.0, 2.0], [1.0, 0.0]]))
    tensor([[ 2.0000, -1.0000],
            [-1.0000,  0.5000]])
    """
    rank = len(input.shape)
    if rank > 2:
        raise AotgradRuntimeError(f"{user_loc()}: cov(): expected input to have two or fewer dimensions but got an input with {rank} dimensions")
    x = f.reshape(input, (1, -1)) if rank < 2 else input
    x = x if x._dtype.kind in "fc" else f.astype(x, get_default_dtype())
    for name, w, kinds in (("fweights", fweights, "iu"), ("aweights", aweights, "f")):
        if w is not None and (len(w.shape) != 1 or w._dtype.kind not in kinds):
            what = "an integral" if kinds == "iu" else "a floating point"
            raise AotgradRuntimeError(f"{user_loc()}: cov(): expected {name} to be a vector of {what} dtype, not {w._dtype.name}{list(w.shape)}")
    out = covariance(x, correction, *[None if w is None else f.astype(w, x._dtype) for w in (fweights, aweights)])
    return out if rank == 2 else f.reshape(out, ())


def corrcoef(input: Any) -> Any:
    """Correlations of variables in rows: ``cov`` over both standard deviations, within [-1, 1].

    >>> import aotgrad as ag
    >>> ag.corrcoef(ag.tensor([[0.0, 2.0, 1.0], [1.0, 0.0, 0.5]]))
    tensor([[ 1., -1.],
            [-1.,  1.]])
    """
    return correlation(cov(input))


def cdist(x1: Any, x2: Any, p: float = 2.0) -> Any:
    """Distances of every row of ``x1`` (..., n, d) from every row of ``x2`` (..., m, d), in the norm of order ``p``: (..., n, m); derivative 0 where rows are equal."""
    if len(x1.shape) < 2 or len(x2.shape) < 2:
        raise AotgradRuntimeError(f"{user_loc()}: cdist only supports at least 2D tensors, X{1 if len(x1.shape) < 2 else 2} got: {min(len(x1.shape), len(x2.shape))}D")
    if p < 0:
        raise AotgradRuntimeError(f"{user_loc()}: cdist only supports non-negative p values, not {p}")
    return f.norm(f.sub(f.unsqueeze(x1, -2), f.unsqueeze(x2, -3)), p, -1)


def cumulative_trapezoid(y: Any, x: Any = None, *, dx: Any = 1, dim: int = -1) -> Any:
    """Sums of areas of trapezoids along ``dim``, up to each place but the first; ``x``: where the values are, or ``dx`` between them."""
    d, n = norm_dim(dim, len(y.shape)), y.shape[dim]
    pairs = f.add(f.narrow(y, d, 0, n - 1), f.narrow(y, d, 1, n - 1))
    if x is None:
        return f.mul(f.cumsum(pairs, d), dx / 2 if isinstance(dx, (int, float)) else f.div(dx, 2))
    along = 0 if len(x.shape) == 1 else d
    steps = f.sub(f.narrow(x, along, 1, n - 1), f.narrow(x, along, 0, n - 1))
    steps = f.reshape(steps, (-1, *[1] * (len(y.shape) - d - 1))) if len(x.shape) == 1 else steps
    return f.div(f.cumsum(f.mul(pairs, steps), d), 2)


def vdot(input: Any, other: Any) -> Any:
    """The inner product of two vectors, the first conjugated where it is complex."""
    return f.dot(f.conj(input) if input._dtype.kind == "c" else input, other)


# ---- whole numbers, signs and powers of two ---------------------------------------------------------------------------------------------

def _whole_pair(name: str, a: Any, b: Any) -> tuple[Any, Any]:
    a, b = _pair(a, b)
    if a._dtype.kind not in "iu":
        raise AotgradDTypeError(f"{user_loc()}: {name}: integers are needed, not {a._dtype.name}")
    return a, b


_EUCLID = {1: 13, 2: 24, 4: 47, 8: 92}
"""Steps after which Euclid's algorithm has ended, by bytes: the longest way is that of Fibonacci's numbers."""


def gcd(input: Any, other: Any) -> Any:
    """The greatest common divisor of integers, element by element; of 0 and 0 it is 0.

    >>> import aotgrad as ag
    >>> ag.gcd(ag.tensor([12, 0]), ag.tensor([18, 5]))
    tensor([6, 5])
    """
    a, b = _whole_pair("gcd", input, other)
    if not _traced(a, b):
        return factories.finish(np.gcd(a._data, b._data), False)

    def euclid(_: Any, state: Any) -> Any:
        x, y = state
        going = f.ne(y, 0)
        return f.where(going, y, x), f.where(going, f.remainder(x, f.where(going, y, 1)), 0)

    return f.abs(fori_loop(0, _EUCLID[a._dtype.itemsize], euclid, (a, b))[0])


def lcm(input: Any, other: Any) -> Any:
    """The least common multiple of integers, element by element; 0 where one of them is.

    >>> import aotgrad as ag
    >>> ag.lcm(ag.tensor([4, 0]), 6)
    tensor([12,  0])
    """
    a, b = _whole_pair("lcm", input, other)
    common = gcd(a, b)
    return f.abs(f.mul(f.floor_divide(a, f.where(f.eq(common, 0), 1, common)), b))


def copysign(input: Any, other: Any) -> Any:
    """The size of ``input`` with the sign of ``other`` (a tensor or a number; of -0.0 too). Integers become floats; the derivative is 0 at 0, and in ``other``.

    >>> import aotgrad as ag
    >>> ag.copysign(ag.tensor([1.0, -2.0]), ag.tensor([-0.0, 3.0]))
    tensor([-1.,  2.])
    """
    kind = result_type(input, other)
    kind = kind if kind.kind == "f" else get_default_dtype()
    size = f.abs(f.astype(input, kind))
    if not isinstance(other, Tensor):
        return f.neg(size) if math.copysign(1.0, other) < 0 else size
    return f.where(signbit(stop_gradient(other)), f.neg(size), size)


def ldexp(input: Any, other: Any) -> Any:
    """``input * 2 ** other``."""
    return f.mul(input, f.pow(2.0, other))


def nextafter(input: Any, other: Any) -> Any:
    """The next number after ``input`` towards ``other``, of their dtype. It has no derivative; in compiled functions it is an error.

    >>> import aotgrad as ag
    >>> ag.nextafter(ag.tensor(1.0), ag.tensor(2.0)).item() - 1
    1.1920928955078125e-07
    """
    if _traced(input, other):
        raise AotgradNotImplementedError(f"{user_loc()}: nextafter: compiled code knows numbers, not bits; call it outside and pass the result as an argument")
    a, b = _pair(stop_gradient(input), stop_gradient(other))
    if a._dtype.name not in ("float64", "float32", "float16"):
        raise AotgradDTypeError(f"{user_loc()}: nextafter: float64, float32 or float16 is needed, not {a._dtype.name}")
    return factories.finish(np.nextafter(a._data, b._data), False)


# ---- writes at places -------------------------------------------------------------------------------------------------------------------

def index_put(input: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    """``input`` with ``values`` at the places that ``indices`` (a tensor for each of the first dims) name; ``accumulate``: added, as often as a place is named."""
    if not isinstance(indices, (tuple, list)):
        raise AotgradTypeError(f"{user_loc()}: index_put: indices must be a tuple of tensors, not {type(indices).__name__}; write (index,)")
    at = tuple([slice(None) if i is None else i for i in indices])
    if accumulate:
        return input.at[at].add(values)
    out = f.clone(input)
    indexing.setitem(out, at, values)
    return out


def put(input: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    """``input`` with ``source`` at the places ``index`` of its elements in order, whatever its shape; ``accumulate``: added."""
    flat = index_put(f.reshape(input, (-1,)), (f.reshape(index, (-1,)),), f.reshape(source, (-1,)), accumulate)
    return f.reshape(flat, tuple(input.shape))


def masked_scatter(input: Any, mask: Any, source: Any) -> Any:
    """``input`` with the elements of ``source``, in order, where ``mask`` holds. Raises ``AotgradRuntimeError`` for too few of them.

    >>> import aotgrad as ag
    >>> ag.masked_scatter(ag.zeros(3), ag.tensor([True, False, True]), ag.tensor([5.0, 6.0]))
    tensor([5., 0., 6.])
    """
    if mask._dtype.kind != "b":
        raise AotgradRuntimeError(f"{user_loc()}: masked_scatter_ only supports boolean masks, but got mask with dtype {mask._dtype.name}")
    input, mask = broadcast_tensors(input, mask) if tuple(input.shape) != tuple(mask.shape) else (input, mask)
    if not _traced(mask, source) and int(decode(mask._data).sum()) > source.numel():
        raise AotgradRuntimeError(f"{user_loc()}: masked_scatter: expected self and source to have enough elements: the mask holds at {int(mask._data.sum())} places, "
                                  f"source has {source.numel()}")
    if not source.numel():
        return f.clone(input)
    place = f.clamp(f.sub(f.cumsum(f.astype(f.reshape(mask, (-1,)), "int64"), 0), 1), min=0)
    return f.where(mask, f.reshape(f.index_select(f.reshape(source, (-1,)), 0, place), tuple(mask.shape)), input)


def _written(part: Callable[[Any], Any], input: Any, src: Any, name: str) -> Any:
    out = f.clone(input)
    place = part(out)
    if tuple(place.shape) != tuple(src.shape):
        raise AotgradRuntimeError(f"{user_loc()}: {name}: expected src to have a size equal to the part of input that is written, {list(place.shape)}, and not "
                                  f"{list(src.shape)}")
    place.copy_(src)
    return out


def select_scatter(input: Any, src: Any, dim: int, index: int) -> Any:
    """``input`` with ``src`` in the place of ``input.select(dim, index)``."""
    return _written(lambda x: x.select(dim, index), input, src, "select_scatter")


def slice_scatter(input: Any, src: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    """``input`` with ``src`` in the place of its slice ``start:end:step`` along ``dim``."""
    return _written(lambda x: x[tuple([slice(None)] * norm_dim(dim, x.ndim) + [slice(start, end, step)])], input, src, "slice_scatter")


def diagonal_scatter(input: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """``input`` with ``src`` in the place of its diagonal."""
    return _written(lambda x: x.diagonal(offset, dim1, dim2), input, src, "diagonal_scatter")


def fill_diagonal_(self: Any, fill_value: Any, wrap: bool = False) -> Any:
    """``fill_value`` on the main diagonal, in place. ``wrap``: of a matrix with more rows than columns it begins again a row below its end.

    >>> import aotgrad as ag
    >>> ag.zeros(2, 2).fill_diagonal_(3)
    tensor([[3., 0.],
            [0., 3.]])
    """
    shape = tuple([int(n) for n in self.shape])
    if len(shape) < 2:
        raise AotgradRuntimeError(f"{user_loc()}: fill_diagonal_: dimensions must larger than 1, the tensor has {len(shape)}")
    if len(shape) > 2 and len(set(shape)) > 1:
        raise AotgradRuntimeError(f"{user_loc()}: fill_diagonal_: all dimensions of input must be of equal length, they are {list(shape)}")
    mask = np.zeros(shape, np.bool_)
    step = 1 + sum(math.prod(shape[i:]) for i in range(1, len(shape)))
    mask.reshape(-1)[:None if wrap or len(shape) > 2 else shape[1] ** 2:step] = True
    return self.masked_fill_(factories.as_tensor(mask), fill_value)


def polygamma(self: Any, n: int) -> Any:
    """``ag.polygamma(n, x)``: the n-th derivative of digamma."""
    return f.polygamma(n, self)


# ---- the tables -------------------------------------------------------------------------------------------------------------------------

_BOTH: list[Any] = [cdist, copysign, corrcoef, cov, cumulative_trapezoid, diagonal_scatter, gcd, index_put, lcm, ldexp, masked_scatter, nextafter, put, select_scatter,
                    slice_scatter, vdot]
_ALONE = ("cdist", "cumulative_trapezoid")
RARER: dict[str, Callable[..., Any]] = {g.__name__: g for g in _BOTH}
"""Functions of the namespace, by name."""


def _in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return inplace.update(self, function(self, *args, **kwargs), f"{function.__name__}_")

    method.__name__ = method.__qualname__ = f"{function.__name__}_"
    method.__doc__ = f"``{function.__name__}``, written into the tensor."
    return method


RARER_METHODS: dict[str, Callable[..., Any]] = {
    **{g.__name__: g for g in _BOTH if g.__name__ not in _ALONE}, "fill_diagonal_": fill_diagonal_, "polygamma": polygamma,
    **{f"{g.__name__}_": _in_place(g) for g in (copysign, gcd, index_put, lcm, ldexp, masked_scatter, nextafter, polygamma, put)},
}
"""Methods of tensors, by name."""
