"""What all transforms share: leaves of arguments and results, checks of what the user gives, and what a caller gets back."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotgrad.ir import TensorType
from aotgrad_runtime import modes
from aotgrad_runtime.arrays import DTYPES, check_kind, converted, native, refusal
from aotgrad_runtime.dtypes import DType
from aotgrad_runtime.errors import AotgradTypeError, AotgradValueError
from aotgrad_runtime.tape import AccumulateGrad, edge_of
from aotgrad_runtime.tensor import ArrayTensor, Tensor, make_output, wrap

from . import dispatch, eager, placement
from .eager import Dual, make_dual
from .program import Program
from .promotion import python_dtype
from .pytree import TreeDef, tree_flatten, tree_unflatten
from .sizes import TracedNumber, plain_size
from .subtrace import is_leaf_array
from .trace import Trace, Traced, TracedArray, current

__all__ = ["F", "alias", "apart", "arguments_of", "as_tensor_like", "borrowed", "check_argnums", "check_callable", "check_depends", "check_float", "differentiable",
           "dtype_of",
           "flavour_of", "fresh", "inside_transform", "like_name", "match", "name_of", "nested", "place_of", "places", "reaches_leaves", "release", "scalar_output",
           "spared", "state", "tracing_any", "tree_flatten_nones", "twin", "with_aux"]

F = Callable[..., Any]


class Depth(threading.local):
    def __init__(self) -> None:
        self.depth = 0


state = modes.keep(Depth(), "depth")


class nested:
    def __enter__(self) -> None:
        state.depth += 1

    def __exit__(self, *exc: object) -> None:
        state.depth -= 1


def inside_transform() -> bool:
    """Whether this thread runs a function under ``grad``, ``vjp``, ``jvp`` or a matrix of derivatives."""
    return state.depth > 0


# ---- leaves -------------------------------------------------------------------------------------------------------------------------

def dtype_of(x: Any) -> DType:
    if isinstance(x, Tensor):
        return x._dtype
    return DTYPES[native(np.asarray(x)).dtype] if isinstance(x, (np.ndarray, np.generic)) else python_dtype(x)


def differentiable(x: Any) -> bool:
    check_kind(x)
    return is_leaf_array(x) and dtype_of(x).is_differentiable


def arguments_of(f: F, argnums: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], tuple[int, ...]]:
    """The arguments of a call of ``f`` with keywords in their places, as far as its signature has places for them, and which ``argnums`` means."""
    if kwargs:
        args, kwargs = _in_places(f, args, dict(kwargs))
    return args, kwargs, _positions(argnums, len(args), kwargs)


def _in_places(f: F, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        return args, kwargs
    out = list(args)
    for i, p in enumerate(parameters[len(args):], len(args)):
        if p.kind is not p.POSITIONAL_OR_KEYWORD or not any(q.name in kwargs for q in parameters[i:]) or p.name not in kwargs and p.default is p.empty:
            break
        out.append(kwargs.pop(p.name) if p.name in kwargs else p.default)
    return tuple(out), kwargs


def check_argnums(argnums: Any) -> None:
    """Raises ``AotgradTypeError`` for what names no positions, such as the arguments of the function, which belong to the call of what a transform gives."""
    for i in argnums if isinstance(argnums, (tuple, list)) else (argnums,):
        if isinstance(i, (bool, np.bool_)) or not isinstance(i, (int, np.integer)):
            raise AotgradTypeError(f"argnums={argnums!r:.60}: positions of arguments are integers, not {type(i).__name__}; the arguments go to "
                                 "what it gives: ag.grad(f)(x)")


def _positions(argnums: Any, count: int, kwargs: dict[str, Any]) -> tuple[int, ...]:
    out: list[int] = []
    for i in argnums if isinstance(argnums, (tuple, list)) else (argnums,):
        if not -count <= i < count:
            rest = f" and the keyword(s) {', '.join(kwargs)}, which have no position" if kwargs else ""
            raise AotgradValueError(f"argnums={argnums!r}: the function was called with {count} positional argument(s){rest}")
        if i % count in out:
            raise AotgradValueError(f"argnums={argnums!r}: argument {i % count} is named twice; name each argument once")
        out.append(int(i % count))
    if not out:
        raise AotgradValueError(f"argnums={argnums!r} names no argument to differentiate; give a position, or a tuple of positions")
    return tuple(out)


def place_of(f: F, i: int) -> str:
    """An argument for a message: its position, and its name where it has one."""
    try:
        found = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        found = []
    named = i < len(found) and found[i].kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return f"argument {i} ({found[i].name})" if named else f"argument {i}"


def check_float(leaves: Sequence[Any], what: str) -> None:
    for x in leaves:
        if isinstance(x, (np.ndarray, np.generic)) and x.dtype.kind != "c" and (reason := refusal(x.dtype)) is not None:
            raise AotgradTypeError(f"{what}: {reason}")
    if not any(differentiable(x) for x in leaves):
        kinds = ", ".join(dtype_of(x).name if is_leaf_array(x) else type(x).__name__ for x in leaves) or "nothing"
        raise AotgradTypeError(f"{what} has no floating-point leaf ({kinds}): a gradient needs float inputs; "
                               "convert integers with .astype(float) or choose another argnums")


def tracing_any(*trees: Any) -> bool:
    return current() is not None or any(isinstance(x, Traced) for tree in trees for x in tree_flatten(tree)[0])


def flavour_of(trees: Any) -> type[Any]:
    leaves = tree_flatten(trees)[0]
    return Tensor if any(isinstance(x, Tensor) and not isinstance(x, ArrayTensor) for x in leaves) else ArrayTensor


@functools.lru_cache(maxsize=256)
def _identity(shape: tuple[int, ...], dtype: DType) -> Program:
    return dispatch.program_of("alias", [TensorType(shape, dtype)], lambda b, x: x)


def borrowed(x: Any, own: bool = False) -> Any:
    """The caller's array as one that nobody here writes to and that no result shows: ``release`` copies what cannot be written. ``own``: a copy from the start."""
    if not isinstance(x, np.ndarray):
        return native(np.asarray(x))
    data = native(np.asarray(x))
    data = data.copy(order="K") if own else data.view()
    data.flags.writeable = False
    return data


def fresh(x: Any, cls: type[Any], own: bool = False) -> Any:
    """A variable of our own with the value of ``x``; connected to it where ``x`` is on a tape or dual."""
    if isinstance(x, Dual):
        return make_dual(fresh(x._primal, cls, own), x._tangent, x._level)
    if isinstance(x, Tensor):
        if x._requires_grad:
            return eager.apply(_identity(tuple(x._data.shape), x._dtype), [x], cls)[0]
        out = wrap(borrowed(x._data, own) if isinstance(x, ArrayTensor) else x._data.copy(order="K") if own else x._data, cls)
    else:
        out = wrap(borrowed(x, own), cls)
        if type(x) is float:
            out._weak = True
    out._requires_grad = out._own = True
    return out


def reaches_leaves(xs: Sequence[Any]) -> bool:
    """Whether a graph leads from ``xs`` to tensors of the caller's that require gradients."""
    stack = [node for x in xs if isinstance(x, Tensor) and x._requires_grad and (node := edge_of(x)[0]) is not None]
    seen = set(stack)
    while stack:
        node = stack.pop()
        if type(node) is AccumulateGrad and not node.variable._own:
            return True
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                stack.append(child)
    return False


def spared(tree: Any) -> Any:
    """``tree`` with copies of the caller's NumPy arrays, for a function that may write to them; the same object where there are none."""
    leaves, treedef = tree_flatten(tree)
    written = [isinstance(x, np.ndarray) and x.flags.writeable for x in leaves]
    return tree_unflatten(treedef, [x.copy(order="K") if w else x for x, w in zip(leaves, written)]) if any(written) else tree


def alias(x: Any, trace: Trace | None = None) -> Any:
    """A traced array as another one with its value (in ``trace``): what is written into one is not seen by the other."""
    if not isinstance(x, TracedArray) or isinstance(x, TracedNumber):
        return x
    out = TracedArray._of(x._trace, x._value) if trace is None else TracedArray._of(trace, trace.value_of(x))
    out.__dict__.update({k: v for k, v in x.__dict__.items() if k in ("_weak", "_leaf_index")})
    out._placed = placement.placed(x)
    return out


def twin(v: Any) -> Any:
    """Another value at the place of ``v`` in the graph, for the function: it may write to it, and ``v`` stays what the gradient is asked of."""
    if isinstance(v, Dual):
        out = make_dual(twin(v._primal), v._tangent, v._level)
    else:
        node, index = edge_of(v)
        if node is None:
            return v
        out = make_output(v._data, node, index, type(v)._value_type)
    if v._weak:
        out._weak = True
    return out


def as_tensor_like(x: Any, cls: type[Any], like: Any, what: str = "a tangent or cotangent") -> Any:
    """A cotangent or tangent given by the user, checked against the value it belongs to."""
    dtype = dtype_of(like)
    wanted = tuple(np.shape(like) if not isinstance(like, Tensor) else like.shape)
    if not is_leaf_array(x):
        raise AotgradTypeError(f"{what}: {type(x).__name__} was given where an array of shape {wanted} and dtype {dtype.name} belongs")
    if dtype_of(x).is_complex and not dtype.is_complex:
        raise AotgradTypeError(f"{what}: a complex array was given for a value of dtype {dtype.name}; give its .real part")
    out = x if isinstance(x, Tensor) else wrap(borrowed(x) if np.asarray(x).dtype == dtype.np else converted(borrowed(x), dtype), cls)
    if tuple(out.shape) != wanted:
        raise AotgradValueError(f"{what} of shape {tuple(out.shape)} was given for a value of shape {wanted}")
    return out


def release(x: Any, own: bool = False) -> Any:
    """What a caller outside all transforms gets: NumPy's own arrays and scalars for NumPy callers, in memory of their own (``own``: that nobody here keeps);
    tensors with the part of their graph that is the caller's."""
    if state.depth or not isinstance(x, Tensor) or isinstance(x, Dual):
        return x
    if isinstance(x, ArrayTensor):
        data = x._data
        return data[()] if data.ndim == 0 else data if data.flags.writeable and not own else data.copy(order="K")
    return x if not x._requires_grad or modes.state.grad and reaches_leaves([x]) else x.detach()


def _root(data: Any) -> Any:
    while isinstance(data.base, np.ndarray):
        data = data.base
    return data


def apart(xs: Sequence[Any], others: Sequence[Any] = ()) -> list[Any]:
    """Arrays that share no memory with each other or with ``others``: copies where they do."""
    known: dict[int, list[Any]] = {}
    for o in others:
        if isinstance(o, np.ndarray):
            known.setdefault(id(_root(o)), []).append(o)
    out = []
    for x in xs:
        if isinstance(x, np.ndarray):
            before = known.setdefault(id(_root(x)), [])
            if any(np.may_share_memory(x, b) for b in before):
                x = x.copy(order="K")
            else:
                before.append(x)
        out.append(x)
    return out


def scalar_output(out: Any, name: str) -> Any:
    if isinstance(out, (tuple, list, dict)):
        raise AotgradTypeError(f"grad of {name}: the function returned a {type(out).__name__}; return one number, or pass has_aux=True for (value, aux)")
    shape = tuple(out.shape) if hasattr(out, "shape") else ()
    trace = current()
    if trace is not None:
        shape = tuple([n if (n := trace.example(plain_size(d))) is not None else d for d in shape])
    if shape != ():
        raise AotgradValueError(f"grad of {name}: the result has shape {shape}; a gradient needs a 0-d result. Reduce it (for example with .sum()), or use jacrev or vjp")
    if not is_leaf_array(out) or not dtype_of(out).is_differentiable:
        raise AotgradTypeError(f"grad of {name}: the result is {dtype_of(out).name if is_leaf_array(out) else type(out).__name__}, not a floating-point number; "
                               "return one that is computed from the argument, as casts to integers, comparisons and argmax have no derivative")
    return out


def check_result(outs: Sequence[Any], f: F, what: str) -> None:
    """At least one result has a derivative."""
    if outs and not any(differentiable(x) for x in outs):
        kinds = ", ".join(dict.fromkeys(dtype_of(x).name if is_leaf_array(x) else type(x).__name__ for x in outs))
        raise AotgradTypeError(f"{what} of {name_of(f)}: the result is {kinds}, not floating-point numbers; return some that are computed from the argument, "
                               "as casts to integers, comparisons and argmax have no derivative")


def check_depends(out: Any, name: str) -> None:
    """A plain number or array was made without the differentiated arguments, or by taking their numbers away: a gradient of zeros would hide that."""
    if not isinstance(out, Tensor):
        raise AotgradTypeError(f"grad of {name}: the result is a plain {type(out).__name__} that does not depend on the differentiated arguments. "
                               "Compute it from them with ag or NumPy functions; if it is meant to be constant, return 0.0 * x.sum() + the constant")


def name_of(f: F) -> str:
    return getattr(f, "__name__", type(f).__name__)


def with_aux(out: Any, has_aux: bool, f: F) -> tuple[Any, Any]:
    if not has_aux:
        return out, None
    if not isinstance(out, tuple) or len(out) != 2:
        raise AotgradTypeError(f"{name_of(f)} must return (value, aux) with has_aux=True")
    return out


def like_name(wrapper: F, f: F, prefix: str) -> F:
    wrapper = modes.intact(wrapper)
    functools.update_wrapper(wrapper, f, assigned=("__module__", "__doc__"), updated=())
    wrapper.__name__ = wrapper.__qualname__ = f"{prefix}({name_of(f)})"
    return wrapper


def match(trees: Any, tree: TreeDef, what: str, of: str = "the inputs") -> list[Any]:
    """The leaves of ``trees``, which has the structure ``tree``."""
    given, shape = tree_flatten(trees)
    if shape == tree:
        return given
    where = ""
    if len(shape.children) == len(tree.children):
        where = f" (argument {next((i for i, (a, b) in enumerate(zip(shape.children, tree.children)) if a != b), 0)})"
    raise AotgradValueError(f"{what} do not have the structure of {of}{where}: {len(given)} array(s) given, {tree.leaves} expected")


def cotangents(trees: Any, tree: TreeDef, wanted: Sequence[bool]) -> list[Any]:
    """What a pullback is given, one for each result; None may stand for those that are not ``wanted``, as their dtype has no derivative."""
    given, shape = tree_flatten(trees)
    there = _there(shape, tree)
    if there is None or any(w and not t for w, t in zip(wanted, there)):
        return match(trees, tree, "pullback: the cotangents", "the function's result")
    it = iter(given)
    return [next(it) if t else None for t in there]


def _there(shape: TreeDef, tree: TreeDef) -> list[bool] | None:
    """For each leaf of ``tree`` whether ``shape`` has one, or None, there; None where they differ in more."""
    if tree.kind is None:
        return [True] if shape.kind is None else [False] if shape.kind == "none" else None
    if (shape.kind, shape.meta, shape.exact, len(shape.children)) != (tree.kind, tree.meta, tree.exact, len(tree.children)):
        return None
    found = [_there(a, b) for a, b in zip(shape.children, tree.children)]
    return None if None in found else [t for part in found for t in part or ()]


def places(tree: TreeDef) -> list[int]:
    """Which argument each leaf of a tuple of arguments belongs to."""
    return [i for i, t in enumerate(tree.children) for _ in range(t.leaves)]


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


def check_callable(f: Any, what: str) -> None:
    """A transform is given a function."""
    if not callable(f):
        raise AotgradTypeError(f"{what}: {type(f).__name__} is not callable; pass a function")
