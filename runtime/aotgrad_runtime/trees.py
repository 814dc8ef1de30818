"""Containers of the arguments and results of a built library: their description as plain data, and the way from the caller's objects to arrays and back.

A description names kinds, keys and fields; nothing of it is run or imported. A named tuple or dataclass of a result is of the class that the program has loaded under
the name it had when the library was built, if that has the same fields, else of a class made here with that name and those fields.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import keyword
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from .errors import AotgradTypeError, AotgradValueError
from .tensor import Size

__all__ = ["Fields", "Items", "Keys", "Leaf", "Like", "Node", "Nothing", "decode", "can_be_key",
           "congruent", "kind_of", "leaves", "make_dataclass", "make_dict", "name_of_python", "nodes", "plain_init", "standing"]

DEEPEST: Final = 256
_DICTS: Final[dict[str, type]] = {k.__name__: k for k in (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)}
_ITEMS: Final[dict[str, type]] = {"tuple": tuple, "list": list, "size": Size}
FACTORIES: Final[dict[str, Any]] = {"": None, **{k.__name__: k for k in (list, dict, set, tuple, int, float, str, bool)}}


# ---- building containers ------------------------------------------------------------------------------------------------------------

def make_dict(kind: Any, factory: Any, items: Any) -> Any:
    """A dict of class ``kind`` (``factory``: of a ``defaultdict``) with these items."""
    if kind is collections.defaultdict:
        return collections.defaultdict(factory, items)
    return collections.Counter(dict(items)) if kind is collections.Counter else kind(items)


def plain_init(kind: Any) -> bool:
    """Whether a class of dicts is built from its items alone."""
    return kind.__init__ is dict.__init__ or kind in _DICTS.values()


def make_dataclass(kind: Any, values: dict[str, Any]) -> Any:
    """An object with these fields; where some are not taken by ``__init__``, all are set as they are."""
    if all(f.init for f in dataclasses.fields(kind)):
        return kind(**values)
    out = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(out, name, value)
    return out


@functools.lru_cache(maxsize=256)
def standing(kind: str, name: str, fields: tuple[str, ...]) -> Any:
    """A class of this name and these fields, where the program has not the one that was built with. Raises ``ValueError`` or ``TypeError`` for names Python refuses."""
    named: Callable[..., Any] = collections.namedtuple
    if kind == "named":
        made = named(name, fields, module=__name__)
    else:
        made = dataclasses.make_dataclass(name, [(f, Any) for f in fields], namespace={"__module__": __name__})
    made.__reduce__ = lambda self: (_again, (kind, name, fields, tuple([getattr(self, f) for f in fields])))
    return made


def _again(kind: str, name: str, fields: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    """An object of such a class from its pickle."""
    return standing(kind, name, fields)(*values)


def _loaded(kind: str, module: str, path: str, fields: tuple[str, ...]) -> Any:
    """The class of that name among those that the program has loaded; nothing is imported, and no attribute is computed."""
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = found.__dict__.get(part) if isinstance(found, (type, type(sys))) else None
    if not isinstance(found, type):
        return None
    if kind == "named":
        return found if issubclass(found, tuple) and getattr(found, "_fields", None) == fields else None
    return found if dataclasses.is_dataclass(found) and tuple([f.name for f in dataclasses.fields(found)]) == fields else None


def _listed(keys: Sequence[Any]) -> str:
    """Keys as a message lists them."""
    shown = ", ".join(map(repr, keys[:12]))
    return f"{shown}, ..." if len(keys) > 12 else shown


def kind_of(x: Any) -> str:
    """What was given, as a message says it."""
    name = "array" if isinstance(x, np.ndarray) else type(x).__name__
    return "None" if x is None else f"{'an' if name[:1] in 'aeiouAEIOU' else 'a'} {name}"


# ---- nodes --------------------------------------------------------------------------------------------------------------------------

class Node:
    """One place of a tree. ``path``: how a caller would write it (``params['w']``); ``bare``: the number of an array that is taken and given as it is, else -1."""

    __slots__ = ("bare", "path")

    def __init__(self) -> None:
        self.path, self.bare = "", -1

    @property
    def parts(self) -> Sequence[Node]:
        """What it contains."""
        return ()

    def steps(self) -> list[str]:
        """What each part adds to the path."""
        return []

    def named(self, path: str) -> Any:
        """This tree, called ``path``."""
        self.path = path
        for step, part in zip(self.steps(), self.parts):
            part.named(path + step)
        return self

    def take(self, given: Any, out: Any) -> None:
        """Sets in ``out`` each array of ``given`` by its number. Raises ``AotgradTypeError`` or ``AotgradValueError`` where ``given`` has another structure."""
        raise NotImplementedError

    def give(self, arrays: Any, args: Sequence[Any], given: Any) -> Any:
        """The object with these arrays; containers like those of ``given``, the caller's, if that is there."""
        raise NotImplementedError

    def plain(self) -> Any:
        """As JSON has it; ``decode`` reads it."""
        raise NotImplementedError

    def text(self, of: Callable[[int], str]) -> str:
        """For people; ``of`` is the text of an array."""
        raise NotImplementedError


class Leaf(Node):
    """An array. ``at``: which; ``turn``: so many leading dims go last; ``number``: given as Python's; ``ignored``: taken and not used; ``again``: it has been given."""

    __slots__ = ("again", "at", "ignored", "number", "turn")

    def __init__(self, at: int, turn: int = 0, number: bool = False, ignored: bool = False) -> None:
        super().__init__()
        self.at, self.turn, self.number, self.ignored, self.again = at, turn, number, ignored, False
        self.bare = -1 if turn or number or ignored else at

    def repeat(self) -> None:
        """Another place of the same results has the array: this one gets a copy."""
        self.again, self.bare = True, -1

    def take(self, given: Any, out: Any) -> None:
        if not self.ignored:
            out[self.at] = given

    def give(self, arrays: Any, args: Sequence[Any], given: Any) -> Any:
        x = arrays[self.at]
        if self.turn:
            return np.ascontiguousarray(np.transpose(x, (*range(self.turn, x.ndim), *range(self.turn)))) if x.ndim else x
        return x.item() if self.number else x.copy() if self.again else x

    def plain(self) -> Any:
        return "ignored" if self.ignored else ["number", self.at] if self.number else ["turned", self.at, self.turn] if self.turn else self.at

    def text(self, of: Callable[[int], str]) -> str:
        return "ignored" if self.ignored else "number" if self.number else of(self.at) if not self.turn else f"{of(self.at)}, transposed"


class Nothing(Node):
    """None."""

    __slots__ = ()

    def take(self, given: Any, out: Any) -> None:
        if given is not None:
            raise AotgradTypeError(f"argument {self.path} should be None, {kind_of(given)} was given")

    def give(self, arrays: Any, args: Sequence[Any], given: Any) -> Any:
        return None

    def plain(self) -> Any:
        return None

    def text(self, of: Callable[[int], str]) -> str:
        return "None"


class Items(Node):
    """A tuple or list."""

    __slots__ = ("kind", "items")

    def __init__(self, kind: str, items: Sequence[Node]) -> None:
        super().__init__()
        self.kind, self.items = kind, tuple(items)

    @property
    def parts(self) -> Sequence[Node]:
        return self.items

    def steps(self) -> list[str]:
        return [f"[{i}]" for i in range(len(self.items))]

    def take(self, given: Any, out: Any) -> None:
        if not isinstance(given, (tuple, list)):
            raise AotgradTypeError(f"argument {self.path} should be a {self.kind} of {len(self.items)}, {kind_of(given)} was given")
        if len(given) != len(self.items):
            lacking = f": {self.items[len(given)].path} is missing" if len(given) < len(self.items) else f": there is no {self.path}[{len(self.items)}]"
            raise AotgradValueError(f"argument {self.path} should be a {self.kind} of {len(self.items)}, one of {len(given)} was given{lacking}")
        for x, part in zip(given, self.items):
            if part.bare >= 0:
                out[part.bare] = x
            else:
                part.take(x, out)

    def give(self, arrays: Any, args: Sequence[Any], given: Any) -> Any:
        if given is None:
            return _ITEMS[self.kind]([part.give(arrays, args, None) for part in self.items])
        made = [arrays[part.bare] if part.bare >= 0 else part.give(arrays, args, x) for part, x in zip(self.items, given)]
        return tuple.__new__(type(given), made) if hasattr(given, "_fields") else made if isinstance(given, list) else tuple(made)

    def plain(self) -> Any:
        return [self.kind, [part.plain() for part in self.items]]

    def text(self, of: Callable[[int], str]) -> str:
        inner = ", ".join([part.text(of) for part in self.items])
        return f"[{inner}]" if self.kind == "list" else f"({inner}{',' if len(self.items) == 1 else ''})"


class Keys(Node):
    """A dict."""

    __slots__ = ("factory", "keys", "kind", "places", "values")

    def __init__(self, kind: str, keys: Sequence[Any], values: Sequence[Node], factory: str = "") -> None:
        super().__init__()
        self.kind, self.keys, self.values, self.factory = kind, tuple(keys), tuple(values), factory
        self.places = dict(zip(self.keys, self.values))

    @property
    def parts(self) -> Sequence[Node]:
        return self.values

    def steps(self) -> list[str]:
        return [f"[{k!r}]" for k in self.keys]

    def take(self, given: Any, out: Any) -> None:
        if type(given) is not dict and not isinstance(given, Mapping):
            raise AotgradTypeError(f"argument {self.path} should be a dict with the keys {_listed(self.keys)}, {kind_of(given)} was given")
        keys = self.keys
        if len(given) != len(keys) or type(given) is not dict and not all(k in given for k in keys):
            self._differs(given)
        at = 0
        try:
            for part in self.values:
                x = given[keys[at]]
                at += 1
                if part.bare >= 0:
                    out[part.bare] = x
                else:
                    part.take(x, out)
        except KeyError:
            self._differs(given)
            raise

    def _differs(self, given: Any) -> None:
        """Raises ``AotgradValueError`` if the keys are not those of the build."""
        if len(given) != len(self.keys) or not all(k in given for k in self.keys):
            lacking = [part.path for k, part in zip(self.keys, self.values) if k not in given]
            extra = [f"{self.path}[{k!r}]" for k in given if k not in self.keys]
            wrong = [f"{', '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} missing"] if lacking else []
            wrong += [f"there is no {', '.join(extra)}"] if extra else []
            raise AotgradValueError(f"argument {self.path} should have the keys {_listed(self.keys) or '(none)'}: {', and '.join(wrong)}")

    def give(self, arrays: Any, args: Sequence[Any], given: Any) -> Any:
        if given is None:
            items = [(k, arrays[part.bare] if part.bare >= 0 else part.give(arrays, args, None)) for k, part in zip(self.keys, self.values)]
            return make_dict(_DICTS[self.kind], FACTORIES[self.factory], items)
        parts = self.places
        made = {k: arrays[part.bare] if part.bare >= 0 else part.give(arrays, args, given[k]) for k in given for part in (parts[k],)}  # in the caller's order
        kind = type(given)
        return made if kind is dict or not isinstance(given, dict) or not plain_init(kind) else make_dict(kind, getattr(given, "default_factory", None), made)

    def plain(self) -> Any:
        return ["dict", self.kind, self.factory, [_plain_key(k) for k in self.keys], [part.plain() for part in self.values]]

    def text(self, of: Callable[[int], str]) -> str:
        return "{" + ", ".join([f"{k!r}: {part.text(of)}" for k, part in zip(self.keys, self.values)]) + "}"


class Fields(Node):
    """A named tuple (``kind`` named) or a dataclass, of the class ``path`` in ``module``."""

    __slots__ = ("cls", "kind", "module", "names", "values")

    def __init__(self, kind: str, module: str, cls: str, names: Sequence[str], values: Sequence[Node]) -> None:
        super().__init__()
        self.kind, self.module, self.cls, self.names, self.values = kind, module, cls, tuple(names), tuple(values)

    @property
    def parts(self) -> Sequence[Node]:
        return self.values

    def steps(self) -> list[str]:
        return [f".{n}" for n in self.names]

    @property
    def title(self) -> str:
        """The name of the class."""
        return self.cls.rpartition(".")[2]

    def take(self, given: Any, out: Any) -> None:
        what = "a named tuple" if self.kind == "named" else "a dataclass"
        if self.kind == "named":
            found = getattr(given, "_fields", None) if isinstance(given, tuple) else None
        else:
            found = tuple([f.name for f in dataclasses.fields(given)]) if dataclasses.is_dataclass(given) and not isinstance(given, type) else None
        if found is None:
            raise AotgradTypeError(f"argument {self.path} should be {what} with the fields {', '.join(self.names)} (such as {self.title}), {kind_of(given)} was given")
        if found != self.names:
            wrong = next((f"{self.path}.{n} is missing" for n in self.names if n not in found), f"{type(given).__name__} has {', '.join(found)}")
            raise AotgradValueError(f"argument {self.path} should be {what} with the fields {', '.join(self.names)}: {wrong}")
        for n, part in zip(self.names, self.values):
            part.take(getattr(given, n), out)

    def give(self, arrays: Any, args: Sequence[Any], given: Any) -> Any:
        if given is None:
            made = [part.give(arrays, args, None) for part in self.values]
            kind = _loaded(self.kind, self.module, self.cls, self.names) or standing(self.kind, self.title, self.names)
        else:
            made = [part.give(arrays, args, getattr(given, n)) for n, part in zip(self.names, self.values)]
            kind = type(given)
        return tuple.__new__(kind, made) if self.kind == "named" else make_dataclass(kind, dict(zip(self.names, made)))

    def plain(self) -> Any:
        return [self.kind, self.module, self.cls, list(self.names), [part.plain() for part in self.values]]

    def text(self, of: Callable[[int], str]) -> str:
        return f"{self.title}({', '.join([f'{n}={part.text(of)}' for n, part in zip(self.names, self.values)])})"


class Like(Node):
    """A tree in the containers that the caller gave for the parameter of number ``param``, which has this ``name``; ``label`` says what it is."""

    __slots__ = ("label", "name", "param", "tree")

    def __init__(self, param: int, tree: Node, label: str = "") -> None:
        super().__init__()
        self.param, self.tree, self.label, self.name = param, tree, label, ""

    @property
    def parts(self) -> Sequence[Node]:
        return (self.tree,)

    def steps(self) -> list[str]:
        return [""]

    def give(self, arrays: Any, args: Sequence[Any], given: Any) -> Any:
        return self.tree.give(arrays, args, args[self.param])

    def plain(self) -> Any:
        return ["like", self.param, self.label, self.tree.plain()]

    def text(self, of: Callable[[int], str]) -> str:
        inner = next((node for node in nodes(self.tree) if isinstance(node, Like)), None)
        within = "" if inner is None else f", {inner.text(of)} in each place"
        return f"{self.label}: as {self.name}{within}" if self.label else f"as {self.name}{within}"


def nodes(tree: Node) -> Iterator[Node]:
    """A tree and all in it, in order."""
    yield tree
    for part in tree.parts:
        yield from nodes(part)


def leaves(tree: Node) -> Iterator[Leaf]:
    """The arrays of a tree, in order."""
    return (node for node in nodes(tree) if isinstance(node, Leaf))


# ---- as plain data --------------------------------------------------------------------------------------------------------------------

def _plain_key(key: Any) -> Any:
    return [_plain_key(k) for k in key] if type(key) is tuple else key


def can_be_key(key: Any) -> bool:
    """Whether plain data can hold the key of a dict."""
    return all(map(can_be_key, key)) if type(key) is tuple else key is None or type(key) in (str, int, bool) or type(key) is float and key - key == 0


def _key(plain: Any) -> Any:
    key = tuple(map(_key, plain)) if isinstance(plain, list) else plain
    if not can_be_key(key):
        raise ValueError(f"the key {plain!r}")
    return key


def decode(plain: Any, count: int, depth: int = 0) -> Node:
    """The tree that ``Node.plain`` describes, of ``count`` arrays. Raises ``ValueError``, ``TypeError``, ``KeyError`` or ``IndexError`` for what describes none."""
    if depth > DEEPEST:
        raise ValueError("a tree without end")
    if plain is None:
        return Nothing()
    if plain == "ignored":
        return Leaf(0, ignored=True)
    if type(plain) is int or plain[0] in ("number", "turned"):
        at, turn = (plain, 0) if type(plain) is int else (plain[1], plain[2] if plain[0] == "turned" else 0)
        if type(at) is not int or not 0 <= at < count or type(turn) is not int or not 0 <= turn < 64:
            raise ValueError(f"the array {plain!r}")
        return Leaf(at, turn, type(plain) is not int and plain[0] == "number")
    if plain[0] == "like":
        if type(plain[1]) is not int or not isinstance(plain[2], str):
            raise ValueError("a parameter")
        return Like(plain[1], decode(plain[3], count, depth + 1), plain[2])
    parts = [decode(p, count, depth + 1) for p in plain[-1]]
    if plain[0] in _ITEMS:
        return Items(plain[0], parts)
    names = plain[3]
    if len(names) != len(parts):
        raise ValueError("parts without a name")
    if plain[0] == "dict":
        keys = [_key(k) for k in names]
        if plain[1] not in _DICTS or plain[2] not in FACTORIES or len(set(keys)) != len(keys):
            raise ValueError(f"a dict {plain[1]!r}")
        return Keys(plain[1], keys, parts, plain[2])
    if plain[0] not in ("named", "fields") or not all(isinstance(t, str) for t in plain[1:3]) or not all(map(name_of_python, names)):
        raise ValueError(f"a container {plain[0]!r}")
    standing(plain[0], plain[2].rpartition(".")[2], tuple(names))
    return Fields(plain[0], plain[1], plain[2], names, parts)


def name_of_python(name: Any) -> bool:
    """Whether Python takes it as a name."""
    return isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)


def congruent(tree: Node, like: Node) -> bool:
    """Whether ``tree`` has the containers of ``like``, and something in the place of each of its arrays."""
    if isinstance(like, Leaf):
        return True
    if type(tree) is not type(like) or isinstance(like, Nothing):
        return type(tree) is type(like)
    same = tree.steps() == like.steps() and len(tree.parts) == len(like.parts)
    return same and all(map(congruent, tree.parts, like.parts))
