"""Calls that take subnormal numbers for zeros (``flush_subnormals``): the processor's mode is set at the entry and the caller's restored at every exit.

The kernel sees an ``ag_call`` and a ctx of its own. The ctx's poll and hook are Python's: they run under the caller's mode. The pool's threads adopt their caller's.
"""

from __future__ import annotations

from typing import Final

from ..target import Target

__all__ = ["flush_text", "flushed_call"]

# MXCSR: flush to zero (bit 15), denormals are zeros (bit 6); FPCR: FZ (bit 24), of halves FZ16 (bit 19). What exceptions a call raised is not shown to its caller.
_MACHINE: Final = {
    "x86_64": """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define internal i64 @ag_mode() noinline nounwind {
  %at = alloca i32, align 4
  call void @llvm.x86.sse.stmxcsr(ptr %at)
  %x = load i32, ptr %at, align 4
  %wide = zext i32 %x to i64
  ret i64 %wide
}
define internal void @ag_set_mode(i64 %mode) noinline nounwind {
  %at = alloca i32, align 4
  %x = trunc i64 %mode to i32
  store i32 %x, ptr %at, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr %at)
  ret void
}
""",
    "aarch64": """
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)
define internal i64 @ag_mode() noinline nounwind {
  %x = call i64 @llvm.aarch64.get.fpcr()
  ret i64 %x
}
define internal void @ag_set_mode(i64 %mode) noinline nounwind {
  call void @llvm.aarch64.set.fpcr(i64 %mode)
  ret void
}
""",
}
_BITS: Final = {"x86_64": 0x8040, "aarch64": 1 << 24 | 1 << 19}

# own: an ag_call, then from byte 64 a ctx, the caller's mode (104) and the caller's ctx (112)
_TEXT: Final = """
define internal void @ag_flush(ptr %own, ptr %call) noinline nounwind {
entry:
  %head = load <8 x i64>, ptr %call, align 8
  store <8 x i64> %head, ptr %own, align 8
  %mode = call i64 @ag_mode()
  %mode.at = getelementptr i8, ptr %own, i64 104
  store i64 %mode, ptr %mode.at, align 8
  %given.at = getelementptr i8, ptr %call, i64 24
  %given = load ptr, ptr %given.at, align 8
  %off = icmp eq ptr %given, null
  br i1 %off, label %set, label %ctx
ctx:
  %own.ctx = getelementptr i8, ptr %own, i64 64
  %all = load <4 x i64>, ptr %given, align 8
  store <4 x i64> %all, ptr %own.ctx, align 8
  %tape.from = getelementptr i8, ptr %given, i64 32
  %tape = load ptr, ptr %tape.from, align 8
  %tape.at = getelementptr i8, ptr %own.ctx, i64 32
  store ptr %tape, ptr %tape.at, align 8
  %given.to = getelementptr i8, ptr %own, i64 112
  store ptr %given, ptr %given.to, align 8
  %poll = load ptr, ptr %given, align 8
  %no.poll = icmp eq ptr %poll, null
  %new.poll = select i1 %no.poll, ptr null, ptr @ag_flush_poll
  store ptr %new.poll, ptr %own.ctx, align 8
  %hook.from = getelementptr i8, ptr %given, i64 16
  %hook = load ptr, ptr %hook.from, align 8
  %no.hook = icmp eq ptr %hook, null
  %new.hook = select i1 %no.hook, ptr null, ptr @ag_flush_hook
  %hook.at = getelementptr i8, ptr %own.ctx, i64 16
  store ptr %new.hook, ptr %hook.at, align 8
  %state.at = getelementptr i8, ptr %own.ctx, i64 24
  store ptr %own.ctx, ptr %state.at, align 8
  %ctx.at = getelementptr i8, ptr %own, i64 24
  store ptr %own.ctx, ptr %ctx.at, align 8
  br label %set
set:
  %new = or i64 %mode, $BITS
  call void @ag_set_mode(i64 %new)
  ret void
}
define internal void @ag_unflush(ptr %own, ptr %call) noinline nounwind {
  %mode.at = getelementptr i8, ptr %own, i64 104
  %mode = load i64, ptr %mode.at, align 8
  call void @ag_set_mode(i64 %mode)
  %info.from = getelementptr i8, ptr %own, i64 32
  %info.to = getelementptr i8, ptr %call, i64 32
  %info = load <4 x i64>, ptr %info.from, align 8
  store <4 x i64> %info, ptr %info.to, align 8
  ret void
}
define internal i32 @ag_flush_poll(ptr %ctx) nounwind {
  %mode.at = getelementptr i8, ptr %ctx, i64 40
  %mode = load i64, ptr %mode.at, align 8
  %given.at = getelementptr i8, ptr %ctx, i64 48
  %given = load ptr, ptr %given.at, align 8
  %poll = load ptr, ptr %given, align 8
  %now = call i64 @ag_mode()
  call void @ag_set_mode(i64 %mode)
  %answer = call i32 %poll(ptr %given)
  call void @ag_set_mode(i64 %now)
  ret i32 %answer
}
define internal void @ag_flush_hook(ptr %ctx, i64 %region, i64 %phase) nounwind {
  %mode.at = getelementptr i8, ptr %ctx, i64 40
  %mode = load i64, ptr %mode.at, align 8
  %given.at = getelementptr i8, ptr %ctx, i64 48
  %given = load ptr, ptr %given.at, align 8
  %hook.at = getelementptr i8, ptr %given, i64 16
  %hook = load ptr, ptr %hook.at, align 8
  %state.at = getelementptr i8, ptr %given, i64 24
  %state = load ptr, ptr %state.at, align 8
  %now = call i64 @ag_mode()
  call void @ag_set_mode(i64 %mode)
  call void %hook(ptr %state, i64 %region, i64 %phase)
  call void @ag_set_mode(i64 %now)
  ret void
}
"""


def flush_text(target: Target) -> str:
    """What a module with such entries defines once."""
    return _MACHINE[target.arch] + _TEXT.replace("$BITS", str(_BITS[target.arch]))


def flushed_call(callee: str, args: list[str]) -> list[str]:
    """``%status``: what the kernel function gives for its arguments and, last, an ``ag_call`` of its own."""
    return ["  call void @ag_flush(ptr %own, ptr %call)", f"  %status = call i32 @{callee}({', '.join([*args, 'ptr %own'])}) noinline",
            "  call void @ag_unflush(ptr %own, ptr %call)"]
