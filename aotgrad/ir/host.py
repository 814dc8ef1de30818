"""Python functions as attributes of ops: what ``host_call`` calls while the code around it is compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotgrad_runtime.errors import AotgradNotImplementedError, AotgradTypeError, AotgradValueError

from . import dims
from .core import Block, Func, Op, walk
from .dims import Dim

__all__ = ["HostFunction", "LoopedFunction", "acts", "calls_host", "results", "strip", "strip_func"]


class HostFunction:
    """A function of arrays. Two are the same only if they are one object, so that calls are never merged.

    ``jvp(primals, tangents)`` gives the tangents of the results, ``vjp(primals, cotangents)`` the cotangents of the arguments; both as sequences of arrays.
    """

    def __init__(self, fn: Callable[..., Any], name: str, jvp: Callable[..., Any] | None = None, vjp: Callable[..., Any] | None = None) -> None:
        self.fn, self.name, self.jvp, self.vjp = fn, name, jvp, vjp

    def __repr__(self) -> str:
        return f"<host {self.name}>"

    def __call__(self, *arrays: Any) -> tuple[Any, ...]:
        """The results, as a tuple."""
        out = self.fn(*arrays)
        return tuple(out) if isinstance(out, (tuple, list)) else (out,)

    def looped(self, on: Sequence[bool], shapes: Sequence[Any] | None = None) -> HostFunction:
        """The function on examples one by one, see ``LoopedFunction``."""
        return LoopedFunction(self, on, shapes)

    def _linear(self, rule: Callable[..., Any] | None, what: str, primals: int, order: str) -> HostFunction:
        def run(*arrays: Any) -> Any:
            if rule is None:
                raise AotgradNotImplementedError(f"host_call: {self.name} has no {'forward' if what == 'jvp' else 'reverse'}-mode derivative: pass {what}=")
            return tuple(rule(arrays[:primals], arrays[primals:]))

        return HostFunction(run, f"{self.name}_{order}")

    def pushed(self, primals: int) -> HostFunction:
        """(arguments, their tangents) -> tangents of the results."""
        return self._linear(self.jvp, "jvp", primals, "jvp")

    def pulled(self, primals: int) -> HostFunction:
        """(arguments, cotangents of the results) -> cotangents of the arguments."""
        return self._linear(self.vjp, "vjp", primals, "vjp")


def results(call: HostFunction, arrays: Sequence[Any], given: Sequence[Any], types: Sequence[Any]) -> list[Any]:
    """What ``call`` gives for ``arrays`` of the types ``given``, as arrays of the declared ``types``; others are errors, as compiled code goes by what was declared."""
    out = call(*arrays)
    if not types:
        return []
    if len(out) != len(types):
        raise AotgradValueError(f"host_call: {call.name} gives {len(out)} results, {len(types)} declared in types=; return one array for each (a list or tuple counts "
                                "as several)")
    sizes = {d: n for t, x in zip(given, arrays) for d, n in zip(t.shape, np.shape(x))}
    return [_as_declared(call.name, i, x, t, sizes) for i, (x, t) in enumerate(zip(out, types))]


def _as_declared(name: str, i: int, x: Any, t: Any, sizes: dict[Any, int]) -> Any:
    try:
        found = np.asarray(x, t.dtype.np)
    except (TypeError, ValueError) as error:
        raise AotgradTypeError(f"host_call: {name}: result {i} is {type(x).__name__} and no array of {t.dtype.name}: {error}") from None
    known = {str(d): n for d, n in sizes.items() if isinstance(d, Dim) and str(d) in dims.symbols_of(d)}
    wanted = [sizes[d] if d in sizes else dims.substitute(d, known) for d in t.shape]
    if len(wanted) != found.ndim or any(isinstance(n, int) and n != m for n, m in zip(wanted, found.shape)):
        raise AotgradValueError(f"host_call: {name}: result {i} has the shape {found.shape}, declared in types= is ({', '.join(map(dims.to_text, wanted))}"
                                f"{',' if len(wanted) == 1 else ''}); make them equal")
    return found


class LoopedFunction(HostFunction):
    """``call`` on the examples one by one: those arguments flagged in ``on`` have them along dim 0, and so have all results.

    ``shapes``: of the results for one example, where there may be none. Derivatives are looped too; cotangents of arguments that all examples share are summed.
    """

    def __init__(self, call: HostFunction, on: Sequence[bool], shapes: Sequence[Any] | None = None) -> None:
        self.call, self.on, self.shapes = call, tuple(on), shapes
        super().__init__(self._run, call.name, call.jvp and self._push, call.vjp and self._pull)

    def _run(self, *arrays: Any) -> Any:
        return self._each(lambda *xs: self.call(*xs), arrays, self.on, self.shapes)

    def _each(self, fn: Callable[..., Any], arrays: Sequence[Any], on: Sequence[bool], shapes: Sequence[Any] | None) -> tuple[Any, ...]:
        size = next(len(x) for x, k in zip(arrays, on) if k)
        rows = [[np.asarray(o) for o in fn(*[x[i] if k else x for x, k in zip(arrays, on)])] for i in range(size)]
        if rows:
            return tuple(np.stack(column) for column in zip(*rows))
        if shapes is None or not all(isinstance(d, int) for t in shapes for d in t.shape):
            raise AotgradNotImplementedError(f"host_call: {self.name} is mapped over no examples, so the shapes of its results are not known; "
                                             "give it types with fixed sizes, or at least one example")
        return tuple(np.zeros((0, *t.shape), t.dtype.np) for t in shapes)

    def _push(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, ...]:
        rule, moving = self.call.jvp, [k for x, k in zip(primals, self.on) if _moves(x)]
        assert rule is not None
        n = len(primals)
        return self._each(lambda *xs: rule(xs[:n], xs[n:]), [*primals, *tangents], [*self.on, *moving], None)

    def _pull(self, primals: Sequence[Any], cts: Sequence[Any]) -> tuple[Any, ...]:
        rule, moving = self.call.vjp, [(x, k) for x, k in zip(primals, self.on) if _moves(x)]
        assert rule is not None
        n = len(primals)
        if not len(cts[0]):
            return tuple(np.zeros_like(x) for x, _ in moving)
        found = self._each(lambda *xs: rule(xs[:n], xs[n:]), [*primals, *cts], [*self.on, *(True for _ in cts)], None)
        return tuple(g if k else g.sum(0, dtype=g.dtype) for g, (_, k) in zip(found, moving))


def _moves(x: Any) -> bool:
    return bool(np.asarray(x).dtype.kind in "fcV")


def calls_host(op: Op) -> bool:
    """Whether an op, or one in its regions, calls Python."""
    return op.name == "host_call" or any(inner.name == "host_call" for region in op.regions for inner in walk(region))


def acts(op: Op) -> bool:
    """Whether an op, or one in its regions, calls Python for what it does beside its results: it stays where nobody uses them, and is never merged with another."""
    return op.name == "host_call" and op.attrs["effect"] or any(acts(inner) for region in op.regions for inner in region.ops)


_MARKS = frozenset(("hook", "graft", "stop_gradient"))


def strip(block: Block) -> Block:
    """A copy without the ops that matter to derivatives alone, at all depths."""
    new = Block([a.type for a in block.args])
    env: dict[Any, Any] = dict(zip(block.args, new.args))
    for op in block.ops:
        operands = [env[o] for o in op.operands]
        if op.name in _MARKS:
            env[op.results[0]] = operands[0]
            continue
        copied = Op(op.name, operands, [r.type for r in op.results], op.attrs, [strip(r) for r in op.regions], op.loc)
        new.ops.append(copied)
        env.update(zip(op.results, copied.results))
    new.outputs = [env[o] for o in block.outputs]
    return new


def strip_func(func: Func) -> Func:
    """``strip`` of a function; the function itself where there is nothing to do."""
    return Func(func.name, strip(func.body), func.attrs) if any(op.name in _MARKS for op in walk(func.body)) else func
