"""Adam, with weight decay in the gradient or apart from it."""

from __future__ import annotations

from typing import Any

from aotgrad.frontend.factories import tensor, zeros_like
from aotgrad.frontend.ledger import get_item, ledger_of, set_item
from aotgrad.frontend.methods import FUNCTIONS as _f
from aotgrad_runtime.dtypes import float32
from aotgrad_runtime.errors import AotgradValueError
from aotgrad_runtime.tensor import Tensor

from .optimizer import Optimizer, checked, is_zero

__all__ = ["Adam", "AdamW"]


def _power(base: Any, step: Any) -> Any:
    """base ** step in double precision."""
    return base ** step.double() if isinstance(base, Tensor) else base ** step.item()


class Adam(Optimizer):
    """Adam: running means of gradients and of their squares. ``weight_decay`` is added to the gradient; ``amsgrad`` divides by the largest mean of squares so far.

    >>> import aotgrad as ag
    >>> w = ag.tensor([1.0], requires_grad=True)
    >>> opt = ag.optim.Adam([w], lr=0.1)
    >>> (w * w).sum().backward(); opt.step(); w
    tensor([0.9000], requires_grad=True)
    """

    apart = False

    def __init__(self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0, amsgrad: bool = False, *,
                 maximize: bool = False) -> None:
        checked(lr=lr, eps=eps, weight_decay=weight_decay)
        for i, beta in enumerate(betas):
            if not 0.0 <= beta < 1.0:
                raise AotgradValueError(f"Invalid beta parameter at index {i}: {beta}")
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad, "maximize": maximize})

    def _begin(self, p: Any, state: dict[str, Any], amsgrad: bool) -> None:
        set_item(state, "step", tensor(0.0, dtype=float32) if ledger_of() is None else _f["sum"](zeros_like(p)).float() * 0.0)
        for name in ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if amsgrad else ())):
            set_item(state, name, zeros_like(p))

    def _update(self, p: Any, g: Any, state: dict[str, Any], options: dict[str, Any]) -> None:
        (beta1, beta2), lr, decay, amsgrad = options["betas"], options["lr"], options["weight_decay"], options["amsgrad"]
        if options["maximize"]:
            g = -g
        if get_item(state, "step") is None:
            self._begin(p, state, amsgrad)
        step, mean, square = (get_item(state, name) for name in ("step", "exp_avg", "exp_avg_sq"))
        step.add_(1)
        if not is_zero(decay):
            if self.apart:
                p.mul_(1 - lr * decay)
            else:
                g = g + p * decay
        mean.add_((g - mean) * (1 - beta1))
        square.mul_(beta2).add_(g * g * (1 - beta2))
        correction1, correction2 = 1 - _power(beta1, step), 1 - _power(beta2, step)
        if amsgrad:
            largest = get_item(state, "max_exp_avg_sq")
            largest.copy_(_f["maximum"](largest, square))
            square = largest
        root = correction2 ** 0.5
        below = square.sqrt() / _weak(root) + options["eps"]
        p.sub_(mean / below * _weak(lr / correction1))


def _weak(x: Any) -> Any:
    """A number that does not decide dtypes."""
    if isinstance(x, Tensor):
        x._weak = True
    return x


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameters themselves, apart from the gradient.

    >>> import aotgrad as ag
    >>> w = ag.tensor([1.0], requires_grad=True)
    >>> opt = ag.optim.AdamW([w], lr=0.1, weight_decay=0.5)
    >>> (w * w).sum().backward(); opt.step(); w
    tensor([0.8500], requires_grad=True)
    """

    apart = True

    def __init__(self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 1e-2, amsgrad: bool = False, *,
                 maximize: bool = False) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)
