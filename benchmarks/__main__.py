"""``python -m benchmarks [--quick] [--out DIR] [WORKLOAD ...]``: each workload in a process of its own, then the report."""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from aotgrad.cli.bench import environment

from .harness import Bench, clean_environment
from .report import machine_row, write_report

HERE = Path(__file__).resolve().parent
# limits first: its rows stand above everything in the report.
ORDER = ("limits", "calls", "rosenbrock", "chain", "mlp", "gradient_cost", "compile_time", "accuracy", "gemm", "convolution", "threads", "eager", "profiler")
WORKER_SECONDS = 1800


def main() -> int:
    """The whole run, or (with --worker) one workload of it."""
    parser = argparse.ArgumentParser(prog="benchmarks")
    parser.add_argument("workloads", nargs="*")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.worker:
        why = clean_environment()
        if why:
            raise SystemExit(f"benchmarks: {why}; start them with aotgrad bench")
        importlib.import_module(f"benchmarks.workloads.{a.workloads[0]}").run(Bench(a.workloads[0], a.worker, a.quick))
        return 0
    known = sorted(p.stem for p in (HERE / "workloads").glob("[a-z]*.py"))
    names = a.workloads or [*(n for n in ORDER if n in known), *(n for n in known if n not in ORDER)]
    folder = a.out or (Path(tempfile.mkdtemp(prefix="aotgrad-bench-")) if a.quick else HERE)
    folder.mkdir(parents=True, exist_ok=True)
    return _run_all(names, folder, a.quick)


def _run_all(names: list[str], folder: Path, quick: bool) -> int:
    results = folder / "results.jsonl"
    kept = [] if set(names) >= set(ORDER) or not results.exists() else [line for line in results.read_text(encoding="utf-8").splitlines() if _other(line, names)]
    results.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
    start = time.time()
    failed = []
    for name in names:
        print(f"{name}", flush=True)
        bench = Bench(name, results, quick)
        bench.write(machine_row(names, quick))
        command = [sys.executable, "-m", "benchmarks", name, "--worker", str(results), *(["--quick"] if quick else [])]
        try:
            code = subprocess.run(command, cwd=HERE.parent, env=environment(), check=False, timeout=WORKER_SECONDS).returncode
        except subprocess.TimeoutExpired:
            code = -1
        if code:
            failed.append(name)
            bench.write({"kind": "skip", "what": name, "why": f"the workload stopped with exit code {code}"})
    report = write_report(results, folder / "RESULTS.md", time.time() - start)
    print(f"\n{results}\n{report}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _other(line: str, names: list[str]) -> bool:
    """Whether a row of an earlier run belongs to a workload that is not run now."""
    return not any(line.startswith(f'{{"workload": "{name}"') for name in names)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
