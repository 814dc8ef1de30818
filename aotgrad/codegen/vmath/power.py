"""pow with the whole table of C99, and fmod."""

from __future__ import annotations

from functools import cache

from .coeffs import CONST
from .emit import Emitter, Val, VFunc, hexfloat, ir_type
from .explog import INF, NAN, exp2_parts, log_split, power_of_two, scale_twice

SLOW = "noinline cold nounwind memory(none)"


def exp2_short(b: Emitter, p: Val) -> tuple[Val, Val]:
    """(2**k, 2**r) in f64 with k + r = p, good for float32 results; abs(p) < 1000."""
    shifted = p + (p.fmt.magic + p.fmt.bias)
    r = p - (shifted - (p.fmt.magic + p.fmt.bias))
    return power_of_two(shifted.to_int(), p.fmt.mantissa), b.named_poly("POW32_EXP", r)


def log2_parts(b: Emitter, a: Val) -> tuple[Val, Val]:
    """log2 of a positive finite a in two parts, relative error about 2**-66.

    log2(m) = s (c0 + z (c1 + z T(z))), s = (m - 1)/(m + 1), z = s**2: only T is in single precision."""
    c = CONST[a.ty]
    k, _, f = log_split(b, a)
    dh, dl = b.fast_two_sum(b.lift(2.0, a.ty), f)
    inverse = 1.0 / dh
    sh = f * inverse
    sl = inverse * b.fma(-sh, dl, b.fma(-sh, dh, f))
    zh, ze = b.two_prod(sh, sh)
    zl = b.fma(sh + sh, sl, ze)
    ah, al = b.fast_two_sum(b.lift(c["TWO_3LN2_1"], a.ty), zh * b.named_poly("POW_LOG", zh))
    al = al + c["TWO_3LN2_2"]
    bh, be = b.two_prod(zh, ah)
    gh, gl = b.fast_two_sum(b.lift(c["TWO_LN2_1"], a.ty), bh)
    gl = gl + (b.fma(zh, al, b.fma(zl, ah, be)) + c["TWO_LN2_2"])
    lh, le = b.two_prod(sh, gh)
    high, low = b.fast_two_sum(k, lh)
    return b.fast_two_sum(high, low + b.fma(sh, gl, b.fma(sl, gh, le)))


def exponent(b: Emitter, a: Val, y: Val, log_a: Val) -> Val:
    """y log2(a), the first part: the logarithms of 0, inf and NaN put right."""
    return y * b.select(b.fcmp("oeq", a, 0.0), b.lift(-INF, a.ty), b.select(b.fcmp("olt", a, INF), log_a, a))


def signs(b: Emitter, x: Val, y: Val, r: Val) -> Val:
    """What depends on the sign of x and on whether y is an odd integer, and the ones."""
    a = b.abs(x)
    half = y * 0.5
    whole = b.fcmp("oeq", b.intrinsic("trunc", y), y)
    odd = whole & b.fcmp("une", b.intrinsic("trunc", half), half)
    r = b.select(odd & b.icmp("slt", x.to_int(), 0), -r, r)
    r = b.select(b.fcmp("olt", x, 0.0) & b.fcmp("olt", a, INF) & ~whole & b.fcmp("ord", y, y), b.lift(NAN, x.ty), r)
    one = b.fcmp("oeq", x, 1.0) | b.fcmp("oeq", y, 0.0) | (b.fcmp("oeq", x, -1.0) & b.fcmp("oeq", b.abs(y), INF))
    return b.select(one, b.lift(1.0, x.ty), r)


def pow_(b: Emitter, x: Val, y: Val) -> Val:
    if x.ty == "f32":
        return _pow_wide(b, x, y)
    a = b.abs(x)
    high, low = log2_parts(b, a)
    p = exponent(b, a, y, high)
    rest = b.fma(y, low, b.fma(y, high, -p))
    rest = b.select(b.fcmp("olt", b.abs(p), 1100.0), rest, 0.0)
    bits, rh, rl = exp2_parts(b, b.below(b.above(p, -1100.0), 1100.0), 2 * x.fmt.bias, rest)
    return signs(b, x, y, scale_twice(b, rh + rl, bits))


def _pow_wide(b: Emitter, x: Val, y: Val) -> Val:
    """float32 in float64: neither the logarithm nor the exponent needs a second part."""
    a = b.abs(x).wide()
    k, _, f = log_split(b, a, subnormal=False)
    s = f / (2.0 + f)
    p = exponent(b, a, y.wide(), b.fma(s, b.named_poly("POW32_LOG", s * s), k))
    scale, power = exp2_short(b, b.below(b.above(p, -200.0), 200.0))
    return signs(b, x, y, (scale * power).narrow())


def fmod(b: Emitter, x: Val, y: Val) -> Val:
    """The exact remainder with the sign of x. One step does it while the quotient fits the mantissa; lanes with a larger one are done by long division."""
    ax, ay = b.abs(x), b.abs(y)
    quotient = ax / ay
    r = b.fma(-b.intrinsic("trunc", quotient), ay, ax)
    # The rounded quotient may be one too large, never too small.
    r = b.select(b.fcmp("olt", r, 0.0), r + ay, r)
    finite = b.fcmp("olt", ax, INF)
    r = b.select(finite & b.fcmp("oeq", ay, INF), ax, r)
    r = b.copysign(r, x)
    return b.redo_if_any(b.fcmp("oge", quotient, 2.0**x.fmt.mantissa) & finite & b.fcmp("ogt", ay, 0.0), fmod_lanes(x.ty, b.lanes), x, y, r)


@cache
def fmod_scalar() -> VFunc:
    """double (double, double) for finite x and finite nonzero y: integer mantissas, ten bits of the quotient at a time."""
    text = f"""define internal double @ag_vm_fmod_long(double %x, double %y) {SLOW} {{
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
}}
"""
    return VFunc("ag_vm_fmod_long", text)


@cache
def fmod_lanes(dtype: str, lanes: int) -> VFunc:
    """(x, y, r) -> r with the lanes done afresh whose quotient is too long."""
    scalar = fmod_scalar()
    t, e = ir_type(dtype, lanes), ir_type(dtype, 1)
    symbol = f"ag_vm_fmod_slow_{dtype}x{lanes}"
    if dtype == "f64":
        call = f"  %ri = call double @{scalar.symbol}(double %xi, double %yi)"
    else:
        call = f"""  %xw = fpext float %xi to double
  %yw = fpext float %yi to double
  %rw = call double @{scalar.symbol}(double %xw, double %yw)
  %ri = fptrunc double %rw to float"""
    take, put = ("extractelement", "insertelement")
    if lanes == 1:
        text = f"define internal {t} @{symbol}({t} %xi, {t} %yi, {t} %r) {SLOW} {{\n{call}\n  ret {t} %ri\n}}\n"
        return VFunc(symbol, text, (scalar,))
    text = f"""define internal {t} @{symbol}({t} %x, {t} %y, {t} %r) {SLOW} {{
entry:
  br label %head
head:
  %i = phi i32 [ 0, %entry ], [ %next, %tail ]
  %acc = phi {t} [ %r, %entry ], [ %new, %tail ]
  %xi = {take} {t} %x, i32 %i
  %yi = {take} {t} %y, i32 %i
  %ax = call {e} @llvm.fabs.{dtype}({e} %xi)
  %ay = call {e} @llvm.fabs.{dtype}({e} %yi)
  %finite = fcmp olt {e} %ax, {hexfloat(INF, dtype)}
  %some = fcmp ogt {e} %ay, {hexfloat(0.0, dtype)}
  %bounded = fcmp olt {e} %ay, {hexfloat(INF, dtype)}
  %f1 = and i1 %finite, %some
  %f2 = and i1 %f1, %bounded
  br i1 %f2, label %redo, label %tail
redo:
{call}
  %set = {put} {t} %acc, {e} %ri, i32 %i
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
