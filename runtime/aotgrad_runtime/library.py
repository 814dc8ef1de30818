"""Libraries built ahead of time: their description, and their functions as Python callables. Needs NumPy and the standard library alone."""

from __future__ import annotations

import ast
import ctypes
import json
import os
import stat
import struct
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from . import loader, pool
from .arrays import check_kind
from .call import ArgSpec, Instance, OutSpec, Sym, failure, make_callable
from .call.match import dense_strides, out_shapes
from .call.plain import plain_run
from .dtypes import DType, as_dtype
from .errors import AotgradAttributeError, AotgradError, AotgradRuntimeError, AotgradTypeError, AotgradValueError
from .library_call import Call, decode_call, flat_call
from .records import record
from .trees import kind_of

__all__ = ["ERRORS", "FORMAT", "MAGIC", "Array", "BuiltLibrary", "Signature", "load", "read_description", "signatures"]

FORMAT: Final = 2
_FLAT: Final = 1  # before trees were recorded: functions take and give arrays one by one
MAGIC: Final = b"agmeta\0\1"
# What a function of a built library returns: code, name in C, meaning.
ERRORS: Final = (
    (0, "SUCCESS", "done"), (1, "ERROR_SIZES", "a size is negative, or sizes that must be equal differ"), (2, "ERROR_INDEX", "an index is out of range"),
    (3, "ERROR_DOMAIN", "an argument is outside the domain of a function"), (4, "ERROR_WORKSPACE", "workspace is NULL where bytes are needed"),
    (5, "ERROR_INTERRUPTED", "the caller asked to stop"), (6, "ERROR_NONFINITE", "a result is not finite"),
)
_HEAD = struct.Struct("<8sqq")
_SHDR = struct.Struct("<IIQQQQIIQQ")
_SYM = struct.Struct("<IBBHQQ")
_SHT_DYNSYM = 11


# ---- the description --------------------------------------------------------------------------------------------------------------------

@record(frozen=True)
class Array:
    """An argument or result: ``shape`` of numbers and size expressions; ``order``: memory order of the dims where it is not C's."""

    name: str
    dtype: DType
    shape: tuple[int | str, ...]
    order: tuple[int, ...] | None
    doc: str = ""

    def __str__(self) -> str:
        layout = f", memory order {list(self.order)}" if self.order else ""
        return f"{self.dtype.name}{'[' + ', '.join(map(str, self.shape)) + ']' if self.shape else ''}{layout}"


@record(frozen=True)
class Signature:
    """One function of a library: ``inputs`` and ``outputs`` of the C form, and how Python calls it (``call``).

    ``bind``: per size where to read it, (argument, axis, a, b): size = (length - b) / a; ``guards``: sizes that must be equal, and why.
    """

    name: str
    kind: str
    doc: str
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    sizes: tuple[str, ...]
    bind: tuple[tuple[int, int, int, int] | None, ...]
    guards: tuple[tuple[int | str, int | str, str], ...]
    locations: tuple[str, ...]
    call: Call
    long: bool = False  # a call with little data may last

    def __str__(self) -> str:
        return self.call.text(self.name, self.inputs, self.outputs)

    def flat(self) -> str:
        """The C form, without sizes and workspace."""
        ins = ", ".join(f"{a.name}: {a}" for a in self.inputs)
        outs = ", ".join(f"{a.name}: {a}" for a in self.outputs)
        return f"{self.name}({ins}) -> {outs if len(self.outputs) == 1 else f'({outs})'}"

    def text(self) -> str:
        """The docstring."""
        lines = [str(self), ""]
        if self.doc:
            lines += [self.doc, ""]
        lines += [f"{name}: {a.doc or a}" for name, a in zip([*self.call.paths, *(a.name for a in self.outputs)], (*self.inputs, *self.outputs))]
        return "\n".join([*lines, *(f"Sizes: {why}." for _, _, why in self.guards)])


def _array(d: Mapping[str, Any]) -> Array:
    return Array(d["name"], as_dtype(d["dtype"]), tuple(d["shape"]), None if d["order"] is None else tuple(d["order"]), d["doc"])


def _signature(d: Mapping[str, Any]) -> Signature:
    bind = tuple(None if b is None else (b[0], b[1], b[2], b[3]) for b in d["bind"])
    guards = tuple((a, b, why) for a, b, why in d["guards"])
    inputs, outputs = (tuple(map(_array, d[k])) for k in ("inputs", "outputs"))
    if "python" in d:
        call = decode_call(d["python"], len(inputs), len(outputs), lambda i, x: fits(inputs[i], x))
    else:
        call = flat_call([a.name for a in inputs], len(outputs))
    return Signature(d["name"], d["kind"], d["doc"], inputs, outputs, tuple(d["sizes"]), bind, guards, tuple(d["locations"]), call, d.get("long", False))


def fits(a: Array, x: Any) -> bool:
    """Whether numbers, as plain data has them, can be an argument."""
    try:
        return all(not isinstance(want, int) or want == n for want, n in zip(a.shape, _converted(a, a.name, x, "").shape))
    except AotgradError:
        return False


def read_description(data: bytes, name: str, *, any_machine: bool = True) -> tuple[str, dict[str, Any]]:
    """The symbol and the content of the description inside the library file ``data`` (called ``name`` in errors), without loading it.

    Raises ``AotgradValueError`` for a file that is damaged, foreign, of another format version, or (unless ``any_machine``) for another processor.
    """
    loader.check_library(data, name, any_machine=any_machine)
    try:
        found = _find_description(data)
    except (struct.error, ValueError, IndexError, UnicodeDecodeError, RecursionError):
        found = None
    if found is None:
        raise AotgradValueError(f"{name} is a library of aotgrad without a description (a compiled function of the cache?); load what ag.aot.build wrote")
    if found[1].get("format") not in (_FLAT, FORMAT):
        raise AotgradValueError(f"{name} has description format {found[1].get('format')}, this aotgrad reads {_FLAT} and {FORMAT}; build it again, or load it where it "
                                "was built")
    return found


def signatures(description: Mapping[str, Any], name: str) -> list[Signature]:
    """The functions of the library ``name``. Raises ``AotgradValueError`` for a description that describes none."""
    try:
        return [_signature(d) for d in description["functions"]]
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        raise AotgradValueError(f"{name} has a description that is damaged ({type(error).__name__}: {error}); build it again") from None


def _find_description(data: bytes) -> tuple[str, dict[str, Any]] | None:
    shoff, = struct.unpack_from("<Q", data, 40)
    step, count = struct.unpack_from("<HH", data, 58)
    sections = [_SHDR.unpack_from(data, shoff + i * step) for i in range(count)]
    for _, kind, _, _, offset, size, link, *_ in sections:
        if kind != _SHT_DYNSYM:
            continue
        strings = sections[link][4]
        for label, _, _, index, value, _ in _SYM.iter_unpack(data[offset:offset + size]):
            symbol = data[strings + label:data.index(b"\0", strings + label)].decode()
            if symbol.endswith("_meta") and 0 < index < count:
                at = value - sections[index][3] + sections[index][4]
                magic, addresses, length = _HEAD.unpack_from(data, at)
                if magic == MAGIC:
                    start = at + _HEAD.size + 8 * addresses
                    return symbol, json.loads(data[start:start + length])
    return None


# ---- sizes ------------------------------------------------------------------------------------------------------------------------------

_OPERATORS: Final[dict[type, Callable[[int, int], int]]] = {ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b}
_CALLS: Final[dict[str, Callable[[int, int], int]]] = {"floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b, "min": min, "max": max}


def _evaluate(size: int | str, env: Mapping[str, int]) -> int:
    """The number of a size expression."""
    return size if isinstance(size, int) else _value(ast.parse(size, mode="eval").body, env)


def _value(node: ast.expr, env: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return env[name]
        case ast.UnaryOp(op=ast.USub(), operand=x):
            return -_value(x, env)
        case ast.BinOp(left=a, op=op, right=b) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(a, env), _value(b, env))
        case ast.Call(func=ast.Name(id=name), args=[a, b]) if name in _CALLS:
            return _CALLS[name](_value(a, env), _value(b, env))
    raise AotgradValueError(f"the size expression {ast.unparse(node)} is not understood; the library may be newer than this aotgrad")


# ---- one function -----------------------------------------------------------------------------------------------------------------------

class _Function:
    """The Python path of a function's C form: converts arrays, checks sizes, allocates results. The trampoline serves what needs none of that."""

    def __init__(self, signature: Signature, library: loader.Library, addresses: Sequence[int], ctx: int) -> None:
        self.signature, self.library, self.ctx = signature, library, ctx
        self.kernel, self.workspace, self.shapes = addresses
        outs = [OutSpec(a.dtype, (None,) * len(a.shape), a.order, not a.shape) for a in signature.outputs]
        self.instance = Instance(self.kernel, (), (), workspace=self.workspace, ctx=ctx, release_bytes=0, keepalive=library)
        self.results = Instance(self.kernel, (), outs, shapes=self.shapes, keepalive=library)
        self.paths = signature.call.paths

    def __call__(self, *given: Any) -> Any:
        arrays = [_converted(a, path, x, self.signature.name) for a, path, x in zip(self.signature.inputs, self.paths, given)]
        sizes = self._sizes(arrays)
        shapes = out_shapes(self.results, sizes)
        outs = [np.ndarray(s, a.dtype.np, strides=dense_strides(s, a.order, a.dtype.itemsize)) for a, s in zip(self.signature.outputs, shapes)]
        code, info = plain_run(self.instance, [x.ctypes.data for x in (*arrays, *outs)], sizes)
        if code:
            self.failed(code, info)
        values = tuple(o[()] if o.ndim == 0 else o for o in outs)
        return values[0] if len(values) == 1 else values

    def _sizes(self, arrays: Sequence[Any]) -> list[int]:
        s = self.signature
        env: dict[str, int] = {}
        for symbol, where in zip(s.sizes, s.bind):
            if where is None:
                raise AotgradValueError(f"{s.name}: no argument tells the size {symbol} ({s}); call it from C, or build it with an argument of shape [{symbol}]")
            i, axis, a, b = where
            env[symbol], rest = divmod(arrays[i].shape[axis] - b, a)
            if rest or env[symbol] < 0:
                where_text = f"argument {self.paths[i]} has size {arrays[i].shape[axis]} in dim {axis}"
                raise AotgradValueError(f"{s.name}: {where_text}, which is not {s.inputs[i].shape[axis]} for any {symbol}")
        for array, path, x in zip(s.inputs, self.paths, arrays):
            for axis, (want, n) in enumerate(zip(array.shape, x.shape)):
                number = _evaluate(want, env)
                if number != n:
                    meant = f"{want}" if isinstance(want, int) else f"{want} = {number}"
                    raise AotgradValueError(f"{s.name}: argument {path} has size {n} in dim {axis}, it should be {meant} ({s})")
        return [env[symbol] for symbol in s.sizes]

    def failed(self, code: int, info: Sequence[int]) -> Any:
        """Raises what an error code means."""
        s = self.signature
        if code == 1:
            why = s.guards[info[0]][2] if 0 <= info[0] < len(s.guards) else "sizes differ"
            have = f"{info[1]}" if "must be at least" in why else f"{info[1]} and {info[2]}"
            raise AotgradValueError(f"{s.name}: {why}, but the arguments have {have}")
        raise failure(code, info, s.name, s.locations)

    def instances(self) -> list[Instance]:
        """What the trampoline can take: bare sizes; rank-0 arguments as Python numbers, or as NumPy scalars."""
        s = self.signature
        index = {symbol: Sym(i) for i, symbol in enumerate(s.sizes)}
        bare = [d for a in s.inputs for d in a.shape if isinstance(d, str)]
        if any(d not in index for d in bare) or set(bare) != set(index):
            return []
        outs = [OutSpec(a.dtype, tuple(index.get(d) if isinstance(d, str) else d for d in a.shape), a.order, not a.shape) for a in s.outputs]
        shapes = self.shapes if any(d is None for o in outs for d in o.dims) else 0
        numbers = {"float64": "float", "int64": "int"}
        kinds = [[numbers.get(a.dtype.name, "npscalar") if not a.shape else "array" for a in s.inputs], ["npscalar" if not a.shape else "array" for a in s.inputs]]
        made = []
        for chosen in kinds if kinds[0] != kinds[1] else kinds[:1]:
            specs = [ArgSpec(k, a.dtype, tuple(index[d] if isinstance(d, str) else d for d in a.shape), a.order, i) for i, (k, a) in enumerate(zip(chosen, s.inputs))]
            made.append(Instance(self.kernel, specs, outs, len(s.sizes), shapes, self.workspace, ctx=self.ctx, on_error=self.failed,
                                 poll=s.long, keepalive=self.library))
        return made


class _Model:
    """A call as the model takes it: binds parameters, takes trees apart, and gives results in theirs. ``flat``: the C form."""

    def __init__(self, signature: Signature, flat: Callable[..., Any]) -> None:
        self.signature, self.call, self.flat = signature, signature.call, flat
        self.single = len(signature.outputs) == 1

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            given = self.call.bound(args, kwargs)
        except (AotgradTypeError, AotgradValueError) as error:
            raise type(error)(f"{self.signature.name}: {error}; it is {self.signature.name}({self.call.taken(self.signature.inputs)})") from None
        try:
            arrays = self.call.arrays(given)
        except (AotgradTypeError, AotgradValueError) as error:
            raise type(error)(f"{self.signature.name}: {error}") from None
        found = self.flat(*arrays)
        return self.call.results.give((found,) if self.single else found, given, None)


def _converted(a: Array, name: str, given: Any, function: str) -> Any:
    """A dense array of the argument's dtype, rank and memory order. Numbers and lists take the dtype; arrays convert where no value can be lost."""
    if given is None or isinstance(given, Mapping):
        raise AotgradTypeError(f"{function}: argument {name} should be {a}, {kind_of(given)} was given")
    weak = not hasattr(given, "dtype")
    try:
        check_kind(given)
    except AotgradTypeError as error:
        raise AotgradTypeError(f"{function}: argument {name}: {error}") from None
    try:
        x = np.asarray(given)
    except AotgradError:
        raise
    except (ValueError, TypeError) as error:
        raise AotgradTypeError(f"{function}: argument {name} should be {a}, {type(given).__name__} is no array ({error})") from None
    want = np.dtype(a.dtype.np)
    fits = x.dtype == want or np.can_cast(x.dtype, want, "safe") or (weak and x.dtype.kind in "biuf" and (np.can_cast(x.dtype, want, "same_kind") or x.size == 0))
    if not fits or x.dtype.kind not in "biuf":
        raise AotgradTypeError(f"{function}: argument {name} should be {a}, its dtype is {x.dtype}; convert it with .astype(np.{want})")
    if x.ndim != len(a.shape):
        raise AotgradValueError(f"{function}: argument {name} should be {a}, it has rank {x.ndim} (shape {x.shape})")
    if weak and want.kind in "iu" and x.size and not np.array_equal(x.astype(want), x):
        raise AotgradValueError(f"{function}: argument {name} holds a number that does not fit {want}")
    if a.order is None:
        return np.ascontiguousarray(x, want).reshape(x.shape)
    return np.ascontiguousarray(x.transpose(a.order), want).transpose(np.argsort(a.order))


# ---- the library ------------------------------------------------------------------------------------------------------------------------

class BuiltLibrary:
    """A loaded library: its functions are attributes, ``signatures`` their types by name, ``description`` the whole description, ``path`` the file.

    Functions take what the model took: NumPy arrays (any strides), numbers and lists, in the dicts, tuples, lists, named tuples and dataclasses that they were built
    with, by position or keyword, with the model's defaults. They return the model's trees of NumPy arrays and scalars; gradients come in the containers of the argument
    that they are for. Parameters that the build fixed take that value alone. They are safe to call from many threads.
    """

    def __init__(self, path: str, description: dict[str, Any], functions: Sequence[Signature], library: loader.Library, symbol: str) -> None:
        self.path, self.description = path, description
        self.signatures = types.MappingProxyType({s.name: s for s in functions})
        at = library.address(symbol)
        _, count, _ = _HEAD.unpack(ctypes.string_at(at, _HEAD.size))
        addresses = (ctypes.c_int64 * count).from_address(at + _HEAD.size)
        self._functions: dict[str, Any] = {}
        for i, s in enumerate(self.signatures.values()):
            self._functions[s.name] = self._callable(s, library, addresses[3 * i:3 * i + 3])
        self.__name__ = description["name"]
        self.__doc__ = self.text()

    def _callable(self, s: Signature, library: loader.Library, addresses: Sequence[int]) -> Any:
        shared = pool.context() if self.description.get("threads", 1) > 1 and pool.unusable() is None else 0
        function = _Function(s, library, addresses, shared)
        flat: Any = function
        if not s.call.plainly:
            flat = make_callable(s.name, function)
            for instance in function.instances():
                flat.add_instance(instance)
        made: Any = make_callable(s.name, _Model(s, flat), doc=s.text(), module=__name__, qualname=s.name, reduce=lambda _: (_restored, (self.path, s.name)))
        made.__signature__ = s.call.signature(s.inputs)
        made.signature = s
        for instance in function.instances() if s.call.plainly else ():
            made.add_instance(instance)
        return made

    def text(self) -> str:
        """What the library is and offers, one line a fact."""
        return describe_text(self.description, list(self.signatures.values()))

    def __getattr__(self, name: str) -> Any:
        found = self.__dict__.get("_functions", {}).get(name)
        if found is None:
            raise AotgradAttributeError(f"library {self.path} has no function {name!r}; it has {', '.join(self.__dict__.get('_functions', ()))}")
        return found

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._functions})

    def __repr__(self) -> str:
        return f"<aotgrad library {self.path}: {', '.join(self._functions)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return load, (self.path,)


def describe_text(description: Mapping[str, Any], functions: Sequence[Signature]) -> str:
    """A description as text: name, version, target, then each function with its sizes."""
    target = description["target"]
    machine = " ".join(part for part in (f"{target['triple']}, {target['cpu']}", target["features"]) if part)
    lines = [f"{description['name']}: built by aotgrad {description['aotgrad']} for {machine}"]
    for s in functions:
        lines.append(f"  {s}")
        if not s.call.plainly:
            lines.append(f"    in C: {s.flat()}")
        if s.sizes:
            lines.append(f"    sizes: {', '.join(s.sizes)}")
        lines += [f"    {why}" for _, _, why in s.guards]
    return "\n".join(lines)


def _restored(path: str, name: str) -> Any:
    """A function from its pickle."""
    return getattr(load(path), name)


def load(path: str | os.PathLike[str]) -> BuiltLibrary:
    """The library that ``ag.aot.build`` wrote to ``path``, as an object with the same functions. Needs NumPy alone.

    Raises ``AotgradValueError`` for a file that is damaged, was not made by aotgrad, is for another processor or needs instructions this one lacks, and
    ``AotgradRuntimeError`` for one that cannot be read.

    >>> library = load("build/librosenbrock.so")              # doctest: +SKIP
    >>> library.rosenbrock_grad(np.array([1.0, 2.0]))         # doctest: +SKIP
    (np.float64(100.0), array([-400.,  200.]))
    """
    if not isinstance(path, (str, os.PathLike)):
        raise AotgradTypeError(f"load: the path is {type(path).__name__}; give the file that ag.aot.build wrote, such as built.library")
    name = os.fspath(path)
    refuse_device(name)
    try:
        with open(name, "rb") as file:
            data = file.read()
    except OSError as error:
        raise AotgradRuntimeError(f"cannot read library {name}: {error.strerror}; check the path (ag.load takes a library that aotgrad build has made)") from error
    symbol, description = read_description(data, name, any_machine=False)
    here = _cpu_flags()
    lacking = sorted(set(description["target"]["needs"]) - here)
    if here and lacking:
        cpu = description["target"]["cpu"]
        raise AotgradValueError(f"{name} was built for {cpu} and uses {', '.join(lacking)}, which this processor lacks; build it with target='x86-64-v3'")
    functions = signatures(description, name)
    return BuiltLibrary(os.path.abspath(name), description, functions, loader.load_bytes(data, name, unload=True), symbol)


def refuse_device(name: str) -> None:
    """Raises ``AotgradValueError`` for devices: ``/dev/zero`` has no end."""
    try:
        device = stat.S_ISCHR(os.stat(name).st_mode) or stat.S_ISBLK(os.stat(name).st_mode)
    except (OSError, ValueError):
        return  # said by whoever opens it
    if device and name != "/dev/stdin":
        raise AotgradValueError(f"{name} is a device, not a file")


def _cpu_flags() -> set[str]:
    """What every processor here offers, as /proc/cpuinfo names it; empty where that cannot be read."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            rows = [line.partition(":")[2].split() for line in file if line.startswith(("flags", "Features"))]
    except OSError:
        return set()
    return set(rows[0]).intersection(*rows[1:]) if rows else set()
