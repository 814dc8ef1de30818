"""What a kernel accepts and returns: ``Instance``, ``ArgSpec``, ``OutSpec``, and where hidden inputs come from."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, Final

import numpy as np

from ..dtypes import DType
from ..errors import (
    AotgradMemoryError,
    AotgradOverflowError,
    AotgradRangeError,
    AotgradRuntimeError,
    AotgradTypeError,
    AotgradValueError,
    AotgradZeroDivisionError,
)
from ..records import record

__all__ = ["ABSENT", "ArgSpec", "Attr", "Cell", "Dim", "Fixed", "Global", "Instance", "KINDS", "OutSpec", "RELEASE_BYTES", "Source", "Sym", "default_on_error", "failure"]

ABSENT: Final = object()
"""The ``value`` of an ``"is"`` whose attribute must not be there."""

KINDS: Final = ("array", "float", "int", "npscalar", "is")
RELEASE_BYTES: Final = 1 << 16


@record(frozen=True)
class Sym:
    """Size symbol ``index`` of an instance: the first array dim that holds it binds it, later ones must be equal."""

    index: int


Dim = int | Sym


@record(frozen=True)
class Cell:
    """A hidden input read from a closure cell at every call."""

    cell: types.CellType


@record(frozen=True)
class Global:
    """A hidden input read from a namespace (a dict with string keys) at every call."""

    namespace: dict[str, Any]
    key: str


@record(frozen=True)
class Fixed:
    """A hidden input that is always the same object."""

    obj: object


@record(frozen=True)
class Attr:
    """An attribute path from a positional argument or another source: ``Attr(0, ("weight",))`` is ``args[0].weight``."""

    base: int | Cell | Global | Fixed
    path: tuple[str, ...]


Source = int | Cell | Global | Fixed | Attr


@record(frozen=True)
class ArgSpec:
    """One input of a kernel.

    ``kind`` is ``"array"`` (exactly ``numpy.ndarray``), ``"float"`` (exactly ``float``), ``"int"`` (exactly ``int`` within 64 bits; the kernel sees an int64),
    ``"npscalar"`` (exactly the NumPy scalar type of ``dtype``), or ``"is"`` (must be the object ``value``; the kernel gets no pointer). ``dims`` of an array: ints and
    ``Sym``. ``order``: the dims from the outermost to the innermost in memory; None is C order. ``exact``: dims of size 1 have the strides of that order too.
    ``unwrap = (type, offset)``: the source holds exactly such an object, whose slot at ``offset`` is the array, or the object that is compared.

    >>> ArgSpec("array", dtypes.float64, (Sym(0), 3))
    >>> ArgSpec("array", dtypes.float32, (Sym(0), 3, Sym(1), Sym(2)), order=(0, 2, 3, 1), source=Cell(cell))
    """

    kind: str
    dtype: DType | None = None
    dims: tuple[Dim, ...] = ()
    order: tuple[int, ...] | None = None
    source: Source = 0
    value: object = None
    unwrap: tuple[type, int] | None = None
    exact: bool = False


@record(frozen=True)
class OutSpec:
    """One result: a new array (``dims``: int, ``Sym``, or None where the shapes function says), or with ``as_scalar`` a NumPy scalar (``dims`` are then ``()``)."""

    dtype: DType
    dims: tuple[Dim | None, ...] = ()
    order: tuple[int, ...] | None = None
    as_scalar: bool = False


def failure(code: int, info: Sequence[int], name: str = "a compiled function", locations: Sequence[str] = ()) -> BaseException:
    """The error that a kernel's code means: ``AotgradRangeError`` for 2, ``AotgradValueError`` for 3 (a number outside an op's domain; its location says which), or
    ``AotgradZeroDivisionError`` or ``AotgradOverflowError`` where ``info[2]`` is 1 or 2, ``AotgradMemoryError`` for 4, ``KeyboardInterrupt`` for 5.

    ``locations``: lines of the user's, numbered by ``info[0]``. Behind tabs, what an index is, where that is known: {0} in it stands for the index as it was written,
    {1} for the size, {2} for the index that the kernel met; and for an index its dim and form (see ``Module.index_location``)."""
    parts = (locations[info[0]] if 0 <= info[0] < len(locations) else "").split("\t")
    place, what, axis, form = parts + ["", "0", ""][len(parts) - 1:]
    line = f"{place}: " if place else ""
    if code == 2:
        index = info[1]
        if form == "joined":
            index = (index + (1 << 63 if index < -1 << 62 else 0)) >> 6
        elif form == "wrapped" and index < 0:
            index -= info[2]
        told = what.format(index, info[2], info[1]) if what else f"{name}: index {index} is out of bounds for dimension {axis} with size {info[2]}"
        return AotgradRangeError(line + told)
    if code == 3 and info[2] == 1:
        return AotgradZeroDivisionError(f"{place or 'ZeroDivisionError: an integer divided by zero'} (in {name})")
    if code == 3:
        return (AotgradOverflowError if info[2] else AotgradValueError)(f"{place or 'a number outside the domain of an operation'} ({info[1]} in {name})")
    if code == 4:
        return AotgradMemoryError(f"{name} ran out of memory")
    return KeyboardInterrupt() if code == 5 else AotgradRuntimeError(f"{line}{name} failed with code {code}")


def default_on_error(code: int, info: tuple[int, int, int, int]) -> Any:
    """What an instance without its own ``on_error`` does: 1 falls through to the next instance, the others are errors (see ``failure``)."""
    if code == 1:
        return NotImplemented
    raise failure(code, info)


@record(frozen=True)
class Instance:
    """A kernel with the types it accepts. Addresses are ints; ``keepalive`` holds whatever keeps them valid.

    ``nsym`` size symbols, each bound by some array dim. ``shapes``, ``workspace``: addresses of the NAME_shapes and NAME_workspace functions (0 = none);
    ``workspace_bytes``: a fixed size instead. ``ctx``: address of an ``ag_ctx`` or 0. ``release_bytes``: release the GIL when arguments and results take at least so
    many bytes (0 always, None never, not even in a long call). ``poll``: look for Ctrl-C in small calls too (long loops over little data); larger calls always do.
    ``on_error(code, info)`` is called for a non-zero code of the kernel: it raises, returns a replacement result, or returns NotImplemented, which tries the next
    instance. ``npos``: number of positional arguments of the call (default: as many as the sources name).
    ``finish(result, *args)``, a Python function: what the call returns instead of ``result``; its NotImplemented tries the next instance. An instance that has one is
    passed over while some thread is in another grad mode than the default.
    """

    kernel: int
    args: Sequence[ArgSpec]
    outs: Sequence[OutSpec]
    nsym: int = 0
    shapes: int = 0
    workspace: int = 0
    workspace_bytes: int | None = None
    ctx: int = 0
    release_bytes: int | None = RELEASE_BYTES
    poll: bool = False
    on_error: Callable[[int, tuple[int, int, int, int]], Any] = default_on_error
    keepalive: object = None
    npos: int | None = None
    finish: Callable[..., Any] | None = None
    positional: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        roots = [_root(a.source) for a in self.args]
        named = max((r for r in roots if isinstance(r, int)), default=-1) + 1
        if self.npos is not None and self.npos < named:
            raise AotgradValueError(f"npos is {self.npos}, but an argument's source is positional index {named - 1}")
        object.__setattr__(self, "positional", named if self.npos is None else self.npos)
        if self.finish is not None and type(self.finish) is not types.FunctionType:
            raise AotgradTypeError(f"finish must be a Python function, not {type(self.finish).__name__}")
        if self.kernel == 0:
            raise AotgradValueError("kernel is a NULL address")
        bound: set[int] = set()
        for k, arg in enumerate(self.args):
            _check_arg(k, arg)
            bound |= {d.index for d in arg.dims if isinstance(d, Sym)}
        if bound != set(range(self.nsym)):
            raise AotgradValueError(f"nsym is {self.nsym}, so array dims must bind symbols 0 to {self.nsym - 1}; they bind {sorted(bound)}")
        for k, out in enumerate(self.outs):
            self._check_out(k, out)

    def _check_out(self, k: int, out: OutSpec) -> None:
        if out.as_scalar and out.dims:
            raise AotgradValueError(f"outs[{k}]: as_scalar needs dims (), not {out.dims}")
        if None in out.dims and not self.shapes:
            raise AotgradValueError(f"outs[{k}]: dims {out.dims} leave a size to a shapes function, and there is none")
        _check_dims(f"outs[{k}]", tuple(d for d in out.dims if d is not None), len(out.dims), out.order)
        for d in out.dims:
            if isinstance(d, Sym) and d.index >= self.nsym:
                raise AotgradValueError(f"outs[{k}]: symbol {d.index} is not bound by an argument")


def _root(source: Source) -> int | Cell | Global | Fixed:
    return source.base if isinstance(source, Attr) else source


def _check_arg(k: int, arg: ArgSpec) -> None:
    if arg.kind not in KINDS:
        raise AotgradValueError(f"args[{k}]: unknown kind {arg.kind!r}; use one of {', '.join(KINDS)}")
    if arg.kind in ("array", "npscalar") and arg.dtype is None:
        raise AotgradTypeError(f"args[{k}]: kind {arg.kind!r} needs a dtype")
    if arg.kind != "array" and (arg.dims or arg.order or arg.unwrap and arg.kind != "is"):
        raise AotgradValueError(f"args[{k}]: dims, order and unwrap belong to arrays, not to kind {arg.kind!r}")
    root = _root(arg.source)
    if isinstance(root, int) and root < 0:
        raise AotgradValueError(f"args[{k}]: positional index {root} is negative")
    _check_dims(f"args[{k}]", arg.dims, len(arg.dims), arg.order)


def _check_dims(where: str, dims: tuple[Dim, ...], rank: int, order: tuple[int, ...] | None) -> None:
    for d in dims:
        if (d.index if isinstance(d, Sym) else d) < 0:
            raise AotgradValueError(f"{where}: dim {d} is negative")
    if order is not None and sorted(order) != list(range(rank)):
        raise AotgradValueError(f"{where}: order {order} is not a permutation of the {rank} dims")


def is_c_order(order: tuple[int, ...] | None) -> bool:
    """Is a memory order None or the identity?"""
    return order is None or list(order) == list(range(len(order)))


def np_scalar_type(dtype: DType) -> type:
    """The NumPy scalar type of a dtype."""
    kind: type = np.dtype(dtype.np).type
    return kind


