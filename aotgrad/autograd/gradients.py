"""``grad`` of tensors: the engine's, for dual values too (forward over reverse), and for many cotangents at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aotgrad.frontend import backward, transforms
from aotgrad.frontend.boundary import guard
from aotgrad.frontend.dispatch import TORCH, call
from aotgrad.frontend.eager import Dual
from aotgrad.frontend.vmap import vmap
from aotgrad_runtime import engine, modes
from aotgrad_runtime.errors import AotgradNotImplementedError, AotgradRuntimeError
from aotgrad_runtime.tape import Node
from aotgrad_runtime.tensor import Tensor, wrap

__all__ = ["grad"]


def grad(
    outputs: Any, inputs: Any, grad_outputs: Any = None, retain_graph: bool | None = None, create_graph: bool = False, allow_unused: bool | None = None,
    is_grads_batched: bool = False, materialize_grads: bool = False,
) -> Any:
    """The gradients of ``outputs`` (weighted by ``grad_outputs``) in ``inputs``, leaves or intermediates, as a tuple (a dict where ``inputs`` is one); no ``.grad``
    changes. Edges of the graph (``graph.get_gradient_edge``) may stand for tensors on both sides.

    An input the outputs do not depend on is an error, None with ``allow_unused``, or zeros with ``materialize_grads``. With ``is_grads_batched`` every one of
    ``grad_outputs`` has
    a leading dim, and so has every gradient. ``create_graph`` records the pass. Dual values have dual gradients: their tangents are those of the gradients.

    >>> import aotgrad as ag
    >>> x = ag.tensor([1.0, 2.0], requires_grad=True)
    >>> ag.autograd.grad((x * x).sum(), x)
    (tensor([2., 4.]),)
    """
    if isinstance(inputs, Mapping):
        return dict(zip(inputs, grad(outputs, list(inputs.values()), grad_outputs, retain_graph, create_graph, allow_unused, is_grads_batched, materialize_grads)))
    outs, ins, cts = _many(outputs), _many(inputs), None if grad_outputs is None else _many(grad_outputs)
    options = {"create_graph": create_graph, "allow_unused": allow_unused, "materialize_grads": materialize_grads}
    if backward.traced(*outs):
        if is_grads_batched:
            raise AotgradNotImplementedError("autograd.grad: is_grads_batched=True is not there in compiled functions; use ag.jacrev, or ag.vmap of ag.vjp's pullback")
        return backward.grad(outs, ins, cts, retain_graph, **options)  # type: ignore[arg-type]
    if is_grads_batched:
        return _batched(outs, ins, cts, retain_graph, options)
    if any(isinstance(x, Dual) for x in (*outs, *ins, *(cts or ()))):
        return _dual(outs, ins, cts, retain_graph, options)
    return engine.grad(outputs, inputs, grad_outputs, retain_graph=retain_graph, **options)  # type: ignore[arg-type]


def _many(x: Any) -> list[Any]:
    single = isinstance(x, Tensor) or not isinstance(x, Sequence) or (isinstance(x, tuple) and len(x) == 2 and isinstance(x[0], Node))
    return [x] if single else list(x)


@modes.intact
def _dual(outs: list[Any], ins: list[Any], cts: list[Any] | None, retain: bool | None, options: dict[str, Any]) -> tuple[Any, ...]:
    """The engine checks and runs on the primals; then the gradients with their tangents."""
    plain = None if cts is None else [transforms.bottom(c) for c in cts]
    engine.grad([transforms.bottom(o) for o in outs], [transforms.bottom(i) for i in ins], plain, retain_graph=True, **options)
    seeds = [c if c is not None else wrap(np.ones(tuple(o.shape), o._dtype.np), o._value_type) for o, c in zip(outs, cts or [None] * len(outs))]
    with modes.set_grad_enabled(modes.state.grad):
        found = transforms.gradients(outs, ins, seeds, options["create_graph"])
    return tuple([transforms.zero_like(i) if g is None and options["materialize_grads"] else g for g, i in zip(found, ins)])


@modes.intact
def _at_once(outs: list[Any], ins: list[Any], cts: list[Any], options: dict[str, Any]) -> tuple[Any, ...] | None:
    """The pass over all cotangents together: traced on one of each and batched. None where a hook or a backward method needs numbers."""
    live = [i for i, c in enumerate(cts) if c is not None]
    if any(isinstance(x, Dual) for x in (*outs, *ins, *cts)) or any(isinstance(i, tuple) for i in ins):
        return None

    def one(*rows: Any) -> Any:
        full: list[Any] = [None] * len(cts)
        for i, r in zip(live, rows):
            full[i] = r
        return engine.grad(outs, ins, full, retain_graph=True, **{**options, "create_graph": True})

    try:
        with modes.set_grad_enabled(bool(options["create_graph"])):
            found = vmap(one)(*[cts[i] for i in live])
    except Exception:  # the loop says what is wrong, or can do it
        return None
    return tuple(found)


def _batched(outs: list[Any], ins: list[Any], cts: list[Any] | None, retain: bool | None, options: dict[str, Any]) -> tuple[Any, ...]:
    given = [] if cts is None else cts
    sizes = {int(c.shape[0]) for c in given if c is not None and len(c.shape)}
    if len(sizes) != 1 or any(c is not None and not len(c.shape) for c in given):
        raise AotgradRuntimeError("is_grads_batched=True: every one of grad_outputs needs a leading dim, of one size")
    count, keep = sizes.pop(), options["create_graph"] if retain is None else retain
    found = _at_once(outs, ins, given, options) if count > 1 else None
    rows: list[Any] = []
    for k in range(count if found is None else 0):
        row = [None if c is None else call(TORCH["reshape"], (call(TORCH["narrow"], (c, 0, k, 1), {}), tuple(c.shape)[1:]), {}) for c in given]
        rows.append(grad(outs, ins, row, k < count - 1 or keep, **options))
    if not count:
        return tuple([wrap(np.zeros((0, *x.shape), x._dtype.np), type(x)._value_type) for x in ins])
    out = found or tuple([None if column[0] is None else call(TORCH["stack"], (list(column),), {}) for column in zip(*rows)])
    if found and not keep:
        engine.grad(outs, ins, [None if c is None else c.detach()[0] for c in given], retain_graph=False, allow_unused=True)  # frees what was saved
    return out


guard(globals(), __all__)
