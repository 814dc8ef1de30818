"""Every op, every sample: reference value against the type rule, both derivative modes, second order, float32."""

from __future__ import annotations

import numpy as np
import optable
import pytest
import sweep

from aotgrad.ir import interp, opdef
from aotgrad.ir.transforms.differentiate import jvp_func, vjp_func

ROWS = list(optable.rows())


def test_every_op_has_samples_and_a_meaning() -> None:
    without = [op.name for op in opdef.all_ops().values() if not op.regions and not list((op.samples or tuple)())]
    assert sorted(without) == ["graft", "hook", "host_call"]  # they hold Python functions, or a derivative that is not their value's: see test_hooks_compiled
    for op in opdef.all_ops().values():
        assert op.lower is not None or isinstance(op.derivative, opdef.Composite), op.name
        assert op.ref is not None or op.regions or isinstance(op.derivative, opdef.Composite), op.name
        assert op.doc, op.name


@pytest.mark.parametrize("row", ROWS, ids=optable.ids)
def test_type_rule_agrees_with_reference(row: optable.Row) -> None:
    func, arrays = optable.func_of(*row)
    for value, t in zip(interp.run(func, *arrays), func.out_types):
        assert value.shape == t.shape and value.dtype == t.dtype.np


@pytest.mark.parametrize("row", ROWS, ids=optable.ids)
def test_derivatives(row: optable.Row) -> None:
    func, arrays = optable.func_of(*row)
    if row[0].name == "stop_gradient":  # its derivative is 0 by definition, not by limit
        assert not np.any(interp.run(jvp_func(func, [True]), *arrays, *(np.ones_like(x) for x in arrays))[1])
        return
    optable.check_derivatives(func, arrays, np.random.default_rng(0))


@pytest.mark.parametrize("row", sweep.part(r for r in ROWS if any(np.asarray(x).dtype.kind == "f" for x in r[1].operands)), ids=optable.ids)
def test_float32_keeps_its_dtype(row: optable.Row) -> None:
    func, arrays = optable.func_of(*row, dtype=np.float32)
    wide, arrays64 = optable.func_of(*row)
    on = optable.active(arrays)
    outs, outs64 = interp.run(func, *arrays), interp.run(wide, *arrays64)
    for a, b in zip(outs, outs64):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5)
    cts = [np.ones_like(o) for o in outs if o.dtype.kind == "f"]
    tangents = [np.ones_like(x) for x, live in zip(arrays, on) if live]
    for value, t in zip(interp.run(vjp_func(func, on), *arrays, *cts), vjp_func(func, on).out_types):
        assert value.dtype == t.dtype.np
    for value, t in zip(interp.run(jvp_func(func, on), *arrays, *tangents), jvp_func(func, on).out_types):
        assert value.dtype == t.dtype.np
