"""Modules of normalisations and of embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aotgrad.frontend.factories import ones, zeros
from aotgrad.frontend.randoms import randn
from aotgrad_runtime import modes
from aotgrad_runtime.errors import AotgradNotImplementedError, AotgradValueError

from . import functional
from .module import Module
from .parameter import Parameter

__all__ = ["Embedding", "GroupNorm", "LayerNorm", "RMSNorm"]


class _Norm(Module):
    """``weight`` begins at 1, ``bias`` at 0; either may be None."""

    def _make(self, shape: Sequence[int], weight: bool, bias: bool, device: Any, dtype: Any) -> None:
        for name, on, make in (("weight", weight, ones), ("bias", bias, zeros)):
            self.register_parameter(name, Parameter(make(*shape, device=device, dtype=dtype)) if on else None)


def _sizes(normalized_shape: Any) -> tuple[int, ...]:
    return tuple(normalized_shape) if isinstance(normalized_shape, Sequence) else (normalized_shape,)


class LayerNorm(_Norm):
    """``functional.layer_norm`` over the last dims, with ``weight`` and ``bias`` of their shape.

    >>> import aotgrad as ag
    >>> ag.nn.LayerNorm(3)
    LayerNorm((3,), eps=1e-05, elementwise_affine=True, bias=True)
    """

    def __init__(self, normalized_shape: Any, eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.normalized_shape, self.eps, self.elementwise_affine = _sizes(normalized_shape), eps, elementwise_affine
        self._make(self.normalized_shape, elementwise_affine, elementwise_affine and bias, device, dtype)

    def forward(self, input: Any) -> Any:
        """``input`` normalised."""
        return functional.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, bias={self.bias is not None}"


class RMSNorm(_Norm):
    """``functional.rms_norm`` over the last dims, with ``weight`` of their shape."""

    def __init__(self, normalized_shape: Any, eps: float | None = None, elementwise_affine: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.normalized_shape, self.eps, self.elementwise_affine = _sizes(normalized_shape), eps, elementwise_affine
        self.register_parameter("weight", Parameter(ones(*self.normalized_shape, device=device, dtype=dtype)) if elementwise_affine else None)

    def forward(self, input: Any) -> Any:
        """``input`` normalised."""
        return functional.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(_Norm):
    """``functional.group_norm`` of (N, C, ...), with ``weight`` and ``bias`` by channel."""

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, device: Any = None, dtype: Any = None, *, bias: bool = True) -> None:
        super().__init__()
        if num_channels % num_groups != 0:
            raise AotgradValueError(f"num_channels ({num_channels}) must be divisible by num_groups ({num_groups})")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self._make((num_channels,), affine, affine and bias, device, dtype)

    def forward(self, input: Any) -> Any:
        """``input`` normalised."""
        return functional.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, bias={self.bias is not None}"


@modes.intact
def _clear(weight: Any, row: int) -> None:
    with modes.no_grad():
        weight[row] = 0.0


class Embedding(Module):
    """``functional.embedding``: rows of ``weight`` (num_embeddings, embedding_dim), which begin normal. The row ``padding_idx`` begins at 0 and gets no gradient.

    >>> import aotgrad as ag
    >>> ag.nn.Embedding(5, 3)(ag.tensor([[0, 4]])).shape
    aotgrad.Size([1, 2, 3])
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, max_norm: float | None = None, norm_type: float = 2.0,
                 scale_grad_by_freq: bool = False, sparse: bool = False, *, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        if max_norm is not None or scale_grad_by_freq or sparse:
            raise AotgradNotImplementedError("Embedding: max_norm, scale_grad_by_freq and sparse are not available; scale rows and gradients by hand")
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise AotgradValueError(f"Embedding: padding_idx={padding_idx} must be within num_embeddings={num_embeddings}")
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.weight = Parameter(randn(num_embeddings, embedding_dim, device=device, dtype=dtype))
        if self.padding_idx is not None:
            _clear(self.weight, self.padding_idx)

    @classmethod
    def from_pretrained(cls, embeddings: Any, freeze: bool = True, padding_idx: int | None = None) -> Embedding:
        """A module on the rows that are given; they are not learned where ``freeze``."""
        rows, size = embeddings.shape
        made = cls(rows, size, padding_idx, dtype=embeddings.dtype)
        made.weight = Parameter(embeddings, requires_grad=not freeze)
        return made

    def forward(self, input: Any) -> Any:
        """The rows at ``input``."""
        return functional.embedding(input, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}" + (f", padding_idx={self.padding_idx}" if self.padding_idx is not None else "")
