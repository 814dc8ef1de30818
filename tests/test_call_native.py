"""The call path around long native calls: the GIL, Ctrl-C, threads; and the machine code itself: regenerated, mapped, checked, switched off."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from aotgrad_runtime import dtypes as dt
from aotgrad_runtime.call import ArgSpec, Instance, OutSpec, Sym, blob_x86_64, function, make_callable, prebind
from aotgrad_runtime.call import machine as machine_module

llvmlite = pytest.importorskip("llvmlite")
llvm = pytest.importorskip("llvmlite.binding")
TOOLS = Path(__file__).resolve().parent.parent / "tools"
N = Sym(0)
IR = """
; spin(flag[n] int64): until flag[0] is not 0 (returns 0), poll says stop (5), or too long (3)
define i32 @spin(ptr %c) {
entry:
  %pp = load ptr, ptr %c
  %flag = load ptr, ptr %pp
  %cp = getelementptr i64, ptr %c, i64 3
  %ctx = load ptr, ptr %cp
  %none = icmp eq ptr %ctx, null
  br i1 %none, label %bad, label %start
start:
  %poll = load ptr, ptr %ctx
  br label %loop
loop:
  %k = phi i64 [0, %start], [%k1, %next]
  %k1 = add i64 %k, 1
  %f = load atomic i64, ptr %flag monotonic, align 8
  %set = icmp ne i64 %f, 0
  %silent = icmp eq ptr %poll, null
  %leave = or i1 %set, %silent
  br i1 %leave, label %quiet, label %ask
quiet:
  br i1 %set, label %good, label %next
ask:
  %r = call i32 %poll(ptr %ctx)
  %stop = icmp ne i32 %r, 0
  br i1 %stop, label %interrupted, label %next
next:
  %long = icmp sgt i64 %k1, 3000000000
  br i1 %long, label %bad, label %loop
good:
  ret i32 0
interrupted:
  ret i32 5
bad:
  ret i32 3
}
; sum over the workspace: w[i] = x[i] + 1, then y = sum w
define i32 @through(ptr %c) {
entry:
  %pp = load ptr, ptr %c
  %x = load ptr, ptr %pp
  %q = getelementptr ptr, ptr %pp, i64 1
  %y = load ptr, ptr %q
  %sp = getelementptr ptr, ptr %c, i64 1
  %sizes = load ptr, ptr %sp
  %n = load i64, ptr %sizes
  %wp = getelementptr ptr, ptr %c, i64 2
  %w = load ptr, ptr %wp
  br label %fill
fill:
  %i = phi i64 [0, %entry], [%i1, %fill]
  %xi = getelementptr double, ptr %x, i64 %i
  %v = load double, ptr %xi
  %v1 = fadd double %v, 1.0
  %wi = getelementptr double, ptr %w, i64 %i
  store volatile double %v1, ptr %wi
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %n
  br i1 %more, label %fill, label %mid
mid:
  br label %sum
sum:
  %j = phi i64 [0, %mid], [%j1, %sum]
  %s = phi double [0.0, %mid], [%s1, %sum]
  %wj = getelementptr double, ptr %w, i64 %j
  %u = load volatile double, ptr %wj
  %s1 = fadd double %s, %u
  %j1 = add i64 %j, 1
  %again = icmp slt i64 %j1, %n
  br i1 %again, label %sum, label %done
done:
  store double %s1, ptr %y
  ret i32 0
}
define i64 @through_workspace(ptr %sizes) {
  %n = load i64, ptr %sizes
  %b = mul i64 %n, 8
  ret i64 %b
}
"""


@pytest.fixture(scope="module")
def address():
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(f'target triple = "{llvm.get_process_triple()}"\n' + IR)
    engine = llvm.create_mcjit_compiler(module, llvm.Target.from_default_triple().create_target_machine(opt=2))
    engine.finalize_object()
    yield engine.get_function_address
    del engine


@pytest.fixture(params=["machine", "plain"])
def path(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setattr(function, "machine", lambda: None)
    elif function.machine() is None:
        pytest.skip("no machine code here")
    return request.param


def refuse(*args, **kwargs):
    raise AssertionError("the fallback was called")


def spinner(address, **more):
    f = make_callable("spin", refuse)
    f.add_instance(Instance(address("spin"), [ArgSpec("array", dt.int64, (N,))], [OutSpec(dt.float64, (N,))], 1, **more))
    return f


def raise_signal_soon(delay=0.1):
    timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    return timer


@pytest.mark.parametrize("more", [{"release_bytes": 0}, {"release_bytes": None, "poll": True}, {"poll": True}, {"release_bytes": 4}], ids=str)
def test_ctrl_c_interrupts_a_long_call(address, path, more):
    f, flag = spinner(address, **more), np.zeros(2, np.int64)
    before = sys.getrefcount(flag)
    for _ in range(2):
        timer = subprocess.Popen([sys.executable, "-c", f"import os, time; time.sleep(0.05); os.kill({os.getpid()}, {int(signal.SIGINT)})"])
        start = time.perf_counter()
        with pytest.raises(KeyboardInterrupt):
            f(flag)
        assert time.perf_counter() - start < 8  # the kernel gives up, with another error, after some 20 s
        timer.wait()
    assert sys.getrefcount(flag) == before


def test_a_handler_that_returns_lets_the_call_go_on(address, path):
    f, flag = spinner(address, release_bytes=0), np.zeros(2, np.int64)
    seen = []

    def handler(number, frame):
        seen.append(number)
        flag[0] = len(seen) == 2

    old = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        assert f(flag).shape == (2,)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert len(seen) >= 2


def test_a_handler_may_call_the_same_function(address, path):
    f, flag, done = spinner(address, release_bytes=0), np.zeros(2, np.int64), np.ones(2, np.int64)

    def handler(number, frame):
        flag[0] = f(done).shape[0]

    old = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        assert f(flag).shape == (2,)
    finally:
        signal.signal(signal.SIGALRM, old)


def set_soon(flag, delay=0.02):
    def run():
        time.sleep(delay)
        flag[0] = 1

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("more", [{"release_bytes": 0}, {"poll": True}], ids=["released at once", "released by the first poll"])
def test_other_threads_run_meanwhile(address, path, more):
    """The flag can only be set by another Python thread, so a held GIL would end in the kernel's error."""
    f = spinner(address, **more)
    if path == "machine":
        flag = np.zeros(2, np.int64)
        thread = set_soon(flag)
        assert f(flag).shape == (2,)
        thread.join()
    results = []
    flag2 = np.zeros(2, np.int64)
    worker = threading.Thread(target=lambda: results.append(f(flag2).shape))
    if path == "machine" or more == {"release_bytes": 0}:
        worker.start()
        time.sleep(0.05)
        flag2[0] = 1
        worker.join()
        assert results == [(2,)]


def test_prebound_calls_are_interrupted_and_release(address, path):
    flag = np.zeros(2, np.int64)
    run = prebind(spinner(address, release_bytes=0).instances()[0], [flag], [np.empty(2)])
    timer = raise_signal_soon() if path == "machine" else None
    if timer is not None:
        with pytest.raises(KeyboardInterrupt):
            run()
        timer.join()
    flag[0] = 1
    assert run() is None


@pytest.mark.parametrize("release", [0, None, 40_000], ids=["released", "held", "by size"])
def test_many_threads_share_a_function(address, path, release):
    f = make_callable("through", refuse)
    args, outs = [ArgSpec("array", dt.float64, (N,))], [OutSpec(dt.float64, as_scalar=True)]
    f.add_instance(Instance(address("through"), args, outs, 1, workspace=address("through_workspace"), release_bytes=release))
    wrong = []

    def run(seed):
        rng = np.random.default_rng(seed)
        for _ in range(150):
            x = np.arange(float(rng.integers(1, 6000)))
            if f(x) != x.sum() + x.size:
                wrong.append(x.size)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_ctx_of_the_instance_reaches_the_kernel(path):
    ctx = (ctypes.c_int64 * 5)(0, 11, 22, 33, 44)
    seen = []

    def body(address):
        given = ctypes.c_int64.from_address(address + 24).value
        seen.append((given, *(ctypes.c_int64 * 4).from_address(given + 8)))
        return 0

    keep = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(body)
    kernel = ctypes.cast(keep, ctypes.c_void_p).value
    for poll in (False, True):
        f = make_callable("f", refuse)
        f.add_instance(Instance(kernel, [], [], ctx=ctypes.addressof(ctx), poll=poll, release_bytes=None, keepalive=keep))
        f()
    assert seen[0] == (ctypes.addressof(ctx), 11, 22, 33, 44) and seen[1][1:] == (11, 22, 33, 44) and seen[1][0] != seen[0][0]


# The machine code


def load_tool(name):
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_code_is_what_the_source_generates():
    if llvmlite.__version__ != blob_x86_64.LLVMLITE:
        pytest.skip(f"generated with llvmlite {blob_x86_64.LLVMLITE}, this is {llvmlite.__version__}")
    text = load_tool("build_trampoline").render("x86_64")
    assert text == Path(blob_x86_64.__file__).read_text()


def test_the_language_names_the_line_of_a_mistake():
    lang = load_tool("trampoline_lang")
    for body, message in (("return b", "'b'"), ("for x in a: pass", "For"), ("return g(a)", "'g'"), ("return T.x", "'x'")):
        with pytest.raises(SyntaxError, match=f"s.py:2: .*{message}"):
            lang.compile_program(f"def f(a):\n    {body}", "s.py", constants={}, structs={}, table=(), cpu="x86-64")


def test_code_is_never_writable_and_executable():
    loaded = function.machine()
    if loaded is None:
        pytest.skip("no machine code here")
    rows = [re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+)", line).groups() for line in Path("/proc/self/maps").read_text().splitlines()]

    def rights(at):
        return next(r for low, high, r in rows if int(low, 16) <= at < int(high, 16))

    assert rights(loaded.entries["vectorcall"])[:3] == "r-x" and rights(loaded.base + machine_module.blob_x86_64.TABLE_OFFSET)[:3] == "r--"


def test_switched_off_by_the_environment():
    code = "from aotgrad_runtime.call import function; print(function.machine(), type(function.make_callable('f', print)).__name__)"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "AOTGRAD_NO_TRAMPOLINE": "1"}, capture_output=True, text=True, check=True)
    assert done.stdout == "None PlainFunction\n"


@pytest.mark.parametrize("table, field", [("ARRAY", f) for f in ("data", "nd", "dims", "strides", "descr", "flags", "descr_byteorder", "descr_type_num")]
                         + [("OBJECT", f) for f in ("type", "payload", "cell_value", "var_size", "type_flags", "type_vectorcall_offset")])  # fmt: skip
def test_the_self_check_notices_every_moved_field(monkeypatch, table, field):
    if machine_module.unusable() is not None:
        pytest.skip("no machine code here")
    fields = getattr(machine_module, table)
    monkeypatch.setitem(fields, field, fields[field] + (1 if field == "descr_byteorder" else 4 if field in ("nd", "flags", "descr_type_num") else 8))
    assert machine_module.unusable() is not None


def test_a_forked_child_is_interrupted_too(address):
    if function.machine() is None:
        pytest.skip("no machine code here")
    code = f"""
import os, sys, signal, threading, time
sys.path[:0] = {sys.path!r}
import numpy as np
import test_call_native as t
gen = t.address.__wrapped__ if hasattr(t.address, "__wrapped__") else t.address.__pytest_wrapped__.obj
addr = next(g := gen())
f = t.spinner(addr, release_bytes=0)
def child():
    pid = os.fork()
    if pid == 0:
        try:
            f(np.zeros(2, np.int64))
        except KeyboardInterrupt:
            os._exit(7)
        os._exit(1)
    time.sleep(0.3)
    os.kill(pid, signal.SIGINT)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
codes = []
thread = threading.Thread(target=child)
thread.start()
thread.join()
print(codes)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=60, cwd=Path(__file__).parent)
    assert done.stdout == "[7]\n", done.stderr
