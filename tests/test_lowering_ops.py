"""Every primitive op on every sample of it: compiled and compared with its ``ref``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sweep
from lowering_harness import Program

from aotgrad.ir import opdef, ops, tensor_type
from aotgrad.ir.builder import build

assert ops
ROWS = [(d.name, i) for d in opdef.all_ops().values() if not isinstance(d.derivative, opdef.Composite) and d.samples for i, _ in enumerate(d.samples())]
# Results that are not exactly rounded: sums in another order, functions within about one unit in the last place of NumPy's.
TOLERANCE = {"exact": 0.0, "loose": 4e-15}


def compile_sample(name: str, sample: opdef.Sample, dtype: Any = None) -> tuple[Any, Any]:
    definition = opdef.get(name)
    xs = [np.asarray(x) for x in sample.operands]
    if dtype is not None:
        xs = [x.astype(dtype) if x.dtype == np.float64 else x for x in xs]
    types = [tensor_type(x.shape, x.dtype) for x in xs]
    func = build("f", types, lambda b, *vs: b.emit(name, vs, sample.attrs))
    assert definition.ref is not None
    want = definition.ref(*xs, **definition.complete(sample.attrs))
    return Program(func)(*xs), want


def agree(got: Any, want: Any, exact: bool) -> None:
    want = np.asarray(want)
    assert got.shape == want.shape and got.dtype == want.dtype
    if exact or want.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want)
    else:
        eps = np.finfo(want.dtype).eps
        np.testing.assert_allclose(got, want, rtol=16 * eps, atol=4 * eps)


@pytest.mark.parametrize("row", sweep.part(ROWS), ids=str)
def test_op(row: tuple[str, int]) -> None:
    name, index = row
    sample = list(opdef.get(name).samples())[index]  # type: ignore[misc]
    got, want = compile_sample(name, sample)
    agree(got, want, opdef.get(name).exact and name != "scatter_add")
