"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Any

from aotgrad.frontend.ledger import get_item, set_item
from aotgrad_runtime.errors import AotgradValueError

from .optimizer import Optimizer, checked, is_zero

__all__ = ["SGD"]


class SGD(Optimizer):
    """Gradient descent, with ``momentum`` (and ``dampening``, ``nesterov``), ``weight_decay`` added to the gradient, and ``maximize``: torch's numbers, step by step.

    >>> import aotgrad as ag
    >>> w = ag.tensor([1.0], requires_grad=True)
    >>> opt = ag.optim.SGD([w], lr=0.1)
    >>> (w * w).sum().backward(); opt.step(); w
    tensor([0.8000], requires_grad=True)
    """

    def __init__(self, params: Any, lr: float = 1e-3, momentum: float = 0, dampening: float = 0, weight_decay: float = 0, nesterov: bool = False, *,
                 maximize: bool = False) -> None:
        checked(lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise AotgradValueError("Nesterov momentum requires a momentum and zero dampening")
        super().__init__(params, {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay, "nesterov": nesterov, "maximize": maximize})

    def _update(self, p: Any, g: Any, state: dict[str, Any], options: dict[str, Any]) -> None:
        momentum, decay = options["momentum"], options["weight_decay"]
        if options["maximize"]:
            g = -g
        if not is_zero(decay):
            g = g + p * decay
        if not is_zero(momentum):
            buffer = get_item(state, "momentum_buffer")
            if buffer is None:
                buffer = g.clone()
                set_item(state, "momentum_buffer", buffer)
            else:
                buffer.mul_(momentum).add_(g * (1 - options["dampening"]))
            g = g + buffer * momentum if options["nesterov"] else buffer
        p.sub_(g * options["lr"])
