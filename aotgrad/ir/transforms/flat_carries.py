"""Loops over arrays that are written at several indices carry them flat.

A write at several indices is one into the flat array, between two reshapes. A reshape is no memory that can be overwritten, so each round would copy the whole array;
carried flat, it is reshaped once around the loop, which costs nothing.
"""

from __future__ import annotations

from ..core import Block, Op, Value

__all__ = ["flat_carries"]

_WRITES = frozenset(("scatter", "scatter_add", "insert", "insert_add", "scan"))


def flat_carries(block: Block) -> Block:
    """``block``, which nobody else has, with such carries in the shape in which they are written."""
    env: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in block.ops:
        op.operands = [env.get(o, o) for o in op.operands]
        for region in op.regions:
            flat_carries(region)
        ops.append(op)
        if op.name == "scan":
            _flatten(op, ops, env)
        elif op.name == "reshape" and (base := _unreshaped(op.operands[0])) is not op.operands[0]:
            op.operands = [base]
            if base.type == op.result.type:
                env[op.result] = base
    block.ops, block.outputs = ops, [env.get(o, o) for o in block.outputs]
    return block


def _unreshaped(v: Value) -> Value:
    while v.op is not None and v.op.name == "reshape" and v.type.layout is None and v.op.operands[0].type.layout is None:
        v = v.op.operands[0]
    return v


def _flatten(op: Op, ops: list[Op], env: dict[Value, Value]) -> None:
    body, first = op.regions[0], op.attrs["consts"]
    operands, inside, outside = list(op.operands), list[Op](), list[Op]()
    for j in range(op.attrs["carry"]):
        out, arg = body.outputs[j], body.args[first + j]
        flat = _unreshaped(out)
        if flat is out or flat.op is None or flat.op.name not in _WRITES or out.type.layout is not None:
            continue
        given = _unreshaped(operands[first + j])
        if given.type != flat.type:
            outside.append(_reshape(operands[first + j], flat, op))
            given = outside[-1].result
        operands[first + j] = given
        body.args[first + j] = Value(flat.type, None, first + j)
        inside.append(_reshape(body.args[first + j], arg, op))
        for used in body.ops:
            if arg in used.operands:
                used.operands = [inside[-1].result if o is arg else o for o in used.operands]
        body.outputs = [flat if i == j else inside[-1].result if o is arg else o for i, o in enumerate(body.outputs)]
        after = Op("reshape", [op.results[j]], [op.results[j].type], {"shape": op.results[j].type.shape}, (), op.loc)
        op.results[j].type = flat.type
        env[op.results[j]] = after.result
        ops.append(after)
    if inside:
        op.operands = operands
        at = ops.index(op)
        ops[at:at] = outside
        body.ops[:0] = inside
        flat_carries(body)  # what was flattened there is there as it is now


def _reshape(v: Value, like: Value, op: Op) -> Op:
    return Op("reshape", [v], [like.type], {"shape": like.type.shape}, (), op.loc)
