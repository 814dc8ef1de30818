"""Tracing: values that stand for results not yet computed, and the stack of programs being written.

A ``Traced`` is a tensor without data: it has an IR value and the trace it lives in. A trace may lie inside another (bodies of control flow,
functions under ``grad`` inside ``compile``); what an inner one uses of an outer one becomes an argument of it.
"""

from __future__ import annotations

import os
import sys
import threading
from types import CodeType
from typing import Any

import numpy as np

from aotgrad.ir import Block, Builder, Loc, TensorType, Value, dims
from aotgrad.ir.dims import Dim, DimLike
from aotgrad_runtime import modes
from aotgrad_runtime.arrays import DTYPES
from aotgrad_runtime.dtypes import DType
from aotgrad_runtime.errors import AotgradTypeError, AotgradValueError
from aotgrad_runtime.tensor import ArrayTensor, Tensor

from .sources import memory_of

__all__ = ["NeedStatic", "Trace", "Traced", "TracedArray", "TracedSize", "TracedTensor", "current", "plain_size", "tracing", "unrecorded", "user_loc"]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_RUNTIME = os.path.dirname(os.path.abspath(sys.modules["aotgrad_runtime"].__file__ or "")) + os.sep
_SKIP = (_PACKAGE, _RUNTIME, os.path.dirname(os.path.abspath(np.__file__)) + os.sep,
         os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(np.__file__))), "scipy") + os.sep, "<frozen")
_ours: dict[CodeType, bool] = {}


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
            ours = _ours[code] = code.co_filename.startswith(_SKIP)
        if not ours:
            return code, frame.f_lasti
        frame = frame.f_back  # type: ignore[assignment]
    return None


def unrecorded(b: Builder, v: Value) -> Value:
    """A result as the grad mode wants it: without a derivative where operations are not recorded."""
    return v if modes.state.grad or not v.type.dtype.is_differentiable else b.stop_gradient(v, reverse=True)  # forward mode ignores it, as torch's


class SizesDiffer(AotgradValueError):
    """Two sizes that do not fit; whoever knows the operation says more about ``what``."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{user_loc()}: {what}")
        self.what = what


class _Stack(threading.local):
    def __init__(self) -> None:
        self.traces: list[Trace] = []


_stack = _Stack()


def current() -> Trace | None:
    """The innermost trace of this thread."""
    return _stack.traces[-1] if _stack.traces else None


class Trace:
    """One program being written. ``examples``: sizes seen in the first call (JIT), by symbol; absent in ahead-of-time builds, where a size cannot be fixed."""

    def __init__(self, name: str, parent: Trace | None = None, examples: dict[str, int] | None = None, hidden: bool = True) -> None:
        self.name, self.parent = name, parent
        self.block = Block()
        self.builder = Builder(self.block)
        self.examples: dict[str, int] = parent.examples if parent is not None else (examples if examples is not None else {})
        self.equal: dict[str, DimLike] = parent.equal if parent is not None else {}
        self.guards: list[tuple[DimLike, DimLike, Loc | None]] = parent.guards if parent is not None else []
        self.least: dict[DimLike, tuple[int, int]] = parent.least if parent is not None else {}  # of a size: a lower bound, and the place of its guard
        self.unequal: list[tuple[DimLike, DimLike]] = parent.unequal if parent is not None else []
        self.lifted: dict[Value, tuple[Any, Value]] = {}
        self.captured: dict[int, tuple[Any, Value]] = {}
        self.taken: dict[int, set[tuple[CodeType, int]]] = {}  # for each owner of memory, by id: where the program took an array for an operand
        self.noted: list[Any] = []  # tensors whose numbers the program used
        self.hidden = hidden
        self.requires: set[Value] = set()  # arguments that gradients are wanted of, as ``requires_grad`` tells
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
                f"a value traced in {x._trace.name!r} is used in {self.name!r}, outside the call that made it (line {user_loc()}). "
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
        found = self.captured.get(id(obj))
        if found is None:
            shape = tuple(int(n) for n in data.shape)
            found = self.captured[id(obj)] = (obj, self.block.add_arg(TensorType(shape, DTYPES[data.dtype])))
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
        while isinstance(d, Dim):
            new = d.substitute(self.equal)
            if new == d:
                break
            d = new
        return d

    def replaced(self) -> dict[str, DimLike]:
        """What each size that was found equal to another is in the end (chains followed)."""
        return {k: self.canonical(v) for k, v in self.equal.items()}

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
                                   "give the argument a fixed size, or use the size in arithmetic only")
        self.assume(at, value)
        return value

    def assume(self, a: DimLike, b: DimLike) -> None:
        """Records that two sizes are equal: by solving for a symbol, else by fixing the symbols to the example's sizes; a guard where there is no example."""
        a, b = self.canonical(a), self.canonical(b)
        if a == b:
            return
        if isinstance(a, int) and isinstance(b, int):
            raise AotgradValueError(f"{user_loc()}: sizes {a} and {b} differ")
        found = _solve(a, b)
        if found is not None:
            self.equal[found[0]] = found[1]
            return
        names = [s for s in {*dims.symbols_of(a), *dims.symbols_of(b)} if s in self.examples]
        if self.can_fix and names:
            self.equal.update({s: self.examples[s] for s in names})
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
            raise SizesDiffer(f"sizes {na} and {nb} meet")
        self.assume(a, b)
        return self.canonical(a)


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


def _solve(a: DimLike, b: DimLike) -> tuple[str, DimLike] | None:
    """A symbol and what it must be for ``a == b``: one that stands alone with factor 1 or -1 in the difference and nowhere else in it."""
    gap = a - b
    if not isinstance(gap, Dim):
        return None
    for mono, factor in gap.terms:
        if len(mono) == 1 and mono[0][1] == 1 and mono[0][0][0] == "sym" and factor in (1, -1):
            name = str(mono[0][0][1])
            rest = Dim(((mono, factor),)) - gap if factor == 1 else gap - Dim(((mono, factor),))
            if name not in dims.symbols_of(rest) and (not isinstance(rest, int) or rest >= 0):
                return name, rest
    return None


def plain_size(x: Any) -> Any:
    """Sizes (also in tuples and lists) as the IR wants them: their ``==`` is structural."""
    if isinstance(x, TracedSize):
        return Dim(x.terms)
    if type(x) in (tuple, list) and any(isinstance(v, (TracedSize, tuple, list)) for v in x):
        return type(x)(plain_size(v) for v in x)
    return x


class TracedSize(Dim):
    """A size as the user's program sees it: comparing two of them asks for their values and leaves a guard."""

    __slots__ = ()
    __hash__ = Dim.__hash__

    def __eq__(self, other: object) -> bool:
        trace = current()
        if not isinstance(other, (int, Dim)) or trace is None:
            return Dim.__eq__(self, other)
        return trace.same(plain_size(self), plain_size(other))

    def __ne__(self, other: object) -> bool:
        return not self == other


def _sized(name: str) -> Any:
    plain = getattr(Dim, name)

    def method(self: Any, *others: Any) -> Any:
        out = plain(plain_size(self), *[plain_size(o) for o in others])
        return TracedSize(out.terms) if isinstance(out, Dim) else out

    return method


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "rfloordiv", "mod", "rmod", "neg"):
    setattr(TracedSize, f"__{_name}__", _sized(f"__{_name}__"))


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


def _no_data(self: Any) -> Any:
    raise AotgradTypeError(
        f"{user_loc()}: a traced value has no numbers yet: it cannot become a NumPy array or a Python number, and cannot be stored into a NumPy array. "
        "Functions of SciPy cannot take it: use ag's (ag.logsumexp, ag.softmax, ag.erf). "
        "Use ag.where or ag.cond for branches, build arrays with ag.stack or x.at[i].set(v), or mark the argument static=")


class NeedStatic(AotgradTypeError):
    """A traced integer argument is used as a Python number: the trace starts again with its value fixed (``index``: which leaf)."""

    def __init__(self, index: int) -> None:
        super().__init__("an integer argument is used as a Python number")
        self.index = index


class Traced:
    """What both kinds of traced values share."""

    _concrete = False
    _weak = False
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
        sizes = [self._trace.canonical(d) for d in self._value.type.shape]
        return tuple([TracedSize(d.terms) if isinstance(d, Dim) else d for d in sizes])

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
        Tensor.requires_grad.fset(self, value)  # type: ignore[attr-defined]

    def numel(self) -> Any:
        return dims.product(self.shape)

    def __len__(self) -> int:
        if self.ndim == 0:
            raise AotgradTypeError("len() of a 0-d value")
        return int(self.shape[0])

    def __bool__(self) -> bool:
        raise AotgradTypeError(f"{user_loc()}: a traced value is used as a condition; its number is known only when the compiled code runs. "
                               "Use ag.where for values, ag.cond, ag.scan or ag.fori_loop for control flow")

    __float__ = __complex__ = _no_data

    def __index__(self) -> int:
        leaf = self.__dict__.get("_leaf_index")
        if leaf is not None and self._trace.can_fix:
            raise NeedStatic(leaf)
        return _no_data(self)  # type: ignore[no-any-return]

    __int__ = __index__

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return _no_data(self)

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"Traced<{self._value.type}>"

    def __str__(self) -> str:
        return repr(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise AotgradTypeError("a traced value cannot be pickled or copied by value")

    def detach(self) -> Any:
        """The value without a derivative."""
        return type(self)._of(self._trace, self._trace.builder.stop_gradient(self._value))

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self


class TracedTensor(Traced, Tensor):
    """A traced value in a call entered with tensors."""

    __slots__ = ()

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

