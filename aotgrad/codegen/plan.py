"""What fusion decides: the items that run, each a loop nest, a kernel or one element, and where values live. Also the kinds of ops, as planning sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aotgrad_runtime.errors import AotgradNotImplementedError

from ..ir import opdef
from ..ir.core import Block, Op, Value
from ..ir.dims import DimLike
from ..ir.opdef import ViewMap
from .access import Map, reshape_view
from .ahead import COPY
from .prepare import prepare
from .windows import OVERLAY, WINDOW, window_map
from .written import UNSET, formed, size_one

__all__ = ["CHEAP", "How", "Item", "Kern", "Nest", "Plan", "Scalar", "Uses", "WRITES", "classify", "produced", "size_one", "view_of", "weight", "write_map"]

CHEAP = 2
_WEIGHTS = {"div": 4, "sqrt": 4, "pow": 24}
WRITES = frozenset(("insert", "insert_add"))
How = Map | str
"""A map from the reader's space, or "dense" (in memory, row by row as its type says), "strided" (in memory), "inplace" (to be overwritten), "out"."""


class Item:
    """A step of the schedule. ``desc``: bits of the items that must come later; ``pos``: where it stood in the program."""

    __slots__ = ("desc", "id", "op", "pos", "reached", "users")

    def __init__(self, id: int, pos: int, op: Op | None) -> None:
        self.id, self.pos, self.op = id, pos, op
        self.desc = 0
        self.reached = False  # whether an item comes before it
        self.users: set[Item] = set()


class Scalar(Item):
    """An elementwise op on one element: straight-line code."""

    __slots__ = ()


class Kern(Item):
    """An op with a kernel of its own. ``args``: its operands, some replaced by copies of their own; ``pairs``: operand -> result that continues its buffer."""

    __slots__ = ("args", "pairs")

    def __init__(self, id: int, pos: int, op: Op | None) -> None:
        super().__init__(id, pos, op)
        self.args: list[Value] = list(op.operands) if op is not None else []
        self.pairs: dict[Value, Value] = {}


class Nest(Item):
    """One loop nest over ``space``. ``members``: values computed in it and their maps; ``roots``: what it produces, in reverse program order.

    ``outer``: dims that loops run over outside, with several phases of inner loops in turn (None: not split).
    """

    __slots__ = ("epilogue", "kinds", "layout", "members", "outer", "reductions", "sequence", "space", "src", "stored", "writes")

    def __init__(self, id: int, pos: int, space: tuple[DimLike, ...]) -> None:
        super().__init__(id, pos, None)
        self.space = space
        self.outer: tuple[int, ...] | None = None
        self.members: dict[Value, Map] = {}
        self.sequence: list[Value] = []  # members and reductions, last first
        self.stored: list[Value] = []
        self.reductions: list[Op] = []
        self.kinds: dict[Any, Op] = {}  # one reduction of each kind: what thousands share is asked once
        self.writes: list[Op] = []
        self.src = 0
        self.layout: Any = None
        self.epilogue: Op | None = None  # the product whose blocks it runs on


Uses = dict[Value, list[tuple[Item, How]]]
"""Who reads a value, and through which map."""


def view_of(op: Op) -> ViewMap | None:
    """The op as a view of operand 0, when it is one."""
    if op.name == WINDOW:
        return window_map(op)
    if op.name in (COPY, OVERLAY, UNSET):
        return None
    low = opdef.get(op.name).lower
    if isinstance(low, opdef.View):
        return low.fn(op)
    x = op.operands[0].type if op.operands else None
    if op.name == "relayout" and x is not None:
        return ViewMap((0,) * x.rank, tuple(((d, 1),) for d in range(x.rank)))
    if op.name == "reshape" and x is not None:
        return reshape_view(x.shape, op.result.type.shape)
    if isinstance(low, opdef.Reduce) and x is not None and all(x.shape[d] == 1 for d in op.attrs["dims"]):
        kept = iter(range(op.result.type.rank))
        return ViewMap((0,) * x.rank, tuple(() if d in op.attrs["dims"] else ((next(kept), 1),) for d in range(x.rank)))
    return None


def classify(op: Op) -> str:
    """``view``, ``alias`` (a reshape that is no affine view), ``ew``, ``idx``, ``red`` or ``kern``."""
    if view_of(op) is not None:
        return "view"
    if op.name == OVERLAY:
        return "ew"
    if op.name == "reshape":
        return "alias"
    if op.name in (COPY, UNSET):
        return "kern"
    low = opdef.get(op.name).lower
    if isinstance(low, opdef.Scalar):
        return "kern" if opdef.limited(op) else "ew"  # in a loop of its own no element is computed that the program has not
    if isinstance(low, opdef.Index):
        return "idx"
    if isinstance(low, opdef.Reduce):
        return "red"
    if isinstance(low, opdef.Kernel):
        return "idx" if op.name == "constant" and op.attrs["value"].size == 1 else "kern"
    raise AotgradNotImplementedError(f"ag.{op.name} has no kernel-level meaning; decompose composites before lowering")


def weight(op: Op) -> int:
    """What an elementwise op costs: 1 for an addition, 16 for a function like exp."""
    if op.name in _WEIGHTS:
        return _WEIGHTS[op.name]
    if op.name == OVERLAY:
        return len(op.operands)
    if op.name == COPY:
        return 0
    definition = opdef.get(op.name)
    if isinstance(definition.derivative, opdef.Partials) and len(op.operands) == 1 and op.name not in ("abs",):
        return 16
    return 16 if op.name == "atan2" else 1


class Plan:
    """The outcome: items in order, and what the later steps ask about values.

    ``registers``: outputs (by index) that are wanted in registers; ``donated``: argument -> index of the output that may take over its buffer; ``over``: the same,
    but only by items that run after all others (``late``).
    """

    def __init__(self, block: Block, registers: frozenset[int] = frozenset(), donated: Mapping[Value, int] | None = None,
                 over: Mapping[Value, int] | None = None) -> None:
        self.block, self.registers, self.donated, self.over_args = block, registers, dict(donated or {}), dict(over or {})
        self.ops, self.outputs = formed(*prepare(block), self.donated)
        self.windowed = any(op.name == WINDOW for op in self.ops)
        self.kind: dict[Op, str] = {}
        self.views: dict[Op, ViewMap] = {}
        self.items: list[Item] = []
        self.late: set[Item] = set()
        self.replaced: dict[tuple[int, Value], Value] = {}  # (item id, operand) -> its copy in memory
        self.claims: dict[Value, tuple[Value, int, DimLike]] = {}  # piece -> (concatenation, dim, start)
        self.over: dict[Value, Value] = {}  # result of a write -> the value whose buffer it continues
        self.memory: dict[Value, None] = {}  # values with a buffer of their own (or a part of another's)
        self.memory_args: dict[Value, bool] = {}  # arguments that must be in memory, and whether side by side
        self.order: dict[Value, tuple[int, ...]] = {}  # dims in memory order of a buffer whose layout nobody prescribes
        self.same: dict[Value, Value] = {}  # value with a buffer -> the one whose place it takes, which is dead then
        self._roots: dict[Value, Value] = {}
        self.touched: dict[Value, set[Item]] = {}  # values in memory -> items that write or read them

    @property
    def in_place(self) -> frozenset[int]:
        """Outputs that are written into the buffer of a donated argument."""
        given = {**self.donated, **self.over_args}
        ends = {i: self.base(self.outputs[i]) for i in given.values()}
        return frozenset(i for a, i in given.items() if a is ends[i] or a is self.same.get(ends[i]))

    def operand(self, item: Item, v: Value) -> Value:
        """The value to read for operand ``v`` of an item: itself, or a copy made for it."""
        return self.replaced.get((item.id, v), v)

    def base(self, v: Value) -> Value:
        """The value whose buffer holds ``v``: through writes in place and pieces of a concatenation."""
        path = []
        while True:
            after = self._roots.get(v) or self.over.get(v) or (self.claims[v][0] if v in self.claims else None)
            if after is None or after is v:
                break
            path.append(v)
            v = after
        self._roots.update((p, v) for p in path)  # a root may get a base of its own later: then the walk goes on from there
        return v


def produced(item: Item) -> Sequence[Value]:
    """Values that an item computes and that may live in memory."""
    if isinstance(item, Nest):
        product = item.epilogue.results if item.epilogue is not None else ()
        return [*product, *item.stored, *(r.result for r in item.reductions), *(w.result for w in item.writes)]
    return item.op.results if item.op is not None else ()


def write_map(op: Op) -> Map:
    """Where the value of an insert goes: the map of the target's dims (in the shape that it is written in) over the value's space."""
    v = op.operands[1].type
    return tuple((start, ((d, step),) if v.shape[d] != 1 else ()) for d, (start, step) in enumerate(zip(op.attrs["starts"], op.attrs["steps"])))
