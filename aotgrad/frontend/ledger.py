"""What a traced program changes outside: tensors that it finds in variables and writes to, gradients, and what optimisers keep.

A tensor that a trace meets has a twin there, a traced tensor that views, writes and gradients work on as on any other. When the trace ends, twins whose value has changed
are further results of the program; every call puts them into the real memory, after the kernel has succeeded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from aotgrad.ir import Op, Value
from aotgrad_runtime import modes
from aotgrad_runtime.dtypes import float64
from aotgrad_runtime.errors import AotgradRuntimeError, AotgradTypeError
from aotgrad_runtime.records import record
from aotgrad_runtime.tensor import ArrayTensor, Tensor

from .eager import Dual
from .notices import notice
from .placement import data_placed
from .sizes import TracedNumber
from .sources import Argument, GradOf, Item
from .trace import Trace, Traced, TracedArray, TracedTensor, current, user_loc
from .views import mark_view

__all__ = ["AFTER", "DETACHED", "Followed", "Gradient", "Ledger", "Slot", "detach", "detach_", "get_data", "get_grad", "get_item", "get_number", "guarded", "ledger_of",
           "made_here", "real", "set_data", "set_grad", "set_item", "twin"]

AFTER = ("a hook of register_post_accumulate_grad_hook runs at the end of the call of a compiled function: what follows backward() there may not use that tensor or its "
         ".grad; call backward() outside, or do in the hook what is to be done with them")
DETACHED = ("detached",)  # how a tensor without a graph shows the memory of another


@record
class Gradient:
    """``.grad`` of a leaf in a trace: ``now`` (once ``known``), and ``first``, what it was before the call, where the program ``asked`` for that."""

    owner: Any
    now: Any = None
    first: Any = None
    asked: bool = False
    known: bool = False


@record
class Slot:
    """An item of a dict that an optimiser keeps, in a trace."""

    holder: Any
    key: Any
    now: Any
    first: Any


@record
class Followed:
    """A leaf whose hooks run at the end of a call: the gradient they see, the values that show its memory, the last op until then, and whether they record."""

    owner: Any
    value: Value
    grad: Any
    shown: set[Value]
    last: Op
    records: bool


class Ledger:
    """Of one compiled function's trace. ``arguments``: its tensors and their places among the leaves."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.twins: dict[int, Any] = {}  # by id of the tensor
        self.reals: dict[int, Any] = {}  # by id of the traced tensor: twins and arguments
        self.arguments: dict[int, int] = {}
        self.donated: list[tuple[Any, Value, int]] = []  # NumPy arguments that may be written: traced, as they began, and which arguments of the program they are
        self.detached: dict[int, tuple[Any, Any]] = {}  # tensors that show the memory of another, made while tracing
        self.owners: dict[Value, Any] = {}  # what a leaf's value belongs to
        self.first: dict[int, tuple[Value, int]] = {}  # by id of the traced tensor: its value before the program, and which argument that is
        self.grads: dict[int, Gradient] = {}
        self.slots: dict[tuple[int, Any], Slot] = {}
        self.held: list[tuple[Any, Any, Any]] = []  # items that are part of the program: (holder, key, value)
        self.numbers: dict[tuple[int, Any], Any] = {}
        self.sources: dict[int, Any] = {}  # by id of what was captured: where it is read again, where no name leads to it
        self.flags: dict[int, tuple[Any, bool]] = {}  # tensors whose requires_grad was set
        self.strided = False  # strides of a tensor from outside were asked for
        self.no_leaves: dict[int, Any] = {}  # tensors from outside with recorded writes, which leaves that require grad refuse
        self.freed: set[Value] = set()  # results whose graph a backward pass has used up
        self.renewed: dict[Value, Value] = {}  # values computed again with what gradients need
        self.hooked: dict[int, Any] = {}  # leaves that a backward pass reached: whether they have hooks is part of the program
        self.after: dict[int, Followed] = {}  # leaves whose hooks follow the call
        self.kept: list[Any] = []
        self.fresh: dict[int, Any] = {}  # tensors made while tracing: no state, each call begins with the same numbers
        self.inner: list[tuple[Any, Any, Value]] = []  # those made in bodies of loops and transforms: what stands for them, and its value before it was written

    def argument(self, traced: Any, tensor: Any, index: int) -> None:
        """Takes note of a tensor among the arguments."""
        self.reals[id(traced)] = tensor
        self.arguments[id(traced)] = index
        self._start(traced)

    def _start(self, traced: Any) -> None:
        value, args = traced._value, self.trace.block.args
        self.owners[value] = traced
        self.first[id(traced)] = value, next(i for i in reversed(range(len(args))) if args[i] is value)

    def known(self, x: Any) -> Any:
        """What stands for ``x``, if anything does."""
        found = self.twins.get(id(x))
        if found is None and id(x) in self.detached:
            found = self.twins[id(x)] = _detached(self.twin(self.detached[id(x)][1]))
        return found

    def twin(self, x: Any) -> Any:
        """The traced tensor that stands for ``x``, a tensor from outside."""
        found = self.known(x)
        if found is None:
            value = self.trace.capture(x, x._data)
            found = TracedTensor._of(self.trace, value)
            found._placed = data_placed(x._data)
            self.twins[id(x)] = found
            self.reals[id(found)] = x
            self._start(found)
        return found

    def gradient(self, owner: Any, ask: bool = True) -> Gradient:
        """The gradient of a leaf; ``ask``: what it is now matters."""
        found = self.grads.get(id(owner))
        if found is None:
            found = self.grads[id(owner)] = Gradient(owner)
        if ask and not found.known:
            found.asked = found.known = True
            x = self.reals.get(id(owner))
            grad = None if x is None else _plain_grad(x)
            if grad is not None:
                self.kept.append(grad)
                self.sources.setdefault(id(grad), GradOf(self.place(owner)))
                found.first = found.now = self.twin(grad)
        return found

    def place(self, owner: Any) -> Any:
        """Where the tensor that ``owner`` stands for is found: an argument, or the tensor itself, whose place is looked up when the trace has ended."""
        index = self.arguments.get(id(owner))
        return self.reals[id(owner)] if index is None else Argument(index)

    def owns(self, value: Value) -> bool:
        """Whether ``value`` is that of a leaf from outside, or of one that was made a leaf."""
        return value in self.trace.requires and value in self.owners and not self.continues(value)

    def continues(self, value: Value) -> bool:
        """Whether ``value`` is that of a tensor with a graph outside."""
        x = self.reals.get(id(self.owners.get(value)))
        return x is not None and x._node is not None

    def outside(self, traced: Any) -> bool:
        """Whether a traced tensor stands for one that was there before the call."""
        x = self.reals.get(id(traced))
        return x is not None and id(x) not in self.fresh

    def mark(self, traced: Any, on: bool) -> None:
        """``requires_grad`` was set."""
        self.flags[id(traced)] = traced, on
        self.owners.setdefault(traced._leaf, traced)


# ---- tensors ---------------------------------------------------------------------------------------------------------------------------

def ledger_of() -> Ledger | None:
    """The ledger of this thread's trace, where it has one."""
    trace = current()
    return None if trace is None else trace.ledger


def real(x: Any) -> bool:
    """Whether ``x`` is a tensor with numbers, of torch's kind."""
    return isinstance(x, Tensor) and not isinstance(x, (Traced, ArrayTensor, Dual))


def twin(x: Any) -> Any:
    """``x``, or what stands for it in the trace that is being written."""
    trace = current()
    if trace is None or trace.ledger is None or not real(x):
        return x
    found, home = trace.standing(x)
    if found is None and home is not None:
        found = home.stands[id(x)] = TracedTensor._of(home, home.capture(x, x._data))
        found._placed = data_placed(x._data)
        home.ledger.inner.append((x, found, found._value))
    return trace.ledger.twin(x) if found is None else found


def made_here(x: Any) -> Any:
    """``x``, a tensor that was made just now: in a trace, what is written into it stays in the call."""
    trace = current()
    if trace is None or trace.ledger is None:
        return x
    if trace.parent is None:
        trace.ledger.fresh[id(x)] = x
    elif not x._requires_grad:
        trace.fresh[id(x)] = x
    return x


def detach(self: Any) -> Any:
    """The same memory without a graph; in-place changes of one are seen and counted by the other."""
    if isinstance(self, Traced):
        return _detached(self)
    out, found = _detach(self), ledger_of()
    if found is not None and real(self):
        found.detached[id(out)] = out, self
    return out


def _detached(x: Any) -> Any:
    out = type(x)._of(x._trace, x._trace.builder.stop_gradient(x._value))
    if isinstance(x, TracedArray):
        return out
    mark_view(out, x, DETACHED)
    out._extra.made = None
    return out


def detach_(self: Any) -> Any:
    """Cuts this tensor from its graph, in place: it becomes a leaf that requires no grad, with the numbers it has, and is returned. What was computed from it before
    keeps its graph. A view raises ``RuntimeError``; ``detach()`` gives such one without a graph.

    >>> y = ag.tensor([1.0, 2.0], requires_grad=True) * 3
    >>> y.detach_().requires_grad, y.grad_fn
    (False, None)
    """
    x = twin(self)
    if getattr(x._extra, "how", None) != DETACHED:
        _detach_(x)
    if not isinstance(x, Traced) or not x._dtype.is_differentiable:
        return self
    ledger = x._trace.ledger
    if ledger is None or not ledger.outside(x):
        x._value = x._trace.builder.stop_gradient(x._value)
    elif x.is_leaf:
        x.requires_grad = False
    else:
        raise AotgradRuntimeError(f"{user_loc()}: detach_() in a compiled function would cut a tensor from a graph that was made outside; use x = x.detach()")
    return self


def get_data(self: Any) -> Any:
    """The same memory without a graph, and without a shared version counter. Assigning swaps the memory under this tensor."""
    found = ledger_of()
    return detach(self) if isinstance(self, Traced) or found is not None and real(self) else _data.fget(self)


def set_data(store: Callable[[Any, Any, str], Any]) -> Callable[[Any, Any], None]:
    """The setter of ``data``. In a trace the numbers are written: ``store`` does it."""

    @modes.intact
    def assign(self: Any, value: Any) -> None:
        x: Any = twin(self)
        new: Any = twin(value)
        if not isinstance(x, Traced) and not isinstance(new, Traced):
            _data.fset(self, value)
            return
        if isinstance(new, Traced) and getattr(extra := new._extra, "how", None) == DETACHED and extra.parent() is x:  # type: ignore[attr-defined]
            return  # the end of x.data += y
        if not isinstance(new, Tensor):
            raise AotgradTypeError(f"{user_loc()}: .data is set to {type(value).__name__}; a tensor is needed, or write x[...] = value")
        if tuple(new.shape) != tuple(x.shape) or new._dtype is not x._dtype:
            raise AotgradRuntimeError(f"{user_loc()}: .data of {x._dtype.name}{list(x.shape)} is set to {new._dtype.name}{list(new.shape)}; a compiled function can only "
                                      "write other numbers into it")
        with modes.no_grad():
            store(self, new, "data")

    return assign


def get_grad(self: Any) -> Any:
    """The gradient accumulated so far, or None. Assign a tensor of the same shape and dtype, or None."""
    if not modes.flags.noting or (ledger := ledger_of()) is None:
        extra = self._extra
        found = None if extra is None else extra.grad
        if found is None and self._node is not None and (extra is None or not extra.retains):
            notice("The .grad attribute of a Tensor that is not a leaf Tensor is being accessed. Its .grad attribute won't be populated during autograd.backward(). If "
                   "you indeed want the .grad field to be populated for a non-leaf Tensor, use .retain_grad() on the non-leaf Tensor. If you access the non-leaf Tensor "
                   "by mistake, make sure you access the leaf Tensor instead.")
        return found
    x = twin(self)
    return ledger.gradient(x).now if isinstance(x, Traced) else _plain_grad(self)


def set_grad(self: Any, value: Any) -> None:
    """Sets ``.grad``; in a trace, of the real tensor at each call."""
    ledger = ledger_of() if modes.flags.noting else None
    x = twin(self)
    if ledger is None or not isinstance(x, Traced):
        _grad.fset(self, value)
        return
    if value is not None:
        value = twin(value)
        checked = TracedTensor._of(x._trace, x._value)
        _grad.fset(checked, value)  # shapes and dtypes
    found = ledger.gradient(x, ask=False)
    found.now, found.known = value, True


_detach, _detach_ = Tensor.detach, Tensor.detach_
_data: Any = Tensor.data
_grad: Any = Tensor.grad


def _plain_grad(x: Any) -> Any:
    return None if x._extra is None else x._extra.grad


# ---- what optimisers keep -----------------------------------------------------------------------------------------------------------------

def guarded(holder: Any, key: Any) -> Any:
    """``holder[key]``, a plain value that a trace may use: the function is traced anew when it changes."""
    value = holder[key]
    ledger = ledger_of()
    if ledger is not None:
        ledger.held.append((holder, key, value))
    return value


def get_number(holder: Any, key: Any) -> Any:
    """``holder[key]``, a float, as a number that is read at every call: changing it does not trace anew."""
    value, ledger = holder[key], ledger_of()
    if ledger is None or isinstance(value, Tensor):
        return value
    found = ledger.numbers.get((id(holder), key))
    if found is None:
        box = np.asarray(value, float64.np)
        ledger.kept.append(box)
        ledger.sources[id(box)] = Item(holder, key)
        root = ledger.trace
        found = TracedNumber._of(root, root.capture(box, box))  # of double precision, and it does not decide dtypes
        found._weak, found._exactly = True, lambda: guarded(holder, key)
        ledger.numbers[id(holder), key] = found
    return found


def get_item(holder: Any, key: Any) -> Any:
    """``holder.get(key)``: None or a tensor, read and written at every call of a compiled function."""
    ledger = ledger_of()
    if ledger is None:
        return holder.get(key)
    slot = ledger.slots.get((id(holder), key))
    if slot is None:
        value = holder.get(key)
        if value is not None:
            ledger.kept.append(value)
            ledger.sources.setdefault(id(value), Item(holder, key))
            value = ledger.twin(value)
        slot = ledger.slots[id(holder), key] = Slot(holder, key, value, value)
    return slot.now


def set_item(holder: Any, key: Any, value: Any) -> None:
    """``holder[key] = value``, at every call of a compiled function."""
    ledger = ledger_of()
    if ledger is None:
        holder[key] = value
        return
    get_item(holder, key)
    ledger.slots[id(holder), key].now = value
