"""pow with the whole table of C99, cbrt, hypot and fmod."""

from __future__ import annotations

from functools import cache

from .coeffs import CONST
from .emit import Emitter, Val, VFunc
from .explog import INF, NAN, exp2_parts, log_split, pick, power_of_two, scaled, vanishing
from .slow import SLOW, fmod_long, per_lane


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
    p, none = vanishing(b, p, -1077.0)
    power, rh, rl = exp2_parts(b, b.below(p, 1100.0), 2 * x.fmt.bias, rest)
    return signs(b, x, y, scaled(b, rh + rl, power, none))


def _pow_wide(b: Emitter, x: Val, y: Val) -> Val:
    """float32 in float64: neither the logarithm nor the exponent needs a second part."""
    a = b.abs(x).wide()
    k, _, f = log_split(b, a, subnormal=False)
    s = f / (2.0 + f)
    p = exponent(b, a, y.wide(), b.fma(s, b.named_poly("POW32_LOG", s * s), k))
    scale, power = exp2_short(b, b.below(b.above(p, -200.0), 200.0))
    return signs(b, x, y, (scale * power).narrow())


def cbrt(b: Emitter, x: Val) -> Val:
    """A polynomial good to half the bits, then one Newton step with t**3 in two parts; k = 3 q + r is split off first."""
    a = b.abs(x)
    k, _, f = log_split(b, a)
    magic = x.fmt.magic + x.fmt.bias
    third = b.fma(k, pick((1 / 3, 0.3333333432674408), x), magic)
    r = b.fma(third - magic, -3.0, k)
    low, high = b.fcmp("olt", r, 0.0), b.fcmp("ogt", r, 0.0)
    root = CONST[x.ty]["CBRT2"]
    t = b.named_poly("CBRT", f) * b.select(low, b.lift(CONST[x.ty]["CBRT_HALF"], x.ty), b.select(high, b.lift(root, x.ty), 1.0))
    m = (1.0 + f) * b.select(low, b.lift(0.5, x.ty), b.select(high, b.lift(2.0, x.ty), 1.0))
    s, se = b.two_prod(t, t)
    p, pe = b.two_prod(s, t)
    error = (m - p) - b.fma(se, t, pe)
    y = b.fma(error, t / (3.0 * m), t) * power_of_two(third.to_int(), x.fmt.mantissa)
    usual = b.fcmp("ogt", a, 0.0) & b.fcmp("olt", a, INF)
    return b.select(usual, b.copysign(y, x), x)


def hypot(b: Emitter, x: Val, y: Val) -> Val:
    """sqrt(x**2 + y**2) without overflow or underflow on the way; infinite where either is."""
    ax, ay = b.abs(x), b.abs(y)
    infinite = b.fcmp("oeq", ax, INF) | b.fcmp("oeq", ay, INF)
    if x.ty == "f32":
        wx, wy = x.wide(), y.wide()
        r = b.sqrt(b.fma(wx, wx, wy * wy)).narrow()
    else:
        big = b.select(b.fcmp("ogt", ax, ay), ax, ay)
        huge, small = b.fcmp("ogt", big, 2.0**500), b.fcmp("olt", big, 2.0**-450)
        down = b.select(huge, b.lift(2.0**-600, x.ty), b.select(small, b.lift(2.0**600, x.ty), 1.0))
        up = b.select(huge, b.lift(2.0**600, x.ty), b.select(small, b.lift(2.0**-600, x.ty), 1.0))
        sx, sy = ax * down, ay * down
        r = b.sqrt(b.fma(sx, sx, sy * sy)) * up
    return b.select(infinite, b.lift(INF, x.ty), r)


def fmod(b: Emitter, x: Val, y: Val) -> Val:
    """The exact remainder with the sign of x. One step does it while the quotient fits the mantissa; lanes with a larger one are done by long division."""
    ax, ay = b.abs(x), b.abs(y)
    quotient = ax / ay
    r = b.fma(-b.intrinsic("trunc", quotient), ay, ax)
    # The rounded quotient may be one too large, never too small.
    r = b.select(b.fcmp("olt", r, 0.0), r + ay, r)
    r = b.select(b.fcmp("olt", ax, INF) & b.fcmp("oeq", ay, INF), ax, r)
    r = b.copysign(r, x)
    return b.redo_if_any(_long_quotient(b, x, y), _fmod_slow(x.ty, b.lanes), [x, y, r], r)


def _long_quotient(b: Emitter, x: Val, y: Val) -> Val:
    ax, ay = b.abs(x), b.abs(y)
    return b.fcmp("oge", ax / ay, 2.0**x.fmt.mantissa) & b.fcmp("olt", ax, INF) & b.fcmp("ogt", ay, 0.0)


@cache
def _fmod_slow(dtype: str, lanes: int) -> VFunc:
    scalar = fmod_long()
    if dtype == "f32":
        b = Emitter(1)
        x, y = Val(b, "%x", "f32"), Val(b, "%y", "f32")
        scalar = b.function("ag_vm_fmod_long_f32", [x, y], b.call(scalar, "f64", x.wide(), y.wide()).narrow(), attributes=SLOW)
    return per_lane("fmod", dtype, lanes, 2, scalar, _long_quotient)
