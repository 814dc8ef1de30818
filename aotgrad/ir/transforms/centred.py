"""Sums that are 0 whatever the data are: of values less their mean, times what does not vary along the dims that are summed.

The adjoint of a mean inside a variance makes them (``x - mean(x)``, then its square: every norm written in plain operations). What such a sum gives is the rounding
error of the mean; to make it takes a pass over the data, and one to take it off. Only in products of derivatives (``lmul``): a sum of deviations that the
program itself asks for is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..builder import Builder
from ..core import Op, Value
from ..dims import DimLike, product

__all__ = ["spread", "without_centred"]

_TERMS, _DEPTH = 8, 6


def without_centred(b: Builder, op: Op, x: Value) -> Value | None:
    """The sum ``op`` of ``x`` without terms of it whose sum is 0; None where there are none such."""
    dims, terms = op.attrs["dims"], _terms(x)
    kept = [(v, minus) for v, minus in terms if not _is_zero(v, dims)]
    if len(kept) == len(terms) or any(v.type != x.type for v, _ in kept):
        return None
    if not kept:
        return b.zeros(op.result.type)
    total, minus = kept[0]
    for v, opposite in kept[1:]:
        total = b.sub(total, v) if opposite != minus else b.add(total, v)
    total = b.sum(total, dims=dims)
    return b.neg(total) if minus else total  # type: ignore[no-any-return]


def spread(b: Builder, v: Value, fn: Any) -> Value | None:
    """``fn`` of what ``v`` repeats, repeated likewise; None where it repeats nothing."""
    path: list[Op] = []
    while v.op is not None and v.op.name in ("broadcast", "relayout"):
        path.append(v.op)
        v = v.op.operands[0]
    if not any(op.name == "broadcast" for op in path):
        return None
    out = fn(v)
    for op in reversed(path):
        out = b.broadcast(out, shape=op.attrs["shape"], dims=op.attrs["dims"]) if op.name == "broadcast" else b.relayout(out, layout=op.attrs["layout"])
    return out  # type: ignore[no-any-return]


def _terms(x: Value) -> list[tuple[Value, bool]]:
    """What a sum of full arrays is made of, and whether with a minus; itself where that is too much."""
    out: list[tuple[Value, bool]] = []
    stack = [(x, False)]
    while stack:
        v, minus = stack.pop()
        name = v.op.name if v.op is not None else ""
        if name in ("add", "sub") and v.op is not None:
            first, second = v.op.operands
            stack += [(second, minus != (name == "sub")), (first, minus)]
        elif name == "neg" and v.op is not None:
            stack.append((v.op.operands[0], not minus))
        else:
            out.append((v, minus))
        if len(out) + len(stack) > _TERMS:
            return [(x, False)]
    return out


def _is_zero(v: Value, dims: Sequence[int]) -> bool:
    """Whether it is a product of a derivative, one factor of which is centred and the others are one number along the dims."""
    linear = False
    for _ in range(_DEPTH):
        op = v.op
        if op is None:
            return False
        if op.name in ("neg", "relayout"):
            v = op.operands[0]
        elif op.name in ("lmul", "mul"):
            x, y = op.operands
            linear |= op.name == "lmul"
            if _uniform(x, dims):
                v = y
            elif _uniform(y, dims):
                v = x
            else:
                return False
        elif op.name == "div" and _uniform(op.operands[1], dims):
            v = op.operands[0]
        else:
            return linear and _centred(op, dims)
    return False


def _uniform(v: Value, dims: Sequence[int]) -> bool:
    """Whether it is one number along the dims."""
    left = set(dims)
    while v.op is not None and v.op.name in ("broadcast", "relayout"):
        op = v.op
        v = op.operands[0]
        if op.name == "broadcast":
            into = op.attrs["dims"]
            left = {into.index(d) for d in left if d in into and v.type.shape[into.index(d)] != 1}
    return not left


def _centred(op: Op, dims: Sequence[int]) -> bool:
    """Whether it is ``x`` less its mean along the dims."""
    if op.name != "sub":
        return False
    x, mean = op.operands
    div, at = _source(mean)
    if div is None or div.name != "div":
        return False
    total, count = div.operands
    if total.op is None or total.op.name != "sum" or total.op.operands[0] is not x or set(total.op.attrs["dims"]) != set(dims):
        return False
    kept = [d for d in range(x.type.rank) if d not in dims]
    return _is_count(count, product([x.type.shape[d] for d in dims])) and all(a == d or x.type.shape[d] == 1 for a, d in zip(at, kept, strict=True))


def _source(v: Value) -> tuple[Op | None, list[int]]:
    """What a repeated value is made of, and the dim of ``v`` that each of its dims is."""
    at = list(range(v.type.rank))
    while v.op is not None and v.op.name in ("broadcast", "relayout", "reshape"):
        x = v.op.operands[0]
        if v.op.name == "broadcast":
            at = [at[d] for d in v.op.attrs["dims"]]
        elif v.op.name == "reshape":
            far = [(a, n) for a, n in zip(at, v.type.shape) if n != 1]
            near = [i for i, n in enumerate(x.type.shape) if n != 1]
            if [n for _, n in far] != [x.type.shape[i] for i in near]:
                return None, []
            at = [-1] * x.type.rank
            for i, (a, _) in zip(near, far):
                at[i] = a
        v = x
    return v.op, at


def _is_count(v: Value, size: DimLike) -> bool:
    while v.op is not None and v.op.name in ("broadcast", "relayout", "reshape", "cast"):
        v = v.op.operands[0]
    if v.op is None:
        return False
    return bool(v.op.name == "size" and v.op.attrs["dim"] == size) or bool(v.op.name == "full" and isinstance(size, int) and v.op.attrs["value"] == size)
