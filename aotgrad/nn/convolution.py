"""Modules of convolutions, and of the borders that they can be given."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from aotgrad_runtime.errors import AotgradArgumentError, AotgradValueError

from . import functional
from .layers import _uniform
from .module import Module
from .parameter import Parameter

__all__ = [
    "CircularPad1d", "CircularPad2d", "CircularPad3d", "ConstantPad1d", "ConstantPad2d", "ConstantPad3d", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d",
    "ConvTranspose2d", "ConvTranspose3d", "ReflectionPad1d", "ReflectionPad2d", "ReflectionPad3d", "ReplicationPad1d", "ReplicationPad2d", "ReplicationPad3d",
    "ZeroPad1d", "ZeroPad2d", "ZeroPad3d",
]

_MODES = ("zeros", "reflect", "replicate", "circular")


def per_dim(x: Any, n: int) -> tuple[Any, ...]:
    """One number for each of ``n`` dims, from as many or from one."""
    return tuple(x) if isinstance(x, Iterable) else (x,) * n


class _Conv(Module):
    """``weight`` and ``bias`` begin uniform in ±1/sqrt(the numbers that one result is made of)."""

    rank = 0
    transposed = False

    def _build(self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any, padding: Any, dilation: Any, output_padding: Any, groups: int, bias: bool,
               padding_mode: str, device: Any, dtype: Any) -> None:
        if groups <= 0:
            raise AotgradValueError("groups must be a positive integer")
        for name, count in (("in_channels", in_channels), ("out_channels", out_channels)):
            if count % groups:
                raise AotgradValueError(f"{name} must be divisible by groups")
        if padding_mode not in _MODES:
            raise AotgradValueError(f"padding_mode must be one of {', '.join(_MODES)}, but got padding_mode={padding_mode!r}")
        n = self.rank
        self.in_channels, self.out_channels, self.groups, self.padding_mode = in_channels, out_channels, groups, padding_mode
        self.kernel_size: Any = per_dim(kernel_size, n)
        self.stride, self.dilation, self.padding = per_dim(stride, n), per_dim(dilation, n), padding if isinstance(padding, str) else per_dim(padding, n)
        if isinstance(padding, str):
            if padding not in ("valid", "same"):
                raise AotgradValueError(f"Invalid padding string {padding!r}, should be one of 'valid', 'same'")
            if padding == "same" and any(s != 1 for s in self.stride):
                raise AotgradValueError("padding='same' is not supported for strided convolutions")
        self.output_padding = per_dim(output_padding, n)
        channels = (in_channels, out_channels // groups) if self.transposed else (out_channels, in_channels // groups)
        count = channels[1] * math.prod(self.kernel_size)
        bound = 1.0 / math.sqrt(count) if count else 0.0
        self.weight = Parameter(_uniform((*channels, *self.kernel_size), bound, dtype, device))
        self.register_parameter("bias", Parameter(_uniform((out_channels,), bound, dtype, device)) if bias else None)

    def extra_repr(self) -> str:
        n = self.rank
        shown = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"]
        shown += [f"{name}={getattr(self, name)}" for name, usual in (("padding", 0), ("dilation", 1), ("output_padding", 0)) if getattr(self, name) != (usual,) * n]
        shown += [f"groups={self.groups}"] * (self.groups != 1) + ["bias=False"] * (self.bias is None)
        return ", ".join(shown + [f"padding_mode={self.padding_mode}"] * (self.padding_mode != "zeros"))


class _Forward(_Conv):
    def __init__(self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1, bias: bool = True,
                 padding_mode: str = "zeros", device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self._build(in_channels, out_channels, kernel_size, stride, padding, dilation, 0, groups, bias, padding_mode, device, dtype)

    def forward(self, input: Any) -> Any:
        """The convolution."""
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input, padding = functional.pad(input, self._borders(), self.padding_mode), 0
        return getattr(functional, f"conv{self.rank}d")(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def _borders(self) -> list[int]:
        """Before and after, the last dim first."""
        out: list[int] = []
        for i in reversed(range(self.rank)):
            given: Any = self.padding
            whole = 0 if given == "valid" else self.dilation[i] * (self.kernel_size[i] - 1) if given == "same" else 2 * given[i]
            out += [whole // 2, whole - whole // 2]
        return out


class Conv1d(_Forward):
    """``functional.conv1d`` of (N, C, L) or (C, L): ``weight`` (out_channels, in_channels / groups, kernel_size), ``bias`` (out_channels) or None."""

    rank = 1


class Conv2d(_Forward):
    """``functional.conv2d`` of (N, C, H, W) or (C, H, W), as ``Conv1d``; images may be channels_last.

    >>> import aotgrad as ag
    >>> ag.nn.Conv2d(3, 8, 3, padding=1)
    Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))
    """

    rank = 2


class Conv3d(_Forward):
    """``functional.conv3d`` of (N, C, D, H, W) or (C, D, H, W), as ``Conv1d``."""

    rank = 3


class _Transposed(_Conv):
    transposed = True

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, padding: Any = 0, output_padding: Any = 0, groups: int = 1,
                 bias: bool = True, dilation: Any = 1, padding_mode: str = "zeros", device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        if padding_mode != "zeros":
            raise AotgradValueError(f'Only "zeros" padding mode is supported for {type(self).__name__}')
        self._build(in_channels, out_channels, kernel_size, stride, padding, dilation, output_padding, groups, bias, padding_mode, device, dtype)

    def forward(self, input: Any, output_size: Any = None) -> Any:
        """The transposed convolution; ``output_size`` chooses among the sizes that a stride leaves open."""
        further = self.output_padding if output_size is None else self._further(tuple(input.shape), tuple(output_size))
        return getattr(functional, f"conv_transpose{self.rank}d")(input, self.weight, self.bias, self.stride, self.padding, further, self.groups, self.dilation)

    def _further(self, shape: tuple[Any, ...], wanted: tuple[Any, ...]) -> tuple[Any, ...]:
        n = self.rank
        if len(wanted) not in (n, len(shape)):
            raise AotgradValueError(f"{type(self).__name__}: output_size must have {n} or {len(shape)} elements, but has {len(wanted)}")
        wanted, given = wanted[-n:], shape[-n:]
        least = [(size - 1) * s - 2 * p + d * (k - 1) + 1 for size, s, p, d, k in zip(given, self.stride, self.padding, self.dilation, self.kernel_size)]
        most = [low + s - 1 for low, s in zip(least, self.stride)]
        if any(not low <= size <= high for low, size, high in zip(least, wanted, most)):
            raise AotgradValueError(f"requested an output size of {wanted}, but valid sizes range from {least} to {most} (for an input of {list(given)})")
        return tuple([size - low for size, low in zip(wanted, least)])


class ConvTranspose1d(_Transposed):
    """``functional.conv_transpose1d`` of (N, C, L) or (C, L): ``weight`` (in_channels, out_channels / groups, kernel_size), ``bias`` (out_channels) or None."""

    rank = 1


class ConvTranspose2d(_Transposed):
    """``functional.conv_transpose2d`` of (N, C, H, W) or (C, H, W), as ``ConvTranspose1d``."""

    rank = 2


class ConvTranspose3d(_Transposed):
    """``functional.conv_transpose3d`` of (N, C, D, H, W) or (C, D, H, W), as ``ConvTranspose1d``."""

    rank = 3


# ---- borders ----------------------------------------------------------------------------------------------------------------------------

class _Pad(Module):
    """``padding``: a number, or before and after for each of the last dims, the last dim first."""

    rank = 0
    mode = ""

    def __init__(self, padding: Any) -> None:
        super().__init__()
        self.padding = per_dim(padding, 2 * self.rank)
        if len(self.padding) != 2 * self.rank:
            raise AotgradArgumentError(f"{type(self).__name__}: padding has {len(self.padding)} numbers; give one, or {2 * self.rank}: before and after for each dim, "
                                       "the last dim first")

    def forward(self, input: Any) -> Any:
        """``input`` with borders."""
        return functional.pad(input, self.padding, self.mode)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _Constant(_Pad):
    mode = "constant"

    def __init__(self, padding: Any, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, input: Any) -> Any:
        """``input`` with borders."""
        return functional.pad(input, self.padding, self.mode, self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class _Zero(_Constant):
    def __init__(self, padding: Any) -> None:
        super().__init__(padding, 0.0)

    def extra_repr(self) -> str:
        return f"{self.padding}"


def _kinds(base: Any, prefix: str, what: str) -> list[Any]:
    docs = {n: f"{what} around the last {'dim' if n == 1 else f'{n} dims'}. {_Pad.__doc__}" for n in (1, 2, 3)}
    return [type(f"{prefix}Pad{n}d", (base,), {"rank": n, "__module__": __name__, "__doc__": doc}) for n, doc in docs.items()]


ConstantPad1d, ConstantPad2d, ConstantPad3d = _kinds(_Constant, "Constant", "Borders of ``value``")
ZeroPad1d, ZeroPad2d, ZeroPad3d = _kinds(_Zero, "Zero", "Borders of 0")
ReflectionPad1d, ReflectionPad2d, ReflectionPad3d = _kinds(type("_Reflect", (_Pad,), {"mode": "reflect"}), "Reflection", "Mirror images without the edge itself")
ReplicationPad1d, ReplicationPad2d, ReplicationPad3d = _kinds(type("_Repeat", (_Pad,), {"mode": "replicate"}), "Replication", "The edge, repeated,")
CircularPad1d, CircularPad2d, CircularPad3d = _kinds(type("_Turn", (_Pad,), {"mode": "circular"}), "Circular", "What is at the other end")
