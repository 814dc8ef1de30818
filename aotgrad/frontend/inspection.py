"""What a compiled function tells about itself: its programs as text, its cache, why it was traced; and ``prebind``. Methods of the functions that ``compile`` returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import numpy as np

from aotgrad.ir import Func
from aotgrad.ir.host import strip_func
from aotgrad_runtime import call
from aotgrad_runtime.errors import AotgradRuntimeError, AotgradTypeError
from aotgrad_runtime.records import record
from aotgrad_runtime.tensor import Tensor

from . import compiler, kernels, sources, split
from .explain import explain
from .pytree import tree_flatten, tree_unflatten, with_numbers
from .signatures import leaf_names
from .variant import Variant, flat_specs
from .watch import is_code

__all__ = ["attach"]


def attach(made: Any, state: Any) -> None:
    """Gives a compiled function its methods, which are not written to the object it is made of."""
    made.__dict__.update({method.__name__: MethodType(method, state) for method in (trace, lower, prebind, cache_info, explain)}, options=state.options)


def _one_kernel(state: Any, variant: Variant, what: str) -> Variant:
    """The variant, where it does not call Python in the middle."""
    if split.needs_host(variant.func):
        raise AotgradTypeError(f"{what}: {state.name} calls Python in the middle (a hook, host_call or debug_print), so it is not one kernel; "
                               "f.explain(...) shows its parts")
    return variant


def _variant_for(state: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Variant, list[Any]]:
    leaves, tree = tree_flatten((args, kwargs))
    return state.find(leaves, tree, state._static_leaves(args, kwargs))[0], leaves


def trace(state: Any, *args: Any, **kwargs: Any) -> Func:
    """The tensor-level program that a call with these arguments runs: an ``ag.ir.Func``, which prints as text.

    >>> import numpy as np, aotgrad as ag
    >>> print(ag.compile(lambda x: x + 1.0, name="f").trace(np.ones(2)))        # doctest: +ELLIPSIS
    "func.func"() <{function_type = (!ag.tensor<[x_0], f64>) -> !ag.tensor<[x_0], f64>, sym_name = "f"}> ({
    ...
    """
    variant = _variant_for(state, args, kwargs)[0]
    return (variant.general or variant).func


@record(frozen=True)
class Lowered:
    """The levels of one signature, as text."""

    tensor_ir: str
    kernel_ir: str
    llvm_ir: str
    asm: str


def lower(state: Any, *args: Any, **kwargs: Any) -> Lowered:
    """The program of a call with these arguments at every level, as text: ``.tensor_ir``, ``.kernel_ir``, ``.llvm_ir``, ``.asm``. Raises ``AotgradTypeError`` where the
    program calls Python in the middle."""
    func = strip_func(_one_kernel(state, _variant_for(state, args, kwargs)[0], "lower").func)
    texts = compiler.driver.texts(func, func.name, kernels.target(), state.options.codegen())
    return Lowered(texts["tensor"], texts["kernel"], texts["llvm"], texts["asm"])


def prebind(state: Any, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    """A function without arguments on fixed buffers: ``run = f.prebind(x, y)``, then ``run()`` reads the arrays given here, as they are then, and fills ``run.out``: new
    arrays, or ``out``, in the structure of the result. The call costs less than any other. It is of the code as it was bound.

    The arguments are dense, aligned NumPy arrays, and numbers, which stay as they are. Raises ``AotgradTypeError`` naming the argument that is something else.

    >>> import numpy as np, aotgrad as ag
    >>> x = np.array([1.0, 2.0])
    >>> run = ag.compile(lambda x: x * 2.0).prebind(x)
    >>> x[0] = 5.0
    >>> run()
    >>> run.out
    array([10.,  4.])
    """
    args = _by_position(state, args, kwargs)
    names = leaf_names(state.signature, tree_flatten((args, {}))[1])
    for name, x in zip(names, tree_flatten((args, {}))[0]):
        if isinstance(x, Tensor) or (isinstance(x, np.ndarray) and (type(x) is not np.ndarray or not x.flags.aligned or kernels.dense_order(x) is False
                                                                    or not x.dtype.isnative)):
            what = f"of dtype {x.dtype}, whose bytes are swapped" if isinstance(x, np.ndarray) and not x.dtype.isnative else (
                "that is not dense and aligned" if type(x) is np.ndarray else "that is no plain NumPy array (np.asarray(x) shares its memory)")
            if isinstance(x, Tensor):
                raise AotgradTypeError(f"prebind: {name} is a Tensor; the bound call reads the memory of NumPy arrays, so pass one ({name}.numpy() shares its memory)")
            raise AotgradTypeError(f"prebind: {name} is a {type(x).__name__} {what}; the bound call reads the memory given here, so pass a NumPy array that is "
                                   "(np.ascontiguousarray(x), np.require(x, requirements='CA'), or x.astype(x.dtype.newbyteorder('=')))")
    if any(isinstance(x, (list, tuple, dict)) for x in args):
        raise AotgradTypeError(f"prebind: {state.name} is given a container; bind a function that takes its arrays as arguments of their own")
    variant, leaves = _variant_for(state, args, {})
    specs = flat_specs(variant, leaves)
    if specs is None:
        raise AotgradTypeError(f"prebind: {state.name} {_unbound(variant, leaves, names)}; bind a function of plain arrays and numbers")
    if variant.changes.any:
        raise AotgradTypeError(f"prebind: {state.name} writes into arguments or names that it reads; bind a function that returns what it computes")
    result = state.checked(_one_kernel(state, variant, "prebind"), leaves)
    outs = [np.array(x) for x in tree_flatten(result)[0]] if out is None else tree_flatten(out)[0]
    instance = state.program(variant).kernel.instance(specs, False, npos=len(args))
    run = call.prebind(instance, [leaves[i] for i in range(len(leaves))], outs)
    if variant.hidden or not all(is_code(path) for path, _, _ in variant.watch.places):
        run = _guarded_run(state, variant, run)
    run.out = tree_unflatten(with_numbers(variant.out_tree), outs)  # type: ignore[attr-defined]
    return run


def _by_position(state: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Keyword arguments in their places."""
    if not kwargs:
        return args
    try:
        bound = state.signature.bind(*args, **kwargs)
    except (AttributeError, TypeError) as error:
        raise AotgradTypeError(f"prebind: the arguments do not fit {state.name} ({error}); give its arrays in their order") from None
    if bound.kwargs:
        raise AotgradTypeError(f"prebind: {', '.join(bound.kwargs)} can be given to {state.name} by keyword only; bind a function that takes its arrays by position")
    return tuple(bound.args)


def _unbound(variant: Variant, leaves: Sequence[Any], names: Sequence[str]) -> str:
    """What keeps a call from being bound."""
    dynamic = {leaf.index for leaf in variant.leaves}
    static = next((n for i, (x, n) in enumerate(zip(leaves, names)) if i not in dynamic and x is not None), None)
    if static is not None:
        return f"takes {static} as part of its signature, which is compared at every call"
    hidden = next((sources.shown(source) for obj, source in variant.hidden if sources.fast(source) is None), None)
    return f"reads {hidden}, which is no plain array in a variable" if hidden is not None else "reads names that are compared at every call (f.explain(...) lists them)"


def _guarded_run(state: Any, variant: Variant, bound: Callable[[], Any]) -> Callable[[], Any]:
    """A bound call that says so when a name it read is bound anew: it has the memory that was there before."""
    held = [(source, sources.read(obj, source)) for obj, source in variant.hidden]

    def run() -> None:
        changed = next((source for source, now in held if sources.read(now, source) is not now), None)
        if changed is not None or not variant.watch.holds():
            what = next((str(p) for p in variant.watch.changed()), "a name that it reads")
            raise AotgradRuntimeError(f"{state.name}: {what} was bound anew after prebind(), or its numbers, which the trace used as they were, have changed; "
                                      "write into arrays that are inputs (f.explain(...) lists them), or call prebind again")
        bound()

    return run


@record(frozen=True)
class CacheInfo:
    """Variants traced so far, and the seconds spent tracing and compiling."""

    traces: int
    variants: int
    seconds: float


def cache_info(state: Any) -> CacheInfo:
    """How often the function was traced (``traces``), how many of the traces are kept (``variants``), and the ``seconds`` that tracing and compiling took.

    >>> import numpy as np, aotgrad as ag
    >>> f = ag.compile(lambda x: x * 2.0)
    >>> _ = f(np.ones(2)), f(np.ones(3)), f(np.ones((2, 2)))
    >>> f.cache_info().traces
    2
    """
    variants = state.all()
    return CacheInfo(state.traces, len(variants), sum(v.seconds for v in variants))
