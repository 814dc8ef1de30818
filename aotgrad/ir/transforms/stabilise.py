"""Algebra that changes values on purpose, run on the primal before differentiation. The whole list:

``log(1 + exp(x))``, ``log1p(exp(x))`` become ``softplus(x)``; ``sqrt(y) * sqrt(y)`` becomes ``y``, and ``norm(x) ** 2`` ``sum(x * x)``, also where they
are over a divisor (``std(x) ** 2``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aotgrad_runtime.records import record

from ..builder import Builder
from ..core import Block, Func, Op, Value
from .cleanup import splat, standard
from .rewrite import rebuild

__all__ = ["Stabilise", "stabilise_block", "stable"]


def _is(v: Value, name: str) -> Any:
    return v.op if v.op is not None and v.op.name == name else None


def _softplus(b: Builder, op: Op, x: Value) -> Any:
    if op.name == "log":
        total = _is(x, "add")
        if total is None:
            return None
        for one, rest in (total.operands, total.operands[::-1]):
            e = _is(rest, "exp")
            if splat(one) == 1 and e is not None:
                return b.softplus(e.operands[0])
        return None
    e = _is(x, "exp")
    return None if e is None else b.softplus(e.operands[0])


def _square_of_root(b: Builder, op: Op, x: Value, y: Value) -> Any:
    return _square(b, x) if x is y else None


def _square(b: Builder, x: Value) -> Any:
    """``x * x`` without the root that ``x`` is, or is a multiple of; None where it is none."""
    if (root := _is(x, "sqrt")) is not None:
        return root.operands[0]
    if (root := _is(x, "root_sum_powers")) is not None and root.attrs["p"] == 2:
        v = root.operands[0]
        return b.sum(b.mul(v, v), dims=root.attrs["dims"])
    quotient = _is(x, "div")
    upper = None if quotient is None else _square(b, quotient.operands[0])
    if upper is None:
        return None
    lower = _square(b, quotient.operands[1])
    return b.div(upper, b.mul(quotient.operands[1], quotient.operands[1]) if lower is None else lower)


_RULES: dict[str, Callable[..., Any]] = {"log": _softplus, "log1p": _softplus, "mul": _square_of_root}


def stabilise_block(block: Block) -> Block:
    """A copy without composites (patterns inside them are seen) and with the list above applied; regions are left to their own transforms."""
    return rebuild(block, expand=True, rules=_RULES)


def stable(func: Func) -> Func:
    """``standard`` with the list above applied to the function's own block as well."""
    return standard(func, first=_RULES)


@record(frozen=True)
class Stabilise:
    """The pass."""

    name: str = "stabilise"

    def __call__(self, func: Func) -> Func:
        return Func(func.name, stabilise_block(func.body), func.attrs)
