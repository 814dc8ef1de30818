"""The thread pool as LLVM text: chunks of a job are claimed one by one, by the caller too. See docs/design-notes (threads).

``run(pool, fn, job, chunks, limit)`` calls ``fn(job, chunk, who)`` once for every chunk below ``chunks`` (1 to 65535), on at most ``limit`` threads, and returns
when all are done. ``who`` is 0 on the calling thread, below ``limit`` on every thread, and never the same on two at once. A job begins with the ``ag_call`` and
a status: while the caller waits for others it asks the poll of ``ag_call``'s ctx, and writes 5 into the status when told to stop.

One word holds {generation: 32, chunks: 16, next: 16}. A chunk is claimed by compare and exchange of the whole word, so whoever claims has read the job of that very
generation. The caller claims like the others and then waits for claimed chunks alone: threads that never started, or never woke, are not missed. ``busy`` is the
process whose call owns the pool; nested and concurrent calls find it taken and run their chunks themselves. A child of fork sees another process there, takes the
pool over and starts threads of its own. Workers adopt the caller's floating-point control, so results do not depend on who computed them.
"""

from __future__ import annotations

import re
from typing import Final

from aotgrad_runtime.errors import AotgradNotImplementedError
from aotgrad_runtime.pool_layout import MOST, PATIENCE, POOL, SIZE, WORKER, WORKER_SIZE, WORKERS

from .target import Target

__all__ = ["IMPORTS", "library_text", "pool_text"]

IMPORTS: Final = ("pthread_create", "pthread_join", "syscall")
"""What the pool asks of the host program; there is no other dependency."""

_SPIN = 2000  # looks of an idle worker before it sleeps
_LOOKS = 200  # looks of a caller before it sleeps
_WAIT_NS = 10_000_000  # sleep of a caller between two questions whether to stop
# Signals that workers take: those of faults (ILL, TRAP, ABRT, BUS, FPE, SEGV, SYS), and 32 to 34, which the C library sends to all threads.
_OPEN = (4, 5, 6, 7, 8, 11, 31, 32, 33, 34)
_BLOCKED = ((1 << 64) - 1) & ~sum(1 << (s - 1) for s in _OPEN)
_FUTEX_WAIT, _WAKE = 128, 129  # private to the process

_SYSCALLS = {
    "x86_64": {"futex": 202, "getpid": 39, "sigprocmask": 14},
    "aarch64": {"futex": 98, "getpid": 172, "sigprocmask": 135},
}
_MACHINE = {
    "x86_64": """
declare void @llvm.x86.sse2.pause()
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define internal void @ag_pool_pause() alwaysinline nounwind {
  call void @llvm.x86.sse2.pause()
  ret void
}
define internal i64 @ag_pool_control() nounwind {
  %at = alloca i32, align 4
  call void @llvm.x86.sse.stmxcsr(ptr %at)
  %x = load i32, ptr %at, align 4
  %modes = and i32 %x, 65472
  %wide = zext i32 %modes to i64
  ret i64 %wide
}
define internal void @ag_pool_adopt(i64 %control) nounwind {
  %at = alloca i32, align 4
  %x = trunc i64 %control to i32
  store i32 %x, ptr %at, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr %at)
  ret void
}
""",
    "aarch64": """
declare void @llvm.aarch64.hint(i32)
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)
define internal void @ag_pool_pause() alwaysinline nounwind {
  call void @llvm.aarch64.hint(i32 1)
  ret void
}
define internal i64 @ag_pool_control() nounwind {
  %x = call i64 @llvm.aarch64.get.fpcr()
  ret i64 %x
}
define internal void @ag_pool_adopt(i64 %control) nounwind {
  call void @llvm.aarch64.set.fpcr(i64 %control)
  ret void
}
""",
}

# ``x = field p NAME`` is the address of a word; ``$NAME`` a number.
_TEXT = """
define internal void @ag_pool_wake(ptr %pool, ptr %word) nounwind {
  %syscall.at = field %pool syscall
  %syscall = load ptr, ptr %syscall.at
  %r = call i64 (i64, ...) %syscall(i64 $futex, ptr %word, i64 $WAKE, i64 1, ptr null, ptr null, i64 0)
  ret void
}

define internal void @ag_pool_sleep(ptr %pool, ptr %word, i32 %value, ptr %timeout) nounwind {
  %syscall.at = field %pool syscall
  %syscall = load ptr, ptr %syscall.at
  %r = call i64 (i64, ...) %syscall(i64 $futex, ptr %word, i64 $WAIT, i32 %value, ptr %timeout, ptr null, i64 0)
  ret void
}

define internal void @ag_pool_serial(ptr %fn, ptr %job, i64 %chunks) nounwind {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  call void %fn(ptr %job, i64 %i, i64 0)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %chunks
  br i1 %more, label %loop, label %done
done:
  ret void
}

; a chunk of the job of %state: its number, -1 when there is none, -2 when another thread was quicker
define internal i64 @ag_pool_claim(ptr %pool, i64 %state) nounwind {
  %next = and i64 %state, 65535
  %shifted = lshr i64 %state, 16
  %chunks = and i64 %shifted, 65535
  %some = icmp ult i64 %next, %chunks
  br i1 %some, label %try, label %none
try:
  %state.at = field %pool state
  %after = add i64 %state, 1
  %pair = cmpxchg ptr %state.at, i64 %state, i64 %after acq_rel monotonic, align 8
  %ok = extractvalue { i64, i1 } %pair, 1
  %got = select i1 %ok, i64 %next, i64 -2
  ret i64 %got
none:
  ret i64 -1
}

; takes the pool for a call of this process: true, or false while another call of this process has it
define internal i1 @ag_pool_take(ptr %pool, i64 %pid) nounwind {
  %busy.at = field %pool busy
  %first = cmpxchg ptr %busy.at, i64 0, i64 %pid acquire monotonic, align 8
  %free = extractvalue { i64, i1 } %first, 1
  br i1 %free, label %mine, label %held
held:
  %owner = extractvalue { i64, i1 } %first, 0
  %ours = icmp eq i64 %owner, %pid
  br i1 %ours, label %no, label %orphan
orphan:
  %second = cmpxchg ptr %busy.at, i64 %owner, i64 %pid acquire monotonic, align 8
  %taken = extractvalue { i64, i1 } %second, 1
  ret i1 %taken
mine:
  ret i1 true
no:
  ret i1 false
}

; forgets the threads of another process
define internal void @ag_pool_fresh(ptr %pool, i64 %pid) nounwind {
  %pid.at = field %pool pid
  %known = load i64, ptr %pid.at
  %same = icmp eq i64 %known, %pid
  br i1 %same, label %done, label %reset
reset:
  %started.at = field %pool started
  store i64 0, ptr %started.at
  %patience.at = field %pool patience
  store i64 0, ptr %patience.at
  %state.at = field %pool state
  store atomic i64 0, ptr %state.at seq_cst, align 8
  store i64 %pid, ptr %pid.at
  br label %done
done:
  ret void
}

define internal ptr @ag_pool_line(ptr %pool, i64 %n) alwaysinline nounwind {
  %first = getelementptr i8, ptr %pool, i64 $WORKERS
  %offset = mul i64 %n, $WORKER_SIZE
  %line = getelementptr i8, ptr %first, i64 %offset
  ret ptr %line
}

; starts threads until there are %want; only who owns the pool calls it. Their number, at most %want
define internal i64 @ag_pool_start(ptr %pool, i64 %want) nounwind noinline {
entry:
  %blocked = alloca i64, align 8
  %before = alloca i64, align 8
  %started.at = field %pool started
  %have = load i64, ptr %started.at
  %enough = icmp sge i64 %have, %want
  br i1 %enough, label %leave, label %ask
ask:
  %patience.at = field %pool patience
  %patience = load i64, ptr %patience.at
  %tired = icmp sgt i64 %patience, 0
  br i1 %tired, label %later, label %mask
later:
  %less = sub i64 %patience, 1
  store i64 %less, ptr %patience.at
  br label %leave
mask:
  %syscall.at = field %pool syscall
  %syscall = load ptr, ptr %syscall.at
  %create.at = field %pool create
  %create = load ptr, ptr %create.at
  store i64 $BLOCKED, ptr %blocked
  %m = call i64 (i64, ...) %syscall(i64 $sigprocmask, i64 $SETMASK, ptr %blocked, ptr %before, i64 8)
  br label %one
one:
  %n = phi i64 [ %have, %mask ], [ %n1, %made ]
  %n1 = add i64 %n, 1
  %line = call ptr @ag_pool_line(ptr %pool, i64 %n)
  %sleeping.at = field %line sleeping
  store i32 0, ptr %sleeping.at
  %pool.at = field %line pool
  store ptr %pool, ptr %pool.at
  %index.at = field %line index
  store i64 %n1, ptr %index.at
  %thread.at = field %line thread
  %failed = call i32 %create(ptr %thread.at, ptr null, ptr @ag_pool_worker, ptr %line)
  %ok = icmp eq i32 %failed, 0
  br i1 %ok, label %made, label %refused
made:
  store i64 %n1, ptr %started.at
  %all = icmp sge i64 %n1, %want
  br i1 %all, label %unmask, label %one
refused:
  store i64 $PATIENCE, ptr %patience.at
  br label %unmask
unmask:
  %u = call i64 (i64, ...) %syscall(i64 $sigprocmask, i64 $SETMASK, ptr %before, ptr null, i64 8)
  br label %leave
leave:
  %now = load i64, ptr %started.at
  %most = call i64 @llvm.smin.i64(i64 %now, i64 %want)
  ret i64 %most
}

; wakes the first %helpers workers where they sleep
define internal void @ag_pool_call(ptr %pool, i64 %helpers) nounwind {
entry:
  br label %head
head:
  %w = phi i64 [ 0, %entry ], [ %w1, %next ]
  %any = icmp slt i64 %w, %helpers
  br i1 %any, label %look, label %done
look:
  %line = call ptr @ag_pool_line(ptr %pool, i64 %w)
  %sleeping.at = field %line sleeping
  %sleeping = load atomic i32, ptr %sleeping.at seq_cst, align 4
  %asleep = icmp ne i32 %sleeping, 0
  br i1 %asleep, label %wake, label %next
wake:
  store atomic i32 0, ptr %sleeping.at seq_cst, align 4
  call void @ag_pool_wake(ptr %pool, ptr %sleeping.at)
  br label %next
next:
  %w1 = add i64 %w, 1
  br label %head
done:
  ret void
}

define hidden void @ag_pool_run(ptr %pool, ptr %fn, ptr %job, i64 %chunks, i64 %limit) nounwind {
entry:
  %threads.at = field %pool threads
  %threads = load i64, ptr %threads.at
  %most.a = call i64 @llvm.smin.i64(i64 %threads, i64 %limit)
  %most.b = call i64 @llvm.smin.i64(i64 %most.a, i64 %chunks)
  %want = sub i64 %most.b, 1
  %others = icmp sgt i64 %want, 0
  br i1 %others, label %ask, label %serial
ask:
  %syscall.at = field %pool syscall
  %syscall = load ptr, ptr %syscall.at
  %pid = call i64 (i64, ...) %syscall(i64 $getpid)
  %mine = call i1 @ag_pool_take(ptr %pool, i64 %pid)
  br i1 %mine, label %prepare, label %serial
serial:
  call void @ag_pool_serial(ptr %fn, ptr %job, i64 %chunks)
  ret void
prepare:
  call void @ag_pool_fresh(ptr %pool, i64 %pid)
  %helpers = call i64 @ag_pool_start(ptr %pool, i64 %want)
  %fn.at = field %pool fn
  store atomic ptr %fn, ptr %fn.at monotonic, align 8
  %job.at = field %pool job
  store atomic ptr %job, ptr %job.at monotonic, align 8
  %limit.at = field %pool limit
  store atomic i64 %want, ptr %limit.at monotonic, align 8
  %control = call i64 @ag_pool_control()
  %control.at = field %pool control
  store atomic i64 %control, ptr %control.at monotonic, align 8
  %left.at = field %pool left
  %count = trunc i64 %chunks to i32
  store atomic i32 %count, ptr %left.at monotonic, align 4
  %waiting.at = field %pool waiting
  store atomic i32 0, ptr %waiting.at monotonic, align 4
  %state.at = field %pool state
  %old = load atomic i64, ptr %state.at monotonic, align 8
  %high = and i64 %old, -4294967296
  %generation = add i64 %high, 4294967296
  %sized = shl i64 %chunks, 16
  %new = or i64 %generation, %sized
  %x = atomicrmw xchg ptr %state.at, i64 %new seq_cst, align 8
  call void @ag_pool_call(ptr %pool, i64 %helpers)
  br label %look
look:
  %own = phi i32 [ 0, %prepare ], [ %own, %missed ], [ %own1, %work ]
  %state = load atomic i64, ptr %state.at acquire, align 8
  %chunk = call i64 @ag_pool_claim(ptr %pool, i64 %state)
  %claimed = icmp sge i64 %chunk, 0
  br i1 %claimed, label %work, label %missed
work:
  call void %fn(ptr %job, i64 %chunk, i64 0)
  %own1 = add i32 %own, 1
  br label %look
missed:
  %quicker = icmp eq i64 %chunk, -2
  br i1 %quicker, label %look, label %drained
drained:
  %had = atomicrmw sub ptr %left.at, i32 %own acq_rel, align 4
  %others.left = icmp ne i32 %had, %own
  br i1 %others.left, label %wait, label %release
wait:
  call void @ag_pool_wait(ptr %pool, ptr %job)
  br label %release
release:
  %busy.at = field %pool busy
  store atomic i64 0, ptr %busy.at release, align 8
  ret void
}

; until the claimed chunks are done: looks for a while, then sleeps, asking in between whether to stop
define internal void @ag_pool_wait(ptr %pool, ptr %job) nounwind noinline {
entry:
  %time = alloca [2 x i64], align 8
  store i64 0, ptr %time
  %nanoseconds = getelementptr i8, ptr %time, i64 8
  store i64 $WAIT_NS, ptr %nanoseconds
  %left.at = field %pool left
  %waiting.at = field %pool waiting
  br label %spin
spin:
  %i = phi i64 [ 0, %entry ], [ %i1, %again ]
  %left = load atomic i32, ptr %left.at acquire, align 4
  %some = icmp ne i32 %left, 0
  br i1 %some, label %again, label %done
again:
  call void @ag_pool_pause()
  %i1 = add i64 %i, 1
  %patient = icmp slt i64 %i1, $LOOKS
  br i1 %patient, label %spin, label %sleep
sleep:
  store atomic i32 1, ptr %waiting.at seq_cst, align 4
  %now = load atomic i32, ptr %left.at seq_cst, align 4
  %still = icmp ne i32 %now, 0
  br i1 %still, label %rest, label %done
rest:
  call void @ag_pool_sleep(ptr %pool, ptr %left.at, i32 %now, ptr %time)
  %call = load ptr, ptr %job
  %ctx.at = getelementptr i8, ptr %call, i64 24
  %ctx = load ptr, ptr %ctx.at
  %none = icmp eq ptr %ctx, null
  br i1 %none, label %sleep, label %ctx.poll
ctx.poll:
  %poll = load ptr, ptr %ctx
  %quiet = icmp eq ptr %poll, null
  br i1 %quiet, label %sleep, label %asked
asked:
  %answer = call i32 %poll(ptr %ctx)
  %go = icmp eq i32 %answer, 0
  br i1 %go, label %sleep, label %stop
stop:
  %status.at = getelementptr i8, ptr %job, i64 8
  store atomic i64 5, ptr %status.at monotonic, align 8
  br label %sleep
done:
  ret void
}

define hidden ptr @ag_pool_worker(ptr %line) nounwind {
entry:
  %pool.at = field %line pool
  %pool = load ptr, ptr %pool.at
  %index.at = field %line index
  %index = load i64, ptr %index.at
  %sleeping.at = field %line sleeping
  %state.at = field %pool state
  %stop.at = field %pool stop
  %left.at = field %pool left
  br label %look
look:
  %spins = phi i64 [ 0, %entry ], [ %spins1, %idle ], [ 0, %work ], [ 0, %finished ], [ 0, %slept ]
  %state = load atomic i64, ptr %state.at acquire, align 8
  %next = and i64 %state, 65535
  %shifted = lshr i64 %state, 16
  %chunks = and i64 %shifted, 65535
  %some = icmp ult i64 %next, %chunks
  br i1 %some, label %invited, label %nothing
invited:
  %limit.at = field %pool limit
  %limit = load atomic i64, ptr %limit.at monotonic, align 8
  %in = icmp sle i64 %index, %limit
  br i1 %in, label %read, label %nothing
read:
  %fn.at = field %pool fn
  %fn = load atomic ptr, ptr %fn.at monotonic, align 8
  %job.at = field %pool job
  %job = load atomic ptr, ptr %job.at monotonic, align 8
  %control.at = field %pool control
  %control = load atomic i64, ptr %control.at monotonic, align 8
  %chunk = call i64 @ag_pool_claim(ptr %pool, i64 %state)
  %claimed = icmp sge i64 %chunk, 0
  br i1 %claimed, label %work, label %nothing
work:
  call void @ag_pool_adopt(i64 %control)
  call void %fn(ptr %job, i64 %chunk, i64 %index)
  %had = atomicrmw sub ptr %left.at, i32 1 seq_cst, align 4
  %last = icmp eq i32 %had, 1
  br i1 %last, label %finished, label %look
finished:
  %waiting.at = field %pool waiting
  %waiting = load atomic i32, ptr %waiting.at seq_cst, align 4
  %awaited = icmp ne i32 %waiting, 0
  br i1 %awaited, label %tell, label %look
tell:
  call void @ag_pool_wake(ptr %pool, ptr %left.at)
  br label %slept
nothing:
  %stop = load atomic i64, ptr %stop.at acquire, align 8
  %go = icmp eq i64 %stop, 0
  br i1 %go, label %idle, label %leave
idle:
  call void @ag_pool_pause()
  %spins1 = add i64 %spins, 1
  %patient = icmp slt i64 %spins1, $SPIN
  br i1 %patient, label %look, label %tired
tired:
  store atomic i32 1, ptr %sleeping.at seq_cst, align 4
  %now = load atomic i64, ptr %state.at seq_cst, align 8
  %same = icmp eq i64 %now, %state
  %stop2 = load atomic i64, ptr %stop.at seq_cst, align 8
  %go2 = icmp eq i64 %stop2, 0
  %quiet = and i1 %same, %go2
  br i1 %quiet, label %sleep, label %slept
sleep:
  call void @ag_pool_sleep(ptr %pool, ptr %sleeping.at, i32 1, ptr null)
  br label %slept
slept:
  store atomic i32 0, ptr %sleeping.at seq_cst, align 4
  br label %look
leave:
  ret ptr null
}

define hidden i32 @ag_pool_init(ptr %pool, i64 %threads, ptr %create, ptr %join, ptr %syscall) nounwind {
entry:
  br label %clear
clear:
  %i = phi i64 [ 0, %entry ], [ %i1, %clear ]
  %at = getelementptr i8, ptr %pool, i64 %i
  store i64 0, ptr %at
  %i1 = add i64 %i, 8
  %more = icmp ult i64 %i1, $SIZE
  br i1 %more, label %clear, label %fill
fill:
  %low = call i64 @llvm.smax.i64(i64 %threads, i64 1)
  %granted = call i64 @llvm.smin.i64(i64 %low, i64 $MOST)
  %run.at = field %pool run
  store ptr @ag_pool_run, ptr %run.at
  %threads.at = field %pool threads
  store i64 %granted, ptr %threads.at
  %create.at = field %pool create
  store ptr %create, ptr %create.at
  %join.at = field %pool join
  store ptr %join, ptr %join.at
  %syscall.at = field %pool syscall
  store ptr %syscall, ptr %syscall.at
  %result = trunc i64 %granted to i32
  ret i32 %result
}

; ends the threads of this process; nobody may be inside a call with the pool. It can be used again afterwards
define hidden void @ag_pool_free(ptr %pool) nounwind {
entry:
  %syscall.at = field %pool syscall
  %syscall = load ptr, ptr %syscall.at
  %never = icmp eq ptr %syscall, null
  br i1 %never, label %done, label %ours
ours:
  %pid = call i64 (i64, ...) %syscall(i64 $getpid)
  call void @ag_pool_fresh(ptr %pool, i64 %pid)
  %stop.at = field %pool stop
  store atomic i64 1, ptr %stop.at seq_cst, align 8
  %started.at = field %pool started
  %started = load i64, ptr %started.at
  call void @ag_pool_call(ptr %pool, i64 %started)
  %join.at = field %pool join
  %join = load ptr, ptr %join.at
  br label %head
head:
  %w = phi i64 [ 0, %ours ], [ %w1, %one ]
  %any = icmp slt i64 %w, %started
  br i1 %any, label %one, label %clean
one:
  %line = call ptr @ag_pool_line(ptr %pool, i64 %w)
  %thread.at = field %line thread
  %thread = load i64, ptr %thread.at
  %j = call i32 %join(i64 %thread, ptr null)
  %w1 = add i64 %w, 1
  br label %head
clean:
  store i64 0, ptr %started.at
  store atomic i64 0, ptr %stop.at seq_cst, align 8
  br label %done
done:
  ret void
}
"""

_LIBRARY = """
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare i64 @syscall(i64, ...)
define i32 @$NAME_pool_init(ptr %pool, i32 %threads) nounwind {
  %n = sext i32 %threads to i64
  %r = call i32 @ag_pool_init(ptr %pool, i64 %n, ptr @pthread_create, ptr @pthread_join, ptr @syscall)
  ret i32 %r
}
define void @$NAME_pool_free(ptr %pool) nounwind {
  call void @ag_pool_free(ptr %pool)
  ret void
}
"""


def pool_text(target: Target) -> str:
    """The pool as an LLVM module of position-independent code that refers to nothing: ``ag_pool_init(pool, threads, pthread_create, pthread_join, syscall)``,
    ``ag_pool_free(pool)`` and, behind the first word of a pool, ``run``.

    >>> "ag_pool_run" in pool_text(Target.named("x86-64-v3"))
    True
    """
    arch = target.triple.split("-")[0]
    if arch not in _SYSCALLS:
        raise AotgradNotImplementedError(f"threads: there is no thread pool for {target.triple}; leave threads out")
    numbers = {**_SYSCALLS[arch], "WAKE": _WAKE, "WAIT": _FUTEX_WAIT, "SETMASK": 2, "BLOCKED": _BLOCKED - (1 << 64), "PATIENCE": PATIENCE, "WAIT_NS": _WAIT_NS,
               "LOOKS": _LOOKS, "SPIN": _SPIN, "SIZE": SIZE, "MOST": MOST, "WORKERS": WORKERS, "WORKER_SIZE": WORKER_SIZE}
    out = re.sub(r"field (%\w+) (\w+)", lambda m: f"getelementptr i8, ptr {m[1]}, i64 {(WORKER if m[1] == '%line' else POOL)[m[2]]}", _TEXT)
    out = re.sub(r"\$(\w+)", lambda m: str(numbers[m[1]]), out)
    common = "declare i64 @llvm.smin.i64(i64, i64)\ndeclare i64 @llvm.smax.i64(i64, i64)\n"
    return f'target triple = "{target.triple}"\n{common}{_MACHINE[arch]}{out}'


def library_text(name: str, target: Target) -> str:
    """The pool of library ``name``: beside ``pool_text``, ``int32_t NAME_pool_init(NAME_pool *, int32_t threads)`` and ``void NAME_pool_free(NAME_pool *)``."""
    return pool_text(target) + _LIBRARY.replace("$NAME", name)
