"""Tracing: values that stand for results not yet computed, and the stack of programs being written.

A ``Traced`` is a tensor without data: it has an IR value and the trace it lives in. A trace may lie inside another (bodies of control flow,
functions under ``grad`` inside ``compile``); what an inner one uses of an outer one becomes an argument of it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import CodeType
from typing import Any

import numpy as np

from aotgrad.ir import Block, Builder, Layout, Loc, TensorType, Value, dims
from aotgrad.ir.dims import Dim, DimLike, to_text
from aotgrad_runtime import modes, recording
from aotgrad_runtime.arrays import DTYPES
from aotgrad_runtime.dtypes import DType
from aotgrad_runtime.errors import AotgradRuntimeError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.tensor import ArrayTensor, Size, Tensor

from . import kernels
from .equalities import Equalities
from .sources import memory_of

__all__ = ["NeedStatic", "Trace", "Traced", "TracedArray", "TracedTensor", "current", "raised_at", "tracing", "unrecorded", "user_loc", "user_place", "within"]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_RUNTIME = os.path.dirname(os.path.abspath(sys.modules["aotgrad_runtime"].__file__ or "")) + os.sep
_SKIP = (_PACKAGE, _RUNTIME, os.path.dirname(os.path.abspath(np.__file__)) + os.sep,
         os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(np.__file__))), "scipy") + os.sep, "<frozen", "numpy" + os.sep)  # as its Cython code is named
_LIBRARY = os.path.dirname(os.__file__) + os.sep
_ours: dict[CodeType, bool] = {}


def within(file: str) -> bool:
    """Whether a file is part of this package, NumPy, SciPy or Python itself: not the user's."""
    return file.startswith(_SKIP) or file.startswith(_LIBRARY) and "-packages" + os.sep not in file


def user_loc() -> Loc | None:
    """The innermost line outside this package: captured as (code, offset), resolved when somebody reads it."""
    place = user_place()
    return None if place is None else Loc(code=place[0], lasti=place[1])


def user_place() -> tuple[CodeType, int] | None:
    """The code and offset of ``user_loc``, for the caller of what calls this."""
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        ours = _ours.get(code)
        if ours is None:
            if len(_ours) > 4096:
                _ours.clear()
            ours = _ours[code] = within(code.co_filename)
        if not ours:
            return code, frame.f_lasti
        frame = frame.f_back  # type: ignore[assignment]
    return None


def raised_at(error: BaseException) -> Loc | None:
    """The innermost line outside this package that an error came through."""
    at, place = error.__traceback__, None
    while at is not None:
        if not within(at.tb_frame.f_code.co_filename):
            place = Loc(code=at.tb_frame.f_code, lasti=at.tb_lasti)
        at = at.tb_next
    return place


def unrecorded(b: Builder, v: Value, view: bool = False) -> Value:
    """A result as the grad mode wants it: without a derivative where operations are not recorded. A tensor's ``view`` requires grad as what it shows."""
    if modes.state.grad or not v.type.dtype.is_differentiable:
        return v
    return b.stop_gradient(v, reverse=True, view=view)  # type: ignore[no-any-return]  # forward mode ignores it, as torch's


def adrift(v: Value) -> bool:
    """Whether ``v`` is a view that was made unrecorded: a leaf without a gradient."""
    return v.op is not None and v.op.name == "stop_gradient" and bool(v.op.attrs["view"])


class SizesDiffer(AotgradValueError):
    """Two sizes that do not fit; whoever knows the operation says more about ``what``, for tensors in torch's words where ``say`` has them."""

    def __init__(self, what: str, pair: tuple[int, int] | None = None, say: Callable[[], str] | None = None) -> None:
        super().__init__(f"{user_loc()}: {what}")
        self.what, self.pair, self.say = what, pair, say


class _Stack(threading.local):
    def __init__(self) -> None:
        self.traces: list[Trace] = []


_stack = modes.keep(_Stack(), "traces")
_tracing: set[int] = set()  # threads that trace, and perhaps such that an interrupt took out of it: asked before the stack, as a thread's own state is dear


def current() -> Trace | None:
    """The innermost trace of this thread."""
    return _stack.traces[-1] if _stack.traces else None


class Trace:
    """One program being written. ``examples``: sizes seen in the first call (JIT), by symbol; absent in ahead-of-time builds, where a size cannot be fixed."""

    def __init__(self, name: str, parent: Trace | None = None, examples: dict[str, int] | None = None, hidden: bool = True) -> None:
        self.name, self.parent, self.hidden = name, parent, hidden
        self.block = Block()
        self.builder = Builder(self.block)
        self.examples: dict[str, int] = parent.examples if parent is not None else (examples if examples is not None else {})
        self.equal: Equalities = parent.equal if parent is not None else Equalities()
        self.guards: list[tuple[DimLike, DimLike, Loc | None]] = parent.guards if parent is not None else []
        self.fixed: list[tuple[DimLike, DimLike, Loc | None]] = parent.fixed if parent is not None else []  # sizes that the trace took the numbers of, and where
        self.least: dict[DimLike, tuple[int, int]] = parent.least if parent is not None else {}  # of a size: a lower bound, and the place of its guard
        self.unequal: list[tuple[DimLike, DimLike]] = parent.unequal if parent is not None else []
        self.placing: set[Value] = parent.placing if parent is not None else set()  # reshaped values of which it mattered whether they are views
        self.lifted: dict[Value, tuple[Any, Value]] = {}
        self.calls: dict[Value, Any] = {}  # by result: what was called, see ``made``
        self.fresh: dict[int, Any] = {}  # tensors that were made in this body, by id
        self.stands: dict[int, Any] = {}  # what stands for them
        self.origins: dict[Value, Any] = {}  # what arguments of a body stand for: values around it
        self.captured: dict[int, tuple[Any, Value]] = {}
        self.taken: dict[int, set[tuple[CodeType, int]]] = {}  # for each owner of memory, by id: where the program took an array for an operand
        self.noted: list[Any] = []  # tensors whose numbers the program used
        self.requires: set[Value] = set()  # arguments that gradients are wanted of, as ``requires_grad`` tells
        self.draws: Any = None  # what drawing random numbers means here, see ``randoms``
        self.torch = False  # whether tensors are among the results
        self.ledger: Any = None if parent is None else parent.ledger  # what the program changes outside, see ``ledger``; None: it may not
        self.can_fix: bool = parent.can_fix if parent is not None else examples is not None

    # ---- values ------------------------------------------------------------------------------------------------------------------

    def argument(self, t: TensorType, cls: type[Any]) -> Any:
        """A new argument as a traced value of class ``cls``."""
        return cls._of(self, self.block.add_arg(t))

    def value_of(self, x: Any) -> Value:
        """The IR value here of a traced value of this trace or of one around it."""
        if x._trace is self:
            return x._value  # type: ignore[no-any-return]
        if not x._trace.encloses(self):
            raise AotgradTypeError(
                f"{user_loc()}: a value traced in {x._trace.name!r} is used in {self.name!r}, outside the call that made it. "
                "Return it from the function instead of keeping it in a global, an attribute or a list")
        found = self.lifted.get(x._value)
        if found is None:
            found = self.lifted[x._value] = (x, self.block.add_arg(x._value.type))
        return found[1]

    def encloses(self, inner: Trace) -> bool:
        """Whether this trace lies around ``inner`` in the stack."""
        at: Trace | None = inner
        while at is not None:
            if at is self:
                return True
            at = at.parent
        return False

    def standing(self, x: Any) -> tuple[Any, Any]:
        """What stands for a tensor that was made in this body or in one around it, if anything does yet; and which body that was."""
        at: Trace | None = self
        while at is not None:
            if id(x) in at.fresh:
                return at.stands.get(id(x)), at
            at = at.parent
        return None, None

    def capture(self, obj: Any, data: Any) -> Value:
        """An array or tensor met while tracing: a hidden input of the outermost trace, re-read at every call."""
        if (stands := self.standing(obj)[0]) is not None:
            return self.value_of(stands)
        if self.parent is not None:
            root = self
            while root.parent is not None:
                root = root.parent
            outer = TracedTensor._of(root, root.capture(obj, data))
            return self.value_of(outer)
        if not self.hidden:
            return self.builder.constant(value=np.array(data))  # type: ignore[no-any-return]
        place = user_place()
        if place is not None:
            self.taken.setdefault(id(memory_of(obj)), set()).add(place)
        twin = None if self.ledger is None else self.ledger.known(obj)
        if twin is not None:
            return twin._value  # type: ignore[no-any-return]
        found = self.captured.get(id(obj))
        if found is None:
            shape = tuple(int(n) for n in data.shape)
            order = kernels.dense_order(data) if self.ledger is not None else None  # a compiled function reads it as it lies, like an argument
            found = self.captured[id(obj)] = (obj, self.block.add_arg(TensorType(shape, DTYPES[data.dtype], Layout(order) if isinstance(order, tuple) else None)))
            if isinstance(obj, Tensor) and obj._requires_grad:
                self.requires.add(found[1])
        return found[1]

    def requires_grad(self, value: Value) -> bool:
        """Whether ``value`` depends on an argument that requires a gradient, other than through what was not recorded."""
        todo, seen = [value], {value}
        while todo:
            v = todo.pop()
            if v in self.requires:
                return True
            if v.op is None:
                outer = self.origins[v] if v in self.origins else next((x for x, arg in self.lifted.values() if arg is v), None)
                if outer is not None and outer.requires_grad:
                    return True
            elif v.op.name != "stop_gradient" or v.op.attrs["view"]:
                new = [o for o in v.op.operands if o.type.dtype.is_differentiable and o not in seen]
                seen.update(new)
                todo += new
        return False

    # ---- sizes -------------------------------------------------------------------------------------------------------------------

    def canonical(self, d: DimLike) -> DimLike:
        """``d`` with sizes that were found equal replaced."""
        return self.equal.canonical(d)

    def example(self, d: DimLike) -> int | None:
        """The number of a size in the first call, if known."""
        d = self.canonical(d)
        value = dims.substitute(d, self.examples)
        return value if isinstance(value, int) else None

    def fix(self, d: Dim) -> int:
        """``int(size)``: the example's number, guarded; an error where there is no example."""
        at = self.canonical(d)
        if isinstance(at, int):
            return at
        value = dims.substitute(at, self.examples)
        if not isinstance(value, int) or not self.can_fix:
            raise AotgradTypeError(f"{user_loc()}: the size {d} is used as a Python number, but it is symbolic here; "
                                   "give the argument a fixed size, or use the size in arithmetic only (ag.arange, ag.zeros and ag.eye take it as it is)")
        self.fixed.append((at, value, user_loc()))
        self.assume(at, value)
        return value

    def assume(self, a: DimLike, b: DimLike) -> None:
        """Records that two sizes are equal: by solving for a symbol, else by fixing the symbols to the example's sizes; a guard where there is no example."""
        a, b = self.canonical(a), self.canonical(b)
        if a == b:
            return
        if isinstance(a, int) and isinstance(b, int):
            raise AotgradValueError(f"{user_loc()}: sizes {a} and {b} differ")
        if self.equal.solve(a, b):
            return
        names = [s for s in {*dims.symbols_of(a), *dims.symbols_of(b)} if s in self.examples]
        if self.can_fix and names:
            self.fixed += [(dims.symbol(s), self.examples[s], user_loc()) for s in names if not isinstance(self.canonical(dims.symbol(s)), int)]
            self.equal.add({s: self.examples[s] for s in names})
            if self.canonical(a) != self.canonical(b):
                raise AotgradValueError(f"{user_loc()}: sizes {self.canonical(a)} and {self.canonical(b)} differ")
            return
        self.guards.append((a, b, user_loc()))

    def require(self, a: DimLike, b: DimLike) -> None:
        """Two sizes must be equal at every call; neither replaces the other, so the program keeps serving all sizes: a guard."""
        a, b = self.canonical(a), self.canonical(b)
        if a == b:
            return
        if isinstance(a, int) and isinstance(b, int):
            raise AotgradValueError(f"{user_loc()}: sizes {a} and {b} differ")
        self.guards.append((a, b, user_loc()))

    def at_least(self, size: DimLike, least: DimLike) -> None:
        """``size`` must not be below ``least``: one guard per size, for the largest bound."""
        size, least = self.canonical(size), self.canonical(least)
        if not isinstance(size, Dim) or not isinstance(least, int):
            self.require(dims.minimum(size, least), least)
            return
        bound, place = self.least.get(size, (0, len(self.guards)))
        if least <= bound:
            return
        self.least[size] = least, place
        self.guards[place:place + 1] = [(dims.minimum(size, least), least, user_loc())]

    def join(self, a: DimLike, b: DimLike) -> DimLike:
        """The broadcast of two sizes: 1 gives way; otherwise they are equal, by assumption where they are symbols."""
        a, b = self.canonical(a), self.canonical(b)
        if a == b or b == 1:
            return a
        if a == 1:
            return b
        na, nb = self.example(a), self.example(b)
        if na is not None and nb is not None and na != nb:
            if 1 in (na, nb):
                small = a if na == 1 else b
                self.assume(small, 1)
                return b if na == 1 else a
            raise SizesDiffer(f"sizes {na} and {nb} meet", (na, nb))
        self.assume(a, b)
        return self.canonical(a)

    def equate(self, a: DimLike, b: DimLike) -> bool:
        """Whether two sizes that must be equal are; so assumed where that is not known before the call."""
        a, b = self.canonical(a), self.canonical(b)
        if a == b:
            return True
        na, nb = self.example(a), self.example(b)
        if na is not None and nb is not None and na != nb:
            return False
        self.assume(a, b)
        return True

    def fits(self, have: DimLike, want: DimLike) -> bool:
        """Whether a size broadcasts to one that must not grow: a 1 of this call is 1 at every call, all else is equal."""
        have, want = self.canonical(have), self.canonical(want)
        if have == 1:
            return True
        if self.example(have) == 1 != self.example(want):
            self.assume(have, 1)
            return True
        return self.equate(have, want)

    def same(self, a: DimLike, b: DimLike) -> bool:
        """``a == b`` in the user's program: decided by the sizes of the first call, and guarded either way."""
        a, b = self.canonical(a), self.canonical(b)
        if a == b or isinstance(a, int) and isinstance(b, int):
            return a == b
        na, nb = self.example(a), self.example(b)
        if na is None or nb is None or not self.can_fix:
            raise AotgradTypeError(f"{user_loc()}: the program asks whether sizes {a} and {b} are equal, but they are symbolic here; give the argument a fixed size")
        if na == nb:
            self.assume(a, b)
            return True
        self.unequal.append((a, b))
        return False


class tracing:
    """``with tracing(trace)``: ops of this thread go into ``trace``."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.sizes = dims.specialising(trace.fix)

    def __enter__(self) -> Trace:
        _tracing.add(threading.get_ident())
        _stack.traces.append(self.trace)
        self.sizes.__enter__()
        return self.trace

    def __exit__(self, *exc: object) -> None:
        self.sizes.__exit__()
        _stack.traces.pop()
        if not _stack.traces:
            _tracing.discard(threading.get_ident())
        if self.trace not in _stack.traces:  # it has ended; what it knows of calls refers to it
            self.trace.calls.clear()


def _left(x: Traced) -> AotgradTypeError | None:
    """The error where the function that ``x`` belongs to has ended."""
    inner = current()
    if inner is not None and x._trace.encloses(inner):
        return None
    return AotgradTypeError(f"{user_loc()}: a value traced in {x._trace.name!r} is used outside the call that made it; return it from the function instead of keeping it "
                            "in a global, an attribute or a list")


def _no_data(self: Any) -> Any:
    raise recording.refuse(_left(self) or AotgradTypeError(
        f"{recording.user_line()}: a traced value has no numbers yet: it cannot become a Python number. Functions of math and of SciPy cannot take it: use NumPy's or "
        "ag's (np.sqrt, ag.logsumexp, ag.erf). Use np.where, ag.where or ag.cond for branches, ag.scan and ag.fori_loop for loops; name in static= an argument "
        "whose number decides; to look at numbers, ag.debug_print. To store it in a NumPy array (z[i] = v), make the array with z = np.zeros_like(x), "
        "np.zeros_like(x, shape=(n,)) or ag.zeros(..., dtype=x.dtype), or write z = x.at[i].set(v)"))


class NeedStatic(AotgradTypeError):
    """A traced integer argument is used as a Python number: the trace starts again with its value fixed (``index``: which leaf)."""

    def __init__(self, index: int) -> None:
        super().__init__("an integer argument is used as a Python number")
        self.index, self.place = index, user_loc()


class Traced:
    """What both kinds of traced values share."""

    _concrete = False
    _weak = False
    _scalar = False  # one of NumPy's scalars, which is a plain number beside tensors
    _sizes: Any = tuple
    _sized: Any  # makes a size what the user's program sees, see ``sizes``
    _data = property(_no_data)
    _trace: Trace
    _value: Value

    @classmethod
    def _of(cls, trace: Trace, value: Value) -> Any:
        self = object.__new__(cls)
        self._trace, self._value = trace, value
        self._node, self._index, self._requires_grad, self._extra = None, 0, False, None  # type: ignore[attr-defined]
        return self

    @property
    def shape(self) -> Any:
        """The sizes; those that are not known are ``Dim`` objects."""
        return self._sizes([self._sized(self._trace.canonical(d)) for d in self._value.type.shape])

    @property
    def ndim(self) -> int:
        return len(self._value.type.shape)

    @property
    def _dtype(self) -> DType:
        return self._value.type.dtype  # type: ignore[no-any-return]

    itemsize = property(lambda self: self._dtype.itemsize, doc="Bytes per element.")
    nbytes = property(lambda self: dims.product(self.shape) * self._dtype.itemsize, doc="Bytes of all elements.")

    @property
    def requires_grad(self) -> bool:
        """As of the argument in the call that is traced; a compiled function that asks is compiled for each."""
        modes.state.asked += 1
        return self._dtype.is_differentiable and self._trace.requires_grad(self._value)

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        leaf = self.is_leaf
        if not leaf and not value or value and not self._dtype.is_differentiable:
            Tensor.requires_grad.fset(self, value) if leaf else _not_a_leaf()  # type: ignore[attr-defined]
        elif leaf and value:
            self._trace.requires.add(self._leaf)
        elif leaf and adrift(self._value):
            self._value = self._trace.builder.stop_gradient(self._value)
        elif leaf:
            self._trace.requires.discard(self._leaf)
        if leaf and self._trace.ledger is not None:
            self._trace.ledger.mark(self, bool(value))

    @property
    def _leaf(self) -> Value:
        """The value whose gradient is this tensor's: unrecorded writes change numbers alone."""
        v = self._value
        while v.op is not None and v.op.name == "graft" and v not in self._trace.requires:
            v = v.op.operands[1]
        return v

    @property
    def is_leaf(self) -> bool:
        leaf, ledger = self._leaf, self._trace.ledger
        return not self.requires_grad or adrift(leaf) or leaf in self._trace.requires and not (ledger is not None and ledger.continues(leaf))

    def __len__(self) -> int:
        if self.ndim == 0:
            raise AotgradTypeError("len() of a 0-d value")
        return int(self.shape[0])

    def __bool__(self) -> bool:
        given = self._value.op is None and self._dtype.kind == "b" and not self.ndim
        hint = " A flag that was given as np.bool_ is such a value: pass bool(flag), or name it in static=." if given else ""
        raise _left(self) or AotgradTypeError(f"{user_loc()}: a traced value is used as a condition; its number is known only when the compiled code runs.{hint} "
                               "Use ag.where for values (ag.maximum and ag.minimum in place of max and min), ag.cond, ag.scan or ag.fori_loop for control flow")

    __float__ = __complex__ = _no_data

    def __index__(self) -> int:
        leaf = self.__dict__.get("_leaf_index")
        if leaf is not None and self._trace.can_fix:
            raise recording.refuse(NeedStatic(leaf))
        return _no_data(self)  # type: ignore[no-any-return]

    __int__ = __index__

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise _left(self) or AotgradTypeError(
            f"{recording.user_line()}: a traced value has no numbers yet, so NumPy cannot make an array of it (storing into an array, np.float64, a function of SciPy, a "
            "list where NumPy wants an array, a constructor imported by its own name). Call np.array, np.asarray and np.full as np.NAME, build arrays of lists with "
            "np.array([a, b]) or np.stack, and write into y = np.zeros_like(x) or np.zeros_like(x, shape=(n,)). At computed places read an array of NumPy's with "
            "np.take(table, i). In place of SciPy's functions use ag's (ag.logsumexp, ag.softmax, ag.erf)")

    def __round__(self, digits: int | None = None) -> Any:
        if digits is None or self.ndim:
            raise AotgradTypeError(f"{user_loc()}: round() makes a Python integer, and a traced value has no number yet; use np.round(x) or ag.round(x)")
        out: Any = np.round(self, digits)
        out._weak = self._weak
        return out

    def __format__(self, spec: str) -> str:
        if spec:
            raise AotgradTypeError(f"{user_loc()}: a traced value has no number to write as {spec!r} yet; plain {{x}} shows its type, and "
                                   f"ag.debug_print('{{:{spec}}}', x) prints the number when the code runs")
        return repr(self)

    def __hash__(self) -> int:
        leaf = self.__dict__.get("_leaf_index")
        if leaf is not None and self._trace.can_fix:  # an integer as a key
            raise NeedStatic(leaf)
        if isinstance(self, ArrayTensor):  # NumPy's arrays have no hash either, and its numbers have that of their value
            raise AotgradTypeError(f"{user_loc()}: a traced value is used as a key or in a set, and its number is known only when the code runs. "
                                   "Use a list, or name in static= an argument whose number decides")
        return id(self)

    def __repr__(self) -> str:
        return f"Traced<{self._value.type.dtype.name}[{', '.join(map(to_text, self._value.type.shape))}]>"

    def __str__(self) -> str:
        return repr(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise AotgradTypeError("a traced value cannot be pickled or copied by value")

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self


def _not_a_leaf() -> None:
    raise AotgradRuntimeError("you can only change requires_grad flags of leaf variables. If you want to use a computed variable in a subgraph that doesn't require "
                              "differentiation use var_no_grad = var.detach().")


class TracedTensor(Traced, Tensor):
    """A traced value in a call entered with tensors."""

    __slots__ = ()

    _sizes = Size

    @property
    def dtype(self) -> Any:
        return self._dtype


class TracedArray(Traced, ArrayTensor):
    """A traced value in a call entered with NumPy or Python values: methods and attributes mean NumPy's."""

    __slots__ = ()

    @property
    def dtype(self) -> Any:
        return self._dtype.np

    size = property(lambda self: dims.product(self.shape), doc="The number of elements.")


TracedTensor._value_type = TracedTensor
TracedArray._value_type = TracedArray
