"""The compiler's door to its parts that few functions need: kernels that are not elementwise, matrix products, families of vector functions.

Each is loaded when first used; an eager operation's first compilation spends most of its time in imports otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aotgrad_runtime.later import door

__all__ = [
    "conv__select", "emit__flush", "emit__pieces", "gemm", "lowering_control", "lowering_conv", "lowering_domain", "lowering_dot", "lowering_index",
    "lowering_window", "once", "steps", "unlooped", "vmath__hyper", "vmath__inverse", "vmath__power", "vmath__trig",
]

if TYPE_CHECKING:
    from . import gemm, lowering_control, lowering_conv, lowering_domain, lowering_dot, lowering_index, lowering_window, once, steps, unlooped
    from .conv import select as conv__select
    from .emit import flush as emit__flush
    from .emit import pieces as emit__pieces
    from .vmath import hyper as vmath__hyper
    from .vmath import inverse as vmath__inverse
    from .vmath import power as vmath__power
    from .vmath import trig as vmath__trig
else:
    __getattr__ = door(__name__, __package__, __all__)
