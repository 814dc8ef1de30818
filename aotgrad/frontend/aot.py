"""Ahead of time: ``build`` writes a library with the function, its gradient, directional derivative and Hessian, that depends on nothing."""

from __future__ import annotations

import inspect
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from aotgrad._version import __version__
from aotgrad.codegen import cabi, header, numpy_source
from aotgrad.codegen.cabi import CFunction, Objects, Param
from aotgrad.codegen.target import Target
from aotgrad.ir import Func, Layout, TensorType, dims, walk
from aotgrad.ir.host import strip_func
from aotgrad.ir.printer import print_module
from aotgrad.ir.transforms.custom import runnable
from aotgrad_runtime.dtypes import DType, bool_, float32, float64, int32, int64
from aotgrad_runtime.errors import AotgradNotImplementedError, AotgradRuntimeError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.library_call import Call, Parameter
from aotgrad_runtime.pool_layout import MOST
from aotgrad_runtime.records import record

from . import aot_calls, aot_text, aot_trace
from .aot_trace import Declared, Program
from .boundary import absent
from .explained import told_of_arguments
from .pytree import tree_flatten

__all__ = ["Built", "EMIT", "build"]

__getattr__ = absent("aotgrad.aot", __all__)

EMIT = ("so", "a", "o", "h", "ll", "asm", "mlir", "python")
_DTYPES: dict[str, DType] = {"f64": float64, "f32": float32, "i64": int64, "i32": int32, "bool": bool_}
_DTYPES.update({d.name: d for d in list(_DTYPES.values())})
_SHARED = 8
"""Threads that may share a call of a library built with ``threads=True``."""
_ARGUMENT = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:\[(.*)\])?\s*(channels_last)?\s*", re.ASCII | re.DOTALL)


@record(frozen=True)
class Built:
    """What ``build`` wrote: ``files`` by kind (so, a, o, h, pc, cmake, ll, asm, mlir, python) and the C names of ``functions``; ``ag.load`` takes ``library``.

    ``fixed``: parameters that were given no type and keep their defaults, each with its value as text.
    """

    name: str
    files: Mapping[str, Path]
    functions: tuple[str, ...]
    sizes: tuple[str, ...] = field(default=())
    fixed: Mapping[str, str] = field(default_factory=dict)

    @property
    def library(self) -> Path:
        """The shared library. Raises ``AotgradValueError`` if none was asked for."""
        if "so" not in self.files:
            raise AotgradValueError(f"{self.name} was built without a shared library; add 'so' to emit")
        return self.files["so"]

    def __fspath__(self) -> str:
        return str(self.library)

    def __str__(self) -> str:
        return "\n".join(f"{path} ({path.stat().st_size} bytes)" if path.exists() else str(path) for path in self.files.values())


# ---- arguments as text --------------------------------------------------------------------------------------------------------------

def _declared(args: Any) -> list[tuple[str, Any]]:
    """(name, tree of types) per argument, in the order given."""
    if isinstance(args, str):
        args = [args]
    if isinstance(args, Mapping):
        pairs = [(str(k), v) for k, v in args.items()]
    elif isinstance(args, Sequence):
        pairs = []
        for text in args:
            if not isinstance(text, str) or ":" not in text:
                raise AotgradValueError(f"args: {text!r} is not understood; write 'name: dtype[sizes]', such as 'x: f64[n, 3]'")
            name, _, rest = text.partition(":")
            pairs.append((name.strip(), rest))
    else:
        raise AotgradTypeError(f"args must be texts such as 'x: f64[n, 3]', or a dict of name to text, not {type(args).__name__}")
    out: list[tuple[str, Any]] = []
    for name, tree in pairs:
        if not name.isidentifier() or not name.isascii():
            raise AotgradValueError(f"args: {name!r} is not an argument name; write 'name: dtype[sizes]', such as 'x: f64[n, 3]'")
        if name in dict(out):
            raise AotgradValueError(f"args: {name} is given twice")
        out.append((name, _types(name, tree)))
    return out


def _types(name: str, tree: Any) -> Any:
    """A tree of texts as a tree of types."""
    if tree is None:
        raise AotgradValueError(f"argument {name!r} has the type None; write a dtype and sizes, such as 'f64[n, 3]', or leave the argument out to keep its default")
    leaves, shape = tree_flatten(aot_text.tree_of(name, tree) if aot_text.is_tree(tree) else tree)
    return aot_trace.Tree([_type(name, x) for x in leaves], shape)


def _type(name: str, text: Any) -> TensorType:
    if isinstance(text, TensorType):
        return text
    whole = f"{name}: {str(text).strip()}"
    m = _ARGUMENT.fullmatch(text) if isinstance(text, str) else None
    if m is None:
        raise AotgradValueError(f"argument {whole!r} is not understood; write 'name: dtype[sizes]', such as 'x: f64[n, 3]' or 't: f64'")
    dtype = _DTYPES.get(m[1])
    if dtype is None:
        raise AotgradValueError(f"argument {whole!r}: dtype {m[1]!r} is not one of f64, f32, i64, i32, bool")
    shape = tuple(_size(whole, part) for part in _split(m[2])) if m[2] is not None and m[2].strip() else ()
    if m[3] and len(shape) not in (4, 5):
        raise AotgradValueError(f"argument {whole!r}: channels_last needs 4 or 5 sizes, this has {len(shape)}")
    return TensorType(shape, dtype, Layout.channels_last(len(shape)) if m[3] else None)


def _size(whole: str, text: str) -> Any:
    try:
        d = dims.parse(text)
    except AotgradValueError as error:
        raise AotgradValueError(f"argument {whole!r}: {error}") from None
    if isinstance(d, int) and d < 0:
        raise AotgradValueError(f"argument {whole!r}: size {d} is negative")
    return d


def _split(text: str) -> list[str]:
    """Parts between commas that are in no parentheses."""
    parts, depth = [""], 0
    for c in text:
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return parts


# ---- parameters -------------------------------------------------------------------------------------------------------------------------

def _check_names(f: Callable[..., Any], title: str, declared: Declared) -> dict[str, str]:
    """The parameters that keep their defaults, with these as text. Raises ``AotgradValueError`` for names that ``f`` does not take."""
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):
        return {}
    names = [n for n, _ in declared.args]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):  # types are then taken by position
        return {}
    unknown = [n for n in names if n not in {p.name for p in parameters}]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        raise AotgradValueError(f"args: {title} has no parameter {unknown[0]!r}; it takes {', '.join(p.name for p in parameters) or 'none'}")
    return {p.name: _default(p.default) for p in parameters if p.name not in names and p.default is not p.empty}


def _default(value: Any) -> str:
    """Short, and equal in every run: no addresses."""
    if isinstance(value, (int, float, complex, str, bytes, type(None))):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:57]}..."
    return f"<{getattr(value, '__name__', None) or type(value).__name__}>"


# ---- functions of the library -----------------------------------------------------------------------------------------------------------

def _names(what: str, given: Any) -> tuple[str, ...]:
    if given is not None and not isinstance(given, (str, tuple, list, set, frozenset)):
        raise AotgradTypeError(f"{what} must name arguments, such as {what}=('x',), not {given!r}")
    names = (given,) if isinstance(given, str) else tuple(given or ())
    if not all(isinstance(n, str) for n in names):
        raise AotgradTypeError(f"{what} must name arguments, such as {what}=('x',), not {given!r}")
    return tuple(dict.fromkeys(names))


def _call(kind: str, model: Sequence[Parameter], declared: Declared, program: Program, names: Sequence[str], chosen: Sequence[int]) -> Call:
    """How Python calls a function: the model's parameters and trees, with those of the derivatives for ``names``."""
    types, wanted = program.func.out_types, declared.wanted(names, [p.name for p in model])
    results = program.results
    if kind == "grad":
        results = aot_calls.with_gradients(results, len(types), wanted, chosen)
    elif kind == "hess":
        results = aot_calls.with_hessians(results, len(types), wanted, chosen, [t.rank for _, t in declared.leaves])
    elif kind == "jvp":
        model, results = aot_calls.tangents(model, len(declared.leaves), wanted, chosen), aot_calls.with_tangents(results, types)
    return aot_calls.call(model, results)


def _functions(name: str, declared: Declared, program: Program, grad: tuple[str, ...], jvp: tuple[str, ...], hess: tuple[str, ...], doc: str,
               model: Sequence[Parameter]) -> list[CFunction]:
    """The entry points, each with all its results from one forward pass."""
    makers: list[tuple[str, str, Callable[..., Any], tuple[str, ...], str]] = [("value", "", aot_trace.value, (), doc)]
    if grad:
        makers.append(("grad", "_grad", aot_trace.gradient, grad, f"Value of {name} and its gradient for {', '.join(grad)}."))
    if jvp:
        makers.append(("jvp", "_jvp", aot_trace.tangent, jvp, f"Value of {name} and its derivative along the tangents given for {', '.join(jvp)}."))
    if hess:
        makers.append(("hess", "_hess", aot_trace.second, hess, f"Value of {name}, its gradient and its Hessian for {', '.join(hess)}."))
    out = []
    for kind, suffix, make, names, text in makers:
        chosen = declared.select(kind, names)
        func, ins, outs = make(program, declared, chosen)
        func = strip_func(runnable(_without_python(func)))
        cnames = header.unique_names([*(n for n, _, _ in ins), *(n for n, _, _ in outs)])
        sizes = header.unique_names(declared.symbols, cnames)
        params = [Param(c, t, d) for c, (_, t, d) in zip(cnames, [*ins, *outs])]
        entry = header.c_name(name + suffix, "the library's name" if not suffix else "function")
        func.name = entry
        func.attrs["arg_names"] = tuple(cnames[:len(ins)])
        out.append(CFunction(entry, kind, text, func, tuple(params[:len(ins)]), tuple(params[len(ins):]), declared.symbols, tuple(sizes), program.guards,
                             _call(kind, model, declared, program, names, chosen)))
    return out


# ---- files ----------------------------------------------------------------------------------------------------------------------------------

def _contents(name: str, functions: Sequence[CFunction], objects: Objects | None, kinds: Sequence[str], doc: str, target: Target,
              threads: int, flush: bool) -> dict[str, tuple[str, bytes]]:
    """File name and content by kind."""
    makers: dict[str, tuple[str, Callable[[Objects], bytes]]] = {
        "so": (f"lib{name}.so", lambda o: o.shared()), "a": (f"lib{name}.a", lambda o: o.archive()), "o": (f"{name}.o", lambda o: o.relocatable()),
        "ll": (f"{name}.ll", lambda o: o.text.encode()), "asm": (f"{name}.s", lambda o: o.assembly().encode()),
    }
    plain: dict[str, tuple[str, Callable[[], str]]] = {
        "h": (f"{name}.h", lambda: header.header(name, functions, __version__, f"{target.triple}, {target.cpu}", threads, flush)),
        "pc": (f"{name}.pc", lambda: header.pkg_config(name, __version__, doc)),
        "cmake": (f"{name}Config.cmake", lambda: header.cmake(name, "so" in kinds, "a" in kinds)),
        "mlir": (f"{name}.mlir", lambda: print_module([f.func for f in functions])),
        "python": (f"{name}.py", lambda: numpy_source.module(name, functions, __version__)),
    }
    extra = ["pc", "cmake"] if "h" in kinds and ("so" in kinds or "a" in kinds) else []
    out: dict[str, tuple[str, bytes]] = {}
    for kind in [*kinds, *extra]:
        if kind in plain:
            out[kind] = (plain[kind][0], plain[kind][1]().encode())
        else:
            assert objects is not None
            out[kind] = (makers[kind][0], makers[kind][1](objects))
    return out


def _write(folder: Path, contents: Mapping[str, tuple[str, bytes]]) -> dict[str, Path]:
    """Writes all files beside their places, then renames them: none is ever half-written."""
    pending: list[tuple[str, Path]] = []
    at: Any = folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, data in contents.values():
            at = folder / file
            fd, temporary = tempfile.mkstemp(prefix=f".{file}.", dir=folder)
            pending.append((temporary, at))
            with os.fdopen(fd, "wb") as out:
                out.write(data)
            os.chmod(temporary, 0o755 if file.endswith(".so") else 0o644)
        for temporary, at in pending:
            os.replace(temporary, at)
    except OSError as error:
        for temporary, _ in pending:
            Path(temporary).unlink(missing_ok=True)
        raise AotgradRuntimeError(f"out={os.fspath(folder)!r}: {os.fspath(at)} cannot be written ({error.strerror}); choose a folder you can write to") from error
    return {kind: folder / file for kind, (file, _) in contents.items()}


def _without_python(func: Func) -> Func:
    """The program, which must not call Python."""
    for op in walk(func.body):
        if op.name == "host_call":
            raise AotgradNotImplementedError(f"{op.loc}: a hook (or host_call, or debug_print) runs Python, which a library does not have; take it away for "
                                             "ahead-of-time builds, or say the same with ag.custom_vjp")
    return func


@told_of_arguments
def build(f: Callable[..., Any], args: Any, grad: Any = (), jvp: Any = (), hess: Any = (), *, out: str | os.PathLike[str] = ".", name: str | None = None,
          target: str | Target = "native", emit: Sequence[str] = ("so", "a", "o", "h"), checks: bool = True, no_malloc: bool = False, threads: Any = 1,
          flush_subnormals: bool = False) -> Built:
    """Compiles ``f`` and the derivatives asked for into a library that depends on nothing, and writes it with its header into the folder ``out``.

    ``args``: texts ``"x: f64[n, 3]"`` in the order of the C inputs, or a dict of name to ``"f64[n, 3]"`` or to a dict, list or tuple of such (pytree arguments, also as
    text: ``"p: {W: f64[n, 2], b: f64}"``).
    dtypes f64, f32, i64, i32, bool; sizes are numbers, names, or expressions such as ``2*n``; no brackets: one number; ``channels_last`` may follow. Parameters of
    ``f`` that are not named keep their defaults for ever (``Built.fixed``). Arrays that ``f`` captures are baked in.

    Functions written, NAME being ``name`` or the function's: NAME writes the results of ``f``; with ``grad=("x",)`` NAME_grad writes the results, then one gradient per
    name; with ``jvp`` NAME_jvp takes a tangent ``x_t`` per name after the inputs and writes the results, then the tangent of each; with ``hess`` NAME_hess writes the
    results, the gradient per name, then for each pair of names (a, b), b not before a, the second derivatives, of shape ``a.shape + b.shape``. Gradient and Hessian are
    those of the first result, which must be one number. Python, by ``ag.load``, calls them as it calls ``f``: with its keywords, defaults and trees; gradients come in
    the tree of their argument. In C: ``int32_t NAME(inputs..., int64_t sizes in order of first appearance..., outputs..., void *workspace)``.

    ``target``: native, x86-64-v3, x86-64-v4 or aarch64-linux-gnu. ``emit``: any of so, a, o, h, ll, asm, mlir, python (one file that needs NumPy alone); with h
    also NAME.pc and NAMEConfig.cmake. ``checks=False``: reads out of range are clamped, writes dropped. Files are equal for equal input.

    ``threads``: a number (True: 8) of threads that may share a call. Functions then take a ``NAME_pool *`` after the workspace, which NAME_pool_init makes and
    NAME_pool_free ends, or NULL; results are the same bits with and without it. The workspace holds room for so many threads. Without ``threads`` a library
    contains none.

    ``flush_subnormals``: numbers below the normal range count as zeros during a call; the caller's floating-point mode is restored at every return. Not for ``python``
    and ``mlir``, which say nothing of the mode that they run in.

    Raises ``AotgradError``: a text that is not understood, an unknown name, integers in ``grad``, a size that the code needs as a number, an unwritable folder.

    >>> import aotgrad as ag
    >>> built = ag.aot.build(lambda x: (x * x).sum(), ["x: f64[n]"], grad="x", name="square", out="build")    # doctest: +SKIP
    >>> ag.load(built.library).square_grad([1.0, 2.0])                                                      # doctest: +SKIP
    (np.float64(5.0), array([2., 4.]))
    """
    kinds = _kinds(emit)
    if not callable(f):
        raise AotgradTypeError(f"build: {type(f).__name__} is not callable; pass a function")
    most = _threads(threads)
    _flushable(flush_subnormals, kinds)
    title = str(name or getattr(f, "__name__", ""))
    if not title.isidentifier() and name is None:
        raise AotgradValueError(f"{title or 'this function'} has no name that C could use; give one (name='...', or --name on the command line)")
    header.c_name(title, "the library's name")
    if not isinstance(out, (str, os.PathLike)):
        raise AotgradTypeError(f"out must be the path of a folder, not {type(out).__name__}")
    machine = target if isinstance(target, Target) else Target.named(target)
    if not machine.fma:
        raise AotgradNotImplementedError(f"target {machine.cpu} has no fused multiply-add, which generated code relies on; use x86-64-v3 or later, or aarch64-linux-gnu")
    declared = Declared(_declared(args))
    fixed = _check_names(f, title, declared)
    program = aot_trace.trace(f, title, declared)
    doc = _doc(f, title)
    if fixed:
        doc += f"\n\nFixed when built: {', '.join(f'{n} = {v}' for n, v in fixed.items())}."
    model = aot_calls.parameters(f, declared.nodes, declared.leaves, fixed)
    functions = _functions(title, declared, program, _names("grad", grad), _names("jvp", jvp), _names("hess", hess), doc, model)
    compiled = any(k in ("so", "a", "o", "ll", "asm") for k in kinds)
    objects = cabi.build_objects(title, functions, machine, version=__version__, checks=checks, threads=most, flush=flush_subnormals) if compiled else None
    files = _write(Path(out), _contents(title, functions, objects, kinds, doc, machine, most, flush_subnormals))
    return Built(title, files, tuple(fn.name for fn in functions), declared.symbols, fixed)


def _threads(given: Any) -> int:
    """How many threads may share a call."""
    if given is None or isinstance(given, bool):
        return _SHARED if given else 1
    if type(given) is not int or not 1 <= given <= MOST:
        raise AotgradValueError(f"threads={given!r}: give True, or how many threads may share a call, from 1 to {MOST}")
    return given


def _flushable(flush: Any, kinds: Sequence[str]) -> None:
    """Refuses what is no bool, and files that would not do it."""
    if not isinstance(flush, bool):
        raise AotgradTypeError(f"flush_subnormals={flush!r}: give True or False")
    unable = [k for k in kinds if k in ("python", "mlir")]
    if flush and unable:
        raise AotgradNotImplementedError(f"flush_subnormals=True: {unable[0]} files cannot set the floating-point mode; leave {unable[0]!r} out of emit")


def _kinds(emit: Any) -> list[str]:
    kinds = [k.strip() for k in emit.split(",")] if isinstance(emit, str) else list(emit) if isinstance(emit, (tuple, list, set, frozenset)) else None
    if kinds is None:
        raise AotgradTypeError(f"emit must name kinds of files ({', '.join(EMIT)}), such as emit=('so', 'h'), not {emit!r}")
    for k in kinds:
        if k not in EMIT:
            raise AotgradValueError(f"emit: {k!r} is not one of {', '.join(EMIT)}")
    if not kinds:
        raise AotgradValueError(f"emit is empty; name at least one of {', '.join(EMIT)}")
    return list(dict.fromkeys(kinds))


def _doc(f: Any, title: str) -> str:
    lines = (getattr(f, "__doc__", None) or f"{title}.").strip().splitlines()
    return "\n".join(line.strip() for line in lines)
