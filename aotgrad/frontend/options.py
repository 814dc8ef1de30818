"""The options of ``compile``, checked."""

from __future__ import annotations

from typing import Any

import numpy as np

from aotgrad.codegen.options import Options as Codegen
from aotgrad_runtime import pool
from aotgrad_runtime.errors import AotgradNotImplementedError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.records import record

__all__ = ["Options"]


@record(frozen=True)
class Options:
    """How a function is compiled; see ``compile``."""

    static: tuple[Any, ...] = ()
    threads: int | str = 1
    layout: str = "auto"
    checks: bool = True
    verify: int = 0
    rewrite: bool = True
    fast_math: bool = False
    flush_subnormals: bool = False
    donate: tuple[Any, ...] = ()
    memory_budget: int | None = None

    def check(self) -> None:
        """Refuses values of the wrong kind, and what is not there yet: an option that did nothing would be worse."""
        for key in ("checks", "rewrite", "fast_math", "flush_subnormals"):
            if not isinstance(getattr(self, key), (bool, np.bool_)):
                raise AotgradTypeError(f"{key}={getattr(self, key)!r}: give True or False")
        if type(self.verify) is not int or self.verify < 0:
            raise AotgradValueError(f"verify={self.verify!r}: give the number of calls to compare with the interpreter, 0 or more")
        if self.threads != "auto" and (type(self.threads) is not int or self.threads < 1):
            raise AotgradValueError(f"threads={self.threads!r}: give a number of threads, 1 or more, or 'auto'")
        if self.threads not in (1, "auto") and (why := pool.unusable()) is not None:
            raise AotgradNotImplementedError(f"threads={self.threads!r}: {why}; leave threads out, or write threads='auto'")
        if self.threads != "auto" and int(self.threads) > pool.MOST:
            raise AotgradValueError(f"threads={self.threads!r}: at most {pool.MOST} threads can share a function")
        if self.layout != "auto":
            raise AotgradValueError(f"layout={self.layout!r}: 'auto' is the only layout: arguments keep theirs, results follow them")
        if self.memory_budget is not None and (type(self.memory_budget) is not int or self.memory_budget <= 0):
            raise AotgradValueError(f"memory_budget={self.memory_budget!r}: give a number of bytes, or None")
        for key, value in (("static", self.static), ("donate", self.donate)):
            if not isinstance(value, tuple) or not all(type(v) in (str, int) for v in value):
                raise AotgradTypeError(f"{key}={value!r}: give names of parameters or their positions")
        asked = [k for k in ("fast_math", "memory_budget") if getattr(self, k)]
        if asked:
            raise AotgradNotImplementedError(f"{asked[0]}={getattr(self, asked[0])!r} is not implemented; leave it out")

    def count(self) -> int:
        """The number of threads."""
        return pool.cores() if self.threads == "auto" and pool.unusable() is None else 1 if self.threads == "auto" else int(self.threads)

    def codegen(self) -> Codegen:
        """What the compiler needs to know; part of the cache key."""
        return Codegen(checks=bool(self.checks), threads=self.count(), flush=bool(self.flush_subnormals))
