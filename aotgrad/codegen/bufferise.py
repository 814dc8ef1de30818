"""Memory of a block: which buffer holds each value, views as offsets and strides, and one workspace reused by liveness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aotgrad_runtime.dtypes import DType, int8

from ..ir import dims
from ..ir.core import Op, Value
from ..ir.dims import DimLike
from ..ir.types import Layout, TensorType
from .access import Access, through
from .forms import Form
from .kernel import Index, KernelBuilder
from .kernel_types import INDEX
from .place import Block, place
from .plan import Item, Plan

__all__ = ["Buffers", "Store", "Workspace", "adjacent", "dense", "reshaped", "strides_of"]

_ALIGN = 64


class Store:
    """A buffer. ``mem``: the kernel-level memref; ``what``: "in", "out" or "work" for reports."""

    __slots__ = ("block", "dtype", "mem", "name", "what")

    def __init__(self, mem: Any, dtype: DType, what: str, name: str = "", block: Block | None = None) -> None:
        self.mem, self.dtype, self.what, self.name, self.block = mem, dtype, what, name, block


def _bytes(dtype: DType, count: DimLike) -> DimLike:
    return dims.floordiv(count * dtype.itemsize + _ALIGN - 1, _ALIGN) * _ALIGN


class _Slot:
    """A part that serves several values of open sizes, one after the other: as large as the largest of them, whichever that is."""

    __slots__ = ("block", "left", "sizes")

    def __init__(self, size: DimLike) -> None:
        self.sizes, self.left = [size], 1
        self.block: Block | None = None

    def serve(self, size: DimLike) -> None:
        """One more value."""
        self.left += 1
        if size not in self.sizes:
            self.sizes.append(size)

    @property
    def size(self) -> DimLike:
        out = self.sizes[0]
        for s in self.sizes[1:]:
            out = dims.maximum(out, s)
        return out


_MOST_SIZES = 32  # of one slot: its size is their maximum


class Workspace:
    """Hands out parts of the workspace. Parts of known sizes get their places when all are known (``settle``), so that what lives at different times shares
    memory whatever the sizes are; parts of open sizes come behind them, and one that is free serves again for the same size."""

    def __init__(self, kb: KernelBuilder, mem: Value) -> None:
        self.kb, self.mem = kb, mem
        self.total: DimLike = 0  # of open sizes, until settled
        self._known: list[Block] = []
        self._free: list[Block] = []
        self._places: list[tuple[Op, Block | None]] = []  # constants to be filled in: where a part is, or where those of open sizes begin
        self._count = self._time = 0

    def take(self, dtype: DType, count: DimLike) -> Store:
        """A buffer of ``count`` elements, 64-byte aligned."""
        return self.within(self.reserve(_bytes(dtype, count)), dtype, count)

    def reserve(self, size: DimLike) -> Block:
        """A part of so many bytes."""
        self._time += 1
        if isinstance(size, int):
            self._known.append(Block(size, self._time))
            return self._known[-1]
        for b in self._free:
            if b.size == size:
                self._free.remove(b)
                return b
        block = Block(size, self._time, self.total)
        self.total = self.total + size
        return block

    def offset(self, block: Block) -> Index:
        """Where a part begins, in bytes."""
        known = isinstance(block.size, int)
        made = self.kb.pure("arith.constant", (), INDEX, {"value": -1}, ("place", id(block) if known else 0))
        assert made.op is not None
        self._places.append((made.op, block if known else None))
        return made if known else self.kb.add(made, self.kb.dim(block.offset))

    def within(self, block: Block, dtype: DType, count: DimLike) -> Store:
        """A part as a buffer."""
        self._count += 1
        mem = self.kb.view(self.mem, self.offset(block), dtype, self.kb.dim(count))
        return Store(mem, dtype, "work", f"w{self._count}", block)

    def take_bytes(self, count: DimLike) -> Store:
        """A buffer of bytes."""
        return self.take(int8, count)

    def give_back(self, store: Store) -> None:
        """Frees a buffer."""
        if store.block is None:
            return
        self._time += 1
        store.block.end = self._time
        if not isinstance(store.block.size, int):
            self._free.append(store.block)

    def settle(self) -> None:
        """Places the parts of known sizes, once all are asked for."""
        known = place(self._known)
        for op, block in self._places:
            op.attrs["value"] = known if block is None else block.offset
        self.total = known + self.total


def strides_of(t: TensorType) -> tuple[DimLike, ...]:
    """Strides of a dense array, 0 for dims of size 1 so that they take no part."""
    return tuple(0 if n == 1 else s for n, s in zip(t.shape, t.strides()))


def adjacent(access: Access, shape: Sequence[DimLike]) -> bool:
    """Whether the elements of an array lie side by side in row-major order, as those of a reshape have to."""
    step: DimLike = 1
    for n, stride in zip(reversed(shape), reversed(access.strides)):
        if n != 1 and stride != step:
            return False
        step = step * n
    return True


def dense(store: Store, t: TensorType, base: DimLike = 0) -> Access:
    """All of a buffer as an array of type ``t``."""
    return Access(store, base, strides_of(t))


def reshaped(access: Access, t: TensorType, to: TensorType) -> Access:
    """An array of type ``t`` in memory as one of type ``to``."""
    if t == to:
        return access
    if not adjacent(access, t.shape):
        raise AssertionError(f"a reshape of {t} with strides {access.strides}, which are not dense")
    return Access(access.store, access.base, strides_of(to))


class Buffers:
    """Access to every value in memory of one block. ``args`` and ``outs`` are given; the rest lives in the workspace,
    also outputs that have no place of their own (None), until the block has run."""

    def __init__(self, plan: Plan, args: Mapping[Value, Access], outs: Sequence[Any], work: Workspace) -> None:
        self.plan, self.work = plan, work
        self._at: dict[Value, Access] = dict(args)
        self._order = {item: i for i, item in enumerate(plan.items)}
        self._first: dict[int, list[Value]] = {}
        self._last: dict[int, list[Value]] = {}
        self._own: dict[Value, Store] = {}
        self._targets: dict[Value, Access] = {}
        for v, out in zip(plan.outputs, outs):
            if out is None:
                continue
            root = v
            while root.op is not None and root.op.name == "reshape" and root not in self._at and root not in plan.memory:
                root = root.op.operands[0]
            base = plan.base(root)
            self._targets[base] = out if root is v and base is root else Access(out.store, out.base, strides_of(base.type))
        self._classes()
        self._slots: dict[Value, _Slot] = {}
        self._lifetimes()
        self._share()

    def _classes(self) -> None:
        """Values that are in one place, one after the other: ``_class[v]`` is the first of them, ``_members`` all. What ends up in a result is there from the start."""
        plan = self.plan
        self._class: dict[Value, Value] = {}
        self._members: dict[Value, list[Value]] = {}
        for v, before in plan.same.items():
            if before in self._at:  # an argument that is written over: the result's place is its own
                continue
            out = self._targets.get(v)
            if v in self._targets and (out is None or out.strides != strides_of(v.type)):
                continue
            first = self._class[v] = self._class.get(before, before)
            self._members.setdefault(first, [first]).append(v)
            if out is not None:
                for u in self._members[first]:
                    self._targets.setdefault(u, dense(out.store, self._memory_type(u), out.base))

    def _memory_type(self, v: Value) -> TensorType:
        """The type of a value with the layout that its buffer has."""
        t = v.type
        order = self.plan.order.get(v, t.order)
        return t if order == t.order else TensorType(t.shape, t.dtype, Layout(order))

    def _share(self) -> None:
        """Which values of open sizes share a slot: those whose lifetimes do not meet. Sizes that cannot be compared share one of their maximum."""
        free: list[_Slot] = []
        for i in sorted({*self._first, *self._last}):
            for base in self._first.get(i, ()):
                size = _bytes(base.type.dtype, base.type.size)
                if isinstance(size, int):
                    continue
                slot = min((s for s in free if size in s.sizes or len(s.sizes) < _MOST_SIZES), key=lambda s: size not in s.sizes, default=None)
                if slot is None:
                    slot = _Slot(size)
                else:
                    free.remove(slot)
                    slot.serve(size)
                self._slots[base] = slot
            free += [self._slots[base] for base in self._last.get(i, ()) if base in self._slots]

    def _lifetimes(self) -> None:
        spans: dict[Value, list[int]] = {}
        for base, items in self.plan.touched.items():
            if base in self._targets or base in self._at or (base.op is not None and self.plan.kind[base.op] == "kern" and base.op.name == "constant"):
                continue
            # What no item of the schedule reads is a result in a register: its buffer is read when the block has run, and lives until then.
            spans.setdefault(self._class.get(base, base), []).extend(self._order.get(i, len(self._order)) for i in items)
        for base, when in spans.items():
            if when:
                self._first.setdefault(min(when), []).append(base)
                self._last.setdefault(max(when), []).append(base)

    def enter(self, item: Item) -> None:
        """Before an item: buffers first used by it come into being."""
        for base in self._first.get(self._order[item], ()):
            if base not in self._at:
                t, slot = base.type, self._slots.get(base)
                if slot is None:
                    store = self.work.take(t.dtype, t.size)
                else:
                    if slot.block is None:
                        slot.block = self.work.reserve(slot.size)
                    store = self.work.within(slot.block, t.dtype, t.size)
                self._own[base] = store
                for v in self._members.get(base, (base,)):
                    self._at[v] = dense(store, self._memory_type(v))

    def leave(self, item: Item | None) -> None:
        """After an item: buffers last used by it are free. None: the end of the block, when the results in registers have been read."""
        for base in self._last.get(len(self._order) if item is None else self._order[item], ()):
            slot, store = self._slots.get(base), self._own.pop(base, None)
            if slot is not None:
                slot.left -= 1
            if store is not None and (slot is None or not slot.left):
                self.work.give_back(store)

    def place(self, v: Value, access: Access) -> None:
        """Says where a value is (constants, results of kernels that need no buffer)."""
        self._at[v] = access

    def written(self, op: Op) -> Access:
        """Where the result of a write is, in the shape that it is written in."""
        return self.shown(op, self.stored(op.result))

    def shown(self, op: Op, access: Access) -> Access:
        """The array that a write or a ``take`` is of, in the form that it has there."""
        form: Form | None = op.attrs.get("form")
        if form is None:
            return access
        if any(n != 1 and have != want for n, have, want in zip(form.of.shape, access.strides, form.of.strides())):
            raise AssertionError(f"{form.of} in another form, with strides {access.strides}, which are not dense")
        return Access(access.store, access.base, form.strides)

    def stored(self, v: Value) -> Access:
        """Where a value in memory is."""
        found = self._at.get(v)
        if found is not None:
            return found
        plan = self.plan
        if v in plan.over:
            w = plan.over[v]
            while w not in self._at and w in plan.over:
                w = plan.over[w]
            out = self.stored(w)
        elif v in plan.claims:
            whole, dim, start = plan.claims[v]
            a = self.stored(whole)
            out = Access(a.store, a.base + start * whole.type.strides()[dim], tuple(0 if n == 1 else s for n, s in zip(v.type.shape, whole.type.strides())))
            if len(a.strides) != whole.type.rank:
                raise AssertionError("a concatenation is dense")
        else:
            out = self._targets[v]
        self._at[v] = out
        return out

    def knows(self, v: Value) -> bool:
        """Whether the value is in memory itself (not through a view)."""
        return v in self._at or v in self.plan.memory

    def access(self, item: Item, v: Value) -> Access:
        """Where an operand of ``item`` is, through views and reshapes."""
        v = self.plan.operand(item, v)
        if self.knows(v):
            return self.stored(v)
        op = v.op
        if op is None:
            raise AssertionError(f"value {v} has no place in memory")
        src = op.operands[0]
        if op in self.plan.views:
            inner = self.access(item, src)
            return through(inner, self.plan.views[op], src.type.shape, v.type.shape)
        if op.name != "reshape":
            raise AssertionError(f"{v} is no view and has no place in memory")
        return reshaped(self.access(item, src), src.type, v.type)

    def read_again(self, store: Store) -> bool:
        """Whether something else of this block reads (or writes) an output's buffer than what makes it."""
        return sum(out is not None and out.store is store and i in self._order for base, out in self._targets.items() for i in self.plan.touched.get(base, ())) > 1

    def wants_memory(self, v: Value) -> bool:
        """Whether a value of size 1 must be in memory beside its register."""
        return v in self.plan.memory


