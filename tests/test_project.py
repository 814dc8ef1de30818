"""The project's frame: metadata, README, command line, bundled data, and what a wheel holds."""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import aotgrad as ag
from aotgrad.cli import main
from aotgrad.demo.data import digits, split

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
HAS_HATCHLING = subprocess.run([sys.executable, "-c", "import hatchling"], capture_output=True).returncode == 0


def sh_blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", README, re.M | re.S)


def test_readme_has_exactly_the_two_commands() -> None:
    blocks = sh_blocks()
    assert len(blocks) == 2
    assert all(len(b.strip().splitlines()) == 1 and not b.startswith("$") for b in blocks)
    assert blocks[0].rstrip().endswith("aotgrad demo") and "pytest" in blocks[1]


def test_readme_links_lead_to_files() -> None:
    for name in ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]:
        text = (ROOT / name).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#]+)", text):
            assert target.startswith("https://") or (ROOT / target).exists(), f"{name} links to {target}"


def test_metadata() -> None:
    for needed in ['requires-python = ">=3.10"', '"numpy>=2.0"', '"llvmlite', '"lark', 'license = "MIT"']:
        assert needed in PYPROJECT
    assert "MIT License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    version = re.search(r'^version = "([^"]+)"', PYPROJECT, re.M)
    assert version and f"## {version[1]}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.skipif(not HAS_HATCHLING, reason="hatchling is not installed; .ci/run builds the wheel in any case")
def test_wheel_holds_both_packages(tmp_path: Path) -> None:
    code = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(io.BytesIO(wheel.read_bytes())) as z:
        names = set(z.namelist())
    wanted = {
        "aotgrad/__init__.py", "aotgrad/py.typed", "aotgrad_runtime/__init__.py", "aotgrad_runtime/py.typed", "aotgrad/ir/grammar.lark",
        "aotgrad/demo/data/digits.csv.gz", "aotgrad/demo/data/LICENCE", "aotgrad/demo/data/SOURCE.md",
    }
    assert wanted <= names, wanted - names
    assert any(n.endswith("licenses/LICENSE") for n in names)
    assert not any(n.startswith(("tests/", "benchmarks/", "runtime/")) for n in names)
    for folder, package in [(ROOT / "aotgrad", "aotgrad"), (ROOT / "runtime" / "aotgrad_runtime", "aotgrad_runtime")]:
        tracked = {f"{package}/{p.relative_to(folder)}" for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts and p.suffix != ".so"}
        assert tracked <= names, tracked - names


def test_digits_are_the_published_file() -> None:
    folder = ROOT / "aotgrad" / "demo" / "data"
    digest = hashlib.sha256((folder / "digits.csv.gz").read_bytes()).hexdigest()
    assert digest in (folder / "SOURCE.md").read_text(encoding="utf-8")
    images, labels = digits()
    assert images.shape == (1797, 64) and images.dtype == np.float32 and images.min() == 0 and images.max() == 1
    assert labels.shape == (1797,) and labels.dtype == np.int64 and np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_held_back_third_is_apart() -> None:
    train, test = split(1797)
    assert len(test) == 599 and len(train) == 1198 and not set(train) & set(test)


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    text = capsys.readouterr().out
    assert stop.value.code == 0
    assert all(re.search(rf"^\s+{c}\b", text, re.M) for c in ["demo", "bench", "info", "inspect", "build", "opt", "run", "cache"])


def test_info_and_cache(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTGRAD_CACHE_DIR", str(tmp_path / "c"))
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert "numpy" in text and "target" in text and str(tmp_path) in text
    assert main(["cache"]) == 0 and "0 entries" in capsys.readouterr().out
    assert main(["cache", "--clear"]) == 0


def test_opt_and_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "f.mlir"
    file.write_text(
        '"func.func"() <{function_type = (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>, sym_name = "f"}> ({\n'
        '^bb0(%arg0: !ag.tensor<[n], f64>):\n'
        '  %0 = "ag.mul"(%arg0, %arg0) : (!ag.tensor<[n], f64>, !ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>\n'
        '  %1 = "ag.exp"(%arg0) : (!ag.tensor<[n], f64>) -> !ag.tensor<[n], f64>\n'
        '  "func.return"(%0) : (!ag.tensor<[n], f64>) -> ()\n'
        "}) : () -> ()\n",
        encoding="utf-8",
    )
    assert main(["opt", str(file), "--passes", "dce"]) == 0
    text = capsys.readouterr().out
    assert "ag.mul" in text and "ag.exp" not in text
    assert main(["run", str(file), "[1.0, 3.0]"]) == 0
    assert "[1. 9.]" in capsys.readouterr().out


CAPTURED = (
    '"func.func"() <{function_type = (!ag.tensor<[], f64>, !ag.tensor<[2], f64>) -> !ag.tensor<[2], f64>, sym_name = "f"}> ({\n'
    '^bb0(%arg0: !ag.tensor<[], f64>, %arg1: !ag.tensor<[2], f64>):\n'
    '  %0 = "ag.broadcast"(%arg0) {dims = [], shape = [2]} : (!ag.tensor<[], f64>) -> !ag.tensor<[2], f64>\n'
    '  %1 = "ag.mul"(%0, %arg1) : (!ag.tensor<[2], f64>, !ag.tensor<[2], f64>) -> !ag.tensor<[2], f64>\n'
    '  "func.return"(%1) : (!ag.tensor<[2], f64>) -> ()\n'
    "}) : () -> ()\n"
)


def test_run_names_what_is_missing_and_reads_before_it_counts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "f.mlir"
    for text, second in ((CAPTURED, "%arg1"), (CAPTURED.replace("}) : () -> ()", '}) {arg_names = ["x", "weights"]} : () -> ()'), "weights")):
        file.write_text(text, encoding="utf-8")
        for inputs, said in ((["3"], f"1 given; missing: {second}: !ag.tensor<[2], f64>"), (["no.npy"], "no.npy cannot be read"), (["x y"], "'x y' is neither"),
                             (["3", "[1, 2]", "5"], "takes 2 input(s)")):
            assert main(["run", str(file), *inputs]) == 1
            assert said in capsys.readouterr().err
        assert main(["run", str(file), "3", "[1, 2]"]) == 0
        assert "[3. 6.]" in capsys.readouterr().out


def test_version_and_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0 and capsys.readouterr().out == f"aotgrad {ag.__version__}\n"
    assert main([]) == 2
    assert "COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["opt", "missing.mlir", "--passes", "dce"], ["bench", "no-such-workload"], ["inspect", "missing.so"]])
def test_errors_are_one_line_and_exit_1(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    err = capsys.readouterr().err
    assert err.startswith("aotgrad: error: ") and "Traceback" not in err and arguments[1] in err


def test_the_command_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "aotgrad", "info"], capture_output=True, text=True, timeout=60, env={**os.environ, "AOTGRAD_CACHE_DIR": ""})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("aotgrad ")


def test_ci_script_parses() -> None:
    script = ROOT / ".ci" / "run"
    assert subprocess.run(["bash", "-n", str(script)], capture_output=True).returncode == 0
    assert "set -euo pipefail" in script.read_text(encoding="utf-8")
