"""Derivatives of functions of tensors, with torch.autograd.functional's names, structures and errors: ``jacobian``, ``hessian``, ``vjp``, ``jvp``, ``vhp``, ``hvp``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aotgrad.frontend import factories, jacobians, randoms, transforms
from aotgrad.frontend.boundary import guard
from aotgrad.frontend.dispatch import TORCH, call
from aotgrad.frontend.leaves import tracing_any
from aotgrad.frontend.trace import Traced
from aotgrad_runtime import modes
from aotgrad_runtime.errors import AotgradNotImplementedError, AotgradRuntimeError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.tensor import Tensor, wrap

from . import forward_ad, gradients

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]

F = Callable[..., Any]
_OUTPUTS = "outputs of the user-provided function"
_NOT_STRICT = "This is not allowed in strict mode"


class _BadChoiceError(AotgradValueError, AssertionError):
    """An argument that is none of the words allowed: AssertionError, as in torch."""


# ---- inputs and outputs ---------------------------------------------------------------------------------------------------------------

def _as_tuple(given: Any, what: str, name: str) -> tuple[bool, tuple[Any, ...]]:
    many = isinstance(given, tuple)
    found = given if many else (given,)
    for i, x in enumerate(found):
        if not isinstance(x, Tensor):
            where = f"value at index {i} has" if many else f"given {what} has"
            raise AotgradTypeError(f"The {what} given to {name} must be either a Tensor or a tuple of Tensors but the {where} type {type(x)}.")
    return many, found


def _fresh(tensors: Sequence[Any], create_graph: bool, wants: bool) -> tuple[Any, ...]:
    """Tensors of our own: what the function captures by other ways is not differentiated."""
    out = []
    for x in tensors:
        if create_graph and x.requires_grad:
            out.append(call(TORCH["reshape"], (x, tuple(x.shape)), {}))
        else:
            y = x.detach()
            if wants:
                y.requires_grad_(True)
            out.append(y)
    return tuple(out)


def _finished(tensors: Sequence[Any], create_graph: bool, many: bool) -> Any:
    out = tuple([x if create_graph else x.detach() for x in tensors])
    return out if many else out[0]


def _zeros(like: Any, requires_grad: bool = False) -> Any:
    out = factories.zeros_like(like) if isinstance(like, Traced) else wrap(np.zeros(tuple(like.shape), like._dtype.np), type(like)._value_type)
    if requires_grad:
        out.requires_grad_(True)
    return out


def _constant(data: Any, like: Any) -> Any:
    return factories.tensor(data) if isinstance(like, Traced) else wrap(data, type(like)._value_type)


def _check_v(v: Any, name: str, others: Sequence[Any], many: bool, create_graph: bool) -> tuple[Any, ...]:
    _, vs = _as_tuple(v, "v", name)
    vs = _fresh(vs, create_graph, False)
    if len(vs) != len(others):
        raise AotgradRuntimeError(f"v is a tuple of invalid length: should be {len(others)} but got {len(vs)}." if many else "The given v should contain a single "
                                                                                                                             "Tensor.")
    for i, (x, y) in enumerate(zip(vs, others)):
        if tuple(x.shape) != tuple(y.shape):
            raise AotgradRuntimeError(f"{f'Entry {i} in ' if many else ''}v has invalid size: should be {list(y.shape)} but got {list(x.shape)}.")
    return vs


def _needs_no_v(tensors: Sequence[Any], what: str) -> None:
    if len(tensors) != 1 or tensors[0].numel() != 1:
        raise AotgradRuntimeError(f"The vector v can only be None if {what} a single Tensor with a single element.")


_INDEPENDENT = {
    "outputs": "Output {i} of the user-provided function does not require gradients. The outputs must be computed in a differentiable manner from the input when "
               "running in "
               "strict mode.",
    "grad_inputs": "The gradient with respect to input {i} is independent of the inputs of the user-provided function. This is not allowed in strict mode.",
    "jacobian": "While computing the hessian, found that the jacobian of the user-provided function with respect to input {i} is independent of the input. This is "
                "not allowed "
                "in strict mode. You should ensure that your function is twice differentiable and that the jacobian depends on the inputs (this would be violated by "
                "a linear "
                "function for example).",
    "hessian": "The hessian of the user-provided function with respect to input {i} is independent of the input. This is not allowed in strict mode. You should "
               "ensure that your "
               "function is thrice differentiable and that the hessian depends on the inputs.",
}
_ABSENT = {
    "back": "The output of the user-provided function is independent of input {i}.",
    "back_trick": "The gradient with respect to the input is independent of entry {i} in the grad_outputs when using the double backward trick to compute forward "
                  "mode gradients.",
    "double_back": "The jacobian of the user-provided function is independent of input {i}.",
    "double_back_trick": "The hessian of the user-provided function is independent of entry {i} in the grad_jacobian.",
}


def _must_depend(tensors: Any, kind: str, strict: bool) -> None:
    if not strict:
        return
    for i, x in enumerate(tensors if isinstance(tensors, tuple) else (tensors,)):
        if x is None:
            raise AotgradRuntimeError(f"The output of the user-provided function is independent of input {i}. {_NOT_STRICT}.")
        if not x.requires_grad:
            raise AotgradRuntimeError(_INDEPENDENT[kind].format(i=i))


def _grad(outputs: Sequence[Any], inputs: Sequence[Any], cts: Sequence[Any] | None = None, create_graph: bool = False, keep: bool | None = None) -> tuple[Any, ...]:
    """``autograd.grad`` for outputs of which some may not require grad, or be absent."""
    live = [(o, c) for o, c in zip(outputs, cts if cts is not None else [None] * len(outputs)) if o is not None and o.requires_grad]
    if not live:
        return (None,) * len(inputs)
    found: tuple[Any, ...] = gradients.grad([o for o, _ in live], list(inputs), [c for _, c in live], retain_graph=keep, create_graph=create_graph, allow_unused=True)
    return found


def _filled(grads: Sequence[Any], like: Sequence[Any], strict: bool, create_graph: bool, stage: str) -> list[Any]:
    """Zeros for what is absent; in strict mode that is an error."""
    out = []
    for i, (g, x) in enumerate(zip(grads, like)):
        if g is None and strict:
            raise AotgradRuntimeError(f"{_ABSENT[stage].format(i=i)} {_NOT_STRICT}.")
        if g is not None and strict and create_graph and not g.requires_grad:
            what = "hessian" if "double" in stage else "jacobian"
            raise AotgradRuntimeError(f"The {what} of the user-provided function is independent of input {i}. {_NOT_STRICT} when create_graph=True.")
        out.append(_zeros(x) if g is None else g)
    return out


class _Run:
    """One call of the function on inputs of our own."""

    def __init__(self, func: F, inputs: Any, name: str, create_graph: bool, strict: bool) -> None:
        self.many_in, given = _as_tuple(inputs, "inputs", name)
        self.inputs = _fresh(given, create_graph, True)
        self.func, self.name, self.create_graph, self.strict = func, name, create_graph, strict

    def call(self) -> None:
        self.out = self.func(*self.inputs)
        self.many_out, self.outputs = _as_tuple(self.out, _OUTPUTS, self.name)
        _must_depend(self.outputs, "outputs", self.strict)

    def single(self) -> None:
        """The function is scalar."""
        if self.many_out:
            raise AotgradRuntimeError(f"The function given to {self.name} should return a single Tensor")
        if self.outputs[0].numel() != 1:
            raise AotgradRuntimeError(f"The Tensor returned by the function given to {self.name} should contain a single element")

    def input_v(self, v: Any) -> Any:
        if v is None:
            _needs_no_v(self.inputs, "the input to the user-provided function is")
            return None
        return _check_v(v, self.name, self.inputs, self.many_in, self.create_graph)

    def mode(self) -> Any:
        return modes.set_grad_enabled(True if self.create_graph else modes.state.grad)


# ---- products -------------------------------------------------------------------------------------------------------------------------

@modes.intact
def vjp(func: F, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> tuple[Any, Any]:
    """``(func(*inputs), v' J)``: a tuple where ``inputs`` is one. ``v`` is shaped as the output; None for a single number.

    ``strict``: a gradient that is structurally zero is an error. ``create_graph``: the results can be differentiated.

    >>> import aotgrad as ag
    >>> ag.autograd.functional.vjp(lambda x: x * x, ag.tensor([1.0, 2.0]), ag.tensor([1.0, 1.0]))
    (tensor([1., 4.]), tensor([2., 4.]))
    """
    with modes.differentiating():
        run = _Run(func, inputs, "vjp", create_graph, strict)
        run.call()
        if v is None:
            _needs_no_v(run.outputs, "the user-provided function returns")
        vs = None if v is None else _check_v(v, "vjp", run.outputs, run.many_out, create_graph)
    with run.mode():
        found = _filled(_grad(run.outputs, run.inputs, vs, create_graph), run.inputs, strict, create_graph, "back")
    return _finished(run.outputs, create_graph, run.many_out), _finished(found, create_graph, run.many_in)


@modes.intact
def jvp(func: F, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> tuple[Any, Any]:
    """``(func(*inputs), J v)`` by differentiating the gradient in its cotangent; ``v`` is shaped as ``inputs``.

    >>> import aotgrad as ag
    >>> ag.autograd.functional.jvp(lambda x: x * x, ag.tensor([1.0, 2.0]), ag.tensor([1.0, 0.0]))
    (tensor([1., 4.]), tensor([2., 0.]))
    """
    with modes.differentiating():
        run = _Run(func, inputs, "jvp", create_graph, strict)
        vs = run.input_v(v)
        run.call()
        cts = [_zeros(o, requires_grad=True) for o in run.outputs]
        first = _grad(run.outputs, run.inputs, cts, create_graph=True)
        _must_depend(first, "grad_inputs", strict)
    with modes.set_grad_enabled(True if create_graph else modes.state.grad):
        found = _filled(_grad(first, cts, vs, create_graph), run.outputs, strict, create_graph, "back_trick")
    return _finished(run.outputs, create_graph, run.many_out), _finished(found, create_graph, run.many_out)


@modes.intact
def vhp(func: F, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> tuple[Any, Any]:
    """``(func(*inputs), v' H)`` of a scalar function.

    >>> import aotgrad as ag
    >>> ag.autograd.functional.vhp(lambda x: (x ** 3).sum(), ag.tensor([1.0, 2.0]), ag.tensor([1.0, 1.0]))
    (tensor(9.), tensor([ 6., 12.]))
    """
    with modes.differentiating():
        run = _Run(func, inputs, "vhp", create_graph, strict)
        vs = run.input_v(v)
        run.call()
        run.single()
        jac = _grad(run.outputs, run.inputs, create_graph=True)
        _must_depend(jac, "jacobian", strict)
    with run.mode():
        found = _filled(_grad(jac, run.inputs, vs, create_graph), run.inputs, strict, create_graph, "double_back")
    return _finished(run.outputs, create_graph, run.many_out), _finished(found, create_graph, run.many_in)


@modes.intact
def hvp(func: F, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> tuple[Any, Any]:
    """``(func(*inputs), H v)`` of a scalar function; ``vhp`` is cheaper and equal for smooth functions.

    >>> import aotgrad as ag
    >>> ag.autograd.functional.hvp(lambda x: (x ** 3).sum(), ag.tensor([1.0, 2.0]), ag.tensor([1.0, 1.0]))
    (tensor(9.), tensor([ 6., 12.]))
    """
    with modes.differentiating():
        run = _Run(func, inputs, "hvp", create_graph, strict)
        vs = run.input_v(v)
        run.call()
        run.single()
        jac = _grad(run.outputs, run.inputs, create_graph=True)
        _must_depend(jac, "jacobian", strict)
        cts = [_zeros(x, requires_grad=True) for x in run.inputs]
        second = _grad(jac, run.inputs, cts, create_graph=True)
        _must_depend(jac, "hessian", strict)
    with run.mode():
        found = _filled(_grad(second, cts, vs, create_graph), run.inputs, strict, create_graph, "double_back_trick")
    return _finished(run.outputs, create_graph, run.many_out), _finished(found, create_graph, run.many_in)


# ---- matrices -------------------------------------------------------------------------------------------------------------------------

def _unit(like: Any, k: int) -> Any:
    data = np.zeros(tuple(like.shape), like._dtype.np)
    data.reshape(-1)[k] = 1
    return _constant(data, like)


def _stacked(rows: Sequence[Any], like: Any, shape: tuple[int, ...]) -> Any:
    if not rows:
        return _constant(np.zeros(shape, like._dtype.np), like)
    return call(TORCH["reshape"], (call(TORCH["stack"], (list(rows),), {}), shape), {})


def _nested(blocks: list[tuple[Any, ...]], many_out: bool, many_in: bool) -> Any:
    rows = tuple([row if many_in else row[0] for row in blocks])
    return rows if many_out else rows[0]


@modes.intact
def jacobian(func: F, inputs: Any, create_graph: bool = False, strict: bool = False, vectorize: bool = False, strategy: str = "reverse-mode") -> Any:
    """The Jacobian: a tensor of shape ``output.shape + input.shape``, in a tuple per output of tuples per input where those are tuples.

    ``strategy="forward-mode"`` (with ``vectorize=True``) takes one pass per input element instead of one per output element.

    >>> import aotgrad as ag
    >>> ag.autograd.functional.jacobian(lambda x: x * x, ag.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """
    if strategy not in ("forward-mode", "reverse-mode"):
        raise _BadChoiceError('Expected strategy to be either "forward-mode" or "reverse-mode". Hint: If your function has more outputs than inputs, "forward-mode" '
                              'tends to be '
                         'more performant. Otherwise, prefer to use "reverse-mode".')
    if strategy == "forward-mode":
        if create_graph:
            raise AotgradNotImplementedError('autograd.functional.jacobian: `create_graph=True` and `strategy="forward-mode"` are not supported together (yet). '
                                             'Please either set '
                                             '`create_graph=False` or `strategy="reverse-mode"`.')
        return _forward_jacobian(func, inputs, strict, vectorize)
    if vectorize and not strict and tracing_any(inputs):
        return _traced_jacobian(func, inputs, create_graph, forward=False)
    with modes.differentiating():
        run = _Run(func, inputs, "jacobian", create_graph, strict)
        run.call()
        if vectorize and strict:
            raise AotgradRuntimeError("autograd.functional.jacobian: `strict=True` and `vectorized=True` are not supported together. Please either set `strict=False` or "
                                      "`vectorize=False`.")
        blocks = [_rows_at_once(run, out) if vectorize else _rows(run, i, out) for i, out in enumerate(run.outputs)]
    return _nested([tuple([x if create_graph else x.detach() for x in row]) for row in blocks], run.many_out, run.many_in)


def _rows(run: _Run, i: int, out: Any) -> list[Any]:
    rows: list[list[Any]] = [[] for _ in run.inputs]
    for j in range(out.numel()):
        grads = _grad((out,), run.inputs, (_unit(out, j),), run.create_graph, keep=True)
        for k, (g, x) in enumerate(zip(grads, run.inputs)):
            if g is None and run.strict:
                raise AotgradRuntimeError(f"Output {i} of the user-provided function is independent of input {k}. {_NOT_STRICT}.")
            if g is not None and run.strict and run.create_graph and not g.requires_grad:
                raise AotgradRuntimeError(f"The jacobian of the user-provided function is independent of input {i}. {_NOT_STRICT} when create_graph=True.")
            rows[k].append(_zeros(x) if g is None else g)
    return [_stacked(r, x, (*out.shape, *x.shape)) for r, x in zip(rows, run.inputs)]


def _rows_at_once(run: _Run, out: Any) -> list[Any]:
    """All rows in one pass over the graph."""
    n = out.numel()
    if not n or not out.requires_grad:
        return [_stacked([_zeros(x) for _ in range(n)], x, (*out.shape, *x.shape)) for x in run.inputs]
    basis = wrap(np.eye(n, dtype=out._dtype.np).reshape((n, *out.shape)), type(out)._value_type)
    grads = gradients.grad(out, list(run.inputs), basis, True, run.create_graph, True, is_grads_batched=True)
    return [call(TORCH["reshape"], (_zeros(call(TORCH["expand"], (x, (n, *x.shape)), {})) if g is None else g, (*out.shape, *x.shape)), {})
            for g, x in zip(grads, run.inputs)]


@modes.intact
def _forward_jacobian(func: F, inputs: Any, strict: bool, vectorize: bool) -> Any:
    if strict:
        raise AotgradRuntimeError('autograd.functional.jacobian: `strict=True` and `strategy="forward-mode"` are not supported together (yet). Please either set '
                                  '`strict=False` '
                                  'or `strategy="reverse-mode"`.')
    if not vectorize:
        raise AotgradNotImplementedError("Computing Jacobian using forward-AD or forward-over-reverse Hessian is only implemented for `vectorize=True`.")
    if tracing_any(inputs):
        return _traced_jacobian(func, inputs, True, forward=True)  # what the function captures may be differentiated later, as in eager code
    many_in, xs = _as_tuple(inputs, "inputs", "jacobian")
    columns: list[list[list[Any]]] = []  # per input, per element, per output
    many_out, outs = False, []
    again = randoms.repeating()
    for k, x in enumerate(xs):
        columns.append([])
        for j in range(max(1, x.numel())):
            again()
            with forward_ad.dual_level():
                tangent = _unit(x, j) if x.numel() else _zeros(x)
                out = func(*[forward_ad.make_dual(y, tangent if n == k else _zeros(y)) for n, y in enumerate(xs)])
                many_out, found = _as_tuple(out, _OUTPUTS, "jacobian")
                pairs = [forward_ad.unpack_dual(o) for o in found]
            outs = [p.primal for p in pairs]
            if x.numel():
                columns[k].append([_zeros(p.primal) if p.tangent is None else p.tangent for p in pairs])
    blocks = []
    for i, o in enumerate(outs):
        row = []
        for k, x in enumerate(xs):
            n, rank = x.numel(), len(o.shape)
            flat = _stacked([c[i] for c in columns[k]], o, (n, *o.shape))
            turned = call(TORCH["permute"], (flat, [*range(1, rank + 1), 0]), {})
            row.append(call(TORCH["reshape"], (turned, (*o.shape, *x.shape)), {}))
        blocks.append(tuple(row))
    return _nested(blocks, many_out, many_in)


def _traced_jacobian(func: F, inputs: Any, create_graph: bool, forward: bool) -> Any:
    """In a trace all columns (or rows) are one loop of the program, for whatever sizes."""
    many_in, xs = _as_tuple(inputs, "inputs", "jacobian")
    many_out, outs = False, tuple[Any, ...]()

    def checked(*xs: Any) -> Any:
        nonlocal many_out, outs
        many_out, outs = _as_tuple(func(*xs), _OUTPUTS, "jacobian")
        return outs

    found = (jacobians.jacfwd if forward else jacobians.jacrev)(checked, argnums=tuple(range(len(xs))))(*xs)
    blocks = []
    for out, row in zip(outs, found):
        full = [factories.zeros((*out.shape, *x.shape), dtype=(out if forward else x).dtype) if j is None else j for j, x in zip(row, xs)]
        blocks.append(tuple([j if create_graph else j.detach() for j in full]))
    return _nested(blocks, many_out, many_in)


def hessian(
    func: F, inputs: Any, create_graph: bool = False, strict: bool = False, vectorize: bool = False, outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """The Hessian of a scalar function: a tensor of shape ``input.shape + input.shape``, in a tuple of tuples where ``inputs`` is a tuple.

    >>> import aotgrad as ag
    >>> ag.autograd.functional.hessian(lambda x: (x ** 3).sum(), ag.tensor([1.0, 2.0]))
    tensor([[ 6.,  0.],
            [ 0., 12.]])
    """
    many, given = _as_tuple(inputs, "inputs", "hessian")
    if outer_jacobian_strategy not in ("forward-mode", "reverse-mode"):
        raise _BadChoiceError('Expected strategy to be either "forward-mode" or "reverse-mode".')

    def scalar(*xs: Any) -> Any:
        out = func(*xs)
        many_out, outs = _as_tuple(out, _OUTPUTS, "hessian")
        _must_depend(outs, "outputs", strict)
        if many_out:
            raise AotgradRuntimeError("The function given to hessian should return a single Tensor")
        if out.numel() != 1:
            raise AotgradRuntimeError("The Tensor returned by the function given to hessian should contain a single element")
        return call(TORCH["reshape"], (out, ()), {})

    def gradient(*xs: Any) -> Any:
        found = jacobian(scalar, xs, create_graph=True)
        _must_depend(found, "jacobian", strict)
        return found

    if outer_jacobian_strategy == "forward-mode":
        found = _forward_over_reverse(scalar, given, create_graph, strict, vectorize)
    else:
        found = jacobian(gradient, given, create_graph=create_graph, strict=strict, vectorize=vectorize)
    return found if many else found[0][0]


def _forward_over_reverse(scalar: F, given: tuple[Any, ...], create_graph: bool, strict: bool, vectorize: bool) -> Any:
    """Forward mode over the gradient: inside, the inputs are dual values whose primals are on the tape."""
    def gradient(*xs: Any) -> Any:
        return tuple(transforms.grad(scalar, argnums=tuple(range(len(xs))))(*xs))

    return jacobian(gradient, given, create_graph=create_graph, strict=strict, vectorize=vectorize, strategy="forward-mode")


guard(globals(), __all__)
