"""Mathematical functions as LLVM IR text, over scalars and SIMD vectors.

``function(name, dtype, lanes)`` gives a :class:`VFunc`: one internal, always-inlined, branch-free LLVM function over ``lanes`` values of ``"f64"`` or ``"f32"``
(``lanes`` 1 is the scalar type), using ``llvm.fma``. Accuracy and speed are in docs/design-notes/0010-simd-math.md.

>>> f = function("exp", "f64", 8)
>>> f.symbol
'ag_vm_exp_f64x8'
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

from aotgrad_runtime.errors import AotgradValueError

from . import explog, hyper, inverse, power, trig
from .emit import Emitter, Val, VFunc

__all__ = ["ARITY", "NAMES", "VFunc", "function", "module_text"]

_UNARY: dict[str, Callable[[Emitter, Val], Val]] = {
    f.__name__: f for f in (explog.exp, explog.exp2, explog.expm1, explog.log, explog.log1p, explog.log2, explog.log10, hyper.sinh, hyper.cosh, hyper.tanh,
                            hyper.sigmoid, hyper.erf, hyper.erfc, trig.sin, trig.cos, trig.tan, inverse.asin, inverse.acos, inverse.atan, explog.asinh, explog.acosh,
                            explog.atanh, explog.softplus, power.cbrt)
}
_BINARY: dict[str, Callable[[Emitter, Val, Val], Val]] = {"atan2": inverse.atan2, "pow": power.pow_, "fmod": power.fmod, "hypot": power.hypot}
#: Number of arguments of each function.
ARITY: dict[str, int] = {**dict.fromkeys(_UNARY, 1), **dict.fromkeys(_BINARY, 2)}
NAMES: frozenset[str] = frozenset(ARITY)
_LANES = (1, 2, 4, 8, 16)


@cache
def function(name: str, dtype: str, lanes: int) -> VFunc:
    """The LLVM function of ``name`` over ``lanes`` values of ``dtype`` ("f64" or "f32").

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
    b = Emitter(lanes)
    args = [Val(b, ref, dtype) for ref in ("%x", "%y")[: ARITY[name]]]
    result = _UNARY[name](b, args[0]) if ARITY[name] == 1 else _BINARY[name](b, args[0], args[1])
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
