"""Rules given by the user: ``custom`` holds a program and its own derivative as regions, ``custom_linear`` is that derivative in a linear part.

``custom``: region 0 takes the operands and gives the results, then values kept for the rules; region 1 takes (residuals, tangents of the moving operands) and gives
tangents of the differentiable results; region 2 takes (residuals, their cotangents) and gives cotangents of operands. An empty region 1 or 2 is the transpose of the
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aotgrad_runtime.errors import AotgradNotImplementedError, AotgradRuntimeError

from .. import opdef
from ..builder import Builder
from ..core import Block, Func, Op, Value, walk
from . import differentiate as ad
from .cleanup import dce_block, standard
from .rewrite import decompose_block, inline

__all__ = ["expand_block", "expand_func", "forward_rule", "guard", "linearize_custom", "linearize_linear", "present", "reverse_rule", "runnable", "transpose_block",
           "transpose_linear"]


def present(block: Block) -> bool:
    """Whether a rule was given (an absent one is an empty block)."""
    return bool(block.args or block.outputs)


def transpose_block(block: Block, linear: Sequence[int]) -> Block:
    """The transpose of a block that is linear in the arguments ``linear``: takes the other arguments, then cotangents of the outputs; gives cotangents of the linear
    ones.

    The block may use any differentiable op: its derivative at 0 is what is transposed.
    """
    chosen = set(linear)
    new = Block([a.type for i, a in enumerate(block.args) if i not in chosen])
    fixed = iter(list(new.args))
    b, aside = Builder(new), Block()
    cts = [new.add_arg(o.type) for o in block.outputs]
    moving = {i: Value(block.args[i].type) for i in linear}
    ins = [b.zeros(a.type) if i in chosen else next(fixed) for i, a in enumerate(block.args)]
    moved = ad.differentiate(b, Builder(aside), decompose_block(block), ins, [moving.get(i) for i in range(len(ins))])[1]
    found = ad.transpose_into(b, aside.ops, [moving[i] for i in linear], moved, cts)
    new.outputs = [b.zeros(moving[i].type) if c is None else b.placed(c, moving[i].type.layout) for i, c in zip(linear, found)]
    return dce_block(new)


def forward_rule(op: Op) -> Block:
    """(residuals, tangents of moving operands) -> tangents of differentiable results, of a ``custom_linear``."""
    given, other = op.regions
    if present(given):
        return given
    n = op.attrs["residuals"]
    turned = transpose_block(other, range(n, len(other.args)))
    block = Block([o.type for o in op.operands])
    block.outputs = inline(Builder(block), turned, [*block.args[:n], *(block.args[n + i] for i in op.attrs["grads"])])
    return block


def reverse_rule(regions: Sequence[Block], residuals: int, grads: Sequence[int]) -> tuple[Block, Sequence[int]]:
    """(residuals, cotangents of differentiable results) -> cotangents of moving operands, and of which ones."""
    given, other = regions[1], regions[0]
    if present(given):
        return given, grads
    return transpose_block(other, range(residuals, len(other.args))), range(len(other.args) - residuals)


# ---- differentiation ----------------------------------------------------------------------------------------------------------------

def linearize_custom(pb: Builder, lb: Builder, op: Op, ins: Sequence[Value], tangents: Sequence[Any]) -> tuple[Sequence[Value], list[Any]]:
    """The primal op also gives what the rules need; the linear part is one ``custom_linear``."""
    a = op.attrs
    results = pb.emit("custom", ins, {**a, "saved": True}, op.regions)
    made = results[0].op
    assert made is not None
    moved: list[Any] = [None] * len(op.results)
    if any(tangents[i] is not None for i in a["moving"]) and a["cts"]:
        if not any(map(present, op.regions[1:])):
            raise AotgradNotImplementedError(f"{op.loc}: {a['name']}: {a['error'] or 'neither a reverse nor a forward rule is there'}")
        pool = [*ins, *results]
        operands = [*(pool[i] for i in a["residuals"]), *(lb.zeros(ins[i]) if tangents[i] is None else tangents[i] for i in a["moving"])]
        linear = Op("custom_linear", operands, (), {"name": a["name"], "residuals": len(a["residuals"]), "grads": a["grads"], "once": a["once"]}, made.regions[1:],
                    op.loc)
        found = inline(lb, forward_rule(linear), operands) if pb is lb else lb.emit("custom_linear", operands, linear.attrs, linear.regions)
        for j, t in zip(a["cts"], found):
            moved[j] = t
    if a["through"] and len(op.results) > a["outs"]:
        moved[a["outs"]:] = _kept_tangents(pb, lb, made, ins, tangents)
    return results[:len(op.results)], moved


def _kept_tangents(pb: Builder, lb: Builder, op: Op, ins: Sequence[Value], tangents: Sequence[Any]) -> list[Any]:
    """Tangents of what the program keeps for its rules: those of the ops that made it."""
    block = decompose_block(op.regions[0])
    block.outputs = block.outputs[op.attrs["outs"]:]
    return ad.differentiate(pb, lb, dce_block(block), ins, tangents)[1]


def linearize_linear(pb: Builder, lb: Builder, op: Op, ins: Sequence[Value], tangents: Sequence[Any]) -> tuple[Sequence[Value], list[Any]]:
    """The derivative of a rule is that of its own ops."""
    return ad.differentiate(pb, lb, decompose_block(forward_rule(op)), ins, tangents)


def transpose_linear(b: Builder, cts: Sequence[Any], op: Any) -> dict[int, Any]:
    """The user's reverse rule on the cotangents."""
    n = op.attrs["residuals"]
    if not any(map(present, op.regions)):
        raise AotgradRuntimeError(f"{op.attrs['name']} has no rule left to transpose")
    block, grads = reverse_rule(op.regions, n, op.attrs["grads"])
    given = [b.zeros(a.type) if c is None else b.placed(c, a.type.layout) for a, c in zip(block.args[n:], cts)]
    found = inline(b, block, [*op.operands[:n], *given])
    if op.attrs["once"]:
        found = [guard(b, x, op.attrs["name"], op.attrs["once"]) for x in found]
    return {n + i: x for i, x in zip(grads, found)}


def guard(b: Builder, x: Value, name: str, text: str) -> Value:
    """``x`` in a program that cannot be differentiated: who tries gets ``text``."""
    body = Block([x.type])
    body.outputs = [body.args[0]]
    attrs = {"name": name, "outs": 1, "moving": (0,), "cts": (0,), "residuals": (), "grads": (), "error": text}
    return b.emit("custom", [x], attrs, (body, Block(), Block()))[0]


# ---- execution ----------------------------------------------------------------------------------------------------------------------

_NAMES = frozenset(("custom", "custom_linear"))


def body_of(op: Op) -> Block:
    """What the op computes, as a block with at least its results."""
    return op.regions[0] if op.name == "custom" else forward_rule(op)


def expand_block(block: Block, late: bool = False) -> Block:
    """A copy with the bodies in the place of the ops, at all depths; for execution, after differentiation. ``late``: of ops that have one for code generation, too."""
    new = Block([a.type for a in block.args])
    env: dict[Value, Value] = dict(zip(block.args, new.args))
    b = Builder(new)
    for op in block.ops:
        operands = [env[o] for o in op.operands]
        if op.name in _NAMES:
            made: Sequence[Value] = inline(b, expand_block(body_of(op), late), operands)
        elif late and isinstance(lower := opdef.get(op.name).lower, opdef.Body):
            made = [lower.fn(Builder(new, op.loc), *operands, **op.attrs)]
        elif op.regions:
            copied = Op(op.name, operands, [r.type for r in op.results], op.attrs, [expand_block(r, late) for r in op.regions], op.loc)
            new.ops.append(copied)
            made = copied.results
        else:
            made = b.append_copy(op, operands)
        env.update(zip(op.results, made))
    new.outputs = [env[o] for o in block.outputs]
    return new


def expand_func(func: Func) -> Func:
    """``expand_block`` of a function; the function itself where there is nothing to do."""
    return Func(func.name, expand_block(func.body), func.attrs) if any(op.name in _NAMES for op in walk(func.body)) else func


def runnable(func: Func) -> Func:
    """A function after ``standard``, ready for code generation: without user rules and ops that are made of others, cleaned up again where there were any."""
    if not any(op.name in _NAMES or isinstance(opdef.get(op.name).lower, opdef.Body) for op in walk(func.body)):
        return func
    return standard(Func(func.name, expand_block(func.body, late=True), func.attrs))
