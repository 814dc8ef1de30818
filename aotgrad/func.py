"""Transforms under torch.func's names: those of ``ag`` with torch's arguments, and modules as functions of their parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from aotgrad.frontend import jacobians, transforms
from aotgrad.frontend.boundary import absent as _absent
from aotgrad.frontend.boundary import guard as _guard
from aotgrad.frontend.factories import zeros_like
from aotgrad.frontend.jacobians import hessian
from aotgrad.frontend.leaves import like_name, with_aux
from aotgrad.frontend.methods import FUNCTIONS
from aotgrad.frontend.pytree import tree_map
from aotgrad.frontend.queries import stop_gradient
from aotgrad.frontend.transforms import grad, linearize
from aotgrad.frontend.vmap import vmap
from aotgrad.nn.module import Module
from aotgrad_runtime import modes
from aotgrad_runtime.errors import AotgradRuntimeError, AotgradTypeError, AotgradValueError
from aotgrad_runtime.tensor import Tensor

__all__ = ["functional_call", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize", "stack_module_state", "vjp", "vmap"]

F = Callable[..., Any]


def grad_and_value(func: F, argnums: Any = 0, has_aux: bool = False) -> F:
    """A function giving ``(gradient, value)``; ``(gradient, (value, aux))`` with ``has_aux``. The rest as ``grad``.

    >>> import aotgrad as ag
    >>> ag.func.grad_and_value(lambda x: x * x)(ag.tensor(3.0))
    (tensor(6.), tensor(9.))
    """
    both = transforms.value_and_grad(func, argnums, has_aux)

    def swapped(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return gradient, value

    return like_name(swapped, func, "grad_and_value")


def _apart(func: F) -> F:
    """``func`` of ``(result, aux)`` with no derivative of ``aux``."""
    def fn(*args: Any, **kwargs: Any) -> Any:
        out, aux = with_aux(func(*args, **kwargs), True, func)
        return out, tree_map(lambda x: stop_gradient(x) if isinstance(x, Tensor) else x, aux)

    return like_name(fn, func, "apart")


def vjp(func: F, *primals: Any, has_aux: bool = False) -> Any:
    """``(func(*primals), vjp_fn)``, and ``aux`` as a third with ``has_aux``, where ``func`` gives ``(result, aux)``. ``vjp_fn(cotangents)`` gives a tuple with one
    cotangent for each primal.

    >>> import aotgrad as ag
    >>> out, vjp_fn = ag.func.vjp(lambda x: x * x, ag.tensor([1.0, 3.0]))
    >>> vjp_fn(ag.tensor([1.0, 10.0]))
    (tensor([ 2., 60.]),)
    """
    if not has_aux:
        return transforms.vjp(func, *primals)
    (out, aux), pullback = transforms.vjp(_apart(func), *primals)
    zeros = tree_map(lambda x: zeros_like(x) if isinstance(x, Tensor) else x, aux)

    def vjp_fn(cotangents: Any) -> Any:
        return pullback((cotangents, zeros))

    return out, vjp_fn, aux


def jvp(func: F, primals: Any, tangents: Any, *, strict: bool = False, has_aux: bool = False) -> Any:
    """``(func(*primals), tangent)``, and ``aux`` as a third with ``has_aux``. A result that does not depend on the primals has a tangent of zeros, with ``strict`` or
    without.

    >>> import aotgrad as ag
    >>> ag.func.jvp(lambda x: x * x, (ag.tensor(3.0),), (ag.tensor(1.0),))
    (tensor(9.), tensor(6.))
    """
    if not has_aux:
        return transforms.jvp(func, primals, tangents)
    (out, aux), (moved, _) = transforms.jvp(_apart(func), primals, tangents)
    return out, moved, aux


def _with_aux(made: Callable[[F], F], func: F, has_aux: bool, name: str) -> F:
    if not has_aux:
        return made(func)
    jacobian = made(like_name(lambda *args, **kwargs: with_aux(func(*args, **kwargs), True, func)[0], func, name))

    def run(*args: Any, **kwargs: Any) -> Any:
        return jacobian(*args, **kwargs), with_aux(func(*args, **kwargs), True, func)[1]

    return like_name(run, func, name)


def jacrev(func: F, argnums: Any = 0, *, has_aux: bool = False, chunk_size: int | None = None) -> F:
    """The Jacobian by reverse mode; with ``has_aux``, where ``func`` gives ``(result, aux)``, ``(jacobian, aux)``, for which ``func`` is called once more.
    ``chunk_size`` limits memory in torch; here rows are computed one at a time.

    >>> import aotgrad as ag
    >>> ag.func.jacrev(lambda x: (x * x, x.sum()), has_aux=True)(ag.tensor([1.0, 2.0]))
    (tensor([[2., 0.],
            [0., 4.]]), tensor(3.))
    """
    if chunk_size is not None and chunk_size < 1:
        raise AotgradValueError(f"jacrev: chunk_size should be greater than 0, not {chunk_size}")
    return _with_aux(lambda f: jacobians.jacrev(f, argnums), func, has_aux, "jacrev")


def jacfwd(func: F, argnums: Any = 0, has_aux: bool = False, *, randomness: str = "error") -> F:
    """The Jacobian by forward mode; the rest as ``jacrev``. Every pass sees the same random numbers, whatever ``randomness`` says.

    >>> import aotgrad as ag
    >>> ag.func.jacfwd(lambda t: ag.stack([t, t * t]))(ag.tensor(2.0))
    tensor([1., 4.])
    """
    if randomness not in ("error", "different", "same"):
        raise AotgradValueError(f"jacfwd: randomness={randomness!r}; it is one of 'error', 'different' and 'same'")
    return _with_aux(lambda f: jacobians.jacfwd(f, argnums), func, has_aux, "jacfwd")


# ---- modules ------------------------------------------------------------------------------------------------------------------------------

def _places(module: Any) -> dict[str, tuple[dict[str, Any], str]]:
    """Where each parameter and buffer is kept, by its full name, those with several names under each."""
    found = {}
    for at, part in module.named_modules(remove_duplicate=False):
        for table in (part._parameters, part._buffers):
            found.update({f"{at}.{name}" if at else name: (table, name) for name in table})
    return found


def _tied(given: dict[str, Any], places: Mapping[str, tuple[dict[str, Any], str]]) -> dict[str, Any]:
    """``given``, and under their other names the values of parameters that have several."""
    names: dict[int, list[str]] = {}
    for key, (table, name) in places.items():
        if table[name] is not None:
            names.setdefault(id(table[name]), []).append(key)
    out = dict(given)
    for same in names.values():
        values = [given[n] for n in same if n in given]
        if any(v is not values[0] for v in values):
            raise AotgradValueError(f"functional_call: got multiple values for keys {same}, which are one parameter; give one of them, or tie_weights=False")
        out.update(dict.fromkeys(same, values[0]) if values else {})
    return out


@contextmanager
def _in_place_of(places: Mapping[str, tuple[dict[str, Any], str]], values: Mapping[str, Any], given: dict[str, Any]) -> Iterator[None]:
    kept = [(key, *places[key], places[key][0][places[key][1]]) for key in values]
    try:
        for key, table, name, _ in kept:
            table[name] = values[key]
        yield
        given.update({key: table[name] for key, table, name, _ in kept if key in given and table[name] is not values[key]})
    finally:
        for _, table, name, before in kept:
            table[name] = before


def functional_call(module: Any, parameter_and_buffer_dicts: Any, args: Any = None, kwargs: Mapping[str, Any] | None = None, *, tie_weights: bool = True,
                    strict: bool = False) -> Any:
    """``module(*args, **kwargs)`` with parameters and buffers by name in place of its own: one dict, or several without names in common. ``args``: a tuple of arguments,
    or the only one. Names that are not given keep what the module has. ``tie_weights``: a parameter with several names is replaced under all. ``strict``: all names must
    be given, and no others (else ``AotgradRuntimeError``); without, names that the module has not are passed over.

    >>> import aotgrad as ag
    >>> net = ag.nn.Linear(2, 1, bias=False)
    >>> ag.func.grad(lambda p: ag.func.functional_call(net, p, ag.tensor([1.0, 2.0])).sum())({"weight": ag.zeros(1, 2)})
    {'weight': tensor([[1., 2.]])}
    """
    if not isinstance(module, Module):
        raise AotgradTypeError(f"functional_call: a module is needed, not {type(module).__name__}")
    dicts = [parameter_and_buffer_dicts] if isinstance(parameter_and_buffer_dicts, Mapping) else parameter_and_buffer_dicts
    if not isinstance(dicts, Sequence) or not all(isinstance(d, Mapping) for d in dicts):
        raise AotgradValueError(f"functional_call: parameter_and_buffer_dicts must be a dict of tensors or a sequence of such dicts, not {type(dicts).__name__}")
    names = [name for d in dicts for name in d]
    if len(set(names)) < len(names):
        raise AotgradValueError(f"functional_call: {sorted({n for n in names if names.count(n) > 1})} appeared in multiple dictionaries; give each name once")
    given = {name: x for d in dicts for name, x in d.items()}
    places = _places(module)
    values = _tied(given, places) if tie_weights else given
    if strict and (missing := [*places.keys() - values.keys()]) + (unexpected := [*values.keys() - places.keys()]):
        raise AotgradRuntimeError(f"functional_call: missing key(s) {sorted(missing)}, unexpected key(s) {sorted(unexpected)} for {type(module).__name__}")
    target = parameter_and_buffer_dicts if isinstance(parameter_and_buffer_dicts, dict) else {}
    with _in_place_of(places, {k: v for k, v in values.items() if k in places}, target):
        return module(*(() if args is None else args if isinstance(args, tuple) else (args,)), **(kwargs or {}))


def stack_module_state(models: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters and buffers of modules of one kind, stacked along a new first dim, for ``vmap`` of ``functional_call``. Leaves, which require grad as the parts do.

    >>> import aotgrad as ag
    >>> params, buffers = ag.func.stack_module_state([ag.nn.Linear(2, 3) for _ in range(4)])
    >>> params["weight"].shape, params["weight"].is_leaf, buffers
    (aotgrad.Size([4, 3, 2]), True, {})
    """
    models = list(models)
    if not models:
        raise AotgradRuntimeError("stack_module_state: Expected at least one model, got 0.")
    if any(m.training is not models[0].training for m in models):
        raise AotgradRuntimeError("stack_module_state: Expected all models to have the same training/eval mode.")
    if any(type(m) is not type(models[0]) for m in models):
        raise AotgradRuntimeError("stack_module_state: Expected all models to be of the same class.")
    return tuple([_stacked([dict(getattr(m, table)()) for m in models]) for table in ("named_parameters", "named_buffers")])  # type: ignore[return-value]


def _stacked(states: list[dict[str, Any]]) -> dict[str, Any]:
    out = {}
    for name in states[0]:
        all_of = [s[name] for s in states]
        wants = {x.requires_grad for x in all_of}
        if len(wants) > 1:
            raise AotgradRuntimeError(f"stack_module_state: Expected {name} from each model to have the same .requires_grad")
        with modes.no_grad():
            whole = FUNCTIONS["stack"]([x.detach() for x in all_of])
        out[name] = whole.requires_grad_(True) if wants.pop() else whole
    return out


__getattr__ = _absent(__name__, __all__)
_guard(globals(), __all__)
