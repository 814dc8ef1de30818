"""What the profiler records of eager and compiled code, region hooks, threads, and what it refuses."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from profiler_tools import NET, RNG, check_forest, line_of, names, net, operands, recorded

import aotgrad as ag
from aotgrad.autograd import profiler
from aotgrad.autograd.profiler_util import FunctionEvent
from aotgrad.frontend import dispatch, factories
from aotgrad_runtime import profiler as runtime
from aotgrad_runtime import watchers
from aotgrad_runtime.errors import AotgradError


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Every test leaves the profiler off."""
    yield
    assert runtime.state.recorder is None and runtime.state.hook is None and not runtime.watched()
    assert not watchers.shared.count and dispatch.run_eager is dispatch._run_eager


# ---- eager ----------------------------------------------------------------------------------------------------------------------------

def test_eager_ops_and_nodes() -> None:
    x, w = operands()
    with profiler.profile(record_shapes=True) as prof:
        loss = net(x, w)
        loss.backward()
    events = prof.function_events
    assert names(events, "op") == ["matmul", "tanh", "mul", "sum", "add"]  # the last sums both gradients of a square, in the pass; torch shows its add_ too
    assert names(events, "backward") == ["SumBackward0", "MulBackward0", "TanhBackward0", "MmBackward0", "AccumulateGrad"]
    by_name = {e.name: e for e in events}
    assert by_name["matmul"].input_shapes == [[16, 8], [8, 4]] and by_name["mul"].input_shapes == [[16, 4], [16, 4]]
    assert by_name["AccumulateGrad"].input_shapes == [[8, 4]]
    assert [by_name[n].line for n in ("matmul", "tanh", "sum")] == [(NET, line_of(n)) for n in ("matmul", "tanh", "sum")]
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
        assert {file for (file, _), _, _ in e.lines} == {NET}
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
        with pytest.raises(IndexError, match="out of bounds"):
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
    assert set(lines[:len(lines) // 2]) == {(__file__, line_of("first", __file__))} and set(lines[len(lines) // 2:]) == {(__file__, line_of("second", __file__))}


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
    assert kernel.file == NET and kernel.line in (line_of("matmul"), line_of("tanh"), line_of("sum")) and "dot" in kernel.ops
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


def test_watched_calls_that_came_before_keep_their_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of a thread that watches nothing; hooks on what is saved see every call."""
    x, w = ag.ones(3, 4, requires_grad=True), ag.ones(4, 2, requires_grad=True)
    for _ in range(20):
        wanted = (x @ w).t()
    monkeypatch.setattr(dispatch, "_gather", lambda *args: 1 / 0)
    with profiler.profile() as prof:
        found = (x @ w).t()  # <known>
        other: list[Any] = []
        thread = threading.Thread(target=lambda: other.append((x @ w).tolist()))
        thread.start()
        thread.join()
    assert other == [(x @ w).tolist()] and found.tolist() == wanted.tolist() and found.grad_fn.name() == wanted.grad_fn.name()
    events = [e for e in prof.function_events or () if e.name in ("matmul", "t")]
    at = __file__, line_of("known", __file__)
    assert [(e.name, e.line) for e in events] == [("matmul", at), ("t", at)]
    assert events[0].sequence_nr == found.grad_fn.next_functions[0][0]._seq
    monkeypatch.undo()
    with profiler.profile(record_shapes=True) as prof:
        _ = x @ w
    assert [e.input_shapes for e in prof.function_events or () if e.name == "matmul"] == [[[3, 4], [4, 2]]]
    packed: list[Any] = []
    with profiler.profile(), ag.autograd.graph.saved_tensors_hooks(lambda t: packed.append(1) or t, lambda t: t):
        _ = x @ w
    assert len(packed) == 2
