"""SHA-256 without OpenSSL, whose library takes longer to load than everything that a small program hashes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hashlib import _Hash

__all__ = ["sha256"]

_LARGE: Final = 1 << 20  # bytes: from there OpenSSL, seven times as fast, has made up for its start


def _found() -> Callable[[Any], _Hash]:
    for name in ("_sha2", "_sha256"):  # Python 3.12 and later; before it
        try:
            return importlib.import_module(name).sha256  # type: ignore[no-any-return]
        except ImportError:
            continue
    return importlib.import_module("hashlib").sha256  # type: ignore[no-any-return]  # a Python that was built without its own


_small: Final = _found()


def sha256(data: Any = b"", *, size: int | None = None) -> _Hash:
    """The hash of ``data``, any buffer, as ``hashlib.sha256`` gives it; ``size`` says how many bytes there will be where more are to come.

    >>> from aotgrad_runtime.digests import sha256
    >>> sha256(b"abc").hexdigest()[:16]
    'ba7816bf8f01cfea'
    """
    if (len(data) if size is None else size) < _LARGE and "_hashlib" not in sys.modules:
        return _small(data)
    return importlib.import_module("hashlib").sha256(data)  # type: ignore[no-any-return]
