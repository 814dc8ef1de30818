"""What a profile shows: averages and tables, time by source line, files, the flame view."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from profiler_tools import NET, RNG, line_of, net, operands, recorded

import aotgrad as ag
from aotgrad.autograd import profiler
from aotgrad.autograd.flame_view import page
from aotgrad.autograd.profiler_util import format_memory, format_time
from aotgrad.frontend import dispatch
from aotgrad_runtime import profiler as runtime
from aotgrad_runtime import watchers
from aotgrad_runtime.errors import AotgradError

HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Every test leaves the profiler off."""
    yield
    assert runtime.state.recorder is None and runtime.state.hook is None and not runtime.watched()
    assert not watchers.shared.count and dispatch.run_eager is dispatch._run_eager


# ---- averages and tables --------------------------------------------------------------------------------------------------------------


def test_the_numbers_of_a_known_recording() -> None:
    events = recorded([
        (runtime.OP, "mul", 10, 30), (runtime.OP, "mul", 30, 40), (runtime.KERNEL, "k", 55, 75), (runtime.REGION, "f", 50, 80), (runtime.USER, "all", 0, 100),
        (runtime.OP, "sin", 200, 300),
    ])
    table = {a.key: (a.self_cpu_time_total, a.cpu_time_total, a.cpu_time, a.count) for a in events.key_averages()}
    assert table == {"all": (40, 100, 100, 1), "mul": (30, 30, 15, 2), "f": (10, 30, 30, 1), "k": (20, 20, 20, 1), "sin": (100, 100, 100, 1)}
    assert events.self_cpu_time_total == 200
    total = events.total_average()
    assert (total.count, total.self_cpu_time_total) == (6, 200)


def test_marks_that_overlap_share_the_clock() -> None:
    """As those of two tasks that take turns."""
    events = recorded([(runtime.OP, "mul", 20, 30), (runtime.USER, "a", 0, 60), (runtime.OP, "sin", 70, 80), (runtime.USER, "b", 10, 100)])
    assert {a.key: a.self_cpu_time_total for a in events.key_averages()} == {"a": 10, "b": 70, "mul": 10, "sin": 10}
    assert events.self_cpu_time_total == 100


GOLDEN = [
    "-----  ------------  ------------  ------------  ------------  ------------  ------------  ",
    " Name    Self CPU %      Self CPU   CPU total %     CPU total  CPU time avg    # of Calls  ",
    "-----  ------------  ------------  ------------  ------------  ------------  ------------  ",
    "    b        75.00%       3.000ms        75.00%       3.000ms       1.500ms             2  ",
    "    a        25.00%       1.000ms       100.00%       4.000ms       4.000ms             1  ",
    "-----  ------------  ------------  ------------  ------------  ------------  ------------  ",
    "Self CPU time total: 4.000ms",
]


def test_the_table_is_laid_out_as_torch_does() -> None:
    events = recorded([(runtime.OP, "b", 0, 1000), (runtime.OP, "b", 1000, 3000), (runtime.USER, "a", 0, 4000)])
    assert events.key_averages().table(sort_by="self_cpu_time_total").splitlines() == GOLDEN
    assert str(events.key_averages()).splitlines()[3].split()[0] == "a"  # in order of the first start
    rows = events.key_averages().table(sort_by="cpu_time_total", row_limit=1).splitlines()
    assert [r.split()[0] for r in rows[3:-2]] == ["a"]
    assert events.table(top_level_events_only=True).splitlines()[1] == "This report only display top-level ops statistics"
    assert events.key_averages().table(header="of mine").splitlines()[1] == "of mine"
    assert recorded([]).table() == ""


@pytest.mark.parametrize("key", ["cpu_time", "cpu_time_total", "self_cpu_time_total", "count", "cpu_memory_usage", "self_cpu_memory_usage"])
def test_sort_by(key: str) -> None:
    x, w = operands()
    with profiler.profile(profile_memory=True) as prof:
        net(x, w).backward()
        net(x, w)
    averages = prof.key_averages()
    best = max(getattr(a, key) for a in averages)
    first = averages.table(sort_by=key).splitlines()[3].split()[0]
    assert getattr(next(a for a in averages if a.key == first), key) == best


def test_formats() -> None:
    assert [format_time(t) for t in (0.5, 999.9994, 1e3, 1.5e6)] == ["0.500us", "999.999us", "1.000ms", "1.500s"]
    assert [format_memory(n) for n in (0, 1023, 1024, 3 << 20, -(1 << 30))] == ["0 B", "1023 B", "1.00 KB", "3.00 MB", "-1.00 GB"]


def test_long_names_and_shapes_are_cut() -> None:
    long = "n" * 80
    with profiler.profile() as prof, profiler.record_function(long):
        pass
    rows = prof.table().splitlines()
    assert "n" * 52 + "..." in rows[3] and long not in rows[3]
    assert long in prof.table(max_name_column_width=None)


def test_group_by_shape_and_stack() -> None:
    x, w = operands()
    small = ag.tensor(RNG.normal(size=(2, 8)))

    def left() -> None:
        x.sin()

    def right() -> None:
        x.sin()
        small.sin()

    with profiler.profile(record_shapes=True, with_stack=True) as prof:
        left()
        right()
    (one,) = prof.key_averages()
    assert one.count == 3 and one.stack == []
    shapes = {str(a.input_shapes): a.count for a in prof.key_averages(group_by_input_shape=True)}
    assert shapes == {"[[16, 8]]": 2, "[[2, 8]]": 1}
    stacks = [(a.stack[0].rpartition(": ")[2], a.count) for a in prof.key_averages(group_by_stack_n=1)]
    assert stacks == [("left", 1), ("right", 1), ("right", 1)]
    two = prof.key_averages(group_by_stack_n=2)
    assert all(a.stack[1].endswith(": test_group_by_shape_and_stack") for a in two)
    table = two.table()
    assert "Source Location" in table and re.search(rf"{re.escape(HERE)}\(\d+\): left", table)
    with profiler.profile() as plain:
        left()
    assert [a.stack[0].rpartition(": ")[2] for a in plain.key_averages(group_by_stack_n=3)] == ["left"]  # the innermost line is always known


def test_export_stacks(tmp_path: Path) -> None:
    x, w = operands()
    with profiler.profile(with_stack=True) as prof:
        for _ in range(20):
            net(x, w)
    prof.export_stacks(tmp_path / "s.txt")
    lines = (tmp_path / "s.txt").read_text().splitlines()
    assert lines and all(re.fullmatch(r".*: net;\w+ \d+", s) for s in lines)
    with profiler.profile() as bare:
        net(x, w)
    with pytest.raises(AotgradError, match="with_stack=True"):
        bare.export_stacks(tmp_path / "t.txt")


# ---- by source line -------------------------------------------------------------------------------------------------------------------

def test_line_averages_of_a_known_recording() -> None:
    a, b = (("f.py", 1), ("f.py", 2))
    events = recorded([
        (runtime.OP, "mul", 0, 10, 7, None), (runtime.NODE, "MulBackward0", 20, 50, 7, None), (runtime.NODE, "AccumulateGrad", 50, 60, -1, None),
        (runtime.KERNEL, "k", 100, 200, -1, ((a, 0.25, False), (b, 0.75, True))), (runtime.REGION, "f", 90, 210),
        (runtime.KERNEL, "kb", 310, 330, -1, ((b, 1.0, False),)), (runtime.REGION, "fb", 305, 335), (runtime.NODE, "CompiledFunctionBackward", 300, 340, 8, None),
    ])
    next(e for e in events if e.name == "mul").line = a
    lines = {(e.file, e.line): (e.forward, e.adjoint) for e in events.line_averages()}
    assert lines == {a: (10 + 25, 30), b: (0, 75 + 20)}
    table = events.line_averages().table(sort_by="line")
    assert [r.split()[:3] for r in table.splitlines()[3:5]] == [["f.py:1", "35.000us", "30.000us"], ["f.py:2", "0.000us", "95.000us"]]


@pytest.mark.parametrize("how", ["eager", "compiled", "compiled gradient"])
def test_lines_have_forward_and_adjoint_time(how: str) -> None:
    x, w = operands()
    if how == "compiled gradient":
        g = ag.compile(ag.value_and_grad(lambda w: net(x.numpy(), w)))
        run: Callable[[], Any] = lambda: g(w.detach().numpy())
    else:
        f = ag.compile(net) if how == "compiled" else net
        run = lambda: f(x, w).backward()
    with profiler.profile():
        run()
    with profiler.profile() as prof:
        run()
    lines = {e.line: e for e in prof.line_averages() if e.file == NET}
    for mark in ("matmul", "tanh", "sum"):
        assert lines[line_of(mark)].forward > 0 and lines[line_of(mark)].adjoint > 0, mark
    assert "y = ag.tanh(y)  # <tanh>" in prof.line_averages().table()


# ---- files ----------------------------------------------------------------------------------------------------------------------------

def sample() -> Any:
    x, w = operands()
    f = ag.compile(net)
    with profiler.profile(record_shapes=True, with_stack=True) as prof, profiler.record_function("</script><b a=\"1\">'&"):
        net(x, w).backward()
        f(x, w).backward()
    return prof


def test_chrome_trace(tmp_path: Path) -> None:
    prof = sample()
    prof.export_chrome_trace(tmp_path / "t.json")
    trace = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    complete = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert len(complete) == len(prof.function_events)
    for e, source in zip(complete, prof.function_events):
        assert e["name"] == source.name and e["pid"] == os.getpid() and e["tid"] == threading.get_native_id()
        assert e["ts"] == pytest.approx(source.time_range.start, abs=1e-3) and e["dur"] == pytest.approx(source.cpu_time_total, abs=1e-3)
        assert e["ts"] >= 0 and e["dur"] >= 0 and isinstance(e["cat"], str)
    open_until: list[float] = []  # slices of one thread nest, which Perfetto wants
    for e in complete:
        while open_until and open_until[-1] <= e["ts"] + 1e-3:
            open_until.pop()
        assert not open_until or e["ts"] + e["dur"] <= open_until[-1] + 2e-3
        open_until.append(e["ts"] + e["dur"])
    arrows = [e for e in trace["traceEvents"] if e["ph"] in "sf"]
    assert arrows and sorted(e["id"] for e in arrows if e["ph"] == "s") == sorted(e["id"] for e in arrows if e["ph"] == "f")
    assert {e["name"] for e in trace["traceEvents"] if e["ph"] == "M"} == {"process_name", "thread_name"}


class Page(HTMLParser):
    """Tags, attributes and the script of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}
        self.at = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.at = tag

    def handle_data(self, data: str) -> None:
        self.text[self.at] = self.text.get(self.at, "") + data


def test_flame_view_needs_nothing_else(tmp_path: Path) -> None:
    prof = sample()
    prof.export_html(tmp_path / "p.html", title="a <b> & c")
    text = (tmp_path / "p.html").read_text(encoding="utf-8")
    found = Page()
    found.feed(text)
    tags = [t for t, _ in found.tags]
    assert {"html", "canvas", "script", "table"} <= set(tags) and "b" not in tags and tags.count("script") == 1
    assert not [v for _, attrs in found.tags for k, v in attrs.items() if k in ("src", "href", "action")]
    assert not re.search(r"https?://|url\(|@import|import\(|fetch\(|XMLHttp", text)
    data, _ = json.JSONDecoder().raw_decode(found.text["script"], found.text["script"].index("{"))
    events = prof.function_events
    assert len(data["events"]) == len(events) and [data["names"][e[0]] for e in data["events"]] == [e.name for e in events]
    for row, e in zip(data["events"], events):
        parents, at = 0, e.cpu_parent
        while at is not None:
            parents, at = parents + 1, at.cpu_parent
        assert row[4] == parents and data["kinds"][row[1]] == e.kind
    assert "y = ag.tanh(y)" in text and "a &lt;b&gt; &amp; c" in text


def test_flame_view_of_very_many_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aotgrad.autograd.flame_view.LIMIT", 10)
    events = recorded([(runtime.OP, f"op{i}", 1000 * i, 1000 * i + i + 1) for i in range(50)])
    text = page(events)
    data, _ = json.JSONDecoder().raw_decode(text, text.index('{"events"'))
    assert data["names"] == [f"op{i}" for i in range(40, 50)] and "the 10 longest" in text
