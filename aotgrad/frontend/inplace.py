"""Writing into tensors: values, history, and views. The one place where a tensor changes after it was made.

A write goes into the memory itself (arrays saved for backward are copied first, so the tape keeps the old numbers). Where it is recorded, the tensor takes over the
node of the functional result, the tensor it is a view of gets a write of its own, and every other live view of that one is derived anew.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, NoReturn

import numpy as np

from aotgrad.ir import dims
from aotgrad_runtime import modes
from aotgrad_runtime.errors import AotgradError, AotgradRuntimeError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.parameter import Parameter
from aotgrad_runtime.tape import Extra, cell_of, node_extra_of
from aotgrad_runtime.tensor import ArrayTensor, Tensor
from aotgrad_runtime.watched import written

from . import dispatch, placement
from .eager import Dual, dual_class, make_dual, rename
from .ledger import DETACHED, twin
from .placement import parent_of
from .sizes import plain_size
from .subtrace import builder_of
from .trace import Traced, TracedArray, user_loc
from .views import ViewExtra

__all__ = ["check_writable", "leaf_shown", "memory", "recorded", "retains", "store", "turn", "update"]


def recorded(x: Any, *others: Any) -> bool:
    """Whether a write of ``others`` into ``x`` becomes part of a graph."""
    return modes.state.grad and any(isinstance(t, Tensor) and t._requires_grad for t in (x, *others))


def check_writable(x: Any, name: str, history: bool) -> None:
    """Refuses writes that would lose a leaf's gradient, and those through a view that was made in another grad mode."""
    placement.check_array(x)
    made = x._extra.made if isinstance(x._extra, ViewExtra) else None
    if made is not None and modes.state.grad and (history or x._extra.base._requires_grad):
        raise AotgradRuntimeError(f"A view was created in {made} mode and is being modified inplace with grad mode enabled. Move both the view and the write into the "
                                  f"{made} block if the write is not to be recorded, or both out of it if it is ({user_loc()}: {name}).")
    if modes.state.grad and (at := leaf_shown(x)) is not None:
        _refuse_leaf(at, at is not x, name)


def leaf_shown(x: Any) -> Any:
    """The leaf that requires grad whose memory ``x`` shows, itself or as a view; None where there is none."""
    at = x
    while at is not None and (not at._requires_grad or at._node is not None or isinstance(at, (Traced, Dual)) or at._extra is not None and at._extra.adrift):
        at = parent_of(at)
    return at


def _refuse_leaf(leaf: Any, view: bool, name: str) -> NoReturn:
    hint = "; copy it first (x = x.copy())" if isinstance(leaf, ArrayTensor) else ""
    raise AotgradRuntimeError(f"a {'view of a ' if view else ''}leaf Variable that requires grad is being used in an in-place operation{hint}. ({user_loc()}: {name})")


def retains(x: Any) -> bool:
    """Whether a write to ``x`` makes the gradient of the new value that of a tensor which retains its gradient."""
    while x is not None and (x._extra is None or not x._extra.retains):
        x = parent_of(x)
    return x is not None


def memory(x: Any) -> Any:
    """The array to write to: arrays saved for backward keep the old numbers."""
    data = x._data
    if x._extra is not None and x._extra.inference and not modes.state.inference:
        raise AotgradRuntimeError("Inplace update to inference tensor outside InferenceMode is not allowed. You can make a clone to get a normal tensor before doing "
                                  f"inplace update ({user_loc()}).")
    if not data.flags.writeable and isinstance(x, ArrayTensor) and not _root(x)._data.flags.writeable:
        return _own_memory(x)
    if not data.flags.writeable and isinstance(x._extra, ViewExtra) and all(s or n < 2 for s, n in zip(data.strides, data.shape)):
        with contextlib.suppress(ValueError):
            data.flags.writeable = True  # NumPy marks what it expanded as read-only, also where every element is one of its own
    if not data.flags.writeable:
        raise AotgradRuntimeError(f"{user_loc()}: this memory cannot be written: it is read-only, or one element stands for several (expand); use clone() first")
    cell_of(x).bump()
    return data


def _root(x: Any) -> Any:
    while (parent := parent_of(x)) is not None:
        x = parent
    return x


@modes.intact
def _own_memory(x: Any) -> Any:
    """The memory to write to where it was the caller's: a copy. What ``x`` shows a part of, and what shows a part of that, moves along."""
    root = _root(x)
    root._data = root._data.copy(order="K")
    cell_of(root).bump()
    with modes.no_grad():
        for ref in list(cell_of(root).views or ()):
            view = ref()
            if view is not None and (parent := parent_of(view)) is not None:
                view._data = _again(view, parent)._data
    return x._data


def store(x: Any, new: Any, name: str) -> Any:
    """``x`` takes the numbers and the history of ``new``, which has its shape and dtype."""
    if isinstance(x, Traced) or isinstance(new, Traced):
        _store_traced(twin(x), twin(new), name)
        return x
    if isinstance(x, Dual) or isinstance(new, Dual):
        return _store_dual(x, new, name)
    history = recorded(x, new)
    check_writable(x, name, history)
    np.copyto(memory(x), new._data)
    written(x)
    if history:
        _adopt(x, new)
        _write_back(x)
    return x


def _adopt(x: Any, new: Any) -> None:
    if x._extra is not None and x._extra.retains:  # .grad is that of the newest value, as in torch
        node_extra_of(x._node).retained.pop(x._index, None)
        x._extra.retains = new._node is not None
        if new._node is not None:
            node_extra_of(new._node).retained[new._index] = weakref.ref(x)
    x._node, x._index, x._requires_grad = new._node, new._index, new._requires_grad


def _store_traced(x: Any, new: Any, name: str) -> Any:
    if not isinstance(x, Traced):
        raise AotgradTypeError(f"{user_loc()}: {name}: a tensor from outside is written in a function that is traced to be built or transformed; return the new value, "
                               "or pass the tensor as an argument. Functions of ag.compile can write it")
    if new._trace is not x._trace:
        raise AotgradTypeError(f"{user_loc()}: {name}: a value from outside this loop or branch is written in its body; return the new value from the body instead")
    placement.settle(x, name)
    check_writable(x, name, True)
    if not isinstance(x, TracedArray) and modes.state.grad and x._trace.ledger is not None:
        _check_leaves(x, x._trace.ledger, name)
    x._value = _kept_history(x, new)
    _write_back(x, name)
    return x


def _check_leaves(x: Any, ledger: Any, name: str) -> None:
    """Refuses a recorded write to a leaf, as ``check_writable`` does for tensors with numbers; calls ask again, as their tensors are others."""
    at = x
    while at is not None:
        if ledger.owns(at._leaf):
            _refuse_leaf(at, at is not x, name)
        if ledger.outside(at) and id(at) not in ledger.flags:
            leaf = leaf_shown(ledger.reals[id(at)])  # the tensor itself may be a view of one
            if leaf is not None:
                _refuse_leaf(leaf, True, name)
            ledger.no_leaves[id(at)] = at
        at = None if getattr(at._extra, "how", None) == DETACHED else parent_of(at)


def _kept_history(x: Any, new: Any) -> Any:
    """The value of a traced ``x`` after the write, in its memory order; one that is not recorded changes numbers and leaves the derivative as it was."""
    if modes.state.grad or not x._dtype.is_differentiable:
        return _fitted(x, new)
    return _grafted(x, new)


def _fitted(x: Any, new: Any) -> Any:
    """The value of ``new``, with the sizes and in the memory order of that of ``x``."""
    b = builder_of(x._trace)
    for i, (have, want) in enumerate(zip(new._value.type.shape, x._value.type.shape)):
        b.equate(have, want, f"a write: dim {i}")
    v, layout = b.refresh(new._value), b.refresh(x._value).type.layout
    return v if v.type.layout == layout else b.relayout(v, layout=layout)


def _grafted(x: Any, new: Any) -> Any:
    return builder_of(x._trace).graft(_fitted(x, new), x._value)


def _store_dual(x: Any, new: Any, name: str) -> Any:
    """Forward mode: primal and tangent are replaced; the memory stays as it was."""
    check_writable(x, name, False)
    _replace(x, new)
    _write_back(x)
    return x


def _replace(x: Any, new: Any) -> None:
    if not isinstance(new, Dual):
        x._primal, x._tangent = new, None
        return
    if not isinstance(x, Dual):
        x.__class__ = dual_class(type(x))
    x._primal, x._tangent, x._level = new._primal, new._tangent, new._level


def _put(parent: Any, value: Any, spec: Any, *indices: Any) -> Any:
    return dispatch.run(dispatch.TORCH["setitem"], {"input": parent, "value": value, "spec": spec, **_indices(*indices)})


def _indices(given: Any = None) -> dict[str, Any]:
    return {} if given is None else {"indices": list(given)}


def _undone(child: Any, parent: Any, how: tuple[Any, ...]) -> Any:
    """What ``parent`` becomes when its view (``how``) is ``child``."""
    if how[0] == "index":
        return _put(parent, child, *how[1:])
    if how == DETACHED:
        return type(parent)._of(parent._trace, _grafted(parent, child))
    if how[0] == "reshape":
        return dispatch.run(dispatch.TORCH["reshape"], {"input": child, "shape": (tuple(parent.shape),)})
    if how[0] == "call":
        return _scattered(child, parent, how)
    inverse = sorted(range(len(how[1])), key=lambda i: how[1][i])
    return dispatch.run(dispatch.TORCH["permute"], {"input": child, "dims": (inverse,)})


def _again(child: Any, parent: Any) -> Any:
    """The view ``child`` of ``parent``, made anew."""
    how = child._extra.how
    if how[0] == "index":
        return dispatch.run(dispatch.TORCH["getitem"], {"input": parent, "spec": how[1], **_indices(*how[2:])})
    if how == DETACHED:
        return type(parent)._of(parent._trace, parent._trace.builder.stop_gradient(parent._value))
    if how[0] == "reshape":
        return dispatch.run(dispatch.TORCH["reshape"], {"input": parent, "shape": (tuple(child.shape),)})
    if how[0] == "call":
        return _called(parent, how)
    return dispatch.run(dispatch.TORCH["permute"], {"input": parent, "dims": (list(how[1]),)})


def _called(x: Any, how: tuple[Any, ...]) -> Any:
    """The view of ``x`` that a function gave, by calling it again."""
    _, public, arguments, place = how
    found = dispatch.run(public, {public.tensors[0]: x, **arguments})
    return found[place] if isinstance(found, tuple) else found


def _scattered(child: Any, parent: Any, how: tuple[Any, ...]) -> Any:
    """``child`` written where the function takes its result from: the same function on the places of all elements says where."""
    if isinstance(parent, Traced):
        count = dims.product(plain_size(tuple(parent.shape)))
        numbers = type(parent)._of(parent._trace, parent._trace.builder.iota(shape=(count,)))
    else:
        numbers = parent._wrap(np.arange(parent._data.size))
    reshape = dispatch.TORCH["reshape"]
    places = _called(dispatch.run(reshape, {"input": numbers, "shape": (tuple(parent.shape),)}), how)
    flat = [dispatch.run(reshape, {"input": x, "shape": ((-1,),)}) for x in (parent, places, child)]
    written = dispatch.run(dispatch.TORCH["scatter"], {"input": flat[0], "dim": 0, "index": flat[1], "src": flat[2]})
    return dispatch.run(reshape, {"input": written, "shape": (tuple(parent.shape),)})


def _take_over(x: Any, new: Any) -> None:
    if isinstance(x, Traced):
        x._value = _kept_history(x, new)
    elif isinstance(x, Dual) or isinstance(new, Dual):
        _replace(x, new)
    else:
        _adopt(x, new)


def _write_back(x: Any, name: str = "") -> None:
    """The tensors that ``x`` is a view of, and their other views, get the history of the write (their memory has it already)."""
    fresh = {id(x)}
    root, child = x, x
    while (parent := parent_of(child)) is not None:
        _take_over(parent, _undone(child, parent, child._extra.how))
        fresh.add(id(parent))
        root = child = parent
    if root._extra is None or root._extra.cell is None:
        return
    views = [view for ref in list(root._extra.cell.views or ()) if (view := ref()) is not None]
    for view in views:  # in the order they were made: a view comes after what it is a view of
        parent = parent_of(view)
        if parent is None or id(view) in fresh or id(parent) not in fresh or isinstance(view, Traced) and view._trace is not x._trace:
            continue
        new = _again(view, parent)
        if type(new) is Tensor and type(parent) in (Tensor, Parameter) and new._node is not None and new._node is not parent._node:
            rename(new._node, "AsStridedBackward0")
        _take_over(view, new)
        fresh.add(id(view))
    if isinstance(x, Traced):
        placement.spoil(fresh, views, user_loc(), name)


def _written_straight(x: Any, new: Any) -> bool:
    """``store`` for two plain tensors of one shape and dtype of which neither is recorded, where ``x`` is no view."""
    data, found, extra = x._data, new._data, x._extra
    if data.shape != found.shape or data.dtype is not found.dtype or not data.flags.writeable or (x._requires_grad or new._requires_grad) and modes.state.grad:
        return False
    if extra is None:
        cell_of(x).bump()
        np.copyto(data, found)
        return True
    if extra.inference or isinstance(extra, ViewExtra):
        return False
    cell_of(x).bump()
    np.copyto(data, found)
    written(x)
    return True


def update(x: Any, new: Any, name: str) -> Any:
    """``x.name_(...)``: the result of the function, written into ``x``. Shape must stay, and the dtype must be able to hold the result."""
    if (type(x) is Tensor or type(x) is Parameter) and type(new) is Tensor and _written_straight(x, new):
        return x
    kind: type[AotgradError]
    if tuple(new.shape) != tuple(x.shape):
        kind = AotgradValueError if isinstance(x, ArrayTensor) else AotgradRuntimeError
        raise kind(f"{user_loc()}: {name}: output with shape {list(x.shape)} doesn't match the broadcast shape {list(new.shape)}")
    have, want = new._dtype, x._dtype
    if have is not want:
        order = "biufc"
        if order.index(have.kind) > order.index(want.kind) and (have.kind in "fc" or want.kind == "b"):
            kind = AotgradTypeError if isinstance(x, ArrayTensor) else AotgradRuntimeError
            raise kind(f"{user_loc()}: {name}: result type {have.name} can't be cast to the desired output type {want.name}")
        new = dispatch.run(dispatch.TORCH["astype"], {"input": new, "dtype": want})
    if recorded(x) and not new._requires_grad and not isinstance(x, (Traced, Dual)):  # of comparisons: the gradient is 0, and x stays part of the graph
        new = dispatch.run(dispatch.TORCH["where"], {"condition": x._wrap(np.array(True)), "input": new, "other": x})
    return store(x, new, name)


def into(public: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call with ``out=``: the results, written into the tensors that are given for them, which have their shapes or no elements. It has no derivative."""
    name, given = public.name, kwargs["out"]
    found = dispatch.call(public, args, {k: v for k, v in kwargs.items() if k != "out"})
    outs, results = (given, found) if isinstance(found, tuple) else ((given,), (found,))
    if not isinstance(outs, (tuple, list)) or len(outs) != len(results) or not all(isinstance(o, Tensor) for o in outs):
        wanted = "a tensor" if len(results) == 1 else f"a tuple of {len(results)} tensors"
        raise AotgradTypeError(f"{user_loc()}: {name}: out must be {wanted}, not {type(given).__name__}")
    if modes.state.grad and any(x._requires_grad for x in (*outs, *results)):
        raise AotgradRuntimeError(f"{user_loc()}: {name}(): functions with out=... arguments don't support automatic differentiation, but one of the arguments requires "
                                  "grad. Leave out= away, or call it under no_grad")
    for o, new in zip(outs, results):
        if tuple(o.shape) != tuple(new.shape):
            if isinstance(o, Traced) or isinstance(new, Traced) or o.numel():
                raise AotgradRuntimeError(f"{user_loc()}: {name}: out has shape {list(o.shape)}, the result {list(new.shape)}; give one of that shape, or ag.empty(0)")
            o.data = dispatch.run(dispatch.TORCH["astype"], {"input": new, "dtype": o._dtype}).clone()
            continue
        update(o, new, name)
    return given


dispatch.into = into


# ---- another shape in place ----------------------------------------------------------------------------------------------------------

_OF_THE_TENSOR = ("grad", "hooks", "post_hooks", "retains", "pointed", "accumulator")


def turn(x: Any, how: Any, name: str) -> Any:
    """``x.name_(...)`` of a function ``how`` that gives a view: ``x`` becomes that view of what it was. Its numbers stay where they are, and so do its other views."""
    if isinstance(x, ArrayTensor):
        raise AotgradTypeError(f"{user_loc()}: {name} changes the shape of a tensor in place; in a call entered with NumPy values bind the result: "
                               f"x = x.{name.removesuffix('_')}(...)")
    found = twin(x)
    if isinstance(found, Traced) and found._trace.ledger is not None and found._trace.ledger.outside(found):
        raise AotgradTypeError(f"{user_loc()}: {name} would change the shape of a tensor from outside in a compiled function; bind the result: "
                               f"x = x.{name.removesuffix('_')}(...)")
    x = found
    check_writable(x, name, recorded(x))
    before = _before(x)
    try:
        out = how(before)
    except BaseException:
        _rename(before, x)
        raise
    _become(x, out, before)
    return x


def _before(x: Any) -> Any:
    """A tensor that is what ``x`` is, and that the views of ``x`` are views of from now on."""
    if isinstance(x, Traced):
        out = type(x)._of(x._trace, x._value)
        out._placed = placement.placed(x)
        x.__dict__.pop("_placed")  # it is another view now
    elif isinstance(x, Dual):
        out = make_dual(x._primal, x._tangent, x._level)
    else:
        out = object.__new__(type(x)._value_type)
        out._data, out._node, out._index, out._requires_grad = x._data, x._node, x._index, x._requires_grad
    cell = cell_of(x)
    out._extra = x._extra if isinstance(x._extra, ViewExtra) else Extra()
    out._extra.cell, out._extra.inference = cell, x._extra.inference
    _rename(x, out)
    return out


def _rename(x: Any, new: Any) -> None:
    """``new`` takes the place of ``x`` among the views of its storage, and as what others are views of."""
    cell = cell_of(x)
    for i, ref in enumerate(cell.views or ()):
        view = ref()
        if view is x:
            cell.views[i] = weakref.ref(new)  # type: ignore[index]
        elif isinstance(view, Tensor) and isinstance(view._extra, ViewExtra) and view._extra.parent() is x:
            view._extra.show(new)


def _become(x: Any, out: Any, before: Any) -> None:
    extra, own, cell = out._extra, x._extra, cell_of(x)
    for field in _OF_THE_TENSOR:
        if field in vars(own):
            setattr(extra, field, getattr(own, field))
    before._extra.retains = False
    extra.base, extra.adrift = before._extra.base, own.adrift
    extra.made = own.made if isinstance(own, ViewExtra) else None
    leaf = x._node is None and x._requires_grad  # without recording: it stays one
    if isinstance(x, Traced):
        x._value = out._value
    elif isinstance(x, Dual):
        _replace(x, out)
    else:
        x._data = out._data
        _adopt(x, out)
        x._requires_grad, before._requires_grad = x._requires_grad or leaf, before._requires_grad and not leaf
    x._extra = extra
    cell.version += 1  # the memory is as it was: what is saved stays
    cell.views = [weakref.ref(x) if ref() is out else ref for ref in cell.views or ()]
