"""Convolution. ``sum(x * w * y)`` over all positions and kernel places is linear in each of three arrays; the three ops are what is left when one of them is not given:
``conv`` gives y, ``conv_input_grad`` x, ``conv_weight_grad`` w. Each is bilinear, and its two transposes are the other two.

x is [N, C, *S], w is [O, C / groups, *K], y is [N, O, *P]; y at p meets x at ``p * stride - low + k * dilation``. Everything public is written with them.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from aotgrad_runtime.errors import AotgradTypeError, AotgradValueError

from .. import dims as dimlib
from ..opdef import REQUIRED, Bilinear, Kernel, OpDef, Sample, register
from ..types import Layout, TensorType
from .image_batch import conv_batch, weight_grad_batch

__all__ = ["positions"]

Types = Sequence[TensorType]
Attrs = Mapping[str, Any]
_WINDOW = {"stride": REQUIRED, "padding": REQUIRED, "dilation": REQUIRED, "groups": 1}


# ---- types --------------------------------------------------------------------------------------------------------------------------

def positions(n: Any, k: Any, stride: int, padding: tuple[int, int], dilation: int) -> Any:
    """How often a kernel of size ``k`` fits into a padded size ``n``."""
    return dimlib.floordiv(n + sum(padding) - dilation * (k - 1) - 1, stride) + 1


def _window(name: str, types: Types, a: Attrs) -> int:
    """The number of spatial dims, when operands and attributes agree on it."""
    first, second = types
    rank = first.rank - 2
    if rank < 1 or second.rank != first.rank or first.dtype is not second.dtype:
        raise AotgradTypeError(f"{name}: operands {first} and {second} need one dtype and one rank of at least 3")
    if not len(a["stride"]) == len(a["padding"]) == len(a["dilation"]) == rank:
        raise AotgradValueError(f"{name}: stride, padding and dilation need {rank} entries each")
    if any(v < 1 for v in (*a["stride"], *a["dilation"], a["groups"])):
        raise AotgradValueError(f"{name}: stride {a['stride']}, dilation {a['dilation']} and groups {a['groups']} must be positive")
    return rank


def _equal(name: str, what: str, have: Any, want: Any) -> None:
    """Sizes are equal as they are written: who has symbols makes them so first (tracing guards that), or the parts of a convolution would not fit each other."""
    if have != want:
        raise AotgradValueError(f"{name}: {what}: {have} where {want} is needed")


def _divisible(name: str, what: str, n: Any, groups: int) -> None:
    if dimlib.floordiv(n, groups) * groups != n:
        raise AotgradValueError(f"{name}: {n} {what} do not split into {groups} groups")


def _fits(name: str, spatial: Sequence[Any], kernel: Sequence[Any], a: Attrs) -> tuple[Any, ...]:
    """Sizes of y."""
    for n, k, pad, dil in zip(spatial, kernel, a["padding"], a["dilation"]):
        room = n + sum(pad) - dil * (k - 1) - 1
        if isinstance(room, int) and room < 0:
            raise AotgradValueError(f"{name}: a kernel of size {k}, dilated by {dil}, does not fit into size {n} with padding {pad}")
    return tuple(positions(n, k, s, pad, dil) for n, k, s, pad, dil in zip(spatial, kernel, a["stride"], a["padding"], a["dilation"]))


def _result(shape: Sequence[Any], types: Types) -> TensorType:
    """Channels last where either operand is, as in torch (which has no such format of rank 3)."""
    layout = Layout.channels_last(len(shape))
    return TensorType(tuple(shape), types[0].dtype, layout if len(shape) > 3 and any(t.layout == layout for t in types) else None)


def _conv_rule(types: Types, a: Attrs) -> Types:
    x, w = types
    _window("conv", types, a)
    _equal("conv", "channels of x", x.shape[1], w.shape[1] * a["groups"])
    _divisible("conv", "filters", w.shape[0], a["groups"])
    return (_result((x.shape[0], w.shape[0], *_fits("conv", x.shape[2:], w.shape[2:], a)), types),)


def _input_grad_rule(types: Types, a: Attrs) -> Types:
    y, w = types
    rank = _window("conv_input_grad", types, a)
    if len(a["spatial"]) != rank:
        raise AotgradValueError(f"conv_input_grad: spatial needs {rank} entries")
    _equal("conv_input_grad", "channels of y", y.shape[1], w.shape[0])
    _divisible("conv_input_grad", "filters", w.shape[0], a["groups"])
    for have, want in zip(y.shape[2:], _fits("conv_input_grad", a["spatial"], w.shape[2:], a)):
        _equal("conv_input_grad", "a size of y", have, want)
    return (_result((y.shape[0], w.shape[1] * a["groups"], *a["spatial"]), types),)


def _weight_grad_rule(types: Types, a: Attrs) -> Types:
    x, y = types
    rank = _window("conv_weight_grad", types, a)
    if len(a["kernel"]) != rank:
        raise AotgradValueError(f"conv_weight_grad: kernel needs {rank} entries")
    _equal("conv_weight_grad", "batch of y", y.shape[0], x.shape[0])
    _divisible("conv_weight_grad", "channels", x.shape[1], a["groups"])
    _divisible("conv_weight_grad", "filters", y.shape[1], a["groups"])
    for have, want in zip(y.shape[2:], _fits("conv_weight_grad", x.shape[2:], a["kernel"], a)):
        _equal("conv_weight_grad", "a size of y", have, want)
    return (_result((y.shape[1], dimlib.floordiv(x.shape[1], a["groups"]), *a["kernel"]), types),)


# ---- meaning ------------------------------------------------------------------------------------------------------------------------

def _places(count: int, kernel: int, stride: int, padding: tuple[int, int], dilation: int, size: int) -> tuple[Any, int, int]:
    """Where y at p meets x at kernel place k, as [p, k] from the start of an x with zeros around it; and how many zeros before and after."""
    at = (np.arange(count) * stride - padding[0])[:, None] + (np.arange(kernel) * dilation)[None, :]
    before, after = (max(0, -int(at.min())), max(0, int(at.max()) + 1 - size)) if at.size else (0, 0)
    return at + before, before, after


def _grid(shape: Sequence[int], kernel: Sequence[int], counts: Sequence[int], a: Attrs) -> tuple[list[Any], list[tuple[int, int]]]:
    found = [_places(p, k, s, pad, d, n) for p, k, s, pad, d, n in zip(counts, kernel, a["stride"], a["padding"], a["dilation"], shape)]
    return [at for at, _, _ in found], [(before, after) for _, before, after in found]


def _windows(x: Any, kernel: Sequence[int], counts: Sequence[int], a: Attrs) -> Any:
    """x as [N, groups, C / groups, p1, k1, p2, k2, ...]."""
    grids, zeros = _grid(x.shape[2:], kernel, counts, a)
    out = np.pad(x, [(0, 0), (0, 0), *zeros])
    for d, at in enumerate(grids):
        out = np.take(out, at, axis=2 + 2 * d)
    return _grouped(out, 1, a["groups"])


def _grouped(x: Any, axis: int, groups: int) -> Any:
    return x.reshape(*x.shape[:axis], groups, x.shape[axis] // groups, *x.shape[axis + 1:])


def _letters(rank: int) -> tuple[str, str, str]:
    p, k = string.ascii_uppercase[:rank], string.ascii_uppercase[rank:2 * rank]
    return p, k, "".join(map("".join, zip(p, k)))


def _einsum(spec: str, a: Any, b: Any) -> Any:
    return np.einsum(spec, a, b, optimize=a.dtype.kind in "fc")


def _conv_ref(x: Any, w: Any, **a: Any) -> Any:
    counts = [positions(n, k, s, pad, d) for n, k, s, pad, d in zip(x.shape[2:], w.shape[2:], a["stride"], a["padding"], a["dilation"])]
    p, k, both = _letters(len(counts))
    out = _einsum(f"ngc{both},goc{k}->ngo{p}", _windows(x, w.shape[2:], counts, a), _grouped(w, 0, a["groups"]))
    return out.reshape(x.shape[0], w.shape[0], *counts)


def _input_grad_ref(y: Any, w: Any, **a: Any) -> Any:
    p, k, _ = _letters(y.ndim - 2)
    products = _einsum(f"ngo{p},goc{k}->ngc{p}{k}", _grouped(y, 1, a["groups"]), _grouped(w, 0, a["groups"]))
    products = products.reshape(y.shape[0], -1 if products.size else w.shape[1] * a["groups"], *products.shape[3:])
    grids, zeros = _grid(a["spatial"], w.shape[2:], y.shape[2:], a)
    out = np.zeros((*products.shape[:2], *(lo + n + hi for n, (lo, hi) in zip(a["spatial"], zeros))), products.dtype)
    for place in np.ndindex(*w.shape[2:]):
        where = np.ix_(*(np.arange(n) for n in out.shape[:2]), *(at[:, i] for at, i in zip(grids, place)))
        there: Any = (Ellipsis, *place)
        out[where] += products[there]
    inside: Any = (slice(None), slice(None), *(slice(lo, lo + n) for n, (lo, _) in zip(a["spatial"], zeros)))
    return out[inside]


def _weight_grad_ref(x: Any, y: Any, **a: Any) -> Any:
    p, k, both = _letters(x.ndim - 2)
    out = _einsum(f"ngc{both},ngo{p}->goc{k}", _windows(x, a["kernel"], y.shape[2:], a), _grouped(y, 1, a["groups"]))
    return out.reshape(y.shape[1], x.shape[1] // a["groups"], *a["kernel"])


# ---- what layouts cost ---------------------------------------------------------------------------------------------------------------

def _depthwise(op: Any) -> bool:
    groups = op.attrs["groups"]
    return groups != 1 and all(v.type.shape[1] == groups for v in (op.operands[0], op.result))


def _image_passes(op: Any) -> Sequence[int]:
    """What meets weights is read number by number, in either order; the result's channels are computed side by side. Depthwise, and between the strides of an input
    gradient, images are moved."""
    apart = op.name == "conv_input_grad" and op.attrs["stride"][-1] > 1
    return (2, 0, 2) if _depthwise(op) else (0, 0, 2 if apart else 1)


def _weight_grad_passes(op: Any) -> Sequence[int]:
    """y's channels meet x's side by side; the result is put where it belongs in either order."""
    groups = op.attrs["groups"]
    x, y = op.operands
    return (2, 2, 2) if groups != 1 and x.type.shape[1] == groups == y.type.shape[1] else (0, 2, 0)


# ---- the three ops --------------------------------------------------------------------------------------------------------------------

def _shared(op: Any) -> dict[str, Any]:
    return {k: op.attrs[k] for k in _WINDOW}


def _to_y(b: Any, x: Any, w: Any, op: Any) -> Any:
    return b.conv(x, w, **_shared(op))


def _to_x(b: Any, y: Any, w: Any, x: TensorType, op: Any) -> Any:
    return b.conv_input_grad(y, w, spatial=x.shape[2:], **_shared(op))


def _to_w(b: Any, x: Any, y: Any, w: TensorType, op: Any) -> Any:
    return b.conv_weight_grad(x, y, kernel=w.shape[2:], **_shared(op))


# shape of x, of w, stride, padding, dilation, groups: strides that leave a rest, kernels wider than x, padding on one side and negative, depthwise
_CASES = (
    ((2, 3, 7), (4, 3, 3), (2,), ((1, 1),), (1,), 1), ((2, 4, 5, 6), (6, 2, 3, 2), (2, 1), ((1, 0), (0, 2)), (1, 2), 2),
    ((1, 3, 4, 5), (3, 1, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 3), ((2, 19, 6, 5), (18, 19, 1, 1), (2, 2), ((0, 0), (0, 0)), (1, 1), 1),
    ((1, 2, 3, 4, 3), (2, 2, 2, 2, 2), (1, 2, 1), ((1, 0), (0, 0), (0, 1)), (1, 1, 2), 1), ((2, 2, 8), (2, 2, 2), (3,), ((-1, -2),), (3,), 1),
)


def _samples(kind: str) -> Any:
    def make() -> Iterable[Sample]:
        rng = np.random.default_rng(31)
        for x, w, stride, padding, dilation, groups in _CASES if kind == "y" else _CASES[1:5]:
            attrs: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
            y = (x[0], w[0], *(positions(n, k, s, p, d) for n, k, s, p, d in zip(x[2:], w[2:], stride, padding, dilation)))
            shapes = {"y": (x, w), "x": (y, w), "w": (x, y)}[kind]
            if kind != "y":
                attrs["spatial" if kind == "x" else "kernel"] = (x if kind == "x" else w)[2:]
            yield Sample(tuple(rng.normal(size=s) for s in shapes), attrs, f"{x}{w}")

    return make


register(OpDef(
    "conv", "Cross-correlation of x [N, C, *S] with w [O, C / groups, *K]: y [N, O, *P].", ("x", "w"), _conv_rule, _conv_ref,
    Bilinear((lambda b, ct, w, op: _to_x(b, ct, w, op.operands[0], op), lambda b, ct, x, op: _to_w(b, x, ct, op.operands[1], op))), Kernel("conv"), _WINDOW,
    _samples("y"), batch=conv_batch, layouts="channels_last", row_major=_image_passes))
register(OpDef(
    "conv_input_grad", "The x [N, C, *spatial] that y and w give: each y spreads over the places it is computed from.", ("y", "w"), _input_grad_rule, _input_grad_ref,
    Bilinear((lambda b, ct, w, op: _to_y(b, ct, w, op), lambda b, ct, y, op: _to_w(b, ct, y, op.operands[1], op))), Kernel("conv"), {"spatial": REQUIRED, **_WINDOW},
    _samples("x"), batch=conv_batch, layouts="channels_last", row_major=_image_passes))
register(OpDef(
    "conv_weight_grad", "The w [O, C / groups, *kernel] that x and y give: sums over batch and positions.", ("x", "y"), _weight_grad_rule, _weight_grad_ref,
    Bilinear((lambda b, ct, y, op: _to_x(b, y, ct, op.operands[0], op), lambda b, ct, x, op: _to_y(b, x, ct, op))), Kernel("conv"), {"kernel": REQUIRED, **_WINDOW},
    _samples("w"), batch=weight_grad_batch, layouts="channels_last", row_major=_weight_grad_passes))
