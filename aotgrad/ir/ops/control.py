"""Structured control flow: ``scan`` and ``cond``. Bodies are isolated regions; what they capture is an operand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aotgrad_runtime.dtypes import bool_
from aotgrad_runtime.errors import AotgradTypeError, AotgradValueError

from ..core import Block
from ..opdef import REQUIRED, Edges, Kernel, Linearize, OpDef, Sample, register
from ..transforms import batch_control as batching
from ..transforms import control as rules
from ..types import TensorType

Types = Sequence[TensorType]
Attrs = Mapping[str, Any]


def _scan_rule(types: Types, a: Attrs) -> Types:
    body, nc, nk, length = a["regions"][0], a["consts"], a["carry"], a["length"]
    xs = types[nc + nk:]
    for t in xs:
        if t.rank == 0 or t.shape[0] != length:
            raise AotgradValueError(f"scan: the scanned input {t} needs a leading dim of size {length}")
    want = [*types[:nc + nk], *(TensorType(t.shape[1:], t.dtype) for t in xs)]
    if [v.type for v in body.args] != want:
        raise AotgradTypeError(f"scan: the body takes {[str(v.type) for v in body.args]}, the operands give {[str(t) for t in want]}")
    outs = [v.type for v in body.outputs]
    if outs[:nk] != list(types[nc:nc + nk]):
        raise AotgradTypeError(f"scan: the carry starts as {[str(t) for t in types[nc:nc + nk]]} and comes back as {[str(t) for t in outs[:nk]]}; they must be equal")
    return (*outs[:nk], *(TensorType((length, *t.shape), t.dtype) for t in outs[nk:]))


def _cond_rule(types: Types, a: Attrs) -> Types:
    then, other = a["regions"]
    if types[0].dtype is not bool_ or types[0].rank != 0:
        raise AotgradTypeError(f"cond: the predicate is {types[0]}, not a bool scalar")
    outs = [[v.type for v in r.outputs] for r in (then, other)]
    if outs[0] != outs[1]:
        raise AotgradTypeError(f"cond: one branch gives {[str(t) for t in outs[0]]}, the other {[str(t) for t in outs[1]]}; make shapes and dtypes equal")
    return tuple(outs[0])


def _scan_edges(a: Attrs, regions: Sequence[Block]) -> Edges:
    """Consts and carries keep theirs; rows of ``xs`` and ``ys`` are pieces of row-major arrays."""
    body, held, nc = regions[0], a["consts"] + a["carry"], a["consts"]
    taken = [v.type.layout if i < held else None for i, v in enumerate(body.args)]
    return Edges(taken, taken, [taken[nc + i] if nc + i < held else None for i in range(len(body.outputs))])


def _cond_edges(a: Attrs, regions: Sequence[Block]) -> Edges:
    """As the first branch has them."""
    taken = [v.type.layout for v in regions[0].args]
    return Edges([None, *taken], taken, [v.type.layout for v in regions[0].outputs])


def _no_samples() -> Iterable[Sample]:
    return ()


register(OpDef(
    "scan", "Runs the body ``length`` times over (consts, carry, slice of xs) -> (carry, ys); gives the last carry and the stacked ys.", ("values*",), _scan_rule, None,
    Linearize(rules.linearize_scan, rules.transpose_scan), Kernel("scan"),
    {"consts": REQUIRED, "carry": REQUIRED, "length": REQUIRED, "reverse": False}, _no_samples, layouts="any", regions=1, edges=_scan_edges,
    outputs=("values*",), batch=batching.batch_scan))
register(OpDef(
    "cond", "The first region's results where the predicate holds, else the second's, on the operands after the predicate.", ("predicate", "values*"), _cond_rule, None,
    Linearize(rules.linearize_cond, rules.transpose_cond), Kernel("cond"), {}, _no_samples, layouts="any", regions=2, edges=_cond_edges,
    outputs=("values*",), batch=batching.batch_cond))
