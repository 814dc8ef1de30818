"""Rules that let code generation see what belongs together: elementwise ops move to the matrix that a product gives, and pieces that tile an array are its concatenation.

Both keep every bit.

    y = reshape(dot(x, w)) + broadcast(b)   ->   y = reshape(dot(x, w) + broadcast'(b))
    insert_add(insert_add(full(0), u), v)   ->   concatenate(u + 0, v + 0)              where u and v fill the array
"""

from __future__ import annotations

from typing import Any

from .. import dims
from ..builder import Builder
from ..core import Op, Value

__all__ = ["RULES"]

_ELEMENTWISE = ("add", "sub", "mul", "lmul", "div", "maximum", "minimum", "neg", "tanh", "sigmoid", "exp", "erf", "where", "gt", "ge", "lt", "le", "eq", "ne", "cast")
_NEAR = 32  # values looked at, breadth first, between a product and an op that may still run on its blocks
_PIECES, _LEAST = 16, 8  # pieces at most, and the least number of neighbours in one: smaller ones become scalars


def _rows_of_product(v: Value) -> Value | None:
    """The matrix that ``v`` splits the rows of, if a product makes it, element by element."""
    if v.op is None or v.op.name != "reshape" or v.type.rank < 3 or v.type.layout is not None:
        return None
    matrix = v.op.operands[0]
    if matrix.type.rank != 2 or matrix.type.layout is not None or matrix.type.shape[1] != v.type.shape[-1]:
        return None
    near = [matrix]
    for at in near:  # the nearest first
        if at.op is not None and at.op.name == "dot":
            return matrix
        if at.op is not None and at.op.name in _ELEMENTWISE and len(near) < _NEAR:
            near += [o for o in at.op.operands if o not in near]
    return None


def _as_rows(b: Any, v: Value, shape: Any) -> Any:
    """``v`` as a matrix of ``shape``, where that moves nothing; else None."""
    op = v.op
    if op is None:
        return None if v.type.layout is not None else b.reshape(v, shape=shape)
    if op.name == "reshape" and op.operands[0].type.shape == shape and op.operands[0].type.layout is None:
        return op.operands[0]
    if op.name == "full":
        return b.full(**{**op.attrs, "shape": shape})
    if op.name == "broadcast" and op.result.type.layout is None and all(d == v.type.rank - 1 for d in op.attrs["dims"]):
        return b.broadcast(op.operands[0], shape=shape, dims=(1,) * len(op.attrs["dims"]))
    return None


def _sink(b: Builder, op: Op, *operands: Value) -> Any:
    """An elementwise op on a product whose rows were split: on the product, whose rows are split after it."""
    if op.results[0].type.layout is not None:
        return None
    matrix = next((m for m in map(_rows_of_product, operands) if m is not None), None)
    if matrix is None:
        return None
    shape = matrix.type.shape
    rows = [_as_rows(b, v, shape) for v in operands]
    if any(r is None for r in rows):
        return None
    return b.reshape(b.emit(op.name, rows, op.attrs)[0], shape=op.results[0].type.shape)


def _tiles(b: Builder, op: Op, x: Value, v: Value) -> Any:
    """Pieces added into zeros, each where nothing else is: their concatenation, if they fill the array along one dim."""
    whole, pieces = op.results[0].type, [(op.attrs, v)]
    if whole.layout is not None:
        return None
    while x.op is not None and x.op.name == "insert_add" and len(pieces) < _PIECES:
        pieces.append((x.op.attrs, x.op.operands[1]))
        x = x.op.operands[0]
    if x.op is None or x.op.name != "full" or x.op.attrs["value"] != 0 or any(s != 1 for attrs, _ in pieces for s in attrs["steps"]):
        return None
    split = [d for d in range(whole.rank) if any(p.type.shape[d] != whole.shape[d] for _, p in pieces)]
    if len(split) != 1 or any(attrs["starts"][d] != 0 for attrs, _ in pieces for d in range(whole.rank) if d != split[0]):
        return None
    (dim,) = split
    left = {attrs["starts"][dim]: p for attrs, p in pieces}
    runs = [dims.product(p.type.shape[dim:]) for _, p in pieces]
    if len(left) != len(pieces) or any(isinstance(n, int) and n < _LEAST for n in runs):
        return None
    at: dims.DimLike = 0
    found: list[Value] = []
    while at in left:
        piece = left.pop(at)
        found.append(piece)
        at = at + piece.type.shape[dim]
    if left or at != whole.shape[dim]:
        return None
    first = x.op.attrs["value"]  # 0 + -0 is 0
    return b.concatenate(*(b.add(b.full(shape=p.type.shape, value=first, dtype=p.type.dtype), p) for p in found), dim=dim)


RULES: dict[str, Any] = {**dict.fromkeys(_ELEMENTWISE, _sink), "insert_add": _tiles}
