"""The graph that backward walks: its nodes, edges to them, and hooks around the tensors it saves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from aotgrad.frontend.boundary import guard
from aotgrad.frontend.joint_hooks import Joint, Member, Watch
from aotgrad.frontend.ledger import twin
from aotgrad.frontend.trace import Traced, current, user_loc
from aotgrad_runtime import recording
from aotgrad_runtime.errors import AotgradNotImplementedError, AotgradRuntimeError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.tape import Node, RemovableHandle, cell_of, edge_of
from aotgrad_runtime.tensor import Tensor

__all__ = [
    "GradientEdge", "Node", "allow_mutation_on_saved_tensors", "disable_saved_tensors_hooks", "get_gradient_edge", "increment_version", "register_multi_grad_hook",
    "save_on_cpu", "saved_tensors_hooks",
]


class saved_tensors_hooks(recording.asked_hooks):
    """Context: what operations inside save for backward goes through ``pack_hook(tensor)``; backward reads what ``unpack_hook`` makes of its result.

    The innermost pair of the thread counts. The pack hook must not change the tensor in place; the unpack hook returns a tensor of the same values. Raises
    ``AotgradRuntimeError`` and ``AotgradTypeError`` where they do not.

    >>> import aotgrad as ag
    >>> x = ag.tensor([1.0, 2.0], requires_grad=True)
    >>> with ag.autograd.graph.saved_tensors_hooks(lambda t: t.numpy().copy(), ag.from_numpy):
    ...     y = (x * x).sum()
    >>> y.backward()
    >>> x.grad
    tensor([2., 4.])
    """

    def __init__(self, pack_hook: Callable[[Any], Any], unpack_hook: Callable[[Any], Any]) -> None:
        for name, hook in (("pack_hook", pack_hook), ("unpack_hook", unpack_hook)):
            if not callable(hook):
                raise AotgradTypeError(f"saved_tensors_hooks: {name} must be callable, got {type(hook).__name__}")
        self.pack_hook, self.unpack_hook = self.pair = pack_hook, unpack_hook

    def __enter__(self) -> None:
        if current() is not None:
            raise AotgradNotImplementedError(f"{user_loc()}: saved_tensors_hooks: not available in a traced function, where nothing is saved yet; enter it around the "
                                             "call of the compiled function")
        hooks = recording.state.hooks
        if hooks and hooks[-1][0] is None:
            raise AotgradRuntimeError(hooks[-1][1])
        super().__enter__()


class save_on_cpu(saved_tensors_hooks):
    """Context: saved tensors are copied. Everything is on the CPU here; the copies are independent of later writes by themselves."""

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        super().__init__(lambda t: t.clone(), lambda t: t)
        self.entered: list[bool] = []

    def __enter__(self) -> None:
        self.entered.append(current() is None)  # traced, there is nothing to do
        if self.entered[-1]:
            super().__enter__()

    def __exit__(self, *exc: object) -> None:
        if self.entered.pop():
            super().__exit__(*exc)


class disable_saved_tensors_hooks(recording.asked_hooks):
    """Inside, entering ``saved_tensors_hooks`` is an error with this message; so is entering this where hooks are active."""

    def __init__(self, error_message: str) -> None:
        self.pair = None, error_message

    def __enter__(self) -> None:
        if recording.state.hooks and recording.state.hooks[-1][0] is not None:
            raise AotgradRuntimeError(self.pair[1])
        super().__enter__()


@contextmanager
def allow_mutation_on_saved_tensors() -> Iterator[None]:
    """Nothing to allow: a saved tensor that is written to keeps its old values for backward anyway, by copy on write."""
    yield


class GradientEdge(NamedTuple):
    """Where a gradient flows: a node, and which of its outputs. ``autograd.grad`` and ``backward`` take it for a tensor."""

    node: Node
    output_nr: int


def get_gradient_edge(tensor: Any) -> GradientEdge:
    """The edge of a tensor that requires grad. For a leaf it leads to its ``AccumulateGrad``."""
    if not isinstance(tensor, Tensor) or not tensor._requires_grad:
        raise AotgradRuntimeError("It is not possible to get the gradient edge for a Tensor that does not require gradients")
    node, index = edge_of(tensor)
    assert node is not None
    return GradientEdge(node, index)


def increment_version(tensor: Any) -> None:
    """Counts a change of the tensor's memory that was made elsewhere; what is saved of it is copied first, so call it before the change."""
    for t in [tensor] if isinstance(tensor, Tensor) else list(tensor):
        if t.is_inference():
            raise AotgradRuntimeError("increment_version: inference tensors do not track version counter")
        cell_of(t).bump()


class _MultiHandle(RemovableHandle):
    __slots__ = ("handles",)

    def __init__(self, handles: Sequence[RemovableHandle]) -> None:
        self.handles = handles
        self.id = handles[0].id if handles else -1

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()


def register_multi_grad_hook(tensors: Sequence[Any], fn: Callable[..., Any], *, mode: str = "all") -> RemovableHandle:
    """``mode="all"``: calls ``fn(grads)`` once in a backward pass, when the last of the tensors' gradients has arrived; None for a tensor whose gradient is not
    computed. ``mode="any"``: calls ``fn(grad)`` with the first.

    A gradient is waited for if its tensor takes part in the pass; which do is seen from the graph of the tensor that comes first.
    """
    if mode not in ("all", "any"):
        raise AotgradValueError(f"Expects mode to be one of ('all', 'any') but got {mode}")
    joint = Joint(fn, mode, len(tensors))
    given = [twin(t) for t in tensors]
    if any(isinstance(t, Traced) for t in given):
        if len({id(t._trace) for t in given}) > 1:
            raise AotgradNotImplementedError(f"{user_loc()}: register_multi_grad_hook: some of the tensors belong to the body of a loop or branch, others do not; "
                                             "register a hook on each of them")
        return _MultiHandle([t.register_hook(Member(joint, i)) for i, t in enumerate(given)])
    watch = Watch(joint, [edge_of(t)[0] for t in tensors])
    return _MultiHandle([t.register_hook(watch.hook(i)) for i, t in enumerate(tensors)])


guard(globals(), [n for n in __all__ if n != "Node"])
