"""The functions of one convolution as LLVM text."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from ..gemm.emit import Fn, Vec
from ..target import Target
from .choose import Plan, choose
from .forward import RUN_PARAMS, sum_functions
from .micro import Epilogue
from .pack import PACK_PARAMS, pack_function
from .spec import FORWARD, WEIGHT_GRAD, ConvSpec
from .taps import TapSum, ints, is_depthwise, tap_sums, weight_strides
from .weight_grad import plan_weights, unpack_functions, weight_functions

__all__ = ["ConvKernel", "emit", "supported"]


_PREFETCH = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"


@dataclass(frozen=True)
class ConvKernel:
    """``text``: LLVM functions without the declarations they share with other kernels, which are in ``declares``.

    "forward" and "input_grad": ``run(a, packed, out, bias, residual, batch, low, high)`` computes the units [low, high) of ``batch * units``; ``a`` is x or y.
    ``pack(weights, packed)`` makes the ``packed_bytes`` of packed weights first.
    "weight_grad": ``run(x, y, out, null, null, batch, low, high)`` computes the units [low, high) of ``units``. ``out`` is the result where ``pack`` is empty, else
    a workspace of ``packed_bytes``, and ``pack(out, weights)`` makes the result of it.
    """

    text: str
    declares: tuple[str, ...]
    run: str
    pack: str
    packed_bytes: int
    units: int


def supported(spec: ConvSpec, target: Target) -> bool:
    """Whether ``emit`` has a kernel for ``spec``: known sizes (but for the batch), f32 or f64, results with adjacent channels."""
    sizes = spec.sizes[1:]
    if spec.dtype not in ("f32", "f64") or not all(isinstance(d, int) for d in sizes) or not 1 <= spec.rank <= 3:
        return False
    if "strided" in spec.layouts or spec.activation not in (None, "relu"):
        return False
    if spec.kind != FORWARD and (spec.bias or spec.activation or spec.residual):
        return False
    if spec.kind == WEIGHT_GRAD:
        return "strided" not in spec.layouts and not spec.packed and plan_weights(spec, target) is not None
    return spec.layouts[2 if spec.kind == FORWARD else 0] == "channels_last" and not spec.accumulate


def emit(spec: ConvSpec, target: Target, name: str) -> ConvKernel:
    """The kernels of a supported ``spec``; all functions' names begin with ``name``."""
    if spec.kind == WEIGHT_GRAD:
        return _weight_grad(spec, target, name)
    ep = Epilogue(spec.bias, spec.residual, spec.activation == "relu")
    sums = tap_sums(spec)
    plans = [choose(ts, target) for ts in sums]
    vec = Vec(spec.dtype, target.lanes(spec.dtype), target.fma)
    texts, offsets, at = [], [], 0
    lane, k, group = (weight_strides(spec)[0], 0, 0) if is_depthwise(spec) else _weight_steps(spec)
    for i, (ts, plan) in enumerate(zip(sums, plans)):
        texts += sum_functions(f"{name}_run{i}", plan, ep)
        texts += pack_function(f"{name}_pack{i}", plan, _tap_numbers(spec, ts), lane, k, weight_strides(spec)[2], group)
        offsets.append(at)
        at += -(-plan.packed_bytes // 64) * 64
    texts += _together(name, plans, offsets)
    declares = (*vec.declares(), _PREFETCH)
    return ConvKernel("\n".join(texts), declares, f"{name}_run", f"{name}_pack", at, sum(_units_of(p) for p in plans))


def _weight_grad(spec: ConvSpec, target: Target, name: str) -> ConvKernel:
    plan = plan_weights(spec, target)
    assert plan is not None
    texts = weight_functions(f"{name}_run", plan)
    filter_, channel, tap = weight_strides(spec)
    if not plan.direct:
        texts += unpack_functions(f"{name}_pack", replace(plan, accumulate=spec.accumulate), filter_, channel, tap)
    size = 0 if plan.direct else plan.groups * plan.group_bytes
    return ConvKernel("\n".join(texts), (*plan.vec.declares(), _PREFETCH), f"{name}_run", "" if plan.direct else f"{name}_pack", size, plan.units)


def _units_of(plan: Plan) -> int:
    """Units of one image."""
    return plan.sum.groups * plan.blocks * plan.units


def _weight_steps(spec: ConvSpec) -> tuple[int, int, int]:
    """Bytes between weights along the output channel, the input channel of the sum, and between groups."""
    filter_, channel, _ = weight_strides(spec)
    group = filter_ * (ints((spec.filters,))[0] // max(1, spec.groups))
    return (filter_, channel, group) if spec.kind == FORWARD else (channel, filter_, group)


def _tap_numbers(spec: ConvSpec, ts: TapSum) -> list[int]:
    kernel = ints(spec.kernel)
    steps = [math.prod(kernel[i + 1:]) for i in range(len(kernel))]
    return [sum(t * s for t, s in zip(taps, steps)) for taps in itertools.product(*(a.taps for a in ts.axes))]


def _together(name: str, plans: list[Plan], offsets: list[int]) -> list[str]:
    """``name_run``: the units of all sums, one sum after the other; ``name_pack``: the weights of all."""
    run = Fn(f"{name}_run", RUN_PARAMS, linkage="hidden", attrs="nounwind")
    before = 0
    for i, (plan, at) in enumerate(zip(plans, offsets)):
        count = _units_of(plan)
        low, high = run.sub("%low", run.mul("%batch", before)), run.sub("%high", run.mul("%batch", before))
        total = run.mul("%batch", count)
        low = run.select(run.cmp("sgt", low, 0), low, 0)
        high = run.min(high, total)
        run.raw(f"call void @{name}_run{i}(ptr %x, ptr {run.at('%w', at)}, ptr %y, ptr %bias, ptr %residual, i64 %batch, i64 {low}, i64 {high})")
        before += count
    run.ret()
    run.end()
    pack = Fn(f"{name}_pack", PACK_PARAMS, linkage="hidden", attrs="nounwind")
    for i, at in enumerate(offsets):
        pack.raw(f"call void @{name}_pack{i}(ptr %weights, ptr {pack.at('%packed', at)})")
    pack.ret()
    pack.end()
    return [run.text(), pack.text()]
