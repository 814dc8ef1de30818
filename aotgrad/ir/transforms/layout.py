"""The memory layout of every image (rank 4 and more): row-major or channels_last, by the least cost over the whole block, forward and adjoint together.

Arguments and outputs keep theirs. What the choice is made of, in bytes that move: an op on images names what it costs when an operand or its result is row-major
(``OpDef.row_major``); elementwise ops and moves (joined, padded, shifted, picked by an index) have one layout, and what comes to them in another is turned as it is read;
everything else reads and gives what its type says.
Layouts have two values and every price is for being apart, so the cheapest assignment is a minimum cut and found exactly. It depends on the program and its sizes alone.

A ``relayout`` of the program itself is dropped: it says where a value is wanted, which the ends say as well. One that is left is a view to code generation: it is read in
place, or turned in the loop that reads or stores it.
"""

from __future__ import annotations

from collections.abc import Sequence

from aotgrad_runtime.records import record

from .. import dims, opdef
from ..builder import Builder
from ..core import Block, Func, Op, Value, walk
from ..dims import DimLike
from ..mincut import Cut
from ..types import Layout, TensorType
from .cleanup import dce_block

__all__ = ["Layouts", "Move", "moves"]

_OPEN = 64  # a size that is not known counts as so many
_FREE = -1  # the place of what is computed wherever it is read
_ANEW = frozenset(("broadcast", "full", "iota"))  # computed wherever it is read
_FOLLOW = frozenset(("cast", "stop_gradient", "slice"))  # one operand, whose layout the result has

Place = int | TensorType
"""A node of the cut; ``_FREE``; or the type of a value whose layout is what it is."""


def _last(t: TensorType) -> Layout:
    return Layout.channels_last(t.rank)


def _image(t: TensorType) -> bool:
    return t.rank >= 4 and t.layout in (None, _last(t))


def _same(t: TensorType) -> bool:
    """Whether both layouts are one order of the elements."""
    return t.shape[1] == 1 or all(n == 1 for n in t.shape[2:])


def _whole(op: Op) -> Sequence[Value]:
    """The operands that have the op's layout: all but the index of what is moved by one."""
    return op.operands if opdef.get(op.name).moved is None else [o for o in op.operands if o.type.rank == op.operands[0].type.rank]


def _bytes(t: TensorType) -> int:
    size = dims.product(t.shape)
    if not isinstance(size, int):
        size = dims.substitute(size, dict.fromkeys(dims.symbols_of(size), _OPEN))
    return t.dtype.itemsize * max(1, int(size)) if isinstance(size, int) else t.dtype.itemsize


class _Choice:
    """Places and prices of a block."""

    def __init__(self, block: Block) -> None:
        self.cut = Cut()
        self.at: dict[Value, Place] = {a: a.type for a in block.args}
        self.source: dict[Value, Value] = {}  # results of dropped relayouts: what they are of
        for op in block.ops:
            self._op(op)
        for o in block.outputs:
            self._wanted(self.of(o), o.type)
        self.second = self.cut.second()

    def of(self, v: Value) -> Value:
        return self.source.get(v, v)

    def last(self, node: int) -> bool:
        return node in self.second

    def _op(self, op: Op) -> None:
        definition, operands = opdef.get(op.name), [self.of(o) for o in op.operands]
        image = len(op.results) == 1 and _image(op.result.type) and not isinstance(definition.derivative, opdef.Composite)
        if op.name == "relayout" and _image(op.operands[0].type) and image:
            self.source[op.result] = operands[0]
        elif op.name in _ANEW and image and (op.name != "broadcast" or _bytes(op.operands[0].type) < _bytes(op.result.type)):
            self.at[op.result] = _FREE
            for o in operands:
                self._wanted(o, o.type)
        elif image and (definition.layouts in ("elementwise", "moved") or op.name in _FOLLOW) and all(_image(o.type) for o in _whole(op)):
            node = self.at[op.result] = self.cut.node()
            for o, v in zip(operands, op.operands):
                if v in _whole(op):
                    self._beside(node, o)
                else:
                    self._wanted(o, v.type)
        elif image and definition.layouts == "channels_last" and all(_image(o.type) for o in operands):
            node = self.at[op.result] = self.cut.node()
            passes = definition.row_major(op) if definition.row_major is not None else ()
            for o, n in zip((*operands, op.result), passes):
                self._row_major(o, n)
            if definition.row_major is None:
                for o in operands:
                    self._beside(node, o)
        elif op.name == "sum" and _image(operands[0].type):
            self.at[op.result] = op.result.type
        else:
            for o in operands:
                self._wanted(o, o.type)
            self.at.update((r, r.type) for r in op.results)

    def _beside(self, node: int, v: Value) -> None:
        """An op of layout ``node`` reads ``v``."""
        place = self.at[v]
        if isinstance(place, TensorType):
            self._apart(node, v.type, place)
        elif place != _FREE and not _same(v.type):
            self.cut.apart(place, node, _bytes(v.type))

    def _wanted(self, v: Value, t: TensorType) -> None:
        """``v`` is read as its type ``t`` in the program says."""
        place = self.at[v]
        if isinstance(place, int) and place != _FREE:
            self._apart(place, v.type, t)

    def _apart(self, node: int, t: TensorType, given: TensorType) -> None:
        if not _same(t):
            price = _bytes(t)
            self.cut.price(node, price if given.layout is not None else 0, price if given.layout != _last(t) else 0)

    def _row_major(self, v: Value, passes: int) -> None:
        place = self.at[v]
        if passes and isinstance(place, int) and place != _FREE and not _same(v.type):
            self.cut.price(place, passes * _bytes(v.type), 0)


class _Rewrite:
    """A block anew, with every value where the choice puts it."""

    def __init__(self, block: Block, choice: _Choice) -> None:
        self.choice, self.new = choice, Block([a.type for a in block.args])
        self.b = Builder(self.new)
        self.env: dict[Value, Value] = dict(zip(block.args, self.new.args))
        self.placed: dict[tuple[Value, Layout | None], Value] = {}
        for op in block.ops:
            self._op(op)
        self.new.outputs = [self._in(o, o.type.layout) for o in block.outputs]

    def _in(self, v: Value, layout: Layout | None) -> Value:
        """The new value of ``v`` in a layout."""
        found = self.env[self.choice.of(v)]
        if found.type.layout == layout:
            return found
        made = self.placed.get((found, layout))
        if made is None:
            made = self.placed[found, layout] = self.b.relayout(found, layout=layout)
        return made

    def _op(self, op: Op) -> None:
        choice = self.choice
        if op.results and op.results[0] in choice.source:
            return
        self.b.loc = op.loc
        place = choice.at[op.results[0]] if op.results else _FREE
        if isinstance(place, int) and place != _FREE:
            self._placed(op, _last(op.result.type) if choice.last(place) else None)
            return
        if op.name == "sum" and _image(op.operands[0].type):
            x = self.env[choice.of(op.operands[0])]
            total = self.b.sum(x, dims=op.attrs["dims"])
            self.env[op.result] = total if total.type == op.result.type else self.b.relayout(total, layout=op.result.type.layout)
            return
        regions = [place_block(r) for r in op.regions]
        self._copy(op, [self._in(o, o.type.layout) for o in op.operands], [r.type for r in op.results], regions)

    def _placed(self, op: Op, layout: Layout | None) -> None:
        """An op that has its layout by choice: the first operand says which, for the others that of an image counts where it would say something else."""
        images = opdef.get(op.name).layouts == "channels_last"
        wanted = []
        for i, o in enumerate(op.operands):
            if images and i and layout is not None:
                wanted.append(self.env[self.choice.of(o)])
            else:
                wanted.append(self._in(o, layout if o in _whole(op) else o.type.layout))
        t = op.result.type
        self._copy(op, wanted, [TensorType(t.shape, t.dtype, layout)], op.regions)

    def _copy(self, op: Op, operands: Sequence[Value], types: Sequence[TensorType], regions: Sequence[Block]) -> None:
        made = Op(op.name, operands, types, op.attrs, regions, op.loc)
        self.new.ops.append(made)
        self.env.update(zip(op.results, made.results))


def place_block(block: Block) -> Block:
    """``block`` with layouts chosen, its regions too; itself where nothing prefers one."""
    if not any(opdef.get(op.name).row_major is not None for op in walk(block)):
        return block
    return dce_block(_Rewrite(block, _Choice(block)).new)


@record(frozen=True)
class Move:
    """A ``relayout`` that is left and moves elements: the op, the bytes it is about, and how it is done: "moved first" or "turned in a loop"."""

    op: Op
    bytes: DimLike
    how: str


def moves(func: Func) -> list[Move]:
    """The changes of layout in the function's own block. What is computed where it is read (broadcasts), what convolutions read as it lies, and arrays whose elements
    keep their order cost nothing."""
    found: dict[Value, set[str]] = {op.result: set() for op in func.body.ops if op.name == "relayout" and not _idle(op)}
    for op in func.body.ops:
        for i, o in enumerate(op.operands):
            if o in found:
                price = opdef.get(op.name).row_major
                if price is None or price(op)[i] > 1 and o.type.layout is not None:
                    found[o].add(_TURNED if price is None else _MOVED)
    for o in func.outputs:
        if o in found:
            found[o].add(_TURNED)
    return [Move(v.op, v.type.size * v.type.dtype.itemsize, _TURNED if _TURNED in how else _MOVED) for v, how in found.items() if v.op is not None and how]


_MOVED, _TURNED = "moved first", "turned in a loop"


def _idle(op: Op) -> bool:
    source = op.operands[0]
    return source.op is not None and source.op.name in _ANEW or _image(op.result.type) and _same(op.result.type)


@record(frozen=True)
class Layouts:
    """The pass."""

    name: str = "layout"

    def __call__(self, func: Func) -> Func:
        body = place_block(func.body)
        return func if body is func.body else Func(func.name, body, func.attrs)
