"""Options of the compiler: apart from it, because they are part of every look-up in the cache, and a hit must not load the compiler."""

from __future__ import annotations

from aotgrad_runtime.records import record

from ..ir import dims

__all__ = ["Options"]


@record(frozen=True)
class Options:
    """``checks``: index range and domain errors by code; off, reads out of range are clamped, writes dropped.

    ``hooks``: kernels report their borders to ctx's hook; the text is ``regions.places_of`` the program, "" for no hooks. ``guards``: pairs of sizes that must be
    equal, checked before anything else (code 1), ``unequal``: pairs that must not be. ``threads``: of the caller's pool, so many may share a kernel.
    ``flush``: subnormal numbers are zeros. ``constant``: arguments (by number) that seldom change: what depends on them alone is computed in an entry of its own.
    ``over``: (output, argument) pairs: the output is no result of the kernel, it is written over that argument, of the same type; after everything that can fail or be
    interrupted.
    """

    checks: bool = True
    hooks: str = ""
    guards: tuple[tuple[dims.DimLike, dims.DimLike], ...] = ()
    unequal: tuple[tuple[dims.DimLike, dims.DimLike], ...] = ()
    threads: int = 1
    flush: bool = False
    constant: tuple[int, ...] = ()
    over: tuple[tuple[int, int], ...] = ()
