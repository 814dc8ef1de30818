"""The backward engine: walks the tape from outputs to leaves. Iterative, knows no ops, adds gradients through the installed ``add``.

Nodes run when every gradient they wait for has arrived, the latest recorded first (PyTorch's order); leaves accumulate as soon as theirs is complete.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from types import NoneType
from typing import Any, Final

import numpy as np

from . import modes, profiler, recording, tape
from .errors import AotgradArgumentError, AotgradIndexError, AotgradRuntimeError, AotgradTypeError
from .tape import AccumulateGrad, Node, Value

__all__ = ["backward", "grad"]

_Freed: Final = tape.Freed
_BFLOAT16_ONE: Final = 0x3F80


class _Run:
    """One backward pass: what waits for what, what has arrived, what is wanted."""

    __slots__ = ("adds", "buffers", "captured", "keep", "needed", "recorder", "results", "waiting")

    def __init__(self, roots: Sequence[tape.Edge], targets: Sequence[tape.Edge] | None, keep: bool, adds: bool) -> None:
        self.keep, self.adds = keep, adds  # adds: leaves take their gradients, wanted or not
        self.recorder = profiler.state.recorder
        self.buffers: dict[Node, list[Any]] = {}
        self.captured: dict[Node, list[tuple[int, int]]] = {}  # node: (which output, which result)
        self.results: list[Any] = [None] * len(targets or ())
        self.needed: set[Node] | None = None
        starts = list(dict.fromkeys(node for node, _ in roots if node is not None))
        if targets is None:
            self.waiting = _count(starts)
        else:
            for place, (node, index) in enumerate(targets):
                if node is not None:
                    self.captured.setdefault(node, []).append((index, place))
            self.waiting, self.needed = _count_towards(starts, self.captured)
        for node in self.waiting if self.needed is None else self.needed:
            if type(node._saved) is _Freed:
                raise AotgradRuntimeError(tape.FREED_TEXT)

    def put(self, node: Node, index: int, ct: Any, among: Sequence[Any] = ()) -> None:
        """Adds a cotangent, or None, to what has arrived for an output of ``node``. ``among``: what else came with it."""
        buffer = self.buffers.get(node)
        if buffer is None:
            buffer = self.buffers[node] = [None] * node.outputs
        if ct is not None:
            old = buffer[index]
            if old is None:
                buffer[index] = ct
            elif 1 not in old.shape:
                buffer[index] = tape.installed.add(old, ct)
            else:
                box, buffer[index] = [old], None
                del old
                buffer[index] = tape.add_up(box, ct, among)


def _count(starts: list[Node]) -> dict[Node, int]:
    """How many gradients each reachable node waits for."""
    waiting = dict.fromkeys(starts, 0)
    stack = list(starts)
    while stack:
        for child, _ in stack.pop().next_functions:
            if child is not None:
                seen = waiting.get(child)
                if seen is None:
                    waiting[child] = 1
                    stack.append(child)
                else:
                    waiting[child] = seen + 1
    return waiting


def _count_towards(starts: list[Node], captured: Iterable[Node]) -> tuple[dict[Node, int], set[Node]]:
    """The same for the captured nodes and those that lead to them; and the latter, the nodes that have to run.

    Whatever uses a node that leads to a captured one leads there too, so the counts are those of the whole graph.
    """
    users: dict[Node, list[Node]] = {node: [] for node in starts}
    stack = list(starts)
    while stack:
        node = stack.pop()
        for child, _ in node.next_functions:
            if child is not None:
                seen = users.get(child)
                if seen is None:
                    users[child] = [node]
                    stack.append(child)
                else:
                    seen.append(node)
    reached = [node for node in captured if node in users]
    waiting = {node: len(users[node]) for node in reached}
    needed: set[Node] = set()
    while reached:
        for user in users[reached.pop()]:
            if user not in needed:
                needed.add(user)
                if user not in waiting:
                    waiting[user] = len(users[user])
                    reached.append(user)
    return waiting, needed


def _run(run: _Run, starts: list[Node]) -> None:
    """The pass itself. ``starts`` hold their seeds already."""
    waiting, buffers, put, keep = run.waiting, run.buffers, run.put, run.keep
    recorder = run.recorder
    everything = run.needed is None and recorder is None and not recording.state.anomaly
    heap: list[tuple[int, Node]] = []
    leaves: list[AccumulateGrad] = []
    ready = [node for node in starts if waiting.get(node) == 0]
    while True:
        for node in ready:
            if type(node) is AccumulateGrad:
                leaves.append(node)
            else:
                heappush(heap, (-node._seq, node))
        for end in leaves:
            if recorder is None:
                _finish_leaf(run, end)
            else:
                recorder.leaf(_finish_leaf, run, end)
        leaves.clear()
        if not heap:
            return
        node = heappop(heap)[1]
        cts: Any = tuple(buffers.pop(node))
        if everything and node._extra is None and cts[0] is not None:
            if type(node._saved) is _Freed:
                raise AotgradRuntimeError(tape.FREED_TEXT)
            grads: Any = node.apply(cts)
        else:
            grads = _run_node(run, node, cts)
            if grads is None:
                ready = []
                continue
        edges = node.next_functions
        if type(grads) is not tuple or len(grads) != len(edges):
            raise AotgradRuntimeError(tape.wrong_count(node, grads))
        if not keep:
            node.release()
        ready = []
        for (child, index), ct in zip(edges, grads):
            left = waiting.get(child)  # type: ignore[arg-type]
            if left is None:  # no gradient wanted there
                continue
            if ct is not None and child not in buffers and child.outputs == 1:  # type: ignore[union-attr]
                buffers[child] = [ct]  # type: ignore[index]
            else:
                put(child, index, ct, grads)  # type: ignore[arg-type]
            waiting[child] = left = left - 1  # type: ignore[index]
            if not left:
                ready.append(child)  # type: ignore[arg-type]
        cts = grads = ct = None  # a leaf takes over a gradient only if nobody else holds it


def _run_node(run: _Run, node: Node, cts: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """A node with hooks, captured gradients or zeros: hooks on its outputs, then capture, then the node between its own hooks. None: captured only."""
    extra = node._extra
    if extra is not None:
        cts = tape.run_tensor_hooks(extra, cts)
    if run.needed is not None:
        for index, place in run.captured.get(node, ()):
            run.results[place] = cts[index]
        if node not in run.needed:
            return None
    if extra is not None:
        cts = tape.run_pre_hooks(extra, cts)
    recorder, apply = run.recorder, tape.run_apply
    if recording.state.anomaly:
        apply = functools.partial(recording.checked, apply)
    grads = apply(node, cts) if recorder is None else recorder.node(apply, node, cts)
    return grads if extra is None else tape.run_post_hooks(extra, grads, cts)


def _finish_leaf(run: _Run, node: AccumulateGrad) -> None:
    """The leaf's hooks, then its gradient goes to the caller (``grad``) or into ``.grad``."""
    box = run.buffers.pop(node)
    leaf = node.variable
    extra = leaf._extra
    if extra is not None and extra.hooks and box[0] is not None:
        box[0] = tape.call_hooks(extra.hooks, box[0])
    if not run.adds:
        for _, place in run.captured.get(node, ()):
            run.results[place] = box[0]
        return
    hooks = node._extra
    if hooks is not None:
        box = [*tape.run_pre_hooks(hooks, tuple(box))]
    seen = tuple(box) if hooks is not None else ()
    changed = box[0] is not None
    if leaf._requires_grad or not leaf._concrete:  # one that wants no gradient any more gets none
        tape.accumulate(leaf, box)
    if changed:
        accumulated(leaf)
    if hooks is not None:
        tape.run_post_hooks(hooks, (), seen)


def accumulated(leaf: Value) -> None:
    """Runs the hooks that wait for a leaf's new ``.grad``."""
    extra = leaf._extra
    if extra is None or not extra.post_hooks:
        return
    for hook in [*extra.post_hooks.values()]:
        if not isinstance(found := hook(leaf), (Value, NoneType)):
            raise AotgradTypeError(f"post accumulate grad hooks should return None, but got '{type(found).__name__}'; what they change is the tensor's .grad")


def _execute(
    tensors: Sequence[Value], seeds: Sequence[Any], targets: Sequence[Value] | None, keep: bool, create_graph: bool, adds: bool = True,
) -> list[Any]:
    roots = [t if isinstance(t, tuple) else tape.edge_of(t) for t in tensors]
    run = _Run(roots, None if targets is None else [t if isinstance(t, tuple) else tape.edge_of(t) for t in targets], keep, adds)
    for (node, index), seed in zip(roots, seeds):
        assert node is not None  # checked by _seed
        run.put(node, index, seed)
    state, flags, notes = modes.state, modes.flags, recording.state
    grad, inference, outer = state.grad, state.inference, notes.passing
    try:
        modes.enter(create_graph, inference and not create_graph)
        notes.passing = run
        _run(run, list(run.buffers))
    finally:  # without a call, see ``modes.enter``
        if not grad or inference:
            flags.restricted[state.thread], flags.byte[0] = True, 1
        state.grad, state.inference, notes.passing = grad, inference, outer
        modes.settle()
    return run.results


# Arguments --------------------------------------------------------------------------------------------------------------------------------------------


def _as_tensors(given: Any, what: str) -> list[Any]:
    tensors = [given] if isinstance(given, Value) else list(given) if type(given) is list or isinstance(given, Sequence) and not isinstance(given, str) else None
    if tensors is None or not all(isinstance(t, Value) for t in tensors):
        bad = given if tensors is None else next(t for t in tensors if not isinstance(t, Value))
        raise AotgradTypeError(f"{what} must be a Tensor or a sequence of Tensors, but got {type(bad).__name__}")
    return tensors


def _as_ends(given: Any, what: str) -> list[Any]:
    """Tensors, or edges ``(node, output)``."""
    def edge(t: Any) -> bool:
        return isinstance(t, tuple) and len(t) == 2 and isinstance(t[0], Node)

    if edge(given):
        return [given]
    if isinstance(given, Sequence) and any(map(edge, given)):
        return [t if edge(t) else _as_tensors(t, what)[0] for t in given]
    return _as_tensors(given, what)


def _as_seeds(given: Any, count: int, what: str) -> list[Any]:
    seeds = [None] * count if given is None else [given] if isinstance(given, Value) else list(given) if type(given) is list or isinstance(given, Sequence) else [given]
    for seed in seeds:
        if seed is not None and not isinstance(seed, Value):
            raise AotgradTypeError(f"{what}: gradients can be either Tensors or None, but got {type(seed).__name__}")
    if len(seeds) != count:
        raise AotgradRuntimeError(f"got {count} tensors and {len(seeds)} gradients; give one gradient per tensor in {what}, None for scalars")
    return seeds


def _ones(output: Any) -> Any:
    """The gradient a scalar output starts with."""
    dtype = output._dtype
    return output._wrap(np.full(output.shape, _one(dtype), dtype.np) if output.shape else _one(dtype).copy())


@functools.lru_cache(maxsize=32)
def _one(dtype: Any) -> Any:
    return np.asarray(_BFLOAT16_ONE if dtype.name == "bfloat16" else 1, dtype.np)


def _seed(place: int, output: Any, seed: Any) -> Any:
    """The cotangent an output starts with, checked. Of an edge only its node knows more."""
    if isinstance(output, tuple):
        if seed is None:
            raise AotgradRuntimeError(f"grad can be implicitly created only for scalar outputs; give the gradient of element {place}, which is an edge of the graph")
        if not 0 <= output[1] < output[0].outputs:
            raise AotgradIndexError(f"element {place} is output {output[1]} of {output[0].name}, which has {output[0].outputs}")
        return seed
    if not output._requires_grad:
        raise AotgradRuntimeError(
            f"element {place} of tensors does not require grad and does not have a grad_fn; set requires_grad=True on its inputs before computing it")
    shape = tuple(output.shape)
    if seed is None:
        if shape and any(n != 1 for n in shape):
            raise AotgradRuntimeError("grad can be implicitly created only for scalar outputs; give the gradient of an output of shape "
                                      f"{list(shape)}, or reduce it, as in .sum()")
        if output._dtype.is_complex:
            raise AotgradRuntimeError(f"grad can be implicitly created only for real scalar outputs but got {output._dtype}")
        return _ones(output)
    if tuple(seed.shape) != shape:
        raise AotgradRuntimeError(f"Mismatch in shape: grad_output[{place}] has a shape of {list(seed.shape)} and output[{place}] has a shape of {list(shape)}.")
    if seed._dtype.is_complex and not output._dtype.is_complex:
        raise AotgradRuntimeError(f"For complex Tensors, both grad_output and output are required to have the same dtype. Mismatch in dtype: grad_output[{place}] "
                                  f"has a dtype of {seed._dtype} and output[{place}] has a dtype of {output._dtype}.")
    return seed if seed._dtype is output._dtype else tape.cast(seed, output._dtype)


def backward(
    tensors: Any, grad_tensors: Any = None, retain_graph: bool | None = None, create_graph: bool = False, inputs: Any = None,
) -> None:
    """Adds the gradients of ``tensors`` into the ``.grad`` of the leaves, or of ``inputs`` alone.

    ``grad_tensors`` are the gradients of the tensors themselves, each of its tensor's shape, None for scalars. ``retain_graph`` (by default
    ``create_graph``) keeps what the graph saved, so that it can be walked again; ``create_graph`` records the backward pass. Raises
    ``AotgradRuntimeError`` for an output without graph, a non-scalar without gradient, a wrong shape, or a graph already freed.
    """
    outputs = _as_ends(tensors, "tensors")
    seeds = [_seed(i, t, s) for i, (t, s) in enumerate(zip(outputs, _as_seeds(grad_tensors, len(outputs), "grad_tensors")))]
    keep = create_graph if retain_graph is None else bool(retain_graph)
    if inputs is None:
        _execute(outputs, seeds, None, keep, bool(create_graph))
        return
    wanted = _as_tensors(inputs, "inputs")
    if not wanted:
        raise AotgradRuntimeError("`inputs` argument to `backward()` cannot be empty. Leave it out to reach all leaves.")
    _check_inputs(wanted)
    results = _execute(outputs, seeds, wanted, keep, bool(create_graph))
    _accumulate_inner(wanted, results, bool(create_graph))


def _accumulate_inner(wanted: list[Any], results: list[Any], create_graph: bool) -> None:
    """Gradients of ``wanted`` that are no leaves and do not retain theirs; those that do have them."""
    state, flags = modes.state, modes.flags
    grad, inference = state.grad, state.inference
    try:
        modes.enter(create_graph, inference and not create_graph)
        for target, result in {id(t): (t, r) for t, r in zip(wanted, results)}.values():
            if target._node is not None and not (target._extra is not None and target._extra.retains):
                tape.accumulate(target, [result])
    finally:
        if not grad or inference:
            flags.restricted[state.thread], flags.byte[0] = True, 1
        state.grad, state.inference = grad, inference
        modes.settle()


def _check_inputs(wanted: list[Any]) -> None:
    for place, tensor in enumerate(wanted):
        if not isinstance(tensor, tuple) and not tensor._requires_grad:
            raise AotgradRuntimeError(f"One of the differentiated Tensors does not require grad: element {place} of inputs. Set requires_grad=True on it "
                                      "before computing the outputs")


def grad(
    outputs: Any, inputs: Any, grad_outputs: Any = None, retain_graph: bool | None = None, create_graph: bool = False, allow_unused: bool | None = None,
    materialize_grads: bool = False,
) -> tuple[Any, ...]:
    """The gradients of ``outputs`` (weighted by ``grad_outputs``) in ``inputs``, leaves or intermediates, as a tuple; no ``.grad`` changes.

    An input the outputs do not depend on is an error, None with ``allow_unused``, or zeros with ``materialize_grads``. See ``backward`` for the rest.
    """
    if materialize_grads and allow_unused is False:
        raise AotgradArgumentError("Expected allow_unused to be True or not passed when materialize_grads=True, but got: allow_unused=False.")
    tensors = _as_ends(outputs, "outputs")
    wanted = _as_ends(inputs, "inputs")
    if not wanted:
        raise AotgradRuntimeError("`inputs` argument to `grad()` cannot be empty. Give the tensors whose gradients are wanted.")
    seeds = [_seed(i, t, s) for i, (t, s) in enumerate(zip(tensors, _as_seeds(grad_outputs, len(tensors), "grad_outputs")))]
    _check_inputs(wanted)
    keep = create_graph if retain_graph is None else bool(retain_graph)
    results = _execute(tensors, seeds, wanted, keep, bool(create_graph), adds=False)
    for place, (result, tensor) in enumerate(zip(results, wanted)):
        if result is not None:
            continue
        if materialize_grads and not isinstance(tensor, tuple):
            results[place] = tensor._wrap(np.zeros(tuple(tensor.shape), tensor._dtype.np))
        elif not allow_unused:
            raise AotgradRuntimeError(
                f"The differentiated Tensor at index {place} appears to not have been used in the graph. Set allow_unused=True if this is the desired behavior.")
    return tuple(results)
