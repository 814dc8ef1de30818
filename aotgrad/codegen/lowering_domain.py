"""Elementwise ops that are errors for some integers: a pass that looks for one, then the loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..ir import dims, opdef
from ..ir.core import Value
from ..ir.dims import DimLike
from .access import Access
from .lowering_index import elementwise, place_of, rounds
from .nest import Context
from .plan import Kern

__all__ = ["in_domain"]

_CODE, _INDEX = 3, 2


def in_domain(cx: Context, item: Kern) -> None:
    """The op, after its domain was checked; in builds without checks, what its scalar form gives."""
    op = item.op
    assert op is not None
    low, space = opdef.get(op.name).lower, op.result.type.shape
    assert isinstance(low, opdef.Scalar)
    operands = [cx.buffers.access(item, o) for o in op.operands]
    domain, out = opdef.limited(op), cx.buffers.stored(op.result)
    if cx.module.checks and domain is not None and domain.bounds is None:
        _check(cx, item, operands[domain.operand], domain)
    elif cx.module.checks and domain is not None and domain.bounds is not None:
        for x, bound in zip(operands, domain.bounds(op)):
            if bound is not None:
                _check_index(cx, item, x, *bound)

    def fn(k: Any, *xs: Value) -> Value:
        return low.fn(k, op, *xs)  # type: ignore[no-any-return]

    every = list(range(len(space)))
    elementwise(cx, space, [(x.store, place_of(x, {}, every)) for x in operands], fn, (out.store, place_of(out, {}, every)))


def _check(cx: Context, item: Kern, x: Access, domain: opdef.Domain) -> None:
    """Ends the call at the first element outside the domain."""
    op, kb = item.op, cx.kb
    assert op is not None
    k = kb.scalars(1)
    text = domain.text.format(dtype=op.result.type.dtype.name)
    place = cx.module.location(text if op.loc is None else f"{op.loc}: {text}")
    with _each(cx, item, x) as here:
        kb.check(domain.holds(k, op, here), _CODE, place, k.to_index(here), domain.error)


def _check_index(cx: Context, item: Kern, x: Access, least: DimLike, size: DimLike, axis: int) -> None:
    """Ends the call at the first index out of range."""
    op, kb = item.op, cx.kb
    assert op is not None
    with _each(cx, item, x) as here:
        i = kb.scalars(1).to_index(here)
        kb.check(kb.cmp("ult", kb.sub(i, kb.dim(least)), kb.dim(size - least)), _INDEX, cx.module.index_location(op.loc, axis), i, kb.dim(size))


@contextmanager
def _each(cx: Context, item: Kern, x: Access) -> Iterator[Value]:
    """A loop over the elements of an operand. One that a broadcast repeats is looked at once."""
    op = item.op
    assert op is not None
    sizes = [n if s != 0 else dims.minimum(n, 1) for n, s in zip(op.result.type.shape, x.strides)]
    with rounds(cx, sizes) as at:
        yield cx.kb.load(x.store.mem, cx.kb.dim(place_of(x, dict(enumerate(at)), [])[0]))
