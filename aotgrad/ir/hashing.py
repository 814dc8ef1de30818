"""A structural hash of a function: equal programs have equal hashes, whatever objects they are made of. Locations do not count."""

from __future__ import annotations

from typing import Any

import numpy as np

from aotgrad_runtime.digests import sha256
from aotgrad_runtime.dtypes import DType

from .core import Block, Func, Value
from .dims import Dim
from .types import Layout, TensorType

__all__ = ["structural_hash"]


def _attr(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"array({value.dtype.str},{value.shape},{sha256(np.ascontiguousarray(value).tobytes()).hexdigest()})"
    if isinstance(value, (tuple, list)):
        return f"({','.join(map(_attr, value))})"
    if isinstance(value, DType):
        return value.name
    if isinstance(value, (Dim, Layout, TensorType)):
        return repr(value) if isinstance(value, Layout) else str(value)
    if isinstance(value, float):
        return f"{value.hex()}"
    return f"{type(value).__name__}:{value!r}"


def _block(block: Block, out: list[str]) -> None:
    number: dict[Value, int] = {a: i for i, a in enumerate(block.args)}
    out.append("(" + ";".join(str(a.type) for a in block.args) + ")")
    for op in block.ops:
        out.append(f"{op.name}[{','.join(str(number[o]) for o in op.operands)}]" + "".join(f"{k}={_attr(v)};" for k, v in op.attrs.items()))
        for region in op.regions:
            _block(region, out)
        for r in op.results:
            number[r] = len(number)
    out.append("->" + ",".join(str(number[o]) for o in block.outputs))


def structural_hash(func: Func, *extra: str) -> str:
    """SHA-256 (hex) of the program and of ``extra`` texts (options, target, versions)."""
    out: list[str] = []
    _block(func.body, out)
    return sha256("\n".join([*out, *extra]).encode()).hexdigest()
