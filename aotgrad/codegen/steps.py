"""What each kernel of a program does, for ``explain``: its operations and source lines, the bytes it has to read and write, its arithmetic. Sizes may be open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

from aotgrad_runtime.records import record

from ..ir import dims, opdef
from ..ir.core import Op, Value
from ..ir.dims import DimLike
from .ahead import COPY
from .nest import Context
from .plan import Item, Kern, Nest, weight
from .regions import region_of
from .written import UNSET

__all__ = ["Step", "step_of"]

_CONV_WEIGHTS = {"conv": 1, "conv_input_grad": 1}  # the operand that is the weight; of the gradient of weights it is the result
_FREE = frozenset(("concatenate", "constant", UNSET))  # its pieces are written in place; is in the library; holds anything


@record
class Step:
    """``ops`` and ``lines`` as ``regions.region_of`` has them. ``flops``: a multiply-add counts 2, another operation what it takes the time of (division 4, a function
    such as exp 16). ``inside``: the kernels of a loop's body or of branches; ``times``: how often they run. ``how``: what was chosen, as the report has it."""

    ops: list[str]
    lines: list[list[Any]]
    read: DimLike = 0
    written: DimLike = 0
    flops: DimLike = 0
    product: bool = False  # its arithmetic is multiply-adds
    dtype: str = "f64"
    threads: int = 1
    times: DimLike = 1
    inside: list[Step] = field(default_factory=list)
    how: list[dict[str, Any]] = field(default_factory=list)


def step_of(cx: Context, item: Item, reports: Sequence[dict[str, Any]], inside: list[Step]) -> Step | None:
    """The step that an item was emitted as; None where it costs nothing. ``reports``: its part of the report."""
    if item.op is not None and item.op.name in _FREE:
        return None
    region = region_of(item)
    step = Step(region["ops"], region["lines"], inside=inside, threads=max((r.get("threads", 1) for r in reports), default=1), how=list(reports))
    if isinstance(item, Nest):
        _nest(cx, item, reports, step)
        return step
    assert isinstance(item, Kern) and item.op is not None
    op = item.op
    step.dtype = _dtype(op.results[0])
    if op.name == "scan":
        step.times = op.attrs["length"]
    elif op.name != "cond":
        _kernel(cx, item, op, step)
    return step


def _dtype(v: Value) -> str:
    return str(v.type.dtype.mlir)


def _nest(cx: Context, item: Nest, reports: Sequence[dict[str, Any]], step: Step) -> None:
    seen = [v for v in item.sequence if v.op is not None] + [w.result for w in item.writes]
    step.dtype = _dtype(seen[0]) if seen else "f64"
    loop = reports[-1]
    step.read, step.written = loop["read"], loop["written"]
    for v in item.sequence:
        if v.op is not None:
            step.flops = step.flops + _elementwise(v.op)
    product = item.epilogue
    if product is not None:
        step.product, step.dtype = True, _dtype(product.result)
        whole = _bytes(product.result)
        # The nest reads the result piece by piece while it is in the cache.
        step.read = step.read - whole + sum((_touched(cx, item, o) for o in product.operands), 0)
        step.written = step.written + (whole if loop.get("kept") else 0)
        step.flops = step.flops + _arithmetic(product)


def _elementwise(op: Op) -> DimLike:
    if op.name == "stop_gradient":
        return 0
    low = opdef.get(op.name).lower if op.name != "overlay" else None
    if isinstance(low, opdef.Reduce):
        return _count(op.operands[0])
    return _count(op.result) * weight(op) if isinstance(low, opdef.Scalar) else 0


def _kernel(cx: Context, item: Kern, op: Op, step: Step) -> None:
    step.flops, step.product = _arithmetic(op), op.name == "dot" or op.name.startswith("conv")
    step.written = sum((_bytes(r) for r in op.results), 0)
    if op.name in ("scatter", "scatter_add"):  # in place: a copy that it needs is a kernel of its own
        step.written = _bytes(op.operands[2])
        step.read = sum((_touched(cx, item, o) for o in op.operands[1:]), step.written if op.name == "scatter_add" else 0)
    elif op.name == "take":  # reads no more of the table than it gives
        step.read = step.written + sum((_touched(cx, item, o) for o in op.operands[1:]), 0)
    else:
        step.read = sum((_touched(cx, item, o) for o in op.operands), 0)


def _arithmetic(op: Op) -> DimLike:
    out = op.result.type
    if op.name == "dot":
        depth: DimLike = op.operands[0].type.shape[-1]
        return 2 * _count(op.result) * depth
    if op.name.startswith("conv"):  # every element of y takes the channels of a group at every place of the kernel
        w = op.operands[_CONV_WEIGHTS[op.name]].type if op.name in _CONV_WEIGHTS else out
        y = op.operands[0] if op.name == "conv_input_grad" else op.result if op.name == "conv" else op.operands[1]
        return 2 * _count(y) * dims.product(w.shape[1:])
    if op.name in ("window_sum", "window_max", "window_argmax"):
        return _count(op.result) * dims.product(op.attrs["kernel"]) if op.attrs["kernel"] else _count(op.operands[0])
    if op.name != COPY and isinstance(opdef.get(op.name).lower, opdef.Scalar):
        return _count(op.result) * weight(op)
    return _count(max(op.operands, key=lambda v: v.type.rank)) if op.name in ("cumsum", "cumprod", "recurrence", "scatter_add") else 0


def _count(v: Value) -> DimLike:
    size: DimLike = v.type.size
    return size


def _bytes(v: Value) -> DimLike:
    return _count(v) * int(v.type.dtype.itemsize)


def _touched(cx: Context, item: Item, v: Value) -> DimLike:
    """Bytes of an operand, those that stand for many (broadcast) once."""
    source = v
    while source.op is not None and source.op in cx.plan.views and source not in cx.plan.memory:
        source = source.op.operands[0]
    if not v.type.shape or source.op is not None and not cx.buffers.knows(cx.plan.operand(item, source)):
        return _bytes(v)
    size: DimLike = v.type.dtype.itemsize
    for n, stride in zip(v.type.shape, cx.buffers.access(item, v).strides):
        if not (isinstance(stride, int) and stride == 0):
            size = size * n
    return size

