"""The op families. Importing this package fills the registry."""

from . import arith, arrange, contract, control, custom, derived, index, math, reduce, shape

__all__ = ["arith", "arrange", "contract", "control", "custom", "derived", "index", "math", "reduce", "shape"]
