"""``detect_anomaly``: where the first NaN or infinity of a compiled call was born: the user's line, the op, the element, its inputs.

Inside the context, compiled calls leave the trampoline. When a result holds a value that is not finite while the inputs are, the program is run again op by op,
and the value is followed from the result back to the op that made it from finite inputs.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from aotgrad.ir import Func, Op, Value, interp
from aotgrad.ir.transforms.rewrite import decompose_func
from aotgrad_runtime.errors import AotgradRuntimeError

from . import detour

__all__ = ["check", "detect_anomaly", "enabled", "set_detect_anomaly"]


class _Mode(threading.local):
    def __init__(self) -> None:
        self.on = False


_mode = _Mode()


def enabled() -> bool:
    """Whether this thread looks for anomalies."""
    return _mode.on


class detect_anomaly:
    """Context: an op that makes a NaN or an infinity from finite values is an error that names the user's line.

    >>> import numpy as np, aotgrad as ag
    >>> f = ag.compile(lambda x: ag.log(x).sum())
    >>> with ag.autograd.detect_anomaly():
    ...     f(np.array([1.0, -1.0]))
    Traceback (most recent call last):
    aotgrad_runtime.errors.AotgradRuntimeError: ...
    """

    def __init__(self, check_nan: bool = True) -> None:
        self.check_nan = check_nan

    def __enter__(self) -> None:
        self.before = _mode.on
        set_detect_anomaly(True)

    def __exit__(self, *exc: object) -> None:
        set_detect_anomaly(self.before)


def set_detect_anomaly(mode: bool, check_nan: bool = True) -> None:
    """Switches the search on or off for this thread."""
    if bool(mode) != _mode.on:
        _mode.on = bool(mode)
        detour.shift(1 if mode else -1)


def _bad(x: Any) -> Any:
    return ~np.isfinite(x) if x.dtype.kind in "fc" else np.zeros(x.shape, bool)


def check(func: Func, arrays: Sequence[Any], outs: Sequence[Any]) -> None:
    """Raises when ``outs`` hold values that are not finite though ``arrays`` are."""
    if not any(np.any(_bad(np.asarray(o))) for o in outs) or any(np.any(_bad(np.asarray(a))) for a in arrays):
        return
    found = _origin(func, [np.asarray(a) for a in arrays])
    if found is not None:
        raise AotgradRuntimeError(found)


def _origin(func: Func, arrays: Sequence[Any]) -> str | None:
    func = decompose_func(func)
    env: dict[Value, Any] = dict(zip(func.args, arrays))
    sizes = interp.bind_sizes(func.arg_types, arrays)
    with np.errstate(all="ignore"):
        for op in func.body.ops:
            env.update(zip(op.results, interp.run_op(op, [env[o] for o in op.operands], sizes)))
    for v in func.outputs:
        if np.any(_bad(env[v])):
            return _follow(v, env)
    return None


def _follow(v: Value, env: dict[Value, Any]) -> str | None:
    seen: set[Value] = set()
    while v.op is not None and v not in seen:
        seen.add(v)
        culprit = next((o for o in _relevant(v.op, env) if np.any(_bad(env[o]))), None)
        if culprit is None:
            return _describe(v.op, v, env)
        v = culprit
    return None


def _relevant(op: Op, env: dict[Value, Any]) -> Sequence[Value]:
    """Operands that can have made the result bad: the chosen side of a ``where``, factors of a zero-annihilating product that meet no zero."""
    if op.name == "where":
        c, x, y = op.operands
        return [o for o, side in ((x, env[c]), (y, ~env[c])) if np.any(_bad(env[o]) & side)]
    if op.name == "lmul":
        x, y = op.operands
        return [o for o, other in ((x, y), (y, x)) if np.any(_bad(env[o]) & (env[other] != 0))]
    return op.operands


def _describe(op: Op, v: Value, env: dict[Value, Any]) -> str:
    value = env[v]
    where = tuple(int(i) for i in np.argwhere(_bad(value))[0]) if value.shape else ()
    inputs = []
    for o in op.operands:
        x = env[o]
        inputs.append(f"{x[where]!s}" if x.shape == value.shape else f"array of shape {x.shape}")
    line = f"{op.loc}: {op.loc.source}\n  " if op.loc is not None else ""
    at = f" at element {list(where)}" if where else ""
    return (f"{line}ag.{op.name} gave {value[where]!s}{at} from {', '.join(inputs) or 'no inputs'}; "
            "all inputs of the call are finite. Mask or limit the argument of this operation")
