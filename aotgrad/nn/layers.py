"""Modules with an equation: linear maps, activations without arguments, dropout, flattening."""

from __future__ import annotations

import math
from typing import Any

from aotgrad.frontend.factories import empty
from aotgrad.frontend.methods import FUNCTIONS as _f
from aotgrad.frontend.randoms import rand
from aotgrad_runtime import modes
from aotgrad_runtime.errors import AotgradValueError

from . import functional
from .module import Module
from .parameter import Parameter

__all__ = ["Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "Flatten", "Linear", "LogSoftmax", "ReLU", "Sigmoid", "SiLU", "Softmax", "Tanh"]


@modes.intact
def _uniform(shape: tuple[int, ...], bound: float, dtype: Any, device: Any) -> Any:
    out = empty(*shape, dtype=dtype, device=device)
    with modes.no_grad():
        out.copy_((rand(*shape, dtype=dtype) * 2.0 - 1.0) * bound)
    return out


class Linear(Module):
    """``input @ weight.T + bias``: (..., in_features) to (..., out_features). ``weight`` is (out_features, in_features), ``bias`` (out_features) or None; both begin
    uniform in ±1/sqrt(in_features).

    >>> import aotgrad as ag
    >>> ag.nn.Linear(3, 2)(ag.ones(4, 3)).shape
    aotgrad.Size([4, 2])
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        bound = 1.0 / math.sqrt(in_features) if in_features else 0.0
        self.weight = Parameter(_uniform((out_features, in_features), bound, dtype, device))
        if bias:
            self.bias = Parameter(_uniform((out_features,), bound, dtype, device))
        else:
            self.register_parameter("bias", None)

    def forward(self, input: Any) -> Any:
        """The map."""
        return functional.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Flatten(Module):
    """Dims ``start_dim`` to ``end_dim`` become one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: Any) -> Any:
        """The flat tensor."""
        return _f["flatten"](input, self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Dropout(Module):
    """In training, each element becomes 0 with probability ``p``, and the others are divided by ``1 - p``; in evaluation nothing happens."""

    function = "dropout"

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0.0 <= p <= 1.0:
            raise AotgradValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        self.p, self.inplace = p, inplace

    def forward(self, input: Any) -> Any:
        """The tensor, thinned out in training."""
        return getattr(functional, self.function)(input, self.p, self.training, self.inplace)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout1d(Dropout):
    """``Dropout`` of whole channels of (N, C, L) or (C, L)."""

    function = "dropout1d"


class Dropout2d(Dropout):
    """``Dropout`` of whole channels of (N, C, H, W)."""

    function = "dropout2d"


class Dropout3d(Dropout):
    """``Dropout`` of whole channels of (N, C, D, H, W) or (C, D, H, W)."""

    function = "dropout3d"


class _Activation(Module):
    """An elementwise function."""

    function = ""

    def forward(self, input: Any) -> Any:
        """The function of every element."""
        return _f[self.function](input)


class Tanh(_Activation):
    """tanh."""

    function = "tanh"


class Sigmoid(_Activation):
    """1 / (1 + exp(-x))."""

    function = "sigmoid"


class _InPlace(Module):
    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""

    def _put(self, input: Any, out: Any) -> Any:
        return input.copy_(out) if self.inplace else out


class ReLU(_InPlace):
    """max(x, 0)."""

    def forward(self, input: Any) -> Any:
        """The function of every element."""
        return self._put(input, _f["relu"](input))


class SiLU(_InPlace):
    """x * sigmoid(x)."""

    def forward(self, input: Any) -> Any:
        """The function of every element."""
        return self._put(input, input * _f["sigmoid"](input))


class _Normalised(Module):
    function = ""

    def __init__(self, dim: int | None = None) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, input: Any) -> Any:
        """The function along ``dim``."""
        return getattr(functional, self.function)(input, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class Softmax(_Normalised):
    """exp(x) over its sum along ``dim``."""

    function = "softmax"


class LogSoftmax(_Normalised):
    """The logarithm of softmax along ``dim``."""

    function = "log_softmax"
