"""Programs that call Python in the middle: compiled in parts, which run in sequence with the calls between them.

A part ends at every ``host_call``, and when the call is recorded on a tape also at every ``hook``: there the value is a tensor of its own, and the hook is registered on
it as in eager code.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from aotgrad.ir import Block, Func, Op, TensorType, Value, dims, walk
from aotgrad.ir.host import calls_host
from aotgrad.ir.transforms.cleanup import dce_block, standard
from aotgrad.ir.transforms.rewrite import close_over, free_values
from aotgrad_runtime import modes
from aotgrad_runtime.dtypes import DType
from aotgrad_runtime.records import record
from aotgrad_runtime.tape import call_hooks
from aotgrad_runtime.tensor import Tensor

from . import eager, joint_hooks
from .program import Program, Pullback

__all__ = ["SplitProgram", "alias", "apply", "needs_host", "watched"]

Make = Callable[[Func], Program]


def needs_host(func: Func) -> bool:
    """Whether a program calls Python, at any depth."""
    return any(op.name == "host_call" for op in walk(func.body))


def watched(func: Func) -> bool:
    """Whether a program has hooks or calls Python where a recorded call can be cut."""
    return any(op.name == "hook" or calls_host(op) for op in func.body.ops)


@record
class _Part:
    """A compiled part, or one op that Python runs; slots it reads and slots it fills."""

    program: Program
    hook: Any  # the hooks' function, where this is a hook
    ins: list[int]
    outs: list[int]


def _dims_of(value: Any) -> Iterable[dims.Dim]:
    if isinstance(value, dims.Dim):
        yield value
    elif isinstance(value, (tuple, list)):
        for v in value:
            yield from _dims_of(v)
    elif isinstance(value, TensorType):
        yield from _dims_of(tuple(value.shape))


def _symbols(ops: Sequence[Op], values: Sequence[Value]) -> set[str]:
    found = [v.type for v in values]
    for op in ops:
        for inner in (op, *(i for r in op.regions for i in walk(r))):
            found += [*inner.attrs.values(), *(r.type for r in inner.results)]
    return {s for f in found for d in _dims_of(f) for s in d.symbols()}


def _binders(func: Func, have: Sequence[Value], needed: set[str]) -> list[Value]:
    """Arguments of the whole that give the sizes a part uses and its own arguments do not."""
    def bare(v: Value) -> set[str]:
        return {s for d in v.type.shape if isinstance(d, dims.Dim) and (s := d.as_symbol()) is not None}

    missing = needed - {s for v in have for s in bare(v)}
    found = []
    for v in func.args:
        if missing & bare(v) and v not in have:
            found.append(v)
            missing -= bare(v)
    return found


def _groups(func: Func, at: Callable[[Op], bool]) -> list[list[Op]]:
    groups: list[list[Op]] = [[]]
    for op in func.body.ops:
        if at(op):
            groups += [[op], []]
        else:
            groups[-1].append(op)
    return [g for g in groups if g]


def _cut(func: Func, at: Callable[[Op], bool], make: Make) -> tuple[list[_Part], list[int], int]:
    """Parts in order, the slots of the results, and how many slots there are; arguments come first."""
    slots: dict[Value, int] = {v: i for i, v in enumerate(func.args)}
    groups = _groups(func, at)
    later: list[set[Value]] = []
    wanted = set(func.outputs)
    for group in reversed(groups):
        later.append(set(wanted))
        wanted.update(o for op in group for o in op.operands)
    parts = []
    for k, (group, used) in enumerate(zip(groups, reversed(later))):
        outs = [r for op in group for r in op.results if r in used]
        if not outs and not any(map(calls_host, group)):
            continue
        ins = free_values(group, [], [])
        ins += _binders(func, ins, _symbols(group, ins))
        for r in outs:
            slots[r] = len(slots)
        own = len(group) == 1 and at(group[0])
        hook = group[0].attrs["call"] if own and group[0].name == "hook" else None
        piece = Func(f"{func.name}_part{k}", close_over(group, ins, outs), {})
        program = Program(piece, "HostCallBackward0") if own else make(standard(Func(piece.name, dce_block(piece.body))))
        parts.append(_Part(program, hook, [slots[v] for v in ins], [slots[r] for r in outs]))
    return parts, [slots[o] for o in func.outputs], len(slots)


class SplitProgram(Program):
    """A program that calls Python: ``make`` compiles its parts, and what is derived from it."""

    __slots__ = ("cuts", "make")

    def __init__(self, func: Func, name: str, make: Make) -> None:
        super().__init__(func, name)
        self.make = make
        self.cuts: dict[bool, tuple[list[_Part], list[int], int]] = {}

    @property
    def split(self) -> SplitProgram:
        """What a recorded call runs."""
        return self

    def parts(self, taped: bool) -> tuple[list[_Part], list[int], int]:
        """The parts of a plain or of a recorded call."""
        found = self.cuts.get(taped)
        if found is None:
            found = self.cuts[taped] = _cut(self.func, (lambda op: op.name == "hook" or calls_host(op)) if taped else calls_host, self.make)
        return found

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """Outputs as fresh arrays."""
        parts, outs, count = self.parts(False)
        env: list[Any] = [*arrays, *([None] * (count - len(arrays)))]
        with self._running():
            for part in parts:
                for slot, x in zip(part.outs, part.program.run([env[i] for i in part.ins])):
                    env[slot] = x
        return [env[i].copy() if any(np.may_share_memory(env[i], a) for a in arrays) else env[i] for i in outs]

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        running, before = joint_hooks.running, joint_hooks.running.now
        running.now = joint_hooks.Passing(self.func)
        try:
            yield
        finally:
            running.now = before

    def pullback(self, active: tuple[bool, ...], present: tuple[bool, ...]) -> Pullback:
        found = self._vjps.get((active, present))
        if found is None:
            plain = super().pullback(active, present)
            made = self.make(standard(plain.program.func))
            made.backward = True
            found = self._vjps[active, present] = Pullback(made, plain.inputs, plain.outputs, plain.gives)
        return found

    def pushforward(self, active: tuple[bool, ...]) -> Program:
        found = self._jvps.get(active)
        if found is None:
            found = self._jvps[active] = self.make(standard(super().pushforward(active).func))
        return found

    def record(self, args: Sequence[Any], cls: type[Any]) -> list[Any]:
        """The call on a tape: every part is recorded on its own."""
        parts, outs, count = self.parts(True)
        env: list[Any] = [*args, *([None] * (count - len(args)))]
        watches: dict[Any, Any] = {}
        with self._running():
            for part in parts:
                given = [env[i] for i in part.ins]
                made = [_hooked(given[0], part.hook, cls, watches)] if part.hook is not None else eager.apply(part.program, given, cls)
                for slot, x in zip(part.outs, made):
                    env[slot] = x
        seen: set[int] = set(range(len(args)))
        results = []
        for i in outs:
            results.append(alias(env[i], cls) if i in seen else env[i])
            seen.add(i)
        return results


@functools.lru_cache(maxsize=256)
def _identity(shape: tuple[int, ...], dtype: DType) -> Program:
    block = Block([TensorType(shape, dtype)])
    block.outputs = [block.args[0]]
    return Program(Func("alias", block), "AliasBackward0")


def alias(x: Any, cls: type[Any]) -> Any:
    """``x`` as the result of an operation of its own."""
    data = x._data if isinstance(x, Tensor) else np.asarray(x)
    dtype = x._dtype if isinstance(x, Tensor) else cls._wrap(data)._dtype
    return eager.apply(_identity(tuple(data.shape), dtype), [x], cls)[0]


def _hooked(x: Any, call: Any, cls: type[Any], watches: dict[Any, Any]) -> Any:
    """``x`` with the hooks on its gradient; on a node of its own, since the value may have other uses that they do not cover. ``watches``: of this call, for hooks on
    several gradients."""
    if not isinstance(x, Tensor) or not x._requires_grad:
        return x
    out = alias(x, cls)
    hooks, end = call.hooks, _bottom(out)
    several = joint_hooks.members(call)
    for m in several:
        watches.setdefault(m.joint, joint_hooks.Watch(m.joint)).nodes.append(end._node)
    end.register_hook((lambda g: call_hooks(joint_hooks.bound(hooks, watches), g)) if several else (lambda g: call_hooks(hooks, g)))
    return out


def _bottom(x: Any) -> Any:
    while isinstance(x, eager.Dual):
        x = x._primal
    return x


def apply(program: Program, args: Sequence[Any], cls: type[Any]) -> list[Any]:
    """``eager.apply``, cut at hooks and calls of Python where it is recorded."""
    if modes.state.grad and any(isinstance(a, Tensor) and a._requires_grad for a in args):
        found: SplitProgram | None = getattr(program, "split", None)
        if found is not None:
            return found.record(args, cls)
    return eager.apply(program, args, cls)
