"""The op families. Importing this package fills the registry."""

from . import arith, contract, control, math, reduce, shape

__all__ = ["arith", "contract", "control", "math", "reduce", "shape"]
