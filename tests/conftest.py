import atexit
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

# A shell starts background jobs with SIGINT ignored, and programs started from here inherit that: tests that interrupt them would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Where no bytecode may be written, each process that a test starts would compile all modules anew, for half a second: they share it in a folder of this run.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", "") and not os.environ.get("PYTHONPYCACHEPREFIX"):
    os.environ["PYTHONPYCACHEPREFIX"] = tempfile.mkdtemp(prefix="aotgrad-tests-")
    atexit.register(shutil.rmtree, os.environ["PYTHONPYCACHEPREFIX"], ignore_errors=True)
