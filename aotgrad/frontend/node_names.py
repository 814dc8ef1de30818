"""What nodes of the tape are called where torch's name depends on the arguments, so that ``grad_fn`` prints as there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aotgrad_runtime.tensor import Tensor

from .front import Public

__all__ = ["node_name"]

_NAMES = {
    "reorder": "PermuteBackward0", "movedim": "PermuteBackward0", "swap": "TransposeBackward0", "spread": "ExpandBackward0", "flatten": "ViewBackward0",
    "chunk": "SplitBackward0", "narrow": "SliceBackward0", "clip": "ClampBackward1", "tile": "RepeatBackward0", "norm": "LinalgVectorNormBackward0",
    "constant_pad": "ConstantPadNdBackward0",
    "square": "PowBackward0", "log1p": "Log1PBackward0", "convert": "ToCopyBackward0", "to_float": "ToCopyBackward0", "to_double": "ToCopyBackward0",
}
_REDUCED = {"sum": ("SumBackward0", "SumBackward1"), "mean": ("MeanBackward0", "MeanBackward1"), "prod": ("ProdBackward0", "ProdBackward1"),
            "max": ("MaxBackward1", "MaxBackward0"), "min": ("MinBackward1", "MinBackward0"), "squeeze": ("SqueezeBackward0", "SqueezeBackward1")}
_PRODUCTS = {(2, 2): "MmBackward0", (2, 1): "MvBackward0", (1, 1): "DotBackward0", (3, 3): "BmmBackward0"}


def _reduced(names: tuple[str, str]) -> Callable[..., str]:
    return lambda arguments, operands: names[arguments.get("dim") is not None]


def _rank(x: Any) -> int:
    return len(getattr(x, "shape", ()))


def _product(arguments: dict[str, Any], operands: Sequence[Any]) -> str:
    return _PRODUCTS.get((_rank(operands[0]), _rank(operands[1])), "MatmulBackward0")


def _power(arguments: dict[str, Any], operands: Sequence[Any]) -> str:
    base, exponent = (isinstance(x, Tensor) for x in operands[:2])
    return "PowBackward1" if base and exponent else "PowBackward0" if base else "PowBackward2"


_RULES: dict[str, Callable[..., str]] = {**{k: _reduced(v) for k, v in _REDUCED.items()}, "matmul": _product, "pow": _power}


def node_name(public: Public, arguments: dict[str, Any], operands: Sequence[Any]) -> str:
    """torch's name of the node of a call."""
    rule = _RULES.get(public.op.name) or _RULES.get(public.name)
    if rule is not None:
        return rule(arguments, operands)
    return _NAMES.get(public.op.name, public.node_name)
