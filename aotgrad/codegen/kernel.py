"""The kernel level: ``KernelBuilder`` for loops, memory and index arithmetic; ``ScalarBuilder``, over which ops state their meaning.

>>> from aotgrad_runtime.dtypes import float64
>>> f = function("double", [float64], [float64], ["n"])
>>> kb = f.kb
>>> with kb.for_(0, f.sizes["n"], 8) as loop:
...     mask = kb.create_mask(kb.sub(f.sizes["n"], loop.iv), 8)
...     x = kb.load(f.inputs[0], loop.iv, 8, mask)
...     kb.store(kb.scalars(8).add(x, x), f.outputs[0], loop.iv, mask)
>>> kb.ret()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aotgrad_runtime import dtypes
from aotgrad_runtime.dtypes import DType
from aotgrad_runtime.errors import AotgradNotImplementedError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.records import record

from ..ir.core import Block, Func, Value
from ..ir.dims import DimLike
from .kernel_core import CMPF, CMPI, Index, Loop, constant_of
from .kernel_core import KernelBuilder as _KernelBuilder
from .kernel_types import INDEX, MATH_OPS, KType, as_ktype, memref, register, with_lanes

__all__ = [
    "Index", "Kernel", "KernelBuilder", "KType", "Loop", "ScalarBuilder", "as_ktype", "constant_of", "function", "helper", "memref",
    "register",
]


def _negated(x: Value) -> Value | None:
    """What x is the negative of."""
    return x.op.operands[0] if x.op is not None and x.op.name == "arith.negf" else None


_MATH_ALIASES = {"pow": "powf", "abs": "absf"}


class KernelBuilder(_KernelBuilder):
    """See ``kernel_core.KernelBuilder``; this one also makes scalar builders."""

    def scalars(self, lanes: int = 1) -> ScalarBuilder:
        """The builder that ``OpDef.lower`` sees as ``k``."""
        return ScalarBuilder(self, lanes)


class ScalarBuilder:
    """Elementwise arithmetic on scalars or on vectors of ``lanes``; where the two meet, the scalar is broadcast (so uniform parts are computed once).

    Results are defined for every input: integers wrap, division by 0 gives 0, floats out of an integer's range become its minimum, as NumPy does on x86.
    """

    __slots__ = ("kb", "lanes")

    def __init__(self, kb: _KernelBuilder, lanes: int = 1) -> None:
        self.kb, self.lanes = kb, lanes

    # ---- plumbing ---------------------------------------------------------------------------------------------------------------

    def vector(self, x: Value) -> Value:
        """``x`` in all lanes of this builder."""
        return x if self.lanes == 1 else self.kb.broadcast(x, self.lanes)

    def _same(self, *xs: Value) -> tuple[tuple[Value, ...], KType]:
        first = xs[0].type
        if type(first) is KType and [x.type is first for x in xs].count(False) == 0:
            return xs, first
        types = [as_ktype(x.type) for x in xs]
        wide = max(t.lanes for t in types)
        if wide > 1:
            xs = tuple(x if t.lanes == wide else self.kb.broadcast(x, wide) for x, t in zip(xs, types))
        for t in types[1:]:
            if t.dtype is not types[0].dtype:
                raise AotgradTypeError(f"kernel-level operands differ in element type: {types[0]} and {t}; cast one of them first")
        return xs, with_lanes(types[0], wide)

    def _binary(self, x: Value, y: Value, f: str, i: str, b: str | None = None, u: str | None = None) -> Value:
        xs, t = self._same(x, y)
        kind = t.kind
        name = f if kind == "f" else b if kind == "b" else u or i if kind == "u" else i
        if not name:
            raise AotgradTypeError(f"{f or i} has no meaning on {t}; cast to a number first")
        return self.kb.pure("arith." + name, xs, t)

    def _test(self, predicate: str, x: Value, y: Value) -> Value:
        xs, t = self._same(x, y)
        out = register(dtypes.bool_, t.lanes)
        if t.kind == "f" and predicate in ("eq", "ne") and constant_of(xs[1]) == 0 and (plain := _negated(xs[0])) is not None:
            xs = (plain, xs[1])  # the sign of what is compared with 0 does not matter
        if t.kind == "f":
            return self.kb.pure("arith.cmpf", xs, out, {"predicate": CMPF[predicate]}, predicate)
        if t.kind in "ub" and predicate not in ("eq", "ne"):
            predicate = "u" + predicate
        return self.kb.pure("arith.cmpi", xs, out, {"predicate": CMPI[predicate]}, predicate)

    # ---- arithmetic -------------------------------------------------------------------------------------------------------------

    def add(self, x: Value, y: Value) -> Value:
        """x + y (or, of bools)."""
        return self._binary(x, y, "addf", "addi", "ori")

    def sub(self, x: Value, y: Value) -> Value:
        """x - y."""
        return self._binary(x, y, "subf", "subi")

    def mul(self, x: Value, y: Value) -> Value:
        """x * y (and, of bools)."""
        if _negated(x) is y:
            return self.neg(self.mul(y, y))  # the square is often there already
        return self._binary(x, y, "mulf", "muli", "andi")

    def div(self, x: Value, y: Value) -> Value:
        """x / y of floats; of integers rounded down, 0 where y is 0."""
        if as_ktype(x.type).kind == "f":
            return self._binary(x, y, "divf", "")
        return self._integer_division(x, y)[0]

    def rem(self, x: Value, y: Value) -> Value:
        """Remainder of integers with the sign of ``y`` (Python's), 0 where y is 0."""
        return self._integer_division(x, y)[1]

    def _integer_division(self, x: Value, y: Value) -> tuple[Value, Value]:
        (x, y), t = self._same(x, y)
        zero, one = self.kb.constant(0, t), self.kb.constant(1, t)
        by_zero = self._test("eq", y, zero)
        if t.kind == "u":
            safe = self.select(by_zero, one, y)
            q, r = (self.kb.pure(f"arith.{n}", (x, safe), t) for n in ("divui", "remui"))
            return self.select(by_zero, zero, q), self.select(by_zero, zero, r)
        lowest = self.kb.constant(-(1 << (t.bits - 1)), t)
        overflow = self.logical("and", self._test("eq", x, lowest), self._test("eq", y, self.kb.constant(-1, t)))
        safe = self.select(self.logical("or", by_zero, overflow), one, y)
        q, r = (self.kb.pure(f"arith.{n}", (x, safe), t) for n in ("divsi", "remsi"))
        off = self.logical("and", self._test("ne", r, zero), self._test("lt", self.kb.pure("arith.xori", (r, safe), t), zero))
        q, r = self.select(off, self.sub(q, one), q), self.select(off, self.add(r, safe), r)
        return self.select(by_zero, zero, q), r

    def neg(self, x: Value) -> Value:
        """-x."""
        t = as_ktype(x.type)
        return self.kb.pure("arith.negf", (x,), t) if t.kind == "f" else self.sub(self.kb.constant(0, t), x)

    def abs(self, x: Value) -> Value:
        """|x|; the smallest integer stays."""
        t = as_ktype(x.type)
        return x if t.kind in "ub" else self.kb.pure("math.absf" if t.kind == "f" else "math.absi", (x,), t)

    def sign(self, x: Value) -> Value:
        """-1, 0 or 1; NaN stays."""
        t = as_ktype(x.type)
        zero, one, minus = (self.kb.constant(v, t) for v in (0, 1, -1 if t.kind != "u" else 0))
        rest = self.select(self._test("eq", x, zero), zero, x) if t.kind == "f" else zero
        return self.select(self._test("gt", x, zero), one, self.select(self._test("lt", x, zero), minus, rest) if t.kind != "u" else rest)

    def min(self, x: Value, y: Value) -> Value:
        """The smaller; NaN wins; -0 is smaller than 0, so that the order in which numbers are combined does not matter."""
        (x, y), t = self._same(x, y)
        if t.kind != "f":
            return self._binary(x, y, "", "minsi", "andi", "minui")
        # A compare and a select, one instruction, give the second number for a tie or a NaN. Done both ways, the bits of the two answers together are -0, or a NaN.
        one, other = (self.select(self._test("lt", v, w), v, w) for v, w in ((x, y), (y, x)))
        bits = register(dtypes.as_dtype(f"int{t.bits}"), t.lanes)
        both = self.kb.pure("arith.ori", tuple(self.kb.pure("arith.bitcast", (v,), bits) for v in (one, other)), bits)
        return self.kb.pure("arith.bitcast", (both,), t)

    def max(self, x: Value, y: Value) -> Value:
        """The larger; NaN wins; 0 is larger than -0."""
        if as_ktype(x.type).kind == "f":
            return self.neg(self.min(self.neg(x), self.neg(y)))
        return self._binary(x, y, "", "maxsi", "ori", "maxui")

    def at_least(self, x: Value, low: Value) -> Value:
        """x, or ``low`` where x is below it; NaN wins; of equal ones (0 and -0) x."""
        return self._limit(x, low, "gt", self.max)

    def at_most(self, x: Value, high: Value) -> Value:
        """x, or ``high`` where x is above it; NaN wins; of equal ones (0 and -0) x."""
        return self._limit(x, high, "lt", self.min)

    def _limit(self, x: Value, y: Value, better: str, whole: Callable[[Value, Value], Value]) -> Value:
        if as_ktype(x.type).kind != "f":
            return whole(x, y)
        # Compare and select is one instruction that gives x when either is NaN; a NaN in y is put back.
        best = self.select(self._test(better, y, x), y, x)
        return self.select(self._test("uno", y, y), y, best)

    def fma(self, x: Value, y: Value, z: Value) -> Value:
        """x * y + z rounded once."""
        return self.math("fma", x, y, z)

    def pow(self, x: Value, y: Value) -> Value:
        """x ** y; of integers by squaring, wrapping; a negative exponent truncates (0 unless x is 1 or -1)."""
        (x, y), t = self._same(x, y)
        if t.kind == "f":
            return self.math("pow", x, y)
        zero, one = self.kb.constant(0, t), self.kb.constant(1, t)
        if t.kind != "u":
            # For |x| > 1 a negative exponent truncates to 0, and 0 takes the same way; 1 and -1 need only the exponent's parity.
            unit = self._test("eq", self.abs(x), one)
            negative = self._test("lt", y, zero)
            x = self.select(self.logical("and", negative, self.kb.negate(unit)), zero, x)
            y = self.select(negative, self.select(unit, self.kb.pure("arith.andi", (y, one), t), one), y)
        with self.kb.while_([self.kb.constant(1, t), x, y]) as loop:
            with loop.before() as (result, base, left):
                more = self._test("ne", left, zero)
                self.kb.condition(more if t.lanes == 1 else self.kb.any_lane(more), result, base, left)
            with loop.after() as (result, base, left):
                odd = self._test("ne", self.kb.pure("arith.andi", (left, one), t), zero)
                self.kb.yield_(self.select(odd, self.mul(result, base), result), self.mul(base, base), self.kb.pure("arith.shrui", (left, one), t))
        return loop.results[0]

    def shift(self, direction: str, x: Value, y: Value) -> Value:
        """Integer shift ``"left"`` or ``"right"``; by the width or more gives 0 (or the sign's fill), by a negative count too."""
        (x, y), t = self._same(x, y)
        top = self.kb.constant(t.bits - 1, t)
        inside = self.kb.pure("arith.cmpi", (y, top), register(dtypes.bool_, t.lanes), {"predicate": CMPI["ule"]}, "ule")
        amount = self.select(inside, y, top)
        if direction == "right" and t.kind != "u":
            return self.kb.pure("arith.shrsi", (x, amount), t)
        return self.select(inside, self.kb.pure("arith.shli" if direction == "left" else "arith.shrui", (x, amount), t), self.kb.constant(0, t))

    # ---- functions, tests, choices ----------------------------------------------------------------------------------------------

    def math(self, name: str, *xs: Value) -> Value:
        """A function of floats: MLIR's ``math`` op where there is one (``exp``, ``sqrt``, ``floor``, ``fma``, …), else a SIMD function (``sigmoid``, …)."""
        ys, t = self._same(*xs)
        if t.kind != "f":
            raise AotgradTypeError(f"{name} of {t}: cast to a floating-point type first")
        if t.dtype is dtypes.float16:
            return self.in_float32(lambda *wide: self.math(name, *wide), ys)
        name = _MATH_ALIASES.get(name, name)
        if name in MATH_OPS:
            return self.kb.pure("math." + name, ys, t)
        callee = f"ag_{name}_{t.elem}_{t.lanes}"
        return self.kb.pure("func.call", ys, t, {"callee": callee}, callee)

    def in_float32(self, fn: Callable[..., Value], xs: Sequence[Value]) -> Value:
        """``fn`` of float16 numbers as NumPy and torch compute it: of float32 ones, and rounded once, at the end."""
        out = fn(*[self.cast(x, dtypes.float16, dtypes.float32) if as_ktype(x.type).dtype is dtypes.float16 else x for x in xs])
        return self.cast(out, dtypes.float32, dtypes.float16) if as_ktype(out.type).dtype is dtypes.float32 else out

    def cmp(self, predicate: str, x: Value, y: Value) -> Value:
        """``lt le gt ge eq ne`` as a bool; with NaN all are false but ``ne``."""
        return self._test(predicate, x, y)

    def logical(self, kind: str, x: Value, y: Value) -> Value:
        """``and``, ``or``, ``xor`` of bools, bitwise of integers."""
        return self._binary(x, y, "", kind + "i", kind + "i")

    def select(self, c: Value, x: Value, y: Value) -> Value:
        """x where c holds, else y."""
        (x, y), t = self._same(x, y)
        lanes = max(t.lanes, as_ktype(c.type).lanes)
        if lanes > 1:
            c, x, y = (self.kb.broadcast(v, lanes) for v in (c, x, y))
        return x if x is y else self.kb.pure("arith.select", (c, x, y), with_lanes(t, lanes))

    def const(self, value: Any, like: Value | DType | str) -> Value:
        """A number of the type of ``like``: a value, or a dtype."""
        return self.kb.constant(value, as_ktype(like.type) if isinstance(like, Value) else register(dtypes.as_dtype(like)))

    # ---- conversions ------------------------------------------------------------------------------------------------------------

    def cast(self, x: Value, source: DType, target: DType) -> Value:
        """Conversion with NumPy's meaning: floats truncate; NaN and floats out of range give the smallest integer; integers wrap; anything but 0 is True."""
        t, kinds = as_ktype(x.type), source.kind + target.kind
        if source is target:
            return x
        if dtypes.bfloat16 in (source, target) and dtypes.float32 not in (source, target):  # by way of float32, as in eager code and in torch
            return self.cast(self.cast(x, source, dtypes.float32), dtypes.float32, target)
        if target.kind == "b":
            return self._test("ne", x, self.kb.constant(0, t))
        if dtypes.float16 in (source, target) and dtypes.float32 not in (source, target):  # by way of float32: processors have no other conversions
            if source is dtypes.float64:
                x = self._to_odd(x, t)
            else:
                x = self.cast(x, source, dtypes.float32)
            return self.cast(x, dtypes.float32, target)
        out = register(target, t.lanes)
        if kinds == "ff":
            return self.kb.pure("arith.extf" if target.itemsize > source.itemsize else "arith.truncf", (x,), out)
        if target.kind == "f":
            return self.kb.pure("arith.sitofp" if source.kind == "i" else "arith.uitofp", (x,), out)
        if source.kind == "f":
            return self._truncate(x, t, out)
        width = out.bits - t.bits
        if width == 0:
            # The bits stay; a signed and an unsigned type are one in MLIR, so the value needs a new home.
            return self.kb.pure("arith.ori", (x, self.kb.constant(0, t)), out)
        return self.kb.pure("arith.trunci" if width < 0 else "arith.extsi" if source.kind == "i" else "arith.extui", (x,), out)

    def _to_odd(self, x: Value, t: KType) -> Value:
        """float64 as float32, to the neighbour with an odd last bit where it is not exact: what is rounded to float16 then is as if it was rounded once."""
        narrow, bits = register(dtypes.float32, t.lanes), register(dtypes.int32, t.lanes)
        near = self.kb.pure("arith.truncf", (x,), narrow)
        back = self.kb.pure("arith.extf", (near,), t)
        zero, one = self.kb.constant(0, bits), self.kb.constant(1, bits)
        raw = self.kb.pure("arith.bitcast", (near,), bits)
        beyond = self._test("gt", self.abs(back), self.abs(x))
        inexact = self.logical("or", beyond, self._test("lt", self.abs(back), self.abs(x)))
        cut = self.sub(raw, self.select(beyond, one, zero))
        return self.kb.pure("arith.bitcast", (self.logical("or", cut, self.select(inexact, one, zero)),), narrow)

    def _truncate(self, x: Value, t: KType, out: KType) -> Value:
        # Outside the range the conversion has no defined result, so such values are replaced first.
        wide = out if out.bits == 64 else register(dtypes.int32, out.lanes)
        bound = 2.0 ** (wide.bits - 1)
        low, high = self.kb.constant(-bound, t), self.kb.constant(bound, t)
        x = self.select(self._test("ge", x, low), x, low)
        x = self.select(self._test("lt", x, high), x, low)
        whole = self.kb.pure("arith.fptosi", (x,), wide)
        return whole if wide.bits == out.bits else self.kb.pure("arith.trunci", (whole,), out)

    def from_index(self, i: Index, dtype: DType) -> Value:
        """An index (int, index value, or vector of index) as ``dtype``."""
        if isinstance(i, int):
            return self.kb.constant(i, register(dtype))
        lanes = as_ktype(i.type).lanes
        if dtype.kind == "f":
            return self.kb.pure("arith.sitofp", (self.kb.pure("arith.index_cast", (i,), register(dtypes.int64, lanes)),), register(dtype, lanes))
        if dtype.kind == "b":
            return self.kb.pure("arith.cmpi", (i, self.kb.constant(0, register(None, lanes))), register(dtype, lanes), {"predicate": CMPI["ne"]}, "ne")
        return self.kb.pure("arith.index_cast", (i,), register(dtype, lanes))

    def to_index(self, x: Value) -> Value:
        """An integer (or vector of them) as index; signed ones keep their sign."""
        t = as_ktype(x.type)
        return self.kb.pure("arith.index_castui" if t.kind == "u" else "arith.index_cast", (x,), register(None, t.lanes))

    def dim(self, size: DimLike) -> Index:
        """A size as an index, for ``from_index``."""
        return self.kb.dim(size)

    # ---- reductions -------------------------------------------------------------------------------------------------------------

    def combine(self, kind: str, x: Value, y: Value) -> Value:
        """One step of a reduction: ``add mul max min and or``."""
        steps: dict[str, Callable[[Value, Value], Value]] = {"add": self.add, "mul": self.mul, "max": self.max, "min": self.min}
        return steps[kind](x, y) if kind in steps else self.logical(kind, x, y)

    def identity(self, kind: str, dtype: DType) -> Any:
        """What a reduction starts from, as a Python number."""
        if kind in ("add", "or"):
            return 0
        if kind in ("mul", "and"):
            return 1 if kind == "mul" or dtype.kind == "b" else -1
        if dtype.kind == "f":
            return float("-inf") if kind == "max" else float("inf")
        bits = 1 if dtype.kind == "b" else 8 * dtype.itemsize
        low, high = (0, (1 << bits) - 1) if dtype.kind in "ub" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        return low if kind == "max" else high

    def reduce(self, kind: str, x: Value) -> Value:
        """All lanes combined in a fixed tree: the upper half with the lower, until one is left."""
        lanes = as_ktype(x.type).lanes
        while lanes > 2:
            lanes //= 2
            x = self.combine(kind, self.kb.shuffle(x, x, range(lanes)), self.kb.shuffle(x, x, range(lanes, 2 * lanes)))
        return x if lanes == 1 else self.combine(kind, self.kb.extract(x, 0), self.kb.extract(x, 1))


@record
class Kernel:
    """A kernel function being written: its builder and the values of its arguments."""

    func: Func
    kb: KernelBuilder
    inputs: list[Value]
    outputs: list[Value]
    sizes: dict[str, Value]
    workspace: Value


def function(name: str, inputs: Sequence[DType], outputs: Sequence[DType], symbols: Sequence[str]) -> Kernel:
    """Starts ``NAME(inputs: memref…, outputs: memref…, sizes: index…, workspace: memref<?xi8>) -> i32``; end it with ``kernel.kb.ret()``."""
    if len(set(symbols)) != len(symbols):
        raise AotgradValueError(f"size symbols of {name} repeat: {', '.join(symbols)}")
    block = Block([*map(memref, inputs), *map(memref, outputs), *([INDEX] * len(symbols)), memref(dtypes.int8)])
    args, ni, no = block.args, len(inputs), len(outputs)
    sizes = dict(zip(symbols, args[ni + no:-1]))
    names = [f"in{i}" for i in range(ni)] + [f"out{i}" for i in range(no)] + [*symbols, "workspace"]
    func = Func(name, block, {"arg_names": tuple(names), "outputs": no})
    return Kernel(func, KernelBuilder(block, sizes), list(args[:ni]), list(args[ni:ni + no]), sizes, args[-1])


def helper(name: str, arg_types: Sequence[KType], sizes: Sequence[str] = ()) -> tuple[Func, KernelBuilder]:
    """A further kernel function of a module (a GEMM epilogue, a loop body): any arguments; ``sizes`` name its last ones."""
    if len(sizes) > len(arg_types):
        raise AotgradNotImplementedError(f"{name} names {len(sizes)} sizes but has {len(arg_types)} arguments")
    block = Block(arg_types)
    return Func(name, block), KernelBuilder(block, dict(zip(sizes, block.args[len(arg_types) - len(sizes):])))
