"""Mathematical functions as LLVM IR text, over scalars and SIMD vectors.

``function(name, dtype, lanes)`` gives a :class:`VFunc`: one internal LLVM function, written into its callers, over ``lanes`` values of ``"f64"`` or ``"f32"``
(``lanes`` 1 is the scalar type), using ``llvm.fma``, and with ``avx512`` instructions that only those processors have.
Accuracy and speed are in docs/design-notes/0010-simd-math.md and 0049.

>>> f = function("exp", "f64", 8)
>>> f.symbol
'ag_vm_exp_f64x8'
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from types import ModuleType

from aotgrad_runtime.errors import AotgradValueError

from .. import later
from . import explog
from .emit import Emitter, Val, VFunc

__all__ = ["ARITY", "NAMES", "VFunc", "function", "module_text"]

_MODULES: dict[str, Callable[[], ModuleType]] = {  # of the functions that are not in explog
    **dict.fromkeys(("sinh", "cosh", "tanh", "sigmoid", "erf", "erfc"), lambda: later.vmath__hyper),
    **dict.fromkeys(("sin", "cos", "tan"), lambda: later.vmath__trig),
    **dict.fromkeys(("asin", "acos", "atan", "atan2"), lambda: later.vmath__inverse),
    **dict.fromkeys(("cbrt", "pow", "fmod", "hypot"), lambda: later.vmath__power),
}
_UNARY = (
    "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sinh", "cosh", "tanh", "sigmoid", "erf", "erfc", "sin", "cos", "tan", "asin", "acos", "atan",
    "asinh", "acosh", "atanh", "softplus", "cbrt",
)
_BINARY = ("atan2", "pow", "fmod", "hypot")
#: Number of arguments of each function.
ARITY: dict[str, int] = {**dict.fromkeys(_UNARY, 1), **dict.fromkeys(_BINARY, 2)}
NAMES: frozenset[str] = frozenset(ARITY)
_LANES = (1, 2, 4, 8, 16)


@cache
def function(name: str, dtype: str, lanes: int, avx512: bool = False) -> VFunc:
    """The LLVM function of ``name`` over ``lanes`` values of ``dtype`` ("f64" or "f32"); ``avx512``: for processors of x86-64-v4.

    tanh of float32 has other bits with ``avx512`` than without; all others have the same.

    Raises AotgradValueError for an unknown name, dtype or lane count.

    >>> function("sin", "f32", 16).deps[0].symbol
    'ag_vm_sin_slow_f32x16'
    """
    if name not in NAMES:
        raise AotgradValueError(f"vmath.function: unknown function {name!r}; known are {', '.join(sorted(NAMES))}")
    if dtype not in ("f64", "f32"):
        raise AotgradValueError(f"vmath.function: dtype must be 'f64' or 'f32', not {dtype!r}")
    if lanes not in _LANES:
        raise AotgradValueError(f"vmath.function: lanes must be one of {_LANES}, not {lanes!r}")
    b = Emitter(lanes, avx512)
    args = [Val(b, ref, dtype) for ref in ("%x", "%y")[: ARITY[name]]]
    module = _MODULES[name]() if name in _MODULES else explog
    result = getattr(module, "pow_" if name == "pow" else name)(b, *args)
    return b.function(f"ag_vm_{name}_{dtype}x{lanes}", args, result)


def module_text(functions: Iterable[VFunc]) -> str:
    """Definitions of the functions and everything they need, each once, with the declarations: ready to be put in a module.

    >>> text = module_text([function("exp", "f64", 4), function("exp", "f64", 4)])
    >>> text.count("define internal")
    1
    """
    seen: dict[str, VFunc] = {}
    pending = list(functions)
    while pending:
        f = pending.pop()
        if f.symbol not in seen:
            seen[f.symbol] = f
            pending.extend(f.deps)
    declares = sorted({line for f in seen.values() for line in f.declares})
    return "\n".join([*declares, "", *(seen[symbol].text for symbol in sorted(seen))])
