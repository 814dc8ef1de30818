"""Peak memory of inference under ``no_grad`` over that of the same forward with a tape: ResNet-18 from functional ops, batch 32, in eager and in compiled code.

Weights and images do not count, nor does compiling: a first process fills the cache for the one that is measured. Freed memory goes back to the system.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from ..harness import Bench

LIMITS = {"eager": 1 / 3, "compiled": 1 / 4}
BATCH, SIZE = 32, 112
_CODE = """
import gc, sys
import numpy as np
import aotgrad as ag
from benchmarks import models
from benchmarks.peak import status, forget
how, mode, batch, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
rng = np.random.default_rng(0)
arrays, stats = models.initial(rng)
params = [ag.from_numpy(p).requires_grad_() for p in arrays]
stats = [ag.from_numpy(s) for s in stats]
x = ag.from_numpy(rng.standard_normal((batch, 3, size, size), dtype=np.float32))
f = lambda x, params: models.resnet(ag.nn.functional, x, params, stats)
f = ag.compile(f) if how == "compiled" else f
def one(x):
    if mode == "inference":
        with ag.no_grad():
            return f(x, params)
    return f(x, params)
one(x[:1].clone())
gc.collect()
forget()
before = status("VmRSS")
out = one(x)
print(status("VmHWM") - before)
"""


def run(bench: Bench) -> None:
    """Inference in both, the forward with a tape in eager: a compiled call saves its inputs only, and makes the rest again in its backward pass."""
    batch, size = (4, 64) if bench.quick else (BATCH, SIZE)
    where = f"ResNet-18, batch {batch} at {size} x {size}"
    taped = _peak("eager", "forward", batch, size)
    bench.fact("eager, forward with a tape: peak memory", taped / 2**20, "MiB", where)
    for how, limit in LIMITS.items():
        value = _peak(how, "inference", batch, size)
        bench.fact(f"{how}, inference: peak memory", value / 2**20, "MiB", where)
        bench.target(f"{how}: peak memory of inference under no_grad over that of the forward with a tape in eager", value / taped, round(limit, 3), unit="of it")


def _peak(how: str, mode: str, batch: int, size: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return [_process(how, mode, batch, size, folder) for _ in range(2 if how == "compiled" else 1)][-1]


def _process(how: str, mode: str, batch: int, size: int, folder: str) -> float:
    env = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    env |= {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "AOTGRAD_CACHE_DIR": folder}
    command = [sys.executable, "-c", _CODE, how, mode, str(batch), str(size)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=600, cwd=Path(__file__).resolve().parents[2])
    if done.returncode:
        raise RuntimeError(done.stderr)
    return float(done.stdout)
