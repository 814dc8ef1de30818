"""Runs the code of documentation pages: each ```python block in order in one namespace per page, each ```sh block in one temporary folder per page, and
compares what is printed with the ```text block that follows. ``python tools/run_docs.py --update [FILE ...]`` writes the real output into the pages instead.

``...`` in an expected output stands for anything (times, addresses). README.md's sh blocks set up environments and are run by CI, not here.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```\n(?:\s*^```text\n(.*?)^```\n)?", re.M | re.S)
_CHECKER = doctest.OutputChecker()


@dataclass
class Result:
    """A block that was run: where it stands, what it was to print, what it printed."""

    line: int
    expected: str | None
    got: str
    span: tuple[int, int]

    @property
    def right(self) -> bool:
        """Whether the output is the expected one."""
        return _CHECKER.check_output(self.expected or "", self.got, doctest.ELLIPSIS)


def run_page(path: Path) -> Iterator[Result]:
    """Runs the blocks of a page. A block that raises prints its traceback's last line, as a page would show it."""
    text = path.read_text(encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": "page"}
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for m in _BLOCK.finditer(text):
                if m[1] == "sh" and path.name == "README.md":
                    continue
                line = text.count("\n", 0, m.start()) + 1
                got = _python(m[2], namespace, path, line) if m[1] == "python" else _shell(m[2])
                yield Result(line, m[3], got, m.span(3))
        finally:
            os.chdir(before)


def _python(code: str, namespace: dict[str, Any], path: Path, line: int) -> str:
    out = io.StringIO()
    # A real file, so that what needs source lines (error messages, the rewriting of `if`) finds them.
    file = Path(f"{path.stem}_{line}.py").resolve()
    file.write_text(code, encoding="utf-8")
    with contextlib.redirect_stdout(out):
        try:
            exec(compile(code, str(file), "exec"), namespace)
        except Exception as error:
            out.write("".join(traceback.format_exception_only(error)).replace(f"{file.parent}/", ""))
    return out.getvalue()


def _shell(code: str) -> str:
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    done = subprocess.run(["sh", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, timeout=120, check=False)
    return done.stdout


def update(path: Path) -> int:
    """Writes real outputs into the page; gives how many changed."""
    text, changed = path.read_text(encoding="utf-8"), 0
    for r in reversed(list(run_page(path))):
        if r.right:
            continue
        changed += 1
        if r.expected is not None:
            text = text[: r.span[0]] + r.got + text[r.span[1] :]
        else:
            print(f"{path.name}:{r.line}: prints, but no text block follows:\n{r.got}")
    path.write_text(text, encoding="utf-8")
    return changed


def main(arguments: list[str]) -> int:
    """Checks, or updates, the pages named (default: all)."""
    write = "--update" in arguments
    pages = [Path(a).resolve() for a in arguments if a != "--update"] or PAGES
    bad = 0
    for page in pages:
        if write:
            print(f"{page.name}: {update(page)} output(s) changed")
            continue
        for r in run_page(page):
            if not r.right:
                bad += 1
                print(f"{page.name}:{r.line}: expected\n{r.expected or ''}got\n{r.got}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
