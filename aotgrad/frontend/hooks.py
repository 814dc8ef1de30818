"""Tensor hooks in traced code.

``y.register_hook(f)`` on a traced value marks it with the op ``hook``, right where the value is made, so that all of its uses are covered as in eager code. The
compiled program is cut there when a call is recorded, and the hook is registered on a real tensor; gradients computed inside the program call it through ``host_call``.
A hook that uses traced values itself is applied in the trace instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotgrad.ir import Block, Op, Value
from aotgrad.ir.host import HostFunction
from aotgrad_runtime import engine, modes
from aotgrad_runtime.errors import AotgradNotImplementedError, AotgradRuntimeError, AotgradTypeError
from aotgrad_runtime.tape import Hooks, RemovableHandle, call_hooks
from aotgrad_runtime.tensor import ArrayTensor, Tensor, wrap

from . import joint_hooks, node_hooks
from .eager import Dual, levels, make_dual
from .pytree import tree_flatten
from .rules import Rule, call_traced
from .trace import Traced, user_loc

__all__ = ["HookFunction", "TracedLeaf", "TracedNode", "grad_fn", "register_hook", "register_post_accumulate_grad_hook", "retain_grad"]

Hook = Callable[[Any], Any]
_plain, _retain, _after, _node = Tensor.register_hook, Tensor.retain_grad, Tensor.register_post_accumulate_grad_hook, Tensor.__dict__["grad_fn"].fget


class HookFunction(HostFunction):
    """The hooks of one value, as a function of its cotangent. Derivatives come from the hooks' own operations."""

    def __init__(self, cls: type[Any]) -> None:
        self.hooks, self.cls = Hooks(), cls
        super().__init__(self._call, "hook", self._jvp, self._vjp)

    @modes.intact
    def _call(self, ct: Any) -> Any:
        with modes.no_grad():
            return call_hooks(self.hooks, wrap(ct, self.cls))._data

    def looped(self, on: Sequence[bool], shapes: Sequence[Any] | None = None) -> HostFunction:
        if joint_hooks.members(self):
            raise AotgradNotImplementedError("vmap of a gradient in which register_multi_grad_hook waits for several: they do not come example by example; register a "
                                             "hook on each of the tensors")
        return super().looped(on, shapes)

    def _changing(self) -> Hooks:
        """The hooks that may give another gradient: what is differentiated."""
        return Hooks({i: h for i, h in self.hooks.items() if type(h) is not joint_hooks.Member})

    def _jvp(self, primals: Any, tangents: Any) -> Any:
        levels.level += 1
        level = levels.level
        try:
            out = call_hooks(self._changing(), make_dual(wrap(primals[0], self.cls), wrap(tangents[0], self.cls), level))
        finally:
            levels.level -= 1
        moved = out._tangent if isinstance(out, Dual) and out._level == level else None
        return [np.zeros_like(primals[0]) if moved is None else moved._data]

    @modes.intact
    def _vjp(self, primals: Any, cts: Any) -> Any:
        leaf = wrap(primals[0], self.cls)
        leaf._requires_grad = True
        with modes.differentiating():
            out = call_hooks(self._changing(), leaf)
        if not out._requires_grad:
            return [np.zeros_like(primals[0])]
        found = engine.grad([out], [leaf], [wrap(cts[0], self.cls)], allow_unused=True)[0]
        return [np.zeros_like(primals[0]) if found is None else found._data]


def register_hook(self: Any, hook: Hook) -> RemovableHandle:
    """Calls ``hook(grad)`` when this tensor's gradient is complete; a returned tensor replaces it. Returns a handle with ``remove()``. In a compiled function the
    program is cut here, and the hook runs in Python."""
    if isinstance(self, Dual):
        return _register_dual(self, hook)
    if not isinstance(self, Traced):
        return _plain(self, hook)
    if not callable(hook):
        raise AotgradTypeError(f"hook must be callable, got {type(hook).__name__}")
    if not self._dtype.is_differentiable:
        raise AotgradRuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    if _uses(hook):
        return _register_traced(self, hook)
    value, trace = self._value, self._trace
    if value.op is not None and value.op.name == "hook":
        call = value.op.attrs["call"]
    else:
        call = HookFunction(ArrayTensor if isinstance(self, ArrayTensor) else Tensor)
        _insert(trace.block, value, call)
    return call.hooks.register(hook)  # type: ignore[no-any-return]


def retain_grad(self: Any) -> None:
    """Keeps the gradient of an intermediate in ``.grad``; leaves do so anyway."""
    if isinstance(self, Traced):
        raise AotgradNotImplementedError(f"{user_loc()}: retain_grad: a value inside a compiled function has no .grad afterwards; return it from the function and call "
                                         "retain_grad on the result, or take its gradient with register_hook")
    _retain(self)


def register_post_accumulate_grad_hook(self: Any, hook: Hook) -> RemovableHandle:
    """Calls ``hook(tensor)`` when a gradient was added to ``tensor.grad``. For leaves, and outside of compiled functions."""
    if isinstance(self, Traced):
        raise AotgradNotImplementedError(f"{user_loc()}: register_post_accumulate_grad_hook: a value inside a compiled function has no .grad that would be added to; "
                                         "register it on the tensor outside")
    return _after(self, hook)


def grad_fn(self: Any) -> Any:
    """The node that made this tensor; None for leaves."""
    return TracedNode(self) if isinstance(self, Traced) and self.requires_grad and not self.is_leaf else _node(self)


class TracedNode:
    """What stands for the node of a traced value: the graph is made when the compiled function is called, and is another."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def register_prehook(self, hook: Hook) -> RemovableHandle:
        """Calls ``hook(grad_outputs)`` as a hook of the tensor does, behind those that this has."""
        if node_hooks.several(self._tensor):
            return node_hooks.register(self._tensor, hook, _uses(hook), before=True)

        def before(grad: Any) -> Any:
            found = hook((grad,))
            if found is not None and (type(found) is not tuple or len(found) != 1):
                raise AotgradTypeError(f"a prehook returns None or a tuple of one gradient per output of the node, but got {type(found).__name__}")
            return None if found is None else found[0]
        return register_hook(self._tensor, functools.wraps(hook)(before))

    def register_hook(self, hook: Hook) -> RemovableHandle:
        """Calls ``hook(grad_inputs, grad_outputs)`` after the operation's gradients were computed; a returned tuple replaces ``grad_inputs``. The backward program is cut
        there, and the hook runs in Python."""
        return node_hooks.register(self._tensor, hook, _uses(hook))

    def __call__(self, *cts: Any) -> Any:
        """The gradients of the inputs for these of the outputs, in the program: a tensor, or a tuple of one for each edge."""
        return node_hooks.called(self._tensor, cts)

    def name(self) -> str:
        """The name of the node that the same call makes in eager code."""
        return node_hooks.name_of(self._tensor)

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """The nodes of the inputs, each with which of its outputs the input is; (None, 0) where no gradient is wanted."""
        def node(x: Any) -> Any:
            return None if x is None else TracedNode(x) if isinstance(x, Traced) and not x.is_leaf else TracedLeaf(x)

        return tuple([(node(x), i) for x, i in node_hooks.followed(self._tensor)])

    @property
    def metadata(self) -> Any:
        """Not there."""
        return self._refuse("metadata")

    def _refuse(self, what: str) -> Any:
        raise AotgradNotImplementedError(f"{user_loc()}: grad_fn in a compiled function: {what} is not there, the graph is made at the call: use hooks of the tensors, "
                                         "register_prehook, or the node of the function's result")


class TracedLeaf:
    """Where the graph of a compiled function ends: at an argument, or a tensor from outside (``variable``)."""

    __slots__ = ("variable",)
    next_functions = ()

    def __init__(self, variable: Any) -> None:
        self.variable = variable

    def name(self) -> str:
        """``AccumulateGrad``."""
        return "AccumulateGrad"

    def __call__(self, ct: Any) -> Any:
        """Not there: ``backward()`` adds to ``.grad``."""
        raise AotgradNotImplementedError(f"{user_loc()}: AccumulateGrad in a compiled function: call backward(), or add the gradients of .variable yourself")


def _register_dual(x: Any, hook: Hook) -> RemovableHandle:
    """On the value, and on its tangent: the gradient of the tangent's part comes by the same way."""
    if isinstance(x._tangent, Tensor) and x._tangent._requires_grad:
        other = register_hook(x._tangent, hook)
        handle = register_hook(x._primal, hook)
        return PairedHandle(handle, other)
    return register_hook(x._primal, hook)


class PairedHandle(RemovableHandle):
    """Removes two hooks at once."""

    __slots__ = ("other",)

    def __init__(self, first: RemovableHandle, other: RemovableHandle) -> None:
        self._hooks, self.id, self.other = first._hooks, first.id, other

    def remove(self) -> None:
        super().remove()
        self.other.remove()


def _insert(block: Block, value: Value, call: HookFunction) -> None:
    """Puts the op behind the one that makes ``value``; ``value`` becomes its result, so that every use, earlier ones too, is covered."""
    inner = Value(value.type, value.op, value.index)
    op = Op("hook", [inner], [value.type], {"call": call}, loc=user_loc())
    if value.op is None:
        block.args[next(i for i, a in enumerate(block.args) if a is value)] = inner
        at = 0
    else:
        maker = value.op
        maker.results = tuple(inner if r is value else r for r in maker.results)
        at = next(i for i in reversed(range(len(block.ops))) if block.ops[i] is maker) + 1
    op.results = (value,)
    value.op, value.index = op, 0
    block.ops.insert(at, op)


def _uses(hook: Any) -> bool:
    """Whether a hook uses values of the function that is traced."""
    return any(isinstance(x, Traced) for x in _held(hook))


def _held(hook: Any) -> list[Any]:
    """What a hook holds: closure, defaults, bound arguments."""
    found: list[Any] = []
    while isinstance(hook, functools.partial):
        found += [*hook.args, *hook.keywords.values()]
        hook = hook.func
    fn = getattr(hook, "__func__", hook)
    for cell in getattr(fn, "__closure__", None) or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    found += [*(getattr(fn, "__defaults__", None) or ()), *(getattr(fn, "__kwdefaults__", None) or {}).values()]
    return [x for f in found for x in (tree_flatten(f)[0] if isinstance(f, (tuple, list, dict)) else [f])]


class _TracedHooks(Rule):
    name = "hook"

    def __init__(self, hook: Hook) -> None:
        self.hooks = Hooks()
        self.hooks.register(hook)
        self.reverse = self._reverse

    def forward(self, args: list[Any]) -> list[Any]:
        return [args[0]]

    def _reverse(self, cts: list[Any]) -> list[Any]:
        return [call_hooks(self.hooks, cts[0])]


def _register_traced(x: Any, hook: Hook) -> RemovableHandle:
    """The hook as a rule of the program. It covers what comes after it, so nothing may have come before."""
    value = x._value
    if any(o is value for op in x._trace.block.ops for o in op.operands):
        raise AotgradRuntimeError(f"{user_loc()}: register_hook: the hook uses values of the compiled function, and the tensor was used before it was registered; "
                                  "register it right after the tensor is made")
    rule = _TracedHooks(hook)
    out = call_traced([x], rule)[0]
    x._value = out._value
    return RemovableHandle(rule.hooks)
