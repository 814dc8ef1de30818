"""Matrix products beside NumPy's OpenBLAS and the multiply-add peak; gemm_probe.py beside this folder looks closer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import aotgrad as ag

from ..harness import OURS, Bench, Candidate, optional
from ..limits import fma_peak

SIZES = (16, 64, 127, 256, 512, 1024)
TOLERANCES = {"float64": 1e-13, "float32": 1e-5}
GOAL = 0.5


def run(bench: Bench) -> None:
    """Square products, both precisions."""
    product = ag.compile(lambda a, b: a @ b)
    for dtype in ("float64", "float32"):
        peak = fma_peak("f64" if dtype == "float64" else "f32")
        bench.fact(f"multiply-add peak {dtype}", peak, "GFLOP/s")
        for n in SIZES[:4] if bench.quick else SIZES:
            rng = np.random.default_rng(n)
            a, b = (rng.standard_normal((n, n)).astype(dtype) for _ in range(2))
            exact = [a.astype(np.float64) @ b.astype(np.float64)]
            candidates = [Candidate(OURS, product, lambda out: [out], args=(a, b)), Candidate("numpy (OpenBLAS)", np.matmul, lambda out: [out], args=(a, b))]
            candidates += bench.peer("torch", lambda a=a, b=b: _torch(a, b))
            rows = bench.case(f"{dtype}, {n} x {n} x {n}", candidates, exact, TOLERANCES[dtype])
            rate = 2.0 * n**3 / rows[OURS]["seconds"] / 1e9
            bench.fact(f"{dtype}, {n}: aotgrad", rate, "GFLOP/s", f"{100 * rate / peak:.0f} % of the peak")
            if n == 512:
                blas = rows.get("numpy (OpenBLAS)")
                bench.target(f"speed over OpenBLAS, {dtype}, 512 x 512 x 512", blas["seconds"] / rows[OURS]["seconds"] if blas else math.nan, GOAL, at_least=True)


def _torch(a: Any, b: Any) -> Candidate:
    torch = optional("torch")
    torch.set_num_threads(1)
    return Candidate("torch (MKL)", torch.matmul, lambda out: [out.numpy()], args=(torch.from_numpy(a), torch.from_numpy(b)))
