"""Inverse trigonometric functions: one polynomial each, and sums with pi/2 in two parts."""

from __future__ import annotations

from .coeffs import CONST
from .emit import Emitter, Val


def shifted(b: Emitter, base: Val, base_low: Val, head: Val, tail: Val) -> Val:
    """base + head + tail with base = 0 or larger than head, rounded nearly once."""
    high, low = b.fast_two_sum(base, head)
    return high + (low + (tail + base_low))


def multiples(b: Emitter, x: Val, half: Val, whole: Val) -> tuple[Val, Val]:
    """pi/2 in two parts where ``half``, pi where ``whole`` (and not half), else 0."""
    p1, p2 = CONST[x.ty]["PIO2_1"], CONST[x.ty]["PIO2_2"]
    return (b.select(half, b.lift(p1, x.ty), b.select(whole, b.lift(2 * p1, x.ty), 0.0)),
            b.select(half, b.lift(p2, x.ty), b.select(whole, b.lift(2 * p2, x.ty), 0.0)))


def flip(b: Emitter, condition: Val, y: Val) -> Val:
    """-y where the condition holds."""
    return b.select(condition, -y, y)


def atan(b: Emitter, x: Val) -> Val:
    a = b.abs(x)
    far = b.fcmp("ogt", a, 1.0)
    t = b.select(far, b.lift(-1.0, x.ty), a) / b.select(far, a, 1.0)
    z = t * t
    c = CONST[x.ty]
    base, low = b.select(far, b.lift(c["PIO2_1"], x.ty), 0.0), b.select(far, b.lift(c["PIO2_2"], x.ty), 0.0)
    return b.copysign(shifted(b, base, low, t, t * z * b.named_poly("ATAN", z)), x)


def atan2(b: Emitter, y: Val, x: Val) -> Val:
    """atan2(y, x): the first argument is y, as in C."""
    ay, ax = b.abs(y), b.abs(x)
    steep = b.fcmp("ogt", ay, ax)
    n, d = b.select(steep, ax, ay), b.select(steep, ay, ax)
    # Both infinite count as equal, both zero as zero.
    t = b.select(b.fcmp("oeq", n, d), b.lift(1.0, x.ty), n / d)
    t = b.select(b.fcmp("oeq", d, 0.0), b.lift(0.0, x.ty), t)
    left = b.icmp("slt", x.to_int(), 0)
    t = flip(b, steep ^ left, t)
    z = t * t
    base, low = multiples(b, x, steep, left)
    angle = b.copysign(shifted(b, base, low, t, t * z * b.named_poly("ATAN", z)), y)
    return b.select(b.fcmp("uno", x, y), x + y, angle)


def asin(b: Emitter, x: Val) -> Val:
    """Above 1/2: pi/2 - 2 asin(sqrt((1 - a)/2)). The square root makes abs(x) > 1 NaN."""
    a = b.abs(x)
    far = b.fcmp("ogt", a, 0.5)
    z = b.select(far, b.fma(a, -0.5, 0.5), a * a)
    s = b.select(far, -2.0 * b.sqrt(z), a)
    c = CONST[x.ty]
    base, low = b.select(far, b.lift(c["PIO2_1"], x.ty), 0.0), b.select(far, b.lift(c["PIO2_2"], x.ty), 0.0)
    return b.copysign(shifted(b, base, low, s, s * z * b.named_poly("ASIN", z)), x)


def acos(b: Emitter, x: Val) -> Val:
    a = b.abs(x)
    near = b.fcmp("ole", a, 0.5)
    z = b.select(near, a * a, b.fma(a, -0.5, 0.5))
    left = b.fcmp("olt", x, 0.0)
    root = 2.0 * b.sqrt(z)
    s = b.select(near, -x, flip(b, left, root))
    base, low = multiples(b, x, near, left)
    return shifted(b, base, low, s, s * z * b.named_poly("ASIN", z))
