"""From an IR function to a loaded kernel: cache look-up, compilation on a miss, call specifications."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from aotgrad._version import __version__
from aotgrad.codegen.options import Options
from aotgrad.codegen.target import Target
from aotgrad.ir import Func, TensorType, opdef, walk
from aotgrad.ir.dims import Dim
from aotgrad.ir.hashing import structural_hash
from aotgrad_runtime import call, forks, pool
from aotgrad_runtime.cache import ObjectCache, default_folder
from aotgrad_runtime.call import ArgSpec, Instance, OutSpec, Sym
from aotgrad_runtime.dtypes import uint8
from aotgrad_runtime.errors import AotgradError, AotgradValueError
from aotgrad_runtime.loader import Library
from aotgrad_runtime.records import record

from . import compiler, memory

__all__ = ["Kernel", "build", "cache", "collector_paused", "dense_order", "packed", "refuse", "rest", "run_flat", "run_over", "whole"]

T = TypeVar("T")


class _Paused:
    by = 0  # by how many calls: a child of fork has only those of the thread that forked


def collector_paused(work: Callable[..., T], *args: Any) -> T:
    """``work(*args)`` without the cyclic collector. Programs are trees of small objects that live until they are compiled: it would only walk them again and again (half
    of the time at 10,000 ops). No context manager: an interrupt at the entry of its end would leave the collector off."""
    was = gc.isenabled()
    try:
        _Paused.by += was
        gc.disable()
        return work(*args)
    finally:
        if was:
            _Paused.by -= 1
            gc.enable()


def _collector_again() -> None:
    if _Paused.by > 0:
        _Paused.by = 0
        gc.enable()


forks.after_in_child(_collector_again)


class _Shared:
    """The object cache and the target of this process, made at first use."""

    def __init__(self) -> None:
        self.cache: ObjectCache | None = None
        self.target: Target | None = None
        self.source: str = ""
        self.loaded: weakref.WeakValueDictionary[str, Kernel] = weakref.WeakValueDictionary()  # who uses a kernel holds it
        self.recent: OrderedDict[str, Kernel] = OrderedDict()  # those that were asked for last


_shared = _Shared()
_RECENT = 64
_LARGE = 1 << 18
_TRIM = getattr(ctypes.pythonapi, "malloc_trim", None)  # of glibc
_STACK = 16384  # bytes of workspace that calls have on the stack


def cache() -> ObjectCache:
    """The process's object cache."""
    if _shared.cache is None:
        _shared.cache = ObjectCache(default_folder())
    return _shared.cache


def target() -> Target:
    """The machine this process runs on."""
    if _shared.target is None:
        _shared.target = Target.native()
    return _shared.target


def _source_version() -> str:
    """Changes when the compiler's own files do: names, sizes and times of all of them."""
    if not _shared.source:
        root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        parts, folders = [], [os.path.join(root, package) for package in ("codegen", "ir")]
        while folders:
            with os.scandir(folders.pop()) as found:
                for f in found:
                    if f.name.endswith(".py"):
                        info = f.stat()
                        parts.append(f"{f.path[len(root):]}:{info.st_size}:{info.st_mtime_ns}")
                    elif f.is_dir():
                        folders.append(f.path)
        _shared.source = "\n".join(sorted(parts))
    return _shared.source


def dense_order(data: Any) -> tuple[int, ...] | None | bool:
    """None for row-major, the dims from outermost to innermost for another dense order, False for arrays with gaps, overlaps or negative steps."""
    if data.flags.c_contiguous:
        return None
    if data.ndim < 2:
        return False
    item, order = data.itemsize, sorted(range(data.ndim), key=lambda d: (-data.strides[d], d))
    step = item
    for d in reversed(order):
        if data.shape[d] != 1 and data.strides[d] != step:
            return False
        step *= data.shape[d]
    return None if order == list(range(data.ndim)) else tuple(order)


@record
class Kernel:
    """A loaded kernel: call it with dense arrays of its types (``flat``), or make instances of other call specifications. ``over``: (result, argument) pairs that are
    no results of ``flat``: it writes over the arguments."""

    func: Func
    name: str
    library: Library
    meta: dict[str, Any]
    flat: Callable[..., Any]
    key: str
    over: tuple[tuple[int, int], ...] = ()

    def instance(self, args: Sequence[ArgSpec], as_scalar: bool, npos: int | None = None) -> Instance:
        """The kernel behind other argument sources."""
        symbols = self.func.symbols()
        index = {s: i for i, s in enumerate(symbols)}
        placed = dict(self.over)
        outs = [OutSpec(t.dtype, tuple(_out_dim(d, index) for d in t.shape), t.layout.order if t.layout else None, as_scalar and t.rank == 0)
                for j, t in enumerate(self.func.out_types) if j not in placed]
        needs_shapes = any(d is None for o in outs for d in o.dims)
        extra = sum(isinstance(d, Sym) and d.index >= len(symbols) for a in args for d in a.dims)
        shared = pool.context() if self.meta.get("threads", 1) > 1 else 0
        return Instance(
            self.library.address(self.name), args, outs, len(symbols) + extra, self.library.address(f"{self.name}_shapes") if needs_shapes else 0,
            self.library.address(f"{self.name}_workspace"), ctx=shared,
            on_error=functools.partial(_failed, self.func.name, self.meta.get("locations", ())), poll=self.meta["long"], keepalive=self.library, npos=npos)

    def arg_specs(self) -> list[ArgSpec]:
        """Arrays in the order of the function's arguments."""
        index = {s: i for i, s in enumerate(self.func.symbols())}
        spare = [len(index)]
        specs = [ArgSpec("array", t.dtype, tuple(_in_dim(d, index, spare) for d in t.shape), t.layout.order if t.layout else None, i)
                 for i, t in enumerate(self.func.arg_types)]
        return specs if self.once is None else [*specs, ArgSpec("array", uint8, (self.once["bytes"],), None, len(specs))]

    @property
    def once(self) -> dict[str, Any] | None:
        """What is computed once, of arguments that seldom change: calls take it as a block after the arguments."""
        return self.meta.get("once")

    def filling(self) -> Callable[[Sequence[Any]], Any]:
        """A function of all arrays of a call (only those of ``once["args"]`` matter) that gives the block."""
        once = self.once
        assert once is not None
        types = [self.func.arg_types[i] for i in once["args"]]
        specs = [ArgSpec("array", t.dtype, t.shape, t.layout.order if t.layout else None, i) for i, t in enumerate(types)]
        specs.append(ArgSpec("array", uint8, (once["bytes"],), None, len(types)))
        name = f"{self.name}_once"
        made = call.make_callable(name, refuse(self.func))
        made.add_instance(Instance(self.library.address(name), specs, [], workspace=self.library.address(f"{name}_workspace"), keepalive=self.library))

        def fill(arrays: Sequence[Any]) -> Any:
            raw = np.empty(once["bytes"] + 63, np.uint8)
            start = -raw.__array_interface__["data"][0] % 64
            block = raw[start:start + once["bytes"]]
            made(*[packed(arrays[i], t) for i, t in zip(once["args"], types)], block)
            return block

        return fill


def _failed(name: str, locations: Sequence[str], code: int, info: tuple[int, int, int, int]) -> Any:
    """What an error code of a kernel means. It knows no kernel and no compiled function, so that it keeps none alive."""
    if code == 1:
        return NotImplemented
    raise call.failure(code, info, name, locations)


def _in_dim(d: Any, index: dict[str, int], spare: list[int]) -> Any:
    if isinstance(d, int):
        return d
    name = d.as_symbol()
    if name is not None:
        return Sym(index[name])
    spare[0] += 1  # a size that is an expression of others: bound to a number of its own, checked before the call
    return Sym(spare[0] - 1)


def _out_dim(d: Any, index: dict[str, int]) -> Any:
    name = d.as_symbol() if isinstance(d, Dim) else None
    return d if isinstance(d, int) else (Sym(index[name]) if name is not None else None)


def refuse(func: Func) -> Callable[..., Any]:
    """What a kernel's callable falls back to: its callers give what fits, so sizes are what is wrong."""

    def complain(*args: Any, **kwargs: Any) -> Any:
        names = func.attrs.get("arg_names", ())
        shown = [f"{names[i] if i < len(names) else f'argument {i}'} is {a.dtype}{list(a.shape)} for {t}" for i, (a, t) in enumerate(zip(args, func.arg_types))]
        raise AotgradValueError(f"{func.name}: sizes of arguments do not fit each other or the compiled code: {'; '.join(shown)}")

    return complain


_CHECKED = frozenset(("take", "scatter", "scatter_add"))


def _places(func: Func) -> str:
    """Lines that the kernel's errors name: programs that differ in them are different programs."""
    return "\n".join("" if op.loc is None else op.loc.told() for op in walk(func.body) if op.name in _CHECKED or opdef.limited(op))


def build(func: Func, name: str, options: Options | None = None) -> Kernel:
    """The kernel of ``func`` (free of composites), from this process, the cache on disk, or the compiler."""
    opts = options or Options()
    key = structural_hash(func, _places(func), name, repr(opts), repr(target()), __version__, _source_version())
    found = _shared.loaded.get(key)
    if found is not None:
        return _remembered(found)
    entry = cache().get(key)
    if entry is None:
        compiled = collector_paused(compiler.driver.compile_func, func, name, target(), opts)  # eager kernels come here from outside of any
        entry = cache().put(key, compiled.so, compiled.meta)
        if _TRIM is not None and len(compiled.so) > _LARGE:
            _TRIM(0)  # what LLVM took for a large program goes back to the system
    kernel = Kernel(func, name, entry.load(), entry.meta, refuse(func), key, opts.over)
    kernel.flat = _flat(kernel)
    _shared.loaded[key] = kernel
    return _remembered(kernel)


def _flat(kernel: Kernel) -> Callable[..., Any]:
    complain, types, over = refuse(kernel.func), kernel.func.arg_types, kernel.over

    def otherwise(*args: Any) -> Any:
        """Kernels read whole numbers: arrays that lie between their bytes are copied, here, so that no other call looks for it."""
        run = itself()
        if run is None or all(a.flags.aligned for a in args):
            return complain(*args)
        given = [packed(a, t) for a, t in zip(args, types)]
        out = run(*given, *args[len(types):])
        for _, i in over:
            if given[i] is not args[i]:
                args[i][...] = given[i]
        return out

    made = call.make_callable(kernel.name, otherwise)
    itself = weakref.ref(made)
    made.add_instance(kernel.instance(kernel.arg_specs(), False))
    return made


def rest(kernel: Kernel) -> None:
    """Calls take another way from now on: gives back the scratch memory that ``flat`` keeps for its next call. A call that runs it now in another thread holds it."""
    need = kernel.meta["workspace"]
    if not isinstance(need, int) or need > _STACK:
        kernel.flat = _flat(kernel)


def _remembered(kernel: Kernel) -> Kernel:
    recent = _shared.recent
    recent.pop(kernel.key, None)
    recent[kernel.key] = kernel
    if len(recent) > _RECENT:
        recent.popitem(last=False)
    return kernel


def run_flat(kernel: Kernel, arrays: Sequence[Any], *block: Any) -> list[Any]:
    """Outputs of a kernel on arrays of any strides (packed first where they are not dense in the type's layout), which stay as they are.
    ``block``: what was computed once."""
    written = {i for _, i in kernel.over}
    return run_over(kernel, [a.copy(order="K") if i in written else a for i, a in enumerate(arrays)] if written else arrays, *block)


def run_over(kernel: Kernel, arrays: Sequence[Any], *block: Any) -> list[Any]:
    """The same, where arguments that the kernel writes over may change: the outputs that belong there are the arrays themselves, or what stood for them if they are not
    dense (then they have not changed yet)."""
    given: list[Any] | None = None
    try:
        given = [packed(a, t) for a, t in zip(arrays, kernel.func.arg_types)]
        out = kernel.flat(*given, *block)
    except (MemoryError, ValueError) as e:  # NumPy raises the latter where a number of bytes is no number of the machine's
        if isinstance(e, AotgradError):
            raise
        raise memory.copying(kernel.func, arrays) if given is None else memory.running(kernel.func, kernel.meta["workspace"], given, e) from None
    found = [] if out is None else list(out) if isinstance(out, tuple) else [out]  # None: a function without results
    return found if not kernel.over else whole(kernel, found, given)


def whole(kernel: Kernel, found: Sequence[Any], given: Sequence[Any]) -> list[Any]:
    """All outputs, in order: those that ``flat`` gives, and those that it wrote over arguments."""
    placed, rest = dict(kernel.over), iter(found)
    return [given[placed[j]] if j in placed else next(rest) for j in range(len(kernel.func.out_types))]


def packed(data: Any, t: TensorType) -> Any:
    """``data`` dense in the memory order of ``t``."""
    if t.layout is None:
        if data.flags.c_contiguous and data.flags.aligned and type(data) is np.ndarray:
            return data
        return np.require(data, requirements=("C", "A", "E")).reshape(data.shape)
    order = t.layout.order
    inverse = np.argsort(order)
    return np.require(data.transpose(order), requirements=("C", "A", "E")).transpose(inverse)


def static_shape(t: TensorType) -> bool:
    """Whether no size of a type is symbolic."""
    return all(isinstance(d, int) for d in t.shape)


