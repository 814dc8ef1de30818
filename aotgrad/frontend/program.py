"""A program: one IR function with what is derived from it on demand, and its eager execution op by op.

Each primitive op has one eager implementation: NumPy where that is exactly rounded or a move, else a native kernel from ``native``. A program that runs again
and again (``HOT`` times) gets one kernel for all of its ops; the numbers are the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from aotgrad.ir import Block, Builder, Func, Op, TensorType, Value, interp, opdef
from aotgrad.ir.host import results as host_results
from aotgrad.ir.transforms.cleanup import standard
from aotgrad.ir.transforms.custom import expand_func
from aotgrad.ir.transforms.differentiate import differentiate, jvp_func, transpose_into
from aotgrad.ir.transforms.rewrite import copy_ops, decompose_block
from aotgrad.ir.transforms.widen import widened
from aotgrad_runtime import memory_format as mf
from aotgrad_runtime.arrays import decode, encode_bfloat16
from aotgrad_runtime.dtypes import bfloat16, float32
from aotgrad_runtime.errors import AotgradError, AotgradNotImplementedError, AotgradRangeError, AotgradValueError

from . import images, kernels, native

__all__ = ["HOT", "Program", "Pullback"]

Arrays = Sequence[Any]
HOT = 150  # runs of one program before it is compiled: about as long as they took


class Pullback:
    """The backward program of some cotangents: its arguments are the ``inputs`` and ``outputs`` it needs (by index), then the cotangents.

    ``gives``: which active inputs it has a result for; the gradients of the others are structurally zero.
    """

    __slots__ = ("gives", "inputs", "moves", "outputs", "program")

    def __init__(self, program: Program, inputs: tuple[int, ...], outputs: tuple[int, ...], gives: tuple[bool, ...], moves: tuple[int, ...] | None = None) -> None:
        self.program, self.inputs, self.outputs, self.gives = program, inputs, outputs, gives
        self.moves = moves  # which results belong to the graph, see ``depends``; None: all


class Program:
    """``func`` ready to run on arrays; with open sizes it is interpreted."""

    native = False  # whether it runs as one kernel
    kept: Any = None  # of a compiled program, see ``keeping``
    __slots__ = ("_computes", "_fused", "_jvps", "_plan", "_vjps", "aside", "backward", "call", "calls", "edges", "freed", "func", "name", "recipes", "runner", "runs",
                 "view")

    def __init__(self, func: Func, name: str, runner: Callable[..., list[Any]] | None = None, view: tuple[Any, ...] | None = None) -> None:
        self.func, self.name, self.runner = func, name, runner
        self.calls = self.runs = 0  # in eager: of the operation, and of its steps
        self.recipes: dict[tuple[bool, ...], Any] = {}  # how calls are recorded, see ``eager``
        places = tuple([i for i, a in enumerate(func.args) if a.type.dtype.is_differentiable])
        # The inputs that a node has edges for, in order (None: an edge to nothing); all of them, if None. As torch's, none for indices and masks.
        self.edges: tuple[int | None, ...] | None = None if len(places) == len(func.args) else places
        self.aside = 0  # how many results, at the end, are for the backward pass alone
        self.backward = False  # a gradient of it that is structurally zero is None; one of an operation of the user's is zeros, as in torch
        self.call: tuple[tuple[str, ...], frozenset[str], dict[str, Any]] | None = None  # of a public function, see ``saved.Saved``
        self.freed: Any = None  # what nodes hold in the place of what they saved
        self.view = view  # how results show the memory of the first input; None: they have their own
        self._plan: list[Any] | None = None
        self._fused: Callable[..., Any] | None = None
        self._computes: bool | None = None  # whether no output shows the memory of an input
        self._vjps: dict[Any, Pullback] = {}
        self._jvps: dict[Any, Program] = {}

    def run_with(self, arrays: Arrays, block: Any) -> list[Any]:
        """The same with what ``kept`` has of weights alone."""
        raise NotImplementedError

    def run(self, arrays: Arrays) -> list[Any]:
        """Outputs as fresh or aliasing arrays."""
        if self.runner is not None:
            return self.runner(*arrays)
        fused = self._fused
        if fused is not None and (out := fused(*arrays)) is not None:
            return list(out) if type(out) is tuple else [out]
        if self.backward and not all([a.flags.c_contiguous for a in arrays]):  # noqa: C419 (quicker than a generator)
            given, arrays = arrays, self._packed(arrays)
            if fused is not None and arrays is not given and (out := fused(*arrays)) is not None:
                return list(out) if type(out) is tuple else [out]
        if self._plan is None and self.func.symbols():  # a loop that calls Python, in a compiled program
            self.runner = functools.partial(interp.run, expand_func(_copy(self.func)))
            return self.runner(*arrays)
        if self._plan is None:
            self._plan = kernels.collector_paused(lambda: _plan(widened(standard(expand_func(_copy(self.func))))))
        self.runs += 1
        outs = _execute(self._plan, arrays)
        if self.runs == HOT and self.view is None:
            func = standard(expand_func(_copy(self.func)))
            made = native.fused(func)
            self._fused = made if made is not None and _agrees(made, arrays, outs) else None
            if made is None:
                self._plan = _plan(widened(func), True)
        return outs

    def direct(self) -> Callable[..., Any] | None:
        """The one step of a program that moves numbers alone, as a function of its arrays, once it has run; None for others."""
        plan = self._plan
        return None if plan is None or not plan[1] or self.runner is not None or self.backward or self._fused is not None else plan[0]

    def _packed(self, arrays: Arrays) -> Arrays:
        """Expanded arrays, such as the cotangent of a sum, row-major where all others are: steps and kernels meet them as they are seldom made for."""
        spread = [0 in a.strides and not a.flags.c_contiguous for a in arrays]
        if not any(spread) or not all(on or a.flags.c_contiguous for a, on in zip(arrays, spread)):
            return arrays
        if self._computes is None:
            self._computes = len(self.func.body.ops) > 1 and all(_origin(o).op is not None for o in self.func.outputs)
        return [np.ascontiguousarray(a) if on else a for a, on in zip(arrays, spread)] if self._computes else arrays

    def pullback(self, active: tuple[bool, ...], present: tuple[bool, ...]) -> Pullback:
        """The backward program for the ``active`` inputs, where cotangents are ``present`` for these outputs."""
        found = self._vjps.get((active, present))
        if found is None:
            found = self._vjps[active, present] = kernels.collector_paused(_derive_pullback, self, active, present)
        return found

    def reaches(self, present: tuple[bool, ...]) -> Sequence[bool]:
        """Which inputs have a gradient, be it zero, where cotangents are ``present`` for these outputs: of one call all have."""
        return [True] * len(self.func.args)

    def pushforward(self, active: tuple[bool, ...]) -> Program:
        """(inputs, tangents of active inputs) -> (outputs, tangents of float outputs)."""
        found = self._jvps.get(active)
        if found is None:
            found = self._jvps[active] = Program(jvp_func(Func(self.func.name, self.func.body), active), self.name)
        return found


ADRIFT = 2  # a result that requires grad and is a leaf: a view that was made unrecorded


def depends(func: Func, active: Sequence[bool], views: bool = True) -> tuple[int, ...] | None:
    """Which results are recorded (1): those that active inputs lead to other than through ``stop_gradient``, or with ``views`` through such that require grad all the
    same; the latter are ``ADRIFT``. None: all are recorded."""
    live = {a for a, on in zip(func.args, active) if on}
    drifting: set[Value] = set()
    for op in func.body.ops:
        if op.name == "stop_gradient" and not (views and op.attrs["view"]):
            continue
        used = op.operands[1:] if op.name == "graft" else op.operands
        if any(o in live for o in used):
            live.update(r for r in op.results if r.type.dtype.is_differentiable)
            if op.name == "stop_gradient" or op.name == "graft" and op.operands[1] in drifting:
                drifting.update(op.results)
    found = tuple([ADRIFT if o in drifting else int(o in live) for o in func.outputs])
    return None if all(on == 1 or not o.type.dtype.is_differentiable for on, o in zip(found, func.outputs)) else found


def reaches(func: Func, present: Sequence[bool]) -> list[bool]:
    """Which inputs lead to one of the ``present`` results other than through ``stop_gradient``: those of others are not there, as in PyTorch, and not zero."""
    read = {o for o, on in zip(func.outputs, present) if on}
    for op in reversed(func.body.ops):
        if op.name != "stop_gradient" and any(r in read for r in op.results):
            read.update(op.operands[1:] if op.name == "graft" else op.operands)
    return [a in read for a in func.args]


def _agrees(made: Callable[..., Any], arrays: Arrays, outs: list[Any]) -> bool:
    """Whether a kernel gives results that lie in memory as those of the steps do, for arrays such as these; more than that is seen to where it is made."""
    if all(x.ndim < 3 for x in (*arrays, *outs)):
        return True
    found = made(*arrays)
    return found is not None and [x.strides for x in (found if type(found) is tuple else (found,))] == [x.strides for x in outs]


def _copy(func: Func) -> Func:
    block = Block(func.arg_types)
    env: dict[Value, Value] = dict(zip(func.args, block.args))
    copy_ops(Builder(block), func.body.ops, env)
    block.outputs = [env[o] for o in func.outputs]
    return Func(func.name, block, func.attrs)


def _derive_pullback(program: Program, active: tuple[bool, ...], present: tuple[bool, ...]) -> Pullback:
    """Everything nonlinear that the transposed part needs is recomputed from inputs and outputs, so that these alone are saved."""
    func = program.func
    block, aside = Block(func.arg_types), Block()
    b, lb = Builder(block), Builder(aside)
    ins = list(block.args)
    tangents = [Value(x.type) if on else None for x, on in zip(ins, active)]
    outs, moved = differentiate(b, lb, decompose_block(func.body), ins, tangents)
    cts = [Value(o.type) if on else None for o, on in zip(outs, present)]
    wanted = [t for t in tangents if t is not None]
    _check_complex(aside.ops)
    found = transpose_into(b, aside.ops, wanted, moved, cts)
    reached = [on for on, t in zip(program.reaches(present), tangents) if t is not None]
    gives = tuple([c is not None or on and not program.backward for c, on in zip(found, reached)])
    results = [b.zeros(t) if c is None else c for c, t, on in zip(found, wanted, gives) if on]
    several = sum(t.dtype.is_differentiable for t in func.out_types) > 1
    cut, kept_ins, kept_outs = _cut(block, ins, outs, [c for c in cts if c is not None], results, several)
    made = Program(Func(f"{program.name}_backward", cut), program.name)
    made.backward = True
    return Pullback(made, kept_ins, kept_outs, gives)


def _check_complex(ops: Iterable[Op]) -> None:
    """Products of complex numbers have conjugates as their adjoints, which transposes do not know."""
    for op in ops:
        if (isinstance(opdef.get(op.name).derivative, opdef.Bilinear) or op.name == "div") and any(v.type.dtype.is_complex for v in op.operands):
            raise AotgradNotImplementedError(f"{_line(op)}: gradients through products of complex numbers are not available; compute with the parts (x.real, x.imag)")


def _cut(block: Block, ins: list[Value], outs: list[Value], cts: list[Value], results: list[Value], several: bool) -> tuple[Block, tuple[int, ...], tuple[int, ...]]:
    """The part of ``block`` that ``results`` need, stopping at inputs and at outputs; and which inputs and outputs it takes.

    With ``several`` results any cotangent may be absent when backward runs: then what is saved gives every size without them.
    """
    stops = {v: i for i, v in reversed(list(enumerate(outs))) if v not in ins}
    needed: set[Value] = set()
    work = list(results)
    while work:
        v = work.pop()
        if v in needed:
            continue
        needed.add(v)
        if v not in stops and v.op is not None:
            work.extend(v.op.operands)
    kept_outs = tuple(sorted(i for v, i in stops.items() if v in needed))
    kept_ins = _binding(ins, [i for i, v in enumerate(ins) if v in needed], [*(outs[i] for i in kept_outs), *(() if several else cts)], [*results, *cts, *needed])
    new = Block([*(ins[i].type for i in kept_ins), *(outs[i].type for i in kept_outs), *(c.type for c in cts)])
    env: dict[Value, Value] = dict(zip([*(ins[i] for i in kept_ins), *(outs[i] for i in kept_outs), *cts], new.args))
    cut = [op for op in block.ops if any(r in needed and r not in stops for r in op.results)]
    copy_ops(Builder(new), cut, env)
    env.update(zip([outs[i] for i in kept_outs], new.args[len(kept_ins):]))
    new.outputs = [env[r] for r in results]
    return new, kept_ins, kept_outs


def _binding(ins: list[Value], kept: list[int], given: list[Value], seen: list[Value]) -> tuple[int, ...]:
    """``kept`` and further inputs, so that every size symbol in ``seen`` is a dim of some argument; ``given`` are arguments anyway."""
    def symbols(values: Iterable[Value], bare: bool) -> set[str]:
        sizes = [d for v in values for d in v.type.shape if not isinstance(d, int)]
        return {s for d in sizes for s in ([d.as_symbol()] if bare else d.symbols()) if s is not None}

    missing = symbols(seen, False) - symbols([*given, *(ins[i] for i in kept)], True)
    for i, v in enumerate(ins):
        if i not in kept and missing & symbols([v], True):
            kept.append(i)
            missing -= symbols([v], True)
    return tuple(sorted(kept))


# ---- running ------------------------------------------------------------------------------------------------------------------------

def _plan(func: Func, hot: bool = False) -> list[Any]:
    """Slots: arguments first, then results; each step is (callable, operand slots, result slots, slots that no later step reads). ``hot``: what stands between ops that
    are alone becomes one kernel each."""
    slots: dict[Value, int] = {a: i for i, a in enumerate(func.args)}
    steps: list[tuple[Any, list[int], list[int], list[int]]] = []
    last: dict[int, int] = {}
    dense, given = _spread(func), set(func.outputs)
    for n, op in enumerate(func.body.ops):
        where = [slots[o] for o in op.operands]
        for r in op.results:
            slots[r] = len(slots)
        last.update((i, n) for i in (*where, *(slots[r] for r in op.results)))
        fn = _implementation(op) if op.name != "full" or op.result in given else _splat(op)
        if op.name == "broadcast" and op.result in dense:
            fn = _filled(fn)
        elif op.name == "broadcast" and op.result in given and 1 in op.result.type.shape:
            fn = functools.partial(_expanded, op.attrs["shape"], op.attrs["dims"])
        steps.append((fn, where, [slots[r] for r in op.results], []))
    outs = [slots[o] for o in func.outputs]
    asked = set(outs)
    for i, n in last.items():
        if i >= len(func.args) and i not in asked:
            steps[n][3].append(i)
    fresh: set[int] = set()  # results that have their memory to themselves
    for n, op in enumerate(func.body.ops):
        fn, where, results, dead = steps[n]
        if isinstance(opdef.get(op.name).ref, np.ufunc) and opdef.get(op.name).exact and op.result.type.rank and op.result.type.dtype is not bfloat16:
            k = next((k for k, i in enumerate(where) if i in dead and i in fresh and op.operands[k].type == op.result.type), None)
            if k is not None:
                steps[n] = (_into(op, k), where, results, dead)
            fresh.update(results)
        else:
            fresh.difference_update(where)  # its result may show their memory
    silent = [op.name in _QUIET or native.silent(op) for op in func.body.ops]
    quiet = all(silent)
    if hot:
        quiet, steps = _joined(func, steps, slots, silent)
    if len(steps) == 1 and len(steps[0][2]) == 1 and outs == steps[0][2]:
        return [steps[0][0] if steps[0][1] == list(range(len(func.args))) else None, quiet, len(slots), steps, outs]
    return [None, quiet, len(slots), steps, outs]


def _joined(func: Func, steps: list[Any], slots: dict[Value, int], silent: Sequence[bool]) -> tuple[bool, list[Any]]:
    """The steps, those of neighbours that can be one kernel in one, and whether NumPy has no warnings to give in any. Of two dims at most: from three on the memory order
    of results follows that of operands."""
    found: list[Any] = []
    run: list[int] = []
    quiet = True
    for n, op in enumerate([*func.body.ops, None]):
        if op is not None and native.joins(op):
            run.append(n)
            continue
        made = _kernel_of(func, steps, slots, run)
        quiet = quiet and (len(made) < len(run) or all(silent[i] for i in run)) and (op is None or silent[n])
        found += made
        run = []
        if op is not None:
            found.append(steps[n])
    return quiet, found


def _kernel_of(func: Func, steps: list[Any], slots: dict[Value, int], run: list[int]) -> list[Any]:
    ops = [func.body.ops[n] for n in run]
    inside = {r for op in ops for r in op.results}
    later = {o for n, op in enumerate(func.body.ops) if n not in run for o in op.operands} | set(func.outputs)
    taken = list(dict.fromkeys(o for op in ops for o in op.operands if o not in inside))
    given = [r for op in ops for r in op.results if r in later]
    if len(ops) < 2 or not given or any(r.op is not None and r.op.name in _SHOWS for r in given):
        return [steps[n] for n in run]
    block = Block([v.type for v in taken])
    env: dict[Value, Value] = dict(zip(taken, block.args))
    copy_ops(Builder(block), ops, env)
    block.outputs = [env[v] for v in given]
    kernel = native.fused(Func(f"{func.name}_part", block))
    if kernel is None:
        return [steps[n] for n in run]
    where, results = [slots[v] for v in taken], [slots[v] for v in given]
    dead = [i for n in run for i in steps[n][3]]
    places = {i: k for k, i in enumerate(dict.fromkeys([*where, *[i for n in run for i in steps[n][2]]]))}
    again = [(fn, [places[i] for i in at], [places[i] for i in made], [places[i] for i in gone if i not in where]) for fn, at, made, gone in (steps[n] for n in run)]
    plan = [len(places), again, [places[i] for i in results]]

    def joined(*arrays: Any) -> Any:
        out = kernel(*arrays)
        if out is None:
            with np.errstate(all="ignore"):
                outs = _steps(plan, arrays)
            return outs if len(outs) > 1 else outs[0]
        return out

    return [(joined, where, results, dead)]


def _into(op: Op, k: int) -> Callable[..., Any]:
    """The op with its result in the memory of operand ``k``, which nobody reads again."""
    ref: Any = opdef.get(op.name).ref
    return _laid_out(op, lambda *xs: ref(*xs, out=xs[k]))


def _spread(func: Func) -> set[Value]:
    """Results that are broadcasts of something computed: they have memory of their own, as in PyTorch. Those of an argument show its memory."""
    found: set[Value] = set()
    for out in func.outputs:
        way, v = [], out
        while v.op is not None and v.op.name in _VIEWS:
            way.append(v)
            v = v.op.operands[0]
        if v.op is not None:
            found.update(w for w in way if w.op is not None and w.op.name == "broadcast")
    return found


def _origin(v: Value) -> Value:
    """What is shown by ``v``: itself, or what it is a view of."""
    while v.op is not None and v.op.name in _VIEWS:
        v = v.op.operands[0]
    return v


_VIEWS = frozenset(("broadcast", "reshape", "permute"))
_FEW = 4096  # elements, for which NumPy's own choice costs less than what is prepared for many
_QUIET = frozenset(("broadcast", "reshape", "permute", "slice", "concatenate"))  # NumPy has no warnings to give
_SHOWS = _VIEWS | {"slice"}  # results show the memory of the operand, whatever its bits mean


def _expanded(shape: Sequence[int], dims: Sequence[int], x: Any) -> Any:
    return mf.broadcast(x, shape, dims)


def _filled(fn: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Any) -> Any:
        out = fn(x)
        return mf.copy_to_strides(out, mf.pointwise_strides(out.shape, [_strides(out)], False)) if 0 in out.strides else out

    return run


def _splat(op: Op) -> Callable[..., Any]:
    """One number that stands for an array of it."""
    t = op.result.type
    made = np.broadcast_to(_implementation(Op("full", (), [TensorType((), t.dtype)], {**op.attrs, "shape": ()}, (), op.loc))(), t.shape)
    return lambda: made


def _execute(plan: list[Any], arrays: Arrays) -> list[Any]:
    one, quiet, *rest = plan
    if quiet:
        return [one(*arrays)] if one is not None else _steps(rest, arrays)
    with np.errstate(all="ignore"):
        return [one(*arrays)] if one is not None else _steps(rest, arrays)


def _steps(plan: list[Any], arrays: Arrays) -> list[Any]:
    total, steps, outs = plan
    env: list[Any] = [*arrays, *([None] * (total - len(arrays)))]
    for fn, where, results, dead in steps:
        out = fn(*[env[i] for i in where])
        if len(results) == 1:
            env[results[0]] = out
        else:
            for slot, value in zip(results, out):
                env[slot] = value
        for slot in dead:  # its memory may be used again
            env[slot] = None
    return [env[i] for i in outs]


def _line(op: Op) -> str:
    return "" if op.loc is None else f"{op.loc}: "


def _implementation(op: Op) -> Callable[..., Any]:
    definition = opdef.get(op.name)
    if op.name == "host_call":
        one, given = len(op.results) == 1, [o.type for o in op.operands]

        def host(*xs: Any) -> Any:
            found = host_results(op.attrs["call"], xs, given, op.attrs["types"])
            return found[0] if one else found

        return host
    if op.regions:
        one = len(op.results) == 1
        return lambda *xs: interp.run_op(op, xs, {})[0] if one else interp.run_op(op, xs, {})
    if op.name not in _SHOWS and any(v.type.dtype is bfloat16 for v in (*op.operands, *op.results)):
        return _laid_out(op, _in_float32(op))
    if not definition.exact:
        kernel = native.kernel(op)
        if kernel is not None:
            return _laid_out(op, kernel)
    ref, attrs = definition.ref, op.attrs
    assert ref is not None
    dtype = op.result.type.dtype.np

    def run(*xs: Any) -> Any:
        try:
            out = ref(*xs, **attrs)
        except IndexError as error:
            what = "" if op.loc is None else op.loc.what
            raise AotgradRangeError(f"{_line(op)}{error if not what or '{' in what else what}") from None
        except AotgradError:
            raise
        except ValueError as error:
            raise AotgradValueError(f"{_line(op)}{error}") from None
        return out if type(out) is np.ndarray and out.dtype is dtype else np.asarray(out, dtype)

    return _laid_out(op, run)


def _in_float32(op: Op) -> Callable[..., Any]:
    """An op on bfloat16, whose arrays are 16-bit patterns: computed in float32, rounded at the end."""
    ref, encode = opdef.get(op.name).ref, [r.type.dtype is bfloat16 for r in op.results]
    attrs = {k: float32 if v is bfloat16 else v for k, v in op.attrs.items()}
    kinds = [o.type.dtype is bfloat16 for o in op.operands]
    assert ref is not None

    def run(*xs: Any) -> Any:
        found = ref(*[decode(x) if on else x for x, on in zip(xs, kinds)], **attrs)
        outs = found if len(encode) > 1 else (found,)
        made = [encode_bfloat16(np.asarray(o, np.float32)) if on else np.asarray(o, r.type.dtype.np) for o, on, r in zip(outs, encode, op.results)]
        return made if len(made) > 1 else made[0]

    return run


def _laid_out(op: Op, fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn`` with results in the memory order that PyTorch gives them; of interest from two dims on."""
    rank = op.result.type.rank
    if opdef.get(op.name).layouts == "channels_last":
        return lambda *xs: images.laid_out(fn(*xs), xs)
    if op.name == "where":
        if rank > 2:
            return _choose
        few = _like_operands_of(fn) if rank == 2 else fn
        return lambda *xs: few(*xs) if xs[0].size < _FEW else _choose(*xs)
    if rank > 2 and isinstance(opdef.get(op.name).lower, opdef.Scalar):
        return lambda *xs: _like_operands(fn(*xs), xs)
    # NumPy differs where the orders of operands do, kernels where there are gaps
    if rank == 2 and (len(op.operands) > 1 or not opdef.get(op.name).exact) and isinstance(opdef.get(op.name).lower, opdef.Scalar):
        return _like_operands_of(fn)
    if op.name == "concatenate" and rank in (2, 3):
        return lambda *xs: np.ascontiguousarray(fn(*xs))
    if rank == 4 and op.name in _KEEP_CHANNELS_LAST:
        insertion = op.name == "insert"
        return lambda *xs: _like_parts(fn(*xs), xs, insertion)
    return fn


def _like_operands_of(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *xs: out if (out := fn(*xs)).strides == xs[0].strides else _like_operands(out, xs)


_KEEP_CHANNELS_LAST = frozenset(("concatenate", "insert"))


def _strides(x: Any) -> tuple[int, ...]:
    item = x.itemsize
    return tuple([s // item for s in x.strides])


def _like_operands(out: Any, xs: Arrays) -> Any:
    strides = _strides(out)
    same = all(_strides(x) == strides for x in xs) and mf.is_non_overlapping_and_dense(out.shape, strides)
    if same and not (1 in out.shape and mf.is_contiguous(out.shape, strides)):  # strides of single elements are settled below
        return out
    wanted = mf.pointwise_strides(out.shape, [_strides(x) for x in xs])
    return out if strides == wanted else mf.copy_to_strides(out, wanted)


def _choose(condition: Any, x: Any, y: Any) -> Any:
    """``np.where`` in the memory order of its operands, without a second copy."""
    out = mf.empty(condition.shape, x.dtype, mf.pointwise_strides(condition.shape, [_strides(condition), _strides(x), _strides(y)]))
    bits = {4: np.uint32, 8: np.uint64}.get(out.itemsize)
    if bits is None or out.size < _FEW:
        np.copyto(out, y)
        np.copyto(out, x, where=condition)
        return out
    access: Any = [["readonly"]] * 3 + [["writeonly"]]
    with np.nditer([condition, x.view(bits), y.view(bits), out.view(bits)], ["external_loop", "buffered"], access, buffersize=1 << 14) as parts:
        for c, a, b, o in parts:  # without a branch for each element, which costs ten times as much where conditions change
            o[...] = b ^ ((a ^ b) & np.subtract(bits(0), c))
    return out


def _like_parts(out: Any, xs: Arrays, insertion: bool) -> Any:
    """Channels last where all operands with data in them are: the last one of an insertion is what is inserted."""
    found = {mf.suggest_memory_format(x.shape, _strides(x)) for x in (xs[1:] if insertion else xs)}
    if found == {mf.channels_last} and _strides(out) != (wanted := mf.format_strides(out.shape, mf.channels_last)):
        return mf.copy_to_strides(out, wanted)
    return out


