"""Products of a loop that need nothing of its other rounds: made for all rounds at once, before the loop or behind it.

    scan(xs): x -> ... dot(x, w) ...        ->   p = dot(xs, w, w, ...);  scan(xs, p): x, q -> ... q ...
    scan(xs): x -> ... stacked dot(v, w)    ->   vs = scan(xs): x -> ... stacked v;  dot(vs, w, w, ...)

Both are products of a batch, which keeps every bit: its parts are the products of the rounds. ``lowering_dot`` joins their rows where that keeps the order of the sums;
where it is known not to, a product stays in the loop. Runs on a program that nobody differentiates any more: the gradient of a matrix would be one of a batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..ir import dims
from ..ir.builder import Builder
from ..ir.core import Block, Op, Value
from ..ir.dims import DimLike
from ..ir.host import acts
from ..ir.transforms.rewrite import copy_ops
from .sum_order import FEW

__all__ = ["unloop"]

_MORE = 4  # times the numbers that a loop scans and stacks already that a product for all rounds may take
_ENOUGH = 16  # rows of a round above which a product gains nothing from those of other rounds: its matrix is packed once anyway


class _Loop:
    """A scan being taken apart."""

    def __init__(self, b: Builder, op: Op, operands: Sequence[Value]) -> None:
        self.b, self.op, self.operands = b, op, operands
        self.nc, self.nk, self.length, self.body = op.attrs["consts"], op.attrs["carry"], op.attrs["length"], op.regions[0]
        self.consts = dict(zip(self.body.args[:self.nc], operands))
        self.scanned = dict(zip(self.body.args[self.nc + self.nk:], operands[self.nc + self.nk:]))
        uses = Counter(o for inner in self.body.ops for o in inner.operands)
        uses.update(self.body.outputs)
        self.room = _MORE * _size([v for v in (*self.scanned, *self.body.outputs[self.nk:]) if v.type.dtype.kind == "f"])
        self.before: dict[Value, Op] = {}  # products by the value in the body
        self.behind: dict[int, Op] = {}  # products by the output that they are
        for inner in self.body.ops:
            if inner.name != "dot" or not self._joins(inner):
                continue
            v, left = inner.result, inner.operands[0]
            ends = [j for j, o in enumerate(self.body.outputs) if o is v and j >= self.nk]
            if self._rows(left) is not None and self._fits(v):
                self.before[v] = inner
            elif len(ends) == uses[v] == 1 and left not in self.consts and left.type.layout is None and self._fits(left):
                self.behind[ends[0]] = inner

    def _joins(self, op: Op) -> bool:
        """Whether the products of all rounds are worth one: with a matrix that does not change, and rows that may be joined."""
        t = op.result.type
        if t.rank != 2 or t.dtype.mlir not in ("f32", "f64") or any(x.type.layout is not None for x in (op.result, *op.operands)):
            return False
        (m, n), (matrix, turned) = t.shape, self._matrix(op.operands[1])
        if isinstance(m, int) and m > _ENOUGH:  # it would leave the cache
            return False
        return matrix is not None and all(d > FEW for d in ((m, n) if turned else (n,)) if isinstance(d, int))

    def _matrix(self, v: Value) -> tuple[Value | None, bool]:
        """The const that a right operand is, if it is one, and whether it is read transposed."""
        turned = v.op is not None and v.op.name == "permute"
        matrix = self.consts.get(v.op.operands[0] if turned and v.op is not None else v)
        return matrix, turned != (matrix is not None and matrix.op is not None and matrix.op.name == "permute")

    def _rows(self, v: Value) -> Value | None:
        """The scanned array that a left operand is a row of, as it is or with another shape."""
        if v.op is not None and v.op.name == "reshape":
            v = v.op.operands[0]
        found = self.scanned.get(v)
        return found if found is not None and found.type.layout is None and v.type.layout is None else None

    def _fits(self, v: Value) -> bool:
        """Whether there is room for one more value of every round; it is taken then."""
        if v in self.body.outputs[self.nk:]:
            return True
        left = self.room - v.type.size
        if dims.maximum(left, 0) != left:
            return False
        self.room = left
        return True

    def _batch(self, left: Value, op: Op) -> Value:
        """The product of all rounds of ``left``."""
        b, right = self.b, op.operands[1]
        b.loc = op.loc
        if right in self.consts:
            matrix = self.consts[right]
        else:
            assert right.op is not None
            matrix = b.permute(self.consts[right.op.operands[0]], perm=right.op.attrs["perm"])
        rows, n = (self.length, *op.operands[0].type.shape), right.type.shape[1]
        made: Value = b.dot(left if left.type.shape == rows else b.reshape(left, shape=rows), b.broadcast(matrix, shape=(self.length, rows[2], n), dims=(1, 2)))
        return made

    def emit(self) -> list[Value] | None:
        """What stands for the results; None where all stays as it is."""
        if not self.before and not self.behind:
            return None
        b, body, loc = self.b, self.body, self.op.loc
        products = {v: self._batch(self._rows(op.operands[0]), op) for v, op in self.before.items()}  # type: ignore[arg-type]
        whole = {j: products[v] for j, v in enumerate(body.outputs) if j >= self.nk and v in products}
        inside = Block([a.type for a in body.args])
        env = dict(zip(body.args, inside.args)) | {v: inside.add_arg(v.type) for v in products}
        stacked = [j for j in range(self.nk, len(body.outputs)) if j not in whole]
        ends = [self.behind[j].operands[0] if j in self.behind else body.outputs[j] for j in stacked]
        kept = list(dict.fromkeys(ends))
        outputs = [*body.outputs[:self.nk], *kept]
        copy_ops(Builder(inside, loc), _needed([op for op in body.ops if not op.results or op.results[0] not in products], outputs), env)
        inside.outputs = [env[o] for o in outputs]
        b.loc = loc
        found = b.emit("scan", [*self.operands, *products.values()], self.op.attrs, (inside,))
        at = dict(zip(kept, found[self.nk:]))
        made = dict(zip(stacked, [self._batch(at[v], self.behind[j]) if j in self.behind else at[v] for j, v in zip(stacked, ends)]))
        return [found[j] if j < self.nk else whole[j] if j in whole else made[j] for j in range(len(body.outputs))]


def _needed(ops: Sequence[Op], outputs: Sequence[Value]) -> list[Op]:
    """Ops that ``outputs`` need, and those that do something."""
    live, out = set(outputs), list[Op]()
    for op in reversed(ops):
        if acts(op) or any(r in live for r in op.results):
            live.update(op.operands)
            out.append(op)
    return out[::-1]


def _size(values: Sequence[Value]) -> DimLike:
    total: DimLike = 0
    for v in values:
        total = total + v.type.size
    return total


def unloop(b: Builder, op: Op, operands: Sequence[Value]) -> list[Value] | None:
    """Values for the results of a scan with products taken out of it, or None."""
    return None if op.attrs["length"] == 1 else _Loop(b, op, operands).emit()
