"""What alone reads a convolution, element by element, runs on pieces of its result: the same bits as one after the other, every layout, any batch, threads, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sweep
from lowering_harness import Program
from native_table import agree, natives, run_both_guards
from test_conv import KNOWN, LAST

import aotgrad as ag
from aotgrad.codegen.conv import select
from aotgrad.ir import Func, Layout, TensorType, build, dims, interp
from aotgrad.ir.transforms.cleanup import standard
from aotgrad_runtime import pool
from aotgrad_runtime.dtypes import as_dtype

PLACES = {"contiguous": (False, False), "channels_last": (True, True), "residual in another layout": (False, True)}
MORE = [((2, 16, 14, 14), (24, 16, 1, 1), KNOWN[0][2] | {"padding": ((0, 0), (0, 0))}), ((1, 32, 16, 16), (32, 32, 3, 3), KNOWN[0][2])]


def _types(case: Any, dtype: Any, last: bool, last_residual: bool) -> list[TensorType]:
    x, w, attrs = case
    n, element = dims.symbol("n"), as_dtype(dtype)

    def layout(on: bool) -> Layout | None:
        return LAST(len(x)) if on and len(x) > 3 else None

    image = TensorType((n, *x[1:]), element, layout(last))
    y = build("y", [image, TensorType(w, element)], lambda b, x, w: b.conv(x, w, **attrs)).out_types[0]
    return [image, TensorType(w, element), TensorType((w[0],), element), TensorType((w[0],), element), TensorType(y.shape, element, layout(last_residual))]


def _after(b: Any, y: Any, scale: Any, shift: Any, residual: Any) -> list[Any]:
    """Scale and shift by channel, residual, relu, and whether it let pass: two results of one nest."""
    def by_channel(v: Any) -> Any:
        return b.broadcast(v, shape=y.type.shape, dims=(1,))

    z = b.add(b.add(b.mul(y, by_channel(scale)), by_channel(shift)), residual)
    return [b.relu(z), b.gt(z, b.full_like(z, 0))]


def _fused(case: Any, types: list[TensorType]) -> Func:
    return standard(build("f", types, lambda b, x, w, *rest: _after(b, b.conv(x, w, **case[2]), *rest)))


def _parts(case: Any, types: list[TensorType]) -> tuple[Func, Func]:
    conv = build("c", types[:2], lambda b, x, w: b.conv(x, w, **case[2]))
    return standard(conv), standard(build("e", [conv.out_types[0], *types[2:]], _after))


def _arguments(case: Any, types: list[TensorType], dtype: Any) -> list[Any]:
    rng = np.random.default_rng(9)
    return [rng.normal(size=t.substitute({"n": case[0][0]}).shape).astype(dtype) for t in types]


TYPED = sweep.part(PLACES, (np.float64, np.float32))


@pytest.mark.parametrize("where, dtype", TYPED)
def test_runs_on_pieces_and_gives_the_same_bits(where: str, dtype: Any) -> None:
    cases = [*KNOWN, *MORE]
    typed = [_types(case, dtype, *PLACES[where]) for case in cases]
    funcs = {f"f{i}": _fused(case, types) for i, (case, types) in enumerate(zip(cases, typed))}
    kernels = natives(funcs)
    for (name, func), case, types in zip(funcs.items(), cases, typed, strict=True):
        args = _arguments(case, types, dtype)
        got = run_both_guards(kernels[name], args)
        agree(got[:1], interp.run(func, *args)[:1], False, f"{where} {case}")
        conv, after = _parts(case, types)
        want = Program(after)(Program(conv)(*args[:2]), *args[2:])
        for a, b in zip(got, want, strict=True):
            assert a.tobytes() == b.tobytes(), (where, case)


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
def test_which_are_fused(last: bool) -> None:
    """Kernels of their own whose result stays where it is; several pieces of an image."""
    kinds, staged = [], []
    for case in (*KNOWN, *MORE):
        report = Program(_fused(case, _types(case, np.float32, last, last))).meta["kernels"]
        kinds.append("epilogue" in [k["kind"] for k in report])
        staged.append(int(np.prod(case[1])) * 4 > 640 << 10)  # weights stay while all images pass: pieces of an image would need them again
    assert kinds == [not s for s in staged] and staged.count(True) == 1, kinds  # depthwise results too, which the layout pass puts in channels_last


class Shared(Program):
    threads = 3


@pytest.mark.skipif(pool.unusable() is not None, reason="no thread pool here")
def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "_SHARE", 1)
    for i, case in enumerate((*KNOWN[:5], *MORE)):
        types = _types(case, np.float32, bool(i % 2), bool(i % 2))
        args = _arguments(case, types, np.float32)
        for got, want in zip(Shared(_fused(case, types))(*args, guard=True), Program(_fused(case, types))(*args), strict=True):
            assert got.tobytes() == want.tobytes()


def _model(x: Any, w: Any, v: Any, bias: Any) -> Any:
    """The input of one convolution is the result of another of the same type."""
    y = ag.relu(ag.conv2d(x, w, bias, padding=1))
    y = ag.relu(ag.conv2d(y, v, bias, padding=1) + y)
    return ag.tanh(ag.conv2d(y, w, padding=1))


def test_compiled_as_eager_with_gradients() -> None:
    rng = np.random.default_rng(4)
    args = [rng.normal(size=s) / 4 for s in ((2, 16, 14, 13), (16, 16, 3, 3), (16, 16, 3, 3), (16,))]
    np.testing.assert_allclose(ag.compile(_model)(*args), _model(*map(ag.tensor, args)).numpy(), rtol=1e-12, atol=1e-13)
    loss = ag.value_and_grad(lambda *a: ag.sum(_model(*a) ** 2), argnums=(0, 1, 2, 3))
    (value, grads), (want, expected) = ag.compile(loss)(*args), loss(*args)
    np.testing.assert_allclose(value, want, rtol=1e-12)
    for a, b in zip(grads, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10 * np.abs(b).max())
