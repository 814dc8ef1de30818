"""GEMM kernels of aotgrad against NumPy's BLAS (and torch's, where installed), one thread, beside the peak of the multiplier.

    env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE python benchmarks/gemm_probe.py [--target NAME] [--dtype f32] [--set square|mlp|odd|transposed|vector]

Thread CPU time, candidates interleaved, the 20th percentile of the rounds; values are compared before anything is timed. ``own`` and ``own'`` are the same
kernel twice (the A/A row): no difference finer than theirs means anything. ``call`` is the same call with an empty matrix: a ctypes call of 15 arguments
costs a microsecond that compiled programs do not pay, so the columns GF/s are without it for own, with everything for the peers.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import os
import time
from collections.abc import Callable

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from aotgrad.codegen import elf, gemm, llvm
from aotgrad.codegen.peaks import fma_peak
from aotgrad.codegen.target import Target
from aotgrad_runtime.loader import load_bytes

torch = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
SETS = {
    "square": [(n, n, n, "nn") for n in (8, 16, 32, 64, 127, 128, 256, 512, 1024, 2048)],
    "mlp": [(128, 128, 64, "nn"), (128, 64, 128, "nn"), (128, 10, 64, "nn"), (64, 10, 128, "tn"), (128, 64, 10, "nt"), (128, 64, 128, "tn"),
            (128, 128, 64, "nt"), (64, 128, 128, "tn")],
    "odd": [(127, 131, 129, "nn"), (3136, 64, 576, "nn"), (784, 128, 1152, "nn"), (49, 512, 4608, "nn"), (32, 1024, 1024, "nn"), (8, 256, 256, "nn"),
            (4, 256, 256, "nt"), (1000, 4, 1000, "nn")],
    "transposed": [(n, n, n, k) for n in (512, 1024, 2048) for k in ("tn", "nt", "tt")],
    "vector": [(1, n, n, k) for n in (256, 1024, 4096) for k in ("nn", "nt")] + [(n, 1, n, k) for n in (256, 1024, 4096) for k in ("nn", "tn")],
}


def percentile(candidates: list[Callable[[], object]], budget: float) -> list[float]:
    """Seconds a call of each candidate, the 20th percentile of interleaved rounds."""
    rounds, repeats = 15, []
    for f in candidates:
        f()
        start = time.thread_time()
        for _ in range(3):
            f()
        repeats.append(max(1, int(budget / rounds / len(candidates) / max((time.thread_time() - start) / 3, 1e-7))))
    times: list[list[float]] = [[] for _ in candidates]
    for _ in range(rounds):
        for f, n, t in zip(candidates, repeats, times):
            start = time.thread_time()
            for _ in range(n):
                f()
            t.append((time.thread_time() - start) / n)
    return [sorted(t)[rounds // 5] for t in times]


def build(dtype: str, target: Target) -> tuple[Callable[..., None], Callable[..., int]]:
    start = time.thread_time()
    made = gemm.module(dtype, target)
    texted = time.thread_time()
    library = load_bytes(elf.link_shared([llvm.compile_object(made.text, target, passes="none")], list(made.symbols), "libgemm.so"))
    print(f"# {dtype}: text {1e3 * (texted - start):.1f} ms, compile, link and load {1e3 * (time.thread_time() - texted):.1f} ms CPU")
    i, p = ctypes.c_int64, ctypes.c_void_p
    run, size = (library.address(s) for s in made.symbols)
    return ctypes.CFUNCTYPE(ctypes.c_int32, i, i, i, p, i, i, p, i, i, p, i, i, p, p, p, p, p)(run), ctypes.CFUNCTYPE(i, *[i] * 7)(size)


def candidates(run, workspace, m: int, n: int, k: int, kind: str, dtype) -> tuple[list[Callable[[], object]], list[object]]:  # type: ignore[no-untyped-def]
    """own, own again, the empty call, numpy, torch; and what must stay alive."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    a, b = np.asfortranarray(a) if kind[0] == "t" else a, np.asfortranarray(b) if kind[1] == "t" else b
    c, d = np.empty((m, n), dtype), np.empty((m, n), dtype)
    sa, sb = ([s // a.itemsize for s in x.strides] for x in (a, b))
    scratch = np.empty(workspace(m, n, k, *sa, *sb) + 64, np.uint8)
    aligned = scratch.ctypes.data + -scratch.ctypes.data % 64
    args = (m, n, k, a.ctypes.data, *sa, b.ctypes.data, *sb, c.ctypes.data, n, 0, aligned, None, None, None, None)
    empty = (0, *args[1:])
    own = lambda: run(*args)
    out: list[Callable[[], object]] = [own, own, lambda: run(*empty), lambda: np.matmul(a, b, out=d)]
    if torch is not None:
        ta, tb, tc = torch.from_numpy(a), torch.from_numpy(b), torch.empty((m, n), dtype=getattr(torch, np.dtype(dtype).name))
        out.append(lambda: torch.mm(ta, tb, out=tc))
    for f in out:
        f()
    np.testing.assert_allclose(c, d, rtol=0, atol=4 * np.sqrt(k) * np.finfo(dtype).eps * np.abs(d).max() + 1e-30)
    return out, [a, b, c, d, scratch]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="native")
    parser.add_argument("--dtype", choices=("f32", "f64"), action="append")
    parser.add_argument("--set", choices=tuple(SETS), action="append")
    parser.add_argument("--seconds", type=float, default=0.6, help="for each row")
    options = parser.parse_args()
    if torch is not None:
        torch.set_num_threads(1)
    target = Target.named(options.target)
    for variable in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        if variable in os.environ:
            print(f"# warning: {variable} is set; NumPy's rows are not its best")
    for dtype in options.dtype or ("f32", "f64"):
        run, workspace = build(dtype, target)
        best = fma_peak(dtype)
        print(f"# {target.key}, numpy {np.__version__}, torch {torch.__version__ if torch else 'absent'}, peak {best:.0f} GF/s")
        print(f"{'M,N,K':>20} own GF/s  own'  %peak  numpy" + ("  torch" if torch else "") + "  own/numpy" + ("  own/torch" if torch else "") + "  call us")
        for name in options.set or SETS:
            for m, n, k, kind in SETS[name]:
                fs, alive = candidates(run, workspace, m, n, k, kind, {"f32": np.float32, "f64": np.float64}[dtype])
                own, again, empty, *peers = percentile(fs, options.seconds)
                del alive
                work = 2e-9 * m * n * k
                rates = [work / max(t - empty, 1e-8) for t in (own, again)]
                rest = [work / t for t in peers]
                print(f"{f'{m},{n},{k} {kind}':>20} {rates[0]:8.1f} {rates[1]:6.1f} {100 * rates[0] / best:5.0f} "
                      + " ".join(f"{r:6.1f}" for r in rest) + "   " + " ".join(f"{t / own:8.2f}" for t in peers) + f"  {1e6 * empty:.2f}")


if __name__ == "__main__":
    main()
