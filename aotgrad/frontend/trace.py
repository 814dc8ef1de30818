"""Tracing: values that stand for results not yet computed, and the stack of programs being written.

A ``Traced`` is a tensor without data: it has an IR value and the trace it lives in. A trace may lie inside another (bodies of control flow,
functions under ``grad`` inside ``compile``); what an inner one uses of an outer one becomes an argument of it.
"""

from __future__ import annotations

import math
import numbers
import operator
import os
import sys
import threading
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

import numpy as np

from aotgrad.ir import Block, Builder, Layout, Loc, TensorType, Value, dims
from aotgrad.ir.dims import Dim, DimLike, to_text
from aotgrad_runtime import modes, recording
from aotgrad_runtime.arrays import DTYPES
from aotgrad_runtime.dtypes import DType, int64
from aotgrad_runtime.errors import AotgradRuntimeError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.tensor import ArrayTensor, Size, Tensor

from . import kernels
from .equalities import Equalities
from .sources import memory_of

__all__ = ["NeedStatic", "Trace", "Traced", "TracedArray", "TracedNumber", "TracedSize", "TracedTensor", "current", "equal_sizes", "plain_size", "raised_at",
           "tracing", "unrecorded", "user_loc", "within"]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_RUNTIME = os.path.dirname(os.path.abspath(sys.modules["aotgrad_runtime"].__file__ or "")) + os.sep
_SKIP = (_PACKAGE, _RUNTIME, os.path.dirname(os.path.abspath(np.__file__)) + os.sep,
         os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(np.__file__))), "scipy") + os.sep, "<frozen")
_LIBRARY = os.path.dirname(os.__file__) + os.sep
_ours: dict[CodeType, bool] = {}


def within(file: str) -> bool:
    """Whether a file is part of this package, NumPy, SciPy or Python itself: not the user's."""
    return file.startswith(_SKIP) or file.startswith(_LIBRARY) and "-packages" + os.sep not in file


def user_loc() -> Loc | None:
    """The innermost line outside this package: captured as (code, offset), resolved when somebody reads it."""
    place = _user_place()
    return None if place is None else Loc(code=place[0], lasti=place[1])


def _user_place() -> tuple[CodeType, int] | None:
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


def unrecorded(b: Builder, v: Value) -> Value:
    """A result as the grad mode wants it: without a derivative where operations are not recorded."""
    return v if modes.state.grad or not v.type.dtype.is_differentiable else b.stop_gradient(v, reverse=True)  # forward mode ignores it, as torch's


class SizesDiffer(AotgradValueError):
    """Two sizes that do not fit; whoever knows the operation says more about ``what``, for tensors in torch's words where ``say`` has them."""

    def __init__(self, what: str, pair: tuple[int, int] | None = None, say: Callable[[], str] | None = None) -> None:
        super().__init__(f"{user_loc()}: {what}")
        self.what, self.pair, self.say = what, pair, say


class _Stack(threading.local):
    def __init__(self) -> None:
        self.traces: list[Trace] = []


_stack = modes.keep(_Stack(), "traces")


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

    def capture(self, obj: Any, data: Any) -> Value:
        """An array or tensor met while tracing: a hidden input of the outermost trace, re-read at every call."""
        if self.parent is not None:
            root = self
            while root.parent is not None:
                root = root.parent
            outer = TracedTensor._of(root, root.capture(obj, data))
            return self.value_of(outer)
        if not self.hidden:
            return self.builder.constant(value=np.array(data))  # type: ignore[no-any-return]
        place = _user_place()
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
                outer = next((x for x, arg in self.lifted.values() if arg is v), None)
                if outer is not None and outer.requires_grad:
                    return True
            elif v.op.name != "stop_gradient":
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


def plain_size(x: Any) -> Any:
    """Sizes (also in tuples and lists) as the IR wants them: their ``==`` is structural."""
    if isinstance(x, TracedSize):
        return Dim(x.terms)
    if type(x) in (tuple, list, Size) and any(isinstance(v, (TracedSize, tuple, list)) for v in x):
        return type(x)(plain_size(v) for v in x)
    return x


class tracing:
    """``with tracing(trace)``: ops of this thread go into ``trace``."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.sizes = dims.specialising(trace.fix)

    def __enter__(self) -> Trace:
        _stack.traces.append(self.trace)
        self.sizes.__enter__()
        return self.trace

    def __exit__(self, *exc: object) -> None:
        self.sizes.__exit__()
        _stack.traces.pop()


def _left(x: Traced) -> AotgradTypeError | None:
    """The error where the function that ``x`` belongs to has ended."""
    inner = current()
    if inner is not None and x._trace.encloses(inner):
        return None
    return AotgradTypeError(f"{user_loc()}: a value traced in {x._trace.name!r} is used outside the call that made it; return it from the function instead of keeping it "
                            "in a global, an attribute or a list")


def _no_data(self: Any) -> Any:
    raise recording.refuse(_left(self) or AotgradTypeError(
        f"{user_loc()}: a traced value has no numbers yet: it cannot become a Python number. Functions of math and of SciPy cannot take it: use NumPy's or "
        "ag's (np.sqrt, ag.logsumexp, ag.erf). Use np.where, ag.where or ag.cond for branches, ag.scan and ag.fori_loop for loops; name in static= an argument "
        "whose number decides; to look at numbers, ag.debug_print. To store it in a NumPy array (z[i] = v), make the array with z = np.zeros_like(x), or ag.zeros, "
        "or write z = x.at[i].set(v)"))


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
        return self._sizes([_sized(self._trace.canonical(d)) for d in self._value.type.shape])

    @property
    def ndim(self) -> int:
        return len(self._value.type.shape)

    @property
    def _dtype(self) -> DType:
        return self._value.type.dtype  # type: ignore[no-any-return]

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
        return not self.requires_grad or leaf in self._trace.requires and not (ledger is not None and ledger.continues(leaf))

    def __len__(self) -> int:
        if self.ndim == 0:
            raise AotgradTypeError("len() of a 0-d value")
        return int(self.shape[0])

    def __bool__(self) -> bool:
        hint = " A flag that was given as np.bool_ is such a value: pass bool(flag), or name it in static=." if self._dtype.kind == "b" and not self.ndim else ""
        raise _left(self) or AotgradTypeError(f"{user_loc()}: a traced value is used as a condition; its number is known only when the compiled code runs.{hint} "
                               "Use ag.where for values, ag.cond, ag.scan or ag.fori_loop for control flow")

    __float__ = __complex__ = _no_data

    def __index__(self) -> int:
        leaf = self.__dict__.get("_leaf_index")
        if leaf is not None and self._trace.can_fix:
            raise recording.refuse(NeedStatic(leaf))
        return _no_data(self)  # type: ignore[no-any-return]

    __int__ = __index__

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise _left(self) or AotgradTypeError(
            f"{user_loc()}: a traced value has no numbers yet, so NumPy cannot make an array of it (np.asarray, np.array, np.float64, storing into an array, a "
            "function of SciPy). Leave x = np.asarray(x) out, as NumPy's functions take traced values as they are, or write np.copy(x), which works on arrays and "
            "traced values alike (with .astype(float) for a dtype). Build arrays of lists with np.stack([a, b]) or np.concatenate; write into y = np.zeros_like(x). "
            "In place of SciPy's functions use ag's (ag.logsumexp, ag.softmax, ag.erf)")

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


# ---- sizes as the user's program sees them ------------------------------------------------------------------------------------------------

class TracedNumber(TracedArray):
    """A number made of sizes and Python numbers, such as ``n / 2``: computed when the code runs, so that it serves every size. Where the program needs the number while
    it is traced (``int``, a condition, text, a key), the sizes in it are fixed: guards, which ``f.explain`` lists."""

    __slots__ = ()
    _exactly: Callable[[], Any]  # the number of the call that is traced; fixes the sizes

    @classmethod
    def known(cls, out: Any, plain: Callable[..., Any], operands: Sequence[Any], weak: bool) -> Any:
        """``out`` as such a number where all ``operands`` are; ``plain`` computes it from theirs."""
        if not isinstance(out, Traced) or not all(isinstance(x, _NUMBERS) for x in operands):
            return out
        made = cls._of(out._trace, out._value)
        made._weak = weak and not any(isinstance(x, np.generic) or isinstance(x, TracedNumber) and not x._weak for x in operands)
        made._exactly = lambda: plain(*map(_plain_number, operands))
        return made

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        inputs = tuple(map(_unboxed, inputs))
        simple = method == "__call__" and not kwargs and all(isinstance(x, _NUMBERS) for x in inputs)
        try:
            out = TracedArray.__array_ufunc__(self, ufunc, method, *inputs, **kwargs)
        except AotgradTypeError:
            if not simple:
                raise
            return ufunc(*map(_plain_number, inputs))
        return self.known(out, ufunc, inputs, weak=False) if simple else out

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        simple = not kwargs and all(isinstance(x, _NUMBERS) for x in args)
        try:
            out = TracedArray.__array_function__(self, func, types, args, kwargs)
        except AotgradTypeError:
            if not simple:
                raise
            return func(*map(_plain_number, args))
        return self.known(out, func, args, weak=False) if simple else out

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(self._exactly(), dtype)

    def __index__(self) -> int:
        return operator.index(self._exactly())

    def __round__(self, digits: int | None = None) -> Any:
        return round(self._exactly(), digits)

    def __format__(self, spec: str) -> str:
        return format(self._exactly(), spec)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(0.0, name):
            raise AttributeError(f"a traced value has no attribute {name!r}")
        return getattr(self._exactly(), name)

    def item(self) -> Any:
        """The number; fixes the sizes in it."""
        return self._exactly()


def _asks(convert: Callable[[Any], Any]) -> Any:
    return lambda self: convert(self._exactly())


for _name, _convert in (("bool", bool), ("float", float), ("int", int), ("complex", complex), ("str", str), ("repr", repr), ("hash", hash), ("trunc", math.trunc),
                        ("floor", math.floor), ("ceil", math.ceil)):
    setattr(TracedNumber, f"__{_name}__", _asks(_convert))


def _plain_number(x: Any) -> Any:
    return x._exactly() if isinstance(x, TracedNumber) else int(x) if isinstance(x, TracedSize) else x


def _unboxed(x: Any) -> Any:
    return x[()] if type(x) is np.ndarray and x.ndim == 0 else x  # what NumPy makes of its scalars in comparisons


def equal_sizes(a: Any, b: Any) -> bool:
    """Whether two sizes that must be equal are (see ``Trace.equate``); no question of the program's own, so sizes stay open."""
    trace = current()
    return plain_size(a) == plain_size(b) if trace is None or isinstance(a, int) and isinstance(b, int) else trace.equate(plain_size(a), plain_size(b))


def _whole(x: Any) -> DimLike | None:
    """A size or Python integer; None for all else."""
    return plain_size(x) if isinstance(x, (int, Dim)) else int(x) if isinstance(x, np.integer) else None


def _sized(x: Any) -> Any:
    return TracedSize(x.terms) if isinstance(x, Dim) else x


class TracedSize(Dim):
    """A size as the user's program sees it. Arithmetic of whole numbers gives sizes, other arithmetic a ``TracedNumber``; both serve every size. What needs the number
    itself (``int``, ``range``, comparisons, text, keys) fixes the size: a guard, which ``f.explain`` lists."""

    __slots__ = ()

    def number(self) -> TracedNumber:
        """The size as a traced number."""
        trace = current()
        if trace is None:
            raise AotgradTypeError(f"{user_loc()}: the size {to_text(self)} is used outside the call that made it; return it from the function instead of keeping it")
        at = trace.canonical(plain_size(self))
        made = TracedNumber._of(trace, trace.builder.size(dim=at) if isinstance(at, Dim) else trace.builder.scalar(at, int64))
        made._weak = True
        made._exactly = self.__int__
        return made  # type: ignore[no-any-return]

    def __hash__(self) -> int:
        return Dim.__hash__(self) if current() is None else hash(int(self))

    def __eq__(self, other: object) -> bool:
        trace = current()
        if trace is None:
            return Dim.__eq__(self, other)
        if isinstance(other, (float, np.floating)):
            return float(other).is_integer() and self == int(other)
        size = _whole(other)
        if size is None:
            return NotImplemented
        return trace.same(plain_size(self), size)

    def __ne__(self, other: object) -> bool:
        same = self.__eq__(other)
        return same if same is NotImplemented else not same

    def __repr__(self) -> str:
        return self.__format__("") if self._shown() else Dim.__repr__(self)

    def __str__(self) -> str:
        return self.__format__("")

    def __format__(self, spec: str) -> str:
        return format(int(self), spec) if spec or self._shown() else to_text(self)

    def _shown(self) -> bool:
        trace = current()
        return trace is not None and trace.can_fix

    def __pow__(self, power: Any, modulus: Any = None) -> Any:
        whole = _whole(power)
        if modulus is not None:
            return pow(int(self), int(power), int(modulus))
        if isinstance(whole, Dim):
            return int(self) ** int(power)
        if whole is None:
            return self._number_op("__pow__", power)
        return _sized(dims.product([plain_size(self)] * whole)) if whole >= 0 else (self.number() * 1.0) ** power

    def __rpow__(self, base: Any) -> Any:
        return base ** int(self) if _whole(base) is not None else self._number_op("__rpow__", base)

    def _number_op(self, name: str, other: Any) -> Any:
        if isinstance(other, complex) and not isinstance(other, float):
            return getattr(complex(int(self)), name)(other)
        return getattr(self.number(), name)(other) if isinstance(other, (int, float, np.generic, np.ndarray, Dim)) else NotImplemented

    def __pos__(self) -> TracedSize:
        return self

    __trunc__ = __floor__ = __ceil__ = __pos__

    def __round__(self, digits: int | None = None) -> Any:
        return self if digits is None or digits >= 0 else round(int(self), digits)

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def __copy__(self) -> TracedSize:
        return self

    def __deepcopy__(self, memo: Any) -> TracedSize:
        return self

    def __getattr__(self, name: str) -> Any:
        """Attributes of Python's integers; ``__array__`` too, but not for NumPy's reductions, which keep sizes as objects: ``np.prod(x.shape)`` is a size."""
        if name == "__array__" and sys._getframe(1).f_code.co_name != "_wrapreduction":
            return lambda dtype=None, copy=None: np.array(int(self), dtype)
        if name.startswith("__") or not hasattr(0, name):
            raise AttributeError(f"a size has no attribute {name!r}")
        return getattr(int(self), name)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        if any(isinstance(x, Tensor) for x in inputs):
            return NotImplemented
        inputs = tuple(map(_unboxed, inputs))
        exact = _EXACT.get(ufunc.__name__)
        if exact is not None and method == "__call__" and not kwargs and None not in (whole := [_whole(x) for x in inputs]):
            return exact(*map(_sized, whole))
        return getattr(ufunc, method)(*_as_numbers(inputs), **kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if any(issubclass(t, Tensor) for t in types):
            return NotImplemented
        return func(*_as_numbers(args), **dict(zip(kwargs, _as_numbers(kwargs.values()))))


_NUMBERS = (int, float, np.number, np.bool_, TracedSize, TracedNumber)
_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod")
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_EXACT: dict[str, Callable[..., Any]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "floor_divide": operator.floordiv, "remainder": operator.mod, "power": operator.pow,
    "negative": operator.neg, "less": operator.lt, "less_equal": operator.le, "greater": operator.gt, "greater_equal": operator.ge, "equal": operator.eq,
    "not_equal": operator.ne, "maximum": lambda a, b: _sized(dims.maximum(plain_size(a), plain_size(b))),
    "minimum": lambda a, b: _sized(dims.minimum(plain_size(a), plain_size(b)))}


def _as_numbers(values: Any) -> list[Any]:
    return [type(v)(_as_numbers(v)) if type(v) in (list, tuple) else v.number() if isinstance(v, TracedSize) else v for v in values]


def _of_size(name: str) -> Any:
    """Arithmetic of a size: among whole numbers as ``Dim`` has it, else of the number."""
    exact = getattr(Dim, name, None)

    def method(self: Any, other: Any) -> Any:
        size = _whole(other)
        if size is not None and exact is not None:
            return _sized(exact(plain_size(self), size))
        return self._number_op(name, other)

    return method


def _compared(name: str) -> Any:
    exact, plain = getattr(Dim, f"__{name}__"), getattr(operator, name)

    def method(self: Any, other: Any) -> Any:
        size = _whole(other)
        if size is not None:
            return exact(plain_size(self), size)
        return plain(int(self), other) if isinstance(other, (float, np.floating)) else NotImplemented

    return method


def _of_bits(plain: Callable[..., Any]) -> Any:
    return lambda self, *others: plain(int(self), *map(_plain_number, others))


def _of_number(name: str, plain: Callable[..., Any], weak: bool = True) -> Any:
    """An operator of a number: the one of traced values, and the same for the plain number."""

    def method(self: Any, *others: Any) -> Any:
        given = [x.number() if isinstance(x, TracedSize) else x for x in others]
        return TracedNumber.known(getattr(TracedArray, name)(self, *given), plain, (self, *given), weak)

    return method


def _reflected(plain: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: plain(b, a)


for _name in (*_ARITHMETIC, "pow", *_COMPARISONS, "neg", "pos", "abs"):
    setattr(TracedNumber, f"__{_name}__", _of_number(f"__{_name}__", getattr(operator, _name)))
for _name in (*_ARITHMETIC, "pow"):
    setattr(TracedNumber, f"__r{_name}__", _of_number(f"__r{_name}__", _reflected(getattr(operator, _name))))
for _name in _ARITHMETIC:
    setattr(TracedSize, f"__{_name}__", _of_size(f"__{_name}__"))
    setattr(TracedSize, f"__r{_name}__", _of_size(f"__r{_name}__"))
for _name in _COMPARISONS[:4]:
    setattr(TracedSize, f"__{_name}__", _compared(_name))
for _name in ("and_", "or_", "xor", "lshift", "rshift"):
    setattr(TracedSize, f"__{_name.strip('_')}__", _of_bits(getattr(operator, _name)))
    setattr(TracedSize, f"__r{_name.strip('_')}__", _of_bits(_reflected(getattr(operator, _name))))
_more: dict[str, Any] = {"divmod": lambda self, other: (self // other, self % other), "rdivmod": lambda self, other: (other // self, other % self)}
for _name, _made in _more.items():
    setattr(TracedSize, f"__{_name}__", _made)
    setattr(TracedNumber, f"__{_name}__", _made)
_more = {"neg": lambda self: _sized(Dim.__neg__(plain_size(self))), "invert": _of_bits(operator.invert)}
for _name, _made in _more.items():
    setattr(TracedSize, f"__{_name}__", _made)
numbers.Integral.register(TracedSize)
