"""The table: every op with every sample, and the checks that a row goes through. Used by the tests and by the planted-fault test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import aotgrad.ir.ops  # noqa: F401  (fills the registry)
from aotgrad.ir import Func, build, interp, opdef, tensor_type
from aotgrad.ir.transforms.differentiate import jvp_func, linearize_func, vjp_func

Row = tuple[opdef.OpDef, opdef.Sample]


def rows() -> Iterator[Row]:
    for op in opdef.all_ops().values():
        for sample in (op.samples or (lambda: ()))():
            yield op, sample


def ids(row: Row) -> str:
    return f"{row[0].name}[{row[1].name}]"


def symbolic_type(x: Any, prefix: str) -> Any:
    return tensor_type([f"{prefix}{i}" for i in range(np.ndim(x))], np.asarray(x).dtype)


def func_of(op: opdef.OpDef, sample: opdef.Sample, dtype: Any = None) -> tuple[Func, list[Any]]:
    arrays = [np.asarray(x) if dtype is None or np.asarray(x).dtype.kind != "f" else np.asarray(x, dtype) for x in sample.operands]
    types = [tensor_type(x.shape, x.dtype) for x in arrays]
    return build(op.name, types, lambda b, *xs: b.emit(op.name, xs, dict(sample.attrs))), arrays


def active(arrays: Sequence[Any]) -> list[bool]:
    return [x.dtype.kind == "f" for x in arrays]


def numeric_jvp(run: Callable[..., list[Any]], arrays: Sequence[Any], tangents: Sequence[Any], eps: float = 1e-6) -> list[Any]:
    def shifted(sign: float) -> list[Any]:
        moved = iter(tangents)
        return run(*[x + sign * eps * next(moved) if x.dtype.kind == "f" else x for x in arrays])

    return [(hi - lo) / (2 * eps) for hi, lo in zip(shifted(1.0), shifted(-1.0)) if hi.dtype.kind == "f"]


def check_derivatives(func: Func, arrays: Sequence[Any], rng: np.random.Generator, order: int = 2, rtol: float = 2e-5) -> None:
    """Forward mode against central differences, both modes and linearize against each other, and the same for the derivative function."""
    on = active(arrays)
    if not any(on):
        return
    narrow = any(t.dtype.name == "float32" for t in func.out_types)  # a cast's output has float32's resolution
    eps, rtol = (2.0**-8, 1e-3) if narrow else (1e-6, rtol)
    tangents = [np.asarray(rng.normal(size=x.shape), x.dtype) for x, live in zip(arrays, on) if live]
    outs = interp.run(func, *arrays)
    floats = [o for o in outs if o.dtype.kind == "f"]
    cts = [np.asarray(rng.normal(size=o.shape), o.dtype) for o in floats]
    moved = interp.run(jvp_func(func, on), *arrays, *tangents)
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(moved, outs))
    analytic = moved[len(outs):]
    for a, n in zip(analytic, numeric_jvp(lambda *xs: interp.run(func, *xs), arrays, tangents, eps)):
        np.testing.assert_allclose(a, n, rtol=rtol, atol=1e-3 if narrow else 2e-7)
    pulled = interp.run(vjp_func(func, on), *arrays, *cts)[len(outs):]
    forward = sum(float(np.sum(a * c)) for a, c in zip(analytic, cts))
    backward = sum(float(np.sum(t * p)) for t, p in zip(tangents, pulled))
    scale = 1 + sum(float(np.sum(np.abs(a * c))) for a, c in zip(analytic, cts)) + sum(float(np.sum(np.abs(t * p))) for t, p in zip(tangents, pulled))
    assert abs(forward - backward) <= (1e-6 if narrow else 1e-13) * scale, (forward, backward)
    primal, linear = linearize_func(func, on)
    values = interp.run(primal, *arrays)
    again = interp.run(linear, *values[len(outs):], *tangents, sizes={})
    for a, n in zip(again, analytic):
        np.testing.assert_allclose(a, n, rtol=1e-12, atol=1e-12)
    if order > 1:
        check_derivatives(vjp_func(func, on), [*arrays, *cts], rng, order - 1, rtol)
