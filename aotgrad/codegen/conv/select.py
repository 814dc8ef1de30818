"""Which convolutions run on kernels of their own (``emit``), and which as plain loops."""

from __future__ import annotations

import functools
from dataclasses import replace

from aotgrad_runtime.digests import sha256
from aotgrad_runtime.records import record

from ..target import Target
from .emit import ConvKernel, emit, supported
from .spec import INPUT_GRAD, WEIGHT_GRAD, ConvSpec

__all__ = ["Choice", "definition", "select"]

_LEAST = 1 << 17  # operations per image below which plain loops are as quick, and smaller
_SHARE = 1 << 21  # operations of the smallest part for a thread
_BETWEEN = 1 << 28  # operations between two questions whether to stop


@record(frozen=True)
class Choice:
    """A kernel by ``text``, its spec. ``moved``: the arrays (x, y) that it wants channels_last and that are not: copied before, the result after."""

    text: str
    name: str
    kernel: ConvKernel
    moved: str
    units: int  # at a time
    least: int  # that a thread of its own is worth


def select(spec: ConvSpec, target: Target) -> Choice | None:
    """The kernel for ``spec`` on ``target``; None: the loops. What it computes does not depend on the batch."""
    one = replace(spec, batch=1)
    if not one.static or not isinstance(one.flops, int) or one.flops < _LEAST:
        return None
    moved = "".join(c for c in "xy" if _moves(one, c))
    one = replace(one, layouts=tuple("channels_last" if c in moved else layout for c, layout in zip("xwy", one.layouts)))  # type: ignore[arg-type]
    if not supported(one, target):
        return None
    name, kernel = _named(replace(one, kept=False), target)
    if spec.kept and kernel.staged:  # the others are the same for weights that are packed in the call
        name, kernel = _named(one, target)
    else:
        one = replace(one, kept=False)
    flops = one.flops
    assert isinstance(flops, int)
    return Choice(one.text, name, kernel, moved, max(1, kernel.units * _BETWEEN // flops), max(1, kernel.units * _SHARE // flops))


def _named(spec: ConvSpec, target: Target) -> tuple[str, ConvKernel]:
    name = f"ag_conv_{spec.kind}_{sha256(spec.text.encode()).hexdigest()[:12]}"
    return name, definition(spec.text, name, target)


def _moves(spec: ConvSpec, letter: str) -> bool:
    """What kernels read by single numbers, and results whose rows are adjacent in memory, stay as they are."""
    if spec.layouts["xwy".index(letter)] == "channels_last":
        return False
    if spec.layouts["xwy".index(letter)] == "strided" or 1 < spec.groups == spec.channels == spec.filters:
        return True
    if spec.kind == WEIGHT_GRAD:
        return letter == "y"
    return letter == "x" and spec.kind == INPUT_GRAD and spec.stride[-1] > 1


@functools.lru_cache(maxsize=256)
def definition(text: str, name: str, target: Target) -> ConvKernel:
    """The kernel of a spec written as text."""
    return emit(ConvSpec.from_text(text), target, name)
