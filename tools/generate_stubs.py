"""Writes ``aotgrad_runtime/_methods.pyi``, the signatures of all methods and operators of tensors, from the registry: ``python tools/generate_stubs.py [--check]``."""

from __future__ import annotations

import argparse
import ast
import inspect
import keyword
import sys
import textwrap
from pathlib import Path
from typing import Any

import aotgrad_runtime._methods
from aotgrad.frontend import methods
from aotgrad.frontend.dispatch import TORCH
from aotgrad.frontend.front import Public
from aotgrad_runtime.tensor import Tensor

STUB = Path(aotgrad_runtime._methods.__file__).with_suffix(".pyi")
HEAD = '''"""Methods and operators of tensors. Written by tools/generate_stubs.py; do not edit."""

from builtins import bool as _bool
from builtins import float as _float
from builtins import int as _int
from typing import Any

from numpy.typing import ArrayLike

from .tensor import Tensor

Operand = Tensor | ArrayLike

class TensorMethods:
'''
SEVERAL = {"aminmax", "chunk", "dsplit", "hsplit", "split", "split_with_sizes", "unbind", "meshgrid", "tensor_split", "vsplit"}  # tuples of tensors
DEPENDS = {"max", "min", "nonzero", "type", "median", "mode", "sort", "topk", "kthvalue", "unique"}  # a tensor or a tuple of them (or a name), as the arguments say
NO_TENSOR = {"__contains__": "_bool", "__divmod__": "tuple[Tensor, Tensor]", "__rdivmod__": "tuple[Tensor, Tensor]", "__setitem__": "None", "__array_ufunc__": "Any",
             "__array_function__": "Any", "at": "Any"}
PARAMETERS = {
    "__getitem__": "self, index: Any", "__setitem__": "self, index: Any, value: Operand", "__contains__": "self, value: Operand", "__invert__": "self", "__pos__": "self",
    "__array_ufunc__": "self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any",
    "__array_function__": "self, func: Any, types: Any, args: Any, kwargs: Any", "__divmod__": "self, other: Operand", "__rdivmod__": "self, other: Operand",
}
TYPES = {"dim": "Any", "dims": "Any", "dtype": "Any", "memory_format": "Any", "size": "Any", "shape": "Any", "sizes": "Any", "alpha": "_float"}


def _type(name: str, default: Any, is_operand: bool) -> str:
    if name in TYPES:
        return TYPES[name]
    if is_operand:
        return "Operand" if default is not None else "Operand | None"
    if default is inspect.Parameter.empty or default is None:
        return "Any"
    return {bool: "_bool", int: "_int", float: "_float", str: "str"}.get(type(default), "Any")


def _spelled(p: inspect.Parameter, operands: tuple[str, ...]) -> str:
    star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
    default = "" if p.default is p.empty or star else " = ..."
    return f"{star}{p.name}: {'Any' if star else _type(p.name, p.default, p.name in operands)}{default}"


def _parameters(signature: inspect.Signature, operands: tuple[str, ...]) -> str:
    parts = ["self"]
    found = list(signature.parameters.values())
    stars = False
    for p in found[1:]:
        stars = stars or p.kind is p.VAR_POSITIONAL
        if p.kind is p.KEYWORD_ONLY and not stars:
            parts.append("*")
            stars = True
        parts.append(_spelled(p, operands))
    return ", ".join(parts)


def _result(name: str) -> str:
    plain = name.rstrip("_") if not name.startswith("__") else name
    if name in NO_TENSOR:
        return NO_TENSOR[name]
    return "tuple[Tensor, ...]" if plain in SEVERAL else "Any" if plain in DEPENDS else "Tensor"


def _line(name: str, parameters: str, doc: str, result: str = "") -> str:
    ignore = "  # type: ignore[override]" if name in ("__eq__", "__ne__") else ""
    summary = textwrap.shorten(doc.split("\n\n")[0], 150, placeholder=" ...").rstrip('"')
    line = f"    def {name}({parameters}) -> {result or _result(name)}:"
    return f'{line}\n        """{summary}"""\n' if summary else f"{line} ...{ignore}\n"


def _public(name: str) -> Public | None:
    found = TORCH.get(name) or TORCH.get(name.removesuffix("_"))
    return found if found is not None and (found.op.front is None or not found.op.front.function or name.removesuffix("_") in TORCH) else None


def _operators() -> dict[str, Public]:
    return {method: public for public in TORCH.values() for method in (public.op.front.operator if public.op.front else ())}


def text() -> str:
    """The stub."""
    table = methods.table().methods
    own = _written(Tensor)
    lines = []
    for name in sorted(table):
        made = table[name]
        if name in own or keyword.iskeyword(name):
            continue
        if isinstance(made, property):
            lines.append(f"    @property\n    def {name}(self) -> {_result(name)}:\n        \"\"\"{made.__doc__}\"\"\"\n")
        elif name.startswith("__"):
            lines.append(_line(name, PARAMETERS.get(name) or ("self" if _is_unary(name) else "self, other: Operand"), ""))
        else:
            public = _public(name)
            doc = inspect.getdoc(made) or ""
            signature = inspect.signature(made) if public is None or not name.endswith("_") else public.signature
            lines.append(_line(name, _parameters(signature, public.tensors if public else ("other", "value", "src")), doc,
                               "_bool" if signature.return_annotation == "bool" else ""))
    return HEAD + "".join(lines)


def _is_unary(name: str) -> bool:
    public = _operators().get(name)
    return public is not None and len(public.layout.positional) == 1


def _written(cls: type) -> set[str]:
    """What the class body itself defines; some of it is replaced by what is installed."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    return {node.name for node in body.body if isinstance(node, ast.FunctionDef)}


def main() -> int:
    """Writes the stub, or says whether it is current."""
    parser = argparse.ArgumentParser(description=textwrap.shorten(__doc__ or "", 100))
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        current = STUB.exists() and STUB.read_text(encoding="utf-8") == text()
        print("current" if current else f"{STUB.name} is not current; run python tools/generate_stubs.py")
        return 0 if current else 1
    STUB.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
