"""Functions that ``numpy_source`` puts into a file where an op is no single NumPy call."""

from __future__ import annotations

from typing import Final

__all__ = ["HELPERS"]

HELPERS: Final[dict[str, str]] = {
    "floordiv": '''
def floordiv(a, b):
    return a // b
''',
    "mod": '''
def mod(a, b):
    return a % b
''',
    "_slice": '''
def _slice(start, size, step):
    """Elements start, start + step, ..., size of them."""
    end = start + size * step
    return slice(0, 0) if size <= 0 else slice(start, None if end < 0 else end, step)
''',
    "_lmul": '''
def _lmul(x, y):
    """x * y, and 0 where either is exactly 0."""
    return np.where((x == 0) | (y == 0), np.zeros((), np.result_type(x, y)), x * y)
''',
    "_clamp": '''
def _clamp(x, low, high):
    return np.minimum(np.maximum(x, low), high)
''',
    "_sigmoid": '''
def _sigmoid(x):
    t = np.exp(-np.abs(x))
    return np.where(x < 0, t, np.ones_like(t)) / (1 + t)
''',
    "_softplus": '''
def _softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
''',
    "_each": '''
def _each(fn, x):
    return np.array([fn(float(v)) for v in np.ravel(x)], np.asarray(x).dtype).reshape(np.shape(x))
''',
    "_erf": '''
def _erf(x):
    return _each(math.erf, x)
''',
    "_erfc": '''
def _erfc(x):
    return _each(math.erfc, x)
''',
    "_erfinv": '''
def _erfinv(x):
    def one(x):
        y = abs(x)
        if y >= 1 or y != y:
            return math.copysign(math.inf, x) if y == 1 else math.nan
        v = 0.0 if y < 0.5 else math.sqrt(-math.log(1 - y))
        for _ in range(60):
            lack = math.erf(v) - y if y < 0.5 else 1 - y - math.erfc(v)
            step = lack / (2 / math.sqrt(math.pi) * math.exp(-v * v))
            v -= step / (1 + v * step)
        return math.copysign(v, x)
    return _each(one, x)
''',
    "_lgamma": '''
def _lgamma(x):
    return _each(lambda v: math.inf if v <= 0 and v == math.floor(v) else math.lgamma(v), x)
''',
    "_digamma": '''
def _digamma(x):
    def one(x):
        if x == 0:
            return math.copysign(math.inf, -x)
        if not abs(x) < math.inf or x < 0 and x == math.floor(x):
            return x if x == math.inf else math.nan
        if x < 0:
            return one(1 - x) - math.pi / math.tan(math.pi * (x - math.floor(x + 0.5)))
        out = 0.0
        while x < 16:
            out, x = out - 1 / x, x + 1
        z = 1 / x / x
        return out + math.log(x) - 0.5 / x - z * (1 / 12 - z * (1 / 120 - z * (1 / 252 - z * (1 / 240 - z * (1 / 132 - z * 691 / 32760)))))
    return _each(one, x)
''',
    "_polygamma": '''
def _polygamma(x, n):
    """(-1) ** (n + 1) n! times the sum of (x + i) ** -(n + 1); below 0 by the reflection, with derivatives of the cotangent as polynomials in it."""
    b = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
    row = [0, 1]
    for _ in range(n):
        d = [i * c for i, c in enumerate(row)][1:]
        row = [-(d[i] if i < len(d) else 0) - (d[i - 2] if 2 <= i < len(d) + 2 else 0) for i in range(len(d) + 2)]

    def one(x):
        if x < 0:
            t = math.tan(math.pi * (x - math.floor(x + 0.5)))
            if t == 0:
                return math.inf if n % 2 else math.nan
            return -math.pi ** (n + 1) * sum(c / t**i for i, c in enumerate(row)) + (-1) ** n * one(1 - x)
        if x == 0:
            return (-1) ** (n + 1) * math.inf
        m = x + 20 + n
        out = sum(1 / (x + i) ** (n + 1) for i in range(20 + n)) + 1 / (n * m**n) + 0.5 / m ** (n + 1)
        out += sum(c * math.factorial(n + 2 * j - 1) / math.factorial(n) / math.factorial(2 * j) / m ** (n + 2 * j) for j, c in enumerate(b, 1))
        return (-1) ** (n + 1) * math.factorial(n) * out
    return _each(one, x)
''',
    "_checked": '''
def _checked(index, size):
    """Indices, none of which may be outside [0, size)."""
    if np.size(index) and (np.min(index) < 0 or np.max(index) >= size):
        raise IndexError(f"index {int(np.min(index)) if np.min(index) < 0 else int(np.max(index))} is out of range for size {size}")
    return index
''',
    "_fit": '''
def _fit(x, dtype):
    """Integers as a narrower dtype, which must hold them."""
    out = np.asarray(x).astype(dtype)
    if not np.array_equal(out, x):
        raise OverflowError(f"a Python integer is out of bounds for {np.dtype(dtype)}")
    return out
''',
    "_row": '''
def _row(*given, wrap):
    """Indices (array, size, dim) of several dims as one along these dims together; negative ones are from the end, with wrap."""
    rows = 0
    for index, size, dim in given:
        wrong = np.ravel((index < (-size if wrap else 0)) | (index >= size))
        if wrong.any():
            raise IndexError(f"index {int(np.ravel(index)[wrong][0])} is out of bounds for dimension {dim} with size {size}")
        rows = rows * size + (np.where(index < 0, index + size, index) if wrap else index)
    return rows
''',
    "_rows": '''
def _rows(x, index, value, dim):
    """A copy of x and the values as rows along dim, which comes first."""
    out = np.moveaxis(np.array(x), dim, 0)
    shape = x.shape[:dim] + (np.size(index),) + x.shape[dim + 1:]
    return out, np.ravel(_checked(index, x.shape[dim])), np.moveaxis(np.reshape(value, shape), dim, 0)
''',
    "_scatter": '''
def _scatter(x, index, value, dim):
    """x with value written at the indices along dim; of repeated indices the last stays."""
    out, rows, values = _rows(x, index, value, dim)
    for i, v in zip(rows, values):
        out[i] = v
    return np.moveaxis(out, 0, dim)
''',
    "_scatter_add": '''
def _scatter_add(x, index, value, dim):
    """x with value added at the indices along dim."""
    out, rows, values = _rows(x, index, value, dim)
    np.add.at(out, rows, values)
    return np.moveaxis(out, 0, dim)
''',
    "_cumulate": '''
def _cumulate(fn, unit, x, dim, exclusive, reverse):
    y = np.flip(x, dim) if reverse else x
    out = fn(y, axis=dim, dtype=x.dtype)
    if exclusive and x.shape[dim]:
        out = np.concatenate([np.full_like(np.take(x, [0], dim), unit), np.delete(out, -1, axis=dim)], axis=dim)
    return np.flip(out, dim) if reverse else out
''',
    "_cumsum": '''
def _cumsum(x, dim, exclusive, reverse):
    return _cumulate(np.cumsum, 0, x, dim, exclusive, reverse)
''',
    "_cumprod": '''
def _cumprod(x, dim, exclusive, reverse):
    return _cumulate(np.cumprod, 1, x, dim, exclusive, reverse)
''',
    "_conv": '''
def _conv(x, w, y, shape, stride, padding, dilation, groups):
    """Of x [N, C, *S], w [O, C / groups, *K] and y [N, O, *P], whose products a convolution sums up, the one that is None: of the given shape."""
    first = x if x is not None else y
    out = np.zeros(shape, first.dtype)
    x, w, y = (out if a is None else a for a in (x, w, y))
    places, counts = w.shape[2:], y.shape[2:]
    ends = [(p - 1) * s + (k - 1) * d + 1 for p, s, k, d in zip(counts, stride, places, dilation)]
    before = [max(lo, 0) for lo, _ in padding]
    wide = np.zeros(x.shape[:2] + tuple(max(b + n, b - lo + e) for b, n, (lo, _), e in zip(before, x.shape[2:], padding, ends)), first.dtype)
    inside = (slice(None), slice(None)) + tuple(slice(b, b + n) for b, n in zip(before, x.shape[2:]))
    wide[inside] = x
    grouped = wide.reshape(x.shape[0], groups, x.shape[1] // groups, *wide.shape[2:])
    ys, ws = y.reshape(y.shape[0], groups, y.shape[1] // groups, *counts), w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    for k in np.ndindex(*places):
        starts = [b - lo + i * d for b, (lo, _), i, d in zip(before, padding, k, dilation)]
        part = grouped[(Ellipsis,) + tuple(slice(a, a + p * s, s) for a, p, s in zip(starts, counts, stride))]
        if out is y:
            ys += np.einsum("ngc...,goc->ngo...", part, ws[(Ellipsis,) + k])
        elif out is w:
            n = int(np.prod(counts))
            ws[(Ellipsis,) + k] = np.einsum("ngcz,ngoz->goc", part.reshape(*part.shape[:3], n), ys.reshape(*ys.shape[:3], n))
        else:
            part += np.einsum("ngo...,goc->ngc...", ys, ws[(Ellipsis,) + k])
    return wide[inside] if out is x else out
''',
    "_window": '''
def _window(kind, x, shape, kernel, stride, low, dilation, divide=1):
    """Sums, maxima or the places of maxima of windows of x; or x added to its windows."""
    down = kind != "spread"
    spatial, counts = (x.shape[2:], shape[2:]) if down else (shape[2:], x.shape[2:])
    rank = len(counts)
    number, inside = np.zeros((1,) * (2 * rank), np.int64), np.ones((1,) * (2 * rank), bool)
    for d, (n, m) in enumerate(zip(spatial, counts)):
        p = np.arange(m)[:, None]
        if kernel:
            i = p * stride[d] - low[d] + np.arange(kernel[d]) * dilation[d]
            ok = (i >= 0) & (i < n)
        else:
            i = p * n // max(m, 1) + np.arange(n)
            ok = i < -(-(p + 1) * n // max(m, 1))
        view = [1] * (2 * rank)
        view[d], view[rank + d] = i.shape
        number, inside = number * n + i.reshape(view), inside & ok.reshape(view)
    size = int(np.prod(number.shape[rank:]))
    number, inside = (np.broadcast_to(a, number.shape).reshape(*counts, size) for a in (number, inside))
    if not down:
        out = np.zeros((*shape[:2], int(np.prod(spatial))), x.dtype)
        np.add.at(out, (slice(None), slice(None), np.where(inside, number, 0)), np.where(inside, x[..., None], x.dtype.type(0)))
        return (out / x.dtype.type(divide) if divide != 1 else out).reshape(shape)
    part = x.reshape(*x.shape[:2], -1)[:, :, np.where(inside, number, 0)] if inside.any() and x.size else np.zeros((*shape, size), x.dtype)
    if kind == "sum":
        total = np.where(inside, part, x.dtype.type(0)).sum(axis=-1, dtype=x.dtype)
        return total / x.dtype.type(divide) if divide != 1 else total
    least = x.dtype.type(-np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min)
    if kind == "max":
        return np.where(inside, part, least).max(axis=-1, initial=least)
    rank_of = np.where(inside, np.where(part == part, part, np.inf), least)
    nan = np.flip(inside & (part != part), -1)
    first = np.argmax(inside & (rank_of == rank_of.max(axis=-1, initial=least, keepdims=True)), axis=-1) if size else np.zeros(shape, np.int64)
    chosen = np.where(nan.any(axis=-1), size - 1 - np.argmax(nan, axis=-1) if size else 0, first)
    return np.where(inside.any(axis=-1), np.take_along_axis(np.broadcast_to(number, part.shape), chosen[..., None], -1)[..., 0] if size else 0, -1).astype(np.int64)
''',
    "_at_places": '''
def _at_places(x, at, spatial):
    """Of images x, the elements at places (0 where there is none); with spatial, images of that size with x added at places."""
    images = x.reshape(*x.shape[:2], -1) if x.size else np.zeros((*x.shape[:2], 1), x.dtype)
    size = int(np.prod(x.shape[2:] if spatial is None else spatial))
    on = (at >= 0) & (at < size)
    where = (*np.indices(at.shape[:2]).reshape(2, *at.shape[:2], *[1] * (at.ndim - 2)), np.where(on, at, 0))
    if spatial is None:
        return np.where(on, images[where], x.dtype.type(0))
    out = np.zeros((*x.shape[:2], max(size, 1)), x.dtype)
    np.add.at(out, where, np.where(on, x, x.dtype.type(0)))
    return out[:, :, :size].reshape(*x.shape[:2], *spatial)
''',
    "_recurrence": '''
def _recurrence(a, x, dim, reverse):
    """y[i] = a[i] * y[i - 1] + x[i] along dim."""
    factors, out = np.moveaxis(a, dim, 0), np.moveaxis(np.array(x), dim, 0)
    order = list(range(len(out)))[::-1 if reverse else 1]
    for last, i in zip(order, order[1:]):
        out[i] += _lmul(factors[i], out[last])
    return np.moveaxis(out, 0, dim)
''',
}
