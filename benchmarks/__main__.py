"""``python -m benchmarks [--quick] [--out DIR] [WORKLOAD ...]``: each workload in a process of its own, then the report.

A workload's rows are written as they are measured, and take the place of its older ones when it ends, however it ends: an interrupted run keeps what it has.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from aotgrad.cli.bench import environment

from .harness import Bench, clean_environment
from .report import machine_row, write_report

HERE = Path(__file__).resolve().parent
# limits first: its rows stand above everything in the report.
ORDER = ("limits", "calls", "rosenbrock", "chain", "mlp", "gradient_cost", "compile_time", "accuracy", "eager", "eager_calls", "profiler", "memory_modes",
         "gemm", "convolution", "resnet", "blocks", "layouts", "mlp784", "gpt", "scan", "attention", "memory_bound", "subnormals", "threads")
QUICK = ("limits", "calls", "rosenbrock", "chain", "gemm", "convolution", "blocks", "mlp784", "gpt", "scan", "memory_bound", "subnormals")  # where none are named
WORKER_SECONDS = 1800


def main() -> int:
    """The whole run, or (with --worker) one workload of it."""
    parser = argparse.ArgumentParser(prog="benchmarks")
    parser.add_argument("workloads", nargs="*")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--report", action="store_true", help="only write RESULTS.md and the pictures from the rows that are there")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.worker:
        return _worker(a.workloads[0], a.worker, a.quick)
    known = sorted(p.stem for p in (HERE / "workloads").glob("[a-z]*.py"))
    names = sorted(a.workloads or (QUICK if a.quick else known), key=lambda n: (ORDER.index(n) if n in ORDER else len(ORDER), n))
    folder = a.out or (Path(tempfile.mkdtemp(prefix="aotgrad-bench-")) if a.quick else HERE)
    folder.mkdir(parents=True, exist_ok=True)
    if a.report:
        print(write_report(folder / "results.jsonl", folder / "RESULTS.md"))
        return 0
    return _run_all(names, folder, a.quick)


def _worker(name: str, out: Path, quick: bool) -> int:
    why = clean_environment()
    if why:
        raise SystemExit(f"benchmarks: {why}; start them with aotgrad bench")
    bench = Bench(name, out, quick)
    importlib.import_module(f"benchmarks.workloads.{name}").run(bench)
    for what in bench.far:
        print(f"far from its target: {what}", file=sys.stderr)
    return 1 if bench.far else 0


def _run_all(names: list[str], folder: Path, quick: bool) -> int:
    results, report = folder / "results.jsonl", folder / "RESULTS.md"
    expected = _seconds(results if results.exists() else HERE / "results.jsonl", quick)
    start = time.time()
    failed: list[str] = []
    for i, name in enumerate(names):
        left = [expected.get(n) for n in names[i:]]
        known = [s for s in left if s is not None]
        about = f", about {_clock(expected[name])}" if name in expected else ""
        rest = f"; all that is left: about {_clock(sum(known))}" + (f" and {len(left) - len(known)} of unknown length" if len(known) < len(left) else "") if known else ""
        print(f"[{i + 1}/{len(names)}, {_clock(time.time() - start)}] {name}{about}{rest}", flush=True)
        try:
            if _run_one(name, names, results, quick):
                failed.append(name)
        finally:
            write_report(results, report)
    print(f"\n{results}\n{report}\n{_clock(time.time() - start)}")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _run_one(name: str, names: list[str], results: Path, quick: bool) -> int:
    """Runs a workload into a file of its own, whose rows then replace the workload's older ones."""
    part = results.with_name(f"{results.name}.{name}")
    part.write_text("", encoding="utf-8")
    bench = Bench(name, part, quick)
    bench.write(machine_row(names, quick))
    command = [sys.executable, "-m", "benchmarks", name, "--worker", str(part), *(["--quick"] if quick else [])]
    start, before, code, why = time.time(), _cpu(), -1, "was interrupted"
    try:
        code = subprocess.run(command, cwd=HERE.parent, env=environment(), check=False, timeout=WORKER_SECONDS).returncode
        why = f"stopped with exit code {code}"
    except subprocess.TimeoutExpired:
        why = f"took longer than {WORKER_SECONDS} s"
    finally:
        if code:
            bench.write({"kind": "skip", "what": f"what is missing of {name}", "why": f"the workload {why}"})
        else:
            bench.write({"kind": "done", "seconds": time.time() - start, "cpu": _cpu() - before})
        _merge(part, name, results)
    return code


def _merge(part: Path, name: str, results: Path) -> None:
    """Puts a workload's new rows in the place of its old ones, in the order of the report."""
    groups: dict[str, list[str]] = {}
    for line in results.read_text(encoding="utf-8").splitlines() if results.exists() else []:
        groups.setdefault(json.loads(line)["workload"], []).append(line)
    groups[name] = part.read_text(encoding="utf-8").splitlines()
    rank = {n: i for i, n in enumerate(ORDER)}
    rows = [line for n in sorted(groups, key=lambda n: rank.get(n, len(rank))) for line in groups[n]]
    whole = results.with_name(f"{results.name}.new")
    whole.write_text("".join(line + "\n" for line in rows), encoding="utf-8")
    whole.replace(results)
    part.unlink()


def _seconds(results: Path, quick: bool) -> dict[str, float]:
    """How long each workload took in the last such run."""
    found: dict[str, float] = {}
    if results.exists():
        rows: list[dict[str, Any]] = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
        alike = {r["workload"] for r in rows if r["kind"] == "machine" and r["quick"] == quick}
        found = {r["workload"]: r["seconds"] for r in rows if r["kind"] == "done" and r["workload"] in alike}
    return found


def _cpu() -> float:
    """CPU seconds of all processes that have ended: about what a workload takes on a machine with nothing else to do."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _clock(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
