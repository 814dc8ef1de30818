"""Grad modes: whether operations record the tape. Each thread has its own mode; a new thread starts with gradients on."""

from __future__ import annotations

import ctypes
import functools
import inspect
import threading
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, Final, TypeVar

from . import forks
from .errors import AotgradTypeError

__all__ = [
    "differentiating", "enable_grad", "inference_mode", "is_grad_enabled", "is_inference_mode_enabled", "no_grad", "note", "noting", "restricted_address",
    "set_grad_enabled", "state",
]

F = TypeVar("F", bound=Callable[..., Any])


class _Flags:
    """How many threads are in another mode than the default. Read before the thread's own state: while 0, every thread has the default."""

    __slots__ = ("byte", "inference", "lock", "noting", "restricted")

    def __init__(self) -> None:
        self.restricted = self.inference = 0
        self.noting = 0  # in how many threads tensors whose numbers are read are noted, see ``noting``
        self.byte = bytearray(1)  # 1 while restricted > 0; machine code reads it in one load
        self.lock = forks.safe(threading.RLock())  # re-entrant: the collector may drop a token while another is being made


flags: Final = _Flags()


class _Token:
    """Held by a thread while it is not in the default mode; goes away with the thread, so that the counts cannot leak."""

    __slots__ = ("flags", "inference")

    def __init__(self, inference: bool) -> None:
        f = self.flags = flags
        self.inference = inference
        with f.lock:
            f.restricted += 1
            f.inference += inference
            f.byte[0] = 1

    def __del__(self) -> None:
        f = self.flags
        with f.lock:
            f.restricted -= 1
            f.inference -= self.inference
            if not f.restricted:
                f.byte[0] = 0


class _State(threading.local):
    """This thread's mode. Read ``state.grad``; write only through ``set_mode``."""

    grad: bool = True
    inference: bool = False
    refused: int = 0  # how often recording was not switched on, as the thread was in inference mode
    token: _Token | None = None
    noted: list[Any] | None = None
    asked: int = 0  # how often the program asked for the mode: a trace that did so is for this mode alone


state: Final = _State()


def set_mode(grad: bool, inference: bool) -> None:
    """Sets this thread's mode. The engine and the contexts below are its only callers."""
    if state.grad is grad and state.inference is inference:
        return
    state.token = None if grad and not inference else _Token(inference)
    state.grad, state.inference = grad, inference


class noting:
    """``with noting() as tensors``: those whose numbers this thread turns into Python's or NumPy's meanwhile are added to the list."""

    def __enter__(self) -> list[Any]:
        self.before, made = state.noted, list[Any]()
        state.noted = made
        with flags.lock:
            flags.noting += 1
        return made

    def __exit__(self, *exc: object) -> None:
        state.noted = self.before
        with flags.lock:
            flags.noting -= 1


def note(tensor: Any) -> None:
    """The numbers of a tensor leave the library."""
    if state.noted is not None:
        state.noted.append(tensor)


def is_grad_enabled() -> bool:
    """Whether operations on tensors of this thread record the tape."""
    state.asked += 1
    return state.grad


def is_inference_mode_enabled() -> bool:
    """Whether this thread is inside ``inference_mode()``."""
    state.asked += 1
    return state.inference


def restricted_address() -> int:
    """Address of one byte: 0 while every thread records; else a thread has to ask its own ``state.grad``."""
    return ctypes.addressof(ctypes.c_uint8.from_buffer(flags.byte))


class _Mode:
    """Context manager and decorator. Subclasses say what mode they want; nesting and reuse of one object are fine."""

    _previous: tuple[Any, ...] | None = None  # (grad, inference, the one before) of every block entered and not left

    def _wanted(self) -> tuple[bool, bool]:
        raise NotImplementedError

    def clone(self) -> _Mode:
        """A fresh context of the same kind: a decorated function may run in several threads at once."""
        return type(self)()

    def __enter__(self) -> None:
        grad, inference = self._wanted()
        self._previous = (state.grad, state.inference, self._previous)
        set_mode(grad, inference)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._leave()

    def _leave(self) -> None:
        assert self._previous is not None
        grad, inference, self._previous = self._previous
        set_mode(grad, inference)

    def __call__(self, function: F) -> F:
        return _decorate(self.clone, function)


def _decorate(make: Callable[[], _Mode], function: F) -> F:
    if inspect.isgeneratorfunction(function):
        @functools.wraps(function)
        def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            return (yield from _drive(make, function(*args, **kwargs)))
        return generator  # type: ignore[return-value]

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with make():
            return function(*args, **kwargs)
    return wrapper  # type: ignore[return-value]


def _drive(make: Callable[[], _Mode], inner: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Runs a generator so that its body sees the mode and the code between its yields does not."""
    step: Callable[[], Any] = functools.partial(next, inner)
    while True:
        try:
            with make():
                item = step()
        except StopIteration as stop:
            return stop.value
        try:
            sent = yield item
        except GeneratorExit:
            with make():
                inner.close()
            raise
        except BaseException as error:
            step = functools.partial(inner.throw, error)
        else:
            step = functools.partial(inner.send, sent)


class _PlainMode(_Mode):
    """A mode without arguments: ``@no_grad`` works as well as ``@no_grad()``."""

    def __new__(cls, function: Callable[..., Any] | None = None) -> Any:
        return object.__new__(cls) if function is None else cls()(function)


class no_grad(_PlainMode):
    """No operation inside records the tape. Context manager, or decorator of functions and generators.

    >>> with no_grad():
    ...     is_grad_enabled()
    False
    """

    def _wanted(self) -> tuple[bool, bool]:
        return False, state.inference


def _on() -> bool:
    """Whether recording can be switched on: not in ``inference_mode()``, which takes note of it."""
    state.refused += state.inference
    return not state.inference


class enable_grad(_PlainMode):
    """Operations inside record the tape, also within ``no_grad()``, but not within ``inference_mode()``. Context manager, or decorator of functions and generators."""

    def _wanted(self) -> tuple[bool, bool]:
        return _on(), state.inference


class differentiating(_Mode):
    """The mode of a derivative that is being taken, whatever the caller's: out of ``inference_mode()``, and recording (``record=False``: as the caller)."""

    def __init__(self, record: bool = True) -> None:
        self.record = record

    def _wanted(self) -> tuple[bool, bool]:
        return self.record or state.grad, False

    def clone(self) -> _Mode:
        return differentiating(self.record)


class set_grad_enabled(_Mode):
    """Switches recording on or off at once, and back at the end of the block when used as a context manager or decorator. Raises ``AotgradTypeError``, and switches
    nothing, for what is no bool.
    """

    def __init__(self, mode: bool) -> None:
        if not isinstance(mode, bool):
            raise AotgradTypeError(f"set_grad_enabled(): argument 'enabled' (position 1) must be bool, not {type(mode).__name__}")
        self.mode = mode
        super().__enter__()
        self._entered = False

    def _wanted(self) -> tuple[bool, bool]:
        return self.mode and _on(), state.inference

    def clone(self) -> _Mode:
        return _Given(self.mode, None)

    def __enter__(self) -> None:
        if self._entered:  # a second use of the same object
            super().__enter__()
        self._entered = True

    def __call__(self, function: F) -> F:
        if not self._entered:  # as a decorator it must not switch the mode of the code around
            self._entered = True
            self._leave()
        return super().__call__(function)

    def __repr__(self) -> str:
        return f"aotgrad.autograd.grad_mode.set_grad_enabled(mode={self.mode})"


class _Given(_Mode):
    """The mode of given values; None keeps what is there."""

    def __init__(self, grad: bool | None, inference: bool | None) -> None:
        self._grad, self._inference = grad, inference

    def _wanted(self) -> tuple[bool, bool]:
        grad, inference = self._grad, self._inference
        if inference is not None:
            return (state.grad if grad is None else grad), inference
        return (state.grad if grad is None else grad and _on()), state.inference


class inference_mode(_Mode):
    """Like ``no_grad()``, and tensors made inside can never take part in recorded computation. ``inference_mode(False)`` switches it off."""

    def __new__(cls, mode: bool | Callable[..., Any] = True) -> Any:
        return object.__new__(cls) if isinstance(mode, bool) else cls()(mode)

    def __init__(self, mode: bool = True) -> None:
        self.mode = mode

    def _wanted(self) -> tuple[bool, bool]:
        return not self.mode, self.mode

    def clone(self) -> _Mode:
        return _Given(not self.mode, self.mode)
