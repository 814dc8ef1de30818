"""Arithmetic: add, sub, mul, div, neg, pow, lmul, comparisons, logical ops, where, casts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from aotgrad_runtime import dtypes
from aotgrad_runtime.arrays import converted
from aotgrad_runtime.dtypes import as_dtype, bool_
from aotgrad_runtime.errors import AotgradOverflowError, AotgradTypeError, AotgradValueError

from ..opdef import REQUIRED, Bilinear, Composite, Domain, Front, Linear, OpDef, Partials, Sample, Scalar, Zero, register
from ..transforms.cleanup import splat
from ..types import TensorType
from .common import compare_rule, elementwise_rule, float_samples, order_rule


def _same(b: Any, ct: Any, op: Any) -> dict[int, Any]:
    return {0: ct, 1: ct}


register(OpDef(
    "add", "x + y.", ("x", "y"), elementwise_rule(), np.add, Linear(_same, partial=lambda lb, t: t[1] if t[0] is None else t[0]),
    Scalar(lambda k, op, x, y: k.add(x, y)), samples=float_samples(operands=2),
    layouts="elementwise", exact=True, front=Front("add(input, other, *, alpha=1)", canon=lambda b, x, y,
    alpha=1: b.add(x, y if alpha == 1 else b.mul(y, b.full_like(y, alpha))),
                                                   np=("add",), operator=("__add__", "__radd__"), inplace=True)))
register(OpDef(
    "sub", "x - y.", ("x", "y"), elementwise_rule("fciu"), np.subtract,
    Linear(lambda b, ct, op: {0: ct, 1: b.neg(ct)}, partial=lambda lb, t: lb.neg(t[1]) if t[0] is None else t[0]), Scalar(lambda k, op, x, y: k.sub(x, y)),
    samples=float_samples(operands=2), layouts="elementwise", exact=True,
    front=Front("sub(input, other, *, alpha=1)", canon=lambda b, x, y, alpha=1: b.sub(x, y if alpha == 1 else b.mul(y, b.full_like(y, alpha))), promote="minus",
                np=("subtract",), operator=("__sub__",), inplace=True, aliases=("subtract",))))
register(OpDef(
    "rsub", "y - x: the operator of a tensor behind a number.", ("x", "y"), None, None, Composite(lambda b, x, y: b.sub(y, x)), samples=float_samples(operands=2),
    layouts="elementwise", front=Front("rsub(input, other, *, alpha=1)", canon=lambda b, x, y, alpha=1: b.sub(y, x if alpha == 1 else b.mul(x, b.full_like(x, alpha))),
                                       promote="minus", operator=("__rsub__",), method=False)))
register(OpDef(
    "mul", "x * y.", ("x", "y"), elementwise_rule(), np.multiply, Bilinear((lambda b, ct, y, op: b.lmul(ct, y), lambda b, ct, x, op: b.lmul(ct, x)), tangent="lmul"),
    Scalar(lambda k, op, x, y: k.mul(x, y)), samples=float_samples(operands=2), layouts="elementwise", exact=True,
    front=Front("mul(input, other)", np=("multiply",), operator=("__mul__", "__rmul__"), inplace=True, aliases=("multiply",))))


def _lmul(x: Any, y: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.where((x == 0) | (y == 0), np.zeros((), np.result_type(x, y)), np.multiply(x, y))


register(OpDef(
    "lmul", "x * y, and 0 where either is exactly 0: the product of the linear part of every derivative, in which zero annihilates.", ("x", "y"), elementwise_rule("fc"),
    _lmul, Bilinear((lambda b, ct, y, op: b.lmul(ct, y), lambda b, ct, x, op: b.lmul(ct, x))),
    Scalar(lambda k, op, x, y: k.select(k.logical("and", k.cmp("ne", x, k.const(0, x)), k.cmp("ne", y, k.const(0, y))), k.mul(x, y), k.const(0, x))),
    samples=float_samples(operands=2), layouts="elementwise", exact=True))


def _reciprocal_of(b: Any, y: Any) -> Any:
    return b.div(b.full_like(y, 1), y)


def _div_canon(b: Any, x: Any, y: Any, rounding_mode: Any = None) -> Any:
    if rounding_mode == "floor":
        return b.floor_divide(x, y)
    if rounding_mode == "trunc":
        return b.trunc(b.div(x, y)) if x.type.dtype.kind in "fc" else b.floor_divide(b.sub(x, b.fmod(x, y)), y)
    if rounding_mode is not None:
        raise AotgradValueError(f"div: rounding_mode={rounding_mode!r} must be None, 'trunc' or 'floor'")
    return b.div(x, y)


register(OpDef(
    "div", "x / y (true division of floats); ``rounding_mode``: 'trunc' or 'floor'.", ("x", "y"), elementwise_rule("fc"), np.divide,
    Partials((lambda b, ins, out: _reciprocal_of(b, ins[1]), lambda b, ins, out: b.neg(b.div(out, ins[1])))),
    Scalar(lambda k, op, x, y: k.div(x, y)), samples=float_samples(0.5, 2.0, 2), layouts="elementwise", exact=True,
    front=Front("div(input, other, *, rounding_mode=None)", _div_canon, lambda arguments: "arith" if arguments.get("rounding_mode") else "float",
    np=("divide", "true_divide"), np_signature="divide(input, other)",
    operator=("__truediv__", "__rtruediv__"), inplace=True,
    aliases=("divide", "true_divide"))))
register(OpDef(
    "neg", "-x.", ("x",), elementwise_rule("fciu"), np.negative, Linear(lambda b, ct, op: {0: b.neg(ct)}), Scalar(lambda k, op, x: k.neg(x)), samples=float_samples(),
    layouts="elementwise", exact=True, front=Front("neg(input)", np=("negative",), operator=("__neg__",), inplace=True, aliases=("negative",))))


def _pow_x(b: Any, ins: Sequence[Any], out: Any) -> Any:
    x, y = ins
    return b.lmul(y, b.pow(x, b.sub(y, b.full_like(y, 1))))  # y = 0 gives 0 whatever x is


def _pow_y(b: Any, ins: Sequence[Any], out: Any) -> Any:
    x, y = ins
    zero = b.full_like(x, 0)
    at_zero = b.logical_and(b.eq(x, zero), b.ge(y, zero))
    return b.where(at_zero, zero, b.lmul(out, b.log(x)))  # 0**b: 0 in b


def _pow_ref(x: Any, y: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.power(x, y)


_POWERS = "integers to negative integer powers are not allowed; convert the base to a float dtype"


def _may_be_negative(op: Any) -> bool:
    power = op.operands[1]
    known = splat(power)
    return power.type.dtype.kind == "i" and (known is None or known < 0)


def _pow_canon(b: Any, x: Any, y: Any) -> Any:
    """Exponents that are small numbers become products (NumPy's own operator does so for 0, 1, 2, -1 and 1/2): exact, fast, and polynomials to every derivative."""
    c, whole = splat(y), x.type.dtype.kind in "iu"
    if whole and c is not None and c < 0:
        raise AotgradValueError(f"pow: {_POWERS}")
    if c == 0:
        return b.full_like(x, 1)
    if c == 1:
        return x
    if c in (2, 3, 4):
        square = b.mul(x, x)
        return square if c == 2 else b.mul(square, x if c == 3 else square)
    if c == 0.5:
        return b.sqrt(x)
    return _reciprocal_of(b, x) if c == -1 else b.pow(x, y)


register(OpDef(
    "pow", "x ** y.", ("x", "y"), elementwise_rule("fiu"), _pow_ref, Partials((_pow_x, _pow_y)),
    Scalar(lambda k, op, x, y: k.pow(x, y), Domain(1, _may_be_negative, lambda k, op, x: k.cmp("ge", x, k.const(0, x)), f"pow: {_POWERS}")),
    samples=float_samples(0.5, 2.0, 2), layouts="elementwise",
    front=Front("pow(input, exponent)", _pow_canon, "number", np=("power", "float_power"), operator=("__pow__", "__rpow__"), inplace=True)))


def _bool_samples() -> Iterable[Sample]:
    rng = np.random.default_rng(3)
    for shape in ((3, 4), (), (0,)):
        yield Sample((rng.random(shape) > 0.5, rng.random(shape) > 0.5), name=f"{shape}")


def _compare(name: str, np_name: str, sign: str, ref: Any, operators: tuple[str, ...], aliases: tuple[str, ...] = ()) -> None:
    register(OpDef(
        name, f"x {sign} y, elementwise.", ("x", "y"), compare_rule if name in ("eq", "ne") else order_rule, ref, Zero(),
        Scalar(lambda k, op, x, y: k.cmp(name, x, y)), samples=float_samples(operands=2),
        layouts="elementwise", exact=True,
        front=Front(f"{name}(input, other)", promote="compare", np=(np_name,), operator=operators, inplace=True, aliases=aliases)))


_compare("lt", "less", "<", np.less, ("__lt__",), ("less",))
_compare("le", "less_equal", "<=", np.less_equal, ("__le__",), ("less_equal",))
_compare("gt", "greater", ">", np.greater, ("__gt__",), ("greater",))
_compare("ge", "greater_equal", ">=", np.greater_equal, ("__ge__",), ("greater_equal",))
_compare("eq", "equal", "==", np.equal, ("__eq__",), ())
_compare("ne", "not_equal", "!=", np.not_equal, ("__ne__",), ("not_equal",))


def _logical(name: str, kind: str, ref: Any, operators: tuple[str, ...]) -> None:
    register(OpDef(
        name, f"Elementwise {kind} of bools.", ("x", "y"), elementwise_rule("b"), ref, Zero(), Scalar(lambda k, op, x, y: k.logical(kind, x, y)), samples=_bool_samples,
        layouts="elementwise", exact=True, front=Front(f"{name}(input, other)", promote="bool", np=(name,), operator=operators, inplace=True)))


_logical("logical_and", "and", np.logical_and, ("__and__", "__rand__"))
_logical("logical_or", "or", np.logical_or, ("__or__", "__ror__"))
_logical("logical_xor", "xor", np.logical_xor, ("__xor__", "__rxor__"))


def _int_samples() -> Iterable[Sample]:
    rng = np.random.default_rng(4)
    for shape in ((3, 4), (), (0,)):
        yield Sample((rng.integers(-9, 9, shape), rng.integers(0, 7, shape)), name=f"{shape}")


def _bitwise(name: str, doc: str, ref: Any, fn: Any, kinds: str, np_names: tuple[str, ...], operators: tuple[str, ...]) -> None:
    register(OpDef(
        f"bitwise_{name}", doc, ("x", "y"), elementwise_rule(kinds), ref, Zero(), Scalar(fn), samples=_int_samples, layouts="elementwise", exact=True,
        front=Front(f"bitwise_{name}(input, other)", promote="arith" if "b" in kinds else "number", np=np_names, operator=operators, inplace=True)))


_fn: Any
for _name, _fn in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor)):
    _bitwise(_name, f"Bitwise {_name} of integers or bools.", _fn, lambda k, op, x, y, kind=_name: k.logical(kind, x, y), "biu", (f"bitwise_{_name}",), ())
for _name, _fn in (("left", np.left_shift), ("right", np.right_shift)):
    _bitwise(f"{_name}_shift", f"Bits of x moved {_name} by y places.", _fn, lambda k, op, x, y, way=_name: k.shift(way, x, y), "iu",
             (f"{_name}_shift", f"bitwise_{_name}_shift"), ("__lshift__", "__rlshift__") if _name == "left" else ("__rshift__", "__rrshift__"))
register(OpDef(
    "logical_not", "Elementwise not of bools.", ("x",), elementwise_rule("b"), np.logical_not, Zero(), Scalar(lambda k, op, x: k.logical("xor", x, k.const(True, x))),
    samples=lambda: (Sample(s.operands[:1], name=s.name) for s in _bool_samples()), layouts="elementwise", exact=True,
    front=Front("logical_not(input)", promote="bool", np=("logical_not",), inplace=True)))


def _all_bits(dtype: Any) -> Any:
    return True if dtype is bool_ else -1 if dtype.kind == "i" else int(np.iinfo(dtype.np).max)


register(OpDef(
    "bitwise_not", "Every bit of an integer turned; not of bools.", ("x",), elementwise_rule("biu"), np.invert, Zero(),
    Scalar(lambda k, op, x: k.logical("xor", x, k.const(_all_bits(op.operands[0].type.dtype), x))),
    samples=lambda: (Sample(s.operands[:1], name=f"{kind}{s.name}") for kind, made in (("b", _bool_samples), ("i", _int_samples)) for s in made()), layouts="elementwise",
    exact=True, front=Front("bitwise_not(input)", promote="none", np=("invert",), operator=("__invert__",), inplace=True)))


def _where_rule(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Sequence[TensorType]:
    if types[0].dtype is not bool_:
        raise AotgradTypeError(f"where: the condition is {types[0].dtype.name}, not bool; compare it with 0 first")
    return elementwise_rule(first=1)(types, attrs)


def _where_transpose(b: Any, ct: Any, op: Any) -> dict[int, Any]:
    zero = b.zeros(ct)
    return {1: b.where(op.operands[0], ct, zero), 2: b.where(op.operands[0], zero, ct)}


def _where_samples() -> Iterable[Sample]:
    rng = np.random.default_rng(5)
    for shape in ((3, 4), (), (0, 2)):
        yield Sample((rng.random(shape) > 0.5, rng.normal(size=shape), rng.normal(size=shape)), name=f"{shape}")


register(OpDef(
    "where", "x where the condition holds, else y.", ("condition", "x", "y"), _where_rule, np.where, Linear(_where_transpose, (1, 2)),
    Scalar(lambda k, op, c, x, y: k.select(c, x, y)), samples=_where_samples, layouts="elementwise", exact=True,
    front=Front("where(condition, input, other)", promote="where", np=("where",), method=False)))


def _cast_rule(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> Sequence[TensorType]:
    return (TensorType(types[0].shape, attrs["dtype"], types[0].layout),)


def _cast_samples() -> Iterable[Sample]:
    x = np.array([[-1.5, 0.0, 2.75], [3.0, -0.0, 8.5]])
    for d in (dtypes.float32, dtypes.int64, dtypes.int32, dtypes.bool_, dtypes.float64):
        yield Sample((x,), {"dtype": d}, name=d.name)
    yield Sample((np.array([1, -2], np.int32),), {"dtype": dtypes.float64}, name="i32")


def _cast_ref(x: Any, dtype: Any) -> Any:
    x = np.asarray(x)
    if x.dtype == np.uint16 or dtype is dtypes.bfloat16:  # bfloat16 in its storage
        return converted(x, dtype)
    return x.astype(dtype.np)


def _cast_transpose(b: Any, ct: Any, op: Any) -> dict[int, Any]:
    return {0: b.to_dtype(ct, op.operands[0].dtype)}


register(OpDef(
    "cast", "x converted to ``dtype`` (C rules: floats truncate towards zero).", ("x",), _cast_rule, lambda x, dtype: np.asarray(x).astype(dtype.np),
    Linear(_cast_transpose),
    Scalar(lambda k, op, x: k.cast(x, op.operands[0].type.dtype, op.attrs["dtype"])), {"dtype": REQUIRED}, _cast_samples, layouts="any", exact=True))


_UNFIT = "OverflowError: a Python integer is out of bounds for {dtype}"


def _fit_ref(x: Any, dtype: Any) -> Any:
    x = np.asarray(x)
    out = x.astype(dtype.np)
    if not np.array_equal(out, x):
        raise AotgradOverflowError(f"{_UNFIT.format(dtype=dtype.name)} ({int(x[out != x].flat[0])})")
    return out


def _may_not_fit(op: Any) -> bool:
    known, range_ = splat(op.operands[0]), np.iinfo(op.attrs["dtype"].np)
    return known is None or not range_.min <= known <= range_.max


def _fits(k: Any, op: Any, x: Any) -> Any:
    range_ = np.iinfo(op.attrs["dtype"].np)
    return k.logical("and", k.cmp("ge", x, k.const(range_.min, x)), k.cmp("le", x, k.const(range_.max, x)))


register(OpDef(
    "fit", "Integers converted to a narrower ``dtype``; one that it does not hold is an error.", ("x",), _cast_rule, _fit_ref, Zero(),
    Scalar(lambda k, op, x: k.cast(x, op.operands[0].type.dtype, op.attrs["dtype"]), Domain(0, _may_not_fit, _fits, _UNFIT, 2)), {"dtype": REQUIRED},
    lambda: (Sample((np.array([[-128, 0, 5], [3, 127, 8]]),), {"dtype": as_dtype(d)}, name=d) for d in ("int8", "int32")), layouts="elementwise", exact=True))
