"""Checks that a function obeys its level: SSA, isolated regions, types as the rules give them, complete attributes, bound sizes.

Iterative; time is linear in the program. Blocks that several ops share (they are never changed in place) are looked at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NoReturn

import numpy as np

from aotgrad_runtime.dtypes import DType
from aotgrad_runtime.errors import AotgradError, AotgradValueError

from . import dims, opdef
from . import ops as _ops  # noqa: F401  (fills the op registry)
from .attributes import Raw
from .builder import infer_types
from .core import Block, Func, Op, Value
from .types import Layout, TensorType

__all__ = ["Spec", "VerifyError", "verify"]

Spec = Callable[[Op], "str | None"]
"""What a kernel-level spec is: says what is wrong with an op (its regions' args and outputs included), or None."""

LEVELS: Final = ("tensor", "kernel")
_PLAIN: Final = (bool, int, float, complex, str, DType, dims.Dim, Layout, TensorType, np.ndarray, np.generic, type(None))


_WHOLE: Final = frozenset(("arrays", "at", "axes", "dilation", "dim", "dims", "drop", "extents", "groups", "high", "kernel", "length", "low", "perm", "shape", "sizes",
                           "starts", "steps", "stride"))
"""Attributes of whole numbers, of whatever op."""


class VerifyError(AotgradValueError):
    """IR that breaks a rule of its level; ``op`` is the op at fault, or None where the function itself is."""

    def __init__(self, message: str, op: Op | None = None) -> None:
        super().__init__(message)
        self.op = op


def verify(func: Func, level: str = "tensor", spec: Spec | None = None, sizes: Iterable[str] = ()) -> None:
    """Raises ``VerifyError`` naming the op, its source line and what is wrong; gives nothing back otherwise.

    ``spec``: checks of each op at kernel level (``codegen.kernel_spec``); at tensor level the op registry is the spec. ``sizes``: size symbols
    bound otherwise than by the arguments (so are those in ``func.attrs["sizes"]``).

    >>> from aotgrad.ir import build, tensor_type
    >>> verify(build("f", [tensor_type(["n"])], lambda b, x: b.mul(x, x)))
    """
    if level not in LEVELS:
        raise AotgradValueError(f"level must be 'tensor' or 'kernel', not {level!r}")
    _Verifier(func, level == "tensor", spec, sizes).run()


class _Frame:
    """A block being walked. ``visible``: what its ops may use (at kernel level one set for all open blocks); ``own``: what leaves it with this block."""

    __slots__ = ("block", "ops", "own", "owner", "visible")

    def __init__(self, block: Block, owner: Op | None, visible: set[Value]) -> None:
        self.block, self.owner, self.visible = block, owner, visible
        self.ops = iter(block.ops)
        self.own: list[Value] = list(block.args)
        visible.update(block.args)


class _Verifier:
    def __init__(self, func: Func, tensor: bool, spec: Spec | None, sizes: Iterable[str]) -> None:
        self.func, self.tensor, self.spec = func, tensor, spec
        self.sizes = {*sizes, *func.attrs.get("sizes", ())}
        self.good_types: set[Any] = set()
        self.seen_ops: set[int] = set()
        self.seen_blocks: set[int] = set()

    def fail(self, message: str, op: Op | None = None) -> NoReturn:
        if op is None:
            raise VerifyError(f"function {self.func.name!r}: {message}")
        name = op.name if "." in op.name else f"ag.{op.name}"
        where = "" if op.loc is None else f"{op.loc}: {op.loc.source}\n  " if op.loc.source else f"{op.loc}: "
        raise VerifyError(f"{where}{name} in function {self.func.name!r}: {message}", op)

    def run(self) -> None:
        for a in self.func.args:
            if self.tensor and isinstance(a.type, TensorType):
                self.sizes.update(s for d in a.type.shape for s in dims.symbols_of(d))
        self.bound(self.func.attrs, None, "the function's attributes")
        # What lies below an open block on the stack: (region, op) still to be entered, so that sibling regions never see each other's values.
        outer: set[Value] = set()
        stack: list[_Frame | tuple[Block, Op]] = [self.enter(self.func.body, None, outer)]
        while stack:
            frame = stack[-1]
            if isinstance(frame, tuple):
                region, owner = frame
                stack[-1] = self.enter(region, owner, set() if self.tensor else outer)
                continue
            op = next(frame.ops, None)
            if op is not None:
                self.op(op, frame)
                outer = frame.visible
                stack.extend((r, op) for r in reversed(op.regions) if not self.tensor or self.first_time(r))
                continue
            self.uses(frame.block.outputs, frame, frame.owner, "the outputs of its region" if frame.owner else "the outputs")
            outer = frame.visible
            outer.difference_update(frame.own)
            stack.pop()

    def first_time(self, region: Block) -> bool:
        new = id(region) not in self.seen_blocks
        self.seen_blocks.add(id(region))
        return new

    def enter(self, block: Block, owner: Op | None, visible: set[Value]) -> _Frame:
        for i, a in enumerate(block.args):
            if a.op is not None or a.index != i or a in visible:
                self.fail(f"argument {i} of its region is not a fresh argument" if owner else f"argument {i} is not a fresh argument", owner)
            self.type(a.type, owner, f"argument {i}")
        return _Frame(block, owner, visible)

    def uses(self, values: Sequence[Value], frame: _Frame, op: Op | None, what: str) -> None:
        for i, v in enumerate(values):
            if v not in frame.visible:
                self.fail(f"{what}: value {i} ({v.type}) {self.why_unknown(v, frame)}", op)

    def why_unknown(self, v: Value, frame: _Frame) -> str:
        if v.op is None:
            return "is an argument of another region or function" + ("; regions are isolated, pass it as an operand" if self.tensor else "")
        name = v.op.name if "." in v.op.name else f"ag.{v.op.name}"
        if any(o is v.op for o in frame.block.ops):
            return f"is used before {name} defines it"
        return f"is defined by {name} in another region or function" + ("; regions are isolated, pass it as an operand" if self.tensor else "")

    def op(self, op: Op, frame: _Frame) -> None:
        if id(op) in self.seen_ops:
            self.fail("the op stands twice in the program; append a copy", op)
        self.seen_ops.add(id(op))
        self.uses(op.operands, frame, op, "its operands")
        for i, r in enumerate(op.results):
            if r.op is not op or r.index != i:
                self.fail(f"result {i} does not point back at the op", op)
            self.type(r.type, op, f"result {i}")
        if self.tensor:
            self.tensor_op(op)
        else:
            self.kernel_op(op)
        frame.visible.update(op.results)
        frame.own.extend(op.results)

    # Tensor level --------------------------------------------------------------------------------------------------------------

    def type(self, t: Any, op: Op | None, what: str) -> None:
        if t in self.good_types:
            return
        wrong = (_wrong_type(t) or self.unbound(t.shape)) if self.tensor else None if isinstance(t, str) and t else f"{t!r} is not the text of an MLIR type"
        if wrong:
            self.fail(f"{what}: {wrong}", op)
        self.good_types.add(t)

    def unbound(self, value: Any) -> str | None:
        """What is wrong when ``value`` holds a size that no argument gives."""
        stack = [value]
        while stack:
            v = stack.pop()
            if isinstance(v, dims.Dim):
                missing = [s for s in v.symbols() if s not in self.sizes]
                if missing:
                    return f"size {missing[0]!r} (in {v}) is bound by no argument"
            elif isinstance(v, (tuple, list)):
                stack.extend(v)
            elif isinstance(v, dict):
                stack.extend(v.values())
            elif isinstance(v, TensorType):
                stack.extend(v.shape)
        return None

    def bound(self, value: Any, op: Op | None, what: str) -> None:
        wrong = self.unbound(value) if self.tensor else None
        if wrong:
            self.fail(f"{what}: {wrong}", op)

    def tensor_op(self, op: Op) -> None:
        if op.name not in opdef.all_ops():
            self.fail(f"unknown op; known: {', '.join(sorted(opdef.all_ops()))}", op)
        definition = opdef.get(op.name)
        try:
            definition.check_operands(op.operands)
            definition.complete(op.attrs)
        except AotgradError as error:
            self.fail(str(error), op)
        for key in definition.attrs:
            if key not in op.attrs:
                self.fail(f"attribute {key!r} is missing (its default is {definition.attrs[key]!r}); build ops with a Builder, which completes them", op)
            wrong = _wrong_attr(op.attrs[key], key in _WHOLE)
            if wrong:
                self.fail(f"attribute {key!r}: {wrong}", op)
            self.bound(op.attrs[key], op, f"attribute {key!r}")
        if len(op.regions) != definition.regions:
            self.fail(f"it has {len(op.regions)} region(s), {definition.regions} are needed", op)
        if op.name == "cond":
            for i, r in enumerate(op.regions):
                if [a.type for a in r.args] != [o.type for o in op.operands[1:]]:
                    self.fail(f"region {i} takes {[str(a.type) for a in r.args]}, the operands after the predicate are {[str(o.type) for o in op.operands[1:]]}", op)
        self.layouts(op, definition)
        self.rule(op, definition)

    def layouts(self, op: Op, definition: opdef.OpDef) -> None:
        if definition.layouts != "row_major":
            return
        for i, o in enumerate(op.operands):
            if o.type.layout is not None:
                self.fail(f"operand {i} has type {o.type}; the op takes row-major operands, relayout it first", op)

    def rule(self, op: Op, definition: opdef.OpDef) -> None:
        try:
            types = tuple(infer_types(definition, op.operands, op.attrs, op.regions))
        except AotgradError as error:
            self.fail(str(error), op)
        except (TypeError, ValueError, AttributeError, IndexError, KeyError) as error:  # an attribute of the wrong kind met by a type rule
            self.fail(f"its attributes do not fit ({error})", op)
        have = tuple(r.type for r in op.results)
        if len(types) != len(have):
            self.fail(f"it has {len(have)} result(s), its rule gives {len(types)}", op)
        for i, (a, b) in enumerate(zip(have, types)):
            wrong = _wrong_type(b)
            if wrong:
                self.fail(f"its attributes give no type: {wrong}", op)
            if a != b:
                self.fail(f"result {i} has type {a}, its rule gives {b}", op)

    # Kernel level --------------------------------------------------------------------------------------------------------------

    def kernel_op(self, op: Op) -> None:
        if "." not in op.name:
            self.fail("a tensor-level op stands at kernel level; its lowering is missing", op)
        wrong = self.spec(op) if self.spec is not None else None
        if wrong:
            self.fail(wrong, op)


def _wrong_type(t: Any) -> str | None:
    if not isinstance(t, TensorType):
        return f"{t!r} is not a tensor type"
    if not isinstance(t.dtype, DType):
        return f"dtype {t.dtype!r} is not an aotgrad dtype"
    for d in t.shape:
        if isinstance(d, bool) or not isinstance(d, (int, dims.Dim)):
            return f"size {d!r} is neither an int nor a Dim"
        if isinstance(d, int) and not 0 <= d < 2**63:
            return f"size {d} of {t} is {'negative' if d < 0 else 'beyond 63 bits'}"
    if t.layout is not None and sorted(t.layout.order) != list(range(t.rank)):
        return f"layout order {list(t.layout.order)} is not an order of the {t.rank} dims of {t}"
    return None


def _wrong_attr(value: Any, whole: bool) -> str | None:
    """``whole``: of integers and sizes alone."""
    stack = [value]
    while stack:
        v = stack.pop()
        if type(v) is int and not -1 << 63 <= v < 1 << 63:
            return f"{v} is beyond 64 bits"
        if isinstance(v, list) or (not isinstance(v, (tuple, dict)) and not isinstance(v, _PLAIN)) or isinstance(v, Raw):
            return f"{v!r} is not a plain value (numbers, strings, dtypes, sizes, layouts, arrays, tuples of them)"
        if whole and not isinstance(v, (tuple, int, np.integer, dims.Dim)):
            return f"{v!r} is neither an int nor a Dim"
        if isinstance(v, tuple):
            stack.extend(v)
        elif isinstance(v, dict):
            stack.extend(v.values())
    return None
