"""Loops and branches of the tensor level: ``scan`` and ``cond``.

Carries and results of size 1 stay in registers. An array in a scan's carry has one buffer when the body only writes parts of it (``insert``,
``scatter``), else two in turn. Inputs that are scanned are read, and results stacked, where they are: the body gets their row as a view.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ir.core import Block, Value
from .access import Access
from .bufferise import Store, adjacent, dense, strides_of
from .fusion import Kern, size_one
from .kernel import register
from .loops import scalar_of
from .lowering_index import as_size, elementwise
from .lowering_packed import Packed, fixed_in_loop
from .nest import Context
from .planning import analyse

__all__ = ["cond", "scan"]

_POLL = 256


def _one(v: Value) -> bool:
    return size_one(v.type.shape)


def _copy(cx: Context, v: Value, source: Access, target: Access) -> None:
    places = [(a.base, {d: s for d, s in enumerate(a.strides) if s != 0}) for a in (source, target)]
    elementwise(cx, v.type.shape, [(source.store, places[0])], lambda k, x: x, (target.store, places[1]))


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
        registers = [j for j, v in enumerate(outs) if _one(v)]
        self.plan = analyse(self.body, registers, {args[self.nc + j]: j for j in arrays})
        self.double = [j for j in arrays if j not in self.plan.in_place]
        self.arrays = arrays
        self.copies: dict[int, Store] = {}
        self.made: list[Store] = []  # constants of the loop that every round would have to copy

    def emit(self) -> None:
        """Buffers, the loop, and what is left to move after it."""
        cx, kb, op = self.cx, self.cx.kb, self.op
        self.carry = {j: cx.buffers.stored(op.results[j]) for j in self.arrays}
        spare = {j: cx.work.take(op.results[j].type.dtype, op.results[j].type.size) for j in self.double}
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
        cx.report.append({"kind": "scan", "length": op.attrs["length"], "in place": len(self.plan.in_place), "double": len(self.double),
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
        v = self.op.results[j]
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
        for j, v in enumerate(body.outputs):
            if _one(v):
                outs.append(None)
            elif j >= self.nk:
                outs.append(_row(cx.buffers.stored(op.results[j]), i))
            elif j in self.double:
                outs.append(Access(Store(writes[j], v.type.dtype, "work"), 0, strides_of(v.type)))
            else:
                outs.append(self.carry[j])
        found = dict(zip(sorted(self.plan.registers), self.lower_block(cx.module, cx.kb, self.plan, at, outs, cx.work, regs)))
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
        cx, kb, v = self.cx, self.cx.kb, self.op.results[j]
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


def cond(cx: Context, item: Kern, lower_block: Any) -> None:
    """Runs one of two regions."""
    op, kb = item.op, cx.kb
    assert op is not None
    predicate = scalar_of(cx, item, op.operands[0])
    results = [j for j, r in enumerate(op.results) if _one(r)]
    outs = [None if j in results else cx.buffers.stored(r) for j, r in enumerate(op.results)]
    given = {p: scalar_of(cx, item, o) for p, o in enumerate(op.operands) if p and _one(o)}
    with kb.if_(predicate, [register(op.results[j].type.dtype) for j in results]) as br:
        for region, branch in zip(op.regions, (br.then, br.orelse)):
            with branch():
                at = {a: cx.buffers.access(item, op.operands[p]) for p, a in enumerate(region.args, 1) if p not in given}
                regs = {a: given[p] for p, a in enumerate(region.args, 1) if p in given}
                kb.yield_(*lower_block(cx.module, kb, analyse(region, results), at, outs, cx.work, regs))
    for j, x in zip(results, br.results):
        cx.regs[op.results[j]] = x
        if op.results[j] in cx.plan.memory:
            target = cx.buffers.stored(op.results[j])
            kb.store(x, target.store.mem, kb.dim(target.base))
    cx.report.append({"kind": "cond"})
