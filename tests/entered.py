"""What a call enters, for tests that count."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def python_calls(f: Callable[[], Any]) -> list[str]:
    """The names of Python functions that ``f()`` enters."""
    names: list[str] = []
    sys.setprofile(lambda frame, event, arg: names.append(frame.f_code.co_name) if event == "call" else None)
    try:
        f()
    finally:
        sys.setprofile(None)
    return names[1:]
