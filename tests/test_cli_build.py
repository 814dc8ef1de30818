"""``aotgrad build`` and ``aotgrad inspect`` on files and modules, and what they say to mistakes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aotgrad as ag
from aotgrad.cli import main

MODEL = """
import numpy as np
from neighbour import SCALE


def energy(x, k):
    '''Energy of a spring.'''
    return SCALE * k * np.sum(x**2)


class Holder:
    @staticmethod
    def twice(x):
        return 2 * x


NUMBER = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "neighbour.py").write_text("SCALE = 0.5\n", encoding="utf-8")
    (tmp_path / "model_for_build.py").write_text(MODEL, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("where", ["model_for_build.py", "model_for_build"])
def test_build_inspect_load(where: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [f"{where}:energy", "--arg", "x: f64[n]", "--arg", "k: f64", "--grad", "x", "--grad", "k", "--jvp", "x", "--out", "made", "--name", "spring"]
    assert main(["build", *arguments, "--emit", "so,h"]) == 0
    assert "libspring.so" in capsys.readouterr().out
    assert {p.suffix for p in (folder / "made").iterdir()} >= {".so", ".h"} and not (folder / "made" / "libspring.a").exists()
    library = ag.load(folder / "made" / "libspring.so")
    value, by_x, by_k = library.spring_grad(np.array([1.0, 2.0]), 3.0)
    assert value == 7.5 and np.array_equal(by_x, [3.0, 6.0]) and by_k == 2.5
    assert main(["inspect", "made/libspring.so"]) == 0
    text = capsys.readouterr().out
    assert "spring_grad(" in text and "spring_jvp (function" in text and "needs no other library" in text


def test_a_library_for_another_processor_is_inspected(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "model_for_build.py:Holder.twice", "--arg", "x: f32[n]", "--target", "aarch64-linux-gnu", "--name", "twice"]) == 0
    assert main(["inspect", "build/libtwice.so"]) == 0
    assert "for aarch64" in capsys.readouterr().out


@pytest.mark.parametrize(("function", "said"), [
    ("missing.py:f", "missing.py"), ("no_such_module_x:f", "no_such_module_x"), ("model_for_build.py:missing", "energy"),
    ("model_for_build.py:NUMBER", "int"), ("model_for_build.py", "FILE.py:FUNCTION"),
])
def test_functions_that_are_not_there(function: str, said: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", function, "--arg", "x: f64[n]"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("aotgrad: error: ") and said in error and len(error.splitlines()) == 1


def test_bad_arguments_and_damaged_libraries(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "model_for_build.py:energy", "--arg", "x: f99[n]", "--arg", "k: f64"]) == 1
    assert "f99" in capsys.readouterr().err
    assert main(["build", "model_for_build.py:energy", "--arg", "x: f64[n]", "--arg", "k: f64", "--out", "made", "--emit", "so"]) == 0
    whole = (folder / "made" / "libenergy.so").read_bytes()
    for content in (whole[:-100], whole[:2000] + b"x" + whole[2001:], b"text"):
        (folder / "bad.so").write_bytes(content)
        capsys.readouterr()
        assert main(["inspect", "bad.so"]) == 1
        assert "bad.so" in capsys.readouterr().err
