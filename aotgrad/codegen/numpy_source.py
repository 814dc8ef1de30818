"""Tensor-level IR as one readable Python file that needs NumPy alone.

Elementwise results used once are written inside their use; a broadcast or a constant is left to NumPy's broadcasting where another operand has the full shape.
"""

from __future__ import annotations

import json
import keyword
import math
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotgrad_runtime.errors import AotgradNotImplementedError
from aotgrad_runtime.records import record
from aotgrad_runtime.trees import Leaf, leaves

from ..ir import dims
from ..ir.core import Block, Op, Value
from ..ir.dims import Dim, DimLike
from ..ir.transforms.cleanup import splat
from ..ir.types import TensorType
from .cabi import CFunction
from .numpy_calls import Classes, parameters, result
from .numpy_helpers import HELPERS

__all__ = ["module"]

ATOM, UNARY, MUL, ADD, AND, XOR, OR, COMPARE = 9, 8, 7, 6, 5, 4, 3, 2
_INLINE = 70
_BINARY = {
    "add": ("+", ADD), "sub": ("-", ADD), "mul": ("*", MUL), "div": ("/", MUL), "floor_divide": ("//", MUL), "remainder": ("%", MUL), "lt": ("<", COMPARE),
    "le": ("<=", COMPARE), "gt": (">", COMPARE), "ge": (">=", COMPARE), "eq": ("==", COMPARE), "ne": ("!=", COMPARE), "logical_and": ("&", AND),
    "logical_or": ("|", OR), "logical_xor": ("^", XOR), "bitwise_and": ("&", AND), "bitwise_or": ("|", OR), "bitwise_xor": ("^", XOR),
}
_CALLS = {
    "pow": "np.power", "atan2": "np.arctan2", "asin": "np.arcsin", "acos": "np.arccos", "atan": "np.arctan", "lmul": "_lmul", "sigmoid": "_sigmoid",
    "softplus": "_softplus", "erf": "_erf", "erfc": "_erfc", "erfinv": "_erfinv", "lgamma": "_lgamma", "digamma": "_digamma", "clamp": "_clamp",
    "asinh": "np.arcsinh", "acosh": "np.arccosh",
    "atanh": "np.arctanh", "bitwise_not": "np.bitwise_not", "bitwise_left_shift": "np.left_shift", "bitwise_right_shift": "np.right_shift",
}
_CALLS.update({n: f"np.{n}" for n in (
    "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "sign", "floor", "ceil", "trunc",
    "isnan", "isinf", "isfinite", "maximum", "minimum", "where", "abs", "round", "fmod", "hypot", "cbrt", "logaddexp", "logaddexp2")})
_REDUCE = {"sum": "np.sum", "prod": "np.prod", "amax": "np.max", "amin": "np.min", "any": "np.any", "all": "np.all"}


@record(frozen=True)
class _Text:
    """An expression. ``short``: what may stand for it beside an operand of the full shape (a number, a smaller array)."""

    full: str
    rank: int = ATOM
    short: str | None = None
    short_rank: int = ATOM


def _wrapped(text: str, rank: int, least: int) -> str:
    return text if rank >= least else f"({text})"


def _number(value: Any, dtype: Any) -> str:
    if dtype.kind == "b":
        return str(bool(value))
    if dtype.kind in "iu":
        return str(int(value))
    x = float(value)
    if math.isnan(x):
        return "np.nan"
    if math.isinf(x):
        return "np.inf" if x > 0 else "-np.inf"
    return repr(float(f"{np.float32(x):.9g}")) if dtype.name == "float32" and float(np.float32(float(f"{np.float32(x):.7g}"))) != x else repr(x)


class _Writer:
    """One function; nested blocks share names and lines."""

    def __init__(self, f: CFunction, helpers: set[str]) -> None:
        self.f, self.helpers = f, helpers
        self.lines: list[str] = []
        self.indent = "    "
        self.taken = {"np", "math", "base64", "range", "reversed", "min", "max", "floordiv", "mod", "slice", "float", "int", *keyword.kwlist}
        self.sizes = {s: self.name(s) for s in f.symbols}
        self.env: dict[Value, _Text] = {}
        self.count = 0
        self.place: Any = None

    # ---- names and lines --------------------------------------------------------------------------------------------------------

    def name(self, wanted: str) -> str:
        """An unused name like ``wanted``."""
        out = re.sub(r"\W", "_", wanted)
        while out in self.taken:
            out += "_"
        self.taken.add(out)
        return out

    def fresh(self) -> str:
        """The next short name."""
        self.count += 1
        return self.name(f"t{self.count}")

    def put(self, line: str) -> None:
        self.lines.append(self.indent + line)

    def helper(self, name: str) -> str:
        """``name``, whose definition the file then gets."""
        self.helpers.add(name)
        return name

    def size(self, d: DimLike) -> str:
        """A size as an expression."""
        if isinstance(d, int):
            return str(d)
        for word in ("floordiv", "mod"):
            if word in dims.to_text(d):
                self.helper(word)
        return dims.to_text(dims.substitute(d, {s: dims.symbol(n) for s, n in self.sizes.items()}))

    def shape(self, shape: Sequence[DimLike]) -> str:
        """A shape as a tuple."""
        return f"({', '.join(self.size(d) for d in shape)}{',' if len(shape) == 1 else ''})"

    def atom(self, v: Value) -> str:
        """A name or call that stands for a value."""
        t = self.env[v]
        return _wrapped(t.full, t.rank, ATOM)

    # ---- blocks ---------------------------------------------------------------------------------------------------------------------

    def block(self, block: Block) -> None:
        """All ops of a block; arguments are in ``env``."""
        uses = Counter(o for op in block.ops for o in op.operands)
        uses.update(dict.fromkeys(block.outputs, 2))
        for op in block.ops:
            if op.name in ("scan", "cond"):
                self.comment(op)
                (self.scan if op.name == "scan" else self.cond)(op)
                continue
            text = self.expression(op)
            r = op.result
            lazy = text.short is not None
            inline = uses[r] == 1 and op.name in _INLINED and len(text.full) <= _INLINE
            if lazy or inline or text.full.isidentifier():
                self.env[r] = text
                continue
            self.comment(op)
            name = self.fresh()
            self.put(f"{name} = {text.full}")
            self.env[r] = _Text(name)

    def comment(self, op: Op) -> None:
        """The user's line, when it changes."""
        if op.loc is None or (here := (op.loc.file, op.loc.line)) == self.place:
            return
        self.place = here
        source = op.loc.source
        if source:
            self.put(f"# {op.loc.file.rpartition('/')[2]}:{op.loc.line}: {source}"[:150])

    def scan(self, op: Op) -> None:
        """A loop over the leading dim."""
        nc, nk, body = op.attrs["consts"], op.attrs["carry"], op.regions[0]
        length = self.size(op.attrs["length"])
        for arg, x in zip(body.args[:nc], op.operands[:nc]):
            self.env[arg] = _Text(self.named(x))
        carry = []
        for arg, x in zip(body.args[nc:nc + nk], op.operands[nc:nc + nk]):
            name = self.fresh()
            self.put(f"{name} = {self.env[x].full}")
            self.env[arg] = _Text(name)
            carry.append(name)
        i = self.name("i")
        for arg, x in zip(body.args[nc + nk:], op.operands[nc + nk:]):
            self.env[arg] = _Text(f"{self.named(x)}[{i}]")
        stacks = [self.fresh() for _ in op.results[nk:]]
        for name, r in zip(stacks, op.results[nk:]):
            self.put(f"{name} = np.empty({self.shape(r.type.shape)}, np.{_np_name(r.type)})")
        self.put(f"for {i} in {f'reversed(range({length}))' if op.attrs['reverse'] else f'range({length})'}:")
        outer, self.indent, self.place = self.indent, self.indent + "    ", None
        self.block(body)
        outs = [self.env[o].full for o in body.outputs]
        for name, text in zip(stacks, outs[nk:]):
            self.put(f"{name}[{i}] = {text}")
        moved = [(c, t) for c, t in zip(carry, outs[:nk]) if c != t]
        if moved:
            self.put(f"{', '.join(c for c, _ in moved)} = {', '.join(t for _, t in moved)}")
        if not body.ops and not moved and not stacks:
            self.put("pass")
        self.indent, self.place = outer, None
        self.env.update(zip(op.results, map(_Text, [*carry, *stacks])))

    def cond(self, op: Op) -> None:
        """``if`` and ``else``, each giving the results their names."""
        names = [self.fresh() for _ in op.results]
        outer = self.indent
        inputs = [self.named(x) for x in op.operands[1:]]
        for head, region in ((f"if {self.env[op.operands[0]].full}:", op.regions[0]), ("else:", op.regions[1])):
            self.put(head)
            self.indent, self.place = outer + "    ", None
            self.env.update(zip(region.args, map(_Text, inputs)))
            self.block(region)
            for name, o in zip(names, region.outputs):
                self.put(f"{name} = {self.env[o].full}")
            if not names:
                self.put("pass")
            self.indent = outer
        self.place = None
        self.env.update(zip(op.results, map(_Text, names)))

    def named(self, v: Value) -> str:
        """A value as a name, given one now if it has none."""
        text = self.env[v]
        if not text.full.isidentifier():
            name = self.fresh()
            self.put(f"{name} = {text.full}")
            self.env[v] = text = _Text(name)
        return text.full

    # ---- ops ------------------------------------------------------------------------------------------------------------------------

    def expression(self, op: Op) -> _Text:
        """The text of one op without regions."""
        found = _OPS.get(op.name)
        if found is not None:
            return found(self, op)
        if op.name in _BINARY:
            sign, rank = _BINARY[op.name]
            (a, ra), (b, rb) = self.operands(op)
            # both sides of a comparison, and the right side always, need a higher rank than the operator's own
            return _Text(f"{_wrapped(a, ra, rank + (rank == COMPARE))} {sign} {_wrapped(b, rb, rank + 1)}", rank)
        if op.name in _CALLS:
            name = _CALLS[op.name]
            if name.startswith("_"):
                self.helper(name)
            return _Text(f"{name}({', '.join(t for t, _ in self.operands(op))})")
        if op.name == "polygamma":
            self.helper("_polygamma")
            return _Text(f"_polygamma({self.operands(op)[0][0]}, {op.attrs['n']})")
        if op.name in _REDUCE:
            return self.reduction(op)
        raise AotgradNotImplementedError(f"{op.loc}: ag.{op.name} has no NumPy form in --emit python")

    def operands(self, op: Op) -> list[tuple[str, int]]:
        """Operands of an elementwise op: short forms where another operand fixes the shape (and, of numbers, the dtype)."""
        texts = [self.env[o] for o in op.operands]
        skip = op.name == "where"
        whole = [i for i, t in enumerate(texts) if t.short is None]
        free = any(i >= skip for i in whole)
        out = []
        for i, t in enumerate(texts):
            if t.short is None:
                out.append((t.full, t.rank))
            elif free or (whole and i > skip) or (not whole and i > skip):
                out.append((t.short, t.short_rank))
            else:
                out.append((t.full, t.rank))
        return out

    def reduction(self, op: Op) -> _Text:
        x, axes = op.operands[0], tuple(op.attrs["dims"])
        if not axes:
            return self.env[x]
        parts = [self.env[x].full]
        if len(axes) < x.type.rank:
            parts.append(f"axis={axes[0] if len(axes) == 1 else axes}")
        if op.name in ("sum", "prod") and x.type.dtype.kind in "iub":
            parts.append(f"dtype=np.{_np_name(x.type)}")
        if op.name in ("amax", "amin") and not all(isinstance(n := x.type.shape[d], int) and n for d in axes):  # what may be empty: NumPy has no identity of its own
            parts.append(f"initial={_identity(x.type, op.name)}")
        return _Text(f"{_REDUCE[op.name]}({', '.join(parts)})")


def _np_name(t: TensorType) -> str:
    return "bool_" if t.dtype.kind == "b" else str(np.dtype(t.dtype.np))


def _identity(t: TensorType, name: str) -> str:
    """What ``amax`` and ``amin`` are over nothing."""
    least = name == "amax"
    if t.dtype.kind == "f":
        return "-np.inf" if least else "np.inf"
    return str(not least) if t.dtype.kind == "b" else f"np.iinfo(np.{_np_name(t)}).{'min' if least else 'max'}"


def _splat(w: _Writer, t: TensorType, text: str) -> _Text:
    rank = UNARY if text.startswith("-") else ATOM
    if not t.shape:
        return _Text(f"np.{_np_name(t)}({text})", ATOM, text, rank)
    return _Text(f"np.full({w.shape(t.shape)}, {text}, np.{_np_name(t)})", ATOM, text, rank)


def _full(w: _Writer, op: Op) -> _Text:
    return _splat(w, op.result.type, _number(op.attrs["value"], op.attrs["dtype"]))


def _constant(w: _Writer, op: Op) -> _Text:
    value = np.asarray(op.attrs["value"])
    if value.ndim == 0:
        return _splat(w, op.result.type, _number(value[()], op.result.type.dtype))
    flat = ", ".join(_number(v, op.result.type.dtype) for v in value.ravel())
    text = f"np.array([{flat}], np.{_np_name(op.result.type)})"
    return _Text(text if value.ndim == 1 else f"{text}.reshape({value.shape})")


def _cast(w: _Writer, op: Op) -> _Text:
    x = op.operands[0]
    value = splat(x)
    if value is not None:
        return _splat(w, op.result.type, _number(np.asarray(value, x.type.dtype.np).astype(op.attrs["dtype"].np)[()], op.attrs["dtype"]))
    return _Text(f"np.asarray({w.env[x].full}).astype(np.{_np_name(op.result.type)})" if not x.type.shape else f"{w.atom(x)}.astype(np.{_np_name(op.result.type)})")


def _move_splat(w: _Writer, op: Op) -> _Text | None:
    value = splat(op.operands[0])
    return None if value is None else _splat(w, op.result.type, _number(value, op.result.type.dtype))


def _broadcast(w: _Writer, op: Op) -> _Text:
    found = _move_splat(w, op)
    if found is not None:
        return found
    x, out, places = op.operands[0], op.result.type, op.attrs["dims"]
    if x.type.rank == out.rank and x.type.shape == out.shape:
        return w.env[x]
    inner = w.atom(x)
    if x.type.rank and places != tuple(range(out.rank - x.type.rank, out.rank)):
        first = places[0]
        index = ", ".join(":" if d in places else "None" for d in range(first, out.rank))
        inner = f"{inner}[{index}]"
    return _Text(f"np.broadcast_to({inner}, {w.shape(out.shape)})", ATOM, inner, ATOM)


def _reshape(w: _Writer, op: Op) -> _Text:
    return _move_splat(w, op) or _Text(f"np.reshape({w.env[op.operands[0]].full}, {w.shape(op.attrs['shape'])})")


def _permute(w: _Writer, op: Op) -> _Text:
    perm = tuple(op.attrs["perm"])
    x = w.atom(op.operands[0])
    return _move_splat(w, op) or _Text(f"{x}.T" if perm == (1, 0) else f"np.transpose({w.env[op.operands[0]].full}, {perm})")


def _same(w: _Writer, op: Op) -> _Text:
    return w.env[op.operands[0]]


def _ranges(w: _Writer, op: Op, sizes: Sequence[DimLike], shape: Sequence[DimLike]) -> str:
    """An index of slices."""
    parts = []
    for start, size, step, n in zip(op.attrs["starts"], sizes, op.attrs["steps"], shape):
        if start == 0 and step == 1 and size == n:
            parts.append(":")
        elif isinstance(step, int) and step == 1:
            parts.append(f"{'' if start == 0 else w.size(start)}:{'' if start + size == n else w.size(start + size)}")
        else:
            parts.append(f"{w.helper('_slice')}({w.size(start)}, {w.size(size)}, {w.size(step)})")
    return ", ".join(parts) if parts else "()"


def _slice(w: _Writer, op: Op) -> _Text:
    x = op.operands[0]
    return _move_splat(w, op) or _Text(f"{w.atom(x)}[{_ranges(w, op, op.attrs['sizes'], x.type.shape)}]")


def _insert(w: _Writer, op: Op) -> _Text:
    x, v = op.operands
    w.comment(op)
    name = w.fresh()
    w.put(f"{name} = np.array({w.env[x].full})" if w.env[x].short is None else f"{name} = {_materialised(w, x)}")
    w.put(f"{name}[{_ranges(w, op, v.type.shape, x.type.shape)}] {'+=' if op.name == 'insert_add' else '='} {w.env[v].short or w.env[v].full}")
    return _Text(name)


def _materialised(w: _Writer, x: Value) -> str:
    full = w.env[x].full
    return full if full.startswith("np.full(") else f"np.array({full})"


def _concatenate(w: _Writer, op: Op) -> _Text:
    return _Text(f"np.concatenate([{', '.join(w.env[o].full for o in op.operands)}], axis={op.attrs['dim']})")


def _take(w: _Writer, op: Op) -> _Text:
    x, i = op.operands
    return _Text(f"np.take({w.env[x].full}, {w.helper('_checked')}({w.env[i].full}, {w.size(x.type.shape[op.attrs['dim']])}), axis={op.attrs['dim']})")


def _by_helper(name: str, attrs: Sequence[str]) -> Callable[[_Writer, Op], _Text]:
    def text(w: _Writer, op: Op) -> _Text:
        parts = [*(w.env[o].full for o in op.operands), *(f"{a}={op.attrs[a]!r}" for a in attrs)]
        return _Text(f"{w.helper(name)}({', '.join(parts)})")

    return text


def _iota(w: _Writer, op: Op) -> _Text:
    t, dim = op.result.type, op.attrs["dim"]
    line = f"np.arange({w.size(t.shape[dim])}, dtype=np.{_np_name(t)})"
    if t.rank == 1:
        return _Text(line)
    inner = line if dim == t.rank - 1 else f"{line}[:{', None' * (t.rank - 1 - dim)}]"
    return _Text(f"np.broadcast_to({inner}, {w.shape(t.shape)})", ATOM, inner, ATOM)


def _size(w: _Writer, op: Op) -> _Text:
    return _Text(f"np.int64({w.size(op.attrs['dim'])})")


def _fit(w: _Writer, op: Op) -> _Text:
    return _Text(f"{w.helper('_fit')}({w.env[op.operands[0]].full}, np.{_np_name(op.result.type)})")


def _arg(w: _Writer, op: Op) -> _Text:
    return _Text(f"np.{op.name}({w.env[op.operands[0]].full}, axis={op.attrs['dim']})")


def _row_index(w: _Writer, op: Op) -> _Text:
    given = ", ".join(f"({w.env[o].full}, {w.size(n)}, {axis})" for o, n, axis in zip(op.operands, op.attrs["extents"], op.attrs["axes"]))
    return _Text(f"{w.helper('_row')}({given}, wrap={op.attrs['wrap']})")


def _conv(given: str) -> Callable[[_Writer, Op], _Text]:
    """``given``: which of x, w, y the operands are."""
    def text(w: _Writer, op: Op) -> _Text:
        known = dict(zip(given, (w.env[o].full for o in op.operands)))
        attrs = ", ".join(f"{k}={op.attrs[k]!r}" for k in ("stride", "padding", "dilation", "groups"))
        return _Text(f"{w.helper('_conv')}({', '.join(known.get(c, 'None') for c in 'xwy')}, {w.shape(op.result.type.shape)}, {attrs})")

    return text


def _window(w: _Writer, op: Op) -> _Text:
    given = ", ".join(w.env[o].full for o in op.operands)
    if op.name in ("window_pick", "window_put"):
        return _Text(f"{w.helper('_at_places')}({given}, {w.shape(op.attrs['spatial']) if 'spatial' in op.attrs else None})")
    attrs = ", ".join(f"{k}={tuple(op.attrs[k])!r}" for k in ("kernel", "stride", "low", "dilation"))
    divide = f", divide={op.attrs['divide']}" if op.attrs.get("divide", 1) != 1 else ""
    return _Text(f"{w.helper('_window')}({op.name[7:]!r}, {given}, {w.shape(op.result.type.shape)}, {attrs}{divide})")


def _dot(w: _Writer, op: Op) -> _Text:
    a, b = (w.atom(o) for o in op.operands)
    return _Text(f"{a} @ {b}", MUL)


def _unary(sign: str) -> Callable[[_Writer, Op], _Text]:
    def text(w: _Writer, op: Op) -> _Text:
        t = w.env[op.operands[0]]
        return _Text(f"{sign}{_wrapped(t.full, t.rank, UNARY)}", UNARY)

    return text


_OPS: dict[str, Callable[[_Writer, Op], _Text]] = {
    "full": _full, "constant": _constant, "cast": _cast, "broadcast": _broadcast, "reshape": _reshape, "permute": _permute, "stop_gradient": _same,
    "relayout": _same, "slice": _slice, "insert": _insert, "insert_add": _insert, "concatenate": _concatenate, "take": _take, "iota": _iota, "size": _size,
    "row_index": _row_index, "argmax": _arg, "argmin": _arg, "dot": _dot, "conv": _conv("xw"), "conv_input_grad": _conv("yw"), "conv_weight_grad": _conv("xy"),
    **{f"window_{name}": _window for name in ("sum", "spread", "max", "argmax", "pick", "put")},
    "neg": _unary("-"), "logical_not": _unary("~"), "scatter": _by_helper("_scatter", ("dim",)), "scatter_add": _by_helper("_scatter_add", ("dim",)),
    "cumsum": _by_helper("_cumsum", ("dim", "exclusive", "reverse")), "cumprod": _by_helper("_cumprod", ("dim", "exclusive", "reverse")),
    "recurrence": _by_helper("_recurrence", ("dim", "reverse")), "fit": _fit,
}
_VIEWS = frozenset(("broadcast", "reshape", "permute", "slice", "relayout", "stop_gradient", "iota"))  # results that may share memory with an input
_INLINED = frozenset({*_BINARY, *_CALLS, "neg", "logical_not", "cast", "slice", "permute", "size", "reshape", "sum"})


# ---- the file -----------------------------------------------------------------------------------------------------------------------------

def _function(f: CFunction, helpers: set[str], classes: Classes) -> list[str]:
    w = _Writer(f, helpers)
    w.taken.update(("collections", "dataclasses", *classes.names.values()))
    given = {p.name: w.name(p.name) for p in f.python.parameters}
    alone = {leaf.at: given[p.name] for p in f.python.parameters for leaf in [p.tree] if isinstance(leaf, Leaf)}
    names = [alone[i] if i in alone else w.name(p.name) for i, p in enumerate(f.inputs)]
    places = {leaf.at: given[p.name] + leaf.path[len(p.name):] for p in f.python.parameters if p.tree is not None for leaf in leaves(p.tree) if not leaf.ignored}
    taken, checks = parameters(f.python, list(given.values()), classes)
    for line in checks:
        w.put(line)
    for i, (p, name, arg) in enumerate(zip(f.inputs, names, f.func.args)):
        w.put(f"{name} = np.asarray({places[i]}, np.{_np_name(p.type)})")
        w.env[arg] = _Text(name)
    _bind(w, names)
    w.block(f.func.body)
    results = [f"np.array({w.env[o].full})[()]" if o.op is None or o.op.name in _VIEWS else w.env[o].full for o in f.func.outputs]
    if f.python.plainly:
        w.put(f"return {', '.join(results)}")
    else:
        outs = [w.name(p.name) for p in f.outputs]
        for name, text in zip(outs, results):
            w.put(f"{name} = {text}")
        w.put(f"return {result(f, outs, classes)}")
    return ['@np.errstate(all="ignore")', f"def {f.name}({taken}):", *_docstring(f), *w.lines, ""]


def _bind(w: _Writer, names: Sequence[str]) -> None:
    """Sizes from shapes, then what must hold."""
    f = w.f
    known: set[str] = set()
    checks: list[tuple[str, str, str]] = []
    if names:
        ranks = ", ".join(f"{p.type.rank} ({path})" for p, path in zip(f.inputs, f.python.paths))
        w.put(f"if {' or '.join(f'{name}.ndim != {p.type.rank}' for p, name in zip(f.inputs, names))}:")
        w.put(f"    raise ValueError({json.dumps(f'{f.name}: the ranks of the arguments must be {ranks}')})")
    for p, name, path in zip(f.inputs, names, f.python.paths):
        for axis, d in enumerate(p.type.shape):
            symbol = d.as_symbol() if isinstance(d, Dim) else None
            if symbol is not None and symbol not in known:
                known.add(symbol)
                w.put(f"{w.sizes[symbol]} = {name}.shape[{axis}]")
            else:
                checks.append((f"{name}.shape[{axis}]", w.size(d), f"dim {axis} of {path} must be {dims.to_text(d)}"))
    for symbol in f.symbols:
        if symbol not in known:
            w.put(_solved(w, names, symbol))
    checks += [(w.size(g.left), w.size(g.right), g.why) for g in f.guards]
    for left, right, why in checks:
        w.put(f"if {left} != {right}:")
        w.put(f"    raise ValueError({json.dumps(f'{f.name}: {why}')})")


def _solved(w: _Writer, names: Sequence[str], symbol: str) -> str:
    """A size that appears inside expressions alone."""
    for p, name in zip(w.f.inputs, names):
        for axis, d in enumerate(p.type.shape):
            if isinstance(d, Dim) and list(d.symbols()) == [symbol]:
                b = d.substitute({symbol: 0})
                step = d.substitute({symbol: 1})
                if isinstance(b, int) and isinstance(step, int) and step != b:
                    return f"{w.sizes[symbol]} = ({name}.shape[{axis}] - {b}) // {step - b}"
    raise AotgradNotImplementedError(f"{w.f.name}: no argument tells the size {symbol}, which --emit python needs; give some argument the shape [{symbol}]")


def _sizes_text(t: TensorType) -> str:
    return f"[{', '.join(map(dims.to_text, t.shape))}]" if t.shape else ""


def _docstring(f: CFunction) -> list[str]:
    lines = [line for part in f.doc.replace("\\", "\\\\").replace('"""', "'''").splitlines() for line in (textwrap.wrap(part, 140) or [""])]
    lines += ["", *(f"{name}: {p.type.dtype.name}{_sizes_text(p.type)}{'. ' + p.doc if p.doc else ''}"
                   for name, p in zip([*f.python.paths, *(p.name for p in f.outputs)], (*f.inputs, *f.outputs)))]
    return [f'    """{lines[0]}', *(f"    {line}".rstrip() for line in lines[1:]), '    """']


def module(name: str, functions: Sequence[CFunction], version: str) -> str:
    """The text of NAME.py. Raises ``AotgradNotImplementedError`` for an op without a NumPy form."""
    helpers: set[str] = set()
    classes = Classes(functions, ["np", "math", "base64", "collections", "dataclasses", *HELPERS, *(f.name for f in functions)])
    bodies = [line for f in functions for line in ["", *_function(f, helpers, classes)]]
    wanted, work = set(helpers), list(helpers)
    while work:
        for other in HELPERS:
            if other not in wanted and re.search(rf"\b{other}\(", HELPERS[work[0]]):
                wanted.add(other)
                work.append(other)
        work.pop(0)
    head = [f'"""{name}: made by aotgrad {version}. Needs NumPy alone."""', ""]
    used = [m for m in ("collections", "dataclasses") if any(f"{m}." in line for line in [*bodies, *classes.lines()])]
    used += ["math"] if any("math." in HELPERS[h] for h in wanted) else []
    head += [*(f"import {m}" for m in used), ""] if used else []
    head += ["import numpy as np", ""]
    head.append(f"__all__ = {sorted(f.name for f in functions)!r}".replace("'", '"'))
    for h in HELPERS:
        if h in wanted:
            head += ["", "", HELPERS[h].strip()]
    head += ["", "", *classes.lines()] if classes.names else []
    return "\n".join([*head, "", *bodies]).rstrip() + "\n"
