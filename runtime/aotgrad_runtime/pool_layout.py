"""The words of a thread pool, shared by its machine code and by the Python that reads them: byte offsets, every field 8 bytes unless said otherwise.

A pool is plain memory that its owner keeps: for Python the process (``pool.py``), for C the caller of NAME_pool_init.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MOST", "PATIENCE", "POOL", "SIZE", "WORKER", "WORKER_SIZE", "WORKERS"]

# Four cache lines: what rarely changes; the claimed word; what the caller waits for (two 4-byte words); the job.
POOL: Final = {
    "run": 0, "threads": 8, "create": 16, "join": 24, "syscall": 32, "busy": 40, "pid": 48, "started": 56,
    "state": 64, "patience": 72, "stop": 80,
    "left": 128, "waiting": 132,
    "fn": 192, "job": 200, "limit": 208, "control": 216,
}
WORKERS: Final = 256
"""Where the workers' lines begin."""
WORKER: Final = {"sleeping": 0, "pool": 8, "index": 16, "thread": 24}
WORKER_SIZE: Final = 64

MOST: Final = 64
"""Threads of one pool, the caller included."""
SIZE: Final = WORKERS + (MOST - 1) * WORKER_SIZE

PATIENCE: Final = 1000
"""Calls that go by, after the system refused a thread, before it is asked again."""
