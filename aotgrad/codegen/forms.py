"""An array in memory shown in another shape, its dims in another order, split or joined: what is written or read there needs no copy in that shape."""

from __future__ import annotations

from collections.abc import Sequence

from aotgrad_runtime.records import record

from ..ir.core import Op
from ..ir.dims import DimLike
from ..ir.opdef import ViewMap
from ..ir.types import TensorType
from .access import Map, compose, identity, reshape_view

__all__ = ["Form", "VIEWS", "itself", "shown"]

VIEWS = frozenset(("permute", "relayout", "reshape"))
Part = tuple[DimLike, DimLike]
"""Size, and distance in memory."""


@record(frozen=True)
class Form:
    """An array of type ``of`` as one of ``type``. ``parts``: what each dim runs over, outermost first; none for a dim of size 1, several for one made of dims that
    are apart in memory. ``map``: dims of the array over the shape shown, if they are affine."""

    of: TensorType
    type: TensorType
    parts: tuple[tuple[Part, ...], ...]
    map: Map | None

    @property
    def whole(self) -> bool:
        """Whether it shows the array as it is."""
        return self.type == self.of and self.parts == itself(self.of).parts

    @property
    def plain(self) -> bool:
        """Whether it is a reshape: the same elements, row by row."""
        return self.of.layout is None and self.type.layout is None and _in_rows(self.parts)

    @property
    def strides(self) -> tuple[DimLike, ...]:
        """Distances in memory, 0 for dims of size 1; of a dim of several parts that of the innermost."""
        return tuple(p[-1][1] if p else 0 for p in self.parts)

    def even(self, but: int | None = None) -> bool:
        """Whether every dim (``but`` one) has its elements at one distance."""
        return all(len(p) < 2 or d == but for d, p in enumerate(self.parts))


def itself(t: TensorType) -> Form:
    """An array as it is."""
    return Form(t, t, tuple(() if n == 1 else ((n, s),) for n, s in zip(t.shape, t.strides())), identity(t.shape))


def shown(form: Form, op: Op) -> Form | None:
    """What a permutation, reshape or relayout shows of what ``form`` shows; None where that is not known for all sizes."""
    to, parts = op.result.type, form.parts
    if op.name == "relayout":
        return Form(form.of, to, parts, form.map)
    if op.name == "permute":
        perm = op.attrs["perm"]
        own: Map = tuple((0, ()) if n == 1 else (0, ((perm.index(d), 1),)) for d, n in enumerate(form.type.shape))
        return Form(form.of, to, tuple(parts[d] for d in perm), _through(form, own))
    if form.of.layout is None and _in_rows(parts):
        view = reshape_view(form.of.shape, to.shape)
        row_major = TensorType(to.shape, to.dtype)
        return Form(form.of, to, itself(row_major).parts, None if view is None else tuple(zip(view.offsets, view.steps)))
    regrouped, view = _regrouped([p for group in parts for p in group], to.shape), reshape_view(form.type.shape, to.shape)
    if regrouped is None:
        return None
    return Form(form.of, to, regrouped, None if view is None else _through(form, tuple(zip(view.offsets, view.steps))))


def _through(form: Form, inner: Map) -> Map | None:
    """Dims of the array over a shape, given those of the shape that ``form`` shows."""
    return None if form.map is None else compose(ViewMap(tuple(o for o, _ in form.map), tuple(t for _, t in form.map)), form.of.shape, inner)


def _in_rows(parts: Sequence[Sequence[Part]]) -> bool:
    step: DimLike = 1
    for size, stride in reversed([p for group in parts for p in group]):
        if stride != step:
            return False
        step = step * size
    return True


def _regrouped(parts: Sequence[Part], shape: Sequence[DimLike]) -> tuple[tuple[Part, ...], ...] | None:
    """Parts for other dims: whole ones, and splits of those whose sizes are numbers."""
    left, out = list(reversed(parts)), []
    for n in shape:
        group: list[Part] = []
        have: DimLike = 1
        while have != n:
            if not left:
                return None
            size, stride = left.pop()
            if isinstance(n, int) and isinstance(have, int) and isinstance(size, int) and have * size > n:
                outer = n // have
                if n % have or outer == 0 or size % outer:
                    return None
                left.append((size // outer, stride))
                size, stride = outer, stride * (size // outer)
            have = have * size
            if group and group[-1][1] == size * stride:
                size = group.pop()[0] * size
            group.append((size, stride))
        out.append(tuple(group))
    return None if left else tuple(out)

