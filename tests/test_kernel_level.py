"""The kernel level: builder, spec, LLVM text, entry points of the ABI."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernel_tools import HOOK, POLL, TARGET, Ctx, call, load, simple_entry

from aotgrad.codegen import emit, kernel, kernel_spec, llvm
from aotgrad.codegen.elf import link_shared
from aotgrad.ir import dims, tensor_type, walk
from aotgrad.ir.core import Block, Op
from aotgrad_runtime import loader
from aotgrad_runtime.dtypes import bool_, float32, float64, int8, int32, int64
from aotgrad_runtime.errors import AotgradError

F64, I64, INDEX = kernel.register(float64), kernel.register(int64), kernel.register(None)


def _names(block: Any) -> list[str]:
    return [op.name for op in block.ops]


# ---- builder --------------------------------------------------------------------------------------------------------------------

def test_index_arithmetic_folds() -> None:
    f = kernel.function("f", [], [], ["n"])
    kb, n = f.kb, f.sizes["n"]
    assert [kb.add(2, 3), kb.sub(7, 9), kb.mul(4, 5), kb.div(9, 2), kb.rem(9, 4), kb.floordiv(-7, 2), kb.mod(-7, 2), kb.min(3, 4), kb.max(3, 4), kb.ceildiv(9, 8)] == [
        5, -2, 20, 4, 1, -4, 1, 3, 4, 2]
    assert [kb.add(n, 0), kb.mul(1, n), kb.div(n, 1), kb.sub(n, 0), kb.min(n, n)] == [n] * 5
    assert (kb.mul(n, 0), kb.rem(n, 1), kb.sub(n, n)) == (0, 0, 0)
    assert _names(kb.block) == []


def test_equal_pure_ops_are_shared_and_invariant_ones_leave_loops() -> None:
    f = kernel.function("f", [float64], [float64], ["n"])
    kb, n = f.kb, f.sizes["n"]
    with kb.for_(0, n) as outer, kb.for_(0, n) as inner:
        kb.store(kb.load(f.inputs[0], kb.add(kb.mul(outer.iv, n), inner.iv)), f.outputs[0], kb.add(kb.mul(outer.iv, n), kb.mul(n, n)))
    kb.ret()
    loops = [op for op in walk(f.func.body) if op.name == "scf.for"]
    assert _names(loops[1].regions[0]) == ["arith.addi", "memref.load", "memref.store"]
    assert _names(loops[0].regions[0]) == ["arith.muli", "arith.addi", "scf.for"]
    assert _names(f.func.body).count("arith.muli") == 1  # n * n


def test_branches_keep_what_they_compute() -> None:
    f = kernel.function("f", [float64], [float64], ["n"])
    kb, k = f.kb, f.kb.scalars()
    x = kb.load(f.inputs[0], 0)
    with kb.for_(0, f.sizes["n"]) as loop, kb.if_(kb.cmp("gt", loop.iv, 3)) as branch, branch.then():
        kb.store(k.math("exp", x), f.outputs[0], loop.iv)
    kb.ret()
    assert "math.exp" not in _names(f.func.body)
    assert [op.name for op in walk(f.func.body)].count("math.exp") == 1


def test_loops_of_known_length_zero_and_one_are_not_loops() -> None:
    f = kernel.function("f", [], [int64], [])
    kb, k = f.kb, f.kb.scalars()
    one = k.const(1, int64)
    with kb.for_(0, 0, init=[one]) as none:
        kb.store(k.const(5, int64), f.outputs[0], 0)
        kb.yield_(k.const(9, int64))
    with kb.for_(3, 4, init=none.results) as single:
        kb.yield_(k.add(single.args[0], k.from_index(single.iv, int64)))
    kb.store(single.results[0], f.outputs[0], 0)
    kb.ret()
    assert "scf.for" not in _names(f.func.body)
    out = np.zeros(1, np.int64)
    call(load([f.func], [simple_entry(f)]), "f", [out], [])
    assert out[0] == 4


POLYNOMIALS = ["n", "2*n*m + 3", "floordiv(n - 5, 3)", "mod(n + m, 4)", "max(n - 7, m)", "min(n, m) * n", "n*n*n - m", "floordiv(n, m)", "floordiv(n*m + 1, 2*m)"]


@pytest.mark.parametrize("text", POLYNOMIALS)
def test_sizes_evaluate_as_their_polynomials(text: str) -> None:
    d = dims.parse(text)
    entry = emit.Entry("f", (), (tensor_type([d, 4]),), ("n", "m"))
    f = kernel.function("f", [], [float64], ["n", "m"])
    f.kb.ret()
    shapes = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(load([f.func], [entry]).address("f_shapes"))
    for n, m in ((0, 1), (1, 1), (5, 3), (17, 4), (100, 7)):
        out, sizes = np.zeros(2, np.int64), np.array([n, m], np.int64)
        shapes(sizes.ctypes.data, out.ctypes.data)
        assert list(out) == [max(dims.substitute(d, {"n": n, "m": m}), 0), 4]


def test_unknown_size_names_the_known_ones() -> None:
    f = kernel.function("f", [], [], ["n"])
    with pytest.raises(ValueError, match="'q' is not an argument of this kernel, which has n"):
        f.kb.dim(dims.symbol("q") + 1)


# ---- control flow and memory, run -------------------------------------------------------------------------------------------------

def _run(build: Callable[[kernel.Kernel], None], arrays: list[Any], sizes: list[int], ins: list[Any], outs: list[Any], **entry: Any) -> tuple[int, list[int]]:
    f = kernel.function("f", ins, outs, [f"n{i}" for i in range(len(sizes))])
    build(f)
    f.kb.ret()
    return call(load([f.func], [simple_entry(f, **entry)]), "f", arrays, sizes, workspace=4096)


@pytest.mark.parametrize("n", [0, 1, 2, 7, 8, 9, 64])
def test_masked_reduction_in_a_tree(n: int) -> None:
    def build(f: kernel.Kernel) -> None:
        kb, k, size = f.kb, f.kb.scalars(8), f.sizes["n0"]
        start = k.vector(k.const(0.0, float64))
        with kb.for_(0, size, 8, init=[start]) as loop:
            x = kb.load(f.inputs[0], loop.iv, 8, kb.create_mask(kb.sub(size, loop.iv), 8))
            kb.yield_(k.add(loop.args[0], x))
        kb.store(k.reduce("add", loop.results[0]), f.outputs[0], 0)

    x, out = np.random.default_rng(n).normal(size=n), np.zeros(1)
    assert _run(build, [x, out], [n], [float64], [float64])[0] == 0
    lanes = np.zeros(8)
    for i in range(0, n, 8):
        lanes += np.pad(x[i:i + 8], (0, max(0, i + 8 - n)))
    while len(lanes) > 1:
        lanes = lanes[:len(lanes) // 2] + lanes[len(lanes) // 2:]
    assert out[0] == lanes[0]


def test_nested_control_flow_with_results() -> None:
    """Collatz steps of 0..n, odd and even counted apart: for, while, if with results, inside each other."""
    def build(f: kernel.Kernel) -> None:
        kb, k = f.kb, f.kb.scalars()
        one, zero = k.const(1, int64), k.const(0, int64)
        with kb.for_(1, f.sizes["n0"]) as loop:
            with kb.while_([k.from_index(loop.iv, int64), zero]) as w:
                with w.before() as (x, steps):
                    kb.condition(k.cmp("ne", x, one), x, steps)
                with w.after() as (x, steps):
                    with kb.if_(k.cmp("eq", k.rem(x, k.const(2, int64)), zero), [I64]) as branch:
                        with branch.then():
                            kb.yield_(k.div(x, k.const(2, int64)))
                        with branch.orelse():
                            kb.yield_(k.add(k.mul(x, k.const(3, int64)), one))
                    kb.yield_(branch.results[0], k.add(steps, one))
            kb.store(w.results[1], f.outputs[0], loop.iv)

    out = np.zeros(30, np.int64)
    assert _run(build, [out], [30], [], [int64])[0] == 0

    def steps(x: int) -> int:
        count = 0
        while x != 1:
            x, count = (x // 2 if x % 2 == 0 else 3 * x + 1), count + 1
        return count

    assert list(out) == [0] + [steps(i) for i in range(1, 30)]


def test_divisions_by_a_size_of_0_do_not_trap_where_no_loop_runs() -> None:
    def build(f: kernel.Kernel) -> None:
        kb, n, m = f.kb, f.sizes["n0"], f.sizes["n1"]
        with kb.for_(0, n) as loop:
            at = kb.add(kb.add(kb.div(m, n), kb.rem(m, n)), kb.floordiv(kb.sub(m, 5), n))  # all leave the loop
            kb.store(kb.scalars().from_index(at, int64), f.outputs[0], loop.iv)

    out = np.zeros(4, np.int64)
    assert _run(build, [out], [0, 3], [], [int64])[0] == 0
    assert _run(build, [out], [4, 3], [], [int64])[0] == 0
    assert list(out) == [0 + 3 - 1] * 4


def test_iteration_arguments_swap() -> None:
    def build(f: kernel.Kernel) -> None:
        kb, k = f.kb, f.kb.scalars()
        with kb.for_(0, f.sizes["n0"], init=[k.const(0, int64), k.const(1, int64)]) as loop:
            a, b = loop.args
            kb.yield_(b, k.add(a, b))
        kb.store(loop.results[0], f.outputs[0], 0)

    out = np.zeros(1, np.int64)
    _run(build, [out], [50], [], [int64])
    assert out[0] == 12586269025


def test_bools_gather_scatter_workspace_and_stack() -> None:
    def build(f: kernel.Kernel) -> None:
        kb, k, n = f.kb, f.kb.scalars(4), f.sizes["n0"]
        where, x, flag = f.inputs
        space = kb.view(f.workspace, 64, float64, n)
        stack = kb.alloca(float64, 8)
        with kb.for_(0, n, 4) as loop:
            mask = kb.create_mask(kb.sub(n, loop.iv), 4)
            at = k.to_index(kb.load(where, loop.iv, 4, mask))
            picked = kb.gather(x, at, mask)
            on = kb.load(flag, loop.iv, 4, mask)
            kb.store(k.select(on, picked, k.const(-1.0, float64)), stack, 4)
            kb.store(kb.load(stack, 4, 4), space, loop.iv, mask)
            kb.store(k.logical("xor", on, kb.gather(flag, at, mask)), f.outputs[1], loop.iv, mask)
            kb.scatter(kb.load(space, loop.iv, 4, mask), f.outputs[0], at, mask)

    n, rng = 11, np.random.default_rng(0)
    where, x, flag = rng.permutation(n), rng.normal(size=n), rng.random(n) > 0.5
    out, other = np.zeros(n), np.zeros(n, bool)
    assert _run(build, [where, x, flag, out, other], [n], [int64, float64, bool_], [float64, bool_], workspace=64 + 8 * n)[0] == 0
    want = np.zeros(n)
    want[where] = np.where(flag, x[where], -1.0)
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(other, flag ^ flag[where])


# ---- the ABI --------------------------------------------------------------------------------------------------------------------

def _scale(symbols: tuple[str, ...] = ("n",)) -> kernel.Kernel:
    """out0 = 2 x, out1 = 3 x + out0."""
    f = kernel.function("f", [float64], [float64, float64], list(symbols))
    kb, k = f.kb, f.kb.scalars()
    with kb.for_(0, f.sizes["n"]) as loop:
        x = kb.load(f.inputs[0], loop.iv)
        kb.store(k.mul(x, k.const(2, x)), f.outputs[0], loop.iv)
        kb.store(k.add(k.mul(x, k.const(3, x)), kb.load(f.outputs[0], loop.iv)), f.outputs[1], loop.iv)
    kb.ret()
    return f


def test_guards_return_1_with_location_and_both_sizes() -> None:
    f = _scale(("n", "m"))
    n, m = dims.symbol("n"), dims.symbol("m")
    entry = emit.Entry("f", (tensor_type([n]),), (tensor_type([n]), tensor_type([n])), ("n", "m"), guards=((n, 2 * m, 7), (m, m, 8), (m * m, 9, 12)))
    library = load([f.func], [entry])
    x, a, b = np.arange(6.0), np.zeros(6), np.zeros(6)
    assert call(library, "f", [x, a, b], [6, 2]) == (1, [7, 6, 4, 0])
    assert call(library, "f", [x, a, b], [4, 2]) == (1, [12, 4, 9, 0])
    assert not a.any()
    assert call(library, "f", [x, a, b], [6, 3]) == (0, [0, 0, 0, 0])
    np.testing.assert_array_equal(b, 5 * x)


def _plain(library: loader.Library, outputs: int) -> tuple[Any, Any]:
    """The C form ``f`` of one input and one size, and what it needs of workspace."""
    run = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, *[ctypes.c_void_p] * (outputs + 1))(library.address("f"))
    return run, ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(library.address("f_workspace"))


@pytest.mark.parametrize("passes", ["none", "inline", "O2"])
def test_plain_c_form(passes: str) -> None:
    f, n = _scale(), dims.symbol("n")
    entry = emit.Entry("call_f", (tensor_type([n]),), (tensor_type([n]), tensor_type([n])), ("n",), workspace=8 * n, kernel="f", plain="f")
    assert entry.exports == ("call_f", "call_f_workspace", "call_f_shapes", "f", "f_workspace")
    run, size = _plain(load([f.func], [entry], passes), outputs=2)
    need = size(5)
    assert need == 64 * 3 + 63  # any address will do
    space = np.zeros(need + 1 + 8, np.uint8)
    space[-8:] = 0xAB
    at = space.ctypes.data + 1
    x, a, b = np.arange(5.0), np.zeros(5), np.zeros(5)
    assert run(x.ctypes.data, 5, a.ctypes.data, b.ctypes.data, at) == 0
    np.testing.assert_array_equal((a, b), (2 * x, 5 * x))
    b[:] = 0
    assert run(x.ctypes.data, 5, None, b.ctypes.data, at) == 0  # the first output is not wanted, though the second reads it
    np.testing.assert_array_equal(b, 5 * x)
    assert run(x.ctypes.data, 5, None, None, at) == 0
    assert (space[-8:] == 0xAB).all()
    assert run(x.ctypes.data, 5, a.ctypes.data, b.ctypes.data, None) == 4
    assert run(x.ctypes.data, -1, a.ctypes.data, b.ctypes.data, at) == 1


def test_outputs_not_wanted_have_room_of_their_own() -> None:
    f = kernel.function("f", [float64], [float64] * 3, ["n"])
    kb, k = f.kb, f.kb.scalars()
    for out, factor in zip(f.outputs[:2], (2, 3)):
        with kb.for_(0, f.sizes["n"]) as loop:
            kb.store(k.mul(kb.load(f.inputs[0], loop.iv), k.const(factor, float64)), out, loop.iv)
    with kb.for_(0, f.sizes["n"]) as loop:
        kb.store(k.add(kb.load(f.outputs[0], loop.iv), kb.load(f.outputs[1], loop.iv)), f.outputs[2], loop.iv)
    kb.ret()
    x, out = np.arange(9.0), np.zeros(9)
    run, size = _plain(load([f.func], [replace(simple_entry(f), name="call_f", kernel="f", plain="f")]), outputs=3)
    space = np.zeros(size(9), np.uint8)
    assert run(x.ctypes.data, 9, None, None, out.ctypes.data, space.ctypes.data) == 0
    np.testing.assert_array_equal(out, 5 * x)


@pytest.mark.parametrize("passes", ["none", "inline", "O1", "O2"])
def test_objects_depend_on_nothing(passes: str) -> None:
    """Loops that LLVM would turn into memset and memcpy link without either."""
    f = kernel.function("f", [float64], [float64, float64], ["n"])
    kb, k = f.kb, f.kb.scalars()
    with kb.for_(0, f.sizes["n"]) as loop:
        kb.store(k.const(0.0, float64), f.outputs[0], loop.iv)
    with kb.for_(0, f.sizes["n"]) as loop:
        kb.store(kb.load(f.inputs[0], loop.iv), f.outputs[1], loop.iv)
    kb.ret()
    for plain in (None, "plain_f"):
        entry = simple_entry(f, plain=plain)
        data = llvm.compile_object(emit.module([f.func], entry, TARGET), TARGET, passes=passes)
        library = loader.load_bytes(link_shared([data], entry.exports, "libf.so"))
        x, a, b = np.arange(9.0), np.ones(9), np.ones(9)
        assert call(library, "f", [x, a, b], [9], workspace=512)[0] == 0
        np.testing.assert_array_equal((a, b), (0 * x, x))


def test_poll_interrupts_and_hook_reports() -> None:
    f = kernel.function("f", [], [int64], ["n"])
    kb, k = f.kb, f.kb.scalars()
    kb.hook(3, 0)
    with kb.for_(0, f.sizes["n"], poll=10) as loop, kb.for_(0, 2) as inner:
        kb.store(k.from_index(kb.add(loop.iv, inner.iv), int64), f.outputs[0], 0)
    kb.hook(3, 1)
    kb.ret()
    library, out, seen = load([f.func], [simple_entry(f)]), np.zeros(1, np.int64), []
    asked = []
    poll = POLL(lambda ctx: asked.append(ctx) or int(len(asked) >= 3))
    hook = HOOK(lambda state, region, phase: seen.append((state, region, phase)))
    ctx = Ctx(ctypes.cast(poll, ctypes.c_void_p).value, None, ctypes.cast(hook, ctypes.c_void_p).value, 77, None)
    assert call(library, "f", [out], [25], ctx=ctx)[0] == 0
    assert (len(asked), seen, out[0]) == (2, [(77, 3, 0), (77, 3, 1)], 25)
    assert asked[0] == ctypes.addressof(ctx)
    assert call(library, "f", [out], [25], ctx=ctx)[0] == 5
    assert out[0] == 10  # stopped at the end of the tenth round
    assert call(library, "f", [out], [25], ctx=Ctx())[0] == 0
    assert call(library, "f", [out], [25])[0] == 0


def test_check_leaves_with_status_and_info_through_calls() -> None:
    inner, kb = kernel.helper("inner", [kernel.memref(int64), INDEX])
    at = kb.scalars().to_index(kb.load(inner.args[0], inner.args[1]))
    kb.check(kb.cmp("ult", at, 10), 2, 42, inner.args[1], at)
    kb.ret()
    f = kernel.function("f", [int64], [int64], ["n"])
    with f.kb.for_(0, f.sizes["n"]) as loop:
        f.kb.call("inner", [f.inputs[0], loop.iv], [kernel.register(int32)], {"ag.status": True})
        f.kb.store(f.kb.load(f.inputs[0], loop.iv), f.outputs[0], loop.iv)
    f.kb.ret()
    library = load([f.func, inner], [simple_entry(f)])
    x, out = np.array([1, 9, -1, 3]), np.zeros(4, np.int64)
    assert call(library, "f", [x, out], [4]) == (2, [42, 2, -1, 0])
    assert list(out) == [1, 9, 0, 0]
    assert call(library, "f", [abs(x), out], [4])[0] == 0


NAIVE_GEMM = """
define hidden i32 @ag_gemm_f64(i64 %m, i64 %n, i64 %k, ptr %a, i64 %rsa, i64 %csa, ptr %b, i64 %rsb, i64 %csb, ptr %c, i64 %rsc, i64 %acc, ptr %w, ptr %e,
                                ptr %x, ptr %f, ptr %y) {
  %p = getelementptr double, ptr %a, i64 %csa
  %q = getelementptr double, ptr %b, i64 %rsb
  %u = load double, ptr %p
  %v = load double, ptr %q
  %s = fmul double %u, %v
  %r = getelementptr double, ptr %c, i64 %rsc
  store double %s, ptr %r
  store i64 %acc, ptr %w
  call void %e(ptr %x, i64 0, i64 %m, i64 1, i64 %n)
  ret i32 0
}
define hidden i64 @ag_gemm_f64_workspace(i64 %m, i64 %n, i64 %k, i64 %rsa, i64 %csa, i64 %rsb, i64 %csb) {
  %s = add i64 %m, %rsb
  ret i64 %s
}
"""


def test_gemm_gets_its_arguments_and_epilogue() -> None:
    """Against a stand-in that uses each argument once (the real one is tested on its own)."""
    epilogue, kb = kernel.helper("tail", [INDEX] * 4 + [kernel.memref(float64), F64, INDEX])
    m0, m1, n0, n1, c, scale, stride = epilogue.args
    k = kb.scalars()
    at = kb.add(kb.mul(stride, kb.sub(m1, 4)), kb.add(kb.sub(n1, 3), kb.add(m0, kb.sub(n0, 1))))
    kb.store(k.mul(kb.load(c, at), scale), c, at)
    kb.ret()
    f = kernel.function("f", [float64, float64], [float64], ["n"])
    kb, n = f.kb, f.sizes["n"]
    kb.gemm((5, n, 2), (f.inputs[0], 1, 7, 3), (f.inputs[1], 2, n, 1), (f.outputs[0], 4, 6), kb.view(f.workspace, 64, int8, n), accumulate=True, epilogue="tail",
            captures=[f.outputs[0], kb.load(f.inputs[0], 0), n])
    kb.ret()
    gemms = (emit.Gemm("f64", (5, dims.symbol("n"), 2), (7, 3), (dims.symbol("n"), 1)), emit.Gemm("f64", (90, 1, 1), (1, 1), (1, 1)))
    entry = simple_entry(f, workspace=40, gemms=gemms)
    assert emit.gemm_dtypes([f.func, epilogue]) == {"f64"}
    library = load([f.func, epilogue], [entry], extra=[NAIVE_GEMM])
    x, y, out = np.arange(10.0) + 2, np.arange(20.0) + 1, np.zeros(16)
    assert call(library, "f", [x, y, out], [3], workspace=256)[0] == 0
    want = np.zeros(16)
    want[10], want[3] = x[1 + 3] * y[2 + 3], 0.0
    np.testing.assert_array_equal(out, want)
    out[3] = 4.0
    call(library, "f", [x, y, out], [3], workspace=256)
    assert out[3] == 4.0 * x[0]
    size = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(library.address("f_workspace"))
    assert size(np.array([300]).ctypes.data) == 64 + 320  # max(5 + 300, 90 + 1) rounded up


# ---- spec -------------------------------------------------------------------------------------------------------------------------

def _broken(name: str) -> kernel.Kernel:
    f = kernel.function("f", [float64], [float64], ["n"])
    kb, n = f.kb, f.sizes["n"]
    x = kb.load(f.inputs[0], 0)
    if name == "mixed":
        kb.op("arith.addf", [x, kb.constant(1, kernel.register(float32))], [F64])
    elif name == "kind":
        kb.op("arith.addf", [n, n], [INDEX])
    elif name == "unknown":
        kb.op("arith.frobnicate", [x], [F64])
    elif name == "scope":
        with kb.for_(0, n) as loop:
            inner = kb.add(loop.iv, 1)
            kb.store(x, f.outputs[0], inner)
        kb.store(x, f.outputs[0], inner)
    elif name == "element":
        kb.op("memref.store", [kb.constant(1, I64), f.outputs[0], n])
    elif name == "mask":
        kb.op("vector.maskedstore", [f.outputs[0], n, kb.create_mask(n, 4), kb.broadcast(x, 8)])
    elif name == "carried":
        body = Block([INDEX, F64])
        body.outputs = [body.args[0]]
        kb.op("scf.for", [n, n, n, x], [F64], None, (body,))
    elif name == "callee":
        kb.call("nowhere", [x])
    elif name == "lane":
        kb.op("vector.extract", [kb.broadcast(x, 4)], [F64], {"static_position": (4,)})
    elif name == "predicate":
        kb.op("arith.cmpf", [x, x], [kernel.register(bool_)], {"predicate": 77})
    elif name == "narrow":
        kb.op("arith.extf", [x], [kernel.register(float32)])
    elif name == "branch":
        kb.op("scf.if", [kb.cmp("eq", n, 1)], [F64], None, (Block(),))
    kb.ret()
    if name == "status":
        f.func.body.outputs = [x]
    return f


BROKEN = {
    "mixed": "one type", "kind": "works on floats, not index", "unknown": "is not a kernel-level op", "scope": "before it is defined, or outside the block",
    "element": "a buffer of its element", "mask": "a mask and a vector", "carried": "but the body takes", "callee": "'nowhere', which is not a function",
    "lane": "static_position inside", "predicate": "predicate from 0 to 15", "narrow": "makes values wider", "branch": "two branches", "status": "gives one i32 status",
}


@pytest.mark.parametrize("name", BROKEN)
def test_verifier_says_what_is_wrong(name: str) -> None:
    with pytest.raises(AotgradError, match=BROKEN[name]) as caught:
        kernel_spec.verify(_broken(name).func)
    assert "kernel function f" in str(caught.value)


def test_every_op_of_the_spec_has_text_and_every_text_a_spec() -> None:
    assert set(kernel_spec.RULES) - {"arith.constant"} == set(emit.TABLE)


def test_builder_and_emitter_refuse_what_they_cannot_express() -> None:
    f = kernel.function("f", [float64], [float64], ["n"])
    with pytest.raises(TypeError, match="the body of for yields"), f.kb.for_(0, f.sizes["n"], init=[f.kb.constant(0, F64)]):
        pass
    with pytest.raises(TypeError, match="needs both branches"), f.kb.if_(f.kb.cmp("eq", f.sizes["n"], 1), [F64]) as branch, branch.then():
        f.kb.yield_(f.kb.constant(0, F64))
    f = kernel.function("f", [], [], ["n"])
    f.kb.op("memref.alloca", [f.sizes["n"]], [kernel.memref(float64)])
    f.kb.ret()
    with pytest.raises(AotgradError, match="constant size"):
        emit.module([f.func], simple_entry(f), TARGET)
    with pytest.raises(AotgradError, match="not among f"):
        emit.module([f.func], emit.Entry("g", (), (), ()), TARGET)
    with pytest.raises(AotgradError, match="passes 1 buffers, 0 sizes"):
        emit.module([f.func], emit.Entry("f", (tensor_type([3]),), (), ()), TARGET)


# ---- speed ------------------------------------------------------------------------------------------------------------------------

def _straight(n: int) -> kernel.Kernel:
    f = kernel.function("f", [float64], [float64], [])
    kb, k = f.kb, f.kb.scalars()
    values = [kb.load(f.inputs[0], i) for i in range(8)]
    for i in range(n):
        values.append((k.add, k.mul, k.sub)[i % 3](values[-1], values[-1 - i % 7]))
    kb.store(values[-1], f.outputs[0], 0)
    kb.ret()
    return f


def test_building_and_emitting_is_linear_in_the_number_of_ops() -> None:
    def seconds(n: int) -> float:
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            f = _straight(n)
            kernel_spec.verify(f.func)
            emit.module([f.func], simple_entry(f), TARGET)
            best = min(best, time.process_time() - start)
        return best

    seconds(100)
    assert seconds(16_000) < 16 * seconds(4_000)  # 4 times the ops: linear gives 4, quadratic 16 and more


def test_text_is_a_function_of_the_kernel_alone() -> None:
    first, second = (emit.module([f.func], simple_entry(f), TARGET) for f in (_straight(50), _straight(50)))
    assert first == second


def test_op_repr_of_an_unknown_name_is_not_needed_by_the_emitter() -> None:
    f = kernel.function("f", [], [], [])
    f.func.body.ops.append(Op("math.gamma", [], []))
    f.kb.ret()
    with pytest.raises(AotgradError, match="'math.gamma' has no LLVM form"):
        emit.module([f.func], simple_entry(f), TARGET)
