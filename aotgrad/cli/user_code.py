"""Errors of the user's own file as one line: where it went wrong in that file, and what Python said."""

from __future__ import annotations

import contextlib
import os
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

import aotgrad_runtime
from aotgrad_runtime.errors import AotgradError, AotgradRuntimeError, AotgradValueError

__all__ = ["clean_errors", "place"]

_OURS = tuple(f"{folder}{os.sep}" for folder in (Path(__file__).resolve().parents[1], Path(aotgrad_runtime.__file__).resolve().parent))
_INSTALLED = tuple(f"{folder}{os.sep}" for folder in {sysconfig.get_path(k) for k in ("stdlib", "platstdlib", "purelib", "platlib")})


@contextlib.contextmanager
def clean_errors(what: str, whole: bool = False, fallback: str = "") -> Iterator[None]:
    """Turns an exception of the user's code into an ``AotgradError`` that begins with its file and line; ``what`` was being done.

    ``whole`` leaves it as it is, with its traceback, and so does an exception that no line of the user's took part in (unless there is a ``fallback``
    to name): that one is a fault of aotgrad.
    """
    if whole:
        yield
        return
    try:
        yield
    except AotgradError:
        raise
    except SyntaxError as error:
        at = f"{_short(error.filename)}:{error.lineno}" if error.filename else fallback or what
        raise AotgradValueError(f"{at}: {type(error).__name__}: {error.msg}") from error
    except SystemExit as error:
        at = place(error) or fallback or what
        raise AotgradRuntimeError(f"{at}: sys.exit({error.code!r}) was called while {what}; put what a script does under if __name__ == '__main__':") from error
    except Exception as error:
        at = place(error) or fallback
        if not at:
            raise
        said = " ".join(str(error).split())
        raise AotgradRuntimeError(f"{at}: {type(error).__name__}{': ' + said if said else ''} (while {what}; --traceback shows the whole)") from error


def place(error: BaseException) -> str:
    """``file:line`` of the innermost frame that is the user's: neither aotgrad's nor, if there is another, of an installed package."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<") and not f.filename.startswith(_OURS)]
    own = [f for f in frames if not f.filename.startswith(_INSTALLED)]
    return f"{_short(own[-1].filename)}:{own[-1].lineno}" if own else ""


def _short(filename: str) -> str:
    """Relative to the current folder where it lies in it."""
    path, here = os.path.abspath(filename), f"{os.getcwd()}{os.sep}"
    return path[len(here):] if path.startswith(here) else filename
