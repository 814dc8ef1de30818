"""Where calls of public functions begin: what Python or NumPy refuses of one, inside, is an error of ours that names the function, its arguments and the user's line.

Errors out of the user's own code (hooks, callbacks, ``__array__``) pass as they are.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

import numpy as np

from aotgrad_runtime.errors import (
    AotgradArgumentError,
    AotgradError,
    AotgradIndexError,
    AotgradMemoryError,
    AotgradOverflowError,
    AotgradTypeError,
)
from aotgrad_runtime.tensor import Tensor

from .trace import user_loc, within

__all__ = ["PLAIN", "called_wrongly", "refusal", "restate", "told"]

F = TypeVar("F", bound=Callable[..., Any])

PLAIN = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, MemoryError, RecursionError)
"""What Python and NumPy raise of arguments that nobody foresaw."""

_KINDS: tuple[tuple[Any, Any], ...] = ((MemoryError, AotgradMemoryError), (IndexError, AotgradIndexError), (OverflowError, AotgradOverflowError),
                                       (ValueError, AotgradArgumentError), (ArithmeticError, AotgradArgumentError))


def told(f: F, name: str | None = None) -> F:
    """``f``, a public function (under another name where one is given), with its errors in our words.

    >>> import aotgrad as ag
    >>> ag.diff()
    Traceback (most recent call last):
    aotgrad_runtime.errors.AotgradTypeError: diff() missing a required argument: 'input'; its signature is diff(input, n=1, dim=-1)
    """
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return f(*args, **kwargs)
        except PLAIN as error:
            restate(called_wrongly(out, args, kwargs, error), error)

    out = functools.update_wrapper(call, f)
    out.__name__ = out.__qualname__ = name or f.__name__
    out.__module__ = "aotgrad" if not f.__module__.startswith("aotgrad.nn") else "aotgrad.nn.functional"  # by which it is found again
    return out  # type: ignore[return-value]


def restate(found: AotgradError | None, error: BaseException) -> NoReturn:
    """Raises ``found`` in place of ``error``, or that itself where there is none; neither stays a variable of a frame, which would hold what the frame holds."""
    try:
        if found is None:
            raise error
        raise found from error
    finally:
        del found, error


def called_wrongly(f: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], error: BaseException) -> AotgradError | None:
    """The error for a call of ``f``; None where it is ours already, or the user's."""
    if isinstance(error, AotgradError) or _of_user(error):
        return None
    name, signature = f.__name__, inspect.signature(f)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError as wrong:
        return AotgradTypeError(f"{name}() {wrong}; its signature is {name}{_plain(signature)}")
    return refusal(name, given, f"{name}{_plain(signature)}", error)


def _plain(signature: inspect.Signature) -> str:
    """The parameters without their annotations."""
    kept = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=kept, return_annotation=signature.empty))


def refusal(name: str, given: Mapping[str, Any], signature: str, error: BaseException) -> AotgradError | None:
    """The error for arguments that ``error`` is about; None where it is ours already, or the user's."""
    if isinstance(error, AotgradError) or _of_user(error):
        return None
    kind: type[Any] = next((ours for theirs, ours in _KINDS if isinstance(error, theirs)), AotgradTypeError)
    why = "lists are nested too deeply, or one holds itself" if isinstance(error, RecursionError) else str(error) or "there is not enough memory"
    advice = "make the sizes smaller" if kind is AotgradMemoryError else f"its signature is {signature}"
    found = kind(f"{user_loc()}: {name}() cannot use {', '.join(f'{k}={_brief(v)}' for k, v in given.items()) or 'these arguments'} ({why}); {advice}")
    found.unforeseen = kind in (AotgradTypeError, AotgradArgumentError)  # perhaps sizes as Python's integers help
    return found  # type: ignore[no-any-return]


def _of_user(error: BaseException) -> bool:
    """Whether code of the user's stands between the call and what raised it."""
    at = error.__traceback__
    while at is not None and within(at.tb_frame.f_code.co_filename):
        at = at.tb_next
    return at is not None


def _brief(x: Any) -> str:
    if isinstance(x, (Tensor, np.ndarray)):
        return f"<{'tensor' if isinstance(x, Tensor) else 'array'} of shape {list(map(str, x.shape))}>".replace("'", "")
    try:
        return f"{x!r:.40}"
    except Exception:  # a printed form of the user's, or lists too deep
        return f"<{type(x).__name__}>"
