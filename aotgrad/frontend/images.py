"""Ops on images (convolution) in eager execution: the most general kernel of a call, and results in the memory order that PyTorch gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aotgrad.ir import Op, TensorType, dims
from aotgrad.ir.dims import DimLike
from aotgrad_runtime import memory_format as mf

__all__ = ["generic", "laid_out", "order_of"]


_HOT = 1 << 20  # operations per image from which on a convolution gets a kernel for its own sizes
_LARGE = 1 << 10  # places of an image from which on pooling does: they are counted in 32 bits then
_ARRAYS = {"conv": "xwy", "conv_input_grad": "ywx", "conv_weight_grad": "xyw"}


def _format(x: Any) -> mf.MemoryFormat:
    item = x.itemsize
    return mf.suggest_memory_format(x.shape, [s // item for s in x.strides])


def order_of(x: Any) -> tuple[int, ...] | None:
    """The dims of an array in the memory order its kernel reads it in, outermost first; None: as they are."""
    return None if _format(x) is mf.contiguous_format else (0, *range(2, x.ndim), 1)


def laid_out(out: Any, xs: Sequence[Any]) -> Any:
    """The result with PyTorch's strides: channels last where an operand is, unless there is no data."""
    fmt = next((f for f in map(_format, xs) if f is not mf.contiguous_format), mf.contiguous_format)
    wanted = mf.format_strides(out.shape, fmt if out.size and out.ndim == fmt.rank else mf.contiguous_format)
    return out if tuple([s // out.itemsize for s in out.strides]) == wanted else mf.copy_to_strides(out, wanted)


def generic(op: Op) -> tuple[tuple[TensorType, ...], tuple[tuple[str, Any], ...]]:
    """Operand types and attributes with batch and image sizes as symbols, of pooling channels too; channels and kernels of a convolution belong to a model, and stay,
    as do the image sizes of large ones."""
    return _window(op) if op.name.startswith("window_") else _convolution(op)


def _large(op: Op) -> bool:
    """Whether pooling had better have a kernel for its own sizes."""
    places = [dims.product(v.type.shape[2:]) for v in (op.operands[0], op.result)]
    return all(isinstance(n, int) for n in places) and max(places) >= _LARGE


def _window(op: Op) -> tuple[tuple[TensorType, ...], tuple[tuple[str, Any], ...]]:
    attrs, given, made = dict(op.attrs), op.operands[0].type, op.result.type
    lead = (dims.symbol("n"), dims.symbol("c"))
    at = tuple(dims.symbol(f"s{i}") for i in range(given.rank - 2))
    if op.name == "window_put" and _large(op):
        return tuple(TensorType((*lead, *o.type.shape[2:]), o.type.dtype) for o in op.operands), tuple(attrs.items())
    if op.name in ("window_pick", "window_put"):
        first = (*lead, *at)
        second = first if op.name == "window_put" else (*lead, *(dims.symbol(f"p{i}") for i in range(len(at))))
        return tuple(TensorType(shape, o.type.dtype) for shape, o in zip((first, second), op.operands)), tuple(attrs.items())
    sizes, others = given.shape[2:], made.shape[2:]
    if _large(op):
        return (TensorType((*lead, *sizes), given.dtype),), tuple(attrs.items())
    if attrs["kernel"] and (made if "count" in attrs else given).shape[-1] != 1:  # of one window, all sizes are known
        pairs = zip(at, sizes, others, attrs["stride"])
        if "count" in attrs:  # as many positions as here, and as the same remainder gives at other sizes
            attrs["count"] = tuple(dims.floordiv(n + (m - 1) * s - old, s) + 1 for n, old, m, s in pairs)
        else:
            attrs["spatial"] = tuple((p - 1) * s + m - (old - 1) * s for p, old, m, s in pairs)
        sizes = at
    return (TensorType((*lead, *sizes), given.dtype),), tuple(attrs.items())


def _convolution(op: Op) -> tuple[tuple[TensorType, ...], tuple[tuple[str, Any], ...]]:
    attrs = dict(op.attrs)
    letters = _ARRAYS[op.name]
    types = dict(zip(letters, [v.type for v in (*op.operands, op.result)]))
    if _work(types) >= _HOT:
        found = [TensorType((dims.symbol("n"), *types[c].shape[1:]) if c != "w" else types[c].shape, types[c].dtype) for c in letters[:2]]
        return tuple(found), tuple(attrs.items())
    n, at = dims.symbol("n"), [dims.symbol(f"s{i}") for i in range(types["w"].rank - 2)]
    spatial: tuple[DimLike, ...] = tuple(at)
    if op.name != "conv":  # y has the symbols, x the sizes that make so many positions without a rest
        exact = [_exact(*v) for v in zip(types["x"].shape[2:], types["w"].shape[2:], attrs["stride"], attrs["padding"], attrs["dilation"])]
        attrs["padding"] = tuple(exact)
        spatial = tuple((p - 1) * s + 1 + d * (k - 1) - lo - hi
                        for p, k, s, (lo, hi), d in zip(at, types["w"].shape[2:], attrs["stride"], exact, attrs["dilation"]))
    if "spatial" in attrs:
        attrs["spatial"] = spatial
    wide = {"x": (n, types["x"].shape[1], *spatial), "w": types["w"].shape, "y": (n, types["y"].shape[1], *at)}
    return tuple(TensorType(wide[c], types[c].dtype) for c in letters[:2]), tuple(attrs.items())


def _work(types: dict[str, TensorType]) -> Any:
    """Operations per image."""
    per_filter = dims.product(types["w"].shape[1:])
    return 2 * per_filter * dims.product(types["y"].shape[1:])


def _exact(n: Any, k: Any, stride: int, padding: tuple[int, int], dilation: int) -> tuple[int, int]:
    """The padding without what no kernel reaches."""
    return padding[0], padding[1] - (n + sum(padding) - dilation * (k - 1) - 1) % stride
