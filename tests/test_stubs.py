"""The stub of Tensor's methods: current, complete, and of use to a type checker."""

from __future__ import annotations

import ast
import doctest
import importlib.util
import inspect
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import aotgrad as ag
import aotgrad_runtime._methods
from aotgrad.frontend import methods

ROOT = Path(__file__).resolve().parent.parent
STUB = Path(aotgrad_runtime._methods.__file__).with_suffix(".pyi")


def _tool() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("generate_stubs", ROOT / "tools" / "generate_stubs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _listed() -> dict[str, ast.FunctionDef]:
    (body,) = [n for n in ast.parse(STUB.read_text(encoding="utf-8")).body if isinstance(n, ast.ClassDef)]
    return {n.name: n for n in body.body if isinstance(n, ast.FunctionDef)}


def test_the_stub_is_current() -> None:
    assert STUB.read_text(encoding="utf-8") == _tool().text(), "run python tools/generate_stubs.py"


def test_every_method_is_listed_once_and_exists() -> None:
    listed, written = _listed(), _tool()._written(ag.Tensor)
    assert not {*listed} & written
    assert {*methods.table().methods} <= {*listed} | written
    assert all(hasattr(ag.Tensor, name) for name in listed)
    assert vars(aotgrad_runtime._methods.TensorMethods).keys() == {"__module__", "__doc__", "__slots__"} | (
        vars(aotgrad_runtime._methods.TensorMethods).keys() & {"__firstlineno__", "__static_attributes__"})


def test_results_are_what_the_stub_says() -> None:
    """Methods that need no arguments give a tensor where the stub says so."""
    tried = 0
    for name, node in _listed().items():
        spoken = ast.unparse(node.returns) if node.returns else ""
        needed = len(node.args.args) - len(node.args.defaults)
        if needed != 1 or node.args.vararg or node.decorator_list or spoken != "Tensor" or name in ("numpy", "__index__"):
            continue
        for x in (ag.tensor([[0.5, 0.25], [0.125, 0.75]]), ag.tensor([[1, 2], [3, 4]]), ag.tensor([[True, False]]), ag.tensor(0.5)):
            try:
                result: Any = getattr(x, name)()
            except (TypeError, ValueError, RuntimeError, IndexError, NotImplementedError):
                continue
            assert isinstance(result, ag.Tensor), name
            tried += 1
            break
    assert tried > 60


PROGRAM = '''
import aotgrad as ag
from aotgrad import Tensor


def loss(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    h = (x @ w + 1.0).tanh()
    d = 2 * h - y / 3
    r = -d[0:2] ** 2
    r += 1
    inside: bool = 1.0 in r
    assert inside or not bool((r > 0).all())
    return (r.sum(dim=0, keepdim=True) + d.mean()).reshape(-1).sum()


w: Tensor = ag.tensor([[1.0], [2.0]], requires_grad=True)
out = loss(w, ag.ones(3, 2), ag.zeros(3, 1))
out.backward()
number: float = out.item()
rows: int = w.size(0)
'''


def test_a_users_program_runs() -> None:
    names: dict[str, Any] = {"__name__": "program"}
    exec(compile(PROGRAM, "program.py", "exec"), names)
    assert names["w"].grad.shape == (2, 1) and names["rows"] == 2


@pytest.mark.thorough
def test_a_users_program_type_checks(tmp_path: Path) -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(PROGRAM, encoding="utf-8")
    bad.write_text(PROGRAM + "w.no_such_method()\nwrong: str = w.sin()\n", encoding="utf-8")
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "--follow-imports=silent", str(good), str(bad)],
                          capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300)
    lines = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(lines) == 2 and all(line.startswith("bad.py") for line in lines), done.stdout + done.stderr
    assert "no_such_method" in lines[0] and "assignment" in lines[1]


def test_every_method_says_what_it_does_and_examples_run() -> None:
    """Of the methods that are installed; operators are what Python says."""
    silent, tried = [], 0
    for name, made in methods.table().methods.items():
        text = made.__doc__ if isinstance(made, property) else inspect.getdoc(made)
        if not name.startswith("__") and not text:
            silent.append(name)
        if text and ">>>" in text and not isinstance(made, property):
            result = doctest.DocTestRunner().run(doctest.DocTestParser().get_doctest(text, {"ag": ag}, name, None, 0))
            assert not result.failed, name
            tried += result.attempted
    assert not silent and tried >= 10
