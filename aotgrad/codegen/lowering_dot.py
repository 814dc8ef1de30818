"""Matrix products: the packed GEMM for large ones, loops in place for small static ones and for integers."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from aotgrad_runtime.dtypes import int8
from aotgrad_runtime.records import record

from ..ir import dims
from ..ir.core import Op, Value
from ..ir.dims import DimLike
from . import gemm, sharing
from .access import Access, identity
from .bufferise import dense
from .exprs import Node
from .gemm.gemv import DOT_CHAINS, TILE_CHAINS
from .kernel import Index, KernelBuilder, as_ktype, helper, register
from .kernel_types import INDEX
from .loops import NestEmitter
from .lowering_index import as_size, place_of, rounds
from .lowering_packed import Packed, both, more_than_few, pack_here
from .nest import Context
from .once import Kept
from .plan import Item, Kern, Nest
from .report import describe
from .sharing import apart
from .sum_order import BLOCK

__all__ = ["dot", "dot_nest", "workspace_bound"]

Shape = tuple[DimLike, ...]
_SMALL = 8
_ROW_BLOCK = 48  # rows of the smallest part of a product
_BATCH, _SMALL_BATCH = 8, 1024  # products of a batch between two questions whether to stop
_KEEP = 1 << 14  # bytes of B from which it is packed once where it is constant
_ROWS = 16  # likewise rows of a product made by loops


def workspace_bound(dtype: Any, target: Any, sizes: Sequence[DimLike], strides: Sequence[Sequence[DimLike]], kept: bool = False) -> DimLike:
    """At least the bytes of scratch that ``ag_gemm`` asks for (its ``_workspace``), for M, N, K and the strides of A and B. ``kept``: B is packed before."""
    (m, n, k), ((_, columns_a), (rows_b, columns_b), *_) = sizes, strides
    cfg, item = gemm.config(dtype.mlir, target), dtype.itemsize
    pack_a = 0 if columns_a == 1 else _packs(k * m * item, n, (cfg.pack_a_bytes, cfg.strip), (cfg.often_a[0], cfg.often_a[1] - 1))
    pack_b = 1 if 1 not in (rows_b, columns_b) else _packs(k * n * item, m, (cfg.pack_b_bytes, 16), (cfg.often_b[0], cfg.often_b[1] - 1))
    if columns_b != 1 and rows_b == 1:
        pack_b = dims.maximum(pack_b, _some(m - cfg.row_dots))
    pack_b = 0 if kept else pack_b
    depth = dims.minimum(k, cfg.kc)
    width = dims.minimum(_up(n, cfg.vec.lanes), _up((1 + pack_a) * cfg.nc, cfg.strip))
    panels = pack_a * depth * dims.minimum(_up(m, cfg.tiles), _up(cfg.once[0], cfg.tiles)) + pack_b * (depth * width + cfg.vec.lanes * cfg.strip)
    copies: list[DimLike] = [m * _some(2 - n)]  # of what few rows or columns, or one column, are multiplied with
    if columns_a != 1:
        copies.append(m * k * _some(cfg.row_dots + 1 - m))
    if rows_b != 1:
        copies.append(n * k * _some(cfg.col_dots + 1 - n) * (dims.maximum(_some(m - 1), _some(2 - n)) if columns_b == 1 else 1))
    total: DimLike = item * functools.reduce(dims.maximum, copies, panels) + 64
    return total


def _some(count: DimLike) -> DimLike:
    """1 where there are any, else 0."""
    return dims.minimum(1, dims.maximum(0, count))


def _packs(size: DimLike, reads: DimLike, *limits: tuple[int, int]) -> DimLike:
    """1 where one of the limits on a matrix's bytes and on how often it is read is passed, else 0."""
    return functools.reduce(dims.maximum, [_some(size - much) * _some(reads - often) for much, often in limits])


def _up(size: DimLike, step: int) -> DimLike:
    out: DimLike = dims.floordiv(size + step - 1, step) * step
    return out


def dot(cx: Context, item: Kern) -> None:
    """The product of the last two dims, batched over the leading ones."""
    assert item.op is not None
    _product(cx, item, item.op, cx.buffers.stored(item.op.result), None)


def _is_small(op: Op) -> bool:
    t = op.result.type
    sizes = (*t.shape[-2:], op.operands[0].type.shape[-1])
    return t.dtype.mlir not in ("f64", "f32") or all(isinstance(d, int) and d <= _SMALL for d in sizes)


@record(frozen=True)
class _Batch:
    """Products of one size: dims of the batch, (M, N, K), and the operands and the result, with the batch's dims before the last two."""

    lead: Shape
    sizes: Shape
    arrays: tuple[Access, ...]

    def joined(self) -> _Batch:
        """Products with one matrix as one product, as far as their rows follow each other in memory."""
        (m, n, k), (a, b, c), lead = self.sizes, self.arrays, self.lead
        while lead and b.strides[-3] == 0 and all(m == 1 or x.strides[-3] == m * x.strides[-2] for x in (a, c)):
            a, c = (Access(x.store, x.base, (*x.strides[:-3], x.strides[-3] if m == 1 else x.strides[-2], x.strides[-1])) for x in (a, c))
            b = Access(b.store, b.base, (*b.strides[:-3], *b.strides[-2:]))
            lead, m = lead[:-1], lead[-1] * m
        return _Batch(lead, (m, n, k), (a, b, c))

    def may_join(self, cx: Context) -> bool | Value:
        """Whether that changes no bit. An element is a sum in the order of k for any number of rows if the matrix's columns are adjacent, and for more than a few of
        another; of few columns the order turns on the number of rows."""
        (m, n, _), b = self.sizes, self.arrays[1]
        return both(cx, more_than_few(cx, n), True if b.strides[-1] == 1 else more_than_few(cx, m))


class _Product:
    """A product being emitted: operands, sizes, the nest that alone reads it."""

    def __init__(self, cx: Context, op: Op, batch: _Batch, e: NestEmitter | None) -> None:
        self.cx, self.e = cx, e
        self.lead, self.sizes, self.arrays = batch.lead, batch.sizes, batch.arrays
        t = op.result.type
        self.dtype = t.dtype
        self.small = _is_small(op)
        self.epilogue = _block_function(cx, e) if e is not None else None
        self.threads = 1 if self.small or cx.module is None else self._threads()
        units = _units(self.sizes, [x.strides[-2:] for x in self.arrays])
        self.packed = None if self.small else self._kept(units) or (cx.module.packed.get(op) if cx.module is not None else None)
        shared = self._shared(units)
        ready = shared is True or (self.packed is not None and self.packed.ready is True)
        bound = 0 if self.small else workspace_bound(t.dtype, cx.target, self.sizes, units, ready)
        self.room: DimLike = dims.floordiv(bound + 63, 64) * 64
        self.work = None if self.small else cx.work.take_bytes(self.room * self.threads)
        self.own = None
        if shared is not False:
            self.packed = self.own = pack_here(cx, self.arrays[1], (self.sizes[2], self.sizes[1]), shared, self.threads)

    def _kept(self, units: Sequence[tuple[DimLike, DimLike]]) -> Packed | None:
        """Where B is packed once, for products that read it by strips; None where it is read as it is. The order of sums is the same."""
        kept: Kept | None = self.cx.module.kept if self.cx.module is not None else None
        b, (m, n, k) = self.arrays[1], self.sizes
        if kept is None or not kept.holds(b) or not isinstance(n, int) or not isinstance(k, int) or n * k * self.dtype.itemsize < _KEEP:
            return None
        cfg, (rows, columns) = gemm.config(self.dtype.mlir, self.cx.target), units[1]
        if any(s != 0 for s in b.strides[:-2]) or n <= cfg.col_dots or m == 1 or (isinstance(m, int) and m <= cfg.row_dots and columns != 1 and rows == 1):
            return None

        def pack(kb: KernelBuilder, b: Access, to: tuple[Value, Value]) -> None:
            kb.gemm_pack(n, k, (b.store.mem, kb.dim(b.base), kb.dim(rows), kb.dim(columns)), to, (0, -(-n // cfg.strip)))

        at = kept.packed(b, (n, k), int(gemm.packed_bytes(cfg, n, k)), pack, "packed operands of products")
        return Packed(kept.mem, at, True, gemm.packed_column(cfg, k))

    def _shared(self, units: Sequence[tuple[DimLike, DimLike]]) -> bool | Value:
        """Whether threads share a packed B: where each of their parts would pack what it reads, and the product is the only one."""
        (m, n, k), kb = self.sizes, self.cx.kb
        if self.threads == 1 or self.packed is not None or any(d != 1 for d in self.lead):
            return False
        cfg, column, size = gemm.config(self.dtype.mlir, self.cx.target), units[1][1], n * k * self.dtype.itemsize
        large: bool | Value = True
        if not isinstance(column, int) or column in (0, 1):
            much, rows = cfg.often_b
            above = size > much if isinstance(size, int) else kb.cmp("gt", kb.dim(size), much)
            large = both(self.cx, above, m >= rows if isinstance(m, int) else kb.cmp("ge", kb.dim(m), rows))
        return both(self.cx, large, both(self.cx, more_than_few(self.cx, m), more_than_few(self.cx, n)))

    def _cost(self) -> DimLike:
        """Picoseconds, roughly: two per byte of a product of elements, and what moves A and B."""
        (m, n, k), item = self.sizes, self.dtype.itemsize
        out: DimLike = 2 * item * m * n * k + 40 * item * (m + n) * k
        return out

    def _threads(self) -> int:
        cost = dims.product(self.lead) * self._cost()
        if (isinstance(cost, int) and cost < 2 * sharing.GRAIN) or (all(n == 1 for n in self.lead) and not self._may_cut()[1]):
            return 1
        return int(self.cx.module.threads)

    def emit(self) -> None:
        """The products of the batch, or parts of the only one, on several threads where that pays."""
        cx, kb = self.cx, self.cx.kb
        batch = next((d for d, n in enumerate(self.lead) if n != 1), None)
        if batch is None:
            with rounds(cx, self.lead) as at:
                self._parts(at)
        elif self.threads == 1:
            with rounds(cx, self.lead, _SMALL_BATCH if self.small else _BATCH) as at:
                self._one(at)
        else:
            inside = dims.product(self.lead[batch + 1:]) * self._cost()
            size = kb.max(kb.div(sharing.GRAIN, kb.max(kb.dim(inside), 1)), 1)
            with kb.parallel(kb.dim(self.lead[batch]), size, self.threads) as (a, b), kb.for_(a, b, poll=_BATCH) as lp, rounds(cx, self.lead[batch + 1:], 0) as at:
                self._one([*[0] * batch, as_size(cx, lp.iv), *at])
        if self.work is not None:
            cx.work.give_back(self.work)
        if self.own is not None and self.own.store is not None:
            cx.work.give_back(self.own.store)

    def _parts(self, at: list[DimLike]) -> None:
        """One product by blocks of columns, then of rows. Blocks are whole strips: a part has more than 8 rows or columns where the whole has."""
        kb = self.cx.kb
        m, n, _ = (kb.dim(d) for d in self.sizes)
        if self.threads == 1:
            self._one(at)
            return
        strip = int(_up(9, gemm.config(self.dtype.mlir, self.cx.target).strip))
        block = BLOCK if self.e is not None and self.e.open else _ROW_BLOCK
        wide, high = kb.max(kb.div(n, strip), 1), kb.max(kb.div(m, block), 1)
        across, down = self._grid(wide, high)
        with kb.parallel(kb.mul(across, down), 1, self.threads, most=kb.mul(across, down)) as (a, b), kb.for_(a, b) as lp:
            i, j = kb.div(lp.iv, across), kb.rem(lp.iv, across)
            self._one(at, _bounds(kb, i, down, high, block, m), _bounds(kb, j, across, wide, strip, n))

    def _grid(self, wide: Index, high: Index) -> tuple[Index, Index]:
        """Parts across and down, of so many strips of columns and blocks of rows.

        Rows are cut first: B is read in place, or was packed for all parts. What adds over rows is cut by columns alone, no narrower than a cache block unless there are
        more threads, as A is read again for each.
        """
        kb, cfg = self.cx.kb, gemm.config(self.dtype.mlir, self.cx.target)
        n = self.sizes[1]
        want = kb.max(kb.min(kb.div(kb.dim(self._cost()), sharing.GRAIN), 4 * self.threads), 1)
        blocks = kb.max(kb.div(kb.dim(n), cfg.nc), kb.min(self.threads, wide))
        if not self._may_cut()[0]:
            return kb.min(want, blocks), 1
        down = kb.min(want, high)
        return kb.min(_left(kb, want, down), blocks), down

    def _may_cut(self) -> tuple[bool, bool]:
        """Whether rows, and columns, may be cut: what reads the blocks must not add across the cut."""
        if self.e is None:
            return True, True
        joined = [r for r, _, _ in self.e.open]
        live = [d for d in (0, 1) if self.sizes[d] != 1]
        if any(r not in joined for ph in self.e.phases for r in ph.reds):
            return False, 1 in live and apart(self.e, [1])
        whole = apart(self.e, live, joined)
        return whole, whole

    def _one(self, at: Sequence[DimLike], rows: tuple[Index, Index] | None = None, columns: tuple[Index, Index] | None = None) -> None:
        """The product at one position of the batch; of a part, rows and columns from the first up to the second."""
        cx, sizes = self.cx, list(self.sizes)
        fixed = dict(enumerate(at))
        parts = [place_of(x, fixed, [])[0] for x in self.arrays]
        strides = [x.strides[-2:] for x in self.arrays]
        if self.work is None:
            _small(cx, self.dtype, sizes, self.arrays, parts, strides)
            return
        origin: tuple[Index, Index] = (0, 0)
        for axis, (bounds, touched) in enumerate(((rows, (0, 2)), (columns, (1, 2)))):
            if bounds is None:
                continue
            first = as_size(cx, bounds[0])
            sizes[axis] = as_size(cx, cx.kb.sub(bounds[1], bounds[0]))
            for x in touched:
                parts[x] = parts[x] + first * strides[x][axis]
            origin = (bounds[0], origin[1]) if axis == 0 else (origin[0], bounds[0])
        column = 0 if self.packed is None else cx.kb.add(self.packed.at, cx.kb.mul(origin[1], cx.kb.dim(self.packed.column)))
        _gemm(cx, sizes, self.arrays, parts, strides, self._scratch(), self.epilogue, origin, self.packed, column)

    def _scratch(self) -> Value:
        """The thread's own part of the workspace."""
        assert self.work is not None and self.work.block is not None
        if self.threads == 1:
            return self.work.mem  # type: ignore[no-any-return]
        kb = self.cx.kb
        at = kb.add(self.cx.work.offset(self.work.block), kb.mul(kb.thread(), kb.dim(self.room)))
        return kb.view(self.cx.work.mem, at, int8, kb.dim(self.room))


def _left(kb: Any, want: Index, have: Index) -> Index:
    """How many times ``have`` it takes to get ``want``."""
    return kb.div(kb.add(want, kb.sub(have, 1)), have)  # type: ignore[no-any-return]


def _bounds(kb: Any, i: Index, parts: Index, blocks: Index, block: int, size: Index) -> tuple[Index, Index]:
    """Part ``i`` of so many: whole blocks, the last with the rest."""
    if isinstance(parts, int) and parts == 1:
        return 0, size
    first = kb.mul(kb.div(kb.mul(blocks, i), parts), block)
    end = kb.mul(kb.div(kb.mul(blocks, kb.add(i, 1)), parts), block)
    return first, kb.select(kb.cmp("eq", kb.add(i, 1), parts), size, end)


def _product(cx: Context, item: Item, op: Op, c: Access, e: NestEmitter | None) -> None:
    t, k = op.result.type, op.operands[0].type.shape[-1]
    a, b = op.operands
    right = (cx.module.copied.get(op) if cx.module is not None else None) or cx.buffers.access(item, b)
    batch = _Batch(t.shape[:-2], (*t.shape[-2:], k), (cx.buffers.access(item, a), right, c))
    whole = batch if not batch.lead or _is_small(op) else batch.joined()
    may = whole is batch or whole.lead == batch.lead or batch.may_join(cx)
    made = _Product(cx, op, whole if may is True else batch, e) if isinstance(may, bool) else _either(cx, op, whole, batch, may)
    if isinstance(may, bool):
        made.emit()
    m, n, k = made.sizes
    shared = {"threads": made.threads} if made.threads > 1 else {}
    cx.report.append({"kind": "small dot" if made.small else "gemm", **shared, "sizes": [m, n, k], "batch": dims.product(made.lead),
                      "epilogue": e is not None})


def _either(cx: Context, op: Op, whole: _Batch, batch: _Batch, may: Value) -> _Product:
    """One product or those of the batch, as the sizes are; the one product."""
    with cx.kb.if_(may) as br:
        with br.then():
            made = _Product(cx, op, whole, None)
            made.emit()
        with br.orelse():
            _Product(cx, op, batch, None).emit()
    return made


def dot_nest(cx: Context, nest: Nest) -> None:
    """A product and the loop nest on its blocks. Where nothing else reads the product, it is built where the nest leaves its first result of the same type."""
    op = nest.epilogue
    assert op is not None
    t = op.result.type
    homes = [cx.buffers.stored(v) for v in nest.stored if v.type == t and nest.members[v] == identity(t.shape) and v not in cx.plan.same]
    homes = [cx.buffers.stored(op.result)] if op.result in cx.plan.memory else [h for h in homes if h.strides[1] in (0, 1)]
    temp = None if homes else cx.work.take(t.dtype, t.size)
    c = homes[0] if temp is None else dense(temp, t)
    cx.buffers.place(op.result, c)
    e = NestEmitter(cx, nest)
    e.blocked = not _is_small(op)
    e.alone = (0, 1) if e.blocked else ()
    e.build()
    if e.blocked:
        e.prepare()
        e.open_rows()
        _product(cx, nest, op, c, e)
        if e.open:
            e.join_rows()
        e.finish()
    else:
        _product(cx, nest, op, c, None)
        e.emit()
    if temp is not None:
        cx.work.give_back(temp)
    cx.report.append({**describe(e), "kind": "epilogue" if e.blocked else "loop", "kept": temp is not None or op.result in cx.plan.memory})


def _block_function(cx: Context, e: NestEmitter) -> tuple[str, Sequence[Value]]:
    """The nest as a kernel function of a block (m0, m1, n0, n1); everything else it uses is captured."""
    stores, nodes = e.stores(), _all_nodes(e)
    held = [n for n in nodes if n.kind == "value"]  # registers of the surrounding code
    symbols = {s for base, strides in e.places() for d in (base, *strides.values()) for s in dims.symbols_of(d)}
    symbols |= {s for n in nodes if n.op is not None and n.op.name == "size" for s in dims.symbols_of(n.op.attrs["dim"])}
    symbols |= {s for _, _, row in e.open for s in dims.symbols_of(row[3])}
    names = sorted(symbols)
    captures = [*(s.mem for s in stores), *(n.val for n in held), *(cx.kb.sizes[s] for s in names)]
    func, kb = helper(cx.module.fresh("block"), [INDEX] * 4 + [as_ktype(v.type) for v in captures], names)
    m0, m1, n0, n1, *given = func.args
    saved = [s.mem for s in stores]
    for s, arg in zip(stores, given):
        s.mem = arg
    for n, arg in zip(held, given[len(stores):]):
        n.val = arg
    for ph in e.phases:
        for loop in ph.loops:
            loop.low, loop.high = (m0, m1) if loop.dims == (0,) else (n0, n1)
    outer, e.kb = e.kb, kb
    e.run_block()
    e.kb = outer
    kb.ret()
    for s, mem in zip(stores, saved):
        s.mem = mem
    cx.module.funcs.append(func)
    return func.name, captures


def _all_nodes(e: NestEmitter) -> list[Node]:
    """Nodes of the nest, with those that need no computing."""
    out: dict[Node, None] = {}
    for ph in e.phases:
        for n in (*ph.nodes, *(r.node for r in (*ph.before, *ph.roots)), *(r.node for r in ph.reds)):
            out[n] = None
            out.update(dict.fromkeys(n.args))
    return list(out)


def _units(sizes: Sequence[DimLike], strides: Sequence[Sequence[DimLike]]) -> list[tuple[DimLike, DimLike]]:
    """Strides of A, B and C. A dim of size 1 has none of its own; the one that makes the other contiguous is taken."""
    m, n, k = sizes

    def unit(stride: DimLike, size: DimLike, value: DimLike) -> DimLike:
        return value if isinstance(size, int) and size == 1 else stride

    return [(unit(rows, high, wide), unit(columns, wide, 1)) for (rows, columns), (high, wide) in zip(strides, ((m, k), (k, n), (m, n)))]


def _gemm(cx: Context, sizes: Sequence[DimLike], xs: Sequence[Access], bases: Sequence[DimLike], strides: Sequence[Sequence[DimLike]], work: Value,
          epilogue: tuple[str, Sequence[Value]] | None, origin: tuple[Index, Index], packed: Packed | None, column: Index) -> None:
    """``packed``: B once more, packed, and the byte where these columns begin; B itself is read where a row alone comes, or few of them."""
    kb = cx.kb
    (rows_a, cols_a), (rows_b, cols_b), (rows_c, _) = _units(sizes, strides)
    name, captures = epilogue or (None, ())
    unread = packed is not None and packed.store is None and isinstance(sizes[0], int) and sizes[0] > 1
    mems = [x.store.mem if i != 1 or not unread else xs[0].store.mem for i, x in enumerate(xs)]
    at = [kb.dim(x) if i != 1 or not unread else 0 for i, x in enumerate(bases)]

    def run(ready: Packed | None) -> None:
        kb.gemm([kb.dim(d) for d in sizes], (mems[0], at[0], kb.dim(rows_a), kb.dim(cols_a)), (mems[1], at[1], kb.dim(rows_b), kb.dim(cols_b)),
                (mems[2], at[2], kb.dim(rows_c)), work, epilogue=name, captures=captures, origin=origin, packed=None if ready is None else (ready.mem, column))

    if packed is None or packed.ready is True:
        run(packed)
    elif isinstance(packed.ready, Value):
        with kb.if_(packed.ready) as br:
            with br.then():
                run(packed)
            with br.orelse():
                run(None)


def _small(cx: Context, dtype: Any, sizes: Sequence[DimLike], xs: Sequence[Access], bases: Sequence[DimLike], strides: Sequence[Sequence[DimLike]]) -> None:
    kb, (m, n, depth) = cx.kb, sizes
    contiguous = all(s == 1 for s in (strides[1][1], strides[2][1]))
    lanes = int(cx.target.vector_bits) // (8 * max(dtype.itemsize, 4)) if contiguous else 1
    while lanes > 1 and isinstance(n, int) and lanes // 2 >= n:
        lanes //= 2
    (sa, sb, sc), (a, b, c) = strides, xs
    chains = _chains_along_k(cx, dtype, sizes, strides)
    if chains:
        lanes = 1
    kk = kb.scalars(lanes)
    zero = kb.constant(0, register(dtype, lanes))
    rows = kb.dim(m)
    with kb.for_(0, rows, _ROWS, poll=1) as part, kb.for_(part.iv, kb.min(rows, kb.add(part.iv, _ROWS))) as row, kb.for_(0, kb.dim(n), lanes) as col:
        left = kb.sub(kb.dim(n), col.iv)
        mask = None if lanes == 1 or (isinstance(left, int) and left >= lanes) else kb.create_mask(left, lanes)

        def step(i: Index, acc: Value) -> Value:
            x = kb.load(a.store.mem, _at(kb, bases[0], (row.iv, sa[0]), (i, sa[1])))
            y = kb.load(b.store.mem, _at(kb, bases[1], (i, sb[0]), (col.iv, sb[1])), lanes, mask)
            if dtype.kind == "f" and cx.target.fma:
                return kk.fma(kk.vector(x), y, acc)
            return kk.add(acc, kk.mul(x, y))

        if chains:
            acc = _along_k(kk, cx.target, chains, int(depth), step, zero)
        elif isinstance(depth, int) and depth <= _SMALL:
            acc = zero
            for i in range(depth):
                acc = step(i, acc)
        else:
            with kb.for_(0, kb.dim(depth), init=[zero]) as lp:
                kb.yield_(step(lp.iv, lp.args[0]))
            acc = lp.results[0]
        kb.store(acc, c.store.mem, _at(kb, bases[2], (row.iv, sc[0]), (col.iv, sc[1])), mask)


def _chains_along_k(cx: Context, dtype: Any, sizes: Sequence[DimLike], strides: Sequence[Sequence[DimLike]]) -> int:
    """Chains of vectors along k in which the packed kernels make such a product, by its sizes and strides; 0 where they go through k number by number."""
    m, n, k = sizes
    if dtype.mlir not in ("f64", "f32") or not (isinstance(m, int) and isinstance(n, int) and isinstance(k, int)) or k == 0:
        return 0
    cfg = gemm.config(dtype.mlir, cx.target)
    along_a, across_b, along_b = k == 1 or strides[0][1] == 1, n == 1 or strides[1][1] == 1, (n if k == 1 else strides[1][0]) == 1
    if m == 1 and n > 1 and across_b:
        return 0
    if m <= cfg.row_dots and along_b and ((n > 1 and not across_b) or m == n == 1):
        return DOT_CHAINS if m == 1 else TILE_CHAINS
    if (n == 1 or (n <= cfg.col_dots and k >= 4 * cfg.vec.lanes)) and along_a:
        return DOT_CHAINS if n == 1 else TILE_CHAINS
    return 0


def _along_k(kk: Any, target: Any, chains: int, depth: int, step: Any, zero: Value) -> Value:
    """One product by vectors along k, as the packed kernels make it, in scalars."""
    lanes = gemm.config(as_ktype(zero.type).elem, target).vec.lanes
    sums: list[list[Value]] = [[zero] * lanes for _ in range(chains)]
    for i in range(depth):
        chain = sums[i // lanes % chains]
        chain[i % lanes] = step(i, chain[i % lanes])
    while len(sums) > 1:
        sums = [[x if y is zero else kk.add(x, y) for x, y in zip(a, b)] for a, b in zip(sums[::2], sums[1::2])]
    (vector,) = sums
    while len(vector) > 1:
        half = len(vector) // 2
        vector = [x if y is zero else kk.add(x, y) for x, y in zip(vector[:half], vector[half:])]
    return vector[0]


def _at(kb: Any, base: DimLike, *terms: tuple[Index, DimLike]) -> Index:
    at = kb.dim(base)
    for i, stride in terms:
        at = kb.add(at, kb.mul(i, kb.dim(stride)))
    return at  # type: ignore[no-any-return]
