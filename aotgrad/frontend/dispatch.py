"""Calls of public functions: into the current trace, or eagerly through a cached program. Builds the function and method tables from the registry."""

from __future__ import annotations

import functools
import operator
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

import aotgrad.ir.ops  # noqa: F401  (fills the registry)
from aotgrad.ir import Func, TensorType, Value
from aotgrad.ir.dims import Dim
from aotgrad.ir.transforms.rewrite import substitute_func
from aotgrad_runtime.arrays import DTYPES, check_kind, defaults, encode_bfloat16, kinds_in, native, nested
from aotgrad_runtime.dtypes import DType, as_dtype, bfloat16, bool_, float32, float64, int64
from aotgrad_runtime.errors import AotgradError, AotgradIndexError, AotgradNotImplementedError, AotgradOverflowError, AotgradTypeError
from aotgrad_runtime.parameter import Parameter
from aotgrad_runtime.tensor import ArrayTensor, Tensor, wrap

from . import boundary, eager, kernels, known, placement, quick, strides, unusable
from .front import FrontBuilder, Operand, Public, number_operand, publics
from .known import MISS
from .ledger import twin
from .made import note
from .naming import index_loc
from .node_names import edges_of, node_name
from .program import Program
from .promotion import Kind, is_number
from .sizes import plain_size
from .trace import Trace, Traced, TracedArray, TracedTensor, adrift, current, unrecorded, user_loc
from .views import mark_view

__all__ = ["MISS", "NUMPY", "TORCH", "again", "call", "forget", "function", "is_array_like", "is_view", "program", "program_of", "unwatched", "watch"]

TORCH, NUMPY = publics()
_NUMBERS = (int, float, bool)


class _Flavour:
    __slots__ = ("cls", "torch", "traced")

    def __init__(self, torch: bool, cls: type[Any] | None, traced: type[Any]) -> None:
        self.torch, self.cls, self.traced = torch, cls, traced


_TORCH = _Flavour(True, Tensor, TracedTensor)
_TAPED = _Flavour(False, ArrayTensor, TracedArray)
_PLAIN = _Flavour(False, None, TracedArray)
_PYTHON = _Flavour(False, Tensor, TracedTensor)  # Python's numbers among tensors: computed as Python does


def is_array_like(x: Any) -> bool:
    """Whether ``x`` can be an operand: tensors, arrays, numbers."""
    return isinstance(x, (Tensor, np.ndarray, np.generic, int, float))


def call(public: Public, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of a public function with whatever the user gave."""
    out = again(public, args, kwargs)
    if out is not MISS:
        return out
    if kwargs and kwargs.get("out") is not None and into is not None and not public.numpy:
        return into(public, args, kwargs)
    return run(public, public.bind(args, kwargs))


into: Callable[..., Any] | None = None  # calls with ``out=``, see ``inplace``


def again(public: Public, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a call whose like came before (see ``known``), ``MISS`` for others."""
    calls = public.calls
    if calls is None:
        calls = public.calls = known.Calls()
    found = calls.find(args, kwargs, functools.partial(_learn, public), known.AGAIN if public.quick is None else quick.HOT + 1)
    if found is MISS:
        return MISS
    try:
        return found(args, kwargs) if run_known is None else run_known(public, found, args, kwargs)
    except (AotgradError, MemoryError):
        return MISS  # again with its arguments by name, for the message


def _learn(public: Public, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The code of calls such as this one."""
    places: dict[int, str] = {}

    def placed(x: Any, at: str) -> Any:
        if type(x) is Tensor or type(x) is Parameter:
            x = wrap(x._data)  # each place is a tensor of its own
            places[id(x)] = at
        elif type(x) in (tuple, list) and x and type(x[0]) in (Tensor, Parameter):
            return type(x)([placed(t, f"{at}[{i}]") for i, t in enumerate(x)])
        return x

    args = tuple([placed(x, f"args[{i}]") for i, x in enumerate(given)])
    kwargs = {k: placed(x, f"kwargs[{k!r}]") for k, x in named.items()}
    arguments = public.bind(args, kwargs)
    if arguments.get("inplace"):
        return MISS
    operands, flavour, _ = _gather(public, arguments)
    if not flavour.torch or sum(id(x) in places for x in operands) != len(places):
        return MISS
    program, structure, dtypes = _entry(public, arguments, operands, flavour)
    taken = [(x, d) for x, d in zip(operands, dtypes) if d is not _SKIP]
    found = [places.get(id(x)) for x, _ in taken]
    if any(at is None and isinstance(x, (Tensor, np.ndarray)) for at, (x, _) in zip(found, taken)):
        return MISS
    constants = [None if at is not None else _number(x, d) for at, (x, d) in zip(found, taken)]
    followed = [arguments.get(name) for name in public.constants]
    return known.written(program, found, constants, structure, [i for i, (x, _) in enumerate(taken) if any(x is c for c in followed)])


def run(public: Public, arguments: dict[str, Any], numbers: bool = False) -> Any:
    """A call with bound arguments. ``numbers``: an operator between Python's numbers, whose result is one."""
    operands, flavour, trace = _gather(public, arguments)
    if numbers:
        flavour = _PYTHON if flavour.torch else flavour
    elif flavour.torch:
        for v in arguments.values():
            if isinstance(v, np.generic):  # as in torch, NumPy's scalars are plain numbers beside tensors
                return run(public, {k: v.item() if isinstance(v, np.generic) else v for k, v in arguments.items()})
    try:
        if trace is not None:
            for x in operands:
                unusable.check(x)
                placement.check(x)
            if trace.ledger is not None:
                operands = [twin(x) for x in operands]
            return _run_traced(public, arguments, operands, flavour, trace, numbers)
        return run_eager(public, arguments, operands, flavour)
    except AotgradIndexError as error:
        raise (error if trace is not None else _explained(public, arguments, error)) from None
    except (AotgradTypeError, AotgradNotImplementedError) as error:
        found = unusable.told(public.name, [(n, arguments.get(n)) for n in public.tensors], error)
        try:
            if found is error:
                raise
            raise found from None
        finally:
            del found
    except boundary.PLAIN as error:
        boundary.restate(boundary.refusal(public.name, arguments, public.shown(), error), error)


def _explained(public: Public, arguments: dict[str, Any], error: AotgradIndexError) -> AotgradIndexError:
    """Which number of an index along one dim was out of range: positions are worked out for all dims at once, and name none."""
    index, dim, x = arguments.get("index", arguments.get("indices")), arguments.get("dim"), arguments.get("input")
    if not isinstance(index, (Tensor, np.ndarray)) or not isinstance(dim, (int, type(None))) or x is None:
        return error
    if dim is not None and not -len(x.shape) <= dim < len(x.shape):
        return error
    n, dim = (int(np.prod(x.shape)), 0) if dim is None else (x.shape[dim], dim)
    data = index._data if isinstance(index, Tensor) else index
    wrong = data[(data < -n) | (data >= n)]
    return type(error)(f"{user_loc()}: {public.name}: index {int(wrong.flat[0])} is out of bounds for dimension {dim} with size {n}") if wrong.size else error


def _listed(public: Public, name: str, given: Any, arguments: dict[str, Any]) -> list[Any]:
    """The operands in a list: several arrays, or one made of numbers where the function takes one."""
    what = f"{public.name}: {name}"
    if name != public.star and not public.op.variadic:
        arguments[name] = nested(given, what) if _numeric_list(given, what) else _stacked(public, name, given)
        return [arguments[name]]
    if name == public.star and len(given) == 1 and isinstance(given[0], (list, tuple)):
        given = given[0]
    found = arguments[name] = [nested(v, what) if isinstance(v, (list, tuple)) and _numeric_list(v, what) else v for v in given]
    return found


def _stacked(public: Public, name: str, given: Sequence[Any]) -> Any:
    """A list that stands for one array and holds computed values: NumPy makes an array of it, PyTorch does not."""
    if any(isinstance(x, Tensor) and not isinstance(x, ArrayTensor) for x in given):
        raise AotgradTypeError(f"{user_loc()}: {public.name}: {name} is a {type(given).__name__} with tensors in it; make one tensor of it with ag.stack")
    return call(NUMPY["stack"], ([_stacked(public, name, x) if isinstance(x, (list, tuple)) else x for x in given],), {})


def _numeric_list(x: Sequence[Any], what: str) -> bool:
    return not any(issubclass(k, (Tensor, np.ndarray)) for k in kinds_in(x, what))


def _gather(public: Public, arguments: dict[str, Any]) -> tuple[list[Any], _Flavour, Trace | None]:
    """The operands in order, the flavour they decide, and the trace they belong to."""
    operands: list[Any] = []
    for name in public.tensors:
        given = arguments.get(name)
        if given is None:
            if name in public.layout.required:
                raise _bad(public, None)
            continue
        if isinstance(given, (list, tuple)):
            operands += _listed(public, name, given, arguments)
        elif public.op.variadic and name == public.tensors[-1] and name == "tensors":
            raise AotgradTypeError(f"{user_loc()}: {public.name}: a list or tuple of tensors is needed, not one {type(given).__name__}; write {public.name}([a, b])")
        else:
            operands.append(given)
    flavour, trace = _PLAIN, current()
    for x in operands:
        if type(x) is Tensor or type(x) is Parameter:
            flavour = _TORCH
        elif isinstance(x, Tensor):
            if not isinstance(x, ArrayTensor):
                flavour = _TORCH
            elif flavour is _PLAIN:
                flavour = _TAPED
            if trace is None and isinstance(x, Traced):
                trace = _outermost(operands)
    return operands, flavour, trace


def _outermost(operands: Sequence[Any]) -> Trace | None:
    """The trace around all that the operands belong to (no trace is active: its function has ended)."""
    trace: Trace | None = None
    for x in operands:
        if isinstance(x, Traced) and (trace is None or trace.encloses(x._trace)):
            trace = x._trace
    return trace


def _bad(public: Public, x: Any) -> AotgradTypeError:
    return AotgradTypeError(f"{public.name}(): an argument is {type(x).__name__}; arrays, tensors and numbers are accepted ({', '.join(public.tensors)})")


# ---- traced -----------------------------------------------------------------------------------------------------------------------

def _run_traced(public: Public, arguments: dict[str, Any], operands: list[Any], flavour: _Flavour, trace: Trace, plain: bool) -> Any:
    if current() is None:
        raise AotgradTypeError(f"{user_loc()}: a value traced in {trace.name!r} is used outside the call that made it; return it from the function instead of keeping it")
    for k, v in arguments.items():
        if k not in public.tensors:
            arguments[k] = _plain_integers(v)
    scalar = flavour.torch and bool(operands) and all(isinstance(x, (int, float, Dim, np.generic)) or getattr(x, "_scalar", False) or is_number(x) for x in operands)
    torch = flavour.torch and not scalar
    b = FrontBuilder(trace, torch, index_loc())
    b.checks = torch or plain
    wrapped = [_traced_operand(public, x, trace, torch) for x in operands]
    start, given = len(trace.block.ops), _replaced(public, arguments, wrapped)
    results = public.emit(b, given)
    note(trace, start, public, b, given, results)
    first = operands[0] if operands else None
    how = view_of(public, results, arguments, flavour.torch) if isinstance(first, Tensor) else None
    shows = flavour.torch and how is not None
    made = _restore(results, lambda v: _marked(flavour.traced._of(trace, unrecorded(b, v, shows)), scalar))
    outs = made if isinstance(made, tuple) else (made,)
    if how is None:
        placement.place(outs, public, operands, flavour.torch)
        return made
    if how is eager.SAME:
        return first if isinstance(first, Traced) and results is first._value else made
    if how[0] == "index" and len(operands) > 1:  # what the indices are now: they may be written to
        how = (*how, [flavour.traced._of(trace, o.value) for o in wrapped[1:]])
    elif how[0] == "reshape" and public.op.name in _RESHAPED[:2]:
        how = ("unsettled", public.name)
    for i, out in enumerate(outs):
        if flavour.torch or out.ndim:  # NumPy's scalars are no views
            mark_view(out, first, how, i)
            if how[0] == "unsettled" and adrift(out._value) and not placement.shows(out):  # a copy
                out._value = b.stop_gradient(out._value.op.operands[0], reverse=True)
    return made


def _plain_integers(v: Any) -> Any:
    """An attribute with Python's integers and the IR's sizes: a traced integer argument starts the trace again with its number, NumPy's are converted."""
    if isinstance(v, Dim):
        return plain_size(v)
    if isinstance(v, np.integer) or (isinstance(v, Traced) and "_leaf_index" in v.__dict__):
        return operator.index(v)
    if type(v) in (tuple, list) and any(isinstance(x, (np.integer, Traced, Dim, tuple, list)) for x in v):
        return type(v)(_plain_integers(x) for x in v)
    return v


_AS_NUMBERS = {"f": float64, "i": int64, "u": int64, "b": bool_}  # what ``item()`` gives


def _marked(x: Any, scalar: bool) -> Any:
    """What is computed from NumPy's scalars alone is one."""
    if scalar and not x._value.type.shape:
        x._scalar = True
    return x


def _traced_operand(public: Public, x: Any, trace: Trace, torch: bool) -> Operand:
    if isinstance(x, Traced):
        v = trace.value_of(x)
        if x._scalar and torch:
            return Operand(Kind(_AS_NUMBERS[v.type.dtype.kind], True, 0), v)
        return Operand(Kind(v.type.dtype, x._weak, len(v.type.shape)), v)
    if isinstance(x, _NUMBERS) and not isinstance(x, np.generic):
        return number_operand(x)
    if isinstance(x, Tensor):
        return _captured(x, x._data, trace)
    if isinstance(x, (np.ndarray, np.generic)):
        return _captured(x, native(np.asarray(x)), trace)
    if hasattr(x, "symbols"):  # a size
        v = trace.builder.size(dim=trace.canonical(x))
        return Operand(Kind(v.type.dtype, True, 0), v)
    raise _bad(public, x)


def _captured(x: Any, data: Any, trace: Trace) -> Operand:
    if isinstance(x, np.generic):
        v = trace.builder.constant(value=np.array(x))
    else:
        check_kind(x)
        v = trace.capture(x, data)
    return Operand(Kind(v.type.dtype, False, len(v.type.shape)), v)


def _replaced(public: Public, arguments: dict[str, Any], wrapped: list[Operand]) -> dict[str, Any]:
    out, it = dict(arguments), iter(wrapped)
    for name in public.tensors:
        given = out.get(name)
        if isinstance(given, list):
            out[name] = [next(it) for _ in given]
        elif given is not None:
            out[name] = next(it)
    return out


def _restore(results: Any, make: Callable[[Any], Any]) -> Any:
    if isinstance(results, tuple):
        made = [make(v) for v in results]
        return type(results)(*made) if hasattr(results, "_fields") else tuple(made)
    return make(results)


# ---- eager ------------------------------------------------------------------------------------------------------------------------

_CACHE_SIZE = 4096
_programs: OrderedDict[Any, tuple[Program, Any, list[Any]]] = OrderedDict()


def forget() -> None:
    """Every program is made anew."""
    _programs.clear()
    known.forget()


def _freeze(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_freeze(v) for v in value)
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, slice):
        return ("slice", value.start, value.stop, value.step)
    return (type(value), value)


def _key(public: Public, arguments: dict[str, Any], operands: list[Any], flavour: _Flavour) -> tuple[Any, ...]:
    """What decides the program of a call."""
    key: list[Any] = [public, flavour.torch, defaults.dtype]
    for x in operands:
        if isinstance(x, Tensor):
            data = x._data
            key += (data.dtype.char, data.shape) if not x._weak else (data.dtype.char, data.shape, "weak")
        elif isinstance(x, np.ndarray):
            if type(x) is not np.ndarray:
                check_kind(x)
            key += (x.dtype.char, x.shape)
        elif isinstance(x, np.generic):
            key += (x.dtype.char, ())
        elif isinstance(x, _NUMBERS):
            key.append((type(x), x) if _decides(public, x) else type(x))
        else:
            raise _bad(public, x)
    tensors = public.tensors
    if len(operands) != len(tensors) or public.op.variadic:  # some are absent, or lists
        key.append(tuple([(k, len(v)) if isinstance(v, list) else k for k, v in arguments.items() if k in tensors and v is not None]))
    for k, v in arguments.items():
        if k not in tensors:
            key += (k, _freeze(v))
    return tuple(key)


def _entry(public: Public, arguments: dict[str, Any], operands: list[Any], flavour: _Flavour) -> tuple[Program, Any, list[Any]]:
    """The program of a call, the container of its results, and the NumPy dtypes of its operands."""
    key = _key(public, arguments, operands, flavour)
    try:
        entry = _programs.get(key)
    except TypeError:
        bad = next((k for k, v in arguments.items() if k not in public.tensors and (isinstance(v, Tensor) or not isinstance(v, Hashable))), "an argument")
        raise AotgradTypeError(f"{public.name}(): {bad} must be a plain Python value here, not {type(arguments.get(bad)).__name__}") from None
    if entry is None:
        entry = _programs[key] = kernels.collector_paused(_build, public, arguments, operands, flavour)
        if len(_programs) > _CACHE_SIZE:
            _programs.popitem(last=False)
    return entry


def _run_eager(public: Public, arguments: dict[str, Any], operands: list[Any], flavour: _Flavour) -> Any:
    program, structure, dtypes = _entry(public, arguments, operands, flavour)
    program.calls += 1
    if program.calls == quick.HOT and flavour.torch and structure is None:
        quick.promote(public, arguments, operands, program)
    wraps = flavour.torch or public.op.name == "where"
    inputs = [x if isinstance(x, Tensor) else _number(x, d, wraps) for x, d in zip(operands, dtypes) if d is not _SKIP]
    outs = program.run(inputs) if flavour.cls is None else eager.apply(program, inputs, flavour.cls)
    if flavour.cls is None:
        outs = [_numpy_result(o, inputs) for o in outs]
    if structure is None:
        return outs[0]
    return structure(*outs) if hasattr(structure, "_fields") else structure(outs)


def _decides(public: Public, x: Any) -> bool:
    """Whether the program of a call is for this number: an exponent decides how a power is computed, and no argument holds an integer of more than 64 bits."""
    return public.op.name == "pow" or isinstance(x, int) and not -1 << 63 <= x < 1 << 63


def _number(x: Any, dtype: Any, wraps: bool = True) -> Any:
    """A number or array as an array; integers that do not fit wrap, as in torch and in NumPy's ``where``, or are an error as in NumPy."""
    if dtype == np.uint16:  # bfloat16's storage
        return encode_bfloat16(np.asarray(x, np.float32))
    try:
        return np.asarray(x, dtype=dtype)
    except OverflowError as error:
        if not wraps:
            raise AotgradOverflowError(f"{user_loc()}: {error}") from None
        return np.asarray(x).astype(dtype)


def _static(public: Public, kinds: str, shape: tuple[int, ...], dtype: DType) -> Program:
    """The program of a call on tensors ("t") of this shape and on Python numbers ("f")."""
    operands = [wrap(np.broadcast_to(np.zeros((), dtype.np), shape)) if k == "t" else 1.0 for k in kinds]
    return _entry(public, dict(zip(public.tensors, operands)), operands, _TORCH)[0]


def program(public: Public, arguments: dict[str, Any]) -> Program:
    """The program of an eager call on tensors."""
    return _entry(public, arguments, [arguments[name] for name in public.tensors if name in arguments], _TORCH)[0]


def unwatched() -> bool:
    """Whether nothing is put around eager calls."""
    return run_eager is _run_eager


run_eager: Callable[..., Any] = _run_eager
run_short: Callable[..., Any] | None = None
run_known: Callable[..., Any] | None = None


def watch(around: Callable[..., Any] | None, around_short: Callable[..., Any] | None, around_known: Callable[..., Any] | None) -> None:
    """Puts ``around(inner, public, arguments, operands, flavour)`` around every eager call, or takes it away: without it calls cost nothing more. ``around_short(public,
    short, operands)`` runs calls that may have a short way; it gives None where there is none, as ``short`` does. ``around_known(public, known, args,
    kwargs)`` runs calls that came before, by their code; MISS where they are to go the general way."""
    global run_eager, run_short, run_known
    run_eager = _run_eager if around is None else functools.partial(around, _run_eager)
    run_short, run_known = around_short, around_known


def _numpy_result(out: Any, inputs: Sequence[Any]) -> Any:
    """NumPy's own scalar for rank 0; never a view of an input."""
    if out.ndim == 0:
        return out[()]
    return out.copy() if any(isinstance(x, np.ndarray) and np.may_share_memory(out, x) for x in inputs) else out


_SKIP = object()
# Functions whose results show the memory of their first argument, as torch's and NumPy's do; all others give memory of their own.
_RESHAPED = ("view", "flatten", "unflatten", "unsqueeze", "squeeze")  # the first two as far as strides allow
_CASTS = frozenset(("convert", "to_float", "to_double", "to_int", "to_long", "to_bool", "contiguous"))
_PERMUTED = frozenset(("reorder", "swap", "movedim", "t", "transposed"))
_OTHER = frozenset(("spread", "split", "chunk", "unbind", "narrow", "diagonal"))


def view_of(public: Public, results: Any, arguments: dict[str, Any], torch: bool) -> tuple[Any, ...] | None:
    """How the results of a call are views (see ``views.ViewExtra``), None where they are not."""
    name = public.op.name
    if name == "getitem":
        return None if any(len(a.shape) for a in arguments.get("indices", ())) else ("index", arguments["spec"])
    if name in _CASTS and torch and (results.op is None or results.op.name != "cast"):  # torch's casts to the same dtype give the tensor itself
        return eager.SAME
    if public.name == "flatten" and torch and (results.op is None or results.op.name != "flatten" and len(results.type.shape) > 1):
        return eager.SAME
    if public.name == "sum_to_size" and torch and (results.op is None or results.op.name != "sum_to_size"):
        return eager.SAME
    if name in _RESHAPED:
        return ("reshape",)
    if name in _PERMUTED and isinstance(results, Value):
        return ("permute", _order(results))
    first = public.tensors[0]
    return ("call", public, {k: v for k, v in arguments.items() if k != first}) if name in _OTHER or name in _PERMUTED else None


def is_view(public: Public) -> bool:
    """Whether the result of a function is the memory of its argument, all of it, in another shape."""
    return public.op.name in _RESHAPED or public.op.name in _PERMUTED


def _order(v: Value) -> tuple[int, ...]:
    """The order of dims that the op behind ``v`` made; ops without one kept it."""
    rank = len(v.type.shape)
    op = v.op
    if op is not None and op.name == "t":
        return tuple(reversed(range(rank)))
    return tuple(op.attrs["perm"]) if op is not None and "perm" in op.attrs else tuple(range(rank))


def _build(public: Public, arguments: dict[str, Any], operands: list[Any], flavour: _Flavour) -> Any:
    """The program of one call: sizes are static, Python numbers are rank-0 arguments of their promoted dtype."""
    trace = Trace(public.name, examples={}, hidden=False)
    b = FrontBuilder(trace, flavour.torch, None)
    wrapped, dtypes = [], []
    for x in operands:
        if isinstance(x, (Tensor, np.ndarray, np.generic)):
            dtype = x._dtype if isinstance(x, Tensor) else DTYPES.get(np.dtype(x.dtype)) or as_dtype(x.dtype)
            shape = x._data.shape if isinstance(x, Tensor) else x.shape
            v = trace.block.add_arg(TensorType(tuple(shape), dtype))
            wrapped.append(Operand(Kind(dtype, isinstance(x, Tensor) and x._weak, len(shape)), v))
            dtypes.append(dtype.np)
        else:
            slot = len(dtypes)
            dtypes.append(_SKIP)
            wrapped.append(number_operand(x, None if _decides(public, x) else functools.partial(_number_arg, trace, dtypes, slot)))
    results = public.emit(b, _replaced(public, arguments, wrapped))
    many = results if isinstance(results, tuple) else (results,)
    trace.block.outputs = list(many)
    order = _argument_order(trace, dtypes, wrapped)
    trace.block.args = [trace.block.args[i] for i in order]
    func = substitute_func(Func(public.op.name, trace.block), trace.equal.names)
    structure = None if not isinstance(results, tuple) else type(results)
    runner: Any = functools.partial(_diagonal, {k: v for k, v in arguments.items() if k != "input"}) if public.op.name == "diagonal" else None
    if public.op.name == "spread":
        runner = functools.partial(strides.expanded, func.out_types[0].shape)
    if public.name == "ravel":
        runner = _ravelled
    elif public.op.name == "unbind":
        runner = functools.partial(_unbound, arguments.get("dim", 0))
    name, view = node_name(public, arguments, operands), view_of(public, results, arguments, flavour.torch)
    if not flavour.torch:
        return Program(func, name, runner, view), structure, dtypes
    program = strides.made(public, func, name, runner, view, arguments)
    program.call = _call_of(public, arguments, operands, dtypes)
    program.aside = len(many) - 1 if public.helped else 0
    program.edges = edges_of(public, arguments, [d is not _SKIP for d in dtypes], [a.type.dtype.is_differentiable for a in func.args])
    return program, structure, dtypes


def _call_of(public: Public, arguments: dict[str, Any], operands: list[Any], dtypes: list[Any]) -> Any:
    """The parameters that are arguments of the program, in order, and the values of the others: by these names nodes show what they saved."""
    if any(isinstance(arguments.get(t), list) for t in public.tensors):
        return None
    present = [t for t in public.tensors if arguments.get(t) is not None]
    plain = {t: x for t, x, d in zip(present, operands, dtypes) if d is _SKIP}
    others = {k: v for k, v in {**public.layout.defaults, **arguments}.items() if k not in public.tensors}
    numbers = frozenset(t for t, x in zip(present, operands) if isinstance(x, _NUMBERS))
    return tuple(t for t in present if t not in plain), numbers, {**others, **plain}


def _diagonal(arguments: dict[str, Any], x: Any) -> list[Any]:
    """The diagonal as a view, whatever the strides: the program's own reshape would copy some."""
    out = np.diagonal(x, arguments.get("offset", 0), arguments.get("dim1", 0), arguments.get("dim2", 1))
    out.flags.writeable = x.flags.writeable
    return [out]


_UNROUNDED = frozenset(("add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide"))  # take numbers as they are beside bfloat16, as torch's do


def _ravelled(x: Any) -> list[Any]:
    """A view of what has no gaps alone, in torch and NumPy, where ``reshape`` has one of evenly spaced elements too."""
    return [x.reshape(-1) if x.flags.c_contiguous else x.flatten()]


def _unbound(dim: int, x: Any) -> list[Any]:
    """Parts as views of the array, each by one step."""
    return [*np.moveaxis(x, dim, 0)] if x.ndim > 1 else [x[i:i + 1].reshape(()) for i in range(len(x))]


def _number_arg(trace: Trace, dtypes: list[Any], slot: int, dtype: DType) -> Any:
    given = float32 if dtype is bfloat16 and trace.name in _UNROUNDED else dtype
    dtypes[slot] = given.np
    v = trace.block.add_arg(TensorType((), given))
    trace.lifted[v] = (slot, v)
    return trace.builder.to_dtype(v, dtype)


def _argument_order(trace: Trace, dtypes: list[Any], wrapped: list[Operand]) -> list[int]:
    """Arguments in the order of the operands (numbers got theirs when promotion had decided)."""
    slots = {id(v): slot for v, (slot, _) in trace.lifted.items()}
    arrays = iter([i for i, d in enumerate(dtypes) if wrapped[i].value is not None])
    position = []
    for place, a in enumerate(trace.block.args):
        position.append((slots[id(a)] if id(a) in slots else next(arrays), place))
    trace.lifted.clear()
    return [place for _, place in sorted(position)]


def program_of(name: str, types: Sequence[TensorType], body: Callable[..., Any]) -> Program:
    """A program from a body over IR values (for functions that have no public op)."""
    trace = Trace(name, examples={}, hidden=False)
    b = FrontBuilder(trace, True, None)
    out = body(b, *[trace.block.add_arg(t) for t in types])
    trace.block.outputs = list(out) if isinstance(out, (tuple, list)) else [out]
    return Program(Func(name, trace.block), f"{name.capitalize()}Backward0")


# ---- tables -----------------------------------------------------------------------------------------------------------------------

_MAPS = frozenset(("clamp_min", "clamp_max"))  # map elements, whatever else their ops allow


def short(public: Public, slow: Callable[..., Any]) -> Callable[..., Any] | None:
    """``slow``, a function of the operands alone, with the short way in front (see ``quick``); None where there is none: for what does not map elements."""
    names = public.tensors
    if public.op.variadic or public.star or len(names) not in (1, 2) or tuple(public.layout.positional[:len(names)]) != names:
        return None
    if not (public.op.layouts == "elementwise" or public.op.name in _MAPS or public.helped):  # no form would ever fit
        return None
    public.quick = public.quick or quick.Quick(public, _static)
    make = quick.unary if len(names) == 1 else quick.binary
    watched = make(public.quick.watched, lambda *args: None)

    def long(*args: Any) -> Any:
        out = None if run_short is None else run_short(public, watched, args)
        return slow(*args) if out is None else out

    return make(public.quick, long)


def function(public: Public, name: str) -> Callable[..., Any]:
    """The public function."""

    fast = short(public, lambda *args: call(public, args, {})) if TORCH.get(name) is public else None
    count = len(public.tensors)

    def fn(*args: Any, **kwargs: Any) -> Any:
        return call(public, args, kwargs)

    def quick_fn(*args: Any, **kwargs: Any) -> Any:
        return fast(*args) if len(args) == count and not kwargs else call(public, args, kwargs)  # type: ignore[misc]

    fn = fn if fast is None else quick_fn
    fn.__name__ = fn.__qualname__ = name
    fn.__module__ = "aotgrad"
    fn.__doc__ = public.op.doc
    fn.__signature__ = public.signature  # type: ignore[attr-defined]
    fn._told = True  # type: ignore[attr-defined]  # of wrong calls, by ``Public.bind``
    return fn
