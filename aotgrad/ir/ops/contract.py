"""Contractions: ``dot`` (batched matrix product) is the one kernel; matmul, einsum and the rest are written with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from operator import index
from typing import Any

import numpy as np

from aotgrad_runtime.dtypes import bool_, int64
from aotgrad_runtime.errors import AotgradArgumentError, AotgradNotImplementedError, AotgradTypeError, AotgradValueError

from .. import dims
from ..opdef import REQUIRED, Bilinear, Composite, Front, Kernel, OpDef, Sample, register
from ..transforms.batch import spread
from ..types import TensorType


def _dot_rule(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Sequence[TensorType]:
    a, b = types
    if a.rank < 2 or a.rank != b.rank or a.dtype is not b.dtype or a.shape[:-2] != b.shape[:-2]:
        raise AotgradTypeError(f"dot: operands {a} and {b} need equal dtype, equal rank of at least 2 and equal leading dims")
    if a.shape[-1] != b.shape[-2]:
        raise AotgradValueError(f"dot: {a.shape[-1]} columns of the first operand meet {b.shape[-2]} rows of the second ({a} and {b})")
    return (TensorType((*a.shape[:-1], b.shape[-1]), a.dtype),)


def _swap(b: Any, x: Any) -> Any:
    rank = len(x.type.shape)
    return b.permute(x, perm=(*range(rank - 2), rank - 1, rank - 2))


def _dot_batch(b: Any, op: Any, xs: Sequence[Any], on: Sequence[bool], size: Any) -> Any:
    """One product for the rows of all examples where the second operand is shared, or the first and the second is a column; else a batched product, of which nothing is
    copied. Products of vectors are loops."""
    x, y = xs
    shape, k = op.result.type.shape, op.operands[0].type.shape[-1]
    if isinstance(k, int) and k == 1:
        return b.mul(*(b.expand(spread(b, v, o, size), (size, *shape)) for v, o in zip(xs, on)))
    if all(on):
        return _both_batched(b, x, y, (size, *shape))
    lead = len(shape) - 2
    if on[0]:
        return _fold_rows(b, x, y, size, lead)
    if isinstance(shape[-1], int) and shape[-1] == 1:  # x @ column: rows @ x'
        rows = b.to_shape(y, (*y.type.shape[:-2], 1, y.type.shape[-2]))
        return b.to_shape(_fold_rows(b, rows, _swap(b, x), size, lead), (size, *shape))
    return b.dot(spread(b, x, False, size), y)


def _fold_rows(b: Any, x: Any, y: Any, size: Any, lead: int) -> Any:
    *_, m, k = x.type.shape
    moved = b.to_perm(x, (*range(1, lead + 1), 0, lead + 1, lead + 2))
    before = tuple(moved.type.shape[:lead])
    out = b.to_shape(b.dot(b.to_shape(moved, (*before, size * m, k)), y), (*before, size, m, y.type.shape[-1]))
    return b.to_perm(out, (lead, *range(lead), lead + 1, lead + 2))


def _both_batched(b: Any, x: Any, y: Any, shape: tuple[Any, ...]) -> Any:
    rank, k = len(shape), x.type.shape[-1]
    if all(isinstance(d, int) and d == 1 for d in shape[-2:]):
        return b.to_shape(b.sum(b.mul(b.to_shape(x, (*shape[:-2], k)), b.to_shape(y, (*shape[:-2], k))), dims=(rank - 2,)), shape)
    return b.dot(x, y)


def _samples() -> Iterable[Sample]:
    rng = np.random.default_rng(8)
    for sa, sb in (((3, 4), (4, 2)), ((2, 3, 1), (2, 1, 4)), ((0, 3), (3, 2)), ((2, 0), (0, 3)), ((1, 5), (5, 1)), ((17, 19), (19, 23))):
        yield Sample((rng.normal(size=sa), rng.normal(size=sb)), name=f"{sa}{sb}")


register(OpDef(
    "dot", "Matrix product of the last two dims, batched over equal leading dims.", ("a", "b"), _dot_rule, np.matmul,
    Bilinear((lambda b, ct, other, op: b.dot(ct, _swap(b, other)), lambda b, ct, other, op: b.dot(_swap(b, other), ct))), Kernel("dot"), samples=_samples,
    batch=_dot_batch))


# ---- matmul and its kin: written with dot -------------------------------------------------------------------------------------------

def _matmul_body(b: Any, x: Any, y: Any) -> Any:
    """NumPy's rank rules: vectors gain a dim that is dropped again, leading dims broadcast."""
    rx, ry = len(x.type.shape), len(y.type.shape)
    if rx == 0 or ry == 0:
        raise AotgradValueError("matmul: operands need at least one dimension; use * for scalars")
    left = b.to_shape(x, (1, *x.type.shape)) if rx == 1 else x
    right = b.to_shape(y, (*y.type.shape, 1)) if ry == 1 else y
    rank = max(len(left.type.shape), len(right.type.shape))
    if len(right.type.shape) == 2 and rank > 2:  # one matrix for all rows of all batches: a single product
        rows: Any = 1
        for d in left.type.shape[:-1]:
            rows = rows * d
        out = b.dot(b.to_shape(left, (rows, left.type.shape[-1])), right)
        out = b.to_shape(out, (*left.type.shape[:-1], right.type.shape[-1]))
    else:
        lead = _join_leading(left.type.shape[:-2], right.type.shape[:-2])
        out = b.dot(b.expand(left, (*lead, *left.type.shape[-2:])), b.expand(right, (*lead, *right.type.shape[-2:])))
    shape = list(out.type.shape)
    if ry == 1:
        shape.pop()
    if rx == 1:
        shape.pop(-1 if ry == 1 else -2)
    return b.to_shape(out, tuple(shape))


def _join_leading(x: Sequence[Any], y: Sequence[Any]) -> tuple[Any, ...]:
    rank = max(len(x), len(y))
    xs, ys = [1] * (rank - len(x)) + list(x), [1] * (rank - len(y)) + list(y)
    return tuple(q if p == 1 else p for p, q in zip(xs, ys))


def _unfit(x: Sequence[Any], y: Sequence[Any]) -> str:
    """What torch says of a product whose inner sizes differ."""
    if len(x) == len(y) == 1:
        return f"inconsistent tensor size, expected tensor {x} and src {y} to have the same number of elements, but got {x[0]} and {y[0]} elements respectively"
    if len(y) == 1:
        rows = prod(x[:-1])
        return f"size mismatch, got input ({rows}), mat ({rows}x{x[-1]}), vec ({y[0]})"
    if len(y) > 2:
        n = prod(_join_leading(x[:-2], y[:-2]))
        return _unfit_batches([n, *x[-2:]], [n, *y[-2:]])
    return f"mat1 and mat2 shapes cannot be multiplied ({prod(x[:-1])}x{x[-1]} and {y[0]}x{y[1]})"


def _unfit_batches(x: Sequence[Any], y: Sequence[Any]) -> str:
    return f"Expected size for first two dimensions of batch2 tensor to be: {[x[0], x[2]]} but got: {[y[0], y[1]]}."


def no_bools(b: Any, name: str, x: Any) -> None:
    if b.torch and x.type.dtype is bool_:
        raise AotgradNotImplementedError(f"{name}: products of bool tensors are not implemented; convert them first (x.to(ag.int64)), or write (x & y).any(dim)")


def _matmul_torch(b: Any, x: Any, y: Any) -> Any:
    no_bools(b, "matmul", x)
    return _matmul_canon(b, x, y)


def _matmul_canon(b: Any, x: Any, y: Any) -> Any:
    """Sizes that meet are joined first, so that symbols become equal before the types are checked."""
    if x.type.shape and y.type.shape:
        for p, q in zip(reversed(x.type.shape[:-2]), reversed(y.type.shape[:-2])):
            b.join(p, q)
    return _fitting_product(b, x, y)


def batched_product(b: Any, name: str, x: Any, y: Any) -> Any:
    """The product of as many matrices as there are on the other side: one does not stand for all, as it does in matmul."""
    for p, q in zip(x.type.shape[:-2], y.type.shape[:-2]):
        b.equate(p, q, f"{name}: the numbers of matrices", lambda: _unfit_batches(b.numbers(x.type.shape), b.numbers(y.type.shape)))
    return _fitting_product(b, x, y)


def _fitting_product(b: Any, x: Any, y: Any) -> Any:
    if x.type.shape and y.type.shape:
        place = 0 if len(y.type.shape) == 1 else -2
        b.equate(x.type.shape[-1], y.type.shape[place], "matmul: the inner sizes", lambda x=x, y=y: _unfit(b.numbers(x.type.shape), b.numbers(y.type.shape)))
        x, y = b.with_size(x, -1, y.type.shape[place]), b.with_size(y, place, y.type.shape[place])
    return b.matmul(x, y)


def _matmul_samples() -> Iterable[Sample]:
    rng = np.random.default_rng(12)
    for sa, sb in (((3, 4), (4, 2)), ((4,), (4, 2)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4, 2)), ((2, 3, 4), (2, 4, 2)),
                   ((3, 4), (2, 4, 2)), ((2, 1, 3, 4), (5, 4, 2)), ((2, 3, 4), (4,))):
        yield Sample((rng.normal(size=sa), rng.normal(size=sb)), name=f"{sa}{sb}")


def _ranks(name: str, rx: int, ry: int) -> Any:
    def canon(b: Any, x: Any, y: Any) -> Any:
        if (len(x.type.shape), len(y.type.shape)) != (rx, ry):
            raise AotgradValueError(f"{name} takes operands of rank {rx} and {ry}, not {len(x.type.shape)} and {len(y.type.shape)}; use matmul for other ranks")
        no_bools(b, name, x)
        return batched_product(b, name, x, y)

    return canon


register(OpDef("matmul", "Matrix product with NumPy's rank rules.", ("x", "y"), None, None, Composite(_matmul_body), samples=_matmul_samples,
               front=Front("matmul(input, other)", _matmul_torch, "product", ("matmul",), np_canon=_matmul_canon, operator=("__matmul__", "__rmatmul__"))))


def _product_alias(name: str, doc: str, rx: int, ry: int, np_names: tuple[str, ...] = ()) -> None:
    register(OpDef(name, doc, ("x", "y"), None, None, Composite(_matmul_body),
                   samples=lambda: (s for s in _matmul_samples() if (s.operands[0].ndim, s.operands[1].ndim) == (rx, ry)),
                   front=Front(f"{name}(input, other)", _ranks(name, rx, ry), "product", np_names)))


_product_alias("mm", "Matrix times matrix.", 2, 2)
_product_alias("mv", "Matrix times vector.", 2, 1)
_product_alias("bmm", "Batched matrix product.", 3, 3)


def _outer_canon(b: Any, x: Any, y: Any) -> Any:
    if (len(x.type.shape), len(y.type.shape)) != (1, 1):
        raise AotgradValueError(f"outer takes two vectors, not tensors of {len(x.type.shape)} and {len(y.type.shape)} dims; flatten them first (x.reshape(-1))")
    return _np_outer(b, x, y)


def _np_outer(b: Any, x: Any, y: Any) -> Any:
    """Of the elements, whatever the rank."""
    n, m = x.type.size, y.type.size
    return b.outer(b.to_shape(x, (n,)), b.to_shape(y, (m,)))


def _outer_body(b: Any, x: Any, y: Any) -> Any:
    shape = (x.type.shape[0], y.type.shape[0])
    return b.mul(b.broadcast(x, shape=shape, dims=(0,)), b.broadcast(y, shape=shape, dims=(1,)))


register(OpDef("outer", "All products of elements of two vectors.", ("x", "y"), None, None, Composite(_outer_body),
               samples=lambda: (Sample((np.arange(3.0), np.arange(1.0, 3.0)), name="3x2"),),
               front=Front("outer(input, vec2)", _outer_canon, "contract", ("outer",), np_canon=_np_outer, aliases=("ger",))))


# ---- einsum -------------------------------------------------------------------------------------------------------------------------

def _parse_einsum(spec: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Index letters per operand and of the result, ellipses replaced by letters that the spec does not use."""
    if not isinstance(spec, str):
        raise AotgradTypeError(f"einsum: the first argument is {type(spec).__name__}; write the subscripts as a text such as 'ij,jk->ik'")
    text = spec.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise AotgradArgumentError(f"einsum {spec!r} names {len(terms)} operands, {len(ranks)} were given")
    spare = [c for c in _LETTERS if c not in text]
    widest = max([rank - len(t.replace("...", "")) for t, rank in zip(terms, ranks) if "..." in t], default=0)
    dots = "".join(spare[:widest])
    out = []
    for t, rank in zip(terms, ranks):
        width = rank - len(t.replace("...", ""))
        full = t.replace("...", dots[len(dots) - width:] if width > 0 else "")
        if len(full) != rank or not full.isalpha() and full:
            raise AotgradValueError(f"einsum {spec!r}: operand {t!r} does not fit an array of rank {rank}")
        out.append(full)
    if arrow:
        result = right.replace("...", dots)
    else:
        letters = "".join(out)
        result = dots + "".join(sorted(c for c in set(letters) if letters.count(c) == 1 and c not in dots))
    if len(set(result)) != len(result) or any(c not in "".join(out) for c in result):
        raise AotgradValueError(f"einsum {spec!r}: the result {right!r} repeats an index or names one that no operand has")
    return out, result


def _diagonal_of(b: Any, x: Any, term: str) -> tuple[Any, str]:
    """Repeated letters in one term: keep the diagonal, by a mask and a sum (its adjoint is the mask again)."""
    from_left = 0
    while from_left < len(term):
        c = term[from_left]
        again = term.find(c, from_left + 1)
        if again < 0:
            from_left += 1
            continue
        shape = x.type.shape
        on = b.eq(b.iota(shape=shape, dim=from_left, dtype=int64), b.iota(shape=shape, dim=again, dtype=int64))
        x = b.sum(b.where(on, x, b.full_like(x, 0)), dims=(again,))
        term = term[:again] + term[again + 1:]
    return x, term


def _drop_unused(b: Any, x: Any, term: str, keep: str) -> tuple[Any, str]:
    gone = tuple(i for i, c in enumerate(term) if c not in keep)
    return (b.sum(x, dims=gone) if gone else x), "".join(c for c in term if c in keep)


def _pair(b: Any, x: Any, tx: str, y: Any, ty: str, keep: str) -> tuple[Any, str]:
    """Contracts two terms: batch letters (in both and kept), rows, columns, and summed letters, as one dot."""
    both = [c for c in tx if c in ty]
    batch, summed = [c for c in both if c in keep], [c for c in both if c not in keep]
    rows, cols = [c for c in tx if c not in ty], [c for c in ty if c not in tx]
    size = {**dict(zip(ty, y.type.shape)), **dict(zip(tx, x.type.shape))}
    size.update({c: s for c, s in zip(ty, y.type.shape) if size[c] == 1})
    x = b.expand(b.to_perm(x, [tx.index(c) for c in (*batch, *rows, *summed)]), tuple(size[c] for c in (*batch, *rows, *summed)))
    y = b.expand(b.to_perm(y, [ty.index(c) for c in (*batch, *summed, *cols)]), tuple(size[c] for c in (*batch, *summed, *cols)))
    m, k, n = (dims.product(size[c] for c in group) for group in (rows, summed, cols))
    lead = tuple(size[c] for c in batch)
    out = b.dot(b.to_shape(x, (*lead, m, k)), b.to_shape(y, (*lead, k, n))) if summed or not batch else None
    if out is None:  # nothing is summed: a broadcast product
        full = (*batch, *rows, *cols)
        shape = tuple(size[c] for c in full)
        x = b.broadcast(x, shape=shape, dims=tuple(full.index(c) for c in (*batch, *rows)))
        y = b.broadcast(y, shape=shape, dims=tuple(full.index(c) for c in (*batch, *cols)))
        return b.mul(x, y), "".join(full)
    return b.to_shape(out, (*lead, *(size[c] for c in rows), *(size[c] for c in cols))), "".join((*batch, *rows, *cols))


def _einsum_body(b: Any, *xs: Any, spec: str) -> Any:
    terms, result = _parse_einsum(spec, [len(x.type.shape) for x in xs])
    work = [_diagonal_of(b, x, t) for x, t in zip(xs, terms)]
    while len(work) > 1:
        (x, tx), (y, ty), *rest = work
        keep = result + "".join(t for _, t in rest)
        x, tx = _drop_unused(b, x, tx, keep + ty)
        y, ty = _drop_unused(b, y, ty, keep + tx)
        work = [_pair(b, x, tx, y, ty, keep), *rest]
    x, tx = _drop_unused(b, *work[0], result)
    return b.to_perm(x, [tx.index(c) for c in result])


def _einsum_canon(b: Any, spec: str, *xs: Any) -> Any:
    terms, _ = _parse_einsum(spec, [len(x.type.shape) for x in xs])
    sizes: dict[str, Any] = {}
    for i, (x, t) in enumerate(zip(xs, terms)):
        for c, n in zip(t, x.type.shape):  # of one operand they are equal, between operands 1 gives way
            b.equate(x.type.shape[t.index(c)], n, f"einsum {spec!r}: the sizes of index {c!r} in operand {i}")
        for c, n in zip(t, x.type.shape):
            sizes[c] = b.join(sizes[c], n, f"einsum {spec!r}: sizes of index {c!r}") if c in sizes else n
    fitted = []
    for x, t in zip(xs, terms):
        for i, c in enumerate(t):
            x = b.with_size(x, i, sizes[c])
        fitted.append(x)
    return b.emit("einsum", fitted, {"spec": spec})[0]


def _einsum_torch(b: Any, spec: str, *xs: Any) -> Any:
    if xs[0].type.dtype is bool_:
        terms, result = _parse_einsum(spec, [len(x.type.shape) for x in xs])
        if any(c not in result for t in terms for c in t):
            if len(xs) > 1:
                no_bools(b, f"einsum {spec!r}", xs[0])
            xs = (b.to_dtype(xs[0], int64),)  # counted, as by sum
    return _einsum_canon(b, spec, *xs)


def einsum_view(spec: Any, rank: int) -> tuple[list[tuple[int, int]], list[int]] | None:
    """Of one operand of which nothing is summed: the pairs of dims of which the diagonal is taken, one after the other (it becomes the last dim), and the order of the
    dims then."""
    (term,), result = _parse_einsum(spec, [rank])
    pairs = []
    while (again := next((i for i, c in enumerate(term) if c in term[:i]), None)) is not None:
        first = term.index(term[again])
        pairs.append((first, again))
        term = "".join(c for i, c in enumerate(term) if i not in (first, again)) + term[again]
    return (pairs, [term.index(c) for c in result]) if len(term) == len(result) else None


_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_LABELS: dict[Any, str] = {**dict(enumerate(_LETTERS)), Ellipsis: "..."}


def _einsum_text(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """``einsum(x, [0, 1], y, [1, 2], [0, 2])`` as ``einsum("AB,BC->AC", x, y)``."""
    if len(args) < 2 or isinstance(args[0], str) or not isinstance(args[1], (list, tuple)):
        return args
    terms = [_labels(t) for t in args[1::2]]
    result = f"->{_labels(args[-1])}" if len(args) % 2 else ""
    return (",".join(terms) + result, *args[:len(terms) * 2:2])


def _labels(given: Any) -> str:
    try:
        return "".join(_LABELS[i if i is Ellipsis else index(i)] for i in given)
    except (TypeError, KeyError):
        raise AotgradValueError(f"einsum: {given!r} is no list of indices: integers from 0 to 51, and ... at most once; or write a text such as 'ij,jk->ik'") from None


def _einsum_samples() -> Iterable[Sample]:
    rng = np.random.default_rng(13)
    for spec, *shapes in (("ij,jk->ik", (2, 3), (3, 4)), ("bij,bjk->bik", (2, 2, 3), (2, 3, 2)), ("ii->i", (3, 3)), ("ij->ji", (2, 3)), ("ij->", (2, 3)),
                          ("i,j->ij", (2,), (3,)), ("...ij,jk->...ik", (2, 2, 3), (3, 2)), ("ij,ij->i", (2, 3), (2, 3)), ("ab,bc,cd->ad", (2, 3), (3, 2), (2, 4)),
                          ("i,i->i", (3,), (3,)), ("ii", (3, 3))):
        yield Sample(tuple(rng.normal(size=s) for s in shapes), {"spec": spec}, spec)


register(OpDef("einsum", "Einstein summation: indices that the result does not name are summed.", ("xs*",), None, None, Composite(_einsum_body),
               attrs={"spec": REQUIRED}, samples=_einsum_samples,
               front=Front("einsum(equation, *operands)", _einsum_torch, "product", ("einsum",), np_canon=_einsum_canon, method=False, tensors=("operands",),
                           respell=_einsum_text)))
