"""The op families. Importing this package fills the registry."""

from . import arith, arrange, contract, control, conv, conv_front, custom, derived, gamma, host, index, math, pool_front, random, reduce, shape, special, window

__all__ = ["arith", "arrange", "contract", "control", "conv", "conv_front", "custom", "derived", "gamma", "host", "index", "math", "pool_front", "random", "reduce",
           "shape", "special", "window"]
