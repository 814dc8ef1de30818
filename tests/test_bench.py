"""The measuring rule: who is timed, how, and what the report says. No time is asserted, only which rule was used and what follows from given rows."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import aotgrad as ag

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from aotgrad.cli.bench import environment, run
from benchmarks import __main__ as main
from benchmarks import harness, models, peers
from benchmarks.flops import Counter
from benchmarks.harness import OURS, Bench, Candidate, difference
from benchmarks.report import write_report

SHORT_METHOD, LONG_METHOD = "wall, 20th percentile", "CPU, paired"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench("work", tmp_path / "r.jsonl", quick=True)


def rows(bench: Bench) -> list[dict[str, Any]]:
    return [json.loads(line) for line in bench.out.read_text(encoding="utf-8").splitlines()]


def spin(seconds: float) -> list[float]:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return [1.0]


def test_short_calls_by_wall_clock_with_an_a_a_row(bench: Bench) -> None:
    done = bench.case("c", [Candidate(OURS, lambda x: [x + 1.0], args=(0.0,)), Candidate("peer", lambda: spin(1e-4))], [1.0], 0.0)
    assert {r["method"] for r in done.values()} == {SHORT_METHOD}
    assert list(done) == [OURS, "peer", "aotgrad, again (A/A)"]
    assert done[OURS]["ratio"] == 1.0 and done["peer"]["ratio"] > 10 and done["peer"]["seconds"] >= 9e-5


def test_long_calls_by_paired_cpu_time(bench: Bench) -> None:
    done = bench.case("c", [Candidate(OURS, lambda: spin(1e-3)), Candidate("peer", lambda: spin(3e-3))], [1.0], 0.0)
    assert {r["method"] for r in done.values()} == {LONG_METHOD}
    assert done["peer"]["ratio_low"] <= done["peer"]["ratio"] <= done["peer"]["ratio_high"] and 2 < done["peer"]["ratio"] < 4


def test_sleeping_costs_nothing_by_cpu_time(bench: Bench) -> None:
    def sleepy() -> list[float]:
        time.sleep(2e-3)
        return spin(1e-3)

    done = bench.case("c", [Candidate(OURS, lambda: spin(1e-3)), Candidate("peer", sleepy)], [1.0], 0.0)
    assert done["peer"]["ratio"] < 2


def test_who_gives_other_values_is_not_timed(bench: Bench) -> None:
    done = bench.case("c", [Candidate(OURS, lambda: [1.0]), Candidate("wrong", lambda: [1.1]), Candidate("broken", lambda: 1 / 0)], [1.0], 1e-6)
    assert "wrong" not in done and "broken" not in done and "ZeroDivisionError" in bench.skipped["broken, c"]
    with pytest.raises(AssertionError, match="aotgrad's values differ by 1"):
        bench.case("d", [Candidate(OURS, lambda: [2.0])], [1.0], 1e-6)


def test_a_missing_peer_is_named(bench: Bench) -> None:
    def make() -> Candidate:
        return Candidate("peer", harness.optional("no_such_peer_here").call)

    assert bench.peer("peer", make) == []
    assert "no_such_peer_here" in rows(bench)[0]["why"]


def test_difference_sees_shape_and_nan() -> None:
    assert difference([1.0, 2.0], [1.0, 2.5]) == pytest.approx(0.2)
    assert difference([1.0], [1.0, 2.0]) == np.inf and difference([np.nan], [1.0]) == np.inf
    assert difference([], []) == 0.0


def test_report_says_what_was_missed_and_by_how_much(bench: Bench) -> None:
    bench.write({"kind": "machine", "processor": "p", "cores": 2, "load": 0.0, "system": "s", "python": "3", "versions": {"numpy": "2"}, "commit": "abc",
                 "quick": False, "command": "aotgrad bench work", "date": "2026-01-01"})
    bench.case("c", [Candidate(OURS, lambda: [1.0])], [1.0], 0.0, per=10)
    bench.target("fast", 1.5, 1.0)
    bench.target("strong", 3.0, 2.0, at_least=True)
    bench.target("absent", float("nan"), 2.0)
    bench.fact("peak", 12.5, "GFLOP/s")
    bench.skip("peer", "not installed")
    bench.write({"kind": "done", "seconds": 120.0})
    text = write_report(bench.out, bench.out.with_name("R.md")).read_text(encoding="utf-8")
    assert "1 met, 1 missed, 1 not measured" in text
    assert "| work | fast | ≤ 1 x | 1.5 | **missed** by 50 % |" in text and "| work | strong | ≥ 2 x | 3 | met |" in text
    assert "together 2 min" in text and "aotgrad, again (A/A)" in text and "12.5 GFLOP/s" in text and "peer (not installed)" in text and "ns/element" in text


def test_the_limit_stands_beside_the_time(bench: Bench) -> None:
    work = harness.Work(flops=2e6, moved=1e6, limit=5e-4)
    row = bench.case("c", [Candidate(OURS, lambda: spin(1e-3))], [1.0], 0.0, work=work)[OURS]
    assert row["flops"] == 2e6 and 0.2 < row["share"] <= 0.55
    assert "| of the limit |" in write_report(bench.out, bench.out.with_name("R.md")).read_text(encoding="utf-8")


def test_a_quick_run_complains_of_ratios_that_are_far_off(bench: Bench) -> None:
    bench.target("a little slow", 0.5, 1.0, at_least=True)
    bench.target("far too slow", 0.3, 1.0, at_least=True)
    bench.target("takes too long", 3.1, 1.0)
    bench.target("a time", 9.0, 1.0, unit="s")
    assert bench.far == ["far too slow", "takes too long"]
    bench.quick = False
    bench.target("in a full run the report says it", 0.1, 1.0, at_least=True)
    assert len(bench.far) == 2


def test_an_excess_is_what_is_beyond_the_spread(bench: Bench) -> None:
    timed = {OURS: {"ratio": 1.0}, "aotgrad, again (A/A)": {"ratio": 1.01, "ratio_low": 0.96, "ratio_high": 1.02}}
    for ratio in (1.1, 1.02):
        bench.excess("turned", ratio, timed, 3.0)
    first, second = (r for r in rows(bench) if r["kind"] == "target")
    assert first["value"] == pytest.approx(6.0) and not first["met"] and second["value"] == 0.0 and second["met"]
    assert first["what"] == "turned, beyond the A/A spread" and first["unit"] == "%"


def test_a_rerun_replaces_its_rows_only_and_what_is_interrupted_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results.jsonl"
    for workload in ("limits", "gemm"):
        Bench(workload, results).fact("old", 1)

    def interrupted(command: list[str], **_: Any) -> Any:
        Bench("calls", Path(command[-1])).fact("new", 2)
        raise KeyboardInterrupt

    monkeypatch.setattr(main.subprocess, "run", interrupted)
    monkeypatch.setattr(main, "machine_row", lambda names, quick: {"kind": "fact", "name": "machine", "value": 0, "unit": "", "note": ""})
    with pytest.raises(KeyboardInterrupt):
        main._run_one("calls", ["calls"], results, False)
    found = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    assert [(r["workload"], r.get("name", r["kind"])) for r in found] == [("limits", "old"), ("calls", "machine"), ("calls", "new"), ("calls", "skip"), ("gemm", "old")]
    assert list(tmp_path.iterdir()) == [results]


def test_pictures_are_drawn_without_a_plotting_library(bench: Bench) -> None:
    bench.workload = "mlp"
    bench.case("step", [Candidate(OURS, lambda: [1.0]), Candidate("a < b", lambda: spin(1e-4))], [1.0], 0.0)
    assert "![Speed over" in write_report(bench.out, bench.out.with_name("R.md")).read_text(encoding="utf-8")
    root = ElementTree.fromstring((bench.out.parent / "pictures" / "speed.svg").read_text(encoding="utf-8"))
    assert any("a < b" in (t.text or "") for t in root.iter("{http://www.w3.org/2000/svg}text"))


def test_the_graph_for_onnxruntime_is_the_model(bench: Bench) -> None:
    pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    x, w, b = rng.standard_normal((1, 3, 8, 8), dtype=np.float32), rng.standard_normal((4, 3, 3, 3), dtype=np.float32), np.ones(4, np.float32)
    c = peers.onnx_session(lambda fn, v: fn.relu(fn.conv2d(v, w, b, 2, 1)), x)
    want = np.asarray(ag.relu(ag.conv2d(x, w, b, 2, 1)))
    assert difference(c.call()[0], want) < 1e-5


def test_operations_of_resnet_are_counted() -> None:
    counter = Counter()
    models.resnet(counter, counter.image(1, 3, 224, 224), models.initial(np.random.default_rng(0))[0], None)
    assert counter.flops == pytest.approx(3.63e9, rel=0.01)  # 1.81 G multiply-adds, as published


def test_environment_is_fit_for_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    env = environment()
    assert "OPENBLAS_CORETYPE" not in env and env["OMP_NUM_THREADS"] == "1" and int(env["MALLOC_TRIM_THRESHOLD_"]) > 1 << 30
    for name in ("MALLOC_TRIM_THRESHOLD_", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert "warm" in str(harness.clean_environment())


def test_workloads_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([], listing=True) == 0
    assert set(capsys.readouterr().out.split()) == set(main.ORDER)
