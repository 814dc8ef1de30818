"""Loops whose rounds may run on several threads: the body becomes a function of its own, and a job of the caller's pool (see codegen/pool.py).

A job lies on the caller's stack: {ag_call, status, captured values}. Workers see an ``ag_call`` of their own, whose poll reads the status: the caller's ``poll``
is called by the caller alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.core import Block, Op, Value
from ..kernel_types import as_ktype
from .function import CALL_CTX, FunctionEmitter, inner_name
from .text import llvm_type

__all__ = ["for_op"]

_STATUS, _CAPTURES = 8, 64
_CTX_POOL = 8

_COMMON = f"""
; every chunk of a job, on the pool of ctx where there is one; the status of the first chunk that failed
define internal i32 @ag_job(ptr %call, ptr %fn, ptr %job, i64 %chunks, i64 %limit) #0 {{
entry:
  store ptr %call, ptr %job
  %status.at = getelementptr i8, ptr %job, i64 {_STATUS}
  store i64 0, ptr %status.at
  %several = icmp sgt i64 %chunks, 1
  br i1 %several, label %ask, label %alone
ask:
  %ctx.at = getelementptr i8, ptr %call, i64 {CALL_CTX}
  %ctx = load ptr, ptr %ctx.at
  %off = icmp eq ptr %ctx, null
  br i1 %off, label %alone, label %look
look:
  %pool.at = getelementptr i8, ptr %ctx, i64 {_CTX_POOL}
  %pool = load ptr, ptr %pool.at
  %none = icmp eq ptr %pool, null
  br i1 %none, label %alone, label %share
share:
  %run = load ptr, ptr %pool
  call void %run(ptr %pool, ptr %fn, ptr %job, i64 %chunks, i64 %limit)
  br label %done
alone:
  %i = phi i64 [ 0, %entry ], [ 0, %ask ], [ 0, %look ], [ %next, %one ]
  %more = icmp slt i64 %i, %chunks
  br i1 %more, label %one, label %done
one:
  call void %fn(ptr %job, i64 %i, i64 0)
  %next = add i64 %i, 1
  br label %alone
done:
  %status = load atomic i64, ptr %status.at monotonic, align 8
  %code = trunc i64 %status to i32
  ret i32 %code
}}
; the poll of workers: whether the job has failed or was stopped
define internal i32 @ag_job_poll(ptr %ctx) #0 {{
  %job.at = getelementptr i8, ptr %ctx, i64 40
  %job = load ptr, ptr %job.at
  %status.at = getelementptr i8, ptr %job, i64 {_STATUS}
  %status = load atomic i64, ptr %status.at monotonic, align 8
  %code = trunc i64 %status to i32
  ret i32 %code
}}"""


def _free(op: Op) -> list[Value]:
    """Values that a loop's body uses from outside, in order of first use."""
    out: dict[Value, None] = {}
    _collect(op.regions[0], set(), out)
    return list(out)


def _collect(block: Block, known: set[Value], out: dict[Value, None]) -> None:
    known.update(block.args)
    for op in block.ops:
        for v in op.operands:
            if v not in known:
                out[v] = None
        for region in op.regions:
            _collect(region, known, out)
        known.update(op.results)
    out.update(dict.fromkeys(v for v in block.outputs if v not in known))


def _slots(values: list[Value]) -> tuple[list[int], int]:
    """Where in a job each value is kept, and the job's size."""
    at, out = _CAPTURES, []
    for v in values:
        t = as_ktype(v.type)
        size = 8 if t.mem or t.lanes == 1 else -(-t.bits * t.lanes // 512) * 64
        at = -(-at // min(size, 64)) * min(size, 64)
        out.append(at)
        at += size
    return out, -(-at // 64) * 64


def for_op(e: FunctionEmitter, op: Op) -> None:
    """``scf.for``; with ``ag.parallel`` (from 0 by 1, nothing carried) on several threads, unless this is such a loop already."""
    if "ag.parallel" not in op.attrs or e.thread or not e.status:
        e.for_loop(op)
        return
    state, body = e.state, op.regions[0]
    chunks, limit = e.names[op.operands[1]], int(op.attrs["ag.parallel"])
    free = [v for v in _free(op) if e.names[v].startswith("%")]
    number = len(state.jobs)
    state.jobs.append("")  # keeps the number
    symbol = f"{inner_name(e.title).strip(chr(34))}_job{number}"
    inside = FunctionEmitter(state, True, e.table)
    inside.title, inside.depth, inside.thread = e.title, 1, "%who"
    inside.names.update({v: e.names[v] for v in _constants(op, e)})
    inside.names[body.args[0]] = "%chunk"
    params = ["i64 %chunk", "i64 %who"]
    for i, v in enumerate(free):
        inside.names[v] = f"%c{i}"
        params.append(f"{llvm_type(v.type)}{' noalias' if v in e.apart else ''} %c{i}")
    inside.ops(body)
    end = ["  ret i32 0", *(["interrupted:", "  ret i32 5"] if inside.uses_poll else [])]
    head = f'define internal i32 @"{symbol}"({", ".join([*params, "ptr %call"])}) #0 {{'
    text = "\n".join([head, "entry:", *inside.entry, *inside.context(), *inside.lines, *end, "}"])
    state.jobs[number] = f"{text}\n{_thunk(symbol, free)}" + ("" if number else _COMMON)
    _submit(e, symbol, free, chunks, limit)


def _constants(op: Op, e: FunctionEmitter) -> Iterator[Value]:
    return (v for v in _free(op) if not e.names[v].startswith("%"))


def _thunk(symbol: str, free: list[Value]) -> str:
    """What the pool calls: unpacks the job."""
    lines = [
        f'define internal void @"{symbol}_chunk"(ptr %job, i64 %chunk, i64 %who) #0 {{', "entry:", "  %own = alloca [8 x i64], align 8",
        "  %ctx = alloca [6 x i64], align 8",
        f"  %status.at = getelementptr i8, ptr %job, i64 {_STATUS}", "  %status = load atomic i64, ptr %status.at monotonic, align 8",
        "  %going = icmp eq i64 %status, 0", "  br i1 %going, label %go, label %done", "go:", "  %given = load ptr, ptr %job", "  %caller = icmp eq i64 %who, 0",
        "  br i1 %caller, label %run, label %worker", "worker:",
    ]
    for base, words in (("own", {24: "ptr %ctx"}), ("ctx", {0: "ptr @ag_job_poll", 8: "ptr null", 16: "ptr null", 24: "ptr null", 32: "ptr null", 40: "ptr %job"})):
        for at, value in words.items():
            lines += [f"  %{base}{at} = getelementptr i8, ptr %{base}, i64 {at}", f"  store {value}, ptr %{base}{at}"]
    lines += ["  br label %run", "run:", "  %call = phi ptr [ %given, %go ], [ %own, %worker ]"]
    args = ["i64 %chunk", "i64 %who"]
    for i, (v, at) in enumerate(zip(free, _slots(free)[0])):
        t = llvm_type(v.type)
        lines += [f"  %p{i} = getelementptr i8, ptr %job, i64 {at}", f"  %c{i} = load {t}, ptr %p{i}, align 8"]
        args.append(f"{t} %c{i}")
    lines += [
        f'  %code = call i32 @"{symbol}"({", ".join([*args, "ptr %call"])})', "  %good = icmp eq i32 %code, 0", "  br i1 %good, label %done, label %failed", "failed:",
        "  %wide = zext i32 %code to i64", "  store atomic i64 %wide, ptr %status.at monotonic, align 8", "  br label %done", "done:", "  ret void", "}",
    ]
    return "\n".join(lines)


def _submit(e: FunctionEmitter, symbol: str, free: list[Value], chunks: str, limit: int) -> None:
    places, size = _slots(free)
    job = e.alloca(f"[{size} x i8]")
    for v, at in zip(free, places):
        e.lines.append(f"  store {e.typed(v)}, ptr {e.put(f'getelementptr i8, ptr {job}, i64 {at}')}, align 8")
    status = e.put(f'call i32 @ag_job(ptr %call, ptr @"{symbol}_chunk", ptr {job}, i64 {chunks}, i64 {limit})')
    stop, on = e.labels("stop", "on")
    e.branch(e.put(f"icmp eq i32 {status}, 0"), on, stop)
    e.block(stop)
    e.lines.append(f"  ret i32 {status}")
    e.block(on)

