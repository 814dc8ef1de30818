"""Rules given by the user, in a trace and out of it: the ``custom`` op of a traced call, and the missing rule of an eager one from the rule that is there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotgrad.ir import Block, Builder, Func, TensorType, Value
from aotgrad.ir.transforms.custom import transpose_block
from aotgrad.ir.transforms.rewrite import copy_ops, substitute_block
from aotgrad_runtime import modes
from aotgrad_runtime.arrays import native
from aotgrad_runtime.errors import AotgradError, AotgradNotImplementedError, AotgradRuntimeError
from aotgrad_runtime.tensor import ArrayTensor, Tensor, wrap

from . import dispatch, eager, placement
from .program import Program
from .promotion import is_number
from .pytree import tree_flatten
from .sizes import plain_size
from .subtrace import Sub, as_value, builder_of, traced_class
from .trace import Trace, TracedArray, TracedTensor, current, tracing, unrecorded

__all__ = ["Rule", "call_traced", "fit", "flavour", "split_level", "tensor_of", "transposed_call", "zeros_like"]


class Rule:
    """What a traced call asks: ``forward`` first, then the rules, on flat lists. A rule that is not there is None."""

    name = "custom"
    owner: Any = None  # whose rules these are: a rule may call the function it belongs to
    through = False  # whether values kept for the rules are differentiated through the ops that made them
    once = ""
    error = ""
    plain: frozenset[int] = frozenset()  # results without derivative, known after forward
    batch: Callable[..., tuple[Block, Sequence[bool]]] | None = None  # (op, operands, which are batched, size) -> program of the batched op, which results are

    def forward(self, args: list[Any]) -> list[Any]:
        """Results of the operands."""
        raise NotImplementedError

    reverse: Callable[[list[Any]], list[Any]] | None = None  # cotangents of all results (None: no derivative) -> cotangents of all operands
    pushed: Callable[[list[Any]], list[Any]] | None = None  # tangents of all operands (None: no derivative) -> tangents of all results


def fit(g: Any, like: Any, name: str, place: int, what: str = "gradient", exact: bool = False) -> Any:
    """A gradient in the shape and dtype of its input: broadcast dims are summed, as torch does, or refused (``exact``)."""
    shape, target = tuple(g.shape), tuple(like.shape)
    if shape != target:
        lead = len(shape) - len(target)
        if exact or lead < 0 or any(t != 1 and not _same(s, t) for s, t in zip(shape[lead:], target)):
            raise AotgradRuntimeError(f"Function {name} returned an invalid {what} at index {place} - got {list(shape)} but expected shape compatible with "
                                      f"{list(target)}")
        dims = [*range(lead), *(lead + i for i, t in enumerate(target) if t == 1 and not _same(shape[lead + i], 1))]
        if dims:
            g = dispatch.call(dispatch.TORCH["sum"], (g, dims), {})
        g = dispatch.call(dispatch.TORCH["reshape"], (g, target), {}) if tuple(g.shape) != target else g
    if g._dtype is not like._dtype:
        if g._dtype.is_complex and not like._dtype.is_complex:
            g = dispatch.call(dispatch.TORCH["real"], (g,), {})
        g = dispatch.call(dispatch.TORCH["astype"], (g, like._dtype), {})
    return g


def _same(a: Any, b: Any) -> bool:
    return bool(plain_size(a) == plain_size(b))


# ---- in a trace ---------------------------------------------------------------------------------------------------------------------

class _Parts:
    """What is found while the forward program is traced."""

    def __init__(self) -> None:
        self.subs: dict[str, Sub | None] = {"pushed": None, "reverse": None}
        self.grads: list[int] = []
        self.errors: list[str] = []
        self.order: list[Value] = []  # what the rules use, as values of the forward program
        self.residuals: list[int] = []
        self.kept: list[Value] = []
        self.outs = 0
        self.cts: list[int] = []


def call_traced(leaves: Sequence[Any], rule: Rule) -> list[Any]:
    """``rule.forward`` on the leaves as one ``custom`` op of the current trace, with its rules as regions."""
    trace = current()
    assert trace is not None
    b = builder_of(trace)
    cls = traced_class(leaves)
    values = [b.refresh(as_value(x, trace)) for x in leaves]
    weak = [is_number(x) for x in leaves]
    moving = [i for i, v in enumerate(values) if v.type.dtype.is_differentiable]
    parts = _Parts()

    def run(*flat: Any) -> list[Any]:
        inner = current()
        assert inner is not None
        outs = [as_value(o, inner) for o in rule.forward(list(flat))]
        parts.outs = len(outs)
        parts.cts = [j for j, o in enumerate(outs) if o.type.dtype.is_differentiable and j not in rule.plain]
        _trace_rules(rule, inner, cls, flat, outs, moving, parts)
        return [cls._of(inner, v) for v in (*outs, *parts.kept)]

    sub = Sub(rule.name, run, tree_flatten(tuple(values))[1], [v.type for v in values], cls, weak)
    regions = [sub.block, *(_rule_block(parts, side, sub.trace, moving) for side in ("pushed", "reverse"))]
    attrs = {"name": rule.name, "outs": parts.outs, "moving": tuple(moving), "cts": tuple(parts.cts), "residuals": tuple(parts.residuals), "grads": tuple(parts.grads),
             "through": rule.through, "once": rule.once, "error": rule.error or "; ".join(parts.errors), "batch": rule.batch}
    found = b.emit("custom", [b.refresh(v) for v in (*values, *sub.lifted_values())], attrs, regions)
    return placement.unsure([cls._of(trace, unrecorded(b, v)) for v in found])  # type: ignore[no-any-return]


class _Depth(threading.local):
    """How many rules of an owner are being traced around this call."""

    def __init__(self) -> None:
        self.of: dict[Any, int] = {}


_depth = _Depth()
_MOST = 3


def _trace_rules(rule: Rule, inner: Trace, cls: type[Any], flat: Sequence[Any], outs: Sequence[Value], moving: Sequence[int], parts: _Parts) -> None:
    depth = _depth.of.get(rule.owner, 0)
    if not parts.cts or not moving:
        return
    if depth == _MOST:
        parts.errors.append(f"its rule calls the function itself: in traced code derivatives up to order {_MOST} are available")
        return

    def reverse(*cts: Any) -> list[Any]:
        assert rule.reverse is not None
        full: list[Any] = [None] * len(outs)
        for j, c in zip(parts.cts, cts):
            full[j] = c
        grads = rule.reverse(full)
        parts.grads = [k for k, i in enumerate(moving) if grads[i] is not None]
        return [fit(_traced(grads[moving[k]], cls), flat[moving[k]], rule.name, moving[k], exact=rule.through) for k in parts.grads]

    def pushed(*ts: Any) -> list[Any]:
        assert rule.pushed is not None
        full: list[Any] = [None] * len(flat)
        for i, t in zip(moving, ts):
            full[i] = t
        found = rule.pushed(full)
        like = [cls._of(inner, o) for o in outs]
        return [_zeros(like[j], cls) if found[j] is None else fit(_traced(found[j], cls), like[j], rule.name, j, "tangent", exact=True) for j in parts.cts]

    here = [outs[j].type for j in parts.cts]
    there = [inner.block.args[i].type for i in moving]
    for side, fn, types in (("pushed", pushed, there), ("reverse", reverse, here)):
        if getattr(rule, side) is None:
            continue
        _depth.of[rule.owner] = depth + 1
        try:
            parts.subs[side] = Sub(f"{rule.name}_{side}", fn, tree_flatten(tuple(range(len(types))))[1], types, cls, parent=inner)
        except AotgradError as error:
            parts.errors.append(f"its {'backward' if side == 'reverse' else 'jvp'} cannot be traced: {error}")
        except Exception as error:  # the user's code met something it cannot work with: told when the rule is needed
            parts.errors.append(f"its {'backward' if side == 'reverse' else 'jvp'} cannot be traced: {type(error).__name__}: {error}")
        finally:
            _depth.of[rule.owner] = depth
    if depth == 0:
        _depth.of.pop(rule.owner, None)
    _find_residuals(inner, outs, parts)


def _traced(x: Any, cls: type[Any]) -> Any:
    """What a rule returned, as a traced value."""
    trace = current()
    assert trace is not None
    return x if isinstance(x, (TracedTensor, TracedArray)) else cls._of(trace, as_value(x, trace))


def _zeros(like: Any, cls: type[Any]) -> Any:
    trace = current()
    assert trace is not None
    return cls._of(trace, builder_of(trace).zeros(trace.value_of(like)))


def _find_residuals(inner: Trace, outs: Sequence[Value], parts: _Parts) -> None:
    """Where the values that the rules use come from: an argument, a result, or a value to be kept."""
    wanted: dict[Value, None] = {}
    for sub in parts.subs.values():
        if sub is not None:
            wanted.update(dict.fromkeys(sub.lifted_values()))
    pool: dict[Value, tuple[int, int]] = {o: (1, j) for j, o in enumerate(outs)}
    pool.update({a: (0, i) for i, a in enumerate(inner.block.args)})
    parts.order = list(wanted)
    n = len(inner.block.args)
    for v in wanted:
        kind, i = pool.get(v, (2, 0))
        if kind == 2:
            i = len(outs) + len(parts.kept)
            parts.kept.append(v)
        parts.residuals.append(i if kind == 0 else n + i)


def _rule_block(parts: _Parts, side: str, trace: Trace, moving: Sequence[int]) -> Block:
    """A rule as (all residuals, its own arguments) -> its results."""
    sub = parts.subs[side]
    if sub is None:
        return Block()
    block = Block([v.type for v in parts.order])
    place = dict(zip(parts.order, block.args))
    own = [block.add_arg(a.type) for a in sub.block.args[:sub.count]]
    env: dict[Value, Value] = dict(zip(sub.block.args, [*own, *(place[v] for v in sub.lifted_values())]))
    copy_ops(Builder(block), sub.block.ops, env)
    block.outputs = [env[o] for o in sub.block.outputs]
    return substitute_block(block, trace.equal.names) if trace.equal else block


# ---- out of a trace -----------------------------------------------------------------------------------------------------------------

@modes.intact
def transposed_call(name: str, fn: Callable[[list[Any]], list[Any]], likes: Sequence[Any], given: Sequence[Any], cls: type[Any], what: str) -> list[Any]:
    """``fn`` is linear in arrays like ``likes``; its transpose on ``given``, one per result of ``fn`` (None: zero). Tensors that ``fn`` uses keep their derivatives.

    ``fn`` may give None for a result; ``what`` names the rule that is missing, for the error when ``fn`` cannot be traced.
    """
    trace = Trace(name, examples={}, hidden=True)
    traced = TracedTensor if not issubclass(cls, ArrayTensor) else TracedArray
    args = [trace.argument(TensorType(tuple(x.shape), x._dtype), traced) for x in likes]
    kept: list[int] = []
    try:
        with tracing(trace), modes.differentiating():  # the engine, which may call this, is in another mode
            outs = fn(args)
            kept = [i for i, o in enumerate(outs) if o is not None and given[i] is not None]
            trace.block.outputs = [as_value(fit(_traced(outs[i], traced), given[i], name, i), trace) for i in kept]
    except Exception as error:
        reason = str(error) if isinstance(error, AotgradError) else f"{type(error).__name__}: {error}"
        # the error of a chain that is raised again is the innermost: this one says what to do
        raise AotgradNotImplementedError(f"You must implement {what}; it could not be derived from the other rule, which cannot be traced ({reason})") from None
    block = transpose_block(trace.block, range(len(args)))
    captured = [obj if isinstance(obj, Tensor) else native(np.asarray(obj)) for obj, _ in trace.captured.values()]
    program = Program(Func(name, block), f"{name}Backward0")
    return eager.apply(program, [*captured, *(given[i] for i in kept)], cls)


def flavour(leaves: Sequence[Any]) -> type[Any]:
    """The class of results: tensors where a tensor is among the operands, else values that mean NumPy's."""
    return Tensor if any(isinstance(x, Tensor) and not isinstance(x, ArrayTensor) for x in leaves) else ArrayTensor


def tensor_of(x: Any, cls: type[Any]) -> Any:
    """An array or number as a tensor of class ``cls``."""
    return x if isinstance(x, Tensor) else wrap(native(np.asarray(x)), cls)


def zeros_like(x: Any) -> Any:
    """Zeros as a tensor of the kind of ``x``."""
    return x._wrap(np.zeros(tuple(x.shape), x._dtype.np))


def split_level(xs: Sequence[Any]) -> tuple[int, list[Any], list[Any]]:
    """The newest level of forward mode among ``xs``, their primals, and their tangents (None: zero) at that level."""
    level = max((x._level for x in xs if isinstance(x, eager.Dual)), default=0)
    mine = [isinstance(x, eager.Dual) and x._level == level for x in xs]
    return level, [x._primal if m else x for x, m in zip(xs, mine)], [x._tangent if m else None for x, m in zip(xs, mine)]
