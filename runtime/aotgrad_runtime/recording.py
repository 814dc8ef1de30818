"""What a thread may ask of every operation that is recorded: hooks around saved tensors, and the notes of anomaly mode."""

from __future__ import annotations

import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from . import modes, watchers
from .errors import AotgradRuntimeError, AotgradTypeError

__all__ = ["asked_hooks", "checked", "note", "refused", "refuse", "set_anomaly", "state", "user_line"]

Array = np.ndarray[Any, Any]


class _State(threading.local):
    """This thread's hooks (pairs of pack and unpack; None: hooks are refused, with the message), and whether it looks for anomalies."""

    anomaly = False
    check_nan = True
    running: Any = None  # the node whose backward makes new ones
    passing: Any = None  # the backward pass under way
    refused: tuple[AotgradTypeError, Any, int] | None = None  # the last error of ``refuse``, and the instruction it came from

    def __init__(self) -> None:
        self.hooks: list[tuple[Callable[[Any], Any] | None, Any]] = []


state: Final = modes.keep(_State(), "passing", "running")


class asked_hooks:
    """Context: ``pair`` (pack and unpack) is the innermost of this thread; only that one is called. Left by an interrupt at any place but the entry of ``__exit__``,
    it leaves nothing behind, as do all contexts of this module.
    """

    pair: tuple[Callable[[Any], Any] | None, Any]

    def __enter__(self) -> None:
        at = len(state.hooks)
        watchers.state.hold()
        state.hooks[at:] = (self.pair,)

    def __exit__(self, *exc: object) -> None:
        del state.hooks[-1]
        watchers.state.count -= 1
        watchers.state.settle()


def set_anomaly(on: bool, check_nan: bool) -> None:
    """Switches anomaly mode of this thread."""
    if on and not state.anomaly:
        watchers.state.hold()
    off = state.anomaly and not on
    state.anomaly, state.check_nan = on, check_nan
    if off:
        watchers.state.count -= 1
        watchers.state.settle()


class anomaly:
    """Context: what ``set_anomaly`` set in it ends with it."""

    before: tuple[bool, bool]

    def __exit__(self, *exc: object) -> None:
        on, check_nan = self.before
        if on is state.anomaly:
            state.check_nan = check_nan
        elif on:
            set_anomaly(on, check_nan)
        else:
            state.anomaly, state.check_nan = on, check_nan
            watchers.state.count -= 1
            watchers.state.settle()


# ---- anomaly mode ---------------------------------------------------------------------------------------------------------------------

_OURS: Final = ("aotgrad", "aotgrad_runtime")


def _user_frames() -> traceback.StackSummary:
    frames, frame = [], sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _OURS:
            frames.append((frame, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return traceback.StackSummary.extract(reversed(frames), lookup_lines=False)


_LIBRARIES: Final = ("numpy", "scipy")
_STANDARD: Final = os.path.dirname(os.__file__) + os.sep


def _not_users(frame: Any) -> bool:
    file = frame.f_code.co_filename
    return (frame.f_globals.get("__name__", "").partition(".")[0] in (*_OURS, *_LIBRARIES)
            or file.startswith(_STANDARD) and f"-packages{os.sep}" not in file)


def _user_frame(frame: Any) -> Any:
    while frame is not None and _not_users(frame):
        frame = frame.f_back
    return frame


def user_line() -> str:
    """The innermost line of the user's program, for a message, and the function of a library (in Python) that was called there."""
    frame, called = sys._getframe(1), ""
    while frame is not None and _not_users(frame):
        name = frame.f_globals.get("__name__", "")
        called = "" if name.partition(".")[0] in _OURS else f": in {name}.{frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return "?" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}{called}"


def refuse(error: AotgradTypeError) -> AotgradTypeError:
    """``error``, kept in mind: Python's own functions (``"%d" % x``, ``struct.pack``) raise one of theirs in its place, which says less."""
    frame = _user_frame(sys._getframe(1))
    state.refused = None if frame is None else (error, frame.f_code, frame.f_lasti)
    return error


def refused(error: BaseException) -> AotgradTypeError | None:
    """The error that ``error`` took the place of: what was refused last, if ``error`` comes from the same call."""
    found, state.refused = state.refused, None
    at = error.__traceback__
    while at is not None and found is not None:
        if at.tb_frame.f_code is found[1] and at.tb_lasti == found[2]:
            return found[0]
        at = at.tb_next
    return None


def note(node: Any) -> None:
    """Called when a node is made while some thread asks: keeps the lines that made it."""
    if state.anomaly:
        node.metadata["traceback_"] = _user_frames()
        if state.running is not None:
            node.metadata["parent_"] = state.running


def _report(node: Any, what: str) -> None:
    lines = node.metadata.get("traceback_")
    if lines is None:
        text = f"{what} in {node.name}. No forward pass information available. Enable detect anomaly during forward pass for more information."
    else:
        text = f"{what} in {node.name}. Traceback of forward call that caused the error:\n{''.join(lines.format())}"
    seen, parent = {id(node)}, node.metadata.get("parent_")
    while parent is not None and id(parent) not in seen:
        seen.add(id(parent))
        made = parent.metadata.get("traceback_")
        text += (f"\n\nPrevious calculation was induced by {parent.name}. Traceback of forward call that induced the previous calculation:\n"
                 f"{'' if made is None else ''.join(made.format())}")
        parent = parent.metadata.get("parent_")
    warnings.warn(text, stacklevel=2)


def _line(node: Any) -> str:
    lines = node.metadata.get("traceback_")
    return f" Forward call: {lines[-1].filename}:{lines[-1].lineno}: {lines[-1].line}" if lines else ""


def checked(run: Callable[..., Any], node: Any, cts: tuple[Any, ...]) -> Any:
    """``run(node, cts)`` in anomaly mode: an error is reported with the forward call that made the node; so is an infinity from finite gradients, and a NaN is an
    error."""
    before, state.running = state.running, node
    try:
        grads = run(node, cts)
    except Exception:
        _report(node, "Error detected")
        raise
    finally:
        state.running = before
    if state.check_nan and type(grads) is tuple:
        for i, g in enumerate(grads):
            if g is None or not g._concrete or g._data.dtype.kind not in "fc":
                continue
            if np.isnan(g._data).any():
                _report(node, "Error detected")
                raise AotgradRuntimeError(f"Function '{node.name}' returned nan values in its {i}th output.{_line(node)}")
            if np.isinf(g._data).any() and all(c is None or np.isfinite(c._data).all() for c in cts):
                _report(node, f"Infinite values in output {i}")
    return grads


def check_unpacked(found: Any, kind: type[Any], shape: tuple[int, ...]) -> Any:
    """What an unpack hook returned, which must be a tensor of the shape that was saved."""
    if not isinstance(found, kind):
        raise AotgradTypeError(f"Output of saved tensor unpack_hook expected to be a Tensor but got result of type {type(found)}")
    if tuple(found.shape) != shape:
        raise AotgradRuntimeError(f"saved tensor unpack_hook returned a Tensor of shape {list(found.shape)}, but one of shape {list(shape)} was saved; return what the "
                                  "pack hook was given")
    return found
