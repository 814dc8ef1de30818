"""The order of sums and products of floats: what it is, and what a loop nest must be like to keep it.

It follows from the type of the operand (sizes, layout, dtype), the reduced dims and the instruction set; what is fused with the sum, or around it, has no say.
Dims in memory order of the type fall into groups of neighbours that are all reduced or all kept; a group counts as one dim. Reduced dims of one element are left out,
kept ones are not: they part groups, whether the one is known ahead or only when the code runs.

- *Run*: the innermost group is reduced. By vectors of the dtype, as ``sums.py`` says: four chains, blocks of 128 vectors, groups of 128 blocks.
- *Rows*: the innermost group is kept. Elements one after the other.
- Groups that are reduced outside of others join what is inside one after the other.
- Where the outermost group is reduced and the innermost not, or that is another group, sums (not products) begin anew every 128 rounds of the outermost group and the
  blocks are added one after the other.

So a nest with such reductions goes through dims in the order of the type, a group is one loop, and lanes
lie across rows exactly where the type says rows. Where accesses do not allow a group to be one loop, ``strips.py`` goes through it as if it were. Operands that
are read across (a transposed matrix) or made of a product are stored first, and what would not keep the order has a nest of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ..ir import opdef
from ..ir.core import Op, Value
from ..ir.opdef import ViewMap
from ..ir.types import TensorType
from .windows import OVERLAY

if TYPE_CHECKING:
    from .plan import Nest

__all__ = [
    "BLOCK", "CHAINS", "FEW", "Pairs", "apart", "by_blocks", "every_pair", "groups", "in_line", "innermost", "is_run", "is_thin", "joints", "kept", "may_split", "mixes",
    "starts_anew", "sum_size", "tied", "ties",
]

CHAINS: Final = 4
BLOCK: Final = 128
FEW: Final = 8
"""Rows or columns up to which a product may take a path with another order than by k."""
Pairs = frozenset[tuple[int, int]]
"""Neighbouring dims (outer, inner) that one loop may, or must, go through."""


def sum_size(op: Op) -> int | None:
    """Bytes of the elements that a sum or product of floats is made of: its order goes by them. None for other reductions, whose order changes nothing."""
    low, dtype = opdef.get(op.name).lower, op.result.type.dtype
    return max(4, dtype.itemsize) if isinstance(low, opdef.Reduce) and low.combine in ("add", "mul") and dtype.kind == "f" else None


def _along(t: TensorType) -> list[int]:
    """Dims in memory order, without those of one element."""
    return [d for d in t.order if t.shape[d] != 1]


def groups(t: TensorType, reduced: Collection[int]) -> list[list[int]]:
    """Neighbours that are all reduced or all kept, without reduced dims of one element."""
    out: list[list[int]] = []
    for d in t.order:
        if t.shape[d] == 1 and d in reduced:
            continue
        if out and (out[-1][-1] in reduced) == (d in reduced):
            out[-1].append(d)
        else:
            out.append([d])
    return out


def is_run(t: TensorType, reduced: Collection[int]) -> bool:
    """Whether the innermost dim is reduced."""
    found = groups(t, reduced)
    return bool(found) and found[-1][-1] in reduced


def is_thin(op: Op) -> bool:
    """Whether a sum is one of rows, and rows are known to be of one element: numbers one after the other."""
    x, dims = op.operands[0].type, op.attrs["dims"]
    return sum_size(op) is not None and bool(innermost(x) & set(dims)) and not is_run(x, dims)


def starts_anew(op: Op) -> bool:
    """Whether a sum over rows does so in every block."""
    dims, low = op.attrs["dims"], opdef.get(op.name).lower
    found = groups(op.operands[0].type, dims)
    return sum_size(op) is not None and isinstance(low, opdef.Reduce) and low.combine == "add" and bool(found) and found[0][0] in dims


def by_blocks(op: Op) -> bool:
    """Whether a sum is one of the rows of a matrix, which may be added as the blocks of a product come: for each column by rows."""
    t = op.operands[0].type
    return t.rank == 2 and t.layout is None and op.attrs["dims"] == (0,) and 1 not in t.shape and starts_anew(op)


def tied(t: TensorType, reduced: Collection[int]) -> Pairs:
    """Neighbours that are reduced together."""
    return frozenset(p for g in groups(t, reduced) if g[0] in reduced for p in zip(g, g[1:]))


def apart(op: Op) -> list[frozenset[int]]:
    """Dims that one loop may go through at most, for a reduction."""
    x = op.operands[0].type
    found = groups(x, op.attrs["dims"]) if sum_size(op) is not None else ()
    return [frozenset(op.attrs["dims"]), *(frozenset(g) for g in found)]


def every_pair(t: TensorType) -> Pairs:
    """All neighbours."""
    order = _along(t)
    return frozenset(zip(order, order[1:]))


def joints(op: Op, kind: str, view: ViewMap | None, known: Mapping[Value, Pairs]) -> Pairs:
    """Neighbours that one loop may go through where the result of ``op`` is computed on the spot. ``known``: of what is before it."""
    t = op.result.type
    pairs, among = every_pair(t), _among(_along(t))
    if kind in ("red", "kern", "alias"):
        return pairs
    if kind == "idx":
        return frozenset(p for p in among if op.name != "iota" or op.attrs["dim"] not in p)
    if kind == "view":
        assert view is not None
        return _through(op.operands[0], view, t, known[op.operands[0]])
    if op.name == OVERLAY:
        return frozenset()  # where a window begins and ends
    return among.intersection(*(known[o] for o in op.operands if _along(o.type)))


def _among(dims: Sequence[int]) -> Pairs:
    return frozenset(itertools.permutations(dims, 2))


def _through(source: Value, view: ViewMap, result: TensorType, before: Pairs) -> Pairs:
    """Through a view: neither dim is read, or a step of the outer one is as long as all of the inner one."""
    shape, sizes = source.type.shape, result.shape
    out = set()
    for a, d in _among(_along(result)):  # what reads neither of two dims may have them in any layout
        at = {j: [(s, step) for s, steps in enumerate(view.steps) if shape[s] != 1 for k, step in steps if k == j] for j in (a, d)}
        if not at[a] and not at[d]:
            out.add((a, d))
        elif len(at[a]) == len(at[d]) == 1:
            (s, far), (r, near) = at[a][0], at[d][0]
            if far == near * sizes[d] if s == r else (s, r) in before and far * shape[r] == near * sizes[d]:
                out.add((a, d))
    return frozenset(out)


def in_line(op: Op, kind: str, view: ViewMap | None, known: Mapping[Value, frozenset[int]]) -> frozenset[int]:
    """Dims whose neighbours are neighbours, or one element, in what the result of ``op`` is computed from. ``known``: of what is before it."""
    t = op.result.type
    if kind in ("red", "kern", "alias"):
        return innermost(t)
    if kind == "view":
        assert view is not None
        found = {d: [s for s, steps in enumerate(view.steps) if op.operands[0].type.shape[s] != 1 and any(j == d for j, _ in steps)] for d in range(t.rank)}
        return frozenset(d for d, read in found.items() if known[op.operands[0]].issuperset(read))
    return frozenset(range(t.rank)).intersection(*(known[o] for o in op.operands if _along(o.type)))


def innermost(t: TensorType) -> frozenset[int]:
    """The dim whose elements are neighbours in memory."""
    return frozenset(_along(t)[-1:])


def kept(op: Op) -> set[int]:
    """Dims that a reduction keeps, without those of one element."""
    return {d for d in _along(op.operands[0].type) if d not in op.attrs["dims"]}


def ties(reductions: Iterable[Op]) -> Pairs:
    """Neighbours that one loop must go through, for these reductions."""
    return frozenset().union(*(tied(r.operands[0].type, r.attrs["dims"]) for r in reductions if sum_size(r) is not None))


def mixes(nest: Nest, op: Op) -> bool:
    """Whether ``op`` may not be made in a nest: one loop goes by vectors of one kind, in one order, and through tied dims at once."""
    summed = [r for r in nest.kinds.values() if sum_size(r) is not None]
    if _parts(op, ties(summed)):
        return True
    if sum_size(op) is None:
        return False
    x, kind = op.operands[0].type, _kind(op)
    if nest.layout != x.layout or nest.writes or (nest.outer is not None and not may_split([op], nest.outer)):
        return True
    return any(_kind(r) != kind for r in summed) or any(_parts(r, tied(x, op.attrs["dims"])) for r in nest.kinds.values())


def _kind(op: Op) -> tuple[int | None, str, bool, bool]:
    low = opdef.get(op.name).lower
    assert isinstance(low, opdef.Reduce)
    return sum_size(op), low.combine, is_thin(op), is_thin(op) and starts_anew(op)


def _parts(op: Op, pairs: Pairs) -> bool:
    """Whether a reduction takes one dim of a pair and leaves the other."""
    return any((a in op.attrs["dims"]) != (d in op.attrs["dims"]) for a, d in pairs)


def may_split(reductions: Iterable[Op], outer: Iterable[int]) -> bool:
    """Whether loops over ``outer`` may go outside of the others: sums are those of rows, or of all rows (blocks of rounds of the outermost loop)."""
    return all(sum_size(r) is None or kept(r) == set(outer) or _of_all_rows(r, set(outer)) for r in reductions)


def _of_all_rows(op: Op, outer: set[int]) -> bool:
    found = groups(op.operands[0].type, op.attrs["dims"])
    return starts_anew(op) and len(found) == 2 and set(found[0]) == outer
