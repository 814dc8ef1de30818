"""Accuracy sweep and speed of aotgrad.codegen.vmath:  python tools/measure_vmath.py [ulp|time|all|every] [NAME...] [--points N]

Accuracy against extended precision (x87 long double; mpmath for erf, erfc and whatever the platform's long double lacks; f64 for f32 functions).
Speed: 4096 elements in the cache, interleaved short batches, 20th percentile, beside NumPy.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import sys
import time
from collections.abc import Callable

import llvmlite.binding as llvm
import mpmath
import numpy as np
import scipy.special as sp

from aotgrad.codegen import vmath

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
mpmath.mp.prec = 140
TYPES = {"f64": np.float64, "f32": np.float32}
_KEEP: list[object] = []
#: Without and, where this machine has them, with the instructions of AVX-512.
FORMS = (False, True) if llvm.get_host_cpu_features().get("avx512vl") else (False,)


def ir_name(dtype: str) -> str:
    return {"f64": "double", "f32": "float"}[dtype]


def loop_module(name: str, dtype: str, lanes: int, avx512: bool = False) -> str:
    """void run(x [, y], out, n): n a positive multiple of lanes."""
    f = vmath.function(name, dtype, lanes, avx512)
    e = ir_name(dtype)
    t = e if lanes == 1 else f"<{lanes} x {e}>"
    args = ["x", "y"][: vmath.ARITY[name]]
    align = 8 if dtype == "f64" else 4
    loads = "\n".join(f"  %p{a} = getelementptr {e}, ptr %{a}, i64 %i\n  %v{a} = load {t}, ptr %p{a}, align {align}" for a in args)
    return vmath.module_text([f]) + f"""
define void @run({', '.join(f'ptr noalias %{a}' for a in args)}, ptr noalias %out, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
{loads}
  %r = call {t} @{f.symbol}({', '.join(f'{t} %v{a}' for a in args)})
  %po = getelementptr {e}, ptr %out, i64 %i
  store {t} %r, ptr %po, align {align}
  %next = add i64 %i, {lanes}
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}}
define void @repeat({', '.join(f'ptr %{a}' for a in args)}, ptr %out, i64 %n, i64 %times) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  call void @run({', '.join(f'ptr %{a}' for a in args)}, ptr %out, i64 %n) #0
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %times
  br i1 %more, label %loop, label %done
done:
  ret void
}}
attributes #0 = {{ noinline }}
"""


def compile_loop(name: str, dtype: str, lanes: int, avx512: bool = False) -> Callable[..., None]:
    module = llvm.parse_assembly(loop_module(name, dtype, lanes, avx512))
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3)
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    _KEEP.append(engine)
    n_args = vmath.ARITY[name]
    raw = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (n_args + 1), *[ctypes.c_int64] * 2)(engine.get_function_address("repeat"))
    _KEEP.append(raw)
    return raw


def apply(name: str, dtype: str, lanes: int, *args: np.ndarray, avx512: bool = False) -> np.ndarray:
    raw = compile_loop(name, dtype, lanes, avx512)
    n = args[0].size
    m = -(-n // lanes) * lanes
    padded = [np.concatenate([a, np.full(m - n, a[0], a.dtype)]) for a in args]
    out = np.empty(m, TYPES[dtype])
    raw(*[p.ctypes.data for p in padded], out.ctypes.data, m, 1)
    return out[:n]


LONG = {"exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "log2": np.log2, "log10": np.log10, "sin": np.sin, "cos": np.cos,
        "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
        "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "cbrt": np.cbrt, "hypot": np.hypot,
        "pow": np.power, "fmod": np.fmod, "sigmoid": lambda x: np.where(x < 0, np.exp(-np.abs(x)), 1) / (1 + np.exp(-np.abs(x))),
        "softplus": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))}


def reference(name: str, *args: np.ndarray) -> np.ndarray:
    if name in LONG:
        return LONG[name](*[a.astype(np.longdouble) for a in args])
    if args[0].dtype == np.float32:
        return {"erf": sp.erf, "erfc": sp.erfc}[name](args[0].astype(np.float64)).astype(np.longdouble)
    f = getattr(mpmath.mp, name)
    out = np.empty(args[0].size, np.longdouble)
    for i, x in enumerate(args[0]):
        v = f(mpmath.mpf(float(np.clip(x, -100, 100))))  # mpmath cannot do erfc(1e300)
        head = float(v)
        out[i] = np.longdouble(head) + np.longdouble(float(v - mpmath.mpf(head))) if v else x  # keeps the sign of zero
    return out


def ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Errors in units of the last place of the exact result; wrong specials are infinite."""
    dtype = got.dtype
    info = np.finfo(dtype)
    with np.errstate(all="ignore"):
        rounded = want.astype(dtype)
        exponent = np.frexp(np.abs(want).astype(np.float64) if dtype == np.float32 else np.abs(want))[1]
        unit = np.ldexp(np.longdouble(1), np.maximum(exponent - 1 - info.nmant, info.minexp - info.nmant))
        error = np.abs(got.astype(np.longdouble) - want) / unit
    special = ~np.isfinite(rounded) | ~np.isfinite(got)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    return np.where(special, np.where(same, 0, np.inf), error).astype(np.float64)


#: Where the largest errors were found.
HOT = {"tanh": (0.14, 0.25), "expm1": (0.33, 0.4), "acosh": (1.0, 1.1), "log1p": (-0.3, -0.28), "log": (0.69, 0.72), "cos": (0.7, 0.9), "sin": (0.7, 0.9),
       "exp": (0.3, 0.36), "erf": (0.9, 1.05), "asinh": (0.3, 1.3), "atanh": (0.05, 0.3)}


def points(name: str, dtype: str, n: int, rng: np.random.Generator) -> list[np.ndarray]:
    """A mixture: where the function is interesting, every magnitude, and near its borders."""
    t = TYPES[dtype]
    wide = dtype == "f64"
    unsigned = np.uint64 if wide else np.uint32

    def anywhere(k: int) -> np.ndarray:
        return rng.integers(0, np.iinfo(unsigned).max, k, unsigned, endpoint=True).view(t)

    def mixed(low: float, high: float, k: int) -> np.ndarray:
        a = rng.uniform(low, high, k // 2)
        b = np.exp2(rng.uniform(-60 if wide else -30, np.log2(max(abs(low), abs(high))), k - k // 2)) * rng.choice([-1, 1], k - k // 2)
        return np.clip(np.concatenate([a, b]), low, high).astype(t)

    ranges = {"exp": (-750, 712), "exp2": (-1080, 1026), "expm1": (-40, 712), "sinh": (-712, 712), "cosh": (-712, 712), "tanh": (-23, 23), "sigmoid": (-750, 750),
              "erf": (-6.5, 6.5), "erfc": (-7, 28), "log1p": (-1, 3), "log": (0, 4), "log2": (0, 4), "log10": (0, 4), "asin": (-1, 1), "acos": (-1, 1),
              "atan": (-10, 10), "sin": (-100, 100), "cos": (-100, 100), "tan": (-100, 100), "acosh": (1, 10), "asinh": (-10, 10), "atanh": (-1, 1),
              "cbrt": (-100, 100), "softplus": (-750, 750)}
    if name in ("pow", "fmod", "atan2", "hypot"):
        x, y = anywhere(n), anywhere(n)
        h = n // 2
        if name == "pow":
            x = np.abs(x)
            x[:h] = np.exp2(rng.uniform(-4, 4, h)).astype(t)
            x[: h // 4] = (1 + rng.uniform(-1e-3, 1e-3, h // 4)).astype(t)
            with np.errstate(all="ignore"):
                span = (1070 if wide else 149) / np.maximum(np.abs(np.log2(x.astype(float))), 1e-12)
            y = np.clip(rng.uniform(-1, 1, n) * span, -1e30, 1e30).astype(t)
        else:
            x[:h], y[:h] = rng.normal(size=h).astype(t), rng.normal(size=h).astype(t)
            x[: h // 2] *= t(1000)
        return [x, y]
    low, high = ranges[name]
    if not wide and abs(high) > 100:
        low, high = low / 7.1, high / 7.9
    q = n // 4
    near = mixed(-2, 2, q) if low < -2 else mixed(low, min(high, 2), q)
    hot = rng.uniform(*HOT.get(name, (min(max(low, -1), 1), min(high, 2))), n // 8).astype(t)
    return [np.concatenate([mixed(low, high, n - 2 * q - hot.size), near, hot, anywhere(q)])]


def sweep(names: list[str], n: int) -> None:
    for name in names:
        for dtype in ("f64", "f32"):
            rng = np.random.default_rng(7)
            count = min(n, 20000) if name in ("erf", "erfc") and dtype == "f64" else n
            args = points(name, dtype, count, rng)
            with np.errstate(all="ignore"):
                want = reference(name, *args)
            for form in FORMS:
                _worst(name, dtype, args, apply(name, dtype, 8 if dtype == "f64" else 16, *args, avx512=form), want, form)


def _worst(name: str, dtype: str, args: list[np.ndarray], got: np.ndarray, want: np.ndarray, form: bool) -> None:
    u = ulps(got, want)
    k = int(np.argmax(u))
    normal = np.abs(want) >= np.finfo(got.dtype).tiny
    print(f"{name:9s} {dtype} {'avx512' if form else 'any':6s} max {u[normal].max():.4f} ULP, subnormal results {u[~normal].max(initial=0):.3f};  "
          f"over 1: {np.mean(u > 1):.2e}   worst at {[a[k].item() for a in args]} got {got[k].item()!r} want {want[k]}", flush=True)


def every(names: list[str]) -> None:
    """All float32 numbers with abs(x) in [2**-12, 2**7), both signs, against f64 functions (whose error is 2**-29 here)."""
    for name, form in ((n, f) for n in names for f in FORMS):
        raw, worst = compile_loop(name, "f32", 16, form), (0.0, 0.0)
        out = np.empty(1 << 21, np.float32)
        for start in range((127 - 12) << 23, (127 + 7) << 23, 1 << 21):
            for sign in (0, 1 << 31):
                x = (np.arange(start, start + (1 << 21), dtype=np.uint32) | np.uint32(sign)).view(np.float32)
                raw(x.ctypes.data, out.ctypes.data, x.size, 1)
                with np.errstate(all="ignore"):
                    want = {**LONG, "erf": sp.erf, "erfc": sp.erfc}[name](x.astype(np.float64))
                    unit = np.spacing(np.abs(want).astype(np.float32)).astype(np.float64)
                    error = np.abs(out.astype(np.float64) - want) / unit
                error[~np.isfinite(error)] = 0  # specials are the tests' affair
                k = int(np.argmax(error))
                worst = max(worst, (float(error[k]), float(x[k])))
        print(f"{name:9s} f32 {'avx512' if form else 'any':6s} max {worst[0]:.4f} ULP over all of them, at {worst[1]!r}", flush=True)


NUMPY = {**LONG, "sigmoid": sp.expit, "erf": sp.erf, "erfc": sp.erfc, "softplus": lambda x, out: np.logaddexp(x, 0, out=out)}


def timed(name: str, dtype: str) -> list[float]:
    """ns per element: 512 bit, 256 bit, scalar, NumPy."""
    t = TYPES[dtype]
    rng = np.random.default_rng(3)
    args = [rng.uniform(0.1, 0.9, 4096).astype(t) * t(1 if name in ("asin", "acos", "atanh") else 4) for _ in range(vmath.ARITY[name])]
    if name == "acosh":
        args[0] += t(1)
    out = np.empty(4096, t)
    wide = 8 if dtype == "f64" else 16
    pointers = [a.ctypes.data for a in args]
    loops = [compile_loop(name, dtype, lanes, FORMS[-1]) for lanes in (wide, wide // 2, 1)]
    runs: list[Callable[[], object]] = [functools.partial(f, *pointers, out.ctypes.data, 4096, 8) for f in loops]
    runs.append(lambda: [NUMPY[name](*args, out=out) for _ in range(8)])
    samples: list[list[float]] = [[] for _ in runs]
    for _ in range(60):
        for run, log in zip(runs, samples):
            start = time.perf_counter_ns()
            run()
            log.append((time.perf_counter_ns() - start) / 8 / 4096)
    return [float(np.percentile(s, 20)) for s in samples]


def speed(names: list[str]) -> None:
    print("ns/element over 4096 elements: ours 512 bit, 256 bit, scalar; NumPy (SciPy for erf, erfc, sigmoid)")
    for name in names:
        for dtype in ("f64", "f32"):
            print(f"{name:9s} {dtype}  " + "  ".join(f"{ns:6.2f}" for ns in timed(name, dtype)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["ulp", "time", "all", "every"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--points", type=int, default=200_000)
    options = parser.parse_args()
    names = options.names or sorted(vmath.NAMES)
    if options.what == "every":
        every([n for n in names if vmath.ARITY[n] == 1])
        return
    if options.what != "time":
        sweep(names, options.points)
    if options.what != "ulp":
        speed(names)


if __name__ == "__main__":
    sys.exit(main())
