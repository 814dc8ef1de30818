"""Why a compiled function is traced again and again: the numbers that its traces needed, and one warning when they go on."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

from aotgrad.ir.dims import symbols_of
from aotgrad_runtime.errors import AotgradWarning

from .variant import Variant

__all__ = ["Retraces"]

_MANY = 16  # traces for one reason, after which it is told


class Retraces:
    """Counts the traces of one function by what they needed a number of."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.places: dict[int, Any] = {}  # for integers among the leaves: the line that used one as a Python number
        self.numbered = ""  # the error that sizes which are no integers gave
        self.counts: Counter[tuple[str, Any]] = Counter()

    def reasons(self, variant: Variant, forced: set[int], names: Sequence[str]) -> list[tuple[str, Any]]:
        """What a trace needed numbers of, as text, with the line."""
        out: list[tuple[str, Any]] = [(f"the integer {names[i]} is used as a Python number", self.places.get(i)) for i in sorted(forced) if i >= 0]
        if -1 in forced:
            out.append((f"sizes had to be Python integers ({self.numbered})", None))
        return out + [(f"the size {' and '.join(symbols_of(d))} is needed as a number", loc) for d, _, loc in variant.fixed]

    def count(self, variant: Variant, forced: set[int], names: Sequence[str]) -> None:
        """Takes note of a new trace; warns once per reason."""
        for reason in dict.fromkeys(self.reasons(variant, forced, names)):
            self.counts[reason] += 1
            if self.counts[reason] == _MANY:
                self._warn(*reason)

    def _warn(self, what: str, loc: Any) -> None:
        where = f" at {loc}" if loc is not None else ""
        text = (f"{self.name} was traced and compiled {_MANY} times with other numbers, because {what}{where}: every number compiles anew. Sizes stay open in arithmetic "
                "(n / 2, np.sqrt(n)), ag.arange(n), ag.zeros(n), np.zeros_like(x) and ag.scan; len(x), range(n), np.arange(n), np.zeros(x.shape) and slices x[:k] with "
                "an integer k take the number. f.explain(...) shows what is fixed; if the numbers are few, name the parameter in static= and ignore this")
        if loc is not None:
            warnings.warn_explicit(text, AotgradWarning, loc.file, loc.line)
        else:
            warnings.warn(text, AotgradWarning, stacklevel=2)
