"""Helpers of training, under torch.nn.utils's names."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from aotgrad.frontend.boundary import guard
from aotgrad.frontend.factories import tensor
from aotgrad_runtime import modes
from aotgrad_runtime.errors import AotgradRuntimeError, AotgradTypeError
from aotgrad_runtime.tensor import Tensor

from ._shared import f

__all__ = ["clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm", "parameters_to_vector", "vector_to_parameters"]


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
    total = get_total_norm(grads, norm_type, error_if_nonfinite)
    _clip(grads, max_norm, total)
    return total


@modes.intact
def get_total_norm(tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False) -> Any:
    """The norm of all tensors as one vector, a tensor. Raises ``AotgradRuntimeError`` with ``error_if_nonfinite`` where it is no finite number.

    >>> import aotgrad as ag
    >>> ag.nn.utils.get_total_norm([ag.tensor([3.0]), ag.tensor([[4.0]])])
    tensor(5.)
    """
    given = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    if not given:
        return tensor(0.0)
    with modes.no_grad():
        total = f.norm(f.stack([f.norm(g, float(norm_type)) for g in given]), float(norm_type))
        if error_if_nonfinite and not math.isfinite(total):
            raise AotgradRuntimeError(f"The total norm of order {norm_type} for gradients is non-finite, so it cannot be clipped. To disable this error and "
                                      "scale the gradients by the non-finite norm anyway, set `error_if_nonfinite=False`")
    return total


def _clip(grads: list[Any], max_norm: float, total: Any) -> None:
    with modes.no_grad():
        factor = f.clamp(max_norm / (total + 1e-6), max=1.0)
        for g in grads:
            g.mul_(factor)


@modes.intact
def clip_grads_with_norm_(parameters: Any, max_norm: float, total_norm: Any) -> None:
    """Scales the gradients in place to ``max_norm`` where ``total_norm``, which ``get_total_norm`` gave, is larger."""
    _clip(_grads(parameters), max_norm, total_norm)


def parameters_to_vector(parameters: Iterable[Any]) -> Any:
    """All parameters one after the other, as one vector.

    >>> import aotgrad as ag
    >>> ag.nn.utils.parameters_to_vector([ag.ones(2), ag.zeros(1, 2)])
    tensor([1., 1., 0., 0.])
    """
    return f.cat([f.reshape(p, (-1,)) for p in parameters])


def vector_to_parameters(vec: Any, parameters: Iterable[Any]) -> None:
    """The parameters become views of ``vec``, in order (their ``data`` is set). Raises ``AotgradTypeError`` where it is no tensor."""
    if not isinstance(vec, Tensor):
        raise AotgradTypeError(f"vector_to_parameters: vec must be a tensor, not {type(vec).__name__}; ag.as_tensor makes one")
    at = 0
    for p in parameters:
        n = p.numel()
        p.data = vec[at:at + n].view_as(p).data
        at += n


@modes.intact
def clip_grad_value_(parameters: Any, clip_value: float) -> None:
    """Every number of the gradients is brought into [-clip_value, clip_value], in place."""
    with modes.no_grad():
        for g in _grads(parameters):
            g.clamp_(-clip_value, clip_value)


guard(globals(), __all__)
