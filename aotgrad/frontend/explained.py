"""What the user should see of an error that leaves a function that is traced or differentiated."""

from __future__ import annotations

import dis
import inspect
import numbers
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np

from aotgrad_runtime import recording
from aotgrad_runtime.errors import AotgradAttributeError, AotgradError, AotgradTypeError
from aotgrad_runtime.tensor import ArrayTensor

from .boundary import standing_in
from .trace import NeedStatic, Traced, raised_at, within

__all__ = ["PLACED", "explained", "explained_with_line", "of_argument", "same_again", "told_of_arguments"]

F = TypeVar("F", bound=Callable[..., Any])

_UNFIT = r"\(\) (got|missing|takes) "  # Python's words for arguments that do not fit
PLACED = r"[^\n]*:\d+:\s"  # a message that begins with a line

_NAMES = r"'?\b(?:TracedArray|TracedTensor|TracedNumber|ArrayTensor)\b'?(?: object)?"  # our values in messages of Python's own
_TRACED = ("a traced value has no number yet. Use NumPy's and ag's functions, which take it; name in static= an argument whose number decides; to look at numbers, "
           "ag.debug_print")
_TAPED = ("it is a value that is being differentiated. Use NumPy's and ag's functions, which take it; to treat its numbers as constants, or to look at them, "
          "x.detach().numpy()")


def explained(error: BaseException) -> BaseException:
    """The innermost ``AotgradError`` of a chain of causes; where Python's own functions met a value that has no number, ours, with the line; else ``error``."""
    at: BaseException | None = error
    best = error
    seen: set[int] = set()
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        if isinstance(at, AotgradError):
            best = at
        at = at.__cause__
    if isinstance(best, AotgradError):
        return best
    return recording.refused(error) or _uncalled(error) or _misspelt(error) or _named(error) or error


def _uncalled(error: BaseException) -> AotgradTypeError | None:
    """What Python says of a call of the user's function with arguments that it does not have: the call itself failed, nothing inside it."""
    at = _last(error)
    if not isinstance(error, TypeError) or at is None or not within(at.tb_frame.f_code.co_filename) or not re.search(_UNFIT, str(error)):
        return None
    return AotgradTypeError(f"{error}; give it the arguments of its signature")


def _misspelt(error: BaseException) -> AotgradTypeError | None:
    """What NumPy says of arguments that one of its functions does not have: it looks at them before it asks us, at the user's line."""
    found = re.match(r"(\w+)" + _UNFIT, str(error)) if isinstance(error, TypeError) and not _by_user(error) else None
    at = _last(error)
    if at is None or within(at.tb_frame.f_code.co_filename):
        return None
    method = re.match(r"Tensor\.(\w+)" + _UNFIT, str(error)) if isinstance(error, TypeError) and not _by_user(error) else None
    if method is not None:  # an operator's, which the user's program called by its name
        return AotgradTypeError(f"{raised_at(error)}: {method[1]}{str(error)[method.end(1):]}; ag.pow, ag.add and their like are functions with more arguments")
    if found is None:
        return None
    frame = at.tb_frame
    named = frame.f_locals.get(found[1], frame.f_globals.get(found[1]))  # a function of the user's of that name
    function = next((f for space in (np, np.linalg) if hasattr(f := getattr(space, found[1], None), "_implementation")), None)
    if function is None or named is not None and named is not function:
        return None
    return AotgradTypeError(f"{raised_at(error)}: {error}; {function.__module__.replace('numpy', 'np', 1)}.{found[1]} takes {inspect.signature(function)}")


def told_of_arguments(f: F) -> F:
    """``f``, whose calls with arguments that it does not have are errors of ours that name those it has."""
    def refused(error: TypeError) -> AotgradTypeError:
        return AotgradTypeError(f"{error}; its arguments are {', '.join(inspect.signature(f).parameters)}")

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return f(*args, **kwargs)
        except TypeError as error:
            if error.__traceback__.tb_next is not None:  # type: ignore[union-attr]  # something inside
                raise
            raise refused(error) from None

    out = standing_in(call, f)
    out._told = True  # type: ignore[attr-defined]
    return out


def of_argument(error: BaseException, signature: inspect.Signature | None, args: Any, kwargs: Any, leaves: Iterable[tuple[str, Any]]) -> AotgradError | None:
    """Python's refusal of an argument that is handed on as it is, as nothing can be computed with it: ours, which names it."""
    if not isinstance(error, (TypeError, AttributeError)) or isinstance(error, AotgradError) or _by_user(error):
        return None
    whole = {} if signature is None else signature.bind(*args, **kwargs).arguments  # None is no leaf
    for name, x in (*whole.items(), *leaves):
        if not isinstance(x, (Traced, ArrayTensor)) and (re.search(rf"'([\w.]+\.)?{type(x).__name__}'", str(error)) or _taken(error, x)):
            kind: type[Any] = AotgradAttributeError if isinstance(error, AttributeError) else AotgradTypeError
            found = kind(f"{raised_at(error)}: {error}; argument {name} is {type(x).__name__}, which is handed on as it is: give an array, a tensor, a number, or "
                         "a list, tuple or dict of them")
            found.unforeseen = True
            return found  # type: ignore[no-any-return]
    return None


def _taken(error: BaseException, x: Any) -> bool:
    """Whether a function of Python's or NumPy's library that was given ``x``, which is neither a number nor a container, raised ``error``."""
    at = _last(error)
    return (at is not None and within(at.tb_frame.f_code.co_filename) and not isinstance(x, (numbers.Number, np.generic, list, tuple, dict, type(None)))
            and any(v is x for v in at.tb_frame.f_locals.values()))


def same_again(error: BaseException, first: BaseException) -> bool:
    """Whether NumPy or Python says of plain numbers what ``first``, ours and with the line, said of traced ones."""
    return isinstance(first, AotgradError) and not isinstance(error, AotgradError) and isinstance(first, type(error)) and not _by_user(error)


def explained_with_line(error: BaseException) -> BaseException:
    """``explained``, in a trace: ours names the user's line, if only that of the call it came through."""
    found = explained(error)
    if isinstance(found, AotgradError) and not isinstance(found, NeedStatic) and len(found.args) == 1 and not re.match(PLACED, str(found)):
        place = raised_at(found)
        if place is not None:
            found.args = (f"{place}: {found}",)
    return found


def _named(error: BaseException) -> AotgradError | None:
    """An error of Python's own that is about one of our values: it names the class, has the value for a key, or left a function of the library that was given it."""
    text = str(error)
    if isinstance(error, KeyError) and error.args and isinstance(error.args[0], (Traced, ArrayTensor)):
        return _told(error, "a computed value is used as a key", isinstance(error.args[0], Traced))
    if _by_user(error):
        return None
    if re.search(_NAMES, text):
        return _told(error, re.sub(_NAMES, "a computed value", text), "Traced" in text)
    if text.startswith("Iterator operand"):
        return _told(error, f"np.nditer goes over numbers in memory ({text})", True)
    held = _held(error) if isinstance(error, TypeError) else None
    return None if held is None else _told(error, text, isinstance(held, Traced))


def _told(error: BaseException, text: str, traced: bool) -> AotgradError:
    made: type[Any] = AotgradAttributeError if isinstance(error, AttributeError) else AotgradTypeError
    advice = _TRACED if traced else _TAPED
    if text.startswith("unsupported operand") and "pow()" not in text:
        advice = ("complex numbers are not there yet; compute with the real and the imaginary part" if "'complex" in text
                  else "convert the other operand to a number or an array of numbers")
    found = made(f"{raised_at(error)}: {text}; {advice}")
    found.unforeseen = True  # perhaps sizes as Python's integers help
    return found  # type: ignore[no-any-return]


def _last(error: BaseException) -> Any:
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return at


def _by_user(error: BaseException) -> bool:
    """Whether a ``raise`` of the user's made it: then it is not ours to explain."""
    at = _last(error)
    if at is None:
        return True
    code = at.tb_frame.f_code
    return not within(code.co_filename) and dis.opname[code.co_code[at.tb_lasti]] == "RAISE_VARARGS"


def _held(error: BaseException) -> Any:
    """One of our values among the variables of the function of Python's library that raised it."""
    at = _last(error)
    if at is None or not within(at.tb_frame.f_code.co_filename):
        return None
    return next((x for x in at.tb_frame.f_locals.values() if isinstance(x, (Traced, ArrayTensor))), None)
