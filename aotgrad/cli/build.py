"""``aotgrad build FILE_OR_MODULE:FUNCTION --arg "x: f64[n]" ...``: the command-line face of ``ag.aot.build``."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from aotgrad.frontend import aot
from aotgrad_runtime.errors import AotgradValueError

from .user_code import clean_errors

__all__ = ["add_parser", "function_named", "run"]

EMIT = ("so", "a", "o", "h", "ll", "asm", "mlir", "python")


def add_parser(sub: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the ``build`` command."""
    p = sub.add_parser("build", help="build a shared library, an archive and a C header from a Python function",
                       epilog="With a header and a library or an archive come NAME.pc (pkg-config) and NAMEConfig.cmake.")
    p.add_argument("function", metavar="FILE_OR_MODULE:FUNCTION", help="such as model.py:loss or package.module:loss")
    p.add_argument("--arg", action="append", default=[], metavar='"x: f64[n,3]"',
                   help="name, dtype and sizes of an argument, or a tree of such ({W: f64[n], b: f64}); once per argument, in order")
    p.add_argument("--grad", action="append", default=[], metavar="ARG", help="add NAME_grad with the gradient for this argument")
    p.add_argument("--jvp", action="append", default=[], metavar="ARG", help="add NAME_jvp with the derivative along this argument")
    p.add_argument("--hess", action="append", default=[], metavar="ARG", help="add NAME_hess with the Hessian for this argument")
    p.add_argument("--out", default="build", metavar="DIR", help="folder for the files (default: build)")
    p.add_argument("--name", help="name of the library and prefix of its functions (default: the function's)")
    p.add_argument("--target", default="native",
                   help="native (this machine's instruction set, the default), x86-64-v3 or x86-64-v4 (any machine of that level), or aarch64-linux-gnu")
    p.add_argument("--emit", default=None, metavar="KINDS", help=f"comma-separated: {', '.join(EMIT)} (default: so,a,o,h)")
    p.add_argument("--no-malloc", action="store_true", help="refuse code that would need malloc")
    p.add_argument("--threads", action="store_true", help="functions that take a pool of up to 8 threads, which the library makes")
    p.add_argument("--flush-subnormals", action="store_true", help="numbers below the normal range count as zeros during a call")
    p.add_argument("--traceback", action="store_true", help="show the whole traceback of an error in FILE_OR_MODULE")
    p.set_defaults(run=run)


def run(a: argparse.Namespace) -> None:
    """Builds and prints the files written; says on standard error which parameters keep their defaults."""
    f = function_named(a.function, whole=a.traceback)
    options: dict[str, Any] = {"name": a.name} if a.name else {}
    for key in ("grad", "jvp", "hess"):
        if getattr(a, key):
            options[key] = getattr(a, key)
    for key in ("no_malloc", "threads", "flush_subnormals"):
        if getattr(a, key):
            options[key] = True
    if a.emit:
        options["emit"] = tuple(k.strip() for k in a.emit.split(","))
    with clean_errors(f"building {a.function}", a.traceback):
        built = aot.build(f, a.arg, out=a.out, target=a.target, **options)
    print(built)
    if built.fixed:
        print(_fixed(built.fixed), file=sys.stderr)


def _fixed(parameters: Mapping[str, str]) -> str:
    """One line on the parameters that keep their defaults."""
    shown = ", ".join(f"{name} = {text}" for name, text in parameters.items())
    number = next((name for name, text in parameters.items() if text.lstrip("-")[:1].isdigit()), None)
    advice = f'; add --arg "{number}: f64" to make it an input' if number else ""
    return f"aotgrad: fixed in the library: {shown} (defaults of parameters without --arg{advice})"


def function_named(text: str, whole: bool = False) -> Callable[..., Any]:
    """The function that ``FILE.py:NAME`` or ``package.module:NAME`` means.

    Raises an ``AotgradError`` that says what is missing, or where the file or module fails (``whole``: its own exception then).
    """
    where, colon, name = text.rpartition(":")
    if not colon or not where or not name:
        raise AotgradValueError(f"{text!r}: write FILE.py:FUNCTION or package.module:FUNCTION")
    with clean_errors(f"importing {where}", whole, fallback=where):
        module = _from_file(Path(where)) if where.endswith(".py") else _from_name(where, text)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = sorted(n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", None) == module.__name__)
            raise AotgradValueError(f"{text}: {where} has no function {name!r}; it has {', '.join(known) or 'none'}")
        found = getattr(found, part)
    if not callable(found):
        raise AotgradValueError(f"{text}: {name} is {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def _from_file(path: Path) -> Any:
    if not path.is_file():
        raise AotgradValueError(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.resolve().parent))  # as `python FILE` does, so that the file can import its neighbours
    spec.loader.exec_module(module)
    return module


def _from_name(name: str, text: str) -> Any:
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and name.startswith(error.name):
            raise AotgradValueError(f"{text}: no module is called {error.name}; for a file write FILE.py:FUNCTION") from error
        raise
