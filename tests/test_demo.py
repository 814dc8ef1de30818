"""The demo: what it trains, fits, shows and ships."""

from __future__ import annotations

import doctest
import io
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from aotgrad.demo import data as bundled
from aotgrad.demo import models, plot, progress
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
    assert {"libdigits_loss.so", "digits_loss.h", "learning.svg"} <= {p.name for p in tmp_path.iterdir()}
    root = ET.fromstring((tmp_path / "learning.svg").read_text(encoding="utf-8"))
    curves = [e for e in root.iter() if e.tag.endswith("polyline")]
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
    for module in (bundled, plot, progress):
        result = doctest.testmod(module)
        assert result.attempted and not result.failed
