"""Modules of the losses of ``nn.functional``. Their ``reduction`` is "mean", "sum" or "none"; a ``weight`` is part of the state, and not learned."""

from __future__ import annotations

from typing import Any

from . import functional
from .module import Module

__all__ = ["BCELoss", "BCEWithLogitsLoss", "CrossEntropyLoss", "HuberLoss", "KLDivLoss", "L1Loss", "MSELoss", "NLLLoss", "SmoothL1Loss"]


class _Loss(Module):
    function = ""
    settings: tuple[str, ...] = ()  # further arguments of the function, which are attributes

    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return getattr(functional, self.function)(input, target, reduction=self.reduction, **{n: getattr(self, n) for n in self.settings})


class MSELoss(_Loss):
    """``functional.mse_loss``."""

    function = "mse_loss"


class L1Loss(_Loss):
    """``functional.l1_loss``."""

    function = "l1_loss"


class SmoothL1Loss(_Loss):
    """``functional.smooth_l1_loss``."""

    function, settings = "smooth_l1_loss", ("beta",)

    def __init__(self, *, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction=reduction)
        self.beta = beta


class HuberLoss(_Loss):
    """``functional.huber_loss``."""

    function, settings = "huber_loss", ("delta",)

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction=reduction)
        self.delta = delta


class KLDivLoss(_Loss):
    """``functional.kl_div``."""

    function, settings = "kl_div", ("log_target",)

    def __init__(self, *, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction=reduction)
        self.log_target = log_target


class _Weighted(_Loss):
    settings: tuple[str, ...] = ("weight",)

    def __init__(self, weight: Any = None, *, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)
        self.register_buffer("weight", weight)


class BCELoss(_Weighted):
    """``functional.binary_cross_entropy``."""

    function = "binary_cross_entropy"


class BCEWithLogitsLoss(_Weighted):
    """``functional.binary_cross_entropy_with_logits``."""

    function, settings = "binary_cross_entropy_with_logits", ("weight", "pos_weight")

    def __init__(self, weight: Any = None, *, reduction: str = "mean", pos_weight: Any = None) -> None:
        super().__init__(weight, reduction=reduction)
        self.register_buffer("pos_weight", pos_weight)


class NLLLoss(_Weighted):
    """``functional.nll_loss``."""

    function, settings = "nll_loss", ("weight", "ignore_index")

    def __init__(self, weight: Any = None, *, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__(weight, reduction=reduction)
        self.ignore_index = ignore_index


class CrossEntropyLoss(_Weighted):
    """``functional.cross_entropy``."""

    function, settings = "cross_entropy", ("weight", "ignore_index", "label_smoothing")

    def __init__(self, weight: Any = None, *, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0) -> None:
        super().__init__(weight, reduction=reduction)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing
