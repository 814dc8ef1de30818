"""Right operands of products that are packed before the products begin: what does not change in a loop once for all its rounds, what threads share once for all of them.

A packed operand has one form, whatever the blocks of the products with it (``gemm.driver.pack``), and changes no bit of them. Products of few rows or columns take
paths that do not pack; whether one does is a condition, known or asked when the program runs. What few rows meet in every round of a loop is copied so that its rows
begin at whole vectors: NumPy's arrays begin 16 bytes into a line, where each vector that is read lies in two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aotgrad_runtime.records import record

from ..ir import dims
from ..ir.core import Op, Value
from ..ir.dims import DimLike
from . import gemm
from .access import Access, through
from .bufferise import Store, strides_of
from .kernel import Index
from .lowering_index import elementwise
from .nest import Context
from .plan import Item, Plan
from .sum_order import FEW

__all__ = ["Packed", "both", "fixed_in_loop", "more_than_few", "pack_here"]


_ROUNDS = 8  # a loop of at least so many pays for a copy
_ALIGN = (1 << 10, 2 << 20)  # bytes of what is copied: from the third cache or memory, reading two lines costs no more than one


@record
class Packed:
    """A packed operand: the byte buffer and where it begins, whether it may be read (i1, or known), bytes from a strip to the next for each of its columns, and what to
    give back when nothing reads it any more."""

    mem: Value
    at: Index
    ready: bool | Value
    column: DimLike
    store: Store | None = None


def more_than_few(cx: Context, size: DimLike) -> bool | Value:
    """Whether a size is above ``FEW``."""
    return size > FEW if isinstance(size, int) else cx.kb.cmp("gt", cx.kb.dim(size), FEW)


def both(cx: Context, a: bool | Value, b: bool | Value) -> bool | Value:
    """The conjunction of two conditions."""
    if isinstance(a, bool):
        return b if a else False
    return (a if b else False) if isinstance(b, bool) else cx.kb.all_of(a, b)


def pack_here(cx: Context, b: Access, sizes: tuple[DimLike, DimLike], ready: bool | Value, threads: int = 1) -> Packed:
    """Packs a matrix of ``sizes`` (K, N) at the builder's place, on several threads where that pays."""
    kb, (k, n) = cx.kb, sizes
    cfg = gemm.config(b.store.dtype.mlir, cx.target)
    store = cx.work.take_bytes(gemm.packed_bytes(cfg, n, k))
    strips = kb.dim(dims.floordiv(n + cfg.strip - 1, cfg.strip))
    rows, columns = b.strides[-2:]
    if isinstance(n, int) and n == 1:
        columns = 1

    def emit() -> None:
        with kb.parallel(strips, 1, threads) as chunk:
            kb.gemm_pack(kb.dim(n), kb.dim(k), (b.store.mem, kb.dim(b.base), kb.dim(rows), kb.dim(columns)), (store.mem, 0), chunk)

    if ready is True:
        emit()
    elif ready is not False:
        with kb.if_(ready) as br, br.then():
            emit()
    return Packed(store.mem, 0, ready, gemm.packed_column(cfg, k), store)


def fixed_in_loop(cx: Context, plan: Plan, fixed: Mapping[Value, Access], length: DimLike) -> dict[Op, Packed | Access]:
    """The operands of a loop's products that are the same in every round, packed here, before it, or copied to whole vectors. ``plan``: of the body; ``fixed``: what its
    arguments are that do not change; ``length``: how many rounds there are."""
    made: dict[Op, Packed | Access] = {}
    alike: dict[Any, Packed] = {}
    copies: dict[Any, Store] = {}
    for item in plan.items:
        op = getattr(item, "epilogue", None) or item.op
        if op is None or op.name != "dot":
            continue
        at = _outside(plan, item, op.operands[1], fixed)
        t = op.result.type
        if at is None or t.rank != 2 or t.dtype.mlir not in ("f64", "f32") or (cx.module.kept is not None and cx.module.kept.holds(at)):
            continue
        (m, n), k = t.shape, op.operands[0].type.shape[-1]
        ready = both(cx, more_than_few(cx, m), more_than_few(cx, n))
        if ready is False:
            copy = None if isinstance(length, int) and length < _ROUNDS else _aligned_here(cx, at, (k, n), copies)
            if copy is not None:
                made[op] = copy
            continue
        key = (at.store, at.base, at.strides, k, n, ready)
        if key not in alike:
            alike[key] = pack_here(cx, at, (k, n), ready)
        made[op] = alike[key]
    return made


def _aligned_here(cx: Context, b: Access, sizes: tuple[DimLike, DimLike], made: dict[Any, Store]) -> Access | None:
    """A copy of a matrix of known ``sizes`` (K, N) whose rows, or columns, begin at whole vectors, as adjacent as they were; None where it would gain nothing. ``made``:
    the copies so far, of a matrix and its transpose."""
    dtype, (k, n), (rows, columns) = b.store.dtype, sizes, b.strides[-2:]
    if not isinstance(k, int) or not isinstance(n, int) or k == 1 or n == 1 or not _ALIGN[0] <= k * n * dtype.itemsize <= _ALIGN[1] or 1 not in (rows, columns):
        return None
    lanes = gemm.config(dtype.mlir, cx.target).vec.lanes
    count, width, apart = (k, n, rows) if columns == 1 else (n, k, columns)
    step, key = -(-width // lanes) * lanes, (b.store, b.base, apart, count, width)
    if key not in made:
        made[key] = cx.work.take(dtype, step * count)
        elementwise(cx, (count, width), [(b.store, (b.base, {0: apart, 1: 1}))], lambda _, x: x, (made[key], (0, {0: step, 1: 1})))
    return Access(made[key], 0, (step, 1) if columns == 1 else (1, step))


def _outside(plan: Plan, item: Item, v: Value, fixed: Mapping[Value, Access]) -> Access | None:
    """Where an operand of a body's item is before the loop, if it is a view of what does not change in it."""
    if plan.operand(item, v) is not v:
        return None
    if v in fixed:
        return fixed[v]
    if v.op is None or v in plan.memory or not (v.op in plan.views or v.op.name == "reshape"):
        return None
    inner = _outside(plan, item, v.op.operands[0], fixed)
    if inner is None:
        return None
    if v.op in plan.views:
        return through(inner, plan.views[v.op], v.op.operands[0].type.shape, v.type.shape)
    return Access(inner.store, inner.base, strides_of(v.type)) if inner.strides == strides_of(v.op.operands[0].type) else None
