"""What nodes of the tape are called where torch's name depends on the arguments, so that ``grad_fn`` prints as there; and which arguments they have edges for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from aotgrad_runtime.tensor import Tensor

from .front import Public

__all__ = ["edges_of", "node_name"]

_NAMES = {
    "reorder": "PermuteBackward0", "movedim": "PermuteBackward0", "swap": "TransposeBackward0", "spread": "ExpandBackward0", "flatten": "ViewBackward0",
    "unflatten": "ViewBackward0", "sum_to_size": "SumBackward1",
    "chunk": "SplitBackward0", "narrow": "SliceBackward0", "clip": "ClampBackward1", "tile": "RepeatBackward0", "norm": "LinalgVectorNormBackward0",
    "deg2rad": "Deg2RadBackward0", "rad2deg": "Rad2DegBackward0", "take_along_dim": "GatherBackward0",
    "sgn": "SgnBackward0", "vector_dot": "DotBackward0", "scatter_add_along": "ScatterAddBackward0",
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


def _numbered(tensor: str, number: str, *parameters: str) -> Callable[..., str]:
    """The name where one of these parameters is a tensor, and where none is."""
    return lambda arguments, operands: tensor if any(isinstance(arguments.get(p), Tensor) for p in parameters) else number


def _border(arguments: dict[str, Any], operands: Sequence[Any]) -> str:
    mode = arguments.get("mode", "constant")
    if mode == "circular":
        return "CopySlices"
    kind = {"reflect": "Reflection", "replicate": "Replication"}.get(mode)
    return "ConstantPadNdBackward0" if kind is None or "pad" not in arguments else f"{kind}Pad{len(arguments['pad']) // 2}DBackward0"


def _entropy(arguments: dict[str, Any], operands: Sequence[Any]) -> str:
    return "NllLoss2DBackward0" if _rank(operands[0]) > 2 else "NllLossBackward0"


_RULES: dict[str, Callable[..., str]] = {
    **{k: _reduced(v) for k, v in _REDUCED.items()}, "matmul": _product, "pow": _power, "nll_loss": _entropy, "constant_pad": _border,
    "clip": _numbered("ClampBackward0", "ClampBackward1", "min", "max"), "clamp_min": _numbered("ClampMinBackward1", "ClampMinBackward0", "min"),
    "clamp_max": _numbered("ClampMaxBackward1", "ClampMaxBackward0", "max"), "lerp": _numbered("LerpBackward1", "LerpBackward0", "weight"),
    "remainder": _numbered("RemainderBackward1", "RemainderBackward0", "other"), "fmod": _numbered("FmodBackward1", "FmodBackward0", "other"),
    "rsub": _numbered("RsubBackward0", "RsubBackward1", "other"),
    "masked_fill": _numbered("MaskedFillBackward1", "MaskedFillBackward0", "value"), "scatter_along": _numbered("ScatterBackward0", "ScatterBackward1", "src"),
    "div": lambda arguments, operands: "DivBackward0" if arguments.get("rounding_mode") is None else "DivBackward2",
    "xlogy": lambda arguments, operands: f"XlogyBackward{0 if all(isinstance(x, Tensor) for x in operands) else 1 + isinstance(operands[0], Tensor)}",
    "split": lambda arguments, operands: "SplitBackward0" if isinstance(arguments.get("split_size_or_sections"), int) else "SplitWithSizesBackward0",
}


def node_name(public: Public, arguments: dict[str, Any], operands: Sequence[Any]) -> str:
    """torch's name of the node of a call."""
    rule = _RULES.get(public.op.name) or _RULES.get(public.name)
    if rule is not None:
        return rule(arguments, operands)
    return _NAMES.get(public.name) or _NAMES.get(public.op.name, public.node_name)


# torch has a form of them that takes plain numbers
_WITHOUT_NUMBERS = frozenset(("clip", "clamp_min", "clamp_max", "fmod", "lerp", "masked_fill", "remainder", "rsub", "scatter_along", "xlogy"))
_OPTIONAL = frozenset(("weight", "bias", "min", "max"))


def edges_of(public: Public, arguments: dict[str, Any], taken: Sequence[bool], differentiable: Sequence[bool]) -> tuple[int | None, ...] | None:
    """Which arguments of a program its nodes have edges for, in torch's order (see ``Program.edges``): tensors and what becomes one, and parameters that are left out.

    ``taken``: which operands of the call are arguments of the program; ``differentiable``: which of these can have gradients.
    """
    numbers, plain = itertools.count(), False
    places = iter([next(numbers) if on else None for on in taken])
    found: dict[str, list[int | None]] = {}
    for name in public.tensors:
        given = arguments.get(name)
        if given is None:
            found[name] = [None] if name in _OPTIONAL else []
            continue
        found[name] = []
        for x in given if isinstance(given, list) else (given,):
            place = next(places)
            plain = plain or not isinstance(x, Tensor)
            if place is not None and differentiable[place] and (isinstance(x, Tensor) or public.op.name not in _WITHOUT_NUMBERS):
                found[name].append(place)
    if plain and public.op.name in _WITHOUT_NUMBERS:
        found = {name: [i for i in at if i is not None] for name, at in found.items()}
    edges = tuple([i for name in public.tensors if name not in public.constants for i in found[name]])
    return None if edges == tuple(range(len(differentiable))) else edges
