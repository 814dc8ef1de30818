"""Activations, made of the functions of the registry."""

from __future__ import annotations

import math
from typing import Any

from aotgrad.frontend.composed import composed, written
from aotgrad.frontend.notices import notice
from aotgrad.ir.ops.common import norm_dim
from aotgrad_runtime.errors import AotgradArgumentError

from ._shared import f, rank

_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946

ACTIVATIONS = (
    "celu", "elu", "gelu", "glu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "logsigmoid", "mish", "relu", "relu6", "selu", "silu",
    "softmin", "softplus", "softshrink", "softsign", "tanhshrink", "threshold")
__all__ = list(ACTIVATIONS)


def relu(input: Any, inplace: bool = False) -> Any:
    """x where positive, else 0; derivative 0 at 0. Any shape; ``inplace`` writes into ``input``.

    >>> import aotgrad as ag
    >>> ag.nn.functional.relu(ag.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """
    out = f.relu(input)
    return written(input, out, "relu_") if inplace else out


@composed("ThresholdBackward0")
def threshold(input: Any, threshold: float, value: float, inplace: bool = False) -> Any:
    """x where it is above ``threshold``, else ``value``."""
    return f.where(f.gt(input, threshold), input, value)


@composed("HardtanhBackward0")
def hardtanh(input: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Any:
    """x limited to [min_val, max_val]; derivative 0 at and beyond both ends.

    >>> import aotgrad as ag
    >>> ag.nn.functional.hardtanh(ag.tensor([-3.0, 0.5, 2.0]))
    tensor([-1.0000,  0.5000,  1.0000])
    """
    if min_val > max_val:
        raise AotgradArgumentError(f"hardtanh: min_val={min_val} is above max_val={max_val}")
    return f.where(f.le(input, min_val), min_val, f.where(f.ge(input, max_val), max_val, input))


def relu6(input: Any, inplace: bool = False) -> Any:
    """x limited to [0, 6]."""
    return hardtanh(input, 0.0, 6.0, inplace)


@composed("LeakyReluBackward0", floats=True)
def leaky_relu(input: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    """x where positive, else ``negative_slope`` times x (the slope is also the derivative at 0).

    >>> import aotgrad as ag
    >>> ag.nn.functional.leaky_relu(ag.tensor([-1.0, 2.0]), 0.1)
    tensor([-0.1000,  2.0000])
    """
    return f.where(f.gt(input, 0), input, f.mul(input, negative_slope))


def _exponential(input: Any, alpha: float, rate: float = 1.0) -> Any:
    below = f.where(f.gt(input, 0), 0.0, input)
    return f.where(f.gt(input, 0), input, f.mul(f.expm1(below if rate == 1 else f.mul(below, rate)), alpha))


@composed("EluBackward0", floats=True)
def elu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    """x where positive, else ``alpha * (exp(x) - 1)``.

    >>> import aotgrad as ag
    >>> ag.nn.functional.elu(ag.tensor([-1.0, 2.0]))
    tensor([-0.6321,  2.0000])
    """
    return _exponential(input, alpha)


@composed("CeluBackward0", floats=True)
def celu(input: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    """x where positive, else ``alpha * (exp(x / alpha) - 1)``."""
    if alpha == 0:
        raise AotgradArgumentError("celu: alpha must not be 0")
    return _exponential(input, alpha, 1.0 / alpha)


@composed("EluBackward0", floats=True)
def selu(input: Any, inplace: bool = False) -> Any:
    """``elu`` with the two constants that keep mean and variance of a deep network."""
    return f.mul(_exponential(input, _SELU_ALPHA), _SELU_SCALE)


@composed("SiluBackward0", floats=True)
def silu(input: Any, inplace: bool = False) -> Any:
    """``x * sigmoid(x)``.

    >>> import aotgrad as ag
    >>> ag.nn.functional.silu(ag.tensor([-1.0, 2.0]))
    tensor([-0.2689,  1.7616])
    """
    return f.mul(input, f.sigmoid(input))


@composed("MishBackward0", floats=True)
def mish(input: Any, inplace: bool = False) -> Any:
    """``x * tanh(softplus(x))``."""
    return f.mul(input, f.tanh(f.softplus(input)))


@composed("GeluBackward0", floats=True)
def gelu(input: Any, approximate: str = "none") -> Any:
    """``x * Phi(x)`` with the normal distribution's ``Phi``; ``approximate="tanh"`` is the formula with a hyperbolic tangent.

    >>> import aotgrad as ag
    >>> ag.nn.functional.gelu(ag.tensor([-1.0, 2.0]))
    tensor([-0.1587,  1.9545])
    """
    half = f.mul(input, 0.5)
    if approximate == "none":
        return f.mul(half, f.add(f.erf(f.mul(input, math.sqrt(0.5))), 1))
    if approximate != "tanh":
        raise AotgradArgumentError(f"gelu: approximate={approximate!r} must be 'none' or 'tanh'")
    inner = f.mul(f.add(input, f.mul(f.mul(f.square(input), input), 0.044715)), math.sqrt(2 / math.pi))
    return f.mul(half, f.add(f.tanh(inner), 1))


@composed("GluBackward0", floats=True)
def glu(input: Any, dim: int = -1) -> Any:
    """The first half along ``dim`` times the sigmoid of the second."""
    if len(input.shape) == 0:
        raise AotgradArgumentError("glu: a 0-d input has no halves")
    n = input.shape[norm_dim(dim, len(input.shape))]
    if n % 2 != 0:
        raise AotgradArgumentError(f"glu: the size along dim {dim} must be even, not {n}")
    return f.mul(f.narrow(input, dim, 0, n // 2), f.sigmoid(f.narrow(input, dim, n // 2, n // 2)))


@composed("HardsigmoidBackward0", floats=True)
def hardsigmoid(input: Any, inplace: bool = False) -> Any:
    """``relu6(x + 3) / 6``."""
    return f.div(hardtanh(f.add(input, 3), 0.0, 6.0), 6)


@composed("HardswishBackward0", floats=True)
def hardswish(input: Any, inplace: bool = False) -> Any:
    """``x * relu6(x + 3) / 6``."""
    return f.div(f.mul(input, hardtanh(f.add(input, 3), 0.0, 6.0)), 6)


@composed("LogSigmoidBackward0", floats=True)
def logsigmoid(input: Any) -> Any:
    """``log(sigmoid(x))``, right for all x."""
    return f.neg(f.softplus(f.neg(input)))


@composed("SoftplusBackward0", floats=True)
def softplus(input: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """``log(1 + exp(beta * x)) / beta``, and x itself where ``beta * x`` is above ``threshold``.

    >>> import aotgrad as ag
    >>> ag.nn.functional.softplus(ag.tensor([-1.0, 30.0]), beta=2)
    tensor([ 0.0635, 30.0000])
    """
    if beta == 1 and threshold == 20:
        return f.softplus(input)  # right beyond the threshold too, which is there for formulas that are not
    scaled = input if beta == 1 else f.mul(input, beta)
    out = f.softplus(scaled)
    return f.where(f.gt(scaled, threshold), input, out if beta == 1 else f.div(out, beta))


def softsign(input: Any) -> Any:
    """``x / (1 + |x|)``."""
    return f.div(input, f.add(f.abs(input), 1))


def tanhshrink(input: Any) -> Any:
    """``x - tanh(x)``."""
    return f.sub(input, f.tanh(input))


@composed("SoftshrinkBackward0", floats=True)
def softshrink(input: Any, lambd: float = 0.5) -> Any:
    """x moved towards 0 by ``lambd``, and 0 within that."""
    if lambd < 0:
        raise AotgradArgumentError(f"softshrink: lambd={lambd} is negative")
    return f.where(f.gt(input, lambd), f.sub(input, lambd), f.where(f.lt(input, -lambd), f.add(input, lambd), 0.0))


def _dim(name: str, input: Any, dim: int | None) -> int:
    """The dim of classes where none is given, as torch chooses it: 0 of vectors and of three dims, else 1."""
    if dim is not None:
        return dim
    chosen = 0 if rank(input) in (0, 1, 3) else 1
    notice(f"Implicit dimension choice for {name} has been deprecated. Change the call to include dim=X as an argument. It is dim={chosen} here.")
    return chosen


def softmax(input: Any, dim: int | None = None, dtype: Any = None) -> Any:
    """exp(x) / sum(exp(x)) along ``dim``. Without it a warning, and dim 0 of vectors and arrays of three dims, else 1.

    >>> import aotgrad as ag
    >>> ag.nn.functional.softmax(ag.tensor([[0.0, 0.0]]), dim=1)
    tensor([[0.5000, 0.5000]])
    """
    return f.softmax(input, _dim("softmax", input, dim), dtype)


def log_softmax(input: Any, dim: int | None = None, dtype: Any = None) -> Any:
    """The logarithm of ``softmax`` along ``dim``, of the input's shape; without ``dim`` torch's, with its warning."""
    return f.log_softmax(input, _dim("log_softmax", input, dim), dtype)


def softmin(input: Any, dim: int | None = None, dtype: Any = None) -> Any:
    """``softmax(-x)`` along ``dim``, of the input's shape; without ``dim`` torch's, with its warning."""
    return f.softmax(f.neg(input), _dim("softmin", input, dim), dtype)
