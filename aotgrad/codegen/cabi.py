"""Libraries for others: several functions in plain C form, linked into one object that depends on nothing, with their description inside.

``NAME_meta`` is the description: 8 bytes of magic, the number of addresses, the length of the text, the addresses (per function: the form on
``ag_call``, its workspace, its shapes; those symbols themselves stay hidden), then JSON. ``aotgrad_runtime.library`` reads it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from aotgrad_runtime.errors import AotgradValueError
from aotgrad_runtime.library import FORMAT, MAGIC
from aotgrad_runtime.library_call import Call, flat_call
from aotgrad_runtime.records import record

from ..ir import dims
from ..ir.core import Func, Value
from ..ir.dims import Dim, DimLike
from ..ir.types import TensorType
from . import llvm, pool
from .driver import kernel_objects
from .elf import link_shared
from .elf.archive import write_archive
from .elf.relocatable import link_relocatable
from .emit import module
from .kernel_types import INDEX
from .lower import Lowered, lower
from .target import Target
from .work import many_rounds

__all__ = ["CFunction", "Guard", "Objects", "Param", "build_objects", "describe"]


@record(frozen=True)
class Param:
    """An array parameter: its C name, its type as the user wrote it, and what it is."""

    name: str
    type: TensorType
    doc: str = ""


@record(frozen=True)
class Guard:
    """Two sizes that must be equal at every call."""

    left: DimLike
    right: DimLike
    why: str


@record(frozen=True)
class CFunction:
    """One function of a library.

    ``func``: tensor-level IR of primitive ops with the types of ``inputs`` and ``outputs``, in which sizes known to be equal may be one symbol;
    ``symbols``: all sizes that the caller passes; ``size_names``: their C names; ``kind``: value, grad, jvp or hess; ``call``: how Python calls it (with the inputs one
    by one where that is None).
    """

    name: str
    kind: str
    doc: str
    func: Func
    inputs: tuple[Param, ...]
    outputs: tuple[Param, ...]
    symbols: tuple[str, ...]
    size_names: tuple[str, ...]
    guards: tuple[Guard, ...] = ()
    call: Call | None = None

    @property
    def python(self) -> Call:
        """How Python calls it."""
        return self.call or flat_call([p.name for p in self.inputs], len(self.outputs))

    @property
    def exports(self) -> tuple[str, str]:
        """The C symbols of this function."""
        return self.name, f"{self.name}_workspace"


@record(frozen=True)
class Objects:
    """A compiled library, not yet a file. ``objects``: relocatable files; ``text``: LLVM text by object name; ``kernels``: text of the kernel level."""

    name: str
    exports: tuple[str, ...]
    objects: tuple[bytes, ...]
    text: str
    target: Target
    lowered: tuple[Lowered, ...]
    imports: tuple[str, ...] = ()

    def shared(self) -> bytes:
        """The shared library: needs no other, shows ``exports``; ``imports`` are the host's."""
        return link_shared(self.objects, self.exports, f"lib{self.name}.so", imports=self.imports)

    def relocatable(self) -> bytes:
        """One object file with only ``exports`` global."""
        return link_relocatable(self.objects, self.exports)

    def archive(self) -> bytes:
        """The static library."""
        return write_archive([(f"{self.name}.o", self.relocatable())])

    def assembly(self) -> str:
        """The machine's assembly of the library's own module."""
        return llvm.assembly(self.text, self.target)


def build_objects(name: str, functions: Sequence[CFunction], target: Target, *, version: str, checks: bool = True, threads: int = 1,
                  flush: bool = False) -> Objects:
    """Compiles the functions into one library called ``name``. ``threads``: so many may share a call, of a pool that the library can make. ``flush``: subnormal
    numbers are zeros during a call.

    Raises ``AotgradValueError`` for two functions of one name, and what lowering raises for ops without a native form.
    """
    symbols = [s for f in functions for s in f.exports] + [f"{name}_meta"]
    symbols += [f"{name}_pool_init", f"{name}_pool_free"] if threads > 1 else []
    twice = {s for s in symbols if symbols.count(s) > 1}
    if twice:
        raise AotgradValueError(f"library {name} would define {', '.join(sorted(twice))} twice; choose another name")
    lowered = [_lowered(f, target, checks, threads, flush) for f in functions]
    funcs = [k for low in lowered for k in low.funcs]
    meta = describe(name, functions, target, version=version, locations=[low.module.locations for low in lowered])
    if threads > 1:
        meta["threads"] = threads
    if flush:
        meta["flush_subnormals"] = True
    text = module(funcs, [low.entry for low in lowered], target, [_meta_text(name, meta, [low.entry.name for low in lowered])])
    objects = [llvm.compile_object(text, target, passes="inline")]
    objects += kernel_objects(funcs, target)
    objects += [llvm.compile_object(pool.library_text(name, target), target)] if threads > 1 else []
    return Objects(name, tuple(symbols), tuple(objects), text, target, tuple(lowered), pool.IMPORTS if threads > 1 else ())


def _lowered(f: CFunction, target: Target, checks: bool, threads: int, flush: bool) -> Lowered:
    """Kernel level of one function, its entry widened to all sizes that the caller passes."""
    low = lower(f.func, f.name, target, checks=checks, threads=threads)
    have = low.entry.symbols
    guards = tuple((g.left, g.right, i) for i, g in enumerate(f.guards))
    entry = replace(low.entry, name=f"ag_call_{f.name}", kernel=f.name, symbols=f.symbols, guards=guards, plain=f.name, pool=threads > 1, flush=flush)
    if have != f.symbols:
        body = low.funcs[0].body
        first = len(f.inputs) + len(f.outputs)
        given = dict(zip(have, body.args[first:first + len(have)]))
        body.args[first:first + len(have)] = [given.get(s) or Value(INDEX) for s in f.symbols]
        for i, a in enumerate(body.args):
            a.index = i
    return Lowered(low.funcs, entry, low.module, low.placed)


# ---- the description ----------------------------------------------------------------------------------------------------------------

def _size(d: DimLike) -> int | str:
    return d if isinstance(d, int) else dims.to_text(d)


def _array(p: Param) -> dict[str, Any]:
    order = list(p.type.order) if p.type.layout else None
    return {"name": p.name, "dtype": p.type.dtype.name, "shape": [_size(d) for d in p.type.shape], "order": order, "doc": p.doc}


def describe(name: str, functions: Sequence[CFunction], target: Target, *, version: str, locations: Sequence[Sequence[str]]) -> dict[str, Any]:
    """The description of a library as plain data. Source lines keep the file's name without its folder, so that equal sources give equal bytes anywhere."""
    found = []
    for f, lines in zip(functions, locations):
        found.append({
            "name": f.name, "kind": f.kind, "doc": f.doc, "inputs": [_array(p) for p in f.inputs], "outputs": [_array(p) for p in f.outputs], "sizes": list(f.symbols),
            "bind": [_binding(f, s) for s in f.symbols], "guards": [[_size(g.left), _size(g.right), g.why] for g in f.guards],
            "locations": [os.path.basename(line) for line in lines], "long": many_rounds(f.func),
            "python": f.python.plain(),
        })
    machine = {"triple": target.triple, "cpu": target.cpu, "features": target.features, "needs": list(target.cpu_flags)}
    return {"format": FORMAT, "aotgrad": version, "name": name, "target": machine, "functions": found}


def _binding(f: CFunction, symbol: str) -> list[int] | None:
    """(argument, axis, a, b): the symbol is (size - b) / a there; a bare symbol where there is one. None: no argument tells."""
    linear = None
    for i, p in enumerate(f.inputs):
        for axis, d in enumerate(p.type.shape):
            if not isinstance(d, Dim) or list(d.symbols()) != [symbol]:
                continue
            if d.as_symbol() is not None:
                return [i, axis, 1, 0]
            b, step = d.substitute({symbol: 0}), d.substitute({symbol: 1})
            if linear is None and isinstance(b, int) and isinstance(step, int) and step != b and d == (step - b) * dims.symbol(symbol) + b:
                linear = [i, axis, step - b, b]
    return linear


def _meta_text(name: str, meta: dict[str, Any], entries: Sequence[str]) -> str:
    text = json.dumps(meta, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    addresses = [f"ptr @{e}{part}" for e in entries for part in ("", "_workspace", "_shapes")]
    table, chars = f"[{len(addresses)} x ptr]", f"[{len(text) + 1} x i8]"
    values = [f'[8 x i8] c"{_quoted(MAGIC)}"', f"i64 {len(addresses)}", f"i64 {len(text)}", f"{table} [{', '.join(addresses)}]", f'{chars} c"{_quoted(text)}\\00"']
    return f"@{name}_meta = constant <{{ [8 x i8], i64, i64, {table}, {chars} }}> <{{ {', '.join(values)} }}>, align 8"


def _quoted(data: bytes) -> str:
    return "".join(chr(c) if 32 <= c < 127 and c not in b'"\\' else f"\\{c:02X}" for c in data)
