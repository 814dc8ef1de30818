"""Compiled code and captured arrays go when nothing can reach them any more, and not before."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotgrad as ag
from aotgrad_runtime.loader import Library

C = ag.compile
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts mappings as Linux shows them")


@pytest.fixture(autouse=True)
def nothing_else_to_collect() -> None:
    """What was there before is not looked through each time; nor later, as thawing would bring back what was frozen before (see ``conftest``)."""
    gc.collect()
    gc.freeze()


def libraries() -> int:
    gc.collect()
    return sum(type(x) is Library for x in gc.get_objects())  # isinstance asks the object too, and other packages' objects answer with warnings


ROUNDS = """
import gc, numpy as np, aotgrad as ag
def maps(): return sum(1 for _ in open("/proc/self/maps"))
x, counts = np.ones(5), []
for k in range(120):
    f = ag.compile(lambda x, k=k: np.sum(np.sin(x) * (k + 0.5)) + x[0])
    assert np.isclose(f(x), 5 * np.sin(1.0) * (k + 0.5) + 1)
    if k % 3 == 0: assert ag.grad(f)(x).shape == (5,)
    if k % 7 == 0: f(ag.from_numpy(x)); f(x=x)
    del f
    if k % 40 == 39:
        gc.collect(); counts.append(maps())
print(counts[-1] - counts[0])
"""


@LINUX
def test_compiling_and_deleting_does_not_fill_the_address_space(tmp_path: Path) -> None:
    env = {**os.environ, "AOTGRAD_CACHE_DIR": str(tmp_path)}  # LLVM, which has mappings too, is there from the first round
    done = subprocess.run([sys.executable, "-c", ROUNDS], capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 60  # 80 rounds further on; each kernel takes 3 to 4 mappings


@pytest.fixture
def nothing_recent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ag.frontend.kernels, "_RECENT", 0)
    ag.frontend.kernels._shared.recent.clear()


def made(number: float) -> tuple[Any, Any]:
    table = np.full(4, number)
    return C(lambda x: x * table + number), weakref.ref(table)


@pytest.mark.usefixtures("nothing_recent")
def test_library_and_captured_arrays_go_with_the_function() -> None:
    f, table = made(2.25)
    before = libraries()
    np.testing.assert_array_equal(f(np.ones(4)), np.full(4, 4.5))
    assert libraries() == before + 1
    del f
    assert libraries() == before and table() is None


def test_captured_arrays_go_although_the_kernel_is_remembered() -> None:
    f, table = made(3.25)
    f(np.ones(4))
    ag.jacobian(f)(np.ones(4))
    del f
    gc.collect()
    assert table() is None


@pytest.mark.usefixtures("nothing_recent")
@pytest.mark.parametrize("what", ["prebind", "node", "method", "clear"])
def test_what_can_still_run_keeps_the_code(what: str) -> None:
    f = C(lambda x: np.exp(x) * 1.75) if what != "node" else C(lambda x: (x.exp() * 1.75).sum())
    x = np.zeros(3)
    if what == "prebind":
        run: Any = f.prebind(x)
        del f
        gc.collect()
        run()
        np.testing.assert_array_equal(run.out, np.full(3, 1.75))
    elif what == "node":
        t = ag.zeros(3, requires_grad=True)
        out = f(t)
        del f
        gc.collect()
        out.backward()
        np.testing.assert_array_equal(t.grad.numpy(), np.full(3, np.float32(1.75)))
    elif what == "method":
        call = f.__call__
        f(x)
        del f
        gc.collect()
        np.testing.assert_array_equal(call(x), np.full(3, 1.75))
    else:
        f(x)
        f.clear_instances()
        gc.collect()
        np.testing.assert_array_equal(f(x), np.full(3, 1.75))


@pytest.mark.usefixtures("nothing_recent")
def test_a_call_that_runs_keeps_its_code() -> None:
    results, x = [], np.full(3_000_000, 0.5)
    functions = [C(lambda x: np.sum(np.tanh(np.sin(np.exp(x * 1.125)))))]
    want = functions[0](x)
    entered = threading.Event()

    def run() -> None:
        f = functions.pop()
        entered.set()
        results.append(f(x))

    threads = [threading.Thread(target=run)]
    threads[0].start()
    entered.wait()
    for _ in range(20):
        gc.collect()
        time.sleep(0.001)
    threads[0].join()
    assert results == [want]


@pytest.mark.usefixtures("nothing_recent")
def test_finalisers_of_a_dead_cycle_can_still_call_it() -> None:
    seen = []

    class Model:
        def __init__(self) -> None:
            table = np.full(3, 1.5)
            self.f = C(lambda x: x * table + len(seen) * 0)
            self.f.owner = self
            self.other = self

        def __del__(self) -> None:
            seen.append(self.f(np.ones(3)))

    before = libraries()
    for _ in range(5):
        Model().f(np.ones(3))
    gc.collect()
    gc.collect()
    assert len(seen) == 5 and all(np.array_equal(v, np.full(3, 1.5)) for v in seen)
    assert libraries() <= before + 1


@pytest.mark.usefixtures("nothing_recent")
def test_built_libraries_go_too_and_their_functions_keep_them(tmp_path: Any) -> None:
    ag.aot.build(lambda x: x * 2.0, ["x: f64[n]"], name="doubled", out=tmp_path, emit=("so",))
    before = libraries()
    library = ag.load(str(tmp_path / "libdoubled.so"))
    f = library.doubled
    del library
    assert libraries() == before + 1
    np.testing.assert_array_equal(f(np.ones(3)), np.full(3, 2.0))
    del f
    assert libraries() == before
