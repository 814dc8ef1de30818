"""Structured control flow for users: ``cond``, ``scan``, ``fori_loop``, ``map``. Plain Python when the values are there; IR regions in a trace."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotgrad.ir import Block, Builder, TensorType, Value, dims
from aotgrad.ir.transforms.rewrite import copy_ops
from aotgrad_runtime.arrays import check_kind
from aotgrad_runtime.dtypes import bool_, int64
from aotgrad_runtime.errors import AotgradNotImplementedError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.tensor import ArrayTensor, Tensor, wrap

from . import dispatch, placement
from .boundary import told
from .front import FrontBuilder
from .leaves import apart, check_callable, dtype_of
from .promotion import is_number
from .pytree import TreeDef, tree_flatten, tree_unflatten
from .randoms import ABSTRACT, LOOP, alternatives
from .sizes import plain_size
from .subtrace import Sub, as_value, builder_of, is_leaf_array, traced_class
from .trace import Trace, Traced, TracedTensor, current, unrecorded, user_loc

__all__ = ["cond", "fori_loop", "map_", "scan", "while_loop"]


def _traced(*trees: Any) -> Trace | None:
    trace = current()
    if trace is None and any(isinstance(x, Traced) for t in trees for x in tree_flatten(t)[0]):
        raise AotgradTypeError(f"{user_loc()}: a traced value is used outside the call that made it")
    return trace


class _Values:
    """What plain loops and branches hand to the user's functions and take from them: values, as in a trace, so that writes to them reach no other array. What came
    back as it was handed out belongs to the loop alone and is not copied again."""

    def __init__(self) -> None:
        self._lent: dict[int, Any] = {}

    def __call__(self, tree: Any) -> Any:
        leaves, treedef = tree_flatten(tree)
        if not any(isinstance(x, (Tensor, np.ndarray)) for x in leaves):
            return tree
        before, self._lent = self._lent, {}
        for i, x in enumerate(leaves):
            if isinstance(x, (Tensor, np.ndarray)):
                if before.pop(id(x), None) is None:
                    leaves[i] = x = _copied(x)
                self._lent[id(x)] = x
        return tree_unflatten(treedef, leaves)


def _copied(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return x.copy(order="K")
    if not isinstance(x, Tensor):
        return x
    if type(x) in (Tensor, ArrayTensor) and x._node is None and x._extra is None and not x._requires_grad and current() is None:
        return wrap(x._data.copy(order="K"), type(x))  # nothing records it
    return dispatch.call(dispatch.TORCH["clone"], (x,), {})


def _kept(row: Any, carry: Any) -> Any:
    """A row of results, which later rounds must not change by writing to what they carry."""
    leaves, treedef = tree_flatten(row)
    carried = [c for c in tree_flatten(carry)[0] if isinstance(c, (Tensor, np.ndarray))]
    return tree_unflatten(treedef, [_copied(x) if any(_shows(x, c) for c in carried) else x for x in leaves])


def _shows(x: Any, carried: Any) -> bool:
    """Whether ``x`` may be memory of ``carried``."""
    if isinstance(x, Tensor):
        return x is carried or x._base is not None
    return isinstance(x, np.ndarray) and isinstance(carried, np.ndarray) and np.may_share_memory(x, carried)


# ---- cond -----------------------------------------------------------------------------------------------------------------------------

@told
def cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], *operands: Any) -> Any:
    """``true_fn(*operands)`` where ``pred`` (a bool scalar) holds, else ``false_fn(*operands)``. Only the chosen branch runs; both must give equal structures and types.

    >>> import aotgrad as ag
    >>> ag.cond(True, lambda x: x + 1, lambda x: x - 1, 5.0)
    6.0
    """
    check_callable(true_fn, "cond")
    check_callable(false_fn, "cond")
    trace = _traced(pred, operands)
    if trace is None or not isinstance(pred, Traced):
        if np.shape(pred if not isinstance(pred, Tensor) else pred._data) != ():
            raise AotgradValueError(f"{user_loc()}: cond: the predicate has shape {tuple(np.shape(pred))}; it must be a scalar. Use ag.where for elementwise choice")
        own = _Values()
        out = own((true_fn if bool(pred) else false_fn)(*own(operands)))
        if trace is None:
            _check_branches(true_fn, false_fn, operands)
        return out
    b = builder_of(trace)
    leaves, tree = tree_flatten(tuple(operands))
    values = [as_value(x, trace) for x in leaves]
    cls = traced_class([pred, *leaves])
    weak = [is_number(x) for x in leaves]
    given_types, places = [v.type for v in values], [placement.placed(x) for x in leaves]
    branch = functools.partial(Sub, treedef=tree, types=given_types, cls=cls, weak=weak, places=places)
    subs, join = alternatives([functools.partial(branch, name, fn) for name, fn in (("true_fn", true_fn), ("false_fn", false_fn))])
    if subs[0].out_tree != subs[1].out_tree:
        raise AotgradTypeError(f"{user_loc()}: cond: the branches return different structures; return the same containers and keys from both")
    lifted: dict[Value, None] = {}
    for s in subs:
        lifted.update(dict.fromkeys(s.lifted_values()))
    p = as_value(pred, trace)
    if p.type.shape != ():
        shape = ", ".join(map(dims.to_text, p.type.shape))
        raise AotgradValueError(f"{user_loc()}: cond: the predicate has shape ({shape}); it must be a scalar. Use ag.where for elementwise choice")
    p = p if p.type.dtype is bool_ else b.ne(p, b.full_like(p, 0))
    _meet(b, subs[0].block.outputs, subs[1].block.outputs)
    given = [[_shown(_plain_type(trace, v.type)) for v in s.block.outputs] for s in subs]
    if given[0] != given[1]:
        raise _unlike(given)
    outer = list(dict.fromkeys([*values, *lifted]))  # what is given and captured is one array to the branches, and has one cotangent
    blocks = [_aligned(s, values, outer) for s in subs]
    found = b.emit("cond", [p, *outer], {}, blocks)
    join(trace, p)
    out = [cls._of(trace, unrecorded(b, v)) for v in found]
    for x, *numbers in zip(out, *[s.numbers for s in subs]):
        x._weak = all(numbers)
    placement.mark(out, [x if x == y else placement.UNKNOWN for x, y in zip(subs[0].places, subs[1].places)])
    return tree_unflatten(subs[0].out_tree, out)


_equal_branches: dict[Any, None] = {}  # pairs of branches that were compared, by their code and the types of the operands


def _check_branches(true_fn: Any, false_fn: Any, operands: tuple[Any, ...]) -> None:
    """Outside of traces too, the branches must give equal structures and types: both are traced once. What cannot be traced is not compared."""
    leaves, tree = tree_flatten(operands)
    codes = [getattr(f, "__code__", f) for f in (true_fn, false_fn)]
    try:
        key = (*codes, str(tree), tuple([_type_of(x) for x in leaves]))
        if key in _equal_branches:
            return
        if len(_equal_branches) > 1024:
            _equal_branches.clear()
        _equal_branches[key] = None
        subs = [_abstract("branch", f, operands) for f in (true_fn, false_fn)]
    except Exception:  # code that works on numbers only, or keys that cannot be hashed
        return
    del _equal_branches[key]
    if subs[0].out_tree != subs[1].out_tree:
        raise AotgradTypeError(f"{user_loc()}: cond: the branches return different structures; return the same containers and keys from both")
    given = [[_shown((v.type.shape, v.type.dtype)) for v in s.block.outputs] for s in subs]
    if given[0] != given[1]:
        raise _unlike(given)
    _equal_branches[key] = None


def _unlike(given: Sequence[Sequence[str]]) -> AotgradTypeError:
    one, other = (", ".join(g) for g in given)
    return AotgradTypeError(f"{user_loc()}: cond: one branch gives {one}, the other {other}; make shapes and dtypes equal")


def _aligned(sub: Sub, given: Sequence[Value], outer: Sequence[Value]) -> Block:
    """The branch, which takes ``given`` and what it captures, with one argument per value of ``outer``, used or not."""
    block = Block([v.type for v in outer])
    place = {v: i for i, v in enumerate(outer)}
    env: dict[Value, Value] = {arg: block.args[place[v]] for arg, v in zip(sub.block.args, [*given, *sub.lifted_values()])}
    copy_ops(Builder(block), sub.block.ops, env)
    block.outputs = [env[o] for o in sub.block.outputs]
    return block


# ---- scan -----------------------------------------------------------------------------------------------------------------------------

@told
def scan(f: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any = None, length: Any = None, reverse: bool = False) -> tuple[Any, Any]:
    """Runs ``carry, y = f(carry, x)`` over the leading dim of every leaf of ``xs`` (or ``length`` times): ``(last carry, stacked ys)``.

    Reverse mode stores what each step needs once; the loop stays a loop in compiled code. The carry keeps its structure, shapes and dtypes.

    >>> import numpy as np, aotgrad as ag
    >>> ag.scan(lambda c, x: (c + x, c * x), 0.0, np.array([1.0, 2.0, 3.0]))
    (np.float64(6.0), array([0., 2., 9.]))
    """
    check_callable(f, "scan")
    leaves, tree = tree_flatten(xs)
    for x in leaves:
        check_kind(x)
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
            raise AotgradValueError(f"{user_loc()}: scan: a leaf of xs is 0-d; every leaf needs a leading dim to run over")
        sizes.append(plain_size(shape[0]))
    if length is not None:
        length = plain_size(length)
        if isinstance(length, (bool, np.bool_)) or not isinstance(length, (int, np.integer, dims.Dim)):
            raise AotgradTypeError(f"{user_loc()}: scan: length is {type(length).__name__} ({length!r}); give an integer or a size")
        length = length if isinstance(length, dims.Dim) else int(length)
        if isinstance(length, int) and length < 0:
            raise AotgradValueError(f"{user_loc()}: scan: length={length} is negative")
        sizes.append(length)
    if not sizes:
        raise AotgradValueError(f"{user_loc()}: scan: give xs, or length=")
    for n in sizes[1:]:
        if isinstance(n, int) and isinstance(sizes[0], int) and n != sizes[0]:
            raise AotgradValueError(f"{user_loc()}: scan: leading sizes {sizes[0]} and {n} differ")
    trace = current()
    for n in sizes[1:] if trace is not None else ():
        have = [trace.example(d) for d in (sizes[0], n)]  # type: ignore[union-attr]
        if None not in have and have[0] != have[1]:
            raise AotgradValueError(f"{user_loc()}: scan: leading sizes {have[0]} and {have[1]} differ (xs and length= must agree)")
    return sizes[-1]


def _step_out(out: Any) -> tuple[Any, Any]:
    if not isinstance(out, tuple) or len(out) != 2:
        raise AotgradTypeError(f"{user_loc()}: scan: the function must return (carry, y); return (carry, None) when there is no y")
    return out


def _eager_scan(f: Any, init: Any, leaves: Sequence[Any], tree: TreeDef, count: int, reverse: bool) -> tuple[Any, Any]:
    if not count:
        return _empty_scan(f, init, leaves, tree)
    rows: list[Any] = [None] * count
    values, check = _Values(), Carry("scan", init)
    carry = values(init)
    for i in (reversed(range(count)) if reverse else range(count)):
        carry, y = _step_out(f(carry, tree_unflatten(tree, [_copied(_row(x, i)) for x in leaves])))
        check(carry)
        carry = values(carry)
        rows[i] = _kept(y, carry)
    flat = [tree_flatten(r) for r in rows]
    for _, t in flat:
        if t != flat[0][1]:
            raise AotgradTypeError(f"{user_loc()}: scan: y comes with different structures from different steps; return the same containers and keys from every step")
    columns = [_stack([row[0][j] for row in flat]) for j in range(len(flat[0][0]))]
    return _owned(carry, [*tree_flatten(init)[0], *leaves]), tree_unflatten(flat[0][1], columns)


def _empty_scan(f: Any, init: Any, leaves: Sequence[Any], tree: TreeDef) -> tuple[Any, Any]:
    """No step: what y would be like is found by tracing one."""
    carry, carry_tree = tree_flatten(init)
    rows = [_zero_row(y if isinstance(y, Tensor) else np.asarray(y)) for y in leaves]
    sub = _abstract("scan", lambda c, x: _step_out(f(c, x)), (init, tree_unflatten(tree, rows)))
    Carry("scan", init).compare(sub.out_tree.children[0], [(t.type.shape, t.type.dtype) for t in sub.block.outputs[:len(carry)]])
    made = [np.zeros((0, *v.type.shape), v.type.dtype.np) for v in sub.block.outputs[len(carry):]]
    cls: Any = Tensor if sub.cls is TracedTensor else ArrayTensor if any(isinstance(x, Tensor) for x in (*carry, *leaves)) else None
    if cls is not None:
        made = [wrap(m, cls) for m in made]
        carry = [x if isinstance(x, Tensor) else wrap(np.array(x, v.type.dtype.np), cls) for x, v in zip(carry, sub.block.outputs)]  # as after a step
    return _owned(tree_unflatten(carry_tree, carry), [*carry, *leaves]), tree_unflatten(sub.out_tree.children[1], made)


def _zero_row(x: Any) -> Any:
    row = np.zeros(tuple(x.shape)[1:], dtype_of(x).np)
    return wrap(row, type(x)._value_type) if isinstance(x, Tensor) else row


def _abstract(name: str, fn: Callable[..., Any], args: tuple[Any, ...]) -> Sub:
    """``fn`` traced on the types of ``args``, for the types of its results."""
    leaves, tree = tree_flatten(args)
    types = [TensorType(tuple(x.shape) if isinstance(x, Tensor) else np.shape(x), dtype_of(x)) for x in leaves]
    return Sub(name, fn, tree, types, traced_class(leaves), [is_number(x) for x in leaves], draws=ABSTRACT)


class Carry:
    """What a loop carries keeps its structure, shapes and dtypes; Python numbers may become arrays' dtypes in the first step, as in a trace."""

    def __init__(self, what: str, init: Any) -> None:
        leaves, self.tree = tree_flatten(init)
        self.what = what
        self.types = [_type_of(x) for x in leaves]
        self.weak = [is_number(x) for x in leaves]

    def __call__(self, carry: Any) -> None:
        leaves, tree = tree_flatten(carry)
        self.compare(tree, [_type_of(x) for x in leaves])

    def compare(self, tree: TreeDef, found: list[Any]) -> None:
        if tree != self.tree:
            raise AotgradTypeError(f"{user_loc()}: {self.what}: the carry comes back with another structure than it started with")
        for i, (have, new, weak) in enumerate(zip(self.types, found, self.weak)):
            if have != new and not (weak and have[0] == new[0]):
                raise AotgradTypeError(f"{user_loc()}: {self.what}: leaf {i} of the carry starts as {_shown(have)} and comes back as {_shown(new)}; they must be equal")
        self.types, self.weak = found, [False] * len(found)


def _type_of(x: Any) -> Any:
    """Shape and dtype; the kind of what has neither."""
    if isinstance(x, (bool, np.bool_)):
        return ((), bool_)
    if not is_leaf_array(x):
        return type(x)
    return (tuple(x.shape) if isinstance(x, Tensor) else np.shape(x), dtype_of(x))


def _shown(t: Any) -> str:
    return f"{t[1].name}[{', '.join(map(dims.to_text, t[0]))}]" if isinstance(t, tuple) else t.__name__


def _meet(b: FrontBuilder, first: Sequence[Value], second: Sequence[Value]) -> None:
    """Sizes that have to be equal and are so in this call (1 and a symbol, two symbols) are equal from now on."""
    for s, t in zip((v.type for v in first), (v.type for v in second)):
        pairs = [*zip(s.shape, t.shape)] if s.dtype is t.dtype and len(s.shape) == len(t.shape) else []
        if all(b.trace.example(p) == b.trace.example(q) for p, q in pairs):
            for p, q in pairs:
                b.equate(p, q, "sizes")


def _plain_type(trace: Trace, t: TensorType) -> Any:
    return tuple(trace.canonical(d) for d in t.shape), t.dtype


def _stack(column: list[Any]) -> Any:
    if not any(isinstance(x, Tensor) for x in column):
        return np.stack([np.asarray(x) for x in column])
    cls = Tensor if any(isinstance(x, Tensor) and not isinstance(x, ArrayTensor) for x in column) else ArrayTensor
    return dispatch.call(dispatch.TORCH["stack"], ([x if isinstance(x, Tensor) else wrap(np.asarray(x), cls) for x in column],), {})


def _owned(tree: Any, others: Sequence[Any]) -> Any:
    """A carry as the caller gets it: numbers as NumPy's, arrays that show no memory of inputs."""
    leaves, treedef = tree_flatten(tree)
    plain = [np.asarray(x)[()] if type(x) in (int, float, bool) else x for x in leaves]
    return tree_unflatten(treedef, apart(plain, others))


def _row(x: Any, i: int) -> Any:
    if not isinstance(x, Tensor):
        return np.asarray(x)[i]
    piece = dispatch.call(dispatch.TORCH["narrow"], (x, 0, i, 1), {})
    return dispatch.call(dispatch.TORCH["reshape"], (piece, tuple(x.shape)[1:]), {})


def _traced_scan(f: Any, init: Any, leaves: Sequence[Any], tree: TreeDef, count: Any, reverse: bool, trace: Trace, what: str = "scan",
                 counters: int = 0) -> tuple[Any, Any]:
    """``what``: the function in errors; ``counters``: leaves of the carry in front that are not the user's."""
    b = builder_of(trace)
    carry, carry_tree = tree_flatten(init)
    values = [as_value(x, trace) for x in carry]
    weak = [is_number(x) for x in carry]
    xs = [b.refresh(as_value(x, trace)) for x in leaves]
    for x in xs:
        b.equate(x.type.shape[0], count, "scan: leading sizes")
    count = trace.canonical(count)
    rows = [TensorType(x.type.shape[1:], x.type.dtype) for x in xs]
    cls = traced_class([*carry, *leaves])
    body_tree = tree_flatten((tree_unflatten(carry_tree, carry), tree_unflatten(tree, list(leaves))))[1]

    def fn(c: Any, x: Any) -> Any:
        return _step_out(f(c, x))

    places, before = [placement.placed(x) for x in carry], set(trace.placing)
    for _ in range(3):
        sub = Sub(getattr(f, "__name__", "scan"), fn, body_tree, [*(v.type for v in values), *rows], cls, [*weak, *([False] * len(rows))], draws=LOOP,
                  origins=[*carry, *leaves],
                  places=[*places, *(placement.without(placement.placed(x), x.shape, 0) if isinstance(x, (Tensor, np.ndarray)) else None for x in leaves)])
        wanted = [v.type for v in sub.block.outputs[:len(values)]]
        if sub.out_tree.children[0] != carry_tree:
            raise AotgradTypeError(f"{user_loc()}: {what}: the carry comes back with another structure than it started with")
        changed = [w and t.dtype is not v.type.dtype and t.shape == v.type.shape for w, t, v in zip(weak, wanted, values)]
        moved = [p != q for p, q in zip(places, sub.places)]
        if not any(changed) and not (any(moved) and trace.placing != before):
            break
        places = [placement.UNKNOWN if m else p for p, m in zip(places, moved)]  # in one round other than in the next
        values = [b.to_dtype(v, t.dtype) if c else v for v, t, c in zip(values, wanted, changed)]
    _meet(b, values, sub.block.outputs)
    for i, (have, new) in enumerate(zip((_plain_type(trace, v.type) for v in values), (_plain_type(trace, t) for t in wanted))):
        if have != new:
            raise AotgradTypeError(f"{user_loc()}: {what}: leaf {i - counters} of the carry starts as {_shown(have)} and comes back as {_shown(new)}; they must be equal")
    lifted = sub.lifted_values()
    given = len(values) + len(xs)
    block = Block()
    block.args = [*sub.block.args[given:], *sub.block.args[:given]]
    block.ops, block.outputs = sub.block.ops, sub.block.outputs
    found = b.emit("scan", [*lifted, *values, *xs], {"consts": len(lifted), "carry": len(values), "length": count, "reverse": reverse}, (block,))
    out = [cls._of(trace, unrecorded(b, v)) for v in found]
    for x, was, stays in zip(out, weak, sub.numbers if counters else ()):  # ``scan`` itself gives arrays
        x._weak = was and stays
    placement.mark(out, [p if p == q else placement.UNKNOWN for p, q in zip(places, sub.places)])
    return tree_unflatten(carry_tree, out[:len(values)]), tree_unflatten(sub.out_tree.children[1], out[len(values):])


@told
def fori_loop(lower: Any, upper: Any, body: Callable[[Any, Any], Any], init: Any) -> Any:
    """``carry = body(i, carry)`` for i from ``lower`` to ``upper - 1``; the bounds are Python integers or sizes.

    >>> import aotgrad as ag
    >>> ag.fori_loop(0, 3, lambda i, c: c * 2.0, 1.0)
    8.0
    """
    check_callable(body, "fori_loop")
    if _traced(init) is None:
        values, check = _Values(), Carry("fori_loop", init)
        carry = values(init)
        for i in range(_bound(lower), _bound(upper)):
            carry = body(i, carry)
            check(carry)
            carry = values(carry)
        return carry
    if isinstance(lower, Traced) or isinstance(upper, Traced):
        raise AotgradTypeError(f"{user_loc()}: fori_loop: a bound is a traced value; bounds are integers or sizes (use static= for an integer argument)")
    trace = current()
    assert trace is not None
    lower, upper = (n if isinstance(n, dims.Dim) else _bound(n) for n in (plain_size(lower), plain_size(upper)))
    cls = traced_class(tree_flatten(init)[0])
    b = builder_of(trace)
    start = cls._of(trace, b.to_dtype(as_value(lower, trace), int64))  # the counter is a carry: numbers of all steps would be an array
    start._weak = True

    def step(carry: Any, _: Any) -> Any:
        i, c = carry
        return (i + 1, body(i, c)), None

    return _traced_scan(step, (start, init), [], tree_flatten(None)[1], dims.maximum(upper - lower, 0), False, trace, "fori_loop", 1)[0][1]


def _bound(n: Any) -> int:
    if isinstance(n, (bool, np.bool_, type)) or not hasattr(n, "__index__") or bool(getattr(n, "ndim", 0)):
        raise AotgradTypeError(f"{user_loc()}: fori_loop: a bound is {type(n).__name__} ({n!r}); bounds are integers or sizes")
    return int(n.__index__())


@told
def while_loop(cond: Callable[[Any], Any], body: Callable[[Any], Any], init: Any) -> Any:
    """``carry = body(carry)`` while ``cond(carry)`` (a bool scalar) holds. The carry keeps its structure, shapes and dtypes.

    A plain loop with all derivatives outside of traces. How often it runs is not known before, so there is no compiled form: in a compiled function use
    ``scan`` or ``fori_loop`` with a bound and ``where``, which ``AotgradNotImplementedError`` says.

    >>> import aotgrad as ag
    >>> ag.grad(lambda x: ag.while_loop(lambda c: c < 10.0, lambda c: c * x, x))(2.0)
    np.float64(32.0)
    """
    if _traced(init) is not None:
        raise AotgradNotImplementedError(f"{user_loc()}: while_loop has no compiled form, as its number of steps is not known before; use ag.fori_loop or ag.scan with a "
                                         "bound on the steps and ag.where(done, old, new) in the body, or call it outside of compile")
    check_callable(cond, "while_loop")
    check_callable(body, "while_loop")
    values, check = _Values(), Carry("while_loop", init)
    carry = values(init)
    while True:
        go_on = cond(carry)
        if np.shape(go_on._data if isinstance(go_on, Tensor) else go_on) != ():
            raise AotgradValueError(f"{user_loc()}: while_loop: the condition has a shape; it must be a scalar. Reduce it with .any() or .all()")
        if not bool(go_on):
            return carry
        carry = body(carry)
        check(carry)
        carry = values(carry)


@told
def map_(f: Callable[[Any], Any], xs: Any) -> Any:
    """``f`` applied to every slice of ``xs`` along the leading dim, results stacked along theirs, in one loop. ``xs`` and the results may be containers; all arrays of
    ``xs`` have one leading size, or ``AotgradValueError`` is raised. ``ag.vmap`` computes all slices at once and is faster where ``f`` is small.

    >>> import numpy as np, aotgrad as ag
    >>> ag.map(lambda row: row.sum(), np.array([[1.0, 2.0], [3.0, 4.0]]))
    array([3., 7.])
    """
    check_callable(f, "map")
    return scan.__wrapped__(lambda c, x: (c, f(x)), (), xs)[1]  # type: ignore[attr-defined]


map_.__name__ = map_.__qualname__ = "map"
