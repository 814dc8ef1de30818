"""``host_call``: Python functions of arrays inside differentiated and compiled code."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotgrad.ir import Block, Builder, Func, TensorType
from aotgrad.ir.host import HostFunction
from aotgrad_runtime.arrays import DTYPES, decode, native
from aotgrad_runtime.dtypes import as_dtype
from aotgrad_runtime.errors import AotgradArgumentError, AotgradTypeError
from aotgrad_runtime.tensor import Tensor

from . import eager, placement
from .boundary import told
from .program import Program
from .pytree import tree_flatten, tree_unflatten
from .rules import flavour
from .sizes import plain_size
from .subtrace import as_value, builder_of, traced_class
from .trace import Traced, current, unrecorded, user_loc

__all__ = ["debug_print", "host_call"]

F = Callable[..., Any]


@told
def host_call(f: F, types: Any, jvp: F | None = None, vjp: F | None = None) -> F:
    """A function that runs ``f`` in Python on NumPy arrays, also where the code around it is compiled: the program is cut there.

    ``types`` says what ``f`` returns: one result or a list of them, each ``(shape, dtype)`` or anything with ``shape`` and ``dtype``; or a function that gives this from
    the arguments. ``jvp(primals, tangents)`` gives the tangents of the results (a list), ``vjp(primals, cotangents)`` the cotangents of the arguments of a float dtype;
    a derivative that is asked for and was not given is an ``AotgradNotImplementedError``. A call runs as often as the program calls it, also where nobody uses its
    results; in the body of a loop or branch that is differentiated it may run once more for the backward pass.

    >>> import numpy as np, aotgrad as ag
    >>> cube = ag.host_call(lambda x: x ** 3, lambda x: x, vjp=lambda xs, cts: [3 * xs[0] ** 2 * cts[0]])
    >>> ag.compile(ag.grad(lambda x: 2.0 * cube(x)))(2.0)
    np.float64(24.0)
    """
    for name, given in (("f", f), ("jvp", jvp), ("vjp", vjp)):
        if not callable(given) and (name == "f" or given is not None):
            raise AotgradTypeError(f"host_call: {name} must be callable, got {type(given).__name__}")
    if isinstance(types, (Traced, np.ndarray)) or isinstance(types, Tensor) and current() is not None:  # (f, x), as other libraries call theirs
        raise AotgradTypeError(f"{user_loc()}: host_call: types={type(types).__name__} is an array: host_call makes a function that is then called with arrays, "
                               "such as g = ag.host_call(f, lambda x: x), then g(x)")
    call = HostFunction(f, getattr(f, "__name__", type(f).__name__), jvp, vjp)

    counts: set[int] = set()

    def run(*args: Any) -> Any:
        if len(args) not in counts:
            _check_takes(f, call.name, len(args))
            counts.add(len(args))
        given = types(*args) if callable(types) else types
        many = isinstance(given, list) or (isinstance(given, tuple) and not _is_type(given))
        found = [_type_of(t) for t in (given if many else [given])]
        outs = _traced(call, args, found) if current() is not None or any(isinstance(a, Traced) for a in args) else _eager(call, args, found)
        return tuple(outs) if many else outs[0]

    return functools.update_wrapper(run, f, assigned=("__name__", "__qualname__", "__doc__", "__module__"), updated=())


@told
def debug_print(fmt: str, *args: Any, **kwargs: Any) -> None:
    """Prints ``fmt.format(*args, **kwargs)`` with the numbers of arrays and traced values, each time the code around it runs: eagerly, compiled, differentiated, in
    bodies of loops, and under ``vmap`` once per example. The compiled program is cut there, so take it away when done. Built libraries
    cannot print: ``ag.aot.build`` refuses it.

    >>> import aotgrad as ag
    >>> @ag.compile
    ... def f(x):
    ...     ag.debug_print("x = {:.2f}, square = {y}", x, y=x * x)
    ...     return x + 1.0
    >>> f(2.0)
    x = 2.00, square = 4.0
    np.float64(3.0)
    """
    if not isinstance(fmt, str):
        raise AotgradTypeError(f"{user_loc()}: debug_print: the first argument is a text such as 'x = {{}}', not {type(fmt).__name__}")
    (values, tree), where = tree_flatten((args, kwargs)), user_loc()
    places = [i for i, v in enumerate(values) if isinstance(v, Tensor) or hasattr(v, "symbols")]

    def show(*arrays: Any) -> tuple[Any, ...]:
        shown = list(values)
        for i, x in zip(places, arrays):
            shown[i] = x[()] if getattr(x, "ndim", 1) == 0 else x
        given, named = tree_unflatten(tree, shown)
        try:
            text = fmt.format(*given, **named)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            what = f"{type(error).__name__}: {error}"
            raise AotgradArgumentError(f"{where}: debug_print: {fmt!r} does not fit {len(given)} value(s) and {list(named)} by name ({what})") from error
        print(text)
        return ()

    trace = current()
    if trace is None:
        show(*[_array(values[i]) for i in places])
        return
    b = builder_of(trace)
    given = [b.stop_gradient(b.refresh(as_value(values[i], trace))) for i in places]
    b.emit("host_call", given, {"call": HostFunction(show, "debug_print"), "types": (), "effect": True})


def _check_takes(f: F, name: str, count: int) -> None:
    """That ``f`` can be called with so many arguments: found out here, and not where compiled code runs."""
    try:
        signature = inspect.signature(f)
    except ValueError:  # of a function that is not written in Python, and does not say
        return
    try:
        signature.bind(*range(count))
    except TypeError as wrong:
        raise AotgradTypeError(f"{user_loc()}: host_call: {name}{signature} is called with {count} argument(s): {wrong}") from None


def _array(x: Any) -> Any:
    while isinstance(x, eager.Dual):
        x = x._primal
    return decode(x._data) if isinstance(x, Tensor) else x


def _is_type(t: Any) -> bool:
    return len(t) == 2 and isinstance(t[0], (tuple, list)) and not _has_type(t[1]) and not _is_shaped(t[1])


def _has_type(t: Any) -> bool:
    """Whether it is a thing with a shape and a dtype; classes such as ``np.float32`` have descriptors of these names."""
    return hasattr(t, "shape") and hasattr(t, "dtype") and not isinstance(t, type)


def _is_shaped(t: Any) -> bool:
    return isinstance(t, (tuple, list)) and len(t) == 2 and isinstance(t[0], (tuple, list))


def _type_of(t: Any) -> TensorType:
    if isinstance(t, tuple):
        shape, dtype = t
    elif isinstance(t, (int, float)):
        return TensorType((), as_dtype(np.asarray(t).dtype))
    elif _has_type(t):
        shape, dtype = t.shape, t._dtype if isinstance(t, Tensor) else t.dtype
    else:
        raise AotgradTypeError(f"host_call: types must hold (shape, dtype) or things with shape and dtype, not {type(t).__name__}")
    return TensorType(tuple(plain_size(tuple(shape))), as_dtype(dtype))


def _traced(call: HostFunction, args: Sequence[Any], types: list[TensorType]) -> list[Any]:
    trace = current()
    if trace is None:
        raise AotgradTypeError(f"{user_loc()}: host_call: a traced value is used outside the call that made it")
    b, cls = builder_of(trace), traced_class(args)
    found = b.emit("host_call", [b.refresh(as_value(x, trace)) for x in args], {"call": call, "types": tuple(types), "effect": True})
    return placement.unsure([cls._of(trace, unrecorded(b, v)) for v in found])  # type: ignore[no-any-return]


def _eager(call: HostFunction, args: Sequence[Any], types: list[TensorType]) -> list[Any]:
    given = [a if isinstance(a, Tensor) else native(np.asarray(a)) for a in args]
    block = Block([TensorType(tuple(a._data.shape if isinstance(a, Tensor) else a.shape), a._dtype if isinstance(a, Tensor) else DTYPES[a.dtype]) for a in given])
    block.outputs = list(Builder(block).emit("host_call", block.args, {"call": call, "types": tuple(types)}))
    program = Program(Func(call.name, block), "HostCallBackward0")
    if any(isinstance(a, Tensor) for a in given):
        return eager.apply(program, given, flavour(given))
    return [x[()] if x.ndim == 0 else x.copy() if any(np.may_share_memory(x, a) for a in given) else x for x in program.run(given)]
