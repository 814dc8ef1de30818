"""``x[...]``, ``x[...] = v`` and ``x.at[...]``: index expressions into the entries that ``ir.ops.index`` understands, one program per form and size."""

from __future__ import annotations

import dis
import operator
import re
import sys
from collections.abc import Sequence
from types import CodeType
from typing import Any

import numpy as np

from aotgrad.ir.dims import Dim
from aotgrad_runtime import modes, watchers
from aotgrad_runtime.arrays import array_of, converted, held, nested, overflow
from aotgrad_runtime.dtypes import bfloat16
from aotgrad_runtime.errors import AotgradArgumentError, AotgradError, AotgradIndexError, AotgradIndexTypeError, AotgradTypeError
from aotgrad_runtime.parameter import Parameter
from aotgrad_runtime.tape import cell_of
from aotgrad_runtime.tensor import ArrayTensor, Tensor, wrap
from aotgrad_runtime.watched import written

from . import dispatch, eager, inplace
from .eager import Dual
from .explained import PLACED
from .front import Public
from .known import AGAIN
from .recorder import Recorder
from .sizes import plain_size
from .trace import Traced, current, user_loc, user_place
from .views import ViewExtra, mark_view

__all__ = ["At", "IndexSpec", "getitem", "parse", "setitem", "updated"]

_FULL = ("slice", None, None, None)
_STORE = dis.opmap["STORE_SUBSCR"]
_NODE = {"int": "SelectBackward0", "slice": "SliceBackward0", "new": "UnsqueezeBackward0", "array": "IndexBackward0", "mask": "MaskedSelectBackward0"}


class IndexSpec:
    """An index expression without its arrays: hashable, one entry per dim and new axis."""

    __slots__ = ("_hash", "entries", "node")

    def __init__(self, entries: tuple[tuple[Any, ...], ...]) -> None:
        self.entries = entries
        self._hash = hash(entries)
        kinds = [e[0] for e in entries if e != _FULL]
        self.node = "array" if "array" in kinds else kinds[-1] if kinds else "alias"

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IndexSpec) and self.entries == other.entries

    def __repr__(self) -> str:
        return f"IndexSpec{self.entries}"


def _getters() -> dict[str, Public]:
    base = dispatch.TORCH["getitem"]
    return {kind: Public(base.op, f"getitem_{kind}", base.text, base.canon, node) for kind, node in (*_NODE.items(), ("alias", "AliasBackward0"))}


_GET = _getters()
_SET, _MASKED = dispatch.TORCH["setitem"], dispatch.TORCH["masked_set"]


# ---- reading the expression -----------------------------------------------------------------------------------------------------------

def _bound(v: Any) -> Any:
    return v if v is None else plain_size(v) if isinstance(v, Dim) else operator.index(v)


def _mask_like(e: Any) -> bool:
    return isinstance(e, (bool, np.bool_)) or (isinstance(e, (np.ndarray, Tensor)) and (e._dtype.kind if isinstance(e, Tensor) else e.dtype.kind) == "b")


def _rank(e: Any) -> int:
    return 0 if isinstance(e, (bool, np.bool_)) else len(e.shape)


def _listed(e: Any) -> Any:
    """Lists of numbers as arrays; an empty one is an array of integers."""
    if not isinstance(e, (list, tuple)):
        return e
    if any(isinstance(v, Tensor) for v in e):
        return dispatch.call(dispatch.TORCH["stack"], (list(e),), {})
    out = nested(e, "index")
    return out if out.size else out.astype(np.int64)


def _items(index: Any, ndim: int) -> list[Any]:
    """The parts of an expression, ``...`` and missing dims filled with full slices."""
    items = [_listed(e) for e in (index if isinstance(index, tuple) else (index,))]
    used = sum(_rank(e) if _mask_like(e) else 0 if e is None or e is Ellipsis else 1 for e in items)
    if used > ndim:
        raise AotgradIndexError(f"too many indices for tensor of dimension {ndim}: the index names {used}")
    dots = [i for i, e in enumerate(items) if e is Ellipsis]
    if len(dots) > 1:
        raise AotgradIndexError("an index can only have a single ellipsis ('...')")
    at = dots[0] if dots else len(items)
    return [*items[:at], *[slice(None)] * (ndim - used), *items[at + len(dots):]]


def _mask_arrays(mask: Any, shape: Sequence[Any], dim: int, trace: Any) -> list[Any]:
    """The places where a mask holds, one array per dim of it."""
    if isinstance(mask, Traced):
        raise AotgradIndexError(
            f"{user_loc()}: how many elements a mask computed here selects is known only when the code runs; use ag.where(mask, x, other), or a sum of "
            "x * mask; y[mask] = v works, and for y[mask] *= v write y = y.at[mask].mul(v)")
    data = np.asarray(mask._data if isinstance(mask, Tensor) else mask)
    for k, (m, n) in enumerate(zip(data.shape, shape[dim:])):
        seen = trace.example(n) if isinstance(n, Dim) else None
        if seen is not None and seen != m:
            raise AotgradIndexError(f"{user_loc()}: the shape of the mask {list(data.shape)} at dim {k} does not match the indexed array, "
                                    f"whose dim {dim + k} is of size {seen}")
        if isinstance(n, Dim):
            trace.assume(n, m)
        elif m != n:
            raise AotgradIndexError(f"the shape of the mask {list(data.shape)} at dim {k} does not match the indexed array, {[str(d) for d in shape]} at dim {dim + k}")
    return [np.asarray(i) for i in data.nonzero()]


class Parsed:
    """An expression read: its form, its arrays, and whether 0-d masks added dims in front of which x gets one of size 1."""

    __slots__ = ("arrays", "extra", "spec")

    def __init__(self, entries: list[tuple[Any, ...]], arrays: list[Any], extra: list[int]) -> None:
        self.spec, self.arrays, self.extra = IndexSpec(tuple(entries)), arrays, extra


def parse(x: Any, index: Any) -> Parsed:
    """The expression ``x[index]``; errors name what is wrong with it."""
    shape, trace = x.shape, current() if not isinstance(x, Traced) else x._trace
    entries: list[tuple[Any, ...]] = []
    arrays: list[Any] = []
    extra: list[int] = []  # dims of x at which one of size 1 is put, for masks without dims
    dim = 0
    for e in _items(index, len(shape)):
        if _mask_like(e):
            if _rank(e) == 0:
                arrays.append(np.zeros(int(_truth(e)), np.int64))
                entries.append(("array",))
                extra.append(dim)
                continue
            found = _mask_arrays(e, shape, dim, trace)
            arrays += found
            entries += [("array",)] * len(found)
            dim += len(found)
            continue
        entry, array = _entry(e, trace)
        entries.append(entry)
        if array is not None:
            arrays.append(array)
        dim += entry[0] != "new"
    return Parsed(entries, arrays, extra)


def _truth(e: Any) -> bool:
    if isinstance(e, Traced):
        _mask_arrays(e, (), 0, None)
    return bool(e._data if isinstance(e, Tensor) else e)


def _entry(e: Any, trace: Any) -> tuple[tuple[Any, ...], Any]:
    if isinstance(e, slice):
        return (_FULL if e == slice(None) else ("slice", _bound(e.start), _bound(e.stop), _bound(e.step))), None
    if e is None:
        return ("new",), None
    if isinstance(e, (Tensor, np.ndarray)):
        kind = e._dtype.kind if isinstance(e, Tensor) else e.dtype.kind
        if kind not in "iu":
            raise AotgradIndexError(f"{user_loc()}: an index array has dtype {e.dtype}; integers or booleans are needed")
        if len(e.shape) == 0 and trace is None:
            return ("int", int(e._data if isinstance(e, Tensor) else e)), None
        return ("array",), e
    if isinstance(e, Dim):
        return ("int", plain_size(e)), None
    try:
        return ("int", operator.index(e)), None
    except AotgradError:
        raise
    except TypeError:
        raise AotgradIndexTypeError(f"{user_loc()}: {type(e).__name__} is no index: integers, slices, None, ..., integer and boolean arrays are") from None


# ---- reading and writing ----------------------------------------------------------------------------------------------------------------

def _arguments(x: Any, parsed: Parsed, **more: Any) -> dict[str, Any]:
    if parsed.extra:
        shape = list(x.shape)
        for at in reversed(parsed.extra):
            shape.insert(at, 1)
        x = dispatch.run(dispatch.TORCH["reshape"], {"input": x, "shape": (tuple(shape),)})
    out = {"input": x, **more, "spec": parsed.spec}
    if parsed.arrays:
        out["indices"] = parsed.arrays
    return out


def _explained(x: Any, parsed: Parsed, error: AotgradIndexError) -> AotgradIndexError:
    """Which index was out of range, where the arrays are at hand."""
    dim, arrays = 0, iter(parsed.arrays)
    for entry in parsed.spec.entries:
        if entry[0] == "array":
            a = next(arrays)
            data, n = (a if isinstance(a, np.ndarray) else None if isinstance(a, Traced) else a._data), x.shape[dim] if dim < len(x.shape) else None
            if data is not None and isinstance(n, int):
                wrong = data[(data < -n) | (data >= n)]
                if wrong.size:
                    return AotgradIndexError(f"{user_loc()}: index {int(wrong.flat[0])} is out of bounds for dimension {dim} with size {n}")
        dim += entry[0] != "new"
    return error if re.match(PLACED, str(error)) else type(error)(f"{user_loc()}: {error}")


_specs: dict[Any, IndexSpec] = {}
_shown: dict[Any, Recorder] = {}  # of recorded expressions
_KEPT = 4096


def _part(x: Any, index: Any) -> Any:
    """``x[index]`` of integers and slices and a tensor with numbers: the short way, which has the meaning of the general one. None: not for this call."""
    items = index if type(index) is tuple else (index,)
    entries: list[tuple[Any, ...]] = []
    for e in items:
        kind = type(e)
        if kind is int:
            entries.append(("int", e))
        elif kind is slice:
            start, stop, step = e.start, e.stop, e.step
            if not (start is None or type(start) is int) or not (stop is None or type(stop) is int) or not (step is None or type(step) is int and step > 0):
                return None
            entries.append(("slice", start, stop, step))
        else:
            return None
    data = x._data
    missing = data.ndim - len(entries)
    if missing < 0:
        return None
    whole = (*items, ...)  # an array also where all dims are gone
    try:
        part = data[whole]
    except IndexError:  # the general way says which index it was
        return None
    key = (*entries, missing)
    spec = _specs.get(key)
    if spec is None:
        if len(_specs) >= _KEPT:
            _specs.clear()
        spec = _specs[key] = IndexSpec((*entries, *[_FULL] * missing))
    if x._requires_grad and modes.state.grad:
        recorder = _shown.get((key, data.shape, data.dtype.char))
        if recorder is None:
            if len(_shown) >= _KEPT:
                _shown.clear()
            recorder = _shown[key, data.shape, data.dtype.char] = Recorder(dispatch.program(_GET[spec.node], {"input": x, "spec": spec}), (0,))
        program = recorder.program
        program.calls += 1
        if program.calls > AGAIN and not watchers.shared.count:
            out = (recorder.forms.get(1) or recorder.learn(1))(part, x)
        else:
            out = eager.record(program, [x], [part], Tensor)[0]
    else:
        out = wrap(part)
    mark_view(out, x, ("index", spec))
    return out


def getitem(x: Any, index: Any, kind: str = "") -> Any:
    """``x[index]``; ``kind`` names the node otherwise than the expression does."""
    if (type(x) is Tensor or type(x) is Parameter) and not kind and not x._weak and current() is None and dispatch.unwatched():
        out = _part(x, index)
        if out is not None:
            return out
    parsed = parse(x, index)
    try:
        return dispatch.run(_GET[kind or parsed.spec.node], _arguments(x, parsed))
    except AotgradIndexError as error:
        raise _explained(x, parsed, error) from None


def _single_mask(x: Any, index: Any) -> Any:
    """The mask, where the expression is one traced mask: a write through it is a selection."""
    items = index if isinstance(index, tuple) else (index,)
    return items[0] if len(items) == 1 and isinstance(items[0], Traced) and _mask_like(items[0]) else None


def updated(x: Any, index: Any, value: Any, mode: str = "set") -> Any:
    """A copy of ``x`` with the indexed part replaced by ``value`` or combined with it."""
    if isinstance(value, (list, tuple)):
        value = nested(value, "value")
    if isinstance(value, np.ndarray) and value.dtype.kind not in "fciub":
        raise AotgradTypeError(f"{user_loc()}: the value written has dtype {value.dtype}; numbers are needed")
    mask = _single_mask(x, index)
    if mask is not None:
        return dispatch.run(_MASKED, {"input": x, "mask": mask, "value": value, "mode": mode})
    parsed = parse(x, index)
    try:
        out = dispatch.run(_SET, _arguments(x, parsed, value=value, mode=mode))
    except AotgradIndexError as error:
        raise _explained(x, parsed, error) from None
    return dispatch.run(dispatch.TORCH["reshape"], {"input": out, "shape": (tuple(x.shape),)}) if parsed.extra else out


def setitem(x: Any, index: Any, value: Any) -> None:
    """``x[index] = value``: in a trace x gets a new value; outside, its memory is written, and the history follows where gradients are recorded."""
    if isinstance(value, Tensor) and isinstance(value._extra, ViewExtra) and value._extra.parent() is x:
        how = value._extra.how  # the end of x[i] += v: the view was written, and x with it
        if how[0] == "index" and not _has_arrays(index):
            spec = parse(x, index).spec
            if spec == how[1]:
                return
            if _swaps(x, value, spec):
                raise AotgradTypeError(f"{user_loc()}: shuffle swaps rows through views, where the second write reads what the first has written: rows would be lost. "
                                       "Take the rows in another order: x[rng.permutation(len(x))]")
    if isinstance(x, (Traced, Dual)) or isinstance(value, (Traced, Dual)) or inplace.recorded(x, value) or current() is not None:
        inplace.store(x, updated(x, index, value), "x[i] = v")
        return
    parse(x, index)
    inplace.check_writable(x, "x[i] = v", False)
    try:
        with np.errstate(all="ignore"):
            _write(x, index, _given(x, value))
    except (AotgradError, OverflowError, IndexError, ValueError, TypeError) as error:
        raise _said(x, error) from None
    written(x)


def _shuffles(code: CodeType) -> bool:
    """Whether it is that of ``random.shuffle``; nobody calls it who has not imported it."""
    module = sys.modules.get("random")
    return module is not None and code is module.Random.shuffle.__code__


def _swaps(x: Any, value: Any, spec: Any) -> bool:
    """Whether a shuffle of a library's, not a line of the user's, is at x[i], x[j] = x[j], x[i]: what is written over is in use as a view too."""
    place = user_place()
    if place is None or not _shuffles(place[0]) and place[0].co_code[place[1]] == _STORE:  # compiled code has no line that stores
        return False
    views = [r() for r in cell_of(x).views or ()]
    return any(v is not None and v is not value and isinstance(v._extra, ViewExtra) and v._extra.parent() is x and v._extra.how[:2] == ("index", spec) for v in views)


def _given(x: Any, value: Any) -> Any:
    """What is written into the memory of ``x``: numbers, so that a write has failed before its first or not at all."""
    if isinstance(value, Tensor):
        return converted(value._data, x._dtype) if value._dtype is not x._dtype and bfloat16 in (value._dtype, x._dtype) else value._data
    if isinstance(x, ArrayTensor) and x._dtype is not bfloat16:  # NumPy's rules
        return value if isinstance(value, np.ndarray) and value.dtype.kind in "biufc" else np.asarray(value, x._data.dtype)
    if isinstance(value, (list, tuple, np.ndarray)):
        return array_of(value, x._dtype)
    return held(value, x._dtype)


def _has_arrays(index: Any) -> bool:
    return any(isinstance(e, (Tensor, np.ndarray, list)) for e in (index if isinstance(index, tuple) else (index,)))


def _plain(e: Any) -> Any:
    if isinstance(e, Tensor):
        return e._data
    return [_plain(v) for v in e] if isinstance(e, list) else e


def _write(x: Any, index: Any, value: Any) -> None:
    where = tuple(_plain(e) for e in index) if isinstance(index, tuple) else _plain(index)
    data = inplace.memory(x)
    try:
        data[where] = value
    except Exception:  # index or shape are wrong: nothing was written. Looking first would read what an array picks, and take a third of the time of a write.
        cell_of(x).version -= 1
        raise


def _said(x: Any, error: Exception) -> Exception:
    """What is raised for ``error`` of a write into ``x``: ours, with the line."""
    if isinstance(error, OverflowError):
        error = overflow(x._dtype)
    elif not isinstance(error, AotgradError):
        error = (AotgradIndexError if isinstance(error, IndexError) else AotgradArgumentError if isinstance(error, ValueError) else AotgradTypeError)(str(error))
    return error if str(user_loc()) in str(error) else type(error)(f"{user_loc()}: {error}")


class _Place:
    """``x.at[i]``: functional updates of the indexed part."""

    __slots__ = ("_index", "_x")

    def __init__(self, x: Any, index: Any) -> None:
        self._x, self._index = x, index

    def get(self) -> Any:
        """``x[i]``."""
        return getitem(self._x, self._index)

    def set(self, value: Any) -> Any:
        """A copy of x with the part replaced; of repeated indices the last stays."""
        return updated(self._x, self._index, value, "set")

    def add(self, value: Any) -> Any:
        """A copy of x with ``value`` added; repeated indices add up."""
        return updated(self._x, self._index, value, "add")

    def mul(self, value: Any) -> Any:
        """A copy of x with the part multiplied; repeated indices multiply in turn."""
        return updated(self._x, self._index, value, "mul")

    multiply = mul

    def min(self, value: Any) -> Any:
        """A copy of x with the part limited to at most ``value``."""
        return updated(self._x, self._index, value, "min")

    def max(self, value: Any) -> Any:
        """A copy of x with the part limited to at least ``value``."""
        return updated(self._x, self._index, value, "max")


class At:
    """``x.at``, to be indexed.

    >>> import aotgrad as ag
    >>> ag.tensor([1.0, 2.0, 3.0]).at[[0, 0]].add(1.0)
    tensor([3., 2., 3.])
    """

    __slots__ = ("_x",)

    def __init__(self, x: Any) -> None:
        self._x = x

    def __getitem__(self, index: Any) -> _Place:
        return _Place(self._x, index)
