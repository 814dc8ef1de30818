"""Modules of the activations of ``nn.functional`` that have arguments of their own, or none."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

from aotgrad.frontend.factories import full

from . import functional
from .module import Module
from .parameter import Parameter

ACTIVATIONS = ("CELU", "ELU", "GELU", "GLU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU", "LogSigmoid", "Mish", "PReLU", "ReLU6", "SELU", "Softmin",
               "Softplus", "Softshrink", "Softsign", "Tanhshrink", "Threshold")
__all__ = list(ACTIVATIONS)


class _Activation(Module):
    """``function`` of ``nn.functional`` with arguments that are attributes: ``text`` is the signature."""

    function: ClassVar[str]
    text: ClassVar[str] = "()"
    _given: ClassVar[inspect.Signature]

    def __init_subclass__(cls) -> None:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        known = inspect.signature(getattr(functional, cls.function)).parameters
        names = [part.strip() for part in cls.text.strip("()").split(",") if part.strip()]
        cls._given = inspect.Signature([inspect.Parameter(n, kind, default=known[n].default) for n in names])
        cls.__signature__ = cls._given  # type: ignore[attr-defined]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        bound = self._given.bind(*args, **kwargs)
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            setattr(self, name, value)

    def forward(self, input: Any) -> Any:
        """The function of ``input``."""
        return getattr(functional, self.function)(input, **{n: getattr(self, n) for n in self._given.parameters})

    def extra_repr(self) -> str:
        return ", ".join(f"{n}={getattr(self, n)}" for n in self._given.parameters if n != "inplace" or self.inplace)


class CELU(_Activation):
    """``functional.celu``."""

    function, text = "celu", "(alpha, inplace)"


class ELU(_Activation):
    """``functional.elu``."""

    function, text = "elu", "(alpha, inplace)"


class GELU(_Activation):
    """``functional.gelu``.

    >>> import aotgrad as ag
    >>> ag.nn.GELU(approximate="tanh")
    GELU(approximate='tanh')
    """

    function, text = "gelu", "(approximate)"

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class GLU(_Activation):
    """``functional.glu``."""

    function, text = "glu", "(dim)"


class _Shrink(_Activation):
    function, text = "hardshrink", "(lambd)"

    def extra_repr(self) -> str:
        return str(self.lambd)


class Hardshrink(_Shrink):
    """``functional.hardshrink``."""


class Softshrink(_Shrink):
    """``functional.softshrink``."""

    function = "softshrink"


class Hardsigmoid(_Activation):
    """``functional.hardsigmoid``."""

    function, text = "hardsigmoid", "(inplace)"


class Hardswish(_Activation):
    """``functional.hardswish``."""

    function, text = "hardswish", "(inplace)"


class Hardtanh(_Activation):
    """``functional.hardtanh``."""

    function, text = "hardtanh", "(min_val, max_val, inplace)"


class LeakyReLU(_Activation):
    """``functional.leaky_relu``."""

    function, text = "leaky_relu", "(negative_slope, inplace)"


class LogSigmoid(_Activation):
    """``functional.logsigmoid``."""

    function = "logsigmoid"


class Mish(_Activation):
    """``functional.mish``."""

    function, text = "mish", "(inplace)"


class ReLU6(_Activation):
    """``functional.relu6``."""

    function, text = "relu6", "(inplace)"


class SELU(_Activation):
    """``functional.selu``."""

    function, text = "selu", "(inplace)"


class Softmin(_Activation):
    """``functional.softmin``."""

    function, text = "softmin", "(dim)"


class Softplus(_Activation):
    """``functional.softplus``: log(1 + exp(x)) for ``beta`` 1."""

    function, text = "softplus", "(beta, threshold)"


class Softsign(_Activation):
    """``functional.softsign``."""

    function = "softsign"


class Tanhshrink(_Activation):
    """``functional.tanhshrink``."""

    function = "tanhshrink"


class Threshold(_Activation):
    """``functional.threshold``."""

    function, text = "threshold", "(threshold, value, inplace)"


class PReLU(Module):
    """``functional.prelu`` with slopes that are learned: one, or one per channel; all begin at ``init``."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.num_parameters, self.init = num_parameters, init
        self.weight = Parameter(full((num_parameters,), float(init), device=device, dtype=dtype))

    def forward(self, input: Any) -> Any:
        """The function of ``input``."""
        return functional.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"
