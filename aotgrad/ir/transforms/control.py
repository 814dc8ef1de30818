"""Derivative rules of ``scan`` and ``cond``: their bodies are linearised and transposed, residuals are stacked (scan) or passed out (cond)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import dims, opdef
from ..builder import Builder
from ..core import Block, Op, Value
from ..host import acts
from . import differentiate as ad
from .rewrite import close_over, copy_ops, decompose_block, free_values

__all__ = ["linearize_cond", "linearize_scan", "transpose_cond", "transpose_scan"]

_CHEAP, _FEW = frozenset(("add", "sub", "mul", "neg", "full", "broadcast")), 6  # ops that are computed again rather than stacked, and how many for one array
_REFUSING = frozenset(("take", "scatter", "scatter_add"))  # may refuse their indices, which a loop of no rounds does not look at


def _active_values(block: Block, active: Sequence[bool]) -> set[Value]:
    """Values of a block that carry a tangent when the flagged args do (an over-approximation)."""
    moving = {a for a, on in zip(block.args, active) if on}
    for op in block.ops:
        if (not isinstance(opdef.get(op.name).derivative, opdef.Zero) or ad.passes(op)) and any(o in moving for o in op.operands):
            moving.update(r for r in op.results if r.type.dtype.is_differentiable)
    return moving


def _scan_activity(body: Block, nc: int, nk: int, given: Sequence[bool]) -> list[bool]:
    """Activity of the body's args, with the carry's grown until it holds for every step."""
    active = list(given)
    while True:
        moving = _active_values(body, active)
        grown = [*active[:nc], *(on or out in moving for on, out in zip(active[nc:nc + nk], body.outputs[:nk])), *active[nc + nk:]]
        if grown == active:
            return active
        active = grown


def linearize_scan(pb: Builder, lb: Builder, op: Op, ins: Sequence[Value], tangents: Sequence[Any]) -> tuple[Sequence[Value], list[Any]]:
    """The primal scan also stacks the residuals of each step; the linear scan reads them. What every step would compute alike, from consts alone, is computed once."""
    nc, nk = op.attrs["consts"], op.attrs["carry"]
    body = decompose_block(op.regions[0])
    active = _scan_activity(body, nc, nk, [t is not None for t in tangents])
    full = [lb.zeros(x) if t is None and on else t for x, t, on in zip(ins, tangents, active)]
    if pb is lb:
        return _jvp_scan(pb, op, body, ins, full, active)
    primal, aside = Block([a.type for a in body.args]), Block()
    moving = [Value(a.type) if on else None for a, on in zip(primal.args, active)]
    outs, out_tangents = ad.differentiate(Builder(primal), Builder(aside), body, primal.args, moving)
    wanted = _wanted(Builder(aside), outs, out_tangents, nk, active[nc:nc + nk])
    results = [t for t in wanted if t is not None]
    live = [m for m in moving if m is not None]
    residuals = free_values(aside.ops, results, live)
    consts = dict(zip(primal.args[:nc], ins[:nc]))
    scanned = dict(zip(primal.args[nc + nk:], ins[nc + nk:]))
    _once(pb, primal.ops, consts, [r for r in residuals if r not in scanned])
    again, residuals = _cheap(primal.ops, residuals, {*consts, *scanned})
    stacked = [r for r in residuals if r not in consts and r not in scanned]
    primal.outputs = [*outs, *stacked]
    everything = pb.emit("scan", ins, op.attrs, (primal,))
    stacks = dict(zip(stacked, everything[len(outs):]))
    fixed = [r for r in residuals if r in consts]
    varying = [r for r in residuals if r not in consts]
    parts = [moving[:nc], moving[nc:nc + nk], moving[nc + nk:]]
    tparts = [full[:nc], full[nc:nc + nk], full[nc + nk:]]
    (mc, mk, mx), (tc, tk, tx) = ([[v for v in p if v is not None] for p in side] for side in (parts, tparts))
    block = close_over([*again, *aside.ops], [*fixed, *mc, *mk, *varying, *mx], results)
    operands = [*(consts[r] for r in fixed), *tc, *tk, *(stacks[r] if r in stacks else scanned[r] for r in varying), *tx]
    found = lb.emit("scan", operands, {**op.attrs, "consts": len(fixed) + len(tc), "carry": len(tk)}, (block,))
    return everything[:len(outs)], _spread(found, wanted)


def _once(b: Builder, ops: Sequence[Op], known: dict[Value, Value], residuals: Sequence[Value]) -> None:
    """Computes outside of a loop the residuals that need nothing but what is ``known`` there, and adds them to it."""
    alike, needed = set(known), set(residuals)
    for op in ops:
        if all(o in alike for o in op.operands) and not (op.regions or acts(op) or opdef.limited(op) or op.name in _REFUSING):
            alike.update(op.results)
    wanted = []
    for op in reversed(ops):
        if any(r in needed and r in alike for r in op.results):
            wanted.append(op)
            needed.update(op.operands)
    env = dict(known)
    copy_ops(b, wanted[::-1], env)
    known.update((r, env[r]) for r in residuals if r in env)


def _cheap(ops: Sequence[Op], residuals: Sequence[Value], there: set[Value]) -> tuple[list[Op], list[Value]]:
    """Ops that give some residuals of a round anew from the others, by a few additions and products, and the residuals that are left."""
    at = {op: i for i, op in enumerate(ops)}
    kept, again = dict.fromkeys(residuals), dict[Op, None]()
    for r in residuals:
        mine, leaves = dict[Op, None](), dict[Value, None]()
        todo = [] if r in there else [r]
        while todo and len(mine) <= _FEW:
            v = todo.pop()
            if v is not r and (v in kept or v in there):
                leaves[v] = None
                continue
            if v.op is None or v.op not in at or v.op.name not in _CHEAP:
                break
            if v.op not in mine:
                mine[v.op] = None
                todo += v.op.operands
        else:
            if mine and len(mine) <= _FEW:
                del kept[r]
                kept.update(leaves)  # what is there without being stacked is read too
                again.update(mine)
    return sorted(again, key=at.__getitem__), list(kept)


def _wanted(b: Builder, outs: Sequence[Value], tangents: Sequence[Any], nk: int, carry_active: Sequence[bool]) -> list[Any]:
    """Tangents of a body's outputs: an active carry always has one."""
    return [b.zeros(o) if t is None and i < nk and carry_active[i] else (None if i < nk and not carry_active[i] else t) for i, (o, t) in enumerate(zip(outs, tangents))]


def _spread(found: Sequence[Value], wanted: Sequence[Any]) -> list[Any]:
    values = iter(found)
    return [None if w is None else next(values) for w in wanted]


def _jvp_scan(b: Builder, op: Op, body: Block, ins: Sequence[Value], full: Sequence[Any], active: Sequence[bool]) -> tuple[Sequence[Value], list[Any]]:
    """Forward mode: one scan over values and tangents, nothing stacked."""
    nc, nk = op.attrs["consts"], op.attrs["carry"]
    order: list[tuple[int, bool]] = []
    for lo, hi in ((0, nc), (nc, nc + nk), (nc + nk, len(ins))):
        order += [(i, False) for i in range(lo, hi)] + [(i, True) for i in range(lo, hi) if active[i]]
    block = Block([body.args[i].type for i, _ in order])
    at = dict(zip(order, block.args))
    inner = Builder(block)
    outs, moved = ad.differentiate(inner, inner, body, [at[i, False] for i in range(len(ins))], [at.get((i, True)) for i in range(len(ins))])
    wanted = _wanted(inner, outs, moved, nk, active[nc:nc + nk])
    carry_t, ys_t = [t for t in wanted[:nk] if t is not None], [t for t in wanted[nk:] if t is not None]
    block.outputs = [*outs[:nk], *carry_t, *outs[nk:], *ys_t]
    consts = nc + sum(active[:nc])
    found = b.emit("scan", [full[i] if t else ins[i] for i, t in order], {**op.attrs, "consts": consts, "carry": nk + len(carry_t)}, (block,))
    k, n = len(carry_t), len(outs) - nk
    return [*found[:nk], *found[nk + k:nk + k + n]], _spread([*found[nk:nk + k], *found[nk + k + n:]], wanted)


def transpose_scan(b: Builder, cts: Sequence[Any], op: Any) -> dict[int, Any]:
    """The scan backwards: the carry holds cotangents of the carry and running cotangents of the linear consts, but for those that are sums of products of matrices:
    their factors are stacked, and one product behind the loop adds over all rounds."""
    nc, nk, body = op.attrs["consts"], op.attrs["carry"], op.regions[0]
    # A carry of a linear scan is linear even where it starts from zeros that depend on nothing.
    linear = [on or nc <= i < nc + nk for i, on in enumerate(op.linear)]
    count = len(op.operands)
    lin_consts, lin_xs = [i for i in range(nc) if linear[i]], [i for i in range(nc + nk, count) if linear[i]]
    res_consts, res_xs = [i for i in range(nc) if not linear[i]], [i for i in range(nc + nk, count) if not linear[i]]
    given_ys = [j for j in range(nk, len(op.results)) if cts[j] is not None]
    block = Block()
    env: dict[Value, Value] = {body.args[i]: block.add_arg(body.args[i].type) for i in res_consts}
    ct_carry = [block.add_arg(body.args[nc + j].type) for j in range(nk)]
    running = [block.add_arg(body.args[i].type) for i in lin_consts]
    env.update({body.args[i]: block.add_arg(body.args[i].type) for i in res_xs})
    ct_ys = {j: block.add_arg(body.outputs[j].type) for j in given_ys}
    inner = Builder(block)
    fixed, moving = _apart(body, [body.args[i] for i in range(count) if linear[i]])
    copy_ops(inner, fixed, env)
    ops = _rewire(moving, env)
    inputs = [*(body.args[i] for i in lin_consts), *body.args[nc:nc + nk], *(body.args[i] for i in lin_xs)]
    outs = [ops[1].get(o, o) for o in body.outputs]
    found = ad.transpose_into(inner, ops[0], inputs, outs, [*ct_carry, *(ct_ys.get(j) for j in range(nk, len(op.results)))], [*running, *([None] * (nk + len(lin_xs)))])
    found = [inner.zeros(x) if c is None else c for c, x in zip(found, inputs)]
    k = len(lin_consts)
    sums = _Sums({env[body.args[i]]: op.operands[i] for i in res_xs}, [env[body.args[i]] for i in res_consts], found[k + nk:])
    kept = [j for j in range(k) if not sums.takes(block, lin_consts[j], found[j], running[j])]
    block.outputs = [*found[k:k + nk], *(found[j] for j in kept), *sums.stacked]
    start = [b.zeros(op.results[j]) if cts[j] is None else cts[j] for j in range(nk)]
    operands = [*(op.operands[i] for i in res_consts), *start, *(b.zeros(op.operands[lin_consts[j]]) for j in kept),
                *(op.operands[i] for i in res_xs), *(cts[j] for j in given_ys)]
    attrs = {"consts": len(res_consts), "carry": nk + len(kept), "length": op.attrs["length"], "reverse": not op.attrs["reverse"]}
    results = b.emit("scan", operands, attrs, (block,))
    done = dict(zip([*range(nc, nc + nk), *(lin_consts[j] for j in kept), *lin_xs], results))
    return {**done, **sums.finish(b, op.attrs["length"], results[nk + len(kept):])}


class _Sums:
    """Cotangents of a loop's consts that are sums over its rounds of products of matrices: a weight's gradient. ``scanned``: arrays inside that are there outside,
    stacked; ``fixed``: those that are the same in every round; ``stacked``: what the loop stacks, factors are added."""

    def __init__(self, scanned: dict[Value, Value], fixed: Sequence[Value], stacked: Sequence[Value]) -> None:
        self.scanned, self.fixed, self.stacked = scanned, set(fixed), list(stacked)
        self.terms: dict[int, list[tuple[Value, Value, list[Any], Any]]] = {}

    def takes(self, block: Block, which: int, total: Value, running: Value) -> bool:
        """Takes the sum for const ``which`` out of the loop, where it is nothing but products that are larger than their factors."""
        terms: list[tuple[Value, Value, list[Any], Any]] = []
        adds: list[Op] = []
        while total is not running:
            if total.op is None or total.op.name != "add":
                return False
            adds.append(total.op)
            total, term = total.op.operands
            perms: list[Any] = []
            while term.op is not None and term.op.name == "permute":
                perms.append(term.op.attrs["perm"])
                term = term.op.operands[0]
            if term.op is None or term.op.name != "dot" or term.type.rank != 2 or not self._pays(*term.op.operands):
                return False
            terms.append((term.op.operands[0], term.op.operands[1], perms, term.op.loc))
        factors = dict.fromkeys(_plain(x) for left, right, _, _ in terms for x in (left, right))
        new = [x for x in factors if x not in self.scanned and x not in self.stacked]
        # They take no more memory than what is there for every round already: else a sum in place is better.
        there = _size([*self.scanned, *self.stacked])
        size = _size(new)
        if not terms or dims.minimum(size, there) != size:
            return False
        self.terms[which] = terms
        self.stacked += new
        block.ops = [op for op in block.ops if op not in adds]
        block.args.remove(running)
        for i, a in enumerate(block.args):
            a.index = i
        return True

    def _pays(self, left: Value, right: Value) -> bool:
        if _plain(left) in self.fixed or _plain(right) in self.fixed:
            return False
        (m, k), n = left.type.shape, right.type.shape[1]
        known = all(isinstance(d, int) for d in (m, k, n))
        return not known or k * (m + n) <= m * n

    def finish(self, b: Builder, length: Any, stacks: Sequence[Value]) -> dict[int, Value]:
        """The sums, behind the loop."""
        def whole(x: Value) -> Value:
            factor = _plain(x)
            return self.scanned[factor] if factor in self.scanned else stacks[self.stacked.index(factor)]

        outer, found = b.loc, dict[int, Value]()
        for which, terms in self.terms.items():
            for left, right, perms, loc in terms:
                b.loc = loc
                (m, k), n = left.type.shape, right.type.shape[1]
                x, y = whole(left), whole(right)
                if left is _plain(left):
                    x = b.reshape(b.permute(x, perm=(1, 0, 2)), shape=(m, length * k))
                else:
                    x = b.permute(b.reshape(x, shape=(length * k, m)), perm=(1, 0))
                if right is not _plain(right):
                    y = b.permute(y, perm=(0, 2, 1))
                y = b.reshape(y, shape=(length * k, n))
                if perms[-1:] == [(1, 0)]:  # the transpose of a product is one, and is written where it belongs
                    perms, made = perms[:-1], b.dot(b.permute(y, perm=(1, 0)), b.permute(x, perm=(1, 0)))
                else:
                    made = b.dot(x, y)
                for perm in reversed(perms):
                    made = b.permute(made, perm=perm)
                found[which] = made if which not in found else b.add(found[which], made)
        b.loc = outer
        return found


def _size(values: Sequence[Value]) -> dims.DimLike:
    """Elements of all of them."""
    total: dims.DimLike = 0
    for v in values:
        total = total + v.type.size
    return total


def _plain(x: Value) -> Value:
    """What a transposed matrix is the transpose of; another value itself."""
    return x.op.operands[0] if x.op is not None and x.op.name == "permute" else x


def _apart(body: Block, inputs: Sequence[Value]) -> tuple[list[Op], list[Op]]:
    """Ops of a body that do not depend on ``inputs``, and those that do. An op may depend on them and give nothing: a loop whose results are all constant."""
    depends = set(inputs)
    fixed: list[Op] = []
    moving: list[Op] = []
    for op in body.ops:
        if any(o in depends for o in op.operands):
            depends.update(op.results)
            moving.append(op)
        else:
            fixed.append(op)
    return fixed, moving


def _rewire(ops: Sequence[Op], env: dict[Value, Value]) -> tuple[list[Op], dict[Value, Value]]:
    """Copies of linear ops that read residuals where the new block has them."""
    local: dict[Value, Value] = {}
    out = []
    for op in ops:
        new = Op(op.name, [local.get(o, env.get(o, o)) for o in op.operands], [r.type for r in op.results], op.attrs, op.regions, op.loc)
        local.update(zip(op.results, new.results))
        out.append(new)
    return out, local


def linearize_cond(pb: Builder, lb: Builder, op: Op, ins: Sequence[Value], tangents: Sequence[Any]) -> tuple[Sequence[Value], list[Any]]:
    """Each branch also gives its residuals, and zeros for the other's; the linear cond picks the same branch."""
    predicate, args, moving_in = ins[0], list(ins[1:]), list(tangents[1:])
    if all(t is None for t in moving_in):
        return pb.append_copy(op, ins), [None] * len(op.results)
    sides = [_linear_branch(decompose_block(r), [t is not None for t in moving_in]) for r in op.regions]
    n = len(op.results)
    wanted = [any(s.tangents[i] is not None for s in sides) for i in range(n)]
    for s in sides:
        s.finish(wanted)
    extra = [r.type for s in sides for r in s.stacked]
    blocks = []
    for s in sides:
        b = Builder(s.primal)
        mine = iter(s.stacked)
        s.primal.outputs = [*s.outs, *(next(mine) if owner is s else b.zeros(r) for owner in sides for r in owner.stacked)]
        blocks.append(s.primal)
    everything = pb.emit("cond", ins, {}, blocks)
    live = [t for t in moving_in if t is not None]
    passed = everything[n:]
    direct = sorted({i for s in sides for i in s.direct})
    regions, at = [], 0
    for s in sides:
        own = dict(zip(s.stacked, range(at, at + len(s.stacked))))
        at += len(s.stacked)
        regions.append(s.linear_block([args[i].type for i in direct], direct, extra, own))
    found = lb.emit("cond", [predicate, *(args[i] for i in direct), *passed, *live], {}, regions)
    values = iter(found)
    return everything[:n], [next(values) if w else None for w in wanted]


class _linear_branch:
    def __init__(self, body: Block, active: Sequence[bool]) -> None:
        self.primal, self.aside = Block([a.type for a in body.args]), Block()
        self.moving = [Value(a.type) if on else None for a, on in zip(self.primal.args, active)]
        self.outs, self.tangents = ad.differentiate(Builder(self.primal), Builder(self.aside), body, self.primal.args, self.moving)

    def finish(self, wanted: Sequence[bool]) -> None:
        b = Builder(self.aside)
        self.results = [b.zeros(o) if t is None else t for o, t, w in zip(self.outs, self.tangents, wanted) if w]
        free = free_values(self.aside.ops, self.results, [m for m in self.moving if m is not None])
        again, free = _cheap(self.primal.ops, free, set())
        self.aside.ops[:0] = again
        place = {a: i for i, a in enumerate(self.primal.args)}
        self.direct = [place[r] for r in free if r in place]
        self.stacked = [r for r in free if r not in place]

    def linear_block(self, direct_types: Sequence[Any], direct: Sequence[int], extra: Sequence[Any], own: dict[Value, int]) -> Block:
        block = Block([*direct_types, *extra])
        env = {self.primal.args[i]: block.args[j] for j, i in enumerate(direct)}
        env.update({r: block.args[len(direct) + j] for r, j in own.items()})
        env.update({m: block.add_arg(m.type) for m in self.moving if m is not None})
        copy_ops(Builder(block), self.aside.ops, env)
        block.outputs = [env[r] for r in self.results]
        return block


def transpose_cond(b: Builder, cts: Sequence[Any], op: Any) -> dict[int, Any]:
    """A cond over the transposed branches: residuals and cotangents in, cotangents of the linear operands out."""
    linear = [i for i, on in enumerate(op.linear) if on]
    fixed = [i for i, on in enumerate(op.linear) if not on and i > 0]
    given = [j for j, c in enumerate(cts) if c is not None]
    regions = []
    for body in op.regions:
        block = Block([body.args[i - 1].type for i in fixed])
        env = {body.args[i - 1]: arg for i, arg in zip(fixed, block.args)}
        ct_out = {j: block.add_arg(body.outputs[j].type) for j in given}
        inner = Builder(block)
        inputs = [body.args[i - 1] for i in linear]
        apart, moving = _apart(body, inputs)
        copy_ops(inner, apart, env)
        ops, local = _rewire(moving, env)
        found = ad.transpose_into(inner, ops, inputs, [local.get(o, o) for o in body.outputs], [ct_out.get(j) for j in range(len(body.outputs))])
        block.outputs = [inner.zeros(x) if c is None else c for c, x in zip(found, inputs)]
        regions.append(block)
    results = b.emit("cond", [op.operands[0], *(op.operands[i] for i in fixed), *(cts[j] for j in given)], {}, regions)
    return dict(zip(linear, results))
