"""The plan of a block: what runs as one loop nest (``fusion``), in which order (``order``), and what is written in the place of what (``takeover``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..ir.core import Block, Value
from .fusion import fuse
from .order import put_off, schedule
from .plan import Plan
from .takeover import take_over

__all__ = ["analyse"]


def analyse(block: Block, registers: Iterable[int] = (), donated: Mapping[Value, int] | None = None, over: Mapping[Value, int] | None = None) -> Plan:
    """``registers``: outputs (by index) that are wanted in registers; ``donated``: argument -> index of the output that may be written in its place; ``over``: the same,
    by what runs last, when nothing can fail any more."""
    plan, uses = fuse(Plan(block, frozenset(registers), donated, over))
    if over:
        put_off(plan, uses)
    schedule(plan)
    take_over(plan, uses)
    return plan
