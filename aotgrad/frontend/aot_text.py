"""Trees of argument types as text: ``{W: f64[n, 2], layers: [f64[n], (f64, None)]}``."""

from __future__ import annotations

import ast
from typing import Any

from aotgrad_runtime.errors import AotgradValueError

__all__ = ["is_tree", "tree_of"]

_CLOSERS = {"{": "}", "[": "]", "(": ")"}


def is_tree(text: Any) -> bool:
    """Whether a text is a tree, and not one type."""
    return isinstance(text, str) and text.strip()[:1] in ("{", "[", "(")


def tree_of(name: str, text: str) -> Any:
    """The containers, with the text of a type in each place. Raises ``AotgradValueError`` that calls it ``name``."""
    reader = _Reader(text)
    try:
        out = reader.value(0)
        if reader.peek():
            raise ValueError
    except (ValueError, RecursionError):
        raise AotgradValueError(f"argument {name!r}: {text.strip()!r} is not understood after {text[:reader.at].strip()!r}; write trees as in Python, with "
                                "types in them, such as '{W: f64[n, 2], b: f64}' or '[(f64[n], f64), f64]'") from None
    return out


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def peek(self) -> str:
        """The next character that is no space; "" at the end."""
        while self.text[self.at:self.at + 1].isspace():
            self.at += 1
        return self.text[self.at:self.at + 1]

    def value(self, depth: int) -> Any:
        """A container, None, or the text of a type."""
        opener = self.peek()
        if depth > 90:
            raise ValueError
        if opener in _CLOSERS:
            self.at += 1
            return self.container(opener, depth)
        text = self.until(",}])")
        return None if text == "None" else text

    def container(self, opener: str, depth: int) -> Any:
        """What follows an opening bracket."""
        items: list[Any] = []
        keys: list[Any] = []
        comma = True
        while self.peek() != _CLOSERS[opener]:
            if not comma:
                raise ValueError
            if opener == "{":
                keys.append(_key(self.until(":")))
                self.at += 1
            items.append(self.value(depth + 1))
            comma = self.peek() == ","
            self.at += comma
        self.at += 1
        if opener == "{":
            if len(set(keys)) != len(keys):
                raise ValueError
            return dict(zip(keys, items))
        return items if opener == "[" else items[0] if len(items) == 1 and not comma else tuple(items)

    def until(self, ends: str) -> str:
        """The text before the first of ``ends`` that is in no brackets and quotes; it is not empty."""
        start, depth, quote = self.at, 0, ""
        while self.at < len(self.text):
            c = self.text[self.at]
            if depth == 0 and not quote and c in ends:
                break
            quote = ("" if c == quote else quote) if quote else c if c in "\"'" else ""
            depth += 0 if quote else (c in "[(") - (c in "])")
            self.at += 1
        found = self.text[start:self.at].strip()
        if not found or depth or quote or ends == ":" and self.at == len(self.text):
            raise ValueError
        return found


def _key(text: str) -> Any:
    """Text in quotes or without, a number, or a tuple of these."""
    if text.isidentifier() and text not in ("None", "True", "False"):
        return text
    try:
        return ast.literal_eval(text)
    except (SyntaxError, TypeError, MemoryError):
        raise ValueError from None
