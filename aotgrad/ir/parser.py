"""Reads functions from MLIR's generic form. ``print_module(parse_module(text)) == text`` for text that the printer wrote.

Results must have the types that the ops' rules give; every error is a ``ParseError`` with line, column and what was expected.
The parser (lark) is imported on first use.
"""

from __future__ import annotations

import difflib
import functools
import os
import threading
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from aotgrad_runtime import forks
from aotgrad_runtime.dtypes import from_mlir
from aotgrad_runtime.errors import AotgradError, AotgradRuntimeError, AotgradTypeError, AotgradValueError

from . import opdef
from . import ops as _ops  # noqa: F401  (fills the op registry)
from .attributes import (
    ENUMS,
    SEGMENTS,
    SYMBOLS,
    Raw,
    complex_from_text,
    dense_from_text,
    float_bits,
    layout_from_text,
    opaque_error,
    splat_from_text,
    type_from_text,
    unquote,
)
from .builder import infer_types
from .core import Block, Func, Loc, Op, Value
from .dims import parse as parse_dim
from .printer import terminator
from .types import TensorType

__all__ = ["ParseError", "parse_func", "parse_module"]

_LOCK: Final = forks.safe(threading.Lock(), outer=True)
_ENDS: Final = frozenset({"func.return", "ag.yield", "scf.yield", "scf.condition"})


class ParseError(AotgradValueError):
    """Text that is not IR: ``line`` and ``column`` (from 1) say where, the message what was expected."""

    def __init__(self, message: str, line: int = 0, column: int = 0) -> None:
        super().__init__(message)
        self.line, self.column = line, column


def parse_module(text: str, file: str = "<text>") -> list[Func]:
    """The functions of ``text``, in order. ``file`` is named in errors.

    >>> from aotgrad.ir.printer import print_module
    >>> text = '''"func.func"() <{function_type = (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>, sym_name = "f"}> ({
    ... ^bb0(%arg0: !ag.tensor<[n], f64>):
    ...   %0 = "ag.mul"(%arg0, %arg0) : (!ag.tensor<[n], f64>, !ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>
    ...   "func.return"(%0) : (!ag.tensor<[n], f64>) -> ()
    ... }) : () -> ()
    ... '''
    >>> print_module(parse_module(text)) == text
    True
    """
    if not isinstance(text, str):
        raise AotgradTypeError(f"text must be a str, not {type(text).__name__}; decode bytes first")
    parser, actions = _parser()
    with _LOCK:
        actions.reset(file)
        try:
            found = parser.parse(text)
        except _lark().UnexpectedInput as error:
            raise _syntax_error(error, text, file) from None
        except RecursionError:
            raise ParseError(f"{file}: attributes are nested too deeply") from None
        finally:
            actions.reset("")
    funcs: list[Func] = [f for item in found for f in (item if isinstance(item, list) else [item])]
    names: set[str] = set()
    for f in funcs:
        if f.name in names:
            raise ParseError(f"{file}: function {f.name!r} is defined twice; give each its own sym_name")
        names.add(f.name)
    return funcs


def parse_func(text: str, file: str = "<text>") -> Func:
    """The one function of ``text``."""
    funcs = parse_module(text, file)
    if len(funcs) != 1:
        raise ParseError(f"{file}: one function was expected, the text has {len(funcs)}")
    return funcs[0]


@functools.lru_cache(maxsize=1)
def _lark() -> Any:
    try:
        import lark  # noqa: PLC0415  (lazy by design)
    except ImportError as error:
        raise AotgradRuntimeError(f"reading IR text needs lark, which cannot be imported ({error}); install it with 'pip install lark'") from error
    return lark


@functools.lru_cache(maxsize=1)
def _parser() -> tuple[Any, _Actions]:
    actions = _Actions()
    with open(os.path.join(os.path.dirname(__file__), "grammar.lark"), encoding="utf-8") as file:
        grammar = file.read()
    return _lark().Lark(grammar, parser="lalr", lexer="contextual", transformer=actions, maybe_placeholders=True), actions


# ---- syntax errors ------------------------------------------------------------------------------------------------------------

_WORDS: Final = {
    "SSA": "a value (%0)", "STRING": 'a string ("...")', "NAME": "an attribute name", "INT": "an integer", "FLOAT": "a float", "HEX": "a hex number", "TYPE": "a type",
    "HASH": "an attribute (#ag.dim<n>)", "DENSE": "dense<...>", "ARRAY": "array<...>", "SYMBOL": "a symbol (@name)", "BLOCK": "a block header (^bb0)", "LPAR": "'('",
    "RPAR": "')'", "LBRACE": "'{'", "RBRACE": "'}'", "COLON": "':'", "COMMA": "','", "EQUAL": "'='", "LSQB": "'['", "RSQB": "']'",
    "LOC": "loc", "UNIT": "unit", "TRUE": "true", "FALSE": "false", "UNKNOWN": "unknown", "$END": "the end of the text"}


def _syntax_error(error: Any, text: str, file: str) -> ParseError:
    wanted = getattr(error, "accepts", None) or getattr(error, "expected", None) or getattr(error, "allowed", None) or ()
    names: dict[str, str] = {t.name: t.pattern.value for t in _parser()[0].terminals}
    expected = ", ".join(sorted({_WORDS.get(w, f"'{names.get(w, w)}'") for w in wanted}))
    token = getattr(error, "token", None)
    ended = token is not None and token.type == "$END"
    line, column = (text.count("\n") + 1, len(text) - text.rfind("\n")) if ended else (error.line, error.column)
    rest = "" if ended else text.split("\n")[line - 1][column - 1:].split(" ")[0]
    shown = "the end of the text" if ended else repr(str(token) if token is not None else rest[:20])
    return ParseError(f"{file}:{line}:{column}: {shown} is not expected here; expected {expected or 'something else'}", line, column)


# ---- building -----------------------------------------------------------------------------------------------------------------

class _End:
    """A terminator: the outputs of its region."""

    __slots__ = ("name", "token", "values")

    def __init__(self, name: str, values: list[Value], token: Any) -> None:
        self.name, self.values, self.token = name, values, token


class _Typed:
    """A number or array with a type other than the default."""

    __slots__ = ("text", "type", "value")

    def __init__(self, value: Any, text: str, type: str) -> None:
        self.value, self.text, self.type = value, text, type


class _Region:
    """A region that is closed; ``funcs`` are those found in it (of builtin.module)."""

    __slots__ = ("block", "end", "funcs")

    def __init__(self, block: Block, end: _End | None, funcs: list[Func]) -> None:
        self.block, self.end, self.funcs = block, end, funcs


class _Actions:
    """What the parser does on each rule, in the order of the text. ``scopes``: names of values, one dict per open region."""

    def __init__(self) -> None:
        self.reset("")

    def reset(self, file: str) -> None:
        self.file = file
        self.scopes: list[dict[str, Value]] = [{}]

    def fail(self, token: Any, message: str) -> NoReturn:
        raise ParseError(f"{self.file}:{token.line}:{token.column}: {message}", token.line, token.column)

    def guard(self, token: Any, fn: Any, *args: Any) -> Any:
        """``fn(*args)``, its errors placed at ``token``."""
        try:
            return fn(*args)
        except ParseError:
            raise
        except (AotgradError, ValueError, OverflowError) as error:  # ValueError: int() of thousands of digits
            self.fail(token, str(error))

    # Names ---------------------------------------------------------------------------------------------------------------------

    def define(self, token: Any, text: str, value: Value) -> None:
        if any(text in s for s in self.scopes):
            self.fail(token, f"value {text} is defined twice")
        self.scopes[-1][text] = value

    def lookup(self, token: Any) -> Value:
        for scope in reversed(self.scopes):
            value = scope.get(token)
            if value is not None:
                return value
        self.fail(token, f"value {token} is used and not defined before it (in its region or one around it)")

    def arg(self, c: list[Any]) -> Any:
        return c[0], self.guard(c[1], type_from_text, str(c[1])), c[2]

    def args(self, c: list[Any]) -> Any:
        return c

    def header(self, c: list[Any]) -> list[Value]:
        out = []
        for i, (token, kind, _) in enumerate(c[1] or ()):
            value = Value(kind, None, i)
            self.define(token, str(token), value)
            out.append(value)
        return out

    def region_open(self, c: list[Any]) -> None:
        self.scopes.append({})

    def region(self, c: list[Any]) -> _Region:
        self.scopes.pop()
        block, end = Block(), None
        funcs: list[Func] = []
        block.args = c[1] or []
        for item in c[2:]:
            if end is not None:
                self.fail(end.token, f'"{end.name}" ends a region, and another op follows it')
            if isinstance(item, _End):
                end = item
                block.outputs = item.values
            elif isinstance(item, Op):
                block.ops.append(item)
            else:
                funcs.extend(item if isinstance(item, list) else [item])
        return _Region(block, end, funcs)

    def regions(self, c: list[Any]) -> list[_Region]:
        return c

    # Ops -----------------------------------------------------------------------------------------------------------------------

    def start(self, c: list[Any]) -> list[Any]:
        for item in c:
            if not isinstance(item, (Func, list)):
                token = item.token if isinstance(item, _End) else None
                place = f":{token.line}:{token.column}" if token is not None else ""
                raise ParseError(f'{self.file}{place}: an op stands outside any function; the text is a sequence of "func.func"')
        return c

    def op(self, c: list[Any]) -> Any:
        results, token, operands, properties, regions, attributes, (in_types, out_types), loc = c
        name = self.guard(token, unquote, str(token))
        if name == "func.func":
            if results or operands or in_types or out_types:
                self.fail(token, '"func.func" has neither operands nor results')
            return self.function(token, properties or {}, regions or [], attributes or {})
        if name == "builtin.module":
            return [f for r in regions or () for f in r.funcs]
        values = [self.lookup(t) for t in operands] if operands else []
        self.check_types(token, name, "operand", [v.type for v in values], in_types)
        if name in _ENDS:
            if results or regions or properties or attributes or out_types:
                self.fail(token, f"{name} ends a region and has operands only")
            return _End(name, values, token)
        attrs = {**(properties or {}), **(attributes or {})}
        blocks = self.blocks(token, name, regions) if regions else ()
        if name.startswith("ag."):
            op = self.tensor_op(token, name[3:], values, attrs, blocks, out_types, loc)
        elif "." in name:
            attrs = {k: self.kernel_attr(name, k, v) for k, v in attrs.items()}
            op = Op(name, values, out_types, attrs, blocks, loc)
        else:
            self.fail(token, f'op "{name}" has no dialect; write "ag.{name}"')
        self.name_results(token, op, results)
        return op

    def tensor_op(self, token: Any, name: str, values: list[Value], attrs: dict[str, Any], blocks: Sequence[Block], out_types: list[Any], loc: Loc | None) -> Op:
        if name not in opdef.all_ops():
            close = difflib.get_close_matches(name, opdef.all_ops(), 1)
            self.fail(token, f"unknown op ag.{name}{f'; did you mean ag.{close[0]}?' if close else ''}")
        definition = opdef.get(name)
        for v in (*values, *(a for b in blocks for a in b.args)):
            if not isinstance(v.type, TensorType):
                self.fail(token, f"ag.{name} takes tensors (!ag.tensor<...>), not {v.type}")
        attrs = {k: self.tensor_attr(token, name, k, v) for k, v in attrs.items()}
        self.guard(token, definition.check_operands, values)
        attrs = self.guard(token, definition.complete, attrs)
        if len(blocks) != definition.regions:
            self.fail(token, f"ag.{name} has {definition.regions} region(s), not {len(blocks)}")
        try:
            types = infer_types(definition, values, attrs, blocks)
            self.check_types(token, f"ag.{name}", "result", types, out_types)
        except ParseError:
            raise
        except AotgradError as error:
            self.fail(token, f"ag.{name}: {error}")
        except (TypeError, ValueError, AttributeError, IndexError, KeyError) as error:  # an attribute of the wrong kind met by a type rule
            self.fail(token, f"ag.{name}: its attributes do not fit ({error})")
        return Op(name, values, types, attrs, blocks, loc)

    def check_types(self, token: Any, name: str, what: str, have: Sequence[Any], said: Sequence[Any]) -> None:
        if len(have) != len(said):
            self.fail(token, f"{name} has {len(have)} {what}(s), the text gives types of {len(said)}")
        for i, (a, b) in enumerate(zip(have, said)):
            if a is not b and a != b:
                self.fail(token, f"{name}: {what} {i} is {a}, the text says {b}")

    def name_results(self, token: Any, op: Op, results: Any) -> None:
        if results is None:
            if op.results:
                self.fail(token, f"{op.name} has {len(op.results)} result(s); name them: %0{f':{len(op.results)}' if len(op.results) > 1 else ''} = ...")
            return
        at = 0
        for ssa, count in results:
            n = 1 if count is None else self.guard(count, int, str(count))
            mine = op.results[at:at + n]
            if len(mine) != n or n < 1:
                self.fail(ssa, f"{op.name} has {len(op.results)} result(s), more are named")
            if n == 1:
                self.define(ssa, str(ssa), mine[0])
            for i, r in enumerate(mine):
                self.define(ssa, f"{ssa}#{i}", r)
            at += n
        if at != len(op.results):
            self.fail(token, f"{op.name} has {len(op.results)} result(s), {at} are named")

    def blocks(self, token: Any, name: str, regions: Sequence[_Region]) -> list[Block]:
        short = name[3:] if name.startswith("ag.") else name
        out = []
        for i, r in enumerate(regions):
            if r.funcs:
                self.fail(token, f"function {r.funcs[0].name!r} stands inside {name}")
            if r.end is None and name == "scf.if" and i == 1 and not r.block.ops:
                continue
            want = terminator(Op(short, (), ()), i)
            if r.end is None:
                self.fail(token, f'region {i} of {name} has no end; its last op is "{want}"')
            if r.end.name != want:
                self.fail(r.end.token, f'"{r.end.name}" ends region {i} of {name}; "{want}" was expected')
            out.append(r.block)
        return out

    def function(self, token: Any, properties: dict[str, Any], regions: Sequence[_Region], attributes: dict[str, Any]) -> Any:
        name, kind = properties.get("sym_name"), properties.get("function_type")
        if not isinstance(name, str) or not isinstance(kind, _FunctionType) or len(regions) != 1 or regions[0].funcs:
            self.fail(token, '"func.func" needs <{function_type = (...) -> ..., sym_name = "..."}> and one region')
        block, end = regions[0].block, regions[0].end
        if end is None and not block.ops and not block.args:
            return []  # a declaration: print_module writes it again from the calls
        if end is None or end.name != "func.return":
            self.fail(end.token if end else token, f'the body of function {name!r} must end in "func.return"')
        self.check_types(token, f"function {name!r}", "argument", [a.type for a in block.args], kind.ins)
        self.check_types(end.token, f"function {name!r}", "result", [o.type for o in block.outputs], kind.outs)
        return Func(name, block, {k: self.tensor_attr(token, "", k, v) for k, v in attributes.items()})

    # Pieces ----------------------------------------------------------------------------------------------------------------------

    def results(self, c: list[Any]) -> Any:
        return c

    def result(self, c: list[Any]) -> Any:
        return c

    def operands(self, c: list[Any]) -> Any:
        return c

    def types(self, c: list[Any]) -> list[Any]:
        return [self.guard(t, type_from_text, str(t)) for t in c]

    def one_type(self, c: list[Any]) -> list[Any]:
        return self.types(c)

    def many_types(self, c: list[Any]) -> list[Any]:
        return c[0] or []

    def signature(self, c: list[Any]) -> _FunctionType:
        return _FunctionType(c[0] or [], c[1])

    def properties(self, c: list[Any]) -> dict[str, Any]:
        return c[0] or {}

    attributes = properties
    dict_attr = properties

    def entries(self, c: list[Any]) -> dict[str, Any]:
        out = {}
        for token, value in c:
            key = self.guard(token, unquote, str(token)) if token.type == "STRING" else str(token)
            if key in out:
                self.fail(token, f"attribute {key!r} is given twice")
            out[key] = value
        return out

    def entry(self, c: list[Any]) -> Any:
        return c[0], c[1] if len(c) > 1 else None

    def loc(self, c: list[Any]) -> Loc:
        return Loc(self.guard(c[0], unquote, str(c[0])), self.guard(c[1], int, str(c[1])))

    def no_loc(self, c: list[Any]) -> None:
        return None

    # Attributes ------------------------------------------------------------------------------------------------------------------

    def integer(self, c: list[Any]) -> Any:
        value = self.guard(c[0], int, str(c[0]))
        return value if c[1] is None or c[1] == "i64" else _Typed(value, str(c[0]), str(c[1]))

    def real(self, c: list[Any]) -> Any:
        return float(c[0]) if c[1] is None or c[1] == "f64" else _Typed(float(c[0]), str(c[0]), str(c[1]))

    def bits(self, c: list[Any]) -> Any:
        value = self.guard(c[0], float_bits, str(c[0]), str(c[1]))
        return value if c[1] == "f64" else _Typed(value, str(c[0]), str(c[1]))

    def true(self, c: list[Any]) -> bool:
        return True

    def false(self, c: list[Any]) -> bool:
        return False

    def unit(self, c: list[Any]) -> None:
        return None

    def string(self, c: list[Any]) -> str:
        return str(self.guard(c[0], unquote, str(c[0])))

    def type_attr(self, c: list[Any]) -> Any:
        kind = self.guard(c[0], type_from_text, str(c[0]))
        return kind if isinstance(kind, TensorType) else _Token("type", str(c[0]))

    def hash_attr(self, c: list[Any]) -> Any:
        head, _, body = str(c[0]).partition("<")
        if not head.startswith("#ag."):
            return _Token("hash", str(c[0]))
        return self.guard(c[0], _own_attr, head, body[:-1], str(c[0]))

    def symbol(self, c: list[Any]) -> Any:
        return _Token("symbol", str(c[0]))

    def dense(self, c: list[Any]) -> Any:
        body, kind = str(c[0])[6:-1], str(c[1])
        value, _ = self.guard(c[0], dense_from_text, body, kind)
        if kind.startswith("tensor"):
            return value
        number = splat_from_text(body, kind) if value.size else None
        return _Typed(value if number is None else number, str(c[0]), kind)

    def array(self, c: list[Any]) -> Any:
        return _Token("array", str(c[0]))

    def list_attr(self, c: list[Any]) -> Any:
        return c

    def tensor_attr(self, token: Any, name: str, key: str, value: Any) -> Any:
        """The Python value of an attribute at tensor level."""
        if isinstance(value, list):
            return tuple([self.tensor_attr(token, name, key, v) for v in value])
        if isinstance(value, dict):
            return {k: self.tensor_attr(token, name, k, v) for k, v in value.items()}
        if isinstance(value, _Token) and value.kind == "type":
            return self.guard(token, from_mlir, value.text)
        if isinstance(value, (_Token, _Typed, _FunctionType)):
            shown = value.text if isinstance(value, _Token) else f"{value.text} : {value.type}" if isinstance(value, _Typed) else "a function type"
            self.fail(token, f"attribute {key!r}{f' of ag.{name}' if name else ''}: {shown} has no meaning at tensor level")
        return value

    def kernel_attr(self, name: str, key: str, value: Any) -> Any:
        """The Python value of an attribute at kernel level: the inverse of ``attributes.kernel_attr_text``."""
        if isinstance(value, _Typed):
            return value.value if name == "arith.constant" and key == "value" else Raw(f"{value.text} : {value.type}")
        if not isinstance(value, _Token):
            return [self.kernel_attr(name, key, v) for v in value] if isinstance(value, list) else value
        if value.kind == "symbol" and key in SYMBOLS:
            return value.text[1:] if value.text[1] != '"' else unquote(value.text[1:])
        if value.kind == "hash" and key in ENUMS and value.text.startswith(ENUMS[key] + "<"):
            return value.text[len(ENUMS[key]) + 1:-1]
        if value.kind == "array":
            kind, _, body = value.text[6:-1].partition(":")
            if kind.strip() == ("i32" if key in SEGMENTS else "i64"):
                return tuple(int(v) for v in body.split(",") if v.strip())
        return Raw(value.text)


class _Token:
    """An attribute whose meaning depends on the op it stands at."""

    __slots__ = ("kind", "text")

    def __init__(self, kind: str, text: str) -> None:
        self.kind, self.text = kind, text


class _FunctionType:
    __slots__ = ("ins", "outs")

    def __init__(self, ins: list[Any], outs: list[Any]) -> None:
        self.ins, self.outs = ins, outs

    def __iter__(self) -> Any:
        return iter((self.ins, self.outs))


def _own_attr(head: str, body: str, text: str) -> Any:
    if head == "#ag.dim":
        return parse_dim(body)
    if head == "#ag.layout":
        return layout_from_text(body)
    if head == "#ag.complex":
        return complex_from_text(body)
    if head == "#ag.int":
        return int(body)
    if head == "#ag.none":
        return None
    if head == "#ag.opaque":
        raise opaque_error(text)
    raise AotgradValueError(f"unknown attribute {head}<...>; known: #ag.dim, #ag.layout, #ag.complex, #ag.int, #ag.none")
