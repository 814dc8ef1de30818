"""The gamma function's logarithm and its derivatives, and the inverse of the error function.

Numbers of float32 are computed in float64. Errors against 50 digits are at most a few units in the last place; beside zeros at negative numbers, of the terms there.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

from aotgrad_runtime.dtypes import float16, float32, float64
from aotgrad_runtime.errors import AotgradNotImplementedError, AotgradRuntimeError

from ..opdef import Front, Linearize, OpDef, Sample, Scalar, register
from .common import elementwise_rule, float_samples, vectorised
from .math import _inside, _num, _positive, _unary

__all__: list[str] = []

_LOG_GAMMA = (
    0.42278433509846713, 0.3224670334241132, -0.0673523010531981, 0.020580808427784546, -0.007385551028673986, 0.0028905103307415234, -0.001192753911703261,
    0.0005096695247430425, -0.00022315475845357939, 9.945751278180853e-05, -4.492623673813314e-05, 2.050721277567069e-05, -9.439488275268397e-06,
    4.374866789907488e-06, -2.039215753801366e-06, 9.55141213040742e-07, -4.492469198764566e-07, 2.1207184805554665e-07, -1.0043224823968099e-07,
    4.7698101693639804e-08, -2.2711094608943164e-08, 1.0838659214896955e-08, -5.183475041970047e-09, 2.4836745438024785e-09, -1.1921401405860912e-09,
    5.731367241678862e-10, -2.7595228851242334e-10, 1.330476437424449e-10, -6.4229645638381e-11,
)
"""log gamma(2 + t) / t in powers of t, up to 1/2 from 0: (-1)**k (zeta(k) - 1) / k."""
_PSI = (
    0.9510558760318328, -0.4236274212814606, 0.24054248424078697, -0.14840492305388092, 0.09498872445289039, -0.06192213327548831, 0.040760833940846085,
    -0.026975796659787055, 0.017907248317313294, -0.011908220105959716, 0.007927021796868154, -0.005279937255532708, 0.003518106563802472, -0.0023454947397380833,
    0.0015633696313653504, -0.0010364584817312839, 0.0006909255761282986, -0.00048595039220036254, 0.00032395945401345196, -0.00014480643368061614,
    9.653646261410062e-05, -0.0001782188548855923, 0.00011881232908510335,
)
"""psi(x) over the distance of x from the root, in powers of x - 3/2, for x in [1, 2]: Chebyshev's interpolation, error 4e-18."""
_ROOT = (1.4616321449683622, 9.549995429965697e-17)
"""Where psi is 0, in two parts."""
_STIRLING = (
    0.08333333333333333, -0.002777777777777778, 0.0007936507936507937, -0.0005952380952380953, 0.0008417508417508417, -0.0019175269175269176, 0.00641025641025641,
    -0.029550653594771242, 0.17964437236883057, -1.3924322169059011,
)
"""B(2k) / (2k (2k - 1))."""
_PSI_FAR = (
    0.08333333333333333, -0.008333333333333333, 0.003968253968253968, -0.004166666666666667, 0.007575757575757576, -0.021092796092796094, 0.08333333333333333,
    -0.4432598039215686, 3.0539543302701198, -26.456212121212122, 281.46014492753625,
)
"""B(2k) / 2k."""
_INVERSE = (
    1.501409351110792, 0.2466407662672499, -0.004177346517287056, -0.001253758884835318, 0.00021831297984101024, -4.38034671412375e-06, -3.454779514269784e-06,
    3.4222470899345687e-07, 2.2605977741170975e-08,
)
"""The inverse of erf, over x, in powers of w - 5/2, w = -log(1 - x x) up to 5: error 2e-7."""
_INVERSE_TAIL = (
    4.0599391950841754, 1.0099307284973251, 0.0007724286415170939, -0.0006348670964222589, 0.00022225013976455218, -7.100051749654334e-05, 2.5981373950421902e-05,
    -9.536521989334459e-06, 4.994895297096843e-06, -4.791641657815145e-06, 2.7274675009072053e-06, -3.913772114447976e-07, -2.1997168750148788e-07,
    8.231191174737669e-08, -6.658380508731158e-09,
)
"""The same in powers of sqrt(w) - 4.218..., w from 5: error 2e-8."""
_MIDDLE = 4.2180339887498945


def _poly(k: Any, coefficients: Sequence[float], t: Any) -> Any:
    out = k.const(coefficients[-1], t)
    for c in reversed(coefficients[:-1]):
        out = k.fma(out, t, k.const(c, t))
    return out


def _wide(fn: Callable[..., Any]) -> Scalar:
    """``fn(k, op, x)`` of float64, for float32 too (in which float16 comes)."""
    def lower(k: Any, op: Any, x: Any) -> Any:
        dtype = op.operands[0].type.dtype
        own = float32 if dtype is float16 else dtype
        return k.cast(fn(k, op, k.cast(x, own, float64)), float64, own)

    return Scalar(lower)


def _from_whole(k: Any, x: Any) -> Any:
    """The distance of x from the nearest whole number, exactly."""
    return k.sub(x, k.math("floor", k.add(x, k.const(0.5, x))))


# ---- log gamma --------------------------------------------------------------------------------------------------------------------------

def _lgamma_near(k: Any, x: Any, y: Any) -> tuple[Any, Any, Any]:
    """For y = |x| below 8: the part that is no logarithm, the argument of the logarithm, and its sign."""
    one = k.const(1.0, x)
    small, middle = k.cmp("lt", y, k.const(0.5, x)), k.cmp("lt", y, k.const(1.5, x))
    z, product = y, one
    for _ in range(6):  # down to [3/2, 5/2)
        more = k.cmp("ge", z, k.const(2.5, x))
        z = k.select(more, k.sub(z, one), z)
        product = k.select(more, k.mul(product, z), product)
    t = k.select(small, x, k.select(middle, k.sub(y, one), k.sub(z, k.const(2.0, x))))
    part = k.sub(k.mul(t, _poly(k, _LOG_GAMMA, t)), k.math("log1p", k.select(middle, t, k.const(0.0, x))))
    return part, k.select(small, y, product), k.select(small, k.const(-1.0, x), one)


def _lower_lgamma(k: Any, op: Any, x: Any) -> Any:
    y = k.abs(x)
    far = k.cmp("ge", y, k.const(8.0, x))
    part, inside, sign = _lgamma_near(k, x, y)
    log = k.math("log", k.select(far, y, inside))
    inverse = k.div(k.const(1.0, x), y)
    series = k.fma(inverse, _poly(k, _STIRLING, k.mul(inverse, inverse)), k.const(0.5 * math.log(2 * math.pi) - 0.5, x))
    stirling = k.fma(k.sub(y, k.const(0.5, x)), k.sub(log, k.const(1.0, x)), series)
    out = k.select(far, stirling, k.fma(sign, log, part))
    wave = k.abs(k.math("sin", k.mul(_from_whole(k, y), k.const(math.pi, x))))
    mirrored = k.sub(k.math("log", k.div(k.const(math.pi, x), k.mul(y, wave))), out)
    infinite = k.logical("or", k.cmp("eq", wave, k.const(0.0, x)), k.cmp("eq", y, k.const(math.inf, x)))
    return k.select(k.cmp("le", x, k.const(-0.5, x)), k.select(infinite, k.const(math.inf, x), mirrored), out)


def _lgamma(x: float) -> float:
    if x <= 0 and x == math.floor(x) or math.isinf(x):
        return math.inf
    if x in (1, 2):
        return 0.0
    if x < 0:
        return math.log(math.pi / abs(x * math.sin(math.pi * (x - math.floor(x + 0.5))))) - _lgamma(-x)
    return x if math.isnan(x) else _stirling(x, False)


@functools.cache
def _bernoulli(count: int) -> list[Any]:
    """B(2), B(4), ..."""
    Fraction = importlib.import_module("fractions").Fraction  # only references and polygamma need it
    b = [Fraction(1)]
    for m in range(1, 2 * count + 1):
        b.append(-sum((math.comb(m + 1, j) * b[j] for j in range(m)), Fraction(0)) / (m + 1))
    return b[2::2]


def _stirling(x: float, slope: bool) -> float:
    """log gamma of x > 0, or its derivative, to 25 digits, rounded."""
    decimal = importlib.import_module("decimal")  # as fractions
    Decimal = decimal.Decimal
    with decimal.localcontext() as here:
        here.prec = 40
        z, product, total = Decimal(x), Decimal(1), Decimal(0)
        while z < 25:
            product, total, z = product * z, total + 1 / z, z + 1
        tail = [Decimal(b.numerator) / Decimal(b.denominator) / 2 / k for k, b in enumerate(_bernoulli(12), 1)]
        if slope:
            return float(z.ln() - 1 / (2 * z) - sum(c / z ** (2 * k) for k, c in enumerate(tail, 1)) - total)
        half = Decimal("0.9189385332046727417803297364056176398613974736377834")  # log(2 pi) / 2
        return float((z - Decimal("0.5")) * z.ln() - z + half + sum(c / (2 * k - 1) / z ** (2 * k - 1) for k, c in enumerate(tail, 1)) - product.ln())


# ---- psi and its derivatives ------------------------------------------------------------------------------------------------------------

def _lower_digamma(k: Any, op: Any, x: Any) -> Any:
    zero, one = k.const(0.0, x), k.const(1.0, x)
    negative = k.cmp("lt", x, zero)
    a = k.select(negative, k.sub(one, x), x)
    low = k.cmp("lt", a, one)
    z, top, below = a, zero, one  # what is added, as one fraction
    for _ in range(6):
        more = k.cmp("gt", z, k.const(2.0, x))
        z = k.select(more, k.sub(z, one), z)
        top, below = k.select(more, k.fma(top, z, below), top), k.select(more, k.mul(below, z), below)
    z = k.select(low, k.add(a, one), z)
    root = k.sub(k.sub(z, k.const(_ROOT[0], x)), k.const(_ROOT[1], x))
    near = k.fma(root, _poly(k, _PSI, k.sub(z, k.const(1.5, x))), k.div(k.select(low, k.const(-1.0, x), top), k.select(low, a, below)))
    inverse = k.div(one, a)
    square = k.mul(inverse, inverse)
    far = k.sub(k.sub(k.math("log", a), k.mul(k.const(0.5, x), inverse)), k.mul(square, _poly(k, _PSI_FAR, square)))
    out = k.select(k.cmp("ge", a, k.const(8.0, x)), far, near)
    r = _from_whole(k, x)
    mirrored = k.sub(out, k.div(k.const(math.pi, x), k.math("tan", k.mul(r, k.const(math.pi, x)))))
    return k.select(negative, k.select(k.cmp("eq", r, zero), k.const(math.nan, x), mirrored), out)


def _digamma(x: float) -> float:
    if x == 0:
        return math.copysign(math.inf, -x)
    if not x < math.inf:
        return x
    if x < 0:
        r = x - math.floor(x + 0.5) if x > -math.inf else 0.0
        return _digamma(1 - x) - math.pi / math.tan(math.pi * r) if r else math.nan
    return _stirling(x, True)


def _cotangents(n: int) -> list[int]:
    """The n-th derivative of the cotangent as a polynomial in it, from the lowest power."""
    row = [0, 1]
    for _ in range(n):
        slopes = [i * c for i, c in enumerate(row)][1:]
        row = [-(slopes[i] if i < len(slopes) else 0) - (slopes[i - 2] if 2 <= i < len(slopes) + 2 else 0) for i in range(len(slopes) + 2)]
    return row


def _tail(n: int) -> list[float]:
    """B(2j) (n + 1) (n + 2) ... (n + 2j - 1) / (2j)!: what Euler's and Maclaurin's sum of powers -(n + 1) has besides its first two terms."""
    return [float(b * math.factorial(n + 2 * j - 1) / (math.factorial(n) * math.factorial(2 * j))) for j, b in enumerate(_bernoulli(9), 1)]


def _powers(mul: Callable[[Any, Any], Any], x: Any, n: int) -> Any:
    out = None
    while n:
        if n & 1:
            out = x if out is None else mul(out, x)
        n >>= 1
        x = mul(x, x) if n else x
    return out


def _lower_polygamma(k: Any, op: Any, x: Any) -> Any:
    n, one = op.attrs["n"], k.const(1.0, x)
    negative = k.cmp("lt", x, k.const(0.0, x))
    a, total = k.select(negative, k.sub(one, x), x), None
    for i in range(10 + n):
        term = _powers(k.mul, k.div(one, k.add(a, k.const(float(i), x))), n + 1)
        total = term if total is None else k.add(total, term)
    w = k.div(one, k.add(a, k.const(float(10 + n), x)))
    rest = k.fma(k.mul(w, w), _poly(k, _tail(n), k.mul(w, w)), k.fma(w, k.const(0.5, x), k.const(1.0 / n, x)))
    scale = float((-1) ** (n + 1) * math.factorial(n))
    out = k.mul(k.fma(_powers(k.mul, w, n), rest, total), k.const(scale, x))
    slope = k.div(one, k.math("tan", k.mul(_from_whole(k, x), k.const(math.pi, x))))
    wave = k.mul(_poly(k, [float(c) for c in _cotangents(n)], slope), k.const(-math.pi ** (n + 1), x))
    return k.select(negative, k.add(wave, k.mul(out, k.const(float((-1) ** n), x))), out)


def _polygamma(x: float, n: int) -> float:
    if x == -math.inf:
        return math.nan
    if x < 0:
        c = 1 / math.tan(math.pi * (x - math.floor(x + 0.5)))
        return -math.pi ** (n + 1) * sum(v * c**i for i, v in enumerate(_cotangents(n))) + (-1.0) ** n * _polygamma(1 - x, n)
    m = x + 20 + n
    total = math.fsum(1 / (x + i) ** (n + 1) for i in range(20 + n))
    total += 1 / (n * m**n) + 0.5 / m ** (n + 1) + sum(c / m ** (n + 2 * j) for j, c in enumerate(_tail(n), 1))
    return (-1.0) ** (n + 1) * math.factorial(n) * total


def _polygamma_ref(x: Any, n: int) -> Any:
    def one(v: float) -> float:
        try:
            return _polygamma(v, n)
        except ZeroDivisionError:
            return math.inf if n % 2 else -math.inf if v == 0 else math.nan

    return vectorised(one)(x)


def _polygamma_linearize(b: Any, ins: Any, outs: Any, attrs: Any, active: Any) -> Any:
    slope = b.polygamma(ins[0], n=attrs["n"] + 1)
    return lambda lb, tangents: (lb.lmul(slope, tangents[0]),)


def _polygamma_canon(b: Any, n: Any, x: Any) -> Any:
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        raise AotgradRuntimeError(f"polygamma(n, x) does not support negative n: n must be a whole number from 0 on, not {n!r}")
    if n > 150:
        raise AotgradNotImplementedError(f"polygamma: n is at most 150, beyond which float64 overflows, not {n}")
    return b.digamma(x) if n == 0 else b.polygamma(x, n=n)


# ---- the inverse of erf -----------------------------------------------------------------------------------------------------------------

def _lower_erfinv(k: Any, op: Any, x: Any) -> Any:
    """Polynomials, then Halley's step, which triples the digits, of the smaller of erf and erfc."""
    y, one = k.abs(x), k.const(1.0, x)
    left = k.sub(one, y)
    w = k.neg(k.math("log", k.mul(left, k.add(one, y))))
    middle, far = _poly(k, _INVERSE, k.sub(w, k.const(2.5, x))), _poly(k, _INVERSE_TAIL, k.sub(k.math("sqrt", w), k.const(_MIDDLE, x)))
    v = k.mul(y, k.select(k.cmp("lt", w, k.const(5.0, x)), middle, far))
    lack = k.select(k.cmp("lt", y, k.const(0.5, x)), k.sub(k.math("erf", v), y), k.sub(left, k.math("erfc", v)))
    u = k.div(lack, k.mul(k.const(2 / math.sqrt(math.pi), x), k.math("exp", k.neg(k.mul(v, v)))))
    v = k.sub(v, k.div(u, k.fma(v, u, one)))
    return k.math("copysign", k.select(k.cmp("eq", y, one), k.const(math.inf, x), v), x)


def _erfinv(x: float) -> float:
    y = abs(x)
    if math.isnan(x) or y >= 1:
        return math.copysign(math.inf, x) if y == 1 else math.nan
    v, slope = 0.0 if y < 0.5 else math.sqrt(-math.log(1 - y)), 2 / math.sqrt(math.pi)
    for _ in range(60):
        lack = math.erf(v) - y if y < 0.5 else (1 - y) - math.erfc(v)
        step = lack / (slope * math.exp(-v * v))
        v -= step / (1 + v * step)
        if abs(step) <= 1e-17 * v:
            break
    return math.copysign(v, x)


# ---- the ops ----------------------------------------------------------------------------------------------------------------------------

_unary("lgamma", "Logarithm of |gamma(x)|; inf at 0 and whole numbers below.", vectorised(_lgamma), lambda b, x, y: b.digamma(x), _positive, _wide(_lower_lgamma))
_unary("digamma", "Derivative of lgamma; NaN at whole numbers below 0.", vectorised(_digamma), lambda b, x, y: b.polygamma(x, n=1), _positive, _wide(_lower_digamma))
_unary("erfinv", "The x of which erf(x) is given; inf at 1.", vectorised(_erfinv),
       lambda b, x, y: b.mul(_num(b, x, math.sqrt(math.pi) / 2), b.exp(b.mul(y, y))), _inside, _wide(_lower_erfinv))
register(OpDef(
    "polygamma", "The n-th derivative of digamma; ``n`` is a whole number.", ("x",), elementwise_rule("f"), _polygamma_ref,
    Linearize(_polygamma_linearize), _wide(_lower_polygamma), {"n": 1},
    lambda: (Sample(s.operands, {"n": n}, f"{n} {s.name}") for n in (1, 2) for s in float_samples(0.3, 3.0)()), layouts="elementwise",
    front=Front("polygamma(n, input)", _polygamma_canon, promote="float", tensors=("input",), method=False)))
