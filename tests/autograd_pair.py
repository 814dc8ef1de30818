"""The same lines against aotgrad and, where it is installed, against torch: outcomes as plain values that can be compared."""

from __future__ import annotations

import importlib.util
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aotgrad as ag

HAS_TORCH = importlib.util.find_spec("torch") is not None


def modules() -> list[Any]:
    """aotgrad, and torch if there is one."""
    return [ag, importlib.import_module("torch")] if HAS_TORCH else [ag]


def f64(m: Any, values: Any, grad: bool = False) -> Any:
    """A float64 tensor of module ``m``."""
    return m.tensor(values, dtype=m.float64, requires_grad=grad)


def plain(x: Any) -> Any:
    """Tensors and arrays as nested lists of rounded numbers; containers by what they are."""
    if isinstance(x, tuple):
        return tuple(plain(v) for v in x)
    if isinstance(x, list):
        return [plain(v) for v in x]
    if hasattr(x, "detach"):
        return plain_array(np.array(x.detach().tolist()))
    if isinstance(x, (np.ndarray, np.generic, float)):
        return plain_array(np.asarray(x))
    return x


def plain_array(a: Any) -> Any:
    """Rounded so that two implementations agree."""
    return (np.round(a, 9) + 0.0).tolist()


def outcome(m: Any, lines: Callable[[Any], Any], text: int = 0) -> Any:
    """What ``lines(m)`` gives, or the built-in types of its error (and the first ``text`` characters of the message)."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            result = plain(lines(m))
        except Exception as error:
            kinds = {c.__name__ for c in type(error).__mro__ if c.__module__ == "builtins"} - {"object", "BaseException", "Exception"}
            message = str(error)[:text] if text else ""
            return ("error", tuple(sorted(kinds)), message)
    del seen
    return result


def errors_of(line: str) -> tuple[type[Any], type[Any]]:
    """The built-in kind of torch's error for a line that names the module ``m``, and the kind of ours; both must refuse it."""
    kinds = []
    for m in (importlib.import_module("torch"), ag):
        try:
            eval(line, {"m": m})
        except Exception as error:
            kinds.append(type(error))
        else:
            raise AssertionError(f"{m.__name__} accepts {line}")
    return next(c for c in kinds[0].__mro__ if c.__module__ == "builtins"), kinds[1]


def same(lines: Callable[[Any], Any], text: int = 0) -> Any:
    """The outcome of aotgrad, after it was found equal to torch's."""
    found = [outcome(m, lines, text) for m in modules()]
    assert all(repr(f) == repr(found[0]) for f in found), found
    return found[0]


def walk(m: Any, y: Any, parameters: Any) -> list[Any]:
    """Gradients by a user's own walker over the graph of ``y``."""
    queue, found = deque([(y.grad_fn, m.ones_like(y))]), {}
    while queue:
        node, ct = queue.popleft()
        if node is None or ct is None:
            continue
        if hasattr(node, "variable"):
            found[id(node.variable)] = found.get(id(node.variable), 0) + ct
            continue
        grads = node(ct)
        queue += [(child, g) for (child, _), g in zip(node.next_functions, grads if isinstance(grads, tuple) else (grads,))]
    return [found[id(p)] for p in parameters]


def refused(lines: Callable[[Any], Any]) -> None:
    """Both refuse; our error is of torch's kinds and an ``AotgradError``."""
    found = [outcome(m, lines) for m in modules()]
    assert all(f[0] == "error" and {*f[1]} <= {*found[0][1]} for f in found), found
    with pytest.raises(ag.AotgradError):
        lines(ag)
