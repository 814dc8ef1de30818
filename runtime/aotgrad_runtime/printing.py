"""Tensors as text, in PyTorch's printed form. Works on NumPy arrays; knows no tensor class."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Final

import numpy as np

from .errors import AotgradValueError
from .records import record

__all__ = ["PrintOptions", "array_text", "get_printoptions", "printoptions", "set_printoptions", "with_suffixes"]

Array = np.ndarray[Any, Any]
Format = Callable[[Any], str]


@record(frozen=True)
class PrintOptions:
    """Digits after the point, size from which a tensor is summarised, items kept at each end, line width, scientific notation (None: by value)."""

    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


_PROFILES: Final = {
    "default": PrintOptions(),
    "short": PrintOptions(precision=2, edgeitems=2),
    "full": PrintOptions(threshold=math.inf),
}
_OPTIONS: Final[ContextVar[PrintOptions]] = ContextVar("aotgrad_print_options", default=_PROFILES["default"])


def get_printoptions() -> dict[str, Any]:
    """The current options, as keyword arguments of ``set_printoptions``."""
    return dataclasses.asdict(_OPTIONS.get())


def set_printoptions(
    precision: int | None = None, threshold: float | None = None, edgeitems: int | None = None, linewidth: int | None = None,
    profile: str | None = None, sci_mode: bool | None = None,
) -> None:
    """Sets the options of this context (thread or task). ``profile`` is ``default``, ``short`` or ``full``; ``sci_mode=None`` decides by value."""
    if profile is not None and profile not in _PROFILES:
        raise AotgradValueError(f"profile={profile!r} is unknown; use one of {', '.join(_PROFILES)}")
    base = _OPTIONS.get() if profile is None else _PROFILES[profile]
    given = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems, "linewidth": linewidth}
    _OPTIONS.set(dataclasses.replace(base, sci_mode=sci_mode, **{k: v for k, v in given.items() if v is not None}))  # type: ignore[arg-type]


@contextlib.contextmanager
def printoptions(**options: Any) -> Iterator[None]:
    """The options inside a ``with`` block; the old ones come back at its end."""
    before = _OPTIONS.get()
    set_printoptions(**options)
    try:
        yield
    finally:
        _OPTIONS.set(before)


def _float_spec(values: Array, options: PrintOptions) -> tuple[int, str, str]:
    """Width, format spec and what is appended to finite values, from all values shown."""
    values = values.astype(np.float64)
    shown = values[np.isfinite(values) & (values != 0)]
    if not shown.size:
        return 1, ".0f", "."
    magnitude = np.abs(shown)
    least, most = float(magnitude.min()), float(magnitude.max())
    whole = bool((shown == np.ceil(shown)).all())
    scientific = options.sci_mode
    if scientific is None:
        scientific = most / least > 1000.0 or most > 1.0e8 or least < 1.0e-4
    if scientific:
        spec, tail = f".{options.precision}e", ""
    elif whole:
        spec, tail = ".0f", "."
    else:
        spec, tail = f".{options.precision}f", ""
    return max(len(format(v, spec)) for v in shown.tolist()) + len(tail), spec, tail


def _float_format(values: Array, options: PrintOptions) -> tuple[int, Format]:
    width, spec, tail = _float_spec(values, options)

    def text(v: float) -> str:
        return (format(v, spec) + (tail if math.isfinite(v) else "")).rjust(width)
    return width, text


def _plain_format(values: Array, options: PrintOptions) -> tuple[int, Format]:
    width = max(map(len, map(str, values.ravel().tolist())), default=1)
    return width, lambda v: str(v).rjust(width)


def _complex_format(values: Array, options: PrintOptions) -> tuple[int, Format]:
    real_width, real = _float_format(values.real, options)
    imag_width, imag = _float_format(values.imag, options)

    def text(v: complex) -> str:
        tail = (imag(v.imag) + "j").lstrip()
        return real(v.real) + (tail if tail[0] in "+-" else "+" + tail)
    return real_width + imag_width + 1, text


def _vector(row: Array, indent: int, summarise: bool, width: int, text: Format, options: PrintOptions) -> str:
    edge = options.edgeitems
    if summarise and not edge:
        items = ["..."]
    elif summarise and len(row) > 2 * edge:
        items = [*map(text, row[:edge].tolist()), " ...", *map(text, row[-edge:].tolist())]
    else:
        items = [*map(text, row.tolist())]
    per_line = max(1, (options.linewidth - indent) // (width + 2))
    lines = [", ".join(items[i:i + per_line]) for i in range(0, len(items), per_line)]
    return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"


def _nested(array: Array, indent: int, summarise: bool, width: int, text: Format, options: PrintOptions) -> str:
    if array.ndim == 0:
        return text(array.item())
    if array.ndim == 1:
        return _vector(array, indent, summarise, width, text, options)
    edge = options.edgeitems
    rows: Sequence[Array | None] = list(array)
    if summarise and len(array) > 2 * edge:
        rows = [*array[:edge], None, *(array[-edge:] if edge else ())]
    parts = ["..." if row is None else _nested(row, indent + 1, summarise, width, text, options) for row in rows]
    return "[" + ("," + "\n" * (array.ndim - 1) + " " * (indent + 1)).join(parts) + "]"


def _corners(array: Array, edge: int) -> Array:
    """The elements a summary shows."""
    for d, size in enumerate(array.shape):
        if size > 2 * edge:
            array = np.take(array, [*range(edge), *range(size - edge, size)], axis=d)
    return array


def array_text(array: Array, indent: int = 0) -> str:
    """The elements of an array as PyTorch prints them, continuation lines indented by ``indent``.

    >>> array_text(np.array([1.0, 2.5], np.float32))
    '[1.0000, 2.5000]'
    """
    if not array.size:
        return "[]"
    options = _OPTIONS.get()
    summarise = array.size > options.threshold
    shown = _corners(array, options.edgeitems) if summarise else array
    make = {"f": _float_format, "c": _complex_format}.get(array.dtype.kind, _plain_format)
    width, text = make(shown, options)
    return _nested(array, indent, summarise, width, text, options)


def with_suffixes(text: str, suffixes: Sequence[str], indent: int) -> str:
    """``text``, then each suffix after a comma, on a new line where the current one would grow too long, then the closing bracket.

    Lines break where PyTorch's do: the package's name counts as long as PyTorch's.
    """
    linewidth = _OPTIONS.get().linewidth
    length = len(text) - text.rfind("\n") + 1
    parts = [text]
    for suffix in suffixes:
        size = len(suffix.replace("aotgrad.", "torch."))
        if length + size + 2 > linewidth:
            parts.append(",\n" + " " * indent + suffix)
            length = indent + size
        else:
            parts.append(", " + suffix)
            length += size + 2
    return "".join(parts) + ")"
