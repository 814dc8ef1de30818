"""The errors of aotgrad: one base, and the standard types users expect beside it."""

from __future__ import annotations

__all__ = [
    "AotgradArgumentError", "AotgradAttributeError", "AotgradDTypeError", "AotgradDimError", "AotgradError", "AotgradIndexError", "AotgradIndexTypeError",
    "AotgradMemoryError",
    "AotgradNotImplementedError",
    "AotgradOverflowError", "AotgradRangeError", "AotgradRuntimeError", "AotgradTypeError", "AotgradValueError",
    "AotgradWarning", "AotgradZeroDivisionError",
]


class AotgradError(Exception):
    """Base of every error aotgrad raises on purpose. The message names the argument or the user's line and says what to do."""


class AotgradTypeError(AotgradError, TypeError):
    """A value of the wrong type or dtype, where NumPy or PyTorch would raise ``TypeError``."""


class AotgradValueError(AotgradError, ValueError):
    """A value, shape or size that does not fit, where NumPy or PyTorch would raise ``ValueError``."""


class AotgradAttributeError(AotgradError, AttributeError):
    """An attribute of NumPy's or Python's values that ours do not have, where Python would raise ``AttributeError``."""


class AotgradIndexError(AotgradError, IndexError):
    """An index or dimension out of range, where NumPy or PyTorch would raise ``IndexError``."""


class AotgradRuntimeError(AotgradError, RuntimeError):
    """A wrong use of the autograd runtime, where PyTorch would raise ``RuntimeError``."""


class AotgradZeroDivisionError(AotgradRuntimeError, ZeroDivisionError):
    """A division of integers by zero, where PyTorch would raise ``RuntimeError`` and Python ``ZeroDivisionError``."""


class AotgradOverflowError(AotgradError, OverflowError):
    """A Python integer that the dtype it meets does not hold, where NumPy raises ``OverflowError``."""


class AotgradMemoryError(AotgradRuntimeError, MemoryError):
    """More memory than there is, where NumPy raises ``MemoryError`` and PyTorch ``RuntimeError``."""

    argument: int | None = None  # which one could not be copied


class AotgradArgumentError(AotgradValueError, AotgradRuntimeError):
    """Shapes or arguments that do not fit each other, where NumPy raises ``ValueError`` and PyTorch ``RuntimeError``."""


class AotgradDTypeError(AotgradTypeError, AotgradRuntimeError, NotImplementedError):
    """Tensors of a dtype that an operation does not take, where NumPy raises ``TypeError`` and PyTorch ``RuntimeError``, or its kind ``NotImplementedError``."""


class AotgradRangeError(AotgradIndexError, AotgradRuntimeError):
    """A number of an index array that is out of range, where NumPy raises ``IndexError``, and PyTorch that or ``RuntimeError``."""


class AotgradIndexTypeError(AotgradIndexError, AotgradTypeError):
    """What is no index, where NumPy raises ``IndexError`` and PyTorch that or ``TypeError``."""


class AotgradDimError(AotgradValueError, AotgradIndexError):
    """A dimension out of range, where NumPy's ``AxisError`` is a ``ValueError`` and an ``IndexError``, and PyTorch raises ``IndexError``."""


class AotgradNotImplementedError(AotgradError, NotImplementedError):
    """Something that cannot be expressed, with the alternative named in the message."""


class AotgradWarning(UserWarning):
    """Something that works, and is most likely not what was meant: told once, with the line."""
