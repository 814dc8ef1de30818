"""The largest error of each compiled mathematical function, in units of the last place of the right result, beside the peers'."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import aotgrad as ag

from ..harness import Bench, optional

POINTS = 200_000
SLOW_POINTS = 20_000  # for references by mpmath
Range = tuple[float, float]
# Name: interval of the points, the limit in ULP (None: reported only).
FUNCTIONS: dict[str, tuple[Range, float | None]] = {
    "exp": ((-700, 700), 1.05), "log": ((1e-300, 1e3), 1.05), "sin": ((-1e4, 1e4), 1.05), "cos": ((-1e4, 1e4), 1.05), "tanh": ((-20, 20), 1.05),
    "sigmoid": ((-30, 30), 1.05), "log1p": ((-0.999, 1e3), 1.05), "expm1": ((-30, 30), 1.05), "erf": ((-5, 5), 1.3),
    "sqrt": ((0, 1e6), None), "tan": ((-100, 100), None), "atan": ((-100, 100), None), "sinh": ((-20, 20), None), "cosh": ((-20, 20), None),
}
FLOAT32_RANGES: dict[str, Range] = {"exp": (-85, 85), "log": (1e-36, 1e3)}


def run(bench: Bench) -> None:
    """float64 and float32."""
    for dtype in (np.float64, np.float32):
        for name, (interval, limit) in FUNCTIONS.items():
            x = _points(FLOAT32_RANGES.get(name, interval) if dtype is np.float32 else interval, dtype, bench.quick, name == "erf" and dtype is np.float64)
            want, how = _reference(name, x)
            f = ag.compile(getattr(ag, name))
            ours = _ulp(f(x), want)
            label = f"{name}, {np.dtype(dtype).name}"
            peers = {k: v for k, v in ((who, _peer(bench, who, name, x, want)) for who in ("numpy", "torch", "jax")) if v is not None}
            others = ", ".join(f"{k} {v:.2f}" for k, v in peers.items())
            bench.fact(f"{label}: largest error", ours, "ULP", f"{len(x)} points, reference: {how}; {others}")
            if limit is not None:
                bench.target(f"largest error of {label}", ours, limit, unit="ULP")


def _points(interval: Range, dtype: Any, quick: bool, slow: bool) -> Any:
    n = 2000 if quick else SLOW_POINTS if slow else POINTS
    rng = np.random.default_rng(7)
    low, high = interval
    even = rng.uniform(low, high, n // 2)
    # Half of the points lie near zero on a logarithmic scale, where relative errors show.
    small = np.exp(rng.uniform(np.log(1e-10), np.log(high), n - n // 2))
    if low < 0:
        small *= rng.choice([-1.0, 1.0], small.shape)
    return np.clip(np.concatenate([even, small]), low, high).astype(dtype)


def _reference(name: str, x: Any) -> tuple[Any, str]:
    """The value to well below the precision of x, as longdouble."""
    wide = x.astype(np.longdouble)
    if name == "erf":
        if x.dtype == np.float32:
            special = optional("scipy.special")
            return special.erf(x.astype(np.float64)).astype(np.longdouble), "scipy in float64"
        mpmath = optional("mpmath")
        high = [mpmath.erf(mpmath.mpf(float(v))) for v in x]
        return np.array([np.longdouble(float(h)) + np.longdouble(float(h - mpmath.mpf(float(h)))) for h in high]), "mpmath"
    if name == "sigmoid":
        return 1 / (1 + np.exp(-wide)), "NumPy in 80 bits"
    return getattr(np, {"atan": "arctan"}.get(name, name))(wide), "NumPy in 80 bits"


def _ulp(got: Any, want: Any) -> float:
    """The largest error in units of the last place of the right result; infinite where a finite one was due and something else came."""
    got = np.asarray(got)
    near = want.astype(got.dtype)
    finite = np.isfinite(near) & (np.abs(near) >= np.finfo(got.dtype).tiny)
    if not np.all(np.isfinite(got[finite])):
        return float("inf")
    unit = np.spacing(np.abs(near[finite])).astype(np.longdouble)
    return float(np.max(np.abs(got[finite].astype(np.longdouble) - want[finite]) / unit, initial=0))


def _peer(bench: Bench, who: str, name: str, x: Any, want: Any) -> float | None:
    try:
        return _ulp(PEERS[who](name)(x), want)
    except (ImportError, AttributeError) as error:
        if isinstance(error, ImportError):
            bench.skip(who, str(error))
        return None


def _numpy(name: str) -> Callable[[Any], Any]:
    return getattr(np, {"atan": "arctan"}.get(name, name))  # type: ignore[no-any-return]


def _torch(name: str) -> Callable[[Any], Any]:
    torch = optional("torch")
    return lambda x: getattr(torch, name)(torch.from_numpy(x)).numpy()


def _jax(name: str) -> Callable[[Any], Any]:
    jx = optional("jax")
    jx.config.update("jax_enable_x64", True)
    found = getattr(jx.nn, name, None) or getattr(jx.scipy.special, name, None) if name in ("sigmoid", "erf") else getattr(jx.numpy, name)
    return lambda x: np.asarray(jx.jit(found)(x))


PEERS: dict[str, Callable[[str], Callable[[Any], Any]]] = {"numpy": _numpy, "torch": _torch, "jax": _jax}
