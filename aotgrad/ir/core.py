"""The IR: values, operations, blocks, functions. Pure SSA with value semantics at tensor level.

The same classes carry the kernel level, where ops are MLIR's own (``arith.addf``, ``scf.for``) and types are strings of MLIR's.
Regions are isolated: what a body captures is an operand of its op and an argument of its block.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .printer import print_func
from .types import TensorType

__all__ = ["Block", "Func", "Loc", "Op", "Value", "walk"]


class Loc:
    """A place in the user's source. Captured as (code, instruction offset), resolved when first read.

    ``adjoint``: on operations that backward adds for the place; ``what``: what an index of the operation is, for errors. They tell nothing else apart (equality,
    printing).
    """

    __slots__ = ("_code", "_file", "_lasti", "_line", "adjoint", "what")

    def __init__(self, file: str | None = None, line: int = 0, code: Any = None, lasti: int = 0, adjoint: bool = False, what: str = "") -> None:
        self._file, self._line, self._code, self._lasti, self.adjoint, self.what = file, line, code, lasti, adjoint, what

    def as_adjoint(self) -> Loc:
        """The same place, for the operations of its adjoint."""
        return self if self.adjoint else Loc(self._file, self._line, self._code, self._lasti, True, self.what)

    def _resolve(self) -> None:
        code, self._file, self._line = self._code, self._code.co_filename, self._code.co_firstlineno
        for start, end, line in code.co_lines():
            if start <= self._lasti < end and line is not None:
                self._line = line
                break
        self._code = None

    @property
    def file(self) -> str:
        if self._code is not None:
            self._resolve()
        return self._file or "<unknown>"

    @property
    def line(self) -> int:
        if self._code is not None:
            self._resolve()
        return self._line

    @property
    def source(self) -> str:
        """The text of the line, stripped ('' when the file is gone)."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    def told(self) -> str:
        """The place, and after a tab what the index is where that is known: ``errors`` of compiled code are made of it (see ``call.failure``)."""
        return f"{self}\t{self.what}" if self.what else str(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Loc) and (self.file, self.line) == (other.file, other.line)

    def __hash__(self) -> int:
        return hash((self.file, self.line))


class Value:
    """A value: the result ``index`` of ``op``, or an argument of a block (``op`` is None)."""

    __slots__ = ("index", "op", "type")

    def __init__(self, type: Any, op: Op | None = None, index: int = 0) -> None:
        self.type, self.op, self.index = type, op, index

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.type.shape  # type: ignore[no-any-return]

    @property
    def dtype(self) -> Any:
        return self.type.dtype

    def __repr__(self) -> str:
        return f"<{self.op.name if self.op else 'arg'}#{self.index}: {self.type}>"


class Op:
    """One operation. ``name`` has no dialect prefix at tensor level ("add" prints as "ag.add"); attrs are plain Python values."""

    __slots__ = ("attrs", "loc", "name", "operands", "regions", "results")

    def __init__(self, name: str, operands: Sequence[Value], types: Iterable[Any], attrs: Mapping[str, Any] | None = None,
                 regions: Sequence[Block] = (), loc: Loc | None = None) -> None:
        self.name = name
        self.operands: list[Value] = list(operands)
        self.attrs: dict[str, Any] = dict(attrs) if attrs else {}
        self.regions: tuple[Block, ...] = tuple(regions)
        self.results: tuple[Value, ...] = tuple([Value(t, self, i) for i, t in enumerate(types)])
        self.loc = loc

    @property
    def result(self) -> Value:
        return self.results[0]

    def __repr__(self) -> str:
        return f"<Op {self.name} {[o.type for o in self.operands]} -> {[r.type for r in self.results]}>"


class Block:
    """Arguments, operations in order, and the values it ends with (printed as a terminator op)."""

    __slots__ = ("args", "ops", "outputs")

    def __init__(self, arg_types: Iterable[Any] = ()) -> None:
        self.args: list[Value] = [Value(t, None, i) for i, t in enumerate(arg_types)]
        self.ops: list[Op] = []
        self.outputs: list[Value] = []

    def add_arg(self, type: Any) -> Value:
        self.args.append(Value(type, None, len(self.args)))
        return self.args[-1]


def dissolve(*blocks: Block) -> None:
    """Takes blocks apart that nobody reads any more: values and their operations refer to each other, and would wait for the garbage collector. Regions may be
    shared with copies of the operations, and stay."""
    for block in blocks:
        for op in block.ops:
            for r in op.results:
                r.op = None


class Func:
    """A function: ``name``, ``body``, and attributes (argument names, donated arguments, ...)."""

    __slots__ = ("attrs", "body", "name")

    def __init__(self, name: str, body: Block, attrs: Mapping[str, Any] | None = None) -> None:
        self.name, self.body, self.attrs = name, body, dict(attrs or {})

    @property
    def args(self) -> list[Value]:
        return self.body.args

    @property
    def outputs(self) -> list[Value]:
        return self.body.outputs

    @property
    def arg_types(self) -> list[TensorType]:
        return [a.type for a in self.body.args]

    @property
    def out_types(self) -> list[TensorType]:
        return [o.type for o in self.body.outputs]

    def symbols(self) -> list[str]:
        """Size symbols in order of first appearance in the arguments: bare ones first use their place, then those inside expressions."""
        seen: dict[str, None] = {}
        for t in self.arg_types:
            for d in t.shape:
                if not isinstance(d, int):
                    seen.update(dict.fromkeys(d.symbols()))
        return list(seen)

    def __str__(self) -> str:
        return print_func(self)


def walk(block: Block) -> Iterator[Op]:
    """Every op of a block and of its regions, outer before inner, without recursion."""
    stack = [iter(block.ops)]
    while stack:
        op = next(stack[-1], None)
        if op is None:
            stack.pop()
            continue
        yield op
        stack.extend(iter(r.ops) for r in reversed(op.regions))
