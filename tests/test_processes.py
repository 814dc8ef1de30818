"""Processes: what a child of ``fork`` finds."""

from __future__ import annotations

import subprocess
import sys

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


def test_a_fork_while_another_thread_compiles_leaves_no_lock_held() -> None:
    run = subprocess.run([sys.executable, "-c", _FORKS], capture_output=True, text=True, timeout=60, check=False)
    assert run.stdout.strip() == "done", run.stderr
