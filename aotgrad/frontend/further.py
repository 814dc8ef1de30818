"""torch's functions that follow from others: what they are made of is differentiated, compiled and mapped, so these are too."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from aotgrad.ir.ops.common import norm_dim
from aotgrad_runtime.dtypes import DType, as_dtype, bool_
from aotgrad_runtime.errors import (
    AotgradArgumentError,
    AotgradDTypeError,
    AotgradIndexError,
    AotgradNotImplementedError,
    AotgradOverflowError,
    AotgradRangeError,
    AotgradRuntimeError,
    AotgradTypeError,
)
from aotgrad_runtime.tensor import ArrayTensor, Tensor

from . import factories, indexing, inplace
from .composed import composed
from .dispatch import TORCH, call
from .numpy_protocol import PUBLIC
from .promotion import Kind, promote, python_dtype
from .sizes import equal_sizes
from .trace import TracedArray, user_loc

__all__ = ["FURTHER", "FURTHER_METHODS", "beside", "f", "hardshrink", "prelu"]


class _Functions:
    """The registry's functions as attributes."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        public = TORCH[name]
        return lambda *args, **kwargs: call(public, args, kwargs)


f: Any = _Functions()


def _list(tensors: Sequence[Any]) -> list[Any]:
    """Tensors given one by one, or as one list."""
    return list(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else list(tensors)


# ---- dtypes ---------------------------------------------------------------------------------------------------------------------------

def _kind(x: Any) -> Kind:
    if isinstance(x, Tensor):
        return Kind(x._dtype, x._weak, x.ndim)
    if isinstance(x, (np.ndarray, np.generic)):
        return Kind(as_dtype(x.dtype), False, x.ndim)
    return Kind(python_dtype(x), True, 0)


def result_type(tensor1: Any, tensor2: Any) -> DType:
    """The dtype that an operation of the two gives; either may be a number.

    >>> import aotgrad as ag
    >>> ag.result_type(ag.tensor([1, 2], dtype=ag.int8), 2.5)
    aotgrad.float32
    """
    return promote([_kind(tensor1), _kind(tensor2)], True)


def can_cast(from_: Any, to: Any) -> bool:
    """Whether a result of dtype ``from_`` may be written into a tensor of dtype ``to``: not complex into real, floats into integers, numbers into bools.

    >>> import aotgrad as ag
    >>> ag.can_cast(ag.float64, ag.float16), ag.can_cast(ag.float32, ag.int64)
    (True, False)
    """
    have, want = as_dtype(from_), as_dtype(to)
    return not (have.kind == "c" and want.kind != "c" or have.kind == "f" and want.kind in "iub" or have is not bool_ and want is bool_)


# ---- shapes ---------------------------------------------------------------------------------------------------------------------------

def broadcast_shapes(*shapes: Any) -> Any:
    """The shape that shapes broadcast to."""
    rows = [(s,) if isinstance(s, int) else tuple(s) for s in shapes]
    rank = max((len(r) for r in rows), default=0)
    out = [1] * rank
    for row in rows:
        for i, n in enumerate(row, rank - len(row)):
            if n != 1 and out[i] not in (1, n):
                raise AotgradArgumentError(f"Shape mismatch: objects cannot be broadcast to a single shape: {', '.join(map(str, rows))}")
            out[i] = n if out[i] == 1 else out[i]
    return type(factories.zeros(0).shape)(out)


def broadcast_tensors(*tensors: Any) -> tuple[Any, ...]:
    """Tensors as views of the shape they broadcast to; themselves where they have it.

    >>> import aotgrad as ag
    >>> [x.shape for x in ag.broadcast_tensors(ag.ones(2, 1), ag.ones(3))]
    [aotgrad.Size([2, 3]), aotgrad.Size([2, 3])]
    """
    given = _list(tensors)
    shape = tuple(broadcast_shapes(*(tuple(x.shape) for x in given)))
    return tuple([x if tuple(x.shape) == shape else f.expand(x, shape) for x in given])


def tensor_split(input: Any, indices_or_sections: Any, dim: int = 0) -> tuple[Any, ...]:
    """Parts along ``dim``: as many as a number says, sizes differing by at most one, or between the places in a list.

    >>> import aotgrad as ag
    >>> ag.tensor_split(ag.arange(5), 2)
    (tensor([0, 1, 2]), tensor([3, 4]))
    """
    if isinstance(indices_or_sections, Tensor):
        indices_or_sections = indices_or_sections.tolist()
    d = norm_dim(dim, len(input.shape))
    if not input.shape:
        raise AotgradRuntimeError(f"{user_loc()}: tensor_split expected at least a 1-dimensional tensor, but got a tensor with 0 dims")
    if isinstance(indices_or_sections, int):
        n, total = indices_or_sections, int(input.shape[d])
        if n < 1:
            raise AotgradRuntimeError(f"{user_loc()}: number of sections must be larger than 0, got {n}")
        if n >= 1 << 63:
            raise AotgradOverflowError(f"{user_loc()}: tensor_split: {n} sections do not fit in 64 bits")
        indices_or_sections = [i * (total // n) + min(i, total % n) for i in range(1, n)]
    places = [*indices_or_sections, None]
    return tuple([indexing.getitem(input, (*[slice(None)] * d, slice(a, b))) for a, b in zip([0, *places], places)])


def _split_along(name: str, dim: int, least: int) -> Callable[..., Any]:
    def split(input: Any, indices_or_sections: Any) -> tuple[Any, ...]:
        rank = len(input.shape)
        if rank < least:
            raise AotgradRuntimeError(f"{user_loc()}: {name} requires a tensor with at least {least} dimensions, but got one with {rank}")
        d = dim if rank > 1 else 0
        if isinstance(indices_or_sections, int) and (indices_or_sections < 1 or input.shape[d] % indices_or_sections):
            raise AotgradRuntimeError(f"{user_loc()}: {name} attempted to split along dimension {d}, but the size of the dimension {input.shape[d]} is not divisible by "
                                      f"the split_size {indices_or_sections}!")
        return tensor_split(input, indices_or_sections, d)

    split.__name__ = split.__qualname__ = name
    split.__doc__ = f"``tensor_split`` along dim {dim}{' (of vectors, dim 0)' if name == 'hsplit' else ''}, in equal parts where a number says how many."
    return split


def split_with_sizes(input: Any, split_sizes: Sequence[int], dim: int = 0) -> Any:
    """Parts of the given sizes along ``dim``."""
    return f.split(input, list(split_sizes), dim)


def _at_least(rank: int) -> Callable[..., Any]:
    def fit(x: Any) -> Any:
        n = tuple(x.shape)
        if len(n) >= rank:
            return x
        return f.reshape(x, (1, *n, 1) if rank == 3 and len(n) == 1 else (*n, 1) if rank == 3 and len(n) == 2 else (*[1] * (rank - len(n)), *n))

    def atleast(*tensors: Any) -> Any:
        if len(tensors) == 1 and not isinstance(tensors[0], (list, tuple)):
            return fit(tensors[0])
        return tuple([fit(x) for x in _list(tensors)])

    atleast.__name__ = atleast.__qualname__ = f"atleast_{rank}d"
    atleast.__doc__ = f"Tensors with at least {rank} dim{'s' * (rank > 1)}: sizes of 1 are added."
    return atleast


def fliplr(input: Any) -> Any:
    """Columns in reverse order."""
    if len(input.shape) < 2:
        raise AotgradRuntimeError(f"{user_loc()}: Input must be >= 2-d.")
    return f.flip(input, (1,))


def flipud(input: Any) -> Any:
    """Rows in reverse order."""
    if not input.shape:
        raise AotgradRuntimeError(f"{user_loc()}: Input must be >= 1-d.")
    return f.flip(input, (0,))


def rot90(input: Any, k: int = 1, dims: Sequence[int] = (0, 1)) -> Any:
    """Turned by ``k`` quarters of a turn in the plane of two dims."""
    if len(dims) != 2 or len(input.shape) < 2:
        raise AotgradRuntimeError(f"{user_loc()}: expected total rotation dims == 2 of a tensor with at least 2, but got dims = {len(dims)} and {len(input.shape)}")
    i, j = (norm_dim(d, len(input.shape)) for d in dims)
    if i == j:
        raise AotgradRuntimeError(f"{user_loc()}: expected rotation dims to be different, but got dim0 = {dims[0]} and dim1 = {dims[1]}")
    k %= 4
    if k == 0:
        return f.clone(input)
    if k == 2:
        return f.flip(input, (i, j))
    turned = f.flip(input, (j if k == 1 else i,))
    return f.clone(f.transpose(turned, i, j))


def diagflat(input: Any, offset: int = 0) -> Any:
    """The matrix with the elements of ``input`` on a diagonal."""
    return f.diag_embed(f.reshape(input, (-1,)), offset)


def block_diag(*tensors: Any) -> Any:
    """The matrix with matrices along its diagonal, 0 elsewhere."""
    parts = [f.reshape(x, (1, -1)) if len(x.shape) < 2 else x for x in _list(tensors)]
    width, at, rows = sum(int(x.shape[1]) for x in parts), 0, []
    for x in parts:
        n = int(x.shape[1])
        rows.append(f.pad(x, (at, width - at - n)))
        at += n
    return f.cat(rows)


def cartesian_prod(*tensors: Any) -> Any:
    """All combinations of one element of each vector, a row each."""
    given = _list(tensors)
    if len(given) == 1:
        return given[0]
    return f.stack([f.reshape(x, (-1,)) for x in PUBLIC["meshgrid"](*given)], -1)


def beside(numbers: Any, x: Any) -> Any:
    """Numbers found of ``x``: an array beside what is NumPy's, which a tensor would make one of torch's; else a tensor."""
    return numbers if isinstance(x, (ArrayTensor, TracedArray)) else factories.finish(numbers, False)


def combinations(input: Any, r: int = 2, with_replacement: bool = False) -> Any:
    """All choices of ``r`` elements of a vector, in order, a row each."""
    if len(input.shape) != 1:
        raise AotgradRuntimeError(f"{user_loc()}: Expect a 1D vector, but got shape {list(input.shape)}")
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = np.array(list(choose(range(int(input.shape[0])), r)), np.int64).reshape(-1, r)
    return indexing.getitem(input, beside(rows, input))


def unfold(input: Any, dimension: int, size: int, step: int) -> Any:
    """Windows of ``size`` elements along a dim, ``step`` apart, as a last dim: a copy."""
    d = norm_dim(dimension, len(input.shape))
    n = int(input.shape[d])
    if size > n or size < 0 or step <= 0:
        raise AotgradRuntimeError(f"{user_loc()}: unfold: maximum size for tensor at dimension {d} is {n} but size is {size}, step is {step}")
    places = np.arange(0, n - size + 1, step)[:, None] + np.arange(size)
    taken = f.index_select(input, d, beside(places.reshape(-1), input))
    return f.movedim(f.unflatten(taken, d, places.shape), d + 1, -1)


# ---- sums and products ------------------------------------------------------------------------------------------------------------------

def _added(name: str, x: Any, product: Any, beta: Any, alpha: Any) -> Any:
    product = product if alpha == 1 else f.mul(product, alpha)
    if beta == 0:
        return product
    out = f.add(x if beta == 1 else f.mul(x, beta), product)
    if tuple(out.shape) != tuple(product.shape):
        raise AotgradRuntimeError(f"{user_loc()}: {name}: the tensor added, {list(x.shape)}, does not broadcast to the product, {list(product.shape)}")
    return out


def addmv(input: Any, mat: Any, vec: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """``beta * input + alpha * (mat @ vec)``, of a matrix and a vector."""
    return _added("addmv", input, f.mv(mat, vec), beta, alpha)


def addr(input: Any, vec1: Any, vec2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """``beta * input + alpha * outer(vec1, vec2)``."""
    return _added("addr", input, f.outer(vec1, vec2), beta, alpha)


def addbmm(input: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """``beta * input + alpha * (batch1 @ batch2).sum(0)``."""
    return _added("addbmm", input, f.sum(f.bmm(batch1, batch2), 0), beta, alpha)


def tensordot(a: Any, b: Any, dims: Any = 2) -> Any:
    """Products of ``a`` and ``b`` summed over the last ``dims`` dims of ``a`` and the first of ``b``, or over two lists of dims."""
    if isinstance(dims, Tensor):
        dims = dims.tolist()
    ra, rb = len(a.shape), len(b.shape)
    left, right = (list(range(ra - dims, ra)), list(range(dims))) if isinstance(dims, int) else ([norm_dim(d, r) for d in row] for row, r in zip(dims, (ra, rb)))
    if len(left) != len(right):
        raise AotgradRuntimeError(f"{user_loc()}: tensordot: both dimension lists should have the same length, not {len(left)} and {len(right)}")
    rows, cols = [d for d in range(ra) if d not in left], [d for d in range(rb) if d not in right]
    for i, j in zip(left, right):
        if not equal_sizes(a.shape[i], b.shape[j]):
            raise AotgradRuntimeError(f"{user_loc()}: tensordot: contracted dimensions need to match, but first has size {a.shape[i]} in dim {i} and second has size "
                                      f"{b.shape[j]} in dim {j}")
    inner = prod(a.shape[d] for d in left)
    x = f.reshape(f.permute(a, [*rows, *left]), (prod(a.shape[d] for d in rows), inner))
    y = f.reshape(f.permute(b, [*right, *cols]), (inner, prod(b.shape[d] for d in cols)))
    return f.reshape(f.mm(x, y), (*[a.shape[d] for d in rows], *[b.shape[d] for d in cols]))


def dist(input: Any, other: Any, p: Any = 2) -> Any:
    """The ``p`` norm of ``input - other``."""
    return f.norm(f.sub(input, other), p)


def trapezoid(y: Any, x: Any = None, *, dx: Any = 1, dim: int = -1) -> Any:
    """The integral along ``dim`` by trapezoids, between places ``x`` or ``dx`` apart."""
    d = norm_dim(dim, len(y.shape))
    ahead, behind = (indexing.getitem(y, (*[slice(None)] * d, s)) for s in (slice(1, None), slice(None, -1)))
    if x is not None:
        dx = PUBLIC["diff"](x, 1, -1 if len(x.shape) == 1 else dim)
        if len(x.shape) == 1:
            dx = f.reshape(dx, (-1, *[1] * (len(y.shape) - d - 1)))
    return f.sum(f.div(f.mul(f.add(ahead, behind), dx), 2), d)


def trapz(y: Any, x: Any = None, *, dx: Any = 1, dim: int = -1) -> Any:
    """``trapezoid``."""
    return trapezoid(y, x, dx=dx, dim=dim)


def row_stack(tensors: Sequence[Any]) -> Any:
    """On top of each other (``vstack``)."""
    return PUBLIC["vstack"](tensors)


def _with_mean(name: str) -> Callable[..., Any]:
    def pair(input: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None) -> tuple[Any, Any]:
        return call(TORCH[name], (input, dim, unbiased, keepdim), {"correction": correction}), f.mean(input, dim, keepdim)

    def respelt(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        return pair(*TORCH[name].respell(args), **kwargs)  # type: ignore[misc]

    functools.update_wrapper(respelt, pair)
    respelt.__name__ = respelt.__qualname__ = f"{name}_mean"
    respelt.__doc__ = f"``{name}`` and ``mean`` over ``dim``."
    return respelt


def _without_nan(name: str) -> Callable[..., Any]:
    def reduce(input: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        x = input if dtype is None else f.astype(input, dtype)
        missing = f.isnan(x)
        total = f.sum(f.where(missing, 0, x), dim, keepdim)
        return total if name == "nansum" else f.div(total, f.sum(f.logical_not(missing), dim, keepdim))

    reduce.__name__ = reduce.__qualname__ = name
    reduce.__doc__ = f"The {name[3:]} of what is no NaN, over ``dim``."
    return reduce


# ---- elementwise ------------------------------------------------------------------------------------------------------------------------

def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Any:
    """Of each element, whether it is among ``test_elements`` (with ``invert``: whether it is not). Either may be a number.

    >>> import aotgrad as ag
    >>> ag.isin(ag.tensor([1, 2, 3]), ag.tensor([2, 5]))
    tensor([False,  True, False])
    """
    given = [x if isinstance(x, Tensor) else factories.tensor(x) for x in (elements, test_elements)]
    if not isinstance(elements, Tensor) and not isinstance(test_elements, Tensor):
        raise AotgradTypeError(f"{user_loc()}: isin: one of elements and test_elements must be a tensor")
    found = f.any(f.eq(f.unsqueeze(given[0], -1), f.reshape(given[1], (-1,))), -1)
    return f.logical_not(found) if invert else found


def float_power(input: Any, exponent: Any) -> Any:
    """``input ** exponent``, in float64."""
    return f.pow(*(f.astype(x, "float64") if isinstance(x, (Tensor, np.ndarray)) else float(x) for x in (input, exponent)))


def logit(input: Any, eps: float | None = None) -> Any:
    """``log(x / (1 - x))``, of x limited to [eps, 1 - eps] where ``eps`` is given."""
    x = input if eps is None else f.clamp(input, eps, 1 - eps)
    return f.log(f.div(x, f.sub(1, x)))


def isposinf(input: Any) -> Any:
    """Whether x is inf."""
    return f.eq(input, float("inf"))


def isneginf(input: Any) -> Any:
    """Whether x is -inf."""
    return f.eq(input, float("-inf"))


def signbit(input: Any) -> Any:
    """Whether x is negative, or -0."""
    if input._dtype.kind != "f":
        return f.lt(input, 0)
    return f.lt(f.where(f.eq(input, 0), f.reciprocal(input), input), 0)


def fill(input: Any, value: Any) -> Any:
    """A tensor like ``input`` with ``value`` everywhere."""
    return f.where(f.eq(input, input), value, value) if isinstance(value, Tensor) else factories.full_like(input, value)


@composed("HardshrinkBackward0", floats=True)
def hardshrink(input: Any, lambd: float = 0.5) -> Any:
    """x where its absolute value is above ``lambd``, else 0."""
    return f.where(f.gt(f.abs(input), lambd), input, 0.0)


def prelu(input: Any, weight: Any) -> Any:
    """``leaky_relu`` with the slopes in ``weight``: one number, or one per channel (dim 1). Tensors are floats of one dtype, other ones raise ``RuntimeError``."""
    if isinstance(input, Tensor) and isinstance(weight, Tensor) and not isinstance(input, ArrayTensor):
        if input._dtype is not weight._dtype:
            raise AotgradDTypeError(f"{user_loc()}: prelu: Type promoting not supported. Got {input._dtype.name} and {weight._dtype.name}; convert one with .to()")
        if not input._dtype.is_differentiable:
            raise AotgradNotImplementedError(f"{user_loc()}: prelu: not implemented for {input._dtype.name} tensors; convert them first (x.float())")
    if len(weight.shape) and weight.shape[0] != 1:
        if len(input.shape) < 2 or input.shape[1] != weight.shape[0]:
            raise AotgradArgumentError(f"prelu: {weight.shape[0]} slopes in weight do not fit an input of shape {list(input.shape)}; give one, or one per channel")
        weight = f.reshape(weight, (-1, *[1] * (len(input.shape) - 2)))
    elif len(input.shape) == 0:
        weight = f.reshape(weight, ())
    elif len(input.shape) > 1:
        weight = f.reshape(weight, (1,) * len(input.shape))
    return _prelu(input, weight)


@composed("PreluKernelBackward0", "input", "weight")
def _prelu(input: Any, weight: Any) -> Any:
    return f.where(f.gt(input, 0), input, f.mul(input, weight))


# ---- places -----------------------------------------------------------------------------------------------------------------------------

def _places(name: str, below: bool) -> Callable[..., Any]:
    @factories.on_cpu
    def indices(row: int, col: int, offset: int = 0, *, dtype: Any = "int64") -> Any:
        rows, cols = (np.tril_indices if below else np.triu_indices)(factories.whole(row, name), offset, factories.whole(col, name))
        return factories.tensor(np.stack([rows, cols]).astype(as_dtype(dtype).np))

    indices.__name__ = indices.__qualname__ = name
    indices.__doc__ = f"Rows and columns of the {'lower' if below else 'upper'} triangle of a ``row`` by ``col`` matrix, from the diagonal ``offset``: two rows."
    return indices


@factories.on_cpu
def logspace(start: Any, end: Any, steps: int, base: float = 10.0, *, dtype: Any = None, requires_grad: bool = False) -> Any:
    """``base`` to the power of ``steps`` numbers evenly from ``start`` to ``end``.

    >>> import aotgrad as ag
    >>> ag.logspace(0, 2, 3)
    tensor([  1.,  10., 100.])
    """
    out = f.astype(f.pow(float(base), factories.linspace(start, end, steps, dtype="float64")), factories.kind_of(dtype))
    return out.requires_grad_(True) if requires_grad else out


def index_fill(input: Any, dim: int, index: Any, value: Any) -> Any:
    """``input`` with ``value`` in the slices at the places of ``index`` along ``dim``."""
    if len(getattr(index, "shape", ())) > 1:
        raise AotgradRuntimeError(f"{user_loc()}: index_fill: index must be 1-d or 0-d, it has {len(index.shape)} dims")
    if len(getattr(value, "shape", ())):
        raise AotgradRuntimeError(f"{user_loc()}: index_fill: the value must be a number or a 0-d tensor, not of shape {list(value.shape)}; index_copy takes slices")
    return _with_slices(input, norm_dim(dim, len(input.shape)), index, value)


def _with_slices(input: Any, d: int, index: Any, value: Any) -> Any:
    if not len(input.shape):  # one place
        return f.reshape(_with_slices(f.reshape(input, (1,)), d, index, value), ())
    out = f.clone(input)
    indexing.setitem(out, (*[slice(None)] * d, index), value)
    return out


def index_copy(input: Any, dim: int, index: Any, source: Any) -> Any:
    """``input`` with the slices of ``source`` at the places of ``index`` along ``dim``."""
    for name, x in (("index", index), ("source", source)):
        if not hasattr(x, "shape"):
            raise AotgradTypeError(f"{user_loc()}: index_copy: {name} is a tensor, not {type(x).__name__}")
    d, own, given = norm_dim(dim, len(input.shape)), len(input.shape), len(source.shape)
    if len(index.shape) > 1:
        raise AotgradIndexError(f"{user_loc()}: index_copy: index must be 1-d or 0-d, it has {len(index.shape)} dims")
    if given and given != max(own, 1):
        raise AotgradIndexError(f"{user_loc()}: index_copy: source must have the {own} dims of input, it has {given}")
    if not equal_sizes(index.shape[0] if len(index.shape) else 1, source.shape[d] if given else 1):
        raise AotgradIndexError(f"{user_loc()}: index_copy: number of indices ({index.shape[0] if len(index.shape) else 1}) should be equal to the size of source "
                                f"along dim {d} ({source.shape[d] if given else 1})")
    if isinstance(input, Tensor) and not isinstance(input, ArrayTensor) and as_dtype(source.dtype) is not input._dtype:
        raise AotgradDTypeError(f"{user_loc()}: index_copy_(): self and source expected to have the same dtype, but got (self) {input._dtype.name} and (source) "
                                f"{as_dtype(source.dtype).name}; convert the source first (source.to(ag.{input._dtype.name}))")
    if not given and own > 1 or not all(i == d or equal_sizes(source.shape[i], input.shape[i]) for i in range(given)):
        raise AotgradRuntimeError(f"{user_loc()}: index_copy: slices of source, {list(source.shape)}, do not fit those of input, {list(input.shape)}, along dim {d}")
    return _with_slices(input, d, f.reshape(index, (-1,)), source)


def take(input: Any, index: Any) -> Any:
    """Elements of the flat ``input`` at the places of ``index``, in its shape."""
    if isinstance(index, Tensor) and index._dtype.kind not in "iu":
        raise AotgradRangeError(f"{user_loc()}: take(): Expected a long tensor for index, but got {index._dtype.name}; convert it first (index.long())")
    return indexing.getitem(f.reshape(input, (-1,)), index)


def argwhere(input: Any) -> Any:
    """Places of the elements that are not 0, a row each."""
    return input.nonzero()


def aminmax(input: Any, *, dim: int | None = None, keepdim: bool = False) -> tuple[Any, ...]:
    """``amin`` and ``amax``."""
    return tuple([call(TORCH[n], (input,) if dim is None else (input, dim), {"keepdim": keepdim}) for n in ("amin", "amax")])


@factories.on_cpu
def scalar_tensor(s: Any, *, dtype: Any = None, requires_grad: bool = False) -> Any:
    """A 0-d tensor of the default dtype."""
    return factories.tensor(s, dtype=factories.kind_of(dtype), requires_grad=requires_grad)


# ---- the tables -------------------------------------------------------------------------------------------------------------------------

_BOTH: list[Any] = [addbmm, addmv, addr, aminmax, argwhere, diagflat, dist, fliplr, flipud, float_power, index_copy, index_fill, isneginf, isposinf, logit, rot90,
         signbit, split_with_sizes, take, tensor_split, _split_along("hsplit", 1, 1), _split_along("vsplit", 0, 2), _split_along("dsplit", 2, 3), _without_nan("nansum"),
         _without_nan("nanmean")]
_ALONE: list[Any] = [block_diag, broadcast_shapes, broadcast_tensors, can_cast, cartesian_prod, combinations, fill, isin, logspace, result_type, scalar_tensor, tensordot,
          row_stack, trapezoid, trapz, _with_mean("std"), _with_mean("var"), _places("tril_indices", True), _places("triu_indices", False), *map(_at_least, (1, 2, 3))]
FURTHER: dict[str, Callable[..., Any]] = {g.__name__: g for g in (*_BOTH, *_ALONE)}
"""Functions of the namespace, by name."""


def _in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return inplace.update(self, function(self, *args, **kwargs), f"{function.__name__}_")

    functools.update_wrapper(method, function)
    method.__name__ = method.__qualname__ = f"{function.__name__}_"
    method.__doc__ = f"``{function.__name__}``, written into the tensor."
    return method


FURTHER_METHODS: dict[str, Callable[..., Any]] = {
    **{g.__name__: g for g in _BOTH}, "unfold": unfold, "prelu": prelu, "hardshrink": hardshrink,
    **{f"{g.__name__}_": _in_place(g) for g in (addbmm, addmv, addr, float_power, index_copy, index_fill, logit)},
}
"""Methods of tensors, by name."""
