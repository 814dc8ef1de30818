"""Hooks on several gradients of one backward pass (``register_multi_grad_hook``), in eager and in compiled code.

Every tensor gets a hook that tells its gradient; the last one calls the user's function, so each has to know how many of them the pass reaches. In eager that is asked of
the engine. In compiled code the hooks of values are a part of the program (see ``hooks``): a recorded call, which is cut at each of them, asks the engine about the nodes
that it made there, and a gradient inside a program counts the calls of Python that it has for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aotgrad.ir import Func, walk
from aotgrad.ir.host import HostFunction
from aotgrad_runtime import recording
from aotgrad_runtime.errors import AotgradNotImplementedError
from aotgrad_runtime.tape import Hooks, Node

__all__ = ["Joint", "Member", "Passing", "Watch", "bound", "members", "running"]


class Joint:
    """The user's function of several gradients; of the first alone where ``mode`` is "any"."""

    __slots__ = ("count", "fn", "mode")

    def __init__(self, fn: Callable[..., Any], mode: str, count: int) -> None:
        self.fn, self.mode, self.count = fn, mode, count


class Heard:
    """The gradients that have arrived in one pass."""

    __slots__ = ("found", "joint")

    def __init__(self, joint: Joint) -> None:
        self.joint = joint
        self.found: dict[int, Any] = {}

    def add(self, place: int, grad: Any, waited: int) -> Any:
        """What the user's function is to be called with now, or None."""
        found, joint = self.found, self.joint
        first = not found
        found[place] = grad
        last = len(found) == waited
        if last:  # the body of a loop may come again
            self.found = {}
        if joint.mode == "any":
            return grad if first else None
        return [found.get(i) for i in range(joint.count)] if last else None


class Watch:
    """Gradients that come by the tape: of which nodes is in ``nodes``."""

    def __init__(self, joint: Joint, nodes: Sequence[Node | None] = ()) -> None:
        self.joint, self.nodes = joint, [*nodes]
        self.lock = threading.Lock()
        self.run: Any = None
        self.heard = Heard(joint)

    def hook(self, place: int) -> Callable[[Any], None]:
        """For tensor ``place``."""
        def hear(grad: Any) -> None:
            with self.lock:
                run = recording.state.passing
                if self.run is not run:
                    self.run, self.heard = run, Heard(self.joint)
                told = self.heard.add(place, grad, sum(node in run.waiting for node in self.nodes))
            if told is not None:
                self.joint.fn(told)

        return hear


class Passing:
    """A program that is running, and what has arrived in it."""

    __slots__ = ("func", "heard")

    def __init__(self, func: Func) -> None:
        self.func = func
        self.heard: dict[Joint, tuple[Heard, int]] = {}

    def of(self, joint: Joint) -> tuple[Heard, int]:
        """What has arrived for ``joint``, and how many gradients are to come."""
        found = self.heard.get(joint)
        if found is None:
            calls = {id(c): c for op in walk(self.func.body) if op.name == "host_call" and (c := op.attrs["call"]) is not None}
            places = {m.place for c in calls.values() for m in members(c) if m.joint is joint}
            found = self.heard[joint] = Heard(joint), len(places)
        return found


class _Running(threading.local):
    """``now``: the innermost program of this thread that calls Python."""

    now: Passing | None = None


running = _Running()


class Member:
    """The hook of one traced value of a ``Joint``."""

    __slots__ = ("joint", "place")

    def __init__(self, joint: Joint, place: int) -> None:
        self.joint, self.place = joint, place

    def __call__(self, grad: Any) -> None:
        now = running.now
        if now is None:
            raise AotgradNotImplementedError("register_multi_grad_hook: this transform does not tell which gradients it computes; register a hook on each of the tensors")
        heard, waited = now.of(self.joint)
        told = heard.add(self.place, grad, waited)
        if told is not None:
            self.joint.fn(told)


def members(call: HostFunction) -> list[Member]:
    """Those among the hooks of a value."""
    return [h for h in getattr(call, "hooks", Hooks()).values() if type(h) is Member]


def bound(hooks: Hooks, watches: Mapping[Joint, Watch]) -> Hooks:
    """The hooks of a value as those of the tensor that one recorded call has there."""
    return Hooks({i: watches[h.joint].hook(h.place) if type(h) is Member else h for i, h in hooks.items()})
