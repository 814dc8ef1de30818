"""The user's rows of the table: every public function called as users call it, eagerly and under ``compile``, on arrays of any strides, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np

import aotgrad as ag
from aotgrad.ir import opdef

F = Callable[..., Any]
Row = tuple[F, tuple[Any, ...]]

_rng = np.random.default_rng(51)


def _normal(*shape: int) -> Any:
    return _rng.normal(size=shape)


X, Y, SQ, M, V, U = _normal(4, 6), _normal(4, 6), _normal(5, 5), _normal(6, 3), _normal(6), _normal(4)
T3, S3, C4 = _normal(2, 4, 6), _normal(2, 6, 3), _normal(2, 3, 4, 2)
I46, I24, I3, B = _rng.integers(0, 4, (4, 6)), _rng.integers(0, 4, (2, 4)), np.array([2, 0, 2]), _normal(4, 6) > 0
_SHIFTED = np.roll(X, 1, axis=1)[:2, :4]

# Functions that are not elementwise (those take their operands from the samples of their op).
ROWS: dict[str, list[Row]] = {
    "view": [(lambda x: ag.reshape(x, (3, -1)), (X,)), (lambda x: ag.reshape(x, (2, 2, 6)), (X,))],
    "flatten": [(lambda x: ag.flatten(x, 1), (T3,))],
    "unflatten": [(lambda x: ag.unflatten(x, 1, (2, -1)), (X,)), (lambda x: ag.unflatten(x, -1, (3, 2, 1)), (X,))],
    "unsqueeze": [(lambda x: ag.unsqueeze(x, 1), (X,))],
    "squeeze": [(lambda x: ag.squeeze(x, 1), (X[:, :1],))],
    "spread": [(lambda x: ag.expand(x, (2, -1, 6)), (X,))],
    "reorder": [(lambda x: ag.permute(x, (2, 0, 1)), (T3,))],
    "swap": [(lambda x: ag.transpose(x, 0, 2), (T3,))],
    "movedim": [(lambda x: ag.movedim(x, 0, 2), (T3,))],
    "cat": [(lambda x, y: ag.cat([x, y, x], 1), (X, Y)), (lambda x, y: ag.cat([x, y]), (X, Y))],
    "stack": [(lambda x, y: ag.stack([x, y], 1), (X, Y))],
    "split": [(lambda x: ag.split(x, [2, 4], 1), (X,)), (lambda x: ag.split(x, 3, 0), (X,))],
    "chunk": [(lambda x: ag.chunk(x, 4, 1), (X,))],
    "unbind": [(lambda x: ag.unbind(x, 0), (X,))],
    "narrow": [(lambda x: ag.narrow(x, 1, 2, 3), (X,))],
    "flip": [(lambda x: ag.flip(x, (0, 2)), (T3,)), (lambda x: ag.flip(ag.permute(x, (2, 0, 3, 1)), (1, 3)), (C4,))],
    "roll": [(lambda x: ag.roll(x, (1, -2), (0, 1)), (X,)), (lambda x: ag.roll(x, 5), (X,))],
    "tile": [(lambda x: ag.tile(x, (2, 1, 2)), (X,))],
    "constant_pad": [(lambda x: ag.pad(x, (1, 2, 0, 1), value=0.5), (X,)), (lambda x: ag.pad(x, (-1, 2)), (X,))],
    "tril": [(lambda x: ag.tril(x, -1), (SQ,))],
    "triu": [(lambda x: ag.triu(x, 1), (T3,))],
    "diagonal": [(lambda x: ag.diagonal(x, 1, 0, 2), (T3,))],
    "diag_embed": [(lambda x: ag.diag_embed(x, -1), (X,))],
    "diag": [(lambda x: ag.diag(x, 1), (SQ,)), (ag.diag, (V,))],
    "trace": [(ag.trace, (SQ,))],
    "clip": [(lambda x: ag.clamp(x, -0.5, 0.7), (X,)), (lambda x, y: ag.clamp(x, max=y), (X, Y))],
    "clamp_min": [(lambda x: ag.clamp_min(x, -0.5), (X,)), (ag.clamp_min, (X, Y))],
    "clamp_max": [(lambda x: ag.clamp_max(x, 0.7), (X,)), (ag.clamp_max, (X, Y))],
    "convert": [(lambda x: ag.astype(x, ag.float32), (X,))],
    "count_nonzero": [(lambda x: ag.count_nonzero(x, 1), (np.where(B, X, 0.0),))],
    "matmul": [(ag.matmul, (X, M)), (ag.matmul, (T3, M)), (ag.matmul, (T3, S3)), (ag.matmul, (U, X)), (lambda x, y: x @ y.T, (X, Y))],
    "mm": [(ag.mm, (X, M))],
    "mv": [(ag.mv, (X, V))],
    "bmm": [(ag.bmm, (T3, S3))],
    "inner": [(ag.inner, (V, V + 1.0))],
    "outer": [(ag.outer, (U, V))],
    "einsum": [(lambda x, y: ag.einsum("bij,bjk->ki", x, y), (T3, S3)), (lambda x: ag.einsum("ii->i", x), (SQ,))],
    "vector_dot": [(ag.dot, (V, V * 0.5))],
    "t": [(ag.t, (X,))],
    "norm": [(ag.norm, (X,)), (lambda x: ag.norm(x, 3, 1), (X,)), (lambda x: ag.norm(x, float("inf"), 0, True), (X,))],
    "addmm": [(lambda c, x, y: ag.addmm(c, x, y, beta=0.5, alpha=2), (_normal(4, 3), X, M))],
    "baddbmm": [(ag.baddbmm, (_normal(2, 4, 3), T3, S3))],
    "kron": [(ag.kron, (X, M))],
    "cross": [(lambda x, y: ag.cross(x, y, 1), (_normal(6, 3), M))],
    "polygamma": [(lambda x: ag.polygamma(1, x), (X,)), (lambda x: ag.polygamma(2, x), (np.abs(X) + 0.5,))],
    "gather": [(lambda x, i: ag.gather(x, 0, i), (X, I24))],
    "take_along_dim": [(lambda x, i: ag.take_along_dim(x, i, 1), (X, I46[:, :2]))],
    "scatter_along": [(lambda x, i, v: ag.scatter(x, 1, i, v), (X, np.array([[5, 0, 2, 1], [1, 3, 4, 0]]), _SHIFTED))],
    "scatter_add_along": [(lambda x, i, v: ag.scatter_add(x, 0, i, v), (X, I24, _SHIFTED))],
    "index_select": [(lambda x, i: ag.index_select(x, 1, i), (X, I3))],
    "index_add": [(lambda x, i, v: ag.index_add(x, 1, i, v, alpha=2), (X, I3, Y[:, :3]))],
    "masked_fill": [(lambda x, m: ag.masked_fill(x, m, 0.25), (X, B))],
    "clone": [(ag.clone, (X,))],
    "repeat_interleave": [(lambda x: ag.repeat_interleave(x, 2, 0), (X,))],
    "sum": [(ag.sum, (X,)), (lambda x: ag.sum(x, 0), (X,)), (lambda x: ag.sum(x, (0, 2), True), (T3,)), (lambda x: ag.sum(x, (2, 3)), (C4,))],
    "prod": [(ag.prod, (X,)), (lambda x: ag.prod(x, 1), (X,))],
    "amax": [(lambda x: ag.amax(x, (0,)), (X,)), (lambda x: ag.amax(x, (1, 3)), (C4,))],
    "amin": [(lambda x: ag.amin(x, 1, True), (X,))],
    "any": [(lambda x: ag.any(x > 0.5, 0), (X,))],
    "all": [(lambda x: ag.all(x > -1.5, 1), (X,))],
    "argmax": [(lambda x: ag.argmax(x, 1), (X,)), (ag.argmax, (X,))],
    "argmin": [(lambda x: ag.argmin(x, 0), (X,))],
    "cumsum": [(lambda x: ag.cumsum(x, 0), (X,)), (lambda x: ag.cumsum(x, 1), (X,))],
    "cumprod": [(lambda x: ag.cumprod(x, 0), (X,))],
    "mean": [(ag.mean, (X,)), (lambda x: ag.mean(ag.relu(x), (2, 3), True), (C4,)), (lambda x: ag.mean(x, (0, 2)), (T3,))],
    "var": [(ag.var, (X,)), (lambda x: ag.var(x, 1, correction=0, keepdim=True), (X,))],
    "std": [(lambda x: ag.std(x, 0), (X,))],
    "logsumexp": [(lambda x: ag.logsumexp(x, 1), (X,))],
    "softmax": [(lambda x: ag.softmax(x, 0), (X,)), (lambda x: ag.softmax(x, 1), (C4,)), (lambda x: ag.softmax(x, -1), (T3,))],
    "log_softmax": [(lambda x: ag.log_softmax(x, 1), (X,))],
    "max": [(ag.max, (X,)), (lambda x: ag.max(x, 1), (X,))],
    "min": [(ag.min, (X,)), (lambda x: ag.min(x, 0, True), (X,))],
    "getitem": [(lambda x: x[1:, ::-2], (X,)), (lambda x, i: x[i, 1:], (X, I3)), (lambda x: x[..., None, 2], (T3,))],
    "setitem": [(lambda x, v: _written(x, 1, v), (X, V)), (lambda x, v: _written(x, (slice(None), slice(None, None, 2)), v), (X, U[:3])),
    (lambda x, i: _added(x, i, 1.5), (X, I3))],
    "masked_set": [(lambda x, m: _written(x, m, 0.5), (X, B))],
    "conv1d": [(lambda x, w: ag.conv1d(x, w, padding="same"), (T3, _normal(3, 4, 3)))],
    "conv2d": [(lambda x, w, c: ag.conv2d(x, w, c, padding=1, stride=(2, 1)), (C4, _normal(4, 3, 3, 2), _normal(4))),
               (lambda x, w: ag.nn.functional.conv2d(x, w, groups=3, dilation=2, padding=(1, 1)), (C4, _normal(6, 1, 2, 2)))],
    "conv3d": [(lambda x, w: ag.conv3d(x, w, stride=2, padding=1), (_normal(1, 2, 3, 4, 2), _normal(2, 2, 2, 1, 3)))],
    "conv_transpose1d": [(lambda x, w: ag.conv_transpose1d(x, w, stride=2, output_padding=1), (T3, _normal(4, 2, 3)))],
    "conv_transpose2d": [(lambda x, w, c: ag.conv_transpose2d(x, w, c, stride=(1, 2), padding=(1, 0)), (C4, _normal(3, 2, 3, 2), _normal(2)))],
    "max_pool1d": [(lambda x: ag.max_pool1d(x, 3, stride=2, padding=1), (T3,))],
    "max_pool2d": [(lambda x: ag.max_pool2d(x, 2, return_indices=True), (C4,)), (lambda x: ag.max_pool2d(x, (3, 2), 1, (1, 0), dilation=(1, 1), ceil_mode=True), (C4,))],
    "max_pool3d": [(lambda x: ag.nn.functional.max_pool3d(x, 2, stride=1), (_normal(2, 2, 3, 4, 2),))],
    "avg_pool1d": [(lambda x: ag.avg_pool1d(x, 3, 2, 1, count_include_pad=False), (T3,))],
    "avg_pool2d": [(lambda x: ag.avg_pool2d(x, 2), (C4,)), (lambda x: ag.avg_pool2d(x, 3, 2, 1, ceil_mode=True), (C4,)),
                   (lambda x: ag.avg_pool2d(x, 2, 1, divisor_override=3), (C4,))],
    "avg_pool3d": [(lambda x: ag.avg_pool3d(x, 2, 1, 1), (_normal(2, 2, 3, 4, 2),))],
    "adaptive_avg_pool1d": [(lambda x: ag.adaptive_avg_pool1d(x, 4), (T3,))],
    "adaptive_avg_pool2d": [(lambda x: ag.adaptive_avg_pool2d(x, (3, 1)), (C4,)), (lambda x: ag.adaptive_avg_pool2d(x, 1), (C4,))],
    "adaptive_avg_pool3d": [(lambda x: ag.adaptive_avg_pool3d(x, (2, None, 1)), (_normal(2, 2, 3, 4, 2),))],
    "adaptive_max_pool1d": [(lambda x: ag.adaptive_max_pool1d(x, 4, return_indices=True), (T3,))],
    "adaptive_max_pool2d": [(lambda x: ag.adaptive_max_pool2d(x, (3, 2)), (C4,))],
    "adaptive_max_pool3d": [(lambda x: ag.adaptive_max_pool3d(x, 2), (_normal(2, 2, 3, 4, 2),))],
    "conv_transpose3d": [(lambda x, w: ag.conv_transpose3d(x, w, groups=2, dilation=2), (_normal(1, 2, 2, 3, 2), _normal(2, 1, 2, 1, 2)))],
}


def _written(x: Any, where: Any, value: Any) -> Any:
    y = ag.clone(x)
    y[where] = value
    return y


def _added(x: Any, where: Any, value: Any) -> Any:
    y = ag.clone(x)
    y[where] += value
    return y


# ---- rows ---------------------------------------------------------------------------------------------------------------------------

def _drawn(op: opdef.OpDef) -> tuple[Any, ...]:
    """Operands of shape (4, 6) from the values of an elementwise op's samples."""
    rng = np.random.default_rng(5)
    rows = [[np.asarray(x) for x in s.operands] for s in (op.samples or tuple)()]
    kinds = [x.dtype for x in rows[0]]
    rows = [r for r in rows if [x.dtype for x in r] == kinds]
    return tuple(rng.choice(np.concatenate([r[i].ravel() for r in rows]), (4, 6)) for i in range(len(kinds)))


def rows(name: str) -> list[Row]:
    """Calls of a public function and their arguments."""
    op = opdef.get(name)
    if name in ROWS:
        return ROWS[name]
    assert op.front is not None and op.layouts == "elementwise", f"ag.{name} is public and not elementwise: add a call of it to ROWS in tests/user_table.py"
    return [(getattr(ag, op.front.signature.partition("(")[0]), _drawn(op))]


def public() -> list[str]:
    """Ops with a public face."""
    return [op.name for op in opdef.all_ops().values() if op.front is not None and (op.front.function or op.name in ROWS)]


def _gaps(x: Any) -> Any:
    wide = np.full(tuple(2 * n + 1 for n in x.shape), 77, x.dtype)
    view = wide[tuple(slice(1, None, 2) for _ in x.shape)]
    view[...] = x
    return view


def _negative(x: Any) -> Any:
    back = tuple(slice(None, None, -1) for _ in x.shape)
    return np.ascontiguousarray(x[back])[back]


def _channels_last(x: Any) -> Any:
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1) if x.ndim > 1 else x


VIEWS: dict[str, F] = {"gaps": _gaps, "negative": _negative, "fortran": np.asfortranarray, "channels last": _channels_last}


def _leaves(out: Any) -> list[Any]:
    return [leaf for o in out for leaf in _leaves(o)] if isinstance(out, (tuple, list)) else [np.asarray(out)]


def _same(got: Any, want: Any, what: str) -> None:
    for g, w in zip(_leaves(got), _leaves(want), strict=True):
        assert g.shape == w.shape and g.dtype == w.dtype, f"{what}: {g.dtype}{g.shape} is not {w.dtype}{w.shape}"
        if w.dtype.kind != "f":
            np.testing.assert_array_equal(g, w, err_msg=what)
        else:
            eps = float(np.finfo(w.dtype).eps)
            scale = max(1.0, float(np.max(np.abs(w), initial=0.0, where=np.isfinite(w))))  # sums are rounded relative to their terms
            np.testing.assert_allclose(g, w, rtol=64 * eps, atol=64 * eps * scale, err_msg=what)


def _loss(f: F) -> F:
    """A scalar whose gradient sees every float result with its own weight."""

    def loss(*xs: Any) -> Any:
        out = f(*xs)
        total: Any = 0.0
        for o in out if isinstance(out, (tuple, list)) else (out,):
            if np.dtype(str(o.dtype).rpartition(".")[2]).kind == "f":
                total = total + ag.sum(o * ag.cos(o))
        return total

    return loss


def check_row(f: F, xs: Sequence[Any], what: str, turn: int | None = None, either: bool = False) -> None:
    """Values and gradients by every road: eager and compiled, dense and strided, NumPy arrays and tensors on the tape, reverse and forward.

    ``turn``: compiled for dense operands and the ``turn``-th kind of strides alone, and at odd turns for the tape; with ``either`` at even turns for arrays alone.
    """
    want = f(*xs)
    floats = tuple(i for i, x in enumerate(xs) if x.dtype.kind == "f")
    views = {kind: [view(x) for x in xs] for kind, view in VIEWS.items() if kind != "channels last" or any(x.ndim > 2 for x in xs)}
    for kind, other in views.items():
        _same(f(*other), want, f"{what}: eager, {kind}")
    chosen = {"dense", *(views if turn is None else [list(views)[turn % len(views)]])}
    if not floats or not any(o.dtype.kind == "f" for o in _leaves(want)):
        compiled = ag.compile(f)
        for kind, other in (("dense", xs), *views.items()):
            if kind in chosen:
                _same(compiled(*other), want, f"{what}: compiled, {kind}")
        return
    rng = np.random.default_rng(6)
    if either and turn is not None and turn % 2:
        chosen = set()
    check_derivatives(f, xs, floats, views, [rng.normal(size=xs[i].shape) for i in floats], what, chosen, turn is None or turn % 2 == 1)


def check_derivatives(f: F, xs: Sequence[Any], floats: tuple[int, ...], views: Mapping[str, Sequence[Any]], tangents: Sequence[Any], what: str,
                      chosen: Container[str], tape: bool) -> None:
    """Value, gradient and directional derivative of a scalar of the results; one compiled function gives all three. ``tape``: through a compiled function too."""
    loss = _loss(f)
    gradient = ag.grad(loss, argnums=floats)

    def forward(xs: Sequence[Any], tangents: Sequence[Any]) -> Any:
        def inner(*moving: Any) -> Any:
            it = iter(moving)
            return loss(*(next(it) if i in floats else x for i, x in enumerate(xs)))

        return ag.jvp(inner, tuple(xs[i] for i in floats), tuple(tangents))[1]

    def everything(*given: Any) -> Any:
        xs, tangents = given[:-len(floats)], given[-len(floats):]
        return f(*xs), gradient(*xs), forward(xs, tangents)

    value, grads = f(*xs), gradient(*xs)
    compiled, exact = ag.compile(everything), np.asarray(loss(*xs)).dtype == np.float64
    moved = sum(float(np.sum(np.asarray(g) * t)) for g, t in zip(grads, tangents))
    for kind, other in (("dense", xs), *views.items()):
        _same(gradient(*other), grads, f"{what}: eager gradient, {kind}")
        found = {"eager": forward(other, tangents)}
        if kind in chosen:
            v, g, found["compiled"] = compiled(*other, *tangents)
            _same(v, value, f"{what}: compiled, {kind}")
            _same(g, grads, f"{what}: compiled gradient, {kind}")
        for way, got in found.items():
            assert abs(float(got) - moved) <= (1e-12 if exact else 1e-5) * (1 + abs(moved)), f"{what}: {way} forward mode, {kind}: {got} is not {moved}"
    for way, run in (("eager", loss), *([("compiled", ag.compile(loss))] if tape else [])):
        tensors = [ag.tensor(x, dtype=ag.float64, requires_grad=True) if i in floats else ag.as_tensor(x) for i, x in enumerate(xs)]
        run(*tensors).backward()
        _same([np.zeros(xs[i].shape) if tensors[i].grad is None else tensors[i].grad.numpy() for i in floats], grads, f"{what}: backward() of the {way} function")


# ---- other sizes --------------------------------------------------------------------------------------------------------------------

SIZES = ((0, 6), (4, 0), (1, 1), (1, 6), (4, 1), (7, 9), (33, 2), (0, 0))


def _attempt(f: F, xs: Sequence[Any]) -> tuple[Any, Exception | None]:
    try:
        return f(*xs), None
    except Exception as error:
        return None, error


def check_sizes(f: F, xs: Sequence[Any], what: str) -> None:
    """Called with other sizes after the first compile, and with sizes that do not fit: the eager result, or an error where eager has one, never anything else."""
    rng = np.random.default_rng(8)
    floats = tuple(i for i, x in enumerate(xs) if x.dtype.kind == "f")
    pairs = [("value", f, ag.compile(f))]
    if floats and any(o.dtype.kind == "f" for o in _leaves(f(*xs))):
        gradient = ag.grad(_loss(f), argnums=floats)
        pairs.append(("gradient", gradient, ag.compile(gradient)))
    other = {n: int(rng.integers(1, 9)) for x in xs for n in x.shape}  # equal sizes stay equal
    tries = [[tuple(other[n] for n in x.shape) for x in xs], [tuple(int(rng.integers(0, 4)) if rng.random() < 0.5 else n for n in x.shape) for x in xs]]
    if all(x.shape == (4, 6) for x in xs):
        tries += [[shape] * len(xs) for shape in SIZES]
    for road, eager, compiled in pairs:
        compiled(*xs)
        for shapes in tries:
            given = [rng.choice(x.ravel(), shape) for x, shape in zip(xs, shapes)]
            (want, refused), (got, error) = _attempt(eager, given), _attempt(compiled, given)
            assert (error is None) == (refused is None), f"{what}, {road}, {shapes}: eager {refused!r}, compiled {error!r}"
            if error is None:
                _same(got, want, f"{what}, {road}, {shapes}")
            else:
                assert isinstance(error, ag.AotgradError), f"{what}, {road}, {shapes}: {error!r}"
