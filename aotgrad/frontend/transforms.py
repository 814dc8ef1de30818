"""Transforms on functions: grad, value_and_grad, vjp, jvp, linearize. Eager on the tape and on dual values; in a trace, on IR."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from aotgrad.ir import TensorType, dissolve
from aotgrad.ir.transforms.differentiate import linearize_func
from aotgrad_runtime import engine, modes
from aotgrad_runtime.arrays import converted
from aotgrad_runtime.errors import AotgradTypeError, AotgradValueError
from aotgrad_runtime.modes import differentiating
from aotgrad_runtime.tensor import Tensor, wrap

from . import dispatch, eager, placement
from .eager import Dual, levels, make_dual
from .explained import explained, told_of_arguments
from .gathering import gathering
from .leaves import (
    F,
    apart,
    arguments_of,
    as_tensor_like,
    borrowed,
    check_argnums,
    check_callable,
    check_depends,
    check_float,
    cotangents,
    differentiable,
    dtype_of,
    flavour_of,
    fresh,
    inside_transform,
    like_name,
    match,
    name_of,
    nested,
    place_of,
    places,
    reaches_leaves,
    release,
    scalar_output,
    spared,
    state,
    tracing_any,
    twin,
    with_aux,
)
from .program import Program
from .promotion import is_number
from .pytree import TreeDef, tree_flatten, tree_unflatten
from .subtrace import Sub, is_leaf_array, traced_class
from .traced_transforms import traced_grad, traced_jvp, traced_linearize, traced_vjp

__all__ = ["Taped", "detached", "grad", "gradients", "hvp", "inside_transform", "jvp", "linearize", "or_zero", "value_and_grad", "vjp", "zero_like"]


# ---- reverse mode, eager ------------------------------------------------------------------------------------------------------------

def _level_of(*groups: Sequence[Any]) -> int:
    return max((x._level for g in groups for x in g if isinstance(x, Dual)), default=0)


def _split(xs: Sequence[Any], level: int) -> tuple[list[Any], list[Any]]:
    mine = [isinstance(x, Dual) and x._level == level for x in xs]
    return [x._primal if m else x for x, m in zip(xs, mine)], [x._tangent if m else None for x, m in zip(xs, mine)]


def _add(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else dispatch.call(dispatch.TORCH["add"], (a, b), {})


def bottom(x: Any) -> Any:
    """``x`` without its tangents."""
    while isinstance(x, Dual):
        x = x._primal
    return x


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
    return list(engine.grad([o for o, _ in live], [bottom(i) for i in ins], [c for _, c in live], retain_graph=True, create_graph=create_graph, allow_unused=True))


def zero_like(x: Any) -> Any:
    return x._wrap(np.zeros(tuple(x.shape), x._dtype.np))


class Taped:
    """One run of a function with its differentiated arguments on the tape."""

    def __init__(self, f: F, args: Sequence[Any], kwargs: dict[str, Any], nums: tuple[int, ...], own: bool = False) -> None:
        self.cls = flavour_of([args, kwargs])
        self.trees: list[tuple[list[Any], TreeDef]] = [tree_flatten(args[i]) for i in nums]
        for i, (leaves, _) in zip(nums, self.trees):
            check_float(leaves, place_of(f, i))
        recorded = modes.state.grad
        self.vars: list[list[Any]] = []
        filled = [a if i in nums else spared(a) for i, a in enumerate(args)]
        with nested(), differentiating():
            for i, (leaves, tree) in zip(nums, self.trees):
                mine = [fresh(x, self.cls, own) if differentiable(x) else spared(x) for x in leaves]
                self.vars.append([v if differentiable(x) else None for v, x in zip(mine, leaves)])
                given = mine if self.cls is Tensor else [x if v is None else twin(v) for v, x in zip(self.vars[-1], mine)]
                filled[i] = tree_unflatten(tree, given)
            self.out = _guarded(f, filled, {k: spared(x) for k, x in kwargs.items()})
        self.create_graph = state.depth > 0 or recorded and reaches_leaves(tree_flatten(self.out)[0])

    def pull(self, outs: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
        """Gradient trees, one per differentiated argument."""
        flat = [v for vs in self.vars for v in vs if v is not None]
        with nested():
            found = iter(gradients(outs, flat, cts, self.create_graph))
            grads = [[None if v is None else or_zero(next(found), v) for v in vs] for vs in self.vars]
        given = iter(apart([release(g) for gs in grads for g in gs]))
        return [tree_unflatten(tree, [next(given) for _ in gs]) for gs, (_, tree) in zip(grads, self.trees)]


def or_zero(g: Any, v: Any) -> Any:
    return zero_like(v) if g is None else g


def _guarded(f: F, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    try:
        with gathering():
            return f(*args, **kwargs)
    except Exception as error:
        found = explained(error)
        try:
            if found is error:
                raise
            raise found from found.__cause__
        finally:
            del found


@told_of_arguments
def value_and_grad(f: F, argnums: Any = 0, has_aux: bool = False) -> F:
    """A function giving ``(f(...), gradient)``; ``((f, aux), gradient)`` with ``has_aux``. Gradients have the structure of their arguments, None at integer leaves.
    ``argnums``: the position of the differentiated argument, or a tuple of positions (then a tuple of gradients); arguments given by keyword count at their places.

    >>> import numpy as np, aotgrad as ag
    >>> ag.value_and_grad(lambda x: (x * x).sum())(np.array([1.0, 2.0]))
    (np.float64(5.0), array([2., 4.]))
    """
    check_callable(f, "value_and_grad")
    check_argnums(argnums)

    def both(*args: Any, **kwargs: Any) -> Any:
        args, kwargs, nums = arguments_of(f, argnums, args, kwargs)
        if tracing_any(args, kwargs):
            return traced_grad(f, args, kwargs, nums, argnums, has_aux)
        run = Taped(f, args, kwargs, nums)
        out, aux = with_aux(run.out, has_aux, f)
        out = scalar_output(out, name_of(f))
        check_depends(out, name_of(f))
        one = _one_like(out, run.cls)
        grads = run.pull([out], [one])
        result = grads[0] if not isinstance(argnums, (tuple, list)) else tuple(grads)
        value = release(detached(out, run.create_graph))
        return ((value, _map_release(aux, run.create_graph, [args, kwargs])) if has_aux else value), result

    return like_name(both, f, "value_and_grad")


def detached(x: Any, keep: bool) -> Any:
    return x if keep or not isinstance(x, Tensor) or isinstance(x, Dual) else x.detach()


def _map_release(tree: Any, keep: bool, inputs: Any) -> Any:
    leaves, treedef = tree_flatten(tree)
    found = [release(detached(x, keep)) for x in leaves]
    return tree_unflatten(treedef, found if state.depth else apart(found, tree_flatten(inputs)[0]))


def _one_like(out: Any, cls: type[Any]) -> Any:
    if isinstance(out, Dual):
        return _one_like(out._primal, cls)
    return wrap(converted(np.ones(()), dtype_of(out)), cls)


@told_of_arguments
def grad(f: F, argnums: Any = 0, has_aux: bool = False) -> F:
    """The gradient of a scalar function; ``(gradient, aux)`` with ``has_aux``. Composes with itself and every other transform.

    >>> import aotgrad as ag
    >>> ag.grad(ag.grad(lambda x: x ** 3))(2.0)
    np.float64(12.0)
    """
    check_callable(f, "grad")
    both = value_and_grad(f, argnums, has_aux)

    def only(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return like_name(only, f, "grad")


@told_of_arguments
def vjp(f: F, *xs: Any) -> tuple[Any, F]:
    """``(f(*xs), pullback)``: ``pullback(cts)``, with cotangents shaped as the result, gives a tuple of cotangents, one per argument.

    >>> import numpy as np, aotgrad as ag
    >>> out, pullback = ag.vjp(lambda x: x * x, np.array([1.0, 3.0]))
    >>> pullback(np.array([1.0, 10.0]))
    (array([ 2., 60.]),)
    """
    check_callable(f, "vjp")
    if tracing_any(xs):
        return traced_vjp(f, xs)
    run = Taped(f, xs, {}, tuple(range(len(xs))), own=True)
    leaves, tree = tree_flatten(run.out)

    @modes.intact
    @told_of_arguments
    def pullback(cts: Any) -> tuple[Any, ...]:
        given = cotangents(cts, tree, [differentiable(o) for o in leaves])
        with nested():
            checked = [as_tensor_like(c, run.cls, o, "pullback: a cotangent") if differentiable(o) else None for c, o in zip(given, leaves)]
        return tuple(run.pull(leaves, checked))

    return tree_unflatten(tree, [release(detached(x, run.create_graph), own=True) for x in leaves]), pullback


# ---- forward mode, eager ------------------------------------------------------------------------------------------------------------

@told_of_arguments
def jvp(f: F, xs: Sequence[Any], ts: Sequence[Any]) -> tuple[Any, Any]:
    """``(f(*xs), tangent)`` for tangents ``ts`` shaped as ``xs``: the derivative of the result along them, None at leaves of the result that hold no floats.

    >>> import aotgrad as ag
    >>> ag.jvp(lambda x: x * x, (3.0,), (1.0,))
    (np.float64(9.0), np.float64(6.0))
    """
    check_callable(f, "jvp")
    _check_spread(f, xs, "jvp")
    return _jvp(f, xs, ts, "jvp")


def _check_spread(f: F, xs: Any, what: str) -> None:
    """A named tuple is a tuple of arguments too: where ``f`` does not take that many, one argument was meant."""
    if not hasattr(xs, "_fields"):
        return
    try:
        signature = inspect.signature(f)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*xs)
    except TypeError as error:
        kind = type(xs).__name__
        raise AotgradTypeError(f"{what}: a tuple holds the arguments, so the {len(xs)} items of {kind} are taken for arguments, which do not fit ({error}); for one "
                               f"argument that is a {kind} write ({kind}(...),), and the same around its vector") from None


@modes.intact
def _jvp(f: F, xs: Sequence[Any], ts: Sequence[Any], what: str) -> tuple[Any, Any]:
    for given, name in ((xs, "inputs"), (ts, "tangents")):
        if not isinstance(given, (tuple, list)):
            raise AotgradTypeError(f"{what}: the {name} are a {type(given).__name__}; give a tuple of inputs and one of tangents, as in jvp(f, (x,), (t,))")
    xs, ts = tuple(xs), tuple(ts)
    if len(xs) != len(ts):
        raise AotgradValueError(f"{what}: {len(xs)} inputs and {len(ts)} tangents; give a tuple of inputs and one of tangents")
    if tracing_any(xs, ts):
        return traced_jvp(f, xs, ts)
    cls = flavour_of([xs, ts])
    leaves, tree = tree_flatten(xs)
    tangents = match(ts, tree, f"{what}: tangents")
    check_float(leaves, f"{what}: the inputs")
    levels.level += 1
    level = levels.level
    try:
        with nested(), differentiating(record=False):
            duals = [make_dual(_plain(x, cls), as_tensor_like(t, cls, x, f"{what}: the tangent of argument {i}"), level) if differentiable(x) else spared(x)
                     for i, x, t in zip(places(tree), leaves, tangents)]
            out = _guarded(f, tree_unflatten(tree, duals), {})
            outs, out_tree = tree_flatten(out)
            primals = [o._primal if isinstance(o, Dual) and o._level == level else o for o in outs]
            moved = [_tangent_of(o, level, cls) for o in outs]
    finally:
        levels.level -= 1
    return tree_unflatten(out_tree, [release(p) for p in primals]), tree_unflatten(out_tree, [release(m) for m in moved])


def _plain(x: Any, cls: type[Any]) -> Any:
    if isinstance(x, Tensor):
        return x
    out = wrap(borrowed(x), cls)
    if type(x) is float:
        out._weak = True
    return out


def _tangent_of(o: Any, level: int, cls: type[Any]) -> Any:
    if not differentiable(o):
        return None
    if isinstance(o, Dual) and o._level == level and o._tangent is not None:
        return o._tangent
    return wrap(np.zeros(tuple(np.shape(o) if not isinstance(o, Tensor) else o.shape), dtype_of(o).np), cls)


@told_of_arguments
def hvp(f: F, xs: Any, vs: Any) -> Any:
    """Hessian of a scalar function times a vector, without the Hessian. ``xs`` and ``vs``: one argument, or tuples of arguments.

    >>> import numpy as np, aotgrad as ag
    >>> ag.hvp(lambda x: (x ** 3).sum(), np.array([1.0, 2.0]), np.array([1.0, 0.0]))
    array([6., 0.])
    """
    check_callable(f, "hvp")
    many = isinstance(xs, tuple)
    _check_spread(f, xs, "hvp")
    inputs, vectors = (xs, vs) if many else ((xs,), (vs,))
    nums = tuple(range(len(inputs)))
    if many and not isinstance(vs, (tuple, list)):
        raise AotgradTypeError(f"hvp: xs is a tuple of {len(inputs)} argument(s), but vs is a {type(vs).__name__}; give one vector per argument")
    moved = _jvp(grad(f, argnums=nums), inputs, vectors, "hvp")[1]
    return moved if many else moved[0]


# ---- linearize ----------------------------------------------------------------------------------------------------------------------

@told_of_arguments
def linearize(f: F, *xs: Any) -> tuple[Any, F]:
    """``(f(*xs), jvp_fn)``: the linear part at ``xs``, traced once, ready for many tangents. ``jvp_fn(*ts)`` takes one tangent per argument, shaped like it, and gives
    the tangent of the result. Raises ``AotgradValueError`` for tangents of another structure or shape.

    >>> import numpy as np, aotgrad as ag
    >>> out, jvp_fn = ag.linearize(lambda x: x * x, np.array([1.0, 3.0]))
    >>> jvp_fn(np.array([1.0, 0.0])), jvp_fn(np.array([0.0, 10.0]))
    (array([2., 0.]), array([ 0., 60.]))
    """
    check_callable(f, "linearize")
    if tracing_any(xs):
        return traced_linearize(f, xs)
    return _linearize_eager(f, xs)


def _linearize_eager(f: F, xs: Sequence[Any]) -> tuple[Any, F]:
    leaves, tree = tree_flatten(tuple(xs))
    check_float(leaves, "linearize: the inputs")
    arrays = [x for x in leaves if is_leaf_array(x)]
    cls = flavour_of(xs)
    given = [x if _moves(x) else wrap(borrowed(x._data if isinstance(x, Tensor) else x, own=True), cls) for x in arrays]
    types = [TensorType(tuple(x.shape), x._dtype) for x in given]

    def fn(*flat: Any) -> Any:
        args = iter(flat)
        return f(*tree_unflatten(tree, [next(args) if is_leaf_array(x) else x for x in leaves]))

    weak = [is_number(x) for x in arrays]
    sub = Sub(name_of(f), fn, tree_flatten(tuple(arrays))[1], types, traced_class(leaves), weak, hidden=True, places=[placement.placed(x) for x in given])
    captured = [obj if isinstance(obj, Tensor) else borrowed(obj) for obj, _ in sub.trace.captured.values()]
    primal, linear = linearize_func(sub.func(), [*(t.dtype.is_differentiable for t in types), *(False for _ in captured)])
    found = eager.apply(Program(primal, "Linearize"), [*given, *captured], cls)
    count = len(sub.block.outputs)
    dissolve(sub.trace.block, sub.block)
    residuals, program = found[count:], Program(linear, "Linearize")
    kept = [r._data for r in residuals]

    def push(*ts: Any) -> Any:
        flat = match(tuple(ts), tree, "linearize: tangents")
        checked = [as_tensor_like(t, cls, x, f"linearize: the tangent of argument {i}") for i, t, x in zip(places(tree), flat, leaves) if differentiable(x)]
        moved = iter(eager.apply(program, [*residuals, *checked], cls))
        others = [*kept, *(t._data for t in checked)]
        return tree_unflatten(sub.out_tree, [_kept_apart(next(moved), cls, others) if t.dtype.is_differentiable else None for t in primal.out_types[:count]])

    return tree_unflatten(sub.out_tree, [_kept_apart(x, cls, kept) for x in found[:count]]), push


def _moves(x: Any) -> bool:
    """Whether an outer derivative follows ``x``."""
    return isinstance(x, Dual) or isinstance(x, Tensor) and x._requires_grad


def _kept_apart(x: Any, cls: type[Any], others: Sequence[Any]) -> Any:
    """A result that shares no memory with what is kept or was given."""
    if _moves(x):
        return x
    return release(wrap(apart([x._data], others)[0], cls))

