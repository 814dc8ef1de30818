"""``python -m benchmarks.peak WHO BATCH``: compile time and peak memory of ResNet-18's training step, by one library in this process; printed as JSON.

Memory is the highest resident size during warm steps less that after the imports: parameters, images and what compiling left behind count, its own peak does not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from . import models, peers, training
from .harness import OURS

WHO = (OURS, peers.FIRST, peers.LAST, peers.JAX)
STEPS = 3


def measure(who: str, batch: int) -> dict[str, float]:
    """Runs this module in a new process. Raises RuntimeError with what it wrote when it fails."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}  # the allocator as users have it
    with tempfile.TemporaryDirectory() as folder:
        env = {**keep, "AOTGRAD_CACHE_DIR": folder}
        done = subprocess.run([sys.executable, "-m", "benchmarks.peak", who, str(batch)], env=env, capture_output=True, text=True, check=False, timeout=600,
                              cwd=Path(__file__).resolve().parents[1])
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def main() -> None:
    """In the process that is measured."""
    who, batch = sys.argv[1], int(sys.argv[2])
    torch: Any = peers.torch() if "torch" in who else None
    if who == peers.JAX:
        peers.Jax()
    before = status("VmRSS")
    rng = np.random.default_rng(0)
    params, _ = models.initial(rng)
    x, labels = rng.standard_normal((batch, 3, 224, 224), dtype=np.float32), rng.integers(0, 1000, batch)
    step = _step(who, torch, params, x, labels)
    del params
    start = time.process_time()
    step()
    first = time.process_time() - start
    step()
    forget()
    for _ in range(STEPS):
        step()
    print(json.dumps({"first": first, "peak": status("VmHWM") - before}))


def _step(who: str, torch: Any, params: models.Params, x: Any, labels: Any) -> Callable[[], Any]:
    if who == OURS:
        return training.own_state(params, x, labels)
    if who == peers.JAX:
        return training.jax_step(params, x, labels, False)
    return training.torch_step(torch, params, x, labels, who == peers.LAST)


def forget() -> None:
    """The highest resident size starts anew."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def status(name: str) -> int:
    """Bytes, by their name in /proc."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {name} in /proc/self/status")


if __name__ == "__main__":
    main()
