"""Random numbers drawn while a program is traced would be the same at every call: they are refused where they can be seen, by comparing the state of what draws them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import BuiltinMethodType, MethodType
from typing import Any, Final

import numpy as np

from aotgrad_runtime.errors import AotgradNotImplementedError

from .alone import alone, others_run

__all__ = ["States"]

_TRIES: Final = 32


class States:
    """The states of NumPy's and Python's global generators, and of those among the places that a function can name (``found``, see ``watch.survey``)."""

    def __init__(self, found: Sequence[tuple[Any, Any]]) -> None:
        self.generators = _generators(found)
        self.before = self._states()

    def _states(self) -> dict[Any, Any]:
        """The state of each generator, by its identity; those of the modules by name."""
        out: dict[Any, Any] = {}
        numpy: Any = sys.modules.get("numpy.random.mtrand")
        python: Any = sys.modules.get("random")
        if hasattr(numpy, "_rand"):  # else no generator of NumPy's can exist; or another thread imports it just now
            out["np.random"] = numpy._rand.get_state(legacy=False)
        if hasattr(python, "getstate"):
            out["the module random"] = python.getstate()
        out.update((key, _state(x)) for key, (_, x) in self.generators.items())
        return out

    def check(self, name: str, again: Callable[[], Any]) -> None:
        """Raises ``AotgradNotImplementedError`` where one has been drawn from since, and not by another thread alone. ``again`` runs the function once more."""
        what = self._drawn()
        if what is not None and not (others_run() and self._draws_nothing(again)):
            raise AotgradNotImplementedError(
                f"{name} draws random numbers from {what} while it is traced; they would be the same at every call. Draw them outside and pass them as an argument (for "
                "example noise = rng.normal(size=n), then f(x, noise)); numbers that are meant to be fixed come from a generator made inside with a seed, such as "
                "np.random.default_rng(0)")

    def _drawn(self) -> str | None:
        for key, state in self._states().items():  # all of them first: NumPy's comparing lets other threads run
            if key in self.before and not _same(self.before[key], state) or key not in self.before and key == "np.random" and not _untouched(state):
                return key if isinstance(key, str) else self.generators[key][0]
        return None

    def _draws_nothing(self, again: Callable[[], Any]) -> bool:
        """Whether a run leaves all generators alone while other threads (that load data) wait for their turn; one may still come in between where the run lets it."""
        with alone():
            for _ in range(_TRIES):
                self.before = self._states()
                again()
                if self._drawn() is None:
                    return True
        return False


def _kinds() -> tuple[type, ...]:
    """Classes of generators, as far as they were imported."""
    numpy: Any = sys.modules.get("numpy.random.mtrand")
    python: Any = sys.modules.get("random")
    kinds = (np.random.Generator, np.random.RandomState, np.random.BitGenerator) if hasattr(numpy, "_rand") else ()
    return (*kinds, python.Random) if hasattr(python, "Random") else kinds


def _generators(found: Sequence[tuple[Any, Any]]) -> dict[int, tuple[str, Any]]:
    """Each generator once, by its identity, with the first place where it or a method of it (``draw = rng.normal``) was found."""
    out: dict[int, tuple[str, Any]] = {}
    kinds = _kinds()
    for path, x in found if kinds else ():
        x = x.__self__ if isinstance(x, (MethodType, BuiltinMethodType)) else x
        if isinstance(x, kinds) and id(x) not in out:
            out[id(x)] = (str(path), x)
    return out


def _state(x: Any) -> Any:
    if isinstance(x, np.random.BitGenerator):
        return x.state
    if isinstance(x, np.random.Generator):
        return x.bit_generator.state
    if isinstance(x, np.random.RandomState):
        return x.get_state(legacy=False)
    try:
        return x.getstate()
    except NotImplementedError:  # the operating system's numbers have no state
        return None


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(v, b[k]) for k, v in a.items())
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else bool(a == b)


def _untouched(state: Any) -> bool:
    """Whether NumPy's generator, imported while tracing, is as it was seeded: at the end of its block of numbers."""
    return state["state"]["pos"] in (623, 624) and not state["has_gauss"]
