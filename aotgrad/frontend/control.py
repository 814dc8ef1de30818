"""Structured control flow for users: ``cond``, ``scan``, ``fori_loop``, ``map``. Plain Python when the values are there; IR regions in a trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotgrad.ir import Block, Builder, TensorType, Value, dims
from aotgrad.ir.transforms.rewrite import copy_ops
from aotgrad_runtime.dtypes import bool_, int64
from aotgrad_runtime.errors import AotgradTypeError, AotgradValueError
from aotgrad_runtime.tensor import Tensor

from . import dispatch
from .pytree import TreeDef, tree_flatten, tree_unflatten
from .subtrace import Sub, as_value, builder_of, traced_class
from .trace import Trace, Traced, current, plain_size, unrecorded, user_loc

__all__ = ["cond", "fori_loop", "map_", "scan"]


def _traced(*trees: Any) -> Trace | None:
    trace = current()
    if trace is None and any(isinstance(x, Traced) for t in trees for x in tree_flatten(t)[0]):
        raise AotgradTypeError(f"{user_loc()}: a traced value is used outside the call that made it")
    return trace


# ---- cond -----------------------------------------------------------------------------------------------------------------------------

def cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], *operands: Any) -> Any:
    """``true_fn(*operands)`` where ``pred`` (a bool scalar) holds, else ``false_fn(*operands)``. Only the chosen branch runs; both must give equal structures and types.

    >>> import aotgrad as ag
    >>> ag.cond(True, lambda x: x + 1, lambda x: x - 1, 5.0)
    6.0
    """
    trace = _traced(pred, operands)
    if trace is None or not isinstance(pred, Traced):
        return (true_fn if bool(pred) else false_fn)(*operands)
    b = builder_of(trace)
    leaves, tree = tree_flatten(tuple(operands))
    values = [as_value(x, trace) for x in leaves]
    cls = traced_class([pred, *leaves])
    weak = [getattr(x, "_weak", type(x) in (int, float)) for x in leaves]
    subs = [Sub(name, fn, tree, [v.type for v in values], cls, weak) for name, fn in (("true_fn", true_fn), ("false_fn", false_fn))]
    if subs[0].out_tree != subs[1].out_tree:
        raise AotgradTypeError(f"{user_loc()}: cond: the branches return different structures; return the same containers and keys from both")
    lifted: dict[Value, None] = {}
    for s in subs:
        lifted.update(dict.fromkeys(s.lifted_values()))
    p = as_value(pred, trace)
    if p.type.shape != ():
        raise AotgradValueError(f"{user_loc()}: cond: the predicate has shape {p.type.shape}; it must be a scalar. Use ag.where for elementwise choice")
    p = p if p.type.dtype is bool_ else b.ne(p, b.full_like(p, 0))
    outer = [*values, *lifted]
    blocks = [_aligned(s, len(values), outer) for s in subs]
    found = b.emit("cond", [p, *outer], {}, blocks)
    return tree_unflatten(subs[0].out_tree, [cls._of(trace, unrecorded(b, v)) for v in found])


def _aligned(sub: Sub, given: int, outer: Sequence[Value]) -> Block:
    """The branch with one argument per value of ``outer``, used or not."""
    block = Block([v.type for v in outer])
    place = {v: i for i, v in enumerate(outer)}
    env: dict[Value, Value] = dict(zip(sub.block.args[:given], block.args))
    env.update({arg: block.args[place[v]] for arg, v in zip(sub.block.args[given:], sub.lifted_values())})
    copy_ops(Builder(block), sub.block.ops, env)
    block.outputs = [env[o] for o in sub.block.outputs]
    return block


# ---- scan -----------------------------------------------------------------------------------------------------------------------------

def scan(f: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any = None, length: Any = None, reverse: bool = False) -> tuple[Any, Any]:
    """Runs ``carry, y = f(carry, x)`` over the leading dim of every leaf of ``xs`` (or ``length`` times): ``(last carry, stacked ys)``.

    Reverse mode stores what each step needs once; the loop stays a loop in compiled code. The carry keeps its structure, shapes and dtypes.

    >>> import numpy as np, aotgrad as ag
    >>> ag.scan(lambda c, x: (c + x, c * x), 0.0, np.array([1.0, 2.0, 3.0]))
    (np.float64(6.0), array([0., 2., 9.]))
    """
    leaves, tree = tree_flatten(xs)
    count = _length(leaves, length)
    trace = _traced(init, xs)
    if trace is None:
        return _eager_scan(f, init, leaves, tree, int(count), reverse)
    return _traced_scan(f, init, leaves, tree, count, reverse, trace)


def _length(leaves: Sequence[Any], length: Any) -> Any:
    sizes = []
    for x in leaves:
        shape = x.shape if hasattr(x, "shape") else np.shape(x)
        if len(shape) == 0:
            raise AotgradValueError("scan: a leaf of xs is 0-d; every leaf needs a leading dim to run over")
        sizes.append(plain_size(shape[0]))
    if length is not None:
        sizes.append(plain_size(length))
    if not sizes:
        raise AotgradValueError("scan: give xs, or length=")
    for n in sizes[1:]:
        if isinstance(n, int) and isinstance(sizes[0], int) and n != sizes[0]:
            raise AotgradValueError(f"scan: leading sizes {sizes[0]} and {n} differ")
    return sizes[0]


def _eager_scan(f: Any, init: Any, leaves: Sequence[Any], tree: TreeDef, count: int, reverse: bool) -> tuple[Any, Any]:
    carry, rows = init, [None] * count
    for i in (reversed(range(count)) if reverse else range(count)):
        out = f(carry, tree_unflatten(tree, [_row(x, i) for x in leaves]))
        if not isinstance(out, tuple) or len(out) != 2:
            raise AotgradTypeError("scan: the function must return (carry, y); return (carry, None) when there is no y")
        carry, rows[i] = out
    if not count:
        raise AotgradValueError("scan over 0 steps outside compile has no y to take the structure from; compile the function, or handle the empty case apart")
    flat = [tree_flatten(r) for r in rows]
    columns = [dispatch.call(dispatch.TORCH["stack"], ([row[0][j] for row in flat],), {}) for j in range(len(flat[0][0]))]
    return _numbers(carry), tree_unflatten(flat[0][1], columns)


def _numbers(tree: Any) -> Any:
    leaves, treedef = tree_flatten(tree)
    return tree_unflatten(treedef, [np.float64(x) if type(x) is float else x for x in leaves])


def _row(x: Any, i: int) -> Any:
    if not isinstance(x, Tensor):
        return np.asarray(x)[i]
    piece = dispatch.call(dispatch.TORCH["narrow"], (x, 0, i, 1), {})
    return dispatch.call(dispatch.TORCH["reshape"], (piece, tuple(x.shape)[1:]), {})


def _traced_scan(f: Any, init: Any, leaves: Sequence[Any], tree: TreeDef, count: Any, reverse: bool, trace: Trace) -> tuple[Any, Any]:
    b = builder_of(trace)
    carry, carry_tree = tree_flatten(init)
    values = [as_value(x, trace) for x in carry]
    weak = [getattr(x, "_weak", type(x) in (int, float)) for x in carry]
    xs = [b.refresh(as_value(x, trace)) for x in leaves]
    xs = [b.relayout(x, layout=None) if x.type.layout else x for x in xs]
    for x in xs:
        b.equate(x.type.shape[0], count, "scan: leading sizes")
    count = trace.canonical(count)
    rows = [TensorType(x.type.shape[1:], x.type.dtype) for x in xs]
    cls = traced_class([*carry, *leaves])
    body_tree = tree_flatten((tree_unflatten(carry_tree, carry), tree_unflatten(tree, list(leaves))))[1]

    def fn(c: Any, x: Any) -> Any:
        out = f(c, x)
        if not isinstance(out, tuple) or len(out) != 2:
            raise AotgradTypeError(f"{user_loc()}: scan: the function must return (carry, y); return (carry, None) when there is no y")
        return out

    for _ in range(2):
        sub = Sub(getattr(f, "__name__", "scan"), fn, body_tree, [*(v.type for v in values), *rows], cls, [*weak, *([False] * len(rows))])
        wanted = [v.type for v in sub.block.outputs[:len(values)]]
        if sub.out_tree.children[0] != carry_tree:
            raise AotgradTypeError(f"{user_loc()}: scan: the carry comes back with another structure than it started with")
        changed = [w and t.dtype is not v.type.dtype and t.shape == v.type.shape for w, t, v in zip(weak, wanted, values)]
        if not any(changed):
            break
        values = [b.to_dtype(v, t.dtype) if c else v for v, t, c in zip(values, wanted, changed)]
    lifted = sub.lifted_values()
    given = len(values) + len(xs)
    block = Block()
    block.args = [*sub.block.args[given:], *sub.block.args[:given]]
    block.ops, block.outputs = sub.block.ops, sub.block.outputs
    found = b.emit("scan", [*lifted, *values, *xs], {"consts": len(lifted), "carry": len(values), "length": count, "reverse": reverse}, (block,))
    out = [cls._of(trace, unrecorded(b, v)) for v in found]
    return tree_unflatten(carry_tree, out[:len(values)]), tree_unflatten(sub.out_tree.children[1], out[len(values):])


def fori_loop(lower: Any, upper: Any, body: Callable[[Any, Any], Any], init: Any) -> Any:
    """``carry = body(i, carry)`` for i from ``lower`` to ``upper - 1``; the bounds are Python integers or sizes.

    >>> import aotgrad as ag
    >>> ag.fori_loop(0, 3, lambda i, c: c * 2.0, 1.0)
    8.0
    """
    if _traced(init) is None:
        carry = init
        for i in range(int(lower), int(upper)):
            carry = body(i, carry)
        return carry
    if isinstance(lower, Traced) or isinstance(upper, Traced):
        raise AotgradTypeError(f"{user_loc()}: fori_loop: a bound is a traced value; bounds are integers or sizes (use static= for an integer argument)")
    trace = current()
    assert trace is not None
    lower, upper = plain_size(lower), plain_size(upper)
    cls = traced_class(tree_flatten(init)[0])
    b = builder_of(trace)
    start = cls._of(trace, b.to_dtype(as_value(lower, trace), int64))  # the counter is a carry: numbers of all steps would be an array

    def step(carry: Any, _: Any) -> Any:
        i, c = carry
        return (dispatch.call(dispatch.TORCH["add"], (i, 1), {}), body(i, c)), None

    return scan(step, (start, init), None, length=dims.maximum(upper - lower, 0))[0][1]


def map_(f: Callable[[Any], Any], xs: Any) -> Any:
    """``f`` applied to every slice of the leading dim, results stacked, in one loop."""
    return scan(lambda c, x: (c, f(x)), (), xs)[1]
