"""Writes into an array in another shape, each as a write into the array itself, so that planning sees one array change from value to value and can keep it in one place.

An element of a matrix is written as one of the flat array, between two reshapes, and a loop or a branch may do so with what it is given:

    y = reshape(x);  z = scatter(y, i, v);  w = reshape(z)      ->      w = scatter(x, i, v) {form: type of y}

Writes with ``form``, and loops and branches whose regions take an array in another shape than the op has it, exist in plans only. So do the ``pairs`` of a ``cond``:
which operands it changes, and which results they become.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Any

from ..ir import opdef
from ..ir.builder import Builder
from ..ir.core import Block, Op, Value
from ..ir.transforms.rewrite import copy_ops
from ..ir.types import TensorType
from .windows import OVERLAY, WINDOW

__all__ = ["UNSET", "form_of", "formed", "size_one"]

UNSET = "unset"  # an array that holds anything: in plans only
_WRITES = frozenset(("insert", "insert_add", "scatter", "scatter_add"))
_ANEW = frozenset(("constant", "full", "iota", "relayout", WINDOW))  # what is no memory that could be overwritten, beside views


def size_one(shape: Sequence[Any]) -> bool:
    """Whether a shape statically holds one element."""
    return all(isinstance(n, int) and n == 1 for n in shape)


def _blank(ops: Sequence[Op], outputs: Sequence[Value]) -> set[Op]:
    """Arrays of one number of which no element is read before it is written: all readers look at the places that one ``scatter`` wrote to. The adjoint of a write at
    several indices asks so which of equal indices was the last; a round of a loop then costs what it writes, not the array."""
    readers: dict[Value, list[Op | None]] = {}
    for op in ops:
        for o in op.operands:
            readers.setdefault(o, []).append(op)
    for v in outputs:
        readers.setdefault(v, []).append(None)

    def alone(full: Op) -> bool:
        (write, *others) = readers.get(full.result, [None])
        if others or write is None or write.name != "scatter" or write.operands[0] is not full.result:
            return False
        return all(r is not None and r.name == "take" and list(r.operands) == [write.result, write.operands[1]] for r in readers.get(write.result, ()))

    return {op for op in ops if op.name == "full" and not size_one(op.result.type.shape) and alone(op)}


def form_of(op: Op) -> TensorType:
    """The type of the array as a write writes it."""
    form: TensorType = op.attrs.get("form") or op.result.type
    return form


def formed(ops: Sequence[Op], outputs: Sequence[Value], donated: Container[Value]) -> tuple[list[Op], list[Value]]:
    """The same program. ``donated``: arguments that may be overwritten."""
    if not any(op.name in _WRITES or op.name in ("scan", "cond") for op in ops):
        return list(ops), list(outputs)
    env: dict[Value, Value] = {}
    out: list[Op] = []
    blank = _blank(ops, outputs)
    for op in ops:
        if op in blank:
            out.append(Op(UNSET, [], [op.result.type], {}, (), op.loc))
            env[op.result] = out[-1].result
            continue
        operands, attrs = [env.get(o, o) for o in op.operands], op.attrs
        regions: Sequence[Block] = op.regions
        types, back = [r.type for r in op.results], list[int]()
        if op.name == "reshape":
            base = _unreshaped(operands[0])
            if base.type == types[0]:
                env[op.result] = base
                continue
            operands = [base]
        if op.name == "cond":
            operands, regions = _merged(operands, regions)
            if pairs := tuple(_pairs(operands, types, regions, donated)):
                attrs = {**attrs, "pairs": pairs}
        for i, j in _changed(op, attrs, types):
            base = _unreshaped(operands[i])
            if base.type != types[j] and _overwritable(base, donated):
                operands[i], types[j] = base, base.type
                back.append(j)
                if op.name in _WRITES:
                    attrs = {**attrs, "form": op.result.type}
        if operands != list(op.operands) or attrs is not op.attrs:
            new = Op(op.name, operands, types, attrs, regions, op.loc)
            env.update(zip(op.results, new.results))
        else:
            new = op
        out.append(new)
        for j in back:
            out.append(Op("reshape", [new.results[j]], [op.results[j].type], {"shape": op.results[j].type.shape}, (), op.loc))
            env[op.results[j]] = out[-1].result
    return out, [env.get(o, o) for o in outputs]


def _changed(op: Op, attrs: Any, types: Sequence[TensorType]) -> Iterator[tuple[int, int]]:
    """Operands that an op changes, and the results that they become."""
    if op.name in _WRITES:
        yield 0, 0
    elif op.name == "scan":
        yield from ((attrs["consts"] + j, j) for j in range(attrs["carry"]) if not size_one(types[j].shape))
    elif op.name == "cond":
        yield from attrs.get("pairs", ())


def _plain_reshape(op: Op) -> bool:
    return op.name == "reshape" and op.result.type.layout is None and op.operands[0].type.layout is None


def _unreshaped(v: Value) -> Value:
    while v.op is not None and _plain_reshape(v.op):
        v = v.op.operands[0]
    return v


def _overwritable(v: Value, donated: Container[Value]) -> bool:
    """Whether a value has memory of its own, which may be overwritten if nobody reads it later."""
    if v.op is None:
        return v in donated
    return v.op.name in (OVERLAY, UNSET) or v.op.name not in _ANEW and not _plain_reshape(v.op) and not isinstance(opdef.get(v.op.name).lower, opdef.View)


# ---- branches -------------------------------------------------------------------------------------------------------------------------

def _merged(operands: list[Value], regions: Sequence[Block]) -> tuple[list[Value], Sequence[Block]]:
    """A value given twice, as itself and by a closure, is given once: else one region argument would be read while the other is written."""
    kept = list(dict.fromkeys(operands[1:]))
    if len(kept) == len(operands) - 1:
        return operands, regions
    place, made = {v: i for i, v in enumerate(kept)}, list[Block]()
    for region in regions:
        block = Block([v.type for v in kept])
        env = {a: block.args[place[o]] for a, o in zip(region.args, operands[1:])}
        copy_ops(Builder(block), region.ops, env)
        block.outputs = [env[o] for o in region.outputs]
        made.append(block)
    return [operands[0], *kept], made


def _pairs(operands: Sequence[Value], types: Sequence[TensorType], regions: Sequence[Block], donated: Container[Value]) -> Iterator[tuple[int, int]]:
    """Operands and results of a ``cond`` that are to share a place: what both branches keep or write parts of; and what one of them does, unless that costs a copy."""
    taken: set[int] = set()
    for j, t in enumerate(types):
        if size_one(t.shape):
            continue
        found = [_carried(r, r.outputs[j]) for r in regions]
        for p in dict.fromkeys(p for p in found if p is not None):
            o = operands[p + 1]
            if p not in taken and o.type == t and (found == [p, p] or _overwritable(_unreshaped(o), donated)):
                taken.add(p)
                yield p + 1, j
                break


def _carried(block: Block, v: Value) -> int | None:
    """The argument that ``v`` is, but for parts that were written; None where it is something else."""
    while v.op is not None:
        op = v.op
        if op.name in _WRITES or _plain_reshape(op):
            v = op.operands[0]
        elif op.name == "scan" and v.index < op.attrs["carry"]:
            v = op.operands[op.attrs["consts"] + v.index]
        elif op.name == "cond" and (inner := [p for p in (_carried(r, r.outputs[v.index]) for r in op.regions) if p is not None]):
            v = op.operands[inner[0] + 1]
        else:
            return None
    return v.index
