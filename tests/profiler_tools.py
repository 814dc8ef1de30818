"""What the tests of the profiler share: a small function whose lines are marked, known recordings, checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotgrad as ag
from aotgrad.autograd.profiler_util import EventList, read
from aotgrad_runtime import profiler as runtime

RNG = np.random.default_rng(0)
NET = __file__


def line_of(mark: str, file: str = __file__) -> int:
    """The number of the line of a file (this one) that ends with a comment."""
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    (found,) = [i for i, text in enumerate(lines, 1) if text.endswith(f"# <{mark}>")]
    return found


def net(x: Any, w: Any) -> Any:
    y = ag.matmul(x, w)  # <matmul>
    y = ag.tanh(y)  # <tanh>
    return (y * y).sum()  # <sum>


def operands() -> tuple[Any, Any]:
    return ag.tensor(RNG.normal(size=(16, 8))), ag.tensor(RNG.normal(size=(8, 4)), requires_grad=True)


def names(events: Any, kind: str) -> list[str]:
    return [e.name for e in events if e.kind == kind]


def check_forest(events: Any) -> None:
    """Children lie inside their parents and do not overlap; self times are what is left."""
    for e in events:
        at = e.time_range.start
        for child in e.cpu_children:
            assert child.cpu_parent is e
            assert at <= child.time_range.start <= child.time_range.end <= e.time_range.end
            at = child.time_range.end
        assert e.self_cpu_time_total == pytest.approx(e.cpu_time_total - sum(c.cpu_time_total for c in e.cpu_children))
        assert e.self_cpu_time_total >= -1e-6
    roots = [e for e in events if e.cpu_parent is None]
    assert events.self_cpu_time_total == pytest.approx(sum(e.cpu_time_total for e in roots))


def recorded(events: list[tuple[Any, ...]], **options: bool) -> EventList:
    """A recording made by hand: (kind, name, start us, end us, sequence, lines), in order of their ends."""
    made = runtime.Recorder(**options)
    for kind, name, start, end, *rest in events:
        sequence, lines = (*rest, -1, None)[:2] if len(rest) < 2 else rest
        made.append((kind, name, 1000 * start, 1000 * end, (), None, 0, sequence, lines))
    return read(made)
