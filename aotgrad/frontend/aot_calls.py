"""How Python calls the functions of a library: the model's parameters and the trees of its arguments, results and derivatives, over the flat arrays of the C form."""

from __future__ import annotations

import collections
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from aotgrad.ir import TensorType, dims
from aotgrad_runtime import trees
from aotgrad_runtime.errors import AotgradError, AotgradTypeError
from aotgrad_runtime.library import Array, fits
from aotgrad_runtime.library_call import Call, Parameter
from aotgrad_runtime.tensor import Size
from aotgrad_runtime.trees import Fields, Items, Keys, Leaf, Like, Node, Nothing

from .pytree import TreeDef

__all__ = ["node_of", "parameters", "tangents", "with_gradients", "with_hessians", "with_tangents"]

Chosen = Sequence[int]
"""Leaves of the arguments, by number, in the order of their derivatives."""


# ---- trees as plain data --------------------------------------------------------------------------------------------------------------

def node_of(tree: TreeDef, numbers: Iterator[int], what: str, result: bool = False) -> Node:
    """The structure with numbered arrays, called ``what``. Raises ``AotgradTypeError`` for containers that a library cannot describe."""
    return _node(tree, numbers, what, result).named(what)  # type: ignore[no-any-return]


def _node(tree: TreeDef, numbers: Iterator[int], what: str, result: bool) -> Node:
    kind = tree.kind
    if kind is None:
        return Leaf(next(numbers))
    if kind == "none":
        return Nothing()
    if kind == "number":
        return Leaf(next(numbers), number=True)
    parts = [_node(c, numbers, what, result) for c in tree.children]
    if kind in (tuple, list, Size):
        return Items("size" if kind is Size else kind.__name__, parts)
    if issubclass(kind, dict):
        return _keys(tree, parts, what, result)
    form, names = ("named", kind._fields) if issubclass(kind, tuple) else ("fields", tree.meta[1:])
    try:
        trees.standing(form, kind.__name__, tuple(names))
    except (TypeError, ValueError) as error:
        raise AotgradTypeError(f"{what}: a library cannot describe {kind.__name__} ({error}); use a dict or tuple in its place") from None
    return Fields(form, kind.__module__, kind.__qualname__, names, parts)


def _keys(tree: TreeDef, parts: list[Node], what: str, result: bool) -> Node:
    bad = next((k for k in tree.meta if not trees.can_be_key(k)), None)
    if bad is not None:
        raise AotgradTypeError(f"{what}: {bad!r} ({type(bad).__name__}) is a key of a dict, which a library cannot describe; use text, numbers, None or tuples of these")
    kind, factory = tree.kind, tree.exact[0] if tree.kind is collections.defaultdict else None
    name = kind.__name__ if kind in (dict, collections.OrderedDict, collections.defaultdict, collections.Counter) else "dict"
    found = next((n for n, f in trees.FACTORIES.items() if f is factory), None)
    if result and name == "dict" and kind is not dict:
        raise AotgradTypeError(f"{what}: {kind.__name__} is a class of dicts that a library cannot make; return dict(...)")
    if result and found is None:
        raise AotgradTypeError(f"{what}: a library cannot make a defaultdict of {factory!r}; return dict(...)")
    return Keys(name, tree.meta, parts, found or "")


def _mapped(node: Node, fn: Callable[[Leaf], Node]) -> Node:
    """The same containers with ``fn(leaf)`` in the place of each leaf."""
    if isinstance(node, Leaf):
        return fn(node)
    parts = [_mapped(p, fn) for p in node.parts]
    if isinstance(node, Items):
        return Items(node.kind, parts)
    if isinstance(node, Keys):
        return Keys(node.kind, node.keys, parts, node.factory)
    return Fields(node.kind, node.module, node.cls, node.names, parts) if isinstance(node, Fields) else Nothing()


# ---- parameters -------------------------------------------------------------------------------------------------------------------------

def parameters(f: Callable[..., Any], args: Sequence[tuple[str, Node]], leaves: Sequence[tuple[str, TensorType]], fixed: dict[str, str]) -> list[Parameter]:
    """The parameters of ``f`` in its order: ``args`` are those that have types; ``fixed``, with their values as text, are those that keep their defaults."""
    rest = dict(args)
    try:
        found = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        found = []
    if not found or any(p.kind is p.VAR_POSITIONAL for p in found):
        return [Parameter(n, tree=tree) for n, tree in args]
    out = []
    for p in found:
        kind = "positional" if p.kind is p.POSITIONAL_ONLY else "either" if p.kind is p.POSITIONAL_OR_KEYWORD else "keyword"
        if p.kind is p.VAR_KEYWORD:
            out += [Parameter(n, "keyword", tree) for n, tree in rest.items() if n not in {q.name for q in found}]
        elif p.name in rest:
            tree = rest[p.name]
            out.append(Parameter(p.name, kind, tree, None if p.default is p.empty else _default(tree, p.default, leaves)))
        elif p.name in fixed:
            plain = p.default is None or type(p.default) in (bool, int, float, str)
            out.append(Parameter(p.name, kind, fixed=fixed[p.name], value=(p.default,) if plain else ()))
    return out


def _default(tree: Node, value: Any, leaves: Sequence[tuple[str, TensorType]]) -> tuple[Any, ...] | None:
    """The model's default as numbers; None where it is of another type than the argument, and callers have to give one."""
    found: dict[int, Any] = {}
    try:
        tree.take(value, found)
        numbers = [(i, np.asarray(x).tolist()) for i, x in found.items()]
    except (AotgradError, TypeError, ValueError):
        return None
    return tuple([x for _, x in numbers]) if all(fits(_array(*leaves[i]), x) for i, x in numbers) else None


def _array(name: str, t: TensorType) -> Array:
    return Array(name, t.dtype, tuple([d if isinstance(d, int) else dims.to_text(d) for d in t.shape]), t.order if t.layout else None)


# ---- derivatives ------------------------------------------------------------------------------------------------------------------------

class Wanted:
    """What a derivative is for: an argument with its tree and place among the parameters, or one leaf of it."""

    def __init__(self, name: str, tree: Node, param: int) -> None:
        self.name, self.tree, self.param = name, tree, param

    def filled(self, fn: Callable[[int], Node | None], label: str = "") -> Node:
        """``fn`` of each leaf (None: it has none), in the containers that callers give."""
        made = _mapped(self.tree, lambda leaf: fn(leaf.at) or Nothing())
        return made if isinstance(self.tree, Leaf) else Like(self.param, made, label)


def _spread(results: Node) -> list[Node]:
    """Results as parts of a longer tuple."""
    return list(results.items) if isinstance(results, Items) and results.kind == "tuple" else [results]


def with_gradients(results: Node, count: int, wanted: Sequence[Wanted], chosen: Chosen) -> Node:
    """The ``count`` results, then a gradient for each of ``wanted``."""
    return Items("tuple", [*_spread(results), *_gradients(count, wanted, chosen)])


def _gradients(count: int, wanted: Sequence[Wanted], chosen: Chosen) -> list[Node]:
    place = {i: count + k for k, i in enumerate(chosen)}
    return [w.filled(lambda i: Leaf(place[i]) if i in place else None, f"grad_{w.name}") for w in wanted]


def with_hessians(results: Node, count: int, wanted: Sequence[Wanted], chosen: Chosen, ranks: Sequence[int]) -> Node:
    """The results, gradients, and for each pair of ``wanted`` a tree of trees of second derivatives; what was computed once is given in both orders."""
    place = {i: k for k, i in enumerate(chosen)}
    first = count + len(chosen)
    pairs = {(k, m): first + n for n, (k, m) in enumerate((k, m) for k in range(len(chosen)) for m in range(k, len(chosen)))}

    def block(i: int, j: int) -> Node | None:
        if i not in place or j not in place:
            return None
        k, m = place[i], place[j]
        return Leaf(pairs[k, m]) if k <= m else Leaf(pairs[m, k], ranks[j] if ranks[i] else 0)

    out = [*_spread(results), *_gradients(count, wanted, chosen)]
    for n, a in enumerate(wanted):
        for b in wanted[n:]:
            label = f"hess_{a.name}" if a is b else f"hess_{a.name}_{b.name}"
            inner = "" if not isinstance(a.tree, Leaf) else label
            out.append(a.filled(lambda i: b.filled(lambda j: block(i, j), inner) if i in place else None, label))  # noqa: B023
    return Items("tuple", out)


def tangents(given: Sequence[Parameter], count: int, wanted: Sequence[Wanted], chosen: Chosen) -> list[Parameter]:
    """The parameters with one more for each of ``wanted``: its tangent, whose leaves that have none are taken and ignored. A leaf is in the first that names it."""
    left = {i: count + k for k, i in enumerate(chosen)}
    out = list(given)
    kind = "keyword" if any(p.kind == "keyword" for p in given) else "either"
    for w in wanted:
        own = [leaf.at for leaf in trees.leaves(w.tree) if leaf.at in left]
        place = {i: left.pop(i) for i in own}
        name = f"{w.name}_t"
        while name in {p.name for p in out}:
            name += "_"
        if own:
            out.append(Parameter(name, kind, _mapped(w.tree, lambda leaf: Leaf(place[leaf.at]) if leaf.at in place else Leaf(0, ignored=True))))  # noqa: B023
    return out


def with_tangents(results: Node, types: Sequence[TensorType]) -> Node:
    """The results, then the tangent of each that has one."""
    place: dict[int, int] = {}
    for i, t in enumerate(types):
        if t.dtype.is_differentiable:
            place[i] = len(types) + len(place)
    out = _spread(results)
    moving = [r for r in out if any(leaf.at in place for leaf in trees.leaves(r))]
    return Items("tuple", [*out, *(_mapped(r, lambda leaf: Leaf(place[leaf.at]) if leaf.at in place else Nothing()) for r in moving)])


def call(given: Sequence[Parameter], results: Node) -> Call:
    """Trees that are each function's own: a call keeps in them how its parameters are written."""
    return Call([Parameter(p.name, p.kind, None if p.tree is None else _copy(p.tree), p.default, p.fixed, p.value) for p in given], results)


def _copy(tree: Node) -> Node:
    return _mapped(tree, lambda leaf: Leaf(leaf.at, leaf.turn, leaf.number, leaf.ignored))
