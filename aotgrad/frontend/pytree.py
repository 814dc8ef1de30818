"""Nested containers of arrays: dicts, lists, tuples, named tuples and dataclasses; everything else is a leaf (None is an empty container)."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from aotgrad_runtime.errors import AotgradTypeError, AotgradValueError
from aotgrad_runtime.records import record
from aotgrad_runtime.tensor import Size
from aotgrad_runtime.trees import make_dataclass, make_dict, plain_init

from .static import static_key

__all__ = ["TreeDef", "tree_flatten", "tree_map", "tree_unflatten", "with_numbers"]


@record(frozen=True)
class TreeDef:
    """The shape of a container: hashable, so that it can key a cache. ``kind`` None is a leaf."""

    kind: Any = None
    meta: tuple[Any, ...] = ()
    children: tuple[TreeDef, ...] = ()
    exact: tuple[Any, ...] = ()  # of dicts: types and bits of keys that are not text (1, 1.0 and True are equal, but other keys)

    @property
    def leaves(self) -> int:
        """Number of leaves."""
        return 1 if self.kind is None else sum(c.leaves for c in self.children)


LEAF = TreeDef()
_NONE = TreeDef("none")
_NUMBER = TreeDef("number", (), (LEAF,))
_DEEPEST = 100


def with_numbers(tree: TreeDef, plain: Iterator[bool] | None = None) -> TreeDef:
    """The structure whose leaves, where ``plain`` has True, are given as arrays and built as Python's numbers. Without ``plain``, all are arrays."""
    if tree.kind is None:
        return _NUMBER if plain is not None and next(plain) else tree
    if plain is None and tree.kind == "number":
        return LEAF
    return dataclasses.replace(tree, children=tuple([with_numbers(c, plain) for c in tree.children]))


def tree_flatten(tree: Any) -> tuple[list[Any], TreeDef]:
    """Leaves from left to right (dicts in sorted key order where keys sort, else insertion order), and the structure.

    Raises ``AotgradValueError`` for containers that hold themselves or are nested very deep, ``AotgradTypeError`` for dicts that cannot be built again.

    >>> tree_flatten({"b": 1, "a": (2, None)})[0]
    [2, 1]
    """
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves, 0)


def _flatten(tree: Any, leaves: list[Any], depth: int) -> TreeDef:
    if tree is None:
        return _NONE
    kind = type(tree)
    if depth > _DEEPEST:
        raise AotgradValueError(f"a container is nested more than {_DEEPEST} deep, or holds itself ({kind.__name__}); pass flatter containers")
    if kind is tuple or kind is list or kind is Size and any(type(n) is not int for n in tree):  # one of numbers is a value
        return TreeDef(kind, (), tuple([_flatten(x, leaves, depth + 1) for x in tree]))
    if isinstance(tree, dict):
        return _flatten_dict(tree, kind, leaves, depth)
    if isinstance(tree, tuple) and hasattr(kind, "_fields"):
        return TreeDef(kind, ("named",), tuple([_flatten(x, leaves, depth + 1) for x in tree]))
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        names = tuple(f.name for f in dataclasses.fields(tree))
        return TreeDef(kind, ("dataclass", *names), tuple([_flatten(getattr(tree, n), leaves, depth + 1) for n in names]))
    leaves.append(tree)
    return LEAF


def _flatten_dict(tree: Any, kind: type, leaves: list[Any], depth: int) -> TreeDef:
    exact: tuple[Any, ...] = ()
    if kind is defaultdict:
        exact = (tree.default_factory,)
    elif not plain_init(kind):
        raise AotgradTypeError(f"{kind.__name__} is a dict with an __init__ of its own, which cannot be built again from its items; pass dict(...)")
    try:
        keys = list(tree) if kind is OrderedDict else sorted(tree)
    except TypeError:
        keys = list(tree)
    if any(type(k) is not str for k in keys):
        exact += tuple(static_key(k) for k in keys)
    return TreeDef(kind, tuple(keys), tuple([_flatten(tree[k], leaves, depth + 1) for k in keys]), exact)


def tree_unflatten(treedef: TreeDef, leaves: Sequence[Any]) -> Any:
    """The container of ``treedef`` with these leaves."""
    if treedef.leaves != len(leaves):
        raise AotgradValueError(f"the structure has {treedef.leaves} leaves, {len(leaves)} were given")
    return _unflatten(treedef, iter(leaves))


def _unflatten(t: TreeDef, leaves: Any) -> Any:
    if t.kind is None:
        return next(leaves)
    if t.kind == "none":
        return None
    children = [_unflatten(c, leaves) for c in t.children]
    if t.kind == "number":
        return children[0].item()
    if t.kind in (tuple, list, Size):
        return t.kind(children)
    if t.meta == ("named",) and issubclass(t.kind, tuple):
        return t.kind._make(children)
    if t.meta[:1] == ("dataclass",) and isinstance(t.kind, type) and dataclasses.is_dataclass(t.kind):
        return make_dataclass(t.kind, dict(zip(t.meta[1:], children)))
    return make_dict(t.kind, t.exact[0] if t.kind is defaultdict else None, zip(t.meta, children))


def tree_map(fn: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """``fn`` applied leaf by leaf to one or several trees of one structure."""
    leaves, treedef = tree_flatten(tree)
    others = []
    for other in rest:
        got, shape = tree_flatten(other)
        if shape != treedef:
            raise AotgradValueError("tree_map: the trees have different structures")
        others.append(got)
    return tree_unflatten(treedef, [fn(*row) for row in zip(leaves, *others)])
