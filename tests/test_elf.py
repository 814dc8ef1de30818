"""The linker, the archive writer and the loader, on objects made by LLVM; the system's tools judge the results where they are installed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from aotgrad.codegen.elf import link_shared
from aotgrad.codegen.elf.archive import write_archive
from aotgrad.codegen.elf.machines import MACHINES, OutOfRange
from aotgrad.codegen.elf.relocatable import link_relocatable
from aotgrad_runtime import loader
from aotgrad_runtime.errors import AotgradError, AotgradRuntimeError, AotgradTypeError, AotgradValueError

X86 = os.uname().machine == "x86_64"
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ELF libraries are loaded on Linux only")
HOST = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}[os.uname().machine]
ARM = "aarch64-unknown-linux-gnu"
only_x86 = pytest.mark.skipif(not X86, reason="about x86-64 relocations")


def needs(*tools: str) -> pytest.MarkDecorator:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def emit(text: str, triple: str = HOST, reloc: str = "pic", opt: int = 2) -> bytes:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()
    module = llvm.parse_assembly(text)
    module.verify()
    machine = llvm.Target.from_triple(triple).create_target_machine(reloc=reloc, codemodel="small", opt=opt)
    return machine.emit_object(module)


def run(*command: object, cwd: Path | None = None) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def calling(library: loader.Library, name: str, result: type = ctypes.c_int64, *args: type):
    return ctypes.CFUNCTYPE(result, *args)(library.address(name))


ONE = """
@table = internal constant [4 x double] [double 1.0, double 2.0, double 3.0, double 4.5]
@pointers = internal constant [3 x ptr] [ptr @look, ptr @table, ptr getelementptr (i8, ptr @table, i64 24)]
@state = global i64 7
@zeros = internal global [1000 x i64] zeroinitializer, align 64
@meta = constant [6 x i8] c"hello\\00"
define double @look(i64 %i) {
  %p = getelementptr double, ptr @table, i64 %i
  %v = load double, ptr %p
  %w = fadd double %v, 0.3
  ret double %w
}
define ptr @pointer(i64 %i) {
  %p = getelementptr ptr, ptr @pointers, i64 %i
  %v = load ptr, ptr %p
  ret ptr %v
}
define i64 @count() {
  %v = load i64, ptr @state
  %w = add i64 %v, 1
  store i64 %w, ptr @state
  %p = getelementptr i64, ptr @zeros, i64 999
  %q = load i64, ptr %p
  store i64 %w, ptr %p
  %r = add i64 %q, %w
  ret i64 %r
}
"""
USER = """
@shared = external global i64
@weak_one = external hidden constant i64
declare hidden i64 @helper(i64)
declare i64 @visible_helper(i64)
declare i64 @eager(i64) nonlazybind
define i64 @entry(i64 %x) {
  %a = call i64 @helper(i64 %x)
  %b = call i64 @visible_helper(i64 %a)
  %c = call i64 @eager(i64 %b)
  %s = load i64, ptr @shared
  %w = load i64, ptr @weak_one
  %d = add i64 %c, %s
  %e = add i64 %d, %w
  ret i64 %e
}
define ptr @address() { ret ptr @visible_helper }
define i64 @tail(i64 %x) {
  %r = tail call i64 @eager(i64 %x)
  ret i64 %r
}
"""
LIBRARY = """
@shared = global i64 100
@weak_one = weak hidden constant i64 1
define hidden i64 @helper(i64 %x) {
  %r = mul i64 %x, 3
  ret i64 %r
}
define i64 @visible_helper(i64 %x) {
  %r = add i64 %x, 5
  ret i64 %r
}
define i64 @eager(i64 %x) {
  %r = shl i64 %x, 1
  ret i64 %r
}
define i64 @never_used(i64 %x) section ".text.other" {
  %r = call i64 @missing_everywhere(i64 %x)
  ret i64 %r
}
declare i64 @missing_everywhere(i64)
"""
STRONG = "@weak_one = hidden constant i64 1000\n"
EXPORTS = ["entry", "address", "tail"]


def check_entry(library: loader.Library, weak: int) -> None:
    entry, tail = calling(library, "entry", ctypes.c_int64, ctypes.c_int64), calling(library, "tail", ctypes.c_int64, ctypes.c_int64)
    assert [entry(x) for x in (0, 7, -9)] == [(3 * x + 5) * 2 + 100 + weak for x in (0, 7, -9)]
    assert tail(21) == 42
    there = calling(library, "address", ctypes.c_void_p)()
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(there)(1) == 6


# --- shared libraries -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opt", [0, 2])
def test_one_object_runs(opt: int) -> None:
    library = loader.load_bytes(link_shared([emit(ONE, opt=opt)], ["look", "pointer", "count", "meta"], "libone.so"))
    look, pointer = calling(library, "look", ctypes.c_double, ctypes.c_int64), calling(library, "pointer", ctypes.c_void_p, ctypes.c_int64)
    count = calling(library, "count")
    assert [look(i) for i in range(4)] == [1.3, 2.3, 3.3, 4.8]
    assert pointer(0) == library.address("look")
    assert ctypes.c_double.from_address(pointer(1) + 16).value == 3.0 and ctypes.c_double.from_address(pointer(2)).value == 4.5
    assert [count(), count()] == [8, 17]
    assert library.string("meta") == b"hello"
    assert "look" in library and "state" not in library and "table" not in library


@pytest.mark.parametrize("opt", [0, 2])
def test_objects_refer_to_each_other(opt: int) -> None:
    user, other, strong = emit(USER, opt=opt), emit(LIBRARY, opt=opt), emit(STRONG)
    check_entry(loader.load_bytes(link_shared([user, other], EXPORTS, "libx.so")), 1)
    for objects in ([user, other, strong], [strong, other, user]):  # a strong definition wins over a weak one, wherever it stands
        check_entry(loader.load_bytes(link_shared(objects, EXPORTS, "libx.so")), 1000)


def test_equal_input_gives_equal_bytes() -> None:
    objects = [emit(USER), emit(LIBRARY)]
    assert link_shared(objects, EXPORTS, "libx.so") == link_shared(list(objects), list(EXPORTS), "libx.so")
    assert link_relocatable(objects, EXPORTS) == link_relocatable(list(objects), EXPORTS)


def test_unreached_sections_are_dropped() -> None:
    user, other = emit(USER), emit(LIBRARY)
    so = link_shared([user, other, emit(ONE)], EXPORTS, "libx.so")
    assert len(so) <= len(link_shared([user, other], EXPORTS, "libx.so")) + 16 and b".eh_frame" not in so


def test_imports_are_bound_by_the_system() -> None:
    text = """
    @table = constant [1 x ptr] [ptr @labs]
    declare i64 @labs(i64)
    declare i64 @atol(ptr) nonlazybind
    @digits = internal constant [4 x i8] c"-12\\00"
    define i64 @f() {
      %v = call i64 @atol(ptr @digits)
      %r = call i64 @labs(i64 %v)
      ret i64 %r
    }
    define ptr @taken() { ret ptr @labs }
    """
    library = loader.load_bytes(link_shared([emit(text)], ["f", "table", "taken"], "libi.so", imports=["labs", "atol", "unused"]))
    assert calling(library, "f")() == 12
    libc = ctypes.cast(ctypes.CDLL(None).labs, ctypes.c_void_p).value
    assert ctypes.c_void_p.from_address(library.address("table")).value == libc == calling(library, "taken", ctypes.c_void_p)()
    with pytest.raises(AotgradValueError, match=r"undefined symbols?: atol .*; labs .*objects\[0\].*imports="):
        link_shared([emit(text)], ["f"], "libi.so")


@only_x86
def test_absolute_symbols() -> None:
    text = 'module asm ".globl fixed\\0Afixed = 42"\n@fixed = external global i8\n@kept = constant ptr @fixed\ndefine ptr @f() { ret ptr @fixed }'
    library = loader.load_bytes(link_shared([emit(text)], ["f", "kept"], "liba.so"))
    assert calling(library, "f", ctypes.c_void_p)() == 42 == ctypes.c_void_p.from_address(library.address("kept")).value


def test_one_mapping_is_never_writable_and_executable_and_tables_are_read_only() -> None:
    library = loader.load_bytes(link_shared([emit(ONE)], ["look", "pointer", "count", "meta"], "libone.so"))
    rights = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, flags = line.split()[:2]
        low, high = (int(part, 16) for part in span.split("-"))
        for name in ("look", "meta"):
            if low <= library.address(name) < high:
                rights[name] = flags
        if low <= calling(library, "pointer", ctypes.c_void_p, ctypes.c_int64)(1) < high:
            rights["table"] = flags
    assert rights == {"look": "r-xp", "meta": "r--p", "table": "r--p"}


def segments(so: bytes) -> list[tuple[int, ...]]:
    count = struct.unpack_from("<H", so, 56)[0]
    return [struct.unpack_from("<IIQQQQQQ", so, 64 + 56 * i) for i in range(count)]


@pytest.mark.parametrize("triple", [HOST, ARM])
def test_layout(triple: str) -> None:
    so = link_shared([emit(ONE, triple)], ["look", "pointer", "count", "meta"], "libone.so")
    found = segments(so)
    loads = [s for s in found if s[0] == 1]
    assert len(loads) == 4 and all(s[1] & 3 != 3 and s[2] % 4096 == s[3] % 4096 == 0 and (s[3] - s[2]) % s[7] == 0 for s in loads)
    page = loads[0][7]
    assert all(b[3] // page > (a[3] + a[6] - 1) // page for a, b in zip(loads, loads[1:]))  # no page has two kinds of rights
    assert [s[1] for s in found if s[0] == 0x6474E551] == [6]  # the stack is not executable
    (relro,) = [s for s in found if s[0] == 0x6474E552]
    assert (relro[3] + relro[6]) % page == 0 and any(s[3] == relro[3] and s[6] == relro[6] for s in loads)


# --- what cannot be linked ------------------------------------------------------------------------------------------------------


def test_errors_name_the_symbol() -> None:
    user, other = emit(USER), emit(LIBRARY)
    with pytest.raises(AotgradValueError, match=r"no object defines the exported symbols nothing, at_all"):
        link_shared([user, other], ["entry", "nothing", "at_all"], "libx.so")
    with pytest.raises(AotgradValueError, match=r"undefined symbols: .*eager.*helper.*imports="):
        link_shared([user], EXPORTS, "libx.so")
    with pytest.raises(AotgradValueError, match=r"symbol (shared|visible_helper|eager|helper) is defined by objects\[1\] and objects\[2\]"):
        link_shared([user, other, other], EXPORTS, "libx.so")
    with pytest.raises(AotgradValueError, match=r"undefined symbol: missing_everywhere"):
        link_shared([other], ["never_used"], "libx.so")


def test_arguments_are_checked() -> None:
    user = emit(ONE)
    for bad in (user, ["text"], [None]):
        with pytest.raises(AotgradTypeError, match="objects must be a sequence of bytes"):
            link_shared(bad, ["look"], "libx.so")
    with pytest.raises(AotgradTypeError, match="exports must be a sequence"):
        link_shared([user], "look", "libx.so")
    with pytest.raises(AotgradTypeError, match="imports must be a sequence"):
        link_shared([user], ["look"], "libx.so", imports=[1])
    for bad in ("", "a/b.so", None):
        with pytest.raises(AotgradTypeError, match="soname"):
            link_shared([user], ["look"], bad)
    for objects, exports in (([], ["f"]), ([user], [])):
        with pytest.raises(AotgradValueError, match="at least one object and one exported name"):
            link_shared(objects, exports, "libx.so")
    with pytest.raises(AotgradValueError, match="different machines"):
        link_shared([emit(ONE, HOST), emit(ONE, ARM if X86 else "x86_64-unknown-linux-gnu")], ["look"], "libx.so")


@only_x86
def test_code_that_is_not_position_independent_is_refused() -> None:
    with pytest.raises(AotgradValueError, match=r"objects\[0\], section \.text.*absolute address.*reloc='pic'"):
        link_shared([emit(ONE, reloc="static")], ["look"], "libx.so")


def test_thread_locals_and_constructors_are_refused() -> None:
    with pytest.raises(AotgradValueError, match="thread-local"):
        link_shared([emit("@t = thread_local global i64 1\ndefine ptr @f() { ret ptr @t }")], ["f"], "libx.so")
    text = "@llvm.global_ctors = appending global [1 x {i32, ptr, ptr}] [{i32, ptr, ptr} {i32 65535, ptr @f, ptr null}]\ndefine void @f() { ret void }"
    with pytest.raises(AotgradValueError, match="constructors"):
        link_shared([emit(text)], ["f"], "libx.so")
    with pytest.raises(AotgradValueError, match="common"):
        link_shared([emit("@c = common global i64 0\ndefine ptr @f() { ret ptr @c }")], ["f"], "libx.so")


def test_damaged_objects_give_an_error_or_a_library() -> None:
    """Never another exception: every field of the headers, symbols and relocations is hit many times."""
    random_ = random.Random(7)
    good = emit(USER), emit(LIBRARY)
    refused = 0
    for _ in range(1500):
        bad = bytearray(good[0])
        if random_.random() < 0.15:
            del bad[random_.randrange(len(bad)) :]
        else:
            start = struct.unpack_from("<Q", bad, 40)[0] if random_.random() < 0.5 else 0
            for _ in range(random_.choice((1, 1, 4))):
                bad[random_.randrange(start, len(bad))] = random_.choice((0, 1, 0x7F, 0x80, 0xFF, random_.randrange(256)))
        for link in (lambda o: link_shared(o, EXPORTS, "libx.so"), lambda o: link_relocatable(o, EXPORTS)):
            try:
                link([bytes(bad), good[1]])
            except AotgradError as error:
                refused += 1
                assert "objects[0]" in str(error) or "symbol" in str(error)
    assert refused > 300


# --- one object, archives -------------------------------------------------------------------------------------------------------


def test_merged_object_behaves_as_its_parts() -> None:
    merged = link_relocatable([emit(USER), emit(LIBRARY), emit(STRONG)], EXPORTS)
    check_entry(loader.load_bytes(link_shared([merged], EXPORTS, "libx.so")), 1000)
    with pytest.raises(AotgradValueError, match="no object defines the exported symbol helper"):
        link_shared([merged], ["helper"], "libx.so")
    assert link_relocatable([merged], EXPORTS) == link_relocatable([link_relocatable([merged], EXPORTS)], EXPORTS)


MAIN = """
#include <stdint.h>
#include <stdio.h>
int64_t entry(int64_t); int64_t tail(int64_t); double look(int64_t); int64_t count(void); extern const char meta[6];
int main(void) {
  long first = count();
  printf("%ld %ld %.1f %ld %ld %s", (long)entry(7), (long)tail(21), look(3), first, (long)count(), meta);
  return 0;
}
"""
PRINTED = "153 42 4.8 8 17 hello"
API = ["entry", "tail", "address", "look", "count", "pointer", "meta"]


def build_all(folder: Path, triple: str = HOST) -> list[bytes]:
    objects = [emit(text, triple) for text in (USER, LIBRARY, ONE)]
    merged = link_relocatable(objects, API)
    (folder / "liball.so").write_bytes(link_shared(objects, API, "liball.so"))
    (folder / "all.o").write_bytes(merged)
    (folder / "static").mkdir()
    (folder / "static/libone.a").write_bytes(write_archive([("all.o", merged)]))
    parts = [("a_name_longer_than_fifteen.o", link_relocatable(objects[:2], API[:3])), ("one.o", objects[2]), ("another_name_of_that_length.o", emit(STRONG))]
    (folder / "static/libtwo.a").write_bytes(write_archive(parts))
    (folder / "main.c").write_text(MAIN)
    return objects


@needs("gcc", "nm", "readelf")
def test_the_system_toolchain_accepts_them(tmp_path: Path) -> None:
    build_all(tmp_path)
    for number, with_ in enumerate((["all.o"], ["-Lstatic", "-lone"], ["-Lstatic", "-ltwo"], ["-L.", "-lall", "-Wl,-rpath,$ORIGIN"])):
        run("gcc", "-Wall", "-Werror", "-Wl,--fatal-warnings", "main.c", *with_, "-o", f"main{number}", cwd=tmp_path)
        assert run(tmp_path / f"main{number}") == PRINTED
    assert {line.split()[-1] for line in run("nm", "-D", "liball.so", cwd=tmp_path).splitlines()} == set(API)
    assert {line.split()[-1] for line in run("nm", "-g", "all.o", cwd=tmp_path).splitlines()} == set(API)
    assert "another_name_of_that_length.o" in run("ar", "t", "static/libtwo.a", cwd=tmp_path)
    for name in ("liball.so", "all.o"):
        done = subprocess.run(["readelf", "--wide", "--all", name], cwd=tmp_path, capture_output=True, text=True)
        assert "arning" not in done.stdout + done.stderr and "NEEDED" not in done.stdout and "TEXTREL" not in done.stdout


@needs("gcc", "valgrind")
def test_valgrind_is_content(tmp_path: Path) -> None:
    build_all(tmp_path)
    run("gcc", "main.c", "-L.", "-lall", "-Wl,-rpath,$ORIGIN", "-o", "main", cwd=tmp_path)
    assert run("valgrind", "-q", "--error-exitcode=9", tmp_path / "main") == PRINTED


@needs("gcc")
def test_needed_libraries_are_recorded(tmp_path: Path) -> None:
    so = link_shared([emit("declare double @cbrt(double)\ndefine double @f() { %r = call double @cbrt(double 1.0)\n ret double %r }", opt=0)], ["f"], "libf.so",
                     needed=["libm.so.6"], imports=["cbrt"])
    assert calling(loader.load_bytes(so), "f", ctypes.c_double)() == 1.0
    (tmp_path / "libf.so").write_bytes(so)
    assert "[libm.so.6]" in run("readelf", "-d", tmp_path / "libf.so")


def test_archive_arguments_are_checked() -> None:
    good = emit(STRONG)
    assert write_archive([]) == b"!<arch>\n"
    twice = [("a.o", good), ("a.o", good)]
    for bad, match in (([("a/b.o", good)], "cannot be a member"), (twice, "different names"), ([("a.o", b"text")], "member 'a.o' is not a sound")):
        with pytest.raises(AotgradValueError, match=match):
            write_archive(bad)
    with pytest.raises(AotgradTypeError, match="pair"):
        write_archive([good])


# --- aarch64 --------------------------------------------------------------------------------------------------------------------


def decode(word: int, kind: int, place: int) -> int:
    """What an aarch64 instruction reaches, written independently of the linker: the address, or the low 12 bits."""
    if kind in (275, 311):
        imm = (word >> 29 & 3) | (word >> 5 & 0x7FFFF) << 2
        return (place >> 12 << 12) + ((imm ^ 1 << 20) - (1 << 20)) * 4096
    if kind == 283:
        imm = word & 0x3FFFFFF
        return place + ((imm ^ 1 << 25) - (1 << 25)) * 4
    return (word >> 10 & 0xFFF) << {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4, 312: 3}[kind]


def test_arm_instructions_are_patched() -> None:
    rules, random_ = MACHINES[183].rules, random.Random(3)
    for kind in (275, 277, 278, 283, 284, 285, 286, 299, 311, 312):
        for _ in range(50):
            symbol, place = 16 * random_.randrange(1 << 22), 4 * random_.randrange(1 << 24)
            data = bytearray(struct.pack("<I", random_.getrandbits(32)))
            before = decode(struct.unpack("<I", data)[0], 277, 0)
            rules[kind].write(data, 0, symbol, 0, place)
            got = decode(struct.unpack("<I", data)[0], kind, place)
            assert got == (symbol >> 12 << 12 if kind in (275, 311) else symbol if kind == 283 else symbol & 0xFFF), (kind, before)
    for kind, symbol in ((283, 1 << 28), (283, 2), (275, 1 << 33), (286, 4), (261, 1 << 31)):
        with pytest.raises(OutOfRange):
            rules[kind].write(bytearray(4), 0, symbol, 0, 0)


@needs("aarch64-linux-gnu-gcc", "qemu-aarch64")
def test_arm_libraries_run_in_an_emulator(tmp_path: Path) -> None:
    build_all(tmp_path, ARM)
    for number, with_ in enumerate((["all.o", "-static"], ["-Lstatic", "-ltwo"], ["-L.", "-lall", "-Wl,-rpath,$ORIGIN"])):
        run("aarch64-linux-gnu-gcc", "-Wl,--fatal-warnings", "main.c", *with_, "-o", f"main{number}", cwd=tmp_path)
        assert run("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", tmp_path / f"main{number}") == PRINTED
    so = link_shared([emit("declare i32 @puts(ptr)\n@s = internal constant [3 x i8] c\"hi\\00\"\ndefine i32 @say() { %r = call i32 @puts(ptr @s)\n ret i32 %r }", ARM)],
                     ["say"], "libsay.so", imports=["puts"])
    (tmp_path / "libsay.so").write_bytes(so)
    (tmp_path / "say.c").write_text("int say(void); int main(void) { say(); return 0; }")
    run("aarch64-linux-gnu-gcc", "say.c", "-L.", "-lsay", "-Wl,-rpath,$ORIGIN", "-o", "say", cwd=tmp_path)
    assert run("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", tmp_path / "say") == "hi\n"


# --- loader ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sample() -> bytes:
    return link_shared([emit(ONE)], ["look", "pointer", "count", "meta"], "libone.so")


def test_any_changed_byte_is_noticed(sample: bytes) -> None:
    random_ = random.Random(5)
    spots = {*range(64 + 56 * 8), *(random_.randrange(len(sample)) for _ in range(400)), len(sample) - 1}
    for spot in sorted(spots):
        bad = bytearray(sample)
        bad[spot] ^= 1 << random_.randrange(8)
        with pytest.raises(AotgradValueError, match="not a shared library that can be loaded here"):
            loader.check_library(bytes(bad), "x")
    for length in {0, 3, 63, 64, 200, 4096, len(sample) - 1}:
        with pytest.raises(AotgradValueError):
            loader.load_bytes(sample[:length])


def test_random_headers_never_break_the_checks(sample: bytes) -> None:
    random_ = random.Random(6)
    for _ in range(1000):
        bad = bytearray(sample)
        for _ in range(random_.randrange(1, 5)):
            bad[random_.randrange(16, 512)] = random_.choice((0, 0xFF, random_.randrange(256)))
        with contextlib.suppress(AotgradValueError):
            assert loader.check_library(bytes(bad), "x", foreign_ok=True) is False or bytes(bad) == sample


def test_foreign_and_unfit_files_are_refused(tmp_path: Path, sample: bytes) -> None:
    other = "aarch64" if X86 else "x86_64"
    wrong = link_shared([emit(ONE, ARM if X86 else "x86_64-unknown-linux-gnu")], ["look"], "libone.so")
    with pytest.raises(AotgradValueError, match=f"it is for {other}, this is {os.uname().machine}"):
        loader.load_bytes(wrong)
    with pytest.raises(AotgradValueError, match="its type is 1"):
        loader.load_bytes(emit(ONE))
    with pytest.raises(AotgradTypeError, match="load_path"):
        loader.load_bytes("libone.so")
    with pytest.raises(AotgradRuntimeError, match=r"cannot read library .*absent\.so"):
        loader.load_path(tmp_path / "absent.so")
    with pytest.raises(AotgradRuntimeError, match="cannot read library"):
        loader.load_path(tmp_path)
    (tmp_path / "cut.so").write_bytes(sample[:-8])
    with pytest.raises(AotgradValueError, match=r"cut\.so.*cut off"):
        loader.load_path(tmp_path / "cut.so")
    with pytest.raises(AotgradValueError, match="no symbol 'absent'"):
        loader.load_bytes(sample).address("absent")


def test_foreign_libraries_load_when_asked() -> None:
    path = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libm.so" in line or "libm-" in line or "libc.so" in line)
    with pytest.raises(AotgradValueError, match="not made by aotgrad"):
        loader.load_path(path)
    assert loader.load_path(path, foreign_ok=True).address("cos" if "libm" in path else "labs") > 0


def test_a_missing_import_is_an_error() -> None:
    text = "declare i64 @no_such_symbol()\ndefine i64 @f() { %r = call i64 @no_such_symbol()\n ret i64 %r }"
    so = link_shared([emit(text)], ["f"], "libf.so", imports=["no_such_symbol"])
    with pytest.raises(AotgradRuntimeError, match="no_such_symbol"):
        loader.load_bytes(so, "libf.so")


def test_copies_are_separate_and_nothing_leaks(sample: bytes) -> None:
    before = len(os.listdir("/proc/self/fd"))
    counts = [calling(loader.load_bytes(sample), "count") for _ in range(20)]
    assert [count() for count in counts] == [8] * 20 and len(os.listdir("/proc/self/fd")) == before


def test_a_replaced_file_is_loaded_anew(tmp_path: Path) -> None:
    path = tmp_path / "libf.so"
    for value in (1, 2, 3):
        (tmp_path / "new").write_bytes(link_shared([emit(f"define i64 @f() {{ ret i64 {value} }}")], ["f"], "libf.so"))
        os.rename(tmp_path / "new", path)
        library = loader.load_path(path)
        assert calling(library, "f")() == value
        assert loader.load_path(path).address("f") == library.address("f")  # unchanged: the same mapping


def test_metadata_behind_the_library_is_allowed(sample: bytes) -> None:
    assert loader.check_library(sample + b"anything", "x") is True


def test_without_memfd(sample: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(38, "not implemented")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert calling(loader.load_bytes(sample), "count")() == 8
    monkeypatch.setenv("TMPDIR", "/proc/nowhere")
    with pytest.raises(AotgradRuntimeError, match="set TMPDIR"):
        loader.load_bytes(sample)


def test_loading_needs_no_compiler(tmp_path: Path, sample: bytes) -> None:
    (tmp_path / "one.so").write_bytes(sample)
    program = (
        "import sys; sys.modules['llvmlite'] = sys.modules['lark'] = None\n"
        "from aotgrad_runtime.loader import load_path; import aotgrad_runtime.cache\n"
        f"print(load_path({str(tmp_path / 'one.so')!r}).string('meta').decode())"
    )
    assert run(sys.executable, "-c", program) == "hello\n"
