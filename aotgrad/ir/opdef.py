"""``OpDef``: everything about one op, and the registry of all of them.

An op is declared once, in ``ir/ops/<family>.py``. What is derived from the declaration: the public function and method, eager
execution, tracing, text, verification, both derivative modes, native code, and its row in the table test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from aotgrad_runtime.errors import AotgradTypeError, AotgradValueError
from aotgrad_runtime.records import record

from .core import Block, Op, Value
from .types import Layout, TensorType

__all__ = [
    "Bilinear", "Composite", "Domain", "Edges", "Front", "Index", "Kernel", "Linear", "Linearize", "Lowering", "OpDef", "Partials", "REQUIRED", "Reduce", "Sample",
    "Scalar", "View", "ViewMap", "Zero", "all_ops", "get", "limited", "register",
]

REQUIRED: Any = object()
"""Marks an attribute without a default."""


# ---- derivative kinds -------------------------------------------------------------------------------------------------------

@record(frozen=True)
class Composite:
    """``body(b, *operands, **attrs)`` gives the result in other ops. Type rule, derivative, batching and lowering follow."""

    body: Callable[..., Any]


@record(frozen=True)
class Partials:
    """Elementwise. One ``fn(b, ins, out) -> Value`` per operand (None: not differentiable): the partial, as an array of the result's shape."""

    fns: tuple[Callable[..., Any] | None, ...]


@record(frozen=True)
class Linear:
    """Linear in ``operands`` (indices, None = all) jointly; the JVP is the op itself, with zeros for the tangents that are absent.

    ``transpose(b, ct, op) -> {operand index: cotangent}`` where ``op`` has ``operands`` (types for the linear ones), ``attrs``; a cotangent may
    be an ``Accumulate`` that adds into the one already there. ``partial(lb, tangents)``: the result when some tangents are absent (else zeros stand in).
    """

    transpose: Callable[..., Any]
    operands: tuple[int, ...] | None = None
    partial: Callable[..., Any] | None = None


@record(frozen=True)
class Bilinear:
    """Linear in operand 0 and in operand 1 apart. ``transposes[i](b, ct, other, op) -> cotangent of operand i``.

    ``tangent``: name of the op used in the linear part ("lmul" for mul, so that zero annihilates), None = the op itself.
    """

    transposes: tuple[Callable[..., Any], Callable[..., Any]]
    tangent: str | None = None


@record(frozen=True)
class Zero:
    """No derivative: the tangent of the result is structurally absent."""


@record(frozen=True)
class Linearize:
    """``fn(b, ins, outs, attrs, active) -> linear(lb, tangents) -> tangents of outs``; tangents are Value or None, the linear part uses ops with transposes.

    ``transpose``: as in ``Linear``, for an op that stands in linear parts itself (with some operands fixed).
    """

    fn: Callable[..., Any]
    transpose: Callable[..., Any] | None = None


Derivative = Composite | Partials | Linear | Bilinear | Zero | Linearize


# ---- kernel-level meaning ---------------------------------------------------------------------------------------------------

@record(frozen=True)
class Domain:
    """Integers that an op has a meaning for. Where ``applies(op)``, each element of operand ``operand`` must satisfy ``holds(k, op, x)``; ``text``: what the error
    says, {dtype} in it for the result's; ``error``: 0 for a ``ValueError``, 1 for a division by zero, 2 for an ``OverflowError``. Or they are indices, in
    ``bounds(op)`` for each operand: (least, size, dim), or None."""

    operand: int
    applies: Callable[..., bool]
    holds: Callable[..., Any]
    text: str
    error: int = 0
    bounds: Callable[..., Any] | None = None


@record(frozen=True)
class Scalar:
    """Elementwise: ``fn(k, op, *scalars) -> scalar`` with ``k`` the kernel-level scalar builder (codegen's ``ScalarBuilder``). Outside of ``domain`` it is an error."""

    fn: Callable[..., Any]
    domain: Domain | None = None


@record(frozen=True)
class Index:
    """Elementwise without operands, from the position: ``fn(k, op, indices) -> scalar`` (iota, eye masks)."""

    fn: Callable[..., Any]


@record(frozen=True)
class Reduce:
    """Reduction over ``attrs["dims"]``: ``combine`` in add, mul, max, min, and, or."""

    combine: str


@record(frozen=True)
class ViewMap:
    """Where result element i comes from: input index d = ``offsets[d] + sum(i[j] * step for j, step in steps[d])``."""

    offsets: tuple[Any, ...]
    steps: tuple[tuple[tuple[int, Any], ...], ...]


@record(frozen=True)
class View:
    """No data moves: ``fn(op) -> ViewMap`` of operand 0."""

    fn: Callable[..., ViewMap]


@record(frozen=True)
class Kernel:
    """A named kernel that code generation knows: dot, reshape, concatenate, pad, insert, gather, scatter, cumulate, argreduce, scan, cond, relayout, ..."""

    kind: str


@record(frozen=True)
class Body:
    """Other ops, ``fn(b, *operands, **attrs)``, which take its place before code generation: for what is differentiated as one op, unlike a composite."""

    fn: Callable[..., Any]


Lowering = Scalar | Index | Reduce | View | Kernel | Body


# ---- how an op appears to users ---------------------------------------------------------------------------------------------

@record(frozen=True)
class Front:
    """The public face. ``signature`` is torch's; ``canon(b, *args, **kw)`` turns public arguments into ops (None: promote, broadcast, emit).

    ``tensors``: the parameters that are arrays (default: as many of the first as the op has operands). ``promote``: "float" (ints
    become float), "arith", "minus" (the same; tensors of bools are refused), "number" (the same; bools become int8 as in NumPy), "compare", "bool", "where",
    "contract" (common dtype, no broadcasting), "product" (the same; tensors must have one dtype), "none", or a function of the arguments that gives one of these.
    ``np``: names of NumPy functions and ufuncs it serves;
    ``np_signature`` where NumPy's argument order or defaults differ; ``np_canon`` likewise. ``respell``: positional arguments given in another way, as the signature's.
    """

    signature: str
    canon: Callable[..., Any] | None = None
    promote: str | Callable[[Mapping[str, Any]], str] = "arith"
    np: tuple[str, ...] = ()
    np_signature: str | None = None
    np_canon: Callable[..., Any] | None = None
    function: bool = True
    method: bool = True
    inplace: bool = False
    functional: bool = False
    aliases: tuple[str, ...] = ()
    operator: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()
    respell: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None


@record(frozen=True)
class Sample:
    """One row of the table test: operand arrays (NumPy) and attributes; ``front``: public arguments instead."""

    operands: tuple[Any, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""


@record(frozen=True)
class Edges:
    """Layouts (None: row-major) of an op's operands, and of the arguments and outputs of each of its regions."""

    operands: Sequence[Layout | None]
    args: Sequence[Layout | None]
    outputs: Sequence[Layout | None]


@record(frozen=True)
class OpDef:
    """See the module docstring. ``operands``: names; the last may end in "*" (any number). ``attrs``: name to default (``REQUIRED`` for none)."""

    name: str
    doc: str
    operands: tuple[str, ...]
    type_rule: Callable[[Sequence[TensorType], Mapping[str, Any]], Sequence[TensorType]] | None
    ref: Callable[..., Any] | None
    derivative: Derivative
    lower: Lowering | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)
    samples: Callable[[], Iterable[Sample]] | None = None
    front: Front | None = None
    batch: Callable[..., Any] | None = None
    layouts: str = "row_major"  # "elementwise" (all equal), "any", "row_major", "channels_last" (images in either), "moved" (operands of full rank and the result in one)
    moved: Callable[[Sequence[TensorType]], Layout | None] | None = None  # of "moved" ops: which layout that is, for operands in any
    row_major: Callable[[Op], Sequence[int]] | None = None  # of ops on images: passes over each operand and the result that it costs more when that is row-major
    regions: int = 0
    edges: Callable[[Mapping[str, Any], Sequence[Block]], Edges] | None = None  # of ops with regions: the layouts in which values come into them and leave them
    grad_fn: str | None = None
    exact: bool = False  # NumPy's result is exactly rounded or a move, so ``ref`` may serve as the eager implementation
    outputs: tuple[str, ...] = ("out",)

    @property
    def variadic(self) -> bool:
        return bool(self.operands) and self.operands[-1].endswith("*")

    @property
    def node_name(self) -> str:
        """torch's name of the node: AddBackward0."""
        return self.grad_fn or "".join(part.capitalize() for part in self.name.split("_")) + "Backward0"

    def complete(self, attrs: Mapping[str, Any]) -> dict[str, Any]:
        """Attributes with defaults filled in; unknown or missing ones are errors."""
        if not attrs and not self.attrs:
            return {}
        for key in attrs:
            if key not in self.attrs:
                raise AotgradTypeError(f"ag.{self.name} has no attribute {key!r}; it takes {', '.join(self.attrs) or 'none'}")
        out = {k: attrs.get(k, default) for k, default in self.attrs.items()}
        for key, value in out.items():
            if value is REQUIRED:
                raise AotgradTypeError(f"ag.{self.name} needs attribute {key!r}")
        return out

    def check_operands(self, operands: Sequence[Value | TensorType]) -> None:
        """The number of operands fits."""
        if len(operands) == len(self.operands):
            return
        least = len(self.operands) - self.variadic
        if len(operands) < least or (len(operands) > least and not self.variadic):
            raise AotgradValueError(f"ag.{self.name} takes {least}{' or more' if self.variadic else ''} operands ({', '.join(self.operands)}), not {len(operands)}")


_REGISTRY: dict[str, OpDef] = {}


def register(op: OpDef) -> OpDef:
    """Adds an op at import; a second op of the same name is a fault of the source."""
    if op.name in _REGISTRY:
        raise AotgradValueError(f"op {op.name!r} is declared twice")
    _REGISTRY[op.name] = op
    return op


def get(name: str) -> OpDef:
    """The op called ``name`` (without "ag.")."""
    try:
        return _REGISTRY[name]
    except KeyError:
        raise AotgradValueError(f"unknown op ag.{name}; see aotgrad.ir.opdef.all_ops()") from None


def limited(op: Op) -> Domain | None:
    """The domain that an elementwise op asks about at run time."""
    low = get(op.name).lower
    domain = low.domain if isinstance(low, Scalar) else None
    return domain if domain is not None and domain.applies(op) else None


def all_ops() -> Mapping[str, OpDef]:
    """Every op by name."""
    return _REGISTRY
