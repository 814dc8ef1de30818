"""The functions of one convolution as LLVM text."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import replace

from aotgrad_runtime.records import record

from ..gemm.emit import Fn, Val, Vec
from ..target import Target
from .choose import BLOCK, Plan, choose
from .forward import RUN_PARAMS, STAGE_BYTES, sum_functions
from .pack import PACK_PARAMS, Steps, pack_function
from .spec import FORWARD, WEIGHT_GRAD, ConvSpec
from .taps import TapSum, ints, is_depthwise, tap_sums, weight_strides
from .weight_grad import plan_weights, weight_functions
from .winograd import Tiles, plan_tiles, tile_functions
from .winograd_weights import plan_weight_tiles, weight_tile_functions

__all__ = ["ConvKernel", "emit", "supported"]


_CALLED = re.compile(r"@[\w.]+")
_PREFETCH = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"


@record(frozen=True)
class Pieces:
    """What units are where they go by (image, piece, block): a piece is ``unit`` of an image's ``rows``, each of ``length`` positions in the order of memory; all its
    channels are ``blocks`` units."""

    unit: int
    rows: int
    length: int
    blocks: int

    @property
    def count(self) -> int:
        """Pieces of an image."""
        return -(-self.rows // self.unit)


@record(frozen=True)
class ConvKernel:
    """``text``: LLVM functions without the declarations they share with other kernels, which are in ``declares``.

    "forward" and "input_grad": ``run(a, packed, out, weights, batch, low, high)`` computes the units [low, high) of ``batch * units``; ``a`` is x or y.
    ``pack(weights, packed)`` makes the ``packed_bytes`` of packed weights first. Where these are ``staged`` it makes room for one block of them: who runs units at
    the same time needs room of its own.
    With ``work_bytes`` it is ``run(a, packed, out, work, batch, low, high)``: who runs units at the same time needs such a workspace of its own.
    "weight_grad": ``run(x, y, work, weights, batch, low, high)`` computes the units [low, high) of ``units``, in a workspace of ``packed_bytes``, which is also
    ``staged``; there is no ``pack``.
    """

    text: str
    declares: tuple[str, ...]
    run: str
    pack: str
    packed_bytes: int
    units: int
    pieces: Pieces | None = None  # of "forward"; None where the units of a piece lie apart
    staged: bool = False
    work_bytes: int = 0


def supported(spec: ConvSpec, target: Target) -> bool:
    """Whether ``emit`` has a kernel for ``spec``: known sizes (but for the batch), f32 or f64, results with adjacent channels (or positions along a row)."""
    sizes = spec.sizes[1:]
    if spec.dtype not in ("f32", "f64") or not all(isinstance(d, int) for d in sizes) or not 1 <= spec.rank <= 3:
        return False
    if "strided" in spec.layouts:
        return False
    if spec.kind == WEIGHT_GRAD:
        return plan_weights(spec, target) is not None
    return spec.kind == FORWARD or spec.layouts[0] == "channels_last" or spec.stride[-1] == 1


def emit(spec: ConvSpec, target: Target, name: str) -> ConvKernel:
    """The kernels of a supported ``spec``; all functions' names begin with ``name``."""
    if spec.kind == WEIGHT_GRAD:
        return _weight_grad(spec, target, name)
    sums = tap_sums(spec)
    tiles = plan_tiles(sums[0], target) if len(sums) == 1 else None
    if tiles is not None:
        return _winograd(spec, tiles, name)
    plans, pieces = _in_turn([choose(ts, target) for ts in sums])
    outside = any(p.blocks_outside for p in plans)
    staged = outside and not spec.kept
    if outside:
        plans = [replace(choose(p.sum, target, BLOCK) if spec.kept else p, blocks_outside=True, ahead=spec.kept and not p.sum.depthwise) for p in plans]
    vec = Vec(spec.dtype, target.lanes(spec.dtype), target.fma)
    texts, offsets, at = [], [], 0
    lane, k, group = (weight_strides(spec)[0], 0, 0) if is_depthwise(spec) else _weight_steps(spec)
    steps = Steps(lane, k, weight_strides(spec)[2], group)
    for i, (ts, plan) in enumerate(zip(sums, plans)):
        texts += sum_functions(f"{name}_run{i}", plan, (f"{name}_pack{i}_block", i) if staged else None)
        texts += pack_function(f"{name}_pack{i}", plan, _tap_numbers(spec, ts), steps)
        offsets.append(0 if staged else at)
        at += -(-plan.packed_bytes // 64) * 64
    at = STAGE_BYTES + max(-(-p.block_bytes // 64) * 64 for p in plans) if staged else at
    texts = _merged([*texts, *_together(name, plans, pieces, offsets, staged)])
    declares = (*vec.declares(), _PREFETCH)
    units = pieces * sum(p.sum.groups * p.blocks for p in plans) if pieces else sum(_units_of(p) for p in plans)
    return ConvKernel("\n".join(texts), declares, f"{name}_run", f"{name}_pack", at, units, _pieces_of(plans[0]) if spec.kind == FORWARD else None, staged)


def _merged(texts: list[str]) -> list[str]:
    """The functions without those that are equal to an earlier one but for their names, which is called instead: classes of positions often have the same tiles."""
    while True:
        names = [_CALLED.search(text)[0] for text in texts]  # type: ignore[index]
        first: dict[str, str] = {}
        twins = {}
        for name, text in zip(names, texts):
            one = first.setdefault(text.replace(name, "@", 1), name)
            if one != name:
                twins[name] = one
        if not twins:
            return texts
        texts = [_renamed(text, twins) for name, text in zip(names, texts) if name not in twins]


def _renamed(text: str, names: dict[str, str]) -> str:
    return _CALLED.sub(lambda found: names.get(found[0], found[0]), text)


def _winograd(spec: ConvSpec, plan: Tiles, name: str) -> ConvKernel:
    lane, k, group = _weight_steps(spec)
    texts = tile_functions(name, plan, _tap_numbers(spec, plan.sum), Steps(lane, k, weight_strides(spec)[2], group))
    (down, across), unit = plan.sum.axes, 2 * plan.rows
    pieces = Pieces(unit, down.count, across.count, 1) if spec.kind == FORWARD else None
    declares = (*plan.vec.declares(), _PREFETCH)
    return ConvKernel("\n".join(texts), declares, f"{name}_run", f"{name}_pack", plan.packed_bytes, plan.units, pieces, work_bytes=plan.work_bytes)


def _pieces_of(plan: Plan) -> Pieces | None:
    blocks, length = plan.sum.groups * plan.blocks, plan.sum.axes[-1].count
    return Pieces(plan.unit, plan.rows, length, blocks) if plan.rows and blocks and length and not plan.blocks_outside else None


def _weight_grad(spec: ConvSpec, target: Target, name: str) -> ConvKernel:
    tiles = plan_weight_tiles(spec, target)
    if tiles is not None:
        declares = (*tiles.vec.declares(), _PREFETCH)
        return ConvKernel("\n".join(weight_tile_functions(f"{name}_run", tiles)), declares, f"{name}_run", "", tiles.work_bytes, tiles.units, staged=True)
    plan = plan_weights(spec, target)
    assert plan is not None
    texts = weight_functions(f"{name}_run", plan)
    return ConvKernel("\n".join(texts), (*plan.vec.declares(), _PREFETCH), f"{name}_run", "", plan.work_bytes, plan.units, staged=True)


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


def _in_turn(plans: list[Plan]) -> tuple[list[Plan], int]:
    """The sums in pieces of rows of the same number, 0 where one sum goes after the other. Classes of positions write every second (third, ...) position of
    the same rows: in turn, these are in the cache when the next class comes (1.16 of the speed where memory is the limit)."""
    if len(plans) < 2 or any(p.blocks_outside for p in plans):
        return plans, 0
    pieces = max(p.units for p in plans)
    return [replace(p, unit=max(1, -(-p.rows // pieces))) for p in plans], pieces


def _together(name: str, plans: list[Plan], pieces: int, offsets: list[int], staged: bool) -> list[str]:
    """``name_run``: the units of all sums; ``name_pack``: the weights of all, or none yet where a block is packed when it is needed."""
    run = Fn(f"{name}_run", RUN_PARAMS, linkage="hidden", attrs="nounwind")

    def call(i: int, low: Val, high: Val) -> None:
        w = run.at("%w", offsets[i])
        run.raw(f"call void @{name}_run{i}(ptr %x, ptr {w}, ptr %y, ptr %weights, i64 %batch, i64 {low}, i64 {high})")

    if pieces:
        _turns(run, plans, pieces, call)
    else:
        before = 0
        for i, plan in enumerate(plans):
            low, high = run.sub("%low", run.mul("%batch", before)), run.sub("%high", run.mul("%batch", before))
            call(i, run.max(low, 0), run.min(high, run.mul("%batch", _units_of(plan))))
            before += _units_of(plan)
    run.ret()
    run.end()
    pack = Fn(f"{name}_pack", PACK_PARAMS, linkage="hidden", attrs="nounwind")
    if staged:
        pack.raw("store i64 -1, ptr %packed, align 8")
    for i, at in enumerate([] if staged else offsets):
        pack.raw(f"call void @{name}_pack{i}(ptr %weights, ptr {pack.at('%packed', at)})")
    pack.ret()
    pack.end()
    return [run.text(), pack.text()]


def _turns(f: Fn, plans: list[Plan], pieces: int, call: Callable[[int, Val, Val], None]) -> None:
    """Units in the order (image, piece, sum, group and block)."""
    blocks = [p.sum.groups * p.blocks for p in plans]
    if not sum(blocks):
        return

    def unit(v: list[str]) -> list[Val]:
        rest, which = f.udiv(v[0], sum(blocks)), f.op(f"urem i64 {v[0]}, {sum(blocks)}")
        image, piece = f.udiv(rest, pieces), f.op(f"urem i64 {rest}, {pieces}")
        before = 0
        for i, (plan, count) in enumerate(zip(plans, blocks)):
            inside = f.both(f.both(f.cmp("sge", which, before), f.cmp("slt", which, before + count)), f.cmp("slt", piece, plan.units))
            at = f.add(f.mul(f.add(f.mul(image, plan.units), piece), count), f.sub(which, before))
            f.when(inside, lambda i=i, at=at: call(i, at, f.add(at, 1)))  # type: ignore[misc]
            before += count
        return [f.add(v[0], 1)]

    f.loop([("i64", "%low")], lambda v: f.cmp("slt", v[0], "%high"), unit)
