"""What the table is judged by besides the ops' own ``ref``: NumPy values of every composite, complex-step derivatives of every op, values at kinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import image_oracles as images
import numpy as np
import random_oracles
import scipy.special

from aotgrad.ir import Func, build, dims, interp, opdef, tensor_type
from aotgrad.ir.core import walk
from aotgrad.ir.transforms.differentiate import jvp_func, vjp_func
from aotgrad.ir.transforms.rewrite import decompose_func

STEP = 1e-30


# ---- values of composites -----------------------------------------------------------------------------------------------------------

def _np_index(idx: Sequence[Any], starts: Any, sizes: Any, steps: Any, drop: Any, arrays: Any, **_: Any) -> tuple[Any, ...]:
    """The index expression that attributes of getitem and setitem came from, without its new axes."""
    out: list[Any] = []
    given = iter(idx)
    for d, (start, size, step) in enumerate(zip(starts, sizes, steps)):
        end = start + size * step
        out.append(start if d in drop else next(given) if d in arrays else slice(0, 0) if size == 0 else slice(start, None if end < 0 else end, step))
    return tuple(out)


def _getitem(x: Any, *idx: Any, shape: Any, **attrs: Any) -> Any:
    return x[_np_index(idx, **attrs)].reshape(shape)


_AT = {"add": np.add.at, "mul": np.multiply.at, "min": np.minimum.at, "max": np.maximum.at}


def _setitem(x: Any, v: Any, *idx: Any, shape: Any, mode: str, **attrs: Any) -> Any:
    out, where = x.copy(), _np_index(idx, **attrs)
    part = v.reshape(out[where].shape)
    if mode == "set":
        out[where] = part
    else:
        _AT[mode](out, where, part)
    return out


def _along(mode: str) -> Callable[..., Any]:
    def write(x: Any, index: Any, src: Any, dim: int) -> Any:
        out = x.copy()
        for place in np.ndindex(*index.shape):
            at = (*place[:dim], index[place], *place[dim + 1:])
            out[at] = src[place] if mode == "set" else out[at] + src[place]
        return out

    return write


def _gather(x: Any, index: Any, dim: int) -> Any:
    out = np.empty(index.shape, x.dtype)
    for place in np.ndindex(*index.shape):
        out[place] = x[(*place[:dim], index[place], *place[dim + 1:])]
    return out


def _index_add(x: Any, index: Any, source: Any, dim: int) -> Any:
    out = x.copy()
    np.add.at(out, (*[slice(None)] * dim, index), source)
    return out


def _pad(x: Any, low: Any, high: Any, value: Any) -> Any:
    return np.pad(x, list(zip(low, high)), constant_values=value)


def _diag_embed(x: Any, offset: int) -> Any:
    return np.diag(x, offset)


def _masked_set(x: Any, mask: Any, v: Any, mode: str) -> Any:
    return np.where(mask, {"set": v, "add": x + v, "mul": x * v}[mode], x)


def _split(x: Any, sizes: Any, dim: int) -> Any:
    return tuple(np.split(x, np.cumsum(sizes)[:-1], axis=dim))


def _norm(x: Any, p: Any, dims: Any) -> Any:
    return np.asarray((np.abs(x) ** p).sum(axis=dims) ** (1 / p) if np.isfinite(p) else np.abs(x).max(axis=dims))


def _swap(x: Any, perm: Any) -> Any:
    return np.transpose(x, perm)


def _reshaped(x: Any, shape: Any) -> Any:
    return x.reshape(shape)


VALUES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("view", "flatten", "unflatten", "unsqueeze", "squeeze"), _reshaped), **dict.fromkeys(("reorder", "swap", "movedim"), _swap),
    **dict.fromkeys(("matmul", "mm", "mv", "bmm", "inner", "vector_dot"), np.matmul), **dict.fromkeys(("split", "chunk", "unbind"), _split),
    **dict.fromkeys(("pad", "constant_pad"), _pad), **dict.fromkeys(("gather", "take_along_dim"), _gather),
    "random_uniform": random_oracles.uniform, "random_normal": random_oracles.normal, "random_bits": random_oracles.bits,
    "spread": np.broadcast_to, "cat": lambda *xs, dim: np.concatenate(xs, dim), "stack": lambda *xs, dim: np.stack(xs, dim),
    "narrow": lambda x, start, length, dim: np.take(x, range(start, start + length), dim), "flip": lambda x, dims: np.flip(x, dims),
    "roll": lambda x, shifts, dims: np.roll(x, shifts, dims),
    "tile": lambda x, reps: np.tile(x, reps), "tril": lambda x, diagonal: np.tril(x, diagonal), "triu": lambda x, diagonal: np.triu(x, diagonal),
    "diagonal": lambda x, offset: np.diagonal(x, offset, -2, -1), "diag_embed": _diag_embed, "diag": lambda x, offset: np.diagonal(x, offset), "trace": np.trace,
    "sum_to_size": lambda x, dims, shape: x.sum(dims).reshape(shape),
    "frac": lambda x: x - np.trunc(x), "clamp_min": lambda x, bound: np.maximum(x, bound), "clamp_max": lambda x, bound: np.minimum(x, bound),
    "clip": lambda x, min, max: np.clip(x, min, max), "convert": lambda x, dtype: x.astype(dtype.np), "to_float": np.float32, "to_double": np.float64,
    "to_int": lambda x: x.astype(np.int32), "to_long": lambda x: x.astype(np.int64), "to_bool": lambda x: x.astype(bool), "count_nonzero": np.count_nonzero,
    "outer": np.outer, "einsum": lambda *xs, spec: np.einsum(spec, *xs), "t": np.transpose, "norm": _norm, "scatter_along": _along("set"),
    "scatter_add_along": _along("add"),
    "index_select": lambda x, index, dim: np.take(x, index, dim), "index_add": _index_add, "masked_fill": lambda x, mask, value: np.where(mask, value, x),
    "clone": np.copy,
    "repeat_interleave": lambda x, repeats, dim: np.repeat(x, repeats, dim), "getitem": _getitem, "setitem": _setitem, "masked_set": _masked_set,
    "rsub": lambda x, y: y - x, "square": np.square, "reciprocal": np.reciprocal, "rsqrt": lambda x: x ** -0.5, "relu": lambda x: np.maximum(x, 0),
    **{name: getattr(np, name) for name in ("deg2rad", "rad2deg", "fmax", "fmin", "heaviside", "nan_to_num", "isclose", "logaddexp2", "sinc", "kron")},
    "lerp": lambda x, y, w: x + w * (y - x), "xlogy": scipy.special.xlogy, "addcmul": lambda x, y, z, value: x + value * y * z,
    "addcdiv": lambda x, y, z, value: x + value * y / z, **dict.fromkeys(("addmm", "baddbmm"), lambda x, y, z, beta, alpha: beta * x + alpha * (y @ z)),
    "cross": lambda x, y, dim: np.cross(x, y, axis=dim),
    **{f"conv{r}d": images.conv for r in (1, 2, 3)}, **{f"conv_transpose{r}d": images.conv_transpose for r in (1, 2, 3)},
    **{f"{kind}_pool{r}d": fn for kind, fn in (("max", images.max_pool), ("avg", images.avg_pool), ("adaptive_avg", images.adaptive_avg),
                                              ("adaptive_max", images.adaptive_max)) for r in (1, 2, 3)},
    "mean": lambda x, dims: np.mean(x, axis=dims), "var": lambda x, dims, correction: np.var(x, axis=dims, ddof=correction),
    "std": lambda x, dims, correction: np.std(x, axis=dims, ddof=correction), "logsumexp": lambda x, dims: np.log(np.sum(np.exp(x), axis=dims)),
    "softmax": lambda x, dim: scipy.special.softmax(x, axis=dim), "log_softmax": lambda x, dim: scipy.special.log_softmax(x, axis=dim), "max": np.max, "min": np.min,
}


def sample_func(name: str, sample: opdef.Sample, xs: Sequence[Any]) -> Func:
    """The call of an op on operands of a sample's kind, all sizes static."""
    return build(name, [tensor_type(x.shape, x.dtype) for x in xs], lambda b, *vs: b.emit(name, vs, dict(sample.attrs)))


def composites() -> list[str]:
    return [op.name for op in opdef.all_ops().values() if isinstance(op.derivative, opdef.Composite)]


def check_value(name: str) -> None:
    """A composite's value on its samples against NumPy's own function."""
    assert name in VALUES, f"ag.{name} is a composite without a NumPy oracle: add one line to VALUES in tests/oracles.py"
    op = opdef.get(name)
    for s in (op.samples or tuple)():
        xs = [np.asarray(x) for x in s.operands]
        func = sample_func(name, s, xs)
        with np.errstate(all="ignore"):
            want = VALUES[name](*xs, **op.complete(s.attrs))
        for got, w in zip(interp.run(func, *xs), want if isinstance(want, tuple) else (want,), strict=True):
            assert got.shape == np.shape(w), f"{name}[{s.name}]: {got.shape} is not {np.shape(w)}"
            np.testing.assert_allclose(got, w, rtol=1e-14, atol=1e-14, err_msg=f"{name}[{s.name}]")


# ---- complex step -------------------------------------------------------------------------------------------------------------------

def _by_real(better: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y: np.where(better(x.real, y.real), x, y)


def _quotient(whole: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y, checked=True: x - whole(x.real / y.real) * y


def _complex_extremum(pick: Callable[..., Any]) -> Callable[..., Any]:
    def ref(x: Any, dims: Any) -> Any:
        return pick(x, axis=dims)  # lexicographic: by the real part

    return ref


def _polygamma(z: Any, n: int) -> Any:
    """By its first 2,000 terms, and the integral of the rest with its corrections."""
    m = z + 2000
    rest = 1 / (n * m**n) + 0.5 / m ** (n + 1) + (n + 1) / (12 * m ** (n + 2))
    return (-1) ** (n + 1) * float(scipy.special.factorial(n)) * (sum(1 / (z + i) ** (n + 1) for i in range(2000)) + rest)


def _erfinv(z: Any) -> Any:
    v = scipy.special.erfinv(z.real).astype(z.dtype)
    for _ in range(3):
        v = v - (scipy.special.erf(v) - z) * np.sqrt(np.pi) / 2 * np.exp(v * v)
    return v


# Analytic continuations of what ``ref`` cannot do on complex numbers.
COMPLEX: dict[str, Callable[..., Any]] = {
    "exp2": lambda z: np.exp(z * np.log(2)), "sigmoid": lambda z: 1 / (1 + np.exp(-z)), "softplus": lambda z: np.log1p(np.exp(z)), "erf": scipy.special.erf,
    "erfc": scipy.special.erfc, "lgamma": scipy.special.loggamma, "digamma": scipy.special.digamma, "polygamma": _polygamma, "erfinv": _erfinv,
    "abs": lambda z: np.where(z.real < 0, -z, z), "maximum": _by_real(np.greater), "minimum": _by_real(np.less), "atan2": lambda y, x: np.arctan(y / x),
    "clamp": lambda x, lo, hi: np.where(x.real < lo.real, lo, np.where(x.real > hi.real, hi, x)), "remainder": _quotient(np.floor), "fmod": _quotient(np.trunc),
    "amax": _complex_extremum(np.max), "amin": _complex_extremum(np.min),
    "cbrt": lambda z: z ** (1 / 3), "hypot": lambda x, y: np.sqrt(x * x + y * y), "logaddexp": lambda x, y: np.log(np.exp(x) + np.exp(y)),
    "logaddexp2": lambda x, y: np.log(np.exp2(x.real) * np.exp(1j * np.log(2) * x.imag) + np.exp2(y.real) * np.exp(1j * np.log(2) * y.imag)) / np.log(2),
    "root_sum_powers": lambda z, p, dims: np.sum(np.where(z.real < 0, -z, z) ** p, axis=dims) ** (1 / p),
    "stop_gradient": lambda z, reverse, view=False: z,  # rules use it where the derivative is 0 anyway (shifts by a maximum): elsewhere it is a fault
}


def _complex_op(op: Any, ins: Sequence[Any], env: Mapping[str, int]) -> list[Any]:
    definition = opdef.get(op.name)
    attrs = {k: dims.substitute(v, env) if isinstance(v, dims.Dim) else v for k, v in op.attrs.items()}
    floats = [r.type.dtype.kind == "f" for r in op.results]
    if op.name == "cast":
        return [ins[0] if floats[0] else ins[0].real.astype(attrs["dtype"].np)]
    if isinstance(definition.derivative, opdef.Zero) and op.name != "stop_gradient":
        ins = [x.real if x.dtype.kind == "c" else x for x in ins]
    ref = COMPLEX.get(op.name) if any(x.dtype.kind == "c" for x in ins) else None
    out = (ref or definition.ref)(*ins, **attrs)  # type: ignore[misc]
    outs = out if isinstance(out, tuple) else (out,)
    return [np.asarray(o, complex) if f else np.asarray(o) for o, f in zip(outs, floats)]


def complex_jvp(func: Func, arrays: Sequence[Any], tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Values and directional derivatives of the float outputs of a program without regions, by one evaluation at x + ih t."""
    block = decompose_func(func).body
    moved = iter(tangents)
    env: dict[Any, Any] = {a: x + 1j * STEP * next(moved) if x.dtype.kind == "f" else x for a, x in zip(block.args, arrays)}
    with np.errstate(all="ignore"):
        for op in block.ops:
            env.update(zip(op.results, _complex_op(op, [env[o] for o in op.operands], {})))
    outs = [np.asarray(env[o]) for o in block.outputs]
    floats = [o for o in outs if o.dtype.kind == "c"]
    return [o.real for o in floats], [o.imag / STEP for o in floats]


def check_complex_step(name: str) -> int:
    """Forward mode of every sample of an op against the complex step, and of its pullback (second order): to rounding, not to a step size."""
    op, rng, count = opdef.get(name), np.random.default_rng(1), 0
    for s in (op.samples or tuple)():
        xs = [np.asarray(x) for x in s.operands]
        on = [x.dtype.kind == "f" for x in xs]
        func = sample_func(name, s, xs)
        if not any(on) or name == "stop_gradient" or any(o.name == "scan" for o in walk(decompose_func(func).body)):
            continue
        _one_complex_step(func, xs, rng, f"{name}[{s.name}]")
        pull = vjp_func(func, on)
        cts = [rng.normal(size=t.shape).astype(t.dtype.np) for t in func.out_types if t.dtype.kind == "f"]
        _one_complex_step(pull, [*xs, *cts], rng, f"{name}[{s.name}] pullback")
        count += 1
    return count


def _one_complex_step(func: Func, xs: Sequence[Any], rng: np.random.Generator, what: str) -> None:
    on = [x.dtype.kind == "f" for x in xs]
    tangents = [np.asarray(rng.normal(size=x.shape), x.dtype) for x in xs if x.dtype.kind == "f"]
    narrow = any(r.type.dtype.name == "float32" for o in walk(decompose_func(func).body) for r in o.results)
    rtol = 2e-6 if narrow else 1e-11
    values, want = complex_jvp(func, xs, tangents)
    got = interp.run(jvp_func(func, on), *xs, *tangents)
    outs = [o for o in got[:len(func.outputs)] if o.dtype.kind == "f"]
    for a, b in zip(outs, values, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol, err_msg=f"{what} value")
    for a, b in zip(got[len(func.outputs):], want, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol, err_msg=f"{what} derivative")


def check_types(name: str) -> None:
    """A cotangent has the type of its operand, a tangent the type of its result, in float64 and float32."""
    op = opdef.get(name)
    for s in (op.samples or tuple)():
        for dtype in (np.float64, np.float32):
            xs = [np.asarray(x, dtype) if np.asarray(x).dtype == np.float64 else np.asarray(x) for x in s.operands]
            on = [x.dtype.kind == "f" for x in xs]
            func = sample_func(name, s, xs)
            if any(on):
                n = len(func.outputs)
                assert vjp_func(func, on).out_types[n:] == [t for t, live in zip(func.arg_types, on) if live], f"{name}[{s.name}]"
                assert jvp_func(func, on).out_types[n:] == [t for t in func.out_types if t.dtype.kind == "f"], f"{name}[{s.name}]"


# ---- kinks and singular points ------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Kink:
    """A program, a point, and the published gradient of the sum of its result there."""

    name: str
    body: Callable[..., Any]
    point: tuple[Any, ...]
    gradient: tuple[Any, ...]


def _where_sqrt(b: Any, x: Any) -> Any:
    zero = b.full_like(x, 0)
    return b.where(b.gt(x, zero), b.sqrt(x), zero)


def _untaken(b: Any, x: Any) -> Any:
    return b.where(b.lt(x, b.full_like(x, 2000)), x, b.exp(b.exp(x)))


def _op(name: str, **attrs: Any) -> Callable[..., Any]:
    return lambda b, *xs: b.emit(name, xs, attrs)[0]


def _scatter(b: Any, x: Any, v: Any) -> Any:
    out = b.scatter(x, b.array(np.array([1, 1, 0])), v, dim=0)
    return b.mul(out, b.array(np.array([1.0, 10.0, 100.0])))


_INF, _NAN = np.inf, np.nan
KINKS = [
    Kink("abs", _op("abs"), ([0.0, -0.0, 2.0],), ([0, 0, 1],)),
    Kink("relu", _op("relu"), ([0.0, -1.0, 1.0],), ([0, 0, 1],)),
    Kink("maximum", _op("maximum"), ([1.0, 2.0, 0.0], [1.0, 1.0, 3.0]), ([0.5, 1, 0], [0.5, 0, 1])),
    Kink("minimum", _op("minimum"), ([1.0, 2.0, 0.0], [1.0, 1.0, 3.0]), ([0.5, 0, 1], [0.5, 1, 0])),
    Kink("amax", _op("amax", dims=(0,)), ([2.0, 2.0, 1.0],), ([0.5, 0.5, 0],)),
    Kink("amin", _op("amin", dims=(0,)), ([1.0, 2.0, 1.0, 1.0],), ([1 / 3, 0, 1 / 3, 1 / 3],)),
    Kink("clamp", _op("clip", min=-1.0, max=1.0), ([-1.0, 0.0, 1.0, 2.0, -_INF, _NAN],), ([1, 1, 1, 0, 0, 0],)),
    Kink("sqrt", _op("sqrt"), ([0.0, 4.0],), ([_INF, 0.25],)),
    Kink("masked sqrt", _where_sqrt, ([0.0, 4.0, -1.0],), ([0, 0.25, 0],)),
    Kink("untaken overflow", _untaken, ([1000.0, 1.0],), ([1, 1],)),
    Kink("power 0", _op("pow"), ([0.0, 1.0, -2.0], [0.0, 0.0, 0.0]), ([0, 0, 0], [0, 0, _NAN])),
    Kink("0 to the b", _op("pow"), ([0.0, 0.0], [0.0, 2.0]), ([0, 0], [0, 0])),
    Kink("norm", _op("norm", p=2, dims=(0,)), ([0.0, 0.0],), ([0, 0],)),
    Kink("std", _op("std", dims=(0,), correction=0), ([3.0, 3.0],), ([0, 0],)),
    Kink("logsumexp", _op("logsumexp", dims=(0,)), ([-_INF, -_INF],), ([0, 0],)),
    Kink("one zero in a product", _op("prod", dims=(0,)), ([0.0, 2.0, 3.0],), ([6, 0, 0],)),
    Kink("two zeros in a product", _op("prod", dims=(0,)), ([0.0, 0.0, 3.0],), ([0, 0, 0],)),
    Kink("zero in a running product", _op("cumprod", dim=0), ([2.0, 0.0, 3.0],), ([1, 8, 0],)),
    Kink("repeated writes", _scatter, ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]), ([0, 0, 100], [0, 10, 1])),
    Kink("sign and floor", lambda b, x: b.add(b.add(b.sign(x), b.floor(x)), b.add(b.round(x), x)), ([0.0, 1.0],), ([1, 1],)),
]


def kink_func(kink: Kink) -> tuple[Func, list[Any]]:
    xs = [np.asarray(x, float) for x in kink.point]
    return build("f", [tensor_type(x.shape, x.dtype) for x in xs], kink.body), xs


def check_kink(kink: Kink, run: Callable[..., Any] = interp.run) -> None:
    """Both modes at a point where the textbook has no answer, against the published one. ``run(func, *arrays)`` executes."""
    func, xs = kink_func(kink)
    on, n = [True] * len(xs), len(func.outputs)
    cts = [np.ones(t.shape) for t in func.out_types]
    for got, want in zip(run(vjp_func(func, on), *xs, *cts)[n:], kink.gradient, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-15, err_msg=f"{kink.name}: reverse")
    jvp = jvp_func(func, on)
    for i, x in enumerate(xs):
        for j in range(x.size):
            tangents = [np.zeros_like(y) for y in xs]
            tangents[i][j] = 1.0
            moved = run(jvp, *xs, *tangents)[n:]
            np.testing.assert_allclose(sum(np.sum(m) for m in moved), kink.gradient[i][j], rtol=1e-15, err_msg=f"{kink.name}: forward")
