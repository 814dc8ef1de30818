"""Sizes that a trace found equal: which symbols they replace."""

from __future__ import annotations

from collections.abc import Mapping

from aotgrad.ir import dims
from aotgrad.ir.dims import Dim, DimLike

__all__ = ["Equalities"]


class Equalities:
    """Symbols, and the size that takes the place of each. Every operation asks for the sizes of its operands, which are few and long: each is looked up once."""

    def __init__(self) -> None:
        self.names: dict[str, DimLike] = {}
        self._known: dict[Dim, DimLike] = {}

    def __bool__(self) -> bool:
        return bool(self.names)

    def add(self, names: Mapping[str, DimLike]) -> None:
        """More symbols, and sizes without any that are replaced."""
        self.names = {**{k: dims.substitute(v, names) for k, v in self.names.items()}, **names}
        self._known = {}

    def solve(self, a: DimLike, b: DimLike) -> bool:
        """Replaces a symbol that stands alone with factor 1 or -1 in ``a - b``, and nowhere else in it, by what it must be. False where there is none.
        Where ``a - b`` is a sum of sizes, or minus that, all of them are 0: no symbol becomes less than none."""
        gap = a - b
        if not isinstance(gap, Dim):
            return False
        if dims.one_sign(gap):
            empty = [name for mono, _ in gap.terms if (name := dims.sole_symbol(mono)) is not None]
            if len(empty) == len(gap.terms):
                self.add(dict.fromkeys(empty, 0))
            return len(empty) == len(gap.terms)
        for mono, factor in gap.terms:
            if len(mono) == 1 and mono[0][1] == 1 and mono[0][0][0] == "sym" and factor in (1, -1):
                name = str(mono[0][0][1])
                rest = Dim(((mono, factor),)) - gap if factor == 1 else gap - Dim(((mono, factor),))
                if name not in dims.symbols_of(rest) and (not isinstance(rest, int) or rest >= 0):
                    self.add({name: rest})
                    return True
        return False

    def canonical(self, d: DimLike) -> DimLike:
        """``d`` with all symbols replaced."""
        return d.substitute(self.names, self._known) if isinstance(d, Dim) else d
