"""The vmap road of the table: every op batched over each operand alone and over all together, against loops; with derivatives, native too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import native_table
import numpy as np
import optable
import pytest
import sweep

from aotgrad.ir import Func, build, dims, interp, opdef, tensor_type
from aotgrad.ir.transforms.batch import batch_func
from aotgrad.ir.transforms.cleanup import standard
from aotgrad.ir.transforms.differentiate import jvp_func, vjp_func
from aotgrad.ir.transforms.rewrite import decompose_func
from aotgrad_runtime.errors import AotgradNotImplementedError

ROWS = [row for row in optable.rows() if row[1].operands]
MOVING = [r for r in ROWS if any(optable.active([np.asarray(x) for x in r[1].operands]))]
SIZES = (3, 1, 0)
N = dims.symbol("examples")


def subsets(count: int) -> Iterator[list[bool]]:
    """Each operand alone, and all together."""
    for i in range(count):
        yield [i == j for j in range(count)]
    if count > 1:
        yield [True] * count


def examples(x: Any, i: int) -> Any:
    """Another operand inside the domain of ``x``: its elements in another order and, of floats, a little larger; an index a little smaller."""
    y = np.roll(x, i).reshape(x.shape) if x.ndim else x
    if x.dtype.kind == "f":
        return np.asarray(y * (1 + 0.02 * i), x.dtype)
    return np.asarray(y ^ bool(i % 2) if x.dtype.kind == "b" else np.where(y > 0, np.maximum(y - i, 0), y) if x.ndim == 0 else y, x.dtype)


def stacked(arrays: Sequence[Any], on: Sequence[bool], size: int) -> tuple[list[Any], list[list[Any]]]:
    """Operands of the batched function, and those of each call of the plain one."""
    rows = [[examples(x, i) if k else x for x, k in zip(arrays, on)] for i in range(size)]
    full = [np.array([r[j] for r in rows], x.dtype).reshape((size, *x.shape)) if k else x for j, (x, k) in enumerate(zip(arrays, on))]
    return full, rows


def by_loop(func: Func, rows: Sequence[Sequence[Any]]) -> list[Any]:
    found = [interp.run(func, *r) for r in rows]
    return [np.array([f[j] for f in found], t.dtype.np).reshape((len(rows), *t.shape)) for j, t in enumerate(func.out_types)]


def agree(got: Sequence[Any], want: Sequence[Any], rtol: float = 1e-12) -> None:
    assert len(got) == len(want)
    for g, w in zip(got, want):
        assert g.shape == w.shape and g.dtype == w.dtype
        np.testing.assert_allclose(g, w, rtol=5e-6 if w.dtype == np.float32 else rtol, atol=1e-6 if w.dtype == np.float32 else 1e-13)


@pytest.mark.parametrize("row", sweep.part(ROWS, of=2), ids=optable.ids)
def test_batched_op_is_a_loop_of_the_op(row: optable.Row) -> None:
    func, arrays = optable.func_of(*row)
    for on in subsets(len(arrays)):
        batched = batch_func(func, on, N)
        for size in SIZES:
            full, rows = stacked(arrays, on, size)
            agree(interp.run(batched, *full), by_loop(func, rows))


def pulled_by_loop(func: Func, live: list[bool], on: Sequence[bool], rows: Sequence[Sequence[Any]], cts: Sequence[Sequence[Any]], arrays: Sequence[Any]) -> list[Any]:
    """Cotangents of the batched function: stacked where the operand is, else summed."""
    n = len(func.out_types)
    found = [interp.run(vjp_func(func, live), *r, *c)[n:] for r, c in zip(rows, cts)]
    out = []
    for j, i in enumerate([i for i, k in enumerate(live) if k]):
        parts = np.array([f[j] for f in found], arrays[i].dtype).reshape((len(rows), *arrays[i].shape))
        out.append(parts if on[i] else parts.sum(0))
    return out


@pytest.mark.parametrize("row", sweep.part(MOVING, of=4), ids=optable.ids)
def test_derivative_of_batched_and_batch_of_derivative(row: optable.Row) -> None:
    func, arrays = optable.func_of(*row)
    live, rng = optable.active(arrays), np.random.default_rng(1)
    floats = [t for t in func.out_types if t.dtype.is_differentiable]
    pull, push = vjp_func(func, live), jvp_func(func, live)
    for on in subsets(len(arrays)):
        batched = batch_func(func, on, N)
        for size in SIZES:
            full, rows = stacked(arrays, on, size)
            cts = [[np.asarray(rng.normal(size=t.shape), t.dtype.np) for t in floats] for _ in range(size)]
            whole = [np.array([c[j] for c in cts], t.dtype.np).reshape((size, *t.shape)) for j, t in enumerate(floats)]
            found = interp.run(vjp_func(batched, live), *full, *whole)[len(func.out_types):]
            agree(found, pulled_by_loop(func, live, on, rows, cts, arrays), 1e-11)
            each = batch_func(pull, [*on, *(True for _ in floats)], N)
            agree(interp.run(each, *full, *whole), by_loop(pull, [[*r, *c] for r, c in zip(rows, cts)]), 1e-11)
            tangents = [np.asarray(rng.normal(size=x.shape), x.dtype) for x, k in zip(arrays, live) if k]
            if size:
                moved = batch_func(push, [*on, *(False for _ in tangents)], N)
                agree(interp.run(moved, *full, *tangents), by_loop(push, [[*r, *tangents] for r in rows]), 1e-11)


def first_rows() -> list[optable.Row]:
    """One sample per op, the largest."""
    best: dict[str, optable.Row] = {}
    for row in ROWS:
        size = sum(np.size(x) for x in row[1].operands)
        if row[0].name not in best or size > sum(np.size(x) for x in best[row[0].name][1].operands):
            best[row[0].name] = row
    return list(best.values())


@pytest.mark.parametrize("row", [r for r in first_rows() if any(optable.active([np.asarray(x) for x in r[1].operands]))], ids=optable.ids)
def test_second_order(row: optable.Row) -> None:
    func, arrays = optable.func_of(*row)
    live = optable.active(arrays)
    pull = vjp_func(func, live)
    rng = np.random.default_rng(2)
    cts = [np.asarray(rng.normal(size=t.shape), t.dtype.np) for t in func.out_types if t.dtype.is_differentiable]
    again = [*live, *(True for _ in cts)]
    twice = vjp_func(pull, again)
    outs = [np.asarray(rng.normal(size=t.shape), t.dtype.np) for t in pull.out_types if t.dtype.is_differentiable]
    given = [*arrays, *cts, *outs]
    on = [True] * len(given)
    full, rows = stacked(given, on, 3)
    agree(interp.run(batch_func(twice, on, N), *full), by_loop(twice, rows), 1e-10)
    swapped = vjp_func(batch_func(pull, on[:len(again)], N), again)
    agree(interp.run(swapped, *full), by_loop(twice, rows), 1e-10)


@pytest.mark.parametrize("row", sweep.part([r for r in first_rows() if not isinstance(r[0].derivative, opdef.Composite)]), ids=optable.ids)
def test_native_is_the_interpreter(row: optable.Row) -> None:
    """Composites consist of these."""
    func, arrays = optable.func_of(*row)
    live = optable.active(arrays)
    funcs, ons = {}, {}
    for k, on in enumerate(subsets(len(arrays))):
        value = batch_func(func, on, N)
        funcs[f"value{k}"], ons[f"value{k}"] = standard(decompose_func(value)), on
        if any(live):
            funcs[f"pull{k}"], ons[f"pull{k}"] = standard(decompose_func(vjp_func(value, live))), on
    for name, run in native_table.natives(funcs).items():
        for size in SIZES:
            full, _ = stacked(arrays, ons[name], size)
            sizes = {"examples": size}
            full += [np.random.default_rng(3).normal(size=[dims.substitute(d, sizes) for d in t.shape]).astype(t.dtype.np) for t in run.func.arg_types[len(full):]]
            want, found = interp.run(run.func, *full), run(*full)
            for g, w in zip(found if isinstance(found, tuple) else (found,), want):
                assert g.shape == w.shape
                np.testing.assert_allclose(g, w, rtol=2e-5 if w.dtype == np.float32 else 1e-9, atol=1e-6 if w.dtype == np.float32 else 1e-12)


def test_both_indices_out_of_range_are_errors() -> None:
    x, take = tensor_type([4]), build("f", [tensor_type([4]), tensor_type([2], "int64")], lambda b, x, i: b.take(x, i, dim=0))
    assert x.rank == 1
    batched = batch_func(take, [True, True], N)
    data = np.arange(12.0).reshape(3, 4)
    for bad in (4, -1, 100):
        with pytest.raises(IndexError):
            interp.run(batched, data, np.array([[0, 1], [bad, 0], [1, 1]]))
    assert interp.run(batched, data, np.array([[0, 1], [3, 0], [1, 1]]))[0].tolist() == [[0.0, 1.0], [7.0, 4.0], [9.0, 9.0]]


def test_ops_without_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain op runs on one example after the other; one with regions says what to write."""
    halves = opdef.OpDef("halves", "x / 2", ("x", "w"), lambda types, a: types[:1], lambda x, w: x / 2 + w, opdef.Zero(), opdef.Kernel("halves"))
    loops = opdef.OpDef("loops", "x", ("x",), lambda types, a: types, None, opdef.Zero(), opdef.Kernel("loops"), regions=1)
    for op in (halves, loops):
        monkeypatch.setitem(opdef._REGISTRY, op.name, op)
    func = build("f", [tensor_type([2]), tensor_type([2])], lambda b, x, w: b.halves(x, w))
    x = np.arange(6.0).reshape(3, 2)
    assert interp.run(batch_func(func, [True, False], N), x, x[1])[0].tolist() == (x / 2 + x[1]).tolist()
    with pytest.raises(AotgradNotImplementedError, match=r"ag\.loops cannot be batched.*batch=fn"):
        batch_func(build("f", [tensor_type([2])], lambda b, x: b.emit("loops", [x], {}, [])), [True], N)


def test_which_ops_have_no_rule() -> None:
    """They work, slowly: a rule is better."""
    plain = [op.name for op in opdef.all_ops().values() if not isinstance(op.derivative, opdef.Composite) and op.operands and op.batch is None
             and not isinstance(op.lower, (opdef.Scalar, opdef.Reduce))]
    assert plain == []
