"""Modules made of modules."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from aotgrad_runtime.errors import AotgradIndexError, AotgradTypeError

from .module import Module

__all__ = ["Identity", "ModuleDict", "ModuleList", "Sequential"]


class Identity(Module):
    """Gives what it is given. Arguments of the constructor are ignored."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Any) -> Any:
        """``input``."""
        return input


class _Indexed(Module):
    """Modules under the names 0, 1, 2, ..."""

    def _place(self, index: Any) -> int:
        i, n = operator.index(index), len(self)
        if not -n <= i < n:
            raise AotgradIndexError(f"index {i} is out of range for {type(self).__name__} of {n} modules")
        return i % n

    def _renumber(self, modules: Iterable[Any]) -> None:
        made = list(modules)
        self._modules.clear()
        for i, m in enumerate(made):
            self.add_module(str(i), m)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())

    def __getitem__(self, index: Any) -> Any:
        found = list(self._modules.values())
        return self._part(index) if isinstance(index, slice) else found[self._place(index)]

    def __setitem__(self, index: Any, module: Any) -> None:
        self._modules[list(self._modules)[self._place(index)]] = module

    def __delitem__(self, index: Any) -> None:
        found = list(self._modules.values())
        del found[index if isinstance(index, slice) else self._place(index)]
        self._renumber(found)

    def _part(self, index: slice) -> Any:
        return type(self)(dict(list(self._modules.items())[index]) if isinstance(self, Sequential) else list(self._modules.values())[index])  # type: ignore[call-arg]

    def append(self, module: Any) -> Any:
        """Adds a module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def insert(self, index: int, module: Any) -> Any:
        """Adds a module before ``index``."""
        found = list(self._modules.values())
        found.insert(index, module)
        self._renumber(found)
        return self

    def extend(self, modules: Iterable[Any]) -> Any:
        """Adds modules at the end."""
        for m in modules:
            self.append(m)
        return self

    def pop(self, index: Any) -> Any:
        """Takes a module out."""
        found = self[index]
        del self[index]
        return found


class Sequential(_Indexed):
    """Modules one after the other: ``Sequential(a, b)``, or a dict of them for names of your own.

    >>> import aotgrad as ag
    >>> ag.nn.Sequential(ag.nn.Linear(2, 3), ag.nn.ReLU())
    Sequential(
      (0): Linear(in_features=2, out_features=3, bias=True)
      (1): ReLU()
    )
    """

    def __init__(self, *args: Any) -> None:
        super().__init__()
        named = args[0] if len(args) == 1 and isinstance(args[0], Mapping) else {str(i): m for i, m in enumerate(args)}
        for name, module in named.items():
            self.add_module(name, module)

    def forward(self, input: Any) -> Any:
        """The last module of the one before ... of the first of ``input``."""
        for module in self._modules.values():
            input = module(input)
        return input


class ModuleList(_Indexed):
    """A list of modules whose parameters are found."""

    def __init__(self, modules: Iterable[Any] | None = None) -> None:
        super().__init__()
        self.extend(modules or ())

    def _parts(self) -> Iterable[tuple[str, str]]:
        """Those that print alike, one after the other, are printed once."""
        for text, run in itertools.groupby(enumerate(map(repr, self)), lambda part: part[1]):
            (first, _), *rest = run
            yield (f"{first}-{rest[-1][0]}", f"{len(rest) + 1} x {text}") if rest else (str(first), text)


class ModuleDict(Module):
    """A dict of modules whose parameters are found."""

    def __init__(self, modules: Any = None) -> None:
        super().__init__()
        if modules is not None:
            self.update(modules)

    def update(self, modules: Any) -> None:
        """Adds modules: a mapping, or pairs of name and module."""
        if not isinstance(modules, (Mapping, Iterable)):
            raise AotgradTypeError(f"ModuleDict.update should be called with an iterable of key/value pairs, but got {type(modules).__name__}")
        for name, module in modules.items() if isinstance(modules, (Mapping, ModuleDict)) else modules:
            self[name] = module

    def __getitem__(self, name: str) -> Any:
        return self._modules[name]

    def __setitem__(self, name: str, module: Any) -> None:
        self.add_module(name, module)

    def __delitem__(self, name: str) -> None:
        del self._modules[name]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, name: Any) -> bool:
        return name in self._modules

    def keys(self) -> Any:
        """The names."""
        return self._modules.keys()

    def values(self) -> Any:
        """The modules."""
        return self._modules.values()

    def items(self) -> Any:
        """Pairs of name and module."""
        return self._modules.items()

    def pop(self, name: str) -> Any:
        """Takes a module out."""
        return self._modules.pop(name)
