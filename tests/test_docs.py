"""Every page shows what its code really prints; every example runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sweep

import aotgrad as ag

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("page", sweep.part(PAGES))
def test_outputs_are_real(page: str) -> None:
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "run_docs.py"), str(ROOT / page)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_run(example: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(ROOT / example)], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
    assert not list(tmp_path.iterdir()), "files are left in the current folder"


def test_a_wrong_output_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\nx = 1\n```\n\n```python\nprint(x + 1)\n```\n```text\n3\n```\n", encoding="utf-8")
    tool = [sys.executable, str(ROOT / "tools" / "run_docs.py")]
    done = subprocess.run([*tool, str(page)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "page.md:5" in done.stdout
    assert subprocess.run([*tool, "--update", str(page)], capture_output=True, timeout=60).returncode == 0
    assert "```text\n2\n```" in page.read_text(encoding="utf-8")
    assert subprocess.run([*tool, str(page)], capture_output=True, timeout=60).returncode == 0


def test_every_difference_from_torch_has_a_reason() -> None:
    table = (ROOT / "docs" / "coming-from-pytorch.md").read_text(encoding="utf-8").split("## Differences")[1]
    lines = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith("| What |")]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|(?=\s|$)", line)[1:-1]] for line in lines]
    assert len(rows) > 50 and [row for row in rows if len(row) != 4 or not row[0] or not row[3]] == []


def test_the_list_of_what_is_supported_is_current() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "list_supported.py"), "--check"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_list_is_what_calls_find() -> None:
    text = (ROOT / "docs" / "supported.md").read_text(encoding="utf-8")
    served, absent = text.split("## Not supported yet")
    assert "| `softmax(" in served and "`take_along_axis`" in served and "`ag.scan`" in served
    for name in re.findall(r"`(\w+)`", absent.split("`ag` functions")[1].split("NumPy functions")[0]):
        assert not hasattr(ag, name), name
    x = ag.tensor(np.ones(3), requires_grad=True)
    for name in re.findall(r"`(\w+)`", absent.split("traced values:")[1]):
        if isinstance(f := getattr(np, name, None), np.ufunc) and f.nin == 1:
            with pytest.raises(ag.AotgradError):
                f(x)
