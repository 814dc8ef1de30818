"""Modules of pooling."""

from __future__ import annotations

from typing import Any

from . import functional
from .convolution import per_dim
from .module import Module

__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AdaptiveMaxPool3d", "AvgPool1d", "AvgPool2d", "AvgPool3d",
    "MaxPool1d", "MaxPool2d", "MaxPool3d",
]


class _MaxPool(Module):
    rank = 0

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, return_indices: bool = False, ceil_mode: bool = False) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding, self.dilation = kernel_size, kernel_size if stride is None else stride, padding, dilation
        self.return_indices, self.ceil_mode = return_indices, ceil_mode

    def forward(self, input: Any) -> Any:
        """The largest number of each window; and where it is, with ``return_indices``."""
        return getattr(functional, f"max_pool{self.rank}d")(input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, dilation={self.dilation}, ceil_mode={self.ceil_mode}"


class _AvgPool1d(Module):
    rank = 1

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding = (per_dim(x, 1) for x in (kernel_size, kernel_size if stride is None else stride, padding))
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def _options(self) -> tuple[Any, ...]:
        return (self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)

    def forward(self, input: Any) -> Any:
        """The mean of each window."""
        return getattr(functional, f"avg_pool{self.rank}d")(input, *self._options())

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _AvgPool(_AvgPool1d):
    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True,
                 divisor_override: int | None = None) -> None:
        super().__init__(kernel_size, stride, padding, ceil_mode, count_include_pad)
        self.kernel_size, self.stride, self.padding, self.divisor_override = kernel_size, kernel_size if stride is None else stride, padding, divisor_override

    def _options(self) -> tuple[Any, ...]:
        return (*super()._options(), self.divisor_override)


class _AdaptiveAvg(Module):
    rank = 0

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Any) -> Any:
        """Means of as many windows as ``output_size`` says; None leaves a size as it is."""
        return getattr(functional, f"adaptive_avg_pool{self.rank}d")(input, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class _AdaptiveMax(_AdaptiveAvg):
    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__(output_size)
        self.return_indices = return_indices

    def forward(self, input: Any) -> Any:
        """The largest numbers of as many windows as ``output_size`` says; and where they are, with ``return_indices``."""
        return getattr(functional, f"adaptive_max_pool{self.rank}d")(input, self.output_size, self.return_indices)


def _kinds(base: Any, name: str, what: str, ranks: tuple[int, ...] = (1, 2, 3)) -> list[Any]:
    sizes = {1: "(N, C, L) or (C, L)", 2: "(N, C, H, W) or (C, H, W)", 3: "(N, C, D, H, W) or (C, D, H, W)"}
    return [type(f"{name}{n}d", (base,), {"rank": n, "__module__": __name__, "__doc__": f"{what} of {sizes[n]}."}) for n in ranks]


MaxPool1d, MaxPool2d, MaxPool3d = _kinds(_MaxPool, "MaxPool", "The largest number of each window")
AvgPool1d, AvgPool2d, AvgPool3d = _kinds(_AvgPool1d, "AvgPool", "The mean of each window", (1,)) + _kinds(_AvgPool, "AvgPool", "The mean of each window", (2, 3))
AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d = _kinds(_AdaptiveAvg, "AdaptiveAvgPool", "Means of ``output_size`` windows")
AdaptiveMaxPool1d, AdaptiveMaxPool2d, AdaptiveMaxPool3d = _kinds(_AdaptiveMax, "AdaptiveMaxPool", "The largest numbers of ``output_size`` windows")
