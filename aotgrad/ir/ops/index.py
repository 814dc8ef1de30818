"""Indexing as in NumPy: ``getitem`` and ``setitem``, composites of slice, reshape, permute, take, insert and scatter.

An index expression arrives as a tuple of entries, one per dim of x and new axis: ``("int", i)``, ``("slice", start, stop, step)``, ``("new",)``, ``("array",)``; the
arrays themselves are operands. ``resolve`` turns it, for given sizes, into the static attributes of the ops.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from aotgrad_runtime.dtypes import bool_, int64
from aotgrad_runtime.errors import AotgradIndexError, AotgradTypeError, AotgradValueError

from .. import dims as dimlib
from ..builder import Builder
from ..core import Block
from ..opdef import REQUIRED, Composite, Domain, Front, OpDef, Sample, Scalar, Zero, register
from ..types import TensorType

__all__ = ["ROW_CODE", "resolve"]

Types = Sequence[TensorType]
Attrs = Mapping[str, Any]
_ATTRS = {"starts": REQUIRED, "sizes": REQUIRED, "steps": REQUIRED, "drop": (), "arrays": (), "at": 0, "shape": REQUIRED}


# ---- entries to attributes ----------------------------------------------------------------------------------------------------------

def _nonnegative(b: Any, d: Any) -> bool:
    """The sign of a bound; for a symbolic one it is the sign in the first call, under a guard."""
    if isinstance(d, int):
        return d >= 0
    example = b.trace.example(d)
    if example is not None and example < 0:
        b.trace.require(dimlib.minimum(d, -1), d)
        return False
    b.trace.require(dimlib.maximum(d, 0), d)
    return True


def _position(b: Any, i: Any, n: Any, dim: int) -> Any:
    """The place of an integer index, from the front; checked now, or by a guard."""
    ahead = _nonnegative(b, i)
    least = i + 1 if ahead else -i
    size = b.trace.example(n)
    need = b.trace.example(least)
    if size is not None and need is not None and size < need:
        raise AotgradIndexError(f"index {i} is out of bounds for dimension {dim} with size {size}")
    b.trace.at_least(n, least)
    return i if ahead else n + i


def _whole(value: Any, what: str) -> Any:
    if value is None or isinstance(value, dimlib.Dim):
        return value
    return int(value)


def _range(b: Any, n: Any, start: Any, stop: Any, step: Any) -> tuple[Any, Any, int]:
    """Start, number and step of a slice of a dim of size ``n``; all three as Python's ``slice.indices`` has them."""
    step = 1 if step is None else int(step)
    if step == 0:
        raise AotgradValueError("slice step cannot be zero")
    if isinstance(n, int) and not any(isinstance(v, dimlib.Dim) for v in (start, stop)):
        lo, hi, _ = slice(start, stop, step).indices(n)
        return lo, len(range(lo, hi, step)), step
    if step < 0:
        first = _clamped(b, start, n, n - 1, -1)
        last = _clamped(b, stop, n, -1, -1)
        return first, dimlib.maximum(dimlib.floordiv(first - last - step - 1, -step), 0), step
    if start is not None and not _nonnegative(b, start):
        count = dimlib.minimum(n, -start)  # the last ones
        begin, total = n - count, count
        if stop is not None:
            total = _stop(b, stop, n) - begin
    else:
        begin = 0 if start is None else start  # beyond the end nothing is left, so it needs no limit
        total = (n if stop is None else _stop(b, stop, n)) - begin
    return begin, dimlib.floordiv(dimlib.maximum(total, 0) + step - 1, step), step


def _stop(b: Any, stop: Any, n: Any) -> Any:
    return dimlib.minimum(stop, n) if _nonnegative(b, stop) else n + stop


def _clamped(b: Any, bound: Any, n: Any, default: Any, low: int) -> Any:
    if bound is None:
        return default
    return dimlib.minimum(bound, n - 1) if _nonnegative(b, bound) else dimlib.maximum(n + bound, low)


def resolve(b: Any, shape: Sequence[Any], entries: Sequence[tuple[Any, ...]], block: Sequence[Any]) -> dict[str, Any]:
    """Attributes of ``getitem`` and ``setitem`` for an x of ``shape``; ``block`` is the common shape of the index arrays."""
    starts: list[Any] = []
    sizes: list[Any] = []
    steps: list[int] = []
    drop: list[int] = []
    arrays: list[int] = []
    before: list[Any] = []  # result dims ahead of the arrays'
    after: list[Any] = []
    kept_before, dim, state, any_array = 0, 0, 0, any(e[0] == "array" for e in entries)
    for entry in entries:
        kind = entry[0]
        if kind == "array" or (kind == "int" and any_array):
            state = 1 if state <= 1 else 3  # 3: arrays with slices between them go to the front
        elif state == 1:
            state = 2
        if kind == "new":
            (before if state == 0 else after).append(1)
            continue
        n = shape[dim]
        start, size, step = (0, n, 1) if kind == "array" else (_position(b, entry[1], n, dim), 1, 1) if kind == "int" else _range(b, n, *entry[1:])
        starts.append(start)
        sizes.append(size)
        steps.append(step)
        if kind == "slice":
            (before if state == 0 else after).append(size)
            kept_before += state == 0
        else:
            (drop if kind == "int" else arrays).append(dim)
        dim += 1
    front = state == 3
    result = (*block, *before, *after) if front else (*before, *block, *after) if any_array else (*before, *after)
    return {"starts": tuple(starts), "sizes": tuple(sizes), "steps": tuple(steps), "drop": tuple(drop), "arrays": tuple(arrays), "at": 0 if front else kept_before,
        "shape": result}


# ---- bodies ---------------------------------------------------------------------------------------------------------------------------

def _trivial(x: Any, starts: Any, sizes: Any, steps: Any) -> bool:
    return tuple(sizes) == tuple(x.type.shape) and all(s == 0 for s in starts) and all(s == 1 for s in steps)


def _sliced(b: Any, x: Any, starts: Any, sizes: Any, steps: Any) -> Any:
    return x if _trivial(x, starts, sizes, steps) else b.slice(x, starts=starts, sizes=sizes, steps=steps)


def _size_like(b: Any, n: Any, like: Any) -> Any:
    return b.full_like(like, n) if isinstance(n, int) else b.broadcast(b.size(dim=n), shape=like.type.shape, dims=())


def _certain(i: Any, n: Any) -> bool:
    """Whether every index is known to be in range: places along a dim of at most that size."""
    if i.op is None or i.op.name != "iota":
        return False
    count = i.type.shape[i.op.attrs["dim"]]
    return bool(count == n or isinstance(count, int) and isinstance(n, int) and count <= n)


class _Advanced:
    """The part of x that arrays index, with the indexed dims made one: ``work`` has it at dim ``dim``, ``rows`` are the positions along it."""

    def __init__(self, b: Any, y: Any, idx: Sequence[Any], drop: Any, arrays: Any, sizes: Any, at: int, checked: bool = False) -> None:
        left = [d for d in range(len(sizes)) if d not in drop]
        self.where = [left.index(a) for a in arrays]
        self.full = tuple(sizes[d] for d in left)
        y = b.to_shape(y, self.full)
        rest = [d for d in range(len(left)) if d not in self.where]
        self.kept = tuple(self.full[d] for d in rest)
        together = self.where == list(range(self.where[0], self.where[0] + len(self.where)))
        self.perm = tuple(range(len(left))) if together else (*self.where, *rest)
        self.dim = self.where[0] if together else 0
        self.at, self.block = at, tuple(idx[0].type.shape)
        y = b.to_perm(y, self.perm)
        self.moved = tuple(y.type.shape)
        total = dimlib.product(self.full[d] for d in self.where)
        self.work = b.to_shape(y, (*self.kept[:self.dim], total, *self.kept[self.dim:]))
        self.rows = self._rows(b, idx, arrays, checked)

    def _rows(self, b: Any, idx: Sequence[Any], dims: Sequence[int], checked: bool) -> Any:
        sizes = [self.full[d] for d in self.where]
        sure = tuple(_certain(i, n) for i, n in zip(idx, sizes))
        if len(idx) == 1 and sure[0]:
            return idx[0]
        return b.emit("row_index", idx, {"extents": tuple(sizes), "axes": tuple(dims), "sure": sure, "checked": checked})[0]

    def order(self) -> tuple[int, ...]:
        """Where each dim of the result (kept[:at], block, kept[at:]) is in what ``take`` gives (kept[:dim], block, kept[dim:])."""
        nb = len(self.block)
        place = [i if i < self.dim else i + nb for i in range(len(self.kept))]
        return (*place[:self.at], *range(self.dim, self.dim + nb), *place[self.at:])

    def back(self, b: Any, work: Any, sizes: Any) -> Any:
        """From the shape of ``work`` to ``sizes``."""
        inverse = tuple(sorted(range(len(self.perm)), key=lambda i: self.perm[i]))
        return b.to_shape(b.to_perm(b.to_shape(work, self.moved), inverse), sizes)


def _one_row(b: Any, x: Any, idx: Sequence[Any], starts: Any, sizes: Any, steps: Any, drop: Any, arrays: Any, checked: bool = False) -> Any:
    """Where the indices are single numbers beside slices: the row that they are of, and starts, sizes and steps of the part of it. No other row is touched then."""
    if not arrays or idx[0].type.shape or _trivial(x, starts, sizes, steps):
        return None
    at = {**dict(zip(arrays, idx)), **{d: _size_like(b, starts[d], idx[0]) for d in drop}}
    part = [tuple(v for d, v in enumerate(values) if d not in at) for values in (starts, sizes, steps)]
    return _Advanced(b, x, [at[d] for d in sorted(at)], (), sorted(at), x.type.shape, 0, checked), part


def _getitem_body(b: Any, x: Any, *idx: Any, starts: Any, sizes: Any, steps: Any, drop: Any, arrays: Any, at: int, shape: Any) -> Any:
    if (found := _one_row(b, x, idx, starts, sizes, steps, drop, arrays)) is not None:
        a, part = found
        return b.to_shape(_sliced(b, b.take(a.work, a.rows, dim=a.dim), *part), shape)
    y = _sliced(b, x, starts, sizes, steps)
    if arrays:
        a = _Advanced(b, y, idx, drop, arrays, sizes, at)
        y = b.to_perm(b.take(a.work, a.rows, dim=a.dim), a.order())
    return b.to_shape(y, shape)


_COMBINE = {"mul": "mul", "min": "minimum", "max": "maximum"}


def _setitem_body(b: Any, x: Any, v: Any, *idx: Any, starts: Any, sizes: Any, steps: Any, drop: Any, arrays: Any, at: int, shape: Any, mode: str) -> Any:
    if (found := _one_row(b, x, idx, starts, sizes, steps, drop, arrays, mode in _COMBINE)) is not None:
        a, part = found
        row = _setitem_body(b, b.take(a.work, a.rows, dim=a.dim), v, starts=part[0], sizes=part[1], steps=part[2], drop=(), arrays=(), at=0, shape=part[1], mode=mode)
        return a.back(b, b.scatter(a.work, a.rows, row, dim=a.dim), x.type.shape)
    if arrays:
        a = _Advanced(b, _sliced(b, x, starts, sizes, steps), idx, drop, arrays, sizes, at, mode in _COMBINE)
        v = b.to_shape(v, (*a.kept[:at], *a.block, *a.kept[at:]))
        order = a.order()
        v = b.to_perm(v, tuple(sorted(range(len(order)), key=lambda i: order[i])))
        part = b.emit({"set": "scatter", "add": "scatter_add"}[mode], [a.work, a.rows, v], {"dim": a.dim})[0] if mode in ("set", "add") else _combined(b, a, v, mode)
        w, mode = a.back(b, part, sizes), "set"
    else:
        w = b.to_shape(v, sizes)
    if mode in _COMBINE:
        w, mode = b.emit(_COMBINE[mode], [_sliced(b, x, starts, sizes, steps), w])[0], "set"
    if _trivial(x, starts, sizes, steps):
        return w if mode == "set" else b.add(x, w)
    return b.emit("insert" if mode == "set" else "insert_add", [x, w], {"starts": starts, "steps": steps})[0]


def _combined(b: Any, a: _Advanced, v: Any, mode: str) -> Any:
    """Row by row, so that repeated indices meet what the earlier ones left."""
    nb, count = len(a.block), dimlib.product(a.block)
    first = tuple(range(a.dim, a.dim + nb))
    rows = b.to_shape(b.to_perm(v, (*first, *(d for d in range(len(v.type.shape)) if d not in first))), (count, *a.kept))
    body = Block([a.work.type, TensorType((), int64), TensorType(a.kept, v.type.dtype)])
    inner = Builder(body, b.loc)
    carry, at, row = body.args
    new = inner.emit(_COMBINE[mode], [inner.take(carry, at, dim=a.dim), row])[0]
    body.outputs = [inner.scatter(carry, at, new, dim=a.dim)]
    return b.emit("scan", [a.work, b.to_shape(a.rows, (count,)), rows], {"consts": 0, "carry": 1, "length": count}, [body])[0]


# ---- one index ----------------------------------------------------------------------------------------------------------------------

ROW_CODE, _LIMIT, _LEAST = 64, 1 << 56, -(1 << 63)  # an index out of range in a row: which of the arrays, and the number given (``call.failure`` reads it)


def _bounds(op: Any) -> list[Any]:
    a = op.attrs
    return [None if sure else ((-n if a["wrap"] else 0), n, axis) for n, axis, sure in zip(a["extents"], a["axes"], a["sure"])]


def _row_ref(*idx: Any, extents: Any, axes: Any, sure: Any, wrap: bool, checked: bool) -> Any:
    rows: Any = 0
    bad: list[tuple[Any, Any]] = []
    for j, (i, n, axis, known) in enumerate(zip(idx, extents, axes, sure)):
        i = np.asarray(i, np.int64)
        if not known and (checked or len(idx) > 1):
            wrong = (i < (-n if wrap else 0)) | (i >= n)
            if checked and wrong.any():
                raise IndexError(f"index {int(i[wrong][0])} is out of bounds for dimension {axis} with size {n}")
            if not checked:
                bad.append((wrong, np.clip(i, -_LIMIT, _LIMIT - 1) * ROW_CODE | _LEAST + j))
        at = np.where(i < 0, i + n, i) if wrap and not known else i
        rows = rows * n + at if j else at
    for wrong, code in reversed(bad):
        rows = np.where(wrong, code, rows)
    return np.asarray(rows, np.int64)


def _row_scalar(k: Any, op: Any, *idx: Any) -> Any:
    a, rows, bad = op.attrs, None, []
    for j, (i, n, sure) in enumerate(zip(idx, a["extents"], a["sure"])):
        size, zero, at = k.vector(k.from_index(k.dim(n), int64)), k.const(0, i), i
        if not sure and a["wrap"]:
            at = k.select(k.cmp("lt", i, zero), k.add(i, size), i)
        if not sure and len(idx) > 1:
            code = k.mul(k.min(k.max(i, k.const(-_LIMIT, i)), k.const(_LIMIT - 1, i)), k.const(ROW_CODE, i))
            code = k.logical("or", code, k.const(_LEAST + j, i))
            bad.append((k.logical("and", k.cmp("ge", at, zero), k.cmp("lt", at, size)), code))
        rows = at if rows is None else k.add(k.mul(rows, size), at)
    for fits, code in reversed(bad):
        rows = k.select(fits, rows, code)
    return rows


def _row_samples() -> Iterable[Sample]:
    i, j = np.array([[0, 2, 1], [3, 3, 0]]), np.array([[1, 0, 4], [2, 2, 2]])
    for wrap in (True, False):
        for checked in (True, False):
            more = {"wrap": wrap, "checked": checked}
            yield Sample((i,), {"extents": (4,), "axes": (1,), "sure": (False,), **more}, f"{wrap}{checked}")
    yield Sample((i, j - 5, j), {"extents": (4, 5, 5), "axes": (0, 1, 3), "sure": (False, False, True)}, "three")


register(OpDef(
    "row_index", "Indices of dims ``axes`` of ``extents`` as one along these dims together, counted from the start; with ``wrap`` negative ones are from the end. One "
                 "out of range gives a number below 0 that tells which it was; with ``checked`` it is an error here. ``sure``: arrays that are in range.", ("index*",),
    lambda types, a: (TensorType(types[0].shape, int64, types[0].layout),), _row_ref, Zero(),
    Scalar(_row_scalar, Domain(0, lambda op: op.attrs["checked"], lambda k, op, i: i, "", bounds=_bounds)),
    {"extents": REQUIRED, "axes": REQUIRED, "sure": REQUIRED, "wrap": True, "checked": False}, _row_samples, layouts="any", exact=True))


# ---- declarations -----------------------------------------------------------------------------------------------------------------------

def _getitem_rule(types: Types, a: Attrs) -> Types:
    return (TensorType(tuple(a["shape"]), types[0].dtype),)


def _setitem_rule(types: Types, a: Attrs) -> Types:
    x, v = types[:2]
    if tuple(v.shape) != tuple(a["shape"]) or v.dtype is not x.dtype:
        raise AotgradTypeError(f"setitem: value {v} should be {TensorType(tuple(a['shape']), x.dtype)}")
    return (TensorType(x.shape, x.dtype),)


def _index_arrays(b: Any, idx: Sequence[Any]) -> list[Any]:
    """Index arrays as int64 of one shape."""
    out = []
    shape: list[Any] = [1] * max((len(i.type.shape) for i in idx), default=0)
    for i in idx:
        if i.type.dtype.kind not in "iu":
            raise AotgradIndexError(f"an index is {i.type.dtype.name}; integers, booleans, slices, None and ... are accepted")
        lead = len(shape) - len(i.type.shape)
        for k, d in enumerate(i.type.shape):
            shape[lead + k] = b.join(shape[lead + k], d)
        out.append(b.to_dtype(i, int64))
    return [b.expand(i, tuple(shape)) for i in out]


def _getitem_canon(b: Any, x: Any, indices: Any = None, spec: Any = None) -> Any:
    idx = _index_arrays(b, indices or ())
    attrs = resolve(b, x.type.shape, spec.entries, idx[0].type.shape if idx else ())
    return b.emit("getitem", [x, *idx], attrs)[0]


def _fitted(b: Any, v: Any, shape: Sequence[Any]) -> Any:
    """A value broadcast to the part it is written to; leading dims of size 1 that are too many are dropped, as in NumPy."""
    given = v.type.shape
    while len(given) > len(shape) and given[0] == 1:
        given = given[1:]
    if len(given) > len(shape):
        raise AotgradValueError(f"a value of shape {[str(d) for d in v.type.shape]} does not fit the indexed part of shape {[str(d) for d in shape]}")
    v = b.to_shape(v, given)
    for have, want in zip(reversed(given), reversed(shape)):
        b.give_way(have, want, "the value written does not fit the indexed part")
    return b.expand(b.refresh(v), tuple(b.trace.canonical(d) for d in shape))


def _setitem_canon(b: Any, x: Any, value: Any, indices: Any = None, spec: Any = None, mode: str = "set") -> Any:
    idx = _index_arrays(b, indices or ())
    v = b.to_dtype(value, x.type.dtype)
    attrs = resolve(b, x.type.shape, spec.entries, idx[0].type.shape if idx else ())
    v = _fitted(b, v, attrs["shape"])
    attrs = resolve(b, b.refresh(x).type.shape, spec.entries, idx[0].type.shape if idx else ())  # sizes may have been found equal
    return b.emit("setitem", [x, v, *idx], {**attrs, "mode": mode})[0]


def _mask_canon(b: Any, x: Any, mask: Any, value: Any, mode: str = "set") -> Any:
    """``x[mask] = value`` where the value is the same for every element chosen: a selection, with nothing that depends on how many there are."""
    if mask.type.dtype is not bool_:
        raise AotgradTypeError("mask: booleans are needed")
    rank = len(mask.type.shape)
    for d, (m, n) in enumerate(zip(mask.type.shape, x.type.shape)):
        b.equate(m, n, f"boolean index: dim {d}")
    shape = b.refresh(x).type.shape
    v = b.to_dtype(value, x.type.dtype)
    if len(v.type.shape) > len(shape) - rank:
        raise AotgradValueError("x[mask] = v with a traced mask: how many elements it chooses is not known: v must be a number or fit one x[i]; use ag.where(mask, v, x)")
    v = b.expand(v, shape)
    return b.masked_set(x, b.broadcast(b.refresh(mask), shape=shape, dims=tuple(range(rank))), v, mode=mode)


class _Plain:
    """Enough of a frontend builder for the samples: all sizes are numbers."""

    def __init__(self) -> None:
        self.trace = self

    def example(self, d: Any) -> Any:
        return d

    def at_least(self, size: Any, least: Any) -> None:
        assert size >= least


def _cases() -> Iterable[tuple[str, tuple[int, ...], tuple[tuple[Any, ...], ...], tuple[Any, ...]]]:
    every = ("slice", None, None, None)
    yield "int", (3, 4), (("int", -1), every), ()
    yield "steps", (5, 4), (("slice", None, None, -2), ("new",), ("slice", 1, 3, None)), ()
    yield "empty", (3,), (("slice", 2, 1, None),), ()
    yield "repeats", (4, 3), (("array",), every), ([[0, -1], [3, 0]],)
    yield "pair", (4, 3, 2), (every, ("array",), ("array",)), ([0, 2, -3], [1, 0, 1])
    yield "apart", (3, 2, 4), (("array",), ("slice", 1, None, None), ("array",)), ([2, 0], [3, -4])
    yield "int_apart", (3, 2, 4), (("int", 1), every, ("array",)), ([3, -4, 3],)
    yield "scalar", (3, 2), (("array",), every), (1,)


def _getitem_samples() -> Iterable[Sample]:
    rng = np.random.default_rng(31)
    for name, shape, entries, idx in _cases():
        arrays = tuple(np.asarray(i, np.int64) for i in idx)
        yield Sample((rng.normal(size=shape), *arrays), resolve(_Plain(), shape, entries, arrays[0].shape if arrays else ()), name)


def _setitem_samples() -> Iterable[Sample]:
    rng = np.random.default_rng(32)
    for sample in _getitem_samples():
        x, *idx = sample.operands
        for mode in ("set", "add", "mul", "max") if sample.name in ("steps", "repeats") else ("set", "add"):
            yield Sample((x, rng.normal(size=sample.attrs["shape"]), *idx), {**sample.attrs, "mode": mode}, f"{sample.name}_{mode}")


register(OpDef(
    "getitem", "The indexed part of x.", ("x", "indices*"), _getitem_rule, None, Composite(_getitem_body), attrs=_ATTRS, samples=_getitem_samples,
    grad_fn="IndexBackward0",
    front=Front("getitem(input, indices=None, spec=None)", _getitem_canon, "none", function=False, method=False, tensors=("input", "indices"))))
register(OpDef(
    "setitem", "x with the indexed part replaced by v, or combined with it: mode set, add, mul, min, max.", ("x", "v", "indices*"), _setitem_rule, None,
    Composite(_setitem_body),
    attrs={**_ATTRS, "mode": "set"}, samples=_setitem_samples, grad_fn="CopySlices",
    front=Front("setitem(input, value, indices=None, spec=None, mode='set')", _setitem_canon, "into", function=False, method=False,
    tensors=("input", "value", "indices"))))
register(OpDef(
    "masked_set", "x with the elements where the mask holds replaced by (or combined with) one value.", ("x", "mask", "v"), None, None,
    Composite(lambda b, x, mask, v, mode: b.where(mask, v if mode == "set" else b.emit({"add": "add", **_COMBINE}[mode], [x, v])[0], x)), attrs={"mode": "set"},
    samples=lambda: (Sample((np.array([1.0, 2.0, -3.0]), np.array([True, False, True]), np.array([0.5, 0.25, 2.0])), {"mode": m}, m) for m in ("set", "add", "mul")),
    grad_fn="IndexPutBackward0",
    front=Front("masked_set(input, mask, value, mode='set')", _mask_canon, "into", function=False, method=False)))
