"""Passes that keep every value as it is: dead code, common subexpressions, identities that hold bit for bit (two do not: ``centred``, ``factors``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from aotgrad_runtime.records import record

from ..builder import Builder
from ..core import Block, Func, Op, Value
from ..host import acts
from . import sink
from .centred import spread, without_centred
from .factors import without_factors
from .rewrite import decompose_func, rebuild

__all__ = ["Cse", "Dce", "Decompose", "Simplify", "dce_block", "standard"]


def dce_block(block: Block) -> Block:
    """``block`` without ops whose results nobody uses, other than calls of Python that do something (in place; regions too)."""
    live = set(block.outputs)
    kept: list[Op] = []
    for op in reversed(block.ops):
        if any(r in live for r in op.results) or acts(op):
            if op.name == "scan":
                op = _trim_scan(op, live)
            live.update(op.operands)
            kept.append(op)
    block.ops = kept[::-1]
    return block


def _trim_scan(op: Op, live: set[Value]) -> Op:
    """Drops stacked outputs that nobody reads; the op keeps its identity (results are rebuilt in place)."""
    nk = op.attrs["carry"]
    keep = [r in live for r in op.results[nk:]]
    body = op.regions[0]
    if all(keep):
        dce_block(body)
        return op
    new = Block()
    new.args, new.ops = body.args, list(body.ops)
    new.outputs = [*body.outputs[:nk], *(o for o, k in zip(body.outputs[nk:], keep) if k)]
    op.regions = (dce_block(new),)
    op.results = (*op.results[:nk], *(r for r, k in zip(op.results[nk:], keep) if k))
    for i, r in enumerate(op.results):
        r.index = i
    return op


@record(frozen=True)
class Decompose:
    """Composites become their bodies."""

    name: str = "decompose"

    def __call__(self, func: Func) -> Func:
        return decompose_func(func)


@record(frozen=True)
class Dce:
    """Dead code goes."""

    name: str = "dce"

    def __call__(self, func: Func) -> Func:
        dce_block(func.body)
        return func


@record(frozen=True)
class Cse:
    """Equal ops on equal operands are computed once."""

    name: str = "cse"

    def __call__(self, func: Func) -> Func:
        return Func(func.name, rebuild(func.body, merge=True), func.attrs)


# ---- identities ------------------------------------------------------------------------------------------------------------------

def splat(v: Value) -> Any:
    """The number of a value that is a splat of one, else None (looks through moves)."""
    while v.op is not None:
        if v.op.name == "full":
            return v.op.attrs["value"]
        if v.op.name not in ("broadcast", "reshape", "permute", "relayout", "slice"):
            return None
        v = v.op.operands[0]
    return None


_FINITE_MOVES = frozenset(("broadcast", "reshape", "permute", "relayout", "slice", "take", "stop_gradient"))


def finite(v: Value) -> bool:
    """Whether every element is provably finite: numbers written in the program, casts of bools and integers, selections of such."""
    while v.op is not None and v.op.name in _FINITE_MOVES:
        v = v.op.operands[0]
    if v.op is None:
        return False
    name = v.op.name
    if name == "full":
        return bool(np.isfinite(v.op.attrs["value"]))
    if name == "constant":
        return bool(np.all(np.isfinite(v.op.attrs["value"])))
    if name == "cast":
        source = v.op.operands[0].type.dtype
        return source.kind in "iub" and v.type.dtype.name in ("float64", "float32")
    if name == "where":
        return all(finite(o) for o in v.op.operands[1:])
    return name == "sign" and finite(v.op.operands[0])


def _simplify_lmul(b: Builder, op: Op, x: Value, y: Value) -> Any:
    for p, q in ((x, y), (y, x)):
        c = splat(p)
        if c is None:
            continue
        if c == 0:
            return b.zeros(q)
        if c == 1:
            return q
        if c == -1:
            return b.neg(q)
        if np.isfinite(c):
            return b.mul(x, y)  # a finite number that is not 0 annihilates nothing
    return b.mul(x, y) if finite(x) and finite(y) else None


def _simplify_mul(b: Builder, op: Op, x: Value, y: Value) -> Any:
    for p, q in ((x, y), (y, x)):
        if splat(p) == 1:
            return q
    return None


def _simplify_neg(b: Builder, op: Op, x: Value) -> Any:
    return x.op.operands[0] if x.op is not None and x.op.name == "neg" else None


def _simplify_add(b: Builder, op: Op, x: Value, y: Value) -> Any:
    # -0 + 0 is 0, so only -0 is neutral for values; sums of cotangents may drop +0 too, but that would be a second rule.
    for p, q in ((x, y), (y, x)):
        c = splat(p)
        if c is not None and c == 0 and (p.type.dtype.kind in "iu" or np.signbit(c)):
            return q
    return None


def _simplify_div(b: Builder, op: Op, x: Value, y: Value) -> Any:
    if splat(y) == 1:
        return x
    c = splat(x)
    return None if c is None else spread(b, y, lambda v: b.div(b.full_like(v, c), v))  # once for each number, not for each element it is repeated in


def _simplify_move(b: Builder, op: Op, x: Value) -> Any:
    if op.results[0].type == x.type and op.name in ("reshape", "broadcast", "cast", "relayout"):
        return x
    inner = x.op
    if inner is not None and inner.name == op.name:
        base = inner.operands[0]
        if op.name == "relayout":
            return b.relayout(base, layout=op.attrs["layout"]) if base.type.layout != op.attrs["layout"] else base
        if op.name == "reshape":
            return b.to_shape(base, op.attrs["shape"])
        if op.name == "permute":
            return b.to_perm(base, tuple(inner.attrs["perm"][p] for p in op.attrs["perm"]))
        if op.name == "broadcast" and base.type.layout is None:
            return b.broadcast(base, shape=op.attrs["shape"], dims=tuple(op.attrs["dims"][d] for d in inner.attrs["dims"]))
    return None


def _simplify_permute(b: Builder, op: Op, x: Value) -> Any:
    if tuple(op.attrs["perm"]) == tuple(range(len(op.attrs["perm"]))):
        return x
    return _simplify_move(b, op, x)


def _simplify_slice(b: Builder, op: Op, x: Value) -> Any:
    if x.op is None or x.op.name != "relayout":
        return None
    return b.relayout(b.slice(x.op.operands[0], **op.attrs), layout=x.op.attrs["layout"])  # a sum of it then goes by what lies there


def _simplify_reduction(b: Builder, op: Op, x: Value) -> Any:
    return x if not op.attrs["dims"] else None


def _simplify_sum(b: Builder, op: Op, x: Value) -> Any:
    if x.op is not None and x.op.name == "relayout":  # such as the cotangents of what was broadcast into a layout: they are summed as they lie
        return b.sum(x.op.operands[0], dims=op.attrs["dims"])
    found = None
    if op.attrs["dims"] and x.type.dtype.kind == "f":
        found = without_centred(b, op, x)
        found = without_factors(b, op, x) if found is None else found
    return _simplify_reduction(b, op, x) if found is None else found


def _simplify_concatenate(b: Builder, op: Op, *xs: Value) -> Any:
    return xs[0] if len(xs) == 1 else None


def _either(first: Callable[..., Any], second: Callable[..., Any] | None) -> Callable[..., Any]:
    def rule(b: Builder, op: Op, *operands: Value) -> Any:
        better = first(b, op, *operands)
        return second(b, op, *operands) if better is None and second is not None else better

    return rule


_IDENTITIES: dict[str, Callable[..., Any]] = {
    "lmul": _simplify_lmul, "mul": _simplify_mul, "neg": _simplify_neg, "add": _simplify_add, "div": _simplify_div,
    "reshape": _simplify_move, "broadcast": _simplify_move,
    "cast": _simplify_move, "relayout": _simplify_move, "permute": _simplify_permute, "slice": _simplify_slice,
    "sum": _simplify_sum, "amax": _simplify_reduction, "amin": _simplify_reduction, "prod": _simplify_reduction,
    "concatenate": _simplify_concatenate,
}
_RULES: dict[str, Callable[..., Any]] = {**_IDENTITIES, **{name: _either(_IDENTITIES.get(name, rule), rule) for name, rule in sink.RULES.items()}}


@record(frozen=True)
class Simplify:
    """Products with 1, moves of moves, zero-annihilating products that need no check. Works inside regions too."""

    name: str = "simplify"

    def __call__(self, func: Func) -> Func:
        return Func(func.name, rebuild(func.body, rules=_RULES, inside=_RULES), func.attrs)


def standard(func: Func, first: Mapping[str, Callable[..., Any]] | None = None) -> Func:
    """What runs before code generation, in one walk: decompose, simplify, merge; then drop. ``first``: rules to try before those that simplify (not in regions)."""
    rules = _RULES if not first else {**_RULES, **{name: _either(rule, _RULES.get(name)) for name, rule in first.items()}}
    return Func(func.name, dce_block(rebuild(func.body, expand=True, rules=rules, inside=_RULES, merge=True)), func.attrs)
