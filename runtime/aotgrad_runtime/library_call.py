"""How Python calls a function of a built library: the parameters of the model, the trees of arguments and results, and what the flat C form has of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from . import trees
from .errors import AotgradTypeError, AotgradValueError
from .records import record
from .trees import Items, Leaf, Like, Node

__all__ = ["Call", "Parameter", "decode_call", "flat_call"]

_KINDS: Final = {
    "positional": inspect.Parameter.POSITIONAL_ONLY, "either": inspect.Parameter.POSITIONAL_OR_KEYWORD, "keyword": inspect.Parameter.KEYWORD_ONLY,
}


class _Shown:
    """Stands for a default in signatures."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


REQUIRED: Final = _Shown("<required>")


@record(frozen=True)
class Parameter:
    """A parameter of the model. ``kind``: positional, either or keyword; ``tree``: its arrays, None for one that was fixed by the build.

    ``fixed``: the value as text; ``value``: the value itself in a tuple, where plain data can hold it. ``default``: numbers (nested lists of them) for the arrays of
    ``tree``, in order, where the model has a default.
    """

    name: str
    kind: str = "either"
    tree: Node | None = None
    default: tuple[Any, ...] | None = None
    fixed: str = ""
    value: tuple[Any, ...] = ()

    def plain(self) -> dict[str, Any]:
        """As JSON has it; ``decode_call`` reads it."""
        out: dict[str, Any] = {"name": self.name, "kind": self.kind}
        if self.tree is None:
            return {**out, "fixed": self.fixed, "value": list(self.value)}
        return {**out, "tree": self.tree.plain(), **({} if self.default is None else {"default": list(self.default)})}


class Call:
    """The parameters, in the model's order, and the tree of the results of one function."""

    def __init__(self, parameters: Sequence[Parameter], results: Node) -> None:
        self.parameters, self.results = tuple(parameters), results
        self.names = [p.name for p in self.parameters]
        self._trees = [p.tree for p in self.parameters]
        self.positional = sum(p.kind != "keyword" for p in self.parameters)
        self.inputs = 0
        for p in self.parameters:
            if p.tree is not None:
                self.inputs += sum(not leaf.ignored for leaf in trees.leaves(p.tree.named(p.name)))
        for node in trees.nodes(results):
            if isinstance(node, Like):
                node.name = self.names[node.param]
        seen: set[int] = set()
        for leaf in trees.leaves(results):
            if leaf.at in seen:
                leaf.repeat()
            seen.add(leaf.at)
        # Whether the C form's arrays by position, and its results as they are, are what Python takes and gives.
        kept = [p for p in self.parameters if p.tree is not None]
        flat = all(isinstance(p.tree, Leaf) and p.tree.at == i and p.kind != "keyword" for i, p in enumerate(kept))
        outs = results.parts if isinstance(results, Items) and results.kind == "tuple" and len(results.parts) > 1 else (results,)
        same = all(isinstance(x, Leaf) and x.at == i and not (x.turn or x.number) for i, x in enumerate(outs))
        self.plainly = flat and same and list(self.parameters[:len(kept)]) == kept
        # How many arguments by position are the usual call: all that have a type and come first, where the others have defaults.
        usual = next((i for i, p in enumerate(self.parameters) if p.tree is None or p.kind == "keyword" or p.default is not None), len(self.parameters))
        self._plain = usual if all(p.tree is None or p.default is not None for p in self.parameters[usual:]) else -1
        self._defaults = [None if p.default is None or p.tree is None else _built(p.tree, p.default) for p in self.parameters]

    @property
    def paths(self) -> list[str]:
        """How a caller would write each array of the C form."""
        out = [""] * self.inputs
        for p in self.parameters:
            for leaf in trees.leaves(p.tree) if p.tree is not None else ():
                if not leaf.ignored:
                    out[leaf.at] = leaf.path
        return out

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"parameters": [p.plain() for p in self.parameters], "results": self.results.plain()}

    # ---- calling --------------------------------------------------------------------------------------------------------------------

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """What is given for each parameter. Raises ``AotgradTypeError`` for calls that the model's signature refuses, ``AotgradValueError`` for other values of fixed
        parameters."""
        count = len(args)
        if not kwargs and count == self._plain:
            return [*args, *self._defaults[count:]]
        out: list[Any] = []
        lacking: list[str] = []
        used = 0
        for i, p in enumerate(self.parameters):
            keyword = p.kind != "positional" and p.name in kwargs
            used += keyword
            if i < count and p.kind != "keyword":
                if keyword:
                    raise AotgradTypeError(f"multiple values for argument {p.name!r}")
                out.append(args[i])
            elif keyword:
                out.append(kwargs[p.name])
            else:
                if p.tree is not None and p.default is None:
                    lacking.append(p.name)
                out.append(self._defaults[i])
                continue
            if p.tree is None:
                _check_fixed(p, out[-1])
        if used < len(kwargs):
            unknown = next(k for k in kwargs if k not in self.names or self.parameters[self.names.index(k)].kind == "positional")
            raise AotgradTypeError(f"got an unexpected keyword argument {unknown!r}")
        if lacking:
            raise AotgradTypeError(f"missing {'a required argument' if len(lacking) == 1 else 'required arguments'}: {', '.join(map(repr, lacking))}")
        if count > self.positional:
            raise AotgradTypeError(f"too many positional arguments: it takes {self.positional}, {count} were given")
        return out

    def arrays(self, given: Sequence[Any]) -> list[Any]:
        """The arrays of the C form. Raises ``AotgradTypeError`` or ``AotgradValueError`` that names the place where the structure is another one."""
        out = [None] * self.inputs
        for tree, x in zip(self._trees, given):
            if tree is not None:
                tree.take(x, out)
        return out

    # ---- for people -----------------------------------------------------------------------------------------------------------------

    def text(self, name: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> str:
        """``name(x: float64[n]) -> value: float64``."""
        shown = [f"{n}: {x}" for n, x in zip([a.name for a in outputs], outputs)]
        parts = self.results.parts if isinstance(self.results, Items) and self.results.kind == "tuple" else None
        ends = [shown[x.at] if isinstance(x, Leaf) and not (x.number or x.turn) else x.text(lambda i: str(outputs[i])) for x in (parts or (self.results,))]
        end = ends[0] if parts is None else f"({', '.join(ends)}{',' if len(ends) == 1 else ''})"
        return f"{name}({self.taken(inputs)}) -> {end}"

    def taken(self, inputs: Sequence[Any]) -> str:
        """``x: float64[n], power=2``."""
        out: list[str] = []
        kinds = [p.kind for p in self.parameters]
        for i, p in enumerate(self.parameters):
            if p.kind == "keyword" and "keyword" not in kinds[:i]:
                out.append("*")
            if p.tree is None:
                out.append(f"{p.name}={p.fixed}")
            else:
                default = "" if p.default is None else f" = {_short(self._defaults[i])}"
                out.append(f"{p.name}: {p.tree.text(lambda k: str(inputs[k]))}{default}")
            if p.kind == "positional" and "positional" not in kinds[i + 1:]:
                out.append("/")
        return ", ".join(out)

    def signature(self, inputs: Sequence[Any]) -> inspect.Signature:
        """As ``inspect`` has it."""
        out: list[inspect.Parameter] = []
        optional = False
        for i, p in enumerate(self.parameters):
            default: Any = inspect.Parameter.empty
            if p.tree is None:
                default = p.value[0] if p.value else _Shown(p.fixed)
            elif p.default is not None:
                default = self._defaults[i]
            elif optional and p.kind != "keyword":
                default = REQUIRED
            optional = optional or default is not inspect.Parameter.empty
            annotation = inspect.Parameter.empty if p.tree is None else p.tree.text(lambda k: str(inputs[k]))
            out.append(inspect.Parameter(p.name, _KINDS[p.kind], default=default, annotation=annotation))
        return inspect.Signature(out)


def _built(tree: Node, values: Sequence[Any]) -> Any:
    return tree.give({leaf.at: x for leaf, x in zip(trees.leaves(tree), values)}, (), None)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _check_fixed(p: Parameter, given: Any) -> None:
    """A fixed parameter takes its own value alone."""
    same = bool(p.value) and type(given) is type(p.value[0]) and (given == p.value[0] or given != given and p.value[0] != p.value[0])
    if not same:
        raise AotgradValueError(f"argument {p.name} was fixed when the library was built ({p.name} = {p.fixed}); leave it out, or build the library with a type for it")


def flat_call(inputs: Sequence[str], outputs: int) -> Call:
    """Of a library that knows of no trees: the arrays of the C form, one by one."""
    results = [Leaf(i) for i in range(outputs)]
    return Call([Parameter(n, tree=Leaf(i)) for i, n in enumerate(inputs)], results[0] if outputs == 1 else Items("tuple", results))


def decode_call(plain: Mapping[str, Any], inputs: int, outputs: int, check: Callable[[int, Any], bool]) -> Call:
    """The call that ``Call.plain`` describes, of a C form with so many arrays; ``check(i, x)``: whether the default ``x`` fits array i.

    Raises ``ValueError``, ``TypeError``, ``KeyError`` or ``IndexError`` for what describes none.
    """
    parameters = []
    for d in plain["parameters"]:
        tree = trees.decode(d["tree"], inputs) if "tree" in d else None
        given = d.get("default")
        p = Parameter(d["name"], d["kind"], tree, None if given is None else tuple(given), d.get("fixed", ""), tuple(d.get("value", ())))
        if p.kind not in _KINDS or not trees.name_of_python(p.name) or not isinstance(p.fixed, str) or any(isinstance(v, (list, dict)) for v in p.value):
            raise ValueError(f"the parameter {p.name!r}")
        parameters.append(p)
    kinds = [list(_KINDS).index(p.kind) for p in parameters]
    names = {p.name for p in parameters}
    found = sorted(leaf.at for p in parameters if p.tree is not None for leaf in trees.leaves(p.tree) if not leaf.ignored)
    if kinds != sorted(kinds) or len(names) != len(parameters) or found != list(range(inputs)):
        raise ValueError("the parameters")
    for p in parameters:
        places = [leaf for leaf in trees.leaves(p.tree) if not leaf.ignored] if p.tree is not None else []
        if any(leaf.turn or leaf.number for leaf in places):
            raise ValueError(f"the parameter {p.name!r}")
        if p.default is not None and (len(p.default) != len(places) or not all(check(leaf.at, x) for leaf, x in zip(places, p.default))):
            raise ValueError(f"the default of {p.name!r}")
    results = trees.decode(plain["results"], outputs)
    _check_likes(results, parameters)
    return Call(parameters, results)


def _check_likes(tree: Node, parameters: Sequence[Parameter]) -> None:
    """Trees that are built in the caller's containers have those of the parameter."""
    work = [tree]
    while work:
        node = work.pop()
        work.extend(node.parts)
        if isinstance(node, Like) and not (0 <= node.param < len(parameters) and trees.congruent(node.tree, parameters[node.param].tree or Leaf(0))):
            raise ValueError("a result like a parameter")
