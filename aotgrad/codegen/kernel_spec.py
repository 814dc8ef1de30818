"""The kernel level's definition, as code: for every op, what it takes and gives. ``verify`` checks a function against it.

The meaning of the ops is MLIR's (dialects func, scf, arith, math, memref, vector); what is left undefined there is not used: shifts by the width, division
by zero and conversions out of range are guarded by ``ScalarBuilder``. Six attributes are ours, and MLIR ignores them: ``ag.poll`` on ``scf.for`` (ask for an
interrupt every so many rounds; 1: between rounds), ``ag.runs`` on ``scf.for`` (it runs at least once), ``ag.parallel`` on ``scf.for`` (rounds may run at the same
time, on so many threads), ``ag.status`` (leave with the callee's status), ``ag.workspace`` (the call has scratch memory) and ``ag.calm`` (it does not ask for an
interrupt) on ``func.call``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from aotgrad_runtime.errors import AotgradTypeError

from ..ir.core import Block, Func, Op, Value
from .kernel_types import MATH_OPS, KType, as_ktype

__all__ = ["RULES", "SpecError", "verify"]


class SpecError(AotgradTypeError):
    """A kernel-level function that breaks the spec: a fault of the pass that made it."""


Types = Sequence[KType]
Rule = Callable[[Op, Types, Types], "str | None"]
"""(op, operand types, result types) -> what is wrong, or None."""


def _shape(t: KType) -> str:
    return "buffer" if t.mem else {"f": "float", "x": "index", "b": "i1"}.get(t.kind, "integer")


def _is_int(t: KType) -> bool:
    return not t.mem and t.kind != "f"


def _same(count: int, allowed: Callable[[KType], bool], what: str) -> Rule:
    """``count`` operands and one result, all of one type."""

    def rule(op: Op, ins: Types, outs: Types) -> str | None:
        if len(ins) != count or len(outs) != 1 or any(t != ins[0] for t in (*ins, *outs)):
            return f"takes {count} operand(s) and gives one result, all of one type"
        return None if allowed(ins[0]) else f"works on {what}, not {ins[0]}"

    return rule


def _is_float(t: KType) -> bool:
    return not t.mem and t.kind == "f"


def _bools(t: KType, lanes: int) -> bool:
    return not t.mem and t.elem == "i1" and t.lanes == lanes


def _compare(allowed: Callable[[KType], bool], predicates: int) -> Rule:
    def rule(op: Op, ins: Types, outs: Types) -> str | None:
        if len(ins) != 2 or ins[0] != ins[1] or not allowed(ins[0]) or len(outs) != 1 or not _bools(outs[0], ins[0].lanes):
            return "compares two values of one type and gives i1 in as many lanes"
        return None if op.attrs.get("predicate") in range(predicates) else f"needs a predicate from 0 to {predicates - 1}"

    return rule


def _cast(source: str, target: str, widens: bool | None) -> Rule:
    """Kinds of elements (f: float, i: integer, x: index); whether the result is wider, narrower, or any."""

    def kind(t: KType) -> str:
        return "?" if t.mem else "f" if t.kind == "f" else "x" if t.kind == "x" else "i"

    def rule(op: Op, ins: Types, outs: Types) -> str | None:
        if len(ins) != 1 or len(outs) != 1 or ins[0].lanes != outs[0].lanes:
            return "converts one value to as many lanes"
        if kind(ins[0]) not in source or kind(outs[0]) not in target or kind(ins[0]) + kind(outs[0]) == "xx":
            return f"does not convert {ins[0]} to {outs[0]}"
        if widens is not None and (outs[0].bits > ins[0].bits) is not widens or (widens is False and outs[0].bits == ins[0].bits):
            return f"makes values {'wider' if widens else 'narrower'}, and {outs[0]} is not, next to {ins[0]}"
        return None

    return rule


def _index_cast(op: Op, ins: Types, outs: Types) -> str | None:
    if len(ins) != 1 or len(outs) != 1 or ins[0].lanes != outs[0].lanes or sorted((ins[0].kind == "x", outs[0].kind == "x")) != [False, True]:
        return "converts between index and integers of as many lanes"
    return None if _is_int(ins[0]) and _is_int(outs[0]) else "converts integers only"


def _bitcast(op: Op, ins: Types, outs: Types) -> str | None:
    ok = len(ins) == len(outs) == 1 and not ins[0].mem and not outs[0].mem and (ins[0].bits, ins[0].lanes) == (outs[0].bits, outs[0].lanes)
    return None if ok else "gives the same bits another type of equal width"


def _constant(op: Op, ins: Types, outs: Types) -> str | None:
    if ins or len(outs) != 1 or outs[0].mem or "value" not in op.attrs:
        return "has no operand, a value, and one result"
    values = op.attrs["value"] if hasattr(op.attrs["value"], "__len__") else [op.attrs["value"]]
    if len(values) not in (1, outs[0].lanes):
        return f"has {len(values)} values for {outs[0].lanes} lanes"
    if outs[0].kind != "f" and any(v != int(v) or not -(1 << (outs[0].bits - 1)) <= v < 1 << outs[0].bits for v in values):
        return f"has a value that does not fit in {outs[0].elem}"
    return None


def _select(op: Op, ins: Types, outs: Types) -> str | None:
    ok = len(ins) == 3 and len(outs) == 1 and ins[1] == ins[2] == outs[0] and not ins[1].mem and (_bools(ins[0], ins[1].lanes) or _bools(ins[0], 1))
    return None if ok else "takes i1 (or i1 per lane) and two values of the result's type"


# ---- memory -----------------------------------------------------------------------------------------------------------------------

def _buffer_at(t: KType, index: KType) -> bool:
    return t.mem and index == "index"


def _fits(mem: KType, value: KType) -> bool:
    return mem.elem == value.elem and not value.mem


def _load(vector: bool) -> Rule:
    def rule(op: Op, ins: Types, outs: Types) -> str | None:
        ok = len(ins) == 2 and len(outs) == 1 and _buffer_at(ins[0], ins[1]) and _fits(ins[0], outs[0]) and (outs[0].lanes > 1) is vector
        return None if ok else "takes a buffer and an index and gives elements of the buffer"

    return rule


def _store(vector: bool) -> Rule:
    def rule(op: Op, ins: Types, outs: Types) -> str | None:
        ok = len(ins) == 3 and not outs and _buffer_at(ins[1], ins[2]) and _fits(ins[1], ins[0]) and (ins[0].lanes > 1) is vector
        return None if ok else "takes a value, a buffer of its element and an index"

    return rule


def _masked_load(op: Op, ins: Types, outs: Types) -> str | None:
    ok = len(ins) == 4 and len(outs) == 1 and _buffer_at(ins[0], ins[1]) and ins[3] == outs[0] and _fits(ins[0], outs[0]) and _bools(ins[2], outs[0].lanes)
    return None if ok else "takes a buffer, an index, a mask and what stands for masked lanes"


def _masked_store(op: Op, ins: Types, outs: Types) -> str | None:
    ok = len(ins) == 4 and not outs and _buffer_at(ins[0], ins[1]) and _fits(ins[0], ins[3]) and _bools(ins[2], ins[3].lanes)
    return None if ok else "takes a buffer, an index, a mask and a vector"


def _indexed(op: Op, ins: Types, outs: Types) -> str | None:
    """Gather gives its last operand's type; scatter gives nothing."""
    ok = len(ins) == 5 and _buffer_at(ins[0], ins[1]) and _is_int(ins[2]) and _fits(ins[0], ins[4]) and ins[2].lanes == ins[4].lanes > 1 and _bools(ins[3], ins[4].lanes)
    wanted = (ins[4],) if op.name == "vector.gather" and ok else ()
    return None if ok and tuple(outs) == wanted else "takes a buffer, an index, a vector of positions, a mask and a vector"


def _address(op: Op, ins: Types, outs: Types) -> str | None:
    return None if len(ins) == 1 and ins[0].mem and list(outs) == ["index"] else "takes a buffer and gives an index"


def _prefetch(op: Op, ins: Types, outs: Types) -> str | None:
    return None if len(ins) == 2 and _buffer_at(*ins) and not outs else "takes a buffer and an index"


def _view(op: Op, ins: Types, outs: Types) -> str | None:
    ok = len(ins) == 3 and ins[0] == "memref<?xi8>" and ins[1] == ins[2] == "index" and len(outs) == 1 and outs[0].mem
    return None if ok else "takes memref<?xi8>, a byte offset and a size, and gives a buffer"


def _alloca(op: Op, ins: Types, outs: Types) -> str | None:
    return None if len(ins) == 1 and ins[0] == "index" and len(outs) == 1 and outs[0].mem else "takes a size and gives a buffer"


def _data(op: Op, ins: Types, outs: Types) -> str | None:
    ok = not ins and len(outs) == 1 and outs[0].mem and isinstance(op.attrs.get("name"), str) and isinstance(op.attrs.get("value"), str)
    return None if ok else "gives a buffer, and has a name and its bytes in hexadecimal"


def _join(op: Op, ins: Types, outs: Types) -> str | None:
    ok = len(ins) == 3 and ins[0] == ins[1] and list(outs) == [ins[0]] and ins[0].lanes * ins[0].bits == 512 and _is_int(ins[2])
    ok = ok and not ins[0].mem and (ins[2].bits, ins[2].lanes) == (ins[0].bits, ins[0].lanes)
    return None if ok else "takes two vectors of 512 bits and integers of as many bits in as many lanes"


# ---- vectors ----------------------------------------------------------------------------------------------------------------------

def _broadcast(op: Op, ins: Types, outs: Types) -> str | None:
    ok = len(ins) == len(outs) == 1 and not ins[0].mem and ins[0].lanes == 1 and outs[0].lanes > 1 and outs[0].elem == ins[0].elem
    return None if ok else "puts a scalar in every lane of a vector of its type"


def _create_mask(op: Op, ins: Types, outs: Types) -> str | None:
    return None if tuple(ins) == ("index",) and len(outs) == 1 and outs[0].lanes > 1 and _bools(outs[0], outs[0].lanes) else "takes an index and gives a mask"


def _step(op: Op, ins: Types, outs: Types) -> str | None:
    return None if not ins and len(outs) == 1 and outs[0].elem == "index" and outs[0].lanes > 1 else "gives a vector of index"


def _reduction(op: Op, ins: Types, outs: Types) -> str | None:
    ok = len(ins) == len(outs) == 1 and ins[0].lanes > 1 and outs[0].lanes == 1 and outs[0].elem == ins[0].elem
    if not ok or not _is_int(ins[0]):
        return "combines the lanes of an integer vector (floats: an explicit tree)"
    return None if op.attrs.get("kind") in ("add", "mul", "and", "or", "xor", "minsi", "maxsi", "minui", "maxui") else "needs a kind"


def _lane(op: Op, vector: KType, scalar: KType) -> str | None:
    at = op.attrs.get("static_position")
    if vector.lanes == 1 or scalar.lanes != 1 or vector.elem != scalar.elem:
        return "takes a vector and a scalar of its type"
    return None if isinstance(at, tuple) and len(at) == 1 and 0 <= at[0] < vector.lanes else f"needs a static_position inside {vector}"


def _extract(op: Op, ins: Types, outs: Types) -> str | None:
    return _lane(op, ins[0], outs[0]) if len(ins) == len(outs) == 1 else "takes a vector"


def _insert(op: Op, ins: Types, outs: Types) -> str | None:
    return _lane(op, ins[1], ins[0]) if len(ins) == 2 and tuple(outs) == (ins[1],) else "takes a scalar and a vector"


def _shuffle(op: Op, ins: Types, outs: Types) -> str | None:
    mask = op.attrs.get("mask")
    if len(ins) != 2 or ins[0] != ins[1] or ins[0].lanes == 1 or len(outs) != 1 or not isinstance(mask, tuple):
        return "takes two vectors of one type and a mask"
    ok = outs[0].elem == ins[0].elem and outs[0].lanes == len(mask) and all(0 <= m < 2 * ins[0].lanes for m in mask)
    return None if ok else "has a mask that does not give its result type"


# ---- control ----------------------------------------------------------------------------------------------------------------------

def _types(values: Iterable[Value]) -> list[str]:
    return [str(v.type) for v in values]


def _for(op: Op, ins: Types, outs: Types) -> str | None:
    if len(op.regions) != 1 or list(ins[:3]) != ["index"] * 3:
        return "takes three indices and has one body"
    carried = list(ins[3:])
    if _types(op.regions[0].args) != ["index", *carried] or _types(op.regions[0].outputs) != carried or list(outs) != carried:
        return f"carries {carried}, but the body takes {_types(op.regions[0].args)} and gives {_types(op.regions[0].outputs)}"
    for name in ("ag.poll", "ag.parallel"):
        if not isinstance(op.attrs.get(name, 1), int) or op.attrs.get(name, 1) < 1:
            return f"needs a positive {name}"
    return f"carries {carried}, which no parallel loop can" if carried and "ag.parallel" in op.attrs else None


def _if(op: Op, ins: Types, outs: Types) -> str | None:
    if list(ins) != ["i1"] or len(op.regions) not in (1, 2) or any(r.args for r in op.regions) or (outs and len(op.regions) == 1):
        return "takes i1 and has two branches (one where it has no results)"
    bad = [_types(r.outputs) for r in op.regions if _types(r.outputs) != list(outs)]
    return f"gives {list(outs)}, but a branch gives {bad[0]}" if bad else None


def _while(op: Op, ins: Types, outs: Types) -> str | None:
    if len(op.regions) != 2:
        return "has two regions"
    before, after = op.regions
    if _types(before.args) != list(ins) or _types(after.outputs) != list(ins):
        return f"starts from {list(ins)}, but 'before' takes {_types(before.args)} and 'after' gives {_types(after.outputs)}"
    if _types(before.outputs) != ["i1", *outs] or _types(after.args) != list(outs):
        return f"gives {list(outs)}, but 'before' ends with {_types(before.outputs)} and 'after' takes {_types(after.args)}"
    return None


_CALLS: Final = re.compile(r"ag_check|ag_drain|ag_hook|ag_thread|ag_gemm_(f64|f32)(\..+|_pack)?|ag_conv_\w+_(run|pack)|ag_\w+_(f64|f32)_\d+")
_EXITS: Final = {"ag_check": ["i1", "i32", "i64", "index", "index"], "ag_hook": ["i64", "i64"], "ag_drain": []}


def _call(op: Op, ins: Types, outs: Types) -> str | None:
    callee = op.attrs.get("callee")
    if not isinstance(callee, str):
        return "needs a callee"
    if callee == "ag_thread":
        return None if not ins and list(outs) == ["index"] else "of ag_thread takes nothing and gives an index"
    want = _EXITS.get(callee)
    return f"of {callee} takes {want}, not {list(ins)}" if want is not None and (list(ins) != want or outs) else None


_ARITY: Final = {"fma": 3, "atan2": 2, "powf": 2, "copysign": 2}

RULES: Final[dict[str, Rule]] = {
    **{f"arith.{n}": _same(2, _is_float, "floats") for n in ("addf", "subf", "mulf", "divf", "minimumf", "maximumf", "minnumf", "maxnumf")},
    **{f"arith.{n}": _same(2, _is_int, "integers") for n in ("addi", "subi", "muli", "divsi", "divui", "remsi", "remui", "floordivsi", "andi", "ori", "xori", "shli",
                                                             "shrsi", "shrui", "minsi", "maxsi", "minui", "maxui")},
    **{f"math.{n}": _same(_ARITY.get(n, 1), _is_float, "floats") for n in MATH_OPS},
    "math.absi": _same(1, _is_int, "integers"), "arith.negf": _same(1, _is_float, "floats"), "arith.constant": _constant, "arith.select": _select,
    "arith.cmpi": _compare(_is_int, 10), "arith.cmpf": _compare(_is_float, 16), "arith.extf": _cast("f", "f", True), "arith.truncf": _cast("f", "f", False),
    "arith.extsi": _cast("i", "i", True), "arith.extui": _cast("i", "i", True), "arith.trunci": _cast("i", "i", False), "arith.sitofp": _cast("i", "f", None),
    "arith.uitofp": _cast("i", "f", None), "arith.fptosi": _cast("f", "i", None), "arith.fptoui": _cast("f", "i", None), "arith.bitcast": _bitcast,
    "arith.index_cast": _index_cast, "arith.index_castui": _index_cast,
    "memref.load": _load(False), "memref.store": _store(False), "memref.view": _view, "memref.alloca": _alloca,
    "memref.extract_aligned_pointer_as_index": _address, "memref.prefetch": _prefetch, "ag.data": _data,
    "vector.load": _load(True), "vector.store": _store(True), "vector.maskedload": _masked_load, "vector.maskedstore": _masked_store,
    "vector.gather": _indexed, "vector.scatter": _indexed, "vector.broadcast": _broadcast, "vector.create_mask": _create_mask, "vector.step": _step,
    "vector.reduction": _reduction, "vector.extract": _extract, "vector.insert": _insert, "vector.shuffle": _shuffle, "ag.join": _join,
    "scf.for": _for, "scf.if": _if, "scf.while": _while, "func.call": _call,
}


# ---- the verifier -----------------------------------------------------------------------------------------------------------------

def verify(func: Func, module: Sequence[Func] = ()) -> None:
    """Checks every op, and that values are defined before they are used, in a block around the use. ``module``: the functions that calls may name besides those provided.

    Raises ``SpecError`` with the function, the op, the user's line where known, and what is wrong.
    """
    defined: set[Value] = set(func.args)
    signatures = {f.name: f for f in module}
    _block(func, func.body, defined, signatures, [])
    outs = _types(func.outputs)
    if len(outs) > 1 or ("outputs" in func.attrs and outs != ["i32"]):
        raise SpecError(f"kernel function {func.name} gives {outs}; a kernel gives one i32 status, a helper one value or none")


def _fail(func: Func, op: Op | None, what: str) -> None:
    where = f"{op.loc}: " if op is not None and op.loc else ""
    name = f"{op.name} ({', '.join(_types(op.operands))}) -> ({', '.join(_types(op.results))})" if op is not None else "its end"
    raise SpecError(f"{where}in kernel function {func.name}: {name} {what}")


def _block(func: Func, block: Block, defined: set[Value], module: dict[str, Func], opened: list[Value]) -> None:
    """``opened`` collects what this block defines, to be forgotten after it."""
    for op in block.ops:
        for i, v in enumerate(op.operands):
            if v not in defined:
                _fail(func, op, f"uses operand {i} before it is defined, or outside the block that defines it")
        _op(func, op, module)
        for region in op.regions:
            inner: list[Value] = list(region.args)
            defined.update(inner)
            _block(func, region, defined, module, inner)
            defined.difference_update(inner)
        defined.update(op.results)
        opened.extend(op.results)
    for v in block.outputs:
        if v not in defined:
            _fail(func, None, f"passes on a {v.type} that is not defined there")


def _op(func: Func, op: Op, module: dict[str, Func]) -> None:
    rule = RULES.get(op.name)
    if rule is None:
        _fail(func, op, "is not a kernel-level op")
        return
    wrong = rule(op, [as_ktype(v.type) for v in op.operands], [as_ktype(v.type) for v in op.results])
    if wrong is None and op.name == "func.call":
        wrong = _known_call(op, module)
    if wrong is not None:
        _fail(func, op, wrong)


def _known_call(op: Op, module: dict[str, Func]) -> str | None:
    callee: Any = op.attrs["callee"]
    target = module.get(callee)
    if target is None:
        return None if _CALLS.fullmatch(callee) else f"names {callee!r}, which is not a function of the module"
    if _types(target.args) != _types(op.operands) or _types(target.outputs) != _types(op.results):
        return f"does not fit {callee}: ({', '.join(_types(target.args))}) -> ({', '.join(_types(target.outputs))})"
    return None
