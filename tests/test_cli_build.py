"""``aotgrad build`` and ``aotgrad inspect`` on files and modules, and what they say to mistakes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import aotgrad as ag
from aotgrad.cli import main
from aotgrad.cli.user_code import clean_errors
from aotgrad.frontend import aot

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


BROKEN = {
    "def f(x:\n  return 1\n": "broken.py:1: SyntaxError",
    "import numpy as np\nnp.no_such_function\n\ndef f(x):\n    return x\n": "broken.py:2: AttributeError",
    "import no_such_neighbour\n": "broken.py:1: ModuleNotFoundError",
    "import sys\nsys.exit(3)\n": "broken.py:2: sys.exit(3)",
    "def f(x):\n    y = x + 1\n    return y * undefined\n": "broken.py:3: NameError",
    "def f(x):\n    return helper(x)\ndef helper(x):\n    return {}[int(3)]\n": "broken.py:4: KeyError",
    "import re\ndef f(x):\n    return re.compile('(')\n": "broken.py:3: ",
}


@pytest.mark.parametrize(("source", "said"), BROKEN.items())
def test_errors_of_the_users_file_are_one_line(source: str, said: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "broken.py").write_text(source, encoding="utf-8")
    assert main(["build", "broken.py:f", "--arg", "x: f64[n]"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"aotgrad: error: {said}") and len(error.splitlines()) == 1, error
    if "NameError" in said:
        with pytest.raises(NameError):
            main(["build", "broken.py:f", "--arg", "x: f64[n]", "--traceback"])


def test_faults_of_our_own_keep_their_traceback() -> None:
    inside = compile("with clean_errors('building'): 1 // 0", aot.__file__, "exec")
    with pytest.raises(ZeroDivisionError):
        exec(inside, {"clean_errors": clean_errors})


def test_parameters_that_are_not_there_and_parameters_left_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "defaults.py").write_text("def f(x, scale=2.0, mode='fast'):\n    return (scale * x).sum() if mode == 'fast' else x.sum()\n", encoding="utf-8")
    assert main(["build", "defaults.py:f", "--arg", "z: f64[n]"]) == 1
    assert "f has no parameter 'z'; it takes x, scale, mode" in capsys.readouterr().err
    assert main(["build", "defaults.py:f", "--arg", "x: f64[n]", "--emit", "so,h"]) == 0
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1 and "scale = 2.0, mode = 'fast'" in said and '--arg "scale: f64"' in said
    assert "Fixed when built: scale = 2.0, mode = 'fast'." in (folder / "build" / "f.h").read_text(encoding="utf-8")
    assert main(["build", "defaults.py:f", "--arg", "x: f64[n]", "--arg", "scale: f64", "--arg", "mode: f64"]) == 0
    assert not capsys.readouterr().err


def test_inspect_names_the_library_that_describes_itself(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "model_for_build.py:energy", "--arg", "x: f64[n]", "--arg", "k: f64"]) == 0
    for file, kind in (("libenergy.a", "an archive"), ("energy.o", "a relocatable object"), ("energy.h", "a header")):
        capsys.readouterr()
        assert main(["inspect", f"build/{file}"]) == 1
        error = capsys.readouterr().err
        assert kind in error and "give the .so: build/libenergy.so" in error
