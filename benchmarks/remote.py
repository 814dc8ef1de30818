"""A peer in a process of its own: several OpenMP runtimes in one process disturb each other. It waits for a line, makes one call, and answers with its seconds."""

from __future__ import annotations

import base64
import importlib
import io
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from aotgrad.cli.bench import environment

__all__ = ["Remote"]

_MARK = "benchmarks:"


class Remote:
    """``MODULE.build(name, who)`` in a new process on so many threads. ``values``: of its first call. Raises RuntimeError when the peer cannot be built."""

    def __init__(self, module: str, name: str, who: str, threads: int) -> None:
        self.process = subprocess.Popen([sys.executable, "-m", "benchmarks.remote", module, name, who], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, env=environment(threads), cwd=Path(__file__).resolve().parents[1])
        try:
            packed = np.load(io.BytesIO(base64.b64decode(self._answer())))
        except RuntimeError:
            self.close()
            raise
        self.values: list[Any] = [packed[key] for key in packed.files]

    def _answer(self) -> str:
        assert self.process.stdout is not None and self.process.stderr is not None
        for line in self.process.stdout:
            if line.startswith(_MARK):
                return line[len(_MARK):].strip()
        raise RuntimeError((self.process.stderr.read().strip().splitlines() or ["stopped without a word"])[-1])

    def __call__(self) -> float:
        """Seconds of one call by wall clock, a warm one after another."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.communicate()


def main() -> None:
    """The peer's side."""
    module, name, who = sys.argv[1:4]
    call, values = importlib.import_module(module).build(name, who)
    file = io.BytesIO()
    np.savez(file, *values(call()))
    print(_MARK, base64.b64encode(file.getvalue()).decode(), flush=True)
    for _ in range(3):
        call()
    for _line in sys.stdin:
        call()  # threads that went to sleep meanwhile wake up
        start = time.perf_counter()
        call()
        print(_MARK, time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
