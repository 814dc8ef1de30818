"""Modules with an equation: linear maps, activations, dropout, flattening, losses."""

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

__all__ = ["CrossEntropyLoss", "Dropout", "Flatten", "Linear", "LogSoftmax", "MSELoss", "NLLLoss", "ReLU", "Sigmoid", "SiLU", "Softmax", "Softplus", "Tanh"]


@modes.intact
def _uniform(shape: tuple[int, ...], bound: float, dtype: Any) -> Any:
    out = empty(*shape, dtype=dtype)
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
        self.weight = Parameter(_uniform((out_features, in_features), bound, dtype))
        if bias:
            self.bias = Parameter(_uniform((out_features,), bound, dtype))
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

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0.0 <= p <= 1.0:
            raise AotgradValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        self.p, self.inplace = p, inplace

    def forward(self, input: Any) -> Any:
        """The tensor, thinned out in training."""
        return functional.dropout(input, self.p, self.training, self.inplace)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


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


class Softplus(_Activation):
    """log(1 + exp(x))."""

    function = "softplus"

    def extra_repr(self) -> str:
        return "beta=1.0, threshold=20.0"


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

    extra_repr = Module.extra_repr


class _Loss(Module):
    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction


class MSELoss(_Loss):
    """Squared differences: their mean, their sum, or all of them."""

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return functional.mse_loss(input, target, reduction=self.reduction)


class CrossEntropyLoss(_Loss):
    """See ``functional.cross_entropy``."""

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return functional.cross_entropy(input, target, reduction=self.reduction)


class NLLLoss(_Loss):
    """See ``functional.nll_loss``."""

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return functional.nll_loss(input, target, reduction=self.reduction)


