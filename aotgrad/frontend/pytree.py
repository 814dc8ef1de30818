"""Nested containers of arrays: dicts, lists, tuples, named tuples and dataclasses; everything else is a leaf (None is an empty container)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from aotgrad_runtime.errors import AotgradValueError

__all__ = ["TreeDef", "tree_flatten", "tree_map", "tree_unflatten"]


@dataclasses.dataclass(frozen=True)
class TreeDef:
    """The shape of a container: hashable, so that it can key a cache. ``kind`` None is a leaf."""

    kind: Any = None
    meta: tuple[Any, ...] = ()
    children: tuple[TreeDef, ...] = ()

    @property
    def leaves(self) -> int:
        """Number of leaves."""
        return 1 if self.kind is None else sum(c.leaves for c in self.children)


LEAF = TreeDef()
_NONE = TreeDef("none")


def tree_flatten(tree: Any) -> tuple[list[Any], TreeDef]:
    """Leaves from left to right (dicts in sorted key order where keys sort, else insertion order), and the structure.

    >>> tree_flatten({"b": 1, "a": (2, None)})[0]
    [2, 1]
    """
    leaves: list[Any] = []
    return leaves, _flatten(tree, leaves)


def _flatten(tree: Any, leaves: list[Any]) -> TreeDef:
    if tree is None:
        return _NONE
    kind = type(tree)
    if kind is tuple or kind is list:
        return TreeDef(kind, (), tuple(_flatten(x, leaves) for x in tree))
    if isinstance(tree, dict):
        try:
            keys = sorted(tree)
        except TypeError:
            keys = list(tree)
        return TreeDef(kind, tuple(keys), tuple(_flatten(tree[k], leaves) for k in keys))
    if isinstance(tree, tuple) and hasattr(kind, "_fields"):
        return TreeDef(kind, ("named",), tuple(_flatten(x, leaves) for x in tree))
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        names = tuple(f.name for f in dataclasses.fields(tree))
        return TreeDef(kind, ("dataclass", *names), tuple(_flatten(getattr(tree, n), leaves) for n in names))
    leaves.append(tree)
    return LEAF


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
    if t.kind in (tuple, list):
        return t.kind(children)
    if t.meta == ("named",) and issubclass(t.kind, tuple):
        return t.kind(*children)
    if t.meta[:1] == ("dataclass",) and isinstance(t.kind, type) and dataclasses.is_dataclass(t.kind):
        return t.kind(**dict(zip(t.meta[1:], children)))
    return t.kind(zip(t.meta, children)) if t.kind is not dict else dict(zip(t.meta, children))


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
