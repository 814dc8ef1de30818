"""The NumPy interpreter: the meaning of the IR, and the oracle everything else is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aotgrad_runtime.errors import AotgradError, AotgradMemoryError, AotgradRangeError, AotgradRuntimeError, AotgradTypeError, AotgradValueError

from . import dims, opdef
from .core import Block, Func, Op, Value
from .host import results as host_results
from .transforms.custom import body_of
from .transforms.rewrite import decompose_block, decompose_func
from .types import TensorType

__all__ = ["bind_sizes", "run", "run_block", "run_op"]


def bind_sizes(types: Sequence[TensorType], arrays: Sequence[Any], names: Sequence[str] | None = None) -> dict[str, int]:
    """Values of the size symbols from arrays that fill ``types``; arrays that do not fit are an error naming the argument."""
    env: dict[str, int] = {}
    pending = []
    for i, (t, x) in enumerate(zip(types, arrays)):
        what = names[i] if names else f"argument {i}"
        if x.ndim != t.rank:
            raise AotgradValueError(f"{what}: an array of rank {t.rank} is needed, this one has rank {x.ndim} (shape {x.shape})")
        if x.dtype != t.dtype.np:
            raise AotgradTypeError(f"{what}: dtype {t.dtype.name} is needed, this is {x.dtype}")
        for axis, (d, n) in enumerate(zip(t.shape, x.shape)):
            name = None if isinstance(d, int) else d.as_symbol()
            if name is not None and name not in env:
                env[name] = n
            else:
                pending.append((what, axis, d, n))
    for what, axis, d, n in pending:
        want = dims.substitute(d, env)
        if want != n:
            raise AotgradValueError(f"{what}: size {n} of dim {axis} should be {d}{'' if isinstance(d, int) else f' = {want}'}")
    return env


def run(func: Func, *arrays: Any, sizes: Mapping[str, int] | None = None) -> list[Any]:
    """Outputs of ``func`` on NumPy arrays.

    >>> from aotgrad.ir import build, tensor_type
    >>> f = build("f", [tensor_type(["n"])], lambda b, x: b.sum(b.mul(x, x), dims=(0,)))
    >>> float(run(f, np.array([1.0, 2.0]))[0])
    5.0
    """
    args = [np.asarray(a) for a in arrays]
    if len(args) != len(func.args):
        raise AotgradTypeError(f"{func.name} takes {len(func.args)} arrays, not {len(args)}")
    env = dict(sizes) if sizes is not None else bind_sizes(func.arg_types, args, func.attrs.get("arg_names"))
    with np.errstate(all="ignore"):
        return run_block(decompose_func(func).body, args, env)


def _resolve(value: Any, env: Mapping[str, int]) -> Any:
    if isinstance(value, dims.Dim):
        return value.substitute(env)
    if isinstance(value, tuple):
        return tuple(_resolve(v, env) for v in value)
    return value


def run_block(block: Block, args: Sequence[Any], sizes: Mapping[str, int]) -> list[Any]:
    """Results of a block on arrays."""
    env: dict[Value, Any] = dict(zip(block.args, args))
    for op in block.ops:
        ins = [env[o] for o in op.operands]
        env.update(zip(op.results, run_op(op, ins, sizes)))
    return [env[o] for o in block.outputs]


def run_op(op: Op, ins: Sequence[Any], sizes: Mapping[str, int]) -> Sequence[Any]:
    attrs = {k: _resolve(v, sizes) for k, v in op.attrs.items()}
    if op.name == "scan":
        return _run_scan(op, ins, attrs, sizes)
    if op.name == "cond":
        return run_block(op.regions[0 if ins[0] else 1], ins[1:], sizes)
    if op.name in ("custom", "custom_linear"):
        return run_block(decompose_block(body_of(op)), ins, sizes)[:len(op.results)]
    if op.name == "host_call":  # its ``ref``, with the sizes of the operands to check open sizes of the results by
        return host_results(attrs["call"], ins, [o.type for o in op.operands], [t.substitute(sizes) for t in op.attrs["types"]])
    ref = opdef.get(op.name).ref
    if ref is None:
        raise AotgradRuntimeError(f"ag.{op.name} has no reference meaning")
    try:
        out = ref(*ins, **attrs)
    except IndexError as error:
        raise AotgradRangeError(f"{op.loc}: {error}") from error
    except AotgradError:
        raise
    except (ValueError, TypeError, ArithmeticError, MemoryError) as error:
        if op.name == "host_call" and not isinstance(error, ValueError):  # the user's
            raise
        kind = AotgradMemoryError if isinstance(error, MemoryError) else AotgradValueError
        raise kind(f"{op.loc}: ag.{op.name}: {error}") from error
    outs = out if isinstance(out, tuple) else (out,)
    return [np.asarray(o, r.type.dtype.np) for o, r in zip(outs, op.results)]


def _run_scan(op: Op, ins: Sequence[Any], attrs: Mapping[str, Any], sizes: Mapping[str, int]) -> Sequence[Any]:
    nc, nk, length, body = attrs["consts"], attrs["carry"], attrs["length"], op.regions[0]
    consts, carry, xs = list(ins[:nc]), list(ins[nc:nc + nk]), ins[nc + nk:]
    rows: list[Any] = [None] * length
    for i in (reversed(range(length)) if attrs["reverse"] else range(length)):
        out = run_block(body, [*consts, *carry, *(x[i] for x in xs)], sizes)
        carry, rows[i] = out[:nk], out[nk:]
    stacked = []
    for j, r in enumerate(op.results[nk:]):
        shape = tuple(_resolve(tuple(r.type.shape), sizes))
        stacked.append(np.array([row[j] for row in rows], r.type.dtype.np).reshape(shape))
    return [*carry, *stacked]


