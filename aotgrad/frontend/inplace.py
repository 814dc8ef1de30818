"""Writing into tensors: values, history, and views. The one place where a tensor changes after it was made.

A write goes into the memory itself (arrays saved for backward are copied first, so the tape keeps the old numbers). Where it is recorded, the tensor takes over the
node of the functional result, the tensor it is a view of gets a write of its own, and every other live view of that one is derived anew.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aotgrad_runtime import modes
from aotgrad_runtime.errors import AotgradNotImplementedError, AotgradRuntimeError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.tape import cell_of
from aotgrad_runtime.tensor import ArrayTensor, Tensor

from . import dispatch
from .eager import Dual, ViewExtra, dual_class
from .trace import Traced, user_loc

__all__ = ["check_writable", "memory", "recorded", "store", "update"]


def recorded(x: Any, *others: Any) -> bool:
    """Whether a write of ``others`` into ``x`` becomes part of a graph."""
    return modes.state.grad and any(isinstance(t, Tensor) and t._requires_grad for t in (x, *others))


def _parent(x: Any) -> Any:
    extra = x._extra
    return extra.parent() if isinstance(extra, ViewExtra) else None


def check_writable(x: Any, name: str, history: bool) -> None:
    """Refuses writes that would lose a leaf's gradient, and recorded ones through views that cannot be written back."""
    at, view = x, ""
    while at is not None:
        if modes.state.grad and at._requires_grad and at._node is None and not isinstance(at, (Traced, Dual)):
            hint = "; copy it first (x = x.copy())" if isinstance(at, ArrayTensor) else ""
            raise AotgradRuntimeError(f"{user_loc()}: {name}: a {view}leaf Variable that requires grad is being used in an in-place operation{hint}.")
        parent = _parent(at)
        if history and parent is not None and at._extra.how[0] == "other":
            raise AotgradNotImplementedError(f"{user_loc()}: {name}: a recorded write through this kind of view (split, narrow, diagonal, expand) is not available; "
                                             "write to the tensor it came from (x[i] = v), or copy it first with clone()")
        at, view = parent, "view of a "


def memory(x: Any) -> Any:
    """The array to write to: arrays saved for backward keep the old numbers."""
    data = x._data
    if not data.flags.writeable:
        raise AotgradRuntimeError(f"{user_loc()}: this memory cannot be written: it is read-only, or one element stands for several (expand); use clone() first")
    cell_of(x).bump()
    return data


def store(x: Any, new: Any, name: str) -> Any:
    """``x`` takes the numbers and the history of ``new``, which has its shape and dtype."""
    if isinstance(x, Traced) or isinstance(new, Traced):
        return _store_traced(x, new, name)
    if isinstance(x, Dual) or isinstance(new, Dual):
        return _store_dual(x, new, name)
    history = recorded(x, new)
    check_writable(x, name, history)
    np.copyto(memory(x), new._data)
    if history:
        _adopt(x, new)
        _write_back(x)
    return x


def _adopt(x: Any, new: Any) -> None:
    x._node, x._index, x._requires_grad = new._node, new._index, new._requires_grad


def _store_traced(x: Any, new: Any, name: str) -> Any:
    if not isinstance(x, Traced):
        raise AotgradTypeError(f"{user_loc()}: {name}: a tensor from outside is written in a traced function; return the new value, or pass the tensor as an argument")
    if new._trace is not x._trace:
        raise AotgradTypeError(f"{user_loc()}: {name}: a value from outside this loop or branch is written in its body; return the new value from the body instead")
    check_writable(x, name, True)
    x._value = new._value
    _write_back(x)
    return x


def _store_dual(x: Any, new: Any, name: str) -> Any:
    """Forward mode: primal and tangent are replaced; the memory stays as it was."""
    if _parent(x) is not None:
        parent, how = _parent(x), x._extra.how
        if how[0] != "index":
            raise AotgradNotImplementedError(f"{user_loc()}: {name}: a write through this view is not available in forward mode; write x[i] = v")
        store(parent, _put(parent, new, how[1]), name)
    if not isinstance(new, Dual):
        x._primal, x._tangent = new, None
        return x
    if not isinstance(x, Dual):
        x.__class__ = dual_class(x._value_type)
    x._primal, x._tangent, x._level = new._primal, new._tangent, new._level
    return x


def _put(parent: Any, value: Any, spec: Any) -> Any:
    return dispatch.run(dispatch.TORCH["setitem"], {"input": parent, "value": value, "spec": spec})


def _undone(child: Any, parent: Any) -> Any:
    """What ``parent`` becomes when its view is ``child``."""
    how = child._extra.how
    if how[0] == "index":
        return _put(parent, child, how[1])
    if how[0] == "reshape":
        return dispatch.run(dispatch.TORCH["reshape"], {"input": child, "shape": (tuple(parent.shape),)})
    inverse = sorted(range(len(how[1])), key=lambda i: how[1][i])
    return dispatch.run(dispatch.TORCH["permute"], {"input": child, "dims": (inverse,)})


def _again(child: Any, parent: Any) -> Any:
    """The view ``child`` of ``parent``, made anew."""
    how = child._extra.how
    if how[0] == "index":
        return dispatch.run(dispatch.TORCH["getitem"], {"input": parent, "spec": how[1]})
    if how[0] == "reshape":
        return dispatch.run(dispatch.TORCH["reshape"], {"input": parent, "shape": (tuple(child.shape),)})
    return dispatch.run(dispatch.TORCH["permute"], {"input": parent, "dims": (list(how[1]),)})


def _take_over(x: Any, new: Any) -> None:
    if isinstance(x, Traced):
        x._value = new._value
    else:
        _adopt(x, new)


def _write_back(x: Any) -> None:
    """The tensors that ``x`` is a view of, and their other views, get the history of the write (their memory has it already)."""
    fresh = {id(x)}
    root, child = x, x
    while (parent := _parent(child)) is not None:
        _take_over(parent, _undone(child, parent))
        fresh.add(id(parent))
        root = child = parent
    if root._extra is None or root._extra.cell is None:
        return
    for ref in list(root._extra.cell.views or ()):  # in the order they were made: a view comes after what it is a view of
        view = ref()
        parent = None if view is None else _parent(view)
        if parent is None or id(view) in fresh or id(parent) not in fresh:
            continue
        if view._extra.how[0] == "other":
            raise AotgradNotImplementedError(f"{user_loc()}: a tensor was written while a view of it (split, narrow, diagonal, expand) is alive; clone() that view")
        _take_over(view, _again(view, parent))
        fresh.add(id(view))


def update(x: Any, new: Any, name: str) -> Any:
    """``x.name_(...)``: the result of the function, written into ``x``. Shape must stay, and the dtype must be able to hold the result."""
    if tuple(new.shape) != tuple(x.shape):
        raise AotgradValueError(f"{user_loc()}: {name}: output with shape {list(x.shape)} doesn't match the broadcast shape {list(new.shape)}")
    have, want = new._dtype, x._dtype
    if have is not want:
        order = "biufc"
        if order.index(have.kind) > order.index(want.kind) and (have.kind in "fc" or want.kind == "b"):
            raise AotgradTypeError(f"{user_loc()}: {name}: result type {have.name} can't be cast to the desired output type {want.name}")
        new = dispatch.run(dispatch.TORCH["astype"], {"input": new, "dtype": want})
    return store(x, new, name)
