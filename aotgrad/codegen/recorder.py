"""The hook of a profiled run in machine code: writes (region, phase, time) into a buffer, without Python and without the GIL.

Its state is five words: the address of ``clock_gettime``, the number of records, how many there is room for, the address of the buffer (three words a record), and
how many records were lost for want of room.
"""

from __future__ import annotations

from . import llvm
from .elf import link_shared
from .target import Target

__all__ = ["CLOCK", "SYMBOL", "compile_recorder"]

SYMBOL = "ag_record"
CLOCK = 1  # CLOCK_MONOTONIC, which time.perf_counter_ns reads too

_TEXT = f"""
define void @{SYMBOL}(ptr %state, i64 %region, i64 %phase) nounwind {{
  %time = alloca [2 x i64], align 8
  %count.at = getelementptr i64, ptr %state, i64 1
  %count = load i64, ptr %count.at, align 8
  %room.at = getelementptr i64, ptr %state, i64 2
  %room = load i64, ptr %room.at, align 8
  %fits = icmp ult i64 %count, %room
  br i1 %fits, label %write, label %full
write:
  %clock = load ptr, ptr %state, align 8
  %unused = call i32 %clock(i32 {CLOCK}, ptr %time)
  %sec = load i64, ptr %time, align 8
  %nsec.at = getelementptr i64, ptr %time, i64 1
  %nsec = load i64, ptr %nsec.at, align 8
  %scaled = mul i64 %sec, 1000000000
  %now = add i64 %scaled, %nsec
  %buffer.at = getelementptr i64, ptr %state, i64 3
  %buffer = load ptr, ptr %buffer.at, align 8
  %place = mul i64 %count, 3
  %first = getelementptr i64, ptr %buffer, i64 %place
  store i64 %region, ptr %first, align 8
  %second = getelementptr i64, ptr %first, i64 1
  store i64 %phase, ptr %second, align 8
  %third = getelementptr i64, ptr %first, i64 2
  store i64 %now, ptr %third, align 8
  %next = add i64 %count, 1
  store i64 %next, ptr %count.at, align 8
  ret void
full:
  %lost.at = getelementptr i64, ptr %state, i64 4
  %lost = load i64, ptr %lost.at, align 8
  %more = add i64 %lost, 1
  store i64 %more, ptr %lost.at, align 8
  ret void
}}
"""


def compile_recorder(target: Target) -> bytes:
    """A shared library that exports ``ag_record``."""
    return link_shared([llvm.compile_object(_TEXT, target)], [SYMBOL], "libag_record.so")
