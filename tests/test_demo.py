"""The demo: what it trains, fits, shows and ships."""

from __future__ import annotations

import doctest
import io
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aotgrad.demo import data as bundled
from aotgrad.demo import models, plot, progress, timing
from aotgrad.demo.fit import fit, grid


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_whole_demo(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "aotgrad", "demo", "--out", str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not done.stderr  # the bar is for terminals
    accuracy = re.search(r"held-back accuracy ([\d.]+) %", done.stdout)
    assert accuracy and float(accuracy[1]) >= 95
    assert "a Python without llvmlite" in done.stdout and "Done in" in done.stdout
    assert float(re.search(r"largest difference ([\d.e-]+) of the gradient's norm", done.stdout)[1]) < 1e-8  # type: ignore[index]
    assert float(re.search(r"Jacobian against central differences: largest difference ([\d.e-]+)", done.stdout)[1]) < 1e-7  # type: ignore[index]
    assert re.search(r"compiled [\d.]+ [num]?s, derived by hand in plain NumPy [\d.]+ [num]?s", done.stdout)
    ways = 1 + (shutil.which("cc") is not None)  # from Python, and from C where there is a compiler
    assert done.stdout.count("loss and gradient equal to the last bit") == ways and ("called from a C program" in done.stdout) == (ways == 2)
    assert {"libdigits_loss.so", "digits_loss.h", "learning.svg"} <= {p.name for p in tmp_path.iterdir()}
    root = ET.fromstring((tmp_path / "learning.svg").read_text(encoding="utf-8"))
    curves = [e for e in root.iter() if e.tag.endswith("polyline")]
    words = [e.text or "" for e in root.iter() if e.tag.endswith("text")]
    assert "logarithmic scale" in words and {"0.01", "0.1", "1"} <= set(words) and "training loss over epochs (logarithmic axis)" in done.stdout
    assert len(curves) == 2 and all(len(e.attrib["points"].split()) == 40 for e in curves)


def test_interrupt_ends_it_quietly() -> None:
    with subprocess.Popen([sys.executable, "-m", "aotgrad", "demo", "--epochs", "100000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
        assert p.stdout is not None and p.stderr is not None
        p.stdout.readline()
        time.sleep(0.5)
        p.send_signal(signal.SIGINT)
        error = p.stderr.read()
        assert p.wait(60) == 130
    assert error == "aotgrad: interrupted\n"


def test_bad_arguments(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    for arguments, named in ((["--epochs", "0"], "--epochs"), (["--out", str(tmp_path / "file" / "x")], "--out")):
        done = subprocess.run([sys.executable, "-m", "aotgrad", "demo", *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and named in done.stderr and "Traceback" not in done.stderr


def test_without_llvmlite_it_says_so_before_anything_else() -> None:
    code = "import sys; sys.modules['llvmlite'] = None; from aotgrad.cli import main; sys.exit(main(['demo']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stdout == ""
    assert "pip install llvmlite" in done.stderr and "Traceback" not in done.stderr and len(done.stderr.splitlines()) == 1


def test_no_ratio_of_times_that_scatter() -> None:
    rng = np.random.default_rng(0)
    quiet = np.array([54e-6, 157e-6]) * (1 + 0.05 * rng.random((200, 2)))
    assert timing.judge(quiet).steady and "2.9 times as long" in timing.summary(timing.judge(quiet))
    late = quiet.copy()
    late[::2] *= 30  # every other call met the scheduler: far fewer good samples than the percentile needs to be trusted
    late[1::4] *= 30
    drifting = quiet.copy()
    drifting[:100, 1] *= 270  # one side had the machine to itself for half of the run
    for busy in (late, drifting):
        assert not timing.judge(busy).steady
        assert "times as long" not in timing.summary(timing.judge(busy)) and "no ratio" in timing.summary(timing.judge(busy))
    rare = quiet.copy()
    rare[::10] *= 100
    assert timing.judge(rare).steady and timing.judge(rare).second < 170e-6


def test_timing_process_has_one_blas_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}
    real = subprocess.run

    def spy(*args: Any, **kwargs: Any) -> Any:
        seen.update(kwargs["env"])
        return real(*args, **kwargs)

    monkeypatch.setattr(subprocess, "run", spy)
    rng = np.random.default_rng(0)
    found = timing.in_own_process([*models.initial(), rng.random((8, 64)).astype(np.float32), bundled.one_hot(np.arange(8))], tmp_path)
    assert found.first > 0 and found.second > 0 and not list(tmp_path.iterdir())
    assert seen["OPENBLAS_NUM_THREADS"] == seen["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(("low", "high"), [(1e-12, 1e-12), (0.99, 1.01), (3e-9, 4e3), (0.006, 1.4), (1e-12, 1e200)])
def test_ticks_are_few_round_and_enclose(low: float, high: float) -> None:
    marks = plot.ticks(low, high, 8)
    assert (2 if low < high else 1) <= len(marks) <= 8
    assert marks[0] <= low and marks[-1] >= high and marks == sorted(set(marks)) and all(f"{v:e}"[0] in "1235" for v in marks)


def test_gradient_by_hand_is_right() -> None:
    rng = np.random.default_rng(0)
    params, x, y = models.initial(dtype=np.float64), rng.random((4, 64)), bundled.one_hot(np.array([0, 3, 9, 3]), np.float64)
    _, grads = models.hand_written(params, x, y)
    for k, g in enumerate(grads):
        at = tuple(rng.integers(s) for s in g.shape)
        moved = [[q.copy() for q in params] for _ in range(2)]
        moved[0][k][at] += 1e-6
        moved[1][k][at] -= 1e-6
        numeric = (models.loss(moved[0], x, y) - models.loss(moved[1], x, y)) / 2e-6
        assert numeric == pytest.approx(g[at], abs=1e-8)


def test_fit_finds_known_parameters() -> None:
    u, v = grid()
    truth = np.array([0.9, 3.2, 3.7, 0.9, 0.1, 0.3, 0.05])
    found = fit(models.peak(truth, u, v))
    assert found.rms < 1e-8 and np.allclose(found.params, truth, atol=1e-6)


def test_progress_is_drawn_on_terminals_only() -> None:
    terminal, file = Terminal(), io.StringIO()
    for out in (terminal, file):
        with progress.Progress("work", 4, out) as bar:
            for k in range(4):
                bar.step(f"step {k}")
    assert file.getvalue() == ""
    assert "100 % step 3" in terminal.getvalue() and terminal.getvalue().endswith("\r\x1b[K")


def test_an_interrupted_bar_leaves_a_fresh_line() -> None:
    terminal = Terminal()
    with pytest.raises(KeyboardInterrupt), progress.Progress("work", 4, terminal) as bar:
        bar.step()
        raise KeyboardInterrupt
    assert terminal.getvalue().endswith("\n")


def test_doctests() -> None:
    for module in (bundled, plot, progress, timing):
        result = doctest.testmod(module)
        assert result.attempted and not result.failed
