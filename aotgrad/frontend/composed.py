"""Functions made of public functions, as one operation in eager code: one program, one node that is named as torch's, one event of a profile.

The body is traced once for each form of a call, as the ops of the registry are emitted. Inside a trace it is what it says, its operations one by one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from aotgrad.ir import opdef
from aotgrad_runtime import modes
from aotgrad_runtime.dtypes import as_dtype, float32
from aotgrad_runtime.errors import AotgradDTypeError, AotgradTypeError
from aotgrad_runtime.tensor import ArrayTensor, Tensor

from . import boundary, dispatch, inplace
from .front import FrontBuilder, Operand, Public
from .made import note
from .trace import Traced, TracedTensor, current, tracing, user_loc

__all__ = ["composed", "written"]

Function = TypeVar("Function", bound=Callable[..., Any])


class Composed(Public):
    """A public function with a Python body: ``body(**arguments)``, of tensors or traced values."""

    helped = True

    def __init__(self, body: Callable[..., Any], node: str, tensors: tuple[str, ...], constants: tuple[str, ...]) -> None:
        name = body.__name__.lstrip("_")
        kinds, parts = inspect.Parameter, []
        for p in inspect.signature(body).parameters.values():
            if p.kind is kinds.KEYWORD_ONLY and "*" not in parts:
                parts.append("*")
            parts.append(p.name if p.default is p.empty else f"{p.name}={p.default!r}")
        text = f"{name}({', '.join(parts)})"
        front = opdef.Front(text, promote="none", tensors=(*tensors, *constants))
        super().__init__(opdef.OpDef(name, body.__doc__ or "", (*tensors, *constants), None, None, opdef.Composite(body), front=front, grad_fn=node), name, text, None)
        self.body, self.constants = body, constants

    @modes.intact
    def emit(self, b: FrontBuilder, arguments: dict[str, Any]) -> Any:
        with tracing(b.trace), modes.differentiating():  # the program serves calls in every grad mode
            found = self.body(**{k: _traced(v, b) if isinstance(v, Operand) else v for k, v in arguments.items()})
        return tuple([x._value for x in found]) if isinstance(found, tuple) else found._value


def _traced(x: Operand, b: FrontBuilder) -> Any:
    out = TracedTensor._of(b.trace, x.plain(b))
    out._weak = x.kind.weak
    return out


def composed(node: str, *tensors: str, constants: tuple[str, ...] = (), moves: bool = False, floats: bool = False) -> Callable[[Function], Function]:
    """Makes a function of the parameters ``tensors`` (without: ``input``), which may be None where they have a default, one operation for tensors in eager code. All
    others are plain values. A parameter ``inplace`` is not for the body: the result is written into ``input``. ``constants``: further tensors, which have no gradients in
    torch; where one requires a gradient, the operations of the body are recorded. ``floats``: other tensors are refused, as in torch. Unless the body ``moves``
    numbers alone, those of two bytes are computed in float32.

    >>> import aotgrad as ag
    >>> ag.nn.functional.silu(ag.tensor([0.0], requires_grad=True)).grad_fn.name()
    'SiluBackward0'
    """
    def decorate(body: Function) -> Function:
        fn = body if moves else _in_float32(body, (*(tensors or ("input",)), *constants))
        public = Composed(fn, node, tensors or ("input",), constants)
        names = public.tensors
        may_write = "inplace" in public.layout.defaults

        def general(*args: Any, **kwargs: Any) -> Any:
            if (out := dispatch.again(public, args, kwargs)) is not dispatch.MISS:
                return out
            arguments = public.bind(args, kwargs)
            if floats:
                for x in map(arguments.get, names):
                    if isinstance(x, Tensor) and not isinstance(x, ArrayTensor) and not x._weak and x._dtype.kind not in "fc":
                        raise AotgradDTypeError(f'{user_loc()}: "{public.name}" not implemented for {x._dtype.name} tensors; convert them first (x.float())')
            write = may_write and arguments.pop("inplace", False)
            one = (current() is None and all(map(_plain, map(arguments.get, names))) and not any(map(_followed, map(arguments.get, constants)))
                   and not any(isinstance(v, (Tensor, np.ndarray)) for k, v in arguments.items() if k not in names))  # a slope of numbers that may change
            try:
                out = dispatch.run(public, arguments) if one else _in_trace(public, fn, arguments)
            except boundary.PLAIN as error:
                boundary.restate(boundary.refusal(public.name, arguments, public.shown(), error), error)
            return written(arguments["input"], out, f"{public.name}_") if write else out

        short = dispatch.short(public, general)
        count = len(names)

        def quick(*args: Any, **kwargs: Any) -> Any:
            return short(*args) if len(args) == count and not kwargs else general(*args, **kwargs)  # type: ignore[misc]

        return functools.wraps(body)(general if short is None else quick)  # type: ignore[return-value]

    return decorate


def _in_trace(public: Composed, fn: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """The body, whose operations a trace knows as those of one call."""
    trace = current()
    if trace is None:
        return fn(**arguments)
    start = len(trace.block.ops)
    out = fn(**arguments)
    results = tuple([x._value if isinstance(x, Traced) else None for x in (out if isinstance(out, tuple) else (out,))])
    if None not in results:
        note(trace, start, public, lambda given: _values(fn(**given)), dict(arguments), results)
    return out


def _values(out: Any) -> tuple[Any, ...]:
    return tuple([x._value for x in (out if isinstance(out, tuple) else (out,))])


def _in_float32(body: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    """``body`` with tensors of float16 or of bfloat16, where all are, as float32, and its results rounded."""
    astype = dispatch.function(dispatch.TORCH["astype"], "astype")

    @functools.wraps(body)
    def run(**arguments: Any) -> Any:
        given: dict[str, Any] = {k: arguments[k] for k in names if arguments.get(k) is not None}
        given = {k: x for k, x in given.items() if hasattr(x, "dtype") and as_dtype(x.dtype).is_floating_point}
        kinds = {as_dtype(x.dtype) for x in given.values()}
        if len(kinds) != 1 or (half := kinds.pop()).itemsize != 2:
            return body(**arguments)
        found = body(**{**arguments, **{k: astype(x, float32) for k, x in given.items()}})
        return tuple([astype(x, half) for x in found]) if isinstance(found, tuple) else astype(found, half)

    return run


def _plain(x: Any) -> bool:
    return x is None or isinstance(x, Tensor) and not isinstance(x, (Traced, ArrayTensor))


def _followed(x: Any) -> bool:
    return x is not None and x._requires_grad


def written(input: Any, out: Any, name: str) -> Any:
    """``input`` with ``out`` written into it."""
    if isinstance(input, Tensor):
        return inplace.update(input, out, name)
    if not isinstance(input, np.ndarray):
        raise AotgradTypeError(f"{user_loc()}: {name}(): argument 'input' must be a tensor, to be written into, not {type(input).__name__}")
    input[...] = out
    return input
