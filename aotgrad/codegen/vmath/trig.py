"""Trigonometric functions.

Main path: k = round(x 2/pi), x - k pi/2 by three exact or error-free products. Beyond LIMIT k no longer fits or is itself so far off that r leaves the interval
of the polynomials: such arguments send the vector to a function that is never inlined and replaces just those lanes, so that a lane's value never depends on
its neighbours."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from .coeffs import CONST
from .emit import Emitter, Val, VFunc
from .explog import pick, round_scaled
from .slow import SLOW, payne_hanek, per_lane

Kernel = Callable[[Emitter, Val, Val, Val], Val]
LIMIT = {"f64": 2.0**46, "f32": 2.0**17}


def reduce_pio2(b: Emitter, x: Val) -> tuple[Val, Val, Val]:
    """(quadrant bits, r, low part of r) for abs(x) <= LIMIT."""
    c = CONST[x.ty]
    power = round_scaled(b, x, c["TWO_OVER_PI"], 0)
    n, k = power.bits, power.k
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


@cache
def _huge_f32(name: str) -> VFunc:
    """float (float) through the f64 function."""
    b = Emitter(1)
    x = Val(b, "%x", "f32")
    return b.function(f"ag_vm_{name}_huge_f32", [x], b.call(plain(name, "f64", 1), "f64", x.wide()).narrow(), attributes=SLOW)


def _is_huge(b: Emitter, x: Val) -> Val:
    return b.fcmp("ogt", b.abs(x), LIMIT[x.ty])


@cache
def _slow(name: str, dtype: str, lanes: int) -> VFunc:
    return per_lane(name, dtype, lanes, 1, huge_scalar(name) if dtype == "f64" else _huge_f32(name), _is_huge)


def _full(b: Emitter, name: str, x: Val) -> Val:
    a = b.abs(x)
    n, r, low = reduce_pio2(b, x)
    y = KERNELS[name](b, n, r, low)
    if name != "cos":  # the sum loses the sign of zero
        y = b.select(b.fcmp("olt", a, pick((2.0**-28, 2.0**-13), x)), x, y)
    return b.redo_if_any(b.fcmp("ogt", a, LIMIT[x.ty]), _slow(name, x.ty, b.lanes), [x, y], y)


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
