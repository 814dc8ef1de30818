"""Helpers of training, under torch.nn.utils's names."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from aotgrad.frontend.boundary import guard
from aotgrad.frontend.factories import tensor
from aotgrad_runtime import modes
from aotgrad_runtime.errors import AotgradRuntimeError
from aotgrad_runtime.tensor import Tensor

from ._shared import f

__all__ = ["clip_grad_norm_", "clip_grad_value_"]


def _grads(parameters: Any) -> list[Any]:
    given: Iterable[Any] = [parameters] if isinstance(parameters, Tensor) else parameters
    return [g for g in (p.grad for p in given) if g is not None]


@modes.intact
def clip_grad_norm_(parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False) -> Any:
    """The norm of all gradients as one vector, which are scaled in place to ``max_norm`` where it is larger.

    >>> import aotgrad as ag
    >>> w = ag.tensor([3.0, 4.0], requires_grad=True)
    >>> (w * w).sum().backward()
    >>> ag.nn.utils.clip_grad_norm_([w], 5.0)
    tensor(10.)
    """
    grads = _grads(parameters)
    if not grads:
        return tensor(0.0)
    with modes.no_grad():
        total = f.norm(f.stack([f.norm(g, float(norm_type)) for g in grads]), float(norm_type))
        if error_if_nonfinite and not math.isfinite(total):
            raise AotgradRuntimeError(f"The total norm of order {norm_type} for gradients is non-finite, so it cannot be clipped. To disable this error and "
                                      "scale the gradients by the non-finite norm anyway, set `error_if_nonfinite=False`")
        factor = f.clamp(max_norm / (total + 1e-6), max=1.0)
        for g in grads:
            g.mul_(factor)
    return total


@modes.intact
def clip_grad_value_(parameters: Any, clip_value: float) -> None:
    """Every number of the gradients is brought into [-clip_value, clip_value], in place."""
    with modes.no_grad():
        for g in _grads(parameters):
            g.clamp_(-clip_value, clip_value)


guard(globals(), __all__)
