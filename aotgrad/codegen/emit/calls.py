"""Calls: SIMD functions, exact intrinsics, functions of the module, GEMM with its epilogue, and the exits and hooks of the ABI."""

from __future__ import annotations

import re

from aotgrad_runtime.errors import AotgradNotImplementedError, AotgradValueError

from ...ir.core import Op
from .. import vmath
from ..kernel_types import KType, as_ktype
from .function import CALL_INFO, CTX_HOOK, CTX_HOOK_STATE, FunctionEmitter, inner_name
from .text import elem_type, llvm_type, suffix

__all__ = ["call_op", "math_op"]

_SIMD = re.compile(r"ag_(\w+)_(f64|f32)_(\d+)")
_GEMM = re.compile(r"ag_gemm_(f64|f32)(?:\.(.+))?")
_EXACT = {
    "math.absf": "fabs", "math.sqrt": "sqrt", "math.floor": "floor", "math.ceil": "ceil", "math.trunc": "trunc", "math.roundeven": "roundeven", "math.round": "round",
    "math.fma": "fma", "math.copysign": "copysign",
}
_NAMES = {"powf": "pow"}


def math_op(e: FunctionEmitter, op: Op) -> None:
    """``math.*``: exactly rounded ones are LLVM's intrinsics, the others SIMD functions."""
    t = op.results[0].type
    if op.name == "math.absi":
        e.names[op.results[0]] = e.intrinsic(llvm_type(t), f"abs.{suffix(t)}", [(llvm_type(t), e.names[op.operands[0]]), ("i1", "false")])
    elif op.name in _EXACT:
        e.names[op.results[0]] = e.intrinsic(llvm_type(t), f"{_EXACT[op.name]}.{suffix(t)}", [(llvm_type(t), e.names[o]) for o in op.operands])
    else:
        name = op.name[5:]
        _simd(e, op, _NAMES.get(name, name), as_ktype(t).elem, as_ktype(t).lanes)


def _simd(e: FunctionEmitter, op: Op, name: str, elem: str, lanes: int) -> None:
    if name not in vmath.NAMES or elem not in ("f64", "f32"):
        raise AotgradNotImplementedError(f"{name} of {elem} has no SIMD function; known are {', '.join(sorted(vmath.NAMES))} of f64 and f32")
    found = vmath.function(name, elem, lanes, e.state.target.vector_bits == 512)
    if e.may_inline():
        e.names[op.results[0]] = e.write(found, [e.names[o] for o in op.operands])
    else:
        e.state.vfuncs[found.symbol] = found
        args = ", ".join([e.typed(o) for o in op.operands])
        e.names[op.results[0]] = e.put(f"call {llvm_type(op.results[0].type)} @{found.symbol}({args}) noinline")


def call_op(e: FunctionEmitter, op: Op) -> None:
    """``func.call``."""
    callee = op.attrs["callee"]
    if callee in e.state.funcs:
        _internal(e, op, callee)
    elif callee == "ag_check":
        _check(e, op)
    elif callee == "ag_hook":
        _hook(e, op)
    elif callee == "ag_drain":
        if e.state.target.arch == "x86_64":  # other machines order such stores by the releases of whoever tells of them
            e.intrinsic("void", "x86.sse.sfence", [])
    elif callee == "ag_thread":
        e.names[op.results[0]] = e.thread or "0"
    elif m := _GEMM.fullmatch(callee):
        _gemm(e, op, m[1], m[2])
    elif callee in ("ag_gemm_f32_pack", "ag_gemm_f64_pack"):
        _gemm_pack(e, op, callee)
    elif callee.startswith("ag_conv_"):
        _conv(e, op, callee)
    elif m := _SIMD.fullmatch(callee):
        _simd(e, op, m[1], m[2], int(m[3]))
    else:
        raise AotgradValueError(f"kernel-level call of {callee!r}, which is neither a function of this module nor one that code generation provides")


def _internal(e: FunctionEmitter, op: Op, callee: str) -> None:
    returns = llvm_type(op.results[0].type) if op.results else "void"
    call = f"call {returns} @{inner_name(callee)}({', '.join([*(e.typed(o) for o in op.operands), 'ptr %call'])})"
    if not op.results:
        e.lines.append("  " + call)
        return
    status = e.names[op.results[0]] = e.put(call)
    if op.attrs.get("ag.status"):
        stop, on = e.labels("stop", "on")
        e.branch(e.put(f"icmp eq i32 {status}, 0"), on, stop)
        e.block(stop)
        e.lines.append(f"  ret i32 {status}")
        e.block(on)


def _check(e: FunctionEmitter, op: Op) -> None:
    if not e.status:
        raise AotgradNotImplementedError("kb.check stands in a function that returns no status; check before calling it")
    ok, code, *info = (e.names[o] for o in op.operands)
    fail, on = e.labels("fail", "on")
    e.branch(ok, on, fail)
    e.block(fail)
    for i, value in enumerate(info):
        at = e.put(f"getelementptr i8, ptr %call, i64 {CALL_INFO + 8 * i}")
        e.lines.append(f"  store i64 {value}, ptr {at}")
    e.lines.append(f"  ret i32 {code}")
    e.block(on)


def _hook(e: FunctionEmitter, op: Op) -> None:
    e.uses_ctx = True
    look, fire, on = e.labels("look", "hook", "on")
    region, phase = (e.names[o] for o in op.operands)
    e.branch("%ctx.no", on, look)
    e.block(look)
    f = e.put(f"load ptr, ptr {e.put(f'getelementptr i8, ptr %ctx, i64 {CTX_HOOK}')}")
    e.branch(e.put(f"icmp eq ptr {f}, null"), on, fire)
    e.block(fire)
    state = e.put(f"load ptr, ptr {e.put(f'getelementptr i8, ptr %ctx, i64 {CTX_HOOK_STATE}')}")
    e.lines.append(f"  call void {f}(ptr {state}, i64 {region}, i64 {phase})")
    e.jump(on)
    e.block(on)


def _gemm(e: FunctionEmitter, op: Op, elem: str, epilogue: str | None) -> None:
    """Operands as ``KernelBuilder.gemm`` lays them out: sizes, (A, offset, strides), (B, offset, strides), (C, offset, stride), accumulate, [packed B, offset],
    [workspace], and for an epilogue its origin and captures."""
    names = [e.names[o] for o in op.operands]
    m, n, k, a, a_at, rsa, csa, b, b_at, rsb, csb, c, c_at, rsc, accumulate = names[:15]
    has_workspace, at = bool(op.attrs.get("ag.workspace")), 17 if op.attrs.get("ag.packed") else 15
    packed = f", ptr {e.put(f'getelementptr inbounds i8, ptr {names[15]}, i64 {names[16]}')}" if at == 17 else ""
    workspace = names[at] if has_workspace else "null"
    captured = op.operands[at + has_workspace:]
    real = "double" if elem == "f64" else "float"
    pa, pb, pc = (x if at == "0" else e.put(f"getelementptr inbounds {real}, ptr {x}, i64 {at}") for x, at in ((a, a_at), (b, b_at), (c, c_at)))
    thunk, closure = "null", "null"
    if epilogue is not None:
        thunk, closure = f"@ag_e_{epilogue}", e.alloca(f"[{len(captured) + 1} x i64]", 8)  # the first two captures are row and column
        for i, (text) in enumerate(["ptr %call", *(e.typed(o) for o in captured)]):
            e.lines.append(f"  store {text}, ptr {closure if i == 0 else e.put(f'getelementptr i8, ptr {closure}, i64 {8 * i}')}, align 8")
        _thunk(e, epilogue, [as_ktype(o.type) for o in captured[2:]])
    symbol = f"ag_gemm_{elem}{'_kept' if packed else ''}"
    e.state.declare(f"declare hidden i32 @{symbol}(i64, i64, i64, ptr, i64, i64, ptr, i64, i64, ptr, i64, i64, ptr, ptr, ptr, ptr, ptr{', ptr' if packed else ''})")
    sizes = ", ".join(f"i64 {x}" for x in (m, n, k))
    args = f"{sizes}, ptr {pa}, i64 {rsa}, i64 {csa}, ptr {pb}, i64 {rsb}, i64 {csb}, ptr {pc}, i64 {rsc}, i64 {accumulate}, ptr {workspace}, ptr {thunk}, ptr {closure}"
    if not e.status or op.attrs.get("ag.calm"):
        e.put(f"call i32 @{symbol}({args}, ptr null, ptr null{packed})")
        return
    e.uses_poll = e.uses_ctx = True
    on = e.labels("on")[0]
    e.branch(e.put(f"icmp eq i32 {e.put(f'call i32 @{symbol}({args}, ptr %poll.f, ptr %ctx{packed})')}, 0"), on, "interrupted")
    e.block(on)


def _gemm_pack(e: FunctionEmitter, op: Op, callee: str) -> None:
    """Operands: N, K, (B, offset, strides), (packed, offset in bytes), first and last strip."""
    n, k, b, b_at, rsb, csb, to, to_at, first, last = (e.names[o] for o in op.operands)
    source = e.put(f"getelementptr inbounds {elem_type(as_ktype(op.operands[2].type))}, ptr {b}, i64 {b_at}")
    target = e.put(f"getelementptr inbounds i8, ptr {to}, i64 {to_at}")
    e.state.declare(f"declare hidden void @{callee}(i64, i64, ptr, i64, i64, ptr, i64, i64)")
    e.lines.append(f"  call void @{callee}(i64 {n}, i64 {k}, ptr {source}, i64 {rsb}, i64 {csb}, ptr {target}, i64 {first}, i64 {last})")


def _conv(e: FunctionEmitter, op: Op, callee: str) -> None:
    """Operands: buffers, each with an offset in elements, then sizes. The kernel is an object of its own; ``ag.conv`` says what it computes."""
    args, operands = [], list(op.operands)
    while operands and as_ktype(operands[0].type).mem:
        mem, at = operands[:2]
        del operands[:2]
        pointer = e.names[mem] if e.names[at] == "0" else e.put(f"getelementptr inbounds {elem_type(as_ktype(mem.type))}, ptr {e.names[mem]}, i64 {e.names[at]}")
        args.append(f"ptr {pointer}")
    numbers = [f"i64 {e.names[o]}" for o in operands]
    if callee.endswith("_run"):
        args += ["ptr null"] * (4 - len(args))  # weights that are packed already
    e.state.declare(f"declare hidden void @{callee}({', '.join(['ptr'] * len(args) + ['i64'] * len(numbers))})")
    e.lines.append(f"  call void @{callee}({', '.join([*args, *numbers])})")


def _thunk(e: FunctionEmitter, epilogue: str, captured: list[KType]) -> None:
    """The C function that unpacks the closure and calls the kernel function."""
    if epilogue not in e.state.funcs:
        raise AotgradValueError(f"gemm epilogue {epilogue!r} is not a function of this module")
    if epilogue in e.state.thunks:
        return
    if any(t.lanes > 1 for t in captured):
        raise AotgradValueError(f"gemm epilogue {epilogue!r} captures a vector; capture scalars and buffers")
    lines = [f"define internal void @ag_e_{epilogue}(ptr %closure, i64 %m0, i64 %m1, i64 %n0, i64 %n1) #0 {{", "  %call = load ptr, ptr %closure"]
    args = []
    for axis, at in (("m", 8), ("n", 16)):
        lines += [f"  %{axis}.at = getelementptr i8, ptr %closure, i64 {at}", f"  %{axis} = load i64, ptr %{axis}.at, align 8"]
        for end in "01":
            lines.append(f"  %{axis}.{end} = add i64 %{axis}{end}, %{axis}")
            args.append(f"i64 %{axis}.{end}")
    for i, t in enumerate(captured):
        lines += [f"  %p{i} = getelementptr i8, ptr %closure, i64 {8 * i + 24}", f"  %c{i} = load {llvm_type(t)}, ptr %p{i}, align 8"]
        args.append(f"{llvm_type(t)} %c{i}")
    outs = e.state.funcs[epilogue].outputs
    lines += [f"  call {llvm_type(outs[0].type) if outs else 'void'} @{inner_name(epilogue)}({', '.join([*args, 'ptr %call'])})", "  ret void", "}"]
    e.state.thunks[epilogue] = "\n".join(lines)
