"""Sizes as the user's program sees them, and numbers made of them: arithmetic serves every size, what needs the number itself fixes it."""

from __future__ import annotations

import math
import numbers
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotgrad.ir import dims
from aotgrad.ir.dims import Dim, DimLike, to_text
from aotgrad_runtime.dtypes import int64
from aotgrad_runtime.errors import AotgradAttributeError, AotgradTypeError
from aotgrad_runtime.tensor import Size, Tensor

from .trace import Traced, TracedArray, current, user_loc

__all__ = ["TracedNumber", "TracedSize", "equal_sizes", "fitting_sizes", "plain_size"]


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
            raise AotgradAttributeError(f"a traced value has no attribute {name!r}")
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


def plain_size(x: Any) -> Any:
    """Sizes (also in tuples and lists) as the IR wants them: their ``==`` is structural."""
    if isinstance(x, TracedSize):
        return Dim(x.terms)
    if type(x) in (tuple, list, Size) and any(isinstance(v, (TracedSize, tuple, list)) for v in x):
        return type(x)(plain_size(v) for v in x)
    return x


def equal_sizes(a: Any, b: Any) -> bool:
    """Whether two sizes that must be equal are (see ``Trace.equate``); no question of the program's own, so sizes stay open."""
    trace = current()
    return plain_size(a) == plain_size(b) if trace is None or isinstance(a, int) and isinstance(b, int) else trace.equate(plain_size(a), plain_size(b))


def fitting_sizes(have: Any, want: Any) -> bool:
    """Whether a size broadcasts to one that must not grow (see ``Trace.fits``)."""
    trace = current()
    return have in (1, want) if trace is None or isinstance(have, int) and isinstance(want, int) else trace.fits(plain_size(have), plain_size(want))


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
            raise AotgradAttributeError(f"a size has no attribute {name!r}")
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
Traced._sized = staticmethod(_sized)
