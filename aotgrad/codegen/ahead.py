"""Small parts of an array that are read after a write into it: copied ahead of the write. Else the whole array would be, as what reads it runs too late.

Where a part is read in a loop that needs what came of the write, it is read then, wherever it stands in the program:

    z = insert(x, 0);  p = slice(x);  w = insert_add(z, p * v)      ->      p = copy(slice(x))

``copy`` is an op of plans only. A ``take`` needs none: it gives an array of its own.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from ..ir import opdef
from ..ir.core import Op, Value
from ..ir.types import TensorType
from .forms import VIEWS
from .windows import OVERLAY, WINDOW

__all__ = ["COPY", "WRITES", "needed"]

COPY = "copy"
WRITES = frozenset(("insert", "insert_add", "scatter", "scatter_add"))
_SMALL, _OPEN = 4, 64  # how much smaller a part is than the array; what an open size counts as
_STEPS = 64  # ops between a part and what reads it last


def needed(ops: Sequence[Op], outputs: Sequence[Value]) -> set[Op]:
    """Slices that are to be copied."""
    roots: dict[Value, Value] = {}
    parts: dict[Value, list[Op]] = {}
    for op in ops:
        if op.name in VIEWS:
            roots[op.result] = roots.get(op.operands[0], op.operands[0])
        elif op.name == "slice":
            root = roots.get(op.operands[0], op.operands[0])
            if _small(op.result.type, op.operands[0].type):
                parts.setdefault(root, []).append(op)
    if not parts:
        return set()
    writers: dict[Value, list[Op]] = {}
    for op in ops:
        for o in _changed(op):
            if (root := roots.get(o, o)) in parts:
                writers.setdefault(root, []).append(op)
    bits = {w: 1 << i for i, w in enumerate(dict.fromkeys(w for found in writers.values() for w in found))}
    after: dict[Value, int] = {}  # writers that a value needs
    readers: dict[Value, list[Op]] = {}
    for op in ops if bits else ():
        mask = bits.get(op, 0)
        for o in op.operands:
            mask |= after.get(o, 0)
            readers.setdefault(o, []).append(op)
        if mask:
            after.update(dict.fromkeys(op.results, mask))
    numbers = {v for v in outputs if v.type.size == 1}  # may be results in registers, which are read at the end
    return {part for root, found in writers.items() for part in parts[root] if _late(part, found, bits, after, readers, numbers)}


def _changed(op: Op) -> Sequence[Value]:
    if op.name in WRITES:
        return op.operands[:1]
    if op.name == "scan":
        return op.operands[op.attrs["consts"]:op.attrs["consts"] + op.attrs["carry"]]
    return op.operands[1:] if op.name == "cond" else ()


def _small(part: TensorType, whole: TensorType) -> bool:
    """Whether a slice is a small part of what it is cut from."""
    ratio: float = 1
    for n, m in zip(part.shape, whole.shape):
        if n != m and isinstance(n, int):
            ratio *= (m if isinstance(m, int) else _OPEN) / max(n, 1)
    return ratio >= _SMALL


def _late(part: Op, writers: Sequence[Op], bits: dict[Op, int], after: dict[Value, int], readers: dict[Value, list[Op]], numbers: Container[Value]) -> bool:
    """Whether something that reads a part, itself or by way of what is computed on the spot, needs a write into the array, or is one elsewhere in it."""
    mine = 0
    for w in writers:
        mine |= bits[w]
    found, seen = [(part.result, True)], {part.result}
    for v, same in found:  # grows
        if v in numbers:
            return True
        for op in readers.get(v, ()):
            if op in bits and bits[op] & mine:
                if op.name in WRITES and v is not op.operands[0] and not (same and _same_place(part, op)):
                    return True
            elif any(after.get(o, 0) & mine for o in op.operands):
                return True
            elif len(found) < _STEPS and _on_the_spot(op):
                found += [(r, same and _in_order(op)) for r in op.results if r not in seen]
                seen.update(op.results)
    return False


def _same_place(part: Op, write: Op) -> bool:
    """Whether a write replaces the elements of a slice, one by one."""
    attrs = write.attrs
    return (write.name.startswith("insert") and part.operands[0] is write.operands[0] and (part.attrs["starts"], part.attrs["steps"]) == (attrs["starts"], attrs["steps"])
            and part.result.type.shape == write.operands[1].type.shape)


def _on_the_spot(op: Op) -> bool:
    """Whether an op may be computed where its result is read."""
    if op.name in (OVERLAY, WINDOW, "reshape"):
        return True
    low = opdef.get(op.name).lower if not op.regions else None
    return isinstance(low, opdef.View) or isinstance(low, (opdef.Scalar, opdef.Index, opdef.Reduce)) and any(n != 1 for n in op.result.type.shape)


def _in_order(op: Op) -> bool:
    """Whether elements of a result are of those of its operands at the same place, row by row."""
    return op.name == "reshape" or op.name != OVERLAY and op.name != WINDOW and isinstance(opdef.get(op.name).lower, opdef.Scalar)
