"""Grad modes: whether operations record the tape. Each thread has its own mode; a new thread starts with gradients on."""

from __future__ import annotations

import ctypes
import functools
import inspect
import threading
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, Final, TypeVar

from .errors import AotgradTypeError

__all__ = [
    "differentiating", "enable_grad", "enter", "inference_mode", "intact", "is_grad_enabled", "is_inference_mode_enabled", "keep", "no_grad", "note", "noting",
    "restricted_address", "set_grad_enabled", "settle", "state",
]

F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S", bound=threading.local)


class _Flags:
    """Which threads are in another mode than the default, or have been. Asked before the thread's own state: while ``restricted`` is empty, every thread has the default.

    Written in plain statements without a call: the interpreter takes signals and changes threads at calls and loops alone, so that an interrupt never leaves half of it.
    """

    __slots__ = ("byte", "inference", "noting", "restricted")

    def __init__(self) -> None:
        self.restricted: dict[int, bool] = {}  # by number
        self.inference: dict[int, bool] = {}  # those in inference mode, now or before: never emptied but by the end of the thread
        self.noting: dict[int, bool] = {}  # where tensors whose numbers are read are noted, see ``noting``
        self.byte = bytearray(1)  # 1 while some thread is restricted; machine code reads it in one load


flags: Final = _Flags()


class _End:
    """Goes away with its thread, and with it what ``flags`` says of that."""

    __slots__ = ("flags", "thread")

    def __init__(self) -> None:
        self.flags, self.thread = flags, threading.get_ident()

    def __del__(self) -> None:
        f = self.flags
        f.noting.pop(self.thread, None)
        f.inference.pop(self.thread, None)
        f.restricted.pop(self.thread, None)
        if not f.restricted:
            f.byte[0] = 0


class _State(threading.local):
    """This thread's mode. Read ``state.grad``; write only through ``enter``, or as it shows."""

    grad: bool = True
    inference: bool = False
    refused: int = 0  # how often recording was not switched on, as the thread was in inference mode
    noted: list[Any] | None = None
    asked: int = 0  # how often the program asked for the mode: a trace that did so is for this mode alone

    def __init__(self) -> None:
        self.end = _End()
        self.thread = self.end.thread


state: Final = _State()


def enter(grad: bool, inference: bool) -> None:
    """Sets this thread's mode, for a while or for good. Whoever changes it back does so in ``finally``, and with no call there, at whose entry an interrupt could come in
    between::

        if not grad or inference:
            flags.restricted[state.thread], flags.byte[0] = True, 1
        state.grad, state.inference = grad, inference
        modes.settle()
    """
    if not grad or inference:
        flags.restricted[state.thread], flags.byte[0] = True, 1
        if inference:
            flags.inference[state.thread] = True
    state.grad, state.inference = grad, inference


def settle() -> None:
    """Calls of a thread in the default mode need not ask. An interrupt that prevents this does no harm: the next one is in time."""
    if state.grad and not state.inference and state.thread in flags.restricted:
        del flags.restricted[state.thread]
        if not flags.restricted:
            flags.byte[0] = 0


# ---- calls that leave the thread as it was ----------------------------------------------------------------------------------------------

_places: Final[list[tuple[Any, str]]] = [(state, "grad"), (state, "inference"), (state, "noted")]


def keep(where: S, *names: str) -> S:
    """Names more of what ``intact`` keeps: attributes of a thread's own state, which is given back. Of lists the contents are kept."""
    _places.extend((where, name) for name in names)
    return where


def intact(function: F) -> F:
    """Whatever ``function`` is left by, also an interrupt at the entry of some ``__exit__`` inside, leaves modes, levels and stacks of traces as they were.

    For functions that change them in ``with`` blocks: Python has no way to make a context manager's ``__exit__`` safe from an interrupt at its entry.
    """
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        before = [value[:] if type(value := getattr(where, name)) is list else value for where, name in _places]
        try:
            return function(*args, **kwargs)
        except BaseException:
            _again(before)
            raise
    return call  # type: ignore[return-value]


def _again(before: list[Any]) -> None:
    enter(before[0], before[1])
    for (where, name), value in zip(_places, before):
        now = getattr(where, name)
        if type(value) is list:
            now[:] = value
        elif now is not value:
            setattr(where, name, value)
    if state.noted is None:
        flags.noting.pop(state.thread, None)
    settle()


class noting:
    """``with noting() as tensors``: those whose numbers this thread turns into Python's or NumPy's meanwhile are added to the list."""

    def __enter__(self) -> list[Any]:
        self.before, made = state.noted, list[Any]()
        state.noted, flags.noting[state.thread] = made, True
        return made

    def __exit__(self, *exc: object) -> None:
        state.noted = self.before
        if self.before is None:
            flags.noting.pop(state.thread, None)


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
        enter(grad, inference)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._previous is not None
        grad, inference, self._previous = self._previous
        if not grad or inference:
            flags.restricted[state.thread], flags.byte[0] = True, 1
        state.grad, state.inference = grad, inference
        settle()

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
        grad, inference = state.grad, state.inference
        try:
            enter(*make()._wanted())
            return function(*args, **kwargs)
        finally:
            if not grad or inference:
                flags.restricted[state.thread], flags.byte[0] = True, 1
            state.grad, state.inference = grad, inference
            settle()
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
        self._entered = False
        super().__enter__()
        try:
            settle()
        except BaseException:
            self.__exit__(None, None, None)
            raise

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
            self.__exit__(None, None, None)
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
