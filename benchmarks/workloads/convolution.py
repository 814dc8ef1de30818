"""The twenty convolutions of ResNet-18 (eleven distinct) at 224 x 224, one thread, float32: forward, gradient of the input, gradient of the weights, beside torch.

The kernels are called through ctypes with pointers at hand, weights packed before, as compiled functions keep them for tensors; packing at each call is a row of its own.
What they cost inside a compiled function is in the workloads of whole models.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from aotgrad.codegen import elf, llvm
from aotgrad.codegen.conv.emit import emit
from aotgrad.codegen.conv.spec import ConvSpec
from aotgrad.codegen.target import Target
from aotgrad_runtime.loader import load_bytes

from .. import peers
from ..harness import OURS, Bench, Candidate, geometric_mean
from ..limits import fma_peak, work

# channels, filters, size, kernel, stride, padding, how often in ResNet-18
LAYERS = (
    (3, 64, 224, 7, 2, 3, 1), (64, 64, 56, 3, 1, 1, 4), (64, 128, 56, 3, 2, 1, 1), (128, 128, 28, 3, 1, 1, 3), (64, 128, 56, 1, 2, 0, 1), (128, 256, 28, 3, 2, 1, 1),
    (256, 256, 14, 3, 1, 1, 3), (128, 256, 28, 1, 2, 0, 1), (256, 512, 14, 3, 2, 1, 1), (512, 512, 7, 3, 1, 1, 3), (256, 512, 14, 1, 2, 0, 1),
)
KINDS = ("forward", "input_grad", "weight_grad")
PACKING = "aotgrad, packing weights"
LAST, FIRST, PRIMITIVE = peers.LAST, peers.FIRST, "the oneDNN primitive alone"
TOLERANCE = 2e-5
OF_PEAK, FULL, LIMITS = 0.75, 0.85, {LAST: 1.1, FIRST: 1.5, PRIMITIVE: 1.0}
ROUNDS = 15  # of the primitive's time beside the kernel's


def run(bench: Bench) -> None:
    """All layers, batch 1 and 16; the first layer has no gradient of its input."""
    peak = fma_peak("f32")
    bench.fact("multiply-add peak float32", peak, "GFLOP/s")
    for batch, kind in itertools.product((1,) if bench.quick else (1, 16), KINDS):
        done = spent = 0.0
        ratios: dict[str, list[float]] = {name: [] for name in LIMITS}
        for layer in LAYERS[4:5] if bench.quick else LAYERS[kind == "input_grad":]:
            rows, flops = _layer(bench, batch, kind, layer)
            seconds = rows[OURS]["seconds"]
            done, spent = done + layer[-1] * flops, spent + layer[-1] * seconds
            bench.fact(f"{_title(batch, kind, layer)}: aotgrad", flops / seconds / 1e9, "GFLOP/s", f"{100 * flops / seconds / 1e9 / peak:.0f} % of the peak")
            full = flops / seconds / 1e9 >= FULL * peak
            for name, found in ratios.items():
                if name in rows:
                    ratio = rows[name]["seconds"] / seconds
                    found.append(max(ratio, LIMITS[name]) if full else ratio)
        bench.target(f"batch {batch}, {kind}: sum over the layers, of the multiply-add peak", done / spent / 1e9 / peak, OF_PEAK, at_least=True, unit="of the peak")
        for name, found in ratios.items():
            what = f"batch {batch}, {kind}: speed over {name}, what is at {FULL:g} of the peak counted as met"
            bench.target(f"{what}, geometric mean", geometric_mean(found), LIMITS[name], at_least=True)
            bench.target(f"{what}, least", min(found, default=math.nan), round(0.9 * LIMITS[name], 2), at_least=True)


def _title(batch: int, kind: str, layer: tuple[int, ...]) -> str:
    c, o, size, k, s, _, _ = layer
    return f"batch {batch}, {kind}, {k} x {k} / {s}, {c} -> {o} @ {size}"


def _layer(bench: Bench, batch: int, kind: str, layer: tuple[int, ...]) -> tuple[dict[str, dict[str, Any]], float]:
    c, o, size, k, s, p, _ = layer
    q = (size + 2 * p - k) // s + 1
    spec = ConvSpec(kind, "f32", 1, (s, s), ((p, p), (p, p)), (1, 1), batch, c, o, (size, size), (k, k), (q, q), ("channels_last",) * 3)
    rng = np.random.default_rng(size)
    x, w, y = (_channels_last(rng, shape) for shape in ((batch, c, size, size), (o, c, k, k), (batch, o, q, q)))
    out = _reference(kind, x, w, y, s, p)
    own, theirs = _own(spec, x, w, y), bench.peer("torch", lambda: _torch(kind, x, w, y, s, p))
    flops, title = 2.0 * batch * o * c * q * q * k * k, _title(batch, kind, layer)
    rows = bench.case(title, [*own, *theirs], [out], TOLERANCE, work=work(flops, x.nbytes + w.nbytes + y.nbytes))
    if LAST in rows:
        ratio = _primitive(next(c for c in theirs if c.name == LAST).call, own[0].call)
        if ratio is not None:
            bench.fact(f"{title}: {PRIMITIVE} over aotgrad", ratio, "x", "as oneDNN itself reports its time, without what torch does around it")
            rows[PRIMITIVE] = {"seconds": ratio * rows[OURS]["seconds"]}
    return rows, flops


def _channels_last(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Normal values of a shape [n, channels, height, width], channels last in memory."""
    n, c, h, v = shape
    return rng.standard_normal((n, h, v, c), dtype=np.float32).transpose(0, 3, 1, 2)


def _reference(kind: str, x: Any, w: Any, y: Any, s: int, p: int) -> Any:
    """The result in float64: one matrix product for each place of the kernel."""
    last = (0, 2, 3, 1)
    x64 = np.pad(x.transpose(last).astype(np.float64), ((0, 0), (p, p), (p, p), (0, 0)))
    y64, w64 = y.transpose(last).astype(np.float64), w.astype(np.float64)
    if kind == "input_grad":
        x64[:] = 0
    elif kind == "forward":
        y64[:] = 0
    else:
        w64[:] = 0
    _, h, v, _ = y64.shape
    for i, j in itertools.product(range(w.shape[2]), range(w.shape[3])):
        part = x64[:, i:i + s * (h - 1) + 1:s, j:j + s * (v - 1) + 1:s]
        if kind == "input_grad":
            part += y64 @ w64[:, :, i, j]
        elif kind == "forward":
            y64 += part @ w64[:, :, i, j].T
        else:
            w64[:, :, i, j] = np.tensordot(y64, part, ((0, 1, 2), (0, 1, 2)))
    found = {"input_grad": x64[:, p:x64.shape[1] - p, p:x64.shape[2] - p], "forward": y64}.get(kind)
    return w64 if found is None else found.transpose(0, 3, 1, 2)


def _own(spec: ConvSpec, x: Any, w: Any, y: Any) -> list[Candidate]:
    """The kernel on weights that are kept packed, and the one that packs them in the call."""
    rows = [_called(replace(spec, kept=spec.kind != "weight_grad"), x, w, y, OURS)]
    return rows if spec.kind == "weight_grad" else [*rows, _called(spec, x, w, y, PACKING)]


def _called(spec: ConvSpec, x: Any, w: Any, y: Any, name: str) -> Candidate:
    target = Target.native()
    made = emit(spec, target, "bench")
    symbols = [made.run, made.pack] if made.pack else [made.run]
    library = load_bytes(elf.link_shared([llvm.compile_object("\n".join([*made.declares, made.text]), target, passes="none")], symbols, "conv.so"))
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    kernel = ctypes.CFUNCTYPE(None, *[pointer] * 4, *[number] * 3)(library.address(made.run))
    pack = ctypes.CFUNCTYPE(None, pointer, pointer)(library.address(made.pack)) if made.pack else None
    result = np.empty_like({"forward": y, "input_grad": x, "weight_grad": w}[spec.kind])
    raw = np.zeros(made.packed_bytes + 64, np.uint8)
    packed = raw.ctypes.data + -raw.ctypes.data % 64
    work = np.zeros(made.work_bytes, np.uint8)
    units = made.units * (1 if spec.kind == "weight_grad" else x.shape[0])
    first, second = {"forward": (x.ctypes.data, packed), "input_grad": (y.ctypes.data, packed), "weight_grad": (x.ctypes.data, y.ctypes.data)}[spec.kind]
    made_at = result.ctypes.data
    read = work.ctypes.data if made.work_bytes else w.ctypes.data if made.staged else None
    third, fourth = (packed if made.packed_bytes else None, made_at) if spec.kind == "weight_grad" else (made_at, read)
    args = (first, second, third, fourth, x.shape[0], 0, units)
    weights, alive = w.ctypes.data, (library, raw, work, x, w, y)

    def values(_out: Any) -> list[Any]:
        assert alive
        return [result]

    def packing() -> None:
        pack(weights, packed)
        kernel(*args)

    if pack is not None:
        pack(weights, packed)
    return Candidate(name, packing if name == PACKING else lambda: kernel(*args), values)


def _torch(kind: str, x: Any, w: Any, y: Any, s: int, p: int) -> list[Candidate]:
    torch = peers.torch()
    found = []
    for name, layout in ((LAST, torch.channels_last), (FIRST, torch.contiguous_format)):
        tx, tw, ty = (torch.from_numpy(a).contiguous(memory_format=layout) for a in (x, w, y))
        found.append(Candidate(name, _torch_call(torch, kind, tx, tw, ty, ([s, s], [p, p], [1, 1], False, [0, 0], 1)), lambda out: [out.numpy()]))
    return found


def _torch_call(torch: Any, kind: str, x: Any, w: Any, y: Any, args: tuple[Any, ...]) -> Callable[[], Any]:
    if kind == "forward":
        return lambda: torch.ops.aten.convolution(x, w, None, *args)
    if kind == "input_grad":
        return lambda: torch.ops.aten.convolution_backward(y, x, w, None, *args, [True, False, False])[0]
    return lambda: torch.ops.aten.convolution_backward(y, x, w, None, *args, [False, True, False])[1]


def _primitive(theirs: Callable[[], Any], own: Callable[[], Any]) -> float | None:
    """oneDNN's own convolution, by the times that it prints, over the kernel; medians of wall-clock times in turn. None where torch takes another way."""
    mkldnn = peers.torch().backends.mkldnn
    flush, clock, times = ctypes.CDLL(None).fflush, time.perf_counter, []
    sys.stdout.flush()
    with tempfile.TemporaryFile() as printed:
        kept = os.dup(1)
        os.dup2(printed.fileno(), 1)
        try:
            with mkldnn.verbose(mkldnn.VERBOSE_ON):
                for _ in range(ROUNDS):
                    theirs()
                    start = clock()
                    own()
                    times.append(clock() - start)
        finally:
            flush(None)
            os.dup2(kept, 1)
            os.close(kept)
        printed.seek(0)
        lines = [line.split(",") for line in printed.read().decode(errors="replace").splitlines()]
    found = [float(line[-1]) / 1e3 for line in lines if "exec" in line and "convolution" in line]
    return float(np.median(found) / np.median(times)) if len(found) == ROUNDS else None
