"""``aotgrad opt FILE.mlir --passes ...`` and ``aotgrad run FILE.mlir``: passes and the interpreter on IR text."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aotgrad_runtime.errors import AotgradTypeError, AotgradValueError
from aotgrad_runtime.library import refuse_device

from ..ir.core import Func
from ..ir.interp import run as interpret
from ..ir.parser import parse_module
from ..ir.passes import Step, parse_pipeline, run_pipeline
from ..ir.printer import print_module
from ..ir.types import TensorType
from ..ir.verifier import verify

__all__ = ["load", "opt", "run"]


def load(path: str) -> list[Func]:
    """The functions in a file (``-``: standard input), verified."""
    refuse_device(path)
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AotgradValueError(f"{path}: cannot be read as text ({error})") from error
    funcs = parse_module(text, "<stdin>" if path == "-" else path)
    for f in funcs:
        verify(f, "kernel" if _is_kernel(f) else "tensor")
    return funcs


def _is_kernel(func: Func) -> bool:
    return any(not isinstance(a.type, TensorType) for a in func.args) or any("." in op.name for op in func.body.ops)


def opt(path: str, passes: str, callback: Callable[[Step], None] | None = None) -> str:
    """The text of the functions in ``path`` after the pipeline ``passes`` (``"dce,cse"``)."""
    pipeline = parse_pipeline(passes)
    funcs = load(path)
    _tensor_only(path, funcs)
    done = [run_pipeline(f, pipeline, callback) for f in funcs]
    for f in done:
        verify(f)
    return print_module(done)


def run(path: str, inputs: Sequence[Any], function: str | None = None) -> list[Any]:
    """Outputs of a function of ``path`` (the only one, or the one called ``function``), by the interpreter.

    ``inputs``: one per argument, each an array, the name of a ``.npy`` file, or a Python literal such as ``"[[1, 2], [3, 4]]"``; numbers
    take the argument's dtype, arrays must have it.
    """
    funcs = load(path)
    named = [f for f in funcs if function in (None, f.name)]
    if not named and funcs:
        raise AotgradValueError(f"{path}: there is no function {function!r}; it has {', '.join(f.name for f in funcs)}")
    if len(named) != 1:
        raise AotgradValueError(f"{path}: name one function to run (--function NAME); it has {', '.join(f.name for f in funcs) or 'none'}")
    func = named[0]
    _tensor_only(path, [func])
    arrays = [_array(x, t, _name(func, i)) for i, (x, t) in enumerate(zip(inputs, func.arg_types))]  # a misspelt file is said before the count
    shown = [f"{_name(func, i)}: {t}" for i, t in enumerate(func.arg_types)]
    if len(inputs) < len(shown):
        hint = "" if func.attrs.get("arg_names") else ". What a function captured (weights, constants) comes after its own arguments"
        raise AotgradTypeError(f"{func.name} takes {len(shown)} input(s), {len(inputs)} given; missing: {', '.join(shown[len(inputs):])}{hint}")
    if len(inputs) > len(shown):
        raise AotgradTypeError(f"{func.name} takes {len(shown)} input(s) ({', '.join(shown) or 'none'}), {len(inputs)} given")
    return interpret(func, *arrays)


def _tensor_only(path: str, funcs: Sequence[Func]) -> None:
    for f in funcs:
        if _is_kernel(f):
            raise AotgradTypeError(f"{path}: function {f.name!r} is at kernel level; passes and the interpreter take the tensor level (ops called ag.*)")


def _name(func: Func, i: int) -> str:
    names = func.attrs.get("arg_names", ())
    return str(names[i]) if i < len(names) else f"%arg{i}"


def _array(given: Any, t: TensorType, name: str) -> Any:
    if not isinstance(given, str):
        return np.asarray(given)
    if given.endswith(".npy"):
        try:
            return np.load(given, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise AotgradValueError(f"{name}: {given} cannot be read ({error})") from error
    try:
        return np.asarray(ast.literal_eval(given), t.dtype.np)
    except (ValueError, SyntaxError, TypeError, OverflowError) as error:
        why = "" if "ast." in str(error) else f" ({error})"
        raise AotgradValueError(f"{name}: {given!r} is neither a .npy file nor numbers of dtype {t.dtype.name}, such as \"[[1, 2], [3, 4]]\"{why}") from error
