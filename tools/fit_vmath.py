"""Fit the polynomials of aotgrad/codegen/vmath and write its coeffs.py.

Run offline, only when a polynomial changes:  python tools/fit_vmath.py [--check]
Each polynomial is a weighted minimax fit (Remez exchange in mpmath). Coefficients are rounded from the lowest degree upwards and the rest is fitted again
after each rounding, so that the rounding of the leading coefficients does not enter the error. The weight turns the error of the polynomial into the relative
error of the function it serves; the figure printed and kept in the comment is that error in units of the format's 2**-p.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from mpmath import mp, mpf

mp.dps = 110
Fn = Callable[[mpf], mpf]
OUT = Path(__file__).resolve().parent.parent / "aotgrad" / "codegen" / "vmath" / "coeffs.py"
EPS = {"f64": mpf(2) ** -53, "f32": mpf(2) ** -24}


def rounded(x: mpf, dtype: str) -> float:
    """The nearest number of the format. mpf to float32 goes through f64; the double rounding is harmless, the fit follows."""
    return float(x) if dtype == "f64" else float(np.float32(float(x)))


def chebyshev(lo: mpf, hi: mpf, n: int) -> list[mpf]:
    return [(lo + hi) / 2 - (hi - lo) / 2 * mp.cos(mp.pi * (2 * i + 1) / (2 * n)) for i in range(n)]


def evaluate(coeffs: list[mpf], x: mpf) -> mpf:
    acc = mpf(0)
    for c in reversed(coeffs):
        acc = acc * x + c
    return acc


def extremes(grid: list[mpf], errors: list[mpf], n: int) -> list[int] | None:
    """Indices of n alternating extremes of the weighted error, or None if there are fewer."""
    picks: list[int] = []
    for i, e in enumerate(errors):
        if picks and (e > 0) == (errors[picks[-1]] > 0):
            if abs(e) > abs(errors[picks[-1]]):
                picks[-1] = i
        else:
            picks.append(i)
    while len(picks) > n:
        picks.pop(0 if abs(errors[picks[0]]) < abs(errors[picks[-1]]) else -1)
    return picks if len(picks) == n else None


def remez(grid: list[mpf], f: list[mpf], w: list[mpf], degree: int) -> tuple[list[mpf], mpf]:
    """Weighted minimax polynomial of f on the grid and its largest weighted error. Points of weight zero are left out by the caller."""
    n = degree + 2
    ref = sorted({round((len(grid) - 1) * (1 - np.cos(np.pi * i / (n - 1))) / 2) for i in range(n)})
    best: tuple[list[mpf], mpf] = ([], mpf("inf"))
    for _ in range(30):
        rows = [[grid[i] ** j for j in range(degree + 1)] + [(-1) ** k / w[i]] for k, i in enumerate(ref)]
        solution = mp.lu_solve(mp.matrix(rows), mp.matrix([f[i] for i in ref]))
        coeffs = [solution[j] for j in range(degree + 1)]
        errors = [(f[i] - evaluate(coeffs, x)) * w[i] for i, x in enumerate(grid)]
        worst = max(abs(e) for e in errors)
        if worst < best[1]:
            best = (coeffs, worst)
        if worst < abs(solution[degree + 1]) * mpf("1.02"):
            break
        nxt = extremes(grid, errors, n)
        if nxt is None:
            break
        ref = nxt
    return best


def fit(f: Fn, lo: float | mpf, hi: float | mpf, weight: Fn, degree: int, dtype: str) -> tuple[list[float], mpf]:
    grid = chebyshev(mpf(lo), mpf(hi), 30 * (degree + 2))
    values = [f(x) for x in grid]
    weights = [abs(weight(x)) for x in grid]
    out: list[float] = []
    coeffs: list[mpf] = []
    rest = values
    scale = weights
    for d in range(degree, -1, -1):
        coeffs = coeffs[1:]
        # Fitting again matters for the leading coefficients; where the series converges slowly, for all.
        if d > degree - 5 or degree > 20:
            # Near zero, inside the interval, the weights of the rest vanish: such points decide nothing.
            use = [i for i, s in enumerate(scale) if s > max(scale) * mpf(10) ** -9]
            trial, worst = remez([grid[i] for i in use], [rest[i] for i in use], [scale[i] for i in use], d)
            if not coeffs or worst < max(abs(r - evaluate(coeffs, x)) * s for r, x, s in zip(rest, grid, scale)):
                coeffs = trial
        c = rounded(coeffs[0], dtype)
        out.append(c)
        rest = [(r - c) / x for r, x in zip(rest, grid)]
        scale = [s * abs(x) for s, x in zip(scale, grid)]
    exact = [mpf(c) for c in out]
    worst = max(abs(v - evaluate(exact, x)) * w for x, v, w in zip(grid, values, weights))
    return out, worst


def series(terms: Callable[[int], mpf], x: mpf, n: int = 40) -> mpf:
    return mp.fsum(terms(i) * x**i for i in range(n))


def log_tail(z: mpf, first: int) -> mpf:
    """(atanh(s)/s*2 - first terms) / z**first with z = s*s."""
    return series(lambda i: mpf(2) / (2 * (i + first) + 1), z, 60)


def atan_tail(z: mpf) -> mpf:
    if z < mpf("1e-3"):
        return series(lambda i: mpf(-1) ** (i + 1) / (2 * i + 3), z, 30)
    s = mp.sqrt(z)
    return (mp.atan(s) / s - 1) / z


def asin_tail(z: mpf) -> mpf:
    s = mp.sqrt(z)
    return (mp.asin(s) / s - 1) / z


def sin_tail(z: mpf) -> mpf:
    return series(lambda i: mpf(-1) ** (i + 1) / mp.factorial(2 * i + 3), z)


def cos_tail(z: mpf) -> mpf:
    return series(lambda i: mpf(-1) ** i / mp.factorial(2 * i + 4), z)


def erf_tail(z: mpf) -> mpf:
    return series(lambda i: 2 / mp.sqrt(mp.pi) * mpf(-1) ** i / (mp.factorial(i) * (2 * i + 1)), z, 60) - 1


def log_erfc(u: mpf) -> mpf:
    """ln(erfc(1 + u) / erfc(1)) / u."""
    return mp.log(mp.erfc(1 + u) / mp.erfc(1)) / u


def erfcx_scaled(center: int) -> Fn:
    """(1 + 2 a) exp(a^2) erfc(a) as a function of q = (a - center)/(a + center)."""

    def f(q: mpf) -> mpf:
        a = center * (1 + q) / (1 - q)
        return (1 + 2 * a) * mp.exp(a * a) * mp.erfc(a)

    return f


HALF_LN2 = mp.log(2) / 2 * mpf("1.0001")
HALF_LN2_SQ = HALF_LN2**2
LOG_Z = ((mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)) ** 2 * mpf("1.0001")
QUARTER_PI_SQ = (mp.pi / 4) ** 2 * mpf("1.0001")


def table() -> dict[str, dict[str, tuple[Fn, object, object, Fn, int]]]:
    """name -> dtype -> (function, lo, hi, weight, degree)."""
    ln2 = mp.log(2)

    def exp_q(r: mpf) -> mpf:
        return series(lambda i: 1 / mp.factorial(i + 2), r)

    def exp2_q(r: mpf) -> mpf:
        return series(lambda i: ln2 ** (i + 2) / mp.factorial(i + 2), r)

    both: dict[str, tuple[Fn, object, object, Fn, int, int]] = {
        "EXP": (exp_q, -HALF_LN2, HALF_LN2, lambda r: r * r / mp.exp(r), 9, 5),
        "EXPM1": (lambda r: series(lambda i: 1 / mp.factorial(i + 3), r), -HALF_LN2, HALF_LN2, lambda r: r**3 / (1 - mp.exp(-HALF_LN2)), 9, 4),
        "EXP2": (exp2_q, mpf("-0.5"), mpf("0.5"), lambda r: r * r / mpf(2) ** r, 9, 4),
        "LOG": (lambda z: log_tail(z, 1), 0, LOG_Z, lambda z: z / 2, 6, 2),
        "SIN": (sin_tail, 0, QUARTER_PI_SQ, lambda z: z, 5, 2),
        "COS": (cos_tail, 0, QUARTER_PI_SQ, lambda z: z * z * mpf("1.4"), 5, 2),
        "SINH": (lambda z: series(lambda i: 1 / mp.factorial(2 * i + 3), z), 0, HALF_LN2_SQ, lambda z: z, 5, 2),
        "COSH": (lambda z: series(lambda i: 1 / mp.factorial(2 * i + 2), z), 0, HALF_LN2_SQ, lambda z: z, 4, 2),
        "ATAN": (atan_tail, 0, 1, lambda z: z / (1 + z * atan_tail(z)), 19, 8),
        "ASIN": (asin_tail, 0, mpf("0.25"), lambda z: z, 12, 5),
        "ERF": (erf_tail, 0, 1, lambda z: 1 / (1 + erf_tail(z)), 12, 6),
    }
    out: dict[str, dict[str, tuple[Fn, object, object, Fn, int]]] = {
        name: {"f64": (f, lo, hi, w, d64), "f32": (f, lo, hi, w, d32)} for name, (f, lo, hi, w, d64, d32) in both.items()
    }

    def cbrt_weight(f: mpf) -> mpf:
        return 1 / mp.cbrt(1 + f)

    border = mp.sqrt(mpf("0.5"))
    # A Newton step doubles the bits: the target is the square root of the format's precision.
    out["CBRT"] = {"f64": (lambda f: mp.cbrt(1 + f), border - 1, 2 * border - 1, lambda f: cbrt_weight(f) * mpf(2) ** -22, 9),
                   "f32": (lambda f: mp.cbrt(1 + f), border - 1, 2 * border - 1, lambda f: cbrt_weight(f) * mpf(2) ** -9, 4)}

    def erfc_weight(u: mpf) -> mpf:
        return u * mp.erfc(1 + u) / mp.erf(1 + u)

    out["ERF_TAIL"] = {"f64": (log_erfc, 0, mpf("4.95"), erfc_weight, 17, ), "f32": (log_erfc, 0, mpf("2.95"), erfc_weight, 7)}
    # Coefficients in f64 although the result may be f32: the names ending in 32 serve float32 through float64, with about 2**-34.
    ln2_pow: Fn = lambda z: (log_tail(z, 2)) / ln2
    out["POW_LOG"] = {"f64": (ln2_pow, 0, LOG_Z, lambda z: z * z / 2 * 512, 6)}
    out["POW32_LOG"] = {"f64": (lambda z: log_tail(z, 0) / ln2, 0, LOG_Z, lambda z: ln2 / 2 / 4096, 5)}
    out["POW32_EXP"] = {"f64": (lambda r: mpf(2) ** r, mpf("-0.5"), mpf("0.5"), lambda r: mpf(2) ** (-r - 20), 7)}
    out["ERFCX"] = {"f64": (erfcx_scaled(4), mpf("-0.685"), mpf("0.747"), lambda q: 1 / erfcx_scaled(4)(q), 25)}
    out["ERFCX32"] = {"f64": (erfcx_scaled(2), -1, mpf("0.681"), lambda q: mpf(2) ** -22 / erfcx_scaled(2)(q), 12)}
    return out


#: Lookups: tanh of float32 numbers from 2**-3 up, two pieces to a binade; below is one more. Beyond TANH_TOP it is 1.
TANH_FIRST, TANH_TOP, TANH_DEGREE = mpf("0.125"), mpf("9.2"), 6


def tanh_pieces() -> list[tuple[mpf, mpf]]:
    """The pieces, from 0 up."""
    borders = [TANH_FIRST * 2**i * half for i in range(7) for half in (1, mpf("1.5"))]
    borders = [b for b in borders if b < TANH_TOP]
    return list(zip([mpf(0), *borders], [*borders, TANH_TOP]))


def tanh_center(lo: mpf, hi: mpf) -> float:
    """A float32 number near the middle whose tanh is very near one."""
    start = np.float32(float((lo + hi) / 2))
    best, found, x = mpf(1), float(start), start
    for _ in range(400):
        y = mp.tanh(mpf(float(x)))
        off = abs(y - mpf(rounded(y, "f32"))) / mpf(float(np.spacing(np.float32(float(y)))))
        if off < best:
            best, found = off, float(x)
        x = np.nextafter(x, np.float32(100))
    return found


def tanh_piece(lo: mpf, hi: mpf) -> tuple[list[float], mpf]:
    """(center, value there, coefficients of (tanh(center + u) - value)/u), and the largest relative error."""
    center = 0.0 if lo == 0 else tanh_center(lo, hi)
    c = mpf(center)
    head = mp.tanh(c)

    def f(u: mpf) -> mpf:
        return (mp.tanh(c + u) - head) / u if u != 0 else 1 - head * head

    coeffs, worst = fit(f, lo - c, hi - c, lambda u: u / mp.tanh(c + u) if c + u != 0 else mpf(1), TANH_DEGREE, "f32")
    return [center, rounded(head, "f32"), *coeffs], worst


def lookup_lines() -> list[str]:
    """Rows of 16 for a lookup by the low four bits of a number's first nine bits after the sign: exponent and the first bit of the mantissa."""
    pieces = tanh_pieces()
    first = (int(np.float32(float(TANH_FIRST)).view(np.int32)) >> 22) - 1
    rows = [[0.0] * 16 for _ in range(TANH_DEGREE + 3)]
    for i, (lo, hi) in enumerate(pieces):
        values, worst = tanh_piece(lo, hi)
        print(f"TANH piece {i:2d}  error {float(worst / EPS['f32']):.4f} x 2^-p", file=sys.stderr)
        for row, v in zip(rows, values):
            row[(first + i) % 16] = v
    lines = ["", "#: Lookups of 16: centers, values there, then coefficients from the lowest degree", "LOOKUP: Final[dict[str, tuple[tuple[float, ...], ...]]] = {",
             '    "TANH": (']
    for row in rows:
        lines += ["        (", *(f"            {', '.join(map(repr, row[i:i + 4]))}," for i in range(0, 16, 4)), "        ),"]
    return [*lines, "    ),", "}"]


def cut(x: mpf, bits: int) -> mpf:
    """x truncated to so many significant bits."""
    m, e = mp.frexp(x)
    return mp.ldexp(mp.floor(mp.ldexp(m, bits)), int(e) - bits)


def split(x: mpf, parts: int, dtype: str) -> list[float]:
    out = []
    for _ in range(parts):
        out.append(rounded(x, dtype))
        x -= mpf(out[-1])
    return out


def constants(dtype: str) -> dict[str, float]:
    """Constants that cannot be written as short literals. *_CUT have trailing zeros, so that a product with an exponent is exact."""
    short = 42 if dtype == "f64" else 16
    out: dict[str, float] = {"INV_LN2": rounded(1 / mp.log(2), dtype), "TWO_OVER_PI": rounded(2 / mp.pi, dtype), "ERFC_1": rounded(mp.erfc(1), dtype),
                             "CBRT2": rounded(mp.cbrt(2), dtype), "CBRT_HALF": rounded(mp.cbrt(mpf("0.5")), dtype)}
    for name, value, parts in [("LN2", mp.log(2), 2), ("LOG2E", 1 / mp.log(2), 2), ("LOG10E", 1 / mp.log(10), 2), ("PIO2", mp.pi / 2, 3), ("TWO_LN2", 2 / mp.log(2), 2),
                               ("TWO_3LN2", 2 / (3 * mp.log(2)), 2)]:
        out.update({f"{name}_{i + 1}": part for i, part in enumerate(split(value, parts, dtype))})
    for name, value in [("LN2", mp.log(2)), ("LOG10_2", mp.log(2) / mp.log(10))]:
        head = cut(value, short)
        out[f"{name}_CUT"], out[f"{name}_REST"] = rounded(head, dtype), rounded(value - head, dtype)
    return out


def two_over_pi() -> list[int]:
    """64 zero bits, then the first 1216 bits of 2/pi, in 64-bit words."""
    with mp.workprec(1400):
        bits = int(mp.floor(mp.ldexp(2 / mp.pi, 1216)))
    return [0] + [(bits >> (64 * i)) & (2**64 - 1) for i in range(18, -1, -1)]


def constant_lines() -> list[str]:
    lines = ["CONST: Final[dict[str, dict[str, float]]] = {"]
    for dtype in ("f64", "f32"):
        lines += [f'    "{dtype}": {{', *(f'        "{name}": {value!r},' for name, value in constants(dtype).items()), "    },"]
    lines += ["}", "", "#: 64 zero bits, then the bits of 2/pi", "TWO_OVER_PI_WORDS: Final[tuple[int, ...]] = ("]
    return [*lines, *(f"    0x{word:016X}," for word in two_over_pi()), ")"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the committed file instead of writing it")
    parser.add_argument("names", nargs="*", help="only print these")
    options = parser.parse_args()
    lines = ['"""Polynomial coefficients, lowest degree first. Written by tools/fit_vmath.py; do not edit."""', "", "from typing import Final", "",
             "POLY: Final[dict[str, dict[str, tuple[float, ...]]]] = {"]
    for name, kinds in table().items():
        if options.names and name not in options.names:
            continue
        lines.append(f'    "{name}": {{')
        for dtype, (f, lo, hi, weight, degree) in kinds.items():
            fmt = "f64" if dtype.endswith("wide") else dtype
            coeffs, worst = fit(f, lo, hi, weight, degree, fmt)  # type: ignore[arg-type]
            error = float(worst / EPS[dtype[:3]])
            print(f"{name:10s} {dtype:8s} degree {degree:2d}  error {error:.4f} x 2^-p", file=sys.stderr)
            lines += [f'        "{dtype}": (  # degree {degree}, error {error:.4f}', *(f"            {c!r}," for c in coeffs), "        ),"]
        lines.append("    },")
    text = "\n".join([*lines, "}", *([] if options.names else lookup_lines()), "", *constant_lines(), ""])
    if options.names:
        print(text)
    elif options.check:
        sys.exit(text != OUT.read_text())
    else:
        OUT.write_text(text)


if __name__ == "__main__":
    main()
