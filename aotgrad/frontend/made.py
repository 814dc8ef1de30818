"""What a trace knows of the calls that made its values, for hooks around their nodes (see ``node_hooks``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aotgrad.ir import Op, Value
from aotgrad_runtime import modes
from aotgrad_runtime.tape import NodeExtra

from .front import FrontBuilder, Public
from .trace import Trace

__all__ = ["Call", "Stage", "note"]


class Stage(NodeExtra):
    """Hooks that are called together: in Python, or where they use values of the function (``traced``) while the backward rule is traced."""

    __slots__ = ("traced",)

    def __init__(self, traced: bool) -> None:
        super().__init__()
        self.traced = traced


class Call:
    """A call in a trace. ``emit`` gives its results again, from ``arguments`` with other values for tensors: a function of the arguments, or the builder of a public
    function, whose flavour and line are those of the call. Of a ``Function``: its op, and no ``public``."""

    __slots__ = ("arguments", "emit", "outs", "public", "stages")

    def __init__(self, public: Public | None, emit: Callable[..., Any] | FrontBuilder | Op, arguments: dict[str, Any], outs: tuple[Value, ...]) -> None:
        self.public, self.emit, self.arguments, self.outs = public, emit, arguments, outs
        self.stages: list[Stage] = []

    def again(self, trace: Trace, arguments: dict[str, Any]) -> tuple[Value, ...]:
        """Its results once more, at the end of ``trace``."""
        if isinstance(self.emit, FrontBuilder) and self.public is not None:
            b = FrontBuilder(trace, self.emit.torch, self.emit.loc)
            b.checks = self.emit.checks
            found = self.public.emit(b, arguments)
        else:
            assert callable(self.emit)
            found = self.emit(arguments)
        return (*found,) if isinstance(found, tuple) else (found,)


def note(trace: Trace, start: int, public: Public, emit: Callable[..., Any] | FrontBuilder, arguments: dict[str, Any], results: Any) -> None:
    """Takes note of the call that made ``results`` by the ops from place ``start`` on. For a builder: the function itself is what emits."""
    outs = results if isinstance(results, tuple) else (results,)
    made = trace.block.ops[start:]
    if modes.state.grad and all(any(v.op is op for op in made) for v in outs):
        call = Call(public, emit, arguments, (*outs,))
        for v in outs:
            trace.calls[v] = call
