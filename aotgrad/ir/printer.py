"""The text of functions: MLIR's generic form, always the same for the same IR, read back by ``parser``.

>>> from aotgrad.ir import build, ops, tensor_type
>>> print(build("f", [tensor_type(["n"])], lambda b, x: b.mul(x, x)))
"func.func"() <{function_type = (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>, sym_name = "f"}> ({
^bb0(%arg0: !ag.tensor<[n], f64>):
  %0 = "ag.mul"(%arg0, %arg0) : (!ag.tensor<[n], f64>, !ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>
  "func.return"(%0) : (!ag.tensor<[n], f64>) -> ()
}) : () -> ()
<BLANKLINE>
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .attributes import attr_text, kernel_attr_text, key_text, quote

if TYPE_CHECKING:
    from .core import Block, Func, Loc, Op, Value

__all__ = ["print_func", "print_module", "terminator"]


def print_func(func: Func, locs: bool = False) -> str:
    """The text of a function, ending in a newline. ``locs``: with the source line of each op.

    An attribute that text cannot carry (a Python callable) prints as ``#ag.opaque<...>``, which the parser refuses.
    """
    return _Printer(locs).func(func)


def print_module(funcs: Iterable[Func], locs: bool = False) -> str:
    """Several functions, and at the end declarations of those that kernel-level calls name and that are not among them."""
    given = list(funcs)
    text = "".join(print_func(f, locs) for f in given)
    return text + "".join(_declarations(given))


def terminator(owner: Op | None, region: int) -> str:
    """Name of the op that ends a region of ``owner`` (None: a function's body)."""
    if owner is None:
        return "func.return"
    if "." not in owner.name:
        return "ag.yield"
    if owner.name == "scf.while" and region == 0:
        return "scf.condition"
    return owner.name.split(".")[0] + ".yield"


def signature(ins: Sequence[str], outs: Sequence[str]) -> str:
    """``(A, B) -> C``."""
    return f"({', '.join(ins)}) -> {outs[0] if len(outs) == 1 else '(' + ', '.join(outs) + ')'}"


def _declarations(funcs: Sequence[Func]) -> Iterator[str]:
    known = {f.name for f in funcs}
    for f in funcs:
        stack = [iter(f.body.ops)]
        while stack:
            op = next(stack[-1], None)
            if op is None:
                stack.pop()
                continue
            stack.extend(iter(r.ops) for r in reversed(op.regions))
            callee = op.attrs.get("callee")
            if op.name == "func.call" and callee not in known:
                known.add(str(callee))
                kind = signature([str(o.type) for o in op.operands], [str(r.type) for r in op.results])
                yield f'"func.func"() <{{function_type = {kind}, sym_name = {quote(str(callee))}, sym_visibility = "private"}}> ({{\n}}) : () -> ()\n'


class _Frame:
    """A region being printed."""

    __slots__ = ("block", "indent", "index", "ops", "owner")

    def __init__(self, owner: Op | None, index: int, block: Block, indent: str) -> None:
        self.owner, self.index, self.block, self.indent = owner, index, block, indent
        self.ops = iter(block.ops)


class _Printer:
    def __init__(self, locs: bool) -> None:
        self.locs = locs
        self.lines: list[str] = []
        self.names: dict[Value, str] = {}
        self.types: dict[Any, str] = {}
        self.args = self.results = 0

    def type(self, t: Any) -> str:
        text = self.types.get(t)
        if text is None:
            text = self.types[t] = str(t)
        return text

    def kinds(self, values: Sequence[Value]) -> list[str]:
        return [self.type(v.type) for v in values]

    def uses(self, values: Sequence[Value]) -> str:
        return ", ".join([self.names.get(v, "%undefined") for v in values])

    def func(self, func: Func) -> str:
        kind = signature(self.kinds(func.args), self.kinds(func.outputs))
        self.lines.append(f'"func.func"() <{{function_type = {kind}, sym_name = {quote(func.name)}}}> ({{')
        frames = [self.open(None, 0, func.body, "  ")]
        while frames:
            self.step(frames)
        extra = self.entries([(k, attr_text(v)) for k, v in sorted(func.attrs.items())])
        self.lines.append(f"}}){extra and ' ' + extra} : () -> ()\n")
        return "\n".join(self.lines)

    def step(self, frames: list[_Frame]) -> None:
        """Prints ops of the innermost region until one opens regions of its own, or the region ends."""
        frame = frames[-1]
        for op in frame.ops:
            head = self.head(op, frame.indent)
            if op.regions:
                self.lines.append(f"{head} ({{")
                frames.append(self.open(op, 0, op.regions[0], frame.indent + "  "))
                return
            self.lines.append(head + self.tail(op))
        name = terminator(frame.owner, frame.index)
        self.lines.append(f'{frame.indent}"{name}"({self.uses(frame.block.outputs)}) : {signature(self.kinds(frame.block.outputs), ())}')
        frames.pop()
        if frame.owner is None:
            return
        outer, following = frame.indent[2:], frame.index + 1
        if following < len(frame.owner.regions):
            self.lines.append(f"{outer}}}, {{")
            frames.append(self.open(frame.owner, following, frame.owner.regions[following], frame.indent))
            return
        if frame.owner.name == "scf.if" and following == 1:  # MLIR's op always has two regions
            self.lines.append(f"{outer}}}, {{")
        self.lines.append(f"{outer}}}){self.tail(frame.owner)}")

    def open(self, owner: Op | None, index: int, block: Block, indent: str) -> _Frame:
        if block.args:
            shown = []
            for a in block.args:
                self.names[a] = f"%arg{self.args}"
                self.args += 1
                shown.append(f"{self.names[a]}: {self.type(a.type)}")
            self.lines.append(f"{indent[2:]}^bb0({', '.join(shown)}):")
        return _Frame(owner, index, block, indent)

    def head(self, op: Op, indent: str) -> str:
        """Results, name, operands and properties; names the results."""
        left = indent
        if op.results:
            name = f"%{self.results}"
            self.results += 1
            if len(op.results) == 1:
                self.names[op.results[0]] = name
                left = f"{indent}{name} = "
            else:
                for r in op.results:
                    self.names[r] = f"{name}#{r.index}"
                left = f"{indent}{name}:{len(op.results)} = "
        if "." not in op.name:
            return f'{left}"ag.{op.name}"({self.uses(op.operands)})'
        props = self.entries(self.kernel_attrs(op, dotted=False)) if op.attrs else ""
        return f'{left}"{op.name}"({self.uses(op.operands)}){props and f" <{props}>"}'

    def tail(self, op: Op) -> str:
        """Attributes, types and location."""
        attrs = ""
        if op.attrs:
            pairs = [(k, attr_text(v)) for k, v in sorted(op.attrs.items())] if "." not in op.name else self.kernel_attrs(op, dotted=True)
            attrs = self.entries(pairs)
        where = f" {_loc_text(op.loc)}" if self.locs and op.loc is not None else ""
        return f"{attrs and ' ' + attrs} : {signature(self.kinds(op.operands), self.kinds(op.results))}{where}"

    def kernel_attrs(self, op: Op, dotted: bool) -> list[tuple[str, str]]:
        """Inherent attributes (plain names) go into the properties, those with a dot in their name behind the regions."""
        result = op.results[0].type if op.results else None
        return [(k, kernel_attr_text(op.name, k, v, result)) for k, v in sorted(op.attrs.items()) if ("." in k) == dotted]

    def entries(self, pairs: Sequence[tuple[str, str]]) -> str:
        return "{" + ", ".join([f"{key_text(k)} = {v}" if v != "unit" else key_text(k) for k, v in pairs]) + "}" if pairs else ""


def _loc_text(loc: Loc) -> str:
    return f"loc({quote(loc.file)}:{loc.line}:0)"
