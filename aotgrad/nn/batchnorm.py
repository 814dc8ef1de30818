"""Modules of normalisations with statistics by channel, which they may keep."""

from __future__ import annotations

from typing import Any

from aotgrad.frontend.factories import ones, tensor, zeros
from aotgrad.frontend.notices import notice
from aotgrad_runtime import modes
from aotgrad_runtime.dtypes import int64
from aotgrad_runtime.errors import AotgradValueError

from . import functional
from .normalization import _Norm

__all__ = ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"]


class _Kept(_Norm):
    """``weight`` begins at 1, ``bias`` at 0; ``running_mean``, ``running_var`` and ``num_batches_tracked`` are buffers where statistics are kept."""

    ranks: tuple[int, ...] = ()

    def __init__(self, num_features: int, eps: float, momentum: float | None, affine: bool, track_running_stats: bool, device: Any, dtype: Any, bias: bool) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum, self.affine, self.track_running_stats = num_features, eps, momentum, affine, track_running_stats
        self._make((num_features,), affine, affine and bias, device, dtype)
        kept = {"running_mean": zeros(num_features, device=device, dtype=dtype), "running_var": ones(num_features, device=device, dtype=dtype),
                "num_batches_tracked": tensor(0, dtype=int64)}
        for name, value in kept.items():
            self.register_buffer(name, value if track_running_stats else None)

    @modes.intact
    def reset_running_stats(self) -> None:
        """Statistics as of a new module."""
        if self.track_running_stats:
            with modes.no_grad():
                self.running_mean.zero_()
                self.running_var.fill_(1)
                self.num_batches_tracked.zero_()

    def _check_rank(self, input: Any) -> None:
        if len(input.shape) not in self.ranks:
            raise AotgradValueError(f"expected {' or '.join(f'{r}D' for r in self.ranks)} input (got {len(input.shape)}D input)")

    def extra_repr(self) -> str:
        return (f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, bias={self.bias is not None}, "
                f"track_running_stats={self.track_running_stats}")


class _Batch(_Kept):
    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True, track_running_stats: bool = True, device: Any = None,
                 dtype: Any = None, *, bias: bool = True) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias)

    def forward(self, input: Any) -> Any:
        """``input`` normalised: by its own statistics in training, or where none are kept, else by those that are kept."""
        self._check_rank(input)
        factor: Any = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:  # the mean over all batches
                factor = 1.0 / self.num_batches_tracked.double()
        own = self.training or self.running_mean is None and self.running_var is None
        keeps = not self.training or self.track_running_stats
        return functional.batch_norm(input, self.running_mean if keeps else None, self.running_var if keeps else None, self.weight, self.bias, own, factor, self.eps)


class BatchNorm1d(_Batch):
    """``functional.batch_norm`` of (N, C) or (N, C, L), with ``weight`` and ``bias`` by channel."""

    ranks = (2, 3)


class BatchNorm2d(_Batch):
    """``functional.batch_norm`` of (N, C, H, W), with ``weight`` and ``bias`` by channel. Images stay channels_last where they are.

    >>> import aotgrad as ag
    >>> norm = ag.nn.BatchNorm2d(3)
    >>> norm(ag.ones(2, 3, 4, 4)).shape, norm.running_mean
    (aotgrad.Size([2, 3, 4, 4]), tensor([0.1000, 0.1000, 0.1000]))
    """

    ranks = (4,)


class BatchNorm3d(_Batch):
    """``functional.batch_norm`` of (N, C, D, H, W), with ``weight`` and ``bias`` by channel."""

    ranks = (5,)


class _Instance(_Kept):
    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False, track_running_stats: bool = False, device: Any = None,
                 dtype: Any = None, *, bias: bool = True) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias)

    def forward(self, input: Any) -> Any:
        """``input`` normalised, each example for itself."""
        self._check_rank(input)
        rank = self.ranks[1]
        single = len(input.shape) < rank
        channels = input.shape[0 if single else 1]
        if channels != self.num_features:
            if self.affine:
                raise AotgradValueError(f"expected input's size at dim={0 if single else 1} to match num_features ({self.num_features}), but got: {channels}.")
            notice(f"input's size at dim={0 if single else 1} does not match num_features ({self.num_features}), which is not used because affine=False")
        own = self.training or not self.track_running_stats
        out = functional.instance_norm(input.unsqueeze(0) if single else input, self.running_mean, self.running_var, self.weight, self.bias, own, self.momentum or 0.0,
                                       self.eps)
        return out.squeeze(0) if single else out


class InstanceNorm1d(_Instance):
    """``functional.instance_norm`` of (N, C, L) or (C, L)."""

    ranks = (2, 3)


class InstanceNorm2d(_Instance):
    """``functional.instance_norm`` of (N, C, H, W) or (C, H, W)."""

    ranks = (3, 4)


class InstanceNorm3d(_Instance):
    """``functional.instance_norm`` of (N, C, D, H, W) or (C, D, H, W)."""

    ranks = (4, 5)
