"""Hooks around the nodes of traced values: ``y.grad_fn.register_hook(f)`` in compiled code.

A trace takes note of the call that made each value. Where a hook is registered, that call is emitted once more as an op with a rule of its own, which takes the place of
what it had given: forward it is the call, backward its transpose, then the hooks in Python on (gradients of the inputs, gradients of the outputs). So the backward
program is split there, whichever way it comes about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotgrad.ir import Block, Builder, Op, Value
from aotgrad.ir.host import HostFunction
from aotgrad.ir.transforms.differentiate import differentiate, transpose_into
from aotgrad.ir.transforms.rewrite import decompose_block
from aotgrad_runtime import engine, modes
from aotgrad_runtime.errors import AotgradNotImplementedError, AotgradRuntimeError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.tape import NodeExtra, RemovableHandle, run_post_hooks, run_pre_hooks
from aotgrad_runtime.tensor import ArrayTensor, Tensor, wrap

from .eager import Dual, levels, make_dual
from .front import FrontBuilder, Operand, Public
from .made import Call, Stage
from .node_names import edges_of, node_name
from .rules import Rule, call_traced, fit
from .subtrace import as_value, builder_of
from .trace import Trace, Traced, TracedArray, TracedTensor, current, tracing, user_loc

__all__ = ["called", "followed", "name_of", "register"]

Hook = Callable[..., Any]


class _Hooked(HostFunction):
    """Hooks of a node as a function of arrays: gradients of the inputs (at ``places`` among ``count`` edges) and of the outputs, or of the latter alone."""

    def __init__(self, hooks: NodeExtra, cls: type[Any], count: int, places: Sequence[int], name: str, before: bool) -> None:
        self.hooks, self.cls, self.count, self.places, self.before = hooks, cls, count, places, before
        super().__init__(self._call, name, self._jvp, self._vjp)

    def _run(self, given: Sequence[Any]) -> list[Any]:
        """The hooks on tensors."""
        if self.before:
            return [*run_pre_hooks(self.hooks, tuple(given))]
        grads: list[Any] = [None] * self.count
        for i, g in zip(self.places, given):
            grads[i] = g
        found = run_post_hooks(self.hooks, tuple(grads), tuple(given[len(self.places):]))
        return [found[i] for i in self.places]

    @modes.intact
    def _call(self, *arrays: Any) -> Any:
        with modes.no_grad():
            given = [wrap(x, self.cls) for x in arrays]
            return [np.zeros_like(x._data) if g is None else self._fitted(g, x, i)._data for i, (g, x) in enumerate(zip(self._run(given), given))]

    def _fitted(self, g: Any, like: Any, place: int) -> Any:
        if tuple(g.shape) != tuple(like.shape):
            raise AotgradRuntimeError(f"{self.name}: a hook of the node returned an invalid gradient at index {place if self.before else self.places[place]} - got "
                                      f"{list(g.shape)} but expected shape compatible with {list(like.shape)}")
        return fit(g, like, self.name, place)

    def _jvp(self, primals: Any, tangents: Any) -> Any:
        levels.level += 1
        level = levels.level
        try:
            outs = self._run([make_dual(wrap(x, self.cls), wrap(t, self.cls), level) for x, t in zip(primals, tangents)])
        finally:
            levels.level -= 1
        moved = [o._tangent if isinstance(o, Dual) and o._level == level else None for o in outs]
        return [np.zeros_like(x) if t is None else t._data for x, t in zip(primals, moved)]

    @modes.intact
    def _vjp(self, primals: Any, cts: Any) -> Any:
        leaves = [wrap(x, self.cls) for x in primals]
        for leaf in leaves:
            leaf._requires_grad = True
        with modes.differentiating():
            pairs = [(o, wrap(c, self.cls)) for o, c in zip(self._run(leaves), cts) if o is not None and o._requires_grad]
        found = engine.grad([o for o, _ in pairs], leaves, [c for _, c in pairs], allow_unused=True) if pairs else [None] * len(leaves)
        return [np.zeros_like(x) if g is None else g._data for x, g in zip(primals, found)]


class _Node(Rule):
    """A call as an op with hooks around its transpose. ``edges``: for each edge of the node the operand it leads to (None: it leads nowhere)."""

    def __init__(self, name: str, cls: type[Any], run: Callable[[list[Any]], list[Value]], edges: Sequence[int | None], stages: Sequence[Stage]) -> None:
        self.name, self.cls, self.run, self.edges, self.stages = name, cls, run, edges, stages
        self.reverse, self.pushed = self._reverse, self._pushed
        self.args: list[Any] = []
        self.block = Block()

    def forward(self, args: list[Any]) -> list[Any]:
        trace = _trace()
        self.args, start = args, len(trace.block.ops)
        outs = self.run(args)
        self.block = Block()
        self.block.args = [trace.value_of(x) for x in args]
        self.block.ops, self.block.outputs = trace.block.ops[start:], outs
        return [self.cls._of(trace, v) for v in outs]

    def _derived(self, tangents: Sequence[Any], lb: Any) -> tuple[Any, list[Any]]:
        """A builder, and tangents of the results, whose linear part ``lb`` takes (None: the builder itself)."""
        trace = _trace()
        b = FrontBuilder(trace, True, user_loc())
        ins = [trace.value_of(x) for x in self.args]
        return b, differentiate(b, lb or b, decompose_block(self.block), ins, tangents)[1]

    def _pushed(self, tangents: list[Any]) -> list[Any]:
        cls, trace = self.cls, _trace()
        _, moved = self._derived([None if t is None else trace.value_of(t) for t in tangents], None)
        return [None if t is None else cls._of(trace, t) for t in moved]

    def _reverse(self, cts: list[Any]) -> list[Any]:
        cls, trace = self.cls, _trace()
        given = [None if c is None else trace.value_of(c) for c in cts]
        if len(cts) > 1:  # of a single result they are hooks of the tensor
            given = self._called(self.stages[0], builder_of(trace), given, len(given), True)
        wanted = [i for i in self.edges if i is not None]
        tangents = [Value(trace.value_of(x).type) if i in wanted else None for i, x in enumerate(self.args)]
        aside = Block()
        b, moved = self._derived(tangents, Builder(aside))
        found = dict(zip(sorted(wanted), transpose_into(b, aside.ops, [t for t in tangents if t is not None], moved, given)))
        grads = [None if i is None else found[i] for i in self.edges]
        for stage in self.stages:
            grads = self._in_trace(stage, grads, given) if stage.traced else self._called(stage, b, [*grads, *given], len(grads))
        out: list[Any] = [None] * len(self.args)
        for i, g in zip(self.edges, grads):
            if i is not None and g is not None:
                out[i] = cls._of(trace, g)
        return out

    def _called(self, hooks: NodeExtra, b: Any, given: Sequence[Any], count: int, before: bool = False) -> list[Any]:
        """The first ``count`` of ``given`` (None: none) as the hooks want them, which see all."""
        live = [i for i, c in enumerate(given) if c is not None]
        places = [i for i in live if i < count]
        call = _Hooked(hooks, ArrayTensor if self.cls is TracedArray else Tensor, 0 if before else count, places, self.name, before)
        found = b.emit("host_call", [given[i] for i in live], {"call": call, "types": tuple([given[i].type for i in places]), "effect": not places})
        out: list[Any] = [None] * count
        for i, v in zip(places, found):
            out[i] = v
        return out

    def _in_trace(self, hooks: Stage, grads: list[Any], given: Sequence[Any]) -> list[Any]:
        """Hooks that use values of the function, written into the program."""
        cls, trace = self.cls, _trace()
        seen = [tuple([None if v is None else cls._of(trace, v) for v in vs]) for vs in (grads, given)]
        found = run_post_hooks(hooks, seen[0], tuple([c for c in seen[1] if c is not None]))
        return [None if g is None or old is None else as_value(fit(g, old, self.name, k), trace) for k, (g, old) in enumerate(zip(found, seen[0]))]


def _trace() -> Trace:
    trace = current()
    assert trace is not None
    return trace


def register(x: Any, hook: Hook, uses: bool, before: bool = False) -> RemovableHandle:
    """``hook`` of the node of a traced tensor, behind what it has already. ``uses``: it holds values of the function. ``before``: it is a prehook."""
    trace, call = x._trace, _call(x)
    if call is None or uses and before:
        raise AotgradNotImplementedError(f"{user_loc()}: register_{'pre' * before}hook of the node of a traced value: "
                                         f"{'the hook uses values of the function' if call else 'no function of this package made it in one call'}; use hooks of tensors")
    if uses and any(o in op.operands for op in trace.block.ops for o in call.outs):
        raise AotgradRuntimeError(f"{user_loc()}: register_hook: the hook uses values of the compiled function, and the tensor was used before it was registered; "
                                  "register it right after the tensor is made")
    if not call.stages:
        call.stages.append(Stage(False))
    elif call.stages[-1].traced is uses is False:
        return (call.stages[-1].pre_hooks if before else call.stages[-1].post_hooks).register(hook)
    if uses or call.stages[-1].traced:
        call.stages.append(Stage(uses))
    stage = call.stages[0 if before else -1]
    handle = (stage.pre_hooks if before else stage.post_hooks).register(hook)
    _replace(trace, call, TracedArray if isinstance(x, ArrayTensor) else TracedTensor, uses)
    return handle


# ---- what nodes of traced values show ---------------------------------------------------------------------------------------------------

def _node_of(x: Any) -> tuple[list[Any], _Node]:
    """The call that made a traced tensor, as a node, and its arguments."""
    call = _call(x)
    if call is None or x._trace is not current():
        why = "no function of this package made this value in one call" if call is None else "this value is of a function around the one that asks"
        raise AotgradNotImplementedError(f"{user_loc()}: grad_fn in a compiled function: {why}; use hooks of tensors, or the node of the function's result")
    cls = TracedArray if isinstance(x, ArrayTensor) else TracedTensor
    trace = _trace()
    return _of_function(trace, call, cls) if call.public is None else _of_public(trace, call, call.public, cls)


def name_of(x: Any) -> str:
    """The name of the node of a traced tensor."""
    return _node_of(x)[1].name


def followed(x: Any) -> list[tuple[Any, int]]:
    """For each edge of the node of a traced tensor the tensor it leads to, and which result of its node that is; None where no gradient is wanted."""
    leaves, node = _node_of(x)
    found: list[tuple[Any, int]] = []
    for i in node.edges:
        if i is None:
            found.append((None, 0))
        elif (call := _call(leaves[i])) is None:
            found.append((_outside(leaves[i]), 0))
        else:
            found.append((leaves[i], [v for v in call.outs if v.type.dtype.is_differentiable].index(leaves[i]._value)))
    return found


def _outside(leaf: Any) -> Any:
    """The argument, or the tensor from outside, that a leaf of the program stands for."""
    ledger, made = leaf._trace.ledger, _made(leaf._value)
    owner = None if ledger is None else ledger.owners.get(made, ledger.owners.get(leaf._value))
    if owner is None:
        raise AotgradNotImplementedError(f"{user_loc()}: next_functions in a compiled function: what the node leads to was not made by one call of a function of this "
                                         "package, and is no argument; use hooks of tensors")
    return owner if id(owner) in ledger.arguments else ledger.reals.get(id(owner), owner)


def called(x: Any, cts: Sequence[Any]) -> Any:
    """The gradients of the inputs of the call that made a traced tensor, for these of its results: the node called by hand."""
    leaves, node = _node_of(x)
    with modes.differentiating():
        places = [leaf._value for leaf in leaves]
        for i, v in enumerate(places):
            if v in places[:i]:  # each place has a gradient of its own
                leaves[i] = node.cls._of(x._trace, builder_of(x._trace).clone(v))
        outs = node.forward(leaves)
        most = sum(o._dtype.is_differentiable for o in outs)
        if len(cts) != most:
            raise AotgradTypeError(f"{user_loc()}: {node.name} takes {most} gradient{'s' * (most > 1)}, one per output, but got {len(cts)}")
        given = iter(cts)
        seeds = [next(given) if o._dtype.is_differentiable else None for o in outs]
        for o, c in zip(outs, seeds):
            if c is not None and not isinstance(c, Tensor):
                raise AotgradTypeError(f"{user_loc()}: {node.name}: a gradient must be a Tensor or None, but got {type(c).__name__}")
            if c is not None and tuple(c.shape) != tuple(o.shape):
                raise AotgradValueError(f"{user_loc()}: {node.name}: a gradient has shape {list(c.shape)}, the output {list(o.shape)}")
        found = node._reverse([None if c is None else node.cls._of(_trace(), as_value(c, _trace())) for c in seeds])
    grads = tuple([None if i is None else found[i] for i in node.edges])
    return grads[0] if len(grads) == 1 else grads


def several(x: Any) -> bool:
    """Whether the node of a traced tensor has several outputs."""
    call = _call(x)
    return call is not None and sum(v.type.dtype.is_differentiable for v in call.outs) > 1


def _call(x: Any) -> Call | None:
    """The call that made a traced tensor; of a ``Function`` its op is the call."""
    trace, value, op = x._trace, x._value, _made(x._value).op
    if value not in trace.calls and op is not None and op.name == "custom":
        shown = {_made(o.results[0]): o.results[0] for o in trace.block.ops if o.name == "hook"}  # the last of them counts
        call = Call(None, op, {}, tuple([shown.get(r, r) for r in op.results]))
        trace.calls.update(dict.fromkeys(call.outs, call))
    return trace.calls.get(value)  # type: ignore[no-any-return]


def _replace(trace: Trace, call: Call, cls: type[Any], last: bool) -> None:
    """Puts the call with its hooks in the place of what made its results; ``last``: at the end."""
    block = trace.block
    start = len(block.ops)
    with tracing(trace), modes.differentiating():
        leaves, rule = _of_function(trace, call, cls) if call.public is None else _of_public(trace, call, call.public, cls)
        op: Any = call_traced(leaves, rule)[0]._value.op
    new = block.ops[start:]
    del block.ops[start:]
    outs = [_made(v) for v in call.outs]
    results = [*op.results]
    marks = [o for o in block.ops if o.name == "hook" and _made(o.results[0]) in outs]  # hooks of tensors come behind
    block.ops[:] = [o for o in block.ops if o not in marks]
    at = max(i for i, o in enumerate(block.ops) for v in outs if v.op is o) + 1
    for j, v in enumerate(outs):
        assert v.op is not None
        inner = Value(v.type, v.op, v.index)
        v.op.results = tuple([inner if r is v else r for r in v.op.results])
        for other in block.ops[:at]:  # parts of the call that read it, of which nobody reads the results any more
            other.operands = [inner if o is v else o for o in other.operands]
        results[j] = v
        v.op, v.index = op, j
    op.results = tuple(results)
    at = len(block.ops) if last else at
    block.ops[at:at] = [*new, *marks]


def _made(v: Value) -> Value:
    """The value that hooks of the tensor were put behind."""
    while v.op is not None and v.op.name == "hook":
        v = v.op.operands[0]
    return v


def _of_function(trace: Trace, call: Call, cls: type[Any]) -> tuple[list[Any], _Node]:
    op = call.emit
    assert isinstance(op, Op)
    leaves = [cls._of(trace, v) for v in op.operands]
    moving = op.attrs["moving"]
    edges = [i if i in moving and leaves[i].requires_grad else None for i in range(max(moving) + 1)]

    def run(args: list[Any]) -> list[Value]:
        return [*builder_of(_trace()).emit("custom", [x._value for x in args], op.attrs, op.regions)]

    return leaves, _Node(op.attrs["name"], cls, run, edges, call.stages)


def _of_public(trace: Trace, call: Call, public: Public, cls: type[Any]) -> tuple[list[Any], _Node]:
    arguments, leaves = _leaves(trace, call, cls)
    operands = [x for t in public.tensors if (given := arguments.get(t)) is not None for x in (given if isinstance(given, list) else [given])]
    edges, name = _edges(public, arguments, operands, leaves), node_name(public, arguments, operands)
    return leaves, _Node(name, cls, lambda args: _again(call, args), edges, call.stages)


def _leaves(trace: Trace, call: Call, cls: type[Any]) -> tuple[dict[str, Any], list[Any]]:
    """The arguments with tensors for values, and these tensors, one for each place."""
    leaves: list[Any] = []

    def tensor(x: Any) -> Any:
        if isinstance(x, Operand):
            if x.value is None:
                return x.number
            x = cls._of(trace, x.value)
        elif isinstance(x, Tensor):
            x = cls._of(trace, trace.value_of(x) if isinstance(x, Traced) else as_value(x, trace))
        else:
            return x
        leaves.append(x)
        return x

    return {k: [tensor(v) for v in x] if isinstance(x, list) else tensor(x) for k, x in call.arguments.items()}, leaves


def _again(call: Call, args: Sequence[Any]) -> list[Value]:
    given = iter(args)

    def placed(x: Any) -> Any:
        if isinstance(x, Operand):
            return x if x.value is None else Operand(x.kind, next(given)._value)
        return next(given) if isinstance(x, Tensor) else x

    return [*call.again(_trace(), {k: [placed(v) for v in x] if isinstance(x, list) else placed(x) for k, x in call.arguments.items()})]


def _edges(public: Public, arguments: dict[str, Any], operands: Sequence[Any], leaves: Sequence[Any]) -> list[int | None]:
    """For each edge of the node that an eager call makes: the leaf it leads to, None where no gradient is wanted."""
    places = {id(x): i for i, x in enumerate(leaves)}
    taken = [public.op.name != "pow" or isinstance(x, Tensor) for x in operands]
    args = [places.get(id(x)) for x, on in zip(operands, taken) if on]
    moves = [i is None or leaves[i]._dtype.is_differentiable for i in args]
    edges = edges_of(public, arguments, taken, moves) or range(len(args))
    return [None if k is None or (i := args[k]) is None or not leaves[i].requires_grad else i for k in edges]
