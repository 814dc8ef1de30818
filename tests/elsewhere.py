"""Functions compiled for other instruction sets: those of this processor run here, those of another one in qemu's emulator, many calls to one program.

Every call is made twice, with buffers that end at a page nobody may touch and with buffers that begin after one; both give the same bits and leave the inputs alone.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lowering_harness import from_layout, in_layout
from native_table import natives, run_both_guards

from aotgrad.codegen import llvm
from aotgrad.codegen.driver import kernel_objects
from aotgrad.codegen.emit import module
from aotgrad.codegen.lower import lower
from aotgrad.codegen.target import Target
from aotgrad.ir import Func

HERE = Target.native()
LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4") if HERE.arch == "x86_64" else ()
LOWER = [n for n in LEVELS if n < HERE.cpu]  # what is below this machine's own set, for which the other tests compile
ARM = "aarch64-linux-gnu"
MACHINES = [*LOWER, *([] if HERE.arch == "aarch64" else [ARM])]

DRIVER = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#define PAGE 4096
typedef struct { void **ptrs; int64_t *sizes; void *workspace; void *ctx; int64_t info[4]; } ag_call;
typedef struct { int32_t (*run)(ag_call *); int64_t (*workspace)(const int64_t *); } entry;
/*DECLARATIONS*/
static const entry table[] = { /*ENTRIES*/ };

typedef struct { unsigned char *map, *at; int64_t pages, bytes; } block;

static block guarded(int64_t bytes, int64_t align, int end) {
  int64_t pages = bytes ? (bytes + PAGE - 1) / PAGE : 1, room = pages * PAGE - bytes;
  unsigned char *map = mmap(NULL, (pages + 2) * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED || mprotect(map, PAGE, PROT_NONE) || mprotect(map + (pages + 1) * PAGE, PAGE, PROT_NONE)) { perror("guard page"); exit(3); }
  block b = {map, map + PAGE + (end ? room / align * align : 0), pages, bytes};
  return b;
}

static void drop(block b) { munmap(b.map, (b.pages + 2) * PAGE); }

static int64_t number(FILE *f) {
  int64_t n;
  if (fread(&n, 8, 1, f) != 1) { fprintf(stderr, "the list of calls ends early\n"); exit(3); }
  return n;
}

int main(int argc, char **argv) {
  FILE *in = fopen(argv[1], "rb"), *out = fopen(argv[2], "wb");
  if (argc != 3 || !in || !out) return 3;
  int64_t calls = number(in);
  for (int64_t c = 0; c < calls; c++) {
    int64_t which = number(in), inputs = number(in), outputs = number(in), sizes[32] = {0}, count = number(in);
    for (int64_t i = 0; i < count; i++) sizes[i] = number(in);
    int64_t bytes[32], items[32];
    unsigned char *data[32];
    for (int64_t i = 0; i < inputs + outputs; i++) {
      bytes[i] = number(in);
      items[i] = number(in);
      data[i] = malloc(bytes[i] + 1);
      if (i < inputs && fread(data[i], 1, bytes[i], in) != (size_t)bytes[i]) return 3;
    }
    for (int end = 1; end >= 0; end--) {
      block b[32];
      void *ptrs[32];
      for (int64_t i = 0; i < inputs + outputs; i++) {
        b[i] = guarded(bytes[i], items[i], end);
        ptrs[i] = b[i].at;
        if (i < inputs) memcpy(b[i].at, data[i], bytes[i]); else memset(b[i].at, 0xAB, bytes[i]);
      }
      int64_t room = table[which].workspace(sizes);
      block work = guarded(room, 64, end);
      memset(work.at, 0xFF, room);
      ag_call call = {ptrs, sizes, work.at, NULL, {0}};
      int32_t status = table[which].run(&call);
      if (status) { printf("call %ld: status %d\n", (long)c, (int)status); return 1; }
      for (int64_t i = 0; i < inputs + outputs; i++) {
        if (i < inputs || !end) {
          if (memcmp(b[i].at, data[i], bytes[i])) { printf("call %ld: %s\n", (long)c, i < inputs ? "an input was changed" : "alignment changed a result"); return 1; }
        } else memcpy(data[i], b[i].at, bytes[i]);
        drop(b[i]);
      }
      drop(work);
    }
    for (int64_t i = 0; i < inputs + outputs; i++) {
      if (i >= inputs) fwrite(data[i], 1, bytes[i], out);
      free(data[i]);
    }
  }
  return fclose(out) ? 3 : 0;
}
"""


@dataclass(frozen=True)
class Call:
    """A call of the function ``name``."""

    name: str
    args: Sequence[Any]


def results(machine: str, funcs: Mapping[str, Func], calls: Sequence[Call], folder: Path) -> list[list[Any]]:
    """What the functions give on ``machine``, call by call; skips the test where it cannot run."""
    target = Target.named(machine)
    if machine != ARM:
        kernels = natives(funcs, target)
        found = [run_both_guards(kernels[c.name], c.args) for c in calls]
        return [list(f) if isinstance(f, tuple) else [f] for f in found]
    if shutil.which("aarch64-linux-gnu-gcc") is None or shutil.which("qemu-aarch64") is None:
        pytest.skip("needs aarch64-linux-gnu-gcc and qemu-aarch64")
    program = _linked(funcs, target, folder)
    (folder / "calls").write_bytes(_written(funcs, calls))
    done = subprocess.run(["qemu-aarch64", program, folder / "calls", folder / "found"], capture_output=True, text=True, timeout=600)
    if done.returncode:
        which = done.stdout.split()[1].rstrip(":") if done.stdout.startswith("call") else "?"
        what = calls[int(which)] if which.isdigit() else None
        raise AssertionError(f"{done.returncode}: {done.stdout}{done.stderr} {what and (what.name, [np.shape(a) for a in what.args])}")
    return _read(funcs, calls, (folder / "found").read_bytes())


def _linked(funcs: Mapping[str, Func], target: Target, folder: Path) -> Path:
    lowered = [lower(f, name, target) for name, f in funcs.items()]
    kernels = [k for low in lowered for k in low.funcs]
    objects = [llvm.compile_object(module(kernels, [low.entry for low in lowered], target), target, passes="inline"), *kernel_objects(kernels, target)]
    for i, o in enumerate(objects):
        (folder / f"part{i}.o").write_bytes(o)
    declared = "\n".join(f"int32_t {n}(ag_call *); int64_t {n}_workspace(const int64_t *);" for n in funcs)
    text = DRIVER.replace("/*DECLARATIONS*/", declared).replace("/*ENTRIES*/", ", ".join(f"{{{n}, {n}_workspace}}" for n in funcs))
    (folder / "driver.c").write_text(text)
    parts = [folder / f"part{i}.o" for i in range(len(objects))]
    subprocess.run(["aarch64-linux-gnu-gcc", "-O1", "-static", folder / "driver.c", *parts, "-o", folder / "driver"], check=True)
    return folder / "driver"


def _types(func: Func, args: Sequence[Any]) -> tuple[list[int], list[tuple[Any, tuple[int, ...]]]]:
    """Values of the function's sizes, and types and shapes of its results."""
    env: dict[str, int] = {}
    for t, a in zip(func.arg_types, args):
        for d, n in zip(t.shape, np.shape(a)):
            name = None if isinstance(d, int) else d.as_symbol()
            if name is not None:
                env[name] = n
    return [env[s] for s in func.symbols()], [(t, tuple(t.substitute(env).shape)) for t in func.out_types]


def _written(funcs: Mapping[str, Func], calls: Sequence[Call]) -> bytes:
    place = {name: i for i, name in enumerate(funcs)}
    parts: list[bytes] = []

    def numbers(*xs: int) -> None:
        parts.append(np.array(xs, "<i8").tobytes())

    numbers(len(calls))
    for c in calls:
        func = funcs[c.name]
        sizes, outs = _types(func, c.args)
        numbers(place[c.name], len(func.arg_types), len(outs), len(sizes), *sizes)
        for t, a in zip(func.arg_types, c.args):
            flat = in_layout(np.asarray(a, t.dtype.np), t.order)
            numbers(flat.nbytes, flat.itemsize)
            parts.append(flat.tobytes())
        for t, shape in outs:
            numbers(int(np.prod(shape, dtype=np.int64)) * t.dtype.itemsize, t.dtype.itemsize)
    return b"".join(parts)


def _read(funcs: Mapping[str, Func], calls: Sequence[Call], data: bytes) -> list[list[Any]]:
    found, at = [], 0
    for c in calls:
        row = []
        for t, shape in _types(funcs[c.name], c.args)[1]:
            count = int(np.prod(shape, dtype=np.int64))
            row.append(from_layout(np.frombuffer(data, t.dtype.np, count, at), shape, t.order))
            at += count * t.dtype.itemsize
        found.append(row)
    assert at == len(data)
    return found
