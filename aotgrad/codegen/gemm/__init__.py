"""Matrix multiplication for all sizes and strides: one LLVM module per dtype and target, written by hand-vectorised generators.

The C interface is in docs/design-notes/0001-interfaces.md, the method in docs/design-notes/0013-gemm.md.
"""

from __future__ import annotations

from aotgrad_runtime.errors import AotgradTypeError
from aotgrad_runtime.records import record

from ..target import Target
from .driver import Config, entry, pack, packed_bytes, packed_column, workspace
from .emit import Vec
from .gemv import dot_tiles, row_dots, stream
from .micro import Panel, panel, whole_panel
from .pack import copy_rows, copy_strided, copy_strips, copy_transposed

__all__ = ["GemmModule", "config", "module", "packed_bytes", "packed_column"]


@record(frozen=True)
class GemmModule:
    """``text``: a complete LLVM module; ``symbols``: its hidden functions, ``(ag_gemm_T, ag_gemm_T_workspace)``; and ``ag_gemm_T_pack``, ``ag_gemm_T_kept``."""

    text: str
    symbols: tuple[str, str]


def module(dtype: str, target: Target) -> GemmModule:
    """C (+)= A B for ``dtype`` ``"f64"`` or ``"f32"``, blocked, packed and register-tiled for ``target``.

    Compile it with ``llvm.compile_object(m.text, target, passes="none")``: there is nothing for LLVM to improve.
    Raises ``AotgradTypeError`` for another dtype.

    >>> module("f32", Target.named("x86-64-v3")).symbols
    ('ag_gemm_f32', 'ag_gemm_f32_workspace')
    """
    if dtype not in ("f64", "f32"):
        raise AotgradTypeError(f"gemm dtype must be 'f64' or 'f32', not {dtype!r}; cast the operands")
    cfg = config(dtype, target)
    vec, many = cfg.vec, target.registers == 32
    parts = [*vec.declares(), "declare i64 @llvm.smax.i64(i64, i64)", "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"]
    if cfg.scalar is not None:
        parts += cfg.scalar.vec.declares()
    parts += [whole_panel(cfg.whole), *(panel(p) for p in (*cfg.panels, *([cfg.scalar] if cfg.scalar else [])))]
    parts += [copy_rows(vec), copy_transposed(vec, target.masked), copy_strided(vec), *([copy_strips(vec, cfg.whole.vectors)] if cfg.together else [])]
    parts += [row_dots(vec, min(4 if many else 2, vec.lanes)), dot_tiles(vec, 4 if many else 2), stream(vec, 8)]
    parts += [workspace(cfg), pack(cfg), entry(cfg)]
    return GemmModule("\n".join(parts), (f"ag_gemm_{dtype}", f"ag_gemm_{dtype}_workspace"))


def config(dtype: str, target: Target) -> Config:
    """Tiles by the number of registers, blocks so that those of A and B together stay in a second cache of 2 MiB."""
    vec = Vec(dtype, target.lanes(dtype), target.fma)
    rows = ((16, 8), (8, 4), (8, 4), (6, 4, 3, 2)) if target.registers == 32 else ((8,), (6, 4))
    branch = target.masked and target.vector_bits < 512
    panels = tuple(Panel(vec, i + 1, r, target.masked, branch) for i, r in enumerate(rows[:-1]))
    whole = Panel(vec, len(rows), rows[-1], False, False)
    scalar = None if target.masked else Panel(Vec(dtype, 1, target.fma), 1, (8 if target.registers == 32 else 4,), False, False)
    nc = 1024 // vec.size
    together = target.arch == "x86_64" and target.vector_bits == 256  # a vector is half a line, the second cache is small
    once = (144, 256 if dtype == "f32" else 192, nc) if together else (144, 768 // vec.size, 4 * nc)
    return Config(vec, panels, whole, scalar, kc=1024, kc_packed=2048 // vec.size, kc_apart=96, mc=48, mc_packed=96, nc=nc, once=once, together=together,
                  pack_b_bytes=1 << 20, pack_a_bytes=2 << 20, often_b=(32 << 10, 48), often_a=(128 << 10, 4 * len(rows) * vec.lanes), row_dots=8,
                  col_dots=8 if dtype == "f32" else 4)
