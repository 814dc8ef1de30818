"""``backward()`` and ``autograd.grad`` on traced tensors: the program written so far is differentiated where it stands, and the gradients are written behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aotgrad.ir import Block, Op, Value, opdef
from aotgrad.ir.transforms.differentiate import differentiate, transpose_into
from aotgrad.ir.transforms.rewrite import close_over, free_values, key_part, substitute_here
from aotgrad.ir.transforms.stabilise import stabilise_block
from aotgrad_runtime import engine, modes
from aotgrad_runtime.errors import AotgradNotImplementedError, AotgradRuntimeError, AotgradTypeError
from aotgrad_runtime.tape import FREED_TEXT, cell_of
from aotgrad_runtime.tensor import Tensor

from . import inplace, ledger, placement
from .front import FrontBuilder
from .hooks import HookFunction
from .ledger import AFTER, Followed, Ledger, real
from .subtrace import as_value, builder_of
from .trace import Trace, Traced, TracedTensor, current, user_loc

__all__ = ["backward", "check_inputs", "grad", "gradients_of", "method", "traced"]


class _Standing(FrontBuilder):
    """Writes the primal again, where a program stands already: ops that are there give their results."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace, True, None)
        self.seen = {_key(op, op.operands): op.results for op in trace.block.ops if not op.regions}

    def append_copy(self, op: Op, operands: Sequence[Value]) -> tuple[Value, ...]:
        """The results of an equal op, calls of Python included: they are made once."""
        if op.regions:
            return super().append_copy(op, operands)
        key = _key(op, operands)
        found = self.seen.get(key)
        if found is None:
            found = self.seen[key] = super().append_copy(op, operands)
        return found


def _key(op: Op, operands: Sequence[Value]) -> Any:
    return op.name, tuple(map(id, operands)), tuple([(k, key_part(v)) for k, v in op.attrs.items()]) if op.attrs else ()


# ---- the gradient of a program that is being written ----------------------------------------------------------------------------------------

def _path(trace: Trace, outs: Sequence[Value], wanted: Sequence[Value]) -> list[Op]:
    """The ops between ``wanted`` and ``outs``, in order."""
    live = set(wanted)
    after = []
    for op in trace.block.ops:
        if any(o in live for o in _moving(op)):
            live.update(r for r in op.results if r.type.dtype.is_differentiable)
            after.append(op)
    needed = set(outs)
    path = []
    for op in reversed(after):
        if any(r in needed for r in op.results):
            needed.update(_moving(op))
            path.append(op)
    return path[::-1]


def _moving(op: Op) -> Sequence[Value]:
    """The operands that a derivative may come from."""
    return () if op.name == "stop_gradient" else op.operands[1:] if op.name == "graft" else op.operands


def _pieces(path: Sequence[Op], wanted: Sequence[Value]) -> list[list[Op]]:
    """Cut behind every op that makes one of ``wanted``: its gradient is asked there."""
    inner = {v for v in wanted if v.op is not None}
    pieces: list[list[Op]] = [[]]
    for op in path:
        pieces[-1].append(op)
        if any(r in inner for r in op.results):
            pieces.append([])
    return [p for p in pieces if p]


class Differentiated:
    """The linear part of what lies between ``wanted`` and ``outs``."""

    def __init__(self, trace: Trace, outs: Sequence[Value], wanted: Sequence[Value]) -> None:
        self.trace, self.outs = trace, outs
        substitute_here(trace.block, trace.equal.names)  # sizes that were found equal since an op was written: composites check them where they become their bodies
        self.path = _path(trace, outs, wanted)
        self.aside = Block()
        self.lb = FrontBuilder(trace, True, None)
        self.lb.block = self.aside
        self.seeds = {v: Value(v.type) for v in wanted}
        self.primal: dict[Value, Value] = {}
        self.tangents: dict[Value, Value] = dict(self.seeds)
        pb = _Standing(trace)
        pieces = _pieces(self.path, wanted)
        later = [set(outs)]
        for piece in reversed(pieces):
            later.append({*later[-1], *(o for op in piece for o in op.operands)})
        for piece, used in zip(pieces, reversed(later[:-1])):
            self._piece(pb, piece, used)

    def _piece(self, pb: FrontBuilder, ops: list[Op], used: set[Value]) -> None:
        ins = free_values(ops, [], [])
        outs = [r for op in ops for r in op.results if r in used]
        block = stabilise_block(close_over(ops, ins, outs))
        made, moved = differentiate(pb, self.lb, block, [self.primal.get(v, v) for v in ins], [self.tangents.get(v) for v in ins])
        for v, new, t in zip(outs, made, moved):
            if new is not v:
                self.primal[v] = new
            seed = self.seeds.get(v)
            if t is not None:
                self.tangents[v] = t if seed is None else self.lb.add(t, seed)

    def pull(self, b: FrontBuilder, cts: Sequence[Value]) -> list[Any]:
        """Cotangents of what is wanted; None where nothing arrives."""
        found = transpose_into(b, self.aside.ops, list(self.seeds.values()), [self.tangents.get(o) for o in self.outs], cts)
        return [c if c is None or c.type.layout == v.type.layout else b.relayout(c, layout=v.type.layout) for c, v in zip(found, self.seeds)]


def _saves(op: Op) -> bool:
    return op.name != "graft" and not isinstance(opdef.get(op.name).derivative, (opdef.Linear, opdef.Zero))


def gradients_of(outs: Sequence[Any], cts: Sequence[Any], wanted: Sequence[Any], keep: bool, create: bool) -> list[Any]:
    """Gradients of ``outs`` (weighted by ``cts``; None: 1) in the values ``wanted``, as traced tensors; None where there is none."""
    trace = current()
    assert trace is not None
    b = builder_of(trace)
    values = [trace.value_of(o) for o in outs]
    seeds = [_seed(b, i, o, v, c, trace) for i, (o, v, c) in enumerate(zip(outs, values, cts))]
    run = Differentiated(trace, values, wanted)
    used = [r for op in run.path if _saves(op) for r in op.results]
    if trace.ledger is not None:
        if not trace.ledger.freed.isdisjoint(used):
            raise AotgradRuntimeError(f"{user_loc()}: {FREED_TEXT}")
        trace.ledger.renewed.update(run.primal)
        if not keep:
            trace.ledger.freed.update(used)
    found = run.pull(b, seeds)
    if not create:
        found = [None if g is None else b.stop_gradient(g, reverse=True) for g in found]
    return placement.unsure([None if g is None else TracedTensor._of(trace, g) for g in found])  # type: ignore[no-any-return]


def _seed(b: FrontBuilder, place: int, out: Any, v: Value, seed: Any, trace: Trace) -> Value:
    if not trace.requires_grad(v):
        raise AotgradRuntimeError(f"{user_loc()}: element {place} of tensors does not require grad and does not have a grad_fn; set requires_grad=True on its inputs "
                                  "before computing it")
    shape = tuple(v.type.shape)
    if seed is None:
        if any(trace.example(n) != 1 for n in shape):
            raise AotgradRuntimeError(f"{user_loc()}: grad can be implicitly created only for scalar outputs; give the gradient of an output of shape "
                                      f"{[trace.example(n) or n for n in shape]}, or reduce it, as in .sum()")
        if v.type.dtype.is_complex:
            raise AotgradRuntimeError(f"{user_loc()}: grad can be implicitly created only for real scalar outputs but got {v.type.dtype}")
        return b.full_like(v, 1)
    given = as_value(ledger.twin(seed), trace)
    if len(given.type.shape) != len(shape) or any(trace.canonical(x) != trace.canonical(y) and trace.example(x) != trace.example(y)
                                                  for x, y in zip(given.type.shape, shape)):
        raise AotgradRuntimeError(f"{user_loc()}: Mismatch in shape: grad_output[{place}] has a shape of {[trace.example(n) or n for n in given.type.shape]} and "
                                  f"output[{place}] has a shape of {[trace.example(n) or n for n in shape]}.")
    for x, y in zip(given.type.shape, shape):
        b.equate(x, y, "grad_output")
    given = b.to_dtype(b.refresh(given), v.type.dtype)
    return given if given.type.layout == v.type.layout else b.relayout(given, layout=v.type.layout)


# ---- backward() ---------------------------------------------------------------------------------------------------------------------------

def traced(*tensors: Any) -> bool:
    """Whether a gradient of ``tensors`` is part of the program that is being written; a graph from outside is refused there."""
    trace = current()
    if trace is None or trace.ledger is None:
        return any(isinstance(t, Traced) for t in tensors)
    for t in tensors:
        if real(t) and t._node is not None:
            raise AotgradTypeError(f"{user_loc()}: backward() in a compiled function on a tensor that was computed outside: its graph is no part of the program; "
                                   "compute it inside, or call backward() outside")
    return any(isinstance(ledger.twin(t), Traced) for t in tensors)


def method(self: Any, gradient: Any = None, retain_graph: bool | None = None, create_graph: bool = False, inputs: Any = None) -> None:
    """Adds the gradient of this tensor into ``.grad`` of the leaves it depends on (or of ``inputs``); see ``autograd.backward``.

    A tensor with more than one element needs ``gradient``, of its shape.
    """
    backward([self], [gradient], retain_graph, create_graph, inputs)


def backward(tensors: Any, grad_tensors: Any = None, retain_graph: bool | None = None, create_graph: bool = False, inputs: Any = None) -> None:
    """Adds the gradients of ``tensors`` into the ``.grad`` of the leaves, or of ``inputs`` alone.

    ``grad_tensors`` are the gradients of the tensors themselves, each of its tensor's shape, None for scalars. ``retain_graph`` (by default
    ``create_graph``) keeps what the graph saved, so that it can be walked again; ``create_graph`` records the backward pass. In a compiled function it becomes part of
    the program, and every call leaves the gradients in ``.grad``. Raises
    ``AotgradRuntimeError`` for an output without graph, a non-scalar without gradient, a wrong shape, or a graph already freed.
    """
    outs = [tensors] if isinstance(tensors, Tensor) else tensors
    if type(outs) is not list and not isinstance(outs, Sequence) or not traced(*outs):
        engine.backward(tensors, grad_tensors, retain_graph, create_graph, inputs)
        return
    found = _ledger("backward()")
    modes.state.asked += 1  # which tensors require gradients matters
    outs = [ledger.twin(t) for t in outs]
    seeds = engine._as_seeds(grad_tensors, len(outs), "grad_tensors")
    if inputs is None:
        owners = _leaves(found, outs)
    else:
        owners = [ledger.twin(t) for t in ([inputs] if isinstance(inputs, Tensor) else inputs)]
        if not owners:
            raise AotgradRuntimeError("`inputs` argument to `backward()` cannot be empty. Leave it out to reach all leaves.")
        check_inputs(owners)
    keep = create_graph if retain_graph is None else bool(retain_graph)
    grads = gradients_of(outs, seeds, [o._leaf for o in owners], keep, create_graph)
    for owner, g in zip(owners, grads):
        if g is not None:
            _accumulate(found, owner, _hooked(found, owner, g), create_graph)
    for owner, g in zip(owners, grads):
        if g is not None:
            _followed(found, owner, create_graph)


def grad(outputs: Sequence[Any], inputs: Sequence[Any], grad_outputs: Sequence[Any] | None, retain_graph: bool | None, create_graph: bool, allow_unused: bool | None,
         materialize_grads: bool) -> tuple[Any, ...]:
    """``autograd.grad`` as part of the program that is being written."""
    if materialize_grads and allow_unused is False:
        raise AotgradRuntimeError("Expected allow_unused to be True or not passed when materialize_grads=True, but got: allow_unused=False.")
    trace = current()
    assert trace is not None
    modes.state.asked += 1
    outs, wanted = [ledger.twin(t) for t in outputs], [ledger.twin(t) for t in inputs]
    for x in wanted:
        if not isinstance(x, Traced):
            raise AotgradTypeError(f"{user_loc()}: autograd.grad in a compiled function: inputs must be tensors, not {type(x).__name__}; nodes of a graph are not there")
    check_inputs(wanted)
    values = [x._leaf if x._trace is trace else trace.value_of(x) for x in wanted]
    keep = create_graph if retain_graph is None else bool(retain_graph)
    seeds = engine._as_seeds(grad_outputs, len(outs), "grad_outputs")
    found = gradients_of(outs, seeds, list(dict.fromkeys(values)), keep, create_graph)
    at = dict(zip(dict.fromkeys(values), found))
    results = [at[v] for v in values]
    for i, (g, v) in enumerate(zip(results, values)):
        if g is None and materialize_grads:
            results[i] = TracedTensor._of(trace, trace.builder.zeros(v))
        elif g is None and not allow_unused:
            raise AotgradRuntimeError(f"{user_loc()}: The differentiated Tensor at index {i} appears to not have been used in the graph. Set allow_unused=True if this "
                                      "is the desired behavior.")
    return tuple(results)


def check_inputs(wanted: Sequence[Any]) -> None:
    """Gradients can be asked of what requires them."""
    for place, x in enumerate(wanted):
        if not x.requires_grad:
            raise AotgradRuntimeError(f"{user_loc()}: One of the differentiated Tensors does not require grad: element {place} of inputs. Set requires_grad=True on it "
                                      "before computing the outputs")


def _ledger(what: str) -> Ledger:
    trace = current()
    if trace is None or trace.ledger is None:
        raise AotgradTypeError(f"{user_loc()}: {what} is not available here: in built libraries use ag.grad or ag.value_and_grad, whose gradients are results "
                               "(aotgrad build --grad); under vmap and in rules of your own, ag.grad")
    if trace.parent is not None:
        raise AotgradNotImplementedError(f"{user_loc()}: {what} in the body of a loop, a branch or a transform; use ag.grad or ag.value_and_grad of a function there")
    return trace.ledger  # type: ignore[no-any-return]


def _leaves(found: Ledger, outs: Sequence[Any]) -> list[Any]:
    """The tensors whose ``.grad`` a backward pass from ``outs`` reaches."""
    trace = found.trace
    todo = [o._value for o in outs]
    seen, leaves = set(todo), {}
    while todo:
        v = todo.pop()
        if v in trace.requires and v in found.owners:
            if found.continues(v):
                raise AotgradNotImplementedError(f"{user_loc()}: backward() in a compiled function reaches a tensor computed outside, whose graph goes on there: "
                                                 "give inputs=, use ag.autograd.grad, or call backward() outside")
            leaves[v] = found.owners[v]
        elif v.op is not None:
            new = [o for o in _moving(v.op) if o.type.dtype.is_differentiable and o not in seen]
            seen.update(new)
            todo += new
    order = {v: i for i, v in enumerate(found.owners)}
    return [leaves[v] for v in sorted(leaves, key=lambda v: order[v])]


def _hooked(found: Ledger, owner: Any, g: Any) -> Any:
    """The complete gradient, after the hooks that the leaf has outside."""
    x = found.reals.get(id(owner))
    if x is None:
        return g
    extra = x._extra
    found.hooked[id(owner)] = owner
    if extra is None or not extra.hooks:
        return g
    call = HookFunction(Tensor)
    call.hooks = extra.hooks
    out = builder_of(found.trace).emit("host_call", [g._value], {"call": call, "types": (g._value.type,)})
    return TracedTensor._of(found.trace, out[0])


def _followed(found: Ledger, owner: Any, create: bool) -> None:
    """Hooks that wait for the new ``.grad`` run when it is there, at the end of a call; until then nothing may need what they can change."""
    x = found.reals.get(id(owner))
    if x is None or x._extra is None or not x._extra.post_hooks:
        return
    if id(owner) in found.after or not found.outside(owner):
        raise AotgradNotImplementedError(f"{user_loc()}: {AFTER}")
    now = found.gradient(owner).now
    views = [v for t in (owner, now) for ref in cell_of(t).views or () if (v := ref()) is not None]
    found.after[id(owner)] = Followed(owner, owner._value, now, {t._value for t in (owner, now, *views)}, found.trace.block.ops[-1], create)


@modes.intact
def _accumulate(found: Ledger, owner: Any, g: Any, create: bool) -> None:
    entry = found.gradient(owner)
    if entry.now is None:
        entry.now = g
        return
    if create:
        entry.now = entry.now + g
        return
    with modes.no_grad():
        inplace.store(entry.now, entry.now + g, "backward()")
