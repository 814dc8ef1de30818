"""Tiny arrays become numbers: a block in which every result has a few elements is rewritten in scalar ops, which live in registers.

The usual case is the body of a ``scan`` over the state of a small differential equation: its carry is then passed in registers instead of memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from aotgrad_runtime.dtypes import as_dtype

from ..ir import opdef
from ..ir.builder import Builder
from ..ir.core import Block, Op, Value
from ..ir.opdef import ViewMap
from .plan import view_of, weight
from .sum_order import CHAINS, groups, is_run, sum_size

__all__ = ["scalarise"]

LIMIT = 8
_TOTAL = 3000
_KERNEL = 4  # scalars that take as long to compile as one loop over a tiny array
_MOVES = frozenset(("insert", "concatenate", "constant", "reshape", "relayout"))  # in scalars they are nothing
_COMBINE = {"add": "add", "mul": "mul", "max": "maximum", "min": "minimum", "and": "logical_and", "or": "logical_or"}
_KINDS = ("insert", "insert_add", "concatenate", "constant", "dot", "cumsum", "cumprod", "reshape", "relayout", "scan")


def _count(v: Value) -> int | None:
    """Elements of a value of static size, None for another."""
    return math.prod(v.type.shape) if all(isinstance(n, int) for n in v.type.shape) else None


def _is_tiny(v: Value, limit: int = LIMIT) -> bool:
    n = _count(v)
    return n is not None and 0 < n <= limit


def _suits(op: Op) -> bool:
    """Whether an op can be written in scalars."""
    if not all(_is_tiny(r) for r in op.results) and op.name != "scan":
        return False
    low = opdef.get(op.name).lower
    if isinstance(low, opdef.Scalar):
        n = _count(op.result)
        return n is not None and (n <= 4 or weight(op) < 16)  # many calls of exp are better made as a vector
    if view_of(op) is not None:
        return True
    if not all(_is_tiny(o, 4 * LIMIT) for o in op.operands) and op.name != "scan":
        return False
    if op.name == "dot":
        return op.result.type.rank == 2 and op.result.type.dtype.kind in "iu"
    return isinstance(low, (opdef.Index, opdef.Reduce)) or op.name in _KINDS


def _all_suit(block: Block) -> bool:
    """Whether a whole block is to be written in scalars: all of it can be, some of it is an array, and that makes it short, or not longer than its kernels would be."""
    if not all(_suits(op) for op in block.ops):
        return False
    scalars = kernels = 0
    arrays = False
    for op in block.ops:
        view = view_of(op) is not None
        arrays = arrays or op.results[0].type.rank > 0
        kernels += not view and op.results[0].type.rank > 0
        if not view and op.name not in _MOVES:
            scalars += sum(_count(r) or 1 for r in (op.operands[1:] if op.name == "insert_add" else op.results))
    return arrays and scalars <= max(_TOTAL, _KERNEL * kernels)


def scalarise(block: Block, bits: int) -> Block:
    """The block with what is tiny in scalars; the same block where nothing is. Arguments stay; regions are rewritten too. ``bits``: of a vector, as sums go by them."""
    return _Rewriter(block, _all_suit(block), bits).run() if block.ops else block


def _indices(shape: Sequence[int]) -> Iterable[tuple[int, ...]]:
    return itertools.product(*(range(n) for n in shape))


def _flat(index: Sequence[int], shape: Sequence[int]) -> int:
    at = 0
    for i, n in zip(index, shape):
        at = at * n + i
    return at


class _Rewriter:
    """``lists``: the scalars of a value; ``arrays``: the value as an array. Either is made from the other when asked for."""

    def __init__(self, block: Block, whole: bool, bits: int) -> None:
        self.source, self.whole, self.bits = block, whole, bits
        self.out = Block()
        self.b = Builder(self.out)
        self.lists: dict[Value, list[Any]] = {}
        self.arrays: dict[Value, Value] = {}
        self.changed = whole

    def run(self) -> Block:
        """The rewritten block."""
        self.out.args = list(self.source.args)
        self.arrays.update((a, a) for a in self.out.args)
        self._ops()
        self.out.outputs = [self.array(v) for v in self.source.outputs]
        return self.out if self.changed else self.source

    def _ops(self) -> None:
        for op in self.source.ops:
            self.b.loc = op.loc
            if op.name == "scan" and self._scan(op):
                continue
            if self.whole and op.name != "scan":
                self.lists[op.result] = self._scalars_of(op)
            else:
                self._copy(op)

    def _copy(self, op: Op) -> None:
        operands = [self.array(o) for o in op.operands]
        regions = [scalarise(r, self.bits) for r in op.regions]
        if operands == op.operands and all(a is b for a, b in zip(regions, op.regions)):
            self.out.ops.append(op)
            self.arrays.update((r, r) for r in op.results)
            return
        self.changed = True
        new = Op(op.name, operands, [r.type for r in op.results], op.attrs, regions, op.loc)
        self.out.ops.append(new)
        self.arrays.update(zip(op.results, new.results))

    # ---- two forms of a value -------------------------------------------------------------------------------------------------------

    def array(self, v: Value) -> Value:
        """The value as an array."""
        if v not in self.arrays:
            parts, shape = self.lists[v], v.type.shape
            if not shape:
                self.arrays[v] = self.element(v, 0)
            else:
                ones = [self.b.reshape(self.element(v, i), shape=(1,)) for i in range(len(parts))]
                joined = self.b.concatenate(*ones, dim=0) if len(ones) > 1 else ones[0]
                self.arrays[v] = self.b.to_shape(joined, shape)
                if v.type.layout is not None:
                    self.arrays[v] = self.b.relayout(self.arrays[v], layout=v.type.layout)
        return self.arrays[v]

    def element(self, v: Value, i: int) -> Value:
        """One element (by its row-major number) as a scalar."""
        if v not in self.lists:
            self.lists[v] = [None] * (_count(v) or 1)
        found = self.lists[v][i]
        if found is None:
            found = self.lists[v][i] = self._extract(v, np.unravel_index(i, v.type.shape) if v.type.shape else ())
        return found  # type: ignore[no-any-return]

    def _extract(self, v: Value, at: Any) -> Value:
        x = self.arrays[v]
        if not v.type.shape:
            return x
        rank = len(v.type.shape)
        part = self.b.slice(x, starts=tuple(int(i) for i in at), sizes=(1,) * rank, steps=(1,) * rank)
        return self.b.reshape(part, shape=())  # type: ignore[no-any-return]

    def all(self, v: Value) -> list[Value]:
        """Every element."""
        return [self.element(v, i) for i in range(_count(v) or 1)]

    # ---- ops ----------------------------------------------------------------------------------------------------------------------

    def _scalars_of(self, op: Op) -> list[Any]:
        low, view = opdef.get(op.name).lower, view_of(op)
        if view is not None:
            return self._view(op, view)
        if isinstance(low, opdef.Scalar):
            columns = [self.all(o) for o in op.operands]
            return [self.b.emit(op.name, row, op.attrs)[0] for row in zip(*columns)]
        if isinstance(low, opdef.Reduce):
            return self._reduce(op, _COMBINE[low.combine])
        if isinstance(low, opdef.Index):
            return self._index(op)
        return getattr(self, "_" + op.name.replace("cumprod", "cumsum").replace("insert_add", "insert"))(op)  # type: ignore[no-any-return]

    def _view(self, op: Op, view: ViewMap) -> list[Any]:
        src, shape = op.operands[0], op.result.type.shape
        out: list[Any] = []
        for index in _indices(shape):
            at = [off + sum(index[j] * step for j, step in steps) for off, steps in zip(view.offsets, view.steps)]
            if _count(src) is None or not all(isinstance(i, int) for i in at):
                return self._of_large(op)
            out.append((src, _flat(at, src.type.shape)))
        if not _is_tiny(src, 4 * LIMIT):
            return self._of_large(op)
        return [self.element(v, i) for v, i in out]

    def _of_large(self, op: Op) -> list[Any]:
        """A small view of a large array: the view stays, its elements are read."""
        self._copy(op)
        return [None] * (_count(op.result) or 1)

    def _index(self, op: Op) -> list[Any]:
        t = op.result.type
        if op.name == "full":
            return [self.b.scalar(op.attrs["value"], t.dtype)] * (_count(op.result) or 1)
        if op.name == "iota":
            return [self.b.scalar(index[op.attrs["dim"]], t.dtype) for index in _indices(t.shape)]
        self._copy(op)
        return [None]

    def _constant(self, op: Op) -> list[Any]:
        data = op.attrs["value"]
        return [self.b.scalar(x, as_dtype(data.dtype)) for x in data.reshape(-1).tolist()]

    def _relayout(self, op: Op) -> list[Any]:
        return self.all(op.operands[0])

    _reshape = _relayout

    def _reduce(self, op: Op, combine: str) -> list[Any]:
        x, dims = op.operands[0], op.attrs["dims"]
        t, shape = x.type, x.type.shape
        found: dict[tuple[int, ...], list[Value]] = {index: [] for index in _indices([n for d, n in enumerate(shape) if d not in dims])}
        for moved in _indices([shape[d] for d in t.order]):  # as they lie in memory
            index = [moved[t.order.index(d)] for d in range(len(shape))]
            found[tuple(i for d, i in enumerate(index) if d not in dims)].append(self.element(x, _flat(index, shape)))
        size = sum_size(op)
        run = math.prod(shape[d] for d in groups(t, dims)[-1]) if is_run(t, dims) else 1
        return [self._tree(combine, g) if size is None else self._sum(combine, g, run, self.bits // (8 * size)) for g in found.values()]

    def _sum(self, combine: str, xs: list[Any], run: int, lanes: int) -> Any:
        """In the order of loops (``sum_order``): each run by vectors in four chains, runs and rows one after the other."""
        total: Any = None
        for i in range(0, len(xs), run):
            chains: list[list[Any]] = [[None] * lanes] * CHAINS
            for j in range(i, i + run, lanes):
                vector = [xs[p] if p < i + run else None for p in range(j, j + lanes)]
                chains = [*chains[1:], self._pairs(combine, chains[0], vector)]
            while len(chains) > 1:
                chains = [self._pairs(combine, a, b) for a, b in zip(chains[::2], chains[1::2])]
            (vector,) = chains
            while len(vector) > 1:
                vector = self._pairs(combine, vector[:len(vector) // 2], vector[len(vector) // 2:])
            total = self._pairs(combine, [total], vector)[0]
        return self.b.add(total, self.b.scalar(0.0, total.type.dtype)) if combine == "add" else total  # loops give no -0

    def _pairs(self, combine: str, xs: list[Any], ys: list[Any]) -> list[Any]:
        """Element by element; None is nothing."""
        return [y if x is None else x if y is None else self.b.emit(combine, [x, y])[0] for x, y in zip(xs, ys)]

    def _tree(self, combine: str, xs: list[Any]) -> Any:
        """By halves."""
        while len(xs) > 1:
            half = (len(xs) + 1) // 2
            xs = self._pairs(combine, xs[:half], [*xs[half:], None][:half])
        return xs[0]

    def _insert(self, op: Op) -> list[Any]:
        x, v = op.operands
        out = self.all(x)
        for i, index in enumerate(_indices(v.type.shape)):
            at = _flat([s + j * t for s, j, t in zip(op.attrs["starts"], index, op.attrs["steps"])], x.type.shape)
            out[at] = self.b.add(out[at], self.element(v, i)) if op.name == "insert_add" else self.element(v, i)
        return out

    def _concatenate(self, op: Op) -> list[Any]:
        dim, shape = op.attrs["dim"], op.result.type.shape
        out: list[Any] = [None] * (_count(op.result) or 1)
        start = 0
        for x in op.operands:
            for i, index in enumerate(_indices(x.type.shape)):
                out[_flat([j + start * (d == dim) for d, j in enumerate(index)], shape)] = self.element(x, i)
            start += x.type.shape[dim]
        return out

    def _dot(self, op: Op) -> list[Any]:
        a, b = op.operands
        (m, k), n = a.type.shape, b.type.shape[1]
        out = []
        for i, j in _indices((m, n)):
            total: Any = self.b.scalar(0, a.type.dtype)
            for p in range(k):
                total = self.b.add(total, self.b.mul(self.element(a, i * k + p), self.element(b, p * n + j)))
            out.append(total)
        return out

    def _cumsum(self, op: Op) -> list[Any]:
        x, dim = op.operands[0], op.attrs["dim"]
        shape = x.type.shape
        out: list[Any] = [None] * (_count(x) or 1)
        lines: dict[tuple[int, ...], list[int]] = {}
        for i, index in enumerate(_indices(shape)):
            lines.setdefault(tuple(j for d, j in enumerate(index) if d != dim), []).append(i)
        for line in lines.values():
            running: Any = self.b.scalar(0 if op.name == "cumsum" else 1, x.type.dtype) if op.attrs["exclusive"] else None
            for i in reversed(line) if op.attrs["reverse"] else line:
                if op.attrs["exclusive"]:
                    out[i] = running
                value = self.element(x, i)
                running = value if running is None else self.b.emit("add" if op.name == "cumsum" else "mul", [running, value])[0]
                if not op.attrs["exclusive"]:
                    out[i] = running
        return out

    # ---- loops --------------------------------------------------------------------------------------------------------------------

    def _scan(self, op: Op) -> bool:
        """A scan whose body is tiny passes its carry as scalars."""
        body, nc, nk = op.regions[0], op.attrs["consts"], op.attrs["carry"]
        carries = body.args[nc:nc + nk]
        ready = _all_suit(body) and all(_is_tiny(c) for c in carries) and any(c.type.shape for c in carries) and all(_is_tiny(o) for o in body.outputs)
        if not ready:
            return False
        self.changed = True
        inner = _Rewriter(body, True, self.bits)
        operands: list[Value] = []
        for p, (arg, given) in enumerate(zip(body.args, op.operands)):
            spread = p < nc + nk and _is_tiny(arg)
            if spread:
                scalars = self.all(given)
                inner.lists[arg] = [inner.out.add_arg(s.type) for s in scalars]
                operands += scalars
            else:
                inner.arrays[arg] = inner.out.add_arg(arg.type)
                operands.append(self.array(given))
        consts = sum(len(inner.lists.get(a, [a])) for a in body.args[:nc])
        inner._ops()
        heads = [x for v in body.outputs[:nk] for x in inner.all(v)]
        inner.out.outputs = [*heads, *(inner.array(v) for v in body.outputs[nk:])]
        found = self.b.emit("scan", operands, {**op.attrs, "consts": consts, "carry": len(heads)}, (inner.out,))
        it = iter(found)
        for r, v in zip(op.results, body.outputs[:nk]):
            self.lists[r] = [next(it) for _ in range(_count(v) or 1)]
        self.arrays.update(zip(op.results[nk:], it))
        return True
