"""Hyperbolic functions and the sigmoid.

With x = k ln2 + r:  sinh x = A sinh r + B cosh r  and  cosh x = A cosh r + B sinh r,  A, B = 2**(k-1) +- 2**(-k-1).
Both polynomials are short, nothing cancels, and k = 0 gives the odd series itself: one formula for every argument."""

from __future__ import annotations

from aotgrad_runtime.records import record

from .coeffs import CONST, LOOKUP, POLY
from .emit import Emitter, Val
from .explog import Power, exp_parts, exp_short, expm1_tail, pick, power_of_two, reduce_ln2, scaled
from .power import exp2_short

_EIGHTH = 0x3E000000  # the bits of 1/8


@record(frozen=True)
class Sums:
    """A and B with what their rounding lost (they have more bits than the format once k > mantissa/2), r, cosh r - 1 and sinh r - r."""

    grow: Val
    grow_low: Val
    shrink: Val
    shrink_low: Val
    r: Val
    cosh_r: Val
    sinh_r: Val


def angle_sums(b: Emitter, x: Val, scale: int) -> Sums:
    """For x >= 0; A and B are multiplied by 2**-scale."""
    power, r, c = reduce_ln2(b, x, x.fmt.bias - 1 - scale)
    up = power_of_two(power.bits, x.fmt.mantissa)
    # 2**(-k-1): the exponent fields of the two powers add up to a constant.
    down = (((2 * (x.fmt.bias - 1 - scale)) << x.fmt.mantissa) - up.to_int()).to_float()
    if scale:
        down = b.select(b.fcmp("olt", x, 50.0), down, 0.0)
    z = r * r
    a, d = up + down, up - down
    return Sums(a, down - (a - up), d, (up - d) - down, r, z * b.named_poly("COSH", z), b.fma(r * z, b.named_poly("SINH", z), c))


def sinh_parts(b: Emitter, s: Sums) -> tuple[Val, Val]:
    return _combine(b, s, (s.shrink, s.shrink_low), (s.grow, s.grow_low))


def cosh_parts(b: Emitter, s: Sums) -> tuple[Val, Val]:
    return _combine(b, s, (s.grow, s.grow_low), (s.shrink, s.shrink_low))


def _combine(b: Emitter, s: Sums, first: tuple[Val, Val], second: tuple[Val, Val]) -> tuple[Val, Val]:
    """first cosh r + second sinh r as a leading and a smaller part; first = 0 or abs(first) > abs(second r)."""
    product, error = b.two_prod(second[0], s.r)
    high, low = b.fast_two_sum(first[0], product)
    low = b.fma(second[1], s.r, low + error) + first[1]
    return high, b.fma(first[0], s.cosh_r, b.fma(second[0], s.sinh_r, low))


def divide(b: Emitter, nh: Val, nl: Val, dh: Val, dl: Val, estimate: Val | None = None) -> Val:
    """(nh + nl)/(dh + dl), nearly correctly rounded, with one division. Where nl is not small against nh, ``estimate`` is their sum."""
    inverse = 1.0 / dh
    q = (nh if estimate is None else estimate) * inverse
    return b.fma(b.fma(-q, dh, nh) + b.fma(-q, dl, nl), inverse, q)


def tanh(b: Emitter, x: Val) -> Val:
    """(e - 1)/(e + 1) with e = exp(2 abs(x)) = 2**k (1 + r + tail); numerator and divisor in two parts, nothing lost in either."""
    if b.avx512 and x.ty == "f32":
        return _tanh_pieces(b, x)
    fmt = x.fmt
    a = b.below(b.abs(x), pick((22.0, 10.0), x))
    power, r, c = reduce_ln2(b, a + a, fmt.bias)
    scale = power_of_two(power.bits, fmt.mantissa)
    tail = expm1_tail(b, r, c)
    head, low = b.fast_two_sum(scale, scale * r)
    low = b.fma(scale, tail, low)
    # 2**k (1 + r) is at least 1: k = 0 comes with r >= 0 only.
    (nh, nl), (dh, dl) = b.fast_two_sum(head, b.lift(-1.0, x.ty)), b.fast_two_sum(head, b.lift(1.0, x.ty))
    nl = nl + low
    return b.copysign(divide(b, nh, nl, *b.fast_two_sum(dh, dl + low), nh + nl), x)


def _tanh_pieces(b: Emitter, x: Val) -> Val:
    """float32: two polynomials to a binade, around numbers whose tanh is very near a float32 number; below 1/8 one of x alone. A third of the instructions of the
    quotient, in a third of its latency."""
    a = b.below(b.abs(x), 9.1875)
    first = _EIGHTH - (1 << 22)
    centers, heads, *coeffs = b.lookup(LOOKUP["TANH"], b.at_least_int(a.to_int(), first) >> 22)
    u = a - centers
    p = coeffs[-1]
    for c in coeffs[-2::-1]:
        p = b.fma(p, u, c)
    return b.copysign(b.fma(p, u, heads), x)


def sinh(b: Emitter, x: Val) -> Val:
    a = b.abs(x)
    high, low = sinh_parts(b, angle_sums(b, b.below(a, pick((712.0, 91.0), x)), 3))
    y = b.select(b.fcmp("olt", a, pick((2.0**-28, 2.0**-13), x)), a, 8.0 * (high + low))
    return b.copysign(y, x)


def cosh(b: Emitter, x: Val) -> Val:
    high, low = cosh_parts(b, angle_sums(b, b.below(b.abs(x), pick((712.0, 91.0), x)), 3))
    return 8.0 * (high + low)


def sigmoid(b: Emitter, x: Val) -> Val:
    """With e = exp(-abs(x)) = 2**k (1 + r + tail):  q = 1/(1 + e), or 2**k (q + q (r + tail)) for x < 0. The divisor in two parts; what the quotient lacks is added to
    the tail."""
    a = b.above(-b.abs(x), pick((-746.0, -104.0), x))
    power, r, square, p = exp_short(b, a)
    tail = square * p
    t, one = r + tail, b.lift(1.0, x.ty)
    scale = scaled(b, one, power, b.fcmp("olt", a, pick((-708.0, -87.0), x)))  # 1 + scale is 1 long before
    whole = scale + 1.0
    dh, dl = b.fast_two_sum(whole, b.fma(scale, t, scale - (whole - 1.0)))
    q = 1.0 / dh
    lack = b.fma(-q, dl, b.fma(-q, dh, one))
    negative = b.fcmp("olt", x, 0.0)
    grown = b.select(negative, r + b.fma(lack, 1.0 + t, tail), lack)
    y = b.fma(q, grown, q)
    none = b.fcmp("olt", x, pick((-746.0, -104.0), x))
    shrinks = negative & ~none
    bits = power.bits if b.scales(y) else b.select(shrinks, power.bits, b.lift(2 * x.fmt.bias, power.bits.ty))
    return scaled(b, y, Power(bits, b.select(shrinks, power.k, 0.0)), none)


def erf(b: Emitter, x: Val) -> Val:
    """Below 1 an odd polynomial; above, 1 - erfc(1) exp(u Q(u)) with u = abs(x) - 1."""
    a = b.abs(x)
    z = a * a
    small = b.fma(x, b.named_poly("ERF", z), x)
    u = b.below(a, pick((5.95, 3.9375), x)) - 1.0
    power, high, low = exp_parts(b, u * b.named_poly("ERF_TAIL", u), x.fmt.bias)
    e = (high + low) * power_of_two(power.bits, x.fmt.mantissa)
    large = b.fma(e, -CONST[x.ty]["ERFC_1"], 1.0)
    return b.select(b.fcmp("olt", a, 1.0), small, b.copysign(large, x))


def erfc(b: Emitter, x: Val) -> Val:
    """Below 3/4: 1 - x - x P. Above: exp(-a**2) H(q)/(1 + 2 a), q = (a - 4)/(a + 4), each factor in two parts; below zero 2 - that."""
    if x.ty == "f32":
        return _erfc_wide(b, x)
    a = b.abs(x)
    none = b.fcmp("ogt", a, 27.25)
    a = b.select(none, 1.0, a)
    sh, sl = b.fast_two_sum(b.lift(1.0, x.ty), -x)
    small = sh + b.fma(x, -b.named_poly("ERF", x * x), sl)
    square, error = b.two_prod(a, a)
    power, eh, el = exp_parts(b, -square, 2 * x.fmt.bias, -error)
    q = (a - 4.0) / (a + 4.0)
    head, *rest = POLY["ERFCX"][x.ty]
    hh, hl = b.fast_two_sum(b.lift(head, x.ty), q * b.poly(q, rest))
    nh, ne = b.two_prod(eh, hh)
    twice = a + a
    dh, dl = b.fast_two_sum(twice, b.lift(1.0, x.ty))
    tail = scaled(b, divide(b, nh, b.fma(eh, hl, b.fma(el, hh, ne)), dh, dl), power, none)
    large = b.select(b.fcmp("olt", x, 0.0), 2.0 - tail, tail)
    return b.select(b.fcmp("olt", a, 0.75), small, large)


def _erfc_wide(b: Emitter, x: Val) -> Val:
    """float32 through float64, where plain arithmetic leaves 29 bits to spare."""
    a = b.below(b.abs(x), 10.5).wide()
    scale, p = exp2_short(b, a * a * -CONST["f64"]["LOG2E_1"])
    q = (a - 2.0) / (a + 2.0)
    tail = scale * (p * b.named_poly("ERFCX32", q) / b.fma(a, 2.0, 1.0))
    return b.select(b.fcmp("olt", x, 0.0), 2.0 - tail, tail).narrow()
