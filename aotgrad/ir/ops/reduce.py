"""Reductions, scans along a dim, and the composites over them (mean, var, softmax, ...)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from aotgrad_runtime.dtypes import as_dtype, bool_, float32, int64, uint8
from aotgrad_runtime.errors import AotgradDTypeError, AotgradTypeError, AotgradValueError

from .. import dims as dimlib
from ..builder import Builder
from ..core import Block
from ..opdef import REQUIRED, Body, Composite, Front, Kernel, Linear, Linearize, OpDef, Reduce, Sample, Zero, register
from ..transforms.batch import spread
from ..transforms.rewrite import cone
from ..types import TensorType
from .common import drop_dims, empty_is_all, floats, norm_dim, norm_dims, unordered, zero_aware

Types = Sequence[TensorType]
Attrs = Mapping[str, Any]


def _x(*shape: int, seed: int = 4) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


# ---- public faces ---------------------------------------------------------------------------------------------------------------

class _Pair(NamedTuple):
    values: Any
    indices: Any


class Largest(_Pair):
    """What max along a dim returns."""

    __slots__ = ()
    _function = "max"

    def __repr__(self) -> str:
        return f"aotgrad.return_types.{self._function}(\nvalues={self.values!r},\nindices={self.indices!r})"


class Smallest(Largest):
    """What min along a dim returns."""

    __slots__ = ()
    _function = "min"


def _finish(b: Any, x: Any, out: Any, dims: Sequence[int], keepdim: bool) -> Any:
    if not keepdim:
        return out
    return b.to_shape(out, tuple(1 if d in dims else n for d, n in enumerate(x.type.shape)))


def _accumulator(b: Any, x: Any, dtype: Any) -> Any:
    """Sums of bools and integers are int64, as in NumPy and torch."""
    if dtype is not None:
        return b.to_dtype(x, as_dtype(dtype))
    return x if x.type.dtype.kind in "fc" else b.to_dtype(x, int64)


def _sum_like(name: str) -> Any:
    def canon(b: Any, x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
        x, dims = _accumulator(b, x, dtype), norm_dims(dim, len(x.type.shape))
        return _finish(b, x, b.emit(name, [x], {"dims": dims})[0], dims, keepdim)

    return canon


def _float_like(name: str) -> Any:
    def canon(b: Any, x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
        x, dims = floats(b, x, dtype, name), norm_dims(dim, len(x.type.shape))
        return _finish(b, x, b.emit(name, [x], {"dims": dims})[0], dims, keepdim)

    return canon


def _variance_like(name: str) -> Any:
    def canon(b: Any, x: Any, dim: Any = None, unbiased: Any = None, correction: Any = None, keepdim: bool = False) -> Any:
        x, dims = floats(b, x, None, name), norm_dims(dim, len(x.type.shape))
        if unbiased is not None and (not isinstance(unbiased, bool) or correction is not None):
            raise AotgradTypeError(f"{name}: unbiased={unbiased!r}: give True or False, or a number as correction=, not both")
        free = correction if correction is not None else 1 if unbiased is None else int(unbiased)
        return _finish(b, x, b.emit(name, [x], {"dims": dims, "correction": free})[0], dims, keepdim)

    return canon


def _variance_np(name: str) -> Any:
    def canon(b: Any, x: Any, dim: Any = None, dtype: Any = None, out: Any = None, correction: Any = 0, keepdim: bool = False) -> Any:
        return _variance_like(name)(b, x if dtype is None else b.to_dtype(x, as_dtype(dtype)), dim, None, correction, keepdim)

    return canon


def _pick(b: Any, x: Any, index: Any, dim: int) -> Any:
    """The element of x at ``index`` along ``dim``: the derivative goes there alone."""
    shape = x.type.shape
    at = b.eq(b.iota(shape=shape, dim=dim, dtype=int64), b.keep_dims(index, x, (dim,)))
    return b.sum(b.where(at, x, b.full_like(x, 0)), dims=(dim,))


def _nonempty(b: Any, x: Any, dims: Sequence[int], name: str) -> None:
    """The ops themselves give their identity over nothing (softmax needs that); the public functions have no value there."""
    for d in dims:
        if b.trace.example(x.type.shape[d]) == 0:
            raise AotgradValueError(f"{name} over the empty dim {d} of {x.type} has no value; give at least one element")
        b.trace.at_least(x.type.shape[d], 1)


def _extremum_front(arg: str, full: str, pair: str) -> Any:
    def canon(b: Any, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        _nonempty(b, x, norm_dims(dim, len(x.type.shape)), pair)
        if dim is not None and not x.type.shape:
            return canon(b, b.to_shape(x, (1,)), dim)
        if dim is None:
            return b.emit(full, [x], {"dims": tuple(range(len(x.type.shape)))})[0]
        d = norm_dim(dim, len(x.type.shape))
        index = b.emit(arg, [x], {"dim": d})[0]
        values = _pick(b, x, index, d) if x.type.dtype.kind == "f" else b.emit(full, [x], {"dims": (d,)})[0]
        return (Largest if pair == "max" else Smallest)(_finish(b, x, values, (d,), keepdim), _finish(b, x, index, (d,), keepdim))

    return canon


def _extremum_dims(full: str) -> Any:
    def canon(b: Any, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        dims = norm_dims(dim, len(x.type.shape))
        _nonempty(b, x, dims, full)
        return _finish(b, x, b.emit(full, [x], {"dims": dims})[0], dims, keepdim)

    return canon


def _arg_front(name: str, torch: bool) -> Any:
    def canon(b: Any, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if torch and b.torch and x.type.dtype is bool_:
            raise AotgradDTypeError(f"{name}(): does not support bool input; convert it first (x.to(ag.int64))")
        if not x.type.shape and (dim is not None or not b.torch):
            x = b.to_shape(x, (1,))
            return b.to_shape(canon(b, x, dim), ())
        _nonempty(b, x, norm_dims(dim, len(x.type.shape)), name)
        if dim is None:
            flat = b.to_shape(x, (x.type.size,))
            return _finish(b, x, b.emit(name, [flat], {"dim": 0})[0], tuple(range(len(x.type.shape))), keepdim)
        d = norm_dim(dim, len(x.type.shape))
        return _finish(b, x, b.emit(name, [x], {"dim": d})[0], (d,), keepdim)

    return canon


def _bool_front(name: str, torch: bool) -> Any:
    def canon(b: Any, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        dims = norm_dims(dim, len(x.type.shape))
        truth = x if x.type.dtype is bool_ else b.ne(x, b.full_like(x, 0))
        out = _finish(b, x, b.emit(name, [truth], {"dims": dims})[0], dims, keepdim)
        return b.to_dtype(out, uint8) if torch and b.torch and x.type.dtype is uint8 else out

    return canon


def _softmax_front(name: str) -> Any:
    def canon(b: Any, x: Any, dim: Any = -1, dtype: Any = None) -> Any:
        x = floats(b, x, dtype, name)
        d = norm_dim(dim, len(x.type.shape))
        return b.emit(name, [x], {"dim": d})[0] if x.type.shape else b.full_like(x, 1.0 if name == "softmax" else 0.0)

    return canon


def _running_front(name: str) -> Any:
    def canon(b: Any, x: Any, dim: Any = None, dtype: Any = None) -> Any:
        x = _accumulator(b, x, dtype)
        if dim is None:
            x, dim = b.to_shape(x, (x.type.size,)), 0
        return b.emit(name, [x], {"dim": norm_dim(dim, len(x.type.shape))})[0] if x.type.shape else x

    return canon


def _unbiased_second(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """torch's ``std(x, False)`` says whether to divide by n - 1."""
    return (args[0], None, args[1]) if len(args) == 2 and isinstance(args[1], bool) else args


def _variance_front(name: str) -> Front:
    return Front(f"{name}(input, dim=None, unbiased=None, keepdim=False, *, correction=None)", empty_is_all(_variance_like(name)), "none", (name,),
                 f"{name}(input, dim=None, dtype=None, out=None, correction=0, keepdim=False)", _variance_np(name), respell=_unbiased_second)


def _reduction_front(name: str, canon: Any, np_names: tuple[str, ...] = (), np_canon: Any = None, np_extra: str = "dtype=None, out=None, ") -> Front:
    extra = ", *, dtype=None" if "dtype" in np_extra else ""
    torch = canon if name in ("any", "all", "argmax", "argmin") else empty_is_all(canon)
    return Front(f"{name}(input, dim=None, keepdim=False{extra})", torch, "none", np_names or (name,),
                 f"{name}(input, dim=None, {np_extra}keepdim=False)", np_canon or canon)


def _reduce_rule(types: Types, a: Attrs) -> Types:
    return (drop_dims(types[0], a["dims"]),)


def _samples(empty: bool = True) -> Any:
    def make() -> Iterable[Sample]:
        for shape, dims in (((3, 4), (1,)), ((3, 4), (0,)), ((2, 3, 2), (0, 2)), ((5,), (0,)), ((2, 2), ()), ((), ()), ((3, 1), (1,))):
            yield Sample((_x(*shape),), {"dims": dims}, f"{shape}{dims}")
        if empty:
            yield Sample((_x(0, 3),), {"dims": (0,)}, "empty")

    return make


def wide(dtype: Any) -> Any:
    """The dtype in which elements of ``dtype`` are added and multiplied up: float16 in float32, rounded once."""
    return np.dtype(np.float32) if dtype == np.float16 else dtype


def _wide_ref(fn: Any) -> Any:
    def ref(x: Any, dims: Any) -> Any:
        with np.errstate(over="ignore"):  # of float16, where the result is rounded
            return np.asarray(fn(x, axis=dims, dtype=wide(x.dtype))).astype(x.dtype, copy=False)

    return ref


def _sum_transpose(b: Any, ct: Any, op: Any) -> dict[int, Any]:
    x, dims = op.operands[0], op.attrs["dims"]
    return {0: b.broadcast(ct, shape=x.shape, dims=tuple(d for d in range(len(x.shape)) if d not in dims))}


register(OpDef(
    "sum", "Sum over ``dim`` (pairwise in blocks).", ("x",), _reduce_rule, _wide_ref(np.sum),
    Linear(_sum_transpose), Reduce("add"),
    {"dims": REQUIRED}, _samples(), layouts="any", front=_reduction_front("sum", _sum_like("sum"))))


def _prod_linearize(b: Any, ins: Any, outs: Any, attrs: Any, active: Any) -> Any:
    # Partial i is the product of the others, from products before and after it: right with any number of zeros.
    x, dims = ins[0], attrs["dims"]
    rank = len(x.type.shape)
    rest = tuple(d for d in range(rank) if d not in dims)
    moved = b.to_perm(x, (*rest, *dims))
    count: Any = 1
    for d in dims:
        count = count * x.type.shape[d]
    flat = b.to_shape(moved, (*(x.type.shape[d] for d in rest), count))
    axis = len(rest)
    before, after = b.cumprod(flat, dim=axis, exclusive=True, reverse=False), b.cumprod(flat, dim=axis, exclusive=True, reverse=True)
    others = b.to_shape(b.mul(before, after), moved.type.shape)
    partial = b.to_perm(others, tuple(sorted(range(rank), key=lambda i: (*rest, *dims)[i])))
    return lambda lb, tangents: (lb.sum(lb.lmul(partial, tangents[0]), dims=dims),)


register(OpDef(
    "prod", "Product over ``dim``.", ("x",), _reduce_rule, _wide_ref(np.prod), Linearize(_prod_linearize), Reduce("mul"),
    {"dims": REQUIRED}, _samples(), layouts="row_major", front=_reduction_front("prod", _sum_like("prod"))))


def _extremum_linearize(b: Any, ins: Any, outs: Any, attrs: Any, active: Any) -> Any:
    x, dims = ins[0], attrs["dims"]
    hit = b.eq(x, b.keep_dims(outs[0], x, dims))
    hit = b.logical_or(hit, b.ne(x, x))  # a NaN is its own maximum
    share = b.to_dtype(hit, x.type.dtype)
    ties = b.sum(share, dims=dims)
    return lambda lb, tangents: (lb.lmul(b.div(b.full_like(ties, 1), ties), lb.sum(lb.lmul(share, tangents[0]), dims=dims)),)


def _bound(dtype: Any, sign: int) -> Any:
    """The identity of max (sign -1) and min (sign 1)."""
    if dtype.kind == "f":
        return sign * np.inf
    if dtype.kind == "b":
        return sign > 0
    return np.iinfo(dtype).min if sign < 0 else np.iinfo(dtype).max


def _extremum_ref(fn: Any, sign: int) -> Any:
    def ref(x: Any, dims: Any) -> Any:
        x = np.asarray(x)
        return zero_aware(np.asarray(fn(x, axis=dims, initial=_bound(x.dtype, sign))), lambda test: np.any(test(x), axis=dims), sign < 0)

    return ref


_fn: Any
for _name, _fn, _kind, _sign in (("amax", np.max, "max", -1), ("amin", np.min, "min", 1)):
    register(OpDef(
        _name, f"{_kind}imum over ``dim``, 0 above -0; NaN wins; ties share the derivative evenly; over nothing, the least (greatest) number.", ("x",), _reduce_rule,
        _extremum_ref(_fn, _sign),
        Linearize(_extremum_linearize), Reduce(_kind), {"dims": REQUIRED}, _samples(empty=False), layouts="row_major",
        front=_reduction_front(_name, _extremum_dims(_name), (_name, _kind), np_extra="out=None, ")))


def _bool_rule(types: Types, a: Attrs) -> Types:
    if types[0].dtype is not bool_:
        raise AotgradTypeError(f"any/all reduce bools, not {types[0].dtype.name}; compare with 0 first")
    return _reduce_rule(types, a)


for _name, _fn, _kind in (("any", np.any, "or"), ("all", np.all, "and")):
    register(OpDef(
        _name, f"Logical {_kind} over ``dim``.", ("x",), _bool_rule, lambda x, dims, fn=_fn: np.asarray(fn(x, axis=dims)), Zero(), Reduce(_kind), {"dims": REQUIRED},
        lambda: (Sample((_x(3, 4) > 0,), {"dims": d}, str(d)) for d in ((0,), (1,), (0, 1))), layouts="row_major", exact=True,
        front=_reduction_front(_name, _bool_front(_name, True), np_canon=_bool_front(_name, False), np_extra="out=None, ")))


def _along_batch(b: Any, op: Any, xs: Sequence[Any], on: Sequence[bool], size: Any) -> Any:
    """The batch rule of what runs along ``dim``."""
    return b.emit(op.name, [b.placed(spread(b, x, k, size), None) for x, k in zip(xs, on)], {**op.attrs, "dim": op.attrs["dim"] + 1})


def _arg_rule(types: Types, a: Attrs) -> Types:
    unordered(types[0])
    if types[0].shape[a["dim"]] == 0:
        raise AotgradValueError(f"argmax/argmin along the empty dim {a['dim']} of {types[0]} has no value")
    return (drop_dims(types[0], (a["dim"],), int64),)


for _name, _fn in (("argmax", np.argmax), ("argmin", np.argmin)):
    register(OpDef(
        _name, "Index of the first extremum along ``dim``; the first NaN wins.", ("x",), _arg_rule, lambda x, dim, fn=_fn: np.asarray(fn(x, axis=dim), np.int64), Zero(),
        Kernel("argreduce"), {"dim": REQUIRED}, lambda: (Sample((_x(3, 4),), {"dim": d}, str(d)) for d in (0, 1)), layouts="row_major", exact=True, batch=_along_batch,
        front=_reduction_front(_name, _arg_front(_name, True), np_canon=_arg_front(_name, False), np_extra="out=None, ")))


def _cumulate_rule(types: Types, a: Attrs) -> Types:
    return (types[0],)


def _cumulate_ref(fn: Any, unit: int) -> Any:
    def ref(x: Any, dim: int, exclusive: bool, reverse: bool) -> Any:
        y = np.flip(x, dim) if reverse else x
        with np.errstate(over="ignore"):
            out = fn(y, axis=dim, dtype=wide(x.dtype)).astype(x.dtype, copy=False)
        if exclusive:
            out = np.concatenate([np.full_like(np.take(x, [0] if x.shape[dim] else [], dim), unit), np.delete(out, -1, axis=dim)], axis=dim) if x.shape[dim] else out
        return np.ascontiguousarray(np.flip(out, dim) if reverse else out)

    return ref


def _cumulate_samples() -> Iterable[Sample]:
    for shape, dim, exclusive, reverse in (((3, 4), 1, False, False), ((3, 4), 0, True, False), ((4,), 0, True, True),
                                           ((2, 0), 1, False, False), ((1, 3), 0, False, True)):
        yield Sample((_x(*shape),), {"dim": dim, "exclusive": exclusive, "reverse": reverse}, f"{shape}{dim}{exclusive}{reverse}")


_CUMULATE = {"dim": REQUIRED, "exclusive": False, "reverse": False}
register(OpDef(
    "cumsum", "Running sum along ``dim``: the element itself is in it.", ("x",), _cumulate_rule,
    _cumulate_ref(np.cumsum, 0),
    Linear(lambda b, ct, op: {0: b.cumsum(ct, dim=op.attrs["dim"], exclusive=op.attrs["exclusive"], reverse=not op.attrs["reverse"])}), Kernel("cumulate"), _CUMULATE,
    _cumulate_samples, batch=_along_batch,
    front=Front("cumsum(input, dim=None, *, dtype=None)", _running_front("cumsum"), "none", ("cumsum",),
                "cumsum(input, dim=None, dtype=None, out=None)", inplace=True)))


def _cumprod_linearize(b: Any, ins: Any, outs: Any, attrs: Any, active: Any) -> Any:
    # Tangent of a running product p[i] = p[i-1] * x[i]: t[i] = t[i-1] * x[i] + p[i-1] * dx[i], a linear recurrence.
    x, dim, reverse = ins[0], attrs["dim"], attrs["reverse"]
    before = b.cumprod(x, dim=dim, exclusive=True, reverse=reverse)

    def linear(lb: Any, tangents: Any) -> Any:
        inclusive = lb.recurrence(x, lb.lmul(before, tangents[0]), dim=dim, reverse=reverse)
        if not attrs["exclusive"]:
            return (inclusive,)
        return (_shift(lb, inclusive, dim, reverse),)

    return linear


def _shift(b: Any, x: Any, dim: int, reverse: bool) -> Any:
    shape, n = x.type.shape, x.type.shape[dim]
    if n == 0:
        return x
    less = n - 1 if isinstance(n, int) else dimlib.maximum(n - 1, 0)
    sizes = tuple(less if d == dim else s for d, s in enumerate(shape))
    steps = (1,) * len(shape)
    part = b.slice(x, starts=tuple(1 if reverse and d == dim else 0 for d in range(len(shape))), sizes=sizes, steps=steps)
    return b.insert(b.zeros(x), part, starts=tuple(0 if reverse or d != dim else 1 for d in range(len(shape))), steps=steps)


def _recurrence_ref(a: Any, x: Any, dim: int, reverse: bool) -> Any:
    a2, out = np.moveaxis(a, dim, 0), np.moveaxis(np.array(x, wide(x.dtype)), dim, 0)
    order = range(len(out))
    last = None
    for i in (reversed(order) if reverse else order):
        if last is not None:
            out[i] += _zero_product(a2[i], out[last])
        last = i
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(np.moveaxis(out, 0, dim), x.dtype)


def _zero_product(x: Any, y: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.where((x == 0) | (y == 0), 0, x * y)


def _recurrence_transpose_x(b: Any, ct: Any, op: Any) -> dict[int, Any]:
    # The adjoint recurrence runs the other way with the coefficients shifted by one.
    a, dim, reverse = op.operands[0], op.attrs["dim"], op.attrs["reverse"]
    return {1: b.recurrence(_shift(b, a, dim, not reverse), ct, dim=dim, reverse=not reverse)}


def _recurrence_linearize(b: Any, ins: Any, outs: Any, attrs: Any, active: Any) -> Any:
    a, dim, reverse = ins[0], attrs["dim"], attrs["reverse"]
    before = _shift(b, outs[0], dim, reverse) if active[0] else None

    def linear(lb: Any, tangents: Any) -> Any:
        drive = None if tangents[0] is None else lb.lmul(before, tangents[0])
        if tangents[1] is not None:
            drive = tangents[1] if drive is None else lb.add(drive, tangents[1])
        return (lb.recurrence(a, drive, dim=dim, reverse=reverse),)

    return linear


def _recurrence_samples() -> Iterable[Sample]:
    for shape, dim, reverse in (((3, 4), 1, False), ((4, 2), 0, True), ((2, 0), 1, False), ((1,), 0, False)):
        yield Sample((_x(*shape), _x(*shape, seed=9)), {"dim": dim, "reverse": reverse}, f"{shape}{dim}{reverse}")


def _recurrence_rule(types: Types, a: Attrs) -> Types:
    if types[0] != types[1]:
        raise AotgradTypeError(f"recurrence: coefficients {types[0]} and drive {types[1]} differ")
    return (types[1],)


register(OpDef(
    "recurrence", "y[i] = a[i] * y[i-1] + x[i] along ``dim`` (zero annihilates in the product; the first step is x[0]).", ("a", "x"), _recurrence_rule, _recurrence_ref,
    Linearize(_recurrence_linearize, _recurrence_transpose_x), Kernel("recurrence"), {"dim": REQUIRED, "reverse": False}, _recurrence_samples,
    batch=_along_batch))
register(OpDef(
    "cumprod", "Running product along ``dim``: the element itself is in it.", ("x",), _cumulate_rule,
    _cumulate_ref(np.cumprod, 1),
    Linearize(_cumprod_linearize), Kernel("cumulate"), _CUMULATE, _cumulate_samples, batch=_along_batch,
    front=Front("cumprod(input, dim=None, *, dtype=None)", _running_front("cumprod"), "none", ("cumprod",),
                "cumprod(input, dim=None, dtype=None, out=None)", inplace=True)))


# ---- composites ---------------------------------------------------------------------------------------------------------------

def _mean_body(b: Any, x: Any, dims: Any) -> Any:
    total = b.sum(x, dims=dims)
    n = b.count([x.type.shape[d] for d in dims], x.type.dtype)
    return b.div(total, b.broadcast(n, shape=total.type.shape, dims=()) if total.type.shape else n)


def _var_body(b: Any, x: Any, dims: Any, correction: Any) -> Any:
    centred = b.sub(x, b.keep_dims(b.mean(x, dims=dims), x, dims))
    total = b.sum(b.mul(centred, centred), dims=dims)
    return b.div(total, _free(b, x, dims, correction, total))


def _free(b: Any, x: Any, dims: Any, correction: Any, like: Any, fn: Any = lambda v: v) -> Any:
    """``fn`` of the degrees of freedom, in the shape of the result."""
    n = b.count([x.type.shape[d] for d in dims], x.type.dtype)
    free = fn(b.maximum(b.sub(n, b.scalar(correction, x.type.dtype)), b.scalar(0, x.type.dtype)))
    return b.broadcast(free, shape=like.type.shape, dims=()) if like.type.shape else free


class _Range(NamedTuple):
    """Powers of 2 for sums of powers of a dtype: which sums are right, by what numbers are multiplied whose squares have no room, and which roots have reciprocals
    with room for derivatives."""

    large: int
    small: int
    down: int
    up: int
    wide: int
    far: int
    most: int


_RANGES = {4: _Range(120, -100, -80, 90, 40, 96, 122), 8: _Range(1000, -900, -600, 600, 400, 780, 1020)}
_TINY = 64  # elements up to which both ways are computed


def _power(b: Any, like: Any, exponent: int) -> Any:
    return b.full_like(like, 2.0 ** exponent)


def _root_body(b: Any, x: Any, p: float, dims: Any) -> Any:
    """The plain sum, and where one has no room, in a branch, that of numbers over the largest (for negative ``p`` the smallest)."""
    if isinstance(x.type.size, int) and x.type.size <= _TINY:
        return _root_of_squares(b, x, dims) if p == 2 else _root_where(b, x, _sum_of_powers(b, x, p, dims), p, dims)
    total = _sum_of_powers(b, x, p, dims)
    bad = _roomless(b, total)
    leaves, again = cone(x)
    then, other = (Block([total.type, *(v.type for v in leaves)]) for _ in range(2))
    inner = Builder(then, b.loc)
    then.outputs = [_root_where(inner, again(inner, then.args[1:]), then.args[0], p, dims)]
    other.outputs = [_root(Builder(other, b.loc), other.args[0], p)]
    return b.emit("cond", [b.any(bad, dims=tuple(range(len(bad.type.shape)))), total, *leaves], {}, (then, other))[0]


def _sum_of_powers(b: Any, x: Any, p: float, dims: Any) -> Any:
    if p == 2:
        return b.sum(b.mul(x, x), dims=dims)
    size = b.abs(x)
    return b.sum(b.pow(size, b.full_like(size, p)), dims=dims)


def _root(b: Any, total: Any, p: float) -> Any:
    return b.sqrt(total) if p == 2 else b.pow(total, b.full_like(total, 1.0 / p))


def _roomless(b: Any, total: Any) -> Any:
    room = _RANGES[total.type.dtype.itemsize]
    return b.logical_or(b.gt(total, _power(b, total, room.large)), b.lt(total, _power(b, total, room.small)))


def _root_where(b: Any, x: Any, total: Any, p: float, dims: Any) -> Any:
    most = b.emit("amax" if p > 0 else "amin", [b.abs(x)], {"dims": dims})[0]
    usable = b.logical_and(b.gt(most, b.full_like(most, 0)), b.lt(most, b.full_like(most, np.inf)))
    scale = b.where(usable, most, b.full_like(most, 1))
    scaled = _sum_of_powers(b, b.div(x, b.keep_dims(scale, x, dims)), p, dims)
    return b.where(_roomless(b, total), b.mul(_root(b, scaled, p), scale), _root(b, total, p))


def _root_of_squares(b: Any, x: Any, dims: Any) -> Any:
    """Without a branch: the sum of the squares, and those of the numbers made smaller and larger."""
    room = _RANGES[x.type.dtype.itemsize]
    total, down, up = (_sum_of_powers(b, v, 2, dims) for v in (x, b.mul(x, _power(b, x, room.down)), b.mul(x, _power(b, x, room.up))))
    large, small = b.gt(total, _power(b, total, room.large)), b.lt(total, _power(b, total, room.small))
    chosen = b.where(large, down, b.where(small, up, total))
    back = b.where(large, _power(b, total, -room.down), b.where(small, _power(b, total, -room.up), _power(b, total, 0)))
    return b.mul(b.sqrt(chosen), back)


def _root_ref(x: Any, p: float, dims: Any) -> Any:
    x = np.abs(x)
    top = np.max(x, axis=dims, keepdims=True, initial=0.0) if p > 0 else np.min(x, axis=dims, keepdims=True, initial=np.inf)
    scale = np.ldexp(np.ones_like(top), np.where(np.isfinite(top) & (top > 0), np.frexp(top)[1] - 1, 0))
    with np.errstate(all="ignore"):
        return np.asarray(np.sum((x / scale) ** p, axis=dims) ** (1 / p) * np.squeeze(scale, axis=dims), x.dtype)


def _root_linearize(b: Any, ins: Any, outs: Any, a: Attrs, active: Any) -> Any:
    """The direction sign(x) (|x| / root)**(p - 1), and 0 at the kink and at infinity. The quotient is a product with the reciprocal of a number whose square has room."""
    (x,), (root,), p, dims = ins, outs, a["p"], a["dims"]
    room = _RANGES[x.type.dtype.itemsize]
    still = b.logical_or(b.eq(root, b.full_like(root, 0)), b.eq(root, b.full_like(root, np.inf)))
    root = b.where(still, _power(b, root, 0), root)
    scale = _power(b, root, 0)
    for beyond, by in ((room.wide, -room.down), (room.far, room.most)):  # second derivatives have the inverse square times the scale: it must go along with the root
        scale = b.where(b.gt(root, _power(b, root, beyond)), _power(b, root, -by), b.where(b.lt(root, _power(b, root, -beyond)), _power(b, root, by), scale))
    inverse = b.where(still, b.full_like(root, 0), b.div(_power(b, root, 0), b.mul(root, scale)))
    direction = b.lmul(b.keep_dims(inverse, x, dims), b.mul(x, b.keep_dims(scale, x, dims)))
    if p != 2:
        size = b.abs(direction)
        direction = b.lmul(b.sign(direction), b.pow(size, b.full_like(size, p - 1)))
    return lambda lb, tangents: (lb.sum(lb.lmul(direction, tangents[0]), dims=dims),)


def _root_samples() -> Iterable[Sample]:
    for s in _samples(empty=False)():
        yield Sample(s.operands, {**s.attrs, "p": 2}, s.name)
    for p in (3, 1.5, -2):
        yield Sample((_x(3, 4) if p > 0 else 1.5 + 0.2 * _x(3, 4),), {"p": p, "dims": (1,)}, f"p={p}")


def _root_rule(types: Types, a: Attrs) -> Types:
    if types[0].dtype.itemsize not in _RANGES or types[0].dtype.kind != "f":
        raise AotgradTypeError(f"root_sum_powers takes float32 and float64, not {types[0].dtype.name}; convert first")
    return _reduce_rule(types, a)


def _dims_batch(b: Any, op: Any, xs: Sequence[Any], on: Sequence[bool], size: Any) -> Any:
    return b.emit(op.name, xs, {**op.attrs, "dims": tuple(d + 1 for d in op.attrs["dims"])})


register(OpDef(
    "root_sum_powers", "(sum |x|**p) ** (1/p) over ``dim``, right wherever it has a number itself: powers that overflow or vanish do no harm. Derivative 0 at its kink.",
    ("x",), _root_rule, _root_ref, Linearize(_root_linearize), Body(_root_body), {"p": 2, "dims": REQUIRED}, _root_samples, layouts="row_major", batch=_dims_batch))


def _std_body(b: Any, x: Any, dims: Any, correction: Any) -> Any:
    if x.type.dtype.itemsize == 2:  # squares of float16 have little room
        return b.to_dtype(_std_body(b, b.to_dtype(x, float32), dims, correction), x.type.dtype)
    centred = b.sub(x, b.keep_dims(b.mean(x, dims=dims), x, dims))
    root = b.root_sum_powers(centred, dims=dims)
    return b.div(root, _free(b, x, dims, correction, root, b.sqrt))


def _logsumexp_body(b: Any, x: Any, dims: Any) -> Any:
    top = b.stop_gradient(b.amax(x, dims=dims))
    top = b.where(b.isfinite(top), top, b.full_like(top, 0))
    return b.add(b.log(b.sum(b.exp(b.sub(x, b.keep_dims(top, x, dims))), dims=dims)), top)


def _softmax_body(b: Any, x: Any, dim: int) -> Any:
    e = b.exp(b.sub(x, b.keep_dims(b.stop_gradient(b.amax(x, dims=(dim,))), x, (dim,))))
    total = b.sum(e, dims=(dim,))
    return b.mul(e, b.keep_dims(b.div(b.full_like(total, 1), total), x, (dim,)))


def _log_softmax_body(b: Any, x: Any, dim: int) -> Any:
    shifted = b.sub(x, b.keep_dims(b.stop_gradient(b.amax(x, dims=(dim,))), x, (dim,)))
    return b.sub(shifted, b.keep_dims(b.log(b.sum(b.exp(shifted), dims=(dim,))), x, (dim,)))


def _dim_samples() -> Iterable[Sample]:
    for shape, dim in (((3, 4), 1), ((3, 4), 0), ((5,), 0), ((2, 1), 1)):
        yield Sample((_x(*shape),), {"dim": dim}, f"{shape}{dim}")


def _reduction_composite(name: str, doc: str, body: Any, attrs: Any = None, samples: Any = None, front: Front | None = None) -> None:
    register(OpDef(name, doc, ("x",), _reduce_rule, None, Composite(body), attrs={"dims": REQUIRED, **(attrs or {})},
                   samples=samples or _samples(empty=False), layouts="any", front=front))


def _same_rule(types: Types, a: Attrs) -> Types:
    return (types[0],)


_reduction_composite("mean", "Arithmetic mean over ``dim``.", _mean_body, front=_reduction_front("mean", _float_like("mean")))
_reduction_composite("var", "Variance over ``dim`` with ``n - correction`` in the denominator.", _var_body, {"correction": 1},
                     lambda: (Sample((_x(*s),), {"dims": d, "correction": c}, f"{s}{d}{c}") for s, d, c in (((3, 4), (1,), 1), ((3, 4), (0, 1), 0), ((5,), (0,), 1))),
                     _variance_front("var"))
_reduction_composite("std", "Square root of the variance; derivative 0 at its kink.", _std_body,
                     {"correction": 1},
                     lambda: (Sample((_x(*s),), {"dims": d, "correction": c}, f"{s}{d}{c}") for s, d, c in (((3, 4), (1,), 1), ((3, 4), (0, 1), 0))),
                     _variance_front("std"))
_reduction_composite("logsumexp", "log of the sum of exponentials; all -inf gives -inf with gradient 0.", _logsumexp_body,
                     front=Front("logsumexp(input, dim=None, keepdim=False)", empty_is_all(_float_like("logsumexp")), "float"))
register(OpDef("softmax", "exp(x) / sum(exp(x)) along ``dim``.", ("x",), _same_rule, None, Composite(_softmax_body), attrs={"dim": REQUIRED}, samples=_dim_samples,
               front=Front("softmax(input, dim=-1, dtype=None)", _softmax_front("softmax"), "none", functional=True)))
register(OpDef("log_softmax", "x - logsumexp(x) along ``dim``.", ("x",), _same_rule, None, Composite(_log_softmax_body), attrs={"dim": REQUIRED}, samples=_dim_samples,
               front=Front("log_softmax(input, dim=-1, dtype=None)", _softmax_front("log_softmax"), "none", functional=True)))


def _public_extremum(name: str, arg: str, full: str) -> None:
    def body(b: Any, x: Any) -> Any:
        return b.emit(full, [x], {"dims": tuple(range(len(x.type.shape)))})[0]

    register(OpDef(f"{name}", f"The {name}imum of everything; with ``dim``, (values, indices), and the derivative goes to the index returned.",
                   ("x",), None, None, Composite(body),
                   samples=lambda: (Sample((_x(3, 4),), name="2d"),), front=Front(f"{name}(input, dim=None, keepdim=False)", _extremum_front(arg, full, name), "none")))


_public_extremum("max", "argmax", "amax")
_public_extremum("min", "argmin", "amin")
