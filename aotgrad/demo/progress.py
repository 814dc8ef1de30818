"""A progress bar on standard error: drawn in place on a terminal, silent elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

__all__ = ["Progress"]

_WIDTH = 30
_INTERVAL = 0.05  # seconds between redraws


class Progress:
    """``with Progress("training", 400) as bar: bar.step("loss 0.3")``. An interrupt leaves the terminal on a fresh line.

    >>> import io
    >>> out = io.StringIO()
    >>> with Progress("work", 2, out) as bar:
    ...     bar.step()
    >>> out.getvalue()
    ''
    """

    def __init__(self, title: str, total: int, out: TextIO | None = None) -> None:
        self.title, self.total, self.done = title, max(total, 1), 0
        self._out = sys.stderr if out is None else out
        self._live = self._out.isatty()
        self._drawn = 0.0
        self._note = ""

    def __enter__(self) -> Progress:
        return self

    def step(self, note: str = "", count: int = 1) -> None:
        """Moves on by ``count`` and shows ``note`` behind the bar."""
        self.done += count
        self._note = note
        if self._live and (time.monotonic() - self._drawn > _INTERVAL or self.done >= self.total):
            self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        full = min(self.done, self.total) * _WIDTH // self.total
        self._out.write(f"\r{self.title:<18} [{'#' * full}{'.' * (_WIDTH - full)}] {100 * min(self.done, self.total) // self.total:3d} % {self._note}\x1b[K")
        self._out.flush()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live:
            self._out.write("\n" if kind else "\r\x1b[K")
            self._out.flush()
