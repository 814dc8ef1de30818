"""Transforms on functions: grad, value_and_grad, vjp, jvp, linearize, jacobians, Hessians. Eager on the tape and on dual values; in a trace, on IR."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotgrad.ir import Block, Builder, TensorType, Value
from aotgrad.ir.transforms.differentiate import differentiate, linearize_func, transpose_into
from aotgrad.ir.transforms.rewrite import copy_ops, decompose_block, free_values
from aotgrad.ir.transforms.stabilise import stabilise_block
from aotgrad_runtime import engine
from aotgrad_runtime.arrays import DTYPES, native
from aotgrad_runtime.dtypes import DType, int64
from aotgrad_runtime.errors import AotgradTypeError, AotgradValueError
from aotgrad_runtime.modes import enable_grad
from aotgrad_runtime.tensor import ArrayTensor, Tensor, wrap

from . import dispatch, eager
from .eager import Dual, levels, make_dual
from .front import FrontBuilder
from .program import Program
from .promotion import python_dtype
from .pytree import TreeDef, tree_flatten, tree_unflatten
from .subtrace import Sub, as_value, builder_of, is_leaf_array, traced_class
from .trace import Trace, Traced, current, user_loc

__all__ = ["grad", "hessian", "hvp", "jacfwd", "jacobian", "jacrev", "jvp", "linearize", "value_and_grad", "vjp"]

F = Callable[..., Any]


class _Depth(threading.local):
    def __init__(self) -> None:
        self.depth = 0


_state = _Depth()


class _nested:
    def __enter__(self) -> None:
        _state.depth += 1

    def __exit__(self, *exc: object) -> None:
        _state.depth -= 1


def inside_transform() -> bool:
    """Whether this thread runs a function under ``grad``, ``vjp``, ``jvp`` or a matrix of derivatives."""
    return _state.depth > 0


# ---- leaves -------------------------------------------------------------------------------------------------------------------------

def _dtype_of(x: Any) -> DType:
    if isinstance(x, Tensor):
        return x._dtype
    return DTYPES[native(np.asarray(x)).dtype] if isinstance(x, (np.ndarray, np.generic)) else python_dtype(x)


def _differentiable(x: Any) -> bool:
    return is_leaf_array(x) and _dtype_of(x).is_differentiable


def _argnums(argnums: Any, count: int) -> tuple[int, ...]:
    given = argnums if isinstance(argnums, (tuple, list)) else (argnums,)
    out = []
    for i in given:
        if not isinstance(i, int) or not -count <= i < count:
            raise AotgradValueError(f"argnums={argnums!r}: the function was called with {count} positional argument(s)")
        out.append(i % count)
    return tuple(out)


def _check_float(leaves: Sequence[Any], what: str) -> None:
    if not any(_differentiable(x) for x in leaves):
        kinds = ", ".join(_dtype_of(x).name if is_leaf_array(x) else type(x).__name__ for x in leaves) or "nothing"
        raise AotgradTypeError(f"{what} has no floating-point leaf ({kinds}): a gradient needs float inputs; "
                               "convert integers with .astype(float) or choose another argnums")


def _tracing(*trees: Any) -> bool:
    return current() is not None or any(isinstance(x, Traced) for tree in trees for x in tree_flatten(tree)[0])


def _flavour(trees: Any) -> type[Any]:
    leaves = tree_flatten(trees)[0]
    return Tensor if any(isinstance(x, Tensor) and not isinstance(x, ArrayTensor) for x in leaves) else ArrayTensor


@functools.lru_cache(maxsize=256)
def _identity(shape: tuple[int, ...], dtype: DType) -> Program:
    return dispatch.program_of("alias", [TensorType(shape, dtype)], lambda b, x: x)


def _fresh(x: Any, cls: type[Any]) -> Any:
    """A variable of our own with the value of ``x``; connected to it where ``x`` is on a tape or dual."""
    if isinstance(x, Dual):
        return make_dual(_fresh(x._primal, cls), x._tangent, x._level)
    if isinstance(x, Tensor):
        if x._requires_grad:
            return eager.apply(_identity(tuple(x._data.shape), x._dtype), [x], cls)[0]
        out = wrap(x._data, cls)
    else:
        out = wrap(native(np.asarray(x)), cls)
        if type(x) is float:
            out._weak = True
    out._requires_grad = True
    return out


def _as_tensor(x: Any, cls: type[Any], like: Any) -> Any:
    """A cotangent or tangent given by the user, checked against the value it belongs to."""
    out = x if isinstance(x, Tensor) else wrap(np.asarray(x, _dtype_of(like).np), cls)
    wanted = tuple(np.shape(like) if not isinstance(like, Tensor) else like.shape)
    if tuple(out.shape) != wanted:
        raise AotgradValueError(f"a tangent or cotangent of shape {tuple(out.shape)} was given for a value of shape {wanted}")
    return out


def _release(x: Any) -> Any:
    """What a caller outside all transforms gets: NumPy's own arrays and scalars for NumPy callers."""
    if _state.depth == 0 and isinstance(x, ArrayTensor) and not isinstance(x, Dual):
        data = x._data
        return data[()] if data.ndim == 0 else data
    return x


# ---- reverse mode, eager ------------------------------------------------------------------------------------------------------------

def _level_of(*groups: Sequence[Any]) -> int:
    return max((x._level for g in groups for x in g if isinstance(x, Dual)), default=0)


def _split(xs: Sequence[Any], level: int) -> tuple[list[Any], list[Any]]:
    mine = [isinstance(x, Dual) and x._level == level for x in xs]
    return [x._primal if m else x for x, m in zip(xs, mine)], [x._tangent if m else None for x, m in zip(xs, mine)]


def _add(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else dispatch.call(dispatch.TORCH["add"], (a, b), {})


def gradients(outs: Sequence[Any], ins: Sequence[Any], cts: Sequence[Any], create_graph: bool) -> list[Any]:
    """Cotangents of ``ins`` (None: zero). Dual values are dual cotangents: the tangent of a gradient is the gradient of the tangent."""
    level = _level_of(outs, cts)
    if level:
        (op, ot), (cp, ct), ip = _split(outs, level), _split(cts, level), _split(ins, level)[0]
        first = gradients(op, ip, cp, create_graph)
        moved = [None] * len(ip)
        for o, c in ((ot, cp), (op, ct)):
            pairs = [(x, y) for x, y in zip(o, c) if x is not None and y is not None]
            if pairs:
                moved = [_add(m, g) for m, g in zip(moved, gradients([p[0] for p in pairs], ip, [p[1] for p in pairs], create_graph))]
        return [None if g is None and m is None else make_dual(zero_like(i) if g is None else g, m, level) for g, m, i in zip(first, moved, ip)]
    live = [(o, c) for o, c in zip(outs, cts) if isinstance(o, Tensor) and o._requires_grad and c is not None]
    if not live:
        return [None] * len(ins)
    return list(engine.grad([o for o, _ in live], list(ins), [c for _, c in live], retain_graph=True, create_graph=create_graph, allow_unused=True))


def zero_like(x: Any) -> Any:
    return x._wrap(np.zeros(tuple(x.shape), x._dtype.np))


class _Taped:
    """One run of a function with its differentiated arguments on the tape."""

    def __init__(self, f: F, args: Sequence[Any], kwargs: dict[str, Any], nums: tuple[int, ...]) -> None:
        self.cls = _flavour([args, kwargs])
        self.trees: list[tuple[list[Any], TreeDef]] = [tree_flatten(args[i]) for i in nums]
        for i, (leaves, _) in zip(nums, self.trees):
            _check_float(leaves, f"argument {i}")
        self.create_graph = _state.depth > 0 or any(isinstance(x, Tensor) and x._requires_grad for leaves, _ in self.trees for x in leaves)
        self.vars: list[list[Any]] = []
        filled = list(args)
        with _nested(), enable_grad():
            for i, (leaves, tree) in zip(nums, self.trees):
                mine = [_fresh(x, self.cls) if _differentiable(x) else x for x in leaves]
                self.vars.append([v if _differentiable(x) else None for v, x in zip(mine, leaves)])
                filled[i] = tree_unflatten(tree, mine)
            self.out = _guarded(f, filled, kwargs)

    def pull(self, outs: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        """Gradient trees, one per differentiated argument."""
        flat = [v for vs in self.vars for v in vs if v is not None]
        with _nested():
            found = iter(gradients(outs, flat, cts, self.create_graph))
            grads = [[None if v is None else _or_zero(next(found), v) for v in vs] for vs in self.vars]
        return [tree_unflatten(tree, [_release(g) for g in gs]) for gs, (_, tree) in zip(grads, self.trees)]


def _or_zero(g: Any, v: Any) -> Any:
    return zero_like(v) if g is None else g


def _guarded(f: F, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return f(*args, **kwargs)


def _scalar_output(out: Any, name: str) -> Any:
    if isinstance(out, (tuple, list, dict)):
        raise AotgradTypeError(f"grad of {name}: the function returned a {type(out).__name__}; return one number, or pass has_aux=True for (value, aux)")
    shape = tuple(out.shape) if hasattr(out, "shape") else ()
    if shape != ():
        raise AotgradValueError(f"grad of {name}: the result has shape {shape}; a gradient needs a 0-d result. Reduce it (for example with .sum()), or use jacrev or vjp")
    if not is_leaf_array(out) or not _dtype_of(out).is_differentiable:
        raise AotgradTypeError(f"grad of {name}: the result is {type(out).__name__}{' of ' + _dtype_of(out).name if is_leaf_array(out) else ''}, "
                               "not a floating-point number")
    return out


def _name(f: F) -> str:
    return getattr(f, "__name__", type(f).__name__)


def value_and_grad(f: F, argnums: Any = 0, has_aux: bool = False) -> F:
    """A function giving ``(f(...), gradient)``; ``((f, aux), gradient)`` with ``has_aux``. Gradients have the structure of their arguments, None at integer leaves.

    >>> import numpy as np, aotgrad as ag
    >>> ag.value_and_grad(lambda x: (x * x).sum())(np.array([1.0, 2.0]))
    (np.float64(5.0), array([2., 4.]))
    """

    def both(*args: Any, **kwargs: Any) -> Any:
        nums = _argnums(argnums, len(args))
        if _tracing(args, kwargs):
            return _traced_grad(f, args, kwargs, nums, argnums, has_aux)
        run = _Taped(f, args, kwargs, nums)
        out, aux = _with_aux(run.out, has_aux, f)
        out = _scalar_output(out, _name(f))
        one = _one_like(out, run.cls)
        grads = run.pull([out], [one])
        result = grads[0] if not isinstance(argnums, (tuple, list)) else tuple(grads)
        value = _release(_detached(out, run.create_graph))
        return ((value, _map_release(aux, run.create_graph)) if has_aux else value), result

    return _like(both, f, "value_and_grad")


def _detached(x: Any, keep: bool) -> Any:
    return x if keep or not isinstance(x, Tensor) or isinstance(x, Dual) else x.detach()


def _map_release(tree: Any, keep: bool) -> Any:
    leaves, treedef = tree_flatten(tree)
    return tree_unflatten(treedef, [_release(_detached(x, keep)) for x in leaves])


def _one_like(out: Any, cls: type[Any]) -> Any:
    if isinstance(out, Dual):
        return _one_like(out._primal, cls)
    return wrap(np.ones((), _dtype_of(out).np), cls)


def _with_aux(out: Any, has_aux: bool, f: F) -> tuple[Any, Any]:
    if not has_aux:
        return out, None
    if not isinstance(out, tuple) or len(out) != 2:
        raise AotgradTypeError(f"{_name(f)} must return (value, aux) with has_aux=True")
    return out


def _like(wrapper: F, f: F, prefix: str) -> F:
    functools.update_wrapper(wrapper, f, assigned=("__module__", "__doc__"), updated=())
    wrapper.__name__ = wrapper.__qualname__ = f"{prefix}({_name(f)})"
    return wrapper


def grad(f: F, argnums: Any = 0, has_aux: bool = False) -> F:
    """The gradient of a scalar function; ``(gradient, aux)`` with ``has_aux``. Composes with itself and every other transform.

    >>> import aotgrad as ag
    >>> ag.grad(ag.grad(lambda x: x ** 3))(2.0)
    np.float64(12.0)
    """
    both = value_and_grad(f, argnums, has_aux)

    def only(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return _like(only, f, "grad")


def vjp(f: F, *xs: Any) -> tuple[Any, F]:
    """``(f(*xs), pullback)``: ``pullback(cts)``, with cotangents shaped as the result, gives a tuple of cotangents, one per argument.

    >>> import numpy as np, aotgrad as ag
    >>> out, pullback = ag.vjp(lambda x: x * x, np.array([1.0, 3.0]))
    >>> pullback(np.array([1.0, 10.0]))
    (array([ 2., 60.]),)
    """
    if _tracing(xs):
        return _traced_vjp(f, xs)
    run = _Taped(f, xs, {}, tuple(range(len(xs))))
    leaves, tree = tree_flatten(run.out)

    def pullback(cts: Any) -> tuple[Any, ...]:
        given, shape = tree_flatten(cts)
        if shape != tree:
            raise AotgradValueError("pullback: the cotangents do not have the structure of the function's result")
        with _nested():
            checked = [_as_tensor(c, run.cls, o) if _differentiable(o) else None for c, o in zip(given, leaves)]
        return tuple(run.pull(leaves, checked))

    return tree_unflatten(tree, [_release(_detached(x, run.create_graph)) for x in leaves]), pullback


# ---- forward mode, eager ------------------------------------------------------------------------------------------------------------

def jvp(f: F, xs: Sequence[Any], ts: Sequence[Any]) -> tuple[Any, Any]:
    """``(f(*xs), tangent)`` for tangents ``ts`` shaped as ``xs``: the derivative of the result along them.

    >>> import aotgrad as ag
    >>> ag.jvp(lambda x: x * x, (3.0,), (1.0,))
    (np.float64(9.0), np.float64(6.0))
    """
    xs, ts = tuple(xs), tuple(ts)
    if len(xs) != len(ts):
        raise AotgradValueError(f"jvp: {len(xs)} inputs and {len(ts)} tangents; give a tuple of inputs and one of tangents")
    if _tracing(xs, ts):
        return _traced_jvp(f, xs, ts)
    cls = _flavour([xs, ts])
    leaves, tree = tree_flatten(xs)
    tangents = _match(ts, tree, "jvp: tangents")
    _check_float(leaves, "jvp: the inputs")
    levels.level += 1
    level = levels.level
    try:
        with _nested():
            duals = [make_dual(_plain(x, cls), _as_tensor(t, cls, x), level) if _differentiable(x) else x for x, t in zip(leaves, tangents)]
            out = f(*tree_unflatten(tree, duals))
            outs, out_tree = tree_flatten(out)
            primals = [o._primal if isinstance(o, Dual) and o._level == level else o for o in outs]
            moved = [_tangent_of(o, level, cls) for o in outs]
    finally:
        levels.level -= 1
    return tree_unflatten(out_tree, [_release(p) for p in primals]), tree_unflatten(out_tree, [_release(m) for m in moved])


def _match(trees: Any, tree: TreeDef, what: str) -> list[Any]:
    given, shape = tree_flatten(trees)
    if shape != tree:
        raise AotgradValueError(f"{what} do not have the structure of the inputs")
    return given


def _plain(x: Any, cls: type[Any]) -> Any:
    if isinstance(x, Tensor):
        return x
    out = wrap(native(np.asarray(x)), cls)
    if type(x) is float:
        out._weak = True
    return out


def _tangent_of(o: Any, level: int, cls: type[Any]) -> Any:
    if not _differentiable(o):
        return None
    if isinstance(o, Dual) and o._level == level and o._tangent is not None:
        return o._tangent
    return wrap(np.zeros(tuple(np.shape(o) if not isinstance(o, Tensor) else o.shape), _dtype_of(o).np), cls)


def hvp(f: F, xs: Any, vs: Any) -> Any:
    """Hessian of a scalar function times a vector, without the Hessian. ``xs`` and ``vs``: one argument, or tuples of arguments.

    >>> import numpy as np, aotgrad as ag
    >>> ag.hvp(lambda x: (x ** 3).sum(), np.array([1.0, 2.0]), np.array([1.0, 0.0]))
    array([6., 0.])
    """
    many = isinstance(xs, tuple)
    inputs, vectors = (xs, vs) if many else ((xs,), (vs,))
    nums = tuple(range(len(inputs)))
    moved = jvp(grad(f, argnums=nums), inputs, vectors)[1]
    return moved if many else moved[0]


# ---- jacobians ----------------------------------------------------------------------------------------------------------------------

def _basis(shape: tuple[int, ...], dtype: DType, k: int) -> Any:
    e = np.zeros(shape, dtype.np)
    e.flat[k] = 1
    return e


def _stacked(rows: list[Any], lead: tuple[int, ...], rest: tuple[int, ...], dtype: DType, cls: type[Any], front: bool) -> Any:
    """Rows (one per basis vector) as one array of shape ``lead + rest`` (front) or ``rest + lead``."""
    full = rest if not rows else None
    out = dispatch.call(dispatch.TORCH["stack"], (rows,), {}) if rows else wrap(np.zeros((0, *(full or ())), dtype.np), cls)
    out = dispatch.call(dispatch.TORCH["reshape"], (out, (*lead, *rest)), {})
    if front or not lead:
        return out
    n = len(lead)
    return dispatch.call(dispatch.TORCH["permute"], (out, [*range(n, n + len(rest)), *range(n)]), {})


def jacrev(f: F, argnums: Any = 0) -> F:
    """The Jacobian by reverse mode: for each result leaf and argument leaf an array of shape ``result.shape + argument.shape``."""

    def run(*args: Any, **kwargs: Any) -> Any:
        nums = _argnums(argnums, len(args))
        if _tracing(args, kwargs):
            return _traced_jacobian(f, args, kwargs, nums, argnums, reverse=True)
        taped = _Taped(f, args, kwargs, nums)
        outs, out_tree = tree_flatten(taped.out)
        with _nested():
            blocks = [_jacrev_leaf(taped, outs, k) for k in range(len(outs))]
        return _arrange(blocks, out_tree, [t for _, t in taped.trees], argnums)

    return _like(run, f, "jacrev")


def _jacrev_leaf(taped: _Taped, outs: Sequence[Any], k: int) -> list[list[Any]]:
    out = outs[k]
    flat = [v for vs in taped.vars for v in vs if v is not None]
    shape = tuple(out.shape) if hasattr(out, "shape") else ()
    if not _differentiable(out):
        return [[None] * len(vs) for vs in taped.vars]
    dtype = _dtype_of(out)
    rows = []
    for j in range(int(np.prod(shape, dtype=int))):
        ct = wrap(_basis(shape, dtype, j), taped.cls)
        rows.append([_or_zero(g, v) for g, v in zip(gradients([out], flat, [ct], taped.create_graph), flat)])
    columns = iter([_stacked([r[i] for r in rows], shape, tuple(v.shape), v._dtype, taped.cls, front=True) for i, v in enumerate(flat)])
    return [[None if v is None else next(columns) for v in vs] for vs in taped.vars]


def _arrange(blocks: list[list[list[Any]]], out_tree: TreeDef, arg_trees: Sequence[TreeDef], argnums: Any) -> Any:
    """Result-structure outside, argument structure inside."""
    per_out = []
    for block in blocks:
        args = [tree_unflatten(tree, [None if x is None else _released(x) for x in leaves]) for tree, leaves in zip(arg_trees, block)]
        per_out.append(tuple(args) if isinstance(argnums, (tuple, list)) else args[0])
    return tree_unflatten(out_tree, per_out)


def _released(x: Any) -> Any:
    return _release(_detached(x, _state.depth > 0))


def jacfwd(f: F, argnums: Any = 0) -> F:
    """The Jacobian by forward mode; shapes as in ``jacrev``."""

    def run(*args: Any, **kwargs: Any) -> Any:
        nums = _argnums(argnums, len(args))
        if _tracing(args, kwargs):
            return _traced_jacobian(f, args, kwargs, nums, argnums, reverse=False)
        trees = [tree_flatten(args[i]) for i in nums]
        for i, (leaves, _) in zip(nums, trees):
            _check_float(leaves, f"argument {i}")
        cls = _flavour([args, kwargs])

        def partial(*chosen: Any) -> Any:
            filled = list(args)
            for i, c in zip(nums, chosen):
                filled[i] = c
            return f(*filled, **kwargs)

        with _nested():
            blocks, out_tree = _jacfwd_blocks(partial, args, nums, trees, cls)
        return _arrange(blocks, out_tree, [t for _, t in trees], argnums)

    return _like(run, f, "jacfwd")


def _jacfwd_blocks(partial: F, args: Sequence[Any], nums: Sequence[int], trees: Sequence[tuple[list[Any], TreeDef]],
                   cls: type[Any]) -> tuple[list[list[list[Any]]], TreeDef]:
    zeros = [[np.zeros(tuple(x.shape) if isinstance(x, Tensor) else np.shape(x), _dtype_of(x).np) if _differentiable(x) else x for x in leaves] for leaves, _ in trees]
    moved: list[list[list[Any] | None]] = []
    outs, out_tree = list[Any](), None
    for a, (leaves, _) in enumerate(trees):
        per_leaf: list[list[Any] | None] = []
        for k, x in enumerate(leaves):
            if not _differentiable(x):
                per_leaf.append(None)
                continue
            shape, rows = zeros[a][k].shape, []
            for j in range(max(1, int(np.prod(shape, dtype=int)))):
                ts = [list(z) for z in zeros]
                if zeros[a][k].size:
                    ts[a][k] = _basis(shape, _dtype_of(x), j)
                value, tangent = jvp(partial, [args[i] for i in nums], [tree_unflatten(t, z) for z, (_, t) in zip(ts, trees)])
                outs, out_tree = tree_flatten(value)
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
                fits = rows is not None and _differentiable(out)
                row.append(_stacked([r[o] for r in rows], zeros[a][k].shape, rest, _dtype_of(out), cls, front=False) if fits else None)
            block.append(row)
        blocks.append(block)
    return blocks, out_tree


def tree_flatten_nones(tree: Any, like: TreeDef) -> list[Any]:
    """Leaves of a tree that may have None where ``like`` has a leaf."""
    if like.kind is None:
        return [tree]
    if like.kind == "none":
        return []
    if isinstance(tree, dict):
        children = [tree[k] for k in like.meta]
    elif like.meta[:1] == ("dataclass",):
        children = [getattr(tree, n) for n in like.meta[1:]]
    else:
        children = list(tree)
    return [x for c, t in zip(children, like.children) for x in tree_flatten_nones(c, t)]


jacobian = jacrev


def hessian(f: F, argnums: Any = 0) -> F:
    """The matrix of second derivatives of a scalar function: forward over reverse."""
    return _like(jacfwd(jacrev(f, argnums), argnums), f, "hessian")


# ---- in a trace ---------------------------------------------------------------------------------------------------------------------

class _Inline:
    """A function traced inside the current trace, with everything that its transforms need."""

    def __init__(self, f: F, args: Sequence[Any], kwargs: dict[str, Any], nums: Sequence[int]) -> None:
        trace = current()
        if trace is None:
            raise AotgradTypeError("a traced value is used outside the call that made it")
        self.trace: Trace = trace
        self.trees = [tree_flatten(args[i]) for i in nums]
        for i, (leaves, _) in zip(nums, self.trees):
            _check_float(leaves, f"argument {i}")
        self.leaves = [x for leaves, _ in self.trees for x in leaves]
        self.on = [_differentiable(x) for x in self.leaves]
        self.b = builder_of(trace)
        values = [self.b.refresh(as_value(x, trace)) if is_leaf_array(x) else None for x in self.leaves]
        kept = [v for v in values if v is not None]
        self.arrays = [x for x, v in zip(self.leaves, values) if v is not None]
        self.cls = traced_class([*self.leaves, *tree_flatten([args, kwargs])[0]])
        sizes = [len(leaves) for leaves, _ in self.trees]

        def fn(*flat: Any) -> Any:
            given = iter(flat)
            full = [next(given) if v is not None else x for x, v in zip(self.leaves, values)]
            filled, at = list(args), 0
            for i, n, (_, tree) in zip(nums, sizes, self.trees):
                filled[i] = tree_unflatten(tree, full[at:at + n])
                at += n
            return enable_grad(f)(*filled, **kwargs)  # a gradient inside no_grad is a gradient still

        flat_tree = tree_flatten(tuple(kept))[1]
        weak = [type(x) is float or getattr(x, "_weak", False) for x in self.arrays]
        self.sub = Sub(_name(f), fn, flat_tree, [v.type for v in kept], self.cls, weak)
        self.ins = [self.b.refresh(v) for v in [*kept, *self.sub.lifted_values()]]
        live = iter(self.on)
        self.active = [next(live) for _ in kept] if len(kept) == len(self.on) else [_differentiable(x) for x in self.arrays]
        self.active += [False] * (len(self.ins) - len(kept))
        self.block = stabilise_block(decompose_block(self.sub.block))

    def differentiate(self) -> None:
        """Appends the primal; the linear part stays aside."""
        self.aside = Block()
        self.tangents = [Value(x.type) if on else None for x, on in zip(self.ins, self.active)]
        lb = FrontBuilder(self.trace, True, None)
        lb.block = self.aside
        self.outs, self.out_tangents = differentiate(self.b, lb, self.block, self.ins, self.tangents)

    def wrapped(self, v: Value) -> Any:
        return self.cls._of(self.trace, v)

    def gradients(self, b: Builder, cts: Sequence[Any]) -> list[Any]:
        """Cotangents of the active inputs, zeros where nothing arrives."""
        wanted = [t for t in self.tangents if t is not None]
        found = transpose_into(b, self.aside.ops, wanted, self.out_tangents, cts)
        return [b.zeros(t) if c is None else (c if c.type.layout == t.type.layout else b.relayout(c, layout=t.type.layout)) for c, t in zip(found, wanted)]

    def trees_of(self, grads: Sequence[Any]) -> list[Any]:
        """One tree per argument, None at leaves that are not differentiated."""
        it = iter(grads)
        full = [next(it) if on else None for on in self.on]
        out, at = [], 0
        for leaves, tree in self.trees:
            out.append(tree_unflatten(tree, full[at:at + len(leaves)]))
            at += len(leaves)
        return out


def _traced_grad(f: F, args: Sequence[Any], kwargs: dict[str, Any], nums: tuple[int, ...], argnums: Any, has_aux: bool) -> Any:
    run = _Inline(f, args, kwargs, nums)
    tree = run.sub.out_tree
    run.differentiate()
    values = [run.wrapped(o) for o in run.outs]
    out, aux = _with_aux(tree_unflatten(tree, values), has_aux, f)
    out = _scalar_output(out, _name(f))
    cts = [run.b.full_like(v._value, 1) if v is out else None for v in values]
    grads = [run.wrapped(g) for g in run.gradients(run.b, cts)]
    trees = run.trees_of(grads)
    result = tuple(trees) if isinstance(argnums, (tuple, list)) else trees[0]
    return ((out, aux) if has_aux else out), result


def _fitted(b: Any, given: Any, like: Value, trace: Trace, what: str) -> Value:
    """A tangent or cotangent as a value of the type of ``like``: sizes that must be equal are joined, or guarded."""
    v, shape = as_value(given, trace), like.type.shape
    if len(v.type.shape) != len(shape):
        raise AotgradValueError(f"{user_loc()}: {what} of rank {len(v.type.shape)} was given for a value of rank {len(shape)}")
    for i, (have, want) in enumerate(zip(v.type.shape, shape)):
        b.equate(have, want, f"{what}: dim {i}")
    v = b.to_shape(b.to_dtype(b.refresh(v), like.type.dtype), shape)
    return v if v.type.layout == like.type.layout else b.relayout(v, layout=like.type.layout)  # type: ignore[no-any-return]


def _traced_vjp(f: F, xs: Sequence[Any]) -> tuple[Any, F]:
    run = _Inline(f, xs, {}, tuple(range(len(xs))))
    run.differentiate()

    def pullback(cts: Any) -> tuple[Any, ...]:
        given = _match(cts, run.sub.out_tree, "pullback: cotangents")
        here = current() or run.trace
        b = builder_of(here)
        grads = run.gradients(b, [_fitted(b, c, o, here, "a cotangent") if o.type.dtype.is_differentiable else None for c, o in zip(given, run.outs)])
        return tuple(run.trees_of([run.wrapped(g) for g in grads]))

    return tree_unflatten(run.sub.out_tree, [run.wrapped(o) for o in run.outs]), pullback


def _traced_jvp(f: F, xs: Sequence[Any], ts: Sequence[Any]) -> tuple[Any, Any]:
    run = _Inline(f, xs, {}, tuple(range(len(xs))))
    flat = _match(tuple(ts), tree_flatten(tuple(xs))[1], "jvp: tangents")
    tangents: list[Any] = [None] * len(run.ins)
    at = 0
    for x, t, on in zip(run.leaves, flat, run.on):
        if is_leaf_array(x):
            if on:
                tangents[at] = _fitted(run.b, t, run.ins[at], run.trace, "a tangent")
            at += 1
    outs, moved = differentiate(run.b, run.b, run.block, run.ins, tangents)
    ts_out = [(run.wrapped(run.b.zeros(o) if m is None else m) if o.type.dtype.is_differentiable else None) for o, m in zip(outs, moved)]
    return tree_unflatten(run.sub.out_tree, [run.wrapped(o) for o in outs]), tree_unflatten(run.sub.out_tree, ts_out)


def _one_hot(b: Any, i: Value, t: TensorType) -> Value:
    """The basis vector number ``i`` of a type."""
    flat = b.iota(shape=(t.size,), dim=0, dtype=int64)
    hot = b.to_dtype(b.eq(flat, b.broadcast(i, shape=(t.size,), dims=())), t.dtype)
    return _in_layout(b, b.to_shape(hot, t.shape), t.layout)


def _sweep(run: _Inline, count: Any, body: Callable[[Builder, Value], list[Value]]) -> list[Value]:
    """Runs ``body`` for i = 0 .. count-1 in one scan; results are stacked in front."""
    aside = Block()
    i = Value(TensorType((), int64))
    b = Builder(aside)
    outs = [_in_layout(b, o, None) for o in body(b, i)]  # a scan takes and stacks row-major arrays
    free = free_values(aside.ops, outs, [i])
    given = [_in_layout(run.b, v, None) for v in free]
    block = Block([*(v.type for v in given), i.type])
    inner = Builder(block)
    env = {v: _in_layout(inner, a, v.type.layout) for v, a in zip([*free, i], block.args)}
    copy_ops(inner, aside.ops, env)
    block.outputs = [env[o] for o in outs]
    numbers = run.b.iota(shape=(count,), dim=0, dtype=int64)
    return list(run.b.emit("scan", [*given, numbers], {"consts": len(free), "carry": 0, "length": count}, (block,)))


def _in_layout(b: Builder, v: Value, layout: Any) -> Value:
    return v if v.type.layout == layout else b.relayout(v, layout=layout)


def _traced_jacobian(f: F, args: Sequence[Any], kwargs: dict[str, Any], nums: tuple[int, ...], argnums: Any, reverse: bool) -> Any:
    run = _Inline(f, args, kwargs, nums)
    run.differentiate()
    ins = [x for x, on in zip(run.ins, run.active) if on]
    blocks = [[] for _ in run.outs] if not reverse else [_sweep_rows(run, k, ins) for k in range(len(run.outs))]
    if not reverse:
        for j, x in enumerate(ins):
            for k, v in enumerate(_sweep_columns(run, j, x)):
                blocks[k].append(v)
    per_out = []
    for block in blocks:
        trees = run.trees_of([None if v is None else run.wrapped(v) for v in block])
        per_out.append(tuple(trees) if isinstance(argnums, (tuple, list)) else trees[0])
    return tree_unflatten(run.sub.out_tree, per_out)


def _sweep_rows(run: _Inline, k: int, ins: Sequence[Value]) -> list[Any]:
    out = run.outs[k]
    if not out.type.dtype.is_differentiable:
        return [None] * len(ins)

    def body(b: Builder, i: Value) -> list[Value]:
        cts = [_one_hot(b, i, out.type) if j == k else None for j in range(len(run.outs))]
        return run.gradients(b, cts)

    if out.type.shape == ():
        found = run.gradients(run.b, [run.b.full_like(out, 1) if j == k else None for j in range(len(run.outs))])
        return list(found)
    found = _sweep(run, out.type.size, body)
    return [run.b.to_shape(v, (*out.type.shape, *x.type.shape)) for v, x in zip(found, ins)]


def _sweep_columns(run: _Inline, j: int, x: Value) -> list[Any]:
    mine = [t for t in run.tangents if t is not None]

    def push(b: Builder, tangent: Value) -> list[Any]:
        env: dict[Value, Value] = {t: (tangent if n == j else b.zeros(t)) for n, t in enumerate(mine)}
        copy_linear(b, run.aside, env)
        return [None if t is None else env.get(t, t) for t in run.out_tangents]

    floats = [o.type.dtype.is_differentiable for o in run.outs]
    if x.type.shape == ():
        moved = push(run.b, run.b.full_like(x, 1))
        return [(run.b.zeros(o) if m is None else m) if on else None for o, m, on in zip(run.outs, moved, floats)]

    def body(b: Builder, i: Value) -> list[Value]:
        return [b.zeros(o) if m is None else m for o, m, on in zip(run.outs, push(b, _one_hot(b, i, x.type)), floats) if on]

    found = iter(_sweep(run, x.type.size, body))
    out: list[Any] = []
    n = len(x.type.shape)
    for o, on in zip(run.outs, floats):
        if not on:
            out.append(None)
            continue
        shaped = run.b.to_shape(next(found), (*x.type.shape, *o.type.shape))
        rank = n + len(o.type.shape)
        out.append(run.b.to_perm(shaped, [*range(n, rank), *range(n)]))
    return out


def copy_linear(b: Builder, aside: Block, env: dict[Value, Value]) -> None:
    """The linear part on other tangents."""
    for op in aside.ops:
        for old, new in zip(op.results, b.append_copy(op, [env.get(o, o) for o in op.operands])):
            env[old] = new


# ---- linearize ----------------------------------------------------------------------------------------------------------------------

def linearize(f: F, *xs: Any) -> tuple[Any, F]:
    """``(f(*xs), jvp_fn)``: the linear part at ``xs``, traced once, ready for many tangents."""
    if _tracing(xs):
        run = _Inline(f, xs, {}, tuple(range(len(xs))))
        run.differentiate()

        def push(*ts: Any) -> Any:
            flat = _match(tuple(ts), tree_flatten(tuple(xs))[1], "linearize: tangents")
            here = current() or run.trace
            b = builder_of(here)
            live = [t for t, on in zip(flat, run.on) if on]
            env = {t: _fitted(b, v, t, here, "a tangent") for t, v in zip([t for t in run.tangents if t is not None], live)}
            copy_linear(b, run.aside, env)
            moved = [run.wrapped(b.zeros(o) if t is None else env.get(t, t)) if o.type.dtype.is_differentiable else None for o, t in zip(run.outs, run.out_tangents)]
            return tree_unflatten(run.sub.out_tree, moved)

        return tree_unflatten(run.sub.out_tree, [run.wrapped(o) for o in run.outs]), push
    return _linearize_eager(f, xs)


def _linearize_eager(f: F, xs: Sequence[Any]) -> tuple[Any, F]:
    leaves, tree = tree_flatten(tuple(xs))
    _check_float(leaves, "linearize: the inputs")
    arrays = [x for x in leaves if is_leaf_array(x)]
    cls = _flavour(xs)
    datas = [x._data if isinstance(x, Tensor) else native(np.asarray(x)) for x in arrays]
    types = [TensorType(tuple(d.shape), DTYPES[d.dtype]) for d in datas]

    def fn(*flat: Any) -> Any:
        given = iter(flat)
        return f(*tree_unflatten(tree, [next(given) if is_leaf_array(x) else x for x in leaves]))

    sub = Sub(_name(f), fn, tree_flatten(tuple(arrays))[1], types, traced_class(leaves))
    on = [t.dtype.is_differentiable for t in types]
    primal, linear = linearize_func(sub.func(), on)
    found = Program(primal, "Linearize").run(datas)
    count = len(sub.block.outputs)
    residuals, program = found[count:], Program(linear, "Linearize")

    def push(*ts: Any) -> Any:
        flat = _match(tuple(ts), tree, "linearize: tangents")
        live = [t for t, x in zip(flat, leaves) if _differentiable(x)]
        given = [np.asarray(t._data if isinstance(t, Tensor) else t, d.dtype) for t, d in zip(live, [d for d, o in zip(datas, on) if o])]
        moved = iter(program.run([*residuals, *given]))
        return tree_unflatten(sub.out_tree, [_release(wrap(next(moved), cls)) if t.dtype.is_differentiable else None for t in primal.out_types[:count]])

    return tree_unflatten(sub.out_tree, [_release(wrap(x, cls)) for x in found[:count]]), push


