"""``detect_anomaly``: which line of the user's made a NaN or an infinity.

In eager code the engine checks the gradients of every node, and knows the lines of the forward call that made it (``aotgrad_runtime.recording``). In compiled code the
value itself is found, in forward or adjoint: the user's line, the op, the element, its inputs.

Inside the context, compiled calls leave the trampoline. When a result holds a value that is not finite while the inputs are, the program is run again op by op,
and the value is followed from the result back to the op that made it from finite inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aotgrad.ir import Block, Func, Op, Value, interp
from aotgrad.ir.dims import Dim
from aotgrad.ir.transforms.rewrite import decompose_func
from aotgrad_runtime import recording
from aotgrad_runtime.errors import AotgradRuntimeError

__all__ = ["check", "detect_anomaly", "is_anomaly_check_nan_enabled", "is_anomaly_enabled", "set_detect_anomaly"]


def is_anomaly_enabled() -> bool:
    """Whether this thread looks for anomalies."""
    return recording.state.anomaly


def is_anomaly_check_nan_enabled() -> bool:
    """Whether NaN in gradients is an error in anomaly mode."""
    return recording.state.check_nan


class detect_anomaly(recording.anomaly):
    """Context: an error or a NaN in a backward pass is reported with the lines of the forward call it belongs to, and an op of compiled code that makes a NaN or an
    infinity from finite values is an error that names its line. ``check_nan=False`` reports errors alone.

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
        self.before = is_anomaly_enabled(), is_anomaly_check_nan_enabled()
        recording.set_anomaly(True, self.check_nan)


class set_detect_anomaly(recording.anomaly):
    """Switches the search on or off for this thread, at once; as a context, until the end of the block."""

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self.before = is_anomaly_enabled(), is_anomaly_check_nan_enabled()
        recording.set_anomaly(bool(mode), check_nan)

    def __enter__(self) -> None:
        pass


def _bad(x: Any) -> Any:
    return ~np.isfinite(x) if x.dtype.kind in "fc" else np.zeros(x.shape, bool)


def check(func: Func, arrays: Sequence[Any], outs: Sequence[Any]) -> None:
    """Raises when ``outs`` hold values that are not finite though ``arrays`` are."""
    if not is_anomaly_check_nan_enabled() or not any(np.any(_bad(np.asarray(o))) for o in outs) or any(np.any(_bad(np.asarray(a))) for a in arrays):
        return
    found = _origin(func, [np.asarray(a) for a in arrays])
    if found is not None:
        raise AotgradRuntimeError(found)


def _origin(func: Func, arrays: Sequence[Any]) -> str | None:
    func = decompose_func(func)
    return _within(func.body, arrays, interp.bind_sizes(func.arg_types, arrays), range(len(func.outputs)))


def _within(block: Block, ins: Sequence[Any], sizes: Mapping[str, int], wanted: Sequence[int]) -> str | None:
    """What made the first bad one of the ``wanted`` results of a block with finite inputs."""
    env: dict[Value, Any] = dict(zip(block.args, ins))
    with np.errstate(all="ignore"):
        for op in block.ops:
            env.update(zip(op.results, interp.run_op(op, [env[o] for o in op.operands], sizes)))
    return next((_follow(v, env, sizes) for v in (block.outputs[i] for i in wanted) if np.any(_bad(env[v]))), None)


def _follow(v: Value, env: dict[Value, Any], sizes: Mapping[str, int]) -> str | None:
    seen: set[Value] = set()
    while v.op is not None and v not in seen:
        seen.add(v)
        culprit = next((o for o in _relevant(v.op, env) if np.any(_bad(env[o]))), None)
        if culprit is None:
            return _inside(v.op, v.op.results.index(v), [env[o] for o in v.op.operands], sizes) or _describe(v.op, v, env)
        v = culprit
    return None


def _inside(op: Op, result: int, ins: Sequence[Any], sizes: Mapping[str, int]) -> str | None:
    """The op in the branch that was taken, or in the first round of a loop that made a bad value."""
    if op.name == "cond":
        return _within(op.regions[0 if ins[0] else 1], ins[1:], sizes, [result])
    if op.name != "scan":
        return None
    consts, carried, body, length = op.attrs["consts"], op.attrs["carry"], op.regions[0], op.attrs["length"]
    count = length.substitute(sizes) if isinstance(length, Dim) else length
    state, rows = ins[consts:consts + carried], ins[consts + carried:]
    watched = [*range(carried), *([result] if result >= carried else [])]
    for i in (reversed(range(count)) if op.attrs["reverse"] else range(count)):
        given = [*ins[:consts], *state, *(x[i] for x in rows)]
        with np.errstate(all="ignore"):
            outs = interp.run_block(body, given, sizes)
        if any(np.any(_bad(np.asarray(outs[k]))) for k in watched):
            return _within(body, given, sizes, watched)
        state = outs[:carried]
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
