"""Windows over images: what pooling is made of. Six ops, of which four are linear and two pairs of transposes:

``window_sum`` and ``window_spread``; ``window_pick`` (an element of each window, at a given place) and ``window_put``; ``window_max``; ``window_argmax``, which gives
places.

x is [N, C, *S], y is [N, C, *P]. The window of p holds the places ``p * stride - low + k * dilation`` for k below ``kernel`` that lie in x; with an empty ``kernel`` the
windows are adaptive: from ``p * S // P`` to ``((p + 1) * S - 1) // P``, which share x out as evenly as can be. A place is counted row by row over S.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from aotgrad_runtime.dtypes import int64
from aotgrad_runtime.errors import AotgradTypeError, AotgradValueError

from ..opdef import REQUIRED, Kernel, Linear, Linearize, OpDef, Sample, Zero, register
from ..types import Layout, TensorType
from .image_batch import fold_images

__all__: list[str] = []

Types = Sequence[TensorType]
Attrs = Mapping[str, Any]
_WINDOW: dict[str, Any] = {"kernel": (), "stride": (), "low": (), "dilation": ()}


# ---- types --------------------------------------------------------------------------------------------------------------------------

def _check(name: str, x: TensorType, sizes: Sequence[Any], a: Attrs) -> None:
    rank = x.rank - 2
    if rank < 1 or len(sizes) != rank or any(len(a[k]) not in (0, rank) for k in _WINDOW) or len({len(a[k]) for k in _WINDOW}) != 1:
        raise AotgradValueError(f"{name}: {x} needs {rank} sizes, and as many entries (or none) in kernel, stride, low and dilation")
    if any(isinstance(v, int) and v < 1 for v in (*a["stride"], *a["dilation"])):
        raise AotgradValueError(f"{name}: stride {a['stride']} and dilation {a['dilation']} must be positive")


def _same_layout(x: TensorType) -> Layout | None:
    return x.layout if x.rank > 3 else None


def _down(name: str, dtype: Any = None) -> Callable[[Types, Attrs], Types]:
    def rule(types: Types, a: Attrs) -> Types:
        x = types[0]
        _check(name, x, a["count"], a)
        return (TensorType((*x.shape[:2], *a["count"]), dtype or x.dtype, _same_layout(x)),)

    return rule


def _spread_rule(types: Types, a: Attrs) -> Types:
    y = types[0]
    _check("window_spread", y, a["spatial"], a)
    return (TensorType((*y.shape[:2], *a["spatial"]), y.dtype, _same_layout(y)),)


def _pick_rule(types: Types, a: Attrs) -> Types:
    x, at = types
    _check("window_pick", x, at.shape[2:], a)
    if at.rank != x.rank or at.shape[:2] != x.shape[:2] or at.dtype is not int64:
        raise AotgradTypeError(f"window_pick: the places {at} should be int64, of the batch and channels of {x}")
    return (TensorType(at.shape, x.dtype, _same_layout(x)),)


def _put_rule(types: Types, a: Attrs) -> Types:
    y, at = types
    _check("window_put", y, a["spatial"], a)
    if at.shape != y.shape or at.dtype is not int64:
        raise AotgradTypeError(f"window_put: the places {at} should be int64, of the shape of {y}")
    return (TensorType((*y.shape[:2], *a["spatial"]), y.dtype, _same_layout(y)),)


# ---- meaning ------------------------------------------------------------------------------------------------------------------------

def _places(p: int, n: int, count: int, a: Attrs, d: int) -> Any:
    """The window of p in dim d."""
    if not a["kernel"]:
        return np.arange(p * n // count, -(-(p + 1) * n // count))
    at = p * a["stride"][d] - a["low"][d] + np.arange(a["kernel"][d]) * a["dilation"][d]
    return at[(at >= 0) & (at < n)]


def _windows(spatial: Sequence[int], count: Sequence[int], a: Attrs) -> Iterator[tuple[Any, Any, Any]]:
    """(position, index of its window in x, places of the window in a flat image)."""
    flat = np.arange(int(np.prod(spatial))).reshape(spatial)
    for p in np.ndindex(*count):
        grid = np.ix_(*(_places(i, n, m, a, d) for d, (i, n, m) in enumerate(zip(p, spatial, count))))
        yield (Ellipsis, *p), (slice(None), slice(None), *grid), flat[grid].ravel()


def _least(dtype: Any) -> Any:
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _reduced(kind: str) -> Callable[..., Any]:
    def ref(x: Any, divide: int = 1, **a: Any) -> Any:
        out = np.zeros((*x.shape[:2], *a["count"]), np.int64 if kind == "argmax" else x.dtype)
        for p, window, places in _windows(x.shape[2:], a["count"], a):
            part = x[window].reshape(*x.shape[:2], len(places))
            if kind == "sum":
                out[p] = part.sum(axis=-1) / divide if divide != 1 else part.sum(axis=-1)
            elif not len(places):
                out[p] = -1 if kind == "argmax" else _least(x.dtype)
            elif kind == "max":
                out[p] = part.max(axis=-1)
            else:  # the first of the largest, the last NaN
                nan = np.flip(np.isnan(part), -1)
                out[p] = places[np.where(nan.any(axis=-1), len(places) - 1 - nan.argmax(axis=-1), part.argmax(axis=-1))]
        return out

    return ref


def _spread_ref(y: Any, divide: int = 1, **a: Any) -> Any:
    out = np.zeros((*y.shape[:2], *a["spatial"]), y.dtype)
    for p, window, places in _windows(a["spatial"], y.shape[2:], a):
        if len(places):
            out[window] += y[p].reshape(*y.shape[:2], *[1] * len(a["spatial"]))
    return out / divide if divide != 1 else out


def _inside(at: Any, size: int) -> tuple[Any, Any]:
    """Where places are some, and each with its image and channel."""
    on = (at >= 0) & (at < size)
    return on, (*np.indices(at.shape[:2]).reshape(2, *at.shape[:2], *[1] * (at.ndim - 2)), np.where(on, at, 0))


def _pick_ref(x: Any, at: Any, **a: Any) -> Any:
    flat = x.reshape(*x.shape[:2], int(np.prod(x.shape[2:])))
    on, where = _inside(at, flat.shape[2])
    return np.where(on, flat[where], 0) if on.any() else np.zeros(at.shape, x.dtype)


def _put_ref(y: Any, at: Any, spatial: Any, **a: Any) -> Any:
    out = np.zeros((*y.shape[:2], int(np.prod(spatial))), y.dtype)
    on, where = _inside(at, out.shape[2])
    if on.any():
        np.add.at(out, where, np.where(on, y, 0))
    return out.reshape(*y.shape[:2], *spatial)


# ---- the six ops ----------------------------------------------------------------------------------------------------------------------

def _shared(op: Any) -> dict[str, Any]:
    return {k: op.attrs[k] for k in _WINDOW}


def _max_linearize(b: Any, ins: Any, outs: Any, attrs: Any, active: Any) -> Any:
    at = b.window_argmax(ins[0], **attrs)
    window = {k: attrs[k] for k in _WINDOW}
    return lambda lb, tangents: (lb.window_pick(tangents[0], at, **window),)


# shape of x, kernel, stride, low, dilation, positions: windows that overlap, leave gaps, reach over the edge; adaptive ones that divide or do not
_CASES: tuple[Any, ...] = (
    ((2, 3, 7), (3,), (2,), (1,), (1,), (4,)), ((2, 5, 6, 7), (2, 3), (2, 3), (0, 1), (1, 1), (3, 3)), ((1, 19, 5, 4), (3, 2), (1, 1), (1, 1), (2, 1), (3, 5)),
    ((1, 2, 3, 4, 2), (2, 2, 1), (1, 2, 3), (0, 0, 0), (1, 1, 1), (2, 2, 1)), ((2, 3, 5, 9), (), (), (), (), (2, 3)), ((1, 2, 3), (), (), (), (), (5,)),
)


def _samples(kind: str) -> Callable[[], Iterable[Sample]]:
    def make() -> Iterable[Sample]:
        rng = np.random.default_rng(41)
        for shape, kernel, stride, low, dilation, count in _CASES:
            window = {"kernel": kernel, "stride": stride, "low": low, "dilation": dilation}
            x, y = rng.permuted(np.arange(float(np.prod(shape)))).reshape(shape) / 7.0, rng.normal(size=(*shape[:2], *count))  # no ties, and no near ones
            at = _reduced("argmax")(x, count=count, **window)
            operands = {"down": (x,), "sum": (x,), "spread": (y,), "pick": (x, at), "put": (y, at)}[kind]
            sizes = {"pick": window, "put": {"spatial": shape[2:], **window}, "spread": {"spatial": shape[2:], **window}}.get(kind, {"count": count, **window})
            if kind in ("sum", "spread") and len(shape) == 4:
                sizes = {**sizes, "divide": 3}
            yield Sample(operands, sizes, f"{shape}{kernel}{count}")

    return make


register(OpDef(
    "window_sum", "Sums over windows of x [N, C, *S], clipped to x, divided by a number: [N, C, *count].", ("x",), _down("window_sum"), _reduced("sum"),
    Linear(lambda b, ct, op: {0: b.window_spread(ct, spatial=op.operands[0].shape[2:], divide=op.attrs["divide"], **_shared(op))}), Kernel("window"),
    {"count": REQUIRED, "divide": 1, **_WINDOW}, _samples("sum"), batch=fold_images, layouts="channels_last"))
register(OpDef(
    "window_spread", "Each y added to all of its window in [N, C, *spatial], and all divided by a number.", ("y",), _spread_rule, _spread_ref,
    Linear(lambda b, ct, op: {0: b.window_sum(ct, count=op.operands[0].shape[2:], divide=op.attrs["divide"], **_shared(op))}), Kernel("window"),
    {"spatial": REQUIRED, "divide": 1, **_WINDOW}, _samples("spread"), batch=fold_images, layouts="channels_last"))
register(OpDef(
    "window_argmax", "The place of the largest element of each window: the first of equal ones, the last NaN, -1 of an empty window.", ("x",),
    _down("window_argmax", int64), _reduced("argmax"), Zero(), Kernel("window"), {"count": REQUIRED, **_WINDOW}, _samples("down"), batch=fold_images,
    layouts="channels_last"))
register(OpDef(
    "window_pick", "The elements of x [N, C, *S] at places [N, C, *count], each in its window (0 where the place is -1).", ("x", "at"), _pick_rule, _pick_ref,
    Linear(lambda b, ct, op: {0: b.window_put(ct, op.operands[1], spatial=op.operands[0].shape[2:], **_shared(op))}, (0,)), Kernel("window"), _WINDOW, _samples("pick"),
    batch=fold_images, layouts="channels_last"))
register(OpDef(
    "window_put", "Each y [N, C, *count] added at its place in [N, C, *spatial], which is in its window (or -1: nowhere); repeated places add up.",
    ("y", "at"), _put_rule, _put_ref,
    Linear(lambda b, ct, op: {0: b.window_pick(ct, op.operands[1], **_shared(op))}, (0,)), Kernel("window"), {"spatial": REQUIRED, **_WINDOW}, _samples("put"),
    batch=fold_images, layouts="channels_last"))
register(OpDef(
    "window_max", "The largest element of each window; NaN wins; the derivative goes where ``window_argmax`` points; over nothing, the least number.", ("x",),
    _down("window_max"), _reduced("max"), Linearize(_max_linearize), Kernel("window"), {"count": REQUIRED, **_WINDOW}, _samples("down"), batch=fold_images,
    layouts="channels_last"))
