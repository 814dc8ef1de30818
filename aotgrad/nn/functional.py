"""Functions of torch.nn.functional: from the op registry, and composites of those. Tensors, traced values and NumPy arrays are accepted."""

from __future__ import annotations

import inspect as _inspect
from collections.abc import Callable as _Callable
from typing import Any

from aotgrad.frontend.boundary import guard as _guard
from aotgrad.frontend.dispatch import TORCH as _TORCH
from aotgrad.frontend.further import hardshrink, prelu
from aotgrad.frontend.methods import FUNCTIONS as _FUNCTIONS
from aotgrad.frontend.sizes import fitting_sizes as _fitting_sizes
from aotgrad.frontend.trace import TracedTensor as _TracedTensor
from aotgrad_runtime.errors import AotgradAttributeError, AotgradRuntimeError
from aotgrad_runtime.tensor import Tensor

from ._activations import (
    celu,
    elu,
    gelu,
    glu,
    hardsigmoid,
    hardswish,
    hardtanh,
    leaky_relu,
    log_softmax,
    logsigmoid,
    mish,
    relu,
    relu6,
    selu,
    silu,
    softmax,
    softmin,
    softplus,
    softshrink,
    softsign,
    tanhshrink,
    threshold,
)
from ._attention import scaled_dot_product_attention
from ._losses import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cross_entropy,
    huber_loss,
    kl_div,
    l1_loss,
    mse_loss,
    nll_loss,
    smooth_l1_loss,
)
from ._norms import (
    batch_norm,
    cosine_similarity,
    dropout,
    dropout1d,
    dropout2d,
    dropout3d,
    embedding,
    group_norm,
    instance_norm,
    layer_norm,
    normalize,
    one_hot,
    pairwise_distance,
    rms_norm,
)

__all__ = [
    "batch_norm", "binary_cross_entropy", "binary_cross_entropy_with_logits", "celu", "cosine_similarity", "cross_entropy", "dropout", "dropout1d", "dropout2d",
    "dropout3d", "elu", "embedding", "gelu", "glu", "group_norm", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "huber_loss", "instance_norm", "kl_div",
    "l1_loss", "layer_norm", "leaky_relu", "linear", "log_softmax", "logsigmoid", "mish", "mse_loss", "nll_loss", "normalize", "one_hot", "pairwise_distance",
    "prelu", "relu", "relu6", "rms_norm", "scaled_dot_product_attention", "selu", "silu", "smooth_l1_loss", "softmax", "softmin", "softplus", "softshrink",
    "softsign", "tanhshrink", "threshold",
]

_KINDS = (Tensor, _TracedTensor)
_REGISTERED = {name: _FUNCTIONS[name] for name, public in _TORCH.items() if public.op.front is not None and public.op.front.functional and name not in __all__}
_REGISTERED.update({name: _FUNCTIONS[name] for name in ("sigmoid", "tanh")})
globals().update(_REGISTERED)


def _in_place(function: _Callable[..., Any]) -> _Callable[..., Any]:
    def fn(input: Any, *args: Any, **kwargs: Any) -> Any:
        return function(input, *args, inplace=True, **kwargs)

    fn.__name__ = fn.__qualname__ = f"{function.__name__}_"
    fn.__doc__ = f"``{function.__name__}``, written into ``input``."
    given = _inspect.signature(function)
    fn.__signature__ = given.replace(parameters=[p for p in given.parameters.values() if p.name != "inplace"])  # type: ignore[attr-defined]
    return fn


_IN_PLACE = {f"{f.__name__}_": _in_place(f) for f in (celu, elu, hardtanh, leaky_relu, relu, selu, threshold)}
globals().update(_IN_PLACE)
__all__ += sorted(_IN_PLACE)
__all__ += sorted(_REGISTERED)


def __getattr__(name: str) -> Any:
    raise AotgradAttributeError(f"aotgrad.nn.functional has no function {name!r}; docs/supported.md lists those that there are")


def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """``input @ weight.T + bias``: input (..., in), weight (out, in), bias (out).

    >>> import aotgrad as ag
    >>> ag.nn.functional.linear(ag.tensor([1.0, 2.0]), ag.tensor([[3.0, 4.0]]))
    tensor([11.])
    """
    if bias is not None and len(weight.shape) == 1 and (len(input.shape) < 3 or len(bias.shape) > 0):
        raise AotgradRuntimeError("linear: with a bias the weight must be a matrix (mat2 must be a matrix, got 1-D tensor)")
    if type(bias) in _KINDS and type(weight) in _KINDS and type(input) in _KINDS and len(input.shape) == 2 and bias._dtype is input._dtype:
        return _FUNCTIONS["addmm"](bias, input, _FUNCTIONS["t"](weight))
    out = _FUNCTIONS["matmul"](input, _FUNCTIONS["t"](weight))
    if bias is None:
        return out
    if len(bias.shape) > len(out.shape):
        raise AotgradRuntimeError(f"linear: the bias has {len(bias.shape)} dims, the output {len(out.shape)}: it would grow")
    for own, size in zip(reversed(bias.shape), reversed(out.shape)):
        if not _fitting_sizes(own, size):
            raise AotgradRuntimeError(f"linear: a bias of size {int(own)} does not fit an output of size {int(size)}")
    return _FUNCTIONS["add"](out, bias)


_guard(globals(), __all__)
