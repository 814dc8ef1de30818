"""The limits that the figures of the other workloads stand beside."""

from __future__ import annotations

import numpy as np

from aotgrad.codegen.peaks import chains
from aotgrad.codegen.target import Target

from ..harness import Bench, Candidate
from ..limits import LEVELS, copy_bandwidth, empty_builtin, empty_native, fma_peak


def run(bench: Bench) -> None:
    """Empty calls, multiply-add peak, copy bandwidth."""
    builtin, what = empty_builtin()
    native = empty_native()
    x = np.zeros(2)
    candidates = [
        Candidate("empty builtin", builtin, lambda out: (), what),
        Candidate("empty ctypes call, two ready pointers", native, lambda out: (), args=(0, 0)),
        Candidate("empty Python function", lambda: None, lambda out: ()),
        Candidate("np.empty(2)", np.empty, lambda out: (), args=(2,)),
        Candidate("x.ctypes.data (in a Python function)", lambda: x.ctypes.data, lambda out: ()),
    ]
    bench.case("empty calls", candidates, [], 0.0)
    for dtype in ("f32", "f64"):
        bench.fact(f"multiply-add peak {dtype}", fma_peak(dtype), "GFLOP/s", f"{chains(Target.native())} independent chains of full vectors, one thread, best of 200")
    for name, size in LEVELS.items():
        bench.fact(f"copy bandwidth, {name}", copy_bandwidth(size), "GB/s", f"read + written, blocks of {size >> 10} KiB, best of 20")
