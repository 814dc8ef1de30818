"""Moves: broadcast, reshape, permute, slice, insert, concatenate, take, scatter, constants. All linear, each naming its transpose."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from aotgrad_runtime.dtypes import DType, as_dtype, from_mlir, int64
from aotgrad_runtime.errors import AotgradTypeError, AotgradValueError

from .. import dims as dimlib
from ..opdef import REQUIRED, Composite, Index, Kernel, Linear, OpDef, Sample, Scalar, View, ViewMap, Zero, register
from ..transforms.accumulate import Accumulate
from ..transforms.batch import batched_layout, spread
from ..types import Layout, TensorType

Types = Sequence[TensorType]
Attrs = Mapping[str, Any]


def _x(*shape: int) -> Any:
    return np.random.default_rng(11).normal(size=shape)


def _ahead(**new: Any) -> Any:
    """The batch rule of a move that leaves the new dim where it is: attributes given it in front, the others kept; operands spread."""

    def rule(b: Any, op: Any, xs: Sequence[Any], on: Sequence[bool], size: Any) -> Any:
        full = [b.placed(spread(b, x, k, size), None) if len(xs) > 1 else x for x, k in zip(xs, on)]
        return b.emit(op.name, full, {**op.attrs, **{name: make(op.attrs[name], size) for name, make in new.items()}})

    return rule


def _with(first: Any = None) -> Any:
    """``first`` (None: the batch size) before sizes, starts or steps."""
    return lambda given, size: (size if first is None else first, *given)


def _behind(given: Sequence[int], size: Any) -> tuple[int, ...]:
    return tuple(d + 1 for d in given)


# ---- sources ----------------------------------------------------------------------------------------------------------------

def _full_rule(types: Types, a: Attrs) -> Types:
    value, dtype = a["value"], a["dtype"]
    value = value.item() if isinstance(value, np.generic) else value
    if not isinstance(value, (int, float, complex)):
        raise TypeError(f"full: value {value!r} is no number")  # of an argument that the public function or the verifier names
    if isinstance(dtype, DType) and dtype.kind in "iu":
        info = np.iinfo(dtype.np)
        if isinstance(value, complex) or not info.min <= value <= info.max:  # NaN neither
            raise AotgradValueError(f"full: {dtype.name} does not hold {value}")
    return (TensorType(tuple(a["shape"]), dtype),)


register(OpDef(
    "full", "A splat of one number.", (), _full_rule, lambda shape, value, dtype: np.full(shape, value, dtype.np),
    Zero(), Index(lambda k, op, idx: k.const(op.attrs["value"], op.attrs["dtype"])), {"shape": REQUIRED, "value": REQUIRED, "dtype": REQUIRED},
    lambda: (Sample((), {"shape": s, "value": 1.5, "dtype": from_mlir("f64")}, str(s)) for s in ((2, 3), (), (0,))), exact=True))
register(OpDef(
    "constant", "A constant array.", (), lambda types, a: (TensorType(a["value"].shape, as_dtype(a["value"].dtype)),), lambda value: value, Zero(), Kernel("constant"),
    {"value": REQUIRED}, lambda: (Sample((), {"value": _x(2, 3)}, "2x3"),), exact=True))
register(OpDef(
    "iota", "0, 1, 2, ... along ``dim`` of ``shape``.", (), lambda types, a: (TensorType(tuple(a["shape"]), a["dtype"]),),
    lambda shape, dim, dtype: np.broadcast_to(np.arange(shape[dim], dtype=dtype.np).reshape([-1 if i == dim else 1 for i in range(len(shape))]), shape).copy(),
    Zero(), Index(lambda k, op, idx: k.from_index(idx[op.attrs["dim"]], op.attrs["dtype"])), {"shape": REQUIRED, "dim": 0, "dtype": int64},
    lambda: (Sample((), {"shape": (2, 3), "dim": d, "dtype": int64}, str(d)) for d in (0, 1)), exact=True))
register(OpDef(
    "size", "A size as an int64 scalar.", (), lambda types, a: (TensorType((), int64),), lambda dim: np.asarray(dim, np.int64), Zero(),
    Index(lambda k, op, idx: k.from_index(k.dim(op.attrs["dim"]), int64)), {"dim": REQUIRED}, lambda: (Sample((), {"dim": 5}, "5"),), exact=True))
register(OpDef(
    "stop_gradient", "x, with no derivative; with ``reverse`` none in reverse mode only. ``view``: it requires grad where x does, and no gradient comes of it.", ("x",),
    lambda types, a: (types[0],), lambda x, reverse, view: x, Zero(), Scalar(lambda k, op, x: x), {"reverse": False, "view": False},
    samples=lambda: (Sample((_x(2, 3),), name="2x3"),), layouts="any", exact=True))
register(OpDef(
    "relayout", "x in another memory layout; the logical value is the same.", ("x",), lambda types, a: (TensorType(types[0].shape, types[0].dtype, a["layout"]),),
    lambda x, layout: x, Linear(lambda b, ct, op: {0: b.relayout(ct, layout=op.operands[0].layout)}), Kernel("relayout"), {"layout": None},
    lambda: (Sample((_x(2, 3, 2, 2),), {"layout": Layout((0, 2, 3, 1))}, "channels_last"),), layouts="any", exact=True,
    batch=_ahead(layout=lambda layout, size: batched_layout(layout))))


# ---- layouts of moves ---------------------------------------------------------------------------------------------------------

def _image_layout(types: Types) -> Layout | None:
    """Channels last where all are."""
    last = Layout.channels_last(types[0].rank)
    return last if types[0].rank > 3 and all(t.layout == last for t in types) else None


def _in_one_layout(name: str, types: Types) -> Layout | None:
    """The layout of arrays that are moved together, when they have one: row-major or channels last."""
    layout = types[0].layout
    if any(t.layout != layout for t in types) or layout != _image_layout(types):
        raise AotgradTypeError(f"{name}: operands {', '.join(map(str, types))} are not all row-major or all channels last; relayout first")
    return layout


# ---- views ------------------------------------------------------------------------------------------------------------------

def _broadcast_rule(types: Types, a: Attrs) -> Types:
    x, shape, dims = types[0], tuple(a["shape"]), tuple(a["dims"])
    if len(dims) != x.rank or list(dims) != sorted(set(dims)) or any(not 0 <= d < len(shape) for d in dims):
        raise AotgradValueError(f"broadcast: dims={list(dims)} does not place the {x.rank} dims of {x} in a rank-{len(shape)} result")
    for i, d in enumerate(dims):
        if x.shape[i] != 1 and x.shape[i] != shape[d]:
            raise AotgradValueError(f"broadcast: dim {i} of size {x.shape[i]} does not fit result size {shape[d]}")
    return (TensorType(shape, x.dtype, x.layout if len(shape) == x.rank else None),)


def _broadcast_ref(x: Any, shape: Any, dims: Any) -> Any:
    if not np.ndim(x) and 1 not in shape and 0 not in shape and type(x) is np.ndarray:  # what np.broadcast_to gives, at a fifth of its cost
        out: Any = np.ndarray(shape, x.dtype, x, 0, (0,) * len(shape))
        out.flags.writeable = False
        return out
    inner = [1] * len(shape)
    for i, d in enumerate(dims):
        inner[d] = x.shape[i]
    return np.broadcast_to(np.reshape(x, inner), shape)


def _broadcast_transpose(b: Any, ct: Any, op: Any) -> dict[int, Any]:
    x, dims, shape = op.operands[0], op.attrs["dims"], op.attrs["shape"]
    spread = tuple(d for d in range(len(shape)) if d not in dims or (x.shape[dims.index(d)] == 1 and shape[d] != 1))
    reduced = b.sum(ct, dims=spread) if spread else ct
    return {0: b.to_shape(reduced, x.shape)}


def _broadcast_view(op: Any) -> ViewMap:
    x, dims = op.operands[0].type, op.attrs["dims"]
    return ViewMap((0,) * x.rank, tuple(() if x.shape[i] == 1 else ((d, 1),) for i, d in enumerate(dims)))


register(OpDef(
    "broadcast", "x placed at result dims ``dims`` and repeated along the others and along its dims of size 1.", ("x",), _broadcast_rule, _broadcast_ref,
    Linear(_broadcast_transpose), View(_broadcast_view), {"shape": REQUIRED, "dims": REQUIRED},
    lambda: (Sample((_x(*s),), {"shape": t, "dims": d}, f"{s}->{t}") for s, t, d in (((3,), (2, 3), (1,)), ((2, 1), (2, 4), (0, 1)),
                                                                                     ((), (2, 2), ()), ((1,), (0,), (0,)))),
    layouts="any", exact=True, batch=_ahead(shape=_with(), dims=lambda dims, size: (0, *_behind(dims, size)))))


def _reshape_rule(types: Types, a: Attrs) -> Types:
    x, shape = types[0], tuple(a["shape"])
    # Sizes that may be equal are the caller's claim (tracing guards it); those that cannot be are an error here.
    if isinstance(x.size - dimlib.product(shape), int) and x.size != dimlib.product(shape):
        raise AotgradValueError(f"reshape: {x} has {x.size} elements, shape {list(map(str, shape))} has {dimlib.product(shape)}")
    return (TensorType(shape, x.dtype),)


register(OpDef(
    "reshape", "x with another shape of the same number of elements, in row-major order.", ("x",), _reshape_rule, lambda x, shape: np.asarray(x).reshape(shape),
    Linear(lambda b, ct, op: {0: b.to_shape(ct, op.operands[0].shape)}), Kernel("reshape"), {"shape": REQUIRED},
    lambda: (Sample((_x(*s),), {"shape": t}, f"{s}->{t}") for s, t in (((2, 6), (3, 4)), ((6,), (2, 3)), ((1,), ()), ((0, 2), (0,)))), exact=True,
    batch=_ahead(shape=_with())))


def _permute_rule(types: Types, a: Attrs) -> Types:
    x, perm = types[0], tuple(a["perm"])
    if sorted(perm) != list(range(x.rank)):
        raise AotgradValueError(f"permute: {list(perm)} is not an order of {x.rank} dims")
    base = x.layout or Layout(tuple(range(x.rank)))
    return (TensorType(tuple(x.shape[p] for p in perm), x.dtype, x.layout and base.permuted(perm)),)


def _inverse_perm(perm: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(perm)), key=lambda i: perm[i]))


def _permute_view(op: Any) -> ViewMap:
    inverse = _inverse_perm(op.attrs["perm"])
    return ViewMap((0,) * len(inverse), tuple(((j, 1),) for j in inverse))


register(OpDef(
    "permute", "x with its dims reordered: result dim i is dim perm[i].", ("x",), _permute_rule, lambda x, perm: np.asarray(x).transpose(perm),
    Linear(lambda b, ct, op: {0: b.to_perm(ct, _inverse_perm(op.attrs["perm"]))}), View(_permute_view), {"perm": REQUIRED},
    lambda: (Sample((_x(*s),), {"perm": p}, f"{s}{p}") for s, p in (((2, 3), (1, 0)), ((2, 3, 4), (2, 0, 1)), ((), ()), ((0, 2), (1, 0)))), layouts="any", exact=True,
    batch=_ahead(perm=lambda perm, size: (0, *_behind(perm, size)))))


def _check_range(what: str, x: TensorType, starts: Sequence[Any], sizes: Sequence[Any], steps: Sequence[Any]) -> None:
    """Where all numbers are known, the part lies inside (symbolic ones are for whoever emits the op: tracing adds guards)."""
    for d, (n, start, size, step) in enumerate(zip(x.shape, starts, sizes, steps)):
        if all(isinstance(v, int) for v in (n, start, size, step)) and size and not (size > 0 and 0 <= start < n and 0 <= start + (size - 1) * step < n):
            raise AotgradValueError(f"{what}: {size} elements from {start} in steps of {step} do not lie in dim {d} of {x}")


def _slice_rule(types: Types, a: Attrs) -> Types:
    x = types[0]
    if not len(a["starts"]) == len(a["sizes"]) == len(a["steps"]) == x.rank:
        raise AotgradValueError(f"slice: starts, sizes and steps need {x.rank} entries each")
    _check_range("slice", x, a["starts"], a["sizes"], a["steps"])
    return (TensorType(tuple(a["sizes"]), x.dtype, x.layout),)


@functools.lru_cache(maxsize=1 << 14)
def _slice_index(starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int]) -> tuple[Any, ...]:
    # An index array per dim would be slower; a slice with a negative step that runs to the front needs None as its end.
    out = []
    for start, size, step in zip(starts, sizes, steps):
        end = start + size * step
        out.append(slice(0, 0) if size == 0 else slice(start, None if end < 0 else end, step))
    return tuple(out)


def _slice_transpose(b: Any, ct: Any, op: Any) -> dict[int, Any]:
    return {0: Accumulate(op.operands[0], lambda acc: b.insert_add(acc, ct, starts=op.attrs["starts"], steps=op.attrs["steps"]))}


register(OpDef(
    "slice", "Elements starts[d] + i * steps[d] of each dim, sizes[d] of them.", ("x",), _slice_rule,
    lambda x, starts, sizes, steps: x[_slice_index(tuple(starts), tuple(sizes), tuple(steps))],
    Linear(_slice_transpose), View(lambda op: ViewMap(tuple(op.attrs["starts"]), tuple(((i, s),) for i, s in enumerate(op.attrs["steps"])))),
    {"starts": REQUIRED, "sizes": REQUIRED, "steps": REQUIRED},
    lambda: (Sample((_x(*s),), {"starts": b, "sizes": n, "steps": t}, f"{s}{b}{n}{t}") for s, b, n, t in (
        ((5,), (1,), (3,), (1,)), ((5,), (4,), (5,), (-1,)), ((4, 6), (0, 5), (2, 3), (2, -2)), ((3,), (3,), (0,), (1,)))), layouts="any", exact=True,
    batch=_ahead(starts=_with(0), sizes=_with(), steps=_with(1))))


# ---- writes -----------------------------------------------------------------------------------------------------------------

def _insert_rule(types: Types, a: Attrs) -> Types:
    x, v = types
    if v.rank != x.rank or v.dtype is not x.dtype or not len(a["starts"]) == len(a["steps"]) == x.rank:
        raise AotgradTypeError(f"insert: value {v} does not fit into {x} with starts {list(a['starts'])}, steps {list(a['steps'])}")
    _check_range("insert", x, a["starts"], v.shape, a["steps"])
    _in_one_layout("insert", types)
    return (x,)


def _insert_layout(types: Types) -> Layout | None:
    """That of the whole."""
    return _image_layout(types[:1])


def _insert_ref(x: Any, v: Any, starts: Any, steps: Any) -> Any:
    out = np.array(x)
    out[_slice_index(tuple(starts), tuple(v.shape), tuple(steps))] = v
    return out


def _insert_add_ref(x: Any, v: Any, starts: Any, steps: Any) -> Any:
    out = np.array(x)
    out[_slice_index(tuple(starts), tuple(v.shape), tuple(steps))] += v
    return out


def _at(b: Any, x: Any, op: Any) -> Any:
    return b.slice(x, starts=op.attrs["starts"], sizes=op.operands[1].shape, steps=op.attrs["steps"])


_INSERTS = (((5,), (2,), (1,), (1,)), ((4, 5), (2, 2), (3, 0), (-2, 3)), ((3,), (0,), (0,), (1,)))


def _insert_samples() -> Iterable[Sample]:
    for s, n, b, t in _INSERTS:
        yield Sample((_x(*s), np.random.default_rng(1).normal(size=n)), {"starts": b, "steps": t}, f"{s}{n}{b}{t}")


register(OpDef(
    "insert", "x with the elements starts[d] + i * steps[d] replaced by v.", ("x", "v"), _insert_rule, _insert_ref,
    Linear(lambda b, ct, op: {0: b.insert(ct, b.zeros(op.operands[1]), starts=op.attrs["starts"], steps=op.attrs["steps"]), 1: _at(b, ct, op)}),
    Kernel("insert"), {"starts": REQUIRED, "steps": REQUIRED}, _insert_samples, exact=True, batch=_ahead(starts=_with(0), steps=_with(1)),
    layouts="moved", moved=_insert_layout))
register(OpDef(
    "insert_add", "x with v added to the elements starts[d] + i * steps[d].", ("x", "v"), _insert_rule, _insert_add_ref,
    Linear(lambda b, ct, op: {0: ct, 1: _at(b, ct, op)}), Kernel("insert_add"), {"starts": REQUIRED, "steps": REQUIRED}, _insert_samples, exact=True,
    batch=_ahead(starts=_with(0), steps=_with(1)), layouts="moved", moved=_insert_layout))


def _concatenate_rule(types: Types, a: Attrs) -> Types:
    dim, first = a["dim"], types[0]
    total: Any = 0
    for t in types:
        if t.rank != first.rank or t.dtype is not first.dtype or any(t.shape[i] != first.shape[i] for i in range(t.rank) if i != dim):
            raise AotgradValueError(f"concatenate: {t} does not fit {first} along dim {dim}")
        total = total + t.shape[dim]
    return (TensorType((*first.shape[:dim], total, *first.shape[dim + 1:]), first.dtype, _in_one_layout("concatenate", types)),)


def _concatenate_transpose(b: Any, ct: Any, op: Any) -> dict[int, Any]:
    out, start, dim = {}, 0, op.attrs["dim"]
    for i, x in enumerate(op.operands):
        starts = tuple(start if d == dim else 0 for d in range(len(x.shape)))
        out[i] = b.slice(ct, starts=starts, sizes=x.shape, steps=(1,) * len(x.shape))
        start = start + x.shape[dim]
    return out


register(OpDef(
    "concatenate", "Arrays joined along ``dim``.", ("xs*",), _concatenate_rule, lambda *xs, dim: np.concatenate(xs, axis=dim), Linear(_concatenate_transpose),
    Kernel("concatenate"), {"dim": 0},
    lambda: (Sample((_x(2, 3), _x(2, 1)), {"dim": 1}, "1"), Sample((_x(2, 2), _x(0, 2), _x(1, 2)), {"dim": 0}, "0"), Sample((_x(3),), {"dim": 0}, "single")), exact=True,
    batch=_ahead(dim=lambda dim, size: dim + 1), layouts="moved", moved=_image_layout))


# ---- integer-array indexing ---------------------------------------------------------------------------------------------------

def _take_rule(types: Types, a: Attrs) -> Types:
    x, idx = types
    if idx.dtype.kind not in "iu":
        raise AotgradTypeError(f"take: the index is {idx.dtype.name}, not an integer type")
    if x.layout != _take_layout(types):
        raise AotgradTypeError(f"take: {x} is not row-major (or channels last with an index of rank 1); relayout it first")
    return (TensorType((*x.shape[:a["dim"]], *idx.shape, *x.shape[a["dim"] + 1:]), x.dtype, x.layout),)


def _take_layout(types: Types) -> Layout | None:
    """That of the whole, where an index of rank 1 keeps the dims that there are."""
    return _image_layout(types[:1]) if types[1].rank == 1 else None


def _checked(idx: Any, size: int) -> Any:
    if np.size(idx) and (np.min(idx) < 0 or np.max(idx) >= size):
        raise IndexError(f"index {int(np.min(idx)) if np.min(idx) < 0 else int(np.max(idx))} is out of range for size {size}")
    return idx


def _scatter_rule(types: Types, a: Attrs) -> Types:
    x, idx, v = types
    want = _take_rule((x, idx), a)[0]
    if v != want:
        raise AotgradTypeError(f"scatter: value {v} should be {want}")
    return (x,)


def _scatter_ref(x: Any, idx: Any, v: Any, dim: int) -> Any:
    out = np.moveaxis(np.array(x), dim, 0)
    value = np.moveaxis(v.reshape(*x.shape[:dim], idx.size, *x.shape[dim + 1:]), dim, 0)
    for row, i in enumerate(_checked(idx, x.shape[dim]).ravel()):
        out[i] = value[row]
    return np.ascontiguousarray(np.moveaxis(out, 0, dim))


def _scatter_add_ref(x: Any, idx: Any, v: Any, dim: int) -> Any:
    out = np.moveaxis(np.array(x), dim, 0)
    value = np.moveaxis(v.reshape(*x.shape[:dim], idx.size, *x.shape[dim + 1:]), dim, 0)
    np.add.at(out, _checked(idx, x.shape[dim]).ravel(), value)
    return np.ascontiguousarray(np.moveaxis(out, 0, dim))


def _take_transpose(b: Any, ct: Any, op: Any) -> dict[int, Any]:
    return {0: Accumulate(op.operands[0], lambda acc: b.scatter_add(acc, op.operands[1], ct, dim=op.attrs["dim"]))}


def _scatter_transpose(b: Any, ct: Any, op: Any) -> dict[int, Any]:
    # Of repeated indices the last write stays: only its row sees the cotangent. Which row won is found by scattering row numbers; one write has won.
    x, idx, v = op.operands
    dim = op.attrs["dim"]
    count = dimlib.product(idx.type.shape)
    rest = b.scatter(ct, idx, b.zeros(v), dim=dim)
    if count == 1:  # in a loop that writes one row a round, a mask of x's length would make the gradient quadratic
        return {0: rest, 2: b.take(ct, idx, dim=dim)}
    flat = b.to_shape(idx, (count,))
    rows = b.iota(shape=(count,), dim=0, dtype=int64)
    winner = b.scatter(b.full(shape=(x.shape[dim],), value=-1, dtype=int64), flat, rows, dim=0)
    size = b.full_like(flat, x.shape[dim]) if isinstance(x.shape[dim], int) else b.broadcast(b.size(dim=x.shape[dim]), shape=flat.type.shape, dims=())
    inside = b.logical_and(b.ge(flat, b.full_like(flat, 0)), b.lt(flat, size))  # without checks, a row out of range is not written
    won = b.to_shape(b.logical_and(inside, b.eq(b.take(winner, flat, dim=0), rows)), idx.type.shape)
    mask = b.broadcast(won, shape=v.shape, dims=tuple(range(dim, dim + len(idx.type.shape))))
    return {0: rest, 2: b.where(mask, b.take(ct, idx, dim=dim), b.zeros(v))}


def _own_rows(b: Any, idx: Any, n: Any, size: Any, axis: int) -> Any:
    """Indices of each example into the ``n`` rows of its own, as rows of all examples' together; what is out of range for ``n`` is so there."""
    made = idx.op is not None and idx.op.name == "row_index"  # checked here, where the numbers are still the user's
    attrs = idx.op.attrs if made else {"extents": (n,), "axes": (axis,), "sure": (False,), "wrap": False}
    wide = b.emit("row_index", idx.op.operands if made else [b.to_dtype(idx, int64)], {**attrs, "checked": True})[0]

    def number(d: Any) -> Any:
        return b.full_like(wide, d) if isinstance(d, int) else b.broadcast(b.size(dim=d), shape=wide.type.shape, dims=())

    first = b.mul(b.iota(shape=wide.type.shape, dim=0, dtype=int64), number(n))
    beyond = b.where(b.ge(wide, number(n)), b.add(wide, number((size - 1) * n)), wide)
    inside = b.logical_and(b.ge(wide, number(0)), b.lt(wide, number(n)))
    return b.where(inside, b.add(wide, first), beyond)


def _rows_first(b: Any, x: Any, dim: int, count: int, size: Any) -> tuple[Any, Any]:
    """``count`` dims from ``dim`` (of an example) moved behind the new one and, where it is one, made one with it; and how to undo the move."""
    rank = len(x.type.shape)
    perm = (0, *range(dim + 1, dim + 1 + count), *range(1, dim + 1), *range(dim + 1 + count, rank))
    moved = b.to_perm(x, perm)
    shape = moved.type.shape
    return (b.to_shape(moved, (size * shape[1], *shape[2:])) if count == 1 else moved), (shape, _inverse_perm(perm))


def _take_batch(b: Any, op: Any, xs: Sequence[Any], on: Sequence[bool], size: Any) -> Any:
    (x, idx), dim = xs, op.attrs["dim"]
    block = len(idx.type.shape)
    if not on[1]:
        return b.take(x, idx, dim=dim + 1)
    if not on[0]:
        out = b.take(x, idx, dim=dim)
        return b.to_perm(out, (dim, *range(dim), *range(dim + 1, len(out.type.shape))))
    rows, _ = _rows_first(b, x, dim, 1, size)
    out = b.take(rows, _own_rows(b, idx, x.type.shape[dim + 1], size, dim), dim=0)  # new dim, the index's, those before dim, those after
    return b.to_perm(out, (0, *range(block, block + dim), *range(1, block), *range(block + dim, len(out.type.shape))))


def _scatter_batch(b: Any, op: Any, xs: Sequence[Any], on: Sequence[bool], size: Any) -> Any:
    dim = op.attrs["dim"]
    x, v = (spread(b, xs[i], on[i], size) for i in (0, 2))
    if not on[1]:
        return b.emit(op.name, [x, xs[1], v], {"dim": dim + 1})
    rows, (shape, inverse) = _rows_first(b, x, dim, 1, size)
    values, _ = _rows_first(b, v, dim, len(xs[1].type.shape) - 1, size)
    values = b.to_shape(values, (*xs[1].type.shape, *shape[2:]))
    out = b.emit(op.name, [rows, _own_rows(b, xs[1], x.type.shape[dim + 1], size, dim), values], {"dim": 0})[0]
    return b.to_perm(b.to_shape(out, shape), inverse)


def _take_samples() -> Iterable[Sample]:
    for s, dim, idx in (((5,), 0, [0, 3, 3]), ((4, 3), 1, [[2, 0], [1, 1]]), ((4, 3), 0, 2), ((3, 2), 0, np.zeros((0,)))):
        yield Sample((_x(*s), np.asarray(idx, np.int64)), {"dim": dim}, f"{s}{dim}")


def _scatter_samples() -> Iterable[Sample]:
    for sample in _take_samples():
        x, idx = sample.operands
        yield Sample((x, idx, np.random.default_rng(2).normal(size=np.take(x, idx, sample.attrs["dim"]).shape)), sample.attrs, sample.name)


register(OpDef(
    "take", "x indexed along ``dim`` by an integer array; indices in [0, size).", ("x", "index"), _take_rule,
    lambda x, idx, dim: np.take(x, _checked(idx, x.shape[dim]), axis=dim),
    Linear(_take_transpose, (0,)), Kernel("take"), {"dim": 0}, _take_samples, exact=True, batch=_take_batch, layouts="moved", moved=_take_layout))
register(OpDef(
    "scatter_add", "x with v added at the indices along ``dim``; repeated indices add up.", ("x", "index", "v"), _scatter_rule, _scatter_add_ref,
    Linear(lambda b, ct, op: {0: ct, 2: b.take(ct, op.operands[1], dim=op.attrs["dim"])}, (0, 2)), Kernel("scatter_add"), {"dim": 0}, _scatter_samples, exact=True,
    batch=_scatter_batch, layouts="moved", moved=_take_layout))
register(OpDef(
    "scatter", "x with v written at the indices along ``dim``; of repeated indices the last stays.", ("x", "index", "v"), _scatter_rule, _scatter_ref,
    Linear(_scatter_transpose, (0, 2)), Kernel("scatter"), {"dim": 0}, _scatter_samples, exact=True, batch=_scatter_batch, layouts="moved", moved=_take_layout))


def _pad_body(b: Any, x: Any, low: Any, high: Any, value: Any) -> Any:
    shape = tuple(lo + n + hi for lo, n, hi in zip(low, x.type.shape, high))
    base = b.full_like(TensorType(shape, x.type.dtype, _image_layout([x.type])), value)
    return b.insert(base, x, starts=tuple(low), steps=(1,) * len(shape))


register(OpDef(
    "pad", "x with ``low[d]`` and ``high[d]`` copies of ``value`` around it.", ("x",), None, None, Composite(_pad_body),
    attrs={"low": REQUIRED, "high": REQUIRED, "value": 0},
    samples=lambda: (Sample((_x(2, 3),), {"low": (1, 0), "high": (0, 2), "value": 0.5}, "2d"), Sample((_x(0),), {"low": (1,), "high": (1,), "value": 0.0}, "empty")),
    layouts="any"))
