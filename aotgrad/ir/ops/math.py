"""Elementwise functions: exponentials, logarithms, trigonometry, error functions, rounding, and composites of them.

Partials are the textbook derivatives (Abramowitz & Stegun chapters 4 and 7), written to stay finite where the function is smooth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from aotgrad_runtime.arrays import defaults
from aotgrad_runtime.dtypes import bool_, int8, int64
from aotgrad_runtime.errors import AotgradTypeError, AotgradZeroDivisionError

from ..opdef import Composite, Domain, Front, OpDef, Partials, Sample, Scalar, Zero, register
from ..transforms.cleanup import splat
from .common import elementwise_rule, float_samples, vectorised, zero_aware

Partial = Callable[[Any, Any, Any], Any]


def _quiet(fn: Callable[..., Any]) -> Callable[..., Any]:
    def ref(*xs: Any) -> Any:
        with np.errstate(all="ignore"):
            return fn(*xs)

    return ref


def _unary(name: str, doc: str, ref: Callable[..., Any], partial: Partial, samples: Any = None, lower: Any = None, np_names: tuple[str, ...] = (),
           aliases: tuple[str, ...] = (), **front: Any) -> None:
    register(OpDef(
        name, doc, ("x",), elementwise_rule("f"), _quiet(ref), Partials((lambda b, ins, out: partial(b, ins[0], out),)),
        lower or Scalar(lambda k, op, x: k.math(name, x)),
        samples=samples or float_samples(), layouts="elementwise", exact=name == "sqrt",
        front=Front(f"{name}(input)", promote="float", np=np_names or (name,), aliases=aliases, inplace=True, **front)))


def _num(b: Any, x: Any, value: float) -> Any:
    return b.full_like(x, value)


def _one_minus_square(b: Any, y: Any) -> Any:
    return b.mul(b.sub(_num(b, y, 1), y), b.add(_num(b, y, 1), y))


def _inverse(b: Any, y: Any) -> Any:
    return b.div(_num(b, y, 1), y)


_positive = float_samples(0.3, 3.0)
_inside = float_samples(-0.9, 0.9)

_unary("exp", "e ** x.", np.exp, lambda b, x, y: y)
_unary("exp2", "2 ** x.", np.exp2, lambda b, x, y: b.mul(y, _num(b, y, math.log(2))), aliases=())
_unary("expm1", "e ** x - 1, right for small x.", np.expm1, lambda b, x, y: b.add(y, _num(b, y, 1)))
_unary("log", "Natural logarithm.", np.log, lambda b, x, y: _inverse(b, x), _positive)
_unary("log1p", "log(1 + x), right for small x.", np.log1p, lambda b, x, y: _inverse(b, b.add(x, _num(b, x, 1))), float_samples(-0.7, 3.0))
_unary("log2", "Logarithm to base 2.", np.log2, lambda b, x, y: _inverse(b, b.mul(x, _num(b, x, math.log(2)))), _positive)
_unary("log10", "Logarithm to base 10.", np.log10, lambda b, x, y: _inverse(b, b.mul(x, _num(b, x, math.log(10)))), _positive)
_unary("sqrt", "Square root; its derivative at 0 is inf when nothing masks it.", np.sqrt, lambda b, x, y: b.div(_num(b, y, 0.5), y), _positive)
_unary("sin", "Sine, for arguments of any size.", np.sin, lambda b, x, y: b.cos(x))
_unary("cos", "Cosine, for arguments of any size.", np.cos, lambda b, x, y: b.neg(b.sin(x)))
_unary("tan", "Tangent.", np.tan, lambda b, x, y: b.add(b.mul(y, y), _num(b, y, 1)), _inside)
_unary("asin", "Arcsine.", np.arcsin, lambda b, x, y: _inverse(b, b.sqrt(_one_minus_square(b, x))), _inside, np_names=("arcsin", "asin"), aliases=("arcsin",))
_unary("acos", "Arccosine.", np.arccos, lambda b, x, y: b.neg(_inverse(b, b.sqrt(_one_minus_square(b, x)))), _inside, np_names=("arccos", "acos"), aliases=("arccos",))
_unary("atan", "Arctangent.", np.arctan, lambda b, x, y: _inverse(b, b.add(b.mul(x, x), _num(b, x, 1))), np_names=("arctan", "atan"), aliases=("arctan",))
_unary("sinh", "Hyperbolic sine.", np.sinh, lambda b, x, y: b.cosh(x))
_unary("cosh", "Hyperbolic cosine.", np.cosh, lambda b, x, y: b.sinh(x))
_unary("tanh", "Hyperbolic tangent.", np.tanh, lambda b, x, y: _one_minus_square(b, y))


def _sigmoid(x: float) -> float:
    t = math.exp(-abs(x))
    return (t if x < 0 else 1.0) / (1.0 + t)


_unary("sigmoid", "1 / (1 + e ** -x).", vectorised(_sigmoid), lambda b, x, y: b.mul(y, b.sigmoid(b.neg(x))), aliases=("expit",), np_names=("expit",))
_unary("softplus", "log(1 + e ** x), right for all x.", vectorised(lambda x: max(x, 0.0) + math.log1p(math.exp(-abs(x)))), lambda b, x, y: b.sigmoid(x),
       lower=Scalar(lambda k, op, x: k.add(k.max(x, k.const(0, x)), k.math("log1p", k.math("exp", k.neg(k.math("absf", x)))))), functional=True)
_unary("erf", "Error function.", vectorised(math.erf), lambda b, x, y: b.mul(_num(b, x, 2 / math.sqrt(math.pi)), b.exp(b.neg(b.mul(x, x)))))
_unary("erfc", "Complementary error function.", vectorised(math.erfc), lambda b, x, y: b.mul(_num(b, x, -2 / math.sqrt(math.pi)), b.exp(b.neg(b.mul(x, x)))))


def _sign_of(b: Any, x: Any, out: Any) -> Any:
    return b.sign(x)


register(OpDef(
    "abs", "|x|; its derivative at 0 is 0.", ("x",), elementwise_rule("fiu"), np.abs, Partials((lambda b, ins, out: b.sign(ins[0]),)), Scalar(lambda k, op, x: k.abs(x)),
    samples=float_samples(avoid=(0.0,)), layouts="elementwise", exact=True,
    front=Front("abs(input)", lambda b, x: b.clone(x) if x.type.dtype is bool_ and not b.torch else b.abs(x),
                np=("absolute", "abs", "fabs"), operator=("__abs__",), aliases=("absolute",), inplace=True)))


def _whole_front(name: str) -> Any:
    """Rounding leaves integers as they are; NumPy's bools too."""

    def canon(b: Any, x: Any) -> Any:
        return b.clone(x) if x.type.dtype.kind in "iu" or (x.type.dtype is bool_ and not b.torch) else b.emit(name, [x])[0]

    return canon


def _round_front(b: Any, x: Any, decimals: Any = 0) -> Any:
    if x.type.dtype is bool_ and not b.torch:
        raise AotgradTypeError("round: NumPy rounds bools to float16, which compiled code does not have; convert them first")
    places = int(decimals)
    if places == 0 or x.type.dtype.kind in "iu" and places > 0:
        return _whole_front("round")(b, x)
    if x.type.dtype.kind in "iu":
        raise AotgradTypeError(f"round: integers to {places} decimals; convert them to a float dtype first")
    scale = b.full_like(x, 10.0 ** abs(places))
    return b.div(b.round(b.mul(x, scale)), scale) if places > 0 else b.mul(b.round(b.div(x, scale)), scale)


def _flat(name: str, doc: str, ref: Any, lower: Any, kinds: str = "f", keywords: str = "", **front: Any) -> None:
    register(OpDef(name, doc, ("x",), elementwise_rule(kinds), ref, Zero(), Scalar(lower), samples=float_samples(), layouts="elementwise", exact=True,
                   front=Front(f"{name}(input{keywords})", inplace=True, **front)))


_flat("sign", "-1, 0 or 1; NaN stays.", np.sign, lambda k, op, x: k.sign(x), "fiu", np=("sign",), aliases=("sgn",),
      canon=lambda b, x: b.clone(x) if x.type.dtype is bool_ and b.torch else b.sign(x))
_flat("floor", "Largest integer not above x.", np.floor, lambda k, op, x: k.math("floor", x), canon=_whole_front("floor"), np=("floor",))
_flat("ceil", "Smallest integer not below x.", np.ceil, lambda k, op, x: k.math("ceil", x), canon=_whole_front("ceil"), np=("ceil",))
_flat("trunc", "x rounded towards zero.", np.trunc, lambda k, op, x: k.math("trunc", x), canon=_whole_front("trunc"), np=("trunc", "fix"),
      aliases=("fix",))
_flat("round", "x rounded to the nearest integer, halves to even.", np.round, lambda k, op, x: k.math("roundeven", x), canon=_round_front, np=("rint", "round", "around"),
      keywords=", *, decimals=0", np_signature="round(input, decimals=0, out=None)")


def _test(name: str, doc: str, ref: Any, lower: Any) -> None:
    register(OpDef(name, doc, ("x",), elementwise_rule("f", out=bool_), ref, Zero(), Scalar(lower), samples=_specials, layouts="elementwise", exact=True,
                   front=Front(f"{name}(input)", promote="float", np=(name,))))


def _specials() -> Iterable[Sample]:
    yield Sample((np.array([1.0, np.nan, np.inf, -np.inf, -0.0]),), name="specials")


_test("isnan", "Whether x is NaN.", np.isnan, lambda k, op, x: k.cmp("ne", x, x))
_test("isinf", "Whether x is an infinity.", np.isinf, lambda k, op, x: k.cmp("eq", k.abs(x), k.const(math.inf, x)))
_test("isfinite", "Whether x is neither NaN nor an infinity.", np.isfinite, lambda k, op, x: k.cmp("lt", k.abs(x), k.const(math.inf, x)))


def _atan2_partial(b: Any, num: Any, y: Any, x: Any) -> Any:
    # num / (x*x + y*y) without overflow or underflow: scale by the larger magnitude first.
    s = b.maximum(b.abs(x), b.abs(y))
    u, v, w = b.div(x, s), b.div(y, s), b.div(num, s)
    return b.div(b.div(w, b.add(b.mul(u, u), b.mul(v, v))), s)


register(OpDef(
    "atan2", "Angle of the point (x, y).", ("y", "x"), elementwise_rule("f"), np.arctan2,
    Partials((lambda b, ins, out: _atan2_partial(b, ins[1], ins[0], ins[1]), lambda b, ins, out: b.neg(_atan2_partial(b, ins[0], ins[0], ins[1])))),
    Scalar(lambda k, op, y, x: k.math("atan2", y, x)), samples=float_samples(0.3, 2.0, 2), layouts="elementwise",
    front=Front("atan2(input, other)", promote="float", np=("arctan2", "atan2"), inplace=True, aliases=("arctan2",))))


def _tie_share(b: Any, wins: Any, ties: Any, like: Any) -> Any:
    zero, half, one = (b.full_like(like, v) for v in (0, 0.5, 1))
    return b.where(wins, one, b.where(ties, half, zero))


def _extremum(name: str, doc: str, fn: Any, better: str) -> None:
    def ref(x: Any, y: Any) -> Any:
        return zero_aware(np.asarray(fn(x, y)), lambda test: test(x) | test(y), better == "gt")

    def share(i: int) -> Any:
        return lambda b, ins, out: _tie_share(b, getattr(b, better)(ins[i], ins[1 - i]), b.eq(ins[0], ins[1]), ins[0])

    register(OpDef(
        name, doc, ("x", "y"), elementwise_rule("fiub"), ref, Partials((share(0), share(1))), Scalar(lambda k, op, x, y: getattr(k, name[:3])(x, y)),
        samples=float_samples(operands=2), layouts="elementwise", front=Front(f"{name}(input, other)", np=(name,))))


_extremum("maximum", "The larger of x and y, 0 above -0; NaN wins; ties share the derivative evenly.", np.maximum, "gt")
_extremum("minimum", "The smaller of x and y, -0 below 0; NaN wins; ties share the derivative evenly.", np.minimum, "lt")


def _clamp_ref(x: Any, low: Any, high: Any) -> Any:
    x = np.where((low > x) | (low != low), low, x)
    return np.where((high < x) | (high != high), high, x)


def _clamp_share(test: Callable[..., Any]) -> Any:
    return lambda b, ins, out: b.to_dtype(test(b, *ins), ins[0].type.dtype)


register(OpDef(
    "clamp", "x limited to [low, high]; derivative 1 on the closed interval, 0 for NaN.", ("x", "low", "high"), elementwise_rule("fiu"),
    _clamp_ref,
    Partials((_clamp_share(lambda b, x, lo, hi: b.logical_and(b.ge(x, lo), b.le(x, hi))), _clamp_share(lambda b, x, lo, hi: b.logical_and(b.lt(x, lo), b.le(lo, hi))),
              _clamp_share(lambda b, x, lo, hi: b.logical_or(b.gt(x, hi), b.logical_and(b.lt(x, lo), b.gt(lo, hi)))))),
    Scalar(lambda k, op, x, lo, hi: k.at_most(k.at_least(x, lo), hi)),
    samples=lambda: (Sample((s.operands[0], s.operands[0] * 0 - 1.0, s.operands[0] * 0 + 1.0), name=s.name) for s in float_samples(avoid=(-1.0, 1.0))()),
    layouts="elementwise", exact=True))


def _composite(name: str, doc: str, body: Any, samples: Any = None, **front: Any) -> None:
    register(OpDef(name, doc, ("x",), elementwise_rule("f"), None, Composite(body), samples=samples or float_samples(avoid=(0.0,)), layouts="elementwise",
                   front=Front(f"{name}(input)", promote="float", inplace=True, **front)))




def _square_front(b: Any, x: Any) -> Any:
    """Integers stay integers; bools are squared as int8 by NumPy, as int64 by torch."""
    return b.square(b.to_dtype(x, int64 if b.torch else int8) if x.type.dtype is bool_ else x)


def _reciprocal_front(b: Any, x: Any) -> Any:
    if x.type.dtype.kind not in "fc":
        if not b.torch:
            raise AotgradTypeError(f"reciprocal: NumPy's reciprocal of {x.type.dtype.name} is cut to a whole number; write 1.0 / x for floats, 1 // x for integers")
        x = b.to_dtype(x, defaults.dtype)
    return b.reciprocal(x)


register(OpDef("square", "x * x.", ("x",), elementwise_rule("fiu"), None, Composite(lambda b, x: b.mul(x, x)), samples=float_samples(avoid=(0.0,)), layouts="elementwise",
               front=Front("square(input)", _square_front, inplace=True, np=("square",))))
register(OpDef("reciprocal", "1 / x.", ("x",), elementwise_rule("f"), None, Composite(lambda b, x: _inverse(b, x)), samples=float_samples(avoid=(0.0,)),
               layouts="elementwise", front=Front("reciprocal(input)", _reciprocal_front, inplace=True, np=("reciprocal",))))
_composite("frac", "What is behind the point, with the sign of x.", lambda b, x: b.sub(x, b.trunc(x)))
_composite("rsqrt", "1 / sqrt(x).", lambda b, x: _inverse(b, b.sqrt(x)), _positive)
register(OpDef("relu", "x where positive, else 0; derivative 0 at 0; NaN stays.", ("x",), elementwise_rule("fiu"), None,
               Composite(lambda b, x: b.where(b.le(x, b.full_like(x, 0)), b.full_like(x, 0), x)), samples=float_samples(avoid=(0.0,)), layouts="elementwise",
               front=Front("relu(input)", inplace=True, functional=True)))


# ---- division with a whole quotient -------------------------------------------------------------------------------------------------

_ZERO = "ZeroDivisionError: an integer divided by zero; NumPy's arrays give 0"


def _may_divide_by_zero(op: Any) -> bool:
    known = splat(op.operands[1])
    return op.attrs["checked"] and op.operands[1].type.dtype.kind != "f" and (known is None or known == 0)


def _whole(float_fn: Callable[..., Any], int_fn: Callable[..., Any]) -> Scalar:
    return Scalar(lambda k, op, x, y: (float_fn if op.operands[0].type.dtype.kind == "f" else int_fn)(k, x, y),
                  Domain(1, _may_divide_by_zero, lambda k, op, y: k.cmp("ne", y, k.const(0, y)), _ZERO, 1))


def _same_sign_rest(k: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """The remainder of truncating division, and whether its sign differs from the divisor's."""
    r, zero = k.math("fmod", x, y), k.const(0, x)
    differs = k.logical("xor", k.cmp("lt", r, zero), k.cmp("lt", y, zero))
    return r, k.logical("and", k.cmp("ne", r, zero), differs)


def _lower_remainder(k: Any, x: Any, y: Any) -> Any:
    r, off = _same_sign_rest(k, x, y)
    signed_zero = k.math("copysign", k.const(0, x), y)
    return k.select(off, k.add(r, y), k.select(k.cmp("eq", r, k.const(0, x)), signed_zero, r))


def _lower_floor_divide(k: Any, x: Any, y: Any) -> Any:
    # As NumPy: the quotient of what is left after the remainder is near an integer, so rounding cannot put it on the wrong side.
    r, off = _same_sign_rest(k, x, y)
    q = k.div(k.sub(x, r), y)
    q = k.select(off, k.sub(q, k.const(1, x)), q)
    low = k.math("floor", q)
    low = k.select(k.cmp("gt", k.sub(q, low), k.const(0.5, x)), k.add(low, k.const(1, x)), low)
    whole = k.select(k.cmp("ne", q, k.const(0, x)), low, k.math("copysign", k.const(0, x), k.div(x, y)))
    return k.select(k.cmp("eq", y, k.const(0, x)), k.div(x, y), whole)


def _lower_int_fmod(k: Any, x: Any, y: Any) -> Any:
    r, zero = k.rem(x, y), k.const(0, x)
    off = k.logical("and", k.cmp("ne", r, zero), k.logical("xor", k.cmp("lt", x, zero), k.cmp("lt", y, zero)))
    return k.select(off, k.sub(r, y), r)


def _quotient_samples() -> Iterable[Sample]:
    rng = np.random.default_rng(17)
    for shape in ((3, 5), (), (0,)):
        y = rng.uniform(0.6, 2.0, shape) * np.where(rng.random(shape) > 0.5, 1.0, -1.0)
        yield Sample((y * (np.floor(rng.uniform(-3, 3, shape)) + rng.uniform(0.2, 0.8, shape)), y), name=f"{shape}")
    yield Sample((np.array([7, -7, 7, -7, 0, 5]), np.array([3, 3, -3, -3, 2, 0])), name="int")
    yield Sample((np.array([7, 250, 0], np.uint8), np.array([3, 7, 5], np.uint8)), name="uint8")


def _quotient(name: str, doc: str, ref: Any, derivative: Any, lower: Scalar, **front: Any) -> None:
    def checked_ref(x: Any, y: Any, checked: bool = False) -> Any:
        if checked and np.asarray(y).dtype.kind != "f" and not np.all(y):
            raise AotgradZeroDivisionError(f"{name}: {_ZERO}")
        return _quiet(ref)(x, y)

    def canon(b: Any, x: Any, y: Any) -> Any:
        return b.emit(name, [x, y], {"checked": b.checks and x.type.dtype.kind != "f"})[0]

    register(OpDef(name, f"{doc} Integers divided by 0 are an error in tensors, 0 in NumPy.", ("x", "y"), elementwise_rule("fiu"), checked_ref, derivative, lower,
                   {"checked": False}, _quotient_samples, layouts="elementwise", exact=True,
                   front=Front(f"{name}(input, other)", canon, "number", inplace=True, **front)))


_quotient("floor_divide", "The largest integer not above x / y.", np.floor_divide, Zero(), _whole(_lower_floor_divide, lambda k, x, y: k.div(x, y)),
          np=("floor_divide",), operator=("__floordiv__", "__rfloordiv__"))
_quotient("remainder", "x - floor(x / y) * y: the sign is the divisor's, as in Python.", np.remainder,
          Partials((lambda b, ins, out: b.full_like(ins[0], 1), lambda b, ins, out: b.neg(b.floor_divide(*ins)))), _whole(_lower_remainder, lambda k, x, y: k.rem(x, y)),
          np=("remainder", "mod"), operator=("__mod__", "__rmod__"))
_quotient("fmod", "x - trunc(x / y) * y: the sign is x's, as in C.", np.fmod,
          Partials((lambda b, ins, out: b.full_like(ins[0], 1), lambda b, ins, out: b.neg(b.trunc(b.div(*ins))))),
          _whole(lambda k, x, y: k.math("fmod", x, y), _lower_int_fmod), np=("fmod",))
