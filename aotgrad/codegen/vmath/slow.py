"""Rare paths: scalar functions written out in LLVM IR, and the loop that applies one to the lanes of a vector."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from .coeffs import CONST, TWO_OVER_PI_WORDS
from .emit import Emitter, Val, VFunc, hexfloat, ir_type

SLOW = "noinline cold nounwind memory(none)"

# x = m 2**E with an integer m. Of the bits of 2/pi those before bit E-1 only add multiples of four quadrants; the 192 after them, times m, leave 128 bits of
# which the first two are the quadrant: 2**-137 of a quadrant is lost, and no double comes nearer than 2**-62 to a multiple of pi/2.
_PAYNE_HANEK = """\
define internal { double, double, i64 } @ag_vm_payne_hanek(double %x) ATTRIBUTES {
  %bits = bitcast double %x to i64
  %shifted = lshr i64 %bits, 52
  %e = and i64 %shifted, 2047
  %fraction = and i64 %bits, 4503599627370495
  %m = or i64 %fraction, 4503599627370496
  %offset = sub i64 %e, 1013
  %word = lshr i64 %offset, 6
  %shift = and i64 %offset, 63
  %i0 = add i64 %word, 0
  %p0 = getelementptr inbounds [WORDS x i64], ptr @ag_vm_two_over_pi, i64 0, i64 %i0
  %t0 = load i64, ptr %p0
  %i1 = add i64 %word, 1
  %p1 = getelementptr inbounds [WORDS x i64], ptr @ag_vm_two_over_pi, i64 0, i64 %i1
  %t1 = load i64, ptr %p1
  %i2 = add i64 %word, 2
  %p2 = getelementptr inbounds [WORDS x i64], ptr @ag_vm_two_over_pi, i64 0, i64 %i2
  %t2 = load i64, ptr %p2
  %i3 = add i64 %word, 3
  %p3 = getelementptr inbounds [WORDS x i64], ptr @ag_vm_two_over_pi, i64 0, i64 %i3
  %t3 = load i64, ptr %p3
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
  %l = fmul double %l0, 0x3CA0000000000000
  %rh = fmul double %h, PIO2_1
  %nrh = fneg double %rh
  %re = call double @llvm.fma.f64(double %h, double PIO2_1, double %nrh)
  %r2 = call double @llvm.fma.f64(double %h, double PIO2_2, double %re)
  %rl = call double @llvm.fma.f64(double %l, double PIO2_1, double %r2)
  %negative = icmp slt i64 %bits, 0
  %minus = sub i64 0, %quadrant
  %q = select i1 %negative, i64 %minus, i64 %quadrant
  %o0 = insertvalue { double, double, i64 } poison, double %rh, 0
  %o1 = insertvalue { double, double, i64 } %o0, double %rl, 1
  %o2 = insertvalue { double, double, i64 } %o1, i64 %q, 2
  ret { double, double, i64 } %o2
}
"""

# Integer mantissas, ten bits of the quotient at a time.
_FMOD = """\
define internal double @ag_vm_fmod_long(double %x, double %y) ATTRIBUTES {
entry:
  %xb = bitcast double %x to i64
  %yb = bitcast double %y to i64
  %sign = and i64 %xb, -9223372036854775808
  %xs = lshr i64 %xb, 52
  %ys = lshr i64 %yb, 52
  %xe = and i64 %xs, 2047
  %ye = and i64 %ys, 2047
  %xf = and i64 %xb, 4503599627370495
  %yf = and i64 %yb, 4503599627370495
  %xsub = icmp eq i64 %xe, 0
  %ysub = icmp eq i64 %ye, 0
  %xn = or i64 %xf, 4503599627370496
  %yn = or i64 %yf, 4503599627370496
  %xm = select i1 %xsub, i64 %xf, i64 %xn
  %ym = select i1 %ysub, i64 %yf, i64 %yn
  %xk = select i1 %xsub, i64 1, i64 %xe
  %yk = select i1 %ysub, i64 1, i64 %ye
  %gap = sub i64 %xk, %yk
  %less = icmp slt i64 %gap, 0
  br i1 %less, label %keep, label %start
keep:
  ret double %x
start:
  %r0 = urem i64 %xm, %ym
  br label %head
head:
  %r = phi i64 [ %r0, %start ], [ %rnext, %step ]
  %d = phi i64 [ %gap, %start ], [ %dnext, %step ]
  %more = icmp sgt i64 %d, 0
  br i1 %more, label %step, label %done
step:
  %big = icmp sgt i64 %d, 10
  %by = select i1 %big, i64 10, i64 %d
  %up = shl i64 %r, %by
  %rnext = urem i64 %up, %ym
  %dnext = sub i64 %d, %by
  br label %head
done:
  %rf = sitofp i64 %r to double
  %k2 = add i64 %yk, 971
  %h1 = lshr i64 %k2, 1
  %h2 = sub i64 %k2, %h1
  %s1i = shl i64 %h1, 52
  %s2i = shl i64 %h2, 52
  %s1 = bitcast i64 %s1i to double
  %s2 = bitcast i64 %s2i to double
  %p1 = fmul double %rf, %s1
  %p2 = fmul double %p1, %s2
  %pb = bitcast double %p2 to i64
  %ob = or i64 %pb, %sign
  %out = bitcast i64 %ob to double
  ret double %out
}
"""


@cache
def payne_hanek() -> VFunc:
    """{double, double, i64} (double): x minus a multiple of pi/2 in two parts, and the quadrant, for finite abs(x) >= 2**46."""
    words = ", ".join(f"i64 {word}" for word in TWO_OVER_PI_WORDS)
    size = len(TWO_OVER_PI_WORDS)
    table = VFunc("ag_vm_two_over_pi", f"@ag_vm_two_over_pi = internal unnamed_addr constant [{size} x i64] [{words}]\n")
    text = _PAYNE_HANEK.replace("ATTRIBUTES", SLOW).replace("WORDS", str(size))
    for name in ("PIO2_1", "PIO2_2"):
        text = text.replace(name, hexfloat(CONST["f64"][name], "f64"))
    declares = frozenset({"declare i64 @llvm.fshl.i64(i64, i64, i64)", "declare i128 @llvm.ctlz.i128(i128, i1)",
                          "declare double @llvm.fma.f64(double, double, double)"})
    return VFunc("ag_vm_payne_hanek", text, (table,), declares)


@cache
def fmod_long() -> VFunc:
    """double (double, double) for finite x and finite nonzero y."""
    return VFunc("ag_vm_fmod_long", _FMOD.replace("ATTRIBUTES", SLOW))


def per_lane(name: str, dtype: str, lanes: int, arity: int, scalar: VFunc, rare: Callable[..., Val]) -> VFunc:
    """(args, y) -> y, with scalar(args) in the lanes where the condition rare(emitter, args) holds."""
    b = Emitter(1)
    args, y = [Val(b, f"%x{i}", dtype) for i in range(arity)], Val(b, "%y", dtype)
    one = b.function(f"ag_vm_{name}_redo_{dtype}", [*args, y], b.redo_if_any(rare(b, *args), scalar, args, y), attributes=SLOW)
    if lanes == 1:
        return one
    t, e = ir_type(dtype, lanes), ir_type(dtype, 1)
    names = [*(f"%x{i}" for i in range(arity)), "%y"]
    takes = "\n".join(f"  {n}i = extractelement {t} {n}, i32 %i" for n in names)
    symbol = f"ag_vm_{name}_slow_{dtype}x{lanes}"
    text = f"""define internal {t} @{symbol}({', '.join(f'{t} {n}' for n in names)}) {SLOW} {{
entry:
  br label %loop
loop:
  %i = phi i32 [ 0, %entry ], [ %next, %loop ]
  %acc = phi {t} [ %y, %entry ], [ %new, %loop ]
{takes}
  %r = call {e} @{one.symbol}({', '.join(f'{e} {n}i' for n in names)})
  %new = insertelement {t} %acc, {e} %r, i32 %i
  %next = add i32 %i, 1
  %more = icmp ult i32 %next, {lanes}
  br i1 %more, label %loop, label %done
done:
  ret {t} %new
}}
"""
    return VFunc(symbol, text, (one,))
