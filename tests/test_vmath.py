"""SIMD math: accuracy against mpmath, special values against NumPy, every lane count, huge arguments."""

from __future__ import annotations

import importlib.util
import math
import re
import time
from fractions import Fraction
from pathlib import Path

import llvmlite.binding as llvm
import mpmath
import numpy as np
import pytest
import sweep

from aotgrad.codegen import vmath
from aotgrad.codegen.vmath.coeffs import CONST, LOOKUP, POLY, TWO_OVER_PI_WORDS
from aotgrad_runtime.errors import AotgradValueError

_spec = importlib.util.spec_from_file_location("measure_vmath", Path(__file__).resolve().parent.parent / "tools" / "measure_vmath.py")
assert _spec and _spec.loader
measure = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(measure)

TYPES = {"f64": np.float64, "f32": np.float32}
WIDE = {"f64": 8, "f32": 16}
#: Largest error allowed, in ULP: the contract.
LIMIT = dict.fromkeys(["exp", "log", "sin", "cos", "tanh", "sigmoid", "log1p", "expm1"], 1.05) | {"erf": 1.3, "pow": 1.5, "fmod": 0.0}
BOTH = pytest.mark.parametrize("dtype", ["f64", "f32"])
#: With instructions of AVX-512 tanh of float32 is another formula, the others scale by a power of two in one step.
AVX512 = ("exp", "exp2", "sigmoid", "tanh", "pow", "erfc", "softplus")
needs_avx512 = pytest.mark.skipif(not measure.FORMS[-1], reason="needs AVX-512")


def one(name: str):
    """The function in mpmath."""
    table = {"sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)), "log2": lambda x: mpmath.log(x) / mpmath.log(2), "log10": lambda x: mpmath.log(x) / mpmath.log(10),
             "exp2": lambda x: mpmath.mpf(2) ** x, "pow": lambda x, y: x**y, "softplus": lambda x: mpmath.log1p(mpmath.exp(x)),
             "cbrt": lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x))}
    return table.get(name) or getattr(mpmath, name)


def exact(name: str, *args: np.ndarray) -> np.ndarray:
    """Values of mpmath as long doubles (11 bits more than f64)."""
    f, out = one(name), np.empty(args[0].size, np.longdouble)
    if name in ("erf", "erfc"):
        return measure.reference(name, args[0].astype(np.float64))
    with mpmath.workprec(200):
        for i, row in enumerate(zip(*args)):
            v = f(*[mpmath.mpf(float(a)) for a in row])
            if isinstance(v, mpmath.mpc):
                out[i] = np.nan
                continue
            head = mpmath.mpf(float(v)) if mpmath.isfinite(v) else v
            out[i] = np.longdouble(float(head)) + (np.longdouble(float(v - head)) if mpmath.isfinite(head) else 0)
    return out


@pytest.mark.parametrize(("name", "dtype"), sweep.part(sorted(vmath.NAMES - {"fmod"}), ("f64", "f32")))
def test_accuracy(name: str, dtype: str) -> None:
    within_limit(name, dtype, False)


@needs_avx512
def test_accuracy_of_tanh_by_lookup() -> None:
    within_limit("tanh", "f32", True)


@needs_avx512
@pytest.mark.parametrize("name", ["exp", "sigmoid", "tanh"])
def test_accuracy_where_pieces_meet(name: str) -> None:
    """float32: every number in steps of 257 from 2**-14 up to 128, both signs; the tools go through all of them."""
    x = np.arange(0x38800000, 0x43000000, 257, np.int32).view(np.float32)
    x = np.concatenate([x, -x])
    want = measure.LONG[name](x.astype(np.float64)).astype(np.longdouble)
    got = measure.apply(name, "f32", 16, x, avx512=True)
    with np.errstate(over="ignore"):
        want = np.where(np.abs(want) > np.finfo(np.float32).max * (1 + 2.0**-25), np.sign(want) * np.inf, want)
    normal = np.isfinite(want)
    assert measure.ulps(got[normal], want[normal]).max() <= LIMIT[name]
    np.testing.assert_array_equal(got[~normal], want[~normal].astype(np.float32))


def within_limit(name: str, dtype: str, avx512: bool) -> None:
    args = measure.points(name, dtype, 4000, np.random.default_rng(11))
    keep = np.logical_and.reduce([np.isfinite(a) for a in args])
    args = [a[keep] for a in args]
    got, want = measure.apply(name, dtype, WIDE[dtype], *args, avx512=avx512), exact(name, *args)
    with np.errstate(over="ignore"):
        error = measure.ulps(got, want)
    k = int(np.argmax(error))
    assert error[k] <= LIMIT.get(name, 2.0), f"{name} {dtype}: {error[k]:.3f} ULP at {[a[k] for a in args]}, got {got[k]!r}"


def specials(dtype: str) -> np.ndarray:
    info = np.finfo(TYPES[dtype])
    plain = [0.0, 1.0, 2.0, 3.0, 0.5, 1.5, 10.0, 100.0, 1e4, 1e30, math.inf, float(info.max), float(info.tiny), float(info.smallest_subnormal), float(info.eps),
             float(info.eps) / 4, 88.7228, 88.8, 709.78, 709.79, 745.1, 746.0, 1024.0, 1023.9, 1074.0, 1075.0, 149.0, 150.0, 127.9, 20.0, 40.0, 1 - float(info.epsneg)]
    with np.errstate(over="ignore"):
        values = np.array([*plain, *(-v for v in plain), math.nan], TYPES[dtype])
    return values


@BOTH
@pytest.mark.parametrize("name", sorted(n for n in vmath.NAMES if vmath.ARITY[n] == 1))
def test_special_values(name: str, dtype: str) -> None:
    """Infinities, NaN and zeros (with their sign) exactly; everything else, subnormals and overflow borders included, within the limit."""
    special(name, dtype, False)


@needs_avx512
@BOTH
@pytest.mark.parametrize("name", AVX512)
def test_special_values_with_avx512(name: str, dtype: str) -> None:
    if vmath.ARITY[name] == 1:
        special(name, dtype, True)
    args = measure.points(name, dtype, 4000, np.random.default_rng(3))
    want, got = measure.apply(name, dtype, WIDE[dtype], *args), measure.apply(name, dtype, WIDE[dtype], *args, avx512=True)
    if (name, dtype) != ("tanh", "f32"):
        np.testing.assert_array_equal(got, want)  # the same bits
    for lanes in (1, 2, WIDE[dtype] // 2, 16):
        np.testing.assert_array_equal(measure.apply(name, dtype, lanes, *args, avx512=True), got)


def special(name: str, dtype: str, avx512: bool) -> None:
    x = specials(dtype)
    got = measure.apply(name, dtype, WIDE[dtype], x, avx512=avx512)
    with np.errstate(all="ignore"):
        want = measure.reference(name, x)
        rounded = want.astype(x.dtype)
    edge = ~np.isfinite(rounded) | (rounded == 0)
    np.testing.assert_array_equal(got[edge], rounded[edge])
    zero = rounded == 0
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(rounded[zero]))
    with np.errstate(over="ignore", invalid="ignore"):
        error = measure.ulps(got, want)
    assert np.max(error[~edge], initial=0) <= LIMIT.get(name, 2.0), (x[~edge], got[~edge], rounded[~edge])


@BOTH
@pytest.mark.parametrize("name", ["atan2", "pow", "fmod", "hypot"])
def test_special_pairs(name: str, dtype: str) -> None:
    """Every pair of special values, as NumPy (which follows Annex F of C99)."""
    values = specials(dtype)
    values = np.concatenate([values, np.array([5.0, -5.0, 0.25, -0.25, 2.0**30 + 1, 2.0**60], TYPES[dtype])])
    x, y = (g.ravel() for g in np.meshgrid(values, values))
    got = measure.apply(name, dtype, WIDE[dtype], x, y)
    with np.errstate(all="ignore"):
        want = {"atan2": np.arctan2, "pow": np.power, "fmod": np.fmod, "hypot": np.hypot}[name](x.astype(np.longdouble), y.astype(np.longdouble))
        rounded = want.astype(x.dtype)
        error = measure.ulps(got, want)
    edge = ~np.isfinite(rounded) | (rounded == 0)
    np.testing.assert_array_equal(got[edge], rounded[edge])
    number = ~np.isnan(rounded)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(rounded[number]))
    assert error[~edge].max() <= LIMIT.get(name, 2.0)


@BOTH
def test_fmod_is_exact(dtype: str) -> None:
    """Quotients of every length, subnormal divisors too, against exact rational arithmetic."""
    rng = np.random.default_rng(9)
    bits = np.uint64 if dtype == "f64" else np.uint32
    x, y = (rng.integers(0, np.iinfo(bits).max, 600, bits, endpoint=True).view(TYPES[dtype]) for _ in range(2))
    x, y = x[np.isfinite(x) & np.isfinite(y)], y[np.isfinite(x) & np.isfinite(y)]
    y[:40] = np.finfo(y.dtype).smallest_subnormal * np.arange(1, 41, dtype=y.dtype)
    x[40:80] = y[40:80] * np.arange(1, 41, dtype=y.dtype)
    got = measure.apply("fmod", dtype, WIDE[dtype], x, y)
    want = [math.copysign(float(abs(Fraction(float(a))) % abs(Fraction(float(b)))), a) for a, b in zip(x, y)]
    np.testing.assert_array_equal(got, np.array(want, TYPES[dtype]))
    np.testing.assert_array_equal(np.signbit(got), np.signbit(x))


@BOTH
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_huge_arguments(name: str, dtype: str) -> None:
    """Arguments of every size, the worst known cases of reduction among them, beside small neighbours in the same vector."""
    rng = np.random.default_rng(5)
    top = 1023 if dtype == "f64" else 127
    x = (np.exp2(rng.uniform(13, top, 800)) * rng.choice([-1, 1], 800)).astype(TYPES[dtype])
    worst = [6381956970095103.0 * 2.0**797, 2.0**46 * 1.25, 3.0e15, 1e22, math.pi, 100 * math.pi]
    x[:6] = worst if dtype == "f64" else [16367173.0 * 2.0**72, 2.0**17 + 1, 1e22, 3e15, math.pi, 100 * math.pi]
    with mpmath.workprec(1200):  # the numbers nearest to multiples of pi/2
        x[6:100] = [float(int(2 ** rng.uniform(0, 52)) * 2 ** int(rng.uniform(0, top - 60)) * mpmath.pi / 2) for _ in range(94)]
    x[100::3] = rng.uniform(-4, 4, x[100::3].size)
    got, want = measure.apply(name, dtype, WIDE[dtype], x), exact(name, x)
    assert measure.ulps(got, want).max() <= (2.0 if name == "tan" else 1.05)
    alone = measure.apply(name, dtype, 1, x)
    np.testing.assert_array_equal(alone, got)


@pytest.mark.parametrize("name, dtype", sweep.part(sorted(vmath.NAMES), ["f64", "f32"]))
def test_lane_counts_agree(name: str, dtype: str) -> None:
    """The same instructions for every width, so the same bits."""
    args = measure.points(name, dtype, 256, np.random.default_rng(2))
    want = measure.apply(name, dtype, 1, *args)
    for lanes in (2, 4) if name != "exp" else (2, 4, 8, 16):
        np.testing.assert_array_equal(measure.apply(name, dtype, lanes, *args), want)


def test_contract_of_the_text() -> None:
    for name in sorted(vmath.NAMES):
        for dtype in ("f64", "f32"):
            f = vmath.function(name, dtype, 4)
            assert f"define internal <4 x {measure.ir_name(dtype)}> @{f.symbol}(" in f.text
            assert "alwaysinline nounwind memory(none)" in f.text
            text = vmath.module_text([f])
            assert " fast " not in text and "global" not in text
            assert all("@llvm." in line for line in text.splitlines() if line.startswith("declare"))
            assert f is vmath.function(name, dtype, 4)


def test_bad_requests_are_named() -> None:
    with pytest.raises(AotgradValueError, match="unknown function 'gamma'"):
        vmath.function("gamma", "f64", 4)
    with pytest.raises(AotgradValueError, match="dtype must be"):
        vmath.function("exp", "f16", 4)
    with pytest.raises(AotgradValueError, match="lanes must be"):
        vmath.function("exp", "f64", 3)


@pytest.mark.parametrize("cpu, foreign", [("x86-64-v3", set()), ("x86-64-v4", set()), ("x86-64-v2", {"fma", "fmaf"})])
def test_no_library_calls(cpu: str, foreign: set[str]) -> None:
    """The object needs nothing from outside: no libm, no compiler runtime. (Without FMA instructions it would, which shows that the search finds calls.)"""
    names = sorted(vmath.NAMES) if not foreign else ["exp"]
    text = vmath.module_text(vmath.function(name, dtype, WIDE[dtype], cpu == "x86-64-v4") for name in names for dtype in ("f64", "f32"))
    module = llvm.parse_assembly(text.replace("define internal", "define"))
    module.verify()
    target = llvm.Target.from_triple("x86_64-unknown-linux-gnu")
    assembly = target.create_target_machine(cpu=cpu, opt=1, reloc="pic", codemodel="small").emit_assembly(module)
    called = set(re.findall(r"\t(?:callq?|jmpq?)\t\*?([A-Za-z_]\w*)", assembly))
    assert {name for name in called if not name.startswith("ag_vm_")} == foreign
    assert foreign or "ag_vm_payne_hanek" in called


def test_committed_coefficients_are_the_fitted_ones() -> None:
    """One cheap polynomial is fitted again (all of them: tools/fit_vmath.py --check)."""
    fit_spec = importlib.util.spec_from_file_location("fit_vmath", Path(measure.__file__).with_name("fit_vmath.py"))
    assert fit_spec and fit_spec.loader
    fit = importlib.util.module_from_spec(fit_spec)
    precision = mpmath.mp.prec
    try:
        fit_spec.loader.exec_module(fit)
        f, low, high, weight, degree = fit.table()["SIN"]["f32"]
        coeffs, error = fit.fit(f, low, high, weight, degree, "f32")
        assert tuple(coeffs) == POLY["SIN"]["f32"]
        assert error / fit.EPS["f32"] < 0.1
        assert fit.constants("f64") == CONST["f64"]
        fitted, error = fit.tanh_piece(*fit.tanh_pieces()[0])
        assert fitted == [row[247 % 16] for row in LOOKUP["TANH"]]
        assert error / fit.EPS["f32"] < 0.01
        assert tuple(fit.two_over_pi()) == TWO_OVER_PI_WORDS
    finally:
        mpmath.mp.prec = precision


#: Where functions are 0 (or, of a softplus, log1p of nearly nothing): far from the border and at it, for f64 and f32.
GONE = {"exp": (-746.0, -104.0), "exp2": (-1077.0, -151.0), "sigmoid": (-746.0, -104.0), "softplus": (-746.0, -104.0), "erfc": (27.3, 10.6)}


@BOTH
@pytest.mark.parametrize("avx512", measure.FORMS)
@pytest.mark.parametrize("name", sorted(GONE))
def test_what_underflows_is_0_and_takes_no_longer(name: str, avx512: bool, dtype: str) -> None:
    """Results below the subnormal numbers are not computed: a processor takes 150 cycles for each (20 to 80 times as long as for others)."""
    edge = GONE[name][dtype == "f32"]
    far = np.array([edge, edge * (1 + 2.0**-20), edge * 2, edge * 1e30, edge * math.inf], TYPES[dtype])
    for lanes in (1, 2, WIDE[dtype]):
        assert not measure.apply(name, dtype, lanes, far, avx512=avx512).any()
    run = measure.compile_loop(name, dtype, WIDE[dtype], avx512)
    out = np.empty(1024, TYPES[dtype])
    arrays = [np.full(1024, v, TYPES[dtype]) for v in (0.5, edge * 2, edge * math.inf)]
    times: list[list[float]] = [[], [], []]
    for _ in range(9):
        for x, t in zip(arrays, times):
            start = time.perf_counter()
            run(x.ctypes.data, out.ctypes.data, 1024, 20)
            t.append(time.perf_counter() - start)
    usual, *gone = (min(t) for t in times)
    assert max(gone) < 4 * usual, [t / usual for t in gone]


@BOTH
def test_logarithms_of_nearly_1_are_what_is_added(dtype: str) -> None:
    x = np.array([2.0**-41, 2.0**-60, 2.0**-101, 2.0**-140, float(np.finfo(TYPES[dtype]).smallest_subnormal), 0.0], np.float64).astype(TYPES[dtype])
    x = x[x < 2.0**-100] if dtype == "f64" else x
    x = np.concatenate([x, -x])
    got = measure.apply("log1p", dtype, WIDE[dtype], x)
    np.testing.assert_array_equal(got, x)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(x))
