"""``Function``: an operation with a derivative of the user's, on the tape, in forward mode and in compiled code."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from aotgrad.frontend.boundary import guard
from aotgrad.frontend.dispatch import TORCH, call
from aotgrad.frontend.eager import Dual, Kept, Packed, make_dual, packed
from aotgrad.frontend.inplace import store
from aotgrad.frontend.rules import Rule, call_traced, fit, flavour, split_level, tensor_of, transposed_call, zeros_like
from aotgrad.frontend.sizes import TracedSize
from aotgrad.frontend.subtrace import as_value
from aotgrad.frontend.trace import Trace, Traced, TracedArray, TracedTensor, current, tracing
from aotgrad.frontend.transforms import inside_transform
from aotgrad.frontend.views import mark_view
from aotgrad.ir import Block, Op, Value
from aotgrad.ir.dims import Dim
from aotgrad.ir.transforms.rewrite import decompose_block
from aotgrad_runtime import modes
from aotgrad_runtime.errors import AotgradNotImplementedError, AotgradRuntimeError, AotgradTypeError
from aotgrad_runtime.tape import FREED_TEXT, Freed, Node, SavedArray, cell_of, edge_of
from aotgrad_runtime.tensor import ArrayTensor, Tensor, make_output, wrap

__all__ = ["Function", "FunctionCtx", "once_differentiable"]

_NO_BACKWARD = "You must implement either the backward or vjp method for your custom autograd.Function to use it with backward mode AD."
_NO_JVP = "the jvp function for custom autograd.Function to use it with forward mode AD"
Slot = tuple[str, Any]


class _MissingError(AotgradNotImplementedError, RuntimeError):
    """A method that the Function does not have: NotImplementedError, as in torch."""


class FunctionCtx:
    """What the methods of a ``Function`` share. Take any attribute you like; tensors for backward go through ``save_for_backward``."""

    needs_input_grad: tuple[bool, ...] = ()
    materialize_grads: bool = True
    _to_save: tuple[Any, ...] = ()
    _for_forward: tuple[Any, ...] | None = None
    _dirty: tuple[Any, ...] = ()
    _plain: tuple[Any, ...] = ()
    _numbers: bool = False  # in calls entered with NumPy or Python values numbers may be saved too
    _shown: tuple[Any, ...] | None = None  # what saved_tensors gives while a rule runs at some level or in a trace

    def save_for_backward(self, *tensors: Any) -> None:
        """Keeps tensors (or None) for ``backward``: as they are now, whatever is written into them later. Read them as ``ctx.saved_tensors``."""
        self._to_save = _checked(tensors, "save_for_backward", self._numbers)

    def save_for_forward(self, *tensors: Any) -> None:
        """Keeps tensors for ``jvp``, which reads them as ``ctx.saved_tensors``."""
        self._for_forward = _checked(tensors, "save_for_forward", self._numbers)

    def mark_dirty(self, *args: Any) -> None:
        """Names inputs that ``forward`` changed in place; each must be returned."""
        self._dirty = _marked(args, "mark_dirty", self._numbers)

    def mark_non_differentiable(self, *args: Any) -> None:
        """Names results without derivative; ``backward`` still takes one gradient for each, zeros."""
        self._plain = _marked(args, "mark_non_differentiable", self._numbers)

    def set_materialize_grads(self, value: bool) -> None:
        """``False``: gradients that are structurally zero reach ``backward`` as None, not as zeros."""
        if not isinstance(value, bool):
            raise AotgradTypeError(f"set_materialize_grads(): argument 'value' must be bool, not {type(value).__name__}")
        self.materialize_grads = value

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What ``save_for_backward`` (in ``jvp``: ``save_for_forward``) kept."""
        return self._to_save if self._shown is None else self._shown


def _marked(tensors: Sequence[Any], what: str, numbers: bool) -> tuple[Any, ...]:
    for i, t in enumerate(tensors):
        if not isinstance(t, (Tensor, np.ndarray, np.generic)) and not (numbers and type(t) in (float, int)):
            raise AotgradRuntimeError(f"{what} can only accept variables, but argument {i} is of type {type(t).__name__}; give the tensors one by one")
    return tuple(tensors)


def _checked(tensors: Sequence[Any], what: str, numbers: bool) -> tuple[Any, ...]:
    for i, t in enumerate(tensors):
        if t is not None and not isinstance(t, (Tensor, np.ndarray, np.generic)) and not (numbers and type(t) in (float, int)):
            raise AotgradTypeError(f"{what} can only save variables, but argument {i} is of type {type(t).__name__}; keep other values as attributes of ctx")
    return tuple(tensors)


class _Showing:
    """``ctx.saved_tensors`` gives ``tensors`` inside."""

    def __init__(self, ctx: FunctionCtx, tensors: Sequence[Any], needs: tuple[bool, ...] | None = None) -> None:
        self.ctx, self.tensors, self.needs = ctx, tuple(tensors), needs

    def __enter__(self) -> None:
        self.before = self.ctx._shown, self.ctx.needs_input_grad
        self.ctx._shown = self.tensors
        if self.needs is not None:
            self.ctx.needs_input_grad = self.needs

    def __exit__(self, *exc: object) -> None:
        self.ctx._shown, self.ctx.needs_input_grad = self.before


class _SavedTensor:
    """A tensor for backward: itself while nobody has written into it, else its numbers and its place in the graph of then."""

    __slots__ = ("kept", "node", "tensor")

    def __init__(self, tensor: Any) -> None:
        self.tensor, self.kept, self.node = tensor, Kept(tensor), tensor._node
        if isinstance(self.kept.kept, Packed):  # the pack hook decides what stays in memory
            self.tensor = None

    def value(self) -> Any:
        x = self.tensor
        return self.kept.value() if x is None else x if x._data is self.kept.kept.data and x._node is self.node else self.kept.value()


class FunctionNode(Node, FunctionCtx):
    """The node of one call, which is also its ``ctx``."""

    _function: ClassVar[Any] = None
    takes_none = True

    def __init__(self, count: int) -> None:
        super().__init__()
        self.outputs = 1
        self._inputs: list[tuple[tuple[Any, ...], Any, type[Any]] | None] = [None] * count  # shape, dtype and class of each tensor input
        self._results: list[tuple[tuple[Any, ...], Any, type[Any]] | None] = []
        self._slots: list[Slot] = []
        self._forward_slots: list[Slot] = []
        self._constant: set[int] = set()  # results marked as not differentiable

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        if self._shown is not None:
            return self._shown
        if type(self._saved) is Freed:
            raise AotgradRuntimeError(FREED_TEXT)
        if self._saved is None:
            return self._to_save
        return tuple([make_output(s[1].data, self, s[0], s[2]) if type(s) is tuple else s.value() if isinstance(s, _SavedTensor) else s for s in self._saved])

    def apply(self, cts: tuple[Any, ...]) -> tuple[Any, ...]:
        function = self._function
        full = [self._zeros(meta) if c is None and meta is not None and self.materialize_grads else c for c, meta in zip(cts, self._results)]
        rule = _given(function, "backward")
        if rule is not None:
            grads = _gradients(rule(self, *full), self.name, len(self._inputs))
        elif _given(function, "jvp") is not None:
            grads = self._from_jvp(full)
        else:
            raise _MissingError(_NO_BACKWARD)
        found: list[Any] = []
        for i, (g, meta) in enumerate(zip(grads, self._inputs)):
            if meta is None:
                if g is not None and not self._numpy:
                    raise AotgradRuntimeError(f"function {self.name} returned a gradient different than None at position {i + 1}, but the corresponding forward "
                                              f"input was not a Variable")
                continue
            found.append(None if g is None else self._fitted(g, meta, len(found)))
        return tuple([None if edge[0] is None else g for g, edge in zip(found, self.next_functions)])

    @property
    def _numpy(self) -> bool:
        return all(meta is None or issubclass(meta[2], ArrayTensor) for meta in self._inputs)

    @staticmethod
    def _zeros(meta: Any) -> Any:
        return wrap(np.zeros(meta[0], meta[1]), meta[2])

    def _fitted(self, g: Any, meta: Any, place: int) -> Any:
        if not isinstance(g, Tensor):
            if not self._numpy:
                raise AotgradRuntimeError(f"expected Variable or None (got {type(g).__name__}): {self.name} returned it at position {place}")
            g = tensor_of(g, meta[2])
        if tuple(g.shape) == meta[0] and g._dtype.np == meta[1]:
            return g
        return fit(g, wrap(np.empty(meta[0], meta[1]), meta[2]), self.name, place)

    def _from_jvp(self, cts: Sequence[Any]) -> list[Any]:
        """The transpose of ``jvp``."""
        saved = self.saved_tensors
        moving = [i for i, meta in enumerate(self._inputs) if meta is not None and meta[1].kind in "fcV"]
        likes = [self._zeros(self._inputs[i]) for i in moving]

        @modes.intact
        def push(ts: list[Any]) -> list[Any]:
            tangents: list[Any] = [None] * len(self._inputs)
            for i, t in zip(moving, ts):
                tangents[i] = t
            with _Showing(self, saved):
                return _tangents(self._function.jvp(self, *tangents), self.name, cts, self._constant)

        cls = next(meta[2] for meta in self._results if meta is not None)
        found = transposed_call(self.name, push, likes, cts, cls, _NO_BACKWARD.removeprefix("You must implement ").rstrip("."))
        out: list[Any] = [None] * len(self._inputs)
        for i, g in zip(moving, found):
            out[i] = g
        return out


def _given(function: Any, name: str) -> Any:
    """A method if the Function has one of its own (``vjp`` is another name of ``backward``)."""
    given = [f for n in (("backward", "vjp") if name == "backward" else (name,)) if (f := getattr(function, n)) is not getattr(Function, n)]
    if len(given) > 1:
        raise AotgradRuntimeError("Implementing both 'backward' and 'vjp' for a custom Function is not allowed. You should only implement one of them.")
    return given[0] if given else None


def _gradients(found: Any, name: str, count: int) -> list[Any]:
    grads = list(found) if isinstance(found, (tuple, list)) else [found]
    if len(grads) > count and all(g is None for g in grads[count:]):
        grads = grads[:count]
    if len(grads) != count:
        raise AotgradRuntimeError(f"function {name} returned an incorrect number of gradients (expected {count}, got {len(grads)})")
    return grads


def _tangents(found: Any, name: str, outs: Sequence[Any], constant: Collection[int]) -> list[Any]:
    """What ``jvp`` returned: a tangent, or None, for each of ``outs``. Those of integers and at ``constant`` places have none."""
    out = list(found) if isinstance(found, (tuple, list)) else [found]
    if len(out) != len(outs):
        raise AotgradRuntimeError(f"the jvp of {name.removesuffix('Backward')} returned an incorrect number of tangents (expected {len(outs)}, got {len(out)})")
    for j, (o, t) in enumerate(zip(outs, out)):
        if t is not None and (j in constant or isinstance(o, Tensor) and not o._dtype.is_differentiable):
            raise AotgradRuntimeError(f"Function's jvp returned a gradient at position {j}, but the corresponding forward output is not a differentiable Tensor. You "
                                      f"should return None at that position instead, in {name.removesuffix('Backward')}.jvp.")
    return out


class Function:
    """Base class of operations with a derivative of their own; subclass it and call ``apply``.

    ``forward(ctx, *args)`` computes the result without recording; ``backward(ctx, *grads)`` gives one gradient per argument (None where there is none),
    ``jvp(ctx, *tangents)`` the tangents. With ``setup_context(ctx, inputs, output)``, ``forward`` takes no ctx. A rule that is missing is derived from the other one
    where that consists of aotgrad's ops.

    >>> import aotgrad as ag
    >>> class Cube(ag.autograd.Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x ** 3
    ...     @staticmethod
    ...     def backward(ctx, g):
    ...         x, = ctx.saved_tensors
    ...         return 3 * x ** 2 * g
    >>> x = ag.tensor(2.0, requires_grad=True)
    >>> y = Cube.apply(x)
    >>> y
    tensor(8., grad_fn=<CubeBackward>)
    >>> y.backward()
    >>> x.grad
    tensor(12.)
    """

    _backward_cls: ClassVar[Any] = None
    generate_vmap_rule: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._backward_cls = type(f"{cls.__name__}Backward", (FunctionNode,), {"_function": cls, "__module__": cls.__module__})

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise AotgradTypeError(f"{type(self).__name__} should not be instantiated: the methods of an autograd Function are static, and calls go through "
                               f"{type(self).__name__}.apply(...)")

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """``forward(ctx, *args)``, or ``forward(*args)`` beside ``setup_context``."""
        raise _MissingError("You must implement the forward function for custom autograd.Function.")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        """Fills ``ctx`` after ``forward(*inputs)`` gave ``output``."""
        raise _MissingError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Gradients of the arguments from those of the results."""
        raise _MissingError(_NO_BACKWARD)

    @staticmethod
    def vjp(ctx: Any, *grad_outputs: Any) -> Any:
        """Another name of ``backward``."""
        raise _MissingError(_NO_BACKWARD)

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Any:
        """Tangents of the results from those of the arguments."""
        raise _MissingError(f"You must implement {_NO_JVP}.")

    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        """``(output, out_dims)`` of a call with the examples along ``in_dims`` (None: shared); ``info.batch_size`` is their number. Without it, and with
        ``generate_vmap_rule = True``, the batched call follows from ``forward`` and its rules."""
        raise _MissingError("To use autograd.Function with vmap, implement the vmap staticmethod or set generate_vmap_rule=True.")

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """The result of ``forward``, recorded where an argument requires grad."""
        split = cls.setup_context is not Function.setup_context
        if kwargs or split:
            args = _bound(cls, args, kwargs, split)
        if current() is not None or any(isinstance(a, Traced) for a in args):
            return _apply_traced(cls, args, split)
        _, outs, many = _apply(cls, args, split)
        return tuple(outs) if many else outs[0]


def _bound(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any], split: bool) -> tuple[Any, ...]:
    signature = inspect.signature(cls.forward)
    given = signature.bind(*args, **kwargs) if split else signature.bind(None, *args, **kwargs)
    given.apply_defaults()
    if given.kwargs:
        raise AotgradTypeError(f"{cls.__name__}.apply: keyword-only arguments ({', '.join(given.kwargs)}) are not supported; make them positional")
    return given.args if split else given.args[1:]


def _forward(cls: Any, ctx: Any, args: Sequence[Any], split: bool) -> Any:
    if not split:
        return cls.forward(ctx, *args)
    output = cls.forward(*args)
    cls.setup_context(ctx, tuple(args), output)
    return output


# ---- eager --------------------------------------------------------------------------------------------------------------------------

def _place(x: Any, among: Sequence[Any]) -> int | None:
    return next((i for i, y in enumerate(among) if y is x), None)


@modes.intact
def _apply(cls: Any, args: Sequence[Any], split: bool) -> tuple[FunctionNode, list[Any], bool]:
    """ctx, results, and whether they were a tuple."""
    if any(isinstance(a, Dual) for a in args):
        return _apply_dual(cls, args, split)
    ctx = cls._backward_cls(len(args))
    ctx.needs_input_grad = tuple([isinstance(a, Tensor) and a._requires_grad for a in args])
    ctx._numbers = not any(isinstance(a, Tensor) and not isinstance(a, ArrayTensor) for a in args)
    executable = modes.state.grad and any(ctx.needs_input_grad)
    kind = flavour(args) if any(isinstance(a, Tensor) for a in args) else None
    if executable:
        ctx._inputs = [(tuple(a.shape), a._data.dtype, type(a)._value_type) if isinstance(a, Tensor) else None for a in args]
        ctx.next_functions = tuple([edge_of(a) if a._dtype.is_differentiable else (None, 0) for a in args if isinstance(a, Tensor)])
    with modes.no_grad():
        raw = _forward(cls, ctx, args, split)
    many = isinstance(raw, tuple)
    given = [wrap(np.asarray(o), kind) if kind is ArrayTensor and isinstance(o, (np.ndarray, np.generic, float)) else o for o in (raw if many else (raw,))]
    ctx.outputs = len(given)
    _check_dirty(ctx, given)
    ctx._constant = {j for j, o in enumerate(given) if _place(o, ctx._plain) is not None}
    outs = _wrapped(ctx, given, args, executable)
    _keep(ctx, cls, given, outs, args, executable)
    return ctx, outs, many


def _check_dirty(ctx: FunctionCtx, given: Sequence[Any]) -> None:
    if any(_place(d, given) is None for d in ctx._dirty):
        raise AotgradRuntimeError("Some elements marked as dirty during the forward method were not returned as output. The inputs that are modified inplace must "
                                  "all be outputs "
                                  "of the Function.")


def _wrapped(ctx: FunctionNode, given: Sequence[Any], args: Sequence[Any], executable: bool) -> list[Any]:
    """Results with their history."""
    outs: list[Any] = []
    for j, o in enumerate(given):
        if not isinstance(o, Tensor):
            ctx._results.append(None)
            outs.append(o)
            continue
        cls = type(o)._value_type
        ctx._results.append((tuple(o.shape), o._data.dtype, cls))
        dirty, is_input = _place(o, ctx._dirty) is not None, _place(o, args) is not None
        if not executable or not o._dtype.is_differentiable or _place(o, ctx._plain) is not None:
            if dirty and executable and o._requires_grad:  # no derivative goes through the write
                store(o, o.detach(), ctx.name)
            outs.append(o if dirty else _alias(o) if is_input and not o._requires_grad else o.detach() if o._requires_grad else o)
        elif dirty:
            outs.append(store(o, make_output(o._data, ctx, j, cls), ctx.name))
        elif is_input or o._requires_grad or _place(o, given[:j]) is not None:
            made = make_output(o._data, ctx, j, cls)
            outs.append(_shows(made, o))
        else:
            o._node, o._index, o._requires_grad = ctx, j, True
            outs.append(o)
    return outs


def _alias(x: Any) -> Any:
    return _shows(wrap(x._data, type(x)._value_type), x)


def _shows(out: Any, x: Any) -> Any:
    """``out`` as the view of ``x`` that it is."""
    mark_view(out, x, ("reshape",))
    out._extra.base = x if x._base is None else x._base
    return out


def _keep(ctx: FunctionNode, cls: Any, given: Sequence[Any], outs: Sequence[Any], args: Sequence[Any], executable: bool) -> None:
    """Settles what was saved: arguments and results by their place (forward mode asks for them at its levels), the rest by value."""
    def slot(t: Any) -> Slot:
        i, j = _place(t, args), _place(t, given)
        return ("in", i) if i is not None and _place(t, ctx._dirty) is None else ("out", j) if j is not None else ("value", t)

    ctx._slots = [slot(t) for t in ctx._to_save]
    ctx._forward_slots = ctx._slots if ctx._for_forward is None else [slot(t) for t in ctx._for_forward]
    wanted = ctx._to_save if _given(cls, "backward") is not None or ctx._for_forward is None else ctx._for_forward
    ctx._to_save, ctx._for_forward, ctx._dirty, ctx._plain = (), None, (), ()
    if not executable or not wanted:
        return
    saved: list[Any] = []
    for t in wanted:
        j = _place(t, given)
        if j is not None and outs[j]._node is ctx and outs[j]._index == j and (outs[j] is t or _place(t, args) is None):
            kind, cell = type(outs[j])._value_type, cell_of(outs[j])
            saved.append((j, packed(cell.save(outs[j]._data), kind, cell), kind))
        else:
            saved.append(_SavedTensor(t) if isinstance(t, Tensor) else SavedArray(t).data)
    ctx._saved = saved


def _at_level(slots: Sequence[Slot], args: Sequence[Any], outs: Sequence[Any]) -> list[Any]:
    return [args[x] if kind == "in" else outs[x] if kind == "out" else x for kind, x in slots]


@modes.intact
def _apply_dual(cls: Any, args: Sequence[Any], split: bool) -> tuple[FunctionNode, list[Any], bool]:
    level, primals, tangents = split_level(args)
    ctx, outs, many = _apply(cls, primals, split)
    if _given(cls, "jvp") is not None:
        with _Showing(ctx, _at_level(ctx._forward_slots, primals, outs)):
            moved = _tangents(cls.jvp(ctx, *_filled(ctx, primals, tangents)), ctx.name, outs, ctx._constant)
        moved = [t if t is None or not isinstance(o, Tensor) else fit(tensor_of(t, type(o)._value_type), o, ctx.name, j, "tangent", exact=True) for j,
                 (o, t) in enumerate(zip(outs, moved))]
    else:
        moved = _pushed_by_backward(cls, ctx, primals, tangents, outs)
    made = []
    for o, t in zip(outs, moved):
        i = _place(o, primals) if isinstance(o, Tensor) else None
        if i is not None and isinstance(args[i], Dual):  # changed in place: the dual value itself takes the new tangent
            args[i]._tangent = t
            made.append(args[i])
        else:
            made.append(make_dual(o, t, level) if isinstance(o, Tensor) and t is not None else o)
    return ctx, made, many


def _filled(ctx: FunctionNode, primals: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    return [zeros_like(x) if t is None and isinstance(x, Tensor) and x._dtype.is_differentiable and ctx.materialize_grads else t for x, t in zip(primals, tangents)]


def _pushed_by_backward(cls: Any, ctx: FunctionNode, primals: Sequence[Any], tangents: Sequence[Any], outs: Sequence[Any]) -> list[Any]:
    """Tangents of the results by the transpose of ``backward``."""
    rule = _given(cls, "backward")
    if rule is None:
        raise _MissingError(f"You must implement {_NO_JVP}.")
    floats = [j for j, o in enumerate(outs) if isinstance(o, Tensor) and o._dtype.is_differentiable and j not in ctx._constant]
    saved, needs = _at_level(ctx._slots, primals, outs), tuple([t is not None for t in tangents])

    @modes.intact
    def pull(cts: list[Any]) -> list[Any]:
        full = [zeros_like(o) if ctx.materialize_grads and isinstance(o, Tensor) and o._dtype.is_differentiable else None for o in outs]
        for j, c in zip(floats, cts):
            full[j] = c
        with _Showing(ctx, saved, needs):
            return _gradients(rule(ctx, *full), ctx.name, len(primals))

    kind = flavour([o for o in outs if isinstance(o, Tensor)])
    found = transposed_call(ctx.name, pull, [outs[j] for j in floats], tangents, kind, _NO_JVP)
    moved: list[Any] = [None] * len(outs)
    for j, t in zip(floats, found):
        moved[j] = t
    return moved


# ---- in a trace ---------------------------------------------------------------------------------------------------------------------

class _TracedFunction(Rule):
    """A call in a trace: forward and its rules are traced, and stay one op."""

    def __init__(self, cls: Any, args: Sequence[Any], split: bool) -> None:
        self.cls, self.owner, self.args, self.split = cls, cls, list(args), split
        self.name = f"{cls.__name__}Backward"
        self.where = [i for i, a in enumerate(args) if isinstance(a, (Tensor, np.ndarray, np.generic))]
        self.ctx = FunctionCtx()
        self.ctx._numbers = not any(isinstance(a, Tensor) and not isinstance(a, ArrayTensor) for a in args)
        self.ctx.needs_input_grad = tuple([i in self.where and tensor_of_dtype(a) for i, a in enumerate(args)])
        rule = _given(cls, "backward")
        if rule is not None:
            self.reverse = self._reverse
            self.once = _ONCE if getattr(rule, "_once", False) else ""
        if _given(cls, "jvp") is not None:
            self.pushed = self._pushed
        if rule is None and self.pushed is None:
            self.error = _NO_BACKWARD
        if _given(cls, "vmap") is not None:
            if cls.generate_vmap_rule:
                raise AotgradRuntimeError(f"You tried to vmap over {cls.__name__}, but it has both generate_vmap_rule=True and an overriden vmap staticmethod. Please "
                                          "set generate_vmap_rule=False or delete the overriden vmap staticmethod to avoid ambiguity.")
            self.batch = self._batched

    def forward(self, args: list[Any]) -> list[Any]:
        full = list(self.args)
        for i, a in zip(self.where, args):
            full[i] = a
        before = [a._value for a in args]
        raw = _forward(self.cls, self.ctx, full, self.split)
        self.many = isinstance(raw, tuple)
        self.raw = list(raw) if self.many else [raw]
        _check_dirty(self.ctx, self.raw)
        for k, (a, v) in enumerate(zip(args, before)):
            if a._value is not v and _place(a, self.ctx._dirty) is None:
                raise AotgradRuntimeError(f"{self.cls.__name__}.forward changes argument {self.where[k]} in place; say so with ctx.mark_dirty and return it, or work "
                                          f"on a copy")
        self.tensors = [j for j, o in enumerate(self.raw) if isinstance(o, (Tensor, np.ndarray, np.generic))]
        self.plain = frozenset(k for k, j in enumerate(self.tensors) if _place(self.raw[j], self.ctx._plain) is not None)
        self.dirty = {k: i for k, j in enumerate(self.tensors) for a, i in zip(args, self.where) if a is self.raw[j] and _place(a, self.ctx._dirty) is not None}
        return [self.raw[j] for j in self.tensors]

    @modes.intact
    def _reverse(self, cts: list[Any]) -> list[Any]:
        full: list[Any] = [None] * len(self.raw)
        for j, c in zip(self.tensors, cts):
            full[j] = c if c is not None or not self.ctx.materialize_grads else self.raw[j] * 0
        with _Showing(self.ctx, self.ctx._to_save):
            grads = _gradients(_given(self.cls, "backward")(self.ctx, *full), self.name, len(self.args))
        return [grads[i] for i in self.where]

    @modes.intact
    def _pushed(self, tangents: list[Any]) -> list[Any]:
        full: list[Any] = [None] * len(self.args)
        for i, t in zip(self.where, tangents):
            full[i] = t
        saved = self.ctx._to_save if self.ctx._for_forward is None else self.ctx._for_forward
        with _Showing(self.ctx, saved):
            moved = _tangents(self.cls.jvp(self.ctx, *full), self.name, self.raw, {self.tensors[k] for k in self.plain})
        return [moved[j] for j in self.tensors]

    @modes.intact
    def _batched(self, op: Op, xs: Sequence[Value], on: Sequence[bool], size: Any) -> tuple[Block, Sequence[bool]]:
        """The user's rule, traced on operands with the examples along dim 0."""
        trace = Trace(f"{self.name}_vmap", examples={}, hidden=False)
        kind = TracedTensor if any(isinstance(a, Tensor) and not isinstance(a, ArrayTensor) for a in self.args) else TracedArray
        given = [trace.argument(x.type, kind) for x in xs]
        full = list(self.args)
        dims: list[int | None] = [None] * len(full)
        for i, x, k in zip(self.where, given, on):
            full[i], dims[i] = x, 0 if k else None
        with tracing(trace):
            found = self.cls.vmap(VmapInfo(TracedSize(size.terms) if isinstance(size, Dim) else size), tuple(dims), *full)
            if not isinstance(found, tuple) or len(found) != 2:
                raise AotgradTypeError(f"{self.cls.__name__}.vmap must return (output, out_dims), but returned {type(found).__name__}")
            outs, placed = [list(p) if isinstance(p, tuple) and self.many else [p] for p in found]
            placed = placed * len(outs) if len(placed) == 1 else placed
            if len(outs) != len(self.raw) or len(placed) != len(outs):
                raise AotgradTypeError(f"{self.cls.__name__}.vmap returned {len(outs)} result(s) with {len(placed)} out_dims; forward returns {len(self.raw)}")
            trace.block.outputs = [as_value(_first(outs[j], placed[j]), trace) for j in self.tensors]
        return decompose_block(trace.block), [placed[j] is not None for j in self.tensors]


@dataclass(frozen=True)
class VmapInfo:
    """What ``Function.vmap`` is told: the number of examples, and what random numbers would be ("error": a traced function draws none)."""

    batch_size: Any
    randomness: str = "error"


def _first(x: Any, d: int | None) -> Any:
    """A result with its examples along dim 0."""
    return x if d is None or d == 0 else call(TORCH["movedim"], (x, d, 0), {})


def tensor_of_dtype(x: Any) -> bool:
    """Whether an operand has a dtype with derivatives."""
    return bool(x._dtype.is_differentiable) if isinstance(x, Tensor) else np.asarray(x).dtype.kind in "fc"


def _apply_traced(cls: Any, args: Sequence[Any], split: bool) -> Any:
    if any(isinstance(a, Dual) for a in args):
        raise AotgradNotImplementedError(f"{cls.__name__}.apply: a dual value is used inside a traced function; use ag.jvp there")
    call = _TracedFunction(cls, args, split)
    found = call_traced([args[i] for i in call.where], call)
    outs = list(call.raw)
    for k, (j, o) in enumerate(zip(call.tensors, found)):
        outs[j] = store(args[call.dirty[k]], o, call.name) if k in call.dirty else o
    return tuple(outs) if call.many else outs[0]


# ---- once_differentiable --------------------------------------------------------------------------------------------------------------

_ONCE = "trying to differentiate twice a function that was marked with @once_differentiable"


class _ErrorNode(Node):
    __slots__ = ()
    name = "Error"

    def apply(self, cts: tuple[Any, ...]) -> tuple[Any, ...]:
        raise AotgradRuntimeError(_ONCE)


def once_differentiable(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a ``backward`` that cannot be differentiated: differentiating through its gradients is an error."""

    @functools.wraps(fn)
    @modes.intact
    def wrapper(ctx: Any, *args: Any) -> Any:
        with modes.set_grad_enabled(current() is not None and modes.state.grad):  # a traced rule is guarded as a whole
            outputs = fn(ctx, *args)
        edges = [edge_of(a) for a in args if isinstance(a, Tensor) and a._requires_grad]
        if inside_transform() and isinstance(ctx, Node):  # there a gradient without history would be a zero, not an error
            edges += ctx.next_functions
        if not modes.state.grad or not edges:
            return outputs
        node = _ErrorNode(tuple(edges))
        many = isinstance(outputs, tuple)
        made = [make_output(o._data, node, 0, type(o)._value_type) if isinstance(o, Tensor) else o for o in (outputs if many else (outputs,))]
        return tuple(made) if many else made[0]

    wrapper._once = True  # type: ignore[attr-defined]
    return wrapper


guard(globals(), __all__)
