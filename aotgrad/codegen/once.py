"""What a program computes of its constant arguments alone (weights): once, in an entry of its own, NAME_once, into a block that calls of NAME read.

Two kinds of results share the block: values of the tensor-level program that depend on constant arguments alone (``cut``), and the forms that kernels pack such arrays
into (``Kept.packed``), which only lowering knows. What is left in the program is what reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import field
from typing import Any

from aotgrad_runtime.dtypes import uint8
from aotgrad_runtime.records import record

from ..ir import opdef
from ..ir.builder import Builder
from ..ir.core import Block, Func, Op, Value
from ..ir.transforms.cleanup import dce_block
from ..ir.transforms.rewrite import copy_ops
from ..ir.types import TensorType
from .access import Access
from .bufferise import Store
from .kernel import KernelBuilder
from .plan import view_of

__all__ = ["LEAST", "Cut", "Kept", "KeptStore", "block_type", "cut", "once_name"]

Place = tuple[Value, Value]
"""A buffer, and an offset in elements."""
_ANEW = frozenset(("broadcast", "full", "iota", "relayout", "reshape", "stop_gradient"))  # made again wherever it is read
_ALIGN = 64
LEAST = 2048
"""Bytes in the block below which it is not worth asking at every call whether it is good."""


def once_name(name: str) -> str:
    """The entry that fills the block."""
    return f"{name}_once"


def block_type(size: int) -> TensorType:
    """The block as an argument."""
    return TensorType((size,), uint8)


@record
class Cut:
    """``once`` gives the values that ``main`` takes after its own arguments; ``constant``: which of its own are constant."""

    once: Func
    main: Func
    constant: tuple[int, ...]


def cut(func: Func, constant: Collection[int]) -> Cut:
    """A program as the part that depends on constant arguments alone, and the rest."""
    given = [i for i in sorted(constant) if _static(func.args[i])]
    derived = _derived(func, [func.args[i] for i in given])
    frontier, again = _frontier(func, derived)
    once = Block([func.args[i].type for i in given])
    env = dict(zip([func.args[i] for i in given], once.args))
    copy_ops(Builder(once), [op for op in func.body.ops if all(r in derived for r in op.results)], env)
    once.outputs = [env[v] for v in frontier]
    main = Block([*func.arg_types, *(v.type for v in frontier)])
    env = {**dict(zip(func.args, main.args)), **dict(zip(frontier, main.args[len(func.args):]))}
    copy_ops(Builder(main), [op for op in func.body.ops if op in again or not all(r in derived for r in op.results)], env)
    main.outputs = [env[o] for o in func.outputs]
    return Cut(Func(once_name(func.name), dce_block(once)), Func(func.name, main, func.attrs), tuple(given))


def _static(v: Value) -> bool:
    return all(isinstance(d, int) for d in v.type.shape)


def _derived(func: Func, constant: Sequence[Value]) -> dict[Value, int]:
    """Values that depend on these alone, and the bytes they are made of: 0 for what depends on nothing."""
    found = {v: _bytes(v) for v in constant}
    for op in func.body.ops:
        if op.regions or op.name == "host_call" or opdef.limited(op) or not all(o in found for o in op.operands) or not all(map(_static, op.results)):
            continue
        if isinstance(opdef.get(op.name).lower, opdef.Kernel) and op.name not in _SURE:
            continue
        made_of = sum(found[o] for o in dict.fromkeys(op.operands))
        low = opdef.get(op.name).lower
        own = bool(op.operands) and made_of and not isinstance(low, opdef.Scalar) and view_of(op) is None and op.name not in _ANEW
        found.update((r, _bytes(r) if own else made_of) for r in op.results)
    return found


_SURE = frozenset(("dot", "conv", "conv_input_grad", "conv_weight_grad", "cumsum", "cumprod", "concatenate", "constant", "insert", "insert_add", *_ANEW))
"""Of those with kernels, the ones that no number makes fail."""


def _bytes(v: Value) -> int:
    return int(v.type.size) * int(v.type.dtype.itemsize)


def _frontier(func: Func, derived: dict[Value, int]) -> tuple[list[Value], set[Op]]:
    """The derived values that the rest reads, and the ops on them that it runs again: views, what is made of nothing, what is larger than what it is made of, and
    elementwise results of arrays that the rest reads anyway."""
    again: set[Op] = set()
    while True:
        frontier, read = _border(func, derived, again)
        more = {v.op for v in frontier if _elementwise(v) and sum(_bytes(a) for a in _leaves(v) - read) < _bytes(v)}
        if not more:
            order = {r: i for i, op in enumerate(func.body.ops) for r in op.results}
            return sorted(frontier, key=order.__getitem__), again
        again.update(op for op in more if op is not None)


def _border(func: Func, derived: dict[Value, int], again: set[Op]) -> tuple[set[Value], set[Value]]:
    """Derived values that the rest reads, and constant arguments that it reads; adds to ``again``."""
    frontier: set[Value] = set()
    read: set[Value] = set()
    todo = [o for op in func.body.ops if not all(r in derived for r in op.results) for o in op.operands if o in derived]
    todo += [o for o in func.outputs if o in derived]
    todo += [o for op in again for o in op.operands]
    while todo:
        v = todo.pop()
        op = v.op
        if op is None:
            read.add(v)
        if op is None or op in again or v in frontier:
            continue
        if not derived[v] or op.name in _ANEW or view_of(op) is not None or (_elementwise(v) and _bytes(v) > derived[v]):
            again.add(op)
            todo += op.operands
        else:
            frontier.add(v)
    return frontier, read


def _elementwise(v: Value) -> bool:
    return v.op is not None and isinstance(opdef.get(v.op.name).lower, opdef.Scalar)


def _leaves(v: Value) -> set[Value]:
    """What an elementwise value is made of: arguments, and results of other kinds of ops."""
    found: set[Value] = set()
    seen: set[Value] = set()
    todo = [v]
    while todo:
        w = todo.pop()
        if w in seen:
            continue
        seen.add(w)
        if w.op is not None and (_elementwise(w) or w.op.name in _ANEW or view_of(w.op) is not None):
            todo += w.op.operands
        else:
            found.add(w)
    return found


class KeptStore(Store):
    """A value of the once part in the block: it has room there from the first time something reads it."""

    __slots__ = ("_mem", "at", "kept", "type")
    _mem: Any

    def __init__(self, kept: Kept, t: TensorType, name: str) -> None:
        self.kept, self.type = kept, t
        self.at: int | None = None
        super().__init__(None, t.dtype, "in", name)

    @property
    def mem(self) -> Any:
        """The buffer."""
        if self._mem is None:
            self.at = self.kept.room(int(self.type.size) * self.type.dtype.itemsize)
            self._mem = self.kept.head.view(self.kept.mem, self.at, self.type.dtype, int(self.type.size))
        return self._mem

    @mem.setter
    def mem(self, value: Any) -> None:
        self._mem = value


@record
class Job:
    """A form that a kernel packs an array into: ``emit(kb, array, place)``, where ``array`` lies in memory of the once part."""

    source: int
    access: Access
    at: int
    emit: Callable[[KernelBuilder, Access, Place], None]
    what: str


@record
class Kept:
    """The block of one function while it is lowered. ``head``: builds what stands before everything else; ``sources``: the buffers of constant arguments and of values
    of the once part, numbered."""

    mem: Value
    head: KernelBuilder
    sources: dict[Any, int]
    jobs: list[Job] = field(default_factory=list)
    size: int = 0
    known: dict[Any, int] = field(default_factory=dict)

    def room(self, size: int) -> int:
        """Bytes of the block: where they begin."""
        at = self.size
        self.size += -(-size // _ALIGN) * _ALIGN
        return at

    def holds(self, access: Access) -> bool:
        """Whether an array does not change between calls."""
        return access.store in self.sources and isinstance(access.base, int) and all(isinstance(s, int) for s in access.strides)

    def packed(self, access: Access, key: Any, size: int, emit: Callable[[KernelBuilder, Access, Place], None], what: str) -> int:
        """Where in the block the packed form of a constant array is: ``size`` bytes that ``emit`` fills. ``key`` tells forms of one array apart."""
        full = (self.sources[access.store], access.base, access.strides, key)
        if full not in self.known:
            self.known[full] = self.room(size)
            self.jobs.append(Job(full[0], access, self.known[full], emit, what))
        return self.known[full]
