"""Programs whose kernel level real MLIR lowers to native code: text, mlir-opt, mlir-translate, llc, our linker; run and compared with the interpreter.

Needs mlir-opt (AOTGRAD_MLIR_OPT or PATH) with mlir-translate beside it and llc beside it, on PATH, or in a neighbouring ``llvm/bin``.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import sweep
from optable import active, func_of, rows

from aotgrad.codegen import llvm
from aotgrad.codegen.elf import link_shared
from aotgrad.codegen.lower import lower
from aotgrad.codegen.target import Target
from aotgrad.ir import Func, build, dims, interp, tensor_type
from aotgrad.ir.parser import parse_func, parse_module
from aotgrad.ir.passes import parse_pipeline, run_pipeline
from aotgrad.ir.printer import print_module
from aotgrad.ir.transforms.differentiate import vjp_func
from aotgrad.ir.verifier import verify
from aotgrad_runtime.loader import load_bytes

OPT = os.environ.get("AOTGRAD_MLIR_OPT") or shutil.which("mlir-opt")
PASSES = ("convert-vector-to-scf", "convert-scf-to-cf", "expand-strided-metadata", "convert-vector-to-llvm", "convert-math-to-llvm", "finalize-memref-to-llvm",
          "convert-arith-to-llvm", "convert-func-to-llvm", "convert-cf-to-llvm", "reconcile-unrealized-casts")
TARGET = Target.named("x86-64-v3")
PROVIDED = """define hidden void @ag_drain() {
  call void @llvm.x86.sse.sfence()
  ret void
}
declare void @llvm.x86.sse.sfence()
"""  # what code generation provides to kernels that store past the cache
PIPELINE = "decompose,simplify,cse,dce"
N = dims.symbol("n")


def tool(name):
    if not OPT:
        pytest.skip("mlir-opt is not installed (set AOTGRAD_MLIR_OPT)")
    beside = [Path(OPT).with_name(name), Path(OPT).parents[2] / "llvm" / "bin" / name]
    found = next((str(p) for p in beside if p.exists()), None) or shutil.which(name)
    if not found:
        pytest.skip(f"{name} is not installed beside mlir-opt")
    return found


def run_tool(command, text):
    done = subprocess.run(command, input=text, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()[:2000]
    return done.stdout


def kernels(part):
    """The kernel level of the first sample of every other op, and of its gradient."""
    out, seen = [], set()
    for op, sample in rows():
        if op.name in seen:
            continue
        seen.add(op.name)
        if len(seen) % 2 != part:
            continue
        f, arrays = func_of(op, sample)
        on = active(arrays)
        made = [f] + ([vjp_func(f, on)] if any(on) and any(t.dtype.is_differentiable for t in f.out_types) else [])
        for i, g in enumerate(made):
            out += lower(run_pipeline(g, parse_pipeline(PIPELINE)), f"{op.name}_{i}", TARGET).funcs
    return out


@pytest.mark.parametrize("part", sweep.part(range(2)))
def test_kernels_of_every_op_round_trip_and_verify(part):
    funcs = kernels(part)
    for f in funcs:
        verify(f, "kernel")
    text = print_module(funcs)
    assert print_module(parse_module(text)) == text
    assert len(funcs) > 100
    if OPT:  # only MLIR's own ops: no --allow-unregistered-dialect
        run_tool([OPT], text.encode())


def memref(x):
    """A memref<?xT> as MLIR passes it: allocated and aligned pointer, offset, size, stride."""
    pointer = ctypes.c_void_p(x.ctypes.data)
    return [pointer, pointer, ctypes.c_int64(0), ctypes.c_int64(x.size), ctypes.c_int64(1)]


def native(func: Func):
    """``func`` through MLIR: a function of arrays."""
    lowered = lower(run_pipeline(func, parse_pipeline(PIPELINE)), "k", TARGET)
    llvm_dialect = run_tool([tool("mlir-opt"), *(f"--{p}" for p in PASSES)], print_module(lowered.funcs).encode())
    llvm_ir = run_tool([tool("mlir-translate"), "--mlir-to-llvmir"], llvm_dialect)
    obj = run_tool([tool("llc"), "-O1", "-filetype=obj", "-relocation-model=pic", "-mtriple=x86_64-unknown-linux-gnu", "-o", "-"], llvm_ir)
    library = load_bytes(link_shared([obj, llvm.compile_object(PROVIDED, TARGET)], ["k"], "k.so", imports=["memset", "memcpy", "memmove"]), foreign_ok=True)
    call = ctypes.CFUNCTYPE(ctypes.c_int32)(library.address("k"))

    def run(*arrays):
        env = interp.bind_sizes(func.arg_types, arrays)
        outs = [np.full([dims.substitute(d, env) for d in t.shape], -77, t.dtype.np) for t in func.out_types]
        args = [part for x in (*arrays, *outs) for part in memref(x)]
        workspace = np.zeros(1 << 20, np.int8)  # held until the call has ended
        args += [ctypes.c_int64(env[s]) for s in func.symbols()] + memref(workspace)
        call.argtypes = [type(a) for a in args]
        assert call(*args) == 0
        return outs

    run.library = library
    return run


def masked_distance():
    def body(b, x, y):
        gap = b.sub(x, y)
        return b.sum(b.where(b.gt(x, y), b.mul(gap, gap), b.div(b.sqrt(b.abs(gap)), b.add(b.abs(y), b.full_like(y, 1)))), dims=(0,))

    return build("masked_distance", [tensor_type(["n"]), tensor_type(["n"])], body)


def strided():
    def body(b, x):
        half = b.slice(x, starts=(N - 1, 0), sizes=(N, 2), steps=(-1, 2))
        return b.insert_add(x, half, starts=(0, 1), steps=(1, 2)), b.amax(half, dims=(1,)), b.cumsum(x, dim=0)

    return build("strided", [tensor_type(["n", 4])], body)


def recurrence():
    return parse_func((Path(__file__).parent / "ir" / "scan_recurrence.mlir").read_text(encoding="utf-8"))


def gradient():
    return vjp_func(masked_distance(), [True, True])


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the tools are asked for x86-64 code")
@pytest.mark.parametrize("make", [masked_distance, strided, recurrence, gradient])
def test_mlir_lowers_runs_and_agrees(make):
    func = make()
    tool("mlir-opt")
    run = native(func)
    rng = np.random.default_rng(1)
    for n in (0, 1, 2, 7, 64, 1001):
        arrays = [rng.normal(size=[dims.substitute(d, {"n": n}) for d in t.shape]) for t in func.arg_types]
        for got, want in zip(run(*arrays), interp.run(func, *arrays), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)
