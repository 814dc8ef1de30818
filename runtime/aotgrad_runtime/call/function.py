"""``make_callable`` and ``prebind``: the public face of the call path."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import math
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any, Protocol

import numpy as np

from .. import watchers
from ..errors import AotgradTypeError, AotgradValueError
from .machine import Machine, unusable
from .match import Matched, dense_strides, match, out_shapes
from .pack import Packed
from .plain import PlainFunction, PlainPrebound
from .spec import Instance, OutSpec, is_c_order

__all__ = ["Function", "machine", "make_callable", "prebind"]


class Function(Protocol):
    """What ``make_callable`` returns."""

    __name__: str
    __qualname__: str
    __dict__: dict[str, Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, obj: object, kind: type | None = None, /) -> Any: ...
    def add_instance(self, instance: Instance, *, first: bool = False) -> None: ...
    def clear_instances(self) -> None: ...
    def instances(self) -> tuple[Instance, ...]: ...
    def suspend(self, on: bool) -> None: ...


class _Entry:
    """Stands for ``Packed`` where there is no machine code."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance


class _State:
    """Instances of one function in the order they are tried; ``retired`` ones stay alive, a call may still be inside them."""

    def __init__(self, reduce: Callable[[Any], Any] | None, of: Any) -> None:
        self.packed: list[Any] = []
        self.of = of
        self.retired: list[Any] = []
        self.suspended = False
        self.reduce = reduce


class _Bound:
    """What a prebound call keeps alive."""

    def __init__(self, packed: Packed, buffers: Sequence[object], keep: object) -> None:
        self.packed, self.buffers, self.keep = packed, buffers, keep


def _state_of(self: Any) -> _State:
    state = self._state
    if not isinstance(state, _State):
        raise AotgradTypeError("a prebound function has one fixed instance; add instances to the function itself")
    return state


def add_instance(self: Any, instance: Instance, *, first: bool = False) -> None:
    """Try ``instance`` after the ones there are (before them with ``first``)."""
    state = _state_of(self)
    loaded = machine() if not isinstance(self, PlainFunction) else None
    entry = _Entry(instance) if loaded is None else loaded.pack(instance)
    state.packed = [entry, *state.packed] if first else [*state.packed, entry]
    if loaded is not None:
        _link(loaded, self, state)


def clear_instances(self: Any) -> None:
    """Forget all instances: every call goes to the fallback. Their code stays alive as long as the function."""
    state = _state_of(self)
    state.retired += state.packed
    state.packed = []
    if not isinstance(self, PlainFunction):
        loaded = machine()
        assert loaded is not None
        _link(loaded, self, state)


def suspend(self: Any, on: bool) -> None:
    """Sends calls of threads that watch (see ``watchers``) to the fallback (True), or back to the instances (False); those of other threads go on as they are."""
    state = _state_of(self)
    state.suspended = bool(on)
    if not isinstance(self, PlainFunction):
        loaded = machine()
        assert loaded is not None
        _link(loaded, self, state)


def instances(self: Any) -> tuple[Instance, ...]:
    """The instances, in the order they are tried; none for a thread that watches while the function is suspended."""
    state = _state_of(self)
    return () if state.suspended and watchers.state.count else tuple(entry.instance for entry in state.packed)


def _link(loaded: Machine, function: Any, state: _State) -> None:
    """Write the chain. Calls match under the GIL, which is held here, and keep no pointer into the chain but to the instance they run."""
    chain = state.packed
    loaded.set(function, "scratch", max([p.scratch for p in chain], default=16))
    for packed, following in zip(chain, [*(p.address for p in chain[1:]), 0]):
        packed.set_word("next", following)
    first = chain[0].address if chain else 0
    loaded.set(function, "head", 0 if state.suspended else first)
    loaded.set(function, "aside", first if state.suspended else 0)


def _of(self: Any, name: str) -> Any:
    """The object whose attributes the function shows, None where ``name`` can be the function's alone."""
    return None if name == "_state" or name.startswith("__") else getattr(getattr(self, "_state", None), "of", None)


def _getattr(self: Any, name: str) -> Any:
    """What the function lacks is that of the object it was made of, such as a module's parameters. Methods that return the object return the function."""
    of = _of(self, name)
    if of is None:
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
    found = getattr(of, name)
    if not isinstance(found, MethodType) or found.__self__ is not of:
        return found

    @functools.wraps(found)
    def method(*args: Any, **kwargs: Any) -> Any:
        out = found(*args, **kwargs)
        return self if out is of else out

    return method


def _written(self: Any, name: str) -> Any:
    """The object to write ``name`` to, where that is not the function."""
    of = _of(self, name)
    return None if of is None or name in self.__dict__ or hasattr(type(self), name) or not hasattr(of, name) else of


def _setattr(self: Any, name: str, value: Any) -> None:
    """What the function lacks and the object has is the object's to keep."""
    of = _written(self, name)
    object.__setattr__(self, name, value) if of is None else setattr(of, name, value)


def _delattr(self: Any, name: str) -> None:
    of = _written(self, name)
    object.__delattr__(self, name) if of is None else delattr(of, name)


def _repr(self: Any) -> str:
    if isinstance(self._state, _State):
        return f"<aotgrad function {getattr(self, '__qualname__', '?')}>"
    return "<aotgrad prebound function>"


def _reduce(self: Any, protocol: int = 0) -> Any:
    """Pickle by qualified name, or as the maker of the function says."""
    state = self._state
    if not isinstance(state, _State):
        raise AotgradTypeError("a prebound function cannot be pickled: it is tied to the memory of its arrays")
    return self.__qualname__ if state.reduce is None else state.reduce(self)


_METHODS: dict[str, Any] = {
    "add_instance": add_instance, "clear_instances": clear_instances, "instances": instances, "suspend": suspend, "__getattr__": _getattr,
    "__setattr__": _setattr, "__delattr__": _delattr, "__repr__": _repr, "__reduce_ex__": _reduce,
}


def _install(kind: type) -> None:
    for name, method in _METHODS.items():
        setattr(kind, name, method)


_install(PlainFunction)


@functools.lru_cache(maxsize=1)
def machine() -> Machine | None:
    """The loaded machine code of this process, None where the plain path is used. Decided once, at first use."""
    if unusable() is not None:
        return None
    try:
        loaded = Machine()
    except (ImportError, AttributeError, OSError):
        return None
    _install(loaded.function_type)
    return loaded


def _with_vectorcall(fallback: Callable[..., Any]) -> Callable[..., Any]:
    if type(fallback).__flags__ & (1 << 11):
        return fallback
    return lambda *args, **kwargs: fallback(*args, **kwargs)


def make_callable(
    name: str, fallback: Callable[..., Any], *, doc: str | None = None, wrapped: Callable[..., Any] | None = None, module: str | None = None,
    qualname: str | None = None, reduce: Callable[[Any], Any] | None = None, of: Any = None,
) -> Function:
    """A callable that runs the first of its instances that fits the arguments, and ``fallback(*args, **kwargs)`` when none does.

    ``wrapped`` is the user's function: its ``__module__``, ``__qualname__``, doc and signature are taken over. The callable binds as a method, takes attributes and
    weak references, and pickles by qualified name unless ``reduce(self)`` says otherwise. Attributes that it lacks are read, set and deleted in ``of``.

    >>> f = make_callable("f", lambda x: -x)
    >>> f(3)
    -3
    >>> f.add_instance(Instance(address, [ArgSpec("array", dtypes.float64, (Sym(0),))], [OutSpec(dtypes.float64, (Sym(0),))], nsym=1))
    """
    if not callable(fallback):
        raise AotgradTypeError(f"fallback must be callable, not {type(fallback).__name__}")
    state = _State(reduce, of)
    loaded = machine()
    made: Any = PlainFunction(fallback, state) if loaded is None else loaded.new("vectorcall", _with_vectorcall(fallback), state)
    if loaded is not None:
        _link(loaded, made, state)
    source = fallback if wrapped is None else wrapped
    if wrapped is not None:
        functools.update_wrapper(made, wrapped)  # inspect.signature follows __wrapped__
    else:
        with contextlib.suppress(ValueError, TypeError):
            made.__signature__ = inspect.signature(fallback)
    made.__name__ = name
    made.__qualname__ = qualname or getattr(source, "__qualname__", name)
    made.__module__ = module or getattr(source, "__module__", __name__)
    made.__doc__ = doc if doc is not None else getattr(source, "__doc__", None)
    result: Function = made
    return result


def _bound_output(k: int, out: OutSpec, shape: tuple[int, ...], array: Any) -> np.ndarray[Any, Any]:
    want = f"{out.dtype.np} of shape {shape}" + ("" if is_c_order(out.order) else f" in memory order {out.order}")
    if type(array) is not np.ndarray:
        raise AotgradTypeError(f"outs[{k}] must be a numpy array ({want}), not {type(array).__name__}")
    if array.dtype != out.dtype.np or array.shape != shape:
        raise AotgradTypeError(f"outs[{k}] must be {want}, not {array.dtype} of shape {array.shape}")
    strides = dense_strides(shape, out.order, out.dtype.itemsize)
    dense = array.size == 0 or all(n == 1 or a == b for n, a, b in zip(shape, array.strides, strides))
    if not (dense and array.flags.aligned and array.flags.writeable):
        raise AotgradValueError(f"outs[{k}] must be dense, aligned and writeable ({want})")
    return array


def prebind(instance: Instance, arrays: Sequence[Any], outs: Sequence[Any]) -> Callable[[], Any]:
    """A function without arguments that runs the kernel on fixed buffers: it reads ``arrays`` and fills ``outs`` at every call, and returns None.

    ``arrays``: the positional arguments of a call; hidden inputs are read now, Python scalars keep their value. ``outs``: one writeable array per result, of
    the exact type (rank 0 for ``as_scalar``); memory shared with an input or another output is an error. ``AotgradTypeError`` names the argument that does not fit.

    >>> run = prebind(instance, [x], [y])
    >>> x[:] = 1.0; run()          # y now holds the result for the new x
    """
    found = match(instance, tuple(arrays))
    if not isinstance(found, Matched):
        if found < 0:
            raise AotgradTypeError(f"this function takes {instance.positional} arguments, {len(arrays)} were bound")
        spec = instance.args[found]
        raise AotgradTypeError(f"argument {found} (source {spec.source!r}) does not fit kind {spec.kind!r}, dtype {spec.dtype}, dims {spec.dims}, order {spec.order}")
    if len(outs) != len(instance.outs):
        raise AotgradTypeError(f"this function has {len(instance.outs)} results, {len(outs)} arrays were given for them")
    syms = [s or 0 for s in found.syms]
    shapes = out_shapes(instance, syms)
    bound = [_bound_output(k, o, s, a) for k, (o, s, a) in enumerate(zip(instance.outs, shapes, outs))]
    _check_overlap(found.keep, bound)
    ptrs = [*found.ptrs, *(a.ctypes.data for a in bound)]
    keep = (found.keep, bound)
    loaded = machine()
    if loaded is None:
        return PlainPrebound(instance, ptrs, syms, keep)
    return _machine_prebound(loaded, instance, ptrs, syms, keep)


def _check_overlap(inputs: Sequence[Any], outs: Sequence[np.ndarray[Any, Any]]) -> None:
    for k, out in enumerate(outs):
        if any(np.may_share_memory(out, other) for other in [*inputs, *outs[:k]]):
            raise AotgradValueError(f"outs[{k}] shares memory with an argument or another result; give each result memory of its own")


def _machine_prebound(loaded: Machine, instance: Instance, ptrs: Sequence[int], syms: Sequence[int], keep: tuple[list[Any], list[Any]]) -> Callable[[], Any]:
    packed = loaded.pack(instance)
    if packed.word("release") > 1:
        nbytes = sum(a.itemsize * math.prod(n or 1 for n in a.shape) for arrays in keep for a in arrays)  # as the trampoline counts
        packed.set_word("release", int(nbytes >= packed.word("release")))
    pointers = (ctypes.c_int64 * max(len(ptrs), 1))(*ptrs)
    sizes = (ctypes.c_int64 * max(len(syms), 1))(*syms)
    made: Callable[[], Any] = loaded.new("prebound", None, _Bound(packed, (pointers, sizes), keep))
    loaded.set(made, "ptrs", ctypes.addressof(pointers))
    loaded.set(made, "syms", ctypes.addressof(sizes))
    loaded.set(made, "head", packed.address)
    return made
