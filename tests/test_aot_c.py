"""Built libraries as C and C++ see them: exact buffers between guard pages, under valgrind, from eight threads, NULL outputs, error codes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_aot import SOFTREG, mixed, rosenbrock, softreg, softreg_data

from aotgrad.frontend import aot
from aotgrad_runtime.library import load

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

N, D, K = 131, 37, 19
ROSEN = 37

# Every buffer has exactly the bytes it needs: from malloc (for valgrind), or touching an inaccessible page at its end or its start.
MAIN = r"""
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "rosenbrock.h"
#include "softreg.h"
#include "mixed.h"

enum { N = 131, D = 37, K = 19, M = 37 };
static int mode; /* 0 malloc, 1 guard page behind, 2 guard page before */

static void *take(size_t bytes) {
  if (mode == 0) return malloc(bytes ? bytes : 1);
  size_t page = 4096, inner = (bytes + page - 1) / page * page + page;
  char *p = (char *)mmap(0, inner + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED || mprotect(p + page, inner, PROT_READ | PROT_WRITE)) exit(3);
  memset(p + page, 0xA5, inner);
  return mode == 1 ? p + page + inner - bytes : p + page;
}
static double *doubles(size_t n) { return (double *)take(8 * n); }
static void give_back(void *p) { if (mode == 0) free(p); }
static double *read_doubles(FILE *f, size_t n) {
  double *p = doubles(n);
  if (fread(p, 8, n, f) != n) exit(4);
  return p;
}
static void show(const char *name, const double *p, size_t n) {
  printf("%s", name);
  for (size_t i = 0; i < n; i++) printf(" %a", p[i]);
  printf("\n");
}
static void need(int32_t code, int32_t want, const char *what) {
  if (code != want) { fprintf(stderr, "%s: code %d\n", what, (int)code); exit(5); }
}

static double *x, *w, *b, *xs, *ys, *t;

static void rosen(void) {
  double *value = doubles(1), *grad = doubles(M), *hess = doubles(M * M);
  void *ws = take((size_t)rosenbrock_hess_workspace(M));
  need(rosenbrock_grad(x, M, value, grad, ws), ROSENBROCK_SUCCESS, "rosenbrock_grad");
  show("rosenbrock", value, 1);
  show("rosenbrock_grad", grad, M);
  need(rosenbrock_jvp(x, t, M, 0, value, ws), 0, "rosenbrock_jvp");
  show("rosenbrock_jvp", value, 1);
  need(rosenbrock_hess(x, M, value, 0, hess, ws), 0, "rosenbrock_hess");
  show("rosenbrock_hess", hess, M * M);
  need(rosenbrock_hess(x, M, 0, 0, 0, ws), 0, "nothing wanted");
  need(rosenbrock(x, -1, value, ws), ROSENBROCK_ERROR_SIZES, "negative size");
  need(rosenbrock_hess(x, M, value, grad, 0, 0), ROSENBROCK_ERROR_WORKSPACE, "no workspace");
  need(rosenbrock(x, 0, value, ws), 0, "size 0");
  give_back(value); give_back(grad); give_back(hess); give_back(ws);
}

static void regression(void) {
  double *value = doubles(1), *gw = doubles(D * K), *gb = doubles(K), *hess = doubles(K * K);
  void *ws = take((size_t)softreg_grad_workspace(D, K, N)), *wsh = take((size_t)softreg_hess_workspace(D, K, N));
  need(softreg_grad(w, b, xs, ys, D, K, N, value, gw, gb, ws), 0, "softreg_grad");
  show("softreg", value, 1); show("softreg_gw", gw, D * K); show("softreg_gb", gb, K);
  memset(gb, 0, 8 * K);
  need(softreg_grad(w, b, xs, ys, D, K, N, 0, 0, gb, ws), 0, "softreg_grad, one wanted");
  show("softreg_gb", gb, K);
  need(softreg_hess(w, b, xs, ys, D, K, N, 0, 0, hess, wsh), 0, "softreg_hess");
  show("softreg_hess", hess, K * K);
  give_back(value); give_back(gw); give_back(gb); give_back(hess); give_back(ws); give_back(wsh);
}

static void several_types(void) {
  int64_t *k = (int64_t *)take(8), *at = (int64_t *)take(8);
  double *a = doubles(1), *total = doubles(1), *big = doubles(M);
  void *ws = take((size_t)mixed_workspace(M));
  *k = 3; *a = 2.5;
  need(mixed(x, k, a, M, total, big, at, ws), 0, "mixed");
  show("mixed", total, 1); show("mixed_big", big, M);
  printf("mixed_at %" PRId64 "\n", *at);
  give_back(k); give_back(at); give_back(a); give_back(total); give_back(big); give_back(ws);
}

static double want_w[D * K];
static int wrong;
static void *worker(void *unused) {
  double value, gw[D * K], gb[K];
  void *ws = malloc((size_t)softreg_grad_workspace(D, K, N));
  for (int i = 0; i < 40; i++) {
    memset(gw, 0, sizeof gw);
    if (softreg_grad(w, b, xs, ys, D, K, N, &value, gw, gb, ws) || memcmp(gw, want_w, sizeof gw)) __atomic_add_fetch(&wrong, 1, __ATOMIC_SEQ_CST);
  }
  free(ws);
  return unused;
}
static void threads(void) {
  pthread_t all[8];
  void *ws = malloc((size_t)softreg_grad_workspace(D, K, N));
  need(softreg_grad(w, b, xs, ys, D, K, N, 0, want_w, 0, ws), 0, "softreg_grad");
  free(ws);
  for (int i = 0; i < 8; i++) if (pthread_create(&all[i], 0, worker, 0)) exit(6);
  for (int i = 0; i < 8; i++) pthread_join(all[i], 0);
  printf("wrong %d\n", wrong);
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  mode = atoi(argv[2]);
  FILE *f = fopen(argv[1], "rb");
  if (!f) return 2;
  x = read_doubles(f, M); t = read_doubles(f, M);
  w = read_doubles(f, D * K); b = read_doubles(f, K); xs = read_doubles(f, N * D); ys = read_doubles(f, N * K);
  fclose(f);
  rosen(); regression(); several_types();
  if (mode) threads();
  printf("%s; %s\n", rosenbrock_error(ROSENBROCK_ERROR_INDEX), mixed_error(77));
  give_back(x); give_back(t); give_back(w); give_back(b); give_back(xs); give_back(ys);
  return 0;
}
"""


def run(*command: Any, **kwargs: Any) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=120, **kwargs)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build_all(out: Path, target: str) -> None:
    aot.build(rosenbrock, ["x: f64[n]"], grad="x", jvp="x", hess="x", out=out, target=target)
    aot.build(softreg, SOFTREG, grad=("w", "b"), hess="b", out=out, target=target)
    aot.build(mixed, ["x: f64[n]", "k: i64", "a: f64"], out=out, target=target)
    (out / "main.c").write_text(MAIN)


class Program:
    """The program, its inputs, and what it should print."""

    def __init__(self, out: Path) -> None:
        self.out = out
        rng = np.random.default_rng(4)
        self.x, self.t, self.data = rng.normal(size=ROSEN), rng.normal(size=ROSEN), softreg_data(N, D, K)
        w, b, xs, ys = self.data
        (out / "inputs").write_bytes(b"".join(np.ascontiguousarray(a).tobytes() for a in (self.x, self.t, w, b, xs, ys)))

    def want(self) -> list[tuple[str, Any]]:
        rosen, soft, mix = (load(self.out / f"lib{n}.so") for n in ("rosenbrock", "softreg", "mixed"))
        value, gw, gb = soft.softreg_grad(*self.data)
        total, big, at = mix.mixed(self.x, 3, 2.5)
        return [
            ("rosenbrock", rosen.rosenbrock(self.x)), ("rosenbrock_grad", rosen.rosenbrock_grad(self.x)[1]), ("rosenbrock_jvp", rosen.rosenbrock_jvp(self.x, self.t)[1]),
            ("rosenbrock_hess", rosen.rosenbrock_hess(self.x)[2]), ("softreg", value), ("softreg_gw", gw), ("softreg_gb", gb), ("softreg_gb", gb),
            ("softreg_hess", soft.softreg_hess(*self.data)[2]), ("mixed", total), ("mixed_big", big), ("mixed_at", at),
        ]

    def check(self, text: str, exact: bool = True) -> None:
        lines = text.splitlines()
        want = self.want()
        assert len(lines) > len(want)
        for line, (name, value) in zip(lines, want):
            label, *numbers = line.split()
            got = [int(n) if "x" not in n else float.fromhex(n) for n in numbers]
            assert label == name
            if exact:
                np.testing.assert_array_equal(got, np.ravel(value), err_msg=name)
            else:
                np.testing.assert_allclose(got, np.ravel(value), rtol=1e-12, atol=1e-13, err_msg=name)
        assert lines[-1] == "an index is out of range; unknown error"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    out = tmp_path_factory.mktemp("aot_c")
    build_all(out, "x86-64-v3")
    shared = [out / f"lib{n}.so" for n in ("rosenbrock", "softreg", "mixed")]
    strict = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"]
    run("gcc", *strict, "-O1", "-g", "-pthread", "-I", out, out / "main.c", *shared, f"-Wl,-rpath,{out}", "-o", out / "shared")
    return Program(out)


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_c_program_sees_the_numbers_of_python(program: Program, mode: int) -> None:
    """Mode 1 and 2: every buffer, the workspace included, ends or begins at an inaccessible page; and eight threads at once."""
    text = run(program.out / "shared", program.out / "inputs", mode)
    program.check(text)
    assert ("wrong 0" in text) == (mode > 0)


def test_valgrind_is_silent(program: Program) -> None:
    if shutil.which("valgrind") is None:
        pytest.skip("needs valgrind")
    run("valgrind", "-q", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite", program.out / "shared", program.out / "inputs", 0)


def test_static_library_from_cpp(program: Program) -> None:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    out = program.out
    shutil.copy(out / "main.c", out / "main.cpp")
    archives = [out / f"lib{n}.a" for n in ("rosenbrock", "softreg", "mixed")]
    run("g++", "-std=c++11", "-pedantic", "-Wall", "-Wextra", "-Werror", "-O1", "-pthread", "-static", "-I", out, out / "main.cpp", *archives, "-o", out / "static")
    program.check(run(out / "static", out / "inputs", 1))


def test_objects_link_together(program: Program) -> None:
    out = program.out
    objects = [out / f"{n}.o" for n in ("rosenbrock", "softreg", "mixed")]
    run("gcc", "-std=c99", "-O1", "-pthread", "-I", out, out / "main.c", *objects, "-o", out / "objects")
    program.check(run(out / "objects", out / "inputs", 2))


def test_pkg_config_and_cmake(program: Program, tmp_path: Path) -> None:
    out = program.out
    if shutil.which("pkg-config") is not None:
        flags = run("pkg-config", "--cflags", "--libs", "rosenbrock", env={**os.environ, "PKG_CONFIG_PATH": str(out)}).split()
        assert f"-I{out}" in flags and f"-L{out}" in flags and "-lrosenbrock" in flags
        assert run("pkg-config", "--modversion", out / "rosenbrock.pc").strip() == "0.1.0"
    if shutil.which("cmake") is None:
        pytest.skip("needs cmake")
    lines = ["cmake_minimum_required(VERSION 3.13)", "project(t C)", "set(CMAKE_C_STANDARD 99)", "find_package(Threads)", "add_executable(t main.c)"]
    for name in ("rosenbrock", "softreg", "mixed"):
        lines += [f"find_package({name} CONFIG REQUIRED)", f"target_link_libraries(t {name}::{name})"]
    (tmp_path / "CMakeLists.txt").write_text("\n".join([*lines, "target_link_libraries(t Threads::Threads)"]))
    shutil.copy(out / "main.c", tmp_path / "main.c")
    run("cmake", "-S", tmp_path, "-B", tmp_path / "b", f"-DCMAKE_PREFIX_PATH={out}")
    run("cmake", "--build", tmp_path / "b")
    program.check(run(tmp_path / "b" / "t", out / "inputs", 0))


def test_aarch64_program(program: Program, tmp_path: Path) -> None:
    """Numbers agree up to the order of sums, which follows the width of vectors."""
    if shutil.which("aarch64-linux-gnu-gcc") is None or shutil.which("qemu-aarch64") is None:
        pytest.skip("needs aarch64-linux-gnu-gcc and qemu-aarch64")
    build_all(tmp_path, "aarch64-linux-gnu")
    names = ("rosenbrock", "softreg", "mixed")
    flags = ["-std=c99", "-O1", "-pthread", "-I", tmp_path, tmp_path / "main.c"]
    run("aarch64-linux-gnu-gcc", *flags, "-static", *(tmp_path / f"lib{n}.a" for n in names), "-o", tmp_path / "static")
    run("aarch64-linux-gnu-gcc", *flags, *(tmp_path / f"lib{n}.so" for n in names), f"-Wl,-rpath,{tmp_path}", "-o", tmp_path / "shared")
    program.check(run("qemu-aarch64", tmp_path / "static", program.out / "inputs", 2), exact=False)
    program.check(run("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", tmp_path / "shared", program.out / "inputs", 0), exact=False)


def test_the_usage_in_the_header_compiles_as_written(tmp_path: Path) -> None:
    def ridge(x: Any, w: Any, lam: Any, k: Any) -> Any:
        return (x @ w * k).sum() + lam * (w * w).sum()

    aot.build(ridge, ["x: f64[n,d]", "w: f64[d]", "lam: f64", "k: i64"], grad=["w", "lam"], jvp=["lam"], hess=["lam"], out=tmp_path, emit=("h", "so"))
    text = (tmp_path / "ridge.h").read_text(encoding="utf-8")
    comments = re.findall(r"/\*\n(.*?) \*/\nint32_t", text, re.S)
    assert len(comments) == 4
    bodies = []
    for comment in comments:
        lines = [line[3:] for line in comment.splitlines()]
        usage = lines.index("Usage:")
        # "  lam  double one number, ..." is a variable, "  x  double [n, d]" an array, of which the caller has a pointer.
        named = re.findall(r"^  (\w+) +(\w+) (\[|one)", "\n".join(lines[:usage]), re.M)
        held = [f"{kind} {name} = 0;" if shape == "one" else f"{kind} *{name} = 0;" for name, kind, shape in named]
        bodies.append("{ " + " ".join(held) + " int64_t n = 1, d = 1;\n" + "\n".join(lines[usage + 1:]) + "\n free(workspace); }")
    source = tmp_path / "usage.c"
    source.write_text('#include <stdio.h>\n#include <stdlib.h>\n#include "ridge.h"\nint main(void) {\n' + "\n".join(bodies) + "\nreturn 0; }\n", encoding="utf-8")
    run("gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-c", source, "-o", tmp_path / "usage.o")
    run("gcc", "-x", "c++", "-Wall", "-Werror", "-fsyntax-only", source)
