"""Numbers below the normal range: IEEE 754 by default, zeros with ``flush_subnormals``, and the caller's floating-point mode as it was after every call."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lowering_harness import AgCall
from test_poll import ASK, Ctx

import aotgrad as ag
from aotgrad.codegen.driver import Options, compile_func
from aotgrad.codegen.target import Target
from aotgrad.ir import build, tensor_type
from aotgrad_runtime.loader import load_bytes

TINY = {np.float32: 1e-40, np.float64: 1e-310}


def plain_mode() -> bool:
    """Whether this thread computes with subnormal numbers."""
    return all(float(np.array([t], d)[0] * d(0.5)) > 0 and np.array([np.sqrt(t)], d)[0] ** 2 > 0 for d, t in TINY.items())


def pair(f: Any, **options: Any) -> tuple[Any, Any]:
    return ag.compile(f, **options), ag.compile(f, flush_subnormals=True, **options)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("threads", [1, 2])
def test_results_with_and_without(dtype: Any, threads: int) -> None:
    n = 1 << 18 if threads > 1 else 37
    x = np.full(n, TINY[dtype], dtype)
    x[::2] = 1.5
    root = np.sqrt(np.abs(x))  # of normal numbers, whose product is not
    functions = {
        "an operand": lambda x, r: x + x * 3, "a result": lambda x, r: r * r, "a quotient": lambda x, r: x / 0.5, "a sum": lambda x, r: (x[1::2] * 2).sum(),
        "a product of matrices": lambda x, r: r[1:25:2].reshape(3, 4) @ r[1:25:2].reshape(4, 3), "a comparison": lambda x, r: x > 0,
    }
    for what, f in functions.items():
        ieee, flush = pair(f, threads=threads)
        want = f(x, root)
        zeroed = f(np.where(np.abs(x) < 1, 0, x).astype(dtype), np.where(root < 1, 0, root).astype(dtype))
        np.testing.assert_allclose(ieee(x, root), want, rtol=1e-4, err_msg=what)
        for _ in range(2):
            np.testing.assert_allclose(flush(x, root), zeroed, rtol=1e-4, atol=0, err_msg=what)
            assert plain_mode(), what
            np.testing.assert_allclose(ieee(x, root), want, rtol=1e-4, err_msg=what)  # in the same threads


def test_numbers_of_the_normal_range_have_the_same_bits() -> None:
    x = np.concatenate([s * np.logspace(-300, 2, 301) for s in (1, -1)])
    ieee, flush = pair(lambda x: (ag.exp(x), ag.log(ag.abs(x)), ag.sin(x), ag.tanh(x), ag.expm1(x), ag.sqrt(ag.abs(x)), 1.0 / x, ag.cumsum(x, 0), x.sum()))
    for a, b in zip(ieee(x), flush(x)):
        np.testing.assert_array_equal(a, b)


def test_gradients_and_tapes() -> None:
    ieee, flush = pair(lambda x: (x * x * 1e-200).sum())
    for f, want in ((ieee, 2e-310), (flush, 0.0)):
        x = ag.tensor([1e-110, 2.0], dtype=ag.float64, requires_grad=True)
        f(x).backward()
        assert x.grad is not None
        np.testing.assert_allclose(x.grad.numpy()[0], want, rtol=1e-10)
        assert ag.compile(ag.grad(lambda x: (x * x * 1e-200).sum()), flush_subnormals=f is flush)(np.array([1e-110]))[0] == pytest.approx(want, rel=1e-10, abs=0)
        assert plain_mode()


def test_the_mode_is_the_callers_after_errors() -> None:
    for threads in (1, 2):
        f = ag.compile(lambda x, i: (x * 2)[i].sum(), flush_subnormals=True, threads=threads)
        with pytest.raises(IndexError):
            f(np.ones(100_000), np.full(100_000, 100_000))
        assert plain_mode()
    g = ag.compile(lambda x, y: x + y, flush_subnormals=True)
    g(np.ones(3), np.ones(3))
    with pytest.raises(ag.AotgradError):
        g(np.ones(3), np.ones(4))
    run = ag.compile(lambda x: x * 0.5, flush_subnormals=True).prebind(np.array([1e-310]))
    run()
    assert run.out[0] == 0 and plain_mode()


def test_poll_and_hook_run_in_the_callers_mode_and_errors_keep_their_facts() -> None:
    n = 1 << 21
    f = build("flushed", [tensor_type([n]), tensor_type([1], "int64")], lambda b, x, i: (b.mul(b.exp(x), x), b.take(x, i, dim=0)))
    made = compile_func(f, "flushed", Target.native(), Options(flush=True, hooks="x"))
    library = load_bytes(made.so)
    entry = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(library.address("flushed"))
    modes: list[bool] = []

    @ASK
    def ask(_: Any) -> int:
        modes.append(plain_mode())
        return 0

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    def hook(state: Any, region: int, phase: int) -> None:
        modes.append(plain_mode() and state == 77)

    x, out, picked = np.full(n, 1e-310), np.ones(n), np.ones(1)
    ctx = Ctx(ask, None, ctypes.cast(hook, ctypes.c_void_p), 77, None)
    for at, status in ((3, 0), (n, 2)):
        index = np.array([at])
        table = (ctypes.c_void_p * 4)(*(a.ctypes.data for a in (x, index, out, picked)))
        work = np.zeros(int(made.meta["workspace"]) + 64, np.uint8)
        call = AgCall(ctypes.addressof(table), None, work.ctypes.data + (-work.ctypes.data) % 64, ctypes.addressof(ctx))
        assert entry(ctypes.byref(call)) == status and plain_mode()
        assert call.ctx == ctypes.addressof(ctx) and (status == 0 or list(call.info[1:3]) == [n, n])
    assert not out.any() and len(modes) > 4 and all(modes)


def test_libraries(tmp_path: Path) -> None:
    def halved(x: Any) -> Any:
        return x * 0.5

    built = ag.aot.build(halved, ["x: f64[n]"], out=tmp_path, flush_subnormals=True, threads=2)
    f = ag.load(built.library)
    assert list(f.halved(np.array([1e-310, 1.0]))) == [0.0, 0.5] and plain_mode()
    assert "Subnormal" in built.files["h"].read_text()
    ieee = ag.aot.build(halved, ["x: f64[n]"], out=tmp_path / "plain", emit=("so", "h"))
    assert "Subnormal" not in ieee.files["h"].read_text() and list(ag.load(ieee.library).halved(np.array([1e-310, 1.0]))) == [5e-311, 0.5]
    arm = ag.aot.build(halved, ["x: f64[n]"], out=tmp_path / "arm", emit=("ll", "asm"), flush_subnormals=True, target="aarch64-linux-gnu")
    assert "fpcr" in arm.files["asm"].read_text().lower()
    with pytest.raises(NotImplementedError, match="flush_subnormals=True: python"):
        ag.aot.build(halved, ["x: f64[n]"], out=tmp_path, emit=("python",), flush_subnormals=True)
    with pytest.raises(ag.AotgradError, match="flush_subnormals=1"):
        ag.aot.build(halved, ["x: f64[n]"], out=tmp_path, flush_subnormals=1)
