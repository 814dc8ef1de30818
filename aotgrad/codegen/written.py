"""Writes into an array in another shape, each as a write into the array itself, so that planning sees one array change from value to value and can keep it in one place.

An element of a matrix is written as one of the flat array, between two reshapes, and a loop or a branch may do so with what it is given:

    y = reshape(x);  z = scatter(y, i, v);  w = reshape(z)      ->      w = scatter(x, i, v) {form: how y shows x}

Indices with a whole dim between them permute the array first; ``take`` then reads it in that form, where the shape would be a copy.
Writes and reads with ``form``, and loops and branches whose regions take an array in another shape than the op has it, exist in plans only. So do the
``pairs`` of a ``cond``: which operands it changes, and which results they become.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

from ..ir import dims, opdef
from ..ir.builder import Builder
from ..ir.core import Block, Op, Value
from ..ir.transforms.rewrite import copy_ops
from ..ir.types import TensorType
from .ahead import COPY, WRITES, needed
from .forms import VIEWS, Form, itself, shown
from .windows import OVERLAY, WINDOW

__all__ = ["UNSET", "form_of", "formed", "size_one"]

UNSET = "unset"  # an array that holds anything: in plans only
_OPEN = 64  # an open size counts as this
_LOOKS = 32  # readers of what was written that are asked whether one shows the array as it was
_ANEW = frozenset(("constant", "full", "iota", "relayout", "reshape", WINDOW))  # what is no memory that could be overwritten, beside views


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


def form_of(op: Op) -> Form:
    """How a write shows the array that it writes, and a ``take`` the one that it reads."""
    form: Form | None = op.attrs.get("form")
    return itself(op.operands[0].type) if form is None else form


class _Seen:
    """What values show of arrays in memory."""

    def __init__(self) -> None:
        self.forms: dict[Value, tuple[Value, Form]] = {}

    def of(self, v: Value) -> tuple[Value, Form]:
        """The array, and how ``v`` shows it."""
        return self.forms.get(v) or (v, itself(v.type))

    def view(self, op: Op, x: Value) -> tuple[Value, Op | None]:
        """What a view of ``x`` gives, and the op that makes it: none where that is an array as it is, a reshape of the array wherever that will do."""
        base, form = self.of(x)
        made = shown(form, op)
        if made is not None and made.whole:
            return base, None
        if made is not None and made.plain and x is not base:
            op = Op("reshape", [base], [made.type], {"shape": made.type.shape}, (), op.loc)
        elif x is not op.operands[0]:
            op = Op(op.name, [x], [op.result.type], op.attrs, (), op.loc)
        if made is not None:
            self.forms[op.result] = base, made
        return op.result, op

    def chain(self, v: Value) -> list[Op]:
        """The views that make ``v`` of its array, first to last."""
        root, form = self.of(v)
        if form.plain:
            return [Op("reshape", [root], [v.type], {"shape": v.type.shape})]
        out: list[Op] = []
        while v is not root and v.op is not None:
            out.append(v.op)
            v = v.op.operands[0]
        return out[::-1]


def formed(ops: Sequence[Op], outputs: Sequence[Value], donated: Container[Value]) -> tuple[list[Op], list[Value]]:
    """The same program. ``donated``: arguments that may be overwritten."""
    if not any(op.name in WRITES or op.name in ("scan", "cond", "take") for op in ops):
        return list(ops), list(outputs)
    return _Formed(ops, donated).run(ops, outputs)


class _Formed:
    def __init__(self, ops: Sequence[Op], donated: Container[Value]) -> None:
        self.donated, self.seen = donated, _Seen()
        self.env: dict[Value, Value] = {}
        self.out: list[Op] = []
        self.readers: dict[Value, list[Op]] = {}
        for op in ops:
            for o in op.operands:
                self.readers.setdefault(o, []).append(op)

    def run(self, ops: Sequence[Op], outputs: Sequence[Value]) -> tuple[list[Op], list[Value]]:
        """Op by op."""
        blank, parts = _blank(ops, outputs), needed(ops, outputs)
        for op in ops:
            if op in blank:
                self.out.append(Op(UNSET, [], [op.result.type], {}, (), op.loc))
                self.env[op.result] = self.out[-1].result
            elif op.name in VIEWS:
                made = self._view(op, self.env.get(op.operands[0], op.operands[0]))
                if made is not op.result:
                    self.env[op.result] = made
            else:
                self._op(op)
                if op in parts:
                    self._copy(op.result)
        return self.out, [self.env.get(o, o) for o in outputs]

    def _copy(self, part: Value) -> None:
        """A part of an array that is written before the part is read: an array of its own, or a number."""
        made = self.env.get(part, part)
        if _overwritable(self.seen.of(made.op.operands[0])[0] if made.op is not None else made, self.donated):
            self.out.append(Op("stop_gradient" if size_one(part.type.shape) else COPY, [made], [part.type]))
            self.env[part] = self.out[-1].result

    def _append(self, op: Op, operands: list[Value], types: Sequence[TensorType], attrs: Any, regions: Sequence[Block]) -> Op:
        """The op, on other operands or of other types."""
        if operands != list(op.operands) or attrs is not op.attrs:
            new = Op(op.name, operands, types, attrs, regions, op.loc)
            self.env.update(zip(op.results, new.results))
        else:
            new = op
        self.out.append(new)
        return new

    def _view(self, op: Op, x: Value) -> Value:
        """Appends a view of ``x``."""
        v, new = self.seen.view(op, x)
        if new is not None:
            self.out.append(new)
        return v

    def _op(self, op: Op) -> None:
        operands, attrs = [self.env.get(o, o) for o in op.operands], op.attrs
        regions: Sequence[Block] = op.regions
        types, back = [r.type for r in op.results], dict[int, Value]()
        if op.name == "cond":
            operands, regions = _merged(operands, regions)
            if pairs := tuple(_pairs(operands, types, regions, self._free)):
                attrs = {**attrs, "pairs": pairs}
        elif op.name == "take":
            base, form = self.seen.of(operands[0])
            if form.map is None and not form.plain and form.even(attrs["dim"]) and _little(op):
                operands[0], attrs = base, {**attrs, "form": form}
        for i, j in _changed(op, attrs, types):
            base, form = self.seen.of(operands[i])
            if base is not operands[i] and self._in_place(op, base, form):
                back[j], operands[i], types[j] = operands[i], base, base.type
                if op.name in WRITES:
                    attrs = {**attrs, "form": form}
        new = self._append(op, operands, types, attrs, regions)
        for j, was in back.items():
            v = new.results[j]
            for view in self.seen.chain(was):
                v = self._view(view, v)
            self.env[op.results[j]] = v

    def _in_place(self, op: Op, base: Value, form: Form) -> bool:
        """Whether an op is to change an array itself rather than what is shown of it."""
        if not _overwritable(base, self.donated):
            return False
        if form.plain or op.name not in WRITES:
            return form.plain and base.type != form.type
        return form.even(op.attrs["dim"] if op.name.startswith("scatter") else None) and self._returns(op, form)

    def _returns(self, op: Op, form: Form) -> bool:
        """Whether what was written is shown as the array itself later."""
        found = [(op.result, form)]
        for v, shows in found:  # grows
            for reader in self.readers.get(v, ())[:_LOOKS]:
                if reader.name in VIEWS and (made := shown(shows, reader)) is not None:
                    if made.whole:
                        return True
                    found.append((reader.result, made))
                elif reader.name in WRITES and reader.operands[0] is v:
                    found.append((reader.result, shows))
            if len(found) > _LOOKS:
                break
        return False

    def _free(self, v: Value) -> bool:
        """Whether a value is in memory that may be overwritten, row by row."""
        base, form = self.seen.of(v)
        return (base is v or form.plain) and _overwritable(base, self.donated)


def _changed(op: Op, attrs: Any, types: Sequence[TensorType]) -> Iterator[tuple[int, int]]:
    """Operands that an op changes, and the results that they become."""
    if op.name in WRITES:
        yield 0, 0
    elif op.name == "scan":
        yield from ((attrs["consts"] + j, j) for j in range(attrs["carry"]) if not size_one(types[j].shape))
    elif op.name == "cond":
        yield from attrs.get("pairs", ())


def _little(take: Op) -> bool:
    """Whether a ``take`` reads a small part of the array. Else a copy in its order of dims, read row by row, is as good."""
    count, rows = (dims.substitute(n, dict.fromkeys(dims.symbols_of(n), _OPEN)) for n in (take.operands[1].type.size, take.operands[0].type.shape[take.attrs["dim"]]))
    return size_one(take.operands[1].type.shape) or bool(2 * count <= rows)


def _overwritable(v: Value, donated: Container[Value]) -> bool:
    """Whether a value has memory of its own, which may be overwritten if nobody reads it later."""
    if v.op is None:
        return v in donated
    return v.op.name in (COPY, OVERLAY, UNSET) or v.op.name not in _ANEW and not isinstance(opdef.get(v.op.name).lower, opdef.View)


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


def _pairs(operands: Sequence[Value], types: Sequence[TensorType], regions: Sequence[Block], free: Callable[[Value], bool]) -> Iterator[tuple[int, int]]:
    """Operands and results of a ``cond`` that are to share a place: what both branches keep or write parts of; and what one of them does, unless that costs a copy."""
    taken: set[int] = set()
    for j, t in enumerate(types):
        if size_one(t.shape):
            continue
        found = [_carried(r, r.outputs[j]) for r in regions]
        for p in dict.fromkeys(p for p in found if p is not None):
            o = operands[p + 1]
            if p not in taken and o.type == t and (found == [p, p] or free(o)):
                taken.add(p)
                yield p + 1, j
                break


def _carried(block: Block, v: Value) -> int | None:
    """The argument that ``v`` is, but for parts that were written; None where it is something else, or shows it in another order."""
    views: list[Op] = []
    while v.op is not None:
        op = v.op
        if op.name in VIEWS:
            views.append(op)
            v = op.operands[0]
        elif op.name in WRITES:
            v = op.operands[0]
        elif op.name == "scan" and v.index < op.attrs["carry"]:
            v = op.operands[op.attrs["consts"] + v.index]
        elif op.name == "cond" and (inner := [p for p in (_carried(r, r.outputs[v.index]) for r in op.regions) if p is not None]):
            v = op.operands[inner[0] + 1]
        else:
            return None
    form: Form | None = itself(v.type)
    for op in reversed(views):
        form = form and shown(form, op)
    return v.index if form is not None and form.whole else None
