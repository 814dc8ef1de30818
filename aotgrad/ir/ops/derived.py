"""Public functions made of the others: dot as NumPy has it, norm, gather and its kin, masked_fill, clone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from aotgrad_runtime.dtypes import bool_, float32, float64, int64
from aotgrad_runtime.errors import AotgradArgumentError, AotgradDimError, AotgradDTypeError, AotgradRangeError, AotgradValueError

from ..opdef import REQUIRED, Composite, Front, OpDef, Sample, register
from .common import at_least, empty_is_all, norm_dim, norm_dims
from .contract import _matmul_body, _matmul_canon, batched_product, no_bools
from .reduce import _nonempty

__all__: list[str] = []


def _x(*shape: int) -> Any:
    return np.random.default_rng(41).normal(size=shape)


def _derive(name: str, doc: str, operands: tuple[str, ...], body: Any, samples: Any, front: Front, attrs: Mapping[str, Any] | None = None,
            layouts: str = "row_major") -> None:
    register(OpDef(name, doc, operands, None, None, Composite(body), attrs=attrs or {}, samples=samples, front=front, layouts=layouts))


# ---- products ---------------------------------------------------------------------------------------------------------------------

def _np_dot(b: Any, x: Any, y: Any) -> Any:
    """NumPy's dot: the last dim of x against the last but one of y, no batching."""
    rx, ry = len(x.type.shape), len(y.type.shape)
    if rx == 0 or ry == 0:
        shape = x.type.shape if ry == 0 else y.type.shape
        return b.mul(b.expand(x, shape), b.expand(y, shape))
    if rx <= 2 and ry <= 2 or ry == 1:
        return _matmul_canon(b, x, y)
    x_lead, y_lead, cols = x.type.shape[:-1], y.type.shape[:-2], y.type.shape[-1]
    b.equate(x.type.shape[-1], y.type.shape[-2], "dot: the inner sizes")
    k = b.refresh(y).type.shape[-2]
    flat = b.to_shape(b.to_perm(y, (ry - 2, *range(ry - 2), ry - 1)), (k, _count((*y_lead, cols))))
    out = b.dot(b.to_shape(b.refresh(x), (_count(x_lead), k)), flat)
    return b.to_shape(out, (*x_lead, *y_lead, cols))


def _count(shape: Sequence[Any]) -> Any:
    total: Any = 1
    for d in shape:
        total = total * d
    return total


def _vector_dot(b: Any, x: Any, y: Any) -> Any:
    if (len(x.type.shape), len(y.type.shape)) != (1, 1):
        raise AotgradValueError(f"dot takes two vectors, not arrays of rank {len(x.type.shape)} and {len(y.type.shape)}; use matmul")
    no_bools(b, "dot", x)
    return _matmul_canon(b, x, y)


_derive("vector_dot", "Inner product of two vectors (as a NumPy function: NumPy's dot).", ("x", "y"), _matmul_body, lambda: (Sample((_x(4), _x(4) + 1.0), name="4"),),
        Front("dot(input, other)", _vector_dot, "product", ("dot",), "dot(input, other)", _np_dot))
def _inner(b: Any, x: Any, y: Any) -> Any:
    """The sum over the last dim of both; a number scales."""
    no_bools(b, "inner", x)
    rx, ry = len(x.type.shape), len(y.type.shape)
    if (rx, ry) == (1, 1):
        return batched_product(b, "inner", x, y)
    return _np_dot(b, x, y if not rx or ry < 2 else b.to_perm(y, (*range(ry - 2), ry - 1, ry - 2)))


_derive("inner", "The sum of products over the last dim of both; of two vectors, their inner product.", ("x", "y"), _matmul_body,
        lambda: (Sample((_x(4), _x(4) + 1.0), name="4"),), Front("inner(input, other)", _inner, "product", ("vdot",)))
_derive("t", "A matrix with rows and columns exchanged; vectors stay.", ("x",), lambda b, x: b.to_perm(x, tuple(reversed(range(len(x.type.shape))))),
        lambda: (Sample((_x(2, 3),), name="2x3"),), Front("t(input)", lambda b, x: _t(b, x), "none", inplace=True))


def _t(b: Any, x: Any) -> Any:
    if len(x.type.shape) > 2:
        raise AotgradValueError(f"t() expects a tensor with at most 2 dimensions, not {len(x.type.shape)}; use transpose or mT")
    return b.t(x)


# ---- norms ------------------------------------------------------------------------------------------------------------------------

def _norm_body(b: Any, x: Any, p: Any, dims: Any) -> Any:
    if x.type.dtype.itemsize == 2:  # squares of float16 have little room
        return b.to_dtype(_norm_body(b, b.to_dtype(x, float32), p, dims), x.type.dtype)
    size = b.abs(x)
    if p in (np.inf, -np.inf):
        return _most(b, size, dims, p)
    if p == 0:
        return b.sum(b.to_dtype(b.ne(x, b.full_like(x, 0)), x.type.dtype), dims=dims)
    if p == 1:
        return b.sum(size, dims=dims)
    return b.root_sum_powers(x, p=p, dims=dims)


def _most(b: Any, sizes: Any, dims: Sequence[int], p: float) -> Any:
    """The largest or smallest of what is not negative; the largest of nothing is 0."""
    best = b.emit("amax" if p > 0 else "amin", [sizes], {"dims": dims})[0]
    if p < 0 or all(isinstance(sizes.type.shape[d], int) and sizes.type.shape[d] for d in dims):
        return best
    zero = b.full_like(best, 0)
    return b.where(b.lt(best, zero), zero, best)


def _matrix_norm(b: Any, x: Any, p: Any, dims: Sequence[int]) -> Any:
    rows, cols = dims
    if p in (1, -1, np.inf, -np.inf):
        along, across = (rows, cols) if abs(p) == 1 else (cols, rows)
        sums = b.sum(b.abs(x), dims=(along,))
        last = (across - (across > along),)
        if p < 0:
            _nonempty(b, sums, last, "norm")
        return _most(b, sums, last, p)
    raise AotgradValueError(f"norm: order {p!r} of a matrix needs singular values, which are not available here; use 'fro', 1 or inf, or give a single dim")


def _norm_canon(b: Any, x: Any, p: Any = "fro", dim: Any = None, keepdim: bool = False, dtype: Any = None, np_rules: bool = False) -> Any:
    x = x if dtype is None else b.to_dtype(x, dtype)
    if x.type.dtype.kind not in "fc":
        if b.torch:
            raise AotgradDTypeError(f"norm: the input is {x.type.dtype.name}, a floating-point dtype is needed")
        x = b.to_dtype(x, float64)
    dims = norm_dims(dim, len(x.type.shape))
    given = tuple(norm_dim(d, len(x.type.shape)) for d in dim) if isinstance(dim, (tuple, list)) else dims
    if p in ("fro", None):
        out = b.norm(x, p=2, dims=dims)
    elif isinstance(p, str):
        raise AotgradValueError(f"norm: order {p!r} is not available; use 'fro' or a number")
    elif np_rules and len(dims) == 2 and (dim is None or isinstance(dim, (tuple, list))):
        out = _matrix_norm(b, x, p, given)
    else:
        if p == -np.inf or (b.torch and (p == np.inf or p < 0)):  # as NumPy and torch; NumPy's of the other orders are 0 or inf
            _nonempty(b, x, dims, "norm")
        out = b.norm(x, p=p, dims=dims)
    return b.to_shape(out, tuple(1 if d in dims else n for d, n in enumerate(x.type.shape))) if keepdim else out


_derive("norm", "(sum |x|**p) ** (1/p) over ``dim``; derivative 0 at its kink.", ("x",), _norm_body,
        lambda: (Sample((_x(3, 4),), {"p": p, "dims": d}, f"{p}{d}") for p, d in ((2, (0, 1)), (2, (1,)), (1, (0,)), (3, (0, 1)), (np.inf, (1,)))),
        Front("norm(input, p='fro', dim=None, keepdim=False, dtype=None)", empty_is_all(_norm_canon), "none", ("linalg.norm",),
              "norm(input, ord=None, dim=None, keepdim=False)",
              lambda b, x, ord=None, dim=None, keepdim=False: _norm_canon(b, x, ord, dim, keepdim, np_rules=True)), {"p": 2, "dims": REQUIRED})


# ---- gather and scatter along one dim -----------------------------------------------------------------------------------------------

def _along(b: Any, x: Any, index: Any, dim: int) -> tuple[list[Any], dict[str, Any]]:
    """``x[i0, i1, ..., index at dim, ...]`` with the places of ``index`` itself for the other dims: operands and attributes of getitem."""
    shape, rank = index.type.shape, len(x.type.shape)
    index = b.to_dtype(index, int64)
    places = [index if d == dim else b.iota(shape=shape, dim=d, dtype=int64) for d in range(rank)]
    sizes = tuple(x.type.shape)
    return places, {"starts": (0,) * rank, "sizes": sizes, "steps": (1,) * rank, "drop": (), "arrays": tuple(range(rank)), "at": 0, "shape": tuple(shape)}


def _check_index(name: str, x: Any, index: Any) -> None:
    if index.type.dtype.kind not in "iu":
        raise AotgradRangeError(f"{name}(): Expected dtype int32/int64 for index, not {index.type.dtype.name}")
    if len(index.type.shape) != len(x.type.shape):
        raise AotgradArgumentError(f"{name}: index and input must have the same number of dimensions, not {len(index.type.shape)} and {len(x.type.shape)}")


def _gather_body(b: Any, x: Any, index: Any, dim: int) -> Any:
    places, attrs = _along(b, x, index, dim)
    return b.emit("getitem", [x, *places], attrs)[0]


def _gather_canon(b: Any, x: Any, dim: int, index: Any) -> Any:
    _check_index("gather", x, index)
    return b.gather(x, index, dim=norm_dim(dim, len(x.type.shape)))


def _take_along(b: Any, x: Any, index: Any, dim: Any = -1) -> Any:
    if dim is None:
        x, dim = b.to_shape(x, (x.type.size,)), 0
    _check_index("take_along_dim", x, index)
    d = norm_dim(dim, len(x.type.shape))
    lead = tuple(n if i == d else b.join(n, m) for i, (n, m) in enumerate(zip(index.type.shape, x.type.shape)))
    x = b.expand(x, tuple(x.type.shape[i] if i == d else n for i, n in enumerate(lead)))
    return b.gather(x, b.expand(index, lead), dim=d)


def _scatter_along(mode: str) -> Any:
    def body(b: Any, x: Any, index: Any, v: Any, dim: int) -> Any:
        places, attrs = _along(b, x, index, dim)
        return b.emit("setitem", [x, v, *places], {**attrs, "mode": mode})[0]

    return body


def _of_one_dtype(b: Any, name: str, x: Any, source: Any) -> Any:
    """What is written, of the dtype of what it is written into; a number has none of its own."""
    if b.torch and source.type.shape and source.type.dtype is not x.type.dtype:
        raise AotgradDTypeError(f"{name}: Expected self.dtype to be equal to src.dtype, {x.type.dtype.name} and not {source.type.dtype.name}; convert the source first "
                                f"(src.to(ag.{x.type.dtype.name}))")
    return b.to_dtype(source, x.type.dtype)


def _scatter_canon(op: str) -> Any:
    def canon(b: Any, x: Any, dim: int, index: Any, src: Any) -> Any:
        _check_index(op, x, index)
        src = _of_one_dtype(b, "scatter()", x, src)
        shape = index.type.shape
        if len(src.type.shape) == 0 or tuple(src.type.shape) == tuple(shape):
            src = b.expand(src, shape)
        else:  # torch reads the leading part of a larger src
            for i, (have, need) in enumerate(zip(src.type.shape, shape)):
                at_least(b, have, need, f"{op}: dim {i} of src is smaller than that of index")
            src = b.slice(src, starts=(0,) * len(shape), sizes=tuple(shape), steps=(1,) * len(shape))
        return b.emit(op, [x, index, src], {"dim": norm_dim(dim, len(x.type.shape))})[0]

    return canon


def _gather_samples() -> Iterable[Sample]:
    index = np.array([[0, 2, 1, 0], [1, 1, 0, 2]])
    yield Sample((_x(3, 4), index), {"dim": 0}, "0")
    yield Sample((_x(2, 5), index), {"dim": 1}, "1")


def _scatter_samples() -> Iterable[Sample]:
    for s in _gather_samples():
        yield Sample((*s.operands, np.random.default_rng(5).normal(size=(2, 4))), s.attrs, s.name)


_derive("gather", "Elements of x at ``index`` along ``dim``, the other places as in ``index``.", ("x", "index"), _gather_body, _gather_samples,
        Front("gather(input, dim, index)", _gather_canon, "none", tensors=("input", "index")), {"dim": 0})
_derive("take_along_dim", "``gather`` with broadcasting.", ("x", "index"), _gather_body, _gather_samples,
        Front("take_along_dim(input, indices, dim=None)", _take_along, "none", ("take_along_axis",), "take_along_axis(input, indices, dim=-1)",
        tensors=("input", "indices")), {"dim": 0})
for _name, _op, _mode in (("scatter", "scatter_along", "set"), ("scatter_add", "scatter_add_along", "add")):
    _derive(_op, f"x with src {'written' if _mode == 'set' else 'added'} at ``index`` along ``dim``.", ("x", "index", "src"), _scatter_along(_mode), _scatter_samples,
            Front(f"{_name}(input, dim, index, src)", _scatter_canon(_op), "none", tensors=("input", "index", "src"), inplace=True), {"dim": 0})


def _rows(name: str, x: Any, index: Any) -> None:
    if index.type.dtype.kind not in "iu":
        raise AotgradRangeError(f"{name}(): Expected dtype int32/int64 for index, not {index.type.dtype.name}")


def _select_attrs(x: Any, index: Any, d: int) -> dict[str, Any]:
    rank, shape = len(x.type.shape), tuple(x.type.shape)
    return {"starts": (0,) * rank, "sizes": shape, "steps": (1,) * rank, "drop": (), "arrays": (d,), "at": d, "shape": (*shape[:d], *index.type.shape, *shape[d + 1:])}


def _index_select(b: Any, x: Any, dim: int, index: Any) -> Any:
    _rows("index_select", x, index)
    if not x.type.shape:
        raise AotgradValueError("index_select: the input is 0-d; it needs a dimension to select along")
    if len(index.type.shape) > 1:
        raise AotgradDimError(f"index_select(): Index is supposed to be a vector, but it has {len(index.type.shape)} dims; index with x[index] for more")
    index = index if index.type.shape else b.to_shape(index, (1,))
    return b.index_select(x, b.to_dtype(index, int64), dim=norm_dim(dim, len(x.type.shape)))


def _np_take(b: Any, x: Any, index: Any, dim: Any = None) -> Any:
    _rows("take", x, index)
    if dim is None:
        x, dim = b.to_shape(x, (x.type.size,)), 0
    return b.index_select(x, b.to_dtype(index, int64), dim=norm_dim(dim, len(x.type.shape)))


def _index_add(b: Any, x: Any, dim: int, index: Any, source: Any, alpha: Any = 1) -> Any:
    _rows("index_add", x, index)
    v, d = _of_one_dtype(b, "index_add()", x, source), norm_dim(dim, len(x.type.shape))
    if len(v.type.shape) != len(x.type.shape) or len(index.type.shape) != 1:
        raise AotgradValueError(f"index_add: a source of rank {len(x.type.shape)} and an index of rank 1 are needed, not {len(v.type.shape)} and {len(index.type.shape)}")
    for i, (have, want) in enumerate(zip(v.type.shape, x.type.shape)):
        b.equate(have, index.type.shape[0] if i == d else want, f"index_add: dim {i} of the source")
    x, index, v = (b.refresh(y) for y in (x, index, v))
    return b.index_add(x, b.to_dtype(index, int64), v if alpha == 1 else b.mul(v, b.full_like(v, alpha)), dim=norm_dim(dim, len(x.type.shape)))


def _row_samples() -> Iterable[Sample]:
    yield Sample((_x(3, 4), np.array([2, 0, 2])), {"dim": 0}, "0")
    yield Sample((_x(2, 4), np.array([3, -1, 0])), {"dim": 1}, "1")


_derive("index_select", "Slices of x along ``dim``, at the places of ``index``.", ("x", "index"),
        lambda b, x, index, dim: b.emit("getitem", [x, index], _select_attrs(x, index, dim))[0], _row_samples,
        Front("index_select(input, dim, index)", _index_select, "none", ("take",), "take(input, indices, dim=None)", _np_take, tensors=("input", "index", "indices")),
        {"dim": 0})
_derive("index_add", "x with slices of source added along ``dim``, at the places of ``index``.", ("x", "index", "source"),
        lambda b, x, index, v, dim: b.emit("setitem", [x, v, index], {**_select_attrs(x, index, dim), "mode": "add"})[0],
        lambda: (Sample((*s.operands, _x(*((3, 4) if s.attrs["dim"] == 0 else (2, 3)))), s.attrs, s.name) for s in _row_samples()),
        Front("index_add(input, dim, index, source, *, alpha=1)", _index_add, "none", tensors=("input", "index", "source"), inplace=True), {"dim": 0})


# ---- the rest -----------------------------------------------------------------------------------------------------------------------

def _masked_fill(b: Any, x: Any, mask: Any, value: Any) -> Any:
    if mask.type.dtype is not bool_:
        raise AotgradDTypeError(f"masked_fill only supports boolean masks, but got mask with dtype {mask.type.dtype.name}; compare it with 0 first")
    value = b.to_dtype(value, x.type.dtype)
    if len(value.type.shape):
        raise AotgradValueError("masked_fill: the value must be a number or a 0-d tensor; use where for more")
    shape = [1] * max(len(x.type.shape), len(mask.type.shape))
    for v in (x, mask):
        for i, d in enumerate(reversed(v.type.shape)):
            shape[-1 - i] = b.join(shape[-1 - i], d)
    full = tuple(b.trace.canonical(d) for d in shape)
    return b.masked_fill(b.expand(b.refresh(x), full), b.expand(b.refresh(mask), full), value)


_derive("masked_fill", "x with ``value`` where the mask holds.", ("x", "mask", "value"), lambda b, x, mask, v: b.where(mask, b.expand(v, x.type.shape), x),
        lambda: (Sample((_x(2, 3), _x(2, 3) > 0, np.float64(0.5)), name="2x3"),), Front("masked_fill(input, mask, value)", _masked_fill, "none", inplace=True))
_derive("clone", "A copy of x.", ("x",), lambda b, x: x, lambda: (Sample((_x(2, 3),), name="2x3"),),
        Front("clone(input, *, memory_format=None)", lambda b, x, memory_format=None: b.clone(x), "none", ("copy",), "copy(input)"), layouts="any")


def _repeat_body(b: Any, x: Any, repeats: int, dim: int) -> Any:
    shape = x.type.shape
    wide = (*shape[:dim + 1], repeats, *shape[dim + 1:])
    spread = b.broadcast(x, shape=wide, dims=tuple(i if i <= dim else i + 1 for i in range(len(shape))))
    return b.to_shape(spread, (*shape[:dim], shape[dim] * repeats, *shape[dim + 1:]))


def _repeat_canon(b: Any, x: Any, repeats: Any, dim: Any = None) -> Any:
    if not isinstance(repeats, (int, np.integer)):
        raise AotgradValueError("repeat: the number of repeats must be one integer; for different ones index with an integer array")
    if int(repeats) < 0:
        raise AotgradValueError(f"repeat: repeats={repeats} is negative")
    if dim is None or not x.type.shape and not b.torch:
        x, dim = b.to_shape(x, (x.type.size,)), 0 if dim is None else dim
    return b.repeat_interleave(x, repeats=int(repeats), dim=norm_dim(dim, len(x.type.shape)))


_derive("repeat_interleave", "Each element repeated along ``dim``.", ("x",), _repeat_body,
    lambda: (Sample((_x(2, 3),), {"repeats": 2, "dim": d}, str(d)) for d in (0, 1)),
        Front("repeat_interleave(input, repeats, dim=None)", _repeat_canon, "none", ("repeat",), "repeat(input, repeats, dim=None)"), {"repeats": REQUIRED, "dim": 0})
