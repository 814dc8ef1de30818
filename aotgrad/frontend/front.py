"""From public arguments to IR ops: conversion, promotion, broadcasting, then the op's ``canon``. The same code serves tracing and eager programs."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotgrad.ir import Builder, Loc, TensorType, Value, opdef
from aotgrad.ir.dims import Dim, DimLike
from aotgrad.ir.transforms.rewrite import substitute_block
from aotgrad_runtime import dtypes
from aotgrad_runtime.arrays import converted, decode, overflow
from aotgrad_runtime.dtypes import DType
from aotgrad_runtime.errors import (
    AotgradArgumentError,
    AotgradDTypeError,
    AotgradError,
    AotgradIndexError,
    AotgradNotImplementedError,
    AotgradOverflowError,
    AotgradTypeError,
    AotgradValueError,
)

from .promotion import Kind, promote, python_dtype, to_float
from .trace import NeedStatic, SizesDiffer, Trace, user_loc

__all__ = ["FrontBuilder", "Operand", "Public", "emit_public", "publics", "unforeseen"]

_RENAMES = {"axis": "dim", "axis1": "dim1", "axis2": "dim2", "axes": "dims", "keepdims": "keepdim", "ddof": "correction",
            "x": "input", "a": "input", "x1": "input", "x2": "other", "y": "other"}


_MOST_DIMS = 64  # NumPy's
_NUMPY_NAMES = {"input": "a", "other": "b", "dim": "axis", "dims": "axis", "keepdim": "keepdims", "correction": "ddof"}


class FrontBuilder(Builder):
    """A builder that knows the flavour of the call and joins sizes through the trace."""

    def __init__(self, trace: Trace, torch: bool, loc: Loc | None) -> None:
        super().__init__(trace.block, loc)
        self.trace, self.torch, self.checks = trace, torch, torch  # ``checks``: divisions of integers by 0 are errors

    def emit(self, name: str, operands: Sequence[Value], attrs: Any = None, regions: Any = (), loc: Loc | None = None) -> tuple[Value, ...]:
        if self.trace.equal:
            for o in operands:
                self.refresh(o)
            regions = [substitute_block(r, self.trace.equal.names) for r in regions]  # traced before a size was found equal to another
            attrs = {k: self._canonical(v) for k, v in attrs.items()} if attrs else attrs
        results = super().emit(name, operands, attrs, regions, loc)
        for r in results:
            if len(r.type.shape) > _MOST_DIMS:
                raise AotgradValueError(f"{name}: the result has {len(r.type.shape)} dimensions; arrays have at most {_MOST_DIMS}")
        return results

    def _canonical(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self._canonical(v) for v in value)
        return self.trace.canonical(value) if isinstance(value, Dim) else value

    def refresh(self, v: Value) -> Value:
        """Rewrites the sizes in a value's type that were found equal to others."""
        if all(type(d) is int for d in v.type.shape):
            return v
        shape = tuple(self.trace.canonical(d) for d in v.type.shape)
        if shape != v.type.shape:
            v.type = TensorType(shape, v.type.dtype, v.type.layout)
        return v

    def join(self, a: DimLike, b: DimLike, what: str = "", say: Callable[[], str] | None = None) -> DimLike:
        """Broadcast of two sizes. ``say``: torch's words for two that do not fit."""
        try:
            return self.trace.join(a, b)
        except SizesDiffer as error:
            error.say = say
            raise

    def numbers(self, shape: Sequence[DimLike]) -> list[Any]:
        """Sizes as they are in this call, for errors."""
        return [d if (n := self.trace.example(d)) is None else n for d in shape]

    def equate(self, a: DimLike, b: DimLike, what: str, say: Callable[[], str] | None = None) -> None:
        """Two sizes that must be equal."""
        if not self.trace.equate(a, b):
            raise SizesDiffer(f"{what}: sizes {self.trace.example(a)} and {self.trace.example(b)} differ", say=say)

    def give_way(self, have: DimLike, want: DimLike, what: str) -> None:
        """A size that must broadcast to another."""
        if not self.trace.fits(have, want):
            raise SizesDiffer(f"{what}: sizes {self.trace.example(have)} and {self.trace.example(want)} differ")

    def join_product(self, a: DimLike, b: DimLike, what: str, say: Callable[[], str] | None = None) -> None:
        """Two numbers of elements that must be equal."""
        self.equate(a, b, what, say)

    def with_size(self, x: Value, dim: int, size: DimLike) -> Value:
        """``x`` with a size known to be equal written as ``size`` (a size of 1 stays: it broadcasts)."""
        return self.refresh(x)


class Operand:
    """An array argument on its way in: an IR value, or a Python number that becomes one when its dtype is known."""

    __slots__ = ("kind", "make", "number", "value")

    def __init__(self, kind: Kind, value: Value | None = None, number: Any = None, make: Any = None) -> None:
        self.kind, self.value, self.number, self.make = kind, value, number, make

    def at(self, b: Builder, dtype: DType) -> Value:
        """The value in ``dtype``."""
        if self.value is None:
            return self.make(dtype) if self.make is not None else b.scalar(_rounded(self.number, dtype), dtype)
        return b.to_dtype(self.value, dtype)

    def plain(self, b: Builder) -> Value:
        """The value in its own dtype."""
        return self.at(b, self.kind.dtype)


def _rounded(number: Any, dtype: DType) -> Any:
    """A Python number as ``dtype`` has it: integers wrap."""
    if not (isinstance(number, int) and dtype.kind in "iu"):
        return decode(converted(np.asarray(number), dtype)).item() if dtype is dtypes.bfloat16 else dtype.np.type(number).item()
    if not _holds(dtypes.int64, number):
        raise AotgradOverflowError(f"Python integer {number} does not fit in 64 bits")
    return np.asarray(number).astype(dtype.np).item()


def _holds(dtype: DType, number: int) -> bool:
    return bool(np.iinfo(dtype.np).min <= number <= np.iinfo(dtype.np).max)


def _at(b: FrontBuilder, op: opdef.OpDef, o: Operand, dtype: DType) -> Value:
    """An operand in the common dtype. A Python integer beside NumPy's narrower ones must fit; as a bound it is brought into their range."""
    if b.torch or not (o.kind.weak and o.kind.dtype.kind == "i" and dtype.kind in "iu"):
        return o.at(b, dtype)
    if o.value is None:
        if o.make is None and not _holds(dtype, o.number):
            raise AotgradOverflowError(f"Python integer {o.number} out of bounds for {dtype.name}")
        return o.at(b, dtype)
    if dtype is o.value.type.dtype:
        return o.value
    return _brought(b, o.value, dtype, dtype) if op.name == "clip" else b.fit(o.value, dtype=dtype)


def _in_range(arguments: dict[str, Any]) -> dict[str, Any]:
    """NumPy's ``clip``: a lower bound below all that the integer dtype holds, or an upper one above, limits nothing; every other that it does not hold is refused."""
    x, found = arguments["input"], dict(arguments)
    if x.kind.weak or x.kind.dtype.kind not in "iu":
        return found
    info = np.iinfo(x.kind.dtype.np)
    for name, edge, sign in (("min", int(info.min), -1), ("max", int(info.max), 1)):
        o = arguments.get(name)
        if isinstance(o, Operand) and o.make is None and isinstance(o.number, int) and (o.number - edge) * sign > 0:
            found[name] = Operand(o.kind, number=edge)
    return found


def _written(b: FrontBuilder, o: Operand, dtype: DType) -> Value:
    """A Python number on its way into an array of ``dtype``, which must hold it; for tensors, negative integers wrap into unsigned dtypes, as in PyTorch."""
    if dtype.kind not in "iu" or o.kind.dtype.kind != "i":
        return o.plain(b)
    if o.value is None:
        if o.make is None and not (_holds(dtype, o.number) or b.torch and dtype.kind == "u" and _holds(dtype, -o.number)):
            raise overflow(dtype) if b.torch else AotgradOverflowError(f"Python integer {o.number} out of bounds for {dtype.name}")
        return o.at(b, dtype)
    v = o.value
    if b.torch and dtype.kind == "u":
        wraps = b.logical_and(b.lt(v, b.full_like(v, 0)), b.ge(v, b.full_like(v, -int(np.iinfo(dtype.np).max))))
        v = b.where(wraps, b.add(v, b.full_like(v, int(np.iinfo(dtype.np).max) + 1)), v)
    return v if v.type.dtype is dtype else b.fit(v, dtype=dtype)


def _brought(b: FrontBuilder, v: Value, dtype: DType, within: DType) -> Value:
    """An integer in ``dtype``, as near as ``within`` has one."""
    limits = [b.full_like(v, int(n)) for n in (np.iinfo(within.np).min, np.iinfo(within.np).max)]
    return b.to_dtype(b.clamp(v, *limits), dtype)


_WIDER = {dtypes.int8: dtypes.int16, dtypes.uint8: dtypes.int16, dtypes.int16: dtypes.int32, dtypes.int32: dtypes.int64}


def _compared(b: FrontBuilder, operands: Sequence[Operand], dtype: DType) -> list[Value]:
    """What to compare where a Python integer may be outside of the integer ``dtype`` beside it: NumPy compares the numbers, not what the dtype makes of them."""
    numbers = [o.kind.weak and o.kind.dtype.kind == "i" for o in operands]
    if dtype.kind not in "iu" or not any(numbers) or b.torch and not all(o.kind.weak for o in operands):
        return [o.at(b, dtype) for o in operands]
    for i, o in enumerate(operands):
        if o.value is None and o.make is None and not _holds(dtype, o.number):  # decided, whatever the other is: 0 beside 1 or -1
            zero, sign = b.full_like(operands[1 - i].plain(b), 0), b.scalar(1 if o.number > 0 else -1, dtypes.int8)
            return [sign, b.to_dtype(zero, dtypes.int8)][::1 if i == 0 else -1]
    if dtype is dtypes.int64 or not any(n and (o.value is not None or o.make is not None) for n, o in zip(numbers, operands)):
        return [o.at(b, dtype) for o in operands]
    wide = _WIDER[dtype]
    return [_brought(b, o.at(b, dtypes.int64), wide, wide) if n and wide is not dtypes.int64 else o.at(b, wide) for n, o in zip(numbers, operands)]


def _mode(op: opdef.OpDef, arguments: dict[str, Any]) -> str:
    """How a call promotes its operands."""
    mode = op.front.promote if op.front else "none"
    return mode if isinstance(mode, str) else mode(arguments)


def _common(op: opdef.OpDef, mode: str, b: FrontBuilder, operands: Sequence[Operand]) -> list[Value]:
    if not operands:
        raise AotgradArgumentError(f"{op.name}: at least one array is needed, the list is empty")
    kinds = [o.kind for o in operands]
    if b.trace.hidden and any(k.dtype is dtypes.bfloat16 for k in kinds) and not op.name.startswith(("convert", "to_")):  # kernels would compute with its bits
        raise AotgradNotImplementedError("bfloat16 can be stored and converted, but not computed with yet in compiled functions; convert to float32 first (x.float())")
    if mode == "none":
        return [o.plain(b) for o in operands]
    if mode == "bool":
        values = [o.plain(b) for o in operands]
        return _broadcast(b, [v if v.type.dtype is dtypes.bool_ else b.ne(v, b.full_like(v, 0)) for v in values])
    if mode == "where":
        condition = operands[0].plain(b)
        if b.torch and condition.type.dtype not in (dtypes.bool_, dtypes.uint8):
            raise AotgradDTypeError(f"where expected condition to be a boolean tensor, but got a tensor with dtype {condition.type.dtype.name}; compare it with 0 first "
                                    "(condition != 0)")
        condition = condition if condition.type.dtype is dtypes.bool_ else b.ne(condition, b.full_like(condition, 0))
        dtype = promote(kinds[1:], b.torch)
        return _broadcast(b, [condition, *(o.at(b, dtype) for o in operands[1:])])
    if mode == "into":  # what is written takes the dtype of the first, and must fit
        dtype = kinds[0].dtype
        return [o.plain(b) if i == 0 or not o.kind.weak else _written(b, o, dtype) for i, o in enumerate(operands)]
    if b.torch and mode in ("product", "alike"):
        _same_dtype(op, operands)
        if mode == "alike" and kinds[0].dtype.kind in "biu":
            raise AotgradNotImplementedError(f"{op.name}: not implemented for {kinds[0].dtype.name} tensors; convert them first (x.float())")
    if b.torch and mode == "minus" and any(k.dtype is dtypes.bool_ for k in kinds):
        raise AotgradDTypeError("Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a mask, use the `~` or `logical_not()` "
                                "operator instead; of numbers write x.to(ag.int64) - y")
    dtype = promote(kinds, b.torch)
    if mode == "float":
        dtype = to_float(dtype, b.torch)
    elif mode == "number" and dtype is dtypes.bool_:
        if b.torch:
            raise AotgradNotImplementedError(f"{op.name}: not implemented for bool tensors; convert one of them first (x.to(ag.int64))")
        dtype = dtypes.int8
    values = _compared(b, operands, dtype) if mode == "compare" else [_at(b, op, o, dtype) for o in operands]
    return values if mode in ("contract", "product") else _broadcast(b, values)


def _same_dtype(op: opdef.OpDef, operands: Sequence[Operand]) -> None:
    """Products of tensors promote nothing: a dtype that is wider by accident would make all that follows slow."""
    first = operands[0].kind.dtype
    for o in operands[1:]:
        if o.kind.dtype is not first and o.number is None and not o.kind.weak:
            raise AotgradDTypeError(f"{op.name}: expected tensors of the same dtype, but got: {first.name} != {o.kind.dtype.name}; convert one of them with .to()")


def _broadcast(b: FrontBuilder, values: list[Value]) -> list[Value]:
    if len(values) == 1:
        return values
    rank = max(len(v.type.shape) for v in values)
    shape: list[DimLike] = [1] * rank
    for v in values:
        lead = rank - len(v.type.shape)
        for i, d in enumerate(v.type.shape):
            shape[lead + i] = b.join(shape[lead + i], d)
    for v in values:
        b.refresh(v)
    target = tuple(b.trace.canonical(d) for d in shape)
    return [b.expand(v, target) for v in values]


_literal = functools.cache(ast.literal_eval)  # few differ


class _Layout:
    """A signature in text, ``"sum(input, dim=None, *, dtype=None)"``, taken apart."""

    __slots__ = ("defaults", "keywords", "positional", "required", "star")

    def __init__(self, text: str) -> None:
        self.positional: list[str] = []
        self.keywords: list[str] = []
        self.defaults: dict[str, Any] = {}
        self.star: str | None = None
        only = False
        inside = text.partition("(")[2].rpartition(")")[0]
        for part in filter(None, (p.strip() for p in inside.split(","))):
            if part.startswith("*"):
                only, self.star = True, part[1:] or self.star
                continue
            name, has, default = part.partition("=")
            (self.keywords if only else self.positional).append(name)
            if has:
                self.defaults[name] = _literal(default)
        self.required = tuple(n for n in (*self.positional, *self.keywords) if n not in self.defaults)


class Public:
    """A public function: its op, its signature, which parameters are arrays, and how arguments become ops."""

    numpy = False  # whether its names and defaults are NumPy's
    quick: Any = None  # its short way in eager (``quick.Quick``), for functions that have one
    calls: Any = None  # its calls that came before (``known.Calls``)
    helped = False  # whether results behind the first may be left out when its node is called by hand
    constants: tuple[str, ...] = ()  # parameters that are arrays, of which torch's node knows nothing

    def __init__(self, op: opdef.OpDef, name: str, signature: str, canon: Any, node_name: str | None = None) -> None:
        self.op, self.name, self.canon, self.text = op, name, canon, signature
        self.node_name = node_name or op.node_name
        self.respell = op.front.respell if op.front else None

    @functools.cached_property
    def layout(self) -> _Layout:
        """The parameters."""
        return _Layout(self.text)

    @functools.cached_property
    def tensors(self) -> tuple[str, ...]:
        """The parameters that are arrays."""
        front, layout = self.op.front, self.layout
        names = [*layout.positional, *([layout.star] if layout.star else []), *layout.keywords]
        return (front.tensors if front else ()) or tuple(names[:1 if self.op.variadic else len(self.op.operands)])

    @functools.cached_property
    def star(self) -> str | None:
        """The parameter that takes any number of arguments."""
        return self.layout.star

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        """For ``help`` and ``inspect``."""
        kinds, layout = inspect.Parameter, self.layout
        out = [kinds(n, kinds.POSITIONAL_OR_KEYWORD, default=layout.defaults.get(n, kinds.empty)) for n in layout.positional]
        if layout.star:
            out.append(kinds(layout.star, kinds.VAR_POSITIONAL))
        out += [kinds(n, kinds.KEYWORD_ONLY, default=layout.defaults.get(n, kinds.empty)) for n in layout.keywords]
        return inspect.Signature(out)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Arguments by parameter name; NumPy's spellings (axis, keepdims, ddof) are understood."""
        layout = self.layout
        names = layout.positional
        if self.respell is not None:
            args = self.respell(args)
        bound: dict[str, Any] = dict(zip(names, args))
        if len(args) > len(names):
            if layout.star is None:
                raise self._misfit(f"takes {len(names)} positional argument(s), {len(args)} were given")
            bound[layout.star] = args[len(names):]
        for key, value in kwargs.items():
            name = self._rename(key)
            if name == "out" and value is None and name not in layout.keywords:
                continue
            if name in bound:
                raise self._misfit(f"got two values for {name!r}")
            if name == layout.star:
                value = (value,)
            elif name not in names and name not in layout.keywords:
                raise self._misfit(f"got an unexpected argument {key!r}")
            bound[name] = value
        if len(bound) < len(layout.required) or kwargs:
            missing = [n for n in layout.required if n not in bound]
            if missing:
                raise self._misfit(f"needs {', '.join(missing)}")
        if self.numpy and bound.pop("out", None) is not None:
            raise self._misfit("cannot write into out=; write y[...] = v with the result v")
        return bound

    def emit(self, b: FrontBuilder, arguments: dict[str, Any]) -> Any:
        """A call in ops (``Operand`` objects stand in ``arguments`` for arrays): a value or a tuple of them."""
        return emit_public(self, b, arguments)

    def _misfit(self, what: str) -> AotgradTypeError:
        return AotgradTypeError(f"{'np.' if self.numpy else ''}{self.name}() {what}; its signature is {self.shown()}")

    def shown(self) -> str:
        """The signature in the caller's words."""
        text = str(self.signature)
        return self.name + (re.sub(r"\b(?:input|other|dim|dims|keepdim|correction)\b", lambda m: _NUMPY_NAMES[m[0]], text) if self.numpy else text)

    def _rename(self, key: str) -> str:
        layout = self.layout
        known = (*layout.positional, *layout.keywords, layout.star)
        if key in known:
            return key
        new = _RENAMES.get(key, key)
        for name in (new, f"{new}s", new.removesuffix("s")):
            if name in known:
                return name
        return new


def emit_public(public: Public, b: FrontBuilder, arguments: dict[str, Any]) -> Any:
    """Runs the op's ``canon`` on operands (``Operand`` objects stand in ``arguments`` for arrays). Gives a value or a tuple of them."""
    op = public.op
    if public.numpy and op.name == "clip":
        arguments = _in_range(arguments)
    operands: list[Operand] = []
    places: list[tuple[str, int | None]] = []
    for name in public.tensors:
        given = arguments.get(name)
        if isinstance(given, (list, tuple)):
            places += [(name, i) for i in range(len(given))]
            operands += given
        elif isinstance(given, Operand):
            places.append((name, None))
            operands.append(given)
    try:
        mode = _mode(op, arguments)
        if b.torch and _beyond_half(mode, operands):
            wide = [Operand(Kind(dtypes.float32, False, o.kind.rank), o.plain(b)) if o.kind.dtype is dtypes.float16 else o for o in operands]
            out = _emitted(public, b, arguments, places, _common(op, mode, b, wide))
            return b.to_dtype(out, dtypes.float16) if isinstance(out, Value) and out.type.dtype is dtypes.float32 else out
        return _emitted(public, b, arguments, places, _common(op, mode, b, operands))
    except AotgradError as error:
        if isinstance(error, SizesDiffer):
            better = _located(_fitting(_with_shapes(error, b, operands), b.torch), b.loc or user_loc(), public.name)
        else:
            better = _located(_fitting(error, b.torch), b.loc, public.name)
        if better is error:
            raise
        try:
            raise better from None  # the chain is searched for its innermost error: that must be the one with the line
        finally:
            del better
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        raise _located(_unusable(public, arguments, error), b.loc, public.name) from error


def _unusable(public: Public, arguments: dict[str, Any], error: Exception) -> AotgradError:
    """An argument that the op could not work with, and did not foresee."""
    shown = ", ".join(f"{k}={v!r:.60}" for k, v in arguments.items() if k not in public.tensors) or "these arguments"
    kind: type[Any] = AotgradIndexError if isinstance(error, IndexError) else AotgradValueError if isinstance(error, ValueError) else AotgradTypeError
    found = kind(f"{public.name}() cannot use {shown} ({error}); its signature is {public.shown()}")
    found.unforeseen = True
    return found  # type: ignore[no-any-return]


def unforeseen(error: BaseException) -> bool:
    """Whether Python itself refused: where sizes are open, it may be that an integer was needed."""
    return isinstance(error, (TypeError, ValueError)) and (not isinstance(error, AotgradError) or getattr(error, "unforeseen", False))


def _beyond_half(mode: str, operands: Sequence[Operand]) -> bool:
    """Whether a number meets float16 tensors that their dtype cannot hold: such an op computes in float32, as torch's do."""
    if mode not in ("alike", "arith", "number", "float") or not any(o.kind.dtype is dtypes.float16 for o in operands):
        return False
    if promote([o.kind for o in operands], True) is not dtypes.float16:
        return False
    with np.errstate(all="ignore"):
        return any(type(o.number) in (int, float) and o.number == o.number and float(np.float16(o.number)) != o.number for o in operands)


def _emitted(public: Public, b: FrontBuilder, arguments: dict[str, Any], places: Sequence[tuple[str, int | None]], values: Sequence[Value]) -> Any:
    """The op on operands of common dtype and shape."""
    if public.canon is None:
        results = b.emit(public.op.name, values)
        return results[0] if len(results) == 1 else results
    filled = dict(arguments)
    for name in public.tensors:
        if isinstance(filled.get(name), (list, tuple)):
            filled[name] = [None] * len(filled[name])
    for (name, i), v in zip(places, values):
        if i is None:
            filled[name] = v
        else:
            filled[name][i] = v
    return _call_canon(public, b, filled)


def _call_canon(public: Public, b: FrontBuilder, filled: dict[str, Any]) -> Any:
    """What stands behind the arrays goes by its name: the orders of torch and NumPy differ, and one ``canon`` may serve both."""
    layout = public.layout
    star = None if layout.star is None else filled.get(layout.star)
    placed = len(layout.positional) if star is not None else 1 + max((i for i, n in enumerate(layout.positional) if n in public.tensors), default=-1)
    args: list[Any] = []
    for i, name in enumerate(layout.positional[:placed]):
        if len(args) == i and name in filled:
            args.append(filled[name])
    keywords = {n: filled[n] for n in (*layout.positional[len(args):], *layout.keywords) if n in filled}
    return public.canon(b, *args, *(star or ()), **keywords)


def _with_shapes(error: SizesDiffer, b: FrontBuilder, operands: Sequence[Operand]) -> AotgradError:
    """Says which shapes do not fit."""
    given = [b.numbers(o.value.type.shape) for o in operands if o.value is not None]
    text = error.say() if error.say is not None else _meeting(error.pair, given)
    if b.torch and text:
        return AotgradValueError(text)
    shapes = [f"({', '.join(map(str, s))}{',' * (len(s) == 1)})" for s in given]
    if len(shapes) < 2:
        return AotgradValueError(error.what)
    what = re.sub(r"^\w+: (?=.*: )", "", error.what)  # the function's name comes before the shapes
    if b.trace.name.startswith("getitem"):
        return AotgradIndexError(f"shapes {', '.join(shapes[1:-1])} and {shapes[-1]} of the index arrays do not broadcast: {error.what}")
    return AotgradValueError(f"shapes {', '.join(shapes[:-1])} and {shapes[-1]} do not broadcast or fit: {what}")


def _meeting(pair: tuple[int, int] | None, shapes: Sequence[Sequence[Any]]) -> str:
    """What torch says of the sizes ``pair`` that meet where shapes are broadcast."""
    for i in reversed(range(max(map(len, shapes), default=0))):
        met: Any = 1
        for s in shapes:
            at = i - max(map(len, shapes)) + len(s)
            if at >= 0 and (met, s[at]) == pair:
                return f"The size of tensor a ({met}) must match the size of tensor b ({s[at]}) at non-singleton dimension {i}"
            met = s[at] if at >= 0 and met == 1 else met
    return ""


def _fitting(error: AotgradError, torch: bool) -> AotgradError:
    """The error as the library raises it whose function was called: what is a ``ValueError`` of NumPy's is a ``RuntimeError`` of torch's."""
    return AotgradArgumentError(str(error)) if torch and type(error) is AotgradValueError else error


def _located(error: AotgradError, loc: Loc | None, name: str) -> AotgradError:
    """The error with the user's line in front, once."""
    text = str(error)
    name = name if not name.startswith(("getitem", "setitem")) else "indexing"
    if text.startswith(f"{name}: "):
        text = text[len(name) + 2:]
    if text.startswith("None: "):
        text = text[6:]
        error = type(error)(text)
    if loc is None and text.startswith("dtype "):  # of which function
        return type(error)(f"{name}: {text}")
    if loc is None or text.startswith(str(loc)) or isinstance(error, NeedStatic):
        return error
    return type(error)(f"{loc}: {loc.source}\n  {name}: {text}" if loc.source else f"{loc}: {name}: {text}")


def number_operand(x: Any, make: Any = None) -> Operand:
    """A Python number: weak."""
    return Operand(Kind(python_dtype(x), weak=True, rank=0), number=x, make=make)


def publics() -> tuple[dict[str, Public], dict[str, Public]]:
    """Public functions by torch's name and by NumPy's."""
    torch: dict[str, Public] = {}
    numpy: dict[str, Public] = {}
    for op in opdef.all_ops().values():
        front = op.front
        if front is None:
            continue
        name = front.signature.partition("(")[0]
        for n in (name, *front.aliases):
            torch[n] = Public(op, n, front.signature, front.canon)
        for n in front.np:
            numpy[n] = Public(op, n, front.np_signature or front.signature, front.np_canon or front.canon)
            numpy[n].numpy = True
            if front.np_signature is not None:
                numpy[n].respell = None
    return torch, numpy


SIZES = (int, Dim, np.integer)
