"""From a tensor-level function to kernel-level functions: plans a block, then emits its items one after another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from aotgrad_runtime.dtypes import int8
from aotgrad_runtime.errors import AotgradNotImplementedError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.records import record

from ..ir import dims
from ..ir.core import Block, Func, Op, Value, walk
from ..ir.transforms.custom import runnable
from ..ir.transforms.layout import Layouts
from ..ir.types import TensorType
from . import later
from .access import Access
from .bufferise import Buffers, Store, Workspace, adjacent, dense
from .emit import Entry
from .exprs import apply, const_of
from .kernel import Kernel, KernelBuilder, function
from .loops import NestEmitter, scalar_of
from .lowering_kernels import emit_kernel
from .nest import Context
from .plan import Item, Kern, Nest, Plan, Scalar
from .planning import analyse
from .regions import region_of
from .report import describe
from .scalarise import scalarise
from .target import Target

if TYPE_CHECKING:
    from .once import Cut, Kept, KeptStore
    from .steps import Step

__all__ = ["Lowered", "Module", "lower", "lower_block"]


@record
class Module:
    """What all blocks of one function share: target, further kernel functions, places in the source, the report."""

    name: str
    target: Target
    funcs: list[Func] = field(default_factory=list)
    locations: list[str] = field(default_factory=list)
    report: list[dict[str, Any]] = field(default_factory=list)
    checks: bool = True
    symbols: int = 0
    threads: int = 1  # how many may share the loops of a nest
    regions: list[dict[str, Any]] | None = None  # of a build for profiling: the kernels that report their borders
    steps: list[Step] | None = None  # what kernels cost, where that is asked for
    packed: dict[Op, Any] = field(default_factory=dict)  # products whose right operand is packed already, and where
    copied: dict[Op, Access] = field(default_factory=dict)  # products that read a copy of their right operand
    kept: Kept | None = None  # what is computed once, where arguments are constant

    def location(self, loc: Any) -> int:
        """The id of a source location in ``locations``."""
        return self._located(loc if isinstance(loc, str) else "" if loc is None else loc.told())

    def index_location(self, loc: Any, axis: int, form: str = "") -> int:
        """The same for an index: with its dim, and the form it comes in: "wrapped", with the size added where it was negative, or "joined", as ``row_index`` has it.
        ``call.failure`` reads it."""
        return self._located("\t".join(["", "", str(axis), form] if loc is None else [str(loc), loc.what, str(axis), form]))

    def _located(self, text: str) -> int:
        if text not in self.locations:
            self.locations.append(text)
        return self.locations.index(text)

    def fresh(self, what: str) -> str:
        """A name used nowhere else in the module."""
        self.symbols += 1
        return f"{self.name}_{what}{self.symbols}"


@record
class Lowered:
    """Kernel-level functions (the first is the function itself), the entry point, the report, and the tensor-level program that they run: layouts are chosen in it.

    ``once``: what fills the block that is the function's last argument then, from ``constant`` arguments (by number)."""

    funcs: list[Func]
    entry: Entry
    module: Module
    placed: Func
    once: Lowered | None = None
    constant: tuple[int, ...] = ()


def lower(func: Func, name: str, target: Target, *, checks: bool = True, hooks: bool = False, threads: int = 1, steps: list[Step] | None = None,
          constant: Sequence[int] = (), over: Sequence[tuple[int, int]] = ()) -> Lowered:
    """Lowers ``func`` (primitive ops only) to kernel level. ``hooks``: each kernel of the function's own block reports its borders to ctx's hook.
    ``threads``: of the pool in ctx, so many may share a kernel. ``steps``: is filled with what the kernels do. ``constant``: see ``Options``; where too little depends
    on such arguments, ``once`` of the result is None and the function as without. ``over``: see ``Options``.

    Raises ``AotgradNotImplementedError`` for an op or layout without a kernel-level form, ``AotgradValueError`` for arrays that no machine can count.
    """
    _countable(func)
    for t in (*func.arg_types, *func.out_types):
        if t.layout is not None and t.layout.blocks:
            raise AotgradNotImplementedError(f"blocked layout of {t} has no kernel-level form yet; relayout it first")
    func = Layouts()(runnable(func))
    symbols = func.symbols()
    missing = [s for t in func.out_types for d in t.shape for s in dims.symbols_of(d) if s not in symbols]
    if missing:
        raise AotgradTypeError(f"size {missing[0]} of an output of {name} appears in no argument")
    module = Module(name, target, checks=checks, regions=[] if hooks else None, threads=threads, steps=steps)
    found = _with_once(func, module, constant, over) if constant else None
    if found is not None:
        return found
    k = function(name, [t.dtype for t in func.arg_types], [t.dtype for t in _results(func, over)], symbols)
    work = Workspace(k.kb, k.workspace)
    return Lowered(module.funcs, _whole(module, k, func, _arguments(k, func, over), work, over, func.arg_types), module, func)


def _arguments(k: Kernel, func: Func, over: Sequence[tuple[int, int]] = ()) -> list[Access]:
    written = {i for _, i in over}
    return [dense(Store(m, t.dtype, "over" if i in written else "in", f"in{i}"), t) for i, (m, t) in enumerate(zip(k.inputs, func.arg_types))]


def _results(func: Func, over: Sequence[tuple[int, int]]) -> list[TensorType]:
    """What callers get: the outputs that are not written over arguments."""
    placed = dict(over)
    return [t for j, t in enumerate(func.out_types) if j not in placed]


def _whole(module: Module, k: Kernel, func: Func, ins: Sequence[Access], work: Workspace, over: Sequence[tuple[int, int]], given: Sequence[TensorType]) -> Entry:
    """The body of a function. ``given``: the types of the arguments that callers give."""
    results, placed, body = _results(func, over), dict(over), scalarise(func.body, module.target.vector_bits)
    outs = iter([dense(Store(m, t.dtype, "out", f"out{i}"), t) for i, (m, t) in enumerate(zip(k.outputs, results))])
    plan = analyse(body, over={body.args[i]: j for j, i in placed.items()})
    homes = [next(outs) if j not in placed else ins[placed[j]] if j in plan.in_place else None for j in range(len(func.out_types))]
    lower_block(module, k.kb, plan, dict(zip(body.args, ins)), homes, work, moves={j: ins[i] for j, i in placed.items() if j not in plan.in_place})
    k.kb.ret()
    work.settle()
    module.funcs.insert(0, k.func)
    return Entry(module.name, tuple(given), tuple(results), tuple(func.symbols()), work.total)


def _with_once(func: Func, module: Module, constant: Sequence[int], over: Sequence[tuple[int, int]]) -> Lowered | None:
    """The function without what its constant arguments give alone, and the one that computes that; None where it is too little."""
    parts = later.once.cut(func, constant)
    main, own = parts.main, len(func.args)
    k = function(module.name, [*(t.dtype for t in func.arg_types), int8], [t.dtype for t in _results(func, over)], func.symbols())
    kept = module.kept = later.once.Kept(k.inputs[-1], KernelBuilder(Block()), {})
    ins = _arguments(k, func, over)
    kept.sources.update((ins[i].store, n) for n, i in enumerate(parts.constant))
    made = [later.once.KeptStore(kept, t, f"kept{i}") for i, t in enumerate(main.arg_types[own:])]
    kept.sources.update((store, len(parts.constant) + n) for n, store in enumerate(made))
    report, steps = len(module.report), None if module.steps is None else len(module.steps)
    work = Workspace(k.kb, k.workspace)
    entry = _whole(module, k, main, [*ins, *(dense(s, s.type) for s in made)], work, over, func.arg_types)
    if kept.size < later.once.LEAST:
        module.kept = None
        module.funcs.clear()
        del module.report[report:]
        if module.steps is not None:
            del module.steps[steps:]
        if module.regions:
            module.regions.clear()
        return None
    k.func.body.ops[:0] = kept.head.block.ops
    entry = replace(entry, inputs=(*func.arg_types, later.once.block_type(kept.size)))
    return Lowered(module.funcs, entry, module, func, _once(parts, kept, made, module), parts.constant)


def _once(parts: Cut, kept: Kept, made: Sequence[KeptStore], main: Module) -> Lowered:
    """What fills the block: values that are read go there at once, those that are packed alone into the workspace."""
    func, name = parts.once, later.once.once_name(main.name)
    module = Module(name, main.target, checks=main.checks)
    k = function(name, [t.dtype for t in func.arg_types], [int8], ())
    work = Workspace(k.kb, k.workspace)
    ins, block = _arguments(k, func), k.outputs[0]
    outs = [dense(work.take(s.dtype, s.type.size) if s.at is None else Store(k.kb.view(block, s.at, s.dtype, k.kb.dim(s.type.size)), s.dtype, "out", f"out{i}"), s.type)
            for i, s in enumerate(made)]
    if made:
        lower_block(module, k.kb, analyse(scalarise(func.body, main.target.vector_bits)), dict(zip(func.body.args, ins)), outs, work)
    for job in kept.jobs:
        array = [*ins, *outs][job.source]
        job.emit(k.kb, Access(array.store, job.access.base, job.access.strides), (block, k.kb.index(job.at)))
    k.kb.ret()
    work.settle()
    module.funcs.insert(0, k.func)
    return Lowered(module.funcs, Entry(name, tuple(func.arg_types), (later.once.block_type(kept.size),), (), work.total), module, func)


def _countable(func: Func) -> None:
    """Known sizes of every array fit 64 bits, in bytes; those of arrays that are empty too, as NumPy has it."""
    names = func.attrs.get("arg_names", ())
    places = [(v, f"argument {names[i] if i < len(names) else i} of {func.name}") for i, v in enumerate(func.args)]
    places += [(r, f"{op.loc}: {op.name}" if op.loc is not None else op.name) for op in walk(func.body) for r in op.results]
    for v, place in places:
        if math.prod(d for d in v.type.shape if isinstance(d, int) and d) * v.type.dtype.itemsize >= 1 << 63:
            raise AotgradValueError(f"{place}: an array of shape {list(map(str, v.type.shape))} has more bytes than can be counted; make one of its sizes smaller")


def lower_block(module: Module, kb: KernelBuilder, plan: Plan, args: Mapping[Value, Access], outs: Sequence[Access | None], work: Workspace,
                regs: Mapping[Value, Value] | None = None, moves: Mapping[int, Access] | None = None) -> list[Value]:
    """Emits a planned block at the builder's place; its outputs are written to ``outs``, those in ``plan.registers`` are returned.

    ``args``: where arguments are in memory; ``regs``: arguments of size 1 that are in registers; ``moves``: outputs that are copied somewhere at the end.
    """
    at = dict(args)
    for a, x in (regs or {}).items():
        if a in plan.memory_args and a not in at:
            at[a] = dense(work.take(a.type.dtype, 1), a.type)
            kb.store(x, at[a].store.mem, 0)
    spilled = [at[a].store for a in regs or {} if a in at and a not in args]
    # What a loop or a branch is given may be a view.
    strided = {a: at[a] for a, side in plan.memory_args.items() if side and a not in plan.donated and not adjacent(at[a], a.type.shape)}
    for a in strided:
        at[a] = dense(work.take(a.type.dtype, a.type.size), a.type)
        spilled.append(at[a].store)
    buffers = Buffers(plan, at, outs, work)
    cx = Context(kb, module.target, plan, buffers, work, dict(regs or {}), module.report, module)
    for a, source in strided.items():
        _copy(cx, a.type, source, at[a])
    for item in plan.items:
        if item in plan.late:
            kb.polls = False  # what the caller has is half changed from here to the end
        buffers.enter(item)
        if isinstance(item, Scalar):
            _emit(cx, item)
        elif module.regions is not None:
            _emit_hooked(cx, item, module.regions)
        elif module.steps is not None:
            _emit_described(cx, item, module.steps)
        else:
            _emit(cx, item)
        buffers.leave(item)
    end = Kern(-1, len(plan.ops), None)
    results = [scalar_of(cx, end, plan.outputs[i]) for i in sorted(plan.registers)]
    kb.polls = kb.polls and not moves
    for j, target in (moves or {}).items():
        _copy(cx, plan.outputs[j].type, buffers.access(end, plan.outputs[j]), target)
    buffers.leave(None)
    for store in spilled:
        work.give_back(store)
    return results


def _copy(cx: Context, t: TensorType, source: Access, target: Access) -> None:
    places = [(a.store, (a.base, {d: s for d, s in enumerate(a.strides) if s != 0})) for a in (source, target)]
    later.lowering_index.elementwise(cx, t.shape, places[:1], lambda k, x: x, places[1])
    if cx.module.steps is not None:
        cx.module.steps.append(later.steps.Step(["copy"], [], t.size * t.dtype.itemsize, t.size * t.dtype.itemsize, dtype=str(t.dtype.mlir)))


def _emit_hooked(cx: Context, item: Item, regions: list[dict[str, Any]]) -> None:
    """An item between two calls of the hook. What it contains (the body of a loop) does not report: that would cost more than it measures."""
    number = len(regions)
    regions.append(region_of(item))
    cx.module.regions = None
    cx.kb.hook(number, 0)
    _emit(cx, item)
    cx.kb.hook(number, 1)
    cx.module.regions = regions


def _emit_described(cx: Context, item: Item, steps: list[Step]) -> None:
    """An item, and what it does; the kernels of a loop's body stand inside it."""
    inside: list[Step] = []
    before, cx.module.steps = len(cx.report), inside
    _emit(cx, item)
    cx.module.steps = steps
    step = later.steps.step_of(cx, item, cx.report[before:], inside)
    if step is not None:
        steps.append(step)


def _emit(cx: Context, item: Item) -> None:
    cx.kb.loc = item.op.loc if item.op is not None else None
    if isinstance(item, Scalar):
        _scalar(cx, item)
    elif isinstance(item, Nest):
        if item.epilogue is not None:
            (later.lowering_dot.dot_nest if item.epilogue.name == "dot" else later.lowering_conv.conv_nest)(cx, item)
            return
        nest = NestEmitter(cx, item)
        nest.build()
        nest.emit()
        cx.report.append(describe(nest))
    else:
        assert isinstance(item, Kern)
        emit_kernel(cx, item, lower_block)


def _scalar(cx: Context, item: Scalar) -> None:
    op = item.op
    assert op is not None
    v, kind = op.result, cx.plan.kind[op]
    if kind == "idx":
        cx.regs[v] = const_of(op, cx.kb)
    else:
        vals = [scalar_of(cx, item, o) for o in op.operands]
        cx.regs[v] = vals[0] if op.name == "stop_gradient" else apply(cx.kb, 1, op, vals)
    if v in cx.plan.memory:
        access = cx.buffers.stored(v)
        cx.kb.store(cx.regs[v], access.store.mem, cx.kb.dim(access.base))
