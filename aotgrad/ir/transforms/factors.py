"""Factors that are one number along the dims of a sum leave it, and so does the divisor of ``(x / y) / y``, where ``y`` repeats along the dims.

The adjoint of a division by a row's deviation divides every element of the row a second time, only to sum the row. Only in products of derivatives (``lmul``), and not
in types so short that the sum without its factor may overflow.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..builder import Builder
from ..core import Op, Value

__all__ = ["without_factors"]


def without_factors(b: Builder, op: Op, x: Value) -> Value | None:
    """The sum ``op`` of ``x`` with what is one number along its dims taken out; None where there is nothing of that kind."""
    if x.op is None or x.op.name != "lmul" or x.type.dtype.kind != "f" or x.type.dtype.itemsize < 4:
        return None
    dims = op.attrs["dims"]
    for at in (0, 1):
        v, other = x.op.operands[at], x.op.operands[1 - at]
        factor = _once(b, v, dims)
        if factor is not None and other.type == x.type:
            total = b.sum(other, dims=dims)
            return b.lmul(total, factor) if total.type == op.result.type == factor.type else None
        minus, f = _unsigned(v)
        quotient = _quotient_again(f)
        divisor = None if quotient is None else _once(b, f.op.operands[1], dims)  # type: ignore[union-attr]
        if divisor is not None and quotient is not None and quotient.type == other.type == x.type:
            total = b.sum(b.lmul(other, quotient), dims=dims)
            if not total.type == op.result.type == divisor.type:
                return None
            total = b.where(b.eq(total, b.full_like(total, 0)), total, b.div(total, divisor))  # products of derivatives are 0 where the other factor is
            return b.neg(total) if minus else total  # type: ignore[no-any-return]
    return None


def _unsigned(v: Value) -> tuple[bool, Value]:
    minus = False
    while v.op is not None and v.op.name == "neg":
        minus, v = not minus, v.op.operands[0]
    return minus, v


def _quotient_again(v: Value) -> Value | None:
    """The quotient that is divided by its divisor once more: what a division's derivative in the divisor is."""
    if v.op is None or v.op.name != "div":
        return None
    quotient, divisor = v.op.operands
    return quotient if quotient.op is not None and quotient.op.name == "div" and quotient.op.operands[1] is divisor else None


def _once(b: Builder, v: Value, dims: Sequence[int]) -> Value | None:
    """What a value repeats along the dims, without them; None where it is not that simple."""
    if v.op is None or v.op.name != "broadcast" or v.type.layout is not None or v.op.operands[0].type.layout is not None:
        return None
    x, into = v.op.operands[0], v.op.attrs["dims"]
    if any(d in dims and n != 1 for d, n in zip(into, x.type.shape)):
        return None
    left = [d for d in range(v.type.rank) if d not in dims]
    kept = [(d, n) for d, n in zip(into, x.type.shape) if d not in dims]
    x = b.to_shape(x, tuple(n for _, n in kept))
    return b.broadcast(x, shape=tuple(v.type.shape[d] for d in left), dims=tuple(left.index(d) for d, _ in kept))  # type: ignore[no-any-return]
