"""The profiler: events of eager and compiled code, averages, tables, traces, the flame view, region hooks, and what it refuses."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotgrad as ag
from aotgrad.autograd import profiler
from aotgrad.autograd.flame_view import page
from aotgrad.autograd.profiler_util import EventList, FunctionEvent, format_memory, format_time, read
from aotgrad.frontend import detour, dispatch, factories
from aotgrad_runtime import profiler as runtime
from aotgrad_runtime.errors import AotgradError

RNG = np.random.default_rng(0)
HERE = Path(__file__).name


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Every test leaves the profiler off."""
    yield
    assert runtime.state.recorder is None and runtime.state.hook is None and not runtime.watched()
    assert not detour.paused() and dispatch.run_eager is dispatch._run_eager


def line_of(mark: str) -> int:
    """The number of the line of this file that ends with a comment."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
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


# ---- eager ----------------------------------------------------------------------------------------------------------------------------

def test_eager_ops_and_nodes() -> None:
    x, w = operands()
    with profiler.profile(record_shapes=True) as prof:
        loss = net(x, w)
        loss.backward()
    events = prof.function_events
    assert names(events, "op") == ["matmul", "tanh", "mul", "sum"]
    assert names(events, "backward") == ["SumBackward0", "MulBackward0", "TanhBackward0", "MmBackward0", "AccumulateGrad"]
    by_name = {e.name: e for e in events}
    assert by_name["matmul"].input_shapes == [[16, 8], [8, 4]] and by_name["mul"].input_shapes == [[16, 4], [16, 4]]
    assert by_name["AccumulateGrad"].input_shapes == [[8, 4]]
    assert [by_name[n].line for n in ("matmul", "tanh", "sum")] == [(__file__, line_of(n)) for n in ("matmul", "tanh", "sum")]
    assert by_name["TanhBackward0"].sequence_nr == by_name["tanh"].sequence_nr >= 0
    check_forest(events)


def test_methods_operators_factories_and_numpy_functions_are_seen() -> None:
    x, _ = operands()
    a = RNG.normal(size=3)
    with profiler.profile() as prof:
        x.exp() + 1.0
        np.sin(x)
        ag.cos(a)
        x[1:, 0]
        ag.zeros(3)
        ag.rand(2, 2)
        ag.ones_like(x)
    assert names(prof.function_events, "op") == ["exp", "add", "sin", "cos", "getitem", "zeros", "rand", "ones_like"]


def test_grad_and_double_backward() -> None:
    x = ag.tensor([1.0, 2.0], dtype=ag.float64, requires_grad=True)
    with profiler.profile() as prof:
        (g,) = ag.autograd.grad((x * x * x).sum(), x, create_graph=True)
        g.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [6.0, 12.0])
    nodes = names(prof.function_events, "backward")
    assert nodes.count("SumBackward0") == 2 and nodes.count("MulBackward0") >= 4
    check_forest(prof.function_events)


def test_record_function_nests_and_children_are_excluded() -> None:
    x, w = operands()
    with profiler.profile() as prof, profiler.record_function("outer"):
        net(x, w)
        with profiler.record_function("inner"):
            net(x, w)
    events = prof.function_events
    outer, inner = (next(e for e in events if e.name == n) for n in ("outer", "inner"))
    assert inner.cpu_parent is outer and outer.cpu_parent is None
    assert [c.name for c in outer.cpu_children] == ["matmul", "tanh", "mul", "sum", "inner"]
    assert [c.name for c in inner.cpu_children] == ["matmul", "tanh", "mul", "sum"]
    check_forest(events)


def test_record_function_as_a_decorator_recursion_and_errors() -> None:
    @profiler.record_function("fact")
    def fact(n: int) -> int:
        return 1 if n == 0 else n * fact(n - 1)

    @profiler.record_function("fails")
    def fails() -> None:
        raise KeyError("mine")

    assert fact(3) == 6  # outside a profile
    with profiler.profile() as prof:
        assert fact(3) == 6
        with pytest.raises(KeyError, match="mine"):
            fails()
    averages = {a.key: a for a in prof.key_averages()}
    assert averages["fact"].count == 4 and averages["fails"].count == 1
    check_forest(prof.function_events)
    depth, e = 0, max((e for e in prof.function_events if e.name == "fact"), key=lambda e: e.id)
    while e.cpu_parent is not None:
        depth, e = depth + 1, e.cpu_parent
    assert depth == 3


def test_an_op_that_fails_leaves_the_profile_whole() -> None:
    x, w = operands()
    with profiler.profile() as prof:
        with pytest.raises(AotgradError):
            ag.matmul(w, x.exp())
        ag.sin(x)
    assert names(prof.function_events, "op") == ["exp", "sin"]


def test_results_are_the_same_while_profiling() -> None:
    x, w = operands()
    compiled = ag.compile(ag.value_and_grad(lambda w: net(x.numpy(), w)))
    plain = [net(x, w).item(), *(np.asarray(v) for v in compiled(w.detach().numpy()))]
    with profiler.profile():
        seen = [net(x, w).item(), *(np.asarray(v) for v in compiled(w.detach().numpy()))]
    for a, b in zip(plain, seen):
        np.testing.assert_array_equal(a, b)


def test_memory_of_results() -> None:
    x, w = operands()
    with profiler.profile(profile_memory=True) as prof:
        x.exp()
        x.reshape(8, 16)
        x[1:]
        ag.matmul(x, w)
        with profiler.record_function("block"):
            x.sin()
    memory = {e.name: (e.cpu_memory_usage, e.self_cpu_memory_usage) for e in prof.function_events}
    size = 16 * 8 * 8
    assert memory["exp"] == (size, size) and memory["matmul"] == (16 * 4 * 8, 16 * 4 * 8)
    assert memory["reshape"] == memory["getitem"] == (0, 0)  # views
    assert memory["block"] == (size, 0)
    assert "Self CPU Mem" in prof.key_averages().table() and "1.00 KB" in prof.key_averages().table()


# ---- averages and tables --------------------------------------------------------------------------------------------------------------

def recorded(events: list[tuple[Any, ...]], **options: bool) -> EventList:
    """A recording made by hand: (kind, name, start us, end us, sequence, lines), in order of their ends."""
    made = runtime.Recorder(**options)
    for kind, name, start, end, *rest in events:
        sequence, lines = (*rest, -1, None)[:2] if len(rest) < 2 else rest
        made.append((kind, name, 1000 * start, 1000 * end, (), None, 0, sequence, lines))
    return read(made)


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


# ---- compiled -------------------------------------------------------------------------------------------------------------------------

def test_compiled_regions_and_kernels() -> None:
    x, w = operands()
    f = ag.compile(net)
    f(x, w)
    with profiler.profile():
        f(x, w).backward()  # builds the forms for profiling
    w.grad = None
    with profiler.profile(record_shapes=True, profile_memory=True) as prof:
        f(x, w).backward()
    events = prof.function_events
    assert names(events, "compile") == [] and names(events, "op") == []
    assert names(events, "region") == ["net", "net (backward)"]
    forward, backward = (e for e in events if e.kind == "region")
    assert backward.cpu_parent is not None and backward.cpu_parent.name == "CompiledFunctionBackward"
    assert forward.input_shapes == [[16, 8], [8, 4]] and forward.cpu_memory_usage == 8
    kernels = [e for e in events if e.kind == "kernel"]
    assert kernels and all(e.cpu_parent in (forward, backward) for e in kernels)
    assert "dot" in forward.cpu_children[0].name and "tanh" in forward.cpu_children[0].name
    for e in kernels:
        assert sum(share for _, share, _ in e.lines) == pytest.approx(1.0)
        assert {file for (file, _), _, _ in e.lines} == {__file__}
    check_forest(events)
    np.testing.assert_allclose(w.grad.numpy(), _gradient(x, w), rtol=1e-12)


def _gradient(x: Any, w: Any) -> Any:
    y = np.tanh(x.numpy() @ w.detach().numpy())
    return x.numpy().T @ (2 * y * (1 - y * y))


def test_the_first_profiled_call_tells_compiling_apart() -> None:
    f = ag.compile(lambda x: ag.sum(ag.sin(x) * 1.25))
    with profiler.profile() as prof:
        f(np.ones(7))
    made = names(prof.function_events, "compile")
    assert [m.split()[0] for m in made] == ["trace", "compile", "compile"] and "for profiling" in made[2]
    assert len(names(prof.function_events, "region")) == 1
    check_forest(prof.function_events)


def test_kernels_of_long_programs_and_loops() -> None:
    def body(x: Any) -> Any:
        for i in range(60):
            x = ag.cumsum(ag.sin(x) * (i + 1.0), 0)
        return ag.scan(lambda c, r: (ag.tanh(c + r), c), x[0] * 0.0, x)[1]

    f = ag.compile(body)
    x = RNG.normal(size=(40, 3))
    plain = f(x)
    with profiler.profile():
        f(x)
    with profiler.profile() as prof:
        seen = f(x)
    np.testing.assert_array_equal(plain, seen)
    kernels = names(prof.function_events, "kernel")
    assert len(kernels) == len(set(kernels)) >= 60 and sum("scan" in k for k in kernels) == 1  # a loop is one kernel, its rounds do not report
    check_forest(prof.function_events)


def test_fast_path_is_back_after_a_profile() -> None:
    f = ag.compile(lambda x: ag.sum(x * 2.5))
    x = np.ones(5)
    f(x)
    before = f.instances()
    assert len(before) == 1
    with profiler.profile():
        assert f.instances() == ()
        f(x)
    assert f.instances() == before and f(x) == 12.5


def test_profile_and_anomaly_mode_together() -> None:
    f = ag.compile(lambda x: ag.sum(ag.log(x)))
    x = np.ones(3)
    f(x)
    with profiler.profile() as prof, ag.autograd.detect_anomaly():
        f(x)
        with pytest.raises(AotgradError, match="log"):
            f(-x)
    assert f.instances() and len(names(prof.function_events, "region")) == 2
    with ag.autograd.detect_anomaly():
        with profiler.profile():
            f(x)
        assert f.instances() == ()
        with pytest.raises(AotgradError, match="log"):
            f(-x)
    assert f.instances()


def test_a_kernel_that_fails_is_an_event_too() -> None:
    f = ag.compile(lambda x, i: ag.sum(x[i]))
    x = RNG.normal(size=4)
    f(x, np.array([0, 1]))
    with profiler.profile() as prof:
        with pytest.raises(IndexError, match="out of range"):
            f(x, np.array([0, 9]))
        f(x, np.array([0, 1]))
    assert len(names(prof.function_events, "region")) == 1
    check_forest(prof.function_events)


def test_equal_programs_from_different_lines_keep_their_lines() -> None:
    f = ag.compile(lambda x: ag.sum(ag.cos(x) * 3.5))  # <first>
    g = ag.compile(lambda x: ag.sum(ag.cos(x) * 3.5))  # <second>
    x = np.ones(9)
    with profiler.profile():
        f(x), g(x)
    with profiler.profile() as prof:
        f(x), g(x)
    lines = [e.line for e in prof.function_events if e.kind == "kernel"]
    assert set(lines[:len(lines) // 2]) == {(__file__, line_of("first"))} and set(lines[len(lines) // 2:]) == {(__file__, line_of("second"))}


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
    lines = {e.line: e for e in prof.line_averages() if e.file == __file__}
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


# ---- region hooks ---------------------------------------------------------------------------------------------------------------------

def test_region_hook_gets_raw_events() -> None:
    f = ag.compile(net)
    x, w = operands()
    seen: list[tuple[Any, int, int]] = []
    assert ag.set_region_hook(lambda *event: seen.append(event)) is None
    try:
        f(x, w).backward()
    finally:
        hook = ag.set_region_hook(None)
    assert hook is not None
    f(x, w)
    regions = [(r.kind, r.name, p) for r, p, _ in seen]
    assert regions[0] == ("region", "net", 0) and regions[1][0] == "kernel" and regions[1][2] == 0
    assert [r for r in regions if r[0] == "region"] == [("region", n, p) for n in ("net", "net (backward)") for p in (0, 1)]
    times = [t for _, _, t in seen]
    assert times == sorted(times)
    opened: list[Any] = []
    for region, phase, _ in seen:
        if phase == 0:
            opened.append(region)
            assert region.parent is (None if region.kind == "region" else opened[0])
        else:
            assert opened.pop() is region
    assert not opened
    kernel = next(r for r, _, _ in seen if r.kind == "kernel")
    assert kernel.file == __file__ and kernel.line in (line_of("matmul"), line_of("tanh"), line_of("sum")) and "dot" in kernel.ops
    assert repr(kernel).startswith("<kernel net#0")


def test_what_a_hook_raises_reaches_the_caller() -> None:
    f = ag.compile(lambda x: ag.sum(ag.sin(x) * 0.75))
    x = np.ones(4)
    plain = f(x)
    for kind, phase in (("region", 0), ("kernel", 0), ("kernel", 1), ("region", 1)):
        def hook(region: Any, at: int, _: int, kind: str = kind, phase: int = phase) -> None:
            if (region.kind, at) == (kind, phase):
                raise LookupError(f"{kind} {phase}")

        ag.set_region_hook(hook)
        try:
            with pytest.raises(LookupError, match=f"{kind} {phase}"):
                f(x)
        finally:
            ag.set_region_hook(None)
        assert f(x) == plain


def test_hook_and_profile_together_and_refusals() -> None:
    f = ag.compile(lambda x: ag.sum(ag.cos(x) * 0.75))
    x = np.ones(4)
    seen: list[int] = []
    ag.set_region_hook(lambda region, phase, ns: seen.append(phase))
    try:
        with profiler.profile():
            f(x)
        with profiler.profile() as prof:
            f(x)
    finally:
        ag.set_region_hook(None)
    kernels = len(names(prof.function_events, "kernel"))
    assert kernels and len(seen) == 2 * 2 * (kernels + 1)
    with pytest.raises(TypeError, match="set_region_hook: fn must be callable"):
        ag.set_region_hook(3)  # type: ignore[arg-type]


def test_a_hook_may_call_compiled_functions() -> None:
    f = ag.compile(lambda x: ag.sum(ag.sin(x) * 4.0))
    g = ag.compile(lambda x: ag.sum(ag.exp(x) * 4.0))
    x = np.ones(4)
    plain, inner = (f(x), g(x)), []
    depth = [0]

    def hook(region: Any, phase: int, _: int) -> None:
        if depth[0] == 0:
            depth[0] = 1
            inner.append(g(x))
            depth[0] = 0

    ag.set_region_hook(hook)
    try:
        assert f(x) == plain[0]
        with profiler.profile() as prof:
            f(x)
    finally:
        ag.set_region_hook(None)
    assert len(inner) >= 4 and set(inner) == {plain[1]}
    check_forest(prof.function_events)


# ---- threads --------------------------------------------------------------------------------------------------------------------------

def in_thread(work: Callable[[], Any]) -> Any:
    out: list[Any] = []

    def run() -> None:
        try:
            out.append((True, work()))
        except BaseException as error:
            out.append((False, error))

    t = threading.Thread(target=run)
    t.start()
    t.join()
    good, value = out[0]
    if not good:
        raise value
    return value


def test_a_profile_belongs_to_its_thread() -> None:
    f = ag.compile(lambda x: ag.sum(ag.sin(x) * 5.0))
    x = np.ones(6)
    f(x)

    def other() -> Any:
        with profiler.profile() as inner:
            f(x)
            ag.exp(x)
        return inner

    with profiler.profile() as prof:
        in_thread(lambda: (ag.cos(x), f(x)))
        ag.sin(x)
        inner = in_thread(other)
        f(x)
    assert names(prof.function_events, "op") == ["sin"] and len(names(prof.function_events, "region")) == 1
    assert names(inner.function_events, "op") == ["exp"] and len(names(inner.function_events, "region")) == 1
    assert {e.thread for e in inner.function_events} != {e.thread for e in prof.function_events}


def test_many_threads_record_the_same_function() -> None:
    f = ag.compile(lambda x: ag.cumsum(ag.sin(x) * 5.5, 0))
    x = RNG.normal(size=20_000)  # large enough that calls release the GIL
    expected = f(x)
    with profiler.profile():
        f(x)
    found: list[Any] = []

    def work() -> None:
        with profiler.profile() as prof:
            for _ in range(30):
                np.testing.assert_array_equal(f(x), expected)
        found.append(prof)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(found) == 4
    per_call = len(names(found[0].function_events, "kernel")) // 30
    for prof in found:
        assert len(names(prof.function_events, "region")) == 30 and len(names(prof.function_events, "kernel")) == 30 * per_call > 0
        check_forest(prof.function_events)


def test_a_profile_left_open_ends_with_its_thread() -> None:
    def leave() -> Any:
        prof = profiler.profile()
        prof.__enter__()
        assert runtime.watched()
        return prof

    prof = in_thread(leave)
    gc.collect()
    assert not runtime.watched()
    with pytest.raises(RuntimeError, match="Profiler didn't finish running"):
        prof.key_averages()
    with pytest.raises(RuntimeError, match="in the thread that entered it"):
        prof.__exit__(None, None, None)


# ---- refusals -------------------------------------------------------------------------------------------------------------------------

def test_nested_profiles_are_refused_and_change_nothing() -> None:
    x, _ = operands()
    with profiler.profile() as prof:
        x.sin()
        with pytest.raises(AotgradError, match="Profiler is already enabled on this thread") as error, profiler.profile():
            pass
        assert isinstance(error.value, RuntimeError)
        with pytest.raises(RuntimeError, match="Profiler context manager is not reentrant"), prof:
            pass
        x.cos()
    assert names(prof.function_events, "op") == ["sin", "cos"]
    with pytest.raises(RuntimeError, match="not reentrant"):
        prof.__enter__()


def test_results_before_the_end_are_refused() -> None:
    prof = profiler.profile()
    with pytest.raises(AotgradError, match="Profiler didn't finish running: it was never entered"):
        prof.table()
    assert str(prof).startswith("<unfinished") and repr(prof).startswith("<unfinished") and prof.function_events is None
    with prof:
        for ask in (prof.key_averages, prof.total_average, prof.table, prof.line_averages, lambda: prof.self_cpu_time_total, lambda: prof.export_html("x"),
                    lambda: prof.export_chrome_trace("x")):
            with pytest.raises(RuntimeError, match="Profiler didn't finish running: leave its block first"):
                ask()
    assert not Path("x").exists()
    with pytest.raises(RuntimeError, match="when it's not running"):
        prof.__exit__(None, None, None)
    with pytest.raises(RuntimeError, match="when it's not running"):
        profiler.profile().__exit__(None, None, None)


def test_switched_off() -> None:
    x, _ = operands()
    with profiler.profile(enabled=False) as prof:
        assert not runtime.watched()
        x.sin()
        with profiler.profile() as inner:
            x.sin()
    assert len(inner.function_events) == 1
    with pytest.raises(RuntimeError, match="enabled=False"):
        prof.key_averages()


def test_bad_arguments() -> None:
    with profiler.profile() as prof:
        ag.sin(1.0)
    for text, ask in {
        "sort_by must be one of": lambda: prof.key_averages().table(sort_by="cuda_time"), "row_limit must be an int": lambda: prof.table(row_limit=1.5),
        "group_by_stack_n must be": lambda: prof.key_averages(group_by_stack_n=-1), "metric must be": lambda: prof.function_events.export_stacks("x", "wall"),
        "name must be a str": lambda: profiler.record_function(3), "use_device must be": lambda: profiler.profile(use_device="cuda"),
        "with_flops is not available": lambda: profiler.profile(with_flops=True), "leaves nothing to record": lambda: profiler.profile(use_cpu=False),
        "without having been entered": lambda: profiler.record_function("a").__exit__(), "one of total, forward": lambda: prof.line_averages().table(sort_by="x"),
    }.items():
        with pytest.raises(AotgradError, match=text):
            ask()


def test_record_function_across_the_borders_of_a_profile() -> None:
    before, after = profiler.record_function("before"), profiler.record_function("after")
    before.__enter__()
    with profiler.profile() as prof:
        before.__exit__()
        after.__enter__()
    after.__exit__()
    assert list(prof.function_events) == []


def test_an_error_in_the_block_ends_the_profile() -> None:
    with pytest.raises(KeyError), profiler.profile() as prof:
        ag.sin(1.0)
        raise KeyError("mine")
    assert names(prof.function_events, "op") == ["sin"]


def test_events_keep_no_tensors_alive() -> None:
    class Mark:
        pass

    x, _ = operands()
    with profiler.profile(record_shapes=True, profile_memory=True, with_stack=True):
        y = x.sin()
        y.mark = Mark()
        ref = weakref.ref(y.mark)
        del y
        assert ref() is None


# ---- other set-ups --------------------------------------------------------------------------------------------------------------------

CODE = """
    import sys
    if "blocked" in sys.argv:
        sys.modules["llvmlite"] = sys.modules["lark"] = None
    import numpy as np, aotgrad as ag
    from aotgrad.autograd import profiler
    f = ag.compile(lambda x: ag.sum(ag.sin(x) * 1.5))
    value = f(np.ones(3))
    if "profile" in sys.argv:
        with profiler.profile() as prof:
            assert f(np.ones(3)) == value
        print(sorted(e.kind for e in prof.function_events))
        seen = []
        ag.set_region_hook(lambda region, phase, ns: seen.append(region.kind))
        assert f(np.ones(3)) == value
        ag.set_region_hook(None)
        print(seen)
"""


def process(tmp_path: Path, *args: str, **env: str) -> list[str]:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(CODE), encoding="utf-8")
    done = subprocess.run([sys.executable, str(script), *args], capture_output=True, text=True, check=False, timeout=120,
                          env={**os.environ, "AOTGRAD_CACHE_DIR": str(tmp_path / "cache"), **env})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_without_the_compiler_and_without_the_trampoline(tmp_path: Path) -> None:
    process(tmp_path)
    whole = ["['compile', 'kernel', 'region']", "['region', 'kernel', 'kernel', 'region']"]
    assert process(tmp_path, "profile", "blocked") == ["['compile', 'region']", "['region', 'region']"]  # never profiled before: regions alone
    assert process(tmp_path, "profile", AOTGRAD_NO_TRAMPOLINE="1") == whole
    assert process(tmp_path, "profile", "blocked") == whole  # from the cache


def test_nothing_is_in_the_way_when_off() -> None:
    makers = {n: getattr(factories, n) for n in factories._MAKERS}
    assert makers == factories._MAKERS and dispatch.run_eager is dispatch._run_eager
    with profiler.profile():
        assert dispatch.run_eager is not dispatch._run_eager and factories._full is not factories._MAKERS["_full"]
    assert {n: getattr(factories, n) for n in factories._MAKERS} == factories._MAKERS
    assert isinstance(recorded([(runtime.OP, "a", 0, 1)])[0], FunctionEvent)
