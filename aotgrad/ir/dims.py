"""Sizes: integer polynomials over named sizes and the atoms floordiv, mod, min, max.

A ``Dim`` is canonical: equal polynomials are equal objects by ``==`` and hash, whatever way they were built. A size that is a
plain number is always an ``int``, never a ``Dim``, so that ``isinstance(d, int)`` means static.

>>> n, m = symbol("n"), symbol("m")
>>> (n + 1) * (n - 1) == n * n - 1
True
>>> (2 * n + 4) // 2, (n * m).substitute({"n": 3, "m": 4})
(Dim(n + 2), 12)
"""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Union

from aotgrad_runtime.errors import AotgradTypeError, AotgradValueError

__all__ = ["Dim", "DimLike", "floordiv", "maximum", "minimum", "mod", "parse", "product", "specialising", "substitute", "symbol", "symbols_of", "to_text"]

DimLike = Union[int, "Dim"]
Atom = tuple[object, ...]  # ("sym", name) | (kind, a, b)
Mono = tuple[tuple[Atom, int], ...]


class _Specialise(threading.local):
    """While tracing: the function that turns a Dim into the example's number and records a guard."""

    resolver: Callable[[Dim], int] | None = None


_specialise = _Specialise()


class specialising:
    """Context in which ``int(dim)`` and comparisons call ``resolver`` (which records a guard) instead of raising."""

    def __init__(self, resolver: Callable[[Dim], int] | None) -> None:
        self.resolver = resolver

    def __enter__(self) -> None:
        self.saved = _specialise.resolver
        _specialise.resolver = self.resolver

    def __exit__(self, *exc: object) -> None:
        _specialise.resolver = self.saved


class Dim:
    """A size that is not known until run time. Immutable; build with ``symbol`` and arithmetic."""

    __slots__ = ("_hash", "terms")
    terms: tuple[tuple[Mono, int], ...]

    def __init__(self, terms: tuple[tuple[Mono, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and self.terms == other.terms

    def __add__(self, other: object) -> DimLike:
        return NotImplemented if not isinstance(other, (int, Dim)) else _make([*_terms(self), *_terms(other)])

    __radd__ = __add__

    def __neg__(self) -> DimLike:
        return _make([(m, -c) for m, c in self.terms])

    def __sub__(self, other: object) -> DimLike:
        return NotImplemented if not isinstance(other, (int, Dim)) else _make([*_terms(self), *((m, -c) for m, c in _terms(other))])

    def __rsub__(self, other: object) -> DimLike:
        return NotImplemented if not isinstance(other, int) else _make([*_terms(other), *((m, -c) for m, c in self.terms)])

    def __mul__(self, other: object) -> DimLike:
        if not isinstance(other, (int, Dim)):
            return NotImplemented
        return _make([(_mul_mono(a, b), x * y) for a, x in self.terms for b, y in _terms(other)])

    __rmul__ = __mul__

    def __floordiv__(self, other: object) -> DimLike:
        return NotImplemented if not isinstance(other, (int, Dim)) else floordiv(self, other)

    def __rfloordiv__(self, other: object) -> DimLike:
        return NotImplemented if not isinstance(other, int) else floordiv(other, self)

    def __mod__(self, other: object) -> DimLike:
        return NotImplemented if not isinstance(other, (int, Dim)) else mod(self, other)

    def __rmod__(self, other: object) -> DimLike:
        return NotImplemented if not isinstance(other, int) else mod(other, self)

    def _value(self, what: str) -> int:
        if _specialise.resolver is None:
            raise AotgradTypeError(f"size {self} is symbolic here: {what} needs a number. Use the size in arithmetic and shapes, or fix it with an integer in the argument's type")
        return _specialise.resolver(self)

    def __int__(self) -> int:
        return self._value("int()")

    def __index__(self) -> int:
        return self._value("an index")

    def __bool__(self) -> bool:
        return self._value("bool()") != 0

    def __float__(self) -> float:
        return float(self._value("float()"))

    def __lt__(self, other: DimLike) -> bool:
        return _less(self, other, strict=True)

    def __le__(self, other: DimLike) -> bool:
        return _less(self, other, strict=False)

    def __gt__(self, other: DimLike) -> bool:
        return _less(other, self, strict=True)

    def __ge__(self, other: DimLike) -> bool:
        return _less(other, self, strict=False)

    def substitute(self, env: Mapping[str, DimLike]) -> DimLike:
        """The value with each symbol in ``env`` replaced; symbols not in it stay."""
        total: DimLike = 0
        for mono, coeff in self.terms:
            part: DimLike = coeff
            for atom, power in mono:
                base = _substitute_atom(atom, env)
                for _ in range(power):
                    part = part * base
            total = total + part
        return total

    def symbols(self) -> Iterable[str]:
        """Names of the symbols, in order of first appearance in the text form."""
        seen: dict[str, None] = {}
        for mono, _ in self.terms:
            for atom, _p in mono:
                if atom[0] == "sym":
                    seen[str(atom[1])] = None
                else:
                    for side in atom[1:]:
                        seen.update(dict.fromkeys(symbols_of(side)))  # type: ignore[arg-type]
        return seen

    def as_symbol(self) -> str | None:
        """The name, if this is one bare symbol."""
        if len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1 and self.terms[0][0][0][1] == 1 and self.terms[0][0][0][0][0] == "sym":
            return str(self.terms[0][0][0][0][1])
        return None

    def __str__(self) -> str:
        return to_text(self)

    def __repr__(self) -> str:
        return f"Dim({to_text(self)})"

    def __reduce__(self) -> tuple[object, ...]:
        return (parse, (to_text(self),))


def symbol(name: str) -> Dim:
    """The size called ``name`` (a Python identifier); sizes are never negative."""
    if not name.isidentifier():
        raise AotgradValueError(f"size name {name!r} is not an identifier")
    return Dim(((((("sym", name), 1),), 1),))


def _terms(x: DimLike) -> tuple[tuple[Mono, int], ...]:
    return x.terms if isinstance(x, Dim) else (((), int(x)),)


def _atom_key(atom: Atom) -> tuple[object, ...]:
    return (atom[0] != "sym", str(atom[0]), *(to_text(a) if isinstance(a, (Dim, int)) else str(a) for a in atom[1:]))


def _mono_key(mono: Mono) -> tuple[object, ...]:
    return (-sum(p for _, p in mono), tuple((_atom_key(a), -p) for a, p in mono))


def _mul_mono(a: Mono, b: Mono) -> Mono:
    powers: dict[Atom, int] = dict(a)
    for atom, p in b:
        powers[atom] = powers.get(atom, 0) + p
    return tuple(sorted(powers.items(), key=lambda t: _atom_key(t[0])))


def _make(terms: Iterable[tuple[Mono, int]]) -> DimLike:
    total: dict[Mono, int] = {}
    for mono, c in terms:
        total[mono] = total.get(mono, 0) + c
    kept = {m: c for m, c in total.items() if c}
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    return Dim(tuple(sorted(kept.items(), key=lambda t: _mono_key(t[0]))))


def _atom(kind: str, a: DimLike, b: DimLike) -> Dim:
    return Dim((((((kind, a, b), 1),), 1),))


def floordiv(a: DimLike, b: DimLike) -> DimLike:
    """``a // b`` rounded down; ``b`` static and positive, or a symbol that divides or is kept as an atom."""
    if isinstance(a, int) and isinstance(b, int):
        if b == 0:
            raise AotgradValueError("size divided by zero")
        return a // b
    if b == 1:
        return a
    if a == b:
        return 1
    if isinstance(b, int) and isinstance(a, Dim):
        whole = [(m, c // b) for m, c in a.terms if c % b == 0]
        rest = _make([(m, c) for m, c in a.terms if c % b])
        if isinstance(rest, int):
            return _make([*whole, ((), rest // b)])
        return _make([*whole, *_terms(_atom("floordiv", rest, b))])
    exact = _divide_exactly(a, b)
    return _atom("floordiv", a, b) if exact is None else exact


def _divide_exactly(a: DimLike, b: DimLike) -> DimLike | None:
    if not isinstance(b, Dim) or len(b.terms) != 1:
        return None
    (divisor, scale), out = b.terms[0], []
    for mono, c in _terms(a):
        powers = dict(mono)
        for atom, p in divisor:
            powers[atom] = powers.get(atom, 0) - p
        if c % scale or min(powers.values(), default=0) < 0:
            return None
        out.append((tuple((x, powers[x]) for x, _ in mono if powers[x]), c // scale))
    return _make(out)


def mod(a: DimLike, b: DimLike) -> DimLike:
    """``a % b`` with the sign of ``b`` (Python's)."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if b == 1 or a == b or (isinstance(b, int) and isinstance(a, Dim) and all(c % b == 0 for _, c in a.terms)):
        return 0
    return _atom("mod", a, b)


def _ordered(kind: str, a: DimLike, b: DimLike) -> DimLike:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b) if kind == "min" else max(a, b)
    if a == b:
        return a
    gap = b - a
    if _never_negative(gap):
        return a if kind == "min" else b
    if _never_negative(-gap):
        return b if kind == "min" else a
    first, second = sorted((a, b), key=to_text)
    return _atom(kind, first, second)


def _never_negative(d: DimLike) -> bool:
    # Sizes and all atoms but mod by a negative are >= 0, so a polynomial with no negative coefficient is too.
    if isinstance(d, int):
        return d >= 0
    return all(c >= 0 and all(a[0] in ("sym", "mod") or (a[0] in ("min", "max", "floordiv") and all(_never_negative(s) for s in a[1:])) for a, _ in m) for m, c in d.terms)  # type: ignore[arg-type]


def minimum(a: DimLike, b: DimLike) -> DimLike:
    """The smaller of two sizes."""
    return _ordered("min", a, b)


def maximum(a: DimLike, b: DimLike) -> DimLike:
    """The larger of two sizes."""
    return _ordered("max", a, b)


def _less(a: DimLike, b: DimLike, strict: bool) -> bool:
    gap = b - a
    if _never_negative(gap - 1 if strict else gap):
        return True
    if _never_negative(-gap if strict else -gap - 1):
        return False
    left = a._value("a comparison") if isinstance(a, Dim) else a
    right = b._value("a comparison") if isinstance(b, Dim) else b
    return left < right if strict else left <= right


def _substitute_atom(atom: Atom, env: Mapping[str, DimLike]) -> DimLike:
    if atom[0] == "sym":
        return env.get(str(atom[1]), Dim((((((atom), 1),), 1),)))
    a, b = (substitute(x, env) for x in atom[1:])  # type: ignore[arg-type]
    return {"floordiv": floordiv, "mod": mod, "min": minimum, "max": maximum}[str(atom[0])](a, b)


def substitute(d: DimLike, env: Mapping[str, DimLike]) -> DimLike:
    """``d`` with symbols replaced (ints pass)."""
    return d.substitute(env) if isinstance(d, Dim) else d


def product(dims: Iterable[DimLike]) -> DimLike:
    """The number of elements of a shape."""
    total: DimLike = 1
    for d in dims:
        total = total * d
    return total


def symbols_of(d: object) -> Sequence[str]:
    """Symbol names in a size (none for an int)."""
    return list(d.symbols()) if isinstance(d, Dim) else []


def to_text(d: DimLike) -> str:
    """The canonical text, read back by ``parse``."""
    if isinstance(d, int):
        return str(d)
    out = ""
    for mono, c in d.terms:
        factors = [_atom_text(a) for a, p in mono for _ in range(p)]
        body = " * ".join([str(abs(c)), *factors] if abs(c) != 1 or not factors else factors)
        out += (" - " if c < 0 else " + ") + body if out else ("-" if c < 0 else "") + body
    return out


def _atom_text(atom: Atom) -> str:
    if atom[0] == "sym":
        return str(atom[1])
    return f"{atom[0]}({to_text(atom[1])}, {to_text(atom[2])})"  # type: ignore[arg-type]


def parse(text: str) -> DimLike:
    """A size from its text: integers, names, ``+ - * // %``, and floordiv, mod, min, max.

    >>> parse("2*n + floordiv(m, 2)")
    Dim(2 * n + floordiv(m, 2))
    """
    try:
        return _from_ast(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, KeyError, RecursionError):
        raise AotgradValueError(f"size {text!r} is not understood; write integers and names joined by + - * // %") from None


_CALLS = {"floordiv": floordiv, "mod": mod, "min": minimum, "max": maximum}


def _from_ast(node: ast.expr) -> DimLike:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return symbol(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_from_ast(node.operand)
    if isinstance(node, ast.BinOp):
        a, b = _from_ast(node.left), _from_ast(node.right)
        kinds: dict[type, Callable[[], DimLike]] = {
            ast.Add: lambda: a + b, ast.Sub: lambda: a - b, ast.Mult: lambda: a * b, ast.FloorDiv: lambda: floordiv(a, b), ast.Mod: lambda: mod(a, b)}
        return kinds[type(node.op)]()
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 2:
        return _CALLS[node.func.id](_from_ast(node.args[0]), _from_ast(node.args[1]))
    raise KeyError(ast.dump(node))
