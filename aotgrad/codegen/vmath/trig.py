"""Trigonometric functions.

Main path: k = round(x 2/pi), x - k pi/2 by three exact or error-free products. Arguments beyond LIMIT, where k no longer fits or the three parts of pi/2 no
longer suffice, send the vector to a function that is never inlined and replaces just those lanes, so that a lane's value never depends on its neighbours."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from .coeffs import CONST, TWO_OVER_PI_WORDS
from .emit import Emitter, Val, VFunc, hexfloat, ir_type
from .explog import pick, round_scaled

Kernel = Callable[[Emitter, Val, Val, Val], Val]
LIMIT = {"f64": 2.0**46, "f32": 2.0**20}
SLOW = "noinline cold nounwind memory(none)"


def reduce_pio2(b: Emitter, x: Val) -> tuple[Val, Val, Val]:
    """(quadrant bits, r, low part of r) for abs(x) <= LIMIT."""
    c = CONST[x.ty]
    n, k = round_scaled(b, x, c["TWO_OVER_PI"], 0)
    first = b.fma(k, -c["PIO2_1"], x)  # exact
    w, we = b.two_prod(k, c["PIO2_2"])
    r = first - w
    low = ((first - r) - w) - b.fma(k, c["PIO2_3"], we)
    return n, r, low


def sin_cos_parts(b: Emitter, r: Val, low: Val) -> tuple[Val, Val, Val, Val]:
    """(sin - r, head of cos, cos - head, r**2)."""
    z = r * r
    half = 0.5 * z
    head = 1.0 - half
    sin_tail = b.fma(r * z, b.named_poly("SIN", z), low * head)
    cos_tail = b.fma(z * z, b.named_poly("COS", z), ((1.0 - head) - half) - r * low)
    return sin_tail, head, cos_tail, z


def with_sign(b: Emitter, y: Val, n: Val) -> Val:
    """y negated where bit 1 of n is set."""
    return (y.to_int() ^ ((n & 2) << (y.fmt.bits - 2))).to_float()


def sin_kernel(b: Emitter, n: Val, r: Val, low: Val) -> Val:
    sin_tail, head, cos_tail, _ = sin_cos_parts(b, r, low)
    odd = b.icmp("ne", n & 1, 0)
    return with_sign(b, b.select(odd, head, r) + b.select(odd, cos_tail, sin_tail), n)


def cos_kernel(b: Emitter, n: Val, r: Val, low: Val) -> Val:
    return sin_kernel(b, n + 1, r, low)


def tan_kernel(b: Emitter, n: Val, r: Val, low: Val) -> Val:
    """sin/cos or -cos/sin, both in two parts, the quotient corrected."""
    sin_tail, head, cos_tail, _ = sin_cos_parts(b, r, low)
    odd = b.icmp("ne", n & 1, 0)
    sh, sl = b.fast_two_sum(r, sin_tail)
    ch, cl = b.fast_two_sum(head, cos_tail)
    nh, nl = b.select(odd, ch, sh), b.select(odd, cl, sl)
    dh, dl = b.select(odd, -sh, ch), b.select(odd, -sl, cl)
    # A plain division first: its inverse alone could overflow for a tiny divisor.
    q = nh / dh
    return q + (b.fma(-q, dh, nh) + b.fma(-q, dl, nl)) / dh


KERNELS: dict[str, Kernel] = {"sin": sin_kernel, "cos": cos_kernel, "tan": tan_kernel}


@cache
def two_over_pi_table() -> VFunc:
    words = ", ".join(f"i64 {word}" for word in TWO_OVER_PI_WORDS)
    return VFunc("ag_vm_two_over_pi", f"@ag_vm_two_over_pi = internal unnamed_addr constant [{len(TWO_OVER_PI_WORDS)} x i64] [{words}]\n")


@cache
def payne_hanek() -> VFunc:
    """{double, double, i64} (double): r, its low part and the quadrant, for finite abs(x) >= 2**46.

    x = m 2**E with an integer m. Of the bits of 2/pi those before bit E-1 only add multiples of four quadrants; the 192 after them, times m, leave 128 bits of
    which the first two are the quadrant: 2**-137 of a quadrant is lost, and no double comes nearer than 2**-62 to a multiple of pi/2."""
    c = CONST["f64"]
    p1, p2 = hexfloat(c["PIO2_1"], "f64"), hexfloat(c["PIO2_2"], "f64")
    table = two_over_pi_table()
    size = len(TWO_OVER_PI_WORDS)
    loads = []
    for i in range(4):
        loads += [f"  %i{i} = add i64 %word, {i}", f"  %p{i} = getelementptr inbounds [{size} x i64], ptr @{table.symbol}, i64 0, i64 %i{i}",
                  f"  %t{i} = load i64, ptr %p{i}"]
    text = f"""define internal {{ double, double, i64 }} @ag_vm_payne_hanek(double %x) {SLOW} {{
  %bits = bitcast double %x to i64
  %shifted = lshr i64 %bits, 52
  %e = and i64 %shifted, 2047
  %fraction = and i64 %bits, 4503599627370495
  %m = or i64 %fraction, 4503599627370496
  %offset = sub i64 %e, 1013
  %word = lshr i64 %offset, 6
  %shift = and i64 %offset, 63
{chr(10).join(loads)}
  %a0 = call i64 @llvm.fshl.i64(i64 %t0, i64 %t1, i64 %shift)
  %a1 = call i64 @llvm.fshl.i64(i64 %t1, i64 %t2, i64 %shift)
  %a2 = call i64 @llvm.fshl.i64(i64 %t2, i64 %t3, i64 %shift)
  %wm = zext i64 %m to i128
  %w1 = zext i64 %a1 to i128
  %w2 = zext i64 %a2 to i128
  %m2 = mul i128 %wm, %w2
  %c2 = lshr i128 %m2, 64
  %m1 = mul i128 %wm, %w1
  %s1 = add i128 %m1, %c2
  %m0 = mul i64 %m, %a0
  %w0 = zext i64 %m0 to i128
  %h0 = shl i128 %w0, 64
  %full = add i128 %h0, %s1
  %top = lshr i128 %full, 64
  %top64 = trunc i128 %top to i64
  %near = add i64 %top64, 2305843009213693952
  %quadrant = lshr i64 %near, 62
  %q128 = zext i64 %quadrant to i128
  %qs = shl i128 %q128, 126
  %rest = sub i128 %full, %qs
  %sign128 = ashr i128 %rest, 127
  %flipped = xor i128 %rest, %sign128
  %v = sub i128 %flipped, %sign128
  %lz = call i128 @llvm.ctlz.i128(i128 %v, i1 false)
  %norm = shl i128 %v, %lz
  %hbits = lshr i128 %norm, 75
  %hint = trunc i128 %hbits to i64
  %lbits = lshr i128 %norm, 22
  %lall = trunc i128 %lbits to i64
  %lint = and i64 %lall, 9007199254740991
  %hflt = sitofp i64 %hint to double
  %lflt = sitofp i64 %lint to double
  %lz64 = trunc i128 %lz to i64
  %field = sub i64 972, %lz64
  %sfield = shl i64 %field, 52
  %sign64 = trunc i128 %sign128 to i64
  %both = xor i64 %sign64, %bits
  %signbit = and i64 %both, -9223372036854775808
  %sbits = or i64 %sfield, %signbit
  %scale = bitcast i64 %sbits to double
  %h = fmul double %hflt, %scale
  %l0 = fmul double %lflt, %scale
  %l = fmul double %l0, {hexfloat(2.0**-53, "f64")}
  %rh = fmul double %h, {p1}
  %nrh = fneg double %rh
  %re = call double @llvm.fma.f64(double %h, double {p1}, double %nrh)
  %r2 = call double @llvm.fma.f64(double %h, double {p2}, double %re)
  %rl = call double @llvm.fma.f64(double %l, double {p1}, double %r2)
  %negative = icmp slt i64 %bits, 0
  %minus = sub i64 0, %quadrant
  %q = select i1 %negative, i64 %minus, i64 %quadrant
  %o0 = insertvalue {{ double, double, i64 }} poison, double %rh, 0
  %o1 = insertvalue {{ double, double, i64 }} %o0, double %rl, 1
  %o2 = insertvalue {{ double, double, i64 }} %o1, i64 %q, 2
  ret {{ double, double, i64 }} %o2
}}
"""
    declares = frozenset({"declare i64 @llvm.fshl.i64(i64, i64, i64)", "declare i128 @llvm.ctlz.i128(i128, i1)",
                          "declare double @llvm.fma.f64(double, double, double)"})
    return VFunc("ag_vm_payne_hanek", text, (table,), declares)


@cache
def huge_scalar(name: str) -> VFunc:
    """double (double) for abs(x) > LIMIT; infinities give NaN."""
    b = Emitter(1)
    x = Val(b, "%x", "f64")
    reduction = payne_hanek()
    b.deps.append(reduction)
    kind = "{ double, double, i64 }"
    b.lines.append(f"  %red = call {kind} @{reduction.symbol}(double %x)")
    r, low, n = (b.emit(f"extractvalue {kind} %red, {i}", ty) for i, ty in enumerate(("f64", "f64", "i64")))
    y = KERNELS[name](b, n, r, low)
    y = b.select(b.fcmp("olt", b.abs(x), float("inf")), y, x - x)
    return b.function(f"ag_vm_{name}_huge", [x], y, attributes=SLOW)


def _f32_scalar(name: str) -> VFunc:
    """float (float) through the f64 function."""
    b = Emitter(1)
    x = Val(b, "%x", "f32")
    return b.function(f"ag_vm_{name}_huge_f32", [x], b.call(plain(name, "f64", 1), "f64", x.wide()).narrow(), attributes=SLOW)


@cache
def slow_lanes(name: str, dtype: str, lanes: int) -> VFunc:
    """(x, y) -> y with the lanes where abs(x) > LIMIT computed afresh."""
    scalar = huge_scalar(name) if dtype == "f64" else _f32_scalar(name)
    if lanes == 1:
        b = Emitter(1)
        x, y = Val(b, "%x", dtype), Val(b, "%y", dtype)
        return b.function(f"ag_vm_{name}_slow_{dtype}x1", [x, y], b.call(scalar, dtype, x), attributes=SLOW)
    t, e = ir_type(dtype, lanes), ir_type(dtype, 1)
    symbol = f"ag_vm_{name}_slow_{dtype}x{lanes}"
    text = f"""define internal {t} @{symbol}({t} %x, {t} %y) {SLOW} {{
entry:
  br label %head
head:
  %i = phi i32 [ 0, %entry ], [ %next, %tail ]
  %acc = phi {t} [ %y, %entry ], [ %new, %tail ]
  %xi = extractelement {t} %x, i32 %i
  %a = call {e} @llvm.fabs.{dtype}({e} %xi)
  %huge = fcmp ogt {e} %a, {hexfloat(LIMIT[dtype], dtype)}
  br i1 %huge, label %redo, label %tail
redo:
  %yi = call {e} @{scalar.symbol}({e} %xi)
  %set = insertelement {t} %acc, {e} %yi, i32 %i
  br label %tail
tail:
  %new = phi {t} [ %acc, %head ], [ %set, %redo ]
  %next = add i32 %i, 1
  %more = icmp ult i32 %next, {lanes}
  br i1 %more, label %head, label %done
done:
  ret {t} %new
}}
"""
    return VFunc(symbol, text, (scalar,), frozenset({f"declare {e} @llvm.fabs.{dtype}({e})"}))


def _full(b: Emitter, name: str, x: Val) -> Val:
    a = b.abs(x)
    n, r, low = reduce_pio2(b, x)
    y = KERNELS[name](b, n, r, low)
    if name != "cos":  # the sum loses the sign of zero
        y = b.select(b.fcmp("olt", a, pick((2.0**-28, 2.0**-13), x)), x, y)
    return b.redo_if_any(b.fcmp("ogt", a, LIMIT[x.ty]), slow_lanes(name, x.ty, b.lanes), x, y)


@cache
def plain(name: str, dtype: str, lanes: int) -> VFunc:
    b = Emitter(lanes)
    x = Val(b, "%x", dtype)
    return b.function(f"ag_vm_{name}_{dtype}x{lanes}", [x], _full(b, name, x))


def sin(b: Emitter, x: Val) -> Val:
    return _full(b, "sin", x)


def cos(b: Emitter, x: Val) -> Val:
    return _full(b, "cos", x)


def tan(b: Emitter, x: Val) -> Val:
    return _full(b, "tan", x)
