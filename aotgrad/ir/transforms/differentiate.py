"""Linearisation: one walk that gives a program's value and its linear part. Forward mode is both in one block; reverse mode transposes the linear part.

``differentiate(pb, lb, block, ins, tangents)`` appends the primal to ``pb`` and the linear part to ``lb``; the two may be one builder.
Ops of the linear part use primal values directly; whoever wants the parts apart closes over them afterwards (those are the residuals).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from aotgrad_runtime.errors import AotgradNotImplementedError

from .. import opdef
from ..builder import Builder
from ..core import Block, Func, Op, Value
from .accumulate import Accumulate
from .rewrite import close_over, decompose_block, free_values

__all__ = ["differentiate", "jvp_func", "linearize_func", "push_linear", "transpose_into", "vjp_func", "vjp_inline"]


class _Mode(threading.local):
    """Whether the walk is for forward mode, where what was not recorded (``stop_gradient`` with ``reverse``) moves on."""

    forward = False


_mode = _Mode()


def passes(op: Op) -> bool:
    """Whether an op stops derivatives in the other mode only."""
    return _mode.forward and op.name == "stop_gradient" and bool(op.attrs["reverse"])


def differentiate(pb: Builder, lb: Builder, block: Block, ins: Sequence[Value], tangents: Sequence[Any], forward: bool = False) -> tuple[list[Value], list[Any]]:
    """Primal outputs of ``block`` (free of composites) on ``ins``, and tangents of them (None: structurally zero).

    ``forward``: the linear part is for forward mode; with one builder for both it always is.
    """
    before = _mode.forward
    _mode.forward = before or forward or pb is lb
    try:
        return _walk(pb, lb, block, ins, tangents)
    finally:
        _mode.forward = before


def _walk(pb: Builder, lb: Builder, block: Block, ins: Sequence[Value], tangents: Sequence[Any]) -> tuple[list[Value], list[Any]]:
    env: dict[Value, Value] = dict(zip(block.args, ins))
    tan: dict[Value, Value] = {a: t for a, t in zip(block.args, tangents) if t is not None}
    outer = pb.loc, lb.loc
    for op in block.ops:
        pb.loc = lb.loc = op.loc
        operands = [env.get(o, o) for o in op.operands]
        moving = [tan.get(o) for o in op.operands]
        outs, out_tangents = _step(pb, lb, op, operands, moving)
        env.update(zip(op.results, outs))
        tan.update((r, t) for r, t in zip(op.results, out_tangents) if t is not None)
    pb.loc, lb.loc = outer
    return [env.get(o, o) for o in block.outputs], [tan.get(o) for o in block.outputs]


def _step(pb: Builder, lb: Builder, op: Op, ins: list[Value], tangents: list[Any]) -> tuple[Sequence[Value], Sequence[Any]]:
    definition = opdef.get(op.name)
    rule = definition.derivative
    if tangents and tangents[0] is not None and passes(op):
        return pb.append_copy(op, ins), lb.append_copy(op, tangents) if pb is lb else tangents
    if all(t is None for t in tangents) or isinstance(rule, opdef.Zero):
        return pb.append_copy(op, ins), [None] * len(op.results)
    if definition.regions and isinstance(rule, opdef.Linearize):
        outs, linear = rule.fn(pb, lb, op, ins, tangents)
        return outs, linear
    outs = pb.append_copy(op, ins)
    if isinstance(rule, opdef.Partials):
        return outs, [_partials(pb, lb, rule, ins, outs[0], tangents)]
    if isinstance(rule, opdef.Linear):
        return outs, _linear(lb, rule, op, ins, tangents)
    if isinstance(rule, opdef.Bilinear):
        return outs, [_bilinear(lb, rule, op, ins, tangents)]
    if isinstance(rule, opdef.Linearize):
        linear = rule.fn(pb, ins, outs, op.attrs, [t is not None for t in tangents])
        return outs, linear(lb, tangents)
    raise AotgradNotImplementedError(f"ag.{op.name} has no derivative rule; decompose composites first")


def _sum(lb: Builder, terms: Sequence[Value]) -> Any:
    total: Any = None
    for term in terms:
        total = term if total is None else lb.add(total, term)
    return total


def _partials(pb: Builder, lb: Builder, rule: opdef.Partials, ins: list[Value], out: Value, tangents: list[Any]) -> Any:
    return _sum(lb, [lb.lmul(fn(pb, ins, out), t) for fn, t in zip(rule.fns, tangents) if t is not None and fn is not None])


def _linear(lb: Builder, rule: opdef.Linear, op: Op, ins: list[Value], tangents: list[Any]) -> Sequence[Any]:
    where = range(len(ins)) if rule.operands is None else rule.operands
    if not any(tangents[i] is not None for i in where) or not all(r.type.dtype.is_differentiable for r in op.results):
        return [None] * len(op.results)
    if rule.partial is not None and any(tangents[i] is None for i in where):
        return [rule.partial(lb, tangents)]
    operands = [x if i not in where else (tangents[i] if tangents[i] is not None else lb.zeros(x)) for i, x in enumerate(ins)]
    return lb.emit(op.name, operands, op.attrs)


def _bilinear(lb: Builder, rule: opdef.Bilinear, op: Op, ins: list[Value], tangents: list[Any]) -> Any:
    name = rule.tangent or op.name
    terms = []
    if tangents[0] is not None:
        terms.append(lb.emit(name, [tangents[0], ins[1]], None if rule.tangent else op.attrs)[0])
    if tangents[1] is not None:
        terms.append(lb.emit(name, [ins[0], tangents[1]], None if rule.tangent else op.attrs)[0])
    return _sum(lb, terms)


def push_linear(b: Builder, ops: Sequence[Op], given: Mapping[Value, Any]) -> dict[Value, Any]:
    """Appends a linear part to ``b`` on other tangents; those that are None are zero, and so is what depends on nothing else. Gives the values of all results."""
    moved: dict[Value, Any] = dict(given)
    fixed: dict[Value, Value] = {}
    outer = b.loc
    for op in ops:
        b.loc = op.loc
        ins = [fixed.get(o, o) for o in op.operands]
        if not any(o in moved for o in op.operands):
            fixed.update(zip(op.results, b.append_copy(op, ins)))
            continue
        tangents = [moved.get(o) for o in op.operands]
        rule = opdef.get(op.name).derivative
        if all(t is None for t in tangents):
            outs: Sequence[Any] = [None] * len(op.results)
        elif isinstance(rule, opdef.Linear):
            outs = _linear(b, rule, op, ins, tangents)
        else:
            outs = b.append_copy(op, [x if o not in moved else b.zeros(o) if t is None else t for o, x, t in zip(op.operands, ins, tangents)])
        moved.update(zip(op.results, outs))
    b.loc = outer
    return {**fixed, **moved}


class _Transposed:
    """What a transpose rule sees of an op: types for linear operands, values for the others."""

    __slots__ = ("attrs", "linear", "operands", "regions", "results")

    def __init__(self, op: Op, linear: list[bool]) -> None:
        self.operands: list[Any] = [o.type if is_linear else o for o, is_linear in zip(op.operands, linear)]
        self.attrs, self.regions, self.linear = op.attrs, op.regions, linear
        self.results = [r.type for r in op.results]


def transpose_into(b: Builder, ops: Sequence[Op], inputs: Sequence[Value], outputs: Sequence[Any], cts: Sequence[Any],
                   seeds: Sequence[Any] | None = None) -> list[Any]:
    """Appends the transpose of a linear part to ``b``: cotangents of ``inputs`` from cotangents ``cts`` of ``outputs`` (None: zero).

    Values that ``ops`` use and that do not depend on ``inputs`` must be usable where ``b`` appends. ``seeds``: cotangents that inputs have already.
    """
    depends = set(inputs)
    for op in ops:
        if any(o in depends for o in op.operands):
            depends.update(op.results)
    found = _Cotangents(b, ops, inputs)
    for x, seed in zip(inputs, seeds or ()):
        if seed is not None:
            found.add(x, seed)
    for out, c in zip(outputs, cts):
        if out is not None and c is not None and out in depends:
            found.add(out, c)
    outer = b.loc
    for at in range(len(ops) - 1, -1, -1):
        op = ops[at]
        given = [found.take(r) for r in op.results]
        if all(g is None for g in given):
            continue
        b.loc = None if op.loc is None else op.loc.as_adjoint()
        linear = [o in depends for o in op.operands]
        for i, c in _transpose_op(b, op, linear, given).items():
            if linear[i] and c is not None:
                found.add(op.operands[i], c, at)
    b.loc = outer
    return [found.take(x, last=False) for x in inputs]


_WRITES = frozenset(("insert", "insert_add", "scatter", "scatter_add"))


class _Cotangents:
    """Cotangents while a program is walked from its end. What adds into an array's cotangent (``Accumulate``) is added into one that is there, if in another shape or
    order of dims, or waits for the one that a write into the array will give: else it would be made in zeros, and every round of a loop would add whole arrays."""

    def __init__(self, b: Builder, ops: Sequence[Op], inputs: Sequence[Value]) -> None:
        self.b, self.ct = b, dict[Value, Any]()
        self.shown: dict[Value, Op] = {}  # values that are a reshape or a permutation: of what
        self.roots: dict[Value, Value] = {}  # what they are of in the end
        self.latest: dict[Value, Value] = {}  # by root: the value that got a cotangent last
        self.written: dict[Value, int] = {}  # by root: the first op that gives a whole cotangent of it
        self.waiting: dict[Value, list[tuple[Value, Accumulate, Any]]] = {}  # by root
        ends = set(inputs)
        for at, op in enumerate(ops):
            if op.name in ("reshape", "permute") and op.result not in ends and op.result.type.layout is None and op.operands[0].type.layout is None:
                self.shown[op.result], self.roots[op.result] = op, self.root(op.operands[0])
            for o in op.operands if op.regions else op.operands[:1] if op.name in _WRITES else ():
                self.written.setdefault(self.root(o), at)

    def root(self, x: Value) -> Value:
        """What ``x`` shows in another shape, or itself."""
        return self.roots.get(x, x)

    def add(self, x: Value, c: Any, at: int = 0) -> None:
        """Adds ``c`` to the cotangent of ``x``. ``at``: the op that it comes from."""
        root = self.root(x)
        if isinstance(c, Accumulate) and x not in self.ct:
            held = self.latest.get(root)
            if held is None or held not in self.ct:
                if self.written.get(root, at) < at:
                    self.waiting.setdefault(root, []).append((x, c, self.b.loc))
                    return
                held = root
            x, c = self._elsewhere(x, held, c)
        self._collect(x, c)
        self.latest[root] = x
        if root in self.waiting:
            self._settle(root, x)

    def take(self, x: Value, last: bool = True) -> Any:
        """The cotangent of ``x``, or None. ``last``: nobody asks again."""
        if x in self.waiting:
            self._settle(x, x)
        return self.ct.pop(x, None) if last else self.ct.get(x)

    def _settle(self, root: Value, to: Value) -> None:
        outer = self.b.loc
        for x, c, loc in self.waiting.pop(root):
            self.b.loc = loc
            self._collect(*self._elsewhere(x, to, c))
        self.b.loc = outer

    def _collect(self, x: Value, c: Any) -> None:
        have = self.ct.get(x)
        if isinstance(c, Accumulate):
            self.ct[x] = c.into(self.b.zeros(c.like) if have is None else have)
        else:
            self.ct[x] = c if have is None else self.b.add(have, c)

    def _elsewhere(self, x: Value, to: Value, c: Accumulate) -> tuple[Value, Accumulate]:
        """What adds into the cotangent of ``x``, as what adds into that of ``to``, the same array in another shape."""
        if x is to:
            return x, c
        up, down = self._chain(to), self._chain(x)
        while up and down and up[-1] is down[-1]:
            up.pop()
            down.pop()
        if all(op.name == "reshape" for op in (*up, *down)):
            shape, wanted = x.type.shape, to.type.shape
            return to, Accumulate(to, lambda acc: self.b.to_shape(c.into(self.b.to_shape(acc, shape)), wanted))
        return to, Accumulate(to, lambda acc: self._walk(self._walk(c.into(self._walk(self._walk(acc, up, True), down[::-1])), down, True), up[::-1]))

    def _chain(self, x: Value) -> list[Op]:
        """What makes ``x`` of its root, last first."""
        out: list[Op] = []
        while x in self.shown:
            out.append(self.shown[x])
            x = out[-1].operands[0]
        return out

    def _walk(self, v: Value, ops: Sequence[Op], back: bool = False) -> Value:
        """``v`` through reshapes and permutations, or back from their results to what they are of."""
        for op in ops:
            if op.name == "reshape":
                v = self.b.to_shape(v, (op.operands[0] if back else op.result).type.shape)
            else:
                perm = op.attrs["perm"]
                v = self.b.to_perm(v, tuple(perm.index(d) for d in range(len(perm))) if back else perm)
        return v


def _transpose_op(b: Builder, op: Op, linear: list[bool], given: list[Any]) -> dict[int, Any]:
    rule = opdef.get(op.name).derivative
    seen = _Transposed(op, linear)
    ct = given[0] if len(given) == 1 and not op.regions else given
    if isinstance(rule, opdef.Bilinear):
        i = linear.index(True)
        return {i: rule.transposes[i](b, ct, op.operands[1 - i], seen)}
    if isinstance(rule, opdef.Linear):
        return rule.transpose(b, ct, seen)  # type: ignore[no-any-return]
    if isinstance(rule, opdef.Linearize) and rule.transpose is not None:
        return rule.transpose(b, ct, seen)  # type: ignore[no-any-return]
    raise AotgradNotImplementedError(f"ag.{op.name} stands in a linear part and has no transpose; write the derivative with ops that have one")


# ---- whole functions ------------------------------------------------------------------------------------------------------------

def vjp_inline(b: Builder, block: Block, ins: Sequence[Value], active: Sequence[bool]) -> tuple[list[Value], Any]:
    """Outputs of ``block`` on ``ins`` appended to ``b``, and ``pullback(cts) -> cotangents of the active ins`` (None: zero),
    to be called before ``b`` moves elsewhere."""
    aside = Block()
    lb = Builder(aside)
    tangents = [Value(x.type) if on else None for x, on in zip(ins, active)]
    outs, out_tangents = differentiate(b, lb, decompose_block(block), ins, tangents)

    def pullback(cts: Sequence[Any], builder: Builder = b) -> list[Any]:
        wanted = [t for t in tangents if t is not None]
        found = transpose_into(builder, aside.ops, wanted, out_tangents, cts)
        return [c if c is None or c.type.layout == t.type.layout else builder.relayout(c, layout=t.type.layout) for c, t in zip(found, wanted)]

    return outs, pullback


def jvp_func(func: Func, active: Sequence[bool]) -> Func:
    """(args, tangents of the active args) -> (outs, tangents of the float outs)."""
    block = Block(func.arg_types)
    b = Builder(block)
    ins = list(block.args)
    tangents = [block.add_arg(a.type) if on else None for a, on in zip(ins, active)]
    outs, moved = differentiate(b, b, decompose_block(func.body), ins, tangents)
    block.outputs = [*outs, *(b.zeros(o) if t is None else t for o, t in zip(outs, moved) if o.type.dtype.is_differentiable)]
    return Func(f"{func.name}_jvp", block, func.attrs)


def vjp_func(func: Func, active: Sequence[bool]) -> Func:
    """(args, cotangents of the float outs) -> (outs, cotangents of the active args)."""
    block = Block(func.arg_types)
    b = Builder(block)
    ins = list(block.args)
    outs, pullback = vjp_inline(b, func.body, ins, active)
    cts = [block.add_arg(o.type) if o.type.dtype.is_differentiable else None for o in outs]
    found = pullback(cts)
    block.outputs = [*outs, *(b.zeros(x) if c is None else c for c, x in zip(found, [x for x, on in zip(ins, active) if on]))]
    return Func(f"{func.name}_vjp", block, func.attrs)


def linearize_func(func: Func, active: Sequence[bool]) -> tuple[Func, Func]:
    """(args) -> (outs, residuals), and (residuals, tangents of the active args) -> tangents of the float outs."""
    block, aside = Block(func.arg_types), Block()
    lb = Builder(aside)
    tangents = [Value(a.type) if on else None for a, on in zip(block.args, active)]
    outs, moved = differentiate(Builder(block), lb, decompose_block(func.body), block.args, tangents, forward=True)
    results = [lb.zeros(o) if t is None else t for o, t in zip(outs, moved) if o.type.dtype.is_differentiable]
    moving = [t for t in tangents if t is not None]
    residuals = free_values(aside.ops, results, moving)
    block.outputs = [*outs, *residuals]
    linear = close_over(aside.ops, [*residuals, *moving], results)
    return Func(func.name, block, func.attrs), Func(f"{func.name}_linear", linear, {"residuals": len(residuals)})
