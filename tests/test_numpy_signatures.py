"""Arguments of NumPy's functions mean what they mean in NumPy, by place and by name: in eager derivatives, traces and on tensors."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
import pytest

import aotgrad as ag
from aotgrad.frontend.dispatch import NUMPY, TORCH
from aotgrad.frontend.numpy_protocol import _FUNCTIONS
from aotgrad.frontend.numpy_reductions import _ORDERS, REDUCTIONS

X = np.random.default_rng(0).uniform(0.5, 1.5, (2, 3))
W = np.array([[True, False, True], [True, True, False]])
f4, f8 = np.float32, np.float64
_SPELLED = {"input": ("a", "x", "x1", "m", "arr", "array", "A", "ary"), "other": ("b", "x2"), "vec2": ("b",), "tensor": ("ary",), "tensors": ("arrays", "arr"),
            "dim": ("axis",), "dims": ("axis", "reps"), "dim0": ("axis1",), "dim1": ("axis1", "axis2"), "dim2": ("axis2",), "keepdim": ("keepdims",),
            "correction": ("ddof",), "sizes": ("shape",), "shifts": ("shift",), "min": ("a_min",), "max": ("a_max",)}


@pytest.mark.parametrize("table", [TORCH, NUMPY], ids=["torch", "numpy"])
def test_what_computes_a_function_knows_all_its_parameters_by_name(table: Any) -> None:
    for name, public in table.items():
        if public.canon is None:
            continue
        known = inspect.signature(public.canon).parameters
        behind = [n for n in (*public.layout.positional, *public.layout.keywords) if n not in (*public.tensors, "out")]
        if public.layout.star is None:
            assert [n for n in behind if n not in known] == [], name


def _numpys(name: str) -> list[str] | None:
    module = np.linalg if name.startswith("linalg.") else np
    f = getattr(module, name.removeprefix("linalg."), None)
    if f is None or isinstance(f, np.ufunc):
        return None
    parameters = inspect.signature(f).parameters.values()
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)] if all(p.kind != p.VAR_POSITIONAL for p in parameters) else None


def test_the_order_of_parameters_is_numpys() -> None:
    differ = []
    for name in {**NUMPY, **_FUNCTIONS}:
        theirs = _numpys(name)
        if theirs is None:
            continue
        if name in REDUCTIONS:
            ours = ["a", *_ORDERS["max" if name in ("amax", "amin") else name].partition(" *")[0].split()]
        elif name in _FUNCTIONS:
            kinds = inspect.signature(_FUNCTIONS[name]).parameters.values()
            ours = [p.name for p in kinds if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        else:
            ours = [*NUMPY[name].layout.positional, *([NUMPY[name].star] if NUMPY[name].star else [])]
        wrong = [(mine, theirs[i] if i < len(theirs) else None) for i, mine in enumerate(ours)
                 if i >= len(theirs) or mine != theirs[i] and theirs[i] not in _SPELLED.get(mine, ())]
        differ += [(name, mine, their) for mine, their in wrong if their is not None]  # one that NumPy takes by name alone may stand last here
    assert differ == []


CALLS: dict[str, Any] = {
    "sum": [lambda x: np.sum(x, 1, f4), lambda x: np.sum(x, 1, f4, None, True), lambda x: np.sum(x, 1, None, None, True, 2.0),
            lambda x: np.sum(x, 1, None, None, False, 2.0, W), lambda x: np.sum(x, axis=1, dtype=f4, keepdims=True), lambda x: np.sum(x, axis=1, dtype=f4, where=W),
            lambda x: np.sum(x, 1, f4, where=W, initial=1), lambda x: np.sum(x, 1, np.int64), lambda x: np.sum(x, axis=(), dtype=f4)],
    "prod": [lambda x: np.prod(x, 1, f4), lambda x: np.prod(x, 1, None, None, True, 2.0, W), lambda x: np.prod(x, axis=1, dtype=f4)],
    "mean": [lambda x: np.mean(x, 1, f4), lambda x: np.mean(x, 1, f8), lambda x: np.mean(x, 1, f4, None, True), lambda x: np.mean(x, axis=1, dtype=f4, where=W),
             lambda x: np.mean(x, 1, None, None, True, where=W)],
    "std": [lambda x: np.std(x, 1, f4), lambda x: np.std(x, 1, f4, None, 1, True), lambda x: np.std(x, axis=1, correction=1), lambda x: np.std(x, 1, where=W),
            lambda x: np.std(x, axis=1, mean=np.mean(x, axis=1, keepdims=True), ddof=1)],
    "var": [lambda x: np.var(x, 1, f4, None, 1, True), lambda x: np.var(x, axis=1, dtype=f4, where=W, ddof=1), lambda x: np.var(x, 1, None, None, 1, True)],
    "max": [lambda x: np.max(x, 1, None, True, 1.2), lambda x: np.min(x, 1, None, False, 0.7, W), lambda x: np.amax(x, 1, None, True)],
    "any": [lambda x: np.any(x > 1, 1, None, True), lambda x: np.all(x > 1, axis=1, keepdims=True, where=W)],
    "arg": [lambda x: np.argmax(x, 1, None), lambda x: np.argmin(x, 1, keepdims=True)],
    "cum": [lambda x: np.cumsum(x, 1, f4), lambda x: np.cumprod(x, axis=0, dtype=f4), lambda x: np.cumsum(x, 1, None, None)],
    "reduce": [lambda x: np.add.reduce(x, 1, f4), lambda x: np.add.reduce(x, 1, None, None, True, 2.0, W), lambda x: np.multiply.reduce(x, 1, f4, None, True),
               lambda x: np.maximum.reduce(x, 1, f4), lambda x: np.logical_or.reduce(x > 1, 1, bool), lambda x: np.add.reduce(x, axis=1, where=W)],
    "accumulate": [lambda x: np.add.accumulate(x, 1, f4), lambda x: np.multiply.accumulate(x, axis=0, dtype=f4), lambda x: np.add.accumulate(x)],
    "nan": [lambda x: np.nansum(x, 1, f4), lambda x: np.nanprod(x, 1, f4, None, True), lambda x: np.nanmean(x, axis=1, keepdims=True, dtype=f4),
            lambda x: np.nanmean(x, 1, where=W), lambda x: np.nanmax(x, 1, None, True), lambda x: np.nanmin(x, axis=1, initial=0.7, where=W)],
    "ptp": [lambda x: np.ptp(x, 1, None, True), lambda x: np.ptp(x, axis=1)],
    "joined": [lambda x: np.concatenate([x, x], axis=1, dtype=f4), lambda x: np.stack([x, x], 0, None), lambda x: np.hstack([x, x], dtype=f4),
               lambda x: np.vstack([x, x], dtype=f4), lambda x: np.concat([x, x], dtype=np.int64, casting="unsafe")],
    "like": [lambda x: np.full_like(x, fill_value=3.0, dtype=f4), lambda x: np.ones_like(x, None, "C", True, (4,)), lambda x: np.full_like(x, 3.0, f4)],
    "other": [lambda x: np.trace(x, 1, 0, 1, f4), lambda x: np.round(x, 1, None), lambda x: np.clip(x, 0.7, 1.2, None), lambda x: np.nan_to_num(x, True, 1.0),
              lambda x: np.einsum("ij->i", x, optimize=True), lambda x: np.add(x, 1, casting="unsafe", order="C"), lambda x: np.linalg.norm(x, None, 1, True)],
}
METHODS = [lambda x: x.sum(1, f4), lambda x: x.sum(1, f4, None, True, 2.0, W), lambda x: x.prod(axis=1, dtype=f4, keepdims=True), lambda x: x.mean(1, f4),
           lambda x: x.std(1, f4, None, 1, True), lambda x: x.var(axis=1, where=W), lambda x: x.max(1, None, True, 1.2), lambda x: x.min(1, None, False, 0.7, W),
           lambda x: x.cumsum(1, f4), lambda x: x.trace(0, 0, 1, f4), lambda x: x.argmax(1, keepdims=True)]


def _same(want: Any, got: Any) -> None:
    got = got.detach().numpy() if isinstance(got, ag.Tensor) else np.asarray(got)
    assert (got.shape, got.dtype) == (np.shape(want), np.asarray(want).dtype)
    np.testing.assert_allclose(got, want, rtol=1e-6 if got.dtype == f4 else 1e-14)


@pytest.mark.parametrize("name", [*CALLS, "methods"])
def test_calls_by_place_and_by_name(name: str) -> None:
    calls = CALLS.get(name, METHODS)
    wanted, seen = [f(X) for f in calls], []

    def taped(x: Any) -> Any:
        seen.extend(f(x) for f in calls)
        return x.sum()

    ag.grad(taped)(X)
    ways = [seen, ag.compile(lambda x: [f(x) for f in calls])(X)]
    if name in CALLS:
        ways.append([f(ag.tensor(X)) for f in calls])
    for found in ways:
        for want, got in zip(wanted, found, strict=True):
            _same(want, got)


@pytest.mark.parametrize("f", [lambda x: np.mean(x, axis=1, dtype=f8), lambda x: x.sum(1, f8), lambda x: np.prod(x, 1, f8), lambda x: np.std(x, 1, None, None, 1),
                               lambda x: np.std(x, 1, where=W), lambda x: np.nanmean(x, 1, f8), lambda x: np.add.reduce(x, 1, f8), lambda x: np.ptp(x, 1)])
def test_gradients_of_them(f: Any) -> None:
    weights, step = np.array([1.0, -2.5]), 1e-6
    found = ag.grad(lambda x: (f(x) * weights).sum())(X)
    for i in np.ndindex(X.shape):
        apart = np.zeros_like(X)
        apart[i] = step
        np.testing.assert_allclose(found[i], ((f(X + apart) - f(X - apart)) * weights).sum() / (2 * step), atol=1e-8)


@pytest.mark.parametrize("f", [lambda x: np.sum(x, 1, None, np.zeros(2)), lambda x: np.cumsum(x, out=np.zeros(6)), lambda x: x.mean(axis=1, out=np.zeros(2)),
                               lambda x: np.sum(x, 1, None, None, True, 0, True, 1), lambda x: np.nansum(x, axes=1), lambda x: np.ptp(x, 1, axis=1),
                               lambda x: np.sin(x, dtype=f4), lambda x: np.concatenate([x, x], dtype=np.int64), lambda x: np.logical_or.reduce(x, dtype=f4)])
def test_what_is_not_available_is_refused(f: Any) -> None:
    for call in (lambda: ag.compile(f)(X), lambda: ag.grad(lambda x: f(x).sum())(X)):
        with pytest.raises(ag.AotgradTypeError):
            call()


def test_out_takes_a_tensor() -> None:
    out = ag.zeros(2, dtype=ag.float64)
    assert np.sum(ag.tensor(X), axis=1, out=out) is out
    np.testing.assert_allclose(out.numpy(), X.sum(1), rtol=1e-15)


def test_descriptions_name_no_parameter_that_nobody_can_pass() -> None:
    for name, public in TORCH.items():
        layout = public.layout
        said = set(re.findall(r"``(\w+)``", public.op.doc)) & {*public.op.attrs, *public.op.operands}
        assert said <= {*layout.positional, *layout.keywords, layout.star}, name
