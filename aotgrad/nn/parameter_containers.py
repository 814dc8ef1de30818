"""Modules made of parameters."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from aotgrad_runtime.errors import AotgradIndexError
from aotgrad_runtime.tensor import Tensor

from .module import Module
from .parameter import Parameter

__all__ = ["ParameterDict", "ParameterList"]


class _Holder(Module):
    def _put(self, name: str, value: Any) -> None:
        setattr(self, name, value if isinstance(value, Parameter) or not isinstance(value, Tensor) else Parameter(value))

    def _told(self, pairs: Iterable[tuple[Any, Any]]) -> str:
        lines = []
        for name, x in pairs:
            kind = "Parameter" if isinstance(x, Parameter) else "Tensor"
            told = f"{kind} containing: [{x.dtype} of size {'x'.join(map(str, x.shape))}]" if isinstance(x, Tensor) else f"Object of type: {type(x).__name__}"
            lines.append(f"  ({name}): {told}")
        return "\n".join(lines)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{type(self).__name__} should not be called: it has no forward; use its parameters")


class ParameterList(_Holder):
    """A list of parameters that are found: tensors become parameters.

    >>> import aotgrad as ag
    >>> [name for name, _ in ag.nn.ParameterList([ag.ones(2), ag.ones(3)]).named_parameters()]
    ['0', '1']
    """

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._size = 0
        self.extend(values or ())

    def _place(self, index: Any) -> str:
        i = operator.index(index)
        if not -self._size <= i < self._size:
            raise AotgradIndexError(f"index {i} is out of range for a ParameterList of {self._size}")
        return str(i % self._size)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Any]:
        return iter([getattr(self, str(i)) for i in range(self._size)])

    def __getitem__(self, index: Any) -> Any:
        return type(self)(list(self)[index]) if isinstance(index, slice) else getattr(self, self._place(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        self._put(self._place(index), value)

    def append(self, value: Any) -> ParameterList:
        """Adds a parameter at the end."""
        self._put(str(self._size), value)
        self._size += 1
        return self

    def extend(self, values: Iterable[Any]) -> ParameterList:
        """Adds parameters at the end."""
        for v in values:
            self.append(v)
        return self

    def extra_repr(self) -> str:
        return self._told(enumerate(self))


class ParameterDict(_Holder):
    """A dict of parameters that are found: tensors become parameters.

    >>> import aotgrad as ag
    >>> list(ag.nn.ParameterDict({"a": ag.ones(2)}).state_dict())
    ['a']
    """

    def __init__(self, parameters: Any = None) -> None:
        super().__init__()
        self._names: dict[str, None] = {}
        self.update(parameters or {})

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name) if name in self._names else self._names[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._put(name, value)
        self._names[name] = None

    def __delitem__(self, name: str) -> None:
        del self._names[name]
        delattr(self, name)

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: Any) -> bool:
        return name in self._names

    def keys(self) -> Any:
        """The names."""
        return self._names.keys()

    def values(self) -> Any:
        """The parameters."""
        return [self[n] for n in self._names]

    def items(self) -> Any:
        """Pairs of name and parameter."""
        return [(n, self[n]) for n in self._names]

    def update(self, parameters: Any) -> None:
        """Adds parameters: a mapping, or pairs of name and parameter."""
        for name, value in parameters.items() if isinstance(parameters, (Mapping, ParameterDict)) else parameters:
            self[name] = value

    def pop(self, name: str) -> Any:
        """Takes a parameter out."""
        found = self[name]
        del self[name]
        return found

    def extra_repr(self) -> str:
        return self._told(self.items())
