"""From kernel-level functions to an LLVM module with the entry points of the ABI (docs/design-notes/0001-interfaces.md)."""

from __future__ import annotations

from collections.abc import Sequence

from aotgrad_runtime.errors import AotgradTypeError, AotgradValueError

from ...ir.core import Func, walk
from .. import later, vmath
from ..schedule import scheduled
from ..target import Target
from .entry import Entry, Gemm, entry_text
from .function import LONG, FunctionEmitter, ModuleState
from .ops import TABLE

__all__ = ["TABLE", "Entry", "Gemm", "conv_kernels", "gemm_dtypes", "module"]

_MEMORY = """
@llvm.compiler.used = appending global [3 x ptr] [ptr @memcpy, ptr @memmove, ptr @memset], section "llvm.metadata"
define internal ptr @memcpy(ptr %d, ptr %s, i64 %n) #0 {
  %r = call ptr @memmove(ptr %d, ptr %s, i64 %n)
  ret ptr %r
}
define internal ptr @memmove(ptr %d, ptr %s, i64 %n) #0 {
entry:
  %up = icmp ult ptr %d, %s
  %first = sub i64 %n, 1
  %start = select i1 %up, i64 0, i64 %first
  %step = select i1 %up, i64 1, i64 -1
  br label %test
test:
  %i = phi i64 [ %start, %entry ], [ %next, %copy ]
  %left = phi i64 [ %n, %entry ], [ %less, %copy ]
  %done = icmp eq i64 %left, 0
  br i1 %done, label %end, label %copy
copy:
  %from = getelementptr i8, ptr %s, i64 %i
  %to = getelementptr i8, ptr %d, i64 %i
  %x = load i8, ptr %from, align 1
  store i8 %x, ptr %to, align 1
  %next = add i64 %i, %step
  %less = sub i64 %left, 1
  br label %test
end:
  ret ptr %d
}
define internal ptr @memset(ptr %d, i32 %c, i64 %n) #0 {
entry:
  %b = trunc i32 %c to i8
  br label %test
test:
  %i = phi i64 [ 0, %entry ], [ %next, %set ]
  %done = icmp eq i64 %i, %n
  br i1 %done, label %end, label %set
set:
  %to = getelementptr i8, ptr %d, i64 %i
  store i8 %b, ptr %to, align 1
  %next = add i64 %i, 1
  br label %test
end:
  ret ptr %d
}
"""


def module(funcs: Sequence[Func], entry: Entry | Sequence[Entry], target: Target, extra: Sequence[str] = ()) -> str:
    """The LLVM module of kernel-level ``funcs`` with the symbols of each ``entry``; everything else is internal. ``extra``: further definitions, as text.

    It refers to ``ag_gemm_*`` and ``ag_conv_*`` where the kernels do (see ``gemm_dtypes``, ``conv_kernels``) and to nothing else: compile it
    with ``llvm.compile_object(text, target, passes="inline")``.
    Raises ``AotgradValueError`` for an entry whose kernel is missing or has another signature, ``AotgradNotImplementedError`` for an op without a form.
    """
    entries = [entry] if isinstance(entry, Entry) else list(entry)
    state = ModuleState(funcs, target)
    if len(state.funcs) != len(funcs):
        raise AotgradValueError(f"kernel functions of one module need different names: {', '.join(f.name for f in funcs)}")
    for e in entries:
        _check_entry(e, state)
    bodies = []
    for f in funcs:
        status = len(f.outputs) == 1 and str(f.outputs[0].type) == "i32"
        if len(f.outputs) > 1:
            raise AotgradTypeError(f"kernel function {f.name} gives {len(f.outputs)} values; one or none can be returned")
        long = status and len(f.body.ops) > LONG
        bodies.append(later.emit__pieces.define_in_pieces(state, f, TABLE) if long else FunctionEmitter(state, status, TABLE).define(f))
    for e in entries:
        bodies += entry_text(e, state)
    flushing = any(e.flush for e in entries)
    memory = (_MEMORY if any(e.plain for e in entries) else "") + (later.emit__flush.flush_text(target) if flushing else "")
    width = target.vector_bits
    folded = '"denormal-fp-math"="preserve-sign,preserve-sign" ' if flushing else ""
    attributes = f'attributes #0 = {{ nounwind "no-builtins" {folded}"prefer-vector-width"="{width}" "min-legal-vector-width"="{width}" }}'
    simd = vmath.module_text(state.vfuncs.values()) if state.vfuncs else ""
    known = set(simd.splitlines()) if simd else set()
    declares = [line for line in state.declares if line not in known]
    text = "\n".join([f'target triple = "{target.triple}"', *declares, simd, *bodies, *state.jobs, *state.thunks.values(), memory, *extra, attributes, ""])
    return scheduled(text) if state.written else text


def conv_kernels(funcs: Sequence[Func]) -> dict[str, str]:
    """Names and specs of the convolutions that the functions call and that must be linked beside."""
    calls = [op for f in funcs for op in walk(f.body) if op.name == "func.call" and "ag.conv" in op.attrs]
    return {str(op.attrs["callee"]).rpartition("_")[0]: str(op.attrs["ag.conv"]) for op in calls}


def gemm_dtypes(funcs: Sequence[Func]) -> frozenset[str]:
    """``"f64"``, ``"f32"``: the GEMM modules that the functions call and that must be linked beside."""
    callees = (str(op.attrs["callee"]) for f in funcs for op in walk(f.body) if op.name == "func.call")
    return frozenset(c[8:11] for c in callees if c.startswith("ag_gemm_"))


def _check_entry(entry: Entry, state: ModuleState) -> None:
    kernel = state.funcs.get(entry.kernel or entry.name)
    if kernel is None:
        raise AotgradValueError(f"entry {entry.name} calls kernel function {entry.kernel or entry.name!r}, which is not among {', '.join(state.funcs) or 'none'}")
    arrays = len(entry.inputs) + len(entry.outputs)
    want = ["memref"] * arrays + ["index"] * len(entry.symbols) + ["memref"]
    if [str(t).partition("<")[0] for t in (a.type for a in kernel.args)] != want:
        raise AotgradValueError(f"kernel function {kernel.name} takes {[str(a.type) for a in kernel.args]}; entry {entry.name} passes {arrays} buffers, "
                                f"{len(entry.symbols)} sizes and the workspace")
