"""exp, log and their relatives. No libm, no tables: reduction by exact products, a polynomial, and the low parts carried to the end."""

from __future__ import annotations

from aotgrad_runtime.records import record

from .coeffs import CONST
from .emit import Emitter, Val

INF = float("inf")
NAN = float("nan")


def pick(fmt_value: tuple[float, float], x: Val) -> float:
    """The first for f64, the second for f32."""
    return fmt_value[0] if x.ty == "f64" else fmt_value[1]


@record(frozen=True)
class Power:
    """A whole number k as a float, and an integer whose low bits are k + offset."""

    bits: Val
    k: Val


def round_scaled(b: Emitter, x: Val, factor: float, offset: int) -> Power:
    """k = round(x * factor).

    Adding 1.5 * 2**mantissa leaves the rounded value in the low bits: no conversion to integers, which AVX2 lacks for f64."""
    magic = x.fmt.magic + offset
    shifted = b.fma(x, factor, magic)
    return Power(shifted.to_int(), shifted - magic)


def reduce_ln2(b: Emitter, x: Val, offset: int) -> tuple[Power, Val, Val]:
    """(k, r, c) with x = k ln2 + r + c, abs(r) <= ln2/2, c far below the last bit of r."""
    c = CONST[x.ty]
    power = round_scaled(b, x, c["INV_LN2"], offset)
    high = b.fma(power.k, -c["LN2_CUT"], x)
    r = b.fma(power.k, -c["LN2_REST"], high)
    return power, r, b.fma(power.k, -c["LN2_REST"], high - r)


def exp_parts(b: Emitter, x: Val, offset: int, low: Val | None = None) -> tuple[Power, Val, Val]:
    """(k, high, low) with exp(x + low) = 2**k (high + low)."""
    power, r, c = reduce_ln2(b, x, offset)
    if low is not None:
        r, c = b.fast_two_sum(r, c + low)
    high = 1.0 + r
    tail = b.fma(r * r, b.named_poly("EXP", r), c)
    return power, high, (r - (high - 1.0)) + tail


def vanishing(b: Emitter, x: Val, least: float) -> tuple[Val, Val]:
    """(x, whether a lane lies below ``least``, where a function is 0). A result that underflows costs a processor 150 cycles, so those lanes must not compute theirs:
    ``scaled`` leaves them out where its instruction can, else x is 0 there."""
    none = b.fcmp("olt", x, least)
    return x if b.scales(x) else b.select(none, 0.0, x), none


def exp_short(b: Emitter, x: Val) -> tuple[Power, Val, Val, Val]:
    """(k with an offset of twice the bias, r, r**2, p) with exp(x) = 2**k (1 + (r + r**2 p)). Without the rest of r: an eighth of the last place of 1 at most."""
    c = CONST[x.ty]
    x = b.below(x, pick((710.0, 89.0), x))
    power = round_scaled(b, x, c["INV_LN2"], 2 * x.fmt.bias)
    r = b.fma(power.k, -c["LN2_REST"], b.fma(power.k, -c["LN2_CUT"], x))
    return power, r, r * r, b.named_poly("EXP", r)


def power_of_two(bits: Val, mantissa: int) -> Val:
    """2**(n - bias) from an integer whose low bits are n."""
    return (bits << mantissa).to_float()


def scaled(b: Emitter, y: Val, power: Power, none: Val | None = None) -> Val:
    """y * 2**k, rounded once, the bits with an offset of twice the bias; 0 where ``none`` holds. In two halves where no instruction does it: overflow and subnormal
    results come out right."""
    if b.scales(y):
        out = b.scalef(y, power.k)
    else:
        half = power.bits >> 1
        out = y * power_of_two(half, y.fmt.mantissa) * power_of_two(power.bits - half, y.fmt.mantissa)
    return out if none is None else b.select(none, 0.0, out)


def exp(b: Emitter, x: Val) -> Val:
    x, none = vanishing(b, x, pick((-746.0, -104.0), x))
    if x.ty == "f32":
        power, r, square, p = exp_short(b, x)
        return scaled(b, 1.0 + b.fma(square, p, r), power, none)
    power, high, low = exp_parts(b, b.below(x, 710.0), 2 * x.fmt.bias)
    return scaled(b, high + low, power, none)


def exp2_parts(b: Emitter, x: Val, offset: int, low: Val | None = None) -> tuple[Power, Val, Val]:
    """(k, high, low) with 2**(x + low) = 2**k (high + low)."""
    c = CONST[x.ty]
    magic = x.fmt.magic + offset
    shifted = x + magic
    k = shifted - magic
    r = x - k
    if low is not None:
        r, low = b.fast_two_sum(r, low)
    u, ue = b.two_prod(r, c["LN2_1"])
    rest = b.fma(r, c["LN2_2"], ue)
    if low is not None:
        rest = b.fma(low, c["LN2_1"], rest)
    high = 1.0 + u
    return Power(shifted.to_int(), k), high, (u - (high - 1.0)) + b.fma(r * r, b.named_poly("EXP2", r), rest)


def exp2(b: Emitter, x: Val) -> Val:
    x, none = vanishing(b, x, pick((-1077.0, -151.0), x))
    power, high, low = exp2_parts(b, b.below(x, pick((1025.0, 129.0), x)), 2 * x.fmt.bias)
    return scaled(b, high + low, power, none)


def expm1_tail(b: Emitter, r: Val, c: Val) -> Val:
    """exp(r + c) - 1 - r; the square is rounded once, with the rest."""
    return b.fma(0.5 * r, r, b.fma(r * r * r, b.named_poly("EXPM1", r), c))


def expm1(b: Emitter, x: Val) -> Val:
    """2 [(2**(k-1) - 1/2) + 2**(k-1) r + 2**(k-1) (r**2/2 + r**3 q + c)]: halved, so that k = 1024 does not overflow early."""
    clamped = b.below(b.above(x, pick((-50.0, -25.0), x)), pick((710.0, 89.0), x))
    power, r, c = reduce_ln2(b, clamped, x.fmt.bias - 1)
    scale = power_of_two(power.bits, x.fmt.mantissa)
    base = scale - 0.5
    high, low = b.fast_two_sum(base, scale * r)
    low = low + ((scale - base) - 0.5)  # where 2**(k-1) is so large that the subtraction rounds
    y = 2.0 * (high + b.fma(scale, expm1_tail(b, r, c), low))
    return b.select(b.fcmp("olt", b.abs(x), pick((2.0**-54, 2.0**-25), x)), x, y)


def log_split(b: Emitter, x: Val, *, subnormal: bool = True) -> tuple[Val, Val, Val]:
    """(k as a float, k in the exponent field, m - 1) with x = 2**k m, m in [sqrt(1/2), sqrt(2)), x positive and finite."""
    fmt = x.fmt
    tiny = 2.0 ** (1 - fmt.bias)
    bias: Val | float = 2.0**fmt.mantissa + fmt.bias + 1
    if subnormal:
        small = b.fcmp("olt", x, tiny)
        bias = b.select(small, b.lift(bias + fmt.mantissa, x.ty), bias)
        x = b.select(small, x * 2.0**fmt.mantissa, x)
    bits = x.to_int()
    shifted = bits - b.sqrt_half_bits(x.ty)
    field = shifted & (-1 << fmt.mantissa)
    integer = (shifted + ((fmt.bias + 1) << fmt.mantissa)) >> fmt.mantissa
    # The integer is put below the mantissa of 2**mantissa: int to float without a conversion instruction.
    k = (integer | ((fmt.bias + fmt.mantissa) << fmt.mantissa)).to_float() - bias
    return k, field, (bits - field).to_float() - 1.0


def log_edges(b: Emitter, x: Val, y: Val) -> Val:
    """inf and NaN to themselves, zeros to -inf, negatives to NaN."""
    finite = b.select(b.fcmp("olt", x, INF), y, x)
    return b.select(b.fcmp("ogt", x, 0.0), finite, b.select(b.fcmp("oeq", x, 0.0), b.lift(-INF, x.ty), NAN))


def log_series(b: Emitter, f: Val) -> tuple[Val, Val, Val]:
    """(s, f**2/2, s (f**2/2 + R)) with log(1 + f) = f - (f**2/2 - the last), s = f/(2 + f)."""
    half_square = 0.5 * f * f
    s = f / (2.0 + f)
    z = s * s
    return s, half_square, s * b.fma(z, b.named_poly("LOG", z), half_square)


def log(b: Emitter, x: Val) -> Val:
    c = CONST[x.ty]
    k, _, f = log_split(b, x)
    _, half_square, tail = log_series(b, f)
    y = b.fma(k, c["LN2_CUT"], f - (half_square - b.fma(k, c["LN2_REST"], tail)))
    return log_edges(b, x, y)


def log1p(b: Emitter, x: Val, low: Val | None = None) -> Val:
    """log(1 + x + low) = log of u = 1 + x, with d/u added, d the rounding error of u (and low);
    where u is within [sqrt(1/2), sqrt(2)) x itself is the argument of the series. What is near 0 is its own logarithm: squares of it would underflow."""
    c = CONST[x.ty]
    given, tiny = x, b.fcmp("olt", b.abs(x), pick((2.0**-100, 2.0**-40), x))
    x = b.select(tiny, 1.0, x) if low is None else x
    u = 1.0 + x
    k, field, f = log_split(b, u, subnormal=False)
    whole = b.icmp("eq", field, 0)
    f = b.select(whole, x, f)
    s, half_square, tail = log_series(b, f)
    # d/u = d 2**-k / (1 + f) and 1/(1 + f) = (1 - s)/(1 + s); beyond 2**60 d cannot matter and 2**-k may not exist.
    used, d = b.fcmp("olt", x, 2.0**60), x - (u - 1.0)
    if low is None:
        used = used & ~whole
    else:
        d = b.select(whole, 0.0, d) + low
    d = b.select(used, d * (x.fmt.one - field).to_float(), 0.0)
    g = 1.0 - s
    tail = b.fma(d, g * b.fma(s, s, g), tail)
    y = b.copysign(log_edges(b, u, b.fma(k, c["LN2_CUT"], f - (half_square - b.fma(k, c["LN2_REST"], tail)))), x)
    return y if low is not None else b.select(tiny, given, y)


def log_high_low(b: Emitter, f: Val) -> tuple[Val, Val]:
    """log(1 + f) as high + low, high = f - f**2/2 rounded, about eight bits more than the format has."""
    s, half_square, tail = log_series(b, f)
    high = f - half_square
    # f**2/2 is not exact: its rounding error belongs to the low part.
    lost = b.fma(0.5 * f, f, -half_square)
    return high, ((f - high) - half_square) - lost + tail


def log_base(b: Emitter, x: Val, factor: tuple[float, float], unit: tuple[float, float]) -> Val:
    """(k ln2 + log(1 + f)) * factor; unit = the logarithm of 2 as an exact product part and a rest."""
    k, _, f = log_split(b, x)
    high, low = log_high_low(b, f)
    p, pe = b.two_prod(high, factor[0])
    rest = b.fma(low, factor[0], b.fma(high, factor[1], pe))
    base = k * unit[0]
    if unit[1]:
        rest = b.fma(k, unit[1], rest)
    total, lost = b.two_sum(base, p)
    return log_edges(b, x, total + (lost + rest))


def log2(b: Emitter, x: Val) -> Val:
    c = CONST[x.ty]
    return log_base(b, x, (c["LOG2E_1"], c["LOG2E_2"]), (1.0, 0.0))


def log10(b: Emitter, x: Val) -> Val:
    c = CONST[x.ty]
    return log_base(b, x, (c["LOG10E_1"], c["LOG10E_2"]), (c["LOG10_2_CUT"], c["LOG10_2_REST"]))


def softplus(b: Emitter, x: Val) -> Val:
    """log(1 + exp(x)) = max(x, 0) + log1p(exp(-abs(x)))."""
    y = log1p(b, exp(b, -b.abs(x)))
    return b.select(b.fcmp("ogt", x, 0.0), x, 0.0) + y


def asinh(b: Emitter, x: Val) -> Val:
    """log1p(a + a**2/(1 + sqrt(a**2 + 1))), and log(2 a) where a**2 would overflow."""
    a = b.abs(x)
    square = a * a
    return b.copysign(_log1p_sum(b, a, *b.fast_two_sum(a, square / (1.0 + b.sqrt(square + 1.0)))), x)


def acosh(b: Emitter, x: Val) -> Val:
    """log1p(t + sqrt(t (2 + t))) with t = x - 1."""
    t = b.select(b.fcmp("olt", x, 1.0), b.lift(NAN, x.ty), x - 1.0)
    return _log1p_sum(b, x, *b.fast_two_sum(b.sqrt(b.fma(t, t, t + t)), t))


def _log1p_sum(b: Emitter, a: Val, high: Val, low: Val) -> Val:
    """log1p(high + low), or log(2 a) for a large a."""
    big = b.fcmp("ogt", a, pick((2.0**60, 2.0**30), a))
    y = log1p(b, b.select(big, a, high), b.select(big, 0.0, low))
    return y + b.select(big, b.lift(CONST[a.ty]["LN2_1"], a.ty), 0.0)


def atanh(b: Emitter, x: Val) -> Val:
    """log1p(2 a/(1 - a))/2, the quotient in two parts."""
    a = b.abs(x)
    dh, dl = b.fast_two_sum(b.lift(1.0, x.ty), -a)
    inverse = 1.0 / dh
    n = a + a
    q = n * inverse
    low = b.fma(-q, dl, b.fma(-q, dh, n)) * inverse
    y = 0.5 * log1p(b, q, low)
    tiny = b.fcmp("olt", a, pick((2.0**-28, 2.0**-14), x))
    return b.copysign(b.select(tiny, a, b.select(b.fcmp("oeq", a, 1.0), INF, y)), x)
