"""A small writer of LLVM text: numbered values, structured loops with phis, vectors that know how their target masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aotgrad_runtime.records import record

__all__ = ["Fn", "Val", "Vec"]

Val = str | int


class Fn:
    """One function under construction. Methods append instructions and return the name of the value; integers are i64 unless a type is given."""

    def __init__(self, name: str, params: Sequence[tuple[str, str]], result: str = "void", linkage: str = "internal", attrs: str = "nounwind") -> None:
        args = ", ".join(f"{ty} %{arg}" for ty, arg in params)
        self._lines = [f"define {linkage} {result} @{name}({args}) {attrs} {{", "entry:"]
        self._block = "entry"
        self._count = 0

    def text(self) -> str:
        return "\n".join([*self._lines, "}", ""])

    def _fresh(self) -> int:
        self._count += 1
        return self._count

    def raw(self, line: str) -> None:
        self._lines.append("  " + line)

    def op(self, text: str) -> str:
        name = f"%v{self._fresh()}"
        self._lines.append(f"  {name} = {text}")
        return name

    def label(self, name: str) -> None:
        self._lines.append(f"{name}:")
        self._block = name

    # -- integers, addresses --------------------------------------------------------------------------------------------------------------------
    def add(self, x: Val, y: Val) -> str:
        return self.op(f"add i64 {x}, {y}")

    def sub(self, x: Val, y: Val) -> str:
        return self.op(f"sub i64 {x}, {y}")

    def mul(self, x: Val, y: Val) -> str:
        return self.op(f"mul i64 {x}, {y}")

    def udiv(self, x: Val, y: Val) -> str:
        return self.op(f"udiv i64 {x}, {y}")

    def both(self, x: Val, y: Val) -> str:
        return self.op(f"and i1 {x}, {y}")

    def either(self, x: Val, y: Val) -> str:
        return self.op(f"or i1 {x}, {y}")

    def cmp(self, pred: str, x: Val, y: Val) -> str:
        return self.op(f"icmp {pred} i64 {x}, {y}")

    def select(self, cond: Val, x: Val, y: Val, ty: str = "i64") -> str:
        return self.op(f"select i1 {cond}, {ty} {x}, {ty} {y}")

    def min(self, x: Val, y: Val) -> str:
        return self.select(self.cmp("slt", x, y), x, y)

    def max(self, x: Val, y: Val) -> str:
        return self.select(self.cmp("sgt", x, y), x, y)

    def ceil_div(self, x: Val, y: Val) -> str:
        return self.udiv(self.add(x, self.sub(y, 1)), y)

    def round_up(self, x: Val, unit: int) -> str:
        return self.mul(self.ceil_div(x, unit), unit)

    def at(self, ptr: Val, offset: Val) -> str:
        """``ptr`` moved by ``offset`` bytes."""
        return str(ptr) if offset == 0 else self.op(f"getelementptr i8, ptr {ptr}, i64 {offset}")

    def opaque(self, x: Val, ty: str = "ptr") -> str:
        """``x`` as a value of which LLVM knows nothing, and which it so keeps in a register; no instruction."""
        return self.op(f'call {ty} asm "", "=r,0"({ty} {x})')

    def prefetch(self, ptr: Val, size: int, line: int) -> None:
        """Asks for the lines of ``size`` bytes, to write them soon."""
        for offset in range(0, size, line):
            self.raw(f"call void @llvm.prefetch.p0(ptr {self.at(ptr, offset)}, i32 1, i32 3, i32 1)")

    # -- control flow ---------------------------------------------------------------------------------------------------------------------------
    def ret(self, value: str = "void") -> None:
        self.raw(f"ret {value}")
        self.label(f"dead{self._fresh()}")

    def end(self) -> None:
        """Close the block that follows the last return."""
        self.raw("unreachable")

    def loop(self, inits: Sequence[tuple[str, Val]], cond: Callable[[list[str]], Val], body: Callable[[list[str]], Sequence[Val]]) -> list[str]:
        """``while cond(vars): vars = body(vars)``; the values at exit are returned."""
        n, before = self._fresh(), self._block
        self.raw(f"br label %head{n}")
        self.label(f"head{n}")
        slot, names = self._phis(inits)
        test = cond(names)
        self.raw(f"br i1 {test}, label %body{n}, label %exit{n}")
        self.label(f"body{n}")
        after = body(names)
        self.raw(f"br label %head{n}")
        self._fill(slot, names, inits, before, after)
        self.label(f"exit{n}")
        return names

    def do_loop(self, inits: Sequence[tuple[str, Val]], body: Callable[[list[str]], tuple[Sequence[Val], Val]]) -> list[Val]:
        """``do: vars, more = body(vars) while more``; the values at exit are returned."""
        n, before = self._fresh(), self._block
        self.raw(f"br label %body{n}")
        self.label(f"body{n}")
        slot, names = self._phis(inits)
        after, more = body(names)
        self.raw(f"br i1 {more}, label %body{n}, label %exit{n}")
        self._fill(slot, names, inits, before, after)
        self.label(f"exit{n}")
        return list(after)

    def _phis(self, inits: Sequence[tuple[str, Val]]) -> tuple[int, list[str]]:
        slot = len(self._lines)
        names = [f"%v{self._fresh()}" for _ in inits]
        self._lines.extend("" for _ in inits)
        return slot, names

    def _fill(self, slot: int, names: Sequence[str], inits: Sequence[tuple[str, Val]], before: str, after: Sequence[Val]) -> None:
        for i, (name, (ty, init), value) in enumerate(zip(names, inits, after, strict=True)):
            self._lines[slot + i] = f"  {name} = phi {ty} [ {init}, %{before} ], [ {value}, %{self._block} ]"

    def branch(self, cond: Val, then: Callable[[], Sequence[Val]], other: Callable[[], Sequence[Val]], types: Sequence[str]) -> list[str]:
        """``then()`` if ``cond`` else ``other()``: the values of the side taken."""
        n = self._fresh()
        self.raw(f"br i1 {cond}, label %then{n}, label %else{n}")
        sides = []
        for name, side in ((f"then{n}", then), (f"else{n}", other)):
            self.label(name)
            values = side()
            sides.append((values, self._block))
            self.raw(f"br label %join{n}")
        self.label(f"join{n}")
        (xs, a), (ys, b) = sides
        return [self.op(f"phi {ty} [ {x}, %{a} ], [ {y}, %{b} ]") for ty, x, y in zip(types, xs, ys, strict=True)]

    def when(self, cond: Val, then: Callable[[], object]) -> None:
        """Run ``then()`` if ``cond``."""
        n = self._fresh()
        self.raw(f"br i1 {cond}, label %then{n}, label %join{n}")
        self.label(f"then{n}")
        then()
        self.raw(f"br label %join{n}")
        self.label(f"join{n}")

    def for_(self, count: Val, step: Val, body: Callable[[str], object]) -> None:
        """``for i in range(0, count, step): body(i)``."""
        def run(v: list[str]) -> list[Val]:
            body(v[0])
            return [self.add(v[0], step)]
        self.loop([("i64", 0)], lambda v: self.cmp("slt", v[0], count), run)


@record(frozen=True)
class Vec:
    """How one vector type is spelled and used: element ``dtype``, ``lanes`` (1 = the scalar), and whether a fused multiply-add exists."""

    dtype: str
    lanes: int
    fma: bool

    @property
    def elem(self) -> str:
        return {"f32": "float", "f64": "double"}[self.dtype]

    @property
    def size(self) -> int:
        return {"f32": 4, "f64": 8}[self.dtype]

    @property
    def bytes(self) -> int:
        return self.size * self.lanes

    @property
    def type(self) -> str:
        return self.elem if self.lanes == 1 else f"<{self.lanes} x {self.elem}>"

    @property
    def mask_type(self) -> str:
        return f"<{self.lanes} x i1>"

    @property
    def suffix(self) -> str:
        return self.dtype if self.lanes == 1 else f"v{self.lanes}{self.dtype}"

    @property
    def zero(self) -> str:
        return "0.0" if self.lanes == 1 else "zeroinitializer"

    def declares(self) -> list[str]:
        t, out = self.type, []
        if self.fma:
            out.append(f"declare {t} @llvm.fma.{self.suffix}({t}, {t}, {t})")
        if self.lanes > 1:
            out.append(f"declare {t} @llvm.masked.load.{self.suffix}.p0(ptr, i32, {self.mask_type}, {t})")
            out.append(f"declare void @llvm.masked.store.{self.suffix}.p0({t}, ptr, i32, {self.mask_type})")
        return out

    def mask(self, b: Fn, count: Val) -> str:
        """Lanes 0 .. count-1 (all for count >= lanes; count must not be negative)."""
        it = f"i{8 * self.size}"
        ids = ", ".join(f"{it} {i}" for i in range(self.lanes))
        n = b.min(count, self.lanes)
        if it != "i64":
            n = b.op(f"trunc i64 {n} to {it}")
        v = f"<{self.lanes} x {it}>"
        return b.op(f"icmp ugt {v} {self._splat(b, n, it)}, <{ids}>")

    def _splat(self, b: Fn, scalar: Val, elem: str) -> str:
        v = f"<{self.lanes} x {elem}>"
        one = b.op(f"insertelement {v} poison, {elem} {scalar}, i64 0")
        return b.op(f"shufflevector {v} {one}, {v} poison, <{self.lanes} x i32> zeroinitializer")

    def splat(self, b: Fn, scalar: str) -> str:
        return scalar if self.lanes == 1 else self._splat(b, scalar, self.elem)

    def load(self, b: Fn, ptr: Val, mask: str | None = None) -> str:
        if mask is None:
            return b.op(f"load {self.type}, ptr {ptr}, align {self.size}")
        return b.op(f"call {self.type} @llvm.masked.load.{self.suffix}.p0(ptr {ptr}, i32 {self.size}, {self.mask_type} {mask}, {self.type} zeroinitializer)")

    def store(self, b: Fn, value: Val, ptr: Val, mask: str | None = None) -> None:
        if mask is None:
            b.raw(f"store {self.type} {value}, ptr {ptr}, align {self.size}")
        else:
            b.raw(f"call void @llvm.masked.store.{self.suffix}.p0({self.type} {value}, ptr {ptr}, i32 {self.size}, {self.mask_type} {mask})")

    def load_elem(self, b: Fn, ptr: Val) -> str:
        return b.op(f"load {self.elem}, ptr {ptr}, align {self.size}")

    def store_elem(self, b: Fn, value: Val, ptr: Val) -> None:
        b.raw(f"store {self.elem} {value}, ptr {ptr}, align {self.size}")

    def add(self, b: Fn, x: Val, y: Val) -> str:
        return b.op(f"fadd {self.type} {x}, {y}")

    def muladd(self, b: Fn, x: Val, y: Val, z: Val) -> str:
        """x * y + z, rounded once where the target can."""
        if self.fma:
            return b.op(f"call {self.type} @llvm.fma.{self.suffix}({self.type} {x}, {self.type} {y}, {self.type} {z})")
        return self.add(b, b.op(f"fmul {self.type} {x}, {y}"), z)

    def shuffle(self, b: Fn, x: Val, y: Val, indices: Sequence[int]) -> str:
        ids = ", ".join(f"i32 {i}" for i in indices)
        return b.op(f"shufflevector {self.type} {x}, {self.type} {y}, <{len(indices)} x i32> <{ids}>")
