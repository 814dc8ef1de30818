"""RMSprop and Adagrad: steps divided by the root of what the squares of gradients were so far."""

from __future__ import annotations

from typing import Any

from aotgrad.frontend.factories import full_like, tensor, zeros_like
from aotgrad.frontend.ledger import get_item, ledger_of, set_item
from aotgrad.frontend.methods import FUNCTIONS as _f
from aotgrad_runtime.dtypes import float32
from aotgrad_runtime.tensor import Tensor

from .adam import _weak
from .optimizer import Optimizer, checked, is_zero

__all__ = ["Adagrad", "RMSprop"]


def _count(p: Any) -> Any:
    """A count of steps, 0."""
    return tensor(0.0, dtype=float32) if ledger_of() is None else _f["sum"](zeros_like(p)).float() * 0.0


class RMSprop(Optimizer):
    """Gradients over the root of a running mean of their squares (``alpha``); ``centered``: of their variance. ``momentum``, ``weight_decay`` and ``maximize`` as in SGD.

    >>> import aotgrad as ag
    >>> w = ag.tensor([1.0], requires_grad=True)
    >>> opt = ag.optim.RMSprop([w], lr=0.05)
    >>> (w * w).sum().backward(); opt.step(); w
    tensor([0.5000], requires_grad=True)
    """

    def __init__(self, params: Any, lr: float = 1e-2, alpha: float = 0.99, eps: float = 1e-8, weight_decay: float = 0, momentum: float = 0, centered: bool = False, *,
                 maximize: bool = False) -> None:
        checked(lr=lr, eps=eps, momentum=momentum, weight_decay=weight_decay, alpha=alpha)
        super().__init__(params, {"lr": lr, "momentum": momentum, "alpha": alpha, "eps": eps, "centered": centered, "weight_decay": weight_decay, "maximize": maximize})

    def _begin(self, p: Any, state: dict[str, Any], options: dict[str, Any]) -> None:
        set_item(state, "step", _count(p))
        more = [] if is_zero(options["momentum"]) else ["momentum_buffer"]
        for name in ("square_avg", *more, *(["grad_avg"] if options["centered"] else [])):
            set_item(state, name, zeros_like(p))

    def _update(self, p: Any, g: Any, state: dict[str, Any], options: dict[str, Any]) -> None:
        alpha, decay, momentum = options["alpha"], options["weight_decay"], options["momentum"]
        if get_item(state, "step") is None:
            self._begin(p, state, options)
        get_item(state, "step").add_(1)
        if options["maximize"]:
            g = -g
        if not is_zero(decay):
            g = g + p * decay
        square = get_item(state, "square_avg")
        square.mul_(alpha).add_(g * g * (1 - alpha))
        spread = square
        if options["centered"]:
            mean = get_item(state, "grad_avg")
            mean.add_((g - mean) * (1 - alpha))
            spread = square - mean * mean
        change = g / (spread.sqrt() + options["eps"])
        if not is_zero(momentum):
            buffer = get_item(state, "momentum_buffer")
            buffer.mul_(momentum).add_(change)
            change = buffer
        p.sub_(change * options["lr"])


class Adagrad(Optimizer):
    """Gradients over the root of the sum of their squares so far. ``lr_decay``: the rate falls as 1 / (1 + steps * lr_decay).

    >>> import aotgrad as ag
    >>> w = ag.tensor([1.0], requires_grad=True)
    >>> opt = ag.optim.Adagrad([w], lr=0.1)
    >>> (w * w).sum().backward(); opt.step(); w
    tensor([0.9000], requires_grad=True)
    """

    def __init__(self, params: Any, lr: float = 1e-2, lr_decay: float = 0, weight_decay: float = 0, initial_accumulator_value: float = 0, eps: float = 1e-10, *,
                 maximize: bool = False) -> None:
        checked(lr=lr, lr_decay=lr_decay, weight_decay=weight_decay, initial_accumulator_value=initial_accumulator_value, eps=eps)
        super().__init__(params, {"lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay, "initial_accumulator_value": initial_accumulator_value,
                                  "maximize": maximize})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters with options of their own; the sums of their squares start at ``initial_accumulator_value``."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for p in group["params"]:
            self.state[p].update(step=tensor(0.0, dtype=float32), sum=full_like(p, group["initial_accumulator_value"]))

    def _update(self, p: Any, g: Any, state: dict[str, Any], options: dict[str, Any]) -> None:
        decay, fall = options["weight_decay"], options["lr_decay"]
        if get_item(state, "step") is None:  # ``state`` was cleared
            set_item(state, "step", _count(p))
            set_item(state, "sum", zeros_like(p) + options["initial_accumulator_value"])
        step, square = get_item(state, "step"), get_item(state, "sum")
        step.add_(1)
        if options["maximize"]:
            g = -g
        if not is_zero(decay):
            g = g + p * decay
        square.add_(g * g)
        count = step.double() if isinstance(step, Tensor) and ledger_of() is not None else step.item()
        rate = options["lr"] if is_zero(fall) else _weak(options["lr"] / (1 + (count - 1) * fall))
        p.sub_(g / (square.sqrt() + options["eps"]) * rate)
