"""Batching of ops with regions: ``scan`` runs over batched carries, ``cond`` with a predicate per example computes both sides and chooses, user rules keep theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import opdef
from ..builder import Builder
from ..core import Block, Op, Value, walk
from ..dims import DimLike
from ..types import TensorType
from .batch import Partly, batch_block, batch_into, one_by_one, spread
from .cleanup import dce_block
from .custom import present
from .rewrite import decompose_block, inline

__all__ = ["batch_cond", "batch_custom", "batch_linear", "batch_scan"]

Flags = Sequence[bool]


# ---- scan ---------------------------------------------------------------------------------------------------------------------------

def batch_scan(b: Builder, op: Op, xs: Sequence[Value], on: Flags, size: DimLike) -> Partly:
    """The body over the new dim; the carry has it where its start or a step's result has."""
    nc, nk = op.attrs["consts"], op.attrs["carry"]
    body = decompose_block(op.regions[0])
    flags = list(on)
    while True:
        _, found = batch_block(body, flags, size, [*flags[nc:nc + nk], *(False for _ in body.outputs[nk:])])
        if found[:nk] == flags[nc:nc + nk]:
            break
        flags[nc:nc + nk] = found[:nk]
    block, found = batch_block(body, flags, size, [*flags[nc:nc + nk], *(False for _ in body.outputs[nk:])])
    given = []
    for i, (x, k) in enumerate(zip(xs, on)):
        x = b.placed(x, None) if i >= nc + nk else b.placed(spread(b, x, k, size), block.args[i].type.layout) if flags[i] else x
        given.append(b.to_perm(x, (1, 0, *range(2, len(x.type.shape)))) if i >= nc + nk and k else x)
    results = b.emit("scan", given, op.attrs, (block,))
    ys = [b.to_perm(v, (1, 0, *range(2, len(v.type.shape)))) if k else v for v, k in zip(results[nk:], found[nk:])]
    return Partly([*results[:nk], *ys], found)


# ---- cond ---------------------------------------------------------------------------------------------------------------------------

_WRITES = frozenset(("insert", "insert_add", "scatter", "scatter_add"))
_INDEXED = frozenset(("take", "scatter", "scatter_add"))
_MUST_NOT_RUN = frozenset(("host_call", *_INDEXED))


def _harmless(block: Block) -> bool:
    """Whether a branch that was not chosen may run: it calls no Python, and reads no index that may be in range only where it is chosen."""
    return not any(op.name in _MUST_NOT_RUN for op in walk(block))


def batch_cond(b: Builder, op: Op, xs: Sequence[Value], on: Flags, size: DimLike) -> Partly:
    """With one predicate for all examples still a ``cond``; with one for each, both branches and a choice (of the parts, where they write parts of an
    operand), or where an unchosen branch must not run, a loop."""
    regions = [decompose_block(r) for r in op.regions]
    if not on[0]:
        found = [batch_block(r, on[1:], size)[1] for r in regions]
        wanted = [p or q for p, q in zip(*found)]
        blocks = [batch_block(r, on[1:], size, wanted)[0] for r in regions]
        return Partly(b.emit("cond", xs, op.attrs, blocks), wanted)
    if (chosen := _parts_chosen(regions, op.operands[0].type)) is not None:
        values, flags = batch_into(b, chosen, xs, on, size)
        return Partly([spread(b, v, k, size) for v, k in zip(values, flags)], [True] * len(values))
    if not all(map(_harmless, regions)):
        found = one_by_one(b, op, xs, on, size)
        return Partly(found, [True] * len(found))
    sides = [batch_into(b, r, xs[1:], on[1:], size) for r in regions]
    out = []
    for v, w, kv, kw in zip(sides[0][0], sides[1][0], sides[0][1], sides[1][1]):
        x, y = (b.placed(spread(b, s, k, size), None) for s, k in ((v, kv), (w, kw)))
        out.append(b.where(b.broadcast(xs[0], shape=x.type.shape, dims=(0,)), x, y))
    return Partly(out, [True] * len(out))


def _parts_chosen(regions: Sequence[Block], predicate: TensorType) -> Block | None:
    """The branches one after the other as one program, on the predicate and the operands: where both give back an operand but for parts that they write, each writes what
    it has or, where it was not chosen, what was there. None where that serves no result, or a branch holds what must not run where it was not chosen."""
    ends: list[int | None] = []
    writes: set[Op] = set()
    for outs in zip(*(r.outputs for r in regions)):
        found = [_written(v) for v in outs]
        fits = found[0][0] is not None and found[0][0] == found[1][0] and found[0][0] not in ends and bool(found[0][1] or found[1][1])
        ends.append(found[0][0] if fits else None)
        writes.update(*(ops for _, ops in found) if fits else ())
    if not writes or not all(map(_maskable, regions)):
        return None
    block = Block([predicate, *(a.type for a in regions[0].args)])
    b, now, sides = Builder(block), list(block.args[1:]), []
    for region, chosen in zip(regions, (block.args[0], b.logical_not(block.args[0]))):
        env = dict(zip(region.args, now))
        for op in region.ops:
            b.loc = op.loc
            env.update(zip(op.results, _masked(b, op, [env.get(o, o) for o in op.operands], chosen, op in writes)))
        sides.append([env.get(v, v) for v in region.outputs])
        for p, v in zip(ends, sides[-1]):
            if p is not None:
                now[p] = v  # as it was, where this branch was not chosen
    block.outputs = [y if p is not None else b.where(_all(b, block.args[0], x), x, y) for p, x, y in zip(ends, *sides)]
    return block


def _written(v: Value) -> tuple[int | None, list[Op]]:
    """The argument that ``v`` is but for parts that were written, and the writes; None where it is something else, or shows it in another order."""
    ops: list[Op] = []
    views: list[Op] = []
    end = v
    while v.op is not None:
        if v.op.name not in _WRITES and v.op.name not in ("reshape", "permute"):
            return None, []
        (ops if v.op.name in _WRITES else views).append(v.op)
        v = v.op.operands[0]
    return (v.index, ops) if v.type == end.type and _undone(views[::-1]) else (None, [])


def _undone(views: Sequence[Op]) -> bool:
    """Whether reshapes and permutations show in the end what they were given."""
    left: list[Any] = []  # what is not undone yet: a permutation, or the shapes before and after a reshape
    for op in views:
        if op.name == "permute":
            perm = tuple(op.attrs["perm"])
            if left and left[-1][0] == "permute":
                before = left.pop()[1]
                perm = tuple(before[d] for d in perm)
            if perm != tuple(range(len(perm))):
                left.append(("permute", perm))
            continue
        first = left.pop()[1] if left and left[-1][0] == "reshape" else op.operands[0].type.shape
        if first != op.result.type.shape:
            left.append(("reshape", first))
    return not left


def _maskable(block: Block) -> bool:
    """Whether a branch may run where it was not chosen, once its indices are 0 there."""
    for op in block.ops:
        if opdef.limited(op) or op.name == "host_call" or op.regions and not all(map(_harmless, op.regions)):
            return False
        if op.name in _INDEXED and op.operands[0].type.shape[op.attrs["dim"]] == 0:
            return False
    return True


def _in_row(index: Value) -> bool:
    """Whether ``row_index`` made an index; the branch then has 0 for what it was given."""
    while index.op is not None and index.op.name in ("reshape", "broadcast", "permute", "relayout", "stop_gradient"):
        index = index.op.operands[0]
    return index.op is not None and index.op.name == "row_index"


def _all(b: Builder, chosen: Value, like: Value) -> Any:
    return b.broadcast(chosen, shape=like.type.shape, dims=())


def _masked(b: Builder, op: Op, xs: list[Value], chosen: Value, write: bool) -> Sequence[Value]:
    """An op of a branch: where that was not chosen, indices are 0, and a write leaves what is there."""
    for i in range(len(xs)) if op.name == "row_index" else (1,) if op.name in _INDEXED and not _in_row(op.operands[1]) else ():
        xs[i] = b.where(_all(b, chosen, xs[i]), xs[i], b.zeros(xs[i]))
    if write:
        x, v = xs[0], xs[-1]
        if op.name.endswith("_add"):
            old = b.full(shape=v.type.shape, value=-0.0 if v.type.dtype.kind in "fc" else 0, dtype=v.type.dtype)  # adds nothing, to zeros of either sign
        elif op.name == "insert":
            old = b.slice(x, starts=op.attrs["starts"], sizes=v.type.shape, steps=op.attrs["steps"])
        else:
            old = b.take(x, xs[1], dim=op.attrs["dim"])
        xs[-1] = b.where(_all(b, chosen, v), v, old)
    return b.append_copy(op, xs)


# ---- rules of the user's -------------------------------------------------------------------------------------------------------------

def _all_on(block: Block, on: Flags, size: DimLike) -> Block:
    """A region with all results batched; an absent one stays absent."""
    return batch_block(decompose_block(block), on, size, [True] * len(block.outputs))[0] if present(block) else Block()


def batch_custom(b: Builder, op: Op, xs: Sequence[Value], on: Flags, size: DimLike) -> Any:
    """Program and rules over the new dim. Cotangents of operands that all examples share are summed. A batch rule of the user's takes the place of the program."""
    a = op.attrs
    if a["batch"] is not None:
        return _by_rule(b, op, xs, on, size)
    program, forward, reverse = op.regions
    pool = [*on, *(True for _ in program.outputs)]
    residuals, moving = [pool[i] for i in a["residuals"]], [on[i] for i in a["moving"]]
    pushed = _all_on(forward, [*residuals, *moving], size)
    pulled = _all_on(reverse, [*residuals, *(True for _ in a["cts"])], size)
    if present(pulled):
        inner = Builder(pulled)
        pulled.outputs = [v if moving[k] else inner.sum(v, dims=(0,)) for v, k in zip(pulled.outputs, a["grads"])]
    return b.emit("custom", xs, a, (_all_on(program, on, size), pushed, pulled))


def _by_rule(b: Builder, op: Op, xs: Sequence[Value], on: Flags, size: DimLike) -> Any:
    """What the rule gives, and what the program keeps for derivatives by its own ops."""
    a = op.attrs
    block, flags = a["batch"](op, xs, on, size)
    found = [spread(b, v, k, size) for v, k in zip(inline(b, block, xs), flags)]
    if len(op.results) == a["outs"]:
        return found
    kept = decompose_block(op.regions[0])
    kept.outputs = kept.outputs[a["outs"]:]
    outs, on_kept = batch_into(b, dce_block(kept), xs, on, size)
    return [*found, *(spread(b, v, k, size) for v, k in zip(outs, on_kept))]


def batch_linear(b: Builder, op: Op, xs: Sequence[Value], on: Flags, size: DimLike) -> Any:
    """Both directions over the new dim, with a tangent for each example."""
    n = op.attrs["residuals"]
    forward, reverse = op.regions
    given = [x if i < n else spread(b, x, k, size) for i, (x, k) in enumerate(zip(xs, on))]
    pushed = _all_on(forward, [*on[:n], *(True for _ in xs[n:])], size)
    pulled = _all_on(reverse, [*on[:n], *(True for _ in reverse.args[n:])], size)
    return b.emit("custom_linear", given, op.attrs, (pushed, pulled))
