"""NumPy functions that are made of others, on tensors and traced values: interpolation, differences, statistics of two variables, places in sorted numbers,
numbers at even distances, polynomials, and the names of np.linalg that need no factorisation."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from aotgrad_runtime.errors import AotgradError, AotgradIndexError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.tensor import Tensor

from . import indexing
from .dispatch import NUMPY, TORCH, call
from .sizes import equal_sizes
from .trace import user_loc

__all__ = ["COMPOSED", "correlation", "covariance"]


def _value(x: Any) -> Any:
    """An operand as an array, a tensor or a traced value."""
    if isinstance(x, (list, tuple)) and any(isinstance(v, Tensor) for v in x):
        return np.stack(x)
    return x if isinstance(x, Tensor) else np.asarray(x)


def _float(x: Any) -> Any:
    x = _value(x)
    kind = x._dtype.kind if isinstance(x, Tensor) else x.dtype.kind
    return x if kind == "f" else x.astype(np.float64)


def _dtype(x: Any) -> Any:
    return x._dtype.np if isinstance(x, Tensor) else x.dtype


def _refuse(name: str, why: str, kind: type[Exception] = AotgradTypeError) -> Any:
    raise kind(f"{user_loc()}: np.{name}: {why}")


def _count(n: Any, name: str, what: str) -> int:
    if isinstance(n, Tensor) or not hasattr(n, "__index__"):
        _refuse(name, f"{what} is {'a computed value' if isinstance(n, Tensor) else type(n).__name__}; it decides about the size of the result and must be an integer")
    number: int = operator.index(n)
    if number < 0:
        _refuse(name, f"{what} is {number}; it must be 0 or more", AotgradValueError)
    return number


def _numpy(name: str, f: Callable[..., Any], *args: Any) -> Any:
    """What NumPy makes of plain numbers; its errors name the function and the user's line."""
    try:
        return f(*args)
    except AotgradError:
        raise
    except (IndexError, TypeError, ValueError) as error:
        kind = AotgradIndexError if isinstance(error, IndexError) else AotgradTypeError if isinstance(error, TypeError) else AotgradValueError
        raise kind(f"{user_loc()}: np.{name}: {error}") from None


def _vector(x: Any, name: str, what: str) -> Any:
    if len(x.shape) != 1:
        _refuse(name, f"{what} has {len(x.shape)} dims; it must have 1", AotgradValueError)
    return x


# ---- sorted numbers ---------------------------------------------------------------------------------------------------------------------

def _place(a: Any, v: Any, side: str) -> Any:
    """How many of the sorted numbers ``a`` are below each of ``v`` (``right``: or equal to it). A sum of comparisons; NaN lies above all."""
    low = np.less(a, v[..., None]) if side == "left" else np.less_equal(a, v[..., None])
    none = np.isnan(v)[..., None]
    return np.sum(low | (none & ~np.isnan(a) if side == "left" else none), axis=-1)


def _searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Any:
    if side not in ("left", "right"):
        _refuse("searchsorted", f"side={side!r} is not 'left' or 'right'", AotgradValueError)
    a = _vector(_float(a), "searchsorted", "a")
    return _place(a if sorter is None else a[sorter], _float(v), side)


def _digitize(x: Any, bins: Any, right: bool = False) -> Any:
    if isinstance(bins, Tensor):
        _refuse("digitize", "bins are computed, and their direction is known only when the code runs; use np.searchsorted(bins, x, side='right')")
    bins = _vector(np.asarray(bins, np.float64), "digitize", "bins")
    steps, side = np.diff(bins), "left" if right else "right"
    if np.all(steps >= 0):
        return _place(bins, _float(x), side)
    if not np.all(steps <= 0):
        _refuse("digitize", "bins must go up or down all the way", AotgradValueError)
    return len(bins) - _place(bins[::-1], _float(x), side)


def _interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    if period is not None:
        _refuse("interp", "period= is not available; take x % period, and repeat the first point at xp[0] + period")
    x, xp, fp = (_value(v).astype(np.float64) for v in (x, xp, fp))
    _vector(xp, "interp", "xp"), _vector(fp, "interp", "fp")
    if not equal_sizes(xp.shape[0], fp.shape[0]):
        _refuse("interp", f"xp and fp have {xp.shape[0]} and {fp.shape[0]} numbers; they must be points of one curve", AotgradValueError)
    last = xp.shape[0] - 1
    if isinstance(last, int) and last < 0:
        _refuse("interp", "xp holds no points", AotgradValueError)
    below, above = (fp[0] if left is None else left), (fp[-1] if right is None else right)
    if isinstance(last, int) and last == 0:
        return np.where(x < xp[0], below, np.where(x > xp[0], above, fp[0] + 0.0 * x))
    at = np.clip(_place(xp, x, "right") - 1, 0, last - 1)
    x0, x1, y0, y1 = (call(NUMPY["take"], (v, i), {}) for v in (xp, fp) for i in (at, at + 1))
    slope = (y1 - y0) / (x1 - x0)
    inside = np.where(x == x1, slope * (x - x1) + y1, slope * (x - x0) + y0)  # at the last point exactly it
    return np.where(x < xp[0], below, np.where(x > xp[-1], above, inside))


# ---- differences ------------------------------------------------------------------------------------------------------------------------

def _gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    f = _float(f)
    rank = len(f.shape)
    axes = list(range(rank)) if axis is None else [d % rank if -rank <= d < rank else _refuse("gradient", f"axis {d} is not one of {rank}", AotgradValueError)
                                                   for d in (axis if isinstance(axis, (tuple, list)) else (axis,))]
    if len(set(axes)) < len(axes):
        _refuse("gradient", f"axis={axis!r} names one axis twice", AotgradValueError)
    if edge_order not in (1, 2):
        _refuse("gradient", f"edge_order={edge_order!r} is not 1 or 2", AotgradValueError)
    steps = [1.0] * len(axes) if not varargs else list(varargs) * (len(axes) if len(varargs) == 1 else 1)
    if len(steps) != len(axes):
        _refuse("gradient", f"{len(varargs)} distances are given for {len(axes)} axes; give one, or one for each")
    out = tuple(np.moveaxis(_slope(np.moveaxis(f, d, 0), _value(h), edge_order), 0, d) for d, h in zip(axes, steps))
    return out[0] if len(out) == 1 else out


def _slope(f: Any, h: Any, edge_order: int) -> Any:
    """Differences of neighbours along the first dim, second order inside; ``h`` is the distance of all, or where they lie."""
    n = f.shape[0]
    if isinstance(n, int) and n < edge_order + 1:
        _refuse("gradient", f"an axis has {n} numbers; {edge_order + 1} are needed", AotgradValueError)
    if len(h.shape) == 0:
        first, final = f[1] - f[0], f[-1] - f[-2]
        if edge_order == 2:
            first, final = -1.5 * f[0] + 2.0 * f[1] - 0.5 * f[2], 1.5 * f[-1] - 2.0 * f[-2] + 0.5 * f[-3]
        return _between(first / h, (f[2:] - f[:-2]) / (2.0 * h), final / h, f.shape)
    if len(h.shape) > 1 or not equal_sizes(h.shape[0], n):
        _refuse("gradient", "places along an axis are a vector of as many numbers as the axis has", AotgradValueError)
    d = h[1:] - h[:-1]
    one, two = (v.reshape((-1,) + (1,) * (len(f.shape) - 1)) for v in (d[:-1], d[1:]))
    inside = -two / (one * (one + two)) * f[:-2] + (two - one) / (one * two) * f[1:-1] + one / (two * (one + two)) * f[2:]
    first, final = (f[1] - f[0]) / d[0], (f[-1] - f[-2]) / d[-1]
    if edge_order == 2:
        a, b = d[0], d[1]
        first = -(2.0 * a + b) / (a * (a + b)) * f[0] + (a + b) / (a * b) * f[1] - a / (b * (a + b)) * f[2]
        a, b = d[-2], d[-1]
        final = b / (a * (a + b)) * f[-3] - (b + a) / (a * b) * f[-2] + (2.0 * b + a) / (b * (a + b)) * f[-1]
    return _between(first, inside, final, f.shape)


def _between(first: Any, inside: Any, final: Any, shape: tuple[Any, ...]) -> Any:
    """The three along the first dim; joined they would have the size of ``shape`` for two rows and more alone, written they have it."""
    out = np.zeros_like(first, shape=tuple(shape))
    out[0], out[1:-1], out[-1] = first, inside, final
    return out


# ---- sums of products -------------------------------------------------------------------------------------------------------------------

def _convolve(a: Any, v: Any, mode: str = "full") -> Any:
    return _correlated(a, v, mode, "convolve", flipped=True)


def _correlate(a: Any, v: Any, mode: str = "valid") -> Any:
    return _correlated(a, v, mode, "correlate", flipped=False)


def _correlated(a: Any, v: Any, mode: str, name: str, flipped: bool) -> Any:
    if mode not in ("full", "same", "valid"):
        _refuse(name, f"mode={mode!r} is not 'full', 'same' or 'valid'", AotgradValueError)
    a, v = _vector(_float(a), name, "a"), _vector(_float(v), name, "v")
    dtype = np.result_type(a.dtype if not isinstance(a, Tensor) else a._dtype.np, v.dtype if not isinstance(v, Tensor) else v._dtype.np)
    a, v = a.astype(dtype), v.astype(dtype)
    n, m = int(a.shape[0]), int(v.shape[0])
    if not n or not m:
        _refuse(name, "an operand is empty", AotgradValueError)
    v = v[::-1] if flipped else v
    swapped = n < m
    if swapped:
        a, v, n, m = v, a, m, n
        if flipped:  # the longer one slides over the other as it stood
            a, v = a[::-1], v[::-1]
    pads = {"full": (m - 1, m - 1), "same": (m // 2, m - 1 - m // 2), "valid": (0, 0)}[mode]
    out = call(TORCH["conv1d"], (np.pad(a, pads)[None, None], v[None, None]), {})[0, 0]
    return out[::-1] if swapped and not flipped else out


def _cov(m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: Any = None, fweights: Any = None, aweights: Any = None, *, dtype: Any = None) -> Any:
    rows = _rows(m, rowvar, "cov")
    if y is not None:
        rows = np.concatenate([rows, _rows(y, rowvar, "cov")])
    rows = rows if dtype is None else rows.astype(dtype)
    if ddof is not None and int(ddof) != ddof:
        _refuse("cov", f"ddof={ddof!r} is no whole number", AotgradValueError)
    for name, w in (("fweights", fweights), ("aweights", aweights)):
        if w is not None and not isinstance(w, Tensor) and np.any(np.less(w, 0)):
            _refuse("cov", f"{name} holds numbers below 0", AotgradValueError)
    if fweights is not None and not isinstance(fweights, Tensor) and np.any(np.not_equal(fweights, np.around(fweights))):
        _refuse("cov", "fweights count observations, so they are whole numbers; give weights of other kinds as aweights")
    counts, sizes = (None if w is None else _vector(_value(w), "cov", name) for name, w in (("fweights", fweights), ("aweights", aweights)))
    out = covariance(rows, (0 if bias else 1) if ddof is None else ddof, counts, sizes)
    return out.reshape(()) if isinstance(out.shape[0], int) and out.shape[0] == 1 else out


def covariance(rows: Any, correction: Any, fweights: Any = None, aweights: Any = None) -> Any:
    """Covariances of variables in rows: (n, n). ``fweights``: how often each observation was made, ``aweights``: how much it weighs."""
    weights = fweights if aweights is None else aweights if fweights is None else fweights * aweights
    weighed = rows if weights is None else rows * weights
    total = rows.shape[1] if weights is None else call(TORCH["sum"], (weights,), {})
    apart = rows - call(TORCH["sum"], (weighed, 1, True), {}) / total
    less = correction if aweights is None or not correction else correction * call(TORCH["sum"], (weights * aweights,), {}) / total
    over = max(total - less, 0) if isinstance(total, int) and isinstance(less, int) else total - less
    return call(TORCH["div"], (call(TORCH["matmul"], (apart, call(TORCH["t"], (apart if weights is None else apart * weights,), {})), {}), over), {})


def correlation(c: Any) -> Any:
    """Correlations from covariances, (n, n) or a single one."""
    if not len(c.shape):
        return c / c
    sizes = call(TORCH["sqrt"], (call(TORCH["diagonal"], (c,), {}),), {})
    return call(TORCH["clamp"], (c / sizes[:, None] / sizes, -1, 1), {})


def _rows(x: Any, rowvar: bool, name: str) -> Any:
    """Variables as rows of float64 (float32 counts as that)."""
    x = _value(x).astype(np.float64)
    if len(x.shape) > 2:
        _refuse(name, f"an array of {len(x.shape)} dims is given; variables are the rows of a matrix", AotgradValueError)
    return x[None] if len(x.shape) < 2 else x if rowvar else x.T


def _corrcoef(x: Any, y: Any = None, rowvar: bool = True, *, dtype: Any = None) -> Any:
    return correlation(_cov(x, y, rowvar, dtype=dtype))


def _vander(x: Any, N: Any = None, increasing: bool = False) -> Any:
    x = _vector(_value(x), "vander", "x")
    N = None if N is None else _count(N, "vander", "N")
    if not isinstance(x, Tensor) or x._dtype.kind != "f":
        x = x.astype(np.result_type(x.dtype if not isinstance(x, Tensor) else x._dtype.np, np.int64))
    columns = [np.ones_like(x)]
    for _ in range(1, int(x.shape[0] if N is None else N)):
        columns.append(columns[-1] * x)
    columns = columns[: None if N is None else int(N)]
    return np.stack(columns if increasing else columns[::-1], axis=1) if columns else np.zeros_like(x, shape=(x.shape[0], 0))


# ---- choosing and moving ----------------------------------------------------------------------------------------------------------------

def _piecewise(x: Any, condlist: Any, funclist: Sequence[Any], *args: Any, **kw: Any) -> Any:
    x = _value(x)
    masks = list(condlist) if isinstance(condlist, (list, tuple)) and not all(isinstance(c, (bool, np.bool_)) for c in condlist) else [condlist]
    if len(funclist) not in (len(masks), len(masks) + 1):
        _refuse("piecewise", f"with {len(masks)} conditions, {len(masks)} or {len(masks) + 1} functions are needed", AotgradValueError)
    for mask in (masks if len(x.shape) else ()):
        shape = np.shape(mask) if not isinstance(mask, Tensor) else mask.shape
        if len(shape) != len(x.shape) or not all(equal_sizes(n, m) for n, m in zip(shape, x.shape)):
            _refuse("piecewise", f"a condition has shape {tuple(shape)}, it must have that of x: {tuple(x.shape)}", AotgradValueError)

    def part(f: Any) -> Any:
        return f(x, *args, **kw) if callable(f) else f

    out = np.zeros_like(x)
    if len(funclist) > len(masks):
        out = (out + part(funclist[-1])).astype(out.dtype)
    for mask, f in zip(masks, funclist):
        out = np.where(mask, part(f), out).astype(out.dtype)
    return out


def _whole(x: Any, axis: Any, name: str) -> tuple[Any, int]:
    x = _value(x)
    rank = len(x.shape)
    if axis is None:
        return x.reshape(-1), 0
    if not hasattr(axis, "__index__") or not -rank <= axis < rank:
        _refuse(name, f"axis {axis!r} is not one of {rank}", AotgradIndexError)
    return x, int(axis) % rank


def _delete(arr: Any, obj: Any, axis: Any = None) -> Any:
    if isinstance(obj, Tensor):
        _refuse("delete", "places that are computed decide the size of the result; give numbers")
    x, axis = _whole(arr, axis, "delete")
    return np.take(x, _numpy("delete", np.delete, np.arange(int(x.shape[axis])), obj), axis)


def _insert(arr: Any, obj: Any, values: Any, axis: Any = None) -> Any:
    if isinstance(obj, Tensor):
        _refuse("insert", "places that are computed are not available; give numbers")
    x, axis = _whole(arr, axis, "insert")
    values, n, rank = _value(values), int(x.shape[axis]), len(x.shape)
    one = np.ndim(obj) == 0 and not isinstance(obj, slice)
    count = 1 if one else np.arange(n)[obj].size if isinstance(obj, slice) else int(np.sum(obj)) if np.asarray(obj).dtype.kind == "b" else np.size(obj)
    if rank > 1:
        if one and len(values.shape) < rank:  # the values of one place have no dim for it
            values = np.expand_dims(_numpy("insert", np.broadcast_to, values, tuple(m for d, m in enumerate(x.shape) if d != axis)), axis)
        values = _numpy("insert", np.broadcast_to, values, (*x.shape[:axis], values.shape[axis] if one else count, *x.shape[axis + 1:]))
    else:
        values = values.reshape(-1)
        values = np.broadcast_to(values, (count,)) if isinstance(values.shape[0], int) and values.shape[0] == 1 else values
    values = values.astype(x._dtype.np if isinstance(x, Tensor) else x.dtype)
    order = _numpy("insert", np.insert, np.arange(n), obj, n + np.arange(int(values.shape[axis])))
    return np.take(np.concatenate([x, values], axis), order, axis)


def _copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = True) -> None:
    if not isinstance(dst, Tensor):
        _refuse("copyto", "a computed value cannot be written into a NumPy array; make it with np.zeros_like(x, shape=dst.shape)")
    indexing.setitem(dst, Ellipsis, src if where is True else np.where(where, src, dst))


# ---- numbers at even distances ----------------------------------------------------------------------------------------------------------

def _linspace(start: Any, stop: Any, num: Any = 50, endpoint: bool = True, retstep: bool = False, dtype: Any = None, axis: int = 0, *, device: Any = None) -> Any:
    num, span = _count(num, "linspace", "num"), _float(np.subtract(stop, start))
    places = np.arange(num, dtype=_dtype(span)).reshape(-1, *[1] * len(span.shape))
    parts = num - 1 if endpoint else num
    step = span / parts if parts > 0 else span * np.nan
    out = np.multiply(places, step if parts > 0 else span) + start
    if endpoint and num > 1:
        out = np.concatenate([out[:-1], np.where(np.zeros_like(span, dtype=bool), span, stop)[None]])  # the end as it was given
    if dtype is not None:
        out = (np.floor(out) if np.issubdtype(dtype, np.integer) else out).astype(dtype)
    out = np.moveaxis(out, 0, axis)
    return (out, step) if retstep else out


def _logspace(start: Any, stop: Any, num: Any = 50, endpoint: bool = True, base: Any = 10.0, dtype: Any = None, axis: int = 0) -> Any:
    if len(np.shape(base)):
        _refuse("logspace", "base is an array; it must be one number. Write base ** np.linspace(...)")
    out = np.power(base, _linspace(start, stop, num, endpoint, axis=axis))
    return out if dtype is None else out.astype(dtype)


# ---- polynomials ------------------------------------------------------------------------------------------------------------------------

def _polyder(p: Any, m: Any = 1) -> Any:
    p = _vector(_value(p), "polyder", "p")
    for _ in range(_count(m, "polyder", "m")):
        p = p[:-1] * np.arange(int(p.shape[0]) - 1, 0, -1)
    return p


def _polyint(p: Any, m: Any = 1, k: Any = None) -> Any:
    p, m = _vector(_value(p), "polyint", "p"), _count(m, "polyint", "m")
    constants = _value([0.0] * m if k is None else k).reshape(-1)
    if constants.shape[0] not in (1, m):
        _refuse("polyint", f"k has {constants.shape[0]} constants; it must have 1 or m = {m}", AotgradValueError)
    for i in range(m):
        j = i if constants.shape[0] == m else 0
        p = np.concatenate([p / np.arange(int(p.shape[0]), 0, -1), constants[j:j + 1]])
    return p


def _padded(a: Any, n: int) -> Any:
    return np.concatenate([np.zeros(n - int(a.shape[0]), _dtype(a)), a]) if a.shape[0] != n else a


def _polysum(name: str, combine: Any) -> Callable[..., Any]:
    def added(a1: Any, a2: Any) -> Any:
        both = [_vector(np.atleast_1d(_value(a)), name, what) for a, what in ((a1, "a1"), (a2, "a2"))]
        n = max(int(a.shape[0]) for a in both)
        return combine(*(_padded(a, n) for a in both))

    return added


# ---- matrices ---------------------------------------------------------------------------------------------------------------------------

def _block(arrays: Any) -> Any:
    def depth(a: Any) -> int:
        if not isinstance(a, list):
            return 0
        found = {depth(v) for v in a}
        if len(found) != 1:
            _refuse("block", "arrays must be lists of the same depth, and none of them empty", AotgradValueError)
        return 1 + found.pop()

    def leaves(a: Any) -> Any:
        return [x for v in a for x in leaves(v)] if isinstance(a, list) else [_value(a)]

    deep = depth(arrays)
    rank = max(deep, *(len(x.shape) for x in leaves(arrays)))

    def joined(a: Any, at: int) -> Any:
        if isinstance(a, list):
            return np.concatenate([joined(v, at + 1) for v in a], axis=at - deep)
        a = _value(a)
        return np.reshape(a, (*[1] * (rank - len(a.shape)), *a.shape))

    return joined(arrays, 0) if deep else np.copy(_value(arrays))


def _outer(x1: Any, x2: Any, /) -> Any:
    return np.outer(*(_vector(_value(x), "linalg.outer", what) for x, what in ((x1, "x1"), (x2, "x2"))))


def _vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    x = _value(x)
    rank = len(x.shape)
    dims = [d % rank if -rank <= d < rank else _refuse("linalg.vector_norm", f"axis {d} is out of range for {rank} dims", AotgradValueError)
            for d in (range(rank) if axis is None else axis if isinstance(axis, tuple) else (axis,))]
    others = [d for d in range(rank) if d not in dims]
    flat = np.reshape(np.transpose(x, (*others, *dims)), (*(x.shape[d] for d in others), -1))
    out = np.linalg.norm(flat, ord, axis=-1)
    return np.reshape(out, tuple(1 if d in dims else x.shape[d] for d in range(rank))) if keepdims else out


COMPOSED: Final[dict[str, Callable[..., Any]]] = {
    "searchsorted": _searchsorted, "digitize": _digitize, "interp": _interp, "gradient": _gradient, "convolve": _convolve, "correlate": _correlate, "cov": _cov,
    "corrcoef": _corrcoef, "vander": _vander, "piecewise": _piecewise, "delete": _delete, "insert": _insert, "copyto": _copyto,
    "linspace": _linspace, "logspace": _logspace, "polyder": _polyder, "polyint": _polyint, "polyadd": _polysum("polyadd", np.add),
    "polysub": _polysum("polysub", np.subtract), "block": _block, "linalg.outer": _outer, "linalg.vector_norm": _vector_norm,
    "linalg.matrix_norm": lambda x, /, *, keepdims=False, ord="fro": np.linalg.norm(x, ord, axis=(-2, -1), keepdims=keepdims),
    "linalg.diagonal": lambda x, /, *, offset=0: np.diagonal(x, offset, -2, -1), "linalg.matmul": lambda x1, x2, /: np.matmul(x1, x2),
    "linalg.trace": lambda x, /, *, offset=0, dtype=None: np.trace(x, offset, -2, -1, dtype=dtype),
    "linalg.tensordot": lambda x1, x2, /, *, axes=2: np.tensordot(x1, x2, axes=axes)}
