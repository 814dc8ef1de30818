"""Calls of modules with hooks."""

from __future__ import annotations

from typing import Any

from aotgrad.autograd.function import Function
from aotgrad.frontend.trace import Traced
from aotgrad_runtime.errors import AotgradNotImplementedError, AotgradRuntimeError
from aotgrad_runtime.tensor import Tensor

__all__ = ["called"]


class BackwardHookFunction(Function):
    """Tensors as they are; its node is where a module's hooks hang."""

    @staticmethod
    def forward(ctx: Any, *xs: Any) -> Any:
        ctx.mark_non_differentiable(*[x for x in xs if not x.requires_grad])
        out = tuple([x.detach() for x in xs])
        return out[0] if len(out) == 1 else out

    @staticmethod
    def backward(ctx: Any, *cts: Any) -> Any:
        return cts[0] if len(cts) == 1 else cts


def called(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``module(*args, **kwargs)`` with its hooks."""
    for hook, with_kwargs in list(module._forward_pre_hooks.values()):
        found = hook(module, args, kwargs) if with_kwargs else hook(module, args)
        if found is None:
            continue
        if with_kwargs:
            if not isinstance(found, tuple) or len(found) != 2:
                raise AotgradRuntimeError(f"forward pre-hook must return None or a tuple of (new_args, new_kwargs), but got {found}.")
            args, kwargs = found
        else:
            args = found if isinstance(found, tuple) else (found,)
    watch = _Backward(module) if module._backward_hooks or module._backward_pre_hooks else None
    if watch is not None:
        args = watch.inputs(args)
    result = module.forward(*args, **kwargs)
    for hook, with_kwargs in list(module._forward_hooks.values()):
        found = hook(module, args, kwargs, result) if with_kwargs else hook(module, args, result)
        result = result if found is None else found
    return result if watch is None else watch.outputs(result)


class _Backward:
    """The backward hooks of one call."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.hooks, self.pre_hooks = list(module._backward_hooks.values()), list(module._backward_pre_hooks.values())
        self.grad_outputs: Any = None
        self.places: list[int] = []
        self.count = 0

    def _through(self, xs: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[int], Any]:
        """``xs`` with their tensors passed through a node; which they are, and the node (a traced tensor in its place)."""
        places = [i for i, x in enumerate(xs) if isinstance(x, Tensor)]
        if not places or not any(xs[i].requires_grad for i in places):
            return xs, places, None
        if any(isinstance(xs[i], Traced) for i in places):
            if len(places) > 1:
                raise AotgradNotImplementedError("register_full_backward_hook in a compiled function: modules of one tensor in and one out; use tensor.register_hook")
            made: Any = xs[places[0]].view_as(xs[places[0]])
            return tuple([made if i in places else x for i, x in enumerate(xs)]), places, made
        found = BackwardHookFunction.apply(*[xs[i] for i in places])
        new = dict(zip(places, found if isinstance(found, tuple) else (found,)))
        node = next(t.grad_fn for t in new.values() if t.requires_grad)
        return tuple([new.get(i, x) for i, x in enumerate(xs)]), places, node

    def inputs(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, watched."""
        args, self.places, node = self._through(args)
        self.count = len(args)
        self.watched = node is not None
        if isinstance(node, Tensor):
            node.register_hook(lambda g: self._done((g,))[0])
        elif node is not None:
            node.register_hook(lambda grads, _: self._done(grads))
        return args

    def outputs(self, result: Any) -> Any:
        """The results, watched."""
        many = isinstance(result, tuple)
        given = result if many else (result,)
        out, places, node = self._through(given)

        def before(cts: tuple[Any, ...]) -> Any:
            full: list[Any] = [None] * len(out)
            for i, ct in zip(places, cts):
                full[i] = ct
            self.grad_outputs = tuple(full)
            for hook in self.pre_hooks:
                found = hook(self.module, self.grad_outputs)
                if found is not None:
                    self.grad_outputs = found if isinstance(found, tuple) else (found,)
            if not self.watched:
                self._call((None,) * self.count)
            return tuple([self.grad_outputs[i] for i in places])

        if isinstance(node, Tensor):
            node.register_hook(lambda g: before((g,))[0])
        elif node is not None:
            node.register_prehook(before)
        return out if many else out[0]

    def _call(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        for hook in self.hooks:
            found = hook(self.module, grads, self.grad_outputs)
            if found is not None:
                if grads and all(g is None for g in grads):
                    raise AotgradRuntimeError("Backward hook for Modules where no input requires gradient should always return None or None for all gradients.")
                grads = found if isinstance(found, tuple) else (found,)
        return grads

    def _done(self, grads: tuple[Any, ...]) -> tuple[Any, ...]:
        full: list[Any] = [None] * self.count
        for i, g in zip(self.places, grads):
            full[i] = g
        found = self._call(tuple(full))
        self.grad_outputs = None
        return tuple([found[i] for i in self.places])
