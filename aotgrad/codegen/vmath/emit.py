"""A small emitter of LLVM IR text over one lane count: values with operators, so that the recipes read like formulas."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import field

from aotgrad_runtime.records import record

from .coeffs import POLY

#: element type -> (LLVM type, integer type of the same width, suffix of intrinsics)
_LLVM = {"f64": "double", "f32": "float", "i64": "i64", "i32": "i32", "i1": "i1"}
_BITS = {"f64": "i64", "f32": "i32"}
_NAME = re.compile(r"%\w+|^\w+(?=:)", re.M)
_BIN = {"+": ("fadd", "add"), "-": ("fsub", "sub"), "*": ("fmul", "mul"), "/": ("fdiv", "sdiv")}


@record(frozen=True)
class Format:
    """What the recipes need to know about an IEEE format."""

    dtype: str
    bits: int
    mantissa: int
    bias: int

    @property
    def magic(self) -> float:
        """Adding it rounds to an integer and leaves that integer in the low bits."""
        return 1.5 * 2.0**self.mantissa

    @property
    def one(self) -> int:
        """The bit pattern of 1.0."""
        return self.bias << self.mantissa


FORMATS = {"f64": Format("f64", 64, 52, 1023), "f32": Format("f32", 32, 23, 127)}


@record(frozen=True)
class VFunc:
    """One internal LLVM function. ``text`` defines ``symbol``; ``deps`` must be in the same module, once each; ``declares`` are declaration lines.

    ``params``, ``lines`` and ``result``: what ``text`` is made of, to be written into a caller; ``last``: the label of the block it ends in.
    """

    symbol: str
    text: str
    deps: tuple[VFunc, ...] = ()
    declares: frozenset[str] = frozenset()
    params: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    result: str = ""
    last: str = "entry"

    def written(self, args: Sequence[str], block: str, prefix: str) -> tuple[list[str], str, str]:
        """The instructions for a call with ``args`` in ``block``, the value they give and the block they end in. Names of values and blocks begin with ``prefix``."""
        given = {**dict(zip(self.params, args)), "%entry": f"%{block}"}

        def renamed(m: re.Match[str]) -> str:
            name = m.group()
            return given.get(name) or (f"%{prefix}{name[1:]}" if name[0] == "%" else f"{prefix}{name}")

        text = _NAME.sub(renamed, "\n".join([*self.lines, self.result]))
        *lines, result = text.split("\n")
        return lines, result, block if self.last == "entry" else f"{prefix}{self.last}"


def hexfloat(value: float, dtype: str) -> str:
    """LLVM's exact spelling; a float constant is written as the double it equals."""
    if dtype == "f32" and value == value and struct.unpack("f", struct.pack("f", value))[0] != value:
        raise ValueError(f"{value!r} is not a float32 number: round the constant first")
    return "0x" + struct.pack(">d", value).hex().upper()


def ir_type(ty: str, lanes: int) -> str:
    return _LLVM[ty] if lanes == 1 else f"<{lanes} x {_LLVM[ty]}>"


@record(frozen=True)
class Val:
    """An SSA value (or constant) of an emitter."""

    b: Emitter
    ref: str
    ty: str

    @property
    def fmt(self) -> Format:
        return FORMATS[self.ty]

    def __add__(self, other: Operand) -> Val:
        return self.b.arith("+", self, other)

    def __radd__(self, other: Operand) -> Val:
        return self.b.arith("+", self.b.lift(other, self.ty), self)

    def __sub__(self, other: Operand) -> Val:
        return self.b.arith("-", self, other)

    def __rsub__(self, other: Operand) -> Val:
        return self.b.arith("-", self.b.lift(other, self.ty), self)

    def __mul__(self, other: Operand) -> Val:
        return self.b.arith("*", self, other)

    def __rmul__(self, other: Operand) -> Val:
        return self.b.arith("*", self.b.lift(other, self.ty), self)

    def __truediv__(self, other: Operand) -> Val:
        return self.b.arith("/", self, other)

    def __rtruediv__(self, other: Operand) -> Val:
        return self.b.arith("/", self.b.lift(other, self.ty), self)

    def __and__(self, other: Operand) -> Val:
        return self.b.op("and", self, other)

    def __or__(self, other: Operand) -> Val:
        return self.b.op("or", self, other)

    def __xor__(self, other: Operand) -> Val:
        return self.b.op("xor", self, other)

    def __lshift__(self, other: int) -> Val:
        return self.b.op("shl", self, other)

    def __rshift__(self, other: int) -> Val:
        """Logical shift."""
        return self.b.op("lshr", self, other)

    def __neg__(self) -> Val:
        return self.b.emit(f"fneg {self.b.type(self.ty)} {self.ref}", self.ty)

    def __invert__(self) -> Val:
        return self.b.op("xor", self, 1 if self.ty == "i1" else -1)

    def to_int(self) -> Val:
        return self.b.convert("bitcast", self, _BITS[self.ty])

    def to_float(self) -> Val:
        return self.b.convert("bitcast", self, "f64" if self.ty == "i64" else "f32")

    def wide(self) -> Val:
        return self.b.convert("fpext", self, "f64")

    def narrow(self) -> Val:
        return self.b.convert("fptrunc", self, "f32")


Operand = Val | float | int


@record
class Emitter:
    """Collects instructions of one function over ``lanes`` lanes."""

    lanes: int
    avx512: bool = False
    lines: list[str] = field(default_factory=list)
    declares: set[str] = field(default_factory=set)
    deps: list[VFunc] = field(default_factory=list)
    count: int = 0
    block: str = "entry"

    def type(self, ty: str) -> str:
        return ir_type(ty, self.lanes)

    def name(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def emit(self, instruction: str, ty: str) -> Val:
        ref = self.name()
        self.lines.append(f"  {ref} = {instruction}")
        return Val(self, ref, ty)

    def lift(self, value: Operand, ty: str) -> Val:
        if isinstance(value, Val):
            return value
        if ty in FORMATS:
            text = hexfloat(float(value), ty)
        elif ty == "i1":
            text = "true" if value else "false"
        else:
            text = str(int(value))
        return Val(self, text if self.lanes == 1 else f"splat ({_LLVM[ty]} {text})", ty)

    def op(self, opcode: str, a: Val, b: Operand) -> Val:
        return self.emit(f"{opcode} {self.type(a.ty)} {a.ref}, {self.lift(b, a.ty).ref}", a.ty)

    def arith(self, sign: str, a: Val, b: Operand) -> Val:
        return self.op(_BIN[sign][0 if a.ty in FORMATS else 1], a, b)

    def convert(self, opcode: str, a: Val, ty: str) -> Val:
        return self.emit(f"{opcode} {self.type(a.ty)} {a.ref} to {self.type(ty)}", ty)

    def intrinsic(self, name: str, *args: Operand) -> Val:
        """An overloaded intrinsic whose result and arguments all have the type of the first ``Val``."""
        ty = next(a.ty for a in args if isinstance(a, Val))
        full = f"@llvm.{name}.{'' if self.lanes == 1 else f'v{self.lanes}'}{ty}"
        t = self.type(ty)
        self.declares.add(f"declare {t} {full}({', '.join([t] * len(args))})")
        return self.emit(f"call {t} {full}({', '.join(f'{t} {self.lift(a, ty).ref}' for a in args)})", ty)

    def resized(self, a: Val, lanes: int) -> str:
        """``a`` in a vector of more lanes; what is in the others does not matter."""
        scalar = _LLVM[a.ty]
        if self.lanes == 1:
            return self.emit(f"insertelement <{lanes} x {scalar}> poison, {scalar} {a.ref}, i64 0", a.ty).ref
        if self.lanes == lanes:
            return a.ref
        mask = ", ".join(f"i32 {i}" if i < self.lanes else "i32 poison" for i in range(lanes))
        return self.emit(f"shufflevector {self.type(a.ty)} {a.ref}, {self.type(a.ty)} poison, <{lanes} x i32> <{mask}>", a.ty).ref

    def machine(self, name: str, lanes: int, ty: str, args: Sequence[tuple[str, str]]) -> Val:
        """An instruction of AVX-512 on ``lanes`` lanes, of which this function uses the first. ``args``: types and values."""
        t = ir_type(ty, lanes)
        self.declares.add(f"declare {t} @llvm.x86.avx512.{name}({', '.join(a for a, _ in args)})")
        out = self.emit(f"call {t} @llvm.x86.avx512.{name}({', '.join(f'{a} {v}' for a, v in args)})", ty)
        if self.lanes == lanes:
            return out
        if self.lanes == 1:
            return self.emit(f"extractelement {t} {out.ref}, i64 0", ty)
        mask = ", ".join(f"i32 {i}" for i in range(self.lanes))
        return self.emit(f"shufflevector {t} {out.ref}, {t} poison, <{self.lanes} x i32> <{mask}>", ty)

    def scales(self, y: Val) -> bool:
        """Whether ``scalef`` serves. One lane alone does not use it: LLVM vectorises loops of plain instructions."""
        return self.avx512 and self.lanes > 1 and self.lanes * y.fmt.bits <= 512

    def scalef(self, y: Val, k: Val) -> Val:
        """y * 2**k rounded once, k a whole number: one instruction of AVX-512."""
        lanes = max(self.lanes, 128 // y.fmt.bits)
        t, whole = ir_type(y.ty, lanes), lanes * y.fmt.bits == 512
        mask = "i16" if lanes == 16 else "i8"
        args = [(t, self.resized(y, lanes)), (t, self.resized(k, lanes)), (t, "zeroinitializer"), (mask, "-1")]
        kind = "ps" if y.ty == "f32" else "pd"
        return self.machine(f"mask.scalef.{kind}.{lanes * y.fmt.bits}", lanes, y.ty, [*args, ("i32", "4")] if whole else args)

    def lookup(self, rows: Sequence[Sequence[float]], index: Val) -> list[Val]:
        """From each row of 16 float32 numbers the one at the low four bits of ``index``: one instruction of AVX-512 each."""
        i, out = self.resized(index, 16), []
        for row in rows:
            table = f"<{', '.join('float ' + hexfloat(v, 'f32') for v in row)}>"
            out.append(self.machine("permvar.sf.512", 16, "f32", [("<16 x float>", table), ("<16 x i32>", i)]))
        return out

    def call(self, callee: VFunc, ty: str, *args: Val) -> Val:
        if callee not in self.deps:
            self.deps.append(callee)
        return self.emit(f"call {self.type(ty)} @{callee.symbol}({', '.join(f'{self.type(a.ty)} {a.ref}' for a in args)})", ty)

    def fma(self, a: Operand, b: Operand, c: Operand) -> Val:
        return self.intrinsic("fma", a, b, c)

    def abs(self, a: Val) -> Val:
        return self.intrinsic("fabs", a)

    def sqrt(self, a: Val) -> Val:
        return self.intrinsic("sqrt", a)

    def copysign(self, magnitude: Operand, sign: Val) -> Val:
        return self.intrinsic("copysign", self.lift(magnitude, sign.ty), sign)

    def fcmp(self, predicate: str, a: Val, b: Operand) -> Val:
        return self.emit(f"fcmp {predicate} {self.type(a.ty)} {a.ref}, {self.lift(b, a.ty).ref}", "i1")

    def icmp(self, predicate: str, a: Val, b: Operand) -> Val:
        return self.emit(f"icmp {predicate} {self.type(a.ty)} {a.ref}, {self.lift(b, a.ty).ref}", "i1")

    def select(self, condition: Val, a: Operand, b: Operand) -> Val:
        ty = a.ty if isinstance(a, Val) else b.ty  # type: ignore[union-attr]
        x, y, t = self.lift(a, ty), self.lift(b, ty), self.type(ty)
        return self.emit(f"select {self.type('i1')} {condition.ref}, {t} {x.ref}, {t} {y.ref}", ty)

    def above(self, a: Val, low: Operand) -> Val:
        """max(a, low) that keeps a NaN in a."""
        return self.select(self.fcmp("olt", a, low), low, a)

    def below(self, a: Val, high: Operand) -> Val:
        """min(a, high) that keeps a NaN in a."""
        return self.select(self.fcmp("ogt", a, high), high, a)

    def at_least_int(self, a: Val, low: int) -> Val:
        """max(a, low) of signed integers."""
        return self.intrinsic("smax", a, low)

    def sqrt_half_bits(self, ty: str) -> int:
        """The bit pattern of sqrt(1/2), the border of the mantissas of logarithms."""
        return 0x3FE6A09E667F3BCD if ty == "f64" else 0x3F3504F3

    def poly(self, x: Val, coeffs: Sequence[float]) -> Val:
        """Polynomial by Estrin's scheme: short dependency chains, log2(n) extra products."""
        terms: list[Operand] = list(coeffs)
        power = x
        while len(terms) > 1:
            paired: list[Operand] = [self.fma(terms[i + 1], power, terms[i]) for i in range(0, len(terms) - 1, 2)]
            terms = paired + terms[len(paired) * 2:]
            if len(terms) > 1:
                power = power * power
        return self.lift(terms[0], x.ty)

    def named_poly(self, name: str, x: Val) -> Val:
        return self.poly(x, POLY[name][x.ty])

    def fast_two_sum(self, a: Val, b: Val) -> tuple[Val, Val]:
        """Sum and its rounding error, for abs(a) >= abs(b) or a = 0."""
        s = a + b
        return s, b - (s - a)

    def two_sum(self, a: Val, b: Val) -> tuple[Val, Val]:
        s = a + b
        t = s - a
        return s, (a - (s - t)) + (b - t)

    def two_prod(self, a: Val, b: Operand) -> tuple[Val, Val]:
        p = a * b
        return p, self.fma(a, b, -p)

    def redo_if_any(self, condition: Val, slow: VFunc, args: Sequence[Val], y: Val) -> Val:
        """slow(*args) if any lane of the condition is set, else y: one compare and branch. The condition is rare."""
        flag = condition.ref
        if self.lanes > 1:
            self.declares.add(f"declare i1 @llvm.vector.reduce.or.v{self.lanes}i1({self.type('i1')})")
            flag = self.emit(f"call i1 @llvm.vector.reduce.or.v{self.lanes}i1({self.type('i1')} {condition.ref})", "i1").ref
        self.declares.add("declare i1 @llvm.expect.i1(i1, i1)")
        rare = self.emit(f"call i1 @llvm.expect.i1(i1 {flag}, i1 false)", "i1").ref
        here, number = self.block, self.count
        self.lines += [f"  br i1 {rare}, label %slow{number}, label %join{number}", f"slow{number}:"]
        fresh = self.call(slow, y.ty, *args)
        self.lines += [f"  br label %join{number}", f"join{number}:"]
        self.block = f"join{number}"
        return self.emit(f"phi {self.type(y.ty)} [ {y.ref}, %{here} ], [ {fresh.ref}, %slow{number} ]", y.ty)

    def function(self, symbol: str, args: Sequence[Val], result: Val, *, attributes: str = "alwaysinline nounwind memory(none)") -> VFunc:
        """Close the function."""
        params = ", ".join(f"{self.type(a.ty)} {a.ref}" for a in args)
        t = self.type(result.ty)
        text = "\n".join([f"define internal {t} @{symbol}({params}) {attributes} {{", "entry:", *self.lines, f"  ret {t} {result.ref}", "}", ""])
        return VFunc(symbol, text, tuple(self.deps), frozenset(self.declares), tuple(a.ref for a in args), tuple(self.lines), result.ref, self.block)
