"""Parameters and trees of a function as Python text, for NAME.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from aotgrad_runtime import trees
from aotgrad_runtime.library_call import Call
from aotgrad_runtime.trees import Fields, Items, Keys, Leaf, Like, Node

from .cabi import CFunction

__all__ = ["Classes", "parameters", "result"]


class Classes:
    """The named tuples and dataclasses that a file makes, by their kind, name and fields."""

    def __init__(self, functions: Sequence[CFunction], taken: Iterable[str]) -> None:
        self.names: dict[Any, str] = {}
        used = set(taken)
        for f in functions:
            for tree in (*(p.tree for p in f.python.parameters if p.default is not None), f.python.results):
                for node in trees.nodes(tree) if tree is not None else ():
                    if isinstance(node, Fields) and self._key(node) not in self.names:
                        name = node.title
                        while name in used:
                            name += "_"
                        used.add(name)
                        self.names[self._key(node)] = name

    @staticmethod
    def _key(node: Fields) -> Any:
        return node.kind, node.module, node.cls, node.names

    def name(self, node: Fields) -> str:
        """The class of a container."""
        return self.names[self._key(node)]

    def lines(self) -> list[str]:
        """Their definitions."""
        makers = {"named": "collections.namedtuple", "fields": "dataclasses.make_dataclass"}
        return [f"{name} = {makers[key[0]]}({key[2].rpartition('.')[2]!r}, {list(key[3])!r})".replace("'", '"') for key, name in self.names.items()]


def _number(x: Any) -> str:
    if isinstance(x, list):
        return f"[{', '.join(map(_number, x))}]"
    return repr(x) if not isinstance(x, float) or math.isfinite(x) else f'float("{x}")'


def _tree(node: Node, of: Callable[[Leaf], str], classes: Classes) -> str:
    """The expression that builds a tree; ``of`` is that of an array."""
    if isinstance(node, Leaf):
        return of(node)
    if isinstance(node, Like):
        return _tree(node.tree, of, classes)
    parts = [_tree(p, of, classes) for p in node.parts]
    if isinstance(node, Items):
        inner = ", ".join(parts)
        return f"[{inner}]" if node.kind == "list" else f"({inner}{',' if len(parts) == 1 else ''})"
    if isinstance(node, Keys):
        made = "{" + ", ".join(f"{k!r}: {p}" for k, p in zip(node.keys, parts)) + "}"
        factory = f"{node.factory or None}, " if node.kind == "defaultdict" else ""
        return made if node.kind == "dict" else f"collections.{node.kind}({factory}{made})"
    return f"{classes.name(node)}({', '.join(parts)})" if isinstance(node, Fields) else "None"


def result(f: CFunction, names: Sequence[str], classes: Classes) -> str:
    """The expression of the results, whose arrays have these names."""

    def of(leaf: Leaf) -> str:
        x, rank = names[leaf.at], f.outputs[leaf.at].type.rank
        if leaf.turn:
            return f"np.transpose({x}, {(*range(leaf.turn, rank), *range(leaf.turn))!r}).copy()"
        return f"{x}.item()" if leaf.number else f"{x}.copy()" if leaf.again else x

    return _tree(f.python.results, of, classes)


def parameters(call: Call, names: Sequence[str], classes: Classes) -> tuple[str, list[str]]:
    """The parameters of a ``def``, called by ``names``, and lines that check those the build fixed. Those that no plain value stands for are left out."""
    out: list[str] = []
    checks: list[str] = []
    kinds = [p.kind for p in call.parameters]
    optional = False
    for i, (p, name) in enumerate(zip(call.parameters, names)):
        if p.kind == "keyword" and "keyword" not in kinds[:i]:
            out.append("*")
        if p.tree is None:
            if p.value:
                value = _number(p.value[0])
                out.append(f"{name}={value}")
                checks += [f"if {name} != {value}:" if value == value and p.value[0] is not None else f"if {name} is not None:",
                           f'    raise ValueError("{p.name} was fixed when this file was made")']
                optional = True
        elif p.default is not None:
            numbers = {leaf.at: x for leaf, x in zip(trees.leaves(p.tree), p.default)}
            out.append(f"{name}={_tree(p.tree, lambda leaf: _number(numbers[leaf.at]), classes)}")  # noqa: B023
            optional = True
        else:
            out.append(f"{name}=None" if optional and p.kind != "keyword" else name)
        if p.kind == "positional" and "positional" not in kinds[i + 1:]:
            out.append("/")
    if out and out[-1] == "*":
        out.pop()
    return ", ".join(out).replace("*, /", "/"), checks
