"""Marks that matter to derivatives alone (``hook``, ``graft``), and calls of Python from programs (``host_call``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..host import results
from ..opdef import REQUIRED, Kernel, Linear, Linearize, OpDef, Sample, Scalar, register
from ..transforms.batch import batched_type, spread
from ..types import TensorType
from .common import elementwise_rule

Types = Sequence[TensorType]
Attrs = Mapping[str, Any]


def _no_samples() -> Iterable[Sample]:
    return ()


def _hook_transpose(b: Any, ct: Any, op: Any) -> dict[int, Any]:
    return {0: b.emit("host_call", [ct], {"call": op.attrs["call"], "types": (ct.type,)})[0]}


def _host_linearize(b: Any, ins: Sequence[Any], outs: Sequence[Any], a: Attrs, active: Sequence[bool]) -> Any:
    call, linear = a["call"], a["linear"]
    moving = [i for i, x in enumerate(ins) if x.type.dtype.is_differentiable]
    floats = [o for o in outs if o.type.dtype.is_differentiable]

    def tangents_of(lb: Any, tangents: Sequence[Any]) -> list[Any]:
        if linear and not any(tangents[i] is not None for i in range(linear)):  # only the part it is linear in moves
            given = [t if t is not None else lb.zeros(ins[i]) for i, t in enumerate(tangents) if i >= linear]
            found = lb.emit("host_call", [*ins[:linear], *given], a)
        else:
            given = [tangents[i] if tangents[i] is not None else lb.zeros(ins[i]) for i in moving]
            found = lb.emit("host_call", [*ins, *given],
                            {"call": call.pushed(len(ins)), "types": tuple(o.type for o in floats), "linear": len(ins), "turned": call.pulled(len(ins))})
        it = iter(found)
        return [next(it) if o.type.dtype.is_differentiable else None for o in outs]

    return tangents_of


def _host_transpose(b: Any, cts: Any, op: Any) -> dict[int, Any]:
    n, turned = op.attrs["linear"], op.attrs["turned"]
    given = [b.zeros(t) if c is None else c for c, t in zip(cts if isinstance(cts, (tuple, list)) else [cts], op.attrs["types"])]
    types = tuple(o.type if hasattr(o, "type") else o for o in op.operands[n:])
    found = b.emit("host_call", [*op.operands[:n], *given], {"call": turned, "types": types, "linear": n, "turned": op.attrs["call"]})
    return {n + i: x for i, x in enumerate(found)}


def _hook_batch(b: Any, op: Any, xs: Sequence[Any], on: Sequence[bool], size: Any) -> Any:
    return b.hook(xs[0], call=op.attrs["call"].looped([True], [op.result.type]))


def _host_batch(b: Any, op: Any, xs: Sequence[Any], on: Sequence[bool], size: Any) -> Any:
    """The function is called for each example; what it is linear in, if marked, has one part for each."""
    a, n = op.attrs, op.attrs["linear"]
    flags = [k or bool(n) and i >= n for i, k in enumerate(on)]
    given = [b.placed(spread(b, x, k, size), None) if f else x for x, k, f in zip(xs, on, flags)]
    turned = a["turned"] and a["turned"].looped([*flags[:n], *(True for _ in a["types"])], [o.type for o in op.operands[n:]])
    call = a["call"].looped(flags, a["types"])
    return b.emit("host_call", given, {**a, "call": call, "types": tuple(batched_type(t, size) for t in a["types"]), "turned": turned})


register(OpDef(
    "hook", "x; backward passes the cotangent through Python functions.", ("x",), lambda types, a: (types[0],), lambda x, call: x, Linear(_hook_transpose),
    Scalar(lambda k, op, x: x), {"call": REQUIRED}, _no_samples, layouts="any", exact=True, batch=_hook_batch))
register(OpDef(
    "graft", "``value`` with the derivative of ``history``: what an unrecorded write makes of a value.", ("value", "history"), elementwise_rule(),
    lambda value, history: value, Linearize(lambda b, ins, outs, a, active: lambda lb, tangents: [tangents[1]]), Scalar(lambda k, op, x, y: x), {}, _no_samples,
    layouts="elementwise", exact=True))
register(OpDef(
    "host_call", "Results of a Python function on the operands; the compiled program is cut here.", ("values*",), lambda types, a: tuple(a["types"]),
    lambda *xs, call, types, linear, turned, effect: tuple(results(call, xs, (), types)), Linearize(_host_linearize, _host_transpose), Kernel("host_call"),
    {"call": REQUIRED, "types": REQUIRED, "linear": 0, "turned": None, "effect": False}, _no_samples, layouts="any", exact=True, outputs=("values*",), batch=_host_batch))
