"""Instances as the words the trampoline reads."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from ..errors import AotgradValueError
from .layout import ARG, CONSTANTS, INSTANCE, METHOD_OF, OBJECT, OUT
from .spec import ABSENT, ArgSpec, Attr, Cell, Fixed, Global, Instance, OutSpec, Sym, is_c_order, np_scalar_type

__all__ = ["Packed", "pack"]

_SCRATCH_LIMIT: Final = 1 << 18
_C_CONTIGUOUS, _ALIGNED = 0x1, 0x100


class _Arena:
    """Words at their final addresses: ``put`` appends and returns an offset, pointers between parts are fixed up at the end."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.fixups: list[tuple[int, int]] = []

    def put(self, words: Sequence[int]) -> int:
        offset = 8 * len(self.words)
        self.words.extend(words)
        return offset

    def struct(self, fields: dict[str, int], values: dict[str, int], pointers: dict[str, int]) -> int:
        words = [0] * len(fields)
        for name, value in values.items():
            words[fields[name] // 8] = value
        offset = self.put(words)
        self.fixups.extend((offset + fields[name], target) for name, target in pointers.items())
        return offset

    def finish(self) -> ctypes.Array[ctypes.c_int64]:
        buffer = (ctypes.c_int64 * len(self.words))(*self.words)
        base = ctypes.addressof(buffer)
        for offset, target in self.fixups:
            buffer[offset // 8] = base + target
        return buffer


class Packed:
    """The packed words of one instance in one callable; frees its cached workspace block when it goes."""

    buffer: Any = None  # until it is made: an interrupt may come before

    def __init__(self, instance: Instance, buffer: ctypes.Array[ctypes.c_int64], scratch: int, keep: list[object], free: Callable[[int], Any]) -> None:
        self._free, self.instance, self.scratch, self.keep = free, instance, scratch, keep
        self.buffer = buffer
        self.address = ctypes.addressof(buffer)

    def word(self, field: str) -> int:
        return int(self.buffer[INSTANCE[field] // 8])

    def set_word(self, field: str, value: int) -> None:
        self.buffer[INSTANCE[field] // 8] = value

    def __del__(self, at: int = INSTANCE["block"] // 8, word: Any = ctypes.c_int64) -> None:  # names of the module may be gone by now
        block = self.buffer[at] if self.buffer is not None else 0
        if block:
            self.buffer[at] = 0  # a finaliser of the same dead cycle may still call
            self._free(word.from_address(block - 16).value)


def _order_words(order: tuple[int, ...]) -> list[int]:
    """Byte offsets of the dims in a dims vector, from the innermost out."""
    return [8 * d for d in reversed(order)]


def _static_bytes(instance: Instance) -> int | None:
    """Bytes of all arguments and results, None when they depend on sizes."""
    total = 0
    specs: list[ArgSpec | OutSpec] = [*(a for a in instance.args if a.kind == "array"), *instance.outs]
    for spec in specs:
        if not all(isinstance(d, int) for d in spec.dims):
            return None
        assert spec.dtype is not None
        total += int(np.prod([d for d in spec.dims if isinstance(d, int)], dtype=object)) * spec.dtype.itemsize
    return total


def release_word(instance: Instance) -> int:
    """0: keep the GIL; 1: release it; more: release it from that many bytes on."""
    if instance.release_bytes is None:
        return 0
    if instance.release_bytes <= 1:
        return 1
    static = _static_bytes(instance)
    if static is None:
        return instance.release_bytes
    return int(static >= instance.release_bytes)


_HEAP_TYPE: Final = 1 << 9


def _word(arg: ArgSpec) -> int:
    """Where an object that must stay the same lies at one address for as long as the instance lives (in a closure cell, or in a slot of an object whose class cannot
    change): one comparison there, and no reference, is the whole check. 0 where it has to be looked up."""
    match arg.kind, arg.source, arg.unwrap:
        case "is", Cell(cell), None:
            return id(cell) + OBJECT["cell_value"]
        case "is", Fixed(obj), (kind, offset) if type(obj) is kind and not kind.__flags__ & _HEAP_TYPE:
            return id(obj) + offset
    return 0


class _Packer:
    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.arena = _Arena()
        self.keep: list[object] = []
        self.bound: set[int] = set()
        self.compared = [(a, place) for a in instance.args if (place := _word(a))]
        self.checked = [(k, a) for k, a in enumerate(instance.args) if not _word(a)]
        self.nhidden = sum(self._special(a) for _, a in self.checked)
        self.nptrs = sum(a.kind != "is" for a in instance.args) + len(instance.outs)
        # Scratch: values (16-byte aligned scalars) come last but one so that pointers start at 0.
        self.off_syms = 8 * (self.nptrs + 1)
        self.off_held = self.off_syms + 8 * instance.nsym
        self.off_dims = self.off_held + 8 * self.nhidden
        self.off_strides = self.off_dims + 8 * sum(len(o.dims) for o in instance.outs)
        self.off_objs = self.off_strides + 8 * max([len(o.dims) for o in instance.outs], default=0)
        self.off_values = -(-(self.off_objs + 8 * len(instance.outs)) // 16) * 16
        self.scratch = self.off_values + 16 * (len(instance.args) + len(instance.outs))
        if self.scratch > _SCRATCH_LIMIT:
            raise AotgradValueError(f"an instance of {len(instance.args)} arguments and {len(instance.outs)} results is too large; pass large containers as one array")

    @staticmethod
    def _special(arg: ArgSpec) -> bool:
        return not isinstance(arg.source, int) or arg.unwrap is not None

    def address(self, obj: object) -> int:
        self.keep.append(obj)
        return id(obj)

    def arg(self, k: int, arg: ArgSpec, hidden: int) -> tuple[dict[str, int], dict[str, int]]:
        """Values and arena pointers of one argument's words."""
        source = arg.source.base if isinstance(arg.source, Attr) else arg.source
        path = arg.source.path if isinstance(arg.source, Attr) else ()
        method = path[-2:] if path[-1:] == (METHOD_OF,) and len(path) > 1 else ()
        path = path[:len(path) - len(method)]
        special = self._special(arg)
        values = {"special": int(special), "value": 8 * hidden if special else self.off_values + 16 * k, "npath": len(path)}
        pointers: dict[str, int] = {}
        if path:
            pointers["path"] = self.arena.put([self.address(sys.intern(name)) for name in path])
        if method:
            values["method"] = self.address(sys.intern(method[0]))
        match source:
            case int(index):
                values["index"] = 8 * index
            case Cell(cell):
                values |= {"source": CONSTANTS["SOURCE_CELL"], "index": self.address(cell)}
            case Global(namespace, key):
                values |= {"source": CONSTANTS["SOURCE_GLOBAL"], "index": self.address(namespace), "key": self.address(key)}
            case Fixed(obj):
                values |= {"source": CONSTANTS["SOURCE_FIXED"], "index": self.address(obj)}
        if arg.unwrap is not None:
            values |= {"unwrap_type": self.address(arg.unwrap[0]), "unwrap_offset": arg.unwrap[1]}
        match arg.kind:
            case "array":
                self.array(arg, values, pointers)
            case "is":
                values |= {"kind": CONSTANTS["KIND_IS"], "type": self.address(arg.value), "absent": int(arg.value is ABSENT)}
            case "int":
                values |= {"kind": CONSTANTS["KIND_INT"], "type": id(int)}
            case _:
                kind = float if arg.kind == "float" or arg.dtype is None else np_scalar_type(arg.dtype)
                values |= {"kind": CONSTANTS["KIND_DATA"], "type": self.address(kind)}
        return values, pointers

    def array(self, arg: ArgSpec, values: dict[str, int], pointers: dict[str, int]) -> None:
        assert arg.dtype is not None
        words = []
        for d in arg.dims:
            if isinstance(d, Sym):
                words.append(~(2 * d.index + (d.index in self.bound)))
                self.bound.add(d.index)
            else:
                words.append(d)
        pointers["dims"] = self.arena.put(words)
        contiguous = is_c_order(arg.order)
        if not contiguous or arg.exact:
            pointers["order"] = self.arena.put(_order_words(tuple(range(len(arg.dims))) if arg.order is None else arg.order))
        values |= {
            "kind": CONSTANTS["KIND_ARRAY"], "type": id(np.ndarray), "nd": len(arg.dims), "type_num": arg.dtype.np.num, "itemsize": arg.dtype.itemsize,
            "exact": int(arg.exact), "flags": _ALIGNED | (_C_CONTIGUOUS if contiguous else 0),
        }

    def out(self, k: int, out: OutSpec, dims_before: int) -> tuple[dict[str, int], dict[str, int]]:
        static = all(isinstance(d, int) for d in out.dims)
        words = [d if isinstance(d, int) else ~d.index if isinstance(d, Sym) else 0 for d in out.dims]
        values = {
            "descr": self.address(out.dtype.np), "nd": len(out.dims), "dynamic": int(not static), "itemsize": out.dtype.itemsize, "scalar": int(out.as_scalar),
            "value": self.off_values + 16 * (len(self.instance.args) + k), "dims_offset": 8 * dims_before,
        }
        pointers = {"dims": self.arena.put(words)}
        if not is_c_order(out.order) and out.order is not None:
            pointers["order"] = self.arena.put(_order_words(out.order))
        return values, pointers

    def run(self, free: Callable[[int], Any]) -> Packed:
        instance, arena = self.instance, self.arena
        head = arena.put([0] * len(INSTANCE))
        hidden, args = 0, []
        for k, arg in self.checked:
            args.append(self.arg(k, arg, hidden))
            hidden += self._special(arg)
        before, outs = 0, []
        for k, out in enumerate(instance.outs):
            outs.append(self.out(k, out, before))
            before += len(out.dims)
        starts = {"words": 8 * len(arena.words)}
        for arg, place in self.compared:
            self.keep.append(arg)
            arena.put([place, id(arg.value)])
        starts["words_end"] = starts["args"] = 8 * len(arena.words)
        for values, pointers in args:
            arena.struct(ARG, values, pointers)
        starts["args_end"] = starts["outs"] = 8 * len(arena.words)
        for values, pointers in outs:
            arena.struct(OUT, values, pointers)
        starts["outs_end"] = 8 * len(arena.words)
        arena.fixups.extend((head + INSTANCE[name], target) for name, target in starts.items())
        buffer = arena.finish()
        packed = Packed(instance, buffer, self.scratch, [instance, *self.keep], free)
        for name, value in self.words().items():
            packed.set_word(name, value)
        return packed

    def words(self) -> dict[str, int]:
        instance = self.instance
        has_workspace = bool(instance.workspace or instance.workspace_bytes)
        computed = any(None in o.dims for o in instance.outs)
        return {
            "kernel": instance.kernel, "npos": instance.positional, "nsym": instance.nsym, "shapes": instance.shapes if computed else 0,
            "workspace": instance.workspace if instance.workspace_bytes is None else 0, "workspace_bytes": instance.workspace_bytes or 0, "ctx": instance.ctx,
            "heavy": int(has_workspace or instance.poll), "poll": int(instance.poll), "may_release": int(instance.release_bytes is not None),
            "release": release_word(instance), "on_error": self.address(instance.on_error), "off_outs": 8 * (self.nptrs - len(instance.outs)),
            "off_syms": self.off_syms, "off_held": self.off_held, "off_objs": self.off_objs, "off_values": self.off_values, "off_dims": self.off_dims,
            "off_strides": self.off_strides, "nhidden": self.nhidden, "nouts": len(instance.outs),
            "finish": 0 if instance.finish is None else self.address(instance.finish),
        }


def pack(instance: Instance, free: Callable[[int], Any]) -> Packed:
    """The words of ``instance``; ``free`` releases a raw block (PyMem_RawFree)."""
    return _Packer(instance).run(free)
