"""Compiles a function: lower, emit LLVM text, object, shared library."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aotgrad_runtime.cache import ObjectCache, default_folder
from aotgrad_runtime.digests import sha256
from aotgrad_runtime.records import record

from ..ir import dims
from ..ir.core import Func
from ..ir.printer import print_module
from ..ir.transforms.layout import Move, moves
from ..ir.types import TensorType
from . import later, llvm
from .elf import link_shared
from .emit import conv_kernels, gemm_dtypes, module
from .lower import Lowered, lower
from .options import Options
from .report import shown
from .target import Target
from .work import many_rounds

if TYPE_CHECKING:
    from .steps import Step

__all__ = ["Compiled", "Options", "compile_func", "compile_lowered", "kernel_objects", "steps", "texts"]


@record(frozen=True)
class Compiled:
    """``so``: a shared library that exports NAME, NAME_workspace and NAME_shapes; ``meta``: JSON-able facts about it."""

    so: bytes
    meta: dict[str, Any]


@functools.lru_cache(maxsize=8)
def _gemm_object(dtype: str, target: Target) -> bytes:
    return _kept("gemm", later.gemm.module(dtype, target).text, target, "inline")


@functools.lru_cache(maxsize=256)
def _conv_object(spec: str, name: str, target: Target) -> bytes:
    kernel = later.conv__select.definition(spec, name, target)
    return _kept("convolution", "\n".join([*kernel.declares, kernel.text]), target, "none")


def _kept(what: str, text: str, target: Target, passes: str) -> bytes:
    """The relocatable object of a text that many programs share: compiled once, then kept in the object cache (and by the caller in the process)."""
    key = f"{what} object;{target.key};{llvm.binding().llvm_version_info};{sha256(text.encode()).hexdigest()}"
    cache = ObjectCache(default_folder())
    found = cache.get(key)
    return found.so if found is not None else cache.put(key, llvm.compile_object(text, target, passes=passes), {"what": "object"}).so


def kernel_objects(funcs: Sequence[Func], target: Target) -> list[bytes]:
    """What the module of ``funcs`` refers to: matrix products and convolutions."""
    return [*(_gemm_object(d, target) for d in sorted(gemm_dtypes(funcs))), *(_conv_object(spec, name, target) for name, spec in sorted(conv_kernels(funcs).items()))]


def _type(t: TensorType) -> dict[str, Any]:
    return {"shape": [d if isinstance(d, int) else dims.to_text(d) for d in t.shape], "dtype": t.dtype.name, "order": list(t.order)}


def _relayout(m: Move) -> dict[str, Any]:
    orders = [list(v.type.order) for v in (m.op.operands[0], m.op.result)]
    return {"how": m.how, "shape": [str(d) for d in m.op.result.type.shape], "order": orders[0], "to": orders[1], "bytes": str(m.bytes), "at": str(m.op.loc or "")}


def compile_lowered(lowered: Lowered, target: Target) -> Compiled:
    """The rest of ``compile_func``, from kernel level on."""
    entry = lowered.entry
    parts = [lowered] if lowered.once is None else [lowered, lowered.once]
    objects = [llvm.compile_object(module(part.funcs, part.entry, target), target, passes="inline") for part in parts]
    objects += kernel_objects([f for part in parts for f in part.funcs], target)
    so = link_shared(objects, [name for part in parts for name in part.entry.exports], f"lib{entry.name}.so")
    meta: dict[str, Any] = {
        "name": entry.name, "args": [_type(t) for t in entry.inputs], "outs": [_type(t) for t in entry.outputs], "symbols": list(entry.symbols),
        "workspace": entry.workspace if isinstance(entry.workspace, int) else dims.to_text(entry.workspace), "target": target.key,
        "kernels": shown(lowered.module.report), "locations": lowered.module.locations,
    }
    if lowered.once is not None:
        meta["once"] = _once(lowered)
    if lowered.module.threads > 1:
        meta["threads"] = lowered.module.threads
    if lowered.module.regions is not None:
        meta["regions"] = lowered.module.regions
    return Compiled(so, meta)


def _once(lowered: Lowered) -> dict[str, Any]:
    """What is computed once: the bytes it takes, the arguments it is made of, the workspace for it, and what it is."""
    kept, once = lowered.module.kept, lowered.once
    assert kept is not None and once is not None
    packed: dict[str, int] = {}
    for job in kept.jobs:
        packed[job.what] = packed.get(job.what, 0) + 1
    return {"bytes": kept.size, "args": list(lowered.constant), "workspace": once.entry.workspace, "values": len(once.placed.outputs), "packed": packed}


def compile_func(func: Func, name: str, target: Target, options: Options | None = None) -> Compiled:
    """Compiles ``func`` (primitive ops only) into a shared library of the ABI of docs/design-notes/0001-interfaces.md.

    >>> from aotgrad.ir import tensor_type
    >>> from aotgrad.ir.builder import build
    >>> f = build("f", [tensor_type(["n"])], lambda b, x: b.mul(x, x))
    >>> compile_func(f, "f", Target.native()).meta["kernels"][0]["loops"]
    1
    """
    made = compile_lowered(_lowered(func, name, target, options or Options()), target)
    made.meta["long"] = many_rounds(func)
    return made


def _lowered(func: Func, name: str, target: Target, opts: Options) -> Lowered:
    low = lower(func, name, target, checks=opts.checks, hooks=bool(opts.hooks), threads=opts.threads, constant=opts.constant, over=opts.over)
    if opts.guards or opts.unequal or opts.flush:
        low = replace(low, entry=replace(low.entry, guards=tuple((a, b, -1) for a, b in opts.guards), unequal=opts.unequal, flush=opts.flush))
    return low


def steps(func: Func, name: str, target: Target, options: Options | None = None) -> tuple[list[Step], list[dict[str, Any]]]:
    """What each kernel of the compiled function does, in order, and the changes of layout. Lowers it again: compiled code in the cache knows no source lines."""
    opts = options or Options()
    found: list[Step] = []
    low = lower(func, name, target, checks=opts.checks, threads=opts.threads, steps=found, constant=opts.constant, over=opts.over)
    return found, [_relayout(m) for m in moves(low.placed)]


def texts(func: Func, name: str, target: Target, options: Options | None = None) -> dict[str, str]:
    """The levels as text: ``tensor`` with the layouts that were chosen, ``kernel`` (MLIR's generic form), ``llvm`` and ``asm``."""
    lowered = _lowered(func, name, target, options or Options())
    text = module(lowered.funcs, lowered.entry, target)
    return {"tensor": str(lowered.placed), "kernel": print_module(lowered.funcs), "llvm": text, "asm": llvm.assembly(text, target, passes="inline")}
