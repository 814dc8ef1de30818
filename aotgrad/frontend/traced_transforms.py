"""Transforms on functions in a trace, on IR."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotgrad.ir import Block, Builder, TensorType, Value, dims
from aotgrad.ir.transforms.batch import batch_in_chunks
from aotgrad.ir.transforms.differentiate import differentiate, push_linear, transpose_into
from aotgrad.ir.transforms.rewrite import copy_ops, decompose_block, free_values
from aotgrad.ir.transforms.stabilise import stabilise_block
from aotgrad_runtime.dtypes import int64
from aotgrad_runtime.errors import AotgradTypeError, AotgradValueError
from aotgrad_runtime.modes import differentiating
from aotgrad_runtime.tensor import Tensor

from . import placement
from .explained import told_of_arguments
from .front import FrontBuilder
from .leaves import F, alias, check_depends, check_float, check_result, cotangents, differentiable, match, name_of, place_of, scalar_output, with_aux
from .promotion import is_number
from .pytree import tree_flatten, tree_unflatten
from .subtrace import Sub, as_value, builder_of, is_leaf_array, traced_class
from .trace import Trace, current, user_loc

__all__ = ["Inline", "copy_linear", "fitted", "traced_grad", "traced_jacobian", "traced_jvp", "traced_linearize", "traced_vjp"]


class Inline:
    """A function traced inside the current trace, with everything that its transforms need."""

    def __init__(self, f: F, args: Sequence[Any], kwargs: dict[str, Any], nums: Sequence[int]) -> None:
        trace = current()
        if trace is None:
            raise AotgradTypeError("a traced value is used outside the call that made it")
        self.trace: Trace = trace
        self.trees = [tree_flatten(args[i]) for i in nums]
        for i, (leaves, _) in zip(nums, self.trees):
            check_float(leaves, place_of(f, i))
        self.leaves = [x for leaves, _ in self.trees for x in leaves]
        self.on = [differentiable(x) for x in self.leaves]
        self.b = builder_of(trace)
        values = [self.b.refresh(as_value(x, trace)) if is_leaf_array(x) else None for x in self.leaves]
        kept = [v for v in values if v is not None]
        self.arrays = [x for x, v in zip(self.leaves, values) if v is not None]
        self.cls = traced_class([*self.leaves, *tree_flatten([args, kwargs])[0]])
        sizes = [len(leaves) for leaves, _ in self.trees]

        def fn(*flat: Any) -> Any:
            given = iter(flat)
            full = [next(given) if v is not None else x for x, v in zip(self.leaves, values)]
            for x, on in zip(full, self.on):
                if on:
                    x._trace.requires.add(x._value)
            filled, at = [a if i in nums else _here(a) for i, a in enumerate(args)], 0
            for i, n, (_, tree) in zip(nums, sizes, self.trees):
                filled[i] = tree_unflatten(tree, full[at:at + n])
                at += n
            self.raw = differentiating()(f)(*filled, **{k: _here(x) for k, x in kwargs.items()})  # a gradient inside no_grad is a gradient still
            return self.raw

        flat_tree = tree_flatten(tuple(kept))[1]
        weak = [is_number(x) for x in self.arrays]
        self.sub = Sub(name_of(f), fn, flat_tree, [v.type for v in kept], self.cls, weak, places=[placement.placed(x) for x in self.arrays])
        self.ins = [self.b.refresh(v) for v in [*kept, *self.sub.lifted_values()]]
        live = iter(self.on)
        self.active = [next(live) for _ in kept] if len(kept) == len(self.on) else [differentiable(x) for x in self.arrays]
        self.active += [False] * (len(self.ins) - len(kept))
        self.block = stabilise_block(self.sub.block)

    def differentiate(self, forward: bool = False) -> None:
        """Appends the primal; the linear part stays aside."""
        self.aside = Block()
        self.tangents = [Value(x.type) if on else None for x, on in zip(self.ins, self.active)]
        lb = FrontBuilder(self.trace, True, None)
        lb.block = self.aside
        self.outs, self.out_tangents = differentiate(self.b, lb, self.block, self.ins, self.tangents, forward)

    def wrapped(self, v: Value) -> Any:
        return placement.unsure([self.cls._of(self.trace, v)])[0]

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


def _here(tree: Any) -> Any:
    """``tree`` with arrays of the traces around as arrays of this one, which a function may write to: it changes a copy."""
    leaves, treedef = tree_flatten(tree)
    return tree_unflatten(treedef, [alias(x, current()) for x in leaves])


def traced_grad(f: F, args: Sequence[Any], kwargs: dict[str, Any], nums: tuple[int, ...], argnums: Any, has_aux: bool) -> Any:
    constants: dict[Any, Any] = {}  # by place among the leaves; and the tree, by -1
    run = Inline(_constants_aside(f, constants) if has_aux else f, args, kwargs, nums)
    raw = with_aux(run.raw, has_aux, f)[0]
    if is_leaf_array(raw):
        check_depends(raw, name_of(f))
    tree = run.sub.out_tree
    run.differentiate()
    values = [run.wrapped(o) for o in run.outs]
    out, aux = with_aux(tree_unflatten(tree, values), has_aux, f)
    aux = _with_constants(aux, constants) if has_aux else aux
    out = scalar_output(out, name_of(f))
    cts = [run.b.full_like(v._value, 1) if v is out else None for v in values]
    grads = [run.wrapped(g) for g in run.gradients(run.b, cts)]
    trees = run.trees_of(grads)
    result = tuple(trees) if isinstance(argnums, (tuple, list)) else trees[0]
    return ((out, aux) if has_aux else out), result


def _constants_aside(f: F, constants: dict[Any, Any]) -> F:
    """``f`` that gives (value, aux) with the leaves of aux that are no arrays in ``constants``: they come back as they are."""
    @functools.wraps(f, updated=())
    def run(*args: Any, **kwargs: Any) -> Any:
        value, aux = with_aux(f(*args, **kwargs), True, f)
        leaves, constants[-1] = tree_flatten(aux)
        constants.update((i, x) for i, x in enumerate(leaves) if not (isinstance(x, (Tensor, np.ndarray, np.generic)) or hasattr(x, "symbols")))
        return value, [x for i, x in enumerate(leaves) if i not in constants]

    return run


def _with_constants(leaves: Sequence[Any], constants: dict[Any, Any]) -> Any:
    """aux again, as the user's function gave it."""
    tree, rest = constants[-1], iter(leaves)
    return tree_unflatten(tree, [constants[i] if i in constants else next(rest) for i in range(tree.leaves)])


def fitted(b: Any, given: Any, like: Value, trace: Trace, what: str) -> Value:
    """A tangent or cotangent as a value of the type of ``like``: sizes that must be equal are joined, or guarded."""
    v, shape = as_value(given, trace), like.type.shape
    if v.type.dtype.is_complex and not like.type.dtype.is_complex:
        raise AotgradTypeError(f"{user_loc()}: {what}: a complex array was given for a value of dtype {like.type.dtype.name}; give its .real part")
    if len(v.type.shape) != len(shape):
        raise AotgradValueError(f"{user_loc()}: {what} of rank {len(v.type.shape)} was given for a value of rank {len(shape)}")
    for i, (have, want) in enumerate(zip(v.type.shape, shape)):
        b.equate(have, want, f"{what}: dim {i}")
    v = b.to_shape(b.to_dtype(b.refresh(v), like.type.dtype), shape)
    return v if v.type.layout == like.type.layout else b.relayout(v, layout=like.type.layout)  # type: ignore[no-any-return]


def traced_vjp(f: F, xs: Sequence[Any]) -> tuple[Any, F]:
    run = Inline(f, xs, {}, tuple(range(len(xs))))
    run.differentiate()

    @told_of_arguments
    def pullback(cts: Any) -> tuple[Any, ...]:
        given = cotangents(cts, run.sub.out_tree, [o.type.dtype.is_differentiable for o in run.outs])
        here = current() or run.trace
        b = builder_of(here)
        grads = run.gradients(b, [fitted(b, c, o, here, "a cotangent") if o.type.dtype.is_differentiable else None for c, o in zip(given, run.outs)])
        return tuple(run.trees_of([run.wrapped(g) for g in grads]))

    return tree_unflatten(run.sub.out_tree, [run.wrapped(o) for o in run.outs]), pullback


def traced_jvp(f: F, xs: Sequence[Any], ts: Sequence[Any]) -> tuple[Any, Any]:
    run = Inline(f, xs, {}, tuple(range(len(xs))))
    flat = match(tuple(ts), tree_flatten(tuple(xs))[1], "jvp: tangents")
    tangents: list[Any] = [None] * len(run.ins)
    at = 0
    for x, t, on in zip(run.leaves, flat, run.on):
        if is_leaf_array(x):
            if on:
                tangents[at] = fitted(run.b, t, run.ins[at], run.trace, "a tangent")
            at += 1
    outs, moved = differentiate(run.b, run.b, run.block, run.ins, tangents)
    ts_out = [(run.wrapped(run.b.zeros(o) if m is None else m) if o.type.dtype.is_differentiable else None) for o, m in zip(outs, moved)]
    return tree_unflatten(run.sub.out_tree, [run.wrapped(o) for o in outs]), tree_unflatten(run.sub.out_tree, ts_out)


def _one_hot(b: Any, i: Value, t: TensorType) -> Value:
    """The basis vector number ``i`` of a type."""
    flat = b.iota(shape=(t.size,), dim=0, dtype=int64)
    hot = b.to_dtype(b.eq(flat, b.broadcast(i, shape=(t.size,), dims=())), t.dtype)
    return _in_layout(b, b.to_shape(hot, t.shape), t.layout)


def _sweep(run: Inline, count: Any, body: Callable[[Builder, Value], list[Value]]) -> list[Value]:
    """Runs ``body`` for i = 0 .. count-1, a chunk of them at a time; results are stacked in front."""
    aside = Block()
    i = Value(TensorType((), int64))
    b = Builder(aside)
    outs = [_in_layout(b, o, None) for o in body(b, i)]
    free = free_values(aside.ops, outs, [i])
    given = [_in_layout(run.b, v, None) for v in free]
    block = Block([*(v.type for v in given), i.type])
    inner = Builder(block)
    env = {v: _in_layout(inner, a, v.type.layout) for v, a in zip([*free, i], block.args)}
    copy_ops(inner, aside.ops, env)
    block.outputs = [env[o] for o in outs]
    on = [*(False for _ in free), True]
    block = decompose_block(block)
    chunk = _chunk(run.trace, count, block)
    total = dims.floordiv(count + chunk - 1, chunk) * chunk
    numbers = run.b.iota(shape=(total,), dim=0, dtype=int64)
    if chunk == 1:
        return list(run.b.emit("scan", [*given, numbers], {"consts": len(free), "carry": 0, "length": total}, (block,)))
    found = batch_in_chunks(run.b, block, [*given, numbers], on, total, chunk)
    return [_first(run.b, v, count) for v in found]


_CHUNK = 32  # basis vectors at a time: enough for products with vectors to be products with matrices
_SMALL, _CACHED, _MOST = 1 << 10, 1 << 14, 1 << 20  # elements of the largest value: alone, where one vector fills loops anyway; for a chunk; and where products decide
_UNKNOWN = 8  # vectors at a time where their number is known at run time only: a last chunk that is not full is computed whole


def _chunk(trace: Trace, count: Any, block: Block) -> int:
    """Basis vectors at a time. Sizes of the first call decide, where there are such: what is computed does not depend on it."""
    n = trace.example(count)
    largest, made, read = _traffic(trace, block)
    if 2 * read > made:  # a matrix is read for each vector: for many at once it is read once
        most = min(_CHUNK, _MOST // largest)
    else:
        most = min(_CHUNK, _CACHED // largest) if largest <= _SMALL else 1
    most = max(most, 1)
    if n is None:
        return min(most, _UNKNOWN)
    return -(-n // -(-n // most)) if n else 1  # equal chunks, so that the last is about full


def _traffic(trace: Trace, block: Block) -> tuple[int, int, int]:
    """Of one vector: elements of the largest value, of all values, and of matrices that are multiplied with vectors."""
    moving = {block.args[-1]}
    largest, made, read = 1, 0, 0
    for op in block.ops:
        on = [o in moving for o in op.operands]
        if not any(on):
            continue
        moving.update(op.results)
        sizes = [trace.example(r.type.size) or 0 for r in op.results]
        largest, made = max([largest, *sizes]), made + sum(sizes)
        if op.name == "dot" and sum(on) == 1 and op.result.type.shape[-2 if on[0] else -1] == 1:
            read += trace.example(op.operands[1 if on[0] else 0].type.size) or 0
    return largest, made, read


def _first(b: Builder, v: Value, count: Any) -> Value:
    shape, rank = v.type.shape, len(v.type.shape)
    if shape[0] == count:
        return v
    return b.slice(v, starts=(0,) * rank, sizes=(count, *shape[1:]), steps=(1,) * rank)  # type: ignore[no-any-return]


def _in_layout(b: Builder, v: Value, layout: Any) -> Value:
    return v if v.type.layout == layout else b.relayout(v, layout=layout)


def traced_jacobian(f: F, args: Sequence[Any], kwargs: dict[str, Any], nums: tuple[int, ...], argnums: Any, reverse: bool) -> Any:
    run = Inline(f, args, kwargs, nums)
    run.differentiate(forward=not reverse)
    check_result([run.wrapped(o) for o in run.outs], f, "jacrev" if reverse else "jacfwd")
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


def _sweep_rows(run: Inline, k: int, ins: Sequence[Value]) -> list[Any]:
    out = run.outs[k]
    if not out.type.dtype.is_differentiable:
        return [None] * len(ins)

    def body(b: Builder, i: Value) -> list[Value]:
        cts = [_one_hot(b, i, out.type) if j == k else None for j in range(len(run.outs))]
        return run.gradients(b, cts)

    if out.type.size == 1:
        one = run.b.full_like(out, 1)
        found = run.gradients(run.b, [one if j == k else None for j in range(len(run.outs))])
        return [run.b.to_shape(v, (*out.type.shape, *x.type.shape)) for v, x in zip(found, ins)]
    found = _sweep(run, out.type.size, body)
    return [run.b.to_shape(v, (*out.type.shape, *x.type.shape)) for v, x in zip(found, ins)]


def _sweep_columns(run: Inline, j: int, x: Value) -> list[Any]:
    mine = [t for t in run.tangents if t is not None]

    def push(b: Builder, tangent: Value) -> list[Any]:
        env = push_linear(b, run.aside.ops, {t: tangent if n == j else None for n, t in enumerate(mine)})
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


def traced_linearize(f: F, xs: Sequence[Any]) -> tuple[Any, F]:
    run = Inline(f, xs, {}, tuple(range(len(xs))))
    run.differentiate(forward=True)

    def push(*ts: Any) -> Any:
        flat = match(tuple(ts), tree_flatten(tuple(xs))[1], "linearize: tangents")
        here = current() or run.trace
        b = builder_of(here)
        live = [t for t, on in zip(flat, run.on) if on]
        env = {t: fitted(b, v, t, here, "a tangent") for t, v in zip([t for t in run.tangents if t is not None], live)}
        copy_linear(b, run.aside, env)
        moved = [run.wrapped(b.zeros(o) if t is None else env.get(t, t)) if o.type.dtype.is_differentiable else None for o, t in zip(run.outs, run.out_tangents)]
        return tree_unflatten(run.sub.out_tree, moved)

    return tree_unflatten(run.sub.out_tree, [run.wrapped(o) for o in run.outs]), push
