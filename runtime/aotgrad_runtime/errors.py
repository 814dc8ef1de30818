"""The errors of aotgrad: one base, and the standard types users expect beside it."""

from __future__ import annotations

__all__ = [
    "AotgradError", "AotgradIndexError", "AotgradNotImplementedError", "AotgradRuntimeError", "AotgradTypeError", "AotgradValueError",
    "AotgradWarning", "AotgradZeroDivisionError",
]


class AotgradError(Exception):
    """Base of every error aotgrad raises on purpose. The message names the argument or the user's line and says what to do."""


class AotgradTypeError(AotgradError, TypeError):
    """A value of the wrong type or dtype, where NumPy or PyTorch would raise ``TypeError``."""


class AotgradValueError(AotgradError, ValueError):
    """A value, shape or size that does not fit, where NumPy or PyTorch would raise ``ValueError``."""


class AotgradIndexError(AotgradError, IndexError):
    """An index or dimension out of range, where NumPy or PyTorch would raise ``IndexError``."""


class AotgradRuntimeError(AotgradError, RuntimeError):
    """A wrong use of the autograd runtime, where PyTorch would raise ``RuntimeError``."""


class AotgradZeroDivisionError(AotgradRuntimeError, ZeroDivisionError):
    """A division of integers by zero, where PyTorch would raise ``RuntimeError`` and Python ``ZeroDivisionError``."""


class AotgradNotImplementedError(AotgradError, NotImplementedError):
    """Something that cannot be expressed, with the alternative named in the message."""


class AotgradWarning(UserWarning):
    """Something that works, and is most likely not what was meant: told once, with the line."""
