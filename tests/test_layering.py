"""The house: imports run downwards, no cycles, short files and functions, and no compiler needed to import, load or hit the cache."""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from without import run_blocked

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {"aotgrad_runtime": ROOT / "runtime" / "aotgrad_runtime", "aotgrad": ROOT / "aotgrad"}
MAX_FILE, MAX_FUNCTION = 800, 60

# The longest prefix decides. Applications (cli, demo) use the finished package, so they stand above its __init__.
RANKS = {
    "aotgrad_runtime": 0, "aotgrad.ir": 1, "aotgrad.codegen": 2, "aotgrad.frontend": 3, "aotgrad.": 4, "aotgrad": 5,
    "aotgrad.cli": 6, "aotgrad.demo": 6, "aotgrad.__main__": 7, "aotgrad._version": 1,
}
# What each layer may import beyond the standard library and the layers below it.
THIRD_PARTY = {0: {"numpy"}, 1: {"numpy", "lark"}, 2: {"numpy", "llvmlite"}, 3: {"numpy"}, 4: {"numpy"}, 5: {"numpy"}, 6: {"numpy"}, 7: set[str]()}
LAZY = {"llvmlite", "lark"}


def rank(module: str) -> int:
    """The layer of a module by the longest prefix in RANKS."""
    if module in RANKS:
        return RANKS[module]
    return RANKS[max((p for p in RANKS if module.startswith(p if p.endswith(".") else p + ".")), key=len)]


def modules() -> dict[str, Path]:
    """Every module of both packages, by its dotted name."""
    found = {}
    for package, folder in SOURCES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Every module as a tree; made by the first test that asks, as other processes that collect tests have no use for them."""
    return {name: ast.parse(path.read_text(encoding="utf-8"), str(path)) for name, path in MODULES.items()}


def below(tree: ast.AST, above: Callable[[ast.AST], bool]) -> set[ast.AST]:
    """The import statements in what ``above`` holds of."""
    found, todo = set[ast.AST](), [(tree, False)]
    while todo:
        node, deep = todo.pop()
        if deep and isinstance(node, (ast.Import, ast.ImportFrom)):
            found.add(node)
        deep = deep or above(node)
        todo += [(child, deep) for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]
    return found


def under_functions(tree: ast.Module) -> set[ast.AST]:
    """The import statements that stand inside a function."""
    return below(tree, lambda node: isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def for_types(tree: ast.Module) -> set[ast.AST]:
    """The import statements under ``if TYPE_CHECKING``: they never run, so they make no cycle (but may not point upwards)."""
    return below(tree, lambda node: isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))


def targets(module: str, node: ast.AST) -> Iterator[str]:
    """The full names of the modules that an import statement names; a submodule wins over a name in its package."""
    if isinstance(node, ast.Import):
        yield from (a.name for a in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
            for _ in range(node.level - 1):
                package = package.rpartition(".")[0]
            base = f"{package}.{base}" if base else package
        for alias in node.names:
            full = f"{base}.{alias.name}"
            yield full if full in MODULES else base


@functools.cache
def inside(module: str) -> set[ast.AST]:
    return under_functions(trees()[module])


@functools.cache
def of_types(module: str) -> set[ast.AST]:
    return for_types(trees()[module])


@functools.cache
def imports(module: str) -> list[tuple[ast.Import | ast.ImportFrom, str]]:
    """Every import statement of a module with each module that it names."""
    found: list[Any] = sorted(below(trees()[module], lambda node: True), key=lambda node: node.lineno)  # type: ignore[attr-defined]
    return [(node, target) for node in found for target in targets(module, node)]


def where(module: str, node: ast.stmt) -> str:
    return f"{MODULES[module].relative_to(ROOT)}:{node.lineno}"


def test_every_layer_was_found() -> None:
    assert {rank(m) for m in MODULES} >= {0, 1, 2, 3, 5, 6}
    assert len(MODULES) > 50


def test_imports_run_downwards() -> None:
    upward = [f"{where(m, n)} imports {t}" for m in MODULES for n, t in imports(m) if t.split(".")[0] in SOURCES and rank(t) > rank(m)]
    assert not upward, "\n".join(upward)


def test_only_the_allowed_packages_are_used() -> None:
    strangers = []
    for m in MODULES:
        for node, target in imports(m):
            top = target.split(".")[0]
            if top not in SOURCES and top not in sys.stdlib_module_names and top not in THIRD_PARTY[rank(m)]:
                strangers.append(f"{where(m, node)} imports {top}")
    assert not strangers, "\n".join(strangers)


def test_no_imports_inside_functions() -> None:
    hidden = [
        f"{where(m, node)} imports {t}" for m in MODULES for node, t in imports(m)
        if node in inside(m) and t.split(".")[0] not in LAZY
    ]
    assert not hidden, "\n".join(hidden)


def test_compiler_libraries_have_one_lazy_door_each() -> None:
    doors: dict[str, set[str]] = {name: set() for name in LAZY}
    for m in MODULES:
        for node, target in imports(m):
            top = target.split(".")[0]
            if top in LAZY and node not in of_types(m):
                assert node in inside(m), f"{where(m, node)}: {top} must be imported on first use"
                doors[top].add(m)
    assert all(len(found) == 1 for found in doors.values()), doors


def test_no_cycles() -> None:
    graph = {m: sorted({t for n, t in imports(m) if t in MODULES and t != m and n not in of_types(m)}) for m in MODULES}
    done: set[str] = set()
    for start in graph:
        path: list[str] = []
        stack = [(start, iter(graph[start]))] if start not in done else []
        while stack:
            node, rest = stack[-1]
            if not path or path[-1] != node:
                path.append(node)
            following = next(rest, None)
            if following is None:
                done.add(node)
                stack.pop()
                path.pop()
            elif following not in done:
                assert following not in path, "import cycle: " + " -> ".join([*path[path.index(following):], following])
                stack.append((following, iter(graph[following])))


def test_files_are_short() -> None:
    long = [f"{p.relative_to(ROOT)}: {n} lines" for p in MODULES.values() if (n := len(p.read_text(encoding="utf-8").splitlines())) > MAX_FILE]
    assert not long, "\n".join(long)


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from ``def`` to the end, docstring and decorators not counted."""
    first = function.body[0]
    text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    doc = (first.end_lineno or first.lineno) - first.lineno + 1 if text else 0
    return (function.end_lineno or function.lineno) - function.lineno + 1 - doc


def test_functions_are_short() -> None:
    long = [
        f"{where(m, f)} {f.name}: {length(f)} lines" for m, tree in trees().items() for f in ast.walk(tree)
        if isinstance(f, (ast.FunctionDef, ast.AsyncFunctionDef)) and length(f) > MAX_FUNCTION
    ]
    assert not long, "\n".join(long)


@pytest.mark.parametrize("package", ["aotgrad", "aotgrad_runtime", "aotgrad.ir", "aotgrad.codegen", "aotgrad.frontend", "aotgrad.cli"])
def test_imports_without_the_compiler_libraries(package: str) -> None:
    done = run_blocked(f"import {package}; assert not {{'llvmlite', 'lark'}} & set(sys.modules)", "llvmlite", "lark")
    assert done.returncode == 0, done.stderr


LOADERS = {  # they load modules by name, at first use: of this package, Python's (digests, gamma), or the user's (cli.build)
    "aotgrad", "aotgrad.autograd", "aotgrad.cli.app", "aotgrad.cli.build", "aotgrad_runtime.digests", "aotgrad_runtime.later", "aotgrad.ir.passes",
    "aotgrad.ir.ops.gamma",
}


@pytest.mark.parametrize("on", [True, False])
def test_an_import_runs_no_collector_and_leaves_it_as_it_was(on: bool) -> None:
    code = f"""
import gc, numpy
if not {on}:
    gc.disable()
before = sum(s["collections"] for s in gc.get_stats())
import aotgrad
assert gc.isenabled() is {on}
print(sum(s["collections"] for s in gc.get_stats()) - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 1


def test_modules_are_loaded_by_name_in_few_places() -> None:
    found = {m for m, tree in trees().items() for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr == "import_module"}
    assert found <= LOADERS, found - LOADERS
    assert "aotgrad_runtime.later" in found
    doors = {m for m in MODULES for _, t in imports(m) if t == "aotgrad_runtime.later"}
    assert doors == {"aotgrad.frontend.compiler", "aotgrad.codegen.later"}


def test_the_compiler_is_loaded_by_a_miss_of_the_cache_only(tmp_path: Path) -> None:
    code = """
        import sys
        import numpy as np, aotgrad as ag
        assert not {"aotgrad.codegen.driver", "aotgrad.codegen.lower", "numpy.random"} & set(sys.modules)
        assert ag.compile(lambda x: ag.exp(x) + x)(np.zeros(3)).tolist() == [1.0, 1.0, 1.0]
        print("aotgrad.codegen.driver" in sys.modules)
    """
    env = {**os.environ, "AOTGRAD_CACHE_DIR": str(tmp_path)}
    tmp_path.chmod(0o700)
    for blocked, compiled in (((), "True"), (("llvmlite", "lark"), "False")):
        done = run_blocked(code, *blocked, env=env)
        assert done.stdout.split() == [compiled], done.stderr


def test_runtime_knows_nothing_of_the_compiler() -> None:
    done = run_blocked("""
        import pkgutil, importlib, aotgrad_runtime
        for m in pkgutil.walk_packages(aotgrad_runtime.__path__, "aotgrad_runtime."):
            importlib.import_module(m.name)
        assert not {n.split(".")[0] for n in sys.modules} & {"aotgrad", "llvmlite", "lark", "scipy"}
    """, "aotgrad", "llvmlite", "lark", "scipy")
    assert done.returncode == 0, done.stderr


def test_the_checks_see_what_they_should() -> None:
    assert rank("aotgrad.ir.ops.math") == 1 and rank("aotgrad.nn.modules") == 4 and rank("aotgrad") == 5 and rank("aotgrad.cli.main") == 6
    assert rank("aotgrad_runtime.call.spec") == 0
    tree = ast.parse("def f():\n    import os\n    x = 1\nif TYPE_CHECKING:\n    import sys\n")
    assert len(under_functions(tree)) == 1 and len(for_types(tree)) == 1
    function = ast.parse('@d\ndef f():\n    """One.\n\n    Two."""\n    return 1\n').body[0]
    assert isinstance(function, ast.FunctionDef) and length(function) == 2
