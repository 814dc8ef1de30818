"""Further functions of NumPy, torch and SciPy: inverse hyperbolic ones, hypot, logaddexp, and composites of what is there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from aotgrad_runtime.dtypes import bool_, float64
from aotgrad_runtime.errors import AotgradTypeError, AotgradValueError
from aotgrad_runtime.limits import finfo

from ..opdef import Composite, Front, OpDef, Partials, Sample, Scalar, register
from .common import elementwise_rule, float_samples, norm_dim
from .contract import batched_product, no_bools
from .math import _inverse, _num, _quiet, _unary

__all__: list[str] = []


# ---- functions of one and two numbers with derivatives of their own ------------------------------------------------------------------

_unary("asinh", "Inverse hyperbolic sine.", np.arcsinh, lambda b, x, y: _inverse(b, b.hypot(x, _num(b, x, 1))), np_names=("arcsinh", "asinh"), aliases=("arcsinh",))
_unary("acosh", "Inverse hyperbolic cosine.", np.arccosh, lambda b, x, y: _inverse(b, b.mul(b.sqrt(b.sub(x, _num(b, x, 1))), b.sqrt(b.add(x, _num(b, x, 1))))),
       float_samples(1.2, 4.0), np_names=("arccosh", "acosh"), aliases=("arccosh",))
_unary("atanh", "Inverse hyperbolic tangent.", np.arctanh, lambda b, x, y: _inverse(b, b.mul(b.sub(_num(b, x, 1), x), b.add(_num(b, x, 1), x))),
       float_samples(-0.9, 0.9), np_names=("arctanh", "atanh"), aliases=("arctanh",))
_unary("cbrt", "Real cube root; its derivative at 0 is inf when nothing masks it.", np.cbrt, lambda b, x, y: b.div(_num(b, y, 1 / 3), b.mul(y, y)),
       float_samples(0.3, 3.0))


def _leg(i: int) -> Callable[..., Any]:
    """The partial of the longest side by leg i: x / hypot(x, y), 0 at the tip of the cone."""
    return lambda b, ins, out: b.div(ins[i], b.where(b.eq(out, b.full_like(out, 0)), b.full_like(out, 1), out))


def _logaddexp_ref(x: Any, y: Any) -> Any:
    return np.logaddexp(x, y)


def _apart(k: Any, x: Any, y: Any) -> Any:
    """-|x - y|; 0 for equal infinities."""
    d = k.sub(x, y)
    return k.neg(k.math("absf", k.select(k.cmp("ne", d, d), k.const(0, x), d)))


def _lower_logaddexp(k: Any, op: Any, x: Any, y: Any) -> Any:
    return k.add(k.max(x, y), k.math("log1p", k.math("exp", _apart(k, x, y))))


def _lower_logaddexp2(k: Any, op: Any, x: Any, y: Any) -> Any:
    return k.add(k.max(x, y), k.mul(k.math("log1p", k.math("exp2", _apart(k, x, y))), k.const(1 / math.log(2), x)))


def _ahead(i: int, scale: float = 1.0) -> Callable[..., Any]:
    def partial(b: Any, ins: Any, out: Any) -> Any:
        d = b.sub(ins[i], ins[1 - i])
        d = b.where(b.eq(ins[0], ins[1]), b.sub(b.where(b.isfinite(ins[i]), ins[i], b.full_like(d, 0)),
                                                b.where(b.isfinite(ins[1 - i]), ins[1 - i], b.full_like(d, 0))), d)
        return b.sigmoid(d if scale == 1 else b.mul(d, b.full_like(d, scale)))

    return partial


def _binary(name: str, doc: str, ref: Any, partials: Any, lower: Any, samples: Any, inplace: bool = False) -> None:
    register(OpDef(name, doc, ("x", "y"), elementwise_rule("f"), _quiet(ref), Partials(partials), Scalar(lower), samples=samples, layouts="elementwise",
                   front=Front(f"{name}(input, other)", promote="float", np=(name,), inplace=inplace)))


_binary("hypot", "sqrt(x*x + y*y) without overflow or underflow; derivative 0 at (0, 0).", np.hypot, (_leg(0), _leg(1)), lambda k, op, x, y: k.math("hypot", x, y),
        float_samples(0.3, 2.0, 2), inplace=True)
_binary("logaddexp", "log(e ** x + e ** y), right for all x and y.", _logaddexp_ref, (_ahead(0), _ahead(1)), _lower_logaddexp, float_samples(operands=2))
_binary("logaddexp2", "log2(2 ** x + 2 ** y), right for all x and y.", np.logaddexp2, (_ahead(0, math.log(2)), _ahead(1, math.log(2))), _lower_logaddexp2,
        float_samples(operands=2))


# ---- elementwise composites -----------------------------------------------------------------------------------------------------------

def _elementwise(name: str, doc: str, operands: tuple[str, ...], body: Any, samples: Any, front: Front, attrs: Mapping[str, Any] | None = None, out: Any = None) -> None:
    register(OpDef(name, doc, operands, elementwise_rule("f", out=out), None, Composite(body), samples=samples, layouts="elementwise", front=front, attrs=attrs or {}))


def _scaled(name: str, doc: str, factor: float, np_names: tuple[str, ...]) -> None:
    _elementwise(name, doc, ("x",), lambda b, x: b.mul(x, _num(b, x, factor)), float_samples(), Front(f"{name}(input)", promote="float", np=np_names, inplace=True))


_scaled("deg2rad", "Degrees as radians.", math.pi / 180, ("deg2rad", "radians"))
_scaled("rad2deg", "Radians as degrees.", 180 / math.pi, ("rad2deg", "degrees"))


def _other_than_nan(name: str, full: str) -> None:
    def body(b: Any, x: Any, y: Any) -> Any:
        return b.where(b.ne(x, x), y, b.where(b.ne(y, y), x, b.emit(full, [x, y])[0]))

    def canon(b: Any, x: Any, y: Any) -> Any:
        return b.emit(name if x.type.dtype.kind == "f" else full, [x, y])[0]

    _elementwise(name, f"The {full} of x and y; a number wins over NaN.", ("x", "y"), body, float_samples(operands=2), Front(f"{name}(input, other)", canon, np=(name,)))


_other_than_nan("fmax", "maximum")
_other_than_nan("fmin", "minimum")


def _heaviside(b: Any, x: Any, y: Any) -> Any:
    zero = b.full_like(x, 0)
    step = b.where(b.lt(x, zero), zero, b.where(b.gt(x, zero), b.full_like(x, 1), y))
    return b.where(b.ne(x, x), x, step)


def _nan_to_num(b: Any, x: Any, nan: float, posinf: Any, neginf: Any) -> Any:
    top = finfo(x.type.dtype).max
    high, low = (b.full_like(x, top if posinf is None else posinf), b.full_like(x, -top if neginf is None else neginf))
    out = b.where(b.ne(x, x), b.full_like(x, nan), x)
    return b.where(b.eq(x, b.full_like(x, math.inf)), high, b.where(b.eq(x, b.full_like(x, -math.inf)), low, out))


def _isclose(b: Any, x: Any, y: Any, rtol: float, atol: float, equal_nan: bool) -> Any:
    near = b.le(b.abs(b.sub(x, y)), b.add(b.full_like(x, atol), b.mul(b.full_like(x, rtol), b.abs(y))))
    out = b.logical_or(b.logical_and(near, b.isfinite(y)), b.eq(x, y))
    return b.logical_or(out, b.logical_and(b.ne(x, x), b.ne(y, y))) if equal_nan else out


def _sinc(b: Any, x: Any) -> Any:
    # Near 0 the series, so that derivatives of every order are right there.
    p = b.mul(x, _num(b, x, math.pi))
    q, one = b.mul(p, p), _num(b, x, 1)
    series = one
    for n in (156, 110, 72, 42, 20, 6):
        series = b.sub(one, b.mul(b.mul(q, _num(b, x, 1 / n)), series))
    small = b.lt(b.abs(p), _num(b, x, 0.3))
    safe = b.where(small, one, p)
    return b.where(small, series, b.div(b.sin(safe), safe))


def _xlogy(b: Any, x: Any, y: Any) -> Any:
    none = b.logical_and(b.eq(x, b.full_like(x, 0)), b.eq(y, y))
    return b.where(none, b.full_like(x, 0), b.mul(x, b.log(b.where(none, b.full_like(y, 1), y))))


def _heaviside_front(b: Any, x: Any, y: Any) -> Any:
    """NumPy's gives floats, NaN for NaN; torch's keeps the dtype and gives 0 for NaN."""
    if not b.torch:
        x, y = (v if v.type.dtype.kind == "f" else b.to_dtype(v, float64) for v in (x, y))
        return b.heaviside(x, y)
    zero = b.full_like(x, 0)
    return b.where(b.eq(x, zero), y, b.to_dtype(b.gt(x, zero), x.type.dtype))


_elementwise("heaviside", "0 below 0, 1 above, y at 0; of NaN, NaN for NumPy's values and 0 for tensors.", ("x", "y"), _heaviside, float_samples(operands=2),
             Front("heaviside(input, values)", _heaviside_front, np=("heaviside",), inplace=True))
_elementwise("sinc", "sin(pi x) / (pi x), 1 at 0.", ("x",), _sinc, float_samples(), Front("sinc(input)", promote="float", np=("sinc",), inplace=True))
_elementwise("xlogy", "x * log(y), 0 where x is 0 and y is no NaN.", ("x", "y"), _xlogy, float_samples(0.3, 2.0, 2),
             Front("xlogy(input, other)", promote="float", np=("xlogy",), inplace=True))
_elementwise("nan_to_num", "NaN and infinities replaced by numbers.", ("x",), _nan_to_num, float_samples(),
             Front("nan_to_num(input, nan=0.0, posinf=None, neginf=None)",
                   lambda b, x, nan=0.0, posinf=None, neginf=None: b.nan_to_num(x, nan=nan, posinf=posinf, neginf=neginf) if x.type.dtype.kind == "f" else b.clone(x),
                   np=("nan_to_num",), np_signature="nan_to_num(input, copy=True, nan=0.0, posinf=None, neginf=None)",
                   np_canon=lambda b, x, copy=True, nan=0.0, posinf=None, neginf=None:
                   b.nan_to_num(x, nan=nan, posinf=posinf, neginf=neginf) if x.type.dtype.kind == "f" else b.clone(x), inplace=True),
             {"nan": 0.0, "posinf": None, "neginf": None})
_elementwise("isclose", "Whether |x - y| <= atol + rtol * |y|.", ("x", "y"), _isclose, float_samples(operands=2),
             Front("isclose(input, other, rtol=1e-05, atol=1e-08, equal_nan=False)",
                   lambda b, x, y, rtol=1e-5, atol=1e-8, equal_nan=False: b.isclose(x, y, rtol=float(rtol), atol=float(atol), equal_nan=bool(equal_nan)), "float",
                   ("isclose",), method=True), {"rtol": 1e-5, "atol": 1e-8, "equal_nan": False}, bool_)
_elementwise("lerp", "x + weight * (y - x).", ("x", "y", "w"), lambda b, x, y, w: b.add(x, b.mul(w, b.sub(y, x))), float_samples(operands=3),
             Front("lerp(input, end, weight)", promote="alike", inplace=True))


def _scale(b: Any, x: Any, by: Any) -> Any:
    return x if by == 1 else b.mul(x, b.full_like(x, by))


_elementwise("addcmul", "x + value * y * z.", ("x", "y", "z"), lambda b, x, y, z, value: b.add(x, _scale(b, b.mul(y, z), value)),
             float_samples(operands=3),
             Front("addcmul(input, tensor1, tensor2, *, value=1)", lambda b, x, y, z, value=1: b.addcmul(x, y, z, value=value), inplace=True), {"value": 1})
_elementwise("addcdiv", "x + value * y / z.", ("x", "y", "z"), lambda b, x, y, z, value: b.add(x, _scale(b, b.div(y, z), value)), float_samples(0.5, 2.0, 3),
             Front("addcdiv(input, tensor1, tensor2, *, value=1)", lambda b, x, y, z, value=1: b.addcdiv(x, y, z, value=value), inplace=True), {"value": 1})


# ---- products -------------------------------------------------------------------------------------------------------------------------

def _x(*shape: int) -> Any:
    return np.random.default_rng(43).normal(size=shape)


def _added_product(b: Any, x: Any, y: Any, z: Any, beta: Any, alpha: Any) -> Any:
    out = _scale(b, b.matmul(y, z), alpha)
    return out if beta == 0 else b.add(_scale(b, b.expand(x, out.type.shape), beta), out)


def _add_product(name: str, rank: int) -> None:
    def canon(b: Any, x: Any, y: Any, z: Any, beta: Any = 1, alpha: Any = 1) -> Any:
        if (len(y.type.shape), len(z.type.shape)) != (rank, rank):
            raise AotgradValueError(f"{name} multiplies arrays of rank {rank}, not {len(y.type.shape)} and {len(z.type.shape)}")
        no_bools(b, name, y)
        out = _scale(b, batched_product(b, name, y, z), alpha)
        if beta == 0:
            return out
        shape = out.type.shape
        if len(x.type.shape) > len(shape):
            raise AotgradValueError(f"{name}: the array added has {len(x.type.shape)} dims, the product {len(shape)}")
        for i, d in enumerate(x.type.shape):
            b.give_way(d, shape[i - len(x.type.shape)], f"{name}: the array added does not fit the product in dim {i}")
        return b.add(_scale(b, b.expand(b.refresh(x), b.refresh(out).type.shape), beta), out)

    left, right = ("mat1", "mat2") if rank == 2 else ("batch1", "batch2")
    shape = (2,) * (rank - 2)
    register(OpDef(name, "beta * x + alpha * (y @ z).", ("x", "y", "z"), None, None, Composite(_added_product), attrs={"beta": 1, "alpha": 1},
                   samples=lambda: (Sample((_x(*shape, 3, 2), _x(*shape, 3, 4), _x(*shape, 4, 2)), {"beta": 2, "alpha": 0.5}, "3x4x2"),),
                   front=Front(f"{name}(input, {left}, {right}, *, beta=1, alpha=1)", canon, "product", inplace=True)))


_add_product("addmm", 2)
_add_product("baddbmm", 3)


def _kron(b: Any, x: Any, y: Any) -> Any:
    rank = max(len(x.type.shape), len(y.type.shape))
    xs, ys = ((1,) * (rank - len(v.type.shape)) + tuple(v.type.shape) for v in (x, y))
    full = tuple(d for pair in zip(xs, ys) for d in pair)
    left = b.expand(b.to_shape(x, tuple(d for n in xs for d in (n, 1))), full)
    right = b.expand(b.to_shape(y, tuple(d for n in ys for d in (1, n))), full)
    return b.to_shape(b.mul(left, right), tuple(n * m for n, m in zip(xs, ys)))


register(OpDef("kron", "Kronecker product.", ("x", "y"), None, None, Composite(_kron), samples=lambda: (
    Sample((_x(2, 3), _x(3, 2)), name="matrices"), Sample((_x(3), _x(2, 2)), name="ranks")),
    front=Front("kron(input, other)", lambda b, x, y: b.kron(x, y), "contract", ("kron",))))


def _cross(b: Any, x: Any, y: Any, dim: int) -> Any:
    def turned(v: Any, k: int) -> Any:
        return b.roll(v, shifts=(-k,), dims=(dim,))

    return b.sub(b.mul(turned(x, 1), turned(y, 2)), b.mul(turned(x, 2), turned(y, 1)))


def _cross_canon(b: Any, x: Any, y: Any, dim: Any = -1) -> Any:
    rank = max(len(x.type.shape), len(y.type.shape))
    d = norm_dim(dim, rank)
    if b.torch and len(x.type.shape) != len(y.type.shape):
        raise AotgradValueError(f"cross: inputs must have the same number of dimensions, not {len(x.type.shape)} and {len(y.type.shape)}")
    shape = [1] * rank
    for v in (x, y):
        own = len(v.type.shape) - rank + d
        b.equate(v.type.shape[own] if own >= 0 else 1, 3, "cross: the vectors are not of size 3")
        for i, n in enumerate(reversed(v.type.shape)):
            shape[-1 - i] = b.join(shape[-1 - i], n)
    full = tuple(3 if i == d else b.trace.canonical(n) for i, n in enumerate(shape))
    return b.cross(b.expand(b.refresh(x), full), b.expand(b.refresh(y), full), dim=d)


def _cross_samples() -> Iterable[Sample]:
    yield Sample((_x(2, 3), _x(2, 3) + 1.0), {"dim": 1}, "last")
    yield Sample((_x(3, 2), _x(3, 2) + 1.0), {"dim": 0}, "first")


def _np_cross(b: Any, x: Any, y: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: Any = None) -> Any:
    if axis is None and (axisa, axisb, axisc) != (-1, -1, -1):
        raise AotgradTypeError("cross: axisa, axisb and axisc are not available; move the axes, or give axis=")
    return _cross_canon(b, x, y, -1 if axis is None else axis)


register(OpDef("cross", "Vector product along ``dim`` of size 3.", ("x", "y"), None, None, Composite(_cross), attrs={"dim": -1}, samples=_cross_samples,
               front=Front("cross(input, other, dim=-1)", _cross_canon, "contract", ("cross", "linalg.cross"),
                           "cross(input, other, axisa=-1, axisb=-1, axisc=-1, axis=None)", _np_cross)))
