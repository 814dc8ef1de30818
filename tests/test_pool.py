"""The thread pool alone: every chunk once, whoever is there to run it."""

from __future__ import annotations

import ctypes
import os
import runpy
import threading
import time
from pathlib import Path

import llvmlite
import pytest

from aotgrad.codegen import llvm, pool
from aotgrad.codegen.elf import link_shared
from aotgrad.codegen.target import Target
from aotgrad_runtime import pool_x86_64
from aotgrad_runtime.loader import load_bytes
from aotgrad_runtime.pool import MOST, Pool, cores, unusable
from aotgrad_runtime.pool_layout import WORKER_SIZE, WORKERS

pytestmark = pytest.mark.skipif(unusable() is not None, reason="no thread pool here")

TOOLS = Path(__file__).resolve().parent.parent / "tools"
# A job is {ag_call, status, counters by chunk (100), counters by thread (64), what a chunk does}; see codegen/pool.py.
JOB = """
define void @count(ptr %job, i64 %chunk, i64 %who) {
  %chunks = getelementptr i64, ptr %job, i64 2
  %c = getelementptr i64, ptr %chunks, i64 %chunk
  %a = atomicrmw add ptr %c, i64 1 monotonic
  %threads = getelementptr i64, ptr %job, i64 102
  %t = getelementptr i64, ptr %threads, i64 %who
  %b = atomicrmw add ptr %t, i64 1 monotonic
  ret void
}
define void @nested(ptr %job, i64 %chunk, i64 %who) {
  %pool.at = getelementptr i64, ptr %job, i64 200
  %pool = load ptr, ptr %pool.at
  %run = load ptr, ptr %pool
  %inner.at = getelementptr i64, ptr %job, i64 201
  %inner = load ptr, ptr %inner.at
  call void %run(ptr %pool, ptr @count, ptr %inner, i64 5, i64 4)
  call void @count(ptr %job, i64 %chunk, i64 %who)
  ret void
}
define void @repeat(ptr %fn, ptr %pool, ptr %job, i64 %chunks, i64 %limit, i64 %times) {
entry:
  %run = load ptr, ptr %pool
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  call void %run(ptr %pool, ptr %fn, ptr %job, i64 %chunks, i64 %limit)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %times
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""
RUN = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 3)  # fn, pool, job, chunks, limit, times
FN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


class Job:
    """A job whose chunks count themselves, or call ``fn(chunk, who)``."""

    def __init__(self) -> None:
        self.call = (ctypes.c_int64 * 8)()
        self.words = (ctypes.c_int64 * 256)(ctypes.addressof(self.call))
        self.address = ctypes.addressof(self.words)

    def chunks(self, n: int) -> list[int]:
        return list(self.words[2:2 + n])

    def threads(self, n: int) -> list[int]:
        return list(self.words[102:102 + n])


@pytest.fixture(scope="module")
def job_library():
    return load_bytes(link_shared([llvm.compile_object(JOB, Target.native())], ["count", "nested", "repeat"], "libjob.so"))


@pytest.fixture
def run(job_library):
    """``run(pool, job, chunks, limit, times=1, fn="count")``; ``fn`` may be a Python function of (chunk, who)."""
    call = RUN(job_library.address("repeat"))

    def go(made, job, chunks, limit, times=1, fn="count"):
        if isinstance(fn, str):
            call(job_library.address(fn), made.address, job.address, chunks, limit, times)
            return
        kept = FN(lambda _, chunk, who: fn(chunk, who))
        call(ctypes.cast(kept, ctypes.c_void_p).value, made.address, job.address, chunks, limit, times)

    return go


@pytest.fixture
def made():
    found = Pool(8)
    yield found
    found.free()


def test_the_committed_machine_code_is_what_the_source_gives() -> None:
    if llvmlite.__version__ != pool_x86_64.LLVMLITE:
        pytest.skip(f"generated with llvmlite {pool_x86_64.LLVMLITE}, this is {llvmlite.__version__}")
    assert runpy.run_path(str(TOOLS / "build_pool.py"))["render"]("x86_64") == Path(pool_x86_64.__file__).read_text()


@pytest.mark.parametrize("target", ["x86-64-v3", "aarch64"])
def test_the_pool_needs_three_functions_of_the_host(target) -> None:
    target = Target.named(target)
    built = link_shared([llvm.compile_object(pool.library_text("lib", target), target)], ["lib_pool_init", "lib_pool_free"], "lib.so", imports=pool.IMPORTS)
    assert all(name.encode() in built for name in pool.IMPORTS)


@pytest.mark.parametrize(("chunks", "limit"), [(2, 2), (7, 3), (16, 8), (100, 2), (3, 64)])
def test_every_chunk_runs_once_in_100000_jobs(made, run, chunks, limit) -> None:
    job, times = Job(), 100_000 if chunks < 16 else 20_000
    run(made, job, chunks, limit, times)
    assert job.chunks(chunks) == [times] * chunks
    assert sum(job.threads(min(limit, 8))) == times * chunks and not any(job.threads(64)[min(limit, 8):])
    assert made.word("started").value == min(limit, chunks, 8) - 1


def test_one_chunk_or_one_thread_starts_nothing(made, run) -> None:
    job = Job()
    run(made, job, 1, 8)
    run(made, job, 5, 1)
    assert job.chunks(5) == [2, 1, 1, 1, 1] and made.word("started").value == 0


def test_two_threads_are_inside_at_once_and_have_different_numbers(made, run) -> None:
    together, seen = threading.Barrier(2, timeout=20), []

    def chunk(number, who):
        seen.append((who, threading.get_native_id()))
        together.wait()

    run(made, Job(), 2, 2, fn=chunk)
    assert {who for who, _ in seen} == {0, 1} and len({thread for _, thread in seen}) == 2
    assert dict(seen)[0] == threading.get_native_id()


def test_workers_sleep_and_wake(made, run) -> None:
    job = Job()
    for _ in range(20):
        run(made, job, 4, 4)
        time.sleep(0.002)
    assert job.chunks(4) == [20] * 4
    settle(made, 3)
    before = os.times()
    time.sleep(0.3)
    after = os.times()
    assert after.user + after.system - before.user - before.system < 0.2


def settle(made, workers):
    """Until so many workers have come and gone to sleep."""
    deadline = time.monotonic() + 20
    while not all(ctypes.c_int32.from_address(made.address + WORKERS + WORKER_SIZE * k).value == 1 for k in range(workers)):
        assert time.monotonic() < deadline, "workers must sleep when there is nothing to do"
        time.sleep(0.01)


def test_a_caller_that_waits_asks_whether_to_stop(made, run) -> None:
    job, began, asked = Job(), threading.Event(), []

    @ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
    def poll(_):
        asked.append(threading.get_native_id())
        return len(asked) > 2

    ctx = (ctypes.c_int64 * 5)(ctypes.cast(poll, ctypes.c_void_p).value)
    job.call[3] = ctypes.addressof(ctx)

    def chunk(number, who):
        if who == 0:
            began.wait(20)
            return
        began.set()
        deadline = time.monotonic() + 20
        while job.words[1] == 0 and time.monotonic() < deadline:
            time.sleep(0.001)

    run(made, job, 2, 2, fn=chunk)
    assert job.words[1] == 5 and len(asked) >= 3 and set(asked) == {threading.get_native_id()}, "only the caller may be asked"


def test_nested_calls_run_where_they_are(made, run) -> None:
    outer, inner = Job(), Job()
    outer.words[200], outer.words[201] = made.address, inner.address
    run(made, outer, 6, 4, 2000, "nested")
    assert outer.chunks(6) == [2000] * 6 and inner.chunks(5) == [12000] * 5


def test_concurrent_callers(made, run) -> None:
    jobs = [Job() for _ in range(8)]
    threads = [threading.Thread(target=run, args=(made, job, 4, 3, 5000)) for job in jobs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(job.chunks(4) == [5000] * 4 for job in jobs)


def test_threads_that_the_system_refuses_are_not_missed(run) -> None:
    asked = []

    @ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4)
    def refuse(*_):
        asked.append(1)
        return 11

    made, job = Pool(8, ctypes.cast(refuse, ctypes.c_void_p).value), Job()
    run(made, job, 5, 4, 500)
    assert job.chunks(5) == [500] * 5 and made.word("started").value == 0 and len(asked) == 1
    run(made, job, 5, 4, 1000)
    assert len(asked) == 2, "it must ask again some time later"


def test_threads_that_never_run_are_not_missed(run) -> None:
    accept = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4)(lambda *_: 0)
    made, job = Pool(8, ctypes.cast(accept, ctypes.c_void_p).value), Job()
    run(made, job, 5, 4, 1000)
    assert job.chunks(5) == [1000] * 5 and job.threads(4) == [5000, 0, 0, 0]


def test_signals_arrive_at_the_caller(made, run) -> None:
    there = set(os.listdir("/proc/self/task"))
    run(made, Job(), 4, 3)
    settle(made, 2)
    workers = [blocked_signals(f"/proc/self/task/{task}") for task in os.listdir("/proc/self/task") if task not in there]
    assert len(workers) == 2 and all(2 in b and 15 in b for b in workers)
    assert not any(s in b for b in workers for s in (11, 33)), "faults, and what the C library sends to all threads, must get through"
    assert 2 not in blocked_signals("/proc/thread-self"), "the caller's own mask must be as before"


def blocked_signals(task):
    mask = next(int(x.split()[1], 16) for x in Path(task, "status").read_text().splitlines() if x.startswith("SigBlk"))
    return {s for s in range(1, 65) if mask >> (s - 1) & 1}


@pytest.mark.parametrize("inside", [False, True])
def test_a_forked_child_makes_its_own_threads(made, run, inside) -> None:
    run(made, Job(), 4, 3)
    results = []

    def child() -> int:
        pid = os.fork()
        if pid:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        job = Job()
        run(made, job, 4, 3, 100)
        good = job.chunks(4) == [100] * 4 and made.word("started").value == (2 if not inside else made.word("started").value)
        os._exit(0 if good else 1)

    if not inside:
        results.append(child())
    else:  # another thread is in a call with the pool at that moment

        def chunk(number, who):
            begun.set()
            forked.wait(20)

        begun, forked = threading.Event(), threading.Event()
        other = threading.Thread(target=run, args=(made, Job(), 2, 2), kwargs={"fn": chunk})
        other.start()
        begun.wait(20)
        results.append(child())
        forked.set()
        other.join()
    assert results == [0]
    job = Job()
    run(made, job, 4, 3, 100)
    assert job.chunks(4) == [100] * 4


def test_a_freed_pool_starts_again(made, run) -> None:
    job = Job()
    for _ in range(20):
        run(made, job, 4, 4, 10)
        made.free()
        assert made.word("started").value == 0
    assert job.chunks(4) == [200] * 4


def test_limits() -> None:
    assert Pool(10_000).threads == MOST and Pool(-3).threads == 1 and 1 <= cores() <= MOST
