"""``vmap``: a function of one example as a function of many. The function is traced once, on one example, and the program is batched."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from aotgrad.ir import Block, Builder, Func, Layout, TensorType, Value, dissolve, walk
from aotgrad.ir.hashing import structural_hash
from aotgrad.ir.transforms.batch import batch_in_chunks, batch_into, spread
from aotgrad.ir.transforms.rewrite import decompose_block
from aotgrad_runtime.arrays import DTYPES, check_kind
from aotgrad_runtime.dtypes import DType, int64
from aotgrad_runtime.errors import AotgradNotImplementedError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.records import record
from aotgrad_runtime.tensor import ArrayTensor, Tensor

from . import eager, placement
from .explained import told_of_arguments
from .leaves import F, apart, borrowed, check_callable, like_name, name_of
from .program import Program
from .pytree import TreeDef, tree_flatten, tree_unflatten
from .randoms import SHARED
from .rules import flavour
from .sizes import plain_size
from .subtrace import Sub, as_value, builder_of, is_leaf_array, traced_class
from .trace import Traced, current, unrecorded, user_loc

__all__ = ["dims_for", "leaf_names", "vmap"]

_RANDOMNESS = ("error", "different", "same")


class _NotGiven:
    def __repr__(self) -> str:
        return "<not given>"


_NOT_GIVEN: Any = _NotGiven()


@told_of_arguments
def vmap(func: F, in_dims: Any = 0, out_dims: Any = 0, randomness: str = "error", *, chunk_size: int | None = None, in_axes: Any = _NOT_GIVEN,
         out_axes: Any = _NOT_GIVEN) -> F:
    """``func`` of one example as a function of many, without a loop: the arguments have the examples along ``in_dims``, the results along ``out_dims``.

    ``in_dims`` (or ``in_axes``): one dim for all positional arguments, or a tuple with one entry per argument; an entry is a dim (negative ones count from the end), None
    for what all examples share, or a container like the argument's. Keyword arguments are shared. ``out_dims`` (``out_axes``) likewise for the results, None only for a
    result that is the same for all. ``chunk_size``: that many examples at a time, for less memory. ``randomness`` is "error", "different" or "same".

    The function is traced on one example, of the shape without the mapped dim and the same dtype: it sees traced values, and Python ``if`` on them is an error that
    says what to write. Composes with ``grad``, ``jvp``, ``hessian``, ``compile``, ``scan``, ``cond`` and itself in any nesting.

    Raises ``AotgradValueError`` (a ValueError) where sizes differ, a dim is out of range or nothing is mapped, and ``AotgradTypeError`` (a TypeError) for arguments and
    results that are no arrays.

    >>> import numpy as np, aotgrad as ag
    >>> x, w = np.arange(6.0).reshape(3, 2), np.array([1.0, 10.0])
    >>> ag.vmap(lambda x, w: (x * w).sum(), in_dims=(0, None))(x, w)
    array([10., 32., 54.])
    >>> ag.vmap(ag.grad(lambda x: (x ** 3).sum()))(x).shape
    (3, 2)
    """
    check_callable(func, "vmap")
    given = [_one_name("in_dims", in_dims, "in_axes", in_axes), _one_name("out_dims", out_dims, "out_axes", out_axes)]
    if randomness not in _RANDOMNESS:
        raise AotgradValueError(f"vmap: randomness={randomness!r}; it is one of 'error', 'different' and 'same'")
    if chunk_size is not None and (isinstance(chunk_size, bool) or not isinstance(chunk_size, (int, np.integer)) or chunk_size < 1):
        raise AotgradValueError(f"vmap: chunk_size={chunk_size!r} must be None or a whole number above 0")

    def mapped(*args: Any, **kwargs: Any) -> Any:
        return _Call(func, args, kwargs, given[0], given[1], None if chunk_size is None else int(chunk_size), randomness).run()

    return like_name(mapped, func, "vmap")


def _one_name(name: str, value: Any, other: str, instead: Any) -> Any:
    if instead is _NOT_GIVEN:
        return value
    if not (isinstance(value, int) and value == 0):
        raise AotgradTypeError(f"vmap: {name} and {other} are the same; give one of them")
    return instead


# ---- which dims ---------------------------------------------------------------------------------------------------------------------

def dims_for(given: Any, tree: TreeDef, what: str) -> list[int | None]:
    """One entry per leaf of ``tree``, from one for a whole container or from a container like it."""
    if given is None or (isinstance(given, (int, np.integer)) and not isinstance(given, bool)):
        return [None if given is None else int(given)] * tree.leaves
    parts = _parts(given, tree, what)
    return [d for part, child in zip(parts, tree.children) for d in dims_for(part, child, what)]


def _parts(given: Any, tree: TreeDef, what: str) -> list[Any]:
    if tree.kind in (None, "none"):
        raise AotgradValueError(f"{what}: an entry for one array is {given!r}; it is a whole number or None")
    if isinstance(given, dict):
        if not issubclass(tree.kind, dict) or sorted(map(repr, given)) != sorted(map(repr, tree.meta)):
            raise AotgradValueError(f"{what}: {given!r} does not have the structure of what it belongs to ({tree.kind.__name__})")
        return [given[k] for k in tree.meta]
    if not isinstance(given, (tuple, list)) or issubclass(tree.kind, dict) or len(given) != len(tree.children):
        count = f" with {len(tree.children)} part(s)"
        raise AotgradValueError(f"{what}: {given!r} does not have the structure of what it belongs to ({tree.kind.__name__}{count}); give a whole number, None, or a "
                                "container of them like it")
    return list(given)


def _in_range(d: int, rank: int, what: str) -> int:
    if not -rank <= d < rank:
        raise AotgradValueError(f"{what}: dim {d} is out of range for an array of {rank} dimension(s)")
    return d % rank


def leaf_names(f: F, tree: TreeDef) -> list[str]:
    """What to call each leaf of the positional arguments: its parameter."""
    try:
        params = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        params = []
    names = [p.name for p in params if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [f"argument {names[i] if i < len(names) else i}" for i, child in enumerate(tree.children) for _ in range(child.leaves)]


# ---- a call -------------------------------------------------------------------------------------------------------------------------

@record
class _Leaf:
    """An array argument: where it is among the leaves, what to call it, and its mapped dim."""

    index: int
    name: str
    dim: int | None


class _Call:
    """One call of a mapped function."""

    def __init__(self, f: F, args: tuple[Any, ...], kwargs: dict[str, Any], in_dims: Any, out_dims: Any, chunk: int | None, randomness: str) -> None:
        self.randomness = randomness
        self.f, self.name, self.out_dims, self.chunk = f, name_of(f), out_dims, chunk
        leaves, tree = tree_flatten(args)
        others, self.kwtree = tree_flatten(kwargs)
        self.tree, self.count, self.leaves = tree, len(leaves), [*leaves, *others]
        names = [*leaf_names(f, tree), *(["a keyword argument"] * len(others))]
        flat = dims_for(list(in_dims) if isinstance(in_dims, (tuple, list)) else in_dims, tree, f"{user_loc()}: vmap of {self.name}: in_dims")
        self.arrays = []
        for i, (x, d) in enumerate(zip(self.leaves, [*flat, *([None] * len(others))])):
            if d is not None:
                if not is_leaf_array(x) or type(x) in (int, float):
                    raise AotgradTypeError(f"{user_loc()}: vmap of {self.name}: {names[i]} is a {type(x).__name__}, which has no dim to map over; "
                                           "give None for it in in_dims")
                d = _in_range(d, len(x.shape), f"{user_loc()}: vmap of {self.name}: in_dims of {names[i]}")
            if isinstance(x, (Tensor, np.ndarray)):
                check_kind(x)
                self.arrays.append(_Leaf(i, names[i], d))
        if not any(a.dim is not None for a in self.arrays):
            raise AotgradValueError(f"{user_loc()}: vmap of {self.name}: no argument is mapped; at least one needs a dim in in_dims that is not None")
        self.on = [a.dim is not None for a in self.arrays]

    def run(self) -> Any:
        inside = current() is not None or any(isinstance(self.leaves[a.index], Traced) for a in self.arrays)
        return self._traced() if inside else self._eager()

    def _sub(self, types: Sequence[TensorType], hidden: bool) -> Sub:
        """The function on one example."""
        def fn(*flat: Any) -> Any:
            full = list(self.leaves)
            trace: Any = current()
            if self.randomness == "different":
                *flat, trace.draws = flat  # type: ignore[assignment]
            elif self.randomness == "error":
                trace.draws = SHARED
            for a, x in zip(self.arrays, flat):
                full[a.index] = x
            before = [x._value for x in flat]
            out = self.f(*tree_unflatten(self.tree, full[:self.count]), **tree_unflatten(self.kwtree, full[self.count:]))
            for a, x, v in zip(self.arrays, flat, before):
                if x._value is not v and not isinstance(x, ArrayTensor):
                    raise AotgradNotImplementedError(f"{user_loc()}: vmap of {self.name}: {a.name} is written in place, and the caller's tensor would not see it; "
                                                     "work on a copy (x.clone()) and return it")
            return out

        cls = traced_class(self.leaves)
        types = [*types, TensorType((), int64)] if self.randomness == "different" else types
        places = [placement.without(placement.placed(x := self.leaves[a.index]), x.shape, a.dim) for a in self.arrays]
        return Sub(self.name, fn, tree_flatten(tuple(range(len(types))))[1], types, cls, hidden=hidden, places=[*places, None])

    def _eager(self) -> Any:
        given = [self._concrete(self.leaves[a.index]) for a in self.arrays]
        shapes = [tuple(x.shape) for x in given]
        size = self._common([(a, s[a.dim]) for a, s in zip(self.arrays, shapes) if a.dim is not None])
        dtypes = [x._dtype if isinstance(x, Tensor) else DTYPES[x.dtype] for x in given]
        sub = self._sub([TensorType(_without(s, a.dim), d) for a, s, d in zip(self.arrays, shapes, dtypes)], hidden=True)
        captured = [self._concrete(obj) for obj, _ in sub.trace.captured.values()]
        if self.randomness == "different":
            given.append(np.arange(size))
            shapes, dtypes = [*shapes, (size,)], [*dtypes, int64]
        block = Block([*(TensorType(s, d) for s, d in zip(shapes, dtypes)), *(a.type for a in sub.block.args[len(given):])])
        block.outputs = self._batched(Builder(block), sub, block.args, size)
        dissolve(sub.trace.block, sub.block)
        program = _program(block)
        everything = [*given, *captured]
        if any(isinstance(x, Tensor) for x in everything):
            return tree_unflatten(sub.out_tree, eager.apply(program, everything, flavour(everything)))
        outs = apart(program.run(everything), everything)
        return tree_unflatten(sub.out_tree, [x[()] if x.ndim == 0 else x if x.flags.writeable else x.copy() for x in outs])

    @staticmethod
    def _concrete(x: Any) -> Any:
        return x if isinstance(x, Tensor) else borrowed(x)

    def _common(self, sizes: list[tuple[_Leaf, Any]]) -> Any:
        first, size = sizes[0]
        for leaf, n in sizes[1:]:
            if n != size:
                raise AotgradValueError(f"{user_loc()}: vmap of {self.name}: {first.name} has {size} examples along dim {first.dim}, {leaf.name} has {n} along dim "
                                        f"{leaf.dim}; mapped sizes must be equal")
        return size

    def _traced(self) -> Any:
        trace = current()
        if trace is None:
            raise AotgradTypeError(f"{user_loc()}: a traced value is used outside the call that made it")
        b = builder_of(trace)
        values = [b.refresh(as_value(self.leaves[a.index], trace)) for a in self.arrays]
        mapped = [(a, v.type.shape[a.dim]) for a, v in zip(self.arrays, values) if a.dim is not None]
        known = [(a, n) for a, n in ((a, trace.example(d)) for a, d in mapped) if n is not None]
        if len(known) > 1:
            self._common(known)
        for a, n in mapped[1:]:
            b.equate(mapped[0][1], n, f"vmap: {mapped[0][0].name} and {a.name}: the mapped dims")
        values = [b.refresh(v) for v in values]
        sub = self._sub([TensorType(_without(v.type.shape, a.dim), v.type.dtype) for a, v in zip(self.arrays, values)], hidden=True)
        if self.randomness == "different":
            values.append(b.iota(shape=(plain_size(mapped[0][1]),), dim=0, dtype=int64))
        ins = [b.refresh(v) for v in (*values, *sub.lifted_values())]
        outs = self._batched(b, sub, ins, trace.canonical(plain_size(mapped[0][1])))
        return tree_unflatten(sub.out_tree, [sub.cls._of(trace, unrecorded(b, v)) for v in outs])

    def _batched(self, b: Builder, sub: Sub, ins: Sequence[Value], size: Any) -> list[Value]:
        """The results, with their dims where they are wanted."""
        own = [*self.on, True] if self.randomness == "different" else self.on
        on = [*own, *(False for _ in ins[len(own):])]
        given = [_front(b, x, a.dim) for a, x in zip(self.arrays, ins)] + list(ins[len(self.arrays):])
        block = decompose_block(sub.block)
        outs, flags = batch_into(b, block, given, on, size) if self.chunk is None else self._chunked(b, block, given, on, size)
        dissolve(block)
        wanted = dims_for(self.out_dims, sub.out_tree, f"{user_loc()}: vmap of {self.name}: out_dims")
        return [self._delivered(b, v, k, size, d) for v, k, d in zip(outs, flags, wanted)]

    def _chunked(self, b: Builder, block: Block, ins: Sequence[Value], on: Sequence[bool], size: Any) -> tuple[list[Value], list[bool]]:
        if isinstance(size, int) and size <= (self.chunk or 0):
            return batch_into(b, block, ins, on, size)
        outs = batch_in_chunks(b, block, ins, on, size, self.chunk or 1)
        return outs, [True] * len(outs)

    def _delivered(self, b: Builder, v: Value, on: bool, size: Any, d: int | None) -> Value:
        if d is None:
            if on:
                raise AotgradValueError(f"{user_loc()}: vmap of {self.name}: out_dims has None for a result that differs between examples; give the dim it shall have")
            return v
        v = spread(b, v, on, size)
        rank = len(v.type.shape)
        at = _in_range(d, rank, f"{user_loc()}: vmap of {self.name}: out_dims")
        return b.to_perm(v, (*range(1, at + 1), 0, *range(at + 1, rank)))


_programs: dict[str, Program] = {}
_MOST = 256
_PLAIN = (str, int, float, type(None), DType, TensorType, Layout)


def _program(block: Block) -> Program:
    """The program of a call: that of an earlier one that did the same at the same lines, whose plan and kernels are there. Objects of Python are of one call."""
    func = Func("vmap", block)
    if not all(_is_plain(v) for op in walk(block) for v in op.attrs.values()):
        return Program(func, "VmapBackward0")
    key = structural_hash(func, *(f"{op.loc} {op.loc.what}" if op.loc is not None else "" for op in walk(block)))
    found = _programs.get(key)
    if found is not None:
        dissolve(block)
        return found
    if len(_programs) >= _MOST:
        _programs.clear()
    return _programs.setdefault(key, Program(func, "VmapBackward0"))


def _is_plain(v: Any) -> bool:
    return all(map(_is_plain, v)) if isinstance(v, tuple) else isinstance(v, _PLAIN)


def _without(shape: Sequence[Any], d: int | None) -> tuple[Any, ...]:
    return tuple(n for i, n in enumerate(shape) if i != d)


def _front(b: Builder, x: Value, d: int | None) -> Value:
    if d is None:
        return b.placed(x, None)
    rank = len(x.type.shape)
    return b.to_perm(b.placed(x, None), (d, *(i for i in range(rank) if i != d)))
