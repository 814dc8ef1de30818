"""``aotgrad bench``: starts the benchmarks of the source checkout in a process with the environment that the measuring rule asks for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from aotgrad_runtime.errors import AotgradValueError

__all__ = ["environment", "run"]

_FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
# Large freed blocks go back to the system by default, and every fresh array then pays page faults that have nothing to do with the kernels.
_WARM = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "8589934592", "MALLOC_TOP_PAD_": "67108864"}
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_UNSET = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OPENBLAS_VERBOSE", "MKL_ENABLE_INSTRUCTIONS", "AOTGRAD_DISABLE_COMPILE", "AOTGRAD_VERIFY")


def environment(threads: int = 1) -> dict[str, str]:
    """This process's environment made fit for measuring: warm pages, no overrides of the libraries' choice of kernels, equal thread counts."""
    env = {k: v for k, v in os.environ.items() if k not in _UNSET}
    env.update(_WARM)
    env.update(dict.fromkeys(_THREADS, str(threads)))
    env["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen={'false' if threads == 1 else 'true'} intra_op_parallelism_threads={threads}"
    env["JAX_PLATFORMS"], env["JAX_ENABLE_X64"], env["NPROC"] = "cpu", "1", str(threads)
    return env


def run(workloads: Sequence[str], *, quick: bool = False, listing: bool = False, out: str | None = None) -> int:
    """Runs the named workloads (all when none is named) and gives the exit code.

    Raises ``AotgradValueError`` where there is no source checkout or no workload of that name.
    """
    if not (_FOLDER / "harness.py").is_file():
        raise AotgradValueError(f"bench {' '.join(workloads)}: the benchmarks are in the source checkout; clone it and install with pip install -e '.[bench]'")
    known = sorted(p.stem for p in (_FOLDER / "workloads").glob("[a-z]*.py"))
    if listing:
        print("\n".join(known))
        return 0
    unknown = [w for w in workloads if w not in known]
    if unknown:
        raise AotgradValueError(f"no workload is called {', '.join(unknown)}; there are {', '.join(known)}")
    command = [sys.executable, "-m", "benchmarks", *workloads, *(["--quick"] if quick else []), *(["--out", out] if out else [])]
    return subprocess.run(command, cwd=_FOLDER.parent, env=environment(), check=False).returncode
