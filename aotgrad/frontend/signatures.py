"""What a call's arguments are to a compiled function: the key of their kinds, readable names, and symbolic types."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from aotgrad.ir import Layout, TensorType, dims
from aotgrad_runtime.arrays import DTYPES, check_kind, native, refusal
from aotgrad_runtime.dtypes import ALL, DType, bfloat16, float64, int64
from aotgrad_runtime.errors import AotgradError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.tensor import Tensor

from . import kernels
from .pytree import TreeDef
from .static import static_key

__all__ = ["identifier", "leaf_names", "leaf_type", "specs_of"]

_ACCEPTED = {d.np: None for d in ALL if d.kind != "c" and d is not bfloat16}  # dtypes of arrays, in order


def identifier(path: str) -> str:
    text = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in path)
    return text if text[:1].isalpha() or text[:1] == "_" else f"a{text}"


def specs_of(signature: inspect.Signature | None, leaves: Sequence[Any], tree: TreeDef, static: set[int]) -> tuple[Any, ...]:
    """What the signature keeps of each leaf. Errors name the argument."""
    try:
        return tuple([_spec(x, i in static) for i, x in enumerate(leaves)])
    except AotgradError:
        for i, (x, name) in enumerate(zip(leaves, leaf_names(signature, tree))):
            try:
                _spec(x, i in static)
            except AotgradError as error:
                raise type(error)(f"argument {name}: {error}") from None
        raise


def _spec(x: Any, static: bool) -> Any:
    """Arrays by type, everything else by value."""
    if static and isinstance(x, (Tensor, np.ndarray)):
        raise AotgradTypeError("static= names it, but it is an array, whose values cannot be part of the signature; leave it out of static=, or pass a tuple of numbers")
    if isinstance(x, Tensor):
        _compilable(x._data.dtype, x._dtype is bfloat16)
        return ("tensor", type(x)._value_type, x._data.dtype, x._data.ndim, kernels.dense_order(x._data) or None)
    if isinstance(x, np.ndarray):
        check_kind(x)
        _compilable(x.dtype)
        return ("array", x.dtype.newbyteorder("="), x.ndim, kernels.dense_order(x) or None)
    if isinstance(x, np.generic) and not static:
        _compilable(x.dtype)
        return ("scalar", x.dtype)
    if type(x) in (float, int) and not static:
        if type(x) is int and not -(1 << 63) <= x < 1 << 63:
            raise AotgradValueError(f"the integer {x} does not fit in 64 bits; pass a float, or name the parameter in static=")
        return (type(x),)
    return ("static", static_key(x))


def _compilable(dtype: Any, storage: bool = False) -> None:
    if not storage and dtype.newbyteorder("=") not in _ACCEPTED:
        raise AotgradTypeError(refusal(dtype) or f"dtype {dtype} cannot be compiled; convert to one of {', '.join(str(d) for d in _ACCEPTED)} (x.astype(...))")


def leaf_names(signature: inspect.Signature | None, tree: TreeDef) -> list[str]:
    """A readable name per leaf: the parameter, then the path inside it."""
    args, kwargs = tree.children
    params = list(signature.parameters.values()) if signature is not None else []
    out: list[str] = []
    for i, child in enumerate(args.children):
        if i < len(params) and params[i].kind is not inspect.Parameter.VAR_POSITIONAL:
            base = params[i].name
        else:
            base = f"arg{i}"
        out += _paths(child, base)
    for key, child in zip(kwargs.meta, kwargs.children):
        out += _paths(child, str(key))
    return out


def _paths(tree: TreeDef, base: str) -> list[str]:
    if tree.kind is None:
        return [base]
    if tree.kind == "none":
        return []
    if issubclass(tree.kind, dict):
        keys: Sequence[Any] = tree.meta
    else:
        keys = tree.meta[1:] if tree.meta[:1] == ("dataclass",) else range(len(tree.children))
    return [p for k, c in zip(keys, tree.children) for p in _paths(c, f"{base}_{k}")]


def leaf_type(x: Any, name: str, examples: dict[str, int], numbered: bool) -> TensorType | None:
    """The symbolic type of a leaf (sizes get names and are entered in ``examples``, or with ``numbered`` stay numbers); None for constants."""
    if type(x) is float:
        return TensorType((), float64)
    if type(x) is int:
        return TensorType((), int64)
    if isinstance(x, np.generic):
        return TensorType((), _np_dtype(x))
    data = x._data if isinstance(x, Tensor) else x
    if not isinstance(data, np.ndarray):
        return None
    shape: list[Any] = list(data.shape) if numbered else []
    for axis, n in enumerate(data.shape if not numbered else ()):
        symbol = f"{identifier(name)}_{axis}"
        while symbol in examples:
            symbol += "_"
        examples[symbol] = int(n)
        shape.append(dims.symbol(symbol))
    order = kernels.dense_order(data)
    return TensorType(tuple(shape), x._dtype if isinstance(x, Tensor) else _np_dtype(data), Layout(order) if isinstance(order, tuple) else None)


def _np_dtype(x: Any) -> DType:
    found = DTYPES.get(x.dtype)
    return found if found is not None and x.dtype != np.uint16 else DTYPES[native(np.asarray(x)).dtype]
