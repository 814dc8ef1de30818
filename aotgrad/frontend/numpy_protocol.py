"""NumPy functions and ufuncs on tensors and traced values: each goes to the op that serves it, or is refused with the user's line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotgrad.ir.ops.common import norm_dim, norm_dims, whole
from aotgrad.ir.ops.contract import einsum_view
from aotgrad_runtime.arrays import converted, decode, held
from aotgrad_runtime.dtypes import DType, as_dtype, bool_, float64, int8
from aotgrad_runtime.errors import AotgradArgumentError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.tensor import ArrayTensor, Tensor

from . import indexing
from .dispatch import NUMPY, TORCH, call, run
from .eager import Dual
from .numpy_composed import COMPOSED
from .numpy_reductions import REDUCTIONS, accumulated, reduced
from .promotion import to_float
from .sizes import equal_sizes
from .trace import Traced, TracedArray, current, user_loc

__all__ = ["array_function", "array_ufunc"]

_PRODUCTS = {"vecdot": "...i,...i->...", "matvec": "...ij,...j->...i", "vecmat": "...i,...ij->...j"}
_FLOATS = {"rint": "rint", "fabs": "absolute", "float_power": "power"}
_SAYS_NOTHING: dict[str, tuple[Any, ...]] = {"dtype": (None,), "casting": ("same_kind", "unsafe"), "order": ("K", "C", "A"), "subok": (True,)}
"""Keywords of ufuncs, and those of their values that change no result here."""
_BITS = {"bitwise_and": "logical_and", "bitwise_or": "logical_or", "bitwise_xor": "logical_xor"}


def _refused(name: str, why: str = "is not available for tensors and traced values") -> AotgradTypeError:
    if name.startswith("scipy.special."):
        why += " (of SciPy's functions ag has erf, erfc, expit, logsumexp, softmax, log_softmax, xlogy)"
    instead = ("call it through g = ag.host_call(f, types), which runs Python in the middle of compiled code" if current() is not None else
               "where no gradient is needed, take the numbers first: x.detach().numpy()")
    return AotgradTypeError(f"{user_loc()}: {name} {why}. Write it with functions that are (the documentation lists them), or {instead}")


# ---- ufuncs -----------------------------------------------------------------------------------------------------------------------------

def array_ufunc(self: Any, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """``np.sin(x)``, ``array + x``, ``np.add.reduce(x)``."""
    name = ufunc.__name__
    out = kwargs.pop("out", None)
    if out is not None:
        return _into(out, ufunc, method, inputs, kwargs)
    if method == "__call__":
        mask = kwargs.pop("where", True)
        made = _ufunc(name, inputs, kwargs)
        return made if mask is True else call(NUMPY["where"], (mask, made, filled_like(made, 0)), {})  # NumPy leaves what was in the memory
    if method in ("reduce", "accumulate"):
        made = (reduced if method == "reduce" else accumulated)(name, inputs[0], inputs[1:], kwargs)
        if made is not NotImplemented:
            return made
    if method == "outer" and len(inputs) == 2:
        x, y = (v if isinstance(v, Tensor) else np.asarray(v) for v in inputs)
        return _ufunc(name, (_reshape(x, (*x.shape, *[1] * len(y.shape))), y), kwargs)
    if method == "at":
        raise AotgradTypeError(f"{user_loc()}: np.{name}.at writes into its first argument; for an index without repeats write x[i] "
                             f"{'+=' if name == 'add' else '*='} v, else x = x.at[i].{'add' if name == 'add' else 'mul'}(v)")
    raise _refused(f"np.{name}.{method}")


def _ufunc(name: str, inputs: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if name in _BITS:
        kinds = [x._dtype if isinstance(x, Tensor) else np.asarray(x).dtype for x in inputs]
        if all(k in (bool_, np.bool_) for k in kinds):
            name = _BITS[name]
    if name in _PRODUCTS and not kwargs:
        return _contract(name, _PRODUCTS[name], *(v if isinstance(v, Tensor) else np.asarray(v) for v in inputs))
    if name == "conjugate" and isinstance(inputs[0], Tensor) and inputs[0]._dtype.is_complex:
        return inputs[0].conj()
    if name == "conjugate" and isinstance(inputs[0], Tensor) and inputs[0]._dtype is bool_:
        return run(TORCH["astype"], {"input": inputs[0], "dtype": int8})  # as NumPy has it
    if name in ("positive", "conjugate"):
        return call(TORCH["clone"], tuple(inputs), {})
    if name in _FLOATS:  # the functions that serve them leave integers
        name, inputs = _FLOATS[name], [_as_float(x, name) for x in inputs]
    if name == "divmod" and not kwargs:
        return _divmod(*inputs)
    public = NUMPY.get(name)
    if public is None:
        if _just_numbers(inputs):
            return getattr(np, name)(*_numbers(inputs), **kwargs)
        raise _refused(f"np.{name}" if hasattr(np, name) else f"scipy.special.{name}")
    for key, plain in _SAYS_NOTHING.items():
        if kwargs.get(key, plain[0]) in plain:
            kwargs.pop(key, None)
    if unknown := [k for k in kwargs if k in (*_SAYS_NOTHING, "signature", "axes", "axis", "keepdims")]:
        raise AotgradTypeError(f"{user_loc()}: np.{name}: {unknown[0]}= is not available for tensors and traced values; "
                               f"{'convert what goes in: x.astype(dtype)' if unknown[0] == 'dtype' else f'its signature is {public.shown()}'}")
    return call(public, tuple(inputs), kwargs)


def _as_float(x: Any, name: str) -> Any:
    """An operand of a ufunc that computes with floats alone; of ``float_power``, which does so in float64."""
    if not isinstance(x, Tensor):
        data = np.asarray(x)
        return data if data.dtype.kind == "f" and name != "float_power" else data.astype(np.float64)
    if name == "float_power":
        return run(TORCH["astype"], {"input": x, "dtype": float64})
    if x._dtype.kind in "fc":
        return x
    return run(TORCH["astype"], {"input": x, "dtype": to_float(x._dtype, not isinstance(x, (ArrayTensor, TracedArray)))})


def _into(out: Any, ufunc: Any, method: str, inputs: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    targets = out if isinstance(out, tuple) else (out,)
    if len(targets) == 1 and isinstance(targets[0], np.ndarray) and _just_numbers((*inputs, *kwargs.values())):
        return getattr(ufunc, method)(*_numbers(inputs), out=out, **dict(zip(kwargs, _numbers(kwargs.values()))))
    if len(targets) != 1 or not isinstance(targets[0], Tensor):
        raise AotgradTypeError(f"{user_loc()}: np.{ufunc.__name__}: a computed value cannot be written into a NumPy array; write "
                               "y = y + x instead of y += x, without out=, or where parts are written (y[1:] += x), make y with np.zeros_like(x, shape=y.shape) + y")
    mask = kwargs.pop("where", True) if method == "__call__" else True
    result = array_ufunc(targets[0], ufunc, method, *inputs, **kwargs)
    if mask is not True:
        result = call(NUMPY["where"], (mask, run(TORCH["astype"], {"input": result, "dtype": targets[0]._dtype}), targets[0]), {})
    indexing.setitem(targets[0], Ellipsis, result)
    return targets[0]


# ---- functions --------------------------------------------------------------------------------------------------------------------------

def array_function(self: Any, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``np.sum(x)``, ``np.concatenate([x, y])``, ``np.linalg.norm(x)``."""
    module = getattr(func, "__module__", "") or ""
    name = f"linalg.{func.__name__}" if module.startswith("numpy.linalg") else func.__name__
    own, public = _FUNCTIONS.get(name), NUMPY.get(name)
    out = kwargs.get("out")
    if isinstance(out, Tensor) and (own is not None or public is not None):
        indexing.setitem(out, Ellipsis, array_function(self, func, types, args, {k: v for k, v in kwargs.items() if k != "out"}))
        return out
    if own is not None:
        return own(*args, **kwargs)
    if public is not None and module in ("numpy", "numpy.linalg"):
        kwargs = {k: v for k, v in kwargs.items() if k not in ("optimize", "casting") and v is not np._NoValue}
        return call(public, args, kwargs)
    if _just_numbers((*args, *kwargs.values())):
        return func(*_numbers(args), **dict(zip(kwargs, _numbers(kwargs.values()))))
    raise _refused(f"{module.replace('numpy', 'np', 1)}.{func.__name__}")


def _leaves(values: Any) -> Any:
    for v in values:
        if isinstance(v, (list, tuple)):
            yield from _leaves(v)
        else:
            yield v


def _just_numbers(values: Any) -> bool:
    """Whether nothing is lost by taking the arrays: no trace, no graph, no tangent."""
    return not any(isinstance(v, Tensor) and (isinstance(v, (Traced, Dual)) or v._requires_grad) for v in _leaves(values))


def _numbers(values: Any) -> list[Any]:
    return [type(v)(_numbers(v)) if isinstance(v, (list, tuple)) else v._data if isinstance(v, Tensor) else v for v in values]


def _reshape(x: Any, shape: tuple[Any, ...]) -> Any:
    return x.reshape(shape) if isinstance(x, np.ndarray) else run(TORCH["reshape"], {"input": x, "shape": (shape,)})


def _made_like(value: Any) -> Callable[..., Any]:
    def like(a: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None, *, device: Any = None) -> Any:
        return filled_like(a, value, dtype, shape, _cast)

    return like


def _full_like(a: Any, fill_value: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None, *, device: Any = None) -> Any:
    return filled_like(a, fill_value, dtype, shape, _cast)


def _cast(number: Any, dtype: DType) -> Any:
    """A number as NumPy casts it: for floats and NumPy's own, an integer dtype that does not hold it takes some other; Python's integers are refused."""
    data = np.asarray(number)
    if isinstance(number, int) or data.dtype.kind not in "iuf":
        return held(number, dtype)
    return converted(data.astype(np.int64) if data.dtype == np.uint16 else data, dtype)


def number_as(x: Tensor, dtype: DType) -> Any:
    """A 0-d value in ``dtype``, which must hold it where it is a Python number."""
    out = run(TORCH["astype"], {"input": x, "dtype": dtype})
    if not x._weak or dtype.kind not in "iu":
        return out
    out._scalar = False  # an array is written into
    return run(TORCH["masked_set"], {"input": out, "mask": True, "value": x})


def filled_like(a: Any, fill: Any, dtype: Any = None, shape: Any = None, cast: Callable[[Any, DType], Any] = held) -> Any:
    """An array of one value with the shape and dtype of ``a`` unless given: of the kind of ``a``, so that tensors can be written into it."""
    kind = (a._dtype if isinstance(a, Tensor) else as_dtype(np.asarray(a).dtype)) if dtype is None else as_dtype(dtype)
    size = tuple(np.shape(a) if not isinstance(a, Tensor) else a.shape) if shape is None else tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    if isinstance(fill, Tensor):
        return run(TORCH["clone"], {"input": run(TORCH["expand"], {"input": number_as(fill, kind), "sizes": (size,)})})
    try:
        number = cast(fill, kind)
    except AotgradTypeError:
        raise AotgradTypeError(f"{user_loc()}: full_like: {fill!r} is no number of dtype {kind.name}") from None
    if isinstance(a, Traced):
        value = a._trace.builder.full(shape=size, value=decode(number).item(), dtype=kind)
        return (TracedArray if isinstance(a, TracedArray) else type(a))._of(a._trace, value)
    cls: Any = a._value_type if isinstance(a, Tensor) else ArrayTensor
    return cls._wrap(np.full(size, number, kind.np))


def _size(a: Any, axis: Any = None) -> Any:
    return a.numel() if axis is None else a.shape[axis]


def _where(condition: Any, *values: Any) -> Any:
    if values:
        return call(NUMPY["where"], (condition, *values), {})
    if isinstance(condition, Traced):
        raise _refused("np.where(mask) with one argument", "has as many results as the mask holds, which is known only when the code runs")
    return condition._data.nonzero()


def _dims_at_least(rank: int) -> Callable[..., Any]:
    def make(*arrays: Any) -> Any:
        given = [x if isinstance(x, Tensor) else np.asarray(x) for x in arrays]
        out = [x if len(x.shape) >= rank else _reshape(x, _padded(x, rank)) for x in given]
        return out[0] if len(out) == 1 else tuple(out)

    return make


def _padded(x: Any, rank: int) -> tuple[Any, ...]:
    shape = tuple(x.shape) if isinstance(x, Tensor) else np.shape(x)
    return (*[1] * (rank - len(shape)), *shape)


def _each(value: Any) -> list[Any]:
    """The arrays of a sequence of them."""
    if not hasattr(value, "__iter__"):
        raise AotgradTypeError(f"{user_loc()}: a list of tensors or arrays is needed to be joined, not {type(value).__name__}")
    return [*value]


def _together(value: Any) -> list[Any]:
    given = _each(value)
    out = _dims_at_least(1)(*given)
    return [out] if len(given) == 1 else list(out)


# ---- joined ---------------------------------------------------------------------------------------------------------------------------

def _converted_for(arrays: list[Any], dtype: Any, casting: str) -> list[Any]:
    """What is joined, in the ``dtype`` of the result where one is given and ``casting`` allows it."""
    if dtype is None:
        return arrays
    want, out = as_dtype(dtype), []
    for x in arrays:
        have = x._dtype.np if isinstance(x, Tensor) else np.asarray(x).dtype
        if not np.can_cast(have, want.np, casting):  # type: ignore[arg-type]
            raise AotgradTypeError(f"{user_loc()}: cannot cast from {have} to {want.name} with casting={casting!r}; pass casting='unsafe', or convert first (x.astype)")
        out.append(run(TORCH["astype"], {"input": x, "dtype": want}) if isinstance(x, Tensor) else np.asarray(x, want.np))
    return out


def _joining(name: str) -> Callable[..., Any]:
    def join(arrays: Any, axis: Any = 0, out: Any = None, *, dtype: Any = None, casting: str = "same_kind") -> Any:
        return call(NUMPY[name], (arrays if dtype is None else _converted_for(_each(arrays), dtype, casting), axis), {"out": out})

    return join


def _hstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    arrays = _converted_for(_together(tup), dtype, casting)
    return call(NUMPY["concatenate"], (arrays, 0 if not arrays or len(arrays[0].shape) == 1 else 1), {})


def _vstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    given = _converted_for(_each(tup), dtype, casting)
    arrays = _dims_at_least(2)(*given)
    return call(NUMPY["concatenate"], ([arrays] if len(given) == 1 else list(arrays), 0), {})


def _column_stack(tup: Any) -> Any:
    columns = [x if len(x.shape) > 1 else _reshape(x, (x.shape[0], 1)) for x in _together(tup)]
    return call(NUMPY["concatenate"], (columns, 1), {})


def _dstack(tup: Any) -> Any:
    arrays = [_reshape(x, (1, x.shape[0], 1) if len(x.shape) == 1 else (*x.shape, 1)) if len(x.shape) < 3 else x for x in _together(tup)]
    return call(NUMPY["concatenate"], (arrays, 2), {})


def _meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> tuple[Any, ...]:
    if indexing not in ("xy", "ij"):
        raise AotgradValueError(f"{user_loc()}: meshgrid: indexing={indexing!r} is neither 'xy' nor 'ij'")
    count = len(xi)
    arrays = [_reshape(x if isinstance(x, Tensor) else np.asarray(x), (-1,)) for x in xi]
    places = [1 - i if indexing == "xy" and i < 2 <= count else i for i in range(count)]
    full = [arrays[places.index(d)].shape[0] for d in range(count)]
    shaped = [_reshape(x, tuple(x.shape[0] if d == place else 1 for d in range(count))) for x, place in zip(arrays, places)]
    return tuple(shaped if sparse else [call(NUMPY["broadcast_to"], (x, tuple(full)), {}) for x in shaped])


def _polyval(p: Any, x: Any) -> Any:
    p = p if isinstance(p, Tensor) or any(isinstance(v, Tensor) for v in p) else np.asarray(p)  # whose dtype counts, other than a number's
    x = x if isinstance(x, Tensor) else np.asarray(x)
    out: Any = filled_like(x, 0) if isinstance(x, Tensor) else np.zeros_like(x)
    for i in range(int(p.shape[0]) if hasattr(p, "shape") else len(p)):
        out = out * x + p[i]
    return out


def _diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    a = a if isinstance(a, Tensor) else np.asarray(a)
    if not len(a.shape):
        raise AotgradArgumentError(f"{user_loc()}: diff: the input is 0-d; differences of neighbours need at least one dimension")
    times = whole(n)
    if times is None:
        raise AotgradTypeError(f"{user_loc()}: diff: n is {type(n).__name__} ({n!r:.40}); how often is a whole number")
    if times < 0:
        raise AotgradArgumentError(f"{user_loc()}: diff: n is {times}; it must be non-negative")
    d = norm_dim(axis, len(a.shape))
    ends = [x if x is None or isinstance(x, Tensor) else np.asarray(x) for x in (None if v is np._NoValue else v for v in (prepend, append))]
    if any(x is not None for x in ends):
        one = (*a.shape[:d], 1, *a.shape[d + 1:])
        first, last = (x if x is None or len(x.shape) else call(NUMPY["broadcast_to"], (x, one), {}) for x in ends)
        a = call(NUMPY["concatenate"], ([x for x in (first, a, last) if x is not None],), {"axis": d})
    for _ in range(min(times, a.shape[d]) if type(a.shape[d]) is int or times > 64 else times):  # after which nothing is left
        ahead, behind = (indexing.getitem(a, (*[slice(None)] * d, s)) for s in (slice(1, None), slice(None, -1)))
        a = call(NUMPY["not_equal" if a._dtype is bool_ else "subtract"], (ahead, behind), {})
    return a


def _trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    d = norm_dim(axis, len(y.shape), "axis")
    cut = [(*[slice(None)] * d, s) for s in (slice(1, None), slice(None, -1))]
    ahead, behind = (y[c] for c in cut)
    if x is not None:
        x = x if isinstance(x, Tensor) else np.asarray(x)
        dx = np.diff(x) if len(x.shape) == 1 else np.diff(x, axis=axis)
        if len(x.shape) == 1:
            dx = _reshape(dx, (*[1] * d, dx.shape[0], *[1] * (len(y.shape) - d - 1)))
    return call(NUMPY["sum"], ((ahead + behind) * dx / 2.0,), {"axis": d})


def _average(a: Any, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: bool = False) -> Any:
    if returned:
        raise _refused("np.average with returned=True")
    if weights is None:
        return call(NUMPY["mean"], (a,), {"axis": axis, "keepdims": keepdims})
    a, w = (v if isinstance(v, Tensor) else np.asarray(v) for v in (a, weights))
    dims = None if axis is None else [norm_dim(d, len(a.shape), "axis") for d in (axis if isinstance(axis, (tuple, list)) else (axis,))]
    if len(w.shape) != len(a.shape) or dims is not None and len(dims) == len(a.shape) and tuple(w.shape) != tuple(a.shape):
        if dims is None:
            raise AotgradTypeError(f"{user_loc()}: np.average: weights of another shape than the array need an axis")
        _fit_weights(w.shape, [a.shape[d] for d in dims], AotgradValueError)
        order = sorted(range(len(dims)), key=dims.__getitem__)
        w = _reshape(call(TORCH["permute"], (w, order), {}), tuple(n if d in dims else 1 for d, n in enumerate(a.shape)))
    else:
        _fit_weights(w.shape, a.shape, AotgradTypeError if dims is None else AotgradValueError)
    total = call(NUMPY["sum"], (call(NUMPY["broadcast_to"], (w, tuple(a.shape)), {}),), {"axis": axis, "keepdims": keepdims})
    return call(NUMPY["sum"], (a * w,), {"axis": axis, "keepdims": keepdims}) / total


def _fit_weights(own: Sequence[Any], sizes: Sequence[Any], error: type[Exception]) -> None:
    if len(own) != len(sizes) or not all(map(equal_sizes, own, sizes)):
        raise error(f"{user_loc()}: np.average: weights of shape {tuple(map(int, own))} do not fit the sizes {tuple(map(int, sizes))} they weigh; the weights' shape is "
                    "the array's, or its sizes along axis")


def _tensordot(a: Any, b: Any, axes: Any = 2, name: str = "tensordot") -> Any:
    x, y = (v if isinstance(v, Tensor) else np.asarray(v) for v in (a, b))
    rx, ry = len(x.shape), len(y.shape)
    left, right = (list(range(rx - axes, rx)), list(range(axes))) if isinstance(axes, int) else ([d % r for d in (v if isinstance(v, (list, tuple)) else [v])] for v,
        r in zip(axes, (rx, ry)))
    names = "abcdefghijklmnopqrstuvwxyz"
    nx, ny = list(names[:rx]), list(names[rx:rx + ry])
    for i, j in zip(left, right):
        ny[j] = nx[i]
    kept = [c for i, c in enumerate(nx) if i not in left] + [c for j, c in enumerate(ny) if j not in right]
    return _contract(name, f"{''.join(nx)},{''.join(ny)}->{''.join(kept)}", x, y)


def _contract(name: str, spec: str, *operands: Any) -> Any:
    """An einsum where sizes that meet are equal: einsum itself lets 1 stand for any size, NumPy's other products do not."""
    sizes: dict[str, Any] = {}
    for term, x in zip(spec.partition("->")[0].split(","), operands):
        for c, n in zip(reversed(term.strip(".")), reversed(x.shape)):
            if not equal_sizes(sizes.setdefault(c, n), n):
                shapes = " and ".join(str(tuple(int(n) for n in v.shape)) for v in operands)
                raise AotgradValueError(f"{user_loc()}: np.{name}: shapes {shapes} do not fit: sizes {int(sizes[c])} and {int(n)} meet")
    return call(NUMPY["einsum"], (spec, *operands), {})


def _inner(a: Any, b: Any) -> Any:
    rx, ry = (len(v.shape if isinstance(v, Tensor) else np.shape(v)) for v in (a, b))
    return _tensordot(a, b, ([-1], [-1]), "inner") if rx and ry else a * b


def _array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    if isinstance(indices_or_sections, (int, np.integer)) and not isinstance(indices_or_sections, bool):
        total, n = int(ary.shape[axis]), int(indices_or_sections)
        if n < 1:
            raise AotgradValueError(f"{user_loc()}: np.array_split: the number of sections is {n}; it must be at least 1")
        indices_or_sections = [i * (total // n) + min(i, total % n) for i in range(1, n)]
    return list(call(NUMPY["split"], (ary, indices_or_sections), {"axis": axis}))


def _split_along(axis: int) -> Callable[..., list[Any]]:
    """``hsplit``, ``vsplit``, ``dsplit``; of vectors, the first takes their only dim."""
    return lambda ary, indices_or_sections: list(call(NUMPY["split"], (ary, indices_or_sections), {"axis": min(axis, len(ary.shape) - 1) if axis == 1 else axis}))


def _flip(m: Any, axis: Any = None) -> Any:
    """A view, as NumPy's is."""
    turned = norm_dims(axis, len(m.shape), "axis")
    return m[tuple(slice(None, None, -1) if d in turned else slice(None) for d in range(len(m.shape)))]


def _einsum(subscripts: Any, *operands: Any, **kwargs: Any) -> Any:
    """A view where one operand's dims are only put in another order, as NumPy's is."""
    if isinstance(subscripts, str) and len(operands) == 1 and (found := einsum_view(subscripts, len(operands[0].shape))) is not None and not found[0]:
        return call(TORCH["permute"], (operands[0], found[1]), {})
    return call(NUMPY["einsum"], (subscripts, *operands), {k: v for k, v in kwargs.items() if k != "optimize"})


def _rot90(m: Any, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Any:
    i, j = (norm_dim(d, len(m.shape), "axes") for d in axes)
    order = list(range(len(m.shape)))
    order[i], order[j] = j, i
    k %= 4
    if k in (0, 2):
        return _flip(m, (i, j)) if k else m[...]
    return call(TORCH["permute"], (_flip(m, j), order), {}) if k == 1 else _flip(call(TORCH["permute"], (m, order), {}), j)


def _nan_to_num(x: Any, copy: bool, rest: dict[str, Any]) -> Any:
    out = call(NUMPY["nan_to_num"], (x,), rest)
    if copy:
        return out
    indexing.setitem(x, Ellipsis, out)
    return x


def _select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Any:
    if len(condlist) != len(choicelist) or not condlist:
        raise AotgradValueError(f"{user_loc()}: np.select takes as many choices as conditions, at least one; {len(condlist)} and {len(choicelist)} were given")
    values = [v if isinstance(v, Tensor) or type(v) in (int, float) else np.asarray(v) for v in (*choicelist, default)]
    dtype = as_dtype(np.result_type(*map(_dtype_of, values)))
    *choices, out = [run(TORCH["astype"], {"input": v, "dtype": dtype}) if isinstance(v, Tensor) else np.asarray(v, dtype.np) for v in values]
    for condition, choice in zip(reversed(condlist), reversed(choices)):
        out = call(NUMPY["where"], (condition, choice, out), {})
    return out


def _atleast_3d(*arrays: Any) -> Any:
    out = []
    for x in (x if isinstance(x, Tensor) else np.asarray(x) for x in arrays):
        n = tuple(x.shape)
        out.append(x if len(n) > 2 else _reshape(x, (1, 1, 1) if not n else (1, n[0], 1) if len(n) == 1 else (*n, 1)))
    return out[0] if len(out) == 1 else tuple(out)


def _vdot(a: Any, b: Any) -> Any:
    return call(NUMPY["dot"], tuple(_reshape(x if isinstance(x, Tensor) else np.asarray(x), (-1,)) for x in (a, b)), {})


def _vecdot(x1: Any, x2: Any, axis: int = -1) -> Any:
    if axis != -1:
        x1, x2 = (call(NUMPY["moveaxis"], (x, axis, -1), {}) for x in (x1, x2))
    return _contract("vecdot", _PRODUCTS["vecdot"], *(x if isinstance(x, Tensor) else np.asarray(x) for x in (x1, x2)))


def _swapped(x: Any) -> Any:
    return call(NUMPY["swapaxes"], (x, -1, -2), {})


def _concrete(func: Callable[..., Any]) -> Callable[..., Any]:
    """Questions about numbers: asked of the arrays themselves (tangents and graphs do not matter)."""

    def ask(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(v, Traced) for v in _leaves(args)):
            raise _refused(f"np.{func.__name__}", "needs numbers, which a traced value has only when the code runs")
        return func(*_numbers(args), **kwargs)

    return ask


def ordered_reshape(x: Any, shape: Any, order: str = "C") -> Any:
    """NumPy's ``reshape`` to the sizes ``shape`` (None: one dim) with the elements taken in the order of C or of Fortran."""
    name = "ravel" if shape is None else "reshape"
    if order not in ("C", "F"):
        raise AotgradValueError(f"{user_loc()}: {name}: order={order!r} is not available; 'C' and 'F' are, in this order of the elements whatever their order in memory")
    x = x if isinstance(x, Tensor) else np.asarray(x)
    if order == "C":
        return call(NUMPY[name], (x, *(shape or ())), {})
    if shape is None:
        return call(NUMPY["ravel"], (x.T,), {})
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    return call(NUMPY["reshape"], (x.T, tuple(sizes)[::-1]), {}).T


def _clip(a: Any, a_min: Any = np._NoValue, a_max: Any = np._NoValue, out: Any = None, *, min: Any = np._NoValue, max: Any = np._NoValue, **rest: Any) -> Any:
    low, high = (None if v is np._NoValue else v for v in (min if a_min is np._NoValue else a_min, max if a_max is np._NoValue else a_max))
    return call(NUMPY["clip"], (a, low, high), {**rest, **({} if out is None else {"out": out})})


def _divmod(x1: Any, x2: Any) -> tuple[Any, Any]:
    return call(NUMPY["floor_divide"], (x1, x2), {}), call(NUMPY["remainder"], (x1, x2), {})


def _matrix_power(a: Any, n: Any) -> Any:
    """By squaring, from the left, as NumPy multiplies."""
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
        raise AotgradTypeError(f"{user_loc()}: np.linalg.matrix_power: n is {type(n).__name__}; it must be an integer")
    if len(a.shape) < 2 or not isinstance(a.shape[-1] == a.shape[-2], bool) or a.shape[-1] != a.shape[-2]:
        raise AotgradValueError(f"{user_loc()}: np.linalg.matrix_power: the last two dims of shape {tuple(a.shape)} must be equal")
    if n == 0:
        return np.zeros_like(a) + np.eye(int(a.shape[-1]), dtype=_dtype_of(a))
    if n < 0:
        raise _refused("np.linalg.matrix_power with n < 0", "needs the inverse, which is not available for tensors and traced values")
    out: Any = None
    base = a
    while n:
        if n % 2:
            out = base if out is None else call(NUMPY["matmul"], (out, base), {})
        n //= 2
        base = call(NUMPY["matmul"], (base, base), {}) if n else base
    return out if out is not a else call(TORCH["clone"], (a,), {})


def _dtype_of(x: Any) -> Any:
    return x._dtype.np if isinstance(x, Tensor) else x


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "shape": lambda a: tuple(a.shape), "ndim": lambda a: len(a.shape), "size": _size, "where": _where, "copy": lambda a, order="K",
    subok=False: call(TORCH["clone"], (a,), {}),
    "zeros_like": _made_like(0),
    "empty_like": lambda prototype, *rest, **named: _made_like(0)(prototype, *rest, **named), "ones_like": _made_like(1),
    "full_like": _full_like,
    "atleast_1d": _dims_at_least(1), "atleast_2d": _dims_at_least(2), "hstack": _hstack, "vstack": _vstack, "column_stack": _column_stack,
    "atleast_3d": _atleast_3d, "dstack": _dstack, "meshgrid": _meshgrid, "polyval": _polyval, "rot90": _rot90, "select": _select,
    "split": lambda ary, indices_or_sections, axis=0: list(call(NUMPY["split"], (ary, indices_or_sections), {"axis": axis})),
    "array_split": _array_split, "hsplit": _split_along(1), "vsplit": _split_along(0), "dsplit": _split_along(2),
    "unstack": lambda x, *, axis=0: tuple(call(TORCH["unbind"], (x, axis), {})),
    "astype": lambda x, dtype, *, copy=True, device=None: call(TORCH["astype"], (x, dtype), {}),
    "vdot": _vdot, "linalg.vecdot": lambda x1, x2, *, axis=-1: _vecdot(x1, x2, axis), "matrix_transpose": _swapped, "linalg.matrix_transpose": _swapped,
    **COMPOSED, **REDUCTIONS, **{name: _joining(name) for name in ("concatenate", "concat", "stack")},
    "nan_to_num": lambda x, copy=True, nan=0.0, posinf=None, neginf=None: _nan_to_num(x, copy, {"nan": nan, "posinf": posinf, "neginf": neginf}),
    "reshape": lambda a, /, shape=None, order="C", *, newshape=None, copy=None: ordered_reshape(a, (shape if newshape is None else newshape,), order),
    "ravel": lambda a, order="C": ordered_reshape(a, None, order), "clip": _clip, "linalg.matrix_power": _matrix_power, "divmod": _divmod,
    "diff": _diff, "trapezoid": _trapezoid, "average": _average, "tensordot": _tensordot, "inner": _inner,
    "append": lambda arr, values, axis=None: _append(arr, values, axis),
    "diag": lambda v, k=0: call(NUMPY["diagonal"], (v, k), {}) if len(v.shape) == 2 else call(TORCH["diag"], (v, k), {}),
    "einsum": _einsum, "flip": _flip, "fliplr": lambda m: _flip(m, 1), "flipud": lambda m: _flip(m, 0),
    "allclose": _concrete(np.allclose), "array_equal": _concrete(np.array_equal), "may_share_memory": _concrete(np.may_share_memory),
    "shares_memory": _concrete(np.shares_memory), "array_repr": lambda arr, *rest, **kw: repr(arr), "array_str": lambda a, *rest, **kw: str(a),
    "nonzero": lambda a: a.nonzero(),
    "result_type": lambda *xs: np.result_type(*map(_dtype_of, xs)), "iscomplexobj": lambda x: x._dtype.kind == "c", "isrealobj": lambda x: x._dtype.kind != "c",
    "real": lambda val: val.real, "imag": lambda val: val.imag if val._dtype.is_complex else filled_like(val, 0), "linalg.multi_dot": lambda arrays: _chain(arrays),
}


def _torch_meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Any, ...]:
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors
    if not given:
        raise AotgradArgumentError(f"{user_loc()}: meshgrid: give at least one tensor")
    for i, x in enumerate(given):
        if (rank := len(x.shape if isinstance(x, Tensor) else np.shape(x))) > 1:
            raise AotgradArgumentError(f"{user_loc()}: meshgrid: tensors are 0D or 1D, but number {i} has {rank} dims; flatten it first (x.reshape(-1))")
    return tuple(_meshgrid(*given, indexing=indexing))


PUBLIC: dict[str, Callable[..., Any]] = {
    "hstack": lambda tensors: _hstack(tensors), "vstack": lambda tensors: _vstack(tensors), "dstack": lambda tensors: _dstack(tensors),
    "column_stack": lambda tensors: _column_stack(tensors), "diff": lambda input, n=1, dim=-1: _diff(input, n, dim), "meshgrid": _torch_meshgrid,
}
"""Of these, what torch has too, as functions of tensors."""
for _name, _doc in (("hstack", "Side by side."), ("vstack", "On top of each other."), ("dstack", "Along the third dim."),
                    ("column_stack", "Vectors as columns, side by side."), ("meshgrid", "Coordinates as arrays of the common grid, one per tensor of rank 1."),
                    ("diff", "Differences of neighbours along ``dim``, ``n`` times.")):
    PUBLIC[_name].__name__ = PUBLIC[_name].__qualname__ = _name
    PUBLIC[_name].__doc__ = _doc


def _append(arr: Any, values: Any, axis: Any) -> Any:
    pair = [arr, values if isinstance(values, Tensor) else np.asarray(values)]
    if axis is None:
        pair, axis = [_reshape(x if isinstance(x, Tensor) else np.asarray(x), (-1,)) for x in pair], 0
    return call(NUMPY["concatenate"], (pair, axis), {})


def _chain(arrays: Sequence[Any]) -> Any:
    out = arrays[0]
    for x in arrays[1:]:
        out = call(NUMPY["dot"], (out, x), {})
    return out
