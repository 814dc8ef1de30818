"""What the indices of an operation are, for errors of compiled code: the place in the user's program carries it (``Loc.what``)."""

from __future__ import annotations

import threading

from aotgrad.ir import Loc
from aotgrad_runtime import modes

from .trace import user_loc

__all__ = ["index_loc", "naming"]


class _Local(threading.local):
    what = ""


_local = modes.keep(_Local(), "what")


class naming:
    """``with naming(text)``: what indices in operations traced inside are (see ``call.failure``)."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __enter__(self) -> None:
        self.before, _local.what = _local.what, self.text

    def __exit__(self, *exc: object) -> None:
        _local.what = self.before


def index_loc() -> Loc | None:
    """``user_loc``, with what an index is."""
    loc = user_loc()
    if loc is not None:
        loc.what = _local.what
    return loc
