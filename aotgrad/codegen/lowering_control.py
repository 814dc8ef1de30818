"""Loops and branches of the tensor level: ``scan`` and ``cond``.

Carries and results of size 1 stay in registers. An array in a scan's carry has one buffer when the body only writes parts of it (``insert``,
``scatter``), else two in turn; one that comes back as it is is left alone. So it is with an array that a cond is given and gives back (``written``): a branch
that writes parts of it does so in its place, one that keeps it does nothing. Inputs that are scanned are read, and results stacked, where they are: the body
gets their row as a view.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ir.core import Block, Value
from .access import Access
from .bufferise import Store, adjacent, dense, reshaped, strides_of
from .kernel import register
from .loops import scalar_of
from .lowering_index import as_size, elementwise
from .lowering_packed import Packed, fixed_in_loop
from .nest import Context
from .plan import Kern, size_one
from .planning import analyse

__all__ = ["cond", "scan"]

_POLL = 256


def _one(v: Value) -> bool:
    return size_one(v.type.shape)


def _copy(cx: Context, v: Value, source: Access, target: Access) -> None:
    places = [(a.base, {d: s for d, s in enumerate(a.strides) if s != 0}) for a in (source, target)]
    elementwise(cx, v.type.shape, [(source.store, places[0])], lambda k, x: x, (target.store, places[1]))


def _without(block: Block, outputs: Sequence[int]) -> Block:
    """The block without some of its outputs."""
    out = Block()
    out.args, out.ops, out.outputs = block.args, block.ops, [v for j, v in enumerate(block.outputs) if j not in outputs]
    return out


def _row(access: Access, i: Any) -> Access:
    return Access(access.store, access.base + access.strides[0] * i, access.strides[1:])


class _Scan:
    """One scan being emitted."""

    def __init__(self, cx: Context, item: Kern, lower_block: Any) -> None:
        op = item.op
        assert op is not None
        self.cx, self.item, self.op, self.lower_block = cx, item, op, lower_block
        self.nc, self.nk = op.attrs["consts"], op.attrs["carry"]
        self.body: Block = op.regions[0]
        outs, args = self.body.outputs, self.body.args
        arrays = [j for j in range(self.nk) if not _one(outs[j])]
        self.scalars = [j for j in range(self.nk) if _one(outs[j])]
        still = [j for j in arrays if outs[j] is args[self.nc + j]]
        self.moving = [j for j in range(len(outs)) if j not in still]  # outputs that a round gives
        place = {j: i for i, j in enumerate(self.moving)}
        self.plan = analyse(_without(self.body, still), [place[j] for j, v in enumerate(outs) if _one(v)],
                            {args[self.nc + j]: place[j] for j in arrays if j in place})
        self.double = [j for j in arrays if j in place and place[j] not in self.plan.in_place]
        self.arrays = arrays
        self.copies: dict[int, Store] = {}
        self.made: list[Store] = []  # constants of the loop that every round would have to copy

    def emit(self) -> None:
        """Buffers, the loop, and what is left to move after it."""
        cx, kb, op = self.cx, self.cx.kb, self.op
        self.carry = {j: reshaped(cx.buffers.stored(op.results[j]), op.results[j].type, self.body.outputs[j].type) for j in self.arrays}
        spare = {j: cx.work.take(v.type.dtype, v.type.size) for j in self.double for v in (self.body.outputs[j],)}
        start = [scalar_of(cx, self.item, op.operands[self.nc + j]) for j in self.scalars]
        self.consts = {i: scalar_of(cx, self.item, op.operands[i]) for i in range(self.nc) if _one(op.operands[i])}
        self.fixed = {p: self._fixed(p) for p in range(self.nc) if p not in self.consts}
        packed = self._pack()
        first = {j: self._start(j) for j in self.double}
        init = [*start, *(a.store.mem for a in first.values()), *(s.mem for s in spare.values())]
        with kb.for_(0, kb.dim(op.attrs["length"]), init=init, poll=_POLL) as lp:
            found = self._round(lp.iv, lp.args)
            kb.yield_(*found)
        n = len(self.scalars)
        for j, x in zip(self.scalars, lp.results[:n]):
            self._deliver(j, x)
        for j, mem in zip(self.double, lp.results[n:n + len(self.double)]):
            self._settle(j, mem)
        for s in (*spare.values(), *self.copies.values(), *self.made, *packed):
            cx.work.give_back(s)
        cx.report.append({"kind": "scan", "length": op.attrs["length"], "in place": len(self.arrays) - len(self.double), "double": len(self.double),
                          "registers": len(self.scalars)})

    def _fixed(self, p: int) -> Access:
        """Where an argument that does not change is: side by side, if the body reads it so."""
        cx, arg = self.cx, self.body.args[p]
        at: Access = cx.buffers.access(self.item, self.op.operands[p])
        if not self.plan.memory_args.get(arg) or adjacent(at, arg.type.shape):
            return at
        self.made.append(cx.work.take(arg.type.dtype, arg.type.size))
        own = dense(self.made[-1], arg.type)
        _copy(cx, arg, at, own)
        return own

    def _pack(self) -> list[Store]:
        """Packs or copies what products of every round multiply with."""
        if self.op.attrs["length"] == 1:
            return []
        found = fixed_in_loop(self.cx, self.plan, {self.body.args[p]: a for p, a in self.fixed.items()}, self.op.attrs["length"])
        self.cx.module.packed.update((op, x) for op, x in found.items() if isinstance(x, Packed))
        self.cx.module.copied.update((op, x) for op, x in found.items() if isinstance(x, Access))
        return list(dict.fromkeys(x.store for x in found.values() if x.store is not None))

    def _start(self, j: int) -> Access:
        """The carry's own buffer where it begins at element 0 and is dense; else a copy in the workspace."""
        at: Access = self.carry[j]
        v = self.body.outputs[j]
        if isinstance(at.base, int) and at.base == 0 and at.strides == strides_of(v.type):
            return at
        store = self.cx.work.take(v.type.dtype, v.type.size)
        self.copies[j] = store
        own = Access(store, 0, strides_of(v.type))
        _copy(self.cx, v, at, own)
        return own

    def _round(self, iv: Any, args: Sequence[Value]) -> list[Value]:
        cx, op, body = self.cx, self.op, self.body
        i = as_size(cx, iv)
        if op.attrs["reverse"]:
            i = op.attrs["length"] - 1 - i
        n, d = len(self.scalars), len(self.double)
        reads = dict(zip(self.double, args[n:n + d]))
        writes = dict(zip(self.double, args[n + d:]))
        at, regs = self._arguments(i, dict(zip(self.scalars, args[:n])), reads)
        outs: list[Access | None] = []
        for j in self.moving:
            v = body.outputs[j]
            if _one(v):
                outs.append(None)
            elif j >= self.nk:
                outs.append(_row(cx.buffers.stored(op.results[j]), i))
            elif j in self.double:
                outs.append(Access(Store(writes[j], v.type.dtype, "work"), 0, strides_of(v.type)))
            else:
                outs.append(self.carry[j])
        given = self.lower_block(cx.module, cx.kb, self.plan, at, outs, cx.work, regs)
        found = dict(zip([self.moving[i] for i in sorted(self.plan.registers)], given))
        for j, x in found.items():
            if j >= self.nk:
                stack = cx.buffers.stored(op.results[j])
                cx.kb.store(x, stack.store.mem, cx.kb.dim(stack.base + stack.strides[0] * i))
        return [*(found[j] for j in self.scalars), *writes.values(), *reads.values()]

    def _arguments(self, i: Any, scalars: dict[int, Value], reads: dict[int, Value]) -> tuple[dict[Value, Access], dict[Value, Value]]:
        cx, op = self.cx, self.op
        at: dict[Value, Access] = {}
        regs: dict[Value, Value] = {}
        for p, arg in enumerate(self.body.args):
            j = p - self.nc
            if p in self.consts:
                regs[arg] = self.consts[p]
            elif p < self.nc:
                at[arg] = self.fixed[p]
            elif j in scalars:
                regs[arg] = scalars[j]
            elif j in reads:
                at[arg] = Access(Store(reads[j], arg.type.dtype, "work"), 0, strides_of(arg.type))
            elif j < self.nk:
                at[arg] = self.carry[j]
            else:
                row = _row(cx.buffers.access(self.item, op.operands[p]), i)
                if _one(arg):
                    regs[arg] = cx.kb.load(row.store.mem, cx.kb.dim(row.base))
                else:
                    at[arg] = row
        return at, regs

    def _deliver(self, j: int, x: Value) -> None:
        result = self.op.results[j]
        self.cx.regs[result] = x
        if result in self.cx.plan.memory:
            at = self.cx.buffers.stored(result)
            self.cx.kb.store(x, at.store.mem, self.cx.kb.dim(at.base))

    def _settle(self, j: int, mem: Value) -> None:
        """After an odd number of rounds the carry is in the spare buffer."""
        cx, kb, v = self.cx, self.cx.kb, self.body.outputs[j]
        source = Access(Store(mem, v.type.dtype, "work"), 0, strides_of(v.type))
        if j in self.copies:
            _copy(cx, v, source, self.carry[j])
            return
        odd = kb.cmp("ne", kb.rem(kb.dim(self.op.attrs["length"]), 2), 0)
        with kb.if_(odd) as br, br.then():
            _copy(cx, v, source, self.carry[j])


def scan(cx: Context, item: Kern, lower_block: Any) -> None:
    """Runs the body ``length`` times."""
    _Scan(cx, item, lower_block).emit()


class _Cond:
    """One cond being emitted. ``pairs``: results by number, and the region arguments whose place they take."""

    def __init__(self, cx: Context, item: Kern, lower_block: Any) -> None:
        op = item.op
        assert op is not None
        self.cx, self.item, self.op, self.lower_block = cx, item, op, lower_block
        self.results = [j for j, r in enumerate(op.results) if _one(r)]
        self.pairs = {j: p - 1 for p, j in op.attrs.get("pairs", ())}

    def emit(self) -> None:
        """Both branches."""
        cx, op, item, kb = self.cx, self.op, self.item, self.cx.kb
        predicate = scalar_of(cx, item, op.operands[0])
        given = {p: scalar_of(cx, item, o) for p, o in enumerate(op.operands) if p and _one(o)}
        outs = [None if j in self.results else reshaped(cx.buffers.stored(r), r.type, op.regions[0].outputs[j].type) for j, r in enumerate(op.results)]
        with kb.if_(predicate, [register(op.results[j].type.dtype) for j in self.results]) as br:
            for region, branch in zip(op.regions, (br.then, br.orelse)):
                with branch():
                    held = {p: outs[j] for j, p in self.pairs.items()}
                    at = {a: held[p] if p in held else cx.buffers.access(item, op.operands[p + 1]) for p, a in enumerate(region.args) if p + 1 not in given}
                    kb.yield_(*self._branch(region, at, {a: given[p] for p, a in enumerate(region.args, 1) if p in given}, outs))
        for j, x in zip(self.results, br.results):
            cx.regs[op.results[j]] = x
            if op.results[j] in cx.plan.memory:
                target = cx.buffers.stored(op.results[j])
                kb.store(x, target.store.mem, kb.dim(target.base))
        cx.report.append({"kind": "cond", "in place": len(self.pairs)} if self.pairs else {"kind": "cond"})

    def _branch(self, region: Block, at: Any, regs: dict[Value, Value], outs: Sequence[Access | None]) -> list[Value]:
        """One branch: what is not made in its place is made apart, and copied there when nothing reads the old array any more."""
        cx, paired = self.cx, {j: region.args[p] for j, p in self.pairs.items()}
        still = [j for j, a in paired.items() if region.outputs[j] is a]
        made = [j for j in range(len(outs)) if j not in still]
        plan = analyse(_without(region, still), [i for i, j in enumerate(made) if j in self.results], {paired[j]: i for i, j in enumerate(made) if j in paired})
        read = {*(o for op in region.ops for o in op.operands), *region.outputs}
        apart = {j: outs[j] for i, j in enumerate(made) if j in paired and i not in plan.in_place and paired[j] in read}
        own = {j: dense(cx.work.take(v.type.dtype, v.type.size), v.type) for j in apart for v in (region.outputs[j],)}
        found: list[Value] = self.lower_block(cx.module, cx.kb, plan, at, [own.get(j, outs[j]) for j in made], cx.work, regs)
        for j, target in apart.items():
            assert target is not None
            _copy(cx, region.outputs[j], own[j], target)
            cx.work.give_back(own[j].store)
        return found


def cond(cx: Context, item: Kern, lower_block: Any) -> None:
    """Runs one of two regions."""
    _Cond(cx, item, lower_block).emit()
