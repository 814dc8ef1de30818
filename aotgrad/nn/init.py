"""First values of parameters, under torch.nn.init's names: each function fills a tensor in place, without a graph, and returns it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from aotgrad.frontend.boundary import guard
from aotgrad.frontend.factories import eye
from aotgrad_runtime import modes
from aotgrad_runtime.errors import AotgradValueError

__all__ = ["calculate_gain", "constant_", "eye_", "kaiming_normal_", "kaiming_uniform_", "normal_", "ones_", "uniform_", "xavier_normal_", "xavier_uniform_", "zeros_"]


@modes.intact
def _filled(tensor: Any, fill: Callable[[Any], Any]) -> Any:
    with modes.no_grad():
        fill(tensor)
    return tensor


def uniform_(tensor: Any, a: float = 0.0, b: float = 1.0, generator: Any = None) -> Any:
    """Uniform in [a, b)."""
    return _filled(tensor, lambda x: x.uniform_(a, b, generator=generator))


def normal_(tensor: Any, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Any:
    """Normal with this mean and standard deviation."""
    return _filled(tensor, lambda x: x.normal_(mean, std, generator=generator))


def constant_(tensor: Any, val: float) -> Any:
    """One number."""
    return _filled(tensor, lambda x: x.fill_(val))


def ones_(tensor: Any) -> Any:
    """Ones."""
    return constant_(tensor, 1.0)


def zeros_(tensor: Any) -> Any:
    """Zeros."""
    return constant_(tensor, 0.0)


def eye_(tensor: Any) -> Any:
    """Ones on the diagonal of a matrix, zeros elsewhere."""
    if len(tensor.shape) != 2:
        raise AotgradValueError("Only tensors with 2 dimensions are supported")
    return _filled(tensor, lambda x: x.copy_(eye(*x.shape)))


_GAINS = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5.0 / 3, "relu": math.sqrt(2.0), "selu": 0.75,
          **{f"conv{transposed}{n}d": 1.0 for n in (1, 2, 3) for transposed in ("", "_transpose")}}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor that keeps the spread of values through a function: of ``leaky_relu`` with the slope ``param``, 0.01 by default.

    >>> import aotgrad as ag
    >>> ag.nn.init.calculate_gain("leaky_relu", 1.0)
    1.0
    """
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        if isinstance(slope, (bool, str)):
            raise AotgradValueError(f"negative_slope {param} not a valid number")
        return math.sqrt(2.0 / (1 + slope**2))
    if nonlinearity not in _GAINS:
        raise AotgradValueError(f"Unsupported nonlinearity {nonlinearity}; there are {', '.join([*_GAINS, 'leaky_relu'])}")
    return _GAINS[nonlinearity]


def _fans(tensor: Any) -> tuple[int, int]:
    """How many numbers an output of the weight is made of, and how many outputs an input is in."""
    if len(tensor.shape) < 2:
        raise AotgradValueError("Fan in and fan out can not be computed for tensor with fewer than 2 dimensions")
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


def xavier_uniform_(tensor: Any, gain: float = 1.0, generator: Any = None) -> Any:
    """Uniform within ``gain * sqrt(6 / (fan_in + fan_out))``."""
    bound = gain * math.sqrt(6.0 / sum(_fans(tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Any, gain: float = 1.0, generator: Any = None) -> Any:
    """Normal with the deviation ``gain * sqrt(2 / (fan_in + fan_out))``."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(_fans(tensor))), generator)


def _deviation(tensor: Any, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise AotgradValueError(f"Mode {mode} not supported, please use one of ['fan_in', 'fan_out']")
    return calculate_gain(nonlinearity, a) / math.sqrt(_fans(tensor)[mode == "fan_out"])


def kaiming_uniform_(tensor: Any, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", generator: Any = None) -> Any:
    """Uniform within ``gain * sqrt(3 / fan)``, with the gain of ``nonlinearity`` (of slope ``a``)."""
    if 0 in tensor.shape:
        return tensor
    bound = math.sqrt(3.0) * _deviation(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(tensor: Any, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", generator: Any = None) -> Any:
    """Normal with the deviation ``gain / sqrt(fan)``, with the gain of ``nonlinearity`` (of slope ``a``)."""
    return tensor if 0 in tensor.shape else normal_(tensor, 0.0, _deviation(tensor, a, mode, nonlinearity), generator)


guard(globals(), __all__)
