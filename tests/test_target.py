"""Targets and the door to llvmlite."""

from __future__ import annotations

import subprocess
import sys

import pytest

from aotgrad.codegen import llvm
from aotgrad.codegen.target import _V3, _V4, Target, from_x86_flags
from aotgrad_runtime.errors import AotgradError, AotgradRuntimeError, AotgradValueError

NAMES = ["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64-linux-gnu", "native"]


def test_native_needs_no_llvmlite():
    code = "import sys; sys.modules['llvmlite'] = None\nfrom aotgrad.codegen.target import Target\nt = Target.native(); assert t.key and t.vector_bits >= 128"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_missing_llvmlite_is_a_clear_error():
    code = ("import sys; sys.modules['llvmlite'] = None\nfrom aotgrad.codegen import llvm\nfrom aotgrad_runtime.errors import AotgradError\n"
            "try: llvm.binding()\nexcept AotgradError as e: assert 'pip install llvmlite' in str(e)\nelse: raise SystemExit(1)")
    subprocess.run([sys.executable, "-c", code], check=True)


def test_levels_from_flags():
    assert from_x86_flags(frozenset()) == Target.named("x86-64")
    assert from_x86_flags(_V3) == Target.named("x86-64-v3")
    assert from_x86_flags(_V3 | {"avx512f"}) == Target.named("x86-64-v3")  # a partial AVX-512 is not v4
    assert from_x86_flags(_V4) == Target.named("x86-64-v4")
    assert "+avx512bf16" in from_x86_flags(_V4 | {"avx512_bf16"}).features
    assert "avx512" not in from_x86_flags(_V3 | {"avx512_bf16"}).features


def test_lanes():
    v3, v4 = Target.named("x86-64-v3"), Target.named("x86-64-v4")
    assert [v3.lanes(d) for d in ("f64", "f32", "i64", "i32", "i1")] == [4, 8, 4, 8, 32]
    assert [v4.lanes(d) for d in ("f64", "f32")] == [8, 16]
    with pytest.raises(AotgradError, match="f7"):
        v3.lanes("f7")
    with pytest.raises(AotgradError, match="complex64"):
        v3.lanes("complex<f32>")


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(AotgradValueError, match="x86-64-v3"):
        Target.named("pentium")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("passes", llvm.PASSES)
def test_compile_object(name, passes):
    text = "define hidden double @f(double %x) {\n  %y = call double @g(double %x)\n  ret double %y\n}\n"
    text += "define internal double @g(double %x) alwaysinline {\n  %y = fadd double %x, %x\n  ret double %y\n}\n"
    assert llvm.compile_object(text, Target.named(name), passes=passes).startswith(b"\x7fELF")
    if passes != "none":
        assert "call" not in llvm.assembly(text, Target.named(name), passes=passes)


def test_full_width_vectors_from_plain_loops():
    loop = """
define void @f(ptr noalias %p, ptr noalias %q, i64 %n) {
e:
  br label %l
l:
  %i = phi i64 [0, %e], [%j, %l]
  %a = getelementptr float, ptr %p, i64 %i
  %b = getelementptr float, ptr %q, i64 %i
  %x = load float, ptr %a
  %y = fmul float %x, %x
  store float %y, ptr %b
  %j = add i64 %i, 1
  %c = icmp ult i64 %j, %n
  br i1 %c, label %l, label %d
d:
  ret void
}
"""
    assert "%zmm" in llvm.assembly(loop, Target.named("x86-64-v4"), passes="O2")
    assert "%ymm" not in llvm.assembly(loop, Target.named("x86-64-v3"), passes="inline")


@pytest.mark.parametrize("text", ["define i32 @f() { ret i64 0 }", "not llvm", "define i32 @f() {\n  ret i32 %x\n}"])
def test_bad_text(text):
    with pytest.raises(AotgradRuntimeError, match="LLVM"):
        llvm.compile_object(text, Target.native())


def test_bad_options():
    with pytest.raises(AotgradValueError, match="passes"):
        llvm.compile_object("", Target.native(), passes="O9")
    with pytest.raises(AotgradValueError, match="opt"):
        llvm.compile_object("", Target.native(), opt=7)
    with pytest.raises(AotgradValueError, match="opt"):
        Target.native().machine(opt=9)
