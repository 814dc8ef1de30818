"""The measuring rule, as code.

All candidates of a case run in one process, interleaved, after their values were compared. Where the fastest takes less than 0.3 ms: wall-clock batches shorter
than that, 80 rounds, the 20th percentile. Longer ones: process CPU time of single calls, paired within a round, the median of the ratios with its quartiles.
Every case runs one candidate twice (the A/A row): no difference finer than that one's means anything.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["OURS", "Bench", "Candidate", "Work", "geometric_mean", "optional"]

OURS = "aotgrad"
AGAIN = "aotgrad, again (A/A)"
SHORT = 0.3e-3  # seconds; a batch longer than this is likely to meet the scheduler
ROUNDS, LONG_ROUNDS, LEAST_ROUNDS, BUDGET = 80, 31, 5, 4.0  # BUDGET: seconds of one case of long calls, where LEAST_ROUNDS allow
PERCENTILE = 20
SLOW = "torch.compile"  # up to a minute for each program
LOOSE = 3.0  # a quick run, with few rounds and small sizes, complains of ratios that miss their target by more


@dataclass
class Candidate:
    """One way to compute a case: ``call(*args)``. ``values`` turns what it returns into NumPy arrays, in the order of the reference."""

    name: str
    call: Callable[..., Any]
    values: Callable[[Any], Sequence[Any]] = lambda out: out
    note: str = ""
    args: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Work:
    """What one call has to do: operations, bytes of its arguments and results, and the seconds in which this machine could do it at best."""

    flops: float
    moved: float
    limit: float


@dataclass
class Bench:
    """Collects rows; each is written at once, so that a crash loses nothing."""

    workload: str
    out: Path
    quick: bool = False
    skipped: dict[str, str] = field(default_factory=dict)
    far: list[str] = field(default_factory=list)  # ratios of a quick run that are far from their targets

    def write(self, row: dict[str, Any]) -> None:
        """Appends one row."""
        with self.out.open("a", encoding="utf-8") as f:
            f.write(json.dumps({"workload": self.workload, **row}) + "\n")

    def skip(self, what: str, why: str) -> None:
        """Notes once that a peer or a case could not be measured."""
        if what not in self.skipped:
            self.skipped[what] = why
            print(f"  skipped {what}: {why}", flush=True)
            self.write({"kind": "skip", "what": what, "why": why[:300]})

    def peer(self, name: str, make: Callable[[], Candidate | Sequence[Candidate]]) -> list[Candidate]:
        """The candidates that ``make`` builds, or none, with the reason noted, when it fails."""
        if self.quick and name.startswith(SLOW):
            self.skip(name, "not in a quick run")
            return []
        try:
            made = make()
        except Exception as error:
            self.skip(name, f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}")
            return []
        return [made] if isinstance(made, Candidate) else list(made)

    def case(self, case: str, candidates: Sequence[Candidate], reference: Sequence[Any], tolerance: float, per: float = 0.0,
             work: Work | None = None) -> dict[str, dict[str, Any]]:
        """Checks and measures; gives the rows by candidate name. ``per``: elements of one call, for time per element. ``work``: of one call, for the distance from the
        limit."""
        if not candidates:
            return {}
        print(f"  {case}", flush=True)
        good = [c for c in candidates if self._right(c, case, reference, tolerance)]
        if not good:
            return {}
        first = next((c for c in good if c.name == OURS), good[0])
        runners = [*good, Candidate(AGAIN if first.name == OURS else f"{first.name}, again (A/A)", first.call, first.values, args=first.args)]
        each = [_once(c) for c in runners]
        rows = _short(runners, each, self.quick) if min(each) < SHORT else _long(runners, each, self.quick)
        done = {}
        base = rows[runners.index(first)]
        for c, row in zip(runners, rows):
            ratio = _ratio(row, base)
            line = {"kind": "time", "case": case, "name": c.name, "seconds": row["seconds"], "low": row["low"], "high": row["high"], "method": row["method"], **ratio}
            if per:
                line["ns_per_element"] = 1e9 * row["seconds"] / per
            if c.note:
                line["note"] = c.note
            if work is not None:
                line |= {"flops": work.flops, "moved": work.moved, "share": work.limit / max(row["seconds"], 1e-12)}
            done[c.name] = line
            self.write(line)
            print(f"    {c.name:<34} {_time(row['seconds']):>10}  {ratio['ratio']:8.2f} x", flush=True)
        return done

    def _right(self, c: Candidate, case: str, reference: Sequence[Any], tolerance: float) -> bool:
        try:
            got = [np.asarray(v) for v in c.values(c.call(*c.args))]
        except Exception as error:
            if c.name == OURS:
                raise
            self.skip(f"{c.name}, {case}", f"{type(error).__name__}: {error}")
            return False
        off = max((difference(g, r) for g, r in zip(got, reference, strict=True)), default=0.0)
        if off <= tolerance:
            return True
        message = f"values differ by {off:.2e}, allowed are {tolerance:.1e}"
        if c.name == OURS:
            raise AssertionError(f"{self.workload}, {case}: aotgrad's {message}")
        self.skip(f"{c.name}, {case}", message)
        return False

    def target(self, what: str, value: float | None, limit: float, at_least: bool = False, unit: str = "x") -> None:
        """Notes a target of the project and whether it was met; a value of None or NaN means not measured."""
        if value is None or math.isnan(value):
            self.write({"kind": "target", "what": what, "value": None, "limit": limit, "at_least": at_least, "met": None, "unit": unit})
            return
        met = value >= limit if at_least else value <= limit
        self.write({"kind": "target", "what": what, "value": value, "limit": limit, "at_least": at_least, "met": bool(met), "unit": unit})
        print(f"    {'met   ' if met else 'MISSED'} {what}: {value:.3g} ({'at least' if at_least else 'at most'} {limit:g} {unit})", flush=True)
        if self.quick and unit == "x" and (value < limit / LOOSE if at_least else value > limit * LOOSE):
            self.far.append(what)

    def excess(self, what: str, ratio: float, rows: dict[str, dict[str, Any]], limit: float) -> None:
        """Notes by how many per cent ``ratio`` is over 1, less how far the same function, measured twice in ``rows``, is from itself."""
        again = next(r for n, r in rows.items() if "A/A" in n)
        spread = max(abs(float(again.get(k, again["ratio"])) - 1.0) for k in ("ratio", "ratio_low", "ratio_high"))
        self.fact(f"{what}: ratio", ratio, "x", f"A/A spread {100 * spread:.2f} %")
        self.target(f"{what}, beyond the A/A spread", max(100.0 * (ratio - 1.0 - spread), 0.0), limit, unit="%")

    def fact(self, name: str, value: Any, unit: str = "", note: str = "") -> None:
        """Notes a figure that is no ratio: a limit of the machine, a compile time, an error in ULP."""
        self.write({"kind": "fact", "name": name, "value": value, "unit": unit, "note": note})
        shown = f"{value:.4g}" if isinstance(value, float) else value
        print(f"    {name}: {shown} {unit}", flush=True)


def optional(name: str) -> Any:
    """A peer's module. Raises ImportError with a short message where it is missing."""
    return importlib.import_module(name)


def geometric_mean(values: Sequence[float]) -> float:
    """Of ratios; NaN of none."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def difference(a: Any, b: Any) -> float:
    """The largest difference relative to the largest magnitude of the reference ``b``; infinite for other shapes or NaN."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if a.shape != b.shape or not np.all(np.isfinite(a)):
        return math.inf
    return float(np.max(np.abs(a - b), initial=0.0)) / max(float(np.max(np.abs(b), initial=0.0)), 1e-300)


def _batch0(call: Callable[..., Any], repeat: Sequence[Any]) -> None:
    for _ in repeat:
        call()


def _batch1(call: Callable[..., Any], repeat: Sequence[Any], x: Any) -> None:
    for _ in repeat:
        call(x)


def _batch2(call: Callable[..., Any], repeat: Sequence[Any], x: Any, y: Any) -> None:
    for _ in repeat:
        call(x, y)


def _batch(call: Callable[..., Any], repeat: Sequence[Any], *args: Any) -> None:
    for _ in repeat:
        call(*args)


# A call written out costs less than call(*args) or a lambda around it, and at 50 ns that matters.
_BATCHES: tuple[Callable[..., None], ...] = (_batch0, _batch1, _batch2)


def _batch_of(c: Candidate) -> Callable[..., None]:
    return _BATCHES[len(c.args)] if len(c.args) < len(_BATCHES) else _batch


def _once(c: Candidate) -> float:
    """Seconds of one call, warm: the best of the last five of eight; of long calls the second."""
    times: list[float] = []
    while len(times) < 8 and (len(times) < 2 or sum(times) < 0.5):
        start = time.perf_counter()
        c.call(*c.args)
        times.append(time.perf_counter() - start)
    return min(times[3:] or times[1:])


def _short(candidates: Sequence[Candidate], each: Sequence[float], quick: bool) -> list[dict[str, Any]]:
    repeats = [[None] * max(1, min(10_000, int(0.8 * SHORT / max(t, 2e-8)))) for t in each]  # a list iterates with less overhead than a range
    batches = [_batch_of(c) for c in candidates]
    times: list[list[float]] = [[] for _ in candidates]
    clock = time.perf_counter
    for r in range(6 if quick else ROUNDS):
        for k in _order(len(candidates), r):
            c, batch, repeat = candidates[k], batches[k], repeats[k]
            batch(c.call, [None], *c.args)
            start = clock()
            batch(c.call, repeat, *c.args)
            times[k].append((clock() - start) / len(repeat))
    loop = _loop_overhead()
    rows = []
    for t in times:
        low, value, high = (max(float(np.percentile(t, p)) - loop, 0.0) for p in (5, PERCENTILE, 50))
        rows.append({"seconds": value, "low": low, "high": high, "method": "wall, 20th percentile"})
    return rows


def _loop_overhead() -> float:
    """Seconds of an empty turn of the timing loop: subtracted from everyone."""
    repeat = [None] * 5000
    best = math.inf
    for _ in range(30):
        start = time.perf_counter()
        for _ in repeat:
            pass
        best = min(best, time.perf_counter() - start)
    return best / len(repeat)


def _long(candidates: Sequence[Candidate], each: Sequence[float], quick: bool) -> list[dict[str, Any]]:
    rounds = 3 if quick else int(np.clip(BUDGET / max(sum(each), 1e-9), LEAST_ROUNDS, LONG_ROUNDS))
    times: list[list[float]] = [[] for _ in candidates]
    clock = time.process_time
    for r in range(rounds):
        for k in _order(len(candidates), r):
            c = candidates[k]
            start = clock()
            c.call(*c.args)
            times[k].append(clock() - start)
    rows = []
    for t in times:
        low, value, high = (float(np.percentile(t, p)) for p in (25, 50, 75))
        rows.append({"seconds": value, "low": low, "high": high, "method": "CPU, paired", "all": t})
    return rows


def _order(n: int, r: int) -> list[int]:
    """Each round starts with another candidate, so that none always follows the same one."""
    return [(k + r) % n for k in range(n)]


def _ratio(row: dict[str, Any], base: dict[str, Any]) -> dict[str, float]:
    """Time over aotgrad's: by percentiles for short calls, the median of paired ratios with its quartiles for long ones."""
    if "all" not in row:
        return {"ratio": row["seconds"] / max(base["seconds"], 1e-12)}
    ratios = np.asarray(row["all"]) / np.maximum(np.asarray(base["all"]), 1e-9)
    q1, median, q3 = (float(np.percentile(ratios, p)) for p in (25, 50, 75))
    return {"ratio": median, "ratio_low": q1, "ratio_high": q3}


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def clean_environment() -> str | None:
    """What in the environment forbids measuring, or None."""
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        if name in os.environ:
            return f"{name} is set"
    if "MALLOC_TRIM_THRESHOLD_" not in os.environ:
        return "pages are not kept warm (MALLOC_TRIM_THRESHOLD_)"
    return None
