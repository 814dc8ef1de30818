"""``compile``: signatures, tracing, instances, and the Python path behind the call trampoline."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from aotgrad.codegen.options import Options as Codegen
from aotgrad.ir import Func
from aotgrad.ir.dims import Dim
from aotgrad.ir.hashing import structural_hash
from aotgrad.ir.transforms.cleanup import dce_block
from aotgrad.ir.transforms.rewrite import substitute_here
from aotgrad.ir.transforms.stabilise import stable
from aotgrad_runtime import call, forks, modes, watchers
from aotgrad_runtime.call import Fixed
from aotgrad_runtime.errors import AotgradMemoryError, AotgradRuntimeError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.tensor import ArrayTensor, Tensor, wrap

from . import changes, detour, entries, inspection, keeping, kernels, leaks, outputs, placement, profiling, retraces, sources, split, structured, unusable, verify
from .compiled import built
from .contents import Content, bytes_of, gated, survey_contents
from .effects import Before, warn
from .explained import explained_with_line, of_argument, same_again, told_of_arguments
from .front import unforeseen
from .gathering import gathering
from .leaves import alias, spared
from .ledger import Ledger
from .memory import named
from .options import Options
from .program import Program, depends
from .promotion import is_number
from .pytree import TreeDef, tree_flatten, tree_unflatten, with_numbers
from .randomness import States
from .signatures import identifier, leaf_names, leaf_type, specs_of
from .sizes import TracedNumber
from .sources import GradOf, Item
from .static import static_key
from .steps import gaps
from .structured import MISS, TRACED
from .subtrace import as_value
from .trace import NeedStatic, Trace, Traced, TracedArray, TracedTensor, current, raised_at, tracing
from .variant import Leaf, Variant, array_of, fits, requirement, with_sizes
from .watch import find_inputs, survey, watch

__all__ = ["Options", "compile"]

F = Callable[..., Any]


_watching, _here = watchers.shared, watchers.state
_changing = forks.safe(threading.RLock(), outer=True)  # what functions keep of their traces
_CONTENTS = 4  # traces kept that differ in the numbers of arrays they compare
_BYTES = 1 << 28  # copies of such arrays kept per function, beyond those of the newest trace
_SINGLY = 4  # integers that are tried as sizes one by one
_VARIANTS = 256  # traces kept per function, and instances of a trampoline
_SIZES = -1  # among leaves whose numbers a trace needed: the sizes of all arrays
_RENEWED = 8  # how often the short way of a variant is made anew


def _is_integer(x: Any) -> bool:
    return type(x) is int or isinstance(x, np.integer)


def _numbers(leaves: Sequence[Any], forced: set[int]) -> tuple[Any, ...]:
    return tuple([leaves[i] if i != _SIZES else tuple([np.shape(array_of(x)) for x in leaves if isinstance(x, (Tensor, np.ndarray))]) for i in sorted(forced)])


def _disabled() -> bool:
    """Whether compiled functions run as plain Python: read when one is made, and at every call that goes through Python."""
    return os.environ.get("AOTGRAD_DISABLE_COMPILE") == "1"


def _before(f: Callable[..., Any], holders: Sequence[Any]) -> tuple[States, Before]:
    before = Before(f, holders)
    return States(before.found), before


class State:
    """What a compiled function knows. One per ``compile``."""

    def __init__(self, f: F, name: str, options: Options) -> None:
        self.f, self.name, self.options = f, name, options
        try:
            self.signature: inspect.Signature | None = inspect.signature(f)
        except (TypeError, ValueError):
            self.signature = None
        self.has_out = self.signature is not None and "out" in self.signature.parameters
        self.static, self.donated = self._named("static", options.static), self._named("donate", options.donate)
        self.variants: dict[Any, list[Variant]] = {}
        self.forced: dict[Any, set[int]] = {}
        self.traces = 0
        self.retraces = retraces.Retraces(name)
        self.callable: Any = None
        self.entries: dict[Any, structured.Entry] = {}
        self.order: deque[Any] = deque()  # keys of the variants, oldest first
        self.dropped, self.most = 0, _VARIANTS
        self.asks = self.strided = self.warned = False
        self.disabled = _disabled()
        self.runs: tuple[Callable[[tuple[Any, ...], dict[str, Any]], Any], ...] = ()  # those of the entries
        self.fast: list[tuple[Any, Program, structured.Entry | None]] = []  # instances, their programs, and the entries they stand behind

    def _named(self, option: str, given: Sequence[Any]) -> set[Any]:
        """The parameters that an option names, by name and position."""
        named = set(given)
        if self.signature is not None:
            params = list(self.signature.parameters)
            for s in list(named):
                if isinstance(s, str) and s not in params and not any(p.kind is p.VAR_KEYWORD for p in self.signature.parameters.values()):
                    raise AotgradValueError(f"{option}={s!r}: {self.name} has no such parameter; it takes {', '.join(params)}")
                if isinstance(s, str) and s in params:
                    named.add(params.index(s))
                elif isinstance(s, int):
                    many = any(p.kind is p.VAR_POSITIONAL for p in self.signature.parameters.values())
                    if s < 0 or (s >= len(params) and not many):
                        raise AotgradValueError(f"{option}={s}: {self.name} has no parameter at that position; it takes {', '.join(params) or 'none'}")
                    named |= {params[s]} if s < len(params) else set()
        return named

    # ---- calls --------------------------------------------------------------------------------------------------------------------

    def slow(self, *args: Any, **kwargs: Any) -> Any:
        """Everything the trampoline does not do itself."""
        if self.runs and not (_watching.count and _here.count) and current() is None:
            for run in self.runs:
                result = run(args, kwargs)
                if result is not MISS:
                    return result
        if self.fast and profiling.watch.on and (result := profiling.fast(self, args, kwargs)) is not MISS:
            return result
        return self._slow(args, kwargs)

    @modes.intact
    def _slow(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.disabled or _disabled():
            return self._plainly(args, kwargs)
        out = None if self.has_out else kwargs.pop("out", None)
        leaves, tree = tree_flatten((args, kwargs))
        if current() is not None or any(isinstance(x, Traced) for x in leaves):
            return self._plainly(args, kwargs)
        static = self._static_leaves(args, kwargs)
        variant, fresh = self.find(leaves, tree, static)
        if variant.changes.plainly(variant.arguments(leaves)):
            result = self._plainly(args, kwargs)
            return result if out is None else outputs.write(result, out)
        try:
            result = self.checked(variant, leaves)
        except AotgradMemoryError as e:
            if e.argument is None or e.argument >= len(variant.leaves):
                raise
            index = variant.leaves[e.argument].index
            raise named(self.name, leaf_names(self.signature, tree)[index], array_of(leaves[index])) from None
        if fresh or not variant.entered:
            entries.add(self, variant, leaves, tree)
        return result if out is None else outputs.write(result, out)

    def _plainly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The plain function, which may write to its arrays: what is not donated stays as it is."""
        leaves, tree = tree_flatten((args, kwargs))
        donated, inner = self._donated(tree), current() is not None or any(isinstance(x, Traced) for x in leaves)
        open_ = [leaves[i] for i in donated if isinstance(leaves[i], np.ndarray)]
        for i, x in enumerate(leaves):
            if i not in donated and not (isinstance(x, np.ndarray) and any(np.may_share_memory(x, y) for y in open_)):  # what shares the memory shows the writes
                leaves[i] = alias(x) if inner else spared(x)
        args, kwargs = tree_unflatten(tree, leaves)
        return self.f(*args, **kwargs)

    def _donated(self, tree: TreeDef) -> set[int]:
        """Indices of leaves inside arguments named by ``donate=``."""
        found: set[int] = set()
        at = 0
        for key, child in [*enumerate(tree.children[0].children), *zip(tree.children[1].meta, tree.children[1].children)] if self.donated else ():
            if key in self.donated:
                found.update(range(at, at + child.leaves))
            at += child.leaves
        return found

    def _static_leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[int]:
        """Indices of leaves inside arguments named by ``static=``."""
        if not self.static:
            return set()
        found: set[int] = set()
        at = 0
        for key, x in [*enumerate(args), *((k, kwargs[k]) for k in sorted(kwargs))]:
            n = len(tree_flatten(x)[0])
            if key in self.static:
                found.update(range(at, at + n))
            at += n
        return found

    def _base(self, leaves: Sequence[Any], tree: TreeDef, static: set[int]) -> tuple[Any, ...]:
        """What calls have in common that one trace may serve."""
        return (tree, specs_of(self.signature, leaves, tree, static), modes.state.grad, modes.state.inference,
                self.asks and tuple([requirement(x) for x in leaves]), self.strided and tuple([gaps(x) for x in leaves]))

    def find(self, leaves: Sequence[Any], tree: TreeDef, static: set[int]) -> tuple[Variant, bool]:
        """The variant that fits, traced now if there is none."""
        base = self._base(leaves, tree, static)
        forced = self.forced.get(base, set())
        key = base if not forced else (base, _numbers(leaves, forced))
        for variant in self.variants.get(key, ()):
            if fits(variant, leaves):
                return self._instance_of(key, variant, leaves) or (variant, False)
        variant, forced = self._trace(leaves, tree, static, forced)
        keeping.begin(variant)
        if variant.strides is not None and not self.strided:  # from now on it matters which arguments have gaps
            self.strided = True
            key = base = self._base(leaves, tree, static)
        if forced:
            self.forced[base] = forced
            key = (base, _numbers(leaves, forced))
        undo, variant.undo = variant.undo, None
        if variant.asks and not self.asks:  # from now on it matters which arguments require gradients
            self.asks = True
            undo()
            return self.find(leaves, tree, static)
        if variant.effects:  # good for this call alone
            if not self.warned:
                warn(self.name, variant.effects)
            self.warned = variant.entered = True
            return variant, False
        self._keep(key, variant)
        self.retraces.count(variant, forced, leaf_names(self.signature, tree))
        return self._instance_of(key, variant, leaves) or (variant, True)

    def _instance_of(self, key: Any, variant: Variant, leaves: Sequence[Any]) -> tuple[Variant, bool] | None:
        """A trace with the sizes of this call as numbers, tried before the trace itself from now on; None where sizes may stay open."""
        made = with_sizes(variant, leaves)
        if made is None:
            return None
        self._keep(key, made, first=True)
        return made, True

    def _trace(self, leaves: Sequence[Any], tree: TreeDef, static: set[int], forced: set[int]) -> tuple[Variant, set[int]]:
        """A new variant, and the arguments whose numbers it needed: integers, or (``_SIZES``) all sizes."""
        rest: list[set[int]] | None = None
        first: Exception | None = None
        while True:
            try:
                with profiling.compiling(self.name, "trace"):
                    variant = kernels.collector_paused(self.trace, leaves, tree, static | forced)
                if _SIZES in forced and first is not None:
                    self.retraces.numbered = f"{raised_at(first)}: {first}"
                return variant, forced
            except NeedStatic as need:
                forced = forced | {need.index}
                self.retraces.places[need.index] = need.place
            except Exception as error:
                if rest is None:  # perhaps an integer is a size: then its number helps; one of them, else all
                    given, first, numbers = forced, error, [i for i, x in enumerate(leaves) if _is_integer(x) and i not in static | forced]
                    rest = [{i} for i in numbers[:_SINGLY]] + ([set(numbers)] if len(numbers) > 1 else [])
                    if unforeseen(error):  # perhaps what was called takes integers, and no sizes
                        rest.append({_SIZES})
                if not rest:
                    if first is not None and same_again(error, first):
                        try:
                            raise first from None
                        finally:
                            del first
                    raise
                forced = given | rest.pop(0)

    def _keep(self, key: Any, variant: Variant, first: bool = False) -> None:
        """Remembers a variant, ``first`` among its like; the oldest goes when there are too many."""
        with _changing:
            self._kept(key, variant, first)

    def _kept(self, key: Any, variant: Variant, first: bool) -> None:
        kept = self.variants.setdefault(key, [])
        kept.append(variant)
        self.order.append(key)
        if variant.watch.contents:
            for old in [v for v in kept if v.watch.contents][:-_CONTENTS]:
                self._forget(key, old)
            comparing = [(k, v) for k, vs in self.variants.items() for v in vs if v.watch.contents and v is not variant]
            while comparing and bytes_of(self._contents()) > _BYTES:
                self._forget(*comparing.pop(0))
        if len(self.order) > self.most:
            oldest = self.order.popleft()
            left = self.variants.get(oldest, [])[1:]
            if left:
                self.variants[oldest] = left
            else:
                self.variants.pop(oldest, None)
            self.dropped += 1
        if first and (kept := self.variants.get(key, [])):
            kept.insert(0, kept.pop())

    def all(self) -> list[Variant]:
        """All variants; other threads may add some meanwhile."""
        return [v for vs in [*self.variants.values()] for v in [*vs]]

    def _contents(self) -> list[Content]:
        return [c for v in self.all() for c in v.watch.contents]

    def _forget(self, key: Any, variant: Variant) -> None:
        """Drops a variant whose arrays have most likely changed for good, with their copies."""
        self.variants[key].remove(variant)
        self.order.remove(key)
        if (entry := self.entries.pop(variant.func, None)) is not None:
            self.runs = tuple([e.run for e in self.entries.values()])
            self.fast = [f for f in self.fast if f[2] is not entry]
        for content in variant.watch.contents:
            content.forget()
        self.dropped += 1

    def _repeats(self, variant: Variant, leaves: Sequence[Any], tree: TreeDef, static: set[int], holders: Sequence[Any]) -> bool:
        """Whether the function gives the same program again after what it has changed in Python; leaves everything as it was before."""
        try:
            again = self._again(leaves, tree, static, holders)
        except Exception:
            return False
        same = len(again.hidden) == len(variant.hidden) and all(a is b or isinstance(place, Item) for (a, _), (b, place) in zip(again.hidden, variant.hidden))
        return (same and structural_hash(again.func) == structural_hash(variant.func) and again.out_tree == variant.out_tree
                and all(a is b or a is not TRACED and b is not TRACED and static_key(a) == static_key(b) for a, b in zip(again.out_constants, variant.out_constants)))

    def _again(self, leaves: Sequence[Any], tree: TreeDef, static: set[int], holders: Sequence[Any]) -> Variant:
        """One more trace, which leaves everything as it was before."""
        before, traces, asked = Before(self.f, holders), self.traces, modes.state.asked
        try:
            return self.trace(leaves, tree, static, again=True)
        finally:
            before.undo()
            self.traces, modes.state.asked = traces, asked

    def trace(self, leaves: Sequence[Any], tree: TreeDef, static: set[int], name: str | None = None, again: bool = False) -> Variant:
        """Runs the function on traced values. ``again``: to compare with what an earlier trace gave."""
        started = time.perf_counter()
        self.traces += 1
        examples: dict[str, int] = {}
        trace = Trace(name or self.name, examples=examples)
        trace.ledger = Ledger(trace)
        tensors, names = any(isinstance(x, Tensor) and not isinstance(x, ArrayTensor) for x in leaves), leaf_names(self.signature, tree)
        cls = TracedTensor if tensors else TracedArray
        given, dynamic, donated = [], [], self._donated(tree)
        for i, x in enumerate(leaves):
            if i in static or (t := leaf_type(x, names[i], examples, _SIZES in static)) is None:
                given.append(x)
                continue
            traced = trace.argument(t, cls)
            traced._placed = placement.begin(t, array_of(x))
            if isinstance(x, Tensor) and x._requires_grad:
                trace.requires.add(traced._value)
            if isinstance(x, Tensor) and not isinstance(x, ArrayTensor):
                trace.ledger.argument(traced, x, i)
            elif i in donated and isinstance(x, np.ndarray):
                trace.ledger.donated.append((traced, traced._value, len(trace.block.args) - 1))
            traced._weak, traced._scalar = is_number(x), isinstance(x, np.generic)
            if _is_integer(x):
                traced._leaf_index = i
            given.append(traced)
            dynamic.append(Leaf(i, t))
        args, kwargs = tree_unflatten(tree, given)
        holders = [x for x in given if not isinstance(x, Traced)]
        asked, refused, states, before = modes.state.asked, modes.state.refused, *_before(self.f, holders)
        try:
            out_tree, constants = self._run(trace, args, kwargs)
            if not again:
                states.check(self.name, lambda: self._again(leaves, tree, static, holders))
            written: Variant | None = before.refuse(self.name, lambda: self._again(leaves, tree, static, holders))
            settled = before.settle(trace)
        except Exception as error:
            before.undo()
            raise of_argument(error, self.signature, args, kwargs, zip(names, given)) or error from error.__cause__
        if written is not None:
            return written
        changed = changes.finish(trace, given, settled)
        if trace.torch and not any(isinstance(x, (np.ndarray, np.generic)) for x in leaves):  # tensors came out of variables
            tensors = True
        variant = _variant_of(trace, self.f, holders, dynamic, out_tree, constants, tensors, self._contents(),
                              [c.place for c in changed.sets if isinstance(c.place, sources.Path)])
        variant.changes = changed
        changes.resolved(changed, variant.place)
        variant.effects, variant.undo = [*settled.other, *(path for path, _ in settled.contents)], before.undo
        if settled.other and not settled.contents and not again:
            found: Variant | None = before.repeat(lambda: self._again(leaves, tree, static, holders)) if not self.warned else None
            if found is not None and not found.effects:  # another thread has changed it
                return found
            if self._repeats(variant, leaves, tree, static, holders):
                variant.harmless, variant.effects = settled.other, []
        variant.fixed, variant.asks = list(trace.fixed), modes.state.asked != asked
        variant.requires = [requirement(obj) for obj, _ in variant.hidden] if variant.asks else variant.requires
        variant.strides = [gaps(obj) for obj, _ in variant.hidden] if trace.ledger.strided or trace.placing else None
        variant.seconds = time.perf_counter() - started
        variant.records = modes.state.refused != refused or not modes.state.grad and any(depends(variant.func, [True] * len(variant.func.args)) or [True])
        return variant

    def _run(self, trace: Trace, args: Any, kwargs: Any) -> tuple[TreeDef, list[Any]]:
        try:
            with tracing(trace), gathering(), modes.noting() as trace.noted:
                out = self.f(*args, **kwargs)
                leaves, out_tree = tree_flatten(out)
                trace.torch = any(isinstance(x, TracedTensor) for x in leaves)
                constants: list[Any] = []
                for i, x in enumerate(leaves):
                    if isinstance(x, (Traced, np.ndarray, Tensor)) or hasattr(x, "symbols"):
                        if not isinstance(x, Traced) and (reason := unusable.why(x)) is not None:
                            raise AotgradTypeError(f"{self.name}: {leaks.result_paths(out_tree)[i]}: {reason}, or add it to the result outside of the compiled function")
                        trace.block.outputs.append(as_value(x, trace))
                        constants.append(TRACED)
                    else:
                        leaks.check(x, self.name, leaks.result_paths(out_tree)[i])
                        constants.append(x)
                plain = [isinstance(x, Dim) or isinstance(x, TracedNumber) and x._weak for x in leaves]
                if any(plain):  # sizes are Python's numbers, as in eager code
                    out_tree = with_numbers(out_tree, iter(plain))
        except Exception as error:
            lost = isinstance(error, (NameError, AttributeError, LookupError))
            gone = next((name for v in self.all() if (name := v.watch.missing())), None) if lost else None
            if gone is not None:
                raise AotgradRuntimeError(f"{self.name}: {gone}, which an earlier call read, is gone ({error}); define it again before the call") from error
            found = explained_with_line(error)
            try:
                if found is error:
                    raise
                raise found from None
            finally:
                del found
        return out_tree, constants

    # ---- execution -------------------------------------------------------------------------------------------------------------------

    def program(self, variant: Variant) -> Any:  # a CompiledProgram, or a SplitProgram
        """The compiled program of a variant, built at first need."""
        if variant.program is None:
            started = time.perf_counter()
            variant.program = kernels.collector_paused(self._built, variant)
            variant.seconds += time.perf_counter() - started
        return variant.program

    def _built(self, variant: Variant) -> Program:
        return built(variant.func, "CompiledFunctionBackward", self._codegen(variant), constant=keeping.candidates(variant))

    def _codegen(self, variant: Variant) -> Codegen:
        return dataclasses.replace(self.options.codegen(), guards=tuple((a, b) for a, b, _ in variant.guards), unequal=tuple(variant.unequal),
                                   over=variant.changes.over(variant.func))

    def execute(self, variant: Variant, leaves: Sequence[Any]) -> Any:
        """Runs a variant on the leaves of a call."""
        program = self.program(variant)
        args = variant.arguments(leaves)
        types = variant.func.arg_types
        given = [x if isinstance(x, Tensor) else np.asarray(x, t.dtype.np) for x, t in zip(args, types)]
        taped = next((type(x) for x in args if isinstance(x, Tensor)), None)
        if taped is None:
            variant.changes.may_write(args, self.name)
            outs = program.run_over(given) if variant.changes.written and not split.needs_host(variant.func) else program.run(given)
            results = [wrap(o) if variant.tensors else _plain(o) for o in outs]
        else:
            cls = Tensor if variant.tensors else ArrayTensor
            run = split.apply if not variant.records else modes.enable_grad(split.apply)
            variant.changes.mark(leaves)
            try:
                results = run(program, given, cls)
            except BaseException:
                variant.changes.mark(leaves, back=True)
                raise
            if cls is ArrayTensor and not any(isinstance(x, Tensor) for x in leaves):  # the tensors are captured: results are NumPy's, as the call is
                results = [x if x._requires_grad else _plain(x._data) for x in results]
        if variant.changes.any:
            variant.changes.put(results, args, leaves, self.name)
        it = iter(results)
        return tree_unflatten(variant.out_tree, [next(it) if c is TRACED else c for c in variant.out_constants])

    def checked(self, variant: Variant, leaves: Sequence[Any]) -> Any:
        """``execute``; the first calls of a signature are compared with the interpreter where ``verify`` says so."""
        if variant.verified >= self.options.verify:
            return self.execute(variant, leaves)
        variant.verified += 1
        arrays = [np.array(array_of(leaves[leaf.index]), leaf.type.dtype.np) for leaf in variant.leaves]  # the call may write to what it reads
        arrays += [np.array(array_of(x)) for x in variant.arguments(leaves)[len(variant.leaves):]]
        result = self.execute(variant, leaves)
        difference = verify.differs(variant.func, arrays, [array_of(x) for x, c in zip(tree_flatten(result)[0], variant.out_constants) if c is TRACED])
        if difference is not None:
            raise AotgradRuntimeError(f"verify: result {difference[0]} of {self.name} differs from the interpreter by {difference[1]:g}; "
                                      "please report this as a bug with the function's text (f.trace(...))")
        return result

    # ---- the fast path -------------------------------------------------------------------------------------------------------------------

    def add_instance(self, instance: Any, program: Program) -> None:
        """Lets the trampoline take calls that ``instance`` fits; not many: they are tried one after the other, and soon the way through Python costs less."""
        if len(self.callable.instances()) < self.most:
            self.callable.add_instance(instance)
            self.fast.append((instance, program, None))

    def enter(self, key: Any, made: structured.Entry, variant: Variant) -> None:
        """An entry for calls of one structure; one for this variant alone where it compares arrays first."""
        if variant.watch.contents:
            made.run = gated(made.run, variant.watch.contents, MISS)
        with _changing:
            self.entries[key] = made
            self.runs = tuple([e.run for e in self.entries.values()])

    def unready(self, variant: Variant) -> None:
        """Takes back the short way of a variant, whose tensors are others now; the next call makes it anew, a few times."""
        with _changing:
            if self.entries.pop(variant.func, None) is not None:
                self.runs = tuple([e.run for e in self.entries.values()])
        variant.renewed += 1
        variant.entered = variant.renewed > _RENEWED

    def renew(self) -> None:
        """Forgets what was traced: the default dtype is another."""
        self.callable.clear_instances()
        self.entries, self.runs, self.fast = {}, (), []
        with _changing:
            self.variants, self.forced = {}, {}
            self.order.clear()

    def pause(self, on: bool) -> None:
        """Sends the calls of threads that watch through Python (see ``detour``), or back to the trampoline."""
        self.callable.suspend(on)

def _plain(out: Any) -> Any:
    return out[()] if out.ndim == 0 else out


def _variant_of(trace: Trace, f: F, holders: Sequence[Any], leaves: list[Leaf], out_tree: TreeDef, constants: list[Any], tensors: bool,
                others: Sequence[Content] = (), sets: Sequence[Any] = ()) -> Variant:
    from_trace = Func(identifier(trace.name), substitute_here(dce_block(trace.block), trace.equal.names))
    func = stable(from_trace)
    found, functions = survey(f, holders)
    objects = [obj for obj, _ in trace.captured.values()]
    hidden = _hidden(objects, find_inputs(objects, found, f, holders), trace.ledger)
    guards = [(trace.canonical(a), trace.canonical(b), loc) for a, b, loc in trace.guards]
    unequal = [(trace.canonical(a), trace.canonical(b)) for a, b in trace.unequal]
    seen = watch(found, {id(obj) for obj in objects}, survey_contents(found, functions, trace.taken, trace.noted, others), sets)
    return Variant(func, leaves, hidden, guards, unequal, out_tree, constants, tensors, watch=seen)


def _hidden(objects: Sequence[Any], places: Sequence[Any], ledger: Ledger) -> list[tuple[Any, Any]]:
    """Captured objects with the places where they are read again; what hangs on another object, such as a gradient, is found through it."""
    found = dict(zip(map(id, objects), places))

    def place(x: Any) -> Any:
        known = ledger.sources.get(id(x))
        if known is None:
            return found.get(id(x), Fixed(x))
        return GradOf(place(known.owner)) if isinstance(known, GradOf) and isinstance(known.owner, Tensor) else known

    return [(x, place(x)) for x in objects]


# ---- the public function --------------------------------------------------------------------------------------------------------------

@told_of_arguments
def compile(f: F | None = None, *, name: str | None = None, static: Any = (), threads: int | str = 1, layout: str = "auto", checks: bool = True, verify: int = 0,
            memory_budget: int | None = None, donate: Sequence[str | int] = (), rewrite: bool = True, fast_math: bool = False, flush_subnormals: bool = False) -> Any:
    """A native version of ``f``, compiled at the first call with a new type signature: dtypes, ranks, memory order, and structure of the arguments. Sizes stay
    open, unless the function asks for one as a Python number (``len(x)``, ``range(n)``); ``f.explain(...)`` says where.

    NumPy in, NumPy out; tensors in, tensors out (differentiable). Positional and keyword arguments, defaults, methods, and containers of arrays work as they do in ``f``;
    arrays that ``f`` finds in variables are read at every call. A call takes ``out=``: arrays for the results, in their structure. Arguments are never written to,
    except tensors by in-place methods and what ``donate`` names: ``x[0] = 5`` and ``x += 1`` on an array argument change a copy.

    - ``name``: in errors, profiles and ``explain``; the function's own unless given.
    - ``static``: names (or positions) of parameters whose values are part of the signature: each new value is traced.
    - ``threads=n`` or ``"auto"``: big loops and matrix products on several threads; results are the same bits for every number.
    - ``checks=False`` drops checks of indices and integer powers: reads out of range give the nearest element (0 of an empty dim), writes out of range are dropped.
    - ``verify=n`` compares the first n calls of each signature with the interpreter, and raises where they differ; ``prebind`` runs once, which counts as a call.
    - ``layout="auto"``: arguments keep their memory order, results follow them, images in between are as convolutions want them; there is no other choice.
    - ``rewrite``: Python's own ``if`` and ``while`` on traced values are not rewritten yet, whatever is given here.
    - ``flush_subnormals=True``: numbers below the normal range (2.2e-308 in float64, 1.2e-38 in float32) count as zeros in calls and their gradients, which keeps
      processors that are slow on them fast; the caller's floating-point mode is what it was after every call. The default is IEEE 754.
    - ``donate``: names (or positions) of parameters whose NumPy arrays the function may write to: the caller's arrays change, once a call has succeeded.
    - ``memory_budget`` and ``fast_math`` are names kept for later; giving one raises ``AotgradNotImplementedError``.

    A compiled object, such as a module, has the object's attributes and methods: ``net = ag.compile(net)`` still has ``parameters()``, ``eval()`` and ``state_dict()``,
    and ``net.training = False`` sets the module's. Attributes that the object lacks are those of the result.
    The result has ``trace``, ``lower``, ``prebind``, ``explain`` and ``cache_info`` (see their help). Errors are ``AotgradError``s that name the user's line.

    With ``AOTGRAD_DISABLE_COMPILE=1`` in the environment when this is called, the plain ``f`` runs at every call; set later, from the next call that needs a trace.

    >>> import numpy as np, aotgrad as ag
    >>> f = ag.compile(lambda x: (x * x).sum())
    >>> f(np.array([1.0, 2.0, 3.0]))
    np.float64(14.0)
    """
    if f is None:
        return functools.partial(compile, name=name, static=static, threads=threads, layout=layout, checks=checks, verify=verify, memory_budget=memory_budget,
                                 donate=donate, rewrite=rewrite, fast_math=fast_math, flush_subnormals=flush_subnormals)
    if not callable(f):
        raise AotgradTypeError(f"compile: {type(f).__name__} is not callable; pass a function")
    given = (static,) if isinstance(static, (str, int)) else tuple(static) if isinstance(static, (tuple, list, set, frozenset)) else static
    named: Any = (donate,) if isinstance(donate, (str, int)) else tuple(donate) if isinstance(donate, (tuple, list, set, frozenset)) else donate
    options = Options(given, threads, layout, checks, verify, rewrite, fast_math, flush_subnormals, named, memory_budget)
    if name is not None and not isinstance(name, str):
        raise AotgradTypeError(f"name={name!r}: the name of a compiled function is a str")
    options.check()
    return _made(f, name or str(getattr(f, "__name__", type(f).__name__)), options)


def _made(f: F, title: str, options: Options) -> Any:
    """The compiled function. Copies of one of a module, a bound method or another object are of the object's copy; a plain function is its name."""
    state = State(f, identifier(title.strip("<>")), options)
    named, plain = hasattr(f, "__name__"), isinstance(f, FunctionType)
    made = call.make_callable(title, state.slow, wrapped=f if named else None, qualname=None if named else title,
                              reduce=None if plain else lambda _: (_made, (f, title, options)), of=None if plain or isinstance(f, MethodType) else f)
    state.callable = made
    detour.register(state)
    inspection.attach(made, state)
    return made
