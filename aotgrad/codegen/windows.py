"""Chains of writes into a fresh array, turned round: instead of filling it and adding piece after piece in memory, each element asks which pieces cover it.

``insert`` and ``insert_add`` of steps 1 onto a ``full`` become the elementwise ``overlay(acc, window(v), ...)``: v where the element lies in the window of v, else
acc. So the pieces are computed where they are needed, the chain is one loop, and that loop fuses like any other. Both ops exist in plans only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ir import dims
from ..ir.core import Op, Value
from ..ir.dims import DimLike
from ..ir.opdef import ViewMap
from .access import Affine, Map

__all__ = ["OVERLAY", "WINDOW", "Range", "covers", "outside", "overlays", "window_map"]

OVERLAY, WINDOW = "overlay", "window"
WRITES = ("insert", "insert_add")
_GROUPS = 8  # windows of one overlay: every element asks each of them
_EDGE = 64  # elements that a window of unknown size may leave out in a dim
Range = tuple[Affine, DimLike]
"""A position, and the size below which it must be."""


def window_map(op: Op) -> ViewMap:
    """Where the elements of a window come from; beyond its range there is nothing to read."""
    return ViewMap(tuple(-s for s in op.attrs["starts"]), tuple(((d, 1),) for d in range(op.result.type.rank)))


def covers(overlay: Op, m: Map) -> list[Range]:
    """When an element of an overlay at map ``m`` lies in its windows: every position below its size (and not below 0)."""
    whole, piece, starts = overlay.result.type.shape, overlay.attrs["sizes"], overlay.attrs["starts"]
    return [((off - start, terms), n) for (off, terms), n, full, start in zip(m, piece, whole, starts) if n != full]


def outside(m: Map, shape: Sequence[DimLike], space: Sequence[DimLike]) -> list[Range]:
    """Positions of a value at map ``m`` that may lie outside it somewhere in ``space``."""
    inside = [n == 1 or (off == 0 and len(terms) == 1 and terms[0][1] == 1 and space[terms[0][0]] == n) for (off, terms), n in zip(m, shape)]
    return [(at, n) for at, n, ok in zip(m, shape, inside) if not ok]


def overlays(ops: Sequence[Op], outputs: Sequence[Value]) -> tuple[list[Op], list[Value]]:
    """The same program with chains of writes as overlays."""
    if not any(op.name in WRITES for op in ops):
        return list(ops), list(outputs)
    chains = _chains(ops, outputs)
    if not chains:
        return list(ops), list(outputs)
    env: dict[Value, Value] = {}
    out: list[Op] = []
    dropped = {op for links in chains.values() for op in links[:-1]}
    for op in ops:
        if op in dropped:
            continue
        if op in chains:
            links = chains[op]
            made = _overlay(links, [env.get(x.operands[1], x.operands[1]) for x in links], env.get(links[0].operands[0], links[0].operands[0]))
            out += made
            env[op.result] = made[-1].result
            continue
        operands = [env.get(o, o) for o in op.operands]
        if operands != list(op.operands):
            new = Op(op.name, operands, [r.type for r in op.results], op.attrs, op.regions, op.loc)
            env.update(zip(op.results, new.results))
            op = new
        out.append(op)
    return out, [env.get(o, o) for o in outputs]


def _chains(ops: Sequence[Op], outputs: Sequence[Value]) -> dict[Op, list[Op]]:
    """The longest run of wide writes after each fresh array, by its last write."""
    readers: dict[Value, int] = {}
    for op in ops:
        for o in op.operands:
            readers[o] = readers.get(o, 0) + 1
    for o in outputs:
        readers[o] = readers.get(o, 0) + 1
    links: dict[Value, list[Op]] = {}  # result of a write -> the run that ends with it
    ended: dict[Op, list[Op]] = {}
    for op in ops:
        if op.name not in WRITES or not _wide(op):
            continue
        x = op.operands[0]
        before = links.get(x, [] if _fresh(x) else None)
        if before is None or (before and readers[x] != 1):
            continue
        if len({(w.attrs["starts"], w.operands[1].type.shape) for w in [*before, op]}) > _GROUPS:
            continue
        if before:
            del ended[before[-1]], links[x]
        ended[op] = links[op.result] = [*before, op]
    return ended


def _fresh(x: Value) -> bool:
    op = x.op
    while op is not None and op.name in ("broadcast", "relayout"):
        op = op.operands[0].op
    return op is not None and (op.name == "full" or (op.name == "constant" and op.attrs["value"].size == 1))


def _wide(op: Op) -> bool:
    """Whether a window covers nearly all of its array, so that asking everywhere costs no more than it saves."""
    x, v = op.operands[0].type, op.operands[1].type
    if any(s != 1 for s in op.attrs["steps"]) or x.dtype.kind == "b" or all(n == 1 for n in x.shape):
        return False
    return all(_nearly(n, full) for n, full in zip(v.shape, x.shape))


def _nearly(n: DimLike, full: DimLike) -> bool:
    if n == full:
        return True
    if isinstance(n, int) and isinstance(full, int):
        return 4 * n >= 3 * full
    # Two large sizes of everything tell a constant edge from a part; this decides what is worth while, never what is right.
    edges = []
    for k in (1 << 20, 3 << 20):
        names = {s: k + 4096 * i for i, s in enumerate(dict.fromkeys([*dims.symbols_of(n), *dims.symbols_of(full)]))}
        edges.append(dims.substitute(full, names) - dims.substitute(n, names))
    return edges[0] == edges[1] and isinstance(edges[0], int) and 0 <= edges[0] <= _EDGE


def _overlay(links: Sequence[Op], values: Sequence[Value], base: Value) -> list[Op]:
    """Neighbours that write the same window ask once."""
    out: list[Op] = []
    acc, k = base, 0
    while k < len(links):
        first: Any = links[k]
        same = [k]
        while same[-1] + 1 < len(links) and _window(links[same[-1] + 1]) == _window(first):
            same.append(same[-1] + 1)
        pieces = []
        for i in same:
            out.append(Op(WINDOW, [values[i]], [first.result.type], {"starts": first.attrs["starts"]}, (), links[i].loc))
            pieces.append(out[-1].result)
        last = links[same[-1]]
        attrs = {"starts": first.attrs["starts"], "sizes": tuple(values[k].type.shape), "add": tuple(links[i].name == "insert_add" for i in same)}
        out.append(Op(OVERLAY, [acc, *pieces], [first.result.type], attrs, (), last.loc))
        acc, k = out[-1].result, same[-1] + 1
    return out


def _window(op: Op) -> tuple[Any, ...]:
    return op.attrs["starts"], op.operands[1].type.shape
