"""Matrix products of every shape that the targets name, in both precisions and with either operand transposed, beside NumPy's OpenBLAS and torch's MKL.

``A' B`` is the product whose first operand is the transpose of a matrix in memory, as gradients have it. gemm_probe.py beside this folder looks closer.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import aotgrad as ag

from .. import peers
from ..harness import OURS, Bench, Candidate, geometric_mean
from ..limits import fma_peak, work

SHAPES = (*((n, n, n) for n in (64, 128, 256, 512, 1024, 2048)), (127, 131, 129), (3136, 64, 576), (784, 128, 1152), (196, 256, 2304), (49, 512, 4608), (32, 1024, 1024),
          (8, 256, 256), (1, 4096, 4096))
FORMS = ("A B", "A' B", "A B'")
QUICK = ((64, 64, 64), (127, 131, 129))
TOLERANCES = {"float64": 1e-13, "float32": 1e-5}
BLAS, MKL = "numpy (OpenBLAS)", "torch (MKL)"
GOALS, OF_PEAK, FULL = {BLAS: 1.1, MKL: 1.0}, 0.8, 0.85
EARLY = 0.5  # the first goal, of OpenBLAS at 512 cubed


def run(bench: Bench) -> None:
    """All shapes (rows, columns, depth), forms and precisions."""
    for dtype in ("float32", "float64"):
        peak = fma_peak("f64" if dtype == "float64" else "f32")
        bench.fact(f"multiply-add peak {dtype}", peak, "GFLOP/s")
        for form in FORMS:
            found = {shape: _case(bench, dtype, form, shape) for shape in (QUICK if bench.quick else SHAPES)}
            _targets(bench, dtype, form, found, peak)


def _case(bench: Bench, dtype: str, form: str, shape: tuple[int, int, int]) -> dict[str, dict[str, Any]]:
    m, n, k = shape
    rng = np.random.default_rng(m + n)
    a = rng.standard_normal((k, m) if form == "A' B" else (m, k)).astype(dtype)
    b = rng.standard_normal((n, k) if form == "A B'" else (k, n)).astype(dtype)
    left, right = (a.T if form == "A' B" else a), (b.T if form == "A B'" else b)
    exact = [left.astype(np.float64) @ right.astype(np.float64)]
    # Views of transposed memory, as a user has them; nobody is given a copy.
    product = ag.compile(lambda a, b: a @ b)
    candidates = [Candidate(OURS, product, lambda out: [out], args=(left, right)), Candidate(BLAS, np.matmul, lambda out: [out], args=(left, right))]
    candidates += bench.peer(MKL, lambda: _torch(left, right))
    title = f"{dtype}, {m} x {n} x {k}, {form}"
    return bench.case(title, candidates, exact, TOLERANCES[dtype], work=work(2.0 * m * n * k, a.nbytes + b.nbytes + exact[0].size * a.itemsize, f"f{8 * a.itemsize}"))


def _torch(a: Any, b: Any) -> Candidate:
    torch = peers.torch()
    return Candidate(MKL, torch.matmul, lambda out: [out.numpy()], args=(torch.from_numpy(a), torch.from_numpy(b)))


def _targets(bench: Bench, dtype: str, form: str, found: dict[tuple[int, ...], dict[str, dict[str, Any]]], peak: float) -> None:
    """A shape at FULL of the peak counts as met; the mean reaches the goal, and no shape is under 0.9 of it."""
    rates = {shape: rows[OURS]["flops"] / rows[OURS]["seconds"] / 1e9 / peak for shape, rows in found.items()}
    title = f"{dtype}, {form}"
    for name, goal in GOALS.items():
        ratios = {shape: rows[name]["ratio"] for shape, rows in found.items() if name in rows}
        counted = {shape: max(r, goal) if rates[shape] >= FULL else r for shape, r in ratios.items()}
        worst = min(counted, key=counted.__getitem__, default=None)
        what = f"{title}: speed over {name}, a shape at {FULL:g} of the peak counted as met"
        bench.target(f"{what}, geometric mean", geometric_mean(list(counted.values())), goal, at_least=True)
        which = "" if worst is None else f" ({' x '.join(map(str, worst))})"
        bench.target(f"{what}, least{which}", math.nan if worst is None else counted[worst], round(0.9 * goal, 2), at_least=True)
        least = f"least {min(ratios.values(), default=math.nan):.2f}"
        bench.fact(f"{title}: speed over {name}, geometric mean as measured", geometric_mean(list(ratios.values())), "x", least)
        if name == BLAS and form == "A B" and (512, 512, 512) in ratios:
            bench.target(f"speed over OpenBLAS, {dtype}, 512 x 512 x 512", ratios[512, 512, 512], EARLY, at_least=True)
    large = {shape: rate for shape, rate in rates.items() if min(shape) >= 256}
    if dtype == "float32" and large:
        worst = min(large, key=large.__getitem__)
        what = f"{title}: least share of the multiply-add peak from 256 up ({' x '.join(map(str, worst))})"
        bench.target(what, large[worst], OF_PEAK, at_least=True, unit="of the peak")
