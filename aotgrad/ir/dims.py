"""Sizes: integer polynomials over named sizes and the atoms floordiv, mod, min, max.

A ``Dim`` is canonical: equal polynomials are equal objects by ``==`` and hash, whatever way they were built. A size that is a
plain number is always an ``int``, never a ``Dim``, so that ``isinstance(d, int)`` means static. Division keeps what divides outside
the atom and reduces the rest, so that ``(n + 5) // 2`` and ``(n + 1) // 2 + 2`` are one size; ``n // n`` is 1 and ``0 // n`` is 0.

>>> n, m = symbol("n"), symbol("m")
>>> (n + 1) * (n - 1) == n * n - 1
True
>>> (2 * n + 4) // 2, (n * m).substitute({"n": 3, "m": 4})
(Dim(n + 2), 12)
"""

from __future__ import annotations

import functools
import keyword
import math
import operator
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn, Union

from aotgrad_runtime import modes
from aotgrad_runtime.errors import AotgradTypeError, AotgradValueError

__all__ = ["Dim", "DimLike", "floordiv", "maximum", "minimum", "mod", "one_sign", "parse", "plain",
           "product", "sole_symbol", "specialising", "substitute", "symbol", "symbols_of", "to_text"]

DimLike = Union[int, "Dim"]
Atom = tuple[object, ...]  # ("sym", name) | (kind, a, b)
Mono = tuple[tuple[Atom, int], ...]


class _Specialise(threading.local):
    """While tracing: the function that turns a Dim into the example's number and records a guard."""

    resolver: Callable[[Dim], int] | None = None


_specialise = modes.keep(_Specialise(), "resolver")


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

    __slots__ = ("_hash", "_names", "terms")
    __array_ufunc__ = None  # NumPy's scalars leave arithmetic with sizes to this class
    terms: tuple[tuple[Mono, int], ...]

    def __init__(self, terms: tuple[tuple[Mono, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)
        self._names: tuple[str, ...] | None = None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and self.terms == other.terms

    def __add__(self, other: object) -> DimLike:
        x = _as_size(other)
        return NotImplemented if x is None else _make([*self.terms, *_terms(x)])

    __radd__ = __add__

    def __neg__(self) -> DimLike:
        return _make([(m, -c) for m, c in self.terms])

    def __pos__(self) -> DimLike:
        return self

    def __sub__(self, other: object) -> DimLike:
        x = _as_size(other)
        return NotImplemented if x is None else _make([*self.terms, *((m, -c) for m, c in _terms(x))])

    def __rsub__(self, other: object) -> DimLike:
        x = _as_size(other)
        return NotImplemented if x is None else _make([*_terms(x), *((m, -c) for m, c in self.terms)])

    def __mul__(self, other: object) -> DimLike:
        x = _as_size(other)
        return NotImplemented if x is None else _make([(_mul_mono(a, b), c * d) for a, c in self.terms for b, d in _terms(x)])

    __rmul__ = __mul__

    def __pow__(self, power: object) -> DimLike:
        if not isinstance(power, int) or power < 0:
            return NotImplemented
        return product([self] * power)

    def __floordiv__(self, other: object) -> DimLike:
        x = _as_size(other)
        return NotImplemented if x is None else floordiv(self, x)

    def __rfloordiv__(self, other: object) -> DimLike:
        x = _as_size(other)
        return NotImplemented if x is None else floordiv(x, self)

    def __mod__(self, other: object) -> DimLike:
        x = _as_size(other)
        return NotImplemented if x is None else mod(self, x)

    def __rmod__(self, other: object) -> DimLike:
        x = _as_size(other)
        return NotImplemented if x is None else mod(x, self)

    def __divmod__(self, other: object) -> tuple[DimLike, DimLike]:
        x = _as_size(other)
        return NotImplemented if x is None else (floordiv(self, x), mod(self, x))

    def _value(self, what: str) -> int:
        if _specialise.resolver is None:
            raise AotgradTypeError(f"size {self} is symbolic here: {what} needs a number. Use the size in arithmetic and shapes, "
                                   "or fix it with an integer in the argument's type")
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

    def substitute(self, env: Mapping[str, DimLike], known: dict[Dim, DimLike] | None = None) -> DimLike:
        """The value with each symbol in ``env`` replaced; symbols not in it stay. ``known``: sizes that ``env`` was put into before; takes those of this call."""
        name = self.as_symbol()
        if name is not None:  # nearly all sizes: half of the time of a trace went into the general way
            return env.get(name, self)
        plain = self if type(self) is Dim else Dim(self.terms)
        if not any(name in env for name in self.symbols()):
            return plain
        known = {} if known is None else known
        found = known.get(plain)
        if found is None:
            found = 0
            for mono, coeff in self.terms:
                part: DimLike = coeff
                for atom, power in mono:
                    base = _substitute_atom(atom, env, known)
                    for _ in range(power):
                        part = part * base
                found = found + part
            known[plain] = found
        return found

    def symbols(self) -> Sequence[str]:
        """Names of the symbols, in order of first appearance in the text form."""
        if self._names is None:
            seen: dict[str, None] = {}
            for mono, _ in self.terms:
                for atom, _p in mono:
                    if atom[0] == "sym":
                        seen[str(atom[1])] = None
                    else:
                        for side in atom[1:]:
                            seen.update(dict.fromkeys(symbols_of(side)))
            self._names = tuple(seen)
        return self._names

    def as_symbol(self) -> str | None:
        """The name, if this is one bare symbol."""
        if len(self.terms) != 1:
            return None
        mono, coeff = self.terms[0]
        if coeff != 1 or len(mono) != 1:
            return None
        atom, power = mono[0]
        return str(atom[1]) if power == 1 and atom[0] == "sym" else None

    def __str__(self) -> str:
        return to_text(self)

    def __repr__(self) -> str:
        return f"Dim({to_text(self)})"

    def __reduce__(self) -> tuple[object, ...]:
        return (parse, (to_text(self),))


def symbol(name: str) -> Dim:
    """The size called ``name`` (an ASCII identifier that is no Python keyword); sizes are never negative."""
    if not (name.isidentifier() and name.isascii()) or keyword.iskeyword(name):
        raise AotgradValueError(f"size name {name!r} is not an identifier; use letters, digits and underscores")
    return Dim(((((("sym", name), 1),), 1),))


def _as_size(x: object) -> DimLike | None:
    """An int, a Dim, or the int behind another integer type (NumPy's); None for anything else."""
    if isinstance(x, (int, Dim)):
        return x
    try:
        return operator.index(x)  # type: ignore[arg-type]
    except TypeError:
        return None


def _terms(x: DimLike) -> tuple[tuple[Mono, int], ...]:
    return x.terms if isinstance(x, Dim) else (((), int(x)),) if x else ()


@functools.lru_cache(maxsize=4096)
def _atom_key(atom: Atom) -> tuple[object, ...]:
    return (atom[0] != "sym", str(atom[0]), *(to_text(a) if isinstance(a, (Dim, int)) else str(a) for a in atom[1:]))


@functools.lru_cache(maxsize=4096)
def _mono_key(mono: Mono) -> tuple[object, ...]:
    return (-sum(p for _, p in mono), tuple((_atom_key(a), -p) for a, p in mono))


def _mul_mono(a: Mono, b: Mono) -> Mono:
    if not a or not b:
        return a or b
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
    if len(kept) == 1:
        return Dim(tuple(kept.items()))
    return Dim(tuple(sorted(kept.items(), key=lambda t: _mono_key(t[0]))))


def _atom(kind: str, a: DimLike, b: DimLike) -> Dim:
    return Dim((((((kind, _bare(a), _bare(b)), 1),), 1),))


def _bare(d: DimLike) -> DimLike:
    return d if type(d) is Dim or isinstance(d, int) else Dim(d.terms)  # hashes and comparisons of other kinds of sizes may mean more than structure


def floordiv(a: DimLike, b: DimLike) -> DimLike:
    """``a // b`` rounded down. Raises ``AotgradValueError`` where ``b`` is the number 0."""
    if isinstance(b, int):
        if b == 0:
            raise AotgradValueError("size divided by zero")
        if isinstance(a, int):
            return a // b
        return _divide_by_number(a, b) if b > 0 else _divide_by_number(-a, -b)
    if isinstance(a, int) and a == 0:
        return 0
    exact = _divide_exactly(a, b)
    return _atom("floordiv", a, b) if exact is None else exact


def _divide_by_number(a: DimLike, b: int) -> DimLike:
    """``a // b`` for positive ``b``: coefficients split into multiples of ``b``, which leave the atom, and rests from 0 to b - 1, which stay in it."""
    if isinstance(a, int):
        return a // b
    if b == 1:
        return a
    whole = [(m, c // b) for m, c in a.terms]
    rest = _make([(m, c % b) for m, c in a.terms])
    if isinstance(rest, int):
        return _make(whole)  # rest < b
    common = math.gcd(b, *(c for m, c in rest.terms if m))
    if common > 1:
        # floor((g * x + k) / (g * c)) = floor((x + floor(k / g)) / c)
        return _make([*whole, *_terms(_divide_by_number(_make([(m, c // common) for m, c in rest.terms]), b // common))])
    for mono, c in rest.terms:
        if c == 1 and len(mono) == 1 and mono[0][1] == 1 and mono[0][0][0] == "floordiv" and isinstance(mono[0][0][2], int):
            # floor((floor(x / d) + p) / b) = floor((x + d * p) / (b * d))
            _, x, d = mono[0][0]
            others = _make([t for t in rest.terms if t[0] != mono])
            return _make([*whole, *_terms(_divide_by_number(x + d * others, b * d))])  # type: ignore[operator]
    return _make([*whole, *_terms(_atom("floordiv", rest, b))])


def _divide_exactly(a: DimLike, b: DimLike) -> DimLike | None:
    """The polynomial q with ``a == q * b``, if there is one: long division by the leading term."""
    if not isinstance(b, Dim):
        return None
    lead, scale = b.terms[0]
    quotient: list[tuple[Mono, int]] = []
    rest = a
    for _ in range(64):
        if isinstance(rest, int):
            return _make(quotient) if rest == 0 else None
        mono = _divide_mono(rest.terms[0][0], lead)
        if mono is None or rest.terms[0][1] % scale:
            return None
        quotient.append((mono, rest.terms[0][1] // scale))
        rest = rest - b * _make(quotient[-1:])
    return None


def _divide_mono(a: Mono, b: Mono) -> Mono | None:
    powers = dict(a)
    for atom, p in b:
        powers[atom] = powers.get(atom, 0) - p
        if powers[atom] < 0:
            return None
    return tuple((x, powers[x]) for x, _ in a if powers[x])


def mod(a: DimLike, b: DimLike) -> DimLike:
    """``a % b`` with the sign of ``b`` (Python's). Raises ``AotgradValueError`` where ``b`` is the number 0."""
    if isinstance(b, int):
        if b == 0:
            raise AotgradValueError("size modulo zero")
        if isinstance(a, int):
            return a % b
        rest = _make([(m, c % abs(b)) for m, c in a.terms])
        if isinstance(rest, int):
            return rest % b
        return _atom("mod", rest, b)
    if (isinstance(a, int) and a == 0) or _divide_exactly(a, b) is not None:
        return 0
    return _atom("mod", a, b)


def _ordered(kind: str, a: DimLike, b: DimLike) -> DimLike:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b) if kind == "min" else max(a, b)
    kept: list[DimLike] = []
    for x in (*_operands(kind, a), *_operands(kind, b)):
        if not any(_settled(kind, y, x) for y in kept):
            kept = [y for y in kept if not _settled(kind, x, y)]
            kept.append(x)
    kept.sort(key=to_text)
    out = kept[0]
    for x in kept[1:]:
        out = _atom(kind, out, x)
    return out


def _operands(kind: str, d: DimLike) -> list[DimLike]:
    """What a min (or max) of mins is taken over, so that grouping and order do not matter."""
    out: list[DimLike] = []
    while isinstance(d, Dim) and len(d.terms) == 1 and d.terms[0][1] == 1 and len(d.terms[0][0]) == 1 and d.terms[0][0][0][1] == 1 and d.terms[0][0][0][0][0] == kind:
        _, left, right = d.terms[0][0][0][0]
        out.append(right)  # type: ignore[arg-type]
        d = left  # type: ignore[assignment]
    return [d, *reversed(out)]


def _settled(kind: str, a: DimLike, b: DimLike) -> bool:
    """Whether ``a`` wins over ``b`` for all sizes."""
    return _never_negative(b - a if kind == "min" else a - b)


def _never_negative(d: DimLike) -> bool:
    # Sizes are >= 0, so a polynomial of things that are, with no negative coefficient, is too. False means "not known".
    if isinstance(d, int):
        return d >= 0
    return all(c >= 0 and all(p % 2 == 0 or _atom_never_negative(a) for a, p in m) for m, c in d.terms)


def one_sign(d: DimLike) -> bool:
    """Whether ``d`` is known to be a sum of what is never negative, or minus such a sum: it is 0 only where each of its terms is."""
    return _never_negative(d) or _never_negative(-d)


def sole_symbol(mono: Mono) -> str | None:
    """The name, where a product is a power of one symbol."""
    return str(mono[0][0][1]) if len(mono) == 1 and mono[0][0][0] == "sym" else None


def _atom_never_negative(atom: Atom) -> bool:
    if atom[0] == "sym":
        return True
    a, b = (_never_negative(x) for x in atom[1:])  # type: ignore[arg-type]
    return {"floordiv": a and b, "mod": b, "min": a and b, "max": a or b}[str(atom[0])]


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


def _substitute_atom(atom: Atom, env: Mapping[str, DimLike], known: dict[Dim, DimLike]) -> DimLike:
    if atom[0] == "sym":
        name = str(atom[1])
        return env[name] if name in env else Dim(((((atom, 1),), 1),))
    a, b = (substitute(x, env, known) for x in atom[1:])  # type: ignore[arg-type]
    return {"floordiv": floordiv, "mod": mod, "min": minimum, "max": maximum}[str(atom[0])](a, b)


def substitute(d: DimLike, env: Mapping[str, DimLike], known: dict[Dim, DimLike] | None = None) -> DimLike:
    """``d`` with symbols replaced (ints pass)."""
    return d.substitute(env, known) if isinstance(d, Dim) else d


def plain(value: Any) -> Any:
    """Sizes, also in tuples, as the IR knows them: their ``==`` is structural, that of subclasses may ask more."""
    if type(value) is tuple and any(isinstance(v, tuple) or isinstance(v, Dim) and type(v) is not Dim for v in value):
        return tuple(map(plain, value))
    return Dim(value.terms) if isinstance(value, Dim) and type(value) is not Dim else value


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


_TOKEN: Final = re.compile(r"\s*(?:(\d+)|([A-Za-z_]\w*)|(//|[-+*%(),])|$)", re.ASCII)
_CALLS: Final[dict[str, Callable[[DimLike, DimLike], DimLike]]] = {"floordiv": floordiv, "mod": mod, "min": minimum, "max": maximum}
_PRODUCTS: Final[dict[str, Callable[[DimLike, DimLike], DimLike]]] = {"*": operator.mul, "//": floordiv, "%": mod}


def parse(text: str) -> DimLike:
    """A size from its text: integers, names, ``+ - * // %``, parentheses, and floordiv, mod, min, max. Raises ``AotgradValueError``.

    >>> parse("2*n + floordiv(m, 2)")
    Dim(2 * n + floordiv(m, 2))
    """
    return _Reader(text).read()


class _Reader:
    """Recursive descent; the depth is that of parentheses, not the length of a sum."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = []
        self.at = self.depth = 0
        end = 0
        while end < len(text.rstrip()):
            m = _TOKEN.match(text, end)
            if m is None or m.end() == end:
                self.fail()
            self.tokens.append(m[0].strip())
            end = m.end()

    def fail(self) -> NoReturn:
        raise AotgradValueError(f"size {self.text!r} is not understood; write integers and names joined by + - * // %")

    def take(self, *wanted: str) -> str:
        """The next token if it is one of ``wanted`` (any, when none is given), else ""."""
        token = self.tokens[self.at] if self.at < len(self.tokens) else ""
        if not token or (wanted and token not in wanted):
            return ""
        self.at += 1
        return token

    def need(self, token: str) -> None:
        if not self.take(token):
            self.fail()

    def read(self) -> DimLike:
        out = self.sum()
        if self.at != len(self.tokens):
            self.fail()
        return out

    def sum(self) -> DimLike:
        terms = list(_terms(self.product()))
        while sign := self.take("+", "-"):
            terms += _terms(self.product() if sign == "+" else -self.product())
        return _make(terms)

    def product(self) -> DimLike:
        negative = False
        while sign := self.take("-", "+"):
            negative ^= sign == "-"
        out = -self.atom() if negative else self.atom()
        while op := self.take("*", "//", "%"):
            minus = bool(self.take("-"))
            x = self.atom()
            out = _PRODUCTS[op](out, -x if minus else x)
        return out

    def atom(self) -> DimLike:
        token = self.take()
        if token == "(":
            out = self.nested(self.sum)
            self.need(")")
            return out
        if token in _CALLS and self.take("("):
            a = self.nested(self.sum)
            self.need(",")
            b = self.nested(self.sum)
            self.need(")")
            return _CALLS[token](a, b)
        if token.isdecimal():
            return int(token) if len(token) < 40 else self.fail()
        if not token.isidentifier():
            self.fail()
        return symbol(token)

    def nested(self, read: Callable[[], DimLike]) -> DimLike:
        self.depth += 1
        if self.depth > 100:
            self.fail()
        out = read()
        self.depth -= 1
        return out
