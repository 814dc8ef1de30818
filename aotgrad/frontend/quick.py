"""The short way of elementwise calls on tensors of one dtype and shape: no binding of arguments, no look-up of a program, one native kernel each way.

A program that was run often enough (``HOT``) is derived once more with symbolic sizes, forward and backward, and compiled. From then on the call itself finds the
kernel: the trampoline compares types and sizes, and where nothing fits the call goes the general way (``dispatch``), which has the same meaning. What is recorded
is an ``OpNode`` like any other; it remakes what the general backward pass needs when its own kernel does not fit, or when the pass is itself recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from aotgrad.ir import Func, TensorType, Value, dims, opdef
from aotgrad.ir.transforms.cleanup import standard
from aotgrad.ir.transforms.custom import runnable
from aotgrad.ir.transforms.rewrite import decompose_block, substitute_func
from aotgrad_runtime import call, dtypes, modes, watchers
from aotgrad_runtime.arrays import DTYPES
from aotgrad_runtime.call import ArgSpec
from aotgrad_runtime.parameter import Parameter
from aotgrad_runtime.tape import FREED, NO_EDGE, AccumulateGrad, Extra, Freed, SavedArray, VersionCell
from aotgrad_runtime.tape import accumulator_of as _accumulator
from aotgrad_runtime.tape import next_sequence as _sequence
from aotgrad_runtime.tensor import Tensor, wrap

from . import detour, eager, kernels, native
from . import saved as saving
from .front import FrontBuilder, Operand, Public, number_operand
from .program import Program
from .promotion import Kind
from .trace import Trace, _stack, _tracing

__all__ = ["HOT", "Quick", "binary", "keep", "kept", "promote", "unary"]

HOT = 150  # calls of one program before it is compiled: about as long as they took
INSTANCES = 16
RANKS = 2  # of more, memory formats are to be kept
_DTYPES = (dtypes.float32, dtypes.float64)
_MOVES = frozenset(("broadcast", "full", "constant"))
_EXACT_INTS = 1 << 53
_new = object.__new__
_flags, _state = modes.flags, modes.state


def _miss(*args: Any) -> None:
    """What a kernel's callable gives for arguments that it does not fit."""


class QuickNode(eager.OpNode):
    """A recorded call. Saved: the arrays (or Python numbers) that its backward kernel reads, inputs then output; None if there are none."""

    __slots__ = ()
    quick: ClassVar[Quick]
    kinds: ClassVar[str]
    lone: ClassVar[int | None]  # the operand that its one edge is of, where a number has none
    active: ClassVar[tuple[bool, ...]]
    inputs: ClassVar[tuple[int, ...]]
    output: ClassVar[bool]
    back: ClassVar[tuple[Any]]  # in a tuple, or it would bind as a method
    gives: ClassVar[tuple[Any, ...]]  # of each input: None, "ct" (the cotangent itself), or which result of the kernel

    def _shown(self) -> saving.Saved | None:
        gone = type(self._saved) is Freed
        kept_arrays = () if gone else self.saved or ()
        first = next((s.data for s in kept_arrays if isinstance(s.data, np.ndarray)), None)
        if first is None:  # nothing is saved: the shape does not matter
            program, dtype = self.quick.program(self.kinds, (1,), dtypes.float32), dtypes.float32
        else:
            dtype = DTYPES[first.dtype]
            program = self.quick.program(self.kinds, first.shape, dtype)
        if gone:
            return None if program.call is None else saving.Saved(program, {}, None)
        found = iter(kept_arrays)
        inputs = {i: kept(next(found), self.edge(i), dtype) for i in self.inputs}
        outputs = {0: next(found)} if self.output else {}
        return None if program.call is None else saving.Saved(program, inputs, outputs)

    def release(self) -> None:
        if self._saved is not None:
            self._saved = FREED

    def general(self, cts: tuple[Any, ...]) -> tuple[Any, ...]:
        """The backward pass as ``OpNode`` does it for the same call."""
        dtype = cts[0]._dtype
        program = self.quick.program(self.kinds, tuple(cts[0].shape), dtype)
        saved = iter(self._saved or ())
        inputs = {i: kept(next(saved), self.edge(i), dtype) for i in self.inputs}
        outputs = {0: next(saved)} if self.output else {}
        return eager.replay(self, (program, self.active, inputs, outputs, Tensor), cts)

    def edge(self, i: int) -> Any:
        """The edge of operand ``i``."""
        if self.lone is None:
            return self.next_functions[i]
        return self.next_functions[0] if i == self.lone else NO_EDGE


def _of_one(apply: Callable[..., tuple[Any, ...]], lone: int) -> Callable[..., tuple[Any, ...]]:
    """``apply`` of a node that has one edge, for operand ``lone``."""
    return lambda self, cts: (apply(self, cts)[lone],)


def _apply(back: Any, gives: tuple[Any, ...], count: int) -> Callable[..., tuple[Any, ...]]:
    """``apply`` of a node class: ``back`` is its kernel (None: cotangents pass through), of ``count`` saved arrays and the cotangent."""
    if back is None:
        places = tuple([g == "ct" for g in gives])

        def through(self: QuickNode, cts: tuple[Any, ...]) -> tuple[Any, ...]:
            ct = cts[0]
            return tuple([ct if on else None for on in places])

        return through

    def packed(self: QuickNode, data: Any) -> Any:  # such as an expanded number: what was saved is row-major, and so are its gradients
        return None if data.flags.c_contiguous else back(*[s.data for s in self._saved or ()], np.ascontiguousarray(data).reshape(data.shape))

    def apply(self: QuickNode, cts: tuple[Any, ...]) -> tuple[Any, ...]:
        ct = cts[0]
        if type(ct) is not Tensor or _state.grad:
            return self.general(cts)
        data, saved = ct._data, self._saved
        if count == 1:
            found = back(saved[0].data, data)
        elif count == 2:
            found = back(saved[0].data, saved[1].data, data)
        else:
            found = back(*[s.data for s in saved or ()], data)
        if found is None and (found := packed(self, data)) is None:
            return self.general(cts)
        if gives == (0, 1):
            return wrap(found[0]), wrap(found[1])
        if gives == (0,):
            return (wrap(found),)
        made = [wrap(d) for d in found] if type(found) is tuple else [wrap(found)]
        return tuple([None if g is None else ct if g == "ct" else made[g] for g in gives])

    return apply


def kept(saved: SavedArray, edge: Any, dtype: Any) -> eager.Kept:
    """A saved array and the edge of its input as what the general way saves."""
    made = _new(eager.Kept)
    made.kept = saved if isinstance(saved.data, np.ndarray) else SavedArray(np.asarray(saved.data, dtype.np))
    node, made.index, made.cls = edge[0], edge[1], Tensor
    leaf = type(node) is AccumulateGrad
    made.node, made.leaf = (None, node.variable) if leaf else (node, None)
    return made


class _Watched:
    """What ``unary`` and ``binary`` need of a ``Quick``, for calls that are watched."""

    __slots__ = ("forward", "nodes")

    def __init__(self, nodes: dict[str, list[Any]]) -> None:
        self.forward: Any = _miss
        self.nodes = nodes


class Quick:
    """The compiled forms of one public function. ``nodes``: by kinds of operands ("t" tensor, "f" Python number), the node class for each set of inputs with
    gradients (a bit each), None where nothing is recorded. ``watched``: the same again, not switched off while somebody watches."""

    __slots__ = ("__weakref__", "_find", "_programs", "forward", "nodes", "public", "watched")

    def __init__(self, public: Public, find: Callable[..., Program]) -> None:
        self.public, self._find = public, find
        self.forward: Any = _miss
        self.nodes: dict[str, list[Any]] = {}
        self.watched = _Watched(self.nodes)
        self._programs: dict[Any, Program] = {}

    def add(self, func: Func, numbers: Sequence[int]) -> None:
        """One more form."""
        first = self.forward is _miss
        if first:
            self.watched.forward = call.make_callable(f"quick_{self.public.name}", _miss)
            self.forward = call.make_callable(f"quick_{self.public.name}", _miss)
        for target in (self.watched.forward, self.forward):
            _callable(target, func, numbers)
        if first:
            detour.register(self)

    def full(self) -> bool:
        """Whether there are forms enough."""
        return self.forward is not _miss and len(self.watched.forward.instances()) >= INSTANCES

    def renew(self) -> None:
        """Called by ``detour``: nothing to do, as these forms are of operands whose dtype decides alone."""

    def pause(self, on: bool) -> None:
        """Called by ``detour``: some thread must see every call of its own."""
        self.forward.suspend(on)

    def program(self, kinds: str, shape: tuple[int, ...], dtype: Any) -> Program:
        """The general program of the same call."""
        key = (kinds, shape, dtype)
        found = self._programs.get(key)
        if found is None:
            if len(self._programs) >= 64:
                self._programs.clear()
            found = self._programs[key] = self._find(self.public, kinds, shape, dtype)
        return found


# ---- making the compiled forms ----------------------------------------------------------------------------------------------------

def promote(public: Public, arguments: dict[str, Any], operands: Sequence[Any], program: Program) -> None:
    """Compiles the short form of a call that ``program`` serves, where there is one."""
    quick = public.quick
    if watchers.state.count:
        program.calls = 0  # later
        return
    if quick is None or len(arguments) != len(operands) or quick.full() or not native.available():
        return
    kinds = "".join("t" if type(x) in (Tensor, Parameter) else "f" if type(x) in (float, int) and public.op.name != "pow" else "-" for x in operands)
    tensors = [x for x in operands if type(x) in (Tensor, Parameter)]
    if not tensors or "-" in kinds:
        return
    first = tensors[0]
    shape, dtype = first._data.shape, first._dtype
    if dtype not in _DTYPES or len(shape) > RANKS or not all(x._dtype is dtype and x._data.shape == shape and x._data.flags.c_contiguous for x in tensors):
        return
    if _elementwise(program.func, TensorType(shape, dtype)):
        _add(quick, kinds, dtype, len(shape), program)


def _elementwise(func: Func, t: TensorType) -> bool:
    """Whether a program maps elements of arrays of one type to those of another."""
    if len(func.outputs) != 1 or func.out_types[0].shape != t.shape or func.outputs[0] in func.args:
        return False
    ops = decompose_block(func.body).ops
    return all(isinstance(opdef.get(op.name).lower, opdef.Scalar) or op.name in _MOVES for op in ops) and any(op.name not in _MOVES for op in ops)


def _symbolic(public: Public, kinds: str, dtype: Any, rank: int) -> Program:
    """The program for any sizes; Python numbers are rank-0 float64 arguments."""
    trace = Trace(f"quick_{public.op.name}", examples={}, hidden=False)
    b = FrontBuilder(trace, True, None)
    t = TensorType(tuple(dims.symbol(f"n{i}") for i in range(rank)), dtype)
    arguments: dict[str, Any] = {}
    for name, kind in zip(public.tensors, kinds):
        v = trace.block.add_arg(t if kind == "t" else TensorType((), dtypes.float64))
        arguments[name] = Operand(Kind(dtype, False, rank), v) if kind == "t" else number_operand(1.0, lambda wanted, v=v: b.to_dtype(v, wanted))
    trace.block.outputs = [public.emit(b, arguments)]
    return Program(substitute_func(Func(trace.name, trace.block), trace.equal.names), public.node_name)


def _callable(target: Any, func: Func, numbers: Sequence[int]) -> None:
    """Compiles ``func`` and lets ``target`` run it; the arguments at ``numbers`` are Python floats."""
    kernel = kernels.build(runnable(standard(func)), func.name)
    specs = [replace(s, exact=len(s.dims) > 1) for s in kernel.arg_specs()]  # strides of empty arrays and single rows reach the result
    for i in numbers:
        specs[i] = ArgSpec("float", dtypes.float64, (), None, i)
    target.add_instance(kernel.instance(specs, False))


def _add(quick: Quick, kinds: str, dtype: Any, rank: int, static: Program) -> None:
    program = _symbolic(quick.public, kinds, dtype, rank)
    out = program.func.out_types[0]
    numbers = [i for i, k in enumerate(kinds) if k == "f"]
    if out.dtype.is_differentiable:
        if out.dtype is not dtype:
            return
        nodes = quick.nodes.get(kinds) or [None] * (1 << len(kinds))
        for bits in range(1, len(nodes)):
            active = tuple(bool(bits >> i & 1) for i in range(len(kinds)))
            if any(active[i] for i in numbers):
                continue
            made = _backward(quick, program, static, kinds, active, nodes[bits] and nodes[bits][0])
            if made is None:
                return
            nodes[bits] = (made, made.inputs, made.output)
        quick.nodes[kinds] = nodes
    elif kinds not in quick.nodes:
        quick.nodes[kinds] = [None] * (1 << len(kinds))
    quick.add(program.func, numbers)


def _backward(quick: Quick, program: Program, static: Program, kinds: str, active: tuple[bool, ...], known: Any) -> Any:
    """The node class for these inputs with gradients (``known``, if there is one, with one more kernel); None where the call keeps the general way."""
    pullback, general = program.pullback(active, (True,)), static.pullback(active, (True,))
    if not {*general.inputs} <= {*pullback.inputs} or not {*general.outputs} <= {*pullback.outputs}:
        return None
    if general.gives != pullback.gives or not all(general.gives) or general.moves:
        return None
    func = standard(pullback.program.func)
    ct = func.args[-1]
    gives, results = _gives(func, ct, active)
    if any(v in func.args for v in results):
        return None
    shape = (pullback.inputs, bool(pullback.outputs), gives)
    back = None if known is None else known.back[0]
    if known is not None and (known.inputs, known.output, known.gives) != shape:
        return None
    if results:
        back = back or call.make_callable(f"quick_{quick.public.name}_backward", _miss)
        func.body.outputs = results
        _callable(back, Func(f"{program.func.name}_backward", func.body), [p for p, i in enumerate(pullback.inputs) if kinds[i] == "f"])
    if known is not None:
        return known
    lone = static.edges[0] if static.edges is not None and len(static.edges) == 1 and len(kinds) > 1 else None  # PyTorch has no edge for the number
    apply = _apply(back, gives, len(pullback.inputs) + shape[1])
    body = {"__slots__": (), "quick": quick, "kinds": kinds, "active": active, "inputs": pullback.inputs, "output": shape[1], "back": (back,), "gives": gives,
            "name": static.name, "lone": lone, "apply": apply if lone is None else _of_one(apply, lone)}
    return type(str(static.name), (QuickNode,), body)


def _gives(func: Func, ct: Value, active: Sequence[bool]) -> tuple[tuple[Any, ...], list[Value]]:
    outputs = iter(func.outputs)
    gives: list[Any] = []
    results: list[Value] = []
    for on in active:
        v = next(outputs) if on else None
        if v is None or v is ct:
            gives.append(None if v is None else "ct")
        else:
            if v not in results:
                results.append(v)
            gives.append(results.index(v))
    return tuple(gives), results


# ---- calls ------------------------------------------------------------------------------------------------------------------------

def keep(x: Any) -> SavedArray:
    """``cell_of(x).save(x._data)``, in one step for a tensor that has no cell yet."""
    extra = x._extra
    if extra is None:
        extra = x._extra = Extra()
    elif extra.inference:
        eager.Kept(x)  # which says what is wrong
    cell = extra.cell
    if cell is None:
        cell = extra.cell = VersionCell()
        saved: SavedArray = _new(SavedArray)
        saved.data = x._data
        cell._saved = [saved]
        return saved
    found: SavedArray = cell.save(x._data)
    return found


def _record(form: Any, edges: Any, operands: Any, data: Any) -> Any:
    """The output of a call, on the tape. ``form``: the node class, which inputs it saves, and whether it saves the output."""
    kind, inputs, output = form
    node = _new(kind)
    node.next_functions = edges
    node._extra = None
    node._seq = _sequence()
    out = _new(Tensor)
    out._data = data
    out._node = node
    out._index = 0
    out._requires_grad = True
    out._extra = None
    if inputs:
        node._saved = saved = [keep(x) if isinstance(x := operands[i], Tensor) else SavedArray(x) for i in inputs]
        if output:
            saved.append(keep(out))
    else:
        node._saved = [keep(out)] if output else None
    return out


def _recorded_pair(form: Any, x: Any, y: Any, data: Any) -> Any:
    """``_record`` for two tensors, written out: the commonest case, and every 50 nanoseconds count."""
    kind, inputs, output = form
    a, b = x._node, y._node
    node = _new(kind)
    node.next_functions = (
        (a, x._index) if a is not None else (_accumulator(x), 0) if x._requires_grad else NO_EDGE,
        (b, y._index) if b is not None else (_accumulator(y), 0) if y._requires_grad else NO_EDGE)
    node._extra = node._saved = None
    node._seq = _sequence()
    out = _new(Tensor)
    out._data = data
    out._node = node
    out._index = 0
    out._requires_grad = True
    out._extra = None
    if inputs:
        node._saved = saved = [keep(x), keep(y)] if len(inputs) == 2 else [keep(y if inputs[0] else x)]
        if output:
            saved.append(keep(out))
    elif output:
        node._saved = [keep(out)]
    return out


def _one_edge(x: Any) -> Any:
    node = x._node
    return (node, x._index) if node is not None else (_accumulator(x), 0)


def unary(quick: Quick | _Watched, slow: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of one tensor that tries the short way first."""
    nodes = quick.nodes

    def run(x: Any) -> Any:
        if (type(x) is Tensor or type(x) is Parameter) and not (_tracing and _stack.traces):
            data = quick.forward(x._data)
            if data is not None:
                if x._requires_grad and (not _flags.restricted or _state.grad) and (form := nodes["t"][1]) is not None:
                    return _record(form, (_one_edge(x),), (x,), data)
                return wrap(data)
        return slow(x)

    return run


def binary(quick: Quick | _Watched, slow: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A function of two operands that tries the short way first."""
    nodes = quick.nodes

    def with_number(x: Any, y: Any) -> Any:
        """One of the two is a tensor; None where there is no short way."""
        first = isinstance(x, Tensor)
        t, number = (x, y) if first else (y, x)
        if type(number) is not float:
            if type(number) is not int or not -_EXACT_INTS < number < _EXACT_INTS:
                return None
            number = float(number)
        data = quick.forward(t._data, number) if first else quick.forward(number, t._data)
        if data is None:
            return None
        if t._requires_grad and (not _flags.restricted or _state.grad) and (form := nodes["tf"][1] if first else nodes["ft"][2]) is not None:
            edge = _one_edge(t)
            if form[0].lone is not None:
                return _record(form, (edge,), (t, number) if first else (number, t), data)
            return _record(form, (edge, NO_EDGE), (t, number), data) if first else _record(form, (NO_EDGE, edge), (number, t), data)
        return wrap(data)

    def run(x: Any, y: Any) -> Any:
        if type(x) is Tensor or type(x) is Parameter:
            if type(y) is Tensor or type(y) is Parameter:
                if not (_tracing and _stack.traces) and (data := quick.forward(x._data, y._data)) is not None:
                    on = (1 if x._requires_grad else 0) + (2 if y._requires_grad else 0)
                    if on and (not _flags.restricted or _state.grad) and (form := nodes["tt"][on]) is not None:
                        return _recorded_pair(form, x, y, data)
                    return wrap(data)
                return slow(x, y)
        elif type(y) is not Tensor and type(y) is not Parameter:
            return slow(x, y)
        if not (_tracing and _stack.traces) and (out := with_number(x, y)) is not None:
            return out
        return slow(x, y)

    return run
