"""How much a call can do whose arguments and results are small: whether it must look for interrupts all the same.

The call path looks at the bytes of arguments and results. They say little about a loop over ``broadcast(x, [2**40])``, over an iota, or over the triples of a vector's
elements. What they leave possible is bounded here, once per program: each array of at most ``RELEASE_BYTES`` bounds the product of its sizes, and a product of sizes is
bounded by those of arrays that cover it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from aotgrad_runtime.call.spec import RELEASE_BYTES

from ..ir import dims, opdef
from ..ir.core import Func, Op, walk
from ..ir.dims import DimLike

__all__ = ["many_rounds"]

_ROUNDS = 2.0**30  # of loops, in a call that need not be interrupted: about a second
_LOOPS = ("scan",)  # their bodies run any number of times
_Array = tuple[Counter[object], float]  # sizes with their powers, and the logarithm of how large their product may be


def many_rounds(func: Func) -> bool:
    """Whether a call with little data may run longer than one can wait for an interrupt."""
    arrays = [a for t in (*func.arg_types, *func.out_types) if (a := _array(t)) is not None]
    known: dict[tuple[DimLike, ...], float] = {}
    total = 0.0
    for op in walk(func.body):
        if op.name in _LOOPS:
            return True
        if isinstance(opdef.get(op.name).lower, opdef.View):
            continue
        for space in _spaces(op):
            if space not in known:
                known[space] = _bound(dims.product(space), arrays)
        total += max((known[s] for s in _spaces(op)), default=0.0)
        if total > _ROUNDS:
            return True
    return False


def _spaces(op: Op) -> list[tuple[DimLike, ...]]:
    """The iteration spaces of an op: of its operands and results, with what is summed or looked at on the way."""
    if op.name == "dot":
        return [(*op.result.type.shape, op.operands[0].type.shape[-1])]
    further = tuple(op.attrs.get("kernel", ())) if op.name.startswith("window_") else ()
    return [(*v.type.shape, *further) for v in (*op.operands, *op.results)]


def _array(t: Any) -> _Array | None:
    """What the sizes of an argument or result may be while it is small; None where they are no product of symbols."""
    size = dims.product(d for d in t.shape if d != 0)
    if isinstance(size, int):
        return None
    if len(size.terms) != 1:
        return None
    (mono, factor), = size.terms
    if factor < 0 or any(atom[0] != "sym" for atom, _ in mono):  # less than none: it is empty, whatever the symbols are
        return None
    return Counter(dict(mono)), max(math.log2(RELEASE_BYTES / t.dtype.itemsize / factor), 0.0)


def _bound(size: DimLike, arrays: Sequence[_Array]) -> float:
    """The largest that a size can be."""
    if isinstance(size, int):
        return float(max(size, 0))
    total = 0.0
    for mono, factor in size.terms:
        if factor < 0:
            continue
        left: Counter[object] = Counter()
        times = float(factor)
        for atom, power in mono:
            if atom[0] == "sym":
                left[atom] = power
            else:
                times *= _atom(atom, arrays) ** power
        total += times * 2.0 ** min(_cover(left, arrays), 1000.0)
    return total


def _atom(atom: Any, arrays: Sequence[_Array]) -> float:
    kind, a, b = atom
    x, y = _bound(a, arrays), _bound(b, arrays)
    return {"min": min(x, y), "max": max(x, y), "floordiv": x, "mod": y}[kind]


def _cover(left: Counter[object], arrays: Sequence[_Array]) -> float:
    """The logarithm of what a product of symbols can be: arrays are taken that cover the most of it, until all is covered."""
    bits = 0.0
    left = +left
    while left:
        covered, cost = max(arrays, key=lambda a: ((left & a[0]).total(), -a[1]), default=(Counter(), 0.0))
        if not left & covered:
            return math.inf
        left, bits = left - covered, bits + cost
    return bits
