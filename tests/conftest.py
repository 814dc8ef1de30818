import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

# A shell starts background jobs with SIGINT ignored, and programs started from here inherit that: tests that interrupt them would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Where no bytecode may be written, each process that a test starts would compile all modules anew, for half a second: they share it in a folder of this run.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", "") and not os.environ.get("PYTHONPYCACHEPREFIX"):
    os.environ["PYTHONPYCACHEPREFIX"] = tempfile.mkdtemp(prefix="aotgrad-tests-")
    atexit.register(shutil.rmtree, os.environ["PYTHONPYCACHEPREFIX"], ignore_errors=True)


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """The cyclic collector leaves alone what collecting tests makes, more than a million objects: looking them through takes longer than most tests that ask for it."""
    gc.disable()
    yield
    gc.enable()
    gc.collect()
    gc.freeze()
