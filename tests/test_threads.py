"""Functions on several threads: the same bits for every number of them, whoever calls, forks or interrupts."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from typing import Any

import numpy as np
import pytest
import sweep
import test_lowering_random
from lowering_harness import Program

import aotgrad as ag
from aotgrad.codegen import sharing
from aotgrad.codegen.lower import lower
from aotgrad.codegen.target import Target
from aotgrad.ir import build, interp, tensor_type
from aotgrad.ir.printer import print_module
from aotgrad_runtime import pool

pytestmark = pytest.mark.skipif(pool.unusable() is not None, reason="no thread pool here")


@pytest.fixture
def eager_sharing(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Every loop that may be shared is, however little it does."""
    monkeypatch.setattr(sharing, "GRAIN", 2000)


def normal(*shape: int, dtype: Any = np.float64) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


def chain(x: Any) -> Any:
    return ag.tanh(x) * ag.exp(-x * x) + ag.log1p(x * x)


CASES = {
    "chain": (chain, [normal(400_003)]),
    "chain f32": (chain, [normal(400_003, dtype=np.float32)]),
    "two results": (lambda x, y: (x * y + 1, ag.sin(x)), [normal(500, 601), normal(500, 601)]),
    "rows of another": (lambda x, b: ag.relu(x + b), [normal(3001, 257), normal(257)]),
    "transposed": (lambda x: ag.exp(x.T) + 1, [normal(701, 803)]),
    "softmax": (lambda x: ag.softmax(x, -1), [normal(900, 1001, dtype=np.float32)]),
    "softmax over columns": (lambda x: ag.softmax(x, 0), [normal(1003, 907)]),
    "normalised": (lambda x: (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True), [normal(1001, 777)]),
    "row sums": (lambda x: ag.exp(x).sum(1), [normal(2003, 501)]),
    "column sums": (lambda x: ag.exp(x).sum(0), [normal(2003, 501)]),
    "largest": (lambda x: ag.exp(x).max(1), [normal(2003, 501)]),
    "sum": (lambda x: chain(x).sum(), [normal(1_000_003)]),
    "sum f32": (lambda x: chain(x).sum(), [normal(1_500_001, dtype=np.float32)]),
    "sums of a matrix": (lambda x, y: (x * y).sum() + ag.exp(x).mean(), [normal(1009, 1013), normal(1013)]),
    "product": (lambda x: ag.exp(1e-7 * x).prod(), [normal(1_000_003)]),
    "matmul": (lambda a, b: a @ b, [normal(300, 257), normal(257, 411)]),
    "matmul f32": (lambda a, b: a @ b, [normal(511, 320, dtype=np.float32), normal(320, 640, dtype=np.float32)]),
    "matmul transposed": (lambda a, b: a.T @ b.T, [normal(257, 300), normal(411, 257)]),
    "matmul and more": (lambda a, b, c: ag.relu(a @ b + c), [normal(300, 257), normal(257, 411), normal(411)]),
    "batched": (lambda a, b: a @ b, [normal(12, 100, 64), normal(12, 64, 130)]),
}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    return np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.parametrize("case", sweep.part(CASES))
def test_the_same_bits_for_every_number_of_threads(case: str) -> None:
    f, args = CASES[case]
    want = ag.compile(f)(*args)
    for threads in (2, 3, 8):
        got = ag.compile(f, threads=threads)
        assert same(got(*args), want) and same(got(*args), want), threads
    assert pool.started() >= 1


@pytest.mark.parametrize("case", ["chain", "softmax", "sum", "matmul", "matmul and more"])
def test_gradients_too(case: str) -> None:
    f, args = CASES[case]
    gradient = ag.value_and_grad(lambda *xs: (f(*xs) * 0.5).sum(), argnums=tuple(range(len(args))))
    want = ag.compile(gradient)(*args)
    for threads in (2, 3, 8):
        assert same(ag.compile(gradient, threads=threads)(*args), want), threads


class Mlp:
    sizes = (96, 160, 64, 10)

    def __init__(self) -> None:
        self.args = [normal(a, b, dtype=np.float32) / 8 for a, b in zip(self.sizes, self.sizes[1:])]
        self.args += [normal(b, dtype=np.float32) for b in self.sizes[1:]]
        self.args += [normal(512, self.sizes[0], dtype=np.float32), np.eye(10, dtype=np.float32)[np.arange(512) % 10]]

    @staticmethod
    def step(w0: Any, w1: Any, w2: Any, b0: Any, b1: Any, b2: Any, x: Any, y: Any) -> Any:
        def loss(w0: Any, w1: Any, w2: Any, b0: Any, b1: Any, b2: Any) -> Any:
            h = ag.relu(ag.relu(x @ w0 + b0) @ w1 + b1) @ w2 + b2
            return -(ag.log_softmax(h, -1) * y).sum() / 512

        value, grads = ag.value_and_grad(loss, argnums=tuple(range(6)))(w0, w1, w2, b0, b1, b2)
        return (value, *(p - 0.1 * g for p, g in zip((w0, w1, w2, b0, b1, b2), grads)))


def test_a_training_step() -> None:
    mlp = Mlp()
    want = ag.compile(mlp.step)(*mlp.args)
    for threads in (2, 3, 8):
        assert same(ag.compile(mlp.step, threads=threads)(*mlp.args), want)


# ---- everything that may be shared, between guard pages -----------------------------------------------------------------------------

@pytest.mark.usefixtures("eager_sharing")
@pytest.mark.parametrize("seed", range(2000, 2000 + int(os.environ.get("AOTGRAD_SEEDS", "20"))))
def test_random_programs(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    func = test_lowering_random.standard(test_lowering_random.make(seed))
    alone = Program(func)
    monkeypatch.setattr(Program, "threads", 3)
    shared = Program(func)
    rng = np.random.default_rng(seed)
    for i, (n, m) in enumerate([(5, 4), (0, 2), (1, 1), (9, 0), (17, 7), (33, 21)]):
        sizes = {"n": n, "m": m}
        arrays = [rng.normal(size=[d if isinstance(d, int) else sizes[str(d)] for d in t.shape]).astype(t.dtype.np) for t in func.arg_types]
        if any(a.size > 20000 for a in arrays):
            continue
        got = shared(*arrays, guard=bool(i % 2))
        assert same(got, alone_result(alone, arrays))
        for g, w in zip(got, interp.run(func, *arrays)):
            scale = max(1.0, float(np.max(np.abs(w), initial=0.0)))
            np.testing.assert_allclose(g, w, rtol=1000 * np.finfo(w.dtype).eps, atol=100 * np.finfo(w.dtype).eps * scale)


M, N, K = 130, 203, 37
PRODUCTS: dict[str, tuple[Any, list[Any]]] = {
    "plain": (lambda b, x, y: b.dot(x, y), [("m", "k"), ("k", "n")]),
    "transposed": (lambda b, x, y: b.dot(b.permute(x, perm=(1, 0)), b.permute(y, perm=(1, 0))), [("k", "m"), ("n", "k")]),
    "and then": (lambda b, x, y: b.tanh(b.dot(x, y)), [("m", "k"), ("k", "n")]),
    "column sums": (lambda b, x, y: column_sums(b, b.dot(x, y)), [("m", "k"), ("k", "n")]),
    "row sums": (lambda b, x, y: row_sums(b, b.dot(x, y)), [("m", "k"), ("k", "n")]),
    "batched": (lambda b, x, y: b.dot(x, y), [("b", "m", "k"), ("b", "k", "n")]),
}


ODD = ((1, 200, 64), (200, 1, 64), (9, 400, 33), (400, 9, 33), (8, 300, 40), (100, 100, 0), (0, 5, 5), (96, 64, 700))


def column_sums(b: Any, z: Any) -> Any:
    return b.tanh(z), b.sum(z, dims=(0,))


def row_sums(b: Any, z: Any) -> Any:
    return b.tanh(z), b.sum(b.exp(z), dims=(1,))


@pytest.mark.usefixtures("eager_sharing")
@pytest.mark.parametrize("name, dtype, static", sweep.part(PRODUCTS, ["float64", "float32"], [False, True]))
def test_products(name: str, dtype: str, static: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    make, shapes = PRODUCTS[name]
    cases: list[dict[str, int]] = [{"m": M, "n": N, "k": K, "b": 3}]
    if not static:
        cases += [{"m": m, "n": n, "k": k, "b": 5} for m, n, k in ODD]
    types = [tensor_type([cases[0][d] if static else d for d in shape], dtype) for shape in shapes]
    func = build("f", types, make)
    alone = Program(func)
    for threads in (2, 5):
        monkeypatch.setattr(Program, "threads", threads)
        text = print_module(lower(func, "f", Target.native(), threads=threads).funcs)
        assert "ag_thread" in text, "products are cut: nothing adds over their blocks"
        shared = Program(func)
        monkeypatch.setattr(Program, "threads", 1)
        for sizes in cases:
            args = [normal(*(sizes[d] for d in shape), dtype=dtype) for shape in shapes]
            want = alone(*args)
            for guard in (None, False, True):
                monkeypatch.setattr(Program, "threads", threads)
                got = shared(*args, guard=guard)
                monkeypatch.setattr(Program, "threads", 1)
                assert same(got, want), (sizes, guard)


@pytest.mark.usefixtures("eager_sharing")
@pytest.mark.parametrize("name, dtype", sweep.part(["sum", "prod", "amax", "amin"], ["float64", "float32", "int64"]))
def test_full_reductions(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(b: Any, x: Any, w: Any) -> Any:
        whole = getattr(b, name)(x, dims=(0, 1))
        return whole, getattr(b, name)(b.mul(x, b.broadcast(w, dims=(1,), shape=x.type.shape)), dims=(0, 1)), b.add(x, x)

    flat = build("g", [tensor_type(["n"], dtype)], lambda b, x: (getattr(b, name)(x, dims=(0,)), b.neg(x)))
    func = build("f", [tensor_type(["n", "m"], dtype), tensor_type(["m"], dtype)], make)
    programs = []
    for threads in (1, 3):
        monkeypatch.setattr(Program, "threads", threads)
        programs.append((threads, Program(flat), Program(func)))
    rng = np.random.default_rng(0)
    for n in (0, 1, 31, 33, 511, 512, 513, 1024, 1025, 2048, 4101, 140_003, 270_001):
        m = 7 if n < 5000 else 1
        args = [(rng.normal(size=shape) * (1 if name != "prod" else 1e-3) + 1).astype(dtype) for shape in ((n,), (n, m), (m,))]
        args[0][n // 2:n // 2 + 1] = -0.0
        got = []
        for threads, one, two in programs:
            monkeypatch.setattr(Program, "threads", threads)
            got.append((*one(args[0], guard=True), *two(*args[1:], guard=False)))
        assert same(*got), n


def alone_result(program: Program, arrays: Any) -> Any:
    shared, Program.threads = Program.threads, 1
    try:
        return program(*arrays)
    finally:
        Program.threads = shared


# ---- who calls ------------------------------------------------------------------------------------------------------------------------

def test_concurrent_callers() -> None:
    f, args = CASES["softmax"]
    shared, want = ag.compile(f, threads=2), ag.compile(f)(*args)
    shared(*args)
    wrong: list[int] = []

    def work(k: int) -> None:
        for _ in range(30):
            if not same(shared(*args), want):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_forked_child() -> None:
    f, args = CASES["chain"]
    shared = ag.compile(f, threads=3)
    want = shared(*args)
    for _ in range(3):
        pid = os.fork()
        if not pid:
            good = pool.started() == 0 and same(shared(*args), want) and pool.started() == 2
            os._exit(0 if good else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert same(shared(*args), want)


def run(code: str, **more: Any) -> Any:
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, check=False, **more)


def test_without_threads_to_be_had() -> None:
    done = run("""
        import numpy as np, aotgrad as ag
        f = lambda x: ag.tanh(x) * ag.exp(-x * x)
        x = np.linspace(-2, 2, 400_003)
        want = ag.compile(f)(x)
        import ctypes
        from aotgrad_runtime import pool
        refuse = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(lambda *_: 11)
        pool._process.pool = pool.Pool(create=ctypes.cast(refuse, ctypes.c_void_p).value)
        got = ag.compile(f, threads=4)(x)
        assert got.tobytes() == want.tobytes() and pool.started() == 0
    """)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("plain", ["0", "1"])
def test_interrupt(plain: str) -> None:
    done = run("""
        import signal, numpy as np, aotgrad as ag
        x = np.linspace(-2, 2, 3_000_001)

        @ag.compile(threads=3)
        def f(x):
            for _ in range(40):
                x = ag.sin(x) + ag.exp(-x * x) + ag.tanh(x) ** 2.5
            return x

        small = f(x[:10_000])
        def stop(*_): raise KeyboardInterrupt
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            while True:
                f(x)
        except KeyboardInterrupt:
            print("stopped")
        assert f(x[:10_000]).tobytes() == small.tobytes()
    """, env={**os.environ, "AOTGRAD_NO_TRAMPOLINE": plain})
    assert done.returncode == 0 and done.stdout == "stopped\n", done.stderr


# ---- the option -------------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("given", "match"), [(0, "1 or more"), (-2, "1 or more"), ("many", "1 or more"), (2.0, "1 or more"), (True, "1 or more"), (1000, "at most 64")])
def test_bad_numbers(given: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        ag.compile(lambda x: x, threads=given)


def test_auto_is_the_number_of_processors() -> None:
    x = normal(400_003)
    assert same(ag.compile(chain, threads="auto")(x), ag.compile(chain)(x))


def test_bound_calls_and_profiles_use_them_too() -> None:
    f, args = CASES["softmax"]
    want = ag.compile(f)(*args)
    shared = ag.compile(f, threads=2)
    bound = shared.prebind(*args)
    bound()
    assert same(bound.out, want)
    before = jobs()
    bound()
    assert jobs() > before
    with ag.autograd.profiler.profile() as seen:
        before = jobs()
        assert same(shared(*args), want)
    assert jobs() > before and seen.key_averages()


def test_explain_says_what_is_shared() -> None:
    f = ag.compile(lambda x: (ag.tanh(x @ x), ag.cumsum(x, 0)), threads=3)
    kernels = f.explain(normal(30, 30)).kernels
    assert any("up to 3 threads" in k.how and "product" in k.how for k in kernels) and not any("threads" in k.how for k in kernels if "cumsum" in k.name)


def jobs() -> int:
    """How many jobs the pool of this process has shared."""
    made = pool._process.pool
    return 0 if made is None else made.word("state").value >> 32


def test_little_work_stays_where_it_is() -> None:
    small = ag.compile(lambda x: ag.exp(x).sum() + (x @ x), threads=8)
    small(normal(200))
    before = jobs()
    small(normal(200))
    assert jobs() == before
