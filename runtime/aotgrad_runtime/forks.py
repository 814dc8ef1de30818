"""Locks across ``fork``: a child must not find one held by a thread that it does not have.

A process that forks first takes every lock named here, so that no other thread is inside, and gives them back on both sides.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, Final, TypeVar

__all__ = ["after_in_child", "safe"]

L = TypeVar("L")

_outer: Final[list[Any]] = []
_inner: Final[list[Any]] = []
_taken: Final[list[Any]] = []
_children: Final[list[Callable[[], None]]] = []


def safe(lock: L, outer: bool = False) -> L:
    """``lock`` (with ``acquire`` and ``release``), held around every fork from now on, for as long as somebody else keeps it.

    ``outer``: held for long, and other locks may be taken inside it, but no outer one that was named before it.

    >>> import threading
    >>> from aotgrad_runtime.forks import safe
    >>> lock = safe(threading.Lock())
    """
    locks = _outer if outer else _inner
    locks.append(weakref.ref(lock, locks.remove))
    return lock


def after_in_child(fn: Callable[[], None]) -> None:
    """``fn`` runs in every child, after the locks are free."""
    _children.append(fn)


def _before() -> None:
    for ref in (*_outer, *_inner):
        lock = ref()
        if lock is not None:
            lock.acquire()
            _taken.append(lock)


def _after() -> None:
    while _taken:
        _taken.pop().release()


def _child() -> None:
    _after()
    for fn in _children:
        fn()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_child)
