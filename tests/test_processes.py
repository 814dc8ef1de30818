"""Processes and libraries: what a child of ``fork`` finds, names that C has taken, wrong arguments of builds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import aotgrad as ag

_FORKS = """
import gc, os, sys, threading, time
import numpy as np, aotgrad as ag

stop = threading.Event()

def work():
    k = 0
    while not stop.is_set():
        k += 1
        ag.compile(lambda x, k=k: ag.sin(x) * float(k) + ag.exp(x) * ag.cos(x))(np.ones(3))

other = threading.Thread(target=work)
other.start()
time.sleep(0.3)
for i in range(6):
    time.sleep(0.03 + 0.007 * i)
    child = os.fork()
    if child == 0:
        out = ag.compile(lambda x: ag.sin(x) * (1000.5 + i))(np.ones(3))
        os._exit(0 if abs(out[0] - np.sin(1.0) * (1000.5 + i)) < 1e-9 and gc.isenabled() else 3)
    assert os.waitpid(child, 0)[1] == 0, i
stop.set()
other.join()
print("done")
"""


_FORK_IN_IMPORT = """
import os, sys, threading, time
import numpy as np, aotgrad as ag

began = threading.Event()

class Slow:  # the import of the compiler takes its time
    def find_spec(self, name, path=None, target=None):
        if name == "aotgrad.codegen.lower":
            began.set()
            time.sleep(0.3)

sys.meta_path.insert(0, Slow())
other = threading.Thread(target=lambda: ag.compile(lambda x: ag.sin(x) * 2.5)(np.ones(3)))
other.start()
assert began.wait(30)
child = os.fork()
if child == 0:
    out = ag.compile(lambda x: ag.sin(x) * 3.5)(np.ones(3))
    os._exit(0 if abs(out[0] - np.sin(1.0) * 3.5) < 1e-9 else 3)
assert os.waitpid(child, 0)[1] == 0
other.join()
print("done")
"""


def test_a_fork_while_another_thread_imports_the_compiler(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", _FORK_IN_IMPORT], capture_output=True, text=True, timeout=60, check=False,
                         env={**os.environ, "AOTGRAD_CACHE_DIR": str(tmp_path)})
    assert (run.returncode, run.stdout) == (0, "done\n"), run.stderr


def test_a_fork_while_another_thread_compiles_leaves_no_lock_held() -> None:
    run = subprocess.run([sys.executable, "-c", _FORKS], capture_output=True, text=True, timeout=60, check=False)
    assert run.stdout.strip() == "done", run.stderr


@pytest.mark.parametrize("name", ["malloc", "printf", "exp", "y0", "index", "abs", "memcpy", "double"])
def test_names_of_the_c_library_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ag.AotgradError, match=f"'{name}'"):
        ag.aot.build(lambda x: x * 2.0, ["x: f64[n]"], out=tmp_path, name=name)


def test_arguments_that_clash_in_c_are_renamed(tmp_path: Path) -> None:
    built = ag.aot.build(lambda double, errno: double + errno, ["double: f64[n]", "errno: f64[n]"], out=tmp_path, name="both", emit="h")
    assert "const double *double_, const double *errno_" in built.files["h"].read_text()


@pytest.mark.parametrize("options", [{"grad": 3}, {"grad": True}, {"jvp": 2.5}, {"hess": object()}, {"emit": 3}, {"emit": None}, {"args": {"x": None}}])
def test_arguments_of_wrong_types_are_named(options: dict[str, Any], tmp_path: Path) -> None:
    word = "x" if "args" in options else next(iter(options))
    with pytest.raises(ag.AotgradError, match=word):
        ag.aot.build(lambda x: x * 2.0, **{"args": ["x: f64[n]"], "name": "twice", "out": tmp_path, **options})


def test_load_and_devices() -> None:
    for given in (3, None):
        with pytest.raises(ag.AotgradTypeError, match="path"):
            ag.load(given)
    with pytest.raises(ag.AotgradError, match="device"):
        ag.load("/dev/zero")
    for command in ("run", "inspect"):
        run = subprocess.run([sys.executable, "-m", "aotgrad", command, "/dev/zero"], capture_output=True, text=True, timeout=60, check=False)
        assert run.returncode == 1 and "/dev/zero is a device" in run.stderr and "Traceback" not in run.stderr
