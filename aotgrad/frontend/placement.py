"""Where the elements of traced values lie in memory, as eager code would have them: that decides whether a reshaped value is a view or a copy.

Programs have values without memory, so nothing of this matters until something is written that a reshaped value may show. Then each such value is settled: from the
strides of what it was made of, which are those of the arguments, in the order that results of eager calls have. What that asks of sizes becomes guards, and a compiled
function that asked serves calls whose arrays lie as those of its trace do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from aotgrad.ir import TensorType, opdef
from aotgrad.ir.dims import Dim, DimLike
from aotgrad_runtime import memory_format as mf
from aotgrad_runtime import modes
from aotgrad_runtime.errors import AotgradRuntimeError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.records import record
from aotgrad_runtime.tensor import Tensor

from . import kernels
from .front import Public
from .sizes import plain_size
from .trace import Traced, unrecorded, user_loc
from .views import ViewExtra, mark_view

__all__ = ["UNKNOWN", "Placed", "begin", "check", "check_array", "contiguous", "data_placed", "like", "mark", "of_index", "parent_of", "place",
           "placed", "settle", "shows", "spoil", "unsure", "without"]

COPIED = ("copied",)  # how what turned out to be a copy is a view: not


@record(frozen=True)
class Placed:
    """Strides in elements. ``sizes``: those that have to be as in this call for that."""

    strides: tuple[DimLike, ...]
    sizes: tuple[DimLike, ...] = ()


UNKNOWN = Placed((), ())
Found = Placed | None
"""None: row-major, without gaps."""

# Functions whose results are row-major whatever lies how; those of all others are where all operands are, but for the few of _OWN.
_ROW_MAJOR = frozenset(("matmul", "mm", "bmm", "mv", "dot", "linear", "softmax", "log_softmax", "layer_norm", "tril", "triu", "diag_embed"))
_OWN = frozenset(("getitem", "einsum", "tensordot", "nonzero", "sort", "topk", "take_along_dim", "eigh", "qr", "svd", "stack", "unfold", "solve", "cholesky", "inv"))
_KEPT = frozenset(("clone", "astype", "convert", "to_float", "to_double", "to_int", "to_long", "to_bool"))


# ---- strides ----------------------------------------------------------------------------------------------------------------------------

def data_placed(data: Any) -> Found:
    """How an array lies."""
    if data.flags.c_contiguous or not data.ndim:
        return None
    return Placed(tuple([s // data.itemsize for s in data.strides]))


def begin(t: TensorType, data: Any) -> Found:
    """How an argument of type ``t`` lies: its order is part of the signature; gaps are not."""
    if not isinstance(data, np.ndarray) or not data.ndim or data.flags.c_contiguous:
        return None
    order = kernels.dense_order(data)
    if order is False:
        return data_placed(data)
    return None if order is None else Placed(t.strides())


def without(found: Found, shape: Sequence[Any], d: int | None) -> Found:
    """The same without dim ``d``: of one example of many."""
    if d is None or found is UNKNOWN:
        return found
    given = TensorType(plain_size(tuple(shape)), _ANY).strides() if found is None else found.strides
    rest = [i for i in range(len(given)) if i != d]
    return _simplest([shape[i] for i in rest], [given[i] for i in rest], () if found is None else found.sizes)


_ANY: Any = None


def _row_major(shape: Sequence[DimLike]) -> tuple[DimLike, ...]:
    return TensorType(plain_size(tuple(shape)), _ANY).strides()


def _simplest(shape: Sequence[Any], strides: Sequence[DimLike], sizes: tuple[DimLike, ...] = ()) -> Found:
    wanted = _row_major(shape)
    return None if all(s == w or n == 1 for n, s, w in zip(plain_size(tuple(shape)), strides, wanted)) else Placed(tuple(strides), sizes)


def placed(x: Any) -> Found:
    """How ``x`` lies in memory in eager code."""
    if not isinstance(x, Traced):
        return data_placed(x._data if isinstance(x, Tensor) else x) if isinstance(x, (Tensor, np.ndarray)) else None
    own = x.__dict__
    if "_placed" not in own:
        extra: Any = x._extra  # type: ignore[attr-defined]
        t = x._value.type
        own["_placed"] = (_of_view(x, extra.parent(), extra.how) if isinstance(extra, ViewExtra) else Placed(t.strides()) if t.layout and not t.layout.blocks else None)
    return own["_placed"]  # type: ignore[no-any-return]


def _of_view(x: Any, parent: Any, how: tuple[Any, ...]) -> Found:
    base, kind = placed(parent), how[0]
    if base is UNKNOWN or kind == "copied":
        return UNKNOWN
    shape, sizes = plain_size(tuple(parent.shape)), () if base is None else base.sizes
    if kind == "reshape" or kind == "unsettled" and how[1] != "contiguous":
        return None if base is None else _of_reshaped(x, shape, base)
    if kind == "unsettled":
        return how[2]  # type: ignore[no-any-return]
    strides = list(_row_major(shape) if base is None else base.strides)
    if kind == "permute":
        strides = [strides[i] for i in how[1]]
    elif kind == "index":
        strides = list(of_index(how[1].entries, strides, lambda d: 0))
    elif kind == "call":
        found = _of_call(x, shape, strides, how[1], how[2])
        if found is None:
            return UNKNOWN
        strides = found
    return _simplest(x.shape, strides, sizes)


def of_index(entries: Sequence[tuple[Any, ...]], strides: Sequence[Any], new: Callable[[int], Any]) -> Iterator[Any]:
    """The strides of a part of what has these; ``new`` gives that of a new dim in front of dim ``d``."""
    d = 0
    for e in entries:
        if e[0] == "new":
            yield new(d)
            continue
        if e[0] == "slice":
            yield strides[d] * (e[3] or 1)
        d += 1
    yield from strides[d:]


def _of_call(x: Any, shape: Sequence[DimLike], strides: list[DimLike], public: Public, arguments: dict[str, Any]) -> list[DimLike] | None:
    name, rank = public.op.name, len(shape)
    if name in ("split", "chunk", "narrow"):
        return strides
    if name == "unbind":
        del strides[arguments.get("dim", 0) % rank]
        return strides
    if name == "spread":
        now = plain_size(tuple(x.shape))
        lead = len(now) - rank
        return [*[0] * lead, *[0 if n == 1 and m != 1 else s for n, m, s in zip(shape, now[lead:], strides)]]
    if name == "flip":
        given = arguments.get("dims")
        turned = range(rank) if given is None else [d % rank for d in (given if isinstance(given, (tuple, list)) else (given,))]
        return [-s if d in turned else s for d, s in enumerate(strides)]
    if name in ("diagonal", "diag"):
        i, j = (arguments.get("dim1", 0) % rank, arguments.get("dim2", 1) % rank) if name == "diagonal" else (0, 1)
        return [*[s for d, s in enumerate(strides) if d not in (i, j)], strides[i] + strides[j]]
    return None


class _Undecided(Exception):
    """Two sizes of which this trace does not know whether they are equal."""


def _of_reshaped(x: Any, shape: Sequence[DimLike], base: Placed) -> Found:
    """How a reshaped value lies, view or copy, in this call: sizes are compared, and those that mattered remembered."""
    trace, new, asked = x._trace, plain_size(tuple(x.shape)), list[DimLike]()

    def same(a: DimLike, b: DimLike) -> bool:
        a, b = trace.canonical(a), trace.canonical(b)
        if a == b or isinstance(a, int) and isinstance(b, int):
            return bool(a == b)
        na, nb = trace.example(a), trace.example(b)
        if na is None or nb is None:
            raise _Undecided
        asked.extend((a, b))
        return bool(na == nb)

    try:
        found = reshaped(shape, base.strides, new, same)
    except _Undecided:
        return UNKNOWN
    return None if found is None else _simplest(new, found, (*base.sizes, *asked))


def reshaped(shape: Sequence[DimLike], strides: Sequence[DimLike], new: Sequence[DimLike], same: Callable[[DimLike, DimLike], bool]) -> list[DimLike] | None:
    """The strides with which memory of ``shape`` and ``strides`` shows the shape ``new``; None where it cannot. ``same`` decides about sizes that are not known."""
    if 0 in shape:
        return list(_row_major(new))
    runs = _runs(shape, strides, lambda a, b: a == b)
    if len(runs) > 1:  # only then sizes matter
        runs = _runs(shape, strides, same)
    out: list[DimLike] = []  # from the innermost outwards
    rest = list(new)
    for k, (count, step) in enumerate(runs or [(1, 1)]):
        taken = len(rest) if k >= len(runs) - 1 else _filled(rest, count, same)
        if taken is None:
            return None
        for _ in range(taken):
            out.append(step)
            step = step * rest.pop()
    return out[::-1]


def _runs(shape: Sequence[DimLike], strides: Sequence[DimLike], same: Callable[[DimLike, DimLike], bool]) -> list[tuple[DimLike, DimLike]]:
    """Dims that step through memory evenly, taken together: (how many elements, their distance), from the innermost outwards."""
    runs: list[tuple[DimLike, DimLike]] = []
    for n, s in zip(reversed(shape), reversed(strides)):
        if n == 1 or same(n, 1):
            continue
        if runs and same(s, runs[-1][0] * runs[-1][1]):
            runs[-1] = runs[-1][0] * n, runs[-1][1]
        else:
            runs.append((n, s))
    return runs


def _filled(sizes: Sequence[DimLike], count: DimLike, same: Callable[[DimLike, DimLike], bool]) -> int | None:
    """How many of the last sizes hold ``count`` elements together; None where none do."""
    products: list[DimLike] = [1]
    for n in reversed(sizes):
        products.append(products[-1] * n)
    for test in (lambda a, b: a == b, same):
        for taken, product in enumerate(products):
            if test(product, count):
                return taken
    return None


# ---- results of calls -------------------------------------------------------------------------------------------------------------------

def place(made: Sequence[Any], public: Public, operands: Sequence[Any], torch: bool) -> None:
    """Takes note of how the results of a call lie, where that is not row-major."""
    name, found = public.op.name, None
    if name in _OWN:
        found = UNKNOWN if any(out.ndim > 1 for out in made) else None
    elif name not in _ROW_MAJOR:
        given = [(x, p) for x in operands if (p := placed(x)) is not None]
        if given:
            found = _of_result(made[0], name, operands, given, torch)
    if found is not None:
        for out in made:
            out.__dict__["_placed"] = found if out.ndim > 1 else None


def _of_result(out: Any, name: str, operands: Sequence[Any], given: list[tuple[Any, Placed]], torch: bool) -> Found:
    """Elementwise results lie as their operands do."""
    if any(p is UNKNOWN for _, p in given) or not (name in _KEPT or isinstance(opdef.get(name).lower, opdef.Scalar)):
        return UNKNOWN
    trace, shape = out._trace, plain_size(tuple(out.shape))
    sizes = [trace.example(n) for n in shape]
    if None in sizes:
        return UNKNOWN
    arrays = [x for x in operands if isinstance(x, (Tensor, np.ndarray)) and len(x.shape)]
    strides = []
    for x in arrays:
        if len(x.shape) != len(shape) or any(trace.example(m) != n for m, n in zip(plain_size(tuple(x.shape)), sizes)):
            return UNKNOWN
        own = placed(x)
        strides.append(tuple([trace.example(s) for s in (_row_major(plain_size(tuple(x.shape))) if own is None else own.strides)]))
    if any(None in s for s in strides) or not torch and any(s != strides[0] for s in strides):
        return UNKNOWN
    known = mf.preserved_strides(sizes, strides[0]) if name in _KEPT else mf.pointwise_strides(sizes, strides, len(strides) == len(operands) or None)
    asked = tuple(n for n in (*shape, *(s for _, p in given for s in (*p.sizes, *p.strides))) if isinstance(n, Dim))
    return _simplest(sizes, known, asked)


def like(out: Any, x: Any) -> None:
    """``out`` lies as a copy of ``x`` does."""
    found = placed(x)
    if found is not None and out.ndim:
        out._placed = _of_result(out, "clone", [x], [(x, found)], True)


def unsure(xs: Sequence[Any]) -> Any:
    """Results of which is not known how they lie."""
    mark(xs, [UNKNOWN if x is not None and x.ndim > 1 else None for x in xs])
    return xs


def contiguous(x: Any, out: Any) -> Any:
    """``out``, the numbers of ``x`` in the memory order of its type: ``x`` itself where that lies so."""
    t = out._value.type
    goal = None if t.layout is None else Placed(t.strides())
    out = type(x)._of(x._trace, x._value) if out is x else out
    out._placed = goal
    mark_view(out, x, ("unsettled", "contiguous", goal))
    if not modes.state.grad and not shows(out):
        out._value = unrecorded(out._trace.builder, out._value)
    return out


# ---- what is written ----------------------------------------------------------------------------------------------------------------------

def parent_of(x: Any) -> Any:
    """What ``x`` is a view of; None where it is none."""
    extra = x._extra
    return extra.parent() if isinstance(extra, ViewExtra) and extra.how[0] not in ("copied", "unsettled") else None


def _family(x: Any) -> Iterator[Any]:
    """The live values that may show the memory of ``x``, with itself; parts come after what they are parts of."""
    extra: Any = x._extra
    for ref in list(() if extra is None or extra.cell is None else extra.cell.views or ()):
        view = ref()
        if view is not None and isinstance(view, Traced) and isinstance(view._extra, ViewExtra):  # type: ignore[attr-defined]
            yield view
    at = x
    while at is not None and isinstance(at._extra, ViewExtra):
        yield at
        at = at._extra.parent()


def settle(x: Any, name: str) -> None:
    """Before ``x`` is written (by ``name``): decides which values that may show its memory do."""
    for view in list(_family(x)):
        if view._extra.how[0] == "unsettled" and view._trace is x._trace:
            _settle(view)
    at = x
    while (parent := parent_of(at)) is not None:
        if not isinstance(parent, Traced) or parent._trace is not x._trace:
            raise AotgradTypeError(f"{user_loc()}: {name}: a part of a value from outside this function, loop or branch is written in its body; return the new value "
                                   "from the body instead")
        at = parent
    _check_distinct(x)


def shows(view: Any) -> bool:
    """Whether what a call gave that may copy is a view, as far as that can be known."""
    _settle(view)
    return bool(view._extra.how[0] == "reshape")


def _check_distinct(x: Any) -> None:
    """Refuses to write where one element stands for several."""
    found = placed(x)
    for n, s in zip(plain_size(tuple(x.shape)), () if found is None else found.strides):
        if s == 0 and n != 1 and not (isinstance(n, Dim) and x._trace.can_fix and x._trace.same(n, 1)):
            raise AotgradRuntimeError(f"{user_loc()}: this memory cannot be written: one element stands for several (expand); use clone() first")


def _settle(view: Any) -> None:
    placed(view)
    extra = view._extra
    _, kind, *_ = extra.how
    parent, trace = extra.parent(), view._trace
    base = placed(parent)
    trace.placing.add(view._value)
    if base is None and (kind != "contiguous" or extra.how[2] is None):
        extra.how = ("reshape",)
        return
    try:
        shows = None if base is UNKNOWN else _shows(view, parent, base, kind)
    except AotgradTypeError:  # a size that is not known here
        shows = None
    if shows is None:
        return
    if shows:
        extra.how = ("reshape",)
        return
    if kind == "view":
        raise AotgradRuntimeError("view size is not compatible with input tensor's size and stride (at least one dimension spans across two contiguous subspaces). "
                                  f"Use .reshape(...) instead. ({user_loc()})")
    extra.how, extra.made = COPIED, None


def _shows(view: Any, parent: Any, base: Found, kind: str) -> bool:
    trace = view._trace
    shape = plain_size(tuple(parent.shape))
    for n in () if base is None else base.sizes:
        at = trace.canonical(n)
        if isinstance(at, Dim):
            trace.fix(at)
    strides = [trace.canonical(s) for s in (_row_major(shape) if base is None else base.strides)]
    shape = tuple(trace.canonical(n) for n in shape)
    if kind == "contiguous":
        wanted = view._extra.how[2]
        goal = _row_major(shape) if wanted is None else wanted.strides
        return all(s == w or trace.same(n, 1) or trace.same(s, w) for n, s, w in zip(shape, strides, goal))
    if kind == "ravel":  # NumPy's: of arrays without gaps alone
        return all(s == w or trace.same(n, 1) or trace.same(s, w) for n, s, w in zip(shape, strides, _row_major(shape)))
    return reshaped(shape, strides, [trace.canonical(n) for n in plain_size(tuple(view.shape))], trace.same) is not None


def spoil(written: set[int], views: Sequence[Any], line: Any, name: str) -> None:
    """After a write: what may show the same memory, and may not, has no value from here on. ``written``: the ids of what has one."""
    edges = [(v, v._extra.parent()) for v in views if v._extra.how[0] != "copied"]
    if not any(v._extra.how[0] == "unsettled" for v, _ in edges):
        return
    reached, more = set(written), True
    while more:
        more = False
        for pair in edges:
            for here, there in (pair, pair[::-1]):
                if id(here) in reached and id(there) not in reached:
                    _lose(there, line, name)
                    reached.add(id(there))
                    more = True


def _lose(x: Any, line: Any, name: str) -> None:
    reason = (f"{line}: {name}: this is a write through, or under, a reshaped tensor, and whether that is a view or a copy is not known while a function is traced. "
              "Write reshape(...).clone() for a copy, or make what is reshaped with .clone(memory_format=ag.contiguous_format) for a view")
    if not isinstance(x, Traced) or x._value.op is None:
        raise AotgradRuntimeError(reason)
    x.__dict__["_lost"] = reason


def mark(xs: Sequence[Any], places: Sequence[Found]) -> None:
    """Takes note of how values lie."""
    for x, found in zip(xs, places):
        if x is not None and x.ndim:
            x._placed = found


def check(x: Any) -> None:
    """Raises where a write has left open what ``x`` is."""
    if isinstance(x, Traced) and "_lost" in x.__dict__:
        raise AotgradRuntimeError(x.__dict__["_lost"])


def check_array(x: Any) -> None:
    """Refuses writes to what NumPy shows for reading alone: diagonals and broadcast arrays, and parts of them."""
    at = x
    while at is not None and isinstance(at._extra, ViewExtra):
        how = at._extra.how
        if how[0] == "call" and how[1].numpy and how[1].op.name in ("diagonal", "spread"):
            raise AotgradValueError(f"{user_loc()}: assignment destination is read-only: it is a part of what np.{how[1].name} gave; use np.copy(x) first")
        at = at._extra.parent()
