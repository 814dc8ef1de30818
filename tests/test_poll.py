"""Every long loop asks from time to time whether to stop, and short calls never do."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
import sweep
from lowering_harness import AgCall, Program

import aotgrad as ag
from aotgrad.codegen.work import many_rounds
from aotgrad.ir import dims, interp, ops, tensor_type
from aotgrad.ir.builder import build
from aotgrad.ir.transforms.cleanup import standard

assert ops
N = 1_000_000
ASK = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)


class Ctx(ctypes.Structure):
    _fields_ = [("poll", ASK), ("pool", ctypes.c_void_p), ("hook", ctypes.c_void_p), ("state", ctypes.c_void_p), ("tape", ctypes.c_void_p)]


def shifted(b: Any, x: Any) -> Any:
    n = dims.maximum(0, x.type.shape[0] - 1)
    y = b.full(shape=x.type.shape, value=0.0, dtype=x.type.dtype)
    return b.insert_add(y, b.slice(x, starts=(1,), sizes=(n,), steps=(1,)), starts=(0,), steps=(1,))


CASES: dict[str, Any] = {
    "elementwise": lambda b, x: b.exp(x), "sum": lambda b, x: b.sum(b.exp(x), dims=(0,)), "light sum": lambda b, x: b.sum(x, dims=(0,)),
    "maximum": lambda b, x: b.amax(x, dims=(0,)), "running sum": lambda b, x: b.cumsum(x, dim=0), "windows": shifted,
}


def run(p: Program, arrays: list[Any], outs: list[Any], sizes: list[int], stop_after: int) -> tuple[int, int]:
    """The status, and how often it was asked."""
    asked = [0]

    @ASK
    def ask(_: Any) -> int:
        asked[0] += 1
        return int(asked[0] > stop_after)

    ctx = Ctx(ask, None, None, None, None)
    table = (ctypes.c_void_p * 4)(*(a.ctypes.data for a in (*arrays, *outs)))
    given = np.array([*sizes, 0], np.int64)
    work = np.zeros(int(p.need(given.ctypes.data)) + 64, np.uint8)
    call = AgCall(ctypes.addressof(table), given.ctypes.data, work.ctypes.data + (-work.ctypes.data) % 64, ctypes.addressof(ctx))
    return p.entry(ctypes.byref(call)), asked[0]


@pytest.mark.parametrize("name", CASES)
def test_a_flat_loop_stops_when_told_and_a_short_one_is_never_asked(name: str) -> None:
    p = Program(standard(build("f", [tensor_type(["n"])], CASES[name])))
    x, out = np.linspace(-1, 1, N), np.zeros(N)
    status, asked = run(p, [x], [out], [N], 10**9)
    assert status == 0 and 1 <= asked <= 1000
    assert run(p, [x], [out], [N], 0) == (5, 1)
    assert run(p, [x[:1000].copy()], [out], [1000], 0) == (0, 0)


def test_the_pieces_of_a_take_and_a_scatter_can_be_interrupted() -> None:
    take = Program(standard(build("f", [tensor_type(["n"]), tensor_type(["m"], "int64")], lambda b, x, i: b.take(x, i, dim=0))))
    x, i, out = np.arange(8.0), np.arange(100_000) % 8, np.zeros(100_000)
    assert run(take, [x, i], [out], [8, 100_000], 10**9)[0] == 0
    np.testing.assert_array_equal(out, x[i])
    assert run(take, [x, i], [out], [8, 100_000], 0) == (5, 1)


def test_a_batch_of_products_can_be_interrupted() -> None:
    batch = Program(standard(build("f", [tensor_type(["b", 16, 16])], lambda b, x: b.dot(x, x))))
    x, out = np.ones((64, 16, 16)), np.zeros((64, 16, 16))
    assert run(batch, [x], [out], [64], 10**9)[0] == 0
    assert np.all(out == 16)
    assert run(batch, [x], [out], [64], 0) == (5, 1)


def softmax(b: Any, x: Any) -> Any:
    def over_rows(v: Any) -> Any:
        return b.broadcast(v, dims=(0,), shape=x.type.shape)

    e = b.exp(b.sub(x, over_rows(b.amax(x, dims=(1,)))))
    return b.div(e, over_rows(b.sum(e, dims=(1,))))


def part(b: Any, x: Any) -> Any:
    return b.exp(b.slice(x, starts=(0, 0), sizes=(x.type.shape[0], dims.minimum(x.type.shape[1], 10**6)), steps=(1, 1)))


ROWS: dict[str, Any] = {
    "sums": lambda b, x: b.sum(b.exp(x), dims=(1,)), "maxima": lambda b, x: b.amax(x, dims=(1,)), "a softmax": softmax, "a part": part,
    "any": lambda b, x: b.any(b.gt(x, b.full(shape=x.type.shape, value=9.0, dtype=x.type.dtype)), dims=(1,)),
    "sums of columns": lambda b, x: b.sum(b.exp(x), dims=(0,)), "a cumulative sum": lambda b, x: b.cumsum(x, dim=1),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_few_long_rows_can_be_interrupted_and_many_short_ones_ask_rarely(name: str) -> None:
    made = standard(build("f", [tensor_type(["m", "n"])], ROWS[name]))
    p = Program(made)
    for rows, cols, least, most in ((2, 300_000, 1, 1000), (3000, 100, 1, 100), (2, 100, 0, 0)):
        x = np.linspace(-1, 1, rows * cols).reshape(rows, cols)
        expected = interp.run(made, x)[0]
        out = np.zeros(expected.shape, expected.dtype)
        status, asked = run(p, [x], [out], [rows, cols], 10**9)
        assert status == 0 and least <= asked <= most, (rows, cols, asked)
        np.testing.assert_allclose(out, expected, rtol=1e-12)
        if least:
            assert run(p, [x], [out], [rows, cols], 0) == (5, 1)


SIGNALS: dict[str, Any] = {
    "a product": (lambda x, n: x @ x, lambda: np.ones((2000, 2000))),
    "one long row": (lambda x, n: np.max(np.sin(x + ag.reshape(ag.arange(n), (1, -1)) * 1.0), axis=1), lambda: np.ones((1, 1))),
    "products of integers": (lambda x, n: x @ x, lambda: np.ones((1500, 1500), np.int64)),
}


@pytest.mark.parametrize("name", SIGNALS)
def test_control_c_ends_one_long_call(name: str) -> None:
    f, make = SIGNALS[name]
    compiled, x = ag.compile(f, static="n"), make()
    n = 150_000_000
    compiled(x[:8, :8], n if name != "one long row" else 1000)
    started = time.perf_counter()
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        compiled(x, n)
    stopped = time.perf_counter() - started
    timer.join()
    if name == "a product":
        started = time.perf_counter()
        compiled(x, n)
        assert stopped < 0.7 * (time.perf_counter() - started)



LONG = {
    "broadcast": "np.sum(np.sin(np.broadcast_to(x, (2**40,))))", "plain sum": "np.sum(np.broadcast_to(x, (2**38,)))", "argmax": "np.argmax(np.broadcast_to(x, (2**38,)))",
    "arange": "np.sum(ag.arange(2**38, dtype=ag.float64) * x[0])", "truth": "np.any(np.broadcast_to(x, (2**40,)) > 2)",
    "variance": "np.var(np.broadcast_to(x, (2**36,)))",
    "rows": "np.sum(np.broadcast_to(x, (2**20, 2**20)), axis=1)[:3]", "triples": "np.sum(np.sin(y[:, None, None] * y[None, :, None] + y[None, None, :]))",
}
INTERRUPTED = """
import signal, sys, threading, time
import numpy as np, aotgrad as ag
class Stop(Exception): pass
def stop(*_): raise Stop
signal.signal(signal.SIGALRM, stop)
x, y = np.ones(1), np.ones(8000)
f = ag.compile(lambda x, y: {body} + 0.0 * y[0])
ticks = []
def other():
    while True: ticks.append(0); time.sleep(0.005)
try:
    f.lower(x, y)
    threading.Thread(target=other, daemon=True).start()
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    f(x, y)
except Stop:
    print("stopped", len(ticks) > 10)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="timers as Linux has them")
@pytest.mark.parametrize("name", sweep.part(LONG))
def test_calls_over_little_data_and_many_rounds_obey_signals(name: str) -> None:
    program = INTERRUPTED.format(body=LONG[name])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "stopped True\n", done.stderr


def test_only_calls_that_can_be_long_look_for_signals() -> None:
    x, y, A = np.ones(3), np.ones(4), np.ones((3, 3))

    def asks(f: Any, *args: Any) -> bool:
        c = ag.compile(f)
        c(*args)
        return bool(c.instances()[0].poll)

    for short in (lambda x: x * 2.0, lambda x: np.sum(np.exp(x)), lambda x: np.sum((x[:, None] - x[None, :]) ** 2), np.cumsum, lambda x: x[::2] + x[1]):
        assert not asks(short, x)
    assert not asks(lambda a, b: a @ b, A, A) and not asks(lambda a: np.sum(np.sum(a, axis=1) ** 2), A) and not asks(lambda a, b: np.outer(a, b), x, y)
    for f in (lambda x: np.sum(x[:, None, None] * x[None, :, None] * x), lambda x: np.sum(np.broadcast_to(x[0], (2**31,))), lambda x: np.sum(ag.arange(2**31) * x[0])):
        assert many_rounds(standard(ag.compile(f).trace(x)))  # it is not called


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="timers as Linux has them")
@pytest.mark.parametrize("given", ["np.ones(1)", "[1.0]"])
def test_built_functions_obey_signals_too(given: str, tmp_path: Any) -> None:
    ag.aot.build(lambda x: np.sum(np.sin(np.broadcast_to(x, (2**40,)))), ["x: f64[1]"], name="lasting", out=tmp_path, emit=("so",))
    program = INTERRUPTED.format(body="x[0]").replace("f.lower(x, y)", "pass").replace("f(x, y)", f"ag.load({str(tmp_path / 'liblasting.so')!r}).lasting({given})")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("stopped"), done.stderr
