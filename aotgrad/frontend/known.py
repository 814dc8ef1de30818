"""The short way of eager calls that came before: their arguments alone find what there is to do, which is written out as straight-line code.

A call on tensors whose plain arguments, dtypes and shapes are those of ``AGAIN`` calls before is not bound, gathered and looked up again. Its program runs, and its
results are recorded and shown as views, as ``dispatch`` and ``eager.apply`` do it. Elementwise calls have a shorter way still, for all sizes (``quick``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

from aotgrad_runtime import modes, recording, watchers
from aotgrad_runtime.arrays import defaults
from aotgrad_runtime.dtypes import DType
from aotgrad_runtime.parameter import Parameter
from aotgrad_runtime.tensor import Size, Tensor, wrap

from . import eager
from .program import Program
from .recorder import Recorder
from .trace import _stack, _tracing
from .views import mark_view

__all__ = ["AGAIN", "Calls", "MISS", "forget", "key_of", "written"]

AGAIN = 10  # calls of one kind before their code is written: that costs about as much as ten of them save
_KINDS = 256  # of calls of one function
_MOST = 64  # tensors or results of one call
MISS: Any = object()
_TRUE, _FALSE = object(), object()
_INTS, _TENSORS = (int,), (Tensor, Parameter)
_watching, _asked = watchers.shared, recording.state


def _part(key: list[Any], x: Any) -> bool:
    """Adds to ``key`` what of an argument decides a call; False where that is not known here."""
    kind = type(x)
    if kind is Tensor or kind is Parameter:
        if x._weak:
            return False
        data = x._data
        key += (data.dtype, data.shape)
    elif kind is int or x is None or kind is str or kind is DType:
        key.append(x)
    elif kind is bool:
        key.append(_TRUE if x else _FALSE)
    elif kind is float:
        if x == 0.0:  # of two signs
            return False
        key += (float, x)
    elif kind is tuple or kind is list or kind is Size:
        key += (kind, len(x))
        whole = _INTS if not x or type(x[0]) is int else _TENSORS
        if whole is _TENSORS and len(x) > _MOST:
            return False
        for part in x:
            if type(part) not in whole or not _part(key, part):
                return False
    else:
        return False
    return True


def key_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """What decides the program of a call, made of what the caller gave; None where there is more to it."""
    key: list[Any] = [defaults.dtype]
    for x in args:
        if (type(x) is Tensor or type(x) is Parameter) and not x._weak:
            data = x._data
            key += (data.dtype, data.shape)
        elif not _part(key, x):
            return None
    for name, x in kwargs.items():
        key.append(name)
        if not _part(key, x):
            return None
    return tuple(key)


_every: list[Calls] = []


def forget() -> None:
    """All calls are new again."""
    for calls in _every:
        calls.seen.clear()
        calls.known.clear()


class Calls:
    """The calls of one function: ``seen``, how often they came; ``known``: their code, MISS where there can be none."""

    __slots__ = ("known", "seen")

    def __init__(self) -> None:
        self.seen: dict[tuple[Any, ...], int] = {}
        self.known: dict[tuple[Any, ...], Any] = {}
        _every.append(self)

    def find(self, args: tuple[Any, ...], kwargs: dict[str, Any], learn: Callable[..., Any], again: int) -> Any:
        """The code of such a call, a function of ``args`` and ``kwargs``; MISS where it goes the general way. ``learn(args, kwargs)`` makes it."""
        if _tracing and _stack.traces or _watching.count and (_asked.hooks or _asked.anomaly) or (key := key_of(args, kwargs)) is None:
            return MISS
        found = self.known.get(key)
        if found is None:
            times = self.seen.get(key, 0) + 1
            if times < again:
                if len(self.seen) >= _KINDS:
                    self.seen.clear()
                self.seen[key] = times
                return MISS
            if len(self.known) >= _KINDS:
                self.known.clear()
            self.seen.pop(key, None)
            try:
                found = learn(args, kwargs)
            except Exception:  # a call that is refused: the general way says why
                found = MISS
            self.known[key] = found
        return found


def written(program: Program, places: Sequence[str | None], constants: Sequence[Any], structure: Any, refused: Sequence[int]) -> Any:
    """The code of calls that ``program`` serves. ``places``: where among ``args`` and ``kwargs`` each of its tensors is, as code (None: a plain number, in
    ``constants``); ``structure``: of the results, None for one; ``refused``: tensors that must not require a gradient."""
    tensors = [i for i, at in enumerate(places) if at is not None]
    count = len(program.func.outputs)
    if not tensors or len(tensors) > _MOST or not 0 < count <= _MOST or program.kept is not None or program.func.symbols():
        return MISS
    recorder = Recorder(program, tensors)
    direct = program.direct()
    names: dict[str, Any] = {"run": program.run if direct is None else direct, "program": program, "forms": recorder.forms, "learn": recorder.learn, "flags": modes.flags,
                             "state": modes.state,
                             "wrap": wrap, "settle": eager._settle, "mark_view": mark_view, "Tensor": Tensor, "structure": structure, "view": program.view, "MISS": MISS,
                             "type": type, **{f"d{i}": x for i, x in enumerate(constants) if places[i] is None}}
    view = program.view and ("same" if program.view == eager.SAME else "shown")
    exec(_code(tuple(places), count, view, direct is not None, structure is None, structure is not None and hasattr(structure, "_fields"), tuple(refused)), names)
    return names["known"]


@functools.lru_cache(maxsize=512)
def _code(places: tuple[str | None, ...], count: int, view: str | None, direct: bool, alone: bool, fields: bool, refused: tuple[int, ...]) -> CodeType:
    every = range(len(places))
    tensors = [i for i in every if places[i] is not None]
    lines = [f"x{i} = {places[i]}" for i in tensors] + [f"d{i} = x{i}._data" for i in tensors]
    lines += [f"if x{i}._requires_grad: return MISS" for i in refused]
    arrays = f"({''.join(f'd{i}, ' for i in every)})"
    operands = f"({''.join(f'x{i}, ' if places[i] else f'd{i}, ' for i in every)})"
    results = "".join([f"y{k}, " for k in range(count)])
    lines.append(f"y0 = run{arrays}" if direct else f"{results} = run({arrays})")
    if view == "same":
        lines.append("if y0 is d0: return x0")
    for k in range(count):
        same = " or ".join([f"y{k} is d{i}" for i in every])
        if view is not None:
            lines += [f"o{k} = None", f"b = y{k}.base", f"if b is not None and (b is d0 or b is d0.base) and y{k}.ndim: o{k} = x0",
                      f"elif b is not None or {same}: y{k}, o{k} = settle(program, y{k}, {arrays}, {operands}, Tensor)"]
        else:
            lines.append(f"if y{k}.base is not None or {same}: y{k}, _ = settle(program, y{k}, {arrays}, {operands}, Tensor)")
    bits = " + ".join([f"({1 << place} if x{i}._requires_grad else 0)" for place, i in enumerate(tensors)])
    given = "".join([f", x{i}" if places[i] else f", d{i}" for i in every])
    lines += [f"bits = {bits}", "if bits and (not flags.restricted or state.grad):",
              f"    out = (forms.get(bits) or learn(bits))({'y0' if count == 1 else f'({results})'}{given})",
              f"    {results} = {'out, ' if count == 1 else 'out'}", "else:", *[f"    y{k} = wrap(y{k})" for k in range(count)]]
    if view is not None:
        lines += [f"if o{k} is not None: mark_view(y{k}, o{k}, view, {k})" for k in range(count)]
    lines.append("return y0" if alone else f"return structure({results})" if fields else f"return structure(({results}))")
    return compile("def known(args, kwargs):\n" + "".join([f"    {line}\n" for line in lines]), "<known call>", "exec")
