"""LLVM text of each kernel-level op, by name. No decisions here: one op, one or a few instructions."""

from __future__ import annotations

from collections.abc import Callable

from aotgrad_runtime.errors import AotgradNotImplementedError

from ...ir.core import Op
from ..kernel_types import MATH_OPS, as_ktype, register
from .calls import call_op, math_op
from .function import FunctionEmitter
from .jobs import for_op
from .text import align, const_text, elem_type, llvm_type, suffix

__all__ = ["BINARY", "CASTS", "INTRINSIC_BINARY", "TABLE"]

Emit = Callable[[FunctionEmitter, Op], None]

BINARY = {
    "arith.addf": "fadd", "arith.subf": "fsub", "arith.mulf": "fmul", "arith.divf": "fdiv", "arith.addi": "add", "arith.subi": "sub", "arith.muli": "mul",
    "arith.divsi": "sdiv", "arith.divui": "udiv", "arith.remsi": "srem", "arith.remui": "urem", "arith.andi": "and", "arith.ori": "or", "arith.xori": "xor",
    "arith.shli": "shl", "arith.shrsi": "ashr", "arith.shrui": "lshr",
}
INTRINSIC_BINARY = {
    "arith.minsi": "smin", "arith.maxsi": "smax", "arith.minui": "umin", "arith.maxui": "umax", "arith.minimumf": "minimum", "arith.maximumf": "maximum",
    "arith.minnumf": "minnum", "arith.maxnumf": "maxnum",
}
CASTS = {
    "arith.extf": "fpext", "arith.truncf": "fptrunc", "arith.extsi": "sext", "arith.extui": "zext", "arith.trunci": "trunc", "arith.sitofp": "sitofp",
    "arith.uitofp": "uitofp", "arith.fptosi": "fptosi", "arith.fptoui": "fptoui", "arith.bitcast": "bitcast",
}
CMPI = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
CMPF = ("false", "oeq", "ogt", "oge", "olt", "ole", "one", "ord", "ueq", "ugt", "uge", "ult", "ule", "une", "uno", "true")
REDUCTIONS = {"add": "add", "mul": "mul", "and": "and", "or": "or", "xor": "xor", "minsi": "smin", "maxsi": "smax", "minui": "umin", "maxui": "umax"}


def _binary(instruction: str) -> Emit:
    def emit(e: FunctionEmitter, op: Op) -> None:
        a, b = op.operands
        e.names[op.results[0]] = e.put(f"{instruction} {llvm_type(a.type)} {e.names[a]}, {e.names[b]}")

    return emit


def _intrinsic(name: str) -> Emit:
    def emit(e: FunctionEmitter, op: Op) -> None:
        t = llvm_type(op.operands[0].type)
        e.names[op.results[0]] = e.intrinsic(t, f"{name}.{suffix(op.operands[0].type)}", [(t, e.names[o]) for o in op.operands])

    return emit


def _cast(instruction: str) -> Emit:
    def emit(e: FunctionEmitter, op: Op) -> None:
        e.names[op.results[0]] = e.put(f"{instruction} {e.typed(op.operands[0])} to {llvm_type(op.results[0].type)}")

    return emit


def _extf(e: FunctionEmitter, op: Op) -> None:
    (x,), (r,) = op.operands, op.results
    if as_ktype(x.type).elem != "bf16":
        return _cast("fpext")(e, op)
    ints = r.type.replace("f32", "i32")
    bits = e.put(f"shl {llvm_type(ints)} {e.put(f'zext {e.typed(x)} to {llvm_type(ints)}')}, {const_text(16, ints)}")
    e.names[r] = e.put(f"bitcast {llvm_type(ints)} {bits} to {llvm_type(r.type)}")


def _truncf(e: FunctionEmitter, op: Op) -> None:
    """bfloat16 in integers, to nearest, ties to even; NaN is quiet, subnormals stay."""
    (x,), (r,) = op.operands, op.results
    if as_ktype(r.type).elem != "bf16":
        return _cast("fptrunc")(e, op)
    ints = x.type.replace("f32", "i32")
    t = llvm_type(ints)
    bits = e.put(f"bitcast {e.typed(x)} to {t}")
    even = e.put(f"and {t} {e.put(f'lshr {t} {bits}, {const_text(16, ints)}')}, {const_text(1, ints)}")
    up = e.put(f"add {t} {bits}, {e.put(f'add {t} {even}, {const_text(0x7FFF, ints)}')}")
    nan = e.put(f"fcmp uno {e.typed(x)}, {e.names[x]}")
    chosen = e.put(f"select {_bool(ints)} {nan}, {t} {const_text(0x7FC00000, ints)}, {t} {up}")
    e.names[r] = e.put(f"trunc {t} {e.put(f'lshr {t} {chosen}, {const_text(16, ints)}')} to {llvm_type(r.type)}")


def _index_cast(extension: str) -> Emit:
    def emit(e: FunctionEmitter, op: Op) -> None:
        (x,), (r,) = op.operands, op.results
        gain = as_ktype(r.type).bits - as_ktype(x.type).bits
        e.names[r] = e.names[x] if gain == 0 else e.put(f"{extension if gain > 0 else 'trunc'} {e.typed(x)} to {llvm_type(r.type)}")

    return emit


def _compare(instruction: str, predicates: tuple[str, ...]) -> Emit:
    def emit(e: FunctionEmitter, op: Op) -> None:
        a, b = op.operands
        e.names[op.results[0]] = e.put(f"{instruction} {predicates[op.attrs['predicate']]} {llvm_type(a.type)} {e.names[a]}, {e.names[b]}")

    return emit


def _floordiv(e: FunctionEmitter, op: Op) -> None:
    a, b = op.operands
    t, x, y = llvm_type(a.type), e.names[a], e.names[b]
    if y.isdigit() and int(y) & (int(y) - 1) == 0:
        e.names[op.results[0]] = e.put(f"ashr {t} {x}, {int(y).bit_length() - 1}")
        return
    quotient, rest = e.put(f"sdiv {t} {x}, {y}"), e.put(f"srem {t} {x}, {y}")
    apart = e.put(f"icmp slt {t} {e.put(f'xor {t} {rest}, {y}')}, {const_text(0, a.type)}")
    off = e.put(f"and {_bool(a.type)} {apart}, {e.put(f'icmp ne {t} {rest}, {const_text(0, a.type)}')}")
    e.names[op.results[0]] = e.put(f"add {t} {quotient}, {e.put(f'sext {_bool(a.type)} {off} to {t}')}")


def _bool(t: str) -> str:
    lanes = as_ktype(t).lanes
    return "i1" if lanes == 1 else f"<{lanes} x i1>"


def _select(e: FunctionEmitter, op: Op) -> None:
    e.names[op.results[0]] = e.put(f"select {', '.join([e.typed(o) for o in op.operands])}")


def _negf(e: FunctionEmitter, op: Op) -> None:
    e.names[op.results[0]] = e.put(f"fneg {e.typed(op.operands[0])}")


# ---- memory -----------------------------------------------------------------------------------------------------------------------

def _at(e: FunctionEmitter, op: Op, first: int = 0, inbounds: bool = True) -> str:
    """Address of element operands[first + 1] of the buffer operands[first]. A masked access may lie outside, so it is not "inbounds"."""
    mem, pos = op.operands[first], op.operands[first + 1]
    base, i = e.names[mem], e.names[pos]
    return base if i == "0" else e.put(f"getelementptr {'inbounds ' if inbounds else ''}{elem_type(as_ktype(mem.type))}, ptr {base}, i64 {i}")


def _load(e: FunctionEmitter, op: Op) -> None:
    r = op.results[0]
    e.names[r] = e.put(f"load {llvm_type(r.type)}, ptr {_at(e, op)}, align {align(as_ktype(r.type))}")


def _store(e: FunctionEmitter, op: Op) -> None:
    t, past = as_ktype(op.operands[0].type), bool(op.attrs.get("nontemporal"))
    if past:
        e.state.declare("!0 = !{i32 1}")
    where = f"align {t.bits * t.lanes // 8}, !nontemporal !0" if past else f"align {align(t)}"
    e.lines.append(f"  store {e.typed(op.operands[0])}, ptr {_at(e, op, 1)}, {where}")


def _address(e: FunctionEmitter, op: Op) -> None:
    e.names[op.results[0]] = e.put(f"ptrtoint ptr {e.names[op.operands[0]]} to i64")


def _prefetch(e: FunctionEmitter, op: Op) -> None:
    args = [("ptr", _at(e, op, inbounds=False)), ("i32", str(int(op.attrs["isWrite"]))), ("i32", "3"), ("i32", str(int(op.attrs["isDataCache"])))]
    e.intrinsic("void", "prefetch.p0", args)


def _masked_load(e: FunctionEmitter, op: Op) -> None:
    _, _, mask, other = op.operands
    t = llvm_type(other.type)
    args = [("ptr", _at(e, op, inbounds=False)), ("i32", str(align(as_ktype(other.type)))), (llvm_type(mask.type), e.names[mask]), (t, e.names[other])]
    e.names[op.results[0]] = e.intrinsic(t, f"masked.load.{suffix(other.type)}.p0", args)


def _masked_store(e: FunctionEmitter, op: Op) -> None:
    _, _, mask, value = op.operands
    address = _at(e, op, inbounds=False)
    args = [(llvm_type(value.type), e.names[value]), ("ptr", address), ("i32", str(align(as_ktype(value.type)))), (llvm_type(mask.type), e.names[mask])]
    e.intrinsic("void", f"masked.store.{suffix(value.type)}.p0", args)


def _addresses(e: FunctionEmitter, op: Op) -> tuple[str, str]:
    """The vector of pointers of a gather or scatter, and its type."""
    mem, positions = op.operands[0], op.operands[2]
    base, lanes = _at(e, op, inbounds=False), as_ktype(positions.type).lanes
    return f"<{lanes} x ptr>", e.put(f"getelementptr {elem_type(as_ktype(mem.type))}, ptr {base}, {e.typed(positions)}")


def _gather(e: FunctionEmitter, op: Op) -> None:
    _, _, _, mask, other = op.operands
    kind, pointers = _addresses(e, op)
    k = as_ktype(other.type)
    args = [(kind, pointers), ("i32", str(align(k))), (llvm_type(mask.type), e.names[mask]), (llvm_type(k), e.names[other])]
    e.names[op.results[0]] = e.intrinsic(llvm_type(k), f"masked.gather.{suffix(k)}.v{k.lanes}p0", args)


def _scatter(e: FunctionEmitter, op: Op) -> None:
    _, _, _, mask, value = op.operands
    kind, pointers = _addresses(e, op)
    k = as_ktype(value.type)
    args = [(llvm_type(k), e.names[value]), (kind, pointers), ("i32", str(align(k))), (llvm_type(mask.type), e.names[mask])]
    e.intrinsic("void", f"masked.scatter.{suffix(k)}.v{k.lanes}p0", args)


def _view(e: FunctionEmitter, op: Op) -> None:
    source, shift = op.operands[:2]
    at = e.names[shift]
    if not at.isdigit():  # one number to the code generator: its loops would try every sum that an offset is written as (nine tenths of the time for a Hessian)
        at = e.put(f"freeze i64 {at}")
    e.names[op.results[0]] = e.names[source] if at == "0" else e.put(f"getelementptr inbounds i8, ptr {e.names[source]}, i64 {at}")


def _alloca(e: FunctionEmitter, op: Op) -> None:
    size = e.names[op.operands[0]]
    if not size.isdigit():
        raise AotgradNotImplementedError("memref.alloca needs a constant size; take memory of run-time size from the workspace")
    e.names[op.results[0]] = e.alloca(f"[{size} x {elem_type(as_ktype(op.results[0].type))}]")


def _data(e: FunctionEmitter, op: Op) -> None:
    """Read-only bytes of the module, given as hexadecimal text."""
    name, text = op.attrs["name"], "".join(f"\\{op.attrs['value'][i:i + 2]}" for i in range(0, len(op.attrs["value"]), 2))
    e.state.declare(f'@{name} = internal unnamed_addr constant [{len(op.attrs["value"]) // 2} x i8] c"{text}", align 64')
    e.names[op.results[0]] = f"@{name}"


# ---- vectors ----------------------------------------------------------------------------------------------------------------------

def splat(e: FunctionEmitter, typed: str, scalar: str, lanes: int) -> str:
    """A scalar operand in every lane."""
    first = e.put(f"insertelement <{lanes} x {scalar}> poison, {typed}, i64 0")
    return e.put(f"shufflevector <{lanes} x {scalar}> {first}, <{lanes} x {scalar}> poison, <{lanes} x i32> zeroinitializer")


def _broadcast(e: FunctionEmitter, op: Op) -> None:
    (x,), (r,) = op.operands, op.results
    e.names[r] = splat(e, e.typed(x), llvm_type(x.type), as_ktype(r.type).lanes)


def _create_mask(e: FunctionEmitter, op: Op) -> None:
    lanes = as_ktype(op.results[0].type).lanes
    # Compared in lanes as wide as the data the mask is most likely for; a count beyond them is clamped before it is narrowed.
    elem = "i64" if e.state.target.vector_bits // lanes >= 64 else "i32"
    count = e.names[op.operands[0]]
    if elem == "i32":
        low = e.intrinsic("i64", "smax.i64", [("i64", count), ("i64", "0")])
        count = e.put(f"trunc i64 {e.intrinsic('i64', 'smin.i64', [('i64', low), ('i64', str(lanes))])} to i32")
    steps = f"<{', '.join(f'{elem} {i}' for i in range(lanes))}>"
    e.names[op.results[0]] = e.put(f"icmp slt <{lanes} x {elem}> {steps}, {splat(e, f'{elem} {count}', elem, lanes)}")


def _step(e: FunctionEmitter, op: Op) -> None:
    t = op.results[0].type
    e.names[op.results[0]] = const_text(range(as_ktype(t).lanes), t)


def _reduction(e: FunctionEmitter, op: Op) -> None:
    x, kind = op.operands[0], op.attrs["kind"]
    k = as_ktype(x.type)
    if kind not in REDUCTIONS or k.kind == "f" or len(op.operands) > 1:
        raise AotgradNotImplementedError(f"vector.reduction <{kind}> of {k}: floats are combined in an explicit tree, see ScalarBuilder.reduce")
    e.names[op.results[0]] = e.intrinsic(llvm_type(register(k.dtype)), f"vector.reduce.{REDUCTIONS[kind]}.{suffix(k)}", [(llvm_type(k), e.names[x])])


def _extract(e: FunctionEmitter, op: Op) -> None:
    e.names[op.results[0]] = e.put(f"extractelement {e.typed(op.operands[0])}, i64 {op.attrs['static_position'][0]}")


def _insert(e: FunctionEmitter, op: Op) -> None:
    x, v = op.operands
    e.names[op.results[0]] = e.put(f"insertelement {e.typed(v)}, {e.typed(x)}, i64 {op.attrs['static_position'][0]}")


def _shuffle(e: FunctionEmitter, op: Op) -> None:
    a, b = op.operands
    lanes = op.attrs["mask"]
    mask = f"<{len(lanes)} x i32> <{', '.join(f'i32 {i}' for i in lanes)}>"
    e.names[op.results[0]] = e.put(f"shufflevector {e.typed(a)}, {e.typed(b)}, {mask}")


def _join(e: FunctionEmitter, op: Op) -> None:
    a, b, lanes = op.operands
    t = as_ktype(a.type)
    kind = ("ps", "pd")[t.bits == 64] if t.kind == "f" else ("d", "q")[t.bits == 64]
    args = [(llvm_type(v.type), e.names[v]) for v in (a, lanes, b)]
    e.names[op.results[0]] = e.intrinsic(llvm_type(a.type), f"x86.avx512.vpermi2var.{kind}.512", args)


TABLE: dict[str, Emit] = {
    **{name: _binary(i) for name, i in BINARY.items()},
    **{name: _intrinsic(i) for name, i in INTRINSIC_BINARY.items()},
    **{name: _cast(i) for name, i in CASTS.items()}, "arith.extf": _extf, "arith.truncf": _truncf,
    "arith.index_cast": _index_cast("sext"), "arith.index_castui": _index_cast("zext"), "arith.cmpi": _compare("icmp", CMPI), "arith.cmpf": _compare("fcmp", CMPF),
    "arith.floordivsi": _floordiv, "arith.select": _select, "arith.negf": _negf,
    "memref.load": _load, "memref.store": _store, "memref.view": _view, "memref.alloca": _alloca, "ag.data": _data,
    "memref.extract_aligned_pointer_as_index": _address, "memref.prefetch": _prefetch,
    "vector.load": _load, "vector.store": _store, "vector.maskedload": _masked_load, "vector.maskedstore": _masked_store,
    "vector.gather": _gather, "vector.scatter": _scatter, "vector.broadcast": _broadcast,
    "vector.create_mask": _create_mask, "vector.step": _step, "vector.reduction": _reduction, "vector.extract": _extract,
    "vector.insert": _insert, "vector.shuffle": _shuffle, "ag.join": _join,
    "scf.for": for_op, "scf.if": FunctionEmitter.if_op, "scf.while": FunctionEmitter.while_op,
    "func.call": call_op, "math.absi": math_op,
}
TABLE.update({f"math.{name}": math_op for name in MATH_OPS})
