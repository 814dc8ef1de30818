"""Matrices of derivatives: jacrev, jacfwd, hessian."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from aotgrad_runtime.arrays import converted
from aotgrad_runtime.dtypes import DType, bfloat16
from aotgrad_runtime.tensor import Tensor, wrap

from . import dispatch, randoms
from .explained import told_of_arguments
from .leaves import (
    F,
    arguments_of,
    check_argnums,
    check_callable,
    check_float,
    check_result,
    differentiable,
    dtype_of,
    flavour_of,
    like_name,
    nested,
    place_of,
    release,
    spared,
    tracing_any,
    tree_flatten_nones,
)
from .pytree import TreeDef, tree_flatten, tree_unflatten
from .traced_transforms import traced_jacobian
from .transforms import Taped, gradients, jvp, or_zero

__all__ = ["hessian", "jacfwd", "jacobian", "jacrev"]


def _basis(shape: tuple[int, ...], dtype: DType, k: int) -> Any:
    e = np.zeros(shape)
    e.flat[k] = 1
    return converted(e, dtype)


def _stored(x: Any, cls: type[Any]) -> Any:
    return wrap(x, cls) if isinstance(x, np.ndarray) and x.dtype == bfloat16.np else x  # its storage says nothing of the numbers in it


def _stacked(rows: list[Any], lead: tuple[int, ...], rest: tuple[int, ...], dtype: DType, cls: type[Any], front: bool) -> Any:
    """Rows (one per basis vector) as one array of shape ``lead + rest`` (front) or ``rest + lead``."""
    full = rest if not rows else None
    out = dispatch.call(dispatch.TORCH["stack"], (rows,), {}) if rows else wrap(np.zeros((0, *(full or ())), dtype.np), cls)
    out = dispatch.call(dispatch.TORCH["reshape"], (out, (*lead, *rest)), {})
    if front or not lead:
        return out
    n = len(lead)
    return dispatch.call(dispatch.TORCH["permute"], (out, [*range(n, n + len(rest)), *range(n)]), {})


@told_of_arguments
def jacrev(f: F, argnums: Any = 0) -> F:
    """The Jacobian by reverse mode: for each result leaf and argument leaf an array of shape ``result.shape + argument.shape``. Takes as many passes as the result has
    numbers. ``argnums``: a position, or a tuple of positions, then with a tuple of Jacobians. Of a result leaf that holds no floats it is None. Raises
    ``AotgradTypeError`` where an argument holds no floats, or no leaf of the result does.

    >>> import numpy as np, aotgrad as ag
    >>> ag.jacrev(lambda x: np.stack([x[0] * x[1], x[0]]))(np.array([2.0, 3.0]))
    array([[3., 2.],
           [1., 0.]])
    """
    check_callable(f, "jacrev")
    check_argnums(argnums)

    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs, nums = arguments_of(f, argnums, args, kwargs)
        if tracing_any(args, kwargs):
            return traced_jacobian(f, args, kwargs, nums, argnums, reverse=True)
        taped = Taped(f, args, kwargs, nums)
        outs, out_tree = tree_flatten(taped.out)
        check_result(outs, f, "jacrev")
        with nested():
            blocks = [_jacrev_leaf(taped, outs, k) for k in range(len(outs))]
        return _arrange(blocks, out_tree, [t for _, t in taped.trees], argnums)

    return like_name(run, f, "jacrev")


def _jacrev_leaf(taped: Taped, outs: Sequence[Any], k: int) -> list[list[Any]]:
    out = outs[k]
    flat = [v for vs in taped.vars for v in vs if v is not None]
    shape = tuple(out.shape) if hasattr(out, "shape") else ()
    if not differentiable(out):
        return [[None] * len(vs) for vs in taped.vars]
    dtype = dtype_of(out)
    rows = []
    for j in range(int(np.prod(shape, dtype=int))):
        ct = wrap(_basis(shape, dtype, j), taped.cls)
        rows.append([or_zero(g, v) for g, v in zip(gradients([out], flat, [ct], taped.create_graph), flat)])
    columns = iter([_stacked([r[i] for r in rows], shape, tuple(v.shape), v._dtype, taped.cls, front=True) for i, v in enumerate(flat)])
    return [[None if v is None else next(columns) for v in vs] for vs in taped.vars]


def _arrange(blocks: list[list[list[Any]]], out_tree: TreeDef, arg_trees: Sequence[TreeDef], argnums: Any) -> Any:
    """Result-structure outside, argument structure inside."""
    per_out = []
    for block in blocks:
        args = [tree_unflatten(tree, [None if x is None else release(x) for x in leaves]) for tree, leaves in zip(arg_trees, block)]
        per_out.append(tuple(args) if isinstance(argnums, (tuple, list)) else args[0])
    return tree_unflatten(out_tree, per_out)


@told_of_arguments
def jacfwd(f: F, argnums: Any = 0) -> F:
    """The Jacobian by forward mode: as many passes as the argument has numbers, which is less than ``jacrev`` takes where the result is longer; the rest is as there.

    >>> import numpy as np, aotgrad as ag
    >>> ag.jacfwd(lambda t: np.stack([t, t * t, t * t * t]))(2.0)
    array([ 1.,  4., 12.])
    """
    check_callable(f, "jacfwd")
    check_argnums(argnums)

    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs, nums = arguments_of(f, argnums, args, kwargs)
        if tracing_any(args, kwargs):
            return traced_jacobian(f, args, kwargs, nums, argnums, reverse=False)
        trees = [tree_flatten(args[i]) for i in nums]
        for i, (leaves, _) in zip(nums, trees):
            check_float(leaves, place_of(f, i))
        cls = flavour_of([args, kwargs])

        def partial(*chosen: Any) -> Any:
            filled = [a if i in nums else spared(a) for i, a in enumerate(args)]
            for i, c in zip(nums, chosen):
                filled[i] = c
            return f(*filled, **{k: spared(x) for k, x in kwargs.items()})

        with nested():
            blocks, out_tree = _jacfwd_blocks(f, partial, args, nums, trees, cls)
        return _arrange(blocks, out_tree, [t for _, t in trees], argnums)

    return like_name(run, f, "jacfwd")


def _jacfwd_blocks(f: F, partial: F, args: Sequence[Any], nums: Sequence[int], trees: Sequence[tuple[list[Any], TreeDef]],
                   cls: type[Any]) -> tuple[list[list[list[Any]]], TreeDef]:
    zeros = [[np.zeros(tuple(x.shape) if isinstance(x, Tensor) else np.shape(x), dtype_of(x).np) if differentiable(x) else x for x in leaves] for leaves, _ in trees]
    moved: list[list[list[Any] | None]] = []
    outs, out_tree = list[Any](), None
    again = randoms.repeating()  # every pass sees the same function
    for a, (leaves, _) in enumerate(trees):
        per_leaf: list[list[Any] | None] = []
        for k, x in enumerate(leaves):
            if not differentiable(x):
                per_leaf.append(None)
                continue
            shape, rows = zeros[a][k].shape, []
            for j in range(max(1, int(np.prod(shape, dtype=int)))):
                ts = [list(z) for z in zeros]
                if zeros[a][k].size:
                    ts[a][k] = _basis(shape, dtype_of(x), j)
                again()
                value, tangent = jvp(partial, [args[i] for i in nums], [tree_unflatten(t, [_stored(v, cls) for v in z]) for z, (_, t) in zip(ts, trees)])
                outs, out_tree = tree_flatten(value)
                check_result(outs, f, "jacfwd")
                rows.append(tree_flatten_nones(tangent, out_tree))
            per_leaf.append(rows if zeros[a][k].size else [])
        moved.append(per_leaf)
    assert out_tree is not None
    blocks = []
    for o, out in enumerate(outs):
        rest = tuple(out.shape) if hasattr(out, "shape") else ()
        block = []
        for a, per in enumerate(moved):
            row = []
            for k, rows in enumerate(per):  # type: ignore[assignment]
                fits = rows is not None and differentiable(out)
                row.append(_stacked([r[o] for r in rows], zeros[a][k].shape, rest, dtype_of(out), cls, front=False) if fits else None)
            block.append(row)
        blocks.append(block)
    return blocks, out_tree


jacobian = jacrev


@told_of_arguments
def hessian(f: F, argnums: Any = 0) -> F:
    """The second derivatives of a function, of shape ``argument.shape + argument.shape`` for one number, with ``result.shape`` in front for an array: forward over
    reverse. With a tuple for ``argnums`` a tuple of tuples, ``[i][j]`` for arguments i and j; for containers the same inside each other. Raises
    ``AotgradTypeError`` where an argument holds no floats.

    >>> import numpy as np, aotgrad as ag
    >>> ag.hessian(lambda x: x[0] ** 2 * x[1])(np.array([2.0, 3.0]))
    array([[6., 4.],
           [4., 0.]])
    """
    check_callable(f, "hessian")
    return like_name(jacfwd(jacrev(f, argnums), argnums), f, "hessian")
