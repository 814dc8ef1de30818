"""Gradient checkpoints: parts of a network whose values are computed again in the backward pass, instead of kept. Under torch.utils.checkpoint's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aotgrad.autograd.graph import saved_tensors_hooks
from aotgrad.frontend.boundary import guard as _guard
from aotgrad.frontend.randoms import get_rng_state, set_rng_state
from aotgrad.frontend.trace import current
from aotgrad_runtime import modes
from aotgrad_runtime.errors import AotgradRuntimeError, AotgradTypeError, AotgradValueError

__all__ = ["CheckpointError", "checkpoint", "checkpoint_sequential"]


class CheckpointError(AotgradRuntimeError):
    """What was computed again is not what was computed first."""


class _Part:
    """One call: how to compute it again, and what it saved then, by number."""

    __slots__ = ("again", "forms", "held")

    def __init__(self, again: Callable[[], Any]) -> None:
        self.again = again
        self.forms: list[Any] = []
        self.held: dict[int, Any] = {}

    def pack(self, x: Any) -> int:
        self.forms.append(_form(x))
        return len(self.forms) - 1

    def unpack(self, number: int) -> Any:
        if number not in self.held:
            self._compute()
        return self.held.pop(number)  # a graph that runs again computes it again

    def _compute(self) -> None:
        found: list[Any] = []

        def hold(x: Any) -> Any:
            found.append(x.detach())
            return x

        with saved_tensors_hooks(hold, lambda x: x), modes.enable_grad():
            self.again()
        forms = [_form(x) for x in found]
        if len(forms) != len(self.forms):
            raise CheckpointError("checkpoint: a different number of tensors was saved during the original forward and recomputation.\n"
                                  f"Number of tensors saved during forward: {len(self.forms)}\nNumber of tensors saved during recomputation: {len(forms)}.\n"
                                  "The function must do the same at both calls")
        wrong = [f"tensor at position {i}: saved {a}, recomputed {b}" for i, (a, b) in enumerate(zip(self.forms, forms)) if a != b]
        if wrong:
            raise CheckpointError("checkpoint: Recomputed values for the following tensors have different metadata than during the forward pass.\n" + "\n".join(wrong))
        self.held = dict(enumerate(found))


def _form(x: Any) -> tuple[Any, ...]:
    return tuple(x.shape), x.dtype


def checkpoint(function: Callable[..., Any], *args: Any, use_reentrant: bool | None = None, preserve_rng_state: bool = True, **kwargs: Any) -> Any:
    """``function(*args, **kwargs)``, of which nothing but the arguments is kept for the backward pass, which computes it again.

    Gradients are those of the plain call, also second ones, of what the function reads from outside too. ``preserve_rng_state``: random numbers are the same at
    both calls. ``use_reentrant`` is taken for torch's sake: there is one way, which is torch's with ``False``. In compiled functions it is the plain call: the compiler
    decides what is kept. Raises ``AotgradTypeError`` for what is no function, and in the backward pass ``CheckpointError`` where the function does something else.

    >>> import aotgrad as ag
    >>> x = ag.tensor([1.0, 2.0], requires_grad=True)
    >>> ag.utils.checkpoint.checkpoint(lambda x: x.sin().exp(), x, use_reentrant=False).sum().backward()
    >>> x.grad
    tensor([ 1.2534, -1.0331])
    """
    if not callable(function):
        raise AotgradTypeError(f"checkpoint: function must be callable, got {type(function).__name__}")
    if current() is not None or not modes.is_grad_enabled():
        return function(*args, **kwargs)
    state = get_rng_state() if preserve_rng_state else None

    def again() -> None:
        now = None if state is None else get_rng_state()
        try:
            if state is not None:
                set_rng_state(state)
            function(*args, **kwargs)
        finally:
            if now is not None:
                set_rng_state(now)

    part = _Part(again)
    with saved_tensors_hooks(part.pack, part.unpack):
        return function(*args, **kwargs)


def checkpoint_sequential(functions: Any, segments: int, input: Any, use_reentrant: bool | None = None, preserve_rng_state: bool = True) -> Any:
    """The functions (or the parts of a ``Sequential``) one after the other, in ``segments`` parts, of which all but the last are checkpoints.

    >>> import aotgrad as ag
    >>> x = ag.tensor([0.5], requires_grad=True)
    >>> ag.utils.checkpoint.checkpoint_sequential([ag.sin, ag.exp, ag.tanh, ag.square], 2, x).backward()
    >>> x.grad
    tensor([0.3834])
    """
    parts: Sequence[Any] = list(functions.children()) if hasattr(functions, "children") else list(functions)
    if not 1 <= segments <= max(len(parts), 1):
        raise AotgradValueError(f"checkpoint_sequential: segments must be from 1 to the number of functions, {len(parts)}, got {segments}")
    size = len(parts) // segments

    def run(which: Sequence[Any]) -> Callable[[Any], Any]:
        def segment(x: Any) -> Any:
            for f in which:
                x = f(x)
            return x

        return segment

    at = 0
    for _ in range(segments - 1):
        input = checkpoint(run(parts[at:at + size]), input, use_reentrant=use_reentrant, preserve_rng_state=preserve_rng_state)
        at += size
    return run(parts[at:])(input)


_guard(globals(), __all__)
