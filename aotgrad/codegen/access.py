"""Index maps: where an element of a value comes from, as affine functions of the position in an iteration space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aotgrad_runtime.records import record

from ..ir.dims import DimLike
from ..ir.opdef import ViewMap

__all__ = ["Access", "Affine", "Map", "compose", "identity", "is_permutation", "map_dims", "reshape_view", "through", "zero_map"]

Affine = tuple[DimLike, tuple[tuple[int, DimLike], ...]]
"""Offset, and (dim of the space, step) terms."""
Map = tuple[Affine, ...]
"""One ``Affine`` per dim of the value. Dims of size 1, of the value or of the space, take no part."""


@record(frozen=True)
class Access:
    """Elements of a flat buffer: ``base + sum(i[d] * strides[d])``, in elements; ``store`` names the buffer (the bufferiser's key)."""

    store: Any
    base: DimLike
    strides: tuple[DimLike, ...]

    def at(self, m: Map) -> tuple[DimLike, dict[int, DimLike]]:
        """Offset and strides over the space of the map."""
        base = self.base
        out: dict[int, DimLike] = {}
        for stride, (off, terms) in zip(self.strides, m):
            base = base + stride * off
            for d, step in terms:
                total = out.get(d, 0) + stride * step
                out[d] = total
        return base, {d: s for d, s in out.items() if not (isinstance(s, int) and s == 0)}


def identity(shape: Sequence[DimLike]) -> Map:
    """The map of a value on its own space."""
    return tuple((0, ()) if n == 1 else (0, ((d, 1),)) for d, n in enumerate(shape))


def zero_map(rank: int) -> Map:
    """The map of a value of size 1."""
    return ((0, ()),) * rank


def compose(view: ViewMap, source_shape: Sequence[DimLike], outer: Map) -> Map:
    """The map of a view's source, given the map of the view's result."""
    out: list[Affine] = []
    for d, n in enumerate(source_shape):
        if n == 1:
            out.append((0, ()))
            continue
        off: DimLike = view.offsets[d]
        terms: dict[int, DimLike] = {}
        for j, step in view.steps[d]:
            inner_off, inner = outer[j]
            off = off + step * inner_off
            for nd, c in inner:
                terms[nd] = terms.get(nd, 0) + step * c
        out.append((off, tuple(sorted(((k, s) for k, s in terms.items() if not (isinstance(s, int) and s == 0)), key=lambda t: t[0]))))
    return tuple(out)


def through(access: Access, view: ViewMap, source_shape: Sequence[DimLike], shape: Sequence[DimLike]) -> Access:
    """The access of a view's result, given that of its source."""
    base, strides = access.at(compose(view, source_shape, identity(shape)))
    return Access(access.store, base, tuple(strides.get(d, 0) for d in range(len(shape))))


def map_dims(m: Map) -> frozenset[int]:
    """Dims of the space that a map depends on."""
    return frozenset(d for _, terms in m for d, _ in terms)


def is_permutation(m: Map, shape: Sequence[DimLike], space: Sequence[DimLike]) -> bool:
    """Whether the map reaches every element of a value of ``shape`` exactly once (up to dims of the space it does not depend on)."""
    seen: set[int] = set()
    for (off, terms), n in zip(m, shape):
        if n == 1:
            continue
        if off != 0 or len(terms) != 1 or terms[0][1] != 1 or terms[0][0] in seen or space[terms[0][0]] != n:
            return False
        seen.add(terms[0][0])
    return True


def reshape_view(source: Sequence[DimLike], shape: Sequence[DimLike]) -> ViewMap | None:
    """A row-major reshape as a view, when every source dim is split into whole result dims; else None.

    >>> reshape_view((6, 2), (2, 3, 2)).steps
    (((0, 3), (1, 1)), ((2, 1),))
    """
    steps: list[tuple[tuple[int, DimLike], ...]] = []
    j = 0
    for n in source:
        if n == 1:
            steps.append(())
            continue
        product: DimLike = 1
        group: list[int] = []
        while product != n:
            if j >= len(shape) or (isinstance(product, int) and isinstance(n, int) and product > n):
                return None
            if shape[j] != 1:
                group.append(j)
                product = product * shape[j]
            j += 1
        stride: DimLike = 1
        terms = []
        for g in reversed(group):
            terms.append((g, stride))
            stride = stride * shape[g]
        steps.append(tuple(reversed(terms)))
    if any(n != 1 for n in shape[j:]):
        return None
    return ViewMap((0,) * len(source), tuple(steps))
