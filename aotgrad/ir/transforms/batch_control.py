"""Batching of ops with regions: ``scan`` runs over batched carries, ``cond`` with a predicate per example computes both sides and chooses, user rules keep theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..builder import Builder
from ..core import Block, Op, Value, walk
from ..dims import DimLike
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

_MUST_NOT_RUN = frozenset(("host_call", "take", "scatter", "scatter_add"))


def _harmless(block: Block) -> bool:
    """Whether a branch that was not chosen may run: it calls no Python, and reads no index that may be in range only where it is chosen."""
    return not any(op.name in _MUST_NOT_RUN for op in walk(block))


def batch_cond(b: Builder, op: Op, xs: Sequence[Value], on: Flags, size: DimLike) -> Partly:
    """With one predicate for all examples still a ``cond``; with one for each, both branches and a choice, or where an unchosen branch must not run, a loop."""
    regions = [decompose_block(r) for r in op.regions]
    if not on[0]:
        found = [batch_block(r, on[1:], size)[1] for r in regions]
        wanted = [p or q for p, q in zip(*found)]
        blocks = [batch_block(r, on[1:], size, wanted)[0] for r in regions]
        return Partly(b.emit("cond", xs, op.attrs, blocks), wanted)
    if not all(map(_harmless, regions)):
        found = one_by_one(b, op, xs, on, size)
        return Partly(found, [True] * len(found))
    sides = [batch_into(b, r, xs[1:], on[1:], size) for r in regions]
    out = []
    for v, w, kv, kw in zip(sides[0][0], sides[1][0], sides[0][1], sides[1][1]):
        x, y = (b.placed(spread(b, s, k, size), None) for s, k in ((v, kv), (w, kw)))
        out.append(b.where(b.broadcast(xs[0], shape=x.type.shape, dims=(0,)), x, y))
    return Partly(out, [True] * len(out))


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
