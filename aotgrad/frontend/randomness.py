"""Random numbers drawn while a program is traced would be the same at every call: they are refused where they can be seen, by comparing the state of what draws them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from aotgrad_runtime.errors import AotgradNotImplementedError

__all__ = ["States"]

_LONG: Final = 1e3  # seconds: longer than any trace
_TRIES: Final = 32


class States:
    """The states of NumPy's and Python's global generators, and of generators among the arguments of a function, its closure and its globals."""

    def __init__(self, f: Callable[..., Any], leaves: Sequence[Any]) -> None:
        self.f, self.leaves = f, leaves
        self.before = dict(_states(f, leaves))

    def check(self, name: str, again: Callable[[], Any]) -> None:
        """Raises ``AotgradNotImplementedError`` where one has been drawn from since, and not by another thread alone. ``again`` runs the function once more."""
        what = self._drawn()
        if what is not None and not (len(sys._current_frames()) > 1 and self._draws_nothing(again)):
            raise AotgradNotImplementedError(
                f"{name} draws random numbers from {what} while it is traced; they would be the same at every call. Draw them outside and pass them as an argument (for "
                "example noise = rng.normal(size=n), then f(x, noise)); numbers that are meant to be fixed come from a generator made inside with a seed, such as "
                "np.random.default_rng(0)")

    def _drawn(self) -> str | None:
        for what, state in list(_states(self.f, self.leaves)):  # all of them first: NumPy's comparing lets other threads run
            if what in self.before and not _same(self.before[what], state) or what not in self.before and what == "np.random" and not _untouched(state):
                return what
        return None

    def _draws_nothing(self, again: Callable[[], Any]) -> bool:
        """Whether a run leaves all generators alone while other threads (that load data) wait for their turn; one may still come in between where the run lets it."""
        interval = sys.getswitchinterval()
        try:
            sys.setswitchinterval(_LONG)
            for _ in range(_TRIES):
                self.before = dict(_states(self.f, self.leaves))
                again()
                if self._drawn() is None:
                    return True
        finally:
            sys.setswitchinterval(interval)
        return False


def _states(f: Callable[..., Any], leaves: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    numpy: Any = sys.modules.get("numpy.random.mtrand")
    python = sys.modules.get("random")
    if not hasattr(numpy, "_rand"):  # no generator of NumPy's can exist; or another thread imports it just now
        yield from (("the module random", python.getstate()),) if python is not None else ()
        return
    yield "np.random", numpy._rand.get_state(legacy=False)
    if python is not None:
        yield "the module random", python.getstate()
    kinds = (np.random.Generator, np.random.RandomState)
    for name, x in (*_named(f), *((f"argument {i}", x) for i, x in enumerate(leaves))):
        if isinstance(x, kinds):
            yield name, x.bit_generator.state if isinstance(x, np.random.Generator) else x.get_state(legacy=False)


def _named(f: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    fn = getattr(f, "__func__", f)
    while hasattr(fn, "__wrapped__"):
        fn = fn.__wrapped__
    code = getattr(fn, "__code__", None)
    if code is None:
        return
    names = getattr(fn, "__globals__", {})
    yield from ((n, names[n]) for n in code.co_names if n in names)
    for n, cell in zip(code.co_freevars, fn.__closure__ or ()):
        try:
            yield n, cell.cell_contents
        except ValueError:
            continue
    owner = getattr(f, "__self__", None)
    yield from ((f"{type(owner).__name__}.{k}", v) for k, v in getattr(owner, "__dict__", {}).items())


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(v, b[k]) for k, v in a.items())
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else bool(a == b)


def _untouched(state: Any) -> bool:
    """Whether NumPy's generator, imported while tracing, is as it was seeded: at the end of its block of numbers."""
    return state["state"]["pos"] in (623, 624) and not state["has_gauss"]
