"""Public functions that rearrange arrays: reshape, stack, split, flip, roll, pad, tile, tril, diag, factories. Composites of the moves in ``shape``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

import numpy as np

from aotgrad_runtime.dtypes import as_dtype, bool_, int64
from aotgrad_runtime.errors import AotgradArgumentError, AotgradDimError, AotgradTypeError, AotgradValueError

from .. import dims as dimlib
from ..opdef import REQUIRED, Composite, Front, OpDef, Sample, register
from .common import at_least, empty_is_all, norm_dim, norm_dims

__all__: list[str] = []


def _x(*shape: int) -> Any:
    return np.random.default_rng(21).normal(size=shape)


def _one(*cases: tuple[tuple[int, ...], Mapping[str, Any]]) -> Any:
    return lambda: (Sample((_x(*shape),), attrs, f"{shape}{list(attrs.values())}") for shape, attrs in cases)


def _sizes(given: Sequence[Any]) -> tuple[Any, ...]:
    """``f(x, 2, 3)`` and ``f(x, (2, 3))`` mean the same."""
    return tuple(given[0]) if len(given) == 1 and isinstance(given[0], (tuple, list)) else tuple(given)


def _whole_sizes(given: Sequence[Any]) -> tuple[Any, ...]:
    """The same, where each has to be an integer or a size."""
    if len(given) == 1 and isinstance(given[0], np.ndarray):
        given = given[0].tolist()
    return tuple([d if isinstance(d, dimlib.Dim) else index(d) for d in _sizes(given)])


def _move(name: str, doc: str, body: Any, attrs: Mapping[str, Any], samples: Any, front: Front, operands: tuple[str, ...] = ("x",), layouts: str = "row_major") -> None:
    register(OpDef(name, doc, operands, None, None, Composite(body), attrs=attrs, samples=samples, front=front, layouts=layouts))


# ---- reshaping ------------------------------------------------------------------------------------------------------------------

def _unfilled(shape: Sequence[Any], total: Any) -> str:
    return f"shape '{list(shape)}' is invalid for input of size {total}"


def _full_shape(b: Any, x: Any, shape: Sequence[Any]) -> tuple[Any, ...]:
    """The target with -1 worked out, of which the other sizes must say something: beside a size of 0 it could be anything."""
    holes = [i for i, d in enumerate(shape) if isinstance(d, int) and d == -1]
    if len(holes) > 1:
        raise AotgradValueError("only one dimension can be inferred: one size may be -1")
    out = list(shape)
    if holes:
        rest = dimlib.product(d for i, d in enumerate(shape) if i != holes[0])
        total = x.type.size
        if 0 in (rest, b.trace.example(rest)):
            raise AotgradValueError(f"{_unfilled(b.numbers(shape), *b.numbers([total]))}: beside a size of 0, -1 can be anything; write the size")
        if isinstance(rest, int) and isinstance(total, int) and total % rest:
            raise AotgradValueError(_unfilled(shape, total))
        at_least(b, rest, 1, "reshape")
        out[holes[0]] = dimlib.floordiv(total, rest)
    if any(isinstance(d, int) and d < 0 for d in out):
        raise AotgradValueError(f"reshape: negative size in {list(shape)}")
    return tuple(out)


def _view_canon(b: Any, x: Any, *shape: Any) -> Any:
    target = _full_shape(b, x, _whole_sizes(shape))
    b.join_product(x.type.size, dimlib.product(target), f"reshape to {target}", lambda: _unfilled(b.numbers(target), *b.numbers([x.type.size])))
    return b.view(x, shape=target)


_RESHAPES = _one(((2, 6), {"shape": (3, 4)}), ((6,), {"shape": (2, 3)}), ((1,), {"shape": ()}), ((0, 2), {"shape": (0,)}))
_move("view", "x with another shape.", lambda b, x, shape: b.to_shape(x, shape), {"shape": REQUIRED}, _RESHAPES,
      Front("view(input, *shape)", _view_canon, "none", ("reshape",), "reshape(input, *shape)", aliases=("reshape",)))


def _flatten_canon(b: Any, x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    rank = len(x.type.shape)
    if rank == 0:
        return b.view(x, shape=(1,))
    lo, hi = norm_dim(start_dim, rank, "start_dim"), norm_dim(end_dim, rank, "end_dim")
    if lo > hi:
        raise AotgradValueError("flatten: start_dim comes after end_dim")
    if lo == hi:
        return x
    shape = x.type.shape
    return b.flatten(x, shape=(*shape[:lo], dimlib.product(shape[lo:hi + 1]), *shape[hi + 1:]))


_move("flatten", "Dims start_dim to end_dim as one.", lambda b, x, shape: b.to_shape(x, shape), {"shape": REQUIRED}, _RESHAPES,
      Front("flatten(input, start_dim=0, end_dim=-1)", _flatten_canon, "none", ("ravel",), "ravel(input)",
            np_canon=lambda b, x: b.flatten(x, shape=(x.type.size,)), aliases=("ravel",)))


def _unflatten_canon(b: Any, x: Any, dim: int, sizes: Any) -> Any:
    at, parts = _dim_of(x, dim, "unflatten", AotgradDimError), list(_whole_sizes((sizes,)))
    if not parts:
        raise AotgradArgumentError("unflatten: sizes must be non-empty")
    n, holes = x.type.shape[at], [i for i, d in enumerate(parts) if isinstance(d, int) and d == -1]
    if len(holes) > 1:
        raise AotgradArgumentError("only one dimension can be inferred: one of sizes may be -1")
    known = dimlib.product(d for i, d in enumerate(parts) if i not in holes)
    if holes:
        if 0 in (known, b.trace.example(known)):
            raise AotgradArgumentError(f"unflatten: beside a size of 0, -1 can be anything in sizes {b.numbers(parts)}; write the size")
        at_least(b, known, 1, "unflatten")
        parts[holes[0]] = dimlib.floordiv(n, known)
    if isinstance(n, int) and isinstance(known, int) and n != dimlib.product(parts):
        shown = [-1 if i in holes else d for i, d in enumerate(parts)]
        raise AotgradArgumentError(f"unflatten: Provided sizes {shown} don't multiply up to the size of dim {at} ({n}) in the input tensor")
    b.equate(n, dimlib.product(parts), "unflatten")
    shape = b.refresh(x).type.shape
    return b.unflatten(x, shape=(*shape[:at], *parts, *shape[at + 1:]))


_move("unflatten", "A dim as several, of sizes that multiply up to its size (one may be -1).", lambda b, x, shape: b.to_shape(x, shape), {"shape": REQUIRED}, _RESHAPES,
      Front("unflatten(input, dim, sizes)", _unflatten_canon, "none"))


def _unsqueeze_canon(b: Any, x: Any, dim: Any) -> Any:
    rank, where = len(x.type.shape), dim if isinstance(dim, (tuple, list)) else (dim,)
    total = rank + len(where)
    at = norm_dims(tuple(where), total)
    rest = iter(x.type.shape)
    return b.unsqueeze(x, shape=tuple(1 if i in at else next(rest) for i in range(total)))


_move("unsqueeze", "A new dim of size 1.", lambda b, x, shape: b.to_shape(x, shape), {"shape": REQUIRED}, _one(((2, 3), {"shape": (2, 1, 3)})),
      Front("unsqueeze(input, dim)", _unsqueeze_canon, "none", ("expand_dims",), "expand_dims(input, dim)", inplace=True))


def _squeeze_canon(b: Any, x: Any, dim: Any = None) -> Any:
    shape = x.type.shape
    gone = [i for i in norm_dims(dim, len(shape)) if b.trace.same(shape[i], 1)]
    shape = b.refresh(x).type.shape
    return b.squeeze(x, shape=tuple(d for i, d in enumerate(shape) if i not in gone))


def _np_squeeze(b: Any, x: Any, dim: Any = None) -> Any:
    for i in () if dim is None else norm_dims(dim, len(x.type.shape), "axis"):
        b.equate(x.type.shape[i], 1, f"squeeze: axis {i} is not of size 1")
    return _squeeze_canon(b, b.refresh(x), dim)


_move("squeeze", "Dims of size 1 left out.", lambda b, x, shape: b.to_shape(x, shape), {"shape": REQUIRED}, _one(((2, 1, 3), {"shape": (2, 3)})),
      Front("squeeze(input, dim=None)", _squeeze_canon, "none", ("squeeze",), np_canon=_np_squeeze, inplace=True))


def _unexpanded(i: int, target: Sequence[Any], shape: Sequence[Any]) -> str:
    return (f"The expanded size of the tensor ({target[i]}) must match the existing size ({shape[i - len(target)]}) at non-singleton dimension {i}.  "
            f"Target sizes: {target}.  Tensor sizes: {shape}")


def _expand_canon(b: Any, x: Any, *sizes: Any) -> Any:
    shape = x.type.shape
    target = list(_whole_sizes(sizes))
    lead = len(target) - len(shape)
    if lead < 0:
        raise AotgradValueError(f"expand: {len(target)} sizes for an array of rank {len(shape)}")
    for i, d in enumerate(target):
        if isinstance(d, int) and d == -1:
            if i < lead:
                raise AotgradValueError("expand: -1 cannot stand for a new leading dim")
            target[i] = shape[i - lead]
        elif i >= lead and shape[i - lead] != 1:
            (b.equate if d == 1 else b.join)(shape[i - lead], d, "expand", lambda i=i: _unexpanded(i, b.numbers(target), b.numbers(shape)))
    return b.spread(x, shape=tuple(target))


_move("spread", "x broadcast to a shape (torch's expand).", lambda b, x, shape: b.expand(x, shape), {"shape": REQUIRED},
      _one(((3,), {"shape": (2, 3)}), ((2, 1), {"shape": (2, 4)})),
      Front("expand(input, *sizes)", _expand_canon, "none", ("broadcast_to",), "broadcast_to(input, *sizes)", aliases=("broadcast_to",)))


def _unexpandable(size: Sequence[Any], shape: Sequence[Any]) -> AotgradArgumentError:
    return AotgradArgumentError(f"size {{{list(size)}}} is not expandable to size {{{list(shape)}}}.")


def _sum_to_size_body(b: Any, x: Any, dims: Any, shape: Any) -> Any:
    return b.to_shape(b.sum(x, dims=dims), shape)


def _sum_to_size_canon(b: Any, x: Any, *size: Any) -> Any:
    target, shape = _whole_sizes(size), x.type.shape
    lead = len(shape) - len(target)
    if lead < 0:
        raise _unexpandable(target, shape)
    dims = list(range(lead))
    for i, (have, want) in enumerate(zip(shape[lead:], target), lead):
        if isinstance(want, int) and want == 1:
            dims += [] if isinstance(have, int) and have == 1 else [i]
        elif isinstance(have, int) and isinstance(want, int) and have != want:
            raise _unexpandable(target, shape)
        else:
            b.equate(have, want, f"sum_to_size: dim {i}")
    if not dims:
        return x
    x = b.refresh(x) if x.type.dtype.kind in "fc" else b.to_dtype(x, int64)
    kept = tuple(1 if i in dims else d for i, d in enumerate(x.type.shape))
    return b.sum_to_size(x, dims=tuple(dims), shape=kept[lead:])


_move("sum_to_size", "x summed over the dims in which ``size`` is 1, and over those it has not: what broadcasting ``size`` to x has as its adjoint.", _sum_to_size_body,
      {"dims": REQUIRED, "shape": REQUIRED}, _one(((2, 3), {"dims": (1,), "shape": (2, 1)}), ((2, 3, 4), {"dims": (0, 2), "shape": (3, 1)})),
      Front("sum_to_size(input, *size)", _sum_to_size_canon, "none", function=False))


# ---- order of dims --------------------------------------------------------------------------------------------------------------

def _reorder(b: Any, x: Any, perm: Sequence[int]) -> Any:
    return b.reorder(x, perm=tuple(perm))


def _transpose_canon(b: Any, x: Any, dim0: int, dim1: int) -> Any:
    rank = len(x.type.shape)
    perm = list(range(rank))
    i, j = norm_dim(dim0, rank, "dim0"), norm_dim(dim1, rank, "dim1")
    if rank:
        perm[i], perm[j] = perm[j], perm[i]
    return b.to_perm(x, perm)


def _permute_canon(b: Any, x: Any, *dims: Any) -> Any:
    order = _sizes(dims)
    if len(order) != len(x.type.shape):
        raise AotgradValueError(f"permute: {len(order)} dims were given for an array of rank {len(x.type.shape)}; name each dim once")
    return _reorder(b, x, [norm_dim(d, len(x.type.shape)) for d in order])


def _np_transpose(b: Any, x: Any, *axes: Any) -> Any:
    order = _sizes(axes)
    rank = len(x.type.shape)
    return _reorder(b, x, [norm_dim(a, rank, "axes") for a in order] if order and order != (None,) else list(reversed(range(rank))))


def _movedim_canon(b: Any, x: Any, source: Any, destination: Any) -> Any:
    rank = len(x.type.shape)
    src = [norm_dim(s, rank, "source") for s in (source if isinstance(source, (tuple, list)) else (source,))]
    dst = [norm_dim(d, rank, "destination") for d in (destination if isinstance(destination, (tuple, list)) else (destination,))]
    order = [i for i in range(rank) if i not in src]
    for d, s in sorted(zip(dst, src)):
        order.insert(d, s)
    return _reorder(b, x, order)


_PERMS = _one(((2, 3), {"perm": (1, 0)}), ((2, 3, 4), {"perm": (2, 0, 1)}))
_move("reorder", "x with its dims in another order (torch's permute).", lambda b, x, perm: b.to_perm(x, perm), {"perm": REQUIRED}, _PERMS,
      Front("permute(input, *dims)", _permute_canon, "none", ("transpose", "permute_dims"), "transpose(input, *axes)", _np_transpose))
_move("swap", "Two dims exchanged (torch's transpose).", lambda b, x, perm: b.to_perm(x, perm), {"perm": REQUIRED}, _PERMS,
      Front("transpose(input, dim0, dim1)", _transpose_canon, "none", ("swapaxes",), "swapaxes(input, dim0, dim1)", inplace=True, aliases=("swapaxes", "swapdims")))
_move("movedim", "Dims moved to other places.", lambda b, x, perm: b.to_perm(x, perm), {"perm": REQUIRED}, _PERMS,
      Front("movedim(input, source, destination)", _movedim_canon, "none", ("moveaxis",), "moveaxis(input, source, destination)", aliases=("moveaxis",)))


# ---- joining and splitting ------------------------------------------------------------------------------------------------------

def _join_canon(b: Any, xs: Sequence[Any], dim: int = 0) -> Any:
    if not xs:
        raise AotgradValueError("expected a non-empty list of Tensors")
    rank = len(xs[0].type.shape)
    if rank == 0:
        raise AotgradValueError("cat: 0-d arrays cannot be joined; use stack")
    d = norm_dim(dim, rank)
    for k, x in enumerate(xs):
        if len(x.type.shape) != rank:
            raise AotgradValueError(f"Tensors must have same number of dimensions: got {rank} and {len(x.type.shape)}")
        for i in range(rank):
            if i != d:
                p, q = xs[0].type.shape[i], x.type.shape[i]
                b.equate(p, q, f"cat: dim {i}", lambda p=p, q=q, k=k: f"Sizes of tensors must match except in dimension {d}. "
                         f"Expected size {b.numbers([p])[0]} but got size {b.numbers([q])[0]} for tensor number {k} in the list.")
    return b.emit("cat", xs, {"dim": d})[0]


def _stack_canon(b: Any, xs: Sequence[Any], dim: int = 0) -> Any:
    if not xs:
        raise AotgradValueError("stack expects a non-empty list of tensors")
    rank = len(xs[0].type.shape)
    for k, x in enumerate(xs):
        def say(k: int = k, x: Any = x) -> str:
            return f"stack expects each tensor to be equal size, but got {b.numbers(xs[0].type.shape)} at entry 0 and {b.numbers(x.type.shape)} at entry {k}"

        if len(x.type.shape) != rank:
            raise AotgradValueError(say())
        for p, q in zip(xs[0].type.shape, x.type.shape):
            b.equate(p, q, "stack", say)
    return b.emit("stack", xs, {"dim": norm_dim(dim, rank + 1)})[0]


def _stack_body(b: Any, *xs: Any, dim: int) -> Any:
    shape = xs[0].type.shape
    return b.concatenate(*(b.to_shape(x, (*shape[:dim], 1, *shape[dim:])) for x in xs), dim=dim)


_PAIR = lambda: (Sample((_x(2, 3), _x(2, 3) + 1.0), {"dim": d}, str(d)) for d in (0, 1))
_move("cat", "Arrays joined along ``dim``.", lambda b, *xs, dim: b.concatenate(*xs, dim=dim), {"dim": 0}, _PAIR,
      Front("cat(tensors, dim=0)", _join_canon, "contract", ("concatenate", "concat"), "concatenate(tensors, dim=0, out=None)", method=False,
            aliases=("concatenate", "concat"),
            tensors=("tensors",)), ("xs*",), "any")
_move("stack", "Arrays stacked along a new ``dim``.", _stack_body, {"dim": 0}, _PAIR,
      Front("stack(tensors, dim=0)", _stack_canon, "contract", ("stack",), "stack(tensors, dim=0, out=None)", method=False, tensors=("tensors",)), ("xs*",))


def _piece(b: Any, x: Any, dim: int, start: Any, size: Any) -> Any:
    shape = x.type.shape
    return b.slice(x, starts=tuple(start if i == dim else 0 for i in range(len(shape))),
                   sizes=tuple(size if i == dim else n for i, n in enumerate(shape)), steps=(1,) * len(shape))


def _split_body(b: Any, x: Any, sizes: Any, dim: int) -> Any:
    out, start = [], 0
    for size in sizes:
        out.append(_piece(b, x, dim, start, size))
        start = start + size
    return tuple(out)


def _dim_of(x: Any, dim: Any, what: str, error: type[AotgradValueError] = AotgradValueError) -> int:
    """The dim that ``what`` takes apart: there must be one."""
    if not x.type.shape:
        raise error(f"{what}: the input is 0-d; it has no dim {dim}")
    return norm_dim(dim, len(x.type.shape))


def _split_canon(b: Any, x: Any, split_size_or_sections: Any, dim: int = 0) -> Any:
    d = _dim_of(x, dim, "split")
    total, given = x.type.shape[d], split_size_or_sections
    if isinstance(given, (tuple, list)):
        for size in given:
            at_least(b, size, 0, "split: a section is negative")
        b.equate(dimlib_sum(given), total, "split: the sections must add up to the size")
        return _many(b.split(x, sizes=tuple(given), dim=d))
    total, step = int(total), int(given)
    if step <= 0:
        raise AotgradValueError("split: split_size must be positive")
    return _many(b.split(x, sizes=tuple(min(step, total - i) for i in range(0, total, step)) or (0,), dim=d))


def dimlib_sum(sizes: Sequence[Any]) -> Any:
    total: Any = 0
    for s in sizes:
        total = total + s
    return total


def _many(out: Any) -> tuple[Any, ...]:
    return out if isinstance(out, tuple) else (out,)


def _np_split(b: Any, x: Any, indices_or_sections: Any, dim: int = 0) -> Any:
    d = _dim_of(x, dim, "split")
    total, given = x.type.shape[d], indices_or_sections
    if isinstance(given, (tuple, list)):
        edges = [0, *given]
        if all(isinstance(e, int) for e in edges) and edges == sorted(edges) and (b.trace.example(total) or 0) >= edges[-1]:
            at_least(b, total, edges[-1], "split")
            return _many(b.split(x, sizes=tuple(hi - lo for lo, hi in zip(edges, [*given, total])), dim=d))
        n = int(total)  # edges out of order, beyond the end or from the end: as Python slices
        parts = [slice(int(lo), int(hi)).indices(n)[:2] for lo, hi in zip(edges, [*given, n])]
        return tuple(_piece(b, x, d, lo, max(hi - lo, 0)) for lo, hi in parts)
    n = int(given)
    if int(total) % n:
        raise AotgradValueError(f"split: size {total} is not divisible into {n} equal parts")
    return _many(b.split(x, sizes=(int(total) // n,) * n, dim=d))


def _chunk_canon(b: Any, x: Any, chunks: int, dim: int = 0) -> Any:
    if not isinstance(chunks, (int, np.integer)) or chunks < 1:
        raise AotgradValueError(f"chunk: chunks={chunks!r} must be a whole number above 0")
    total = int(x.type.shape[_dim_of(x, dim, "chunk")])
    return _split_canon(b, x, max(1, -(-total // int(chunks))), dim)


def _unbind_canon(b: Any, x: Any, dim: int = 0) -> Any:
    d = _dim_of(x, dim, "unbind", AotgradDimError)
    shape = x.type.shape
    return tuple(b.to_shape(_piece(b, x, d, i, 1), (*shape[:d], *shape[d + 1:])) for i in range(int(shape[d])))


_move("split", "Pieces along ``dim``.", _split_body, {"sizes": REQUIRED, "dim": 0}, _one(((5, 2), {"sizes": (2, 3), "dim": 0}), ((2, 4), {"sizes": (4,), "dim": 1})),
      Front("split(tensor, split_size_or_sections, dim=0)", _split_canon, "none", ("split",), "split(tensor, indices_or_sections, dim=0)", _np_split))
_move("chunk", "About equal pieces along ``dim``.", _split_body, {"sizes": REQUIRED, "dim": 0}, _one(((5, 2), {"sizes": (3, 2), "dim": 0})),
      Front("chunk(input, chunks, dim=0)", _chunk_canon, "none"))
_move("unbind", "Slices along ``dim``, which goes.", _split_body, {"sizes": REQUIRED, "dim": 0}, _one(((2, 2), {"sizes": (1, 1), "dim": 0})),
      Front("unbind(input, dim=0)", _unbind_canon, "none"))


def _narrow_canon(b: Any, x: Any, dim: int, start: Any, length: Any) -> Any:
    d = _dim_of(x, dim, "narrow")
    n = x.type.shape[d]
    begin = start if not isinstance(start, int) or start >= 0 else n + start
    at_least(b, begin, 0, f"narrow: start {start} is before the front of dim {d}")
    at_least(b, length, 0, "narrow: the length is negative")
    at_least(b, n, begin + length, f"narrow: dim {d} ends before start {start} + length {length}")
    return _piece(b, x, d, begin, length)


_move("narrow", "``length`` elements from ``start`` along ``dim``.", lambda b, x, start, length, dim: _piece(b, x, dim, start, length),
      {"start": REQUIRED, "length": REQUIRED, "dim": 0},
      _one(((5, 2), {"start": 1, "length": 3, "dim": 0})), Front("narrow(input, dim, start, length)", _narrow_canon, "none"))


# ---- order of elements ------------------------------------------------------------------------------------------------------------

def _flip_body(b: Any, x: Any, dims: Any) -> Any:
    shape = x.type.shape
    return b.slice(x, starts=tuple(n - 1 if i in dims else 0 for i, n in enumerate(shape)), sizes=shape, steps=tuple(-1 if i in dims else 1 for i in range(len(shape))))


def _flip_canon(b: Any, x: Any, dims: Any = None) -> Any:
    return b.flip(x, dims=norm_dims(dims, len(x.type.shape), "dims"))


_move("flip", "Elements in reverse order along ``dims``.", _flip_body, {"dims": REQUIRED}, _one(((3, 2), {"dims": (0,)}), ((2, 3), {"dims": (0, 1)})),
      Front("flip(input, dims)", _flip_canon, "none"), layouts="any")


def _roll_body(b: Any, x: Any, shifts: Any, dims: Any) -> Any:
    for s, d in zip(shifts, dims):
        n = x.type.shape[d]
        if n == 0:
            continue
        k = dimlib.mod(s, n if isinstance(n, int) else dimlib.maximum(n, 1))
        x = b.concatenate(_piece(b, x, d, n - k, k), _piece(b, x, d, 0, n - k), dim=d)
    return x


def _roll_canon(b: Any, x: Any, shifts: Any, dims: Any = None) -> Any:
    given = shifts if isinstance(shifts, (tuple, list)) else (shifts,)
    for s in given:
        if not isinstance(s, (int, np.integer, dimlib.Dim)):
            raise AotgradTypeError(f"roll: the shift {s!r} is not a whole number")
    if dims is None:
        flat = b.roll(b.to_shape(x, (x.type.size,)), shifts=(dimlib_sum(given),), dims=(0,))
        return b.to_shape(flat, x.type.shape)
    where = dims if isinstance(dims, (tuple, list)) else (dims,)
    if len(given) != len(where):
        raise AotgradValueError("roll: shifts and dims differ in number")
    return b.roll(x, shifts=tuple(given), dims=tuple(_dim_of(x, d, "roll", AotgradDimError) for d in where))


_move("roll", "Elements shifted along ``dims``, coming back at the other end.", _roll_body, {"shifts": REQUIRED, "dims": REQUIRED},
      _one(((5,), {"shifts": (2,), "dims": (0,)}), ((2, 3), {"shifts": (-1, 4), "dims": (0, 1)})),
      Front("roll(input, shifts, dims=None)", _roll_canon, "none", ("roll",)), layouts="any")


def _tile_body(b: Any, x: Any, reps: Any) -> Any:
    shape = x.type.shape
    spread = b.broadcast(x, shape=tuple(v for r, n in zip(reps, shape) for v in (r, n)), dims=tuple(2 * i + 1 for i in range(len(shape))))
    return b.to_shape(spread, tuple(r * n for r, n in zip(reps, shape)))


def _tile_canon(b: Any, x: Any, *dims: Any) -> Any:
    reps, shape = _whole_sizes(dims), x.type.shape
    if any(isinstance(n, int) and n < 0 for n in reps):
        raise AotgradArgumentError(f"tile: {list(reps)} has a negative count")
    rank = max(len(reps), len(shape))
    return b.tile(b.to_shape(x, (1,) * (rank - len(shape)) + tuple(shape)), reps=(1,) * (rank - len(reps)) + tuple(reps))


_move("tile", "x repeated along each dim, as often as its number says.", _tile_body, {"reps": REQUIRED}, _one(((2, 3), {"reps": (2, 1)}), ((3,), {"reps": (2,)})),
      Front("tile(input, *dims)", _tile_canon, "none", ("tile",), aliases=("repeat",)))


def _pad_canon(b: Any, x: Any, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    rank = len(x.type.shape)
    if len(pad) % 2 or len(pad) > 2 * rank:
        raise AotgradValueError(f"pad: {len(pad)} numbers do not pair up with the last dims of an array of rank {rank}")
    low, high = [0] * rank, [0] * rank
    for i in range(len(pad) // 2):
        low[rank - 1 - i], high[rank - 1 - i] = pad[2 * i], pad[2 * i + 1]
    if mode == "constant":
        return _padded(b, x, low, high, 0 if value is None else value)
    if value is not None and value != 0:
        raise AotgradValueError(f"pad: padding mode {mode!r} doesn't take in value argument")
    return _continued(b, x, low, high, mode, ("reflect", "replicate", "circular"))


_BORDERS: dict[str, tuple[int, bool]] = {"reflect": (1, True), "symmetric": (0, True), "circular": (0, False)}
_BORDERS["wrap"] = _BORDERS["circular"]
"""How many elements at the end a border leaves out, and whether it is a mirror image of those behind; it comes from the other end where it is none."""


def _continued(b: Any, x: Any, low: Sequence[Any], high: Sequence[Any], mode: Any, modes: Sequence[str]) -> Any:
    """``x`` with borders made of its own elements, one dim after the other."""
    if mode not in modes:
        raise AotgradValueError(f"pad: mode {mode!r} is not available; use one of {', '.join(map(repr, ('constant', *modes)))}")
    for d, ends in enumerate(zip(low, high)):
        n, parts = x.type.shape[d], [x]
        for back, p in enumerate(ends):
            if isinstance(p, int) and p <= 0:
                if p < 0:
                    raise AotgradValueError(f"pad: {p} in mode {mode!r}; cut with x[a:b] instead")
                continue
            left_out, mirror = _BORDERS.get(mode, (0, False))
            if mode in ("replicate", "edge"):
                at_least(b, n, 1, f"pad: dim {d} has no element to repeat in mode {mode!r}")
                shape = (*x.type.shape[:d], p, *x.type.shape[d + 1:])
                part = b.spread(_piece(b, x, d, n - 1 if back else 0, 1), shape=shape)
            else:
                at_least(b, n, p + left_out, f"pad: dim {d} is too short for a border of {dimlib.to_text(p)} in mode {mode!r}")
                part = _piece(b, x, d, n - p - left_out if bool(back) is mirror else left_out, p)
                part = b.flip(part, dims=(d,)) if mirror else part
            parts.insert(len(parts) if back else 0, part)
        x = b.concatenate(*parts, dim=d) if len(parts) > 1 else x
    return x


def _padded(b: Any, x: Any, low: Sequence[Any], high: Sequence[Any], value: Any) -> Any:
    shape = x.type.shape
    cut_lo = [max(0, -p) if isinstance(p, int) else 0 for p in low]
    cut_hi = [max(0, -p) if isinstance(p, int) else 0 for p in high]
    if any(cut_lo) or any(cut_hi):
        for d, (n, p, q) in enumerate(zip(shape, cut_lo, cut_hi)):
            at_least(b, n, p + q, f"pad: dim {d} is shorter than what is cut from it")
        x = b.slice(x, starts=tuple(cut_lo), sizes=tuple(n - p - q for n, p, q in zip(shape, cut_lo, cut_hi)), steps=(1,) * len(shape))
    return b.pad(x, low=tuple(p + c for p, c in zip(low, cut_lo)), high=tuple(p + c for p, c in zip(high, cut_hi)), value=value)


def _np_pad(b: Any, x: Any, pad_width: Any, mode: str = "constant", constant_values: Any = 0) -> Any:
    rank = len(x.type.shape)
    widths = np.asarray(pad_width, object)  # sizes stay open
    if not all(isinstance(w, (int, np.integer, dimlib.Dim)) and not isinstance(w, bool) for w in widths.flat):
        raise AotgradTypeError(f"pad: pad_width={_shown(pad_width)} must be whole numbers, or sizes such as x.shape[0]")
    negative = f"pad: pad_width={_shown(pad_width)} has a negative number, which NumPy's pad does not take; cut with x[a:b] instead"
    if any(isinstance(w, (int, np.integer)) and w < 0 for w in widths.flat):
        raise AotgradValueError(negative)
    try:
        pairs = np.broadcast_to(widths, (rank, 2)).tolist()
    except ValueError:
        raise AotgradValueError(f"pad: pad_width={_shown(pad_width)} does not give (before, after) for each of {rank} dims") from None
    for w in widths.flat:
        if isinstance(w, dimlib.Dim) and dimlib.minimum(w, 0) != 0:
            n = b.trace.example(w)
            if n is not None and n < 0:
                raise AotgradValueError(negative)
            b.trace.require(dimlib.minimum(w, 0), 0)
    low, high = [p[0] for p in pairs], [p[1] for p in pairs]
    return _padded(b, x, low, high, constant_values) if mode == "constant" else _continued(b, x, low, high, mode, ("reflect", "symmetric", "edge", "wrap"))


def _shown(widths: Any) -> str:
    if isinstance(widths, (tuple, list)):
        return f"({', '.join(map(_shown, widths))}{',' if len(widths) == 1 else ''})"
    return dimlib.to_text(widths) if isinstance(widths, dimlib.Dim) else repr(widths)


_move("constant_pad", "x with constant borders.", lambda b, x, low, high, value: b.pad(x, low=low, high=high, value=value),
      {"low": REQUIRED, "high": REQUIRED, "value": 0},
      _one(((2, 3), {"low": (1, 0), "high": (0, 2), "value": 0.5})),
      Front("pad(input, pad, mode='constant', value=None)", _pad_canon, "none", ("pad",),
            "pad(input, pad_width, mode='constant', constant_values=0)", _np_pad, method=False, functional=True), layouts="any")


# ---- triangles and diagonals --------------------------------------------------------------------------------------------------------

def _triangle_body(keep: str) -> Any:
    def body(b: Any, x: Any, diagonal: int) -> Any:
        shape, rank = x.type.shape, len(x.type.shape)
        row, col = (b.iota(shape=shape, dim=rank - 2 + i, dtype=int64) for i in (0, 1))
        mask = b.emit(keep, [b.sub(col, row), b.full_like(row, diagonal)])[0]
        return b.where(mask, x, b.full_like(x, 0))

    return body


def _triangle_front(name: str) -> Any:
    def canon(b: Any, x: Any, diagonal: int = 0) -> Any:
        if len(x.type.shape) < 2:
            raise AotgradValueError(f"{name}: a matrix is needed, not rank {len(x.type.shape)}")
        return b.emit(name, [x], {"diagonal": diagonal})[0]

    return canon


def _as_matrix(b: Any, x: Any) -> Any:
    """NumPy takes a vector for a matrix of equal rows."""
    return b.expand(x, (x.type.shape[0], x.type.shape[0])) if len(x.type.shape) == 1 else x


for _name, _keep in (("tril", "le"), ("triu", "ge")):
    _move(_name, f"The {'lower' if _name == 'tril' else 'upper'} triangle; the rest is 0.", _triangle_body(_keep), {"diagonal": 0},
          _one(((3, 4), {"diagonal": 0}), ((3, 3), {"diagonal": -1})),
          Front(f"{_name}(input, diagonal=0)", _triangle_front(_name), "none", (_name,),
                f"{_name}(input, k=0)", lambda b, x, k=0, name=_name: _triangle_front(name)(b, _as_matrix(b, x), k), inplace=True))


def _diagonal_body(b: Any, x: Any, offset: int) -> Any:
    """The diagonal of the last two dims: strided positions of the flattened matrix."""
    *lead, n, m = x.type.shape
    start = offset if offset >= 0 else -offset * m
    size = dimlib.maximum(dimlib.minimum(n, m - offset) if offset >= 0 else dimlib.minimum(n + offset, m), 0)
    flat = b.to_shape(x, (*lead, n * m))
    k = len(lead)
    return b.slice(flat, starts=(0,) * k + (start,), sizes=(*lead, size), steps=(1,) * k + (m + 1,))


def _diag_embed_body(b: Any, x: Any, offset: int) -> Any:
    *lead, n = x.type.shape
    side = n + abs(offset)
    k = len(lead)
    base = b.full(shape=(*lead, side * side), value=0, dtype=x.type.dtype)
    start = offset if offset >= 0 else -offset * side
    out = b.insert(base, x, starts=(0,) * k + (start,), steps=(1,) * k + (side + 1,))
    return b.to_shape(out, (*lead, side, side))


def _diag_canon(b: Any, x: Any, diagonal: int = 0) -> Any:
    rank = len(x.type.shape)
    if rank not in (1, 2):
        raise AotgradValueError(f"diag takes a vector or a matrix, not rank {rank}")
    return b.diag_embed(x, offset=diagonal) if rank == 1 else b.diagonal(x, offset=diagonal)


def _diagonal_canon(b: Any, x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    rank = len(x.type.shape)
    i, j = norm_dim(dim1, rank, "dim1"), norm_dim(dim2, rank, "dim2")
    return b.diagonal(b.to_perm(x, [*(d for d in range(rank) if d not in (i, j)), i, j]), offset=offset)


_move("diagonal", "The diagonal of two dims, as the last dim.", _diagonal_body, {"offset": 0},
      _one(((3, 4), {"offset": 0}), ((3, 4), {"offset": 2}), ((4, 3), {"offset": -1}), ((2, 3, 3), {"offset": 0})),
      Front("diagonal(input, offset=0, dim1=0, dim2=1)", _diagonal_canon, "none", ("diagonal",)))
_move("diag_embed", "A matrix with x on its diagonal.", _diag_embed_body, {"offset": 0}, _one(((3,), {"offset": 0}), ((2,), {"offset": 1}), ((2,), {"offset": -1})),
      Front("diag_embed(input, offset=0)", lambda b, x, offset=0: b.diag_embed(x, offset=offset), "none"))
_move("diag", "The diagonal of a matrix, or the matrix of a diagonal.", _diagonal_body, {"offset": 0}, _one(((3, 4), {"offset": 0})),
      Front("diag(input, diagonal=0)", _diag_canon, "none"))
def _trace(b: Any, x: Any) -> Any:
    if len(x.type.shape) != 2:
        raise AotgradValueError(f"trace takes a matrix, not rank {len(x.type.shape)}")
    return b.emit("trace", [x if x.type.dtype.kind in "fc" else b.to_dtype(x, int64)])[0]


def _np_trace(b: Any, x: Any, offset: Any = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Any:
    rank = len(x.type.shape)
    if rank < 2:
        raise AotgradValueError(f"trace needs an array of rank 2 or more, not {rank}")
    if norm_dim(axis1, rank, "axis1") == norm_dim(axis2, rank, "axis2"):
        raise AotgradValueError(f"trace: axis1 and axis2 are both {axis1}")
    x = b.to_dtype(x, as_dtype(dtype) if dtype is not None else x.type.dtype if x.type.dtype.kind in "fc" else int64)
    return b.sum(_diagonal_canon(b, x, int(offset), axis1, axis2), dims=(rank - 2,))


_move("trace", "The sum of the diagonal.", lambda b, x: b.sum(b.diagonal(x, offset=0), dims=(len(x.type.shape) - 2,)), {}, _one(((3, 3), {})),
      Front("trace(input)", _trace, "none", ("trace",), "trace(input, offset=0, axis1=0, axis2=1, dtype=None, out=None)", _np_trace))


# ---- limits, linear interpolation and other arithmetic with optional parts ------------------------------------------------------------

def _limit(b: Any, x: Any, bound: Any, default: Any) -> Any:
    dtype = x.type.dtype
    if bound is None:
        bound = default if dtype.kind == "f" else (np.iinfo(dtype.np).min if default < 0 else np.iinfo(dtype.np).max)
    return b.to_dtype(bound, dtype) if hasattr(bound, "type") else b.scalar(bound, dtype)


def _joined(b: Any, values: Sequence[Any]) -> list[Any]:
    """Values broadcast to their common shape."""
    shape: list[Any] = [1] * max(len(v.type.shape) for v in values)
    for v in values:
        for i, d in enumerate(reversed(v.type.shape)):
            shape[-1 - i] = b.join(shape[-1 - i], d)
    full = tuple(b.trace.canonical(d) for d in shape)
    return [b.expand(b.refresh(v), full) for v in values]


def _clip_canon(b: Any, x: Any, min: Any = None, max: Any = None) -> Any:
    if min is None and max is None:
        raise AotgradValueError("clamp: give min, max or both")
    if x.type.dtype is bool_:
        kinds = [bool_ if isinstance(v, bool) else v.type.dtype if hasattr(v, "type") else int64 for v in (min, max) if v is not None]
        if all(k is bool_ for k in kinds):
            for v, fn in ((min, b.maximum), (max, b.minimum)):
                if v is not None:
                    x = fn(*_joined(b, [x, v if hasattr(v, "type") else b.scalar(v, bool_)]))
            return x
        x = b.to_dtype(x, int64)
    floats = any(isinstance(v, float) or (hasattr(v, "type") and v.type.dtype.kind == "f") for v in (min, max))
    if floats and x.type.dtype.kind != "f":
        x = b.to_dtype(x, as_dtype("float64" if not b.torch else "float32"))
    return b.clamp(*_joined(b, [x, _limit(b, x, min, -np.inf), _limit(b, x, max, np.inf)]))


def _clip_mode(arguments: Any) -> str:
    """Arrays as bounds take part in the dtype; numbers are seen to by ``_clip_canon``."""
    return "arith" if any(not isinstance(arguments.get(k), (int, float, type(None))) for k in ("min", "max")) else "none"


_move("clip", "x limited to [min, max]; either may be absent.", lambda b, x, min, max: b.clamp(x, b.full_like(x, min), b.full_like(x, max)),
      {"min": REQUIRED, "max": REQUIRED},
      _one(((3, 4), {"min": -0.5, "max": 0.5})),
      Front("clamp(input, min=None, max=None)", _clip_canon, _clip_mode, ("clip",), "clip(input, min=None, max=None)",
            inplace=True, aliases=("clip",), tensors=("input", "min", "max")))
def _limited(first: bool) -> Any:
    def body(b: Any, x: Any, bound: Any) -> Any:
        low, high = (bound, np.inf) if first else (-np.inf, bound)
        return b.clamp(x, b.full_like(x, low), b.full_like(x, high))

    return body


for _name, _bound, _what in (("clamp_min", "min", "larger"), ("clamp_max", "max", "smaller")):
    _move(_name, f"The {_what} of x and ``{_bound}``, a number or an array.", _limited(_bound == "min"), {"bound": REQUIRED},
          _one(((3, 4), {"bound": 0.25})),
          Front(f"{_name}(input, {_bound})", lambda b, x, bound, at=_bound: _clip_canon(b, x, **{at: bound}), _clip_mode, inplace=True, tensors=("input", _bound)))


def _astype(b: Any, x: Any, dtype: Any) -> Any:
    return b.to_dtype(x, as_dtype(dtype))


_move("convert", "x in another dtype.", lambda b, x, dtype: b.to_dtype(x, dtype), {"dtype": REQUIRED}, _one(((2, 2), {"dtype": as_dtype("float32")})),
      Front("astype(input, dtype)", _astype, "none"))
for _short, _dtype in (("float", "float32"), ("double", "float64"), ("int", "int32"), ("long", "int64"), ("bool", "bool")):
    _move(f"to_{_short}", f"x as {_dtype}.", lambda b, x, d=_dtype: b.to_dtype(x, as_dtype(d)), {}, _one(((2, 2), {})),
          Front(f"{_short}(input)", lambda b, x, d=_dtype: b.to_dtype(x, as_dtype(d)), "none", function=False))


def _count_nonzero(b: Any, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    truth = x if x.type.dtype is bool_ else b.ne(x, b.full_like(x, 0))
    dims = norm_dims(dim, len(x.type.shape))
    out = b.sum(b.to_dtype(truth, int64), dims=dims)
    return b.to_shape(out, tuple(1 if i in dims else n for i, n in enumerate(x.type.shape))) if keepdim else out


_move("count_nonzero", "How many elements are not 0.", lambda b, x: _count_nonzero(b, x), {}, _one(((2, 3), {})),
      Front("count_nonzero(input, dim=None)", empty_is_all(_count_nonzero), "none", ("count_nonzero",),
            "count_nonzero(input, dim=None, *, keepdim=False)", _count_nonzero))

