"""Libraries with threads: the pool of the library from C, that of the process from Python, and what such a library needs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aotgrad as ag
from aotgrad.codegen import pool as pool_source
from aotgrad.codegen.target import Target
from aotgrad_runtime import pool
from aotgrad_runtime.errors import AotgradError

pytestmark = pytest.mark.skipif(pool.unusable() is not None, reason="no thread pool here")

ARGS = ["x: f64[n,k]", "w: f64[k,m]"]
N, K, M = 400, 300, 350


def net(x: Any, w: Any) -> Any:
    """A test."""
    return (ag.tanh(x @ w) ** 2).sum()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return ag.aot.build(net, ARGS, grad=("x", "w"), name="net", out=tmp_path_factory.mktemp("net"), threads=4)


def data() -> Any:
    rng = np.random.default_rng(0)
    return rng.normal(size=(N, K)) / 8, rng.normal(size=(K, M)) / 8


MAIN = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "net.h"
enum { N = 400, K = 300, M = 350 };
static double x[N * K], w[K * M], value, gx[N * K], gw[K * M];
static net_pool pool, never;

static void one(net_pool *p) {
  double v, *a = malloc(sizeof gx), *b = malloc(sizeof gw);
  void *ws = malloc((size_t)net_grad_workspace(N, K, M));
  if (net_grad(x, w, N, K, M, &v, a, b, ws, p)) exit(2);
  if (memcmp(&v, &value, 8) || memcmp(a, gx, sizeof gx) || memcmp(b, gw, sizeof gw)) exit(3);
  free(a); free(b); free(ws);
}
static void *many(void *p) { for (int i = 0; i < 10; i++) one(p); return 0; }
static int child(void) {
  int status; pid_t pid = fork();
  if (!pid) { one(&pool); one(&pool); net_pool_free(&pool); _exit(0); }
  waitpid(pid, &status, 0);
  return status;
}
int main(int argc, char **argv) {
  FILE *f = fopen(argv[1], "rb");
  if (argc < 2 || fread(x, 8, N * K, f) != N * K || fread(w, 8, K * M, f) != K * M) return 9;
  void *ws = malloc((size_t)net_grad_workspace(N, K, M));
  if (net_grad(x, w, N, K, M, &value, gx, gw, ws, 0)) return 1;
  printf("%a\n", value);
  if (net_pool_init(&pool, 3) != 3 || net_pool_init(&never, 1) != 1) return 4;
  for (int i = 0; i < 20; i++) one(&pool);
  if (child()) return 5;
  pthread_t t[8];
  for (int i = 0; i < 8; i++) pthread_create(&t[i], 0, many, &pool);
  if (child()) return 6;                       /* while others use the pool */
  for (int i = 0; i < 8; i++) pthread_join(t[i], 0);
  one(&never);
  net_pool_free(&never);
  for (int i = 0; i < 3; i++) { net_pool_free(&pool); one(&pool); }
  net_pool_free(&pool);
  puts("good");
  return 0;
}
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.parametrize("kind", ["shared", "static"])
def test_from_c(built: Any, kind: str) -> None:
    folder = Path(built.library).parent
    (folder / "main.c").write_text(MAIN)
    (folder / "data").write_bytes(b"".join(a.tobytes() for a in data()))
    link = [str(folder / "libnet.a")] if kind == "static" else [f"-L{folder}", "-lnet", f"-Wl,-rpath,{folder}"]
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{folder}"]
    subprocess.run(["gcc", *flags, str(folder / "main.c"), "-o", str(folder / kind), *link], check=True, timeout=120)
    done = subprocess.run([str(folder / kind), str(folder / "data")], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and done.stdout.splitlines()[1:] == ["good"], (done.returncode, done.stderr)
    assert float.fromhex(done.stdout.split()[0]) == ag.compile(net)(*data())


def test_from_python(built: Any, tmp_path: Path) -> None:
    alone = ag.load(ag.aot.build(net, ARGS, grad=("x", "w"), name="net", out=tmp_path).library)
    for a, b in zip(ag.load(built.library).net_grad(*data()), alone.net_grad(*data())):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
    assert pool.started() >= 1


def test_what_it_needs(built: Any, tmp_path: Path) -> None:
    plain = ag.aot.build(net, ARGS, name="net", out=tmp_path)
    for path in (plain.library, plain.files["o"]):
        assert not any(name.encode() in path.read_bytes() for name in ("pthread", "pool"))
    assert "pool" not in plain.files["h"].read_text()
    if shutil.which("readelf"):
        shown = subprocess.run(["readelf", "-dW", "--dyn-syms", str(built.library)], capture_output=True, text=True, check=True).stdout
        assert "NEEDED" not in shown
        assert sorted(line.split()[-1] for line in shown.splitlines() if "UND" in line.split() and not line.endswith("UND ")) == sorted(pool_source.IMPORTS)


def test_an_argument_called_pool(tmp_path: Path) -> None:
    made = ag.aot.build(lambda pool: ag.exp(pool), ["pool: f64[n]"], name="net", out=tmp_path, threads=2)
    text = made.files["h"].read_text()
    assert "const double *pool, int64_t n, double *value, void *workspace, net_pool *pool_);" in text.replace("\n", " ").replace("  ", " ")
    assert ag.load(made.library).net(pool=np.zeros(3)).tolist() == [1.0] * 3


def test_other_processors(tmp_path: Path) -> None:
    made = ag.aot.build(net, ARGS, name="net", out=tmp_path, threads=True, target="aarch64-linux-gnu")
    assert b"net_pool_init" in made.library.read_bytes()
    with pytest.raises(AotgradError, match="no thread pool for riscv64"):
        pool_source.pool_text(Target("riscv64-unknown-linux-gnu", "generic", "", 128))


@pytest.mark.parametrize("given", [0, -1, 65, 2.0, "auto", "yes"])
def test_bad_numbers(given: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"threads=.*from 1 to 64"):
        ag.aot.build(net, ARGS, out=tmp_path / "none", threads=given)
    assert not (tmp_path / "none").exists()
