"""``out=`` of a compiled call: results written into arrays of the caller."""

from __future__ import annotations

from typing import Any

import numpy as np

from aotgrad_runtime import modes
from aotgrad_runtime.errors import AotgradRuntimeError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.tensor import Tensor
from aotgrad_runtime.watched import written

from . import inplace
from .eager import Dual
from .leaks import result_paths
from .pytree import tree_flatten
from .variant import array_of

__all__ = ["write"]


def write(result: Any, out: Any) -> Any:
    """Copies the results into ``out``, an array or a container like the result. Raises ``AotgradTypeError`` or ``AotgradValueError`` before anything is written."""
    got, tree = tree_flatten(result)
    wanted, shape = tree_flatten(out)
    if shape != tree:
        raise AotgradValueError(f"out=: the result is {_described(result)}, but out is {_described(out)}; give arrays in the structure of the result")
    names = result_paths(tree, "out")
    targets: list[tuple[str, Any]] = []
    for name, a, b in zip(names, got, wanted):
        for x, what in ((a, "the result"), (b, "the tensor given")):
            if isinstance(x, Tensor) and (isinstance(x, Dual) or x._requires_grad and modes.state.grad):
                raise AotgradRuntimeError(f"{name}=: {what} has a {'tangent' if isinstance(x, Dual) else 'gradient'}: functions with out= do not support automatic "
                                          "differentiation; call without out=, or in ag.no_grad() with tensors that are no duals")
        if isinstance(b, Tensor):
            inplace.check_writable(b, name, False)
        source, target = np.asarray(array_of(a)), array_of(b)
        if not isinstance(target, np.ndarray):
            raise AotgradTypeError(f"{name}= is a {type(b).__name__}; give an array of shape {source.shape} and dtype {source.dtype}")
        if target.shape != source.shape or target.dtype != source.dtype:
            raise AotgradValueError(f"{name}= has shape {target.shape} and dtype {target.dtype}; the result needs shape {source.shape} and dtype {source.dtype}")
        if not target.flags.writeable:
            raise AotgradValueError(f"{name}= is read-only; give an array that can be written")
        if _overlaps_itself(target):
            raise AotgradValueError(f"{name}= has elements that share memory (strides {target.strides}); give one such as np.empty({source.shape})")
        other = next((n for n, t in targets if _share(t, target)), None)
        if other is not None:
            raise AotgradValueError(f"{name}= and {other}= share memory, so that one result would overwrite the other; give arrays of their own")
        targets.append((name, target))
    for a, b, (_, target) in zip(got, wanted, targets):
        (inplace.memory(b) if isinstance(b, Tensor) else target)[...] = array_of(a)
        if isinstance(b, Tensor):
            written(b)
    return out


def _described(tree: Any) -> str:
    return f"a {type(tree).__name__} of {len(tree)}" if isinstance(tree, (tuple, list, dict)) else "one array" if hasattr(tree, "shape") else f"a {type(tree).__name__}"


def _overlaps_itself(x: Any) -> bool:
    """Whether two elements may have one place: a dim whose step is not beyond what the dims inside it reach."""
    reach = x.itemsize
    for step, n in sorted((abs(s), n) for s, n in zip(x.strides, x.shape) if n > 1) if x.size else ():
        if step < reach:
            return True
        reach += step * (n - 1)
    return False


def _share(a: Any, b: Any) -> bool:
    try:
        return bool(a.size and b.size and np.shares_memory(a, b, max_work=10_000))  # type: ignore[arg-type]
    except Exception:  # too hard to tell: views of one array in intricate patterns
        return False
