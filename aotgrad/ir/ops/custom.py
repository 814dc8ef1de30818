"""Programs with derivative rules of the user's: ``custom``, and ``custom_linear``, which stands for the rule in linear parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aotgrad_runtime.errors import AotgradTypeError

from ..opdef import REQUIRED, Kernel, Linearize, OpDef, Sample, register
from ..transforms import batch_control as batching
from ..transforms import custom as rules
from ..types import TensorType

Types = Sequence[TensorType]
Attrs = Mapping[str, Any]


def _taken(types: Types, given: Sequence[Any], what: str) -> None:
    if [v.type for v in given] != list(types):
        raise AotgradTypeError(f"{what} takes {[str(v.type) for v in given]}, the operands are {[str(t) for t in types]}")


def _custom_rule(types: Types, a: Attrs) -> Types:
    body = a["regions"][0]
    _taken(types, body.args, "custom: the body")
    outs = [v.type for v in body.outputs]
    return tuple(outs if a["saved"] else outs[:a["outs"]])


def _linear_rule(types: Types, a: Attrs) -> Types:
    forward, reverse = a["regions"]
    n = a["residuals"]
    if rules.present(forward):
        _taken(types, forward.args, "custom_linear: the forward rule")
        return tuple(v.type for v in forward.outputs)
    _taken(types[:n], reverse.args[:n], "custom_linear: the reverse rule")
    return tuple(v.type for v in reverse.args[n:])


def _no_samples() -> Iterable[Sample]:
    return ()


register(OpDef(
    "custom", "A program (region 0: operands -> results, then kept values) with the user's forward rule (region 1) and reverse rule (region 2); an empty one follows "
              "from the other.",
    ("values*",), _custom_rule, None, Linearize(rules.linearize_custom), Kernel("custom"),
    {"name": REQUIRED, "outs": REQUIRED, "moving": (), "cts": (), "residuals": (), "grads": (), "through": False, "saved": False, "once": "", "error": "", "batch": None},
    _no_samples, layouts="any", regions=3, outputs=("values*",), batch=batching.batch_custom))
register(OpDef(
    "custom_linear", "The user's rule in a linear part: (residuals, tangents) -> tangents; region 0 is the forward rule, region 1 the reverse rule.", ("values*",),
    _linear_rule, None, Linearize(rules.linearize_linear, rules.transpose_linear), Kernel("custom"),
    {"name": REQUIRED, "residuals": REQUIRED, "grads": (), "once": ""}, _no_samples, layouts="any", regions=2, outputs=("values*",),
    batch=batching.batch_linear))
